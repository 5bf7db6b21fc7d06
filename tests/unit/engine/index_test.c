/* The rules of the prefix index, one test each; rows of the list of public failures by name. */
#include "index_kit.h"

#include <string.h>

#define PAGE 16u

static struct kit kit;
static uint32_t a[4096], b[4096];

static void open_small(void)
{
    kit_open(&kit, PAGE, 64, 16, KG_CKPT_OFF, 0);
    kit_tokens(a, 4096, 1);
    kit_tokens(b, 4096, 2);
}

static void a_hit_needs_pages_and_state_at_one_position(void **state) /* V2, V3 */
{
    struct kg_index_path p;

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 4);
    struct kg_index_match m = kit_match(&kit, 0, a, 4 * PAGE + 5);
    assert_int_equal(m.page_tokens, 4 * PAGE); /* pages are there */
    assert_int_equal(m.state_tokens, 0);       /* nothing can be resumed: they are lost */
    assert_int_equal(m.state, KG_NONE);
    kit_state(&kit, &p, a, 2 * PAGE);
    m = kit_match(&kit, 0, a, 4 * PAGE + 5);
    assert_int_equal(m.page_tokens, 4 * PAGE);
    assert_int_equal(m.state_tokens, 2 * PAGE);
    kg_index_close(kit.ix, &p);
    kit_close(&kit);
}

static void the_last_token_is_always_recomputed(void **state) /* V13 */
{
    (void)state;
    for (uint32_t k = 1; k <= 3; k++) {
        for (int d = -1; d <= 1; d++) {
            uint32_t n = (uint32_t)((int)(k * PAGE) + d);
            open_small();
            kit.policy = KG_CKPT_BOUNDARY;
            (void)kit_run(&kit, a, n, 1, NULL, 0);
            struct kit_seen same = kit_run(&kit, a, n, 1, NULL, 0);
            struct kit_seen more = kit_run(&kit, a, n + 1, 1, NULL, 0);
            assert_true(same.reused < n && more.reused < n + 1);
            assert_int_equal(same.reused, (n - 1) / PAGE * PAGE);
            assert_true(more.reused >= (k - 1) * PAGE);
            kit_close(&kit);
        }
    }
}

static void tokens_are_compared_not_hashes(void **state)
{
    struct kg_index_path p;

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 2);
    kit_state(&kit, &p, a, 2 * PAGE);
    for (uint32_t i = 0; i < 2 * PAGE; i++) {
        memcpy(b, a, sizeof(a));
        b[i]++;
        assert_int_equal(kit_match(&kit, 0, b, 3 * PAGE).seen_tokens, i / PAGE * PAGE);
    }
    kg_index_close(kit.ix, &p);
    kit_close(&kit);
}

static void salts_share_nothing(void **state)
{
    struct kg_index_path p, q;

    (void)state;
    open_small();
    kit_insert(&kit, &p, 7, a, 2);
    kit_state(&kit, &p, a, 2 * PAGE);
    assert_int_equal(kit_match(&kit, 7, a, 3 * PAGE).state_tokens, 2 * PAGE);
    assert_int_equal(kit_match(&kit, 8, a, 3 * PAGE).seen_tokens, 0);
    kit_insert(&kit, &q, 8, a, 2);
    kit_check(&kit);
    kg_index_close(kit.ix, &p);
    kg_index_close(kit.ix, &q);
    kit_close(&kit);
}

static void a_state_off_the_grid_is_refused(void **state) /* S19 */
{
    struct kg_index_path p;

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 3);
    for (uint32_t at = 0; at <= 3 * PAGE + 1; at++) {
        int rc = kg_index_donate(kit.ix, &p, a, at, 0, 0);
        if (at == 0 || at % PAGE != 0) {
            assert_int_equal(rc, KG_EINVAL);
        } else {
            assert_int_equal(rc, KG_OK);
            struct kg_index_match m = kit_match(&kit, 0, a, 4 * PAGE);
            assert_int_equal(m.state_tokens, at); /* its depth is the node's end, exactly */
            assert_int_equal(kg_index_withdraw(kit.ix, &p, at, 0), KG_OK);
        }
    }
    /* behind the pages there is no node for it */
    assert_int_equal(kg_index_donate(kit.ix, &p, a, 4 * PAGE, 0, 0), KG_EAGAIN);
    kg_index_close(kit.ix, &p);
    kit_close(&kit);
}

