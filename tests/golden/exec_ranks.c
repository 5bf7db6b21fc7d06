#include "exec_ranks.h"

#include "ranks/ranks.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SYMM_BYTES (48u << 20)
#define TIMEOUT_NS UINT64_C(60000000000)

struct xranks {
    struct xrig *x;
    const void *conf;
    struct kg_exec_open args;
    const struct kg_exec_ops *ops; /* of one rank */
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

static const struct kg_host plain = {
    .size = sizeof(plain), .alloc = plain_alloc, .free = plain_free};

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
                                      .timeout_ns = TIMEOUT_NS};
    struct kg_error mine = {0};

    g->args.rank = boot->rank;
    mine.rc = g->comm_ops->open(&plain, NULL, &args, comm, &mine);
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
    g->args.comm_ops = g->comm_ops = entry()->ops;
    x->group = g;
    const struct kg_ranks_args ranks = {.world = args->world,
                                        .tape_bytes = 1 << 20,
                                        .timeout_ns = TIMEOUT_NS,
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

void xranks_close(struct xrig *x)
{
    struct xranks *g = x->group;

    assert_int_equal(kg_ranks_stop(g->ranks), 0);
    x->ops->close(x->exec);
    g->comm_ops->close(g->comm);
    free(g);
    x->group = NULL;
}
