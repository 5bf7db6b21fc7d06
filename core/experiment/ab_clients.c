/*
 * Two arms of one server. Clients were split by a hash, so what differs between the arms beyond
 * their rules is which clients they got: that is the chance to reckon with. The bootstrap draws as
 * many clients as an arm has, with all their requests, each arm by itself. Requests of both arms
 * ran in the same batches at the same hours, so what a busy hour does it does to both.
 */
#include "experiment/ab_int.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int check(const struct kg_ab_conf *c, struct kg_error *err)
{
    for (uint32_t arm = 0; arm < 2; arm++) {
        if (c->n_of[arm] == 0 || c->n_clients[arm] == 0 || c->n_of[arm] > UINT32_MAX / 4) {
            return kg_fail(err, KG_EINVAL, "nothing to compare: %u requests of %u clients",
                           c->n_of[arm], c->n_clients[arm]);
        }
        for (uint32_t at = 0; at < c->n_of[arm]; at++) {
            if (c->clients[arm][at] >= c->n_clients[arm]) {
                return kg_fail(err, KG_EINVAL, "request %u is of client %u, of %u", at,
                               c->clients[arm][at], c->n_clients[arm]);
            }
        }
    }
    return c->n_draws >= 100 && c->n_comparisons > 0
               ? KG_OK
               : kg_fail(err, KG_EINVAL, "nothing to compare");
}

/* Columns and sorted times of one arm. */
static void fill(struct kg_ab_work *k, uint32_t arm, double *cols, struct kg_ab_item *items)
{
    uint32_t n = k->n_all[arm];

    for (uint32_t f = 0; f < KG_AB_N_FIELDS; f++) {
        k->col[arm][f] = cols + (size_t)f * n;
        for (uint32_t at = 0; at < n; at++) {
            const struct kg_ab_row *row = kg_ab_row_at(k->c, arm, at);
            double v = row->v[f];
            k->col[arm][f][at] = v;
            if (f < KG_AB_N_TIMES && row->ok && !isnan(v)) {
                items[(size_t)f * n + k->n_timed[arm][f]++] = (struct kg_ab_item){v, at};
            }
        }
    }
    for (uint32_t f = 0; f < KG_AB_N_TIMES; f++) {
        k->sorted[arm][f] = items + (size_t)f * n;
        qsort(k->sorted[arm][f], k->n_timed[arm][f], sizeof(struct kg_ab_item), kg_ab_by_item);
    }
}

static int prepare(struct kg_ab_work *k, struct kg_error *err)
{
    const struct kg_ab_conf *c = k->c;
    uint32_t most = c->n_clients[0] > c->n_clients[1] ? c->n_clients[0] : c->n_clients[1];
    size_t all = (size_t)c->n_of[0] + c->n_of[1];

    double *cols = kg_ab_take(k, all * KG_AB_N_FIELDS, sizeof(*cols));
    struct kg_ab_item *items = kg_ab_take(k, all * KG_AB_N_TIMES, sizeof(*items));
    k->w[0] = kg_ab_take(k, all, sizeof(*k->w[0]));
    k->cb = kg_ab_take(k, most, sizeof(*k->cb));
    k->diffs = kg_ab_take(k, (size_t)c->n_draws * KG_AB_N_FIGURES, sizeof(*k->diffs));
    k->rels = kg_ab_take(k, (size_t)c->n_draws * KG_AB_N_FIGURES, sizeof(*k->rels));
    k->line = kg_ab_take(k, c->n_draws, 2 * sizeof(*k->line));
    for (uint32_t i = 0; i < k->n_memory; i++) {
        if (k->memory[i] == NULL) {
            return kg_fail(err, KG_ENOMEM, "no memory to compare %zu requests", all);
        }
    }
    k->w[1] = k->w[0] + c->n_of[0];
    for (uint32_t arm = 0; arm < 2; arm++) {
        k->n_all[arm] = c->n_of[arm];
    }
    fill(k, 0, cols, items);
    fill(k, 1, cols + (size_t)c->n_of[0] * KG_AB_N_FIELDS,
         items + (size_t)c->n_of[0] * KG_AB_N_TIMES);
    return KG_OK;
}

static void draw(struct kg_ab_work *k, struct kg_rng *rng, uint32_t arm)
{
    uint32_t n = k->c->n_clients[arm];

    memset(k->cb, 0, n * sizeof(*k->cb));
    for (uint32_t i = 0; i < n; i++) {
        k->cb[kg_rng_below(rng, n)]++;
    }
    for (uint32_t at = 0; at < k->n_all[arm]; at++) {
        k->w[arm][at] = k->cb[k->c->clients[arm][at]];
    }
}

static void draw_all(struct kg_ab_work *k)
{
    double a[KG_AB_N_FIGURES], b[KG_AB_N_FIGURES];
    struct kg_rng rng;

    kg_rng_seed(&rng, k->c->seed);
    for (uint32_t d = 0; d < k->c->n_draws; d++) {
        draw(k, &rng, 0);
        draw(k, &rng, 1);
        kg_ab_figures(k, 0, a);
        kg_ab_figures(k, 1, b);
        for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
            k->diffs[(size_t)d * KG_AB_N_FIGURES + m] = b[m] - a[m];
            k->rels[(size_t)d * KG_AB_N_FIGURES + m] = kg_ab_relative(a[m], b[m]);
        }
    }
}

/* Clients of equal size that would tell as much: (sum of sizes)^2 / sum of squares (Kish). An arm
 * in which one client sends half of the requests is worth four at most. */
static uint32_t worth(const struct kg_ab_work *k, uint32_t arm)
{
    uint32_t n = k->c->n_clients[arm];
    double squares = 0, sum = k->n_all[arm];

    memset(k->cb, 0, n * sizeof(*k->cb));
    for (uint32_t at = 0; at < k->n_all[arm]; at++) {
        k->cb[k->c->clients[arm][at]]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        squares += (double)k->cb[i] * k->cb[i];
    }
    return (uint32_t)(sum * sum / squares + 1e-6);
}

int kg_ab_compare_clients(const struct kg_ab_conf *conf, struct kg_ab_result *result,
                          struct kg_error *err)
{
    const struct kg_ab_rate none = {NAN, NAN, NAN, NAN, NAN};
    struct kg_ab_work k = {.c = conf};
    struct kg_ab_result r = {.throughput = none, .goodput = none};

    int rc = check(conf, err);
    rc = rc == KG_OK ? prepare(&k, err) : rc;
    if (rc == KG_OK) {
        uint32_t a = worth(&k, 0), b = worth(&k, 1);
        r.n_blocks = a < b ? a : b;
        r.n_clients[0] = conf->n_clients[0];
        r.n_clients[1] = conf->n_clients[1];
        kg_ab_measure(&k, &r);
        draw_all(&k);
        kg_ab_judge(&k, &r);
        *result = r;
    }
    for (uint32_t i = 0; i < k.n_memory; i++) {
        free(k.memory[i]);
    }
    return rc;
}
