/*
 * What exec-cpu refuses, and what it answers beside logits: log probabilities, echo, stop, NaN
 * flags, unit traffic, views, profile.
 */
#include "exec_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_PROMPT 20
#define PAGE 8

static const struct xrig_options options = {.model = "models/k3-tiny",
                                            .threads = 2,
                                            .page_tokens = PAGE,
                                            .max_seqs = 4,
                                            .max_rows = 64,
                                            .parts_per_slot = 4,
                                            .n_pages = 64,
                                            .n_states = 16};

/* A first step of a prompt with everything right. */
struct good {
    uint32_t tokens[64];
    uint32_t pages[8];
    struct kg_sampling sampling;
    struct kg_order orders[16];
    struct kg_seq seq;
};

static void good_open(struct xrig *x, struct good *g, uint32_t slot)
{
    memset(g, 0, sizeof(*g));
    for (uint32_t i = 0; i < 64; i++)
        g->tokens[i] = (i * 331 + slot * 17 + 5) % 3800;
    for (uint32_t i = 0; i < 8; i++)
        g->pages[i] = xrig_take(x, KG_PAGE);
    g->seq = (struct kg_seq){.slot = slot,
                             .epoch = 3,
                             .id = 100 + slot,
                             .flags = KG_SEQ_RESET | KG_SEQ_SAMPLE,
                             .n_rows = N_PROMPT,
                             .tokens = g->tokens,
                             .pages = g->pages,
                             .n_pages = (N_PROMPT + PAGE - 1) / PAGE,
                             .state = xrig_take(x, KG_STATE),
                             .state_src = KG_STATE_ZERO,
                             .history = g->tokens,
                             .n_history = N_PROMPT,
                             .output_start = N_PROMPT,
                             .sampling = &g->sampling,
                             .left = 10,
                             .force_accept = KG_NONE};
}

/* The next row after a first step that emitted `token`. */
static void good_next(struct good *g, uint32_t token)
{
    struct kg_seq *s = &g->seq;

    s->flags = KG_SEQ_SAMPLE;
    s->past += s->n_rows;
    g->tokens[s->past] = token;
    s->tokens = g->tokens + s->past;
    s->n_rows = 1;
    s->pages = NULL;
    s->n_pages = 0;
    s->state_src = KG_STATE_KEEP;
    s->orders = NULL;
    s->n_orders = 0;
}

