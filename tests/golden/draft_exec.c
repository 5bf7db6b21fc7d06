/*
 * exec-cpu with the trained drafter, through its public table: the rounds PyTorch took over greedy
 * texts are taken here, drafts are what is verified, and what cannot be drafted is no draft.
 */
#include "exec_rig.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAGE 8
#define BLOCK 7
#define MAX 512

/* One request at a time in slot 0 and, where two are needed, 1. */
struct seq {
    uint32_t tokens[MAX], pages[MAX / PAGE + 4];
    uint32_t n, n_prompt, past, n_pages, state, slot, fresh;
    struct kg_sampling sampling;
};

static struct xrig_options options(uint32_t math)
{
    return (struct xrig_options){.model = "models/k3-tiny",
                                 .draft = "models/k3-tiny-dspark",
                                 .math = math,
                                 .threads = 2,
                                 .page_tokens = PAGE,
                                 .parts_per_slot = 4,
                                 .max_seqs = 4,
                                 .max_rows = MAX,
                                 .n_pages = 128,
                                 .n_states = 8,
                                 .max_draft = BLOCK};
}

static void begin(struct xrig *x, struct seq *q, uint32_t slot, const uint32_t *prompt, uint32_t n)
{
    memset(q, 0, sizeof(*q));
    memcpy(q->tokens, prompt, n * sizeof(*prompt));
    q->n = q->n_prompt = n;
    q->slot = slot;
    q->fresh = 1;
    q->state = xrig_take(x, KG_STATE);
}

static void end(struct xrig *x, struct seq *q)
{
    x->ops->drop(x->exec, &q->slot, 1);
    for (uint32_t i = 0; i < q->n_pages; i++)
        xrig_give(x, KG_PAGE, q->pages[i]);
    xrig_give(x, KG_STATE, q->state);
}

/* One step: the rest of the prompt, or the last token and n_draft drafts of the backend. */
static const struct kg_seq_result *step(struct xrig *x, struct seq *q, uint32_t n_draft,
                                        uint32_t force)
{
    static struct kg_result result;
    static uint32_t rows[MAX];
    uint32_t had = q->fresh ? 0 : q->n_pages, n = q->n - q->past;
    struct kg_seq s = {.slot = q->slot,
                       .id = q->slot + 1,
                       .flags = KG_SEQ_SAMPLE | (q->fresh ? KG_SEQ_RESET : 0),
                       .past = q->past,
                       .n_rows = n + n_draft,
                       .n_draft = n_draft,
                       .tokens = rows,
                       .state = q->state,
                       .state_src = q->fresh ? KG_STATE_ZERO : KG_STATE_KEEP,
                       .history = q->tokens,
                       .n_history = q->n,
                       .output_start = q->n_prompt,
                       .sampling = &q->sampling,
                       .left = 100,
                       .force_accept = force};

    memset(rows, 0xee, sizeof(rows)); /* drafts are the backend's: these are no tokens */
    memcpy(rows, q->tokens + q->past, n * sizeof(*rows));
    while (q->n_pages * PAGE < q->past + n + n_draft)
        q->pages[q->n_pages++] = xrig_take(x, KG_PAGE);
    s.pages = q->pages + had;
    s.n_pages = q->n_pages - had;
    xrig_apply(x, 2);
    xrig_step(x, &s, 1, &result);
    q->fresh = 0;
    const struct kg_seq_result *r = &result.seqs[0];
    if (r->flags & KG_RES_NAN)
        return r;
    memcpy(q->tokens + q->n, r->tokens, r->n_tokens * sizeof(uint32_t));
    q->n += r->n_tokens;
    q->past = r->past;
    return r;
}

static uint32_t draft(struct xrig *x, const struct seq *q, uint32_t n, float *survival)
{
    struct kg_draft d = {.slot = q->slot, .n = n, .survival = survival};

    assert_int_equal(x->ops->draft(x->exec, &d, 1), KG_OK);
    assert_true(d.n <= n);
    return d.n;
}

static json_t *load_notes(void)
{
    json_t *doc = json_load_file(TEST_ROOT "/models/k3-tiny-dspark/parity.json", 0, NULL);

    assert_non_null(doc);
    return doc;
}

static uint32_t ids_of(const json_t *o, const char *key, uint32_t *out)
{
    const json_t *list = json_object_get(o, key);
    uint32_t n = (uint32_t)json_array_size(list);

    assert_true(n > 0 && n <= MAX);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    return n;
}

