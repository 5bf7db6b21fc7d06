/* Expansion of block ids: equal ids give equal tokens, open ends are taken from the continuation.
 */
#include "experiment/expand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 163840

struct world {
    struct kg_trace *t;
    struct kg_expand *x;
    uint32_t **prompt, **answer; /* [n] */
};

static void open_world(struct world *w, const char *text, uint32_t format, uint64_t seed)
{
    const struct kg_trace_conf conf = {.format = format, .scale = 1};
    struct kg_error err = {0};

    if (kg_trace_read_mem("mem", text, strlen(text), &conf, &w->t, &err) != KG_OK ||
        kg_expand_create(w->t, seed, VOCAB, &w->x, &err) != KG_OK) {
        fail_msg("%s", err.text);
    }
    w->prompt = calloc(w->t->n, sizeof(*w->prompt));
    w->answer = calloc(w->t->n, sizeof(*w->answer));
    for (uint32_t i = 0; i < w->t->n; i++) {
        w->prompt[i] = malloc(w->t->reqs[i].n_prompt * sizeof(uint32_t));
        w->answer[i] = malloc(w->t->reqs[i].n_output * sizeof(uint32_t));
        kg_expand_prompt(w->x, i, w->prompt[i]);
        kg_expand_answer(w->x, i, w->answer[i]);
    }
}

static void close_world(struct world *w)
{
    for (uint32_t i = 0; i < w->t->n; i++) {
        free(w->prompt[i]);
        free(w->answer[i]);
    }
    free(w->prompt);
    free(w->answer);
    kg_expand_destroy(w->x);
    kg_trace_free(w->t);
}

/* Equal leading tokens of prompt i (with its answer behind it) and prompt j. */
static uint32_t common(const struct world *w, uint32_t i, uint32_t j)
{
    uint32_t n = w->t->reqs[i].n_prompt, m = w->t->reqs[j].n_prompt, k = 0;

    while (k < m && k < n + w->t->reqs[i].n_output &&
           (k < n ? w->prompt[i][k] : w->answer[i][k - n]) == w->prompt[j][k]) {
        k++;
    }
    return k;
}

#define LINE(in, out, ids)                                                           \
    "{\"timestamp\":0,\"block\":16,\"input_length\":" #in ",\"output_length\":" #out \
    ",\"hash_ids\":" ids "}\n"

static void equal_ids_are_equal_tokens_and_others_are_not(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, LINE(40, 4, "[1,2,3]") LINE(48, 4, "[1,2,4]") LINE(32, 4, "[9,2]"),
               KG_TRACE_NATIVE, 1);
    assert_memory_equal(w.prompt[0], w.prompt[1], 32 * sizeof(uint32_t));
    assert_memory_equal(w.prompt[0] + 16, w.prompt[2] + 16, 16 * sizeof(uint32_t));
    assert_memory_not_equal(w.prompt[0], w.prompt[2], 16 * sizeof(uint32_t));
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t k = 0; k < w.t->reqs[i].n_prompt; k++) {
            assert_true(w.prompt[i][k] < VOCAB);
        }
    }
    close_world(&w);
}

static void a_partial_block_and_the_answer_come_from_the_next_turn(void **state)
{
    (void)state;
    struct world w;
    struct kg_expand_share s;
    /* The second is somebody else; the third goes on from the first: 8 tokens of its third block
     * are the first's rest, then the answer of 6, and 2 are new. */
    open_world(&w, LINE(40, 6, "[1,2,3]") LINE(40, 6, "[5,6,7]") LINE(70, 30, "[1,2,30,31,32]"),
               KG_TRACE_NATIVE, 1);
    assert_int_equal(kg_expand_cont(w.x, 0), 2);
    assert_int_equal(kg_expand_cont(w.x, 1), KG_NONE);
    assert_int_equal(common(&w, 0, 2), 46);
    kg_expand_shares(w.x, &s);
    assert_int_equal(s.tail_tokens, 8 + 8 + 6);
    assert_int_equal(s.tail_resolved, 8);
    assert_int_equal(s.answer_tokens, 42);
    assert_int_equal(s.answer_resolved, 6);
    close_world(&w);
}

static void an_answer_is_resolved_as_far_as_the_continuation_reaches(void **state)
{
    (void)state;
    struct world w;
    struct kg_expand_share s;
    open_world(&w, LINE(32, 50, "[1,2]") LINE(52, 1, "[1,2,3,4]"), KG_TRACE_NATIVE, 1);
    assert_int_equal(common(&w, 0, 1), 52);
    kg_expand_shares(w.x, &s);
    assert_int_equal(s.answer_resolved, 20);
    close_world(&w);
}

