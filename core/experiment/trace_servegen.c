/*
 * Clients as distributions. A client's requests are drawn window by window: gaps from the window's
 * Gamma or Weibull law with the window's rate as their mean, lengths from the tables of the last
 * period that began and has any; then all clients are merged. One seed, one trace.
 */
#include "experiment/trace_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_S 600.0
#define MAX_PERIODS 64

struct table {
    double *sums; /* [n] running sums of the probabilities */
    uint32_t *tokens;
    uint32_t n;
};

struct period {
    uint32_t start_s;
    struct table in, out;
};

struct window {
    double start_s, shape, scale;
    int weibull;
    uint32_t client;
};

struct client {
    uint64_t number;
    struct period periods[MAX_PERIODS];
    uint32_t n_periods;
    struct kg_rng rng;
};

struct model {
    struct client *clients;
    struct window *windows;
    size_t n_clients, n_windows, cap_windows;
};

static void table_free(struct table *t)
{
    free(t->sums);
    free(t->tokens);
}

static void model_free(struct model *m)
{
    for (size_t i = 0; i < m->n_clients; i++) {
        for (uint32_t p = 0; p < m->clients[i].n_periods; p++) {
            table_free(&m->clients[i].periods[p].in);
            table_free(&m->clients[i].periods[p].out);
        }
    }
    free(m->clients);
    free(m->windows);
}

/* [[tokens, probability], ...] */
static int read_table(struct kg_reader *r, const json_t *o, const char *key, struct table *t)
{
    const json_t *a = NULL;
    double sum = 0;
    int rc = kg_tj_array(r, o, key, &a);

    if (rc <= 0 || json_array_size(a) == 0) {
        return rc < 0 ? rc : rc == 0 ? KG_BAD(r, "len.%s: missing", key) : KG_OK;
    }
    t->n = (uint32_t)json_array_size(a);
    t->sums = calloc(t->n, sizeof(*t->sums));
    t->tokens = calloc(t->n, sizeof(*t->tokens));
    if (t->sums == NULL || t->tokens == NULL) {
        return kg_fail(r->err, KG_ENOMEM, "out of memory");
    }
    for (uint32_t i = 0; i < t->n; i++) {
        const json_t *e = json_array_get(a, i);
        double tokens = json_number_value(json_array_get(e, 0));
        double p = json_number_value(json_array_get(e, 1));
        if (json_array_size(e) != 2 || !(tokens >= 0 && tokens <= KG_TRACE_MAX_TOKENS) ||
            !(p >= 0 && p <= 1)) {
            return KG_BAD(r, "len.%s[%u]: no pair of tokens and probability", key, i);
        }
        sum += p;
        t->sums[i] = sum;
        t->tokens[i] = (uint32_t)tokens;
    }
    return sum > 0 ? KG_OK : KG_BAD(r, "len.%s: probabilities sum to 0", key);
}

static int read_lengths(struct kg_reader *r, struct client *c, const json_t *o)
{
    const json_t *len = json_object_get(o, "len");
    const char *key;
    json_t *v;

    if (!json_is_object(len) || json_object_size(len) == 0) {
        return KG_BAD(r, "%s", "len: wanted an object of periods");
    }
    json_object_foreach((json_t *)(uintptr_t)len, key, v)
    {
        char *end;
        unsigned long start = strtoul(key, &end, 10);
        if (*end != '\0' || end == key || start > 100u * 86400 || !json_is_object(v)) {
            return KG_BAD(r, "len: \"%.20s\" is no start of a period in seconds", key);
        }
        if (c->n_periods == MAX_PERIODS) {
            return KG_BAD(r, "len: over %d periods", MAX_PERIODS);
        }
        struct period *p = &c->periods[c->n_periods++];
        p->start_s = (uint32_t)start;
        int rc = read_table(r, v, "in", &p->in);
        if (rc == KG_OK) {
            rc = read_table(r, v, "out", &p->out);
        }
        if (rc != KG_OK) {
            return rc;
        }
        if (p->in.n == 0 || p->out.n == 0) { /* nothing was seen in that period */
            table_free(&p->in);
            table_free(&p->out);
            memset(p, 0, sizeof(*p));
            c->n_periods--;
        }
    }
    return c->n_periods > 0 ? KG_OK : KG_BAD(r, "%s", "len: no period has lengths");
}

