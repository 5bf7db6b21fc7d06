/* One model on several ranks: where they meet. */
#include "model/forward.h"

int kg_model_join(struct kg_model *m, const struct kg_model_args *args, struct kg_error *err)
{
    uint64_t width = m->c->latent > m->c->hidden ? m->c->latent : m->c->hidden;
    uint64_t part = args->max_rows * width * sizeof(float);
    uint64_t vocab = KG_VOCAB_FLOATS * sizeof(float);
    void *p[3] = {NULL, NULL, NULL};

    if (args->comm == NULL)
        return KG_OK;
    m->comm_ops = args->comm_ops;
    m->comm = args->comm;
    if (m->split.vocab > KG_VOCAB_FLOATS)
        return kg_fail(err, KG_ECONFIG,
                       "[parallel] tp = %u: %u rows of lm_head for a rank, at most %u",
                       m->split.world, m->split.vocab, KG_VOCAB_FLOATS);
    int rc = m->comm_ops->alloc_symm(m->comm, part, &p[0]);
    if (rc == KG_OK)
        rc = m->comm_ops->alloc_symm(m->comm, vocab, &p[1]);
    if (rc == KG_OK)
        rc = m->comm_ops->alloc_symm(m->comm, vocab * m->split.world, &p[2]);
    if (rc != KG_OK)
        return kg_fail(err, rc, "[parallel] symm_bytes: %llu bytes are needed to sum %u rows",
                       (unsigned long long)(part + vocab * (1 + m->split.world) + 192),
                       args->max_rows);
    m->part = p[0];
    m->vocab = p[1];
    m->vocabs = p[2];
    return KG_OK;
}

void kg_model_reduce(struct kg_model *m, float *out, uint32_t width, uint32_t rows)
{
    const struct kg_coll c = {
        .dtype = KG_F32, .count = (uint64_t)width * rows, .in = m->part, .out = m->part};

    if (m->comm_ops == NULL || m->lost != KG_OK)
        return;
    m->lost = m->comm_ops->all_reduce(m->comm, &c);
    kg_model_copy(m, out, m->part, c.count * sizeof(float));
}

/* Logits of `rows` rows, few enough for the symmetric memory. */
static void head_piece(struct kg_model *m, const float *hidden, float *out, uint32_t rows)
{
    const struct kg_split *s = &m->split;
    const struct kg_product head = {&m->lm_head, hidden, m->vocab, m->c->hidden, s->vocab, rows};
    const struct kg_coll c = {
        .dtype = KG_F32, .count = (uint64_t)s->vocab * rows, .in = m->vocab, .out = m->vocabs};

    m->k->product(m->team, &head, 1);
    if (m->lost == KG_OK)
        m->lost = m->comm_ops->all_gather(m->comm, &c);
    for (uint32_t p = 0; p < s->world && m->lost == KG_OK; p++) {
        uint32_t first = p * s->vocab;
        if (first >= m->c->vocab)
            break; /* padding only from here on */
        uint32_t n = m->c->vocab - first < s->vocab ? m->c->vocab - first : s->vocab;
        m->k->copy(m->team, out + first, m->c->vocab * sizeof(float),
                   m->vocabs + (size_t)p * rows * s->vocab, s->vocab * sizeof(float),
                   n * sizeof(float), rows);
    }
}

void kg_model_head(struct kg_model *m, const float *hidden, float *out, uint32_t rows)
{
    const struct kg_product head = {&m->lm_head, hidden, out, m->c->hidden, m->c->vocab, rows};

    if (m->comm_ops == NULL) {
        m->k->product(m->team, &head, 1);
        return;
    }
    uint32_t most = KG_VOCAB_FLOATS / m->split.vocab;
    for (uint32_t at = 0, n; at < rows; at += n) {
        n = rows - at < most ? rows - at : most;
        head_piece(m, hidden + (size_t)at * m->c->hidden, out + (size_t)at * m->c->vocab, n);
    }
}

int kg_model_lost(const struct kg_model *model)
{
    return model->lost;
}

const struct kg_model_config *kg_model_local(const struct kg_model *model)
{
    return model->c;
}
