#include "model/forward.h"

#include <math.h>

/*
 * A checkpoint order cuts a sequence's rows into segments. Segment j begins where segment j - 1
 * ended, in the unit that one wrote: the state passes through the ordered units on its way and
 * ends in the working state, so no state is copied but when an order falls on the last row.
 * A verified sequence writes no unit: it is one segment without an end, or, with snapshots, one
 * segment per row.
 */
struct segment {
    uint32_t row0, n; /* n 0: the sequence has no such segment */
    uint8_t *in;      /* state part; NULL: zero */
    uint8_t *out;     /* NULL: not kept */
};

/* Part of the state a sequence starts from. */
static uint8_t *source_of(const struct kg_model *m, const struct kg_forward *f,
                          const struct kg_forward_seq *seq, uint32_t part)
{
    if (seq->state_src == KG_STATE_ZERO)
        return NULL;
    return kg_model_state_part(m, f->units,
                               seq->state_src == KG_STATE_KEEP ? seq->state : seq->state_src, part);
}

static struct segment verify_segment(const struct kg_model *m, const struct kg_forward *f,
                                     uint32_t i, uint32_t part, uint32_t j)
{
    const struct kg_forward_seq *seq = &f->seqs[i];
    int snapshot = m->rewind == KG_REWIND_SNAPSHOT;
    uint32_t n = snapshot ? 1 : seq->n_rows;
    struct segment g = {.row0 = seq->row0 + j, .n = n};

    if (j >= seq->n_rows || (j > 0 && !snapshot))
        return (struct segment){0};
    if (snapshot)
        g.out = kg_model_snapshot(m, part, m->s.records[i] + j);
    if (j == 0)
        g.in = source_of(m, f, seq, part);
    else
        g.in = kg_model_snapshot(m, part, m->s.records[i] + j - 1);
    return g;
}

static struct segment segment_of(const struct kg_model *m, const struct kg_forward *f, uint32_t i,
                                 uint32_t part, uint32_t j)
{
    const struct kg_forward_seq *seq = &f->seqs[i];
    struct segment g = {0};
    uint32_t begin, end, out;

    if (seq->verify)
        return verify_segment(m, f, i, part, j);
    if (j > seq->n_orders)
        return g;
    begin = j == 0 ? seq->past : seq->orders[j - 1].position;
    end = j == seq->n_orders ? seq->past + seq->n_rows : seq->orders[j].position;
    out = j == seq->n_orders ? seq->state : seq->orders[j].unit;
    g.row0 = seq->row0 + (begin - seq->past);
    g.n = end - begin;
    g.out = kg_model_state_part(m, f->units, out, part);
    g.in = j > 0 ? kg_model_state_part(m, f->units, seq->orders[j - 1].unit, part)
                 : source_of(m, f, seq, part);
    return g;
}

static uint32_t count_waves(const struct kg_model *m, const struct kg_forward *f)
{
    uint32_t n = 1;

    for (uint32_t i = 0; i < f->n_seqs; i++) {
        const struct kg_forward_seq *seq = &f->seqs[i];
        uint32_t waves = seq->n_orders + 1;
        if (seq->verify)
            waves = m->rewind == KG_REWIND_SNAPSHOT ? seq->n_rows : 1;
        n = waves > n ? waves : n;
    }
    return n;
}

static void convolve(struct kg_model *m, const struct kg_w_layer *w, const struct kg_forward *f,
                     const float *raw)
{
    size_t width = (size_t)3 * kg_kda_width(m->c);
    uint32_t waves = count_waves(m, f);

    for (uint32_t j = 0; j < waves; j++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < f->n_seqs; i++) {
            struct segment g = segment_of(m, f, i, w->index, j);
            if (g.n == 0)
                continue;
            m->s.conv_seqs[n++] = (struct kg_conv_seq){
                .window_in = g.in == NULL ? NULL : g.in + m->sizes.conv_offset,
                .window_out = g.out == NULL ? NULL : g.out + m->sizes.conv_offset,
                .row0 = g.row0,
                .n = g.n};
        }
        if (n > 0)
            m->k->conv(m->team, m->s.kda.conv, width, raw, width, w->kda.conv, (uint32_t)width,
                       m->s.conv_seqs, n);
    }
}

/* Position of a segment's first row, as a table that takes whole chunks of rows wants it: verified
 * rows are decoded, chunk or not. */
static uint32_t past_of(const struct kg_forward_seq *seq, const struct segment *g)
{
    return seq->verify ? UINT32_MAX : seq->past + (g->row0 - seq->row0);
}

/* Runs `kernel` (kda or kda_replay) over the segments; *args has all but the sequences. */
static void recur(struct kg_model *m, const struct kg_w_layer *w, const struct kg_forward *f,
                  void (*kernel)(struct kg_team *team, const struct kg_kda *args),
                  struct kg_kda *args)
{
    uint32_t waves = count_waves(m, f);

