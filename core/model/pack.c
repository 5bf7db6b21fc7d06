#include "model/pack.h"

#include <string.h>

#define FILL_ROWS 64u   /* rows of one task; a multiple of 16, the packed block */
#define FILL_COLS 1024u /* elements converted at a time */

#define WINDOW_BYTES ((uint64_t)64 << 20) /* on the way to a device; more for a larger matrix */

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Sends what was written; the window begins at `at` of the block from now on. */
static void send_window(struct kg_packer *p, uint64_t at)
{
    if (p->mem != NULL && at > p->window_at)
        kg_memory_upload(p->memory, p->mem + p->window_at, p->window, at - p->window_at);
    p->window_at = at;
}

void *kg_pack_room(struct kg_packer *p, uint64_t bytes)
{
    uint64_t at = p->at;

    if (__builtin_add_overflow(at, rounded(bytes), &p->at))
        p->rc = KG_ENOMEM;
    p->largest = rounded(bytes) > p->largest ? rounded(bytes) : p->largest;
    if (p->mem == NULL || p->rc < 0)
        return NULL;
    if (p->memory == NULL)
        return p->mem + at;
    if (p->at - p->window_at > p->window_bytes)
        send_window(p, at);
    return p->window + (at - p->window_at);
}

void *kg_pack_place(const struct kg_packer *p, void *room)
{
    if (p->memory == NULL || room == NULL)
        return room;
    return p->mem + p->window_at + ((uint8_t *)room - p->window);
}

void *kg_pack_list(struct kg_packer *p, uint64_t bytes)
{
    void *at = p->lists == NULL ? NULL : p->lists + p->lists_at;

    if (p->memory == NULL)
        return kg_pack_room(p, bytes);
    p->lists_at += rounded(bytes);
    return at;
}

/* The bytes of a tensor as they are, straight from the checkpoint to a device. */
static void *send_tensor(struct kg_packer *p, const void *data, uint64_t bytes)
{
    uint64_t at = p->at;

    if (__builtin_add_overflow(at, rounded(bytes), &p->at))
        p->rc = KG_ENOMEM;
    if (p->mem == NULL || p->rc < 0)
        return NULL;
    send_window(p, at);
    kg_memory_upload(p->memory, p->mem + at, data, bytes);
    p->window_at = p->at;
    return p->mem + at;
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
    return kg_pack_place(p, v);
}

float *kg_pack_vector_part(struct kg_packer *p, const struct kg_tensor *t, uint32_t first,
                           uint32_t n)
{
    uint64_t all = (uint64_t)t->rows * t->cols, real = first < all ? all - first : 0;
    float *v;

    if (t->data == NULL)
        return NULL;
    real = real < n ? real : n;
    p->zero_bytes += (n - real) * sizeof(float);
    v = kg_pack_room(p, (uint64_t)n * sizeof(float));
    if (v == NULL)
        return v;
    memset(v, 0, n * sizeof(*v));
    if (real > 0)
        kg_tensor_load_f32(t, first, real, v);
    return kg_pack_place(p, v);
}

/* A block of a tensor on its way to the beginning of a weight; the rest of the weight stays zero.
 */
struct fill {
    struct kg_weight *w;
    const struct kg_tensor *t;
    uint32_t row0, col0; /* of the block in the tensor */
    uint32_t rows, cols; /* of the block */
    int rc;
};

/* Rows of a dtype that kg_weight_fill does not read. */
static int fill_converted(const struct fill *f, uint32_t row0, uint32_t n)
{
    float buf[FILL_COLS];

    for (uint32_t r = row0; r < row0 + n; r++) {
        for (uint32_t c = 0; c < f->cols; c += FILL_COLS) {
            uint32_t m = f->cols - c < FILL_COLS ? f->cols - c : FILL_COLS;
            int rc;
            kg_tensor_load_f32(f->t, (uint64_t)(f->row0 + r) * f->t->cols + f->col0 + c, m, buf);
            rc = kg_weight_fill(f->w, r, c, 1, m, KG_F32, buf, m);
            if (rc < 0)
                return rc;
        }
    }
    return KG_OK;
}

