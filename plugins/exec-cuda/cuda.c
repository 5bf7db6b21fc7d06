/*
 * The backend on a CUDA device: core/model over the kernels of kernels/cuda. One context, one
 * stream; all that is queued, unit traffic and steps alike, runs in the order of the calls.
 */
#include "kernels/cuda/sample.h"
#include "model/run.h"

#include <stdio.h>
#include <string.h>

#ifndef CUDA_NAME
#define CUDA_NAME "cuda" /* tests build the same sources over an emulated device */
#endif

/* Options, filled by the core. */
struct cuda_conf {
    uint32_t device;
    uint32_t math;    /* enum kg_math */
    uint32_t graphs;  /* recorded steps kept; 0: none */
    uint32_t threads; /* of the host; 0: as many as the process may use */
    uint32_t rewind;  /* enum kg_rewind */
    uint32_t stage_mib;
    uint32_t host_draws; /* 1: the host draws all tokens */
};

static const struct kg_opt options[] = {
    {"device", KG_OPT_U32, 0, offsetof(struct cuda_conf, device), "0", 0, 255, NULL,
     "Ordinal of the device. Unit: none."},
    {"math", KG_OPT_ENUM, 0, offsetof(struct cuda_conf, math), "exact", 0, 0, "exact|fast",
     "Arithmetic. exact: fp32 activations, pages and convolution windows; the bits of exec-cpu in "
     "exact math. fast: bf16 products on tensor cores, bf16 pages and windows."},
    {"graphs", KG_OPT_U32, 0, offsetof(struct cuda_conf, graphs), "64", 0, 4096, NULL,
     "Steps that only decode are recorded once per number of sequences and doubling of the longest "
     "context, and launched whole from then on; this many recordings are kept, 0: none. Unit: "
     "steps."},
    {"threads", KG_OPT_U32, 0, offsetof(struct cuda_conf, threads), "0", 0, KG_TEAM_MAX, NULL,
     "Host threads that pack weights and draw tokens; 0 takes every CPU the process may use. "
     "Results do not depend on it. Unit: threads."},
    {"rewind", KG_OPT_ENUM, 0, offsetof(struct cuda_conf, rewind), "replay", 0, 0,
     "replay|snapshot",
     "How rejected drafts are undone. replay: each verified row leaves a small record, accepted "
     "ones are applied to the state. snapshot: a whole state is kept after each verified row, the "
     "reference."},
    {"stage_mib", KG_OPT_U32, 0, offsetof(struct cuda_conf, stage_mib), "8", 1, 1024, NULL,
     "Page-locked memory for the lists of one step on their way to the device, twice, and three "
     "times on it. Unit: MiB."},
    {"draws", KG_OPT_ENUM, 0, offsetof(struct cuda_conf, host_draws), "device", 0, 0, "device|host",
     "Where tokens are drawn. device: where the logits are; only those that somebody asked for, "
     "and "
     "of windows judged by rejection or block, come to the host. host: all of them come, to be "
     "compared with. The tokens are the same."},
    {NULL, 0, 0, 0, NULL, 0, 0, NULL, NULL},
};

#define CUDA_CAPS                                                                      \
    (KG_EXEC_CAP_VERIFY | KG_EXEC_CAP_LOGITS | KG_EXEC_CAP_VIEWS | KG_EXEC_CAP_ASYNC | \
     KG_EXEC_CAP_CUDA | KG_EXEC_CAP_RANKS)
/* Of exact math. Fast takes 16 rows of a prefill at once, where the cuts of the prompt allow it, so
 * its bits depend on cuts and differ from those of decoding; not on the batch. */
#define CUDA_INVARIANT \
    (KG_EXEC_CAP_INVARIANT_BATCH | KG_EXEC_CAP_INVARIANT_CHUNK | KG_EXEC_CAP_INVARIANT_PATH)
#define CUDA_INVARIANT_FAST KG_EXEC_CAP_INVARIANT_BATCH

struct cuda_exec {
    struct kg_exec e; /* first: the members of kg_exec_ops are given its address */
    struct kg_cuda *cuda;
    struct kg_memory memory;
    struct kg_sampler sampler;
    struct kg_cuda_window *windows; /* [max_windows] of a call */
    uint32_t max_windows;
    /* With other ranks; NULL else. */
    const struct kg_comm_ops *comm_ops;
    struct kg_comm *comm;
    int sealed; /* collectives may be in the stream */
};

