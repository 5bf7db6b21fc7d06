#include "experiment/ab_int.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIN_PAIRS 20u
#define MIN_PAIRS_P99 500u /* five requests beyond the quantile */
#define MIN_BLOCKS 8u

static const struct kg_ab_figure_about abouts[KG_AB_N_FIGURES] = {
    {"median TTFT", "ms", 0, -1},  {"mean TTFT", "ms", 0, -1},  {"p99 TTFT", "ms", 0, -1},
    {"median TPOT", "ms", 0, -1},  {"mean TPOT", "ms", 0, -1},  {"p99 TPOT", "ms", 0, -1},
    {"median E2E", "ms", 0, -1},   {"mean E2E", "ms", 0, -1},   {"p99 E2E", "ms", 0, -1},
    {"median queue", "ms", 0, -1}, {"mean queue", "ms", 0, -1}, {"p99 queue", "ms", 0, -1},
    {"refused", "", 1, -1},        {"failed", "", 1, -1},       {"good", "", 1, 1},
    {"page hits", "tokens", 0, 0}, {"reused", "tokens", 0, 1},  {"lost", "tokens", 0, -1},
    {"preempted", "times", 0, -1}, {"accepted", "", 1, 0},
};

const struct kg_ab_figure_about *kg_ab_figure_about(uint32_t figure)
{
    return &abouts[figure];
}

