/*
 * Narrow weights: fp16 in both directions, what narrowing keeps, and products with them. Tables
 * that prepare weights are compared with plain C, which takes them, too, to the bit.
 */
#include "kit.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static struct matrix narrow(uint64_t *s, uint32_t out, uint32_t in)
{
    struct matrix m = random_matrix(s, KG_W_BF16, out, in);

    assert_true(kg_weight_narrow(&m.w));
    for (uint32_t o = 0; o < out; o++)
        for (uint32_t i = 0; i < in; i++)
            m.plain[(size_t)o * in + i] = kg_weight_at(&m.w, o, i);
    return m;
}

/* The table that prepares weights; NULL, and said, where this CPU has none. */
static const struct kg_kernels *preparing(void)
{
    const struct kg_kernels *k = kg_kernels_best(KG_MATH_FAST);

    if (k->prepare == NULL)
        print_message("skipped: no table of this CPU prepares weights\n");
    return k->prepare == NULL ? NULL : k;
}

static void product(const struct kg_kernels *k, struct kg_team *team, const struct kg_weight *w,
                    const float *x, size_t xs, float *y, size_t ys, uint32_t rows)
{
    struct kg_product p = {.w = w, .x = x, .y = y, .x_stride = xs, .y_stride = ys, .rows = rows};

    k->product(team, &p, 1);
}

/* ---- fp16 ------------------------------------------------------------------------------------ */

static void every_code_comes_back(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 65536; code++) {
        float v = kg_f32_from_f16((uint16_t)code);

        if ((code & 0x7fff) > 0x7c00)
            assert_true(isnan(v) && isnan(kg_f32_from_f16(kg_f16_from_f64(v))));
        else
            assert_int_equal(kg_f16_from_f64(v), code);
    }
    assert_true(kg_f32_from_f16(0x3c00) == 1 && kg_f32_from_f16(0xc000) == -2);
    assert_true(kg_f32_from_f16(1) == 0x1p-24f && kg_f32_from_f16(0x7bff) == 65504);
    assert_true(isinf(kg_f32_from_f16(0x7c00)));
}

/* Between every two neighbours: just below, at and just above the middle. */
static void the_middle_goes_to_even(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x7bff; code++) {
        double a = kg_f32_from_f16((uint16_t)code), b = kg_f32_from_f16((uint16_t)(code + 1));
        double middle = (a + b) / 2;

        assert_int_equal(kg_f16_from_f64(middle), code + (code & 1));
        assert_int_equal(kg_f16_from_f64(nextafter(middle, 0)), code);
        assert_int_equal(kg_f16_from_f64(-nextafter(middle, 1e9)), 0x8000 | (code + 1));
    }
    assert_int_equal(kg_f16_from_f64(nextafter(65520, 0)), 0x7bff);
    assert_int_equal(kg_f16_from_f64(65520), 0x7c00);
    assert_int_equal(kg_f16_from_f64(-1e300), 0xfc00);
    assert_int_equal(kg_f16_from_f64(0x1p-25), 0);
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) static uint16_t of_the_cpu(float x)
{
    return (uint16_t)_mm_extract_epi16(
        _mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), 0);
}

static int cpu_rounds(void)
{
    return __builtin_cpu_supports("avx2"); /* such a CPU has the instruction */
}
#else
static uint16_t of_the_cpu(float x)
{
    return kg_f16_from_f64(x);
}

static int cpu_rounds(void)
{
    return 0;
}
#endif

