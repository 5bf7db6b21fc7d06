/* The router and routed experts on the device, against plain C. */
#include "kit.h"

#include "kernels/cuda/twins.h"

/* Experts of one layer on both sides, at equal distances. */
struct layer {
    struct kg_weight *host[3], *dev[3]; /* gate, up, down: [n] */
    uint8_t *data[3], *dev_data[3];
    uint32_t n, in, ff, out;
};

static void matrices(struct rig *r, uint64_t *s, struct layer *l, uint32_t which, uint32_t type)
{
    uint32_t out = which == 2 ? l->out : l->ff, in = which == 2 ? l->ff : l->in;
    uint64_t bytes = kg_weight_bytes(type, out, in), stride = (bytes + 127) / 64 * 64;

    l->data[which] = take(stride * l->n);
    l->host[which] = take(l->n * sizeof(struct kg_weight));
    l->dev[which] = take(l->n * sizeof(struct kg_weight));
    for (uint32_t e = 0; e < l->n; e++) {
        struct matrix m = random_matrix(s, type, out, in);

        memcpy(l->data[which] + e * stride, m.w.data, bytes);
        l->host[which][e] = m.w;
        l->host[which][e].data = l->data[which] + e * stride;
        drop_matrix(&m);
    }
    l->dev_data[which] = dev_copy(r, l->data[which], stride * l->n);
    for (uint32_t e = 0; e < l->n; e++) {
        l->dev[which][e] = l->host[which][e];
        l->dev[which][e].data = l->dev_data[which] + e * stride;
    }
}

static struct layer layer_make(struct rig *r, uint64_t *s, uint32_t type, uint32_t down_type,
                               uint32_t n, uint32_t in, uint32_t ff, uint32_t out)
{
    struct layer l = {.n = n, .in = in, .ff = ff, .out = out};

    matrices(r, s, &l, 0, type);
    matrices(r, s, &l, 1, type);
    matrices(r, s, &l, 2, down_type);
    return l;
}

static void layer_drop(struct rig *r, struct layer *l)
{
    for (uint32_t i = 0; i < 3; i++) {
        free(l->host[i]);
        free(l->dev[i]);
        free(l->data[i]);
        kg_cuda_free(r->cuda, l->dev_data[i]);
    }
}

/* Arguments on both sides; scratch for `pass_rows` rows. */
struct call {
    struct kg_moe h, d;
    float *x, *y, *w;
    uint32_t *ids;
};

static struct call call_make(struct rig *r, uint64_t *s, const struct layer *l, uint32_t rows,
                             uint32_t top_k, uint32_t pass_rows, uint32_t popular)
{
    struct call c = {.x = random_f(s, rows * (l->in + 2), 1), .y = take_f(rows * (l->out + 1))};
    uint64_t bytes = kg_moe_scratch_bytes(pass_rows, top_k, l->n, l->ff, l->out);

    c.ids = take(rows * top_k * sizeof(uint32_t));
    c.w = random_f(s, rows * top_k, 1);
    for (uint32_t row = 0; row < rows; row++) /* distinct; `popular` of them in a few experts */
        for (uint32_t j = 0; j < top_k; j++)
            c.ids[row * top_k + j] =
                (uint32_t)((j < popular ? j : row * 7 + j * 3 + rnd(s) % 3 * top_k * 3) % l->n);
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t j = 0; j < top_k; j++) {
            for (uint32_t i = 0; i < j; i++) {
                if (c.ids[row * top_k + i] == c.ids[row * top_k + j]) {
                    c.ids[row * top_k + j] = (c.ids[row * top_k + j] + 1) % l->n;
                    i = UINT32_MAX;
                }
            }
        }
    }
    c.h = (struct kg_moe){.gate = l->host[0],
                          .up = l->host[1],
                          .down = l->host[2],
                          .x = c.x,
                          .y = c.y,
                          .x_stride = l->in + 2,
                          .y_stride = l->out + 1,
                          .ids = c.ids,
                          .weights = c.w,
                          .rows = rows,
                          .top_k = top_k,
                          .n_experts = l->n,
                          .act = {KG_ACT_SITU, 4.0f, 25.0f},
                          .scratch = take(bytes),
                          .scratch_bytes = bytes};
    c.d = c.h;
    c.d.gate = l->dev[0];
    c.d.up = l->dev[1];
    c.d.down = l->dev[2];
    c.d.x = dev_copy(r, c.x, rows * (l->in + 2) * sizeof(float));
    c.d.y = dev_copy(r, c.y, rows * (l->out + 1) * sizeof(float));
    c.d.ids = dev_copy(r, c.ids, rows * top_k * sizeof(uint32_t));
    c.d.weights = dev_copy(r, c.w, rows * top_k * sizeof(float));
    c.d.scratch = dev_alloc(r, bytes);
    return c;
}

