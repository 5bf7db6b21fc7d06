/* Products: lists of parts of one type to launches of the three forms in product.cuh. */
#include "context.h"
#include "product.cuh"
#include "twins.h"

namespace
{

using namespace kgp;

#define LIST 12 /* parts of one launch; they travel as the kernel's arguments */

struct part {
    matrix w;
    rows rs;
    uint32_t first; /* tile of outputs, counted over the parts of the launch */
};

struct list {
    part parts[LIST];
    uint32_t n;
};

/* The part that blockIdx.x falls in. */
__device__ const part &part_of(const list &l)
{
    uint32_t p = 0;

    while (p + 1 < l.n && blockIdx.x >= l.parts[p + 1].first)
        p++;
    return l.parts[p];
}

template <int TYPE, int FAST, int ROWS> __global__ void product_plain(list l)
{
    KG_SHARED(float, xs, ROWS *KGP_PLAIN_K);
    const part &p = part_of(l);
    uint32_t row0 = blockIdx.y * ROWS;

    if (row0 < p.rs.n)
        plain_tile<TYPE, FAST, ROWS>(p.w, (blockIdx.x - p.first) * (KGP_PLAIN_THREADS / 16), p.rs,
                                     row0, xs);
}

template <int TYPE, int NT> __global__ void product_small(list l)
{
    KG_SHARED(float, join, KGP_PARTS *small_outs<TYPE>() * 8);
    const part &p = part_of(l);
    uint32_t row0 = blockIdx.y * 8 * NT;

    if (row0 < p.rs.n)
        small_tile<TYPE, NT>(p.w, (blockIdx.x - p.first) * (small_outs<TYPE>() / 16), p.rs, row0,
                             join);
}

template <int TYPE> __global__ void product_large(list l)
{
    KG_SHARED(uint32_t, xs, 2 * KGP_LARGE_X);
    KG_SHARED(uint32_t, ws, 2 * KGP_LARGE_W);
    const part &p = part_of(l);
    uint32_t row0 = blockIdx.y * KGP_LARGE_ROWS;

    if (row0 < p.rs.n)
        large_tile<TYPE>(p.w, (blockIdx.x - p.first) * (KGP_LARGE_OUTS / 16), p.rs, row0, xs, ws);
}

/* Numbers the tiles of `outs` outputs; returns how many there are. */
uint32_t number(list *l, uint32_t outs)
{
    uint32_t tiles = 0;

    for (uint32_t i = 0; i < l->n; i++) {
        l->parts[i].first = tiles;
        tiles += (l->parts[i].w.out + outs - 1) / outs;
    }
    return tiles;
}

template <int TYPE, int FAST> void run_plain(struct kg_team *team, list *l, uint32_t most)
{
    uint32_t tiles = number(l, KGP_PLAIN_THREADS);

    if (most == 1)
        KG_RUN(team, (product_plain<TYPE, FAST, 1>), dim3(tiles, 1), KGP_PLAIN_THREADS, *l);
    else
        KG_RUN(team, (product_plain<TYPE, FAST, 8>), dim3(tiles, (most + 7) / 8), KGP_PLAIN_THREADS,
               *l);
}

template <int TYPE, int NT> void run_small(struct kg_team *team, list *l, uint32_t most)
{
    uint32_t tiles = number(l, small_outs<TYPE>()), warps = 1;

    for (uint32_t i = 0; i < l->n; i++)
        warps = mma_parts(l->parts[i].w.in) > warps ? mma_parts(l->parts[i].w.in) : warps;
    KG_RUN(team, (product_small<TYPE, NT>), dim3(tiles, (most + 8 * NT - 1) / (8 * NT)),
           warps * KG_WARP, *l);
}

template <int TYPE> void run_mma(struct kg_team *team, list *l, uint32_t most)
{
    if (most > KGP_LARGE_FROM) {
        uint32_t tiles = number(l, KGP_LARGE_OUTS);

        KG_RUN(team, product_large<TYPE>, dim3(tiles, (most + KGP_LARGE_ROWS - 1) / KGP_LARGE_ROWS),
               KGP_LARGE_THREADS, *l);
    } else if (most <= 8) {
        run_small<TYPE, 1>(team, l, most);
    } else if (TYPE == KG_W_MXFP4 || most <= 16) {
        run_small<TYPE, 2>(team, l, most);
    } else {
        run_small<KG_W_BF16, 4>(team, l, most);
    }
}

void run_list(struct kg_team *team, list *l, uint32_t type, enum kg_math math, int tensor)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < l->n; i++)
        most = l->parts[i].rs.n > most ? l->parts[i].rs.n : most;
    if (type == KG_W_F32)
        run_plain<KG_W_F32, 0>(team, l, most);
    else if (math == KG_MATH_EXACT && type == KG_W_BF16)
        run_plain<KG_W_BF16, 0>(team, l, most);
    else if (math == KG_MATH_EXACT)
        run_plain<KG_W_MXFP4, 0>(team, l, most);
    else if (tensor && type == KG_W_BF16)
        run_mma<KG_W_BF16>(team, l, most);
    else if (tensor)
        run_mma<KG_W_MXFP4>(team, l, most);
    else if (type == KG_W_BF16)
        run_plain<KG_W_BF16, 1>(team, l, most);
    else
        run_plain<KG_W_MXFP4, 1>(team, l, most);
}

void run_products(struct kg_team *team, const struct kg_product *p, uint32_t n, enum kg_math math,
                  int tensor)
{
    for (uint32_t type = KG_W_F32; type < KG_W_N_TYPES; type++) {
        list l = {};

        for (uint32_t i = 0; i < n; i++) {
            const struct kg_weight *w = p[i].w;

            if (w->type != type || p[i].rows == 0)
                continue;
            part &to = l.parts[l.n++];
            to.w = {(const uint8_t *)w->data, w->out, w->in};
            to.rs = {p[i].x, p[i].y, p[i].x_stride, p[i].y_stride, nullptr, nullptr, 0, p[i].rows};
            if (l.n == LIST) {
                run_list(team, &l, type, math, tensor);
                l.n = 0;
            }
        }
        if (l.n > 0)
            run_list(team, &l, type, math, tensor);
    }
}

void product_exact(struct kg_team *team, const struct kg_product *p, uint32_t n)
{
    if (kg_op(team, "product"))
        run_products(team, p, n, KG_MATH_EXACT, 0);
}

void product_fast(struct kg_team *team, const struct kg_product *p, uint32_t n)
{
    if (kg_op(team, "product"))
        run_products(team, p, n, KG_MATH_FAST, kg_device(team)->tensor_cores != 0);
}

} // namespace

void kg_cuda_product_plain(struct kg_team *team, const struct kg_product *p, uint32_t n)
{
    if (kg_op(team, "product"))
        run_products(team, p, n, KG_MATH_FAST, 0);
}

void kg_cuda_fill_products(struct kg_kernels *k, enum kg_math math)
{
    k->product = math == KG_MATH_FAST ? product_fast : product_exact;
}
