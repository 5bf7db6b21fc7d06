/*
 * Routed experts and the router. Nothing here depends on what the router chose but the contents of
 * scratch: launches are sized for the worst choice and blocks without work leave at once, so a
 * recorded step is right for every choice. Experts go by their number here, id - first; entries of
 * experts that another rank has get no place and are left out of the sums.
 *
 * Scratch is that of moe_plan_make, used as follows for a pass of E = rows * top_k entries, entry j
 * (in router order) being row j / top_k:
 *   tiles   [n_experts]      running number of row tiles, this expert's included (in place of
 *                            `active`)
 *   offset  [n_experts + 1]  first entry of an expert
 *   token, slot [E]          rows and places of entries, by expert, rows rising
 *   gate, up [E][ff], result [E][out]
 */
#include "context.h"
#include "product.cuh"
#include "twins.h"
#include "vmath.cuh"

extern "C" {
#include "kernels/common.h"
}

namespace
{

using namespace kgp;

#define PLAN_THREADS 1024
#define PLAN_SMALL 1024 /* entries that one block places by itself */
#define PLACE_THREADS 256

/* A pass as kernels see it. */
struct pass {
    const uint32_t *ids;
    uint32_t *tiles, *offset, *token, *slot;
    uint32_t entries, top_k, n_experts, first;
    uint32_t tile_rows; /* rows of a tile */
};

/*
 * Sum over the threads before this one of `v`; *total: over all. PLAN_THREADS threads. part:
 * shared, one word for each warp and one for the total.
 */
template <class S> __device__ uint32_t sum_before(uint32_t v, S &part, uint32_t *total)
{
    uint32_t lane = threadIdx.x % KG_WARP, warp = threadIdx.x / KG_WARP, sum = v;

    for (uint32_t d = 1; d < KG_WARP; d *= 2) {
        uint32_t from = __shfl_sync(0xffffffffu, sum, (int)(lane < d ? lane : lane - d));

        sum += lane < d ? 0 : from;
    }
    __syncthreads(); /* of an earlier use */
    if (lane == KG_WARP - 1)
        part[warp] = sum;
    __syncthreads();
    uint32_t before = 0, all = 0;
    for (uint32_t w = 0; w < PLAN_THREADS / KG_WARP; w++) {
        uint32_t n = part[w];

        before += w < warp ? n : 0;
        all += n;
    }
    *total = all;
    return before + sum - v;
}

/*
 * One block: counts the rows of each expert, numbers entries and tiles. Of up to PLAN_SMALL entries
 * those of experts that are here are put in their places too, each by the number of earlier entries
 * of its expert: rows rise.
 *
 * Roofline: 4 bytes per entry; bound by latency (one block, some ten barriers).
 */
__global__ void moe_plan(pass p)
{
    KG_SHARED(uint32_t, count, KG_ROUTE_MAX);
    KG_SHARED(uint32_t, list, PLAN_SMALL);
    KG_SHARED(uint32_t, part, PLAN_THREADS / KG_WARP);
    uint32_t id = threadIdx.x, entries = 0, tiles = 0;

    for (uint32_t e = id; e < p.n_experts; e += PLAN_THREADS)
        count[e] = 0;
    __syncthreads();
    for (uint32_t j = id; j < p.entries; j += PLAN_THREADS) {
        uint32_t e = p.ids[j] - p.first;

        if (e < p.n_experts)
            atomicAdd(&count[e], 1u);
        if (p.entries <= PLAN_SMALL)
            list[j] = e;
    }
    __syncthreads();
    for (uint32_t e0 = 0; e0 < p.n_experts; e0 += PLAN_THREADS) {
        uint32_t e = e0 + id, n = 0, all, n_tiles, before;

        if (e < p.n_experts)
            n = count[e];
        n_tiles = (n + p.tile_rows - 1) / p.tile_rows;
        before = sum_before(n, part, &all);
        if (e < p.n_experts) {
            p.offset[e] = entries + before;
            count[e] = entries + before; /* now: where the expert begins */
        }
        entries += all;
        before = sum_before(n_tiles, part, &all);
        if (e < p.n_experts)
            p.tiles[e] = tiles + before + n_tiles;
        tiles += all;
    }
    if (id == 0)
        p.offset[p.n_experts] = entries;
    __syncthreads();
    if (p.entries > PLAN_SMALL || id >= p.entries)
        return;
    uint32_t e = list[id], rank = 0;
    if (e >= p.n_experts)
        return;
    for (uint32_t j = 0; j < id; j++)
        rank += list[j] == e;
    p.token[count[e] + rank] = id / p.top_k;
    p.slot[count[e] + rank] = id;
}

/*
 * One block per expert, for more entries than PLAN_SMALL: walks all of them in order and keeps its
 * own. Roofline: 4 bytes per entry and expert out of the level-2 cache.
 */
__global__ void moe_place(pass p)
{
    KG_SHARED(uint32_t, mine, PLACE_THREADS / KG_WARP);
    uint32_t e = blockIdx.x, at = p.offset[e], end = p.offset[e + 1];
    uint32_t lane = threadIdx.x % KG_WARP, warp = threadIdx.x / KG_WARP;

    for (uint32_t j0 = 0; j0 < p.entries && at < end; j0 += PLACE_THREADS) {
        uint32_t j = j0 + threadIdx.x, before = 0, all = 0;
        int is = j < p.entries && p.ids[j] - p.first == e;
        uint32_t ballot = __ballot_sync(0xffffffffu, is);

        if (lane == 0)
            mine[warp] = (uint32_t)__popc(ballot);
        __syncthreads();
        for (uint32_t w = 0; w < PLACE_THREADS / KG_WARP; w++) {
            uint32_t n = mine[w];

            before += w < warp ? n : 0;
            all += n;
        }
        __syncthreads();
        if (is) {
            uint32_t to = at + before + (uint32_t)__popc(ballot & ((1u << lane) - 1));

            p.token[to] = j / p.top_k;
            p.slot[to] = j;
        }
        at += all;
    }
}

/* Experts of a layer: matrices of one shape at equal distances. */
struct experts {
    const uint8_t *data;
    uint64_t stride; /* bytes */
    uint32_t out, in;
};

struct work {
    pass p;
    experts gate, up, down;
    const float *x; /* of the pass's first row */
    float *gate_y, *up_y, *result;
    size_t x_stride;
    struct kg_act_args act;
};

/* The expert of row tile `tile` and the tile's number within it; KG_NONE: there is no such tile.
 * All threads look at a part of the experts. found: shared, 2 words. */
template <class S>
__device__ uint32_t find_tile(const pass &p, uint32_t tile, S &found, uint32_t *at)
{
    if (threadIdx.x == 0)
        found[0] = KG_NONE;
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < p.n_experts; e += blockDim.x) {
        uint32_t end = p.tiles[e], begin = e == 0 ? 0 : p.tiles[e - 1];

        if (begin <= tile && tile < end) {
            found[0] = e;
            found[1] = tile - begin;
        }
    }
    __syncthreads();
    uint32_t e = found[0];
    if (e != KG_NONE)
        *at = found[1];
    return e;
}

