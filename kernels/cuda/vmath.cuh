/* exp, sigmoid, tanh, softplus: the steps of the plain C ones (kernels/ref/ref.h says how they
 * work), so the bits agree. And bf16, and the joining of 16 lanes. */
#ifndef KEDGE_KERNELS_CUDA_VMATH_CUH
#define KEDGE_KERNELS_CUDA_VMATH_CUH

#include "context.h"

static __device__ __forceinline__ float kg_exp(float x)
{
    if (x != x)
        return x;
    if (x > 88.7228394f)
        return __int_as_float(0x7f800000);
    if (x < -87.33654f)
        return 0.0f;
    float n = rintf(x * 1.44269504f);
    float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x));
    float p = 1.0f / 5040.0f;

    p = fmaf(p, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    float y = 1.0f + fmaf(p, r * r, r);
    int whole = (int)n, half = whole >> 1; /* 2^128 alone is not a float */
    return y * __int_as_float((half + 127) << 23) * __int_as_float((whole - half + 127) << 23);
}

static __device__ __forceinline__ float kg_sigmoid(float x)
{
    return 1.0f / (1.0f + kg_exp(-x));
}

static __device__ __forceinline__ float kg_tanh(float x)
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
    return copysignf(1.0f - 2.0f / (kg_exp(2.0f * a) + 1.0f), x);
}

/* ln(1 + e), e >= 0 */
static __device__ __forceinline__ float kg_log1p(float e)
{
    float y = 1.0f + e, lost = e - (y - 1.0f);
    unsigned bits = __float_as_uint(y);
    int ex = (int)(bits - 0x3f3504f3u) >> 23;
    float m = __uint_as_float(bits - ((unsigned)ex << 23));
    float s = (m - 1.0f) / (m + 1.0f), z = s * s, two_s = s + s, p = 1.0f / 9.0f;

    p = fmaf(p, z, 1.0f / 7.0f);
    p = fmaf(p, z, 1.0f / 5.0f);
    p = fmaf(p, z, 1.0f / 3.0f);
    float ln = fmaf((float)ex, -2.12194440e-4f, fmaf(two_s, z * p, two_s));
    return fmaf((float)ex, 0.693359375f, ln) + lost / y;
}

static __device__ __forceinline__ float kg_softplus(float z)
{
    if (z != z || z > 20.0f)
        return z;
    return kg_log1p(kg_exp(z));
}

static __device__ __forceinline__ float kg_act(const struct kg_act_args &args, float a, float b)
{
    if (args.act == KG_ACT_SWIGLU)
        return a * kg_sigmoid(a) * b;
    float left = args.beta * kg_tanh(a / args.beta) * kg_sigmoid(a);
    return left * (args.linear_beta * kg_tanh(b / args.linear_beta));
}

/* The sum of 16 lanes side by side, in the order of kernels.h; every lane gets it. All 32 lanes
 * of the warp must call. */
static __device__ __forceinline__ float kg_join16(float v)
{
    v = v + __shfl_xor_sync(0xffffffffu, v, 8);
    v = v + __shfl_xor_sync(0xffffffffu, v, 4);
    v = v + __shfl_xor_sync(0xffffffffu, v, 2);
    return v + __shfl_xor_sync(0xffffffffu, v, 1);
}

static __device__ __forceinline__ float kg_widen(uint16_t x)
{
    return __uint_as_float((unsigned)x << 16);
}

/* Nearest even; a NaN stays one. */
static __device__ __forceinline__ uint16_t kg_round_bf16(float x)
{
    unsigned bits = __float_as_uint(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

#endif
