#include "model/draft_ckpt.h"

#include "model/bind.h"
#include "model/file.h"
#include "model/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What closing needs beside the public part. */
struct opened {
    struct kg_draft_ckpt ckpt; /* first: the two addresses are one */
    struct kg_ckpt sizes;      /* the binder's view: configuration and counts */
    struct kg_st *st;
    uint8_t *used; /* [kg_st_count] 1: a tensor of the drafter */
    void **owned;
    uint64_t n_owned;
};

static int differs(struct kg_error *err, const char *dir, const char *key, uint32_t have,
                   uint32_t want)
{
    return kg_fail(err, KG_EINVAL,
                   "%.200s/config.json: %s is %" PRIu32 ", the target ([model] path) has %" PRIu32,
                   dir, key, have, want);
}

/* Embedding and head are the target's, so the widths must agree. */
static int check_target(const struct kg_draft_config *c, const char *dir,
                        const struct kg_model_config *target, const char *target_dir,
                        struct kg_error *err)
{
    char hex[KG_SHA256_HEX];
    int rc;

    if (c->net.hidden != target->hidden)
        return differs(err, dir, "hidden_size", c->net.hidden, target->hidden);
    if (c->target_hidden != target->hidden)
        return differs(err, dir, "target_hidden_size", c->target_hidden, target->hidden);
    if (c->target_layers != target->n_layers)
        return differs(err, dir, "target_num_hidden_layers", c->target_layers, target->n_layers);
    if (c->net.vocab != target->vocab)
        return differs(err, dir, "vocab_size", c->net.vocab, target->vocab);
    if (c->stream == KG_TAP_ATTN_RES && target->block_layers == 0)
        return kg_fail(err, KG_EINVAL,
                       "%.200s/config.json: aux_hidden_stream is attn_res, but the target has no "
                       "attention residuals",
                       dir);
    rc = kg_draft_target_sha256(target_dir, hex, err);
    if (rc < 0)
        return rc;
    if (strcmp(hex, c->target_sha256) != 0)
        return kg_fail(err, KG_EINVAL,
                       "%.200s/config.json: target_sha256 is %.16s.., the weights in %.200s are "
                       "%.16s..: the drafter was trained for another target",
                       dir, c->target_sha256, target_dir, hex);
    return KG_OK;
}

static void bind_layers(struct kg_bind *b, struct kg_draft_ckpt *k)
{
    const struct kg_model_config *c = &k->config.net;

    for (uint32_t l = 0; l < c->n_layers && b->rc == KG_OK; l++) {
        struct kg_draft_ckpt_layer *y = &k->layers[l];
        char at[64];
        kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, c->hidden, &y->input_norm,
                       "layers.%" PRIu32 ".input_layernorm.weight", l);
        kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, c->hidden, &y->post_norm,
                       "layers.%" PRIu32 ".post_attention_layernorm.weight", l);
        (void)snprintf(at, sizeof(at), "layers.%" PRIu32 ".self_attn.", l);
        kg_bind_mla(b, at, &y->mla);
        (void)snprintf(at, sizeof(at), "layers.%" PRIu32 ".mlp.", l);
        kg_bind_mlp(b, at, c->dense_inter, &y->mlp);
    }
}

static void bind_heads(struct kg_bind *b, struct kg_draft_ckpt *k)
{
    const struct kg_draft_config *c = &k->config;
    uint32_t n = c->net.hidden, rank = c->markov_rank;

    kg_bind_tensor(b, KG_SHAPE_MATRIX, n, c->n_taps * c->target_hidden, &k->context_proj,
                   "context_proj");
    kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, n, &k->context_norm, "context_norm.weight");
    kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, n, &k->final_norm, "final_norm.weight");
    if (rank > 0) {
        kg_bind_tensor(b, KG_SHAPE_MATRIX, c->net.vocab, rank, &k->w1, "markov_head.markov_w1");
        kg_bind_tensor(b, KG_SHAPE_MATRIX, c->net.vocab, rank, &k->w2, "markov_head.markov_w2");
    }
    if (c->confidence) {
        kg_bind_tensor(b, KG_SHAPE_MATRIX, 1, n + (c->confidence_markov ? rank : 0),
                       &k->confidence_w, "confidence_head.proj");
        kg_bind_tensor(b, KG_SHAPE_VECTOR, 1, 1, &k->confidence_b, "confidence_head.proj.bias");
    }
}

