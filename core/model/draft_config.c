#include "model/draft_config.h"

#include "model/file.h"
#include "model/reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONFIG_BYTES (1024u * 1024u)

static int expect_false(const struct kg_reader *r, const char *key)
{
    uint32_t on = 0;
    int rc = kg_read_bool(r, key, KG_NONE, &on);

    if (rc == KG_OK && on) {
        return kg_read_wrong(r, key, "false: nothing else is implemented");
    }
    return rc;
}

/* A list of exactly n entries. */
static int read_list(const struct kg_reader *r, const char *key, size_t n, const json_t **list)
{
    const json_t *v = kg_read_get(r, key);

    if (v == NULL) {
        return kg_read_missing(r, key);
    }
    if (!json_is_array(v)) {
        return kg_read_wrong(r, key, "a list");
    }
    if (json_array_size(v) != n) {
        return kg_fail(r->err, KG_EINVAL, "%.200s: %s%s has %zu entries, must have %zu", r->file,
                       r->at, key, json_array_size(v), n);
    }
    *list = v;
    return KG_OK;
}

static int read_sizes(const struct kg_reader *r, struct kg_model_config *c)
{
    uint32_t kv_heads = 0, draft_vocab = 0;
    int rc;

    if ((rc = kg_read_u32(r, "hidden_size", 1, KG_MAX_HIDDEN, KG_NONE, &c->hidden)) < 0 ||
        (rc = kg_read_u32(r, "intermediate_size", 1, KG_MAX_INTER, KG_NONE, &c->dense_inter)) < 0 ||
        (rc = kg_read_u32(r, "num_hidden_layers", 1, KG_MAX_LAYERS, KG_NONE, &c->n_layers)) < 0 ||
        (rc = kg_read_u32(r, "num_attention_heads", 1, KG_MAX_HEADS, KG_NONE, &c->mla_heads)) < 0 ||
        (rc = kg_read_u32(r, "num_key_value_heads", 1, KG_MAX_HEADS, c->mla_heads, &kv_heads)) <
            0 ||
        (rc = kg_read_u32(r, "q_lora_rank", 0, KG_MAX_HIDDEN, KG_NONE, &c->q_lora)) < 0 ||
        (rc = kg_read_u32(r, "kv_lora_rank", 1, KG_MAX_HIDDEN, KG_NONE, &c->kv_lora)) < 0 ||
        (rc = kg_read_u32(r, "qk_nope_head_dim", 1, 4096, KG_NONE, &c->nope_dim)) < 0 ||
        (rc = kg_read_u32(r, "qk_rope_head_dim", 2, 4096, KG_NONE, &c->rope_dim)) < 0 ||
        (rc = kg_read_u32(r, "v_head_dim", 1, 4096, KG_NONE, &c->v_dim)) < 0 ||
        (rc = kg_read_float(r, "rms_norm_eps", 1e-12, 1, NAN, &c->rms_eps)) < 0 ||
        (rc = kg_read_u32(r, "vocab_size", 2, KG_MAX_VOCAB, KG_NONE, &c->vocab)) < 0 ||
        (rc = kg_read_u32(r, "draft_vocab_size", 2, KG_MAX_VOCAB, KG_NONE, &draft_vocab)) < 0 ||
        (rc = kg_read_u32(r, "max_position_embeddings", 1, KG_MAX_CONTEXT, KG_NONE,
                          &c->max_context)) < 0 ||
        (rc = expect_false(r, "mla_use_nope")) < 0 ||
        (rc = expect_false(r, "mla_use_output_gate")) < 0) {
        return rc;
    }
    if (kv_heads != c->mla_heads) {
        return kg_read_wrong(r, "num_key_value_heads", "equal to num_attention_heads");
    }
    if (c->rope_dim % 2 != 0) {
        return kg_read_wrong(r, "qk_rope_head_dim", "even");
    }
    if (draft_vocab != c->vocab) {
        return kg_read_wrong(r, "draft_vocab_size", "equal to vocab_size");
    }
    c->latent_eps = c->rms_eps;
    c->n_mla_layers = c->n_layers;
    memset(c->layer_kind, KG_LAYER_MLA, sizeof(c->layer_kind));
    return KG_OK;
}

static int read_yarn(const struct kg_reader *r, struct kg_rope *p)
{
    int rc;

    if ((rc = kg_read_float(r, "factor", 1, 1e6, NAN, &p->factor)) < 0 ||
        (rc = kg_read_u32(r, "original_max_position_embeddings", 1, KG_MAX_CONTEXT, KG_NONE,
                          &p->original)) < 0 ||
        (rc = kg_read_float(r, "beta_fast", 1e-3, 1e6, NAN, &p->beta_fast)) < 0 ||
        (rc = kg_read_float(r, "beta_slow", 1e-3, 1e6, NAN, &p->beta_slow)) < 0 ||
        (rc = kg_read_float(r, "mscale", 0, 100, NAN, &p->mscale)) < 0 ||
        (rc = kg_read_float(r, "mscale_all_dim", 0, 100, NAN, &p->mscale_all_dim)) < 0) {
        return rc;
    }
    p->yarn = 1;
    return KG_OK;
}

