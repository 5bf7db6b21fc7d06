#include "model/run_slots.h"

#include <string.h>

static void *take(struct kg_run_slots *s, size_t n, size_t bytes)
{
    void *p = s->host->alloc(s->host->ctx, n * bytes, 64);

    if (p != NULL)
        memset(p, 0, n * bytes);
    return p;
}

/* Bytes of a sequence's pages and history. */
static uint64_t slot_bytes(const struct kg_run_slots *s)
{
    uint64_t n = (uint64_t)s->max_pages + s->limits.spare_pages + s->limits.max_context + 1;

    return n * sizeof(uint32_t);
}

int kg_run_slots_open(struct kg_run_slots *s, const struct kg_host *host,
                      const struct kg_run_limits *limits, const struct kg_pool_layout *layout,
                      struct kg_error *err)
{
    uint64_t per_slot;

    s->host = host;
    s->limits = *limits;
    s->max_pages = (limits->max_context + layout->page_tokens - 1) / layout->page_tokens;
    per_slot = slot_bytes(s);
    s->slots = take(s, limits->max_seqs, sizeof(*s->slots));
    s->used = take(s, limits->max_seqs, sizeof(*s->used));
    if (s->slots == NULL || s->used == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for %u sequences", limits->max_seqs);
    for (uint32_t kind = 0; kind < KG_N_KINDS; kind++) {
        s->n_units[kind] = layout->max_units[kind];
        s->written[kind] = take(s, s->n_units[kind], sizeof(uint64_t));
        if (s->written[kind] == NULL)
            return kg_fail(err, KG_ENOMEM, "no memory for marks of %u units", s->n_units[kind]);
    }
    for (uint32_t i = 0; i < limits->max_seqs; i++) {
        /* Not cleared: long contexts are rare, untouched memory costs nothing. */
        s->slots[i].pages = host->alloc(host->ctx, per_slot, 64);
        if (s->slots[i].pages == NULL)
            return kg_fail(err, KG_ENOMEM,
                           "no memory for the token lists of %u sequences, %llu bytes each",
                           limits->max_seqs, (unsigned long long)per_slot);
        s->slots[i].history = s->slots[i].pages + s->max_pages + limits->spare_pages;
    }
    return KG_OK;
}

void kg_run_slots_close(struct kg_run_slots *s)
{
    const struct kg_host *host = s->host;
    uint64_t per_slot = slot_bytes(s);

    if (host == NULL)
        return;
    for (uint32_t i = 0; s->slots != NULL && i < s->limits.max_seqs; i++)
        host->free(host->ctx, s->slots[i].pages, per_slot);
    host->free(host->ctx, s->slots, s->limits.max_seqs * sizeof(*s->slots));
    host->free(host->ctx, s->used, s->limits.max_seqs * sizeof(*s->used));
    for (uint32_t kind = 0; kind < KG_N_KINDS; kind++)
        host->free(host->ctx, s->written[kind], s->n_units[kind] * sizeof(uint64_t));
    memset(s, 0, sizeof(*s));
}

void kg_run_slot_begin(struct kg_run_slots *s, const struct kg_seq *seq)
{
    struct kg_run_slot *slot = &s->slots[seq->slot];

    if (seq->flags & KG_SEQ_RESET) {
        slot->live = 1;
        slot->n_pages = 0;
        slot->n_history = seq->n_history;
        slot->output_start = seq->output_start;
        slot->sampling = *seq->sampling;
        memcpy(slot->history, seq->history, (size_t)seq->n_history * sizeof(uint32_t));
    }
    slot->past = seq->past;
    slot->state = seq->state;
    slot->n_drafted = 0;
    if (seq->n_pages > 0)
        memcpy(slot->pages + slot->n_pages, seq->pages, (size_t)seq->n_pages * sizeof(uint32_t));
    slot->n_pages += seq->n_pages;
    /* Rows beyond what is known: the caller continues with tokens of its own choice. Drafts are
     * not known before they are accepted. */
    for (uint32_t j = 0; j < seq->n_rows - seq->n_draft; j++) {
        if (seq->past + j >= slot->n_history)
            slot->history[slot->n_history++] = seq->tokens[j];
    }
}

void kg_run_slot_emit(struct kg_run_slots *s, uint32_t slot, uint32_t token)
{
    struct kg_run_slot *p = &s->slots[slot];

    p->history[p->n_history++] = token;
}

void kg_run_slot_drop(struct kg_run_slots *s, uint32_t slot)
{
    if (slot < s->limits.max_seqs)
        s->slots[slot].live = s->slots[slot].n_drafted = 0;
}
