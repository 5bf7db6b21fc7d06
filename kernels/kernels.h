/*
 * The kernel table: one signature per operation, the same for every device. core/model writes a
 * forward pass as calls on this table; a backend fills it.
 *
 * The promise. For every output element the order of its additions is fixed: it depends on the
 * shape of the operation and on nothing else, not on how many rows run together, which rows share
 * a batch, how a sequence is cut into chunks, on page_tokens, or on the number of threads.
 * - Products walk K upwards with one accumulator per output element and one fused multiply-add
 *   per step; vector lanes run over outputs. One row and a thousand rows give the same bits.
 * - Reductions over a row (norms, scores) use "the 16-lane sum": lane l adds the elements
 *   l, l+16, l+32, .. in rising order by fused multiply-add, then lanes are joined as
 *   l + (l+8), l + (l+4), l + (l+2), l + (l+1). Missing elements count as zero.
 * - exp, sigmoid, tanh, softplus are our own (see `row_exp` below) and give the same bits in
 *   every lane, tail or not.
 * In `exact` math every table of this folder (plain C, AVX2, AVX-512) gives the same bits.
 *
 * Math. exact: fp32 activations, BF16 and MXFP4 weights widened exactly, pages and convolution
 * windows fp32. fast: in products with BF16 or MXFP4 weights the activation is rounded to bf16
 * (nearest even) and K is walked in pairs, the odd element of a pair first; pages and convolution
 * windows are bf16. Products with F32 weights, norms, gates, the recurrence, softmax and routing
 * are fp32 in both. Fast agrees to the bit within one table only.
 * A table with `prepare` has another form of fast, for weights that it made narrow (E4M7). K is
 * walked in groups of 256 inputs and, within them, chains of 64. The activations of a group are
 * multiplied by the power of two that brings the largest magnitude into 2^8 .. 2^9 and rounded to
 * fp16. A chain has an accumulator for its even and one for its odd inputs, both fp16 from zero,
 * one fused step per input; at its end each is added to an fp32 sum of the group. At the end of the
 * group y = fma(even sum + odd sum, the powers of two taken back, y). A step loses up to 2^-11
 * of its sum: of terms of both signs less in all than what rounding the activations to bf16 loses,
 * of one sign, where the result is as large as its terms together, about twice that. The factors
 * end at 2^-126: what a scale would need beyond is lost, sums near 2^-110 and below.
 *
 * Common rules. Activations are fp32, row-major: element c of row r lies at x[r * x_stride +
 * c]; strides are in elements. Outputs may not overlap inputs unless "y may be x" is said (then
 * same pointer and stride). Any count >= 1 is legal unless said otherwise, rows = 0 does
 * nothing. No alignment is needed but where said. No operation allocates, fails or looks at a
 * clock (up to 256 KiB of stack in each member, optimized); what one cannot check (ids in range,
 * non-NULL) is the caller's duty. NaN and infinity travel by IEEE rules and stay in their row. All
 * operations return when the result is complete.
 */
#ifndef KEDGE_KERNELS_KERNELS_H
#define KEDGE_KERNELS_KERNELS_H

#include <kedge/types.h>

/* ---- team ------------------------------------------------------------------------------- */

/* A fixed team of threads that operations run on; one caller at a time. */
struct kg_team;

#define KG_TEAM_MAX 256

/*
 * Starts n_threads - 1 threads; the caller of kg_team_run is the last member. 1..KG_TEAM_MAX.
 * KG_EINVAL outside, KG_ENOMEM when threads cannot be had. *team set only on success.
 */
KG_CHECKED int kg_team_create(uint32_t n_threads, struct kg_team **team, struct kg_error *err);
/* Joins the threads. NULL is allowed. Not while a run is in progress. */
void kg_team_destroy(struct kg_team *team);
/* Members, the caller included. NULL counts as 1: every operation takes team = NULL. */
uint32_t kg_team_size(const struct kg_team *team);
/*
 * Calls fn(arg, task, member) once for each task 0..n_tasks-1 and returns when all are done. Tasks
 * are dealt dynamically: results must not depend on who ran what. member < kg_team_size. Waiting
 * members look for some hundred microseconds, less where others want the cores, and then sleep.
 */