/* Everything in the file has a place, but for the copy of the embedding. */
static void check_rest(struct kg_bind *b)
{
    char name[KG_PRINTABLE];

    for (uint64_t i = 0; i < kg_st_count(b->st) && b->rc == KG_OK; i++) {
        const struct kg_st_tensor *t = kg_st_at(b->st, i);
        if (!b->used[i] && strcmp(t->name, "embed_tokens.weight") != 0)
            b->rc = kg_fail(b->err, KG_EINVAL,
                            "%.160s: %s: is no tensor of the drafter that config.json describes",
                            kg_st_file(b->st, t->shard), kg_printable(t->name, name));
    }
}

static int bind_all(const char *dir, struct opened *o, struct kg_error *err)
{
    struct kg_draft_ckpt *k = &o->ckpt;
    struct kg_bind b = {.st = o->st, .ckpt = &o->sizes, .file = dir, .err = err};

    o->sizes.config = k->config.net;
    b.used = calloc((size_t)kg_st_count(o->st) + 1, 1);
    k->layers = calloc(k->config.net.n_layers, sizeof(*k->layers));
    if (b.used == NULL || k->layers == NULL)
        b.rc = kg_fail(err, KG_ENOMEM, "%.200s: no memory", dir);
    bind_heads(&b, k);
    bind_layers(&b, k);
    check_rest(&b);
    o->used = b.used;
    o->owned = b.owned;
    o->n_owned = b.n_owned;
    k->n_tensors = o->sizes.info.n_bound;
    k->bound_bytes = o->sizes.info.bound_bytes;
    return b.rc;
}

/* First element of n whose exponent is all ones, or n. Whole blocks first: a loop that the compiler
 * turns into vectors, so that the scan costs less than reading the file. */
#define SCAN(name, type, ones)                                           \
    static uint64_t name(const uint8_t *at, uint64_t n)                  \
    {                                                                    \
        type v[256];                                                     \
        for (uint64_t i = 0; i < n; i += 256) {                          \
            uint32_t m = n - i < 256 ? (uint32_t)(n - i) : 256, bad = 0; \
            memset(v, 0, sizeof(v));                                     \
            memcpy(v, at + i * sizeof(type), m * sizeof(type));          \
            for (uint32_t j = 0; j < 256; j++)                           \
                bad |= (v[j] & (ones)) == (ones);                        \
            for (uint32_t j = 0; bad && j < m; j++)                      \
                if ((v[j] & (ones)) == (ones))                           \
                    return i + j;                                        \
        }                                                                \
        return n;                                                        \
    }

SCAN(scan_f32, uint32_t, 0x7f800000u)
SCAN(scan_bf16, uint16_t, 0x7f80u)
SCAN(scan_f16, uint16_t, 0x7c00u)

int kg_draft_ckpt_check_values(const struct kg_draft_ckpt *ckpt, struct kg_error *err)
{
    const struct opened *o = (const struct opened *)ckpt;
    char name[KG_PRINTABLE];

    for (uint64_t i = 0; i < kg_st_count(o->st); i++) {
        const struct kg_st_tensor *t = kg_st_at(o->st, i);
        if (!o->used[i])
            continue;
        uint64_t n = t->bytes / kg_dtype_bytes(t->dtype);
        uint64_t at = t->dtype == KG_F32    ? scan_f32(t->data, n)
                      : t->dtype == KG_BF16 ? scan_bf16(t->data, n)
                                            : scan_f16(t->data, n);
        if (at < n)
            return kg_fail(err, KG_EINVAL, "%.160s: %s: value %" PRIu64 " is not finite",
                           kg_st_file(o->st, t->shard), kg_printable(t->name, name), at);
    }
    return KG_OK;
}

int kg_draft_ckpt_open(const char *dir, const struct kg_model_config *target,
                       const char *target_dir, struct kg_draft_ckpt **ckpt, struct kg_error *err)
{
    struct opened *o = calloc(1, sizeof(*o));
    int rc;

    if (o == NULL)
        return kg_fail(err, KG_ENOMEM, "%.200s: no memory", dir);
    if ((rc = kg_draft_config_read(dir, &o->ckpt.config, err)) < 0 ||
        (rc = check_target(&o->ckpt.config, dir, target, target_dir, err)) < 0 ||
        (rc = kg_st_open(dir, &o->st, err)) < 0 || (rc = bind_all(dir, o, err)) < 0) {
        kg_draft_ckpt_close(&o->ckpt);
        return rc;
    }
    *ckpt = &o->ckpt;
    return KG_OK;
}

void kg_draft_ckpt_close(struct kg_draft_ckpt *ckpt)
{
    struct opened *o = (struct opened *)ckpt;

    if (ckpt == NULL)
        return;
    free(ckpt->layers);
    free(o->used);
    for (uint64_t i = 0; i < o->n_owned; i++)
        free(o->owned[i]);
    free(o->owned);
    kg_st_close(o->st);
    free(o);
}
