#!/usr/bin/python3
"""kedge replay --replicas: every replica alone, from its own rows, must do the same again.

usage: cluster_cli.py KEDGE SOURCE_ROOT      (TAP on standard output)
"""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

KEDGE, ROOT = (os.path.abspath(p) for p in sys.argv[1:3])
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import case, equal, main  # noqa: E402

SIM = os.path.join(ROOT, "scripts/conf/sim-k3.ini")
TABLES = os.path.join(ROOT, "scripts/conf/sim-k3-tables.ini")
TINY = os.path.join(ROOT, "scripts/conf/tiny.ini")
N = 64 if os.environ.get("KEDGE_FULL") else 16
ROUTES = ("round-robin", "least-load", "prefix")


def run(*args):
    return subprocess.run([KEDGE, "replay", *args], capture_output=True, text=True, timeout=240)


class Result:
    pass


def replay(trace, *args, conf=SIM, sets=()):
    with tempfile.TemporaryDirectory() as d:
        path, out, summary = (os.path.join(d, n) for n in ("t.jsonl", "out", "summary"))
        with open(path, "w") as f:
            for o in trace:
                f.write(json.dumps(o) + "\n")
        # Small engines: the test command fills all memory that is allocated.
        sets = ["engine.max_requests=128", "engine.max_seqs=64", *sets]
        sets.append("exec-sim.max_context=65536")
        more = [x for s in sets for x in ("--set", s)]
        p = run("-c", conf, "--trace", path, "--out", out, "--summary", summary, *more, *args)
        assert p.returncode == 0, p.stderr[-500:]
        r = Result()
        r.raw = open(out).read(), open(summary).read(), p.stdout
        r.rows = [json.loads(l) for l in r.raw[0].splitlines()]
        r.summary = json.loads(r.raw[1])
        r.stdout, r.stderr = p.stdout, p.stderr
        return r


def chats(n, seed, gap_ms=300, sessions=False):
    """Prompts as tokens, so that what is shared is plain: a system prompt, then turns."""
    rng = random.Random(seed)
    system = [rng.randrange(1000) for _ in range(500)]
    lines, open_chats = [], []
    for i in range(n):
        if open_chats and rng.random() < 0.7:
            last, tokens = open_chats.pop(rng.randrange(len(open_chats)))
        else:
            last, tokens = None, list(system)
        tokens = tokens + [rng.randrange(1000) for _ in range(rng.randrange(30, 3000))]
        o = {"id": "r%d" % i, "timestamp": i * gap_ms, "output_length": rng.randrange(1, 200),
             "input_length": len(tokens), "token_ids": tokens, "tenant": "t%d" % (i % 2)}
        if sessions and last is not None:
            o["after"], o["delay"] = last, rng.randrange(0, 900)
            del o["timestamp"]
        lines.append(o)
        open_chats.append((o["id"], tokens))
    return lines


@case
def one_replica_is_the_plain_replay_byte_for_byte():
    trace = chats(80, 1, gap_ms=200, sessions=True)
    trace[5]["cancel_after"] = 40
    for args in ((), ("--load", "0.7", "--series")):
        plain = replay(trace, *args).raw
        for route in ROUTES:
            equal(replay(trace, *args, "--replicas", "1", "--route", route).raw, plain)


def answers(path, trace):
    """What exec-sim is to answer: of the request alone, so that it is the same in any trace."""
    said = [[random.Random(o["id"]).randrange(1000) + k for k in range(o["output_length"])]
            for o in trace]
    starts = [sum(len(a) for a in said[:i]) for i in range(len(said) + 1)]
    with open(path, "wb") as f:
        f.write(b"KGANSW01" + struct.pack("<%dQ" % (len(starts) + 1), len(said), *starts))
        for a in said:
            f.write(struct.pack("<%dI" % len(a), *a))
    return "exec-sim.answers=" + path


@case
def a_replica_does_what_it_does_alone():
    """The independent check: the rows of one replica, as a trace of their own, replayed plainly."""
    trace = chats(120, 2, gap_ms=120, sessions=True)
    trace[30]["cancel_after"] = 500
    sets = ["memory.bytes=3g", "engine.max_seqs=8"]
    with tempfile.TemporaryDirectory() as d:
        file = os.path.join(d, "answers")
        for route in ROUTES:
            r = replay(trace, "--replicas", "3", "--route", route,
                       sets=sets + [answers(file, trace)])
            assert r.summary["evictions"]["pages"] > 0
            for k in range(3):
                mine = sorted((x["arrival_ms"], i)
                              for i, x in enumerate(r.rows) if x["replica"] == k)
                assert len(mine) > 10
                alone = [{key: v for key, v in dict(trace[i], timestamp=at).items()
                          if key not in ("after", "delay")} for at, i in mine]
                again = replay(alone, sets=sets + [answers(file, alone)])
                for (_, i), b in zip(mine, again.rows):
                    a = {key: v for key, v in r.rows[i].items()
                         if key not in ("replica", "expected_tokens")}
                    equal(a, b)
                each = r.summary["cluster"]["each"][k]
                equal(each["steps"], again.summary["steps"])
                equal(each["evictions"], again.summary["evictions"])


