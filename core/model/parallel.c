/* One model on several ranks: who holds what, and where the ranks meet. */
#include "model/forward.h"

#include <string.h>

static uint32_t share(uint32_t n, uint32_t world)
{
    return n / world + (n % world != 0);
}

/* A block of an inner width: `per` each but for the last ranks. */
static int block(const char *what, uint32_t n, uint32_t per, const struct kg_split *s,
                 uint32_t *first, uint32_t *count, struct kg_error *err)
{
    *first = 0;
    *count = n;
    if (n == 0 || s->world == 1)
        return KG_OK;
    if ((uint64_t)per * (s->world - 1) >= n)
        return kg_fail(err, KG_ECONFIG,
                       "[parallel] tp = %u: %s %u in blocks of %u leaves rank %u without work",
                       s->world, what, n, per, s->world - 1);
    *first = per * s->rank;
    *count = n - *first < per ? n - *first : per;
    return KG_OK;
}

/* Inner widths: blocks of 32 elements, which a scale of MXFP4 covers. */
static int inner(const char *what, const struct kg_split *s, uint32_t *n, uint32_t *first,
                 struct kg_error *err)
{
    uint32_t per = share(*n, s->world);

    return block(what, *n, (per + 31) / 32 * 32, s, first, n, err);
}

/* Heads: every rank has as many, so that states are of one size; those there are not are zero. */
static int heads(const char *what, const struct kg_split *s, uint32_t *n, uint32_t *first,
                 struct kg_error *err)
{
    uint32_t per = share(*n, s->world), real;
    int rc = block(what, *n, per, s, first, &real, err);

    if (rc == KG_OK)
        *n = per;
    return rc;
}

int kg_model_split(const struct kg_model_config *config, uint32_t rank, uint32_t world,
                   struct kg_split *split, struct kg_model_config *local, struct kg_error *err)
{
    struct kg_split s = {.rank = rank, .world = world};
    struct kg_model_config l = *config;

    int rc = heads("KDA heads", &s, &l.kda_heads, &s.kda0, err);
    if (rc == KG_OK)
        rc = heads("MLA heads", &s, &l.mla_heads, &s.mla0, err);
    if (rc == KG_OK)
        rc = inner("intermediate_size", &s, &l.dense_inter, &s.dense0, err);
    if (rc == KG_OK)
        rc = inner("the width of the shared experts", &s, &l.shared_inter, &s.shared0, err);
    if (rc == KG_OK)
        rc = inner("moe_intermediate_size", &s, &l.expert_inter, &s.expert0, err);
    s.latent = config->latent;
    if (rc == KG_OK)
        rc = inner("the latent of the experts", &s, &s.latent, &s.latent0, err);
    s.vocab = share(config->vocab, world);
    uint32_t real; /* rows that are not padding; ranks have as many each, as they are gathered */
    if (rc == KG_OK)
        rc = block("vocab_size", config->vocab, s.vocab, &s, &s.vocab0, &real, err);
    if (rc != KG_OK)
        return rc;
    *split = s;
    *local = l;
    return KG_OK;
}

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
    memcpy(out, m->part, c.count * sizeof(float));
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
        uint32_t n = m->c->vocab - first < s->vocab ? m->c->vocab - first : s->vocab;
        for (uint32_t r = 0; r < rows; r++)
            memcpy(out + (size_t)r * m->c->vocab + first,
                   m->vocabs + ((size_t)p * rows + r) * s->vocab, n * sizeof(float));
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
