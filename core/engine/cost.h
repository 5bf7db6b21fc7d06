/*
 * The cost surface: what a step takes by sequences, rows and context. Measured on the backend once
 * at start and refreshed as it runs, or read from a file and then never changed, so that decisions
 * do not depend on the clock. Speculation prices a draft row with it, eviction what a lost state
 * would cost. Monotone in all arguments.
 */
#ifndef KEDGE_ENGINE_COST_H
#define KEDGE_ENGINE_COST_H

#include <kedge/exec.h>
#include <stdio.h>

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
    double ns[KG_COST_SEQS][KG_COST_ROWS]; /* 4^i decoding sequences, 2^j rows, no context */
    double token_ns;                       /* per token of context, all sequences together */
    /* As measured at start: steps of long contexts leave part of it. Zeros where nothing
     * was measured. */
    double start_ns[KG_COST_SEQS][KG_COST_ROWS];
    struct kg_draft_cost draft;
    uint32_t n_chunk;              /* points below, >= 1 */
    double chunk_ns[KG_COST_ROWS]; /* 2^j rows of one prompt, nothing before them */
    double prompt_token_ns;        /* per row of a prompt and token before it */
};

/*
 * Asks the backend's profile at every point of the grid that it can do; windows of up to 16 rows a
 * sequence, beyond them the last slope goes on. Prompts are measured up to the first chunk that
 * takes a tenth of a second. Takes tens of milliseconds a point. The backend is bound and nothing
 * is in flight. Returns the backend's error when it cannot time a single row.
 */
KG_CHECKED int kg_cost_measure(struct kg_cost_table *t, const struct kg_exec_ops *ops,
                               struct kg_exec *exec, uint32_t max_seqs, uint32_t max_rows,
                               uint32_t max_context);

/* The same for drafts of 1..block tokens, by way of profile_draft; *d stays zero where the backend
 * has none. */
KG_CHECKED int kg_draft_cost_measure(struct kg_draft_cost *d, const struct kg_exec_ops *ops,
                                     struct kg_exec *exec, uint32_t max_seqs, uint32_t block,
                                     uint32_t max_context);

/* As an integer, from 0 to 1e18: a file may name times that no integer holds, and lines that cross
 * go on below zero. */
uint64_t kg_cost_whole_ns(double ns);
/* struct kg_cost.step_ns over a table (ctx). Between the points: linear. */
uint64_t kg_cost_step_ns(void *ctx, uint32_t n_seqs, uint32_t rows, uint64_t context);
/* struct kg_cost.draft_ns over a table (ctx). Between the points: linear; past them, as the last
 * two go on. */
uint64_t kg_cost_draft_ns(void *ctx, uint32_t n_seqs, uint32_t n_tokens, uint64_t context);

/*
 * ns to compute the tokens from .. to-1 of one prompt, the tokens before them known, in chunks of
 * at most `chunk` rows (>= 1): what is lost with a state at `to` whose nearest state above is at
 * `from`. 0 when to <= from. This is what struct kg_index_conf.cost_ns wants of the engine.
 */
uint64_t kg_cost_prefill_ns(const struct kg_cost_table *t, uint32_t from, uint32_t to,
                            uint32_t chunk);

/*
 * A step took `ns`, its drafts not included: n_seqs sequences that only decoded; `rows` and
 * `context` as in kg_cost_step_ns. The points around it move a sixteenth of the way, at most to
 * half or twice the value at once, and the others give way where the surface would fall.
 */
void kg_cost_learn(struct kg_cost_table *t, uint32_t n_seqs, uint32_t rows, uint64_t context,
                   uint64_t ns);
/* Drafting n_tokens tokens for each of n_seqs sequences took `ns`; the nearest point moves as
 * above. Nothing happens to a table of zeros. */
void kg_draft_cost_learn(struct kg_draft_cost *d, uint32_t n_seqs, uint32_t n_tokens,
                         uint64_t context, uint64_t ns);
/* The same for a step that was nothing but `rows` rows of one prompt behind `from` tokens. */
void kg_cost_learn_chunk(struct kg_cost_table *t, uint32_t from, uint32_t rows, uint64_t ns);

/* --- cost_file.c: a table as text --- */

/*
 * One `key value...` a line, '#' begins a comment, in this order:
 *
 *     kedge-surface 1        first line: the version of the format
 *     token_ns X             per token of context of decoding sequences
 *     prompt_token_ns X      per row of a prompt and token before it
 *     step SEQS ROWS NS      SEQS = 1, 4, 16, .. and for each of them ROWS = 1, 2, 4, .. up to the
 *                            same last ROWS (fewer rows than sequences are there to interpolate);
 *                            NS does not fall with either
 *     chunk ROWS NS          ROWS = 1, 2, 4, ..; NS does not fall
 *     draft_token_ns X       with a drafter only: per token of context of drafting sequences
 *     draft SEQS TOKENS NS   SEQS as above, and for each of them the same ascending TOKENS
 *
 * Numbers are decimal, 0 .. 1e15. KG_ENOENT, KG_EIO, KG_ECONFIG with file, line and what is wrong;
 * *t is set only on success.
 */
KG_CHECKED int kg_cost_read(const char *path, struct kg_cost_table *t, struct kg_error *err);
/* Writes such a text; what is read back is equal to the last bit. `about`: one line of comment.
 * KG_EIO. */
KG_CHECKED int kg_cost_write(const struct kg_cost_table *t, const char *about, FILE *f);

#endif
