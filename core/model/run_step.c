#include "model/carve.h"
#include "model/run.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

#define LOGPROBS (1 + KG_MAX_LOGPROBS)
#define NEAR_ROWS 32u /* page-locked; with more the host waits for them anyway */

static void carve_step(struct kg_carver *c, const struct kg_exec *e, struct kg_run_step *s)
{
    uint64_t rows = e->limits.max_rows, seqs = e->limits.max_seqs;

    s->sample_bytes = (kg_accept_scratch_bytes(e->limits.vocab) + 63) / 64 * 64;
    s->tokens = kg_carve(c, rows, sizeof(*s->tokens));
    s->batch = kg_carve(c, seqs, sizeof(*s->batch));
    s->out_rows = kg_carve(c, rows, sizeof(*s->out_rows));
    s->seqs = kg_carve(c, seqs, sizeof(*s->seqs));
    s->first_logits = kg_carve(c, seqs, sizeof(*s->first_logits));
    s->last_hidden = kg_carve(c, seqs, sizeof(*s->last_hidden));
    s->logits_at = kg_carve(c, seqs, sizeof(*s->logits_at));
    s->hidden_at = kg_carve(c, seqs, sizeof(*s->hidden_at));
    s->logprobs_at = kg_carve(c, seqs, sizeof(*s->logprobs_at));
    s->draws = kg_carve(c, rows, sizeof(*s->draws));
    s->emitted = e->sampling.near_emitted;
    s->logprobs = e->sampling.near_logprobs;
    if (e->sampling.ops == NULL) {
        s->emitted = kg_carve(c, rows, sizeof(*s->emitted));
        s->logprobs = kg_carve(c, rows * LOGPROBS, sizeof(*s->logprobs));
    }
    s->n_commit = kg_carve(c, seqs, sizeof(*s->n_commit));
    s->n_inject = kg_carve(c, seqs, sizeof(*s->n_inject));
    s->is_own = kg_carve(c, seqs, sizeof(*s->is_own));
    s->results = kg_carve(c, seqs, sizeof(*s->results));
    s->counts = kg_carve(c, seqs, sizeof(*s->counts));
    s->n_counted = kg_carve(c, seqs, sizeof(*s->n_counted));
    s->sample_scratch = kg_carve(c, e->threads, s->sample_bytes);
}

/* Memory of the device, and where its results come back to. */
static int open_device(struct kg_exec *e, struct kg_error *err)
{
    struct kg_run_step *s = &e->step;
    const struct kg_memory *m = e->memory;
    uint64_t rows = e->limits.max_rows, seqs = e->limits.max_seqs, vocab = e->limits.vocab;
    uint64_t drawn = seqs * (1 + (uint64_t)e->limits.max_draft);
    void *near_logits = NULL, *hidden = NULL;

    s->near_hidden_rows = (uint32_t)(drawn < rows ? drawn : rows);
    s->near_rows = s->near_hidden_rows < NEAR_ROWS ? s->near_hidden_rows : NEAR_ROWS;
    s->dev_tokens = kg_memory_alloc(m, e->host, rows * sizeof(uint32_t), 64);
    s->dev_pages = kg_memory_alloc(m, e->host, seqs * e->slots.max_pages * sizeof(uint32_t), 64);
    if (s->dev_tokens == NULL || s->dev_pages == NULL)
        return kg_fail(err, KG_ENOMEM, "no device memory for the page lists of %u sequences",
                       e->limits.max_seqs);
    int rc = m->alloc_host(m->ctx, s->near_rows * vocab * sizeof(float), &near_logits, err);
    s->near_logits = near_logits;
    if (rc == KG_OK)
        rc = m->alloc_host(m->ctx,
                           (uint64_t)s->near_hidden_rows * e->ckpt->config.hidden * sizeof(float),
                           &hidden, err);
    s->near_hidden = hidden;
    if (rc < 0)
        return rc;
    s->far_bytes = rows * vocab * sizeof(float);
    s->far_logits = mmap(NULL, s->far_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->far_logits == MAP_FAILED) {
        s->far_logits = NULL;
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes of logits",
                       (unsigned long long)s->far_bytes);
    }
    return KG_OK;
}

