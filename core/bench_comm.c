#include "bench_comm.h"

#include "base/clock.h"
#include "host.h"
#include "ranks/group.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHANNELS 1
#define DEADLINE_NS (600 * KG_NS_PER_S)
#define TIMEOUT_NS (60 * KG_NS_PER_S)
#define PLAIN_SPINS 2000

/* The plain way: everyone copies its input to a slot, waits for all, adds or copies all slots,
 * waits. */
struct plain {
    _Alignas(128) _Atomic uint32_t came;
    _Alignas(128) _Atomic uint32_t round;
};

/* Shared by the ranks and the parent. */
struct shared {
    struct plain plain;
    struct kg_bench_comm result;
    char fault[KG_BOOT_MAX_WORLD][300];
};

struct setup {
    struct kg_bench_comm *b;
    struct shared *shared;
    char *slots; /* [world] of the largest size */
};

struct rank {
    const struct setup *s;
    struct kg_boot *boot;
    struct kg_instance *hosts[KG_BENCH_COMM_WAYS];
    struct kg_comm *comms[KG_BENCH_COMM_WAYS];
    float *in[KG_BENCH_COMM_WAYS], *out[KG_BENCH_COMM_WAYS];
    uint64_t *ns; /* [calls] */
};

static uint64_t largest(const struct kg_bench_comm *b)
{
    return b->sizes[b->n_sizes - 1];
}

static void plain_barrier(struct plain *p, uint32_t world)
{
    uint32_t round = atomic_load(&p->round);

    if (atomic_fetch_add(&p->came, 1) + 1 == world) {
        atomic_store(&p->came, 0);
        atomic_store(&p->round, round + 1);
        return;
    }
    for (uint32_t i = 0; atomic_load(&p->round) == round; i++) {
        if (i >= PLAIN_SPINS)
            (void)sched_yield();
    }
}

static int plain_reduce(const struct rank *r, const float *in, float *out, uint64_t bytes)
{
    struct plain *p = &r->s->shared->plain;
    uint64_t room = largest(r->s->b), n = bytes / sizeof(*out);

    memcpy(r->s->slots + r->boot->rank * room, in, bytes);
    plain_barrier(p, r->boot->world);
    memcpy(out, r->s->slots, bytes);
    for (uint32_t k = 1; k < r->boot->world; k++) {
        const float *x = (const float *)(r->s->slots + k * room);
        for (uint64_t i = 0; i < n; i++)
            out[i] += x[i];
    }
    plain_barrier(p, r->boot->world);
    return KG_OK;
}

static int plain_gather(const struct rank *r, const float *in, float *out, uint64_t bytes)
{
    struct plain *p = &r->s->shared->plain;
    uint64_t room = largest(r->s->b);

    memcpy(r->s->slots + r->boot->rank * room, in, bytes);
    plain_barrier(p, r->boot->world);
    for (uint32_t k = 0; k < r->boot->world; k++)
        memcpy((char *)out + k * bytes, r->s->slots + k * room, bytes);
    plain_barrier(p, r->boot->world);
    return KG_OK;
}

static int call(const struct rank *r, uint32_t way, uint64_t bytes)
{
    const struct kg_plugin *p = r->s->b->ways[way].plugin;
    const struct kg_coll c = {
        .dtype = KG_F32, .count = bytes / sizeof(float), .in = r->in[way], .out = r->out[way]};

    const int gather = r->s->b->op == KG_COMM_ALL_GATHER;

    if (p == NULL)
        return gather ? plain_gather(r, r->in[way], r->out[way], bytes)
                      : plain_reduce(r, r->in[way], r->out[way], bytes);
    const struct kg_comm_ops *ops = p->ops;
    return gather ? ops->all_gather(r->comms[way], &c) : ops->all_reduce(r->comms[way], &c);
}

/* Bytes of an output. */
static uint64_t out_bytes(const struct kg_bench_comm *b)
{
    return largest(b) * (b->op == KG_COMM_ALL_GATHER ? b->world : 1);
}

static void bind_core(const struct rank *r)
{
    cpu_set_t may, one;

    if (!r->s->b->pin || sched_getaffinity(0, sizeof(may), &may) != 0)
        return;
    int left = (int)r->boot->rank % CPU_COUNT(&may);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &may) || left-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        (void)sched_setaffinity(0, sizeof(one), &one);
        return;
    }
}

static int open_way(struct rank *r, uint32_t way, struct kg_error *err)
{
    const struct kg_bench_way *w = &r->s->b->ways[way];
    uint64_t bytes = largest(r->s->b), out = out_bytes(r->s->b);
    struct kg_clock clock = kg_clock_monotonic();

    if (w->plugin == NULL) {
        r->in[way] = calloc(1, bytes);
        r->out[way] = calloc(1, out);
        return r->in[way] != NULL && r->out[way] != NULL ? KG_OK
                                                         : kg_fail(err, KG_ENOMEM, "out of memory");
    }
    const struct kg_comm_ops *ops = w->plugin->ops;
    const struct kg_comm_open args = {.size = sizeof(args),
                                      .rank = r->boot->rank,
                                      .world = r->boot->world,
                                      .boot = &r->boot->ops,
                                      .symm_bytes = bytes + out + 512,
                                      .n_channels = CHANNELS,
                                      .device = r->boot->rank,
                                      .timeout_ns = TIMEOUT_NS};
    int rc = kg_instance_create(w->plugin, NULL, &clock, 0, &r->hosts[way]);
    if (rc != KG_OK)
        return kg_fail(err, rc, "out of memory");
    rc = ops->open(&r->hosts[way]->host, w->conf, &args, &r->comms[way], err);
    if (rc != KG_OK)
        return rc;
    if (ops->alloc_symm(r->comms[way], bytes, (void **)&r->in[way]) != KG_OK ||
        ops->alloc_symm(r->comms[way], out, (void **)&r->out[way]) != KG_OK)
        return kg_fail(err, KG_ENOMEM, "%s: no symmetric memory", w->name);
    return ops->seal(r->comms[way], err);
}

