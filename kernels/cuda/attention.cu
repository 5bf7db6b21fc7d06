/*
 * Absorbed attention over pages. A block takes up to QUERIES queries, a row and a head each, which
 * share the keys it reads; who reads how many only depends on shapes and never changes a bit: the
 * softmax of a query runs over its keys in rising blocks of 16, whichever block of threads it is
 * in.
 *
 * exact math: one running softmax over all keys, as kernels.h says. fast math: one for each 512
 * keys at absolute positions (a segment), joined in rising order: top = the larger maximum, sum =
 * fma(sum_segment, exp(max_segment - top), sum * exp(max - top)), m likewise. With scratch the
 * segments of few queries are computed side by side, and joined by a second kernel with the same
 * steps, so the bits are the same with and without. Fast agrees with exact of the same pages within
 * 1e-6 * (largest |latent| of the keys): tests/unit/cuda/test_attention.c, which measured 1.8e-7.
 */
#include "seq.cuh"
#include "vmath.cuh"

#define FULL_WARP 0xffffffffu
#define THREADS 256
#define HALVES (THREADS / 16) /* half warps */
#define BLOCK_KEYS 16
#define SEGMENT_KEYS 512

static __device__ __forceinline__ float minus_infinity()
{
    return __int_as_float(int(0xff800000u));
}

static __device__ __forceinline__ uint8_t *record_of(const struct kg_pages &p, const uint32_t *ids,
                                                     uint32_t t)
{
    uint32_t id = ids[t / p.page_tokens];
    uint64_t slot = p.table == nullptr ? id : p.table[id];

    return p.base + slot * p.page_stride + uint64_t(t % p.page_tokens) * p.token_stride;
}

/* ---- writing -------------------------------------------------------------------------------- */

#define WRITE_THREADS 128

struct write_args {
    struct kg_pages pages;
    const float *c, *kr;
    size_t c_stride, kr_stride;
    const struct kg_mla_seq *seqs;
    uint32_t n_seqs, reserved;
};

/* Copies 4 bytes a value in and 2 or 4 out (K3, one row: 576 values): latency and the launch bound
 * it on few rows, memory on many. grid: rows. */
static __global__ void __launch_bounds__(WRITE_THREADS) write_kernel(struct write_args a)
{
    uint32_t seq, j, width = a.pages.latent + a.pages.rope;

    if (!kg_find_run(a.seqs, a.n_seqs, 1, blockIdx.x, &seq, &j))
        return;
    struct kg_mla_seq s = a.seqs[seq];
    uint8_t *record = record_of(a.pages, s.pages, s.past + j);
    size_t r = size_t(s.row0) + j;

    for (uint32_t i = threadIdx.x; i < width; i += WRITE_THREADS) {
        float x = i < a.pages.latent ? a.c[r * a.c_stride + i]
                                     : a.kr[r * a.kr_stride + (i - a.pages.latent)];

        if (a.pages.dtype == KG_BF16)
            reinterpret_cast<uint16_t *>(record)[i] = kg_round_bf16(x);
        else
            reinterpret_cast<float *>(record)[i] = x;
    }
}

static void page_write(struct kg_team *team, const struct kg_pages *pages, const float *c,
                       size_t c_stride, const float *kr, size_t kr_stride,
                       const struct kg_mla_seq *seqs, uint32_t n_seqs)
{
    struct write_args a = {*pages, c, kr, c_stride, kr_stride, nullptr, n_seqs, 0};

    if (n_seqs == 0 || !kg_op(team, "page_write"))
        return;
    a.seqs = kg_stage(team, seqs, n_seqs);
    if (a.seqs != nullptr)
        KG_RUN(team, write_kernel, kg_rows_of(seqs, n_seqs), WRITE_THREADS, a);
}

/* ---- attention ------------------------------------------------------------------------------ */