int kg_ab_by_item(const void *a, const void *b)
{
    const struct kg_ab_item *x = a, *y = b;

    return (x->v > y->v) - (x->v < y->v);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Linear between ranks; v ascending, n >= 1. */
static double quantile(const double *v, uint32_t n, double q)
{
    double at = q * (double)(n - 1);
    uint32_t i = (uint32_t)at;

    return i + 1 < n ? v[i] + (at - (double)i) * (v[i + 1] - v[i]) : v[n - 1];
}

/* --- Student --- */

/* P(|t| <= x), closed form for whole degrees of freedom (Abramowitz and Stegun 26.7.3, 26.7.4). */
static double student_cdf(double x, uint32_t df)
{
    double theta = atan(x / sqrt((double)df)), c = cos(theta), s = sin(theta);
    double sum = 0, term = df % 2 == 1 ? c : 1;

    for (uint32_t k = df % 2 == 1 ? 2 : 1; k < df; k += 2) {
        sum += term;
        term *= c * c * (double)k / (double)(k + 1);
    }
    return df % 2 == 1 ? (theta + s * sum) * 2 / acos(-1.0) : s * sum;
}

double kg_ab_student(double p, uint32_t df)
{
    double lo = 0, hi = 1e9;

    df = df > 400 ? 400 : df; /* 0.3 % above the normal law's by then */
    for (uint32_t i = 0; i < 200; i++) {
        double mid = (lo + hi) / 2;
        if (student_cdf(mid, df) < p) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return hi;
}

/* --- preparing --- */

void *kg_ab_take(struct kg_ab_work *k, size_t n, size_t size)
{
    void *p = calloc(n + 1, size);

    k->memory[k->n_memory++] = p;
    return p;
}

static const struct kg_ab_row *row_of(const struct kg_ab_work *k, uint32_t arm, uint32_t at)
{
    return &k->c->runs[arm][at / k->c->n].rows[at % k->c->n];
}

static int check_pairs(const struct kg_ab_work *k, struct kg_error *err)
{
    for (uint32_t at = 0; at < k->n_all[0]; at++) {
        const struct kg_ab_row *a = row_of(k, 0, at), *b = row_of(k, 1, at);
        if (a->id != b->id) {
            return kg_fail(err, KG_EINVAL, "request %u has different ids in A and B: two traces?",
                           at % k->c->n + 1);
        }
        if (a->n_prompt != b->n_prompt && a->ok && b->ok) {
            return kg_fail(err, KG_EINVAL,
                           "request %u has %u prompt tokens in A and %u in B: two traces, or two "
                           "models",
                           at % k->c->n + 1, a->n_prompt, b->n_prompt);
        }
    }
    return KG_OK;
}

static void fill(struct kg_ab_work *k, double *cols, struct kg_ab_item *items)
{
    for (uint32_t f = 0; f < KG_AB_N_FIELDS; f++) {
        for (uint32_t arm = 0; arm < 2; arm++) {
            k->col[arm][f] = cols + ((size_t)arm * KG_AB_N_FIELDS + f) * k->n_all[0];
            for (uint32_t at = 0; at < k->n_all[0]; at++) {
                k->col[arm][f][at] = row_of(k, arm, at)->v[f];
            }
        }
    }
    for (uint32_t f = 0; f < KG_AB_N_TIMES; f++) {
        double *a = k->col[0][f], *b = k->col[1][f];
        for (uint32_t arm = 0; arm < 2; arm++) {
            k->sorted[arm][f] = items + ((size_t)arm * KG_AB_N_TIMES + f) * k->n_all[0];
        }
        for (uint32_t at = 0; at < k->n_all[0]; at++) {
            if (!row_of(k, 0, at)->ok || !row_of(k, 1, at)->ok || isnan(a[at]) || isnan(b[at])) {
                a[at] = b[at] = NAN;
                continue;
            }
            k->sorted[0][f][k->n_timed[0][f]] = (struct kg_ab_item){a[at], at};
            k->sorted[1][f][k->n_timed[0][f]++] = (struct kg_ab_item){b[at], at};
        }
        for (uint32_t arm = 0; arm < 2; arm++) {
            k->n_timed[1][f] = k->n_timed[0][f];
            qsort(k->sorted[arm][f], k->n_timed[0][f], sizeof(struct kg_ab_item), kg_ab_by_item);
        }
    }
}

static int prepare(struct kg_ab_work *k, struct kg_error *err)
{
    const struct kg_ab_conf *c = k->c;
    uint64_t all = (uint64_t)c->n_repeats * c->n;

    if (all > UINT32_MAX / 2) {
        return kg_fail(err, KG_ELIMIT, "%u repeats of %u requests are too many", c->n_repeats,
                       c->n);
    }
    k->n_all[0] = k->n_all[1] = (uint32_t)all;
    int rc = check_pairs(k, err);
    if (rc != KG_OK) {
        return rc;
    }
    double *cols = kg_ab_take(k, (size_t)2 * KG_AB_N_FIELDS * k->n_all[0], sizeof(*cols));
    struct kg_ab_item *items =
        kg_ab_take(k, (size_t)2 * KG_AB_N_TIMES * k->n_all[0], sizeof(*items));
    k->w[0] = k->w[1] = kg_ab_take(k, k->n_all[0], sizeof(*k->w[0]));
    k->cb = kg_ab_take(k, c->n, sizeof(*k->cb));
    k->diffs = kg_ab_take(k, (size_t)c->n_draws * KG_AB_N_FIGURES, sizeof(*k->diffs));
    k->rels = kg_ab_take(k, (size_t)c->n_draws * KG_AB_N_FIGURES, sizeof(*k->rels));
    k->line = kg_ab_take(k, c->n_draws > c->n ? c->n_draws : c->n, 2 * sizeof(*k->line));
    for (uint32_t i = 0; i < k->n_memory; i++) {
        if (k->memory[i] == NULL) {
            return kg_fail(err, KG_ENOMEM, "no memory to compare %u requests", k->n_all[0]);
        }
    }
    fill(k, cols, items);
    return KG_OK;
}

/* --- windows --- */

/* Requests after which differences forget each other: the sum of the autocorrelations of the
 * paired difference, cut where they sink into noise. Outliers are drawn in first. */
static double memory_of(struct kg_ab_work *k, uint32_t field)
{
    uint32_t n = 0, n_req = k->c->n;
    double *d = k->line, *s = k->line + n_req, mean = 0, c0 = 0, tau = 1;

    for (uint32_t i = 0; i < n_req; i++) {
        double sum = 0;
        uint32_t m = 0;
        for (uint32_t at = i; at < k->n_all[0]; at += n_req) {
            if (!isnan(k->col[0][field][at])) {
                sum += k->col[1][field][at] - k->col[0][field][at];
                m++;
            }
        }
        if (m > 0) {
            d[n++] = sum / m;
        }
    }
    if (n < 2 * MIN_PAIRS) {
        return 1;
    }
    memcpy(s, d, n * sizeof(*d));
    qsort(s, n, sizeof(*s), by_value);
    double lo = quantile(s, n, 0.05), hi = quantile(s, n, 0.95);
    for (uint32_t i = 0; i < n; i++) {
        d[i] = d[i] < lo ? lo : d[i] > hi ? hi : d[i];
        mean += d[i] / n;
    }
    for (uint32_t i = 0; i < n; i++) {
        c0 += (d[i] - mean) * (d[i] - mean);
    }
    for (uint32_t lag = 1; c0 > 0 && lag < n / 8 && lag < 4000; lag++) {
        double sum = 0;
        for (uint32_t i = lag; i < n; i++) {
            sum += (d[i] - mean) * (d[i - lag] - mean);
        }
        if (sum / c0 < 2 * sqrt(log10((double)n) / n)) {
            break;
        }
        tau += 2 * sum / c0;
    }
    return tau;
}

/* Twice the longest memory, at least the cube root of n, at most a sixteenth of n. */
static uint32_t choose_block(struct kg_ab_work *k)
{
    double want = cbrt((double)k->c->n);
    uint32_t most = k->c->n / 16;

    for (uint32_t f = 0; f < KG_AB_N_TIMES; f++) {
        want = fmax(want, 2 * memory_of(k, f));
    }
    most = most > 0 ? most : 1;
    return want < most ? (uint32_t)ceil(want) : most;
}

/* --- figures under weights --- */

/* Median, mean and p99 of the items, each counted w times. */
static void times_of(const struct kg_ab_item *it, uint32_t n, const uint32_t *w, double out[3])
{
    uint64_t total = 0, seen = 0;
    double sum = 0, found[4] = {0};

    for (uint32_t i = 0; i < n; i++) {
        total += w[it[i].at];
        sum += w[it[i].at] * it[i].v;
    }
    if (total == 0) {
        out[0] = out[1] = out[2] = NAN;
        return;
    }
    double mid = 0.5 * (double)(total - 1), far = 0.99 * (double)(total - 1);
    const uint64_t ranks[4] = {
        (uint64_t)mid, (uint64_t)mid + 1 < total ? (uint64_t)mid + 1 : total - 1, (uint64_t)far,
        (uint64_t)far + 1 < total ? (uint64_t)far + 1 : total - 1};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t more = w[it[i].at];
        for (uint32_t r = 0; more > 0 && r < 4; r++) {
            found[r] = ranks[r] >= seen && ranks[r] < seen + more ? it[i].v : found[r];
        }
        seen += more;
    }
    out[0] = found[0] + (mid - floor(mid)) * (found[1] - found[0]);
    out[1] = sum / (double)total;
    out[2] = found[2] + (far - floor(far)) * (found[3] - found[2]);
}

void kg_ab_figures(const struct kg_ab_work *k, uint32_t arm, double out[KG_AB_N_FIGURES])
{
    double sums[KG_AB_N_FIELDS] = {0}, total = 0;

    for (uint32_t f = 0; f < KG_AB_N_TIMES; f++) {
        times_of(k->sorted[arm][f], k->n_timed[arm][f], k->w[arm], out + 3 * f);
    }
    for (uint32_t at = 0; at < k->n_all[arm]; at++) {
        total += k->w[arm][at];
    }
    for (uint32_t f = KG_AB_N_TIMES; f < KG_AB_N_FIELDS; f++) {
        for (uint32_t at = 0; at < k->n_all[arm]; at++) {
            sums[f] += k->w[arm][at] * k->col[arm][f][at];
        }
    }
    for (uint32_t f = KG_AB_REFUSED; f < KG_AB_VERIFIED; f++) {
        out[KG_AB_FIG_COUNTS + f - KG_AB_REFUSED] = sums[f] / total;
    }
    out[KG_AB_FIG_ACCEPTANCE] =
        sums[KG_AB_VERIFIED] > 0 ? sums[KG_AB_ACCEPTED] / sums[KG_AB_VERIFIED] : NAN;
}

double kg_ab_relative(double a, double b)
{
    return a > 0 ? (b - a) / a : NAN;
}

/* --- drawing --- */

static void draw(struct kg_ab_work *k, struct kg_rng *rng, uint32_t block)
{
    uint32_t n = k->c->n, n_runs = k->c->n_repeats;

    memset(k->cb, 0, n * sizeof(*k->cb));
    for (uint32_t taken = 0; taken < n;) {
        uint32_t at = (uint32_t)kg_rng_below(rng, n);
        for (uint32_t i = 0; i < block && taken < n; i++, taken++) {
            k->cb[at]++;
            at = at + 1 < n ? at + 1 : 0; /* round the end, so that all places are alike */
        }
    }
    memset(k->w[0], 0, k->n_all[0] * sizeof(*k->w[0]));
    for (uint32_t r = 0; r < n_runs; r++) {
        uint32_t *w = k->w[0] + (size_t)(n_runs > 1 ? kg_rng_below(rng, n_runs) : 0) * n;
        for (uint32_t i = 0; i < n; i++) {
            w[i] += k->cb[i];
        }
    }
}

static void draw_all(struct kg_ab_work *k, uint32_t block)
{
    double a[KG_AB_N_FIGURES], b[KG_AB_N_FIGURES];
    struct kg_rng rng;

    kg_rng_seed(&rng, k->c->seed);
    for (uint32_t d = 0; d < k->c->n_draws; d++) {
        draw(k, &rng, block);
        kg_ab_figures(k, 0, a);
        kg_ab_figures(k, 1, b);
        for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
            k->diffs[(size_t)d * KG_AB_N_FIGURES + m] = b[m] - a[m];
            k->rels[(size_t)d * KG_AB_N_FIGURES + m] = kg_ab_relative(a[m], b[m]);
        }
    }
}

