/*
 * Speculation never shows: whatever is drafted, verified, accepted, rejected, preempted, moved or
 * taken from the prefix cache in between, a request's tokens, log probabilities, logits bits and
 * checkpointed states are those of plain decoding.
 */
#include "spec_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct spec_run truth, work;

static const struct spec_way plain = {
    "plain", "plugins.pool=unified plugins.spec=off prefix.enabled=no", .batch = 1};

static uint32_t n_reqs(void)
{
    return xrig_is_full() ? SPEC_REQS : 6;
}

/* Plain decoding of the set; with stops, those that its own output meets. */
static void make_truth(const char *math, float temperature, int stops)
{
    static struct spec_run first;

    spec_requests(&truth, n_reqs(), temperature);
    spec_go(&plain, math, &truth, NULL, n_reqs());
    if (!stops)
        return;
    first = truth;
    spec_requests(&truth, n_reqs(), temperature);
    spec_stops(&truth, &first, n_reqs());
    spec_go(&plain, math, &truth, NULL, n_reqs());
}

static void check(const struct spec_way *w, const char *math)
{
    uint32_t n = n_reqs();

    memset(&work, 0, sizeof(work));
    for (uint32_t i = 0; i < n; i++) {
        struct xreq *r = &work.reqs[i];
        r->n = r->n_prompt = truth.reqs[i].n_prompt;
        r->n_max = truth.reqs[i].n_max;
        r->sampling = truth.reqs[i].sampling;
        memcpy(r->tokens, truth.reqs[i].tokens, r->n * sizeof(uint32_t));
    }
    spec_go(w, math, &work, &truth, n);
    spec_equal(w, &work, &truth, n);
}

static const struct spec_drafts windows = {.choose = 1, .right = 80};
static const struct spec_drafts forced = {.choose = 1, .right = 90, .reject = 1};
static const struct spec_drafts right = {.length = 8, .right = 100};
static const struct spec_drafts wrong = {.length = 5, .right = 0};

/* A preemption throws a request back to its prompt, so the longer the run, the rarer. */
static const struct spec_way ways[] = {
    {"replay, unified, moved and preempted", "plugins.pool=unified exec-cpu.threads=2", 3, 17, 2,
     12, 1, &windows, 0, 0},
    {"snapshot, split by ratio, preempted",
     "plugins.pool=split pool-split.style=ratio exec-cpu.rewind=snapshot", 3, 0, 1, 12, 2, &windows,
     0, 0},
    {"forced rejections, replay, split uniform",
     "plugins.pool=split pool-split.style=uniform memory.bytes=64m", 4, 0, 0, 0, 3, &forced, 0, 0},
    {"forced rejections, snapshot, unified", "plugins.pool=unified exec-cpu.rewind=snapshot", 6, 0,
     1, 0, 4, &forced, 0, 0},
    {"every draft right", "plugins.pool=unified", 2, 0, 0, 0, 5, &right, 0, 0},
    {"every draft wrong", "plugins.pool=unified", 6, 0, 0, 0, 6, &wrong, 0, 0},
    {"lookup, unified, preempted", "plugins.pool=unified spec-ngram.min_gain=0", 6, 0, 2, 12, 7,
     NULL, 0, 0},
    {"lookup of single tokens", "plugins.pool=unified spec-ngram.min_n=1 spec-ngram.min_gain=0.05",
     6, 0, 0, 0, 8, NULL, 0, 0},
};

static void check_ways(const char *math)
{
    uint32_t n_cached = 0;

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        check(&ways[i], math);
        n_cached += work.n_cached;
        if (ways[i].drafts == &right)
            assert_true(work.n_accepted > 50 && work.n_accepted > work.n_verified * 3 / 4);
        if (ways[i].drafts == &wrong)
            assert_true(work.n_accepted < 5 && work.n_verified > 50);
        if (ways[i].drafts == &windows || ways[i].drafts == &forced)
            assert_true(work.n_accepted > 10 && work.n_accepted < work.n_verified);
    }
    assert_true(n_cached > 0);
}

static void exact_sampled_tokens_and_bits_equal_plain_decoding(void **state)
{
    (void)state;
    make_truth("exact", 0.8f, 0);
    check_ways("exact");
}

static void fast_greedy_with_stops_inside_a_run_equals_plain_decoding(void **state)
{
    (void)state;
    uint32_t stopped = 0;
    make_truth("fast", 0.0f, 1);
    for (uint32_t i = 0; i < n_reqs(); i++)
        stopped += truth.finish[i] == KG_FINISH_STOP;
    assert_true(stopped > n_reqs() / 2);
    check_ways("fast");
}

