/*
 * Products on a device, shared by product.cu, product_mma.cu and moe.cu: one tile of outputs for
 * some rows, in three forms.
 *
 *   plain_tile   one accumulator per output element, K upwards by fmaf: the bits of the C table,
 *                in exact math and (bf16 activations, odd element of a pair first) in fast math.
 *   small_tile   tensor cores, up to 8 * NT rows: each warp walks one part of K.
 *   large_tile   tensor cores, up to 128 rows: tiles in shared memory, double-buffered.
 *
 * The two tensor-core forms give the same bits. Their order: K is cut into parts by its length
 * alone (mma_part); a part is walked upwards from zero, 16 inputs per kg_mma_bf16; the parts are
 * added in rising order. MXFP4: 32 inputs (one scale) make a sum of their own from the bare codes,
 * which joins its part by fmaf(sum, scale, part). Rows and outputs of an MMA do not see each
 * other, so which of them share one changes no bits.
 *
 * Packed weights suit the fragments of mma.m16n8k16 as they are. In a fragment of 16 outputs x 16
 * inputs a lane holds, for two outputs, the pairs t and t + 4 (t = lane % 4), each pair one word;
 * and a word is what kernels.h packs. Which output is which row of the fragment is free. So a
 * lane (g = lane / 4, t) of a BF16 tile reads 16 bytes = one pair of four neighbouring outputs,
 * and two fragments are made of those four outputs without moving anything between lanes; of an
 * MXFP4 tile it reads 16 bytes = one pair of the 16 outputs of its block g: eight fragments.
 */
#ifndef KEDGE_KERNELS_CUDA_PRODUCT_CUH
#define KEDGE_KERNELS_CUDA_PRODUCT_CUH

#include "cuda.h"
#include "device.h"
#include "mma.cuh"

#include <cstddef>
#include <cstring>

