/* The cost surface against backends whose step time is known. */
#include "engine/cost.h"
#include "engine/index_policy.h"
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A backend that is only a step time. */
struct kg_exec {
    /* 0: linear, 1: stairs and dents, 2: refuses more than 8 sequences, 3: all, 4: rows cost ever
     * less, as where experts are shared */
    uint32_t kind;
    uint32_t n_asked;
};

static uint64_t linear(uint32_t n, uint32_t rows, uint64_t context)
{
    return 10000 + 300ull * n + 70ull * rows + context / 2;
}

static int profile(struct kg_exec *x, uint32_t n, uint32_t rows, uint32_t context, uint64_t *ns)
{
    x->n_asked++;
    if (x->kind == 3 || (x->kind == 2 && n > 8))
        return KG_EINVAL;
    *ns = linear(n, rows, (uint64_t)n * context);
    if (x->kind == 1)
        *ns = 1000 + rows / 8 * 5000 - rows % 3 * 900 + n % 5 * 300;
    if (x->kind == 4)
        *ns = 100000 + (uint64_t)(10000 * sqrt(rows));
    return KG_OK;
}

static uint64_t linear_draft(uint32_t n, uint32_t tokens, uint64_t context)
{
    return 2000 + 150ull * n + 40ull * n * tokens + context / 4;
}

static int profile_draft(struct kg_exec *x, uint32_t n, uint32_t tokens, uint32_t context,
                         uint64_t *ns)
{
    x->n_asked++;
    if (x->kind == 3 || (x->kind == 2 && n > 8))
        return KG_EINVAL;
    *ns = linear_draft(n, tokens, (uint64_t)n * context);
    if (x->kind == 1)
        *ns = 1000 + tokens * 300 - tokens % 3 * 900 + n % 5 * 300;
    return KG_OK;
}

static const struct kg_exec_ops ops = {
    .size = sizeof(ops), .profile = profile, .profile_draft = profile_draft};
/* Compiled before profile_draft was there. */
static const struct kg_exec_ops short_ops = {.size = offsetof(struct kg_exec_ops, profile_draft),
                                             .profile = profile,
                                             .profile_draft = profile_draft};

static void measure(struct kg_cost_table *t, uint32_t kind)
{
    struct kg_exec x = {.kind = kind};

    assert_int_equal(kg_cost_measure(t, &ops, &x, 64, 512, 65536), KG_OK);
    assert_true(x.n_asked > 5 && x.n_asked < 50);
}

static void a_linear_step_time_is_met_between_the_points_and_beyond(void **state)
{
    (void)state;
    struct kg_cost_table t;
    measure(&t, 0);
    for (uint32_t n = 1; n <= 64; n++) {
        for (uint32_t rows = 4 * n; rows <= 1000; rows += 7) {
            double want = (double)linear(n, rows, 5000);
            double got = (double)kg_cost_step_ns(&t, n, rows, 5000);
            assert_true(got > want * 0.999 - 2 && got < want * 1.001 + 2);
        }
    }
}

static void a_guess_beyond_few_windows_never_replaces_a_measured_point(void **state)
{
    (void)state;
    struct kg_cost_table t;
    measure(&t, 4);
    for (uint32_t n = 1; n <= 64; n *= 4) {
        for (uint32_t rows = n; rows <= 16 * n && rows <= 512; rows *= 2) {
            double want = 100000 + 10000 * sqrt(rows);
            double got = (double)kg_cost_step_ns(&t, n, rows, 0);
            assert_true(got > want * 0.999 && got < want * 1.001);
        }
    }
}

static void it_never_falls_whatever_the_clock_said(void **state)
{
    (void)state;
    struct kg_cost_table t;
    measure(&t, 1);
    for (uint32_t n = 1; n <= 100; n++) {
        for (uint32_t rows = n; rows <= 600; rows += 3) {
            uint64_t here = kg_cost_step_ns(&t, n, rows, 100);
            assert_true(kg_cost_step_ns(&t, n, rows + 1, 100) >= here);
            assert_true(kg_cost_step_ns(&t, n + 1, rows, 100) >= here);
            assert_true(kg_cost_step_ns(&t, n, rows, 200) >= here);
        }
    }
}

