#include "model/draft_impl.h"

#include "model/pack.h"

#include <math.h>
#include <string.h>

static int check_config(const struct kg_drafter_args *a, struct kg_error *err)
{
    const struct kg_draft_config *c = &a->ckpt->config;

    if ((uint64_t)c->net.kv_lora + c->net.rope_dim > KG_MLA_MAX)
        return kg_fail(err, KG_EINVAL,
                       "drafter: kv_lora_rank %u and rope %u: the kernels do at most %u",
                       c->net.kv_lora, c->net.rope_dim, KG_MLA_MAX);
    if (a->max_rows == 0 || a->max_seqs == 0 || a->max_seqs > KG_MODEL_MAX_ROWS)
        return kg_fail(err, KG_EINVAL, "drafter: max_rows %u and max_seqs %u must be in 1..%u",
                       a->max_rows, a->max_seqs, KG_MODEL_MAX_ROWS);
    return KG_OK;
}

/* --- weights ---------------------------------------------------------------------------------- */

static void pack_all(struct kg_packer *p, struct kg_drafter *d, const struct kg_draft_ckpt *k)
{
    const struct kg_model_config *c = &d->c->net;

    p->at = 0;
    d->layers = kg_pack_list(p, c->n_layers * sizeof(*d->layers));
    d->rates = kg_pack_list(p, c->rope_dim / 2 * sizeof(*d->rates));
    for (uint32_t l = 0; l < c->n_layers && p->rc == KG_OK; l++) {
        struct kg_w_draft_layer plan, *w = p->mem == NULL ? &plan : &d->layers[l];
        const struct kg_draft_ckpt_layer *t = &k->layers[l];
        memset(w, 0, sizeof(*w));
        w->input_norm = kg_pack_vector(p, &t->input_norm);
        w->post_norm = kg_pack_vector(p, &t->post_norm);
        kg_pack_mla(p, c, 0, &w->mla, &t->mla);
        kg_pack_mlp(p, &w->mlp, &t->mlp);
    }
    kg_pack_matrix(p, &d->context_proj, &k->context_proj);
    d->context_norm = kg_pack_vector(p, &k->context_norm);
    d->final_norm = kg_pack_vector(p, &k->final_norm);
    kg_pack_matrix(p, &d->w2, &k->w2);
    kg_pack_matrix(p, &d->confidence_w, &k->confidence_w);
    kg_pack_table(p, &d->w1, &k->w1);
}

static void *take(const struct kg_drafter *d, uint64_t bytes)
{
    return d->memory == NULL ? kg_model_alloc(d->host, bytes)
                             : kg_memory_alloc(d->memory, d->host, bytes, KG_MODEL_ALIGN);
}

static void give(const struct kg_drafter *d, void *p, uint64_t bytes)
{
    if (d->memory == NULL)
        kg_model_free(d->host, p, bytes);
    else
        kg_memory_free(d->memory, d->host, p, bytes);
}

static int pack(struct kg_drafter *d, const struct kg_draft_ckpt *k, struct kg_error *err)
{
    struct kg_packer p = {
        .host = d->host, .team = d->pack_team, .memory = d->memory, .prepare = d->k->prepare};

    pack_all(&p, d, k);
    if (p.rc < 0)
        return kg_fail(err, p.rc, "the weights of the drafter do not fit 64-bit sizes");
    d->sizes.weight_bytes = p.at;
    p.mem = d->weight_mem = take(d, p.at);
    if (p.mem == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes of the drafter's weights",
                       (unsigned long long)p.at);
    int rc = kg_pack_host(&p, &d->weight_list_bytes, err);
    d->weight_lists = p.lists;
    if (rc == KG_OK)
        pack_all(&p, d, k);
    if (rc == KG_OK && p.rc < 0)
        rc = kg_fail(err, p.rc, "packing the drafter's weights failed");
    int end = kg_pack_end(&p, rc == KG_OK ? err : NULL);
    if (rc < 0 || end < 0)
        return rc < 0 ? rc : end;
    kg_rope_rates(&d->c->rope, d->c->net.rope_dim, d->rates);
    if (d->c->confidence)
        kg_tensor_load_f32(&k->confidence_b, 0, 1, &d->confidence_b);
    return KG_OK;
}

