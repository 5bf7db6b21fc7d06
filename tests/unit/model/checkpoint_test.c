/* Binding: a right checkpoint of either family, and a refusal by name for every way to be wrong. */
#include "model/checkpoint.h"

#include "tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *find_model(const char *name, char *buf, size_t n)
{
    static const char *const tops[] = {".", "..", "../..", "../../.."};
    const char *root = getenv("KEDGE_ROOT");

    for (size_t i = 0; i < 5; i++) {
        char probe[600];
        if (i == 0 && root == NULL) {
            continue;
        }
        (void)snprintf(buf, n, "%s/tests/models/%s", i == 0 ? root : tops[i - 1], name);
        (void)snprintf(probe, sizeof(probe), "%s/config.json", buf);
        FILE *f = fopen(probe, "rb");
        if (f != NULL) {
            (void)fclose(f);
            return buf;
        }
    }
    return NULL;
}

static void demo_checkpoints_bind_every_tensor(void **state)
{
    static const struct {
        const char *name;
        uint64_t n;
        uint32_t expert_dtype;
    } cases[] = {{"k3-tiny", 548, KG_BF16}, {"k3-tiny-mxfp4", 884, KG_U8}};
    char dir[500];

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct kg_error err = {0};
        struct kg_ckpt *k;
        assert_non_null(find_model(cases[i].name, dir, sizeof(dir)));
        if (kg_ckpt_open(dir, &k, &err) < 0) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(k->info.n_tensors, cases[i].n);
        assert_int_equal(k->info.n_bound, cases[i].n);
        assert_int_equal(k->info.n_files, 1);
        assert_int_equal(k->info.mxfp4, cases[i].expert_dtype == KG_U8);
        assert_int_equal(k->layers[1].moe.experts[15].down.dtype, cases[i].expert_dtype);
        assert_int_equal(k->layers[1].moe.experts[15].down.rows, 96);
        assert_int_equal(k->layers[1].moe.experts[15].down.cols, 96);
        assert_int_equal(k->layers[0].kda.a_log.cols, 3); /* padded to 8 in the file */
        assert_int_equal(k->config.eos[0], 3842);
        kg_ckpt_close(k);
    }
}

static void every_place_holds_its_own_tensor(void **state)
{
    struct kg_error err = {0};
    struct kg_ckpt *k;

    (void)state;
    for (int k3 = 0; k3 < 2; k3++) {
        struct tiny *m = tiny_new(k3);
        tiny_set(m, tiny_find(m, "layers.0.self_attn.f_b_proj.weight"), 3, 7.5f);
        tiny_set(m, tiny_find(m, "layers.1.self_attn.kv_b_proj.weight"), 17, -2.0f);
        tiny_set(m, tiny_find(m, "layers.1.post_attention_layernorm.weight"), 31, 9.0f);
        tiny_set(m, tiny_find(m, "shared_experts.up_proj.weight"), 0, 11.0f);
        tiny_set(m, tiny_find(m, "k_conv1d.weight"), 6, 13.0f);
        tiny_write(m);
        if (kg_ckpt_open(m->dir, &k, &err) < 0) {
            fail_msg("%s", err.text);
        }
        float v;
        kg_tensor_load_f32(&k->layers[0].kda.f_b, 3, 1, &v);
        assert_true(v == 7.5f);
        kg_tensor_load_f32(&k->layers[1].mla.kv_b, 17, 1, &v);
        assert_true(v == -2.0f);
        kg_tensor_load_f32(&k->layers[1].post_norm, 31, 1, &v);
        assert_true(v == 9.0f);
        kg_tensor_load_f32(&k->layers[1].moe.shared.up, 0, 1, &v);
        assert_true(v == 11.0f);
        kg_tensor_load_f32(&k->layers[0].kda.k_conv, 6, 1, &v);
        assert_true(v == 13.0f);
        assert_int_equal(k->info.n_bound, m->n);
        assert_int_equal(k->layers[1].moe.experts[0].gate.cols, k3 ? 64 : 32);
        assert_int_equal(k->layers[1].mla.q.data != NULL, !k3);
        assert_int_equal(k->layers[1].mla.g.data != NULL, k3);
        assert_int_equal(k->layers[0].kda.g.data != NULL, k3);
        assert_int_equal(k->layers[0].attn_res_norm.data != NULL, k3);
        assert_int_equal(k->layers[0].kda.o_norm.dtype, k3 ? KG_F32 : KG_BF16);
        assert_null(k->layers[0].mla.o.data);
        assert_null(k->layers[0].moe.experts);
        assert_null(k->layers[1].mlp.gate.data);
        kg_ckpt_close(k);
        tiny_free(m);
    }
}

