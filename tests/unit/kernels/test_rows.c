#include "kit.h"

#include <float.h>

static const uint32_t odd_sizes[] = {1, 15, 16, 17, 31, 33, 127, 300};
#define N_SIZES (sizeof(odd_sizes) / sizeof(odd_sizes[0]))
#define ROWS 7

static double sig(double x)
{
    return 1 / (1 + exp(-x));
}

/* One operation under one roof: inputs a, b (rows, cols), w (cols), output y (rows, cols). */
enum op {
    RMS,
    RMS_ONES,
    GATED,
    L2,
    ADD,
    SIGMOID,
    MUL_SIGMOID,
    SWIGLU,
    SITU,
    GATE_SP,
    GATE_SIG,
    EXP,
    N_OPS
};

struct input {
    float *a, *b, *w, *heads;
    size_t stride;
    uint32_t cols, n_heads;
};

static void run(const struct kg_kernels *k, struct kg_team *team, enum op op,
                const struct input *in, float *y, const float *a, const float *b, uint32_t rows)
{
    static const struct kg_act_args swiglu = {.act = KG_ACT_SWIGLU};
    static const struct kg_act_args situ = {KG_ACT_SITU, 4, 25};
    size_t st = in->stride;
    uint32_t c = in->cols, h = in->n_heads, d = in->cols / in->n_heads;

    switch (op) {
    case RMS:
        k->rmsnorm(team, y, st, a, st, in->w, rows, c, 1e-5f);
        break;
    case RMS_ONES:
        k->rmsnorm(team, y, st, a, st, NULL, rows, c, 1e-5f);
        break;
    case GATED:
        k->rmsnorm_gated(team, y, st, a, st, b, st, in->w, rows, h, d, 1e-5f);
        break;
    case L2:
        k->l2norm(team, y, st, a, st, rows, h, d, 1e-6f, 0.125f);
        break;
    case ADD:
        k->add(team, y, st, a, st, b, st, rows, c);
        break;
    case SIGMOID:
        k->sigmoid(team, y, st, a, st, rows, c);
        break;
    case MUL_SIGMOID:
        k->mul_sigmoid(team, y, st, a, st, b, st, rows, c);
        break;
    case SWIGLU:
        k->act(team, &swiglu, y, st, a, st, b, st, rows, c);
        break;
    case SITU:
        k->act(team, &situ, y, st, a, st, b, st, rows, c);
        break;
    case GATE_SP:
        k->kda_gate(team, y, st, a, st, in->heads, in->w, rows, h, d, KG_GATE_SOFTPLUS, 0);
        break;
    case GATE_SIG:
        k->kda_gate(team, y, st, a, st, in->heads, in->w, rows, h, d, KG_GATE_SIGMOID, -5);
        break;
    default:
        k->row_exp(team, y, st, a, st, in->w, rows, c);
    }
}

static double mean_square(const float *x, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sum / n;
}

static double want(enum op op, const struct input *in, uint32_t r, uint32_t c)
{
    const float *row = in->a + r * in->stride;
    uint32_t d = in->cols / in->n_heads, h = c / d;
    double a = row[c], b = in->b[r * in->stride + c], w = in->w[c];
    double rate = exp((double)in->heads[h]);

    switch (op) {
    case RMS:
        return a / sqrt(mean_square(row, in->cols) + 1e-5) * w;
    case RMS_ONES:
        return a / sqrt(mean_square(row, in->cols) + 1e-5);
    case GATED:
        return a / sqrt(mean_square(row + h * d, d) + 1e-5) * in->w[c % d] * sig(b);
    case L2:
        return a / sqrt(mean_square(row + h * d, d) * d + 1e-6) * 0.125;
    case ADD:
        return a + b;
    case SIGMOID:
        return sig(a);
    case MUL_SIGMOID:
        return a * sig(b);
    case SWIGLU:
        return a * sig(a) * b;
    case SITU:
        return 4 * tanh(a / 4) * sig(a) * 25 * tanh(b / 25);
    case GATE_SP:
        return exp(-rate * (a + w > 20 ? a + w : log1p(exp(a + w))));
    case GATE_SIG:
        return exp(-5 * sig(rate * (a + w)));
    default:
        return exp(a - in->w[r]);
    }
}

static struct input make_input(uint64_t *s, uint32_t cols, uint32_t n_heads, float scale)
{
    struct input in = {.cols = cols, .n_heads = n_heads, .stride = cols + 3};

