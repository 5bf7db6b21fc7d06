"""The page at / as people see it, in a real browser: its numbers, what it asks for, who may look."""
import os
import re
import tempfile
import threading
import urllib.parse

import browser
import kedge

SMALL = {"engine": {"max_seqs": 8, "step_tokens": 256, "prefill_chunk": 64},
         "memory": {"bytes": "8m", "page_tokens": 16}}
NGRAM = [kedge.CPU, SMALL, {"plugins": {"spec": "ngram"}, "memory": {"bytes": "32m"}}]
SHOTS = os.environ.get("KEDGE_SHOTS")  # a folder: pictures of the page are kept there

shared = None  # one browser for all cases: starting it takes longer than most of them


def tab(dark=False):
    global shared
    if shared is None:
        shared = browser.Browser()
    shared.devtools("Network.setExtraHTTPHeaders", headers={})
    shared.look(dark)
    shared.resize(1280, 900)
    shared.open("about:blank")
    return shared


def visit(b, server, path="/"):
    b.requests()  # those of the empty tab
    b.console()
    b.open(server.url + path)


def settle(server):
    server.wait_for(server.is_idle)


def busy(server, n=24):
    """Requests that share beginnings and repeat themselves, all ended."""
    texts = [[(7 * g + 3 * i) % 900 for i in range(120)] for g in range(3)]
    bodies = [{"prompt": texts[i % 3][:40 + 16 * (i % 5)] + [i, i + 1] + [5, 6, 7, 8] * 6,
               "max_tokens": 10 + i % 20, "temperature": 0} for i in range(n)]
    threads = [threading.Thread(target=server.ok, args=("/v1/completions", b)) for b in bodies]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    settle(server)


def test_its_numbers_are_those_of_metrics():
    b = tab()
    with kedge.Server(*NGRAM) as server:
        visit(b, server)
        b.wait_for(lambda: b.text("#status"), "live")
        busy(server)
        m = server.metric
        want = {
            "#n-waiting": m("vllm:num_requests_waiting"),
            "#n-running": m("vllm:num_requests_running"),
            "#n-batch": m("kedge:batch_sequences"),
            "#n-output": m("vllm:generation_tokens_total"),
            "#n-prompt": m("vllm:prompt_tokens_total"),
            "#n-steps": m("kedge:engine_steps_total"),
        }
        assert want["#n-output"] > 0 and want["#n-prompt"] > 0
        b.wait_for(lambda: {k: b.number(k) for k in want}, want)
        reused, asked = (m("vllm:prefix_cache_%s_total" % w) for w in ("hits", "queries"))
        assert reused > 0
        assert b.text("#n-reused") == "%.1f %%" % (100 * reused / asked)
        accepted = m("vllm:spec_decode_num_accepted_tokens_total")
        verified = m("kedge:verified_tokens_total")
        assert verified > 0
        assert b.text("#n-accepted-sub") == "%d of %d" % (accepted, verified)
        units = b.run("return [...document.querySelectorAll('#unit-table tbody tr')].map("
                      "(tr) => [...tr.cells].map((c) => c.textContent));")
        for row, name in ((0, "used"), (1, "cached"), (2, "evictable")):
            for cell, kind in ((1, "page"), (2, "state")):
                assert units[row][cell] == "%d" % m("kedge:units_" + name, kind=kind), (units, name)
        rows = b.run("return document.querySelectorAll('#done-table tbody tr').length;")
        assert rows == 20, rows
        assert b.console() == []