/* --- corruptions ------------------------------------------------------------------------------ */

static void hide(struct tiny *m, const char *end)
{
    tiny_find(m, end)->hidden = 1;
}

static void no_embed(struct tiny *m)
{
    hide(m, "embed_tokens.weight");
}
static void no_head(struct tiny *m)
{
    hide(m, "lm_head.weight");
}
static void no_final_norm(struct tiny *m)
{
    hide(m, "model.norm.weight");
}
static void no_a_log(struct tiny *m)
{
    hide(m, "A_log");
}
static void no_conv(struct tiny *m)
{
    hide(m, "v_conv1d.weight");
}
static void no_expert(struct tiny *m)
{
    hide(m, "experts.1.w3.weight");
}
static void no_bias(struct tiny *m)
{
    hide(m, "e_score_correction_bias");
}
static void no_scale(struct tiny *m)
{
    hide(m, "experts.0.w2.weight_scale");
}
static void no_packed(struct tiny *m)
{
    hide(m, "experts.0.w2.weight_packed");
}
static void no_res(struct tiny *m)
{
    hide(m, "layers.1.mlp_res_proj.weight");
}
static void no_gate(struct tiny *m)
{
    hide(m, "layers.1.self_attn.g_proj.weight");
}

static void renamed(struct tiny *m)
{
    struct tiny_tensor *t = tiny_find(m, "kv_b_proj.weight");
    (void)snprintf(t->name, sizeof(t->name), "model.layers.1.self_attn.kv_c_proj.weight");
}

static void shape(struct tiny *m, const char *end, uint32_t n, uint64_t a, uint64_t b, uint64_t c)
{
    struct tiny_tensor *t = tiny_find(m, end);
    t->n_dims = n;
    t->dims[0] = a;
    t->dims[1] = b;
    t->dims[2] = c;
}

static void turned(struct tiny *m)
{
    shape(m, "mlp.up_proj.weight", 2, 32, 48, 0);
}
static void flat(struct tiny *m)
{
    shape(m, "mlp.up_proj.weight", 1, 48 * 32, 0, 0);
}
static void norm_square(struct tiny *m)
{
    shape(m, "model.norm.weight", 2, 4, 8, 0);
}
static void norm_column(struct tiny *m)
{
    shape(m, "model.norm.weight", 2, 32, 1, 0);
}
static void conv_turned(struct tiny *m)
{
    shape(m, "q_conv1d.weight", 3, 4, 1, 32);
}
static void conv_wide(struct tiny *m)
{
    shape(m, "q_conv1d.weight", 3, 32, 2, 2);
}
static void a_log_grid(struct tiny *m)
{
    shape(m, "A_log", 2, 2, 4, 0);
}
static void a_log_turned(struct tiny *m)
{
    shape(m, "A_log", 2, 1, 2, 0);
}
static void scale_turned(struct tiny *m)
{
    shape(m, "experts.1.w2.weight_scale", 2, 1, 64, 0);
}
static void packed_turned(struct tiny *m)
{
    shape(m, "experts.1.w2.weight_packed", 2, 16, 64, 0);
}

