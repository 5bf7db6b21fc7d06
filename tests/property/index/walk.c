/*
 * Random requests on index and pool together, the way an engine uses them, beside a flat list of
 * what is cached. After each operation: equal reuse, equal counts, every promise kept, and units
 * that are given away are nobody's. At the end nothing is locked and nothing has leaked.
 * 10^5 operations; 10^6 with KEDGE_FULL=1. Usage: index_walk POOL OPTIONS [SEED]
 */
#include "base/rng.h"
#include "engine/index.h"
#include "oracle.h"
#include "rig.h"

#include <stdlib.h>
#include <string.h>

#define PAGE 4u
#define MAX_PAGES 12u
#define N_REQS 6u
#define N_KEPT 8u  /* matches kept, as waiting requests keep them */
#define N_TRIED 8u /* prompts remembered, to share prefixes with */

struct walker {
    uint32_t live, n_tokens, n_pages, n_done; /* n_done: pages computed */
    uint64_t salt;
    uint32_t tokens[MAX_PAGES * PAGE];
    uint32_t pages[MAX_PAGES];
    uint32_t mine[MAX_PAGES]; /* 1: the request owns it, 0: the index does */
    uint32_t grant, state, hit;
    uint32_t answer, answer_state; /* last donated state, for withdraw */
    struct kg_index_path path;
};

/* A match made earlier. */
struct kept {
    uint64_t salt;
    uint32_t tokens[MAX_PAGES * PAGE], n;
    struct kg_index_match m;
};

struct walk {
    struct rig_part part;
    const struct kg_pool_ops *ops;
    struct kg_pool *pool;
    struct kg_pool_layout layout;
    struct kg_index *ix;
    struct oracle oracle;
    struct kg_rng rng;
    struct walker reqs[N_REQS];
    struct walker tried[N_TRIED];
    struct kept kept[N_KEPT];
    uint64_t n_fresh, n_stale;
    uint64_t n_hits, n_reused, n_refused, n_evicted, n_replaced, n_shared, n_donated;
};

static uint64_t cost(void *ctx, uint32_t from, uint32_t to)
{
    (void)ctx;
    return 1000ull * (to - from) + ((uint64_t)to * to - (uint64_t)from * from);
}

static void give(struct walk *w, uint32_t kind, uint32_t id)
{
    assert_int_equal(w->ops->give(w->pool, kind, 1, &id), KG_OK);
}

/* One victim leaves index, list and pool. 0 when there is none. */
static int evict(struct walk *w, const uint32_t want[KG_N_KINDS])
{
    uint32_t pages[4];
    struct kg_index_victim v;

    if (kg_index_evict(w->ix, want, pages, 4, &v) != KG_OK) {
        return 0;
    }
    assert_true(v.n_pages > 0 || v.state != KG_NONE);
    for (uint32_t i = 0; i < v.n_pages; i++) {
        struct oracle_entry *e = oracle_find_id(&w->oracle, KG_PAGE, pages[i]);
        assert_non_null(e);
        assert_int_equal(e->users, 0);
        oracle_remove(&w->oracle, e, KG_PAGE);
        give(w, KG_PAGE, pages[i]);
    }
    if (v.state != KG_NONE) {
        struct oracle_entry *e = oracle_find_id(&w->oracle, KG_STATE, v.state);
        assert_non_null(e);
        assert_int_equal(e->users, 0);
        oracle_remove(&w->oracle, e, KG_STATE);
        give(w, KG_STATE, v.state);
    }
    w->n_evicted++;
    return 1;
}

/* n units out of a grant: the promise is kept, whatever has to go for it. */
static void take(struct walk *w, uint32_t grant, uint32_t kind, uint32_t n, uint32_t *ids)
{
    struct kg_shortage s;

    while (w->ops->shortfall(w->pool, grant, kind, n, &s) != KG_OK) {
        assert_true(evict(w, s.evict));
    }
    assert_int_equal(w->ops->take(w->pool, grant, kind, n, ids), KG_OK);
}

