/*
 * A random walk over a pool against the naive model: walk PLUGIN.so [KEY=VALUE ...].
 *
 * Each episode draws a geometry, then walks: grants opened, extended, closed and taken out, units
 * given, evicted, cached, locked, pinned, moved, and calls that must be refused. After each op the
 * pool's check(), its classes and the cover of every open promise are compared with the model;
 * at each sync all bytes are (no stale capacity; room of both kinds is judged jointly; nothing that
 * is owned ever shows freed bytes). KEDGE_SEED sets the seed, KEDGE_OPS the
 * number of operations, KEDGE_FULL=1 makes it 10^6.
 */
#include "model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define MOST_GRANTS 12
#define MOST_UNITS 2048 /* of a kind; larger geometries are drawn again */
#define EPISODE 4000    /* operations */

struct walk_grant {
    uint32_t id;
    uint32_t left[KG_N_KINDS];
};

struct walk {
    struct rig rig;
    struct model m;
    struct walk_grant grants[MOST_GRANTS];
    uint32_t n_grants;
    uint64_t seed, state;
    uint64_t n_ops, episode;
    const char *op;
    /* what happened, to show that the walk went everywhere */
    uint64_t granted, refused, never, taken, evicted, short_takes, pins, pins_refused, compacted,
        drained, bad;
};

static struct walk w;

