/* The two instructions of product.cuh that plain C++ has no words for. */
#ifndef KEDGE_KERNELS_CUDA_MMA_CUH
#define KEDGE_KERNELS_CUDA_MMA_CUH

#include "device.h"

/*
 * d += A B for 16 outputs x 16 inputs x 8 rows of bf16 with fp32 sums; all lanes of a warp call it.
 * Lane 4g + t holds: a[0], a[1]: inputs 2t, 2t + 1 of outputs g, g + 8; a[2], a[3]: inputs 2t + 8,
 * 2t + 9 of the same; b0, b1: inputs 2t, 2t + 1 and 2t + 8, 2t + 9 of row g; d[0], d[1]: output g
 * of rows 2t, 2t + 1; d[2], d[3]: output g + 8 of the same. How the hardware rounds inside one call
 * is its own affair; the emulator adds the products in rising order by fmaf.
 */
#ifndef KG_EMULATED
__device__ inline void kg_mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Byte i of the result: byte (select >> 4i & 7) of b:a; with bit 3 of the selector its sign, eight
 * times. */
__device__ inline uint32_t kg_prmt(uint32_t a, uint32_t b, uint32_t select)
{
    uint32_t d;

    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(select));
    return d;
}
#else
inline void kg_mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    unsigned long long own[3] = {a[0] | (unsigned long long)a[2] << 32,
                                 a[1] | (unsigned long long)a[3] << 32,
                                 b0 | (unsigned long long)b1 << 32};
    unsigned long long left[2][4], right[2][4]; /* outputs g, g + 8; rows 2t, 2t + 1 */
    int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;

    for (int i = 0; i < 4; i++) {
        for (int half = 0; half < 2; half++) {
            left[half][i] = __shfl_sync(0xffffffffu, own[half], g * 4 + i);
            right[half][i] = __shfl_sync(0xffffffffu, own[2], (2 * t + half) * 4 + i);
        }
    }
    for (int e = 0; e < 4; e++) {
        for (int k = 0; k < 16; k++) { /* word k / 8 of lane k % 8 / 2, half k % 2 */
            int shift = k / 8 * 32 + k % 2 * 16;
            uint32_t x = (uint32_t)(left[e / 2][k % 8 / 2] >> shift) << 16;
            uint32_t y = (uint32_t)(right[e % 2][k % 8 / 2] >> shift) << 16;

            d[e] = fmaf(__uint_as_float(x), __uint_as_float(y), d[e]);
        }
    }
}

inline uint32_t kg_prmt(uint32_t a, uint32_t b, uint32_t select)
{
    unsigned long long all = a | (unsigned long long)b << 32;
    uint32_t d = 0;

    for (int i = 0; i < 4; i++) {
        uint32_t s = select >> 4 * i & 15, byte = (uint32_t)(all >> (s & 7) * 8) & 255;

        d |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return d;
}
#endif

#endif
