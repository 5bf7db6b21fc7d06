#include "model/forward.h"

/*
 * streams[0 .. n_blocks-1] are finished blocks, streams[n_blocks] is the running vector. Plain
 * residuals have no blocks.
 */
struct residual {
    uint32_t n_blocks;
};

struct mix_names {
    const char *weights, *out;
};

static const struct mix_names mix_attn = {"attn_res.weights", "attn_res.out"};
static const struct mix_names mix_mlp = {"mlp_res.weights", "mlp_res.out"};
static const struct mix_names mix_final = {"final.attn_res.weights", "final.attn_res.out"};

/* Mixes the sources of rows row0 .. row0+rows-1 into y, and their weights into w (may be NULL). */
static void mix_rows(struct kg_model *m, const struct residual *r, const float *score,
                     uint32_t row0, uint32_t rows, float *y, float *w)
{
    const float *srcs[KG_MIX_MAX];
    size_t width = m->c->hidden;
    struct kg_mix mix = {.srcs = srcs,
                         .m = score,
                         .y = y,
                         .weights = w,
                         .src_stride = width,
                         .y_stride = width,
                         .n_srcs = r->n_blocks + 1,
                         .rows = rows,
                         .cols = m->c->hidden,
                         .eps = m->c->rms_eps};

    for (uint32_t i = 0; i <= r->n_blocks; i++)
        srcs[i] = m->s.streams[i] + row0 * width;
    m->k->mix(m->team, &mix);
}

/* Input of a norm: the running vector, or its mix with the finished blocks; own rows. */
static const float *residual_in(struct kg_model *m, const struct residual *r, uint32_t layer,
                                const float *score, const struct mix_names *names, uint32_t rows)
{
    float *w = m->tap.fn == NULL ? NULL : m->s.weights;
    size_t at = (size_t)m->own.row0 * m->c->hidden;

    if (r->n_blocks == 0)
        return m->s.streams[0];
    mix_rows(m, r, score, m->own.row0, m->own.rows, m->s.mixed + at, w);
    kg_tap_f32(m, layer, names->weights, w, r->n_blocks + 1, rows, r->n_blocks + 1);
    kg_tap_f32(m, layer, names->out, m->s.mixed, m->c->hidden, rows, m->c->hidden);
    return m->s.mixed;
}

static void norm_rows(struct kg_model *m, float *y, const float *x, const float *w, uint32_t rows)
{
    m->k->rmsnorm(m->team, y, m->c->hidden, x, m->c->hidden, w, rows, m->c->hidden, m->c->rms_eps);
}

/* m->s.normed = all rows of the norm of x, of which this rank has its own. */
static void norm_all(struct kg_model *m, const float *x, const float *w, uint32_t rows)
{
    size_t width = m->c->hidden, at = m->own.row0 * width;

    norm_rows(m, m->s.normed + at, x + at, w, m->own.rows);
    kg_model_gather_rows(m, m->s.normed, m->s.normed, width, rows);
}

static void add_own(struct kg_model *m, float *y, const float *x)
{
    size_t width = m->c->hidden, at = m->own.row0 * width;

    m->k->add(m->team, y + at, width, y + at, width, x + at, width, m->own.rows, m->c->hidden);
}

/* Keeps the tap of target layer `layer`, if the drafter reads it. */
static void keep_features(struct kg_model *m, uint32_t stream, uint32_t layer, const float *h,
                          uint32_t rows)
{
    const struct kg_draft_config *d = m->draft;
    size_t width = m->c->hidden;
    uint32_t i = 0;

    if (d == NULL || d->stream != stream)
        return;
    while (i < d->n_taps && d->taps[i] != layer)
        i++;
    if (i == d->n_taps)
        return;
    float *to = m->s.features + i * width;
    size_t stride = d->n_taps * width;
    if (m->own.parallel) /* every rank's drafter reads all rows */
        kg_model_gather_rows(m, h, to, stride, rows);
    else
        m->k->copy(m->team, to, stride * sizeof(*h), h, width * sizeof(*h), width * sizeof(*h),
                   rows);
}

static void forward_attention(struct kg_model *m, uint32_t l, const struct kg_forward *f,
                              struct residual *r)
{
    const struct kg_w_layer *w = &m->layers[l];
    uint32_t hidden = m->c->hidden, rows = f->n_rows;
    int restart = m->c->block_layers != 0 && l % m->c->block_layers == 0;
    const float *h = residual_in(m, r, l, w->attn_mix, &mix_attn, rows);
    float *out = m->s.out;