static int read_rope(const struct kg_reader *r, struct kg_rope *p)
{
    static const char *const types[] = {"default", "yarn", NULL};
    struct kg_reader in = {0};
    uint32_t type = 0;
    int rc;

    if ((rc = kg_read_float(r, "rope_theta", 1.01, 1e9, NAN, &p->theta)) < 0 ||
        (rc = kg_read_bool(r, "rope_interleave", KG_NONE, &p->interleave)) < 0) {
        return rc;
    }
    if (kg_read_get(r, "rope_parameters") == NULL) {
        return KG_OK;
    }
    if ((rc = kg_read_enter(r, "rope_parameters", "rope_parameters.", &in)) < 0) {
        return rc;
    }
    const char *key =
        kg_read_get(&in, "rope_type") == NULL && kg_read_get(&in, "type") ? "type" : "rope_type";
    if ((rc = kg_read_word(&in, key, types, &type)) < 0) {
        return rc;
    }
    return type == 1 ? read_yarn(&in, p) : KG_OK;
}

static int read_taps(const struct kg_reader *r, struct kg_draft_config *c)
{
    static const char *const streams[] = {"attn_res", "prefix_sum", NULL};
    static const char *const conventions[] = {"after_layer", NULL};
    const json_t *list = NULL;
    uint32_t i = 0;
    int rc;

    if ((rc = kg_read_u32(r, "num_target_layers", 1, KG_DRAFT_MAX_TAPS, KG_NONE, &c->n_taps)) < 0 ||
        (rc = kg_read_u32(r, "target_hidden_size", 1, KG_MAX_HIDDEN, KG_NONE, &c->target_hidden)) <
            0 ||
        (rc = kg_read_u32(r, "target_num_hidden_layers", 1, KG_MAX_LAYERS, KG_NONE,
                          &c->target_layers)) < 0 ||
        (rc = kg_read_word(r, "tap_convention", conventions, &i)) < 0 ||
        (rc = kg_read_word(r, "aux_hidden_stream", streams, &c->stream)) < 0 ||
        (rc = read_list(r, "target_layer_ids", c->n_taps, &list)) < 0) {
        return rc;
    }
    for (i = 0; i < c->n_taps; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t l = json_is_integer(v) ? json_integer_value(v) : -1;
        if (l < 0 || l + 1 >= (json_int_t)c->target_layers) {
            return kg_fail(r->err, KG_EINVAL,
                           "%.200s: target_layer_ids: entry %" PRIu32 " must be a layer in 0..%ld: "
                           "the last one of %" PRIu32 " cannot be tapped",
                           r->file, i, (long)c->target_layers - 2, c->target_layers);
        }
        if (i > 0 && l <= (json_int_t)c->taps[i - 1]) {
            return kg_read_wrong(r, "target_layer_ids", "in rising order");
        }
        c->taps[i] = (uint32_t)l;
    }
    return KG_OK;
}

static int read_heads(const struct kg_reader *r, struct kg_draft_config *c)
{
    static const char *const types[] = {"vanilla", NULL};
    uint32_t i = 0;
    int rc;

    if ((rc = kg_read_u32(r, "markov_rank", 0, KG_MAX_HIDDEN, KG_NONE, &c->markov_rank)) < 0 ||
        (rc = kg_read_word(r, "markov_head_type", types, &i)) < 0 ||
        (rc = kg_read_bool(r, "enable_confidence_head", KG_NONE, &c->confidence)) < 0 ||
        (rc = kg_read_bool(r, "confidence_head_with_markov", KG_NONE, &c->confidence_markov)) < 0) {
        return rc;
    }
    if (c->markov_rank == 0 && c->confidence && c->confidence_markov) {
        return kg_read_wrong(r, "confidence_head_with_markov",
                             "false where markov_rank is 0: there is no embedding for it to read");
    }
    c->confidence_markov &= c->confidence;
    return KG_OK;
}

static int read_block(const struct kg_reader *r, struct kg_draft_config *c)
{
    const json_t *list = NULL;
    int rc;

    if ((rc = kg_read_u32(r, "block_size", 1, KG_DRAFT_MAX_BLOCK, KG_NONE, &c->block)) < 0 ||
        (rc = kg_read_u32(r, "mask_token_id", 0, c->net.vocab - 1, KG_NONE, &c->mask_token)) < 0 ||
        (rc = read_list(r, "causal", c->net.n_layers, &list)) < 0) {
        return rc;
    }
    for (uint32_t l = 0; l < c->net.n_layers; l++) {
        const json_t *v = json_array_get(list, l);
        if (!json_is_boolean(v)) {
            return kg_read_wrong(r, "causal", "a list of true and false, one for each layer");
        }
        c->causal[l] = json_is_true(v) ? 1 : 0;
    }
    return KG_OK;
}

