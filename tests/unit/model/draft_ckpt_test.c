/* What a drafter's folder may hold; every refusal names file, key or tensor. */
#include "draft_tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct tiny *target;
static struct kg_ckpt *target_ckpt;

static int open_target(void **state)
{
    struct kg_error err = {0};

    (void)state;
    target = tiny_new(1);
    tiny_write(target);
    if (kg_ckpt_open(target->dir, &target_ckpt, &err) < 0)
        fail_msg("%s", err.text);
    return 0;
}

static int close_target(void **state)
{
    (void)state;
    kg_ckpt_close(target_ckpt);
    tiny_free(target);
    return 0;
}

static const struct dspec full = {.block = 4,
                                  .layers = 2,
                                  .heads = 2,
                                  .q_lora = 12,
                                  .kv_lora = 8,
                                  .nope = 4,
                                  .rope = 4,
                                  .v = 4,
                                  .inter = 16,
                                  .rank = 6,
                                  .causal = 2,
                                  .confidence = 1,
                                  .confidence_markov = 1,
                                  .yarn = 1,
                                  .biases = 1,
                                  .dtype = "BF16"};

static int try_open(const struct tiny *m, struct kg_draft_ckpt **ckpt, struct kg_error *err)
{
    *ckpt = NULL;
    *err = (struct kg_error){0};
    return kg_draft_ckpt_open(m->dir, &target_ckpt->config, target->dir, ckpt, err);
}

