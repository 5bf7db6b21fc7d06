/*
 * Requests and the prefix index: what a request finds at admission, what it leaves while it runs,
 * and what goes when room is short. The index owns what is cached; the pool is told here.
 */
#include "engine/internal.h"

#include "base/clock.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* --- life --- */

/* What a lost state costs: the tokens from the one above it, computed again. */
static uint64_t recompute_ns(void *ctx, uint32_t from, uint32_t to)
{
    const struct kg_engine *e = ctx;

    return kg_cost_prefill_ns(&e->cost_table, from, to, e->conf.prefill_chunk);
}

int kg_cache_create(struct kg_engine *e, struct kg_error *err)
{
    const struct kg_pool_layout *l = &e->layout;
    uint64_t seed = 0;

    if (!e->conf.prefix) {
        return KG_OK;
    }
    if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != (ssize_t)sizeof(seed)) {
        seed = kg_hash_mix(kg_now_ns()); /* no entropy yet: a clock is better than a constant */
    }
    struct kg_index_conf conf = {.page_tokens = l->page_tokens,
                                 .max_units = {l->max_units[KG_PAGE], l->max_units[KG_STATE]},
                                 .unit_bytes = {l->unit_bytes[KG_PAGE], l->unit_bytes[KG_STATE]},
                                 .ghost_bytes = e->conf.ghost_bytes,
                                 .seed = seed,
                                 .cost_ns = e->cost.size != 0 ? recompute_ns : NULL,
                                 .cost_ctx = e,
                                 .leave = e->tier != NULL ? kg_tier_leave : NULL,
                                 .leave_ctx = e,
                                 .chain_key = {e->chain_key[0], e->chain_key[1]}};
    uint64_t gap = (conf.unit_bytes[KG_STATE] + conf.unit_bytes[KG_PAGE] - 1) /
                   conf.unit_bytes[KG_PAGE] * conf.page_tokens;

    e->gap = gap < UINT32_MAX ? (uint32_t)gap : UINT32_MAX;
    e->moved_out = calloc(l->max_units[KG_PAGE], sizeof(*e->moved_out));
    if (e->moved_out == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory for a prefix index");
    }
    return kg_index_create(&conf, &e->index, err);
}

void kg_cache_destroy(struct kg_engine *e)
{
    kg_index_destroy(e->index);
    free(e->moved_out);
}

/* --- room --- */

void kg_cache_evictable(const struct kg_engine *e, uint32_t n[KG_N_KINDS])
{
    n[KG_PAGE] = n[KG_STATE] = 0;
    if (e->index != NULL) {
        kg_index_evictable(e->index, n);
    }
}

int kg_cache_evict(struct kg_engine *e, const uint32_t want[KG_N_KINDS])
{
    struct kg_index_victim v;

    if (e->index == NULL ||
        kg_index_evict(e->index, want, e->moved_out, e->layout.max_units[KG_PAGE], &v) != KG_OK) {
        return 0;
    }
    kg_adm_give(e, KG_PAGE, e->moved_out, v.n_pages, 0);
    if (v.state != KG_NONE) {
        kg_adm_give(e, KG_STATE, &v.state, 1, 0);
    }
    e->stats.evicted[KG_PAGE] += v.n_pages;
    e->stats.evicted[KG_STATE] += v.state != KG_NONE;
    return 1;
}

int kg_cache_has_dead(const struct kg_engine *e, uint32_t n)
{
    return e->index != NULL && n > 0 && kg_index_has_dead(e->index, n);
}

int kg_cache_sweep(struct kg_engine *e, uint32_t n)
{
    uint32_t k = e->index != NULL ? kg_index_evict_dead(e->index, n, e->moved_out) : 0;

    kg_adm_give(e, KG_PAGE, e->moved_out, k, 0);
    e->stats.evicted[KG_PAGE] += k;
    return k > 0;
}

void kg_cache_own(struct kg_engine *e, uint32_t kind, const uint32_t *ids, uint32_t n,
                  uint32_t cached)
{
    if (n > 0 && e->parts.pool_ops->own(e->pool, kind, n, ids, cached) != KG_OK) {
        (void)kg_fail(&e->error, KG_EDEVICE, "pool does not know %u %ss from %u on", n,
                      kg_kind_name(kind), ids[0]);
        atomic_store(&e->lost, 1);
    }
}

