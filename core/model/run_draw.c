#include "model/carve.h"
#include "model/run.h"

#include <string.h>

/*
 * What is read off the logits of a step, and by whom. The host reads all of them where they lie in
 * its own memory. A device with a sampler draws by itself what the sampler covers; rows come to the
 * host only for somebody who asked for them, or whose drafts are judged by rejection or block.
 * Which it is follows from the batch, so it is decided before the pass is queued.
 */

#define LOGPROBS (1 + KG_MAX_LOGPROBS)
#define AT_ONCE 64u /* rows a sampler works on side by side: enough to fill a device */

/* ---- memory ------------------------------------------------------------------------------ */

static void carve_device(struct kg_carver *c, const struct kg_exec *e, struct kg_run_sampling *s)
{
    uint64_t rows = e->limits.max_rows, seqs = e->limits.max_seqs;

    s->accepted = kg_carve(c, s->max_windows, sizeof(*s->accepted));
    s->emitted = kg_carve(c, rows, sizeof(*s->emitted));
    s->logprobs = kg_carve(c, rows * LOGPROBS, sizeof(*s->logprobs));
    s->known = kg_carve(c, rows, sizeof(*s->known));
    s->tokens = kg_carve(c, (uint64_t)e->limits.max_context + 1, sizeof(*s->tokens));
    s->counts = kg_carve(c, seqs * e->limits.vocab, sizeof(*s->counts));
    s->scratch = kg_carve(c, s->scratch_bytes, 1);
}

/* The step's own results: on a device page-locked, so that nothing waits for their way back. */
static void carve_near(struct kg_carver *c, struct kg_exec *e)
{
    uint64_t rows = e->limits.max_rows;

    e->sampling.near_accepted =
        kg_carve(c, e->sampling.max_windows, sizeof(*e->sampling.near_accepted));
    e->sampling.near_emitted = kg_carve(c, rows, sizeof(*e->sampling.near_emitted));
    e->sampling.near_logprobs = kg_carve(c, rows * LOGPROBS, sizeof(*e->sampling.near_logprobs));
}

static void carve_lists(struct kg_carver *c, const struct kg_exec *e, struct kg_run_sampling *s)
{
    s->windows = kg_carve(c, s->max_windows, sizeof(*s->windows));
    s->n_counted = kg_carve(c, e->limits.max_seqs, sizeof(*s->n_counted));
    s->near_known = kg_carve(c, e->limits.max_rows, sizeof(*s->near_known));
}

int kg_run_sampling_open(struct kg_exec *e, struct kg_error *err)
{
    struct kg_run_sampling *s = &e->sampling;
    const struct kg_memory *m = e->memory;
    struct kg_carver c = {.align = 256};
    void *near = NULL;

    if (m == NULL || m->sampler == NULL)
        return KG_OK;
    s->ops = m->sampler;
    s->max_windows = 2 * e->limits.max_seqs; /* rows that echo, and a pick behind them */
    s->scratch_bytes = s->ops->scratch_bytes(
        s->ops->ctx, e->limits.max_rows < AT_ONCE ? e->limits.max_rows : AT_ONCE,
        e->limits.max_rows, e->limits.vocab);
    carve_device(&c, e, s);
    s->bytes = c.at;
    s->mem = kg_memory_alloc(m, e->host, s->bytes, 256);
    if (s->mem == NULL)
        return kg_fail(err, KG_ENOMEM, "no device memory for %llu bytes to draw tokens",
                       (unsigned long long)s->bytes);
    c = (struct kg_carver){.mem = s->mem, .align = 256};
    carve_device(&c, e, s);
    c = (struct kg_carver){.align = 256};
    carve_near(&c, e);
    int rc = m->alloc_host(m->ctx, c.at, &near, err);
    if (rc < 0)
        return rc;
    s->near = near;
    c = (struct kg_carver){.mem = near, .align = 256};
    carve_near(&c, e);
    c = (struct kg_carver){.align = 64};
    carve_lists(&c, e, s);
    s->list_bytes = c.at;
    s->lists = e->host->alloc(e->host->ctx, s->list_bytes, 64);
    if (s->lists == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes of windows",
                       (unsigned long long)s->list_bytes);
    c = (struct kg_carver){.mem = s->lists, .align = 64};
    carve_lists(&c, e, s);
    return KG_OK;
}

