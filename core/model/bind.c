#include "model/bind.h"

#include "model/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Beginning of every name of the text model. */
static const char *text_prefix(const struct kg_model_config *c)
{
    return c->family == KG_KIMI_K3 ? "language_model." : "";
}

static void bind_kda(struct kg_bind *b, const char *at, struct kg_ckpt_kda *a)
{
    const struct kg_model_config *c = &b->ckpt->config;
    uint32_t p = kg_kda_width(c), d = c->kda_dim, h = c->kda_heads, n = c->hidden;
    uint32_t taps = c->conv_taps;

    kg_bind_tensor(b, KG_SHAPE_MATRIX, p, n, &a->q, "%sq_proj", at);
    kg_bind_tensor(b, KG_SHAPE_MATRIX, p, n, &a->k, "%sk_proj", at);
    kg_bind_tensor(b, KG_SHAPE_MATRIX, p, n, &a->v, "%sv_proj", at);
    kg_bind_tensor(b, KG_SHAPE_CONV, p, taps, &a->q_conv, "%sq_conv1d.weight", at);
    kg_bind_tensor(b, KG_SHAPE_CONV, p, taps, &a->k_conv, "%sk_conv1d.weight", at);
    kg_bind_tensor(b, KG_SHAPE_CONV, p, taps, &a->v_conv, "%sv_conv1d.weight", at);
    kg_bind_tensor(b, KG_SHAPE_A_LOG, 1, h, &a->a_log, "%sA_log", at);
    kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, p, &a->dt_bias, "%sdt_bias", at);
    kg_bind_tensor(b, KG_SHAPE_MATRIX, d, n, &a->f_a, "%sf_a_proj", at);
    kg_bind_tensor(b, KG_SHAPE_MATRIX, p, d, &a->f_b, "%sf_b_proj", at);
    kg_bind_tensor(b, KG_SHAPE_MATRIX, h, n, &a->b, "%sb_proj", at);
    if (c->full_gate) {
        kg_bind_tensor(b, KG_SHAPE_MATRIX, p, n, &a->g, "%sg_proj", at);
    } else {
        kg_bind_tensor(b, KG_SHAPE_MATRIX, d, n, &a->g_a, "%sg_a_proj", at);
        kg_bind_tensor(b, KG_SHAPE_MATRIX, p, d, &a->g_b, "%sg_b_proj", at);
    }
    kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, d, &a->o_norm, "%so_norm.weight", at);
    kg_bind_tensor(b, KG_SHAPE_MATRIX, n, p, &a->o, "%so_proj", at);
}

void kg_bind_mla(struct kg_bind *b, const char *at, struct kg_ckpt_mla *a)
{
    const struct kg_model_config *c = &b->ckpt->config;
    uint32_t n = c->hidden, h = c->mla_heads, r = c->kv_lora;
    uint32_t qk = h * (c->nope_dim + c->rope_dim);

    if (c->q_lora == 0) {
        kg_bind_tensor(b, KG_SHAPE_MATRIX, qk, n, &a->q, "%sq_proj", at);
    } else {
        kg_bind_tensor(b, KG_SHAPE_MATRIX, c->q_lora, n, &a->q_a, "%sq_a_proj", at);
        kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, c->q_lora, &a->q_a_norm, "%sq_a_layernorm.weight",
                       at);
        kg_bind_tensor(b, KG_SHAPE_MATRIX, qk, c->q_lora, &a->q_b, "%sq_b_proj", at);
    }
    kg_bind_tensor(b, KG_SHAPE_MATRIX, r + c->rope_dim, n, &a->kv_a, "%skv_a_proj_with_mqa", at);
    kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, r, &a->kv_a_norm, "%skv_a_layernorm.weight", at);
    kg_bind_tensor(b, KG_SHAPE_MATRIX, h * (c->nope_dim + c->v_dim), r, &a->kv_b, "%skv_b_proj",
                   at);
    if (c->mla_gate) {
        kg_bind_tensor(b, KG_SHAPE_MATRIX, h * c->v_dim, n, &a->g, "%sg_proj", at);
    }
    kg_bind_tensor(b, KG_SHAPE_MATRIX, n, h * c->v_dim, &a->o, "%so_proj", at);
}