@case
def equal_runs_give_equal_files():
    trace = chats(100, 3, sessions=True)
    for route in ROUTES:
        args = ("--replicas", "5", "--route", route, "--seed", "3")
        equal(replay(trace, *args).raw, replay(trace, *args).raw)


@case
def a_turn_follows_the_one_before_whatever_replica_had_it():
    trace = chats(100, 4, gap_ms=50, sessions=True)
    for route in ROUTES:
        r = replay(trace, "--replicas", "4", "--route", route)
        rows = {x["id"]: x for x in r.rows}
        moved = 0
        for o in trace:
            if "after" in o:
                before = rows[o["after"]]
                end = before["arrival_ms"] + before["e2e_ms"] + o["delay"]
                assert abs(rows[o["id"]]["arrival_ms"] - end) < 1e-5
                moved += before["replica"] != rows[o["id"]]["replica"]
        assert route == "prefix" or moved > 10, moved


@case
def round_robin_deals_in_the_order_of_arrival():
    trace = chats(40, 5)
    r = replay(trace, "--replicas", "7", "--route", "round-robin")
    equal([x["replica"] for x in r.rows], [i % 7 for i in range(40)])


@case
def least_load_goes_by_what_is_under_way_at_the_arrival():
    """From the rows: nobody had fewer requests under way when this one came."""
    trace = chats(150, 6, gap_ms=35)
    r = replay(trace, "--replicas", "4", "--route", "least-load")
    for i, x in enumerate(r.rows):
        at = x["arrival_ms"]
        load = [sum(y["replica"] == k and y["arrival_ms"] + y["e2e_ms"] > at + 1e-9
                    for y in r.rows[:i]) for k in range(4)]
        equal(load[x["replica"]], min(load))


@case
def prefix_reuses_more_than_routes_that_do_not_look():
    trace = chats(200, 7, gap_ms=150)
    reused = {}
    for route in ROUTES:
        r = replay(trace, "--replicas", "4", "--route", route)
        reused[route] = r.summary["tokens"]["reused"] / r.summary["tokens"]["prompt"]
        e = [x["expected_tokens"] for x in r.rows]
        assert any(e) if route == "prefix" else not any(e)
    assert reused["prefix"] > reused["round-robin"] + 0.15, reused
    assert reused["prefix"] > reused["least-load"] + 0.15, reused


@case
def totals_are_the_sums_and_the_imbalance_that_of_the_rows():
    trace = chats(90, 8)
    r = replay(trace, "--replicas", "4", "--route", "prefix", "--series")
    s, c = r.summary, r.summary["cluster"]
    equal((c["replicas"], c["route"], len(c["each"])), (4, "prefix", 4))
    for k, each in enumerate(c["each"]):
        mine = [x for x in r.rows if x["replica"] == k]
        equal(each["requests"], len(mine))
        equal(each["tokens"]["reused"], sum(x["reused_tokens"] for x in mine))
        equal(each["tokens"]["expected"], sum(x["expected_tokens"] for x in mine))
    for key in ("prompt", "output", "hit_page", "hit_state", "reused", "lost"):
        equal(sum(e["tokens"][key] for e in c["each"]), s["tokens"][key])
    equal(sum(e["steps"] for e in c["each"]), s["steps"])
    work = [e["tokens"]["prompt"] - e["tokens"]["reused"] for e in c["each"]]
    for name, v in (("requests", [e["requests"] for e in c["each"]]),
                    ("computed_prompt_tokens", work), ("busy", [e["busy"] for e in c["each"]])):
        assert abs(c["imbalance"][name] - max(v) * 4 / sum(v)) < 1e-9, name
    for key, v in s["bytes"].items():
        if key != "arena":
            assert abs(sum(e["bytes"][key] for e in c["each"]) - v["mean"]) <= 4, key
    classes = [k for k in s["bytes"] if k not in ("arena", "promised")]
    total = sum(s["bytes"][k]["mean"] for k in classes)
    assert abs(total - s["bytes"]["arena"]) < 1e-6 * total, (total, s["bytes"]["arena"])
    series = s["bytes_over_time"]
    for i in range(len(series["gap"]) - 1):
        assert abs(sum(series[k][i] for k in classes) - s["bytes"]["arena"]) < 1e-6 * total


