#!/usr/bin/python3
"""kedge ab: equal arms, a slowdown put in on purpose, figures worked out again from the rows.

usage: ab_cli.py KEDGE SOURCE_ROOT      (TAP on standard output)
"""
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import xml.dom.minidom

KEDGE, ROOT = (os.path.abspath(p) for p in sys.argv[1:3])
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import case, main  # noqa: E402

CONF = os.path.join(ROOT, "scripts/conf")
SIM, TINY, COST = (os.path.join(CONF, n) for n in ("sim-k3.ini", "tiny.ini", "k3-tp8-b300.cost"))


def trace(d, n=400, seed=1, gap_ms=60):
    """Prompts that share beginnings, made up here; with 60 ms between them the node is busy, not full."""
    rng = random.Random(seed)
    path, at = os.path.join(d, "t.jsonl"), 0.0
    with open(path, "w") as f:
        for i in range(n):
            at += rng.expovariate(1 / gap_ms)
            blocks = rng.randrange(1, 8)
            ids = [rng.randrange(6)] + [1000 * i + k + 10 for k in range(blocks)]
            f.write(json.dumps({"timestamp": at, "input_length": 64 * len(ids), "block": 64, "hash_ids": ids,
                                "output_length": rng.randrange(2, 60)}) + "\n")
    return path


def run(*args):
    return subprocess.run([KEDGE, "ab", *args], capture_output=True, text=True, timeout=200)


def report(*args):
    r = run("--json", *args)
    assert r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr[-500:])
    return json.loads(r.stdout)["comparisons"]


def figure(comparison, name):
    return next(f for f in comparison["figures"] if f["name"] == name)


def quantile(values, q):
    v = sorted(values)
    at = q * (len(v) - 1)
    i = int(at)
    return v[i] if i + 1 == len(v) else v[i] + (at - i) * (v[i + 1] - v[i])


def slower(d, factor):
    """The configuration with every time of its cost table times `factor`."""
    cost, conf = os.path.join(d, "slow.cost"), os.path.join(d, "slow.ini")
    with open(COST) as f, open(cost, "w") as g:
        for line in f:
            w = line.split()
            if w and (w[0] == "rows" or w[0].endswith("_ns")):
                w[-1] = repr(float(w[-1]) * factor)
                line = " ".join(w) + "\n"
            g.write(line)
    with open(SIM) as f, open(conf, "w") as g:
        g.write(re.sub("(?m)^cost = .*$", "cost = slow.cost", f.read()))
    return conf


@case
def equal_arms_show_no_difference_whatever_the_seed():
    with tempfile.TemporaryDirectory() as d:
        t = trace(d)
        for seed in range(20 if os.environ.get("KEDGE_FULL") else 3):
            c, = report(SIM, SIM, "--trace", t, "--seed", str(seed), "--seed-b", str(seed + 100))
            assert not any(f["different"] for f in c["figures"]), c["verdict"]
        c, = report(SIM, SIM, "--trace", t)
        assert c["same"] and "are the same in every figure" in c["verdict"], c["verdict"]
        assert c["outputs"] == {"promised": True, "compared": 400, "differ": 0}, c["outputs"]


@case
def a_slowdown_of_five_percent_is_found():
    with tempfile.TemporaryDirectory() as d:
        c, = report(SIM, slower(d, 1.05), "--trace", trace(d))
        assert "B is slower" in c["verdict"] and "faster" not in c["verdict"], c["verdict"]
        f = figure(c, "mean TPOT")
        assert f["different"] and 0.04 < f["rel"] < 0.15, f
        assert f["rel_lo"] < f["rel"] < f["rel_hi"] and f["rel_lo"] > 0, f


