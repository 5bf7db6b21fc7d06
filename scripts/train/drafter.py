"""The DSpark drafter in PyTorch, with the tensor names of its checkpoint.

A block has gamma rows: the anchor (last committed token, at its true position n) and gamma - 1 mask
tokens at n + 1 .. n + gamma - 1. Row j predicts the token of position n + j + 1, so gamma rows make
gamma drafts. Context rows come from taps of the target at positions < n; the anchor's own taps do
not exist yet when it is drafted from.
"""
import math

import torch
import torch.nn.functional as F


def config_for(target, taps=(2, 4, 6), gamma=7, layers=2, heads=6, rank=64, inter=512,
               causal=None, mask_token=None):
    """config.json of a drafter for `target` (target.Target)."""
    c = target.cfg
    v = c["vocab_size"]
    return {
        "architectures": ["K3DSparkModel"], "model_type": "k3_dspark",
        "hidden_size": c["hidden_size"], "intermediate_size": inter,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "q_lora_rank": c["q_lora_rank"], "kv_lora_rank": c["kv_lora_rank"],
        "qk_nope_head_dim": c["qk_nope_head_dim"], "qk_rope_head_dim": c["qk_rope_head_dim"],
        "v_head_dim": c["v_head_dim"], "mla_use_nope": False, "mla_use_output_gate": False,
        "vocab_size": v, "draft_vocab_size": v, "rms_norm_eps": c["rms_norm_eps"],
        "max_position_embeddings": c.get("max_position_embeddings", 65536),
        "rope_theta": 10000.0, "rope_interleave": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "num_target_layers": len(taps), "target_hidden_size": c["hidden_size"],
        "target_num_hidden_layers": c["num_hidden_layers"], "target_layer_ids": list(taps),
        "mask_token_id": v - 3 if mask_token is None else mask_token,
        "bos_token_id": c["bos_token_id"], "eos_token_id": c["eos_token_id"],
        "pad_token_id": c["pad_token_id"], "markov_rank": rank, "markov_head_type": "vanilla",
        "enable_confidence_head": True, "confidence_head_with_markov": True,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "block_size": gamma, "causal": list(causal or [True] * layers),
        "aux_hidden_stream": "attn_res", "tap_convention": "after_layer",
    }


def shapes(c):
    """Tensor name -> shape."""
    d, h = c["hidden_size"], c["num_attention_heads"]
    qk = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    r, v = c["kv_lora_rank"], c["vocab_size"]
    out = {"context_proj.weight": (d, c["num_target_layers"] * c["target_hidden_size"]),
           "context_norm.weight": (d,), "final_norm.weight": (d,),
           "markov_head.markov_w1.weight": (v, c["markov_rank"]),
           "markov_head.markov_w2.weight": (v, c["markov_rank"]),
           "confidence_head.proj.weight": (1, d + c["markov_rank"]),
           "confidence_head.proj.bias": (1,)}
    for n in range(c["num_hidden_layers"]):
        p, a = "layers.%d." % n, "layers.%d.self_attn." % n
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (d,)
        out[a + "q_a_proj.weight"] = (c["q_lora_rank"], d)
        out[a + "q_a_layernorm.weight"] = (c["q_lora_rank"],)
        out[a + "q_b_proj.weight"] = (h * qk, c["q_lora_rank"])
        out[a + "kv_a_proj_with_mqa.weight"] = (r + c["qk_rope_head_dim"], d)
        out[a + "kv_a_layernorm.weight"] = (r,)
        out[a + "kv_b_proj.weight"] = (h * (c["qk_nope_head_dim"] + c["v_head_dim"]), r)
        out[a + "o_proj.weight"] = (d, h * c["v_head_dim"])
        out[p + "mlp.gate_proj.weight"] = out[p + "mlp.up_proj.weight"] = (c["intermediate_size"], d)
        out[p + "mlp.down_proj.weight"] = (d, c["intermediate_size"])
    return out


def fresh(c, seed):
    """Starting weights."""
    g = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in sorted(shapes(c).items()):
        if "norm" in name:
            t = torch.ones(shape)
        elif name.endswith("markov_w2.weight") or name.startswith("confidence_head"):
            t = torch.zeros(shape)
        else:
            t = torch.randn(shape, generator=g) / math.sqrt(shape[-1])
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                t *= 0.5
        out[name] = t
    return out


