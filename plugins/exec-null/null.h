/*
 * exec-null: a backend that computes nothing. Tokens follow script.h; the arena is real, so with
 * `check = yes` each step proves that pages and states hold what this sequence wrote: lost moves,
 * stale states, wrong page lists and units given away too early become errors with a text.
 */
#ifndef KEDGE_EXEC_NULL_NULL_H
#define KEDGE_EXEC_NULL_NULL_H

#include <kedge/exec.h>

struct null_conf {
    uint32_t clock; /* 0 virtual, 1 real */
    uint32_t check;
    uint32_t async;
    uint32_t vocab;
    uint32_t max_context;
    uint32_t n_state_parts;
    uint32_t draft_block;
    uint32_t page_tokens_align;
    uint64_t base_ns;
    uint64_t per_row_ns;
    uint64_t token_bytes;
    uint64_t state_part_bytes;
    double accept;
};

/* One backend slot. */
struct null_slot {
    uint64_t id;
    uint64_t hash; /* h(past) */
    uint32_t epoch;
    uint32_t live;
    uint32_t past;         /* committed tokens */
    uint32_t n_known;      /* tokens known: prompt and output */
    uint32_t output_start; /* first output position */
    uint32_t state;        /* working unit */
    uint32_t n_pages;
    uint32_t n_drafts; /* pending drafts of draft() */
    uint32_t *tokens;  /* [max_context + max_draft + 1] */
    uint32_t *pages;   /* [max_pages] */
    uint32_t *drafts;  /* [max_draft] */
    uint64_t stamp;    /* step that last named this slot */
    struct kg_sampling sampling;
};

struct kg_exec {
    const struct kg_host *host;
    const struct kg_comm_ops *comm_ops; /* with several ranks: they meet at each step */
    struct kg_comm *comm;
    struct null_conf conf;
    uint32_t max_seqs, max_rows, max_context, max_draft;
    uint32_t max_pages; /* per sequence */
    uint32_t bound;
    uint64_t caps;
    struct kg_pool_layout layout;
    uint8_t *arena;
    uint32_t *table[KG_N_KINDS];  /* entry -> slot */
    uint32_t n_table[KG_N_KINDS]; /* entries */
    uint32_t n_entry[KG_N_KINDS]; /* entries per unit */
    struct null_slot *slots;      /* [max_seqs] */
    uint32_t *slot_tokens, *slot_pages, *slot_drafts;
    struct kg_seq_result *results; /* [max_seqs] */
    uint32_t *out_tokens;          /* [max_seqs][1 + max_draft] */
    uint64_t *row_hash;            /* [max_rows + 1] */
    struct kg_logprob *logprobs;   /* [n_logprobs_max] */
    size_t n_logprobs_max;
    float *logits; /* [max_rows][vocab], NULL without CAP_LOGITS */
    struct kg_view *views;
    uint32_t n_views;
    /* the step in flight */
    const struct kg_batch *batch;
    uint64_t step_ns, t_submit;
    uint64_t stamp;
    _Atomic uint64_t now_ns; /* virtual clock */
};

/* null.c: units. Address of entry `entry` (unit id * entries per unit + i); NULL when unmapped. */
uint8_t *null_entry(const struct kg_exec *x, uint32_t kind, uint32_t entry);
int null_unit_mapped(const struct kg_exec *x, uint32_t kind, uint32_t id);
int null_poison(struct kg_exec *x, uint32_t kind, uint32_t id);
int null_copy(struct kg_exec *x, uint32_t kind, uint32_t dst, uint32_t src);
int null_zero(struct kg_exec *x, uint32_t kind, uint32_t id);
uint64_t null_now(const struct kg_exec *x);

/* step.c */
int null_submit(struct kg_exec *x, const struct kg_batch *batch, struct kg_error *err);
int null_wait(struct kg_exec *x, struct kg_result *result, struct kg_error *err);
int null_draft(struct kg_exec *x, struct kg_draft *drafts, uint32_t n);
void null_drop(struct kg_exec *x, const uint32_t *slots, uint32_t n);
uint64_t null_cost(const struct kg_exec *x, uint32_t rows);

/* contract.c: KG_OK or KG_EINVAL with text; changes nothing but stamps. */
int null_check_batch(struct kg_exec *x, const struct kg_batch *batch, struct kg_error *err);
/* Pages and working state of a sequence hold what its tokens say; after the reset was taken in. */
int null_check_content(const struct kg_exec *x, const struct null_slot *s, uint64_t id,
                       struct kg_error *err);

#endif
