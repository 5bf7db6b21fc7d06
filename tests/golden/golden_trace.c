/*
 * Every intermediate tensor of one prompt against the double-precision trace. What the absorbed
 * path never computes (k_n, v, probs of MLA; scores, choice and margin of the router; the log
 * decay; single experts) is derived here from what it did compute.
 */
#include "model/forward.h"
#include "rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LIMIT 1e-4 /* relative L2 */
#define MAX_TENSORS 1024

struct tensor {
    char name[64];
    uint32_t dtype, rows, width;
    void *data; /* [rows][width] 4-byte elements */
};

struct trace {
    struct rig rig;
    struct kg_st *golden;
    uint32_t n_tokens;
    uint32_t n;
    struct tensor t[MAX_TENSORS];
};

static struct tensor *add(struct trace *tr, const char *name, uint32_t dtype, uint32_t rows,
                          uint32_t width)
{
    struct tensor *t = &tr->t[tr->n++];

    assert_true(tr->n < MAX_TENSORS);
    (void)snprintf(t->name, sizeof(t->name), "%s", name);
    t->dtype = dtype;
    t->rows = rows;
    t->width = width;
    t->data = calloc((size_t)rows * width, 4);
    assert_non_null(t->data);
    return t;
}

static struct tensor *add_layer(struct trace *tr, uint32_t layer, const char *name, uint32_t rows,
                                uint32_t width)
{
    char full[64];

    (void)snprintf(full, sizeof(full), "layers.%u.%s", layer, name);
    return add(tr, full, KG_F32, rows, width);
}

static const struct tensor *find(const struct trace *tr, const char *name)
{
    for (uint32_t i = 0; i < tr->n; i++) {
        if (strcmp(tr->t[i].name, name) == 0)
            return &tr->t[i];
    }
    return NULL;
}

static const struct tensor *find_layer(const struct trace *tr, uint32_t layer, const char *name)
{
    char full[64];
    const struct tensor *t;

    (void)snprintf(full, sizeof(full), "layers.%u.%s", layer, name);
    t = find(tr, full);
    if (t == NULL)
        fail_msg("the pass never showed %s", full);
    return t;
}

static void tap(void *ctx, uint32_t layer, const char *name, uint32_t dtype, const void *data,
                size_t stride, uint32_t rows, uint32_t width)
{
    char full[64];
    struct tensor *t;

    if (layer == KG_NONE)
        (void)snprintf(full, sizeof(full), "%s", name);
    else
        (void)snprintf(full, sizeof(full), "layers.%u.%s", layer, name);
    t = add(ctx, full, dtype, rows, width);
    for (uint32_t r = 0; r < rows; r++)
        memcpy((uint8_t *)t->data + (size_t)r * width * 4,
               (const uint8_t *)data + (size_t)r * stride * 4, (size_t)width * 4);
}

static void derive_kda(struct trace *tr, uint32_t l)
{
    const struct kg_model_config *c = &tr->rig.ckpt->config;
    const struct tensor *alpha = find_layer(tr, l, "kda.alpha");
    uint32_t width = kg_kda_width(c);
    struct tensor *g = add_layer(tr, l, "kda.g", alpha->rows, alpha->width);
    struct tensor *s = add_layer(tr, l, "kda.S_end", c->kda_heads, c->kda_dim * c->kda_dim);
    struct tensor *conv = add_layer(tr, l, "kda.conv_end", 9, width);

    for (uint32_t i = 0; i < alpha->rows * alpha->width; i++)
        ((float *)g->data)[i] = (float)log((double)((float *)alpha->data)[i]);
    rig_state(&tr->rig, 0, rig_index(&tr->rig, l), s->data, conv->data);
}

/* rows of kv_b times the cached latent: what the absorbed path skips. */
static void derive_kv(struct trace *tr, uint32_t l, const float *kv_b)
{
    const struct kg_model_config *c = &tr->rig.ckpt->config;
    uint32_t n = tr->n_tokens, per_head = c->nope_dim + c->v_dim;
    const float *latent = find_layer(tr, l, "mla.c")->data;
    float *k_n = add_layer(tr, l, "mla.k_n", n, c->mla_heads * c->nope_dim)->data;
    float *v = add_layer(tr, l, "mla.v", n, c->mla_heads * c->v_dim)->data;

    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t o = 0; o < c->mla_heads * per_head; o++) {
            uint32_t h = o / per_head, i = o % per_head;
            double sum = 0.0;
            for (uint32_t j = 0; j < c->kv_lora; j++)
                sum += (double)kv_b[(size_t)o * c->kv_lora + j] * latent[t * c->kv_lora + j];
            if (i < c->nope_dim)
                k_n[(t * c->mla_heads + h) * c->nope_dim + i] = (float)sum;
            else
                v[(t * c->mla_heads + h) * c->v_dim + i - c->nope_dim] = (float)sum;
        }
    }
}