static void what_the_backend_cannot_do_is_left_out(void **state)
{
    (void)state;
    struct kg_cost_table t;
    struct kg_exec none = {.kind = 3};
    measure(&t, 2);
    assert_int_equal(t.n_seqs, 2); /* 1 and 4 */
    assert_true(kg_cost_step_ns(&t, 32, 64, 0) > 0);
    assert_int_equal(kg_cost_measure(&t, &ops, &none, 64, 512, 65536), KG_EINVAL);
}

static void a_draft_has_its_price(void **state)
{
    (void)state;
    struct kg_exec x = {0}, none = {.kind = 3}, few = {.kind = 2};
    struct kg_cost_table t = {0};
    assert_int_equal(kg_draft_cost_measure(&t.draft, &ops, &x, 64, 7, 65536), KG_OK);
    for (uint32_t n = 1; n <= 200; n++) {
        for (uint32_t tokens = 1; tokens <= 9; tokens++) {
            double want = (double)linear_draft(n, tokens, 5000);
            double got = (double)kg_cost_draft_ns(&t, n, tokens, 5000);
            assert_true(got > want * 0.999 - 2 && got < want * 1.001 + 2);
        }
    }
    assert_int_equal(kg_draft_cost_measure(&t.draft, &ops, &few, 64, 7, 65536), KG_OK);
    assert_int_equal(t.draft.n_seqs, 2); /* 1 and 4 */
    assert_int_equal(kg_draft_cost_measure(&t.draft, &ops, &none, 64, 7, 65536), KG_EINVAL);
}

static void the_price_of_a_draft_never_falls(void **state)
{
    (void)state;
    struct kg_exec x = {.kind = 1};
    struct kg_cost_table t = {0};
    assert_int_equal(kg_draft_cost_measure(&t.draft, &ops, &x, 64, 16, 65536), KG_OK);
    for (uint32_t n = 1; n <= 100; n++) {
        for (uint32_t tokens = 1; tokens <= 20; tokens++) {
            uint64_t here = kg_cost_draft_ns(&t, n, tokens, 100);
            assert_true(kg_cost_draft_ns(&t, n, tokens + 1, 100) >= here);
            assert_true(kg_cost_draft_ns(&t, n + 1, tokens, 100) >= here);
            assert_true(kg_cost_draft_ns(&t, n, tokens, 9000) >= here);
        }
    }
}

static void the_price_of_a_draft_follows_the_steps_and_never_falls(void **state)
{
    (void)state;
    struct kg_exec x = {0};
    struct kg_cost_table t = {0};
    uint32_t random = 1;
    assert_int_equal(kg_draft_cost_measure(&t.draft, &ops, &x, 64, 7, 65536), KG_OK);
    for (uint32_t k = 0; k < 4000; k++) { /* twice as slow as when it was measured */
        random = random * 1664525u + 1013904223u;
        uint32_t n = 1 + (random >> 8) % 64, tokens = 1 + (random >> 20) % 7;
        kg_draft_cost_learn(&t.draft, n, tokens, 5000, 2 * linear_draft(n, tokens, 5000));
        uint64_t here = kg_cost_draft_ns(&t, n, tokens, 5000);
        assert_true(kg_cost_draft_ns(&t, n, tokens + 1, 5000) >= here);
        assert_true(kg_cost_draft_ns(&t, n + 1, tokens, 5000) >= here);
    }
    for (uint32_t n = 1; n <= 64; n *= 4) {
        double want = 2.0 * (double)linear_draft(n, 7, 5000);
        double got = (double)kg_cost_draft_ns(&t, n, 7, 5000);
        assert_true(got > want * 0.8 && got < want * 1.25);
    }
    struct kg_draft_cost none = {0};
    kg_draft_cost_learn(&none, 4, 4, 0, 1000);
    assert_int_equal(none.n_seqs, 0);
}

