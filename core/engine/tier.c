/*
 * A second home for what the prefix index gives up: units are copied to a tier as they leave the
 * arena, and come back into a request's own units when that makes its beginning longer.
 *
 * All copies are exec.read and exec.write in stream order, between steps: a unit is read before it
 * goes back to the pool, so its bytes are those of the step before, and nobody else reads or moves
 * it meanwhile. What comes back is checked against what was put; anything short of that is a miss:
 * the request gives everything back and is admitted again without the tier. It counts as computed
 * only when its state and every page have arrived.
 */
#include "engine/internal.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

/* In front of a unit's bytes, so that what comes back is known to be what was put. */
struct head {
    struct kg_tier_key key;
    uint64_t sum[2]; /* of the bytes behind it */
    uint64_t pad[3]; /* the bytes are aligned as they were */
};
#define HEAD sizeof(struct head)

/* Bytes kept of a unit of a backend whose units hold nothing. */
#define STUB_BYTES 64u

/* --- life --- */

static int open_tier(struct kg_engine *e, struct kg_error *err)
{
    const struct kg_pool_layout *l = &e->layout;
    struct kg_tier_geom geom = {.size = sizeof(geom)};
    uint64_t most = 0;

    e->tier_bytes[KG_PAGE] = l->page_tokens * e->desc.token_bytes;
    e->tier_bytes[KG_STATE] = e->desc.n_state_parts * e->desc.state_part_bytes;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint64_t n = e->tier_bytes[k];
        int stub = (e->desc.caps & KG_EXEC_CAP_NO_BYTES) && n > STUB_BYTES;
        geom.unit_bytes[k] = HEAD + n;
        geom.copy_bytes[k] = HEAD + (stub ? STUB_BYTES : n);
        e->tier_kept[k] = geom.copy_bytes[k] - HEAD;
        most = n > most ? n : most;
    }
    e->tier_buf = aligned_alloc(64, (HEAD + most + 63) / 64 * 64);
    if (e->tier_buf == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory to copy a unit of %llu bytes",
                       (unsigned long long)most);
    }
    return e->parts.tier_ops->open(e->parts.tier_host, e->parts.tier_conf, &geom, &e->tier, err);
}

int kg_tier_create(struct kg_engine *e, struct kg_error *err)
{
    if (e->parts.tier_ops == NULL || !e->conf.prefix) {
        return KG_OK;
    }
    if (getrandom(e->chain_key, sizeof(e->chain_key), 0) != (ssize_t)sizeof(e->chain_key)) {
        return kg_fail(err, KG_EIO, "no random key for the tier");
    }
    return open_tier(e, err);
}

void kg_tier_destroy(struct kg_engine *e)
{
    if (e->tier != NULL) {
        e->parts.tier_ops->close(e->tier);
    }
    free(e->tier_buf);
}

void kg_tier_begin(struct kg_engine *e)
{
    e->tier_out_left = e->tier_in_left = e->conf.tier_step_bytes;
    e->tier_out_any = e->tier_in_any = 0;
}

/* Takes bytes from the step's share; the first unit is always within it. */
static int spend(uint64_t *left, uint32_t *any, uint64_t bytes)
{
    if (*left < bytes && *any) {
        return 0;
    }
    *any = 1;
    *left = bytes < *left ? *left - bytes : 0;
    return 1;
}

/* --- keys --- */

/* Key of the unit that ends with page number n_pages - 1 of a request. */
static struct kg_tier_key key_of(struct kg_engine *e, struct kg_req *r, uint32_t kind,
                                 uint32_t n_pages)
{
    struct kg_job *j = r->job;
    uint32_t page = e->layout.page_tokens;

    kg_tier_name(e, j, n_pages);
    return (struct kg_tier_key){.chain = {j->chain[n_pages - 1].w[0], j->chain[n_pages - 1].w[1]},
                                .length = n_pages * page,
                                .kind = kind};
}

void kg_tier_name(const struct kg_engine *e, struct kg_job *j, uint32_t n_pages)
{
    uint32_t page = e->layout.page_tokens;
    struct kg_chain start = kg_chain_start(e->chain_key, j->salt);

    for (; j->n_chain < n_pages; j->n_chain++) {
        j->chain[j->n_chain] =
            kg_chain_next(e->chain_key, j->n_chain > 0 ? &j->chain[j->n_chain - 1] : &start,
                          j->tokens + (size_t)j->n_chain * page, page);
    }
}

static int has(struct kg_engine *e, struct kg_req *r, uint32_t kind, uint32_t n_pages)
{
    struct kg_tier_key key = key_of(e, r, kind, n_pages);

    return e->parts.tier_ops->has(e->tier, &key);
}

/* --- out of the arena --- */

