#include "model/pack.h"

#include <string.h>

#define FILL_ROWS 256u  /* rows of one task; a multiple of 16, the packed block */
#define FILL_COLS 1024u /* elements converted at a time */

void *kg_pack_room(struct kg_packer *p, uint64_t bytes)
{
    void *at = p->mem == NULL ? NULL : p->mem + p->at;

    if (__builtin_add_overflow(p->at, (bytes + 63) / 64 * 64, &p->at))
        p->rc = KG_ENOMEM;
    return at;
}

float *kg_pack_vector(struct kg_packer *p, const struct kg_tensor *t)
{
    uint64_t n = (uint64_t)t->rows * t->cols;
    float *v;

    if (t->data == NULL)
        return NULL;
    v = kg_pack_room(p, n * sizeof(float));
    if (v != NULL)
        kg_tensor_load_f32(t, 0, n, v);
    return v;
}

struct fill {
    struct kg_weight *w;
    const struct kg_tensor *t;
    int rc;
};

/* Rows of a dtype that kg_weight_fill does not read. */
static int fill_converted(struct kg_weight *w, const struct kg_tensor *t, uint32_t row0, uint32_t n)
{
    float buf[FILL_COLS];

    for (uint32_t r = row0; r < row0 + n; r++) {
        for (uint32_t c = 0; c < t->cols; c += FILL_COLS) {
            uint32_t m = t->cols - c < FILL_COLS ? t->cols - c : FILL_COLS;
            int rc;
            kg_tensor_load_f32(t, (uint64_t)r * t->cols + c, m, buf);
            rc = kg_weight_fill(w, r, c, 1, m, KG_F32, buf, m);
            if (rc < 0)
                return rc;
        }
    }
    return KG_OK;
}

static void fill_task(void *arg, uint32_t task, uint32_t member)
{
    struct fill *f = arg;
    const struct kg_tensor *t = f->t;
    uint32_t row0 = task * FILL_ROWS;
    uint32_t n = t->rows - row0 < FILL_ROWS ? t->rows - row0 : FILL_ROWS;
    int rc;

    (void)member;
    if (t->dtype == KG_U8)
        rc = kg_weight_fill_mxfp4(f->w, row0, n,
                                  (const uint8_t *)t->data + (uint64_t)row0 * (t->cols / 2),
                                  t->scale + (uint64_t)row0 * (t->cols / 32));
    else if (t->dtype == KG_F32 || t->dtype == KG_BF16)
        rc = kg_weight_fill(f->w, row0, 0, n, t->cols, t->dtype,
                            (const uint8_t *)t->data +
                                (uint64_t)row0 * t->cols * kg_dtype_bytes(t->dtype),
                            t->cols);
    else
        rc = fill_converted(f->w, t, row0, n);
    if (rc < 0)
        __atomic_store_n(&f->rc, rc, __ATOMIC_RELAXED);
}

static uint32_t weight_type(const struct kg_tensor *t)
{
    if (t->dtype == KG_U8)
        return KG_W_MXFP4;
    return t->dtype == KG_BF16 ? KG_W_BF16 : KG_W_F32;
}

/* Takes room for a matrix and clears it. False while planning or after an error. */
static int begin(struct kg_packer *p, struct kg_weight *w, uint32_t type, uint32_t out, uint32_t in)
{
    uint64_t bytes = kg_weight_bytes(type, out, in);
    void *mem;

    if (bytes == 0) {
        p->rc = KG_EINVAL;
        return 0;
    }
    mem = kg_pack_room(p, bytes);
    if (mem == NULL || p->rc < 0)
        return 0;
    p->rc = kg_weight_init(w, type, out, in, mem);
    return p->rc == KG_OK;
}

static void matrix_as(struct kg_packer *p, struct kg_weight *w, const struct kg_tensor *t,
                      uint32_t type)
{
    struct fill fill = {.w = w, .t = t, .rc = KG_OK};

    if (t->data == NULL || !begin(p, w, type, t->rows, t->cols))
        return;
    kg_team_run(p->team, fill_task, &fill, (t->rows + FILL_ROWS - 1) / FILL_ROWS);
    if (fill.rc < 0)
        p->rc = fill.rc;
}

void kg_pack_matrix(struct kg_packer *p, struct kg_weight *w, const struct kg_tensor *t)
{
    matrix_as(p, w, t, weight_type(t));
}

void kg_pack_mlp(struct kg_packer *p, struct kg_w_mlp *w, const struct kg_ckpt_mlp *t)
{
    kg_pack_matrix(p, &w->gate, &t->gate);
    kg_pack_matrix(p, &w->up, &t->up);
    kg_pack_matrix(p, &w->down, &t->down);
}

