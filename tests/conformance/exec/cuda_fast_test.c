/*
 * exec-cuda in fast math: what it promises of its bits and what not. Prefill takes 16 rows of the
 * recurrence at once, so only cuts at multiples of 16 keep the bits, and decoding leaves others;
 * windows are decoding, and a batch changes nothing. Few rows share the keys of a long context. The
 * plugin is part of the program, so kernels can be counted. cuda_fast_test MODEL.
 */
#include "xc.h"

#include "tests/emu/emu.h"

#include <stdlib.h>
#include <string.h>

#define INVARIANT \
    (KG_EXEC_CAP_INVARIANT_BATCH | KG_EXEC_CAP_INVARIANT_CHUNK | KG_EXEC_CAP_INVARIANT_PATH)
#define FAST "math=fast threads=1"
#define EXACT "math=exact threads=1"

const struct kg_plugin *kg_plugin_entry(void);

static void open_as(struct xc *x, const char *options)
{
    xc_options = options;
    xc_open(x);
}

static void it_claims_what_its_math_keeps(void **state)
{
    (void)state;
    struct xc x;
    open_as(&x, EXACT);
    assert_int_equal(x.desc.caps & INVARIANT, INVARIANT);
    assert_int_equal(x.desc.caps & ~xc_plugin->caps, 0);
    xc_close(&x);
    open_as(&x, FAST);
    assert_int_equal(x.desc.caps & INVARIANT, KG_EXEC_CAP_INVARIANT_BATCH);
    assert_int_equal(x.desc.caps & ~xc_plugin->caps, 0);
    xc_close(&x);
}

/* Prefills 20 tokens: `single` of them one by one, then up to `cut`, then the rest. */
static void prefill(struct xc *x, struct xseq *s, uint32_t slot, uint32_t single, uint32_t cut)
{
    xseq_init(x, s, slot, 20, 11);
    while (s->past < single)
        xc_one(x, s, 1);
    if (cut > s->past)
        xc_one(x, s, cut - s->past);
    xc_one(x, s, 20 - s->past);
}

static int is_same_state(struct xc *x, const struct xseq *a, const struct xseq *b)
{
    uint8_t *p = xc_read(x, KG_STATE, a->state), *q = xc_read(x, KG_STATE, b->state);
    int same = memcmp(p, q, x->natural[KG_STATE]) == 0;

    free(p);
    free(q);
    return same;
}

static void cuts_of_a_prefill_keep_bits_where_they_may(void **state)
{
    (void)state;
    for (uint32_t fast = 0; fast < 2; fast++) {
        struct xc x;
        struct xseq s[4];
        open_as(&x, fast ? FAST : EXACT);
        prefill(&x, &s[0], 0, 0, 0);
        prefill(&x, &s[1], 1, 0, 16);
        prefill(&x, &s[2], 2, 0, 8);
        prefill(&x, &s[3], 3, 1, 16); /* as decoding would leave them */
        xc_assert_same(&x, &s[0], &s[1]);
        assert_int_equal(is_same_state(&x, &s[0], &s[2]), !fast);
        assert_int_equal(is_same_state(&x, &s[0], &s[3]), !fast);
        xc_close(&x);
    }
}

static void a_window_leaves_the_bits_of_decoding(void **state)
{
    (void)state;
    struct xc x;
    struct xseq a, b;
    open_as(&x, FAST);
    xseq_init(&x, &a, 0, 16, 5);
    xc_generate(&x, &a, 16, XC_DRAFT + 2);
    xseq_init(&x, &b, 1, 16, 5);
    xc_generate(&x, &b, 16, 1);
    b.n_draft = XC_DRAFT; /* positions 16 .. 32: a whole block of 16, and it is not taken so */
    b.drafts = a.tokens + b.n;
    xc_one(&x, &b, 1 + XC_DRAFT);
    assert_int_equal(b.res.n_accepted, XC_DRAFT);
    xc_assert_same(&x, &a, &b);
    xc_close(&x);
}

static void a_batch_changes_nothing(void **state)
{
    (void)state;
    struct xc x;
    struct xseq alone, s[3], *all[3];
    struct kg_error err = {0};
    open_as(&x, FAST);
    for (uint32_t i = 0; i < 3; i++) {
        xseq_init(&x, &s[i], i, 16 + i, 20 + i);
        s[i].rows = s[i].n_prompt;
        all[i] = &s[i];
    }
    for (uint32_t k = 0; k < 2; k++) {
        if (xc_run(&x, all, 3, &err) != KG_OK)
            fail_msg("refused: %s", err.text);
        for (uint32_t i = 0; i < 3; i++)
            s[i].rows = 1;
    }
    for (uint32_t i = 0; i < 3; i += 2) {
        xseq_init(&x, &alone, 5, 16 + i, 20 + i);
        xc_generate(&x, &alone, 64, 2);
        xc_assert_same(&x, &alone, &s[i]);
        xseq_end(&x, &alone);
    }
    xc_close(&x);
}

/* Kernels of a step that decodes at position `past`, over units of zeros. */
static unsigned long long kernels_at(struct xc *x, uint32_t past)
{
    struct xseq s;

    xseq_init(x, &s, 0, past + 1, 1);
    s.past = past;
    s.state_src = s.state;
    assert_int_equal(x->ops->zero(x->exec, KG_STATE, s.state), KG_OK);
    while (s.n_pages * x->layout.page_tokens <= past) {
        s.pages[s.n_pages++] = xc_take(x, KG_PAGE);
        assert_int_equal(x->ops->zero(x->exec, KG_PAGE, s.pages[s.n_pages - 1]), KG_OK);
    }
    unsigned long long before = kg_emu_launches();
    xc_one(x, &s, 1);
    before = kg_emu_launches() - before;
    xseq_end(x, &s);
    return before;
}

static void few_rows_share_the_keys_of_a_long_context(void **state)
{
    (void)state;
    for (uint32_t fast = 0; fast < 2; fast++) {
        struct xc x;
        open_as(&x, fast ? FAST : EXACT);
        unsigned long long near = kernels_at(&x, 300), far = kernels_at(&x, 600);
        /* the parts of each layer's attention are joined */
        assert_int_equal(far, near + (fast ? x.desc.n_mla_layers : 0));
        xc_close(&x);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_claims_what_its_math_keeps),
        cmocka_unit_test(cuts_of_a_prefill_keep_bits_where_they_may),
        cmocka_unit_test(a_window_leaves_the_bits_of_decoding),
        cmocka_unit_test(a_batch_changes_nothing),
        cmocka_unit_test(few_rows_share_the_keys_of_a_long_context),
    };

    if (argc < 2)
        return 2;
    xc_plugin = kg_plugin_entry();
    xc_name = xc_plugin->name;
    xc_model = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