/* A unit's bytes with their head, in tier_buf. */
static int read_unit(struct kg_engine *e, const struct kg_tier_key *key, uint32_t unit)
{
    struct head *h = (struct head *)(void *)e->tier_buf;
    uint64_t t = kg_engine_tick(e);

    kg_adm_sync(e); /* the backend must know where the unit lies */
    int rc = e->parts.exec_ops->read(e->parts.exec, key->kind, unit, e->tier_buf + HEAD,
                                     e->tier_bytes[key->kind]);
    if (rc == KG_OK) {
        XXH128_hash_t sum = XXH3_128bits(e->tier_buf + HEAD, e->tier_kept[key->kind]);
        *h = (struct head){.key = *key, .sum = {sum.low64, sum.high64}};
    }
    e->exec_ns += kg_engine_tick(e) - t;
    return rc;
}

int kg_tier_leave(void *ctx, uint32_t kind, uint32_t unit, const struct kg_chain *chain,
                  uint32_t n_tokens)
{
    struct kg_engine *e = ctx;
    struct kg_engine_stats *s = &e->stats;
    struct kg_tier_key key = {
        .chain = {chain->w[0], chain->w[1]}, .length = n_tokens, .kind = kind};

    if (e->parts.tier_ops->hold(e->tier, &key, 1) == KG_OK) { /* equal tokens, equal bytes */
        (void)e->parts.tier_ops->hold(e->tier, &key, 0);      /* and used just now */
        s->tier_had[kind]++;
        return 1;
    }
    if (!spend(&e->tier_out_left, &e->tier_out_any, e->tier_bytes[kind])) {
        s->tier_skipped[kind]++;
        return 0;
    }
    if (read_unit(e, &key, unit) != KG_OK) {
        s->tier_failed++;
        s->tier_skipped[kind]++;
        return 0;
    }
    if (e->parts.tier_ops->put(e->tier, &key, e->tier_buf) != KG_OK) {
        s->tier_skipped[kind]++;
        return 0;
    }
    s->tier_stored[kind]++;
    return 1;
}

void kg_tier_forget(struct kg_engine *e, struct kg_req *r)
{
    for (uint32_t i = 1; e->tier != NULL && i <= r->n_tokens / e->layout.page_tokens; i++) {
        for (uint32_t k = 0; k < KG_N_KINDS; k++) {
            struct kg_tier_key key = key_of(e, r, k, i);
            e->parts.tier_ops->drop(e->tier, &key);
        }
    }
}

/* --- what a waiting request would find --- */

/* The pair both homes give together. */
static struct kg_pair probe(struct kg_engine *e, struct kg_req *r)
{
    uint32_t page = e->layout.page_tokens, most = (r->n_tokens - 1) / page;
    uint32_t reach = r->match.page_tokens / page, at;

    while (reach < most && has(e, r, KG_PAGE, reach + 1)) {
        reach++;
    }
    for (at = reach; at > r->match.state_tokens / page && !has(e, r, KG_STATE, at);) {
        at--;
    }
    return (struct kg_pair){reach * page, at > r->match.state_tokens / page ? at * page : 0};
}

void kg_tier_look(struct kg_engine *e, struct kg_req *r)
{
    struct kg_pair arena = {r->match.page_tokens, r->match.state_tokens}, tier = {0, 0};

    if (r->job->n_echo_lp > 0) { /* who wants the prompt's log probabilities must compute it */
        arena.state = 0;
    } else if (e->tier != NULL && !r->no_tier) {
        tier = probe(e, r);
    }
    r->reuse = kg_reconcile(arena, tier);
}

/* Holds, or lets go, of everything that is still to come. */
static int hold_rest(struct kg_engine *e, struct kg_req *r, uint32_t on)
{
    uint32_t page = e->layout.page_tokens, to = r->reuse.tokens / page;
    struct kg_tier_key key = key_of(e, r, KG_STATE, to);
    int rc = KG_OK;

    if (!r->state_came) {
        rc = e->parts.tier_ops->hold(e->tier, &key, on);
    }
    for (uint32_t i = r->load_at; i < to && (rc == KG_OK || !on); i++) {
        key = key_of(e, r, KG_PAGE, i + 1);
        rc = e->parts.tier_ops->hold(e->tier, &key, on);
        if (rc != KG_OK && on) { /* it left meanwhile: let go of those before it */
            for (uint32_t k = r->load_at; k < i; k++) {
                key = key_of(e, r, KG_PAGE, k + 1);
                (void)e->parts.tier_ops->hold(e->tier, &key, 0);
            }
            key = key_of(e, r, KG_STATE, to);
            (void)e->parts.tier_ops->hold(e->tier, &key, 0);
        }
    }
    return rc;
}

int kg_tier_hold(struct kg_engine *e, struct kg_req *r)
{
    r->state_came = 0;
    r->load_at = r->reuse.load_from / e->layout.page_tokens;
    int rc = hold_rest(e, r, 1);
    if (rc == KG_OK) {
        r->loading = KG_LOAD_HELD;
    } else {
        e->stats.tier_failed++;
        r->reuse = kg_reconcile((struct kg_pair){r->match.page_tokens, r->match.state_tokens},
                                (struct kg_pair){0, 0});
    }
    return rc;
}

