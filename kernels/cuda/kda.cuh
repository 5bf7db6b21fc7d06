/*
 * The recurrence of KDA row by row, for recurrence.cu and chunk.cu: a thread holds COLS columns of
 * one head's state, and of each the keys k = j, j + 4, .. for its j of 0..3, in registers for all
 * rows of a sequence. So the four partial sums of kernels.h lie in four lanes, and the bits do not
 * depend on how columns are dealt to warps and blocks.
 *
 * Lane l of a warp: j = l / 8, columns l % 8 and (COLS 2) l % 8 + 8 of the warp's. Vectors over k
 * lie in shared memory by j, so that four keys of a thread are one load: key 4 * (4 * g + e) + j
 * is element e of vec[(row * 4 + j) * PER / 4 + g].
 */
#ifndef KEDGE_KERNELS_CUDA_KDA_CUH
#define KEDGE_KERNELS_CUDA_KDA_CUH

#include "seq.cuh"

#define KDA_MAX_WARPS 8

/* What a thread works on. */
template <int PER, int COLS> struct kda_thread {
    uint32_t h, j;
    uint32_t slot;       /* of the first column in the block's slice; the second is 8 further */
    uint32_t v[COLS];    /* columns; >= v_dim: none */
    size_t at[COLS];     /* of key j of the column in a state */
    uint32_t step[COLS]; /* elements from a key to the next */
    float state[COLS][PER];
};

/* grid: (slices of columns, heads, sequences); block: 1..KDA_MAX_WARPS warps of 8 * COLS columns */
template <int PER, int COLS>
static __device__ __forceinline__ void kda_place(const struct kg_kda &a,
                                                 struct kda_thread<PER, COLS> &x)
{
    uint32_t lane = threadIdx.x % KG_WARP;

    x.h = blockIdx.y;
    x.j = lane / 8;
    x.slot = threadIdx.x / KG_WARP * (8 * COLS) + lane % 8;
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        x.v[c] = blockIdx.x * (blockDim.x / KG_WARP * (8 * COLS)) + x.slot + 8 * c;
        x.step[c] = a.v_dim - x.v[c] / 16 * 16 < 16 ? a.v_dim % 16 : 16;
        x.at[c] = size_t(x.h) * a.k_dim * a.v_dim + size_t(x.v[c] / 16 * 16) * a.k_dim +
                  x.v[c] % 16 + x.j * x.step[c];
    }
}

/* FULL: PER * 4 keys and no missing columns. */
template <int PER, int COLS, bool FULL>
static __device__ __forceinline__ void kda_load(const struct kg_kda &a, const float *from,
                                                struct kda_thread<PER, COLS> &x)
{
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        const float *p = from + x.at[c];
        size_t step = FULL ? 64 : size_t(x.step[c]) * 4;
        bool mine = from != nullptr && (FULL || x.v[c] < a.v_dim);

#pragma unroll
        for (int m = 0; m < PER; m++)
            x.state[c][m] = mine && (FULL || 4 * m + x.j < a.k_dim) ? p[m * step] : 0.0f;
    }
}

template <int PER, int COLS, bool FULL>
static __device__ __forceinline__ void kda_store(const struct kg_kda &a, float *to,
                                                 const struct kda_thread<PER, COLS> &x)
{
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        float *p = to + x.at[c];
        size_t step = FULL ? 64 : size_t(x.step[c]) * 4;

#pragma unroll
        for (int m = 0; m < PER; m++)
            if (to != nullptr && (FULL || (x.v[c] < a.v_dim && 4 * m + x.j < a.k_dim)))
                p[m * step] = x.state[c][m];
    }
}

/* Four keys of part j in group g. */
template <bool FULL>
static __device__ __forceinline__ float4 kda_keys(const float *p, uint32_t j, uint32_t g,
                                                  uint32_t k_dim)
{
    uint32_t k = 16 * g + j;

    return make_float4(FULL || k < k_dim ? p[k] : 0.0f, FULL || k + 4 < k_dim ? p[k + 4] : 0.0f,
                       FULL || k + 8 < k_dim ? p[k + 8] : 0.0f,
                       FULL || k + 12 < k_dim ? p[k + 12] : 0.0f);
}