/* --- admission --- */

uint32_t kg_cache_look(struct kg_engine *e, struct kg_req *r)
{
    if (e->index == NULL || r->job->flags & KG_REQ_NO_CACHE) {
        return 0;
    }
    if (!r->has_match || !kg_index_is_fresh(e->index, &r->match)) {
        kg_index_match(e->index, r->job->salt, r->job->tokens, r->n_tokens, &r->match);
        r->has_match = 1;
        kg_tier_look(e, r);
    }
    return (r->reuse.home == KG_HOME_TIER ? r->reuse.load_from : r->reuse.tokens) /
           e->layout.page_tokens;
}

uint32_t kg_cache_open(struct kg_engine *e, struct kg_req *r, int use)
{
    uint32_t hit = kg_cache_look(e, r);

    if (e->index == NULL || r->job->flags & KG_REQ_NO_CACHE) {
        return 0;
    }
    if (use && r->reuse.home == KG_HOME_TIER) {
        r->loading = KG_LOAD_PLANNED;
        (void)kg_index_open_pages(e->index, &r->match, r->job->salt, r->job->tokens,
                                  hit * e->layout.page_tokens, !r->sighted, &r->path);
    } else {
        use = use && hit > 0;
        (void)kg_index_open(e->index, &r->match, r->job->salt, use, !r->sighted, &r->path);
    }
    r->sighted = 1;
    return r->path.n_tokens / e->layout.page_tokens;
}

uint32_t kg_cache_take_over(struct kg_engine *e, struct kg_req *r)
{
    uint32_t unit = r->path.open ? kg_index_take_over(e->index, &r->path) : KG_NONE;

    if (unit != KG_NONE) {
        kg_cache_own(e, KG_STATE, &unit, 1, 0);
    }
    return unit;
}

void kg_cache_put_back(struct kg_engine *e, struct kg_req *r, uint32_t unit)
{
    if (kg_index_donate(e->index, &r->path, r->job->tokens, r->path.n_tokens, unit, r->path.kind) ==
        KG_OK) {
        kg_cache_own(e, KG_STATE, &unit, 1, 1);
    } else {
        kg_adm_give(e, KG_STATE, &unit, 1, 0);
    }
}

/* What a request need not compute. */
static void account(struct kg_engine *e, struct kg_req *r)
{
    const struct kg_index_match *m = &r->match;
    struct kg_event *done = &r->job->done;
    uint32_t lost = m->page_tokens > r->past ? m->page_tokens - r->past : 0;

    e->stats.reused_tokens += r->past;
    e->stats.lost_tokens += lost;
    if (done->n_preempted == 0) {
        done->n_cached = r->past;
        done->n_lost = lost;
        e->stats.queried_tokens += r->job->n_prompt;
        e->stats.cached_tokens += r->past;
        e->stats.ghost_tokens +=
            m->seen_tokens > m->page_tokens ? m->seen_tokens - m->page_tokens : 0;
    }
}

void kg_cache_admit(struct kg_engine *e, struct kg_req *r)
{
    if (!r->path.open) {
        return;
    }
    r->n_pages = r->path.n_tokens / e->layout.page_tokens;
    r->past = r->loading == KG_LOAD_NONE ? r->path.n_tokens : 0;
    kg_index_pages(e->index, &r->path, r->job->pages);
    memset(r->job->cached, 1, r->n_pages);
    r->source = r->past > 0 ? r->match.state : KG_NONE;
    r->last_ckpt = r->past;
    r->n_offered = r->n_pages;
    r->branch = r->match.seen_tokens;
    r->answer = r->before = 0;
    if (r->loading == KG_LOAD_NONE) {
        account(e, r);
    }
}

/* --- what a request leaves --- */

/* Whole committed pages go into the index; what it hands out goes back to the pool. Where others
 * have equal pages there, the request goes on with theirs: the backend's slot begins anew, with the
 * state it has. */