static void lock_tombstone_revive_unlock_leaves_no_lock(void **state) /* S12 */
{
    struct kg_index_path p, q = {0};
    struct kg_index_victim v;
    uint32_t n[KG_N_KINDS];

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 4);
    kit_state(&kit, &p, a, 4 * PAGE);
    assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK); /* a tombstone, locked */
    struct kg_index_match m = kit_match(&kit, 0, a, 5 * PAGE);
    assert_int_equal(m.state, KG_NONE);
    assert_int_equal(kg_index_open(kit.ix, &m, 0, 1, 1, &q), KG_OK);
    kit_state(&kit, &p, a, 4 * PAGE); /* revived */
    kit_check(&kit);
    kg_index_close(kit.ix, &q);
    kg_index_close(kit.ix, &p);
    kg_index_evictable(kit.ix, n);
    assert_int_equal(n[KG_PAGE], 4);
    assert_int_equal(n[KG_STATE], 1);
    kit_close(&kit);
}

static void the_state_lock_ends_before_the_page_lock(void **state) /* S13 */
{
    struct kg_index_path p, q = {0};
    struct kg_index_victim v;
    uint32_t n[KG_N_KINDS];

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 4);
    kit_state(&kit, &p, a, 2 * PAGE);
    kg_index_close(kit.ix, &p);
    struct kg_index_match m = kit_match(&kit, 0, a, 4 * PAGE);
    assert_int_equal(kg_index_open(kit.ix, &m, 0, 1, 1, &q), KG_OK);
    kg_index_evictable(kit.ix, n);
    assert_int_equal(n[KG_STATE], 0);
    assert_int_equal(n[KG_PAGE], 2);
    assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_EAGAIN); /* the copy is under way */
    kg_index_release(kit.ix, &q);
    kg_index_release(kit.ix, &q); /* once is enough */
    kit_check(&kit);
    assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK); /* pages stay, the state may go */
    kg_index_evictable(kit.ix, n);
    assert_int_equal(n[KG_PAGE], 2);
    kg_index_close(kit.ix, &q);
    kit_close(&kit);
}

static void with_every_state_locked_a_donation_is_skipped(void **state) /* S16 */
{
    struct kg_index_path p[4];
    struct kg_index_match m;
    struct kg_index_stats s;

    (void)state;
    kit_open(&kit, PAGE, 64, 4, KG_CKPT_OFF, 0);
    for (uint32_t i = 0; i < 4; i++) {
        kit_tokens(a, 4096, i + 1);
        kit_insert(&kit, &p[i], 0, a, 2);
        kit_state(&kit, &p[i], a, 2 * PAGE);
        kg_index_close(kit.ix, &p[i]);
        m = kit_match(&kit, 0, a, 3 * PAGE);
        assert_int_equal(kg_index_open(kit.ix, &m, 0, 1, 1, &p[i]), KG_OK);
    }
    assert_int_equal(kit_take(&kit, KG_STATE), KG_NONE); /* no unit to be had: skipped */
    assert_int_equal(kg_index_donate(kit.ix, &p[3], a, 2 * PAGE, 0, 0), KG_EAGAIN); /* has one */
    kg_index_stats(kit.ix, &s);
    assert_int_equal(s.skipped, 1);
    for (uint32_t i = 0; i < 4; i++) {
        kg_index_close(kit.ix, &p[i]);
    }
    kit_close(&kit);
}

static void an_equal_page_nobody_uses_is_replaced(void **state)
{
    struct kg_index_path p, q = {0};
    uint32_t pages[3], out[3], n[KG_N_KINDS];

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 3);
    kg_index_pages(kit.ix, &p, pages);
    kg_index_close(kit.ix, &p);
    struct kg_index_match m = kit_match(&kit, 0, a, 3 * PAGE + 1);
    assert_int_equal(kg_index_open(kit.ix, &m, 0, 1, 1, &q), KG_OK); /* no state: from the root */
    uint32_t mine[3] = {kit_take(&kit, KG_PAGE), kit_take(&kit, KG_PAGE), kit_take(&kit, KG_PAGE)};
    assert_int_equal(kg_index_append(kit.ix, &q, a, mine, 3, out, NULL), 3);
    assert_memory_equal(out, pages, sizeof(pages)); /* the old ones come back */
    kg_index_cached(kit.ix, n);
    assert_int_equal(n[KG_PAGE], 3);
    kg_index_evictable(kit.ix, n);
    assert_int_equal(n[KG_PAGE], 0);
    kg_index_pages(kit.ix, &q, out);
    assert_memory_equal(out, mine, sizeof(mine));
    for (uint32_t i = 0; i < 3; i++) {
        kit_give(&kit, KG_PAGE, pages[i]);
    }
    kg_index_close(kit.ix, &q);
    kit_close(&kit);
}

