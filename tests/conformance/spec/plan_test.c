/* How spec-confidence divides rows: against worked examples and against search by brute force. */
#include "plugins/spec-confidence/plan.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#define SEQS 6
#define BLOCK 5

/* Steps per second as a function of all rows of the step. */
struct speed {
    uint32_t n; /* sequences */
    double per_row;
    double steps[SEQS * (1 + BLOCK)]; /* or a list, where per_row is 0 */
};

static double ns(void *ctx, uint32_t rows)
{
    const struct speed *s = ctx;

    return s->per_row > 0 ? 1.0 + s->per_row * (s->n + rows) : 1.0 / s->steps[rows];
}

struct table {
    struct plan_seqs seqs;
    uint32_t most[SEQS], heap[SEQS];
    float survival[SEQS * BLOCK];
};

/* Survivals from confidences of two sequences and three drafts. */
static void from_confidences(struct table *t, const double c[2][3])
{
    memset(t, 0, sizeof(*t));
    for (uint32_t r = 0; r < 2; r++) {
        double a = 1.0;
        t->most[r] = 3;
        for (uint32_t j = 0; j < 3; j++)
            t->survival[r * BLOCK + j] = (float)(a *= c[r][j]);
    }
    t->seqs = (struct plan_seqs){2, BLOCK, t->most, t->survival, t->heap};
}

static const double example[2][3] = {{0.9, 0.8, 0.7}, {0.6, 0.5, 0.4}};

static void stop_is(double per_row, uint32_t first, uint32_t second, const double *path, uint32_t n)
{
    struct table t;
    struct speed speed = {.n = 2, .per_row = per_row};
    struct plan_cost cost = {ns, &speed};
    uint32_t lengths[SEQS], n_path;
    double got[32];

    from_confidences(&t, example);
    struct plan_best b = plan_stop(&t.seqs, &cost, 30, lengths, got, &n_path);
    assert_int_equal(lengths[0], first);
    assert_int_equal(lengths[1], second);
    assert_int_equal(b.rows, first + second);
    assert_int_equal(n_path, n);
    for (uint32_t i = 0; i < n; i++)
        assert_true(fabs(got[i] - path[i]) < 0.00005001);
}

static void the_rule_stops_where_the_worked_examples_do(void **state)
{
    (void)state;
    stop_is(0.1, 3, 2, (double[]){1.6667, 2.2308, 2.5857, 2.8133, 2.9525, 2.9553, 2.8578}, 7);
    stop_is(0.25, 3, 1, (double[]){1.3333, 1.6571, 1.8100, 1.8756, 1.8896, 1.8269}, 6);
    stop_is(1.0, 1, 0, (double[]){0.6667, 0.7250, 0.7240}, 3);
}

/* One sequence, two drafts; steps a second 1, 0.5 and 0.45: the first row pays only with the
 * second. */
static void the_rule_does_not_look_past_a_row_that_does_not_pay(void **state)
{
    struct speed speed = {.n = 1, .steps = {1.0, 0.5, 0.45}};
    struct plan_cost cost = {ns, &speed};

    (void)state;
    for (int second = 0; second < 2; second++) {
        uint32_t most = 2, heap, length, n;
        float survival[2] = {0.8f, second ? 0.72f : 0.0f};
        struct plan_seqs q = {1, 2, &most, survival, &heap};
        double path[4];
        struct plan_best b = plan_stop(&q, &cost, 2, &length, path, &n);
        assert_int_equal(b.rows, 0);
        assert_int_equal(length, 0);
        assert_int_equal(n, 2);
        assert_true(fabs(path[0] - 1.0) < 1e-6 && fabs(path[1] - 0.9) < 1e-6);
        b = plan_search(&q, &cost, 2, &length); /* this one does, so it must not see its drafts */
        assert_int_equal(b.rows, second ? 2 : 0);
    }
}

static void equal_survivals_go_by_position_then_by_sequence(void **state)
{
    uint32_t most[3] = {2, 2, 2}, heap[3], lengths[3];
    float all[6] = {1, 1, 1, 1, 1, 1};
    struct plan_seqs q = {3, 2, most, all, heap};
    static const uint32_t want[7][3] = {{0, 0, 0}, {1, 0, 0}, {1, 1, 0}, {1, 1, 1},
                                        {2, 1, 1}, {2, 2, 1}, {2, 2, 2}};

    (void)state;
    for (uint32_t k = 0; k <= 6; k++) {
        assert_int_equal(plan_take(&q, k, 0.0f, lengths), k);
        assert_memory_equal(lengths, want[k], sizeof(lengths));
    }
    assert_int_equal(plan_take(&q, 100, 0.0f, lengths), 6);
    assert_int_equal(plan_take(&q, 100, 1.1f, lengths), 0);
}

