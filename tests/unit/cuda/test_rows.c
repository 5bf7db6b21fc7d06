/* Each row-wise operation: the bits of plain C at awkward sizes, in place too, and nothing written
 * beside its rows. Races in shared memory are looked for throughout. */
#include "kit.h"

static const uint32_t cols_of[] = {1, 15, 16, 17, 31, 33, 64, 513, 1000, 4097};
static const uint32_t rows_of[] = {0, 1, 3, 70};
#define N(a) (sizeof(a) / sizeof((a)[0]))

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
    EXP,
    EXP_PLAIN,
    N_OPS
};

struct buffers {
    float *y, *a, *b, *w; /* (rows, stride) each; w: (cols + rows) */
};

static void run(const struct kg_kernels *k, struct kg_team *team, enum op op,
                const struct buffers *p, float *y, size_t st, uint32_t rows, uint32_t heads,
                uint32_t dim)
{
    static const struct kg_act_args swiglu = {.act = KG_ACT_SWIGLU}, situ = {KG_ACT_SITU, 4, 25};
    uint32_t cols = heads * dim;

    switch (op) {
    case RMS:
        k->rmsnorm(team, y, st, p->a, st, p->w, rows, cols, 1e-5f);
        break;
    case RMS_ONES:
        k->rmsnorm(team, y, st, p->a, st, NULL, rows, cols, 1e-5f);
        break;
    case GATED:
        k->rmsnorm_gated(team, y, st, p->a, st, p->b, st, p->w, rows, heads, dim, 1e-5f);
        break;
    case L2:
        k->l2norm(team, y, st, p->a, st, rows, heads, dim, 1e-6f, 0.125f);
        break;
    case ADD:
        k->add(team, y, st, p->a, st, p->b, st, rows, cols);
        break;
    case SIGMOID:
        k->sigmoid(team, y, st, p->a, st, rows, cols);
        break;
    case MUL_SIGMOID:
        k->mul_sigmoid(team, y, st, p->a, st, p->b, st, rows, cols);
        break;
    case SWIGLU:
        k->act(team, &swiglu, y, st, p->a, st, p->b, st, rows, cols);
        break;
    case SITU:
        k->act(team, &situ, y, st, p->a, st, p->b, st, rows, cols);
        break;
    case EXP:
        k->row_exp(team, y, st, p->a, st, p->w, rows, cols);
        break;
    default:
        k->row_exp(team, y, st, p->a, st, NULL, rows, cols);
    }
}

/* pad 0 and 4 with cols % 4 == 0 take the wide path, others do not. */
static void check_rows(struct rig *r, uint64_t *s, uint32_t rows, uint32_t heads, uint32_t dim,
                       uint32_t pad)
{
    uint32_t cols = heads * dim;
    size_t st = cols + pad, n = (rows + 1) * st, w = cols + rows;
    struct buffers h = {take_f(n), random_f(s, n, 6), random_f(s, n, 6), random_f(s, w, 2)}, d;
    float *blank = take_f(n);

    d.a = dev_copy(r, h.a, n * 4);
    d.b = dev_copy(r, h.b, n * 4);
    d.w = dev_copy(r, h.w, w * 4);
    d.y = dev_alloc(r, n * 4);
    for (int op = 0; op < N_OPS; op++) {
        char what[64];

        snprintf(what, sizeof(what), "op %d, %u x %u x %u, pad %u", op, rows, heads, dim, pad);
        memset(h.y, 0xff, n * 4);
        run(r->ref, NULL, op, &h, h.y, st, rows, heads, dim);
        kg_cuda_upload(r->cuda, d.y, blank, n * 4);
        run(r->k, r->team, op, &d, d.y, st, rows, heads, dim);
        float *got = host_copy(r, d.y, n * 4);
        same_bits(what, got, h.y, n);
        free(got);
        kg_cuda_upload(r->cuda, d.y, h.a, n * 4); /* y is x */
        struct buffers in_place = d;
        in_place.a = d.y;
        run(r->k, r->team, op, &in_place, d.y, st, rows, heads, dim);
        got = host_copy(r, d.y, n * 4);
        for (uint32_t i = 0; i < rows; i++)
            same_bits(what, got + i * st, h.y + i * st, cols);
        assert_memory_equal(got + rows * st, h.a + rows * st, st * 4);
        free(got);
    }
    kg_cuda_free(r->cuda, d.a);
    kg_cuda_free(r->cuda, d.b);
    kg_cuda_free(r->cuda, d.w);
    kg_cuda_free(r->cuda, d.y);
    free(h.a);
    free(h.b);
    free(h.w);
    free(h.y);
    free(blank);
}

