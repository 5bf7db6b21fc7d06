/* What a backend says of itself, what it must refuse, unit traffic, reports and time. */
#include "xc.h"

#include <stdlib.h>
#include <string.h>

static void the_description_is_usable_and_bits_have_their_ops(void **state)
{
    (void)state;
    struct xc x;
    xc_open(&x);
    const struct kg_exec_desc *d = &x.desc;
    assert_true(d->token_bytes > 0 && d->state_part_bytes > 0 && d->n_state_parts > 0);
    assert_true(d->recurrent_bytes <= d->n_state_parts * d->state_part_bytes);
    assert_true(d->draft_token_bytes <= d->token_bytes);
    assert_true(d->align > 0 && (d->align & (d->align - 1)) == 0 && d->page_tokens_align > 0);
    assert_true(d->vocab > 1 && d->max_orders >= 4 && d->n_layers > 0);
    assert_true(d->max_context > 0 && d->max_context <= XC_CONTEXT);
    assert_non_null(d->family);
    assert_non_null(d->kernels);
    assert_non_null(d->math);
    assert_int_equal(d->caps & ~x.part.plugin->caps, 0); /* an instance never has more */
    assert_true(!(d->caps & KG_EXEC_CAP_DRAFT) || KG_HAS(x.ops, struct kg_exec_ops, draft));
    assert_true(!(d->caps & KG_EXEC_CAP_VIRTUAL) || KG_HAS(x.ops, struct kg_exec_ops, advance));
    assert_true(!(d->caps & KG_EXEC_CAP_VIEWS) || KG_HAS(x.ops, struct kg_exec_ops, views));
    assert_true(!(d->caps & KG_EXEC_CAP_DRAFT) || d->draft_block > 0);
    x.ops->close(NULL); /* allowed */
    xc_close(&x);
}

static void refused(struct xc *x, const struct kg_seq *q, uint32_t n, uint32_t n_rows,
                    const char *what)
{
    struct kg_error err = {0};
    struct kg_result result = {.size = sizeof(result)};
    struct kg_batch batch = {
        .size = sizeof(batch), .step = ++x->step, .seqs = q, .n_seqs = n, .n_rows = n_rows};

    int rc = x->ops->submit(x->exec, &batch, &err);
    if (rc != KG_EINVAL) {
        fail_msg("%s: answer %d", what, rc);
    }
    assert_true(strlen(err.text) > 0);
    assert_true(x->ops->wait(x->exec, &result, &err) < 0); /* nothing is under way */
}

