#include "cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const struct kg_opt options[] = {
    {"math", KG_OPT_ENUM, 0, offsetof(struct cpu_conf, math), "exact", 0, 0, "exact|fast",
     "Arithmetic. exact: fp32 activations, pages and convolution windows; equal bits on every "
     "instruction set. fast: bf16 products, pages and windows: half the page bytes and more "
     "speed, within bounds of its own. Either is reproducible to the bit within itself."},
    {"threads", KG_OPT_U32, 0, offsetof(struct cpu_conf, threads), "0", 0, KG_TEAM_MAX, NULL,
     "Threads that compute; 0 takes every CPU the process may use. Results do not depend on it. "
     "Unit: threads."},
    {"isa", KG_OPT_ENUM, 0, offsetof(struct cpu_conf, isa), "auto", 0, 0, "auto|ref|avx2|avx512",
     "Most instructions to use; auto takes the best this CPU has, ref is plain C. In exact math "
     "the results are the same bits."},
    {"rewind", KG_OPT_ENUM, 0, offsetof(struct cpu_conf, rewind), "replay", 0, 0, "replay|snapshot",
     "How rejected drafts are undone. replay: each verified row leaves a small record, accepted "
     "ones are applied to the state. snapshot: a whole state is kept after each verified row, the "
     "reference. The results are the same bits; kedge check prints the bytes of both."},
    {"clock", KG_OPT_ENUM, 0, offsetof(struct cpu_conf, clock), "real", 0, 0, "real|cpu",
     "cpu: time is what this process computed, waiting is skipped; for kedge replay on a machine "
     "that does other things too. Needs threads = 1."},
    {NULL, 0, 0, 0, NULL, 0, 0, NULL, NULL},
};

