#include "cpu.h"

#include <string.h>

/*
 * The drafter's records of committed rows. Those of a step with many rows are written at once. A
 * step of few rows would stream the weights of three products through the caches for them alone, so
 * their features wait here, until there are enough or somebody might look: the drafter itself, a
 * copy or reading of units, the end of a sequence. Bits do not depend on when a record is written.
 */

/* Rows that wait at most: as many as share a pass over the weights. The drafter's lists hold
 * max_seqs * block sequences. */
static uint32_t most_kept(const struct kg_exec *e)
{
    uint64_t n = (uint64_t)e->limits.max_seqs * e->draft.ckpt->config.block;

    n = n < e->limits.max_rows ? n : e->limits.max_rows;
    return n < CPU_KEPT ? (uint32_t)n : CPU_KEPT;
}

static size_t width_of(const struct kg_exec *e)
{
    return (size_t)e->draft.ckpt->config.n_taps * e->draft.ckpt->config.target_hidden;
}

int cpu_inject_open(struct kg_exec *e, struct kg_error *err)
{
    e->kept.bytes = most_kept(e) * width_of(e) * sizeof(*e->kept.features);
    e->kept.features = e->host->alloc(e->host->ctx, e->kept.bytes, 64);
    if (e->kept.features == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for %zu bytes of features", e->kept.bytes);
    e->kept.n = 0;
    return KG_OK;
}

void cpu_inject_close(struct kg_exec *e)
{
    e->host->free(e->host->ctx, e->kept.features, e->kept.bytes);
    e->kept.features = NULL;
    e->kept.n = 0;
}

void cpu_inject_settle(struct kg_exec *e)
{
    static const uint32_t ones[CPU_KEPT] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct kg_forward_seq seqs[CPU_KEPT];
    uint32_t n = e->kept.n;

    if (n == 0)
        return;
    for (uint32_t i = 0; i < n; i++)
        seqs[i] = (struct kg_forward_seq){.row0 = i,
                                          .n_rows = 1,
                                          .past = e->kept.at[i].position,
                                          .pages = e->slots.slots[e->kept.at[i].slot].pages};
    e->kept.n = 0;
    kg_drafter_inject(e->draft.drafter, &e->units, e->kept.features, seqs, ones, n);
}

void cpu_inject(struct kg_exec *e, const struct kg_batch *batch, const struct kg_forward_seq *seqs,
                const uint32_t *n_rows)
{
    size_t width = width_of(e);
    float *features = kg_model_features(e->model);
    uint32_t n = 0;

    for (uint32_t i = 0; i < batch->n_seqs; i++)
        n += n_rows[i];
    if (n > most_kept(e) / 2) {
        kg_drafter_inject(e->draft.drafter, &e->units, features, seqs, n_rows, batch->n_seqs);
        return;
    }
    if (e->kept.n + n > most_kept(e))
        cpu_inject_settle(e);
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        for (uint32_t j = 0; j < n_rows[i]; j++, e->kept.n++) {
            memcpy(e->kept.features + e->kept.n * width, features + (seqs[i].row0 + j) * width,
                   width * sizeof(*features));
            e->kept.at[e->kept.n].slot = batch->seqs[i].slot;
            e->kept.at[e->kept.n].position = seqs[i].past + j;
        }
    }
}
