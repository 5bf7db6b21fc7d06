/*
 * The two published models at full size, as sparse files without content: names, shapes and dtypes
 * written from the published inventories. Their counts and byte totals are those of the published
 * indexes, and every text tensor finds its place.
 */
#include "model/checkpoint.h"

#include "tiny.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A folder being written: one shard at a time, and the index. */
struct writer {
    struct tiny *m; /* only for its folder */
    FILE *index, *head;
    char *text; /* header of the shard */
    size_t n_text;
    char file[64];
    uint64_t at;           /* bytes of data in the shard */
    uint64_t n, all_bytes; /* over all shards */
    int sparse;            /* 0: the file system refused */
    int odd;               /* 1: data begin at an odd address */
};

static void begin_shard(struct writer *w, const char *file)
{
    (void)snprintf(w->file, sizeof(w->file), "%s", file);
    w->head = open_memstream(&w->text, &w->n_text);
    assert_non_null(w->head);
    (void)fputs("{\"__metadata__\":{}", w->head);
    w->at = 0;
}

static void end_shard(struct writer *w)
{
    unsigned char len[8];
    char path[600];

    (void)fputc('}', w->head);
    (void)fflush(w->head);
    while (w->n_text % 8 != (w->odd ? 1 : 0)) {
        (void)fputc(' ', w->head);
        (void)fflush(w->head);
    }
    assert_int_equal(fclose(w->head), 0);
    for (int i = 0; i < 8; i++) {
        len[i] = (unsigned char)((uint64_t)w->n_text >> (8 * i));
    }
    (void)snprintf(path, sizeof(path), "%s/%s", w->m->dir, w->file);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(len, 1, 8, f), 8);
    assert_int_equal(fwrite(w->text, 1, w->n_text, f), w->n_text);
    assert_int_equal(fflush(f), 0);
    if (ftruncate(fileno(f), (off_t)(8 + w->n_text + w->at)) != 0) {
        w->sparse = 0;
    }
    (void)fclose(f);
    free(w->text);
}

static void put(struct writer *w, const char *at, const char *name, const char *dtype, uint64_t a,
                uint64_t b)
{
    uint64_t size = dtype[0] == 'F' ? 4 : dtype[0] == 'B' ? 2 : 1, n = a * (b == 0 ? 1 : b);

    (void)fprintf(w->head, ",\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%llu", at, name, dtype,
                  (unsigned long long)a);
    if (b != 0) {
        (void)fprintf(w->head, "%s,%llu", strstr(name, "conv1d") != NULL ? ",1" : "",
                      (unsigned long long)b);
    }
    (void)fprintf(w->head, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->at,
                  (unsigned long long)(w->at + n * size));
    (void)fprintf(w->index, "%s\"%s%s\":\"%s\"", w->n == 0 ? "" : ",", at, name, w->file);
    w->at += n * size;
    w->all_bytes += n * size;
    w->n++;
}

/* Kimi-Linear: everything BF16 but A_log and dt_bias. */
static void linear_layer(struct writer *w, int l)
{
    static const char *const qkv[] = {"q", "k", "v"};
    char at[96], name[64];

    (void)snprintf(at, sizeof(at), "model.layers.%d.", l);
    put(w, at, "input_layernorm.weight", "BF16", 2304, 0);
    put(w, at, "post_attention_layernorm.weight", "BF16", 2304, 0);
    if (l % 4 == 3 || l == 26) {
        put(w, at, "self_attn.q_proj.weight", "BF16", 6144, 2304);
        put(w, at, "self_attn.kv_a_proj_with_mqa.weight", "BF16", 576, 2304);
        put(w, at, "self_attn.kv_a_layernorm.weight", "BF16", 512, 0);
        put(w, at, "self_attn.kv_b_proj.weight", "BF16", 8192, 512);
        put(w, at, "self_attn.o_proj.weight", "BF16", 2304, 4096);
    } else {
        for (int i = 0; i < 3; i++) {
            (void)snprintf(name, sizeof(name), "self_attn.%s_proj.weight", qkv[i]);
            put(w, at, name, "BF16", 4096, 2304);
            (void)snprintf(name, sizeof(name), "self_attn.%s_conv1d.weight", qkv[i]);
            put(w, at, name, "BF16", 4096, 4);
        }
        put(w, at, "self_attn.A_log", "F32", 32, 0);
        put(w, at, "self_attn.dt_bias", "F32", 4096, 0);
        put(w, at, "self_attn.f_a_proj.weight", "BF16", 128, 2304);
        put(w, at, "self_attn.f_b_proj.weight", "BF16", 4096, 128);
        put(w, at, "self_attn.g_a_proj.weight", "BF16", 128, 2304);
        put(w, at, "self_attn.g_b_proj.weight", "BF16", 4096, 128);
        put(w, at, "self_attn.b_proj.weight", "BF16", 32, 2304);
        put(w, at, "self_attn.o_norm.weight", "BF16", 128, 0);
        put(w, at, "self_attn.o_proj.weight", "BF16", 2304, 4096);
    }
    if (l == 0) {
        put(w, at, "mlp.gate_proj.weight", "BF16", 9216, 2304);
        put(w, at, "mlp.up_proj.weight", "BF16", 9216, 2304);
        put(w, at, "mlp.down_proj.weight", "BF16", 2304, 9216);
        return;
    }
    (void)snprintf(at, sizeof(at), "model.layers.%d.block_sparse_moe.", l);
    put(w, at, "gate.weight", "BF16", 256, 2304);
    put(w, at, "gate.e_score_correction_bias", "BF16", 256, 0);
    for (int e = 0; e < 256; e++) {
        for (int i = 1; i <= 3; i++) {
            (void)snprintf(name, sizeof(name), "experts.%d.w%d.weight", e, i);
            put(w, at, name, "BF16", i == 2 ? 2304 : 1024, i == 2 ? 1024 : 2304);
        }
    }
    put(w, at, "shared_experts.gate_proj.weight", "BF16", 1024, 2304);
    put(w, at, "shared_experts.up_proj.weight", "BF16", 1024, 2304);
    put(w, at, "shared_experts.down_proj.weight", "BF16", 2304, 1024);
}