static void row_operations_have_the_bits_of_plain_c(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 31;

    (void)state;
    for (size_t i = 0; i < N(cols_of); i++) {
        for (size_t j = 0; j < N(rows_of); j++) {
            uint32_t cols = cols_of[i], rows = cols > 1000 ? rows_of[j] % 8 : rows_of[j];

            check_rows(&r, &s, rows, 1, cols, (uint32_t)(i + j) % 2 * 3);
        }
    }
    check_rows(&r, &s, 3, 1, 9000, 0); /* more than one tile */
    rig_close(&r);
}

static void heads_are_separate_and_wide_copies_change_nothing(void **state)
{
    struct rig r = rig_open(KG_MATH_FAST, 0); /* the same bits as in exact math */
    uint64_t s = 32;

    (void)state;
    check_rows(&r, &s, 3, 3, 17, 1);
    check_rows(&r, &s, 5, 2, 128, 4);
    check_rows(&r, &s, 2, 3, 600, 0);
    check_rows(&r, &s, 1, 7, 16, 2);
    rig_close(&r);
}

/* Blocks and threads in the opposite order: nothing depends on who comes first. */
static void order_of_blocks_and_threads_does_not_matter(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 33;

    (void)state;
    kg_emu_set_checks(kg_emu_checks() | KG_EMU_BACKWARD);
    check_rows(&r, &s, 5, 3, 33, 1);
    check_rows(&r, &s, 2, 1, 1000, 0);
    kg_emu_set_checks(kg_emu_checks() & ~(unsigned)KG_EMU_BACKWARD);
    rig_close(&r);
}

static void functions_have_the_bits_of_plain_c_over_all_floats(void **state)
{
    const uint32_t n = 1u << 16;
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    struct kg_act_args situ = {KG_ACT_SITU, 4, 25};
    float *x = take_f(n), *want = take_f(n), *dx, *dy = dev_alloc(&r, n * 4);

    (void)state;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = i << 16 | (i * 2654435761u) >> 16;

        memcpy(&x[i], &bits, 4);
    }
    dx = dev_copy(&r, x, n * 4);
    for (int op = 0; op < 3; op++) {
        for (int dev = 0; dev < 2; dev++) {
            const struct kg_kernels *k = dev ? r.k : r.ref;
            struct kg_team *team = dev ? r.team : NULL;
            float *in = dev ? dx : x, *out = dev ? dy : want;

            if (op == 0)
                k->row_exp(team, out, n, in, n, NULL, 1, n);
            else if (op == 1)
                k->act(team, &situ, out, n, in, n, in, n, 1, n);
            else
                k->sigmoid(team, out, n, in, n, 1, n);
        }
        float *got = host_copy(&r, dy, n * 4);
        same_bits(op == 0 ? "exp" : op == 1 ? "situ" : "sigmoid", got, want, n);
        free(got);
    }
    kg_cuda_free(r.cuda, dx);
    kg_cuda_free(r.cuda, dy);
    free(x);
    free(want);
    rig_close(&r);
}

static void embedding_copies_and_widens(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 34;
    uint32_t ids[] = {8, 0, 8}, cols = 33;
    size_t st = 40;
    float *table = random_f(&s, 9 * cols, 1), *want = take_f(3 * st),
          *dy = dev_alloc(&r, 3 * st * 4);
    uint16_t half[9 * 33];
    uint32_t *dids = dev_copy(&r, ids, sizeof(ids));

    (void)state;
    for (uint32_t i = 0; i < 9 * cols; i++)
        half[i] = kg_bf16_from_f32(table[i]);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const void *host = bf16 ? (const void *)half : table;
        uint32_t dtype = bf16 ? KG_BF16 : KG_F32;
        void *dev = dev_copy(&r, host, 9 * cols * kg_dtype_bytes(dtype));

        memset(want, 0xff, 3 * st * 4);
        kg_cuda_upload(r.cuda, dy, want, 3 * st * 4);
        r.ref->embed(NULL, want, st, host, dtype, cols, ids, 3);
        r.k->embed(r.team, dy, st, dev, dtype, cols, dids, 3);
        float *got = host_copy(&r, dy, 3 * st * 4);
        assert_memory_equal(got, want, 3 * st * 4);
        free(got);
        kg_cuda_free(r.cuda, dev);
    }
    kg_cuda_free(r.cuda, dids);
    kg_cuda_free(r.cuda, dy);
    free(table);
    free(want);
    rig_close(&r);
}