/* Product `which` of an expert: 0 gate, 1 up, 2 down. The first two read x, the last what act left
 * in place of gate. */
__device__ matrix matrix_of(const work &w, uint32_t e, uint32_t which)
{
    const experts &m = which == 0 ? w.gate : which == 1 ? w.up : w.down;

    return {m.data + e * m.stride, m.out, m.in};
}

__device__ rows rows_of(const work &w, uint32_t e, uint32_t which)
{
    uint32_t first = w.p.offset[e], n = w.p.offset[e + 1] - first;

    if (which == 2)
        return {w.gate_y, w.result, w.down.in, w.down.out, nullptr, w.p.slot, first, n};
    return {w.x, which == 0 ? w.gate_y : w.up_y, w.x_stride, w.gate.out, w.p.token, nullptr, first,
            n};
}

/* h = act(gate, up) over outputs o0 .. o0 + outs - 1 of rows row0 .. row0 + n - 1; h replaces gate.
 * What a block reads here it wrote itself. */
__device__ void join_act(const work &w, const rows &rs, uint32_t row0, uint32_t n, uint32_t o0,
                         uint32_t outs)
{
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n * outs; i += blockDim.x) {
        uint32_t r = row0 + i / outs, o = o0 + i % outs;

        if (r < rs.n && o < w.gate.out) {
            size_t at = (size_t)(rs.first + r) * w.gate.out + o;

            w.gate_y[at] = kg_act(w.act, w.gate_y[at], w.up_y[at]);
        }
    }
}