static void refuses(struct xrig *x, const struct kg_seq *seqs, uint32_t n, uint32_t n_rows,
                    const char *text)
{
    struct kg_batch batch = {
        .size = sizeof(batch), .seqs = seqs, .n_seqs = n, .n_rows = n_rows, .step = 9};
    struct kg_result result = {.size = sizeof(result)};
    struct kg_error err = {0};

    assert_int_equal(x->ops->submit(x->exec, &batch, &err), KG_EINVAL);
    if (strstr(err.text, text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    assert_int_equal(x->ops->wait(x->exec, &result, &err), KG_EINVAL); /* nothing was computed */
}

static void one_refused(struct xrig *x, const struct kg_seq *s, const char *text)
{
    refuses(x, s, 1, s->n_rows, text);
}

static void a_sequence_that_breaks_the_contract_is_refused_by_name(void **state) /* V37 */
{
    struct xrig x;
    struct good g;
    struct kg_seq s;
    uint32_t bad_tokens[N_PROMPT] = {4096}, unmapped;

    (void)state;
    xrig_open(&x, &options);
    good_open(&x, &g, 1);
    unmapped = xrig_take(&x, KG_STATE);
    xrig_give(&x, KG_STATE, unmapped);
    xrig_apply(&x, 0);
#define BAD(field, value, text)    \
    do {                           \
        s = g.seq;                 \
        s.field = value;           \
        one_refused(&x, &s, text); \
    } while (0)
    BAD(slot, 4, "slot 4, there are 4");
    BAD(n_rows, 0, "n_rows is 0");
    BAD(tokens, NULL, "tokens is NULL");
    BAD(tokens, bad_tokens, "tokens[0] is 4096, the vocabulary has 4096");
    BAD(n_draft, 2, "n_draft 2, most is 0");
    BAD(flags, KG_SEQ_SAMPLE, "RESET is not set");
    BAD(history, NULL, "n_history 0");
    BAD(n_history, N_PROMPT - 1, "n_history 19 is less than past 0 and the 20 rows");
    BAD(output_start, N_PROMPT + 1, "output_start 21");
    BAD(sampling, NULL, "without sampling");
    BAD(left, 0, "no tokens left");
    BAD(n_history, N_PROMPT + 1, "21 tokens are known");
    BAD(n_pages, 2, "2 pages of 8 tokens, 20 tokens need 3");
    BAD(pages, NULL, "the list is NULL");
    BAD(state, unmapped, "is not mapped");
    BAD(state, 4000000, "working state 4000000 is not mapped");
    BAD(state_src, unmapped, "state_src");
    BAD(state_src, KG_STATE_KEEP, "cannot keep a state");
    BAD(state_src, g.seq.state, "cannot keep a state"); /* of no tokens */
    BAD(past, 65536, "over the context");
    BAD(n_orders, 1, "orders");
    s = g.seq;
    s.flags |= KG_SEQ_RESET;
    s.past = 8;
    s.n_history = 28;
    s.tokens = g.tokens + 8;
    s.history = g.tokens;
    s.n_pages = 4;
    s.output_start = 28;
    one_refused(&x, &s, "state_src is zero, but past is 8");
    xrig_close(&x);
}

static void samplings_out_of_range_are_refused(void **state)
{
    static const struct {
        struct kg_sampling s;
        const char *text;
    } bad[] = {
        {{.temperature = -0.1f}, "temperature"},
        {{.temperature = 100.5f}, "temperature"},
        {{.temperature = NAN}, "temperature"},
        {{.top_p = 1.5f}, "top_p"},
        {{.min_p = -1.0f}, "min_p"},
        {{.repetition_penalty = -1.0f}, "repetition_penalty"},
        {{.frequency_penalty = 2.5f}, "frequency_penalty"},
        {{.presence_penalty = -3.0f}, "presence_penalty"},
        {{.n_logprobs = KG_MAX_LOGPROBS + 1}, "n_logprobs"},
        {{.n_stop_ids = KG_MAX_STOP_IDS + 1}, "n_stop_ids"},
    };
    struct xrig x;
    struct good g;

    (void)state;
    xrig_open(&x, &options);
    good_open(&x, &g, 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        g.sampling = bad[i].s;
        one_refused(&x, &g.seq, bad[i].text);
    }
    xrig_close(&x);
}

static void orders_must_rise_inside_the_step_and_be_mapped(void **state)
{
    struct xrig x;
    struct good g;

    (void)state;
    xrig_open(&x, &options);
    good_open(&x, &g, 0);
    g.seq.orders = g.orders;
    g.seq.n_orders = 1;
    g.orders[0] = (struct kg_order){.position = 0, .unit = xrig_take(&x, KG_STATE)};
    one_refused(&x, &g.seq, "orders[0] at position 0, wanted above 0 and at most 20");
    g.orders[0].position = 21;
    one_refused(&x, &g.seq, "orders[0] at position 21");
    g.orders[0].position = 8;
    g.seq.n_orders = 2;
    g.orders[1] = g.orders[0];
    one_refused(&x, &g.seq, "orders[1] at position 8");
    g.orders[1].position = 16;
    one_refused(&x, &g.seq, "is written twice in this step");
    g.orders[1].unit = 15000;
    one_refused(&x, &g.seq, "orders[1]: state 15000 is not mapped");
    g.seq.n_orders = x.desc.max_orders + 1;
    one_refused(&x, &g.seq, "checkpoint orders, most is");
    xrig_close(&x);
}

static void batches_that_contradict_themselves_are_refused(void **state)
{
    struct xrig x;
    struct good a, b;
    struct kg_seq two[2];

    (void)state;
    xrig_open(&x, &options);
    good_open(&x, &a, 0);
    good_open(&x, &b, 1);
    refuses(&x, &a.seq, 0, 0, "0 sequences");
    refuses(&x, &a.seq, 1, N_PROMPT + 1, "n_rows is 21, the sequences have 20");
    two[0] = two[1] = a.seq;
    refuses(&x, two, 2, 2 * N_PROMPT, "in the batch twice");
    two[1] = b.seq;
    two[1].state = a.seq.state;
    refuses(&x, two, 2, 2 * N_PROMPT, "is written twice in this step");
    two[1].state = b.seq.state;
    two[1].pages = a.seq.pages;
    refuses(&x, two, 2, 2 * N_PROMPT, "is written twice in this step");
    two[1].pages = b.seq.pages;
    two[0].state_src = b.seq.state;
    refuses(&x, two, 2, 2 * N_PROMPT, "is written in this step");
    xrig_close(&x);
}

static void later_steps_must_continue_what_the_slot_holds(void **state)
{
    struct xrig x;
    struct good g;
    struct kg_result r;
    struct kg_seq s;

    (void)state;
    xrig_open(&x, &options);
    good_open(&x, &g, 2);
    xrig_step(&x, &g.seq, 1, &r);
    good_next(&g, r.seqs[0].tokens[0]);
    BAD(past, 19, "past is 19, the slot has committed 20");
    BAD(state, xrig_take(&x, KG_STATE), "keeps state");
    BAD(tokens, g.tokens, "position 20 of its history is");
    xrig_step(&x, &g.seq, 1, &r);
    assert_int_equal(r.seqs[0].past, 21);
    x.ops->drop(x.exec, &g.seq.slot, 1);
    good_next(&g, r.seqs[0].tokens[0]);
    one_refused(&x, &g.seq, "RESET is not set");
    xrig_close(&x);
}

static double log_softmax(const float *row, uint32_t n, uint32_t at)
{
    double top = row[0], sum = 0.0;

    for (uint32_t i = 1; i < n; i++)
        top = row[i] > top ? row[i] : top;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(row[i] - top);
    return row[at] - top - log(sum);
}

static void echo_reports_the_log_probability_of_each_next_token(void **state)
{
    struct xrig x;
    struct good g;
    struct kg_result r;
    const struct kg_seq_result *q;
    uint32_t width = 1 + 3, vocab;

    (void)state;
    xrig_open(&x, &options);
    vocab = x.desc.vocab;
    good_open(&x, &g, 0);
    g.sampling.n_logprobs = 3;
    g.seq.flags |= KG_SEQ_ECHO | KG_SEQ_LOGITS;
    xrig_step(&x, &g.seq, 1, &r);
    q = &r.seqs[0];
    assert_int_equal(q->n_tokens, 1);
    for (uint32_t j = 0; j < N_PROMPT; j++) {
        const float *row = q->logits + (size_t)j * vocab;
        const struct kg_logprob *lp = q->echo + (size_t)j * width;
        uint32_t next = j + 1 < N_PROMPT ? g.tokens[j + 1] : q->tokens[0];
        assert_int_equal(lp[0].id, next);
        assert_true(fabs(lp[0].logprob - log_softmax(row, vocab, next)) < 1e-5);
        for (uint32_t k = 1; k < width; k++) {
            assert_true(fabs(lp[k].logprob - log_softmax(row, vocab, lp[k].id)) < 1e-5);
            assert_true(k == 1 || lp[k].logprob <= lp[k - 1].logprob);
        }
    }
    assert_memory_equal(q->logprobs, q->echo + (size_t)(N_PROMPT - 1) * width,
                        width * sizeof(*q->logprobs));
    xrig_close(&x);
}

static void a_stop_id_ends_and_is_masked_before_min_tokens(void **state)
{
    struct xrig x;
    struct good g;
    struct kg_result r;
    uint32_t greedy;

    (void)state;
    xrig_open(&x, &options);
    good_open(&x, &g, 0);
    xrig_step(&x, &g.seq, 1, &r);
    assert_int_equal(r.seqs[0].flags, 0);
    greedy = r.seqs[0].tokens[0];
    g.sampling.n_stop_ids = 1;
    g.sampling.stop_ids[0] = greedy;
    xrig_step(&x, &g.seq, 1, &r);
    assert_int_equal(r.seqs[0].flags, KG_RES_STOP);
    assert_int_equal(r.seqs[0].tokens[0], greedy);
    g.sampling.min_tokens = 1;
    xrig_step(&x, &g.seq, 1, &r);
    assert_int_equal(r.seqs[0].flags, 0);
    assert_int_not_equal(r.seqs[0].tokens[0], greedy);
    xrig_close(&x);
}

/* Bits of the logits of b's first row in a batch with a. */
static uint32_t run_pair(struct xrig *x, struct good *a, struct good *b, uint32_t *flags_a)
{
    struct kg_seq two[2] = {a->seq, b->seq};
    struct kg_result r;
    uint32_t bits;

    two[1].flags |= KG_SEQ_LOGITS;
    xrig_step(x, two, 2, &r);
    *flags_a = r.seqs[0].flags;
    if (*flags_a & KG_RES_NAN)
        assert_int_equal(r.seqs[0].n_tokens, 0);
    assert_int_equal(r.seqs[1].flags, 0);
    memcpy(&bits, r.seqs[1].logits + 7, sizeof(bits));
    return bits;
}

static void a_row_that_is_not_finite_ends_its_own_request_only(void **state) /* V28, V46, S24 */
{
    struct xrig x;
    struct good a, b;
    uint32_t clean, flags, src;

    (void)state;
    xrig_open(&x, &options);
    good_open(&x, &a, 0);
    good_open(&x, &b, 1);
    clean = run_pair(&x, &a, &b, &flags);
    assert_int_equal(flags, 0);
    a.seq.flags |= KG_SEQ_POISON;
    assert_int_equal(run_pair(&x, &a, &b, &flags), clean);
    assert_int_equal(flags, KG_RES_NAN);
    a.seq.flags &= ~KG_SEQ_POISON;
    src = xrig_take(&x, KG_STATE); /* holds NaN */
    a.seq.state_src = src;
    assert_int_equal(run_pair(&x, &a, &b, &flags), clean);
    assert_int_equal(flags, KG_RES_NAN);
    a.seq.flags &= ~KG_SEQ_SAMPLE; /* a chunk inside a prompt is watched too */
    assert_int_equal(run_pair(&x, &a, &b, &flags), clean);
    assert_int_equal(flags, KG_RES_NAN);
    a.seq.state_src = KG_STATE_ZERO;
    assert_int_equal(run_pair(&x, &a, &b, &flags), clean);
    assert_int_equal(flags, 0);
    xrig_close(&x);
}

static void units_travel_whole(void **state)
{
    static const uint32_t kinds[] = {KG_PAGE, KG_STATE};
    struct xrig x;

    (void)state;
    xrig_open(&x, &options);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t kind = kinds[i], a = xrig_take(&x, kind), b = xrig_take(&x, kind);
        uint64_t n = kind == KG_PAGE ? PAGE * x.desc.token_bytes
                                     : x.desc.n_state_parts * x.desc.state_part_bytes;
        uint8_t *in = malloc(n), *out = malloc(n);
        assert_true(in != NULL && out != NULL);
        for (uint64_t j = 0; j < n; j++)
            in[j] = (uint8_t)(j * 31 + kind);
        assert_int_equal(x.ops->write(x.exec, kind, a, in, n), KG_OK);
        assert_int_equal(x.ops->copy(x.exec, kind, b, a), KG_OK);
        xrig_apply(&x, 20); /* moved, still the same bytes */
        assert_int_equal(x.ops->zero(x.exec, kind, a), KG_OK);
        assert_int_equal(x.ops->read(x.exec, kind, b, out, n), KG_OK);
        assert_memory_equal(in, out, n);
        assert_int_equal(x.ops->read(x.exec, kind, a, out, n), KG_OK);
        for (uint64_t j = 0; j < n; j++)
            assert_int_equal(out[j], 0);
        assert_int_equal(x.ops->read(x.exec, kind, a, out, n - 1), KG_EINVAL);
        assert_int_equal(x.ops->write(x.exec, kind, a, in, n + 1), KG_EINVAL);
        assert_int_equal(x.ops->copy(x.exec, kind, 1u << 30, a), KG_EINVAL);
        assert_int_equal(x.ops->zero(x.exec, 2, a), KG_EINVAL);
        xrig_give(&x, kind, b);
        xrig_apply(&x, 0);
        assert_int_equal(x.ops->poison(x.exec, kind, b), KG_EINVAL);
        free(in);
        free(out);
    }
    xrig_close(&x);
}

static void views_cover_every_byte_of_a_unit_once(void **state)
{
    struct xrig x;
    const struct kg_view *v;
    uint64_t bytes[KG_N_KINDS] = {0};
    uint32_t n;

    (void)state;
    xrig_open(&x, &options);
    assert_int_equal(x.ops->views(x.exec, &v, &n), KG_OK);
    assert_int_equal(n, x.desc.n_mla_layers + 2 * x.desc.n_kda_layers);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t span = v[i].n * kg_dtype_bytes(v[i].dtype);
        uint64_t end = v[i].offset + span;
        if (v[i].kind == KG_PAGE)
            end = v[i].offset + (PAGE - 1) * v[i].token_stride + span;
        assert_true(end <= x.layout.stride[v[i].kind]);
        assert_true(v[i].entry < x.units[v[i].kind].entries);
        bytes[v[i].kind] += span;
    }
    assert_int_equal(bytes[KG_PAGE], x.desc.token_bytes);
    assert_true(bytes[KG_STATE] <= x.desc.n_state_parts * x.desc.state_part_bytes);
    assert_true(bytes[KG_STATE] + x.desc.n_state_parts * x.desc.align >
                x.desc.n_state_parts * x.desc.state_part_bytes);
    xrig_close(&x);
}

