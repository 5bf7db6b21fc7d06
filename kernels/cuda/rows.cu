/*
 * Row-wise operations. Elementwise ones move 16 bytes a thread where pointers and strides allow.
 * Norms and sums over a row keep the 16-lane sum of kernels.h: its 16 chains are serial, so the
 * block brings the row into shared memory and half a warp walks it there.
 */
#include "context.h"
#include "vmath.cuh"

static const uint32_t THREADS = 256, HALF = 16;
static const uint32_t MAX_GRID_Y = 65535;
static const uint32_t SHORT_DIM = 512; /* up to here half a warp takes a row alone */
static const unsigned WARP_ALL = 0xffffffffu;

static uint32_t up(uint32_t n, uint32_t unit)
{
    return (n + unit - 1) / unit;
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The 16-lane sum adds zeros for what is missing of the last 16. */
static __device__ __forceinline__ uint32_t up16(uint32_t n)
{
    return (n + HALF - 1) / HALF * HALF;
}

/* ---- elementwise -------------------------------------------------------------------------- */

/* y[r][c] = op(a[r][c], b[r][c], r); b may be null. */
struct each {
    float *y;
    const float *a, *b;
    size_t y_stride, a_stride, b_stride;
    uint32_t rows, cols;
};

struct add_op {
    __device__ float operator()(float a, float b, uint32_t) const
    {
        return a + b;
    }
};

struct sigmoid_op {
    __device__ float operator()(float a, float, uint32_t) const
    {
        return kg_sigmoid(a);
    }
};

struct mul_sigmoid_op {
    __device__ float operator()(float a, float b, uint32_t) const
    {
        return a * kg_sigmoid(b);
    }
};

struct act_op {
    struct kg_act_args args;
    __device__ float operator()(float a, float b, uint32_t) const
    {
        return kg_act(args, a, b);
    }
};

struct exp_op {
    const float *shift;
    __device__ float operator()(float a, float, uint32_t r) const
    {
        return kg_exp(a - (shift == nullptr ? 0.0f : shift[r]));
    }
};

template <class Op> static __global__ void each_kernel(struct each e, Op op)
{
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;

    if (c >= e.cols)
        return;
    for (uint32_t r = blockIdx.y; r < e.rows; r += gridDim.y)
        e.y[r * e.y_stride + c] =
            op(e.a[r * e.a_stride + c], e.b == nullptr ? 0.0f : e.b[r * e.b_stride + c], r);
}

template <class Op> static __global__ void each4_kernel(struct each e, Op op)
{
    uint32_t c = (blockIdx.x * blockDim.x + threadIdx.x) * 4;

    if (c >= e.cols)
        return;
    for (uint32_t r = blockIdx.y; r < e.rows; r += gridDim.y) {
        float4 a = *reinterpret_cast<const float4 *>(e.a + r * e.a_stride + c);
        float4 b = a;

        if (e.b != nullptr)
            b = *reinterpret_cast<const float4 *>(e.b + r * e.b_stride + c);
        float4 y = make_float4(op(a.x, b.x, r), op(a.y, b.y, r), op(a.z, b.z, r), op(a.w, b.w, r));
        *reinterpret_cast<float4 *>(e.y + r * e.y_stride + c) = y;
    }
}

static bool aligned(const void *p, size_t stride_bytes, uint32_t unit)
{
    return reinterpret_cast<uintptr_t>(p) % unit == 0 && stride_bytes % unit == 0;
}

template <class Op> static void run_each(struct kg_team *team, const struct each *e, Op op)
{
    bool wide = e->cols % 4 == 0 && aligned(e->y, e->y_stride * sizeof(float), 16) &&
                aligned(e->a, e->a_stride * sizeof(float), 16) &&
                aligned(e->b, e->b_stride * sizeof(float), 16);
    uint32_t n = wide ? e->cols / 4 : e->cols, threads = least(THREADS, up(n, KG_WARP) * KG_WARP);
    auto each = wide ? each4_kernel<Op> : each_kernel<Op>;

    KG_RUN(team, each, dim3(up(n, threads), least(e->rows, MAX_GRID_Y)), threads, *e, op);
}

static void add(struct kg_team *team, float *y, size_t y_stride, const float *a, size_t a_stride,
                const float *b, size_t b_stride, uint32_t rows, uint32_t cols)
{
    struct each e = {y, a, b, y_stride, a_stride, b_stride, rows, cols};

    if (rows > 0 && kg_op(team, "add"))
        run_each(team, &e, add_op());
}

static void sigmoid(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, uint32_t rows, uint32_t cols)
{
    struct each e = {y, x, nullptr, y_stride, x_stride, 0, rows, cols};

    if (rows > 0 && kg_op(team, "sigmoid"))
        run_each(team, &e, sigmoid_op());
}

static void mul_sigmoid(struct kg_team *team, float *y, size_t y_stride, const float *x,
                        size_t x_stride, const float *z, size_t z_stride, uint32_t rows,
                        uint32_t cols)
{
    struct each e = {y, x, z, y_stride, x_stride, z_stride, rows, cols};

    if (rows > 0 && kg_op(team, "mul_sigmoid"))
        run_each(team, &e, mul_sigmoid_op());
}

static void act(struct kg_team *team, const struct kg_act_args *args, float *y, size_t y_stride,
                const float *a, size_t a_stride, const float *b, size_t b_stride, uint32_t rows,
                uint32_t cols)
{
    struct each e = {y, a, b, y_stride, a_stride, b_stride, rows, cols};

    if (rows > 0 && kg_op(team, "act"))
        run_each(team, &e, act_op{*args});
}

static void row_exp(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, const float *shift, uint32_t rows, uint32_t cols)
{
    struct each e = {y, x, nullptr, y_stride, x_stride, 0, rows, cols};

    if (rows > 0 && kg_op(team, "row_exp"))
        run_each(team, &e, exp_op{shift});
}

/* ---- embedding and copies ----------------------------------------------------------------- */

static __global__ void embed_kernel(float *y, size_t y_stride, const void *table, uint32_t dtype,
                                    uint32_t cols, const uint32_t *ids)
{
    size_t from = (size_t)ids[blockIdx.x] * cols, to = blockIdx.x * y_stride;

    for (uint32_t c = threadIdx.x; c < cols; c += blockDim.x)
        y[to + c] = dtype == KG_BF16 ? kg_widen(static_cast<const uint16_t *>(table)[from + c])
                                     : static_cast<const float *>(table)[from + c];
}

static void embed(struct kg_team *team, float *y, size_t y_stride, const void *table,
                  uint32_t dtype, uint32_t cols, const uint32_t *ids, uint32_t rows)
{
    if (rows > 0 && kg_op(team, "embed"))
        KG_RUN(team, embed_kernel, rows, least(THREADS, up(cols, KG_WARP) * KG_WARP), y, y_stride,
               table, dtype, cols, ids);
}

/* A thread a pair. Roofline: 8 bytes read and written per pair, 8 of angles once per row. */
static __global__ void rope_kernel(float *x, size_t x_stride, uint32_t n, uint32_t width,
                                   const float *cosines, const float *sines, uint32_t rows,
                                   uint32_t dim, uint32_t interleave)
{
    uint32_t half = dim / 2, p = blockIdx.x * blockDim.x + threadIdx.x, i = p % half;

    if (p / half >= n)
        return;
    for (uint32_t r = blockIdx.y; r < rows; r += gridDim.y) {
        float *y = x + r * x_stride + (size_t)(p / half + 1) * width - dim;
        float *a = y + (interleave ? 2 * i : i), *b = interleave ? a + 1 : a + half;
        float c = cosines[(size_t)r * half + i], s = sines[(size_t)r * half + i];
        float u = *a, w = *b;

        *a = u * c - w * s;
        *b = w * c + u * s;
    }
}

static void rope(struct kg_team *team, float *x, size_t x_stride, uint32_t n, uint32_t width,
                 const float *cosines, const float *sines, uint32_t rows, uint32_t dim,
                 uint32_t interleave)
{
    if (rows > 0 && n > 0 && dim > 1 && kg_op(team, "rope"))
        KG_RUN(team, rope_kernel, dim3(up(n * (dim / 2), THREADS), least(rows, MAX_GRID_Y)),
               THREADS, x, x_stride, n, width, cosines, sines, rows, dim, interleave);
}

template <class Unit>
static __global__ void copy_kernel(char *dst, size_t dst_stride, const char *src, size_t src_stride,
                                   size_t units, uint32_t rows)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= units)
        return;
    for (uint32_t r = blockIdx.y; r < rows; r += gridDim.y)
        reinterpret_cast<Unit *>(dst + r * dst_stride)[i] =
            reinterpret_cast<const Unit *>(src + r * src_stride)[i];
}

