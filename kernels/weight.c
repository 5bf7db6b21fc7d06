#include "kernels.h"

#include "common.h"

#include <math.h>
#include <string.h>

uint16_t kg_bf16_from_f32(float x)
{
    return bf16_round(x);
}

float kg_f32_from_bf16(uint16_t x)
{
    return bf16_widen(x);
}

uint16_t kg_f16_from_f64(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    int e;

    if (isnan(x))
        return sign | 0x7e00;
    x = fabs(x);
    if (x >= 65520.0)
        return sign | 0x7c00;
    (void)frexp(x, &e); /* x < 2^e; a unit of the last place is 2^(e - 11), at least 2^-24 */
    e = x == 0 || e < -13 ? -13 : e;
    uint32_t units = (uint32_t)nearbyint(ldexp(x, 11 - e)); /* 2048 carries into the exponent */
    return (uint16_t)(sign | (((uint32_t)(e + 13) << 10) + units));
}

float kg_f32_from_f16(uint16_t x)
{
    int e = x >> 10 & 31;
    uint32_t digits = x & 1023;
    float v;

    if (e == 31)
        v = digits != 0 ? NAN : INFINITY;
    else
        v = ldexpf((float)(e == 0 ? digits : digits + 1024), (e == 0 ? 1 : e) - 25);
    return x & 0x8000 ? -v : v;
}

float kg_mxfp4_value(uint32_t code, uint32_t scale)
{
    static const float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

    if (scale == 255)
        return NAN;
    float v = ldexpf(values[code & 7], (int)scale - 127);
    return code & 8 ? -v : v;
}

/* Bytes of one block of 16 outputs; 0 for an unknown type. */
static uint64_t block_bytes(uint32_t type, uint32_t in)
{
    switch (type) {
    case KG_W_F32:
        return (uint64_t)in * 64;
    case KG_W_E4M7:
        return ((uint64_t)in + 1) / 2 * NARROW_LINE;
    case KG_W_BF16:
        return ((uint64_t)in + 1) / 2 * 64;
    case KG_W_MXFP4:
        return ((uint64_t)in + 31) / 32 * MX_GROUP_BYTES;
    default:
        return 0;
    }
}

uint64_t kg_weight_bytes(uint32_t type, uint32_t out, uint32_t in)
{
    uint64_t blocks = ((uint64_t)out + 15) / 16, bytes;

    if (__builtin_mul_overflow(blocks, block_bytes(type, in), &bytes) || bytes > SIZE_MAX / 2)
        return 0;
    return bytes;
}

int kg_weight_attach(struct kg_weight *w, uint32_t type, uint32_t out, uint32_t in, void *data)
{
    uint64_t bytes = kg_weight_bytes(type, out, in);

    if (bytes == 0 || data == NULL || (uintptr_t)data % 64 != 0)
        return KG_EINVAL;
    *w = (struct kg_weight){.type = type, .out = out, .in = in, .bytes = bytes, .data = data};
    return KG_OK;
}

int kg_weight_init(struct kg_weight *w, uint32_t type, uint32_t out, uint32_t in, void *data)
{
    int rc = kg_weight_attach(w, type, out, in, data);

    if (rc == KG_OK)
        memset(data, 0, w->bytes);
    return rc;
}

static void put(struct kg_weight *w, uint32_t o, uint32_t i, float value)
{
    uint8_t *block = (uint8_t *)w->data + o / 16 * block_bytes(w->type, w->in);

    if (w->type == KG_W_F32)
        ((float *)block)[(size_t)i * 16 + o % 16] = value;
    else
        ((uint16_t *)block)[(size_t)(i / 2) * 32 + o % 16 * 2 + i % 2] = bf16_round(value);
}

static float get(uint32_t dtype, const void *src, size_t at)
{
    return dtype == KG_F32 ? ((const float *)src)[at] : bf16_widen(((const uint16_t *)src)[at]);
}

static int fill_check(const struct kg_weight *w, uint32_t out0, uint32_t in0, uint32_t n_out,
                      uint32_t n_in, uint32_t src_dtype)
{
    if (w->type != KG_W_F32 && w->type != KG_W_BF16)
        return KG_EINVAL;
    if (src_dtype != KG_F32 && src_dtype != KG_BF16)
        return KG_EINVAL;
    if ((uint64_t)out0 + n_out > w->out || (uint64_t)in0 + n_in > w->in)
        return KG_EINVAL;
    return KG_OK;
}

/* bf16 to bf16, the layout of every checkpoint: one output's inputs, without conversions. */
static void fill_row_bf16(struct kg_weight *w, uint32_t o, uint32_t in0, uint32_t n_in,
                          const uint16_t *src, size_t si)
{
    uint16_t *to = (uint16_t *)((uint8_t *)w->data + o / 16 * block_bytes(w->type, w->in));

    to += o % 16 * 2;
    for (uint32_t i = 0; i < n_in; i++)
        to[(size_t)((in0 + i) / 2) * 32 + (in0 + i) % 2] = src[i * si];
}