/* The products below: `last` 0: gate, up, act; 1: down. blockIdx.x: outputs, blockIdx.y: row tile.
 * Rooflines: those of the tiles; each expert's weights once per tile of its rows. */
template <int TYPE, int FAST, int ROWS> __global__ void moe_plain(work w, int last)
{
    KG_SHARED(float, xs, ROWS *KGP_PLAIN_K);
    KG_SHARED(uint32_t, found, 2);
    uint32_t row0, e = find_tile(w.p, blockIdx.y, found, &row0);
    uint32_t block0 = blockIdx.x * (KGP_PLAIN_THREADS / 16);

    if (e == KG_NONE)
        return;
    row0 *= ROWS;
#pragma unroll 1
    for (uint32_t which = last ? 2 : 0; which < (last ? 3 : 2); which++)
        plain_tile<TYPE, FAST, ROWS>(matrix_of(w, e, which), block0, rows_of(w, e, which), row0,
                                     xs);
    if (!last)
        join_act(w, rows_of(w, e, 0), row0, ROWS, block0 * 16, KGP_PLAIN_THREADS);
}

template <int TYPE, int NT> __global__ void moe_small(work w, int last)
{
    KG_SHARED(float, join, KGP_PARTS *small_outs<TYPE>() * 8);
    KG_SHARED(uint32_t, found, 2);
    uint32_t row0, e = find_tile(w.p, blockIdx.y, found, &row0);
    uint32_t block0 = blockIdx.x * (small_outs<TYPE>() / 16);

    if (e == KG_NONE)
        return;
    row0 *= 8 * NT;
#pragma unroll 1
    for (uint32_t which = last ? 2 : 0; which < (last ? 3 : 2); which++)
        small_tile<TYPE, NT>(matrix_of(w, e, which), block0, rows_of(w, e, which), row0, join);
    if (!last)
        join_act(w, rows_of(w, e, 0), row0, 8 * NT, block0 * 16, small_outs<TYPE>());
}

template <int TYPE> __global__ void moe_large(work w, int last)
{
    KG_SHARED(uint32_t, xs, 2 * KGP_LARGE_X);
    KG_SHARED(uint32_t, ws, 2 * KGP_LARGE_W);
    KG_SHARED(uint32_t, found, 2);
    uint32_t row0, e = find_tile(w.p, blockIdx.y, found, &row0);
    uint32_t block0 = blockIdx.x * (KGP_LARGE_OUTS / 16);

    if (e == KG_NONE)
        return;
    row0 *= KGP_LARGE_ROWS;
#pragma unroll 1
    for (uint32_t which = last ? 2 : 0; which < (last ? 3 : 2); which++)
        large_tile<TYPE>(matrix_of(w, e, which), block0, rows_of(w, e, which), row0, xs, ws);
    if (!last)
        join_act(w, rows_of(w, e, 0), row0, KGP_LARGE_ROWS, block0 * 16, KGP_LARGE_OUTS);
}

/*
 * y = sum over s of weight * result, the first a product, then fused steps, in router order; of
 * experts that are here only, zero for a row without one. Where none was computed `result` holds
 * what was there before: it is not read.
 * Roofline: 4 (top_k + 1) bytes per output, once.
 */
