#include "model/config.h"

#include "model/file.h"
#include "model/reader.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CONFIG_BYTES (16u * 1024u * 1024u)

/* A key that may be absent but, when there, must hold this one word. */
static int expect_word(const struct kg_reader *r, const char *key, const char *word)
{
    const char *words[] = {word, NULL};
    uint32_t i;

    return kg_read_get(r, key) == NULL ? KG_OK : kg_read_word(r, key, words, &i);
}

/* One of the two layer lists: 1-based, each layer at most once over both lists. */
static int read_layers(const struct kg_reader *r, const char *key, uint8_t kind, uint8_t *seen,
                       struct kg_model_config *c, uint32_t *n)
{
    const json_t *list = kg_read_get(r, key);

    if (list == NULL) {
        return kg_read_missing(r, key);
    }
    if (!json_is_array(list)) {
        return kg_read_wrong(r, key, "a list of layer numbers");
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t l = json_is_integer(v) ? json_integer_value(v) : 0;
        if (l < 1 || l > (json_int_t)c->n_layers) {
            return kg_fail(r->err, KG_EINVAL,
                           "%.200s: %s%s: entry %zu is not a layer number in 1..%" PRIu32, r->file,
                           r->at, key, i, c->n_layers);
        }
        if (seen[l - 1]) {
            return kg_fail(r->err, KG_EINVAL,
                           "%.200s: %s%s: layer %" JSON_INTEGER_FORMAT " is listed twice", r->file,
                           r->at, key, l);
        }
        seen[l - 1] = 1;
        c->layer_kind[l - 1] = kind;
    }
    *n = (uint32_t)json_array_size(list);
    if (*n == 0) {
        return kg_read_wrong(r, key,
                             "a list with at least one layer: this is a core for hybrid models");
    }
    return KG_OK;
}

static int read_kda(const struct kg_reader *text, const char *at, struct kg_model_config *c)
{
    uint8_t seen[KG_MAX_LAYERS] = {0};
    struct kg_reader in = {0};
    int rc;

    if ((rc = kg_read_enter(text, "linear_attn_config", at, &in)) < 0 ||
        (rc = read_layers(&in, "kda_layers", KG_LAYER_KDA, seen, c, &c->n_kda_layers)) < 0 ||
        (rc = read_layers(&in, "full_attn_layers", KG_LAYER_MLA, seen, c, &c->n_mla_layers)) < 0) {
        return rc;
    }
    for (uint32_t l = 0; l < c->n_layers; l++) {
        if (!seen[l]) {
            return kg_fail(in.err, KG_EINVAL,
                           "%.200s: layer %" PRIu32
                           " is neither in %skda_layers nor in %sfull_attn_layers",
                           in.file, l + 1, in.at, in.at);
        }
    }
    if ((rc = kg_read_u32(&in, "num_heads", 1, KG_MAX_HEADS, KG_NONE, &c->kda_heads)) < 0 ||
        (rc = kg_read_u32(&in, "head_dim", 1, 1024, KG_NONE, &c->kda_dim)) < 0 ||
        (rc = kg_read_u32(&in, "short_conv_kernel_size", 4, 4, KG_NONE, &c->conv_taps)) < 0 ||
        (rc = kg_read_bool(&in, "use_full_rank_gate", c->family == KG_KIMI_K3, &c->full_gate)) <
            0 ||
        (rc = kg_read_float(&in, "gate_lower_bound", -100, -1e-3, 0, &c->decay_floor)) < 0) {
        return rc;
    }
    c->decay = c->decay_floor < 0 ? KG_DECAY_BOUNDED : KG_DECAY_SOFTPLUS;
    return KG_OK;
}

