#!/usr/bin/env python3
"""Makes a small random Kimi-Linear checkpoint in the published layout, with golden vectors.

usage: make_kimi_linear.py FOLDER [--seed N] [--kda-heads N] [--no-golden] [--stamp FILE]

FOLDER gets config.json, generation_config.json, model.safetensors, tiktoken.model,
tokenizer_config.json; golden.json and golden.safetensors in the form of prompts.json and
prompts.safetensors (../README.md), computed by kimi.py in float64; trace.json and
trace.safetensors likewise. FOLDER/sharded holds the same checkpoint in three shards with an index.
The same seed gives the same bytes.

Names and dtypes are those of the published model: A_log [1, 1, H, 1] and dt_bias F32, all others
BF16. Sizes differ from each other wherever the architecture lets them, so that a mixed-up axis
cannot pass.
"""
import argparse
import json
import os
import shutil
import sys

try:
    import numpy as np
except ImportError:
    # A build without NumPy still builds everything else; without a stamp the next build tries again.
    print("make_kimi_linear: no numpy, no Kimi-Linear checkpoint; its tests will fail without it")
    sys.exit(0)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import kimi
import tensorfile

HIDDEN, LAYERS, MLA_LAYERS = 160, 6, (3, 5)  # 0-based; the last layer is MLA, as in the real model
KDA_HEADS, KDA_DIM = 3, 64  # the number of heads may be given; 4 divide by 2 and 4 ranks
HEADS, NOPE, ROPE, V_DIM, RANK = 4, 32, 16, 48, 96
DENSE, EXPERTS, TOP_K, EXPERT_INTER, SCALE = 352, 12, 3, 64, 2.446
VOCAB, BASE = 4096, 3840
# Seeds of prompts without close calls: router margins above 1e-4, greedy gaps above 2e-2.
PROMPTS = {3: (("short", 5, 1), ("middle", 67, 36), ("long", 200, 18)),
           4: (("short", 5, 5), ("middle", 67, 3))}
SPECIALS = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>",
            6: "<|start_header_id|>", 7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>",
            11: "<|tool_calls_section_begin|>", 12: "<|tool_calls_section_end|>",
            13: "<|tool_call_begin|>", 14: "<|tool_call_argument_begin|>", 15: "<|tool_call_end|>",
            17: "<|im_middle|>", 254: "[UNK]", 255: "[PAD]"}


def config():
    mla = [layer + 1 for layer in MLA_LAYERS]
    return {"architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
            "bos_token_id": BASE, "eos_token_id": BASE + 2, "pad_token_id": BASE + 255,
            "dtype": "bfloat16", "first_k_dense_replace": 1, "head_dim": HIDDEN // HEADS,
            "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02,
            "intermediate_size": DENSE, "kv_lora_rank": RANK,
            "linear_attn_config": {
                "full_attn_layers": mla, "head_dim": KDA_DIM,
                "kda_layers": [i + 1 for i in range(LAYERS) if i + 1 not in mla],
                "num_heads": KDA_HEADS, "short_conv_kernel_size": 4},
            "mla_use_nope": True, "model_max_length": 65536, "moe_intermediate_size": EXPERT_INTER,
            "moe_layer_freq": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid",
            "num_attention_heads": HEADS, "num_expert_group": 1, "num_experts": EXPERTS,
            "num_experts_per_token": TOP_K, "num_hidden_layers": LAYERS,
            "num_key_value_heads": HEADS, "num_nextn_predict_layers": 0, "num_shared_experts": 1,
            "q_lora_rank": None, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE,
            "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0,
            "routed_scaling_factor": SCALE, "tie_word_embeddings": False, "topk_group": 1,
            "use_cache": True, "use_grouped_topk": True, "v_head_dim": V_DIM, "vocab_size": VOCAB}