static int grant_open(struct walk *w, uint32_t pages, uint32_t states, uint32_t *grant)
{
    uint32_t need[KG_N_KINDS] = {pages, states}, evictable[KG_N_KINDS];
    struct kg_shortage s;

    kg_index_evictable(w->ix, evictable);
    return w->ops->grant_open(w->pool, need, evictable, grant, &s);
}

/* A prompt that shares a random length with an earlier one. */
static void make_prompt(struct walk *w, struct walker *r)
{
    const struct walker *old = &w->tried[kg_rng_below(&w->rng, N_TRIED)];
    uint32_t keep = old->n_tokens > 0 ? (uint32_t)kg_rng_below(&w->rng, old->n_tokens + 1) : 0;

    *r = *old;
    r->n_tokens = 1 + (uint32_t)kg_rng_below(&w->rng, MAX_PAGES * PAGE - 1);
    if (kg_rng_below(&w->rng, 2) == 0) {
        keep = r->n_tokens;
    }
    for (uint32_t i = keep; i < MAX_PAGES * PAGE; i++) {
        r->tokens[i] = (uint32_t)kg_rng_below(&w->rng, 2);
    }
    r->salt = kg_rng_below(&w->rng, 8) == 0;
    r->n_pages = MAX_PAGES;
    w->tried[kg_rng_below(&w->rng, N_TRIED)] = *r;
}

/* Reads or forgets the pages and the state a hit uses. */
static void use(struct walk *w, struct walker *r, uint32_t n, int delta)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t prefix = oracle_prefix(r->salt, r->tokens, (i + 1) * PAGE);
        struct oracle_entry *e = oracle_find(&w->oracle, KG_PAGE, prefix);
        assert_non_null(e);
        e->users += (uint32_t)delta;
    }
}

static void use_state(struct walk *w, struct walker *r, int delta)
{
    if (r->hit > 0) {
        uint64_t prefix = oracle_prefix(r->salt, r->tokens, r->hit);
        struct oracle_entry *e = oracle_find(&w->oracle, KG_STATE, prefix);
        assert_non_null(e);
        e->users += (uint32_t)delta;
        if (delta < 0) {
            r->hit = 0;
        }
    }
}

static void admit(struct walk *w, struct walker *r)
{
    struct kg_index_match m;
    uint32_t pages, reuse;

    make_prompt(w, r);
    kg_index_match(w->ix, r->salt, r->tokens, r->n_tokens, &m);
    reuse = oracle_reuse(&w->oracle, r->salt, r->tokens, r->n_tokens, &pages);
    assert_int_equal(m.page_tokens, pages);
    assert_int_equal(m.state_tokens, reuse);
    assert_true(m.seen_tokens >= m.page_tokens && m.seen_tokens <= r->n_tokens);
    assert_true(kg_index_is_fresh(w->ix, &m));
    assert_int_equal(kg_index_open(w->ix, &m, r->salt, 1, 1, &r->path), KG_OK);
    assert_int_equal(r->path.n_tokens, reuse);
    uint32_t hit = reuse / PAGE;
    int rc = grant_open(w, MAX_PAGES - hit, 1, &r->grant);
    if (rc != KG_OK) {
        kg_index_close(w->ix, &r->path);
        w->n_refused++;
        return;
    }
    r->hit = reuse;
    use(w, r, hit, 1);
    use_state(w, r, 1);
    kg_index_pages(w->ix, &r->path, r->pages);
    for (uint32_t i = 0; i < hit; i++) {
        uint64_t prefix = oracle_prefix(r->salt, r->tokens, (i + 1) * PAGE);
        assert_int_equal(r->pages[i], oracle_find(&w->oracle, KG_PAGE, prefix)->id);
        r->mine[i] = 0;
    }
    take(w, r->grant, KG_STATE, 1, &r->state);
    r->n_done = hit;
    r->answer = 0;
    r->live = 1;
    w->n_hits += hit > 0;
    w->n_reused += reuse;
}

