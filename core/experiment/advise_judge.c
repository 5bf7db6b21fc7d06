/* Guidance in closed form, and whether a candidate is better beyond luck. */
#include "experiment/advise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_DRAWS 1000u
/* An interval above this share of the shared length is not what the rule was made for. */
#define LONG_SHARE 0.5

/* --- guidance --- */

void kg_guide_sides(const struct kg_guide_in *in, double interval, double *again, double *displaced)
{
    double price = in->token_bytes > 0 ? in->state_bytes / in->token_bytes : 0;

    *again = interval / 2;
    *displaced = in->n_repeating > 0 && interval > 0
                     ? price * in->again_tokens / interval / in->n_repeating
                     : 0;
}

void kg_guide_of(const struct kg_guide_in *in, struct kg_guide *g)
{
    memset(g, 0, sizeof(*g));
    g->token_us = in->token_ns / 1e3;
    g->state_tokens = in->token_bytes > 0 ? in->state_bytes / in->token_bytes : 0;
    g->state_ms = g->state_tokens * in->token_ns / 1e6;
    g->repeated_share = in->prompt_tokens > 0 ? in->repeated_tokens / in->prompt_tokens : 0;
    if (in->n_repeating <= 0) {
        return;
    }
    g->shared_tokens = in->repeated_tokens / in->n_repeating;
    g->kept_tokens = in->again_tokens / in->n_repeating;
    double n = sqrt(2 * g->state_tokens * g->kept_tokens);
    g->interval_is_long = n > LONG_SHARE * g->shared_tokens;
    g->is_least = n < in->least;
    n = fmax(n, in->least);
    n = in->page_tokens > 0 ? fmax(round(n / in->page_tokens), 1) * in->page_tokens : n;
    g->interval = in->longest > 0 ? fmin(n, in->longest) : n;
    g->interval_lost = g->interval / 2;
}

/* --- judging --- */

/* The figure of ab_stats an objective is decided by. */
static uint32_t figure_of(uint32_t objective)
{
    switch (objective) {
    case KG_ADVISE_TTFT:
        return KG_AB_FIG_TIMES + 3 * KG_AB_TTFT + 1;
    case KG_ADVISE_TPOT:
        return KG_AB_FIG_TIMES + 3 * KG_AB_TPOT + 1;
    case KG_ADVISE_GOODPUT:
        return KG_AB_FIG_COUNTS + (KG_AB_GOOD - KG_AB_REFUSED);
    default: /* throughput: of the times between ends, see spread_ends */
        return KG_AB_FIG_TIMES + 3 * KG_AB_E2E + 1;
    }
}

struct end {
    double at;
    uint32_t i;
};

static int by_end(const void *a, const void *b)
{
    const struct end *x = a, *y = b;

    return x->at != y->at ? (x->at > y->at) - (x->at < y->at) : (x->i > y->i) - (x->i < y->i);
}

/*
 * For throughput: a copy of all rows in which a request's time to the end is the time since the
 * end before it, in order of ends. Its mean is the reciprocal of the rate, and parts and windows of
 * it can be taken.
 */
static int spread_ends(const struct kg_ab_run *run, uint32_t n, struct kg_ab_run *out)
{
    struct end *ends = calloc(n, sizeof(*ends));
    double last = 0;
    uint32_t m = 0;

    out->rows = malloc((size_t)n * sizeof(*out->rows));
    if (ends == NULL || out->rows == NULL) {
        free(ends);
        free(out->rows);
        out->rows = NULL;
        return KG_ENOMEM;
    }
    memcpy(out->rows, run->rows, (size_t)n * sizeof(*out->rows));
    for (uint32_t i = 0; i < n; i++) {
        const struct kg_ab_row *r = &out->rows[i];
        if (r->ok) {
            ends[m++] = (struct end){r->arrival_ms + r->v[KG_AB_E2E], i};
        }
    }
    qsort(ends, m, sizeof(*ends), by_end);
    for (uint32_t k = 0; k < m; k++) {
        out->rows[ends[k].i].v[KG_AB_E2E] = ends[k].at - last;
        last = ends[k].at;
    }
    free(ends);
    return KG_OK;
}

int kg_advise_part(struct kg_ab_run *run, uint32_t n, uint32_t *n_pick)
{
    struct kg_ab_row *rows = malloc((size_t)n * sizeof(*rows) + 1);
    uint32_t at = 0, window = (n + KG_ADVISE_WINDOWS - 1) / KG_ADVISE_WINDOWS;

    if (rows == NULL) {
        return KG_ENOMEM;
    }
    for (uint32_t odd = 0; odd < 2; odd++) {
        for (uint32_t i = 0; i < n; i++) {
            if (i / window % 2 == odd) {
                rows[at++] = run->rows[i];
            }
        }
        *n_pick = odd == 0 ? at : *n_pick;
    }
    memcpy(run->rows, rows, (size_t)n * sizeof(*rows));
    free(rows);
    return KG_OK;
}

/* The rows looked at, as the objective wants them; free what `own` holds. */
static int rows_of(const struct kg_advise_judge *j, struct kg_ab_run view[2],
                   struct kg_ab_run own[2])
{
    const struct kg_ab_run *runs[2] = {j->base, j->other};
    int rc = KG_OK;

