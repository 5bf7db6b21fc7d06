/*
 * comm-fake: a test double of a collective plugin, for ranks that are threads of one process. Rank
 * 0 makes the shared memory and hands its address out through the bootstrap. Every collective
 * copies its input to a stage, meets, computes from the stages in rank order, and meets again.
 */
#include <errno.h>
#include <kedge/comm.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_WORLD 8
#define MAX_CHANNELS 4
#define OPEN_DEADLINE_NS 5000000000ull

enum op { OP_NONE, OP_ALL_REDUCE, OP_SCATTER, OP_GATHER, OP_TO_ALL, OP_BROADCAST, OP_BARRIER };
static const char *const op_names[] = {"none",       "all_reduce", "reduce_scatter", "all_gather",
                                       "all_to_all", "broadcast",  "barrier"};

/* Where the ranks of one channel meet. */
struct meeting {
    uint32_t waiting;
    uint64_t round;
    struct {
        enum op op;
        uint32_t dtype, root;
        uint64_t count;
        uint64_t calls;
    } said[MAX_WORLD];
};

struct shared {
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint32_t world, attached;
    int lost; /* a rank aborted or did not come */
    struct meeting channels[MAX_CHANNELS];
    unsigned char *stage[MAX_WORLD];   /* [symm_bytes] per channel, one after the other */
    uint64_t to[MAX_WORLD][MAX_WORLD]; /* all_to_all counts as said */
    uint64_t symm_used[MAX_WORLD];
};

struct kg_comm {
    const struct kg_host *host;
    struct shared *shared;
    uint32_t rank, world, n_channels;
    uint64_t symm_bytes, symm_used, timeout_ns;
    unsigned char *symm;
    int sealed;
};

static void fake_close(struct kg_comm *comm)
{
    if (comm == NULL)
        return;
    const struct kg_host *host = comm->host;
    struct shared *s = comm->shared;
    if (s != NULL) {
        (void)pthread_mutex_lock(&s->lock);
        uint32_t left = --s->attached;
        (void)pthread_mutex_unlock(&s->lock);
        if (left == 0) { /* the last one turns off the light */
            for (uint32_t r = 0; r < s->world; r++)
                free(s->stage[r]);
            free(s);
        }
    }
    host->free(host->ctx, comm->symm, comm->symm_bytes);
    host->free(host->ctx, comm, sizeof(*comm));
}

static struct shared *make_shared(const struct kg_comm_open *args)
{
    struct shared *s = calloc(1, sizeof(*s));
    pthread_condattr_t attr;

    if (s == NULL)
        return NULL;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->change, &attr);
    (void)pthread_condattr_destroy(&attr);
    s->world = args->world;
    s->attached = args->world;
    for (uint32_t r = 0; r < args->world; r++) {
        s->stage[r] = malloc(args->symm_bytes * args->n_channels);
        if (s->stage[r] == NULL) {
            while (r-- > 0)
                free(s->stage[r]);
            free(s);
            return NULL;
        }
    }
    return s;
}

static int check_args(const struct kg_comm_open *args, struct kg_error *err)
{
    if (args->world < 2 || args->world > MAX_WORLD || args->rank >= args->world)
        return kg_fail(err, KG_ECONFIG, "comm-fake: rank %u of %u, wanted 2 .. %d ranks",
                       args->rank, args->world, MAX_WORLD);
    if (args->n_channels == 0 || args->n_channels > MAX_CHANNELS)
        return kg_fail(err, KG_EINVAL, "comm-fake: n_channels = %u, wanted 1 .. %d",
                       args->n_channels, MAX_CHANNELS);
    if (args->symm_bytes == 0 || args->boot == NULL)
        return kg_fail(err, KG_EINVAL, "comm-fake: symm_bytes = 0 or no bootstrap");
    return KG_OK;
}

static int fake_open(const struct kg_host *host, const void *conf, const struct kg_comm_open *args,
                     struct kg_comm **comm, struct kg_error *err)
{
    struct shared *mine = NULL;
    struct shared *all[MAX_WORLD];

