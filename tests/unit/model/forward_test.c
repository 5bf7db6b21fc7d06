/*
 * The forward pass beside its numbers (tests/golden has those): what it refuses, sizes, dtypes of
 * a checkpoint, orders at every position, taps that change nothing.
 */
#include "../../golden/rig.h"
#include "model/forward.h"
#include "tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint32_t tokens[12] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8};

static struct rig_options options(const struct tiny *t, enum kg_math math)
{
    return (struct rig_options){.model = t->dir,
                                .math = math,
                                .isa = KG_ISA_AVX512_FP16,
                                .threads = 1,
                                .page_tokens = 3,
                                .max_rows = 12,
                                .max_tokens = 24};
}

static struct kg_ckpt *open_tiny(int k3, struct tiny **t)
{
    struct kg_ckpt *ckpt = NULL;
    struct kg_error err = {0};

    *t = tiny_new(k3);
    tiny_write(*t);
    if (kg_ckpt_open((*t)->dir, &ckpt, &err) < 0)
        fail_msg("%s", err.text);
    return ckpt;
}

static void refused(const struct kg_ckpt *ckpt, uint32_t max_rows, const char *text)
{
    struct kg_model_args args = {.kernels = kg_kernels_ref(KG_MATH_EXACT),
                                 .ckpt = ckpt,
                                 .max_rows = max_rows,
                                 .max_seqs = 1};
    struct kg_model *m = NULL;
    struct kg_error err = {0};

    assert_int_equal(kg_model_open(&args, &m, &err), KG_EINVAL);
    assert_null(m);
    if (strstr(err.text, text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

static void *count_alloc(void *ctx, size_t bytes, size_t align)
{
    void *p = NULL;

    *(uint64_t *)ctx += bytes;
    return posix_memalign(&p, align, bytes) == 0 ? p : NULL;
}

static void count_free(void *ctx, void *p, size_t bytes)
{
    (void)ctx;
    (void)bytes;
    free(p);
}

static int no_symm(struct kg_comm *comm, uint64_t bytes, void **p)
{
    (void)comm;
    (void)bytes;
    (void)p;
    return KG_ELIMIT;
}

static void too_little_symmetric_memory_is_refused_before_weights_have_room(void **state)
{
    struct tiny *t;
    struct kg_ckpt *ckpt = open_tiny(1, &t);
    const struct kg_comm_ops comm = {.size = sizeof(comm), .alloc_symm = no_symm};
    uint64_t taken = 0;
    const struct kg_host host = {
        .size = sizeof(host), .ctx = &taken, .alloc = count_alloc, .free = count_free};
    struct kg_model_args args = {.host = &host,
                                 .kernels = kg_kernels_ref(KG_MATH_EXACT),
                                 .ckpt = ckpt,
                                 .max_rows = 12,
                                 .max_seqs = 1,
                                 .deal = {0, 2, 1, 1},
                                 .comm_ops = &comm,
                                 .comm = (struct kg_comm *)(void *)&taken};
    struct kg_model *m = NULL;
    struct kg_error err = {0};

    (void)state;
    assert_int_equal(kg_model_open(&args, &m, &err), KG_ELIMIT);
    assert_null(m);
    assert_non_null(strstr(err.text, "bytes are needed to sum 12 rows"));
    assert_int_equal(taken,
                     sizeof(struct kg_model) + ckpt->config.n_layers * sizeof(struct kg_w_layer));
    kg_ckpt_close(ckpt);
    tiny_free(t);
}

static void what_the_kernels_cannot_do_is_refused_by_name(void **state)
{
    struct tiny *t;
    struct kg_ckpt *ckpt = open_tiny(1, &t);
    struct kg_model_config good = ckpt->config;

    (void)state;
#define BAD(field, value, text)     \
    do {                            \
        ckpt->config = good;        \
        ckpt->config.field = value; \
        refused(ckpt, 4, text);     \
    } while (0)
    BAD(n_mla_layers, 0, "0 MLA layers");
    BAD(n_kda_layers, 0, "0 KDA");
    BAD(conv_taps, 3, "short_conv_kernel_size 3");
    BAD(kda_dim, 1024, "head_dim 1024");
    BAD(kv_lora, 1024, "kv_lora_rank 1024");
    BAD(renormalize, 0, "moe_renormalize");
    ckpt->config = good;
    ckpt->config.block_layers = 1;
    ckpt->config.n_layers = 100;
    refused(ckpt, 4, "attn_res_block_size 1");
    ckpt->config = good;
    refused(ckpt, 0, "max_rows 0");
    refused(ckpt, KG_MODEL_MAX_ROWS + 1, "max_rows 65537");
    kg_ckpt_close(ckpt);
    tiny_free(t);
}

static void sizes_follow_the_configuration(void **state)
{
    (void)state;
    for (int math = 0; math < 2; math++) {
        struct tiny *t = tiny_new(1);
        struct rig_options o = options(t, math);
        struct rig r;
        uint64_t elem = math == KG_MATH_EXACT ? 4 : 2, recurrent, part;
        const struct kg_model_config *c;
        tiny_write(t);
        assert_true(rig_open(&r, &o));
        c = &r.ckpt->config;
        recurrent = 4ull * c->kda_heads * c->kda_dim * c->kda_dim;
        part = recurrent + 9 * elem * c->kda_heads * c->kda_dim;
        assert_int_equal(r.sizes.record_bytes, elem * (c->kv_lora + c->rope_dim));
        assert_int_equal(r.sizes.token_bytes, r.sizes.record_bytes * c->n_mla_layers);
        assert_int_equal(r.sizes.recurrent_bytes, recurrent * c->n_kda_layers);
        assert_int_equal(r.sizes.state_part_bytes, (part + 63) / 64 * 64);
        assert_true(r.sizes.weight_bytes > 0 && r.sizes.scratch_bytes > 0);
        rig_close(&r);
        tiny_free(t);
    }
}

static uint16_t half_of(float x)
{
    uint32_t bits, exponent, mantissa;

    memcpy(&bits, &x, sizeof(bits));
    exponent = bits >> 23 & 0xff;
    mantissa = bits & 0x7fffff;
    if (exponent < 113) /* below the normal range: zero will do for a test */
        return (uint16_t)(bits >> 16 & 0x8000);
    return (uint16_t)((bits >> 16 & 0x8000) | (exponent - 112) << 10 | mantissa >> 13);
}

static float of_half(uint16_t h)
{
    uint32_t bits = (uint32_t)(h & 0x8000) << 16;
    float x;

    if ((h & 0x7fff) != 0)
        bits |= ((h >> 10 & 0x1fu) + 112) << 23 | (h & 0x3ffu) << 13;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

struct copies {
    void *p[32];
    uint32_t n;
};

/* Puts the tensor's values, cut to half precision, in the tensor as F16 or F32. */
static void retype(struct copies *copies, struct kg_tensor *t, uint32_t dtype)
{
    uint64_t n = (uint64_t)t->rows * t->cols;
    float *f = malloc(n * sizeof(float));
    uint16_t *h = malloc(n * sizeof(uint16_t));

    assert_true(f != NULL && h != NULL);
    kg_tensor_load_f32(t, 0, n, f);
    for (uint64_t i = 0; i < n; i++) {
        h[i] = half_of(f[i]);
        f[i] = of_half(h[i]);
    }
    t->data = dtype == KG_F16 ? (void *)h : (void *)f;
    t->dtype = dtype;
    copies->p[copies->n++] = h;
    copies->p[copies->n++] = f;
}

/* Logits after the prompt with some tensors of each sort in `dtype`. */
static float *logits_as(uint32_t dtype, uint32_t *vocab)
{
    struct tiny *t;
    struct kg_ckpt *ckpt = open_tiny(0, &t);
    struct copies copies = {0};
    struct rig_options o = options(t, KG_MATH_EXACT);
    struct kg_model_args args = {.kernels = kg_kernels_ref(KG_MATH_EXACT),
                                 .ckpt = ckpt,
                                 .max_rows = 12,
                                 .max_seqs = RIG_SEQS};
    struct kg_error err = {0};
    struct rig r;
    float *out;

    assert_true(rig_open(&r, &o));
    retype(&copies, &ckpt->embed, dtype);
    retype(&copies, &ckpt->layers[0].kda.q, dtype);
    retype(&copies, &ckpt->layers[0].mlp.down, dtype);
    retype(&copies, &ckpt->layers[1].mla.kv_b, dtype);
    retype(&copies, &ckpt->layers[1].moe.router, dtype);
    retype(&copies, &ckpt->layers[1].moe.experts[1].gate, dtype);
    kg_model_close(r.model);
    if (kg_model_open(&args, &r.model, &err) < 0)
        fail_msg("%s", err.text);
    rig_rows(&r, 0, tokens, 12, 12, NULL, 0);
    *vocab = ckpt->config.vocab;
    out = malloc(12ull * *vocab * sizeof(float));
    assert_non_null(out);
    memcpy(out, kg_model_logits(r.model), 12ull * *vocab * sizeof(float));
    rig_close(&r);
    kg_ckpt_close(ckpt);
    tiny_free(t);
    for (uint32_t i = 0; i < copies.n; i++)
        free(copies.p[i]);
    return out;
}

static void half_precision_tensors_count_as_their_values(void **state)
{
    uint32_t vocab;
    float *half = logits_as(KG_F16, &vocab), *full = logits_as(KG_F32, &vocab);

    (void)state;
    for (uint32_t i = 0; i < 12 * vocab; i++)
        assert_true(isfinite(half[i]));
    assert_memory_equal(half, full, 12ull * vocab * sizeof(float));
    free(half);
    free(full);
}

static uint64_t part_bytes(const struct rig *r, uint32_t state, uint8_t *out)
{
    uint64_t n = r->sizes.state_part_bytes;

    for (uint32_t p = 0; p < r->ckpt->config.n_kda_layers; p++)
        memcpy(out + p * n, kg_model_state_part(r->model, &r->units, state, p), n);
    return n * r->ckpt->config.n_kda_layers;
}

/* Orders after every row of one pass: each unit holds what a pass that ends there leaves. */
static void an_order_at_any_position_holds_that_position(void **state)
{
    struct tiny *t = tiny_new(1);
    struct rig_options o = options(t, KG_MATH_EXACT);
    struct rig r;
    uint8_t *want, *got;

    (void)state;
    tiny_write(t);
    assert_true(rig_open(&r, &o));
    memset(r.units.arena, 0, r.units.layout.arena_bytes); /* padding too is compared */
    want = malloc(r.sizes.state_part_bytes * r.ckpt->config.n_kda_layers);
    got = malloc(r.sizes.state_part_bytes * r.ckpt->config.n_kda_layers);
    assert_true(want != NULL && got != NULL);
    for (uint32_t n = 1; n <= 8; n++) {
        struct kg_order orders[8];
        uint64_t bytes;
        for (uint32_t i = 0; i < n; i++)
            orders[i] = (struct kg_order){.position = i + 1 + (n < 8 ? i / 2 : 0), .unit = 4 + i};
        r.past[0] = 0;
        rig_rows(&r, 0, tokens, orders[n - 1].position, 1, orders, n);
        bytes = part_bytes(&r, 0, want);
        part_bytes(&r, orders[n - 1].unit, got);
        assert_memory_equal(want, got, bytes); /* the last order is the end of the pass */
        for (uint32_t i = 0; i < n; i++) {
            r.past[1] = 0;
            rig_rows(&r, 1, tokens, orders[i].position, 1, NULL, 0);
            part_bytes(&r, 1, want);
            part_bytes(&r, orders[i].unit, got);
            assert_memory_equal(want, got, bytes);
        }
    }
    free(want);
    free(got);
    rig_close(&r);
    tiny_free(t);
}

static void count(void *ctx, uint32_t layer, const char *name, uint32_t dtype, const void *data,
                  size_t stride, uint32_t rows, uint32_t width)
{
    (void)layer;
    (void)dtype;
    (void)data;
    assert_true(name[0] != '\0' && stride >= width && rows > 0);
    ++*(uint32_t *)ctx;
}

static void a_tap_changes_no_bit(void **state)
{
    struct tiny *t = tiny_new(1);
    struct rig_options o = options(t, KG_MATH_EXACT);
    struct rig r;
    uint32_t seen = 0;
    struct kg_tap tap = {.fn = count, .ctx = &seen};
    float *plain;
    size_t bytes;

    (void)state;
    tiny_write(t);
    assert_true(rig_open(&r, &o));
    bytes = 12ull * r.ckpt->config.vocab * sizeof(float);
    plain = malloc(bytes);
    assert_non_null(plain);
    rig_rows(&r, 0, tokens, 12, 12, NULL, 0);
    memcpy(plain, kg_model_logits(r.model), bytes);
    kg_model_set_tap(r.model, &tap);
    rig_rows(&r, 1, tokens, 12, 12, NULL, 0);
    assert_memory_equal(plain, kg_model_logits(r.model), bytes);
    assert_true(seen > 40);
    free(plain);
    rig_close(&r);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_little_symmetric_memory_is_refused_before_weights_have_room),
        cmocka_unit_test(what_the_kernels_cannot_do_is_refused_by_name),
        cmocka_unit_test(sizes_follow_the_configuration),
        cmocka_unit_test(half_precision_tensors_count_as_their_values),
        cmocka_unit_test(an_order_at_any_position_holds_that_position),
        cmocka_unit_test(a_tap_changes_no_bit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