struct attn_args {
    struct kg_mla a;
    uint32_t rows;       /* of a block */
    uint32_t heads;      /* of a block */
    uint32_t groups;     /* of heads */
    uint32_t steps;      /* of 16 values: latent, then rope, each filled up with zeros */
    uint32_t pairs;      /* 1: bf16 records can be read as words */
    uint32_t splits;     /* 0: no scratch is used */
    float *part, *facts; /* [row][head][split]: latent values; maximum and sum */
};

/* A query of a block. */
struct query {
    bool is;
    uint32_t head, last; /* last: position of the row */
    size_t row;
};

static __device__ __forceinline__ struct query query_of(const struct attn_args &x,
                                                        const struct kg_mla_seq &s, uint32_t row,
                                                        uint32_t group, uint32_t q)
{
    struct query y;

    row += q / x.heads;
    y.head = group * x.heads + q % x.heads;
    y.is = q < x.rows * x.heads && row < s.n && y.head < x.a.heads;
    y.last = s.past + row;
    y.row = size_t(s.row0) + row;
    return y;
}

/* Values of a query that lane l holds. */
template <int STEPS>
static __device__ __forceinline__ void load_query(const struct attn_args &x, const struct query &q,
                                                  uint32_t l, float *to)
{
    const struct kg_pages &p = x.a.pages;
    uint32_t of_latent = (p.latent + 15) / 16;

#pragma unroll
    for (int m = 0; m < STEPS; m++) {
        uint32_t i = uint32_t(m) * 16 + l, j = i - of_latent * 16;

        to[m] = 0.0f;
        if (!q.is)
            continue;
        if (uint32_t(m) < of_latent && i < p.latent)
            to[m] = x.a.qa[q.row * x.a.qa_stride + size_t(q.head) * p.latent + i];
        else if (uint32_t(m) >= of_latent && j < p.rope)
            to[m] = x.a.qr[q.row * x.a.qr_stride + q.head * x.a.qr_head_stride + j];
    }
}

/* Scores of HR queries with one key: 16-lane sums. FULL: steps == STEPS. */
template <int STEPS, int HR, bool FULL, class K>
static __device__ __forceinline__ void dot_key(const float (&q)[HR][STEPS], K key, uint32_t steps,
                                               float *sum)
{
#pragma unroll
    for (int m = 0; m < STEPS; m++) {
        if (!FULL && uint32_t(m) >= steps)
            break;
        float k = key[m * 16];

#pragma unroll
        for (int h = 0; h < HR; h++)
            sum[h] = fmaf(q[h][m], k, sum[h]);
    }
}

/* The running softmax of a query; every lane of its half warp holds it. */
struct softmax {
    float best, sum;
};

/* Lane l has the score of key l of n; gives its weight and what the past is multiplied with. */
static __device__ __forceinline__ float softmax_step(struct softmax *s, float score, uint32_t n,
                                                     uint32_t l, float *keep)
{
    float top = l < n && score == score ? score : minus_infinity(); /* a NaN is no maximum */

    for (int half = 8; half >= 1; half /= 2) {
        float other = __shfl_xor_sync(FULL_WARP, top, half, 16);

        top = other > top ? other : top;
    }
    top = top > s->best ? top : s->best;
    *keep = n == 0 ? 1.0f : kg_exp(s->best - top);
    s->best = top;
    float weight = l < n ? kg_exp(score - top) : 0.0f;

    s->sum *= *keep;
    for (uint32_t j = 0; j < BLOCK_KEYS; j++) {
        float w = __shfl_sync(FULL_WARP, weight, int(j), 16);

        s->sum = j < n ? s->sum + w : s->sum;
    }
    return weight;
}

/* Joins a segment to what is before it; m follows as fma(m_segment, *b, m * *a). */
static __device__ __forceinline__ void join_segment(struct softmax *s, struct softmax segment,
                                                    float *a, float *b)
{
    float top = segment.best > s->best ? segment.best : s->best;

    *a = kg_exp(s->best - top);
    *b = kg_exp(segment.best - top);
    s->best = top;
    s->sum = fmaf(segment.sum, *b, s->sum * *a);
}