void kg_team_run(struct kg_team *team, void (*fn)(void *arg, uint32_t task, uint32_t member),
                 void *arg, uint32_t n_tasks);

/* ---- weights ---------------------------------------------------------------------------- */

enum kg_weight_type {
    KG_W_F32 = 0,
    KG_W_BF16 = 1,
    KG_W_MXFP4 = 2,   /* e2m1 nibbles with one e8m0 scale per 32 inputs; scale byte 255 is NaN */
    KG_W_N_TYPES = 3, /* of the types above, which every table takes */
    KG_W_E4M7 =
        3, /* made from BF16 by a table's `prepare`, for that table; plain C takes it, too */
};

/*
 * A matrix W [out][in] for y = W x, packed for vector lanes over outputs. Blocks of 16 outputs;
 * inside a block, inputs rise and 16 outputs lie side by side (absent outputs are zero):
 *   F32    [ceil(out/16)][in][16] float
 *   BF16   [ceil(out/16)][ceil(in/2)][16][2] bf16, a missing last input is zero
 *   MXFP4  [ceil(out/16)][ceil(in/32)] groups of 272 bytes: 16 scales, then [16 pairs][16] bytes,
 *          the even input in the low nibble
 *   E4M7   [ceil(out/16)][ceil(in/2)][16] of 3 bytes, the even input in the low 12 bits. Of the 12:
 *          sign, 4 bits e, 7 bits m; (1 + m / 128) 2^(e - 15) or, of e = 0, m / 128 2^-14, and that
 *          times 2^shift is the value
 *
 * The same layout serves every table of this folder; E4M7, those that prepare and plain C.
 */
struct kg_weight {
    uint32_t type;    /* enum kg_weight_type */
    uint32_t out, in; /* >= 1 */
    int32_t shift;    /* E4M7 only, else 0 */
    uint64_t bytes;   /* kg_weight_bytes(type, out, in) */
    void *data;       /* 64-byte aligned, the caller's, lives as long as the weight is used */
};

/* Packed bytes (a multiple of 16); 0 for an unknown type, out or in of 0, or overflow. */
uint64_t kg_weight_bytes(uint32_t type, uint32_t out, uint32_t in);
/*
 * Describes an all-zero matrix over `data` (64-byte aligned, kg_weight_bytes long, cleared here).
 * KG_EINVAL for a bad type, size or alignment. Parts never filled stay zero: padding heads.
 */
KG_CHECKED int kg_weight_init(struct kg_weight *w, uint32_t type, uint32_t out, uint32_t in,
                              void *data);
/* The same, but the caller clears `data`, in whatever pieces. */
KG_CHECKED int kg_weight_attach(struct kg_weight *w, uint32_t type, uint32_t out, uint32_t in,
                                void *data);
/*
 * Copies a block: W[out0 + o][in0 + i] = src[o * src_stride + i] for o < n_out, i < n_in.
 * src_dtype KG_F32 or KG_BF16, stride in elements. F32 into BF16 rounds to nearest even; all
 * else is exact. Not for MXFP4. KG_EINVAL outside the matrix or for other types. Calls on
 * different blocks of 16 outputs may run at once.
 */
KG_CHECKED int kg_weight_fill(struct kg_weight *w, uint32_t out0, uint32_t in0, uint32_t n_out,
                              uint32_t n_in, uint32_t src_dtype, const void *src,
                              size_t src_stride);
/* The same from a transposed source: W[out0 + o][in0 + i] = src[i * src_stride + o]. */
KG_CHECKED int kg_weight_fill_t(struct kg_weight *w, uint32_t out0, uint32_t in0, uint32_t n_out,
                                uint32_t n_in, uint32_t src_dtype, const void *src,
                                size_t src_stride);