static int by_ns(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static int by_us(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* One repeat of a cell: warm, then timed calls back to back. */
static int measure(const struct rank *r, uint32_t way, uint64_t bytes, double *p50, double *p99)
{
    const struct kg_bench_comm *b = r->s->b;
    int rc = KG_OK;

    for (uint32_t i = 0; i < b->calls / 4 + 2 && rc == KG_OK; i++)
        rc = call(r, way, bytes);
    for (uint32_t i = 0; i < b->calls && rc == KG_OK; i++) {
        uint64_t begin = kg_now_ns();
        rc = call(r, way, bytes);
        r->ns[i] = kg_now_ns() - begin;
    }
    qsort(r->ns, b->calls, sizeof(*r->ns), by_ns);
    *p50 = (double)r->ns[b->calls / 2] / 1e3;
    *p99 = (double)r->ns[(uint64_t)b->calls * 99 / 100] / 1e3;
    return rc;
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof(*v), by_us);
    return v[n / 2];
}

static int measure_size(const struct rank *r, uint32_t size, struct kg_error *err)
{
    struct kg_bench_comm *b = r->s->b;
    size_t n = (size_t)b->n_ways * b->repeats;
    double *p50 = calloc(2 * n, sizeof(*p50)), *p99 = p50 + n;
    int rc = p50 != NULL ? KG_OK : kg_fail(err, KG_ENOMEM, "out of memory");

    for (uint32_t k = 0; k < b->repeats && rc == KG_OK; k++) {
        for (uint32_t w = 0; w < b->n_ways && rc == KG_OK; w++) {
            size_t at = (size_t)w * b->repeats + k;
            rc = measure(r, w, b->sizes[size], &p50[at], &p99[at]);
            if (rc != KG_OK)
                (void)kg_fail(err, rc, "%s: a call failed (%d)", b->ways[w].name, rc);
        }
    }
    for (uint32_t w = 0; rc == KG_OK && r->boot->rank == 0 && w < b->n_ways; w++) {
        r->s->shared->result.cells[size][w] =
            (struct kg_bench_comm_cell){median(p50 + (size_t)w * b->repeats, b->repeats),
                                        median(p99 + (size_t)w * b->repeats, b->repeats)};
    }
    free(p50);
    return rc;
}

static int be_rank(struct kg_boot *boot, void *arg)
{
    struct setup *s = arg;
    struct rank r = {.s = s, .boot = boot};
    struct kg_error err = {0};
    int rc = KG_OK;

    bind_core(&r);
    r.ns = calloc(s->b->calls, sizeof(*r.ns));
    if (r.ns == NULL)
        rc = kg_fail(&err, KG_ENOMEM, "out of memory");
    for (uint32_t w = 0; w < s->b->n_ways && rc == KG_OK; w++)
        rc = open_way(&r, w, &err);
    for (uint32_t i = 0; i < s->b->n_sizes && rc == KG_OK; i++)
        rc = measure_size(&r, i, &err);
    if (rc != KG_OK)
        (void)snprintf(s->shared->fault[boot->rank], sizeof(s->shared->fault[0]), "%.290s",
                       err.text);
    if (rc == KG_OK)
        (void)boot->ops.barrier(boot, TIMEOUT_NS);
    for (uint32_t w = 0; w < s->b->n_ways; w++) {
        if (s->b->ways[w].plugin != NULL && r.hosts[w] != NULL) {
            ((const struct kg_comm_ops *)s->b->ways[w].plugin->ops)->close(r.comms[w]);
            kg_instance_destroy(r.hosts[w]);
        }
    }
    return rc == KG_OK ? 0 : 1; /* what else is held goes with the process */
}

int kg_bench_comm_run(struct kg_bench_comm *b, struct kg_error *err)
{
    size_t bytes = sizeof(struct shared) + (size_t)b->world * largest(b) + 4096;
    int status[KG_BOOT_MAX_WORLD];
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return kg_fail(err, KG_ENOMEM, "no %zu bytes of shared memory", bytes);
    struct setup s = {
        .b = b, .shared = p, .slots = (char *)p + (sizeof(struct shared) + 4095) / 4096 * 4096};
    int rc = kg_group_run(b->world, be_rank, &s, DEADLINE_NS, status, err);
    for (uint32_t r = 0; r < b->world && rc == KG_OK; r++) {
        if (status[r] != 0)
            rc = kg_fail(err, KG_EDEVICE, "rank %u of %u ended with status %d: %s", r, b->world,
                         status[r], s.shared->fault[r]);
    }
    if (rc == KG_OK)
        memcpy(b->cells, s.shared->result.cells, sizeof(b->cells));
    (void)munmap(p, bytes);
    return rc;
}
