/* Row-wise operations and the table of one instruction set. */
#include "cpu.h"

#include "vmath.h"

#include <math.h>

/* Arguments of any operation of this file; each reads what it needs. */
struct rows {
    void (*row)(const struct rows *a, uint32_t r);
    float *y;
    const float *a, *b, *w, *w2;
    size_t y_stride, a_stride, b_stride;
    uint32_t rows, per; /* all rows, rows of a task */
    uint32_t cols, heads, dim;
    float eps, scale;
    struct kg_act_args act;
    const void *table;
    uint32_t dtype, form;
    const uint32_t *ids;
};

static void rows_task(void *arg, uint32_t task, uint32_t member)
{
    const struct rows *a = arg;
    uint32_t end = (task + 1) * a->per;

    (void)member;
    for (uint32_t r = task * a->per; r < end && r < a->rows; r++)
        a->row(a, r);
}

/* cost: what one element costs, in multiply-adds. */
static void rows_run(struct kg_team *team, struct rows *a, uint32_t cols, uint32_t cost)
{
    uint32_t tasks = kg_team_size(team) * 4;

    a->per = (a->rows + tasks - 1) / tasks;
    a->per = a->per == 0 ? 1 : a->per;
    run_sized(team, rows_task, a, (a->rows + a->per - 1) / a->per, (uint64_t)a->rows * cols * cost);
}

INLINE uint32_t lanes_left(uint32_t n, uint32_t i)
{
    return n - i < LANES ? n - i : LANES;
}

INLINE vf load_some(const float *p, uint32_t n)
{
    return n == LANES ? v_load(p) : v_loadn(p, n);
}

INLINE void store_some(float *p, vf v, uint32_t n)
{
    if (n == LANES)
        v_store(p, v);
    else
        v_storen(p, v, n);
}

/* ---- embedding ------------------------------------------------------------------------------ */

static void embed_row(const struct rows *a, uint32_t r)
{
    float *y = a->y + r * a->y_stride;
    size_t at = (size_t)a->ids[r] * a->cols;

    if (a->dtype == KG_F32) {
        memcpy(y, (const float *)a->table + at, a->cols * sizeof(float));
        return;
    }
    for (uint32_t c = 0; c < a->cols; c++)
        y[c] = bf16_widen(((const uint16_t *)a->table)[at + c]);
}

static void embed(struct kg_team *team, float *y, size_t y_stride, const void *table,
                  uint32_t dtype, uint32_t cols, const uint32_t *ids, uint32_t rows)
{
    struct rows a = {.row = embed_row, .y = y, .y_stride = y_stride, .table = table};

    a.dtype = dtype;
    a.cols = cols;
    a.ids = ids;
    a.rows = rows;
    rows_run(team, &a, cols, 1);
}

/* ---- norms ---------------------------------------------------------------------------------- */

static void rmsnorm_row(const struct rows *a, uint32_t r)
{
    const float *x = a->a + r * a->a_stride;
    float *y = a->y + r * a->y_stride;
    float sum = v_join(v_dot(v_zero(), x, x, a->cols));
    vf inv = v_set1(1.0f / sqrtf(sum / (float)a->cols + a->eps));

    for (uint32_t c = 0; c < a->cols; c += LANES) {
        uint32_t n = lanes_left(a->cols, c);
        vf w = a->w == NULL ? v_set1(1.0f) : load_some(a->w + c, n);

        store_some(y + c, v_mul(v_mul(load_some(x + c, n), inv), w), n);
    }
}

static void rmsnorm(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, const float *w, uint32_t rows, uint32_t cols, float eps)
{
    struct rows a = {.row = rmsnorm_row, .y = y, .a = x, .w = w, .eps = eps};

    a.y_stride = y_stride;
    a.a_stride = x_stride;
    a.rows = rows;
    a.cols = cols;
    rows_run(team, &a, cols, 2);
}

