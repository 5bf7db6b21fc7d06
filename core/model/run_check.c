#include "model/run_slots.h"

#include <math.h>

/* A refusal that names the sequence by its place in the batch, its slot and request. */
#define REFUSE(err, i, seq, fmt, ...)                                               \
    kg_fail(err, KG_EINVAL, "seq %u (slot %u, request %llu): " fmt, i, (seq)->slot, \
            (unsigned long long)(seq)->id, __VA_ARGS__)

static int in_range(float v, float lo, float hi)
{
    return v >= lo && v <= hi; /* false for NaN */
}

static int check_sampling(uint32_t i, const struct kg_seq *seq, uint32_t vocab,
                          struct kg_error *err)
{
    const struct kg_sampling *p = seq->sampling;

    if (p == NULL)
        return REFUSE(err, i, seq, "%s", "RESET without sampling");
    if (!in_range(p->temperature, 0.0f, 100.0f))
        return REFUSE(err, i, seq, "temperature %g, wanted 0..100", (double)p->temperature);
    if (!in_range(p->top_p, 0.0f, 1.0f))
        return REFUSE(err, i, seq, "top_p %g, wanted 0..1", (double)p->top_p);
    if (!in_range(p->min_p, 0.0f, 1.0f))
        return REFUSE(err, i, seq, "min_p %g, wanted 0..1", (double)p->min_p);
    if (!in_range(p->repetition_penalty, 0.0f, 1e6f))
        return REFUSE(err, i, seq, "repetition_penalty %g, wanted above 0",
                      (double)p->repetition_penalty);
    if (!in_range(p->frequency_penalty, -2.0f, 2.0f))
        return REFUSE(err, i, seq, "frequency_penalty %g, wanted -2..2",
                      (double)p->frequency_penalty);
    if (!in_range(p->presence_penalty, -2.0f, 2.0f))
        return REFUSE(err, i, seq, "presence_penalty %g, wanted -2..2",
                      (double)p->presence_penalty);
    if (p->n_logprobs > KG_MAX_LOGPROBS || p->n_logprobs > vocab)
        return REFUSE(err, i, seq, "n_logprobs %u, most is %u", p->n_logprobs, KG_MAX_LOGPROBS);
    if (p->n_stop_ids > KG_MAX_STOP_IDS)
        return REFUSE(err, i, seq, "n_stop_ids %u, most is %u", p->n_stop_ids, KG_MAX_STOP_IDS);
    return KG_OK;
}

static int check_reset(const struct kg_run_slots *s, uint32_t i, const struct kg_seq *seq,
                       struct kg_error *err)
{
    const struct kg_run_limits *l = &s->limits;
    uint32_t known = seq->past + (seq->n_rows - seq->n_draft);

    if (seq->history == NULL || seq->n_history < known)
        return REFUSE(err, i, seq, "n_history %u is less than past %u and the %u rows of the step",
                      seq->history == NULL ? 0 : seq->n_history, seq->past,
                      seq->n_rows - seq->n_draft);
    if (seq->n_history > l->max_context)
        return REFUSE(err, i, seq, "n_history %u is over the context of %u tokens", seq->n_history,
                      l->max_context);
    for (uint32_t j = 0; j < seq->n_history; j++) {
        if (seq->history[j] >= l->vocab)
            return REFUSE(err, i, seq, "history[%u] is %u, the vocabulary has %u", j,
                          seq->history[j], l->vocab);
    }
    if (seq->output_start > seq->n_history)
        return REFUSE(err, i, seq, "output_start %u is past the history of %u tokens",
                      seq->output_start, seq->n_history);
    if (seq->past == 0 && (seq->state_src == KG_STATE_KEEP || seq->state_src == seq->state))
        return REFUSE(err, i, seq, "%s", "a sequence that begins cannot keep a state");
    return check_sampling(i, seq, l->vocab, err);
}

/* Slot, epoch of the batch, position and tokens. */
static int check_identity(struct kg_run_slots *s, uint32_t i, const struct kg_seq *seq,
                          struct kg_error *err)
{
    const struct kg_run_limits *l = &s->limits;
    const struct kg_run_slot *slot;
    uint32_t own; /* drafts of the backend's drafter */