static void without_a_drafter_a_draft_costs_nothing(void **state)
{
    (void)state;
    struct kg_exec x = {0};
    struct kg_cost_table t = {0};
    assert_int_equal(kg_draft_cost_measure(&t.draft, &short_ops, &x, 64, 7, 65536), KG_OK);
    assert_int_equal(kg_draft_cost_measure(&t.draft, &ops, &x, 64, 0, 65536), KG_OK);
    assert_int_equal(x.n_asked, 0);
    assert_int_equal(kg_cost_draft_ns(&t, 4, 7, 1000), 0);
}

/* A prompt's chunk: 5 us a row and 3 ns for each row and token before it, 20 us beside. */
static uint64_t prompt_ns(double from, double rows)
{
    return (uint64_t)(20000 + 5000 * rows + 3 * rows * (from + (rows - 1) / 2));
}

static int profile_prompts(struct kg_exec *x, uint32_t n, uint32_t rows, uint32_t context,
                           uint64_t *ns)
{
    (void)x;
    *ns = n * prompt_ns(context, (double)rows / n);
    return KG_OK;
}

static void a_prompt_costs_its_chunks_and_what_stands_before_them(void **state)
{
    (void)state;
    const struct kg_exec_ops prompts = {.size = sizeof(prompts), .profile = profile_prompts};
    struct kg_cost_table t;
    assert_int_equal(kg_cost_measure(&t, &prompts, NULL, 64, 512, 65536), KG_OK);
    for (uint32_t from = 0; from < 5000; from += 611) {
        for (uint32_t n = 1; n < 3000; n += 97) {
            double want = 0;
            for (uint32_t at = 0; at < n; at += 200)
                want += (double)prompt_ns(from + at, n - at < 200 ? n - at : 200);
            double got = (double)kg_cost_prefill_ns(&t, from, from + n, 200);
            assert_true(got > want * 0.999 - 5 && got < want * 1.001 + 5);
        }
    }
    assert_int_equal(kg_cost_prefill_ns(&t, 10, 10, 200), 0);
    assert_int_equal(kg_cost_prefill_ns(&t, 11, 10, 200), 0);
}

/* --- learning --- */

static void assert_monotone(const struct kg_cost_table *t)
{
    for (uint32_t i = 0; i < t->n_seqs; i++) {
        for (uint32_t j = 0; j < t->n_rows; j++) {
            assert_true(t->ns[i][j] >= 0);
            assert_true(j == 0 || t->ns[i][j] >= t->ns[i][j - 1]);
            assert_true(i == 0 || t->ns[i][j] >= t->ns[i - 1][j]);
        }
    }
    for (uint32_t j = 1; j < t->n_chunk; j++)
        assert_true(t->chunk_ns[j] >= t->chunk_ns[j - 1]);
}