static void rmsnorm_gated_row(const struct rows *a, uint32_t r)
{
    for (uint32_t h = 0; h < a->heads; h++) {
        size_t at = (size_t)h * a->dim;
        const float *x = a->a + r * a->a_stride + at, *z = a->b + r * a->b_stride + at;
        float *y = a->y + r * a->y_stride + at;
        float sum = v_join(v_dot(v_zero(), x, x, a->dim));
        vf inv = v_set1(1.0f / sqrtf(sum / (float)a->dim + a->eps));

        for (uint32_t c = 0; c < a->dim; c += LANES) {
            uint32_t n = lanes_left(a->dim, c);
            vf normed = v_mul(v_mul(load_some(x + c, n), inv), load_some(a->w + c, n));

            store_some(y + c, v_mul(normed, v_sigmoid(load_some(z + c, n))), n);
        }
    }
}

static void rmsnorm_gated(struct kg_team *team, float *y, size_t y_stride, const float *x,
                          size_t x_stride, const float *z, size_t z_stride, const float *w,
                          uint32_t rows, uint32_t heads, uint32_t dim, float eps)
{
    struct rows a = {.row = rmsnorm_gated_row, .y = y, .a = x, .b = z, .w = w, .eps = eps};

    a.y_stride = y_stride;
    a.a_stride = x_stride;
    a.b_stride = z_stride;
    a.rows = rows;
    a.heads = heads;
    a.dim = dim;
    rows_run(team, &a, heads * dim, 4);
}

static void l2norm_row(const struct rows *a, uint32_t r)
{
    for (uint32_t h = 0; h < a->heads; h++) {
        const float *x = a->a + r * a->a_stride + (size_t)h * a->dim;
        float *y = a->y + r * a->y_stride + (size_t)h * a->dim;
        float sum = v_join(v_dot(v_zero(), x, x, a->dim));
        vf inv = v_set1(1.0f / sqrtf(sum + a->eps)), scale = v_set1(a->scale);

        for (uint32_t c = 0; c < a->dim; c += LANES) {
            uint32_t n = lanes_left(a->dim, c);

            store_some(y + c, v_mul(v_mul(load_some(x + c, n), inv), scale), n);
        }
    }
}

static void l2norm(struct kg_team *team, float *y, size_t y_stride, const float *x, size_t x_stride,
                   uint32_t rows, uint32_t heads, uint32_t dim, float eps, float scale)
{
    struct rows a = {.row = l2norm_row, .y = y, .a = x, .eps = eps, .scale = scale};

    a.y_stride = y_stride;
    a.a_stride = x_stride;
    a.rows = rows;
    a.heads = heads;
    a.dim = dim;
    rows_run(team, &a, heads * dim, 2);
}

/* ---- elementwise ---------------------------------------------------------------------------- */

static void add_row(const struct rows *a, uint32_t r)
{
    for (uint32_t c = 0; c < a->cols; c += LANES) {
        uint32_t n = lanes_left(a->cols, c);

        store_some(a->y + r * a->y_stride + c,
                   v_add(load_some(a->a + r * a->a_stride + c, n),
                         load_some(a->b + r * a->b_stride + c, n)),
                   n);
    }
}

static void sigmoid_row(const struct rows *a, uint32_t r)
{
    for (uint32_t c = 0; c < a->cols; c += LANES) {
        uint32_t n = lanes_left(a->cols, c);

        store_some(a->y + r * a->y_stride + c, v_sigmoid(load_some(a->a + r * a->a_stride + c, n)),
                   n);
    }
}

static void mul_sigmoid_row(const struct rows *a, uint32_t r)
{
    for (uint32_t c = 0; c < a->cols; c += LANES) {
        uint32_t n = lanes_left(a->cols, c);

        store_some(a->y + r * a->y_stride + c,
                   v_mul(load_some(a->a + r * a->a_stride + c, n),
                         v_sigmoid(load_some(a->b + r * a->b_stride + c, n))),
                   n);
    }
}

