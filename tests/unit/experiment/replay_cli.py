#!/usr/bin/python3
"""kedge replay: equal runs, sums that add up, times against the cost table worked out here.

usage: replay_cli.py KEDGE SOURCE_ROOT      (TAP on standard output)
"""
import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile

KEDGE, ROOT = (os.path.abspath(p) for p in sys.argv[1:3])
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import case, equal, main, Skip  # noqa: E402

SIM = os.path.join(ROOT, "scripts/conf/sim-k3.ini")
TINY = os.path.join(ROOT, "scripts/conf/tiny.ini")
COST = os.path.join(ROOT, "scripts/conf/k3-tp8-b300.cost")
SHORT = os.path.join(ROOT, "tests/conformance/exec/short.cost")
SHARED = os.path.join(ROOT, "../shared/traces")
FIELDS = ("id arrival_ms outcome reason prompt_tokens output_tokens hit_page_tokens hit_state_tokens "
          "reused_tokens lost_tokens checkpoints_written ttft_ms tpot_ms e2e_ms queue_ms preemptions "
          "drafted verified accepted").split()


def near(found, wanted, by=1e-5):
    assert abs(found - wanted) <= by, "found %r, wanted %r" % (found, wanted)


def run(*args):
    return subprocess.run([KEDGE, "replay", *args], capture_output=True, text=True, timeout=240)


class Result:
    def __init__(self, rows, summary, r):
        self.rows = [json.loads(l) for l in rows.splitlines()]
        self.summary = json.loads(summary)
        self.raw = (rows, summary)
        self.stderr, self.stdout = r.stderr, r.stdout


def replay(trace, *args, conf=SIM, sets=()):
    """Runs a trace: a list of objects, or a path."""
    with tempfile.TemporaryDirectory() as d:
        path = trace
        if not isinstance(trace, str):
            path = os.path.join(d, "t.jsonl")
            with open(path, "w") as f:
                for o in trace:
                    f.write(json.dumps(o) + "\n")
        more = [x for s in sets for x in ("--set", s)]
        out, summary = os.path.join(d, "out"), os.path.join(d, "summary")
        r = run("-c", conf, "--trace", path, "--out", out, "--summary", summary, *more, *args)
        equal(r.returncode, 0) if r.returncode == 0 else fail(r)
        with open(out) as f, open(summary) as g:
            return Result(f.read(), g.read(), r)


def fail(r):
    raise AssertionError("exit %d: %s" % (r.returncode, r.stderr[-500:]))


def chat(n, seed, block=64, gap_ms=400):
    """Conversations with a common system prompt, turns that repeat what was said, made up here."""
    rng = random.Random(seed)
    chats, lines, next_id = [], [], 100
    for i in range(n):
        if chats and rng.random() < 0.6:
            c = chats.pop(rng.randrange(len(chats)))
        else:
            c = {"ids": [1, 2, 3], "tokens": 3 * block}
        new = rng.randrange(20, 700)
        total = c["tokens"] + new
        ids = list(c["ids"])
        while len(ids) < total // block:
            ids.append(next_id)
            next_id += 1
        tail = [next_id] if total % block else []
        next_id += 1
        out = rng.randrange(1, 60)
        lines.append({"timestamp": i * gap_ms // 7, "input_length": total, "output_length": out,
                      "hash_ids": ids + tail, "block": block, "tenant": "t%d" % (i % 3)})
        chats.append({"ids": ids, "tokens": total + out})
    return lines


def cost_table(path):
    points, keys = [], {}
    for line in open(path):
        w = line.split("#")[0].split()
        if w and w[0] == "rows":
            points.append((float(w[1]), float(w[2])))
        elif len(w) == 2 and w[0] not in ("name", "kedge-cost"):
            keys[w[0]] = float(w[1])
    return points, keys


def rows_ns(points, rows):
    if rows <= points[0][0]:
        return points[0][1]
    for (a, x), (b, y) in zip(points, points[1:]):
        if rows <= b:
            return x + (rows - a) / (b - a) * (y - x)
    raise AssertionError("beyond the table")


def quantile(values, q):
    v = sorted(values)
    at = q * (len(v) - 1)
    i = int(at)
    return v[i] if i + 1 == len(v) else v[i] + (at - i) * (v[i + 1] - v[i])


@case
def the_same_seed_gives_the_same_files_byte_for_byte():
    trace = chat(150, 1)
    a, b = (replay(trace, "--seed", "5").raw for _ in range(2))
    equal(a, b)