static int read_mla(const struct kg_reader *r, struct kg_model_config *c)
{
    uint32_t nope = 0, kv_heads = 0;
    int rc;

    if ((rc = kg_read_u32(r, "num_attention_heads", 1, KG_MAX_HEADS, KG_NONE, &c->mla_heads)) < 0 ||
        (rc = kg_read_u32(r, "num_key_value_heads", 1, KG_MAX_HEADS, c->mla_heads, &kv_heads)) <
            0 ||
        (rc = kg_read_u32(r, "q_lora_rank", 1, KG_MAX_HIDDEN, 0, &c->q_lora)) < 0 ||
        (rc = kg_read_u32(r, "kv_lora_rank", 1, KG_MAX_HIDDEN, KG_NONE, &c->kv_lora)) < 0 ||
        (rc = kg_read_u32(r, "qk_nope_head_dim", 1, 4096, KG_NONE, &c->nope_dim)) < 0 ||
        (rc = kg_read_u32(r, "qk_rope_head_dim", 1, 4096, KG_NONE, &c->rope_dim)) < 0 ||
        (rc = kg_read_u32(r, "v_head_dim", 1, 4096, KG_NONE, &c->v_dim)) < 0 ||
        (rc = kg_read_bool(r, "mla_use_nope", 0, &nope)) < 0 ||
        (rc = kg_read_bool(r, "mla_use_output_gate", 0, &c->mla_gate)) < 0) {
        return rc;
    }
    if (kv_heads != c->mla_heads) {
        return kg_read_wrong(r, "num_key_value_heads", "equal to num_attention_heads");
    }
    if (!nope) {
        return kg_read_wrong(r, "mla_use_nope", "true: rotary positions are not supported");
    }
    return KG_OK;
}

static int read_act(const struct kg_reader *r, struct kg_model_config *c)
{
    static const char *const acts[] = {"silu", "situ", NULL};
    int rc = kg_read_word(r, "hidden_act", acts, &c->act);

    if (rc < 0 || c->act != KG_FFN_SITU) {
        return rc;
    }
    if ((rc = kg_read_float(r, "activation_situ_beta", 1e-3, 1e6, NAN, &c->act_beta)) < 0) {
        return rc;
    }
    return kg_read_float(r, "activation_situ_linear_beta", 1e-3, 1e6, NAN, &c->act_linear_beta);
}

/* The fields that matter once a layer is MoE. */
static int read_experts(const struct kg_reader *r, struct kg_model_config *c)
{
    uint32_t shared = 0, groups = 0, topk_group = 0;
    int rc;

    if ((rc = kg_read_u32(r, "num_experts", 1, KG_MAX_EXPERTS, KG_NONE, &c->n_experts)) < 0 ||
        (rc = kg_read_u32(r, "num_experts_per_token", 1, c->n_experts, KG_NONE, &c->top_k)) < 0 ||
        (rc = kg_read_u32(r, "moe_intermediate_size", 1, KG_MAX_INTER, KG_NONE, &c->expert_inter)) <
            0 ||
        (rc = kg_read_u32(r, "num_shared_experts", 0, 64, 0, &shared)) < 0 ||
        (rc = kg_read_u32(r, "routed_expert_hidden_size", 1, KG_MAX_HIDDEN, 0, &c->latent)) < 0 ||
        (rc = kg_read_bool(r, "latent_moe_use_norm", 1, &c->latent_norm)) < 0 ||
        (rc = kg_read_u32(r, "num_expert_group", 1, KG_MAX_EXPERTS, 1, &groups)) < 0 ||
        (rc = kg_read_u32(r, "topk_group", 1, KG_MAX_EXPERTS, 1, &topk_group)) < 0 ||
        (rc = kg_read_bool(r, "moe_renormalize", 1, &c->renormalize)) < 0 ||
        (rc = kg_read_float(r, "routed_scaling_factor", 1e-6, 1e6, 1, &c->routed_scale)) < 0 ||
        (rc = expect_word(r, "moe_router_activation_func", "sigmoid")) < 0 ||
        (rc = expect_word(r, "topk_method", "noaux_tc")) < 0) {
        return rc;
    }
    if (groups != 1) {
        return kg_read_wrong(r, "num_expert_group", "1: grouped routing is not supported");
    }
    if (topk_group != 1) {
        return kg_read_wrong(r, "topk_group", "1: grouped routing is not supported");
    }
    c->shared_inter = shared * c->expert_inter;
    if (c->latent == 0) {
        c->latent_norm = 0;
    }
    return KG_OK;
}