static void close_device(struct kg_exec *e)
{
    struct kg_run_step *s = &e->step;
    const struct kg_memory *m = e->memory;

    if (s->far_logits != NULL)
        (void)munmap(s->far_logits, s->far_bytes);
    if (s->near_logits != NULL)
        m->free_host(m->ctx, s->near_logits);
    if (s->near_hidden != NULL)
        m->free_host(m->ctx, s->near_hidden);
    kg_memory_free(m, e->host, s->dev_tokens, 0);
    kg_memory_free(m, e->host, s->dev_pages, 0);
}

int kg_run_step_open(struct kg_exec *e, struct kg_error *err)
{
    struct kg_carver c = {.align = 64};
    struct kg_run_step *s = &e->step;
    uint64_t context = (uint64_t)e->limits.max_context + 1;
    uint32_t distinct = context < e->limits.vocab ? (uint32_t)context : e->limits.vocab;
    size_t each = (kg_token_counts_bytes(distinct) + 63) / 64 * 64;

    carve_step(&c, e, s);
    e->step_bytes = c.at;
    e->step_mem = e->host->alloc(e->host->ctx, c.at, 64);
    if (e->step_mem == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes of step lists",
                       (unsigned long long)c.at);
    memset(e->step_mem, 0, c.at);
    c = (struct kg_carver){.mem = e->step_mem, .align = 64};
    carve_step(&c, e, s);
    /* Must begin as zeros, and few requests have penalties: mapped, so that pages never touched
     * take no memory. */
    s->counts_bytes = (uint64_t)each * e->limits.max_seqs;
    s->counts_mem = mmap(NULL, s->counts_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->counts_mem == MAP_FAILED) {
        s->counts_mem = NULL;
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes of token counts",
                       (unsigned long long)s->counts_bytes);
    }
    for (uint32_t i = 0; i < e->limits.max_seqs; i++)
        kg_token_counts_init(&s->counts[i], s->counts_mem + i * each, distinct);
    return e->memory == NULL ? KG_OK : open_device(e, err);
}

void kg_run_step_close(struct kg_exec *e)
{
    if (e->memory != NULL)
        close_device(e);
    if (e->step.counts_mem != NULL)
        (void)munmap(e->step.counts_mem, e->step.counts_bytes);
    e->host->free(e->host->ctx, e->step_mem, e->step_bytes);
    e->step_mem = NULL;
    memset(&e->step, 0, sizeof(e->step));
}

static uint32_t wanted_logits(const struct kg_seq *seq)
{
    if (seq->flags & (KG_SEQ_ECHO | KG_SEQ_LOGITS))
        return seq->n_rows;
    return seq->flags & KG_SEQ_SAMPLE ? 1 + seq->n_draft : 0;
}

/* The pages of a slot where kernels read them, with those of this step. */
static const uint32_t *pages_of(struct kg_exec *e, const struct kg_seq *seq)
{
    const struct kg_run_slot *slot = &e->slots.slots[seq->slot];
    uint32_t *to;

    if (e->memory == NULL)
        return slot->pages;
    to = e->step.dev_pages + (size_t)seq->slot * e->slots.max_pages;
    if (seq->n_pages > 0)
        kg_memory_upload(e->memory, to + (slot->n_pages - seq->n_pages), seq->pages,
                         seq->n_pages * sizeof(*to));
    return to;
}