static void an_equal_page_in_use_stays_and_the_request_goes_on_with_it(void **state)
{
    struct kg_index_path p, q = {0};
    uint32_t mine[4], brought[4], theirs[2], out[4], shared;

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 2);
    struct kg_index_match m = kit_match(&kit, 0, a, 3 * PAGE);
    assert_int_equal(kg_index_open(kit.ix, &m, 0, 1, 1, &q), KG_OK);
    for (uint32_t i = 0; i < 4; i++) {
        mine[i] = brought[i] = kit_take(&kit, KG_PAGE);
    }
    kg_index_pages(kit.ix, &p, theirs);
    assert_int_equal(kg_index_append(kit.ix, &q, a, mine, 4, out, &shared), 4);
    assert_int_equal(shared, 2);
    for (uint32_t i = 0; i < 4; i++) {
        /* two copies are one again; what is new behind them is taken */
        assert_int_equal(mine[i], i < 2 ? theirs[i] : brought[i]);
        assert_int_equal(out[i], i < 2 ? brought[i] : KG_NONE);
    }
    kit_give(&kit, KG_PAGE, out[0]);
    kit_give(&kit, KG_PAGE, out[1]);
    kit_check(&kit);
    /* its checkpoints have a place while the other still runs, before and behind the parting */
    kit_state(&kit, &q, a, 2 * PAGE);
    kit_state(&kit, &q, a, 4 * PAGE);
    kg_index_close(kit.ix, &p);
    assert_int_equal(kit_match(&kit, 0, a, 5 * PAGE).state_tokens, 4 * PAGE);
    kg_index_close(kit.ix, &q);
    kit_close(&kit);
}

static void pages_behind_the_last_state_go_first(void **state)
{
    struct kg_index_path p;
    struct kg_index_victim v;

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 6);
    kit_state(&kit, &p, a, 2 * PAGE);
    kit_state(&kit, &p, a, 4 * PAGE);
    kg_index_close(kit.ix, &p);
    assert_int_equal(kit_evict(&kit, 1, 1, &v), KG_OK);
    assert_int_equal(v.n_pages, 1);
    assert_int_equal(kit_match(&kit, 0, a, 7 * PAGE).page_tokens, 5 * PAGE);
    assert_int_equal(kit_evict(&kit, 9, 1, &v), KG_OK);
    assert_int_equal(v.n_pages, 1);
    assert_int_equal(kit_match(&kit, 0, a, 7 * PAGE).page_tokens, 4 * PAGE);
    /* now a state, and with it the pages only it needs */
    assert_int_equal(kit_evict(&kit, 9, 1, &v), KG_OK);
    assert_int_equal(v.n_pages, 0);
    assert_int_not_equal(v.state, KG_NONE);
    struct kg_index_match m = kit_match(&kit, 0, a, 7 * PAGE);
    assert_true(m.state_tokens == 2 * PAGE || m.state_tokens == 4 * PAGE);
    kit_close(&kit);
}

static void a_state_and_the_pages_it_needs_go_together(void **state)
{
    struct kg_index_path p;
    struct kg_index_victim v;

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 5);
    kit_state(&kit, &p, a, 5 * PAGE);
    kg_index_close(kit.ix, &p);
    assert_int_equal(kit_evict(&kit, 5, KG_NONE, &v), KG_OK); /* only pages help: its state too */
    assert_int_not_equal(v.state, KG_NONE);
    assert_int_equal(kit_evict(&kit, 5, KG_NONE, &v), KG_OK);
    assert_int_equal(v.n_pages, 5);
    assert_int_equal(kit_evict(&kit, 5, KG_NONE, &v), KG_EAGAIN);
    kit_close(&kit);
}