void kg_run_sampling_close(struct kg_exec *e)
{
    struct kg_run_sampling *s = &e->sampling;

    if (s->ops == NULL)
        return;
    kg_memory_free(e->memory, e->host, s->mem, s->bytes);
    if (s->near != NULL)
        e->memory->free_host(e->memory->ctx, s->near);
    e->host->free(e->host->ctx, s->lists, s->list_bytes);
    memset(s, 0, sizeof(*s));
}

/* ---- who draws --------------------------------------------------------------------------- */

/* 1: the sampler picks. Counts of a request with penalties are kept in one place, so its draws may
 * not change sides. */
static int covers(const struct kg_exec *e, const struct kg_seq *seq)
{
    const struct kg_sampling *p = &e->slots.slots[seq->slot].sampling;

    if (e->sampling.ops == NULL)
        return 0;
    if (p->accept == KG_ACCEPT_COUPLED || !(p->temperature > 0))
        return 1;
    return !kg_sampling_has_penalty(p) && (seq->n_draft == 0 || seq->force_accept != KG_NONE);
}

/* Rows of logits a sequence has. */
static uint32_t logits_of(const struct kg_exec *e, const struct kg_forward *f, uint32_t i)
{
    const struct kg_run_step *s = &e->step;

    return s->last_hidden[i] < f->n_logits ? s->last_hidden[i] - s->first_logits[i] + 1 : 0;
}

/* How many of them the host reads, on a device: all or none. */
static uint32_t brought_logits(const struct kg_exec *e, const struct kg_forward *f, uint32_t i)
{
    const struct kg_seq *seq = &e->step.batch[i];
    int drawn = (seq->flags & KG_SEQ_SAMPLE) && !covers(e, seq);

    if (seq->flags & KG_SEQ_POISON)
        return 0;
    if (e->sampling.ops == NULL || drawn || (seq->flags & KG_SEQ_LOGITS))
        return logits_of(e, f, i);
    return 0;
}

/* Final hidden vectors the host reads: of a window it draws from, or the last row's, of whose
 * sequence nobody draws. */
static uint32_t brought_hidden(const struct kg_exec *e, uint32_t i)
{
    const struct kg_seq *seq = &e->step.batch[i];

    if (seq->flags & KG_SEQ_POISON)
        return 0;
    if (seq->flags & KG_SEQ_SAMPLE)
        return covers(e, seq) ? 0 : 1 + seq->n_draft;
    return 1;
}

float *kg_run_home(const struct kg_exec *e, uint32_t rows)
{
    return rows <= e->step.near_rows ? e->step.near_logits : e->step.far_logits;
}

/* Where the host reads the rows of each sequence. */
static void place_rows(struct kg_exec *e, const struct kg_forward *f)
{
    struct kg_run_step *s = &e->step;
    size_t vocab = e->limits.vocab, width = e->ckpt->config.hidden;
    const float *logits = kg_model_logits(e->model), *hidden = kg_model_hidden(e->model);
    uint32_t n = 0, n_hidden = 0, all = 0;

    for (uint32_t i = 0; i < f->n_seqs && e->memory != NULL; i++)
        all += brought_logits(e, f, i);
    for (uint32_t i = 0; i < f->n_seqs; i++) {
        if (e->memory == NULL) {
            s->logits_at[i] = logits + s->first_logits[i] * vocab;
            s->hidden_at[i] = hidden + s->last_hidden[i] * width;
            continue;
        }
        uint32_t rows = brought_logits(e, f, i), vectors = brought_hidden(e, i);
        s->logits_at[i] = rows == 0 ? NULL : kg_run_home(e, all) + n * vocab;
        n += rows;
        n_hidden += vectors;
        s->hidden_at[i] = vectors == 0 ? NULL : s->near_hidden + (n_hidden - 1) * width;
    }
}

/* ---- counts for penalties ------------------------------------------------------------------ */

struct kg_token_counts *kg_run_count_tokens(struct kg_exec *e, uint32_t number)
{
    const struct kg_run_slot *slot = &e->slots.slots[number];
    struct kg_token_counts *counts = &e->step.counts[number];
    uint32_t *done = &e->step.n_counted[number];

