/* comm-nccl: collectives by NCCL on device memory. This file: the table and its checks. */
#include "comm_nccl.h"

#include <stdio.h>
#include <string.h>

static const struct kg_opt options[] = {
    {.name = "library",
     .type = KG_OPT_STR,
     .offset = offsetof(struct nccl_conf, library),
     .def = "libnccl.so.2",
     .doc = "NCCL, loaded when the group is opened: a name for the loader, or a path."},
    {.name = "driver",
     .type = KG_OPT_STR,
     .offset = offsetof(struct nccl_conf, driver),
     .def = "libcuda.so.1",
     .doc = "The CUDA driver, loaded likewise."},
    {.name = "windows",
     .type = KG_OPT_BOOL,
     .offset = offsetof(struct nccl_conf, windows),
     .def = "no",
     .doc = "Register symmetric memory as symmetric windows; refused with versions of NCCL whose "
            "windows are known to go wrong. Not measured."},
    {.name = "init_ms",
     .type = KG_OPT_U32,
     .offset = offsetof(struct nccl_conf, init_ms),
     .def = "60000",
     .min = 10,
     .max = 3600000,
     .doc = "What meeting the other ranks and making the communicators may take. Unit: ms."},
    {0},
};

static const struct kg_metric metrics[] = {
    [NCCL_M_CALLS] = {"calls_total", KG_COUNTER, "Collectives called, barriers included."},
    [NCCL_M_BYTES] = {"bytes_total", KG_COUNTER, "Bytes this rank gave to collectives."},
    [NCCL_M_WAITED] = {"waited_total", KG_COUNTER,
                       "Collectives the caller was held for until they were done."},
    {0},
};

static int nccl_alloc(struct kg_comm *comm, uint64_t bytes, void **p)
{
    if (comm->sealed || bytes == 0)
        return KG_EINVAL;
    if (bytes > comm->symm_bytes - comm->symm_used)
        return KG_ELIMIT;
    *p = (char *)(uintptr_t)comm->symm + comm->symm_used;
    uint64_t rest = comm->symm_bytes - comm->symm_used - bytes;
    uint64_t pad = (256 - bytes % 256) % 256;
    comm->symm_used += bytes + (pad < rest ? pad : rest);
    return KG_OK;
}

static void count(struct kg_comm *c, int metric, uint64_t n)
{
    if (c->host->cells != NULL)
        kg_add(&c->host->cells[metric], n);
}

/* What every call checks, and its place on the board. */
static int begin(struct kg_comm *c, uint32_t channel, enum nccl_op op, uint64_t bytes)
{
    if (channel >= c->n_channels || !c->sealed)
        return KG_EINVAL;
    if (nccl_well(c) != KG_OK)
        return KG_EDEVICE;
    if (c->lib.cuda.context_set(c->context) != CUDA_SUCCESS)
        return nccl_lose(c, "rank %u: its CUDA context is gone", c->rank);
    atomic_store_explicit(&c->board->places[c->rank].channels[channel].op, op,
                          memory_order_relaxed);
    atomic_fetch_add_explicit(&c->board->places[c->rank].channels[channel].calls, 1,
                              memory_order_relaxed);
    count(c, NCCL_M_CALLS, 1);
    count(c, NCCL_M_BYTES, bytes);
    return KG_OK;
}

static int run(struct kg_comm *c, enum nccl_op op, const struct kg_coll *k, uint64_t blocks)
{
    uint64_t elements, bytes;

    if (__builtin_mul_overflow(k->count, blocks, &elements) ||
        __builtin_mul_overflow(elements, kg_dtype_bytes(k->dtype), &bytes) ||
        bytes > (uint64_t)INT64_MAX || kg_dtype_bytes(k->dtype) == 0)
        return KG_EINVAL;
    if (k->count > 0 && (k->in == NULL || k->out == NULL))
        return KG_EINVAL;
    int rc = begin(c, k->channel, op, bytes);
    if (rc != KG_OK || k->count == 0)
        return rc;
    if (k->stream == NULL || (op == NCCL_OP_ALL_TO_ALL && k->counts != NULL))
        count(c, NCCL_M_WAITED, 1);
    return nccl_run(c, op, k);
}

static int is_sum_type(uint32_t dtype)
{
    return dtype == KG_F32 || dtype == KG_BF16;
}

static int nccl_all_reduce(struct kg_comm *comm, const struct kg_coll *c)
{
    return is_sum_type(c->dtype) ? run(comm, NCCL_OP_ALL_REDUCE, c, 1) : KG_EINVAL;
}

static int nccl_reduce_scatter(struct kg_comm *comm, const struct kg_coll *c)
{
    return is_sum_type(c->dtype) ? run(comm, NCCL_OP_REDUCE_SCATTER, c, comm->world) : KG_EINVAL;
}

static int nccl_all_gather(struct kg_comm *comm, const struct kg_coll *c)
{
    return run(comm, NCCL_OP_ALL_GATHER, c, comm->world);
}

static int nccl_all_to_all(struct kg_comm *comm, const struct kg_coll *c)
{
    return run(comm, NCCL_OP_ALL_TO_ALL, c, comm->world);
}

