/*
 * The trained drafter never shows, and is never spoiled: whatever is drafted, verified, accepted,
 * rejected, paused, preempted, moved or taken from the prefix cache in between, a request's tokens
 * and logits bits are those of plain decoding, and what is drafted at a position is what a run
 * drafts there that was never disturbed.
 */
#include "spec_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DRAFTER "plugins.spec=dspark model.draft=" TEST_ROOT "/models/k3-tiny-dspark "

static struct spec_run truth, calm, work;

static const struct spec_way plain = {
    "plain", "plugins.pool=unified plugins.spec=off prefix.enabled=no", .batch = 1};

static uint32_t n_reqs(void)
{
    return xrig_is_full() ? SPEC_REQS : xrig_world() > 1 ? 4 : 6;
}

static void copy_requests(struct spec_run *to)
{
    memset(to, 0, sizeof(*to));
    for (uint32_t i = 0; i < n_reqs(); i++) {
        struct xreq *r = &to->reqs[i];
        r->n = r->n_prompt = truth.reqs[i].n_prompt;
        r->n_max = truth.reqs[i].n_max;
        r->sampling = truth.reqs[i].sampling;
        memcpy(r->tokens, truth.reqs[i].tokens, r->n * sizeof(uint32_t));
    }
}

/* Plain decoding of the set, and what the drafter says at each of its positions. */
static void make_truth(const char *math, float temperature)
{
    static const struct spec_drafts idle = {.length = SPEC_BLOCK, .model = 1, .idle = 1};
    static const struct spec_way alone = {"drafts that are not verified",
                                          DRAFTER "plugins.pool=unified prefix.enabled=no",
                                          .batch = 1, .drafts = &idle};

    static char made[32];
    char key[32];

    (void)snprintf(key, sizeof(key), "%s %.1f", math, (double)temperature);
    if (strcmp(key, made) == 0)
        return;
    (void)snprintf(made, sizeof(made), "%s", key);
    spec_requests(&truth, n_reqs(), temperature);
    spec_go(&plain, math, &truth, NULL, n_reqs());
    copy_requests(&calm);
    spec_go(&alone, math, &calm, NULL, n_reqs());
    spec_equal(&alone, &calm, &truth, n_reqs());
    assert_true(calm.n_blocks > 20 * n_reqs());
}

static void check(const struct spec_way *w, const char *math)
{
    copy_requests(&work);
    spec_go(w, math, &work, NULL, n_reqs());
    spec_equal(w, &work, &truth, n_reqs());
    if (w->drafts != NULL)
        assert_true(spec_same_drafts(w, &work, &calm, n_reqs()) > 10);
}

static const struct spec_drafts windows = {.choose = 1, .model = 1};
static const struct spec_drafts forced = {.choose = 1, .reject = 1, .model = 1};
static const struct spec_drafts whole = {.length = SPEC_BLOCK, .model = 1};
static const struct spec_drafts three = {.length = 3, .model = 1};

static const struct spec_way ways[] = {
    {"windows, unified, moved and preempted", DRAFTER "plugins.pool=unified exec-cpu.threads=2", 3,
     17, 2, 7, 1, &windows, 0, 0},
    {"windows, snapshot, split by ratio, preempted",
     DRAFTER "plugins.pool=split pool-split.style=ratio exec-cpu.rewind=snapshot", 3, 0, 1, 7, 2,
     &windows, 0, 0},
    {"forced rejections, replay, split uniform",
     DRAFTER "plugins.pool=split pool-split.style=uniform memory.bytes=64m", 4, 0, 0, 0, 3, &forced,
     0, 0},
    {"whole blocks, unified, in chunks of 5", DRAFTER "plugins.pool=unified", 6, 5, 1, 0, 4, &whole,
     0, 0},
    {"three, snapshot, preempted", DRAFTER "plugins.pool=unified exec-cpu.rewind=snapshot", 6, 0, 2,
     5, 5, &three, 0, 0},
    {"spec-dspark itself", DRAFTER "plugins.pool=unified", 6, 0, 0, 0, 6, NULL, 0, 0},
    {"spec-dspark of 2, preempted", DRAFTER "plugins.pool=unified spec-dspark.length=2", 6, 0, 2, 5,
     7, NULL, 0, 0},
};

/* Every `by`-th way. */
static void check_ways(const char *math, size_t by)
{
    uint32_t n_cached = 0;

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i += by) {
        check(&ways[i], math);
        n_cached += work.n_cached;
        assert_true(work.n_verified > 20);
    }
    assert_true(n_cached > 0 || xrig_world() > 1); /* those few begin together */
}

static void exact_sampled_tokens_bits_and_drafts_are_undisturbed(void **state)
{
    (void)state;
    make_truth("exact", 0.8f);
    check_ways("exact", xrig_world() > 1 && !xrig_is_full() ? 3 : 1);
}

static void fast_greedy_tokens_bits_and_drafts_are_undisturbed(void **state)
{
    (void)state;
    make_truth("fast", 0.0f);
    check_ways("fast", xrig_is_full() ? 1 : 2);
}

