/* What was evicted comes back from a tier, exactly, or the request computes it: by name. Contents
 * of pages and states are checked by exec-null itself. */
#include "rig.h"

#include "engine/index_policy.h"

#include <string.h>

#define PAGE 8u

static struct kg_engine_stats stats_of(const struct rig *r)
{
    struct kg_engine_stats s;

    kg_engine_stats(r->engine, &s);
    return s;
}

/* Room for one request of 60 tokens and little more; a state is kept at every page. */
static struct rig_conf small(const char *tier, const char *opts)
{
    return (struct rig_conf){.max_seqs = 2,
                             .n_states = 4,
                             .n_pages = 9,
                             .checkpoint = KG_CKPT_INTERVAL + 1,
                             .interval = PAGE,
                             .tier = tier,
                             .tier_opts = opts};
}

static void open_small(struct rig *r, const struct rig_conf *c)
{
    rig_open(r, c);
    r->n_shared = 44;
    r->n_groups = 3;
}

/* One request from begin to end; tokens it did not compute. Its text is that of id % 3. */
static uint32_t ask(struct rig *r, uint64_t id, uint32_t n_prompt)
{
    assert_int_equal(rig_submit(r, id, n_prompt, 4, NULL), KG_OK);
    rig_run(r, 3000);
    assert_int_equal(r->outs[id].end.finish, KG_FINISH_LENGTH);
    rig_assert_true(r, id);
    return r->outs[id].end.n_cached;
}

/* Texts 1, 2 and 0 are seen; memory has room for the last of them at most. */
static void see_all(struct rig *r)
{
    for (uint64_t id = 1; id <= 3; id++) {
        assert_int_equal(ask(r, id, 60), 0);
    }
    struct kg_engine_stats s = stats_of(r);
    assert_true(s.evicted[KG_STATE] > 0);
}

static void what_was_evicted_comes_back(void **state) /* V21, V23 */
{
    static const char *const pools[] = {"unified", "split", "shuffle"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct rig r;
        struct rig_conf c = small("mem", "bytes=1000000");
        c.pool = pools[i];
        open_small(&r, &c);
        see_all(&r);
        struct kg_engine_stats before = stats_of(&r);
        assert_int_equal(before.tier_loaded[KG_STATE], 0);
        assert_int_equal(ask(&r, 4, 60), 40); /* 44 shared tokens, rounded down to pages */
        struct kg_engine_stats s = stats_of(&r);
        assert_true(s.tier_loaded[KG_STATE] == 1 && s.tier_tokens > 0);
        assert_true(s.tier_loaded[KG_PAGE] * PAGE <= 40);
        assert_int_equal(s.cached_tokens, 40);
        assert_int_equal(s.queried_tokens, 4 * 60);
        assert_int_equal(s.prompt_tokens, s.queried_tokens - s.cached_tokens);
        assert_int_equal(s.tier_failed + s.tier_fallbacks, 0);
        assert_int_equal(s.evicted[KG_STATE], s.tier_stored[KG_STATE] + s.tier_had[KG_STATE]);
        rig_assert_empty(&r);
        rig_close(&r);
    }
}

/* Rows a plan gives to one that is still to be loaded are counted from where it will stand; the
 * engine does not go to sleep over one that was admitted and then not planned. */
static void a_plan_must_not_compute_what_is_loaded(void **state)
{
    struct rig r;
    struct rig_conf c = small("mem", "bytes=1000000");

    (void)state;
    c.sched = "lifo";
    c.sched_opts = "bad=11";
    c.prefill_chunk = 64;
    open_small(&r, &c);
    see_all(&r);
    uint64_t dropped = stats_of(&r).plans_dropped;
    assert_int_equal(rig_submit(&r, 4, 60, 4, NULL), KG_OK);
    while (r.n_open > 0) {
        assert_int_equal(rig_step(&r), 1);
    }
    assert_true(stats_of(&r).plans_dropped > dropped);
    assert_int_equal(stats_of(&r).tier_loaded[KG_STATE], 1);
    assert_int_equal(r.outs[4].end.n_cached, 40);
    rig_assert_true(&r, 4);
    rig_assert_empty(&r);
    rig_close(&r);
}

static void the_hit_is_as_long_as_what_was_stored(void **state) /* V22, V13 */
{
    (void)state;
    for (uint32_t n = 1; n <= 44; n++) {
        struct rig r;
        struct rig_conf c = small("mem", "bytes=1000000");
        open_small(&r, &c);
        see_all(&r);
        assert_int_equal(ask(&r, 4, n), (n - 1) / PAGE * PAGE);
        rig_close(&r);
    }
}

static void what_came_back_is_there_for_the_next_one(void **state)
{
    struct rig r;
    struct rig_conf c = small("mem", "bytes=1000000");

    (void)state;
    c.n_states = 9;
    c.n_pages = 20;
    open_small(&r, &c);
    r.n_groups = 8;
    for (uint64_t id = 1; id <= 8; id++) {
        (void)ask(&r, id, 60);
    }
    assert_int_equal(ask(&r, 9, 42), 40);
    uint64_t loaded = stats_of(&r).tier_loaded[KG_STATE];
    assert_int_equal(loaded, 1);
    assert_int_equal(ask(&r, 17, 42), 40);
    assert_int_equal(stats_of(&r).tier_loaded[KG_STATE], loaded); /* a copy was planted */
    rig_assert_empty(&r);
    rig_close(&r);
}

