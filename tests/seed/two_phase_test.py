"""Pools cut for one length, against one arena filled from both ends, on a load that turns from short
requests to long ones: every static split loses in a phase, the shared arena in none. In virtual time:
figures are those of the pools' decisions, the same on every machine.
"""
import json
import os
import subprocess
import sys

ROOT = os.environ["KEDGE_ROOT"]
sys.path.insert(0, os.path.join(ROOT, "tests"))
from tap import main  # noqa: E402

BENCH = [os.path.join(ROOT, "scripts", "bench", "two-phase"), "--kedge", os.environ["KEDGE_BINARY"],
         "--small", "--json"]


def run(*args):
    p = subprocess.run([sys.executable, *BENCH, *args], capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def test_every_static_split_loses_in_a_phase_and_unified_in_none():
    for seed in ("1", "2", "3"):
        results = run("--seed", seed)
        best = {p: max(r[p]["tokens_per_s"] for r in results) for p in ("short", "long")}
        share = {r["arm"]: [r[p]["tokens_per_s"] / best[p] for p in ("short", "long")]
                 for r in results}
        splits = [s for name, s in share.items() if name.startswith("split, cut for")]
        assert len(splits) == 3
        for s in splits:
            assert min(s) < 0.85, share
        assert min(share["unified"]) > 0.99, share
        # Cut for the one or the other end a split is as good as any there: it loses by its cut alone.
        assert splits[0][0] > 0.97 and splits[2][1] > 0.97, share
        assert not any(r[p]["preemptions"] for r in results for p in ("short", "long"))


def test_the_same_seed_gives_the_same_figures():
    assert run("--seed", "5") == run("--seed", "5") != run("--seed", "6")


main([f for name, f in sorted(globals().items()) if name.startswith("test_")])