static void insert(struct kg_engine *e, struct kg_req *r)
{
    uint32_t page = e->layout.page_tokens, at = r->path.n_tokens / page;
    uint32_t n = r->past / page, n_out = 0, shared = 0;

    /* What did not fit is offered again when there is a new page, not in each step. */
    if (n <= at || n <= r->n_offered) {
        return;
    }
    r->n_offered = n;
    uint32_t *pages = r->job->pages + at, *out = e->moved_out;
    n = kg_index_append(e->index, &r->path, r->job->tokens + (size_t)at * page, pages, n - at, out,
                        &shared);
    memset(r->job->cached + at, 1, n);
    kg_cache_own(e, KG_PAGE, pages, n, 1);
    for (uint32_t i = 0; i < n; i++) {
        if (out[i] != KG_NONE) {
            out[n_out++] = out[i];
        }
    }
    kg_adm_give(e, KG_PAGE, out, n_out, 0);
    if (shared > 0) {
        r->fresh = 1;
        r->source = r->unit;
        r->n_sent = 0;
    }
}

/* Tokens past a page for which the end of the answer one page before is kept: a stop string is
 * found when it has been written, and what the client then sends ends before it. */
#define STOP_TOKENS 8u

static uint32_t stop_tokens(const struct kg_engine *e)
{
    uint32_t half = e->layout.page_tokens / 2;

    return half < STOP_TOKENS ? half : STOP_TOKENS;
}

/* The answer went on too far to be cut before its last checkpoint. */
static void withdraw_before(struct kg_engine *e, struct kg_req *r)
{
    if (r->before > 0 &&
        kg_index_withdraw(e->index, &r->path, r->before, r->before_unit) == KG_OK) {
        kg_adm_give(e, KG_STATE, &r->before_unit, 1, 0);
    }
    r->before = 0;
}

/* The end of the answer moved on: its old state goes, if nobody came for it. */
static void withdraw(struct kg_engine *e, struct kg_req *r)
{
    if (kg_index_withdraw(e->index, &r->path, r->answer, r->answer_unit) == KG_OK) {
        kg_adm_give(e, KG_STATE, &r->answer_unit, 1, 0);
        r->last_ckpt = kg_index_state_below(e->index, &r->path, r->answer);
    }
    r->answer = 0;
}

static uint32_t kind_of(const struct kg_engine *e, const struct kg_req *r, uint32_t why)
{
    return kg_ckpt_kind(why, r->branch, r->n_target, e->layout.page_tokens);
}

/* A state that was written goes to the node at its position, or back. */
static void donate(struct kg_engine *e, struct kg_req *r, const struct kg_order *o, uint32_t why)
{
    if (!r->path.open || kg_index_donate(e->index, &r->path, r->job->tokens, o->position, o->unit,
                                         kind_of(e, r, why)) != KG_OK) {
        kg_adm_give(e, KG_STATE, &o->unit, 1, 0);
        e->stats.ckpt_unused += r->path.open;
        return;
    }
    kg_cache_own(e, KG_STATE, &o->unit, 1, 1);
    e->stats.ckpt_written++;
    r->job->done.n_checkpoints++;
    if (why == KG_CKPT_WHY_ANSWER && r->answer > 0) {
        withdraw_before(e, r);
        r->before = r->answer;
        r->before_unit = r->answer_unit;
    }
    r->last_ckpt = o->position;
    if (why == KG_CKPT_WHY_ANSWER) {
        r->answer = o->position;
        r->answer_unit = o->unit;
    }
}

void kg_cache_settle(struct kg_engine *e, const struct kg_pick *p, const struct kg_seq *q, int good)
{
    struct kg_req *r = p->req;
    const uint32_t *why = e->order_why + (size_t)(q - e->seqs) * e->desc.max_orders;

    if (r->path.open && good) {
        kg_index_release(e->index, &r->path);
        insert(e, r);
    }
    for (uint32_t i = 0; i < p->n_orders; i++) {
        const struct kg_order *o = &q->orders[i];
        if (!good || o->position > r->past) {
            kg_adm_give(e, KG_STATE, &o->unit, 1, !good);
            continue;
        }
        if (e->test.on_order != NULL) {
            e->test.on_order(e->test.ctx, q->id, o->position, o->unit);
        }
        donate(e, r, o, why[i]);
    }
    if (r->path.open && r->before > 0 && r->past >= r->answer + stop_tokens(e)) {
        withdraw_before(e, r);
    }
}

