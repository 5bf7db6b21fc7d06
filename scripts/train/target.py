"""The frozen target (K3 text architecture) in PyTorch: final hidden vectors and taps.

Whole sequences from an empty state, float32 (or any dtype given), no gradients. The formulas are
those of the engine; the tests compare the taps with the golden trace.

A tap of layer l, stream "attn_res", is the vector that layer l + 1 would normalise with its
input_layernorm: the Attention-Residual mixture of the blocks so far and of the running sum after
layer l, with the weights self_attention_res of layer l + 1, before that norm. So l is never the
last layer.
"""
import json
import os

import torch
import torch.nn.functional as F

import tensors


def rms(x, w, eps):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w


class Target:
    def __init__(self, path, dtype=torch.float32):
        with open(os.path.join(path, "config.json")) as f:
            self.whole = json.load(f)
        c = self.cfg = self.whole["text_config"]
        self.path, self.dtype = path, dtype
        raw = tensors.load(os.path.join(path, "model.safetensors"))
        prefix = "language_model."
        self.w = {n[len(prefix):]: t.to(dtype) for n, t in raw.items()}
        self.eps = c["rms_norm_eps"]
        self.layers, self.hidden = c["num_hidden_layers"], c["hidden_size"]
        self.vocab = c["vocab_size"]
        lin = c["linear_attn_config"]
        self.kda_layers = {n - 1 for n in lin["kda_layers"]}
        self.heads, self.dim = lin["num_heads"], lin["head_dim"]
        self.kernel, self.bound = lin["short_conv_kernel_size"], lin["gate_lower_bound"]
        self.embedding = self.w["model.embed_tokens.weight"]
        self.head = self.w["lm_head.weight"]

    def lin(self, x, name):
        return x @ self.w[name + ".weight"].t()

    def mix(self, p, blocks, name):
        if not blocks:
            return p
        m = self.w[name + "_norm.weight"] * self.w[name + "_proj.weight"][0]
        src = torch.stack(blocks + [p])
        score = (src * torch.rsqrt((src * src).mean(-1, keepdim=True) + self.eps) * m).sum(-1)
        return (score.softmax(0).unsqueeze(-1) * src).sum(0)

    def conv(self, x, w):
        """Causal depthwise convolution, then SiLU. x [B, T, C], w [C, 1, kernel]"""
        pad = F.pad(x, (0, 0, self.kernel - 1, 0))
        t = x.shape[1]
        return F.silu(sum(pad[:, j:j + t] * w[:, 0, j] for j in range(self.kernel)))

    def kda(self, x, a):
        b, t, _ = x.shape
        h, d, w = self.heads, self.dim, self.w
        q, k, v = [self.conv(self.lin(x, a + n + "_proj"), w[a + n + "_conv1d.weight"])
                   .view(b, t, h, d) for n in "qkv"]
        q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * d ** -0.5
        k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
        f = self.lin(self.lin(x, a + "f_a_proj"), a + "f_b_proj").view(b, t, h, d)
        rate = w[a + "A_log"].reshape(-1)[:h].exp()[:, None]
        decay = (self.bound * torch.sigmoid(rate * (f + w[a + "dt_bias"].view(h, d)))).exp()
        beta = torch.sigmoid(self.lin(x, a + "b_proj"))
        # [T, B * heads, .] so that each step takes contiguous slices
        turn = lambda y: y.transpose(0, 1).reshape(t, b * h, -1).contiguous()
        q, k, v, decay, beta = map(turn, (q, k, v, decay, beta))
        state = torch.zeros(b * h, d, d, dtype=self.dtype)
        out = torch.empty_like(v)
        for i in range(t):
            state *= decay[i].unsqueeze(1)
            u = beta[i] * (v[i] - torch.bmm(state, k[i].unsqueeze(2)).squeeze(2))
            state.baddbmm_(u.unsqueeze(2), k[i].unsqueeze(1))
            out[i] = torch.bmm(state, q[i].unsqueeze(2)).squeeze(2)
        out = out.view(t, b, h, d).transpose(0, 1)
        gate = torch.sigmoid(self.lin(x, a + "g_proj").view(b, t, h, d))
        out = rms(out, w[a + "o_norm.weight"], self.eps) * gate
        return self.lin(out.reshape(b, t, h * d), a + "o_proj")

    def mla(self, x, a):
        b, t, _ = x.shape
        c, w = self.cfg, self.w
        h, no, ro = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        vd, r = c["v_head_dim"], c["kv_lora_rank"]
        q = rms(self.lin(x, a + "q_a_proj"), w[a + "q_a_layernorm.weight"], self.eps)
        q = self.lin(q, a + "q_b_proj").view(b, t, h, no + ro).transpose(1, 2)
        kv = self.lin(x, a + "kv_a_proj_with_mqa")
        latent = rms(kv[..., :r], w[a + "kv_a_layernorm.weight"], self.eps)
        kvb = self.lin(latent, a + "kv_b_proj").view(b, t, h, no + vd).transpose(1, 2)
        shared = kv[..., r:].unsqueeze(1).expand(b, h, t, ro)
        k = torch.cat([kvb[..., :no], shared], -1)
        score = torch.matmul(q, k.transpose(-1, -2)) * (no + ro) ** -0.5
        later = torch.ones(t, t, dtype=torch.bool).triu(1)
        p = score.masked_fill(later, float("-inf")).softmax(-1)
        out = torch.matmul(p, kvb[..., no:]).transpose(1, 2).reshape(b, t, h * vd)
        return self.lin(out * torch.sigmoid(self.lin(x, a + "g_proj")), a + "o_proj")

    def situ(self, gate, up):
        b1, b2 = self.cfg["activation_situ_beta"], self.cfg["activation_situ_linear_beta"]
        return b1 * torch.tanh(gate / b1) * torch.sigmoid(gate) * b2 * torch.tanh(up / b2)

    def mlp(self, x, m):
        act = self.situ(self.lin(x, m + "gate_proj"), self.lin(x, m + "up_proj"))
        return self.lin(act, m + "down_proj")

    def moe(self, x, m):
        b, t, width = x.shape
        c = self.cfg
        x = x.reshape(b * t, width)
        score = torch.sigmoid(self.lin(x, m + "gate"))
        pick = torch.topk(score + self.w[m + "gate.e_score_correction_bias"],
                          c["num_experts_per_token"], -1)[1]
        weight = score.gather(1, pick)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"]
        latent = self.lin(x, m + "routed_expert_down_proj")
        total = torch.zeros_like(latent)
        for e in range(c["num_experts"]):
            row, slot = (pick == e).nonzero(as_tuple=True)
            if len(row):
                p = m + "experts.%d." % e
                y = latent[row]
                y = self.lin(self.situ(self.lin(y, p + "w1"), self.lin(y, p + "w3")), p + "w2")
                total.index_add_(0, row, y * weight[row, slot].unsqueeze(1))
        routed = rms(total, self.w[m + "routed_expert_norm.weight"], self.eps)
        y = self.lin(routed, m + "routed_expert_up_proj") + self.mlp(x, m + "shared_experts.")
        return y.view(b, t, width)

    @torch.no_grad()
    def forward(self, ids, taps=()):
        """ids [B, T] -> (final hidden after the last norm [B, T, d], taps [B, T, len(taps) * d]).
        Padding may follow a sequence: nothing looks ahead."""
        p, blocks, got = self.embedding[ids], [], {}
        for l in range(self.layers):
            q = "model.layers.%d." % l
            h = self.mix(p, blocks, q + "self_attention_res")
            got[l - 1] = h
            if l % self.cfg["attn_res_block_size"] == 0:
                blocks.append(p)
                p = None
            attend = self.kda if l in self.kda_layers else self.mla
            a = attend(rms(h, self.w[q + "input_layernorm.weight"], self.eps), q + "self_attn.")
            p = a if p is None else p + a
            h = self.mix(p, blocks, q + "mlp_res")
            x = rms(h, self.w[q + "post_attention_layernorm.weight"], self.eps)
            dense = l < self.cfg["first_k_dense_replace"]
            p = p + (self.mlp(x, q + "mlp.") if dense else self.moe(x, q + "block_sparse_moe."))
        h = rms(self.mix(p, blocks, "model.output_attn_res"), self.w["model.norm.weight"], self.eps)
        return h, (torch.cat([got[l] for l in taps], -1) if taps else None)