@case
def figures_are_those_of_the_rows_that_it_keeps():
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "out")
        c, = report(SIM, "--vary", "plugins.pool=unified,split", "--trace", trace(d), "--out", out,
                    "--repeat", "2")
        rows = []
        for arm in (1, 2):
            rows.append([json.loads(l) for k in (1, 2)
                         for l in open(os.path.join(out, "arm%d-run%d.rows.jsonl" % (arm, k)))])
        ok = [(a, b) for a, b in zip(*rows) if a["outcome"] == b["outcome"] == "ok"]
        for name, key in (("TTFT", "ttft_ms"), ("E2E", "e2e_ms"), ("queue", "queue_ms")):
            for k, side in enumerate("ab"):
                v = [pair[k][key] for pair in ok]
                for stat, x in (("median", quantile(v, 0.5)), ("mean", sum(v) / len(v)), ("p99", quantile(v, 0.99))):
                    found = figure(c, "%s %s" % (stat, name))[side]
                    assert abs(found - x) < 1e-6 * max(1, x), (name, stat, side, found, x)
        for k, side in enumerate("ab"):
            x = sum(r["reused_tokens"] for r in rows[k]) / len(rows[k])
            assert abs(figure(c, "reused")[side] - x) < 1e-9
        assert c["repeats"] == 2 and c["arms"][0]["pool"] == "unified" and c["arms"][1]["pool"] == "split"


@case
def set_b_is_a_second_file_with_these_options():
    with tempfile.TemporaryDirectory() as d:
        other = os.path.join(d, "b.ini")
        with open(SIM) as f, open(other, "w") as g:
            text = f.read().replace("cost = ", "cost = %s/" % CONF)
            g.write(text + "[prefix]\ncheckpoint = interval\ninterval = 128\n")
        t = trace(d, 120)
        by_file, = report(SIM, other, "--trace", t)
        by_set, = report(SIM, "--set-b", "prefix.checkpoint=interval,prefix.interval=128", "--trace", t)
        assert not by_set["same"] and by_set["figures"] == by_file["figures"]
        assert by_set["arms"][1]["config"].endswith("sim-k3.ini, prefix.checkpoint=interval,prefix.interval=128")
        for bad in ("interval", "prefix.interval", "prefix.interval=128,", "no.such=1"):
            r = run(SIM, "--set-b", bad, "--trace", t)
            assert r.returncode == 2, (bad, r.returncode, r.stderr)
        r = run(SIM, "--set-b", "prefix.interval=128", "--vary", "prefix.interval=1,2", "--trace", t)
        assert r.returncode == 2 and "either" in r.stderr, r.stderr


@case
def bytes_over_time_add_up_to_their_means():
    with tempfile.TemporaryDirectory() as d:
        out = os.path.join(d, "out")
        report(SIM, SIM, "--trace", trace(d, 100), "--out", out)
        with open(os.path.join(out, "arm1-run1.json")) as f:
            s = json.load(f)
        t = s["bytes_over_time"]
        n, width = len(t["gap"]), t["width_s"]
        assert 128 <= n <= 256 and (n - 1) * width < s["duration_s"] <= n * width, (n, width)
        last = s["duration_s"] - (n - 1) * width
        for name in ("live_pages", "live_states", "cached_pages", "cached_states", "gap"):
            mean = (sum(t[name][:-1]) * width + t[name][-1] * last) / s["duration_s"]
            assert abs(mean - s["bytes"][name]["mean"]) <= 1e-6 * mean + 2, (name, mean, s["bytes"][name])
        k = n // 2
        whole = sum(t[c][k] for c in t if c not in ("width_s", "promised"))
        assert abs(whole - s["bytes"]["arena"]) < 20, (whole, s["bytes"]["arena"])
        steps = s["steps_over_time"]
        assert steps["width_s"] == width and len(steps["n"]) == len(steps["ms"]) == n
        assert sum(steps["n"]) == s["steps"]
        assert all((k == 0) == (ms is None) for k, ms in zip(steps["n"], steps["ms"]))
        mean = sum(k * ms for k, ms in zip(steps["n"], steps["ms"]) if k) / s["steps"]
        assert abs(mean - s["step_ms"]["mean"]) < 1e-6 * mean, (mean, s["step_ms"])