static void k3_attention(struct writer *w, const char *at, int mla)
{
    static const char *const qkv[] = {"q", "k", "v"};
    char name[64];

    if (mla) {
        put(w, at, "q_a_proj.weight", "BF16", 1536, 7168);
        put(w, at, "q_a_layernorm.weight", "BF16", 1536, 0);
        put(w, at, "q_b_proj.weight", "BF16", 18432, 1536);
        put(w, at, "kv_a_proj_with_mqa.weight", "BF16", 576, 7168);
        put(w, at, "kv_a_layernorm.weight", "BF16", 512, 0);
        put(w, at, "kv_b_proj.weight", "BF16", 24576, 512);
    } else {
        for (int i = 0; i < 3; i++) {
            (void)snprintf(name, sizeof(name), "%s_proj.weight", qkv[i]);
            put(w, at, name, "BF16", 12288, 7168);
            (void)snprintf(name, sizeof(name), "%s_conv1d.weight", qkv[i]);
            put(w, at, name, "F32", 12288, 4);
        }
        put(w, at, "A_log", "F32", 128, 0);
        put(w, at, "dt_bias", "F32", 12288, 0);
        put(w, at, "f_a_proj.weight", "BF16", 128, 7168);
        put(w, at, "f_b_proj.weight", "BF16", 12288, 128);
        put(w, at, "b_proj.weight", "BF16", 96, 7168);
        put(w, at, "o_norm.weight", "F32", 128, 0);
    }
    put(w, at, "g_proj.weight", "BF16", 12288, 7168);
    put(w, at, "o_proj.weight", "BF16", 7168, 12288);
}

static void k3_moe(struct writer *w, const char *at)
{
    char name[64];

    put(w, at, "gate.weight", "BF16", 896, 7168);
    put(w, at, "gate.e_score_correction_bias", "F32", 896, 0);
    put(w, at, "routed_expert_down_proj.weight", "BF16", 3584, 7168);
    put(w, at, "routed_expert_norm.weight", "BF16", 3584, 0);
    put(w, at, "routed_expert_up_proj.weight", "BF16", 7168, 3584);
    for (int e = 0; e < 896; e++) {
        for (int i = 1; i <= 3; i++) {
            (void)snprintf(name, sizeof(name), "experts.%d.w%d.weight_packed", e, i);
            put(w, at, name, "U8", i == 2 ? 3584 : 3072, i == 2 ? 1536 : 1792);
            (void)snprintf(name, sizeof(name), "experts.%d.w%d.weight_scale", e, i);
            put(w, at, name, "U8", i == 2 ? 3584 : 3072, i == 2 ? 96 : 112);
        }
    }
    put(w, at, "shared_experts.gate_proj.weight", "BF16", 6144, 7168);
    put(w, at, "shared_experts.up_proj.weight", "BF16", 6144, 7168);
    put(w, at, "shared_experts.down_proj.weight", "BF16", 7168, 6144);
}

