/* What the caller may do to a request at any time, and what a bad backend may not do to others. */
#include "rig.h"

#include "base/rng.h"

#include <string.h>

/* Steps until request 1 is where `where` says. */
enum where { INBOX, WAITING, PREFILL, DECODE, PREEMPTED, PAUSED, ENDED, N_WHERES };

static void bring(struct rig *r, enum where where)
{
    switch (where) {
    case INBOX:
        break;
    case WAITING: /* request 2 came first and holds the only slot */
    case PREFILL:
        rig_step(r);
        break;
    case DECODE:
    case PAUSED:
        while (r->outs[1].n_output < 3) {
            rig_step(r);
        }
        if (where == PAUSED) {
            kg_engine_pause(r->engine, 1, true);
            rig_step(r);
        }
        break;
    case PREEMPTED: {
        struct kg_engine_stats s;
        do {
            rig_step(r);
            kg_engine_stats(r->engine, &s);
        } while (s.preemptions == 0);
        break;
    }
    default:
        rig_run(r, 100);
    }
}

static void cancel_ends_a_request_in_every_state(void **state)
{
    (void)state;
    for (uint32_t w = INBOX; w < N_WHERES; w++) {
        struct kg_engine_test test = {.preempt_one_in = 8, .seed = 3};
        struct rig r;
        rig_open(&r, &(struct rig_conf){.max_seqs = w == WAITING ? 1 : 4,
                                        .prefill_chunk = 8,
                                        .test = w == PREEMPTED ? &test : NULL});
        if (w == WAITING) {
            assert_int_equal(rig_submit(&r, 2, 20, 30, NULL), KG_OK);
        }
        assert_int_equal(rig_submit(&r, 1, 20, 30, NULL), KG_OK);
        if (w != WAITING) {
            assert_int_equal(rig_submit(&r, 2, 20, 30, NULL), KG_OK);
        }
        bring(&r, w);
        kg_engine_cancel(r.engine, 1);
        kg_engine_cancel(r.engine, 1);   /* twice is once */
        kg_engine_cancel(r.engine, 777); /* unknown ids are ignored */
        uint32_t had = r.outs[1].n_output;
        rig_step(&r);
        assert_true(r.outs[1].done);
        assert_int_equal(r.outs[1].end.finish, w == ENDED ? KG_FINISH_LENGTH : KG_FINISH_CANCELLED);
        assert_int_equal(r.outs[1].n_output, had); /* nothing is computed for it any more */
        rig_run(&r, 300);
        rig_assert_true(&r, 1);
        rig_assert_true(&r, 2);
        assert_int_equal(r.outs[2].end.finish, KG_FINISH_LENGTH);
        rig_assert_empty(&r);
        rig_close(&r);
    }
}

static void v60_a_thousand_aborts_leave_no_unit_behind(void **state)
{
    (void)state;
    static const char *const pools[] = {"unified", "split", "shuffle"};
    for (uint32_t p = 0; p < 3; p++) {
        struct kg_engine_test test = {.preempt_one_in = 20, .force_orders = 1};
        struct kg_rng rng;
        struct rig r;
        kg_rng_seed(&rng, 60 + p);
        rig_open(&r, &(struct rig_conf){.exec_opts = "draft_block=3",
                                        .pool = pools[p],
                                        .spec = "fake-model",
                                        .n_pages = 40,
                                        .lifetime = KG_LIFETIME_PROMPT,
                                        .test = &test});
        uint32_t id = 0, aborted = 0;
        while (aborted < 1000) {
            if (r.n_open < 12 && id < RIG_IDS - 1) {
                id++;
                assert_int_equal(rig_submit(&r, id, 1 + id % 40, 1 + id % 30, NULL), KG_OK);
            }
            if (kg_rng_below(&rng, 4) == 0) {
                rig_step(&r);
            }
            uint64_t victim = id - kg_rng_below(&rng, id < 16 ? id : 16);
            if (r.outs[victim].submitted && !r.outs[victim].done) {
                kg_engine_cancel(r.engine, victim);
                aborted++;
            }
        }
        rig_run(&r, 5000);
        rig_assert_empty(&r);
        for (uint32_t i = 1; i <= id; i++) {
            rig_assert_true(&r, i);
        }
        rig_close(&r);
    }
}

static void a_paused_request_keeps_still_and_others_go_on(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){0});
    assert_int_equal(rig_submit(&r, 1, 10, 30, NULL), KG_OK);
    assert_int_equal(rig_submit(&r, 2, 10, 40, NULL), KG_OK);
    while (r.outs[1].n_output < 5) {
        rig_step(&r);
    }
    kg_engine_pause(r.engine, 1, true);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(rig_step(&r), 1);
        assert_int_equal(r.outs[1].n_output, 5);
    }
    assert_true(r.outs[2].n_output > 12);
    kg_engine_pause(r.engine, 2, true);
    rig_step(&r);
    assert_int_equal(rig_step(&r), 0); /* both are paused: nothing to do */
    kg_engine_pause(r.engine, 1, false);
    kg_engine_pause(r.engine, 2, false);
    rig_run(&r, 100);
    rig_assert_true(&r, 1);
    rig_assert_true(&r, 2);
    rig_close(&r);
}

