#!/usr/bin/python3
"""The drafter in the server against the walk of evaluate.py, on the same held-out texts.

    online.py --run RUN --draft tests/models/k3-tiny-dspark [--split test] [--limit 20]

Sends the prompts to `kedge serve` with spec = dspark and acceptance by coupling, one seed each as
before. Prints, by domain and rule, whether the answers are the ids of plain decoding, and tokens a
round online and by the walk: with the same arithmetic both count the same drafts.
"""
import argparse
import os

import blas
if __name__ == "__main__":
    blas.setup()
import numpy as np
import torch

import evaluate
import json
import prepare
import regenerate
import target as target_module


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run", required=True)
    ap.add_argument("--draft", required=True)
    ap.add_argument("--kedge", default="build/kedge")
    ap.add_argument("--conf", default="scripts/conf/tiny.ini")
    ap.add_argument("--model", default="tests/models/k3-tiny")
    ap.add_argument("--split", default="test")
    ap.add_argument("--limit", type=int, default=20)
    ap.add_argument("--set", action="append", default=[])
    args = ap.parse_args()
    args.spec, args.exported = "dspark", args.draft
    args.set.append("model.draft=" + os.path.abspath(args.draft))
    torch.set_num_threads(1)
    blas.check()
    target = target_module.Target(args.model)
    model = evaluate.open_drafter(args, target)
    rows, _ = prepare.answers(args.run, args.split)
    with open(os.path.join(args.run, "prompts.jsonl")) as f:
        prompts = {r["id"]: r for r in map(json.loads, f)}
    port = regenerate.free_port()
    server = regenerate.start(args, port)
    rng = np.random.default_rng(1)
    try:
        for domain in ("fiction", "code", "json"):
            for t, rule in ((0.0, "greedy"), (0.8, "coupled")):
                part = [r for r in rows if r["domain"] == domain and r["temperature"] == t]
                part = [r for r in part[:args.limit] if len(r["ids"]) < prepare.LONGEST]
                prepare.run_target(target, part, model.cfg["target_layer_ids"])
                same = online = walk = tokens = 0
                for seq in part:
                    answer = regenerate.ask(port, prompts[seq["id"]])
                    same += answer["ids"] == seq["ids"][seq["prompt"]:]
                    online += answer["accepted"]
                    judged = evaluate.judge(model, target, seq, rng)
                    walk += int(evaluate.rounds_of(judged, seq, rule, model.gamma)[1].sum())
                    tokens += len(answer["ids"]) - 1
                    del seq["taps"], seq["hidden"]
                print("%-8s %-8s %3d of %3d answers equal to plain decoding; tokens a round online "
                      "%.3f, walk %.3f" % (domain, rule, same, len(part),
                                           tokens / (tokens - online), tokens / (tokens - walk)),
                      flush=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
