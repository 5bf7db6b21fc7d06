#include "kit.h"

/* ---- router --------------------------------------------------------------------------------- */

static void route_picks_best_first_and_ties_go_to_the_lower_id(void **state)
{
    /* sig(0) = 0.5 everywhere: the bias alone decides */
    static const float zero[8] = {0}, bias[8] = {1, 3, 2, 3, 0, 2, 3, -1};
    static const uint32_t want[6] = {1, 3, 6, 2, 5, 0};
    uint32_t ids[6];
    float w[6];

    (void)state;
    for (EACH_TABLE(t)) {
        t.k->route(NULL, ids, w, zero, 8, bias, 1, 8, 6, 2.4f);
        assert_memory_equal(ids, want, sizeof(want));
        for (int i = 0; i < 6; i++) /* the bias has no part in the weights */
            near("weight", w[i], 2.4 / 6, 1e-6);
        t.k->route(NULL, ids, w, zero, 8, NULL, 1, 8, 3, 1);
        assert_true(ids[0] == 0 && ids[1] == 1 && ids[2] == 2);
    }
}

static void route_matches_a_full_sort_in_double(void **state)
{
    static const uint32_t experts[] = {1, 7, 16, 17, 256, 896};
    static const uint32_t top_k[] = {1, 3, 4, 17, 8, 16};
    uint64_t s = 51;
    struct kg_team *team;

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (int n = 0; n < 6; n++) {
        uint32_t e = experts[n], k = top_k[n], rows = 19;
        size_t stride = e + 2;
        float *x = random_f(&s, rows * stride, 4), *bias = random_f(&s, e, 0.3f);
        float *w = take_f(rows * k), *base_w = take_f(rows * k);
        uint32_t *ids = take(rows * k * 4), *base = take(rows * k * 4);

        kg_kernels_ref(KG_MATH_EXACT)->route(NULL, base, base_w, x, stride, bias, rows, e, k, 2);
        for (uint32_t r = 0; r < rows; r++) {
            double sum = 0, last = INFINITY;

            for (uint32_t i = 0; i < k; i++)
                sum += 1 / (1 + exp(-(double)x[r * stride + base[r * k + i]]));
            for (uint32_t i = 0; i < k; i++) {
                uint32_t id = base[r * k + i];
                double score = 1 / (1 + exp(-(double)x[r * stride + id]));
                uint32_t better = 0;

                assert_true(id < e && score + bias[id] <= last + 1e-6);
                last = score + bias[id];
                for (uint32_t j = 0; j < e; j++)
                    better += 1 / (1 + exp(-(double)x[r * stride + j])) + bias[j] > last + 1e-6;
                assert_true(better <= i);
                near("weight", base_w[r * k + i], score / sum * 2, 2e-6);
            }
        }
        for (EACH_TABLE(t)) {
            t.k->route(team, ids, w, x, stride, bias, rows, e, k, 2);
            assert_memory_equal(ids, base, rows * k * 4);
            same_bits("weights", w, base_w, rows * k);
        }
        free(x);
        free(bias);
        free(w);
        free(base_w);
        free(ids);
        free(base);
    }
    kg_team_destroy(team);
}

static void route_gives_valid_distinct_ids_for_nan(void **state)
{
    float x[20], w[20];
    uint32_t ids[20];

    (void)state;
    for (EACH_TABLE(t)) {
        for (int kind = 0; kind < 3; kind++) {
            uint64_t seen = 0;

            for (int i = 0; i < 20; i++)
                x[i] = kind == 0 || (kind == 1 && i != 7) ? NAN : i == 3 ? -INFINITY : (float)i;
            t.k->route(NULL, ids, w, x, 20, NULL, 1, 20, 20, 1);
            for (int i = 0; i < 20; i++) {
                assert_true(ids[i] < 20);
                seen |= 1ull << ids[i];
            }
            assert_int_equal(seen, (1ull << 20) - 1);
            if (kind == 1)
                assert_int_equal(ids[0], 7);
        }
    }
}

/* ---- experts -------------------------------------------------------------------------------- */

#define EXPERTS 6
#define TOP_K 3
#define ROWS 21

struct moe_case {
    struct matrix gate[EXPERTS], up[EXPERTS], down[EXPERTS];
    struct kg_weight g[EXPERTS], u[EXPERTS], d[EXPERTS];
    uint32_t in, ff, out;
    float *x, w[ROWS * TOP_K];
    uint32_t ids[ROWS * TOP_K];
};

static void make_moe(uint64_t *s, struct moe_case *c, uint32_t type, uint32_t in, uint32_t ff,
                     uint32_t out)
{
    c->in = in;
    c->ff = ff;
    c->out = out;
    for (int e = 0; e < EXPERTS; e++) {
        c->gate[e] = random_matrix(s, type, ff, in);
        c->up[e] = random_matrix(s, type, ff, in);
        c->down[e] = random_matrix(s, type, out, ff);
        c->g[e] = c->gate[e].w;
        c->u[e] = c->up[e].w;
        c->d[e] = c->down[e].w;
    }
    c->x = random_f(s, ROWS * (in + 1), 1);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < TOP_K; i++) { /* expert 4 is never picked */
            static const uint32_t pool[5] = {0, 1, 2, 3, 5};

            c->ids[r * TOP_K + i] = pool[((uint32_t)r * 7 + (uint32_t)i * 2) % 5];
            c->w[r * TOP_K + i] = 0.5f + 0.5f * rnd_f(s);
        }
    }
}

