/* Draws against what is known of their distributions. Seeds are fixed: the figures are the same on
 * every run, and bounds are four standard errors. */
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define N 200000

/* Mean, variance and share of draws above `limit`. */
struct moments {
    double mean, var, above;
};

static struct moments moments_of(const double *v, double limit)
{
    struct moments m = {0};

    for (uint32_t i = 0; i < N; i++) {
        m.mean += v[i] / N;
        m.above += (v[i] > limit) / (double)N;
    }
    for (uint32_t i = 0; i < N; i++)
        m.var += (v[i] - m.mean) * (v[i] - m.mean) / N;
    return m;
}

static void near(double found, double wanted, double error)
{
    if (!(fabs(found - wanted) <= error))
        fail_msg("found %g, wanted %g within %g", found, wanted, error);
}

static void a_normal_has_mean_0_variance_1_and_its_tail(void **state)
{
    static double v[N];
    struct kg_rng r;

    (void)state;
    kg_rng_seed(&r, 1);
    for (uint32_t i = 0; i < N; i++)
        v[i] = kg_rng_normal(&r);
    struct moments m = moments_of(v, 1.959964);
    near(m.mean, 0, 4 / sqrt(N));
    near(m.var, 1, 4 * sqrt(2.0 / N));
    near(m.above, 0.025, 4 * sqrt(0.025 * 0.975 / N));
}

/* The gamma of shape k and scale 1 has mean and variance k; its fourth moment gives the error. */
static void a_gamma_has_mean_and_variance_of_its_shape(void **state)
{
    static const double shapes[] = {0.3, 1, 1.5, 20};
    static double v[N];
    struct kg_rng r;

    (void)state;
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        double k = shapes[s];
        kg_rng_seed(&r, s);
        for (uint32_t i = 0; i < N; i++) {
            v[i] = kg_rng_gamma(&r, k);
            assert_true(v[i] >= 0 && isfinite(v[i]));
        }
        struct moments m = moments_of(v, 1);
        near(m.mean, k, 4 * sqrt(k / N));
        near(m.var, k, 4 * sqrt((2 * k * k + 6 * k) / N));
        if (k == 1) /* an exponential */
            near(m.above, exp(-1), 4 * sqrt(exp(-1) * (1 - exp(-1)) / N));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_normal_has_mean_0_variance_1_and_its_tail),
        cmocka_unit_test(a_gamma_has_mean_and_variance_of_its_shape),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