/* A kernel's constants. Half warps: one holds HR queries in registers, 16 lanes of values each; the
 * two of a warp have different queries and read the same key; SPLIT sets of warps share the keys
 * of a block. Then a half warp does the softmax of one query, and each thread MI values of m of
 * all. KEYS: of a tile in shared memory; fewer than a block: blocks are read twice. */
template <int Q, int R, int S, int K, int M, bool F, bool G> struct shape {
    enum {
        QUERIES = Q,
        HR = R,
        STEPS = S,
        KEYS = K,
        MI = M,
        FULL = F,     /* S steps, no fewer */
        SEGMENTS = G, /* fast math */
        SPLIT = HALVES * R / Q,
        SETS = THREADS / KG_WARP / SPLIT,
        WIDTH = S * 16,
    };
};

/* What a block works on, and a thread's part of it. */
template <class S> struct attn_work {
    struct kg_mla_seq seq;
    uint32_t row, group;   /* first row within the sequence */
    uint32_t first, end;   /* keys */
    uint32_t half, l, set; /* half warp, lane in it, its first query in registers */
    float q[S::HR][S::STEPS];
    float m[S::QUERIES][S::MI];
    struct softmax soft; /* of query `half` */
};

/* Keys k0 .. k1 - 1 of the block into the tile. */
template <class S, class R, class T>
static __device__ __forceinline__ void load_tile(const struct attn_args &x, R record, T tile,
                                                 uint32_t k0, uint32_t k1)
{
    const struct kg_pages &p = x.a.pages;
    uint32_t lane = threadIdx.x % KG_WARP, shift = (p.latent + 15) / 16 * 16 - p.latent;

    for (uint32_t k = k0 + threadIdx.x / KG_WARP; k < k1; k += THREADS / KG_WARP) {
        const uint8_t *from = record[k];
        uint32_t base = (k - k0) * S::WIDTH;

        if (x.pairs != 0) {
            for (uint32_t i = lane * 2; i < p.latent + p.rope; i += 2 * KG_WARP) {
                uint32_t two = *reinterpret_cast<const uint32_t *>(from + i * 2);
                uint32_t at = base + i + (i < p.latent ? 0 : shift);

                tile[at] = __uint_as_float(two << 16);
                tile[at + 1] = __uint_as_float(two & 0xffff0000u);
            }
            continue;
        }
        for (uint32_t i = lane; i < p.latent + p.rope; i += KG_WARP)
            tile[base + i + (i < p.latent ? 0 : shift)] =
                p.dtype == KG_BF16 ? kg_widen(reinterpret_cast<const uint16_t *>(from)[i])
                                   : reinterpret_cast<const float *>(from)[i];
    }
}

/* Scores of the tile's keys with the queries in registers: 16-lane sums. */
template <class S, class T, class C>
static __device__ __forceinline__ void score_tile(const struct attn_args &x,
                                                  const struct attn_work<S> &w, T tile, C score,
                                                  uint32_t k0, uint32_t k1)
{
    for (uint32_t k = k0 + threadIdx.x / KG_WARP / S::SETS; k < k1; k += S::SPLIT) {
        float sum[S::HR];

#pragma unroll
        for (int h = 0; h < S::HR; h++)
            sum[h] = 0.0f;
#pragma unroll
        for (int m = 0; m < S::STEPS; m++) {
            if (!S::FULL && uint32_t(m) >= x.steps)
                continue;
            float key = tile[(k - k0) * S::WIDTH + uint32_t(m) * 16 + w.l];

#pragma unroll
            for (int h = 0; h < S::HR; h++)
                sum[h] = fmaf(w.q[h][m], key, sum[h]);
        }
#pragma unroll
        for (int h = 0; h < S::HR; h++) {
            float joined = kg_join16(sum[h]);

            if (w.l == 0)
                score[(w.set + h) * BLOCK_KEYS + k] = joined * x.a.scale;
        }
    }
}