static void drop_moe(struct moe_case *c)
{
    for (int e = 0; e < EXPERTS; e++) {
        drop_matrix(&c->gate[e]);
        drop_matrix(&c->up[e]);
        drop_matrix(&c->down[e]);
    }
    free(c->x);
}

static void run_moe(const struct kg_kernels *k, struct kg_team *team, const struct moe_case *c,
                    uint32_t act, uint32_t row0, uint32_t rows, uint32_t pass_rows, float *y)
{
    struct kg_moe m = {.gate = c->g, .up = c->u, .down = c->d, .rows = rows, .top_k = TOP_K};

    m.scratch_bytes = kg_moe_scratch_bytes(pass_rows, TOP_K, EXPERTS, c->ff, c->out);
    m.scratch = take(m.scratch_bytes);
    m.n_experts = EXPERTS;
    m.x = c->x + row0 * (c->in + 1);
    m.x_stride = c->in + 1;
    m.y = y + row0 * (c->out + 2);
    m.y_stride = c->out + 2;
    m.ids = c->ids + row0 * TOP_K;
    m.weights = c->w + row0 * TOP_K;
    m.act = (struct kg_act_args){act, 4, 25};
    k->moe(team, &m);
    free(m.scratch);
}

static double rounded(const struct kg_kernels *k, double x)
{
    return k->math == KG_MATH_FAST ? kg_f32_from_bf16(kg_bf16_from_f32((float)x)) : x;
}

static double sig(double x)
{
    return 1 / (1 + exp(-x));
}

static void check_moe(const struct kg_kernels *k, const struct moe_case *c, uint32_t act,
                      const float *y, double bound)
{
    double *h = calloc(c->ff, sizeof(double)), *want = calloc(c->out, sizeof(double));

    for (uint32_t r = 0; r < ROWS; r++) {
        memset(want, 0, c->out * sizeof(double));
        for (uint32_t i = 0; i < TOP_K; i++) {
            uint32_t e = c->ids[r * TOP_K + i];

            for (uint32_t f = 0; f < c->ff; f++) {
                double a = 0, b = 0;

                for (uint32_t j = 0; j < c->in; j++) {
                    double x = rounded(k, c->x[r * (c->in + 1) + j]);

                    a += c->gate[e].plain[f * c->in + j] * x;
                    b += c->up[e].plain[f * c->in + j] * x;
                }
                h[f] = act == KG_ACT_SWIGLU ? a * sig(a) * b
                                            : 4 * tanh(a / 4) * sig(a) * 25 * tanh(b / 25);
                h[f] = rounded(k, h[f]);
            }
            for (uint32_t o = 0; o < c->out; o++)
                for (uint32_t f = 0; f < c->ff; f++)
                    want[o] += c->w[r * TOP_K + i] * c->down[e].plain[o * c->ff + f] * h[f];
        }
        for (uint32_t o = 0; o < c->out; o++)
            near(k->name, y[r * (c->out + 2) + o], want[o], bound);
    }
    free(h);
    free(want);
}

static void experts_match_double_and_do_not_depend_on_batch_passes_or_threads(void **state)
{
    static const uint32_t dims[][3] = {{96, 64, 96}, {32, 96, 33}, {64, 160, 17}};
    uint64_t s = 52;
    struct kg_team *team;

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (uint32_t n = 0; n < 9; n++) {
        uint32_t type = n % 3, act = n % 2 ? KG_ACT_SITU : KG_ACT_SWIGLU;
        struct moe_case c;

        make_moe(&s, &c, type, dims[n / 3][0], dims[n / 3][1], dims[n / 3][2]);
        size_t all = ROWS * (c.out + 2);
        float *base = take_f(all), *y = take_f(all);
        for (EACH_TABLE(t)) {
            if (t.k->math == KG_MATH_EXACT && t.i == 1) {
                run_moe(t.k, NULL, &c, act, 0, ROWS, ROWS, base);
                check_moe(t.k, &c, act, base, 2e-4);
            }
            memset(y, 0xff, all * sizeof(float));
            run_moe(t.k, team, &c, act, 0, ROWS, ROWS, y);
            if (t.k->math == KG_MATH_EXACT)
                same_bits(t.k->name, y, base, all);
            else if (type != KG_W_F32) /* a different rounding of h may flip: one bf16 step */
                check_moe(t.k, &c, act, y, 3e-2);
            float *parts = take_f(all);
            run_moe(t.k, NULL, &c, act, 0, ROWS, 4, parts);
            same_bits("passes of four rows", parts, y, all);
            memset(parts, 0xff, all * sizeof(float));
            for (uint32_t r = 0; r < ROWS; r++)
                run_moe(t.k, team, &c, act, r, 1, 1, parts);
            same_bits("single rows", parts, y, all);
            free(parts);
        }
        free(base);
        free(y);
        drop_moe(&c);
    }
    kg_team_destroy(team);
}

