#include "tiny.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static uint64_t element_bytes(const char *dtype)
{
    return strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0    ? 4
           : strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0 ? 2
                                                                     : 1;
}

void tiny_set(struct tiny *m, const struct tiny_tensor *t, uint64_t i, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if (strcmp(t->dtype, "F32") == 0) {
        memcpy(m->data + t->begin + 4 * i, &bits, 4);
    } else {
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(m->data + t->begin + 2 * i, &half, 2);
    }
}

struct tiny_tensor *tiny_add(struct tiny *m, const char *name, const char *dtype, uint32_t n_dims,
                             const uint64_t *dims)
{
    struct tiny_tensor *t = &m->t[m->n++];
    uint64_t n = 1, size = element_bytes(dtype);

    assert_true(m->n <= TINY_MAX);
    *t = (struct tiny_tensor){.n_dims = n_dims, .shard = m->n % 2};
    (void)snprintf(t->name, sizeof(t->name), "%s", name);
    (void)snprintf(t->dtype, sizeof(t->dtype), "%s", dtype);
    for (uint32_t i = 0; i < n_dims; i++) {
        t->dims[i] = dims[i];
        n *= dims[i];
    }
    t->begin = m->n_data;
    t->end = m->n_data + n * size;
    m->data = realloc(m->data, (size_t)t->end);
    assert_non_null(m->data);
    m->n_data = t->end;
    memset(m->data + t->begin, 127, (size_t)(n * size));
    for (uint64_t i = 0; i < n && size > 1; i++) {
        tiny_set(m, t, i, 0.5f + 0.125f * (float)(i % 3));
    }
    return t;
}

static void add(struct tiny *m, const char *at, const char *name, const char *dtype, uint64_t a,
                uint64_t b)
{
    char full[192];
    uint64_t dims[2] = {a, b};

    (void)snprintf(full, sizeof(full), "%s%s", at, name);
    (void)tiny_add(m, full, dtype, b == 0 ? 1 : 2, dims);
}

/* hidden 32, KDA 2 heads of 16 (P 32), MLA 2 heads of 8+4/8, kv rank 16, q rank 24 for K3. */
static void add_kda(struct tiny *m, const char *at, int k3)
{
    static const char *const convs[] = {"q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"};
    char full[192];

    add(m, at, "q_proj.weight", "BF16", 32, 32);
    add(m, at, "k_proj.weight", "BF16", 32, 32);
    add(m, at, "v_proj.weight", "BF16", 32, 32);
    for (int i = 0; i < 3; i++) {
        (void)snprintf(full, sizeof(full), "%s%s", at, convs[i]);
        (void)tiny_add(m, full, k3 ? "F32" : "BF16", 3, (uint64_t[]){32, 1, 4});
    }
    (void)snprintf(full, sizeof(full), "%sA_log", at);
    struct tiny_tensor *a_log = k3 ? tiny_add(m, full, "F32", 1, (uint64_t[]){8})
                                   : tiny_add(m, full, "F32", 4, (uint64_t[]){1, 1, 2, 1});
    for (uint64_t i = 2; k3 && i < 8; i++) {
        tiny_set(m, a_log, i, 0);
    }
    add(m, at, "dt_bias", "F32", 32, 0);
    add(m, at, "f_a_proj.weight", "BF16", 16, 32);
    add(m, at, "f_b_proj.weight", "BF16", 32, 16);
    add(m, at, "b_proj.weight", "BF16", 2, 32);
    if (k3) {
        add(m, at, "g_proj.weight", "BF16", 32, 32);
    } else {
        add(m, at, "g_a_proj.weight", "BF16", 16, 32);
        add(m, at, "g_b_proj.weight", "BF16", 32, 16);
    }
    add(m, at, "o_norm.weight", k3 ? "F32" : "BF16", 16, 0);
    add(m, at, "o_proj.weight", "BF16", 32, 32);
}

static void add_mla(struct tiny *m, const char *at, int k3)
{
    if (k3) {
        add(m, at, "q_a_proj.weight", "BF16", 24, 32);
        add(m, at, "q_a_layernorm.weight", "BF16", 24, 0);
        add(m, at, "q_b_proj.weight", "BF16", 24, 24);
        add(m, at, "g_proj.weight", "BF16", 16, 32);
    } else {
        add(m, at, "q_proj.weight", "BF16", 24, 32);
    }
    add(m, at, "kv_a_proj_with_mqa.weight", "BF16", 20, 32);
    add(m, at, "kv_a_layernorm.weight", "BF16", 16, 0);
    add(m, at, "kv_b_proj.weight", "BF16", 32, 16);
    add(m, at, "o_proj.weight", "BF16", 32, 16);
}

