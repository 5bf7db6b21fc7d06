#include "kit.h"

static const uint32_t odd_sizes[] = {1, 15, 16, 17, 31, 33, 127};
#define N_SIZES (sizeof(odd_sizes) / sizeof(odd_sizes[0]))

static void product(const struct kg_kernels *k, struct kg_team *team, const struct kg_weight *w,
                    const float *x, size_t xs, float *y, size_t ys, uint32_t rows)
{
    struct kg_product p = {.w = w, .x = x, .y = y, .x_stride = xs, .y_stride = ys, .rows = rows};

    k->product(team, &p, 1);
}

static double rounded(double x)
{
    return kg_f32_from_bf16(kg_bf16_from_f32((float)x));
}

/* Sum of |terms| bounds the rounding of a walk over K. */
static void check(const struct kg_kernels *k, const struct matrix *m, const float *x, size_t xs,
                  const float *y, size_t ys, uint32_t rows)
{
    int round = k->math == KG_MATH_FAST && m->w.type != KG_W_F32;

    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t o = 0; o < m->w.out; o++) {
            double want = 0, size = 0;

            for (uint32_t i = 0; i < m->w.in; i++) {
                double a = x[r * xs + i], t;

                t = (round ? rounded(a) : a) * m->plain[(size_t)o * m->w.in + i];
                want += t;
                size += fabs(t);
            }
            double bound = 0x1p-24 * (m->w.in + 2) * size;
            if (!(fabs(y[r * ys + o] - want) <= bound))
                fail_msg("%s %d type %u %ux%u row %u out %u: got %.9g want %.9g bound %g", k->name,
                         (int)k->math, m->w.type, m->w.out, m->w.in, r, o, (double)y[r * ys + o],
                         want, bound);
        }
    }
}

static void product_matches_double_at_odd_sizes_and_strides(void **state)
{
    uint64_t s = 11;

    (void)state;
    for (uint32_t type = KG_W_F32; type < KG_W_N_TYPES; type++) {
        for (size_t a = 0; a < N_SIZES; a++) {
            for (size_t b = 0; b < N_SIZES; b++) {
                uint32_t out = odd_sizes[a], in = odd_sizes[b], rows = 11;
                in = type == KG_W_MXFP4 ? 32 * (in % 7 + 1) : in;
                struct matrix m = random_matrix(&s, type, out, in);
                size_t xs = in + 5, ys = out + 3;
                float *x = random_f(&s, rows * xs, 1), *y = take_f(rows * ys);

                for (EACH_TABLE(t)) {
                    memset(y, 0xff, rows * ys * sizeof(float));
                    product(t.k, NULL, &m.w, x, xs, y, ys, rows);
                    check(t.k, &m, x, xs, y, ys, rows);
                    for (uint32_t r = 0; r < rows; r++) /* nothing between rows is written */
                        for (size_t c = out; c < ys; c++)
                            assert_true(isnan(y[r * ys + c]));
                }
                free(x);
                free(y);
                drop_matrix(&m);
            }
        }
    }
}

/* in > one chunk of K, out > one task: the accumulators rest in y between chunks. */
static void product_matches_double_beyond_one_chunk(void **state)
{
    uint64_t s = 12;

    (void)state;
    for (uint32_t type = KG_W_F32; type < KG_W_N_TYPES; type++) {
        struct matrix m = random_matrix(&s, type, 83, type == KG_W_MXFP4 ? 2080 : 2083);
        uint32_t rows = 9;
        float *x = random_f(&s, (size_t)rows * m.w.in, 1), *y = take_f(rows * 83);

        for (EACH_TABLE(t)) {
            for (uint32_t n = 1; n <= rows; n += n == 1 ? 1 : 7) {
                product(t.k, NULL, &m.w, x, m.w.in, y, 83, n);
                check(t.k, &m, x, m.w.in, y, 83, n);
            }
        }
        free(x);
        free(y);
        drop_matrix(&m);
    }
}

/* Rows 1, any run of rows, all rows, with one and two threads: the same bits. */
static void product_row_does_not_depend_on_batch_or_threads(void **state)
{
    static const uint32_t shapes[][2] = {{192, 192}, {33, 1024}, {333, 544}, {96, 1536}};
    uint64_t s = 13;
    struct kg_team *team;

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (uint32_t type = KG_W_F32; type < KG_W_N_TYPES; type++) {
        for (size_t n = 0; n < 4; n++) {
            uint32_t out = shapes[n][0], in = shapes[n][1], rows = 75;
            struct matrix m = random_matrix(&s, type, out, in);
            float *x = random_f(&s, (size_t)rows * in, 1);
            float *one = take_f((size_t)rows * out), *y = take_f((size_t)rows * out);

            for (EACH_TABLE(t)) {
                if (t.i <= 2 && rows * out * in > 3000000)
                    continue; /* plain C walks row by row: nothing to differ, and slow */
                for (uint32_t r = 0; r < rows; r++)
                    product(t.k, NULL, &m.w, x + (size_t)r * in, in, one + (size_t)r * out, out, 1);
                product(t.k, team, &m.w, x, in, y, out, rows);
                same_bits("all rows, 2 threads", y, one, (size_t)rows * out);
                for (uint32_t r = 0; r < rows;) {
                    uint32_t run = 1 + (uint32_t)(rnd(&s) % 13);

                    run = run > rows - r ? rows - r : run;
                    product(t.k, team, &m.w, x + (size_t)r * in, in, y + (size_t)r * out, out, run);
                    r += run;
                }
                same_bits("runs of rows", y, one, (size_t)rows * out);
            }
            free(x);
            free(one);
            free(y);
            drop_matrix(&m);
        }
    }
    kg_team_destroy(team);
}

