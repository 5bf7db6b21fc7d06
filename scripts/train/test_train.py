#!/usr/bin/python3
"""Tests of the drafter's training code on tiny sizes; exit code 77 (skipped) without torch."""
import itertools
import json
import os
import sys
import tempfile
import unittest

try:
    import numpy as np
    import torch
except ImportError as e:
    print("skipped: %s" % e)
    sys.exit(77)

import accept
import data
import drafter as drafter_module
import evaluate
import target as target_module
import tensors
import train

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = os.path.join(ROOT, "tests", "models", "k3-tiny")
DRAFT = os.path.join(ROOT, "tests", "models", "k3-tiny-dspark")
GOLDEN = os.path.join(ROOT, "tests", "golden")


class Toy:
    """Enough of a target for a drafter: sizes, an embedding and a head."""

    def __init__(self, vocab=24, width=16):
        g = torch.Generator().manual_seed(3)
        self.cfg = {"vocab_size": vocab, "hidden_size": width, "q_lora_rank": 8, "kv_lora_rank": 8,
                    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
                    "rms_norm_eps": 1e-5, "num_hidden_layers": 4, "bos_token_id": 0,
                    "eos_token_id": 1, "pad_token_id": 2}
        self.embedding = torch.randn(vocab, width, generator=g)
        self.head = torch.randn(vocab, width, generator=g)


def toy_drafter(gamma=4, causal=None, seed=1):
    toy = Toy()
    cfg = drafter_module.config_for(toy, taps=(0, 2), gamma=gamma, heads=2, rank=6, inter=24,
                                    causal=causal)
    w = drafter_module.fresh(cfg, seed)
    g = torch.Generator().manual_seed(seed + 50)
    for name in w:                      # heads that start at zero would hide mistakes
        if name.startswith(("markov", "confidence")):
            w[name] = torch.randn(w[name].shape, generator=g) * 0.3
    return drafter_module.Drafter(cfg, w, toy.embedding, toy.head)


def toy_texts(lengths, seed=7):
    g = torch.Generator().manual_seed(seed)
    return [{"ids": torch.randint(3, 20, (n,), generator=g).short(), "prompt": 3,
             "taps": torch.randn(n, 32, generator=g).half(),
             "hidden": torch.randn(n, 16, generator=g).half()} for n in lengths]


def alone(model, seq, anchor, rows=None):
    """The path of serving: one document, one anchor, context rows before it and nothing else."""
    ids = seq["ids"].long()
    ctx = model.context(seq["taps"][:anchor].float().unsqueeze(0),
                        torch.arange(anchor).unsqueeze(0))
    return model.block(ctx, torch.ones(1, 1, anchor, dtype=torch.bool),
                       ids[anchor].view(1, 1), torch.tensor([[anchor]]), rows)[0, 0]


