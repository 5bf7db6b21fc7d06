#!/usr/bin/python3
"""kedge ab on equal arms whose seeds move every step, and on one that is 5 % slower (scripts/bench/aa).

usage: aa_cli.py KEDGE SOURCE_ROOT      (TAP on standard output)
KEDGE_FULL=1: twenty runs of each, and twenty on a published hour where there is one.
"""
import json
import os
import subprocess
import sys
import tempfile

KEDGE, ROOT = (os.path.abspath(p) for p in sys.argv[1:3])
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import case, main, Skip  # noqa: E402

FULL = bool(os.environ.get("KEDGE_FULL"))
SHARED = os.path.join(ROOT, "../shared/traces/mooncake_conversation.jsonl.gz")
SIM = os.path.join(ROOT, "scripts/conf/sim-k3-tables.ini")


def aa(*args):
    p = subprocess.run([os.path.join(ROOT, "scripts/bench/aa"), "--kedge", KEDGE, "--json", *args],
                       capture_output=True, text=True)
    assert p.returncode == 0, p.stderr[-400:]
    return json.loads(p.stdout)


def holds(r):
    # Seeds must do something, or this shows nothing.
    assert len(set(r["aa_mean_e2e_percent"])) == r["aa_runs"], r
    assert min(abs(v) for v in r["aa_mean_e2e_percent"]) > 0, r
    assert r["aa_different"] <= 1, r
    assert r["slow_found"] == r["slow_runs"] > 0, r


@case
def equal_arms_show_no_difference_and_five_percent_is_found():
    holds(aa("--runs", "20" if FULL else "3", "--slow-runs", "20" if FULL else "2", "--rate", "1",
             "--requests", "2000" if FULL else "1000"))


@case
def the_same_on_a_published_hour():
    if not FULL:
        raise Skip("with KEDGE_FULL=1")
    if not os.path.exists(SHARED):
        raise Skip("skipped: no ../shared")
    holds(aa("--trace", SHARED, "--requests", "3000", "--stretch", "3"))


@case
def the_seed_moves_luck_and_noise_and_a_seed_of_the_configuration_stays():
    trace = "".join(json.dumps({"timestamp": 100 * i, "input_length": 700, "output_length": 60,
                                "hash_ids": [i, i + 1000]}) + "\n" for i in range(20))
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "t.jsonl")
        with open(path, "w") as f:
            f.write(trace)

        def rows(seed, *sets):
            out = os.path.join(d, "rows")
            p = subprocess.run([KEDGE, "replay", "-c", SIM, "--trace", path, "--out", out, "--seed",
                                str(seed), *[x for s in sets for x in ("--set", s)]],
                               capture_output=True, text=True)
            assert p.returncode == 0, p.stderr
            with open(out) as f:
                return [json.loads(line) for line in f]

        def times(*args):
            return [(r["e2e_ms"], r["accepted"]) for r in rows(*args)]

        drafts = ("plugins.spec=dspark", "exec-sim.draft_block=7")
        assert times(1) == times(2)
        assert times(1, *drafts) == times(1, *drafts) != times(2, *drafts)
        assert times(1, *drafts, "exec-sim.seed=1") == times(2, *drafts, "exec-sim.seed=1")
        assert times(1, *drafts) == times(2, *drafts, "exec-sim.seed=1")
        noisy = "exec-sim.jitter=5"
        assert times(1, noisy) == times(1, noisy) != times(2, noisy)
        # The noise has mean 1: over the some 1,100 steps of twenty answers it evens out.
        plain = sum(r["tpot_ms"] for r in rows(1)) / 20
        moved = sum(r["tpot_ms"] for r in rows(1, noisy)) / 20
        assert 0 < abs(moved / plain - 1) < 0.02, (plain, moved)


main()