void kg_tier_abort(struct kg_engine *e, struct kg_req *r)
{
    (void)hold_rest(e, r, 0);
    r->loading = KG_LOAD_NONE;
    r->past = 0;
}

/* --- back into the arena --- */

/* Copies a unit out of the tier into one of the request's own. Not KG_OK: it did not arrive. */
static int fetch(struct kg_engine *e, struct kg_req *r, uint32_t kind, uint32_t n_pages,
                 uint32_t unit)
{
    const struct kg_tier_ops *ops = e->parts.tier_ops;
    const struct head *h = (const struct head *)(const void *)e->tier_buf;
    struct kg_tier_key key = key_of(e, r, kind, n_pages);
    uint64_t t = kg_engine_tick(e);

    memset(e->tier_buf, 0, HEAD); /* what a short answer leaves is no head */
    int rc = ops->get(e->tier, &key, e->tier_buf);
    if (rc == KG_OK) {
        XXH128_hash_t sum = XXH3_128bits(e->tier_buf + HEAD, e->tier_kept[kind]);
        if (memcmp(&h->key, &key, sizeof(key)) != 0 || h->sum[0] != sum.low64 ||
            h->sum[1] != sum.high64) {
            rc = KG_EIO;
        }
    }
    (void)ops->hold(e->tier, &key, 0);
    if (rc == KG_OK) {
        kg_adm_sync(e);
        rc = e->parts.exec_ops->write(e->parts.exec, kind, unit, e->tier_buf + HEAD,
                                      e->tier_bytes[kind]);
    }
    if (rc != KG_OK) {
        ops->drop(e->tier, &key);
        e->stats.tier_failed++;
    } else {
        e->stats.tier_loaded[kind]++;
    }
    e->exec_ns += kg_engine_tick(e) - t;
    return rc;
}

/* As much of a request's load as the step's share allows. KG_OK: all is there. KG_EAGAIN: more in
 * the next step. Else: something will not come. */
static int load(struct kg_engine *e, struct kg_req *r)
{
    uint32_t page = e->layout.page_tokens, to = r->reuse.tokens / page;
    int rc = KG_OK;

    if (!r->state_came) {
        if (!spend(&e->tier_in_left, &e->tier_in_any, e->tier_bytes[KG_STATE])) {
            return KG_EAGAIN;
        }
        r->state_came = 1;
        rc = fetch(e, r, KG_STATE, to, r->unit);
    }
    while (rc == KG_OK && r->load_at < to) {
        if (!spend(&e->tier_in_left, &e->tier_in_any, e->tier_bytes[KG_PAGE])) {
            return KG_EAGAIN;
        }
        rc = kg_adm_take(e, r, (r->load_at + 1) * page);
        if (rc != KG_OK) {
            return KG_ENOMEM;
        }
        r->load_at++;
        rc = fetch(e, r, KG_PAGE, r->load_at, r->job->pages[r->load_at - 1]);
    }
    return rc == KG_EAGAIN ? KG_EIO : rc;
}

/* Everything arrived: the request stands behind its reused beginning. */
static void arrived(struct kg_engine *e, struct kg_req *r)
{
    struct kg_sched_req *row = &e->running[r->place];

    r->loading = KG_LOAD_NONE;
    r->past = r->reuse.tokens;
    r->source = r->unit;
    row->n_computed = r->past;
    row->paused = r->paused;
    e->stats.tier_tokens += r->past - r->match.state_tokens;
    kg_cache_restored(e, r);
}

/* 1 while the request may be planned. */
static int go_on(struct kg_engine *e, struct kg_req *r)
{
    int rc = load(e, r);

    if (rc == KG_OK) {
        arrived(e, r);
    } else if (rc != KG_EAGAIN) {
        r->no_tier = 1;
        e->stats.tier_fallbacks++;
        kg_req_requeue(e, r);
    }
    return rc == KG_OK;
}

int kg_tier_step(struct kg_engine *e)
{
    int n = 0;

    kg_req_settle(e);
    for (uint32_t i = 0; e->tier != NULL && i < e->n_running;) {
        struct kg_req *r = &e->reqs[e->running[i].index];
        n += r->loading == KG_LOAD_HELD;
        if (r->loading == KG_LOAD_HELD) {
            (void)go_on(e, r);
        }
        i += kg_req_holds(r); /* else the rows behind it have moved up */
    }
    return n;
}

void kg_tier_picks(struct kg_engine *e)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < e->n_picks; i++) {
        if (e->picks[i].req->loading == KG_LOAD_NONE || go_on(e, e->picks[i].req)) {
            e->picks[n++] = e->picks[i];
        }
    }
    e->n_picks = n;
}
