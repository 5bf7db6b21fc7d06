/* Acceptance by coupling against decoding one token at a time, each token with counts made anew. */
#include "model/accept.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 24
#define DRAFTS 6
#define TOP 2
#define HISTORY 40

struct world {
    uint64_t random;
    float logits[1 + DRAFTS][VOCAB];
    uint32_t history[HISTORY]; /* known tokens, then drafts */
    uint32_t n, output_start;
    struct kg_sampling sampling;
};

static uint32_t next(struct world *w, uint32_t n)
{
    w->random = w->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((w->random >> 33) % n);
}

static void *scratch(void)
{
    static uint64_t mem[8192];

    assert_true(kg_accept_scratch_bytes(VOCAB) <= sizeof(mem));
    return mem;
}

static void make(struct world *w, uint64_t seed)
{
    memset(w, 0, sizeof(*w));
    w->random = seed;
    for (uint32_t j = 0; j <= DRAFTS; j++) {
        for (uint32_t v = 0; v < VOCAB; v++)
            w->logits[j][v] = (float)next(w, 4000) / 1000.0f - 2.0f;
    }
    w->output_start = 5 + next(w, 5);
    w->n = w->output_start + next(w, 8);
    for (uint32_t i = 0; i < HISTORY; i++)
        w->history[i] = next(w, VOCAB);
    w->sampling.temperature = next(w, 3) == 0 ? 0.0f : 0.7f;
    w->sampling.seed = seed;
    w->sampling.n_logprobs = TOP;
    w->sampling.min_tokens = next(w, 9);
    w->sampling.n_stop_ids = 3;
    for (uint32_t i = 0; i < 3; i++)
        w->sampling.stop_ids[i] = next(w, VOCAB);
    if (next(w, 2)) {
        w->sampling.repetition_penalty = 1.3f;
        w->sampling.frequency_penalty = 0.5f;
        w->sampling.presence_penalty = 0.25f;
    }
}

static struct kg_token_counts *count(const uint32_t *tokens, uint32_t n, uint32_t output_start)
{
    static struct kg_token_counts counts;
    static uint64_t mem[1024];

    assert_true(kg_token_counts_bytes(VOCAB) <= sizeof(mem));
    memset(mem, 0, sizeof(mem));
    kg_token_counts_init(&counts, mem, VOCAB);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(kg_token_counts_add(&counts, tokens[i], i >= output_start), KG_OK);
    return &counts;
}

/* The token at row j after `n` known tokens. */
static struct kg_sample_pick one(struct world *w, uint32_t j, const uint32_t *known, uint32_t n,
                                 struct kg_logprob *lp)
{
    struct kg_sample_row row = {.logits = w->logits[j],
                                .vocab = VOCAB,
                                .position = n,
                                .n_output = n - w->output_start,
                                .sampling = &w->sampling,
                                .counts = count(known, n, w->output_start)};
    struct kg_sample_pick pick;

    kg_sample(&row, scratch(), &pick, lp);
    return pick;
}

struct run {
    uint32_t tokens[1 + DRAFTS];
    struct kg_logprob logprobs[1 + DRAFTS][1 + TOP];
    struct kg_accepted got;
};

static void run_window(struct world *w, uint32_t n_draft, uint32_t left, uint32_t force,
                       struct run *r)
{
    struct kg_accept a = {.logits = w->logits[0],
                          .vocab = VOCAB,
                          .position = w->n,
                          .output_start = w->output_start,
                          .n_draft = n_draft,
                          .left = left,
                          .force = force,
                          .drafts = w->history + w->n,
                          .sampling = &w->sampling,
                          .counts = count(w->history, w->n, w->output_start),
                          .tokens = r->tokens,
                          .logprobs = r->logprobs[0]};

    memset(r, 0, sizeof(*r));
    kg_accept_run(&a, scratch(), &r->got);
}

/* Drafts of which the first `right` are what plain decoding says. */
static void draft(struct world *w, uint32_t right)
{
    for (uint32_t j = 0; j < DRAFTS; j++) {
        uint32_t token = one(w, j, w->history, w->n + j, NULL).token;
        w->history[w->n + j] = j < right ? token : (token + 1) % VOCAB;
    }
}

