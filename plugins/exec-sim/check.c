/* The rules of exec.h, checked one by one. */
#include "sim.h"
#include <string.h>

#define KNOWN_FLAGS (KG_SEQ_RESET | KG_SEQ_SAMPLE | KG_SEQ_ECHO | KG_SEQ_POISON)

#define BAD(q, fmt, ...)                                                                         \
    kg_fail(err, KG_EINVAL, "batch: request %llu in slot %u: " fmt, (unsigned long long)(q)->id, \
            (q)->slot, __VA_ARGS__)

static int check_reset(const struct kg_exec *x, const struct kg_seq *q, struct kg_error *err)
{
    uint32_t n_fixed = q->n_rows - q->n_draft;

    if (q->history == NULL || q->sampling == NULL || q->n_history > x->max_context ||
        q->n_history < q->past + n_fixed || q->output_start == 0 ||
        q->output_start > q->n_history) {
        return BAD(q, "RESET with a history of %u tokens, output from %u, past %u and %u rows",
                   q->history != NULL ? q->n_history : 0, q->output_start, q->past, q->n_rows);
    }
    if (memcmp(q->history + q->past, q->tokens, n_fixed * sizeof(*q->tokens)) != 0) {
        return BAD(q, "rows differ from the history at %u", q->past);
    }
    if (q->state_src == KG_STATE_KEEP || (q->state_src == KG_STATE_ZERO && q->past != 0)) {
        return BAD(q, "RESET at %u without a state to start from", q->past);
    }
    if (q->sampling->n_stop_ids > KG_MAX_STOP_IDS || q->sampling->n_logprobs > KG_MAX_LOGPROBS ||
        q->sampling->temperature < 0.0f) {
        return BAD(q, "sampling: %u stop ids, %u logprobs, temperature %g", q->sampling->n_stop_ids,
                   q->sampling->n_logprobs, (double)q->sampling->temperature);
    }
    return KG_OK;
}

static int check_continued(const struct sim_slot *s, const struct kg_seq *q, struct kg_error *err)
{
    if (!s->live || s->id != q->id || s->epoch != q->epoch || q->past != s->past ||
        q->state != s->state || q->state_src != KG_STATE_KEEP) {
        return BAD(
            q,
            "epoch %u, past %u, state %u; the slot holds request %llu epoch %u past %u state "
            "%u (live %u)",
            q->epoch, q->past, q->state, (unsigned long long)s->id, s->epoch, s->past, s->state,
            s->live);
    }
    return KG_OK;
}

/* The source stands for exactly the tokens that are past. */
static int check_source(const struct kg_exec *x, const struct kg_seq *q, struct kg_error *err)
{
    if (q->state_src >= KG_STATE_ZERO) {
        return KG_OK;
    }
    if (!sim_unit_mapped(x, KG_STATE, q->state_src)) {
        return BAD(q, "source state %u is not mapped", q->state_src);
    }
    uint32_t n = x->state_length[q->state_src];
    return n == q->past ? KG_OK
                        : BAD(q, "source state %u stands for %u tokens, past is %u", q->state_src,
                              n, q->past);
}

static int check_units(const struct kg_exec *x, const struct sim_slot *s, const struct kg_seq *q,
                       struct kg_error *err)
{
    uint32_t had = q->flags & KG_SEQ_RESET ? 0 : s->n_pages, last = q->past;

    if (q->n_pages > x->max_pages - had ||
        (uint64_t)(had + q->n_pages) * x->layout.page_tokens < (uint64_t)q->past + q->n_rows) {
        return BAD(q, "%u pages after %u for past %u + %u rows", q->n_pages, had, q->past,
                   q->n_rows);
    }
    for (uint32_t i = 0; i < q->n_pages; i++) {
        if (!sim_unit_mapped(x, KG_PAGE, q->pages[i])) {
            return BAD(q, "page %u is not mapped", q->pages[i]);
        }
    }
    if (!sim_unit_mapped(x, KG_STATE, q->state)) {
        return BAD(q, "state %u is not mapped", q->state);
    }
    for (uint32_t i = 0; i < q->n_orders; i++) {
        const struct kg_order *o = &q->orders[i];
        if (o->position <= last || o->position > q->past + q->n_rows) {
            return BAD(q, "checkpoint at %u, rows cover %u..%u, the one before is at %u",
                       o->position, q->past + 1, q->past + q->n_rows, last);
        }
        if (!sim_unit_mapped(x, KG_STATE, o->unit) || o->unit == q->state) {
            return BAD(q, "checkpoint unit %u is not mapped or the working state", o->unit);
        }
        last = o->position;
    }
    return check_source(x, q, err);
}