def tensors(seed):
    """name -> (dtype, values)."""
    rng, out = np.random.Generator(np.random.PCG64(seed)), {}

    def matrix(name, rows, cols, gain=1.0):
        out[name + ".weight"] = ("BF16", rng.standard_normal((rows, cols)) * gain / np.sqrt(cols))

    def norm(name, n):
        out[name + ".weight"] = ("BF16", 1 + 0.2 * rng.standard_normal(n))

    def kda(at):
        inner = KDA_HEADS * KDA_DIM
        for which in "qkv":
            matrix(at + which + "_proj", inner, HIDDEN)
        for which in "qkv":
            out[at + which + "_conv1d.weight"] = ("BF16", 0.6 * rng.standard_normal((inner, 1, 4)))
        rate = np.log(rng.uniform(0.5, 8, KDA_HEADS))
        out[at + "A_log"] = ("F32", rate.reshape(1, 1, KDA_HEADS, 1))
        step = np.exp(rng.uniform(np.log(1e-3), np.log(0.3), inner))
        out[at + "dt_bias"] = ("F32", step + np.log(-np.expm1(-step)))  # inverse of softplus
        matrix(at + "f_a_proj", KDA_DIM, HIDDEN)
        matrix(at + "f_b_proj", inner, KDA_DIM)
        matrix(at + "g_a_proj", KDA_DIM, HIDDEN)
        matrix(at + "g_b_proj", inner, KDA_DIM)
        matrix(at + "b_proj", KDA_HEADS, HIDDEN)
        norm(at + "o_norm", KDA_DIM)
        matrix(at + "o_proj", HIDDEN, inner)

    def mla(at):
        matrix(at + "q_proj", HEADS * (NOPE + ROPE), HIDDEN, 2.0)
        matrix(at + "kv_a_proj_with_mqa", RANK + ROPE, HIDDEN)
        norm(at + "kv_a_layernorm", RANK)
        matrix(at + "kv_b_proj", HEADS * (NOPE + V_DIM), RANK)
        matrix(at + "o_proj", HIDDEN, HEADS * V_DIM)

    def mlp(at, inter):
        matrix(at + "gate_proj", inter, HIDDEN)
        matrix(at + "up_proj", inter, HIDDEN)
        matrix(at + "down_proj", HIDDEN, inter)

    matrix("model.embed_tokens", VOCAB, HIDDEN, np.sqrt(HIDDEN))
    for layer in range(LAYERS):
        at = "model.layers.%d." % layer
        norm(at + "input_layernorm", HIDDEN)
        (mla if layer in MLA_LAYERS else kda)(at + "self_attn.")
        norm(at + "post_attention_layernorm", HIDDEN)
        if layer == 0:
            mlp(at + "mlp.", DENSE)
            continue
        at += "block_sparse_moe."
        matrix(at + "gate", EXPERTS, HIDDEN, 2.0)
        out[at + "gate.e_score_correction_bias"] = ("BF16", 0.05 * rng.standard_normal(EXPERTS))
        for e in range(EXPERTS):
            matrix(at + "experts.%d.w1" % e, EXPERT_INTER, HIDDEN)
            matrix(at + "experts.%d.w2" % e, HIDDEN, EXPERT_INTER)
            matrix(at + "experts.%d.w3" % e, EXPERT_INTER, HIDDEN)
        mlp(at + "shared_experts.", EXPERT_INTER)
    norm("model.norm", HIDDEN)
    matrix("lm_head", VOCAB, HIDDEN, 2.5)
    return out


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1)


def write_small_files(folder):
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), config())
    write_json(os.path.join(folder, "generation_config.json"),
               {"eos_token_id": [BASE + 2], "bos_token_id": BASE, "pad_token_id": BASE + 255})
    shutil.copy(os.path.join(HERE, "../../models/k3-tiny/tiktoken.model"), folder)
    added = {str(BASE + i): {"content": SPECIALS.get(i, "<|reserved_token_%d|>" % (BASE + i)),
                             "lstrip": False, "normalized": False, "rstrip": False,
                             "single_word": False, "special": True} for i in range(256)}
    write_json(os.path.join(folder, "tokenizer_config.json"),
               {"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "<|im_end|>",
                "pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 65536,
                "tokenizer_class": "TikTokenTokenizer"})


def write_shards(folder, all_tensors, n=3):
    names, where, total = list(all_tensors), {}, 0
    write_small_files(folder)
    for i in range(n):
        part = names[i * len(names) // n:(i + 1) * len(names) // n]
        file = "model-%05d-of-%05d.safetensors" % (i + 1, n)
        total += tensorfile.save(os.path.join(folder, file), {k: all_tensors[k] for k in part})
        where.update({k: file for k in part})
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               {"metadata": {"total_size": total}, "weight_map": where})


def make(folder, seed=20):
    t = tensors(seed)
    write_small_files(folder)
    tensorfile.save(os.path.join(folder, "model.safetensors"), t)
    write_shards(os.path.join(folder, "sharded"), t)


def write_golden(folder, n_greedy=32):
    model, records, out = kimi.Kimi(folder), [], {}
    for name, n, seed in PROMPTS[KDA_HEADS]:
        ids = np.random.Generator(np.random.PCG64(seed)).integers(0, BASE, n)
        record, t = kimi.golden(model, name, ids, n_greedy)
        records.append(record)
        out.update(t)
    write_json(os.path.join(folder, "golden.json"), records)
    tensorfile.save(os.path.join(folder, "golden.safetensors"), out)
    ids, trace = records[1]["ids"][:24], {}
    model.forward(ids, model.new_state(), trace)
    write_json(os.path.join(folder, "trace.json"),
               {"ids": ids, "tensors": {k: list(v.shape) for k, v in trace.items()}})
    tensorfile.save(os.path.join(folder, "trace.safetensors"),
                    {k: ("I32" if v.dtype.kind == "i" else "F32", v) for k, v in trace.items()})


def main():
    parser = argparse.ArgumentParser(description="Makes a small random Kimi-Linear checkpoint.")
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--no-golden", action="store_true", help="weights and configuration only")
    parser.add_argument("--stamp", help="file to write when all is done (for the build)")
    parser.add_argument("--kda-heads", type=int, default=KDA_HEADS, choices=sorted(PROMPTS))
    args = parser.parse_args()
    globals()["KDA_HEADS"] = args.kda_heads
    make(args.folder, args.seed)
    if not args.no_golden:
        write_golden(args.folder)
    if args.stamp:
        with open(args.stamp, "w") as f:
            f.write("done\n")


if __name__ == "__main__":
    main()