/* What kg_kernels_best() takes in place of the bf16 product gives its bits. */
static void the_quickest_table_gives_the_bits_of_the_one_it_replaces(void **state)
{
    const struct kg_kernels *best = kg_kernels_best(KG_MATH_FAST),
                            *bf16 = kg_kernels_cpu(KG_MATH_FAST, KG_ISA_AVX512_BF16);
    uint64_t s = 16;

    (void)state;
    assert_ptr_equal(kg_kernels_best(KG_MATH_EXACT), kg_kernels_cpu(KG_MATH_EXACT, kg_cpu_isa()));
    assert_int_equal(best->math, KG_MATH_FAST);
    if (best == bf16) {
        printf("skipped: nothing is replaced on this CPU\n");
        return;
    }
    for (uint32_t rows = 1; rows <= 33; rows += rows < 16 ? 1 : 17) {
        struct matrix m = random_matrix(&s, KG_W_BF16, 83, 1025);
        float *x = random_f(&s, (size_t)rows * 1025, 1);
        float *y = take_f(rows * 83), *want = take_f(rows * 83);

        product(best, NULL, &m.w, x, 1025, y, 83, rows);
        product(bf16, NULL, &m.w, x, 1025, want, 83, rows);
        same_bits("best", y, want, (size_t)rows * 83);
        free(x);
        free(y);
        free(want);
        drop_matrix(&m);
    }
}

static void thousand_rows_equal_single_rows(void **state)
{
    uint64_t s = 14;
    struct kg_team *team;
    struct matrix m = random_matrix(&s, KG_W_BF16, 40, 96);
    uint32_t rows = 1100;
    float *x = random_f(&s, (size_t)rows * 96, 1), *y = take_f(rows * 40), one[40];

    (void)state;
    assert_int_equal(kg_team_create(3, &team, NULL), KG_OK);
    for (EACH_TABLE(t)) {
        product(t.k, team, &m.w, x, 96, y, 40, rows);
        for (uint32_t r = 0; r < rows; r += 37) {
            product(t.k, NULL, &m.w, x + (size_t)r * 96, 96, one, 40, 1);
            same_bits("row of 1100", y + (size_t)r * 40, one, 40);
        }
    }
    kg_team_destroy(team);
    free(x);
    free(y);
    drop_matrix(&m);
}

static void exact_products_are_equal_on_every_instruction_set(void **state)
{
    uint64_t s = 15;

    (void)state;
    for (uint32_t type = KG_W_F32; type < KG_W_N_TYPES; type++) {
        for (size_t a = 0; a < N_SIZES; a++) {
            uint32_t out = odd_sizes[a], in = type == KG_W_MXFP4 ? 544 : 549, rows = 10;
            struct matrix m = random_matrix(&s, type, out, in);
            float *x = random_f(&s, (size_t)rows * in, 3);
            float *want = take_f((size_t)rows * out), *y = take_f((size_t)rows * out);

            product(kg_kernels_ref(KG_MATH_EXACT), NULL, &m.w, x, in, want, out, rows);
            for (uint32_t isa = 1; isa < n_isas(); isa++) {
                product(table_of(isa, KG_MATH_EXACT), NULL, &m.w, x, in, y, out, rows);
                same_bits(isa_name(isa), y, want, (size_t)rows * out);
            }
            free(x);
            free(want);
            free(y);
            drop_matrix(&m);
        }
    }
}

/* Several products of different shapes and row counts (none included) in one call. */
static void products_of_one_call_equal_products_alone(void **state)
{
    static const uint32_t outs[] = {192, 17, 64, 3, 500}, rows[] = {5, 1, 0, 70, 2};
    uint64_t s = 16;
    struct kg_team *team;
    struct matrix m[5];
    struct kg_product p[5];
    float *x = random_f(&s, 70 * 96, 1), *alone = take_f(70 * 500);

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (uint32_t i = 0; i < 5; i++) {
        m[i] = random_matrix(&s, i % 3 == 2 ? KG_W_F32 : i % 3, outs[i], 96);
        p[i] = (struct kg_product){&m[i].w, x, take_f(70 * 500), 96, outs[i], rows[i]};
    }
    for (EACH_TABLE(t)) {
        t.k->product(team, p, 5);
        for (uint32_t i = 0; i < 5; i++) {
            product(t.k, NULL, &m[i].w, x, 96, alone, outs[i], rows[i]);
            same_bits("one of five", p[i].y, alone, (size_t)rows[i] * outs[i]);
        }
    }
    kg_team_destroy(team);
    for (uint32_t i = 0; i < 5; i++) {
        drop_matrix(&m[i]);
        free(p[i].y);
    }
    free(x);
    free(alone);
}

