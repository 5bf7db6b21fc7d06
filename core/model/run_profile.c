#include "model/run.h"

#include <string.h>
#include <time.h>

/*
 * A step on memory of its own: one state per sequence, a tail of pages that is the sequence's own,
 * and prefix pages dealt in turn from a stock that is larger than the caches of the machine.
 */
#define STOCK_BYTES (256ull << 20)
#define LEAST_NS 30000000u /* of computing; at least one run, at most five */

struct bench {
    struct kg_model_units units;
    struct kg_forward pass;
    uint32_t n_prefix, n_tail, n_stock; /* pages: per sequence twice, in all */
    uint64_t arena_bytes, list_bytes;
    uint8_t *lists, *dev_lists; /* dev_lists: their twin on a device */
    uint32_t *page_table, *state_table, *pages, *tokens, *out_rows, *commit;
    struct kg_forward_seq *seqs;
};

static void plan_units(struct bench *b, const struct kg_exec *e, uint32_t n_seqs, uint32_t rows,
                       uint32_t context)
{
    uint32_t tokens = e->arena.layout.page_tokens, most = (rows + n_seqs - 1) / n_seqs;
    uint64_t page = e->arena.layout.stride[KG_PAGE], stock = STOCK_BYTES / page + 1;
    struct kg_pool_layout *l = &b->units.layout;

    b->n_prefix = context / tokens;
    b->n_tail = (context % tokens + most + tokens - 1) / tokens;
    if (stock > (uint64_t)n_seqs * b->n_prefix)
        stock = (uint64_t)n_seqs * b->n_prefix;
    b->n_stock = (uint32_t)stock;
    *l = e->arena.layout;
    l->slots_per_state = 1;
    l->parts_per_slot = e->arena.sizes.n_state_parts;
    l->stride[KG_STATE] = e->arena.sizes.state_part_bytes * l->parts_per_slot;
    l->base[KG_STATE] = 0;
    l->base[KG_PAGE] = l->stride[KG_STATE] * n_seqs;
    b->arena_bytes = l->base[KG_PAGE] + page * (b->n_stock + (uint64_t)n_seqs * b->n_tail);
}

/* The lists lie one after the other in one block; the sequences first for their alignment. */
static int take_lists(struct bench *b, const struct kg_exec *e, uint32_t n_seqs, uint32_t rows)
{
    uint64_t n_pages = b->n_stock + (uint64_t)n_seqs * b->n_tail;
    uint64_t listed = (uint64_t)n_seqs * (b->n_prefix + b->n_tail);
    uint64_t words = n_pages + 2ull * n_seqs + listed + 2ull * rows;

    b->list_bytes = n_seqs * sizeof(*b->seqs) + words * sizeof(uint32_t);
    b->lists = e->host->alloc(e->host->ctx, b->list_bytes, 64);
    b->units.arena = kg_memory_alloc(e->memory, e->host, b->arena_bytes, KG_MODEL_ALIGN);
    if (e->memory != NULL)
        b->dev_lists = kg_memory_alloc(e->memory, e->host, b->list_bytes, 64);
    if (b->lists == NULL || b->units.arena == NULL || (e->memory != NULL && b->dev_lists == NULL))
        return KG_ENOMEM;
    kg_memory_fill(e->memory, b->units.arena, 0, b->arena_bytes);
    b->seqs = (struct kg_forward_seq *)(void *)b->lists;
    b->page_table = (uint32_t *)(void *)(b->seqs + n_seqs);
    b->state_table = b->page_table + n_pages;
    b->pages = b->state_table + n_seqs;
    b->tokens = b->pages + listed;
    b->out_rows = b->tokens + rows;
    b->commit = b->out_rows + rows;
    for (uint32_t i = 0; i < n_pages; i++)
        b->page_table[i] = i;
    for (uint32_t i = 0; i < n_seqs; i++)
        b->state_table[i] = i;
    b->units.table[KG_PAGE] = b->page_table;
    b->units.table[KG_STATE] = b->state_table;
    b->units.slots = b->page_table;
    return KG_OK;
}

static void fill(struct bench *b, const struct kg_exec *e, uint32_t n_seqs, uint32_t rows,
                 uint32_t context)
{
    uint32_t row0 = 0, per_seq = b->n_prefix + b->n_tail;
    uint32_t window =
        (rows + n_seqs - 1) / n_seqs; /* a prefill when it is longer than one can be */
    int verify = window > 1 && window - 1 <= e->limits.max_draft;
    uint32_t n_out = 0;

    for (uint32_t i = 0; i < n_seqs; i++) {
        uint32_t *pages = b->pages + (size_t)i * per_seq;
        uint32_t n = rows / n_seqs + (i < rows % n_seqs);
        for (uint32_t j = 0; j < b->n_prefix; j++)
            pages[j] = (uint32_t)(((uint64_t)i * b->n_prefix + j) % b->n_stock);
        for (uint32_t j = 0; j < b->n_tail; j++)
            pages[b->n_prefix + j] = b->n_stock + i * b->n_tail + j;
        b->seqs[i] = (struct kg_forward_seq){.row0 = row0,
                                             .n_rows = n,
                                             .past = context,
                                             .pages = pages,
                                             .state = i,
                                             .state_src = KG_STATE_KEEP,
                                             .verify = verify};
        b->commit[i] = n;
        row0 += n;
        /* a window yields a token at each row, a prompt at its last */
        for (uint32_t r = verify || n == 0 ? row0 - n : row0 - 1; r < row0; r++)
            b->out_rows[n_out++] = r;
    }
    for (uint32_t r = 0; r < rows; r++)
        b->tokens[r] = r * 7919u % e->limits.vocab;
    b->pass = (struct kg_forward){.units = &b->units,
                                  .tokens = b->tokens,
                                  .seqs = b->seqs,
                                  .out_rows = b->out_rows,
                                  .n_rows = rows,
                                  .n_seqs = n_seqs,
                                  .n_out = n_out,
                                  .n_logits = n_out};
}