/* ---- memory ------------------------------------------------------------------------------ */

static struct kg_cuda *cuda_of(void *ctx)
{
    return ((struct cuda_exec *)ctx)->cuda;
}

static int mem_alloc(void *ctx, uint64_t bytes, void **p, struct kg_error *err)
{
    return kg_cuda_alloc(cuda_of(ctx), bytes, p, err);
}

static void mem_free(void *ctx, void *p)
{
    kg_cuda_free(cuda_of(ctx), p);
}

static int mem_alloc_host(void *ctx, uint64_t bytes, void **p, struct kg_error *err)
{
    return kg_cuda_alloc_host(cuda_of(ctx), bytes, p, err);
}

static void mem_free_host(void *ctx, void *p)
{
    kg_cuda_free_host(cuda_of(ctx), p);
}

static void mem_upload(void *ctx, void *dst, const void *host, uint64_t bytes)
{
    kg_cuda_upload(cuda_of(ctx), dst, host, bytes);
}

static void mem_download(void *ctx, void *host, const void *src, uint64_t bytes)
{
    kg_cuda_download(cuda_of(ctx), host, src, bytes);
}

static void mem_copy(void *ctx, void *dst, const void *src, uint64_t bytes)
{
    kg_cuda_copy(cuda_of(ctx), dst, src, bytes);
}

static void mem_fill(void *ctx, void *p, uint8_t byte, uint64_t bytes)
{
    kg_cuda_fill(cuda_of(ctx), p, byte, bytes);
}

/* An error of this rank's own: the others would wait for its collectives. */
static int mem_sync(void *ctx, struct kg_error *err)
{
    struct cuda_exec *c = ctx;
    int rc = kg_cuda_sync(c->cuda, err);

    if (rc < 0 && c->sealed)
        c->comm_ops->abort(c->comm);
    return rc;
}

static void mem_begin(void *ctx, uint64_t key, uint32_t context)
{
    kg_cuda_begin(cuda_of(ctx), key, context);
}

/* Collectives of a replayed step are seen by nobody: the whole of it is timed. */
static void mem_end(void *ctx)
{
    struct cuda_exec *c = ctx;
    void *stream;

    kg_cuda_end(c->cuda);
    stream = c->sealed ? kg_cuda_guest(c->cuda) : NULL;
    if (stream != NULL)
        (void)c->comm_ops->watch(c->comm, 0, stream); /* poll says what became of the group */
}

static void *mem_guest(void *ctx)
{
    struct cuda_exec *c = ctx;

    return kg_cuda_guest(c->cuda);
}

/* While the host waits for the stream: a rank that is dead or stuck ends the wait. */
static int meanwhile(void *ctx)
{
    struct cuda_exec *c = ctx;

    return c->sealed && c->comm_ops->poll(c->comm) != KG_OK;
}

static void mem_mark(void *ctx, uint32_t mark)
{
    kg_cuda_mark(cuda_of(ctx), mark);
}

static uint64_t mem_time_ns(void *ctx)
{
    return kg_cuda_time_ns(cuda_of(ctx), 0, 1);
}

/* ---- draws ------------------------------------------------------------------------------- */

_Static_assert(KG_CUDA_STOP_IDS == KG_MAX_STOP_IDS && KG_CUDA_LOGPROBS == KG_MAX_LOGPROBS &&
                   KG_CUDA_NAN == KG_RES_NAN && KG_CUDA_STOP == KG_RES_STOP &&
                   sizeof(struct kg_cuda_logprob) == sizeof(struct kg_logprob) &&
                   sizeof(struct kg_cuda_accepted) == sizeof(struct kg_accepted),
               "the kernels write what core/model reads");

static uint64_t draw_scratch(void *ctx, uint32_t at_once, uint32_t rows, uint32_t vocab)
{
    (void)ctx;
    return kg_cuda_sample_scratch_bytes(at_once, vocab) + ((uint64_t)rows * 32 + 255) / 256 * 256;
}

static struct kg_cuda_sampling sampling_of(const struct kg_sampling *s)
{
    struct kg_cuda_sampling to = {.temperature = s->temperature,
                                  .top_p = s->top_p,
                                  .min_p = s->min_p,
                                  .repetition_penalty = s->repetition_penalty,
                                  .frequency_penalty = s->frequency_penalty,
                                  .presence_penalty = s->presence_penalty,
                                  .top_k = s->top_k,
                                  .n_logprobs = s->n_logprobs,
                                  .min_tokens = s->min_tokens,
                                  .n_stop_ids = s->n_stop_ids,
                                  .seed = s->seed};