static double score(const struct kg_model_config *c, const float *q, const float *k_n,
                    const float *k_r)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < c->nope_dim; i++)
        sum += (double)q[i] * k_n[i];
    for (uint32_t i = 0; i < c->rope_dim; i++)
        sum += (double)q[c->nope_dim + i] * k_r[i];
    return sum / sqrt((double)(c->nope_dim + c->rope_dim));
}

static void derive_probs(struct trace *tr, uint32_t l)
{
    const struct kg_model_config *c = &tr->rig.ckpt->config;
    uint32_t n = tr->n_tokens, head = c->nope_dim + c->rope_dim;
    const float *q = find_layer(tr, l, "mla.q")->data, *k_n = find_layer(tr, l, "mla.k_n")->data;
    const float *k_r = find_layer(tr, l, "mla.k_r")->data;
    float *probs = add_layer(tr, l, "mla.probs", c->mla_heads * n, n)->data;

    for (uint32_t h = 0; h < c->mla_heads; h++) {
        for (uint32_t t = 0; t < n; t++) {
            double p[512], sum = 0.0;
            for (uint32_t k = 0; k <= t; k++) {
                p[k] = exp(score(c, q + ((size_t)t * c->mla_heads + h) * head,
                                 k_n + ((size_t)k * c->mla_heads + h) * c->nope_dim,
                                 k_r + (size_t)k * c->rope_dim));
                sum += p[k];
            }
            for (uint32_t k = 0; k <= t; k++)
                probs[((size_t)h * n + t) * n + k] = (float)(p[k] / sum);
        }
    }
}

static void derive_mla(struct trace *tr, uint32_t l)
{
    const struct kg_tensor *kv_b = &tr->rig.ckpt->layers[l].mla.kv_b;
    float *w = calloc((size_t)kv_b->rows * kv_b->cols, sizeof(float));

    assert_non_null(w);
    kg_tensor_load_f32(kv_b, 0, (uint64_t)kv_b->rows * kv_b->cols, w);
    derive_kv(tr, l, w);
    derive_probs(tr, l);
    free(w);
    if (!tr->rig.ckpt->config.mla_gate) {
        const struct tensor *o = find_layer(tr, l, "mla.o");
        memcpy(add_layer(tr, l, "mla.o_gated", o->rows, o->width)->data, o->data,
               (size_t)o->rows * o->width * 4);
    }
}

/* What each pick's expert gave, from the same kernel with one pick of weight one. */
static void derive_experts(struct trace *tr, uint32_t l)
{
    const struct kg_model *m = tr->rig.model;
    const struct kg_w_moe *w = &m->layers[l].moe;
    uint32_t n = tr->n_tokens, k = m->c->top_k, width = kg_expert_width(m->c);
    const uint32_t *picks = find_layer(tr, l, "moe.picks")->data;
    float *out = add_layer(tr, l, "moe.expert_out", n * k, width)->data;
    float one = 1.0f;

    for (uint32_t i = 0; i < n * k; i++) {
        struct kg_moe args = {.gate = w->gate,
                              .up = w->up,
                              .down = w->down,
                              .x = (float *)find_layer(tr, l, "moe.latent")->data +
                                   (size_t)(i / k) * width,
                              .y = out + (size_t)i * width,
                              .x_stride = width,
                              .y_stride = width,
                              .ids = &picks[i],
                              .weights = &one,
                              .rows = 1,
                              .top_k = 1,
                              .n_experts = m->c->n_experts,
                              .act = {m->c->act == KG_FFN_SITU ? KG_ACT_SITU : KG_ACT_SWIGLU,
                                      m->c->act_beta, m->c->act_linear_beta},
                              .scratch = m->s.ffn.moe,
                              .scratch_bytes = m->s.ffn.moe_bytes};
        m->k->moe(m->team, &args);
    }
}

