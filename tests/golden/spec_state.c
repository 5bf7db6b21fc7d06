/*
 * What a verified window leaves in memory: state, checkpoints and the answer to the next row are
 * those of a prefill of the committed tokens, byte for byte, whatever was drafted behind them.
 */
#include "exec_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAGE 8
#define N_PROMPT 21
#define DRAFTS 8

/* A request that decodes by windows whose acceptance is forced. */
struct seq {
    uint32_t tokens[128], pages[32];
    uint32_t n, past, n_pages, state, slot, fresh;
    uint32_t quiet; /* 1: the test goes on with tokens of its own, nothing is picked */
    struct kg_sampling sampling;
};

static struct xrig_options options(uint32_t math, uint32_t rewind)
{
    return (struct xrig_options){.model = "models/k3-tiny",
                                 .math = math,
                                 .threads = 2,
                                 .page_tokens = PAGE,
                                 .parts_per_slot = 4,
                                 .max_seqs = 4,
                                 .max_rows = 64,
                                 .n_pages = 96,
                                 .n_states = 32,
                                 .max_draft = DRAFTS,
                                 .rewind = rewind};
}

static void begin(struct xrig *x, struct seq *q, uint32_t slot, const uint32_t *tokens, uint32_t n)
{
    memset(q, 0, sizeof(*q));
    memcpy(q->tokens, tokens, n * sizeof(*tokens));
    q->n = n;
    q->slot = slot;
    q->fresh = 1;
    q->state = xrig_take(x, KG_STATE);
}

/* One step of a sequence; returns its result. Draft tokens lie behind the known ones. */
static const struct kg_seq_result *step(struct xrig *x, struct seq *q, uint32_t n_draft,
                                        uint32_t force, const struct kg_order *orders,
                                        uint32_t n_orders, uint32_t state_src)
{
    static struct kg_result result;
    uint32_t had = q->n_pages, rows = q->n - q->past + n_draft;
    struct kg_seq s = {.slot = q->slot,
                       .id = q->slot + 1,
                       .flags = KG_SEQ_LOGITS | (q->quiet ? 0 : KG_SEQ_SAMPLE),
                       .past = q->past,
                       .n_rows = rows,
                       .n_draft = n_draft,
                       .tokens = q->tokens + q->past,
                       .state = q->state,
                       .state_src = state_src,
                       .n_orders = n_orders,
                       .orders = orders,
                       .left = 50,
                       .force_accept = force};

    while (q->n_pages * PAGE < q->past + rows)
        q->pages[q->n_pages++] = xrig_take(x, KG_PAGE);
    s.pages = q->pages + (q->fresh ? 0 : had);
    s.n_pages = q->n_pages - (q->fresh ? 0 : had);
    if (q->fresh) {
        s.flags |= KG_SEQ_RESET;
        s.history = q->tokens;
        s.n_history = q->n;
        s.output_start = q->n < N_PROMPT ? q->n : N_PROMPT;
        s.sampling = &q->sampling;
    }
    xrig_apply(x, 3); /* nothing may rest on addresses */
    xrig_step(x, &s, 1, &result);
    q->fresh = 0;
    return &result.seqs[0];
}

/* Slot 0 computes the prompt; `tokens` goes on behind it. */
static void begin_prompt(struct xrig *x, struct seq *q, const uint32_t *tokens)
{
    begin(x, q, 0, tokens, 128);
    q->n = N_PROMPT;
    q->quiet = 1;
    (void)step(x, q, 0, KG_NONE, NULL, 0, KG_STATE_ZERO);
    q->quiet = 0;
    q->past = N_PROMPT;
    q->n = N_PROMPT + 1;
}

static uint8_t *bytes_of(struct xrig *x, uint32_t state)
{
    uint64_t n = x->desc.n_state_parts * x->desc.state_part_bytes;
    uint8_t *p = malloc(n);

    assert_non_null(p);
    assert_int_equal(x->ops->read(x->exec, KG_STATE, state, p, n), KG_OK);
    return p;
}

static void same_state(struct xrig *x, uint32_t a, uint32_t b)
{
    uint8_t *p = bytes_of(x, a), *q = bytes_of(x, b);

    /* Parts are padded; the padding is nobody's, so look through the views. */
    const struct kg_view *v;
    uint32_t n;
    assert_int_equal(x->ops->views(x->exec, &v, &n), KG_OK);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t part = (uint64_t)v[i].entry * 4 * x->desc.state_part_bytes;
        if (v[i].kind == KG_STATE)
            assert_memory_equal(p + part + v[i].offset, q + part + v[i].offset,
                                v[i].n * kg_dtype_bytes(v[i].dtype));
    }
    free(p);
    free(q);
}

/* A state that a prefill of the first n tokens leaves. */
static uint32_t prefilled(struct xrig *x, const uint32_t *tokens, uint32_t n)
{
    struct seq b;

    begin(x, &b, 3, tokens, n);
    (void)step(x, &b, 0, KG_NONE, NULL, 0, KG_STATE_ZERO);
    for (uint32_t i = 0; i < b.n_pages; i++)
        xrig_give(x, KG_PAGE, b.pages[i]);
    return b.state;
}

