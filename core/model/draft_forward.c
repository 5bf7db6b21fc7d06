#include "model/draft_impl.h"

#include "kernels/exact.h"

#include <math.h>

static void norm_rows(struct kg_drafter *d, float *y, const float *x, const float *w, uint32_t rows)
{
    uint32_t n = d->c->net.hidden;

    d->k->rmsnorm(d->team, y, n, x, n, w, rows, n, d->c->net.rms_eps);
}

static void angles(struct kg_drafter *d, uint32_t row, uint32_t position)
{
    uint32_t dim = d->c->net.rope_dim;

    kg_rope_angles(&d->c->rope, dim, d->rates, position,
                   d->s.near_cosines + (size_t)row * (dim / 2),
                   d->s.near_sines + (size_t)row * (dim / 2));
}

/* To a device: the angles of `rows` rows. */
static void send_angles(struct kg_drafter *d, uint32_t rows)
{
    uint64_t bytes = (uint64_t)rows * (d->c->net.rope_dim / 2) * sizeof(float);

    if (d->memory == NULL || bytes == 0)
        return;
    kg_memory_upload(d->memory, d->s.cosines, d->s.near_cosines, bytes);
    kg_memory_upload(d->memory, d->s.sines, d->s.near_sines, bytes);
}

/* Rows of a table that the first n of s.ids name. */
static void look_up(struct kg_drafter *d, float *y, const struct kg_tensor *t, uint32_t width,
                    uint32_t n)
{
    if (d->memory != NULL)
        kg_memory_upload(d->memory, d->s.lookups, d->s.ids, n * sizeof(*d->s.ids));
    d->k->embed(d->team, y, width, t->data, t->dtype, width, d->s.lookups, n);
}

/* Rotates the last rope_dim values of `n` vectors of each row, `width` apart. */
static void turn(struct kg_drafter *d, float *x, uint32_t width, uint32_t n, uint32_t rows)
{
    d->k->rope(d->team, x, (size_t)n * width, n, width, d->s.cosines, d->s.sines, rows,
               d->c->net.rope_dim, d->c->rope.interleave);
}

static void set_pages(const struct kg_drafter *d, const struct kg_model_units *u, uint32_t layer,
                      struct kg_pages *pages)
{
    uint64_t before = d->target->sizes.token_bytes + layer * d->sizes.record_bytes;

    *pages = (struct kg_pages){
        .base = u->arena + u->layout.base[KG_PAGE] + u->layout.page_tokens * before,
        .table = u->table[KG_PAGE],
        .page_stride = u->layout.stride[KG_PAGE],
        .token_stride = d->sizes.record_bytes,
        .page_tokens = u->layout.page_tokens,
        .dtype = d->k->state_dtype,
        .latent = d->c->net.kv_lora,
        .rope = d->c->net.rope_dim,
    };
}

/* Records of `rows` rows of x in one layer: latent normed, key rotated, written to the pages. */
static void write_records(struct kg_drafter *d, const struct kg_model_units *u, uint32_t layer,
                          const float *x, uint32_t rows, uint32_t n_seqs)
{
    const struct kg_model_config *c = &d->c->net;
    const struct kg_w_mla *w = &d->layers[layer].mla;
    uint32_t width = c->kv_lora + c->rope_dim;
    struct kg_product in = {&w->kv_a, x, d->s.kv, c->hidden, width, rows};
    struct kg_pages pages;

    d->k->product(d->team, &in, 1);
    d->k->rmsnorm(d->team, d->s.kv, width, d->s.kv, width, w->kv_a_norm, rows, c->kv_lora,
                  c->latent_eps);
    turn(d, d->s.kv, width, 1, rows);
    set_pages(d, u, layer, &pages);
    d->k->page_write(d->team, &pages, d->s.kv, width, d->s.kv + c->kv_lora, width, d->s.seqs,
                     n_seqs);
}

/* --- context ---------------------------------------------------------------------------------- */

/* Rows `from` .. of the features to row `to` below; what is read and written in a copy is apart. */
static void move_rows(struct kg_drafter *d, float *features, uint32_t to, uint32_t from, uint32_t n)
{
    size_t width = (size_t)d->c->n_taps * d->c->target_hidden, bytes = width * sizeof(*features);

    for (uint32_t at = 0, some; at < n && to != from; at += some) {
        some = n - at < from - to ? n - at : from - to;
        d->k->copy(d->team, features + (to + at) * width, bytes, features + (from + at) * width,
                   bytes, bytes, some);
    }
}

