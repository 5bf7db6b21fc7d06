/* Memory: who waits, who grows, who is preempted, and that somebody always advances. Rows V.. of
 * the notes on public failures are named where a test would have caught them. */
#include "rig.h"

#include <stdio.h>

#define MS 1000000ull

/* Pools on which the rules must hold alike. */
static const char *const pools[] = {"unified", "split", "shuffle"};

static void growth_preempts_the_youngest_and_never_the_oldest(void **state)
{
    (void)state;
    for (size_t p = 0; p < 3; p++) {
        struct rig r;
        struct kg_engine_stats s;
        rig_open(&r, &(struct rig_conf){.pool = pools[p],
                                        .n_pages = 20,
                                        .n_states = 6,
                                        .max_seqs = 6,
                                        .lifetime = KG_LIFETIME_PROMPT});
        for (uint32_t id = 1; id <= 6; id++) {
            assert_int_equal(rig_submit(&r, id, 16, 100, NULL), KG_OK);
        }
        rig_run(&r, 5000);
        kg_engine_stats(r.engine, &s);
        assert_true(s.preemptions > 0);
        assert_int_equal(r.outs[1].end.n_preempted, 0); /* first admitted: always the oldest */
        for (uint32_t id = 1; id <= 6; id++) {
            assert_int_equal(r.outs[id].end.finish, KG_FINISH_LENGTH);
            rig_assert_true(&r, id);
            if (id > 1) { /* they finish in the order of their admission */
                assert_true(r.outs[id].end.done_ns >= r.outs[id - 1].end.done_ns);
            }
        }
        rig_assert_empty(&r);
        rig_close(&r);
    }
}

static void v52_two_holders_of_half_the_pool_do_not_stall(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){
                     .n_pages = 16, .n_states = 2, .max_seqs = 2, .lifetime = KG_LIFETIME_PROMPT});
    assert_int_equal(rig_submit(&r, 1, 56, 60, NULL), KG_OK); /* 7..15 pages of 16 */
    assert_int_equal(rig_submit(&r, 2, 56, 60, NULL), KG_OK);
    while (!r.outs[1].done) {
        rig_step(&r);
    }
    rig_step(&r); /* 2 is readmitted, and with its whole lifetime: 15 pages of 128 bytes */
    struct kg_engine_stats s;
    kg_engine_stats(r.engine, &s);
    uint32_t in_use = s.n_cached[KG_PAGE] - s.n_evictable[KG_PAGE]; /* in the index, 2's */
    assert_int_equal(s.bytes.live[KG_PAGE] + s.bytes.promised + in_use * 128, 15 * 128);
    rig_run(&r, 400);
    assert_int_equal(r.outs[1].end.n_preempted, 0);
    assert_int_equal(r.outs[2].end.n_preempted, 1);
    rig_assert_true(&r, 1);
    rig_assert_true(&r, 2);
    rig_close(&r);
}

static void v51_no_holder_waits_behind_one_that_cannot_be_admitted(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.n_pages = 16,
                                    .n_states = 3,
                                    .max_seqs = 3,
                                    .max_wait_ms = 1,
                                    .exec_opts = "base_ns=1000000",
                                    .lifetime = KG_LIFETIME_MAX});
    assert_int_equal(rig_submit(&r, 1, 40, 40, NULL), KG_OK);
    rig_step(&r);
    assert_int_equal(rig_submit(&r, 2, 100, 20, NULL), KG_OK); /* needs 15 of 16 pages */
    uint32_t before = r.outs[1].n_output;
    while (!r.outs[1].done) { /* the holder advances in every step although 2 waits past its time */
        assert_int_equal(rig_step(&r), 1);
        if (r.outs[1].n_output > 0) {
            assert_true(r.outs[1].n_output > before || before == 0);
        }
        before = r.outs[1].n_output;
    }
    rig_run(&r, 100);
    rig_assert_true(&r, 2);
    rig_close(&r);
}

