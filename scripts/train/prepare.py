#!/usr/bin/python3
"""Taps and final hidden vectors of the training answers, in shards.

    prepare.py --run RUN [--model tests/models/k3-tiny] [--taps 2,4,6] [--watch]

Reads RUN/prompts.jsonl and RUN/answers.jsonl, runs the target over each prompt with its answer, and
writes RUN/shards/NNNN.pt (see data.py). A second run adds what is missing; --watch waits for
answers until all are there.
"""
import argparse
import json
import os
import time

import blas
if __name__ == "__main__":
    blas.setup()
import torch

import target as target_module

PER_SHARD = 256
LONGEST = 640


def answers(run, split):
    rows = {}
    for line in open(os.path.join(run, "prompts.jsonl")):
        row = json.loads(line)
        if row["split"] == split:
            rows[row["id"]] = row
    out = []
    path = os.path.join(run, "answers.jsonl")
    for line in open(path) if os.path.exists(path) else []:
        if not line.endswith("\n"):
            break
        a = json.loads(line)
        row = rows.get(a["id"])
        if row and len(a["ids"]) >= 8 and len(a["prompt_ids"]) < 400:
            ids = (a["prompt_ids"] + a["ids"])[:LONGEST]
            out.append(dict(id=a["id"], domain=row["domain"], temperature=row["temperature"],
                            seed=row["seed"], ids=ids, prompt=len(a["prompt_ids"])))
    return out, len(rows)


def run_target(model, seqs, taps):
    """Adds "taps" [T, m * d] and "hidden" [T, d] (float32) to each sequence."""
    for begin in range(0, len(seqs), 16):
        part = seqs[begin:begin + 16]
        ids = torch.zeros(len(part), max(len(s["ids"]) for s in part), dtype=torch.long)
        for i, s in enumerate(part):
            ids[i, :len(s["ids"])] = torch.tensor(s["ids"])
        hidden, tap = model.forward(ids, taps)
        for i, s in enumerate(part):
            n = len(s["ids"])
            s["hidden"], s["taps"] = hidden[i, :n].clone(), tap[i, :n].clone()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run", required=True)
    ap.add_argument("--model", default="tests/models/k3-tiny")
    ap.add_argument("--taps", default="2,4,6")
    ap.add_argument("--watch", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    blas.check()
    taps = [int(x) for x in args.taps.split(",")]
    model = target_module.Target(args.model)
    folder = os.path.join(args.run, "shards")
    os.makedirs(folder, exist_ok=True)
    listing = os.path.join(folder, "done.json")
    done = set(json.load(open(listing))) if os.path.exists(listing) else set()
    number = len([f for f in os.listdir(folder) if f.endswith(".pt")])
    stale = 0
    while True:
        rows, _ = answers(args.run, "train")
        fresh = [r for r in rows if r["id"] not in done]
        if len(fresh) < PER_SHARD and args.watch and stale < 12:
            time.sleep(5)
            stale += 1
            continue
        if not fresh:
            break
        stale = 0
        part = sorted(fresh[:PER_SHARD], key=lambda r: len(r["ids"]))
        began = time.process_time()
        run_target(model, part, taps)
        for s in part:
            s["hidden"], s["taps"] = s["hidden"].half(), s["taps"].half()
            s["ids"] = torch.tensor(s["ids"], dtype=torch.int16)
        path = os.path.join(folder, "%04d.pt" % number)
        torch.save(part, path + ".tmp")
        os.replace(path + ".tmp", path)
        number += 1
        done |= {s["id"] for s in part}
        json.dump(sorted(done), open(listing, "w"))
        print("shard %d: %d sequences, %d tokens, %.0f s of cpu" % (
            number - 1, len(part), sum(len(s["ids"]) for s in part),
            time.process_time() - began), flush=True)


if __name__ == "__main__":
    main()
