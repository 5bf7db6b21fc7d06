#!/usr/bin/env python3
"""The NumPy reference against the golden vectors, which came from another program (README.md).

usage: ref_test.py ROOT_OF_THE_TREE [SCRATCH_FOLDER]. Prints TAP. With KEDGE_FULL=1 in the environment
all prompts are run, not the shortest alone.
"""
import json
import os
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kimi
import make_kimi_linear
import tensorfile

ROOT = sys.argv[1]
GOLDEN, MODELS = os.path.join(ROOT, "tests/golden"), os.path.join(ROOT, "tests/models")
FULL = os.environ.get("KEDGE_FULL", "") not in ("", "0")
count = failed = 0


def check(name, fine, note=""):
    global count, failed
    count += 1
    failed += not fine
    print("%s %d - %s%s" % ("ok" if fine else "not ok", count, name, "" if fine else "  # " + note))


def worst(a, b):
    """Largest difference as a part of the largest value."""
    return float(np.abs(np.asarray(a, np.float64) - b).max() / max(1e-30, np.abs(b).max()))


def check_prompts(model, tag, only=None, n_greedy=8):
    """prompts.json and prompts.safetensors, or the files of another tag."""
    with open(os.path.join(GOLDEN, tag + ".json")) as f:
        records = json.load(f)
    want = tensorfile.load_file(os.path.join(GOLDEN, tag + ".safetensors"))
    for r in records:
        if only and r["name"] not in only:
            continue
        record, t = kimi.golden(model, r["name"], r["ids"], n_greedy)
        bad = []
        for key, value in want.items():
            if not key.startswith(r["name"] + "."):
                continue
            have = t[key][1]
            if key.endswith("top_ids"):
                # order may differ only where logits are equal to rounding
                same = (have == value) | (np.abs(t[r["name"] + ".top_logits"][1]
                                                 - want[r["name"] + ".top_logits"]) < 1e-5)
                if not same.all():
                    bad.append(key)
            elif worst(have, value) > 1e-6:
                bad.append("%s %.1e" % (key, worst(have, value)))
        check("%s_%s_equals_the_golden_vectors" % (tag, r["name"]), not bad, ", ".join(bad[:5]))
        check("%s_%s_continues_with_the_golden_tokens" % (tag, r["name"]),
              record["greedy"] == r["greedy"][:n_greedy])


def check_trace(model):
    with open(os.path.join(GOLDEN, "trace.json")) as f:
        ids = json.load(f)["ids"]
    want = tensorfile.load_file(os.path.join(GOLDEN, "trace.safetensors"))
    have, bad = {}, []
    model.forward(ids, model.new_state(), have)
    for key, value in want.items():
        if key not in have:
            bad.append(key + " is not computed")
        elif value.dtype == np.int32:
            if not (have[key] == value).all():
                bad.append(key)
        elif worst(have[key], value.reshape(have[key].shape)) > 1e-6:
            bad.append("%s %.1e" % (key, worst(have[key], value.reshape(have[key].shape))))
    check("trace_equals_the_golden_vectors_in_%d_tensors" % len(want), not bad, ", ".join(bad[:5]))


def check_pieces(model, ids, name):
    """One call and many small calls are the same function."""
    whole, state = model.new_state(), model.new_state()
    a = model.forward(ids, whole)
    b = np.concatenate([model.forward(ids[i:i + 3], state) for i in range(0, len(ids), 3)])
    check(name + "_does_not_depend_on_how_a_prompt_is_cut", worst(b, a) < 1e-12)


def check_kimi_linear(folder):
    make_kimi_linear.make(folder)
    model = kimi.Kimi(folder)
    sharded = kimi.Kimi(os.path.join(folder, "sharded"))
    check("kimi_linear_shards_hold_the_same_tensors",
          set(model.w) == set(sharded.w) and all((sharded.w[k] == v).all() for k, v in model.w.items()))
    ids = list(range(11, 31))
    check_pieces(model, ids, "kimi_linear")
    if FULL:
        make_kimi_linear.write_golden(folder, 32)
        with open(os.path.join(folder, "golden.json")) as f:
            records = json.load(f)
        check("kimi_linear_prompts_have_no_close_calls",
              all(r["min_router_margin"] > 1e-4 and min(r["greedy_gap"]) > 2e-2 for r in records))
    logits = model.forward(ids, model.new_state())
    check("kimi_linear_logits_are_of_ordinary_size", 1.0 < logits.std() < 6.0, str(logits.std()))
    again = tempfile.mkdtemp(dir=folder)
    make_kimi_linear.make(again)
    with open(os.path.join(folder, "model.safetensors"), "rb") as f, \
            open(os.path.join(again, "model.safetensors"), "rb") as g:
        check("kimi_linear_checkpoint_is_the_same_every_time", f.read() == g.read())


def main():
    k3 = kimi.Kimi(os.path.join(MODELS, "k3-tiny"))
    check_prompts(k3, "prompts", None if FULL else ["code"], 8 if FULL else 3)
    check_trace(k3)
    check_pieces(k3, list(range(7, 27)), "k3")
    check_prompts(kimi.Kimi(os.path.join(MODELS, "k3-tiny-mxfp4")), "mxfp4", None, 8 if FULL else 3)
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        check_kimi_linear(folder)
    print("1..%d" % count)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