static void greedy_texts_take_the_rounds_they_took_in_pytorch(void **state)
{
    (void)state;
    json_t *doc = load_notes(), *texts = json_object_get(doc, "transcripts");
    uint32_t rounds = 0, accepted = 0;
    struct xrig x;
    struct xrig_options o = options(0);
    xrig_open(&x, &o);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *t = json_array_get(texts, i), *list = json_object_get(t, "rounds");
        uint32_t prompt[MAX], greedy[MAX], drafts[MAX];
        uint32_t n = ids_of(t, "prompt", prompt), n_greedy = ids_of(t, "greedy", greedy);
        struct seq q;
        begin(&x, &q, 0, prompt, n);
        (void)step(&x, &q, 0, KG_NONE);
        for (size_t k = 0; k < json_array_size(list); k++) {
            const json_t *round = json_array_get(list, k);
            uint32_t left = n + n_greedy - 1 - q.past; /* PyTorch's text ends there */
            uint32_t want = (uint32_t)json_integer_value(json_object_get(round, "accepted"));
            assert_int_equal(q.past, json_integer_value(json_object_get(round, "anchor")));
            assert_int_equal(ids_of(round, "drafts", drafts), BLOCK);
            /* forced, a window comes out as it was drafted */
            assert_int_equal(draft(&x, &q, left < BLOCK ? left : BLOCK, NULL),
                             left < BLOCK ? left : BLOCK);
            const struct kg_seq_result *r = step(&x, &q, left < BLOCK ? left : BLOCK, KG_NONE);
            assert_int_equal(r->n_accepted, want);
            assert_memory_equal(r->tokens, drafts, want * sizeof(uint32_t));
            rounds++;
            accepted += want;
        }
        assert_memory_equal(q.tokens + n, greedy, n_greedy * sizeof(uint32_t));
        end(&x, &q);
    }
    print_message("  %u rounds, %u drafts accepted\n", rounds, accepted);
    xrig_close(&x);
    json_decref(doc);
}

static void a_forced_window_is_the_draft_of_pytorch(void **state)
{
    (void)state;
    json_t *doc = load_notes(), *texts = json_object_get(doc, "transcripts");
    struct xrig x;
    struct xrig_options o = options(0);
    xrig_open(&x, &o);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *t = json_array_get(texts, i);
        const json_t *first = json_array_get(json_object_get(t, "rounds"), 0);
        uint32_t prompt[MAX], drafts[MAX], n = ids_of(t, "prompt", prompt);
        struct seq q;
        float survival[BLOCK];
        begin(&x, &q, 0, prompt, n);
        (void)step(&x, &q, 0, KG_NONE);
        assert_int_equal(ids_of(first, "drafts", drafts), BLOCK);
        assert_int_equal(draft(&x, &q, BLOCK, survival), BLOCK);
        const struct kg_seq_result *r = step(&x, &q, BLOCK, BLOCK);
        assert_int_equal(r->n_accepted, BLOCK);
        assert_memory_equal(r->tokens, drafts, BLOCK * sizeof(uint32_t));
        for (uint32_t k = 0; k < BLOCK; k++)
            assert_true(survival[k] > 0 && survival[k] <= (k == 0 ? 1.0f : survival[k - 1]));
        end(&x, &q);
    }
    xrig_close(&x);
    json_decref(doc);
}

/* Prompt of the first transcript. */
static uint32_t some_prompt(uint32_t *prompt)
{
    json_t *doc = load_notes();
    uint32_t n = ids_of(json_array_get(json_object_get(doc, "transcripts"), 0), "prompt", prompt);

    json_decref(doc);
    return n;
}

static void a_context_that_is_not_finite_is_no_draft_and_spoils_nobody(void **state)
{
    (void)state;
    uint32_t prompt[MAX], n = some_prompt(prompt);
    float alone[BLOCK], beside[BLOCK], bad[BLOCK];
    struct xrig x;
    struct xrig_options o = options(0);
    struct seq a, b;
    xrig_open(&x, &o);
    begin(&x, &a, 0, prompt, n);
    begin(&x, &b, 1, prompt, n - 3);
    (void)step(&x, &a, 0, KG_NONE);
    (void)step(&x, &b, 0, KG_NONE);
    assert_int_equal(draft(&x, &a, BLOCK, alone), BLOCK);
    assert_int_equal(x.ops->poison(x.exec, KG_PAGE, b.pages[1]), KG_OK);
    struct kg_draft both[2] = {{.slot = 1, .n = BLOCK, .survival = bad},
                               {.slot = 0, .n = BLOCK, .survival = beside}};
    assert_int_equal(x.ops->draft(x.exec, both, 2), KG_OK);
    assert_int_equal(both[0].n, 0);
    assert_int_equal(both[1].n, BLOCK);
    assert_memory_equal(alone, beside, sizeof(alone));
    end(&x, &a);
    end(&x, &b);
    xrig_close(&x);
}