static uint32_t next(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static void it_follows_a_machine_that_became_slower_or_quicker(void **state)
{
    (void)state;
    static const double factors[] = {3.0, 0.3};
    struct kg_cost_table t;
    uint32_t s = 5;
    for (uint32_t k = 0; k < 2; k++) {
        measure(&t, 0);
        for (uint32_t i = 0; i < 40000; i++) {
            uint32_t n = 1 + next(&s) % 64, rows = n * (1 + next(&s) % 8), from = next(&s) % 4096;
            double noise = 0.9 + 0.2 * (next(&s) % 1000) / 1000.0;
            uint64_t was = linear(n, rows, 0);
            kg_cost_learn(&t, n, rows, 0, (uint64_t)((double)was * factors[k] * noise));
            kg_cost_learn_chunk(&t, from, rows, (uint64_t)((double)was * factors[k] * noise));
            if (i % 100 == 0)
                assert_monotone(&t);
        }
        for (uint32_t n = 4; n <= 64; n += 5) {
            double want = (double)linear(n, 4 * n, 0) * factors[k];
            double got = (double)kg_cost_step_ns(&t, n, 4 * n, 0);
            assert_true(got > want * 0.8 && got < want * 1.25);
        }
    }
}

static void one_hiccup_moves_it_by_a_sixteenth_of_itself_at_most(void **state)
{
    (void)state;
    struct kg_cost_table t;
    measure(&t, 0);
    double before = (double)kg_cost_step_ns(&t, 4, 16, 0);
    kg_cost_learn(&t, 4, 16, 0, UINT64_C(1) << 50);
    assert_true((double)kg_cost_step_ns(&t, 4, 16, 0) <= before * 17 / 16 + 100);
    kg_cost_learn(&t, 1000000, 1u << 31, UINT64_C(1) << 60, 0); /* far off, and below 0 */
    kg_cost_learn_chunk(&t, UINT32_MAX, UINT32_MAX, 0);
    assert_monotone(&t);
}

/* The token price is measured near; far away a token costs a tenth of it here. */
static void long_contexts_that_cost_less_leave_something_for_short_ones(void **state)
{
    (void)state;
    struct kg_cost_table t;
    measure(&t, 0);
    double before = (double)kg_cost_step_ns(&t, 1, 1, 0);
    uint64_t context = (uint64_t)(20 * before / t.token_ns);
    for (uint32_t i = 0; i < 5000; i++)
        kg_cost_learn(&t, 1, 1, context, (uint64_t)(3 * before));
    assert_true((double)kg_cost_step_ns(&t, 1, 1, 0) > before * 0.4);
    assert_monotone(&t);
}

/* --- files --- */

static char path[] = "/tmp/kedge-cost-XXXXXX";

static void put(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void a_table_comes_back_from_its_file_to_the_last_bit(void **state)
{
    (void)state;
    struct kg_cost_table t, back;
    struct kg_error err;
    for (uint32_t kind = 0; kind < 3; kind++) {
        memset(&t, 0, sizeof(t));
        memset(&back, 0xee, sizeof(back));
        measure(&t, kind);
        t.token_ns = 1.0 / 3;
        t.ns[0][0] /= 7;
        if (kind == 1) {
            struct kg_exec x = {0};
            assert_int_equal(kg_draft_cost_measure(&t.draft, &ops, &x, 64, 7, 65536), KG_OK);
            t.draft.ns[0][0] /= 7;
        }
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(kg_cost_write(&t, "of a test", f), KG_OK);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(kg_cost_read(path, &back, &err), KG_OK);
        assert_int_equal(back.n_seqs, t.n_seqs);
        assert_int_equal(back.n_rows, t.n_rows);
        assert_int_equal(back.n_chunk, t.n_chunk);
        assert_true(back.token_ns == t.token_ns && back.prompt_token_ns == t.prompt_token_ns);
        for (uint32_t i = 0; i < t.n_seqs; i++)
            assert_memory_equal(back.ns[i], t.ns[i], t.n_rows * sizeof(double));
        assert_memory_equal(&back.draft, &t.draft, sizeof(t.draft));
        assert_memory_equal(back.chunk_ns, t.chunk_ns, t.n_chunk * sizeof(double));
    }
}

#define HEAD "kedge-surface 1\ntoken_ns 1\nprompt_token_ns 2\n"

static void a_small_file_says_what_it_says(void **state)
{
    (void)state;
    struct kg_cost_table t;
    struct kg_error err;
    put("# made by hand\n\n kedge-surface\t1 # version\n" HEAD);
    assert_int_equal(kg_cost_read(path, &t, &err), KG_ECONFIG); /* its first line twice */
    put(HEAD "step 1 1 10\nstep 1 2 30 # one\nstep 4 1 10\nstep 4 2 50\nchunk 1 7");
    assert_int_equal(kg_cost_read(path, &t, &err), KG_OK);
    assert_int_equal(kg_cost_step_ns(&t, 1, 1, 100), 110);
    assert_int_equal(kg_cost_step_ns(&t, 1, 3, 0), 50);
    assert_int_equal(kg_cost_step_ns(&t, 4, 2, 0), 50);
    assert_int_equal(kg_cost_prefill_ns(&t, 10, 13, 2), 14 + 2 * (10 + 11 + 12));
}

static void times_that_no_integer_holds_stay_above_zero_and_bounded(void **state)
{
    (void)state;
    struct kg_cost_table t;
    struct kg_error err;
    put("kedge-surface 1\ntoken_ns 1e15\nprompt_token_ns 1e15\nstep 1 1 1e15\nchunk 1 1e15\n"
        "draft_token_ns 0\ndraft 1 1 0\ndraft 1 2 1e15\ndraft 4 1 1e15\ndraft 4 2 1e15\n");
    assert_int_equal(kg_cost_read(path, &t, &err), KG_OK);
    assert_int_equal(kg_cost_step_ns(&t, 1, 1, 1u << 20), 1000000000000000000);
    assert_int_equal(kg_cost_prefill_ns(&t, 0, 1u << 20, 512), 1000000000000000000);
    assert_int_equal(kg_cost_draft_ns(&t, 64, 64, 0), 0); /* its two lines crossed */
}

static void a_wrong_file_is_refused_by_line_and_reason(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } files[] = {
        {"", ":0: the file ends without token_ns"},
        {"# nothing\n", ":1: the file ends without token_ns"},
        {"kedge-cost 1\n", ":1: wanted \"kedge-surface 1\" on the first line"},
        {"kedge-surface 2\n", ":1: wanted \"kedge-surface 1\""},
        {"kedge-surface 1 1\n", ":1: wanted \"kedge-surface 1\""},
        {"kedge-surface 1\ntoken_ns -1\n", ":2: token_ns: wanted a number from 0 to 1e15"},
        {"kedge-surface 1\ntoken_ns nan\n", ":2: token_ns: wanted a number"},
        {"kedge-surface 1\ntoken_ns 1e16\n", ":2: token_ns: wanted a number"},
        {"kedge-surface 1\ntoken_ns\n", ":2: token_ns: wanted 1 numbers"},
        {"kedge-surface 1\ntoken_ns 1 2\n", ":2: token_ns: wanted 1 numbers"},
        {"kedge-surface 1\ntoken_ns 1\ntoken_ns 1\n", ":3: token_ns: given twice"},
        {"kedge-surface 1\nprompt_token_ns 1\ntoken_ns 1\n", ":3: token_ns stands behind"},
        {"kedge-surface 1\nhello 1\n", ":2: hello: no such key"},
        {HEAD "chunk 1 2\n", ":4: the file ends without step"},
        {HEAD "step 1 1 2\n", ":4: the file ends without chunk"},
        {HEAD "step 4 1 2\n", ":4: sequences \"4\": 1 comes next"},
        {HEAD "step 1 2 2\n", ":4: rows \"2\": 1 comes next"},
        {HEAD "step 1 1 2\nstep 1 3 2\n", ":5: rows \"3\": 2 comes next"},
        {HEAD "step 1 1 2\nstep 1 1 2\n", ":5: rows \"1\": 2 comes next"},
        {HEAD "step 1 1 2\nstep 1 2 1\n", ":5: step 1 2: 1 ns, less than with fewer rows"},
        {HEAD "step 1 1 2\nstep 4 1 1\n", ":5: step 4 1: 1 ns, less than with fewer sequences"},
        {HEAD "step 1 1 2\nstep 1 2 3\nstep 4 1 2\nstep 16 1 2\n", ":7: sequences \"16\": 4 comes"},
        {HEAD "step 1 1 2\nstep 1 2 3\nstep 4 1 2\nchunk 1 2\n",
         ":7: the file ends before step 4 2"},
        {HEAD "step 1 1 2\nstep 4 1 2\nstep 4 2 2\n", ":6: sequences \"4\": 16 comes next"},
        {HEAD "step 1 1 2\nchunk 1 2\nstep 4 1 2\n", ":6: step stands behind chunk"},
        {HEAD "step 1 1 2\nchunk 1 2\nchunk 2 1\n", ":6: chunk 2: 1 ns, less than"},
        {HEAD "step 1 1 2\nchunk 2 2\n", ":5: rows \"2\": 1 comes next"},
        {HEAD "step 1 1 0x10\n", ":4: ns: wanted a number"},
        {HEAD "step 1 1 1e999\n", ":4: ns: wanted a number"},
        {HEAD "step 18446744073709551617 1 1\n", ":4: sequences \"18446744073709551617\": 1"},
        {HEAD "step 1 1 2\nchunk 1 2\ndraft 1 1 5\ndraft_token_ns 1\n",
         ":7: draft_token_ns stands"},
        {HEAD "step 1 1 2\nchunk 1 2\ndraft_token_ns 1\n", ":6: the file ends without draft"},
        {HEAD "step 1 1 2\nchunk 1 2\ndraft 1 0 5\n", ":6: tokens \"0\": wanted 1 .. 65536"},
        {HEAD "step 1 1 2\nchunk 1 2\ndraft 1 4 5\ndraft 1 4 6\n", ":7: tokens \"4\": wanted 5 .."},
        {HEAD "step 1 1 2\nchunk 1 2\ndraft 1 4 5\ndraft 1 7 4\n", ":7: draft 1 7: 4 ns, less"},
        {HEAD "step 1 1 2\nchunk 1 2\ndraft 1 4 5\ndraft 4 3 9\n",
         ":7: tokens \"3\": 4 comes next"},
        {HEAD "step 1 1 2\nchunk 1 2\ndraft 1 4 5\ndraft 4 4 4\n", ":7: draft 4 4: 4 ns, less"},
        {HEAD "step 1 1 2\nchunk 1 2\ndraft 1 4 5\ndraft 16 4 9\n",
         ":7: sequences \"16\": 4 comes"},
        {HEAD "step 1 1 2\nchunk 1 2\ndraft_token_ns 1\ndraft 1 4 5\ndraft 1 7 9\ndraft 4 4 9\n",
         ":9: the file ends before draft 4 7"},
    };
    struct kg_cost_table t = {.n_seqs = 77};
    struct kg_error err;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        put(files[i].text);
        assert_int_equal(kg_cost_read(path, &t, &err), KG_ECONFIG);
        if (strstr(err.text, files[i].says) == NULL || strstr(err.text, path) != err.text)
            fail_msg("file %zu: \"%s\", wanted \"%s\"", i, err.text, files[i].says);
        assert_int_equal(t.n_seqs, 77); /* nothing is set */
    }
    assert_int_equal(kg_cost_read("/nowhere/at/all", &t, &err), KG_ENOENT);
    assert_int_equal(kg_cost_read("/tmp", &t, &err), KG_EIO);
    assert_int_equal(kg_cost_read("/dev/zero", &t, &err), KG_ECONFIG); /* ends, too */
    assert_non_null(strstr(err.text, "/dev/zero:1: a byte of 0"));
}

