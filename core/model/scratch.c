#include "model/forward.h"

/* As the packer, this runs twice over one list: first to add up, then to hand out. */
struct carver {
    uint8_t *mem;   /* NULL: plan */
    uint8_t *lists; /* host block of a model on a device */
    uint64_t at, most, lists_at;
    uint32_t rows;
    int split; /* 1: lists are apart */
};

static void *bytes(struct carver *c, uint64_t n)
{
    void *at = c->mem == NULL ? NULL : c->mem + c->at;

    c->at += (n + 63) / 64 * 64;
    if (c->at > c->most)
        c->most = c->at;
    return at;
}

/* What the pass writes for the kernels to read: host memory. */
static void *list(struct carver *c, uint64_t n)
{
    void *at = c->lists == NULL ? NULL : c->lists + c->lists_at;

    if (!c->split)
        return bytes(c, n);
    c->lists_at += (n + 63) / 64 * 64;
    return at;
}

static float *rows_of(struct carver *c, uint64_t width)
{
    return bytes(c, c->rows * width * sizeof(float));
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void carve_kda(struct carver *v, const struct kg_model_config *c, int with_u,
                      struct kg_scratch *s)
{
    uint64_t width = kg_kda_width(c);

    s->kda.raw = rows_of(v, 3 * width);
    s->kda.conv = rows_of(v, 3 * width);
    s->kda.f_a = rows_of(v, c->kda_dim);
    s->kda.g_a = rows_of(v, c->kda_dim);
    s->kda.f = rows_of(v, width);
    s->kda.z = rows_of(v, width);
    s->kda.o = rows_of(v, width);
    s->kda.beta = rows_of(v, c->kda_heads);
    s->kda.u = with_u ? rows_of(v, width) : NULL;
}

static void carve_mla(struct carver *v, const struct kg_model_config *c, struct kg_scratch *s)
{
    uint64_t heads = c->mla_heads;

    s->mla.q_a = rows_of(v, c->q_lora);
    s->mla.q = rows_of(v, heads * (c->nope_dim + c->rope_dim));
    s->mla.kv = rows_of(v, c->kv_lora + c->rope_dim);
    s->mla.qa = rows_of(v, heads * c->kv_lora);
    s->mla.m = rows_of(v, heads * c->kv_lora);
    s->mla.z = rows_of(v, heads * c->v_dim);
    s->mla.o = rows_of(v, heads * c->v_dim);
}

static void carve_ffn(struct carver *v, const struct kg_model *m, struct kg_scratch *s)
{
    const struct kg_model_config *c = m->c;
    uint32_t inter = larger(c->dense_inter, c->shared_inter);

    s->ffn.gate = rows_of(v, inter);
    s->ffn.up = rows_of(v, inter);
    if (c->n_experts == 0)
        return;
    s->ffn.scores = rows_of(v, c->n_experts);
    s->ffn.latent = rows_of(v, kg_expert_width(c));
    s->ffn.sum = rows_of(v, kg_expert_width(c));
    s->ffn.pick_w = rows_of(v, c->top_k);
    s->ffn.picks = bytes(v, (uint64_t)v->rows * c->top_k * sizeof(uint32_t));
    s->ffn.moe_bytes = kg_moe_scratch_bytes(v->rows, c->top_k, m->split.experts, c->expert_inter,
                                            kg_expert_width(c));
    s->ffn.moe = bytes(v, s->ffn.moe_bytes);
}

static void carve(struct carver *v, struct kg_model *m)
{
    const struct kg_model_config *c = m->c;
    struct kg_scratch *s = &m->s;
    uint64_t shared, rest;

    s->streams = list(v, m->n_streams * sizeof(*s->streams));
    for (uint32_t i = 0; i < m->n_streams; i++) {
        float *stream = rows_of(v, c->hidden);
        if (s->streams != NULL)
            s->streams[i] = stream;
    }
    s->mixed = rows_of(v, c->hidden);
    s->normed = rows_of(v, c->hidden);
    s->out = rows_of(v, c->hidden);
    s->hidden = rows_of(v, c->hidden);
    s->weights = rows_of(v, m->n_streams);
    s->features = m->draft == NULL ? NULL : rows_of(v, (uint64_t)m->draft->n_taps * c->hidden);
    s->conv_seqs = list(v, m->max_seqs * sizeof(*s->conv_seqs));
    s->kda_seqs = list(v, m->max_seqs * sizeof(*s->kda_seqs));
    s->kda_past = list(v, m->max_seqs * sizeof(*s->kda_past));
    s->mla_seqs = list(v, m->max_seqs * sizeof(*s->mla_seqs));
    s->products = list(v, larger(8, c->mla_heads) * sizeof(*s->products));
    s->records = list(v, m->max_seqs * sizeof(*s->records));
    s->commit = list(v, m->max_seqs * sizeof(*s->commit));
    shared = v->at;
    carve_kda(v, c, m->max_verify > 0 && m->rewind == KG_REWIND_REPLAY, s);
    v->at = shared;
    carve_mla(v, c, s);
    s->mla.rest = bytes(v, 0);
    rest = v->at;
    v->at = shared;
    carve_ffn(v, m, s);
    v->at = v->most;
    s->logits = rows_of(v, c->vocab);
    s->mla.rest_bytes = v->at - rest;
}

/* Bytes of the verified rows, all KDA layers. */
static int take_rewind(struct kg_model *m, struct kg_error *err)
{
    uint64_t row = (uint64_t)6 * kg_kda_width(m->c) * sizeof(float);

    if (m->max_verify > m->max_rows)
        return kg_fail(err, KG_EINVAL, "max_verify %u is over max_rows %u", m->max_verify,
                       m->max_rows);
    if (m->rewind == KG_REWIND_SNAPSHOT)
        row = m->sizes.state_part_bytes;
    m->sizes.verify_row_bytes = row * m->c->n_kda_layers;
    m->sizes.rewind_bytes = m->sizes.verify_row_bytes * m->max_verify;
    if (m->max_verify == 0)
        return KG_OK;
    m->rewind_mem = kg_model_take(m, m->sizes.rewind_bytes);
    if (m->rewind_mem == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes to verify %u rows",
                       (unsigned long long)m->sizes.rewind_bytes, m->max_verify);
    m->sizes.scratch_bytes += m->sizes.rewind_bytes;
    return KG_OK;
}

int kg_model_scratch(struct kg_model *m, struct kg_error *err)
{
    struct carver v = {.rows = m->max_rows, .split = m->memory != NULL};

    if (m->max_rows > KG_MODEL_MAX_ROWS)
        return kg_fail(err, KG_EINVAL, "max_rows %u, most is %u ([engine] step_tokens)",
                       m->max_rows, KG_MODEL_MAX_ROWS);
    carve(&v, m);
    m->sizes.scratch_bytes = m->scratch_bytes = v.most;
    m->scratch_mem = kg_model_take(m, v.most);
    m->scratch_list_bytes = v.lists_at;
    if (v.split)
        m->scratch_lists = kg_model_alloc(m->host, v.lists_at);
    if (m->scratch_mem == NULL || (v.split && m->scratch_lists == NULL))
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes to compute %u rows",
                       (unsigned long long)v.most, m->max_rows);
    v = (struct carver){
        .mem = m->scratch_mem, .lists = m->scratch_lists, .rows = m->max_rows, .split = v.split};
    carve(&v, m);
    return take_rewind(m, err);
}
