/* Plain C operations, shared between the files of this folder. Written for reading: they judge
 * the vector tables, so they use no code of theirs. */
#ifndef KEDGE_KERNELS_REF_REF_H
#define KEDGE_KERNELS_REF_REF_H

#include "kernels/common.h"

#include <math.h>

#define LOG2E 1.44269504f
#define LN2_HI 0.693359375f
#define LN2_LO (-2.12194440e-4f)

/* Joins 16 lanes in the order of kernels.h. */
static inline float join16(const float lane[16])
{
    float t[16];

    memcpy(t, lane, sizeof(t));
    for (int half = 8; half >= 1; half /= 2)
        for (int l = 0; l < half; l++)
            t[l] = t[l] + t[l + half];
    return t[0];
}

/* 16-lane sum of a[i] * b[i], continuing in lane[16]. */
static inline void dot16(float lane[16], const float *a, const float *b, uint32_t n)
{
    for (uint32_t i = 0; i < (n + 15) / 16 * 16; i++)
        lane[i % 16] = fmaf(i < n ? a[i] : 0.0f, i < n ? b[i] : 0.0f, lane[i % 16]);
}

static inline float sum_squares(const float *x, uint32_t n)
{
    float lane[16] = {0};

    dot16(lane, x, x, n);
    return join16(lane);
}

static inline float pow2(int n) /* -126..127 */
{
    uint32_t bits = (uint32_t)(n + 127) << 23;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* e^x = 2^n e^r with |r| <= ln(2)/2; e^r by its series to r^7. */
static inline float ref_exp(float x)
{
    if (x != x)
        return x;
    if (x > 88.7228394f)
        return INFINITY;
    if (x < -87.33654f)
        return 0.0f;
    float n = rintf(x * LOG2E);
    float r = fmaf(n, -LN2_LO, fmaf(n, -LN2_HI, x));
    float p = 1.0f / 5040.0f;

    p = fmaf(p, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    float y = 1.0f + fmaf(p, r * r, r);
    int whole = (int)n, half = whole >> 1; /* 2^128 alone is not a float */
    return y * pow2(half) * pow2(whole - half);
}

static inline float ref_sigmoid(float x)
{
    return 1.0f / (1.0f + ref_exp(-x));
}

/* Odd polynomial near zero (own fit, error under 1e-9 of x), 1 - 2/(e^2x + 1) beyond. */
static inline float ref_tanh(float x)
{
    float a = fabsf(x);

    if (a < 0.625f) {
        float z = x * x, p = -0.00571704293f;

        p = fmaf(p, z, 0.0206505852f);
        p = fmaf(p, z, -0.0537434974f);
        p = fmaf(p, z, 0.133314913f);
        p = fmaf(p, z, -0.333332839f);
        return fmaf(x, z * p, x);
    }
    return copysignf(1.0f - 2.0f / (ref_exp(2.0f * a) + 1.0f), x);
}

/* ln(1 + e) for e >= 0: ln of the rounded sum, plus what rounding lost. */
static inline float ref_log1p(float e)
{
    float y = 1.0f + e, lost = e - (y - 1.0f), m;
    uint32_t bits;

    memcpy(&bits, &y, sizeof(bits));
    int32_t ex = (int32_t)(bits - 0x3f3504f3u) >> 23; /* m in [sqrt(1/2), sqrt(2)) */
    bits -= (uint32_t)ex << 23;
    memcpy(&m, &bits, sizeof(m));
    float s = (m - 1.0f) / (m + 1.0f), z = s * s, two_s = s + s, p = 1.0f / 9.0f;

    p = fmaf(p, z, 1.0f / 7.0f);
    p = fmaf(p, z, 1.0f / 5.0f);
    p = fmaf(p, z, 1.0f / 3.0f);
    float ln = fmaf((float)ex, LN2_LO, fmaf(two_s, z * p, two_s));
    return fmaf((float)ex, LN2_HI, ln) + lost / y;
}

static inline float ref_softplus(float z)
{
    if (z != z || z > 20.0f)
        return z;
    return ref_log1p(ref_exp(z));
}

static inline float ref_act(const struct kg_act_args *args, float a, float b)
{
    if (args->act == KG_ACT_SWIGLU)
        return a * ref_sigmoid(a) * b;
    float left = args->beta * ref_tanh(a / args->beta) * ref_sigmoid(a);
    return left * (args->linear_beta * ref_tanh(b / args->linear_beta));
}

void ref_product_exact(struct kg_team *team, const struct kg_product *p, uint32_t n);
void ref_product_fast(struct kg_team *team, const struct kg_product *p, uint32_t n);
void ref_moe_exact(struct kg_team *team, const struct kg_moe *args);
void ref_moe_fast(struct kg_team *team, const struct kg_moe *args);
void ref_conv_f32(struct kg_team *team, float *y, size_t y_stride, const float *u, size_t u_stride,
                  const float *w, uint32_t channels, const struct kg_conv_seq *seqs,
                  uint32_t n_seqs);
void ref_conv_bf16(struct kg_team *team, float *y, size_t y_stride, const float *u, size_t u_stride,
                   const float *w, uint32_t channels, const struct kg_conv_seq *seqs,
                   uint32_t n_seqs);
void ref_kda_gate(struct kg_team *team, float *alpha, size_t alpha_stride, const float *f,
                  size_t f_stride, const float *a_log, const float *dt_bias, uint32_t rows,
                  uint32_t heads, uint32_t dim, uint32_t form, float lower_bound);
void ref_kda(struct kg_team *team, const struct kg_kda *args);
void ref_kda_replay(struct kg_team *team, const struct kg_kda *args);
void ref_page_write(struct kg_team *team, const struct kg_pages *pages, const float *c,
                    size_t c_stride, const float *kr, size_t kr_stride,
                    const struct kg_mla_seq *seqs, uint32_t n_seqs);
void ref_mla(struct kg_team *team, const struct kg_mla *args);

#endif