static int read_window(struct kg_reader *r, struct model *m, const json_t *w, size_t i)
{
    const char *family = json_string_value(json_array_get(w, 3));
    double v[6] = {0};

    for (size_t k = 0; k < 6; k++) {
        v[k] = json_number_value(json_array_get(w, k));
    }
    if (json_array_size(w) != 6 || family == NULL ||
        (strcmp(family, "Gamma") != 0 && strcmp(family, "Weibull") != 0)) {
        return KG_BAD(r, "win[%zu]: wanted [t, rate, cv, \"Gamma\" or \"Weibull\", shape, scale]",
                      i);
    }
    if (!(v[0] >= 0 && v[0] <= 8.64e6) || !(v[1] >= 0 && v[1] <= 1e4) ||
        !(v[4] > 1e-3 && v[4] < 1e4) || !(v[5] > 0)) {
        return KG_BAD(r, "win[%zu]: time, rate, shape or scale out of range", i);
    }
    if (v[1] == 0) {
        return KG_OK;
    }
    /* The published scale was fitted to the gaps inside the window, which are the shorter ones;
     * the law keeps its shape and is stretched to the window's rate. */
    double unit = family[0] == 'G' ? v[4] : tgamma(1 + 1 / v[4]);
    v[5] = 1 / (v[1] * unit);
    if (m->n_windows == m->cap_windows) {
        size_t cap = m->cap_windows == 0 ? 1024 : 2 * m->cap_windows;
        struct window *p = cap > (1u << 24) ? NULL : realloc(m->windows, cap * sizeof(*p));
        if (p == NULL) {
            return kg_fail(r->err, KG_ENOMEM, "no memory for %zu windows", cap);
        }
        m->windows = p;
        m->cap_windows = cap;
    }
    m->windows[m->n_windows++] =
        (struct window){v[0], v[4], v[5], family[0] == 'W', (uint32_t)m->n_clients - 1};
    return KG_OK;
}

static int read_client(struct kg_reader *r, const json_t *o, void *ctx)
{
    struct model *m = ctx;
    const json_t *win = NULL;
    struct client *p = realloc(m->clients, (m->n_clients + 1) * sizeof(*p));

    if (p == NULL) {
        return kg_fail(r->err, KG_ENOMEM, "out of memory");
    }
    m->clients = p;
    struct client *c = &m->clients[m->n_clients++];
    memset(c, 0, sizeof(*c));
    int rc = kg_tj_need(r, o, "client", 0, UINT32_MAX, &c->number);
    kg_rng_seed(&c->rng, kg_hash_mix(r->conf->seed) + c->number);
    if (rc == KG_OK) {
        rc = read_lengths(r, c, o);
    }
    if (rc == KG_OK && (rc = kg_tj_array(r, o, "win", &win)) == 0) {
        return KG_BAD(r, "%s", "win: missing");
    }
    for (size_t i = 0; rc >= 0 && i < json_array_size(win); i++) {
        rc = read_window(r, m, json_array_get(win, i), i);
    }
    return rc < 0 ? rc : KG_OK;
}

/* --- drawing --- */

static double draw_gap(struct kg_rng *g, const struct window *w)
{
    if (w->weibull) {
        return w->scale * pow(-log(1 - kg_rng_f64(g)), 1 / w->shape);
    }
    return w->scale * kg_rng_gamma(g, w->shape);
}

/* From a window's start to its first request. The process runs already, so that the gap it falls
 * into is drawn by its length, and the start lies anywhere in it: without that a bursty client
 * would send (cv^2 - 1) / 2 requests too many in every window. */
static double draw_first(struct kg_rng *g, const struct window *w)
{
    double u = kg_rng_f64(g);

    if (w->weibull) {
        return u * w->scale * pow(kg_rng_gamma(g, 1 + 1 / w->shape), 1 / w->shape);
    }
    return u * w->scale * kg_rng_gamma(g, w->shape + 1);
}

static uint32_t draw_length(struct kg_rng *g, const struct table *t)
{
    double u = kg_rng_f64(g) * t->sums[t->n - 1];
    uint32_t lo = 0, hi = t->n - 1;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (t->sums[mid] > u) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return t->tokens[lo];
}

