/* Speculation: windows change how fast tokens come, never which. */
#include "rig.h"

#include <math.h>
#include <stdio.h>

static uint64_t sum(const uint64_t *values)
{
    uint64_t all = 0;

    for (uint32_t j = 0; j < KG_SPEC_POSITIONS; j++)
        all += values[j];
    return all;
}

/* The counts by position of a request; a prefix of what was verified was accepted. */
static void check_positions(const struct kg_event *end)
{
    const struct kg_spec_count *c = &end->spec;

    assert_int_equal(sum(c->verified), end->n_verified);
    assert_int_equal(sum(c->accepted), end->n_accepted);
    assert_true(c->rounds == c->verified[0]); /* whoever verifies anything verifies the first */
    for (uint32_t j = 0; j < KG_SPEC_POSITIONS; j++) {
        assert_true(c->accepted[j] <= c->verified[j]);
        assert_true(j == 0 || c->verified[j] <= c->verified[j - 1]);
        assert_true(j == 0 || c->accepted[j] <= c->accepted[j - 1]);
    }
}

/* Runs eight requests of 40 tokens; returns the steps, *s what happened. */
static uint32_t run_eight(const struct rig_conf *conf, struct kg_engine_stats *s)
{
    struct rig r;

    rig_open(&r, conf);
    for (uint32_t id = 1; id <= 8; id++) {
        assert_int_equal(rig_submit(&r, id, 12, 40, NULL), KG_OK);
    }
    uint32_t steps = rig_run(&r, 2000), drafted = 0, accepted = 0;
    for (uint32_t id = 1; id <= 8; id++) {
        rig_assert_true(&r, id);
        assert_int_equal(r.outs[id].n_output, 40);
        assert_true(r.outs[id].end.n_accepted <= r.outs[id].end.n_verified);
        assert_true(r.outs[id].end.n_verified <= r.outs[id].end.n_drafted);
        check_positions(&r.outs[id].end);
        drafted += r.outs[id].end.n_drafted;
        accepted += r.outs[id].end.n_accepted;
    }
    kg_engine_stats(r.engine, s);
    assert_int_equal(s->drafted, drafted);
    assert_int_equal(s->accepted, accepted);
    assert_int_equal(sum(s->spec.accepted), accepted);
    assert_int_equal(sum(s->spec.verified), s->verified);
    rig_assert_empty(&r);
    rig_close(&r);
    return steps;
}

static void a_model_drafter_saves_steps_and_changes_no_token(void **state)
{
    (void)state;
    struct kg_engine_stats plain, drafted;
    uint32_t a = run_eight(&(struct rig_conf){0}, &plain);
    uint32_t b =
        run_eight(&(struct rig_conf){.exec_opts = "draft_block=4 accept=0.9", .spec = "fake-model"},
                  &drafted);
    assert_int_equal(plain.drafted, 0);
    assert_true(drafted.accepted > 50);
    assert_true(b < a - a / 4);
    assert_int_equal(plain.spec.rounds, 0);
    for (uint32_t j = 0; j < 4; j++) { /* it says 0.9 for each draft */
        double want = pow(0.9, j + 1), verified = (double)drafted.spec.verified[j];
        assert_true(fabs((double)drafted.spec.expected_um[j] - 1e6 * want * verified) < 1e3);
    }
    assert_int_equal(drafted.drafts_failed, 0);
}

static void a_policy_may_want_less_than_is_allowed_and_gets_no_more(void **state)
{
    (void)state;
    struct kg_engine_stats all, part, bad;
    const char *exec = "draft_block=4 accept=0.9";
    run_eight(&(struct rig_conf){.exec_opts = exec, .spec = "fake-model"}, &all);
    run_eight(&(struct rig_conf){.exec_opts = exec, .spec = "fake-model", .spec_opts = "want=yes"},
              &part);
    run_eight(&(struct rig_conf){.exec_opts = exec,
                                 .spec = "fake-model",
                                 .spec_opts = "want=yes bad=yes"},
              &bad);
    assert_int_equal(part.drafts_failed, 0);
    assert_true(part.drafted > 0 && part.drafted < all.drafted - all.drafted / 4);
    assert_true(bad.drafts_failed > 0); /* cut and counted, no token changed */
}

static void v39_v41_host_drafts_of_random_length_change_no_token(void **state)
{
    (void)state;
    struct kg_engine_stats s;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        char opts[40];
        (void)snprintf(opts, sizeof(opts), "seed=%u block=%u", seed, 1 + seed % 8);
        run_eight(&(struct rig_conf){.spec = "fake-host", .spec_opts = opts}, &s);
        assert_true(s.accepted > 0 && s.accepted < s.verified);
        assert_int_equal(s.drafts_failed, 0);
    }
}

static uint32_t accept_all(void *ctx, uint64_t id, uint32_t past, uint32_t n_draft)
{
    (void)ctx;
    (void)id;
    (void)past;
    return n_draft;
}

static uint32_t accept_none(void *ctx, uint64_t id, uint32_t past, uint32_t n_draft)
{
    (void)ctx;
    (void)id;
    (void)past;
    (void)n_draft;
    return 0;
}

static void forced_acceptance_is_exact(void **state)
{
    (void)state;
    struct kg_engine_test all = {.force_accept = accept_all}, none = {.force_accept = accept_none};
    struct kg_engine_stats s;
    struct rig_conf c = {.exec_opts = "draft_block=4 accept=1", .spec = "fake-model", .test = &all};
    run_eight(&c, &s);
    assert_true(s.verified > 0);
    assert_int_equal(s.accepted, s.verified);
    c.test = &none;
    run_eight(&c, &s);
    assert_true(s.verified > 0);
    assert_int_equal(s.accepted, 0);
}