/* Replaces a tensor by one of the same name and another dtype or shape. */
static void replace(struct tiny *m, const char *end, const char *dtype, uint32_t n_dims,
                    const uint64_t *dims)
{
    struct tiny_tensor *t = tiny_find(m, end);
    char name[192];

    (void)snprintf(name, sizeof(name), "%s", t->name);
    t->hidden = 1;
    (void)snprintf(t->name, sizeof(t->name), "gone");
    (void)tiny_add(m, name, dtype, n_dims, dims);
}

static void short_a_log(struct tiny *m)
{
    replace(m, "A_log", "F32", 1, (uint64_t[]){1});
}
static void int_norm(struct tiny *m)
{
    replace(m, "o_norm.weight", "I32", 1, (uint64_t[]){16});
}
static void u8_matrix(struct tiny *m)
{
    replace(m, "f_a_proj.weight", "U8", 2, (uint64_t[]){16, 32});
}
static void f32_scale(struct tiny *m)
{
    replace(m, "experts.0.w1.weight_scale", "F32", 2, (uint64_t[]){32, 2});
}
static void unlike_expert(struct tiny *m)
{
    replace(m, "experts.1.w1.weight", "F32", 2, (uint64_t[]){32, 32});
}
static void vocab_short(struct tiny *m)
{
    replace(m, "embed_tokens.weight", "BF16", 2, (uint64_t[]){39, 32});
}

static void twice(struct tiny *m)
{
    (void)tiny_add(m, "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight", "BF16",
                   2, (uint64_t[]){32, 64});
}

static void packed_attention(struct tiny *m)
{
    hide(m, "layers.0.self_attn.q_proj.weight");
    (void)tiny_add(m, "language_model.model.layers.0.self_attn.q_proj.weight_packed", "U8", 2,
                   (uint64_t[]){32, 16});
    (void)tiny_add(m, "language_model.model.layers.0.self_attn.q_proj.weight_scale", "U8", 2,
                   (uint64_t[]){32, 1});
}

static void nan_norm(struct tiny *m)
{
    tiny_set(m, tiny_find(m, "layers.1.input_layernorm.weight"), 31, NAN);
}
static void inf_bias(struct tiny *m)
{
    tiny_set(m, tiny_find(m, "e_score_correction_bias"), 1, -INFINITY);
}
static void nan_conv(struct tiny *m)
{
    tiny_set(m, tiny_find(m, "k_conv1d.weight"), 127, NAN);
}
static void inf_dt(struct tiny *m)
{
    tiny_set(m, tiny_find(m, "dt_bias"), 0, INFINITY);
}
static void nan_a_log(struct tiny *m)
{
    tiny_set(m, tiny_find(m, "A_log"), 1, NAN);
}
static void a_log_tail(struct tiny *m)
{
    tiny_set(m, tiny_find(m, "A_log"), 2, 1.0f);
}
static void nan_res(struct tiny *m)
{
    tiny_set(m, tiny_find(m, "layers.0.self_attention_res_proj.weight"), 5, NAN);
}

static void more_layers(struct tiny *m)
{
    (void)tiny_add(m, "model.layers.2.input_layernorm.weight", "BF16", 1, (uint64_t[]){32});
}
static void more_in_layer(struct tiny *m)
{
    (void)tiny_add(m, "model.layers.1.self_attn.q_proj.bias", "BF16", 1, (uint64_t[]){24});
}
static void more_experts(struct tiny *m)
{
    (void)tiny_add(m, "model.layers.1.block_sparse_moe.experts.2.w1.weight", "BF16", 2,
                   (uint64_t[]){32, 32});
}
static void more_text(struct tiny *m)
{
    (void)tiny_add(m, "language_model.score.weight", "BF16", 1, (uint64_t[]){32});
}

/* In the text of config.json. */
static void config(struct tiny *m, const char *find, const char *put)
{
    char *at = strstr(m->config, find), tail[4096];

    assert_non_null(at);
    (void)snprintf(tail, sizeof(tail), "%s", at + strlen(find));
    (void)snprintf(at, sizeof(m->config) - (size_t)(at - m->config), "%s%s", put, tail);
}

