#include "base/rng.h"

#include <math.h>

double kg_rng_normal(struct kg_rng *r)
{
    double u, v, s;

    do {
        u = 2 * kg_rng_f64(r) - 1;
        v = 2 * kg_rng_f64(r) - 1;
        s = u * u + v * v;
    } while (s >= 1 || s == 0);
    return u * sqrt(-2 * log(s) / s);
}

double kg_rng_gamma(struct kg_rng *r, double shape)
{
    double boost = 1;

    if (shape < 1) {
        boost = pow(1 - kg_rng_f64(r), 1 / shape);
        shape += 1;
    }
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = kg_rng_normal(r), v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        if (log(1 - kg_rng_f64(r)) < 0.5 * x * x + d - d * v + d * log(v))
            return d * v * boost;
    }
}