    args->heads = m->c->kda_heads;
    args->k_dim = m->c->kda_dim;
    args->v_dim = m->c->kda_dim;
    args->seqs = m->s.kda_seqs;
    for (uint32_t j = 0; j < waves; j++) {
        uint32_t n = 0, longest = 0;
        for (uint32_t i = 0; i < f->n_seqs; i++) {
            struct segment g = segment_of(m, f, i, w->index, j);
            if (g.n == 0)
                continue;
            longest = g.n > longest ? g.n : longest;
            m->s.kda_past[n] = past_of(&f->seqs[i], &g);
            m->s.kda_seqs[n++] = (struct kg_kda_seq){.state_in = (const void *)g.in,
                                                     .state_out = (void *)g.out,
                                                     .row0 = g.row0,
                                                     .n = g.n};
        }
        args->n_seqs = n;
        args->past = longest >= KG_KDA_CHUNK ? m->s.kda_past : NULL; /* NULL: no chunk is whole */
        if (n > 0)
            kernel(m->team, args);
    }
}

static void compute(struct kg_model *m, const struct kg_w_layer *w, const struct kg_forward *f)
{
    size_t width = kg_kda_width(m->c);
    struct kg_kda args = {.q = m->s.kda.conv,
                          .k = m->s.kda.conv + width,
                          .v = m->s.kda.conv + (size_t)2 * width,
                          .alpha = m->s.kda.f,
                          .beta = m->s.kda.beta,
                          .o = m->s.kda.o,
                          .u = m->s.kda.u,
                          .qk_stride = 3 * width,
                          .alpha_stride = width,
                          .v_stride = 3 * width,
                          .o_stride = width,
                          .u_stride = width,
                          .beta_stride = m->c->kda_heads};

    recur(m, w, f, m->k->kda, &args);
}

/* Neighbours that are verified: `n` rows from `row` on, recorded from `at` on. */
struct run {
    size_t row, at;
    uint32_t n;
};

/* The run that begins with sequence i; returns the sequence behind it. */
static uint32_t run_of(const struct kg_model *m, const struct kg_forward *f, uint32_t i,
                       struct run *run)
{
    *run = (struct run){f->seqs[i].row0, m->s.records[i], 0};
    while (i < f->n_seqs && f->seqs[i].verify && f->seqs[i].row0 == run->row + run->n)
        run->n += f->seqs[i++].n_rows;
    return i;
}

/* Keeps what replay needs of the verified rows: the values the update was made with, so that
 * nothing is computed a second time in another way. */
static void record(const struct kg_model *m, const struct kg_w_layer *w, const struct kg_forward *f)
{
    size_t width = kg_kda_width(m->c), bytes = width * sizeof(float);
    struct kg_records to = kg_model_records(m, w->index);
    struct run g;

    for (uint32_t i = 0; i < f->n_seqs;) {
        if (!f->seqs[i].verify) {
            i++;
            continue;
        }
        i = run_of(m, f, i, &g);
        m->k->copy(m->team, to.raw + g.at * 3 * width, 3 * bytes, m->s.kda.raw + g.row * 3 * width,
                   3 * bytes, 3 * bytes, g.n);
        m->k->copy(m->team, to.alpha + g.at * width, bytes, m->s.kda.f + g.row * width, bytes,
                   bytes, g.n);
        m->k->copy(m->team, to.u + g.at * width, bytes, m->s.kda.u + g.row * width, bytes, bytes,
                   g.n);
        m->k->copy(m->team, to.k + g.at * width, bytes, m->s.kda.conv + g.row * 3 * width + width,
                   3 * bytes, bytes, g.n);
    }
}

/* An order on the last row: the chain ended in its unit, the working state is its copy. */
static void finish_orders(struct kg_model *m, const struct kg_w_layer *w,
                          const struct kg_forward *f)
{
    for (uint32_t i = 0; i < f->n_seqs; i++) {
        const struct kg_forward_seq *seq = &f->seqs[i];
        const struct kg_order *last;
        if (seq->n_orders == 0 || seq->verify)
            continue;
        last = &seq->orders[seq->n_orders - 1];
        if (last->position == seq->past + seq->n_rows)
            kg_model_copy(m, kg_model_state_part(m, f->units, seq->state, w->index),
                          kg_model_state_part(m, f->units, last->unit, w->index),
                          m->sizes.state_part_bytes);
    }
}

void kg_replay_kda(struct kg_model *m, uint32_t l, const struct kg_forward *f)
{
    const struct kg_w_layer *w = &m->layers[l];
    size_t width = kg_kda_width(m->c);
    struct kg_records from = kg_model_records(m, w->index);
    struct kg_kda args = {.k = from.k,
                          .alpha = from.alpha,
                          .u = from.u,
                          .qk_stride = width,
                          .alpha_stride = width,
                          .u_stride = width};

    convolve(m, w, f, from.raw); /* for its windows; what it computes beside them is scratch */
    recur(m, w, f, m->k->kda_replay, &args);
    finish_orders(m, w, f);
}