    memcpy(to.stop_ids, s->stop_ids, sizeof(to.stop_ids));
    return to;
}

static int draw(void *ctx, const struct kg_sampler_window *windows, uint32_t n, uint32_t vocab,
                void *scratch, uint64_t scratch_bytes, struct kg_error *err)
{
    struct cuda_exec *c = ctx;

    if (n > c->max_windows)
        return kg_fail(err, KG_EINVAL, "%u windows, most is %u", n, c->max_windows);
    for (uint32_t i = 0; i < n; i++) {
        const struct kg_accept *run = &windows[i].run;
        c->windows[i] = (struct kg_cuda_window){
            .logits = run->logits,
            .hidden = run->hidden,
            .drafts = run->drafts,
            .echo = windows[i].echo,
            .counts = windows[i].counts,
            .width = run->width,
            .position = run->position,
            .output_start = run->output_start,
            .n_draft = run->n_draft,
            .left = run->left,
            .force = run->force,
            .sampling = sampling_of(run->sampling),
            .tokens = run->tokens,
            .logprobs = (struct kg_cuda_logprob *)(void *)run->logprobs,
            .accepted = (struct kg_cuda_accepted *)(void *)windows[i].accepted,
        };
    }
    return kg_cuda_sample(c->cuda, c->windows, n, vocab, KG_ACCEPT_COUPLED, scratch, scratch_bytes,
                          err);
}

static void count(void *ctx, uint32_t *counts, uint32_t vocab, const uint32_t *tokens, uint32_t n,
                  uint32_t output)
{
    struct cuda_exec *c = ctx;

    kg_cuda_sample_count(c->cuda, counts, vocab, tokens, n, output);
}

