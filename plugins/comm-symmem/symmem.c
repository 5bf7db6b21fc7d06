/* comm-symmem: collectives over symmetric memory. This file: the table, its checks, life and death.
 */
#include "symmem.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOAD_NS UINT64_C(600000000000) /* what ranks may differ in loading their weights */

static const struct kg_opt options[] = {
    {.name = "stage",
     .type = KG_OPT_U64,
     .offset = offsetof(struct symm_conf, stage),
     .def = "1m",
     .min = 4096,
     .max = 1073741824.0,
     .doc = "What one rank lays down for the others at once; larger messages go in pieces. Held "
            "twice per channel. Unit: bytes."},
    {.name = "push",
     .type = KG_OPT_U64,
     .offset = offsetof(struct symm_conf, push),
     .def = "0",
     .min = 0,
     .max = 1048576,
     .doc = "Messages up to this go by push; 0: by the table for the number of ranks, 1: never. "
            "Unit: bytes a rank gives."},
    {.name = "one_shot",
     .type = KG_OPT_U64,
     .offset = offsetof(struct symm_conf, one_shot),
     .def = "0",
     .min = 0,
     .max = 1073741824.0,
     .doc = "Sums up to this are added by every rank, larger ones in slices (two-shot); 0: by the "
            "table, 1: never. Unit: bytes a rank gives."},
    {.name = "spins",
     .type = KG_OPT_U32,
     .offset = offsetof(struct symm_conf, spins),
     .def = "0",
     .min = 0,
     .max = 100000000,
     .doc = "Looks at a late rank before the core is given away; 0: 50 while every rank has a "
            "core, else 20. Unit: looks."},
    {.name = "checksum",
     .type = KG_OPT_BOOL,
     .offset = offsetof(struct symm_conf, checksum),
     .def = "no",
     .doc = "Compare what was sent with what was read, and outputs between ranks; also on in debug "
            "runs."},
    {.name = "memory",
     .type = KG_OPT_ENUM,
     .offset = offsetof(struct symm_conf, memory),
     .def = "host",
     .choices = "host|cuda",
     .doc = "What collectives work on. cuda: device memory that all ranks map, kernels in stream "
            "order; not measured."},
    {.name = "driver",
     .type = KG_OPT_STR,
     .offset = offsetof(struct symm_conf, driver),
     .def = "libcuda.so.1",
     .doc = "The CUDA driver, loaded with memory = cuda: a name for the loader, or a path."},
    {.name = "multicast",
     .type = KG_OPT_ENUM,
     .offset = offsetof(struct symm_conf, multicast),
     .def = "off",
     .choices = "off|auto|on",
     .doc = "Sums above push through the multicast object of the links' switch, which adds in an "
            "order of its own: bits may differ from run to run, and fixed-order does not hold. "
            "auto: with 3 ranks and more, where all devices have it; on: always, an error where "
            "one has not. With memory = cuda only; not measured."},
    {.name = "multicast_one_shot",
     .type = KG_OPT_U64,
     .offset = offsetof(struct symm_conf, multicast_one_shot),
     .def = "0",
     .min = 0,
     .max = 1073741824.0,
     .doc =
         "Sums up to this that go by multicast are read whole by every rank, for whom the switch "
         "may add differently: ranks may differ in last bits, which ends a group that samples. "
         "0: none. Unit: bytes a rank gives."},
    {0},
};

static const struct kg_metric metrics[] = {
    [SYMM_M_CALLS] = {"calls_total", KG_COUNTER, "Collectives called, barriers included."},
    [SYMM_M_BYTES] = {"bytes_total", KG_COUNTER, "Bytes this rank gave to collectives."},
    [SYMM_M_PUSH] = {"push_total", KG_COUNTER, "Sums by push."},
    [SYMM_M_ONE_SHOT] = {"one_shot_total", KG_COUNTER, "Sums by one-shot."},
    [SYMM_M_TWO_SHOT] = {"two_shot_total", KG_COUNTER, "Sums by two-shot."},
    [SYMM_M_PARKED] = {"parked_total", KG_COUNTER, "Waits that slept because a rank was late."},
    [SYMM_M_MULTICAST] = {"multicast_total", KG_COUNTER, "Sums by multicast."},
    {0},
};