/* --- working memory --------------------------------------------------------------------------- */

struct carver {
    uint8_t *mem;   /* NULL: plan */
    uint8_t *lists; /* host block of a drafter on a device */
    uint64_t at, lists_at;
    int split; /* 1: lists are apart */
};

static void *carve(struct carver *v, uint64_t n, uint64_t bytes)
{
    void *at = v->mem == NULL ? NULL : v->mem + v->at;

    v->at += (n * bytes + 63) / 64 * 64;
    return at;
}

/* Host memory. */
static void *list(struct carver *v, uint64_t n, uint64_t bytes)
{
    void *at = v->lists == NULL ? NULL : v->lists + v->lists_at;

    if (!v->split)
        return carve(v, n, bytes);
    v->lists_at += (n * bytes + 63) / 64 * 64;
    return at;
}

static float *floats(struct carver *v, uint64_t rows, uint64_t width)
{
    return carve(v, rows, width * sizeof(float));
}

static void carve_block(struct carver *v, const struct kg_drafter *d, struct kg_draft_scratch *s)
{
    const struct kg_model_config *c = &d->c->net;
    uint64_t rows = d->block_rows, heads = c->mla_heads;

    s->x = floats(v, rows, c->hidden);
    s->normed = floats(v, rows, c->hidden);
    s->out = floats(v, rows, c->hidden);
    s->q_a = floats(v, rows, c->q_lora);
    s->q = floats(v, rows, heads * (c->nope_dim + c->rope_dim));
    s->qa = floats(v, rows, heads * c->kv_lora);
    s->m = floats(v, rows, heads * c->kv_lora);
    s->o = floats(v, rows, heads * c->v_dim);
    s->gate = floats(v, rows, c->dense_inter);
    s->up = floats(v, rows, c->dense_inter);
    s->hidden = floats(v, rows, c->hidden);
    s->logits = floats(v, rows, c->vocab);
    s->lookups = carve(v, rows, sizeof(*s->lookups));
    s->ids = v->split ? list(v, rows, sizeof(*s->ids)) : s->lookups;
}

static void carve_all(struct carver *v, const struct kg_drafter *d, struct kg_draft_scratch *s)
{
    const struct kg_model_config *c = &d->c->net;
    uint64_t n = d->max_seqs, rank = d->c->markov_rank;
    uint64_t both = d->context_rows > d->block_rows ? d->context_rows : d->block_rows;

    s->cosines = floats(v, both, c->rope_dim / 2);
    s->sines = floats(v, both, c->rope_dim / 2);
    s->near_cosines = v->split ? list(v, both, c->rope_dim / 2 * sizeof(float)) : s->cosines;
    s->near_sines = v->split ? list(v, both, c->rope_dim / 2 * sizeof(float)) : s->sines;
    s->kv = floats(v, both, c->kv_lora + c->rope_dim);
    s->context = floats(v, d->context_rows, c->hidden);
    carve_block(v, d, s);
    s->head_in = floats(v, n, c->hidden + rank);
    s->before = floats(v, n, rank);
    s->bias = floats(v, n, rank == 0 ? 0 : c->vocab);
    s->confidence = list(v, n, sizeof(float));
    s->active = list(v, n, sizeof(*s->active));
    s->row0 = list(v, n, sizeof(*s->row0));
    s->out0 = list(v, n, sizeof(*s->out0));
    s->seqs = list(v, d->block_rows > n ? d->block_rows : n, sizeof(*s->seqs));
    s->products = list(v, c->mla_heads > 8 ? c->mla_heads : 8, sizeof(*s->products));
}

