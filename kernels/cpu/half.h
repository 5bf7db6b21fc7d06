/*
 * Products in fp16 arithmetic, for narrow weights (kernels.h says what they compute). A register
 * holds a line, the even and the odd input of 16 outputs, so a step does both at once. A code of 12
 * bits is an fp16 one without its first exponent bit and last three digits: four instructions make
 * 32 of them. The only tile of a chunk does that as it goes; before several tiles pass by the same
 * weights it is done once. Included by product.c where it is compiled for a set that can do this.
 */
#ifndef KEDGE_KERNELS_CPU_HALF_H
#define KEDGE_KERNELS_CPU_HALF_H

#include <stdatomic.h>

#define CHAIN_LINES ((size_t)HALF_CHAIN / 2)
#define GROUP_LINES ((size_t)HALF_GROUP / 2)

/* 32 codes to fp16. */
INLINE vi half_line(const char *line)
{
    const vi spread =
        _mm512_setr_epi32(0x02010100, 0x05040403, 0x08070706, 0x0b0a0a09, 0x0e0d0d0c, 0x1110100f,
                          0x14131312, 0x17161615, 0x1a191918, 0x1d1c1c1b, 0x201f1f1e, 0x23222221,
                          0x26252524, 0x29282827, 0x2c2b2b2a, 0x2f2e2e2d);
    vi v = _mm512_maskz_loadu_epi8((1ull << NARROW_LINE) - 1, line);

    v = _mm512_permutexvar_epi8(spread, v); /* bytes 0 1 1 2 of an output: each code in a word */
    v = _mm512_sllv_epi16(v, vi_set1(4));   /* the even one to the top of its word, too */
    v = _mm512_srai_epi16(v, 1);
    return vi_and(v, vi_set1((int32_t)0xbff8bff8u));
}

/* What an accumulator adds to its two fp32 sums: of outputs 0 to 7 and of 8 to 15, in each the even
 * and the odd inputs in turn. */
INLINE void half_add(__m512h acc, vf *sums, int first)
{
    __m256i lo = _mm512_castsi512_si256((__m512i)acc);
    __m256i hi = _mm512_extracti64x4_epi64((__m512i)acc, 1);
    vf s0 = _mm512_cvtxph_ps((__m256h)lo), s1 = _mm512_cvtxph_ps((__m256h)hi);

    sums[0] = first ? s0 : v_add(sums[0], s0);
    sums[1] = first ? s1 : v_add(sums[1], s1);
}