static void kda(struct kg_packer *p, const struct kg_model_config *c, struct kg_w_kda *w,
                const struct kg_ckpt_kda *t)
{
    const struct kg_tensor *conv[3] = {&t->q_conv, &t->k_conv, &t->v_conv};
    uint32_t width = kg_kda_width(c);

    kg_pack_matrix(p, &w->q, &t->q);
    kg_pack_matrix(p, &w->k, &t->k);
    kg_pack_matrix(p, &w->v, &t->v);
    kg_pack_matrix(p, &w->f_a, &t->f_a);
    kg_pack_matrix(p, &w->f_b, &t->f_b);
    kg_pack_matrix(p, &w->b, &t->b);
    kg_pack_matrix(p, &w->g, &t->g);
    kg_pack_matrix(p, &w->g_a, &t->g_a);
    kg_pack_matrix(p, &w->g_b, &t->g_b);
    kg_pack_matrix(p, &w->o, &t->o);
    w->a_log = kg_pack_vector(p, &t->a_log);
    w->dt_bias = kg_pack_vector(p, &t->dt_bias);
    w->o_norm = kg_pack_vector(p, &t->o_norm);
    w->conv = kg_pack_room(p, (uint64_t)4 * 3 * width * sizeof(float));
    if (w->conv == NULL)
        return;
    for (uint32_t part = 0; part < 3; part++) {
        for (uint32_t ch = 0; ch < width; ch++) {
            float taps[4];
            kg_tensor_load_f32(conv[part], (uint64_t)ch * 4, 4, taps);
            for (uint32_t i = 0; i < 4; i++)
                w->conv[((size_t)i * 3 + part) * width + ch] = taps[i];
        }
    }
}

/* One head of kv_b: nope rows that become Wk^T, then v rows. `block` is (nope + v, kv_lora). */
static void kv_head(struct kg_packer *p, const struct kg_model_config *c, struct kg_weight *k_up,
                    struct kg_weight *v_up, uint32_t dtype, const uint8_t *block)
{
    uint32_t type = dtype == KG_BF16 ? KG_W_BF16 : KG_W_F32;
    size_t k_bytes = (size_t)c->nope_dim * c->kv_lora * kg_dtype_bytes(dtype);

    if (begin(p, k_up, type, c->kv_lora, c->nope_dim))
        p->rc = kg_weight_fill_t(k_up, 0, 0, c->kv_lora, c->nope_dim, dtype, block, c->kv_lora);
    if (begin(p, v_up, type, c->v_dim, c->kv_lora))
        p->rc =
            kg_weight_fill(v_up, 0, 0, c->v_dim, c->kv_lora, dtype, block + k_bytes, c->kv_lora);
}

static void kv_heads(struct kg_packer *p, const struct kg_model_config *c, struct kg_w_mla *w,
                     const struct kg_tensor *t)
{
    uint64_t n = ((uint64_t)c->nope_dim + c->v_dim) * c->kv_lora;
    int direct = t->dtype == KG_BF16 || t->dtype == KG_F32;
    uint32_t dtype = direct ? t->dtype : KG_F32;
    struct kg_weight none;
    int real = p->mem != NULL;
    float *buf = NULL;

    if (!direct && real) {
        buf = kg_model_alloc(p->host, n * sizeof(float));
        if (buf == NULL) {
            p->rc = KG_ENOMEM;
            return;
        }
    }
    for (uint32_t h = 0; h < c->mla_heads && p->rc == KG_OK; h++) {
        const void *block = (const uint8_t *)t->data + h * n * kg_dtype_bytes(dtype);
        if (buf != NULL)
            kg_tensor_load_f32(t, h * n, n, buf);
        kv_head(p, c, real ? &w->k_up[h] : &none, real ? &w->v_up[h] : &none, dtype,
                direct ? block : (const void *)buf);
    }
    kg_model_free(p->host, buf, n * sizeof(float));
}

void kg_pack_mla(struct kg_packer *p, const struct kg_model_config *c, struct kg_w_mla *w,
                 const struct kg_ckpt_mla *t)
{
    kg_pack_matrix(p, &w->q, &t->q);
    kg_pack_matrix(p, &w->q_a, &t->q_a);
    kg_pack_matrix(p, &w->q_b, &t->q_b);
    kg_pack_matrix(p, &w->kv_a, &t->kv_a);
    kg_pack_matrix(p, &w->g, &t->g);
    kg_pack_matrix(p, &w->o, &t->o);
    w->q_a_norm = kg_pack_vector(p, &t->q_a_norm);
    w->kv_a_norm = kg_pack_vector(p, &t->kv_a_norm);
    w->k_up = kg_pack_room(p, c->mla_heads * sizeof(struct kg_weight));
    w->v_up = kg_pack_room(p, c->mla_heads * sizeof(struct kg_weight));
    kv_heads(p, c, w, &t->kv_b);
}