static void v54_v55_somebody_advances_in_every_step(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.n_pages = 12,
                                    .n_states = 4,
                                    .max_seqs = 4,
                                    .step_tokens = 3,
                                    .prefill_chunk = 2,
                                    .page_tokens = 5,
                                    .lifetime = KG_LIFETIME_PROMPT});
    for (uint32_t id = 1; id <= 12; id++) {
        assert_int_equal(rig_submit(&r, id, 1 + id * 3 % 20, 1 + id * 7 % 30, NULL), KG_OK);
    }
    uint64_t rows = 0;
    while (r.n_open > 0) {
        struct kg_engine_stats s;
        rig_step(&r);
        kg_engine_stats(r.engine, &s);
        assert_true(s.prompt_tokens + s.output_tokens > rows);
        rows = s.prompt_tokens + s.output_tokens;
    }
    for (uint32_t id = 1; id <= 12; id++) {
        rig_assert_true(&r, id);
    }
    rig_close(&r);
}

static void admission_never_preempts(void **state)
{
    (void)state;
    struct rig r;
    struct kg_engine_stats s;
    rig_open(&r, &(struct rig_conf){.n_pages = 30, .lifetime = KG_LIFETIME_MAX});
    for (uint32_t id = 1; id <= 20; id++) {
        assert_int_equal(rig_submit(&r, id, 30, 30, NULL), KG_OK);
    }
    rig_run(&r, 2000);
    kg_engine_stats(r.engine, &s);
    assert_int_equal(s.preemptions, 0); /* whole lifetimes are reserved: nobody has to grow */
    rig_close(&r);
}

/* Two requests hold all but a few pages; a big one and a small one wait. Returns whether the small
 * one overtook the big one. */
static int overtakes(uint32_t max_wait_ms, const char *sched_opts)
{
    struct rig r;
    rig_open(&r, &(struct rig_conf){.n_pages = 32,
                                    .n_states = 4,
                                    .max_seqs = 4,
                                    .max_wait_ms = max_wait_ms,
                                    .sched_opts = sched_opts,
                                    .exec_opts = "base_ns=1000000",
                                    .lifetime = KG_LIFETIME_MAX});
    assert_int_equal(rig_submit(&r, 1, 100, 60, NULL), KG_OK); /* 20 pages */
    rig_step(&r);
    assert_int_equal(rig_submit(&r, 2, 150, 20, NULL), KG_OK); /* 22 pages: waits */
    for (int i = 0; i < 10; i++) {
        rig_step(&r); /* 1 ms each */
    }
    assert_int_equal(rig_submit(&r, 3, 20, 5, NULL), KG_OK); /* 4 pages: would fit */
    rig_run(&r, 1000);
    rig_assert_true(&r, 2);
    rig_assert_true(&r, 3);
    int first = r.outs[3].end.admitted_ns < r.outs[2].end.admitted_ns;
    rig_close(&r);
    return first;
}

static void a_small_request_passes_a_big_one_until_max_wait(void **state)
{
    (void)state;
    assert_true(overtakes(0, NULL));
    assert_true(overtakes(1000, NULL));
    assert_false(overtakes(5, NULL));          /* 2 waited 10 ms when 3 came */
    assert_false(overtakes(0, "look_past=0")); /* strict order by choice */
}

static void a_request_that_waited_too_long_ends_with_timeout(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.n_pages = 16,
                                    .n_states = 2,
                                    .max_seqs = 2,
                                    .queue_timeout_ms = 50,
                                    .exec_opts = "base_ns=1000000",
                                    .lifetime = KG_LIFETIME_MAX});
    assert_int_equal(rig_submit(&r, 1, 10, 100, NULL), KG_OK); /* runs for about 100 ms */
    rig_step(&r);
    uint64_t sent = kg_engine_now(r.engine);
    assert_int_equal(rig_submit(&r, 2, 10, 60, NULL), KG_OK);
    rig_run(&r, 400);
    assert_int_equal(r.outs[1].end.finish, KG_FINISH_LENGTH);
    assert_int_equal(r.outs[2].end.finish, KG_FINISH_TIMEOUT);
    assert_int_equal(r.outs[2].end.rc, KG_ETIMEOUT);
    assert_string_equal(r.outs[2].end.text,
                        "waited 50 ms for memory without being admitted: short of pages");
    assert_true(r.outs[2].end.done_ns - sent >= 50 * MS);
    assert_true(r.outs[2].end.done_ns - sent <= 52 * MS);
    rig_assert_empty(&r);
    rig_close(&r);
}