/* Whole rows at once, or, of a part of the columns, row by row: blocks of 32, with their scales. */
static int fill_mxfp4(const struct fill *f, uint32_t row0, uint32_t n)
{
    const struct kg_tensor *t = f->t;
    uint32_t each = f->cols == t->cols ? n : 1;
    int rc = f->col0 % 32 == 0 && f->cols == f->w->in ? KG_OK : KG_EINVAL;

    for (uint32_t r = row0; r < row0 + n && rc == KG_OK; r += each) {
        uint64_t at = f->row0 + r;
        rc = kg_weight_fill_mxfp4(f->w, r, each,
                                  (const uint8_t *)t->data + at * (t->cols / 2) + f->col0 / 2,
                                  t->scale + at * (t->cols / 32) + f->col0 / 32);
    }
    return rc;
}

/* Clears the blocks of a task: here, so that all members bring in new pages, and into caches that
 * are filled next. */
static void clear_task(struct kg_weight *w, uint32_t task)
{
    uint64_t n_blocks = ((uint64_t)w->out + 15) / 16, block = w->bytes / n_blocks;
    uint64_t first = (uint64_t)task * (FILL_ROWS / 16), n = n_blocks - first;

    n = n < FILL_ROWS / 16 ? n : FILL_ROWS / 16;
    memset((uint8_t *)w->data + first * block, 0, n * block);
}

static void fill_task(void *arg, uint32_t task, uint32_t member)
{
    struct fill *f = arg;
    const struct kg_tensor *t = f->t;
    uint32_t row0 = task * FILL_ROWS, n;
    int rc;

    (void)member;
    clear_task(f->w, task);
    if (row0 >= f->rows || f->cols == 0)
        return;
    n = f->rows - row0 < FILL_ROWS ? f->rows - row0 : FILL_ROWS;
    if (t->dtype == KG_U8)
        rc = fill_mxfp4(f, row0, n);
    else if (t->dtype == KG_F32 || t->dtype == KG_BF16)
        rc = kg_weight_fill(f->w, row0, 0, n, f->cols, t->dtype,
                            (const uint8_t *)t->data +
                                ((uint64_t)(f->row0 + row0) * t->cols + f->col0) *
                                    kg_dtype_bytes(t->dtype),
                            t->cols);
    else
        rc = fill_converted(f, row0, n);
    if (rc < 0)
        __atomic_store_n(&f->rc, rc, __ATOMIC_RELAXED);
}

static uint32_t weight_type(const struct kg_tensor *t)
{
    if (t->dtype == KG_U8)
        return KG_W_MXFP4;
    return t->dtype == KG_BF16 ? KG_W_BF16 : KG_W_F32;
}

/* Takes room for a matrix; its bytes are anything yet. False while planning or after an error. */
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
    p->rc = kg_weight_attach(w, type, out, in, mem);
    return p->rc == KG_OK;
}

/* A matrix is complete: the form that the kernels want, and the address for them. */
static void complete(struct kg_packer *p, struct kg_weight *w)
{
    if (p->prepare != NULL && p->memory == NULL && p->rc == KG_OK)
        p->prepare(p->team, w);
    w->data = kg_pack_place(p, w->data);
}

static uint32_t rest_of(uint32_t all, uint32_t first, uint32_t most)
{
    uint32_t left = first < all ? all - first : 0;

    return left < most ? left : most;
}

/* Counts the share of a matrix that is padding, by elements. */
static void count_zeros(struct kg_packer *p, uint32_t type, const struct kg_block *b, uint32_t rows,
                        uint32_t cols)
{
    unsigned __int128 all = (unsigned __int128)b->out * b->in;
    unsigned __int128 none = all - (unsigned __int128)rows * cols;

    if (all != 0)
        p->zero_bytes += (uint64_t)(kg_weight_bytes(type, b->out, b->in) * none / all);
}