@case
def the_engines_own_time_is_in_the_summary_when_asked_for():
    trace = chat(60, 1)
    plain, timed = replay(trace), replay(trace, "--engine-time")
    equal(plain.raw[0], timed.raw[0])
    s = timed.summary
    equal({k for k in s if k not in plain.summary},
          {"engine_step_us", "engine_step_us_max", "engine_us", "engine_steps_over_1ms"})
    q = s["engine_step_us"]
    assert 0 < q["p50"] <= q["p99"] <= s["engine_step_us_max"] <= s["engine_us"], s
    near(s["engine_us"] / s["steps"], q["mean"], 1e-3)


@case
def a_request_put_off_by_the_policy_does_not_move_time_past_an_arrival():
    with tempfile.TemporaryDirectory() as d:
        script = os.path.join(d, "p.lua")
        with open(script, "w") as f:
            f.write("function admit(r)\n if r.tenant == 'late' then return 'defer', 900 end\nend\n")
        trace = [{"timestamp": 0, "input_length": 64, "output_length": 2, "hash_ids": [1],
                  "block": 64, "tenant": "late", "cancel_after": 2500},
                 {"timestamp": 400, "input_length": 64, "output_length": 2, "hash_ids": [2],
                  "block": 64, "tenant": "now"}]
        r = replay(trace, sets=["lua.script=" + script])
        equal([x["outcome"] for x in r.rows], ["cancelled", "ok"])
        near(r.rows[1]["queue_ms"], 0, 1e-3)
        near(r.rows[0]["e2e_ms"], 2500, 1e-3)


@case
def a_row_has_the_fields_of_the_format_in_the_order_of_the_trace():
    r = replay(chat(40, 2))
    equal([x["id"] for x in r.rows], [str(i + 1) for i in range(40)])
    for row in r.rows:
        equal(list(row)[:len(FIELDS)], FIELDS)


@case
def every_request_ends_and_tokens_add_up():
    for pool in ("unified", "split"):
        for sched in ("fcfs", "fair"):
            trace = chat(200, 3)
            r = replay(trace, sets=["plugins.pool=" + pool, "plugins.sched=" + sched])
            s = r.summary
            equal(s["requests"], {"total": 200, "ok": 200, "refused": 0, "cancelled": 0, "error": 0})
            for row, q in zip(r.rows, trace):
                equal(row["output_tokens"], q["output_length"])
                equal(row["prompt_tokens"], q["input_length"])
                equal(row["lost_tokens"], row["hit_page_tokens"] - row["reused_tokens"])
                equal(row["reused_tokens"], min(row["hit_page_tokens"], row["hit_state_tokens"]))
                assert 0 <= row["lost_tokens"] and row["reused_tokens"] < row["prompt_tokens"]
                assert 0 <= row["queue_ms"] <= row["ttft_ms"] <= row["e2e_ms"], row
                if row["output_tokens"] > 1:
                    near(row["tpot_ms"] * (row["output_tokens"] - 1), row["e2e_ms"] - row["ttft_ms"],
                         1e-3)
            equal(s["tokens"]["output"], sum(q["output_length"] for q in trace))
            equal(s["tokens"]["prompt"], sum(q["input_length"] for q in trace))
            for k in ("reused", "lost", "hit_page", "hit_state"):
                equal(s["tokens"][k], sum(x[k + "_tokens"] for x in r.rows))
            equal(s["checkpoints"]["written"], sum(x["checkpoints_written"] for x in r.rows))
            assert s["tokens"]["reused"] > 0
            near(s["output_tokens_per_s"], s["tokens"]["output"] / s["duration_s"], 1e-6)
            end = max(x["arrival_ms"] + x["e2e_ms"] for x in r.rows)
            near(s["duration_s"] * 1e3, end, 1e-3)


@case
def percentiles_are_those_of_the_rows():
    r = replay(chat(120, 4), "--ttft-slo", "300", "--tpot-slo", "40")
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "queue_ms"):
        v = [x[name] for x in r.rows if x[name] is not None]
        near(r.summary[name]["mean"], sum(v) / len(v), 1e-4)
        for p in (50, 90, 99):
            near(r.summary[name]["p%d" % p], quantile(v, p / 100), 1e-4)
    good = [x for x in r.rows if x["ttft_ms"] <= 300 and (x["tpot_ms"] or 0) <= 40]
    assert 0 < len(good) < len(r.rows)
    near(r.summary["goodput"]["share"], len(good) / len(r.rows), 1e-9)


