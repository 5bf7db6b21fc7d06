/*
 * What the switch of the links does for a multicast object: it reads 16 bytes at one offset of all
 * ranks' areas and adds them, or stores 16 bytes to all. These are the only accesses to the addresses
 * from symm_cuda_args.many; any other one has no defined meaning.
 *
 * In which order the switch adds is not documented, so the plain form beside each instruction has
 * not its bits. Both are within this of the sum S of the ranks' x, counted in F32:
 *
 *     F32:  (world - 1) * 2^-23 * sum |x|
 *     BF16: the same, and 2^-8 * |S| for the one rounding at the end
 *
 * The plain form begins with the rank that asks and goes round: of a sum that several ranks ask for
 * each gets other last bits, so that what leans on equal ones is found without a device.
 */
#ifndef KEDGE_COMM_SYMMEM_MULTIMEM_CUH
#define KEDGE_COMM_SYMMEM_MULTIMEM_CUH

#include "cuda_args.h"

#include <cuda_runtime.h>

#ifdef KG_EMULATED

/* One word of 32 bits of a rank's area; as F32, or the half h of it as BF16. */
static inline uint32_t mm_word(const symm_cuda_args &a, uint32_t rank, uint64_t offset, uint32_t w)
{
    return reinterpret_cast<const uint32_t *>(a.base + rank * a.stride + offset)[w];
}

static inline float mm_number(uint32_t word, int f32, int h)
{
    uint32_t bits = f32 ? word : h == 0 ? word << 16 : word & 0xffff0000u;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint32_t mm_bits(float f, int f32)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (f32)
        return bits;
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return bits >> 16 | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

#endif

/* Sums over ranks of the 16 bytes at `offset` of their areas: four F32 or, f32 = 0, eight BF16. */
static __device__ uint4 mm_sum(const symm_cuda_args &a, uint64_t offset, int f32)
{
    uint4 v;

#ifdef KG_EMULATED
    uint32_t *out = &v.x;
    for (uint32_t w = 0; w < 4; w++) {
        float s[2] = {};
        for (uint32_t k = 0; k < a.world; k++) {
            uint32_t word = mm_word(a, (a.rank + k) % a.world, offset, w);
            for (int h = 0; h < 2; h++)
                s[h] = k == 0 ? mm_number(word, f32, h) : s[h] + mm_number(word, f32, h);
        }
        out[w] = f32 ? mm_bits(s[0], 1) : mm_bits(s[0], 0) | mm_bits(s[1], 0) << 16;
    }
#else
    if (f32)
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(a.many + offset)
                     : "memory");
    else
        asm volatile(
            "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
            : "l"(a.many + offset)
            : "memory");
#endif
    return v;
}

/* Stores 16 bytes at `offset` of all ranks' areas. */
static __device__ void mm_store(const symm_cuda_args &a, uint64_t offset, uint4 v)
{
#ifdef KG_EMULATED
    for (uint32_t r = 0; r < a.world; r++)
        memcpy(reinterpret_cast<char *>(a.base + r * a.stride + offset), &v, sizeof(v));
#else
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(a.many +
                                                                                     offset),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
#endif
}

/* Orders what was accessed by a rank's own addresses and what is by those of the object, both ways:
 * to the memory they are two names of one place. */
static __device__ void mm_fence()
{
#ifndef KG_EMULATED
    asm volatile("fence.proxy.alias;" ::: "memory");
#endif
}

#endif