namespace kgp
{

/* Rows of a tile: row r is entry first + r; entry e reads row x_at[e] of x (NULL: row e) and
 * writes row y_at[e] of y. */
struct rows {
    const float *x;
    float *y;
    size_t x_stride, y_stride;
    const uint32_t *x_at, *y_at;
    uint32_t first, n;
};

__device__ inline const float *row_x(const rows &rs, uint32_t r)
{
    uint32_t e = rs.first + r;

    return rs.x + (size_t)(rs.x_at == nullptr ? e : rs.x_at[e]) * rs.x_stride;
}

__device__ inline float *row_y(const rows &rs, uint32_t r)
{
    uint32_t e = rs.first + r;

    return rs.y + (size_t)(rs.y_at == nullptr ? e : rs.y_at[e]) * rs.y_stride;
}

/* A matrix as kernels see it. */
struct matrix {
    const uint8_t *data;
    uint32_t out, in;
};

/* Bytes of a block of 16 outputs. */
template <int TYPE> __device__ inline size_t block_bytes(uint32_t in)
{
    if (TYPE == KG_W_F32)
        return (size_t)in * 64;
    if (TYPE == KG_W_BF16)
        return ((size_t)in + 1) / 2 * 64;
    return ((size_t)in + 31) / 32 * 272;
}

__device__ inline float as_float(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

__device__ inline uint32_t as_bits(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

__device__ inline uint32_t bf16_bits(float x) /* nearest even; a NaN stays one */
{
    uint32_t bits = as_bits(x);

    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return bits >> 16 | 0x40;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

__device__ inline uint32_t bf16_pair(float even, float odd)
{
    return bf16_bits(even) | bf16_bits(odd) << 16;
}

/* 2^(s - 127), NaN for 255. */
__device__ inline float scale_value(uint32_t s)
{
    return as_float(s == 0 ? 0x00400000u : s == 255 ? 0x7fc00000u : s << 23);
}

/* e2m1: 0 0.5 1 1.5 2 3 4 6, then the same negated. Subnormal 0.5 is what breaks the pattern. */
__device__ inline float code_value(uint32_t code)
{
    uint32_t m = code & 7, sign = (code & 8) << 28;

    return as_float(sign | (m == 0 ? 0 : m == 1 ? 0x3f000000u : (m << 22) + (126u << 23)));
}

/* ---- plain ------------------------------------------------------------------------------- */

#define KGP_PLAIN_THREADS 64 /* one output each: 4 blocks of 16 */
#define KGP_PLAIN_K 64       /* inputs of a tile of x */

/* Weights of inputs k and k + 1 (k even) of one output; its block's data. */
template <int TYPE>
__device__ inline void pair_at(const uint8_t *block, uint32_t o, uint32_t k, uint32_t in,
                               float *even, float *odd)
{
    if (TYPE == KG_W_F32) {
        const float *at = (const float *)block + (size_t)k * 16 + o;

        *even = at[0];
        *odd = k + 1 < in ? at[16] : 0.0f;
    } else if (TYPE == KG_W_BF16) {
        uint32_t word = ((const uint32_t *)block)[(size_t)(k / 2) * 16 + o];

        *even = as_float(word << 16);
        *odd = as_float(word & 0xffff0000u);
    } else {
        const uint32_t *group = (const uint32_t *)(block + (size_t)(k / 32) * 272);
        float scale = scale_value(group[o / 4] >> o % 4 * 8 & 255);
        uint32_t codes = group[4 + k % 32 / 2 * 4 + o / 4] >> o % 4 * 8;

        *even = code_value(codes & 15) * scale;
        *odd = code_value(codes >> 4 & 15) * scale;
    }
}

/*
 * Output block0 * 16 + threadIdx.x for rows row0 .. row0 + ROWS - 1 (those below rs.n). xs: shared
 * floats, ROWS * KGP_PLAIN_K of them. All threads of the block call it.
 *
 * Roofline: bytes of the weights once per ROWS rows. Not reached: a thread has one chain of
 * dependent fused multiply-adds over K (some 4 cycles each), and loads 4 bytes at a time. This
 * form is for equality; what is meant to be fast runs on tensor cores.
 */
template <int TYPE, int FAST, int ROWS, class XS>
__device__ void plain_tile(const matrix &w, uint32_t block0, const rows &rs, uint32_t row0, XS &xs)
{
    const int pairs = FAST && TYPE != KG_W_F32; /* bf16 activations, odd first */
    uint32_t o = block0 * 16 + threadIdx.x, n = rs.n - row0 < ROWS ? rs.n - row0 : ROWS;
    const uint8_t *block = w.data + (size_t)(o / 16) * block_bytes<TYPE>(w.in);
    float acc[ROWS];

    for (int r = 0; r < ROWS; r++)
        acc[r] = 0.0f;
    for (uint32_t k0 = 0; k0 < w.in; k0 += KGP_PLAIN_K) {
        uint32_t left = w.in - k0 < KGP_PLAIN_K ? w.in - k0 : KGP_PLAIN_K;

        __syncthreads();
        for (uint32_t i = threadIdx.x; i < ROWS * KGP_PLAIN_K; i += KGP_PLAIN_THREADS) {
            uint32_t r = i / KGP_PLAIN_K, k = i % KGP_PLAIN_K;
            float x = r < n && k < left ? row_x(rs, row0 + r)[k0 + k] : 0.0f;

            xs[i] = pairs ? as_float(bf16_bits(x) << 16) : x;
        }
        __syncthreads();
        if (o >= w.out)
            continue;
#pragma unroll 8
        for (uint32_t k = 0; k < left; k += 2) {
            float even, odd;

            pair_at<TYPE>(block, o % 16, k0 + k, w.in, &even, &odd);
            for (int r = 0; r < ROWS; r++) {
                float x0 = xs[r * KGP_PLAIN_K + k], x1 = xs[r * KGP_PLAIN_K + k + 1];

                if (pairs) {
                    acc[r] = fmaf(x0, even, fmaf(x1, odd, acc[r]));
                } else {
                    acc[r] = fmaf(x0, even, acc[r]);
                    if (k + 1 < left)
                        acc[r] = fmaf(x1, odd, acc[r]);
                }
            }
        }
    }
    for (uint32_t r = 0; r < n && o < w.out; r++) {
        float v = acc[0]; /* constant indices keep acc in registers */

        for (int i = 1; i < ROWS; i++)
            v = (int)r == i ? acc[i] : v;
        row_y(rs, row0 + r)[o] = v;
    }
}

/* ---- tensor cores ------------------------------------------------------------------------ */

#define KGP_PARTS 8 /* most parts of K, and warps of small_tile */

/* Inputs of a part of K: a multiple of 32, from the length of K alone. */
__host__ __device__ inline uint32_t mma_part(uint32_t in)
{
    uint32_t n = in / 256 < 1 ? 1 : in / 256 > KGP_PARTS ? KGP_PARTS : in / 256;

    return ((in + n - 1) / n + 31) / 32 * 32;
}

__host__ __device__ inline uint32_t mma_parts(uint32_t in)
{
    return (in + mma_part(in) - 1) / mma_part(in);
}

/* Outputs of a warp's tile in small_tile. */
template <int TYPE> __host__ __device__ constexpr uint32_t small_outs()
{
    return TYPE == KG_W_BF16 ? 32 : 128;
}

/* Fragments of 16 outputs in it. */
template <int TYPE> __host__ __device__ constexpr int small_frags()
{
    return (int)small_outs<TYPE>() / 16;
}

/* Inputs k and k + 1 of a row as bf16; beyond `in` zero; x NULL: zero. */
__device__ inline uint32_t load_pair(const float *x, uint32_t k, uint32_t in)
{
    float even = 0.0f, odd = 0.0f;

    if (x != nullptr && k < in)
        even = x[k];
    if (x != nullptr && k + 1 < in)
        odd = x[k + 1];
    return bf16_pair(even, odd);
}

/*
 * One pair of two outputs: the low byte (even input in the low nibble) and the next one; out[0] and
 * out[1] are the two words of bf16. A nibble selects from two tables: the upper byte of the bf16
 * (magnitude; a byte permutation with bit 3 set copies a sign, which both tables use) and the lower
 * byte. 9 operations for 4 weights.
 */
__device__ inline void decode_two(uint32_t bytes, uint32_t out[2])
{
    uint32_t magnitude = bytes & 0x7777u;
    uint32_t high = kg_prmt(0x3f3f3f00u, 0x40404040u, magnitude);
    uint32_t low = kg_prmt(0xc0800000u, 0xc0804000u, magnitude);
    uint32_t sign = kg_prmt(0x80u, 0, bytes & 0x8888u); /* 0x80, or 0xff where it is set */

    high |= sign << 1 & 0x80808080u;
    out[0] = kg_prmt(low, high, 0x5140);
    out[1] = kg_prmt(low, high, 0x7362);
}

/* 16 bytes by index, so that they stay in registers. */
__device__ inline uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

template <int TYPE> struct slice; /* 32 inputs of a warp's tile as one lane holds them */

template <> struct slice<KG_W_BF16> {
    uint4 pair[4]; /* pairs t + 4j of outputs 4 (g % 4) .. of block g / 4 */
};

template <> struct slice<KG_W_MXFP4> {
    uint4 pair[4]; /* pairs t + 4j of the 16 outputs of block g */
    uint4 scales;
};

/* Reads the slice at input k (a multiple of 32); zeros outside the matrix. */
__device__ inline void slice_load(slice<KG_W_BF16> &s, const matrix &w, uint32_t block0,
                                  uint32_t lane, uint32_t k)
{
    uint32_t g = lane / 4, t = lane % 4, block = block0 + g / 4, pairs = (w.in + 1) / 2;
    const uint4 *at = (const uint4 *)(w.data + block * block_bytes<KG_W_BF16>(w.in)) + g % 4;

#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t pair = k / 2 + t + 4 * (uint32_t)j;

        s.pair[j] = make_uint4(0, 0, 0, 0);
        if (block * 16 < w.out && pair < pairs)
            s.pair[j] = at[(size_t)pair * 4];
    }
}

__device__ inline void slice_load(slice<KG_W_MXFP4> &s, const matrix &w, uint32_t block0,
                                  uint32_t lane, uint32_t k)
{
    uint32_t g = lane / 4, t = lane % 4, block = block0 + g;
    const uint4 *at =
        (const uint4 *)(w.data + block * block_bytes<KG_W_MXFP4>(w.in) + (size_t)(k / 32) * 272);
    bool there = block * 16 < w.out && k < w.in;

    s.scales = make_uint4(0, 0, 0, 0);
    if (there)
        s.scales = at[0];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        s.pair[j] = make_uint4(0, 0, 0, 0);
        if (there)
            s.pair[j] = at[1 + t + 4 * (uint32_t)j];
    }
}

/* acc += slice * x; b: the lane's pairs t + 4j of row g of each group of 8 rows. */
template <int NT>
__device__ inline void slice_mma(const slice<KG_W_BF16> &s, const uint32_t (&b)[NT][4],
                                 float (&acc)[2][NT][4])
{
#pragma unroll
    for (int step = 0; step < 2; step++) {
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const uint4 &p = s.pair[2 * step], &q = s.pair[2 * step + 1];
            uint32_t a[4] = {word_of(p, 2 * m), word_of(p, 2 * m + 1), word_of(q, 2 * m),
                             word_of(q, 2 * m + 1)};

#pragma unroll
            for (int nt = 0; nt < NT; nt++)
                kg_mma_bf16(acc[m][nt], a, b[nt][2 * step], b[nt][2 * step + 1]);
        }
    }
}

template <int NT>
__device__ inline void slice_mma(const slice<KG_W_MXFP4> &s, const uint32_t (&b)[NT][4],
                                 float (&acc)[8][NT][4])
{
#pragma unroll
    for (int m = 0; m < 8; m++) { /* outputs 2m and 2m + 1 of the block */
        uint32_t w[4][2];
        uint32_t sc = word_of(s.scales, m / 2) >> m % 2 * 16;
        float scale0 = scale_value(sc & 255), scale1 = scale_value(sc >> 8 & 255);

#pragma unroll
        for (int j = 0; j < 4; j++)
            decode_two(word_of(s.pair[j], m / 2) >> m % 2 * 16, w[j]);
        uint32_t a[4] = {w[0][0], w[0][1], w[1][0], w[1][1]};
        uint32_t c[4] = {w[2][0], w[2][1], w[3][0], w[3][1]};
#pragma unroll
        for (int nt = 0; nt < NT; nt++) {
            float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};

            kg_mma_bf16(sum, a, b[nt][0], b[nt][1]);
            kg_mma_bf16(sum, c, b[nt][2], b[nt][3]);
            acc[m][nt][0] = fmaf(sum[0], scale0, acc[m][nt][0]);
            acc[m][nt][1] = fmaf(sum[1], scale0, acc[m][nt][1]);
            acc[m][nt][2] = fmaf(sum[2], scale1, acc[m][nt][2]);
            acc[m][nt][3] = fmaf(sum[3], scale1, acc[m][nt][3]);
        }
    }
}

