/* The rules of exec.h, checked one by one, and the contents of pages and states. */
#include "null.h"
#include "script.h"
#include <string.h>

#define KNOWN_FLAGS (KG_SEQ_RESET | KG_SEQ_SAMPLE | KG_SEQ_ECHO | KG_SEQ_LOGITS | KG_SEQ_POISON)

/* Prefix of each text: which request broke the rule. */
#define BAD(q, fmt, ...)                                                                         \
    kg_fail(err, KG_EINVAL, "batch: request %llu in slot %u: " fmt, (unsigned long long)(q)->id, \
            (q)->slot, __VA_ARGS__)

static int check_reset(const struct kg_exec *x, const struct kg_seq *q, struct kg_error *err)
{
    if (q->history == NULL || q->sampling == NULL) {
        return BAD(q, "%s", "RESET without history or sampling");
    }
    if (q->n_history > x->max_context || q->n_history < q->past + q->n_rows - q->n_draft) {
        return BAD(q, "history of %u tokens, past %u, %u rows, max_context %u", q->n_history,
                   q->past, q->n_rows, x->max_context);
    }
    if (q->output_start > q->n_history || q->output_start == 0) {
        return BAD(q, "output starts at %u of %u tokens", q->output_start, q->n_history);
    }
    uint32_t n_fixed = q->n_rows - q->n_draft;
    if (memcmp(q->history + q->past, q->tokens, n_fixed * sizeof(*q->tokens)) != 0) {
        return BAD(q, "rows differ from the history at %u", q->past);
    }
    if (q->state_src == KG_STATE_KEEP) {
        return BAD(q, "%s", "RESET keeps a state the slot does not have");
    }
    if (q->state_src == KG_STATE_ZERO && q->past != 0) {
        return BAD(q, "a zero state for %u committed tokens", q->past);
    }
    if (q->sampling->n_stop_ids > KG_MAX_STOP_IDS || q->sampling->n_logprobs > KG_MAX_LOGPROBS ||
        q->sampling->temperature < 0.0f) {
        return BAD(q, "sampling: %u stop ids, %u logprobs, temperature %g", q->sampling->n_stop_ids,
                   q->sampling->n_logprobs, (double)q->sampling->temperature);
    }
    return KG_OK;
}

static int check_continued(const struct null_slot *s, const struct kg_seq *q, struct kg_error *err)
{
    if (!s->live || s->id != q->id || s->epoch != q->epoch) {
        return BAD(q, "the slot holds request %llu epoch %u (live %u), not epoch %u; no RESET",
                   (unsigned long long)s->id, s->epoch, s->live, q->epoch);
    }
    if (q->past != s->past) {
        return BAD(q, "past %u, committed %u", q->past, s->past);
    }
    if (q->state != s->state || q->state_src != KG_STATE_KEEP) {
        return BAD(q, "state unit %u source %u, the slot works in %u", q->state, q->state_src,
                   s->state);
    }
    uint32_t n_fixed = q->n_rows - q->n_draft;
    for (uint32_t j = 0; j < n_fixed && q->past + j < s->n_known; j++) {
        if (q->tokens[j] != s->tokens[q->past + j]) {
            return BAD(q, "row %u carries token %u, the sequence has %u there", j, q->tokens[j],
                       s->tokens[q->past + j]);
        }
    }
    return KG_OK;
}

static int check_units(const struct kg_exec *x, const struct null_slot *s, const struct kg_seq *q,
                       struct kg_error *err)
{
    uint32_t had = q->flags & KG_SEQ_RESET ? 0 : s->n_pages;

    if (q->n_pages > x->max_pages - had) {
        return BAD(q, "%u pages after %u, most per sequence is %u", q->n_pages, had, x->max_pages);
    }
    uint64_t room = (uint64_t)(had + q->n_pages) * x->layout.page_tokens;
    if (room < (uint64_t)q->past + q->n_rows) {
        return BAD(q, "%u pages hold %llu tokens, past %u + %u rows do not fit", had + q->n_pages,
                   (unsigned long long)room, q->past, q->n_rows);
    }
    for (uint32_t i = 0; i < q->n_pages; i++) {
        if (!null_unit_mapped(x, KG_PAGE, q->pages[i])) {
            return BAD(q, "page %u is not mapped", q->pages[i]);
        }
    }
    if (!null_unit_mapped(x, KG_STATE, q->state)) {
        return BAD(q, "state %u is not mapped", q->state);
    }
    if (q->state_src < KG_STATE_ZERO && !null_unit_mapped(x, KG_STATE, q->state_src)) {
        return BAD(q, "source state %u is not mapped", q->state_src);
    }
    uint32_t last = q->past;
    for (uint32_t i = 0; i < q->n_orders; i++) {
        const struct kg_order *o = &q->orders[i];
        if (o->position <= last || o->position > q->past + q->n_rows) {
            return BAD(q, "checkpoint at %u, rows cover %u..%u, the one before is at %u",
                       o->position, q->past + 1, q->past + q->n_rows, last);
        }
        if (!null_unit_mapped(x, KG_STATE, o->unit) || o->unit == q->state) {
            return BAD(q, "checkpoint unit %u is not mapped or the working state", o->unit);
        }
        last = o->position;
    }
    return KG_OK;
}