static void moe(struct kg_packer *p, const struct kg_model_config *c, struct kg_w_moe *w,
                const struct kg_ckpt_moe *t)
{
    uint64_t bytes = c->n_experts * sizeof(struct kg_weight);
    struct kg_weight none;

    matrix_as(p, &w->router, &t->router, KG_W_F32);
    kg_pack_matrix(p, &w->latent_down, &t->latent_down);
    kg_pack_matrix(p, &w->latent_up, &t->latent_up);
    w->latent_norm = kg_pack_vector(p, &t->latent_norm);
    w->bias = kg_pack_vector(p, &t->bias);
    kg_pack_mlp(p, &w->shared, &t->shared);
    w->gate = kg_pack_room(p, bytes);
    w->up = kg_pack_room(p, bytes);
    w->down = kg_pack_room(p, bytes);
    for (uint32_t e = 0; e < c->n_experts && p->rc == KG_OK; e++) {
        int real = p->mem != NULL;
        kg_pack_matrix(p, real ? &w->gate[e] : &none, &t->experts[e].gate);
        kg_pack_matrix(p, real ? &w->up[e] : &none, &t->experts[e].up);
        kg_pack_matrix(p, real ? &w->down[e] : &none, &t->experts[e].down);
    }
}

/* The score vector of a residual mix: norm * proj, exact for bf16 factors. */
static float *mix_score(struct kg_packer *p, const struct kg_tensor *norm,
                        const struct kg_tensor *proj)
{
    float *score = kg_pack_vector(p, norm);
    float *factor = kg_pack_vector(p, proj);

    for (uint32_t i = 0; score != NULL && factor != NULL && i < norm->cols; i++)
        score[i] *= factor[i];
    return score;
}

static void layer(struct kg_packer *p, const struct kg_model *m, uint32_t l,
                  const struct kg_ckpt_layer *t)
{
    struct kg_w_layer *w = &m->layers[l];

    w->input_norm = kg_pack_vector(p, &t->input_norm);
    w->post_norm = kg_pack_vector(p, &t->post_norm);
    if (m->c->block_layers != 0) {
        w->attn_mix = mix_score(p, &t->attn_res_norm, &t->attn_res_proj);
        w->mlp_mix = mix_score(p, &t->mlp_res_norm, &t->mlp_res_proj);
    }
    if (m->c->layer_kind[l] == KG_LAYER_KDA)
        kda(p, m->c, &w->kda, &t->kda);
    else
        kg_pack_mla(p, m->c, &w->mla, &t->mla);
    if (m->c->layer_moe[l])
        moe(p, m->c, &w->moe, &t->moe);
    else
        kg_pack_mlp(p, &w->mlp, &t->mlp);
}

/* The embedding is read row by row where it lies, unless its dtype must be converted. */
static void embedding(struct kg_packer *p, struct kg_model *m, const struct kg_ckpt *ckpt)
{
    m->embed = ckpt->embed;
    if (ckpt->embed.dtype == KG_BF16 || ckpt->embed.dtype == KG_F32)
        return;
    m->embed.data = kg_pack_vector(p, &ckpt->embed);
    m->embed.dtype = KG_F32;
}

static void pack_all(struct kg_packer *p, struct kg_model *m, const struct kg_ckpt *ckpt)
{
    p->at = 0;
    embedding(p, m, ckpt);
    for (uint32_t l = 0; l < m->c->n_layers && p->rc == KG_OK; l++)
        layer(p, m, l, &ckpt->layers[l]);
    kg_pack_matrix(p, &m->lm_head, &ckpt->lm_head);
    m->norm = kg_pack_vector(p, &ckpt->norm);
    if (m->c->block_layers != 0)
        m->out_mix = mix_score(p, &ckpt->out_res_norm, &ckpt->out_res_proj);
}

int kg_model_pack(struct kg_model *m, const struct kg_ckpt *ckpt, struct kg_error *err)
{
    struct kg_packer p = {.host = m->host, .team = m->team};
    uint32_t n_kind[2] = {0, 0};

    for (uint32_t l = 0; l < m->c->n_layers; l++)
        m->layers[l].index = n_kind[m->c->layer_kind[l] == KG_LAYER_MLA]++;
    pack_all(&p, m, ckpt);
    if (p.rc < 0)
        return kg_fail(err, p.rc, "the weights of the checkpoint do not fit 64-bit sizes");
    m->sizes.weight_bytes = p.at;
    m->weight_mem = kg_model_alloc_weights(m->host, p.at);
    if (m->weight_mem == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes of weights",
                       (unsigned long long)p.at);
    p.mem = m->weight_mem;
    pack_all(&p, m, ckpt);
    if (p.rc < 0)
        return kg_fail(err, p.rc, "packing the weights failed");
    return KG_OK;
}
