/* Short convolution, decay gate, and the KDA recurrence row by row. */
#include "kda.cuh"
#include "vmath.cuh"

/* ---- convolution ---------------------------------------------------------------------------- */

#define CONV_ROWS 32
#define CONV_THREADS 128

struct conv_args {
    float *y;
    const float *u, *w;
    size_t y_stride, u_stride;
    const struct kg_conv_seq *seqs;
    uint32_t channels, n_seqs;
};

template <bool BF16>
static __device__ __forceinline__ float conv_raw(const struct conv_args &a, size_t row, uint32_t c)
{
    float x = a.u[row * a.u_stride + c];

    return BF16 ? kg_widen(kg_round_bf16(x)) : x;
}

/* Element j of a window, oldest first. */
template <bool BF16>
static __device__ __forceinline__ float conv_window(const struct conv_args &a, const void *window,
                                                    uint32_t j, uint32_t c)
{
    size_t at = size_t(j) * a.channels + c;

    if (window == nullptr)
        return 0.0f;
    return BF16 ? kg_widen(static_cast<const uint16_t *>(window)[at])
                : static_cast<const float *>(window)[at];
}

/* Raw input of row t of the sequence; t < 0: of the window. */
template <bool BF16>
static __device__ __forceinline__ float conv_tap(const struct conv_args &a,
                                                 const struct kg_conv_seq &s, int t, uint32_t c)
{
    if (t < 0)
        return conv_window<BF16>(a, s.window_in, uint32_t(3 + t), c);
    return conv_raw<BF16>(a, size_t(s.row0) + uint32_t(t), c);
}

/*
 * Reads u, writes y: 8 bytes and 4 multiplications an element plus an exp, so memory bounds it
 * (K3, one row: 36864 channels, 1.2 MB with weights and windows). A run of 32 rows reads 3 rows
 * of its neighbour again. grid: (blocks of channels, runs of rows).
 *
 * The threads of a sequence's first run alone touch its windows, so window_out may be window_in.
 */
template <bool BF16>
static __global__ void __launch_bounds__(CONV_THREADS) conv_kernel(struct conv_args a)
{
    uint32_t c = blockIdx.x * CONV_THREADS + threadIdx.x, seq, run;

    if (!kg_find_run(a.seqs, a.n_seqs, CONV_ROWS, blockIdx.y, &seq, &run) || c >= a.channels)
        return;
    struct kg_conv_seq s = a.seqs[seq];
    int t = int(run * CONV_ROWS), end = s.n - uint32_t(t) < CONV_ROWS ? int(s.n) : t + CONV_ROWS;
    float w0 = a.w[c], w1 = a.w[size_t(a.channels) + c], w2 = a.w[size_t(a.channels) * 2 + c],
          w3 = a.w[size_t(a.channels) * 3 + c];
    float u3 = conv_tap<BF16>(a, s, t - 3, c), u2 = conv_tap<BF16>(a, s, t - 2, c),
          u1 = conv_tap<BF16>(a, s, t - 1, c);

    if (run == 0 && s.window_out != nullptr) {
        float last[3];

        for (int j = 0; j < 3; j++)
            last[j] = conv_tap<BF16>(a, s, int(s.n) - 3 + j, c);
        for (int j = 0; j < 3; j++) {
            size_t at = size_t(j) * a.channels + c;

            if (BF16)
                static_cast<uint16_t *>(s.window_out)[at] = kg_round_bf16(last[j]);
            else
                static_cast<float *>(s.window_out)[at] = last[j];
        }
    }
    for (; t < end; t++) {
        size_t row = size_t(s.row0) + uint32_t(t);
        float u0 = conv_raw<BF16>(a, row, c);
        float sum = fmaf(w3, u0, fmaf(w2, u1, fmaf(w1, u2, w0 * u3)));

        a.y[row * a.y_stride + c] = sum * kg_sigmoid(sum);
        u3 = u2;
        u2 = u1;
        u1 = u0;
    }
}

template <bool BF16>
static void conv(struct kg_team *team, float *y, size_t y_stride, const float *u, size_t u_stride,
                 const float *w, uint32_t channels, const struct kg_conv_seq *seqs, uint32_t n_seqs)
{
    struct conv_args a = {y, u, w, y_stride, u_stride, nullptr, channels, n_seqs};

    if (n_seqs == 0 || !kg_op(team, "conv"))
        return;
    uint32_t runs = kg_runs_most(kg_rows_of(seqs, n_seqs), n_seqs, CONV_ROWS);

    a.seqs = kg_stage(team, seqs, n_seqs);
    if (a.seqs != nullptr)
        KG_RUN(team, conv_kernel<BF16>, dim3((channels + CONV_THREADS - 1) / CONV_THREADS, runs),
               CONV_THREADS, a);
}

/* ---- decay gate ----------------------------------------------------------------------------- */

#define GATE_THREADS 128

