#!/usr/bin/python3
"""Trains the drafter on the shards of prepare.py.

    nice -n 10 train.py --run RUN [--name draft] [--steps 3000 | --minutes 60] [--resume]

Losses for row k of a block, weight exp(-k / 4): 0.1 cross entropy of the target's token, 0.9 the L1
distance of the two distributions, 1.0 binary cross entropy of the confidence against
1 - L1 / 2, each a weighted mean over valid rows. Predecessors are the target's tokens.
L1 says little while q is far from p, so for the first --soft steps (then fading over as many) the
first two terms give way to the cross entropy against the target's whole distribution.
The Markov head starts from the bigrams of the texts, the final norm from the target's.
Matrices of the body learn by orthogonalised momentum (Muon), the rest by AdamW; warm-up, constant
rate, linear cool-down; an average of the weights is what is exported.

Every 100 steps RUN/NAME.pt is replaced: weights, average, optimiser, step. --resume goes on
from there; the order of data is a function of seed and epoch, and new shards join at an epoch.
With --minutes the run ends by the clock instead of at a step, as one must on a machine whose speed
others decide: the cool-down is the last third of the time. A resumed run warms up again.
"""
import argparse
import json
import math
import os
import time

import blas
if __name__ == "__main__":
    blas.setup()
import torch
import torch.nn.functional as F

import data
import drafter as drafter_module
import target as target_module


def losses(model, h, b, soft=0.0):
    """h [B, A, g, d]; soft: share of the cross entropy against the whole distribution.
    -> (loss, accept probabilities [n] of the valid rows, parts)"""
    v = b["valid"]
    h, prev = h[v], b["prev"][v]
    weight = torch.exp(-torch.arange(v.shape[2]) / 4.0).expand(v.shape)[v]
    weight = weight / weight.sum()
    logq = F.log_softmax(model.logits(h, prev), -1)
    with torch.no_grad():
        p = F.softmax(b["hidden"][v] @ model.head.t(), -1)
    l1 = (logq.exp() - p).abs().sum(-1)
    ce = -logq.gather(1, b["label"][v].unsqueeze(1)).squeeze(1)
    accept = (1 - 0.5 * l1.detach()).clamp(0, 1)
    bce = F.binary_cross_entropy_with_logits(model.confidence(h, prev), accept, reduction="none")
    parts = [(weight * x).sum() for x in (ce, l1, bce)]
    loss = (1 - soft) * (0.1 * parts[0] + 0.9 * parts[1]) + parts[2]
    if soft:
        loss = loss + soft * (weight * -(p * logq).sum(-1)).sum()
    return loss, accept, [float(x) for x in parts]


def bigram_start(seqs, vocab, rank, smooth=4.0):
    """Markov factors (w1, w2) [V, rank]: the weighted low-rank part of
    log P(next | previous) - log P(next), counted over the texts."""
    count = torch.zeros(vocab, vocab)
    for s in seqs:
        ids = s["ids"].long()
        count.index_put_((ids[:-1], ids[1:]), torch.ones(len(ids) - 1), accumulate=True)
    row, col = count.sum(1, keepdim=True), count.sum(0, keepdim=True)
    p = col / col.sum()
    ratio = torch.log((count / p.clamp(min=1e-9) + smooth) / (row + smooth))
    seen = (row > 0) & (col > 0)
    a, b = (row / row.sum()).clamp(min=1e-6).sqrt(), p.clamp(min=1e-6).sqrt()
    torch.manual_seed(1)
    u, s, v = torch.svd_lowrank(torch.where(seen, ratio, torch.zeros(())) * a * b, q=rank, niter=3)
    return u * s.sqrt() / a, v * s.sqrt() / b.t()


class Muon:
    """Momentum, orthogonalised by five Newton-Schulz steps; steps have AdamW's size."""

    def __init__(self, params):
        self.params, self.m = params, [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self, lr):
        for p, m in zip(self.params, self.m):
            m.mul_(0.95).add_(p.grad)
            x = p.grad + 0.95 * m
            tall = x.shape[0] > x.shape[1]
            x = x.t() if tall else x
            x = x / (x.norm() + 1e-9)
            for _ in range(5):
                a = x @ x.t()
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            p.add_(x.t() if tall else x, alpha=-lr * 0.2 * math.sqrt(max(p.shape)))


def tau(accept, valid):
    """Mean accepted length of whole blocks, the bonus token included; per-position acceptance."""
    full = torch.zeros(valid.shape)
    full[valid] = accept
    whole = valid.all(-1)
    if not bool(whole.any()):
        return float("nan"), []
    return (1 + float(full[whole].cumprod(-1).sum(-1).mean()),
            full[whole].mean(0).tolist())


