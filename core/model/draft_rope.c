#include "model/draft.h"

#include <math.h>

/* Yarn's correction of a length: 0.1 m ln(factor) + 1. */
static double stretch(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

/* Index of the pair that turns `turns` times over the original context, as a real number. */
static double pair_of(const struct kg_rope *r, uint32_t dim, double turns)
{
    const double tau = 6.283185307179586;

    return dim * log(r->original / (turns * tau)) / (2 * log((double)r->theta));
}

/* 0: the pair keeps its frequency, 1: it is slowed by `factor`. */
static double slowing(const struct kg_rope *r, uint32_t dim, uint32_t i)
{
    double low = floor(pair_of(r, dim, r->beta_fast)), high = ceil(pair_of(r, dim, r->beta_slow));
    double t;

    low = low < 0 ? 0 : low;
    high = high > dim - 1 ? dim - 1 : high;
    if (high <= low)
        high = low + 0.001;
    t = (i - low) / (high - low);
    return t < 0 ? 0 : t > 1 ? 1 : t;
}

void kg_rope_rates(const struct kg_rope *r, uint32_t dim, double *rates)
{
    for (uint32_t i = 0; i < dim / 2; i++) {
        double slow = r->yarn ? slowing(r, dim, i) : 0, f = pow(r->theta, -2.0 * i / dim);
        rates[i] = r->yarn ? f / r->factor * slow + f * (1 - slow) : f;
    }
}

void kg_rope_angles(const struct kg_rope *r, uint32_t dim, const double *rates, uint32_t position,
                    float *c, float *s)
{
    double scale = 1;

    if (r->yarn)
        scale = stretch(r->factor, r->mscale) / stretch(r->factor, r->mscale_all_dim);
    for (uint32_t i = 0; i < dim / 2; i++) {
        c[i] = (float)(cos(position * rates[i]) * scale);
        s[i] = (float)(sin(position * rates[i]) * scale);
    }
}

float kg_rope_score_scale(const struct kg_rope *r)
{
    double m = r->yarn ? stretch(r->factor, r->mscale_all_dim) : 1;

    return (float)(m * m);
}