/* Moves the features of the rows that stay to the front and lists them; returns how many. */
static uint32_t gather(struct kg_drafter *d, float *features, const struct kg_forward_seq *seqs,
                       const uint32_t *n_rows, uint32_t n_seqs, uint32_t *n_listed)
{
    uint32_t rows = 0;

    *n_listed = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        const struct kg_forward_seq *q = &seqs[i];
        if (n_rows[i] == 0)
            continue;
        move_rows(d, features, rows, q->row0, n_rows[i]);
        d->s.seqs[(*n_listed)++] =
            (struct kg_mla_seq){.pages = q->pages, .row0 = rows, .n = n_rows[i], .past = q->past};
        for (uint32_t j = 0; j < n_rows[i]; j++)
            angles(d, rows++, q->past + j);
    }
    return rows;
}

void kg_drafter_inject(struct kg_drafter *d, const struct kg_model_units *units, float *features,
                       const struct kg_forward_seq *seqs, const uint32_t *n_rows, uint32_t n_seqs)
{
    uint32_t listed, rows = gather(d, features, seqs, n_rows, n_seqs, &listed);
    struct kg_product fuse = {.w = &d->context_proj,
                              .x = features,
                              .y = d->s.context,
                              .x_stride = (size_t)d->c->n_taps * d->c->target_hidden,
                              .y_stride = d->c->net.hidden,
                              .rows = rows};

    if (rows == 0)
        return;
    send_angles(d, rows);
    d->k->product(d->team, &fuse, 1);
    norm_rows(d, d->s.context, d->s.context, d->context_norm, rows);
    for (uint32_t l = 0; l < d->c->net.n_layers; l++)
        write_records(d, units, l, d->s.context, rows, listed);
}

/* --- block ------------------------------------------------------------------------------------ */

/* The records of the context in the page where the block begins. */
static void copy_tail(struct kg_drafter *d, const struct kg_model_units *u,
                      const struct kg_draft_seq *q)
{
    const uint32_t *slots = u->slots != NULL ? u->slots : u->table[KG_PAGE];
    uint32_t tokens = u->layout.page_tokens, n = q->past % tokens;
    uint32_t to = d->memory != NULL ? q->first : q->pages[q->past / tokens];

    if (n == 0 || to == q->tail)
        return;
    for (uint32_t l = 0; l < d->c->net.n_layers; l++) {
        struct kg_pages p;
        set_pages(d, u, l, &p);
        kg_memory_copy(d->memory, p.base + slots[to] * p.page_stride,
                       p.base + slots[q->tail] * p.page_stride, n * p.token_stride);
    }
}

/* Rows and positions of the blocks; returns the rows. */
static uint32_t list_rows(struct kg_drafter *d)
{
    uint32_t rows = 0, out = 0;

    for (uint32_t i = 0; i < d->n_seqs; i++) {
        const struct kg_draft_seq *q = &d->seqs[i];
        uint32_t n = d->all_causal ? q->n : d->c->block;
        d->s.row0[i] = rows;
        d->s.out0[i] = out;
        out += q->n;
        for (uint32_t j = 0; j < n; j++) {
            d->s.ids[rows] = j == 0 ? q->anchor : d->c->mask_token;
            angles(d, rows++, q->past + j);
        }
    }
    return rows;
}

static uint32_t rows_of(const struct kg_drafter *d, uint32_t i)
{
    return d->all_causal ? d->seqs[i].n : d->c->block;
}

/* Who sees what in a layer. The kernel lets a row see all keys up to its own position; a row that
 * is to see the whole block is given the position of the block's last row. */
static uint32_t list_attention(struct kg_drafter *d, uint32_t layer)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->n_seqs; i++) {
        const struct kg_draft_seq *q = &d->seqs[i];
        uint32_t rows = rows_of(d, i);
        for (uint32_t j = 0; !d->c->causal[layer] && j < rows; j++)
            d->s.seqs[n++] = (struct kg_mla_seq){
                .pages = q->pages, .row0 = d->s.row0[i] + j, .n = 1, .past = q->past + rows - 1};
        if (d->c->causal[layer])
            d->s.seqs[n++] = (struct kg_mla_seq){
                .pages = q->pages, .row0 = d->s.row0[i], .n = rows, .past = q->past};
    }
    return n;
}

static void list_writes(struct kg_drafter *d)
{
    for (uint32_t i = 0; i < d->n_seqs; i++)
        d->s.seqs[i] = (struct kg_mla_seq){.pages = d->seqs[i].pages,
                                           .row0 = d->s.row0[i],
                                           .n = rows_of(d, i),
                                           .past = d->seqs[i].past};
}