    in.a = random_f(s, ROWS * in.stride, scale);
    in.b = random_f(s, ROWS * in.stride, scale);
    in.w = random_f(s, cols + ROWS, 2);
    in.heads = random_f(s, n_heads, 1);
    return in;
}

static void drop_input(struct input *in)
{
    free(in->a);
    free(in->b);
    free(in->w);
    free(in->heads);
}

static void row_operations_match_double(void **state)
{
    uint64_t s = 21;

    (void)state;
    for (size_t n = 0; n < N_SIZES; n++) {
        for (uint32_t heads = 1; heads <= 3; heads += 2) {
            for (float scale = 0.01f; scale < 1000; scale *= 30) {
                struct input in = make_input(&s, odd_sizes[n] * heads, heads, scale);
                float *y = take_f(ROWS * in.stride);

                for (EACH_TABLE(t)) {
                    for (int op = 0; op < N_OPS; op++) {
                        if (op == EXP && scale > 50)
                            continue;
                        memset(y, 0xff, ROWS * in.stride * sizeof(float));
                        run(t.k, NULL, op, &in, y, in.a, in.b, ROWS);
                        for (uint32_t r = 0; r < ROWS; r++) {
                            for (uint32_t c = 0; c < in.cols; c++) {
                                char what[64];

                                snprintf(what, sizeof(what), "%s op %d", t.k->name, op);
                                near(what, y[r * in.stride + c], want(op, &in, r, c), 3e-6);
                            }
                            assert_true(isnan(y[r * in.stride + in.cols]));
                        }
                    }
                }
                free(y);
                drop_input(&in);
            }
        }
    }
}

static void row_operations_have_equal_bits_on_every_set_rows_threads_and_in_place(void **state)
{
    uint64_t s = 22;
    struct kg_team *team;

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (size_t n = 0; n < N_SIZES; n++) {
        struct input in = make_input(&s, odd_sizes[n] * 3, 3, 6);
        size_t all = ROWS * in.stride;
        float *base = take_f(all), *y = take_f(all);

        for (int op = 0; op < N_OPS; op++) {
            run(kg_kernels_ref(KG_MATH_EXACT), NULL, op, &in, base, in.a, in.b, ROWS);
            for (EACH_TABLE(t)) {
                memset(y, 0xff, all * sizeof(float));
                run(t.k, team, op, &in, y, in.a, in.b, ROWS);
                same_bits(t.k->name, y, base, all);
                memcpy(y, in.a, all * sizeof(float));
                run(t.k, NULL, op, &in, y, y, in.b, ROWS);
                for (uint32_t r = 0; r < ROWS; r++)
                    same_bits("y is x", y + r * in.stride, base + r * in.stride, in.cols);
                struct input last = in; /* the last row alone; EXP has one shift per row */
                last.w = op == EXP ? in.w + ROWS - 1 : in.w;
                run(t.k, NULL, op, &last, y, in.a + (ROWS - 1) * in.stride,
                    in.b + (ROWS - 1) * in.stride, 1);
                same_bits("last row alone", y, base + (ROWS - 1) * in.stride, in.cols);
            }
        }
        free(base);
        free(y);
        drop_input(&in);
    }
    kg_team_destroy(team);
}

/* One float in some ten thousand, all signs and exponents: exp within 2 units in the last place,
 * and each function the bits of plain C. */
static void exp_is_right_over_its_whole_range(void **state)
{
    struct kg_act_args situ = {KG_ACT_SITU, 4, 25};
    const struct kg_kernels *ref = kg_kernels_ref(KG_MATH_EXACT);
    float zero = 0;

    (void)state;
    for (EACH_TABLE(t)) {
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 1009 * 37) {
            uint32_t b = (uint32_t)bits;
            float x, y, r;

            memcpy(&x, &b, sizeof(x));
            ref->row_exp(NULL, &r, 1, &x, 1, NULL, 1, 1);
            t.k->row_exp(NULL, &y, 1, &x, 1, NULL, 1, 1);
            same_bits("exp", &y, &r, 1);
            double w = exp((double)x);
            if (isnan(x))
                assert_true(isnan(y));
            else if (w > FLT_MAX)
                assert_true(isinf(y) || y > 3.40282e38f);
            else if (w < 1.1754944e-38)
                assert_true(y == 0 || y < 1.1755e-38f);
            else if (!(fabs(y - w) <= 2 * w * 0x1p-23))
                fail_msg("exp(%.9g) = %.9g, want %.9g", (double)x, (double)y, w);
            ref->act(NULL, &situ, &r, 1, &x, 1, &x, 1, 1, 1);
            t.k->act(NULL, &situ, &y, 1, &x, 1, &x, 1, 1, 1);
            same_bits("situ", &y, &r, 1);
            ref->kda_gate(NULL, &r, 1, &x, 1, &zero, &zero, 1, 1, 1, KG_GATE_SOFTPLUS, 0);
            t.k->kda_gate(NULL, &y, 1, &x, 1, &zero, &zero, 1, 1, 1, KG_GATE_SOFTPLUS, 0);
            same_bits("gate", &y, &r, 1);
        }
    }
}