/* A sampler over lists for two windows of each sequence. */
static int fill_sampler(struct cuda_exec *c, uint32_t max_seqs, struct kg_error *err)
{
    const struct kg_host *host = c->e.host;

    c->max_windows = 2 * max_seqs;
    c->windows = host->alloc(host->ctx, c->max_windows * sizeof(*c->windows), 64);
    if (c->windows == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for lists of %u windows", c->max_windows);
    c->sampler =
        (struct kg_sampler){.ctx = c, .scratch_bytes = draw_scratch, .draw = draw, .count = count};
    c->memory.sampler = &c->sampler;
    return KG_OK;
}

/* ---- life -------------------------------------------------------------------------------- */

static void fill_memory(struct cuda_exec *c, const struct cuda_conf *conf)
{
    /* Steps with collectives are recorded where the collectives can be, and watched. */
    int graphs =
        conf->graphs > 0 && (c->comm == NULL || KG_HAS(c->comm_ops, struct kg_comm_ops, watch));

    c->memory = (struct kg_memory){
        .ctx = c,
        .alloc = mem_alloc,
        .free = mem_free,
        .alloc_host = mem_alloc_host,
        .free_host = mem_free_host,
        .upload = mem_upload,
        .download = mem_download,
        .copy = mem_copy,
        .fill = mem_fill,
        .sync = mem_sync,
        .begin = graphs ? mem_begin : NULL,
        .end = mem_end,
        .guest = mem_guest,
        .mark = mem_mark,
        .time_ns = mem_time_ns,
    };
}

static void cuda_close(struct kg_exec *e)
{
    struct cuda_exec *c = (struct cuda_exec *)(void *)e;
    const struct kg_host *host;

    if (e == NULL)
        return;
    host = e->host;
    if (c->cuda != NULL) /* what is freed waits in the driver */
        kg_cuda_drain(c->cuda);
    kg_run_close(e);
    kg_team_destroy(e->team);
    kg_cuda_close(c->cuda);
    host->free(host->ctx, c->windows, c->max_windows * sizeof(*c->windows));
    host->free(host->ctx, c, sizeof(*c));
}

static int check_args(const struct cuda_conf *conf, const struct kg_exec_open *args,
                      struct kg_error *err)
{
    int rc = kg_run_check("exec-" CUDA_NAME, args, err);

    if (rc < 0)
        return rc;
    if (args->world > 1 && conf->device != 0)
        return kg_fail(err, KG_ECONFIG,
                       "[exec-" CUDA_NAME "] device = %u with [parallel] tp = %u: rank r computes "
                       "on device r",
                       conf->device, args->world);
    return KG_OK;
}

static int load(struct cuda_exec *c, const struct cuda_conf *conf, const struct kg_exec_open *args,
                struct kg_error *err)
{
    struct kg_cuda_args open = {.device = args->world > 1 ? args->rank : conf->device,
                                .stage_bytes = (uint64_t)conf->stage_mib << 20,
                                .n_graphs = conf->graphs,
                                .meanwhile = args->comm != NULL ? meanwhile : NULL,
                                .ctx = c};
    struct kg_run_args run = {
        .open = args, .memory = &c->memory, .rewind = conf->rewind, .caps = CUDA_CAPS};
    struct kg_cuda_facts facts;
    int rc = kg_cuda_open(&open, &c->cuda, err);

    if (rc < 0)
        return rc;
    kg_cuda_facts(c->cuda, &facts);
    fill_memory(c, conf);
    if (!conf->host_draws)
        rc = fill_sampler(c, args->max_seqs, err);
    if (rc < 0)
        return rc;
    run.kernels = kg_kernels_cuda(conf->math);
    run.device_team = kg_cuda_team(c->cuda);
    run.caps |= conf->math == KG_MATH_EXACT ? CUDA_INVARIANT : CUDA_INVARIANT_FAST;
    c->e.threads = conf->threads == 0 ? kg_run_cpus() : conf->threads;
    (void)snprintf(c->e.kernels_text, sizeof(c->e.kernels_text), "%.70s, %u graphs", facts.name,
                   conf->graphs);
    rc = kg_team_create(c->e.threads, &c->e.team, err);
    if (rc == KG_OK)
        rc = kg_run_open(&c->e, &run, err);
    c->sealed = rc == KG_OK && args->comm != NULL;
    return rc;
}

static int cuda_open(const struct kg_host *host, const void *conf, const struct kg_exec_open *args,
                     struct kg_exec **exec, struct kg_error *err)
{
    struct cuda_exec *c;
    int rc = check_args(conf, args, err);

    if (rc < 0)
        return rc;
    c = host->alloc(host->ctx, sizeof(*c), 64);
    if (c == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for an instance of exec-" CUDA_NAME);
    memset(c, 0, sizeof(*c));
    c->e.host = host;
    c->e.name = "exec-" CUDA_NAME;
    c->comm_ops = args->comm_ops;
    c->comm = args->comm;
    rc = load(c, conf, args, err);
    if (rc < 0) {
        cuda_close(&c->e);
        return rc;
    }
    *exec = &c->e;
    return KG_OK;
}

static const struct kg_exec_ops ops = {
    .size = sizeof(ops),
    .open = cuda_open,
    .close = cuda_close,
    .describe = kg_run_describe,
    .bind = kg_run_bind,
    .apply = kg_run_apply,
    .submit = kg_run_submit,
    .wait = kg_run_wait,
    .drop = kg_run_drop,
    .copy = kg_run_copy,
    .zero = kg_run_zero,
    .poison = kg_run_poison,
    .read = kg_run_read,
    .write = kg_run_write,
    .profile = kg_run_profile,
    .now = kg_run_now_ns,
    .draft = kg_run_draft,
    .views = kg_run_views,
    .profile_draft = kg_run_profile_draft,
    .messages = kg_run_messages,
    .dealt = kg_run_dealt,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_EXEC,
    .size = sizeof(plugin),
    .major = KG_EXEC_MAJOR,
    .minor = KG_EXEC_MINOR,
    .needs_minor = 3, /* all of kg_exec_open, of kg_result and of kg_exec_desc */
    .name = CUDA_NAME,
    .version = KG_VERSION,
    .summary = "Kimi K3 and Kimi-Linear on CUDA devices; exact math has the bits of exec-cpu",
    /* invariants of exact math: describe says what an instance has */
    .caps = CUDA_CAPS | CUDA_INVARIANT | KG_EXEC_CAP_DRAFT,
    .opts = options,
    .conf_size = sizeof(struct cuda_conf),
    .ops = &ops,
};

KG_EXPORT const struct kg_plugin *kg_plugin_entry(void);

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