@case
def the_page_stands_alone_and_draws_what_the_report_says():
    with tempfile.TemporaryDirectory() as d:
        page = os.path.join(d, "page.html")
        slow = slower(d, 1.05)
        named = os.path.join(d, "a<b>&c.ini")
        os.rename(slow, named)
        c, = report(SIM, named, "--trace", trace(d), "--html", page)
        with open(page) as f:
            text = f.read()
        assert "a&lt;b&gt;&amp;c.ini" in text and "<b>" not in text
        assert not re.search("(?i)https?:|<script|<link|<img|@import|url[(]", text)
        assert "nan" not in text and "B is slower" in text
        pictures = [xml.dom.minidom.parseString(s) for s in re.findall("(?s)<svg.*?</svg>", text)]
        # two lines of the key, intervals, three distributions, two series, steps, parts with a swatch
        # each, memory, the pool of each arm
        n_parts = len(c["arms"][0]["step_parts"])
        assert n_parts > 2 and len(pictures) == 13 + n_parts, len(pictures)
        for p in pictures[2:10] + pictures[10 + n_parts:]:
            svg = p.documentElement
            assert svg.getAttribute("role") == "img" and len(svg.getAttribute("aria-label")) > 20
        told = [f for f in c["figures"] if f["rel"] is not None and f["a"] + f["b"] > 0]
        assert len(pictures[2].getElementsByTagName("circle")) == len(told)
        for p in pictures[3:8]:
            paths = p.getElementsByTagName("path")
            assert [e.getAttribute("class") for e in paths] == ["a", "b"]
            # B is slower: its distribution lies to the right of A's at every share
            x = [[float(w) for w in re.findall("[ML]([-0-9.]+) ", e.getAttribute("d"))] for e in paths]
            assert all(b >= a for a, b in zip(*x)), p.toxml()[:200]


@case
def bars_are_as_long_as_parts_of_a_step_and_as_tall_as_shares_accepted():
    tables = os.path.join(CONF, "sim-k3-tables.ini")
    with tempfile.TemporaryDirectory() as d:
        page = os.path.join(d, "page.html")
        c, = report(tables, "--set", "exec-sim.draft_block=7", "--vary", "plugins.spec=off,dspark",
                    "--trace", trace(d, 80), "--html", page)
        with open(page) as f:
            text = f.read()
        drawn = {}
        for heading, svg in re.findall("(?s)<h3>(.*?)</h3>.*?(<svg.*?</svg>)", text):
            rects = xml.dom.minidom.parseString(svg).getElementsByTagName("rect")
            drawn[heading] = [({k: r.getAttribute(k) for k in ("class", "x", "y", "width", "height")},
                               "".join(t.firstChild.data for t in r.getElementsByTagName("title")))
                              for r in rects]
        parts = drawn["Where the time of a step goes, mean over all steps"]
        ms = [{p["name"]: 1e3 * p["s"] / a["steps"] for p in a["step_parts"]} for a in c["arms"]]
        most = max(sum(m.values()) for m in ms)
        wide = max(sum(float(r["width"]) for r, _ in parts if r["y"] == y) for y in ("8", "40"))
        for y, m in (("8", ms[0]), ("40", ms[1])):
            found = {t.rsplit(" ", 4)[0]: float(r["width"]) for r, t in parts if r["y"] == y}
            assert set(found) == set(ms[0]) | set(ms[1]), found
            for name, w in found.items():
                assert abs(w - wide * m.get(name, 0) / most) < 0.1, (name, w)
        assert ms[0].get("draft", 0) == 0 < ms[1]["draft"]
        bars = drawn["Drafts accepted of those verified, by position"]
        p = c["arms"][1]["positions"]
        assert c["arms"][0]["positions"] == [] and len(p) == len(bars) == 7
        for (r, title), x in zip(bars, p):
            assert r["class"] == "fb" and title == "%d of %d" % (x["accepted"], x["verified"])
            assert abs(float(r["height"]) - 180 * x["accepted"] / x["verified"]) < 0.1, (r, x)
        share = sum(x["accepted"] for x in p) / sum(x["verified"] for x in p)
        assert abs(figure(c, "accepted")["b"] - share) < 1e-9


@case
def the_same_seed_gives_the_same_report():
    with tempfile.TemporaryDirectory() as d:
        t, slow = trace(d, 200), slower(d, 1.02)
        a, b = (run(SIM, slow, "--trace", t, "--seed", "3") for _ in range(2))
        assert a.returncode == 0 and a.stdout == b.stdout and a.stdout != "", a.stderr