/* What the index did with page i of the request, that was `brought`, agrees with the list. */
static void took(struct walk *w, struct walker *r, uint32_t i, uint32_t brought, uint32_t out)
{
    uint64_t prefix = oracle_prefix(r->salt, r->tokens, (i + 1) * PAGE);
    struct oracle_entry *e = oracle_find(&w->oracle, KG_PAGE, prefix);
    uint32_t id = r->pages[i];

    assert_int_equal(w->ops->own(w->pool, KG_PAGE, 1, &id, 1), KG_OK);
    r->mine[i] = 0;
    if (id != brought) { /* others read an equal page: now this one does too */
        assert_non_null(e);
        assert_int_equal(e->id, id);
        assert_true(e->users > 0);
        assert_int_equal(out, brought);
        give(w, KG_PAGE, out);
        e->users++;
        w->n_shared++;
    } else if (out == KG_NONE) {
        assert_null(e);
        oracle_add(&w->oracle, KG_PAGE, prefix, id, 1);
    } else {
        assert_non_null(e);
        assert_int_equal(e->id, out);
        assert_int_equal(e->users, 0);
        give(w, KG_PAGE, out);
        e->id = id;
        e->users = 1;
        w->n_replaced++;
    }
}

static void append(struct walk *w, struct walker *r)
{
    uint32_t at = r->path.n_tokens / PAGE, n = r->n_done - at;
    uint32_t brought[MAX_PAGES], out[MAX_PAGES], shared;

    memcpy(brought, r->pages + at, n * sizeof(*brought));
    uint64_t n_shared = w->n_shared;
    assert_int_equal(
        kg_index_append(w->ix, &r->path, r->tokens + at * PAGE, r->pages + at, n, out, &shared), n);
    for (uint32_t i = 0; i < n; i++) {
        took(w, r, at + i, brought[i], out[i]);
    }
    assert_int_equal(w->n_shared - n_shared, shared);
}

/* A state outside any grant goes to a random position, maybe in exchange for the last one. */
static void donate(struct walk *w, struct walker *r)
{
    uint32_t grant, unit, p = PAGE * (1 + (uint32_t)kg_rng_below(&w->rng, r->n_done));

    if (r->answer > 0 && kg_rng_below(&w->rng, 2) == 0 &&
        kg_index_withdraw(w->ix, &r->path, r->answer, r->answer_state) == KG_OK) {
        uint64_t old = oracle_prefix(r->salt, r->tokens, r->answer);
        struct oracle_entry *e = oracle_find(&w->oracle, KG_STATE, old);
        assert_true(e != NULL && e->id == r->answer_state && e->users == 0);
        oracle_remove(&w->oracle, e, KG_STATE);
        give(w, KG_STATE, r->answer_state);
        r->answer = 0;
    }
    if (grant_open(w, 0, 1, &grant) != KG_OK) {
        return;
    }
    take(w, grant, KG_STATE, 1, &unit);
    w->ops->grant_close(w->pool, grant);
    uint64_t prefix = oracle_prefix(r->salt, r->tokens, p);
    struct oracle_entry *page = oracle_find(&w->oracle, KG_PAGE, prefix);
    struct oracle_entry *old = oracle_find(&w->oracle, KG_STATE, prefix);
    int rc = kg_index_donate(w->ix, &r->path, r->tokens, p, unit,
                             (uint32_t)kg_rng_below(&w->rng, KG_INDEX_KINDS));
    assert_int_equal(rc, page != NULL && old == NULL ? KG_OK : KG_EAGAIN);
    if (rc != KG_OK) {
        give(w, KG_STATE, unit);
        return;
    }
    assert_int_equal(w->ops->own(w->pool, KG_STATE, 1, &unit, 1), KG_OK);
    oracle_add(&w->oracle, KG_STATE, prefix, unit, 0);
    r->answer = p;
    r->answer_state = unit;
    w->n_donated++;
}