static int read_ffn(const struct kg_reader *r, struct kg_model_config *c)
{
    uint32_t experts = 0, first = 0, freq = 1;
    int n_moe = 0;
    int rc;

    if ((rc = read_act(r, c)) < 0 ||
        (rc = kg_read_u32(r, "num_experts", 0, KG_MAX_EXPERTS, 0, &experts)) < 0 ||
        (rc = kg_read_u32(r, "first_k_dense_replace", 0, KG_MAX_LAYERS, 0, &first)) < 0 ||
        (rc = kg_read_u32(r, "moe_layer_freq", 1, KG_MAX_LAYERS, 1, &freq)) < 0) {
        return rc;
    }
    for (uint32_t l = 0; l < c->n_layers; l++) {
        c->layer_moe[l] = experts > 0 && l >= first && l % freq == 0;
        n_moe += c->layer_moe[l];
    }
    if (n_moe < (int)c->n_layers &&
        (rc = kg_read_u32(r, "intermediate_size", 1, KG_MAX_INTER, KG_NONE, &c->dense_inter)) < 0) {
        return rc;
    }
    return n_moe > 0 ? read_experts(r, c) : KG_OK;
}

/* Checks one group of quantization_config: 4-bit floats in groups of 32. */
static int check_group(const struct kg_reader *q, const char *name, const json_t *group)
{
    const json_t *w = json_object_get(group, "weights");
    struct kg_reader in = {.file = q->file,
                           .at = "quantization_config.config_groups.*.weights.",
                           .obj = w,
                           .err = q->err};
    char buf[KG_PRINTABLE];
    uint32_t x;
    int rc;

    if (!json_is_object(w)) {
        return kg_fail(q->err, KG_EINVAL,
                       "%.200s: quantization_config.config_groups.%s.weights must be an object",
                       q->file, kg_printable(name, buf));
    }
    if ((rc = kg_read_u32(&in, "num_bits", 4, 4, 4, &x)) < 0 ||
        (rc = kg_read_u32(&in, "group_size", 32, 32, 32, &x)) < 0 ||
        (rc = expect_word(&in, "type", "float")) < 0) {
        return rc;
    }
    return KG_OK;
}

static int read_quant(const struct kg_reader *r, struct kg_model_config *c)
{
    static const char *const formats[] = {"mxfp4-pack-quantized", NULL};
    struct kg_reader in = {0};
    uint32_t x;
    int rc;

    if (kg_read_get(r, "quantization_config") == NULL) {
        return KG_OK;
    }
    if ((rc = kg_read_enter(r, "quantization_config", "quantization_config.", &in)) < 0 ||
        (rc = expect_word(&in, "quant_method", "compressed-tensors")) < 0 ||
        (rc = kg_read_word(&in, "format", formats, &x)) < 0) {
        return rc;
    }
    const json_t *groups = kg_read_get(&in, "config_groups");
    if (groups != NULL && !json_is_object(groups)) {
        return kg_read_wrong(&in, "config_groups", "an object");
    }
    void *it = json_object_iter((json_t *)(uintptr_t)groups);
    for (; it != NULL; it = json_object_iter_next((json_t *)(uintptr_t)groups, it)) {
        if ((rc = check_group(&in, json_object_iter_key(it), json_object_iter_value(it))) < 0) {
            return rc;
        }
    }
    c->mxfp4 = 1;
    return KG_OK;
}