static void other_family(struct tiny *m)
{
    config(m, "\"model_type\"", "\"model_type\": \"kimi_k3\", \"text_config\": {\"model_type\"");
    config(m, "\"q_lora_rank\": null}", "\"q_lora_rank\": null}}");
}
static void swapped_kinds(struct tiny *m)
{
    config(m, "\"kda_layers\": [1], \"full_attn_layers\": [2]",
           "\"kda_layers\": [2], \"full_attn_layers\": [1]");
}
static void more_heads(struct tiny *m)
{
    config(m, "\"num_heads\": 2", "\"num_heads\": 3");
}
static void huge(struct tiny *m)
{
    config(m, "\"num_heads\": 2", "\"num_heads\": 1024");
}
static void wider(struct tiny *m)
{
    config(m, "\"hidden_size\": 32", "\"hidden_size\": 64");
}
static void more_layers_said(struct tiny *m)
{
    config(m, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    config(m, "\"kda_layers\": [1]", "\"kda_layers\": [1, 3]");
}
static void odd_expert(struct tiny *m)
{
    config(m, "\"moe_intermediate_size\": 32", "\"moe_intermediate_size\": 48");
}

static const struct corruption {
    const char *name;
    int k3;
    void (*apply)(struct tiny *m);
    const char *want[2]; /* both must be in the text of the refusal */
} corruptions[] = {
    {"embedding left out", 0, no_embed, {"model.embed_tokens.weight is missing", ""}},
    {"head left out", 1, no_head, {"language_model.lm_head.weight is missing", ""}},
    {"final norm left out", 0, no_final_norm, {"model.norm.weight is missing", ""}},
    {"A_log left out", 0, no_a_log, {"layers.0.self_attn.A_log is missing", ""}},
    {"convolution left out", 1, no_conv, {"layers.0.self_attn.v_conv1d.weight is missing", ""}},
    {"expert left out", 0, no_expert, {"experts.1.w3.weight is missing", ""}},
    {"router bias left out", 0, no_bias, {"gate.e_score_correction_bias is missing", ""}},
    {"scale left out", 1, no_scale, {"experts.0.w2.weight_scale is missing", ""}},
    {"codes left out", 1, no_packed, {"experts.0.w2.weight_packed is missing", ""}},
    {"residual score left out", 1, no_res, {"layers.1.mlp_res_proj.weight is missing", ""}},
    {"MLA gate left out", 1, no_gate, {"layers.1.self_attn.g_proj.weight is missing", ""}},
    {"renamed", 0, renamed, {"layers.1.self_attn.kv_b_proj.weight is missing", ""}},
    {"matrix turned", 0, turned, {"mlp.up_proj.weight: shape [32, 48]", "[48, 32]"}},
    {"matrix flat", 0, flat, {"mlp.up_proj.weight: shape [1536]", "[48, 32]"}},
    {"norm a square", 0, norm_square, {"model.norm.weight: shape [4, 8]", "[32]"}},
    {"norm a column", 0, norm_column, {"model.norm.weight: shape [32, 1]", "[32]"}},
    {"convolution turned", 1, conv_turned, {"q_conv1d.weight: shape [4, 1, 32]", "[32, 1, 4]"}},
    {"convolution wide", 0, conv_wide, {"q_conv1d.weight: shape [32, 2, 2]", "[32, 1, 4]"}},
    {"A_log a grid", 1, a_log_grid, {"A_log: shape [2, 4]", ""}},
    {"A_log two-dimensional", 0, a_log_turned, {"A_log: shape [1, 2]", ""}},
    {"A_log short", 1, short_a_log, {"A_log: shape [1]", ""}},
    {"A_log longer than its zeros", 1, a_log_tail, {"A_log: value 2 is past the 2 heads", ""}},
    {"scales turned", 1, scale_turned, {"experts.1.w2.weight_scale: shape [1, 64]", "[64, 1]"}},
    {"codes turned", 1, packed_turned, {"experts.1.w2.weight_packed: shape [16, 64]", "[64, 16]"}},
    {"norm of integers", 0, int_norm, {"o_norm.weight: dtype I32", ""}},
    {"matrix of bytes", 1, u8_matrix, {"f_a_proj.weight: dtype U8", ""}},
    {"scales of floats", 1, f32_scale, {"experts.0.w1.weight_scale: dtype F32, must be U8", ""}},
    {"experts unlike", 0, unlike_expert, {"experts.1.w1 has another dtype", ""}},
    {"vocabulary short", 0, vocab_short, {"embed_tokens.weight: shape [39, 32]", "[40, 32]"}},
    {"plain and packed", 1, twice, {"experts.0.w1.weight: is there twice", ""}},
    {"attention packed", 1, packed_attention, {"q_proj.weight_packed: only routed experts", ""}},
    {"NaN in a norm", 0, nan_norm, {"layers.1.input_layernorm.weight: value 31", "not finite"}},
    {"inf in the router bias", 0, inf_bias, {"e_score_correction_bias: value 1", "not finite"}},
    {"NaN in a convolution", 1, nan_conv, {"k_conv1d.weight: value 127", "not finite"}},
    {"inf in dt_bias", 0, inf_dt, {"dt_bias: value 0", "not finite"}},
    {"NaN in A_log", 0, nan_a_log, {"A_log: value 1", "not finite"}},
    {"NaN in a residual score", 1, nan_res, {"self_attention_res_proj.weight: value 5", ""}},
    {"a layer too many", 0, more_layers, {"model.layers.2.input_layernorm.weight", "only 2"}},
    {"a bias nobody knows", 0, more_in_layer, {"q_proj.bias: is no tensor of the model", ""}},
    {"an expert too many", 0, more_experts, {"experts.2.w1.weight: is no tensor", ""}},
    {"a text tensor too many", 1, more_text, {"language_model.score.weight: is no tensor", ""}},
    {"family of another name", 0, other_family, {"language_model.model.embed", "is missing"}},
    {"layer kinds swapped", 0, swapped_kinds, {"layers.0.self_attn.", ""}},
    {"more heads than there are", 0, more_heads, {"self_attn.q_proj.weight: shape [32, 32]", ""}},
    {"very many heads", 1, huge, {"self_attn.q_proj.weight: shape [32, 32]", "[16384, 32]"}},
    {"wider than it is", 0, wider, {"embed_tokens.weight: shape [40, 32]", "[40, 64]"}},
    {"deeper than it is", 0, more_layers_said, {"layers.2.input_layernorm.weight is missing", ""}},
    {"expert width odd for MXFP4", 1, odd_expert, {"shared_experts.gate_proj.weight", "[48, 32]"}},
};

static void every_corruption_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(corruptions) / sizeof(corruptions[0]); i++) {
        const struct corruption *c = &corruptions[i];
        struct kg_error err = {0};
        struct kg_ckpt *k = NULL;
        struct tiny *m = tiny_new(c->k3);
        c->apply(m);
        tiny_write(m);
        int rc = kg_ckpt_open(m->dir, &k, &err);
        if (rc != KG_EINVAL || strstr(err.text, c->want[0]) == NULL ||
            strstr(err.text, c->want[1]) == NULL) {
            fail_msg("%s: rc %d, \"%s\", wanted \"%s\" and \"%s\"", c->name, rc, err.text,
                     c->want[0], c->want[1]);
        }
        assert_null(k);
        tiny_free(m);
    }
}

