/* Products on the device: bits of plain C in exact math, and tensor cores against their twin. */
#include "kit.h"

#include "kernels/cuda/twins.h"

static const uint32_t outs[] = {1, 15, 16, 17, 33, 130};
static const uint32_t ins[] = {1, 2, 31, 32, 33, 192, 577};
static const uint32_t row_counts[] = {1, 2, 7, 8, 9, 33, 65};
#define N(a) (sizeof(a) / sizeof((a)[0]))

/* One product on both sides. */
struct pair {
    struct matrix m;
    struct kg_weight dev; /* the same, its data on the device */
    float *x, *y;         /* y: of the host */
    float *dx, *dy;
    size_t xs, ys;
    uint32_t rows;
};

static struct pair pair_make(struct rig *r, uint64_t *s, uint32_t type, uint32_t out, uint32_t in,
                             uint32_t rows)
{
    struct pair p = {.m = random_matrix(s, type, out, in), .rows = rows};

    p.xs = in + 3;
    p.ys = out + 5;
    p.x = random_f(s, rows * p.xs, 1);
    p.y = take_f(rows * p.ys);
    p.dev = p.m.w;
    p.dev.data = dev_copy(r, p.m.w.data, p.m.w.bytes);
    p.dx = dev_copy(r, p.x, rows * p.xs * sizeof(float));
    p.dy = dev_copy(r, p.y, rows * p.ys * sizeof(float));
    return p;
}

static void pair_drop(struct rig *r, struct pair *p)
{
    drop_matrix(&p->m);
    free(p->x);
    free(p->y);
    kg_cuda_free(r->cuda, p->dev.data);
    kg_cuda_free(r->cuda, p->dx);
    kg_cuda_free(r->cuda, p->dy);
}

static struct kg_product on_host(const struct pair *p)
{
    return (struct kg_product){&p->m.w, p->x, p->y, p->xs, p->ys, p->rows};
}

static struct kg_product on_device(const struct pair *p)
{
    return (struct kg_product){&p->dev, p->dx, p->dy, p->xs, p->ys, p->rows};
}

/* y of the device, the gaps between rows included. */
static float *device_y(struct rig *r, const struct pair *p)
{
    return host_copy(r, p->dy, p->rows * p->ys * sizeof(float));
}

static void compare_bits(struct rig *r, const struct pair *p)
{
    float *got = device_y(r, p);

    if (memcmp(got, p->y, p->rows * p->ys * sizeof(float)) != 0) {
        same_bits("product", got, p->y, p->rows * p->ys);
        fail_msg("type %u out %u in %u rows %u: a NaN differs", p->m.w.type, p->m.w.out, p->m.w.in,
                 p->rows);
    }
    free(got);
}

/* The bound of twins.h. Gaps must be as they were. */
static void compare_bound(struct rig *r, const struct pair *p)
{
    float *got = device_y(r, p);

    for (uint32_t row = 0; row < p->rows; row++) {
        for (uint32_t o = 0; o < p->ys; o++) {
            double a = got[row * p->ys + o], b = p->y[row * p->ys + o], size = 0;

            if (o >= p->m.w.out) {
                assert_true(isnan(a));
                continue;
            }
            for (uint32_t i = 0; i < p->m.w.in; i++)
                size += fabs((double)kg_f32_from_bf16(kg_bf16_from_f32(p->x[row * p->xs + i])) *
                             p->m.plain[(size_t)o * p->m.w.in + i]);
            if (!(fabs(a - b) <= 0x1p-22 * (p->m.w.in + 32) * size))
                fail_msg("type %u out %u in %u row %u of %u, output %u: %.9g, plain %.9g",
                         p->m.w.type, p->m.w.out, p->m.w.in, row, p->rows, o, a, b);
        }
    }
    free(got);
}

static int is_full(void)
{
    return getenv("KEDGE_FULL") != NULL;
}

