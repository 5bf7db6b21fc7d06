/*
 * Products in fp16 arithmetic, for halved weights (kernels.h says what they compute): a register
 * holds a line, the even and the odd input of 16 outputs, so a step does both at once. Included by
 * product.c where it is compiled for a set that has it.
 */
#ifndef KEDGE_KERNELS_CPU_HALF_H
#define KEDGE_KERNELS_CPU_HALF_H

#define CHAIN_BYTES ((size_t)HALF_CHAIN * 32)
#define GROUP_BYTES ((size_t)HALF_GROUP * 32)

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

/* One chain of a tile, its lines at t->w + i up to t->w + end. */
INLINE void half_chain(const struct tile *t, const struct rows_at *at, size_t i, size_t end,
                       vf *sums, int first, int rows, int blocks)
{
    ptrdiff_t ask = i < t->near ? t->ask[0] : t->ask[1];
    __m512h acc[TILE_ACCS];

    for (int r = 0; r < rows; r++)
        for (int b = 0; b < blocks; b++)
            acc[r * blocks + b] = _mm512_setzero_ph();
    for (; i < end; i += 64) {
        __m512h w[4];

        tile_ask(t, t->w + i, ask, blocks);
        for (int b = 0; b < blocks; b++)
            w[b] = (__m512h)vi_load(t->w + i + b * t->block_stride);
        for (int r = 0; r < rows; r++) {
            __m512h v = (__m512h)v_bits(v_set1(row_value(at, i / 64, r, rows)));

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
INLINE void tile_half(const struct tile *t, int rows, int blocks)
{
    struct rows_at at = tile_rows(t, rows);
    size_t back = COPY_STRIDE(rows <= NEAR_ROWS ? LONG_CHUNK : CHUNK) - PAD;

    for (size_t i = 0; i < t->bytes; back++) {
        size_t stop = t->bytes - i < GROUP_BYTES ? t->bytes : i + GROUP_BYTES;
        size_t end = stop - i < CHAIN_BYTES ? stop : i + CHAIN_BYTES;
        vf sums[2 * TILE_ACCS], y[TILE_ACCS];

        half_chain(t, &at, i, end, sums, 1, rows, blocks);
        for (i = end; i < stop; i = end) {
            end = stop - i < CHAIN_BYTES ? stop : i + CHAIN_BYTES;
            half_chain(t, &at, i, end, sums, 0, rows, blocks);
        }
        tile_begin(t, y, rows, blocks, t->first && stop <= GROUP_BYTES);
        for (int r = 0; r < rows; r++) {
            vf scale = v_set1(row_value(&at, back, r, rows));

            for (int b = 0; b < blocks; b++)
                y[r * blocks + b] =
                    v_fma(half_join(sums + 2 * (r * blocks + b)), scale, y[r * blocks + b]);
        }
        tile_end(t, y, rows, blocks);
    }
}

INLINE __m256i half_round(vf v)
{
    return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Inputs 0 .. k-1 of a row, scaled and rounded group by group, as pairs with zeros up to a multiple
 * of 16; the factors back to `back`. */
static void half_row(const float *x, uint32_t k, int32_t shift, float *to, float *back)
{
    for (uint32_t k0 = 0; k0 < k; k0 += HALF_GROUP) {
        uint32_t stop = k - k0 < HALF_GROUP ? k : k0 + HALF_GROUP;
        vi top = vi_set1(0);

        for (uint32_t i = k0; i < stop; i += LANES)
            top = _mm512_max_epi32(top,
                                   vi_and(v_bits(v_loadn(x + i, stop - i)), vi_set1(0x7fffffff)));
        vf scale = v_set1(half_scale((uint32_t)_mm512_reduce_max_epi32(top), shift, back++));
        for (uint32_t i = k0; i < stop; i += LANES)
            _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)to + i),
                                half_round(v_mul(v_loadn(x + i, stop - i), scale)));
    }
}

/* ---- weights ------------------------------------------------------------------------------- */

#define PREPARE_LINES 4096u /* of a task */

struct prepare {
    uint8_t *data;
    uint64_t lines;
    _Atomic uint32_t top; /* bits of the largest magnitude so far */
    float scale;
};

static void top_task(void *arg, uint32_t task, uint32_t member)
{
    struct prepare *p = arg;
    uint64_t i = (uint64_t)task * PREPARE_LINES;
    uint64_t end = p->lines - i < PREPARE_LINES ? p->lines : i + PREPARE_LINES;
    vi top = vi_set1(0);

    (void)member;
    for (; i < end; i++)
        top = _mm512_max_epu16(top, vi_and(vi_load(p->data + i * 64), vi_set1(0x7fff7fff)));
    top = _mm512_max_epi32(vi_and(top, vi_set1(0xffff)), vi_shr(top, 16));
    uint32_t mine = (uint32_t)_mm512_reduce_max_epi32(top) << 16, all = atomic_load(&p->top);
    while (mine > all && !atomic_compare_exchange_weak(&p->top, &all, mine))
        continue;
}

static void halve_task(void *arg, uint32_t task, uint32_t member)
{
    const struct prepare *p = arg;
    uint64_t i = (uint64_t)task * PREPARE_LINES;
    uint64_t end = p->lines - i < PREPARE_LINES ? p->lines : i + PREPARE_LINES;
    vf scale = v_set1(p->scale);

    (void)member;
    for (; i < end; i++) {
        vi pair = vi_load(p->data + i * 64);
        vf even = v_mul(v_from_bits(vi_shl(pair, 16)), scale);
        vf odd = v_mul(v_from_bits(vi_and(pair, vi_set1(-65536))), scale);

        vi_store(p->data + i * 64, vi_or(_mm512_cvtepu16_epi32(half_round(even)),
                                         vi_shl(_mm512_cvtepu16_epi32(half_round(odd)), 16)));
    }
}

void prepare_avx512_fp16(struct kg_team *team, struct kg_weight *w)
{
    struct prepare p = {.data = w->data, .lines = w->bytes / 64};
    uint64_t tasks = (p.lines + PREPARE_LINES - 1) / PREPARE_LINES;

    if (w->type != KG_W_BF16 || tasks > UINT32_MAX)
        return;
    kg_team_run(team, top_task, &p, (uint32_t)tasks);
    int32_t shift = half_shift(atomic_load(&p.top));
    if (shift < HALF_MIN_SHIFT || shift > HALF_MAX_SHIFT)
        return;
    p.scale = power_of_two(-shift);
    kg_team_run(team, halve_task, &p, (uint32_t)tasks);
    w->type = KG_W_F16;
    w->shift = shift;
}

#endif