    if (!kg_sampling_has_penalty(&slot->sampling))
        return NULL;
    for (; *done < slot->n_history; (*done)++)
        (void)kg_token_counts_add(counts, slot->history[*done], *done >= slot->output_start);
    return counts;
}

/* The same on the device. */
static uint32_t *count_there(struct kg_exec *e, uint32_t number)
{
    const struct kg_run_slot *slot = &e->slots.slots[number];
    struct kg_run_sampling *s = &e->sampling;
    uint32_t *counts = s->counts + (size_t)number * e->limits.vocab;

    if (!kg_sampling_has_penalty(&slot->sampling))
        return NULL;
    if (s->n_counted[number] == 0)
        kg_memory_fill(e->memory, counts, 0, e->limits.vocab * sizeof(*counts));
    while (s->n_counted[number] < slot->n_history) {
        uint32_t at = s->n_counted[number], output = at >= slot->output_start;
        uint32_t n = (output ? slot->n_history : slot->output_start) - at;
        n = n < slot->n_history - at ? n : slot->n_history - at;
        kg_memory_upload(e->memory, s->tokens, slot->history + at, n * sizeof(*s->tokens));
        s->ops->count(s->ops->ctx, counts, e->limits.vocab, s->tokens, n, output);
        s->n_counted[number] += n;
    }
    return counts;
}

static void forget_counts(struct kg_exec *e, uint32_t slot)
{
    kg_token_counts_clear(&e->step.counts[slot]);
    e->step.n_counted[slot] = 0;
    if (e->sampling.ops != NULL)
        e->sampling.n_counted[slot] = 0;
}

/* ---- the plan ------------------------------------------------------------------------------ */

struct kg_sampler_window *kg_run_window(struct kg_exec *e, uint32_t out, uint32_t row)
{
    struct kg_run_sampling *s = &e->sampling;
    uint32_t width = e->ckpt->config.hidden;
    struct kg_sampler_window *w = &s->windows[s->n_windows];

    *w = (struct kg_sampler_window){
        .run = {.logits = kg_model_logits(e->model) + (size_t)out * e->limits.vocab,
                .hidden = kg_model_hidden(e->model) + (size_t)out * width,
                .vocab = e->limits.vocab,
                .width = width,
                .tokens = s->emitted + row},
        .accepted = &s->accepted[s->n_windows],
    };
    s->n_windows++;
    return w;
}

/* Log probabilities of n rows of sequence i, behind those planned before. */
static struct kg_logprob *take_logprobs(struct kg_exec *e, uint32_t i, uint32_t n)
{
    struct kg_run_step *s = &e->step;
    const struct kg_run_slot *slot = &e->slots.slots[s->batch[i].slot];
    struct kg_logprob *at = s->logprobs + s->n_logprobs;

    s->n_logprobs += n * (1 + slot->sampling.n_logprobs);
    return at;
}

/* The twin on the device of what lies in page-locked memory. */
static struct kg_logprob *logprobs_there(const struct kg_exec *e, const struct kg_logprob *here)
{
    return here == NULL ? NULL : e->sampling.logprobs + (here - e->step.logprobs);
}

/* All rows that echo, as one window of the sampler. */
static void echo_there(struct kg_exec *e, uint32_t i, uint32_t n)
{
    struct kg_run_step *s = &e->step;
    struct kg_run_draw *d = &s->draws[s->n_draws++];
    const struct kg_run_slot *slot = &e->slots.slots[s->batch[i].slot];

    *d = (struct kg_run_draw){.seq = i, .window = e->sampling.n_windows};
    d->run = (struct kg_accept){.sampling = &slot->sampling, .logprobs = s->logprobs_at[i]};
    struct kg_sampler_window *w = kg_run_window(e, s->first_logits[i], s->seqs[i].row0);
    w->run.hidden = NULL;
    w->run.n_draft = n - 1;
    w->run.sampling = &slot->sampling;
    w->run.logprobs = logprobs_there(e, d->run.logprobs);
    w->echo = e->sampling.known + s->n_known;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t at = s->batch[i].past + j + 1; /* position of the next token */
        e->sampling.near_known[s->n_known++] = at < slot->n_history ? slot->history[at] : KG_NONE;
    }
}

