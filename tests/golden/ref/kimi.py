"""Forward pass of Kimi K3 (text) and Kimi-Linear in float64, for reading and comparing.

Nothing is fused, blocked or absorbed: KDA runs token by token, MLA expands keys and values, each
expert is applied to the tokens that picked it. State per layer: KDA {"S": [H, V, K], "conv":
[3 (q, k, v), 3 (oldest first), P]}; MLA {"c": [n, rank], "kr": [n, rope]}. Shapes: n tokens of a
call first. A linear layer's weight is [out, in].
"""
import json
import os

import numpy as np

from tensorfile import load_folder, mxfp4_values


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Kimi:
    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as f:
            outer = json.load(f)
        self.k3 = outer["model_type"] == "kimi_k3"
        self.config = c = outer["text_config"] if self.k3 else outer
        self.linear = c["linear_attn_config"]
        self.eps = c["rms_norm_eps"]
        self.kda_layers = {layer - 1 for layer in self.linear["kda_layers"]}
        prefix = "language_model." if self.k3 else ""
        self.w = {}
        raw = load_folder(folder)
        for name, a in raw.items():
            if not name.startswith(prefix) or name.endswith(".weight_scale"):
                continue
            key = name[len(prefix):]
            if key.endswith(".weight_packed"):
                scales = raw[name[:-len("packed")] + "scale"]
                self.w[key[:-len("_packed")]] = mxfp4_values(a, scales)
            else:
                self.w[key] = a.astype(np.float64)

    def new_state(self):
        c, heads, dim = self.config, self.linear["num_heads"], self.linear["head_dim"]
        state = []
        for layer in range(c["num_hidden_layers"]):
            if layer in self.kda_layers:
                state.append({"S": np.zeros((heads, dim, dim)), "conv": np.zeros((3, 3, heads * dim))})
            else:
                state.append({"c": np.zeros((0, c["kv_lora_rank"])),
                              "kr": np.zeros((0, c["qk_rope_head_dim"]))})
        return state

    def rms(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def project(self, x, name):
        return x @ self.w[name + ".weight"].T

    def kda(self, x, at, state, put):
        n, heads, dim = len(x), self.linear["num_heads"], self.linear["head_dim"]
        parts = []
        for i, which in enumerate("qkv"):
            u = self.project(x, at + which + "_proj")
            put("kda.%s_proj" % which, u)
            window = np.concatenate([state["conv"][i], u])
            taps = self.w[at + which + "_conv1d.weight"].reshape(-1, 4)
            z = sum(window[j:j + n] * taps[:, j] for j in range(4))
            state["conv"][i] = window[-3:]
            parts.append((z * sigmoid(z)).reshape(n, heads, dim))
            put("kda.%s_conv" % which, parts[-1])
        q, k, v = parts
        q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) * dim ** -0.5
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
        f = self.project(self.project(x, at + "f_a_proj"), at + "f_b_proj").reshape(n, heads, dim)
        rate = np.exp(self.w[at + "A_log"].reshape(-1)[:heads])[:, None]
        inner = f + self.w[at + "dt_bias"].reshape(heads, dim)
        floor = self.linear.get("gate_lower_bound")
        g = -rate * np.logaddexp(0, inner) if floor is None else floor * sigmoid(rate * inner)
        beta = sigmoid(self.project(x, at + "b_proj"))
        S, decay, o = state["S"], np.exp(g), np.empty_like(v)
        for t in range(n):
            S = S * decay[t][:, None, :]
            u = beta[t][:, None] * (v[t] - (S * k[t][:, None, :]).sum(-1))
            S = S + u[:, :, None] * k[t][:, None, :]
            o[t] = (S * q[t][:, None, :]).sum(-1)
        state["S"] = S
        if self.linear.get("use_full_rank_gate"):
            z = self.project(x, at + "g_proj")
        else:
            z = self.project(self.project(x, at + "g_a_proj"), at + "g_b_proj")
        z = z.reshape(n, heads, dim)
        gated = self.rms(o, self.w[at + "o_norm.weight"]) * sigmoid(z)
        y = self.project(gated.reshape(n, -1), at + "o_proj")
        for name, value in (("q", q), ("k", k), ("f", f), ("g", g), ("beta", beta), ("o", o), ("z", z),
                            ("o_gated", gated), ("out", y), ("S_end", S), ("conv_end", state["conv"])):
            put("kda." + name, value)
        return y

    def mla(self, x, at, state, put):
        c, n = self.config, len(x)
        heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        width, rank = c["v_head_dim"], c["kv_lora_rank"]
        if c.get("q_lora_rank"):
            low = self.rms(self.project(x, at + "q_a_proj"), self.w[at + "q_a_layernorm.weight"])
            put("mla.q_a_normed", low)
            q = self.project(low, at + "q_b_proj")
        else:
            q = self.project(x, at + "q_proj")
        q = q.reshape(n, heads, nope + rope)
        kv = self.project(x, at + "kv_a_proj_with_mqa")
        latent = self.rms(kv[:, :rank], self.w[at + "kv_a_layernorm.weight"])
        before = len(state["c"])
        state["c"] = np.concatenate([state["c"], latent])
        state["kr"] = np.concatenate([state["kr"], kv[:, rank:]])
        total = before + n
        expanded = self.project(state["c"], at + "kv_b_proj").reshape(total, heads, nope + width)
        scores = np.einsum("qhd,khd->hqk", q[..., :nope], expanded[..., :nope])
        scores += np.einsum("qhd,kd->hqk", q[..., nope:], state["kr"])
        scores *= (nope + rope) ** -0.5
        later = np.arange(total)[None, :] > before + np.arange(n)[:, None]
        probs = softmax(np.where(later[None], -np.inf, scores))
        o = np.einsum("hqk,khd->qhd", probs, expanded[..., nope:]).reshape(n, -1)
        gated = o
        if c.get("mla_use_output_gate"):
            z = self.project(x, at + "g_proj")
            gated = o * sigmoid(z)
            put("mla.z", z)
        y = self.project(gated, at + "o_proj")
        for name, value in (("q", q), ("c", latent), ("k_r", kv[:, rank:]),
                            ("k_n", expanded[before:, :, :nope]), ("v", expanded[before:, :, nope:]),
                            ("probs", probs), ("o", o), ("o_gated", gated), ("out", y)):
            put("mla." + name, value)
        return y

    def act(self, gate, up):
        if self.config["hidden_act"] == "silu":
            return gate * sigmoid(gate) * up
        a, b = self.config["activation_situ_beta"], self.config["activation_situ_linear_beta"]
        return a * np.tanh(gate / a) * sigmoid(gate) * b * np.tanh(up / b)

    def mlp(self, x, at, put, key):
        h = self.act(self.project(x, at + "gate_proj"), self.project(x, at + "up_proj"))
        y = self.project(h, at + "down_proj")
        put(key + ".act", h)
        put(key + ".out", y)
        return y

    def moe(self, x, at, put):
        c, n, k = self.config, len(x), self.config["num_experts_per_token"]
        latent = bool(c.get("routed_expert_hidden_size"))
        logits = self.project(x, at + "gate")
        scores = sigmoid(logits)
        choice = scores + self.w[at + "gate.e_score_correction_bias"]
        order = np.argsort(-choice, axis=-1, kind="stable")  # ties: the lower id first
        ranked = np.take_along_axis(choice, order, -1)
        margin, picks = ranked[:, k - 1] - ranked[:, k], order[:, :k]
        weights = np.take_along_axis(scores, picks, -1)
        if c.get("moe_renormalize", True):
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        weights = weights * c.get("routed_scaling_factor", 1.0)
        t = self.project(x, at + "routed_expert_down_proj") if latent else x
        outs = np.zeros((n, k, t.shape[1]))
        for e in range(c["num_experts"]):
            i, j = np.nonzero(picks == e)
            if len(i):
                p = at + "experts.%d." % e
                h = self.act(self.project(t[i], p + "w1"), self.project(t[i], p + "w3"))
                outs[i, j] = self.project(h, p + "w2")
        total = (weights[..., None] * outs).sum(1)
        y = total
        if latent:
            put("moe.latent", t)
            if c.get("latent_moe_use_norm", True):
                y = self.rms(total, self.w[at + "routed_expert_norm.weight"])
                put("moe.normed", y)
            y = self.project(y, at + "routed_expert_up_proj")
            put("moe.up", y)
        if c.get("num_shared_experts"):
            y = y + self.mlp(x, at + "shared_experts.", put, "moe.shared")
        for name, value in (("logits", logits), ("scores", scores), ("choice", choice), ("picks", picks),
                            ("weights", weights), ("margin", margin), ("expert_out", outs),
                            ("sum", total), ("out", y)):
            put("moe." + name, value)
        self.margins.append(margin)
        return y

    def mix(self, p, blocks, name, put, key):
        """Attention residual: softmax over block vectors and the running sum."""
        if not blocks:
            return p
        v = np.stack(blocks + [p], 1)
        m = self.w[name + "_norm.weight"] * self.w[name + "_proj.weight"].reshape(-1)
        a = softmax(((v / np.sqrt((v * v).mean(-1, keepdims=True) + self.eps)) * m).sum(-1))
        out = (a[..., None] * v).sum(1)
        put(key + ".weights", a)
        put(key + ".out", out)
        return out

    def forward(self, ids, state, trace=None):
        """Logits [n, vocab] of the new tokens `ids`; `state` is advanced in place. `trace`: a dict
        that receives every intermediate tensor by the names of tests/golden/README.md."""
        c, self.margins, at = self.config, [], [""]

        def put(name, value):
            if trace is not None:
                trace[at[0] + name] = np.array(value)

        block = c.get("attn_res_block_size")
        p, blocks = self.w["model.embed_tokens.weight"][np.asarray(ids)], []
        put("embed", p)
        for layer in range(c["num_hidden_layers"]):
            w, at[0] = "model.layers.%d." % layer, "layers.%d." % layer
            h = self.mix(p, blocks, w + "self_attention_res", put, "attn_res") if block else p
            fresh = bool(block) and layer % block == 0
            if fresh:
                blocks.append(p)
            x = self.rms(h, self.w[w + "input_layernorm.weight"])
            put("attn_in", x)
            attend = self.kda if layer in self.kda_layers else self.mla
            a = attend(x, w + "self_attn.", state[layer], put)
            p = a if fresh else p + a
            put("p_attn", p)
            h = self.mix(p, blocks, w + "mlp_res", put, "mlp_res") if block else p
            x = self.rms(h, self.w[w + "post_attention_layernorm.weight"])
            put("ffn_in", x)
            if layer >= c.get("first_k_dense_replace", 0) and layer % c.get("moe_layer_freq", 1) == 0:
                p = p + self.moe(x, w + "block_sparse_moe.", put)
            else:
                p = p + self.mlp(x, w + "mlp.", put, "mlp")
            put("p_ffn", p)
        at[0] = "final."
        h = self.mix(p, blocks, "model.output_attn_res", put, "attn_res") if block else p
        x = self.rms(h, self.w["model.norm.weight"])
        put("normed", x)
        head = "model.embed_tokens" if c.get("tie_word_embeddings") else "lm_head"
        logits = self.project(x, head)
        put("logits", logits)
        return logits

    def greedy(self, logits, state, n):
        """n tokens after a row of logits, and by how much each beat the second best."""
        out, gaps = [], []
        for i in range(n):
            best = np.argsort(-logits, kind="stable")[:2]
            out.append(int(best[0]))
            gaps.append(float(logits[best[0]] - logits[best[1]]))
            if i + 1 < n:
                logits = self.forward([out[-1]], state)[-1]
        return out, gaps