static void expect(const struct tiny *m, const char *text)
{
    struct kg_draft_ckpt *k;
    struct kg_error err;
    int rc = try_open(m, &k, &err);

    if (rc == KG_OK)
        fail_msg("was taken, wanted a refusal with \"%s\"", text);
    assert_null(k);
    if (strstr(err.text, text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    if (strstr(err.text, m->dir) == NULL)
        fail_msg("\"%s\" names no file", err.text);
}

static void write_config(const struct tiny *m, const char *text)
{
    tiny_file(m, "config.json", text, strlen(text));
}

/* The line of the configuration that begins with a key. */
static char *line_of(char *text, const char *key, size_t *n)
{
    char head[80];
    char *at, *end;

    (void)snprintf(head, sizeof(head), "\"%s\":", key);
    at = strstr(text, head);
    if (at == NULL)
        fail_msg("no key %s", key);
    end = strstr(at, ",\n");
    *n = end != NULL ? (size_t)(end - at) + 2 : strlen(at) - 1;
    return at;
}

/* The configuration with a key replaced by `line` ("" drops it). */
static void with_line(const struct tiny *m, const char *key, const char *line)
{
    char text[5000], out[5200];
    size_t n;
    char *at;

    (void)snprintf(text, sizeof(text), "%s", m->config);
    at = line_of(text, key, &n);
    if (strcmp(key, "target_sha256") == 0) { /* the last line */
        (void)snprintf(out, sizeof(out), "%.*s\"last\": %s}", (int)(at - text), text,
                       line[0] != '\0' ? line : "0");
        if (line[0] != '\0')
            (void)snprintf(out, sizeof(out), "%.*s%s}", (int)(at - text), text, line);
    } else {
        (void)snprintf(out, sizeof(out), "%.*s%s%s%s", (int)(at - text), text, line,
                       line[0] != '\0' ? ",\n" : "", at + n);
    }
    write_config(m, out);
}

static void a_whole_one_is_taken_and_bound(void **state)
{
    (void)state;
    struct tiny *m = dspec_write(&full, target->dir, 1);
    struct kg_draft_ckpt *k;
    struct kg_error err;
    if (try_open(m, &k, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(k->n_tensors, m->n);
    assert_int_equal(k->config.block, 4);
    assert_int_equal(k->config.causal[0], 0);
    assert_int_equal(k->config.causal[1], 1);
    assert_int_equal(k->layers[1].mla.kv_b.rows, 16);
    kg_draft_ckpt_close(k);
    /* the copy of the embedding that published drafters have */
    (void)tiny_add(m, "embed_tokens.weight", "BF16", 2, (uint64_t[]){40, 32});
    tiny_write(m);
    assert_int_equal(try_open(m, &k, &err), KG_OK);
    kg_draft_ckpt_close(k);
    tiny_free(m);
}

static void every_key_is_needed_and_named(void **state)
{
    (void)state;
    static const char *const keys[] = {"model_type",
                                       "hidden_size",
                                       "intermediate_size",
                                       "num_hidden_layers",
                                       "num_attention_heads",
                                       "q_lora_rank",
                                       "kv_lora_rank",
                                       "qk_nope_head_dim",
                                       "qk_rope_head_dim",
                                       "v_head_dim",
                                       "rms_norm_eps",
                                       "vocab_size",
                                       "draft_vocab_size",
                                       "max_position_embeddings",
                                       "mla_use_nope",
                                       "mla_use_output_gate",
                                       "rope_theta",
                                       "rope_interleave",
                                       "num_target_layers",
                                       "target_layer_ids",
                                       "target_hidden_size",
                                       "target_num_hidden_layers",
                                       "tap_convention",
                                       "aux_hidden_stream",
                                       "mask_token_id",
                                       "block_size",
                                       "causal",
                                       "markov_head_type",
                                       "markov_rank",
                                       "enable_confidence_head",
                                       "confidence_head_with_markov",
                                       "sts_temperatures",
                                       "target_sha256"};
    struct tiny *m = dspec_write(&full, target->dir, 1);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char text[100];
        with_line(m, keys[i], "");
        (void)snprintf(text, sizeof(text), "%s is missing", keys[i]);
        expect(m, text);
        (void)snprintf(text, sizeof(text), "\"%s\": null", keys[i]);
        with_line(m, keys[i], text);
        (void)snprintf(text, sizeof(text), "%s is missing", keys[i]);
        expect(m, text);
        (void)snprintf(text, sizeof(text), "\"%s\": {\"a\": 1}", keys[i]);
        with_line(m, keys[i], text);
        expect(m, keys[i]);
    }
    tiny_free(m);
}

static void values_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *line, *text;
    } bad[] = {
        {"model_type", "\"model_type\": \"qwen3\"", "model_type \"qwen3\""},
        {"hidden_size", "\"hidden_size\": 48", "hidden_size is 48, the target"},
        {"target_hidden_size", "\"target_hidden_size\": 64",
         "target_hidden_size is 64, the target"},
        {"target_num_hidden_layers", "\"target_num_hidden_layers\": 3",
         "target_num_hidden_layers is 3, the target"},
        {"vocab_size", "\"vocab_size\": 41", "draft_vocab_size must be equal to vocab_size"},
        {"draft_vocab_size", "\"draft_vocab_size\": 32",
         "draft_vocab_size must be equal to vocab_size"},
        {"mask_token_id", "\"mask_token_id\": 40", "mask_token_id is 40, must be in 0..39"},
        {"target_layer_ids", "\"target_layer_ids\": [1]", "the last one of 2 cannot be tapped"},
        {"target_layer_ids", "\"target_layer_ids\": [-1]", "must be a layer in 0..0"},
        {"target_layer_ids", "\"target_layer_ids\": [0, 0]", "2 entries, must have 1"},
        {"num_target_layers", "\"num_target_layers\": 17", "num_target_layers is 17"},
        {"block_size", "\"block_size\": 0", "block_size is 0"},
        {"block_size", "\"block_size\": 17", "block_size is 17"},
        {"causal", "\"causal\": [true]", "causal has 1 entries, must have 2"},
        {"causal", "\"causal\": [1, 0]", "causal must be a list of true and false"},
        {"markov_rank", "\"markov_rank\": 0", "confidence_head_with_markov must be false"},
        {"markov_head_type", "\"markov_head_type\": \"rnn\"", "markov_head_type \"rnn\""},
        {"tap_convention", "\"tap_convention\": \"before_layer\"", "tap_convention"},
        {"aux_hidden_stream", "\"aux_hidden_stream\": \"final\"", "aux_hidden_stream \"final\""},
        {"mla_use_nope", "\"mla_use_nope\": true", "mla_use_nope must be false"},
        {"mla_use_output_gate", "\"mla_use_output_gate\": true", "mla_use_output_gate must be"},
        {"qk_rope_head_dim", "\"qk_rope_head_dim\": 5", "qk_rope_head_dim must be even"},
        {"rope_parameters", "\"rope_parameters\": {\"rope_type\": \"yarn\"}",
         "rope_parameters.factor is missing"},
        {"rope_parameters", "\"rope_parameters\": {\"rope_type\": \"linear\"}",
         "rope_parameters.rope_type \"linear\""},
        {"sts_temperatures", "\"sts_temperatures\": {\"greedy\": [1,1,1,1]}",
         "sts_temperatures.coupled is missing"},
        {"sts_temperatures", "\"sts_temperatures\": {\"greedy\": [1,1,0,1]}",
         "sts_temperatures.greedy must be a list of numbers"},
        {"sts_temperatures", "\"sts_temperatures\": {\"greedy\": [1,1,1]}",
         "sts_temperatures.greedy has 3 entries, must have 4"},
        {"sts_biases", "\"sts_biases\": {\"greedy\": [0,0,0,0]}", "sts_biases.coupled is missing"},
        {"sts_biases", "\"sts_biases\": {\"greedy\": [0,0,0]}",
         "sts_biases.greedy has 3 entries, must have 4"},
        {"sts_biases", "\"sts_biases\": {\"greedy\": [0,\"1\",0,0]}",
         "sts_biases.greedy must be a list of numbers in -100..100"},
        {"sts_biases", "\"sts_biases\": 1", "sts_biases"},
        {"target_sha256", "\"target_sha256\": \"12ab\"", "64 lower-case hexadecimal"},
        {"target_sha256",
         "\"target_sha256\": "
         "\"0000000000000000000000000000000000000000000000000000000000000000\"",
         "trained for another target"},
    };
    struct tiny *m = dspec_write(&full, target->dir, 1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        with_line(m, bad[i].key, bad[i].line);
        expect(m, bad[i].text);
    }
    tiny_free(m);
}

static void every_tensor_is_needed_in_its_shape(void **state)
{
    (void)state;
    struct tiny *m = dspec_write(&full, target->dir, 1);
    for (uint32_t i = 0; i < m->n; i++) {
        struct tiny_tensor *t = &m->t[i], was = *t;
        char text[300];
        (void)snprintf(text, sizeof(text), "tensor %s is missing", t->name);
        t->hidden = 1;
        tiny_write(m);
        expect(m, text);
        *t = was;
        if (t->n_dims == 2) { /* transposed where that is another shape */
            t->dims[0] = was.dims[1];
            t->dims[1] = was.dims[0];
        } else {
            t->n_dims = 2;
            t->dims[1] = 1;
        }
        (void)snprintf(text, sizeof(text), "%s: shape [", was.name);
        tiny_write(m);
        if ((t->n_dims == 2 && t->dims[0] != t->dims[1]))
            expect(m, text);
        *t = was;
    }
    tiny_write(m);
    (void)tiny_add(m, "lm_head.weight", "BF16", 2, (uint64_t[]){40, 32});
    tiny_write(m);
    expect(m, "lm_head.weight: is no tensor of the drafter");
    tiny_free(m);
}

/* Refused when it is opened (vectors) or when its values are looked at (the rest). */
static void expect_bad_value(const struct tiny *m, const char *text)
{
    struct kg_draft_ckpt *k;
    struct kg_error err;

    if (try_open(m, &k, &err) == KG_OK && kg_draft_ckpt_check_values(k, &err) == KG_OK)
        fail_msg("was taken, wanted a refusal with \"%s\"", text);
    if (strstr(err.text, text) == NULL || strstr(err.text, m->dir) == NULL)
        fail_msg("\"%s\" does not say \"%s\" of a file in %s", err.text, text, m->dir);
    kg_draft_ckpt_close(k);
}

/* In every tensor, at its first element, at its last and somewhere between; but not in the copy of
 * the embedding, which nobody reads. */
static void a_value_that_is_not_finite_is_refused_with_its_tensor(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"BF16", "F32"};
    static const float values[] = {INFINITY, -INFINITY, NAN};
    for (uint32_t d = 0; d < 2; d++) {
        struct dspec s = full;
        s.dtype = dtypes[d];
        struct tiny *m = dspec_write(&s, target->dir, 1);
        for (uint32_t i = 0; i < 3 * m->n; i++) {
            const struct tiny_tensor *t = &m->t[i / 3];
            uint64_t n = (t->end - t->begin) / (d == 0 ? 2 : 4);
            uint64_t at = i % 3 == 0 ? 0 : i % 3 == 1 ? n - 1 : n / 2;
            char text[300];
            tiny_set(m, t, at, values[i % 3]);
            tiny_write(m);
            (void)snprintf(text, sizeof(text), "%s: value %llu is not finite", t->name,
                           (unsigned long long)at);
            expect_bad_value(m, text);
            tiny_set(m, t, at, 0.5f);
        }
        struct tiny_tensor *copy =
            tiny_add(m, "embed_tokens.weight", s.dtype, 2, (uint64_t[]){40, 32});
        struct kg_draft_ckpt *k;
        struct kg_error err;
        tiny_set(m, copy, 7, NAN);
        tiny_write(m);
        assert_int_equal(try_open(m, &k, &err), KG_OK);
        assert_int_equal(kg_draft_ckpt_check_values(k, &err), KG_OK);
        kg_draft_ckpt_close(k);
        tiny_free(m);
    }
}