template <class Unit>
static void run_copy(struct kg_team *team, void *dst, size_t dst_stride, const void *src,
                     size_t src_stride, size_t row_bytes, uint32_t rows)
{
    size_t units = row_bytes / sizeof(Unit), blocks = (units + THREADS - 1) / THREADS;
    auto copy = copy_kernel<Unit>;

    if (blocks > INT32_MAX)
        kg_keep(team, KG_ELIMIT, "a row is too long");
    else
        KG_RUN(team, copy, dim3(uint32_t(blocks), least(rows, MAX_GRID_Y)), THREADS,
               static_cast<char *>(dst), dst_stride, static_cast<const char *>(src), src_stride,
               units, rows);
}

static void copy(struct kg_team *team, void *dst, size_t dst_stride, const void *src,
                 size_t src_stride, size_t row_bytes, uint32_t rows)
{
    if (rows == 0 || row_bytes == 0 || !kg_op(team, "copy"))
        return;
    if (row_bytes % 16 == 0 && aligned(dst, dst_stride, 16) && aligned(src, src_stride, 16))
        run_copy<uint4>(team, dst, dst_stride, src, src_stride, row_bytes, rows);
    else if (row_bytes % 4 == 0 && aligned(dst, dst_stride, 4) && aligned(src, src_stride, 4))
        run_copy<uint32_t>(team, dst, dst_stride, src, src_stride, row_bytes, rows);
    else
        run_copy<uint8_t>(team, dst, dst_stride, src, src_stride, row_bytes, rows);
}

