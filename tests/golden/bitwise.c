/*
 * The promise of exec-cpu: tokens and logits bits of a request depend on the request alone. One
 * set of prompts runs alone and whole first; every other way of running it must give the same
 * hash of every row of logits and the same tokens.
 */
#include "exec_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FULL_PROMPTS 40

static struct xreq truth[FULL_PROMPTS], work[FULL_PROMPTS];

static uint32_t n_prompts(void)
{
    return xrig_is_full() ? FULL_PROMPTS : xrig_world() > 1 ? 6 : 12;
}

static void expect_equal(const struct xreq *got, uint32_t n, const char *what)
{
    for (uint32_t i = 0; i < n; i++) {
        if (got[i].n != truth[i].n)
            fail_msg("%s: request %u has %u tokens, alone %u", what, i, got[i].n, truth[i].n);
        for (uint32_t j = 0; j + 1 < got[i].n; j++) {
            if (got[i].bits[j] != truth[i].bits[j])
                fail_msg("%s: request %u: logits at position %u differ", what, i, j);
        }
        if (memcmp(got[i].tokens, truth[i].tokens, got[i].n * sizeof(uint32_t)) != 0)
            fail_msg("%s: request %u: tokens differ", what, i);
    }
}

struct way {
    const char *name;
    struct xrig_options o;
    struct xrun run;
};

static void go(const struct way *w, uint32_t math, float temperature, struct xreq *out)
{
    struct xrig_options o = w->o;
    struct xrig x;

    o.model = "models/k3-tiny";
    o.math = math;
    o.max_seqs = 32;
    o.max_rows = 512;
    o.n_pages = 1024;
    o.n_states = 40;
    xreq_prompts(out, n_prompts(), temperature);
    xrig_open(&x, &o);
    xrun(&x, out, n_prompts(), &w->run);
    xrig_close(&x);
}

/* isa 0 is the best of the machine. */
static const struct way ways[] = {
    {"batch of 32, whole prompts", {.page_tokens = 16, .threads = 2}, {.batch = 32}},
    {"batch of 32, one row a step, pages of 1",
     {.page_tokens = 3, .threads = 1},
     {.batch = 32, .chunk = 1}},
    {"batch of 32, chunks of 17, moves",
     {.page_tokens = 16, .threads = 2},
     {.batch = 32, .chunk = 17, .moves = 16}},
    {"batch of 7, chunks of 64, split states, preempted",
     {.page_tokens = 64, .threads = 2, .parts_per_slot = 1},
     {.batch = 7, .chunk = 64, .moves = 3, .preempt = 3}},
    {"batch of 7, whole prompts, sequence-parallel",
     {.page_tokens = 16, .threads = 1, .sp_rows = 1},
     {.batch = 7}},
    {"batch of 32, chunks of 21, sequence-parallel from 60 rows on, moves, preempted",
     {.page_tokens = 16, .threads = 1, .sp_rows = 60},
     {.batch = 32, .chunk = 21, .moves = 5, .preempt = 4}},
    {"batch of 32, whole, states in entries of 4 parts, moves, preempted",
     {.page_tokens = 5, .threads = 1, .parts_per_slot = 4},
     {.batch = 32, .moves = 64, .preempt = 2}},
};

static void check_ways(uint32_t math, float temperature)
{
    static const struct way alone = {"alone", {.page_tokens = 16, .threads = 1}, {.batch = 1}};

    go(&alone, math, temperature, truth);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        go(&ways[i], math, temperature, work);
        expect_equal(work, n_prompts(), ways[i].name);
    }
}

static void exact_greedy_bits_are_the_requests_own(void **state)
{
    (void)state;
    check_ways(0, 0.0f);
}

static void fast_sampled_bits_are_the_requests_own(void **state)
{
    (void)state;
    check_ways(1, 0.8f);
}

static void exact_sampled_bits_are_the_requests_own(void **state)
{
    (void)state;
    if (xrig_is_full())
        check_ways(0, 0.8f);
}

static void fast_greedy_bits_are_the_requests_own(void **state)
{
    (void)state;
    if (xrig_is_full())
        check_ways(1, 0.0f);
}

/* In exact math the instruction set does not matter either. */
static void exact_bits_are_the_same_on_every_instruction_set(void **state)
{
    static const char *names[] = {"best", "ref", "avx2", "avx512"};

    (void)state;
    for (uint32_t isa = 0; isa < 4; isa++) {
        struct way w = {names[isa], {.page_tokens = 16, .threads = 2, .isa = isa}, {.batch = 32}};
        if (isa == 1 && !xrig_is_full())
            continue;
        go(&w, 0, 0.0f, isa == 0 ? truth : work);
        if (isa > 0)
            expect_equal(work, n_prompts(), names[isa]);
    }
}

/* A second request takes the first one's pages and the state written on the way. */
static void resume(struct xrig *x, struct xreq *first, struct xreq *second, uint32_t chunk)
{
    struct xrun how = {.batch = 1, .chunk = chunk, .moves = 4};

    second->past = first->order_at;
    second->n_pages = second->n_shared = first->order_at / x->layout.page_tokens;
    memcpy(second->pages, first->pages, second->n_pages * sizeof(uint32_t));
    second->state_src = first->order_unit;
    xrun(x, second, 1, &how);
}

static void a_checkpoint_inside_a_chunk_resumes_with_the_same_bits(void **state)
{
    struct xrig_options o = {.model = "models/k3-tiny",
                             .threads = 2,
                             .page_tokens = 8,
                             .max_seqs = 8,
                             .max_rows = 512,
                             .parts_per_slot = 2};
    static const uint32_t chunks[] = {0, 5, 8, 24};
    struct xrig x;

    (void)state;
    xreq_prompts(truth, 8, 0.0f);
    xrig_open(&x, &o);
    for (uint32_t c = 0; c < 4; c++) {
        struct xrun how = {.batch = 1, .chunk = chunks[c]};
        xreq_prompts(work, 8, 0.0f);
        work[3].order_at = (work[3].n_prompt - 1) / 8 * 8;
        truth[3] = work[3];
        xrun(&x, &truth[3], 1, &how);
        assert_true(truth[3].ordered);
        work[3].order_at = 0;
        resume(&x, &truth[3], &work[3], chunks[3 - c]);
        for (uint32_t j = truth[3].order_at; j + 1 < truth[3].n; j++)
            assert_int_equal(work[3].bits[j], truth[3].bits[j]);
        assert_memory_equal(work[3].tokens, truth[3].tokens, truth[3].n * sizeof(uint32_t));
    }
    xrig_close(&x);
}

/* usage: bitwise [RANKS [EP]] */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_greedy_bits_are_the_requests_own),
        cmocka_unit_test(fast_sampled_bits_are_the_requests_own),
        cmocka_unit_test(exact_sampled_bits_are_the_requests_own),
        cmocka_unit_test(fast_greedy_bits_are_the_requests_own),
        cmocka_unit_test(exact_bits_are_the_same_on_every_instruction_set),
        cmocka_unit_test(a_checkpoint_inside_a_chunk_resumes_with_the_same_bits),
    };

    xrig_set_ranks(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