/* Packs the rows and lists which of them need an output: rows with logits come first. */
static void pack(struct kg_exec *e, const struct kg_batch *batch, struct kg_forward *f)
{
    struct kg_run_step *s = &e->step;
    uint32_t row0 = 0, n_out = 0;

    s->n_verify = 0;
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const struct kg_seq *seq = &batch->seqs[i];
        uint32_t n = wanted_logits(seq);
        uint32_t own = seq->flags & KG_SEQ_RESET ? 0 : e->slots.slots[seq->slot].n_drafted;
        kg_run_slot_begin(&e->slots, seq);
        memcpy(s->tokens + row0, seq->tokens, seq->n_rows * sizeof(*s->tokens));
        s->is_own[i] = own > 0 && seq->n_draft > 0;
        if (s->is_own[i])
            memcpy(s->tokens + row0 + 1, kg_run_draft_tokens(e, seq->slot),
                   seq->n_draft * sizeof(*s->tokens));
        s->seqs[i] = (struct kg_forward_seq){
            .row0 = row0,
            .n_rows = seq->n_rows,
            .past = seq->past,
            .pages = pages_of(e, seq),
            .state = seq->state,
            .state_src = seq->state_src == seq->state ? KG_STATE_KEEP : seq->state_src,
            .orders = seq->orders,
            .n_orders = seq->n_orders,
            .verify = seq->n_draft > 0};
        s->n_verify += seq->n_draft > 0;
        row0 += seq->n_rows;
        s->first_logits[i] = n_out;
        for (uint32_t j = n; j > 0; j--)
            s->out_rows[n_out++] = row0 - j;
        s->last_hidden[i] = n_out - 1;
    }
    *f = (struct kg_forward){.units = &e->units,
                             .tokens = s->tokens,
                             .seqs = s->seqs,
                             .out_rows = s->out_rows,
                             .n_rows = row0,
                             .n_seqs = batch->n_seqs,
                             .n_logits = n_out};
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        if (wanted_logits(&batch->seqs[i]) > 0)
            continue;
        s->last_hidden[i] = n_out;
        s->out_rows[n_out++] = s->seqs[i].row0 + s->seqs[i].n_rows - 1;
    }
    f->n_out = n_out;
    if (e->memory != NULL) {
        kg_memory_upload(e->memory, s->dev_tokens, s->tokens, row0 * sizeof(*s->tokens));
        f->tokens = s->dev_tokens;
    }
}

/* A step that only decodes has one shape for a number of sequences and a range of contexts: a
 * device may replay it, draws included if it makes them all. 0: another step. */
static uint64_t shape_of(const struct kg_exec *e, const struct kg_forward *f, uint32_t *context)
{
    uint32_t longest = 0, bits = 8;
    uint64_t drawn;

    if (f->n_rows != f->n_seqs || f->n_logits != f->n_out || f->n_out != f->n_rows)
        return 0;
    for (uint32_t i = 0; i < f->n_seqs; i++) {
        const struct kg_forward_seq *seq = &f->seqs[i];
        if (seq->verify || seq->n_orders > 0)
            return 0;
        longest = seq->past + 1 > longest ? seq->past + 1 : longest;
    }
    while (bits < 31 && longest > 1u << bits)
        bits++;
    *context = 1u << bits;
    drawn = e->sampling.n_windows == f->n_seqs;
    return e->step.bench << 40 | (uint64_t)f->n_seqs << 8 | drawn << 7 | bits;
}

int kg_run_pass(struct kg_exec *e, const struct kg_forward *f, struct kg_error *err)
{
    const struct kg_memory *m = e->memory;
    uint32_t context = 0;
    int rc = KG_OK;

    if (m == NULL) {
        kg_model_forward(e->model, f);
        return KG_OK;
    }
    uint64_t key = m->begin == NULL ? 0 : shape_of(e, f, &context);

    m->mark(m->ctx, 0);
    if (key != 0)
        m->begin(m->ctx, key, context);
    kg_model_forward(e->model, f);
    if (e->sampling.n_windows == f->n_seqs) /* one row each, or nothing is recorded */
        rc = kg_run_queue_draws(e, err);
    if (key != 0)
        m->end(m->ctx);
    if (e->sampling.n_windows != f->n_seqs)
        rc = kg_run_queue_draws(e, err);
    if (rc == KG_OK)
        kg_run_bring(e, f);
    m->mark(m->ctx, 1);
    return rc;
}