/* The (out, in) matrix that begins at row0, col0 of the tensor; zero beyond its end. */
static void part_as(struct kg_packer *p, struct kg_weight *w, const struct kg_tensor *t,
                    uint32_t type, const struct kg_block *b)
{
    struct fill fill = {.w = w,
                        .t = t,
                        .row0 = b->row0,
                        .col0 = b->col0,
                        .rows = rest_of(t->rows, b->row0, b->out),
                        .cols = rest_of(t->cols, b->col0, b->in),
                        .rc = KG_OK};

    if (t->data == NULL)
        return;
    count_zeros(p, type, b, fill.rows, fill.cols);
    if (!begin(p, w, type, b->out, b->in))
        return;
    kg_team_run(p->team, fill_task, &fill, (b->out + FILL_ROWS - 1) / FILL_ROWS);
    if (fill.rc < 0)
        p->rc = fill.rc;
    complete(p, w);
}

void kg_pack_part(struct kg_packer *p, struct kg_weight *w, const struct kg_tensor *t,
                  const struct kg_block *b)
{
    part_as(p, w, t, weight_type(t), b);
}

void kg_pack_matrix(struct kg_packer *p, struct kg_weight *w, const struct kg_tensor *t)
{
    kg_pack_part(p, w, t, &(struct kg_block){0, 0, t->rows, t->cols});
}

/* Rows row0 .. row0 + n - 1, all columns; columns col0 .. , all rows. */
static void pack_rows(struct kg_packer *p, struct kg_weight *w, const struct kg_tensor *t,
                      uint32_t row0, uint32_t n)
{
    kg_pack_part(p, w, t, &(struct kg_block){row0, 0, n, t->cols});
}

static void pack_cols(struct kg_packer *p, struct kg_weight *w, const struct kg_tensor *t,
                      uint32_t col0, uint32_t n)
{
    kg_pack_part(p, w, t, &(struct kg_block){0, col0, t->rows, n});
}

/* Inner width first .. first + n - 1 of an MLP. */
static void mlp_part(struct kg_packer *p, struct kg_w_mlp *w, const struct kg_ckpt_mlp *t,
                     uint32_t first, uint32_t n)
{
    pack_rows(p, &w->gate, &t->gate, first, n);
    pack_rows(p, &w->up, &t->up, first, n);
    pack_cols(p, &w->down, &t->down, first, n);
}

void kg_pack_mlp(struct kg_packer *p, struct kg_w_mlp *w, const struct kg_ckpt_mlp *t)
{
    mlp_part(p, w, t, 0, t->gate.rows);
}

/* `c`: sizes of this rank; its heads begin at head0 of the tensors. */
static void kda(struct kg_packer *p, const struct kg_model_config *c, uint32_t head0,
                struct kg_w_kda *w, const struct kg_ckpt_kda *t)
{
    const struct kg_tensor *conv[3] = {&t->q_conv, &t->k_conv, &t->v_conv};
    uint32_t width = kg_kda_width(c), first = head0 * c->kda_dim;
    uint32_t real = rest_of(t->q.rows, first, width);