void kg_bind_mlp(struct kg_bind *b, const char *at, uint32_t inter, struct kg_ckpt_mlp *m)
{
    uint32_t n = b->ckpt->config.hidden;

    kg_bind_tensor(b, KG_SHAPE_MATRIX, inter, n, &m->gate, "%sgate_proj", at);
    kg_bind_tensor(b, KG_SHAPE_MATRIX, inter, n, &m->up, "%sup_proj", at);
    kg_bind_tensor(b, KG_SHAPE_MATRIX, n, inter, &m->down, "%sdown_proj", at);
}

/* All experts of a layer are stored alike, so that one kernel runs them. */
static void check_alike(struct kg_bind *b, const char *at, uint32_t e, const struct kg_ckpt_moe *m)
{
    const struct kg_ckpt_mlp *x = &m->experts[e];
    uint32_t want = m->experts[0].gate.dtype;
    const char *odd = x->gate.dtype != want   ? "w1"
                      : x->up.dtype != want   ? "w3"
                      : x->down.dtype != want ? "w2"
                                              : NULL;

    if (b->rc == KG_OK && odd != NULL) {
        b->rc = kg_fail(b->err, KG_EINVAL,
                        "%.200s: %sexperts.%" PRIu32 ".%s has another dtype than experts.0.w1",
                        b->file, at, e, odd);
    }
}

static void bind_moe(struct kg_bind *b, const char *at, struct kg_ckpt_moe *m)
{
    const struct kg_model_config *c = &b->ckpt->config;
    uint32_t n = c->hidden, w = kg_expert_width(c), i = c->expert_inter;
    char shared[128];

    kg_bind_tensor(b, KG_SHAPE_MATRIX, c->n_experts, n, &m->router, "%sgate", at);
    kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, c->n_experts, &m->bias, "%sgate.e_score_correction_bias",
                   at);
    if (c->latent != 0) {
        kg_bind_tensor(b, KG_SHAPE_MATRIX, w, n, &m->latent_down, "%srouted_expert_down_proj", at);
        kg_bind_tensor(b, KG_SHAPE_MATRIX, n, w, &m->latent_up, "%srouted_expert_up_proj", at);
    }
    if (c->latent_norm) {
        kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, w, &m->latent_norm, "%srouted_expert_norm.weight",
                       at);
    }
    if (c->shared_inter != 0) {
        (void)snprintf(shared, sizeof(shared), "%sshared_experts.", at);
        kg_bind_mlp(b, shared, c->shared_inter, &m->shared);
    }
    if (b->rc < 0) {
        return;
    }
    m->experts = calloc(c->n_experts, sizeof(*m->experts));
    if (m->experts == NULL) {
        b->rc = kg_fail(b->err, KG_ENOMEM, "%.200s: no memory for the list of experts", b->file);
        return;
    }
    for (uint32_t e = 0; e < c->n_experts && b->rc == KG_OK; e++) {
        struct kg_ckpt_mlp *x = &m->experts[e];
        kg_bind_tensor(b, KG_SHAPE_EXPERT, i, w, &x->gate, "%sexperts.%" PRIu32 ".w1", at, e);
        kg_bind_tensor(b, KG_SHAPE_EXPERT, i, w, &x->up, "%sexperts.%" PRIu32 ".w3", at, e);
        kg_bind_tensor(b, KG_SHAPE_EXPERT, w, i, &x->down, "%sexperts.%" PRIu32 ".w2", at, e);
        check_alike(b, at, e, m);
    }
}

/* One score vector of the attention residuals: norm and projection. */
static void bind_res(struct kg_bind *b, const char *at, const char *name, struct kg_tensor *norm,
                     struct kg_tensor *proj)
{
    uint32_t n = b->ckpt->config.hidden;

    if (b->ckpt->config.block_layers == 0) {
        return;
    }
    kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, n, norm, "%s%s_norm.weight", at, name);
    kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, n, proj, "%s%s_proj.weight", at, name);
}