/* The pages of a path are in use by its request, once each, and given back when it ends. */
static void finish(struct walk *w, struct walker *r, int aborted)
{
    if (!aborted) {
        append(w, r);
    }
    use_state(w, r, -1);
    for (uint32_t i = 0; i < r->n_done; i++) {
        if (r->mine[i]) {
            give(w, KG_PAGE, r->pages[i]);
        } else {
            uint64_t prefix = oracle_prefix(r->salt, r->tokens, (i + 1) * PAGE);
            oracle_find(&w->oracle, KG_PAGE, prefix)->users--;
        }
    }
    kg_index_close(w->ix, &r->path);
    give(w, KG_STATE, r->state);
    w->ops->grant_close(w->pool, r->grant);
    r->live = 0;
}

static void step(struct walk *w, struct walker *r)
{
    uint32_t n = 1 + (uint32_t)kg_rng_below(&w->rng, 3);

    n = n < MAX_PAGES - r->n_done ? n : MAX_PAGES - r->n_done;
    if (n == 0) {
        finish(w, r, 0);
        return;
    }
    take(w, r->grant, KG_PAGE, n, r->pages + r->n_done);
    for (uint32_t i = 0; i < n; i++) {
        r->mine[r->n_done++] = 1;
    }
    use_state(w, r, -1);
    kg_index_release(w->ix, &r->path);
    append(w, r);
    if (kg_rng_below(&w->rng, 2) == 0) {
        donate(w, r);
    }
}

/* A match that is called fresh is what a new one would be. */
static void check_kept(struct walk *w)
{
    struct kept *k = &w->kept[kg_rng_below(&w->rng, N_KEPT)];
    const struct walker *r = &w->tried[kg_rng_below(&w->rng, N_TRIED)];
    struct kg_index_match now;

    kg_index_match(w->ix, k->salt, k->tokens, k->n, &now);
    if (kg_index_is_fresh(w->ix, &k->m)) {
        assert_int_equal(k->m.page_tokens, now.page_tokens);
        assert_int_equal(k->m.state_tokens, now.state_tokens);
        assert_int_equal(k->m.seen_tokens, now.seen_tokens);
        assert_int_equal(k->m.state, now.state);
        assert_int_equal(k->m.node, now.node);
        w->n_fresh++;
    } else {
        w->n_stale++;
        memcpy(k->tokens, r->tokens, sizeof(k->tokens));
        k->n = r->n_tokens;
        k->salt = r->salt;
        kg_index_match(w->ix, k->salt, k->tokens, k->n, &k->m);
    }
}

/* Counts of the index are those of the list; the pool's are both owners' together. */
static void compare(struct walk *w)
{
    uint32_t cached[KG_N_KINDS], evictable[KG_N_KINDS], live[KG_N_KINDS] = {0, 0};

    kg_index_cached(w->ix, cached);
    kg_index_evictable(w->ix, evictable);
    for (uint32_t i = 0; i < N_REQS; i++) {
        struct walker *r = &w->reqs[i];
        for (uint32_t k = 0; r->live && k < r->n_done; k++) {
            live[KG_PAGE] += r->mine[k];
        }
        live[KG_STATE] += r->live;
    }
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        assert_int_equal(cached[k], w->oracle.n[k]);
        assert_int_equal(evictable[k], oracle_idle(&w->oracle, k));
        assert_int_equal(w->ops->n_used(w->pool, k), cached[k] + live[k]);
    }
}

static void check(struct walk *w)
{
    struct kg_error err;

    if (kg_index_check(w->ix, &err) != KG_OK || w->ops->check(w->pool, &err) != KG_OK) {
        fail_msg("%s", err.text);
    }
}