/* Which algorithm up to how many bytes, by ranks; the last row is for all larger groups and is not
 * measured. `kedge bench comm` (core/docs/performance.md): on host memory push gains a fifth of a
 * microsecond for one line, and loses more where ranks share a core. */
static const struct band {
    uint32_t world, push, one_shot;
} bands[] = {
    {2, 1, 1024},
    {4, 1, 512},
    {SYMM_MAX_WORLD, 1, 32768},
};

/* The bands of a group with these options, bytes a rank gives. */
static struct band bands_of(const struct symm_conf *conf, uint32_t world)
{
    const struct band *b = bands;

    while (b->world < world)
        b++;
    struct band out = *b;
    if (conf->push != 0)
        out.push = (uint32_t)conf->push;
    if (conf->one_shot != 0)
        out.one_shot = (uint32_t)conf->one_shot;
    if (conf->checksum) /* lines carry no sums */
        out.push = 0;
    return out;
}

uint64_t symm_cuda_push(const struct symm_conf *conf, uint32_t world)
{
    /* from what is published of one-shot kernels on NVLink; not measured */
    uint64_t table = world <= 2 ? 524288 : world <= 4 ? 262144 : 131072;

    return conf->push == 0 ? table : conf->push;
}

enum symm_way symm_cuda_way(const struct symm_conf *conf, uint32_t world, int multicast,
                            enum symm_op op, uint64_t bytes)
{
    int blocks = op == SYMM_REDUCE_SCATTER || op == SYMM_ALL_TO_ALL;

    if (!blocks && bytes <= symm_cuda_push(conf, world))
        return SYMM_WAY_PUSH;
    if (!multicast || op != SYMM_ALL_REDUCE)
        return SYMM_WAY_STAGED;
    if (bytes <= conf->multicast_one_shot)
        return SYMM_WAY_MULTICAST_ONE;
    /* of two ranks each reads half from the other anyway; published times are worse with it */
    return world > 2 || conf->multicast == SYMM_MULTICAST_ON ? SYMM_WAY_MULTICAST_TWO
                                                             : SYMM_WAY_STAGED;
}

static void choose_bands(struct kg_comm *c)
{
    const struct band b = bands_of(&c->conf, c->world);

    c->push_max = b.push;
    c->one_shot_max = b.one_shot;
    if (c->conf.spins == 0)
        c->conf.spins = (long)c->world <= sysconf(_SC_NPROCESSORS_ONLN) ? 50 : 20;
}

static const struct symm_conf defaults = {.stage = 1u << 20, .driver = "libcuda.so.1"};

static int is_sum_type(uint32_t dtype)
{
    return dtype == KG_F32 || dtype == KG_BF16;
}

static int may_multicast(const struct symm_conf *c)
{
    return c->memory == SYMM_CUDA && c->multicast != SYMM_MULTICAST_OFF;
}

static uint64_t symm_caps(const void *conf)
{
    const struct symm_conf *c = conf != NULL ? conf : &defaults;

    if (c->memory == SYMM_HOST)
        return KG_COMM_CAP_FIXED_ORDER | KG_COMM_CAP_HOST;
    return KG_COMM_CAP_CUDA | KG_COMM_CAP_GRAPHS |
           (may_multicast(c) ? KG_COMM_CAP_MULTICAST : KG_COMM_CAP_FIXED_ORDER);
}

_Static_assert((int)SYMM_ALL_REDUCE == KG_COMM_ALL_REDUCE &&
                   (int)SYMM_BROADCAST == KG_COMM_BROADCAST,
               "one list of collectives");