/* The last period that began, the first one before any did. */
static const struct period *period_of(const struct client *c, double t_s)
{
    const struct period *best = &c->periods[0];

    for (uint32_t i = 0; i < c->n_periods; i++) {
        const struct period *p = &c->periods[i];
        if (p->start_s <= t_s && (best->start_s > t_s || p->start_s > best->start_s)) {
            best = p;
        }
    }
    return best;
}

static int draw_request(struct kg_reader *r, struct client *c, double t_s)
{
    const struct period *p = period_of(c, t_s);
    struct kg_trace_req q = kg_trace_blank(r);

    q.arrive_ns = kg_trace_ns(t_s, 1e9);
    if (r->conf->horizon_ns != 0 && q.arrive_ns > r->conf->horizon_ns) {
        return KG_OK;
    }
    q.n_prompt = q.n_named = kg_trace_scaled(r, draw_length(&c->rng, &p->in));
    q.n_output = kg_trace_scaled(r, draw_length(&c->rng, &p->out));
    q.block = KG_TRACE_MAX_TOKENS;

    if (r->conf->max_input != 0 && q.n_prompt > r->conf->max_input) {
        return ++r->t->n_dropped < 1u << 24 ? KG_OK
                                            : KG_BAD(r, "%s", "over 2^24 requests were left out");
    }
    q.line = r->t->n; /* equal times keep the order of drawing */
    int rc = kg_trace_piece(r, &q, KG_ID_PROMPT(r->t->n), q.n_prompt);
    if (rc == KG_OK) {
        char name[24];
        (void)snprintf(name, sizeof(name), "c%llu", (unsigned long long)c->number);
        rc = kg_trace_tenant(r, &q, name);
    }
    return rc == KG_OK ? kg_trace_add(r, &q, NULL) : rc;
}

static int by_start(const void *a, const void *b)
{
    const struct window *p = a, *q = b;

    if (p->start_s != q->start_s) {
        return p->start_s < q->start_s ? -1 : 1;
    }
    return p->client < q->client ? -1 : p->client > q->client;
}

/* All windows in order of time; those that begin together are one round, and a limit is looked at
 * between rounds only, so that no client is favoured. */
static int draw_all(struct kg_reader *r, struct model *m)
{
    int rc = KG_OK;

    if (m->n_windows > 1)
        qsort(m->windows, m->n_windows, sizeof(*m->windows), by_start);
    for (size_t i = 0; rc == KG_OK && i < m->n_windows; i++) {
        const struct window *w = &m->windows[i];
        struct client *c = &m->clients[w->client];
        int late = r->conf->horizon_ns != 0 && w->start_s * 1e9 > (double)r->conf->horizon_ns;
        if (late || (i > 0 && w->start_s > w[-1].start_s && kg_trace_full(r))) {
            break;
        }
        double t = w->start_s + draw_first(&c->rng, w);
        uint64_t most = r->conf->limit != 0 ? r->t->n + r->conf->limit : UINT64_MAX;
        /* Of one window the first `limit` are all that can be among the first of all. */
        while (rc == KG_OK && t < w->start_s + WINDOW_S && r->t->n < most) {
            rc = draw_request(r, c, t);
            t += draw_gap(&c->rng, w);
        }
    }
    return rc;
}

static int by_time(const void *a, const void *b)
{
    const struct kg_trace_req *p = a, *q = b;

    if (p->arrive_ns != q->arrive_ns) {
        return p->arrive_ns < q->arrive_ns ? -1 : 1;
    }
    return p->line < q->line ? -1 : p->line > q->line;
}

int kg_read_servegen(struct kg_reader *r)
{
    struct model m = {0};
    int rc = kg_tj_lines(r, NULL, read_client, &m); /* nothing is full before the draws */

    if (rc == KG_OK) {
        rc = draw_all(r, &m);
    }
    model_free(&m);
    if (rc == KG_OK) {
        if (r->t->n > 1) {
            qsort(r->t->reqs, r->t->n, sizeof(*r->t->reqs), by_time);
        }
        if (r->conf->limit != 0 && r->t->n > r->conf->limit) {
            r->t->n = (uint32_t)r->conf->limit;
        }
        for (uint32_t i = r->t->n; i-- > 0;) { /* the first request is at time 0 */
            r->t->reqs[i].arrive_ns -= r->t->reqs[0].arrive_ns;
        }
    }
    return rc;
}