/* All products that read the layer's input in one go, then those that read their results. */
static void project(struct kg_model *m, uint32_t l, uint32_t rows)
{
    const struct kg_w_kda *w = &m->layers[l].kda;
    const struct kg_model_config *c = m->c;
    uint32_t width = kg_kda_width(c), dim = c->kda_dim;
    size_t wide = (size_t)3 * width;
    const float *x = m->s.normed;
    struct kg_product in[6] = {
        {&w->q, x, m->s.kda.raw, c->hidden, wide, rows},
        {&w->k, x, m->s.kda.raw + width, c->hidden, wide, rows},
        {&w->v, x, m->s.kda.raw + (size_t)2 * width, c->hidden, wide, rows},
        {&w->f_a, x, m->s.kda.f_a, c->hidden, dim, rows},
        {&w->b, x, m->s.kda.beta, c->hidden, c->kda_heads, rows},
        {&w->g, x, m->s.kda.z, c->hidden, width, rows},
    };
    struct kg_product mid[2] = {
        {&w->f_b, m->s.kda.f_a, m->s.kda.f, dim, width, rows},
        {&w->g_b, m->s.kda.g_a, m->s.kda.z, dim, width, rows},
    };

    if (!c->full_gate)
        in[5] = (struct kg_product){&w->g_a, x, m->s.kda.g_a, c->hidden, dim, rows};
    m->k->product(m->team, in, 6);
    m->k->product(m->team, mid, c->full_gate ? 1 : 2);
    kg_tap_f32(m, l, "kda.q_proj", m->s.kda.raw, wide, rows, width);
    kg_tap_f32(m, l, "kda.k_proj", m->s.kda.raw + width, wide, rows, width);
    kg_tap_f32(m, l, "kda.v_proj", m->s.kda.raw + (size_t)2 * width, wide, rows, width);
    kg_tap_f32(m, l, "kda.f", m->s.kda.f, width, rows, width);
    kg_tap_f32(m, l, "kda.z", m->s.kda.z, width, rows, width);
}

static void gates(struct kg_model *m, uint32_t l, uint32_t rows)
{
    const struct kg_w_kda *w = &m->layers[l].kda;
    const struct kg_model_config *c = m->c;
    uint32_t width = kg_kda_width(c), heads = c->kda_heads, dim = c->kda_dim;
    size_t wide = (size_t)3 * width;
    float *q = m->s.kda.conv, *k = q + width;
    uint32_t form = c->decay == KG_DECAY_BOUNDED ? KG_GATE_SIGMOID : KG_GATE_SOFTPLUS;

    kg_tap_f32(m, l, "kda.q_conv", q, wide, rows, width);
    kg_tap_f32(m, l, "kda.k_conv", k, wide, rows, width);
    kg_tap_f32(m, l, "kda.v_conv", q + (size_t)2 * width, wide, rows, width);
    m->k->l2norm(m->team, q, wide, q, wide, rows, heads, dim, 1e-6f, 1.0f / sqrtf((float)dim));
    m->k->l2norm(m->team, k, wide, k, wide, rows, heads, dim, 1e-6f, 1.0f);
    m->k->sigmoid(m->team, m->s.kda.beta, heads, m->s.kda.beta, heads, rows, heads);
    m->k->kda_gate(m->team, m->s.kda.f, width, m->s.kda.f, width, w->a_log, w->dt_bias, rows, heads,
                   dim, form, c->decay_floor);
    kg_tap_f32(m, l, "kda.q", q, wide, rows, width);
    kg_tap_f32(m, l, "kda.k", k, wide, rows, width);
    kg_tap_f32(m, l, "kda.beta", m->s.kda.beta, heads, rows, heads);
    kg_tap_f32(m, l, "kda.alpha", m->s.kda.f, width, rows, width);
}

void kg_forward_kda(struct kg_model *m, uint32_t l, const struct kg_forward *f, float *out)
{
    const struct kg_w_layer *w = &m->layers[l];
    const struct kg_model_config *c = m->c;
    uint32_t width = kg_kda_width(c), rows = f->n_rows;
    float *o = m->s.kda.o;
    struct kg_product last = {&w->kda.o, o, kg_model_partial(m, out), width, c->hidden, rows};

    project(m, l, rows);
    convolve(m, w, f, m->s.kda.raw);
    gates(m, l, rows);
    compute(m, w, f);
    if (m->s.kda.u != NULL)
        record(m, w, f);
    finish_orders(m, w, f);
    kg_tap_f32(m, l, "kda.o", o, width, rows, width);
    m->k->rmsnorm_gated(m->team, o, width, o, width, m->s.kda.z, width, w->kda.o_norm, rows,
                        c->kda_heads, c->kda_dim, c->rms_eps);
    kg_tap_f32(m, l, "kda.o_gated", o, width, rows, width);
    m->k->product(m->team, &last, 1);
    kg_model_reduce_own(m, out, c->hidden, rows);
    kg_tap_f32(m, l, "kda.out", out, c->hidden, rows, c->hidden);
}
