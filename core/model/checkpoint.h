/*
 * A checkpoint bound to its configuration: every tensor the model needs, by place instead of by
 * name, with shape and dtype checked. Data are views into the mapping; nothing is converted here.
 *
 * Refused, by name: a missing tensor, a wrong shape or dtype, a tensor of a text layer the
 * configuration does not have, an unknown tensor inside the text model, a non-finite value in a
 * small parameter (norms, A_log, dt_bias, convolutions, router bias, residual scores). Large
 * matrices are not scanned. Skipped and counted: the vision tower and its projector.
 * Ignored, counted and named in the report: tensors outside the text model.
 */
#ifndef KEDGE_MODEL_CHECKPOINT_H
#define KEDGE_MODEL_CHECKPOINT_H

#include "model/config.h"

/*
 * A matrix [rows][cols] (y = W x: rows are outputs), or a vector (rows 1). Aligned to the size of
 * its element. data NULL: this model has no such tensor.
 */
struct kg_tensor {
    const void *data;     /* F32, BF16 or F16: [rows][cols]; MXFP4: U8 [rows][cols/2], the low
                             nibble is the even element */
    const uint8_t *scale; /* MXFP4 only: [rows][cols/32], value 2^(s-127); else NULL */
    uint32_t dtype;       /* KG_F32, KG_BF16 or KG_F16; KG_U8 means MXFP4 */
    uint32_t rows;
    uint32_t cols; /* elements, also for MXFP4 (a multiple of 32 then) */
};

/* P = kda_heads * kda_dim, H = kda_heads, D = kda_dim. */
struct kg_ckpt_kda {
    struct kg_tensor q, k, v;                /* [P][hidden] */
    struct kg_tensor q_conv, k_conv, v_conv; /* [P][4], the newest tap last */
    struct kg_tensor a_log;                  /* [H]; padding of the file cut off */
    struct kg_tensor dt_bias;                /* [P] */
    struct kg_tensor f_a, f_b;               /* [D][hidden], [P][D] */
    struct kg_tensor b;                      /* [H][hidden] */
    struct kg_tensor g;                      /* full_gate: [P][hidden] */
    struct kg_tensor g_a, g_b;               /* else: [D][hidden], [P][D] */
    struct kg_tensor o_norm;                 /* [D] */
    struct kg_tensor o;                      /* [hidden][P] */
};

/* H = mla_heads. */
struct kg_ckpt_mla {
    struct kg_tensor q;                  /* q_lora 0: [H*(nope+rope)][hidden] */
    struct kg_tensor q_a, q_a_norm, q_b; /* else: [q_lora][hidden], [q_lora],
                                            [H*(nope+rope)][q_lora] */
    struct kg_tensor kv_a;               /* [kv_lora+rope][hidden] */
    struct kg_tensor kv_a_norm;          /* [kv_lora] */
    struct kg_tensor kv_b;               /* [H*(nope+v)][kv_lora]; per head nope rows, then v */
    struct kg_tensor g;                  /* mla_gate: [H*v][hidden] */
    struct kg_tensor o;                  /* [hidden][H*v] */
};

struct kg_ckpt_mlp {
    struct kg_tensor gate, up; /* [inter][in] */
    struct kg_tensor down;     /* [in][inter] */
};

struct kg_ckpt_moe {
    struct kg_tensor router;      /* [n_experts][hidden] */
    struct kg_tensor bias;        /* [n_experts], for the choice only */
    struct kg_tensor latent_down; /* latent: [latent][hidden] */
    struct kg_tensor latent_norm; /* latent_norm: [latent] */
    struct kg_tensor latent_up;   /* latent: [hidden][latent] */
    struct kg_ckpt_mlp shared;    /* shared_inter; data NULL when 0 */
    struct kg_ckpt_mlp *experts;  /* [n_experts], in = kg_expert_width; w1 gate, w3 up, w2 down */
};

struct kg_ckpt_layer {
    struct kg_tensor input_norm, post_norm;        /* [hidden] */
    struct kg_tensor attn_res_norm, attn_res_proj; /* [hidden] each; block_layers only */
    struct kg_tensor mlp_res_norm, mlp_res_proj;
    struct kg_ckpt_kda kda; /* by config.layer_kind: one of the two is filled */
    struct kg_ckpt_mla mla;
    struct kg_ckpt_mlp mlp; /* by config.layer_moe: one of the two is filled */
    struct kg_ckpt_moe moe;
};

/* What was found, for the log. */
#define KG_CKPT_NAMES 8
struct kg_ckpt_info {
    uint32_t n_files;
    uint64_t n_tensors; /* in the files */
    uint64_t n_bound;   /* used by the text model */
    uint64_t bound_bytes;
    uint64_t n_vision; /* vision tower and projector: skipped */
    uint64_t vision_bytes;
    uint64_t n_ignored;                 /* other tensors outside the text model */
    const char *ignored[KG_CKPT_NAMES]; /* the first of them, NULL after the last */
    uint64_t n_realigned; /* at odd addresses in the file: copied (at most 4 GiB), not mapped */
    uint32_t mxfp4;       /* 1: at least one matrix is MXFP4 */
};

struct kg_ckpt {
    struct kg_model_config config;
    struct kg_ckpt_info info;
    struct kg_tensor embed;                      /* [vocab][hidden] */
    struct kg_tensor lm_head;                    /* [vocab][hidden]; config.tied: equals embed */
    struct kg_tensor norm;                       /* [hidden] */
    struct kg_tensor out_res_norm, out_res_proj; /* [hidden] each; block_layers only */
    struct kg_ckpt_layer *layers;                /* [config.n_layers] */
};

/*
 * Reads configuration and weights of the folder `dir`. Codes as kg_st_open; the text names the
 * file and the tensor. Caller closes; all views die then.
 */
KG_CHECKED int kg_ckpt_open(const char *dir, struct kg_ckpt **ckpt, struct kg_error *err);
void kg_ckpt_close(struct kg_ckpt *ckpt); /* NULL is allowed */

/*
 * Elements [first, first + n) of a tensor, row by row, as float: exact for F32, BF16, F16 and
 * MXFP4 (scale byte 255 gives NaN). The range must lie inside rows * cols.
 */
void kg_tensor_load_f32(const struct kg_tensor *t, uint64_t first, uint64_t n, float *out);

#endif
