/*
 * Inside of a model: packed weights by layer, working memory by row. Shared by the sources of the
 * forward pass only.
 */
#ifndef KEDGE_MODEL_FORWARD_H
#define KEDGE_MODEL_FORWARD_H

#include "model/model.h"

struct kg_w_kda {
    struct kg_weight q, k, v, f_a, f_b, b, o;
    struct kg_weight g;        /* full gate */
    struct kg_weight g_a, g_b; /* low-rank gate */
    float *conv;               /* [4][3P]: q | k | v channels */
    float *a_log;              /* [H] */
    float *dt_bias;            /* [P] */
    float *o_norm;             /* [D] */
};

struct kg_w_mla {
    struct kg_weight q;        /* q_lora 0 */
    struct kg_weight q_a, q_b; /* else */
    struct kg_weight kv_a, g, o;
    struct kg_weight *k_up; /* [H] Wk_h^T: (kv_lora, nope) */
    struct kg_weight *v_up; /* [H] Wv_h: (v, kv_lora) */
    float *q_a_norm, *kv_a_norm;
};

struct kg_w_mlp {
    struct kg_weight gate, up, down;
};

struct kg_w_moe {
    struct kg_weight router; /* always fp32: a rounded score could change a pick */
    struct kg_weight latent_down, latent_up;
    struct kg_w_mlp shared;
    struct kg_weight *gate, *up, *down; /* [split.experts] each */
    float *bias;                        /* [n_experts] */
    float *latent_norm;                 /* NULL without */
};

struct kg_w_layer {
    float *input_norm, *post_norm; /* [hidden] */
    float *attn_mix, *mlp_mix;     /* [hidden] norm * proj; block residuals only */
    uint32_t index;                /* number among the layers of its kind (KDA or MLA) */
    struct kg_w_kda kda;
    struct kg_w_mla mla;
    struct kg_w_mlp mlp;
    struct kg_w_moe moe;
};

/* Working memory, (max_rows, width) each unless said; lists of sequences and products, records,
 * commit and the array streams are in host memory. Blocks of different phases of a layer share
 * bytes: kda, mla and ffn are never alive together. */
struct kg_scratch {
    float **streams; /* [n_streams] hidden: finished blocks and the running vector */
    float *mixed;    /* hidden: input of a norm */
    float *normed;   /* hidden: input of a sublayer */
    float *out;      /* hidden: output of a sublayer */
    float *hidden;   /* hidden: final, in the order of out_rows */
    float *logits;   /* vocab; untouched memory costs nothing */
    float *weights;  /* n_streams: mix weights, for taps */
    float *features; /* n_taps * hidden: what a drafter reads; NULL without one */
    struct {
        float *raw, *conv; /* 3P: q | k | v */
        float *f_a, *g_a;  /* D */
        float *f;          /* P: gate input, then alpha */
        float *z, *o;      /* P */
        float *beta;       /* H */
        float *u;          /* P: corrections, to be recorded; NULL without verification */
    } kda;
    struct {
        float *q_a;    /* q_lora */
        float *q;      /* H * (nope + rope) */
        float *kv;     /* kv_lora + rope */
        float *qa, *m; /* H * kv_lora */
        float *z, *o;  /* H * v */
        /* Bytes nobody else needs while attention runs: behind its own those of the other phases,
         * and the logits of the last pass. */
        void *rest;
        uint64_t rest_bytes;
    } mla;
    struct {
        float *gate, *up;    /* max(dense_inter, shared_inter) */
        float *scores;       /* n_experts: router logits */
        float *latent, *sum; /* expert width */
        float *pick_w;       /* top_k */
        uint32_t *picks;     /* top_k */
        void *moe;           /* moe_bytes */
        uint64_t moe_bytes;
    } ffn;
    struct kg_conv_seq *conv_seqs; /* [max_seqs] */
    struct kg_kda_seq *kda_seqs;   /* [max_seqs] */
    uint32_t *kda_past;            /* [max_seqs] positions of their first rows */
    struct kg_mla_seq *mla_seqs;   /* [max_seqs] */
    struct kg_product *products;   /* [max(8, mla heads)] */
    uint32_t *records;             /* [max_seqs] first record row of a verified sequence */
    struct kg_forward_seq *commit; /* [max_seqs] */
};