static __device__ __forceinline__ float4 kda_times(float4 a, float4 b)
{
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

/* (s0 + s1) + (s2 + s3); every lane of the four gets it. */
static __device__ __forceinline__ float kda_join(float s)
{
    s = s + __shfl_xor_sync(0xffffffffu, s, 8);
    return s + __shfl_xor_sync(0xffffffffu, s, 16);
}

/* Rows of a block in shared memory; V and F as KG_SHARED arrays decay. */
template <class V, class F> struct kda_tiles {
    V ka, alpha, k, q; /* vectors over k; ka = k * alpha. Replay has neither ka nor q */
    F v, beta;         /* [rows][columns of KDA_MAX_WARPS], of replay u; [rows] */
};

template <int COLS> struct kda_slice {
    enum { MOST = KDA_MAX_WARPS * 8 * COLS }; /* columns of the largest block */
};

/* Fills the tiles with `rows` rows from r0 on. */
template <int PER, int COLS, bool FULL, bool REPLAY, class V, class F>
static __device__ __forceinline__ void kda_fill(const struct kg_kda &a, uint32_t r0, uint32_t rows,
                                                uint32_t h, struct kda_tiles<V, F> &tile)
{
    enum { VECS = PER / 4 };
    uint32_t slice = blockDim.x / KG_WARP * (8 * COLS), v0 = blockIdx.x * slice;

    for (uint32_t i = threadIdx.x; i < rows * PER; i += blockDim.x) {
        uint32_t t = i / PER, j = i % 4, g = i / 4 % VECS, at = (t * 4 + j) * VECS + g;
        size_t r = size_t(r0) + t, head = size_t(h) * a.k_dim;
        float4 k = kda_keys<FULL>(a.k + r * a.qk_stride + head, j, g, a.k_dim);
        float4 alpha = kda_keys<FULL>(a.alpha + r * a.alpha_stride + head, j, g, a.k_dim);

        tile.k[at] = k;
        tile.alpha[at] = alpha;
        if (!REPLAY) {
            tile.ka[at] = kda_times(k, alpha);
            tile.q[at] = kda_keys<FULL>(a.q + r * a.qk_stride + head, j, g, a.k_dim);
        }
    }
    for (uint32_t i = threadIdx.x; i < rows * slice; i += blockDim.x) {
        uint32_t t = i / slice, s = i % slice;
        size_t r = size_t(r0) + t, v = size_t(h) * a.v_dim + v0 + s;

        if (FULL || v0 + s < a.v_dim)
            tile.v[t * kda_slice<COLS>::MOST + s] =
                REPLAY ? a.u[r * a.u_stride + v] : a.v[r * a.v_stride + v];
    }
    if (!REPLAY)
        for (uint32_t t = threadIdx.x; t < rows; t += blockDim.x)
            tile.beta[t] = a.beta[(size_t(r0) + t) * a.beta_stride + h];
}

/* One key of p = S^T (k * alpha). */
#define KDA_READ(element, m)                                           \
    do {                                                               \
        if (FULL || 4 * (m) + x.j < a.k_dim)                           \
            for (int c = 0; c < COLS; c++)                             \
                sum[c] = fmaf(decayed.element, x.state[c][m], sum[c]); \
    } while (0)

/* One key of S = S * alpha + k u and o = S^T q. */
#define KDA_WRITE(element, m)                                                           \
    do {                                                                                \
        if (FULL || 4 * (m) + x.j < a.k_dim)                                            \
            for (int c = 0; c < COLS; c++) {                                            \
                x.state[c][m] = fmaf(key.element, u[c], x.state[c][m] * decay.element); \
                if (!REPLAY)                                                            \
                    sum[c] = fmaf(query.element, x.state[c][m], sum[c]);                \
            }                                                                           \
    } while (0)

/* u of row t of the tiles, row r of the activations: of replay as it is, else beta (v - p). */
template <int PER, int COLS, bool FULL, bool REPLAY, class V, class F>
static __device__ __forceinline__ void
kda_correct(const struct kg_kda &a, uint32_t t, size_t r, const struct kda_thread<PER, COLS> &x,
            const struct kda_tiles<V, F> &tile, float (&u)[COLS])
{
    enum { VECS = PER / 4 };
    uint32_t vec = (t * 4 + x.j) * VECS;
    float sum[COLS];

    for (int c = 0; c < COLS; c++)
        sum[c] = 0.0f;
    if (!REPLAY) {
#pragma unroll
        for (int g = 0; g < VECS; g++) {
            float4 decayed = tile.ka[vec + g];

            KDA_READ(x, 4 * g);
            KDA_READ(y, 4 * g + 1);
            KDA_READ(z, 4 * g + 2);
            KDA_READ(w, 4 * g + 3);
        }
    }
    for (int c = 0; c < COLS; c++) {
        bool mine = FULL || x.v[c] < a.v_dim;

        u[c] = mine ? float(tile.v[t * kda_slice<COLS>::MOST + x.slot + 8 * c]) : 0.0f;
        if (REPLAY)
            continue;
        u[c] = tile.beta[t] * (u[c] - kda_join(sum[c]));
        if (mine && x.j == 0 && a.u != nullptr)
            a.u[r * a.u_stride + size_t(x.h) * a.v_dim + x.v[c]] = u[c];
    }
}

/* The state behind row t, and but for replay the row's output. */
template <int PER, int COLS, bool FULL, bool REPLAY, class V, class F>
static __device__ __forceinline__ void
kda_advance(const struct kg_kda &a, uint32_t t, size_t r, const float (&u)[COLS],
            const struct kda_tiles<V, F> &tile, struct kda_thread<PER, COLS> &x)
{
    enum { VECS = PER / 4 };
    uint32_t vec = (t * 4 + x.j) * VECS;
    float sum[COLS];

    for (int c = 0; c < COLS; c++)
        sum[c] = 0.0f;
#pragma unroll
    for (int g = 0; g < VECS; g++) {
        float4 key = tile.k[vec + g], decay = tile.alpha[vec + g];
        float4 query = key;

        if (!REPLAY)
            query = tile.q[vec + g];
        KDA_WRITE(x, 4 * g);
        KDA_WRITE(y, 4 * g + 1);
        KDA_WRITE(z, 4 * g + 2);
        KDA_WRITE(w, 4 * g + 3);
    }
    for (int c = 0; !REPLAY && c < COLS; c++) {
        float o = kda_join(sum[c]);

        if ((FULL || x.v[c] < a.v_dim) && x.j == 0)
            a.o[r * a.o_stride + size_t(x.h) * a.v_dim + x.v[c]] = o;
    }
}

template <class V, class F>
static __device__ __forceinline__ struct kda_tiles<V, F> kda_tiled(V ka, V alpha, V k, V q, F v,
                                                                   F beta) {
    return {ka, alpha, k, q, v, beta};
}

/*
 * Rows r0 .. r0 + n - 1 of the activations, ROWS at a time in shared memory. All threads of the
 * block must call; the first thing it does is wait for them. FULL as above.
 */
template <int PER, int COLS, bool FULL, bool REPLAY, int ROWS = 256 / PER>
static __device__ __forceinline__ void kda_rows(const struct kg_kda &a, uint32_t r0, uint32_t n,
                                                struct kda_thread<PER, COLS> &x)
{
    KG_SHARED(float4, tile_ka, ROWS * PER);
    KG_SHARED(float4, tile_alpha, ROWS * PER);
    KG_SHARED(float4, tile_k, ROWS * PER);
    KG_SHARED(float4, tile_q, ROWS * PER);
    KG_SHARED(float, tile_v, ROWS *kda_slice<COLS>::MOST);
    KG_SHARED(float, tile_beta, ROWS);
    auto tile =
        kda_tiled(tile_ka + 0, tile_alpha + 0, tile_k + 0, tile_q + 0, tile_v + 0, tile_beta + 0);

    for (uint32_t t0 = 0; t0 < n; t0 += ROWS) {
        uint32_t rows = n - t0 < uint32_t(ROWS) ? n - t0 : uint32_t(ROWS);

        __syncthreads();
        kda_fill<PER, COLS, FULL, REPLAY>(a, r0 + t0, rows, x.h, tile);
        __syncthreads();
        for (uint32_t t = 0; t < rows; t++) {
            size_t r = size_t(r0) + t0 + t;
            float u[COLS];

            kda_correct<PER, COLS, FULL, REPLAY>(a, t, r, x, tile, u);
            kda_advance<PER, COLS, FULL, REPLAY>(a, t, r, u, tile, x);
        }
    }
}

/* Warps of a block: as many as leave every multiprocessor two blocks, so that small batches are
 * spread over the device and large ones read q, k and alpha seldom. */
static inline uint32_t kda_warps(struct kg_team *team, const struct kg_kda *a, uint32_t warp_cols)
{
    uint32_t all = (a->v_dim + warp_cols - 1) / warp_cols, warps = KDA_MAX_WARPS;
    uint64_t heads = uint64_t(a->n_seqs) * a->heads;

    while (warps > 1 &&
           (warps >= 2 * all || heads * ((all + warps - 1) / warps) < 2 * kg_device(team)->n_sm))
        warps /= 2;
    return warps;
}

/* chunk.cu: the recurrence with 16 rows at once where they fill a block of positions. `a` has its
 * sequences, past their positions, on the device. k_dim up to 128. */
void kda_chunked(struct kg_team *team, const struct kg_kda &a, const uint32_t *past);

#endif