/* Each rule broken alone; the good batch behind them shows that nothing was computed. */
static void a_batch_that_breaks_a_rule_is_refused_and_nothing_computed(void **state) /* V37 */
{
    (void)state;
    struct xc x;
    struct xseq s, a;
    xc_open(&x);
    xseq_init(&x, &s, 0, 20, 40);
    s.rows = 20;
    struct kg_seq good = xseq_next(&x, &s), q;
    uint32_t unmapped[8], spare = xc_take(&x, KG_STATE), far[20];
    memset(unmapped, 0, sizeof(unmapped));
    unmapped[0] = XC_PAGES - 1;
    for (uint32_t i = 0; i < 20; i++) {
        far[i] = x.desc.vocab;
    }
    struct kg_order late = {21, spare}, twice[2] = {{4, spare}, {4, spare}},
                    nowhere = {4, XC_STATES - 1};
#define BAD(field, value)                     \
    do {                                      \
        q = good;                             \
        q.field = value;                      \
        refused(&x, &q, 1, q.n_rows, #field); \
    } while (0)
    BAD(slot, XC_SEQS);
    BAD(n_rows, 0);
    BAD(n_pages, good.n_pages - 1);
    BAD(pages, unmapped);
    BAD(state, XC_STATES - 1);
    BAD(state, XC_STATES + 5);
    BAD(state_src, KG_STATE_KEEP);
    BAD(state_src, XC_STATES - 1);
    BAD(tokens, far);
    BAD(left, 0);
    BAD(history, NULL);
    BAD(sampling, NULL);
    BAD(n_history, 19);
    BAD(n_draft, 20);
    BAD(flags, KG_SEQ_SAMPLE); /* no RESET on a slot that was never used */
    q = good;
    q.n_orders = 1;
    q.orders = &late;
    refused(&x, &q, 1, 20, "a checkpoint behind the rows");
    q.orders = &nowhere;
    refused(&x, &q, 1, 20, "a checkpoint into no unit");
    q.n_orders = 2;
    q.orders = twice;
    refused(&x, &q, 1, 20, "checkpoints not in order");
    struct kg_seq both[2] = {good, good};
    refused(&x, both, 2, 40, "a slot twice"); /* a slot twice */
    refused(&x, &good, 1, 19, "n_rows below the sum");
    refused(&x, &good, 1, XC_ROWS + 1, "n_rows above the limit");
    refused(&x, &good, 0, 0, "no sequence");
#undef BAD
    xc_generate(&x, &s, 64, 6);
    xseq_init(&x, &a, 1, 20, 40);
    xc_generate(&x, &a, 64, 6);
    xc_assert_same(&x, &a, &s);
    /* A continued sequence: wrong past, a slot that was dropped. */
    s.rows = 1;
    good = xseq_next(&x, &s);
    q = good;
    q.past--;
    refused(&x, &q, 1, 1, "past that is not the committed length");
    x.ops->drop(x.exec, &s.slot, 1);
    refused(&x, &good, 1, 1, "a dropped slot");
    xc_close(&x);
}

static void bind_refuses_a_second_layout(void **state)
{
    (void)state;
    struct xc x;
    struct kg_error err = {0};
    xc_open(&x);
    assert_true(x.ops->bind(x.exec, &x.layout, &err) < 0);
    assert_true(strlen(err.text) > 0);
    xc_close(&x);
}

static void unit_bytes_travel_whole(void **state)
{
    (void)state;
    struct xc x;
    xc_open(&x);
    if (x.desc.caps & KG_EXEC_CAP_NO_BYTES) {
        xc_close(&x);
        print_message("skipped: this backend holds no bytes\n");
        skip();
    }
    for (uint32_t kind = 0; kind < KG_N_KINDS; kind++) {
        uint32_t a = xc_take(&x, kind), b = xc_take(&x, kind), c = xc_take(&x, kind);
        uint64_t n = x.natural[kind];
        uint8_t *w = malloc(n), *r;
        for (uint64_t i = 0; i < n; i++) {
            w[i] = (uint8_t)(i * 31 + kind);
        }
        assert_int_equal(x.ops->write(x.exec, kind, a, w, n), KG_OK);
        assert_int_equal(x.ops->zero(x.exec, kind, c), KG_OK);
        assert_int_equal(x.ops->copy(x.exec, kind, b, a), KG_OK);
        assert_int_equal(x.ops->poison(x.exec, kind, a), KG_OK);
        xc_shuffle(&x);
        r = xc_read(&x, kind, b);
        assert_memory_equal(r, w, n);
        free(r);
        r = xc_read(&x, kind, c);
        for (uint64_t i = 0; i < n; i++) {
            assert_int_equal(r[i], 0);
        }
        free(r);
        r = xc_read(&x, kind, a);
        float f; /* any four bytes of a poisoned unit are a NaN as float */
        memcpy(&f, r, sizeof(f));
        assert_true(f != f);
        free(r);
        assert_int_equal(x.ops->read(x.exec, kind, a, w, n - 1), KG_EINVAL);
        assert_int_equal(x.ops->write(x.exec, kind, a, w, n + 1), KG_EINVAL);
        uint32_t none = (kind == KG_PAGE ? XC_PAGES : XC_STATES) - 1;
        assert_int_equal(x.ops->read(x.exec, kind, none, w, n), KG_EINVAL);
        assert_int_equal(x.ops->zero(x.exec, kind, none), KG_EINVAL);
        assert_int_equal(x.ops->poison(x.exec, kind, none), KG_EINVAL);
        assert_int_equal(x.ops->copy(x.exec, kind, none, b), KG_EINVAL);
        free(w);
    }
    xc_close(&x);
}

static void apply_refuses_slots_and_entries_that_do_not_exist(void **state)
{
    (void)state;
    struct xc x;
    xc_open(&x);
    struct kg_move m = {KG_PAGE, 0, XC_PAGES + 1, 0};
    struct kg_table_change c = {KG_STATE, XC_STATES, 0};
    assert_true(x.ops->apply(x.exec, &m, 1, NULL, 0) < 0);
    assert_true(x.ops->apply(x.exec, NULL, 0, &c, 1) < 0);
    assert_int_equal(x.ops->apply(x.exec, NULL, 0, NULL, 0), KG_OK);
    xc_close(&x);
}

static void views_cover_a_state_once_and_stay_inside_a_token(void **state)
{
    (void)state;
    struct xc x;
    const struct kg_view *v;
    uint32_t n;
    xc_open(&x);
    if (!(x.desc.caps & KG_EXEC_CAP_VIEWS)) {
        xc_close(&x);
        print_message("skipped: this backend lacks the capability\n");
        skip();
    }
    assert_int_equal(x.ops->views(x.exec, &v, &n), KG_OK);
    uint8_t *seen = calloc(1, x.natural[KG_STATE]), *token = calloc(1, x.desc.token_bytes);
    uint64_t state_bytes = 0, token_bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = v[i].n * kg_dtype_bytes(v[i].dtype);
        uint8_t *map = v[i].kind == KG_PAGE ? token : seen;
        uint64_t end = v[i].kind == KG_PAGE ? x.desc.token_bytes : x.natural[KG_STATE];
        uint64_t at = v[i].kind == KG_PAGE ? 0 : v[i].offset;
        assert_true(bytes > 0 && v[i].layer < x.desc.n_layers && v[i].entry == 0);
        if (v[i].kind == KG_PAGE) { /* layers may lie apart in a page: only sizes are comparable */
            assert_true(v[i].offset + v[i].token_stride * (x.layout.page_tokens - 1ull) + bytes <=
                        x.natural[KG_PAGE]);
            token_bytes += bytes;
            continue;
        }
        assert_true(at + bytes <= end);
        for (uint64_t b = at; b < at + bytes; b++) {
            assert_int_equal(map[b]++, 0);
        }
        state_bytes += bytes;
    }
    assert_true(token_bytes <= x.desc.token_bytes && token_bytes > 0);
    assert_true(state_bytes <= x.natural[KG_STATE] && state_bytes > 0);
    free(seen);
    free(token);
    xc_close(&x);
}