static void bind_layer(struct kg_bind *b, uint32_t l)
{
    const struct kg_model_config *c = &b->ckpt->config;
    struct kg_ckpt_layer *y = &b->ckpt->layers[l];
    const char *prefix = text_prefix(c);
    char at[64], part[96];

    (void)snprintf(at, sizeof(at), "%smodel.layers.%" PRIu32 ".", prefix, l);
    kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, c->hidden, &y->input_norm, "%sinput_layernorm.weight",
                   at);
    kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, c->hidden, &y->post_norm,
                   "%spost_attention_layernorm.weight", at);
    bind_res(b, at, "self_attention_res", &y->attn_res_norm, &y->attn_res_proj);
    bind_res(b, at, "mlp_res", &y->mlp_res_norm, &y->mlp_res_proj);
    (void)snprintf(part, sizeof(part), "%sself_attn.", at);
    if (c->layer_kind[l] == KG_LAYER_KDA) {
        bind_kda(b, part, &y->kda);
    } else {
        kg_bind_mla(b, part, &y->mla);
    }
    if (c->layer_moe[l]) {
        (void)snprintf(part, sizeof(part), "%sblock_sparse_moe.", at);
        bind_moe(b, part, &y->moe);
    } else {
        (void)snprintf(part, sizeof(part), "%smlp.", at);
        kg_bind_mlp(b, part, c->dense_inter, &y->mlp);
    }
}

void kg_bind_model(struct kg_bind *b)
{
    struct kg_ckpt *k = b->ckpt;
    const struct kg_model_config *c = &k->config;
    const char *at = text_prefix(c);

    kg_bind_tensor(b, KG_SHAPE_MATRIX, c->vocab, c->hidden, &k->embed, "%smodel.embed_tokens", at);
    kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, c->hidden, &k->norm, "%smodel.norm.weight", at);
    if (c->tied) {
        k->lm_head = k->embed;
    } else {
        kg_bind_tensor(b, KG_SHAPE_MATRIX, c->vocab, c->hidden, &k->lm_head, "%slm_head", at);
    }
    if (c->block_layers != 0) {
        kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, c->hidden, &k->out_res_norm,
                       "%smodel.output_attn_res_norm.weight", at);
        kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, c->hidden, &k->out_res_proj,
                       "%smodel.output_attn_res_proj.weight", at);
    }
    for (uint32_t l = 0; l < c->n_layers && b->rc == KG_OK; l++) {
        bind_layer(b, l);
    }
}

static int begins(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* A tensor of the text model nobody asked for: says why it cannot be. */
static void refuse(struct kg_bind *b, const struct kg_st_tensor *t)
{
    const struct kg_model_config *c = &b->ckpt->config;
    const char *layers = c->family == KG_KIMI_K3 ? "language_model.model.layers." : "model.layers.";
    const char *file = kg_st_file(b->st, t->shard);
    char name[KG_PRINTABLE];

    if (begins(t->name, layers) && strtoull(t->name + strlen(layers), NULL, 10) >= c->n_layers) {
        b->rc =
            kg_fail(b->err, KG_EINVAL, "%.200s: %s: the configuration has only %" PRIu32 " layers",
                    file, kg_printable(t->name, name), c->n_layers);
        return;
    }
    b->rc = kg_fail(b->err, KG_EINVAL,
                    "%.200s: %s: is no tensor of the model that config.json describes", file,
                    kg_printable(t->name, name));
}

void kg_bind_rest(struct kg_bind *b)
{
    struct kg_ckpt_info *info = &b->ckpt->info;
    const struct kg_model_config *c = &b->ckpt->config;
    uint32_t n_names = 0;

    for (uint64_t i = 0; i < kg_st_count(b->st) && b->rc == KG_OK; i++) {
        const struct kg_st_tensor *t = kg_st_at(b->st, i);
        const char *prefix = text_prefix(c);
        if (b->used[i]) {
            continue;
        }
        if (begins(t->name, "vision_tower.") || begins(t->name, "mm_projector.")) {
            info->n_vision++;
            info->vision_bytes += t->bytes;
            continue;
        }
        const char *rest = begins(t->name, prefix) ? t->name + strlen(prefix) : NULL;
        int is_tied_head = c->tied && rest != NULL && strcmp(rest, "lm_head.weight") == 0;
        if (rest != NULL && !is_tied_head &&
            (c->family == KG_KIMI_K3 || begins(rest, "model.") || begins(rest, "lm_head."))) {
            refuse(b, t);
            return;
        }
        info->n_ignored++;
        if (n_names < KG_CKPT_NAMES) {
            info->ignored[n_names++] = t->name;
        }
    }
}