static void a_short_kind_evicts_its_own_under_a_split(void **state) /* S21 */
{
    struct kg_index_path p;
    struct kg_index_victim v;

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 5);
    kit_state(&kit, &p, a, 2 * PAGE);
    kg_index_close(kit.ix, &p);
    assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK); /* not the dead pages */
    assert_int_equal(v.n_pages, 0);
    assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_EAGAIN);
    assert_int_equal(kit_match(&kit, 0, a, 6 * PAGE).page_tokens, 5 * PAGE);
    kit_close(&kit);
}

static uint64_t cost_of_a_only(void *ctx, uint32_t from, uint32_t to)
{
    (void)ctx;
    return (to - from) * (to == 4 * PAGE ? 100ull : 1ull);
}

static void the_state_that_saves_least_per_byte_goes_first(void **state)
{
    struct kg_index_path p;
    struct kg_index_victim v;
    struct kg_error err;

    (void)state;
    open_small();
    kg_index_destroy(kit.ix);
    kit.conf.cost_ns = cost_of_a_only;
    assert_int_equal(kg_index_create(&kit.conf, &kit.ix, &err), KG_OK);
    kit_insert(&kit, &p, 0, a, 4);
    kit_state(&kit, &p, a, 4 * PAGE);
    kg_index_close(kit.ix, &p);
    kit_insert(&kit, &p, 0, b, 5);
    kit_state(&kit, &p, b, 5 * PAGE);
    kg_index_close(kit.ix, &p);
    assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK);
    assert_int_equal(kit_match(&kit, 0, a, 9 * PAGE).state_tokens, 4 * PAGE);
    assert_int_equal(kit_match(&kit, 0, b, 9 * PAGE).state_tokens, 0);
    kit_close(&kit);
}

/* Puts a state of kind 1 behind two pages of a, and takes it out again. */
static void come_and_go(void)
{
    struct kg_index_path p;
    struct kg_index_victim v;

    kit_insert(&kit, &p, 0, a, 2);
    assert_int_equal(kg_index_donate(kit.ix, &p, a, 2 * PAGE, kit_take(&kit, KG_STATE), 1), KG_OK);
    kg_index_close(kit.ix, &p);
    assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK);
    assert_int_not_equal(v.state, KG_NONE);
}

/* A new state of kind 1 beside one of a kind of which nothing is known. */
static double worth(void)
{
    double floor = kg_index_worth(kit.ix, 0, 0, 0);

    return (kg_index_worth(kit.ix, 0, PAGE, 1) - floor) /
           (kg_index_worth(kit.ix, 0, PAGE, 2) - floor);
}

static void a_state_somebody_came_for_too_late_makes_its_kind_worth_more(void **state)
{
    struct kg_index_path p;

    (void)state;
    open_small();
    assert_true(worth() == 1);
    come_and_go();
    double unused = worth();
    assert_true(unused < 1);
    kit_insert(&kit, &p, 0, a, 4); /* would have begun at the state */
    assert_true(worth() > unused);
    kg_index_close(kit.ix, &p);
    kit_insert(&kit, &p, 0, a, 4); /* it counts once */
    assert_true(worth() == 1);
    kg_index_close(kit.ix, &p);
    come_and_go();
    for (uint32_t i = 0; i < 10; i++) { /* all memory is filled with other things since */
        kit_tokens(b, 4096, 10 + i);
        kit_insert(&kit, &p, 0, b, 8);
        kg_index_close(kit.ix, &p);
    }
    unused = worth();
    kit_insert(&kit, &p, 0, a, 4);
    assert_true(worth() == unused);
    kg_index_close(kit.ix, &p);
    kit_close(&kit);
}

static void each_state_that_went_from_the_end_of_a_path_counts_when_somebody_comes(void **state)
{
    struct kg_index_path p;
    struct kg_index_victim v;
    uint32_t n = 0;

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 3);
    assert_int_equal(kg_index_donate(kit.ix, &p, a, 2 * PAGE, kit_take(&kit, KG_STATE), 1), KG_OK);
    assert_int_equal(kg_index_donate(kit.ix, &p, a, 3 * PAGE, kit_take(&kit, KG_STATE), 3), KG_OK);
    kg_index_close(kit.ix, &p);
    for (uint32_t i = 0; i < 4 && n < 2; i++) { /* pages go from the end */
        assert_int_equal(kit_evict(&kit, 1, KG_NONE, &v), KG_OK);
        n += v.state != KG_NONE;
    }
    assert_int_equal(n, 2);
    double unused = worth();
    assert_true(unused < 1);
    kit_insert(&kit, &p, 0, a, 4); /* the deeper one does not hide the other */
    assert_true(worth() > unused);
    kg_index_close(kit.ix, &p);
    kit_close(&kit);
}

