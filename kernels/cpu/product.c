/*
 * Products. A task computes a run of output blocks for all rows. A tile is rows x blocks of 16
 * outputs, one register each: up to 4 rows x 4 blocks, else up to 14 rows x 2 blocks. Few rows
 * are read where they lie; many, and rounded ones, from a copy. K is cut into chunks so that the
 * weights of a tile stay in the first cache level while the rows pass by; between chunks the
 * accumulators rest in y, so the order of additions is that of one unbroken walk.
 */
#include "cpu.h"

#include "simd.h"

/* Tiles that fit the registers: most rows that are read where they lie, most of a copy, and blocks
 * for a number of rows. */
#define NEAR_ROWS 4
#if defined(__AVX512F__)
#define TALL_ROWS 14
#define TILE_BLOCKS(rows) ((rows) <= 4 ? 4u : 2u)
#else
#define TALL_ROWS 4
#define TILE_BLOCKS(rows) ((rows) <= 1 ? 4u : (rows) <= 2 ? 2u : 1u)
#endif
#define TILE_ACCS (TALL_ROWS * 2)
#define PANEL_ROWS 64   /* rows that pass by a chunk of weights */
#define CHUNK 256       /* k per chunk; a multiple of 32 */
#define LONG_CHUNK 2048 /* for NEAR_ROWS: weights then stream in longer runs */
#define PAD 16          /* floats between copied rows: not a power of two apart */
#if defined(KG_HALF)
#define COPY_STRIDE(chunk) ((chunk) / 2 + PAD) /* floats to the next copied row: of pairs */
#else
#define COPY_STRIDE(chunk) ((chunk) + PAD)
#endif
#define COPY_FLOATS (PANEL_ROWS * COPY_STRIDE(CHUNK)) /* of either kind of chunk */

/* What a tile does with a chunk. */
struct tile {
    const char *w;         /* chunk of the first block */
    size_t block_stride;   /* bytes to the same chunk of the next block */
    size_t bytes;          /* of a block in this chunk, whole lines */
    size_t near;           /* of them, those at whose lines ask[0] is asked for; behind, ask[1] */
    ptrdiff_t ask[2];      /* bytes from a line to the one asked for */
    size_t ask_stride;     /* the same of the next block; 0: one line for all */
    const char *source;    /* where the chunk lies, w or what w was made of; lines are asked for */
    size_t source_stride;  /* relative to it; bytes and near are of it, too */
    const float *const *x; /* [rows] activations: [k] fp32, or [k/2] pairs of 16 bits; of more than
                              NEAR_ROWS x[0] alone, the next row COPY_STRIDE behind */
    float *const *y;       /* [rows] outputs of the first block */
    uint32_t k;            /* inputs in this chunk */
    uint32_t last;         /* outputs of the last block, 1..16 */
    int first;             /* start from zero instead of y */
};

INLINE void tile_begin(const struct tile *t, vf *acc, int rows, int blocks, int first)
{
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < blocks; b++)
            acc[r * blocks + b] =
                first ? v_zero() : v_loadn(t->y[r] + b * LANES, b + 1 < blocks ? 16 : t->last);
}

INLINE void tile_end(const struct tile *t, const vf *acc, int rows, int blocks)
{
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < blocks; b++)
            v_storen(t->y[r] + b * LANES, acc[r * blocks + b], b + 1 < blocks ? 16 : t->last);
}

/* Where the values of a tile's rows lie. */
struct rows_at {
    const float *x[NEAR_ROWS];
};

INLINE struct rows_at tile_rows(const struct tile *t, int rows)
{
    struct rows_at at = {{t->x[0]}};

    for (int r = 1; r < rows && rows <= NEAR_ROWS; r++)
        at.x[r] = t->x[r];
    return at;
}

INLINE float row_value(const struct rows_at *at, size_t k, int r, int rows)
{
    return rows <= NEAR_ROWS ? at->x[r][k] : at->x[0][(size_t)r * COPY_STRIDE(CHUNK) + k];
}

/* A tile asks for weights in time, so that memory is read while it computes. */
INLINE void tile_ask(const struct tile *t, const char *w, ptrdiff_t ask, int blocks)
{
    for (int b = 0; b < blocks; b++)
        _mm_prefetch(w + ask + b * t->ask_stride, _MM_HINT_T0);
}