/* A third of a million arguments in the range in use: every fused step shows. */
static void transcendental_functions_have_the_bits_of_plain_c(void **state)
{
    const uint32_t n = 333333;
    uint64_t s = 26;
    float *x = random_f(&s, n, 25), *one = take_f(n), *zero = take_f(n), *y = take_f(n);
    float *want_exp = take_f(n), *want_act = take_f(n), *want_gate = take_f(n);
    struct kg_act_args situ = {KG_ACT_SITU, 4, 25};

    (void)state;
    for (uint32_t i = 0; i < n; i++)
        zero[i] = 0;
    for (uint32_t i = 0; i < n; i++)
        one[i] = 1;
    for (EACH_TABLE(t)) {
        int ref = t.i == 1;

        t.k->row_exp(NULL, ref ? want_exp : y, n, x, n, NULL, 1, n);
        if (!ref)
            same_bits("exp", y, want_exp, n);
        t.k->act(NULL, &situ, ref ? want_act : y, n, x, n, one, n, 1, n);
        if (!ref)
            same_bits("situ", y, want_act, n);
        t.k->kda_gate(NULL, ref ? want_gate : y, n, x, n, zero, zero, 1, 1, n, KG_GATE_SOFTPLUS, 0);
        if (!ref)
            same_bits("gate", y, want_gate, n);
    }
    free(x);
    free(one);
    free(zero);
    free(y);
    free(want_exp);
    free(want_act);
    free(want_gate);
}

static void small_and_large_arguments_keep_their_precision(void **state)
{
    static const float xs[] = {1e-6f, 1e-3f, 0.6249f, 0.6251f, 3, 20, 90, 1e4f};
    struct kg_act_args situ = {KG_ACT_SITU, 1, 1};

    (void)state;
    for (EACH_TABLE(t)) {
        for (size_t i = 0; i < sizeof(xs) / sizeof(xs[0]); i++) {
            for (float sign = -1; sign <= 1; sign += 2) {
                float a = 30, b = xs[i] * sign, y, zero = 0, f = b;
                double w = tanh(30.0) * sig(30) * tanh(b);

                t.k->act(NULL, &situ, &y, 1, &a, 1, &b, 1, 1, 1); /* about tanh(b) */
                if (!(fabs(y - w) <= 4e-7 * fabs(w)))
                    fail_msg("tanh(%g) = %.9g, want %.9g", (double)b, (double)y, w);
                t.k->kda_gate(NULL, &y, 1, &f, 1, &zero, &zero, 1, 1, 1, KG_GATE_SOFTPLUS, 0);
                w = exp(-(f > 20 ? f : log1p(exp(f))));
                near("softplus gate", y, w, 5e-7);
            }
        }
    }
}

static void embedding_copies_and_widens(void **state)
{
    uint64_t s = 23;
    float *table = random_f(&s, 9 * 33, 1), y[3 * 40];
    uint16_t half[9 * 33];
    uint32_t ids[3] = {8, 0, 8};

    (void)state;
    for (int i = 0; i < 9 * 33; i++)
        half[i] = kg_bf16_from_f32(table[i]);
    for (EACH_TABLE(t)) {
        t.k->embed(NULL, y, 40, table, KG_F32, 33, ids, 3);
        for (int r = 0; r < 3; r++)
            same_bits("f32", y + r * 40, table + ids[r] * 33, 33);
        t.k->embed(NULL, y, 40, half, KG_BF16, 33, ids, 3);
        for (int r = 0; r < 3; r++)
            for (int c = 0; c < 33; c++)
                assert_true(y[r * 40 + c] == kg_f32_from_bf16(half[ids[r] * 33 + c]));
    }
    free(table);
}