static float *call_y(struct rig *r, const struct call *c)
{
    return host_copy(r, c->d.y, c->h.rows * c->h.y_stride * sizeof(float));
}

static void call_drop(struct rig *r, struct call *c)
{
    free(c->x);
    free(c->y);
    free(c->w);
    free(c->ids);
    free(c->h.scratch);
    kg_cuda_free(r->cuda, (void *)(uintptr_t)c->d.x);
    kg_cuda_free(r->cuda, c->d.y);
    kg_cuda_free(r->cuda, (void *)(uintptr_t)c->d.ids);
    kg_cuda_free(r->cuda, (void *)(uintptr_t)c->d.weights);
    kg_cuda_free(r->cuda, c->d.scratch);
}

/* experts, in, ff, out, top_k, rows, rows of a pass, popular */
static const uint32_t shapes[][8] = {
    {1, 32, 32, 1, 1, 1, 1, 0},     {5, 64, 32, 17, 2, 1, 1, 0},    {8, 96, 64, 33, 3, 7, 7, 0},
    {8, 32, 160, 70, 8, 9, 4, 0},   {33, 64, 32, 16, 4, 65, 65, 1}, {4, 64, 32, 40, 3, 33, 33, 3},
    {1100, 32, 32, 5, 16, 3, 3, 0}, {6, 32, 32, 3, 4, 300, 290, 2},
};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void each_shape(struct rig *r, uint32_t type, uint32_t down_type,
                       void (*moe)(struct kg_team *team, const struct kg_moe *m))
{
    uint64_t s = 31;

    for (size_t i = 0; i < N_SHAPES; i++) {
        const uint32_t *z = shapes[i];
        struct layer l = layer_make(r, &s, type, down_type, z[0], z[1], z[2], z[3]);
        struct call c = call_make(r, &s, &l, z[5], z[4], z[6], z[7]);

        r->ref->moe(NULL, &c.h);
        moe(r->team, &c.d);
        float *got = call_y(r, &c);
        same_bits("experts", got, c.y, c.h.rows * c.h.y_stride);
        free(got);
        call_drop(r, &c);
        layer_drop(r, &l);
    }
}

static void exact_experts_have_the_bits_of_plain_c(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);

    (void)state;
    for (uint32_t type = KG_W_F32; type < KG_W_N_TYPES; type++)
        each_shape(&r, type, type, r.k->moe);
    each_shape(&r, KG_W_MXFP4, KG_W_BF16, r.k->moe);
    rig_close(&r);
}

static void fast_experts_without_tensor_cores_have_the_bits_of_plain_c(void **state)
{
    struct rig r = rig_open(KG_MATH_FAST, 0);

    (void)state;
    for (uint32_t type = KG_W_F32; type < KG_W_N_TYPES; type++)
        each_shape(&r, type, type, kg_cuda_moe_plain);
    rig_close(&r);
}