#if !defined(KG_HALF)
INLINE void tile_step(vf *acc, const struct rows_at *at, size_t k, const vf *w, int rows,
                      int blocks)
{
    for (int r = 0; r < rows; r++) {
        vf v = v_set1(row_value(at, k, r, rows));

        for (int b = 0; b < blocks; b++)
            acc[r * blocks + b] = v_fma(v, w[b], acc[r * blocks + b]);
    }
}

INLINE void tile_f32(const struct tile *t, int rows, int blocks)
{
    struct rows_at at = tile_rows(t, rows);
    vf acc[TILE_ACCS];
    size_t i = 0;

    tile_begin(t, acc, rows, blocks, t->first);
    for (int part = 0; part < 2; part++) {
        size_t end = part == 0 ? t->near : t->bytes;
        ptrdiff_t ask = t->ask[part];

        for (; i < end; i += 64) {
            vf w[4];

            tile_ask(t, t->w + i, ask, blocks);
            for (int b = 0; b < blocks; b++)
                w[b] = v_load((const float *)(const void *)(t->w + i + b * t->block_stride));
            tile_step(acc, &at, i / 64, w, rows, blocks);
        }
    }
    tile_end(t, acc, rows, blocks);
}

/* The even or odd inputs of a pair of each block. Read twice rather than kept: AVX2 has no
 * registers to spare, and a spilled accumulator doubles the time of a step. */
INLINE void widen(const struct tile *t, const char *line, int blocks, int odd, vf *w)
{
    for (int b = 0; b < blocks; b++) {
        vi pair = vi_load(line + b * t->block_stride);

        w[b] = v_from_bits(odd ? vi_and(pair, vi_set1(-65536)) : vi_shl(pair, 16));
    }
}

/* Widened weights; with `pairs` the odd input of a pair comes first and an absent one is zero. */
INLINE void tile_bf16(const struct tile *t, int rows, int blocks, int pairs)
{
    struct rows_at at = tile_rows(t, rows);
    vf acc[TILE_ACCS], w[4];
    size_t whole = pairs ? t->bytes : t->k / 2 * (size_t)64, i = 0;

    tile_begin(t, acc, rows, blocks, t->first);
    for (int part = 0; part < 2; part++) {
        size_t end = part == 0 ? t->near : whole;
        ptrdiff_t ask = t->ask[part];

        for (; i < end; i += 64) {
            const char *line = t->w + i;

            tile_ask(t, line, ask, blocks);
            widen(t, line, blocks, pairs, w);
            tile_step(acc, &at, i / 32 + (size_t)pairs, w, rows, blocks);
#if !defined(__AVX512F__)
            __asm__ volatile("" : "+r"(line)); /* or the compiler keeps the pair after all */
#endif
            widen(t, line, blocks, !pairs, w);
            tile_step(acc, &at, i / 32 + (size_t)!pairs, w, rows, blocks);
        }
    }
    if (whole < t->bytes) { /* the last input has no partner */
        widen(t, t->w + whole, blocks, 0, w);
        tile_step(acc, &at, t->k - 1, w, rows, blocks);
    }
    tile_end(t, acc, rows, blocks);
}

#if defined(__AVX512BF16__)
INLINE void tile_pairs(const struct tile *t, int rows, int blocks)
{
    struct rows_at at = tile_rows(t, rows); /* each value holds two bf16 */
    vf acc[TILE_ACCS];
    size_t i = 0;

    tile_begin(t, acc, rows, blocks, t->first);
    for (int part = 0; part < 2; part++) {
        size_t end = part == 0 ? t->near : t->bytes;
        ptrdiff_t ask = t->ask[part];

        for (; i < end; i += 64) {
            __m512bh w[4];

            tile_ask(t, t->w + i, ask, blocks);
            for (int b = 0; b < blocks; b++)
                w[b] = (__m512bh)vi_load(t->w + i + b * t->block_stride);
            for (int r = 0; r < rows; r++) {
                __m512bh v = (__m512bh)v_bits(v_set1(row_value(&at, i / 64, r, rows)));

                for (int b = 0; b < blocks; b++)
                    acc[r * blocks + b] = _mm512_dpbf16_ps(acc[r * blocks + b], v, w[b]);
            }
        }
    }
    tile_end(t, acc, rows, blocks);
}
#else
INLINE void tile_pairs(const struct tile *t, int rows, int blocks)
{
    tile_bf16(t, rows, blocks, 1);
}
#endif
#else
#include "half.h"
#endif