static const char *choose_cuda(const struct symm_conf *c, uint32_t world, uint32_t op,
                               uint64_t bytes)
{
    static const char *const names[] = {[SYMM_WAY_PUSH] = "cuda-push",
                                        [SYMM_WAY_MULTICAST_ONE] = "multicast-one-shot",
                                        [SYMM_WAY_MULTICAST_TWO] = "multicast-two-shot"};
    enum symm_way way =
        symm_cuda_way(c, world, may_multicast(c) && world > 1, (enum symm_op)op, bytes);

    if (way == SYMM_WAY_STAGED)
        return op == KG_COMM_ALL_REDUCE ? "cuda-two-shot" : "cuda-direct";
    return names[way];
}

/* As all_reduce, all_gather and broadcast decide (collective.c, cuda_run.c). On devices the words
 * are others: their times have nothing to do with the host's. With multicast = auto as on devices
 * that have it. */
static const char *symm_choose(const void *conf, uint32_t world, uint32_t op, uint32_t dtype,
                               uint64_t count)
{
    const struct symm_conf *c = conf != NULL ? conf : &defaults;
    uint64_t bytes;

    if (world == 0 || world > SYMM_MAX_WORLD || kg_dtype_bytes(dtype) == 0 ||
        __builtin_mul_overflow(count, (uint64_t)kg_dtype_bytes(dtype), &bytes))
        return NULL;
    if (op == 0 || op >= KG_COMM_N_OPS ||
        ((op == KG_COMM_ALL_REDUCE || op == KG_COMM_REDUCE_SCATTER) && !is_sum_type(dtype)))
        return NULL;
    if (c->memory == SYMM_CUDA)
        return choose_cuda(c, world, op, bytes);
    const struct band b = bands_of(c, world);
    switch (op) {
    case KG_COMM_ALL_REDUCE:
        return bytes <= b.push ? "push" : bytes <= b.one_shot ? "one-shot" : "two-shot";
    case KG_COMM_ALL_GATHER:
    case KG_COMM_BROADCAST:
        return bytes <= b.push ? "push" : "direct";
    default:
        return "direct";
    }
}

static void symm_close(struct kg_comm *comm)
{
    if (comm == NULL)
        return;
    const struct kg_host *host = comm->host;
    if (comm->head != NULL) {
        atomic_store(&comm->head->ranks[comm->rank].left, 1);
        for (uint32_t ch = 0; ch < comm->n_channels; ch++)
            symm_wake(comm, ch, comm->rank);
    }
    symm_cuda_close(comm);
    symm_segment_close(comm);
    host->free(host->ctx, comm, sizeof(*comm));
}

static int check_args(const struct kg_comm_open *args, struct kg_error *err)
{
    if (args->world == 0 || args->world > SYMM_MAX_WORLD || args->rank >= args->world)
        return kg_fail(err, KG_ECONFIG, "comm-symmem: rank %u of %u, wanted a rank of 1 .. %u",
                       args->rank, args->world, SYMM_MAX_WORLD);
    if (args->n_channels == 0 || args->n_channels > SYMM_MAX_CHANNELS)
        return kg_fail(err, KG_EINVAL, "comm-symmem: n_channels = %u, wanted 1 .. %u",
                       args->n_channels, SYMM_MAX_CHANNELS);
    if (args->symm_bytes == 0 || args->timeout_ns == 0)
        return kg_fail(err, KG_EINVAL, "comm-symmem: symm_bytes or timeout_ns is 0");
    if (args->world > 1 && args->boot == NULL)
        return kg_fail(err, KG_EINVAL, "comm-symmem: %u ranks and no bootstrap", args->world);
    return KG_OK;
}