static void a_file_of_too_many_points_or_of_any_bytes_is_refused(void **state)
{
    (void)state;
    struct kg_cost_table t;
    struct kg_error err;
    uint32_t s = 9;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    (void)fprintf(f, HEAD);
    for (uint32_t j = 0; j < 40; j++)
        (void)fprintf(f, "step 1 %llu 1\n", 1ull << j);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(kg_cost_read(path, &t, &err), KG_ECONFIG);
    assert_non_null(strstr(err.text, ":22: step 1 262144: more points than the grid can have"));
    for (uint32_t k = 0; k < 300; k++) { /* a good file with bytes changed */
        char text[400];
        uint32_t n = (uint32_t)snprintf(text, sizeof(text),
                                        HEAD "step 1 1 10\nstep 1 2 30\n"
                                             "step 4 1 10\nstep 4 2 50\n"
                                             "chunk 1 7\nchunk 2 8\n");
        for (uint32_t i = 0; i <= k % 8; i++)
            text[next(&s) % n] = (char)next(&s);
        f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(text, 1, n, f), n);
        assert_int_equal(fclose(f), 0);
        if (kg_cost_read(path, &t, &err) == KG_OK) {
            assert_monotone(&t);
            assert_true(t.n_seqs >= 1 && t.n_rows >= 1 && t.n_chunk >= 1);
        } else {
            assert_true(err.rc == KG_ECONFIG && strstr(err.text, path) == err.text);
        }
    }
    char line[1000];
    memset(line, '1', sizeof(line) - 1);
    line[sizeof(line) - 1] = '\0';
    put(line);
    assert_int_equal(kg_cost_read(path, &t, &err), KG_ECONFIG);
    assert_non_null(strstr(err.text, ":1: a line over"));
}

