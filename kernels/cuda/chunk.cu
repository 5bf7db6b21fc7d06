/*
 * KDA for prefill in fast math: 16 rows at once, so that they do not wait for each other.
 *
 * A chunk is 16 rows at positions 16 i .. 16 i + 15, all in one sequence of the call; other rows
 * (a ragged head or tail, decode, verify) are taken one by one. So the state at a multiple of 16 is
 * the same for every cut of a prefill at multiples of 16, hence at multiples of 64; a cut or a
 * checkpoint inside a chunk changes bits, not more than the bound. With S the state before, k the
 * keys, D_i the product of alpha over rows 0..i, and E_j that over rows j+1..15:
 *   A_ij = k_i . (k_j alpha_j+1 .. alpha_i), B_ij = q_i . (the same)
 *   u_i = beta_i (v_i - S^T (k_i D_i) - sum over j < i of A_ij u_j)
 *   o_i = S^T (q_i D_i) + sum over j <= i of B_ij u_j
 *   S = S D_15 + sum over j of (k_j E_j) u_j
 * Decay enters by products of alpha only, all at most 1: nothing overflows and nothing is divided.
 * Agrees with the recurrence in double precision within 1e-6 of 1 + |value| on normalised keys, as
 * measured in tests/unit/cuda/test_recurrence.c.
 */
#include "kda.cuh"

#define ROWS KG_KDA_CHUNK
#define VECS 8 /* float4 of a part of k: 32 keys */

static __device__ __forceinline__ float dot4(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/* Column j of A and B, and k_j E_j: the key walks through the decays of the rows behind it. 16
 * lanes share its 32 float4. */
template <class V, class M>
static __device__ __forceinline__ void walk(V q, V k, V alpha, V ke, M a, M b)
{
    for (uint32_t task = threadIdx.x; task < ROWS * 16; task += blockDim.x) {
        uint32_t j = task / 16, part = task % 16;
        float in_a[ROWS], in_b[ROWS];

#pragma unroll
        for (int i = 0; i < ROWS; i++)
            in_a[i] = in_b[i] = 0.0f;
        for (uint32_t f = part; f < 32; f += 16) {
            float4 w = k[j * 32 + f];

#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                if (uint32_t(i) < j)
                    continue;
                if (uint32_t(i) > j) {
                    w = kda_times(w, alpha[i * 32 + f]);
                    in_a[i] = dot4(k[i * 32 + f], w, in_a[i]);
                }
                in_b[i] = dot4(q[i * 32 + f], w, in_b[i]);
            }
            ke[j * 32 + f] = w;
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            for (int half = 8; half >= 1; half /= 2) {
                in_a[i] = in_a[i] + __shfl_xor_sync(0xffffffffu, in_a[i], half);
                in_b[i] = in_b[i] + __shfl_xor_sync(0xffffffffu, in_b[i], half);
            }
            if (part == 0) {
                a[i * ROWS + j] = in_a[i];
                b[i * ROWS + j] = in_b[i];
            }
        }
    }
}

/* S^T times the vectors of 16 rows. */
template <class V>
static __device__ __forceinline__ void read_rows(const struct kda_thread<32, 2> &x, V vec,
                                                 float (&to)[ROWS][2])
{
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float sum[2] = {0.0f, 0.0f};

#pragma unroll
        for (int g = 0; g < VECS; g++) {
            float4 w = vec[(i * 4 + x.j) * VECS + g];

#pragma unroll
            for (int c = 0; c < 2; c++)
                sum[c] = dot4(w,
                              make_float4(x.state[c][4 * g], x.state[c][4 * g + 1],
                                          x.state[c][4 * g + 2], x.state[c][4 * g + 3]),
                              sum[c]);
        }
        to[i][0] = kda_join(sum[0]);
        to[i][1] = kda_join(sum[1]);
    }
}

/* u: what is predicted, becomes u; o: S^T q, becomes the output. A value of A or B is read once for
 * both columns: 500 of them would not fit the registers. */
template <bool FULL, class M>
static __device__ __forceinline__ void solve(const struct kg_kda &a, uint32_t r0,
                                             const struct kda_thread<32, 2> &x, M in_a, M in_b,
                                             float (&u)[ROWS][2], float (&o)[ROWS][2])
{
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        size_t r = size_t(r0) + i, v = size_t(x.h) * a.v_dim + x.v[0];
        float beta = a.beta[r * a.beta_stride + x.h], rest[2];

#pragma unroll
        for (int c = 0; c < 2; c++)
            rest[c] = (FULL || x.v[c] < a.v_dim ? a.v[r * a.v_stride + v + 8 * c] : 0.0f) - u[i][c];
#pragma unroll
        for (int j = 0; j < i; j++) {
            float past = in_a[i * ROWS + j];

            rest[0] = fmaf(-past, u[j][0], rest[0]);
            rest[1] = fmaf(-past, u[j][1], rest[1]);
        }
        u[i][0] = beta * rest[0];
        u[i][1] = beta * rest[1];
#pragma unroll
        for (int j = 0; j <= i; j++) {
            float part = in_b[i * ROWS + j];

            o[i][0] = fmaf(part, u[j][0], o[i][0]);
            o[i][1] = fmaf(part, u[j][1], o[i][1]);
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            if ((!FULL && x.v[c] >= a.v_dim) || x.j != 0)
                continue;
            a.o[r * a.o_stride + v + 8 * c] = o[i][c];
            if (a.u != nullptr)
                a.u[r * a.u_stride + v + 8 * c] = u[i][c];
        }
    }
}

