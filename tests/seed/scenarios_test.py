"""What the first users wanted to see, each as a small run: in virtual time, so the same everywhere.

Cached prefixes for a shared system prompt; the checkpoint interval against the length of what is
shared; speculation alone and in a crowd, on text that is easy and hard to foretell; collectives by
size; a vision encoder whose heads do not divide; two machines on Ethernet.
"""
import json
import os
import subprocess
import sys
import tempfile

ROOT, KEDGE = os.environ["KEDGE_ROOT"], os.environ["KEDGE_BINARY"]
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import main  # noqa: E402

CONF = os.path.join(ROOT, "scripts", "conf")
SIM = os.path.join(CONF, "sim-k3.ini")
TABLES = os.path.join(CONF, "sim-k3-tables.ini")
PAGE = 64


def kedge(*args, rc=0):
    p = subprocess.run([KEDGE, *args], capture_output=True, text=True)
    assert p.returncode == rc, "%s: exit %d: %s" % (args[0], p.returncode, p.stderr[-400:])
    return p


def sets(values):
    return [x for v in values for x in ("--set", v)]


def replay(lines, *args, conf=SIM):
    with tempfile.TemporaryDirectory() as d:
        path, rows = os.path.join(d, "t.jsonl"), os.path.join(d, "rows")
        with open(path, "w") as f:
            f.write("".join(json.dumps(line) + "\n" for line in lines))
        # A short context: the test command fills all memory that is allocated.
        p = kedge("replay", "-c", conf, "--trace", path, "--out", rows, "--json", "--set",
                  "exec-sim.max_context=16384", *args)
        with open(rows) as f:
            return json.loads(p.stdout), [json.loads(line) for line in f], p.stderr


def system_prompt(n, shared, own=200, gap_ms=400, output=20):
    """Requests that begin with the same tokens and go on by themselves."""
    begin = list(range(shared))
    return [{"timestamp": i * gap_ms, "input_length": shared + own, "output_length": output,
             "token_ids": begin + [(7 * j + 1000 * (i + 2)) % 160000 for j in range(own)]}
            for i in range(n)]


def test_a_shared_system_prompt_is_computed_once_with_the_prefix_cache_and_each_time_without():
    lines = system_prompt(40, 6000)
    with tempfile.TemporaryDirectory() as d:
        trace = os.path.join(d, "t.jsonl")
        with open(trace, "w") as f:
            f.write("".join(json.dumps(line) + "\n" for line in lines))
        p = kedge("ab", SIM, "--vary", "prefix.enabled=no,yes", "--trace", trace, "--json", "--set",
                  "exec-sim.max_context=16384")
    report = json.loads(p.stdout)["comparisons"][0]
    figures = {f["name"]: f for f in report["figures"]}
    ttft = figures["median TTFT"]
    assert ttft["different"] and ttft["b"] < 0.5 * ttft["a"], ttft
    # The first computes it, the second writes the state where they part, from the third on it is there.
    whole = 6000 // PAGE * PAGE
    assert abs(figures["reused"]["b"] - whole * 38 / 40) < whole / 40 + 1, figures["reused"]
    assert figures["reused"]["a"] == 0
    assert report["outputs"]["differ"] == 0, report["outputs"]
    check = kedge("check", "-c", SIM, "--set", "prefix.enabled=no")
    assert "every request is computed from its first token" in check.stdout, check.stdout


