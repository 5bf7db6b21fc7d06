/* What the ranks it stands for would send in a step, and how long that is reckoned to take. Sums
 * are of 16-bit values, as engines on GPUs send them. */
#include "sim.h"

struct list {
    const struct kg_exec *x;
    struct kg_message *m; /* [n] */
    uint32_t n, have;
};

static void add(struct list *l, const char *what, uint32_t op, double count, double times)
{
    const struct sim_model *model = l->x->timing.model;

    if (!(times >= 1) || !(count >= 1))
        return;
    if (l->have < l->n) {
        struct kg_message *m = &l->m[l->have];
        *m = (struct kg_message){.what = what,
                                 .op = op,
                                 .dtype = KG_BF16,
                                 .count = (uint64_t)count,
                                 .times = (uint32_t)times,
                                 .ranks = l->x->conf.tp};
        if (model != NULL && op == KG_COMM_ALL_REDUCE) {
            m->us = sim_model_reduce(model, 2 * count);
            m->how = model->stack.allreduce;
        }
    }
    l->have++;
}

uint32_t sim_messages(const struct kg_exec *x, uint32_t rows, uint32_t samples,
                      struct kg_message *messages, uint32_t n)
{
    const struct sim_shape *s = sim_shape_find(x->conf.model);
    struct list l = {x, messages, n, 0};

    if (s == NULL || x->conf.tp < 2)
        return 0;
    add(&l, "hidden", KG_COMM_ALL_REDUCE, rows * s->hidden, sim_model_wide_sums(s));
    if (s->latent > 0)
        add(&l, "latent", KG_COMM_ALL_REDUCE, rows * s->latent, s->moe_layers);
    add(&l, "logits", KG_COMM_ALL_GATHER, samples * (s->vocab / x->conf.tp), 1);
    return l.have;
}