typedef uint32_t pairs4 __attribute__((vector_size(16)));

/* Four pairs of inputs of four outputs: a 4x4 transposition of 32-bit words. */
static void turn4(const uint16_t *src, size_t stride, uint32_t *to)
{
    pairs4 r[4], lo0, hi0, lo1, hi1, c[4];

    for (int k = 0; k < 4; k++)
        memcpy(&r[k], src + k * stride, sizeof(r[k]));
    lo0 = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    hi0 = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    lo1 = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    hi1 = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    c[0] = __builtin_shufflevector(lo0, lo1, 0, 1, 4, 5);
    c[1] = __builtin_shufflevector(lo0, lo1, 2, 3, 6, 7);
    c[2] = __builtin_shufflevector(hi0, hi1, 0, 1, 4, 5);
    c[3] = __builtin_shufflevector(hi0, hi1, 2, 3, 6, 7);
    for (int k = 0; k < 4; k++)
        memcpy(to + k * 16, &c[k], sizeof(c[k]));
}

/* A whole block of 16 outputs at once, in words: a start packs a checkpoint at the speed of memory.
 * in0 is even; the inputs taken, a multiple of 8. */
static uint32_t fill_block_bf16(struct kg_weight *w, uint32_t out0, uint32_t in0, uint32_t n_in,
                                const uint16_t *src, size_t stride)
{
    uint32_t *to = (uint32_t *)((uint8_t *)w->data + out0 / 16 * block_bytes(w->type, w->in));
    uint32_t n = n_in / 8 * 8;

    to += (size_t)(in0 / 2) * 16;
    for (uint32_t i = 0; i < n; i += 8) {
        for (uint32_t o = 0; o < 16; o += 4)
            turn4(src + o * stride + i, stride, to + (size_t)(i / 2) * 16 + o);
    }
    return n;
}

/* Source element (o, i) lies at src[o * so + i * si]. */
static int fill(struct kg_weight *w, uint32_t out0, uint32_t in0, uint32_t n_out, uint32_t n_in,
                uint32_t src_dtype, const void *src, size_t so, size_t si)
{
    int rc = fill_check(w, out0, in0, n_out, n_in, src_dtype);

    for (uint32_t o = 0, done = 0; rc == KG_OK && o < n_out; o++) {
        if (w->type == KG_W_BF16 && src_dtype == KG_BF16) {
            const uint16_t *row = (const uint16_t *)src + o * so;
            if ((out0 + o) % 16 == 0)
                done = si == 1 && in0 % 2 == 0 && n_out - o >= 16
                           ? fill_block_bf16(w, out0 + o, in0, n_in, row, so)
                           : 0;
            fill_row_bf16(w, out0 + o, in0 + done, n_in - done, row + done * si, si);
            continue;
        }
        for (uint32_t i = 0; i < n_in; i++)
            put(w, out0 + o, in0 + i, get(src_dtype, src, o * so + i * si));
    }
    return rc;
}

int kg_weight_fill(struct kg_weight *w, uint32_t out0, uint32_t in0, uint32_t n_out, uint32_t n_in,
                   uint32_t src_dtype, const void *src, size_t src_stride)
{
    return fill(w, out0, in0, n_out, n_in, src_dtype, src, src_stride, 1);
}

int kg_weight_fill_t(struct kg_weight *w, uint32_t out0, uint32_t in0, uint32_t n_out,
                     uint32_t n_in, uint32_t src_dtype, const void *src, size_t src_stride)
{
    return fill(w, out0, in0, n_out, n_in, src_dtype, src, 1, src_stride);
}

typedef uint8_t bytes16 __attribute__((vector_size(16)));

/* One group of 16 outputs: 16 bytes of each become 16 pairs of inputs x 16 outputs. Every round
 * interleaves the upper half of the rows with the lower; after four, rows are columns. */