/* Experts one by one with the table's own products: the same bits, in all three forms of tiles. */
static void fast_experts_have_the_bits_of_fast_products(void **state)
{
    static const uint32_t rows[] = {1, 20, 80};
    struct rig r = rig_open(KG_MATH_FAST, 0);
    uint64_t s = 33;

    (void)state;
    for (uint32_t n = 0; n < 9; n++) {
        uint32_t type = n % 3 == 0 ? KG_W_BF16 : KG_W_MXFP4;
        uint32_t down = n % 3 == 2 ? KG_W_F32 : type, n_rows = rows[n / 3];
        struct layer l = layer_make(&r, &s, type, down, 3, 576, 64, 20);
        struct call c = call_make(&r, &s, &l, n_rows, 2, n_rows, 1);
        float *gate = dev_alloc(&r, 64 * 4), *up = dev_alloc(&r, 64 * 4);
        float *y = dev_alloc(&r, 20 * 4);

        r.k->moe(r.team, &c.d);
        float *got = call_y(&r, &c);
        for (uint32_t row = 0; row < n_rows; row += 1 + n_rows / 9) {
            float want[20];

            for (uint32_t j = 0; j < 2; j++) {
                uint32_t e = c.ids[row * 2 + j];
                const float *x = c.d.x + row * c.d.x_stride;
                struct kg_product p[3] = {{&l.dev[0][e], x, gate, 0, 0, 1},
                                          {&l.dev[1][e], x, up, 0, 0, 1},
                                          {&l.dev[2][e], gate, y, 0, 0, 1}};

                r.k->product(r.team, p, 2);
                r.k->act(r.team, &c.d.act, gate, 64, gate, 64, up, 64, 1, 64);
                r.k->product(r.team, p + 2, 1);
                float *v = host_copy(&r, y, sizeof(want)), w = c.w[row * 2 + j];
                for (uint32_t o = 0; o < 20; o++)
                    want[o] = j == 0 ? w * v[o] : fmaf(w, v[o], want[o]);
                free(v);
            }
            same_bits("expert row", got + row * c.h.y_stride, want, 20);
        }
        free(got);
        kg_cuda_free(r.cuda, gate);
        kg_cuda_free(r.cuda, up);
        kg_cuda_free(r.cuda, y);
        call_drop(&r, &c);
        layer_drop(&r, &l);
    }
    rig_close(&r);
}

/* experts of all ranks; first and number of those here; in, ff, out, top_k, rows, rows of a pass */
static const uint32_t deals[][9] = {
    {8, 0, 3, 32, 64, 17, 3, 7, 7},         /* the first block */
    {8, 3, 3, 64, 32, 33, 3, 9, 4},         /* one in the middle, in passes */
    {8, 7, 1, 32, 32, 5, 2, 12, 12},        /* the last one alone */
    {8, 8, 1, 32, 32, 40, 3, 5, 5},         /* a rank with padding only: no router picks it */
    {33, 20, 13, 64, 32, 16, 4, 65, 65},    /* more rows than a tile has */
    {9, 2, 1, 32, 160, 3, 1, 1, 1},         /* one row, which picks none */
    {1100, 600, 500, 32, 32, 5, 16, 70, 70} /* more picks than one block places */
};
#define N_DEALS (sizeof(deals) / sizeof(deals[0]))

/* Row r picks neighbours, so some rows have none here, some have one or more. */
static void pick(uint64_t *s, const struct call *c, uint32_t n_all)
{
    uint32_t top_k = c->h.top_k;

    for (uint32_t row = 0; row < c->h.rows; row++) {
        uint32_t at = n_all == 9 ? 5 : (uint32_t)(rnd(s) % n_all);
        for (uint32_t j = 0; j < top_k; j++)
            c->ids[row * top_k + (row + j) % top_k] = (at + j) % n_all;
    }
}

