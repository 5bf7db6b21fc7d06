/* Who holds what of a model that several ranks share. */
#include "model/model.h"

/* Ranks that share one thing. */
struct share {
    const struct kg_deal *deal;
    uint32_t rank, world; /* of those that share it */
};

static uint32_t per_rank(uint32_t n, uint32_t world)
{
    return n / world + (n % world != 0);
}

/* A block: `per` each but for the last ranks. One that has none begins at n. */
static int block(const char *what, uint32_t n, uint32_t per, const struct share *s, uint32_t *first,
                 uint32_t *count, struct kg_error *err)
{
    const struct kg_deal *d = s->deal;
    char ep[32] = "";

    *first = 0;
    *count = n;
    if (n == 0 || s->world == 1)
        return KG_OK;
    if (d->ep > 1)
        (void)snprintf(ep, sizeof(ep), ", ep = %u", d->ep);
    if ((uint64_t)per * (s->world - 1) >= n && !d->allow_idle)
        return kg_fail(err, KG_ECONFIG,
                       "[parallel] tp = %u%s: %s %u in blocks of %u leaves rank %u without work; "
                       "allow_idle_rank = yes lets it be",
                       d->world, ep, what, n, per, d->world - 1);
    *first = (uint64_t)per * s->rank < n ? per * s->rank : n;
    *count = n - *first < per ? n - *first : per;
    return KG_OK;
}

/* Inner widths: blocks of 32 elements, which a scale of MXFP4 covers. A rank that has none holds
 * the smallest block there is, of zeros: the pass is the same everywhere. */
static int inner(const char *what, const struct share *s, uint32_t *n, uint32_t *first,
                 struct kg_error *err)
{
    uint32_t per = (per_rank(*n, s->world) + 31) / 32 * 32, all = *n;
    int rc = block(what, all, per, s, first, n, err);

    if (rc == KG_OK && all != 0 && *n == 0)
        *n = all < 32 ? all : 32;
    return rc;
}

/* Heads: every rank has as many, so that states are of one size; those there are not are zero. */
static int heads(const char *what, const struct share *s, uint32_t *n, uint32_t *first,
                 struct kg_error *err)
{
    uint32_t per = per_rank(*n, s->world), real;
    int rc = block(what, *n, per, s, first, &real, err);

    if (rc == KG_OK)
        *n = per;
    return rc;
}

/* Whole experts in ep blocks; the ranks of a block share the width of each of its experts. */
static int experts(const struct kg_model_config *c, const struct kg_deal *d, struct kg_split *s,
                   uint32_t *width, struct kg_error *err)
{
    uint32_t group = d->world / d->ep;
    const struct share blocks = {d, d->rank / group, d->ep}, in_block = {d, d->rank % group, group};

    if (d->ep > 1 && c->n_experts == 0)
        return kg_fail(err, KG_ECONFIG, "[parallel] ep = %u: the model has no experts", d->ep);
    int rc = block("experts", c->n_experts, per_rank(c->n_experts, d->ep), &blocks, &s->expert_id0,
                   &s->experts, err);
    if (rc == KG_OK)
        rc = inner("moe_intermediate_size", &in_block, width, &s->expert0, err);
    if (rc == KG_OK && c->n_experts != 0 && s->experts == 0)
        s->experts = 1; /* of zeros, with an id that no router picks */
    return rc;
}

/* Columns of the projection back; a rank that has none reads the first ones, with zeros. */
static int latent(const struct kg_model_config *c, const struct share *s, struct kg_split *split,
                  struct kg_error *err)
{
    split->latent = c->latent;
    int rc = inner("the latent of the experts", s, &split->latent, &split->latent0, err);
    split->latent_idle = rc == KG_OK && c->latent != 0 && split->latent0 == c->latent;
    if (split->latent_idle)
        split->latent0 = 0;
    return rc;
}

int kg_model_split(const struct kg_model_config *config, const struct kg_deal *given,
                   struct kg_split *split, struct kg_model_config *local, struct kg_error *err)
{
    struct kg_deal d = *given;
    struct kg_model_config l = *config;
    uint32_t real; /* rows that are not padding; ranks have as many each, as they are gathered */

    d.world += d.world == 0;
    d.ep += d.ep == 0;
    if (d.world % d.ep != 0)
        return kg_fail(err, KG_ECONFIG, "[parallel] ep = %u does not divide tp = %u", d.ep,
                       d.world);
    if (config->n_experts != 0 && d.ep > config->n_experts) /* never better than fewer blocks */
        return kg_fail(err, KG_ECONFIG,
                       "[parallel] ep = %u: the model has %u experts, each block needs one", d.ep,
                       config->n_experts);
    const struct share s = {&d, d.rank, d.world};
    struct kg_split r = {.rank = d.rank, .world = d.world, .ep = d.ep};
    int rc = heads("KDA heads", &s, &l.kda_heads, &r.kda0, err);
    if (rc == KG_OK)
        rc = heads("MLA heads", &s, &l.mla_heads, &r.mla0, err);
    if (rc == KG_OK)
        rc = inner("intermediate_size", &s, &l.dense_inter, &r.dense0, err);
    if (rc == KG_OK)
        rc = inner("the width of the shared experts", &s, &l.shared_inter, &r.shared0, err);
    if (rc == KG_OK)
        rc = experts(config, &d, &r, &l.expert_inter, err);
    if (rc == KG_OK)
        rc = latent(config, &s, &r, err);
    r.vocab = per_rank(config->vocab, d.world);
    if (rc == KG_OK)
        rc = block("vocab_size", config->vocab, r.vocab, &s, &r.vocab0, &real, err);
    if (rc != KG_OK)
        return rc;
    *split = r;
    *local = l;
    return KG_OK;
}