/* --- in the engine --- */

static struct kg_cost_table copy_of(const struct rig *r)
{
    assert_non_null(kg_engine_cost(r->engine));
    return *kg_engine_cost(r->engine);
}

static void a_measured_surface_moves_with_the_steps_and_a_given_one_never(void **state)
{
    (void)state;
    struct kg_cost_table given;
    struct rig r;
    measure(&given, 0);
    for (uint32_t k = 0; k < 2; k++) {
        struct rig_conf conf = {.exec_opts = "base_ns=20000 per_row_ns=1000",
                                .cost = k == 0,
                                .cost_table = k == 1 ? &given : NULL};
        rig_open(&r, &conf);
        struct kg_cost_table before = copy_of(&r);
        if (k == 1)
            assert_memory_equal(&before, &given, sizeof(given));
        for (uint64_t id = 1; id <= 6; id++)
            assert_int_equal(rig_submit(&r, id, 30, 20, NULL), KG_OK);
        (void)rig_run(&r, 1000);
        struct kg_cost_table after = copy_of(&r);
        assert_monotone(&after);
        /* exec-null's steps cost what its profile says: so a measured table must only not move
         * away from the truth, and a given one must not move at all. */
        if (k == 1)
            assert_memory_equal(&before, &after, sizeof(after));
        else
            assert_in_range(kg_cost_step_ns(&after, 1, 1, 0),
                            kg_cost_step_ns(&before, 1, 1, 0) * 9 / 10,
                            kg_cost_step_ns(&before, 1, 1, 0) * 11 / 10);
        rig_close(&r);
    }
}