def golden(model, name, ids, n_greedy):
    """One prompt as in prompts.json and prompts.safetensors: (record, tensors)."""
    state = model.new_state()
    logits = model.forward(ids, state)
    margins = np.stack(model.margins)
    top = np.argsort(-logits, axis=-1, kind="stable")[:, :16]
    best = np.take_along_axis(logits, top, -1)
    t = {name + ".last_logits": ("F32", logits[-4:]), name + ".top_ids": ("I32", top),
         name + ".top_logits": ("F32", best), name + ".router_margin": ("F32", margins)}
    for layer, s in enumerate(state):
        for key, value in s.items():  # copies: the continuation below goes on from this state
            t["%s.layers.%d.%s" % (name, layer, key)] = ("F32", np.array(value))
    lse = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    nll = lse[:-1] - logits[np.arange(len(ids) - 1), ids[1:]]
    greedy, gaps = model.greedy(logits[-1], state, n_greedy)
    record = {"name": name, "n": len(ids), "ids": [int(i) for i in ids], "greedy": greedy,
              "greedy_gap": gaps, "greedy_stop_at": None, "mean_nll": float(nll.mean()),
              "min_router_margin": float(margins.min()),
              "min_top_gap": float((best[:, 0] - best[:, 1]).min())}
    return record, t