enum tile_kind { TILE_F32, TILE_BF16, TILE_PAIRS, TILE_HALF, TILE_NARROW };

INLINE void tile_run(const struct tile *t, int kind, int rows, int blocks)
{
#if defined(KG_HALF)
    tile_half(t, kind == TILE_NARROW, rows, blocks);
#else
    if (kind == TILE_F32)
        tile_f32(t, rows, blocks);
    else if (kind == TILE_BF16)
        tile_bf16(t, rows, blocks, 0);
    else
        tile_pairs(t, rows, blocks);
#endif
}

/* Every size the driver asks for is a loop of its own. */
#define SIZE(b, r)               \
    case (b)*16 + (r):           \
        tile_run(t, kind, r, b); \
        return;

INLINE void tile_sized(const struct tile *t, int kind, uint32_t rows, uint32_t blocks)
{
    switch (blocks * 16 + rows) {
        SIZE(4, 1)
        SIZE(2, 1)
        SIZE(2, 2)
        SIZE(1, 1)
        SIZE(1, 2)
        SIZE(1, 3)
        SIZE(1, 4)
#if defined(__AVX512F__)
        SIZE(4, 2)
        SIZE(4, 3)
        SIZE(4, 4)
        SIZE(2, 3)
        SIZE(2, 4)
        SIZE(2, 5)
        SIZE(2, 6)
        SIZE(2, 7)
        SIZE(2, 8)
        SIZE(2, 9)
        SIZE(2, 10)
        SIZE(2, 11)
        SIZE(2, 12)
        SIZE(2, 13)
        SIZE(2, 14)
        SIZE(1, 5)
        SIZE(1, 6)
        SIZE(1, 7)
        SIZE(1, 8)
        SIZE(1, 9)
        SIZE(1, 10)
        SIZE(1, 11)
        SIZE(1, 12)
        SIZE(1, 13)
        SIZE(1, 14)
#endif
    default:
        return;
    }
}

#if !defined(KG_HALF)
static void run_f32(const struct tile *t, uint32_t rows, uint32_t blocks)
{
    tile_sized(t, TILE_F32, rows, blocks);
}

static void run_bf16(const struct tile *t, uint32_t rows, uint32_t blocks)
{
    tile_sized(t, TILE_BF16, rows, blocks);
}

static void run_pairs(const struct tile *t, uint32_t rows, uint32_t blocks)
{
    tile_sized(t, TILE_PAIRS, rows, blocks);
}

static void run_tile(const struct tile *t, uint32_t type, int pairs, uint32_t rows, uint32_t blocks)
{
    if (type == KG_W_F32)
        run_f32(t, rows, blocks);
    else if (pairs)
        run_pairs(t, rows, blocks);
    else
        run_bf16(t, rows, blocks);
}
#else
static void run_half(const struct tile *t, uint32_t rows, uint32_t blocks)
{
    tile_sized(t, TILE_HALF, rows, blocks);
}

static void run_narrow(const struct tile *t, uint32_t rows, uint32_t blocks)
{
    tile_sized(t, TILE_NARROW, rows, blocks);
}

static void run_tile(const struct tile *t, uint32_t type, int pairs, uint32_t rows, uint32_t blocks)
{
    (void)type;
    (void)pairs;
    if (t->w == t->source)
        run_narrow(t, rows, blocks);
    else
        run_half(t, rows, blocks);
}
#endif

static const float *job_x(const struct product_job *job, uint32_t row)
{
    return job->x + (size_t)(job->x_row == NULL ? row : job->x_row[row]) * job->x_stride;
}

static float *job_y(const struct product_job *job, uint32_t row)
{
    return job->y + (size_t)(job->y_row == NULL ? row : job->y_row[row]) * job->y_stride;
}

#if !defined(KG_HALF)
/* Rounds k inputs to bf16, zeros behind the last up to a multiple of 16: as pairs where the tiles
 * take those, else widened again. */
static void round_row(const struct kg_weight *w, const float *x, uint32_t k, float *to, size_t most)
{
    (void)w;
    (void)most;
    for (uint32_t i = 0; i < k; i += LANES) {
        uint32_t n = k - i < LANES ? k - i : LANES;
        vi bits = v_round_bf16(n == LANES ? v_load(x + i) : v_loadn(x + i, n));

#if defined(__AVX512BF16__)
        vi_store_u16((uint16_t *)to + i, bits);
#else
        v_store(to + i, v_from_bits(vi_shl(bits, 16)));
#endif
    }
}
#else
static void round_row(const struct kg_weight *w, const float *x, uint32_t k, float *to, size_t most)
{
    half_row(x, k, w->shift, to, to + most / 2);
}
#endif