@case
def capacity_is_the_same_for_every_route_and_grows_with_replicas():
    trace = chats(150, 9)
    found = {}
    for n, route in ((1, "prefix"), (4, "round-robin"), (4, "least-load"), (4, "prefix")):
        r = replay(trace, "--replicas", str(n), "--route", route, "--load", "0.8",
                   sets=("prefix.enabled=no",))
        found[n, route] = r.summary["load"]["capacity_s"]
    equal(found[4, "prefix"], found[4, "round-robin"])
    equal(found[4, "least-load"], found[4, "round-robin"])
    assert found[1, "prefix"] > 2.5 * found[4, "prefix"], found


@case
def ab_compares_two_routes_request_by_request():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "t.jsonl")
        with open(path, "w") as f:
            f.write("".join(json.dumps(o) + "\n" for o in chats(200, 13, gap_ms=150)))
        p = subprocess.run([KEDGE, "ab", SIM, SIM, "--trace", path, "--replicas", "4", "--route",
                            "round-robin", "--route-b", "prefix", "--json", "--set",
                            "exec-sim.max_context=65536"], capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    c = json.loads(p.stdout)["comparisons"][0]
    reused = [f for f in c["figures"] if f["name"] == "reused"][0]
    assert reused["different"] and reused["b"] > 1.15 * reused["a"], reused
    equal(c["outputs"]["differ"], 0)
    assert c["arms"][1]["config"].endswith(", prefix"), c["arms"][1]


@case
def many_replicas_and_what_their_steps_were_made_of():
    trace = chats(80, 10, gap_ms=2)
    r = replay(trace, "--replicas", str(N), "--route", "least-load")
    equal(len(r.summary["cluster"]["each"]), N)
    equal(len({x["replica"] for x in r.rows}), N)
    r = replay(trace[:6], "--replicas", "2", "--explain", conf=TABLES)
    for k in range(2):
        assert "replica %d: where a step goes" % k in r.stderr, r.stderr


@case
def a_script_is_asked_by_the_replica_that_was_chosen():
    with tempfile.TemporaryDirectory() as d:
        script = os.path.join(d, "p.lua")
        with open(script, "w") as f:
            f.write("local n = 0\nfunction arrive(req, view)\n n = n + 1\n"
                    " if n > 4 then return 'reject', 'enough' end\nend\n")
        r = replay(chats(18, 11), "--replicas", "3", sets=["lua.script=" + script])
        n = sum(x["outcome"] == "ok" for x in r.rows)
        # Each has a script of its own, which lets the same number in (its try-out counts too).
        assert n % 3 == 0 and 0 < n <= 12, n
        equal([x["outcome"] for x in r.rows], ["ok"] * n + ["refused"] * (18 - n))


@case
def a_client_that_left_long_after_the_end_does_not_lengthen_the_run():
    trace = chats(4, 12)
    end = replay(trace).summary["duration_s"]
    trace[0]["cancel_after"] = 3600000
    equal(replay(trace).summary["duration_s"], end)


@case
def mistakes_are_named():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "t.jsonl")
        with open(path, "w") as f:
            f.write('{"timestamp":0,"input_length":4,"output_length":1,"token_ids":[1,2,3,4]}\n')
        for args, status, word in (
                (("--replicas", "0"), 2, "--replicas"), (("--replicas", "65"), 2, "--replicas"),
                (("--replicas", "2", "--route", "random"), 2, "round-robin, least-load or prefix"),
                (("--route", "prefix"), 2, "--replicas"), (("--slack", "3"), 2, "--replicas"),
                (("--replicas", "2", "--slack", "-1"), 2, "--slack")):
            p = run("-c", SIM, "--trace", path, *args)
            equal(p.returncode, status)
            assert word in p.stderr, p.stderr
        for sets in ((), ("--set", "exec-cpu.clock=cpu", "--set", "exec-cpu.threads=1")):
            p = run("-c", TINY, "--trace", path, "--replicas", "2", *sets)
            assert p.returncode in (1, 2) and "exec = sim" in p.stderr, p.stderr
        p = run("-c", SIM, "--trace", path, "--replicas", "2", "--set", "exec-sim.clock=real")
        assert p.returncode == 2 and "clock = virtual, found exec-sim in real time" in p.stderr, p.stderr


main()