static void biases_are_zero_where_a_folder_has_none(void **state)
{
    (void)state;
    struct dspec s = full;
    struct kg_draft_ckpt *k;
    struct kg_error err;
    for (uint32_t i = 0; i < 2; i++) {
        s.biases = i;
        struct tiny *m = dspec_write(&s, target->dir, 1);
        assert_int_equal(try_open(m, &k, &err), KG_OK);
        for (uint32_t c = 0; c < KG_DRAFT_N_CLASSES; c++)
            for (uint32_t j = 0; j < s.block; j++)
                assert_true((k->config.bias[c][j] != 0) == (int)i);
        kg_draft_ckpt_close(k);
        tiny_free(m);
    }
}

static void a_target_without_residual_mixtures_has_no_such_taps(void **state)
{
    (void)state;
    struct tiny *plain = tiny_new(0), *m;
    struct kg_ckpt *ckpt;
    struct kg_draft_ckpt *k = NULL;
    struct kg_error err = {0};
    tiny_write(plain);
    assert_int_equal(kg_ckpt_open(plain->dir, &ckpt, &err), KG_OK);
    m = dspec_write(&full, plain->dir, 1);
    assert_true(kg_draft_ckpt_open(m->dir, &ckpt->config, plain->dir, &k, &err) < 0);
    assert_non_null(strstr(err.text, "aux_hidden_stream is attn_res"));
    kg_ckpt_close(ckpt);
    tiny_free(m);
    tiny_free(plain);
}