/* Calls fn for the shapes of the tables above; of all combinations a third, unless KEDGE_FULL. */
static void each_shape(struct rig *r, void (*fn)(struct rig *r, struct pair *p))
{
    uint64_t s = 21;

    for (size_t n = 0; n < N(outs) * N(ins) * N(row_counts) * KG_W_N_TYPES; n++) {
        uint32_t type = n % KG_W_N_TYPES;
        size_t at = n / KG_W_N_TYPES;
        uint32_t out = outs[at % N(outs)], in = ins[at / N(outs) % N(ins)];
        uint32_t rows = row_counts[at / N(outs) / N(ins)];

        if (type == KG_W_MXFP4)
            in = (in + 31) / 32 * 32;
        if (!is_full() && (at * 2 + type) % 7 != 0)
            continue;
        struct pair p = pair_make(r, &s, type, out, in, rows);
        fn(r, &p);
        pair_drop(r, &p);
    }
}

static void run_table(struct rig *r, struct pair *p)
{
    struct kg_product h = on_host(p), d = on_device(p);

    r->ref->product(NULL, &h, 1);
    r->k->product(r->team, &d, 1);
    compare_bits(r, p);
}

static void exact_products_have_the_bits_of_plain_c(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);

    (void)state;
    each_shape(&r, run_table);
    rig_close(&r);
}

static void run_twin(struct rig *r, struct pair *p)
{
    struct kg_product h = on_host(p), d = on_device(p);

    r->ref->product(NULL, &h, 1);
    kg_cuda_product_plain(r->team, &d, 1);
    compare_bits(r, p);
}

static void fast_products_without_tensor_cores_have_the_bits_of_plain_c(void **state)
{
    struct rig r = rig_open(KG_MATH_FAST, 0);

    (void)state;
    each_shape(&r, run_twin);
    rig_close(&r);
}

static void run_tensor(struct rig *r, struct pair *p)
{
    struct kg_product h = on_host(p), d = on_device(p);

    r->ref->product(NULL, &h, 1);
    r->k->product(r->team, &d, 1);
    compare_bound(r, p);
}

static void tensor_cores_agree_with_plain_c_within_the_bound(void **state)
{
    struct rig r = rig_open(KG_MATH_FAST, 0);
    struct kg_cuda_facts facts;

    (void)state;
    kg_cuda_facts(r.cuda, &facts);
    assert_int_equal(facts.tensor_cores, 1);
    each_shape(&r, run_tensor);
    rig_close(&r);
}

/* Rows 1, 8, 16, 33 take the small forms, 66 and 150 the large one: row 0.. must not notice. */
static void rows_of_a_fast_product_do_not_depend_on_how_many_there_are(void **state)
{
    static const uint32_t counts[] = {1, 8, 13, 33, 66};
    struct rig r = rig_open(KG_MATH_FAST, 0);
    uint64_t s = 22;

    (void)state;
    for (uint32_t type = KG_W_BF16; type < KG_W_N_TYPES; type++) {
        for (uint32_t shape = 0; shape < 2; shape++) {
            uint32_t out = shape ? 130 : 33, in = shape ? 544 : type == KG_W_BF16 ? 815 : 800;
            struct pair p = pair_make(&r, &s, type, out, in, 150);
            struct kg_product d = on_device(&p);

            r.k->product(r.team, &d, 1);
            float *all = device_y(&r, &p);
            for (size_t i = 0; i < N(counts); i++) {
                d.rows = counts[i];
                kg_cuda_fill(r.cuda, p.dy, 0xff, p.rows * p.ys * sizeof(float));
                r.k->product(r.team, &d, 1);
                float *some = device_y(&r, &p);
                assert_memory_equal(some, all, counts[i] * p.ys * sizeof(float));
                free(some);
            }
            free(all);
            pair_drop(&r, &p);
        }
    }
    rig_close(&r);
}