/* One list of block_size numbers in low..high for each class. */
static int read_classes(const struct kg_reader *in, uint32_t block, double low, double high,
                        float out[KG_DRAFT_N_CLASSES][KG_DRAFT_MAX_BLOCK])
{
    static const char *const names[] = {"greedy", "coupled", "rejection", "block"};
    char want[64];
    int rc = KG_OK;

    (void)snprintf(want, sizeof(want), "a list of numbers in %g..%g", low, high);
    for (uint32_t k = 0; k < KG_DRAFT_N_CLASSES && rc == KG_OK; k++) {
        const json_t *list = NULL;
        rc = read_list(in, names[k], block, &list);
        for (uint32_t i = 0; i < block && rc == KG_OK; i++) {
            const json_t *v = json_array_get(list, i);
            double x = json_is_number(v) ? json_number_value(v) : NAN;
            if (!(x >= low && x <= high)) {
                return kg_read_wrong(in, names[k], want);
            }
            out[k][i] = (float)x;
        }
    }
    return rc;
}

static int read_calibration(const struct kg_reader *r, struct kg_draft_config *c)
{
    struct kg_reader in = {0};
    int rc = kg_read_enter(r, "sts_temperatures", "sts_temperatures.", &in);

    if (rc == KG_OK) {
        rc = read_classes(&in, c->block, 1e-3, 1e3, c->temperature);
    }
    if (rc < 0 || kg_read_get(r, "sts_biases") == NULL) {
        return rc;
    }
    rc = kg_read_enter(r, "sts_biases", "sts_biases.", &in);
    return rc < 0 ? rc : read_classes(&in, c->block, -100, 100, c->bias);
}

static int read_target(const struct kg_reader *r, struct kg_draft_config *c)
{
    const json_t *v = kg_read_get(r, "target_sha256");
    const char *s = json_string_value(v);

    if (v == NULL) {
        return kg_read_missing(r, "target_sha256");
    }
    if (s == NULL || strlen(s) != 64 || strspn(s, "0123456789abcdef") != 64) {
        return kg_read_wrong(r, "target_sha256", "64 lower-case hexadecimal digits");
    }
    memcpy(c->target_sha256, s, KG_SHA256_HEX);
    return KG_OK;
}

int kg_draft_config_parse(const char *file, const char *text, size_t n,
                          struct kg_draft_config *config, struct kg_error *err)
{
    static const char *const kinds[] = {"k3_dspark", NULL};
    struct kg_draft_config c = {0};
    json_t *root = kg_read_parse(file, text, n, err);
    struct kg_reader r = {.file = file, .at = "", .obj = root, .err = err};
    uint32_t i = 0;
    int rc;

    if (root == NULL) {
        return KG_EINVAL;
    }
    if ((rc = kg_read_word(&r, "model_type", kinds, &i)) == KG_OK &&
        (rc = read_sizes(&r, &c.net)) == KG_OK && (rc = read_rope(&r, &c.rope)) == KG_OK &&
        (rc = read_taps(&r, &c)) == KG_OK && (rc = read_heads(&r, &c)) == KG_OK &&
        (rc = read_block(&r, &c)) == KG_OK && (rc = read_calibration(&r, &c)) == KG_OK &&
        (rc = read_target(&r, &c)) == KG_OK) {
        *config = c;
    }
    json_decref(root);
    return rc;
}

int kg_draft_config_read(const char *dir, struct kg_draft_config *config, struct kg_error *err)
{
    char *path = kg_file_join(dir, "config.json"), *text = NULL;
    size_t n = 0;
    int rc;

    if (path == NULL) {
        return kg_fail(err, KG_ENOMEM, "%.200s: no memory", dir);
    }
    rc = kg_file_read(path, MAX_CONFIG_BYTES, &text, &n, err);
    if (rc == KG_OK) {
        rc = kg_draft_config_parse(path, text, n, config, err);
    }
    free(text);
    free(path);
    return rc;
}

int kg_draft_target_sha256(const char *dir, char hex[KG_SHA256_HEX], struct kg_error *err)
{
    char *path = kg_file_join(dir, "model.safetensors.index.json");
    int rc;

    if (path != NULL && !kg_file_exists(path)) {
        free(path);
        path = kg_file_join(dir, "model.safetensors");
    }
    if (path == NULL) {
        return kg_fail(err, KG_ENOMEM, "%.200s: no memory", dir);
    }
    rc = kg_sha256_file(path, hex, err);
    free(path);
    return rc;
}
