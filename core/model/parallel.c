/* One model on several ranks: where they meet. */
#include "model/forward.h"

#define VOCAB_BYTES ((uint64_t)KG_VOCAB_FLOATS * sizeof(float))
#define PLACES 4        /* at most so many pieces of symmetric memory */
#define PLACE_ALIGN 256 /* no plugin rounds up to more */

/* Of what is summed over ranks. */
static uint64_t part_bytes(const struct kg_model *m)
{
    uint64_t width = m->c->latent > m->c->hidden ? m->c->latent : m->c->hidden;
    uint64_t rows = (uint64_t)m->max_rows + (m->sp_rows > 0 ? m->split.world : 0);

    return rows * width * sizeof(float);
}

uint64_t kg_model_symm_bytes(const struct kg_model *m)
{
    return part_bytes(m) * (1 + (m->sp_rows > 0)) + VOCAB_BYTES * (1 + (uint64_t)m->split.world) +
           (uint64_t)PLACES * PLACE_ALIGN;
}

int kg_model_join(struct kg_model *m, const struct kg_model_args *args, struct kg_error *err)
{
    uint64_t part = part_bytes(m), vocab = VOCAB_BYTES;
    void *p[PLACES] = {NULL, NULL, NULL, NULL};

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
    if (rc == KG_OK && m->sp_rows > 0)
        rc = m->comm_ops->alloc_symm(m->comm, part, &p[3]);
    if (rc != KG_OK)
        return kg_fail(err, rc, "[parallel] symm_bytes: %llu bytes are needed to sum %u rows",
                       (unsigned long long)kg_model_symm_bytes(m), args->max_rows);
    m->part = p[0];
    m->vocab = p[1];
    m->vocabs = p[2];
    m->gathered = p[3];
    return KG_OK;
}

static void copy_rows(struct kg_model *m, float *to, size_t to_stride, const float *from,
                      size_t from_stride, uint32_t width, uint32_t rows)
{
    m->k->copy(m->team, to, to_stride * sizeof(*to), from, from_stride * sizeof(*from),
               width * sizeof(*to), rows);
}

typedef int collective(struct kg_comm *comm, const struct kg_coll *c);

/* On a device the call is queued behind what is queued already; what goes wrong then is told by
 * poll, which whoever waits for the device asks. */
static void meet(struct kg_model *m, collective *call, struct kg_coll *c)
{
    c->dtype = KG_F32;
    if (m->memory != NULL)
        c->stream = m->memory->guest(m->memory->ctx);
    if (m->lost == KG_OK && (m->memory == NULL || c->stream != NULL))
        m->lost = call(m->comm, c);
}

void kg_model_reduce(struct kg_model *m, float *out, uint32_t width, uint32_t rows)
{
    struct kg_coll c = {.count = (uint64_t)width * rows, .in = m->part, .out = m->part};

    if (m->comm_ops == NULL || m->lost != KG_OK)
        return;
    meet(m, m->comm_ops->all_reduce, &c);
    copy_rows(m, out, width, m->part, width, width, rows);
}

/* --- sequence-parallel passes ----------------------------------------------------------------- */

void kg_model_share_rows(struct kg_model *m, uint32_t rows)
{
    uint32_t world = m->split.world, share;

    m->own = (struct kg_own){.rows = rows, .share = rows};
    /* a tap sees all rows of everything */
    if (m->gathered == NULL || rows < m->sp_rows || rows < world || m->tap.fn != NULL)
        return;
    share = (rows + world - 1) / world;
    m->own.parallel = 1;
    m->own.share = share;
    m->own.row0 = share * m->split.rank < rows ? share * m->split.rank : rows;
    m->own.rows = rows - m->own.row0 < share ? rows - m->own.row0 : share;
}

void kg_model_reduce_own(struct kg_model *m, float *out, uint32_t width, uint32_t rows)
{
    const struct kg_own *own = &m->own;
    struct kg_coll c = {.count = (uint64_t)width * own->share,
                        .in = m->part, /* rows behind the last one are nobody's */
                        .out = m->gathered};

    if (!own->parallel) {
        kg_model_reduce(m, out, width, rows);
        return;
    }
    if (m->lost != KG_OK)
        return;
    meet(m, m->comm_ops->reduce_scatter, &c);
    copy_rows(m, out + (size_t)own->row0 * width, width, m->gathered, width, width, own->rows);
}

/* What lies in m->part, `rows` rows on each rank, to m->gathered. */
static void gather_part(struct kg_model *m, uint32_t rows)
{
    struct kg_coll c = {.count = (uint64_t)m->c->hidden * rows, .in = m->part, .out = m->gathered};

    meet(m, m->comm_ops->all_gather, &c);
}

void kg_model_gather_rows(struct kg_model *m, const float *x, float *y, size_t y_stride,
                          uint32_t rows)
{
    uint32_t width = m->c->hidden;

    if (!m->own.parallel)
        return;
    copy_rows(m, m->part, width, x + (size_t)m->own.row0 * width, width, width, m->own.rows);
    gather_part(m, m->own.share);
    copy_rows(m, y, y_stride, m->gathered, width, width, rows);
}

void kg_model_gather_out(struct kg_model *m, const struct kg_forward *f)
{
    uint32_t width = m->c->hidden, share = m->own.share, most = 0, mine = 0;

    if (!m->own.parallel)
        return;
    for (uint32_t p = 0; p < m->split.world; p++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < f->n_out; i++)
            n += f->out_rows[i] / share == p;
        most = n > most ? n : most;
    }
    for (uint32_t i = 0; i < f->n_out; i++) { /* rows of a pass are distinct: at most `share` */
        if (f->out_rows[i] / share == m->split.rank)
            copy_rows(m, m->part + (size_t)mine++ * width, width, m->s.hidden + (size_t)i * width,
                      width, width, 1);
    }
    if (most > 0)
        gather_part(m, most);
    for (uint32_t p = 0; p < m->split.world; p++) {
        const float *from = m->gathered + (size_t)p * most * width;
        for (uint32_t i = 0; i < f->n_out; i++) {
            if (f->out_rows[i] / share != p)
                continue;
            copy_rows(m, m->s.hidden + (size_t)i * width, width, from, width, width, 1);
            from += width;
        }
    }
}

/* --- logits ----------------------------------------------------------------------------------- */

/* Logits of `rows` rows, few enough for the symmetric memory. */
static void head_piece(struct kg_model *m, const float *hidden, float *out, uint32_t rows)
{
    const struct kg_split *s = &m->split;
    const struct kg_product head = {&m->lm_head, hidden, m->vocab, m->c->hidden, s->vocab, rows};
    struct kg_coll c = {.count = (uint64_t)s->vocab * rows, .in = m->vocab, .out = m->vocabs};

    m->k->product(m->team, &head, 1);
    meet(m, m->comm_ops->all_gather, &c);
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
