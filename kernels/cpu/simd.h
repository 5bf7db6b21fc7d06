/*
 * Sixteen fp32 lanes: one AVX-512 register or two AVX2 registers, chosen by the flags this file is
 * compiled with. Everything above it is written once. v_loadn and friends touch only the first n
 * elements (0 < n <= 16), absent ones read as zero.
 */
#ifndef KEDGE_KERNELS_CPU_SIMD_H
#define KEDGE_KERNELS_CPU_SIMD_H

#include "kernels/common.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 16

#if defined(__AVX512F__)

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

INLINE vm v_first(uint32_t n)
{
    return (vm)((1u << n) - 1);
}

INLINE vf v_set1(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE vf v_loadn(const float *p, uint32_t n)
{
    if (n >= 16)
        return v_load(p);
    return _mm512_maskz_loadu_ps(v_first(n), p);
}

INLINE void v_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

INLINE void v_storen(float *p, vf v, uint32_t n)
{
    if (n >= 16) {
        v_store(p, v);
        return;
    }
    _mm512_mask_storeu_ps(p, v_first(n), v);
}

INLINE vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

INLINE vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

INLINE vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vf v_rint(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* y * 2^n for whole n. */
INLINE vf v_scale2(vf y, vf n)
{
    return _mm512_scalef_ps(y, n);
}

INLINE vm v_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

/* Lanes that are not NaN. */
INLINE vm v_number(vf a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_ORD_Q);
}

INLINE vf v_select(vm m, vf yes, vf no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}

INLINE vi v_bits(vf a)
{
    return _mm512_castps_si512(a);
}

INLINE vf v_from_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}

INLINE vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}

INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}

INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}

INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}

INLINE vi vi_shl(vi a, int n)
{
    return _mm512_slli_epi32(a, (unsigned)n);
}

INLINE vi vi_shr(vi a, int n)
{
    return _mm512_srli_epi32(a, (unsigned)n);
}

INLINE vi vi_sra(vi a, int n)
{
    return _mm512_srai_epi32(a, (unsigned)n);
}

INLINE vf v_from_int(vi a)
{
    return _mm512_cvtepi32_ps(a);
}

INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}

INLINE void vi_store(void *p, vi a)
{
    _mm512_storeu_si512(p, a);
}

/* 16 bytes to 16 lanes. */
INLINE vi vi_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

/* 16 words to 16 lanes and back (low halves). */
INLINE vi vi_load_u16(const uint16_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

INLINE void vi_store_u16(uint16_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(a));
}

/* table[index & 15] per lane. */
INLINE vf v_lookup16(const float *table, vi index)
{
    return _mm512_permutexvar_ps(index, _mm512_loadu_ps(table));
}

/* The largest lane; none may be NaN. */
INLINE float v_top(vf v)
{
    return _mm512_reduce_max_ps(v);
}

/* Lanes l + (l+8), then l + (l+4), of four vectors: four runs of four lanes. */
INLINE vf v_join_four(vf a, vf b, vf c, vf d)
{
    vf ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    vf cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));

    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

/* Then lanes l + (l+2): two lanes of each of eight vectors. */
INLINE vf v_join_eight(vf p, vf q)
{
    __m512d a = _mm512_castps_pd(p), b = _mm512_castps_pd(q);

    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
}

/* v_join of 16 vectors, lane i that of v[i]: the same additions, many at once. */
INLINE vf v_join16(const vf *v)
{
    vf a = v_join_eight(v_join_four(v[0], v[4], v[8], v[12]), v_join_four(v[1], v[5], v[9], v[13]));
    vf b =
        v_join_eight(v_join_four(v[2], v[6], v[10], v[14]), v_join_four(v[3], v[7], v[11], v[15]));

    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

INLINE float v_join(vf v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}

#else

typedef struct {
    __m256 a, b;
} vf;
typedef struct {
    __m256i a, b;
} vi;
typedef vf vm;

#define V2(op, x, y) ((vf){op((x).a, (y).a), op((x).b, (y).b)})
#define VI2(op, x, y) ((vi){op((x).a, (y).a), op((x).b, (y).b)})

INLINE __m256i v_first8(uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}

INLINE vf v_set1(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

INLINE vf v_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

INLINE vf v_loadn(const float *p, uint32_t n)
{
    if (n >= 16)
        return v_load(p);
    return (vf){_mm256_maskload_ps(p, v_first8(n)),
                n > 8 ? _mm256_maskload_ps(p + 8, v_first8(n - 8)) : _mm256_setzero_ps()};
}

INLINE void v_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}

INLINE void v_storen(float *p, vf v, uint32_t n)
{
    if (n >= 16) {
        v_store(p, v);
        return;
    }
    _mm256_maskstore_ps(p, v_first8(n), v.a);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, v_first8(n - 8), v.b);
}

INLINE vf v_add(vf a, vf b)
{
    return V2(_mm256_add_ps, a, b);
}

INLINE vf v_sub(vf a, vf b)
{
    return V2(_mm256_sub_ps, a, b);
}

INLINE vf v_mul(vf a, vf b)
{
    return V2(_mm256_mul_ps, a, b);
}

INLINE vf v_div(vf a, vf b)
{
    return V2(_mm256_div_ps, a, b);
}

INLINE vf v_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b)};
}