/* ---- norms -------------------------------------------------------------------------------- */

enum norm {
    NORM_RMS,
    NORM_GATED,
    NORM_L2,
};

/* Rows of `heads` groups of `dim`. */
struct norm_args {
    float *y;
    const float *x, *z, *w; /* z: gated; w: may be null in NORM_RMS */
    size_t y_stride, x_stride, z_stride;
    uint32_t rows, heads, dim;
    float eps, scale;
};

template <enum norm N>
static __device__ __forceinline__ float norm_inverse(const struct norm_args &a, float squares)
{
    if (N == NORM_L2)
        return 1.0f / sqrtf(squares + a.eps);
    return 1.0f / sqrtf(squares / (float)a.dim + a.eps);
}

template <enum norm N>
static __device__ __forceinline__ float norm_value(const struct norm_args &a, float x, float inv,
                                                   const float *z, uint32_t c)
{
    if (N == NORM_L2)
        return x * inv * a.scale;
    if (N == NORM_GATED)
        return x * inv * a.w[c] * kg_sigmoid(z[c]);
    return x * inv * (a.w == nullptr ? 1.0f : a.w[c]);
}

/* Half a warp for each group. */
template <enum norm N> static __global__ void norm_short_kernel(struct norm_args a)
{
    uint32_t lane = threadIdx.x % HALF;
    size_t groups = (size_t)a.rows * a.heads;
    size_t g = (size_t)blockIdx.x * (blockDim.x / HALF) + threadIdx.x / HALF;
    bool mine = g < groups;
    size_t r = mine ? g / a.heads : 0, at = mine ? g % a.heads * a.dim : 0;
    const float *x = a.x + r * a.x_stride + at;
    const float *z = N == NORM_GATED ? a.z + r * a.z_stride + at : nullptr;
    float *y = a.y + r * a.y_stride + at, sum = 0.0f;

    for (uint32_t i = lane; i < up16(a.dim); i += HALF) {
        float v = mine && i < a.dim ? x[i] : 0.0f;

        sum = fmaf(v, v, sum);
    }
    float inv = norm_inverse<N>(a, kg_join16(sum));
    for (uint32_t c = lane; mine && c < a.dim; c += HALF)
        y[c] = norm_value<N>(a, x[c], inv, z, c);
}