    (void)conf;
    int rc = check_args(args, err);
    if (rc != KG_OK)
        return rc;
    if (args->rank == 0)
        mine = make_shared(args);
    rc = args->boot->all_gather(args->boot->ctx, &mine, all, sizeof(mine), OPEN_DEADLINE_NS);
    if (rc != KG_OK)
        return kg_fail(err, rc, "comm-fake: the other ranks did not come");
    struct kg_comm *c = host->alloc(host->ctx, sizeof(*c), 0);
    if (c == NULL || all[0] == NULL)
        return kg_fail(err, KG_ENOMEM, "comm-fake: out of memory");
    *c = (struct kg_comm){.host = host,
                          .shared = all[0],
                          .rank = args->rank,
                          .world = args->world,
                          .n_channels = args->n_channels,
                          .symm_bytes = args->symm_bytes,
                          .timeout_ns = args->timeout_ns};
    c->symm = host->alloc(host->ctx, args->symm_bytes, 64);
    if (c->symm == NULL) {
        fake_close(c);
        return kg_fail(err, KG_ENOMEM, "comm-fake: out of memory");
    }
    *comm = c;
    return KG_OK;
}

static int fake_alloc_symm(struct kg_comm *comm, uint64_t bytes, void **p)
{
    uint64_t at = (comm->symm_used + 63) & ~63ull;

    if (comm->sealed || bytes == 0)
        return KG_EINVAL;
    if (at > comm->symm_bytes || bytes > comm->symm_bytes - at)
        return KG_ELIMIT;
    *p = comm->symm + at;
    comm->symm_used = at + bytes;
    return KG_OK;
}

static struct timespec deadline(uint64_t timeout_ns)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + timeout_ns;
    t.tv_sec += (time_t)(ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    return t;
}

/* Waits for every rank on the channel; with the lock held. KG_EDEVICE when one does not come. */
static int meet(struct kg_comm *c, struct meeting *m)
{
    struct shared *s = c->shared;
    struct timespec end = deadline(c->timeout_ns);
    uint64_t round = m->round;

    if (s->lost)
        return KG_EDEVICE;
    if (++m->waiting == s->world) {
        m->waiting = 0;
        m->round++;
        (void)pthread_cond_broadcast(&s->change);
        return KG_OK;
    }
    while (m->round == round && !s->lost) {
        if (pthread_cond_timedwait(&s->change, &s->lock, &end) == ETIMEDOUT && m->round == round) {
            s->lost = 1;
            (void)pthread_cond_broadcast(&s->change);
        }
    }
    return m->round != round ? KG_OK : KG_EDEVICE;
}