static uint64_t draw(void)
{
    uint64_t z = (w.state += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* 0 .. n-1; 0 for n = 0. */
static uint32_t below(uint64_t n)
{
    return n > 0 ? (uint32_t)(draw() % n) : 0;
}

#define must(cond, what)                                                                   \
    model_must(cond, "%s [op %s, number %llu, episode %llu, KEDGE_SEED=%llu]", what, w.op, \
               (unsigned long long)w.n_ops, (unsigned long long)w.episode,                 \
               (unsigned long long)w.seed)

static const struct kg_pool_layout *layout(void)
{
    return &w.rig.layout;
}

static void promised(uint64_t sum[KG_N_KINDS])
{
    sum[0] = sum[1] = 0;
    for (uint32_t g = 0; g < w.n_grants; g++) {
        for (uint32_t k = 0; k < KG_N_KINDS; k++)
            sum[k] += w.grants[g].left[k];
    }
}

/* Units there would be with all promises and `need` taken out and `evictable` evicted. */
static void demand(const uint32_t need[KG_N_KINDS], const uint32_t evictable[KG_N_KINDS],
                   uint64_t n[KG_N_KINDS])
{
    promised(n);
    for (uint32_t k = 0; k < KG_N_KINDS; k++)
        n[k] += model_n_owned(&w.m, k) - evictable[k] + need[k];
}

static void all_evictable(uint32_t n[KG_N_KINDS])
{
    for (uint32_t k = 0; k < KG_N_KINDS; k++)
        n[k] = model_n_evictable(&w.m, k);
}

static int fits_empty(const uint64_t n[KG_N_KINDS])
{
    if ((layout()->caps & KG_POOL_CAP_SHARED) != 0)
        return n[0] * layout()->unit_bytes[0] + n[1] * layout()->unit_bytes[1] <=
               layout()->arena_bytes;
    return n[0] <= layout()->max_units[0] && n[1] <= layout()->max_units[1];
}

/* By trial: least number of units of a kind to take off n so that it fits; KG_NONE if none. */
static uint32_t least_evictions(const uint64_t n[KG_N_KINDS], uint32_t kind, uint32_t short_kind)
{
    uint64_t left[KG_N_KINDS] = {n[0], n[1]};
    uint32_t n_pinned = 0;

    if ((layout()->caps & KG_POOL_CAP_SHARED) == 0)
        left[!short_kind] = 0; /* a budget of its own: another shortage */
    for (uint32_t id = 0; id < layout()->max_units[kind]; id++)
        n_pinned += w.m.units[kind][id].pinned;
    for (uint32_t x = 0;; x++, left[kind]--) {
        if (model_fits(&w.m, left))
            return x;
        if (left[kind] <= n_pinned)
            return KG_NONE;
    }
}

/* `counted`: evictable units that the pool has already counted on. */
static void compare_shortage(const struct kg_shortage *s, const uint64_t n[KG_N_KINDS],
                             const uint32_t counted[KG_N_KINDS])
{
    must(s->kind < KG_N_KINDS && s->bytes > 0, "a shortage of something");
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint32_t least = least_evictions(n, k, s->kind);
        uint64_t there = model_n_owned(&w.m, k) - counted[k];
        for (uint32_t id = 0; id < layout()->max_units[k]; id++)
            there -= w.m.units[k][id].pinned;
        /* where no number would do, one beyond what there is says the same */
        must(s->evict[k] == least || (least == KG_NONE && s->evict[k] > there),
             "shortage names the least evictions");
    }
}

/* Ids of a kind for which `is` holds; their number. */
static uint32_t collect(uint32_t kind, int (*is)(const struct model_unit *), uint32_t *ids)
{
    uint32_t n = 0;

    for (uint32_t id = 0; id < layout()->max_units[kind]; id++) {
        if (w.m.units[kind][id].owned && is(&w.m.units[kind][id]))
            ids[n++] = id;
    }
    return n;
}

static int is_evictable(const struct model_unit *u)
{
    return u->cached && !u->locked && !u->pinned;
}

static int is_givable(const struct model_unit *u)
{
    return !u->pinned && !u->locked;
}

static int is_pinned(const struct model_unit *u)
{
    return u->pinned;
}

static int is_unpinned(const struct model_unit *u)
{
    return !u->pinned;
}

static int is_live(const struct model_unit *u)
{
    return !u->cached;
}

static int is_locked(const struct model_unit *u)
{
    return u->locked;
}

/* One of those, or KG_NONE. */
static uint32_t pick(uint32_t kind, int (*is)(const struct model_unit *))
{
    static uint32_t ids[MOST_UNITS];
    uint32_t n = collect(kind, is, ids);

    return n > 0 ? ids[below(n)] : KG_NONE;
}

static void give(uint32_t kind, uint32_t n, const uint32_t *ids)
{
    must(w.rig.ops->give(w.rig.pool, kind, n, ids) == KG_OK, "give of owned units");
    model_give(&w.m, kind, n, ids);
}

/* -------- grants -------- */

static void draw_need(uint32_t need[KG_N_KINDS])
{
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint32_t most = layout()->max_units[k];
        uint32_t few = most / 6 + 2;
        need[k] = below(4) == 0 ? 0 : below(20) == 0 ? below(most + 3ull) : below(few);
    }
}

/* A grant opened or extended: the answer must be the oracle's. */
static void grow(struct walk_grant *g, int fresh)
{
    uint32_t need[KG_N_KINDS], evictable[KG_N_KINDS], id = KG_NONE;
    struct kg_shortage s = {0};
    uint64_t n[KG_N_KINDS], total[KG_N_KINDS];

    draw_need(need);
    all_evictable(evictable);
    if (below(8) == 0)
        evictable[below(2)] /= 2; /* the caller may offer less than there is */
    demand(need, evictable, n);
    for (uint32_t k = 0; k < KG_N_KINDS; k++)
        total[k] = (uint64_t)g->left[k] + need[k];
    int rc = fresh ? w.rig.ops->grant_open(w.rig.pool, need, evictable, &id, &s)
                   : w.rig.ops->grant_extend(w.rig.pool, g->id, need, evictable, &s);
    if (!fits_empty(total)) {
        must(rc == KG_ENEVER, "never is said of what an empty pool cannot hold");
        w.never++;
    } else if (!model_fits(&w.m, n)) {
        must(rc == KG_EAGAIN, "a grant is refused where free + evictable does not cover it");
        if (below(4) == 0)
            compare_shortage(&s, n, evictable);
        w.refused++;
    } else {
        must(rc == KG_OK, "a grant is given where free + evictable covers it");
        w.granted++;
        if (fresh)
            g->id = id;
        for (uint32_t k = 0; k < KG_N_KINDS; k++)
            g->left[k] += need[k];
        w.n_grants += (uint32_t)fresh;
    }
}