def test_an_interval_longer_than_what_is_shared_reuses_nothing():
    """Under a fixed interval the last multiple of it inside the shared part is what can be resumed."""
    shared = 3000
    for interval in (256, 1024, 2048, 4096):
        s, rows, _ = replay(system_prompt(12, shared), *sets(
            ["prefix.checkpoint=interval", "prefix.interval=%d" % interval]))
        wanted = shared // interval * interval
        assert [r["reused_tokens"] for r in rows[2:]] == [wanted] * 10, (interval, rows[3])
        # Pages know no interval: what lies behind the last state is lost.
        assert all(r["lost_tokens"] == shared // PAGE * PAGE - wanted for r in rows[2:]), rows[3]
    with tempfile.TemporaryDirectory() as d:
        trace = os.path.join(d, "t.jsonl")
        with open(trace, "w") as f:
            f.write("".join(json.dumps(line) + "\n" for line in system_prompt(12, shared)))
        words = kedge("check", "-c", SIM, "--trace", trace, *sets(
            ["prefix.checkpoint=interval", "prefix.interval=4096"])).stdout
    assert "warning: [prefix] interval" in words, words
    # The other side of the bargain: a short interval writes a state, 56 MB of K3, many times as often.
    few, many = (replay(system_prompt(12, shared), *sets(
        ["prefix.checkpoint=interval", "prefix.interval=%d" % i]))[0] for i in (2048, 256))
    assert many["checkpoints"]["written"] > 3 * few["checkpoints"]["written"] > 0


def decoding(spec, domain, n):
    """Output tokens a second of n requests that decode together."""
    lines = [{"timestamp": 0, "input_length": 64, "output_length": 120, "domain": domain,
              "token_ids": [1000 + 64 * i + j for j in range(64)]} for i in range(n)]
    more = [] if spec == "off" else ["exec-sim.draft_block=7", "engine.cost=measured"]
    s, rows, _ = replay(lines, *sets(
        ["plugins.spec=" + spec, "engine.max_seqs=256", "engine.step_tokens=10240",
         "prefix.enabled=no", "memory.bytes=100g"] + more), conf=TABLES)
    first = max(r["ttft_ms"] for r in rows)
    end = max(r["e2e_ms"] for r in rows)
    return n * 119 / (end - first)


def test_drafts_pay_alone_and_cost_in_a_crowd_and_confidence_does_not_lose():
    gain = {}
    for domain in ("low-entropy", "creative"):
        for n in (1, 256):
            off = decoding("off", domain, n)
            gain[domain, n] = {s: decoding(s, domain, n) / off for s in ("dspark", "confidence")}
    all_, some = ({k: g[s] for k, g in gain.items()} for s in ("dspark", "confidence"))
    # Alone a verified draft is almost free: the longer it survives the better.
    assert all_["low-entropy", 1] > 2.5 > all_["creative", 1] > 1.3, gain
    # In a crowd each row has its price, and most drafts of creative text die early.
    assert all_["creative", 256] < 0.8, gain
    assert all_["low-entropy", 256] < 0.5 * all_["low-entropy", 1], gain
    for k, g in some.items():
        assert g > 0.97 and g > 0.97 * all_[k], gain
    assert some["creative", 256] > 1.3 * all_["creative", 256], gain


def collectives(algorithm, prompt, output):
    """Seconds of collectives of one request, and of all its steps."""
    with tempfile.TemporaryDirectory() as d:
        stack = os.path.join(d, "s.stack")
        with open(stack, "w") as f:
            f.write("kedge-stack 1\nname s\nallreduce %s\n" % algorithm)
        line = {"timestamp": 0, "input_length": prompt, "output_length": output,
                "token_ids": list(range(prompt))}
        _, _, words = replay([line], "--explain", *sets(["exec-sim.stack=" + stack]), conf=TABLES)
    found = {w[0]: float(w[1]) for w in (line.split() for line in words.splitlines())
             if len(w) > 2 and w[0] in ("collectives", "all")}
    return found["collectives"], found["all"]


def test_one_shot_sums_win_on_small_messages_and_meet_the_ring_on_large_ones():
    """Eight ranks: a token alone sums 14 KB at a time, a prompt of 8,000 tokens 117 MB."""
    one, ring = collectives("sglang", 64, 200), collectives("nccl", 64, 200)
    assert one[0] < 0.3 * ring[0], (one, ring)
    assert ring[1] - one[1] > 0.2 * one[1], (one, ring)  # of the whole step, not only of the sums
    one, ring = collectives("sglang", 8000, 1), collectives("nccl", 8000, 1)
    assert abs(one[0] / ring[0] - 1) < 0.1, (one, ring)
    best = collectives("best", 8000, 1)
    assert best[0] <= min(one[0], ring[0]) * 1.001, (best, one, ring)


def test_an_encoder_of_twelve_heads_on_tp8_is_warned_of():
    words = "the vision encoder's 12 heads do not divide by tp = 8: engines fall back to data parallel"
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump({"vision_config": {"num_attention_heads": 12}}, f)
        model = "model.path=" + d
        for values, warned in (([], True), (["exec-sim.tp=4"], False), ([model], True),
                               ([model, "exec-sim.tp=4"], False), (["exec-sim.model=kimi_linear"], False)):
            out = kedge("check", "-c", TABLES, *sets(values)).stdout
            assert (words in out) == warned, (values, out)
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump({"vision_config": {"num_attention_heads": 16}}, f)
        assert "vision" not in kedge("check", "-c", TABLES, *sets([model])).stdout
        with open(os.path.join(d, "config.json"), "w") as f:
            f.write("[1, 2")
        assert "vision" not in kedge("check", "-c", TABLES, *sets([model])).stdout


def test_two_machines_on_ethernet_are_refused_before_anything_is_read():
    for conf in (TABLES, os.path.join(CONF, "tiny.ini")):
        for fabric in ("none", "tcp"):
            # The folder of weights does not exist: nobody looked for it.
            for command in ("check", "serve", "run") if conf.endswith("tiny.ini") else ("check",):
                text = ["hello"] if command == "run" else []
                p = kedge(command, *text, "-c", conf, *sets(["cluster.nodes=2", "cluster.fabric=" + fabric,
                                                      "model.path=/nowhere"]), rc=2)
                assert "[cluster] nodes = 2, fabric = %s" % fabric in p.stderr, p.stderr
                assert "allow_slow_fabric = yes" in p.stderr and "nowhere" not in p.stderr, p.stderr
    out = kedge("check", "-c", TABLES, *sets(
        ["cluster.nodes=2", "cluster.fabric=tcp", "cluster.allow_slow_fabric=yes"])).stdout
    assert "93 layers exchange rows twice a step, at 50 us each (assumed) 9.3 ms" in out, out
    for fabric in ("rdma", "nvlink"):
        out = kedge("check", "-c", TABLES, *sets(["cluster.nodes=2", "cluster.fabric=" + fabric])).stdout
        assert "[cluster]" not in out, out


main([f for name, f in sorted(globals().items()) if name.startswith("test_")])
