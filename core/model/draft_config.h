/*
 * What config.json says of a drafter (DSpark: a block of tokens guessed in one pass from features
 * of the target). Keys are those of the published Kimi K3 drafters, and the ones these leave to
 * a model card: without them a drafter drafts, badly and without a word, so they have no default.
 *
 *   model_type                  "k3_dspark"
 *   hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, q_lora_rank (0: plain
 *   q_proj), kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, rms_norm_eps,
 *   max_position_embeddings, vocab_size, draft_vocab_size (equal to it)
 *   mla_use_nope, mla_use_output_gate   false
 *   rope_theta, rope_interleave; rope_parameters: absent, null, or rope_type (or type) "default" or
 *                               "yarn" with its six numbers
 *   num_target_layers           number of taps; target_layer_ids: them, 0-based, rising
 *   target_hidden_size, target_num_hidden_layers
 *   tap_convention              "after_layer"
 *   aux_hidden_stream           "attn_res" or "prefix_sum", as enum kg_tap_stream
 *   mask_token_id, block_size; causal: one true or false for each layer
 *   markov_head_type            "vanilla"; markov_rank: 0 for none
 *   enable_confidence_head, confidence_head_with_markov
 *   sts_temperatures            {greedy, coupled, rejection, block}: block_size numbers each
 *   sts_biases                  the same form; the one key that may be absent or null: all 0, as in
 *                               a checkpoint that is calibrated by temperatures alone
 *   target_sha256               of the target's weights: see kg_draft_target_sha256
 * Other keys are not looked at.
 */
#ifndef KEDGE_MODEL_DRAFT_CONFIG_H
#define KEDGE_MODEL_DRAFT_CONFIG_H

#include "model/config.h"
#include "model/sha256.h"

#define KG_DRAFT_MAX_BLOCK 16
#define KG_DRAFT_MAX_TAPS 16

/* What a tap of target layer l is, one vector of the target's width per token. */
enum kg_tap_stream {
    KG_TAP_ATTN_RES = 0,   /* what layer l + 1 norms as the input of its attention: the mixture
                              of residual blocks, before the norm */
    KG_TAP_PREFIX_SUM = 1, /* the running vector after layer l: the sum of the present block */
};

/* How the drafts of a request are judged: which calibration its survivals take. */
enum kg_draft_class {
    KG_DRAFT_GREEDY = 0,
    KG_DRAFT_COUPLED = 1,
    KG_DRAFT_REJECTION = 2,
    KG_DRAFT_BLOCK = 3,
    KG_DRAFT_N_CLASSES = 4,
};

/* Rotation of `rope_dim` values by position. */
struct kg_rope {
    float theta;
    uint32_t interleave; /* 1: pairs (2i, 2i+1); 0: pairs (i, i + rope_dim/2) */
    uint32_t yarn;       /* 1: the rest counts */
    uint32_t original;   /* tokens */
    float factor, beta_fast, beta_slow, mscale, mscale_all_dim;
};

struct kg_draft_config {
    /* hidden, n_layers (all MLA), vocab, max_context, rms_eps, latent_eps, the MLA sizes and
     * dense_inter; everything else is 0 */
    struct kg_model_config net;
    uint8_t causal[KG_MAX_LAYERS]; /* 1: a row of the block sees the rows up to itself; 0: all */
    uint32_t block;                /* tokens drafted at once, 1..KG_DRAFT_MAX_BLOCK */
    uint32_t n_taps;
    uint32_t taps[KG_DRAFT_MAX_TAPS]; /* target layers, rising; none is the last */
    uint32_t stream;                  /* enum kg_tap_stream */
    uint32_t target_hidden, target_layers;
    uint32_t mask_token;
    uint32_t markov_rank;       /* 0: none */
    uint32_t confidence;        /* 1: a confidence head */
    uint32_t confidence_markov; /* 1: it reads the embedding of the previous token too */
    struct kg_rope rope;
    /* of draft k: the confidence logit is divided by the temperature (> 0), then the bias added */
    float temperature[KG_DRAFT_N_CLASSES][KG_DRAFT_MAX_BLOCK];
    float bias[KG_DRAFT_N_CLASSES][KG_DRAFT_MAX_BLOCK];
    char target_sha256[KG_SHA256_HEX];
};

/* Reads DIR/config.json. Codes and the text as kg_model_config_read. */
KG_CHECKED int kg_draft_config_read(const char *dir, struct kg_draft_config *config,
                                    struct kg_error *err);
/* The same from text in memory; `file` is for messages. */
KG_CHECKED int kg_draft_config_parse(const char *file, const char *text, size_t n,
                                     struct kg_draft_config *config, struct kg_error *err);

/*
 * Name of a target's weights: SHA-256 of DIR/model.safetensors.index.json if it is there (a sharded
 * checkpoint is too large to read at every start), else of DIR/model.safetensors.
 */
KG_CHECKED int kg_draft_target_sha256(const char *dir, char hex[KG_SHA256_HEX],
                                      struct kg_error *err);

#endif
