/* Statistics of kedge ab against closed forms and against data whose truth is known. */
#include "experiment/ab.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_RUNS 5u

/* Both arms of a made-up trace. */
struct pair {
    uint32_t n, n_runs;
    struct kg_ab_run a[MAX_RUNS], b[MAX_RUNS];
};

static double normal(struct kg_rng *r)
{
    double u = 1 - kg_rng_f64(r), v = kg_rng_f64(r);

    return sqrt(-2 * log(u)) * cos(2 * acos(-1.0) * v);
}

static struct kg_ab_row row_of(uint32_t i, double ttft_ms)
{
    struct kg_ab_row row = {.id = i + 1, .ok = 1, .n_prompt = 100, .n_output = 11};

    row.v[KG_AB_TTFT] = ttft_ms;
    row.v[KG_AB_TPOT] = ttft_ms / 10;
    row.v[KG_AB_E2E] = 2 * ttft_ms;
    row.v[KG_AB_QUEUE] = 0;
    row.v[KG_AB_GOOD] = 1;
    return row;
}

/*
 * Lognormal times, common to both arms, times a noise of each arm that remembers itself from
 * request to request by `memory` (AR(1)), times `slow` in arm B, times a factor of the run
 * (`run_sd`).
 */
static void make(struct pair *p, uint32_t n, uint32_t n_runs, double memory, double slow,
                 double run_sd, uint64_t seed)
{
    struct kg_rng rng;
    double keep = sqrt(1 - memory * memory);

    kg_rng_seed(&rng, seed);
    p->n = n;
    p->n_runs = n_runs;
    for (uint32_t k = 0; k < n_runs; k++) {
        double za = normal(&rng), zb = normal(&rng);
        double ra = exp(run_sd * normal(&rng)), rb = exp(run_sd * normal(&rng));
        p->a[k].rows = calloc(n, sizeof(struct kg_ab_row));
        p->b[k].rows = calloc(n, sizeof(struct kg_ab_row));
        assert_true(p->a[k].rows != NULL && p->b[k].rows != NULL);
        p->a[k].duration_s = p->b[k].duration_s = 10;
        for (uint32_t i = 0; i < n; i++) {
            double work = 100 * exp(0.5 * normal(&rng));
            za = memory * za + keep * normal(&rng);
            zb = memory * zb + keep * normal(&rng);
            p->a[k].rows[i] = row_of(i, work * exp(0.1 * za) * ra);
            p->b[k].rows[i] = row_of(i, work * exp(0.1 * zb) * rb * slow);
        }
    }
}

static void drop(struct pair *p)
{
    for (uint32_t k = 0; k < p->n_runs; k++) {
        free(p->a[k].rows);
        free(p->b[k].rows);
    }
}

static struct kg_ab_conf conf_of(const struct pair *p)
{
    return (struct kg_ab_conf){.runs = {p->a, p->b},
                               .n_repeats = p->n_runs,
                               .n = p->n,
                               .n_draws = 400,
                               .n_comparisons = 1,
                               .alpha = 0.01,
                               .least = 0.01,
                               .seed = 7};
}

static struct kg_ab_result compare(const struct kg_ab_conf *conf)
{
    struct kg_ab_result r;
    struct kg_error err = {0};

    assert_int_equal(kg_ab_compare(conf, &r, &err), KG_OK);
    return r;
}

static uint32_t n_different(const struct kg_ab_result *r)
{
    uint32_t n = 0;

    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        n += r->figures[m].is_different;
    }
    return n;
}

/* How many of n_seeds A/A pairs show any difference. */
static uint32_t false_alarms(uint32_t n_seeds, uint32_t n, uint32_t n_runs, double memory,
                             double run_sd)
{
    uint32_t found = 0;

    for (uint32_t s = 0; s < n_seeds; s++) {
        struct pair p;
        make(&p, n, n_runs, memory, 1, run_sd, 1000 + s);
        struct kg_ab_conf c = conf_of(&p);
        c.runs_vary = run_sd > 0;
        struct kg_ab_result r = compare(&c);
        found += n_different(&r) > 0;
        drop(&p);
    }
    return found;
}

