#include "model/forward.h"

static struct kg_act_args act_of(const struct kg_model_config *c)
{
    return (struct kg_act_args){.act = c->act == KG_FFN_SITU ? KG_ACT_SITU : KG_ACT_SWIGLU,
                                .beta = c->act_beta,
                                .linear_beta = c->act_linear_beta};
}

static void activate(struct kg_model *m, uint32_t rows, uint32_t inter)
{
    struct kg_act_args act = act_of(m->c);

    m->k->act(m->team, &act, m->s.ffn.gate, inter, m->s.ffn.gate, inter, m->s.ffn.up, inter, rows,
              inter);
}

void kg_forward_mlp(struct kg_model *m, uint32_t l, uint32_t rows, float *out)
{
    const struct kg_w_mlp *w = &m->layers[l].mlp;
    uint32_t hidden = m->c->hidden, inter = m->c->dense_inter;
    struct kg_product in[2] = {
        {&w->gate, m->s.normed, m->s.ffn.gate, hidden, inter, rows},
        {&w->up, m->s.normed, m->s.ffn.up, hidden, inter, rows},
    };
    struct kg_product down = {&w->down, m->s.ffn.gate, kg_model_partial(m, out),
                              inter,    hidden,        rows};

    m->k->product(m->team, in, 2);
    activate(m, rows, inter);
    kg_tap_f32(m, l, "mlp.act", m->s.ffn.gate, inter, rows, inter);
    m->k->product(m->team, &down, 1);
    kg_model_reduce_own(m, out, hidden, rows);
    kg_tap_f32(m, l, "mlp.out", out, hidden, rows, hidden);
}

/* Everything that reads the layer's input: router, latent, shared gate and up. */
static void project(struct kg_model *m, const struct kg_w_moe *w, uint32_t rows)
{
    const struct kg_model_config *c = m->c;
    const float *x = m->s.normed;
    struct kg_product in[4];
    uint32_t n = 0;

    in[n++] = (struct kg_product){&w->router, x, m->s.ffn.scores, c->hidden, c->n_experts, rows};
    if (c->latent != 0)
        in[n++] =
            (struct kg_product){&w->latent_down, x, m->s.ffn.latent, c->hidden, c->latent, rows};
    if (c->shared_inter != 0) {
        in[n++] = (struct kg_product){&w->shared.gate, x,   m->s.ffn.gate, c->hidden,
                                      c->shared_inter, rows};
        in[n++] =
            (struct kg_product){&w->shared.up, x, m->s.ffn.up, c->hidden, c->shared_inter, rows};
    }
    m->k->product(m->team, in, n);
}

/* Routed experts: picks and their weighted sum into `sum` (rows, expert width). */
static void route(struct kg_model *m, uint32_t l, uint32_t rows, float *sum)
{
    const struct kg_w_moe *w = &m->layers[l].moe;
    const struct kg_model_config *c = m->c;
    uint32_t width = kg_expert_width(c);
    struct kg_moe args = {.gate = w->gate,
                          .up = w->up,
                          .down = w->down,
                          .x = c->latent != 0 ? m->s.ffn.latent : m->s.normed,
                          .y = sum,
                          .x_stride = width,
                          .y_stride = width,
                          .ids = m->s.ffn.picks,
                          .weights = m->s.ffn.pick_w,
                          .rows = rows,
                          .top_k = c->top_k,
                          .n_experts = m->split.experts,
                          .first = m->split.expert_id0,
                          .n_routed = c->n_experts,
                          .act = act_of(c),
                          .scratch = m->s.ffn.moe,
                          .scratch_bytes = m->s.ffn.moe_bytes};

    m->k->route(m->team, m->s.ffn.picks, m->s.ffn.pick_w, m->s.ffn.scores, c->n_experts, w->bias,
                rows, c->n_experts, c->top_k, c->routed_scale);
    m->k->moe(m->team, &args);
    kg_tap_f32(m, l, "moe.logits", m->s.ffn.scores, c->n_experts, rows, c->n_experts);
    if (m->tap.fn != NULL)
        m->tap.fn(m->tap.ctx, l, "moe.picks", KG_U32, m->s.ffn.picks, c->top_k, rows, c->top_k);
    kg_tap_f32(m, l, "moe.weights", m->s.ffn.pick_w, c->top_k, rows, c->top_k);
    kg_tap_f32(m, l, "moe.latent", args.x, width, rows, width);
    kg_tap_f32(m, l, "moe.sum", sum, width, rows, width);
}

/* The latent sum back to the hidden width; of several ranks, each its part of the latent. */
static void ascend(struct kg_model *m, uint32_t l, uint32_t rows, float *out)
{
    const struct kg_w_moe *w = &m->layers[l].moe;
    uint32_t hidden = m->c->hidden, latent = m->c->latent;
    float *sum = m->s.ffn.sum;
    struct kg_product up = {&w->latent_up, sum + m->split.latent0, out, latent, hidden, rows};

    if (w->latent_norm != NULL) {
        m->k->rmsnorm(m->team, sum, latent, sum, latent, w->latent_norm, rows, latent,
                      m->c->rms_eps);
        kg_tap_f32(m, l, "moe.normed", sum, latent, rows, latent);
    }
    m->k->product(m->team, &up, 1);
    kg_tap_f32(m, l, "moe.up", out, hidden, rows, hidden);
}

void kg_forward_moe(struct kg_model *m, uint32_t l, uint32_t rows, float *out)
{
    const struct kg_w_moe *w = &m->layers[l].moe;
    const struct kg_model_config *c = m->c;
    uint32_t inter = c->shared_inter;
    float *shared = m->s.mixed; /* free since the norm */
    float *y = kg_model_partial(m, out);
    struct kg_product down = {&w->shared.down, m->s.ffn.gate, shared, inter, c->hidden, rows};

    project(m, w, rows);
    if (c->latent != 0) {
        route(m, l, rows, kg_model_partial(m, m->s.ffn.sum));
        kg_model_reduce(m, m->s.ffn.sum, c->latent, rows); /* a norm may follow: it needs all */
        ascend(m, l, rows, y);
    } else {
        route(m, l, rows, y);
    }
    if (inter != 0) {
        activate(m, rows, inter);
        kg_tap_f32(m, l, "moe.shared.act", m->s.ffn.gate, inter, rows, inter);
        m->k->product(m->team, &down, 1);
        kg_tap_f32(m, l, "moe.shared.out", shared, c->hidden, rows, c->hidden);
        m->k->add(m->team, y, c->hidden, y, c->hidden, shared, c->hidden, rows, c->hidden);
    }
    kg_model_reduce_own(m, out, c->hidden, rows);
    kg_tap_f32(m, l, "moe.out", out, c->hidden, rows, c->hidden);
}
