"""The page of kedge ab as people see it, in a real browser: what stands in it, and that it asks nobody."""
import json
import os
import random
import subprocess
import tempfile

import browser
import kedge

CONF = os.path.join(kedge.ROOT, "scripts/conf")
TABLES, TINY = (os.path.join(CONF, n) for n in ("sim-k3-tables.ini", "tiny.ini"))
SHOTS = os.environ.get("KEDGE_SHOTS")  # a folder: pictures of the page are kept there

shared = None


def tab(dark=False, width=1280):
    global shared
    if shared is None:
        shared = browser.Browser()
    shared.look(dark)
    shared.resize(width, 900)
    shared.open("about:blank")
    shared.requests()
    shared.console()
    return shared


def trace(folder, n=80, prompt=512):
    rng = random.Random(5)
    path, at = os.path.join(folder, "t.jsonl"), 0.0
    with open(path, "w") as f:
        for i in range(n):
            at += rng.expovariate(1 / 40)
            ids = [rng.randrange(6)] + [10 + 100 * i + k for k in range(rng.randrange(1, 8))]
            f.write(json.dumps({"timestamp": at, "block": prompt // 8, "input_length": prompt // 8 * len(ids),
                                "hash_ids": ids, "output_length": rng.randrange(2, 30)}) + "\n")
    return path


def ab(folder, *args, n=80, prompt=512):
    """Runs it; its report and the address of its page."""
    out = os.path.join(folder, "out")
    r = subprocess.run([kedge.BINARY, "ab", *args, "--trace", trace(folder, n, prompt), "--out", out],
                       capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr[-500:]
    with open(os.path.join(out, "ab.json")) as f:
        return json.load(f)["comparisons"][0], "file://" + os.path.join(out, "ab.html")


def drafts(folder):
    return ab(folder, TABLES, "--set", "exec-sim.draft_block=7", "--vary", "plugins.spec=off,dspark")


def test_its_table_is_the_report():
    with tempfile.TemporaryDirectory() as d:
        report, page = drafts(d)
        b = tab()
        b.open(page)
        rows = {r[0]: r for r in b.run(
            "return [...document.querySelectorAll('table')[0].rows].map((tr) => "
            "[...tr.cells].map((c) => c.textContent));")}
        told = [f for f in report["figures"] if f["diff"] is not None and (f["a"] or f["b"])]
        assert len(told) > 10 and set(rows) == {f["name"] for f in told} | {"", "throughput", "goodput"}
        for f in told:
            for cell, side in ((1, "a"), (2, "b")):
                shown = float(rows[f["name"]][cell].split()[0])
                want = f[side] * (100 if rows[f["name"]][cell].endswith("%") else 1)
                assert abs(shown - want) <= 0.051, (f["name"], shown, want)
        assert report["verdict"].split("\n")[0] in b.text("p.v")
        parts = b.run("return [...document.querySelectorAll('table')[1].rows].slice(1, -2).map("
                      "(tr) => [tr.cells[0].textContent, tr.cells[3].textContent, tr.cells[6].textContent]);")
        for name, *seconds in parts:
            for arm, text in zip(report["arms"], seconds):
                want = sum(p["s"] for p in arm["step_parts"] if p["name"] == name)
                assert abs(float(text.split()[0]) - want) < 0.0051, (name, text, want)
        headings = b.run("return [...document.querySelectorAll('h3')].map((e) => e.textContent);")
        for word in ("TTFT", "TPOT", "E2E", "wait", "run", "time of a step", "Drafts accepted", "Memory over time"):
            assert any(word in h for h in headings), (word, headings)


def test_it_asks_for_nothing_but_itself_and_may_run_nothing():
    with tempfile.TemporaryDirectory() as d:
        _, page = drafts(d)
        b = tab()
        b.open(page)
        asked = b.requests()
        assert asked == [page], asked
        assert b.console() == []
        assert b.run("return document.scripts.length;") == 0
        b.run("const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
              "document.body.appendChild(s);"
              "const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.appendChild(i);"
              "return null;")
        assert b.run("return window.ran === undefined;")
        assert any("Content Security Policy" in line for line in b.console())


def test_a_real_backend_tells_its_parts_too():
    with tempfile.TemporaryDirectory() as d:
        report, page = ab(d, TINY, "--vary", "plugins.spec=off,ngram", n=12, prompt=64)
        names = [p["name"] for p in report["arms"][1]["step_parts"]]
        assert names[0] == "forward pass" and "engine" in names, names
        b = tab()
        b.open(page)
        shown = b.run("return [...document.querySelectorAll('table')[1].rows].map((tr) => tr.cells[0].textContent);")
        assert set(names) <= set(shown), shown
        assert b.console() == []


def test_it_fits_phone_and_desk_in_light_and_dark():
    with tempfile.TemporaryDirectory() as d:
        _, page = drafts(d)
        for dark in (False, True):
            grounds = set()
            for width in (1280, 800, 390, 320):
                b = tab(dark, width)
                b.open(page)
                assert b.run("return document.documentElement.scrollWidth;") <= width, width
                grounds.add(b.run("return getComputedStyle(document.body).backgroundColor;"))
                path = os.path.join(SHOTS or d, "ab-%s-%d.png" % ("dark" if dark else "light", width))
                b.screenshot(path)
                assert os.path.getsize(path) > 20000
            assert grounds == {"rgb(19, 21, 25)" if dark else "rgb(255, 255, 255)"}, grounds
            assert b.console() == []


def test_nothing_lies_outside_its_drawing():
    with tempfile.TemporaryDirectory() as d:
        _, page = drafts(d)
        b = tab()
        b.open(page)
        outside = b.run("""
            const out = [];
            for (const svg of document.querySelectorAll(".plot svg")) {
                const f = svg.getBoundingClientRect();
                for (const e of svg.querySelectorAll("text, rect, path, polygon, circle")) {
                    const r = e.getBoundingClientRect();
                    if (r.left < f.left - 1 || r.right > f.right + 1 || r.top < f.top - 1 || r.bottom > f.bottom + 1) {
                        out.push([svg.getAttribute("aria-label"), e.tagName, e.textContent]);
                    }
                }
            }
            return out;""")
        assert outside == [], outside


if __name__ == "__main__":
    try:
        kedge.main(globals())
    finally:
        if shared is not None:
            shared.close()
