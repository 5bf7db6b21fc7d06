#include "exec_ranks.h"

#include "ranks/impl.h"
#include "ranks/ranks.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SYMM_BYTES (48u << 20)

static uint64_t timeout_ns = UINT64_C(60000000000);

struct xranks {
    struct xrig *x;
    const void *conf;
    struct kg_exec_open args;
    const struct kg_exec_ops *ops; /* of one rank */
    const struct kg_plugin *comm_plugin;
    const struct kg_comm_ops *comm_ops;
    struct kg_comm *comm;
    struct kg_ranks *ranks;
};

static void *plain_alloc(void *ctx, size_t bytes, size_t align)
{
    void *p = NULL;

    (void)ctx;
    return posix_memalign(&p, align < 16 ? 16 : align, bytes) == 0 ? p : NULL;
}

static void plain_free(void *ctx, void *p, size_t bytes)
{
    (void)ctx, (void)bytes;
    free(p);
}

__attribute__((format(printf, 3, 4))) static void plain_log(void *ctx, uint32_t level,
                                                            const char *fmt, ...)
{
    (void)ctx, (void)level, (void)fmt;
}

static const struct kg_host plain = {
    .size = sizeof(plain), .alloc = plain_alloc, .free = plain_free, .log = plain_log};

void xranks_set_timeout(uint64_t ns)
{
    timeout_ns = ns;
}

int xranks_pid(const struct xrig *x, uint32_t rank)
{
    return x->group->ranks->pids[rank];
}

#ifdef EXEC_CUDA_EMU
/* Sets an option of the collectives; numbers as they are, a string as it is. */
static void set(const struct kg_plugin *p, void *conf, const char *name, const void *value,
                size_t bytes)
{
    for (const struct kg_opt *o = p->opts; o->name != NULL; o++) {
        if (strcmp(o->name, name) == 0) {
            memcpy((uint8_t *)conf + o->offset, value, bytes);
            return;
        }
    }
    fail_msg("comm-%s has no option %s", p->name, name);
}
#endif

/* Options of the collectives; NULL for their own. */
static const void *comm_conf(const struct kg_plugin *p, uint64_t conf[64])
{
#ifdef EXEC_CUDA_EMU
    static const char *const driver = EMU_DRIVER;
    const uint32_t memory = 1; /* cuda */
    const uint64_t stage = 65536;

    if (xrig_is_on_device() && p->conf_size <= 64 * sizeof(*conf)) {
        memset(conf, 0, 64 * sizeof(*conf));
        set(p, conf, "memory", &memory, sizeof(memory));
        set(p, conf, "stage", &stage, sizeof(stage));
        set(p, conf, "driver", &driver, sizeof(driver));
        return conf;
    }
#endif
    (void)p, (void)conf;
    return NULL;
}

/* Opens this rank; every rank learns what became of all. */
static int open_one(struct xranks *g, struct kg_boot *boot, struct kg_comm **comm,
                    struct kg_exec **exec, struct kg_error *err)
{
    const struct kg_comm_open args = {.size = sizeof(args),
                                      .rank = boot->rank,
                                      .world = boot->world,
                                      .boot = &boot->ops,
                                      .symm_bytes = SYMM_BYTES,
                                      .n_channels = 1,
                                      .device = boot->rank,
                                      .timeout_ns = timeout_ns,
                                      .memory = xrig_is_on_device() ? KG_COMM_CAP_CUDA
                                                                    : KG_COMM_CAP_HOST};
    uint64_t conf[64];
    struct kg_error mine = {0};

    g->args.rank = boot->rank;
    mine.rc = g->comm_ops->open(&plain, comm_conf(g->comm_plugin, conf), &args, comm, &mine);
    g->args.comm = *comm;
    if (mine.rc == KG_OK)
        mine.rc = g->ops->open(&g->x->host, g->conf, &g->args, exec, &mine);
    if (mine.rc != KG_OK && *comm != NULL)
        g->comm_ops->abort(*comm);
    return kg_ranks_meet(boot, &mine, 0, err);
}

static int follow(void *ctx, uint32_t rank, struct kg_boot *boot, struct kg_tape *tape)
{
    struct xranks *g = ctx;
    struct kg_comm *comm = NULL;
    struct kg_exec *exec = NULL;
    struct kg_error err = {0};
    int status = 1;

    if (open_one(g, boot, &comm, &exec, &err) == KG_OK)
        status = kg_follow(tape, rank, g->ops, exec, g->args.max_seqs, &err);
    g->ops->close(exec);
    g->comm_ops->close(comm);
    return status;
}

int xranks_open(struct xrig *x, const void *conf, const struct kg_exec_open *args,
                struct kg_error *err)
{
    struct xranks *g = calloc(1, sizeof(*g));
    void *so = dlopen(COMM_SYMMEM, RTLD_NOW | RTLD_LOCAL); /* stays loaded */
    kg_plugin_entry_fn *entry;

    assert_true(g != NULL && so != NULL);
    *(void **)&entry = dlsym(so, KG_PLUGIN_SYMBOL);
    *g = (struct xranks){.x = x, .conf = conf, .args = *args, .ops = x->ops};
    g->comm_plugin = entry();
    g->args.comm_ops = g->comm_ops = g->comm_plugin->ops;
    x->group = g;
    const struct kg_ranks_args ranks = {.world = args->world,
                                        .tape_bytes = 1 << 20,
                                        .timeout_ns = timeout_ns,
                                        .follow = follow,
                                        .ctx = g};
    int rc = kg_ranks_start(&ranks, &g->ranks, err);
    if (rc == KG_OK)
        rc = open_one(g, kg_ranks_boot(g->ranks), &g->comm, &x->exec, err);
    if (rc == KG_OK)
        rc = kg_ranks_watch(g->ranks, g->comm_ops, g->comm, err);
    if (rc == KG_OK)
        rc = kg_lead_open(g->ranks, g->ops, x->exec, args->max_seqs, &x->ops, &x->exec, err);
    if (rc != KG_OK) {
        g->ops->close(x->exec);
        g->comm_ops->close(g->comm);
        (void)kg_ranks_stop(g->ranks);
        free(g);
        x->group = NULL;
        x->exec = NULL;
    }
    return rc;
}

void xranks_close_lost(struct xrig *x)
{
    (void)kg_ranks_stop(x->group->ranks);
    x->group->ranks = NULL;
}

void xranks_close(struct xrig *x)
{
    struct xranks *g = x->group;

    if (g->ranks != NULL)
        assert_int_equal(kg_ranks_stop(g->ranks), 0);
    x->ops->close(x->exec);
    g->comm_ops->close(g->comm);
    free(g);
    x->group = NULL;
}