static void add_moe(struct tiny *m, const char *at, int k3)
{
    static const char *const ws[] = {"w1", "w3", "w2"};
    char name[64];

    add(m, at, "gate.weight", "BF16", 2, 32);
    add(m, at, "gate.e_score_correction_bias", k3 ? "F32" : "BF16", 2, 0);
    if (k3) {
        add(m, at, "routed_expert_down_proj.weight", "BF16", 64, 32);
        add(m, at, "routed_expert_norm.weight", "BF16", 64, 0);
        add(m, at, "routed_expert_up_proj.weight", "BF16", 32, 64);
    }
    for (int e = 0; e < 2; e++) { /* width 64 in K3's form, else 32; intermediate 32 */
        for (int i = 0; i < 3; i++) {
            uint64_t rows = i < 2 ? 32 : k3 ? 64 : 32, cols = i < 2 && k3 ? 64 : 32;
            (void)snprintf(name, sizeof(name), "experts.%d.%s.weight%s", e, ws[i],
                           k3 ? "_packed" : "");
            add(m, at, name, k3 ? "U8" : "BF16", rows, k3 ? cols / 2 : cols);
            if (k3) {
                (void)snprintf(name, sizeof(name), "experts.%d.%s.weight_scale", e, ws[i]);
                add(m, at, name, "U8", rows, cols / 32);
            }
        }
    }
    add(m, at, "shared_experts.gate_proj.weight", "BF16", 32, 32);
    add(m, at, "shared_experts.up_proj.weight", "BF16", 32, 32);
    add(m, at, "shared_experts.down_proj.weight", "BF16", 32, 32);
}

static void add_layer(struct tiny *m, const char *prefix, int l, int k3)
{
    static const char *const res[] = {"self_attention_res", "mlp_res"};
    char at[96], name[64];

    (void)snprintf(at, sizeof(at), "%smodel.layers.%d.", prefix, l);
    add(m, at, "input_layernorm.weight", "BF16", 32, 0);
    add(m, at, "post_attention_layernorm.weight", "BF16", 32, 0);
    for (int i = 0; k3 && i < 2; i++) {
        (void)snprintf(name, sizeof(name), "%s_norm.weight", res[i]);
        add(m, at, name, "BF16", 32, 0);
        (void)snprintf(name, sizeof(name), "%s_proj.weight", res[i]);
        add(m, at, name, "BF16", 1, 32);
    }
    (void)snprintf(at, sizeof(at), "%smodel.layers.%d.self_attn.", prefix, l);
    if (l == 0) {
        add_kda(m, at, k3);
        (void)snprintf(at, sizeof(at), "%smodel.layers.%d.mlp.", prefix, l);
        add(m, at, "gate_proj.weight", "BF16", 48, 32);
        add(m, at, "up_proj.weight", "BF16", 48, 32);
        add(m, at, "down_proj.weight", "BF16", 32, 48);
    } else {
        add_mla(m, at, k3);
        (void)snprintf(at, sizeof(at), "%smodel.layers.%d.block_sparse_moe.", prefix, l);
        add_moe(m, at, k3);
    }
}

static void write_config(struct tiny *m, int k3)
{
    char text[3000];

    (void)snprintf(
        text, sizeof(text),
        "\"model_type\": \"kimi_linear\", \"hidden_size\": 32, \"num_hidden_layers\": 2,"
        "\"vocab_size\": 40, \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 4096,"
        "\"linear_attn_config\": {\"kda_layers\": [1], \"full_attn_layers\": [2],"
        "\"num_heads\": 2, \"head_dim\": 16, \"short_conv_kernel_size\": 4%s},"
        "\"num_attention_heads\": 2, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8,"
        "\"qk_rope_head_dim\": 4, \"v_head_dim\": 8, \"mla_use_nope\": true,"
        "\"intermediate_size\": 48, \"first_k_dense_replace\": 1, \"num_experts\": 2,"
        "\"num_experts_per_token\": 1, \"moe_intermediate_size\": 32,"
        "\"num_shared_experts\": 1, \"eos_token_id\": 39, \"tie_word_embeddings\": false, %s",
        k3 ? ", \"gate_lower_bound\": -5.0, \"use_full_rank_gate\": true" : "",
        k3 ? "\"hidden_act\": \"situ\", \"activation_situ_beta\": 4.0,"
             "\"activation_situ_linear_beta\": 25.0, \"q_lora_rank\": 24,"
             "\"mla_use_output_gate\": true, \"routed_expert_hidden_size\": 64,"
             "\"latent_moe_use_norm\": true, \"attn_res_block_size\": 1"
           : "\"hidden_act\": \"silu\", \"q_lora_rank\": null");
    (void)snprintf(m->config, sizeof(m->config),
                   k3 ? "{\"model_type\": \"kimi_k3\", \"text_config\": {%s}}" : "{%s}", text);
}

struct tiny *tiny_empty(void)
{
    struct tiny *m = calloc(1, sizeof(*m));
    const char *tmp = getenv("TMPDIR");