static void a_request_paused_before_it_ran_holds_nobody_up(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.max_wait_ms = 1, .exec_opts = "base_ns=9000000"});
    assert_int_equal(rig_submit(&r, 3, 10, 5, NULL), KG_OK);
    assert_int_equal(rig_submit(&r, 1, 10, 5, NULL), KG_OK);
    kg_engine_pause(r.engine, 1, true);
    while (!r.outs[3].done) {
        rig_step(&r);
    }
    assert_int_equal(rig_submit(&r, 2, 10, 5, NULL), KG_OK); /* 1 has waited past max_wait_ms */
    for (int i = 0; i < 20; i++) {
        rig_step(&r);
    }
    assert_true(r.outs[2].done);
    assert_int_equal(r.outs[1].n_output, 0);
    kg_engine_pause(r.engine, 1, false);
    rig_run(&r, 100);
    rig_assert_true(&r, 1);
    rig_close(&r);
}

/* An index is reused while a message about its last owner is still under way: what the caller
 * wants of the new owner must not be lost with it. */
static void a_cancel_behind_a_stale_message_is_heard(void **state)
{
    (void)state;
    struct kg_event ev;
    struct kg_error err;
    struct rig r;
    uint32_t tokens[4] = {1, 2, 3, 4};
    struct kg_request q = {.id = 1, .tokens = tokens, .n_prompt = 4, .max_tokens = 1};
    rig_open(&r, &(struct rig_conf){.max_seqs = 1, .max_requests = 1});
    assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
    assert_int_equal(kg_engine_step(r.engine, &err), 1); /* 1 is done; nobody read it yet */
    kg_engine_cancel(r.engine, 1);
    while (kg_engine_next(r.engine, &ev) == KG_OK) {
    }
    q.id = 2;
    q.max_tokens = 50;
    assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
    kg_engine_cancel(r.engine, 2);
    assert_int_equal(kg_engine_step(r.engine, &err), 1);
    assert_int_equal(kg_engine_next(r.engine, &ev), KG_OK);
    assert_int_equal(ev.type, KG_EVENT_DONE);
    assert_int_equal(ev.id, 2);
    assert_int_equal(ev.finish, KG_FINISH_CANCELLED);
    rig_close(&r);
}

static void finish_ends_well_and_counts_what_the_caller_kept(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){0});
    assert_int_equal(rig_submit(&r, 1, 10, 100, NULL), KG_OK);
    assert_int_equal(rig_submit(&r, 2, 10, 100, NULL), KG_OK);
    while (r.outs[1].n_output < 9) {
        rig_step(&r);
    }
    kg_engine_finish(r.engine, 1, 6);
    kg_engine_finish(r.engine, 2, 5000); /* more than there is: all of it */
    rig_step(&r);
    assert_int_equal(r.outs[1].end.finish, KG_FINISH_CALLER);
    assert_int_equal(r.outs[1].end.rc, KG_OK);
    assert_int_equal(r.outs[1].end.n_output, 6);
    assert_int_equal(r.outs[2].end.n_output, r.outs[2].n_output);
    rig_assert_empty(&r);
    rig_close(&r);
}

/* --- backends that fail --- */

static struct {
    const struct kg_exec_ops *real;
    struct kg_exec_ops ops;
    uint32_t n, fail_at;
    int rc;
    uint32_t lie;
    uint32_t n_poisoned[KG_N_KINDS];
    struct kg_seq_result results[64];
} broken;

static int broken_wait(struct kg_exec *x, struct kg_result *result, struct kg_error *err)
{
    int rc = broken.real->wait(x, result, err);

    if (++broken.n != broken.fail_at || rc != KG_OK) {
        return rc;
    }
    if (!broken.lie) {
        return kg_fail(err, broken.rc, "injected");
    }
    memcpy(broken.results, result->seqs, result->n_seqs * sizeof(*result->seqs));
    broken.results[0].past++;
    result->seqs = broken.results;
    return rc;
}

static int counted_poison(struct kg_exec *x, uint32_t kind, uint32_t id)
{
    broken.n_poisoned[kind]++;
    return broken.real->poison(x, kind, id);
}

static const struct kg_exec_ops *wrap(const struct kg_exec_ops *ops)
{
    broken.real = ops;
    broken.ops = *ops;
    broken.ops.wait = broken_wait;
    broken.ops.poison = counted_poison;
    broken.n = broken.n_poisoned[KG_PAGE] = broken.n_poisoned[KG_STATE] = 0;
    return &broken.ops;
}

/* --- NaN --- */

static int poison_third(void *ctx, uint64_t id, uint32_t past)
{
    (void)ctx;
    return id == 3 && past > 20;
}