/* The middle of one figure's draws, 95 % unless asked otherwise; NaN draws are left out. */
static void interval(struct kg_ab_work *k, const double *all, uint32_t m, double *lo, double *hi)
{
    double tail = (1 - (k->c->level > 0 ? k->c->level : 0.95)) / 2;
    uint32_t n = 0;

    for (uint32_t d = 0; d < k->c->n_draws; d++) {
        double v = all[(size_t)d * KG_AB_N_FIGURES + m];
        if (!isnan(v)) {
            k->line[n++] = v;
        }
    }
    qsort(k->line, n, sizeof(*k->line), by_value);
    *lo = n > 0 ? quantile(k->line, n, tail) : NAN;
    *hi = n > 0 ? quantile(k->line, n, 1 - tail) : NAN;
}

static void moments(const struct kg_ab_work *k, uint32_t m, double *mean, double *se)
{
    double sum = 0, sq = 0;
    uint32_t n = 0;

    for (uint32_t d = 0; d < k->c->n_draws; d++) {
        double v = k->diffs[(size_t)d * KG_AB_N_FIGURES + m];
        sum += isnan(v) ? 0 : v;
        n += isnan(v) ? 0 : 1;
    }
    *mean = n > 0 ? sum / n : NAN;
    for (uint32_t d = 0; d < k->c->n_draws; d++) {
        double v = k->diffs[(size_t)d * KG_AB_N_FIGURES + m];
        sq += isnan(v) ? 0 : (v - *mean) * (v - *mean);
    }
    *se = n > 1 ? sqrt(sq / (n - 1)) : NAN;
}