/*
 * Rows out0.. from checkpoint MXFP4: packed [n_out][in/2] (low nibble = even input), scales
 * [n_out][in/32]; w->in must be a multiple of 32. Into MXFP4 the codes are copied; into BF16 or
 * F32 the values are stored (exact; 2^128 and above become infinity). KG_EINVAL otherwise.
 */
KG_CHECKED int kg_weight_fill_mxfp4(struct kg_weight *w, uint32_t out0, uint32_t n_out,
                                    const uint8_t *packed, const uint8_t *scales);
/*
 * A BF16 matrix becomes E4M7, in place and a quarter shorter: the same 8 digits with less room for
 * the exponent. The largest magnitude comes to lie in 1 .. 2; what is not below 2^-14 then stays
 * exactly what it was, and the rest is rounded to a multiple of 2^-21, nearest even: an error of at
 * most 2^-22 of the largest. False, and nothing is changed, where that cannot be done: another
 * type, a value that is NaN or infinite, a largest magnitude of 0, below 2^-60 or of 2^8 and more.
 * The plain form of `prepare` below.
 */
int kg_weight_narrow(struct kg_weight *w);
/* One element as fp32. o < out, i < in. For tests, and tables small enough not to matter. */
float kg_weight_at(const struct kg_weight *w, uint32_t o, uint32_t i);

/* Value of e2m1 code 0..15 times 2^(scale - 127); NaN for scale 255. */
float kg_mxfp4_value(uint32_t code, uint32_t scale);
/* Nearest even; NaN stays NaN. */
uint16_t kg_bf16_from_f32(float x);
float kg_f32_from_bf16(uint16_t x);
/* Nearest even; NaN stays NaN, 65520 and above become infinity. From a double: rounded once. */
uint16_t kg_f16_from_f64(double x);
float kg_f32_from_f16(uint16_t x);

/* ---- arguments of the larger operations -------------------------------------------------- */

/* One product y[r][o] = sum_i x[r][i] * W[o][i]. x: (rows, in), y: (rows, out). */
struct kg_product {
    const struct kg_weight *w;
    const float *x;
    float *y;
    size_t x_stride, y_stride;
    uint32_t rows;
};

/* Rows of one sequence in a packed batch: rows row0 .. row0+n-1 in order of position. n >= 1. */

/*
 * Convolution of a sequence's rows. A window is [3][channels] raw inputs, oldest first, fp32 in
 * exact math, bf16 in fast. window_in NULL: zeros (start of a sequence). window_out NULL: not
 * kept; it may be window_in.
 */
struct kg_conv_seq {
    const void *window_in;
    void *window_out;
    uint32_t row0, n;
};

/*
 * Recurrence of a sequence's rows. A state is [heads] blocks of v_dim * k_dim floats; element
 * (k, v) of a head lies at kg_state_at(k_dim, v_dim, k, v). state_in NULL: zero. state_out NULL:
 * the new state is not kept (verify); it may be state_in, or any other state.
 */
struct kg_kda_seq {
    const float *state_in;
    float *state_out;
    uint32_t row0, n;
};

/*
 * Place of state element (k, v) inside a head: 16 values of v lie side by side for each k,
 * [ceil(v_dim/16)][k_dim][16], the last block narrower if 16 does not divide v_dim.
 */
static inline size_t kg_state_at(uint32_t k_dim, uint32_t v_dim, uint32_t k, uint32_t v)
{
    uint32_t v0 = v / 16 * 16;
    uint32_t width = v_dim - v0 < 16 ? v_dim - v0 : 16;

    return (size_t)v0 * k_dim + (size_t)k * width + (v - v0);
}

/*
 * Arguments of kda and kda_replay. Row r, head h: q, k, alpha at r * qk_stride + h * k_dim; v, o,
 * u at r * v_stride + h * v_dim; beta at r * beta_stride + h.
 */