/* Seeds to try: a fifth of them in the quick run. */
static uint32_t seeds(uint32_t n)
{
    return getenv("KEDGE_FULL") != NULL ? 5 * n : n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void student_quantiles_are_those_of_the_tables(void **state)
{
    const struct {
        uint32_t df;
        double t95, t99;
    } table[] = {{1, 12.7062, 63.6567}, {2, 4.3027, 9.9248},  {3, 3.1824, 5.8409},
                 {4, 2.7764, 4.6041},   {9, 2.2622, 3.2498},  {10, 2.2281, 3.1693},
                 {30, 2.0423, 2.7500},  {120, 1.9799, 2.6174}};

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_true(fabs(kg_ab_student(0.95, table[i].df) - table[i].t95) < 1e-4 * table[i].t95);
        assert_true(fabs(kg_ab_student(0.99, table[i].df) - table[i].t99) < 1e-4 * table[i].t99);
    }
}

static void figures_equal_those_of_the_sorted_values(void **state)
{
    struct pair p;
    double v[601], sum = 0;

    (void)state;
    make(&p, 601, 1, 0, 1, 0, 3);
    p.a[0].rows[5].ok = 0; /* counts in neither arm */
    p.b[0].rows[9].v[KG_AB_PREEMPTED] = 601;
    p.a[0].rows[1].v[KG_AB_VERIFIED] = 8;
    p.a[0].rows[1].v[KG_AB_ACCEPTED] = 6;
    struct kg_ab_conf c = conf_of(&p);
    struct kg_ab_result r = compare(&c);
    uint32_t n = 0;
    for (uint32_t i = 0; i < 601; i++) {
        if (i != 5) {
            v[n++] = p.b[0].rows[i].v[KG_AB_TTFT];
            sum += v[n - 1];
        }
    }
    qsort(v, n, sizeof(*v), by_value);
    assert_int_equal(n, 600);
    assert_int_equal(r.n_pairs, 600);
    assert_true(fabs(r.figures[0].b - (v[299] + v[300]) / 2) < 1e-9);
    assert_true(fabs(r.figures[1].b - sum / 600) < 1e-9);
    /* 0.99 * 599 = 593.01 */
    assert_true(fabs(r.figures[2].b - (v[593] + 0.01 * (v[594] - v[593]))) < 1e-9);
    assert_true(fabs(r.figures[KG_AB_FIG_ACCEPTANCE - 1].diff - 1) < 1e-12);
    assert_true(fabs(r.figures[KG_AB_FIG_ACCEPTANCE].a - 0.75) < 1e-12);
    assert_true(isnan(r.figures[KG_AB_FIG_ACCEPTANCE].diff));
    assert_true(fabs(r.throughput.a - 600 * 11 / 10.0) < 1e-9);
    drop(&p);
}

static void standard_error_of_a_mean_is_that_of_the_paired_differences(void **state)
{
    struct pair p;
    double sum = 0, sq = 0;

    (void)state;
    make(&p, 1000, 1, 0, 1, 0, 5);
    struct kg_ab_conf c = conf_of(&p);
    c.block = 1;
    c.n_draws = 2000;
    struct kg_ab_result r = compare(&c);
    for (uint32_t i = 0; i < 1000; i++) {
        double d = p.b[0].rows[i].v[KG_AB_TTFT] - p.a[0].rows[i].v[KG_AB_TTFT];
        sum += d;
        sq += d * d;
    }
    double se = sqrt((sq / 1000 - sum / 1000 * sum / 1000) / 1000);
    assert_true(fabs(r.figures[1].se / se - 1) < 0.08);
    assert_true(fabs(r.figures[1].lo - (sum / 1000 - 1.96 * se)) < 0.25 * se);
    assert_true(fabs(r.figures[1].hi - (sum / 1000 + 1.96 * se)) < 0.25 * se);
    drop(&p);
}