/* Queries of the normed rows, rotated. */
static void make_queries(struct kg_drafter *d, const struct kg_w_mla *w, uint32_t rows)
{
    const struct kg_model_config *c = &d->c->net;
    uint32_t head = c->nope_dim + c->rope_dim, width = c->mla_heads * head;
    struct kg_product plain = {&w->q, d->s.normed, d->s.q, c->hidden, width, rows};
    struct kg_product q_a = {&w->q_a, d->s.normed, d->s.q_a, c->hidden, c->q_lora, rows};
    struct kg_product q_b = {&w->q_b, d->s.q_a, d->s.q, c->q_lora, width, rows};

    if (c->q_lora == 0) {
        d->k->product(d->team, &plain, 1);
    } else {
        d->k->product(d->team, &q_a, 1);
        d->k->rmsnorm(d->team, d->s.q_a, c->q_lora, d->s.q_a, c->q_lora, w->q_a_norm, rows,
                      c->q_lora, c->latent_eps);
        d->k->product(d->team, &q_b, 1);
    }
    turn(d, d->s.q, head, c->mla_heads, rows);
}

/* y[h] = w[h] x[h] for every head. */
static void per_head(struct kg_drafter *d, const struct kg_weight *w, const float *x,
                     uint32_t x_head, float *y, uint32_t y_head, uint32_t rows)
{
    uint32_t heads = d->c->net.mla_heads;

    for (uint32_t h = 0; h < heads; h++)
        d->s.products[h] = (struct kg_product){&w[h],
                                               x + (size_t)h * x_head,
                                               y + (size_t)h * y_head,
                                               (size_t)heads * x_head,
                                               (size_t)heads * y_head,
                                               rows};
    d->k->product(d->team, d->s.products, heads);
}

static void attend(struct kg_drafter *d, const struct kg_model_units *u, uint32_t layer)
{
    const struct kg_model_config *c = &d->c->net;
    uint32_t head = c->nope_dim + c->rope_dim;
    struct kg_mla args = {.qa = d->s.qa,
                          .qr = d->s.q + c->nope_dim,
                          .m = d->s.m,
                          .qa_stride = (size_t)c->mla_heads * c->kv_lora,
                          .qr_stride = (size_t)c->mla_heads * head,
                          .qr_head_stride = head,
                          .m_stride = (size_t)c->mla_heads * c->kv_lora,
                          .scale = d->scale,
                          .heads = c->mla_heads,
                          .seqs = d->s.seqs};

    args.n_seqs = list_attention(d, layer);
    set_pages(d, u, layer, &args.pages);
    d->k->mla(d->team, &args);
}

static void block_layer(struct kg_drafter *d, const struct kg_model_units *u, uint32_t l,
                        uint32_t rows)
{
    const struct kg_w_draft_layer *w = &d->layers[l];
    const struct kg_model_config *c = &d->c->net;
    uint32_t head = c->nope_dim + c->rope_dim, inter = c->dense_inter, n = c->hidden;
    struct kg_product o = {&w->mla.o, d->s.o, d->s.out, (size_t)c->mla_heads * c->v_dim, n, rows};
    struct kg_product in[2] = {{&w->mlp.gate, d->s.normed, d->s.gate, n, inter, rows},
                               {&w->mlp.up, d->s.normed, d->s.up, n, inter, rows}};
    struct kg_product down = {&w->mlp.down, d->s.gate, d->s.out, inter, n, rows};
    static const struct kg_act_args silu = {.act = KG_ACT_SWIGLU};

    norm_rows(d, d->s.normed, d->s.x, w->input_norm, rows);
    make_queries(d, &w->mla, rows);
    list_writes(d);
    write_records(d, u, l, d->s.normed, rows, d->n_seqs);
    per_head(d, w->mla.k_up, d->s.q, head, d->s.qa, c->kv_lora, rows);
    attend(d, u, l);
    per_head(d, w->mla.v_up, d->s.m, c->kv_lora, d->s.o, c->v_dim, rows);
    d->k->product(d->team, &o, 1);
    d->k->add(d->team, d->s.x, n, d->s.x, n, d->s.out, n, rows, n);
    norm_rows(d, d->s.normed, d->s.x, w->post_norm, rows);
    d->k->product(d->team, in, 2);
    d->k->act(d->team, &silu, d->s.gate, inter, d->s.gate, inter, d->s.up, inter, rows, inter);
    d->k->product(d->team, &down, 1);
    d->k->add(d->team, d->s.x, n, d->s.x, n, d->s.out, n, rows, n);
}

void kg_drafter_begin(struct kg_drafter *d, const struct kg_model_units *units,
                      const struct kg_draft_seq *seqs, uint32_t n_seqs)
{
    uint32_t width = d->c->net.hidden, rows, out = 0;

    d->seqs = seqs;
    d->n_seqs = n_seqs;
    rows = list_rows(d);
    send_angles(d, rows);
    for (uint32_t i = 0; i < n_seqs; i++)
        copy_tail(d, units, &seqs[i]);
    look_up(d, d->s.x, &d->target->embed, width, rows);
    for (uint32_t l = 0; l < d->c->net.n_layers; l++)
        block_layer(d, units, l, rows);
    for (uint32_t i = 0; i < n_seqs; i++) {
        norm_rows(d, d->s.hidden + (size_t)d->s.out0[i] * width,
                  d->s.x + (size_t)d->s.row0[i] * width, d->final_norm, seqs[i].n);
        out += seqs[i].n;
    }
    kg_model_head(d->target, d->s.hidden, d->s.logits, out);
}