    pack_rows(p, &w->q, &t->q, first, width);
    pack_rows(p, &w->k, &t->k, first, width);
    pack_rows(p, &w->v, &t->v, first, width);
    kg_pack_matrix(p, &w->f_a, &t->f_a);
    pack_rows(p, &w->f_b, &t->f_b, first, width);
    pack_rows(p, &w->b, &t->b, head0, c->kda_heads);
    pack_rows(p, &w->g, &t->g, first, width);
    kg_pack_matrix(p, &w->g_a, &t->g_a);
    pack_rows(p, &w->g_b, &t->g_b, first, width);
    pack_cols(p, &w->o, &t->o, first, width);
    w->a_log = kg_pack_vector_part(p, &t->a_log, head0, c->kda_heads);
    w->dt_bias = kg_pack_vector_part(p, &t->dt_bias, first, width);
    w->o_norm = kg_pack_vector(p, &t->o_norm);
    p->zero_bytes += (uint64_t)4 * 3 * (width - real) * sizeof(float);
    float *taps = kg_pack_room(p, (uint64_t)4 * 3 * width * sizeof(float));
    if (taps == NULL)
        return;
    w->conv = kg_pack_place(p, taps);
    memset(taps, 0, (size_t)4 * 3 * width * sizeof(float));
    for (uint32_t part = 0; part < 3; part++) {
        for (uint32_t ch = 0; ch < real; ch++) {
            float four[4];
            kg_tensor_load_f32(conv[part], (uint64_t)(first + ch) * 4, 4, four);
            for (uint32_t i = 0; i < 4; i++)
                taps[((size_t)i * 3 + part) * width + ch] = four[i];
        }
    }
}

/* One head of kv_b: nope rows that become Wk^T, then v rows. `block` is (nope + v, kv_lora), NULL
 * for a head that is padding. */
static void kv_head(struct kg_packer *p, const struct kg_model_config *c, struct kg_weight *k_up,
                    struct kg_weight *v_up, uint32_t dtype, const uint8_t *block)
{
    uint32_t type = dtype == KG_BF16 ? KG_W_BF16 : KG_W_F32;
    size_t k_bytes = (size_t)c->nope_dim * c->kv_lora * kg_dtype_bytes(dtype);

    if (block == NULL)
        p->zero_bytes += kg_weight_bytes(type, c->kv_lora, c->nope_dim) +
                         kg_weight_bytes(type, c->v_dim, c->kv_lora);
    if (begin(p, k_up, type, c->kv_lora, c->nope_dim)) {
        memset(k_up->data, 0, k_up->bytes);
        if (block != NULL)
            p->rc = kg_weight_fill_t(k_up, 0, 0, c->kv_lora, c->nope_dim, dtype, block, c->kv_lora);
        complete(p, k_up);
    }
    if (begin(p, v_up, type, c->v_dim, c->kv_lora)) {
        memset(v_up->data, 0, v_up->bytes);
        if (block != NULL)
            p->rc = kg_weight_fill(v_up, 0, 0, c->v_dim, c->kv_lora, dtype, block + k_bytes,
                                   c->kv_lora);
        complete(p, v_up);
    }
}

static void kv_heads(struct kg_packer *p, const struct kg_model_config *c, uint32_t head0,
                     struct kg_w_mla *w, const struct kg_tensor *t)
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
        uint64_t at = (uint64_t)head0 + h;
        const void *block = (const uint8_t *)t->data + at * n * kg_dtype_bytes(dtype);
        int missing = at * (c->nope_dim + c->v_dim) >= t->rows;
        if (buf != NULL && !missing)
            kg_tensor_load_f32(t, at * n, n, buf);
        kv_head(p, c, real ? &w->k_up[h] : &none, real ? &w->v_up[h] : &none, dtype,
                missing  ? NULL
                : direct ? block
                         : (const void *)buf);
    }
    kg_model_free(p->host, buf, n * sizeof(float));
}

void kg_pack_mla(struct kg_packer *p, const struct kg_model_config *c, uint32_t head0,
                 struct kg_w_mla *w, const struct kg_ckpt_mla *t)
{
    uint32_t head = c->nope_dim + c->rope_dim;

    pack_rows(p, &w->q, &t->q, head0 * head, c->mla_heads * head);
    kg_pack_matrix(p, &w->q_a, &t->q_a);
    pack_rows(p, &w->q_b, &t->q_b, head0 * head, c->mla_heads * head);
    kg_pack_matrix(p, &w->kv_a, &t->kv_a);
    pack_rows(p, &w->g, &t->g, head0 * c->v_dim, c->mla_heads * c->v_dim);
    pack_cols(p, &w->o, &t->o, head0 * c->v_dim, c->mla_heads * c->v_dim);
    w->q_a_norm = kg_pack_vector(p, &t->q_a_norm);
    w->kv_a_norm = kg_pack_vector(p, &t->kv_a_norm);
    w->k_up = kg_pack_list(p, c->mla_heads * sizeof(struct kg_weight));
    w->v_up = kg_pack_list(p, c->mla_heads * sizeof(struct kg_weight));
    kv_heads(p, c, head0, w, &t->kv_b);
}

