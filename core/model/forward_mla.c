#include "model/forward.h"

#include <math.h>

/* Queries, latent and gate from the layer's input; the latent is normed in place. */
static void project(struct kg_model *m, uint32_t l, uint32_t rows)
{
    const struct kg_w_mla *w = &m->layers[l].mla;
    const struct kg_model_config *c = m->c;
    uint32_t q_width = c->mla_heads * (c->nope_dim + c->rope_dim),
             v_width = c->mla_heads * c->v_dim;
    uint32_t kv_width = c->kv_lora + c->rope_dim;
    const float *x = m->s.normed;
    struct kg_product in[3] = {
        {&w->q, x, m->s.mla.q, c->hidden, q_width, rows},
        {&w->kv_a, x, m->s.mla.kv, c->hidden, kv_width, rows},
        {&w->g, x, m->s.mla.z, c->hidden, v_width, rows},
    };
    struct kg_product q_b = {&w->q_b, m->s.mla.q_a, m->s.mla.q, c->q_lora, q_width, rows};

    if (c->q_lora != 0)
        in[0] = (struct kg_product){&w->q_a, x, m->s.mla.q_a, c->hidden, c->q_lora, rows};
    m->k->product(m->team, in, c->mla_gate ? 3 : 2);
    if (c->q_lora != 0) {
        m->k->rmsnorm(m->team, m->s.mla.q_a, c->q_lora, m->s.mla.q_a, c->q_lora, w->q_a_norm, rows,
                      c->q_lora, c->latent_eps);
        kg_tap_f32(m, l, "mla.q_a_normed", m->s.mla.q_a, c->q_lora, rows, c->q_lora);
        m->k->product(m->team, &q_b, 1);
    }
    m->k->rmsnorm(m->team, m->s.mla.kv, kv_width, m->s.mla.kv, kv_width, w->kv_a_norm, rows,
                  c->kv_lora, c->latent_eps);
    kg_tap_f32(m, l, "mla.q", m->s.mla.q, q_width, rows, q_width);
    kg_tap_f32(m, l, "mla.c", m->s.mla.kv, kv_width, rows, c->kv_lora);
    kg_tap_f32(m, l, "mla.k_r", m->s.mla.kv + c->kv_lora, kv_width, rows, c->rope_dim);
    if (c->mla_gate)
        kg_tap_f32(m, l, "mla.z", m->s.mla.z, v_width, rows, v_width);
}

static void set_pages(const struct kg_model *m, uint32_t index, const struct kg_forward *f,
                      struct kg_pages *pages)
{
    const struct kg_model_units *u = f->units;

    *pages = (struct kg_pages){
        .base = u->arena + u->layout.base[KG_PAGE] +
                (uint64_t)index * u->layout.page_tokens * m->sizes.record_bytes,
        .table = u->table[KG_PAGE],
        .page_stride = u->layout.stride[KG_PAGE],
        .token_stride = m->sizes.record_bytes,
        .page_tokens = u->layout.page_tokens,
        .dtype = m->k->state_dtype,
        .latent = m->c->kv_lora,
        .rope = m->c->rope_dim,
    };
}

/* Keys are always read back from the pages, those of this step too: one path for every row. */
static void attend(struct kg_model *m, uint32_t l, const struct kg_forward *f)
{
    const struct kg_model_config *c = m->c;
    uint32_t head_width = c->nope_dim + c->rope_dim, kv_width = c->kv_lora + c->rope_dim;
    struct kg_mla args = {.qa = m->s.mla.qa,
                          .qr = m->s.mla.q + c->nope_dim,
                          .m = m->s.mla.m,
                          .qa_stride = (size_t)c->mla_heads * c->kv_lora,
                          .qr_stride = (size_t)c->mla_heads * head_width,
                          .qr_head_stride = head_width,
                          .m_stride = (size_t)c->mla_heads * c->kv_lora,
                          .scale = 1.0f / sqrtf((float)head_width),
                          .heads = c->mla_heads,
                          .seqs = m->s.mla_seqs,
                          .n_seqs = f->n_seqs,
                          .scratch = m->s.mla.rest,
                          .scratch_bytes = m->s.mla.rest_bytes};

    set_pages(m, m->layers[l].index, f, &args.pages);
    for (uint32_t i = 0; i < f->n_seqs; i++) {
        const struct kg_forward_seq *seq = &f->seqs[i];
        m->s.mla_seqs[i] = (struct kg_mla_seq){
            .pages = seq->pages, .row0 = seq->row0, .n = seq->n_rows, .past = seq->past};
    }
    m->k->page_write(m->team, &args.pages, m->s.mla.kv, kv_width, m->s.mla.kv + c->kv_lora,
                     kv_width, m->s.mla_seqs, f->n_seqs);
    m->k->mla(m->team, &args);
}

/* Per head: into the latent space before attention, out of it afterwards. */
static void absorb(struct kg_model *m, const struct kg_w_mla *w, uint32_t rows)
{
    const struct kg_model_config *c = m->c;
    uint32_t head_width = c->nope_dim + c->rope_dim;

    for (uint32_t h = 0; h < c->mla_heads; h++)
        m->s.products[h] = (struct kg_product){&w->k_up[h],
                                               m->s.mla.q + (size_t)h * head_width,
                                               m->s.mla.qa + (size_t)h * c->kv_lora,
                                               (size_t)c->mla_heads * head_width,
                                               (size_t)c->mla_heads * c->kv_lora,
                                               rows};
    m->k->product(m->team, m->s.products, c->mla_heads);
}

static void expand(struct kg_model *m, const struct kg_w_mla *w, uint32_t rows)
{
    const struct kg_model_config *c = m->c;

    for (uint32_t h = 0; h < c->mla_heads; h++)
        m->s.products[h] = (struct kg_product){&w->v_up[h],
                                               m->s.mla.m + (size_t)h * c->kv_lora,
                                               m->s.mla.o + (size_t)h * c->v_dim,
                                               (size_t)c->mla_heads * c->kv_lora,
                                               (size_t)c->mla_heads * c->v_dim,
                                               rows};
    m->k->product(m->team, m->s.products, c->mla_heads);
}

void kg_forward_mla(struct kg_model *m, uint32_t l, const struct kg_forward *f, float *out)
{
    const struct kg_w_mla *w = &m->layers[l].mla;
    const struct kg_model_config *c = m->c;
    uint32_t v_width = c->mla_heads * c->v_dim, rows = f->n_rows;
    float *o = m->s.mla.o;
    struct kg_product last = {&w->o, o, kg_model_partial(m, out), v_width, c->hidden, rows};

    project(m, l, rows);
    absorb(m, w, rows);
    attend(m, l, f);
    expand(m, w, rows);
    kg_tap_f32(m, l, "mla.o", o, v_width, rows, v_width);
    if (c->mla_gate) {
        m->k->mul_sigmoid(m->team, o, v_width, o, v_width, m->s.mla.z, v_width, rows, v_width);
        kg_tap_f32(m, l, "mla.o_gated", o, v_width, rows, v_width);
    }
    m->k->product(m->team, &last, 1);
    kg_model_reduce_own(m, out, c->hidden, rows);
    kg_tap_f32(m, l, "mla.out", out, c->hidden, rows, c->hidden);
}
