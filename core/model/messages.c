/* What a pass sends to the other ranks: the calls of parallel.c, counted. */
#include "model/forward.h"

struct list {
    struct kg_message *m; /* [n] */
    uint32_t n, have, ranks;
};

static void add(struct list *l, const char *what, uint32_t op, uint64_t count, uint32_t times)
{
    if (times == 0 || count == 0)
        return;
    if (l->have < l->n)
        l->m[l->have] = (struct kg_message){.what = what,
                                            .op = op,
                                            .dtype = KG_F32,
                                            .count = count,
                                            .times = times,
                                            .ranks = l->ranks};
    l->have++;
}

uint32_t kg_model_messages(const struct kg_model *m, uint32_t rows, uint32_t samples,
                           struct kg_message *messages, uint32_t n)
{
    const struct kg_model_config *c = m->c;
    struct list l = {messages, n, 0, m->split.world};
    uint32_t moe = 0;

    if (m->comm_ops == NULL)
        return 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        moe += c->layer_moe[i];
    /* behind attention and behind the feed-forward block */
    if (m->gathered != NULL && rows >= m->sp_rows && rows >= l.ranks) {
        uint64_t share = (uint64_t)((rows + l.ranks - 1) / l.ranks) * c->hidden;
        add(&l, "hidden", KG_COMM_REDUCE_SCATTER, share, 2 * c->n_layers);
        add(&l, "hidden", KG_COMM_ALL_GATHER, share, 2 * c->n_layers);
        add(&l, "final", KG_COMM_ALL_GATHER, (uint64_t)samples * c->hidden, 1); /* at most */
    } else {
        add(&l, "hidden", KG_COMM_ALL_REDUCE, (uint64_t)rows * c->hidden, 2 * c->n_layers);
    }
    if (c->latent != 0)
        add(&l, "latent", KG_COMM_ALL_REDUCE, (uint64_t)rows * c->latent, moe);
    uint32_t most = KG_VOCAB_FLOATS / m->split.vocab; /* rows a gather takes at once */
    add(&l, "logits", KG_COMM_ALL_GATHER, (uint64_t)most * m->split.vocab, samples / most);
    add(&l, "logits", KG_COMM_ALL_GATHER, (uint64_t)(samples % most) * m->split.vocab, 1);
    return l.have;
}