/* A first block that `n` conversations go on from, each its own way, behind one that ends in it. */
static uint32_t cont_of_shared(uint32_t n)
{
    struct world w;
    char text[4000];
    int at = sprintf(text, LINE(40, 6, "[1,2]"));

    for (uint32_t i = 0; i < n; i++) {
        at += sprintf(text + at,
                      "{\"timestamp\":0,\"block\":16,\"input_length\":52,\"output_length\":1,"
                      "\"hash_ids\":[1,2,%u,%u]}\n",
                      10 + i, 100 + i);
    }
    open_world(&w, text, KG_TRACE_NATIVE, 1);
    uint32_t cont = kg_expand_cont(w.x, 0);
    assert_int_equal(common(&w, 0, 1), cont == KG_NONE ? 32 : 46);
    close_world(&w);
    return cont;
}

static void a_beginning_that_many_share_is_nobodys_end(void **state)
{
    (void)state;
    assert_int_equal(cont_of_shared(1), 1);
    assert_int_equal(cont_of_shared(KG_EXPAND_MAX_BEHIND - 1), 1);
    assert_int_equal(cont_of_shared(KG_EXPAND_MAX_BEHIND), KG_NONE);
    assert_int_equal(cont_of_shared(2 * KG_EXPAND_MAX_BEHIND), KG_NONE);
}

static void ends_of_ends_are_followed(void **state)
{
    (void)state;
    struct world w;
    /* All three share two blocks; the rest of the first is resolved by the second, whose own rest
     * is resolved by the third. */
    open_world(&w, LINE(36, 1, "[1,2,3]") LINE(40, 1, "[1,2,4]") LINE(64, 1, "[1,2,5,6]"),
               KG_TRACE_NATIVE, 1);
    assert_int_equal(kg_expand_cont(w.x, 0), 1);
    assert_int_equal(kg_expand_cont(w.x, 1), 2);
    assert_int_equal(common(&w, 0, 2), 37);
    assert_int_equal(common(&w, 1, 2), 41);
    close_world(&w);
}

static void an_equal_prompt_is_equal_to_its_last_token(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, LINE(36, 9, "[1,2,3]") LINE(36, 5, "[1,2,3]"), KG_TRACE_NATIVE, 1);
    assert_memory_equal(w.prompt[0], w.prompt[1], 36 * sizeof(uint32_t));
    close_world(&w);
}

static void a_block_at_another_place_or_an_earlier_request_is_no_continuation(void **state)
{
    (void)state;
    struct world w;
    open_world(&w,
               LINE(48, 1, "[1,2,3]") LINE(36, 1, "[1,2,4]") LINE(48, 1, "[2,1,3]")
                   LINE(5, 3, "[77]") LINE(48, 1, "[1,2,3]"),
               KG_TRACE_NATIVE, 1);
    assert_int_equal(kg_expand_cont(w.x, 1), 4); /* not 0, which was before it */
    assert_int_equal(kg_expand_cont(w.x, 2), KG_NONE);
    assert_int_equal(kg_expand_cont(w.x, 3), KG_NONE); /* no full block */
    assert_int_equal(kg_expand_cont(w.x, 4), KG_NONE);
    close_world(&w);
}

static void seeds_change_everything_and_nothing_else_does(void **state)
{
    (void)state;
    struct world a, b, c;
    static const char text[] = LINE(40, 6, "[1,2,3]") LINE(70, 30, "[1,2,30,31,32]");
    open_world(&a, text, KG_TRACE_NATIVE, 1);
    open_world(&b, text, KG_TRACE_NATIVE, 1);
    open_world(&c, text, KG_TRACE_NATIVE, 2);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t n = a.t->reqs[i].n_prompt, same = 0;
        assert_memory_equal(a.prompt[i], b.prompt[i], n * sizeof(uint32_t));
        assert_memory_equal(a.answer[i], b.answer[i], a.t->reqs[i].n_output * sizeof(uint32_t));
        for (uint32_t k = 0; k < n; k++) {
            same += a.prompt[i][k] == c.prompt[i][k];
        }
        assert_true(same <= 1);
    }
    close_world(&a);
    close_world(&b);
    close_world(&c);
}

static void literal_turns_and_aiperf_sessions_say_what_was_answered(void **state)
{
    (void)state;
    struct world w;
    open_world(&w,
               "{\"timestamp\":0,\"id\":\"a\",\"token_ids\":[1,2,3],\"output_length\":3}\n"
               "{\"after\":\"a\",\"token_ids\":[1,2,3,8,9],\"output_length\":1}\n",
               KG_TRACE_NATIVE, 1);
    assert_int_equal(w.answer[0][0], 8);
    assert_int_equal(w.answer[0][1], 9);
    close_world(&w);
    open_world(
        &w,
        "{\"session_id\":\"a\",\"input_length\":600,\"output_length\":700,\"hash_ids\":[1,2]}\n"
        "{\"session_id\":\"a\",\"input_length\":20,\"output_length\":1,\"hash_ids\":[3]}\n",
        KG_TRACE_AIPERF, 1);
    assert_int_equal(common(&w, 0, 1), 1300);
    close_world(&w);
}

/* --- against the rule as it is written --- */