static void reports_name_the_tokens_they_speak_of(void **state)
{
    (void)state;
    struct xc x;
    struct xseq s;
    xc_open(&x);
    xseq_init(&x, &s, 0, 12, 50);
    s.sampling.n_logprobs = 3;
    s.flags = KG_SEQ_ECHO | (x.desc.caps & KG_EXEC_CAP_LOGITS ? KG_SEQ_LOGITS : 0);
    xc_one(&x, &s, 12);
    assert_non_null(s.res.echo);
    assert_non_null(s.res.logprobs);
    for (uint32_t j = 0; j < 12; j++) {
        const struct kg_logprob *e = s.res.echo + (size_t)j * 4;
        assert_int_equal(e[0].id, s.tokens[j + 1]); /* the last row's is the sampled one */
        for (uint32_t k = 0; k < 4; k++) {
            assert_true(e[k].id < x.desc.vocab && e[k].logprob <= 0.0f);
        }
        assert_true(e[1].logprob >= e[2].logprob && e[2].logprob >= e[3].logprob);
    }
    assert_int_equal(s.res.logprobs[0].id, s.tokens[12]);
    if (x.desc.caps & KG_EXEC_CAP_LOGITS) {
        const float *row = s.res.logits + (size_t)11 * x.desc.vocab;
        uint32_t best = 0;
        for (uint32_t t = 1; t < x.desc.vocab; t++) {
            best = row[t] > row[best] ? t : best;
        }
        assert_int_equal(best, s.tokens[12]); /* greedy */
    }
    xc_close(&x);
}

static void min_tokens_keeps_stop_ids_away(void **state)
{
    (void)state;
    struct xc x;
    struct xseq a, b;
    xc_open(&x);
    xseq_init(&x, &a, 0, 12, 51);
    xc_generate(&x, &a, 64, 4);
    xseq_init(&x, &b, 1, 12, 51);
    b.sampling.n_stop_ids = 1;
    b.sampling.stop_ids[0] = a.tokens[12]; /* what it would say first */
    b.sampling.min_tokens = 2;
    xc_one(&x, &b, 12);
    assert_true(b.tokens[12] != a.tokens[12]);
    assert_int_equal(b.res.flags & KG_RES_STOP, 0);
    xseq_end(&x, &b);
    xseq_init(&x, &b, 1, 12, 51);
    b.sampling.n_stop_ids = 1;
    b.sampling.stop_ids[0] = a.tokens[12];
    xc_one(&x, &b, 12);
    assert_int_equal(b.tokens[12], a.tokens[12]);
    assert_int_equal(b.res.flags & KG_RES_STOP, KG_RES_STOP);
    xc_close(&x);
}

