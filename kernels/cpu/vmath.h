/*
 * exp, sigmoid, tanh, softplus on 16 lanes: the same steps in the same order as the plain C ones
 * (ref/ref.h says how they work), so the bits agree.
 */
#ifndef KEDGE_KERNELS_CPU_VMATH_H
#define KEDGE_KERNELS_CPU_VMATH_H

#include "simd.h"

#define LOG2E 1.44269504f
#define LN2_HI 0.693359375f
#define LN2_LO (-2.12194440e-4f)

INLINE vf v_exp(vf x)
{
    vm low = v_lt(x, v_set1(-87.33654f)), high = v_lt(v_set1(88.7228394f), x);
    vf in = v_select(low, v_zero(), v_select(high, v_zero(), x)); /* whole n stays in range */
    vf n = v_rint(v_mul(in, v_set1(LOG2E)));
    vf r = v_fma(n, v_set1(-LN2_LO), v_fma(n, v_set1(-LN2_HI), in));
    vf p = v_set1(1.0f / 5040.0f);

    p = v_fma(p, r, v_set1(1.0f / 720.0f));
    p = v_fma(p, r, v_set1(1.0f / 120.0f));
    p = v_fma(p, r, v_set1(1.0f / 24.0f));
    p = v_fma(p, r, v_set1(1.0f / 6.0f));
    p = v_fma(p, r, v_set1(0.5f));
    vf y = v_add(v_set1(1.0f), v_fma(p, v_mul(r, r), r));
    y = v_scale2(y, n);
    y = v_select(low, v_zero(), y);
    return v_select(high, v_set1(__builtin_inff()), y);
}

INLINE vf v_neg(vf x)
{
    return v_from_bits(vi_add(v_bits(x), vi_set1(INT32_MIN)));
}

INLINE vf v_sigmoid(vf x)
{
    return v_div(v_set1(1.0f), v_add(v_set1(1.0f), v_exp(v_neg(x))));
}

INLINE vf v_tanh(vf x)
{
    vi sign = vi_and(v_bits(x), vi_set1(INT32_MIN));
    vf a = v_from_bits(vi_and(v_bits(x), vi_set1(INT32_MAX)));
    vf z = v_mul(x, x), p = v_set1(-0.00571704293f);

    p = v_fma(p, z, v_set1(0.0206505852f));
    p = v_fma(p, z, v_set1(-0.0537434974f));
    p = v_fma(p, z, v_set1(0.133314913f));
    p = v_fma(p, z, v_set1(-0.333332839f));
    vf near = v_fma(x, v_mul(z, p), x);
    vf e = v_exp(v_mul(v_set1(2.0f), a));
    vf far = v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(e, v_set1(1.0f))));
    far = v_from_bits(vi_or(vi_and(v_bits(far), vi_set1(INT32_MAX)), sign));
    return v_select(v_lt(a, v_set1(0.625f)), near, far);
}

INLINE vf v_log1p(vf e)
{
    vf one = v_set1(1.0f), y = v_add(one, e), lost = v_sub(e, v_sub(y, one));
    vi bits = v_bits(y), ex = vi_sra(vi_sub(bits, vi_set1(0x3f3504f3)), 23);
    vf m = v_from_bits(vi_sub(bits, vi_shl(ex, 23)));
    vf s = v_div(v_sub(m, one), v_add(m, one)), z = v_mul(s, s), two_s = v_add(s, s);
    vf p = v_set1(1.0f / 9.0f), n = v_from_int(ex);

    p = v_fma(p, z, v_set1(1.0f / 7.0f));
    p = v_fma(p, z, v_set1(1.0f / 5.0f));
    p = v_fma(p, z, v_set1(1.0f / 3.0f));
    vf ln = v_fma(n, v_set1(LN2_LO), v_fma(two_s, v_mul(z, p), two_s));
    return v_add(v_fma(n, v_set1(LN2_HI), ln), v_div(lost, y));
}

INLINE vf v_softplus(vf z)
{
    vf y = v_log1p(v_exp(z));

    y = v_select(v_lt(v_set1(20.0f), z), z, y);
    return v_select(v_number(z), y, z);
}

INLINE vf v_act(uint32_t act, vf beta, vf linear_beta, vf a, vf b)
{
    if (act == KG_ACT_SWIGLU)
        return v_mul(v_mul(a, v_sigmoid(a)), b);
    vf left = v_mul(v_mul(beta, v_tanh(v_div(a, beta))), v_sigmoid(a));
    return v_mul(left, v_mul(linear_beta, v_tanh(v_div(b, linear_beta))));
}

/* Scalar exp, as a lane of the above. */
INLINE float s_exp(float x)
{
    float lane[LANES];

    v_store(lane, v_exp(v_set1(x)));
    return lane[0];
}

/* 16-lane sum of a * b, continuing in acc. */
INLINE vf v_dot(vf acc, const float *a, const float *b, uint32_t n)
{
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES)
        acc = v_fma(v_load(a + i), v_load(b + i), acc);
    if (i < n)
        acc = v_fma(v_loadn(a + i, n - i), v_loadn(b + i, n - i), acc);
    return acc;
}

#endif