/* A block for each group. */
template <enum norm N> static __global__ void norm_long_kernel(struct norm_args a)
{
    const uint32_t TILE = 8192;
    KG_SHARED(float, tile, TILE);
    KG_SHARED(float, result, 1);
    size_t r = blockIdx.x / a.heads, at = (size_t)(blockIdx.x % a.heads) * a.dim;
    const float *x = a.x + r * a.x_stride + at;
    const float *z = N == NORM_GATED ? a.z + r * a.z_stride + at : nullptr;
    float *y = a.y + r * a.y_stride + at, sum = 0.0f;

    for (uint32_t first = 0; first < a.dim; first += TILE) {
        uint32_t n = min(TILE, up16(a.dim - first));

        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
            tile[i] = first + i < a.dim ? x[first + i] : 0.0f;
        __syncthreads();
        if (threadIdx.x < HALF) {
#pragma unroll 8
            for (uint32_t i = threadIdx.x; i < n; i += HALF) {
                float v = tile[i];

                sum = fmaf(v, v, sum);
            }
        }
        __syncthreads();
    }
    if (threadIdx.x < KG_WARP) {
        float squares = kg_join16(sum);

        if (threadIdx.x == 0)
            result[0] = norm_inverse<N>(a, squares);
    }
    __syncthreads();
    float inv = result[0];
    for (uint32_t c = threadIdx.x; c < a.dim; c += blockDim.x)
        y[c] = norm_value<N>(a, x[c], inv, z, c);
}

template <enum norm N> static void run_norm(struct kg_team *team, const struct norm_args *a)
{
    uint64_t groups = (uint64_t)a->rows * a->heads;

    if (groups > INT32_MAX) {
        kg_keep(team, KG_ELIMIT, "more than 2^31 groups");
        return;
    }
    uint32_t n = uint32_t(groups);
    if (a->dim <= SHORT_DIM) {
        auto norm_short = norm_short_kernel<N>;
        uint32_t threads = least(128, up(n, 2) * KG_WARP);

        KG_RUN(team, norm_short, up(n, threads / HALF), threads, *a);
    } else {
        auto norm_long = norm_long_kernel<N>;

        KG_RUN(team, norm_long, n, THREADS, *a);
    }
}

static void rmsnorm(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, const float *w, uint32_t rows, uint32_t cols, float eps)
{
    struct norm_args a = {y, x, nullptr, w, y_stride, x_stride, 0, rows, 1, cols, eps, 1.0f};

    if (rows > 0 && kg_op(team, "rmsnorm"))
        run_norm<NORM_RMS>(team, &a);
}

static void rmsnorm_gated(struct kg_team *team, float *y, size_t y_stride, const float *x,
                          size_t x_stride, const float *z, size_t z_stride, const float *w,
                          uint32_t rows, uint32_t heads, uint32_t dim, float eps)
{
    struct norm_args a = {y, x, z, w, y_stride, x_stride, z_stride, rows, heads, dim, eps, 1.0f};

    if (rows > 0 && kg_op(team, "rmsnorm_gated"))
        run_norm<NORM_GATED>(team, &a);
}

static void l2norm(struct kg_team *team, float *y, size_t y_stride, const float *x, size_t x_stride,
                   uint32_t rows, uint32_t heads, uint32_t dim, float eps, float scale)
{
    struct norm_args a = {y, x,    nullptr, nullptr, y_stride, x_stride,
                          0, rows, heads,   dim,     eps,      scale};

    if (rows > 0 && kg_op(team, "l2norm"))
        run_norm<NORM_L2>(team, &a);
}

