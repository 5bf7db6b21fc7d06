/*
 * The cost surface: what a step takes by sequences, rows and context, measured on the backend once
 * at start. Speculation prices a draft row with it. Monotone in all three.
 */
#ifndef KEDGE_ENGINE_COST_H
#define KEDGE_ENGINE_COST_H

#include <kedge/exec.h>

#define KG_COST_SEQS 9  /* 1, 4, 16, .. 65536 */
#define KG_COST_ROWS 18 /* 1, 2, 4, .. 131072 */

#define KG_COST_DRAFTS 8 /* 1, 2, 4, .. 64, and the drafter's block */

/* What drafting takes. All zero: nothing, or not known. */
struct kg_draft_cost {
    uint32_t n_seqs, n_sizes;                /* of the axes in use */
    uint32_t sizes[KG_COST_DRAFTS];          /* tokens a sequence, ascending */
    double ns[KG_COST_SEQS][KG_COST_DRAFTS]; /* 4^i sequences, no context */
    double token_ns;                         /* per token of context, all sequences together */
};

struct kg_cost_table {
    uint32_t n_seqs, n_rows;               /* of the axes in use, each >= 1 */
    double ns[KG_COST_SEQS][KG_COST_ROWS]; /* 4^i sequences, 2^j rows, no context */
    double token_ns;                       /* per token of context, all sequences together */
    struct kg_draft_cost draft;
};

/*
 * Asks the backend's profile at every point of the grid that it can do; windows of up to 16 rows a
 * sequence, beyond them the last slope goes on. Takes tens of milliseconds a point. The backend is
 * bound and nothing is in flight. Returns the backend's error when it cannot time a single row.
 */
KG_CHECKED int kg_cost_measure(struct kg_cost_table *t, const struct kg_exec_ops *ops,
                               struct kg_exec *exec, uint32_t max_seqs, uint32_t max_rows,
                               uint32_t max_context);

/* The same for drafts of 1..block tokens, by way of profile_draft; *d stays zero where the backend
 * has none. */
KG_CHECKED int kg_draft_cost_measure(struct kg_draft_cost *d, const struct kg_exec_ops *ops,
                                     struct kg_exec *exec, uint32_t max_seqs, uint32_t block,
                                     uint32_t max_context);

/* struct kg_cost.step_ns over a table (ctx). Between the points: linear. */
uint64_t kg_cost_step_ns(void *ctx, uint32_t n_seqs, uint32_t rows, uint64_t context);
/* struct kg_cost.draft_ns over a table (ctx). Between the points: linear; past them, as the last
 * two go on. */
uint64_t kg_cost_draft_ns(void *ctx, uint32_t n_seqs, uint32_t n_tokens, uint64_t context);

#endif