static int symm_open(const struct kg_host *host, const void *conf, const struct kg_comm_open *args,
                     struct kg_comm **comm, struct kg_error *err)
{
    int rc = check_args(args, err);
    if (rc != KG_OK)
        return rc;
    struct kg_comm *c = host->alloc(host->ctx, sizeof(*c), 0);
    if (c == NULL)
        return kg_fail(err, KG_ENOMEM, "comm-symmem: out of memory");
    *c = (struct kg_comm){.host = host,
                          .conf = conf != NULL ? *(const struct symm_conf *)conf : defaults,
                          .symm_bytes = args->symm_bytes,
                          .timeout_ns = args->timeout_ns,
                          .rank = args->rank,
                          .world = args->world,
                          .n_channels = args->n_channels};
    memset(c->pidfds, 0xff, sizeof(c->pidfds));
    c->conf.checksum |= host->debug;
    uint64_t wanted = args->size >= sizeof(*args) ? args->memory : 0;
    if (wanted != 0 && (wanted == KG_COMM_CAP_CUDA) != (c->conf.memory == SYMM_CUDA)) {
        host->free(host->ctx, c, sizeof(*c));
        return kg_fail(err, KG_ECONFIG, "[comm-symmem] memory = %s: the backend computes in %s",
                       wanted == KG_COMM_CAP_CUDA ? "host" : "cuda",
                       wanted == KG_COMM_CAP_CUDA ? "device memory" : "host memory");
    }
    if (c->conf.multicast == SYMM_MULTICAST_ON && c->conf.memory != SYMM_CUDA) {
        host->free(host->ctx, c, sizeof(*c));
        return kg_fail(err, KG_ECONFIG, "[comm-symmem] multicast = on: wants memory = cuda");
    }
    choose_bands(c);
    if (c->conf.stage / c->world < 8)
        rc = kg_fail(err, KG_ECONFIG, "comm-symmem: stage = %llu bytes for %u ranks",
                     (unsigned long long)c->conf.stage, c->world);
    else
        rc = c->conf.memory == SYMM_CUDA ? symm_cuda_open(c, args, err)
                                         : symm_segment_open(c, args->boot, err);
    if (rc != KG_OK) {
        symm_close(c);
        return rc;
    }
    *comm = c;
    return KG_OK;
}

static int symm_alloc(struct kg_comm *comm, uint64_t bytes, void **p)
{
    if (comm->sealed || bytes == 0)
        return KG_EINVAL;
    if (bytes > comm->symm_bytes - comm->symm_used)
        return KG_ELIMIT;
    uint64_t align = comm->cuda != NULL ? 256 : 64;
    *p =
        (comm->cuda != NULL ? symm_cuda_area(comm) : symm_area(comm, comm->rank)) + comm->symm_used;
    uint64_t rest = comm->symm_bytes - comm->symm_used - bytes;
    uint64_t pad = (align - bytes % align) % align;
    comm->symm_used += bytes + (pad < rest ? pad : rest);
    return KG_OK;
}

static int symm_seal(struct kg_comm *comm, struct kg_error *err)
{
    const struct symm_said said = {.what = SYMM_BARRIER, .count = comm->symm_used};

    if (comm->sealed)
        return kg_fail(err, KG_EINVAL, "comm-symmem: sealed twice");
    const uint64_t timeout_ns = comm->timeout_ns;
    comm->sealed = 1;
    comm->timeout_ns = timeout_ns > LOAD_NS ? timeout_ns : LOAD_NS;
    int rc = symm_meet_all(comm, 0, &said, 0);
    comm->timeout_ns = timeout_ns;
    if (rc != KG_OK)
        return kg_fail(err, KG_EDEVICE,
                       "comm-symmem: rank %u: ranks did not seal the same %llu "
                       "symmetric bytes, or one is lost",
                       comm->rank, (unsigned long long)comm->symm_used);
    return KG_OK;
}

/* What every call checks, and its place in the dump. `elements`: what this rank gives. */
static int begin(struct kg_comm *c, uint32_t channel, enum symm_op op, uint64_t bytes)
{
    if (channel >= c->n_channels || !c->sealed)
        return KG_EINVAL;
    if (symm_well(c) != KG_OK)
        return KG_EDEVICE;
    struct symm_log *l = symm_log_of(c, channel, c->rank); /* calls of a channel have an order */
    uint32_t calls = atomic_load_explicit(&l->calls, memory_order_relaxed);
    atomic_store_explicit(&l->op, op, memory_order_relaxed);
    atomic_store_explicit(&l->calls, calls + 1, memory_order_relaxed);
    if (c->host->cells != NULL) {
        kg_add(&c->host->cells[SYMM_M_CALLS], 1);
        kg_add(&c->host->cells[SYMM_M_BYTES], bytes);
    }
    return KG_OK;
}

