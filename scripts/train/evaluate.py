#!/usr/bin/python3
"""Acceptance of a drafter on held-out texts of the target, by domain and rule, and calibration.

    evaluate.py --run RUN --name draft [--split test|calib] [--at 0,0.8] [--limit 40[,40]]
        [--exported DIR] [--fit | --calibrated RUN/NAME.calib.json] [--again]

Texts: RUN's answers of that split at temperature 0 (rule greedy) and at the others of --at (rules
coupled, rejection, block; several are one pool). For every position of an answer the drafter makes a
block, and the rounds that decoding would take are walked (accept.py). Rounds are told apart by domain,
and by the target's own uncertainty over the block: the mean entropy of its distributions there. Writes
RUN/NAME.SPLIT.json, or NAME.SPLIT.AT.json where --at is given, and prints tables.
"""
import argparse
import json
import os

import blas
if __name__ == "__main__":
    blas.setup()
import numpy as np
import torch

import accept
import drafter as drafter_module
import prepare
import target as target_module
import tensors

BANDS = (0.0, 0.5, 1.0, 2.0, 3.0)      # nats, lower ends
CLASSES = ("greedy", "coupled", "rejection", "block")


def open_drafter(args, target):
    """The averaged weights of a checkpoint, or an exported folder."""
    if args.exported:
        cfg = json.load(open(os.path.join(args.exported, "config.json")))
        weights = tensors.load(os.path.join(args.exported, "model.safetensors"))
    else:
        ck = torch.load(os.path.join(args.run, args.name + ".pt"))
        cfg, weights = ck["config"], {n: tensors.as_bf16(t) for n, t in ck["average"].items()}
    return drafter_module.Drafter(cfg, weights, target.embedding, target.head)


def blocks(model, seq, anchors):
    """One text: hidden [A, g, d] of the blocks at these anchors (positions in the text)."""
    n = len(seq["ids"])
    pos = torch.arange(n).unsqueeze(0)
    ids = torch.tensor(seq["ids"])
    at = torch.tensor(anchors)
    allowed = (torch.arange(n) < at.unsqueeze(1)).unsqueeze(0)
    ctx = model.context(seq["taps"].unsqueeze(0), pos)
    return model.block(ctx, allowed, ids[at].unsqueeze(0), at.unsqueeze(0))[0]


@torch.no_grad()
def judge(model, target, seq, rng):
    """Everything about one text: per anchor and row z, what each rule keeps, per anchor the mean
    entropy of the target over its block, and for every fourth anchor 1 - TV."""
    ids, n, g = seq["ids"], len(seq["ids"]), model.gamma
    begin, t = seq["prompt"], seq["temperature"]
    anchors = list(range(begin, n - 1))
    h = blocks(model, seq, anchors)
    step = torch.tensor(anchors).unsqueeze(1) + torch.arange(g)
    valid = step + 1 < n
    prev = torch.tensor(ids)[step.clamp(max=n - 1)]
    z = model.confidence(h, prev).numpy()
    u = model.logits(h, prev)                                 # [A, g, V]
    x = seq["hidden"] @ target.head.t()                       # [n, V]
    label = torch.tensor(ids)[(step + 1).clamp(max=n - 1)]
    row = step.clamp(max=n - 1)
    keep, out = {}, {"z": z, "anchors": anchors, "valid": valid.numpy()}
    if t == 0.0:
        keep["greedy"] = (u.argmax(-1) == label).numpy()
        agree = x[begin - 1:n - 1].argmax(-1).numpy() == np.array(ids[begin:])
        scale = 1.0
    else:
        g_noise = torch.from_numpy(accept.noise(seq["seed"], range(n + g + 1), model.head.shape[0]))
        pick = (u / t + g_noise.float()[step + 1]).argmax(-1)
        keep["coupled"] = (pick == label).numpy()
        again = (x[begin - 1:n - 1].double() / t + g_noise[begin:n]).argmax(-1).numpy()
        agree, scale = again == np.array(ids[begin:]), t
    logp = (x / scale).log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    out["entropy"] = ((entropy[row] * valid).sum(1) / valid.sum(1)).numpy()
    if t > 0:
        logq = (u / scale).log_softmax(-1)
        py = logp[row].gather(2, label.unsqueeze(2)).squeeze(2).exp().double().numpy()
        qy = logq.gather(2, label.unsqueeze(2)).squeeze(2).exp().double().numpy()
        draw = rng.random(py.shape)
        keep["rejection"] = draw < accept.rejection(py, qy)
        keep["block"] = draw < accept.block(py, qy)
        part = slice(0, None, 4)        # enough positions for a mean
        tv = 1 - 0.5 * (logq[part].exp() - logp[row[part]].exp()).abs().sum(-1)
        out["tv"] = tv[valid[part].all(1)].numpy()
    out.update(keep=keep, agree=agree)
    return out