static void op_open(void)
{
    if (w.n_grants == MOST_GRANTS)
        return;
    w.grants[w.n_grants] = (struct walk_grant){0};
    grow(&w.grants[w.n_grants], 1);
}

static void op_extend(void)
{
    if (w.n_grants > 0)
        grow(&w.grants[below(w.n_grants)], 0);
}

static void op_close(void)
{
    if (w.n_grants == 0)
        return;
    uint32_t g = below(w.n_grants);
    w.rig.ops->grant_close(w.rig.pool, w.grants[g].id);
    w.grants[g] = w.grants[--w.n_grants];
}

/* Evicts up to n evictable units of a kind, chosen at random; how many. */
static uint32_t evict(uint32_t kind, uint32_t n)
{
    uint32_t done = 0;

    for (; done < n; done++) {
        uint32_t id = pick(kind, is_evictable);
        if (id == KG_NONE)
            break;
        give(kind, 1, &id);
        w.evicted++;
    }
    return done;
}

/* Makes room for a take as the engine does: only what shortfall says, either kind that helps. */
static void make_room(const struct walk_grant *g, uint32_t kind, uint32_t n)
{
    struct kg_shortage s;

    while (w.rig.ops->shortfall(w.rig.pool, g->id, kind, n, &s) == KG_EAGAIN) {
        const uint32_t need[KG_N_KINDS] = {0};
        uint64_t units[KG_N_KINDS] = {model_n_owned(&w.m, 0), model_n_owned(&w.m, 1)};
        units[kind] += n;
        must(s.kind == kind, "a shortfall is of the kind asked for");
        must(!model_fits(&w.m, units), "a shortfall where the take does fit");
        if (below(4) == 0)
            compare_shortage(&s, units, need);
        uint32_t k = below(KG_N_KINDS);
        if (s.evict[k] == KG_NONE || evict(k, s.evict[k]) == 0)
            must(s.evict[!k] != KG_NONE && evict(!k, s.evict[!k]) > 0,
                 "a promise is covered by what may be evicted");
        w.short_takes++;
    }
}

static void take(struct walk_grant *g, uint32_t kind, uint32_t n)
{
    static uint32_t ids[MOST_UNITS];

    make_room(g, kind, n);
    uint64_t bound = model_move_bound(&w.m, kind, n);
    uint64_t before = rig_metric(&w.rig, "relocations_total");
    if (KG_HAS(w.rig.ops, struct kg_pool_ops, loose)) {
        uint32_t loose = w.rig.ops->loose(w.rig.pool, kind);
        must((n <= loose) == (bound == 0), "what is loose needs no move, what is not needs one");
    }
    must(w.rig.ops->take(w.rig.pool, g->id, kind, n, ids) == KG_OK,
         "after a shortfall of nothing a take cannot fail");
    must(rig_metric(&w.rig, "relocations_total") - before <= bound, "urgent moves are bounded");
    model_take(&w.m, kind, n, ids);
    g->left[kind] -= n;
    w.taken += n;
    if (below(2) == 0) {
        must(w.rig.ops->own(w.rig.pool, kind, n, ids, 1) == KG_OK, "own of taken units");
        for (uint32_t i = 0; i < n; i++)
            w.m.units[kind][ids[i]].cached = 1;
    }
}

static void op_take(void)
{
    if (w.n_grants == 0)
        return;
    struct walk_grant *g = &w.grants[below(w.n_grants)];
    uint32_t kind = below(KG_N_KINDS);
    take(g, kind, below((uint64_t)g->left[kind] + 1));
}