def rms(x, w, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w


def rotate(x, pos, theta, interleave=True):
    """RoPE over the last axis of x [..., dim] at pos [...] (any integer dtype)."""
    dim = x.shape[-1]
    rate = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = pos.to(torch.float64).unsqueeze(-1) * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    if interleave:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    a, b = x[..., :dim // 2], x[..., dim // 2:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Drafter:
    def __init__(self, config, weights, embedding, head):
        """embedding, head: the target's [V, d], frozen."""
        self.cfg, self.w = config, weights
        self.embedding, self.head = embedding, head
        self.eps, self.gamma = config["rms_norm_eps"], config["block_size"]
        self.layers = config["num_hidden_layers"]

    def lin(self, x, name):
        return x @ self.w[name + ".weight"].t()

    def fuse(self, taps):
        """taps [..., m * d] -> context rows [..., d], the same for every layer."""
        return rms(self.lin(taps, "context_proj"), self.w["context_norm.weight"], self.eps)

    def latent(self, n, x, pos):
        """What layer n keeps of a row: (latent [..., r] after its norm, shared key [..., rope])."""
        c, a = self.cfg, "layers.%d.self_attn." % n
        kv = self.lin(x, a + "kv_a_proj_with_mqa")
        r = c["kv_lora_rank"]
        return (rms(kv[..., :r], self.w[a + "kv_a_layernorm.weight"], self.eps),
                rotate(kv[..., r:], pos, c["rope_theta"], c["rope_interleave"]))

    def context(self, taps, pos):
        """taps [B, S, m * d], pos [B, S] -> per layer (latent [B, S, r], key [B, S, rope])."""
        x = self.fuse(taps)
        return [self.latent(n, x, pos) for n in range(self.layers)]

    def keys(self, n, latent, shared):
        """-> k [..., heads, nope + rope], v [..., heads, vd]"""
        c, h = self.cfg, self.cfg["num_attention_heads"]
        no, vd = c["qk_nope_head_dim"], c["v_head_dim"]
        kvb = self.lin(latent, "layers.%d.self_attn.kv_b_proj" % n)
        kvb = kvb.view(*latent.shape[:-1], h, no + vd)
        shared = shared.unsqueeze(-2).expand(*shared.shape[:-1], h, shared.shape[-1])
        return torch.cat([kvb[..., :no], shared], -1), kvb[..., no:]

    def attend(self, n, x, pos, ctx, allowed):
        """x [B, A, g, d] normed block rows; allowed [B, A, S]: context an anchor may see."""
        c, a = self.cfg, "layers.%d.self_attn." % n
        b, na, g, _ = x.shape
        h, no, ro = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        q = rms(self.lin(x, a + "q_a_proj"), self.w[a + "q_a_layernorm.weight"], self.eps)
        q = self.lin(q, a + "q_b_proj").view(b, na, g, h, no + ro)
        q = torch.cat([q[..., :no], rotate(q[..., no:], pos.unsqueeze(-1), c["rope_theta"],
                                           c["rope_interleave"])], -1)
        ck, cv = self.keys(n, *ctx)                          # [B, S, h, .]
        bk, bv = self.keys(n, *self.latent(n, x, pos))       # [B, A, g, h, .]
        scale = (no + ro) ** -0.5
        s = ck.shape[1]
        qh = q.permute(0, 3, 1, 2, 4).reshape(b, h, na * g, no + ro)
        far = torch.matmul(qh, ck.permute(0, 2, 3, 1)).view(b, h, na, g, s)
        far = far.masked_fill(~allowed[:, None, :, None, :], float("-inf"))
        near = torch.matmul(q.permute(0, 3, 1, 2, 4), bk.permute(0, 3, 1, 4, 2))
        if c["causal"][n]:
            near = near.masked_fill(torch.ones(g, g, dtype=torch.bool).triu(1), float("-inf"))
        p = (torch.cat([far, near], -1) * scale).softmax(-1)
        out = torch.matmul(p[..., :s].reshape(b, h, na * g, s), cv.permute(0, 2, 1, 3))
        out = out.view(b, h, na, g, -1) + torch.matmul(p[..., s:], bv.permute(0, 3, 1, 2, 4))
        out = out.permute(0, 2, 3, 1, 4).reshape(b, na, g, -1)
        return self.lin(out, a + "o_proj")

    def block(self, ctx, allowed, anchors, pos, rows=None):
        """anchors, pos [B, A]; -> hidden [B, A, rows, d] after the final norm."""
        g = rows or self.gamma
        b, na = anchors.shape
        ids = torch.full((b, na, g), self.cfg["mask_token_id"], dtype=torch.long)
        ids[:, :, 0] = anchors
        at = pos.unsqueeze(-1) + torch.arange(g)
        x = self.embedding[ids]
        for n in range(self.layers):
            p = "layers.%d." % n
            y = rms(x, self.w[p + "input_layernorm.weight"], self.eps)
            x = x + self.attend(n, y, at, ctx[n], allowed)
            y = rms(x, self.w[p + "post_attention_layernorm.weight"], self.eps)
            x = x + self.lin(F.silu(self.lin(y, p + "mlp.gate_proj")) *
                             self.lin(y, p + "mlp.up_proj"), p + "mlp.down_proj")
        return rms(x, self.w["final_norm.weight"], self.eps)

    def logits(self, h, prev):
        """Logits with the Markov bias of the token before. h [..., d], prev [...] ids."""
        m = self.w["markov_head.markov_w1.weight"][prev]
        return h @ self.head.t() + m @ self.w["markov_head.markov_w2.weight"].t()

    def confidence(self, h, prev):
        """Raw logit z of the survival of the draft of this row."""
        m = self.w["markov_head.markov_w1.weight"][prev]
        return (self.lin(torch.cat([h, m], -1), "confidence_head.proj") +
                self.w["confidence_head.proj.bias"]).squeeze(-1)

    def greedy(self, h, anchors):
        """Drafts by argmax, one row after the other. h [N, rows, d], anchors [N] -> [N, rows]."""
        prev, out = anchors, []
        for j in range(h.shape[1]):
            prev = self.logits(h[:, j], prev).argmax(-1)
            out.append(prev)
        return torch.stack(out, 1)