static int is_finite_row(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return 0;
    }
    return 1;
}

/* What a sequence reports before its draws are known. */
static void begin_result(struct kg_exec *e, const struct kg_seq *seq, uint32_t i)
{
    struct kg_run_step *s = &e->step;
    struct kg_seq_result *r = &s->results[i];
    uint32_t picks = (seq->flags & KG_SEQ_SAMPLE) != 0;

    *r = (struct kg_seq_result){.id = seq->id,
                                .slot = seq->slot,
                                .epoch = seq->epoch,
                                .past = seq->past + seq->n_rows - seq->n_draft};
    s->n_commit[i] = 0;
    /* Of a sequence that picks, each row that counts is looked at with its logits. */
    if ((seq->flags & KG_SEQ_POISON) ||
        (!picks && !is_finite_row(s->hidden_at[i], e->ckpt->config.hidden))) {
        r->flags = KG_RES_NAN;
        return;
    }
    if (seq->flags & KG_SEQ_LOGITS)
        r->logits = s->logits_at[i];
    if (seq->flags & KG_SEQ_ECHO)
        r->echo = s->logprobs_at[i];
}

/* Echo of drafts that were not reached: no token, no value. */
static void blank_echo(const struct kg_seq *seq, const struct kg_run_draw *d)
{
    uint32_t width = 1 + d->run.sampling->n_logprobs;

    for (uint32_t k = d->got.n_tokens * width; k < (1 + seq->n_draft) * width; k++)
        d->run.logprobs[k] = (struct kg_logprob){.id = KG_NONE};
}

static void finish_draw(struct kg_exec *e, const struct kg_seq *seq, const struct kg_run_draw *d)
{
    struct kg_run_step *s = &e->step;
    struct kg_seq_result *r = &s->results[d->seq];
    int want = d->run.sampling->want_logprob || d->run.sampling->n_logprobs > 0;

    r->flags |= d->got.flags;
    if (!d->is_pick || (r->flags & KG_RES_NAN))
        return;
    r->tokens = d->run.tokens;
    r->n_tokens = d->got.n_tokens;
    r->n_accepted = d->got.n_accepted;
    r->past += d->got.n_tokens - 1;
    r->logprobs = want ? d->run.logprobs : NULL;
    s->n_commit[d->seq] = r->past - seq->past;
    for (uint32_t k = 0; k < r->n_tokens; k++)
        kg_run_slot_emit(&e->slots, seq->slot, r->tokens[k]);
    if (d->run.counts != NULL)
        s->n_counted[seq->slot] = e->slots.slots[seq->slot].n_history;
    if (d->window != KG_NONE && e->sampling.windows[d->window].counts != NULL)
        e->sampling.n_counted[seq->slot] = e->slots.slots[seq->slot].n_history;
    if (seq->flags & KG_SEQ_ECHO)
        blank_echo(seq, d);
}

/* Nothing of a sequence that is not finite is valid. */
static void clear_nan(struct kg_seq_result *r)
{
    if (!(r->flags & KG_RES_NAN))
        return;
    r->flags = KG_RES_NAN;
    r->n_tokens = 0;
    r->n_accepted = 0;
    r->tokens = NULL;
    r->logprobs = NULL;
    r->echo = NULL;
    r->logits = NULL;
}

/* States, and the drafter's records: of every committed row, drafting or not, so that whoever
 * drafts later finds them whole. Of a sequence that ends with a NaN none is needed. */
static void commit(struct kg_exec *e, const struct kg_forward *f)
{
    struct kg_run_step *s = &e->step;
    uint64_t start = kg_run_now_ns(e);

    if (s->n_verify > 0)
        kg_model_commit(e->model, f, s->n_commit);
    for (uint32_t i = 0; i < f->n_seqs && e->draft.drafter != NULL; i++) {
        const struct kg_seq_result *r = &s->results[i];
        s->n_inject[i] = r->flags & KG_RES_NAN ? 0 : r->past - f->seqs[i].past;
    }
    if (e->draft.drafter != NULL)
        kg_drafter_inject(e->draft.drafter, &e->units, kg_model_features(e->model), f->seqs,
                          s->n_inject, f->n_seqs);
    s->commit_ns = kg_run_now_ns(e) - start;
}