static int run(struct kg_comm *c, enum symm_op op, const struct kg_coll *k, uint64_t blocks)
{
    uint64_t elements, bytes;

    if (__builtin_mul_overflow(k->count, blocks, &elements) ||
        __builtin_mul_overflow(elements, kg_dtype_bytes(k->dtype), &bytes) ||
        bytes > (uint64_t)INT64_MAX || kg_dtype_bytes(k->dtype) == 0)
        return KG_EINVAL;
    if (k->count > 0 && (k->in == NULL || k->out == NULL))
        return KG_EINVAL;
    int rc = begin(c, k->channel, op, op == SYMM_ALL_GATHER ? bytes / c->world : bytes);
    if (rc != KG_OK || k->count == 0)
        return rc;
    return c->cuda != NULL ? symm_cuda_run(c, op, k) : symm_run(c, op, k);
}

static int symm_all_reduce(struct kg_comm *comm, const struct kg_coll *c)
{
    return is_sum_type(c->dtype) ? run(comm, SYMM_ALL_REDUCE, c, 1) : KG_EINVAL;
}

static int symm_reduce_scatter(struct kg_comm *comm, const struct kg_coll *c)
{
    return is_sum_type(c->dtype) ? run(comm, SYMM_REDUCE_SCATTER, c, comm->world) : KG_EINVAL;
}

static int symm_all_gather(struct kg_comm *comm, const struct kg_coll *c)
{
    return run(comm, SYMM_ALL_GATHER, c, comm->world);
}

static int symm_all_to_all(struct kg_comm *comm, const struct kg_coll *c)
{
    for (uint32_t p = 0; comm->cuda == NULL && c->counts != NULL && p < comm->world; p++) {
        if (c->counts[p] > c->count)
            return KG_EINVAL;
    }
    return run(comm, SYMM_ALL_TO_ALL, c, comm->world);
}

static int symm_broadcast(struct kg_comm *comm, const struct kg_coll *c)
{
    return c->root < comm->world ? run(comm, SYMM_BROADCAST, c, 1) : KG_EINVAL;
}

static int symm_barrier(struct kg_comm *comm, uint32_t channel)
{
    const struct symm_said said = {.what = SYMM_BARRIER};
    int rc = begin(comm, channel, SYMM_BARRIER, 0);

    return rc == KG_OK ? symm_meet_all(comm, channel, &said, 0) : rc;
}

static int look(struct kg_comm *comm)
{
    struct pollfd p[SYMM_MAX_WORLD];

    if (symm_well(comm) != KG_OK)
        return KG_EDEVICE;
    for (uint32_t r = 0; r < comm->world; r++)
        p[r] = (struct pollfd){.fd = comm->pidfds[r], .events = POLLIN};
    if (poll(p, comm->world, 0) <= 0)
        return KG_OK;
    for (uint32_t r = 0; r < comm->world; r++) {
        if (p[r].revents & POLLIN)
            return symm_lose(comm, SYMM_DIED, r);
    }
    return KG_OK;
}

static int symm_poll(struct kg_comm *comm)
{
    int rc = look(comm);

    if (comm->cuda != NULL && rc == KG_OK)
        rc = symm_cuda_poll(comm);
    if (comm->cuda != NULL && rc != KG_OK)
        symm_cuda_stop(comm);
    return rc;
}

#ifdef SYMM_WITH_CUDA
static int symm_watch(struct kg_comm *comm, uint32_t channel, void *stream)
{
    if (comm->cuda == NULL || !comm->sealed || channel >= comm->n_channels || stream == NULL)
        return KG_EINVAL;
    return symm_well(comm) == KG_OK ? symm_cuda_watch(comm, channel, stream) : KG_EDEVICE;
}
#endif