/* Output, inside the tile, of row `half` (0: g, 1: g + 8) of fragment m. */
template <int TYPE> __device__ inline uint32_t frag_out(uint32_t g, int m, int half)
{
    if (TYPE == KG_W_BF16)
        return g * 4 + 2 * (uint32_t)m + (uint32_t)half;
    return g * 16 + 2 * (uint32_t)m + (uint32_t)half;
}

/*
 * Outputs block0 * 16 .. + small_outs - 1 for rows row0 .. row0 + 8 NT - 1 (those below rs.n); the
 * block has 32 * mma_parts(w.in) threads, all of them call it. join: shared floats, KGP_PARTS *
 * small_outs * 8.
 *
 * Roofline: 8 NT rows make 16 NT (BF16) or 60 NT (MXFP4) operations per byte of weights, far below
 * what a tensor core wants: the bytes of the weights bound it. Each lane keeps the 64 to 80 bytes
 * of the next slice in flight while it works on this one, so a block of 8 warps has 16 to 20 KB.
 */
template <int TYPE, int NT, class JOIN>
__device__ void small_tile(const matrix &w, uint32_t block0, const rows &rs, uint32_t row0,
                           JOIN &join)
{
    constexpr int FRAGS = small_frags<TYPE>();
    constexpr uint32_t OUTS = small_outs<TYPE>();
    uint32_t warp = threadIdx.x / KG_WARP, lane = threadIdx.x % KG_WARP, g = lane / 4, t = lane % 4;
    uint32_t part = mma_part(w.in), n_parts = mma_parts(w.in);
    uint32_t k = warp * part, end = k + part < w.in ? k + part : w.in;
    const float *x[NT];
    float acc[FRAGS][NT][4];
    slice<TYPE> next;

#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        uint32_t r = row0 + 8 * (uint32_t)nt + g;

        x[nt] = r < rs.n ? row_x(rs, r) : nullptr;
#pragma unroll
        for (int m = 0; m < FRAGS; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                acc[m][nt][i] = 0.0f;
    }
    slice_load(next, w, block0, lane, k);
    for (; k < end; k += 32) {
        slice<TYPE> now = next;
        uint32_t b[NT][4];

        if (k + 32 < end)
            slice_load(next, w, block0, lane, k + 32);
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                b[nt][j] = load_pair(x[nt], k + 2 * t + 8 * (uint32_t)j, w.in);
        slice_mma<NT>(now, b, acc);
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++) {
        __syncthreads();
#pragma unroll
        for (int m = 0; m < FRAGS; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                join[(warp * 8 + 2 * t + (uint32_t)(i % 2)) * OUTS + frag_out<TYPE>(g, m, i / 2)] =
                    acc[m][nt][i];
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < 8 * OUTS; i += blockDim.x) {
            uint32_t r = row0 + 8 * (uint32_t)nt + i / OUTS, o = block0 * 16 + i % OUTS;
            float sum = join[i];

            for (uint32_t p = 1; p < n_parts; p++)
                sum = sum + join[p * 8 * OUTS + i];
            if (r < rs.n && o < w.out)
                row_y(rs, r)[o] = sum;
        }
    }
}