/* The same list on the device. */
static const uint32_t *twin(const struct bench *b, const uint32_t *list)
{
    return (const uint32_t *)(const void *)(b->dev_lists + ((const uint8_t *)list - b->lists));
}

/* Lists that kernels read go to the device, and the pass points at them there. */
static void send_lists(struct bench *b, const struct kg_exec *e)
{
    if (e->memory == NULL)
        return;
    kg_memory_upload(e->memory, b->dev_lists, b->lists, b->list_bytes);
    for (uint32_t i = 0; i < b->pass.n_seqs; i++)
        b->seqs[i].pages = twin(b, b->seqs[i].pages);
    b->pass.tokens = twin(b, b->tokens);
    b->units.table[KG_PAGE] = twin(b, b->page_table);
}

static void give_back(const struct kg_exec *e, struct bench *b)
{
    kg_memory_free(e->memory, e->host, b->units.arena, b->arena_bytes);
    kg_memory_free(e->memory, e->host, b->dev_lists, b->list_bytes);
    e->host->free(e->host->ctx, b->lists, b->list_bytes);
}

/* Greedy picks: of a window on the device, else of each row that yields a token. Returns how many
 * of them the host makes. */
static uint32_t plan(struct kg_exec *e, const struct bench *b)
{
    static const struct kg_sampling greedy = {.top_p = 1.0f};
    const struct kg_forward *f = &b->pass;
    const float *logits =
        e->memory == NULL ? kg_model_logits(e->model) : kg_run_home(e, f->n_logits);

    e->step.n_logprobs = e->sampling.n_windows = 0;
    for (uint32_t i = 0; e->sampling.ops != NULL && i < f->n_seqs; i++) {
        uint32_t n_draft = b->seqs[i].verify ? b->seqs[i].n_rows - 1 : 0, row = b->seqs[i].row0;
        struct kg_sampler_window *w = kg_run_window(e, b->seqs[i].verify ? row : i, row);
        w->run.drafts = f->tokens + row + 1;
        w->run.n_draft = w->run.force = n_draft;
        w->run.left = 1 + n_draft;
        w->run.sampling = &greedy;
    }
    for (uint32_t r = 0; e->sampling.ops == NULL && r < f->n_out; r++) {
        struct kg_run_draw *d = &e->step.draws[r];
        *d = (struct kg_run_draw){.is_pick = 1, .window = KG_NONE};
        d->run = (struct kg_accept){.logits = logits + (size_t)r * e->limits.vocab,
                                    .vocab = e->limits.vocab,
                                    .left = 1,
                                    .force = KG_NONE,
                                    .sampling = &greedy,
                                    .tokens = &e->step.emitted[r]};
    }
    return e->sampling.ops == NULL ? f->n_out : 0;
}

/* One step: the pass, the picks, the commit of windows and the records of the drafter. */
static int run(struct kg_exec *e, const struct bench *b, uint64_t *ns)
{
    uint64_t start = kg_run_now_ns(e);
    uint32_t n = plan(e, b);

    if (kg_run_pass(e, &b->pass, NULL) < 0 || kg_memory_sync(e->memory, NULL) < 0)
        return KG_EDEVICE;
    kg_run_draw_all(e, n);
    if (b->seqs[0].verify)
        kg_model_commit(e->model, &b->pass, b->commit);
    if (e->draft.drafter != NULL)
        kg_drafter_inject(e->draft.drafter, &b->units, kg_model_features(e->model), b->seqs,
                          b->commit, b->pass.n_seqs);
    if (kg_memory_sync(e->memory, NULL) < 0)
        return KG_EDEVICE;
    *ns = kg_run_now_ns(e) - start;
    return KG_OK;
}

/* Time the process computed, a thread's share: on a busy machine a run that was interrupted is long
 * and says nothing, and more runs are worth their while. */