    if (seq->slot >= l->max_seqs)
        return kg_fail(err, KG_EINVAL, "seq %u: slot %u, there are %u", i, seq->slot, l->max_seqs);
    if (s->used[seq->slot] == s->check)
        return REFUSE(err, i, seq, "%s", "the slot is in the batch twice");
    s->used[seq->slot] = s->check;
    slot = &s->slots[seq->slot];
    if (seq->n_rows == 0 || seq->tokens == NULL)
        return REFUSE(err, i, seq, "%s", "n_rows is 0 or tokens is NULL");
    if (seq->n_draft > l->max_draft)
        return REFUSE(err, i, seq, "n_draft %u, most is %u", seq->n_draft, l->max_draft);
    if (seq->n_draft > 0 && (seq->n_rows != 1 + seq->n_draft || !(seq->flags & KG_SEQ_SAMPLE)))
        return REFUSE(err, i, seq, "%u drafts need SAMPLE and one row before them, n_rows is %u",
                      seq->n_draft, seq->n_rows);
    if (seq->n_rows > l->max_context || seq->past > l->max_context - seq->n_rows)
        return REFUSE(err, i, seq, "past %u and %u rows are over the context of %u tokens",
                      seq->past, seq->n_rows, l->max_context);
    own = seq->flags & KG_SEQ_RESET ? 0 : slot->n_drafted;
    if (own > 0 && seq->n_draft > own)
        return REFUSE(err, i, seq, "n_draft %u, the drafter made %u", seq->n_draft, own);
    /* Tokens of drafts the backend made itself are not the caller's. */
    for (uint32_t j = 0; j < seq->n_rows - (own > 0 ? seq->n_draft : 0); j++) {
        if (seq->tokens[j] >= l->vocab)
            return REFUSE(err, i, seq, "tokens[%u] is %u, the vocabulary has %u", j, seq->tokens[j],
                          l->vocab);
    }
    if (seq->flags & KG_SEQ_RESET)
        return check_reset(s, i, seq, err);
    if (!slot->live)
        return REFUSE(err, i, seq, "%s", "the slot holds no sequence and RESET is not set");
    if (seq->past != slot->past)
        return REFUSE(err, i, seq, "past is %u, the slot has committed %u", seq->past, slot->past);
    return KG_OK;
}

/* The tokens of the step must be those the history has at their positions. */
static int check_tokens(const struct kg_run_slots *s, uint32_t i, const struct kg_seq *seq,
                        struct kg_error *err)
{
    const struct kg_run_slot *slot = &s->slots[seq->slot];
    int reset = (seq->flags & KG_SEQ_RESET) != 0;
    const uint32_t *history = reset ? seq->history : slot->history;
    uint32_t n = reset ? seq->n_history : slot->n_history;

    for (uint32_t j = 0; j < seq->n_rows - seq->n_draft && seq->past + j < n; j++) {
        if (seq->tokens[j] != history[seq->past + j])
            return REFUSE(err, i, seq, "tokens[%u] is %u, position %u of its history is %u", j,
                          seq->tokens[j], seq->past + j, history[seq->past + j]);
    }
    if ((seq->flags & KG_SEQ_SAMPLE) && seq->left == 0)
        return REFUSE(err, i, seq, "%s", "SAMPLE with no tokens left");
    if ((seq->flags & KG_SEQ_SAMPLE) && n > seq->past + seq->n_rows - seq->n_draft)
        return REFUSE(err, i, seq, "SAMPLE at position %u, but %u tokens are known",
                      seq->past + seq->n_rows - seq->n_draft, n);
    return KG_OK;
}

/* Marks a unit as written in this step; 0 when another sequence writes it too. */
static int mark_written(struct kg_run_slots *s, uint32_t kind, uint32_t id)
{
    if (s->written[kind][id] == s->check)
        return 0;
    s->written[kind][id] = s->check;
    return 1;
}

static int check_pages(struct kg_run_slots *s, const struct kg_run_arena *a, uint32_t i,
                       const struct kg_seq *seq, struct kg_error *err)
{
    const struct kg_run_slot *slot = &s->slots[seq->slot];
    uint32_t had = seq->flags & KG_SEQ_RESET ? 0 : slot->n_pages;
    uint32_t tokens = a->layout.page_tokens, end = seq->past + seq->n_rows;
    uint64_t have = (uint64_t)had + seq->n_pages, need = ((uint64_t)end + tokens - 1) / tokens;

    if (seq->n_pages > 0 && seq->pages == NULL)
        return REFUSE(err, i, seq, "%u pages, but the list is NULL", seq->n_pages);
    if (have < need)
        return REFUSE(err, i, seq, "%llu pages of %u tokens, %u tokens need %llu",
                      (unsigned long long)have, tokens, end, (unsigned long long)need);
    if (have > s->max_pages)
        return REFUSE(err, i, seq, "%llu pages, the context holds %u", (unsigned long long)have,
                      s->max_pages);
    for (uint32_t j = 0; j < need; j++) {
        uint32_t id = j < had ? slot->pages[j] : seq->pages[j - had];
        if (!kg_run_unit_is_mapped(a, KG_PAGE, id))
            return REFUSE(err, i, seq, "page %u of the list, id %u, is not mapped", j, id);
        if (j >= seq->past / tokens && !mark_written(s, KG_PAGE, id))
            return REFUSE(err, i, seq, "page id %u is written twice in this step", id);
    }
    for (uint64_t j = need > had ? need - had : 0; j < seq->n_pages; j++) {
        if (seq->pages[j] >= s->n_units[KG_PAGE])
            return REFUSE(err, i, seq, "pages[%llu] is %u, there are %u", (unsigned long long)j,
                          seq->pages[j], s->n_units[KG_PAGE]);
    }
    return KG_OK;
}