__global__ void moe_sum(pass p, float *y, size_t y_stride, const float *weights,
                        const float *result, uint32_t out)
{
    uint32_t r = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x, begun = 0;
    const uint32_t *ids = p.ids + (size_t)r * p.top_k;
    const float *w = weights + (size_t)r * p.top_k, *v = result + (size_t)r * p.top_k * out + c;
    float sum = 0.0f;

    if (c >= out)
        return;
    for (uint32_t s = 0; s < p.top_k; s++) {
        if (ids[s] - p.first >= p.n_experts)
            continue;
        sum = begun ? fmaf(w[s], v[(size_t)s * out], sum) : w[s] * v[(size_t)s * out];
        begun = 1;
    }
    y[r * y_stride + c] = sum;
}

/* ---- router -------------------------------------------------------------------------------- */

#define ROUTE_THREADS 128

/* Larger is better: value, then lower id; a NaN is below every number, what is taken below that. */
__device__ inline unsigned long long route_key(float choice, uint32_t e)
{
    uint32_t bits = as_bits(choice + 0.0f); /* -0 becomes 0 */
    uint32_t order = bits >> 31 ? ~bits : bits | 0x80000000u;

    return (unsigned long long)(choice != choice ? 1 : order) << 32 | (0xffffffffu - e);
}

/* Best key of the experts this thread looks after that are not taken. */
template <class C>
__device__ inline unsigned long long route_best(const C &choice, uint32_t experts,
                                                const uint32_t (&taken)[2])
{
    unsigned long long best = 0;
    uint32_t i = 0;

    for (uint32_t e = threadIdx.x; e < experts; e += ROUTE_THREADS, i++) {
        unsigned long long key = route_key(choice[e], e);

        if ((taken[i / 32] >> i % 32 & 1) == 0 && key > best)
            best = key;
    }
    return best;
}

/*
 * One block per row. Each round the threads offer the best of their own experts; only the winner's
 * owner looks again.
 *
 * Roofline: 8 bytes per expert; bound by latency, one barrier and ten shuffles per pick.
 */
__global__ void route_kernel(uint32_t *ids, float *weights, const float *logits,
                             size_t logits_stride, const float *bias, uint32_t experts,
                             uint32_t top_k, float scale)
{
    KG_SHARED(float, choice, KG_ROUTE_MAX);
    KG_SHARED(unsigned long long, best, 2 * (ROUTE_THREADS / KG_WARP));
    uint32_t lane = threadIdx.x % KG_WARP, warp = threadIdx.x / KG_WARP;
    uint32_t taken[2] = {
        0, 0}; /* of own experts, in their order: KG_ROUTE_MAX / ROUTE_THREADS <= 64 */
    const float *x = logits + blockIdx.x * logits_stride;

    for (uint32_t e = threadIdx.x; e < experts; e += ROUTE_THREADS)
        choice[e] = kg_sigmoid(x[e]) + (bias == nullptr ? 0.0f : bias[e]);
    ids += (size_t)blockIdx.x * top_k;
    weights += (size_t)blockIdx.x * top_k;

    unsigned long long own = route_best(choice, experts, taken);
    float sum = 0.0f;
    for (uint32_t s = 0; s < top_k; s++) {
        unsigned long long top = own;
        uint32_t half = s % 2 * (ROUTE_THREADS / KG_WARP);

        for (int d = 16; d > 0; d /= 2) {
            unsigned long long other = __shfl_xor_sync(0xffffffffu, top, d);

            top = other > top ? other : top;
        }
        if (lane == 0)
            best[half + warp] = top;
        __syncthreads();
        for (uint32_t w = 0; w < ROUTE_THREADS / KG_WARP; w++) {
            unsigned long long other = best[half + w];

            top = other > top ? other : top;
        }
        uint32_t e = 0xffffffffu - (uint32_t)top;
        if (e % ROUTE_THREADS == threadIdx.x) {
            taken[e / ROUTE_THREADS / 32] |= 1u << e / ROUTE_THREADS % 32;
            own = route_best(choice, experts, taken);
        }
        if (threadIdx.x == 0) {
            float w = kg_sigmoid(x[e]);

            ids[s] = e;
            weights[s] = w;
            sum += w;
        }
    }
    for (uint32_t s = 0; s < top_k && threadIdx.x == 0; s++)
        weights[s] = weights[s] / (sum + 1e-20f) * scale;
}