static void who_used_a_state_used_the_one_before_it(void **state)
{
    struct kg_index_path p, held = {.open = 0};
    struct kg_index_victim v;
    static uint32_t c[4096];

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 6);
    kit_state(&kit, &p, a, 4 * PAGE);
    kit_state(&kit, &p, a, 6 * PAGE); /* two pages: each state to come saves one */
    kg_index_close(kit.ix, &p);
    kit_insert(&kit, &p, 0, b, 5); /* saves more than what a has at 4 */
    kit_state(&kit, &p, b, 5 * PAGE);
    kg_index_close(kit.ix, &p);
    struct kg_index_match m = kit_match(&kit, 0, b, 6 * PAGE);
    assert_int_equal(kg_index_open(kit.ix, &m, 0, 1, 0, &held), KG_OK);
    for (uint32_t i = 0; i < 4; i++) {
        m = kit_match(&kit, 0, a, 7 * PAGE);
        assert_int_equal(m.state_tokens, 6 * PAGE);
        assert_int_equal(kg_index_open(kit.ix, &m, 0, 1, 1, &p), KG_OK);
        kg_index_close(kit.ix, &p);
        kit_tokens(c, 4096, 10 + i); /* the scale rises */
        kit_insert(&kit, &p, 0, c, 1);
        uint32_t unit = kit_take(&kit, KG_STATE);
        assert_int_equal(kg_index_donate(kit.ix, &p, c, PAGE, unit, i), KG_OK);
        kg_index_close(kit.ix, &p);
        assert_int_equal(kit_evict(&kit, 1, KG_NONE, &v), KG_OK);
        assert_int_equal(v.state, unit);
        assert_int_equal(kit_evict(&kit, 1, KG_NONE, &v), KG_OK); /* its page */
    }
    assert_int_equal(kit_evict(&kit, 1, KG_NONE, &v), KG_OK);
    assert_int_equal(kit_match(&kit, 0, a, 9 * PAGE).state_tokens, 4 * PAGE);
    kg_index_close(kit.ix, &held);
    assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK); /* b: used long ago */
    assert_int_equal(kit_match(&kit, 0, a, 9 * PAGE).state_tokens, 4 * PAGE);
    assert_int_equal(kit_match(&kit, 0, b, 9 * PAGE).state_tokens, 0);
    kit_close(&kit);
}

static void states_passed_are_judged_apart_from_ends(void **state)
{
    struct kg_index_path p;
    struct kg_index_victim v;

    (void)state;
    open_small();
    /* ends of kind 0 go unused, again and again */
    for (uint32_t i = 0; i < 40; i++) {
        kit_tokens(b, 4096, 10 + i);
        kit_insert(&kit, &p, 0, b, 4);
        kit_state(&kit, &p, b, 4 * PAGE);
        kg_index_close(kit.ix, &p);
        assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK);
    }
    /* what has one behind it is worth what it was: the end goes first */
    kit_insert(&kit, &p, 0, a, 8);
    kit_state(&kit, &p, a, 4 * PAGE);
    kit_state(&kit, &p, a, 8 * PAGE);
    kg_index_close(kit.ix, &p);
    assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK);
    assert_int_equal(kit_match(&kit, 0, a, 9 * PAGE).state_tokens, 4 * PAGE);
    kit_close(&kit);
}

/* States of the first n pages of many prompts, each hit so often and then evicted. */
static void teach(uint32_t n_pages, uint32_t hits)
{
    struct kg_index_path p;
    struct kg_index_victim v;

    for (uint32_t i = 0; i < 40; i++) {
        kit_tokens(b, 4096, 1000 + i);
        kit_insert(&kit, &p, 0, b, n_pages);
        kit_state(&kit, &p, b, n_pages * PAGE);
        kg_index_close(kit.ix, &p);
        for (uint32_t k = 0; k < hits; k++) {
            struct kg_index_match m = kit_match(&kit, 0, b, (n_pages + 1) * PAGE);
            assert_int_equal(kg_index_open(kit.ix, &m, 0, 1, 1, &p), KG_OK);
            kg_index_close(kit.ix, &p);
        }
        assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK);
    }
    kit_tokens(b, 4096, 2);
}