static void moves_and_changes_outside_the_layout_change_nothing(void **state)
{
    struct xrig x;
    struct kg_move move = {.kind = KG_PAGE, .from = 0, .to = 1};
    struct kg_table_change change = {.kind = KG_STATE, .entry = 0, .slot = KG_NONE};

    (void)state;
    xrig_open(&x, &options);
    assert_int_equal(x.ops->apply(x.exec, &move, 1, &change, 1), KG_OK);
    move.to = x.layout.max_slots[KG_PAGE];
    assert_int_equal(x.ops->apply(x.exec, &move, 1, NULL, 0), KG_EINVAL);
    move.kind = 2;
    assert_int_equal(x.ops->apply(x.exec, &move, 1, NULL, 0), KG_EINVAL);
    change.entry = x.layout.max_units[KG_STATE] * x.layout.slots_per_state;
    assert_int_equal(x.ops->apply(x.exec, NULL, 0, &change, 1), KG_EINVAL);
    change.entry = 0;
    change.slot = x.layout.max_slots[KG_STATE];
    assert_int_equal(x.ops->apply(x.exec, NULL, 0, &change, 1), KG_EINVAL);
    xrig_close(&x);
}

static void profile_times_a_step_and_refuses_what_cannot_run(void **state)
{
    struct xrig x;
    uint64_t ns = 0;

    (void)state;
    xrig_open(&x, &options);
    assert_int_equal(x.ops->profile(x.exec, 4, 4, 100, &ns), KG_OK);
    assert_true(ns > 0);
    assert_int_equal(x.ops->profile(x.exec, 2, 7, 0, &ns), KG_OK);
    assert_int_equal(x.ops->profile(x.exec, 5, 5, 100, &ns), KG_EINVAL);
    assert_int_equal(x.ops->profile(x.exec, 2, 1, 100, &ns), KG_EINVAL);
    assert_int_equal(x.ops->profile(x.exec, 1, 65, 100, &ns), KG_EINVAL);
    assert_int_equal(x.ops->profile(x.exec, 1, 1, x.desc.max_context, &ns), KG_EINVAL);
    xrig_close(&x);
}