static void copy_moves_rows_and_nothing_between_them(void **state)
{
    static const struct {
        size_t bytes, dst, src;
        uint32_t rows;
    } cases[] = {
        {1, 1, 1, 1}, {33, 40, 37, 70}, {64, 64, 128, 3}, {4096, 5000, 4096, 700}, {9, 9, 9, 0}};
    struct kg_team *team;
    uint64_t s = 27;

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n_src = cases[i].src * cases[i].rows, n_dst = cases[i].dst * cases[i].rows;
        uint8_t *src = take(n_src), *dst = take(n_dst);

        for (size_t b = 0; b < n_src; b++)
            src[b] = (uint8_t)(rnd(&s) % 255); /* never what `take` fills with */
        for (EACH_TABLE(t)) {
            memset(dst, 0xff, n_dst);
            t.k->copy(team, dst, cases[i].dst, src, cases[i].src, cases[i].bytes, cases[i].rows);
            for (size_t b = 0; b < n_dst; b++) {
                size_t r = b / cases[i].dst, c = b % cases[i].dst;

                assert_int_equal(dst[b], c < cases[i].bytes ? src[r * cases[i].src + c] : 0xff);
            }
        }
        free(src);
        free(dst);
    }
    kg_team_destroy(team);
}

/* Against a product of complex numbers in double; what is not of the last `dim` values stays. */
static void rope_turns_pairs_and_nothing_else(void **state)
{
    static const uint32_t cases[][5] = {/* rows, vectors, width, dim, interleaved */
                                        {1, 1, 2, 2, 0},    {3, 1, 80, 16, 0}, {5, 3, 24, 24, 1},
                                        {70, 4, 48, 16, 0}, {9, 6, 19, 8, 1},  {0, 2, 8, 4, 0}};
    struct kg_team *team;
    uint64_t s = 28;

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t rows = cases[i][0], n = cases[i][1], width = cases[i][2], dim = cases[i][3];
        uint32_t half = dim / 2, inter = cases[i][4];
        size_t stride = (size_t)n * width + 3, all = rows * stride;
        float *x = random_f(&s, all + 1, 2), *first = take_f(all + 1), *y = take_f(all + 1);
        float *c = take_f(rows * half + 1), *si = take_f(rows * half + 1);

        for (size_t k = 0; k < (size_t)rows * half; k++) {
            c[k] = cosf((float)k);
            si[k] = sinf((float)k);
        }
        for (EACH_TABLE(t)) {
            memcpy(y, x, all * sizeof(*y));
            t.k->rope(team, y, stride, n, width, c, si, rows, dim, inter);
            for (size_t at = 0; at < all; at++) {
                size_t r = at / stride, in_row = at % stride, v = in_row % width;
                if (in_row >= (size_t)n * width || v < width - dim) {
                    assert_true(y[at] == x[at]);
                    continue;
                }
                uint32_t e = (uint32_t)(v - (width - dim));
                uint32_t pair = inter ? e / 2 : e % half, second = inter ? e % 2 : e >= half;
                size_t far = inter ? 1 : half, a = second ? at - far : at, b = a + far;
                double co = c[r * half + pair], sn = si[r * half + pair];
                double want = second ? x[b] * co + x[a] * sn : x[a] * co - x[b] * sn;
                assert_true(fabs(y[at] - want) <= 1e-6);
            }
            if (t.k == kg_kernels_ref(t.k->math) && t.k->math == KG_MATH_EXACT)
                memcpy(first, y, all * sizeof(*y));
        }
        for (EACH_TABLE(t)) {
            memcpy(y, x, all * sizeof(*y));
            t.k->rope(NULL, y, stride, n, width, c, si, rows, dim, inter);
            same_bits(t.k->name, y, first, all);
        }
        free(x);
        free(first);
        free(y);
        free(c);
        free(si);
    }
    kg_team_destroy(team);
}