/* a has a state after so many pages, hit so often; b one which nobody came for. */
static void a_hit_and_b_not(uint32_t a_pages, uint32_t hits, uint32_t b_pages)
{
    struct kg_index_path p;

    kit_insert(&kit, &p, 0, a, a_pages);
    kit_state(&kit, &p, a, a_pages * PAGE);
    kg_index_close(kit.ix, &p);
    for (uint32_t i = 0; i < hits; i++) {
        struct kg_index_match m = kit_match(&kit, 0, a, (a_pages + 1) * PAGE);
        assert_int_equal(kg_index_open(kit.ix, &m, 0, 1, 1, &p), KG_OK);
        kg_index_close(kit.ix, &p);
    }
    kit_insert(&kit, &p, 0, b, b_pages);
    kit_state(&kit, &p, b, b_pages * PAGE);
    kg_index_close(kit.ix, &p);
}

static void a_state_hit_often_outlives_one_that_is_not(void **state)
{
    struct kg_index_path p;
    struct kg_index_victim v;

    (void)state;
    open_small();
    teach(2, 0);
    a_hit_and_b_not(2, 5, 3); /* b saves more per hit */
    assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK);
    assert_int_equal(kit_match(&kit, 0, a, 9 * PAGE).state_tokens, 2 * PAGE);
    /* but not for ever: the scale rises with every victim */
    for (uint32_t i = 0; i < 20000 && kit_match(&kit, 0, a, 9 * PAGE).state_tokens > 0; i++) {
        kit_tokens(b, 4096, 100 + i);
        kit_insert(&kit, &p, 0, b, 3);
        kit_state(&kit, &p, b, 3 * PAGE);
        kg_index_close(kit.ix, &p);
    }
    assert_int_equal(kit_match(&kit, 0, a, 9 * PAGE).state_tokens, 0);
    kit_close(&kit);
}

static void states_hit_are_judged_by_what_became_of_others_hit_as_often(void **state)
{
    struct kg_index_victim v;

    (void)state;
    for (uint32_t hits = 1; hits <= 3; hits++) { /* nobody comes back so often and once more */
        open_small();
        teach(2, hits);
        a_hit_and_b_not(3, hits, 2);
        assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK);
        assert_int_equal(kit_match(&kit, 0, a, 9 * PAGE).state_tokens, 0);
        assert_int_equal(kit_match(&kit, 0, b, 9 * PAGE).state_tokens, 2 * PAGE);
        kit_close(&kit);
    }
    open_small(); /* of those who came twice nothing is known */
    teach(2, 1);
    a_hit_and_b_not(3, 2, 2);
    assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK);
    assert_int_equal(kit_match(&kit, 0, a, 9 * PAGE).state_tokens, 3 * PAGE);
    assert_int_equal(kit_match(&kit, 0, b, 9 * PAGE).state_tokens, 0);
    kit_close(&kit);
}

static void ghosts_tell_where_requests_came_back(void **state)
{
    struct kg_index_path p;
    struct kg_index_victim v;
    struct kg_index_stats s;

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 6);
    kg_index_close(kit.ix, &p);
    assert_int_equal(kit_evict(&kit, 6, 1, &v), KG_OK);
    struct kg_index_match m = kit_match(&kit, 0, a, 6 * PAGE + 3);
    assert_int_equal(m.page_tokens, 0);
    assert_int_equal(m.seen_tokens, 6 * PAGE);
    assert_int_equal(m.seen_count, 1);
    kit_insert(&kit, &p, 0, a, 6); /* pages come back to the same places */
    kg_index_close(kit.ix, &p);
    assert_int_equal(kit_match(&kit, 0, a, 7 * PAGE).page_tokens, 6 * PAGE);
    assert_int_equal(kit_match(&kit, 0, a, 7 * PAGE).seen_count, 2);
    kg_index_stats(kit.ix, &s);
    assert_int_equal(s.n_ghost_pages, 0);
    assert_int_equal(s.ghost_bytes, 0);
    kit_close(&kit);
}