static void fill_tokens(struct xrig *x, uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (uint32_t)(xrig_random(x) % x->desc.vocab);
}

/* Windows of every length with every acceptance; drafts are random tokens, so forced ones are
 * rarely what the model would say. */
static void walk(uint32_t math, uint32_t rewind)
{
    struct xrig_options o = options(math, rewind);
    uint32_t tokens[128];
    struct xrig x;
    struct seq a;

    xrig_open(&x, &o);
    fill_tokens(&x, tokens, N_PROMPT);
    begin(&x, &a, 0, tokens, N_PROMPT);
    const struct kg_seq_result *r = step(&x, &a, 0, KG_NONE, NULL, 0, KG_STATE_ZERO);
    a.past = r->past;
    a.tokens[a.n++] = r->tokens[0];
    for (uint32_t k = 0; k < 12 && a.n < 100; k++) {
        uint32_t n_draft = 1 + (uint32_t)(xrig_random(&x) % DRAFTS);
        uint32_t force = (uint32_t)(xrig_random(&x) % (n_draft + 1)), n_orders = 0;
        uint32_t page = (a.past / PAGE + 1) * PAGE;
        struct kg_order order = {.position = page};
        if (page <= a.past + 1 + n_draft) {
            order.unit = xrig_take(&x, KG_STATE);
            n_orders = 1;
        }
        fill_tokens(&x, a.tokens + a.n, n_draft);
        uint8_t *before = n_orders > 0 ? bytes_of(&x, order.unit) : NULL;
        r = step(&x, &a, n_draft, force, &order, n_orders, KG_STATE_KEEP);
        assert_int_equal(r->n_accepted, force);
        assert_int_equal(r->n_tokens, force + 1);
        assert_int_equal(r->past, a.past + 1 + force);
        assert_memory_equal(r->tokens, a.tokens + a.n, force * sizeof(uint32_t));
        a.n += force;
        a.past = r->past;
        a.tokens[a.n++] = r->tokens[force];
        uint32_t want = prefilled(&x, a.tokens, a.past);
        same_state(&x, a.state, want);
        xrig_give(&x, KG_STATE, want);
        if (n_orders > 0 && page <= a.past) {
            want = prefilled(&x, a.tokens, page);
            same_state(&x, order.unit, want);
            xrig_give(&x, KG_STATE, want);
        } else if (n_orders > 0) { /* not reached: not written */
            uint8_t *after = bytes_of(&x, order.unit);
            assert_memory_equal(before, after, x.desc.n_state_parts * x.desc.state_part_bytes);
            free(after);
        }
        free(before);
        if (n_orders > 0)
            xrig_give(&x, KG_STATE, order.unit);
    }
    xrig_close(&x);
}

static void a_window_leaves_the_state_of_its_accepted_rows(void **state)
{
    (void)state;
    for (uint32_t math = 0; math < 2; math++) {
        walk(math, 0);
        walk(math, 1);
    }
}

/* A window whose rows cross more boundaries than one writes each at its own position. */
static void checkpoints_inside_an_accepted_run_are_exact(void **state)
{
    (void)state;
    for (uint32_t rewind = 0; rewind < 2; rewind++) {
        struct xrig_options o = options(0, rewind);
        uint32_t tokens[128];
        struct kg_order orders[4];
        struct xrig x;
        struct seq a;
        xrig_open(&x, &o);
        fill_tokens(&x, tokens, 128);
        begin_prompt(&x, &a, tokens);
        for (uint32_t i = 0; i < 4; i++)
            orders[i] = (struct kg_order){N_PROMPT + 1 + 2 * i, xrig_take(&x, KG_STATE)};
        /* 6 of 8 drafts stay: the last order, at row 7, lies on the last committed row. */
        const struct kg_seq_result *r = step(&x, &a, DRAFTS, 6, orders, 4, KG_STATE_KEEP);
        assert_int_equal(r->past, N_PROMPT + 7);
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t want = prefilled(&x, tokens, orders[i].position);
            same_state(&x, orders[i].unit, want);
            if (i == 3)
                same_state(&x, a.state, want);
            xrig_give(&x, KG_STATE, want);
        }
        xrig_close(&x);
    }
}