class Rows(unittest.TestCase):
    def setUp(self):
        self.seqs = toy_texts([13, 9, 17, 11])
        rows = data.pack([len(s["ids"]) for s in self.seqs], 30, [2, 0, 3, 1])
        self.assertEqual(rows, [[2, 0], [3, 1]])
        self.starts = {2: (0, 0), 0: (0, 17), 3: (1, 0), 1: (1, 11)}
        g = torch.Generator().manual_seed(1)
        self.b = data.batch(self.seqs, rows, 12, 4, g)

    def each(self):
        for r in range(2):
            for a in range(12):
                doc = int(self.b["doc"][r, a])
                yield r, a, doc, int(self.b["anchor"][r, a]) - self.starts[doc][1]

    def test_row_0_is_labelled_with_the_token_after_the_anchor(self):
        for r, a, doc, at in self.each():
            ids = self.seqs[doc]["ids"].long()
            self.assertEqual(int(self.b["anchor_ids"][r, a]), int(ids[at]))
            self.assertEqual(int(self.b["anchor_pos"][r, a]), at)
            for k in range(4):
                self.assertEqual(bool(self.b["valid"][r, a, k]), at + k + 1 < len(ids))
                if self.b["valid"][r, a, k]:
                    self.assertEqual(int(self.b["label"][r, a, k]), int(ids[at + k + 1]))
                    self.assertEqual(int(self.b["prev"][r, a, k]), int(ids[at + k]))
                    self.assertTrue(torch.equal(self.b["hidden"][r, a, k],
                                                self.seqs[doc]["hidden"][at + k].float()))

    def test_anchors_lie_in_answers_from_the_last_prompt_token_on(self):
        for r, a, doc, at in self.each():
            self.assertGreaterEqual(at, self.seqs[doc]["prompt"] - 1)
            self.assertLess(at, len(self.seqs[doc]["ids"]) - 1)

    def test_a_packed_block_equals_the_serving_path(self):
        model = toy_drafter(causal=[False, True])
        h = model.block(model.context(self.b["taps"], self.b["pos"]), self.b["allowed"],
                        self.b["anchor_ids"], self.b["anchor_pos"])
        for r, a, doc, at in self.each():
            want = alone(model, self.seqs[doc], at)
            prev = self.b["prev"][r, a]
            gap = (model.logits(h[r, a], prev) - model.logits(want, prev)).abs().max()
            self.assertLess(float(gap), 1e-4)

    def test_the_context_ends_before_the_anchor(self):
        model = toy_drafter()
        seq = dict(self.seqs[2])
        ids = seq["ids"].long()
        allowed = (torch.arange(17) < 8).view(1, 1, 17)

        def block(taps):
            ctx = model.context(taps.float().unsqueeze(0), torch.arange(17).unsqueeze(0))
            return model.block(ctx, allowed, ids[8].view(1, 1), torch.tensor([[8]]))
        base, taps = block(seq["taps"]), seq["taps"].clone()
        taps[8:] += 1
        self.assertTrue(torch.equal(block(taps), base))
        taps[7] += 1
        self.assertGreater(float((block(taps) - base).abs().max()), 1e-3)

    def test_positions_count(self):
        model = toy_drafter()
        seq, ids = self.seqs[2], self.seqs[2]["ids"].long()
        ctx = model.context(seq["taps"][:8].float().unsqueeze(0), torch.arange(8).unsqueeze(0))
        all_of = torch.ones(1, 1, 8, dtype=torch.bool)
        block = lambda at: model.block(ctx, all_of, ids[8].view(1, 1), torch.tensor([[at]]))
        self.assertGreater(float((block(7) - block(8)).abs().max()), 1e-3)
        # RoPE is relative: everything one further gives the same rows
        moved = model.context(seq["taps"][:8].float().unsqueeze(0),
                              torch.arange(1, 9).unsqueeze(0))
        same = model.block(moved, all_of, ids[8].view(1, 1), torch.tensor([[9]]))
        self.assertLess(float((same - block(8)).abs().max()), 1e-4)

    def test_causal_rows_do_not_see_later_ones_and_open_rows_do(self):
        for causal, same in (([True, True], True), ([False, True], False)):
            model = toy_drafter(causal=causal)
            whole = alone(model, self.seqs[2], 8)
            short = alone(model, self.seqs[2], 8, rows=2)
            gap = float((whole[:2] - short).abs().max())
            self.assertEqual(gap < 1e-5, same)

    def test_every_row_and_its_predecessor_make_the_drafts(self):
        model = toy_drafter()
        h = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(2))
        base = model.greedy(h, torch.tensor([5]))
        self.assertEqual(base.shape, (1, 4))
        for j in range(4):
            other = h.clone()
            other[0, j] = -3 * other[0, j]
            self.assertNotEqual(int(model.greedy(other, torch.tensor([5]))[0, j]), int(base[0, j]))
        first = {int(model.greedy(h * 0.01, torch.tensor([t]))[0, 0]) for t in range(24)}
        self.assertGreater(len(first), 3)