void route(struct kg_team *team, uint32_t *ids, float *weights, const float *logits,
           size_t logits_stride, const float *bias, uint32_t rows, uint32_t experts, uint32_t top_k,
           float scale)
{
    if (rows > 0 && kg_op(team, "route"))
        KG_RUN(team, route_kernel, rows, ROUTE_THREADS, ids, weights, logits, logits_stride, bias,
               experts, top_k, scale);
}

/* ---- host ---------------------------------------------------------------------------------- */

enum form {
    PLAIN_EXACT,
    PLAIN_FAST,
    SMALL,
    LARGE,
};

struct how {
    enum form form;
    uint32_t rows; /* of a tile */
};

template <int TYPE, int FAST>
void run_plain(struct kg_team *team, const work &w, dim3 grid, int last)
{
    if (w.p.tile_rows == 1)
        KG_RUN(team, (moe_plain<TYPE, FAST, 1>), grid, KGP_PLAIN_THREADS, w, last);
    else
        KG_RUN(team, (moe_plain<TYPE, FAST, 8>), grid, KGP_PLAIN_THREADS, w, last);
}

template <int TYPE>
void run_mma(struct kg_team *team, const work &w, enum form form, uint32_t n_tiles, int last)
{
    const experts &m = last ? w.down : w.gate;
    uint32_t outs = form == LARGE ? KGP_LARGE_OUTS : small_outs<TYPE>();
    dim3 grid((m.out + outs - 1) / outs, n_tiles);

    if (form == LARGE)
        KG_RUN(team, moe_large<TYPE>, grid, KGP_LARGE_THREADS, w, last);
    else if (w.p.tile_rows == 8)
        KG_RUN(team, (moe_small<TYPE, 1>), grid, mma_parts(m.in) * KG_WARP, w, last);
    else
        KG_RUN(team, (moe_small<TYPE, 2>), grid, mma_parts(m.in) * KG_WARP, w, last);
}

/* Gate, up and act, or (last) down. */
void run_half(struct kg_team *team, const work &w, uint32_t type, enum form form, uint32_t n_tiles,
              int last)
{
    uint32_t out = last ? w.down.out : w.gate.out;
    dim3 grid((out + KGP_PLAIN_THREADS - 1) / KGP_PLAIN_THREADS, n_tiles);

    if (type == KG_W_F32)
        run_plain<KG_W_F32, 0>(team, w, grid, last);
    else if (form == PLAIN_EXACT && type == KG_W_BF16)
        run_plain<KG_W_BF16, 0>(team, w, grid, last);
    else if (form == PLAIN_EXACT)
        run_plain<KG_W_MXFP4, 0>(team, w, grid, last);
    else if (form == PLAIN_FAST && type == KG_W_BF16)
        run_plain<KG_W_BF16, 1>(team, w, grid, last);
    else if (form == PLAIN_FAST)
        run_plain<KG_W_MXFP4, 1>(team, w, grid, last);
    else if (type == KG_W_BF16)
        run_mma<KG_W_BF16>(team, w, form, n_tiles, last);
    else
        run_mma<KG_W_MXFP4>(team, w, form, n_tiles, last);
}

/* By shape alone, for rows that the router spreads evenly. */
struct how how_to(const struct kg_moe *m, uint32_t rows, enum kg_math math, int tensor)
{
    uint32_t routed = m->n_routed == 0 ? m->n_experts : m->n_routed;
    uint64_t mean = (uint64_t)rows * m->top_k / routed;
    int f32 = m->gate[0].type == KG_W_F32 || m->down[0].type == KG_W_F32;

    if (math == KG_MATH_EXACT || !tensor)
        return {math == KG_MATH_EXACT ? PLAIN_EXACT : PLAIN_FAST, rows == 1 ? 1u : 8u};
    if (f32) /* the plain form has no larger tiles */
        return {SMALL, 8};
    if (rows > KGP_LARGE_FROM && mean > 32)
        return {LARGE, KGP_LARGE_ROWS};
    return {SMALL, rows > 8 && mean > 6 ? 16u : 8u};
}

