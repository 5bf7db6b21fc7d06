#!/usr/bin/python3
"""kedge advise: planted answers are found, nothing is found where nothing is, its command shows its gain.

usage: advise_cli.py KEDGE SOURCE_ROOT      (TAP on standard output)
"""
import json
import os
import pty
import random
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile

KEDGE, ROOT = (os.path.abspath(p) for p in sys.argv[1:3])
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import case, main  # noqa: E402

CONF = os.path.join(ROOT, "scripts/conf")
SIM, TINY = (os.path.join(CONF, n) for n in ("sim-k3.ini", "tiny.ini"))


def run(*args, env=None):
    return subprocess.run([KEDGE, "advise", *args], capture_output=True, text=True, timeout=230,
                          env=dict(os.environ, **(env or {})))


def sets(*assignments):
    return [w for s in assignments for w in ("--set", s)]


def advice(*args):
    r = run("--json", "--rounds", "1", *args)
    assert r.returncode == 0, "exit %d: %s" % (r.returncode, r.stderr[-600:])
    return json.loads(r.stdout)


def write(path, requests):
    with open(path, "w") as f:
        for r in requests:
            f.write(json.dumps(r) + "\n")
    return path


def shared_prefix(d, n=160, shared=40960, own=1500, gap_ms=900):
    """One long system prompt that all share, a question each."""
    rng, at, out = random.Random(4), 0.0, []
    for i in range(n):
        at += rng.expovariate(1 / gap_ms)
        blocks = shared // 512
        ids = list(range(1, blocks + 1)) + [1000 * (i + 1) + k for k in range(3)]
        out.append({"timestamp": round(at, 3), "input_length": shared + own, "output_length": rng.randrange(20, 60),
                    "hash_ids": ids})
    return write(os.path.join(d, "shared.jsonl"), out)