static void ghosts_keep_to_their_bytes_and_the_oldest_go(void **state)
{
    struct kg_index_path p;
    struct kg_index_victim v;
    struct kg_index_stats s;
    struct kg_error err;

    (void)state;
    open_small();
    kg_index_destroy(kit.ix);
    kit.conf.ghost_bytes = 2000;
    assert_int_equal(kg_index_create(&kit.conf, &kit.ix, &err), KG_OK);
    for (uint32_t i = 0; i < 50; i++) {
        kit_tokens(a, 4096, i);
        kit_insert(&kit, &p, 0, a, 2);
        kg_index_close(kit.ix, &p);
        assert_int_equal(kit_evict(&kit, 2, 1, &v), KG_OK);
        kg_index_stats(kit.ix, &s);
        assert_true(s.ghost_bytes <= 2000);
        kit_check(&kit);
    }
    assert_true(s.n_ghost_pages >= 4 && s.ghosts_dropped > 80);
    assert_int_equal(kit_match(&kit, 0, a, 3 * PAGE).seen_tokens, 2 * PAGE); /* the youngest */
    kit_tokens(a, 4096, 0);
    assert_int_equal(kit_match(&kit, 0, a, 3 * PAGE).seen_tokens, 0);
    kit_close(&kit);
}

static void without_ghost_bytes_nothing_is_remembered(void **state)
{
    struct kg_index_path p;
    struct kg_index_victim v;
    struct kg_index_stats s;
    struct kg_error err;

    (void)state;
    open_small();
    kg_index_destroy(kit.ix);
    kit.conf.ghost_bytes = 0;
    assert_int_equal(kg_index_create(&kit.conf, &kit.ix, &err), KG_OK);
    kit_insert(&kit, &p, 0, a, 6);
    kg_index_close(kit.ix, &p);
    assert_int_equal(kit_evict(&kit, 2, 1, &v), KG_OK);
    assert_int_equal(kit_match(&kit, 0, a, 7 * PAGE).seen_tokens, 4 * PAGE);
    kg_index_stats(kit.ix, &s);
    assert_int_equal(s.n_nodes, 1);
    kit_close(&kit);
}

static void what_has_no_place_is_skipped_and_counted(void **state)
{
    struct kg_index_conf conf = {
        .page_tokens = PAGE, .max_units = {4, 1}, .unit_bytes = {1, 1}, .seed = 3};
    struct kg_index_path p = {0};
    struct kg_index_match m;
    struct kg_index_stats s;
    struct kg_error err;
    struct kg_index *ix;
    uint32_t pages[6] = {0, 1, 2, 3, 0, 1}, out[6];

    (void)state;
    kit_tokens(a, 4096, 1);
    assert_int_equal(kg_index_create(&conf, &ix, &err), KG_OK);
    kg_index_match(ix, 0, a, 100, &m);
    assert_int_equal(kg_index_open(ix, &m, 0, 1, 1, &p), KG_OK);
    assert_int_equal(kg_index_append(ix, &p, a, pages, 6, out, NULL), 0);
    assert_int_equal(pages[5], 1); /* all stay the caller's */
    assert_int_equal(kg_index_append(ix, &p, a, pages, 4, out, NULL), 4);
    assert_int_equal(kg_index_append(ix, &p, a + 4 * PAGE, pages, 1, out, NULL), 0);
    kg_index_stats(ix, &s);
    assert_int_equal(s.skipped, 2);
    kg_index_close(ix, &p);
    kg_index_destroy(ix);
}

