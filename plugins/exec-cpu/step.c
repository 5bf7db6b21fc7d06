#include "cpu.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

#define LOGPROBS (1 + KG_MAX_LOGPROBS)

/* Hands out the arrays of a step from one block; run twice, first with mem NULL to add up. */
struct carver {
    uint8_t *mem;
    uint64_t at;
};

static void *carve(struct carver *c, uint64_t n, size_t bytes)
{
    void *p = c->mem == NULL ? NULL : c->mem + c->at;

    c->at += (n * bytes + 63) / 64 * 64;
    return p;
}

static void carve_step(struct carver *c, const struct kg_exec *e, struct cpu_step *s)
{
    uint64_t rows = e->limits.max_rows, seqs = e->limits.max_seqs;

    s->sample_bytes = (kg_sample_scratch_bytes(e->limits.vocab) + 63) / 64 * 64;
    s->tokens = carve(c, rows, sizeof(*s->tokens));
    s->out_rows = carve(c, rows, sizeof(*s->out_rows));
    s->seqs = carve(c, seqs, sizeof(*s->seqs));
    s->first_logits = carve(c, seqs, sizeof(*s->first_logits));
    s->last_hidden = carve(c, seqs, sizeof(*s->last_hidden));
    s->draws = carve(c, rows, sizeof(*s->draws));
    s->emitted = carve(c, seqs, sizeof(*s->emitted));
    s->logprobs = carve(c, seqs * LOGPROBS, sizeof(*s->logprobs));
    s->echo = carve(c, rows * LOGPROBS, sizeof(*s->echo));
    s->results = carve(c, seqs, sizeof(*s->results));
    s->counts = carve(c, seqs, sizeof(*s->counts));
    s->n_counted = carve(c, seqs, sizeof(*s->n_counted));
    s->sample_scratch = carve(c, e->threads, s->sample_bytes);
}

int cpu_step_open(struct kg_exec *e, struct kg_error *err)
{
    struct carver c = {0};
    struct cpu_step *s = &e->step;
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
    c = (struct carver){.mem = e->step_mem};
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
    return KG_OK;
}

void cpu_step_close(struct kg_exec *e)
{
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
    return seq->flags & KG_SEQ_SAMPLE ? 1 : 0;
}

/* Packs the rows and lists which of them need an output: rows with logits come first. */
static void pack(struct kg_exec *e, const struct kg_batch *batch, struct kg_forward *f)
{
    struct cpu_step *s = &e->step;
    uint32_t row0 = 0, n_out = 0;

    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const struct kg_seq *seq = &batch->seqs[i];
        uint32_t n = wanted_logits(seq);
        cpu_slot_begin(&e->slots, seq);
        memcpy(s->tokens + row0, seq->tokens, seq->n_rows * sizeof(*s->tokens));
        s->seqs[i] = (struct kg_forward_seq){.row0 = row0,
                                             .n_rows = seq->n_rows,
                                             .past = seq->past,
                                             .pages = e->slots.slots[seq->slot].pages,
                                             .state = seq->state,
                                             .state_src = seq->state_src,
                                             .orders = seq->orders,
                                             .n_orders = seq->n_orders};
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
}

static int is_finite_row(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return 0;
    }
    return 1;
}

/* Token counts of a sequence up to date with its history; NULL when it has no penalties. */
static const struct kg_token_counts *count_tokens(struct kg_exec *e, const struct kg_seq *seq)
{
    const struct cpu_slot *slot = &e->slots.slots[seq->slot];
    struct kg_token_counts *counts = &e->step.counts[seq->slot];
    uint32_t *done = &e->step.n_counted[seq->slot];

    if (seq->flags & KG_SEQ_RESET) {
        kg_token_counts_clear(counts);
        *done = 0;
    }
    if (!kg_sampling_has_penalty(&slot->sampling))
        return NULL;
    for (; *done < slot->n_history; (*done)++)
        (void)kg_token_counts_add(counts, slot->history[*done], *done >= slot->output_start);
    return counts;
}

/* Lists what must be read off the logits of one sequence. */
static void plan_draws(struct kg_exec *e, const struct kg_seq *seq, uint32_t i)
{
    struct cpu_step *s = &e->step;
    const struct cpu_slot *slot = &e->slots.slots[seq->slot];
    const struct kg_token_counts *counts = count_tokens(e, seq);
    uint32_t n = wanted_logits(seq), vocab = e->limits.vocab;
    uint32_t width = 1 + slot->sampling.n_logprobs;
    struct kg_logprob *echo = s->echo + (size_t)s->seqs[i].row0 * LOGPROBS;

    for (uint32_t j = 0; j < n; j++) {
        uint32_t at = seq->past + seq->n_rows - n + j + 1; /* position of the next token */
        int pick = j == n - 1 && (seq->flags & KG_SEQ_SAMPLE);
        struct cpu_draw *d = &s->draws[s->n_draws];
        if (!pick && !(seq->flags & KG_SEQ_ECHO))
            continue;
        *d = (struct cpu_draw){.seq = i,
                               .is_pick = pick,
                               .token = at < slot->n_history ? slot->history[at] : KG_NONE,
                               .logprobs = echo + (size_t)j * width};
        d->row = (struct kg_sample_row){
            .logits = kg_model_logits(e->model) + (size_t)(s->first_logits[i] + j) * vocab,
            .vocab = vocab,
            .position = at,
            .n_output = at > slot->output_start ? at - slot->output_start : 0,
            .sampling = &slot->sampling,
            .counts = counts};
        if (pick && !(seq->flags & KG_SEQ_ECHO))
            d->logprobs = slot->sampling.want_logprob || slot->sampling.n_logprobs > 0
                              ? s->logprobs + (size_t)i * LOGPROBS
                              : NULL;
        s->n_draws++;
    }
}