/* S = S D_15 + sum over j of (k_j E_j) u_j */
template <class V>
static __device__ __forceinline__ void update(struct kda_thread<32, 2> &x, V whole, V ke,
                                              const float (&u)[ROWS][2])
{
#pragma unroll
    for (int g = 0; g < VECS; g++) {
        float4 d = whole[x.j * VECS + g];

#pragma unroll
        for (int c = 0; c < 2; c++) {
            x.state[c][4 * g] *= d.x;
            x.state[c][4 * g + 1] *= d.y;
            x.state[c][4 * g + 2] *= d.z;
            x.state[c][4 * g + 3] *= d.w;
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float4 w = ke[(i * 4 + x.j) * VECS + g];

#pragma unroll
            for (int c = 0; c < 2; c++) {
                x.state[c][4 * g] = fmaf(w.x, u[i][c], x.state[c][4 * g]);
                x.state[c][4 * g + 1] = fmaf(w.y, u[i][c], x.state[c][4 * g + 1]);
                x.state[c][4 * g + 2] = fmaf(w.z, u[i][c], x.state[c][4 * g + 2]);
                x.state[c][4 * g + 3] = fmaf(w.w, u[i][c], x.state[c][4 * g + 3]);
            }
        }
    }
}

/* Rows r0 .. r0 + 15. */
template <bool FULL>
static __device__ __forceinline__ void chunk(const struct kg_kda &a, uint32_t r0,
                                             struct kda_thread<32, 2> &x)
{
    KG_SHARED(float4, q, ROWS * 32);
    KG_SHARED(float4, k, ROWS * 32);
    KG_SHARED(float4, alpha, ROWS * 32);
    KG_SHARED(float4, ke, ROWS * 32);
    KG_SHARED(float4, whole, 32); /* D_15 */
    KG_SHARED(float, in_a, ROWS *ROWS);
    KG_SHARED(float, in_b, ROWS *ROWS);
    float u[ROWS][2], o[ROWS][2];

    __syncthreads();
    for (uint32_t n = threadIdx.x; n < ROWS * 32; n += blockDim.x) {
        uint32_t t = n / 32, j = n % 4, g = n / 4 % VECS, at = (t * 4 + j) * VECS + g;
        size_t r = size_t(r0) + t, head = size_t(x.h) * a.k_dim;

        k[at] = kda_keys<FULL>(a.k + r * a.qk_stride + head, j, g, a.k_dim);
        q[at] = kda_keys<FULL>(a.q + r * a.qk_stride + head, j, g, a.k_dim);
        alpha[at] = kda_keys<FULL>(a.alpha + r * a.alpha_stride + head, j, g, a.k_dim);
    }
    __syncthreads();
    walk(q + 0, k + 0, alpha + 0, ke + 0, in_a + 0, in_b + 0);
    __syncthreads();
    for (uint32_t f = threadIdx.x; f < 32; f += blockDim.x) {
        float4 d = make_float4(1.0f, 1.0f, 1.0f, 1.0f);

        for (int i = 0; i < ROWS; i++) {
            d = kda_times(d, alpha[i * 32 + f]);
            k[i * 32 + f] = kda_times(k[i * 32 + f], d);
            q[i * 32 + f] = kda_times(q[i * 32 + f], d);
        }
        whole[f] = d;
    }
    __syncthreads();
    read_rows(x, k + 0, u); /* what is predicted, then u */
    read_rows(x, q + 0, o);
    solve<FULL>(a, r0, x, in_a + 0, in_b + 0, u, o);
    update(x, whole + 0, ke + 0, u);
}

/*
 * 3 fused steps a state element and row in place of 4 operations, none of which waits for the row
 * before; beside them 24 k operations a row for A and B and what they are used for, in each block:
 * the fp32 units bound it. The state moves once a call. Not measured.
 * grid, block: as in kda_place.
 */
template <bool FULL>
static __global__ void __launch_bounds__(KDA_MAX_WARPS *KG_WARP, 1)
    chunk_kernel(struct kg_kda a, const uint32_t *past)
{
    struct kg_kda_seq s = a.seqs[blockIdx.z];
    struct kda_thread<32, 2> x;
    uint32_t first = past[blockIdx.z], t = 0;

    kda_place(a, x);
    kda_load<32, 2, FULL>(a, s.state_in, x);
    while (t < s.n) {
        uint32_t into = (first + t) % ROWS, n = s.n - t;

        if (first != UINT32_MAX && into == 0 && n >= ROWS) {
            chunk<FULL>(a, s.row0 + t, x);
            t += ROWS;
            continue;
        }
        if (first != UINT32_MAX && n > ROWS - into)
            n = ROWS - into;
        kda_rows<32, 2, FULL, false, 2>(a, s.row0 + t, n, x);
        t += n;
    }
    kda_store<32, 2, FULL>(a, s.state_out, x);
}

void kda_chunked(struct kg_team *team, const struct kg_kda &a, const uint32_t *past)
{
    uint32_t warps = kda_warps(team, &a, 16), slice = warps * 16;
    dim3 grid((a.v_dim + slice - 1) / slice, a.heads, a.n_seqs);

    if (a.k_dim == 128 && a.v_dim % 128 == 0)
        KG_RUN(team, chunk_kernel<true>, grid, warps * KG_WARP, a, past);
    else
        KG_RUN(team, chunk_kernel<false>, grid, warps * KG_WARP, a, past);
}
