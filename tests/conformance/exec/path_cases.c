/* One sequence, many ways: chunks, batches, moves, drafts, checkpoints and resumption give the same
 * tokens and, where the backend promises it, the same bytes. */
#include "xc.h"

#include <stdlib.h>
#include <string.h>

#define N_PROMPT 29
#define N_OUT 12

#define NEEDS(x, bits)                                                \
    do {                                                              \
        if (((x).desc.caps & (bits)) != (bits)) {                     \
            xc_close(&(x));                                           \
            print_message("skipped: this backend lacks " #bits "\n"); \
            skip();                                                   \
        }                                                             \
    } while (0)

static void chunks_of_a_prompt_change_nothing(void **state) /* V10 */
{
    (void)state;
    static const uint32_t chunks[] = {1, 5, 8, 17};
    struct xc x;
    struct xseq a, b;
    xc_open(&x);
    NEEDS(x, KG_EXEC_CAP_INVARIANT_CHUNK);
    xseq_init(&x, &a, 0, N_PROMPT, 1);
    xc_generate(&x, &a, N_PROMPT, N_OUT);
    for (size_t i = xc_sample ? 1 : 0; i < (xc_sample ? 2 : 4); i++) {
        xseq_init(&x, &b, 1, N_PROMPT, 1);
        b.id = a.id;
        xc_generate(&x, &b, chunks[i], N_OUT);
        xc_assert_same(&x, &a, &b);
        xseq_end(&x, &b);
    }
    xc_close(&x);
}

static void a_batch_changes_nothing(void **state) /* V11, V28 */
{
    (void)state;
    struct xc x;
    struct xseq alone, s[4], *all[4];
    struct kg_error err = {0};
    uint32_t n_out = xc_sample ? 4 : N_OUT;
    xc_open(&x);
    NEEDS(x, KG_EXEC_CAP_INVARIANT_BATCH);
    for (uint32_t i = 0; i < 4; i++) {
        xseq_init(&x, &s[i], i, 9 + i, 20 + i);
        s[i].rows = s[i].n_prompt;
        all[i] = &s[i];
    }
    for (uint32_t k = 0; k < n_out; k++) {
        if (xc_run(&x, all, 4, &err) != KG_OK) {
            fail_msg("refused: %s", err.text);
        }
        for (uint32_t i = 0; i < 4; i++) {
            s[i].rows = 1;
        }
    }
    for (uint32_t i = xc_sample ? 2 : 0; i < 4; i++) {
        xseq_init(&x, &alone, 5, 9 + i, 20 + i);
        xc_generate(&x, &alone, 64, n_out);
        xc_assert_same(&x, &alone, &s[i]);
        xseq_end(&x, &alone);
    }
    xc_close(&x);
}

static void decoding_and_prefilling_the_same_tokens_leave_the_same_bytes(void **state)
{
    (void)state;
    struct xc x;
    struct xseq a, b;
    xc_open(&x);
    NEEDS(x, KG_EXEC_CAP_INVARIANT_PATH);
    xseq_init(&x, &a, 0, N_PROMPT, 2);
    xc_generate(&x, &a, 64, N_OUT);
    xseq_init(&x, &b, 1, N_PROMPT, 2); /* a resumed request: its output is known history */
    memcpy(b.tokens, a.tokens, (a.n - 1) * sizeof(uint32_t));
    b.n = a.n - 1;
    xc_one(&x, &b, b.n);
    xc_assert_same(&x, &a, &b);
    xc_close(&x);
}

static void moves_change_nothing(void **state)
{
    (void)state;
    struct xc x;
    struct xseq a, b;
    xc_open(&x);
    xseq_init(&x, &a, 0, N_PROMPT, 3);
    xc_generate(&x, &a, 7, N_OUT);
    xseq_init(&x, &b, 1, N_PROMPT, 3);
    while (b.past < N_PROMPT) {
        xc_one(&x, &b, b.past + 7 < N_PROMPT ? 7 : N_PROMPT - b.past);
        xc_shuffle(&x);
    }
    while (b.n < a.n) {
        xc_one(&x, &b, 1);
        xc_shuffle(&x);
    }
    xc_assert_same(&x, &a, &b);
    xc_close(&x);
}

static void a_checkpoint_is_the_state_at_its_position_and_resumes(void **state) /* V12, S9, S37 */
{
    (void)state;
    struct xc x;
    struct xseq a, b, c;
    xc_open(&x);
    NEEDS(x, KG_EXEC_CAP_INVARIANT_CHUNK);
    uint32_t page = x.layout.page_tokens, at = N_PROMPT / page * page;
    assert_true(x.desc.max_orders >= 4);
    xseq_init(&x, &a, 0, N_PROMPT, 4);
    a.orders[0] = (struct kg_order){3, xc_take(&x, KG_STATE)};
    a.orders[1] = (struct kg_order){at, xc_take(&x, KG_STATE)};
    a.n_orders = 2;
    uint32_t unit = a.orders[1].unit;
    xc_one(&x, &a, N_PROMPT);
    xc_generate(&x, &a, 64, N_OUT);
    xseq_init(&x, &b, 1, N_PROMPT, 4); /* stops at the position */
    xc_one(&x, &b, at);
    uint8_t *p = xc_read(&x, KG_STATE, unit), *q = xc_read(&x, KG_STATE, b.state);
    assert_memory_equal(p, q, x.natural[KG_STATE]);
    free(p);
    free(q);
    xseq_init(&x, &c, 2, N_PROMPT, 4); /* resumes from a's pages and the checkpoint */
    for (uint32_t i = 0; i < at / page; i++) {
        c.pages[c.n_pages] = xc_take(&x, KG_PAGE);
        assert_int_equal(x.ops->copy(x.exec, KG_PAGE, c.pages[c.n_pages++], a.pages[i]), KG_OK);
    }
    c.past = at;
    c.state_src = unit;
    xc_one(&x, &c, N_PROMPT - at);
    xc_generate(&x, &c, 64, N_OUT);
    xc_assert_same(&x, &a, &c);
    p = xc_read(&x, KG_STATE, unit); /* the source is copied, never written */
    q = xc_read(&x, KG_STATE, b.state);
    assert_memory_equal(p, q, x.natural[KG_STATE]);
    free(p);
    free(q);
    xc_close(&x);
}

/* Decodes `b` by verifying drafts taken from `a`'s output, spoiled at every `spoil`-th draft. */
static void verify_like(struct xc *x, const struct xseq *a, struct xseq *b, uint32_t spoil)
{
    uint32_t drafts[XC_DRAFT], n = 0;

    xc_one(x, b, b->n_prompt);
    while (b->n < a->n) {
        uint32_t left = a->n - b->n, k = left - 1 < XC_DRAFT ? left - 1 : XC_DRAFT, wrong = k;
        for (uint32_t i = 0; i < k; i++) {
            drafts[i] = a->tokens[b->n + i];
            if (spoil > 0 && ++n % spoil == 0) {
                drafts[i] = (drafts[i] + 1) % x->desc.vocab;
                wrong = wrong == k ? i : wrong;
            }
        }
        b->n_draft = k;
        b->drafts = drafts;
        xc_one(x, b, 1 + k);
        assert_int_equal(b->res.n_accepted, wrong);
        assert_int_equal(b->res.n_tokens, wrong + 1);
    }
}

static void verified_drafts_give_the_tokens_of_plain_decoding(void **state)
{
    (void)state;
    struct xc x;
    struct xseq a, b;
    xc_open(&x);
    NEEDS(x, KG_EXEC_CAP_VERIFY | KG_EXEC_CAP_INVARIANT_PATH);
    for (uint32_t greedy = 0; greedy < 2; greedy++) {
        for (uint32_t spoil = 0; spoil < 4; spoil++) {
            if (xc_sample && (greedy || spoil != 2))
                continue;
            xseq_init(&x, &a, 0, N_PROMPT, 5);
            a.sampling.temperature = greedy ? 0.0f : 0.8f;
            a.sampling.seed = 77;
            xc_generate(&x, &a, 64, N_OUT);
            xseq_init(&x, &b, 1, N_PROMPT, 5);
            b.sampling = a.sampling;
            verify_like(&x, &a, &b, spoil);
            xc_assert_same(&x, &a, &b);
            xseq_end(&x, &a);
            xseq_end(&x, &b);
        }
    }
    xc_close(&x);
}

static void a_forced_length_is_accepted_exactly(void **state)
{
    (void)state;
    struct xc x;
    struct xseq s;
    uint32_t drafts[XC_DRAFT] = {1, 0, 1, 0};
    xc_open(&x);
    NEEDS(x, KG_EXEC_CAP_VERIFY);
    xseq_init(&x, &s, 0, N_PROMPT, 6);
    xc_one(&x, &s, N_PROMPT);
    for (uint32_t force = 0; force <= XC_DRAFT + 1; force++) {
        uint32_t want = force < XC_DRAFT ? force : XC_DRAFT, past = s.past;
        s.n_draft = XC_DRAFT;
        s.drafts = drafts;
        s.force = force;
        xc_one(&x, &s, 1 + XC_DRAFT);
        assert_int_equal(s.res.n_accepted, want);
        assert_int_equal(s.res.n_tokens, want + 1);
        assert_int_equal(s.past, past + want + 1);
        assert_memory_equal(s.res.tokens, drafts, want * sizeof(uint32_t));
    }
    xc_close(&x);
}

static void left_and_stop_ids_cut_a_run(void **state)
{
    (void)state;
    struct xc x;
    struct xseq a, b;
    uint32_t drafts[XC_DRAFT];
    xc_open(&x);
    NEEDS(x, KG_EXEC_CAP_VERIFY | KG_EXEC_CAP_INVARIANT_PATH);
    xseq_init(&x, &a, 0, N_PROMPT, 7);
    xc_generate(&x, &a, 64, N_OUT);
    memcpy(drafts, a.tokens + N_PROMPT + 1, sizeof(drafts));
    for (uint32_t stop = 0; stop < 2; stop++) {
        xseq_init(&x, &b, 1, N_PROMPT, 7);
        if (stop) {
            b.sampling.n_stop_ids = 1;
            b.sampling.stop_ids[0] = drafts[1];
        }
        xc_one(&x, &b, N_PROMPT);
        if (b.res.flags & KG_RES_STOP) { /* the model repeats itself: the stop came first */
            assert_int_equal(b.tokens[N_PROMPT], drafts[1]);
            xseq_end(&x, &b);
            continue;
        }
        b.n_draft = XC_DRAFT;
        b.drafts = drafts;
        b.left = stop ? 50 : 2;
        uint32_t want = stop && drafts[0] == drafts[1] ? 1 : 2;
        xc_one(&x, &b, 1 + XC_DRAFT);
        assert_int_equal(b.res.n_tokens, want);
        assert_memory_equal(b.res.tokens, drafts, want * sizeof(uint32_t));
        assert_int_equal((b.res.flags & KG_RES_STOP) != 0, stop);
        xseq_end(&x, &b);
    }
    xc_close(&x);
}

static void a_nan_is_flagged_for_its_sequence_alone(void **state) /* V28, V46 */
{
    (void)state;
    struct xc x;
    struct xseq a, s[3], *all[3] = {&s[0], &s[1], &s[2]};
    struct kg_error err = {0};
    xc_open(&x);
    NEEDS(x, KG_EXEC_CAP_INVARIANT_BATCH);
    for (uint32_t i = 0; i < 3; i++) {
        xseq_init(&x, &s[i], i, N_PROMPT - 9, 30 + i);
        s[i].rows = s[i].n_prompt;
    }
    s[1].flags = KG_SEQ_POISON;
    assert_int_equal(xc_run(&x, all, 3, &err), KG_OK);
    assert_int_equal(s[0].res.flags & KG_RES_NAN, 0);
    assert_int_equal(s[1].res.flags & KG_RES_NAN, KG_RES_NAN);
    assert_int_equal(s[2].res.flags & KG_RES_NAN, 0);
    xseq_end(&x, &s[1]); /* its units are poisoned and may be reused */
    xseq_init(&x, &a, 1, N_PROMPT - 9, 30);
    xc_generate(&x, &a, 64, 5);
    xc_generate(&x, &s[0], 64, 5);
    xc_assert_same(&x, &a, &s[0]);
    xc_close(&x);
}

static void a_reset_slot_remembers_nothing(void **state) /* V27 */
{
    (void)state;
    struct xc x;
    struct xseq a, b;
    xc_open(&x);
    xseq_init(&x, &a, 0, N_PROMPT, 8);
    xc_generate(&x, &a, 64, N_OUT);
    xseq_init(&x, &b, 1, 11, 9); /* somebody else first, in the same slot */
    xc_generate(&x, &b, 64, 3);
    xseq_end(&x, &b);
    xseq_init(&x, &b, 1, N_PROMPT, 8);
    b.epoch = 2;
    xc_generate(&x, &b, 64, N_OUT);
    xc_assert_same(&x, &a, &b);
    xc_close(&x);
}

const struct CMUnitTest xc_path_cases[] = {
    cmocka_unit_test(chunks_of_a_prompt_change_nothing),
    cmocka_unit_test(a_batch_changes_nothing),
    cmocka_unit_test(decoding_and_prefilling_the_same_tokens_leave_the_same_bytes),
    cmocka_unit_test(moves_change_nothing),
    cmocka_unit_test(a_checkpoint_is_the_state_at_its_position_and_resumes),
    cmocka_unit_test(verified_drafts_give_the_tokens_of_plain_decoding),
    cmocka_unit_test(a_forced_length_is_accepted_exactly),
    cmocka_unit_test(left_and_stop_ids_cut_a_run),
    cmocka_unit_test(a_nan_is_flagged_for_its_sequence_alone),
    cmocka_unit_test(a_reset_slot_remembers_nothing),
    {0},
};