def strangers(d, n=160, tokens=3000, output=40, gap_ms=700, name="strangers.jsonl", seed=9):
    """Nothing is shared and nobody waits long."""
    rng, at, out = random.Random(seed), 0.0, []
    for i in range(n):
        at += rng.expovariate(1 / gap_ms)
        length = rng.randrange(tokens // 2, 2 * tokens)
        out.append({"timestamp": round(at, 3), "input_length": length,
                    "output_length": rng.randrange(output // 2, 2 * output)})
        out[-1]["hash_ids"] = [10000 * (i + 1) + k for k in range(-(-length // 512))]
    return write(os.path.join(d, name), out)


def ab(command, d):
    """Runs the printed command; its comparison."""
    words = shlex.split(command)
    assert words[:2] == ["kedge", "ab"], command
    r = subprocess.run([KEDGE, "ab", "--json", *words[2:]], capture_output=True, text=True, timeout=200, cwd=d)
    assert r.returncode == 0, r.stderr[-500:]
    return json.loads(r.stdout)["comparisons"][0]


def figure(comparison, name):
    return next(f for f in comparison["figures"] if f["name"] == name)


def confirmed(report):
    label = report["recommended"]["label"]
    return next(c for c in report["confirmed"] if c["label"] == label)


@case
def an_interval_that_misses_a_shared_prefix_is_replaced_and_the_command_shows_the_gain():
    with tempfile.TemporaryDirectory() as d:
        t = shared_prefix(d)
        a = advice("-c", SIM, *sets("prefix.checkpoint=interval", "prefix.interval=32768"), "--trace", t,
                   "--only", "reuse")
        r = a["recommended"]
        assert r is not None, a["confirmed"]
        # 40,960 tokens are shared; a state at 32,768 leaves 8,192 to compute, each time
        base, best = a["candidates"][0]["figures"], next(
            c for c in a["candidates"] if c["label"] == r["label"])["figures"]
        assert base["lost_tokens"] > 70 * 8192 * 0.9, base
        assert best["lost_tokens"] < base["lost_tokens"] / 10, best
        assert r["gain"]["better"] and r["gain"]["hi"] < 0, r["gain"]
        assert r["ini"].startswith("[prefix]\n"), r["ini"]
        assert any("tokens a request are found but lost for want of a state" in w for w in r["why"]), r["why"]
        more = next(w for w in r["why"] if "come from the cache" in w)
        whole_base, whole_best = a["base"]["figures"], confirmed(a)["figures"]
        n = (whole_best["reused_tokens"] - whole_base["reused_tokens"]) / a["requests"]
        assert "%.0f fewer to compute a request" % n in more, (n, more)
        assert "%.0f s in all" % (n * a["guide"]["token_us"] * a["requests"] / 1e6) in more, more
        c = ab(r["check"], d)
        f = figure(c, "mean TTFT")
        whole = confirmed(a)["all"]
        assert f["different"] and abs(f["rel"] - whole["change"]) < 1e-9, (f["rel"], whole)
        assert abs(f["a"] - whole["a"]) < 1e-9 and abs(f["b"] - whole["b"]) < 1e-9
        g = a["guide"]
        assert g["shared_tokens"] > 40000 and abs(g["state_tokens"] - 56171520 / 27648) < 1e-6, g
        # the shared prompt comes back 159 times and counts once: 160 requests, one had nothing to repeat
        assert g["repeating"] == 159 and abs(g["again_tokens"] - 40960) <= 64, g
        assert g["interval"] == g["least_interval"] == 2048, g  # the rule asks for less than a step can write


@case
def a_split_that_starves_pages_is_replaced():
    with tempfile.TemporaryDirectory() as d:
        # 4 GiB, most of it for states: two requests of 16,000 tokens have pages, others wait
        t = strangers(d, n=120, tokens=16000, output=60, gap_ms=1500)
        a = advice("-c", SIM, *sets("plugins.pool=split", "pool-split.ratio=4", "memory.bytes=4g",
                                    "engine.max_seqs=16", "prefix.enabled=no", "exec-sim.max_context=40000"),
                   "--trace", t, "--only", "pool")
        r = a["recommended"]
        assert r is not None, a["confirmed"]
        assert any(s.startswith(("pool-split.", "plugins.pool=")) for s in r["set"]), r
        assert r["gain"]["change"] < -0.05 and r["gain"]["hi"] < 0, r["gain"]
        base, best = a["base"]["figures"], confirmed(a)["figures"]
        idle = lambda f: sum(f["bytes_mean"][k] for k in ("holes", "gap", "padding"))
        assert idle(best) < idle(base), (idle(best), idle(base))


@case
def where_nothing_helps_no_change_is_worth_it():
    with tempfile.TemporaryDirectory() as d:
        t = strangers(d)
        for seed in range(20 if os.environ.get("KEDGE_FULL") else 1):
            a = advice("-c", SIM, "--trace", strangers(d, seed=seed, name="again.jsonl"))
            assert a["recommended"] is None, (seed, a["recommended"])
        r = run("-c", SIM, "--trace", t, "--only", "lifetime")
        assert r.returncode == 0 and "No change is worth it" in r.stdout, r.stdout
        assert "nothing repeats: no checkpoint pays" in r.stdout, r.stdout


@case
def a_handful_of_requests_confirms_nothing():
    with tempfile.TemporaryDirectory() as d:
        t = shared_prefix(d, n=12)
        r = run("-c", SIM, *sets("prefix.enabled=no"), "--trace", t, "--only", "reuse")
        n = re.search(r"sqrt\(2 x (\d+) x (\d+)\) = (\d+), taken as (\d+) tokens", r.stdout)
        state, kept, rule, taken = map(int, n.groups())  # what stands there is what comes out
        assert abs((2 * state * kept) ** 0.5 - rule) < 3 and taken % 64 == 0, n.group()
        assert r.returncode == 0 and "Cannot tell: 6 requests are too few" in r.stdout, r.stdout


@case
def the_same_seed_gives_the_same_report_whatever_runs_at_once():
    with tempfile.TemporaryDirectory() as d:
        t = shared_prefix(d, n=80)
        args = ("-c", SIM, *sets("prefix.enabled=no"), "--trace", t, "--only", "reuse,lifetime")
        first = run("--json", *args, "--jobs", "1")
        again = run("--json", *args, "--jobs", "5")
        assert first.returncode == again.returncode == 0 and first.stdout == again.stdout
        assert json.loads(first.stdout)["recommended"] is not None


@case
def sessions_are_advised_on_and_the_command_has_the_arrivals_of_the_confirmation():
    with tempfile.TemporaryDirectory() as d:
        rng, out = random.Random(3), []
        for s in range(24):  # turns that repeat what was said
            ids, at = [], 1000 * s
            for turn in range(6):
                ids = ids + [100000 * (s + 1) + len(ids) + k for k in range(6)]
                name = "%d-%d" % (s, turn)
                o = {"id": name, "input_length": 512 * len(ids), "output_length": rng.randrange(20, 80),
                     "hash_ids": list(ids), "timestamp": at}
                if turn > 0:
                    o.pop("timestamp")
                    o.update({"after": "%d-%d" % (s, turn - 1), "delay": 1500})
                out.append(o)
        t = write(os.path.join(d, "a trace's.jsonl"), out)
        a = advice("-c", SIM, *sets("prefix.enabled=no"), "--trace", t, "--only", "reuse", "--stretch", "2")
        assert a["recommended"] is not None, a["confirmed"]
        assert abs(a["stretch"] - 2.02) < 1e-9 and "--seed 2" in a["recommended"]["check"]
        f = figure(ab(a["recommended"]["check"], d), "mean TTFT")
        assert abs(f["rel"] - confirmed(a)["all"]["change"]) < 1e-9, (f, confirmed(a))


@case
def throughput_and_goodput_are_advised_for_and_ab_shows_them():
    with tempfile.TemporaryDirectory() as d:
        t = shared_prefix(d, n=100)
        a = advice("-c", SIM, *sets("prefix.enabled=no"), "--trace", t, "--only", "reuse", "--objective", "throughput")
        r = a["recommended"]
        assert r is not None and r["gain"]["change"] > 1, r
        c = ab(r["check"], d)
        assert abs(c["throughput"]["rel"] - confirmed(a)["all"]["change"]) < 1e-3, (c["throughput"], confirmed(a))
        a = advice("-c", SIM, *sets("prefix.enabled=no"), "--trace", t, "--only", "reuse", "--objective", "goodput",
                   "--ttft-slo", "1500")
        r = a["recommended"]
        assert r is not None and 0 < r["gain"]["lo"] <= r["gain"]["change"] <= 1, r
        f = figure(ab(r["check"], d), "good")
        assert abs(f["diff"] - confirmed(a)["all"]["change"]) < 1e-9


@case
def a_drafter_is_advised_on_and_without_one_that_is_said():
    with tempfile.TemporaryDirectory() as d:
        conf = os.path.join(CONF, "sim-k3-tables.ini")
        t = strangers(d, n=80, tokens=1000, output=200, gap_ms=400)
        a = advice("-c", conf, *sets("exec-sim.draft_block=7"), "--trace", t, "--only", "speculation", "--objective",
                   "tpot")
        r = a["recommended"]
        assert r is not None and any("plugins.spec=" in s for s in r["set"]), a["confirmed"]
        assert r["gain"]["hi"] < -0.2, r["gain"]
        r = run("-c", conf, "--trace", t, "--only", "speculation")
        assert r.returncode == 0 and "no verify policy was tried" in r.stdout, r.stdout


@case
def the_json_has_every_field_of_the_page():
    with tempfile.TemporaryDirectory() as d:
        summary = os.path.join(d, "s.json")
        r = run("-c", SIM, "--trace", strangers(d, n=60), "--only", "lifetime", "--summary", summary, "--json")
        assert r.returncode == 0, r.stderr
        with open(summary) as f:
            assert f.read() == r.stdout
        a = json.loads(r.stdout)
        assert set(a) == set("config trace objective seed requests picked_on load stretch least ttft_slo_ms "
                             "tpot_slo_ms guide base candidates confirmed recommended".split()), sorted(a)
        assert a["requests"] == 60 and a["picked_on"] == 32  # 8 of 15 windows of 4
        assert a["candidates"][0]["label"] == "as it is" and a["candidates"][0]["set"] == []
        for c in a["candidates"]:
            assert isinstance(c["set"], list) and ("cannot_run" in c or set(c["figures"]) == set(
                "requests ok refused failed ttft_mean_ms ttft_p50_ms ttft_p99_ms tpot_mean_ms e2e_mean_ms "
                "queue_mean_ms good_share prompt_tokens reused_tokens lost_tokens preemptions verified accepted "
                "arena_bytes bytes_mean".split())), c
            f = c["figures"]
            whole = sum(v for k, v in f["bytes_mean"].items() if k != "promised")
            assert abs(whole - f["arena_bytes"]) < 20
        with open(os.path.join(ROOT, "core/docs/advise.md")) as f:
            page = f.read()
        for key in list(a) + list(a["candidates"][0]["figures"]) + list(a["guide"]):
            assert "`%s`" % key in page, key


@case
def what_cannot_run_is_named_and_the_others_go_on():
    with tempfile.TemporaryDirectory() as d:
        # 60 states are needed at start: small ratios cannot give them
        a = advice("-c", SIM, *sets("memory.bytes=8g", "engine.max_seqs=60"), "--trace", strangers(d, n=60), "--only",
                   "pool")
        bad = [c for c in a["candidates"] if "cannot_run" in c]
        assert bad and all("max_seqs = 60" in c["cannot_run"] for c in bad), bad
        assert any("figures" in c and c["set"] for c in a["candidates"])


@case
def bad_lines_are_refused_before_anything_runs():
    with tempfile.TemporaryDirectory() as d:
        t = strangers(d, n=10)
        broken = write(os.path.join(d, "broken.jsonl"), [{"timestamp": 0, "input_length": 5, "output_length": -1}])
        one = strangers(d, n=1, name="one.jsonl")
        for args, status, text in (
                (("--trace", t), 2, "needs -c FILE and --trace"), (("-c", SIM), 2, "needs -c FILE and --trace"),
                (("-c", SIM, "--trace", t, "--objective", "speed"), 2, "ttft, tpot, e2e"),
                (("-c", SIM, "--trace", t, "--objective", "goodput"), 2, "needs --ttft-slo"),
                (("-c", SIM, "--trace", t, "--objective", "throughput", "--load", "0.5"), 2, "leave out --load"),
                (("-c", SIM, "--trace", t, "--load", "0.5", "--stretch", "2"), 2, "exclude each other"),
                (("-c", SIM, "--trace", t, "--only", "pool,spec"), 2, "some of reuse,pool,lifetime,speculation"),
                (("-c", SIM, "--trace", t, "--jobs", "0"), 2, "1 .. 16"),
                (("-c", SIM, "--trace", t, "--format", "csv"), 2, "mooncake"),
                (("-c", SIM, "--trace", broken), 1, "line 1: output_length"),
                (("-c", SIM, "--trace", os.path.join(d, "no")), 2, "no"),
                (("-c", SIM, "--trace", one), 1, "one request"),
                (("-c", SIM, *sets("plugins.pool=split", "pool-split.ratio=0.01"), "--trace", t), 2, "max_seqs"),
                (("-c", TINY, "--trace", t), 2, "real time"),
                (("-c", SIM, *sets("exec-sim.clock=real"), "--trace", t), 2, "real time")):
            r = run(*args)
            assert r.returncode == status and text in r.stderr, (args, r.returncode, r.stderr)
        r = run("-c", TINY, "--trace", t, "--stretch", "100")
        assert "hours" in r.stderr and "--write-cost" in r.stderr, r.stderr


@case
def what_cannot_be_measured_is_said():
    with tempfile.TemporaryDirectory() as d:
        t = write(os.path.join(d, "t.jsonl"), [{"timestamp": 1000 * i, "input_length": 100, "output_length": 1}
                                               for i in range(40)])
        r = run("-c", SIM, "--trace", t, "--only", "lifetime", "--objective", "tpot")
        assert r.returncode == 0 and "nan" not in r.stdout, r.stdout
        assert "Cannot tell: no answer has a second token" in r.stdout, r.stdout
        t = write(os.path.join(d, "t.jsonl"), [{"timestamp": 1000 * i, "input_length": 2000000, "output_length": 4}
                                               for i in range(40)])
        r = run("-c", SIM, "--trace", t, "--only", "lifetime")
        assert r.returncode == 0 and "nan" not in r.stdout, r.stdout
        assert "Cannot tell: no request ended well" in r.stdout, r.stdout


@case
def a_load_or_stretch_that_no_replay_takes_is_refused_at_once():
    with tempfile.TemporaryDirectory() as d:
        t = strangers(d, n=40)
        for flags, status, text in ((("--load", "1e-9"), 1, "--load 1e-09: arrivals would be stretched by"),
                                    (("--stretch", "1e6"), 2, "--stretch \"1e6\": wanted")):
            r = run("-c", SIM, "--trace", t, "--only", "lifetime", *flags)
            assert r.returncode == status and text in r.stderr, (r.returncode, r.stdout[-300:], r.stderr[-300:])


@case
def replays_end_with_the_command_that_started_them():
    with tempfile.TemporaryDirectory() as d:
        t = strangers(d, n=60)
        p = subprocess.Popen([KEDGE, "advise", "-c", SIM, "--trace", t, "--rounds", "4"], env=dict(os.environ, TMPDIR=d),
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        children = "/proc/%d/task/%d/children" % (p.pid, p.pid)
        child = ""
        while child == "" and p.poll() is None:  # stopped, so it cannot end by itself
            with open(children) as f:
                child = (f.read().split() + [""])[0]
            try:  # not before it is a replay: it asks for its parent's death first
                with open("/proc/%s/cmdline" % child) as f:
                    child = child if "\0replay\0" in f.read() else ""
            except OSError:
                child = ""
            if child != "":
                os.kill(int(child), signal.SIGSTOP)
                with open("/proc/%s/stat" % child) as f:
                    child = "" if f.read().rsplit(")", 1)[1].split()[0] == "Z" else child
        assert child != "", "no replay was seen"
        end = os.pidfd_open(int(child))
        p.kill()
        p.wait()
        p.stdout.close()
        seen, _, _ = select.select([end], [], [], 20)
        os.close(end)
        if not seen:
            os.kill(int(child), signal.SIGKILL)
        assert seen, "the replay outlived the command"


def first_run(tmp, trace, hangup, *words):
    """A command whose first replay runs, with a descriptor that tells the replay's end. hangup: what SIGHUP does to it,
    whatever started these tests."""
    p = subprocess.Popen([KEDGE, words[0], "-c", SIM, "--trace", trace, *words[1:]], env=dict(os.environ, TMPDIR=tmp),
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup))
    child = ""
    while child == "" and p.poll() is None:
        with open("/proc/%d/task/%d/children" % (p.pid, p.pid)) as f:
            child = (f.read().split() + [""])[0]
    assert child != "", (words, p.stderr.read()[-500:])
    return p, os.pidfd_open(int(child))


@case
def who_is_told_to_end_ends_by_that_and_leaves_no_file_and_no_replay():
    with tempfile.TemporaryDirectory() as d:
        t = strangers(d, n=2000)
        tmp = os.path.join(d, "tmp")
        os.mkdir(tmp)
        for words, told in ((("advise", "--rounds", "4"), signal.SIGTERM), (("advise", "--rounds", "4"), signal.SIGINT),
                            (("advise", "--rounds", "4"), signal.SIGHUP),
                            (("ab", "--set-b", "engine.max_seqs=7"), signal.SIGTERM)):
            p, end = first_run(tmp, t, signal.SIG_DFL, *words)
            assert os.listdir(tmp) != []
            p.send_signal(told)
            said = p.communicate(timeout=60)[1]
            assert p.returncode == -told and os.listdir(tmp) == [], (words, told, p.returncode, os.listdir(tmp), said[-500:])
            seen, _, _ = select.select([end], [], [], 0)
            os.close(end)
            assert seen, "a replay is left"


@case
def who_must_not_mind_a_hangup_goes_on_to_the_end():
    with tempfile.TemporaryDirectory() as d:
        t = strangers(d, n=60)
        tmp = os.path.join(d, "tmp")
        os.mkdir(tmp)
        p, end = first_run(tmp, t, signal.SIG_IGN, "advise", "--only", "lifetime")  # as nohup starts it
        os.close(end)
        p.send_signal(signal.SIGHUP)
        said = p.communicate(timeout=60)[1]
        assert p.returncode == 0 and os.listdir(tmp) == [], (p.returncode, said[-500:])


@case
def progress_with_the_time_left_goes_to_a_terminal_only_and_no_file_stays():
    with tempfile.TemporaryDirectory() as d:
        t = strangers(d, n=60)
        tmp = os.path.join(d, "tmp")
        os.mkdir(tmp)
        args = ("-c", SIM, "--trace", t, "--only", "lifetime")
        r = run(*args, env={"TMPDIR": tmp})
        assert r.returncode == 0 and "replays done" not in r.stderr and os.listdir(tmp) == [], r.stderr
        ours, theirs = pty.openpty()
        p = subprocess.Popen([KEDGE, "advise", *args], stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        seen = b""
        try:
            while True:
                seen += os.read(ours, 4096)
        except OSError:  # the other end is closed
            pass
        assert p.wait() == 0
        os.close(ours)
        text = seen.decode()
        assert "trying: " in text and "replays done" in text and " s left" in text, text[:300]


main()