static uint64_t computed_ns(const struct kg_exec *e)
{
    struct timespec t;

    if (e->memory != NULL)
        return kg_run_now_ns(e); /* a device computes, whatever the process does */
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return ((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec) / e->threads;
}

int kg_run_profile(struct kg_exec *e, uint32_t n_seqs, uint32_t rows, uint32_t context,
                   uint64_t *step_ns)
{
    struct bench b = {0};
    uint64_t best = UINT64_MAX, spent = 0, ns = 0, number = e->step.benches + 1;
    int rc;

    if (!e->bound || e->lost || e->step.waiting || n_seqs == 0 || n_seqs > e->limits.max_seqs ||
        rows < n_seqs || rows > e->limits.max_rows ||
        (uint64_t)context + rows > e->limits.max_context)
        return KG_EINVAL;
    plan_units(&b, e, n_seqs, rows, context);
    rc = take_lists(&b, e, n_seqs, rows);
    if (rc == KG_OK) {
        fill(&b, e, n_seqs, rows, context);
        send_lists(&b, e);
        e->step.bench = e->step.benches = number;
        rc = run(e, &b, &ns); /* warms caches and touches memory */
        /* with several ranks as many runs on each: they meet in every one */
        for (uint32_t i = 0; rc == KG_OK && i < 5 && (spent < LEAST_NS || e->world > 1); i++) {
            uint64_t start = computed_ns(e);
            rc = run(e, &b, &ns);
            spent += computed_ns(e) - start;
            best = ns < best ? ns : best;
        }
        if (rc == KG_OK && kg_model_lost(e->model) != KG_OK)
            rc = KG_EDEVICE;
        if (rc == KG_OK)
            *step_ns = best;
        e->step.bench = 0;
    }
    give_back(e, &b);
    return rc;
}

/* One block of every sequence, with greedy picks. */
static uint64_t run_draft(struct kg_exec *e, const struct bench *b, struct kg_draft_seq *seqs,
                          uint32_t *before)
{
    static const struct kg_sampling greedy = {.top_p = 1.0f};
    uint32_t n_seqs = b->pass.n_seqs;
    uint64_t start = kg_run_now_ns(e);

    kg_drafter_begin(e->draft.drafter, &b->units, seqs, n_seqs);
    for (uint32_t i = 0; i < n_seqs; i++)
        before[i] = seqs[i].anchor;
    for (uint32_t k = 0; k < seqs[0].n; k++) {
        kg_drafter_next(e->draft.drafter, k, before);
        for (uint32_t i = 0; i < n_seqs; i++) {
            struct kg_run_draw *d = &e->step.draws[i];
            *d = (struct kg_run_draw){.is_pick = 1, .window = KG_NONE};
            d->run = (struct kg_accept){.logits = kg_drafter_logits(e->draft.drafter, i, k),
                                        .vocab = e->limits.vocab,
                                        .left = 1,
                                        .force = KG_NONE,
                                        .sampling = &greedy,
                                        .tokens = &before[i]};
        }
        kg_run_draw_all(e, n_seqs);
    }
    return kg_run_now_ns(e) - start;
}

int kg_run_profile_draft(struct kg_exec *e, uint32_t n_seqs, uint32_t n_tokens, uint32_t context,
                         uint64_t *ns)
{
    struct bench b = {0};
    uint64_t best = UINT64_MAX, spent = 0, rows;
    uint32_t block;
    int rc;

    if (!e->bound || e->lost || e->draft.drafter == NULL || e->step.waiting)
        return KG_EINVAL;
    block = e->draft.ckpt->config.block;
    rows = (uint64_t)n_seqs * block;
    if (n_seqs == 0 || n_seqs > e->limits.max_seqs || n_tokens == 0 || n_tokens > block ||
        context == 0 || (uint64_t)context + n_tokens > e->limits.max_context)
        return KG_EINVAL;
    plan_units(&b, e, n_seqs, (uint32_t)rows, context);
    rc = take_lists(&b, e, n_seqs, (uint32_t)rows);
    if (rc == KG_OK) {
        fill(&b, e, n_seqs, (uint32_t)rows, context);
        for (uint32_t i = 0; i < n_seqs; i++) {
            const struct kg_forward_seq *q = &b.seqs[i];
            uint32_t tail = q->pages[context / e->arena.layout.page_tokens];
            e->draft.seqs[i] = (struct kg_draft_seq){.past = context,
                                                     .anchor = b.tokens[q->row0],
                                                     .n = n_tokens,
                                                     .tail = tail,
                                                     .first = tail};
        }
        send_lists(&b, e);
        for (uint32_t i = 0; i < n_seqs; i++)
            e->draft.seqs[i].pages = b.seqs[i].pages;
        (void)run_draft(e, &b, e->draft.seqs, e->draft.before); /* warms caches, touches memory */
        /* with several ranks as many runs on each, as in profile: they meet for the logits */
        for (uint32_t i = 0; i < 5 && (spent < LEAST_NS || e->world > 1); i++) {
            uint64_t start = computed_ns(e);
            uint64_t took = run_draft(e, &b, e->draft.seqs, e->draft.before);
            spent += computed_ns(e) - start;
            best = took < best ? took : best;
        }
        *ns = best;
        e->lost |= kg_drafter_lost(e->draft.drafter) != KG_OK;
        rc = e->lost || kg_model_lost(e->model) != KG_OK ? KG_EDEVICE : KG_OK;
    }
    give_back(e, &b);
    return rc;
}
