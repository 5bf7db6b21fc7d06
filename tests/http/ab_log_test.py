"""kedge ab --log: what the request log of a server says about its arms."""
import gzip
import hashlib
import json
import os
import random
import re
import subprocess
import tempfile
import threading
import xml.dom.minidom

import kedge

CONF = os.path.join(kedge.ROOT, "scripts", "conf", "sim-k3.ini")


def run(*args):
    return subprocess.run([kedge.BINARY, "ab", *args], capture_output=True, text=True, timeout=100)


def report(*args):
    r = run("--json", *args)
    assert r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr[-500:])
    return json.loads(r.stdout)["comparisons"]


def figure(comparison, name):
    return next(f for f in comparison["figures"] if f["name"] == name)


def different(comparison):
    return [f["name"] for f in comparison["figures"] if f["different"]]


def key_of(client, seed):
    return hashlib.blake2b(b"%d" % client, digest_size=8, key=b"%d" % seed).hexdigest()


def replayed(folder, n=1200):
    """Rows of a replay in virtual time, the same in every run, with a client for each: few send much."""
    rng, at = random.Random(3), 0.0
    trace, out = os.path.join(folder, "trace.jsonl"), os.path.join(folder, "rows.jsonl")
    clients = []
    with open(trace, "w") as f:
        for i in range(n):
            client = rng.randrange(20 if rng.random() < 0.3 else 400)
            clients.append(client)
            at += rng.expovariate(1 / 60)
            blocks = 1 + client % 7
            ids = [client % 6] + [1000 * client + k + 10 for k in range(blocks)]
            f.write(json.dumps({"timestamp": at, "input_length": 64 * len(ids), "block": 64,
                                "hash_ids": ids, "output_length": 2 + (client * 7 + i) % 50}) + "\n")
    r = subprocess.run([kedge.BINARY, "replay", "-c", CONF, "--trace", trace, "--out", out],
                       capture_output=True, text=True, timeout=100)
    assert r.returncode == 0, r.stderr
    with open(out) as f:
        rows = [json.loads(line) for line in f]
    assert len(rows) == n
    return rows, clients


def split(folder, rows, clients, seed, slow=1.0):
    """A log: clients among arms a and b by a hash; times of b longer by a factor."""
    path = os.path.join(folder, "log.jsonl")
    with open(path, "w") as f:
        for row, client in zip(rows, clients):
            key = key_of(client, seed)
            arm = "ab"[int(key, 16) & 1]
            row = {**row, "arm": arm, "key": key, "share": 50, "forced": False}
            if arm == "b":
                for t in ("ttft_ms", "tpot_ms", "e2e_ms"):
                    row[t] = row[t] and row[t] * slow
            f.write(json.dumps(row) + "\n")
    return path


def test_equal_arms_show_no_difference_in_19_of_20_splits_and_a_slow_one_is_found():
    with tempfile.TemporaryDirectory() as d:
        rows, clients = replayed(d)
        found, said = [], []
        for seed in range(100 if kedge.FULL else 20):
            c, = report("--log", split(d, rows, clients, seed), "--draws", "400")
            assert c["tested"] > 8 and 20 < c["worth_clients"] < 300, c
            if different(c):
                said.append((seed, different(c)))
        for seed in range(5):
            c, = report("--log", split(d, rows, clients, seed, 1.6), "--draws", "400")
            if figure(c, "median TTFT")["different"]:
                found.append(seed)
                assert "b is slower" in c["verdict"], c["verdict"]
        print("# equal arms that differ: %s; slow ones found: %s" % (said, found))
        assert len(said) <= (5 if kedge.FULL else 1) and len(found) == 5, (said, found)