/* m += weighted keys of the tile, in rising order. */
template <class S, class T, class W, class N>
static __device__ __forceinline__ void mix_tile(const struct attn_args &x, struct attn_work<S> &w,
                                                T tile, W weight, N count, uint32_t k0, uint32_t k1)
{
    for (uint32_t k = k0; k < k1; k++) {
        float key[S::MI], part[S::QUERIES];

#pragma unroll
        for (int i = 0; i < S::MI; i++) {
            uint32_t c = threadIdx.x + i * THREADS;

            key[i] = c < x.a.pages.latent ? float(tile[(k - k0) * S::WIDTH + c]) : 0.0f;
        }
#pragma unroll
        for (int h = 0; h < S::QUERIES; h++)
            part[h] = weight[k * S::QUERIES + h];
#pragma unroll
        for (int h = 0; h < S::QUERIES; h++)
            if (x.rows == 1 || k < count[h])
#pragma unroll
                for (int i = 0; i < S::MI; i++)
                    w.m[h][i] = fmaf(part[h], key[i], w.m[h][i]);
    }
}

/* The block's place; 0: it has none. */
template <class S>
static __device__ __forceinline__ int attn_begin(const struct attn_args &x, struct attn_work<S> &w)
{
    uint32_t seq, run;

    w.half = threadIdx.x / 16;
    w.l = threadIdx.x % 16;
    w.set = (threadIdx.x / KG_WARP % S::SETS * 2 + w.half % 2) * S::HR;
    w.group = blockIdx.x % x.groups;
    if (!kg_find_run(x.a.seqs, x.a.n_seqs, x.rows, blockIdx.x / x.groups, &seq, &run))
        return 0;
    w.seq = x.a.seqs[seq];
    w.row = run * x.rows;
    w.end = w.seq.past + (w.seq.n - w.row < x.rows ? w.seq.n : w.row + x.rows);
    w.first = x.splits == 0 ? 0 : blockIdx.y * SEGMENT_KEYS;
    if (w.first >= w.end)
        return 0;
    if (x.splits != 0 && w.end - w.first > SEGMENT_KEYS)
        w.end = w.first + SEGMENT_KEYS;
#pragma unroll
    for (int h = 0; h < S::HR; h++)
        load_query<S::STEPS>(x, query_of(x, w.seq, w.row, w.group, w.set + h), w.l, w.q[h]);
    return 1;
}

template <class S> static __device__ __forceinline__ void attn_reset(struct attn_work<S> &w)
{
    w.soft.best = minus_infinity();
    w.soft.sum = 0.0f;
#pragma unroll
    for (int i = 0; i < S::QUERIES * S::MI; i++)
        w.m[i / S::MI][i % S::MI] = 0.0f;
}

/* m / sum of every query, or with splits m, maximum and sum as they are. */
template <class S, class K>
static __device__ __forceinline__ void attn_end(const struct attn_args &x,
                                                const struct attn_work<S> &w, K sums)
{
    const struct kg_pages &p = x.a.pages;

    __syncthreads();
    if (w.half < S::QUERIES && w.l == 0)
        sums[w.half] = w.soft.sum;
    __syncthreads();
#pragma unroll
    for (int h = 0; h < S::QUERIES; h++) {
        struct query q = query_of(x, w.seq, w.row, w.group, h);

        if (!q.is)
            continue;
        size_t at = (size_t(blockIdx.x / x.groups) * x.a.heads + q.head) * x.splits + blockIdx.y;
        float *to = x.splits != 0 ? x.part + at * p.latent
                                  : x.a.m + q.row * x.a.m_stride + size_t(q.head) * p.latent;

#pragma unroll
        for (int i = 0; i < S::MI; i++) {
            uint32_t c = threadIdx.x + i * THREADS;

            if (c < p.latent)
                to[c] = x.splits != 0 ? w.m[h][i] : w.m[h][i] / sums[h];
        }
        if (x.splits != 0 && w.half == uint32_t(h) && w.l == 0) {
            x.facts[at * 2] = w.soft.best;
            x.facts[at * 2 + 1] = w.soft.sum;
        }
    }
}