#define KG_KDA_CHUNK 16
struct kg_kda {
    const float *q;     /* normalised and scaled; not read by replay */
    const float *k;     /* normalised */
    const float *v;     /* not read by replay */
    const float *alpha; /* decay factor per key channel, exp(g) */
    const float *beta;  /* not read by replay */
    float *o;           /* output; not written by replay */
    float *u;           /* beta * (v - p): output of kda (NULL: not wanted), input of replay */
    size_t qk_stride, alpha_stride, v_stride, o_stride, u_stride, beta_stride;
    uint32_t heads, k_dim, v_dim; /* k_dim 1..512 */
    uint32_t n_seqs;
    const struct kg_kda_seq *seqs;
    /* NULL, or the positions of the sequences' first rows: a device in fast math then may take the
     * KG_KDA_CHUNK rows of positions 16 i .. 16 i + 15 at once, where one sequence here has them
     * all; its sums have another order. UINT32_MAX: row by row (verify). Other tables do not read
     * it. */
    const uint32_t *past;
};

/* Form of the KDA decay gate. */
enum kg_gate_form {
    KG_GATE_SOFTPLUS = 0, /* g = -exp(a) * softplus(f + b) */
    KG_GATE_SIGMOID = 1,  /* g = lower_bound * sig(exp(a) * (f + b)) */
};

/*
 * Where one MLA layer's latent lives. Token t of a sequence whose page ids are pages[] has its
 * record (latent floats, then rope floats, both `dtype`) at
 *   base + (uint64_t)table[pages[t / page_tokens]] * page_stride + (t % page_tokens) * token_stride
 * so base includes the arena, the kind's base offset and the layer's offset inside a page.
 */
struct kg_pages {
    uint8_t *base;
    const uint32_t *table; /* virtual id -> slot; NULL: the ids are slots */
    uint64_t page_stride;  /* bytes */
    uint64_t token_stride; /* bytes, >= (latent + rope) * element size */
    uint32_t page_tokens;
    uint32_t dtype;        /* KG_F32 or KG_BF16; records are aligned to the element size */
    uint32_t latent, rope; /* latent >= 1, rope >= 0, latent + rope <= KG_MLA_MAX */
};

#define KG_MLA_MAX 1024   /* most values of a record */
#define KG_ROUTE_MAX 4096 /* most experts of a router */

/* Rows of a sequence: row row0 + j has position past + j; pages cover past + n tokens. */
struct kg_mla_seq {
    const uint32_t *pages;
    uint32_t row0, n;
    uint32_t past;
};

/*
 * Absorbed attention. Row r, head h: qa at r * qa_stride + h * latent; q_r at r * qr_stride +
 * h * qr_head_stride; m at r * m_stride + h * latent.
 */
struct kg_mla {
    struct kg_pages pages;
    const float *qa;
    const float *qr; /* may be NULL when rope is 0 */
    float *m;
    size_t qa_stride, qr_stride, qr_head_stride, m_stride;
    float scale;
    uint32_t heads;
    const struct kg_mla_seq *seqs;
    uint32_t n_seqs, reserved; /* reserved: 0 */
    /* NULL, 0, or room that a device may share the keys of few rows with; the bits are the same.
     * 4-byte aligned; kernels/cuda/cuda.h says how much is of use. CPU tables need none. */
    void *scratch;
    uint64_t scratch_bytes;
};

enum kg_act {
    KG_ACT_SWIGLU = 0, /* silu(a) * b */
    KG_ACT_SITU = 1,   /* beta tanh(a/beta) sig(a) * linear_beta tanh(b/linear_beta) */
};

struct kg_act_args {
    uint32_t act;            /* enum kg_act */
    float beta, linear_beta; /* SITU only, > 0 */
};