/* Types, shapes and numbers of rows mixed, more than one launch holds; some without rows. */
static void many_products_in_one_call_are_as_one_by_one(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    struct pair p[40];
    struct kg_product h[40], d[40];
    uint64_t s = 23;

    (void)state;
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t type = i % 5 == 0 ? KG_W_MXFP4 : i % 5 == 1 ? KG_W_F32 : KG_W_BF16;

        p[i] = pair_make(&r, &s, type, 1 + i * 7, type == KG_W_MXFP4 ? 96 : 1 + i * 3, 1 + i % 4);
        h[i] = on_host(&p[i]);
        d[i] = on_device(&p[i]);
        if (i % 9 == 8)
            h[i].rows = d[i].rows = 0;
    }
    r.ref->product(NULL, h, 40);
    r.k->product(r.team, d, 40);
    r.k->product(r.team, d, 0);
    for (uint32_t i = 0; i < 40; i++) {
        compare_bits(&r, &p[i]);
        pair_drop(&r, &p[i]);
    }
    rig_close(&r);
}

/* Every code under every scale, exact: as weight 0 of a one-hot row. */
static void mxfp4_values_are_those_of_plain_c(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 24;
    struct pair p = pair_make(&r, &s, KG_W_MXFP4, 256, 32, 16);
    uint8_t *packed = take(256 * 16), *scales = take(256);

    (void)state;
    for (uint32_t o = 0; o < 256; o++) {
        scales[o] = (uint8_t)o;
        for (uint32_t i = 0; i < 16; i++)
            packed[o * 16 + i] = (uint8_t)(i % 8 * 2 * 17 + 16);
    }
    assert_int_equal(kg_weight_fill_mxfp4(&p.m.w, 0, 256, packed, scales), KG_OK);
    kg_cuda_upload(r.cuda, p.dev.data, p.m.w.data, p.m.w.bytes);
    memset(p.x, 0, p.rows * p.xs * sizeof(float));
    for (uint32_t row = 0; row < 16; row++)
        p.x[row * p.xs + row] = 1;
    kg_cuda_upload(r.cuda, p.dx, p.x, p.rows * p.xs * sizeof(float));
    struct kg_product h = on_host(&p), d = on_device(&p);
    r.ref->product(NULL, &h, 1);
    r.k->product(r.team, &d, 1);
    float *got = device_y(&r, &p);
    same_bits("values", got, p.y, p.rows * p.ys);
    free(got);
    free(packed);
    free(scales);
    pair_drop(&r, &p);
    rig_close(&r);
}

/* A NaN and an infinity stay in their row, in each form. */
static void what_is_not_finite_stays_in_its_row(void **state)
{
    struct rig r = rig_open(KG_MATH_FAST, 0);
    uint64_t s = 25;

    (void)state;
    for (uint32_t rows = 5; rows <= 70; rows += 65) {
        struct pair p = pair_make(&r, &s, KG_W_BF16, 20, 64, rows);
        struct kg_product d = on_device(&p);

        p.x[2 * p.xs + 7] = NAN;
        p.x[3 * p.xs + 63] = INFINITY;
        kg_cuda_upload(r.cuda, p.dx, p.x, p.rows * p.xs * sizeof(float));
        r.k->product(r.team, &d, 1);
        float *got = device_y(&r, &p);
        for (uint32_t i = 0; i < rows * 20; i++) {
            float v = got[i / 20 * p.ys + i % 20];
            assert_true(i / 20 == 2 ? isnan(v) : i / 20 == 3 ? !isfinite(v) : isfinite(v));
        }
        free(got);
        pair_drop(&r, &p);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_products_have_the_bits_of_plain_c),
        cmocka_unit_test(fast_products_without_tensor_cores_have_the_bits_of_plain_c),
        cmocka_unit_test(tensor_cores_agree_with_plain_c_within_the_bound),
        cmocka_unit_test(rows_of_a_fast_product_do_not_depend_on_how_many_there_are),
        cmocka_unit_test(many_products_in_one_call_are_as_one_by_one),
        cmocka_unit_test(mxfp4_values_are_those_of_plain_c),
        cmocka_unit_test(what_is_not_finite_stays_in_its_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
