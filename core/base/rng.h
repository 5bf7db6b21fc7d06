/* xoshiro256** (Blackman, Vigna), seeded by splitmix64: for tests, load generators and jitter.
 * Sampling of tokens has its own counter-based noise in the backend. */
#ifndef KEDGE_BASE_RNG_H
#define KEDGE_BASE_RNG_H

#include "base/hash.h"

struct kg_rng {
    uint64_t s[4];
};

static inline void kg_rng_seed(struct kg_rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++) {
        seed += UINT64_C(0x9e3779b97f4a7c15);
        r->s[i] = kg_hash_mix(seed);
    }
}

static inline uint64_t kg_rng_rotl(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static inline uint64_t kg_rng_u64(struct kg_rng *r)
{
    uint64_t *s = r->s;
    uint64_t out = kg_rng_rotl(s[1] * 5, 7) * 9;
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = kg_rng_rotl(s[3], 45);
    return out;
}

/* Uniform in 0 .. n-1, n >= 1, without bias. */
static inline uint64_t kg_rng_below(struct kg_rng *r, uint64_t n)
{
    uint64_t reject = (0 - n) % n; /* 2^64 mod n */
    uint64_t v;

    do {
        v = kg_rng_u64(r);
    } while (v < reject);
    return v % n;
}

/* Uniform in [0, 1) with 53 bits. */
static inline double kg_rng_f64(struct kg_rng *r)
{
    return (double)(kg_rng_u64(r) >> 11) * 0x1.0p-53;
}

/* Standard normal, by Marsaglia's polar method. */
double kg_rng_normal(struct kg_rng *r);
/* Gamma of this shape (> 0) and scale 1: Marsaglia and Tsang, ACM TOMS 26 (2000); shapes below 1 by
 * the power of a uniform. */
double kg_rng_gamma(struct kg_rng *r, double shape);

#endif