class Learning(unittest.TestCase):
    def test_a_drafter_learns_to_count_and_shifted_rows_are_wrong(self):
        toy = Toy()
        cfg = drafter_module.config_for(toy, taps=(0, 2), gamma=4, heads=2, rank=6, inter=24)
        w = {n: t.requires_grad_() for n, t in drafter_module.fresh(cfg, 1).items()}
        model = drafter_module.Drafter(cfg, w, toy.embedding, toy.head)
        step_of = lambda n: [(3 + (5 * n + i) * 7) % 20 + 3 for i in range(40)]
        seqs = []
        for n in range(16):
            ids = torch.tensor(step_of(n))
            after = torch.cat([ids[1:], ids[:1]])
            seqs.append({"ids": ids.short(), "prompt": 2, "hidden": toy.head[after].half(),
                         "taps": torch.cat([toy.embedding[ids]] * 2, 1).half()})
        opt = torch.optim.AdamW(list(w.values()), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
        g = torch.Generator().manual_seed(4)
        rows = data.pack([40] * 16, 80, range(16))
        for step in range(160):
            b = data.batch(seqs, rows[step % 4 * 2:][:2], 12, 4, g)
            h = model.block(model.context(b["taps"], b["pos"]), b["allowed"], b["anchor_ids"],
                            b["anchor_pos"])
            loss, kept, _ = train.losses(model, h, b)
            opt.zero_grad()
            loss.backward()
            opt.step()
        length, _ = train.tau(kept, b["valid"])
        self.assertGreater(length, 4.5)
        with torch.no_grad():
            right = shifted = 0
            for n in range(4):
                ids = seqs[n]["ids"].long()
                for at in range(3, 30, 4):
                    drafts = model.greedy(alone(model, seqs[n], at).unsqueeze(0), ids[at:at + 1])[0]
                    right += int((drafts == ids[at + 1:at + 5]).sum())
                    shifted += int((drafts[1:] == ids[at + 1:at + 4]).sum())
        self.assertGreater(right, 100)           # of 112
        self.assertLess(shifted, 20)             # of 84: a port that drops row 0

    def test_resumed_averages_and_rates_are_functions_of_the_step(self):
        class Args:
            lr, warmup, cooldown, steps, minutes = 1.0, 10, 20, 100, 0
        self.assertAlmostEqual(train.rate(0, 0, 0, Args), 0.1)
        self.assertAlmostEqual(train.rate(50, 0, 0, Args), 1.0)
        self.assertAlmostEqual(train.rate(90, 0, 0, Args), 0.5)
        self.assertGreater(train.rate(99, 0, 0, Args), 0)
        Args.minutes = 60          # by the clock: warm-up from where it resumed, last third cools
        self.assertAlmostEqual(train.rate(704, 700, 0.1, Args), 0.5)
        self.assertAlmostEqual(train.rate(900, 700, 0.5, Args), 1.0)
        self.assertAlmostEqual(train.rate(900, 700, 5 / 6, Args), 0.5)
        self.assertAlmostEqual(train.rate(900, 700, 1.1, Args), 0.02)


def chain(seed, vocab, depth):
    """Random conditional distributions p, q: prefix -> [vocab]."""
    rng = np.random.default_rng(seed)
    out = {}
    for n in range(depth + 1):
        for prefix in itertools.product(range(vocab), repeat=n):
            out[prefix] = rng.dirichlet([0.6] * vocab), rng.dirichlet([0.6] * vocab)
    return out


class Acceptance(unittest.TestCase):
    def along_text(self, rule, c, vocab, depth):
        """P(at least i drafts kept), i = 1..depth, by the formulas of accept.py."""
        out = np.zeros(depth)
        for y in itertools.product(range(vocab), repeat=depth):
            py = np.array([c[y[:k]][0][y[k]] for k in range(depth)])
            qy = np.array([c[y[:k]][1][y[k]] for k in range(depth)])
            out += py.prod() * np.cumprod(rule(py, qy))
        return out

    def test_rejection_equals_drawing_drafts(self):
        vocab, depth = 3, 3
        c = chain(5, vocab, depth)
        want = np.zeros(depth)
        for x in itertools.product(range(vocab), repeat=depth):
            p = np.array([c[x[:k]][0][x[k]] for k in range(depth)])
            q = np.array([c[x[:k]][1][x[k]] for k in range(depth)])
            want += q.prod() * np.cumprod(np.minimum(1, p / q))
        np.testing.assert_allclose(self.along_text(accept.rejection, c, vocab, depth), want)

    def test_block_equals_drawing_drafts(self):
        vocab, depth = 3, 3
        c = chain(6, vocab, depth)
        want = np.zeros(depth)
        for x in itertools.product(range(vocab), repeat=depth):
            ratio, thresholds, weight = 1.0, [], 1.0
            for i in range(1, depth + 1):
                p, q = c[x[:i - 1]]
                ratio = min(ratio * p[x[i - 1]] / q[x[i - 1]], 1)
                weight *= q[x[i - 1]]
                nextp, nextq = c[x[:i]]
                mass = np.maximum(ratio * nextp - nextq, 0).sum()
                thresholds.append(ratio if i == depth else mass / max(mass + 1 - ratio, 1e-300))
            left = 1.0
            for i in range(depth, 0, -1):     # the largest i whose draw passes
                want[:i] += weight * left * thresholds[i - 1]
                left *= 1 - thresholds[i - 1]
        got = self.along_text(accept.block, c, vocab, depth)
        np.testing.assert_allclose(got, want)
        self.assertTrue((got >= self.along_text(accept.rejection, c, vocab, depth) - 1e-12).all())

    def test_noise_is_gumbel_and_depends_on_seed_position_and_token_only(self):
        x = accept.noise(9, range(200), 500)
        self.assertAlmostEqual(float(x.mean()), 0.5772, delta=0.02)
        self.assertAlmostEqual(float(x.var()), np.pi ** 2 / 6, delta=0.03)
        np.testing.assert_array_equal(accept.noise(9, [17], 40)[0], x[17, :40])
        self.assertNotEqual(accept.noise(10, [17], 1)[0, 0], x[17, 0])

    def test_walks_take_one_token_more_than_was_kept(self):
        keep = np.array([[1, 1, 0]] * 20, bool)
        self.assertEqual(accept.walk(keep, 2, 12, 3), [(2, 3, 2), (5, 3, 2), (8, 3, 2)])
        keep = np.ones((20, 3), bool)
        self.assertEqual(accept.walk(keep, 2, 9, 3), [(2, 3, 3), (6, 2, 2)])

    def test_temperatures_and_biases_are_found_again(self):
        rng = np.random.default_rng(2)
        want, shift = [2.0, 1.0, 0.5], [-0.8, 0.4, 0.0]
        z = rng.normal(0.5, 2.0, (20000, 3))
        alive = rng.random((20000, 3)) < 1 / (1 + np.exp(-z / want - shift))
        kept = np.cumprod(alive, 1).sum(1)
        room = np.full(20000, 3)
        temps, biases = accept.fit(z, kept, room)
        for k in range(3):
            self.assertLess(abs(np.log(temps[k] / want[k])), 0.15)
            self.assertLess(abs(biases[k] - shift[k]), 0.15)
        s = accept.survival(z, temps, biases)
        raw = accept.survival(z, [1.0] * 3, [0.0] * 3)
        for k in range(3):
            self.assertLess(accept.ece(s[:, k], kept > k), accept.ece(raw[:, k], kept > k) / 2)
        self.assertLess(abs(s.sum() / kept.sum() - 1), 0.02)       # and lengths come out right
        self.assertGreater(accept.auc(z[:, 0], kept > 0), 0.7)

    def test_rows_few_rounds_came_to_stay_near_the_row_before(self):
        rng = np.random.default_rng(3)
        z = rng.normal(0.0, 1.0, (4000, 3))
        kept = (rng.random(4000) < 1 / (1 + np.exp(-z[:, 0] + 1.0))).astype(int)
        kept[np.flatnonzero(kept)[:3]] = 2              # row 2: 3 of some thousand; row 3: none came
        room = np.full(4000, 3)
        room[kept == 2] = 2
        temps, biases = accept.fit(z, kept, room)
        self.assertLess(abs(biases[0] + 1.0), 0.2)
        self.assertLess(biases[1], -3.0)
        self.assertEqual((temps[2], biases[2]), (temps[1], biases[1]))


class Tables(unittest.TestCase):
    def test_rounds_are_sorted_by_entropy_and_short_ones_left_out(self):
        kept, room = np.array([7, 5, 1, 0, 2]), np.array([7, 7, 7, 7, 3])
        bands = evaluate.by_entropy(kept, room, np.array([0.1, 0.5, 3.5, 9.0, 0.2]))
        self.assertEqual([b["rounds"] for b in bands], [1, 1, 0, 0, 2])
        self.assertEqual([b["tokens_per_round"] for b in bands if b["rounds"]], [8.0, 6.0, 1.5])

    def test_each_temperature_has_its_limit(self):
        class Args:
            at, limit = "0,0.8,1", "3"
        self.assertEqual(evaluate.limits(Args), [(0.0, 3), (0.8, 3), (1.0, 3)])
        Args.limit = "3,2,1"
        self.assertEqual(evaluate.limits(Args), [(0.0, 3), (0.8, 2), (1.0, 1)])


class Files(unittest.TestCase):
    def test_safetensors_round_trip(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "x.safetensors")
            a = {"a": torch.randn(3, 5), "b": torch.arange(4, dtype=torch.int32)}
            tensors.save(path, a, metadata={"k": 1})
            back = tensors.load(path)
            self.assertTrue(torch.equal(a["a"], back["a"]) and torch.equal(a["b"], back["b"]))
            tensors.save(path, a, bf16=True)
            self.assertTrue(torch.equal(tensors.as_bf16(a["a"]), tensors.load(path)["a"]))

    def test_taps_equal_the_golden_trace(self):
        target = target_module.Target(MODEL)
        trace = tensors.load(os.path.join(GOLDEN, "trace.safetensors"))
        with open(os.path.join(GOLDEN, "trace.json")) as f:
            ids = json.load(f)["ids"]
        hidden, taps = target.forward(torch.tensor([ids]), (1, 2, 4, 6))
        for n, layer in enumerate((1, 2, 4, 6)):
            want = trace["layers.%d.attn_res.out" % (layer + 1)]
            gap = (taps[0, :, n * 192:(n + 1) * 192] - want).abs().max()
            self.assertLess(float(gap), 2e-5)
        gap = (hidden[0] @ target.head.t() - trace["final.logits"]).abs().max()
        self.assertLess(float(gap), 1e-4)


@unittest.skipUnless(os.path.exists(os.path.join(DRAFT, "config.json")), "no exported drafter")
class Exported(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(DRAFT, "config.json")) as f:
            cls.cfg = json.load(f)
        cls.target = target_module.Target(MODEL)
        cls.w = tensors.load(os.path.join(DRAFT, "model.safetensors"))
        cls.model = drafter_module.Drafter(cls.cfg, cls.w, cls.target.embedding, cls.target.head)
        cls.fixed = tensors.load(os.path.join(DRAFT, "parity.safetensors"))
        with open(os.path.join(DRAFT, "parity.json")) as f:
            cls.texts = json.load(f)["transcripts"]

    def test_shapes_sizes_and_the_target_are_what_the_config_says(self):
        self.assertEqual({n: tuple(t.shape) for n, t in self.w.items()},
                         drafter_module.shapes(self.cfg))
        self.assertEqual(self.cfg["target_sha256"],
                         tensors.sha256(os.path.join(MODEL, "model.safetensors")))
        size = sum(os.path.getsize(os.path.join(DRAFT, f)) for f in os.listdir(DRAFT))
        self.assertLess(size, 6e6)
        for rule in ("greedy", "coupled", "rejection", "block"):
            for key in ("sts_temperatures", "sts_biases"):
                self.assertEqual(len(self.cfg[key][rule]), self.cfg["block_size"])

    def test_fixtures_are_reproduced(self):
        for name in ("fiction", "code", "json"):
            get = lambda key: self.fixed["%s.%s" % (name, key)]
            ids = get("ids").long().unsqueeze(0)
            n, anchors = ids.shape[1], get("anchors").long()
            _, taps = self.target.forward(ids, self.cfg["target_layer_ids"])
            self.assertLess(float((taps[0, -8:] - get("taps")).abs().max()), 1e-4)
            ctx = self.model.context(taps, torch.arange(n).unsqueeze(0))
            allowed = (torch.arange(n) < anchors.unsqueeze(1)).unsqueeze(0)
            h = self.model.block(ctx, allowed, ids[:, anchors], anchors.unsqueeze(0))[0]
            self.assertLess(float((h - get("hidden")).abs().max()), 2e-4)
            drafts = self.model.greedy(h, ids[0, anchors])
            self.assertTrue(torch.equal(drafts, get("drafts").long()))
            prev = torch.cat([ids[0, anchors].unsqueeze(1), drafts[:, :-1]], 1)
            self.assertLess(float((self.model.confidence(h, prev) - get("z")).abs().max()), 1e-3)
            self.assertLess(float((self.model.logits(h, prev)[-1] - get("logits_last")).abs().max()),
                            1e-3)

    def rows_of(self, name, layers=0, tokens=0, at=0):
        """Hidden rows of a fixture's blocks but the first, with a mistake: taps so many layers later,
        each token with the features of the one so many before it, blocks so many positions later."""
        ids = self.fixed[name + ".ids"].long().unsqueeze(0)
        n, anchors = ids.shape[1], self.fixed[name + ".anchors"].long()[1:]
        last = self.cfg["target_num_hidden_layers"] - 2
        _, taps = self.target.forward(ids, [min(i + layers, last)
                                            for i in self.cfg["target_layer_ids"]])
        taps = torch.cat([taps[:, :tokens], taps[:, :n - tokens]], 1)
        ctx = self.model.context(taps, torch.arange(n).unsqueeze(0))
        allowed = (torch.arange(n) < anchors.unsqueeze(1)).unsqueeze(0)
        return self.model.block(ctx, allowed, ids[:, anchors], anchors.unsqueeze(0) + at)[0]

    def test_a_shift_by_one_of_taps_positions_or_rows_is_far_from_the_fixtures(self):
        for name in ("fiction", "code", "json"):
            want = self.fixed[name + ".hidden"][1:]
            off = lambda **how: float((self.rows_of(name, **how) - want).abs().max())
            self.assertLess(off(), 2e-4)
            for how in ({"layers": -1}, {"layers": 1}, {"tokens": 1}, {"at": -1}, {"at": 1}):
                self.assertGreater(off(**how), 0.1, (name, how))
            rows = self.rows_of(name)
            self.assertGreater(float((rows[:, 1:] - want[:, :-1]).abs().max()), 0.1)

    def test_rounds_of_the_transcripts_are_reproduced(self):
        for text in self.texts:
            ids = text["prompt"] + text["greedy"]
            seq = {"ids": torch.tensor(ids).short(), "prompt": len(text["prompt"])}
            _, taps = self.target.forward(torch.tensor([ids]), self.cfg["target_layer_ids"])
            seq["taps"] = taps[0]
            for r in text["rounds"][:4]:
                h = alone(self.model, seq, r["anchor"]).unsqueeze(0)
                drafts = self.model.greedy(h, torch.tensor([ids[r["anchor"]]]))[0].tolist()
                self.assertEqual(drafts, r["drafts"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