static void bind_refuses_a_layout_that_does_not_fit(void **state) /* V38 */
{
    char path[512];
    struct xrig x;
    struct kg_error err = {0};
    struct kg_pool_layout good, l;

    (void)state;
    xrig_open(&x, &options);
    good = x.layout;
    xrig_close(&x);
    (void)snprintf(path, sizeof(path), "%s/%s", TEST_ROOT, options.model);
    assert_int_equal(xrig_try_open(&x, &options, path, &err), KG_OK);
#define MISFIT(field, value, want)                                   \
    do {                                                             \
        l = good;                                                    \
        l.field = value;                                             \
        assert_int_equal(x.ops->bind(x.exec, &l, &err), KG_ECONFIG); \
        if (strstr(err.text, want) == NULL)                          \
            fail_msg("\"%s\" does not say \"%s\"", err.text, want);  \
    } while (0)
    MISFIT(page_tokens, 0, "page_tokens 0");
    MISFIT(page_tokens, 1000, "page stride");
    MISFIT(slots_per_state, 1, "room for 4 parts, wanted 6");
    MISFIT(slots_per_state, 3, "is empty");
    MISFIT(stride[KG_STATE], 64, "state stride");
    MISFIT(stride[KG_PAGE], good.stride[KG_PAGE] + 1, "multiples of 64");
    MISFIT(max_slots[KG_STATE], 1u << 31, "pass the arena's end");
    MISFIT(base[KG_STATE], UINT64_MAX - 63, "pass the arena's end");
    MISFIT(max_units[KG_PAGE], 0, "max_units");
    assert_int_equal(x.ops->bind(x.exec, &good, &err), KG_OK);
    assert_int_equal(x.ops->bind(x.exec, &good, &err), KG_EINVAL);
    x.ops->close(x.exec);
    assert_int_equal(x.held_bytes, 0);
}

