#include "model/run.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Options, filled by the core. */
struct cpu_conf {
    uint32_t math;    /* enum kg_math */
    uint32_t threads; /* 0: as many as the process may use */
    uint32_t isa;     /* enum cpu_isa */
    uint32_t rewind;  /* enum kg_rewind */
    uint32_t clock;   /* 0 real, 1 CPU time of the process */
    uint32_t touch;   /* 1: the arena's memory is brought in at start */
};

enum cpu_isa {
    CPU_ISA_AUTO = 0,
    CPU_ISA_REF = 1,
    CPU_ISA_AVX2 = 2,
    CPU_ISA_AVX512 = 3,
    CPU_ISA_AVX512_BF16 = 4,
    CPU_ISA_AVX512_FP16 = 5,
};

#define CPU_CAPS                                                                              \
    (KG_EXEC_CAP_INVARIANT_BATCH | KG_EXEC_CAP_INVARIANT_CHUNK | KG_EXEC_CAP_INVARIANT_PATH | \
     KG_EXEC_CAP_VERIFY | KG_EXEC_CAP_LOGITS | KG_EXEC_CAP_VIEWS | KG_EXEC_CAP_RANKS)

static const struct kg_opt options[] = {
    {"math", KG_OPT_ENUM, 0, offsetof(struct cpu_conf, math), "exact", 0, 0, "exact|fast",
     "Arithmetic. exact: fp32 activations, pages and convolution windows; equal bits on every "
     "instruction set. fast: bf16 products, pages and windows or, on a CPU with fp16 arithmetic, "
     "fp16 products with weights rounded to 12 bits; half the page bytes and more speed, within "
     "bounds of its own. Either is reproducible to the bit within itself."},
    {"threads", KG_OPT_U32, 0, offsetof(struct cpu_conf, threads), "0", 0, KG_TEAM_MAX, NULL,
     "Threads that compute; 0 takes every CPU the process may use. Results do not depend on it. "
     "Unit: threads."},
    {"isa", KG_OPT_ENUM, 0, offsetof(struct cpu_conf, isa), "auto", 0, 0,
     "auto|ref|avx2|avx512|avx512-bf16|avx512-fp16",
     "Most instructions to use; auto takes what is quickest on this CPU, ref is plain C. In exact "
     "math the results are the same bits."},
    {"rewind", KG_OPT_ENUM, 0, offsetof(struct cpu_conf, rewind), "replay", 0, 0, "replay|snapshot",
     "How rejected drafts are undone. replay: each verified row leaves a small record, accepted "
     "ones are applied to the state. snapshot: a whole state is kept after each verified row, the "
     "reference. The results are the same bits; kedge check prints the bytes of both."},
    {"clock", KG_OPT_ENUM, 0, offsetof(struct cpu_conf, clock), "real", 0, 0, "real|cpu",
     "cpu: time is what this process computed, waiting is skipped; for kedge replay on a machine "
     "that does other things too. Needs threads = 1."},
    {"touch", KG_OPT_BOOL, 0, offsetof(struct cpu_conf, touch), "yes", 0, 0, NULL,
     "Bring all of [memory] bytes in at start. no: the kernel brings each page in when a step uses "
     "it first, so memory nobody used yet is free for others, and those steps take longer. With "
     "more than the machine has, the kernel ends the process, at start or then."},
    {NULL, 0, 0, 0, NULL, 0, 0, NULL, NULL},
};

static const struct kg_kernels *kernels_of(const struct cpu_conf *conf)
{
    static const enum kg_isa limits[] = {[CPU_ISA_REF] = KG_ISA_REF,
                                         [CPU_ISA_AVX2] = KG_ISA_AVX2,
                                         [CPU_ISA_AVX512] = KG_ISA_AVX512,
                                         [CPU_ISA_AVX512_BF16] = KG_ISA_AVX512_BF16,
                                         [CPU_ISA_AVX512_FP16] = KG_ISA_AVX512_FP16};

    if (conf->isa == CPU_ISA_AUTO)
        return kg_kernels_best(conf->math);
    return kg_kernels_cpu(conf->math, limits[conf->isa]);
}

static void cpu_close(struct kg_exec *e)
{
    const struct kg_host *host;

    if (e == NULL)
        return;
    host = e->host;
    kg_run_close(e);
    kg_team_destroy(e->team);
    host->free(host->ctx, e, sizeof(*e));
}

static int load(struct kg_exec *e, const struct cpu_conf *conf, const struct kg_exec_open *args,
                struct kg_error *err)
{
    struct kg_run_args run = {
        .open = args, .rewind = conf->rewind, .touch = conf->touch, .caps = CPU_CAPS};

    if (conf->clock && conf->threads != 1)
        return kg_fail(err, KG_ECONFIG,
                       "[exec-cpu] clock = cpu counts one thread: set threads = 1");
    e->cpu_clock = conf->clock;
    run.caps |= conf->clock ? KG_EXEC_CAP_VIRTUAL : 0;
    e->threads = conf->threads == 0 ? kg_run_cpus() / args->world : conf->threads;
    e->threads += e->threads == 0; /* more ranks than cores */
    run.kernels = kernels_of(conf);
    (void)snprintf(e->kernels_text, sizeof(e->kernels_text), "%s, %u thread%s", run.kernels->name,
                   e->threads, e->threads == 1 ? "" : "s");
    int rc = kg_team_create(e->threads, &e->team, err);

    return rc < 0 ? rc : kg_run_open(e, &run, err);
}

static int cpu_open(const struct kg_host *host, const void *conf, const struct kg_exec_open *args,
                    struct kg_exec **exec, struct kg_error *err)
{
    struct kg_exec *e;
    int rc = kg_run_check("exec-cpu", args, err);

    if (rc < 0)
        return rc;
    e = host->alloc(host->ctx, sizeof(*e), 64);
    if (e == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for an instance of exec-cpu");
    memset(e, 0, sizeof(*e));
    e->host = host;
    e->name = "exec-cpu";
    rc = load(e, conf, args, err);
    if (rc < 0) {
        cpu_close(e);
        return rc;
    }
    *exec = e;
    return KG_OK;
}

static void cpu_advance(struct kg_exec *e, uint64_t t_ns)
{
    uint64_t now = kg_run_now_ns(e);

    if (e->cpu_clock && t_ns > now)
        atomic_fetch_add_explicit(&e->skipped_ns, t_ns - now, memory_order_relaxed);
}

static const struct kg_exec_ops ops = {
    .size = sizeof(ops),
    .open = cpu_open,
    .close = cpu_close,
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
    .advance = cpu_advance,
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
    .name = "cpu",
    .version = KG_VERSION,
    .summary = "Kimi K3 and Kimi-Linear on the CPU, reproducible to the bit",
    .caps = CPU_CAPS | KG_EXEC_CAP_DRAFT | KG_EXEC_CAP_VIRTUAL,
    .opts = options,
    .conf_size = sizeof(struct cpu_conf),
    .ops = &ops,
};

KG_EXPORT const struct kg_plugin *kg_plugin_entry(void);

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
