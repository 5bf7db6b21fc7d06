#!/usr/bin/python3
"""Writes a trained drafter as a folder that the engine loads, with parity fixtures.

    export.py --run RUN --name draft --out tests/models/k3-tiny-dspark [--temps]

model.safetensors (BF16), config.json, parity.safetensors and parity.json. The calibration, one
temperature and one bias for each row and class, comes from RUN/NAME.calib.json (evaluate.py --split
calib --fit), or is 1 and 0; --temps puts it into a folder that is there already and does nothing else.
The fixtures are computed in float64 from the weights as stored; README.md of the folder is written
by hand.
"""
import argparse
import json
import os

import blas
if __name__ == "__main__":
    blas.setup()
import torch

import drafter as drafter_module
import prepare
import target as target_module
import tensors

ROWS = 6   # anchors of a prompt in the fixtures
CLASSES = ("greedy", "coupled", "rejection", "block")


def widened(model, target):
    w = {n: t.double() for n, t in model.w.items()}
    return drafter_module.Drafter(model.cfg, w, target.embedding, target.head)


def prompt_fixture(name, seq, model, target, out):
    """Tensors of one text under NAME."""
    ids = torch.tensor([seq["ids"]])
    n = ids.shape[1]
    hidden, taps = target.forward(ids, model.cfg["target_layer_ids"])
    pos = torch.arange(n).unsqueeze(0)
    ctx = model.context(taps, pos)
    anchors = torch.linspace(1, n - 1, ROWS).long()
    allowed = (torch.arange(n) < anchors.unsqueeze(1)).unsqueeze(0)
    h = model.block(ctx, allowed, ids[:, anchors], anchors.unsqueeze(0))[0]
    mixed = drafter_module.Drafter(dict(model.cfg, causal=[False] + [True] * (model.layers - 1)),
                                   model.w, model.embedding, model.head)
    mixed = mixed.block(ctx, allowed, ids[:, anchors], anchors.unsqueeze(0))[0]
    drafts = model.greedy(h, ids[0, anchors])
    prev = torch.cat([ids[0, anchors].unsqueeze(1), drafts[:, :-1]], 1)
    put = {"ids": ids[0].int(), "taps": taps[0, -8:], "fused": model.fuse(taps)[0, -8:],
           "anchors": anchors.int(), "hidden": h, "hidden_open_first": mixed,
           "base_logits": h[-2:] @ model.head.t(), "logits_last": model.logits(h, prev)[-1],
           "z": model.confidence(h, prev), "drafts": drafts.int(),
           "target_logits_last": hidden[0, -1] @ target.head.t()}
    for layer, (latent, key) in enumerate(ctx):
        put["latent.%d" % layer], put["key.%d" % layer] = latent[0, -8:], key[0, -8:]
    for key, t in put.items():
        out[name + "." + key] = t.float() if t.is_floating_point() else t


def transcript(seq, model, target, tokens):
    """Plain greedy text, and the rounds speculation takes over it."""
    ids = list(seq["ids"][:seq["prompt"]])
    begin = len(ids)
    while len(ids) < begin + tokens:
        hidden, _ = target.forward(torch.tensor([ids]))
        ids.append(int((hidden[0, -1] @ target.head.t()).argmax()))
    rounds, t = [], begin
    while t < len(ids) - 1:
        # What the engine knows here: taps of positions < t only.
        _, taps = target.forward(torch.tensor([ids[:t]]), model.cfg["target_layer_ids"])
        ctx = model.context(taps, torch.arange(t).unsqueeze(0))
        h = model.block(ctx, torch.ones(1, 1, t, dtype=torch.bool), torch.tensor([[ids[t]]]),
                        torch.tensor([[t]]))[0]
        drafts = model.greedy(h, torch.tensor([ids[t]]))[0].tolist()
        room = min(model.gamma, len(ids) - 1 - t)
        a = 0
        while a < room and drafts[a] == ids[t + 1 + a]:
            a += 1
        rounds.append({"anchor": t, "drafts": drafts, "accepted": a})
        t += a + 1
    return {"prompt": ids[:begin], "greedy": ids[begin:], "rounds": rounds}