#define KGP_LARGE_FROM 64     /* more rows than this: large_tile */
#define KGP_LARGE_THREADS 256 /* 4 warps over outputs x 2 over rows */
#define KGP_LARGE_OUTS 128
#define KGP_LARGE_ROWS 128
#define KGP_LARGE_X \
    (KGP_LARGE_ROWS * 20) /* words: 16 pairs of a row and 4 unused against conflicts */
#define KGP_LARGE_W 2048  /* words: 8 blocks x 16 pairs x 16 */

/* What one thread carries of the next tile while the block works on this one. */
template <int TYPE> struct large_carry {
    uint32_t x[8];                      /* pairs of one row */
    uint4 w[TYPE == KG_W_BF16 ? 2 : 1]; /* 16-byte units of the packed weights */
};

/* Unit u of the 32 inputs at k: of 512 (BF16) or 136 (MXFP4). */
template <int TYPE>
__device__ inline uint4 large_unit(const matrix &w, uint32_t block0, uint32_t k, uint32_t u)
{
    constexpr uint32_t PER = TYPE == KG_W_BF16 ? 64 : 17; /* of a block of 16 outputs */
    uint32_t block = block0 + u / PER;
    size_t unit = (size_t)(k / 32) * PER + u % PER;
    const uint8_t *at = w.data + block * block_bytes<TYPE>(w.in) + unit * 16;

    if (block * 16 >= w.out || unit * 16 >= block_bytes<TYPE>(w.in))
        return make_uint4(0, 0, 0, 0);
    return *(const uint4 *)at;
}