static const struct kg_exec_ops *real_ops;

static int slow_wait(struct kg_exec *exec, struct kg_result *result, struct kg_error *err)
{
    int rc = real_ops->wait(exec, result, err);
    result->step_ns *= 3;
    return rc;
}

static const struct kg_exec_ops *make_slow(const struct kg_exec_ops *null_ops)
{
    static struct kg_exec_ops slow;
    real_ops = null_ops;
    slow = *null_ops;
    slow.wait = slow_wait;
    return &slow;
}

static void steps_three_times_as_long_as_measured_raise_the_surface(void **state)
{
    (void)state;
    struct rig_conf conf = {
        .exec_opts = "base_ns=20000 per_row_ns=1000", .cost = 1, .wrap = make_slow};
    struct rig r;
    rig_open(&r, &conf);
    struct kg_cost_table before = copy_of(&r);
    for (uint64_t id = 1; id <= 40; id++) {
        assert_int_equal(rig_submit(&r, id, 30, 60, NULL), KG_OK);
        (void)rig_run(&r, 1000);
    }
    struct kg_cost_table after = copy_of(&r);
    assert_monotone(&after);
    assert_true(kg_cost_step_ns(&after, 1, 1, 0) > kg_cost_step_ns(&before, 1, 1, 0) * 2);
    assert_true(kg_cost_prefill_ns(&after, 0, 16, 16) > kg_cost_prefill_ns(&before, 0, 16, 16));
    rig_close(&r);
}

