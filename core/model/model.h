/*
 * One forward pass of the Kimi K3 / Kimi-Linear family, written once as calls on the kernel table.
 *
 * The bits of a row's result depend on the tokens before it alone: not on the batch, on how the
 * prompt was cut into steps, on page_tokens, on unit addresses or on the number of threads (the
 * kernels keep their order of additions; the pass itself treats every row alike).
 *
 * Bytes of units, all sizes 64-bit:
 * - A token in a page holds, for each MLA layer, kv_lora latent values and rope_dim shared key
 *   values. A page is one block per MLA layer in layer order; a block is page_tokens records.
 * - A state has one part per KDA layer in layer order: the recurrent matrices [heads], fp32, laid
 *   out by kg_state_at, then the convolution window [3 taps, oldest first][q | k | v channels];
 *   padded to KG_MODEL_ALIGN.
 * Records and windows are fp32 in exact math and bf16 in fast math.
 */
#ifndef KEDGE_MODEL_MODEL_H
#define KEDGE_MODEL_MODEL_H

#include "kernels/kernels.h"
#include "model/checkpoint.h"
#include "model/draft_config.h"
#include "model/memory.h"

#include <kedge/exec.h>

#define KG_MODEL_ALIGN 64       /* bytes; every unit and every state part begins on it */
#define KG_MODEL_MAX_ROWS 65536 /* of one pass: keeps every byte count far inside 64 bits */

/* How rows that were verified and not accepted are undone. */
enum kg_rewind {
    KG_REWIND_REPLAY = 0,   /* rows are recorded, accepted ones applied to the state afterwards */
    KG_REWIND_SNAPSHOT = 1, /* the whole state is kept after each row: the reference, and large */
};

/* How a model is to be dealt. */
struct kg_deal {
    uint32_t rank, world; /* world 0: 1 */
    uint32_t ep;          /* blocks of whole experts, a divisor of world; 0: 1 */
    uint32_t allow_idle;  /* 1: a rank may be left with padding only */
};

struct kg_model; /* packed weights and the working memory of one forward pass */

struct kg_model_args {
    const struct kg_host *host;       /* memory; NULL takes it from libc */
    const struct kg_kernels *kernels; /* the table, which fixes the math */
    struct kg_team *team;             /* of the table; may be NULL: one thread */
    /* Where weights and working memory go; NULL: the host. On a device the weights are packed in
     * host memory by `pack_team` (NULL: one thread), a part at a time, and sent there. */
    const struct kg_memory *memory;
    struct kg_team *pack_team;  /* read with `memory` only; else it is `team` */
    const struct kg_ckpt *ckpt; /* must outlive the model: the embedding is read there */
    uint32_t max_rows;          /* most rows of a pass, >= 1 */
    uint32_t max_seqs;          /* most sequences of a pass, >= 1 */
    uint32_t max_orders;        /* most checkpoint orders per sequence */
    uint32_t max_verify;        /* most verified rows of a pass, all sequences; 0: none */
    uint32_t rewind;            /* enum kg_rewind */
    /* a pass keeps the features this drafter reads; must outlive the model; NULL: none */
    const struct kg_draft_config *draft;
    /* This model is a rank of several, and meets the others through collectives, from which it
     * takes symmetric memory at open. world 0 or 1: alone, comm NULL. */
    struct kg_deal deal;
    /* Passes of at least so many rows are sequence-parallel: between two sublayers a rank has its
     * share of the rows only. The same bits where the collectives add in rank order. 0: never. */
    uint32_t sp_rows;
    const struct kg_comm_ops *comm_ops;
    struct kg_comm *comm;
};

struct kg_model_sizes {
    uint64_t token_bytes;      /* of one token in a page */
    uint64_t record_bytes;     /* of one token in one MLA layer's block */
    uint64_t state_part_bytes; /* of one part, padding included */
    uint64_t recurrent_bytes;  /* of a whole state: the recurrent share */
    uint64_t conv_offset;      /* bytes of the window inside a part */
    uint64_t weight_bytes;     /* packed weights and vectors */
    uint64_t scratch_bytes;    /* working memory, rewind_bytes included */
    uint64_t verify_row_bytes; /* of one verified row: what its commit needs */
    uint64_t rewind_bytes;     /* of max_verify rows; untouched memory costs nothing */
};

/*
 * How a model is dealt to `world` ranks (core/docs/ranks.md): heads in blocks of ceil(heads /
 * world), the last rank's missing ones zero; widths of feed-forward blocks in blocks of ceil(width
 * / world), rounded up to 32; rows of the vocabulary likewise. Experts are dealt whole, in ep
 * blocks of ceil(experts / ep); world / ep neighbouring ranks share the widths of a block's
 * experts. Latents, routers and norms are on every rank.
 */
struct kg_split {
    uint32_t rank, world, ep;
    uint32_t kda0, mla0;               /* first head; the number of all: only padding */
    uint32_t dense0, shared0, expert0; /* first of the inner width; likewise */
    uint32_t expert_id0, experts;      /* whole experts: first, number, >= 1 where there are any */
    uint32_t latent0, latent;          /* of the latent: first, number */
    uint32_t latent_idle;              /* 1: those columns are zeros, others hold all */
    uint32_t vocab0, vocab;            /* rows of lm_head: first, number per rank */
};

/* Fills *split and *local (sizes of that rank; n_experts stays that of all). KG_ECONFIG names what
 * does not divide or leaves a rank without work. */