static void act_row(const struct rows *a, uint32_t r)
{
    vf beta = v_set1(a->act.beta), linear_beta = v_set1(a->act.linear_beta);

    for (uint32_t c = 0; c < a->cols; c += LANES) {
        uint32_t n = lanes_left(a->cols, c);

        store_some(a->y + r * a->y_stride + c,
                   v_act(a->act.act, beta, linear_beta, load_some(a->a + r * a->a_stride + c, n),
                         load_some(a->b + r * a->b_stride + c, n)),
                   n);
    }
}

static void add(struct kg_team *team, float *y, size_t y_stride, const float *a, size_t a_stride,
                const float *b, size_t b_stride, uint32_t rows, uint32_t cols)
{
    struct rows t = {.row = add_row, .y = y, .a = a, .b = b, .y_stride = y_stride};

    t.a_stride = a_stride;
    t.b_stride = b_stride;
    t.rows = rows;
    t.cols = cols;
    rows_run(team, &t, cols, 1);
}

static void sigmoid(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, uint32_t rows, uint32_t cols)
{
    struct rows t = {.row = sigmoid_row, .y = y, .a = x, .y_stride = y_stride};

    t.a_stride = x_stride;
    t.rows = rows;
    t.cols = cols;
    rows_run(team, &t, cols, 8);
}

static void mul_sigmoid(struct kg_team *team, float *y, size_t y_stride, const float *x,
                        size_t x_stride, const float *z, size_t z_stride, uint32_t rows,
                        uint32_t cols)
{
    struct rows t = {.row = mul_sigmoid_row, .y = y, .a = x, .b = z, .y_stride = y_stride};

    t.a_stride = x_stride;
    t.b_stride = z_stride;
    t.rows = rows;
    t.cols = cols;
    rows_run(team, &t, cols, 8);
}

static void act(struct kg_team *team, const struct kg_act_args *args, float *y, size_t y_stride,
                const float *a, size_t a_stride, const float *b, size_t b_stride, uint32_t rows,
                uint32_t cols)
{
    struct rows t = {.row = act_row, .y = y, .a = a, .b = b, .y_stride = y_stride, .act = *args};

    t.a_stride = a_stride;
    t.b_stride = b_stride;
    t.rows = rows;
    t.cols = cols;
    rows_run(team, &t, cols, 16);
}

/* ---- KDA gate ------------------------------------------------------------------------------- */

static void kda_gate_row(const struct rows *a, uint32_t r)
{
    for (uint32_t h = 0; h < a->heads; h++) {
        float rate = s_exp(a->w[h]);
        size_t at = (size_t)h * a->dim;

        for (uint32_t c = 0; c < a->dim; c += LANES) {
            uint32_t n = lanes_left(a->dim, c);
            vf z =
                v_add(load_some(a->a + r * a->a_stride + at + c, n), load_some(a->w2 + at + c, n));
            vf g;

            if (a->form == KG_GATE_SIGMOID)
                g = v_mul(v_set1(a->scale), v_sigmoid(v_mul(v_set1(rate), z)));
            else
                g = v_mul(v_set1(-rate), v_softplus(z));
            store_some(a->y + r * a->y_stride + at + c, v_exp(g), n);
        }
    }
}

static void kda_gate(struct kg_team *team, float *alpha, size_t alpha_stride, const float *f,
                     size_t f_stride, const float *a_log, const float *dt_bias, uint32_t rows,
                     uint32_t heads, uint32_t dim, uint32_t form, float lower_bound)
{
    struct rows a = {.row = kda_gate_row, .y = alpha, .a = f, .w = a_log, .w2 = dt_bias};

    a.y_stride = alpha_stride;
    a.a_stride = f_stride;
    a.rows = rows;
    a.heads = heads;
    a.dim = dim;
    a.form = form;
    a.scale = lower_bound;
    rows_run(team, &a, heads * dim, 16);
}

/* ---- router --------------------------------------------------------------------------------- */

struct route {
    uint32_t *ids;
    float *weights;
    const float *logits, *bias;
    size_t stride;
    uint32_t experts, top_k;
    float scale;
};

/*
 * Keeps the best top_k of choice[] sorted, best first: an expert moves up past those it beats
 * strictly, so a tie stays behind the lower id. NaN counts as minus infinity.
 */