void kg_cache_close(struct kg_engine *e, struct kg_req *r)
{
    struct kg_index_victim v;

    if (r->loading == KG_LOAD_HELD) {
        kg_tier_abort(e, r);
    }
    r->loading = KG_LOAD_NONE;
    if (r->path.open && r->nan) {
        kg_tier_forget(e, r);
        /* Nobody knows where the bad value came from: nothing of this path is resumed again. */
        while (kg_index_distrust(e->index, &r->path, e->moved_out, e->layout.max_units[KG_PAGE],
                                 &v) == KG_OK) {
            kg_adm_give(e, KG_PAGE, e->moved_out, v.n_pages, 1);
            kg_adm_give(e, KG_STATE, &v.state, v.state != KG_NONE, 1);
        }
    } else if (r->path.open) {
        r->n_offered = 0;
        insert(e, r);
    }
    for (uint32_t i = 0; i < r->n_pages;) { /* runs of its own pages */
        uint32_t n = 0;
        while (i + n < r->n_pages && !r->job->cached[i + n]) {
            n++;
        }
        kg_adm_give(e, KG_PAGE, r->job->pages + i, n, r->nan);
        i += n + 1;
    }
    if (r->path.open) {
        kg_index_close(e->index, &r->path);
    }
}

/* --- checkpoints --- */

/* Positions of the next rows; how many of them the step may have. */
static uint32_t positions(const struct kg_engine *e, const struct kg_pick *p, struct kg_ckpt *out,
                          uint32_t *n_rows)
{
    const struct kg_req *r = p->req;
    const struct kg_arm *arm = kg_req_arm(e, r);
    struct kg_ckpt_view v = {.policy = r->path.open ? arm->checkpoint : KG_CKPT_OFF,
                             .page_tokens = e->layout.page_tokens,
                             .interval = arm->interval,
                             .gap = e->gap,
                             .max_orders = e->desc.max_orders < KG_MAX_ORDERS ? e->desc.max_orders
                                                                              : KG_MAX_ORDERS,
                             .n_prompt = r->n_target,
                             .past = r->past,
                             .n_rows = p->n_tokens + p->n_draft,
                             .branch = r->branch,
                             .last = r->last_ckpt,
                             .boundaries = r->job->boundaries,
                             .n_boundaries = r->job->n_boundaries,
                             .marks = r->job->marks,
                             .n_marks = r->job->n_marks};

    if (e->test.force_orders) {
        v.policy = KG_CKPT_INTERVAL;
        v.interval = v.page_tokens;
    }
    return kg_ckpt_orders(&v, out, n_rows);
}

uint32_t kg_cache_rows(const struct kg_engine *e, const struct kg_pick *p)
{
    struct kg_ckpt at[KG_MAX_ORDERS];
    uint32_t n_rows;

    (void)positions(e, p, at, &n_rows);
    return n_rows;
}

/* One in so many that are not proven is written all the same, to learn whether that is still so. */
#define TRY_ONE_IN 16u

static int proven(struct kg_engine *e, const struct kg_req *r, uint32_t why)
{
    double share[KG_INDEX_KINDS];
    uint32_t known[KG_INDEX_KINDS];

    if (kg_req_arm(e, r)->checkpoint != KG_CKPT_AUTO || !r->path.open) {
        return 1;
    }
    kg_index_shares(e->index, share, known);
    return kg_ckpt_proven(kind_of(e, r, why), share, known) || ++e->n_unproven % TRY_ONE_IN == 0;
}

