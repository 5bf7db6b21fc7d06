#include "confidence.h"

struct price price_of(const struct kg_spec_view *v, uint32_t n_drafting, uint32_t n_tokens,
                      uint32_t given)
{
    struct price p = {.view = v, .given = given};

    for (uint32_t i = 0; i < v->n_seqs; i++) {
        p.context += v->seqs[i].context;
    }
    if (n_drafting > 0 && KG_HAS(v->cost, struct kg_cost, draft_ns)) {
        uint64_t context = p.context * n_drafting / v->n_seqs;
        p.draft_ns = (double)v->cost->draft_ns(v->cost->ctx, n_drafting, n_tokens, context);
    }
    return p;
}

static double step_ns(const struct price *p, uint32_t rows)
{
    const struct kg_spec_view *v = p->view;
    uint64_t ns = v->cost->step_ns(v->cost->ctx, v->n_seqs, v->n_seqs + rows, p->context);

    return (double)(ns > 0 ? ns : 1);
}

double price_ns(void *price, uint32_t rows)
{
    const struct price *p = price;

    return p->draft_ns + step_ns(p, p->view->other_rows + p->given + rows);
}

double price_plain_ns(const struct price *p)
{
    return step_ns(p, 0);
}