/* Known next tokens of the rows before the first one that picks. */
static void plan_echo(struct kg_exec *e, const struct kg_seq *seq, uint32_t i, uint32_t n)
{
    struct kg_run_step *s = &e->step;
    const struct kg_run_slot *slot = &e->slots.slots[seq->slot];

    if (e->sampling.ops != NULL && n > 0) {
        echo_there(e, i, n);
        return;
    }
    for (uint32_t j = 0; j < n; j++) {
        uint32_t at = seq->past + j + 1;
        struct kg_run_draw *d = &s->draws[s->n_draws++];
        *d = (struct kg_run_draw){.seq = i,
                                  .window = KG_NONE,
                                  .token = at < slot->n_history ? slot->history[at] : KG_NONE};
        d->run = (struct kg_accept){.logits = s->logits_at[i] + (size_t)j * e->limits.vocab,
                                    .vocab = e->limits.vocab,
                                    .sampling = &slot->sampling,
                                    .logprobs = s->logprobs_at[i] +
                                                (size_t)j * (1 + slot->sampling.n_logprobs)};
    }
}

/* The tokens of a sequence: of its last known row and the drafts behind it. */
static void plan_pick(struct kg_exec *e, const struct kg_seq *seq, uint32_t i,
                      struct kg_logprob *logprobs)
{
    struct kg_run_step *s = &e->step;
    const struct kg_run_slot *slot = &e->slots.slots[seq->slot];
    uint32_t n_fixed = seq->n_rows - seq->n_draft;
    uint32_t row = s->seqs[i].row0 + n_fixed - 1;
    uint32_t out = s->last_hidden[i] - seq->n_draft;
    struct kg_run_draw *d = &s->draws[s->n_draws++];
    struct kg_accept run = {.vocab = e->limits.vocab,
                            .width = e->ckpt->config.hidden,
                            .position = seq->past + n_fixed,
                            .output_start = slot->output_start,
                            .n_draft = seq->n_draft,
                            .left = seq->left,
                            .force = seq->force_accept,
                            .sampling = &slot->sampling,
                            .tokens = s->emitted + row,
                            .logprobs = logprobs};

    *d = (struct kg_run_draw){.seq = i, .is_pick = 1, .window = KG_NONE, .run = run};
    if (!covers(e, seq)) {
        d->run.logits = s->logits_at[i] + (size_t)(out - s->first_logits[i]) * e->limits.vocab;
        d->run.hidden = s->hidden_at[i] - (size_t)seq->n_draft * run.width;
        d->run.drafts = s->tokens + row + 1;
        d->run.q = s->is_own[i] ? kg_run_draft_q(e, seq->slot) : NULL;
        d->run.counts = kg_run_count_tokens(e, seq->slot);
        return;
    }
    d->window = e->sampling.n_windows;
    struct kg_sampler_window *w = kg_run_window(e, out, row);
    run.logits = w->run.logits;
    run.hidden = w->run.hidden;
    run.tokens = w->run.tokens;
    run.drafts = s->dev_tokens + row + 1;
    run.logprobs = logprobs_there(e, logprobs);
    w->run = run;
    w->counts = count_there(e, seq->slot);
}

static void plan_seq(struct kg_exec *e, const struct kg_seq *seq, uint32_t i)
{
    struct kg_run_step *s = &e->step;
    const struct kg_sampling *p = &e->slots.slots[seq->slot].sampling;
    uint32_t picks = (seq->flags & KG_SEQ_SAMPLE) != 0, n_fixed = seq->n_rows - seq->n_draft;
    struct kg_logprob *at = NULL; /* of the pick */

    s->logprobs_at[i] = NULL;
    if (seq->flags & KG_SEQ_RESET)
        forget_counts(e, seq->slot);
    if (seq->flags & KG_SEQ_POISON)
        return;
    if (seq->flags & KG_SEQ_ECHO) {
        s->logprobs_at[i] = take_logprobs(e, i, seq->n_rows);
        at = s->logprobs_at[i] + (size_t)(n_fixed - 1) * (1 + p->n_logprobs);
        plan_echo(e, seq, i, n_fixed - picks);
    } else if (picks && (p->want_logprob || p->n_logprobs > 0)) {
        at = s->logprobs_at[i] = take_logprobs(e, i, 1 + seq->n_draft);
    }
    if (picks)
        plan_pick(e, seq, i, at);
}