void run_pass(struct kg_team *team, const struct kg_moe *m, work *w, uint32_t row0, uint32_t rows,
              const struct how &how)
{
    pass &p = w->p;
    uint32_t out = w->down.out;
    /* Most tiles any choice can make: each expert with rows may have one that is not full. */
    uint32_t most = (p.entries < p.n_experts ? p.entries : p.n_experts);
    uint32_t n_tiles = most + (p.entries - most) / how.rows;

    KG_RUN(team, moe_plan, 1, PLAN_THREADS, p);
    if (p.entries > PLAN_SMALL)
        KG_RUN(team, moe_place, p.n_experts, PLACE_THREADS, p);
    run_half(team, *w, m->gate[0].type, how.form, n_tiles, 0);
    run_half(team, *w, m->down[0].type, how.form, n_tiles, 1);
    KG_RUN(team, moe_sum, dim3((out + 127) / 128, rows), 128, p, m->y + (size_t)row0 * m->y_stride,
           m->y_stride, m->weights + (size_t)row0 * m->top_k, w->result, out);
}

/* Experts of one array. KG_EINVAL, kept: the first two differ in shape or overlap. */
int experts_of(struct kg_team *team, const struct kg_weight *w, uint32_t n, experts *e)
{
    uint64_t stride = 0;

    if (n > 1) {
        stride = (uint64_t)((const uint8_t *)w[1].data - (const uint8_t *)w[0].data);
        if (w[1].type != w[0].type || w[1].out != w[0].out || w[1].in != w[0].in ||
            stride < w[0].bytes || stride % 16 != 0 || (const uint8_t *)w[1].data < w[0].data) {
            kg_keep(team, KG_EINVAL, "experts do not lie at equal distances");
            return KG_EINVAL;
        }
    }
    *e = {(const uint8_t *)w[0].data, stride, w[0].out, w[0].in};
    return KG_OK;
}

void run_moe(struct kg_team *team, const struct kg_moe *m, enum kg_math math, int tensor)
{
    work w = {};
    uint32_t most = m->rows == 0 ? 1 : moe_pass_rows(m);

    if (experts_of(team, m->gate, m->n_experts, &w.gate) != KG_OK ||
        experts_of(team, m->up, m->n_experts, &w.up) != KG_OK ||
        experts_of(team, m->down, m->n_experts, &w.down) != KG_OK)
        return;
    for (uint32_t row0 = 0; row0 < m->rows; row0 += most) {
        uint32_t rows = m->rows - row0 < most ? m->rows - row0 : most;
        struct how how = how_to(m, rows, math, tensor);
        struct moe_plan plan;

        moe_plan_place(&plan, m, rows);
        w.p = {m->ids + (size_t)row0 * m->top_k,
               plan.active,
               plan.offset,
               plan.token,
               plan.slot,
               rows * m->top_k,
               m->top_k,
               m->n_experts,
               m->first,
               how.rows};
        w.gate_y = plan.gate;
        w.up_y = plan.up;
        w.result = plan.result;
        w.x = m->x + (size_t)row0 * m->x_stride;
        w.x_stride = m->x_stride;
        w.act = m->act;
        run_pass(team, m, &w, row0, rows, how);
    }
}

void moe_exact(struct kg_team *team, const struct kg_moe *m)
{
    if (kg_op(team, "moe"))
        run_moe(team, m, KG_MATH_EXACT, 0);
}

void moe_fast(struct kg_team *team, const struct kg_moe *m)
{
    if (kg_op(team, "moe"))
        run_moe(team, m, KG_MATH_FAST, kg_device(team)->tensor_cores != 0);
}

} // namespace

void kg_cuda_moe_plain(struct kg_team *team, const struct kg_moe *m)
{
    if (kg_op(team, "moe"))
        run_moe(team, m, KG_MATH_FAST, 0);
}

void kg_cuda_fill_experts(struct kg_kernels *k, enum kg_math math)
{
    k->moe = math == KG_MATH_FAST ? moe_fast : moe_exact;
    k->route = route;
}