/* The quantile of the largest standardised deviation over the tested figures from..to of a draw. */
static double critical_of(struct kg_ab_work *k, const struct kg_ab_figure *figs, uint32_t from,
                          uint32_t to, double p)
{
    double mean[KG_AB_N_FIGURES], se;

    for (uint32_t m = from; m < to; m++) {
        moments(k, m, &mean[m], &se);
    }
    for (uint32_t d = 0; d < k->c->n_draws; d++) {
        double most = 0;
        for (uint32_t m = from; m < to; m++) {
            double v = k->diffs[(size_t)d * KG_AB_N_FIGURES + m];
            if (figs[m].is_tested && figs[m].se > 0 && !isnan(v)) {
                most = fmax(most, fabs(v - mean[m]) / figs[m].se);
            }
        }
        k->line[d] = most;
    }
    qsort(k->line, k->c->n_draws, sizeof(*k->line), by_value);
    return fmax(quantile(k->line, k->c->n_draws, p), kg_ab_student(p, 400));
}

/* --- the comparison --- */

/* The figures of the rows as they are. */
void kg_ab_measure(struct kg_ab_work *k, struct kg_ab_result *r)
{
    double a[KG_AB_N_FIGURES], b[KG_AB_N_FIGURES];

    for (uint32_t arm = 0; arm < 2; arm++) {
        for (uint32_t at = 0; at < k->n_all[arm]; at++) {
            k->w[arm][at] = 1;
        }
    }
    kg_ab_figures(k, 0, a);
    kg_ab_figures(k, 1, b);
    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        struct kg_ab_figure *f = &r->figures[m];
        uint32_t t = m / 3;
        f->a = a[m];
        f->b = b[m];
        f->diff = b[m] - a[m];
        f->rel = kg_ab_relative(a[m], b[m]);
        f->n = k->n_all[0] < k->n_all[1] ? k->n_all[0] : k->n_all[1];
        if (m < KG_AB_FIG_COUNTS) {
            f->n = k->n_timed[0][t] < k->n_timed[1][t] ? k->n_timed[0][t] : k->n_timed[1][t];
        }
    }
}