static void one_share(uint64_t step_bytes)
{
    struct rig r;
    struct rig_conf c = small("mem", "bytes=1000000");
    uint32_t n_steps = 0;

    c.tier_step_bytes = step_bytes;
    c.n_states = 6;
    c.n_pages = 20;
    open_small(&r, &c);
    for (uint64_t id = 1; id <= 9; id++) {
        (void)ask(&r, id, 60);
    }
    assert_int_equal(rig_submit(&r, 10, 60, 4, NULL), KG_OK);
    assert_int_equal(rig_submit(&r, 11, 20, 30, NULL), KG_OK);
    while (r.n_open > 0) {
        struct kg_engine_stats a = stats_of(&r), b;
        assert_true(rig_step(&r) >= 0);
        b = stats_of(&r);
        uint64_t in = b.tier_loaded[0] + b.tier_loaded[1] - a.tier_loaded[0] - a.tier_loaded[1];
        uint64_t out = b.tier_stored[0] + b.tier_stored[1] - a.tier_stored[0] - a.tier_stored[1];
        assert_true(in <= 1 && out <= 1);
        n_steps += in;
        assert_true(in == 0 || b.steps > a.steps || r.outs[11].done || !r.outs[11].n_output);
    }
    rig_assert_true(&r, 10);
    rig_assert_true(&r, 11);
    assert_true(n_steps > 0);
    rig_close(&r);
}

static void a_step_copies_one_share_and_the_others_run_meanwhile(void **state)
{
    (void)state;
    one_share(1); /* one unit each way */
    one_share(RIG_NO_BYTES);
}

/* S15, V5, V8, V9: one that goes away while its units arrive leaves nothing half done. */
static void a_load_that_is_broken_off_publishes_nothing(void **state)
{
    uint32_t n_midway = 0;

    (void)state;
    for (uint32_t how = 0; how < 3; how++) {
        for (uint32_t after = 1; after < 6; after++) {
            struct rig r;
            struct kg_engine_test test = {.seed = 1};
            struct rig_conf c = small("mem", "bytes=1000000");
            c.tier_step_bytes = how == 2 ? 0 : 520; /* a state and two pages */
            c.test = &test;
            open_small(&r, &c);
            see_all(&r);
            uint64_t before = stats_of(&r).tier_loaded[KG_STATE];
            assert_int_equal(rig_submit(&r, 4, 60, 4, NULL), KG_OK);
            for (uint32_t i = 0; i < after; i++) {
                assert_true(rig_step(&r) >= 0);
            }
            n_midway +=
                stats_of(&r).tier_loaded[KG_STATE] > before && stats_of(&r).tier_tokens == 0;
            if (how == 0) {
                kg_engine_cancel(r.engine, 4);
            } else {
                kg_engine_finish(r.engine, 4, 0);
            }
            rig_run(&r, 1000);
            rig_assert_empty(&r);
            assert_true(stats_of(&r).tier_loaded[KG_STATE] >= before);
            (void)ask(&r, 7, 60); /* right, whatever is left */
            for (uint64_t id = 8; id < 14; id++) {
                (void)ask(&r, id, 60);
            }
            /* nothing stayed held, nothing is gone */
            assert_int_equal(stats_of(&r).tier_failed, 0);
            rig_close(&r);
        }
    }
    print_message("%u broken off between two units\n", n_midway);
    assert_true(n_midway >= 2);
}

static void whatever_does_not_arrive_is_a_miss(void **state) /* V4, V5, S15 */
{
    static const char *const faults[] = {"lose=1", "spoil=1", "cut=1", "fail=1", "forget=1"};

    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct rig r;
        struct rig_conf c = small("fake", faults[i]);
        open_small(&r, &c);
        see_all(&r);
        uint32_t n_cached = ask(&r, 4, 60);
        struct kg_engine_stats s = stats_of(&r);
        assert_int_equal(n_cached, 0);
        assert_true(s.tier_failed > 0);
        assert_int_equal(s.tier_loaded[KG_STATE] + s.tier_loaded[KG_PAGE], 0);
        assert_int_equal(s.tier_tokens, 0);
        assert_int_equal(s.tier_fallbacks, strcmp(faults[i], "forget=1") != 0);
        assert_int_equal(s.preemptions, 0);
        assert_int_equal(s.queried_tokens, 4 * 60); /* counted once */
        rig_assert_empty(&r);
        rig_close(&r);
    }
}