def test_the_strip_shows_each_class_where_it_lies():
    """Of the drawing itself: the share of coloured pixels is the share of bytes."""
    b = tab()
    with kedge.Server(*NGRAM) as server:
        visit(b, server)
        busy(server)
        steps = server.metric("kedge:engine_steps_total")
        b.wait_for(lambda: b.number("#n-steps"), steps)
        b.wait_for(lambda: b.run("return document.getElementById('pool').dataset.step;"), "%d" % steps)
        got = b.run("""
            const e = document.getElementById("pool"), c = e.getContext("2d");
            const data = c.getImageData(0, 0, e.width, e.height).data, seen = {}, place = {};
            for (let i = 0; i < data.length; i += 4) {
                const k = "#" + [0, 1, 2].map((j) => data[i + j].toString(16).padStart(2, "0")).join("");
                seen[k] = (seen[k] || 0) + 1;
                place[k] = (place[k] || 0) + (i / 4) % e.width;
            }
            const style = getComputedStyle(document.documentElement), out = {};
            for (const name of ["live_state", "cached_state", "live_page", "cached_page", "gap"]) {
                const k = style.getPropertyValue("--" + name).trim();
                out[name] = [(seen[k] || 0) / (e.width * e.height), (place[k] || 0) / (seen[k] || 1) / e.width];
            }
            return out;""")
        live = server.ok("/admin/live")
        arena = live["pool"]["arena"]
        for name, (share, _) in got.items():
            assert abs(share - live["pool"]["bytes"][name] / arena) < 0.02, (name, got, live["pool"])
        assert got["cached_state"][0] > 0.05 and got["gap"][0] > 0.05
        assert got["cached_state"][1] < got["gap"][1] < got["cached_page"][1], got


def test_the_picture_adds_up_for_every_pool():
    for pool, opts in (("unified", {}), ("split", {"style": "ratio"}), ("split", {"style": "uniform"})):
        with kedge.Server(kedge.CPU, SMALL, {"plugins": {"pool": pool}, "pool-" + pool: opts}) as server:
            busy(server, 9)
            steps = server.metric("kedge:engine_steps_total")
            server.wait_for(lambda: (server.ok("/admin/live")["picture"] or {}).get("steps"),
                            [steps, steps])
            live = server.ok("/admin/live")
            sums = {name: sum(n * each for _, n, each in zip(*[iter(runs)] * 3))
                    for name, runs in live["picture"]["bins"].items()}
            assert sums == live["pool"]["bytes"], (sums, live["pool"]["bytes"])
            assert sum(sums.values()) == live["pool"]["arena"]
            metrics = {k: server.metric("kedge:arena_bytes", **{"class": k}) for k in sums}
            assert metrics == sums