/* Every length from 1 to the block, both rewinds, both maths, more seeds. */
static void all_lengths_rewinds_and_seeds(void **state)
{
    (void)state;
    static const char *const maths[] = {"exact", "fast"};
    if (!xrig_is_full()) {
        print_message("skipped: runs with KEDGE_FULL=1\n");
        skip();
    }
    for (uint32_t k = 0; k < 4; k++) {
        make_truth(maths[k % 2], k & 2 ? 0.0f : 0.8f);
        check_ways(maths[k % 2], 1);
        for (uint32_t length = 1; length <= SPEC_BLOCK; length++) {
            struct spec_drafts d = {.length = length, .model = 1};
            struct spec_way w = ways[(k + length) % 3];
            w.name = "one length";
            w.drafts = &d;
            w.seed = 100 * k + length;
            check(&w, maths[k % 2]);
        }
    }
}

static void half_a_batch_that_drafts_and_pauses_change_no_draft(void **state)
{
    (void)state;
    struct spec_drafts d = {.length = 7, .odd_only = 1, .model = 1};
    struct spec_way w = {"half drafts", DRAFTER "plugins.pool=unified", .batch = 6, .drafts = &d};
    make_truth("exact", 0.8f);
    check(&w, "exact");
    d = (struct spec_drafts){.length = 7, .pause = 4, .model = 1};
    w.name = "four steps without, four with drafts";
    check(&w, "exact");
    assert_true(work.n_drafted > 100 && work.n_blocks < calm.n_blocks / 2);
}

static void a_prompt_from_the_prefix_cache_is_drafted_for_as_when_cold(void **state)
{
    (void)state;
    struct spec_drafts d = {.length = 7, .model = 1};
    struct spec_way cold = {"cold", DRAFTER "plugins.pool=unified prefix.enabled=no", .batch = 1,
                            .drafts = &d};
    struct spec_way warm = {"after hits", DRAFTER "plugins.pool=unified", .batch = 1, .drafts = &d};
    uint64_t accepted;
    make_truth("exact", 0.8f);
    check(&cold, "exact");
    assert_int_equal(work.n_cached, 0);
    accepted = work.n_accepted;
    check(&warm, "exact");
    assert_true(work.n_cached > 40);
    assert_int_equal(work.n_accepted, accepted);
}

static void a_draft_that_fails_is_no_draft(void **state)
{
    (void)state;
    struct spec_drafts d = {.length = 5, .model = 1, .fail = 3};
    struct spec_way w = {"a third of the drafts fails", DRAFTER "plugins.pool=unified", .batch = 3,
                         .drafts = &d};
    make_truth("exact", 0.8f);
    check(&w, "exact");
    assert_true(work.n_verified > 20 && work.stats.drafts_failed > 5);
}

static void a_nan_in_a_window_of_the_drafter_ends_its_request_only(void **state)
{
    (void)state;
    struct spec_drafts d = {.length = 4, .model = 1};
    struct spec_way w = {.name = "NaN",
                         .sets = DRAFTER "plugins.pool=unified",
                         .batch = 6,
                         .drafts = &d,
                         .nan_id = 3};
    make_truth("exact", 0.8f);
    w.nan_at = truth.reqs[2].n_prompt + 6;
    check(&w, "exact");
    assert_int_equal(work.finish[2], KG_FINISH_ERROR);
}

/* Prompt lookup on a backend with a drafter: its drafts are taken, the drafter's records kept. */
static void lookup_beside_a_drafter_is_exact(void **state)
{
    (void)state;
    struct spec_way w = {.name = "lookup",
                         .sets =
                             "model.draft=" TEST_ROOT
                             "/models/k3-tiny-dspark plugins.pool=unified spec-ngram.min_gain=0",
                         .batch = 6};
    make_truth("exact", 0.8f);
    check(&w, "exact");
    assert_true(work.n_verified > 20);
}

/* usage: spec_draft_bits [RANKS [EP]] */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_sampled_tokens_bits_and_drafts_are_undisturbed),
        cmocka_unit_test(half_a_batch_that_drafts_and_pauses_change_no_draft),
        cmocka_unit_test(a_prompt_from_the_prefix_cache_is_drafted_for_as_when_cold),
        cmocka_unit_test(a_draft_that_fails_is_no_draft),
        cmocka_unit_test(a_nan_in_a_window_of_the_drafter_ends_its_request_only),
        cmocka_unit_test(lookup_beside_a_drafter_is_exact),
        cmocka_unit_test(fast_greedy_tokens_bits_and_drafts_are_undisturbed),
        cmocka_unit_test(all_lengths_rewinds_and_seeds),
    };

    const struct CMUnitTest ranks[] = {
        cmocka_unit_test(exact_sampled_tokens_bits_and_drafts_are_undisturbed),
    };

    xrig_set_ranks(argc, argv);
    if (xrig_world() > 1 && !xrig_is_full())
        return cmocka_run_group_tests(ranks, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