def load(server, clients, each, threads, rng=None):
    """Clients with prompts of their own, `each` requests or, by chance, up to as many."""
    plan = [(i, k) for i in range(clients) for k in range(rng.randrange(1, each + 1) if rng else each)]
    if rng:
        rng.shuffle(plan)
    wrong = []

    def work(first):
        for i, k in plan[first::threads]:
            status, _, a = server.call("/v1/completions", {
                "prompt": [1 + i, 2, 3] * (16 + i % 48 if rng else 64) + [k + 1] * 8,
                "max_tokens": 3 + (i % 9 if rng else 0), "ignore_eos": True, "user": "client-%d" % i})
            if status != 200:
                wrong.append(a)

    pool = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for t in pool:
        t.start()
    for t in pool:
        t.join()
    assert not wrong, wrong[0]
    server.wait_for(lambda: server.metric("kedge:request_log_lines_total", outcome="written"),
                    len(plan))
    return len(plan)


def test_equal_arms_of_20_running_servers_show_no_difference_in_19():
    if not kedge.FULL:
        raise kedge.Skip("with KEDGE_FULL=1")
    said = []
    for seed in range(1, 21):
        with tempfile.TemporaryDirectory(prefix="kedge-ab-log-") as d:
            path = os.path.join(d, "log.jsonl")
            conf = {"arm a": {"share": 50}, "arm b": {"share": 50}, "arms": {"seed": seed},
                    "server": {"request_log": path}, "memory": {"page_tokens": 16},
                    "exec-null": {"per_row_ns": 20000}}
            with kedge.Server(conf) as server:
                load(server, 200, 5, 3, random.Random(seed))
            c, = report("--log", path)
            assert c["tested"] > 8
            if different(c):
                said.append((seed, different(c)))
    print("# servers with equal arms that differ: %s" % said)
    assert len(said) <= 1, said


def test_a_slow_arm_of_a_running_server_is_found_by_its_log():
    with tempfile.TemporaryDirectory(prefix="kedge-ab-log-") as d:
        path, page, summary = (os.path.join(d, n) for n in ("log.jsonl", "page.html", "s.json"))
        conf = {"arm keeps": {"share": 50}, "arm forgets": {"share": 50, "checkpoint": "off"},
                "server": {"request_log": path}, "memory": {"page_tokens": 16},
                "exec-null": {"per_row_ns": 40000}}
        with kedge.Server(conf) as server:
            load(server, 120, 3, 2)
        c, = report("--log", path, "--arms", "keeps,forgets", "--html", page, "--summary", summary)
        assert [a["name"] for a in c["arms"]] == ["keeps", "forgets"]
        assert sum(a["requests"] for a in c["arms"]) == 360
        assert sum(a["clients"] for a in c["arms"]) == 120
        assert not c["shares_changed"] and c["clients_in_both"] == 0
        reused = figure(c, "reused")
        assert reused["different"] and reused["a"] > 60 and reused["b"] == 0, reused
        ttft = figure(c, "mean TTFT")
        assert ttft["different"] and ttft["b"] > ttft["a"], ttft
        assert "forgets is slower" in c["verdict"] and "throughput" not in c, c["verdict"]
        with open(summary) as f:
            assert json.load(f)["comparisons"] == [c]
        with open(page) as f:
            text = f.read()
        assert "forgets is slower" in text and "nan" not in text
        assert not re.search("(?i)https?:|<script|<link|<img|@import|url[(]", text)
        for svg in re.findall("(?s)<svg.*?</svg>", text):
            xml.dom.minidom.parseString(svg)