static void pick(const float *choice, uint32_t experts, uint32_t top_k, uint32_t *ids)
{
    uint32_t n = 0;

    for (uint32_t e = 0; e < experts; e++) {
        float c = choice[e];

        if (n == top_k && !(c > choice[ids[n - 1]]))
            continue;
        uint32_t at = n < top_k ? n++ : n - 1;
        while (at > 0 && c > choice[ids[at - 1]]) {
            ids[at] = ids[at - 1];
            at--;
        }
        ids[at] = e;
    }
}

static void route_task(void *arg, uint32_t r, uint32_t member)
{
    const struct route *a = arg;
    const float *logits = a->logits + r * a->stride;
    float score[KG_ROUTE_MAX + LANES], choice[KG_ROUTE_MAX + LANES], sum = 0.0f;
    uint32_t *ids = a->ids + (size_t)r * a->top_k;
    float *weights = a->weights + (size_t)r * a->top_k;

    (void)member;
    for (uint32_t e = 0; e < a->experts; e += LANES) {
        uint32_t n = lanes_left(a->experts, e);
        vf s = v_sigmoid(load_some(logits + e, n));
        vf c = v_add(s, a->bias == NULL ? v_zero() : load_some(a->bias + e, n));

        v_store(score + e, s);
        v_store(choice + e, v_select(v_number(c), c, v_set1(-INFINITY)));
    }
    pick(choice, a->experts, a->top_k, ids);
    for (uint32_t s = 0; s < a->top_k; s++) {
        weights[s] = score[ids[s]];
        sum += weights[s];
    }
    for (uint32_t s = 0; s < a->top_k; s++)
        weights[s] = weights[s] / (sum + 1e-20f) * a->scale;
}

static void route(struct kg_team *team, uint32_t *ids, float *weights, const float *logits,
                  size_t logits_stride, const float *bias, uint32_t rows, uint32_t experts,
                  uint32_t top_k, float scale)
{
    struct route a = {.ids = ids, .weights = weights, .logits = logits, .bias = bias};

    a.stride = logits_stride;
    a.experts = experts;
    a.top_k = top_k;
    a.scale = scale;
    run_sized(team, route_task, &a, rows, (uint64_t)rows * experts * 8);
}

/* ---- attention residual --------------------------------------------------------------------- */

static void mix_task(void *arg, uint32_t r, uint32_t member)
{
    const struct kg_mix *a = arg;
    float weight[KG_MIX_MAX], top = -INFINITY, sum = 0.0f;

    (void)member;
    for (uint32_t s = 0; s < a->n_srcs; s++) {
        const float *src = a->srcs[s] + r * a->src_stride;
        float squares = v_join(v_dot(v_zero(), src, src, a->cols));

        weight[s] = v_join(v_dot(v_zero(), src, a->m, a->cols)) *
                    (1.0f / sqrtf(squares / (float)a->cols + a->eps));
        top = weight[s] > top ? weight[s] : top;
    }
    for (uint32_t s = 0; s < a->n_srcs; s++) {
        weight[s] = s_exp(weight[s] - top);
        sum += weight[s];
    }
    for (uint32_t s = 0; s < a->n_srcs; s++) {
        weight[s] = weight[s] / sum;
        if (a->weights != NULL)
            a->weights[(size_t)r * a->n_srcs + s] = weight[s];
    }
    for (uint32_t c = 0; c < a->cols; c += LANES) {
        uint32_t n = lanes_left(a->cols, c);
        size_t at = r * a->src_stride + c;
        vf v = v_mul(v_set1(weight[0]), load_some(a->srcs[0] + at, n));

        for (uint32_t s = 1; s < a->n_srcs; s++)
            v = v_fma(v_set1(weight[s]), load_some(a->srcs[s] + at, n), v);
        store_some(a->y + r * a->y_stride + c, v, n);
    }
}

static void mix(struct kg_team *team, const struct kg_mix *args)
{
    struct kg_mix a = *args;

    run_sized(team, mix_task, &a, a.rows, (uint64_t)a.rows * a.cols * a.n_srcs * 3);
}

