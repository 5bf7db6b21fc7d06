/*
 * What config.json says of a text model of the Kimi K3 / Kimi-Linear family, checked and
 * generalised: one struct for both. Every size is bounded (KG_MAX_*), so that a product of any
 * three of them fits 64 bits. Layers are 0-based here; the lists in the file are 1-based.
 */
#ifndef KEDGE_MODEL_CONFIG_H
#define KEDGE_MODEL_CONFIG_H

#include <kedge/types.h>

#define KG_MAX_LAYERS 512
#define KG_MAX_HIDDEN 65536  /* hidden, ranks, head widths, intermediate / 16 */
#define KG_MAX_INTER 1048576 /* intermediate sizes */
#define KG_MAX_HEADS 1024
#define KG_MAX_VOCAB 4194304
#define KG_MAX_EXPERTS 4096
#define KG_MAX_CONTEXT 16777216 /* tokens */
#define KG_MAX_EOS_IDS 8

enum kg_family {
    KG_KIMI_LINEAR = 1, /* tensor names begin with "model." */
    KG_KIMI_K3 = 2,     /* tensor names begin with "language_model.model." */
};

enum kg_layer_kind {
    KG_LAYER_KDA = 0,
    KG_LAYER_MLA = 1,
};

/* Log decay of a KDA channel from f, bias b and a = A_log of the head. */
enum kg_decay {
    KG_DECAY_SOFTPLUS = 0, /* g = -exp(a) * softplus(f + b) */
    KG_DECAY_BOUNDED = 1,  /* g = decay_floor * sigmoid(exp(a) * (f + b)) */
};

enum kg_ffn_act {
    KG_FFN_SILU = 0, /* silu(gate) * up */
    KG_FFN_SITU = 1, /* beta tanh(gate/beta) sigmoid(gate) * lbeta tanh(up/lbeta) */
};

struct kg_model_config {
    uint32_t family;                     /* enum kg_family */
    uint32_t hidden;                     /* width of the residual stream */
    uint32_t n_layers;                   /* 1..KG_MAX_LAYERS */
    uint32_t n_kda_layers, n_mla_layers; /* sum is n_layers */
    uint8_t layer_kind[KG_MAX_LAYERS];   /* enum kg_layer_kind */
    uint8_t layer_moe[KG_MAX_LAYERS];    /* 1: mixture of experts, 0: dense MLP */
    uint32_t vocab;                      /* rows of the embedding and of the logits */
    uint32_t max_context;                /* tokens */
    uint32_t tied;    /* 1: lm_head is the embedding matrix, no tensor of its own */
    float rms_eps;    /* every RMS norm but the two below */
    float latent_eps; /* q_a_layernorm and kv_a_layernorm; equals rms_eps */

    /* KDA */
    uint32_t kda_heads;
    uint32_t kda_dim;   /* head width of q, k and v */
    uint32_t conv_taps; /* short convolution; always 4 */
    uint32_t decay;     /* enum kg_decay */
    float decay_floor;  /* KG_DECAY_BOUNDED: negative, -5 in K3; else 0 */
    uint32_t full_gate; /* 1: g_proj [P, hidden]; 0: g_b_proj [P, D] * g_a_proj [D, hidden] */

    /* MLA; no position encoding */
    uint32_t mla_heads;
    uint32_t q_lora;                    /* rank; 0: plain q_proj */
    uint32_t kv_lora;                   /* rank of the cached latent */
    uint32_t nope_dim, rope_dim, v_dim; /* per head; rope_dim values are never rotated */
    uint32_t mla_gate;                  /* 1: o *= sigmoid(g_proj x) before o_proj */

    /* feed-forward */
    uint32_t act;                    /* enum kg_ffn_act */
    float act_beta, act_linear_beta; /* KG_FFN_SITU only, > 0 */
    uint32_t dense_inter;            /* 0 when no layer is dense */
    uint32_t n_experts;              /* 0 when no layer is MoE */
    uint32_t top_k;                  /* 1..n_experts */
    uint32_t expert_inter;
    uint32_t latent;       /* width experts work in; 0: hidden itself, no down/up projections */
    uint32_t latent_norm;  /* 1: RMS norm of the weighted sum before the up projection */
    uint32_t shared_inter; /* fused width of the shared experts; 0: none */
    uint32_t renormalize;  /* 1: weights of the picks are divided by their sum + 1e-20 */
    float routed_scale;    /* multiplies the weights afterwards */
    uint32_t mxfp4;        /* 1: quantization_config says mxfp4 (the suffix of a tensor decides) */

    /* attention residuals: a new block begins at layers l with l % block_layers == 0 */
    uint32_t block_layers; /* 0: plain residuals */

    uint32_t bos, pad; /* token ids; KG_NONE when absent */
    uint32_t n_eos;
    uint32_t eos[KG_MAX_EOS_IDS]; /* generation_config.json first, then config.json; no doubles */
};

/* Widths that recur. Elements. */
static inline uint32_t kg_kda_width(const struct kg_model_config *c)
{
    return c->kda_heads * c->kda_dim;
}

static inline uint32_t kg_expert_width(const struct kg_model_config *c)
{
    return c->latent != 0 ? c->latent : c->hidden;
}

/*
 * Reads DIR/config.json and, when it exists, DIR/generation_config.json.
 * KG_ENOENT: no such file; KG_EIO: cannot be read; KG_EINVAL: the text names file and field.
 * *config is written only on success.
 */
KG_CHECKED int kg_model_config_read(const char *dir, struct kg_model_config *config,
                                    struct kg_error *err);

/*
 * The same from text in memory (`n` bytes, need not end with NUL). `file` is only for messages.
 * `generation` may be NULL.
 */
KG_CHECKED int kg_model_config_parse(const char *file, const char *text, size_t n,
                                     const char *generation, size_t n_generation,
                                     struct kg_model_config *config, struct kg_error *err);

#endif