static void a_preempted_request_does_not_time_out(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.n_pages = 16,
                                    .n_states = 2,
                                    .max_seqs = 2,
                                    .queue_timeout_ms = 5,
                                    .exec_opts = "base_ns=1000000",
                                    .lifetime = KG_LIFETIME_PROMPT});
    assert_int_equal(rig_submit(&r, 1, 56, 60, NULL), KG_OK);
    assert_int_equal(rig_submit(&r, 2, 56, 60, NULL), KG_OK);
    rig_run(&r, 400);
    assert_int_equal(r.outs[2].end.n_preempted, 1); /* and waited far longer than 5 ms */
    assert_int_equal(r.outs[2].end.finish, KG_FINISH_LENGTH);
    rig_assert_true(&r, 2);
    rig_close(&r);
}

static void a_plan_that_breaks_a_rule_is_dropped_and_the_step_runs(void **state)
{
    (void)state;
    for (uint32_t rule = 1; rule <= 9; rule++) {
        char opts[20];
        struct rig r;
        struct kg_engine_stats s;
        (void)snprintf(opts, sizeof(opts), "bad=%u", rule);
        rig_open(&r, &(struct rig_conf){.sched = "lifo", .sched_opts = opts, .step_tokens = 20});
        for (uint32_t id = 1; id <= 12; id++) {
            assert_int_equal(rig_submit(&r, id, 40, 20, NULL), KG_OK);
        }
        while (r.n_open > 0) {
            assert_int_equal(rig_step(&r), 1);
        }
        kg_engine_stats(r.engine, &s);
        if (s.plans_dropped == 0) {
            fail_msg("rule %u: no plan was dropped", rule);
        }
        for (uint32_t id = 1; id <= 12; id++) {
            assert_int_equal(r.outs[id].end.finish, KG_FINISH_LENGTH);
            rig_assert_true(&r, id);
        }
        rig_close(&r);
    }
}

static void a_preempted_request_comes_back_before_those_who_came_later(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.n_pages = 16,
                                    .n_states = 2,
                                    .max_seqs = 2,
                                    .sched_opts = "look_past=0",
                                    .exec_opts = "base_ns=1000000",
                                    .lifetime = KG_LIFETIME_PROMPT});
    assert_int_equal(rig_submit(&r, 1, 56, 60, NULL), KG_OK);
    assert_int_equal(rig_submit(&r, 2, 56, 60, NULL), KG_OK);
    rig_step(&r);
    assert_int_equal(rig_submit(&r, 3, 8, 2, NULL), KG_OK); /* fits as soon as 2 is preempted */
    rig_run(&r, 400);
    assert_int_equal(r.outs[2].end.n_preempted, 1);
    assert_true(r.outs[3].end.admitted_ns >= r.outs[1].end.done_ns);
    rig_close(&r);
}

static void a_paused_request_is_not_admitted_even_if_asked_for(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.sched = "lifo", .sched_opts = "bad=10"});
    assert_int_equal(rig_submit(&r, 1, 10, 5, NULL), KG_OK);
    kg_engine_pause(r.engine, 1, true);
    for (int i = 0; i < 3; i++) {
        assert_true(rig_step(&r) >= 0);
    }
    struct kg_engine_stats s;
    kg_engine_stats(r.engine, &s);
    assert_int_equal(s.n_running, 0);
    assert_int_equal(s.plans_dropped, 0);
    rig_close(&r);
}

static void virtual_time_moves_to_the_deadline_when_nothing_can_run(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.n_pages = 16,
                                    .n_states = 2,
                                    .max_seqs = 2,
                                    .queue_timeout_ms = 50,
                                    .lifetime = KG_LIFETIME_MAX});
    assert_int_equal(rig_submit(&r, 1, 10, 100, NULL), KG_OK);
    rig_step(&r);
    kg_engine_pause(r.engine, 1, true); /* holds most of the pool and does not run */
    assert_int_equal(rig_submit(&r, 2, 10, 60, NULL), KG_OK);
    for (int i = 0; i < 5 && !r.outs[2].done; i++) {
        rig_step(&r);
    }
    assert_int_equal(r.outs[2].end.finish, KG_FINISH_TIMEOUT);
    assert_true(kg_engine_now(r.engine) >= 50 * MS);
    kg_engine_pause(r.engine, 1, false);
    rig_run(&r, 200);
    rig_assert_true(&r, 1);
    rig_close(&r);
}