/* Whatever a byte turns into, the loader answers and says something. */
static void spoiled_files_are_refused_or_taken_but_never_crash(void **state)
{
    (void)state;
    struct tiny *m = dspec_write(&full, target->dir, 1);
    uint32_t n_refused = 0, rounds = getenv("KEDGE_FULL") != NULL ? 20000 : 300;
    size_t n;
    unsigned char *file = tiny_bytes(m, &n);
    size_t header = 8 + (size_t)(file[0] | (size_t)file[1] << 8 | (size_t)file[2] << 16);
    for (uint32_t i = 0; i < rounds; i++) {
        struct kg_draft_ckpt *k;
        struct kg_error err;
        char text[5000];
        size_t len = strlen(m->config), at = (size_t)(dspec_noise(3, 4 * i) * (double)len);
        int in_config = i % 2;
        (void)snprintf(text, sizeof(text), "%s", m->config);
        if (in_config) {
            text[at] = (char)(dspec_noise(3, 4 * i + 1) * 256);
            if (dspec_noise(3, 4 * i + 2) < 0.1)
                len = at;
            tiny_file(m, "config.json", text, len);
        } else {
            size_t b = (size_t)(dspec_noise(3, 4 * i) * (double)header);
            unsigned char was = file[b];
            file[b] = (unsigned char)(dspec_noise(3, 4 * i + 1) * 256);
            tiny_file(m, "model.safetensors", file,
                      dspec_noise(3, 4 * i + 2) < 0.1 ? n * i / rounds : n);
            file[b] = was;
        }
        if (try_open(m, &k, &err) < 0) {
            n_refused++;
            assert_null(k);
            assert_true(err.text[0] != '\0');
        }
        kg_draft_ckpt_close(k);
        if (in_config) {
            write_config(m, m->config);
        } else {
            tiny_file(m, "model.safetensors", file, n);
        }
    }
    assert_true(n_refused > rounds / 4);
    free(file);
    tiny_free(m);
}

