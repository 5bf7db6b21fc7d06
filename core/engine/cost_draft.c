/* What drafting takes, measured as the steps are. */
#include "engine/cost.h"

#define NEAR_CONTEXT 256u /* tokens of a sequence while the grid is measured */
#define FAR_CONTEXT 4096u /* of the one point that shows what context costs */

static void set_sizes(struct kg_draft_cost *d, uint32_t block)
{
    for (uint32_t n = 1; n < block && d->n_sizes + 1 < KG_COST_DRAFTS; n *= 2) {
        d->sizes[d->n_sizes++] = n;
    }
    d->sizes[d->n_sizes++] = block;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* One row of the table; nothing of it is set when the backend cannot do it. */
static int measure_seqs(struct kg_draft_cost *d, const struct kg_exec_ops *ops,
                        struct kg_exec *exec, uint32_t i, uint32_t context)
{
    uint32_t n = 1u << 2 * i;
    uint64_t ns;

    for (uint32_t j = 0; j < d->n_sizes; j++) {
        int rc = ops->profile_draft(exec, n, d->sizes[j], context, &ns);
        if (rc != KG_OK) {
            return rc;
        }
        double here = larger((double)ns - d->token_ns * n * context, 0.0);
        here = larger(here, j > 0 ? d->ns[i][j - 1] : 0.0); /* never falls, whatever the clock */
        d->ns[i][j] = larger(here, i > 0 ? d->ns[i - 1][j] : 0.0);
    }
    return KG_OK;
}

#define TRIES 3 /* of a point that others are measured against */

static int least_of(const struct kg_exec_ops *ops, struct kg_exec *exec, uint32_t block,
                    uint32_t context, uint64_t *least)
{
    uint64_t ns;

    *least = UINT64_MAX;
    for (uint32_t i = 0; i < TRIES; i++) {
        int rc = ops->profile_draft(exec, 1, block, context, &ns);
        if (rc != KG_OK) {
            return rc;
        }
        *least = ns < *least ? ns : *least;
    }
    return KG_OK;
}

int kg_draft_cost_measure(struct kg_draft_cost *d, const struct kg_exec_ops *ops,
                          struct kg_exec *exec, uint32_t max_seqs, uint32_t block,
                          uint32_t max_context)
{
    uint32_t near = max_context / 4 < NEAR_CONTEXT ? max_context / 4 : NEAR_CONTEXT;
    uint32_t far = max_context / 2 < FAR_CONTEXT ? max_context / 2 : FAR_CONTEXT;
    uint64_t ns, far_ns;

    *d = (struct kg_draft_cost){0};
    if (!KG_HAS(ops, struct kg_exec_ops, profile_draft) || block == 0) {
        return KG_OK;
    }
    int rc = least_of(ops, exec, block, near, &ns);
    if (rc == KG_OK) {
        rc = least_of(ops, exec, block, far, &far_ns);
    }
    if (rc != KG_OK) {
        return rc;
    }
    set_sizes(d, block);
    if (far_ns > ns && far > near) { /* at most half of a draft is context: the rest is noise */
        double most = near > 0 ? (double)ns / 2 / near : 0.0;
        d->token_ns = (double)(far_ns - ns) / (double)(far - near);
        d->token_ns = d->token_ns < most ? d->token_ns : most;
    }
    for (uint32_t i = 0; i < KG_COST_SEQS && (1u << 2 * i) <= max_seqs; i++) {
        rc = measure_seqs(d, ops, exec, i, near);
        if (rc != KG_OK) {
            return i > 0 ? KG_OK : rc; /* more sequences than it can do */
        }
        d->n_seqs++;
    }
    return KG_OK;
}

/* Where a number of tokens lies between two sizes; past the last on their line. */
static uint32_t size_at(const struct kg_draft_cost *d, uint32_t n, double *share)
{
    uint32_t j = 0;

    *share = 0.0;
    if (d->n_sizes < 2 || n <= d->sizes[0]) {
        return 0;
    }
    while (j + 2 < d->n_sizes && n >= d->sizes[j + 1]) {
        j++;
    }
    *share = (double)(n - d->sizes[j]) / (double)(d->sizes[j + 1] - d->sizes[j]);
    return j;
}

static double at_size(const struct kg_draft_cost *d, uint32_t i, uint32_t n)
{
    double share;
    uint32_t j = size_at(d, n, &share);

    if (d->n_sizes < 2) {
        return d->ns[i][0] * (double)n / d->sizes[0];
    }
    return d->ns[i][j] + (d->ns[i][j + 1] - d->ns[i][j]) * share;
}

static uint32_t seqs_at(const struct kg_draft_cost *d, uint32_t n_seqs)
{
    uint32_t i = 0;

    while (i + 2 < d->n_seqs && n_seqs >= 1u << 2 * (i + 1)) {
        i++;
    }
    return i;
}

static double grid_ns(const struct kg_draft_cost *d, uint32_t n_seqs, uint32_t n_tokens)
{
    uint32_t i = seqs_at(d, n_seqs);
    double low = at_size(d, i, n_tokens), n = (double)(1u << 2 * i);

    if (d->n_seqs < 2) {
        return low * n_seqs; /* one point: each pays as much */
    }
    return low + (at_size(d, i + 1, n_tokens) - low) * ((double)n_seqs - n) / (3.0 * n);
}

uint64_t kg_cost_draft_ns(void *ctx, uint32_t n_seqs, uint32_t n_tokens, uint64_t context)
{
    const struct kg_cost_table *t = ctx;

    if (t->draft.n_seqs == 0 || n_seqs == 0 || n_tokens == 0) {
        return 0;
    }
    return kg_cost_whole_ns(grid_ns(&t->draft, n_seqs, n_tokens) +
                            t->draft.token_ns * (double)context);
}

/* A point moves; the others give way where the table would fall. */
static void move_point(struct kg_draft_cost *d, uint32_t i, uint32_t j, double by)
{
    double v = d->ns[i][j] = larger(d->ns[i][j] * (1.0 + by), 0.0);

    for (uint32_t a = 0; a < d->n_seqs; a++) {
        for (uint32_t b = 0; b < d->n_sizes; b++) {
            if (a >= i && b >= j && d->ns[a][b] < v) {
                d->ns[a][b] = v;
            } else if (a <= i && b <= j && d->ns[a][b] > v) {
                d->ns[a][b] = v;
            }
        }
    }
}

void kg_draft_cost_learn(struct kg_draft_cost *d, uint32_t n_seqs, uint32_t n_tokens,
                         uint64_t context, uint64_t ns)
{
    if (d->n_seqs == 0 || n_seqs == 0 || n_tokens == 0) {
        return;
    }
    double share, now = grid_ns(d, n_seqs, n_tokens);
    uint32_t i = seqs_at(d, n_seqs), j = size_at(d, n_tokens, &share);
    double seen = (double)ns - d->token_ns * (double)context;
    if (!(now > 0) || !(seen > 0)) {
        return;
    }
    double by = seen / now - 1.0;
    by = by < -0.5 ? -0.5 : by > 1.0 ? 1.0 : by; /* one step that was held up says little */
    if (i + 1 < d->n_seqs && n_seqs > 2u << 2 * i) {
        i++; /* the nearer one */
    }
    j += share > 0.5 && j + 1 < d->n_sizes;
    move_point(d, i, j, by / 16);
}