/* ---- logits --------------------------------------------------------------------------------- */

struct stats {
    struct kg_row_stats *out;
    const float *x;
    size_t stride;
    uint32_t cols;
};

/* Maximum by lanes, then the first index that holds it. */
static void stats_max(struct kg_row_stats *st, const float *x, uint32_t cols)
{
    const vf low = v_set1(-INFINITY);
    vf top = low, abs_top = v_zero(), bad = v_zero(); /* bad: lanes that met a NaN */
    float lane[LANES];

    for (uint32_t c = 0; c < cols; c += LANES) {
        uint32_t n = lanes_left(cols, c);
        vf v = load_some(x + c, n), abs = v_from_bits(vi_and(v_bits(v), vi_set1(INT32_MAX)));

        bad = v_select(v_number(v), bad, v_set1(1.0f));
        abs_top = v_select(v_lt(abs_top, abs), abs, abs_top);
        if (n < LANES) { /* absent lanes must not win with their zero */
            v_store(lane, low);
            v_storen(lane, v, n);
            v = v_load(lane);
        }
        top = v_select(v_lt(top, v), v, top);
    }
    st->finite = !(v_join(bad) > 0.0f) && isfinite(v_join(abs_top) * 0.0f);
    st->max = v_join(bad) > 0.0f ? NAN : -INFINITY;
    st->argmax = 0;
    v_store(lane, top);
    for (int l = 0; l < LANES; l++)
        st->max = lane[l] > st->max ? lane[l] : st->max;
    while (st->argmax < cols && !isnan(st->max) && x[st->argmax] != st->max)
        st->argmax++;
}

static void stats_task(void *arg, uint32_t r, uint32_t member)
{
    const struct stats *a = arg;
    const float *x = a->x + r * a->stride;
    struct kg_row_stats st;
    vf sum = v_zero();

    (void)member;
    stats_max(&st, x, a->cols);
    for (uint32_t c = 0; c < a->cols; c += LANES) {
        uint32_t n = lanes_left(a->cols, c);
        vf e = v_exp(v_sub(load_some(x + c, n), v_set1(st.max)));

        if (n < LANES) { /* absent lanes add nothing */
            float lane[LANES] = {0};

            v_storen(lane, e, n);
            e = v_load(lane);
        }
        sum = v_add(sum, e);
    }
    st.sum_exp = v_join(sum);
    a->out[r] = st;
}

static void row_stats(struct kg_team *team, struct kg_row_stats *stats, const float *x,
                      size_t x_stride, uint32_t rows, uint32_t cols)
{
    struct stats a = {.out = stats, .x = x, .stride = x_stride, .cols = cols};

    run_sized(team, stats_task, &a, rows, (uint64_t)rows * cols * 12);
}

static void exp_row(const struct rows *a, uint32_t r)
{
    vf shift = v_set1(a->b == NULL ? 0.0f : a->b[r]);

    for (uint32_t c = 0; c < a->cols; c += LANES) {
        uint32_t n = lanes_left(a->cols, c);

        store_some(a->y + r * a->y_stride + c,
                   v_exp(v_sub(load_some(a->a + r * a->a_stride + c, n), shift)), n);
    }
}

static void row_exp(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, const float *shift, uint32_t rows, uint32_t cols)
{
    struct rows t = {.row = exp_row, .y = y, .a = x, .b = shift, .y_stride = y_stride};

    t.a_stride = x_stride;
    t.rows = rows;
    t.cols = cols;
    rows_run(team, &t, cols, 8);
}

/* ---- rotation ------------------------------------------------------------------------------- */

struct rope {
    float *x;
    const float *cosines, *sines;
    size_t x_stride;
    uint32_t n, width, dim, interleave;
};