/* --- the published one at full size, as a sparse file without content ------------------------- */

struct sparse {
    FILE *head;
    char *text;
    size_t n_text;
    uint64_t at, n;
};

static void put(struct sparse *w, const char *at, const char *name, uint64_t rows, uint64_t cols)
{
    uint64_t n = rows * (cols == 0 ? 1 : cols);

    (void)fprintf(w->head, ",\"%s%s\":{\"dtype\":\"BF16\",\"shape\":[%llu", at, name,
                  (unsigned long long)rows);
    if (cols != 0)
        (void)fprintf(w->head, ",%llu", (unsigned long long)cols);
    (void)fprintf(w->head, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)w->at,
                  (unsigned long long)(w->at + 2 * n));
    w->at += 2 * n;
    w->n++;
}

static void put_published(struct sparse *w)
{
    put(w, "", "context_proj.weight", 7168, 35840);
    put(w, "", "context_norm.weight", 7168, 0);
    put(w, "", "final_norm.weight", 7168, 0);
    put(w, "", "embed_tokens.weight", 163840, 7168);
    put(w, "", "markov_head.markov_w1.weight", 163840, 256);
    put(w, "", "markov_head.markov_w2.weight", 163840, 256);
    put(w, "", "confidence_head.proj.weight", 1, 7424);
    put(w, "", "confidence_head.proj.bias", 1, 0);
    for (uint32_t l = 0; l < 5; l++) {
        char at[32];
        (void)snprintf(at, sizeof(at), "layers.%u.", l);
        put(w, at, "input_layernorm.weight", 7168, 0);
        put(w, at, "post_attention_layernorm.weight", 7168, 0);
        put(w, at, "self_attn.q_a_proj.weight", 1536, 7168);
        put(w, at, "self_attn.q_a_layernorm.weight", 1536, 0);
        put(w, at, "self_attn.q_b_proj.weight", 12288, 1536);
        put(w, at, "self_attn.kv_a_proj_with_mqa.weight", 576, 7168);
        put(w, at, "self_attn.kv_a_layernorm.weight", 512, 0);
        put(w, at, "self_attn.kv_b_proj.weight", 16384, 512);
        put(w, at, "self_attn.o_proj.weight", 7168, 8192);
        put(w, at, "mlp.gate_proj.weight", 14336, 7168);
        put(w, at, "mlp.up_proj.weight", 14336, 7168);
        put(w, at, "mlp.down_proj.weight", 7168, 14336);
    }
}

/* 0 when the file system holds no sparse file of this size. */
static int write_sparse(struct sparse *w, const char *dir)
{
    unsigned char len[8];
    char path[600];
    FILE *f;
    int rc;

    w->head = open_memstream(&w->text, &w->n_text);
    assert_non_null(w->head);
    (void)fputs("{\"__metadata__\":{}", w->head);
    put_published(w);
    (void)fprintf(w->head, "}%8s", "");
    assert_int_equal(fclose(w->head), 0);
    w->n_text -= w->n_text % 8;
    for (int i = 0; i < 8; i++)
        len[i] = (unsigned char)((uint64_t)w->n_text >> (8 * i));
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(len, 1, 8, f), 8);
    assert_int_equal(fwrite(w->text, 1, w->n_text, f), w->n_text);
    assert_int_equal(fflush(f), 0);
    rc = ftruncate(fileno(f), (off_t)(8 + w->n_text + w->at));
    (void)fclose(f);
    free(w->text);
    return rc == 0;
}