def rate(step, first, spent, args):
    """Learning rate of a step. first: the step this run began with; spent: share of --minutes."""
    up = min(1.0, (step - first + 1) / args.warmup)
    left = 3 * (1 - spent) if args.minutes else (args.steps - step) / max(1, args.cooldown)
    return args.lr * up * max(0.02, min(1.0, left))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run", required=True)
    ap.add_argument("--name", default="draft")
    ap.add_argument("--model", default="tests/models/k3-tiny")
    ap.add_argument("--steps", type=int, default=3000)
    ap.add_argument("--minutes", type=float, default=0.0)
    ap.add_argument("--warmup", type=int, default=60)
    ap.add_argument("--cooldown", type=int, default=800)
    ap.add_argument("--soft", type=int, default=200)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--rows", type=int, default=4)
    ap.add_argument("--width", type=int, default=640)
    ap.add_argument("--anchors", type=int, default=48)
    ap.add_argument("--gamma", type=int, default=7)
    ap.add_argument("--rank", type=int, default=64)
    ap.add_argument("--taps", default="2,4,6")
    ap.add_argument("--seed", type=int, default=5)
    ap.add_argument("--resume", action="store_true")
    args = ap.parse_args()
    torch.set_num_threads(1)
    blas.check()
    path = os.path.join(args.run, args.name + ".pt")
    target = target_module.Target(args.model)
    cfg = drafter_module.config_for(target, [int(x) for x in args.taps.split(",")], args.gamma,
                                    rank=args.rank)
    weights = drafter_module.fresh(cfg, args.seed)
    if not (args.resume and os.path.exists(path)):
        w1, w2 = bigram_start(data.load(args.run), target.vocab, args.rank)
        weights["markov_head.markov_w1.weight"].copy_(w1)
        weights["markov_head.markov_w2.weight"].copy_(w2)
        weights["final_norm.weight"].copy_(target.w["model.norm.weight"])
    weights = {n: t.requires_grad_() for n, t in weights.items()}
    model = drafter_module.Drafter(cfg, weights, target.embedding, target.head)
    body = [n for n, t in weights.items() if t.dim() == 2 and
            not n.startswith(("markov", "confidence"))]
    muon = Muon([weights[n] for n in body])
    opt = torch.optim.AdamW([t for n, t in weights.items() if n not in body], lr=args.lr,
                            betas=(0.9, 0.95), weight_decay=0.0)
    average = {n: t.detach().clone() for n, t in weights.items()}
    step = epoch = begin = 0
    if args.resume and os.path.exists(path):
        ck = torch.load(path)
        for n, t in weights.items():
            t.data.copy_(ck["weights"][n])
        average, step, epoch, begin = ck["average"], ck["step"], ck["epoch"], ck["begin"]
        opt.load_state_dict(ck["optimiser"])
        muon.m = ck["momentum"]
    log = open(os.path.join(args.run, args.name + ".log"), "a", buffering=1)
    print("parameters", sum(t.numel() for t in weights.values()), file=log)
    seen, clock, cpu = [], time.time(), time.process_time()
    first, start, done = step, time.time(), step >= args.steps and not args.minutes
    while not done:
        seqs = data.load(args.run)
        g = torch.Generator().manual_seed(args.seed * 1000 + epoch)
        order = torch.randperm(len(seqs), generator=g).tolist()
        packed = data.pack([len(s["ids"]) for s in seqs], args.width, order)
        print("epoch %d: %d sequences, %d rows" % (epoch, len(seqs), len(packed)), file=log)
        for at in range(begin, len(packed) - args.rows + 1, args.rows):
            g.manual_seed((args.seed << 32) + step)
            b = data.batch(seqs, packed[at:at + args.rows], args.anchors, args.gamma, g)
            h = model.block(model.context(b["taps"], b["pos"]), b["allowed"], b["anchor_ids"],
                            b["anchor_pos"])
            soft = min(1.0, max(0.0, 2 - step / args.soft)) if args.soft else 0.0
            loss, accept, parts = losses(model, h, b, soft)
            for t in weights.values():
                t.grad = None
            loss.backward()
            norm = float(torch.nn.utils.clip_grad_norm_(weights.values(), 1.0))
            spent = (time.time() - start) / (60 * args.minutes) if args.minutes else 0.0
            lr = rate(step, first, spent, args)
            for group in opt.param_groups:
                group["lr"] = lr
            if math.isfinite(norm):
                opt.step()
                muon.step(lr)
            keep = min(0.995, (step + 1) / (step + 10))
            with torch.no_grad():
                for n, t in weights.items():
                    average[n].mul_(keep).add_(t, alpha=1 - keep)
            step += 1
            done = spent >= 1 if args.minutes else step >= args.steps
            seen.append((tau(accept, b["valid"]), parts))
            if step % 25 == 0:
                t = [x[0][0] for x in seen]
                by = torch.tensor([x[0][1] for x in seen if x[0][1]]).mean(0).tolist()
                ps = torch.tensor([x[1] for x in seen]).mean(0).tolist()
                print("%d tau %.3f by %s ce %.3f l1 %.3f bce %.3f norm %.2f, %.2f s a step, "
                      "%.2f of cpu, rate %.5f" % (step, sum(t) / len(t), " ".join("%.2f" % x for x in by),
                                       *ps, norm, (time.time() - clock) / 25,
                                       (time.process_time() - cpu) / 25, lr), file=log)
                seen, clock, cpu = [], time.time(), time.process_time()
            if step % 100 == 0 or done:
                torch.save({"weights": {n: t.detach() for n, t in weights.items()},
                            "average": average, "step": step, "epoch": epoch,
                            "begin": at + args.rows, "optimiser": opt.state_dict(), "momentum": muon.m,
                            "config": cfg, "settings": vars(args)}, path + ".tmp")
                os.replace(path + ".tmp", path)
            if done:
                break
        epoch, begin = epoch + 1, 0


if __name__ == "__main__":
    main()