static void rope_task(void *arg, uint32_t r, uint32_t member)
{
    const struct rope *a = arg;
    size_t at = (size_t)r * (a->dim / 2);
    const float *c = a->cosines + at, *s = a->sines + at;
    uint32_t half = a->dim / 2, step = a->interleave ? 2 : 1, far = a->interleave ? 1 : half;

    (void)member;
    for (uint32_t v = 0; v < a->n; v++) {
        float *y = a->x + r * a->x_stride + (size_t)(v + 1) * a->width - a->dim;

        for (uint32_t i = 0; i < half; i++) {
            float u = y[i * step], w = y[i * step + far];

            y[i * step] = u * c[i] - w * s[i];
            y[i * step + far] = w * c[i] + u * s[i];
        }
    }
}

static void rope(struct kg_team *team, float *x, size_t x_stride, uint32_t n, uint32_t width,
                 const float *cosines, const float *sines, uint32_t rows, uint32_t dim,
                 uint32_t interleave)
{
    struct rope a = {x, cosines, sines, x_stride, n, width, dim, interleave};

    run_sized(team, rope_task, &a, rows, (uint64_t)rows * n * dim);
}

/* ---- copies --------------------------------------------------------------------------------- */

struct copy {
    char *dst;
    const char *src;
    size_t dst_stride, src_stride, row_bytes;
};

static void copy_task(void *arg, uint32_t r, uint32_t member)
{
    const struct copy *a = arg;

    (void)member;
    memcpy(a->dst + r * a->dst_stride, a->src + r * a->src_stride, a->row_bytes);
}

static void copy(struct kg_team *team, void *dst, size_t dst_stride, const void *src,
                 size_t src_stride, size_t row_bytes, uint32_t rows)
{
    struct copy a = {dst, src, dst_stride, src_stride, row_bytes};

    run_sized(team, copy_task, &a, rows, (uint64_t)rows * row_bytes / 16);
}

#define COMMON_OPS                                                                                 \
    .size = sizeof(struct kg_kernels), .embed = embed, .rmsnorm = rmsnorm,                         \
    .rmsnorm_gated = rmsnorm_gated, .l2norm = l2norm, .add = add, .sigmoid = sigmoid,              \
    .mul_sigmoid = mul_sigmoid, .act = act, .kda_gate = kda_gate, .kda = ISA(kda),                 \
    .kda_replay = ISA(kda_replay), .page_write = ISA(page_write), .mla = ISA(mla), .route = route, \
    .mix = mix, .row_stats = row_stats, .row_exp = row_exp, .rope = rope, .copy = copy
#define EXACT_OPS                                                                            \
    COMMON_OPS, .math = KG_MATH_EXACT, .state_dtype = KG_F32, .product = ISA(product_exact), \
                .moe = ISA(moe_exact), .conv = ISA(conv_f32)
#define FAST_OPS COMMON_OPS, .math = KG_MATH_FAST, .state_dtype = KG_BF16, .conv = ISA(conv_bf16)

static const struct kg_kernels tables[] = {
    [KG_MATH_EXACT] = {.name = KG_ISA_NAME, EXACT_OPS},
    [KG_MATH_FAST] = {.name = KG_ISA_NAME,
                      .product = ISA(product_fast),
                      .moe = ISA(moe_fast),
                      FAST_OPS},
};

const struct kg_kernels *ISA(kg_kernels)(enum kg_math math)
{
    return &tables[math == KG_MATH_FAST ? KG_MATH_FAST : KG_MATH_EXACT];
}

#if defined(KG_BASE_OF_FP16)
/* The set with fp16 arithmetic differs in products with narrow weights alone. */
static const struct kg_kernels fp16_tables[] = {
    [KG_MATH_EXACT] = {.name = "avx512-fp16", EXACT_OPS},
    [KG_MATH_FAST] = {.name = "avx512-fp16",
                      .product = product_fast_avx512_fp16,
                      .moe = moe_fast_avx512_fp16,
                      .prepare = prepare_avx512_fp16,
                      FAST_OPS},
};

const struct kg_kernels *kg_kernels_avx512_fp16(enum kg_math math)
{
    return &fp16_tables[math == KG_MATH_FAST ? KG_MATH_FAST : KG_MATH_EXACT];
}
#endif