/* Routed experts: y[r] = sum over s of weights[r][s] * down_e(act(gate_e(x), up_e(x))). */
struct kg_moe {
    const struct kg_weight *gate, *up, *down; /* [n_experts] each: (ff, in) x2, (out, ff) */
    const float *x;                           /* (rows, in) */
    float *y;                                 /* (rows, out) */
    size_t x_stride, y_stride;
    const uint32_t *ids;  /* [rows][top_k], distinct within a row */
    const float *weights; /* [rows][top_k] */
    uint32_t rows, top_k, n_experts;
    uint32_t first; /* the id of gate[0]; ids outside first .. first + n_experts - 1 have no part in
                       the sum (another rank adds them), and a row without one is zero */
    uint32_t n_routed; /* experts the router picks from, on all ranks; 0: n_experts. Speed only */
    struct kg_act_args act;
    void *scratch;          /* 64-byte aligned, scratch_bytes long */
    uint64_t scratch_bytes; /* >= kg_moe_scratch_bytes(1, ..); with less than for all rows the
                               batch is cut: same bits, experts read more often */
};

/* Scratch for `rows` rows in one pass, bytes. */
uint64_t kg_moe_scratch_bytes(uint32_t rows, uint32_t top_k, uint32_t n_experts, uint32_t ff,
                              uint32_t out);

/* Attention residual: softmax mix of n_srcs sources of the same shape. */
#define KG_MIX_MAX 64
struct kg_mix {
    const float *const *srcs; /* [n_srcs] (rows, cols) each, one stride for all */
    const float *m;           /* (cols) score vector */
    float *y;                 /* (rows, cols), may be one of srcs with src_stride == y_stride */
    float *weights;           /* NULL, or (rows, n_srcs): the softmax */
    size_t src_stride, y_stride;
    uint32_t n_srcs; /* 1..KG_MIX_MAX */
    uint32_t rows, cols;
    float eps;
};

/* Facts of one row of logits. */
struct kg_row_stats {
    float max;       /* NaN if any element is NaN */
    float sum_exp;   /* sum of exp(x - max), 16-lane sum; ln of it plus max is the log-sum-exp */
    uint32_t argmax; /* lowest index that holds max; 0 with NaN */
    uint32_t finite; /* 1 when no element is NaN or infinite */
};

/* ---- the table --------------------------------------------------------------------------- */

enum kg_math {
    KG_MATH_EXACT = 0,
    KG_MATH_FAST = 1,
};

struct kg_kernels {
    size_t size;          /* sizeof(struct kg_kernels) */
    const char *name;     /* "ref", "avx2", "avx512", "avx512-bf16", "avx512-fp16" */
    uint32_t math;        /* enum kg_math */
    uint32_t state_dtype; /* of pages and convolution windows: KG_F32 exact, KG_BF16 fast */

    /* NULL, or gives a matrix the form that this table multiplies quickest: kg_weight_narrow, by
     * the team. Once its values are complete, and for products of this table alone. Of a matrix
     * dealt to ranks each part has a scale of its own. */
    void (*prepare)(struct kg_team *team, struct kg_weight *w);

    /* From here on every table has every operation. */

    /* n independent products in one fork and join. Outputs must not overlap. */
    void (*product)(struct kg_team *team, const struct kg_product *p, uint32_t n);

    /* y[r] = table[ids[r]] widened. table: (any, cols) row-major `dtype` KG_F32 or KG_BF16. */
    void (*embed)(struct kg_team *team, float *y, size_t y_stride, const void *table,
                  uint32_t dtype, uint32_t cols, const uint32_t *ids, uint32_t rows);

    /* y = x / sqrt(mean(x^2) + eps) * w per row, computed as (x * (1 / sqrt(..))) * w. 16-lane
     * sum. w: (cols), NULL = ones. y may be x. */
    void (*rmsnorm)(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, const float *w, uint32_t rows, uint32_t cols, float eps);

    /* Per row and head: y = rms(x; w, eps) * sig(z). x, y, z: (rows, heads * dim), w: (dim).
     * y may be x or z. */
    void (*rmsnorm_gated)(struct kg_team *team, float *y, size_t y_stride, const float *x,
                          size_t x_stride, const float *z, size_t z_stride, const float *w,
                          uint32_t rows, uint32_t heads, uint32_t dim, float eps);

