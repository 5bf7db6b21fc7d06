#include "ref.h"

static void embed(struct kg_team *team, float *y, size_t y_stride, const void *table,
                  uint32_t dtype, uint32_t cols, const uint32_t *ids, uint32_t rows)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++) {
            size_t at = (size_t)ids[r] * cols + c;

            y[r * y_stride + c] = dtype == KG_BF16 ? bf16_widen(((const uint16_t *)table)[at])
                                                   : ((const float *)table)[at];
        }
    }
}

static void rmsnorm(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, const float *w, uint32_t rows, uint32_t cols, float eps)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++) {
        const float *in = x + r * x_stride;
        float inv = 1.0f / sqrtf(sum_squares(in, cols) / (float)cols + eps);

        for (uint32_t c = 0; c < cols; c++)
            y[r * y_stride + c] = in[c] * inv * (w == NULL ? 1.0f : w[c]);
    }
}

static void rmsnorm_gated(struct kg_team *team, float *y, size_t y_stride, const float *x,
                          size_t x_stride, const float *z, size_t z_stride, const float *w,
                          uint32_t rows, uint32_t heads, uint32_t dim, float eps)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t h = 0; h < heads; h++) {
            const float *in = x + r * x_stride + (size_t)h * dim;
            const float *gate = z + r * z_stride + (size_t)h * dim;
            float inv = 1.0f / sqrtf(sum_squares(in, dim) / (float)dim + eps);

            for (uint32_t c = 0; c < dim; c++)
                y[r * y_stride + (size_t)h * dim + c] = in[c] * inv * w[c] * ref_sigmoid(gate[c]);
        }
    }
}

static void l2norm(struct kg_team *team, float *y, size_t y_stride, const float *x, size_t x_stride,
                   uint32_t rows, uint32_t heads, uint32_t dim, float eps, float scale)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t h = 0; h < heads; h++) {
            const float *in = x + r * x_stride + (size_t)h * dim;
            float inv = 1.0f / sqrtf(sum_squares(in, dim) + eps);

            for (uint32_t c = 0; c < dim; c++)
                y[r * y_stride + (size_t)h * dim + c] = in[c] * inv * scale;
        }
    }
}

static void add(struct kg_team *team, float *y, size_t y_stride, const float *a, size_t a_stride,
                const float *b, size_t b_stride, uint32_t rows, uint32_t cols)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++)
            y[r * y_stride + c] = a[r * a_stride + c] + b[r * b_stride + c];
}

static void sigmoid(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, uint32_t rows, uint32_t cols)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++)
            y[r * y_stride + c] = ref_sigmoid(x[r * x_stride + c]);
}

static void mul_sigmoid(struct kg_team *team, float *y, size_t y_stride, const float *x,
                        size_t x_stride, const float *z, size_t z_stride, uint32_t rows,
                        uint32_t cols)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++)
            y[r * y_stride + c] = x[r * x_stride + c] * ref_sigmoid(z[r * z_stride + c]);
}

static void act(struct kg_team *team, const struct kg_act_args *args, float *y, size_t y_stride,
                const float *a, size_t a_stride, const float *b, size_t b_stride, uint32_t rows,
                uint32_t cols)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++)
            y[r * y_stride + c] = ref_act(args, a[r * a_stride + c], b[r * b_stride + c]);
}

/* Best of those not picked yet; a NaN loses against every number. */
static uint32_t pick(const float *score, const float *bias, uint32_t experts, const uint32_t *ids,
                     uint32_t n)
{
    uint32_t best = KG_NONE;
    float top = 0.0f;

    for (uint32_t e = 0; e < experts; e++) {
        float choice = score[e] + (bias == NULL ? 0.0f : bias[e]);
        int taken = 0;

        for (uint32_t s = 0; s < n; s++)
            taken |= ids[s] == e;
        if (!taken && (best == KG_NONE || choice > top || (top != top && choice == choice))) {
            best = e;
            top = choice;
        }
    }
    return best;
}

static void route_row(uint32_t *ids, float *weights, const float *logits, const float *bias,
                      uint32_t experts, uint32_t top_k, float scale)
{
    float score[KG_ROUTE_MAX], sum = 0.0f;

    for (uint32_t e = 0; e < experts; e++)
        score[e] = ref_sigmoid(logits[e]);
    for (uint32_t s = 0; s < top_k; s++) {
        ids[s] = pick(score, bias, experts, ids, s);
        weights[s] = score[ids[s]];
        sum += weights[s];
    }
    for (uint32_t s = 0; s < top_k; s++)
        weights[s] = weights[s] / (sum + 1e-20f) * scale;
}

static void route(struct kg_team *team, uint32_t *ids, float *weights, const float *logits,
                  size_t logits_stride, const float *bias, uint32_t rows, uint32_t experts,
                  uint32_t top_k, float scale)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++)
        route_row(ids + (size_t)r * top_k, weights + (size_t)r * top_k, logits + r * logits_stride,
                  bias, experts, top_k, scale);
}