def rounds_of(judged, seq, rule, gamma):
    """-> z [R, g], kept [R], room [R], entropy [R] of the rounds walked"""
    begin, n = seq["prompt"], len(seq["ids"])
    keep = np.zeros((n, gamma), bool)
    keep[begin:n - 1] = judged["keep"][rule] & judged["valid"]
    rounds = accept.walk(keep, begin, n, gamma)
    at = [r[0] - begin for r in rounds]
    return (judged["z"][at], np.array([r[2] for r in rounds]), np.array([r[1] for r in rounds]),
            judged["entropy"][at])


def by_position(kept, room, gamma):
    """Acceptance of draft k given that those before it were kept."""
    out = []
    for k in range(gamma):
        tried = (kept >= k) & (room > k)
        out.append(float((kept[tried] > k).mean()) if tried.any() else float("nan"))
    return out


def calibration(z, kept, room, temps, biases):
    """Mean over k of the calibration error of survivals, predicted / observed length, AUC."""
    s = accept.survival(z, temps, biases)
    errors = [accept.ece(s[room > k][:, k], kept[room > k] > k) for k in range(z.shape[1])
              if (room > k).any()]
    whole = room == z.shape[1]
    tried = [(kept >= k) & (room > k) for k in range(z.shape[1])]
    row = z / np.asarray(temps) + np.asarray(biases)
    score = np.concatenate([row[m][:, k] for k, m in enumerate(tried)])
    hit = np.concatenate([kept[m] > k for k, m in enumerate(tried)])
    return {"ece": float(np.mean(errors)), "auc": accept.auc(score, hit),
            "predicted": 1 + float(s[whole].sum(1).mean()),
            "observed": 1 + float(kept[whole].mean())}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--run", required=True)
    ap.add_argument("--name", default="draft")
    ap.add_argument("--exported", default="")
    ap.add_argument("--model", default="tests/models/k3-tiny")
    ap.add_argument("--split", default="test")
    ap.add_argument("--at", default="", help="temperatures, default 0,0.8")
    ap.add_argument("--limit", default="40", help="texts per domain, one number for each of --at")
    ap.add_argument("--fit", action="store_true", help="also fit temperatures and biases")
    ap.add_argument("--calibrated", default="", help="the file an evaluation with --fit wrote")
    ap.add_argument("--again", action="store_true", help="tables of the last run's rounds")
    args = ap.parse_args()
    torch.set_num_threads(1)
    blas.check()
    target = target_module.Target(args.model)
    model = open_drafter(args, target)
    kept_path = written(args) + ".rounds.pt"
    if args.again:
        found, agree, offline = torch.load(kept_path)
    else:
        found, agree, offline = judge_all(args, target, model)
        torch.save((found, agree, offline), kept_path)
    tabulate(args, model, found, agree, offline)


def written(args):
    """What the files of this evaluation begin with."""
    return os.path.join(args.run, "%s.%s%s" % (args.name, args.split, "." + args.at if args.at else ""))


def limits(args):
    """-> (temperature, texts) pairs"""
    at, most = (args.at or "0,0.8").split(","), args.limit.split(",")
    return [(float(t), int(n)) for t, n in zip(at, most * len(at) if len(most) == 1 else most)]