static void v43_preemption_while_drafting_changes_no_token(void **state)
{
    (void)state;
    for (uint32_t block = 0; block <= 5; block++) {
        struct kg_engine_test test = {.preempt_one_in = 3, .seed = block};
        struct kg_engine_stats s;
        char exec[60], spec[40];
        (void)snprintf(exec, sizeof(exec), "draft_block=%u async=yes", block);
        (void)snprintf(spec, sizeof(spec), "block=%u", block);
        run_eight(
            &(struct rig_conf){
                .exec_opts = exec, .spec = "fake-model", .spec_opts = spec, .test = &test},
            &s);
        assert_true(s.preemptions > 3);
    }
}

static void what_a_policy_does_wrong_is_cut_and_counted(void **state)
{
    (void)state;
    struct kg_engine_stats s;
    run_eight(&(struct rig_conf){.spec = "fake-host", .spec_opts = "bad=yes"}, &s);
    assert_true(s.drafts_failed > 10);
    run_eight(&(struct rig_conf){.exec_opts = "draft_block=4",
                                 .spec = "fake-model",
                                 .spec_opts = "bad=yes"},
              &s);
    assert_true(s.drafts_failed > 10);
}

/* Rows of the step so far, by its first sequence's address: a batch is one array. */
struct rows {
    uint32_t most, in_step;
    uint64_t n_verified;
};

static void count_rows(void *ctx, const struct kg_seq *seq, const struct kg_seq_result *result)
{
    struct rows *w = ctx;
    (void)result;
    w->in_step += seq->n_rows;
    w->most = w->in_step > w->most ? w->in_step : w->most;
    w->n_verified += seq->n_draft;
}

static void a_step_never_carries_more_rows_than_its_budget(void **state)
{
    (void)state;
    struct rows rows = {0};
    struct kg_engine_test test = {.ctx = &rows, .on_result = count_rows};
    struct rig r;
    rig_open(&r, &(struct rig_conf){.exec_opts = "draft_block=6",
                                    .spec = "fake-model",
                                    .spec_opts = "block=6",
                                    .step_tokens = 9,
                                    .test = &test});
    for (uint32_t id = 1; id <= 8; id++) {
        assert_int_equal(rig_submit(&r, id, 12, 40, NULL), KG_OK);
    }
    for (int i = 0; r.n_open > 0 && i < 4000; i++) {
        rows.in_step = 0;
        rig_step(&r);
    }
    assert_int_equal(r.n_open, 0);
    assert_true(rows.most <= 9);
    assert_true(rows.n_verified > 0);
    rig_close(&r);
}

struct share {
    uint32_t in_step, n_decode_rows;
    uint32_t short_steps; /* steps that left a decoding request out */
};

static void count_seqs(void *ctx, const struct kg_seq *seq, const struct kg_seq_result *result)
{
    struct share *s = ctx;
    (void)result;
    s->in_step++;
    s->n_decode_rows += seq->n_draft;
}

static void drafts_keep_no_decoding_request_out_of_a_step(void **state)
{
    (void)state;
    struct share share = {0};
    struct kg_engine_test test = {.ctx = &share, .on_result = count_seqs};
    struct rig r;
    rig_open(&r, &(struct rig_conf){.exec_opts = "draft_block=8 accept=0",
                                    .spec = "fake-model",
                                    .spec_opts = "block=8",
                                    .step_tokens = 24, /* two windows of nine rows */
                                    .prefill_chunk = 12,
                                    .test = &test});
    for (uint32_t id = 1; id <= 8; id++) {
        assert_int_equal(rig_submit(&r, id, 12, 40, NULL), KG_OK);
    }
    for (int i = 0; r.n_open > 0 && i < 400; i++) {
        uint32_t n = r.n_open, decoding = 0;
        for (uint32_t id = 1; id <= 8; id++) {
            decoding += !r.outs[id].done && r.outs[id].n_output > 0;
        }
        share.in_step = 0;
        rig_step(&r);
        share.short_steps += share.in_step < (decoding < n ? decoding : n);
    }
    assert_int_equal(r.n_open, 0);
    assert_int_equal(share.short_steps, 0);
    assert_true(share.n_decode_rows > 50);
    rig_close(&r);
}

static void a_drafter_policy_without_a_drafter_is_plain_decoding(void **state)
{
    (void)state;
    struct kg_engine_stats s;
    run_eight(&(struct rig_conf){.spec = "fake-model"}, &s);
    assert_int_equal(s.drafted, 0);
    run_eight(&(struct rig_conf){.spec = "off"}, &s);
    assert_int_equal(s.drafted, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_drafter_saves_steps_and_changes_no_token),
        cmocka_unit_test(a_policy_may_want_less_than_is_allowed_and_gets_no_more),
        cmocka_unit_test(v39_v41_host_drafts_of_random_length_change_no_token),
        cmocka_unit_test(forced_acceptance_is_exact),
        cmocka_unit_test(v43_preemption_while_drafting_changes_no_token),
        cmocka_unit_test(what_a_policy_does_wrong_is_cut_and_counted),
        cmocka_unit_test(a_step_never_carries_more_rows_than_its_budget),
        cmocka_unit_test(drafts_keep_no_decoding_request_out_of_a_step),
        cmocka_unit_test(a_drafter_policy_without_a_drafter_is_plain_decoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