static void moe(struct kg_packer *p, const struct kg_model_config *c, const struct kg_split *s,
                struct kg_w_moe *w, const struct kg_ckpt_moe *t)
{
    const struct kg_block router = {0, 0, t->router.rows, t->router.cols};
    uint64_t bytes = s->experts * sizeof(struct kg_weight);
    struct kg_weight none;

    part_as(p, &w->router, &t->router, KG_W_F32, &router);
    kg_pack_matrix(p, &w->latent_down, &t->latent_down);
    pack_cols(p, &w->latent_up, &t->latent_up, s->latent_idle ? t->latent_up.cols : s->latent0,
              s->latent);
    w->latent_norm = kg_pack_vector(p, &t->latent_norm);
    w->bias = kg_pack_vector(p, &t->bias);
    mlp_part(p, &w->shared, &t->shared, s->shared0, c->shared_inter);
    w->gate = kg_pack_list(p, bytes);
    w->up = kg_pack_list(p, bytes);
    w->down = kg_pack_list(p, bytes);
    for (uint32_t e = 0; e < s->experts && p->rc == KG_OK; e++) {
        int real = p->mem != NULL, there = s->expert_id0 < c->n_experts;
        const struct kg_ckpt_mlp *from = &t->experts[there ? s->expert_id0 + e : 0];
        uint32_t first = there ? s->expert0 : from->gate.rows; /* behind its end: zeros */
        pack_rows(p, real ? &w->gate[e] : &none, &from->gate, first, c->expert_inter);
        pack_rows(p, real ? &w->up[e] : &none, &from->up, first, c->expert_inter);
        pack_cols(p, real ? &w->down[e] : &none, &from->down, first, c->expert_inter);
    }
}

/* The score vector of a residual mix: norm * proj, exact for bf16 factors. */
static float *mix_score(struct kg_packer *p, const struct kg_tensor *norm,
                        const struct kg_tensor *proj)
{
    float *score = kg_pack_room(p, (uint64_t)norm->cols * sizeof(float));
    float factor[256];

    if (score == NULL)
        return NULL;
    kg_tensor_load_f32(norm, 0, norm->cols, score);
    for (uint32_t i = 0, n; i < norm->cols; i += n) {
        n = norm->cols - i < 256 ? norm->cols - i : 256;
        kg_tensor_load_f32(proj, i, n, factor);
        for (uint32_t j = 0; j < n; j++)
            score[i + j] *= factor[j];
    }
    return kg_pack_place(p, score);
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
        kda(p, m->c, m->split.kda0, &w->kda, &t->kda);
    else
        kg_pack_mla(p, m->c, m->split.mla0, &w->mla, &t->mla);
    if (m->c->layer_moe[l])
        moe(p, m->c, &m->split, &w->moe, &t->moe);
    else
        mlp_part(p, &w->mlp, &t->mlp, m->split.dense0, m->c->dense_inter);
}

void kg_pack_table(struct kg_packer *p, struct kg_tensor *to, const struct kg_tensor *t)
{
    *to = *t;
    if (t->data == NULL)
        return;
    if (t->dtype == KG_BF16 || t->dtype == KG_F32) {
        if (p->memory != NULL)
            to->data =
                send_tensor(p, t->data, (uint64_t)t->rows * t->cols * kg_dtype_bytes(t->dtype));
        return;
    }
    to->data = kg_pack_vector(p, t);
    to->dtype = KG_F32;
}