static void random_table(struct table *t, struct kg_rng *rng, uint32_t n)
{
    memset(t, 0, sizeof(*t));
    for (uint32_t r = 0; r < n; r++) {
        float a = 1.0f;
        t->most[r] = (uint32_t)kg_rng_below(rng, BLOCK + 1);
        for (uint32_t j = 0; j < BLOCK; j++) {
            a *= (float)kg_rng_below(rng, 5) / 4.0f; /* many equal ones */
            t->survival[r * BLOCK + j] = a;
        }
    }
    t->seqs = (struct plan_seqs){n, BLOCK, t->most, t->survival, t->heap};
}

/* Whether (r, j) is among the `rows` best and at least `least`: by counting those before it. */
static int is_taken(const struct table *t, uint32_t r, uint32_t j, uint32_t rows, float least)
{
    float a = t->survival[r * BLOCK + j];
    uint32_t n = 0;

    for (uint32_t s = 0; s < t->seqs.n; s++) {
        for (uint32_t k = 0; k < t->most[s]; k++) {
            float b = t->survival[s * BLOCK + k];
            n += b > a || (b == a && (k < j || (k == j && s < r)));
        }
    }
    return n < rows && a >= least;
}

static void the_best_are_taken_and_they_are_prefixes(void **state)
{
    struct kg_rng rng;

    (void)state;
    kg_rng_seed(&rng, 3);
    for (uint32_t k = 0; k < 3000; k++) {
        struct table t;
        uint32_t n = 1 + (uint32_t)kg_rng_below(&rng, SEQS), lengths[SEQS];
        uint32_t rows = (uint32_t)kg_rng_below(&rng, 30);
        float least = (float)kg_rng_below(&rng, 5) / 5.0f;
        random_table(&t, &rng, n);
        (void)plan_take(&t.seqs, rows, least, lengths);
        for (uint32_t r = 0; r < n; r++) {
            for (uint32_t j = 0; j < t.most[r]; j++)
                assert_int_equal(j < lengths[r], is_taken(&t, r, j, rows, least));
        }
    }
}

static void the_search_finds_the_most_tokens_per_time(void **state)
{
    struct kg_rng rng;

    (void)state;
    kg_rng_seed(&rng, 4);
    for (uint32_t k = 0; k < 3000; k++) {
        struct table t;
        struct speed speed = {.n = 1 + (uint32_t)kg_rng_below(&rng, SEQS)};
        struct plan_cost cost = {ns, &speed};
        uint32_t lengths[SEQS], limit = (uint32_t)kg_rng_below(&rng, 40), total;
        double step = 1.0, best = 0;
        for (uint32_t i = 0; i < SEQS * (1 + BLOCK); i++)
            speed.steps[i] = 1.0 / (step += kg_rng_below(&rng, 3) ? 0.0 : kg_rng_f64(&rng));
        random_table(&t, &rng, speed.n);
        struct plan_best b = plan_search(&t.seqs, &cost, limit, lengths);
        for (uint32_t rows = 0;; rows++) {
            double tokens = speed.n;
            total = plan_take(&t.seqs, rows, 0.0f, lengths);
            for (uint32_t r = 0; r < speed.n; r++) {
                for (uint32_t j = 0; j < lengths[r]; j++)
                    tokens += (double)t.survival[r * BLOCK + j];
            }
            if (total < rows || rows > limit)
                break;
            double here = tokens / ns(&speed, rows);
            best = here > best ? here : best;
            if (rows == b.rows)
                assert_true(fabs(here - b.tokens / b.ns) < 1e-6);
        }
        assert_true(fabs(best - b.tokens / b.ns) < 1e-6);
        assert_true(b.rows <= limit && b.total <= limit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rule_stops_where_the_worked_examples_do),
        cmocka_unit_test(the_rule_does_not_look_past_a_row_that_does_not_pay),
        cmocka_unit_test(equal_survivals_go_by_position_then_by_sequence),
        cmocka_unit_test(the_best_are_taken_and_they_are_prefixes),
        cmocka_unit_test(the_search_finds_the_most_tokens_per_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