/* ---- attention residual ------------------------------------------------------------------- */

struct mix_args {
    const float *const *srcs;
    const float *m;
    float *y, *weights;
    size_t src_stride, y_stride;
    uint32_t n_srcs, cols;
    float eps;
};

/* Score of one source by half a warp; both sums go through memory together, many loads at once. */
static __device__ __forceinline__ float mix_score(const struct mix_args &a, const float *src,
                                                  uint32_t lane)
{
    float dot = 0.0f, squares = 0.0f;

#pragma unroll 16
    for (uint32_t i = lane; i < up16(a.cols); i += HALF) {
        float v = i < a.cols ? src[i] : 0.0f, m = i < a.cols ? a.m[i] : 0.0f;

        dot = fmaf(v, m, dot);
        squares = fmaf(v, v, squares);
    }
    return kg_join16(dot) * (1.0f / sqrtf(kg_join16(squares) / (float)a.cols + a.eps));
}

/* A block for each row. */
static __global__ void mix_kernel(struct mix_args a)
{
    KG_SHARED(float, score, KG_MIX_MAX);
    KG_SHARED(float, part, KG_MIX_MAX);
    KG_SHARED(float, weight, KG_MIX_MAX);
    uint32_t t = threadIdx.x, n_halves = blockDim.x / HALF;
    size_t r = blockIdx.x;

    for (uint32_t first = 0; first < a.n_srcs; first += n_halves) {
        uint32_t s = first + t / HALF;
        float v = mix_score(a, a.srcs[min(s, a.n_srcs - 1)] + r * a.src_stride, t % HALF);

        if (t % HALF == 0 && s < a.n_srcs)
            score[s] = v;
    }
    __syncthreads();
    if (t < a.n_srcs) {
        float top = -__int_as_float(0x7f800000);

        for (uint32_t s = 0; s < a.n_srcs; s++) {
            float v = score[s];

            top = v > top ? v : top;
        }
        part[t] = kg_exp(score[t] - top);
    }
    __syncthreads();
    if (t < a.n_srcs) {
        float sum = 0.0f;

        for (uint32_t s = 0; s < a.n_srcs; s++)
            sum += part[s];
        float w = part[t] / sum;
        weight[t] = w;
        if (a.weights != nullptr)
            a.weights[r * a.n_srcs + t] = w;
    }
    __syncthreads();
    for (uint32_t c = t; c < a.cols; c += blockDim.x) {
        size_t at = r * a.src_stride + c;
        float v = weight[0] * a.srcs[0][at];

        for (uint32_t s = 1; s < a.n_srcs; s++)
            v = fmaf(weight[s], a.srcs[s][at], v);
        a.y[r * a.y_stride + c] = v;
    }
}

static void mix(struct kg_team *team, const struct kg_mix *args)
{
    if (args->rows == 0 || !kg_op(team, "mix"))
        return;
    const float *const *srcs = kg_stage(team, args->srcs, args->n_srcs);
    struct mix_args a = {srcs,           args->m,      args->y,    args->weights, args->src_stride,
                         args->y_stride, args->n_srcs, args->cols, args->eps};

    if (srcs != nullptr)
        KG_RUN(team, mix_kernel, args->rows, THREADS, a);
}

/* ---- logits ------------------------------------------------------------------------------- */

struct best {
    float value;
    uint32_t at;  /* KG_NONE: nothing seen */
    uint32_t bad; /* 1: infinite or NaN seen; 2: NaN seen */
};

static __device__ __forceinline__ struct best better(struct best a, struct best b)
{
    bool take = b.at != KG_NONE &&
                (a.at == KG_NONE || b.value > a.value || (b.value == a.value && b.at < a.at));

    return {take ? b.value : a.value, take ? b.at : a.at, max(a.bad, b.bad)};
}