/* The rules of kg_ab_compare: what is tested, and what is beyond chance. */
void kg_ab_judge(struct kg_ab_work *k, struct kg_ab_result *r)
{
    const struct kg_ab_conf *c = k->c;
    double p = 1 - c->alpha / c->n_comparisons;
    uint32_t df = c->runs_vary && c->n_repeats < r->n_blocks ? c->n_repeats : r->n_blocks;
    int few = c->runs_vary || c->clients[0] != NULL; /* units, not windows */
    double spread = few && df > 1 ? sqrt((double)df / (df - 1)) : 1;

    r->cannot_tell = c->runs_vary && c->n_repeats < 2;
    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        struct kg_ab_figure *f = &r->figures[m];
        double mean;
        uint32_t is_p99 = m < KG_AB_FIG_COUNTS && m % 3 == 2;
        interval(k, k->diffs, m, &f->lo, &f->hi);
        interval(k, k->rels, m, &f->rel_lo, &f->rel_hi);
        moments(k, m, &mean, &f->se);
        f->is_tested = !r->cannot_tell && !isnan(f->diff) && !isnan(f->se) &&
                       r->n_blocks >= MIN_BLOCKS && f->n >= (is_p99 ? MIN_PAIRS_P99 : MIN_PAIRS);
        r->n_tested += f->is_tested;
    }
    double student = df > 1 ? kg_ab_student(p, df - 1) / kg_ab_student(p, 400) : 1;
    r->critical = critical_of(k, r->figures, 0, KG_AB_N_FIGURES, p) * spread * student;
    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        struct kg_ab_figure *f = &r->figures[m];
        f->critical = critical_of(k, r->figures, m, m + 1, p) * spread * student;
        f->is_different = f->is_tested && fabs(f->diff) > r->critical * f->se;
        f->is_small = f->is_different && fabs(abouts[m].is_share ? f->diff : f->rel) < c->least;
    }
}

