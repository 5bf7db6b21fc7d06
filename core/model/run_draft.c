#include "model/run.h"

#include <string.h>
#include <sys/mman.h>

/*
 * Drafting between two steps. No unit of the pool is written: a block lies in pages of the
 * backend's own, behind those of its sequence, and the records of the context that share its first
 * page are copied there. Drafts stay here, by slot, until the step that verifies them.
 *
 * On a device kernels read the page lists of a block from a copy made for it; logits of draft k of
 * all sequences come back, the host draws, and the tokens go out again with draft k + 1. Nothing of
 * it is recorded.
 */

int kg_run_draft_load(struct kg_exec *e, const struct kg_exec_open *args, struct kg_error *err)
{
    return kg_draft_ckpt_open(args->draft_path, &e->ckpt->config, args->model_path, &e->draft.ckpt,
                              err);
}

int kg_run_draft_open(struct kg_exec *e, struct kg_error *err)
{
    struct kg_drafter_args args = {.host = e->host,
                                   .kernels = e->kernels,
                                   .team = e->device_team,
                                   .memory = e->memory,
                                   .pack_team = e->team,
                                   .target = e->model,
                                   .ckpt = e->draft.ckpt,
                                   .max_rows = e->limits.max_rows,
                                   .max_seqs = e->limits.max_seqs};
    int rc = kg_drafter_open(&args, &e->draft.drafter, err);

    if (rc < 0)
        return rc;
    kg_drafter_sizes(e->draft.drafter, &e->draft.sizes);
    return KG_OK;
}

uint32_t kg_run_draft_pages(const struct kg_exec *e, uint32_t page_tokens)
{
    uint64_t n;

    if (e->draft.ckpt == NULL || page_tokens == 0)
        return 0;
    n = (uint64_t)page_tokens - 1 + e->draft.ckpt->config.block; /* the tail, then the block */
    return (uint32_t)((n + page_tokens - 1) / page_tokens);
}

uint64_t kg_run_draft_q_bytes(const struct kg_exec *e)
{
    return (uint64_t)e->limits.max_seqs * e->draft.ckpt->config.block * e->limits.vocab *
           sizeof(*e->draft.q);
}

/* Entries of a sequence's list on a device, those of its block included. */
static size_t listed(const struct kg_exec *e)
{
    return (size_t)e->slots.max_pages + e->draft.spare;
}