static void mix_is_the_softmax_of_normed_scores(void **state)
{
    uint64_t s = 24;

    (void)state;
    for (size_t n = 0; n < N_SIZES; n++) {
        for (uint32_t srcs = 1; srcs <= 9; srcs += 4) {
            uint32_t cols = odd_sizes[n];
            size_t stride = cols + 2;
            float *src[9], *m = random_f(&s, cols, 2), *base = take_f(ROWS * stride);
            float weights[ROWS * 9], first[ROWS * 9];

            for (uint32_t i = 0; i < srcs; i++)
                src[i] = random_f(&s, ROWS * stride, 1 + (float)i);
            struct kg_mix a = {
                (const float *const *)src, m, base, first, stride, stride, srcs, ROWS, cols, 1e-5f};
            kg_kernels_ref(KG_MATH_EXACT)->mix(NULL, &a);
            for (EACH_TABLE(t)) {
                float *y = take_f(ROWS * stride);

                a.y = y;
                a.weights = weights;
                t.k->mix(NULL, &a);
                same_bits("mix", y, base, ROWS * stride);
                same_bits("mix weights", weights, first, ROWS * srcs);
                free(y);
            }
            for (uint32_t r = 0; r < ROWS; r++) {
                double score[9], sum = 0;

                for (uint32_t i = 0; i < srcs; i++) {
                    const float *x = src[i] + r * stride;

                    score[i] = 0;
                    for (uint32_t c = 0; c < cols; c++)
                        score[i] += x[c] / sqrt(mean_square(x, cols) + 1e-5) * m[c];
                    sum += exp(score[i]);
                }
                for (uint32_t c = 0; c < cols; c++) {
                    double w = 0;

                    for (uint32_t i = 0; i < srcs; i++)
                        w += exp(score[i]) / sum * src[i][r * stride + c];
                    near("mix", base[r * stride + c], w, 5e-5);
                }
            }
            for (uint32_t i = 0; i < srcs; i++)
                free(src[i]);
            free(m);
            free(base);
        }
    }
}

static void row_stats_find_max_first_index_sum_and_bad_values(void **state)
{
    uint64_t s = 25;

    (void)state;
    for (size_t n = 0; n < N_SIZES; n++) {
        uint32_t cols = odd_sizes[n];
        float *x = random_f(&s, 3 * cols, 10);
        struct kg_row_stats ref[3], st[3];

        for (uint32_t c = 0; c < cols; c++)
            x[cols + c] = x[cols + c] > 0 ? -1.0f : -2.0f; /* ties, all negative */
        x[2 * cols + cols / 2] = 99;
        x[2 * cols + cols - 1] = 99;
        kg_kernels_ref(KG_MATH_EXACT)->row_stats(NULL, ref, x, cols, 3, cols);
        for (EACH_TABLE(t)) {
            t.k->row_stats(NULL, st, x, cols, 3, cols);
            assert_memory_equal(st, ref, sizeof(st));
            for (uint32_t r = 0; r < 3; r++) {
                uint32_t best = 0;
                double sum = 0;

                for (uint32_t c = 1; c < cols; c++)
                    best = x[r * cols + c] > x[r * cols + best] ? c : best;
                for (uint32_t c = 0; c < cols; c++)
                    sum += exp((double)x[r * cols + c] - x[r * cols + best]);
                assert_int_equal(st[r].argmax, best);
                assert_true(st[r].max == x[r * cols + best]);
                near("sum_exp", st[r].sum_exp, sum, 1e-5);
                assert_int_equal(st[r].finite, 1);
            }
        }
        for (EACH_TABLE(t)) {
            float keep = x[cols - 1];

            x[cols - 1] = NAN;
            t.k->row_stats(NULL, st, x, cols, 2, cols);
            assert_true(isnan(st[0].max) && st[0].argmax == 0 && st[0].finite == 0);
            assert_int_equal(st[1].finite, 1);
            x[cols - 1] = -INFINITY;
            t.k->row_stats(NULL, st, x, cols, 1, cols);
            assert_int_equal(st[0].finite, 0);
            x[cols - 1] = INFINITY;
            t.k->row_stats(NULL, st, x, cols, 1, cols);
            assert_true(isinf(st[0].max) && st[0].argmax == cols - 1 && st[0].finite == 0);
            x[cols - 1] = keep;
        }
        free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_operations_match_double),
        cmocka_unit_test(row_operations_have_equal_bits_on_every_set_rows_threads_and_in_place),
        cmocka_unit_test(exp_is_right_over_its_whole_range),
        cmocka_unit_test(transcendental_functions_have_the_bits_of_plain_c),
        cmocka_unit_test(small_and_large_arguments_keep_their_precision),
        cmocka_unit_test(embedding_copies_and_widens),
        cmocka_unit_test(copy_moves_rows_and_nothing_between_them),
        cmocka_unit_test(rope_turns_pairs_and_nothing_else),
        cmocka_unit_test(mix_is_the_softmax_of_normed_scores),
        cmocka_unit_test(row_stats_find_max_first_index_sum_and_bad_values),
    };

    return cmocka_run_group_tests(tests, say_skipped, NULL);
}
