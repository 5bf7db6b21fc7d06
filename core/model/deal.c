/* What each rank of a group holds: the split of all ranks, counted, and their packing, planned. */
#include "model/pack.h"

#include <string.h>

static const char everywhere[] =
    "pages (the MLA latent), embedding, norms, routers, low-rank factors, the projection into the "
    "latent of the experts, drafter";

/* One rank's share of one thing. */
struct share {
    const char *what;
    uint32_t n;              /* in the model; 0: it has none */
    uint32_t first, held;    /* of this rank, padding included; first n: all of it is padding */
    uint32_t ranks, repeats; /* that share it; ranks that hold the same share */
};

static void add_share(struct kg_dealt *d, uint32_t *at, uint32_t rank, const struct share *s)
{
    uint32_t left = s->n - s->first, real = left < s->held ? left : s->held;
    struct kg_dealt_row *r = &d->rows[*at];

    if (s->n == 0 || s->ranks == 1)
        return;
    (*at)++;
    if (rank == 0)
        *r = (struct kg_dealt_row){.what = s->what, .ranks = s->ranks, .n = s->n, .each = real};
    r->last = real;
    r->last_zero = s->held - real;
    if (rank % s->repeats != 0)
        return;
    r->idle += real == 0;
    r->all_zero += s->held - real;
}

/* Adds the rank of `s`; l: its sizes, c: the model's. */
static void add_rank(struct kg_dealt *d, const struct kg_model_config *c, const struct kg_split *s,
                     const struct kg_model_config *l)
{
    uint32_t w = s->world, group = w / s->ep, no_latent = s->latent_idle;
    const struct share shares[] = {
        {"KDA heads", c->kda_heads, s->kda0, l->kda_heads, w, 1},
        {"MLA heads", c->mla_heads, s->mla0, l->mla_heads, w, 1},
        {"dense width", c->dense_inter, s->dense0, l->dense_inter, w, 1},
        {"shared experts' width", c->shared_inter, s->shared0, l->shared_inter, w, 1},
        {"experts", c->n_experts, s->expert_id0, s->experts, s->ep, group},
        {"width of an expert", c->expert_inter, s->expert0, l->expert_inter, group, 1},
        {"latent columns back", c->latent, no_latent ? c->latent : s->latent0, s->latent, w, 1},
        {"vocabulary rows", c->vocab, s->vocab0, s->vocab, w, 1},
    };
    uint32_t at = 0;

    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
        if (i == 5 && s->rank >= group) { /* each block deals its experts alike: count the first */
            at += c->expert_inter != 0 && group > 1;
            continue;
        }
        add_share(d, &at, s->rank, &shares[i]);
    }
    d->n_rows = at;
}

/* Bytes a head has in the states of all KDA layers. */
static uint64_t head_bytes(const struct kg_model *m)
{
    const struct kg_model_config *c = m->c;
    uint64_t conv = (uint64_t)3 * 3 * c->kda_dim * kg_dtype_bytes(m->k->state_dtype);

    return ((uint64_t)c->kda_dim * c->kda_dim * sizeof(float) + conv) * c->n_kda_layers;
}

/* Weights of rank m->split.rank of the copy m. */
static int add_weights(struct kg_dealt *d, struct kg_model *m, const struct kg_ckpt *ckpt)
{
    uint64_t bytes, zero;

    memset(m->layers, 0, m->c->n_layers * sizeof(*m->layers));
    int rc = kg_model_pack_plan(m, ckpt, &bytes, &zero);
    if (rc != KG_OK)
        return rc;
    if (m->split.rank == 0)
        d->first_weights = bytes;
    d->last_weights = bytes;
    d->last_weights_zero = zero;
    d->all_weights_zero += zero;
    return KG_OK;
}

int kg_model_dealt(const struct kg_model *model, const struct kg_ckpt *ckpt, struct kg_dealt *dealt)
{
    struct kg_model m = *model; /* becomes one rank after the other; owns its layers only */
    struct kg_dealt d = {.size = sizeof(d),
                         .ranks = m.split.world,
                         .blocks = m.split.ep,
                         .symm_bytes = kg_model_symm_bytes(model),
                         .everywhere = everywhere};
    uint64_t bytes = m.c->n_layers * sizeof(*m.layers);
    struct kg_error err = {0};
    int rc = KG_OK;

    if (dealt->size < sizeof(d))
        return KG_EABI;
    if (m.split.world < 2)
        return KG_ENOENT;
    m.layers = kg_model_alloc(m.host, bytes);
    if (m.layers == NULL)
        return KG_ENOMEM;
    m.c = &m.local;
    for (uint32_t r = 0; r < d.ranks && rc == KG_OK; r++) {
        const struct kg_deal deal = {r, d.ranks, d.blocks, 1}; /* open has refused what it must */
        rc = kg_model_split(&ckpt->config, &deal, &m.split, &m.local, &err);
        if (rc == KG_OK) {
            add_rank(&d, &ckpt->config, &m.split, &m.local);
            rc = add_weights(&d, &m, ckpt);
        }
    }
    kg_model_free(m.host, m.layers, bytes);
    if (rc != KG_OK)
        return rc;
    d.state_bytes = m.sizes.state_part_bytes * m.c->n_kda_layers;
    d.last_state_zero = d.rows[0].last_zero * head_bytes(model);
    d.all_state_zero = d.rows[0].all_zero * head_bytes(model);
    *dealt = d;
    return KG_OK;
}