static void nan_stays_in_its_row(void **state)
{
    uint64_t s = 17;
    struct matrix m = random_matrix(&s, KG_W_BF16, 33, 64);
    float *x = random_f(&s, 9 * 64, 1), *clean = take_f(9 * 33), *y = take_f(9 * 33);

    (void)state;
    for (EACH_TABLE(t)) {
        x[4 * 64 + 7] = 0.5f;
        product(t.k, NULL, &m.w, x, 64, clean, 33, 9);
        for (int n = 0; n < 3; n++) { /* payloads that rounding to bf16 could carry away */
            static const uint32_t nans[3] = {0x7fc00000u, 0x7fffffffu, 0x7f800001u};

            memcpy(&x[4 * 64 + 7], &nans[n], sizeof(float));
            product(t.k, NULL, &m.w, x, 64, y, 33, 9);
            same_bits("rows before", y, clean, 4 * 33);
            same_bits("rows after", y + 5 * 33, clean + 5 * 33, 4 * 33);
            for (int o = 0; o < 33; o++)
                assert_true(isnan(y[4 * 33 + o]));
        }
    }
    free(x);
    free(clean);
    free(y);
    drop_matrix(&m);
}

/* 64 rows of NaN are packed first: a walk that went past an odd K would meet them. */
static void odd_inputs_never_meet_what_was_packed_before(void **state)
{
    uint64_t s = 18;

    (void)state;
    for (uint32_t type = KG_W_F32; type <= KG_W_BF16; type++) {
        for (uint32_t in = 1; in < 40; in += 2) {
            struct matrix m = random_matrix(&s, type, 33, in);
            float *x = take_f(65 * in), *y = take_f(65 * 33); /* NaN throughout */

            for (uint32_t i = 0; i < in; i++)
                x[64 * in + i] = rnd_f(&s);
            for (EACH_TABLE(t)) {
                product(t.k, NULL, &m.w, x, in, y, 33, 65);
                check(t.k, &m, x + 64 * in, in, y + 64 * 33, 33, 1);
            }
            free(x);
            free(y);
            drop_matrix(&m);
        }
    }
}

/* KEDGE_FULL=1: random shapes around every block, tile and chunk edge, all sets against plain C. */
static void full_sweep_of_shapes_has_the_bits_of_plain_c(void **state)
{
    uint64_t s = 19;

    (void)state;
    if (getenv("KEDGE_FULL") == NULL) {
        print_message("skipped: runs with KEDGE_FULL=1\n");
        skip();
    }
    for (int n = 0; n < 1500; n++) {
        uint32_t type = (uint32_t)(rnd(&s) % 3), out = 1 + (uint32_t)(rnd(&s) % 150);
        uint32_t rows = 1 + (uint32_t)(rnd(&s) % 75), in = 1 + (uint32_t)(rnd(&s) % 90);

        if (n % 20 == 0)
            in = 500 + (uint32_t)(rnd(&s) % 30);
        in = type == KG_W_MXFP4 ? (in + 31) / 32 * 32 : in;
        struct matrix m = random_matrix(&s, type, out, in);
        float *x = random_f(&s, (size_t)rows * in, 1);
        float *want = take_f((size_t)rows * out), *y = take_f((size_t)rows * out);

        product(kg_kernels_ref(KG_MATH_EXACT), NULL, &m.w, x, in, want, out, rows);
        for (uint32_t isa = 1; isa < n_isas(); isa++) {
            product(table_of(isa, KG_MATH_EXACT), NULL, &m.w, x, in, y, out, rows);
            same_bits(isa_name(isa), y, want, (size_t)rows * out);
        }
        free(x);
        free(want);
        free(y);
        drop_matrix(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_matches_double_at_odd_sizes_and_strides),
        cmocka_unit_test(product_matches_double_beyond_one_chunk),
        cmocka_unit_test(product_row_does_not_depend_on_batch_or_threads),
        cmocka_unit_test(the_quickest_table_gives_the_bits_of_the_one_it_replaces),
        cmocka_unit_test(thousand_rows_equal_single_rows),
        cmocka_unit_test(exact_products_are_equal_on_every_instruction_set),
        cmocka_unit_test(products_of_one_call_equal_products_alone),
        cmocka_unit_test(nan_stays_in_its_row),
        cmocka_unit_test(odd_inputs_never_meet_what_was_packed_before),
        cmocka_unit_test(full_sweep_of_shapes_has_the_bits_of_plain_c),
    };

    return cmocka_run_group_tests(tests, say_skipped, NULL);
}