static void rope_has_the_bits_of_plain_c(void **state)
{
    static const uint32_t cases[][5] = {/* rows, vectors, width, dim, interleaved */
                                        {1, 1, 2, 2, 0},
                                        {3, 1, 80, 16, 0},
                                        {5, 3, 24, 24, 1},
                                        {70, 40, 48, 16, 0},
                                        {9, 6, 19, 8, 1}};
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 36;

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        const uint32_t *c = cases[i];
        size_t stride = (size_t)c[1] * c[2] + 3, n = c[0] * stride, angles = c[0] * (c[3] / 2);
        float *x = random_f(&s, n, 2), *co = random_f(&s, angles, 1), *si = random_f(&s, angles, 1);
        float *dx = dev_copy(&r, x, n * 4), *dc = dev_copy(&r, co, angles * 4);
        float *ds = dev_copy(&r, si, angles * 4);

        r.ref->rope(NULL, x, stride, c[1], c[2], co, si, c[0], c[3], c[4]);
        r.k->rope(r.team, dx, stride, c[1], c[2], dc, ds, c[0], c[3], c[4]);
        float *got = host_copy(&r, dx, n * 4);
        same_bits("rope", got, x, n);
        free(got);
        free(x);
        free(co);
        free(si);
        kg_cuda_free(r.cuda, dx);
        kg_cuda_free(r.cuda, dc);
        kg_cuda_free(r.cuda, ds);
    }
    rig_close(&r);
}

static void copy_moves_rows_at_any_alignment(void **state)
{
    static const uint32_t cases[][4] = {/* row_bytes, dst pad, src pad, offset */
                                        {64, 0, 16, 0},
                                        {1, 0, 0, 0},
                                        {52, 4, 8, 4},
                                        {33, 3, 0, 1},
                                        {4096, 0, 0, 0}};
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 35;
    uint32_t rows = 70;

    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        uint32_t bytes = cases[i][0], off = cases[i][3];
        size_t dst = bytes + cases[i][1], src = bytes + cases[i][2];
        size_t nd = rows * dst + off, ns = rows * src + off;
        uint8_t *from = take(ns), *want = take(nd);

        for (size_t b = 0; b < ns; b++)
            from[b] = (uint8_t)rnd(&s);
        uint8_t *df = dev_copy(&r, from, ns), *dt = dev_copy(&r, want, nd);
        r.ref->copy(NULL, want + off, dst, from + off, src, bytes, rows);
        r.k->copy(r.team, dt + off, dst, df + off, src, bytes, rows);
        uint8_t *got = host_copy(&r, dt, nd);
        assert_memory_equal(got, want, nd);
        kg_cuda_free(r.cuda, df);
        kg_cuda_free(r.cuda, dt);
        free(from);
        free(want);
        free(got);
    }
    rig_close(&r);
}