    for (uint32_t k = 0; k < 2; k++) {
        view[k] = *runs[k];
        own[k].rows = NULL;
        if (rc == KG_OK && j->objective == KG_ADVISE_THROUGHPUT) {
            rc = spread_ends(runs[k], j->n_all, &own[k]);
            view[k].rows = own[k].rows;
        }
        view[k].rows = view[k].rows != NULL ? view[k].rows + j->from : NULL;
    }
    return rc;
}

/* Times become rates: the interval turns round. */
static void to_rate(struct kg_advise_gain *g)
{
    double lo = g->lo;

    g->a = g->a > 0 ? 1e3 / g->a : NAN;
    g->b = g->b > 0 ? 1e3 / g->b : NAN;
    g->rel = 1 / (1 + g->rel) - 1;
    g->lo = 1 / (1 + g->hi) - 1;
    g->hi = 1 / (1 + lo) - 1;
}

static void gain_of(const struct kg_advise_judge *j, const struct kg_ab_result *r,
                    struct kg_advise_gain *g)
{
    uint32_t m = figure_of(j->objective);
    const struct kg_ab_figure *f = &r->figures[m];
    int is_share = kg_ab_figure_about(m)->is_share, sign = is_share ? 1 : -1;
    double rel = is_share ? f->diff : f->rel;
    double lo = is_share ? f->lo : f->rel_lo, hi = is_share ? f->hi : f->rel_hi;
    int apart = f->is_tested && fabs(f->diff) > f->critical * f->se && (lo > 0 || hi < 0) &&
                fabs(rel) >= j->least;

    *g = (struct kg_advise_gain){.a = f->a,
                                 .b = f->b,
                                 .rel = rel,
                                 .lo = lo,
                                 .hi = hi,
                                 .n = f->n,
                                 .n_windows = r->n_blocks,
                                 .is_tested = f->is_tested,
                                 .is_better = apart && rel * sign > 0,
                                 .is_worse = apart && rel * sign < 0};
    if (j->objective == KG_ADVISE_THROUGHPUT) {
        to_rate(g);
    }
}

int kg_advise_judge(const struct kg_advise_judge *j, struct kg_advise_gain *gain,
                    struct kg_ab_result *result, struct kg_error *err)
{
    struct kg_ab_run view[2], own[2] = {{0}};
    struct kg_ab_result r;

    if (j->n == 0 || j->n_finalists == 0) {
        return kg_fail(err, KG_EINVAL, "nothing to compare");
    }
    int rc = rows_of(j, view, own);
    if (rc != KG_OK) {
        rc = kg_fail(err, rc, "no memory for %u rows", j->n_all);
    }
    const struct kg_ab_conf conf = {.runs = {&view[0], &view[1]},
                                    .n_repeats = 1,
                                    .n = j->n,
                                    .n_draws = N_DRAWS,
                                    .n_comparisons = j->n_finalists,
                                    .alpha = 0.05,
                                    .level = 1 - 0.05 / j->n_finalists,
                                    .least = j->least,
                                    .seed = j->seed};
    rc = rc == KG_OK ? kg_ab_compare(&conf, &r, err) : rc;
    if (rc == KG_OK) {
        gain_of(j, &r, gain);
        if (result != NULL) {
            *result = r;
        }
    }
    kg_ab_run_free(&own[0]);
    kg_ab_run_free(&own[1]);
    return rc;
}

double kg_advise_gain_of(const struct kg_advise_judge *j)
{
    static const uint32_t fields[KG_ADVISE_N_OBJECTIVES] = {
        [KG_ADVISE_TTFT] = KG_AB_TTFT,    [KG_ADVISE_TPOT] = KG_AB_TPOT,
        [KG_ADVISE_E2E] = KG_AB_E2E,      [KG_ADVISE_THROUGHPUT] = KG_AB_E2E,
        [KG_ADVISE_GOODPUT] = KG_AB_GOOD,
    };
    struct kg_ab_run view[2], own[2] = {{0}};
    double sum[2] = {0, 0};
    uint32_t n_ok[2] = {0, 0}, field = fields[j->objective];
    int rc = rows_of(j, view, own);

    for (uint32_t i = 0; rc == KG_OK && i < j->n; i++) {
        const struct kg_ab_row *a = &view[0].rows[i], *b = &view[1].rows[i];
        n_ok[0] += a->ok;
        n_ok[1] += b->ok;
        int both = a->ok && b->ok && !isnan(a->v[field]) && !isnan(b->v[field]);
        if (both || j->objective == KG_ADVISE_GOODPUT) {
            sum[0] += a->v[field];
            sum[1] += b->v[field];
        }
    }
    kg_ab_run_free(&own[0]);
    kg_ab_run_free(&own[1]);
    if (rc != KG_OK || n_ok[1] < n_ok[0]) {
        return NAN;
    }
    if (j->objective == KG_ADVISE_GOODPUT) {
        return (sum[1] - sum[0]) / j->n;
    }
    if (j->objective == KG_ADVISE_THROUGHPUT) {
        return sum[1] > 0 ? sum[0] / sum[1] - 1 : NAN;
    }
    return sum[0] > 0 ? (sum[0] - sum[1]) / sum[0] : 0;
}