def calibrate(args, cfg):
    """Puts in what the evaluation of the calibration texts found, where there is one."""
    path, found = args.calib or os.path.join(args.run, args.name + ".calib.json"), {}
    if os.path.exists(path):
        with open(path) as f:
            found = json.load(f)
    for key, name, otherwise in (("sts_temperatures", "temperatures", 1.0),
                                 ("sts_biases", "biases", 0.0)):
        lists = {k: [otherwise] * cfg["block_size"] for k in CLASSES}
        lists.update(found.get(name, {}))
        cfg[key] = {k: [round(x, 6) for x in v] for k, v in lists.items()}


def write_config(args, cfg):
    with open(os.path.join(args.out, "config.json"), "w") as f:
        json.dump(cfg, f, indent=2)
        f.write("\n")


def set_calibration(args):
    with open(os.path.join(args.out, "config.json")) as f:
        cfg = json.load(f)
    calibrate(args, cfg)
    write_config(args, cfg)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run", required=True)
    ap.add_argument("--name", default="draft")
    ap.add_argument("--model", default="tests/models/k3-tiny")
    ap.add_argument("--out", required=True)
    ap.add_argument("--tokens", type=int, default=40)
    ap.add_argument("--temps", action="store_true")
    ap.add_argument("--calib", default="", help="the calibration, default RUN/NAME.calib.json")
    args = ap.parse_args()
    if args.temps:
        set_calibration(args)
        return
    torch.set_num_threads(1)
    target = target_module.Target(args.model)
    ck = torch.load(os.path.join(args.run, args.name + ".pt"))
    cfg = dict(ck["config"])
    calibrate(args, cfg)
    cfg["target_sha256"] = tensors.sha256(os.path.join(args.model, "model.safetensors"))
    cfg["training"] = {"steps": ck["step"], "settings": {
        k: v for k, v in ck["settings"].items() if k not in ("run", "resume", "name", "model")}}
    os.makedirs(args.out, exist_ok=True)
    path = os.path.join(args.out, "model.safetensors")
    tensors.save(path, {n: t.float() for n, t in ck["average"].items()}, bf16=True)
    write_config(args, cfg)
    model = drafter_module.Drafter(cfg, tensors.load(path), target.embedding, target.head)
    target = target_module.Target(args.model, torch.float64)
    model = widened(model, target)
    rows, _ = prepare.answers(args.run, "train")
    out, texts = {}, []
    for domain in ("fiction", "code", "json"):
        seq = next(r for r in sorted(rows, key=lambda r: r["id"]) if r["domain"] == domain and
                   r["temperature"] == 0.0 and 24 <= r["prompt"] <= 320)
        prompt = dict(seq, ids=seq["ids"][:seq["prompt"]])
        with torch.no_grad():
            prompt_fixture(domain, prompt, model, target, out)
            texts.append(dict(transcript(seq, model, target, args.tokens), name=domain))
    tensors.save(os.path.join(args.out, "parity.safetensors"), out)
    note = {"tensors": {
        "ids": "the prompt", "anchors": "positions of the blocks below",
        "taps": "last 8 rows, [8, taps * d]", "fused": "context_norm(context_proj(taps)), last 8",
        "latent.L, key.L": "what layer L keeps of the last 8 context rows: normed latent, rotated key",
        "hidden": "[anchors, gamma, d] after final_norm; an anchor sees context rows before it only",
        "hidden_open_first": "the same with causal = false in layer 0",
        "base_logits": "of the last 2 anchors, before the Markov bias, [2, gamma, V]",
        "logits_last": "of the last anchor with the bias of its greedy drafts",
        "z": "raw confidence logits along the greedy drafts", "drafts": "greedy drafts",
        "target_logits_last": "the target's logits after the prompt"},
        "precision": "float64 from the stored weights, rounded to float32",
        "transcripts": texts}
    with open(os.path.join(args.out, "parity.json"), "w") as f:
        json.dump(note, f, separators=(",", ":"))
        f.write("\n")
    size = sum(os.path.getsize(os.path.join(args.out, f)) for f in os.listdir(args.out))
    print("step %d, %d bytes in all" % (ck["step"], size))
    for t in texts:
        print(t["name"], "accepted", [r["accepted"] for r in t["rounds"]])


if __name__ == "__main__":
    main()