/* A call of deal z on the experts of l, whose number 0 has id `first`. */
static struct call deal_call(struct rig *r, uint64_t *s, const struct layer *l, const uint32_t *z)
{
    struct call c = call_make(r, s, l, z[7], 1, z[8], 0);
    size_t n = (size_t)z[7] * z[6];
    uint64_t bytes = kg_moe_scratch_bytes(z[8], z[6], l->n, l->ff, l->out);

    free(c.ids);
    free(c.w);
    free(c.h.scratch);
    kg_cuda_free(r->cuda, (void *)(uintptr_t)c.d.ids);
    kg_cuda_free(r->cuda, (void *)(uintptr_t)c.d.weights);
    kg_cuda_free(r->cuda, c.d.scratch);
    c.h.top_k = c.d.top_k = z[6];
    c.h.first = c.d.first = z[1];
    c.d.n_routed = z[0];
    c.ids = take(n * sizeof(uint32_t));
    c.w = random_f(s, n, 1);
    pick(s, &c, z[0]);
    c.h.ids = c.ids;
    c.h.weights = c.w;
    c.h.scratch = take(bytes);
    c.h.scratch_bytes = c.d.scratch_bytes = bytes;
    c.d.ids = dev_copy(r, c.ids, n * sizeof(uint32_t));
    c.d.weights = dev_copy(r, c.w, n * sizeof(float));
    c.d.scratch = dev_alloc(r, bytes);
    kg_cuda_fill(r->cuda, c.d.scratch, 0xff, bytes); /* what nobody computed is a NaN */
    return c;
}

static void each_deal(struct rig *r, uint32_t type, uint32_t down_type,
                      void (*moe)(struct kg_team *team, const struct kg_moe *m))
{
    uint64_t s = 41;

    for (size_t i = 0; i < N_DEALS; i++) {
        const uint32_t *z = deals[i];
        struct layer l = layer_make(r, &s, type, down_type, z[2], z[3], z[4], z[5]);
        struct call c = deal_call(r, &s, &l, z);

        r->ref->moe(NULL, &c.h);
        moe(r->team, &c.d);
        float *got = call_y(r, &c);
        same_bits("experts of a rank", got, c.y, c.h.rows * c.h.y_stride);
        free(got);
        call_drop(r, &c);
        layer_drop(r, &l);
    }
}

static void experts_of_other_ranks_have_no_part_in_the_sum(void **state)
{
    (void)state;
    for (uint32_t math = KG_MATH_EXACT; math <= KG_MATH_FAST; math++) {
        struct rig r = rig_open(math, 0);
        for (uint32_t type = KG_W_F32; type < KG_W_N_TYPES; type++)
            each_deal(&r, type, type, math == KG_MATH_FAST ? kg_cuda_moe_plain : r.k->moe);
        each_deal(&r, KG_W_MXFP4, KG_W_BF16, math == KG_MATH_FAST ? kg_cuda_moe_plain : r.k->moe);
        rig_close(&r);
    }
}

/* Of a row with n outputs: the picks that are here, each computed alone by all experts. */
static void compose(float *want, const float *each, const struct call *c, uint32_t row,
                    const uint32_t *z)
{
    uint32_t begun = 0;

    memset(want, 0, z[5] * sizeof(*want));
    for (uint32_t j = 0; j < z[6]; j++) {
        const float *v = each + ((size_t)row * z[6] + j) * z[5];
        float w = c->w[row * z[6] + j];
        if (c->ids[row * z[6] + j] - z[1] >= z[2])
            continue;
        for (uint32_t o = 0; o < z[5]; o++)
            want[o] = begun ? fmaf(w, v[o], want[o]) : w * v[o];
        begun = 1;
    }
}