static int fake_seal(struct kg_comm *comm, struct kg_error *err)
{
    struct shared *s = comm->shared;
    int rc;

    if (comm->sealed)
        return kg_fail(err, KG_EINVAL, "comm-fake: sealed twice");
    (void)pthread_mutex_lock(&s->lock);
    s->symm_used[comm->rank] = comm->symm_used;
    rc = meet(comm, &s->channels[0]);
    for (uint32_t r = 0; rc == KG_OK && r < comm->world; r++) {
        if (s->symm_used[r] != comm->symm_used)
            rc = KG_EINVAL;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (rc != KG_OK)
        return kg_fail(err, rc, "comm-fake: a rank is lost or allocated otherwise");
    comm->sealed = 1;
    return KG_OK;
}

static int in_symm(const struct kg_comm *c, const void *p, uint64_t bytes)
{
    uintptr_t at = (uintptr_t)p - (uintptr_t)c->symm;

    return (uintptr_t)p >= (uintptr_t)c->symm && at <= c->symm_used && bytes <= c->symm_used - at;
}

static float widen(const unsigned char *p, uint32_t dtype, uint64_t i)
{
    uint32_t bits;
    uint16_t half;
    float f;

    if (dtype == KG_F32) {
        memcpy(&f, p + i * 4, 4);
        return f;
    }
    memcpy(&half, p + i * 2, 2);
    bits = (uint32_t)half << 16;
    memcpy(&f, &bits, 4);
    return f;
}

/* Rounds to nearest even, as bf16 hardware does. */
static void narrow(unsigned char *p, uint32_t dtype, uint64_t i, float f)
{
    uint32_t bits;

    if (dtype == KG_F32) {
        memcpy(p + i * 4, &f, 4);
        return;
    }
    memcpy(&bits, &f, 4);
    bits += 0x7fff + (bits >> 16 & 1);
    uint16_t half = (uint16_t)(bits >> 16);
    memcpy(p + i * 2, &half, 2);
}

static void sum(const struct kg_comm *c, const struct kg_coll *v, uint64_t offset, uint64_t from)
{
    for (uint64_t i = 0; i < v->count; i++) {
        float total = 0;
        for (uint32_t r = 0; r < c->world; r++)
            total += widen(c->shared->stage[r] + offset, v->dtype, from + i);
        narrow(v->out, v->dtype, i, total);
    }
}

/* The result of one rank from the stages of all. */
static void compute(const struct kg_comm *c, const struct kg_coll *v, enum op op, uint64_t offset)
{
    size_t one = kg_dtype_bytes(v->dtype);
    uint64_t block = v->count * one;

    switch (op) {
    case OP_ALL_REDUCE:
        sum(c, v, offset, 0);
        break;
    case OP_SCATTER:
        sum(c, v, offset, c->rank * v->count);
        break;
    case OP_GATHER:
        for (uint32_t r = 0; r < c->world; r++)
            memcpy((char *)v->out + r * block, c->shared->stage[r] + offset, block);
        break;
    case OP_TO_ALL:
        for (uint32_t r = 0; r < c->world; r++)
            memcpy((char *)v->out + r * block, c->shared->stage[r] + offset + c->rank * block,
                   c->shared->to[r][c->rank] * one);
        break;
    case OP_BROADCAST:
        memcpy(v->out, c->shared->stage[v->root] + offset, block);
        break;
    default:
        break;
    }
}

static int agree(const struct kg_comm *c, const struct meeting *m)
{
    for (uint32_t r = 0; r < c->world; r++) {
        if (m->said[r].op != m->said[c->rank].op || m->said[r].dtype != m->said[c->rank].dtype ||
            m->said[r].count != m->said[c->rank].count || m->said[r].root != m->said[c->rank].root)
            return 0;
    }
    return 1;
}

/* in_blocks, out_blocks: counts of `count` elements that in and out hold. */
static int run(struct kg_comm *c, const struct kg_coll *v, enum op op, uint64_t in_blocks,
               uint64_t out_blocks)
{
    struct shared *s = c->shared;
    size_t one = kg_dtype_bytes(v->dtype);

    if (v->channel >= c->n_channels || !c->sealed || one == 0 || v->root >= c->world ||
        v->count > c->symm_bytes || !in_symm(c, v->in, in_blocks * v->count * one) ||
        !in_symm(c, v->out, out_blocks * v->count * one))
        return KG_EINVAL;
    struct meeting *m = &s->channels[v->channel];
    uint64_t offset = v->channel * c->symm_bytes;
    (void)pthread_mutex_lock(&s->lock);
    m->said[c->rank].op = op;
    m->said[c->rank].dtype = v->dtype;
    m->said[c->rank].count = v->count;
    m->said[c->rank].root = v->root;
    m->said[c->rank].calls++;
    memcpy(s->stage[c->rank] + offset, v->in, in_blocks * v->count * one);
    for (uint32_t r = 0; op == OP_TO_ALL && r < c->world; r++)
        s->to[c->rank][r] = v->counts != NULL ? v->counts[r] : v->count;
    int rc = meet(c, m);
    if (rc == KG_OK && !agree(c, m))
        rc = KG_EINVAL;
    else if (rc == KG_OK)
        compute(c, v, op, offset);
    if (rc == KG_OK || rc == KG_EINVAL) {
        int second = meet(c, m);
        rc = second != KG_OK ? second : rc;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return rc;
}

static int sums(const struct kg_coll *v)
{
    return v->dtype == KG_F32 || v->dtype == KG_BF16;
}

static int fake_all_reduce(struct kg_comm *comm, const struct kg_coll *c)
{
    return sums(c) ? run(comm, c, OP_ALL_REDUCE, 1, 1) : KG_EINVAL;
}

static int fake_reduce_scatter(struct kg_comm *comm, const struct kg_coll *c)
{
    return sums(c) ? run(comm, c, OP_SCATTER, comm->world, 1) : KG_EINVAL;
}

static int fake_all_gather(struct kg_comm *comm, const struct kg_coll *c)
{
    return run(comm, c, OP_GATHER, 1, comm->world);
}

static int fake_all_to_all(struct kg_comm *comm, const struct kg_coll *c)
{
    if (c->counts != NULL && !in_symm(comm, c->counts, comm->world * sizeof(*c->counts)))
        return KG_EINVAL;
    for (uint32_t r = 0; c->counts != NULL && r < comm->world; r++) {
        if (c->counts[r] > c->count)
            return KG_EINVAL;
    }
    return run(comm, c, OP_TO_ALL, comm->world, comm->world);
}

static int fake_broadcast(struct kg_comm *comm, const struct kg_coll *c)
{
    return run(comm, c, OP_BROADCAST, 1, 1);
}

static int fake_barrier(struct kg_comm *comm, uint32_t channel)
{
    struct kg_coll c = {.channel = channel, .dtype = KG_U8, .in = comm->symm, .out = comm->symm};

    return run(comm, &c, OP_BARRIER, 0, 0);
}

static int fake_poll(struct kg_comm *comm)
{
    (void)pthread_mutex_lock(&comm->shared->lock);
    int lost = comm->shared->lost;
    (void)pthread_mutex_unlock(&comm->shared->lock);
    return lost ? KG_EDEVICE : KG_OK;
}

static void fake_abort(struct kg_comm *comm)
{
    (void)pthread_mutex_lock(&comm->shared->lock);
    comm->shared->lost = 1;
    (void)pthread_cond_broadcast(&comm->shared->change);
    (void)pthread_mutex_unlock(&comm->shared->lock);
}

static size_t fake_progress_dump(struct kg_comm *comm, char *text, size_t n)
{
    struct shared *s = comm->shared;
    size_t len = 0;

    if (n == 0)
        return 0;
    text[0] = '\0';
    (void)pthread_mutex_lock(&s->lock);
    for (uint32_t r = 0; r < s->world; r++) {
        for (uint32_t ch = 0; ch < comm->n_channels && len < n - 1; ch++) {
            int k = snprintf(text + len, n - len, "rank %u channel %u: call %llu %s\n", r, ch,
                             (unsigned long long)s->channels[ch].said[r].calls,
                             op_names[s->channels[ch].said[r].op]);
            len += k < 0 ? 0 : (size_t)k < n - len ? (size_t)k : n - len - 1;
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    return len;
}

static const struct kg_comm_ops ops = {
    .size = sizeof(ops),
    .open = fake_open,
    .close = fake_close,
    .alloc_symm = fake_alloc_symm,
    .seal = fake_seal,
    .all_reduce = fake_all_reduce,
    .reduce_scatter = fake_reduce_scatter,
    .all_gather = fake_all_gather,
    .all_to_all = fake_all_to_all,
    .broadcast = fake_broadcast,
    .barrier = fake_barrier,
    .poll = fake_poll,
    .abort = fake_abort,
    .progress_dump = fake_progress_dump,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_COMM,
    .size = sizeof(plugin),
    .major = KG_COMM_MAJOR,
    .minor = KG_COMM_MINOR,
    .name = "fake",
    .version = "0",
    .summary = "test double: ranks are threads of one process",
    .caps = KG_COMM_CAP_FIXED_ORDER | KG_COMM_CAP_HOST,
    .ops = &ops,
};

KG_EXPORT const struct kg_plugin *kg_plugin_entry(void);
KG_EXPORT const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
