#include "model/forward.h"

/*
 * A verified row leaves the state alone. Replay keeps, per KDA layer, what the update of the row
 * was made of and applies the accepted rows later with the kernels of plain decoding; snapshots
 * keep the state itself. Records of a pass are dealt from row 0 on, so memory that no pass has
 * needed yet is never touched.
 */

struct kg_records kg_model_records(const struct kg_model *m, uint32_t part)
{
    size_t n = m->max_verify, width = kg_kda_width(m->c);
    float *at = (float *)(void *)m->rewind_mem + (size_t)part * n * 6 * width;

    return (struct kg_records){
        .raw = at, .k = at + 3 * n * width, .alpha = at + 4 * n * width, .u = at + 5 * n * width};
}

uint8_t *kg_model_snapshot(const struct kg_model *m, uint32_t part, uint32_t record)
{
    return m->rewind_mem + ((uint64_t)part * m->max_verify + record) * m->sizes.state_part_bytes;
}

void kg_model_deal_records(struct kg_model *m, const struct kg_forward *f)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n_seqs; i++) {
        m->s.records[i] = n;
        n += f->seqs[i].verify ? f->seqs[i].n_rows : 0;
    }
}

/* The committed rows of each sequence as a plain pass over records; returns how many there are. */
static uint32_t plan_commit(struct kg_model *m, const struct kg_forward *pass,
                            const uint32_t *n_rows)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < pass->n_seqs; i++) {
        struct kg_forward_seq *c = &m->s.commit[n];
        if (!pass->seqs[i].verify || n_rows[i] == 0)
            continue;
        *c = pass->seqs[i];
        c->verify = 0;
        c->row0 = m->s.records[i];
        c->n_rows = n_rows[i];
        while (c->n_orders > 0 && c->orders[c->n_orders - 1].position > c->past + c->n_rows)
            c->n_orders--;
        n++;
    }
    return n;
}

static void restore_kda(struct kg_model *m, uint32_t part, const struct kg_forward *f)
{
    for (uint32_t i = 0; i < f->n_seqs; i++) {
        const struct kg_forward_seq *c = &f->seqs[i];
        for (uint32_t j = 0; j < c->n_orders; j++)
            kg_model_copy(m, kg_model_state_part(m, f->units, c->orders[j].unit, part),
                          kg_model_snapshot(m, part, c->row0 + c->orders[j].position - c->past - 1),
                          m->sizes.state_part_bytes);
        kg_model_copy(m, kg_model_state_part(m, f->units, c->state, part),
                      kg_model_snapshot(m, part, c->row0 + c->n_rows - 1),
                      m->sizes.state_part_bytes);
    }
}

void kg_model_commit(struct kg_model *m, const struct kg_forward *pass, const uint32_t *n_rows)
{
    struct kg_forward f = {.units = pass->units, .seqs = m->s.commit};

    f.n_seqs = plan_commit(m, pass, n_rows);
    for (uint32_t l = 0; l < m->c->n_layers && f.n_seqs > 0; l++) {
        if (m->c->layer_kind[l] != KG_LAYER_KDA)
            continue;
        if (m->rewind == KG_REWIND_SNAPSHOT)
            restore_kda(m, m->layers[l].index, &f);
        else
            kg_replay_kda(m, l, &f);
    }
}