static void compare_rows(const struct kg_ab_work *k, struct kg_ab_result *r)
{
    r->is_same = 1;
    for (uint32_t at = 0; at < k->n_all[0]; at++) {
        const struct kg_ab_row *a = row_of(k, 0, at), *b = row_of(k, 1, at);
        r->n_pairs += a->ok && b->ok;
        r->is_same = r->is_same && a->ok == b->ok && a->n_output == b->n_output &&
                     a->output_hash == b->output_hash;
        for (uint32_t f = 0; f < KG_AB_N_FIELDS; f++) {
            r->is_same = r->is_same && (a->v[f] == b->v[f] || (isnan(a->v[f]) && isnan(b->v[f])));
        }
        if (a->ok && b->ok && a->n_output == b->n_output && a->output_hash != 0 &&
            b->output_hash != 0) {
            r->n_outputs_compared++;
            r->n_outputs_differ += a->output_hash != b->output_hash;
        }
    }
}

static double rate_of(const struct kg_ab_conf *c, uint32_t arm, uint32_t run, int good)
{
    const struct kg_ab_run *u = &c->runs[arm][run];
    double tokens = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        if (good ? u->rows[i].v[KG_AB_GOOD] > 0 : u->rows[i].ok) {
            tokens += u->rows[i].n_output;
        }
    }
    return u->duration_s > 0 ? tokens / u->duration_s : NAN;
}

static struct kg_ab_rate rates(const struct kg_ab_conf *c, int good)
{
    struct kg_ab_rate r = {.rel_lo = NAN, .rel_hi = NAN};
    uint32_t n = c->n_repeats;
    double sum = 0, sq = 0;

    for (uint32_t k = 0; k < n; k++) {
        double a = rate_of(c, 0, k, good), b = rate_of(c, 1, k, good), d = kg_ab_relative(a, b);
        r.a += a / n;
        r.b += b / n;
        sum += d;
        sq += d * d;
    }
    r.rel = kg_ab_relative(r.a, r.b);
    if (n >= 3) {
        double mean = sum / n, var = fmax(0, (sq - n * mean * mean) / (n - 1));
        double half = kg_ab_student(0.95, n - 1) * sqrt(var / n);
        r.rel_lo = mean - half;
        r.rel_hi = mean + half;
    }
    return r;
}

int kg_ab_compare(const struct kg_ab_conf *conf, struct kg_ab_result *result, struct kg_error *err)
{
    struct kg_ab_work k = {.c = conf};
    struct kg_ab_result r = {0};

    if (conf->clients[0] != NULL) {
        return kg_ab_compare_clients(conf, result, err);
    }
    if (conf->n == 0 || conf->n_repeats == 0 || conf->n_draws < 100 || conf->n_comparisons == 0) {
        return kg_fail(err, KG_EINVAL, "nothing to compare");
    }
    int rc = prepare(&k, err);
    if (rc == KG_OK) {
        r.block = conf->block > 0 ? conf->block : choose_block(&k);
        r.block = r.block < conf->n ? r.block : conf->n;
        r.n_blocks = (conf->n + r.block - 1) / r.block;
        compare_rows(&k, &r);
        kg_ab_measure(&k, &r);
        draw_all(&k, r.block);
        kg_ab_judge(&k, &r);
        r.throughput = rates(conf, 0);
        r.goodput = rates(conf, 1);
        *result = r;
    }
    for (uint32_t i = 0; i < k.n_memory; i++) {
        free(k.memory[i]);
    }
    return rc;
}

/* --- in words --- */

static void put_change(struct kg_buf *b, uint32_t m, const struct kg_ab_figure *f)
{
    if (abouts[m].is_share) {
        (void)kg_buf_printf(b, "%s %.2f %% to %.2f %%", abouts[m].name, 100 * f->a, 100 * f->b);
    } else if (isnan(f->rel)) {
        (void)kg_buf_printf(b, "%s %.3g to %.3g %s", abouts[m].name, f->a, f->b, abouts[m].unit);
    } else {
        (void)kg_buf_printf(b, "%s %+.1f %% (95 %% %+.1f .. %+.1f)", abouts[m].name, 100 * f->rel,
                            100 * f->rel_lo, 100 * f->rel_hi);
    }
}