/* The segment that began at t0 is done: joins it to the segments before. */
template <class S, class K>
static __device__ __forceinline__ void fold(uint32_t t0, const struct query &mine,
                                            struct attn_work<S> &w, struct softmax *whole,
                                            float (*total)[S::MI], K keep, K more)
{
    float a = 0.0f, b = -1.0f; /* -1: the query ended before this segment */

    if (t0 == 0)
        *whole = w.soft;
    else if (mine.last >= t0)
        join_segment(whole, w.soft, &a, &b);
    __syncthreads();
    if (w.half < S::QUERIES && w.l == 0) {
        keep[w.half] = a;
        more[w.half] = b;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < S::QUERIES * S::MI; i++) {
        int h = i / S::MI, c = i % S::MI;

        if (t0 == 0)
            total[h][c] = w.m[h][c];
        else if (more[h] >= 0.0f)
            total[h][c] = fmaf(w.m[h][c], more[h], total[h][c] * keep[h]);
    }
    attn_reset(w);
}

/*
 * Bytes: the keys of a block's queries once, 2 or 4 a value; flops: about 4 * (latent + rope) a
 * query and key. With 16 queries K3's bf16 keys get 32 flops a byte: L2 and the fp32 units bound
 * it, not memory. 2 and 4 queries are for few rows, where the device wants more blocks.
 * grid: (runs of rows x groups of heads, splits or 1).
 */