KG_CHECKED int kg_model_split(const struct kg_model_config *config, const struct kg_deal *deal,
                              struct kg_split *split, struct kg_model_config *local,
                              struct kg_error *err);

/* What each rank of an open model's group holds; plans the weights of all, reads none.
 * KG_ENOENT: it is alone. KG_ENOMEM. */
KG_CHECKED int kg_model_dealt(const struct kg_model *model, const struct kg_ckpt *ckpt,
                              struct kg_dealt *dealt);

/*
 * Packs the weights and takes the working memory. KG_EINVAL names what of the configuration the
 * kernels cannot do, KG_ENOMEM the bytes. *model is set only on success.
 */
KG_CHECKED int kg_model_open(const struct kg_model_args *args, struct kg_model **model,
                             struct kg_error *err);
void kg_model_close(struct kg_model *model); /* NULL is allowed */
void kg_model_sizes(const struct kg_model *model, struct kg_model_sizes *sizes);

/* Where units lie: the arena, the pool's layout and the tables virtual entry -> slot. The arena and
 * the table of pages are in the model's memory, the table of states is read on the host. */
struct kg_model_units {
    uint8_t *arena; /* KG_MODEL_ALIGN-aligned */
    struct kg_pool_layout layout;
    const uint32_t *table[KG_N_KINDS];
    const uint32_t *slots; /* of pages: table[KG_PAGE] where the host reads it; NULL: the same */
};

/* Bytes of part `part` (0-based KDA layer number) of a state. */
uint8_t *kg_model_state_part(const struct kg_model *model, const struct kg_model_units *units,
                             uint32_t state, uint32_t part);
/* Bytes of the first record of MLA layer `index` (0-based among MLA layers) in a page. Host memory
 * only. */
uint8_t *kg_model_page_block(const struct kg_model *model, const struct kg_model_units *units,
                             uint32_t page, uint32_t index);

/* One sequence of a pass; its rows are row0 .. row0 + n_rows - 1 at positions past, past + 1, .. */
struct kg_forward_seq {
    uint32_t row0, n_rows; /* n_rows >= 1 */
    uint32_t past;
    const uint32_t *pages;         /* in the model's memory: virtual ids, covering past + n_rows
                                      tokens */
    uint32_t state;                /* written: the state after the last row */
    uint32_t state_src;            /* read: KG_STATE_KEEP, KG_STATE_ZERO or a unit */
    const struct kg_order *orders; /* past < position <= past + n_rows, ascending */
    uint32_t n_orders;
    uint32_t verify; /* 1: neither state nor orders are written before kg_model_commit */
};

/*
 * One pass. Ids are in range and units mapped, no unit is written twice, no state_src is written
 * (the caller has checked). out_rows: rows whose final hidden vector is wanted, each once, of which
 * the first n_logits also get logits.
 */
struct kg_forward {
    const struct kg_model_units *units;
    const uint32_t *tokens; /* [n_rows], in the model's memory */
    const struct kg_forward_seq *seqs;
    const uint32_t *out_rows; /* [n_out], n_out <= max_rows */
    uint32_t n_rows, n_seqs, n_out, n_logits;
};

/* Computes, or queues it on a device. Writes pages, states and orders; allocates nothing and cannot
 * fail, but for kg_model_lost. */
void kg_model_forward(struct kg_model *model, const struct kg_forward *pass);
/* What a pass of `rows` rows, `samples` of them to the logits, sends: as kg_exec_ops.messages. */
uint32_t kg_model_messages(const struct kg_model *model, uint32_t rows, uint32_t samples,
                           struct kg_message *messages, uint32_t n);
/* 0, or what a collective answered once the group was lost: results since then are worthless. */
int kg_model_lost(const struct kg_model *model);
/* The sizes this rank works with: with several ranks, its own heads and widths (heads of the
 * padding included); `vocab` is the whole one. */
const struct kg_model_config *kg_model_local(const struct kg_model *model);
/*
 * Commits the verified sequences of the last pass: state and orders become what a pass over the
 * first n_rows[i] rows of sequence i alone would have left, bit for bit; 0 leaves them as they
 * are. Entries of sequences that were not verified are ignored. Once per pass at most; hidden and
 * logits stay valid. n_rows: [pass->n_seqs].
 */
void kg_model_commit(struct kg_model *model, const struct kg_forward *pass, const uint32_t *n_rows);
/* Results of the last pass, in the model's memory and in the order of out_rows: after the final
 * norm (n_out, hidden); and (n_logits, vocab). Valid until the next pass. */
const float *kg_model_hidden(const struct kg_model *model);
const float *kg_model_logits(const struct kg_model *model);
/* Of each row of the last pass, the taps side by side: (n_rows, n_taps * hidden). Valid until the
 * next pass, and the reader's to change. NULL without a drafter. */
float *kg_model_features(struct kg_model *model);

/*
 * For tests: sees every intermediate as it is computed. `layer` is the transformer layer, KG_NONE
 * outside layers; `name` as in the golden traces ("kda.q_proj"). data: (rows, width) elements of
 * `dtype` (KG_F32 or KG_U32), row r at data + r * stride elements. The tap must copy.
 */
struct kg_tap {
    void (*fn)(void *ctx, uint32_t layer, const char *name, uint32_t dtype, const void *data,
               size_t stride, uint32_t rows, uint32_t width);
    void *ctx;
};

/* Sets or, with NULL, removes the tap. Costs one comparison per intermediate while unset. */
void kg_model_set_tap(struct kg_model *model, const struct kg_tap *tap);

#endif