static int add_eos(const struct kg_reader *r, const json_t *v, struct kg_model_config *c)
{
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;

    if (id < 0 || id >= (json_int_t)c->vocab) {
        return kg_fail(r->err, KG_EINVAL,
                       "%.200s: %seos_token_id must be a token id below %" PRIu32, r->file, r->at,
                       c->vocab);
    }
    for (uint32_t i = 0; i < c->n_eos; i++) {
        if (c->eos[i] == (uint32_t)id) {
            return KG_OK;
        }
    }
    if (c->n_eos == KG_MAX_EOS_IDS) {
        return kg_fail(r->err, KG_EINVAL, "%.200s: %seos_token_id: more than %d ids", r->file,
                       r->at, KG_MAX_EOS_IDS);
    }
    c->eos[c->n_eos++] = (uint32_t)id;
    return KG_OK;
}

/* eos_token_id: a number, a list of numbers, or absent. */
static int read_eos(const struct kg_reader *r, struct kg_model_config *c)
{
    const json_t *v = kg_read_get(r, "eos_token_id");

    if (v == NULL) {
        return KG_OK;
    }
    if (!json_is_array(v)) {
        return add_eos(r, v, c);
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        int rc = add_eos(r, json_array_get(v, i), c);
        if (rc < 0) {
            return rc;
        }
    }
    return KG_OK;
}

/* bos, pad and the tie: the inner object wins over the outer one. */
static int read_outer(const struct kg_reader *outer, const struct kg_reader *text,
                      struct kg_model_config *c)
{
    uint32_t last = c->vocab - 1;
    const struct kg_reader *r;
    int rc;

    r = kg_read_get(text, "bos_token_id") != NULL ? text : outer;
    c->bos = KG_NONE;
    if (kg_read_get(r, "bos_token_id") != NULL &&
        (rc = kg_read_u32(r, "bos_token_id", 0, last, KG_NONE, &c->bos)) < 0) {
        return rc;
    }
    r = kg_read_get(text, "pad_token_id") != NULL ? text : outer;
    c->pad = KG_NONE;
    if (kg_read_get(r, "pad_token_id") != NULL &&
        (rc = kg_read_u32(r, "pad_token_id", 0, last, KG_NONE, &c->pad)) < 0) {
        return rc;
    }
    r = kg_read_get(text, "tie_word_embeddings") != NULL ? text : outer;
    if ((rc = kg_read_bool(r, "tie_word_embeddings", 0, &c->tied)) < 0) {
        return rc;
    }
    r = kg_read_get(text, "eos_token_id") != NULL ? text : outer;
    return read_eos(r, c);
}

static int read_text(const struct kg_reader *r, const char *kda_at, struct kg_model_config *c)
{
    const char *context =
        kg_read_get(r, "model_max_length") != NULL ? "model_max_length" : "max_position_embeddings";
    uint32_t mtp = 0;
    int rc;

    if ((rc = kg_read_u32(r, "hidden_size", 1, KG_MAX_HIDDEN, KG_NONE, &c->hidden)) < 0 ||
        (rc = kg_read_u32(r, "num_hidden_layers", 1, KG_MAX_LAYERS, KG_NONE, &c->n_layers)) < 0 ||
        (rc = kg_read_u32(r, "vocab_size", 1, KG_MAX_VOCAB, KG_NONE, &c->vocab)) < 0 ||
        (rc = kg_read_u32(r, context, 1, KG_MAX_CONTEXT, KG_NONE, &c->max_context)) < 0 ||
        (rc = kg_read_float(r, "rms_norm_eps", 1e-12, 1e-1, NAN, &c->rms_eps)) < 0 ||
        (rc = kg_read_u32(r, "attn_res_block_size", 0, KG_MAX_LAYERS, 0, &c->block_layers)) < 0 ||
        (rc = kg_read_u32(r, "num_nextn_predict_layers", 0, KG_MAX_LAYERS, 0, &mtp)) < 0 ||
        (rc = read_kda(r, kda_at, c)) < 0 || (rc = read_mla(r, c)) < 0 ||
        (rc = read_ffn(r, c)) < 0 || (rc = read_quant(r, c)) < 0) {
        return rc;
    }
    if (mtp != 0) {
        return kg_read_wrong(r, "num_nextn_predict_layers", "0: such layers are not supported");
    }
    c->latent_eps = c->rms_eps;
    return KG_OK;
}