#define PUBLISHED                                                                                \
    "{\"architectures\": [\"K3DSparkModel\"], \"model_type\": \"k3_dspark\", "                   \
    "\"hidden_size\": 7168, \"intermediate_size\": 14336, \"num_hidden_layers\": 5, "            \
    "\"num_attention_heads\": 64, \"num_key_value_heads\": 64, \"q_lora_rank\": 1536, "          \
    "\"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, "               \
    "\"v_head_dim\": 128, \"mla_use_nope\": false, \"mla_use_output_gate\": false, "             \
    "\"vocab_size\": 163840, \"draft_vocab_size\": 163840, \"rms_norm_eps\": 1e-5, "             \
    "\"max_position_embeddings\": 1048576, \"rope_theta\": 50000, \"rope_parameters\": "         \
    "{\"rope_type\": \"yarn\", \"factor\": 32, \"original_max_position_embeddings\": 32768, "    \
    "\"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1, \"mscale_all_dim\": 1}, "               \
    "\"num_target_layers\": 5, \"target_hidden_size\": 7168, \"target_num_hidden_layers\": 93, " \
    "\"target_layer_ids\": [2, 23, 47, 71, 89], \"mask_token_id\": 163837, "                     \
    "\"bos_token_id\": 163584, \"eos_token_id\": 163586, \"pad_token_id\": 163839, "             \
    "\"markov_rank\": 256, \"markov_head_type\": \"vanilla\", "                                  \
    "\"enable_confidence_head\": true, \"confidence_head_with_markov\": true, "                  \
    "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", "                            \
    "\"_torchspec_version\": \"0.1.0\""

static void the_published_k3_drafter_binds_once_its_config_says_everything(void **state)
{
    (void)state;
    static struct kg_model_config k3 = {
        .hidden = 7168, .n_layers = 93, .vocab = 163840, .block_layers = 12};
    struct tiny *m = tiny_empty(), *of = tiny_empty();
    struct kg_draft_ckpt *k = NULL;
    struct kg_error err = {0};
    struct sparse w = {0};
    char text[3000], sha[KG_SHA256_HEX];
    tiny_file(of, "model.safetensors.index.json", "{}", 2);
    assert_int_equal(kg_draft_target_sha256(of->dir, sha, &err), KG_OK);
    int held = write_sparse(&w, m->dir);
    assert_int_equal(w.n, 68);
    assert_int_equal(w.at / 2, 3562312961ull); /* parameters, the copied embedding included */
    write_config(m, PUBLISHED "}");
    int rc = kg_draft_ckpt_open(m->dir, &k3, of->dir, &k, &err);
    assert_int_equal(rc, KG_EINVAL);
    assert_non_null(strstr(err.text, "rope_interleave is missing"));
    (void)snprintf(text, sizeof(text),
                   "%s, \"block_size\": 7, \"causal\": [false, false, false, false, false], "
                   "\"aux_hidden_stream\": \"attn_res\", \"tap_convention\": \"after_layer\", "
                   "\"rope_interleave\": true, \"sts_temperatures\": {\"greedy\": "
                   "[1,1,1,1,1,1,1], \"coupled\": [1,1,1,1,1,1,1], \"rejection\": "
                   "[1,1,1,1,1,1,1], \"block\": [1,1,1,1,1,1,1]}, \"target_sha256\": \"%s\"}",
                   PUBLISHED, sha);
    write_config(m, text);
    err = (struct kg_error){0};
    rc = kg_draft_ckpt_open(m->dir, &k3, of->dir, &k, &err);
    tiny_free(m);
    tiny_free(of);
    if (!held) {
        print_message("skipped: this file system holds no sparse file of this size\n");
        skip();
    }
    if (rc < 0)
        fail_msg("%s", err.text);
    assert_int_equal(k->n_tensors, 67);
    assert_int_equal(k->bound_bytes / 2, 2387907841ull); /* without the embedding */
    kg_draft_ckpt_close(k);
}

static void sha256_answers_as_the_standard_says(void **state)
{
    (void)state;
    static char million[1000000];
    char hex[KG_SHA256_HEX];
    kg_sha256("", 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    kg_sha256("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    kg_sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hex);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    memset(million, 'a', sizeof(million));
    kg_sha256(million, sizeof(million), hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_one_is_taken_and_bound),
        cmocka_unit_test(every_key_is_needed_and_named),
        cmocka_unit_test(values_that_cannot_be_are_refused),
        cmocka_unit_test(every_tensor_is_needed_in_its_shape),
        cmocka_unit_test(a_value_that_is_not_finite_is_refused_with_its_tensor),
        cmocka_unit_test(biases_are_zero_where_a_folder_has_none),
        cmocka_unit_test(a_target_without_residual_mixtures_has_no_such_taps),
        cmocka_unit_test(spoiled_files_are_refused_or_taken_but_never_crash),
        cmocka_unit_test(the_published_k3_drafter_binds_once_its_config_says_everything),
        cmocka_unit_test(sha256_answers_as_the_standard_says),
    };

    return cmocka_run_group_tests(tests, open_target, close_target);
}