/* What replay needs of the verified rows in one KDA layer: (max_verify, width) each. */
struct kg_records {
    float *raw;       /* 3P: inputs of the convolution, q | k | v */
    float *k;         /* P, normalised */
    float *alpha, *u; /* P */
};

/* The rows of a pass whose residual stream this rank has: all of them unless it is
 * sequence-parallel, else neighbours row0 .. row0 + rows - 1 of blocks of `share`. */
struct kg_own {
    uint32_t parallel; /* 1: sequence-parallel */
    uint32_t row0, rows, share;
};

struct kg_model {
    const struct kg_host *host;
    const struct kg_kernels *k;
    struct kg_team *team, *pack_team;
    const struct kg_memory *memory;  /* NULL: the host */
    const struct kg_model_config *c; /* the checkpoint's, or `local` */
    struct kg_model_config local;    /* sizes of this rank */
    struct kg_split split;
    const struct kg_comm_ops *comm_ops; /* NULL: alone */
    struct kg_comm *comm;
    int lost;              /* of a collective */
    uint32_t sp_rows;      /* kg_model_args */
    struct kg_own own;     /* of this pass */
    float *part;           /* symmetric: (symm_rows, hidden or latent), what is summed over ranks */
    float *gathered;       /* symmetric, likewise: what all ranks brought; NULL without sp_rows */
    float *vocab, *vocabs; /* symmetric: KG_VOCAB_FLOATS of own logits, and of all ranks' */
    const struct kg_draft_config *draft; /* NULL without a drafter */
    struct kg_tensor embed;
    struct kg_model_sizes sizes;
    struct kg_tap tap;
    uint32_t max_rows, max_seqs, max_orders, max_verify;
    uint32_t rewind; /* enum kg_rewind */
    uint32_t n_streams;
    struct kg_w_layer *layers; /* [n_layers] */
    struct kg_weight lm_head;
    float *norm;    /* [hidden] */
    float *out_mix; /* [hidden]; block residuals only */
    struct kg_scratch s;
    uint8_t *weight_mem, *scratch_mem;     /* and rewind_mem: in `memory` */
    uint64_t scratch_bytes;                /* of scratch_mem */
    uint8_t *weight_lists, *scratch_lists; /* host; with `memory` only, else in the blocks above */
    uint64_t weight_list_bytes, scratch_list_bytes;
    uint8_t *rewind_mem; /* [KDA layers][max_verify]: records, or whole state parts */
};

/* Memory through the host, or libc without one. 64-byte aligned at least. */
void *kg_model_alloc(const struct kg_host *host, uint64_t bytes);
/* The same for what is written once and then read from end to end in each pass: in huge pages where
 * the system has them, so that a read does not stop for an address every 4 KiB. */
void *kg_model_alloc_weights(const struct kg_host *host, uint64_t bytes);
void kg_model_free(const struct kg_host *host, void *p, uint64_t bytes);

/* Memory for numbers: on the device, if there is one. */
void *kg_model_take(const struct kg_model *m, uint64_t bytes);
void kg_model_give(const struct kg_model *m, void *p, uint64_t bytes);

/* Packs every weight of the checkpoint: layers, lm_head, norm, out_mix, sizes.weight_bytes. */
KG_CHECKED int kg_model_pack(struct kg_model *m, const struct kg_ckpt *ckpt, struct kg_error *err);
/* Lays out the working memory: s, sizes.scratch_bytes. */
KG_CHECKED int kg_model_scratch(struct kg_model *m, struct kg_error *err);