/* Lines n .. end - 1 of a tile: a chain. */
INLINE void half_chain(const struct tile *t, const struct rows_at *at, size_t n, size_t end,
                       vf *sums, int first, int narrow, int rows, int blocks)
{
    ptrdiff_t ask = n * NARROW_LINE < t->near ? t->ask[0] : t->ask[1];
    __m512h acc[TILE_ACCS];

    for (int r = 0; r < rows; r++)
        for (int b = 0; b < blocks; b++)
            acc[r * blocks + b] = _mm512_setzero_ph();
    for (; n < end; n++) {
        __m512h w[4];

        tile_ask(t, t->source + n * NARROW_LINE, ask, blocks);
        for (int b = 0; b < blocks; b++)
            w[b] = (__m512h)(narrow ? half_line(t->w + n * NARROW_LINE + b * t->block_stride)
                                    : vi_load(t->w + n * 64 + b * t->block_stride));
        for (int r = 0; r < rows; r++) {
            __m512h v = (__m512h)v_bits(v_set1(row_value(at, n, r, rows)));

            for (int b = 0; b < blocks; b++)
                acc[r * blocks + b] = _mm512_fmadd_ph(v, w[b], acc[r * blocks + b]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < blocks; b++)
            half_add(acc[r * blocks + b], sums + 2 * (r * blocks + b), first);
}

/* Even and odd sums of 16 outputs, together. */
INLINE vf half_join(const vf *sums)
{
    const vi even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    vi odd = vi_add(even, vi_set1(1));

    return v_add(_mm512_permutex2var_ps(sums[0], even, sums[1]),
                 _mm512_permutex2var_ps(sums[0], odd, sums[1]));
}

/* The factor that takes the scales of a row's group back lies behind its inputs. */
INLINE void tile_half(const struct tile *t, int narrow, int rows, int blocks)
{
    struct rows_at at = tile_rows(t, rows);
    size_t back = COPY_STRIDE(rows <= NEAR_ROWS ? LONG_CHUNK : CHUNK) - PAD;
    size_t lines = t->bytes / NARROW_LINE;

    for (size_t n = 0; n < lines; back++) {
        size_t stop = lines - n < GROUP_LINES ? lines : n + GROUP_LINES;
        size_t end = stop - n < CHAIN_LINES ? stop : n + CHAIN_LINES;
        vf sums[2 * TILE_ACCS], y[TILE_ACCS];

        half_chain(t, &at, n, end, sums, 1, narrow, rows, blocks);
        for (n = end; n < stop; n = end) {
            end = stop - n < CHAIN_LINES ? stop : n + CHAIN_LINES;
            half_chain(t, &at, n, end, sums, 0, narrow, rows, blocks);
        }
        tile_begin(t, y, rows, blocks, t->first && stop <= GROUP_LINES);
        for (int r = 0; r < rows; r++) {
            vf scale = v_set1(row_value(&at, back, r, rows));

            for (int b = 0; b < blocks; b++)
                y[r * blocks + b] =
                    v_fma(half_join(sums + 2 * (r * blocks + b)), scale, y[r * blocks + b]);
        }
        tile_end(t, y, rows, blocks);
    }
}

/* Chunks of `blocks` blocks made fp16, for tiles that pass by them one after the other. */
static void half_panel(const struct tile *t, uint32_t blocks, uint16_t *panel)
{
    for (uint32_t b = 0; b < blocks; b++) {
        for (size_t n = 0; n < t->bytes / NARROW_LINE; n++)
            vi_store(panel + ((size_t)b * CHUNK * LANES + n * 32),
                     half_line(t->source + n * NARROW_LINE + b * t->source_stride));
    }
}

INLINE __m256i half_round(vf v)
{
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* `n` inputs, a group or its rest, in registers between the look for the largest and the rounding.
 */
INLINE void half_group(const float *x, uint32_t n, int32_t shift, uint16_t *to, float *back)
{
    vf v[HALF_GROUP / LANES];
    vi top = vi_set1(0);

    for (uint32_t i = 0; i * LANES < n; i++) {
        v[i] = n == HALF_GROUP ? v_load(x + i * LANES) : v_loadn(x + i * LANES, n - i * LANES);
        top = _mm512_max_epi32(top, vi_and(v_bits(v[i]), vi_set1(0x7fffffff)));
    }
    vf scale = v_set1(half_scale((uint32_t)_mm512_reduce_max_epi32(top), shift, back));
    for (uint32_t i = 0; i * LANES < n; i++)
        _mm256_storeu_si256((__m256i *)(void *)(to + i * LANES), half_round(v_mul(v[i], scale)));
}

/* Inputs 0 .. k-1 of a row, scaled and rounded group by group, as pairs with zeros up to a multiple
 * of 16; the factors back to `back`. */
static void half_row(const float *x, uint32_t k, int32_t shift, float *to, float *back)
{
    uint16_t *half = (uint16_t *)to;
    uint32_t k0 = 0;

    for (; k - k0 >= HALF_GROUP; k0 += HALF_GROUP)
        half_group(x + k0, HALF_GROUP, shift, half + k0, back++);
    if (k0 < k)
        half_group(x + k0, k - k0, shift, half + k0, back);
}

/* ---- weights ------------------------------------------------------------------------------- */

struct prepare {
    uint8_t *data;
    uint64_t block_lines;
    _Atomic uint32_t top; /* bits of the largest magnitude so far */
    float scale;
};

/* A task is a block. */
static void top_task(void *arg, uint32_t task, uint32_t member)
{
    struct prepare *p = arg;
    const uint8_t *block = p->data + task * p->block_lines * 64;
    vi top = vi_set1(0);

    (void)member;
    for (uint64_t n = 0; n < p->block_lines; n++)
        top = _mm512_max_epu16(top, vi_and(vi_load(block + n * 64), vi_set1(0x7fff7fff)));
    top = _mm512_max_epi32(vi_and(top, vi_set1(0xffff)), vi_shr(top, 16));
    uint32_t mine = (uint32_t)_mm512_reduce_max_epi32(top) << 16, all = atomic_load(&p->top);
    while (mine > all && !atomic_compare_exchange_weak(&p->top, &all, mine))
        continue;
}

/* Values as floats to codes. */
INLINE vi narrow_codes(vf v, vf scale)
{
    v = v_mul(v, scale);
    __mmask16 small = _mm512_cmp_ps_mask(_mm512_abs_ps(v), v_set1(0x1p-14f), _CMP_LT_OQ);
    vf six = v_set1(6.0f);
    v = _mm512_mask_sub_ps(v, small, v_add(v, six), six);
    vi half = _mm512_cvtepu16_epi32(half_round(v));
    return vi_or(vi_and(vi_shr(half, 4), vi_set1(0x800)), vi_and(vi_shr(half, 3), vi_set1(0x7ff)));
}

static void narrow_task(void *arg, uint32_t task, uint32_t member)
{
    const vi gather = _mm512_setr_epi32(0x04020100, 0x09080605, 0x0e0d0c0a, 0x14121110, 0x19181615,
                                        0x1e1d1c1a, 0x24222120, 0x29282625, 0x2e2d2c2a, 0x34323130,
                                        0x39383635, 0x3e3d3c3a, 0, 0, 0, 0);
    const struct prepare *p = arg;
    uint8_t *block = p->data + task * p->block_lines * 64;
    vf scale = v_set1(p->scale);

    (void)member;
    for (uint64_t n = 0; n < p->block_lines; n++) { /* what is written was read */
        vi pair = vi_load(block + n * 64);
        vi even = narrow_codes(v_from_bits(vi_shl(pair, 16)), scale);
        vi odd = narrow_codes(v_from_bits(vi_and(pair, vi_set1(-65536))), scale);

        _mm512_mask_storeu_epi8(block + n * NARROW_LINE, (1ull << NARROW_LINE) - 1,
                                _mm512_permutexvar_epi8(gather, vi_or(even, vi_shl(odd, 12))));
    }
}

void prepare_avx512_fp16(struct kg_team *team, struct kg_weight *w)
{
    struct prepare p = {.data = w->data, .block_lines = ((uint64_t)w->in + 1) / 2};
    uint32_t blocks = w->out / LANES + (w->out % LANES != 0);

    if (w->type != KG_W_BF16)
        return;
    kg_team_run(team, top_task, &p, blocks);
    int32_t shift = half_shift(atomic_load(&p.top));
    if (shift < HALF_MIN_SHIFT || shift > HALF_MAX_SHIFT)
        return;
    p.scale = power_of_two(-shift);
    kg_team_run(team, narrow_task, &p, blocks);
    for (uint64_t b = 1; b < blocks; b++) /* each close behind the one before */
        memmove(p.data + b * p.block_lines * NARROW_LINE, p.data + b * p.block_lines * 64,
                p.block_lines * NARROW_LINE);
    w->type = KG_W_E4M7;
    w->shift = shift;
    w->bytes = blocks * p.block_lines * NARROW_LINE;
}

#endif