static void k3_layer(struct writer *w, int l)
{
    char at[96];

    (void)snprintf(at, sizeof(at), "language_model.model.layers.%d.", l);
    put(w, at, "input_layernorm.weight", "BF16", 7168, 0);
    put(w, at, "post_attention_layernorm.weight", "BF16", 7168, 0);
    put(w, at, "self_attention_res_norm.weight", "BF16", 7168, 0);
    put(w, at, "self_attention_res_proj.weight", "BF16", 1, 7168);
    put(w, at, "mlp_res_norm.weight", "BF16", 7168, 0);
    put(w, at, "mlp_res_proj.weight", "BF16", 1, 7168);
    (void)snprintf(at, sizeof(at), "language_model.model.layers.%d.self_attn.", l);
    k3_attention(w, at, l % 4 == 3 || l == 92);
    if (l == 0) {
        (void)snprintf(at, sizeof(at), "language_model.model.layers.%d.mlp.", l);
        put(w, at, "gate_proj.weight", "BF16", 33792, 7168);
        put(w, at, "up_proj.weight", "BF16", 33792, 7168);
        put(w, at, "down_proj.weight", "BF16", 7168, 33792);
    } else {
        (void)snprintf(at, sizeof(at), "language_model.model.layers.%d.block_sparse_moe.", l);
        k3_moe(w, at);
    }
}

/* Returns the number of tensors. Some shapes have one axis more in the file; bytes are the same. */
static uint64_t k3_vision(struct writer *w)
{
    uint64_t before = w->n;
    char at[96];

    put(w, "vision_tower.", "patch_embed.proj.weight", "BF16", 1024, 3ull * 14 * 14);
    put(w, "vision_tower.", "patch_embed.pos_emb.weight", "BF16", 64ull * 64, 1024);
    for (int b = 0; b < 27; b++) {
        (void)snprintf(at, sizeof(at), "vision_tower.encoder.blocks.%d.", b);
        put(w, at, "norm0.weight", "BF16", 1024, 0);
        put(w, at, "norm1.weight", "BF16", 1024, 0);
        put(w, at, "wqkv.weight", "BF16", 4608, 1024);
        put(w, at, "wo.weight", "BF16", 1024, 1536);
        put(w, at, "mlp.fc0.weight", "BF16", 4096, 1024);
        put(w, at, "mlp.fc1.weight", "BF16", 1024, 4096);
    }
    put(w, "vision_tower.", "encoder.final_layernorm.weight", "BF16", 1024, 0);
    put(w, "mm_projector.", "proj.0.weight", "BF16", 4096, 4096);
    put(w, "mm_projector.", "proj.2.weight", "BF16", 7168, 4096);
    put(w, "mm_projector.", "post_norm.weight", "BF16", 7168, 0);
    return w->n - before;
}

static void write_config(const struct tiny *m, int k3)
{
    char lists[2][1200], text[4096];
    int n_layers = k3 ? 93 : 27, at[2] = {0, 0};

    for (int l = 0; l < n_layers; l++) {
        int mla = l % 4 == 3 || l == n_layers - 1;
        at[mla] += snprintf(lists[mla] + at[mla], sizeof(lists[mla]) - (size_t)at[mla], "%s%d",
                            at[mla] == 0 ? "" : ",", l + 1);
    }
    (void)snprintf(
        text, sizeof(text),
        "%s\"model_type\":\"kimi_linear\",\"hidden_size\":%d,\"num_hidden_layers\":%d,"
        "\"vocab_size\":163840,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":1048576,"
        "\"linear_attn_config\":{\"kda_layers\":[%s],\"full_attn_layers\":[%s],\"num_heads\":%d,"
        "\"head_dim\":128,\"short_conv_kernel_size\":4%s},\"num_attention_heads\":%d,"
        "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,"
        "\"v_head_dim\":128,\"mla_use_nope\":true,\"first_k_dense_replace\":1,%s}%s",
        k3 ? "{\"model_type\":\"kimi_k3\",\"text_config\":{" : "{", k3 ? 7168 : 2304, n_layers,
        lists[0], lists[1], k3 ? 96 : 32,
        k3 ? ",\"gate_lower_bound\":-5.0,\"use_full_rank_gate\":true" : "", k3 ? 96 : 32,
        k3 ? "\"hidden_act\":\"situ\",\"activation_situ_beta\":4.0,"
             "\"activation_situ_linear_beta\":25.0,\"q_lora_rank\":1536,"
             "\"mla_use_output_gate\":true,\"routed_expert_hidden_size\":3584,"
             "\"latent_moe_use_norm\":true,\"attn_res_block_size\":12,"
             "\"intermediate_size\":33792,\"num_experts\":896,\"num_experts_per_token\":16,"
             "\"moe_intermediate_size\":3072,\"num_shared_experts\":2"
           : "\"hidden_act\":\"silu\",\"q_lora_rank\":null,\"intermediate_size\":9216,"
             "\"num_experts\":256,\"num_experts_per_token\":8,\"moe_intermediate_size\":1024,"
             "\"num_shared_experts\":1,\"routed_scaling_factor\":2.446",
        k3 ? "}" : "");
    tiny_file(m, "config.json", text, strlen(text));
}

