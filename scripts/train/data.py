"""Shards of prepare.py, packed into rows with document ids.

A shard is a list of {"ids" int16 [T], "taps" [T, m * d], "hidden" [T, d] (both half), "prompt" (its
length), "domain", "temperature", "seed", "id"}.
"""
import glob
import os

import torch


def load(run):
    out = []
    for path in sorted(glob.glob(os.path.join(run, "shards", "*.pt"))):
        out += torch.load(path)
    return out


def pack(lengths, width, order):
    """Sequences in `order` into rows of at most `width` tokens. -> list of lists of indices"""
    rows, row, used = [], [], 0
    for i in order:
        if used + lengths[i] > width:
            rows.append(row)
            row, used = [], 0
        row.append(i)
        used += lengths[i]
    if row:
        rows.append(row)
    return rows


def batch(seqs, rows, n_anchors, gamma, generator):
    """Tensors of one step.

    doc [B, S] document of each slot (-1: padding), pos [B, S] position in its document, ids, taps,
    hidden likewise; anchor [B, A] slots; allowed [B, A, S] context of an anchor: its document,
    strictly before it. For row j of anchor a: prev = token of slot a + j, label = token of
    slot a + j + 1, target hidden of slot a + j; valid while the label is in the document.
    Anchors start at the last prompt token, one before the first position that serving drafts from.
    """
    width = max(sum(len(seqs[i]["ids"]) for i in row) for row in rows)
    b = len(rows)
    m, d = seqs[0]["taps"].shape[1], seqs[0]["hidden"].shape[1]
    ids = torch.zeros(b, width, dtype=torch.long)
    doc, pos = torch.full((b, width), -1), torch.zeros(b, width, dtype=torch.long)
    taps, hidden = torch.zeros(b, width, m), torch.zeros(b, width, d)
    end, may = torch.zeros(b, width, dtype=torch.long), torch.zeros(b, width)
    for r, row in enumerate(rows):
        at = 0
        for i in row:
            s, n = seqs[i], len(seqs[i]["ids"])
            ids[r, at:at + n] = s["ids"].long()
            doc[r, at:at + n], pos[r, at:at + n] = i, torch.arange(n)
            taps[r, at:at + n], hidden[r, at:at + n] = s["taps"].float(), s["hidden"].float()
            end[r, at:at + n] = at + n
            may[r, at + max(0, s["prompt"] - 1):at + n - 1] = 1
            at += n
    anchor = torch.multinomial(may + 1e-12, n_anchors, generator=generator).sort(1)[0]
    line = torch.arange(b).unsqueeze(1)
    real = may[line, anchor] > 0
    slot = torch.arange(width)
    allowed = (doc.unsqueeze(1) == doc[line, anchor].unsqueeze(2)) & \
        (slot < anchor.unsqueeze(2))
    step = anchor.unsqueeze(2) + torch.arange(gamma)
    valid = (step + 1 < end[line, anchor].unsqueeze(2)) & real.unsqueeze(2)
    line3, inside = line.unsqueeze(2), lambda x: x.clamp(max=width - 1)
    return {"ids": ids, "pos": pos, "taps": taps, "anchor": anchor, "allowed": allowed,
            "anchor_ids": ids[line, anchor], "anchor_pos": pos[line, anchor], "valid": valid,
            "prev": ids[line3, inside(step)], "label": ids[line3, inside(step + 1)],
            "hidden": hidden[line3, inside(step)], "doc": doc[line, anchor]}