/* A grant taken out completely. */
static void op_drain(void)
{
    if (w.n_grants == 0)
        return;
    struct walk_grant *g = &w.grants[below(w.n_grants)];
    for (uint32_t i = 0; g->left[0] + g->left[1] > 0; i++) {
        uint32_t kind = g->left[i % 2] > 0 ? i % 2 : !(i % 2);
        take(g, kind, 1 + below(g->left[kind]));
    }
    w.drained++;
}

/* -------- units -------- */

static void op_give(void)
{
    uint32_t kind = below(KG_N_KINDS), ids[8], n = 0, most = 1 + below(8);

    while (n < most) {
        uint32_t id = pick(kind, is_givable);
        if (id == KG_NONE)
            break;
        int named = 0;
        for (uint32_t i = 0; i < n; i++)
            named |= ids[i] == id;
        if (named)
            break;
        ids[n++] = id;
    }
    give(kind, n, ids);
}

static void op_evict(void)
{
    (void)evict(below(KG_N_KINDS), 1 + below(3));
}

static void op_cache(void)
{
    uint32_t kind = below(KG_N_KINDS), id = pick(kind, is_live);

    if (id == KG_NONE)
        return;
    must(w.rig.ops->own(w.rig.pool, kind, 1, &id, 1) == KG_OK, "own of a live unit");
    w.m.units[kind][id].cached = 1;
}

/* A lock is admission's: it asks for a grant of nothing without the unit it wants to keep. */
static void op_lock(void)
{
    uint32_t kind = below(KG_N_KINDS), id = pick(kind, is_evictable), evictable[KG_N_KINDS], grant;
    const uint32_t need[KG_N_KINDS] = {0};
    struct kg_shortage s;
    uint64_t n[KG_N_KINDS];

    if (id == KG_NONE)
        return;
    w.m.units[kind][id].locked = 1;
    all_evictable(evictable);
    demand(need, evictable, n);
    int rc = w.rig.ops->grant_open(w.rig.pool, need, evictable, &grant, &s);
    must(rc == (model_fits(&w.m, n) ? KG_OK : KG_EAGAIN), "a lock is refused iff it uncovers");
    if (rc != KG_OK) {
        w.m.units[kind][id].locked = 0;
        return;
    }
    w.rig.ops->grant_close(w.rig.pool, grant);
    if (below(3) == 0) { /* locked for good: it goes back to a request */
        must(w.rig.ops->own(w.rig.pool, kind, 1, &id, 0) == KG_OK, "own of a cached unit");
        w.m.units[kind][id].cached = 0;
        w.m.units[kind][id].locked = 0;
    }
}

static void op_unlock(void)
{
    uint32_t kind = below(KG_N_KINDS), id = pick(kind, is_locked);

    if (id != KG_NONE)
        w.m.units[kind][id].locked = 0;
}

static void op_pin(void)
{
    uint32_t kind = below(KG_N_KINDS), id = pick(kind, is_unpinned), evictable[KG_N_KINDS];
    const uint32_t need[KG_N_KINDS] = {0};
    uint64_t n[KG_N_KINDS];

    if (id == KG_NONE)
        return;
    w.m.units[kind][id].pinned = 1;
    all_evictable(evictable);
    demand(need, evictable, n);
    int rc = w.rig.ops->pin(w.rig.pool, kind, id, evictable);
    must(rc == (model_fits(&w.m, n) ? KG_OK : KG_EAGAIN), "a pin is refused iff it uncovers");
    w.pins++;
    if (rc != KG_OK) {
        w.m.units[kind][id].pinned = 0;
        w.pins_refused++;
    }
}

static void op_unpin(void)
{
    uint32_t kind = below(KG_N_KINDS), id = pick(kind, is_pinned);

    if (id == KG_NONE)
        return;
    must(w.rig.ops->unpin(w.rig.pool, kind, id) == KG_OK, "unpin of a pinned unit");
    w.m.units[kind][id].pinned = 0;
}