@case
def classes_of_bytes_sum_to_the_arena():
    for pool in ("unified", "split"):
        b = replay(chat(80, 5), sets=["plugins.pool=" + pool]).summary["bytes"]
        total = sum(v["mean"] for k, v in b.items() if k not in ("arena", "promised"))
        assert abs(total - b["arena"]) < 16, (total, b["arena"])


@case
def what_steps_were_made_of_adds_up_and_drafts_by_position_do_too():
    tables = os.path.join(ROOT, "scripts/conf/sim-k3-tables.ini")
    sets = ("exec-sim.draft_block=7", "plugins.spec=dspark")
    told = replay(chat(60, 3), "--series", "--explain", conf=tables, sets=sets)
    s = told.summary
    parts = {p["name"]: p["s"] for p in s["step_parts"]}
    near(sum(parts.values()), s["steps"] * s["step_ms"]["mean"] / 1e3, 0.001 * len(parts))
    lines = re.findall(r"(?m)^(\S[a-z_]+) +(\d+\.\d+) +\d+\.\d ", told.stderr)
    equal({name: float(v) for name, v in lines if name != "all"}, parts)
    assert parts["experts"] > parts["draft"] > 0
    p = s["positions"]
    equal(len(p), 7)
    equal(sum(x["verified"] for x in p), s["verified"])
    equal(sum(x["accepted"] for x in p), s["accepted"])
    assert all(a["accepted"] >= b["accepted"] > 0 for a, b in zip(p, p[1:]))
    # without exec-sim's word the engine's own is in it, and --explain alone writes to people
    plain = replay(chat(60, 3), conf=tables, sets=sets)
    equal([x["name"] for x in plain.summary["step_parts"]], ["forward pass", "drafting"])
    equal(plain.summary["positions"], p)
    equal(plain.rows, told.rows)
    assert "experts" not in plain.stderr
    equal(replay(chat(5, 3)).summary["positions"], [])


@case
def time_is_what_the_cost_table_says():
    points, k = cost_table(COST)
    r = replay([{"timestamp": 250, "input_length": 3000, "output_length": 11}],
               sets=["prefix.enabled=no"])
    prompt = rows_ns(points, 3000) + k["prefill_context_ns"] * 3000 * 3001 / 2
    steps = [rows_ns(points, 1) + k["decode_context_ns"] * (3001 + i) for i in range(10)]
    row = r.rows[0]
    near(row["arrival_ms"], 250)
    near(row["ttft_ms"], prompt / 1e6)
    near(row["e2e_ms"], (prompt + sum(steps)) / 1e6)
    near(row["tpot_ms"], sum(steps) / 10 / 1e6)
    equal(r.summary["steps"], 11)
    near(r.summary["step_ms"]["p50"], quantile([prompt] + steps, 0.5) / 1e6)


@case
def a_turn_follows_the_one_before_after_its_delay():
    r = replay([{"timestamp": 0, "input_length": 500, "output_length": 5, "id": "a"},
                {"after": "a", "delay": 100, "input_length": 600, "output_length": 5, "id": "b"},
                {"after": "b", "timestamp": 60000, "input_length": 600, "output_length": 5}])
    near(r.rows[1]["arrival_ms"], r.rows[0]["e2e_ms"] + 100)
    near(r.rows[2]["arrival_ms"], 60000)
    s = replay([{"timestamp": 0, "input_length": 500, "output_length": 5, "id": "a"},
                {"after": "a", "delay": 100, "input_length": 600, "output_length": 5}],
               "--stretch", "3")
    near(s.rows[1]["arrival_ms"], s.rows[0]["e2e_ms"] + 300)


@case
def a_client_that_leaves_is_cancelled_and_its_next_turn_comes():
    r = replay([{"timestamp": 0, "input_length": 500, "output_length": 4000, "id": "a",
                 "cancel_after": 1000},
                {"timestamp": 0, "input_length": 500, "output_length": 5, "id": "x",
                 "cancel_after": 900000},
                {"after": "a", "delay": 5, "input_length": 600, "output_length": 5}])
    equal([x["outcome"] for x in r.rows], ["cancelled", "ok", "ok"])
    equal(r.rows[0]["reason"], "client")
    assert 0 < r.rows[0]["output_tokens"] < 4000
    near(r.rows[0]["e2e_ms"], 1000, 50)
    equal(r.summary["requests"]["cancelled"], 1)