/* Every length from 1 to 8, both rewinds, more seeds. */
static void all_lengths_rewinds_and_seeds(void **state)
{
    (void)state;
    static const char *const maths[] = {"exact", "fast"};
    if (!xrig_is_full()) {
        print_message("skipped: runs with KEDGE_FULL=1\n");
        skip();
    }
    for (uint32_t k = 0; k < 8; k++) {
        make_truth(maths[k % 2], k & 2 ? 0.0f : 0.8f, k & 4 ? 1 : 0);
        check_ways(maths[k % 2]);
        for (uint32_t length = 1; length <= 8; length++) {
            struct spec_drafts d = {.length = length, .right = 60 + 5 * length};
            struct spec_way w = ways[(k + length) % 4];
            w.name = "one length";
            w.drafts = &d;
            w.seed = 100 * k + length;
            check(&w, maths[k % 2]);
        }
    }
}

static void v39_a_step_without_drafts_after_accepted_ones_reads_the_right_state(void **state)
{
    (void)state;
    static const int8_t pattern[] = {3, 0, 2, 0, 0, 1, -1};
    struct spec_drafts d = {.right = 100, .pattern = pattern};
    struct spec_way w = {"3, 0, 2, 0, 0, 1 drafts", "plugins.pool=unified", .batch = 1,
                         .drafts = &d};
    make_truth("exact", 0.8f, 0);
    check(&w, "exact");
    assert_true(work.n_accepted > 20);
    w.sets = "plugins.pool=unified exec-cpu.rewind=snapshot";
    check(&w, "exact");
}

static void v41_a_batch_in_which_half_the_sequences_draft_is_exact(void **state)
{
    (void)state;
    struct spec_drafts d = {.length = 4, .right = 70, .odd_only = 1};
    struct spec_way w = {"half drafts", "plugins.pool=unified", .batch = 6, .drafts = &d};
    make_truth("exact", 0.8f, 0);
    check(&w, "exact");
    assert_true(work.n_accepted > 10);
}

static void v43_preemption_at_any_verify_length_leaves_nothing_behind(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 3, 5};
    make_truth("exact", 0.8f, 0);
    for (uint32_t i = 0; i < 3; i++) {
        struct spec_drafts d = {.length = lengths[i], .right = 80};
        struct spec_way w = {.name = "preempted",
                             .sets = "plugins.pool=unified prefix.enabled=no",
                             .batch = 3,
                             .preempt = 8,
                             .seed = i,
                             .drafts = &d};
        check(&w, "exact");
    }
}

static void v46_a_nan_in_a_window_ends_its_request_only(void **state)
{
    (void)state;
    struct spec_drafts d = {.length = 4, .right = 80};
    struct spec_way w = {.name = "NaN in a window",
                         .sets = "plugins.pool=unified",
                         .batch = 6,
                         .drafts = &d,
                         .nan_id = 3};
    make_truth("exact", 0.8f, 0);
    w.nan_at = truth.reqs[2].n_prompt + 6;
    check(&w, "exact");
    assert_int_equal(work.finish[2], KG_FINISH_ERROR);
    assert_int_equal(work.stats.nan_rows, 1);
}

static void s33_rows_that_are_trimmed_are_not_computed(void **state)
{
    (void)state;
    struct spec_drafts d = {.length = 8, .choose = 1, .right = 50};
    struct spec_way w = {.name = "trimmed",
                         .sets = "plugins.pool=unified prefix.enabled=no",
                         .batch = 6,
                         .drafts = &d};
    uint64_t committed = 0;
    make_truth("exact", 0.8f, 0);
    check(&w, "exact");
    for (uint32_t i = 0; i < n_reqs(); i++)
        committed += truth.reqs[i].n - 1; /* the last token is never run */
    assert_true(work.n_verified < work.n_drafted);
    /* Every row is a committed one or a rejected draft; a cut last window may reject none. */
    assert_int_equal(work.n_rows, committed + work.n_verified - work.n_accepted);
}

/* usage: spec_bits [RANKS [EP]] */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_sampled_tokens_and_bits_equal_plain_decoding),
        cmocka_unit_test(fast_greedy_with_stops_inside_a_run_equals_plain_decoding),
        cmocka_unit_test(v39_a_step_without_drafts_after_accepted_ones_reads_the_right_state),
        cmocka_unit_test(v41_a_batch_in_which_half_the_sequences_draft_is_exact),
        cmocka_unit_test(v43_preemption_at_any_verify_length_leaves_nothing_behind),
        cmocka_unit_test(v46_a_nan_in_a_window_ends_its_request_only),
        cmocka_unit_test(s33_rows_that_are_trimmed_are_not_computed),
        cmocka_unit_test(all_lengths_rewinds_and_seeds),
    };

    xrig_set_ranks(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