static int falling(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

static void derive_router(struct trace *tr, uint32_t l)
{
    const struct kg_model_config *c = &tr->rig.ckpt->config;
    const struct kg_tensor *bias = &tr->rig.ckpt->layers[l].moe.bias;
    uint32_t n = tr->n_tokens, e = c->n_experts;
    const float *logits = find_layer(tr, l, "moe.logits")->data;
    float *scores = add_layer(tr, l, "moe.scores", n, e)->data;
    float *choice = add_layer(tr, l, "moe.choice", n, e)->data;
    float *margin = add_layer(tr, l, "moe.margin", n, 1)->data;
    float b[KG_MAX_EXPERTS], sorted[KG_MAX_EXPERTS];

    kg_tensor_load_f32(bias, 0, e, b);
    for (uint32_t t = 0; t < n; t++) {
        for (uint32_t i = 0; i < e; i++) {
            scores[t * e + i] = (float)(1.0 / (1.0 + exp(-(double)logits[t * e + i])));
            sorted[i] = choice[t * e + i] = scores[t * e + i] + b[i];
        }
        qsort(sorted, e, sizeof(float), falling);
        margin[t] = sorted[c->top_k - 1] - sorted[c->top_k];
    }
}

/* Folder of the checkpoint, and of trace.json and trace.safetensors. */
struct source {
    const char *model, *golden;
};

static const struct source k3 = {TEST_ROOT "/models/k3-tiny", TEST_ROOT "/golden"};
static const struct source kimi_linear = {KIMI_LINEAR, KIMI_LINEAR};

static void run_trace(struct trace *tr, const struct source *src, enum kg_isa isa)
{
    char path[512];
    struct kg_tap hook = {.fn = tap, .ctx = tr};
    struct rig_options o = {.math = KG_MATH_EXACT,
                            .isa = isa,
                            .threads = 2,
                            .page_tokens = 5,
                            .max_rows = 64,
                            .max_tokens = 64};
    uint32_t *ids;
    json_t *doc;

    (void)snprintf(path, sizeof(path), "%s/trace.json", src->golden);
    doc = json_load_file(path, 0, NULL);
    assert_non_null(doc);
    ids = rig_ids(doc, "ids", &tr->n_tokens);
    o.model = src->model;
    assert_true(rig_open(&tr->rig, &o));
    kg_model_set_tap(tr->rig.model, &hook);
    rig_rows(&tr->rig, 0, ids, tr->n_tokens, tr->n_tokens, NULL, 0);
    kg_model_set_tap(tr->rig.model, NULL);
    for (uint32_t l = 0; l < tr->rig.ckpt->config.n_layers; l++) {
        if (tr->rig.ckpt->config.layer_kind[l] == KG_LAYER_KDA)
            derive_kda(tr, l);
        else
            derive_mla(tr, l);
        if (tr->rig.ckpt->config.layer_moe[l]) {
            derive_experts(tr, l);
            derive_router(tr, l);
        }
    }
    free(ids);
    json_decref(doc);
}

static int compare(const struct trace *tr, const struct kg_st_tensor *g, double *worst)
{
    const struct tensor *t = find(tr, g->name);
    struct rig_diff d;

    if (t == NULL) {
        print_error("%s: not computed\n", g->name);
        return 0;
    }
    if ((uint64_t)t->rows * t->width * 4 != g->bytes) {
        print_error("%s: %u x %u elements, golden has %llu bytes\n", g->name, t->rows, t->width,
                    (unsigned long long)g->bytes);
        return 0;
    }
    if (g->dtype == KG_I32) {
        if (memcmp(t->data, g->data, g->bytes) == 0)
            return 1;
        print_error("%s: ids differ\n", g->name);
        return 0;
    }
    d = rig_compare(t->data, g->data, g->bytes / 4);
    if (d.l2 > *worst)
        *worst = d.l2;
    if (d.l2 <= LIMIT)
        return 1;
    print_error("%s: relative L2 %.3g, largest difference %.3g\n", g->name, d.l2, d.max);
    return 0;
}

static void check_trace(const struct source *src, enum kg_isa isa)
{
    struct trace *tr = calloc(1, sizeof(*tr));
    struct kg_error err = {0};
    char path[512];
    double worst = 0.0;
    uint64_t bad = 0;

    assert_non_null(tr);
    (void)snprintf(path, sizeof(path), "%s/trace.safetensors", src->golden);
    if (kg_st_open_file(path, &tr->golden, &err) < 0)
        fail_msg("%s", err.text);
    run_trace(tr, src, isa);
    for (uint64_t i = 0; i < kg_st_count(tr->golden); i++)
        bad += !compare(tr, kg_st_at(tr->golden, i), &worst);
    print_message("%s: %llu tensors, worst relative L2 %.2g\n", tr->rig.k->name,
                  (unsigned long long)kg_st_count(tr->golden), worst);
    assert_int_equal(bad, 0);
    for (uint32_t i = 0; i < tr->n; i++)
        free(tr->t[i].data);
    rig_close(&tr->rig);
    kg_st_close(tr->golden);
    free(tr);
}

static void every_intermediate_equals_the_trace_in_plain_c(void **state)
{
    (void)state;
    check_trace(&k3, KG_ISA_REF);
}

static void every_intermediate_equals_the_trace_with_vectors(void **state)
{
    (void)state;
    check_trace(&k3, KG_ISA_AVX512_FP16);
}

static void every_intermediate_of_kimi_linear_equals_its_trace(void **state)
{
    (void)state;
    check_trace(&kimi_linear, KG_ISA_REF);
    check_trace(&kimi_linear, KG_ISA_AVX512_FP16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_intermediate_equals_the_trace_in_plain_c),
        cmocka_unit_test(every_intermediate_equals_the_trace_with_vectors),
        cmocka_unit_test(every_intermediate_of_kimi_linear_equals_its_trace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