/* A state that went and a tier without it: the common boundary is what is left, V4. */
static void a_tier_that_answers_nothing_changes_nothing(void **state)
{
    static const char *const tiers[][2] = {
        {NULL, NULL}, {"fake", "refuse=1"}, {"mem", "bytes=0"}, {"mem", "bytes=200"}};
    uint32_t cached[4][12];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        struct rig r;
        struct rig_conf c = small(tiers[i][0], tiers[i][1]);
        c.n_states = 5;
        open_small(&r, &c);
        for (uint32_t k = 0; k < 12; k++) {
            cached[i][k] = ask(&r, 1 + k, 20 + 5 * (k % 7));
        }
        struct kg_engine_stats s = stats_of(&r);
        assert_int_equal(s.tier_stored[KG_STATE] + s.tier_loaded[KG_STATE] + s.tier_tokens, 0);
        assert_int_equal(s.tier_skipped[KG_STATE], tiers[i][0] != NULL ? s.evicted[KG_STATE] : 0);
        rig_close(&r);
    }
    for (size_t i = 1; i < 4; i++) {
        assert_memory_equal(cached[i], cached[0], sizeof(cached[0]));
    }
}

static uint64_t bad_id;

static int poison(void *ctx, uint64_t id, uint32_t past)
{
    (void)ctx;
    return id == bad_id && past >= 48;
}

static void a_nan_takes_its_tokens_out_of_the_tier_too(void **state) /* V46 */
{
    struct rig r;
    struct kg_engine_test test = {.poison = poison};
    struct rig_conf c = small("mem", "bytes=1000000");

    (void)state;
    c.test = &test;
    open_small(&r, &c);
    see_all(&r);
    bad_id = 4;
    assert_int_equal(rig_submit(&r, 4, 60, 4, NULL), KG_OK);
    rig_run(&r, 1000);
    assert_int_equal(r.outs[4].end.finish, KG_FINISH_ERROR);
    bad_id = 0;
    assert_int_equal(ask(&r, 7, 60), 0);
    assert_int_equal(ask(&r, 5, 60), 40); /* the other texts are still there */
    rig_close(&r);
}

static void salts_and_requests_without_cache_stay_apart(void **state)
{
    struct rig r;
    struct rig_conf c = small("mem", "bytes=1000000");

    (void)state;
    open_small(&r, &c);
    see_all(&r);
    r.salt = 5;
    assert_int_equal(ask(&r, 4, 60), 0);
    r.salt = 0;
    r.flags = KG_REQ_NO_CACHE;
    assert_int_equal(ask(&r, 7, 60), 0);
    r.flags = 0;
    assert_int_equal(ask(&r, 10, 60), 40);
    rig_close(&r);
}

static int no_rules(void *ctx)
{
    (void)ctx;
    return 0;
}

static int see_hit(void *ctx, const struct kg_admit_view *view, struct kg_admit_answer *answer)
{
    uint32_t *hits = ctx;

    (void)answer;
    hits[2 * view->id] = view->hit_page_tokens;
    hits[2 * view->id + 1] = view->hit_state_tokens;
    return KG_ENOENT;
}

static void the_policy_sees_what_will_be_loaded(void **state)
{
    uint32_t hits[20] = {0};
    const struct kg_engine_policy policy = {.ctx = hits, .step = no_rules, .admit = see_hit};
    struct rig r;
    struct rig_conf c = small("mem", "bytes=1000000");

    (void)state;
    c.policy = &policy;
    open_small(&r, &c);
    see_all(&r);
    assert_int_equal(ask(&r, 4, 60), 40);
    assert_int_equal(hits[2 * 3 + 1], 0);
    assert_true(hits[2 * 4] >= 40);
    assert_int_equal(hits[2 * 4 + 1], 40);
    rig_close(&r);
}

static void nothing_is_allocated_and_the_limit_is_kept(void **state)
{
    struct rig r;
    struct rig_conf c = small("mem", "bytes=6000");

    (void)state;
    open_small(&r, &c);
    uint64_t held = r.tier_part.held;
    for (uint64_t id = 1; id < 60; id++) {
        (void)ask(&r, id, 20 + id % 40);
        struct kg_engine_stats s = stats_of(&r);
        assert_true(s.tier_bytes <= s.tier_limit && s.tier_limit == 6000);
        assert_int_equal(r.tier_part.held, held);
    }
    assert_true(stats_of(&r).tier_bytes > 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_evicted_comes_back),
        cmocka_unit_test(a_plan_must_not_compute_what_is_loaded),
        cmocka_unit_test(the_hit_is_as_long_as_what_was_stored),
        cmocka_unit_test(what_came_back_is_there_for_the_next_one),
        cmocka_unit_test(a_step_copies_one_share_and_the_others_run_meanwhile),
        cmocka_unit_test(a_load_that_is_broken_off_publishes_nothing),
        cmocka_unit_test(whatever_does_not_arrive_is_a_miss),
        cmocka_unit_test(a_tier_that_answers_nothing_changes_nothing),
        cmocka_unit_test(a_nan_takes_its_tokens_out_of_the_tier_too),
        cmocka_unit_test(salts_and_requests_without_cache_stay_apart),
        cmocka_unit_test(the_policy_sees_what_will_be_loaded),
        cmocka_unit_test(nothing_is_allocated_and_the_limit_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