/* On tensor cores: a rank's sum is that of its picks, as all experts in one place compute them. */
static void fast_experts_of_a_rank_have_the_bits_of_all_experts(void **state)
{
    struct rig r = rig_open(KG_MATH_FAST, 0);
    uint64_t s = 42;

    (void)state;
    for (uint32_t n = 0; n < 6; n++) {
        const uint32_t z[9] = {7, 2, 3, 576, 64, 20, 3, n < 2 ? 1 : n < 4 ? 20 : 150, 150};
        uint32_t type = n % 2 ? KG_W_MXFP4 : KG_W_BF16, all[9];
        struct layer l = layer_make(&r, &s, type, type, z[0], z[3], z[4], z[5]), mine = l;
        float *each = take_f((size_t)z[7] * z[6] * z[5]), *one = take_f(z[7]), want[20];

        for (uint32_t i = 0; i < 3; i++) {
            mine.host[i] += z[1];
            mine.dev[i] += z[1];
        }
        mine.n = z[2];
        struct call c = deal_call(&r, &s, &mine, z);
        memcpy(all, z, sizeof(all));
        all[1] = 0;
        all[6] = 1;
        struct call a = deal_call(&r, &s, &l, all);
        for (uint32_t row = 0; row < z[7]; row++)
            one[row] = 1;
        kg_cuda_upload(r.cuda, (void *)(uintptr_t)a.d.x, c.x, c.h.rows * c.h.x_stride * 4);
        kg_cuda_upload(r.cuda, (void *)(uintptr_t)a.d.weights, one, z[7] * sizeof(float));
        for (uint32_t j = 0; j < z[6]; j++) {
            for (uint32_t row = 0; row < z[7]; row++)
                a.ids[row] = c.ids[row * z[6] + j];
            kg_cuda_upload(r.cuda, (void *)(uintptr_t)a.d.ids, a.ids, z[7] * sizeof(uint32_t));
            r.k->moe(r.team, &a.d);
            float *y = call_y(&r, &a);
            for (uint32_t row = 0; row < z[7]; row++)
                memcpy(each + ((size_t)row * z[6] + j) * z[5], y + row * a.h.y_stride, z[5] * 4);
            free(y);
        }
        r.k->moe(r.team, &c.d);
        float *got = call_y(&r, &c);
        for (uint32_t row = 0; row < z[7]; row++) {
            compose(want, each, &c, row, z);
            same_bits("row of a rank", got + row * c.h.y_stride, want, z[5]);
        }
        free(got);
        free(each);
        free(one);
        call_drop(&r, &a);
        call_drop(&r, &c);
        layer_drop(&r, &l);
    }
    rig_close(&r);
}

/* One recording, several choices of the router; all experts, then those of a rank. */
static void a_recorded_step_is_right_for_every_choice_of_the_router(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 2);
    uint64_t s = 34;
    struct layer l = layer_make(&r, &s, KG_W_MXFP4, KG_W_MXFP4, 9, 32, 32, 10);
    struct call c = call_make(&r, &s, &l, 12, 3, 12, 0);

    (void)state;
    for (uint32_t n = 0; n < 8; n++) {
        c.h.first = c.d.first = n < 4 ? 0 : 5;
        for (uint32_t row = 0; row < 12; row++)
            for (uint32_t j = 0; j < 3; j++)
                c.ids[row * 3 + j] = n % 4 == 0 ? j : (row * (n % 4) + j * 2) % 9;
        kg_cuda_upload(r.cuda, (void *)(uintptr_t)c.d.ids, c.ids, 36 * sizeof(uint32_t));
        rig_sync(&r);
        kg_cuda_begin(r.cuda, 5 + n / 4, 0);
        r.k->moe(r.team, &c.d);
        kg_cuda_end(r.cuda);
        r.ref->moe(NULL, &c.h);
        float *got = call_y(&r, &c);
        same_bits("experts", got, c.y, c.h.rows * c.h.y_stride);
        free(got);
    }
    call_drop(&r, &c);
    layer_drop(&r, &l);
    rig_close(&r);
}