static void symm_abort(struct kg_comm *comm)
{
    (void)symm_lose(comm, SYMM_ABORTED, comm->rank);
    symm_cuda_stop(comm);
}

static const char *const op_names[SYMM_N_OPS] = {
    "nothing", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier"};
static const char *const losses[] = {
    [SYMM_WELL] = "well",
    [SYMM_ABORTED] = "aborted by",
    [SYMM_DIED] = "death of",
    [SYMM_LEFT] = "early close of",
    [SYMM_LATE] = "time-out waiting for",
    [SYMM_DIFFER] = "a different call by",
    [SYMM_CORRUPT] = "wrong bytes from",
    [SYMM_DEVICE] = "CUDA error on",
};

/* Appends to text[n] at *at, cut at its end. */
__attribute__((format(printf, 4, 5))) static void add(char *text, size_t n, size_t *at,
                                                      const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int k = vsnprintf(text + *at, n - *at, fmt, ap);
    va_end(ap);
    if (k > 0)
        *at = (size_t)k < n - *at ? *at + (size_t)k : n - 1;
}

static size_t symm_dump(struct kg_comm *comm, char *text, size_t n)
{
    uint32_t lost = atomic_load(&comm->head->lost);
    size_t at = 0;

    if (n == 0)
        return 0;
    text[0] = '\0';
    if (lost != 0)
        add(text, n, &at, "lost: %s rank %u; ", losses[lost & 0xff], lost >> 8);
    for (uint32_t r = 0; r < comm->world; r++) {
        add(text, n, &at, "%srank %u:", r == 0 ? "" : "; ", r);
        for (uint32_t ch = 0; ch < comm->n_channels; ch++) {
            const struct symm_log *l = symm_log_of(comm, ch, r);
            const struct symm_meet *m = symm_meet_of(comm, ch, r);
            uint32_t op = atomic_load(&l->op);
            add(text, n, &at, " channel %u %s, call %u, meeting %u%s", ch,
                op_names[op < SYMM_N_OPS ? op : 0], atomic_load(&l->calls), atomic_load(&m->arrive),
                ch + 1 < comm->n_channels ? "," : "");
        }
    }
    return at;
}

static const struct kg_comm_ops ops = {
    .size = sizeof(ops),
    .open = symm_open,
    .close = symm_close,
    .alloc_symm = symm_alloc,
    .seal = symm_seal,
    .all_reduce = symm_all_reduce,
    .reduce_scatter = symm_reduce_scatter,
    .all_gather = symm_all_gather,
    .all_to_all = symm_all_to_all,
    .broadcast = symm_broadcast,
    .barrier = symm_barrier,
    .poll = symm_poll,
    .abort = symm_abort,
    .progress_dump = symm_dump,
    .choose = symm_choose,
    .caps = symm_caps,
#ifdef SYMM_WITH_CUDA
    .watch = symm_watch,
#endif
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_COMM,
    .size = sizeof(plugin),
    .major = KG_COMM_MAJOR,
    .minor = KG_COMM_MINOR,
    .name = "symmem",
    .version = KG_VERSION,
    .summary = "symmetric memory: push, one-shot and two-shot over memory all ranks map",
#ifdef SYMM_WITH_CUDA
    .caps = KG_COMM_CAP_FIXED_ORDER | KG_COMM_CAP_HOST | KG_COMM_CAP_CUDA | KG_COMM_CAP_GRAPHS |
            KG_COMM_CAP_MULTICAST,
#else
    .caps = KG_COMM_CAP_FIXED_ORDER | KG_COMM_CAP_HOST,
#endif
    .opts = options,
    .conf_size = sizeof(struct symm_conf),
    .metrics = metrics,
    .ops = &ops,
};

KG_EXPORT kg_plugin_entry_fn kg_plugin_entry;

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