@case
def load_means_the_same_arrivals_for_both_arms():
    with tempfile.TemporaryDirectory() as d:
        c, = report(SIM, slower(d, 1.2), "--trace", trace(d), "--load", "0.5")
        assert c["arms"][0]["stretch"] == c["arms"][1]["stretch"] != 1, c["arms"]


@case
def values_are_compared_with_the_first_and_two_files_at_each_value():
    with tempfile.TemporaryDirectory() as d:
        t = trace(d, 100)
        c = report(SIM, "--vary", "engine.max_seqs=64,32,16", "--trace", t)
        assert [x["arms"][1]["name"] for x in c] == ["max_seqs=32", "max_seqs=16"], c
        assert all(x["arms"][0]["name"] == "max_seqs=64" and x["comparisons"] == 2 for x in c)
        c = report(SIM, slower(d, 1.05), "--vary", "engine.max_seqs=64,32", "--trace", t)
        assert [x["at"] for x in c] == ["engine.max_seqs=64", "engine.max_seqs=32"], c
        assert all([a["name"] for a in x["arms"]] == ["A", "B"] for x in c)


@case
def what_cannot_be_compared_is_refused_with_the_reason():
    with tempfile.TemporaryDirectory() as d:
        t = trace(d, 20)
        other = ("--set", "exec-sim.vocab=1000")
        small = os.path.join(d, "small.ini")
        with open(SIM) as f, open(small, "w") as g:
            g.write(f.read().replace("vocab = 163840", "vocab = 1000").replace(
                "cost = ", "cost = %s/" % CONF))
        for status, text, args in (
                (2, "two models cannot be compared", (SIM, TINY, "--trace", t)),
                (2, "two models cannot be compared", (SIM, small, "--trace", t)),
                (2, "times of a virtual clock", (SIM, "--vary", "exec-sim.clock=virtual,real", "--trace", t, "--limit",
                                                 "2")),
                (2, "No such file", (SIM, SIM, "--trace", t + ".none")),
                (2, "no_such_key", (SIM, "--vary", "engine.no_such_key=1,2", "--trace", t)),
                (2, "two values", (SIM, "--vary", "engine.max_seqs=1", "--trace", t)),
                (2, "SECTION.KEY", (SIM, "--vary", "max_seqs", "--trace", t)),
                (2, "needs --trace", (SIM, SIM)),
                (2, "needs --trace", (SIM, "--trace", t)),
                (2, "--repeat", (SIM, SIM, "--trace", t, "--repeat", "0")),
                (2, "exclude each other", (SIM, SIM, "--trace", t, "--load", "1", "--stretch", "2"))):
            r = run(*args)
            assert r.returncode == status and text in r.stderr, (args, r.returncode, r.stderr)
        assert report(SIM, SIM, "--trace", t, *other)[0]["same"]


@case
def one_measured_run_of_each_arm_cannot_tell_and_says_the_same_tokens():
    with tempfile.TemporaryDirectory() as d:
        c, = report(TINY, "--vary", "plugins.pool=unified,split", "--set", "exec-cpu.clock=cpu", "--set",
                    "exec-cpu.threads=1", "--trace", trace(d, 30), "--limit", "30", "--scale", "8")
        assert c["cannot_tell"] and c["verdict"].startswith("Cannot tell"), c["verdict"]
        assert not any(f["tested"] for f in c["figures"])
        assert c["outputs"] == {"promised": True, "compared": 30, "differ": 0}, c["outputs"]


@case
def a_flag_that_swallows_the_word_log_is_a_usage_error():
    r = run("--html", "--log")
    assert r.returncode == 2 and "--log" in r.stderr, (r.returncode, r.stderr)


@case
def nothing_stays_behind_without_out():
    with tempfile.TemporaryDirectory() as d, tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as tmp:
        r = subprocess.run([KEDGE, "ab", SIM, SIM, "--trace", trace(d, 20)], capture_output=True, text=True,
                           env=dict(os.environ, TMPDIR=tmp), timeout=200)
        assert r.returncode == 0 and os.listdir(tmp) == [], (r.stderr, os.listdir(tmp))


main()