int kg_run_draft_bind(struct kg_exec *e, struct kg_error *err)
{
    struct kg_run_drafting *d = &e->draft;
    uint64_t seqs = e->limits.max_seqs, block;

    if (d->ckpt == NULL)
        return KG_OK;
    block = d->ckpt->config.block;
    d->spare = e->limits.spare_pages;
    d->bytes =
        seqs * (sizeof(*d->seqs) + sizeof(*d->runs) + (1 + block + d->spare) * sizeof(*d->tokens));
    d->mem = e->host->alloc(e->host->ctx, d->bytes, 64);
    if (d->mem == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes of draft lists",
                       (unsigned long long)d->bytes);
    memset(d->mem, 0, d->bytes);
    d->seqs = (struct kg_draft_seq *)(void *)d->mem;
    d->runs = (struct kg_run_draft_run *)(void *)(d->seqs + seqs);
    d->before = (uint32_t *)(void *)(d->runs + seqs);
    d->saved = d->before + seqs;
    d->tokens = d->saved + seqs * d->spare;
    /* Only requests judged by rejection touch it: mapped, so that the rest takes no memory. */
    d->q_bytes = kg_run_draft_q_bytes(e);
    void *q = mmap(NULL, d->q_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (q == MAP_FAILED)
        return kg_fail(err, KG_ENOMEM, "no memory for %llu bytes of draft probabilities",
                       (unsigned long long)d->q_bytes);
    d->q = q;
    if (e->memory == NULL)
        return KG_OK;
    d->dev_pages =
        kg_memory_alloc(e->memory, e->host, seqs * listed(e) * sizeof(*d->dev_pages), 64);
    if (d->dev_pages == NULL)
        return kg_fail(err, KG_ENOMEM, "no device memory for the page lists of drafts");
    return KG_OK;
}

void kg_run_draft_unbind(struct kg_exec *e)
{
    struct kg_run_drafting *d = &e->draft;

    if (d->q != NULL)
        (void)munmap(d->q, d->q_bytes);
    if (e->memory != NULL)
        kg_memory_free(e->memory, e->host, d->dev_pages, 0);
    d->dev_pages = NULL;
    e->host->free(e->host->ctx, d->mem, d->bytes);
    d->q = NULL;
    d->mem = NULL;
}

void kg_run_draft_close(struct kg_exec *e)
{
    kg_run_draft_unbind(e);
    kg_drafter_close(e->draft.drafter);
    kg_draft_ckpt_close(e->draft.ckpt);
}

const uint32_t *kg_run_draft_tokens(const struct kg_exec *e, uint32_t slot)
{
    return e->draft.tokens + (size_t)slot * e->draft.ckpt->config.block;
}

/* Row of probabilities of draft k of a slot. */
static float *q_of(const struct kg_exec *e, uint32_t slot, uint32_t k)
{
    return e->draft.q + ((size_t)slot * e->draft.ckpt->config.block + k) * e->limits.vocab;
}

const float *kg_run_draft_q(const struct kg_exec *e, uint32_t slot)
{
    const struct kg_sampling *s = &e->slots.slots[slot].sampling;

    if (s->accept == KG_ACCEPT_COUPLED || !(s->temperature > 0))
        return NULL;
    return q_of(e, slot, 0);
}

static uint32_t class_of(const struct kg_sampling *s)
{
    if (!(s->temperature > 0))
        return KG_DRAFT_GREEDY;
    return s->accept == KG_ACCEPT_REJECTION ? KG_DRAFT_REJECTION
           : s->accept == KG_ACCEPT_BLOCK   ? KG_DRAFT_BLOCK
                                            : KG_DRAFT_COUPLED;
}

/* Tokens a sequence may draft: the context has room for them and one more. */
static uint32_t allowed(const struct kg_exec *e, const struct kg_draft *d)
{
    const struct kg_run_slot *s = &e->slots.slots[d->slot];
    uint32_t most;

    most = e->limits.max_context - s->past;
    most = most > 0 ? most - 1 : 0;
    return d->n < most ? d->n : most;
}

/* The list of a block where kernels read it: whole pages from the sequence's own, then the
 * block's. */
static const uint32_t *pages_of(struct kg_exec *e, const struct kg_run_slot *s, uint32_t slot,
                                uint32_t i, uint32_t whole)
{
    uint32_t *to = e->draft.dev_pages + i * listed(e);

    if (e->memory == NULL)
        return s->pages;
    if (whole > 0)
        kg_memory_copy(e->memory, to, e->step.dev_pages + (size_t)slot * e->slots.max_pages,
                       whole * sizeof(*to));
    kg_memory_upload(e->memory, to + whole, s->pages + whole, e->draft.spare * sizeof(*to));
    return to;
}

/* Puts the block's pages behind the sequence's whole ones; `run` remembers what was there. */
static void begin_run(struct kg_exec *e, struct kg_draft *draft, uint32_t i, uint32_t n)
{
    struct kg_run_drafting *d = &e->draft;
    struct kg_run_slot *s = &e->slots.slots[draft->slot];
    struct kg_run_draft_run *run = &d->runs[i];
    uint32_t whole = s->past / e->arena.layout.page_tokens;

    *run = (struct kg_run_draft_run){
        .draft = draft, .survival = 1, .slot = draft->slot, .whole = whole};
    memcpy(d->saved + (size_t)i * d->spare, s->pages + whole, d->spare * sizeof(*d->saved));
    for (uint32_t j = 0; j < d->spare; j++)
        s->pages[whole + j] = kg_run_spare_page(&e->arena, i * d->spare + j);
    run->sampling = s->sampling;
    if (s->sampling.accept != KG_ACCEPT_COUPLED)
        run->sampling.seed = kg_sample_stream(s->sampling.seed, KG_STREAM_DRAFT, s->past + 1);
    run->counts = kg_run_count_tokens(e, draft->slot);
    d->before[i] = s->history[s->past];
    d->seqs[i] = (struct kg_draft_seq){.past = s->past,
                                       .anchor = s->history[s->past],
                                       .n = n,
                                       .pages = pages_of(e, s, draft->slot, i, whole),
                                       .tail = d->saved[(size_t)i * d->spare],
                                       .first = s->pages[whole]};
}

/* Draft k of one sequence: drawn as the target would draw at its position. */
static void draw_task(void *arg, uint32_t task, uint32_t member)
{
    struct kg_exec *e = arg;
    struct kg_run_drafting *d = &e->draft;
    struct kg_run_draft_run *run = &d->runs[task];
    const struct kg_run_slot *s = &e->slots.slots[run->slot];
    uint32_t k = d->k, at = s->past + 1 + k;
    void *scratch = e->step.sample_scratch + member * e->step.sample_bytes;
    struct kg_sample_row row = {.logits = kg_drafter_logits(d->drafter, task, k),
                                .vocab = e->limits.vocab,
                                .position = at,
                                .n_output = at > s->output_start ? at - s->output_start : 0,
                                .sampling = &run->sampling,
                                .counts = run->counts};

    if (run->done || d->seqs[task].n <= k)
        return;
    if (kg_run_draft_q(e, run->slot) != NULL)
        kg_accept_draw(&row, scratch, &run->pick, q_of(e, run->slot, k));
    else
        kg_sample(&row, scratch, &run->pick, NULL);
}

/* Takes over draft k of every sequence; what is not finite ends its draft. */
static void keep_drafts(struct kg_exec *e, uint32_t n)
{
    struct kg_run_drafting *d = &e->draft;

    for (uint32_t i = 0; i < n; i++) {
        struct kg_run_draft_run *run = &d->runs[i];
        if (run->done || d->seqs[i].n <= d->k)
            continue;
        if (run->pick.flags & KG_RES_NAN) {
            run->done = 1;
            continue;
        }
        run->survival *= kg_drafter_confidence(d->drafter, i, d->k, class_of(&run->sampling));
        if (run->draft->survival != NULL)
            run->draft->survival[d->k] = (float)run->survival;
        d->tokens[(size_t)run->slot * d->ckpt->config.block + d->k] = run->pick.token;
        d->before[i] = run->pick.token;
        run->draft->n = d->k + 1;
        run->done = (run->pick.flags & KG_RES_STOP) != 0; /* nothing comes after it */
    }
}

static int check_drafts(const struct kg_exec *e, const struct kg_draft *drafts, uint32_t n)
{
    const struct kg_run_slot *s;

    if (!e->bound || e->draft.drafter == NULL || e->step.waiting || n > e->limits.max_seqs)
        return KG_EINVAL;
    if (e->lost)
        return KG_EDEVICE;
    for (uint32_t i = 0; i < n; i++) {
        if (drafts[i].slot >= e->limits.max_seqs || drafts[i].n > e->limits.max_draft ||
            drafts[i].n > e->draft.ckpt->config.block)
            return KG_EINVAL;
        s = &e->slots.slots[drafts[i].slot];
        if (!s->live || s->past == 0 || s->n_history != s->past + 1)
            return KG_EINVAL; /* its last token must be known and not yet computed */
        for (uint32_t j = 0; j < i; j++) {
            if (drafts[j].slot == drafts[i].slot)
                return KG_EINVAL;
        }
    }
    return KG_OK;
}

static void end_runs(struct kg_exec *e, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct kg_run_draft_run *run = &e->draft.runs[i];
        struct kg_run_slot *s = &e->slots.slots[run->slot];
        memcpy(s->pages + run->whole, e->draft.saved + (size_t)i * e->draft.spare,
               e->draft.spare * sizeof(*s->pages));
        s->n_drafted = run->draft->n;
    }
}

int kg_run_draft(struct kg_exec *e, struct kg_draft *drafts, uint32_t n)
{
    struct kg_run_drafting *d = &e->draft;
    uint64_t start = kg_run_now_ns(e);
    uint32_t n_runs = 0, most = 0;
    int rc = check_drafts(e, drafts, n);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t want = allowed(e, &drafts[i]);
        drafts[i].n = 0;
        e->slots.slots[drafts[i].slot].n_drafted = 0;
        if (want > 0)
            begin_run(e, &drafts[i], n_runs++, want);
        most = want > most ? want : most;
    }
    if (n_runs > 0)
        kg_drafter_begin(d->drafter, &e->units, d->seqs, n_runs);
    for (d->k = 0; d->k < most; d->k++) {
        kg_drafter_next(d->drafter, d->k, d->before);
        e->lost |= kg_drafter_lost(d->drafter) != KG_OK;
        if (e->lost)
            break;
        kg_team_run(e->team, draw_task, e, n_runs);
        keep_drafts(e, n_runs);
    }
    end_runs(e, n_runs);
    d->ns += kg_run_now_ns(e) - start;
    return e->lost ? KG_EDEVICE : KG_OK;
}
