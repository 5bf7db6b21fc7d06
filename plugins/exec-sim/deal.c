/* How the shape it stands for would lie on its ranks, as far as the shape says: step times take
 * heads, widths and rows of the vocabulary to divide. It knows no weights. */
#include "sim.h"

#include <string.h>

static void add(struct kg_dealt *d, const char *what, double n, uint32_t ranks)
{
    struct kg_dealt_row *r = &d->rows[d->n_rows];
    uint64_t all = (uint64_t)n, each = (all + ranks - 1) / ranks;

    if (all == 0 || ranks < 2) {
        return;
    }
    *r = (struct kg_dealt_row){.what = what, .ranks = ranks, .n = all, .each = each};
    for (uint32_t i = 0; i < ranks; i++) {
        uint64_t first = each * i < all ? each * i : all, left = all - first;
        r->last = left < each ? left : each;
        r->idle += r->last == 0;
    }
    d->n_rows++;
}

int sim_dealt(const struct kg_exec *x, struct kg_dealt *dealt)
{
    const struct sim_shape *s = sim_shape_find(x->conf.model);
    const struct sim_conf *c = &x->conf;
    uint32_t tp = c->tp;

    if (dealt->size < sizeof(*dealt)) {
        return KG_EABI;
    }
    if (s == NULL || tp < 2) {
        return KG_ENOENT;
    }
    struct kg_dealt d = {.size = sizeof(d),
                         .ranks = tp,
                         .blocks = c->ep,
                         .state_bytes = c->n_state_parts * c->state_part_bytes};
    add(&d, "KDA heads", s->linear_heads, tp);
    add(&d, "MLA heads", s->mla_heads, tp);
    add(&d, "GQA heads", s->gqa_heads, tp);
    add(&d, "dense width", s->dense_inter, tp);
    add(&d, "shared experts' width", s->shared_inter, tp);
    add(&d, "experts", s->n_experts, c->ep);
    add(&d, "width of an expert", s->moe_inter, c->ep > 1 ? 1 : tp);
    add(&d, "vocabulary rows", s->vocab, tp);
    d.everywhere = s->latent > 0 ? "routers, the latent of attention, the latent of the experts "
                                   "and its projections"
                                 : "routers, the latent of attention";
    *dealt = d;
    return KG_OK;
}