/* Three states: two prompts leave one each, the third's checkpoint takes the place of one of them.
 * By tokens alone the long prompt is worth more; where any chunk costs the same the short one is,
 * for it takes less memory. Returns what prompt `again` finds when it comes again. */
static uint32_t found_by(const struct kg_cost_table *surface, uint32_t again)
{
    static const uint32_t n_prompt[] = {9, 33, 17};
    struct rig_conf conf = {.pool = "split",
                            .n_states = 3,
                            .max_seqs = 1,
                            .prefill_chunk = 64,
                            .checkpoint = 1 + KG_CKPT_BOUNDARY,
                            .cost_table = surface};
    struct kg_engine_stats s;
    struct rig r;
    rig_open(&r, &conf);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(rig_submit(&r, 1 + i, n_prompt[i], 1, NULL), KG_OK);
        (void)rig_run(&r, 100);
    }
    kg_engine_stats(r.engine, &s);
    assert_int_equal(s.evicted[KG_STATE], 1);
    assert_int_equal(rig_submit(&r, 1 + again, n_prompt[again], 1, NULL), KG_OK);
    (void)rig_run(&r, 100);
    uint32_t n = r.outs[1 + again].end.n_cached;
    rig_close(&r);
    return n;
}

static void eviction_goes_by_what_the_surface_says(void **state)
{
    (void)state;
    struct kg_cost_table flat;
    assert_int_equal(found_by(NULL, 0), 0);
    assert_int_equal(found_by(NULL, 1), 32);
    measure(&flat, 0);
    flat.prompt_token_ns = 0;
    for (uint32_t j = 0; j < flat.n_chunk; j++)
        flat.chunk_ns[j] = 1e6;
    assert_int_equal(found_by(&flat, 0), 8);
    assert_int_equal(found_by(&flat, 1), 0);
}

static int make_path(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 || close(fd) != 0;
}

static int drop_path(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_linear_step_time_is_met_between_the_points_and_beyond),
        cmocka_unit_test(a_guess_beyond_few_windows_never_replaces_a_measured_point),
        cmocka_unit_test(it_never_falls_whatever_the_clock_said),
        cmocka_unit_test(what_the_backend_cannot_do_is_left_out),
        cmocka_unit_test(a_draft_has_its_price),
        cmocka_unit_test(the_price_of_a_draft_never_falls),
        cmocka_unit_test(the_price_of_a_draft_follows_the_steps_and_never_falls),
        cmocka_unit_test(without_a_drafter_a_draft_costs_nothing),
        cmocka_unit_test(a_prompt_costs_its_chunks_and_what_stands_before_them),
        cmocka_unit_test(it_follows_a_machine_that_became_slower_or_quicker),
        cmocka_unit_test(one_hiccup_moves_it_by_a_sixteenth_of_itself_at_most),
        cmocka_unit_test(long_contexts_that_cost_less_leave_something_for_short_ones),
        cmocka_unit_test(a_table_comes_back_from_its_file_to_the_last_bit),
        cmocka_unit_test(a_small_file_says_what_it_says),
        cmocka_unit_test(times_that_no_integer_holds_stay_above_zero_and_bounded),
        cmocka_unit_test(a_wrong_file_is_refused_by_line_and_reason),
        cmocka_unit_test(a_file_of_too_many_points_or_of_any_bytes_is_refused),
        cmocka_unit_test(a_measured_surface_moves_with_the_steps_and_a_given_one_never),
        cmocka_unit_test(eviction_goes_by_what_the_surface_says),
        cmocka_unit_test(steps_three_times_as_long_as_measured_raise_the_surface),
    };
    return cmocka_run_group_tests(tests, make_path, drop_path);
}