/* Of one row, by one thread's share of the columns. NaN are left out, and seen in `bad`. */
static __device__ __forceinline__ struct best scan_row(const float *x, uint32_t cols)
{
    struct best b = {0.0f, KG_NONE, 0};

    for (uint32_t c = threadIdx.x; c < cols; c += blockDim.x) {
        float v = x[c];
        uint32_t bad = v != v ? 2u : fabsf(v) == __int_as_float(0x7f800000) ? 1u : 0u;

        b.bad = max(b.bad, bad);
        if (v == v && (b.at == KG_NONE || v > b.value)) {
            b.value = v;
            b.at = c;
        }
    }
    return b;
}

/* A block of THREADS for each row. Warps from the second on turn logits into exponentials, tile by
 * tile, and the first adds up the tile before. */
static __global__ void row_stats_kernel(struct kg_row_stats *stats, const float *rows,
                                        size_t stride, uint32_t cols)
{
    const uint32_t TILE = 2048, WARPS = THREADS / KG_WARP;
    KG_SHARED_2D(float, tile, 2, TILE);
    KG_SHARED(float, value, WARPS);
    KG_SHARED(uint32_t, place, WARPS);
    KG_SHARED(uint32_t, wrong, WARPS);
    const float *x = rows + blockIdx.x * stride;
    uint32_t t = threadIdx.x, warp = t / KG_WARP;
    struct best b = scan_row(x, cols);

    for (int step = 16; step > 0; step /= 2) {
        struct best o = {__shfl_xor_sync(WARP_ALL, b.value, step),
                         __shfl_xor_sync(WARP_ALL, b.at, step),
                         __shfl_xor_sync(WARP_ALL, b.bad, step)};
        b = better(b, o);
    }
    if (t % KG_WARP == 0) {
        value[warp] = b.value;
        place[warp] = b.at;
        wrong[warp] = b.bad;
    }
    __syncthreads();
    b = {value[0], place[0], wrong[0]};
    for (uint32_t w = 1; w < WARPS; w++)
        b = better(b, {value[w], place[w], wrong[w]});
    if (b.bad == 2)
        b = {__int_as_float(0x7fc00000), 0, 2};

    float sum = 0.0f;
    uint32_t n_tiles = (cols + TILE - 1) / TILE;
    for (uint32_t k = 0; k <= n_tiles; k++) {
        if (warp > 0) {
            uint32_t n = k < n_tiles ? min(TILE, cols - k * TILE) : 0;

            for (uint32_t i = t - KG_WARP; i < n; i += THREADS - KG_WARP)
                tile[k % 2][i] = kg_exp(x[k * TILE + i] - b.value);
        } else if (k > 0 && t < HALF) {
            uint32_t n = min(TILE, cols - (k - 1) * TILE);

#pragma unroll 8
            for (uint32_t i = t; i < n; i += HALF)
                sum += tile[(k - 1) % 2][i];
        }
        __syncthreads();
    }
    if (warp == 0) {
        sum = kg_join16(sum);
        if (t == 0)
            stats[blockIdx.x] = {b.value, sum, b.at, b.bad == 0};
    }
}

static void row_stats(struct kg_team *team, struct kg_row_stats *stats, const float *x,
                      size_t x_stride, uint32_t rows, uint32_t cols)
{
    if (rows > 0 && kg_op(team, "row_stats"))
        KG_RUN(team, row_stats_kernel, rows, THREADS, stats, x, x_stride, cols);
}

void kg_cuda_fill_rows(struct kg_kernels *k, enum kg_math math)
{
    (void)math; /* fp32 in both */
    k->embed = embed;
    k->rmsnorm = rmsnorm;
    k->rmsnorm_gated = rmsnorm_gated;
    k->l2norm = l2norm;
    k->add = add;
    k->sigmoid = sigmoid;
    k->mul_sigmoid = mul_sigmoid;
    k->act = act;
    k->mix = mix;
    k->row_stats = row_stats;
    k->row_exp = row_exp;
    k->rope = rope;
    k->copy = copy;
}