static void ninety_five_percent_intervals_cover_the_truth_about_that_often(void **state)
{
    uint32_t covered[2] = {0};

    (void)state;
    uint32_t n = seeds(40);
    for (uint32_t s = 0; s < n; s++) {
        for (uint32_t k = 0; k < 2; k++) {
            struct pair p;
            make(&p, 800, 1, k == 0 ? 0 : 0.8, 1, 0, 500 + s);
            struct kg_ab_conf c = conf_of(&p);
            c.n_draws = 200;
            struct kg_ab_result r = compare(&c);
            covered[k] += r.figures[1].lo <= 0 && r.figures[1].hi >= 0;
            drop(&p);
        }
    }
    print_message("covered: %u of %u without memory, %u with\n", covered[0], n, covered[1]);
    assert_true(covered[0] * 100 >= n * 88 && covered[1] * 100 >= n * 84);
}

static void equal_arms_give_at_most_one_difference_in_twenty(void **state)
{
    uint32_t n = seeds(20);
    uint32_t plain = false_alarms(n, 600, 1, 0, 0), slow = false_alarms(n, 1500, 1, 0.9, 0);
    uint32_t runs = false_alarms(n, 300, 5, 0.5, 0.1);

    (void)state;
    print_message("false alarms of %u: %u, with memory %u, runs that vary %u\n", n, plain, slow,
                  runs);
    assert_true(plain * 20 <= n && slow * 20 <= n && runs * 20 <= n);
}

static void windows_are_wider_where_neighbours_are_alike(void **state)
{
    struct pair p;

    (void)state;
    make(&p, 2000, 1, 0.9, 1, 0, 11);
    struct kg_ab_conf c = conf_of(&p);
    struct kg_ab_result r = compare(&c);
    c.block = 1;
    struct kg_ab_result one = compare(&c);
    drop(&p);
    assert_true(r.block > 13); /* above the cube root */
    /* (1 + 0.9) / (1 - 0.9) = 19 times the variance for the noise, at the very least twice */
    assert_true(r.figures[1].se > 1.5 * one.figures[1].se);
}

static void a_slowdown_of_five_percent_is_found_and_sized(void **state)
{
    (void)state;
    for (uint32_t s = 0; s < seeds(10); s++) {
        struct pair p;
        struct kg_buf b;
        make(&p, 600, 1, 0.3, 1.05, 0, 40 + s);
        struct kg_ab_conf c = conf_of(&p);
        struct kg_ab_result r = compare(&c);
        drop(&p);
        assert_true(r.figures[1].is_different && !r.figures[1].is_small);
        assert_true(r.figures[1].rel > 0.03 && r.figures[1].rel < 0.07);
        kg_buf_init(&b, 0);
        assert_int_equal(kg_ab_verdict(&r, "A", "B", &b), KG_OK);
        assert_non_null(strstr(kg_buf_cstr(&b), "B is slower: "));
        kg_buf_fini(&b);
    }
}

static void one_run_in_real_time_cannot_tell(void **state)
{
    struct pair p;
    struct kg_buf b;

    (void)state;
    make(&p, 600, 1, 0, 2, 0, 1);
    struct kg_ab_conf c = conf_of(&p);
    c.runs_vary = 1;
    struct kg_ab_result r = compare(&c);
    drop(&p);
    assert_int_equal(n_different(&r), 0);
    kg_buf_init(&b, 0);
    (void)kg_ab_verdict(&r, "A", "B", &b);
    assert_non_null(strstr(kg_buf_cstr(&b), "Cannot tell"));
    kg_buf_fini(&b);
}