static void mix(struct kg_team *team, const struct kg_mix *a)
{
    (void)team;
    for (uint32_t r = 0; r < a->rows; r++) {
        float weight[KG_MIX_MAX], top = -INFINITY, sum = 0.0f;

        for (uint32_t s = 0; s < a->n_srcs; s++) {
            const float *src = a->srcs[s] + r * a->src_stride;
            float lane[16] = {0};

            dot16(lane, src, a->m, a->cols);
            weight[s] =
                join16(lane) * (1.0f / sqrtf(sum_squares(src, a->cols) / (float)a->cols + a->eps));
            top = weight[s] > top ? weight[s] : top;
        }
        for (uint32_t s = 0; s < a->n_srcs; s++) {
            weight[s] = ref_exp(weight[s] - top);
            sum += weight[s];
        }
        for (uint32_t s = 0; s < a->n_srcs; s++) {
            weight[s] = weight[s] / sum;
            if (a->weights != NULL)
                a->weights[(size_t)r * a->n_srcs + s] = weight[s];
        }
        for (uint32_t c = 0; c < a->cols; c++) {
            float v = weight[0] * a->srcs[0][r * a->src_stride + c];

            for (uint32_t s = 1; s < a->n_srcs; s++)
                v = fmaf(weight[s], a->srcs[s][r * a->src_stride + c], v);
            a->y[r * a->y_stride + c] = v;
        }
    }
}

static void row_stats(struct kg_team *team, struct kg_row_stats *stats, const float *x,
                      size_t x_stride, uint32_t rows, uint32_t cols)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++) {
        const float *in = x + r * x_stride;
        struct kg_row_stats st = {.max = in[0], .argmax = 0, .finite = 1};
        float lane[16] = {0};

        for (uint32_t c = 0; c < cols; c++) {
            if (!isfinite(in[c]))
                st.finite = 0;
            if (isnan(in[c]))
                st.max = NAN;
            if (in[c] > st.max) {
                st.max = in[c];
                st.argmax = c;
            }
        }
        if (isnan(st.max))
            st.argmax = 0;
        for (uint32_t c = 0; c < cols; c++)
            lane[c % 16] += ref_exp(in[c] - st.max);
        st.sum_exp = join16(lane);
        stats[r] = st;
    }
}

static void row_exp(struct kg_team *team, float *y, size_t y_stride, const float *x,
                    size_t x_stride, const float *shift, uint32_t rows, uint32_t cols)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++)
            y[r * y_stride + c] = ref_exp(x[r * x_stride + c] - (shift == NULL ? 0.0f : shift[r]));
}

static void rope(struct kg_team *team, float *x, size_t x_stride, uint32_t n, uint32_t width,
                 const float *cosines, const float *sines, uint32_t rows, uint32_t dim,
                 uint32_t interleave)
{
    uint32_t half = dim / 2;

    (void)team;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t v = 0; v < n; v++) {
            float *y = x + r * x_stride + (size_t)(v + 1) * width - dim;

            for (uint32_t i = 0; i < half; i++) {
                float *a = &y[interleave ? 2 * i : i], *b = &y[interleave ? 2 * i + 1 : i + half];
                float c = cosines[(size_t)r * half + i], s = sines[(size_t)r * half + i];
                float u = *a, w = *b;

                *a = u * c - w * s;
                *b = w * c + u * s;
            }
        }
    }
}

static void copy(struct kg_team *team, void *dst, size_t dst_stride, const void *src,
                 size_t src_stride, size_t row_bytes, uint32_t rows)
{
    (void)team;
    for (uint32_t r = 0; r < rows; r++)
        memcpy((char *)dst + r * dst_stride, (const char *)src + r * src_stride, row_bytes);
}

#define COMMON_OPS                                                                              \
    .size = sizeof(struct kg_kernels), .name = "ref", .embed = embed, .rmsnorm = rmsnorm,       \
    .rmsnorm_gated = rmsnorm_gated, .l2norm = l2norm, .add = add, .sigmoid = sigmoid,           \
    .mul_sigmoid = mul_sigmoid, .act = act, .kda_gate = ref_kda_gate, .kda = ref_kda,           \
    .kda_replay = ref_kda_replay, .page_write = ref_page_write, .mla = ref_mla, .route = route, \
    .mix = mix, .row_stats = row_stats, .row_exp = row_exp, .rope = rope, .copy = copy

static const struct kg_kernels tables[] = {
    [KG_MATH_EXACT] = {COMMON_OPS, .math = KG_MATH_EXACT, .state_dtype = KG_F32,
                       .product = ref_product_exact, .moe = ref_moe_exact, .conv = ref_conv_f32},
    [KG_MATH_FAST] = {COMMON_OPS, .math = KG_MATH_FAST, .state_dtype = KG_BF16,
                      .product = ref_product_fast, .moe = ref_moe_fast, .conv = ref_conv_bf16},
};

const struct kg_kernels *kg_kernels_ref(enum kg_math math)
{
    return &tables[math == KG_MATH_FAST ? KG_MATH_FAST : KG_MATH_EXACT];
}