def test_a_log_of_nonsense_is_counted_or_refused_and_never_believed():
    good = {"id": "x", "arrival_ms": 1.0, "outcome": "ok", "prompt_tokens": 4, "output_tokens": 2,
            "ttft_ms": 5.0, "tpot_ms": 1.0, "e2e_ms": 6.0, "queue_ms": 0.0, "share": 50,
            "forced": False}
    lines = [json.dumps({**good, "arm": "ab"[i % 2], "key": "%016x" % i}) for i in range(80)]
    odd = ['{"outcome": 5}', '{"outcome": "ok", "arm": "a"', "[1]", "17", '"x"', "\x00\x01", "{}",
           "[" * 3000, '{"outcome": null, "arm": "a", "key": "1"}']
    armless = ['{"outcome": "ok"}', '{"outcome": "ok", "arm": 5, "key": "1"}',
               '{"outcome": "ok", "arm": "a", "key": 7}']
    forced = [json.dumps({**good, "arm": "other", "key": "1", "forced": True})]
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "log")

        def log(text):
            data = text.encode() if isinstance(text, str) else text
            with open(path, "wb") as f:
                f.write(data)
            return path

        c, = report("--log", log("\n".join(lines + odd + armless + forced)))
        assert c["left_out"] == {"forced": 1, "without_arm": 3, "no_rows": len(odd)}, c["left_out"]
        assert [a["requests"] for a in c["arms"]] == [40, 40] and not different(c)
        assert report("--log", log(gzip.compress("\n".join(lines + odd + armless + forced)
                                                 .encode()))) == [c]
        assert not c["split_is_off"]
        c, = report("--log", log("\n".join(lines[::2] + lines[1::4])))  # 40 and 20
        assert not c["split_is_off"]
        c, = report("--log", log("\n".join(lines[::2] + lines[1::8])))  # 40 and 10
        assert c["split_is_off"]
        tenth = [json.dumps({**json.loads(x), "share": 80 if '"arm": "a"' in x else 20})
                 for x in lines[::2] + lines[1::8]]
        c, = report("--log", log("\n".join(tenth)))
        assert not c["split_is_off"]
        r = run("--log", log("\n".join(lines[::2] + lines[1::8])))
        assert "The split is off: 40 and 10 clients at shares of 50 and 50" in r.stdout, r.stdout
        # numbers that no server writes
        wild = ["1e999", "-1e999", "-5", '"5"', "null", "true", "[]", "1e300", "-1e300", "1e-320"]
        text = "\n".join(lines)
        for name in ("arrival_ms", "ttft_ms", "e2e_ms", "prompt_tokens", "share", "queue_ms"):
            for value in wild:
                row = '{"id":"x","outcome":"ok","arm":"a","key":"1","%s":%s}' % (name, value)
                page = os.path.join(d, "p.html")
                r = run("--log", log(text + "\n" + row), "--html", page, "--json", "--draws", "100")
                assert r.returncode == 0, (name, value, r.stderr)
                c, = json.loads(r.stdout)["comparisons"]
                assert c["left_out"]["no_rows"] == (value != "null"), (name, value)
                with open(page) as f:
                    assert "nan" not in f.read() + r.stdout, (name, value)
        # names of others
        named = text.replace('"arm": "b"', '"arm": "<b>&x"')
        page = os.path.join(d, "p.html")
        report("--log", log(named), "--html", page)
        with open(page) as f:
            assert "<b>&x" not in f.read()
        many = "\n".join(json.dumps({**good, "arm": "n%d" % i, "key": "1"}) for i in range(17))
        for status, word, data, args in (
                (1, "no request with an arm", "", ()),
                (1, "no request with an arm", "\n".join(armless), ()),
                (1, "no request with an arm", forced[0], ()),
                (1, "more than 16 arms", many, ()),
                (1, "31 bytes", lines[0] + "\n" + json.dumps({**good, "arm": "n" * 32, "key": "1"}), ()),
                (2, "1 arm in it", "\n".join(lines[::2]), ()),
                (2, "there are a, b", text, ("--arms", "a,c")),
                (2, "there are a, b", text, ("--arms", ",")),
                (2, "different arms", text, ("--arms", "a,a")),
                (2, "1 arm in it", text, ("--arms", "a")),
                (2, "takes no configuration", text, ("-c", CONF)),
                (2, "--draws", text, ("--draws", "5")),
                (1, "No such file", text, ("--html", os.path.join(d, "no", "x")))):
            r = run("--log", log(data), *args)
            assert r.returncode == status and word in r.stderr, (args, r.returncode, r.stderr)
        r = run("--log", path + ".none")
        assert r.returncode in (1, 2) and "No such file" in r.stderr, r.stderr


if __name__ == "__main__":
    kedge.main(globals())