/* One group of 16 outputs x 32 inputs at any scales, by products of fp32. */
static void decode_group(const uint8_t *group, uint16_t *to)
{
    static const float codes[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    vi s = vi_load_u8(group);
    vf sf = v_from_int(s), scale = v_from_bits(vi_shl(s, 23));

    /* 2^-127 is below the normal range; 255 is NaN, not infinity */
    scale = v_select(v_lt(sf, v_set1(0.5f)), v_from_bits(vi_set1(0x00400000)), scale);
    scale = v_select(v_lt(sf, v_set1(254.5f)), scale, v_set1(__builtin_nanf("")));
    for (uint32_t j = 0; j < 16; j++) {
        vi code = vi_load_u8(group + 16 + j * 16);
        vf even = v_mul(v_lookup16(codes, vi_and(code, vi_set1(15))), scale);
        vf odd = v_mul(v_lookup16(codes, vi_shr(code, 4)), scale);

        vi_store(to + j * 32,
                 vi_or(vi_shr(v_bits(even), 16), vi_and(v_bits(odd), vi_set1(-65536))));
    }
}

#if defined(__AVX512F__)
/* The same where every value is a normal bf16: the scale is added to the exponent of the code. */
static void decode_normal_group(const uint8_t *group, uint16_t *to)
{
    /* codes 0..15 twice: the fifth index bit is not ours */
    static const uint16_t codes[32] = {
        0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
        0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
        0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
    const vi table = vi_load(codes), digits = vi_set1(0x7fff7fff);
    vi s = vi_shl(vi_sub(vi_load_u8(group), vi_set1(127)), 7);

    s = vi_or(vi_and(s, vi_set1(0xffff)), vi_shl(s, 16)); /* for both inputs of a pair */
    for (uint32_t j = 0; j < 16; j++) {
        vi code = vi_load_u8(group + 16 + j * 16);
        vi v = _mm512_permutexvar_epi16(vi_or(code, vi_shl(code, 12)), table);

        vi_store(to + j * 32, _mm512_mask_add_epi16(v, _mm512_test_epi16_mask(v, digits), v, s));
    }
}

/* All 16 scales in 2..252: codes run from 2^-1 to 1.5 * 2^2. */
INLINE int group_is_normal(const uint8_t *group)
{
    __m128i s = _mm_loadu_si128((const __m128i *)group);

    return _mm_cmplt_epu8_mask(_mm_sub_epi8(s, _mm_set1_epi8(2)), _mm_set1_epi8((char)251)) ==
           0xffff;
}
#endif

/* Decodes inputs k0 .. k0+k-1 (k0 a multiple of 32) of one MXFP4 block to the BF16 layout. */
static void decode_mxfp4(const struct kg_weight *w, uint32_t block, uint32_t k0, uint32_t k,
                         uint16_t *to)
{
    const uint8_t *group =
        (const uint8_t *)w->data + ((size_t)block * ((w->in + 31) / 32) + k0 / 32) * MX_GROUP_BYTES;

    for (uint32_t i = 0; i < k; i += 32, group += MX_GROUP_BYTES, to += 16 * 32) {
#if defined(__AVX512F__)
        if (group_is_normal(group)) {
            decode_normal_group(group, to);
            continue;
        }
#endif
        decode_group(group, to);
    }
}

#if defined(KG_HALF)
#define NARROW_ROWS 12         /* most of a tile that makes fp16 as it goes: three registers less */
#define LINE_BYTES NARROW_LINE /* of two inputs of 16 outputs */
#else
#define LINE_BYTES 64 /* of two inputs of 16 outputs, fp32: one */
#endif

/* Where a chunk of a weight block lies. */
static const char *chunk_at(const struct kg_weight *w, uint32_t block, uint32_t k0, size_t *stride)
{
    size_t lines = w->type == KG_W_F32 ? k0 : k0 / 2;

    *stride = (w->type == KG_W_F32 ? w->in : ((size_t)w->in + 1) / 2) * LINE_BYTES;
    return (const char *)w->data + block * *stride + lines * LINE_BYTES;
}

/* One chunk of K: what all tiles of a panel share. */
struct chunk {
    const struct product_job *job;
    const float *x[PANEL_ROWS];
    uint32_t row0, rows;
    uint32_t k0, k;
    int pairs;
    size_t ahead; /* bytes; 0: nothing is asked for */
};

/*
 * How far ahead a tile asks. On Intel's cores so far even one row does not read as fast as memory
 * gives without it; on AMD's (Zen 4) one or two do, and asking only gets in the way of that.
 */
static size_t ahead_bytes(uint32_t type, uint32_t rows)
{
    if (type == KG_W_MXFP4)
        return 0; /* a tile reads what was decoded just now */
    if (!__builtin_cpu_is("amd"))
        return 2048;
    return rows < 3 ? 0 : 1024;
}

/*
 * What a tile asks for. The only tile of a chunk: what its own streams read next, behind the end of
 * a block's chunk those of the next blocks. Of several that pass by the same weights the first ones
 * ask for the next blocks, one each, so that memory is busy in more than the first.
 */
static void ask_ahead(const struct chunk *c, struct tile *t, uint32_t blocks, uint32_t pass)
{
    size_t next = blocks * t->source_stride;

    t->ask[0] = t->ask[1] = 0;
    t->ask_stride = 0;
    t->near = 0;
    if (c->ahead == 0)
        return;
    if (c->rows > TALL_ROWS) {
        if (pass < blocks)
            t->ask[1] = (ptrdiff_t)(next + pass * t->source_stride);
        return;
    }
    /* of what was read and copied before, nothing is to be asked for */
    t->near = t->w == t->source && t->bytes > c->ahead ? t->bytes - c->ahead : 0;
    t->ask[0] = (ptrdiff_t)c->ahead;
    t->ask[1] = (ptrdiff_t)(next - t->near);
    t->ask_stride = t->source_stride;
}

/* Rows in tiles of nearly equal height: a tile of one row waits for its own additions. */
static void run_tiles(const struct chunk *c, struct tile *t, uint32_t b, uint32_t blocks)
{
    uint32_t last = c->job->w->out - (b + blocks - 1) * LANES;
    uint32_t tiles = (c->rows + TALL_ROWS - 1) / TALL_ROWS;

    t->k = c->k;
    t->first = c->k0 == 0;
    t->last = last > LANES ? LANES : last;
    for (uint32_t r = 0, pass = 0, n; r < c->rows; r += n, pass++) {
        float *y[TALL_ROWS];

        n = (c->rows - r + tiles - pass - 1) / (tiles - pass);
        for (uint32_t i = 0; i < n; i++)
            y[i] = job_y(c->job, c->row0 + r + i) + (size_t)b * LANES;
        t->y = y;
        t->x = c->x + r;
        ask_ahead(c, t, blocks, pass);
        run_tile(t, c->job->w->type, c->pairs, n, blocks);
    }
}

static void run_chunk(const struct chunk *c, uint32_t b0, uint32_t b1)
{
    const struct kg_weight *w = c->job->w;
    _Alignas(64) uint16_t panel[4 * CHUNK * LANES];
    uint32_t wide = TILE_BLOCKS(c->rows), blocks;

    for (uint32_t b = b0; b < b1; b += blocks) {
        struct tile t;

        blocks = b1 - b >= wide ? wide : wide > 2 && b1 - b >= 2 ? 2 : 1;
        t.bytes = (size_t)(w->type == KG_W_F32 ? c->k : (c->k + 1) / 2) * LINE_BYTES;
        if (w->type == KG_W_MXFP4) {
            t.w = (const char *)panel;
            t.block_stride = CHUNK * LANES * sizeof(uint16_t);
            for (uint32_t i = 0; i < blocks; i++)
                decode_mxfp4(w, b + i, c->k0, c->k, panel + (size_t)i * CHUNK * LANES);
        } else {
            t.w = chunk_at(w, b, c->k0, &t.block_stride);
        }
        t.source = t.w;
        t.source_stride = t.block_stride;
#if defined(KG_HALF)
        if (c->rows > NARROW_ROWS) {
            half_panel(&t, blocks, panel);
            t.w = (const char *)panel;
            t.block_stride = CHUNK * LANES * sizeof(uint16_t);
        }
#endif
        run_tiles(c, &t, b, blocks);
    }
}

void ISA(product_blocks)(const struct product_job *job, uint32_t b0, uint32_t b1, int fast)
{
    const struct kg_weight *w = job->w;
    _Alignas(64) float copy[COPY_FLOATS];
    struct chunk c = {.job = job, .pairs = fast && w->type != KG_W_F32};

#if defined(KG_HALF)
    if (w->type != KG_W_E4M7) {
        product_blocks_avx512(job, b0, b1, fast);
        return;
    }
#endif
    for (c.row0 = 0; c.row0 < job->rows; c.row0 += PANEL_ROWS) {
        c.rows = job->rows - c.row0 < PANEL_ROWS ? job->rows - c.row0 : PANEL_ROWS;
        uint32_t most = c.rows <= NEAR_ROWS && w->type != KG_W_MXFP4 ? LONG_CHUNK : CHUNK;
        int copied = c.rows > NEAR_ROWS && TALL_ROWS > NEAR_ROWS;

        c.ahead = ahead_bytes(w->type, c.rows);
        for (c.k0 = 0; c.k0 < w->in; c.k0 += most) {
            c.k = w->in - c.k0 < most ? w->in - c.k0 : most;
            for (uint32_t r = 0; r < c.rows; r++) {
                const float *x = job_x(job, c.row0 + r) + c.k0;
                float *to = copy + (size_t)r * COPY_STRIDE(most);

                if (c.pairs)
                    round_row(w, x, c.k, to, most);
                else if (copied)
                    memcpy(to, x, c.k * sizeof(*to));
                c.x[r] = c.pairs || copied ? to : x;
            }
            run_chunk(&c, b0, b1);
        }
    }
}

/* ---- the operation: tasks over runs of blocks of all products ---------------------------- */

struct run {
    const struct kg_product *p;
    uint32_t per;   /* blocks of a task */
    uint32_t parts; /* tasks over rows */
    int fast;
};

static uint32_t blocks_of(const struct kg_weight *w)
{
    return (w->out + LANES - 1) / LANES;
}

static uint32_t tasks_of(const struct run *run, const struct kg_product *p)
{
    return p->rows == 0 ? 0 : (blocks_of(p->w) + run->per - 1) / run->per * run->parts;
}

static void product_task(void *arg, uint32_t task, uint32_t member)
{
    const struct run *run = arg;
    const struct kg_product *p = run->p;

    (void)member;
    while (task >= tasks_of(run, p))
        task -= tasks_of(run, p++);
    uint32_t b0 = task / run->parts * run->per, b1 = b0 + run->per;
    uint32_t rows = (p->rows + run->parts - 1) / run->parts;
    uint32_t row0 = task % run->parts * rows;

    if (row0 >= p->rows)
        return;
    struct product_job job = {.w = p->w,
                              .x = p->x + (size_t)row0 * p->x_stride,
                              .y = p->y + (size_t)row0 * p->y_stride,
                              .x_stride = p->x_stride,
                              .y_stride = p->y_stride,
                              .rows = p->rows - row0 < rows ? p->rows - row0 : rows};

    ISA(product_blocks)(&job, b0, b1 < blocks_of(p->w) ? b1 : blocks_of(p->w), run->fast);
}

static void product_run(struct kg_team *team, const struct kg_product *p, uint32_t n, int fast)
{
    struct run run = {.p = p, .per = 16, .parts = 1, .fast = fast};
    uint64_t work = 0, blocks = 0;
    uint32_t rows = 0, want = kg_team_size(team) * 4, tasks = 0;

    for (uint32_t i = 0; i < n; i++) {
        blocks += p[i].rows == 0 ? 0 : blocks_of(p[i].w);
        rows = p[i].rows > rows ? p[i].rows : rows;
        work += (uint64_t)p[i].rows * p[i].w->out * p[i].w->in;
    }
    while (run.per > 4 && blocks / run.per < want)
        run.per -= 4;
    if (blocks / run.per < want && rows >= 4 * PANEL_ROWS)
        run.parts = (rows + 2 * PANEL_ROWS - 1) / (2 * PANEL_ROWS);
    for (uint32_t i = 0; i < n; i++)
        tasks += tasks_of(&run, &p[i]);
    run_sized(team, product_task, &run, tasks, work);
}

#if !defined(KG_HALF)
void ISA(product_exact)(struct kg_team *team, const struct kg_product *p, uint32_t n)
{
    product_run(team, p, n, 0);
}
#endif

void ISA(product_fast)(struct kg_team *team, const struct kg_product *p, uint32_t n)
{
    product_run(team, p, n, 1);
}