/* A table that prepares weights, and plain C with what it made of them. */
static void narrow_experts_have_the_bits_of_plain_c(void **state)
{
    const struct kg_kernels *k = kg_kernels_best(KG_MATH_FAST);
    uint64_t s = 54;
    struct kg_team *team;

    (void)state;
    if (k->prepare == NULL) {
        print_message("skipped: no table of this CPU prepares weights\n");
        skip();
    }
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (uint32_t n = 0; n < 3; n++) {
        uint32_t act = n % 2 ? KG_ACT_SITU : KG_ACT_SWIGLU;
        struct moe_case c;

        make_moe(&s, &c, KG_W_BF16, n == 0 ? 96 : 300, n == 0 ? 64 : 97, n == 2 ? 17 : 96);
        for (uint32_t e = 0; e < EXPERTS; e++) {
            if (n == 2 && e % 2 != 0) /* as one that cannot be narrow stays */
                continue;
            k->prepare(team, &c.g[e]);
            k->prepare(team, &c.u[e]);
            k->prepare(team, &c.d[e]);
            assert_int_equal(c.d[e].type, KG_W_E4M7);
        }
        size_t all = ROWS * (c.out + 2);
        float *want = take_f(all), *y = take_f(all);
        run_moe(kg_kernels_ref(KG_MATH_FAST), NULL, &c, act, 0, ROWS, ROWS, want);
        run_moe(k, team, &c, act, 0, ROWS, ROWS, y);
        same_bits("narrow experts", y, want, all);
        for (uint32_t r = 0; r < ROWS; r++)
            run_moe(k, team, &c, act, r, 1, 1, y);
        same_bits("single rows", y, want, all);
        free(want);
        free(y);
        drop_moe(&c);
    }
    kg_team_destroy(team);
}

/* Experts first .. first + n - 1 of a case, all rows. */
static void run_some(const struct kg_kernels *k, struct kg_team *team, const struct moe_case *c,
                     uint32_t first, uint32_t n, float *y)
{
    struct kg_moe m = {.gate = c->g + first, .up = c->u + first, .down = c->d + first};

    m.rows = ROWS;
    m.top_k = TOP_K;
    m.n_experts = n;
    m.first = first;
    m.scratch_bytes = kg_moe_scratch_bytes(5, TOP_K, n, c->ff, c->out);
    m.scratch = take(m.scratch_bytes);
    m.x = c->x;
    m.x_stride = c->in + 1;
    m.y = y;
    m.y_stride = c->out + 2;
    m.ids = c->ids;
    m.weights = c->w;
    m.act = (struct kg_act_args){KG_ACT_SWIGLU, 4, 25};
    k->moe(team, &m);
    free(m.scratch);
}

static void experts_that_are_not_there_have_no_part_in_the_sum(void **state)
{
    static const uint32_t blocks[][2] = {{0, 3}, {3, 3}, {5, 1}, {4, 1}, {0, 6}};
    uint64_t s = 53;
    struct kg_team *team;

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (uint32_t n = 0; n < 10; n++) {
        uint32_t first = blocks[n / 2][0], count = blocks[n / 2][1];
        struct moe_case c, part;

        make_moe(&s, &c, n % 2 ? KG_W_MXFP4 : KG_W_BF16, 64, 96, 33);
        part = c; /* in double: the others weigh nothing */
        for (uint32_t i = 0; i < ROWS * TOP_K; i++)
            part.w[i] = c.ids[i] - first < count ? c.w[i] : 0;
        size_t all = ROWS * (c.out + 2);
        float *base = take_f(all), *y = take_f(all);
        memset(base, 0xff, all * sizeof(float));
        run_some(kg_kernels_ref(KG_MATH_EXACT), NULL, &c, first, count, base);
        check_moe(kg_kernels_ref(KG_MATH_EXACT), &part, KG_ACT_SWIGLU, base, 2e-4);
        for (uint32_t o = 0; count == 1 && first == 4 && o < c.out; o++)
            assert_true(base[o] == 0);
        for (EACH_TABLE(t)) {
            memset(y, 0xff, all * sizeof(float));
            run_some(t.k, team, &c, first, count, y);
            if (t.k->math == KG_MATH_EXACT)
                same_bits(t.k->name, y, base, all);
            else
                check_moe(t.k, &part, KG_ACT_SWIGLU, y, 3e-2);
        }
        free(base);
        free(y);
        drop_moe(&c);
    }
    kg_team_destroy(team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route_picks_best_first_and_ties_go_to_the_lower_id),
        cmocka_unit_test(route_matches_a_full_sort_in_double),
        cmocka_unit_test(route_gives_valid_distinct_ids_for_nan),
        cmocka_unit_test(experts_match_double_and_do_not_depend_on_batch_passes_or_threads),
        cmocka_unit_test(narrow_experts_have_the_bits_of_plain_c),
        cmocka_unit_test(experts_that_are_not_there_have_no_part_in_the_sum),
    };

    return cmocka_run_group_tests(tests, say_skipped, NULL);
}