static void time_never_falls_and_virtual_time_obeys(void **state)
{
    (void)state;
    struct xc x;
    struct xseq s;
    uint64_t ns = 0;
    xc_open(&x);
    uint64_t t0 = x.ops->now(x.exec);
    xseq_init(&x, &s, 0, 12, 52);
    xc_generate(&x, &s, 64, 2);
    uint64_t t1 = x.ops->now(x.exec);
    assert_true(t1 >= t0);
    if (x.desc.caps & KG_EXEC_CAP_VIRTUAL) {
        /* whoever computes goes on using time meanwhile */
        uint64_t t = t1 + 1000000000ull, slack = x.desc.caps & KG_EXEC_CAP_NO_BYTES ? 0 : t;
        for (int i = 0; i < 2; i++) {
            x.ops->advance(x.exec, i == 0 ? t : t1); /* never back */
            uint64_t now = x.ops->now(x.exec);
            assert_true(now >= t && now <= t + slack);
        }
    }
    assert_int_equal(x.ops->profile(x.exec, 2, 4, 40, &ns), KG_OK);
    assert_true(x.ops->profile(x.exec, 2, XC_ROWS + 1, 40, &ns) < 0);
    xc_close(&x);
}

static void drafts_come_with_survivals_that_fall(void **state)
{
    (void)state;
    struct xc x;
    struct xseq s;
    float survival[64];
    xc_open(&x);
    if (!(x.desc.caps & KG_EXEC_CAP_DRAFT)) {
        xc_close(&x);
        print_message("skipped: this backend lacks the capability\n");
        skip();
    }
    xseq_init(&x, &s, 0, 12, 53);
    struct kg_draft d = {.slot = 0, .n = 1, .survival = survival};
    assert_true(x.ops->draft(x.exec, &d, 1) < 0); /* nothing is known of that slot */
    xc_generate(&x, &s, 64, 2);
    for (uint32_t k = 0; k < 5; k++) {
        uint32_t want = x.desc.draft_block < XC_DRAFT ? x.desc.draft_block : XC_DRAFT;
        d.n = want;
        assert_int_equal(x.ops->draft(x.exec, &d, 1), KG_OK);
        assert_true(d.n <= want);
        for (uint32_t i = 0; i < d.n; i++) {
            assert_true(survival[i] >= 0.0f && survival[i] <= (i == 0 ? 1.0f : survival[i - 1]));
        }
        s.n_draft = d.n;
        s.drafts = NULL; /* the backend has its own */
        xc_one(&x, &s, 1 + d.n);
    }
    d.n = x.desc.draft_block + 1;
    assert_true(x.ops->draft(x.exec, &d, 1) < 0);
    xc_close(&x);
}

static void a_draft_has_a_price_within_the_limits(void **state)
{
    (void)state;
    struct xc x;
    uint64_t ns = UINT64_MAX;
    xc_open(&x);
    if (!(x.desc.caps & KG_EXEC_CAP_DRAFT) || !KG_HAS(x.ops, struct kg_exec_ops, profile_draft)) {
        xc_close(&x);
        print_message("skipped: this backend lacks the capability\n");
        skip();
    }
    for (uint32_t n = 1; n <= x.desc.draft_block; n++) {
        assert_int_equal(x.ops->profile_draft(x.exec, 2, n, 40, &ns), KG_OK);
        assert_true(ns < UINT64_MAX);
        ns = UINT64_MAX;
    }
    assert_true(x.ops->profile_draft(x.exec, 0, 1, 40, &ns) < 0);
    assert_true(x.ops->profile_draft(x.exec, 1, 0, 40, &ns) < 0);
    assert_true(x.ops->profile_draft(x.exec, 1, x.desc.draft_block + 1, 40, &ns) < 0);
    assert_true(x.ops->profile_draft(x.exec, 1, 1, x.desc.max_context + 1, &ns) < 0);
    xc_close(&x);
}

const struct CMUnitTest xc_contract_cases[] = {
    cmocka_unit_test(the_description_is_usable_and_bits_have_their_ops),
    cmocka_unit_test(a_batch_that_breaks_a_rule_is_refused_and_nothing_computed),
    cmocka_unit_test(bind_refuses_a_second_layout),
    cmocka_unit_test(unit_bytes_travel_whole),
    cmocka_unit_test(apply_refuses_slots_and_entries_that_do_not_exist),
    cmocka_unit_test(views_cover_a_state_once_and_stay_inside_a_token),
    cmocka_unit_test(reports_name_the_tokens_they_speak_of),
    cmocka_unit_test(min_tokens_keeps_stop_ids_away),
    cmocka_unit_test(time_never_falls_and_virtual_time_obeys),
    cmocka_unit_test(drafts_come_with_survivals_that_fall),
    cmocka_unit_test(a_draft_has_a_price_within_the_limits),
    {0},
};