template <int TYPE>
__device__ inline void large_fetch(large_carry<TYPE> &c, const matrix &w, uint32_t block0,
                                   const float *x, uint32_t k)
{
    constexpr uint32_t UNITS = TYPE == KG_W_BF16 ? 512 : 136;

#pragma unroll
    for (int i = 0; i < (TYPE == KG_W_BF16 ? 2 : 1); i++) {
        uint32_t u = threadIdx.x + (uint32_t)i * KGP_LARGE_THREADS;

        c.w[i] = u < UNITS ? large_unit<TYPE>(w, block0, k, u) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        c.x[i] = load_pair(x, k + threadIdx.x % 2 * 16 + 2 * (uint32_t)i, w.in);
}

template <int TYPE, class XS, class WS>
__device__ inline void large_store(const large_carry<TYPE> &c, uint32_t half, XS &xs, WS &ws)
{
    constexpr uint32_t UNITS = TYPE == KG_W_BF16 ? 512 : 136;
    uint32_t x0 = half * KGP_LARGE_X + threadIdx.x / 2 * 20 + threadIdx.x % 2 * 8;

#pragma unroll
    for (int i = 0; i < (TYPE == KG_W_BF16 ? 2 : 1); i++) {
        uint32_t u = threadIdx.x + (uint32_t)i * KGP_LARGE_THREADS;
        /* BF16: the four units of a pair change places with the pair, so that lanes that read
         * pairs t = 0..3 of one fragment meet different banks */
        uint32_t to = TYPE == KG_W_BF16 ? u ^ (u >> 3 & 1) * 2 : u;

        if (u < UNITS) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                ws[half * KGP_LARGE_W + to * 4 + (uint32_t)j] = word_of(c.w[i], j);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        xs[x0 + (uint32_t)i] = c.x[i];
}

/* The fragments of a warp's 32 outputs, 32 inputs: words of BF16, ready to use. */
template <int TYPE, class WS>
__device__ inline void large_frags(const WS &ws, uint32_t half, uint32_t block, uint32_t lane,
                                   uint32_t (&a)[2][2][4], float (&scale)[2][2])
{
    uint32_t g = lane / 4, t = lane % 4, b = block + g / 4;

    if (TYPE == KG_W_BF16) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t u = b * 64 + (t + 4 * (uint32_t)j) * 4 + g % 4,
                     at = (u ^ (u >> 3 & 1) * 2) * 4;

#pragma unroll
            for (int i = 0; i < 4; i++)
                a[j / 2][i / 2][j % 2 * 2 + i % 2] = ws[half * KGP_LARGE_W + at + (uint32_t)i];
        }
        return;
    }
    uint32_t base = half * KGP_LARGE_W + b * 68 + g % 4, sc = ws[base];
#pragma unroll
    for (int i = 0; i < 4; i++)
        scale[i / 2][i % 2] = scale_value(sc >> 8 * i & 255);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t codes = ws[base + 4 + (t + 4 * (uint32_t)j) * 4], w[2];

#pragma unroll
        for (int m = 0; m < 2; m++) {
            decode_two(codes >> 16 * m, w);
            a[j / 2][m][j % 2 * 2] = w[0];
            a[j / 2][m][j % 2 * 2 + 1] = w[1];
        }
    }
}

