#include "accept.h"
#include "lines.h"
#include "sim.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct sim_lines lines;
    struct sim_acceptance *a;
};

#define BAD(r, fmt, ...) SIM_BAD(&(r)->lines, fmt, __VA_ARGS__)

static double normal(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2);
}

/* The x of a probability, by halving: exact to a double's needs here, and without a table. */
static double quantile(double p)
{
    double lo = -9, hi = 9;

    for (int i = 0; i < 60; i++) {
        double mid = 0.5 * (lo + hi);
        if (normal(mid) < p) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return 0.5 * (lo + hi);
}

static int read_survive(struct reader *r, struct sim_domain *d, char *rest)
{
    const char *w;

    if (d->n > 0) {
        return BAD(r, "survive: domain %s has one", d->name);
    }
    while ((w = strsep(&rest, " ")) != NULL) {
        double p = 0;
        int rc = sim_lines_number(&r->lines, "survive", w, 1, &p);
        if (rc != KG_OK) {
            return rc;
        }
        if (d->n == SIM_SURVIVE || (d->n > 0 && p > d->survive[d->n - 1])) {
            return BAD(r, "survive: %g: must not rise, at most %d of them", p, SIM_SURVIVE);
        }
        d->survive[d->n] = p;
        d->quantile[d->n++] = quantile(p);
    }
    return KG_OK;
}

static int read_domain(struct reader *r, const char *name)
{
    struct sim_acceptance *a = r->a;

    if (name == NULL || strlen(name) >= SIM_DOMAIN_NAME || a->n == SIM_DOMAINS) {
        return BAD(r, "domain: wanted a name of at most %d characters, and at most %d domains",
                   SIM_DOMAIN_NAME - 1, SIM_DOMAINS);
    }
    for (uint32_t i = 0; i < a->n; i++) {
        if (strcmp(a->domains[i].name, name) == 0) {
            return BAD(r, "domain: %s is there already", name);
        }
    }
    a->domains[a->n] = (struct sim_domain){.n = 0};
    (void)snprintf(a->domains[a->n++].name, SIM_DOMAIN_NAME, "%s", name);
    return KG_OK;
}

static int read_pair(void *ctx, const char *key, char *rest)
{
    struct reader *r = ctx;

    if (strcmp(key, "domain") == 0) {
        return read_domain(r, rest);
    }
    if (r->a->n == 0) {
        return BAD(r, "%.40s: before the first domain", key);
    }
    struct sim_domain *d = &r->a->domains[r->a->n - 1];
    if (strcmp(key, "survive") == 0 && rest != NULL) {
        return read_survive(r, d, rest);
    }
    if (strcmp(key, "insight") == 0) {
        return sim_lines_number(&r->lines, key, rest, 0.999, &d->insight);
    }
    if (strcmp(key, "pinned") == 0) {
        return sim_lines_number(&r->lines, key, rest, SIM_SURVIVE + 1, &d->pinned);
    }
    return strcmp(key, "noise") == 0 ? sim_lines_number(&r->lines, key, rest, 10, &d->noise)
                                     : BAD(r, "%.40s: no such key", key);
}

static int check(struct reader *r)
{
    for (uint32_t i = 0; i < r->a->n; i++) {
        const struct sim_domain *d = &r->a->domains[i];
        if (d->pinned > 0 ? d->n > 0 || d->pinned < 1 : d->n == 0) {
            return BAD(r, "domain %s: wants survive, or pinned from 1", d->name);
        }
    }
    return r->a->n > 0 ? KG_OK : BAD(r, "%s", "no domain");
}

int sim_acceptance_read(const char *path, struct sim_acceptance *a, struct kg_error *err)
{
    struct reader r = {.a = a};

    a->n = 0;
    int rc = sim_lines_read(&r.lines, path, "kedge-acceptance 1", read_pair, &r, err);
    return rc == KG_OK ? check(&r) : rc;
}

void sim_acceptance_plain(struct sim_acceptance *a, double p)
{
    struct sim_domain *d = &a->domains[0];
    double chance = 1;

    a->n = 1;
    *d = (struct sim_domain){.n = SIM_SURVIVE};
    for (uint32_t k = 0; k < SIM_SURVIVE; k++) {
        chance *= p;
        d->survive[k] = chance;
        d->quantile[k] = quantile(chance);
    }
}

uint32_t sim_acceptance_find(const struct sim_acceptance *a, const char *name)
{
    for (uint32_t i = 0; i < a->n; i++) {
        if (strcmp(a->domains[i].name, name) == 0) {
            return i;
        }
    }
    return 0;
}

/* A number in (0, 1) of a stream. */
static double uniform(uint64_t seed, uint64_t stream)
{
    uint64_t h = sim_mix(sim_mix(seed + 0x9e3779b97f4a7c15ull) ^ sim_mix(stream));

    return ((double)(h >> 11) + 0.5) * 0x1p-53;
}

/* By Box and Muller. */
double sim_gauss(uint64_t seed, uint64_t stream)
{
    double u = uniform(seed, 2 * stream), v = uniform(seed, 2 * stream + 1);

    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* Windows end at whole parts of multiples of the length: which one comes next. */
static uint32_t draw_pinned(const struct sim_domain *d, uint32_t position, uint32_t n,
                            float *survival)
{
    double k = ceil(position / d->pinned);
    double next = floor((floor(k * d->pinned) < position ? k + 2 : k + 1) * d->pinned);
    uint32_t right = next > position + 1.0 ? (uint32_t)next - position - 1 : 0;

    right = right < n ? right : n;
    for (uint32_t i = 0; survival != NULL && i < n; i++) {
        survival[i] = i < right ? 1.0f : 0.0f;
    }
    return right;
}

uint32_t sim_acceptance_draw(const struct sim_domain *d, uint64_t seed, uint32_t position,
                             uint32_t n, float *survival)
{
    if (d->pinned > 0) {
        return draw_pinned(d, position, n, survival);
    }
    uint64_t stream = (uint64_t)position * 4;
    double rest = sqrt(1 - d->insight * d->insight);
    double seen = d->insight > 0 ? sim_gauss(seed, stream) : 0;
    double x = d->insight * seen + rest * sim_gauss(seed, stream + 1);
    double off = d->noise > 0 && survival != NULL ? d->noise * sim_gauss(seed, stream + 2) : 0;
    uint32_t right = 0;

    while (right < n && right < d->n && d->survive[right] > 0 &&
           (d->survive[right] >= 1 || x < d->quantile[right])) {
        right++;
    }
    for (uint32_t k = 0; survival != NULL && k < n; k++) {
        double p = k < d->n ? d->survive[k] : 0;
        if (d->insight > 0 && p > 0 && p < 1) {
            p = normal((d->quantile[k] - d->insight * seen) / rest);
        }
        if (off != 0 && p > 0 && p < 1) {
            p = 1 / (1 + exp(-(log(p / (1 - p)) + off)));
        }
        survival[k] = (float)p;
    }
    return right;
}