static void turn16(const uint8_t *src, size_t stride, uint8_t *to)
{
    bytes16 r[16], next[16];

    for (int i = 0; i < 16; i++)
        memcpy(&r[i], src + i * stride, sizeof(r[i]));
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 8; i++) {
            next[2 * i] = __builtin_shufflevector(r[i], r[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20,
                                                  5, 21, 6, 22, 7, 23);
            next[2 * i + 1] = __builtin_shufflevector(r[i], r[i + 8], 8, 24, 9, 25, 10, 26, 11, 27,
                                                      12, 28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(r, next, sizeof(r));
    }
    memcpy(to, r, sizeof(r));
}

/* A whole block of 16 outputs, so that a start packs a checkpoint at the speed of memory. */
static void fill_block_mxfp4(struct kg_weight *w, uint32_t out0, const uint8_t *packed,
                             const uint8_t *scales)
{
    uint8_t *group = (uint8_t *)w->data + out0 / 16 * block_bytes(w->type, w->in);
    uint32_t groups = w->in / 32;

    for (uint32_t g = 0; g < groups; g++, group += MX_GROUP_BYTES) {
        for (uint32_t o = 0; o < 16; o++)
            group[o] = scales[(size_t)o * groups + g];
        turn16(packed + g * 16, w->in / 2, group + 16);
    }
}

int kg_weight_fill_mxfp4(struct kg_weight *w, uint32_t out0, uint32_t n_out, const uint8_t *packed,
                         const uint8_t *scales)
{
    if (w->type >= KG_W_N_TYPES || w->in % 32 != 0 || (uint64_t)out0 + n_out > w->out)
        return KG_EINVAL;
    for (uint32_t r = 0; r < n_out; r++) {
        const uint8_t *row = packed + (size_t)r * (w->in / 2);
        const uint8_t *scale = scales + (size_t)r * (w->in / 32);
        uint32_t o = out0 + r;

        if (w->type == KG_W_MXFP4 && o % 16 == 0 && n_out - r >= 16) {
            fill_block_mxfp4(w, o, row, scale);
            r += 15;
            continue;
        }
        if (w->type != KG_W_MXFP4) {
            for (uint32_t i = 0; i < w->in; i++)
                put(w, o, i, kg_mxfp4_value(row[i / 2] >> (i % 2 * 4) & 15, scale[i / 32]));
            continue;
        }
        uint8_t *group = (uint8_t *)w->data + o / 16 * block_bytes(w->type, w->in);
        for (uint32_t g = 0; g < w->in / 32; g++, group += MX_GROUP_BYTES) {
            group[o % 16] = scale[g];
            for (uint32_t j = 0; j < 16; j++)
                group[16 + j * 16 + o % 16] = row[g * 16 + j];
        }
    }
    return KG_OK;
}

/* Of the three bytes of an output: its even or odd input. The code is an fp16 one cut short. */
static float narrow_value(const uint8_t *three, uint32_t odd)
{
    uint32_t both = three[0] | (uint32_t)three[1] << 8 | (uint32_t)three[2] << 16;
    uint32_t code = both >> (odd ? 12 : 0) & 0xfff;

    return kg_f32_from_f16((uint16_t)((code & 0x800) << 4 | (code & 0x7ff) << 3));
}

float kg_weight_at(const struct kg_weight *w, uint32_t o, uint32_t i)
{
    const uint8_t *block = (const uint8_t *)w->data + o / 16 * block_bytes(w->type, w->in);

    if (w->type == KG_W_F32)
        return ((const float *)block)[(size_t)i * 16 + o % 16];
    if (w->type == KG_W_BF16)
        return bf16_widen(((const uint16_t *)block)[(size_t)(i / 2) * 32 + o % 16 * 2 + i % 2]);
    if (w->type == KG_W_E4M7)
        return ldexpf(narrow_value(block + (size_t)(i / 2) * NARROW_LINE + o % 16 * 3, i % 2),
                      w->shift);
    const uint8_t *group = block + (size_t)(i / 32) * MX_GROUP_BYTES;
    uint32_t pair = group[16 + i % 32 / 2 * 16 + o % 16];
    return kg_mxfp4_value(pair >> (i % 2 * 4) & 15, group[o % 16]);
}

static uint32_t narrow_code(uint16_t bf16, float scale)
{
    float v = bf16_widen(bf16) * scale;
    uint32_t half = kg_f16_from_f64(fabsf(v) < 0x1p-14f ? narrow_small(v) : v);

    return (half >> 4 & 0x800) | (half >> 3 & 0x7ff);
}

int kg_weight_narrow(struct kg_weight *w)
{
    uint64_t lines = w->bytes / 64;
    uint32_t top = 0;

    if (w->type != KG_W_BF16)
        return 0;
    for (uint64_t i = 0; i < lines * 32; i++) {
        uint32_t v = ((const uint16_t *)w->data)[i] & 0x7fffu;
        top = v > top ? v : top;
    }
    int32_t shift = half_shift(top << 16);
    if (shift < HALF_MIN_SHIFT || shift > HALF_MAX_SHIFT)
        return 0;
    float scale = power_of_two(-shift);
    for (uint64_t i = 0; i < lines; i++) {
        const uint16_t *from = (const uint16_t *)w->data + i * 32;
        uint8_t *to = (uint8_t *)w->data + i * NARROW_LINE;

        for (uint32_t o = 0; o < 16; o++) { /* what is written was read */
            uint32_t both = narrow_code(from[2 * o], scale) | narrow_code(from[2 * o + 1], scale)
                                                                  << 12;
            to[3 * o] = (uint8_t)both;
            to[3 * o + 1] = (uint8_t)(both >> 8);
            to[3 * o + 2] = (uint8_t)(both >> 16);
        }
    }
    w->type = KG_W_E4M7;
    w->shift = shift;
    w->bytes = lines * NARROW_LINE;
    return 1;
}