    assert_non_null(m);
    (void)snprintf(m->dir, sizeof(m->dir), "%s/kg-tiny-XXXXXX", tmp != NULL ? tmp : "/tmp");
    assert_non_null(mkdtemp(m->dir));
    return m;
}

struct tiny *tiny_new(int k3)
{
    struct tiny *m = tiny_empty();
    const char *prefix = k3 ? "language_model." : "";

    write_config(m, k3);
    add(m, prefix, "model.embed_tokens.weight", "BF16", 40, 32);
    add(m, prefix, "lm_head.weight", "BF16", 40, 32);
    add(m, prefix, "model.norm.weight", "BF16", 32, 0);
    if (k3) {
        add(m, prefix, "model.output_attn_res_norm.weight", "BF16", 32, 0);
        add(m, prefix, "model.output_attn_res_proj.weight", "BF16", 1, 32);
    }
    add_layer(m, prefix, 0, k3);
    add_layer(m, prefix, 1, k3);
    return m;
}

void tiny_free(struct tiny *m)
{
    DIR *d = opendir(m->dir);
    struct dirent *e;
    char path[600];

    while (d != NULL && (e = readdir(d)) != NULL) {
        (void)snprintf(path, sizeof(path), "%s/%s", m->dir, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            (void)remove(path);
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    (void)rmdir(m->dir);
    free(m->data);
    free(m);
}

struct tiny_tensor *tiny_find(struct tiny *m, const char *end)
{
    for (uint32_t i = 0; i < m->n; i++) {
        size_t a = strlen(m->t[i].name), b = strlen(end);
        if (a >= b && strcmp(m->t[i].name + a - b, end) == 0) {
            return &m->t[i];
        }
    }
    fail_msg("no tensor %s", end);
    return NULL;
}

/* One file: the tensors of `shard`, or all when it is -1; spans as they stand in the list. */
static unsigned char *bytes_of(const struct tiny *m, int shard, size_t *n)
{
    char *head = malloc(64 * 1024);
    int at = sprintf(head, "{\"__metadata__\":{\"format\":\"pt\"}");

    for (uint32_t i = 0; i < m->n; i++) {
        const struct tiny_tensor *t = &m->t[i];
        if (t->hidden || (shard >= 0 && t->shard != (uint32_t)shard)) {
            continue;
        }
        at += sprintf(head + at, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
        for (uint32_t d = 0; d < t->n_dims; d++) {
            at += sprintf(head + at, "%s%llu", d == 0 ? "" : ",", (unsigned long long)t->dims[d]);
        }
        at += sprintf(head + at, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->begin,
                      (unsigned long long)t->end);
    }
    head[at++] = '}';
    while (at % 8 != 0) {
        head[at++] = ' ';
    }
    unsigned char *out = malloc(8 + (size_t)at + (size_t)m->n_data);
    assert_non_null(out);
    for (int i = 0; i < 8; i++) {
        out[i] = (unsigned char)((uint64_t)at >> (8 * i));
    }
    memcpy(out + 8, head, (size_t)at);
    memcpy(out + 8 + at, m->data, (size_t)m->n_data);
    free(head);
    *n = 8 + (size_t)at + (size_t)m->n_data;
    return out;
}

unsigned char *tiny_bytes(const struct tiny *m, size_t *n)
{
    return bytes_of(m, -1, n);
}

void tiny_file(const struct tiny *m, const char *name, const void *bytes, size_t n)
{
    char path[600];

    (void)snprintf(path, sizeof(path), "%s/%s", m->dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void tiny_write(const struct tiny *m)
{
    size_t n;
    unsigned char *b = tiny_bytes(m, &n);

    tiny_file(m, "config.json", m->config, strlen(m->config));
    tiny_file(m, "model.safetensors", b, n);
    free(b);
}

void tiny_write_sharded(const struct tiny *m, const char *index)
{
    static const char *const files[] = {"a.safetensors", "b.safetensors"};
    char *text = malloc(64 * 1024);
    int at = sprintf(text, "{\"metadata\":{},\"weight_map\":{");

    for (int s = 0; s < 2; s++) {
        size_t n;
        unsigned char *b = bytes_of(m, s, &n);
        tiny_file(m, files[s], b, n);
        free(b);
    }
    for (uint32_t i = 0; i < m->n; i++) {
        at += sprintf(text + at, "%s\"%s\":\"%s\"", i == 0 ? "" : ",", m->t[i].name,
                      files[m->t[i].shard]);
    }
    at += sprintf(text + at, "}}");
    tiny_file(m, "config.json", m->config, strlen(m->config));
    if (index != NULL) {
        tiny_file(m, "model.safetensors.index.json", index, strlen(index));
    } else {
        tiny_file(m, "model.safetensors.index.json", text, (size_t)at);
    }
    free(text);
}