static void draw_task(void *arg, uint32_t task, uint32_t member)
{
    struct kg_exec *e = arg;
    struct cpu_draw *d = &e->step.draws[task];

    if (d->is_pick)
        kg_sample(&d->row, e->step.sample_scratch + member * e->step.sample_bytes, &d->pick,
                  d->logprobs);
    else
        d->pick.flags = kg_sample_logprobs(d->row.logits, d->row.vocab, d->token,
                                           d->row.sampling->n_logprobs, d->logprobs);
}

void cpu_draw_all(struct kg_exec *e, uint32_t n)
{
    kg_team_run(e->team, draw_task, e, n);
}

/* What a sequence reports before its draws are known. */
static void begin_result(struct kg_exec *e, const struct kg_seq *seq, uint32_t i)
{
    struct cpu_step *s = &e->step;
    const float *hidden =
        kg_model_hidden(e->model) + (size_t)s->last_hidden[i] * e->ckpt->config.hidden;
    struct kg_seq_result *r = &s->results[i];

    *r = (struct kg_seq_result){
        .id = seq->id, .slot = seq->slot, .epoch = seq->epoch, .past = seq->past + seq->n_rows};
    e->slots.slots[seq->slot].past = r->past;
    if ((seq->flags & KG_SEQ_POISON) || !is_finite_row(hidden, e->ckpt->config.hidden)) {
        r->flags = KG_RES_NAN;
        return;
    }
    if (seq->flags & KG_SEQ_LOGITS)
        r->logits = kg_model_logits(e->model) + (size_t)s->first_logits[i] * e->limits.vocab;
    if (seq->flags & KG_SEQ_ECHO)
        r->echo = s->echo + (size_t)s->seqs[i].row0 * LOGPROBS;
    plan_draws(e, seq, i);
}

static void finish_draw(struct kg_exec *e, const struct kg_seq *seq, const struct cpu_draw *d)
{
    struct cpu_step *s = &e->step;
    struct kg_seq_result *r = &s->results[d->seq];

    r->flags |= d->pick.flags;
    if (!d->is_pick)
        return;
    s->emitted[d->seq] = d->pick.token;
    r->tokens = &s->emitted[d->seq];
    r->n_tokens = 1;
    if (d->row.sampling->want_logprob || d->row.sampling->n_logprobs > 0)
        r->logprobs = d->logprobs;
    if (!(r->flags & KG_RES_NAN))
        cpu_slot_emit(&e->slots, seq->slot, d->pick.token);
}

/* Nothing of a sequence that is not finite is valid. */
static void clear_nan(struct kg_seq_result *r)
{
    if (!(r->flags & KG_RES_NAN))
        return;
    r->flags = KG_RES_NAN;
    r->n_tokens = 0;
    r->tokens = NULL;
    r->logprobs = NULL;
    r->echo = NULL;
    r->logits = NULL;
}

int cpu_submit(struct kg_exec *e, const struct kg_batch *batch, struct kg_error *err)
{
    struct cpu_step *s = &e->step;
    uint64_t start = cpu_now_ns();
    struct kg_forward f;
    int rc;

    if (!e->bound)
        return kg_fail(err, KG_EINVAL, "submit before bind");
    if (s->waiting)
        return kg_fail(err, KG_EINVAL, "submit before step %llu was waited for",
                       (unsigned long long)s->number);
    rc = cpu_batch_check(&e->slots, &e->arena, batch, err);
    if (rc < 0)
        return rc;
    pack(e, batch, &f);
    kg_model_forward(e->model, &f);
    s->n_draws = 0;
    for (uint32_t i = 0; i < batch->n_seqs; i++)
        begin_result(e, &batch->seqs[i], i);
    cpu_draw_all(e, s->n_draws);
    for (uint32_t i = 0; i < s->n_draws; i++)
        finish_draw(e, &batch->seqs[s->draws[i].seq], &s->draws[i]);
    for (uint32_t i = 0; i < batch->n_seqs; i++)
        clear_nan(&s->results[i]);
    s->n_results = batch->n_seqs;
    s->number = batch->step;
    s->took_ns = cpu_now_ns() - start;
    s->waiting = 1;
    return KG_OK;
}

int cpu_wait(struct kg_exec *e, struct kg_result *result, struct kg_error *err)
{
    struct cpu_step *s = &e->step;

    if (result->size < sizeof(*result))
        return kg_fail(err, KG_EABI, "result: size is %zu, wanted at least %zu", result->size,
                       sizeof(*result));
    if (!s->waiting)
        return kg_fail(err, KG_EINVAL, "wait without a step in flight");
    s->waiting = 0;
    result->step = s->number;
    result->step_ns = s->took_ns;
    result->n_seqs = s->n_results;
    result->reserved = 0;
    result->seqs = s->results;
    return KG_OK;
}