uint64_t cpu_now_ns(const struct kg_exec *e)
{
    struct timespec t;

    (void)clock_gettime(e->cpu_clock ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec +
           atomic_load_explicit(&((struct kg_exec *)(uintptr_t)e)->skipped_ns,
                                memory_order_relaxed);
}

static uint32_t count_cpus(void)
{
    cpu_set_t set;
    int n = 1;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        n = CPU_COUNT(&set);
    if (n < 1)
        n = 1;
    return n > KG_TEAM_MAX ? KG_TEAM_MAX : (uint32_t)n;
}

static enum kg_isa isa_limit(uint32_t isa)
{
    switch (isa) {
    case CPU_ISA_REF:
        return KG_ISA_REF;
    case CPU_ISA_AVX2:
        return KG_ISA_AVX2;
    case CPU_ISA_AVX512:
        return KG_ISA_AVX512;
    default:
        return KG_ISA_AVX512_BF16;
    }
}

static void cpu_close(struct kg_exec *e)
{
    const struct kg_host *host;

    if (e == NULL)
        return;
    host = e->host;
    cpu_step_close(e);
    cpu_slots_close(&e->slots);
    cpu_arena_close(&e->arena);
    cpu_draft_close(e);
    host->free(host->ctx, e->views, e->n_views * sizeof(*e->views));
    kg_model_close(e->model);
    kg_team_destroy(e->team);
    kg_ckpt_close(e->ckpt);
    host->free(host->ctx, e, sizeof(*e));
}

static int check_args(const struct kg_exec_open *args, struct kg_error *err)
{
    if (args->size < sizeof(*args))
        return kg_fail(err, KG_EABI, "open: size is %zu, wanted at least %zu", args->size,
                       sizeof(*args));
    if (args->world > 1 && args->draft_path != NULL && args->draft_path[0] != '\0')
        return kg_fail(err, KG_ECONFIG,
                       "[parallel] tp = %u: exec-cpu runs a drafter in one rank only", args->world);
    if (args->model_path == NULL || args->model_path[0] == '\0')
        return kg_fail(err, KG_ECONFIG, "exec-cpu needs a checkpoint ([model] path)");
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

static int load(struct kg_exec *e, const struct cpu_conf *conf, const struct kg_exec_open *args,
                struct kg_error *err)
{
    int with_draft = args->draft_path != NULL && args->draft_path[0] != '\0';
    struct kg_model_args model = {.host = e->host,
                                  .max_rows = args->max_rows,
                                  .max_seqs = args->max_seqs,
                                  .max_orders = CPU_MAX_ORDERS,
                                  .rewind = conf->rewind};
    int rc;

    model.max_verify = most_verified(args);
    e->world = args->world;
    model.deal = (struct kg_deal){args->rank, args->world, args->ep, args->allow_idle_rank};
    model.comm_ops = args->comm_ops;
    model.comm = args->comm;
    e->threads = conf->threads == 0 ? count_cpus() / args->world : conf->threads;
    e->threads += e->threads == 0; /* more ranks than cores */
    e->kernels = kg_kernels_cpu(conf->math, isa_limit(conf->isa));
    (void)snprintf(e->kernels_text, sizeof(e->kernels_text), "%s, %u thread%s", e->kernels->name,
                   e->threads, e->threads == 1 ? "" : "s");
    rc = kg_team_create(e->threads, &e->team, err);
    if (rc == KG_OK)
        rc = kg_ckpt_open(args->model_path, &e->ckpt, err);
    if (rc == KG_OK && with_draft)
        rc = cpu_draft_load(e, args, err);
    if (rc < 0)
        return rc;
    model.draft = with_draft ? &e->draft.ckpt->config : NULL;
    model.kernels = e->kernels;
    model.team = e->team;
    model.ckpt = e->ckpt;
    rc = kg_model_open(&model, &e->model, err);
    if (rc < 0)
        return rc;
    kg_model_sizes(e->model, &e->sizes);
    e->limits.max_seqs = args->max_seqs;
    e->limits.max_rows = args->max_rows;
    e->limits.max_orders = CPU_MAX_ORDERS;
    e->limits.max_draft = args->max_draft;
    e->rewind = conf->rewind;
    e->limits.vocab = e->ckpt->config.vocab;
    e->limits.max_context = e->ckpt->config.max_context;
    if (args->max_context != 0 && args->max_context < e->limits.max_context)
        e->limits.max_context = args->max_context;
    return with_draft ? cpu_draft_open(e, err) : KG_OK;
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

static int cpu_open(const struct kg_host *host, const void *conf, const struct kg_exec_open *args,
                    struct kg_exec **exec, struct kg_error *err)
{
    struct kg_exec *e;
    int rc = check_args(args, err);

    if (rc < 0)
        return rc;
    e = host->alloc(host->ctx, sizeof(*e), 64);
    if (e == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for an instance of exec-cpu");
    memset(e, 0, sizeof(*e));
    e->host = host;
    e->cpu_clock = ((const struct cpu_conf *)conf)->clock;
    rc = load(e, conf, args, err);
    if (rc == KG_OK && args->comm != NULL)
        rc = args->comm_ops->seal(args->comm, err);
    if (rc == KG_OK && e->cpu_clock && ((const struct cpu_conf *)conf)->threads != 1)
        rc = kg_fail(err, KG_ECONFIG, "[exec-cpu] clock = cpu counts one thread: set threads = 1");
    if (rc < 0) {
        cpu_close(e);
        return rc;
    }
    if (args->rank == 0)
        report(e, args->model_path, args->draft_path);
    *exec = e;
    return KG_OK;
}

static void cpu_describe(const struct kg_exec *e, struct kg_exec_desc *d)
{
    const struct kg_model_config *c = &e->ckpt->config;
    const struct kg_drafter_sizes *draft = &e->draft.sizes; /* zeros without a drafter */

    *d = (struct kg_exec_desc){
        .size = sizeof(*d),
        .caps = KG_EXEC_CAP_INVARIANT_BATCH | KG_EXEC_CAP_INVARIANT_CHUNK |
                KG_EXEC_CAP_INVARIANT_PATH | KG_EXEC_CAP_VERIFY | KG_EXEC_CAP_LOGITS |
                KG_EXEC_CAP_VIEWS | KG_EXEC_CAP_RANKS,
        .token_bytes = e->sizes.token_bytes + draft->token_bytes,
        .draft_token_bytes = draft->token_bytes,
        .state_part_bytes = e->sizes.state_part_bytes,
        .recurrent_bytes = e->sizes.recurrent_bytes,
        .weight_bytes = e->sizes.weight_bytes + draft->weight_bytes,
        .scratch_bytes = e->sizes.scratch_bytes + draft->scratch_bytes,
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
        d->draft_q_bytes = cpu_draft_q_bytes(e);
    }
}

static int cpu_bind(struct kg_exec *e, const struct kg_pool_layout *layout, struct kg_error *err)
{
    struct cpu_sizes sizes = {.token_bytes = e->sizes.token_bytes + e->draft.sizes.token_bytes,
                              .state_part_bytes = e->sizes.state_part_bytes,
                              .n_state_parts = e->ckpt->config.n_kda_layers,
                              .align = KG_MODEL_ALIGN};
    int rc;

    if (e->bound)
        return kg_fail(err, KG_EINVAL, "bind: the arena is already there");
    e->limits.spare_pages = cpu_draft_pages(e, layout->page_tokens);
    sizes.n_spare_pages = e->limits.spare_pages * e->limits.max_seqs;
    rc = cpu_arena_open(&e->arena, e->host, &sizes, layout, err);
    if (rc == KG_OK)
        rc = cpu_slots_open(&e->slots, e->host, &e->limits, layout, err);
    if (rc == KG_OK)
        rc = cpu_step_open(e, err);
    if (rc == KG_OK)
        rc = cpu_draft_bind(e, err);
    if (rc == KG_OK)
        rc = cpu_views_open(e, err);
    if (rc < 0) {
        cpu_draft_unbind(e);
        cpu_step_close(e);
        cpu_slots_close(&e->slots);
        cpu_arena_close(&e->arena);
        return rc;
    }
    e->units = (struct kg_model_units){
        .arena = e->arena.bytes,
        .layout = *layout,
        .table = {e->arena.table[KG_PAGE], e->arena.table[KG_STATE]},
    };
    e->bound = 1;
    return KG_OK;
}

static int cpu_apply(struct kg_exec *e, const struct kg_move *moves, uint32_t n_moves,
                     const struct kg_table_change *changes, uint32_t n_changes)
{
    if (!e->bound)
        return KG_EINVAL;
    return cpu_arena_apply(&e->arena, moves, n_moves, changes, n_changes);
}

static void cpu_drop(struct kg_exec *e, const uint32_t *slots, uint32_t n)
{
    for (uint32_t i = 0; e->bound && i < n; i++)
        cpu_slot_drop(&e->slots, slots[i]);
}

static int cpu_copy(struct kg_exec *e, uint32_t kind, uint32_t dst, uint32_t src)
{
    return e->bound ? cpu_unit_copy(&e->arena, kind, dst, src) : KG_EINVAL;
}

static int cpu_zero(struct kg_exec *e, uint32_t kind, uint32_t id)
{
    return e->bound ? cpu_unit_fill(&e->arena, kind, id, 0) : KG_EINVAL;
}

static int cpu_poison(struct kg_exec *e, uint32_t kind, uint32_t id)
{
    /* All bits set is a NaN in fp32 and in bf16. */
    return e->bound ? cpu_unit_fill(&e->arena, kind, id, 0xff) : KG_EINVAL;
}

static int cpu_read(struct kg_exec *e, uint32_t kind, uint32_t id, void *dst, uint64_t n)
{
    return e->bound ? cpu_unit_read(&e->arena, kind, id, dst, n) : KG_EINVAL;
}

static int cpu_write(struct kg_exec *e, uint32_t kind, uint32_t id, const void *src, uint64_t n)
{
    return e->bound ? cpu_unit_write(&e->arena, kind, id, src, n) : KG_EINVAL;
}

static uint64_t cpu_now(const struct kg_exec *e)
{
    return cpu_now_ns(e);
}

static void cpu_advance(struct kg_exec *e, uint64_t t_ns)
{
    uint64_t now = cpu_now_ns(e);

    if (e->cpu_clock && t_ns > now)
        atomic_fetch_add_explicit(&e->skipped_ns, t_ns - now, memory_order_relaxed);
}

static int cpu_views(const struct kg_exec *e, const struct kg_view **views, uint32_t *n)
{
    if (!e->bound)
        return KG_EINVAL;
    *views = e->views;
    *n = e->n_views;
    return KG_OK;
}

static uint32_t cpu_messages(const struct kg_exec *e, uint32_t rows, uint32_t samples,
                             struct kg_message *messages, uint32_t n)
{
    return kg_model_messages(e->model, rows, samples, messages, n);
}

static const struct kg_exec_ops ops = {
    .size = sizeof(ops),
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .bind = cpu_bind,
    .apply = cpu_apply,
    .submit = cpu_submit,
    .wait = cpu_wait,
    .drop = cpu_drop,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .poison = cpu_poison,
    .read = cpu_read,
    .write = cpu_write,
    .profile = cpu_profile,
    .now = cpu_now,
    .draft = cpu_draft,
    .advance = cpu_advance,
    .views = cpu_views,
    .profile_draft = cpu_profile_draft,
    .messages = cpu_messages,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_EXEC,
    .size = sizeof(plugin),
    .major = KG_EXEC_MAJOR,
    .minor = KG_EXEC_MINOR,
    .needs_minor = 3, /* all of kg_exec_open, of kg_result and of kg_exec_desc */
    .name = "cpu",
    .version = KG_VERSION,
    .summary = "Kimi K3 and Kimi-Linear on the CPU, reproducible to the bit",
    .caps = KG_EXEC_CAP_INVARIANT_BATCH | KG_EXEC_CAP_INVARIANT_CHUNK | KG_EXEC_CAP_INVARIANT_PATH |
            KG_EXEC_CAP_DRAFT | KG_EXEC_CAP_VERIFY | KG_EXEC_CAP_LOGITS | KG_EXEC_CAP_VIEWS |
            KG_EXEC_CAP_VIRTUAL | KG_EXEC_CAP_RANKS,
    .opts = options,
    .conf_size = sizeof(struct cpu_conf),
    .ops = &ops,
};

KG_EXPORT const struct kg_plugin *kg_plugin_entry(void);

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