static void open_index(struct writer *w)
{
    char path[600];

    (void)snprintf(path, sizeof(path), "%s/model.safetensors.index.json", w->m->dir);
    w->index = fopen(path, "wb");
    assert_non_null(w->index);
    (void)fputs("{\"weight_map\":{", w->index);
}

static void check(struct writer *w, uint64_t n, uint64_t bytes, uint64_t n_vision)
{
    struct kg_error err = {0};
    struct kg_ckpt *k;

    assert_int_equal(w->n, n);
    assert_int_equal(w->all_bytes, bytes);
    if (!w->sparse) {
        tiny_free(w->m);
        print_message("skipped: this file system holds no sparse files of this size\n");
        skip();
    }
    if (kg_ckpt_open(w->m->dir, &k, &err) < 0) {
        tiny_free(w->m);
        fail_msg("%s", err.text);
    }
    assert_int_equal(k->info.n_tensors, n);
    assert_int_equal(k->info.n_vision, n_vision);
    assert_int_equal(k->info.n_bound, n - n_vision);
    assert_int_equal(k->info.n_ignored, 0);
    assert_int_equal(k->info.n_realigned, 0);
    assert_int_equal(k->info.bound_bytes + k->info.vision_bytes, bytes);
    assert_int_equal(k->info.mxfp4, n_vision > 0);
    kg_ckpt_close(k);
    tiny_free(w->m);
}

/* Half a million tensors take a while. */
static int is_full(void)
{
    int full = getenv("KEDGE_FULL") != NULL;

    if (!full) {
        print_message("skipped: runs with KEDGE_FULL=1\n");
    }
    return full;
}

static void write_linear(struct writer *w)
{
    open_index(w);
    begin_shard(w, "m-1.safetensors");
    put(w, "", "model.embed_tokens.weight", "BF16", 163840, 2304);
    put(w, "", "lm_head.weight", "BF16", 163840, 2304);
    put(w, "", "model.norm.weight", "BF16", 2304, 0);
    for (int l = 0; l < 27; l++) {
        linear_layer(w, l);
    }
    end_shard(w);
    write_config(w->m, 0);
    (void)fputs("}}", w->index);
    assert_int_equal(fclose(w->index), 0);
}

static void kimi_linear_binds_whole_with_the_published_totals(void **state)
{
    struct writer w = {.m = tiny_new(0), .sparse = 1};

    (void)state;
    write_linear(&w);
    check(&w, 20493, 98245528576ull, 0);
}

/* One byte more in a header puts every matrix at an odd address. */
static void hundred_gigabytes_at_odd_addresses_are_refused_not_copied(void **state)
{
    if (!is_full()) {
        skip();
    }
    struct writer w = {.m = tiny_new(0), .sparse = 1, .odd = 1};
    struct kg_error err = {0};
    struct kg_ckpt *k;

    (void)state;
    write_linear(&w);
    if (!w.sparse) {
        tiny_free(w.m);
        print_message("skipped: this file system holds no sparse files of this size\n");
        skip();
    }
    int rc = kg_ckpt_open(w.m->dir, &k, &err);
    tiny_free(w.m);
    assert_int_equal(rc, KG_EINVAL);
    assert_non_null(strstr(err.text, "odd address"));
}

static void kimi_k3_binds_whole_with_the_published_totals(void **state)
{
    if (!is_full()) {
        skip();
    }
    struct writer w = {.m = tiny_new(0), .sparse = 1};
    char file[40];

    (void)state;
    open_index(&w);
    for (int l = 0; l < 93; l++) {
        (void)snprintf(file, sizeof(file), "m-%d.safetensors", l + 1);
        begin_shard(&w, file);
        k3_layer(&w, l);
        end_shard(&w);
    }
    begin_shard(&w, "m-94.safetensors");
    put(&w, "language_model.", "model.embed_tokens.weight", "BF16", 163840, 7168);
    put(&w, "language_model.", "lm_head.weight", "BF16", 163840, 7168);
    put(&w, "language_model.", "model.norm.weight", "BF16", 7168, 0);
    put(&w, "language_model.", "model.output_attn_res_norm.weight", "BF16", 7168, 0);
    put(&w, "language_model.", "model.output_attn_res_proj.weight", "BF16", 1, 7168);
    end_shard(&w);
    begin_shard(&w, "m-95.safetensors");
    uint64_t n_vision = k3_vision(&w);
    end_shard(&w);
    write_config(w.m, 1);
    (void)fputs("}}", w.index);
    assert_int_equal(fclose(w.index), 0);
    check(&w, 497220, 1560860324864ull, n_vision);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kimi_linear_binds_whole_with_the_published_totals),
        cmocka_unit_test(hundred_gigabytes_at_odd_addresses_are_refused_not_copied),
        cmocka_unit_test(kimi_k3_binds_whole_with_the_published_totals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
