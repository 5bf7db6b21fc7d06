/*
 * exp and log in double from +, -, *, / alone, so that their bits are the same on every machine
 * and with every libm (contraction of products is off in the build). Good to a few units in the
 * last place. Written without branches, so that compilers can vectorise loops over them.
 */
#ifndef KEDGE_KERNELS_EXACT_H
#define KEDGE_KERNELS_EXACT_H

#include <stdint.h>
#include <string.h>

/* What is marked so runs on a CUDA device too. */
#ifdef __CUDACC__
#define KG_HD __host__ __device__
#else
#define KG_HD
#endif

/* ln 2 in two parts: k * KG_LN2_HI is exact for |k| < 2^11. */
#define KG_LN2_HI 0x1.62e42fefa3800p-1
#define KG_LN2_LO 0x1.ef35793c76730p-45

/* e^x for x <= 700; below -700 the value at -700 (1e-304). x must not be NaN. */
static inline KG_HD double kg_exact_exp(double x)
{
    const double shift = 0x1.8p52; /* adding it rounds to an integer */
    double y = x < -700.0 ? -700.0 : x;
    double t = y * 0x1.71547652b82fep0 + shift;
    double k = t - shift;
    double r = y - k * KG_LN2_HI - k * KG_LN2_LO; /* |r| <= ln 2 / 2 */
    uint64_t bits;
    double p = 1.0 / 6227020800.0, two_k;

    /* Taylor sum; the first term left out is below 1e-17 of the result */
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    memcpy(&bits, &t, sizeof(bits));
    bits = (bits + 1023) << 52; /* k sits in the low bits of t */
    memcpy(&two_k, &bits, sizeof(two_k));
    return p * two_k;
}

/* ln x for normal, positive, finite x. */
static inline KG_HD double kg_exact_log(double x)
{
    uint64_t bits, up;
    double m, k;

    memcpy(&bits, &x, sizeof(bits));
    /* x = m * 2^k with m in [sqrt(1/2), sqrt(2)); adding an offset carries into the exponent
     * exactly when the mantissa is past sqrt(2) */
    up = bits + (0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull);
    k = (double)((int32_t)(up >> 52) - 1023);
    bits = (up & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull;
    memcpy(&m, &bits, sizeof(m));

    double s = (m - 1.0) / (m + 1.0), z = s * s; /* ln m = 2 atanh(s), |s| < 0.1716 */
    double p = 1.0 / 23.0;
    p = p * z + 1.0 / 21.0;
    p = p * z + 1.0 / 19.0;
    p = p * z + 1.0 / 17.0;
    p = p * z + 1.0 / 15.0;
    p = p * z + 1.0 / 13.0;
    p = p * z + 1.0 / 11.0;
    p = p * z + 1.0 / 9.0;
    p = p * z + 1.0 / 7.0;
    p = p * z + 1.0 / 5.0;
    p = p * z + 1.0 / 3.0;
    return k * KG_LN2_HI + (k * KG_LN2_LO + (2.0 * s + 2.0 * s * z * p));
}

#endif
