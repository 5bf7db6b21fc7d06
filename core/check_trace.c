/*
 * What a trace repeats, in exact lengths, and what states kept at an interval lose of it. No memory
 * is simulated: everything seen before counts as kept. Names of pages are 64-bit hashes, good for
 * statistics.
 */
#include "base/hash.h"
#include "check.h"
#include "experiment/expand.h"

#include <stdlib.h>
#include <string.h>

/* A share of the repeated tokens that is good enough. */
#define LOST_LITTLE 0.05

/* Hashes of the beginnings seen so far, without their lowest bit, which says that one was seen
 * again; 0 is an empty place. */
struct seen {
    uint64_t *place;
    uint64_t n, mask;
    uint64_t n_again;
};

#define AGAIN 1u

/* The place of a hash or an empty one. */
static uint64_t *find(const struct seen *s, uint64_t h)
{
    uint64_t at = h >> 1 & s->mask;

    while (s->place[at] != 0 && ((s->place[at] ^ h) & ~(uint64_t)AGAIN) != 0)
        at = (at + 1) & s->mask;
    return &s->place[at];
}

static int grow(struct seen *s)
{
    struct seen next = {.mask = s->mask == 0 ? (1u << 16) - 1 : s->mask * 2 + 1,
                        .n = s->n,
                        .n_again = s->n_again};

    next.place = calloc(next.mask + 1, sizeof(*next.place));
    if (next.place == NULL)
        return KG_ENOMEM;
    for (uint64_t i = 0; s->place != NULL && i <= s->mask; i++) {
        if (s->place[i] != 0)
            *find(&next, s->place[i]) = s->place[i];
    }
    free(s->place);
    *s = next;
    return KG_OK;
}

/* Pages of tokens[n] that were seen before; all of them are from now on. */
static int sight(struct seen *s, const uint32_t *tokens, uint32_t n, uint32_t page, uint64_t salt,
                 uint32_t *n_pages)
{
    uint64_t h = kg_hash_mix(salt);
    int known = 1;

    *n_pages = 0;
    for (uint32_t i = 0; i + page <= n; i += page) {
        for (uint32_t k = 0; k < page; k++)
            h = kg_hash_mix(h ^ tokens[i + k]) + 1;
        uint64_t key = h & ~(uint64_t)AGAIN;
        key = key != 0 ? key : 2;
        if (2 * s->n >= s->mask && grow(s) != KG_OK)
            return KG_ENOMEM;
        uint64_t *place = find(s, key);
        known = known && *place != 0;
        *n_pages += (uint32_t)known;
        s->n += *place == 0;
        s->n_again += *place == key; /* its first repetition */
        *place = *place == 0 ? key : key | AGAIN;
    }
    return KG_OK;
}

static uint64_t lost_by(const struct kg_check_trace *t, uint32_t interval)
{
    uint64_t lost = 0;

    for (uint32_t i = 0; i < t->n; i++)
        lost += t->shared[i] % interval;
    return lost;
}

static int walk(struct kg_check_trace *t, const struct kg_trace *trace,
                const struct kg_expand *expand, uint32_t page)
{
    struct seen seen = {0};
    uint32_t *tokens = NULL;
    size_t cap = 0;
    int rc = grow(&seen);

    for (uint32_t i = 0; rc == KG_OK && i < trace->n; i++) {
        const struct kg_trace_req *q = &trace->reqs[i];
        size_t n = (size_t)q->n_prompt + q->n_output;
        uint32_t pages, all;
        if (n > cap) {
            free(tokens);
            cap = 2 * n;
            tokens = malloc(cap * sizeof(*tokens));
        }
        if (tokens == NULL) {
            rc = KG_ENOMEM;
            break;
        }
        kg_expand_prompt(expand, i, tokens);
        kg_expand_answer(expand, i, tokens + q->n_prompt);
        rc = sight(&seen, tokens, (uint32_t)n, page, 0, &all);
        pages = (q->n_prompt - 1) / page; /* the last token is always computed */
        t->shared[i] = (all < pages ? all : pages) * page;
        t->prompt += q->n_prompt;
        t->repeated += t->shared[i];
        t->n_repeating += t->shared[i] > 0;
    }
    t->fresh = seen.n * page;
    t->again = seen.n_again * page;
    free(tokens);
    free(seen.place);
    return rc;
}

int kg_check_trace_read(const char *path, const struct kg_trace_conf *conf, uint32_t page,
                        uint32_t interval, struct kg_check_trace *t, struct kg_error *err)
{
    struct kg_trace *trace;
    struct kg_expand *expand = NULL;

    memset(t, 0, sizeof(*t));
    int rc = kg_trace_read(path, conf, &trace, err);
    if (rc != KG_OK)
        return rc;
    for (uint32_t i = 0; rc == KG_OK && i < trace->n; i++) {
        if (trace->reqs[i].n_text > 0)
            rc = kg_fail(err, KG_EINVAL, "%s: prompts as text are not looked at here", path);
    }
    if (rc == KG_OK)
        rc = kg_expand_create(trace, 1, 1u << 24, &expand, err);
    if (rc == KG_OK) {
        t->n = trace->n;
        t->shared = calloc(trace->n, sizeof(*t->shared));
        rc = t->shared != NULL ? walk(t, trace, expand, page) : KG_ENOMEM;
        if (rc != KG_OK)
            (void)kg_fail(err, rc, "%s: no memory for %u requests", path, trace->n);
    }
    if (rc == KG_OK) {
        interval = interval / page > 0 ? interval / page * page : page;
        t->lost = lost_by(t, interval);
        t->better = interval;
        while (t->better > page && lost_by(t, t->better) > LOST_LITTLE * (double)t->repeated)
            t->better = t->better / 2 / page > 0 ? t->better / 2 / page * page : page;
        t->better_lost = lost_by(t, t->better);
    }
    kg_expand_destroy(expand);
    kg_trace_free(trace);
    return rc;
}

void kg_check_trace_fini(struct kg_check_trace *t)
{
    free(t->shared);
    t->shared = NULL;
}