static void a_window_gives_what_one_token_at_a_time_gives(void **state)
{
    uint32_t stops = 0, cuts = 0, all = 0, penalised = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        struct world w;
        struct run r;
        make(&w, seed);
        uint32_t right = next(&w, DRAFTS + 1), n_draft = next(&w, DRAFTS + 1);
        uint32_t left = 1 + next(&w, 9), known[HISTORY], n = w.n, flags = 0;
        draft(&w, right);
        run_window(&w, n_draft, left, KG_NONE, &r);
        memcpy(known, w.history, sizeof(known));
        for (uint32_t j = 0;; j++) { /* plain: the window's row j is the row of token n */
            struct kg_logprob lp[1 + TOP];
            struct kg_sample_pick p = one(&w, j, known, n, lp);
            assert_true(j < r.got.n_tokens);
            assert_int_equal(r.tokens[j], p.token);
            assert_memory_equal(r.logprobs[j], lp, sizeof(lp));
            int drafted = j < n_draft && w.history[n] == p.token;
            known[n++] = p.token;
            flags = p.flags;
            if (flags != 0 || n - w.n == left || !drafted) {
                assert_int_equal(r.got.n_tokens, j + 1);
                assert_int_equal(r.got.n_accepted, j + (uint32_t)drafted);
                break;
            }
        }
        assert_int_equal(r.got.flags, flags);
        stops += flags == KG_RES_STOP && r.got.n_tokens > 1;
        cuts += r.got.n_tokens == left && left > 1;
        all += r.got.n_tokens == 1 + n_draft && n_draft > 2;
        penalised += kg_sampling_has_penalty(&w.sampling) && r.got.n_accepted > 1;
    }
    assert_true(stops > 50 && cuts > 50 && all > 50 && penalised > 50);
}

static void rows_behind_the_first_rejection_are_not_looked_at(void **state)
{
    struct world w;
    struct run r, clean;

    (void)state;
    make(&w, 7);
    w.sampling.n_stop_ids = 0;
    draft(&w, 2);
    run_window(&w, DRAFTS, 20, KG_NONE, &clean);
    assert_int_equal(clean.got.n_tokens, 3);
    w.logits[3][4] = NAN;
    run_window(&w, DRAFTS, 20, KG_NONE, &r);
    assert_memory_equal(&r, &clean, sizeof(r));
    w.logits[2][4] = NAN;
    run_window(&w, DRAFTS, 20, KG_NONE, &r);
    assert_int_equal(r.got.flags, KG_RES_NAN);
    assert_int_equal(r.got.n_tokens, 0);
}

static void hidden_vectors_of_rows_that_count_must_be_finite(void **state)
{
    struct world w;
    float hidden[1 + DRAFTS][4] = {{0}};
    uint32_t tokens[1 + DRAFTS];
    struct kg_accepted got;

    (void)state;
    make(&w, 9);
    w.sampling.n_stop_ids = 0;
    draft(&w, 3);
    for (uint32_t bad = 0; bad <= DRAFTS; bad++) {
        struct kg_accept a = {.logits = w.logits[0],
                              .hidden = hidden[0],
                              .vocab = VOCAB,
                              .width = 4,
                              .position = w.n,
                              .output_start = w.output_start,
                              .n_draft = DRAFTS,
                              .left = 20,
                              .force = KG_NONE,
                              .drafts = w.history + w.n,
                              .sampling = &w.sampling,
                              .counts = count(w.history, w.n, w.output_start),
                              .tokens = tokens};
        memset(hidden, 0, sizeof(hidden));
        hidden[bad][2] = INFINITY;
        kg_accept_run(&a, scratch(), &got);
        assert_int_equal(got.flags, bad <= 3 ? KG_RES_NAN : 0);
        assert_int_equal(got.n_tokens, bad <= 3 ? 0 : 4);
    }
}

static void forced_lengths_are_exact_and_report_the_forced_token(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct world w;
        struct run r;
        make(&w, seed);
        w.sampling.n_stop_ids = 0;
        draft(&w, next(&w, DRAFTS + 1));
        for (uint32_t force = 0; force <= DRAFTS + 2; force++) {
            uint32_t want = force < DRAFTS ? force : DRAFTS;
            run_window(&w, DRAFTS, 20, force, &r);
            assert_int_equal(r.got.n_accepted, want);
            assert_int_equal(r.got.n_tokens, want + 1);
            assert_memory_equal(r.tokens, w.history + w.n, want * sizeof(uint32_t));
            for (uint32_t j = 0; j <= want; j++)
                assert_int_equal(r.logprobs[j][0].id, r.tokens[j]);
        }
    }
}

static void a_forced_stop_id_stops_once_min_tokens_are_out(void **state)
{
    struct world w;
    struct run r;

    (void)state;
    make(&w, 3);
    w.n = w.output_start;
    w.sampling.n_stop_ids = 1;
    w.sampling.stop_ids[0] = 5;
    w.sampling.min_tokens = 2;
    for (uint32_t j = 0; j < DRAFTS; j++)
        w.history[w.n + j] = 5;
    run_window(&w, DRAFTS, 20, DRAFTS, &r);
    assert_int_equal(r.got.n_tokens, 3);
    assert_int_equal(r.got.n_accepted, 3);
    assert_int_equal(r.got.flags, KG_RES_STOP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_gives_what_one_token_at_a_time_gives),
        cmocka_unit_test(rows_behind_the_first_rejection_are_not_looked_at),
        cmocka_unit_test(hidden_vectors_of_rows_that_count_must_be_finite),
        cmocka_unit_test(forced_lengths_are_exact_and_report_the_forced_token),
        cmocka_unit_test(a_forced_stop_id_stops_once_min_tokens_are_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