static void op_compact(void)
{
    uint32_t most = below(5);
    struct kg_pool_bytes before, after;

    if ((layout()->caps & KG_POOL_CAP_MOVES) == 0)
        return;
    w.rig.ops->bytes(w.rig.pool, &before);
    int n = w.rig.ops->compact(w.rig.pool, most);
    w.rig.ops->bytes(w.rig.pool, &after);
    must(n >= 0 && (uint32_t)n <= most, "idle compaction is capped");
    must(after.gap >= before.gap && (n == 0) == (after.gap == before.gap),
         "each move of a compaction widens the gap");
    w.compacted += (uint64_t)n;
}

static void op_sync(void)
{
    model_sync(&w.m);
    if (below(8) == 0)
        model_poison_rest(&w.m);
}

/* Calls that must be refused and change nothing; what they might change is compared after. */
static void op_bad(void)
{
    uint32_t kind = below(KG_N_KINDS), id = below(layout()->max_units[kind] + 2ull), ids[2];
    uint32_t good = pick(kind, is_givable);
    int owned = id < layout()->max_units[kind] && w.m.units[kind][id].owned;
    int pinned = owned && w.m.units[kind][id].pinned;

    ids[0] = good;
    ids[1] = !owned || pinned ? id : good; /* free, foreign or pinned, else the same twice */
    if (good != KG_NONE)
        must(w.rig.ops->give(w.rig.pool, kind, 2, ids) == KG_EINVAL, "a bad give is refused");
    if (!owned) {
        must(w.rig.ops->own(w.rig.pool, kind, 1, &id, 1) == KG_EINVAL, "own of a free unit");
        must(w.rig.ops->pin(w.rig.pool, kind, id, ids) == KG_EINVAL, "pin of a free unit");
        must(w.rig.ops->unpin(w.rig.pool, kind, id) == KG_EINVAL, "unpin of a free unit");
    }
    if (w.n_grants > 0) {
        const struct walk_grant *g = &w.grants[below(w.n_grants)];
        must(w.rig.ops->take(w.rig.pool, g->id, kind, g->left[kind] + 1, ids) == KG_EINVAL,
             "a take beyond the grant");
    }
    w.bad++;
}

/* -------- the walk -------- */

static const struct {
    const char *name;
    void (*run)(void);
    uint32_t weight;
} ops[] = {
    {"open", op_open, 8},       {"extend", op_extend, 5}, {"close", op_close, 5},
    {"take", op_take, 24},      {"drain", op_drain, 2},   {"give", op_give, 8},
    {"evict", op_evict, 3},     {"cache", op_cache, 8},   {"lock", op_lock, 4},
    {"unlock", op_unlock, 4},   {"pin", op_pin, 4},       {"unpin", op_unpin, 5},
    {"compact", op_compact, 3}, {"sync", op_sync, 15},    {"bad", op_bad, 2},
};

static void compare(void)
{
    struct kg_error err = {0};
    uint64_t sum[KG_N_KINDS], n[KG_N_KINDS];
    uint32_t evictable[KG_N_KINDS];
    const uint32_t need[KG_N_KINDS] = {0};

    must(w.rig.ops->check(w.rig.pool, &err) == KG_OK, err.text);
    promised(sum);
    model_compare(&w.m, sum);
    all_evictable(evictable);
    demand(need, evictable, n);
    must(model_fits(&w.m, n), "every open promise stays covered");
}

static void step(void)
{
    uint32_t total = 0, at;

    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        total += ops[i].weight;
    at = below(total);
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (at < ops[i].weight) {
            w.op = ops[i].name;
            ops[i].run();
            break;
        }
        at -= ops[i].weight;
    }
    compare();
    w.n_ops++;
}

