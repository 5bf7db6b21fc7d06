/* Sums in rank order, whatever the algorithm: the bits of an element depend on the ranks alone. */
#include "symmem.h"

#include <string.h>

#define BLOCK 512u /* elements that stay in the first cache while all ranks are added */

static float from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* Round to nearest, ties to even; NaN stays NaN. */
static uint16_t to_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static void sum_f32(float *restrict acc, const float *x, uint64_t n, int first)
{
    if (first) {
        memcpy(acc, x, n * sizeof(*acc));
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        acc[i] += x[i];
}

static void sum_bf16(float *restrict acc, const uint16_t *x, uint64_t n, int first)
{
    if (first) {
        for (uint64_t i = 0; i < n; i++)
            acc[i] = from_bf16(x[i]);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        acc[i] += from_bf16(x[i]);
}

void symm_sum(uint32_t dtype, void *out, const void *const *x, uint32_t n_x, uint64_t n)
{
    float acc[BLOCK];

    for (uint64_t at = 0; at < n; at += BLOCK) {
        uint64_t k = n - at < BLOCK ? n - at : BLOCK;
        for (uint32_t r = 0; r < n_x; r++) {
            if (dtype == KG_F32)
                sum_f32(acc, (const float *)x[r] + at, k, r == 0);
            else
                sum_bf16(acc, (const uint16_t *)x[r] + at, k, r == 0);
        }
        if (dtype == KG_F32) {
            memcpy((float *)out + at, acc, k * sizeof(*acc));
        } else {
            uint16_t *to = (uint16_t *)out + at;
            for (uint64_t i = 0; i < k; i++)
                to[i] = to_bf16(acc[i]);
        }
    }
}

uint64_t symm_hash(const void *p, uint64_t bytes, uint64_t seed)
{
    const unsigned char *b = p;
    uint64_t h = seed ^ 0x9e3779b97f4a7c15ull ^ bytes;
    uint64_t word;

    for (; bytes >= 8; bytes -= 8, b += 8) {
        memcpy(&word, b, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdull;
        h ^= h >> 32;
    }
    word = 0;
    memcpy(&word, b, (size_t)bytes);
    h = (h ^ word) * 0xc4ceb9fe1a85ec53ull;
    return h ^ h >> 29;
}