static void equal_rows_are_called_the_same_and_draws_repeat(void **state)
{
    struct pair p, q;

    (void)state;
    make(&p, 300, 2, 0, 1, 0, 1);
    make(&q, 300, 2, 0, 1, 0, 1);
    struct kg_ab_conf c = conf_of(&p);
    struct kg_ab_result first = compare(&c), again = compare(&c);
    assert_false(first.is_same);
    assert_memory_equal(&first, &again, sizeof(first));
    c.runs[1] = q.a;
    struct kg_ab_result r = compare(&c);
    assert_true(r.is_same);
    assert_int_equal(n_different(&r), 0);
    drop(&p);
    drop(&q);
}

static void another_trace_is_refused_and_other_words_are_counted(void **state)
{
    struct pair p;
    struct kg_ab_result r;
    struct kg_error err = {0};

    (void)state;
    make(&p, 50, 1, 0, 1, 0, 1);
    struct kg_ab_conf c = conf_of(&p);
    p.a[0].rows[3].output_hash = p.b[0].rows[3].output_hash = 9;
    p.a[0].rows[4].output_hash = 9;
    p.b[0].rows[4].output_hash = 8;
    r = compare(&c);
    assert_int_equal(r.n_outputs_compared, 2);
    assert_int_equal(r.n_outputs_differ, 1);
    p.b[0].rows[7].n_prompt = 99;
    assert_int_equal(kg_ab_compare(&c, &r, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, "request 8 has 100 prompt tokens in A and 99 in B"));
    p.b[0].rows[2].id = 77;
    assert_int_equal(kg_ab_compare(&c, &r, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, "request 3 has different ids"));
    drop(&p);
}

static void a_row_without_an_outcome_is_named(void **state)
{
    char path[] = "/tmp/kedge-ab-rows-XXXXXX";
    const char text[] = "{\"id\":\"1\",\"outcome\":\"ok\",\"ttft_ms\":2.5,\"tpot_ms\":null,"
                        "\"output_hash\":\"00000000000000ff\"}\n{\"id\":\"2\"}\n";
    struct kg_ab_run run = {0};
    struct kg_error err = {0};
    uint32_t n = 0;

    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof(text) - 1), (ssize_t)sizeof(text) - 1);
    int rc = kg_ab_read_rows(path, 2, 0, &run, &n, &err);
    assert_int_equal(rc, KG_EINVAL);
    assert_non_null(strstr(err.text, "line 2"));
    assert_int_equal(ftruncate(fd, (off_t)(strchr(text, '\n') - text) + 1), 0);
    rc = kg_ab_read_rows(path, 2, 0, &run, &n, &err);
    (void)close(fd);
    (void)unlink(path);
    assert_int_equal(rc, KG_OK);
    assert_int_equal(n, 1);
    assert_true(run.rows[0].output_hash == 0xff && isnan(run.rows[0].v[KG_AB_TPOT]));
    assert_true(run.rows[0].v[KG_AB_TTFT] == 2.5 && run.rows[0].v[KG_AB_GOOD] == 0);
    kg_ab_run_free(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(student_quantiles_are_those_of_the_tables),
        cmocka_unit_test(figures_equal_those_of_the_sorted_values),
        cmocka_unit_test(standard_error_of_a_mean_is_that_of_the_paired_differences),
        cmocka_unit_test(ninety_five_percent_intervals_cover_the_truth_about_that_often),
        cmocka_unit_test(equal_arms_give_at_most_one_difference_in_twenty),
        cmocka_unit_test(windows_are_wider_where_neighbours_are_alike),
        cmocka_unit_test(a_slowdown_of_five_percent_is_found_and_sized),
        cmocka_unit_test(one_run_in_real_time_cannot_tell),
        cmocka_unit_test(equal_rows_are_called_the_same_and_draws_repeat),
        cmocka_unit_test(a_row_without_an_outcome_is_named),
        cmocka_unit_test(another_trace_is_refused_and_other_words_are_counted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