static void open_names_what_is_missing(void **state)
{
    struct xrig x;
    struct kg_error err = {0};

    (void)state;
    assert_int_equal(xrig_try_open(&x, &options, "/nonexistent/model", &err), KG_ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent/model"));
    assert_int_equal(x.held_bytes, 0);
    assert_int_equal(xrig_try_open(&x, &options, "", &err), KG_ECONFIG);
    assert_non_null(strstr(err.text, "[model] path"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_that_breaks_the_contract_is_refused_by_name),
        cmocka_unit_test(samplings_out_of_range_are_refused),
        cmocka_unit_test(orders_must_rise_inside_the_step_and_be_mapped),
        cmocka_unit_test(batches_that_contradict_themselves_are_refused),
        cmocka_unit_test(later_steps_must_continue_what_the_slot_holds),
        cmocka_unit_test(echo_reports_the_log_probability_of_each_next_token),
        cmocka_unit_test(a_stop_id_ends_and_is_masked_before_min_tokens),
        cmocka_unit_test(a_row_that_is_not_finite_ends_its_own_request_only),
        cmocka_unit_test(units_travel_whole),
        cmocka_unit_test(views_cover_every_byte_of_a_unit_once),
        cmocka_unit_test(moves_and_changes_outside_the_layout_change_nothing),
        cmocka_unit_test(profile_times_a_step_and_refuses_what_cannot_run),
        cmocka_unit_test(bind_refuses_a_layout_that_does_not_fit),
        cmocka_unit_test(open_names_what_is_missing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