struct gate_args {
    float *alpha;
    const float *f, *a_log, *dt_bias;
    size_t alpha_stride, f_stride;
    uint32_t rows, width, dim, blocks; /* blocks: of a row */
    uint32_t form;
    float lower_bound;
};

/* Reads f, writes alpha: 8 bytes an element (K3, one row: 100 KB); three exps an element, so on a
 * few rows latency bounds it, on many memory. grid: (blocks of a row) x rows. */
static __global__ void __launch_bounds__(GATE_THREADS) gate_kernel(struct gate_args a)
{
    uint32_t c = blockIdx.x % a.blocks * GATE_THREADS + threadIdx.x;
    size_t r = blockIdx.x / a.blocks;

    if (c >= a.width)
        return;
    float rate = kg_exp(a.a_log[c / a.dim]), z = a.f[r * a.f_stride + c] + a.dt_bias[c];
    float g =
        a.form == KG_GATE_SIGMOID ? a.lower_bound * kg_sigmoid(rate * z) : -rate * kg_softplus(z);

    a.alpha[r * a.alpha_stride + c] = kg_exp(g);
}

static void kda_gate(struct kg_team *team, float *alpha, size_t alpha_stride, const float *f,
                     size_t f_stride, const float *a_log, const float *dt_bias, uint32_t rows,
                     uint32_t heads, uint32_t dim, uint32_t form, float lower_bound)
{
    uint32_t width = heads * dim, blocks = (width + GATE_THREADS - 1) / GATE_THREADS;
    struct gate_args a = {alpha, f,     a_log, dt_bias, alpha_stride, f_stride,
                          rows,  width, dim,   blocks,  form,         lower_bound};

    if (rows > 0 && kg_op(team, "kda_gate"))
        KG_RUN(team, gate_kernel, blocks * rows, GATE_THREADS, a);
}

/* ---- recurrence ----------------------------------------------------------------------------- */

/*
 * The state is read once and written once whatever the number of rows: 8 * k * v bytes a head (K3:
 * 12.6 MB a layer and sequence), and 4 fused or plain operations a state element and row, 3 of
 * them in sums. One row is bound by memory. Of many rows each waits for the one before: two
 * chains of PER fused steps and four shuffles; the blocks of several heads and sequences on a
 * multiprocessor fill that time.
 */
template <int PER, int COLS, bool FULL, bool REPLAY>
static __global__ void __launch_bounds__(KDA_MAX_WARPS *KG_WARP, 1) kda_kernel(struct kg_kda a)
{
    struct kg_kda_seq s = a.seqs[blockIdx.z];
    struct kda_thread<PER, COLS> x;

    kda_place(a, x);
    kda_load<PER, COLS, FULL>(a, s.state_in, x);
    kda_rows<PER, COLS, FULL, REPLAY>(a, s.row0, s.n, x);
    kda_store<PER, COLS, FULL>(a, s.state_out, x);
}

template <int PER, int COLS, bool FULL, bool REPLAY>
static void kda_launch(struct kg_team *team, const struct kg_kda &a)
{
    uint32_t warps = kda_warps(team, &a, 8 * COLS), slice = warps * 8 * COLS;

    KG_RUN(team, (kda_kernel<PER, COLS, FULL, REPLAY>),
           dim3((a.v_dim + slice - 1) / slice, a.heads, a.n_seqs), warps * KG_WARP, a);
}

template <bool REPLAY> static void kda_pick(struct kg_team *team, const struct kg_kda &a)
{
    /* no missing column: slices are up to 128 columns, of a power of two */
    if (a.k_dim == 128 && a.v_dim % 128 == 0)
        kda_launch<32, 2, true, REPLAY>(team, a);
    else if (a.k_dim <= 128)
        kda_launch<32, 2, false, REPLAY>(team, a);
    else if (a.k_dim <= 256)
        kda_launch<64, 1, false, REPLAY>(team, a);
    else
        kda_launch<128, 1, false, REPLAY>(team, a);
}

template <bool REPLAY, bool FAST> static void kda(struct kg_team *team, const struct kg_kda *args)
{
    struct kg_kda a = *args;

    if (a.n_seqs == 0 || !kg_op(team, REPLAY ? "kda_replay" : "kda"))
        return;
    a.seqs = kg_stage(team, args->seqs, a.n_seqs);
    if (a.seqs == nullptr)
        return;
    if (FAST && a.past != nullptr && a.k_dim <= 128) {
        const uint32_t *past = kg_stage(team, a.past, a.n_seqs);

        a.past = nullptr;
        if (past != nullptr)
            kda_chunked(team, a, past);
        return;
    }
    a.past = nullptr;
    kda_pick<REPLAY>(team, a);
}

void kg_cuda_fill_recurrence(struct kg_kernels *k, enum kg_math math)
{
    int fast = math == KG_MATH_FAST;

    k->conv = fast ? conv<true> : conv<false>;
    k->kda_gate = kda_gate;
    k->kda = fast ? kda<false, true> : kda<false, false>;
    k->kda_replay = kda<true, false>;
}