static int nccl_broadcast(struct kg_comm *comm, const struct kg_coll *c)
{
    return c->root < comm->world ? run(comm, NCCL_OP_BROADCAST, c, 1) : KG_EINVAL;
}

static int nccl_barrier(struct kg_comm *comm, uint32_t channel)
{
    int rc = begin(comm, channel, NCCL_OP_BARRIER, 0);

    return rc == KG_OK ? nccl_meet(comm, channel, NCCL_OP_BARRIER, comm->timeout_ns) : rc;
}

static int nccl_poll(struct kg_comm *comm)
{
    if (!comm->sealed)
        return nccl_well(comm);
    (void)comm->lib.cuda.context_set(comm->context);
    return nccl_look(comm);
}

static int nccl_watch(struct kg_comm *comm, uint32_t channel, void *stream)
{
    if (!comm->sealed || channel >= comm->n_channels || stream == NULL)
        return KG_EINVAL;
    if (nccl_well(comm) != KG_OK)
        return KG_EDEVICE;
    if (comm->lib.cuda.context_set(comm->context) != CUDA_SUCCESS)
        return nccl_lose(comm, "rank %u: its CUDA context is gone", comm->rank);
    return nccl_track(comm, channel, stream);
}

static void nccl_abort(struct kg_comm *comm)
{
    (void)nccl_lose(comm, "aborted by rank %u", comm->rank);
}

static const char *const op_names[NCCL_N_OPS] = {
    "nothing", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier"};

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

static size_t nccl_dump(struct kg_comm *comm, char *text, size_t n)
{
    struct nccl_board *b = comm->board;
    size_t at = 0;

    if (n == 0)
        return 0;
    text[0] = '\0';
    if (atomic_load(&b->lost) != 0)
        add(text, n, &at, "lost: %s; ", nccl_why(comm));
    for (uint32_t r = 0; r < comm->world; r++) {
        add(text, n, &at, "%srank %u:", r == 0 ? "" : "; ", r);
        for (uint32_t ch = 0; ch < comm->n_channels; ch++) {
            uint32_t op = atomic_load(&b->places[r].channels[ch].op);
            add(text, n, &at, " channel %u %s, call %u%s", ch, op_names[op < NCCL_N_OPS ? op : 0],
                atomic_load(&b->places[r].channels[ch].calls),
                ch + 1 < comm->n_channels ? "," : "");
        }
    }
    return at;
}

/*
 * Which of its rings, trees and kernels NCCL takes is decided in it, by machine and version, and no
 * call tells before there is a communicator: "own". What this plugin decides has words of its own:
 * sums and gathers over symmetric windows, whose kernels are others, and exchanges, which are sends
 * and receives in one group.
 */
static const char *nccl_choose(const void *conf, uint32_t world, uint32_t op, uint32_t dtype,
                               uint64_t count)
{
    int windows = conf != NULL && ((const struct nccl_conf *)conf)->windows;
    uint64_t blocks = op == KG_COMM_ALL_REDUCE || op == KG_COMM_BROADCAST ? 1 : world, bytes;

    if (world == 0 || world > NCCL_MAX_WORLD || kg_dtype_bytes(dtype) == 0 ||
        __builtin_mul_overflow(count, blocks * kg_dtype_bytes(dtype), &bytes) ||
        bytes > (uint64_t)INT64_MAX)
        return NULL;
    switch (op) {
    case KG_COMM_ALL_REDUCE:
    case KG_COMM_REDUCE_SCATTER:
        if (!is_sum_type(dtype))
            return NULL;
        return windows ? "windows" : "own";
    case KG_COMM_ALL_GATHER:
        return windows ? "windows" : "own";
    case KG_COMM_BROADCAST:
        return "own";
    case KG_COMM_ALL_TO_ALL:
        return "send-recv";
    default:
        return NULL;
    }
}

static const struct kg_comm_ops ops = {
    .size = sizeof(ops),
    .open = nccl_open,
    .close = nccl_close,
    .alloc_symm = nccl_alloc,
    .seal = nccl_seal,
    .all_reduce = nccl_all_reduce,
    .reduce_scatter = nccl_reduce_scatter,
    .all_gather = nccl_all_gather,
    .all_to_all = nccl_all_to_all,
    .broadcast = nccl_broadcast,
    .barrier = nccl_barrier,
    .poll = nccl_poll,
    .abort = nccl_abort,
    .progress_dump = nccl_dump,
    .choose = nccl_choose,
    .watch = nccl_watch,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_COMM,
    .size = sizeof(plugin),
    .major = KG_COMM_MAJOR,
    .minor = KG_COMM_MINOR,
    .name = "nccl",
    .version = KG_VERSION,
    .summary = "NCCL on device memory; loads it and the driver when the group is opened",
    .caps = KG_COMM_CAP_CUDA |
            KG_COMM_CAP_GRAPHS, /* no FIXED_ORDER: NCCL adds in the order of its rings and trees */
    .opts = options,
    .conf_size = sizeof(struct nccl_conf),
    .metrics = metrics,
    .ops = &ops,
};

KG_EXPORT kg_plugin_entry_fn kg_plugin_entry;

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