/* A unit for a checkpoint: free room, or under the policy's rule that of the cheapest state. */
static int find_unit(struct kg_engine *e, struct kg_req *r, uint32_t position, uint32_t why,
                     uint32_t *unit)
{
    if (!proven(e, r, why)) {
        e->stats.ckpt_pruned++;
        return 0;
    }
    if (kg_adm_single(e, KG_STATE, 0, unit) == KG_OK) {
        return 1;
    }
    if (e->index == NULL || !r->path.open) {
        return 0;
    }
    uint32_t from = kg_index_state_below(e->index, &r->path, position - 1);
    from = from > r->last_ckpt ? from : r->last_ckpt;
    if (from >= position ||
        !kg_ckpt_wins(why & KG_CKPT_WHY_ASKED ? KG_CKPT_BOUNDARY : kg_req_arm(e, r)->checkpoint,
                      kg_index_worth(e->index, from, position, kind_of(e, r, why)),
                      kg_index_cheapest(e->index))) {
        e->stats.ckpt_pruned++;
        return 0;
    }
    if (kg_adm_single(e, KG_STATE, 1, unit) != KG_OK) {
        e->stats.ckpt_skipped++;
        return 0;
    }
    return 1;
}

/* The state that came back is worth a copy for those who come after, if there is a unit for it. */
static void plant(struct kg_engine *e, struct kg_req *r)
{
    uint32_t unit;

    if (!find_unit(e, r, r->past, KG_CKPT_WHY_BRANCH, &unit)) {
        return;
    }
    kg_adm_sync(e);
    if (e->parts.exec_ops->copy(e->parts.exec, KG_STATE, unit, r->unit) == KG_OK &&
        kg_index_donate(e->index, &r->path, r->job->tokens, r->past, unit,
                        kind_of(e, r, KG_CKPT_WHY_BRANCH)) == KG_OK) {
        kg_cache_own(e, KG_STATE, &unit, 1, 1);
        e->stats.ckpt_written++;
    } else {
        kg_adm_give(e, KG_STATE, &unit, 1, 0);
        e->stats.ckpt_unused++;
    }
}

void kg_cache_restored(struct kg_engine *e, struct kg_req *r)
{
    account(e, r);
    insert(e, r);
    plant(e, r);
    r->last_ckpt = r->past;
}

void kg_cache_order(struct kg_engine *e, struct kg_pick *p, struct kg_order *orders, uint32_t *why)
{
    struct kg_req *r = p->req;
    struct kg_ckpt at[KG_MAX_ORDERS];
    uint32_t n_rows, unit, n = positions(e, p, at, &n_rows);

    for (uint32_t i = 0; i < n; i++) {
        int got = 0;
        /* For want of room the old one goes early, for its unit, where the new one is certain: not
         * among drafts that may be rejected. */
        if (at[i].why == KG_CKPT_WHY_ANSWER && r->answer > 0 &&
            at[i].position <= r->past + p->n_tokens) {
            withdraw_before(e, r);
            got = kg_adm_single(e, KG_STATE, 0, &unit) == KG_OK;
            if (!got) {
                withdraw(e, r);
            }
        }
        if (got || find_unit(e, r, at[i].position, at[i].why, &unit)) {
            why[p->n_orders] = at[i].why;
            orders[p->n_orders++] = (struct kg_order){at[i].position, unit};
        }
    }
}

/* --- self-check --- */

uint32_t kg_cache_own_pages(const struct kg_req *r)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->n_pages; i++) {
        n += !r->job->cached[i];
    }
    return n;
}

int kg_cache_check(const struct kg_engine *e, uint64_t used[KG_N_KINDS], struct kg_error *err)
{
    uint32_t n[KG_N_KINDS];

    if (e->index == NULL) {
        return KG_OK;
    }
    kg_index_cached(e->index, n);
    used[KG_PAGE] += n[KG_PAGE];
    used[KG_STATE] += n[KG_STATE];
    return kg_index_check(e->index, err);
}

void kg_cache_stats(struct kg_engine *e)
{
    struct kg_engine_stats *s = &e->stats;
    struct kg_index_stats x;

    if (e->index == NULL) {
        return;
    }
    if (e->tier != NULL) {
        e->parts.tier_ops->bytes(e->tier, &s->tier_bytes, &s->tier_limit);
    }
    kg_index_stats(e->index, &x);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        s->n_cached[k] = x.cached[k];
        s->n_evictable[k] = x.evictable[k];
    }
    s->ghost_bytes = x.ghost_bytes;
    s->shared_pages = x.shared;
}