INLINE vf v_rint(vf v)
{
    return (vf){_mm256_round_ps(v.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                _mm256_round_ps(v.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

INLINE __m256 v_pow2_8(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

/* y * 2^n for whole n in -126..128, in two steps: 2^128 alone is not a float. */
INLINE __m256 v_scale2_8(__m256 y, __m256 n)
{
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);

    y = _mm256_mul_ps(y, v_pow2_8(half));
    return _mm256_mul_ps(y, v_pow2_8(_mm256_sub_epi32(whole, half)));
}

INLINE vf v_scale2(vf y, vf n)
{
    return V2(v_scale2_8, y, n);
}

INLINE vm v_lt(vf a, vf b)
{
    return (vf){_mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ)};
}

INLINE vm v_number(vf v)
{
    return (vf){_mm256_cmp_ps(v.a, v.a, _CMP_ORD_Q), _mm256_cmp_ps(v.b, v.b, _CMP_ORD_Q)};
}

INLINE vf v_select(vm m, vf yes, vf no)
{
    return (vf){_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}

INLINE vi v_bits(vf v)
{
    return (vi){_mm256_castps_si256(v.a), _mm256_castps_si256(v.b)};
}

INLINE vf v_from_bits(vi v)
{
    return (vf){_mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b)};
}

INLINE vi vi_set1(int32_t x)
{
    return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

INLINE vi vi_add(vi a, vi b)
{
    return VI2(_mm256_add_epi32, a, b);
}

INLINE vi vi_sub(vi a, vi b)
{
    return VI2(_mm256_sub_epi32, a, b);
}

INLINE vi vi_and(vi a, vi b)
{
    return VI2(_mm256_and_si256, a, b);
}

INLINE vi vi_or(vi a, vi b)
{
    return VI2(_mm256_or_si256, a, b);
}

INLINE vi vi_shl(vi v, int n)
{
    return (vi){_mm256_slli_epi32(v.a, n), _mm256_slli_epi32(v.b, n)};
}

INLINE vi vi_shr(vi v, int n)
{
    return (vi){_mm256_srli_epi32(v.a, n), _mm256_srli_epi32(v.b, n)};
}

INLINE vi vi_sra(vi v, int n)
{
    return (vi){_mm256_srai_epi32(v.a, n), _mm256_srai_epi32(v.b, n)};
}

INLINE vf v_from_int(vi v)
{
    return (vf){_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)};
}

INLINE vi vi_load(const void *p)
{
    const __m256i *q = p;

    return (vi){_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}

INLINE void vi_store(void *p, vi v)
{
    _mm256_storeu_si256((__m256i *)p, v.a);
    _mm256_storeu_si256((__m256i *)p + 1, v.b);
}

INLINE vi vi_load_u8(const uint8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)p);

    return (vi){_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}

INLINE vi vi_load_u16(const uint16_t *p)
{
    return (vi){_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)))};
}

INLINE void vi_store_u16(uint16_t *p, vi v)
{
    /* packus works per 128-bit half: put the quarters back in order */
    __m256i x = _mm256_packus_epi32(v.a, v.b);

    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(x, 0xd8));
}

INLINE __m256 v_lookup8(const float *table, __m256i index)
{
    __m256 lo = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
    __m256 hi = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index);

    return _mm256_blendv_ps(lo, hi, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

INLINE vf v_lookup16(const float *table, vi index)
{
    return (vf){v_lookup8(table, index.a), v_lookup8(table, index.b)};
}

/* The largest lane; none may be NaN. */
INLINE float v_top(vf v)
{
    __m256 a = _mm256_max_ps(v.a, v.b);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

/* Lanes l + (l+8), l + (l+4), l + (l+2) of four vectors: two lanes of each. */
INLINE __m256 v_join_four(const vf *v)
{
    __m256 a = _mm256_add_ps(v[0].a, v[0].b), b = _mm256_add_ps(v[4].a, v[4].b);
    __m256 c = _mm256_add_ps(v[1].a, v[1].b);
    __m256 d = _mm256_add_ps(v[5].a, v[5].b);
    __m256 ab =
        _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    __m256 cd =
        _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    __m256d p = _mm256_castps_pd(ab), q = _mm256_castps_pd(cd);

    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(p, q)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(p, q)));
}

INLINE __m256 v_join_eight(const vf *v)
{
    __m256 a = v_join_four(v), b = v_join_four(v + 2);

    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}

/* v_join of 16 vectors, lane i that of v[i]: the same additions, many at once. */
INLINE vf v_join16(const vf *v)
{
    return (vf){v_join_eight(v), v_join_eight(v + 8)};
}

INLINE float v_join(vf v)
{
    __m256 a = _mm256_add_ps(v.a, v.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}

#endif

INLINE vf v_zero(void)
{
    return v_set1(0.0f);
}

/* 16 bf16 as fp32; and fp32 rounded to bf16 in the low half of each lane. */
INLINE vf v_load_bf16(const uint16_t *p)
{
    return v_from_bits(vi_shl(vi_load_u16(p), 16));
}

INLINE vi v_round_bf16(vf v)
{
    vi bits = v_bits(v), odd = vi_and(vi_shr(bits, 16), vi_set1(1));
    vi up = vi_shr(vi_add(bits, vi_add(odd, vi_set1(0x7fff))), 16);
    vi nan = vi_or(vi_shr(bits, 16), vi_set1(0x40));

    return v_bits(v_select(v_number(v), v_from_bits(up), v_from_bits(nan)));
}

#endif