static void rounding_is_that_of_the_cpu(void **state)
{
    uint64_t s = 61;

    (void)state;
    if (!cpu_rounds()) {
        print_message("skipped: this CPU has no conversion\n");
        skip();
    }
    for (int n = 0; n < 300000; n++) {
        uint32_t bits = (uint32_t)rnd(&s) & 0x80ffffffu;
        float x;

        bits |= (uint32_t)(100 + rnd(&s) % 45) << 23; /* 2^-27 .. 2^17 */
        memcpy(&x, &bits, sizeof(x));
        assert_int_equal(kg_f16_from_f64(x), of_the_cpu(x));
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Magnitudes from the largest down to 2^-40 of it. */
static void narrowing_keeps_what_it_says(void **state)
{
    static const float tops[] = {0.37f, 1.0f, 255.0f, 0x1.8p-20f, 0x1p-60f};
    uint64_t s = 62;

    (void)state;
    for (size_t n = 0; n < 5; n++) {
        struct matrix m = random_matrix(&s, KG_W_BF16, 37, 101);

        for (uint32_t i = 0; i < 37 * 101; i++)
            m.plain[i] = ldexpf(m.plain[i], -(int)(rnd(&s) % 40)) * tops[n];
        m.plain[77] = tops[n];
        assert_int_equal(kg_weight_fill(&m.w, 0, 0, 37, 101, KG_F32, m.plain, 101), KG_OK);
        struct kg_weight bf16 = m.w;
        bf16.data = take(m.w.bytes);
        memcpy(bf16.data, m.w.data, m.w.bytes);
        assert_true(kg_weight_narrow(&m.w));
        assert_int_equal(m.w.type, KG_W_E4M7);
        assert_int_equal(m.w.bytes, bf16.bytes / 4 * 3);
        assert_int_equal(m.w.bytes, kg_weight_bytes(KG_W_E4M7, 37, 101));
        float top = ldexpf(kg_weight_at(&bf16, 0, 77), -m.w.shift);
        assert_true(top >= 1 && top < 2);
        for (uint32_t o = 0; o < 37; o++) {
            for (uint32_t i = 0; i < 101; i++) {
                double was = kg_weight_at(&bf16, o, i), is = kg_weight_at(&m.w, o, i);
                double share = fabs(was) / ldexp(1, m.w.shift);

                if (share >= 0x1p-14 && was != is)
                    fail_msg("%.9g became %.9g, largest %.9g", was, is, (double)tops[n]);
                assert_true(fabs(was - is) <= ldexp(0x1p-22, m.w.shift));
            }
        }
        free(bf16.data);
        drop_matrix(&m);
    }
}

static void what_cannot_be_narrow_stays_as_it_is(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 256.0f, 3e38f};
    uint64_t s = 63;
    const struct kg_kernels *k = kg_kernels_best(KG_MATH_FAST);

    (void)state;
    for (uint32_t n = 0; n < 8; n++) {
        struct matrix m = random_matrix(&s, n == 7 ? KG_W_F32 : KG_W_BF16, 33, 65);

        if (n < 5)
            m.plain[1000] = bad[n];
        for (uint32_t i = 0; i < 33 * 65 && (n == 5 || n == 6); i++)
            m.plain[i] = n == 5 ? 0 : 0x1p-62f;
        assert_int_equal(kg_weight_fill(&m.w, 0, 0, 33, 65, KG_F32, m.plain, 65), KG_OK);
        uint32_t type = m.w.type;
        void *was = take(m.w.bytes);
        memcpy(was, m.w.data, m.w.bytes);
        assert_false(kg_weight_narrow(&m.w));
        if (k->prepare != NULL)
            k->prepare(NULL, &m.w);
        assert_int_equal(m.w.type, type);
        assert_int_equal(m.w.shift, 0);
        assert_memory_equal(was, m.w.data, m.w.bytes);
        free(was);
        drop_matrix(&m);
    }
}

static void prepare_is_narrowing_by_the_team(void **state)
{
    static const uint32_t dims[][2] = {{1, 1}, {17, 33}, {40, 96}, {300, 1537}, {16, 40000}};
    const struct kg_kernels *k = preparing();
    uint64_t s = 64;
    struct kg_team *team;

    (void)state;
    if (k == NULL)
        skip();
    assert_int_equal(kg_team_create(3, &team, NULL), KG_OK);
    for (size_t n = 0; n < 5; n++) {
        struct matrix m = random_matrix(&s, KG_W_BF16, dims[n][0], dims[n][1]);
        struct kg_weight w = m.w;

        w.data = take(w.bytes);
        memcpy(w.data, m.w.data, w.bytes);
        assert_true(kg_weight_narrow(&m.w));
        k->prepare(team, &w);
        assert_int_equal(w.type, KG_W_E4M7);
        assert_int_equal(w.shift, m.w.shift);
        assert_memory_equal(w.data, m.w.data, w.bytes);
        free(w.data);
        drop_matrix(&m);
    }
    kg_team_destroy(team);
}

/* ---- products -------------------------------------------------------------------------------- */

/* Rows of every kind: plain, zero, tiny, huge, of magnitudes far apart, with an outlier, infinite,
 * NaN. */
static void odd_row(uint64_t *s, float *x, uint32_t n, uint32_t kind)
{
    static const float scales[] = {1, 0, 0x1p-130f, 0x1p120f, 1, 1, 1, 1, 0x1p-60f};

    for (uint32_t i = 0; i < n; i++)
        x[i] = rnd_f(s) * scales[kind % 9];
    for (uint32_t i = 0; kind % 9 == 4 && i < n; i++)
        x[i] = ldexpf(x[i], (int)(rnd(s) % 60) - 30);
    if (kind % 9 == 5)
        x[rnd(s) % n] = 70000;
    if (kind % 9 == 6)
        x[rnd(s) % n] = -INFINITY;
    if (kind % 9 == 7)
        x[rnd(s) % n] = NAN;
}

static void products_have_the_bits_of_plain_c(void **state)
{
    static const uint32_t ins[] = {1,   2,   15,  31,  63,  64,  65,  127,  128,
                                   129, 255, 256, 257, 300, 511, 513, 2049, 2305};
    static const uint32_t outs[] = {1, 16, 33, 63, 64, 127};
    const struct kg_kernels *k = preparing(), *ref = kg_kernels_ref(KG_MATH_FAST);
    uint64_t s = 65;

    (void)state;
    if (k == NULL)
        skip();
    for (size_t n = 0; n < 18 * 2; n++) {
        uint32_t in = ins[n / 2], out = outs[n % 6], rows = 1 + (uint32_t)(rnd(&s) % 30);
        struct matrix m = narrow(&s, out, in);
        float *x = take_f((size_t)rows * in), *y = take_f((size_t)rows * out),
              *want = take_f((size_t)rows * out);

        for (uint32_t r = 0; r < rows; r++)
            odd_row(&s, x + (size_t)r * in, in, r);
        product(ref, NULL, &m.w, x, in, want, out, rows);
        product(k, NULL, &m.w, x, in, y, out, rows);
        same_bits("narrow weights", y, want, (size_t)rows * out);
        free(x);
        free(y);
        free(want);
        drop_matrix(&m);
    }
}

/* Rows 1, any run of rows and all of several panels, by one thread and by two. */
static void a_row_does_not_depend_on_batch_or_threads(void **state)
{
    static const uint32_t shapes[][2] = {{192, 192}, {33, 1025}, {333, 544}, {96, 4608}};
    const struct kg_kernels *k = preparing();
    uint64_t s = 66;
    struct kg_team *team;

    (void)state;
    if (k == NULL)
        skip();
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (size_t n = 0; n < 4; n++) {
        uint32_t out = shapes[n][0], in = shapes[n][1], rows = 139;
        struct matrix m = narrow(&s, out, in);
        float *x = random_f(&s, (size_t)rows * in, 1);
        float *one = take_f((size_t)rows * out), *y = take_f((size_t)rows * out);

        for (uint32_t r = 0; r < rows; r++)
            product(k, NULL, &m.w, x + (size_t)r * in, in, one + (size_t)r * out, out, 1);
        product(k, team, &m.w, x, in, y, out, rows);
        same_bits("all rows, 2 threads", y, one, (size_t)rows * out);
        for (uint32_t r = 0, run = 1; r < rows; r += run, run = run % 31 + 1) {
            run = run > rows - r ? rows - r : run;
            product(k, team, &m.w, x + (size_t)r * in, in, y + (size_t)r * out, out, run);
        }
        same_bits("runs of rows", y, one, (size_t)rows * out);
        free(x);
        free(one);
        free(y);
        drop_matrix(&m);
    }
    kg_team_destroy(team);
}

/* Squares of errors against double, of bf16 products and of narrow ones; the worst narrow error as
 * a share of the sum of magnitudes. */
static double lost(uint64_t *s, int one_sign, double wrong[2])
{
    const struct kg_kernels *k = kg_kernels_ref(KG_MATH_FAST);
    uint32_t out = 64, in = 1024, rows = 6;
    struct matrix bf16 = random_matrix(s, KG_W_BF16, out, in), thin = bf16;
    float *x = random_f(s, (size_t)rows * in, 2), *y = take_f((size_t)2 * rows * out);
    double worst = 0;

    for (uint32_t i = 0; one_sign && i < out * in; i++)
        bf16.plain[i] = fabsf(bf16.plain[i]);
    for (uint32_t i = 0; one_sign && i < rows * in; i++)
        x[i] = fabsf(x[i]);
    assert_int_equal(kg_weight_fill(&bf16.w, 0, 0, out, in, KG_F32, bf16.plain, in), KG_OK);
    thin.w.data = take(bf16.w.bytes);
    memcpy(thin.w.data, bf16.w.data, bf16.w.bytes);
    assert_true(kg_weight_narrow(&thin.w));
    product(k, NULL, &bf16.w, x, in, y, out, rows);
    product(k, NULL, &thin.w, x, in, y + (size_t)rows * out, out, rows);
    wrong[0] = wrong[1] = 0;
    for (uint32_t n = 0; n < rows * out; n++) {
        double want = 0, size = 0;

        for (uint32_t i = 0; i < in; i++) {
            double term = (double)x[n / out * in + i] * bf16.plain[n % out * in + i];

            want += term;
            size += fabs(term);
        }
        for (uint32_t f = 0; f < 2; f++) {
            double d = y[f * rows * out + n] - want;

            wrong[f] += d * d;
            worst = f == 1 && fabs(d) / size > worst ? fabs(d) / size : worst;
        }
    }
    free(thin.w.data);
    free(x);
    free(y);
    drop_matrix(&bf16);
    return worst;
}

static void narrow_products_lose_what_is_said(void **state)
{
    uint64_t s = 67;
    double wrong[2];

    (void)state;
    for (int one_sign = 0; one_sign < 2; one_sign++) {
        double worst = lost(&s, one_sign, wrong), ratio = sqrt(wrong[1] / wrong[0]);

        assert_true(wrong[1] > 0);
        if (ratio >= (one_sign ? 2.5 : 1))
            fail_msg("one sign %d: %.2f times the error of bf16", one_sign, ratio);
        assert_true(worst <
                    33 * 0x1p-11); /* 32 steps and the rounding of x, half a last place each */
    }
}

/* Everything as large as it may be and of one sign: a chain ends at half of what fp16 can hold. */
static void sums_do_not_overflow(void **state)
{
    uint32_t in = 1024;
    float *x = take_f(in), *plain = take_f((size_t)16 * in), y[16];
    const struct kg_kernels *tables[2] = {kg_kernels_ref(KG_MATH_FAST),
                                          kg_kernels_best(KG_MATH_FAST)};
    struct kg_weight w;

    (void)state;
    assert_int_equal(
        kg_weight_init(&w, KG_W_BF16, 16, in, take(kg_weight_bytes(KG_W_BF16, 16, in))), KG_OK);
    for (uint32_t i = 0; i < in; i++) {
        x[i] = nextafterf(0x1p30f, 0);
        for (uint32_t o = 0; o < 16; o++)
            plain[o * in + i] = 255;
    }
    assert_int_equal(kg_weight_fill(&w, 0, 0, 16, in, KG_F32, plain, in), KG_OK);
    assert_true(kg_weight_narrow(&w));
    for (int n = 0; n < (tables[1]->prepare == NULL ? 1 : 2); n++) {
        product(tables[n], NULL, &w, x, in, y, 16, 1);
        for (int o = 0; o < 16; o++)
            near("sum", y[o] / (0x1p30 * 255 * 1024), 1, 0x1p-9);
    }
    free(w.data);
    free(x);
    free(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_comes_back),
        cmocka_unit_test(the_middle_goes_to_even),
        cmocka_unit_test(rounding_is_that_of_the_cpu),
        cmocka_unit_test(narrowing_keeps_what_it_says),
        cmocka_unit_test(what_cannot_be_narrow_stays_as_it_is),
        cmocka_unit_test(prepare_is_narrowing_by_the_team),
        cmocka_unit_test(products_have_the_bits_of_plain_c),
        cmocka_unit_test(a_row_does_not_depend_on_batch_or_threads),
        cmocka_unit_test(narrow_products_lose_what_is_said),
        cmocka_unit_test(sums_do_not_overflow),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