/* Most requests that ran at once. */
static uint32_t most_running_of(uint32_t lifetime, uint32_t warm, const char *vocab,
                                uint32_t quantile)
{
    struct kg_sampling stop = {.n_stop_ids = 1, .stop_ids = {0}};
    struct kg_engine_stats s;
    struct rig r;
    uint32_t most = 0, id = 1;
    rig_open(&r, &(struct rig_conf){.pool = "split",
                                    .exec_opts = vocab,
                                    .n_pages = 64,
                                    .max_seqs = 16,
                                    .lifetime = lifetime,
                                    .quantile = quantile});
    for (uint32_t i = 0; i < warm; i++) { /* one by one, all stop early */
        assert_int_equal(rig_submit(&r, id++, 8, 100, &stop), KG_OK);
        rig_run(&r, 200);
    }
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(rig_submit(&r, id++, 8, 100, &stop), KG_OK);
    }
    while (r.n_open > 0) {
        rig_step(&r);
        kg_engine_stats(r.engine, &s);
        most = s.n_running > most ? s.n_running : most;
    }
    for (uint32_t i = 1; i < id; i++) {
        rig_assert_true(&r, i);
    }
    rig_close(&r);
    return most;
}

static uint32_t most_running(uint32_t lifetime, uint32_t warm)
{
    return most_running_of(lifetime, warm, "vocab=4", 0);
}

static void a_higher_quantile_lets_fewer_run_and_90_is_the_default(void **state)
{
    const char *vocab = "vocab=16"; /* answers of 16 tokens on average */
    (void)state;
    uint32_t by_default = most_running_of(KG_LIFETIME_EXPECTED, 60, vocab, 0);
    assert_int_equal(most_running_of(KG_LIFETIME_EXPECTED, 60, vocab, 90), by_default);
    assert_true(most_running_of(KG_LIFETIME_EXPECTED, 60, vocab, 50) > by_default);
    assert_true(most_running_of(KG_LIFETIME_EXPECTED, 60, vocab, 100) < by_default);
}

static void lifetime_decides_how_many_run_at_once(void **state)
{
    (void)state;
    uint32_t max = most_running(KG_LIFETIME_MAX, 0);
    assert_int_equal(max, 4); /* 14 pages each of 64 */
    assert_int_equal(most_running(KG_LIFETIME_MAX, 60), max);
    assert_int_equal(most_running(KG_LIFETIME_EXPECTED, 0), max); /* nothing observed yet */
    assert_true(most_running(KG_LIFETIME_EXPECTED, 60) > max);
    assert_true(most_running(KG_LIFETIME_PROMPT, 0) > max);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(growth_preempts_the_youngest_and_never_the_oldest),
        cmocka_unit_test(v52_two_holders_of_half_the_pool_do_not_stall),
        cmocka_unit_test(v51_no_holder_waits_behind_one_that_cannot_be_admitted),
        cmocka_unit_test(v54_v55_somebody_advances_in_every_step),
        cmocka_unit_test(admission_never_preempts),
        cmocka_unit_test(a_small_request_passes_a_big_one_until_max_wait),
        cmocka_unit_test(a_request_that_waited_too_long_ends_with_timeout),
        cmocka_unit_test(a_preempted_request_does_not_time_out),
        cmocka_unit_test(a_plan_that_breaks_a_rule_is_dropped_and_the_step_runs),
        cmocka_unit_test(a_preempted_request_comes_back_before_those_who_came_later),
        cmocka_unit_test(a_paused_request_is_not_admitted_even_if_asked_for),
        cmocka_unit_test(virtual_time_moves_to_the_deadline_when_nothing_can_run),
        cmocka_unit_test(a_higher_quantile_lets_fewer_run_and_90_is_the_default),
        cmocka_unit_test(lifetime_decides_how_many_run_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
