/* The cost surface against backends whose step time is known. */
#include "engine/cost.h"
#include "rig.h"

#include <string.h>

/* A backend that is only a step time. */
struct kg_exec {
    uint32_t kind; /* 0: linear, 1: stairs and dents, 2: refuses more than 8 sequences, 3: all */
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
    assert_true(x.n_asked > 5 && x.n_asked < 40);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_linear_step_time_is_met_between_the_points_and_beyond),
        cmocka_unit_test(it_never_falls_whatever_the_clock_said),
        cmocka_unit_test(what_the_backend_cannot_do_is_left_out),
        cmocka_unit_test(a_draft_has_its_price),
        cmocka_unit_test(the_price_of_a_draft_never_falls),
        cmocka_unit_test(without_a_drafter_a_draft_costs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