def test_nothing_is_asked_of_anybody_else_and_nothing_is_complained_about():
    b = tab()
    with kedge.Server(*NGRAM) as server:
        visit(b, server)
        busy(server, 6)
        steps = server.metric("kedge:engine_steps_total")
        b.wait_for(lambda: b.number("#n-steps"), steps)
        asked = b.requests()
        hosts = {urllib.parse.urlsplit(u).netloc for u in asked if not u.startswith("data:")}
        assert hosts == {"127.0.0.1:%d" % server.port}, asked
        paths = {urllib.parse.urlsplit(u).path for u in asked if u.startswith("http")}
        assert paths == {"/", "/admin/live", "/admin/plugins"}, paths
        assert b.console() == []
        status, head, page = server.call("/")
        assert status == 200 and head["Content-Type"] == "text/html; charset=utf-8"
        policy = head["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        text = page.decode()
        assert re.findall(r"""(?:src|href)=["'](?!#|data:)""", text) == []
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
        # what the policy does not name does not run
        b.run("const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
              "document.body.appendChild(s); return null;")
        assert b.run("return window.ran === undefined;")
        assert any("Content Security Policy" in line for line in b.console())


def test_no_text_of_anybody_is_in_it():
    word = "zanzibarquux"
    with kedge.Server(kedge.CPU, SMALL) as server:
        body = {"prompt": word + " is a word", "max_tokens": 5, "user": word, "cache_salt": word}
        server.ok("/v1/completions", body, headers={"x-request-id": word})
        settle(server)
        with server.stream("/v1/completions", dict(body, max_tokens=2000, min_tokens=2000)).open() as r:
            r.readline()
            for _ in range(3):
                assert word not in str(server.ok("/admin/live"))


def test_the_key_is_asked_for_and_kept_nowhere():
    far = {"X-Forwarded-For": "10.1.2.3"}
    b = tab()
    with kedge.Server(SMALL, {"server": {"api_key": "sesame"}}) as server:
        b.devtools("Network.setExtraHTTPHeaders", headers=far)
        visit(b, server)
        b.wait_for(lambda: b.text("#key") is not None)
        assert b.text("main") is None
        b.type("#key-text", "wrong")
        b.click("#key button")
        b.wait_for(lambda: b.text("#key-wrong"), "That was not the key.")
        b.type("#key-text", "sesame")
        b.click("#key button")
        b.wait_for(lambda: b.text("#status"), "live")
        assert b.text("#key") is None and b.number("#n-steps") == 0
        assert b.run("return [localStorage.length, sessionStorage.length, document.cookie,"
                     "location.href.includes('sesame'), document.documentElement.outerHTML"
                     ".includes('sesame')];") == [0, 0, "", False, False]
        visit(b, server)
        b.wait_for(lambda: b.text("#key") is not None)


def test_it_answers_where_admin_does_and_to_no_borrowed_name():
    live = "/admin/live"
    with kedge.Server(SMALL) as server:
        for host in ("127.0.0.1:%d" % server.port, "localhost", "LOCALHOST:1", "127.1.2.3", "[::1]:80"):
            server.ok(live, headers={"Host": host})
        for host in ("evil.example", "127.evil.example", "localhost.evil.example", "10.0.0.1:80", "x"):
            error = server.refused(live, None, 403, headers={"Host": host})
            assert error["code"] == "forbidden"
        server.refused(live, None, 403, headers={"X-Forwarded-For": "10.1.2.3"})
        server.refused(live, None, 403, headers={"Origin": "http://evil.example"})
        server.refused(live, {"a": 1}, 405)
        assert server.call("/", headers={"Host": "evil.example"})[0] == 200  # it holds no data
    with kedge.Server(SMALL, {"server": {"api_key": "sesame"}}) as server:
        good = {"Authorization": "Bearer sesame"}
        server.ok(live, headers={"Host": "gpu7.example", **good})
        server.refused(live, None, 403, headers={"Host": "gpu7.example"})
        server.refused(live, None, 401, headers={"X-Forwarded-For": "10.1.2.3"})


def test_it_can_be_read_without_the_drawings():
    """Every drawing says in words what it shows, and its numbers stand in a table."""
    b = tab()
    with kedge.Server(*NGRAM) as server:
        visit(b, server)
        busy(server)
        steps = server.metric("kedge:engine_steps_total")
        b.wait_for(lambda: b.number("#n-steps"), steps)
        told = b.run("return [...document.querySelectorAll('canvas, figure > svg')].map("
                     "(e) => [e.getAttribute('role'), (e.getAttribute('aria-label') || '').length]);")
        assert len(told) == 10 and all(role == "img" and n > 20 for role, n in told), told
        tables = b.run("return [...document.querySelectorAll('figure table')].map((t) => "
                       "[t.tHead.rows.length, t.tBodies[0].rows.length, "
                       "t.querySelectorAll('th[scope]').length]);")
        assert len(tables) == 8 and all(h == 1 and r > 0 and s > 1 for h, r, s in tables), tables
        order = b.run("return [...document.querySelectorAll('h1, h2')].map((e) => e.tagName);")
        assert order[0] == "H1" and set(order[1:]) == {"H2"}
        unnamed = b.run("return [...document.querySelectorAll('button, input, summary')].filter((e) => "
                        "e.textContent.trim() === '' && (e.labels || []).length === 0).length;")
        assert unnamed == 0


def test_arms_stand_beside_each_other():
    arms = {"arm plain": {"share": 50, "spec": "off"},
            "arm drafts": {"share": 50, "spec": "ngram"}}
    b = tab()
    with kedge.Server(kedge.CPU, SMALL, {"engine": {"max_draft": 8}, "arms": {"field": "header:x-who"}},
                      arms) as server:
        visit(b, server)
        for i in range(12):
            server.ok("/v1/completions", {"prompt": [5, 6, 7, 8] * 12, "max_tokens": 40,
                                           "temperature": 0},
                      headers={"x-who": "user %d" % i})
        settle(server)
        want = [(n, int(server.metric("kedge:arm_requests_total", arm=n, outcome="ok")))
                for n in ("plain", "drafts")]
        assert sum(n for _, n in want) == 12 and all(n > 0 for _, n in want), want
        script = ("return [...document.querySelectorAll('#arm-table tbody tr')].map("
                  "(tr) => [...tr.cells].map((c) => c.textContent));")
        b.wait_for(lambda: sorted((r[0], int(r[3])) for r in b.run(script) if len(r) > 3), sorted(want))
        rows = {r[0]: r for r in b.run(script)}
        assert rows["plain"][11] == "–" and rows["drafts"][11].endswith(" %"), rows
        ended = b.run("return [...document.querySelectorAll('#done-table tbody tr')].map("
                      "(tr) => tr.lastChild.textContent);")
        assert {n: ended.count(n) for n, _ in want} == dict(want), ended
        assert b.console() == []


def contrast(a, b):
    def light(c):
        parts = [int(x) / 255 for x in re.findall(r"\d+", c)[:3]]
        parts = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
    hi, lo = sorted((light(a), light(b)), reverse=True)
    return (hi + 0.05) / (lo + 0.05)


def test_it_fits_phone_and_desk_in_light_and_dark():
    tab()  # before the server: there may be none
    with tempfile.TemporaryDirectory() as folder, kedge.Server(*NGRAM) as server:
        for dark in (False, True):
            b = tab(dark)
            visit(b, server)
            busy(server)
            steps = server.metric("kedge:engine_steps_total")
            b.wait_for(lambda: b.number("#n-steps"), steps)
            for width in (1280, 800, 390, 320):
                b.resize(width, 900)
                b.wait_for(lambda: b.run("return innerWidth;"), width)
                wide = b.run("return document.documentElement.scrollWidth;")
                assert wide <= width, (width, wide)
                cut = b.run("return [...document.querySelectorAll('.tiles dd, .tiles dt, h2, p')]"
                            ".filter((e) => e.offsetParent !== null && !e.closest('.hidden') && "
                            "e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 1)"
                            ".map((e) => e.textContent);")
                assert cut == [], (width, cut)
                name = "%s-%d.png" % ("dark" if dark else "light", width)
                path = os.path.join(SHOTS or folder, name)
                b.screenshot(path)
                assert os.path.getsize(path) > 20000
            back, card, ink, dim = b.run(
                "const s = (e, k) => getComputedStyle(document.querySelector(e))[k];"
                "return [s('body', 'backgroundColor'), s('section', 'backgroundColor'),"
                "s('body', 'color'), s('.note', 'color')];")
            assert (contrast("rgb(0,0,0)", back) > 10) != dark, back
            for ground in (back, card):
                assert contrast(ink, ground) > 7 and contrast(dim, ground) > 4.5, (ground, ink, dim)
            assert b.console() == []


def test_it_goes_on_when_the_server_comes_back_and_pauses_when_told():
    b = tab()
    with kedge.Server(SMALL) as server:
        visit(b, server)
        b.wait_for(lambda: b.text("#status"), "live")
        b.click("#pause")
        assert b.text("#status") == "paused"
        server.ok("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 7})
        settle(server)
        steps = server.metric("kedge:engine_steps_total")
        assert b.number("#n-steps") == 0
        b.click("#pause")
        b.wait_for(lambda: b.number("#n-steps"), steps)
        port = server.port
    b.wait_for(lambda: b.text("#status").startswith("no answer; next try in "))
    with kedge.Server(SMALL, {"server": {"port": port}}) as server:
        b.wait_for(lambda: b.text("#status"), "live")
        b.wait_for(lambda: b.number("#n-steps"), 0)


if __name__ == "__main__":
    try:
        kedge.main(globals())
    finally:
        if shared is not None:
            shared.close()