static void check_mix(struct rig *r, uint64_t *s, uint32_t rows, uint32_t cols, uint32_t n_srcs,
                      int in_place)
{
    size_t st = cols + 2, n = rows * st;
    float *src[KG_MIX_MAX], *dev[KG_MIX_MAX], *m = random_f(s, cols, 2), *want = take_f(n);
    float *weights = take_f(rows * n_srcs), *dm = dev_copy(r, m, cols * 4);

    for (uint32_t i = 0; i < n_srcs; i++) {
        src[i] = random_f(s, n, 1 + (float)i);
        dev[i] = dev_copy(r, src[i], n * 4);
    }
    float *dy = in_place ? dev[n_srcs / 2] : dev_copy(r, want, n * 4);
    float *dw = dev_alloc(r, rows * n_srcs * 4);
    struct kg_mix a = {.srcs = (const float *const *)src,
                       .m = m,
                       .y = want,
                       .weights = weights,
                       .src_stride = st,
                       .y_stride = st,
                       .n_srcs = n_srcs,
                       .rows = rows,
                       .cols = cols,
                       .eps = 1e-5f};
    r->ref->mix(NULL, &a);
    a.srcs = (const float *const *)dev;
    a.m = dm;
    a.y = dy;
    a.weights = dw;
    r->k->mix(r->team, &a);
    float *got = host_copy(r, dy, n * 4), *got_w = host_copy(r, dw, rows * n_srcs * 4);
    for (uint32_t i = 0; i < rows; i++)
        same_bits("mix", got + i * st, want + i * st, cols);
    same_bits("mix weights", got_w, weights, rows * n_srcs);
    if (!in_place)
        kg_cuda_free(r->cuda, dy);
    for (uint32_t i = 0; i < n_srcs; i++) {
        kg_cuda_free(r->cuda, dev[i]);
        free(src[i]);
    }
    kg_cuda_free(r->cuda, dm);
    kg_cuda_free(r->cuda, dw);
    free(m);
    free(want);
    free(weights);
    free(got);
    free(got_w);
}

static void mix_has_the_bits_of_plain_c(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 36;

    (void)state;
    for (size_t i = 0; i < N(cols_of); i++)
        check_mix(&r, &s, 3, cols_of[i], (uint32_t)(1 + i * 4), (int)(i % 2));
    check_mix(&r, &s, 2, 40, KG_MIX_MAX, 0);
    rig_close(&r);
}

static void check_stats(struct rig *r, const float *x, uint32_t rows, uint32_t cols)
{
    struct kg_row_stats want[4], *got;
    float *dx = dev_copy(r, x, (size_t)rows * cols * 4);
    struct kg_row_stats *dst = dev_alloc(r, sizeof(want));

    r->ref->row_stats(NULL, want, x, cols, rows, cols);
    r->k->row_stats(r->team, dst, dx, cols, rows, cols);
    got = host_copy(r, dst, rows * sizeof(*got));
    for (uint32_t i = 0; i < rows; i++) {
        same_bits("max", &got[i].max, &want[i].max, 1);
        same_bits("sum_exp", &got[i].sum_exp, &want[i].sum_exp, 1);
        assert_int_equal(got[i].argmax, want[i].argmax);
        assert_int_equal(got[i].finite, want[i].finite);
    }
    kg_cuda_free(r->cuda, dx);
    kg_cuda_free(r->cuda, dst);
    free(got);
}

static void row_stats_have_the_bits_of_plain_c(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 37;

    (void)state;
    for (size_t i = 0; i < N(cols_of); i++) {
        uint32_t cols = cols_of[i];
        float *x = random_f(&s, 4 * cols, 10);

        for (uint32_t c = 0; c < cols; c++) { /* ties; signs of zero */
            x[cols + c] = x[cols + c] > 0 ? -1.0f : -2.0f;
            x[2 * cols + c] = c % 3 == 0 ? -0.0f : 0.0f;
        }
        x[3 * cols + cols / 2] = 99;
        x[3 * cols + cols - 1] = 99;
        check_stats(&r, x, 4, cols);
        x[cols - 1] = NAN;
        x[2 * cols - 1] = -INFINITY;
        x[3 * cols - 1] = INFINITY;
        x[3 * cols] = NAN;
        check_stats(&r, x, 4, cols);
        for (uint32_t c = 0; c < cols; c++)
            x[c] = -INFINITY;
        check_stats(&r, x, 1, cols);
        free(x);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_operations_have_the_bits_of_plain_c),
        cmocka_unit_test(heads_are_separate_and_wide_copies_change_nothing),
        cmocka_unit_test(order_of_blocks_and_threads_does_not_matter),
        cmocka_unit_test(functions_have_the_bits_of_plain_c_over_all_floats),
        cmocka_unit_test(embedding_copies_and_widens),
        cmocka_unit_test(copy_moves_rows_at_any_alignment),
        cmocka_unit_test(rope_has_the_bits_of_plain_c),
        cmocka_unit_test(mix_has_the_bits_of_plain_c),
        cmocka_unit_test(row_stats_have_the_bits_of_plain_c),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