void kg_run_plan(struct kg_exec *e, const struct kg_forward *f)
{
    struct kg_run_step *s = &e->step;

    s->n_draws = s->n_known = s->n_logprobs = e->sampling.n_windows = 0;
    place_rows(e, f);
    for (uint32_t i = 0; i < f->n_seqs; i++)
        plan_seq(e, &s->batch[i], i);
    if (s->n_known > 0)
        kg_memory_upload(e->memory, e->sampling.known, e->sampling.near_known,
                         s->n_known * sizeof(*e->sampling.known));
}

/* ---- drawing ------------------------------------------------------------------------------- */

int kg_run_queue_draws(struct kg_exec *e, struct kg_error *err)
{
    struct kg_run_sampling *s = &e->sampling;

    if (s->n_windows == 0)
        return KG_OK;
    return s->ops->draw(s->ops->ctx, s->windows, s->n_windows, e->limits.vocab, s->scratch,
                        s->scratch_bytes, err);
}

/* Rows of the pass on their way to the host; neighbours go together. */
struct way {
    float *to;
    const float *from;
    uint64_t n; /* floats */
};

static void send_rows(const struct kg_memory *m, struct way *w, float *to, const float *from,
                      uint64_t n)
{
    if (n > 0 && w->n > 0 && w->to + w->n == to && w->from + w->n == from) {
        w->n += n;
        return;
    }
    if (w->n > 0)
        m->download(m->ctx, w->to, w->from, w->n * sizeof(float));
    *w = (struct way){to, from, n};
}

void kg_run_bring(struct kg_exec *e, const struct kg_forward *f)
{
    const struct kg_run_sampling *s = &e->sampling;
    struct kg_run_step *step = &e->step;
    const struct kg_memory *m = e->memory;
    size_t vocab = e->limits.vocab, width = e->ckpt->config.hidden;
    struct way logits = {0}, hidden = {0};

    if (s->n_windows > 0) {
        m->download(m->ctx, s->near_accepted, s->accepted, s->n_windows * sizeof(*s->accepted));
        m->download(m->ctx, step->emitted, s->emitted, f->n_rows * sizeof(*s->emitted));
        if (step->n_logprobs > 0)
            m->download(m->ctx, step->logprobs, s->logprobs,
                        step->n_logprobs * sizeof(*s->logprobs));
    }
    if (step->bench != 0) { /* of whose rows nobody asks but the host's draws */
        if (s->ops == NULL)
            m->download(m->ctx, kg_run_home(e, f->n_logits), kg_model_logits(e->model),
                        f->n_logits * vocab * sizeof(float));
        return;
    }
    for (uint32_t i = 0; i < f->n_seqs; i++) {
        uint32_t n = brought_hidden(e, i), back = n == 0 ? 0 : n - 1; /* rows before the last */
        if (step->logits_at[i] != NULL)
            send_rows(m, &logits, (float *)(uintptr_t)step->logits_at[i],
                      kg_model_logits(e->model) + step->first_logits[i] * vocab,
                      brought_logits(e, f, i) * vocab);
        if (n > 0)
            send_rows(m, &hidden, (float *)(uintptr_t)step->hidden_at[i] - back * width,
                      kg_model_hidden(e->model) + (step->last_hidden[i] - back) * width, n * width);
    }
    send_rows(m, &logits, NULL, NULL, 0);
    send_rows(m, &hidden, NULL, NULL, 0);
}

static void draw_task(void *arg, uint32_t task, uint32_t member)
{
    struct kg_exec *e = arg;
    struct kg_run_draw *d = &e->step.draws[task];

    if (d->window != KG_NONE)
        d->got = e->sampling.near_accepted[d->window];
    else if (d->is_pick)
        kg_accept_run(&d->run, e->step.sample_scratch + member * e->step.sample_bytes, &d->got);
    else
        d->got.flags = kg_sample_logprobs(d->run.logits, d->run.vocab, d->token,
                                          d->run.sampling->n_logprobs, d->run.logprobs);
}

void kg_run_draw_all(struct kg_exec *e, uint32_t n)
{
    uint32_t there = 0;

    while (there < n && e->step.draws[there].window != KG_NONE)
        draw_task(e, there++, 0);
    if (there < n)
        kg_team_run(e->team, draw_task, e, n);
}