static void pack_all(struct kg_packer *p, struct kg_model *m, const struct kg_ckpt *ckpt)
{
    p->at = 0;
    kg_pack_table(p, &m->embed, &ckpt->embed);
    for (uint32_t l = 0; l < m->c->n_layers && p->rc == KG_OK; l++)
        layer(p, m, l, &ckpt->layers[l]);
    pack_rows(p, &m->lm_head, &ckpt->lm_head, m->split.vocab0, m->split.vocab);
    m->norm = kg_pack_vector(p, &ckpt->norm);
    if (m->c->block_layers != 0)
        m->out_mix = mix_score(p, &ckpt->out_res_norm, &ckpt->out_res_proj);
}

static void number_layers(struct kg_model *m)
{
    uint32_t n_kind[2] = {0, 0};

    for (uint32_t l = 0; l < m->c->n_layers; l++)
        m->layers[l].index = n_kind[m->c->layer_kind[l] == KG_LAYER_MLA]++;
}

int kg_model_pack_plan(struct kg_model *m, const struct kg_ckpt *ckpt, uint64_t *bytes,
                       uint64_t *zero_bytes)
{
    struct kg_packer p = {.host = m->host, .team = m->pack_team, .memory = m->memory};

    number_layers(m);
    pack_all(&p, m, ckpt);
    if (p.rc < 0)
        return p.rc;
    *bytes = p.at;
    *zero_bytes = p.zero_bytes;
    return KG_OK;
}

int kg_pack_host(struct kg_packer *p, uint64_t *list_bytes, struct kg_error *err)
{
    uint64_t window = p->at < WINDOW_BYTES ? p->at : WINDOW_BYTES;

    if (p->memory == NULL)
        return KG_OK;
    p->window_bytes = p->largest > window ? p->largest : window;
    *list_bytes = p->lists_at;
    p->window = kg_model_alloc(p->host, p->window_bytes);
    p->lists = kg_model_alloc(p->host, p->lists_at);
    if (p->window == NULL || p->lists == NULL)
        return kg_fail(err, KG_ENOMEM, "no host memory for %llu bytes of weights on their way",
                       (unsigned long long)(p->window_bytes + p->lists_at));
    memset(p->lists, 0, p->lists_at);
    p->lists_at = 0;
    return KG_OK;
}

int kg_pack_end(struct kg_packer *p, struct kg_error *err)
{
    int rc = KG_OK;

    if (p->memory == NULL)
        return KG_OK;
    if (p->rc == KG_OK && p->mem != NULL && p->window != NULL && p->lists != NULL) {
        send_window(p, p->at);
        rc = kg_memory_sync(p->memory, err);
    }
    kg_model_free(p->host, p->window, p->window_bytes);
    p->window = NULL;
    return rc;
}

int kg_model_pack(struct kg_model *m, const struct kg_ckpt *ckpt, struct kg_error *err)
{
    struct kg_packer p = {
        .host = m->host, .team = m->pack_team, .memory = m->memory, .prepare = m->k->prepare};

    number_layers(m);
    pack_all(&p, m, ckpt);
    if (p.rc < 0)
        return kg_fail(err, p.rc, "the weights of the checkpoint do not fit 64-bit sizes");
    m->sizes.weight_bytes = p.at;
    m->weight_mem =
        m->memory == NULL ? kg_model_alloc_weights(m->host, p.at) : kg_model_take(m, p.at);
    if (m->weight_mem == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes of weights",
                       (unsigned long long)p.at);
    int rc = kg_pack_host(&p, &m->weight_list_bytes, err);
    m->weight_lists = p.lists;
    p.mem = m->weight_mem;
    if (rc == KG_OK)
        pack_all(&p, m, ckpt);
    if (rc == KG_OK && p.rc < 0)
        rc = kg_fail(err, p.rc, "packing the weights failed");
    int end = kg_pack_end(&p, rc == KG_OK ? err : NULL);
    return rc == KG_OK ? end : rc;
}