static int check_state(struct kg_run_slots *s, const struct kg_run_arena *a, uint32_t i,
                       const struct kg_seq *seq, struct kg_error *err)
{
    if (!kg_run_unit_is_mapped(a, KG_STATE, seq->state))
        return REFUSE(err, i, seq, "working state %u is not mapped", seq->state);
    if (!mark_written(s, KG_STATE, seq->state))
        return REFUSE(err, i, seq, "state %u is written twice in this step", seq->state);
    if (seq->state_src == KG_STATE_ZERO && seq->past != 0)
        return REFUSE(err, i, seq, "state_src is zero, but past is %u", seq->past);
    if (seq->state_src == KG_STATE_KEEP && !(seq->flags & KG_SEQ_RESET) &&
        s->slots[seq->slot].state != seq->state)
        return REFUSE(err, i, seq, "keeps state %u, but the slot's is %u", seq->state,
                      s->slots[seq->slot].state);
    if (seq->state_src != KG_STATE_ZERO && seq->state_src != KG_STATE_KEEP &&
        !kg_run_unit_is_mapped(a, KG_STATE, seq->state_src))
        return REFUSE(err, i, seq, "state_src %u is not mapped", seq->state_src);
    if (seq->n_orders > s->limits.max_orders || (seq->n_orders > 0 && seq->orders == NULL))
        return REFUSE(err, i, seq, "%u checkpoint orders, most is %u", seq->n_orders,
                      s->limits.max_orders);
    for (uint32_t j = 0; j < seq->n_orders; j++) {
        uint32_t at = seq->orders[j].position, unit = seq->orders[j].unit;
        uint32_t after = j == 0 ? seq->past : seq->orders[j - 1].position;
        if (at <= after || at > seq->past + seq->n_rows)
            return REFUSE(err, i, seq, "orders[%u] at position %u, wanted above %u and at most %u",
                          j, at, after, seq->past + seq->n_rows);
        if (!kg_run_unit_is_mapped(a, KG_STATE, unit))
            return REFUSE(err, i, seq, "orders[%u]: state %u is not mapped", j, unit);
        if (!mark_written(s, KG_STATE, unit))
            return REFUSE(err, i, seq, "state %u is written twice in this step", unit);
    }
    return KG_OK;
}

/* A copied state must not be one that this step writes: its bytes would depend on the order. */
static int check_sources(const struct kg_run_slots *s, uint32_t i, const struct kg_seq *seq,
                         struct kg_error *err)
{
    if (seq->state_src == KG_STATE_ZERO || seq->state_src == KG_STATE_KEEP ||
        seq->state_src == seq->state)
        return KG_OK;
    if (s->written[KG_STATE][seq->state_src] == s->check)
        return REFUSE(err, i, seq, "state_src %u is written in this step", seq->state_src);
    return KG_OK;
}

int kg_run_batch_check(struct kg_run_slots *s, const struct kg_run_arena *a,
                       const struct kg_batch *batch, struct kg_error *err)
{
    uint64_t rows = 0;
    int rc = KG_OK;

    if (batch->size < sizeof(*batch))
        return kg_fail(err, KG_EABI, "batch: size is %zu, wanted at least %zu", batch->size,
                       sizeof(*batch));
    if (batch->n_seqs == 0 || batch->seqs == NULL || batch->n_seqs > s->limits.max_seqs)
        return kg_fail(err, KG_EINVAL, "batch: %u sequences, wanted 1..%u", batch->n_seqs,
                       s->limits.max_seqs);
    s->check++;
    for (uint32_t i = 0; i < batch->n_seqs && rc == KG_OK; i++) {
        const struct kg_seq *seq = &batch->seqs[i];
        rows += seq->n_rows;
        rc = check_identity(s, i, seq, err);
        if (rc == KG_OK)
            rc = check_tokens(s, i, seq, err);
        if (rc == KG_OK)
            rc = check_pages(s, a, i, seq, err);
        if (rc == KG_OK)
            rc = check_state(s, a, i, seq, err);
    }
    for (uint32_t i = 0; i < batch->n_seqs && rc == KG_OK; i++)
        rc = check_sources(s, i, &batch->seqs[i], err);
    if (rc < 0)
        return rc;
    if (rows != batch->n_rows || rows > s->limits.max_rows)
        return kg_fail(err, KG_EINVAL, "batch: n_rows is %u, the sequences have %llu, most is %u",
                       batch->n_rows, (unsigned long long)rows, s->limits.max_rows);
    return KG_OK;
}