static int check_rows(const struct kg_exec *x, const struct null_slot *s, const struct kg_seq *q,
                      struct kg_error *err)
{
    if (q->n_draft > x->max_draft || q->n_draft >= q->n_rows) {
        return BAD(q, "%u draft rows of %u, most is %u", q->n_draft, q->n_rows, x->max_draft);
    }
    if ((uint64_t)q->past + q->n_rows > x->max_context) {
        return BAD(q, "past %u + %u rows above max_context %u", q->past, q->n_rows, x->max_context);
    }
    if (q->n_draft > 0 && (!(q->flags & KG_SEQ_SAMPLE) || q->n_rows != 1 + q->n_draft)) {
        return BAD(q, "%u drafts need SAMPLE and 1 + n_draft rows, not %u", q->n_draft, q->n_rows);
    }
    if ((q->flags & KG_SEQ_SAMPLE) && q->left == 0) {
        return BAD(q, "%s", "SAMPLE with no tokens left");
    }
    uint32_t known = q->flags & KG_SEQ_RESET ? q->n_history : s->n_known;
    uint32_t end = q->past + q->n_rows - q->n_draft;
    if ((q->flags & KG_SEQ_SAMPLE) && end != known) {
        return BAD(q, "SAMPLE at %u although %u tokens are known", end, known);
    }
    if (!(q->flags & KG_SEQ_SAMPLE) && end >= known) {
        return BAD(q, "rows reach %u of %u known tokens without SAMPLE", end, known);
    }
    if ((q->flags & KG_SEQ_LOGITS) && x->logits == NULL) {
        return BAD(q, "%s", "LOGITS without the capability");
    }
    if (q->n_orders > 4) {
        return BAD(q, "%u checkpoint orders, most is 4", q->n_orders);
    }
    /* Draft rows of this backend's own drafter carry no tokens. */
    uint32_t n_given = s->n_drafts > 0 ? q->n_rows - q->n_draft : q->n_rows;
    for (uint32_t j = 0; x->conf.check && j < n_given; j++) {
        if (q->tokens[j] >= x->conf.vocab) {
            return BAD(q, "row %u carries token %u of %u", j, q->tokens[j], x->conf.vocab);
        }
    }
    return KG_OK;
}

static int check_seq(struct kg_exec *x, const struct kg_seq *q, struct kg_error *err)
{
    if (q->slot >= x->max_seqs) {
        return BAD(q, "slots end at %u", x->max_seqs);
    }
    struct null_slot *s = &x->slots[q->slot];
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
    if (rc == KG_OK) {
        rc = check_units(x, s, q, err);
    }
    return rc;
}

int null_check_batch(struct kg_exec *x, const struct kg_batch *batch, struct kg_error *err)
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

int null_check_content(const struct kg_exec *x, const struct null_slot *s, uint64_t id,
                       struct kg_error *err)
{
    uint64_t h = SCRIPT_START;
    uint32_t slot = (uint32_t)(s - x->slots);

    for (uint32_t p = 0; p < s->past; p++) {
        uint32_t page = s->pages[p / x->layout.page_tokens];
        const uint8_t *at = null_entry(x, KG_PAGE, page);
        uint64_t got = 0;
        h = script_next(h, s->tokens[p]);
        if (at != NULL) {
            memcpy(&got, at + (p % x->layout.page_tokens) * x->conf.token_bytes, sizeof(got));
        }
        if (at == NULL || got != h) {
            return kg_fail(err, KG_EINVAL,
                           "content: request %llu in slot %u: page %u (%s) holds %016llx for token "
                           "%u, wanted %016llx",
                           (unsigned long long)id, slot, page, at ? "mapped" : "unmapped",
                           (unsigned long long)got, p, (unsigned long long)h);
        }
    }
    for (uint32_t i = 0; i < x->conf.n_state_parts; i++) {
        uint32_t per = x->layout.parts_per_slot;
        const uint8_t *at = null_entry(x, KG_STATE, s->state * x->n_entry[KG_STATE] + i / per);
        uint64_t got[2] = {0, 0};
        if (at != NULL) {
            memcpy(got, at + (i % per) * x->conf.state_part_bytes, sizeof(got));
        }
        int zero = s->past == 0 && got[0] == 0 && got[1] == 0;
        if (at == NULL || (!zero && (got[0] != h + i || got[1] != s->past))) {
            return kg_fail(
                err, KG_EINVAL,
                "content: request %llu in slot %u: state %u part %u holds %016llx length "
                "%llu, wanted %016llx length %u",
                (unsigned long long)id, slot, s->state, i, (unsigned long long)got[0],
                (unsigned long long)got[1], (unsigned long long)(h + i), s->past);
        }
    }
    return KG_OK;
}