    if (l > 0)
        keep_features(m, KG_TAP_ATTN_RES, l - 1, h, rows);
    norm_all(m, h, w->input_norm, rows);
    kg_tap_f32(m, l, "attn_in", m->s.normed, hidden, rows, hidden);
    if (restart) {
        /* The running vector becomes a block where it lies; the sublayer starts the next one. */
        r->n_blocks++;
        out = m->s.streams[r->n_blocks];
    }
    if (m->c->layer_kind[l] == KG_LAYER_KDA)
        kg_forward_kda(m, l, f, out);
    else
        kg_forward_mla(m, l, f, out);
    if (!restart)
        add_own(m, m->s.streams[r->n_blocks], out);
    kg_tap_f32(m, l, "p_attn", m->s.streams[r->n_blocks], hidden, rows, hidden);
}

static void forward_ffn(struct kg_model *m, uint32_t l, uint32_t rows, const struct residual *r)
{
    const struct kg_w_layer *w = &m->layers[l];
    uint32_t hidden = m->c->hidden;
    const float *h = residual_in(m, r, l, w->mlp_mix, &mix_mlp, rows);

    norm_all(m, h, w->post_norm, rows);
    kg_tap_f32(m, l, "ffn_in", m->s.normed, hidden, rows, hidden);
    if (m->c->layer_moe[l])
        kg_forward_moe(m, l, rows, m->s.out);
    else
        kg_forward_mlp(m, l, rows, m->s.out);
    add_own(m, m->s.streams[r->n_blocks], m->s.out);
    kg_tap_f32(m, l, "p_ffn", m->s.streams[r->n_blocks], hidden, rows, hidden);
    keep_features(m, KG_TAP_PREFIX_SUM, l, m->s.streams[r->n_blocks], rows);
}

/* Rows from the i-th asked for on that are neighbours and one rank's own. */
static uint32_t run_of(const struct kg_model *m, const struct kg_forward *f, uint32_t i)
{
    uint32_t n = 1, first = f->out_rows[i], share = m->own.share;

    while (i + n < f->n_out && f->out_rows[i + n] == first + n &&
           (first + n) / share == first / share)
        n++;
    return n;
}

/* Final norm of the rows asked for, in runs of neighbours, then logits of the first n_logits. */
static void forward_output(struct kg_model *m, const struct kg_forward *f, const struct residual *r)
{
    size_t width = m->c->hidden;
    uint32_t n_srcs = r->n_blocks + 1;

    for (uint32_t i = 0, n; i < f->n_out; i += n) {
        const float *h = m->s.streams[0] + f->out_rows[i] * width;
        n = run_of(m, f, i);
        if (f->out_rows[i] - m->own.row0 >= m->own.rows)
            continue; /* another rank's */
        if (r->n_blocks > 0) {
            float *w = m->tap.fn == NULL ? NULL : m->s.weights + (size_t)i * n_srcs;
            mix_rows(m, r, m->out_mix, f->out_rows[i], n, m->s.mixed + i * width, w);
            h = m->s.mixed + i * width;
        }
        norm_rows(m, m->s.hidden + i * width, h, m->norm, n);
    }
    kg_model_gather_out(m, f);
    if (r->n_blocks > 0) {
        kg_tap_f32(m, KG_NONE, mix_final.weights, m->s.weights, n_srcs, f->n_out, n_srcs);
        kg_tap_f32(m, KG_NONE, mix_final.out, m->s.mixed, width, f->n_out, m->c->hidden);
    }
    kg_tap_f32(m, KG_NONE, "final.normed", m->s.hidden, width, f->n_out, m->c->hidden);
    kg_model_head(m, m->s.hidden, m->s.logits, f->n_logits);
    kg_tap_f32(m, KG_NONE, "final.logits", m->s.logits, m->c->vocab, f->n_logits, m->c->vocab);
}

void kg_model_forward(struct kg_model *m, const struct kg_forward *f)
{
    struct residual r = {0};
    uint32_t hidden = m->c->hidden;

    kg_model_deal_records(m, f);
    kg_model_share_rows(m, f->n_rows);
    m->k->embed(m->team, m->s.streams[0] + (size_t)m->own.row0 * hidden, hidden, m->embed.data,
                m->embed.dtype, hidden, f->tokens + m->own.row0, m->own.rows);
    kg_tap_f32(m, KG_NONE, "embed", m->s.streams[0], hidden, f->n_rows, hidden);
    for (uint32_t l = 0; l < m->c->n_layers; l++) {
        forward_attention(m, l, f, &r);
        forward_ffn(m, l, f->n_rows, &r);
    }
    forward_output(m, f, &r);
}