/* What is done on the host once the pass is there: draws, results, the commit. */
static void finish(struct kg_exec *e)
{
    struct kg_run_step *s = &e->step;
    uint32_t n = s->pass.n_seqs;

    for (uint32_t i = 0; i < n; i++)
        begin_result(e, &s->batch[i], i);
    kg_run_draw_all(e, s->n_draws);
    for (uint32_t i = 0; i < s->n_draws; i++)
        finish_draw(e, &s->batch[s->draws[i].seq], &s->draws[i]);
    for (uint32_t i = 0; i < n; i++) {
        clear_nan(&s->results[i]);
        e->slots.slots[s->batch[i].slot].past = s->results[i].past;
    }
    commit(e, &s->pass);
    s->n_results = n;
}

int kg_run_submit(struct kg_exec *e, const struct kg_batch *batch, struct kg_error *err)
{
    struct kg_run_step *s = &e->step;
    uint64_t start = kg_run_now_ns(e);
    int rc;

    if (!e->bound)
        return kg_fail(err, KG_EINVAL, "submit before bind");
    if (e->lost)
        return kg_fail(err, KG_EDEVICE, "the device was lost in step %llu",
                       (unsigned long long)s->number);
    if (s->waiting)
        return kg_fail(err, KG_EINVAL, "submit before step %llu was waited for",
                       (unsigned long long)s->number);
    rc = kg_run_batch_check(&e->slots, &e->arena, batch, err);
    if (rc < 0)
        return rc;
    pack(e, batch, &s->pass);
    memcpy(s->batch, batch->seqs, batch->n_seqs * sizeof(*s->batch));
    kg_run_plan(e, &s->pass);
    rc = kg_run_pass(e, &s->pass, err);
    if (rc < 0) { /* the pass is queued, its tokens are not */
        e->lost = 1;
        return KG_EDEVICE;
    }
    if (kg_model_lost(e->model) != KG_OK)
        return kg_fail(err, KG_EDEVICE, "a collective of step %llu failed (%d): a rank is lost",
                       (unsigned long long)batch->step, kg_model_lost(e->model));
    if (e->memory == NULL)
        finish(e);
    s->number = batch->step;
    s->draft_ns = e->draft.ns;
    s->took_ns = kg_run_now_ns(e) - start + s->draft_ns;
    e->draft.ns = 0;
    s->waiting = 1;
    return KG_OK;
}

/* A step on a device: waits, and does the rest. */
static int arrive(struct kg_exec *e, struct kg_error *err)
{
    struct kg_run_step *s = &e->step;
    int rc = kg_memory_sync(e->memory, err);
    uint64_t start = kg_run_now_ns(e);

    if (rc < 0) {
        e->lost = 1;
        return KG_EDEVICE;
    }
    finish(e);
    s->took_ns = e->memory->time_ns(e->memory->ctx) + kg_run_now_ns(e) - start + s->draft_ns;
    return KG_OK;
}

int kg_run_wait(struct kg_exec *e, struct kg_result *result, struct kg_error *err)
{
    struct kg_run_step *s = &e->step;

    if (result->size < sizeof(*result))
        return kg_fail(err, KG_EABI, "result: size is %zu, wanted at least %zu", result->size,
                       sizeof(*result));
    if (!s->waiting)
        return kg_fail(err, KG_EINVAL, "wait without a step in flight");
    s->waiting = 0;
    if (e->memory != NULL && arrive(e, err) < 0)
        return KG_EDEVICE;
    result->step = s->number;
    result->step_ns = s->took_ns;
    result->draft_ns = s->draft_ns;
    result->commit_ns = s->commit_ns;
    result->n_seqs = s->n_results;
    result->reserved = 0;
    result->seqs = s->results;
    return KG_OK;
}
