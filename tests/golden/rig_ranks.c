#include "rig_ranks.h"

#include "ranks/boot.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SYMM_BYTES (48u << 20)
#define TIMEOUT_NS UINT64_C(60000000000)

/* What ranks have beside their rigs. rigs[0] is the caller's and stays unused. */
struct rig_ranks {
    void *so;
    const struct kg_comm_ops *ops;
    const struct rig_options *options;
    struct rig rigs[RIG_RANKS];
    struct rig *rank[RIG_RANKS]; /* [0] the caller's */
    struct kg_comm *comms[RIG_RANKS];
    struct kg_boot boots[RIG_RANKS];
    int good[RIG_RANKS];
    const struct kg_forward *pass;
    uint32_t world;
};

static void *host_alloc(void *ctx, size_t bytes, size_t align)
{
    void *p = NULL;

    (void)ctx;
    return posix_memalign(&p, align < 16 ? 16 : align, bytes) == 0 ? p : NULL;
}

static void host_free(void *ctx, void *p, size_t bytes)
{
    (void)ctx, (void)bytes;
    free(p);
}

static const struct kg_host host = {.size = sizeof(host), .alloc = host_alloc, .free = host_free};

struct task {
    struct rig_ranks *g;
    uint32_t rank;
};

static void *open_one(void *arg)
{
    const struct task *t = arg;
    struct rig_ranks *g = t->g;
    struct kg_error err = {0};
    const struct kg_comm_open args = {.size = sizeof(args),
                                      .rank = t->rank,
                                      .world = g->world,
                                      .boot = &g->boots[t->rank].ops,
                                      .symm_bytes = SYMM_BYTES,
                                      .n_channels = 1,
                                      .timeout_ns = TIMEOUT_NS};

    if (g->ops->open(&host, NULL, &args, &g->comms[t->rank], &err) != KG_OK) {
        printf("%s\n", err.text);
        return NULL;
    }
    g->good[t->rank] =
        rig_open_rank(g->rank[t->rank], g->options, g->ops, g->comms[t->rank], t->rank) &&
        g->ops->seal(g->comms[t->rank], &err) == KG_OK;
    return NULL;
}

static void *forward_one(void *arg)
{
    const struct task *t = arg;
    struct rig *r = t->g->rank[t->rank];
    struct kg_forward f = *t->g->pass;

    f.units = &r->units;
    kg_model_forward(r->model, &f);
    return NULL;
}

static void run(struct rig_ranks *g, void *(*fn)(void *))
{
    pthread_t threads[RIG_RANKS];
    struct task tasks[RIG_RANKS];

    for (uint32_t i = 0; i < g->world; i++) {
        tasks[i] = (struct task){g, i};
        assert_int_equal(pthread_create(&threads[i], NULL, fn, &tasks[i]), 0);
    }
    for (uint32_t i = 0; i < g->world; i++)
        (void)pthread_join(threads[i], NULL);
}

int rig_ranks_open(struct rig *r, const struct rig_options *o)
{
    struct rig_ranks *g = calloc(1, sizeof(*g));
    int fds[RIG_RANKS * RIG_RANKS];
    kg_plugin_entry_fn *entry;
    struct kg_error err;
    int good = 1;

    assert_true(g != NULL && o->world <= RIG_RANKS);
    g->so = dlopen(COMM_SYMMEM, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(g->so);
    *(void **)&entry = dlsym(g->so, KG_PLUGIN_SYMBOL);
    g->ops = entry()->ops;
    g->options = o;
    g->world = o->world;
    assert_int_equal(kg_boot_pairs(o->world, fds, &err), KG_OK);
    for (uint32_t i = 0; i < o->world; i++) {
        kg_boot_init(&g->boots[i], i, o->world, fds + (size_t)i * o->world);
        g->rank[i] = i == 0 ? r : &g->rigs[i];
    }
    run(g, open_one);
    for (uint32_t i = 0; i < o->world; i++)
        good &= g->good[i];
    r->ranks = g;
    for (uint32_t i = 0; i < o->world; i++)
        r->others[i] = g->rank[i];
    r->world = o->world;
    if (!good)
        rig_ranks_close(r);
    return good;
}

void rig_ranks_forward(struct rig *r, const struct kg_forward *f)
{
    r->ranks->pass = f;
    run(r->ranks, forward_one);
    for (uint32_t i = 0; i < r->world; i++)
        assert_int_equal(kg_model_lost(r->others[i]->model), KG_OK);
    for (uint32_t i = 1; i < r->world; i++) /* every rank has the same logits, to the bit */
        assert_memory_equal(kg_model_logits(r->model), kg_model_logits(r->others[i]->model),
                            (size_t)f->n_logits * r->ckpt->config.vocab * sizeof(float));
}

void rig_ranks_close(struct rig *r)
{
    struct rig_ranks *g = r->ranks;

    r->ranks = NULL;
    for (uint32_t i = 1; i < g->world; i++)
        rig_close(g->rank[i]);
    rig_close(r);
    for (uint32_t i = 0; i < g->world; i++) {
        g->ops->close(g->comms[i]);
        kg_boot_close(&g->boots[i]);
    }
    free(g); /* the plugin stays loaded */
}