/* `architectures`, when present, must list `name`. */
static int check_architecture(const struct kg_reader *r, const char *name)
{
    const json_t *list = kg_read_get(r, "architectures");

    if (list == NULL) {
        return KG_OK;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (s != NULL && strcmp(s, name) == 0) {
            return KG_OK;
        }
    }
    return kg_fail(r->err, KG_EINVAL, "%.200s: %sarchitectures does not list %s", r->file, r->at,
                   name);
}

/* The object that describes the text model, and the family. */
static int find_text(const struct kg_reader *outer, struct kg_reader *text,
                     struct kg_model_config *c)
{
    static const char *const families[] = {"kimi_linear", "kimi_k3", NULL};
    static const char *const inner[] = {"kimi_linear", NULL};
    uint32_t i = 0;
    int rc = kg_read_word(outer, "model_type", families, &i);

    if (rc < 0) {
        return rc;
    }
    *text = *outer;
    if (i == 0) {
        c->family = KG_KIMI_LINEAR;
        return check_architecture(outer, "KimiLinearForCausalLM");
    }
    c->family = KG_KIMI_K3;
    if ((rc = check_architecture(outer, "KimiK3ForConditionalGeneration")) < 0 ||
        (rc = kg_read_enter(outer, "text_config", "text_config.", text)) < 0 ||
        (rc = kg_read_word(text, "model_type", inner, &i)) < 0) {
        return rc;
    }
    return check_architecture(text, "KimiLinearForCausalLM");
}

int kg_model_config_parse(const char *file, const char *text, size_t n, const char *generation,
                          size_t n_generation, struct kg_model_config *config, struct kg_error *err)
{
    struct kg_model_config c = {0};
    struct kg_reader in = {0};
    json_t *gen = NULL;
    json_t *root = kg_read_parse(file, text, n, err);

    if (root == NULL) {
        return KG_EINVAL;
    }
    struct kg_reader outer = {.file = file, .at = "", .obj = root, .err = err};
    int rc = find_text(&outer, &in, &c);
    if (rc == KG_OK) {
        rc = read_text(
            &in, in.obj == root ? "linear_attn_config." : "text_config.linear_attn_config.", &c);
    }
    if (rc == KG_OK && generation != NULL) {
        gen = kg_read_parse("generation_config.json", generation, n_generation, err);
        struct kg_reader g = {.file = "generation_config.json", .at = "", .obj = gen, .err = err};
        rc = gen == NULL ? KG_EINVAL : read_eos(&g, &c);
    }
    if (rc == KG_OK) {
        rc = read_outer(&outer, &in, &c);
    }
    json_decref(gen);
    json_decref(root);
    if (rc == KG_OK) {
        *config = c;
    }
    return rc;
}

int kg_model_config_read(const char *dir, struct kg_model_config *config, struct kg_error *err)
{
    char *path = kg_file_join(dir, "config.json");
    char *gen_path = kg_file_join(dir, "generation_config.json");
    char *text = NULL, *gen = NULL;
    size_t n = 0, n_gen = 0;
    int rc;

    if (path == NULL || gen_path == NULL) {
        rc = kg_fail(err, KG_ENOMEM, "%.200s: no memory", dir);
        goto out;
    }
    if ((rc = kg_file_read(path, MAX_CONFIG_BYTES, &text, &n, err)) < 0) {
        goto out;
    }
    if (kg_file_exists(gen_path) &&
        (rc = kg_file_read(gen_path, MAX_CONFIG_BYTES, &gen, &n_gen, err)) < 0) {
        goto out;
    }
    rc = kg_model_config_parse(path, text, n, gen, n_gen, config, err);
out:
    free(gen);
    free(text);
    free(gen_path);
    free(path);
    return rc;
}