/* The differences among figures from..to whose sign is `sign` (0: any), at most three. */
static uint32_t put_list(struct kg_buf *b, const struct kg_ab_result *r, uint32_t from, uint32_t to,
                         int sign)
{
    uint32_t n = 0;

    for (uint32_t m = from; m < to; m++) {
        const struct kg_ab_figure *f = &r->figures[m];
        if (!f->is_different || f->is_small || (sign != 0 && (f->diff > 0 ? 1 : -1) != sign)) {
            continue;
        }
        if (b != NULL && n < 3) {
            (void)kg_buf_puts(b, n > 0 ? ", " : "");
            put_change(b, m, f);
        }
        n++;
    }
    if (b != NULL && n > 3) {
        (void)kg_buf_printf(b, ", and %u more", n - 3);
    }
    return n;
}

static void put_none(const struct kg_ab_result *r, struct kg_buf *buf)
{
    const struct kg_ab_figure *f = &r->figures[KG_AB_FIG_TIMES + 3 * KG_AB_E2E];
    uint32_t n_small = 0;

    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        n_small += r->figures[m].is_small;
    }
    if (r->n_tested == 0 && r->n_clients[0] > 0) {
        (void)kg_buf_printf(buf,
                            "Cannot tell: %u and %u clients, worth %u equal ones in the lesser "
                            "arm, are too few.\n",
                            r->n_clients[0], r->n_clients[1], r->n_blocks);
        return;
    }
    if (r->n_tested == 0) {
        (void)kg_buf_printf(buf, "Cannot tell: %u pairs in %u windows are too few.\n", r->n_pairs,
                            r->n_blocks);
        return;
    }
    (void)kg_buf_printf(buf, "No difference shown; %u figures were looked at.", r->n_tested);
    if (!isnan(f->rel_lo)) {
        (void)kg_buf_printf(buf, " Median E2E lies within %+.1f .. %+.1f %%.", 100 * f->rel_lo,
                            100 * f->rel_hi);
    }
    if (n_small > 0) {
        (void)kg_buf_printf(buf, " %u of them differ, by too little to matter.", n_small);
    }
    (void)kg_buf_puts(buf, "\n");
}

int kg_ab_verdict(const struct kg_ab_result *r, const char *a, const char *b, struct kg_buf *buf)
{
    uint32_t to = KG_AB_FIG_COUNTS;
    uint32_t faster = put_list(NULL, r, 0, to, -1), slower = put_list(NULL, r, 0, to, 1);
    uint32_t others = put_list(NULL, r, to, KG_AB_N_FIGURES, 0);

    if (r->is_same) {
        return kg_buf_printf(buf, "%s and %s are the same in every figure of every request.\n", a,
                             b);
    }
    if (r->cannot_tell) {
        return kg_buf_puts(buf,
                           "Cannot tell: measured times of equal runs differ by themselves, and "
                           "one run of each arm does not show by how much; --repeat 10 does.\n");
    }
    if (faster + slower + others == 0) {
        put_none(r, buf);
        return buf->rc;
    }
    if (faster > 0) {
        (void)kg_buf_printf(buf, "%s is faster%s: ", b, slower > 0 ? " here" : "");
        (void)put_list(buf, r, 0, to, -1);
        (void)kg_buf_puts(buf, ".\n");
    }
    if (slower > 0) {
        (void)kg_buf_printf(buf, "%s is slower%s: ", b, faster > 0 ? " there" : "");
        (void)put_list(buf, r, 0, to, 1);
        (void)kg_buf_puts(buf, ".\n");
    }
    if (others > 0) {
        (void)kg_buf_printf(buf, "%s with %s: ", faster + slower > 0 ? "And" : "Times alike, but",
                            b);
        (void)put_list(buf, r, to, KG_AB_N_FIGURES, 0);
        (void)kg_buf_puts(buf, ".\n");
    }
    return buf->rc;
}
