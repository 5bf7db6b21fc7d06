/*
 * How many drafts to verify, from their survivals and the price of rows: the search, without any
 * state. A candidate (r, j) is draft j of sequence r; it can be taken only after (r, j - 1), and
 * its survival is not larger. Candidates are ranked by falling survival, then by j, then by r, so
 * what is taken of a sequence is always a prefix, and whether (r, j) is among the k best does not
 * depend on survivals behind j of the same sequence.
 */
#ifndef KEDGE_SPEC_CONFIDENCE_PLAN_H
#define KEDGE_SPEC_CONFIDENCE_PLAN_H

#include <kedge/types.h>

struct plan_seqs {
    uint32_t n;            /* sequences */
    uint32_t stride;       /* floats from one sequence to the next */
    const uint32_t *most;  /* [n] candidates of each, <= stride */
    const float *survival; /* [n][stride] in 0..1, not rising along a sequence */
    uint32_t *heap;        /* [n] working memory */
};

/* Time of a step with `rows` draft rows, its drafting included. Not falling; above 0. */
struct plan_cost {
    double (*ns)(void *ctx, uint32_t rows);
    void *ctx;
};

struct plan_best {
    uint32_t rows;             /* draft rows in all */
    double tokens;             /* expected of the step: one for each sequence and the survivals */
    double ns;                 /* of the step */
    uint32_t total;            /* all candidates, cut to the limit */
    double all_tokens, all_ns; /* of a step that verifies `total` */
};

/*
 * Takes the `rows` best candidates whose survival is at least `least`; lengths[n] is how many of
 * each sequence. Returns how many in all.
 */
uint32_t plan_take(const struct plan_seqs *seqs, uint32_t rows, float least, uint32_t *lengths);

/*
 * The number of best candidates with the most tokens per time; the smallest of equals. `lengths`:
 * working memory [n]. Sees all candidates: an answer for these very drafts would depend on them,
 * so it is for survivals of an earlier round.
 */
struct plan_best plan_search(const struct plan_seqs *seqs, const struct plan_cost *cost,
                             uint32_t limit, uint32_t *lengths);

/*
 * Takes candidates while tokens per time rise, and stops at the first that does not raise it
 * (the first algorithm of arXiv 2607.05147). lengths[n] as above. path: NULL, or [limit + 2] for
 * the values it saw, the last one being what stopped it; *n_path: how many.
 */
struct plan_best plan_stop(const struct plan_seqs *seqs, const struct plan_cost *cost,
                           uint32_t limit, uint32_t *lengths, double *path, uint32_t *n_path);

#endif
