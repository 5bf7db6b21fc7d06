/* exec-null finds what an engine does wrong with units: each fault is made once and named. */
#include "xc.h"

#include <stdlib.h>
#include <string.h>

/* The next row of s is refused with a text that says `what`. */
static void found(struct xc *x, struct xseq *s, const char *what)
{
    struct kg_error err = {0};

    s->rows = 1;
    assert_int_equal(xc_run(x, &s, 1, &err), KG_EINVAL);
    if (strstr(err.text, what) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, what);
    }
}

static void start(struct xc *x, struct xseq *s)
{
    xc_open(x);
    xseq_init(x, s, 0, 21, 1);
    xc_generate(x, s, 8, 4);
}

static void a_lost_move_is_found(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < KG_N_KINDS; kind++) {
        struct xc x;
        struct xseq s;
        start(&x, &s);
        uint32_t id = kind == KG_PAGE ? s.pages[1] : s.state;
        struct kg_table_change c = {kind, id, kind == KG_PAGE ? XC_PAGES : XC_STATES};
        assert_int_equal(x.ops->apply(x.exec, NULL, 0, &c, 1), KG_OK); /* the bytes stayed */
        found(&x, &s, kind == KG_PAGE ? "page 1 (mapped)" : "state 0 part 0");
        xc_close(&x);
    }
}

static void a_stale_state_is_found(void **state) /* V27, S9 */
{
    (void)state;
    struct xc x;
    struct xseq s;
    start(&x, &s);
    uint8_t *old = xc_read(&x, KG_STATE, s.state);
    xc_one(&x, &s, 1);
    assert_int_equal(x.ops->write(x.exec, KG_STATE, s.state, old, x.natural[KG_STATE]), KG_OK);
    free(old);
    found(&x, &s, "state 0 part 0 holds");
    xc_close(&x);
}

static void pages_in_the_wrong_order_are_found(void **state)
{
    (void)state;
    struct xc x;
    struct xseq s;
    start(&x, &s);
    uint32_t page = s.pages[0], unit = xc_take(&x, KG_STATE);
    assert_int_equal(x.ops->copy(x.exec, KG_STATE, unit, s.state), KG_OK);
    s.pages[0] = s.pages[1];
    s.pages[1] = page;
    s.fresh = 1;
    s.n_sent = 0;
    s.state_src = unit;
    found(&x, &s, "for token 0");
    xc_close(&x);
}

static void a_page_given_away_is_found(void **state)
{
    (void)state;
    struct xc x;
    struct xseq s, thief;
    start(&x, &s);
    xseq_init(&x, &thief, 1, 5, 2);
    thief.pages[thief.n_pages++] = s.pages[2]; /* two owners */
    xc_one(&x, &thief, 5);
    found(&x, &s, "for token 16");
    xc_close(&x);
}

static void an_unmapped_page_is_found(void **state)
{
    (void)state;
    struct xc x;
    struct xseq s;
    start(&x, &s);
    xc_one(&x, &s, 1); /* room for the next row, so that no page is taken below */
    xc_give(&x, KG_PAGE, s.pages[0]);
    found(&x, &s, "(unmapped)");
    xc_close(&x);
}

static void a_state_shared_with_a_checkpoint_is_found(void **state) /* S10, S37 */
{
    (void)state;
    struct xc x;
    struct xseq s;
    start(&x, &s);
    s.orders[0] = (struct kg_order){s.past + 1, s.state};
    s.n_orders = 1;
    found(&x, &s, "the working state");
    xc_close(&x);
}

static void an_old_epoch_is_found(void **state)
{
    (void)state;
    struct xc x;
    struct xseq s;
    start(&x, &s);
    s.epoch++;
    found(&x, &s, "no RESET");
    xc_close(&x);
}

static void a_foreign_token_is_found(void **state)
{
    (void)state;
    struct xc x;
    struct xseq s;
    start(&x, &s);
    s.tokens[s.n - 1] ^= 1;
    found(&x, &s, "carries token");
    xc_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_move_is_found),
        cmocka_unit_test(a_stale_state_is_found),
        cmocka_unit_test(pages_in_the_wrong_order_are_found),
        cmocka_unit_test(a_page_given_away_is_found),
        cmocka_unit_test(an_unmapped_page_is_found),
        cmocka_unit_test(a_state_shared_with_a_checkpoint_is_found),
        cmocka_unit_test(an_old_epoch_is_found),
        cmocka_unit_test(a_foreign_token_is_found),
    };
    xc_name = "null";
    xc_options = "";
    xc_model = "";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