static void s38_a_state_copied_after_a_window_is_complete(void **state)
{
    (void)state;
    struct xrig_options o = options(0, 0);
    uint32_t tokens[128], vocab;
    struct xrig x;
    struct seq a, b, c;

    xrig_open(&x, &o);
    vocab = x.desc.vocab;
    fill_tokens(&x, tokens, 128);
    begin_prompt(&x, &a, tokens);
    (void)step(&x, &a, 6, 4, NULL, 0, KG_STATE_KEEP); /* commits five rows */
    a.past = N_PROMPT + 5;
    /* b goes on from a copy of a's state, on a's pages; c computes all of it alone. */
    begin(&x, &b, 1, tokens, a.past + 1);
    memcpy(b.pages, a.pages, sizeof(b.pages));
    b.n_pages = a.n_pages;
    b.past = a.past;
    uint64_t of_b = xrig_hash(step(&x, &b, 0, KG_NONE, NULL, 0, a.state)->logits, vocab);
    begin(&x, &c, 2, tokens, a.past + 1);
    const struct kg_seq_result *r = step(&x, &c, 0, KG_NONE, NULL, 0, KG_STATE_ZERO);
    assert_int_equal(of_b, xrig_hash(r->logits + (size_t)a.past * vocab, vocab));
    same_state(&x, b.state, c.state);
    xrig_close(&x);
}

/* A request may begin with a window: its state is made by the commit, from the source. */
static void a_window_may_start_from_zero_or_from_a_copied_state(void **state)
{
    (void)state;
    for (uint32_t rewind = 0; rewind < 2; rewind++) {
        struct xrig_options o = options(0, rewind);
        uint32_t tokens[128], want;
        struct xrig x;
        struct seq a, b;
        xrig_open(&x, &o);
        fill_tokens(&x, tokens, 128);
        begin(&x, &a, 0, tokens, 128);
        a.n = 1;
        (void)step(&x, &a, 5, 3, NULL, 0, KG_STATE_ZERO);
        want = prefilled(&x, tokens, 4);
        same_state(&x, a.state, want);
        begin(&x, &b, 1, tokens, 128);
        memcpy(b.pages, a.pages, sizeof(b.pages));
        b.n_pages = a.n_pages;
        b.past = 4;
        b.n = 5;
        (void)step(&x, &b, 3, 2, NULL, 0, a.state);
        same_state(&x, a.state, want); /* a source is only read */
        want = prefilled(&x, tokens, 7);
        same_state(&x, b.state, want);
        xrig_close(&x);
    }
}

static void replay_keeps_less_than_snapshots_and_says_so(void **state)
{
    (void)state;
    uint64_t record[2], scratch[2];
    for (uint32_t rewind = 0; rewind < 2; rewind++) {
        struct xrig_options o = options(0, rewind);
        struct xrig x;
        xrig_open(&x, &o);
        record[rewind] = x.desc.record_bytes;
        scratch[rewind] = x.desc.scratch_bytes;
        assert_int_equal(x.desc.rewind_bytes, record[rewind] * 4 * (1 + DRAFTS));
        assert_string_equal(x.desc.rewind, rewind ? "snapshot" : "replay");
        assert_int_equal(x.desc.max_draft, DRAFTS);
        if (rewind)
            assert_int_equal(record[1], x.desc.n_state_parts * x.desc.state_part_bytes);
        xrig_close(&x);
    }
    assert_true(record[0] * 8 < record[1]);
    assert_true(scratch[0] < scratch[1]);
}

static void windows_that_break_the_contract_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_rows, n_draft, flags;
        const char *text;
    } bad[] = {
        {DRAFTS + 2, DRAFTS + 1, KG_SEQ_SAMPLE, "n_draft 9, most is 8"},
        {4, 2, KG_SEQ_SAMPLE, "one row before them"},
        {3, 2, 0, "need SAMPLE"},
    };
    struct xrig_options o = options(0, 0);
    uint32_t tokens[128] = {1};
    struct xrig x;
    struct seq a;
    xrig_open(&x, &o);
    begin(&x, &a, 0, tokens, 1);
    a.pages[0] = xrig_take(&x, KG_PAGE);
    a.pages[1] = xrig_take(&x, KG_PAGE);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kg_seq s = {.flags = KG_SEQ_RESET | bad[i].flags,
                           .n_rows = bad[i].n_rows,
                           .n_draft = bad[i].n_draft,
                           .tokens = tokens,
                           .history = tokens,
                           .n_history = 1,
                           .output_start = 1,
                           .sampling = &a.sampling,
                           .pages = a.pages,
                           .n_pages = 2,
                           .state = a.state,
                           .state_src = KG_STATE_ZERO,
                           .left = 20,
                           .force_accept = KG_NONE};
        struct kg_batch b = {.size = sizeof(b), .seqs = &s, .n_seqs = 1, .n_rows = s.n_rows};
        struct kg_error err = {0};
        assert_int_equal(x.ops->submit(x.exec, &b, &err), KG_EINVAL);
        if (strstr(err.text, bad[i].text) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].text);
    }
    xrig_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_leaves_the_state_of_its_accepted_rows),
        cmocka_unit_test(checkpoints_inside_an_accepted_run_are_exact),
        cmocka_unit_test(s38_a_state_copied_after_a_window_is_complete),
        cmocka_unit_test(a_window_may_start_from_zero_or_from_a_copied_state),
        cmocka_unit_test(replay_keeps_less_than_snapshots_and_says_so),
        cmocka_unit_test(windows_that_break_the_contract_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