    /* Per row and head: y = x / sqrt(sum(x^2) + eps) * scale, as (x * (1 / sqrt(..))) * scale.
     * y may be x. */
    void (*l2norm)(struct kg_team *team, float *y, size_t y_stride, const float *x, size_t x_stride,
                   uint32_t rows, uint32_t heads, uint32_t dim, float eps, float scale);

    /* y = a + b. y may be a or b. */
    void (*add)(struct kg_team *team, float *y, size_t y_stride, const float *a, size_t a_stride,
                const float *b, size_t b_stride, uint32_t rows, uint32_t cols);

    /* y = sig(x). y may be x. */
    void (*sigmoid)(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, uint32_t rows, uint32_t cols);

    /* y = x * sig(z). y may be x or z. */
    void (*mul_sigmoid)(struct kg_team *team, float *y, size_t y_stride, const float *x,
                        size_t x_stride, const float *z, size_t z_stride, uint32_t rows,
                        uint32_t cols);

    /* y = act(a, b) elementwise (enum kg_act). y may be a or b. */
    void (*act)(struct kg_team *team, const struct kg_act_args *args, float *y, size_t y_stride,
                const float *a, size_t a_stride, const float *b, size_t b_stride, uint32_t rows,
                uint32_t cols);

    /* Causal depthwise convolution of 4 taps, then SiLU: y_t[c] = silu(w[0][c] u_{t-3}[c] +
     * w[1][c] u_{t-2}[c] + w[2][c] u_{t-1}[c] + w[3][c] u_t[c]), a product then three fused
     * steps in that order. u: (rows, channels); in fast math u is first rounded to bf16.
     * w: [4][channels], so transposed from a checkpoint's [channels][4]. Windows must not
     * overlap between sequences. Parallel over sequences and channels. */
    void (*conv)(struct kg_team *team, float *y, size_t y_stride, const float *u, size_t u_stride,
                 const float *w, uint32_t channels, const struct kg_conv_seq *seqs,
                 uint32_t n_seqs);

    /* alpha = exp(g), g by `form`; a_log: (heads), dt_bias: (heads * dim). f, alpha: (rows,
     * heads * dim). alpha may be f. lower_bound: SIGMOID form only, e.g. -5. */
    void (*kda_gate)(struct kg_team *team, float *alpha, size_t alpha_stride, const float *f,
                     size_t f_stride, const float *a_log, const float *dt_bias, uint32_t rows,
                     uint32_t heads, uint32_t dim, uint32_t form, float lower_bound);

    /* Per sequence, head and row in order: p = S^T (k * alpha), which is the decayed state times
     * k; u = beta * (v - p); S = fma(k, u, S * alpha); o = S^T q. The sums over k: four partial
     * sums over k mod 4 by fused multiply-add in rising k, then (s0 + s1) + (s2 + s3). One code
     * path: n rows in one call or in n calls give the same bits. Sequences must not share a
     * state_out. */
    void (*kda)(struct kg_team *team, const struct kg_kda *args);

    /* S = fma(k, u, S * alpha) for n rows with the u that kda wrote: the same state bits,
     * without q, v, beta, o. */
    void (*kda_replay)(struct kg_team *team, const struct kg_kda *args);

    /* Writes the records of the rows: c: (rows, latent), kr: (rows, rope), rounded to the pages'
     * dtype. The pages of different sequences do not overlap at the positions written. */
    void (*page_write)(struct kg_team *team, const struct kg_pages *pages, const float *c,
                       size_t c_stride, const float *kr, size_t kr_stride,
                       const struct kg_mla_seq *seqs, uint32_t n_seqs);

    /* Row at position t attends to keys 0..t, read from the pages (write them first). Score =
     * scale * (qa.c + qr.k_r): one 16-lane sum running over c, then, from lane 0 again, k_r.
     * Softmax online over blocks of 16 keys at absolute positions: block maximum, rescale of
     * sum and m by exp(old - new), then keys in rising order; m / sum at the end. Bytes past
     * the row's position are never used. m: (rows, heads * latent). */
    void (*mla)(struct kg_team *team, const struct kg_mla *args);