static void open_all(struct walk *w, const char *pool, const char *opts, uint64_t seed)
{
    const struct kg_plugin *plugin = rig_find(KG_KIND_POOL, pool);
    struct kg_pool_geom geom = {.size = sizeof(geom),
                                .arena_bytes = 30 * 64 + 9 * 480,
                                .token_bytes = 16,
                                .state_part_bytes = 240,
                                .n_state_parts = 2,
                                .page_tokens = PAGE,
                                .page_tokens_align = 1,
                                .align = 1,
                                .max_seqs = N_REQS};
    struct kg_error err;

    memset(w, 0, sizeof(*w));
    assert_non_null(plugin);
    rig_part_open(&w->part, plugin, opts, 1);
    w->ops = plugin->ops;
    w->layout.size = sizeof(w->layout);
    assert_int_equal(w->ops->open(&w->part.host, w->part.conf, &geom, &w->pool, &w->layout, &err),
                     KG_OK);
    struct kg_index_conf conf = {
        .page_tokens = PAGE,
        .max_units = {w->layout.max_units[KG_PAGE], w->layout.max_units[KG_STATE]},
        .unit_bytes = {w->layout.unit_bytes[KG_PAGE], w->layout.unit_bytes[KG_STATE]},
        .ghost_bytes = 4000,
        .seed = seed,
        .cost_ns = cost};
    assert_int_equal(kg_index_create(&conf, &w->ix, &err), KG_OK);
    w->oracle.page_tokens = PAGE;
    for (uint32_t i = 0; i < N_KEPT; i++) {
        kg_index_match(w->ix, 0, w->kept[i].tokens, 0, &w->kept[i].m);
    }
    kg_rng_seed(&w->rng, seed);
}

static void close_all(struct walk *w)
{
    static const uint32_t all[KG_N_KINDS] = {1, 1};
    struct kg_index_stats s;

    for (uint32_t i = 0; i < N_REQS; i++) {
        if (w->reqs[i].live) {
            finish(w, &w->reqs[i], (int)i & 1);
        }
    }
    compare(w);
    kg_index_stats(w->ix, &s);
    assert_int_equal(s.n_paths, 0);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        assert_int_equal(s.evictable[k], s.cached[k]); /* no lock is left */
    }
    while (evict(w, all)) {
    }
    check(w);
    assert_int_equal(w->ops->n_used(w->pool, KG_PAGE), 0);
    assert_int_equal(w->ops->n_used(w->pool, KG_STATE), 0);
    kg_index_destroy(w->ix);
    w->ops->close(w->pool);
    rig_part_closed(&w->part);
}

static const char *arg_pool = "unified", *arg_opts = "";
static uint64_t arg_seed = 4;

static void index_and_pool_agree_with_a_flat_list(void **state)
{
    static struct walk w;
    uint32_t n = getenv("KEDGE_FULL") != NULL ? 1000000 : 100000;

    (void)state;
    open_all(&w, arg_pool, arg_opts, arg_seed);
    for (uint32_t i = 0; i < n; i++) {
        struct walker *r = &w.reqs[kg_rng_below(&w.rng, N_REQS)];
        if (!r->live) {
            admit(&w, r);
        } else if (kg_rng_below(&w.rng, 8) == 0) {
            finish(&w, r, kg_rng_below(&w.rng, 2) == 0);
        } else {
            step(&w, r);
        }
        compare(&w);
        check_kept(&w);
        if (i % 64 == 0) {
            check(&w);
        }
    }
    print_message("seed %llu: %llu hits, %llu tokens reused, %llu refused, %llu victims, %llu "
                  "replaced, %llu shared, %llu donated\n",
                  (unsigned long long)arg_seed, (unsigned long long)w.n_hits,
                  (unsigned long long)w.n_reused, (unsigned long long)w.n_refused,
                  (unsigned long long)w.n_evicted, (unsigned long long)w.n_replaced,
                  (unsigned long long)w.n_shared, (unsigned long long)w.n_donated);
    assert_true(w.n_hits > n / 100 && w.n_evicted > n / 100 && w.n_replaced > n / 1000);
    assert_true(w.n_shared > n / 1000);
    assert_true(w.n_refused > n / 100 && w.n_fresh > n / 10 && w.n_stale > n / 100);
    close_all(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(index_and_pool_agree_with_a_flat_list)};

    arg_pool = argc > 1 ? argv[1] : arg_pool;
    arg_opts = argc > 2 ? argv[2] : arg_opts;
    arg_seed = argc > 3 ? strtoull(argv[3], NULL, 0) : arg_seed;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