template <class S>
static __global__ void __launch_bounds__(THREADS, 1) mla_kernel(struct attn_args x)
{
    KG_SHARED(float, tile, S::KEYS *S::WIDTH);
    KG_SHARED(float, score, S::QUERIES *BLOCK_KEYS);
    __align__(16) KG_SHARED(float, weight, BLOCK_KEYS *S::QUERIES);
    KG_SHARED(float, keep, S::QUERIES);
    KG_SHARED(float, more, S::QUERIES);
    KG_SHARED(uint32_t, count, S::QUERIES);
    KG_SHARED(const uint8_t *, record, BLOCK_KEYS);
    struct attn_work<S> w;
    float total[S::SEGMENTS ? S::QUERIES : 1][S::MI] = {};
    struct softmax whole = {0.0f, 0.0f};

    if (!attn_begin(x, w))
        return;
    attn_reset(w);
    for (uint32_t i = threadIdx.x; i < S::KEYS * S::WIDTH; i += THREADS)
        tile[i] = 0.0f; /* what fills up latent and rope stays so */
    struct query mine = query_of(x, w.seq, w.row, w.group, w.half);

    for (uint32_t t0 = w.first; t0 < w.end; t0 += BLOCK_KEYS) {
        uint32_t n = w.end - t0 < BLOCK_KEYS ? w.end - t0 : BLOCK_KEYS;

        __syncthreads();
        if (threadIdx.x < n)
            record[threadIdx.x] = record_of(x.a.pages, w.seq.pages, t0 + threadIdx.x);
        for (uint32_t k0 = 0; k0 < n; k0 += S::KEYS) {
            uint32_t k1 = n - k0 < S::KEYS ? n : k0 + S::KEYS;

            __syncthreads();
            load_tile<S>(x, record, tile, k0, k1);
            __syncthreads();
            score_tile(x, w, tile, score, k0, k1);
        }
        __syncthreads();
        {
            uint32_t at = w.half < S::QUERIES ? w.half : 0;
            uint32_t keys = mine.last < t0 ? 0 : mine.last - t0 + 1;
            float factor, part;

            keys = keys < n ? keys : n;
            part = softmax_step(&w.soft, w.l < n ? float(score[at * BLOCK_KEYS + w.l]) : 0.0f, keys,
                                w.l, &factor);
            if (w.half < S::QUERIES) {
                weight[w.l * S::QUERIES + at] = part;
                if (w.l == 0) {
                    keep[at] = factor;
                    count[at] = keys;
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < S::QUERIES * S::MI; i++)
            w.m[i / S::MI][i % S::MI] *= keep[i / S::MI];
        for (uint32_t k0 = 0; k0 < n; k0 += S::KEYS) {
            uint32_t k1 = n - k0 < S::KEYS ? n : k0 + S::KEYS;

            if (S::KEYS < BLOCK_KEYS) {
                __syncthreads();
                load_tile<S>(x, record, tile, k0, k1);
                __syncthreads();
            }
            mix_tile(x, w, tile, weight, count, k0, k1);
        }
        if (!S::SEGMENTS || x.splits != 0 || w.end <= SEGMENT_KEYS ||
            ((t0 + BLOCK_KEYS) % SEGMENT_KEYS != 0 && t0 + BLOCK_KEYS < w.end))
            continue;
        if constexpr (S::SEGMENTS != 0)
            fold(t0 / SEGMENT_KEYS * SEGMENT_KEYS, mine, w, &whole, total, keep, more);
    }
    if constexpr (S::SEGMENTS != 0) {
        if (x.splits == 0 && w.end > SEGMENT_KEYS) {
            w.soft = whole;
#pragma unroll
            for (int i = 0; i < S::QUERIES * S::MI; i++)
                w.m[i / S::MI][i % S::MI] = total[i / S::MI][i % S::MI];
        }
    }
    attn_end(x, w, keep);
}

#define JOIN_THREADS 128

/* Joins the segments of a row and head, 4 * latent bytes each. grid: rows x heads. */
static __global__ void __launch_bounds__(JOIN_THREADS) join_kernel(struct attn_args x)
{
    uint32_t seq, row, h = blockIdx.x % x.a.heads, latent = x.a.pages.latent;

    if (!kg_find_run(x.a.seqs, x.a.n_seqs, 1, blockIdx.x / x.a.heads, &seq, &row))
        return;
    struct kg_mla_seq s = x.a.seqs[seq];
    uint32_t n = (s.past + row) / SEGMENT_KEYS + 1;
    const float *part = x.part + size_t(blockIdx.x) * x.splits * latent;
    const float *facts = x.facts + size_t(blockIdx.x) * x.splits * 2;
    float *m = x.a.m + (size_t(s.row0) + row) * x.a.m_stride + size_t(h) * latent;

    for (uint32_t c = threadIdx.x; c < latent; c += JOIN_THREADS) {
        struct softmax whole = {facts[0], facts[1]};
        float total = part[c];

        for (uint32_t i = 1; i < n; i++) {
            float a, b;

            join_segment(&whole, {facts[size_t(i) * 2], facts[size_t(i) * 2 + 1]}, &a, &b);
            total = fmaf(part[size_t(i) * latent + c], b, total * a);
        }
        m[c] = total / whole.sum;
    }
}

/* Blocks before splitting, for `queries` of a block. */
static uint64_t cut(struct attn_args *x, uint32_t rows, uint32_t queries, int one_row)
{
    x->heads = x->a.heads < queries ? x->a.heads : queries;
    x->rows = one_row ? 1 : queries / x->heads;
    x->groups = (x->a.heads + x->heads - 1) / x->heads;
    return uint64_t(kg_runs_most(rows, x->a.n_seqs, x->rows)) * x->groups;
}

template <class S> static void mla_launch(struct kg_team *team, struct attn_args x, uint32_t rows)
{
    uint32_t blocks = uint32_t(cut(&x, rows, S::QUERIES, x.splits != 0));

    KG_RUN(team, mla_kernel<S>, dim3(blocks, x.splits == 0 ? 1 : x.splits), THREADS, x);
}

/* The most queries in a block that leave the device enough blocks. */
template <bool FAST>
static void mla_pick(struct kg_team *team, struct attn_args x, uint32_t rows, uint64_t want)
{
    struct attn_args y = x;
    uint32_t times = x.splits == 0 ? 1 : x.splits;

    if (x.steps > 36 || x.a.pages.latent > 2 * THREADS)
        mla_launch<shape<4, 1, 65, 8, 4, false, FAST>>(team, x, rows);
    else if (x.steps < 36)
        mla_launch<shape<4, 1, 36, 16, 2, false, FAST>>(team, x, rows);
    else if (cut(&y, rows, 16, x.splits != 0) * times >= want)
        mla_launch<shape<16, 2, 36, 16, 2, true, FAST>>(team, x, rows);
    else if (cut(&y, rows, 4, x.splits != 0) * times >= want)
        mla_launch<shape<4, 1, 36, 16, 2, true, FAST>>(team, x, rows);
    else
        mla_launch<shape<2, 1, 36, 16, 2, true, FAST>>(team, x, rows);
}

/* Entries of scratch: one for each row, head and segment. */
static uint64_t entries(uint64_t rows, uint64_t heads, uint32_t context)
{
    return rows * heads * (context / SEGMENT_KEYS + (context % SEGMENT_KEYS != 0));
}

extern "C" uint64_t kg_cuda_mla_scratch_bytes(uint32_t rows, uint32_t heads, uint32_t latent,
                                              uint32_t context)
{
    return entries(rows, heads, context) * (uint64_t(latent) + 2) * sizeof(float);
}

template <bool FAST> static void mla(struct kg_team *team, const struct kg_mla *args)
{
    struct attn_args x = {};
    const struct kg_pages &p = args->pages;
    uint32_t rows = kg_rows_of(args->seqs, args->n_seqs), longest = 0;
    uint64_t want, records;

    if (args->n_seqs == 0 || !kg_op(team, "mla"))
        return;
    want = 2 * uint64_t(kg_device(team)->n_sm);
    for (uint32_t s = 0; s < args->n_seqs; s++)
        if (args->seqs[s].past + args->seqs[s].n > longest)
            longest = args->seqs[s].past + args->seqs[s].n;
    longest = kg_launch_context(team, longest);
    x.a = *args;
    x.a.seqs = kg_stage(team, args->seqs, args->n_seqs);
    if (x.a.seqs == nullptr)
        return;
    x.steps = (p.latent + 15) / 16 + (p.rope + 15) / 16;
    records = reinterpret_cast<uintptr_t>(p.base) | p.page_stride | p.token_stride;
    x.pairs = p.dtype == KG_BF16 && records % 4 == 0 && p.latent % 2 == 0 && p.rope % 2 == 0;
    if (FAST && longest > SEGMENT_KEYS && cut(&x, rows, 16, 0) < want &&
        args->scratch_bytes >= kg_cuda_mla_scratch_bytes(rows, args->heads, p.latent, longest)) {
        x.splits = (longest - 1) / SEGMENT_KEYS + 1;
        x.part = static_cast<float *>(args->scratch);
        x.facts = x.part + entries(rows, args->heads, longest) * p.latent;
    }
    mla_pick<FAST>(team, x, rows, want);
    if (x.splits != 0)
        KG_RUN(team, join_kernel, rows * args->heads, JOIN_THREADS, x);
}

void kg_cuda_fill_attention(struct kg_kernels *k, enum kg_math math)
{
    k->page_write = page_write;
    k->mla = math == KG_MATH_FAST ? mla<true> : mla<false>;
}