static int check_rows(const struct kg_exec *x, const struct sim_slot *s, const struct kg_seq *q,
                      struct kg_error *err)
{
    uint32_t known = q->flags & KG_SEQ_RESET ? q->n_history : s->n_known;
    uint32_t end = q->past + q->n_rows - q->n_draft, over = 0;

    if (q->n_draft > x->max_draft || q->n_draft >= q->n_rows ||
        (uint64_t)q->past + q->n_rows > x->max_context + (uint64_t)q->n_draft) {
        return BAD(q, "past %u, %u rows, %u drafts; most are %u tokens, %u drafts", q->past,
                   q->n_rows, q->n_draft, x->max_context, x->max_draft);
    }
    if (q->n_draft > 0 && (!(q->flags & KG_SEQ_SAMPLE) || q->n_rows != 1 + q->n_draft)) {
        return BAD(q, "%u drafts need SAMPLE and 1 + n_draft rows, not %u", q->n_draft, q->n_rows);
    }
    if (q->flags & KG_SEQ_SAMPLE ? q->left == 0 || end != known : end >= known) {
        return BAD(q, "rows to %u of %u known tokens, %u left, flags %#x", end, known, q->left,
                   q->flags);
    }
    if (q->n_orders > 4) {
        return BAD(q, "%u checkpoint orders, most is 4", q->n_orders);
    }
    uint32_t n_given = s->n_drafts > 0 ? q->n_rows - q->n_draft : q->n_rows;
    for (uint32_t j = 0; j < n_given; j++) {
        over |= q->tokens[j] >= x->conf.vocab;
    }
    return over ? BAD(q, "a row's token is not below the vocabulary of %u", x->conf.vocab) : KG_OK;
}

static int check_seq(struct kg_exec *x, const struct kg_seq *q, struct kg_error *err)
{
    if (q->slot >= x->max_seqs) {
        return BAD(q, "slots end at %u", x->max_seqs);
    }
    struct sim_slot *s = &x->slots[q->slot];
    if (s->stamp == x->stamp) {
        return BAD(q, "%s", "named twice");
    }
    s->stamp = x->stamp;
    if ((q->flags & ~KNOWN_FLAGS) != 0 || q->n_rows == 0 || q->tokens == NULL) {
        return BAD(q, "flags %#x, %u rows", q->flags, q->n_rows);
    }
    int rc = check_rows(x, s, q, err);
    if (rc == KG_OK) {
        rc = q->flags & KG_SEQ_RESET ? check_reset(x, q, err) : check_continued(s, q, err);
    }
    return rc == KG_OK ? check_units(x, s, q, err) : rc;
}

int sim_check_batch(struct kg_exec *x, const struct kg_batch *batch, struct kg_error *err)
{
    uint64_t rows = 0;

    if (!x->bound || x->batch != NULL) {
        return kg_fail(err, KG_EINVAL, "submit %s", x->bound ? "while a step runs" : "before bind");
    }
    if (batch->size < sizeof(*batch) || batch->n_seqs == 0 || batch->n_seqs > x->max_seqs) {
        return kg_fail(err, KG_EINVAL, "batch: size %zu, %u sequences of at most %u", batch->size,
                       batch->n_seqs, x->max_seqs);
    }
    x->stamp++;
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        int rc = check_seq(x, &batch->seqs[i], err);
        if (rc != KG_OK) {
            return rc;
        }
        rows += batch->seqs[i].n_rows;
    }
    if (rows != batch->n_rows || rows > x->max_rows) {
        return kg_fail(err, KG_EINVAL, "batch: %llu rows, n_rows says %u, most is %u",
                       (unsigned long long)rows, batch->n_rows, x->max_rows);
    }
    return KG_OK;
}