static struct kg_pool_geom draw_geom(void)
{
    struct kg_pool_geom g = {
        .size = sizeof(g),
        .token_bytes = 1 + below(90),
        .state_part_bytes = 1 + below(below(4) == 0 ? 40 : 600),
        .n_state_parts = 1 + below(7),
        .page_tokens = 1 + below(12),
        .page_tokens_align = 1 + below(6),
        .align = 1u << below(7),
        .max_seqs = 1 + below(4),
    };
    uint64_t page = (g.page_tokens + g.page_tokens_align) * g.token_bytes + g.align;
    uint64_t state = g.n_state_parts * (g.state_part_bytes + g.align);

    g.arena_bytes = page * (1 + below(below(4) == 0 ? 200 : 40)) + state * (g.max_seqs + below(12));
    return g;
}

/* Everything out: half the time all promises first, then whatever is owned. */
static void finish(void)
{
    w.op = "finish";
    for (uint32_t g = 0; draw() % 2 == 0 && g < w.n_grants; g++) {
        for (uint32_t k = 0; k < KG_N_KINDS; k++)
            take(&w.grants[g], k, w.grants[g].left[k]);
        compare();
    }
    for (uint32_t g = 0; g < w.n_grants; g++)
        w.rig.ops->grant_close(w.rig.pool, w.grants[g].id);
    w.n_grants = 0;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        for (uint32_t id = 0; id < layout()->max_units[k]; id++) {
            if (w.m.units[k][id].pinned)
                must(w.rig.ops->unpin(w.rig.pool, k, id) == KG_OK, "unpin at the end");
            if (w.m.units[k][id].owned)
                give(k, 1, &id);
        }
    }
    model_sync(&w.m);
    compare();
    model_close(&w.m);
    must(rig_close(&w.rig) == 0, "no memory leaks");
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void random_walk_agrees_with_the_naive_model(void **state)
{
    uint64_t want = number_from("KEDGE_OPS", number_from("KEDGE_FULL", 0) ? 1000000 : 200000);

    uint64_t moves = 0;

    (void)state;
    w.seed = w.state = number_from("KEDGE_SEED", 20261129);
    print_message("seed %llu, %llu operations\n", (unsigned long long)w.seed,
                  (unsigned long long)want);
    while (w.n_ops < want) {
        struct kg_pool_geom geom = draw_geom();
        struct kg_error err;
        if (rig_open(&w.rig, &geom, &err) != KG_OK)
            continue;
        if (layout()->max_units[0] > MOST_UNITS || layout()->max_units[1] > MOST_UNITS) {
            assert_int_equal(rig_close(&w.rig), 0);
            continue;
        }
        model_open(&w.m, &w.rig);
        for (uint32_t i = 0; i < EPISODE && w.n_ops < want; i++)
            step();
        moves += w.m.n_moves;
        finish();
        w.episode++;
    }
    print_message(
        "%llu episodes: %llu granted, %llu refused, %llu never; %llu units taken, %llu "
        "evicted in %llu short takes, %llu grants taken out; %llu pins, %llu refused; "
        "%llu idle moves, %llu moves with bytes; %llu bad calls\n",
        (unsigned long long)w.episode, (unsigned long long)w.granted, (unsigned long long)w.refused,
        (unsigned long long)w.never, (unsigned long long)w.taken, (unsigned long long)w.evicted,
        (unsigned long long)w.short_takes, (unsigned long long)w.drained,
        (unsigned long long)w.pins, (unsigned long long)w.pins_refused,
        (unsigned long long)w.compacted, (unsigned long long)moves, (unsigned long long)w.bad);
    /* a walk that never gets anywhere shows nothing */
    assert_true(w.granted > want / 100 && w.refused > want / 200 && w.evicted > want / 200);
    assert_true(w.short_takes > 0 && w.never > 0 && w.pins > w.pins_refused);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_walk_agrees_with_the_naive_model),
    };

    if (argc < 2 || rig_load(&w.rig, argv[1], argc - 2, argv + 2) != 0) {
        print_error("usage: walk PLUGIN.so [KEY=VALUE ...]\n");
        return 2;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_unload(&w.rig);
    return failed;
}