static void v46_a_nan_row_ends_its_request_alone(void **state)
{
    (void)state;
    struct kg_engine_test test = {.poison = poison_third};
    for (uint32_t quiet = 0; quiet < 2; quiet++) {
        struct rig r;
        struct kg_engine_stats s;
        broken.fail_at = 0;
        rig_open(&r,
                 &(struct rig_conf){.n_pages = 30, .test = &test, .no_debug = quiet, .wrap = wrap});
        for (uint32_t id = 1; id <= 12; id++) {
            assert_int_equal(rig_submit(&r, id, 15, 20, NULL), KG_OK);
        }
        rig_run(&r, 1000);
        for (uint32_t id = 1; id <= 12; id++) {
            assert_int_equal(r.outs[id].end.finish, id == 3 ? KG_FINISH_ERROR : KG_FINISH_LENGTH);
            rig_assert_true(&r, id); /* what 3 had sent stays right, too */
        }
        assert_true(strlen(r.outs[3].end.text) > 0);
        assert_true(r.outs[3].n_output > 0);
        kg_engine_stats(r.engine, &s);
        assert_int_equal(s.nan_rows, 1);
        if (quiet) { /* its units alone are poisoned, all of them: 15 tokens and some */
            assert_int_equal(broken.n_poisoned[KG_STATE], 1);
            assert_int_equal(broken.n_poisoned[KG_PAGE], 3);
        }
        rig_assert_empty(&r);
        rig_close(&r);
    }
}

static void a_lost_backend_ends_everybody_and_says_so(void **state)
{
    (void)state;
    struct rig r;
    struct kg_engine_stats s;
    broken.fail_at = 5;
    broken.rc = KG_EDEVICE;
    broken.lie = 0;
    rig_open(&r, &(struct rig_conf){.wrap = wrap, .max_seqs = 2});
    for (uint32_t id = 1; id <= 6; id++) {
        assert_int_equal(rig_submit(&r, id, 10, 20, NULL), KG_OK);
    }
    int rc = KG_OK;
    for (int i = 0; i < 5; i++) {
        rc = rig_step(&r);
    }
    assert_int_equal(rc, KG_EDEVICE);
    for (uint32_t id = 1; id <= 6; id++) {
        assert_true(r.outs[id].done);
        assert_int_equal(r.outs[id].end.finish, KG_FINISH_ERROR);
        assert_int_equal(r.outs[id].end.rc, KG_EDEVICE);
        assert_string_equal(r.outs[id].end.text, "injected");
    }
    kg_engine_stats(r.engine, &s);
    assert_int_equal(s.lost, 1);
    assert_int_equal(rig_submit(&r, 7, 10, 20, NULL), KG_EDEVICE);
    assert_int_equal(rig_step(&r), KG_EDEVICE);
    rig_close(&r);
}

static void a_failed_batch_ends_its_requests_and_the_rest_run(void **state)
{
    (void)state;
    struct rig r;
    uint32_t failed = 0;
    broken.fail_at = 5;
    broken.rc = KG_EINVAL;
    broken.lie = 0;
    rig_open(&r, &(struct rig_conf){.wrap = wrap, .max_seqs = 2});
    for (uint32_t id = 1; id <= 6; id++) {
        assert_int_equal(rig_submit(&r, id, 10, 20, NULL), KG_OK);
    }
    rig_run(&r, 200);
    for (uint32_t id = 1; id <= 6; id++) {
        failed += r.outs[id].end.finish == KG_FINISH_ERROR;
        rig_assert_true(&r, id);
    }
    assert_int_equal(failed, 2);
    rig_assert_empty(&r);
    rig_close(&r);
}

static void an_answer_that_breaks_the_contract_ends_that_request(void **state)
{
    (void)state;
    struct rig r;
    broken.fail_at = 5;
    broken.lie = 1;
    rig_open(&r, &(struct rig_conf){.wrap = wrap});
    for (uint32_t id = 1; id <= 4; id++) {
        assert_int_equal(rig_submit(&r, id, 10, 20, NULL), KG_OK);
    }
    rig_run(&r, 200);
    assert_int_equal(r.outs[1].end.finish, KG_FINISH_ERROR);
    assert_non_null(strstr(r.outs[1].end.text, "backend answered"));
    for (uint32_t id = 2; id <= 4; id++) {
        assert_int_equal(r.outs[id].end.finish, KG_FINISH_LENGTH);
    }
    rig_assert_empty(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancel_ends_a_request_in_every_state),
        cmocka_unit_test(v60_a_thousand_aborts_leave_no_unit_behind),
        cmocka_unit_test(a_paused_request_keeps_still_and_others_go_on),
        cmocka_unit_test(a_request_paused_before_it_ran_holds_nobody_up),
        cmocka_unit_test(a_cancel_behind_a_stale_message_is_heard),
        cmocka_unit_test(finish_ends_well_and_counts_what_the_caller_kept),
        cmocka_unit_test(v46_a_nan_row_ends_its_request_alone),
        cmocka_unit_test(a_lost_backend_ends_everybody_and_says_so),
        cmocka_unit_test(a_failed_batch_ends_its_requests_and_the_rest_run),
        cmocka_unit_test(an_answer_that_breaks_the_contract_ends_that_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