    /* Per row: s = sig(logits); picks the top_k of s + bias, best first, ties and NaN to the
     * lower id; weights = s / (sum of picked s in that order + 1e-20) * scale. logits: (rows,
     * experts), bias: (experts) or NULL. ids, weights: [rows][top_k]. top_k <= experts <=
     * KG_ROUTE_MAX. */
    void (*route)(struct kg_team *team, uint32_t *ids, float *weights, const float *logits,
                  size_t logits_stride, const float *bias, uint32_t rows, uint32_t experts,
                  uint32_t top_k, float scale);

    /* Each expert's weights are read once for all its rows (per pass of scratch); products as in
     * `product`; the sum over s starts with a product, then fused steps, in router order. Ids of
     * experts that are not there are left out of it. */
    void (*moe)(struct kg_team *team, const struct kg_moe *args);

    /* score_s = (sum(src_s * m)) * (1 / sqrt(mean(src_s^2) + eps)), 16-lane sums; a = softmax
     * over s in rising order; y = a_0 src_0, then fused steps. */
    void (*mix)(struct kg_team *team, const struct kg_mix *args);

    /* Facts of each row, for sampling and log probabilities. */
    void (*row_stats)(struct kg_team *team, struct kg_row_stats *stats, const float *x,
                      size_t x_stride, uint32_t rows, uint32_t cols);

    /* y = exp(x - shift[r]) per row, shift NULL = 0. Error below 2 units in the last place;
     * results under 2^-126 are zero. y may be x. */
    void (*row_exp)(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, const float *shift, uint32_t rows, uint32_t cols);

    /* Rotates the last `dim` values of each of the n vectors of a row, which lie `width` apart:
     * a = a cos - b sin, b = b cos + a sin, each of two rounded products. Pair i is (i, i + dim /
     * 2) of the values or, interleaved, (2i, 2i + 1). x: (rows, n * width), cosines, sines:
     * (rows, dim / 2). dim is even and <= width. */
    void (*rope)(struct kg_team *team, float *x, size_t x_stride, uint32_t n, uint32_t width,
                 const float *cosines, const float *sines, uint32_t rows, uint32_t dim,
                 uint32_t interleave);

    /* Row r: row_bytes bytes from src + r * src_stride to dst + r * dst_stride; strides in bytes.
     * What is read and what is written do not overlap. */
    void (*copy)(struct kg_team *team, void *dst, size_t dst_stride, const void *src,
                 size_t src_stride, size_t row_bytes, uint32_t rows);
};

/* Instruction sets, rising. */
enum kg_isa {
    KG_ISA_REF = 0,
    KG_ISA_AVX2 = 1,        /* with FMA */
    KG_ISA_AVX512 = 2,      /* F, BW, DQ, VL */
    KG_ISA_AVX512_BF16 = 3, /* differs from AVX512 in fast products only */
    KG_ISA_AVX512_FP16 = 4, /* and VBMI; the same, but its fast table prepares weights */
};

/* The best set this CPU and kernel support. */
enum kg_isa kg_cpu_isa(void);
/* Plain C, for every machine. */
const struct kg_kernels *kg_kernels_ref(enum kg_math math);
/* The best table at or below `limit` that this CPU can run; never NULL. */
const struct kg_kernels *kg_kernels_cpu(enum kg_math math, enum kg_isa limit);
/*
 * The quickest table of this CPU; never NULL. In fast math not always that of kg_cpu_isa(): a core
 * of Intel does two fused steps of fp32 in half the time of its bf16 product, so without fp16 it is
 * AVX512 there. The two give the same bits, unless a value is so small that it has lost digits
 * (below 2^-126), which the bf16 product counts as zero.
 */
const struct kg_kernels *kg_kernels_best(enum kg_math math);

#endif