def by_entropy(kept, room, entropy):
    """Rounds of whole blocks in each band of entropy, and their tokens a round."""
    whole, out = room == room.max(), []
    for low, high in zip(BANDS, BANDS[1:] + (np.inf,)):
        use = whole & (entropy >= low) & (entropy < high)
        out.append({"from": low, "rounds": int(use.sum()),
                    "tokens_per_round": float(kept[use].mean() + 1) if use.any() else float("nan")})
    return out


def judge_all(args, target, model):
    """-> rounds by (domain, rule), equality of picks, lengths expected from 1 - TV by domain"""
    g = model.gamma
    rows, _ = prepare.answers(args.run, args.split)
    rng = np.random.default_rng(11)
    found, agree, offline = {}, [], {}
    for domain in ("fiction", "code", "json"):
        for t, most in limits(args):
            rules = CLASSES[1:] if t > 0 else CLASSES[:1]
            part = [r for r in rows if r["domain"] == domain and r["temperature"] == t]
            part = sorted(part[:most * (3 if domain == "json" else 1)], key=lambda r: len(r["ids"]))
            prepare.run_target(target, part, model.cfg["target_layer_ids"])
            for seq in part:
                judged = judge(model, target, seq, rng)
                agree.append(judged["agree"])
                if t > 0:
                    offline.setdefault(domain, []).append(judged["tv"].cumprod(1).sum(1))
                for rule in rules:
                    found.setdefault((domain, rule), []).append(rounds_of(judged, seq, rule, g))
                del seq["taps"], seq["hidden"]
    return found, agree, offline


def tabulate(args, model, found, agree, offline):
    """Prints the tables and writes RUN/NAME.SPLIT.json."""
    g = model.gamma
    report = {"split": args.split, "gamma": g, "rules": {}, "offline_tau": {},
              "same_pick": float(np.concatenate(agree).mean()), "picks": int(sum(map(len, agree)))}
    print("target's picks equal to the server's: %.5f of %d" % (report["same_pick"], report["picks"]))
    for domain, x in offline.items():
        report["offline_tau"][domain] = 1 + float(np.concatenate(x).mean())
    join = lambda keys: [np.concatenate([r[i] for k in keys for r in found[k]]) for i in range(4)]
    temps = dict(model.cfg.get("sts_temperatures", {}))
    biases = dict(model.cfg.get("sts_biases", {}))
    if args.calibrated:
        with open(args.calibrated) as f:
            fitted = json.load(f)
        temps, biases = [fitted[k] for k in ("temperatures", "biases")]
    for rule in CLASSES:
        keys = [k for k in found if k[1] == rule]
        if not keys:
            continue
        if args.fit:
            temps[rule], biases[rule] = accept.fit(*join(keys)[:3])
        for key in keys + [("all", rule)]:
            z, kept, room, entropy = join(keys if key[0] == "all" else [key])
            entry = {"rounds": len(kept), "tokens_per_round": float(np.minimum(kept + 1, room).mean()),
                     "by_position": by_position(kept, room, g), "entropy": float(entropy.mean()),
                     "by_entropy": by_entropy(kept, room, entropy),
                     "raw": calibration(z, kept, room, [1.0] * g, [0.0] * g)}
            if rule in temps:
                entry["scaled"] = calibration(z, kept, room, temps[rule],
                                              biases.get(rule, [0.0] * g))
            report["rules"]["%s/%s" % key] = entry
            c = entry.get("scaled", entry["raw"])
            print("%-8s %-10s %6d rounds %5.2f  %s  ece %.3f -> %.3f  auc %.2f  predicted %.2f of %.2f"
                  % (key[0], rule, entry["rounds"], entry["tokens_per_round"],
                     " ".join("%.2f" % x for x in entry["by_position"]), entry["raw"]["ece"],
                     c["ece"], c["auc"], c["predicted"], c["observed"]), flush=True)
    report["temperatures"], report["biases"] = temps, biases
    print("offline tau", report["offline_tau"], "temperatures", temps, "biases", biases)
    with open(written(args) + ".json", "w") as f:
        json.dump(report, f, indent=1)


if __name__ == "__main__":
    main()