static void what_cannot_be_drafted_is_refused(void **state)
{
    (void)state;
    uint32_t prompt[MAX], n = some_prompt(prompt);
    struct xrig x;
    struct xrig_options o = options(0);
    struct seq q;
    xrig_open(&x, &o);
    begin(&x, &q, 0, prompt, n);
    struct kg_draft d[2] = {{.slot = 0, .n = 1}, {.slot = 0, .n = 1}};
    assert_int_equal(x.ops->draft(x.exec, d, 1), KG_EINVAL); /* nothing is known of the slot */
    (void)step(&x, &q, 0, KG_NONE);
    assert_int_equal(x.ops->draft(x.exec, d, 2), KG_EINVAL); /* twice */
    d[0].n = BLOCK + 1;
    assert_int_equal(x.ops->draft(x.exec, d, 1), KG_EINVAL);
    d[0] = (struct kg_draft){.slot = 9, .n = 1};
    assert_int_equal(x.ops->draft(x.exec, d, 1), KG_EINVAL);
    /* more verified than was drafted */
    assert_int_equal(draft(&x, &q, 2, NULL), 2);
    struct kg_error err = {0};
    uint32_t rows[4] = {q.tokens[q.past]};
    while (q.n_pages * PAGE < q.past + 4)
        q.pages[q.n_pages++] = xrig_take(&x, KG_PAGE);
    struct kg_seq s = {.slot = 0,
                       .id = 1,
                       .flags = KG_SEQ_SAMPLE,
                       .past = q.past,
                       .n_rows = 4,
                       .n_draft = 3,
                       .tokens = rows,
                       .state = q.state,
                       .state_src = KG_STATE_KEEP,
                       .left = 9,
                       .force_accept = KG_NONE};
    struct kg_batch batch = {.size = sizeof(batch), .seqs = &s, .n_seqs = 1, .n_rows = 4};
    assert_int_equal(x.ops->submit(x.exec, &batch, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, "n_draft 3, the drafter made 2"));
    x.ops->drop(x.exec, &q.slot, 1);
    assert_int_equal(x.ops->draft(x.exec, d, 1), KG_EINVAL);
    end(&x, &q);
    xrig_close(&x);
}

static void the_description_tells_the_drafters_bytes(void **state)
{
    (void)state;
    struct xrig with, without;
    struct xrig_options o = options(0), p = options(0);
    p.draft = NULL;
    xrig_open(&with, &o);
    xrig_open(&without, &p);
    /* two layers of 64 + 16 floats */
    assert_int_equal(with.desc.draft_token_bytes, 2 * 80 * 4);
    assert_int_equal(with.desc.token_bytes - without.desc.token_bytes, 2 * 80 * 4);
    assert_true(with.desc.weight_bytes > without.desc.weight_bytes);
    assert_true(with.desc.caps & KG_EXEC_CAP_DRAFT);
    assert_false(without.desc.caps & KG_EXEC_CAP_DRAFT);
    assert_int_equal(without.desc.draft_token_bytes, 0);
    assert_int_equal(without.desc.draft_block, 0);
    assert_int_equal(with.desc.draft_block, BLOCK);
    xrig_close(&with);
    xrig_close(&without);
}

static void a_draft_has_a_price(void **state)
{
    (void)state;
    struct xrig x;
    struct xrig_options o = options(0);
    uint64_t ns = 0;
    xrig_open(&x, &o);
    assert_int_equal(x.ops->profile_draft(x.exec, 3, BLOCK, 100, &ns), KG_OK);
    assert_true(ns > 0);
    assert_int_equal(x.ops->profile_draft(x.exec, 3, BLOCK + 1, 100, &ns), KG_EINVAL);
    assert_int_equal(x.ops->profile_draft(x.exec, 5, BLOCK, 100, &ns), KG_EINVAL);
    assert_int_equal(x.ops->profile_draft(x.exec, 1, 0, 100, &ns), KG_EINVAL);
    assert_int_equal(x.ops->profile_draft(x.exec, 1, 1, 1u << 30, &ns), KG_EINVAL);
    xrig_close(&x);
}

/* usage: draft_exec [RANKS [EP]] */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_texts_take_the_rounds_they_took_in_pytorch),
        cmocka_unit_test(a_forced_window_is_the_draft_of_pytorch),
        cmocka_unit_test(a_context_that_is_not_finite_is_no_draft_and_spoils_nobody),
        cmocka_unit_test(what_cannot_be_drafted_is_refused),
        cmocka_unit_test(the_description_tells_the_drafters_bytes),
        cmocka_unit_test(a_draft_has_a_price),
    };

    xrig_set_ranks(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
