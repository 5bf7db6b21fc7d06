#include "model/run.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

uint64_t kg_run_now_ns(const struct kg_exec *e)
{
    struct timespec t;

    (void)clock_gettime(e->cpu_clock ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec +
           atomic_load_explicit(&((struct kg_exec *)(uintptr_t)e)->skipped_ns,
                                memory_order_relaxed);
}

uint32_t kg_run_cpus(void)
{
    cpu_set_t set;
    int n = 1;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        n = CPU_COUNT(&set);
    if (n < 1)
        n = 1;
    return n > KG_TEAM_MAX ? KG_TEAM_MAX : (uint32_t)n;
}

int kg_run_check(const char *name, const struct kg_exec_open *args, struct kg_error *err)
{
    if (args->size < sizeof(*args))
        return kg_fail(err, KG_EABI, "open: size is %zu, wanted at least %zu", args->size,
                       sizeof(*args));
    if (args->model_path == NULL || args->model_path[0] == '\0')
        return kg_fail(err, KG_ECONFIG, "%s needs a checkpoint ([model] path)", name);
    if (args->max_seqs == 0 || args->max_rows == 0)
        return kg_fail(err, KG_ECONFIG, "max_seqs %u and max_rows %u must be at least 1",
                       args->max_seqs, args->max_rows);
    return KG_OK;
}

/* Rows of all windows of a step at their longest. */
static uint32_t most_verified(const struct kg_exec_open *args)
{
    uint64_t n = (uint64_t)args->max_seqs * (1 + (uint64_t)args->max_draft);

    if (args->max_draft == 0)
        return 0;
    return n < args->max_rows ? (uint32_t)n : args->max_rows;
}

static void set_limits(struct kg_exec *e, const struct kg_exec_open *args)
{
    const struct kg_model_config *c = &e->ckpt->config;

    e->limits.max_seqs = args->max_seqs;
    e->limits.max_rows = args->max_rows;
    e->limits.max_orders = KG_RUN_MAX_ORDERS;
    e->limits.max_draft = args->max_draft;
    e->limits.vocab = c->vocab;
    e->limits.max_context = c->max_context;
    if (args->max_context != 0 && args->max_context < e->limits.max_context)
        e->limits.max_context = args->max_context;
}

/* What was found in the folder: nothing of a checkpoint is left out in silence. */
static void report(const struct kg_exec *e, const char *path, const char *draft_path)
{
    const struct kg_host *h = e->host;
    const struct kg_ckpt_info *info = &e->ckpt->info;

    h->log(h->ctx, KG_LOG_INFO, "%s: %llu tensors, %u file%s, %llu MiB packed, %s, %s", path,
           (unsigned long long)info->n_bound, info->n_files, info->n_files == 1 ? "" : "s",
           (unsigned long long)(e->sizes.weight_bytes >> 20), e->kernels_text,
           e->kernels->math == KG_MATH_FAST ? "fast" : "exact");
    if (e->draft.ckpt != NULL)
        h->log(h->ctx, KG_LOG_INFO, "%s: drafter of %u tokens, %llu tensors, %llu KiB packed",
               draft_path, e->draft.ckpt->config.block,
               (unsigned long long)e->draft.ckpt->n_tensors,
               (unsigned long long)(e->draft.sizes.weight_bytes >> 10));
    if (info->n_vision > 0)
        h->log(h->ctx, KG_LOG_INFO, "%s: vision tower skipped: %llu tensors, %llu MiB", path,
               (unsigned long long)info->n_vision, (unsigned long long)(info->vision_bytes >> 20));
    for (uint32_t i = 0; i < KG_CKPT_NAMES && info->ignored[i] != NULL; i++)
        h->log(h->ctx, KG_LOG_WARN, "%s: tensor %s ignored, one of %llu outside the text model",
               path, info->ignored[i], (unsigned long long)info->n_ignored);
}

int kg_run_open(struct kg_exec *e, const struct kg_run_args *run, struct kg_error *err)
{
    const struct kg_exec_open *args = run->open;
    int with_draft = args->draft_path != NULL && args->draft_path[0] != '\0';
    struct kg_model_args model = {.host = e->host,
                                  .kernels = run->kernels,
                                  .team = run->memory == NULL ? e->team : run->device_team,
                                  .memory = run->memory,
                                  .pack_team = e->team,
                                  .max_rows = args->max_rows,
                                  .max_seqs = args->max_seqs,
                                  .max_orders = KG_RUN_MAX_ORDERS,
                                  .max_verify = most_verified(args),
                                  .rewind = run->rewind,
                                  .comm_ops = args->comm_ops,
                                  .comm = args->comm};
    int rc;

    e->memory = run->memory;
    e->kernels = run->kernels;
    e->device_team = model.team;
    e->caps = run->caps;
    e->rewind = run->rewind;
    e->touch = run->touch;
    e->world = args->world;
    model.deal = (struct kg_deal){args->rank, args->world, args->ep, args->allow_idle_rank};
    model.sp_rows = args->world > 1 ? args->sp_rows : 0;
    rc = kg_ckpt_open(args->model_path, &e->ckpt, err);
    if (rc == KG_OK && with_draft)
        rc = kg_run_draft_load(e, args, err);
    if (rc < 0)
        return rc;
    model.draft = with_draft ? &e->draft.ckpt->config : NULL;
    model.ckpt = e->ckpt;
    rc = kg_model_open(&model, &e->model, err);
    if (rc < 0)
        return rc;
    kg_model_sizes(e->model, &e->sizes);
    set_limits(e, args);
    rc = with_draft ? kg_run_draft_open(e, err) : KG_OK;
    if (rc == KG_OK)
        rc = kg_run_sampling_open(e, err);
    if (rc == KG_OK && args->comm != NULL)
        rc = args->comm_ops->seal(args->comm, err);
    if (rc == KG_OK && args->rank == 0)
        report(e, args->model_path, args->draft_path);
    return rc;
}

void kg_run_close(struct kg_exec *e)
{
    const struct kg_host *host = e->host;

    kg_run_step_close(e);
    kg_run_slots_close(&e->slots);
    kg_run_arena_close(&e->arena);
    kg_run_draft_close(e);
    kg_run_sampling_close(e);
    host->free(host->ctx, e->views, e->n_views * sizeof(*e->views));
    kg_model_close(e->model);
    kg_ckpt_close(e->ckpt);
}

void kg_run_describe(const struct kg_exec *e, struct kg_exec_desc *d)
{
    const struct kg_model_config *c = &e->ckpt->config;
    const struct kg_drafter_sizes *draft = &e->draft.sizes; /* zeros without a drafter */

    *d = (struct kg_exec_desc){
        .size = sizeof(*d),
        .caps = e->caps,
        .token_bytes = e->sizes.token_bytes + draft->token_bytes,
        .draft_token_bytes = draft->token_bytes,
        .state_part_bytes = e->sizes.state_part_bytes,
        .recurrent_bytes = e->sizes.recurrent_bytes,
        .weight_bytes = e->sizes.weight_bytes + draft->weight_bytes,
        .scratch_bytes = e->sizes.scratch_bytes + draft->scratch_bytes + e->sampling.bytes,
        .n_state_parts = c->n_kda_layers,
        .page_tokens_align = 1,
        .align = KG_MODEL_ALIGN,
        .n_layers = c->n_layers,
        .n_mla_layers = c->n_mla_layers,
        .n_kda_layers = c->n_kda_layers,
        .vocab = c->vocab,
        .max_context = e->limits.max_context,
        .max_orders = e->limits.max_orders,
        .max_draft = e->limits.max_draft,
        .family = c->family == KG_KIMI_K3 ? "kimi_k3" : "kimi_linear",
        .kernels = e->kernels_text,
        .math = e->kernels->math == KG_MATH_FAST ? "fast" : "exact",
        .record_bytes = e->sizes.verify_row_bytes,
        .rewind_bytes = e->sizes.rewind_bytes,
        .rewind = e->rewind == KG_REWIND_SNAPSHOT ? "snapshot" : "replay",
    };
    if (e->cpu_clock)
        d->caps |= KG_EXEC_CAP_VIRTUAL;
    if (e->draft.ckpt != NULL) {
        d->caps |= KG_EXEC_CAP_DRAFT;
        d->draft_block = e->draft.ckpt->config.block;
        d->draft_weight_bytes = draft->weight_bytes;
        d->draft_q_bytes = kg_run_draft_q_bytes(e);
    }
}

int kg_run_bind(struct kg_exec *e, const struct kg_pool_layout *layout, struct kg_error *err)
{
    struct kg_run_sizes sizes = {.token_bytes = e->sizes.token_bytes + e->draft.sizes.token_bytes,
                                 .state_part_bytes = e->sizes.state_part_bytes,
                                 .n_state_parts = e->ckpt->config.n_kda_layers,
                                 .align = KG_MODEL_ALIGN};
    int rc;

    if (e->bound)
        return kg_fail(err, KG_EINVAL, "bind: the arena is already there");
    e->limits.spare_pages = kg_run_draft_pages(e, layout->page_tokens);
    sizes.n_spare_pages = e->limits.spare_pages * e->limits.max_seqs;
    rc = kg_run_arena_open(&e->arena, e->host, e->memory, &sizes, layout, err);
    if (rc == KG_OK)
        rc = kg_run_slots_open(&e->slots, e->host, &e->limits, layout, err);
    if (rc == KG_OK)
        rc = kg_run_step_open(e, err);
    if (rc == KG_OK)
        rc = kg_run_draft_bind(e, err);
    if (rc == KG_OK)
        rc = kg_run_views_open(e, err);
    if (rc < 0) {
        kg_run_draft_unbind(e);
        kg_run_step_close(e);
        kg_run_slots_close(&e->slots);
        kg_run_arena_close(&e->arena);
        return rc;
    }
    e->units = (struct kg_model_units){
        .arena = e->arena.bytes,
        .layout = *layout,
        .table = {e->arena.pages, e->arena.table[KG_STATE]},
        .slots = e->arena.table[KG_PAGE],
    };
    if (e->touch)
        kg_run_arena_touch(&e->arena, e->team);
    e->bound = 1;
    return KG_OK;
}

int kg_run_apply(struct kg_exec *e, const struct kg_move *moves, uint32_t n_moves,
                 const struct kg_table_change *changes, uint32_t n_changes)
{
    if (!e->bound)
        return KG_EINVAL;
    return kg_run_arena_apply(&e->arena, moves, n_moves, changes, n_changes);
}

void kg_run_drop(struct kg_exec *e, const uint32_t *slots, uint32_t n)
{
    for (uint32_t i = 0; e->bound && i < n; i++)
        kg_run_slot_drop(&e->slots, slots[i]);
}

int kg_run_copy(struct kg_exec *e, uint32_t kind, uint32_t dst, uint32_t src)
{
    return e->bound ? kg_run_unit_copy(&e->arena, kind, dst, src) : KG_EINVAL;
}

int kg_run_zero(struct kg_exec *e, uint32_t kind, uint32_t id)
{
    return e->bound ? kg_run_unit_fill(&e->arena, kind, id, 0) : KG_EINVAL;
}

int kg_run_poison(struct kg_exec *e, uint32_t kind, uint32_t id)
{
    /* All bits set is a NaN in fp32 and in bf16. */
    return e->bound ? kg_run_unit_fill(&e->arena, kind, id, 0xff) : KG_EINVAL;
}

int kg_run_read(struct kg_exec *e, uint32_t kind, uint32_t id, void *dst, uint64_t n)
{
    return e->bound ? kg_run_unit_read(&e->arena, kind, id, dst, n) : KG_EINVAL;
}

int kg_run_write(struct kg_exec *e, uint32_t kind, uint32_t id, const void *src, uint64_t n)
{
    return e->bound ? kg_run_unit_write(&e->arena, kind, id, src, n) : KG_EINVAL;
}

int kg_run_views(const struct kg_exec *e, const struct kg_view **views, uint32_t *n)
{
    if (!e->bound)
        return KG_EINVAL;
    *views = e->views;
    *n = e->n_views;
    return KG_OK;
}

uint32_t kg_run_messages(const struct kg_exec *e, uint32_t rows, uint32_t samples,
                         struct kg_message *messages, uint32_t n)
{
    return kg_model_messages(e->model, rows, samples, messages, n);
}

int kg_run_dealt(const struct kg_exec *e, struct kg_dealt *dealt)
{
    return kg_model_dealt(e->model, e->ckpt, dealt);
}