/* Where what the host draws from comes to. */
static int take_near(struct kg_drafter *d, struct kg_error *err)
{
    uint64_t n = d->max_seqs, vocab = d->c->net.vocab;
    void *p = NULL;
    int rc = d->memory->alloc_host(d->memory->ctx, n * (vocab + 1) * sizeof(float), &p, err);

    d->s.near_logits = p;
    d->s.near_confidence = rc < 0 ? NULL : d->s.near_logits + n * vocab;
    return rc;
}

static int take_scratch(struct kg_drafter *d, struct kg_error *err)
{
    struct carver v = {.split = d->memory != NULL};

    carve_all(&v, d, &d->s);
    d->sizes.scratch_bytes = v.at;
    d->scratch_list_bytes = v.lists_at;
    d->scratch_mem = take(d, v.at);
    if (v.split)
        d->scratch_lists = kg_model_alloc(d->host, v.lists_at);
    if (d->scratch_mem == NULL || (v.split && d->scratch_lists == NULL))
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes to draft for %u sequences",
                       (unsigned long long)d->sizes.scratch_bytes, d->max_seqs);
    v = (struct carver){.mem = d->scratch_mem, .lists = d->scratch_lists, .split = v.split};
    carve_all(&v, d, &d->s);
    return d->memory == NULL ? KG_OK : take_near(d, err);
}

/* --- life ------------------------------------------------------------------------------------- */

int kg_drafter_open(const struct kg_drafter_args *a, struct kg_drafter **drafter,
                    struct kg_error *err)
{
    const struct kg_draft_config *c = &a->ckpt->config;
    struct kg_drafter *d;
    int rc = check_config(a, err);

    if (rc == KG_OK)
        rc = kg_draft_ckpt_check_values(a->ckpt, err);
    if (rc < 0)
        return rc;
    d = kg_model_alloc(a->host, sizeof(*d));
    if (d == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for a drafter");
    memset(d, 0, sizeof(*d));
    d->host = a->host;
    d->k = a->kernels;
    d->team = a->team;
    d->memory = a->memory;
    d->pack_team = a->memory == NULL ? a->team : a->pack_team;
    d->target = a->target;
    d->c = c;
    d->max_seqs = a->max_seqs;
    d->context_rows = a->max_rows;
    d->block_rows = a->max_seqs * c->block;
    d->scale = kg_rope_score_scale(&c->rope) / sqrtf((float)(c->net.nope_dim + c->net.rope_dim));
    d->all_causal = 1;
    for (uint32_t l = 0; l < c->net.n_layers; l++)
        d->all_causal &= c->causal[l];
    d->sizes.record_bytes =
        (uint64_t)(c->net.kv_lora + c->net.rope_dim) * kg_dtype_bytes(d->k->state_dtype);
    d->sizes.token_bytes = d->sizes.record_bytes * c->net.n_layers;
    rc = pack(d, a->ckpt, err);
    if (rc == KG_OK)
        rc = take_scratch(d, err);
    if (rc < 0) {
        kg_drafter_close(d);
        return rc;
    }
    *drafter = d;
    return KG_OK;
}

void kg_drafter_close(struct kg_drafter *d)
{
    if (d == NULL)
        return;
    if (d->s.near_logits != NULL)
        d->memory->free_host(d->memory->ctx, d->s.near_logits);
    give(d, d->scratch_mem, d->sizes.scratch_bytes);
    give(d, d->weight_mem, d->sizes.weight_bytes);
    kg_model_free(d->host, d->scratch_lists, d->scratch_list_bytes);
    kg_model_free(d->host, d->weight_lists, d->weight_list_bytes);
    kg_model_free(d->host, d, sizeof(*d));
}

void kg_drafter_sizes(const struct kg_drafter *d, struct kg_drafter_sizes *sizes)
{
    *sizes = d->sizes;
}