@case
def refusals_are_counted_by_reason():
    big = [{"timestamp": 0, "input_length": 900000, "output_length": 5}]
    r = replay(big, sets=["memory.bytes=8g"])
    equal((r.rows[0]["outcome"], r.rows[0]["reason"]), ("refused", "never_fits"))
    assert "pages" in r.rows[0]["detail"], r.rows[0]
    equal(r.rows[0]["ttft_ms"], None)
    burst = [{"timestamp": 0, "input_length": 4000, "output_length": 50}] * 40
    burst = [dict(q, id=str(i)) for i, q in enumerate(burst)]
    r = replay(burst, sets=["engine.max_seqs=4", "engine.max_requests=16"])
    equal(r.summary["refusals"]["queue_full"], 24)
    equal(r.summary["requests"]["ok"], 16)
    r = replay(burst, sets=["engine.max_seqs=4", "admission.queue_timeout_ms=1500"])
    n = r.summary["refusals"]["timeout"]
    assert 0 < n < 40 and r.summary["requests"]["ok"] == 40 - n, r.summary["requests"]


@case
def the_backend_answers_what_the_next_turn_repeats():
    block, n1, out = 64, 1000, 300
    first = {"timestamp": 0, "input_length": n1, "output_length": out, "block": block,
             "hash_ids": list(range(16)), "id": "a"}
    n2 = n1 + out + 200
    second = {"after": "a", "delay": 10, "input_length": n2, "output_length": 3, "block": block,
              "hash_ids": list(range(15)) + list(range(50, 50 + (n2 + 63) // 64 - 15))}
    r = replay([first, second], sets=["prefix.checkpoint=interval", "prefix.interval=64"])
    equal(r.summary["expansion"], {"tail_tokens": n1 % 64 + n2 % 64, "tail_resolved": n1 % 64,
                                   "answer_tokens": out + 3, "answer_resolved": out})
    reused = r.rows[1]["reused_tokens"]  # prompt and answer but the last token, whole pages
    equal(reused, (n1 + out - 1) // block * block)
    other = dict(second, hash_ids=[900] + second["hash_ids"][1:])  # nothing in common
    equal(replay([first, other]).rows[1]["hit_page_tokens"], 0)


@case
def load_stretches_arrivals_to_the_capacity():
    trace = chat(120, 6)
    span = max(q["timestamp"] for q in trace) / 1e3
    for load in (0.5, 0.95):
        r = replay(trace, "--load", str(load))
        s = r.summary["load"]
        near(s["stretch"] * span * load, s["capacity_s"], 1e-6)
        near(r.rows[-1]["arrival_ms"], trace[-1]["timestamp"] * s["stretch"], 1e-2)
        equal("queue dominates" in r.stderr, load > 0.9)
    slow = replay(trace, "--load", "0.2").summary["queue_ms"]["mean"]
    assert slow <= replay(trace, "--load", "0.95").summary["queue_ms"]["mean"]


@case
def virtual_and_real_time_compute_the_same():
    trace = chat(12, 7, gap_ms=20)
    sets = ["exec-sim.cost=" + SHORT, "engine.step_tokens=64", "engine.prefill_chunk=64"]
    a = replay(trace, sets=sets)
    b = replay(trace, sets=sets + ["exec-sim.clock=real"])
    equal((a.summary["clock"], b.summary["clock"]), ("virtual", "real"))
    for x, y in zip(a.rows, b.rows):
        for k in ("outcome", "prompt_tokens", "output_tokens"):
            equal(x[k], y[k])


@case
def a_real_backend_replays_too():
    trace = [{"timestamp": i, "input_length": 40 + i, "output_length": 6, "block": 16,
              "hash_ids": [1, 2, 10 + i]} for i in range(6)]
    trace.append({"timestamp": 9, "prompt": "The kedge holds.", "output_length": 4})
    r = replay(trace, conf=TINY)
    equal(r.summary["requests"]["ok"], 7)
    equal(r.summary["clock"], "real")
    assert 0 < r.rows[6]["prompt_tokens"] < 16
    r = replay(trace[:6], conf=TINY, sets=["plugins.exec=null"])
    equal(r.summary["requests"]["ok"], 6)


@case
def a_script_sees_arrivals_and_admissions():
    trace = [{"timestamp": 0, "input_length": n, "output_length": 9, "tenant": t}
             for n, t in ((900, "a"), (5000, "a"), (100, "a"), (900, "b"))]
    with tempfile.TemporaryDirectory() as d:
        script = os.path.join(d, "p.lua")
        with open(script, "w") as f:
            f.write('function arrive(req, view)\n'
                    '  if req.prompt_tokens > 2000 then return "reject", "too long" end\nend\n'
                    'function admit(req, view)\n'
                    '  if req.tenant == "b" then return "reject", "not b" end\nend\n')
        r = replay(trace, sets=["lua.script=" + script])
    equal([(x["outcome"], x["reason"], x.get("detail")) for x in r.rows],
          [("ok", "length", None), ("refused", "policy", "too long"), ("ok", "length", None),
           ("refused", "policy", "not b")])
    equal(r.summary["refusals"]["policy"], 2)


@case
def mistakes_are_named_and_exit_with_their_status():
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "t.jsonl.gz")
        with gzip.open(path, "wt") as f:
            f.write('{"timestamp":0,"input_length":5,"output_length":1}\n{"timestamp":1,"input_'
                    'length":-5,"output_length":1}\n')
        r = run("-c", SIM, "--trace", path)
        equal(r.returncode, 1)
        assert "line 2: input_length" in r.stderr, r.stderr
        good = os.path.join(d, "good.jsonl")
        with open(good, "w") as f:
            f.write('{"timestamp":0,"prompt":"text","output_length":1}\n')
        r = run("-c", SIM, "--trace", good)
        equal(r.returncode, 2)
        assert "line 1: prompt" in r.stderr and "tokenizer" in r.stderr, r.stderr
        for args, word in ((("--format", "x"), "--format"), (("--load", "0"), "--load"),
                           (("--load", "1", "--stretch", "2"), "exclude"),
                           (("--scale", "0"), "--scale"), (("--limit", "x"), "--limit")):
            r = run("-c", SIM, "--trace", good, *args)
            equal(r.returncode, 2)
            assert word in r.stderr, r.stderr
        equal(run("-c", SIM).returncode, 2)
        equal(run("-c", SIM, "--trace", os.path.join(d, "none")).returncode, 2)
        cost = os.path.join(d, "bad.cost")
        for text, word in (("kedge-cost 2\n", ":1:"), ("kedge-cost 1\nrows 4 10\nrows 2 20\n", ":3:"),
                           ("kedge-cost 1\nrows 1 10\nrows 2 5\n", "rise"), ("kedge-cost 1\n", "rows"),
                           ("kedge-cost 1\nrows 1 x\n", ":2:"), ("kedge-cost 1\nspeed 3\n", "speed"),
                           ("kedge-cost 1\nrows 1 1\nrows 9 2\n", "step_tokens")):
            with open(cost, "w") as f:
                f.write(text)
            r = run("-c", SIM, "--trace", path, "--limit", "1", "--set", "exec-sim.cost=" + cost)
            equal(r.returncode, 2)
            assert word in r.stderr, r.stderr


@case
def times_at_the_end_of_the_clock_fit_into_a_series():
    far = [{"id": 1, "timestamp": 0, "input_length": 10, "output_length": 4}]
    far += [{"id": i, "after": i - 1, "delay": 9000000000, "input_length": 10, "output_length": 4}
            for i in (2, 3, 4)]
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "far.jsonl")
        with open(path, "w") as f:
            f.writelines(json.dumps(o) + "\n" for o in far)
        r = subprocess.run([KEDGE, "replay", "-c", SIM, "--trace", path, "--stretch", "1e6", "--series", "--json"],
                           capture_output=True, text=True, timeout=60)  # bins once grew without end
    equal((r.returncode, json.loads(r.stdout)["requests"]["ok"]), (0, 4))


@case
def published_traces_replay():
    if not os.path.isdir(SHARED):
        raise Skip("skipped: no ../shared")
    for name, args, n in (("mooncake_conversation.jsonl.gz", ("--format", "mooncake"), 300),
                          ("mooncake_synthetic.jsonl.gz", (), 200),
                          ("claudecode_agentic.jsonl.gz", ("--format", "agentic"), 60),
                          ("azure2023_code.csv.gz", ("--format", "azure"), 400),
                          ("servegen_deepseek_r1.jsonl.gz", ("--format", "servegen"), 200)):
        r = replay(os.path.join(SHARED, name), "--limit", str(n), *args)
        equal(r.summary["requests"]["ok"], n)
        assert "not known" not in r.stderr, r.stderr


main()
