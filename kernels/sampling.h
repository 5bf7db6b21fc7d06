/*
 * The arithmetic of sampling, for the host (core/model/sample.c, where the rule is written down)
 * and for devices (kernels/cuda/sample.cu): what decides a token is written once, so both give the
 * same. Maxima do not depend on an order; sums are of whole numbers (kg_sampling_mass), so neither
 * do they.
 */
#ifndef KEDGE_KERNELS_SAMPLING_H
#define KEDGE_KERNELS_SAMPLING_H

#include "kernels/exact.h"

#include <float.h>

#define KG_NOISE_MAX (53 * 0.6931471806) /* a little above 53 ln 2: no noise is larger */
#define KG_NOISE_MIN (-4.0)              /* none is smaller: -ln(ln 2 * 53) is -3.6 */

/* A bijection of 64-bit numbers in which every input bit moves about half of the output bits
 * (the finisher of the splitmix64 generator). */
static inline KG_HD uint64_t kg_mix64(uint64_t h)
{
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ h >> 27) * 0x94d049bb133111ebull;
    return h ^ h >> 31;
}

#define KG_WEYL 0x9e3779b97f4a7c15ull

/* One per row; with it a token's bits cost one more mix. */
static inline KG_HD uint64_t kg_noise_key(uint64_t seed, uint32_t position)
{
    return kg_mix64(kg_mix64(seed + KG_WEYL) ^ (position + 1ull) * KG_WEYL);
}

/* 52 random bits of a token. */
static inline KG_HD uint64_t kg_noise_bits(uint64_t key, uint32_t token)
{
    return kg_mix64(key + (token + 1ull) * KG_WEYL) >> 12;
}

static inline KG_HD double kg_gumbel(uint64_t bits)
{
    double u = ((double)bits + 0.5) * 0x1p-52; /* exact; in (0,1) */

    return -kg_exact_log(-kg_exact_log(u));
}

static inline KG_HD int kg_leading_zeros(uint64_t x) /* x > 0 */
{
#ifdef __CUDA_ARCH__
    return __clzll((long long)x);
#else
    return __builtin_clzll(x);
#endif
}

/* At least kg_gumbel(bits), without a logarithm: -ln(u) >= 1 - u >= a power of two. */
static inline KG_HD double kg_gumbel_bound(uint64_t bits)
{
    uint64_t rest = (~bits & 0xfffffffffffffull) * 2 + 1; /* (1 - u) * 2^53 */

    return (double)(kg_leading_zeros(rest) - 10) * 0.6931471806;
}

/* The best token so far; begin with {-infinity, KG_NONE} or any token offered. */
struct kg_best {
    double score;
    uint32_t token;
};

/* Offers a token of value y (times its scale already) under the row's noise. The order of offers
 * does not matter. */
static inline KG_HD void kg_best_offer(struct kg_best *b, double y, uint64_t key, uint32_t token)
{
    uint64_t bits;

    if (y + KG_NOISE_MAX < b->score) {
        return;
    }
    bits = kg_noise_bits(key, token);
    if (y + kg_gumbel_bound(bits) < b->score) {
        return;
    }
    double score = y + kg_gumbel(bits);
    if (score > b->score || (score == b->score && token < b->token)) {
        b->score = score;
        b->token = token;
    }
}

/* Order of a float as a signed integer; NaNs lie beyond the infinities on either side. */
static inline KG_HD int32_t kg_order_of(float f)
{
    int32_t b;

    memcpy(&b, &f, sizeof(b));
    return b ^ (b >> 31 & INT32_MAX);
}

static inline KG_HD float kg_order_value(int32_t o)
{
    float f;

    o ^= o >> 31 & INT32_MAX;
    memcpy(&f, &o, sizeof(f));
    return f;
}

#define KG_ORDER_INF 0x7f800000
#define KG_ORDER_NEG_INF (-0x7f800001)

/* A row whose orders go from lo to hi can be sampled: no NaN, no +inf, something above -inf. */
static inline KG_HD int kg_order_ok(int32_t lo, int32_t hi)
{
    return hi < KG_ORDER_INF && lo >= KG_ORDER_NEG_INF && hi > KG_ORDER_NEG_INF;
}

/* Value and token in one number, larger is better. */
static inline KG_HD uint64_t kg_key_of(float value, uint32_t token)
{
    uint32_t o = (uint32_t)kg_order_of(value + 0.0f) ^ 0x80000000u; /* -0 becomes 0 */

    return (uint64_t)o << 32 | (UINT32_MAX - token);
}

static inline KG_HD uint32_t kg_key_token(uint64_t key)
{
    return UINT32_MAX - (uint32_t)key;
}

static inline KG_HD float kg_key_value(uint64_t key)
{
    return kg_order_value((int32_t)((uint32_t)(key >> 32) ^ 0x80000000u));
}

/*
 * A weight of 0..1 in units of 2^-41, nearest even. Sums of up to 2^22 of them fit 64 bits and are
 * exact: what is lost of a row of 2^18 tokens is below 2^-24 of its largest weight.
 */
static inline KG_HD uint64_t kg_sampling_mass(double w)
{
    double t = w * 0x1p41 + 0x1p52; /* the whole number sits in the low bits */
    uint64_t bits;

    memcpy(&bits, &t, sizeof(bits));
    return bits & 0xfffffffffffffull;
}

static inline KG_HD double kg_sampling_sum(uint64_t mass)
{
    return (double)mass * 0x1p-41;
}

/* What top_p asks of a sum `total` of masses: 1..total. */
static inline KG_HD uint64_t kg_sampling_need(float top_p, uint64_t total)
{
    uint64_t need = (uint64_t)(top_p * (double)total);

    return need < 1 ? 1 : need > total ? total : need;
}

/* Penalties of a request. */
struct kg_penalties {
    float repetition, frequency, presence;
};

/* A logit of a token that occurs, n_output times in the output. */
static inline KG_HD float kg_penalised(const struct kg_penalties *p, uint32_t n_output, float l)
{
    float x = l;

    if (p->repetition > 0) {
        x = x > 0 ? x / p->repetition : x * p->repetition;
    }
    x -= p->frequency * (float)n_output;
    x -= n_output > 0 ? p->presence : 0;
    if (!(x <= FLT_MAX)) { /* overflow of an extreme penalty: stay comparable */
        x = x > 0 ? FLT_MAX : l;
    }
    return x;
}

static inline KG_HD int kg_penalties_any(const struct kg_penalties *p)
{
    return (p->repetition > 0 && p->repetition != 1.0f) || p->frequency != 0 || p->presence != 0;
}

#endif