/* parallel.c. Most floats of logits a rank gives at once. */
#define KG_VOCAB_FLOATS (1u << 18)
/* Where a partial sum is computed that kg_model_reduce will add up: `out` itself when alone. */
static inline float *kg_model_partial(const struct kg_model *m, float *out)
{
    return m->comm_ops == NULL ? out : m->part;
}
/* Adds (rows, width) of m->part over the ranks, into out. Nothing to do when alone. */
void kg_model_reduce(struct kg_model *m, float *out, uint32_t width, uint32_t rows);
/* The same at the end of a sublayer: only the rows of m->own are written to `out`. */
void kg_model_reduce_own(struct kg_model *m, float *out, uint32_t width, uint32_t rows);
/* Chooses m->own for a pass of `rows` rows. */
void kg_model_share_rows(struct kg_model *m, uint32_t rows);
/* Sequence-parallel: every rank's own rows of x (rows, hidden) become all rows of y, whose rows are
 * y_stride floats apart; y may be x. Else nothing is done: x must be y then. */
void kg_model_gather_rows(struct kg_model *m, const float *x, float *y, size_t y_stride,
                          uint32_t rows);
/* Sequence-parallel: m->s.hidden has the final vectors of those of f->out_rows that are in m->own,
 * and gets all others. */
void kg_model_gather_out(struct kg_model *m, const struct kg_forward *f);
/* Logits of all ranks' rows of lm_head: hidden (rows) -> out (rows, vocab). */
void kg_model_head(struct kg_model *m, const float *hidden, float *out, uint32_t rows);
/* Symmetric memory that suffices, bytes, whatever a plugin's alignment. */
uint64_t kg_model_symm_bytes(const struct kg_model *model);
/* Takes the symmetric memory. */
KG_CHECKED int kg_model_join(struct kg_model *m, const struct kg_model_args *args,
                             struct kg_error *err);

/* One run of bytes; see copy of the table. */
#define KG_COPY_BYTES 16384u
static inline void kg_model_copy(const struct kg_model *m, void *dst, const void *src,
                                 uint64_t bytes)
{
    uint64_t whole = bytes / KG_COPY_BYTES, at = whole * KG_COPY_BYTES;

    m->k->copy(m->team, dst, KG_COPY_BYTES, src, KG_COPY_BYTES, KG_COPY_BYTES, (uint32_t)whole);
    if (at < bytes)
        m->k->copy(m->team, (uint8_t *)dst + at, 0, (const uint8_t *)src + at, 0, bytes - at, 1);
}

/* Sublayers: m->s.normed -> out (rows, hidden), which may not be normed. */
void kg_forward_kda(struct kg_model *m, uint32_t layer, const struct kg_forward *f, float *out);
void kg_forward_mla(struct kg_model *m, uint32_t layer, const struct kg_forward *f, float *out);
void kg_forward_mlp(struct kg_model *m, uint32_t layer, uint32_t rows, float *out);
void kg_forward_moe(struct kg_model *m, uint32_t layer, uint32_t rows, float *out);

/* Applies recorded rows of one KDA layer: f has the rows to commit, row0 in records. */
void kg_replay_kda(struct kg_model *m, uint32_t layer, const struct kg_forward *f);
/* Memory of verified rows; `part` is the number of the KDA layer. */
struct kg_records kg_model_records(const struct kg_model *m, uint32_t part);
uint8_t *kg_model_snapshot(const struct kg_model *m, uint32_t part, uint32_t record);
/* Deals record rows to the verified sequences of a pass. */
void kg_model_deal_records(struct kg_model *m, const struct kg_forward *f);

/* Calls the tap if there is one. */
static inline void kg_tap_f32(const struct kg_model *m, uint32_t layer, const char *name,
                              const float *data, size_t stride, uint32_t rows, uint32_t width)
{
    if (m->tap.fn != NULL)
        m->tap.fn(m->tap.ctx, layer, name, KG_F32, data, stride, rows, width);
}

#endif
