/*
 * Memory: the one admission decision, grants, growth and the preemption ladder, and all traffic of
 * units between pool and backend. Only growth preempts; its victim is the youngest holder, which
 * may be the grower, so the oldest always advances.
 */
#include "engine/internal.h"

#include "base/clock.h"
#include "base/hash.h"

#include <stdio.h>
#include <string.h>

static const uint32_t nothing_evictable[KG_N_KINDS];

/* Share of observed outputs that `lifetime = expected` reserves for, in percent, unless told. */
#define EXPECTED_PERCENT 90
/* Below this many observed outputs of a tenant the figures of all tenants are used, and below it
 * there the request's own maximum. */
#define EXPECTED_MIN_SEEN 32
/* Observations after which a histogram is halved. */
#define SEEN_LIMIT 4096

uint64_t kg_adm_max_pages(const struct kg_engine *e, uint64_t n_prompt, uint64_t max_tokens)
{
    return (n_prompt + max_tokens + e->max_block + e->layout.page_tokens - 1) /
           e->layout.page_tokens;
}

uint32_t kg_adm_probe(struct kg_engine *e)
{
    const struct kg_pool_ops *p = e->parts.pool_ops;
    uint32_t lo = 0, hi = e->layout.max_units[KG_PAGE];

    while (lo < hi) {
        uint32_t mid = hi - (hi - lo) / 2, grant;
        uint32_t need[KG_N_KINDS] = {[KG_PAGE] = mid, [KG_STATE] = 1};
        struct kg_shortage shortage;
        if (p->grant_open(e->pool, need, nothing_evictable, &grant, &shortage) == KG_OK) {
            p->grant_close(e->pool, grant);
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return lo;
}

/* --- observed output lengths --- */

/* Eighths of powers of two: 1, 2, .. 8, 9, .. 15, 16, 18, 20, .. */
static uint32_t bucket_of(uint32_t v)
{
    uint32_t octave = 31u - (uint32_t)__builtin_clz(v | 1u);
    uint32_t eighth = octave >= 3 ? v >> (octave - 3) : v << (3 - octave);

    return octave * 8 + (eighth & 7);
}

/* Largest value of a bucket. */
static uint64_t bucket_top(uint32_t b)
{
    uint64_t eighths = 8 + (b & 7); /* first eighth of this bucket */
    uint32_t octave = b / 8;

    return octave >= 3 ? ((eighths + 1) << (octave - 3)) - 1 : eighths >> (3 - octave);
}

static struct kg_seen *seen_of(struct kg_engine *e, uint64_t tenant)
{
    return &e->seen_lengths[1 + kg_hash_mix(tenant) % (KG_SEEN_TENANTS - 1)];
}

static void seen_add(struct kg_seen *s, uint32_t bucket)
{
    if (s->n == SEEN_LIMIT) {
        s->n = 0;
        for (uint32_t i = 0; i < KG_SEEN_BUCKETS; i++) {
            s->count[i] /= 2;
            s->n += s->count[i];
        }
    }
    s->count[bucket]++;
    s->n++;
}

void kg_adm_observe(struct kg_engine *e, uint64_t tenant, uint32_t n_output)
{
    struct kg_seen *own = seen_of(e, tenant);

    if (n_output == 0) {
        return;
    }
    seen_add(&e->seen_lengths[0], bucket_of(n_output));
    if (tenant != 0 && (own->n == 0 || own->tenant == tenant)) {
        own->tenant = tenant;
        seen_add(own, bucket_of(n_output));
    }
}

/* Output length that [admission] quantile of the outputs beyond what this request has stay within.
 */
static uint64_t expected_output(struct kg_engine *e, const struct kg_req *r)
{
    const struct kg_seen *s = seen_of(e, r->job->tenant);
    uint32_t from = bucket_of(kg_req_output(r) + 1);
    uint64_t n = 0, sum = 0;
    uint32_t percent = e->conf.quantile != 0 ? e->conf.quantile : EXPECTED_PERCENT;

    if (r->job->tenant == 0 || s->tenant != r->job->tenant || s->n < EXPECTED_MIN_SEEN) {
        s = &e->seen_lengths[0];
    }
    for (uint32_t i = from; i < KG_SEEN_BUCKETS; i++) {
        n += s->count[i];
    }
    if (s->n < EXPECTED_MIN_SEEN || n == 0) {
        return r->job->max_tokens;
    }
    uint32_t i = from;
    while (i < KG_SEEN_BUCKETS && (sum += s->count[i]) * 100 < n * percent) {
        i++;
    }
    uint64_t top = bucket_top(i);
    return top < r->job->max_tokens ? top : r->job->max_tokens;
}

/* --- units --- */

void kg_adm_sync(struct kg_engine *e)
{
    const struct kg_move *moves;
    const struct kg_table_change *changes;
    uint32_t n_moves, n_changes;

    e->parts.pool_ops->moves(e->pool, &moves, &n_moves, &changes, &n_changes);
    if (n_moves == 0 && n_changes == 0) {
        return;
    }
    uint64_t t = kg_engine_tick(e);
    int rc = e->parts.exec_ops->apply(e->parts.exec, moves, n_moves, changes, n_changes);
    e->exec_ns += kg_engine_tick(e) - t;
    if (rc != KG_OK) {
        (void)kg_fail(&e->error, KG_EDEVICE, "backend refused %u moves and %u table entries (%d)",
                      n_moves, n_changes, rc);
        atomic_store(&e->lost, 1);
    }
    e->stats.moves += n_moves;
    for (uint32_t i = 0; i < n_moves; i++) {
        e->stats.moved_bytes += e->layout.stride[moves[i].kind];
    }
}

void kg_adm_give(struct kg_engine *e, uint32_t kind, const uint32_t *ids, uint32_t n,
                 uint32_t poison)
{
    if (n == 0) {
        return;
    }
    if (poison || e->conf.debug) {
        kg_adm_sync(e); /* the backend must know where the units lie */
        for (uint32_t i = 0; i < n; i++) {
            (void)e->parts.exec_ops->poison(e->parts.exec, kind, ids[i]);
        }
    }
    if (e->parts.pool_ops->give(e->pool, kind, n, ids) != KG_OK) {
        (void)kg_fail(&e->error, KG_EDEVICE, "pool refused to take back %u %ss from %u on", n,
                      kg_kind_name(kind), ids[0]);
        atomic_store(&e->lost, 1);
    }
}

/*
 * A hole is room for its own kind at once, and for the other only when units have been moved.
 * Moving more than is missing is a loss: pages take what states left, and the next states have to
 * buy it back, thirty moves each (pools.md has the figures). So while nothing runs, only a kind
 * that would get not one unit without a move is helped to one.
 */
int kg_adm_tidy(struct kg_engine *e)
{
    const struct kg_pool_ops *p = e->parts.pool_ops;
    uint64_t budget = e->stats.moved_bytes + e->layout.unit_bytes[KG_STATE];
    uint64_t before = e->stats.moves;
    struct kg_pool_bytes bytes;
    uint64_t gap;

    if (!(e->layout.caps & KG_POOL_CAP_MOVES) || !KG_HAS(p, struct kg_pool_ops, loose)) {
        return 0;
    }
    p->bytes(e->pool, &bytes);
    do {
        gap = bytes.gap;
        if (bytes.holes == 0 ||
            (p->loose(e->pool, KG_PAGE) > 0 && p->loose(e->pool, KG_STATE) > 0) ||
            p->compact(e->pool, 1) <= 0) {
            break;
        }
        kg_adm_sync(e);
        p->bytes(e->pool, &bytes);
    } while (bytes.gap > gap && e->stats.moved_bytes < budget);
    e->stats.idle_moves += e->stats.moves - before;
    return bytes.gap > gap;
}

/*
 * Under one budget for both kinds, bytes that change from one kind to the other are paid for in
 * moves: a state's room in the pages' part is some thirty pages that lie scattered. So a kind is
 * asked for its own room first where that loses nothing worth having: pages that nobody could
 * resume behind go before anything is moved for new pages (sweep_for), and until a 256th of all
 * pages are such, a state takes the place of the least state, which the next pages would have cost
 * anyway.
 */
#define DEAD_SHARE 256

static void sweep_for(struct kg_engine *e, uint32_t n)
{
    const struct kg_pool_ops *p = e->parts.pool_ops;

    if (!KG_HAS(p, struct kg_pool_ops, loose)) {
        return;
    }
    uint32_t loose = p->loose(e->pool, KG_PAGE);
    while (loose < n && kg_cache_sweep(e, n - loose)) {
        loose = p->loose(e->pool, KG_PAGE);
    }
}

/* Room for units of `kind`, of which `shortage` tells; 0: nothing is left to evict. */
static int evict_for(struct kg_engine *e, uint32_t kind, const struct kg_shortage *shortage)
{
    static const uint32_t own[KG_N_KINDS] = {[KG_PAGE] = KG_NONE, [KG_STATE] = 1};

    if (kind == KG_STATE && KG_HAS(e->parts.pool_ops, struct kg_pool_ops, loose) &&
        !kg_cache_has_dead(e, e->layout.max_units[KG_PAGE] / DEAD_SHARE) &&
        kg_cache_evict(e, own)) {
        return 1;
    }
    return kg_cache_evict(e, shortage->evict);
}

/* n units out of a grant; what is promised is there, or cached and goes now. */
static int take(struct kg_engine *e, uint32_t grant, uint32_t kind, uint32_t n, uint32_t *ids)
{
    struct kg_shortage shortage;
    int rc = e->parts.pool_ops->shortfall(e->pool, grant, kind, n, &shortage);

    while (rc == KG_EAGAIN && evict_for(e, kind, &shortage)) {
        rc = e->parts.pool_ops->shortfall(e->pool, grant, kind, n, &shortage);
    }
    if (rc == KG_OK && kind == KG_PAGE) {
        sweep_for(e, n);
    }
    if (rc == KG_OK) {
        rc = e->parts.pool_ops->take(e->pool, grant, kind, n, ids);
    }
    return rc;
}

int kg_adm_take(struct kg_engine *e, struct kg_req *r, uint32_t n_rows)
{
    uint32_t want = kg_pages_of(e, (uint64_t)r->past + n_rows);

    if (want <= r->n_pages) {
        return KG_OK;
    }
    uint32_t n = want - r->n_pages;
    int rc = take(e, r->grant, KG_PAGE, n, r->job->pages + r->n_pages);
    if (rc == KG_OK) {
        memset(r->job->cached + r->n_pages, 0, n);
        r->n_pages = want;
    }
    return rc;
}

int kg_adm_single(struct kg_engine *e, uint32_t kind, int evict, uint32_t *id)
{
    const struct kg_pool_ops *p = e->parts.pool_ops;
    uint32_t need[KG_N_KINDS] = {0, 0}, evictable[KG_N_KINDS] = {0, 0}, grant;
    struct kg_shortage shortage;

    need[kind] = 1;
    if (evict) {
        kg_cache_evictable(e, evictable);
    }
    int rc = p->grant_open(e->pool, need, evictable, &grant, &shortage);
    if (rc != KG_OK) {
        return rc;
    }
    rc = take(e, grant, kind, 1, id);
    p->grant_close(e->pool, grant);
    return rc;
}

/* --- admission --- */

/* A request that waited past max_wait_ms: nobody younger goes first. */
static int must_wait(const struct kg_engine *e, const struct kg_req *r)
{
    const struct kg_waiting *w = &e->waiting;

    if (e->conf.max_wait_ms == 0) {
        return 0;
    }
    for (uint32_t i = w->head; i < w->head + w->n; i++) {
        const struct kg_sched_req *row = &w->rows[i];
        if (row->id == r->arrival) {
            return 0;
        }
        if (row->index != KG_NONE && !row->paused) {
            uint64_t now = e->parts.exec_ops->now(e->parts.exec);
            return now - row->arrival_ns > e->conf.max_wait_ms * KG_NS_PER_MS;
        }
    }
    return 0;
}

/* Pages admission reserves. */
static uint32_t lifetime_pages(struct kg_engine *e, const struct kg_req *r)
{
    uint64_t n_prompt = r->job->n_prompt;
    uint64_t most = kg_adm_max_pages(e, n_prompt, r->job->max_tokens);
    uint64_t least = kg_adm_max_pages(e, r->n_tokens, 1);
    uint64_t pages = most;

    if (r->admission == 0 && r->lifetime == KG_LIFETIME_PROMPT) {
        pages = least;
    } else if (r->admission == 0 && r->lifetime == KG_LIFETIME_EXPECTED) {
        pages = kg_adm_max_pages(e, n_prompt, expected_output(e, r));
    }
    pages = pages < least ? least : pages;
    return (uint32_t)(pages < most ? pages : most);
}

static int open_grant(struct kg_engine *e, const uint32_t need[KG_N_KINDS], uint32_t *grant,
                      uint32_t *kind)
{
    const struct kg_pool_ops *p = e->parts.pool_ops;
    struct kg_shortage shortage = {.kind = KG_PAGE};
    uint32_t evictable[KG_N_KINDS];

    kg_cache_evictable(e, evictable);
    int rc = p->grant_open(e->pool, need, evictable, grant, &shortage);
    if (rc == KG_EAGAIN && kg_adm_drop_ballast(e)) {
        rc = p->grant_open(e->pool, need, evictable, grant, &shortage);
    }
    *kind = shortage.kind < KG_N_KINDS ? shortage.kind : KG_PAGE;
    return rc;
}

/* What a request asks for. */
struct ask {
    uint32_t grant, n_pages; /* pages of its lifetime, cached ones included */
    uint32_t unit;           /* state to work in, KG_NONE: to be taken out of the grant */
    uint32_t kind;           /* refused: which kind was short */
};

enum { COPY = 0, TAKE_OVER = 1, COLD = 2 };

/* Finds what is cached, locks it, and asks for the rest of the lifetime: what is locked is not
 * evictable, so it counts as need. With TAKE_OVER the request works in the very state it found,
 * and needs no other; with COLD it begins from nothing. */
static int ask_grant(struct kg_engine *e, struct kg_req *r, int how, struct ask *ask)
{
    uint32_t hit = kg_cache_open(e, r, how != COLD), kind;
    int rc = KG_EAGAIN;

    ask->n_pages = lifetime_pages(e, r);
    ask->unit = how == TAKE_OVER && hit > 0 ? kg_cache_take_over(e, r) : KG_NONE;
    if (how != TAKE_OVER || ask->unit != KG_NONE) {
        uint32_t need[KG_N_KINDS] = {ask->n_pages - hit, ask->unit == KG_NONE};
        rc = open_grant(e, need, &ask->grant, &kind);
        ask->kind = how == COPY ? kind : ask->kind; /* the first answer is the one to tell */
    }
    if (rc == KG_OK && r->loading != KG_LOAD_NONE && kg_tier_hold(e, r) != KG_OK) {
        e->parts.pool_ops->grant_close(e->pool, ask->grant);
        kg_cache_close(e, r);
        return ask_grant(e, r, how, ask); /* it left the tier since; there is the arena */
    }
    if (rc != KG_OK) {
        if (ask->unit != KG_NONE) {
            kg_cache_put_back(e, r, ask->unit);
        }
        kg_cache_close(e, r);
    }
    return rc;
}

/* A grant and a state to work in. A hit is worth keeping, but must not make a request wait that
 * would be admitted without it: short of a state, it takes over the one it found. */
static int admit(struct kg_engine *e, struct kg_req *r, struct ask *ask)
{
    int rc = ask_grant(e, r, COPY, ask);

    if (rc == KG_EAGAIN && ask->kind == KG_STATE) {
        rc = ask_grant(e, r, TAKE_OVER, ask);
        e->stats.taken_over += rc == KG_OK;
    }
    if (rc == KG_EAGAIN && e->n_running + e->n_admitted == 0) {
        rc = ask_grant(e, r, COLD, ask); /* alone it always fits */
    }
    if (rc == KG_EAGAIN) {
        e->stats.n_short[ask->kind]++;
    }
    if (rc == KG_OK && ask->unit == KG_NONE &&
        take(e, ask->grant, KG_STATE, 1, &ask->unit) != KG_OK) {
        e->parts.pool_ops->grant_close(e->pool, ask->grant);
        kg_cache_close(e, r);
        rc = KG_EAGAIN;
    }
    return rc;
}

enum kg_admit kg_adm_ask(void *ctx, uint32_t index, uint32_t *computed)
{
    struct kg_engine *e = ctx;

    e->n_asked++;
    if (index >= e->conf.max_requests || e->reqs[index].state != KG_LIFE_WAITING) {
        return KG_ADMIT_LATER;
    }
    struct kg_req *r = &e->reqs[index];
    if (r->paused || e->n_free_slots == 0 || must_wait(e, r)) {
        return KG_ADMIT_LATER;
    }
    uint32_t hit = kg_cache_look(e, r);
    uint32_t need[KG_N_KINDS] = {[KG_PAGE] = lifetime_pages(e, r) - hit, [KG_STATE] = 1};
    enum kg_admit word = kg_pol_ask(e, r, need);
    if (word != KG_ADMIT_YES) {
        return word;
    }
    struct ask ask = {0};
    int rc = admit(e, r, &ask);
    if (rc == KG_ENEVER) { /* kg_engine_submit asked the same of an empty pool */
        char text[120];
        (void)snprintf(text, sizeof(text), "needs %u pages and a state, the pool never holds them",
                       ask.n_pages);
        kg_req_end(e, r, KG_FINISH_REFUSED, KG_ENEVER, text);
        return KG_ADMIT_NEVER;
    }
    if (rc != KG_OK) {
        r->short_of = 1 + ask.kind;
        return KG_ADMIT_LATER;
    }
    r->short_of = 0;
    kg_req_admit(e, r, ask.grant, ask.n_pages, ask.unit);
    *computed = r->loading != KG_LOAD_NONE ? r->reuse.tokens : r->past;
    return KG_ADMIT_YES;
}

/* --- growth --- */

/* n more pages for a holder. */
static int extend(struct kg_engine *e, struct kg_req *r, uint32_t n)
{
    uint32_t more[KG_N_KINDS] = {[KG_PAGE] = n};
    uint32_t evictable[KG_N_KINDS];
    struct kg_shortage shortage;

    kg_cache_evictable(e, evictable);
    int rc = e->parts.pool_ops->grant_extend(e->pool, r->grant, more, evictable, &shortage);

    if (rc == KG_OK) {
        r->n_granted += n;
    }
    return rc;
}

/* The holder in running row i gets its next rows, or is preempted itself. */
static void grow(struct kg_engine *e, uint32_t i)
{
    struct kg_req *r = &e->reqs[e->running[i].index];
    uint32_t want = kg_pages_of(e, (uint64_t)r->past + 1 + e->block);

    if (r->n_granted >= want) {
        return;
    }
    uint32_t most = (uint32_t)kg_adm_max_pages(e, r->job->n_prompt, r->job->max_tokens);
    want = want < most ? want : most;
    if (r->lifetime == KG_LIFETIME_EXPECTED && r->n_granted < want) {
        /* It outlived what was expected of it: expect again, of those that lived as long. */
        uint64_t pages = kg_adm_max_pages(e, r->job->n_prompt, expected_output(e, r));
        if (pages > want) {
            (void)extend(e, r, (uint32_t)(pages < most ? pages : most) - r->n_granted);
        }
    }
    while (r->n_granted < want) {
        if (extend(e, r, 1) == KG_OK || kg_adm_drop_ballast(e)) {
            continue;
        }
        struct kg_req *victim = &e->reqs[e->running[e->n_running - 1].index];
        kg_req_preempt(e, victim);
        if (victim == r) {
            return;
        }
    }
}

void kg_adm_growth(struct kg_engine *e)
{
    kg_req_settle(e);
    for (uint32_t i = 0; i < e->n_running; i++) {
        if (e->running[i].decoding && !e->running[i].paused) {
            grow(e, i);
        }
    }
}

/* --- test hooks --- */

int kg_adm_drop_ballast(struct kg_engine *e)
{
    int any = 0;

    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint32_t n = e->n_ballast[k];
        any |= n > 0;
        e->n_ballast[k] = 0;
        kg_adm_give(e, k, e->ballast[k], n, 0);
    }
    return any;
}

void kg_adm_disturb(struct kg_engine *e)
{
    if (e->test.preempt_one_in > 0 && e->n_running > 0 &&
        kg_rng_below(&e->rng, e->test.preempt_one_in) == 0) {
        kg_req_preempt(e, &e->reqs[e->running[kg_rng_below(&e->rng, e->n_running)].index]);
    }
    if (e->test.relocate == 0) {
        return;
    }
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint32_t old = e->n_ballast[k], n = 0;
        while (n < e->test.relocate && kg_adm_single(e, k, 0, &e->ballast[k][old + n]) == KG_OK) {
            n++;
        }
        kg_adm_give(e, k, e->ballast[k], old, 0);
        memmove(e->ballast[k], e->ballast[k] + old, n * sizeof(uint32_t));
        e->n_ballast[k] = n;
    }
    if (e->layout.caps & KG_POOL_CAP_MOVES) {
        (void)e->parts.pool_ops->compact(e->pool, UINT32_MAX);
    }
}