static void a_match_is_fresh_until_its_path_changes(void **state) /* S4 */
{
    struct kg_index_path p, q;
    struct kg_index_victim v;

    (void)state;
    open_small();
    kit_insert(&kit, &p, 0, a, 4);
    kit_state(&kit, &p, a, 2 * PAGE);
    struct kg_index_match m = kit_match(&kit, 0, a, 9 * PAGE);
    kit_insert(&kit, &q, 0, b, 4); /* somewhere else */
    kit_state(&kit, &q, b, PAGE);
    assert_true(kg_index_is_fresh(kit.ix, &m));
    kit_state(&kit, &p, a, 4 * PAGE);
    assert_false(kg_index_is_fresh(kit.ix, &m));
    m = kit_match(&kit, 0, a, 9 * PAGE);
    kg_index_close(kit.ix, &p);
    kg_index_close(kit.ix, &q);
    assert_true(kg_index_is_fresh(kit.ix, &m)); /* locks are no change */
    kit_insert(&kit, &p, 0, a, 6);
    kg_index_close(kit.ix, &p);
    assert_false(kg_index_is_fresh(kit.ix, &m)); /* more pages behind it */
    m = kit_match(&kit, 0, a, 9 * PAGE);
    assert_int_equal(kit_evict(&kit, 1, KG_NONE, &v), KG_OK);
    while (kit_evict(&kit, 64, 1, &v) == KG_OK) {
    }
    assert_false(kg_index_is_fresh(kit.ix, &m));
    assert_int_equal(kg_index_open(kit.ix, &m, 0, 1, 1, &p), KG_EINVAL);
    kit_close(&kit);
}

static void victims_are_the_same_in_every_run(void **state)
{
    uint32_t order[2][16];

    (void)state;
    for (uint32_t run = 0; run < 2; run++) {
        struct kg_index_path p;
        struct kg_index_victim v;
        struct kg_error err;
        open_small();
        kg_index_destroy(kit.ix);
        kit.conf.seed = run; /* of the hash: must not matter */
        assert_int_equal(kg_index_create(&kit.conf, &kit.ix, &err), KG_OK);
        for (uint32_t i = 0; i < 12; i++) {
            kit_tokens(a, 4096, i % 5);
            kit_tokens(a + (1 + i % 3) * PAGE, 1000, 50 + i);
            kit_insert(&kit, &p, 0, a, 1 + i % 3 + 1);
            kit_state(&kit, &p, a, (1 + i % 3 + 1) * PAGE);
            kg_index_close(kit.ix, &p);
        }
        for (uint32_t i = 0; i < 12; i++) {
            assert_int_equal(kit_evict(&kit, KG_NONE, 1, &v), KG_OK);
            order[run][i] = v.state;
        }
        kit_close(&kit);
    }
    assert_memory_equal(order[0], order[1], 12 * sizeof(uint32_t));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hit_needs_pages_and_state_at_one_position),
        cmocka_unit_test(the_last_token_is_always_recomputed),
        cmocka_unit_test(tokens_are_compared_not_hashes),
        cmocka_unit_test(salts_share_nothing),
        cmocka_unit_test(a_state_off_the_grid_is_refused),
        cmocka_unit_test(lock_tombstone_revive_unlock_leaves_no_lock),
        cmocka_unit_test(the_state_lock_ends_before_the_page_lock),
        cmocka_unit_test(with_every_state_locked_a_donation_is_skipped),
        cmocka_unit_test(an_equal_page_nobody_uses_is_replaced),
        cmocka_unit_test(an_equal_page_in_use_stays_and_the_request_goes_on_with_it),
        cmocka_unit_test(pages_behind_the_last_state_go_first),
        cmocka_unit_test(a_state_and_the_pages_it_needs_go_together),
        cmocka_unit_test(a_short_kind_evicts_its_own_under_a_split),
        cmocka_unit_test(the_state_that_saves_least_per_byte_goes_first),
        cmocka_unit_test(a_state_somebody_came_for_too_late_makes_its_kind_worth_more),
        cmocka_unit_test(each_state_that_went_from_the_end_of_a_path_counts_when_somebody_comes),
        cmocka_unit_test(who_used_a_state_used_the_one_before_it),
        cmocka_unit_test(states_passed_are_judged_apart_from_ends),
        cmocka_unit_test(a_state_hit_often_outlives_one_that_is_not),
        cmocka_unit_test(states_hit_are_judged_by_what_became_of_others_hit_as_often),
        cmocka_unit_test(ghosts_tell_where_requests_came_back),
        cmocka_unit_test(ghosts_keep_to_their_bytes_and_the_oldest_go),
        cmocka_unit_test(without_ghost_bytes_nothing_is_remembered),
        cmocka_unit_test(what_has_no_place_is_skipped_and_counted),
        cmocka_unit_test(a_match_is_fresh_until_its_path_changes),
        cmocka_unit_test(victims_are_the_same_in_every_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