static uint64_t block_id(const struct kg_trace *t, uint32_t r, uint32_t k)
{
    const struct kg_trace_req *q = &t->reqs[r];

    for (uint32_t i = 0; i < q->n_pieces; i++) {
        const struct kg_trace_piece *p = &t->pieces[q->pieces_at + i];
        if (k * q->block >= p->at && k * q->block < p->at + p->n) {
            return p->id + (k * q->block - p->at) / q->block;
        }
    }
    fail();
    return 0;
}

/* The request that says what position p of r holds; KG_NONE: nobody but r's own answer. */
static uint32_t naive_owner(const struct kg_trace *t, uint32_t r, uint32_t p)
{
    const struct kg_trace_req *q = &t->reqs[r];
    uint32_t full = q->n_named / q->block;

    for (uint32_t c = r + 1; full > 0 && p >= q->n_named && c < t->n; c++) {
        const struct kg_trace_req *o = &t->reqs[c];
        if (o->n_named >= q->n_named && o->n_prompt > q->n_named &&
            block_id(t, c, full - 1) == block_id(t, r, full - 1)) {
            return p < o->n_prompt ? naive_owner(t, c, p) : p < q->n_prompt ? r : KG_NONE;
        }
    }
    return p < q->n_prompt ? r : KG_NONE;
}

static void random_families_are_resolved_as_the_rule_says(void **state)
{
    (void)state;
    char *text = malloc(200000);
    uint64_t n_resolved = 0;
    for (uint32_t seed = 0; seed < 60; seed++) {
        struct world w;
        size_t at = 0;
        srand(seed);
        for (int i = 0; i < 60; i++) { /* prefixes of three long chains, with ends of their own */
            int chain = rand() % 3 * 100, full = rand() % 4, rest = rand() % 16;
            full += full + rest == 0;
            at += (size_t)sprintf(text + at,
                                  "{\"timestamp\":0,\"block\":16,\"input_length\":%d,"
                                  "\"output_length\":%d,\"hash_ids\":[",
                                  full * 16 + rest, 1 + rand() % 40);
            for (int k = 0; k < full; k++) {
                at += (size_t)sprintf(text + at, "%s%d", k > 0 ? "," : "", chain + k);
            }
            if (rest > 0) {
                at += (size_t)sprintf(text + at, "%s%d", full > 0 ? "," : "", 1000 + i);
            }
            at += (size_t)sprintf(text + at, "]}\n");
        }
        open_world(&w, text, KG_TRACE_NATIVE, seed);
        for (uint32_t r = 0; r < w.t->n; r++) {
            const struct kg_trace_req *q = &w.t->reqs[r];
            for (uint32_t p = 0; p < q->n_prompt + q->n_output; p++) {
                uint32_t o = naive_owner(w.t, r, p);
                uint32_t token = p < q->n_prompt ? w.prompt[r][p] : w.answer[r][p - q->n_prompt];
                if (o != KG_NONE && token != w.prompt[o][p]) {
                    fail_msg("seed %u: position %u of %u is not that of %u", seed, p, r, o);
                }
                n_resolved += o != KG_NONE && o != r;
            }
        }
        close_world(&w);
    }
    assert_true(n_resolved > 10000);
    free(text);
}

static void chains_of_open_ends_take_linear_time(void **state)
{
    (void)state;
    enum { N = 20000 };
    char *text = malloc((size_t)N * 100);
    size_t at = 0;
    struct world w;
    struct kg_expand_share s;
    for (uint32_t i = 0; i < N; i++) { /* each ends behind the same block */
        at += (size_t)sprintf(text + at,
                              "{\"timestamp\":0,\"block\":16,\"input_length\":24,"
                              "\"output_length\":1,\"hash_ids\":[1,%u]}\n",
                              i + 2);
    }
    open_world(&w, text, KG_TRACE_NATIVE, 1);
    kg_expand_shares(w.x, &s);
    assert_int_equal(s.tail_resolved, 8 * (N - 1));
    assert_int_equal(common(&w, 7, 8), 24);
    close_world(&w);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_ids_are_equal_tokens_and_others_are_not),
        cmocka_unit_test(a_partial_block_and_the_answer_come_from_the_next_turn),
        cmocka_unit_test(an_answer_is_resolved_as_far_as_the_continuation_reaches),
        cmocka_unit_test(a_beginning_that_many_share_is_nobodys_end),
        cmocka_unit_test(ends_of_ends_are_followed),
        cmocka_unit_test(an_equal_prompt_is_equal_to_its_last_token),
        cmocka_unit_test(a_block_at_another_place_or_an_earlier_request_is_no_continuation),
        cmocka_unit_test(seeds_change_everything_and_nothing_else_does),
        cmocka_unit_test(literal_turns_and_aiperf_sessions_say_what_was_answered),
        cmocka_unit_test(random_families_are_resolved_as_the_rule_says),
        cmocka_unit_test(chains_of_open_ends_take_linear_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