static void experts_at_unequal_distances_are_an_error(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 35;
    struct layer l = layer_make(&r, &s, KG_W_BF16, KG_W_BF16, 3, 32, 32, 10);
    struct call c = call_make(&r, &s, &l, 1, 2, 1, 0);
    struct kg_error err;

    (void)state;
    l.dev[1][1].data = l.dev[1][0].data;
    r.k->moe(r.team, &c.d);
    assert_int_not_equal(kg_cuda_sync(r.cuda, &err), KG_OK);
    assert_non_null(strstr(err.text, "equal distances"));
    call_drop(&r, &c);
    layer_drop(&r, &l);
    kg_cuda_close(r.cuda);
}

static void route_case(struct rig *r, uint64_t *s, uint32_t rows, uint32_t experts, uint32_t top_k,
                       int with_bias, int odd)
{
    size_t stride = experts + 3, n = (size_t)rows * top_k;
    float *x = random_f(s, rows * stride, 6), *bias = random_f(s, experts, 0.3f);
    uint32_t *ids = take(n * sizeof(*ids));
    float *w = take_f(n);

    for (size_t i = 0; odd && i < rows * stride; i++) {
        uint64_t z = rnd(s) % 12;
        x[i] = z < 5 ? 1.0f : z == 5 ? NAN : z == 6 ? INFINITY : z == 7 ? -INFINITY : x[i];
    }
    for (uint32_t e = 0; odd && e < experts; e++)
        bias[e] = rnd(s) % 3 == 0 ? -0.0f : rnd(s) % 3 == 0 ? 0.5f : 0.0f;
    if (odd && rows > 1)
        for (uint32_t e = 0; e < experts; e++)
            x[stride + e] = NAN;
    float *dx = dev_copy(r, x, rows * stride * sizeof(float));
    float *dbias = dev_copy(r, bias, experts * sizeof(float));
    uint32_t *dids = dev_alloc(r, n * sizeof(*ids));
    float *dw = dev_alloc(r, n * sizeof(float));

    r->ref->route(NULL, ids, w, x, stride, with_bias ? bias : NULL, rows, experts, top_k, 2.5f);
    r->k->route(r->team, dids, dw, dx, stride, with_bias ? dbias : NULL, rows, experts, top_k,
                2.5f);
    uint32_t *got_ids = host_copy(r, dids, n * sizeof(*ids));
    float *got_w = host_copy(r, dw, n * sizeof(float));
    assert_memory_equal(got_ids, ids, n * sizeof(*ids));
    same_bits("weights", got_w, w, n);
    free(got_ids);
    free(got_w);
    free(x);
    free(bias);
    free(ids);
    free(w);
    kg_cuda_free(r->cuda, dx);
    kg_cuda_free(r->cuda, dbias);
    kg_cuda_free(r->cuda, dids);
    kg_cuda_free(r->cuda, dw);
}

static void the_router_picks_as_plain_c_with_ties_and_nan(void **state)
{
    static const uint32_t sizes[][2] = {{1, 1},   {2, 2},    {8, 3},
                                        {31, 31}, {128, 8},  {129, 129},
                                        {256, 8}, {896, 16}, {KG_ROUTE_MAX, 20}};
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 36;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int n = 0; n < 4; n++)
            route_case(&r, &s, 1 + (uint32_t)i % 3, sizes[i][0], sizes[i][1], n & 1, n >> 1);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_experts_have_the_bits_of_plain_c),
        cmocka_unit_test(fast_experts_without_tensor_cores_have_the_bits_of_plain_c),
        cmocka_unit_test(fast_experts_have_the_bits_of_fast_products),
        cmocka_unit_test(experts_of_other_ranks_have_no_part_in_the_sum),
        cmocka_unit_test(fast_experts_of_a_rank_have_the_bits_of_all_experts),
        cmocka_unit_test(a_recorded_step_is_right_for_every_choice_of_the_router),
        cmocka_unit_test(experts_at_unequal_distances_are_an_error),
        cmocka_unit_test(the_router_picks_as_plain_c_with_ties_and_nan),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