/*
 * Outputs block0 * 16 .. + 127 for rows row0 .. row0 + 127 (those below rs.n); KGP_LARGE_THREADS
 * threads. xs, ws: shared words, 2 * KGP_LARGE_X and 2 * KGP_LARGE_W.
 *
 * Roofline: 128 x 128 x 32 multiply-adds for 8 KB of weights and 16 KB of activations (MXFP4: 2 KB
 * and 16 KB): some 44 operations per byte read from the level-2 cache, so that this bounds it and
 * not the tensor cores; fp32 activations are the larger part.
 */
template <int TYPE, class XS, class WS>
__device__ void large_tile(const matrix &w, uint32_t block0, const rows &rs, uint32_t row0, XS &xs,
                           WS &ws)
{
    uint32_t warp = threadIdx.x / KG_WARP, lane = threadIdx.x % KG_WARP, g = lane / 4, t = lane % 4;
    uint32_t wm = warp % 4 * 2, wn = warp / 4 * 64, part = mma_part(w.in), half = 0;
    const float *x = row0 + threadIdx.x / 2 < rs.n ? row_x(rs, row0 + threadIdx.x / 2) : nullptr;
    float acc[2][8][4], total[2][8][4];
    large_carry<TYPE> carry;

#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[i / 32][i / 4 % 8][i % 4] = total[i / 32][i / 4 % 8][i % 4] = 0.0f;
    large_fetch<TYPE>(carry, w, block0, x, 0);
    __syncthreads();
    large_store<TYPE>(carry, 0, xs, ws);
    for (uint32_t k = 0; k < w.in; k += 32, half ^= 1) {
        uint32_t a[2][2][4];
        float scale[2][2];

        __syncthreads();
        if (k + 32 < w.in)
            large_fetch<TYPE>(carry, w, block0, x, k + 32);
        large_frags<TYPE>(ws, half, wm, lane, a, scale);
#pragma unroll
        for (int nt = 0; nt < 8; nt++) {
            uint32_t at = half * KGP_LARGE_X + (wn + (uint32_t)nt * 8 + g) * 20 + t, b[4];

#pragma unroll
            for (int j = 0; j < 4; j++)
                b[j] = xs[at + 4 * (uint32_t)j];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                if (TYPE == KG_W_BF16) {
                    kg_mma_bf16(acc[m][nt], a[0][m], b[0], b[1]);
                    kg_mma_bf16(acc[m][nt], a[1][m], b[2], b[3]);
                    continue;
                }
                float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};

                kg_mma_bf16(sum, a[0][m], b[0], b[1]);
                kg_mma_bf16(sum, a[1][m], b[2], b[3]);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    acc[m][nt][i] = fmaf(sum[i], scale[m][i / 2], acc[m][nt][i]);
            }
        }
        if (k + 32 < w.in)
            large_store<TYPE>(carry, half ^ 1, xs, ws);
        if ((k + 32) % part == 0 || k + 32 >= w.in) { /* the end of a part */
#pragma unroll
            for (int i = 0; i < 64; i++) {
                float &to = total[i / 32][i / 4 % 8][i % 4], &from = acc[i / 32][i / 4 % 8][i % 4];

                to = k < part ? from : to + from;
                from = 0.0f;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 64; i++) {
        int m = i / 32, nt = i / 4 % 8, e = i % 4;
        uint32_t r = row0 + wn + (uint32_t)nt * 8 + 2 * t + (uint32_t)(e % 2);
        uint32_t o = (block0 + wm) * 16 + frag_out<KG_W_BF16>(g, m, e / 2);

        if (r < rs.n && o < w.out)
            row_y(rs, r)[o] = total[m][nt][e];
    }
}

} // namespace kgp

#endif