/* --- heads ------------------------------------------------------------------------------------ */

static float *logits_of(const struct kg_drafter *d, uint32_t i, uint32_t k)
{
    return d->s.logits + ((size_t)d->s.out0[i] + k) * d->c->net.vocab;
}

const float *kg_drafter_logits(const struct kg_drafter *d, uint32_t i, uint32_t k)
{
    return d->memory == NULL ? logits_of(d, i, k) : d->s.near_logits + (size_t)i * d->c->net.vocab;
}

const float *kg_drafter_hidden(const struct kg_drafter *d, uint32_t i, uint32_t k)
{
    return d->s.hidden + ((size_t)d->s.out0[i] + k) * d->c->net.hidden;
}

int kg_drafter_lost(const struct kg_drafter *d)
{
    return d->lost;
}

static void add_bias(struct kg_drafter *d, uint32_t k, uint32_t n)
{
    size_t vocab = d->c->net.vocab, rank = d->c->markov_rank;
    struct kg_product p = {&d->w2, d->s.before, d->s.bias, rank, vocab, n};

    d->k->product(d->team, &p, 1);
    for (uint32_t a = 0; a < n; a++) {
        float *z = logits_of(d, d->s.active[a], k);
        d->k->add(d->team, z, vocab, z, vocab, d->s.bias + a * vocab, vocab, 1, (uint32_t)vocab);
    }
}

/* The answers, without b, come to s.out. */
static void ask_confidence(struct kg_drafter *d, uint32_t k, uint32_t n)
{
    size_t hidden = d->c->net.hidden, rank = d->c->confidence_markov ? d->c->markov_rank : 0;
    size_t width = hidden + rank;
    float *in = d->s.head_in;
    struct kg_product p = {&d->confidence_w, in, d->s.out, width, 1, n};

    for (uint32_t a = 0; a < n; a++)
        d->k->copy(d->team, in + a * width, 0, kg_drafter_hidden(d, d->s.active[a], k), 0,
                   hidden * sizeof(*in), 1);
    if (rank > 0)
        d->k->copy(d->team, in + hidden, width * sizeof(*in), d->s.before, rank * sizeof(*in),
                   rank * sizeof(*in), n);
    d->k->product(d->team, &p, 1);
}

/* From a device: logits and confidences of draft k of the active sequences. */
static void bring(struct kg_drafter *d, uint32_t k, uint32_t n)
{
    uint64_t bytes = (uint64_t)d->c->net.vocab * sizeof(float);

    for (uint32_t a = 0; a < n; a++)
        kg_memory_download(d->memory, d->s.near_logits + (size_t)d->s.active[a] * d->c->net.vocab,
                           logits_of(d, d->s.active[a], k), bytes);
    if (d->c->confidence)
        kg_memory_download(d->memory, d->s.near_confidence, d->s.out, n * sizeof(float));
    if (kg_memory_sync(d->memory, NULL) < 0)
        d->lost = KG_EDEVICE;
}

void kg_drafter_next(struct kg_drafter *d, uint32_t k, const uint32_t *before)
{
    uint32_t n = 0, rank = d->c->markov_rank;

    for (uint32_t i = 0; i < d->n_seqs; i++) {
        if (d->seqs[i].n > k) {
            d->s.ids[n] = before[i];
            d->s.active[n++] = i;
        }
    }
    if (n == 0)
        return;
    if (rank > 0) {
        look_up(d, d->s.before, &d->w1, rank, n);
        add_bias(d, k, n);
    }
    if (d->c->confidence)
        ask_confidence(d, k, n);
    if (d->memory != NULL)
        bring(d, k, n);
    const float *said = d->memory == NULL ? d->s.out : d->s.near_confidence;
    for (uint32_t a = 0; a < n && d->c->confidence; a++)
        d->s.confidence[d->s.active[a]] = said[a] + d->confidence_b;
}

float kg_drafter_confidence(const struct kg_drafter *d, uint32_t i, uint32_t k, uint32_t cls)
{
    double z;

    if (!d->c->confidence)
        return 1.0f;
    z = (double)d->s.confidence[i] / (double)d->c->temperature[cls][k] + d->c->bias[cls][k];
    if (!isfinite(z))
        return 0.0f;
    return (float)(1.0 / (1.0 + kg_exact_exp(-z > 700 ? 700 : -z)));
}