static void odd_columns_of_packed_experts_are_refused(void **state)
{
    struct kg_error err = {0};
    struct kg_ckpt *k;
    struct tiny *m = tiny_new(1);

    (void)state;
    config(m, "\"routed_expert_hidden_size\": 64", "\"routed_expert_hidden_size\": 48");
    replace(m, "routed_expert_down_proj.weight", "BF16", 2, (uint64_t[]){48, 32});
    replace(m, "routed_expert_norm.weight", "BF16", 1, (uint64_t[]){48});
    replace(m, "routed_expert_up_proj.weight", "BF16", 2, (uint64_t[]){32, 48});
    tiny_write(m);
    assert_int_equal(kg_ckpt_open(m->dir, &k, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, "experts.0.w1.weight_packed: 48 columns"));
    tiny_free(m);
}

static void vision_is_skipped_and_strangers_are_named(void **state)
{
    struct kg_error err = {0};
    struct kg_ckpt *k;
    struct tiny *m = tiny_new(1);

    (void)state;
    (void)tiny_add(m, "vision_tower.patch_embed.proj.weight", "BF16", 4,
                   (uint64_t[]){4, 3, 14, 14});
    (void)tiny_add(m, "mm_projector.proj.0.weight", "BF16", 2, (uint64_t[]){8, 8});
    (void)tiny_add(m, "extra.thing", "I8", 1, (uint64_t[]){3});
    tiny_write(m);
    if (kg_ckpt_open(m->dir, &k, &err) < 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(k->info.n_vision, 2);
    assert_int_equal(k->info.vision_bytes, 2 * (4 * 3 * 14 * 14 + 64));
    assert_int_equal(k->info.n_ignored, 1);
    assert_string_equal(k->info.ignored[0], "extra.thing");
    assert_null(k->info.ignored[1]);
    assert_int_equal(k->info.n_bound, m->n - 3);
    kg_ckpt_close(k);
    tiny_free(m);
}

static void tied_head_is_the_embedding(void **state)
{
    struct kg_error err = {0};
    struct kg_ckpt *k;

    (void)state;
    for (int with_head = 0; with_head < 2; with_head++) {
        struct tiny *m = tiny_new(0);
        config(m, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
        tiny_find(m, "lm_head.weight")->hidden = !with_head;
        tiny_write(m);
        if (kg_ckpt_open(m->dir, &k, &err) < 0) {
            fail_msg("%s", err.text);
        }
        assert_ptr_equal(k->lm_head.data, k->embed.data);
        assert_int_equal(k->info.n_ignored, with_head);
        kg_ckpt_close(k);
        tiny_free(m);
    }
}

static void accepted_forms_of_small_tensors_give_equal_values(void **state)
{
    struct kg_error err = {0};
    struct kg_ckpt *k;
    struct tiny *m = tiny_new(0);
    float v[128];

    (void)state;
    shape(m, "q_conv1d.weight", 2, 32, 4, 0);
    shape(m, "A_log", 1, 2, 0, 0);
    replace(m, "dt_bias", "BF16", 1, (uint64_t[]){32});
    replace(m, "o_norm.weight", "F32", 2, (uint64_t[]){1, 16});
    tiny_write(m);
    if (kg_ckpt_open(m->dir, &k, &err) < 0) {
        fail_msg("%s", err.text);
    }
    const struct kg_ckpt_kda *a = &k->layers[0].kda;
    assert_int_equal(a->q_conv.rows, 32);
    assert_int_equal(a->q_conv.cols, 4);
    const struct kg_tensor *all[] = {&a->q_conv, &a->a_log, &a->dt_bias, &a->o_norm};
    for (int i = 0; i < 4; i++) {
        uint64_t n = (uint64_t)all[i]->rows * all[i]->cols;
        kg_tensor_load_f32(all[i], 0, n, v);
        for (uint64_t j = 0; j < n; j++) {
            assert_true(v[j] == 0.5f + 0.125f * (float)(j % 3));
        }
    }
    kg_ckpt_close(k);
    tiny_free(m);
}

static void data_at_odd_addresses_are_copied_to_even_ones(void **state)
{
    struct kg_error err = {0};
    struct kg_ckpt *k;
    struct tiny *m = tiny_new(0);

    (void)state;
    /* one byte before everything: all data lie at odd offsets then */
    m->data = realloc(m->data, (size_t)m->n_data + 1);
    assert_non_null(m->data);
    memmove(m->data + 1, m->data, (size_t)m->n_data);
    m->n_data++;
    for (uint32_t i = 0; i < m->n; i++) {
        m->t[i].begin++;
        m->t[i].end++;
    }
    tiny_write(m);
    if (kg_ckpt_open(m->dir, &k, &err) < 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(k->info.n_realigned, m->n);
    assert_int_equal((uintptr_t)k->layers[0].kda.dt_bias.data % 4, 0);
    float v;
    kg_tensor_load_f32(&k->layers[0].kda.dt_bias, 1, 1, &v);
    assert_true(v == 0.625f);
    kg_ckpt_close(k);
    tiny_free(m);
}

static void sharded_checkpoint_binds_like_a_single_file(void **state)
{
    struct kg_error err = {0};
    struct kg_ckpt *k;
    struct tiny *m = tiny_new(1);

    (void)state;
    tiny_write_sharded(m, NULL);
    if (kg_ckpt_open(m->dir, &k, &err) < 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(k->info.n_files, 2);
    assert_int_equal(k->info.n_bound, m->n);
    kg_ckpt_close(k);
    tiny_free(m);
}

static void stored_numbers_load_exactly(void **state)
{
    static const uint16_t halves[] = {0x0000, 0x8000, 0x3c00, 0xc000, 0x7bff, 0x0001,
                                      0x03ff, 0x0400, 0x7c00, 0xfc00, 0x3555};
    static const float half_values[] = {0.0f,     -0.0f,     1.0f,       -2.0f,
                                        65504.0f, 0x1p-24f,  0x3ffp-24f, 0x1p-14f,
                                        INFINITY, -INFINITY, 0x1.554p-2f};
    static const uint16_t bf16[] = {0x3f80, 0xc000, 0x0001, 0x7f80};
    static const float bf16_values[] = {1.0f, -2.0f, 0x1p-133f, INFINITY};
    /* codes 0..15 in order, low nibble first, then the same again in the second group */
    uint8_t codes[32], scale[2] = {127, 130};
    static const float e2m1[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    struct kg_tensor h = {.data = halves, .dtype = KG_F16, .rows = 1, .cols = 11};
    struct kg_tensor b = {.data = bf16, .dtype = KG_BF16, .rows = 1, .cols = 4};
    struct kg_tensor q = {.data = codes, .scale = scale, .dtype = KG_U8, .rows = 1, .cols = 64};
    float v[64];

    (void)state;
    kg_tensor_load_f32(&h, 0, 11, v);
    assert_memory_equal(v, half_values, sizeof(half_values));
    kg_tensor_load_f32(&b, 0, 4, v);
    assert_memory_equal(v, bf16_values, sizeof(bf16_values));
    for (int i = 0; i < 32; i++) {
        codes[i] = (uint8_t)(2 * i % 16 | (2 * i + 1) % 16 << 4);
    }
    kg_tensor_load_f32(&q, 0, 64, v);
    for (int i = 0; i < 64; i++) {
        float want = e2m1[i % 8] * (i % 16 < 8 ? 1.0f : -1.0f) * (i < 32 ? 1.0f : 8.0f);
        assert_true(v[i] == want);
    }
    kg_tensor_load_f32(&q, 37, 1, v);
    assert_true(v[0] == 24.0f); /* code 5 = 3, times 8 */
    scale[0] = 0;
    scale[1] = 255;
    kg_tensor_load_f32(&q, 0, 64, v);
    assert_true(v[2] == 0x1p-127f);
    assert_true(isnan(v[33]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_checkpoints_bind_every_tensor),
        cmocka_unit_test(every_place_holds_its_own_tensor),
        cmocka_unit_test(every_corruption_is_refused_by_name),
        cmocka_unit_test(odd_columns_of_packed_experts_are_refused),
        cmocka_unit_test(vision_is_skipped_and_strangers_are_named),
        cmocka_unit_test(tied_head_is_the_embedding),
        cmocka_unit_test(accepted_forms_of_small_tensors_give_equal_values),
        cmocka_unit_test(data_at_odd_addresses_are_copied_to_even_ones),
        cmocka_unit_test(sharded_checkpoint_binds_like_a_single_file),
        cmocka_unit_test(stored_numbers_load_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
