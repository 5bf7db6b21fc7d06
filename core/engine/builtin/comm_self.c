/* Collectives of a group of one rank: every one is the identity. */
#include "engine/builtin/builtin.h"

#include <kedge/comm.h>
#include <string.h>

struct region {
    struct region *next;
    uint64_t bytes;
    void *p;
};

struct kg_comm {
    const struct kg_host *host;
    struct region *regions;
    uint64_t symm_bytes, symm_used;
    uint32_t n_channels;
    int sealed;
    _Atomic int aborted;
    uint64_t calls;
    const char *last; /* name of the last call; "" before the first */
};

enum { M_CALLS };
static const struct kg_metric metrics[] = {
    [M_CALLS] = {"calls_total", KG_COUNTER, "Collectives called."},
    {0},
};

static void self_close(struct kg_comm *comm)
{
    if (comm == NULL)
        return;
    const struct kg_host *host = comm->host;
    while (comm->regions != NULL) {
        struct region *r = comm->regions;
        comm->regions = r->next;
        host->free(host->ctx, r->p, r->bytes);
        host->free(host->ctx, r, sizeof(*r));
    }
    host->free(host->ctx, comm, sizeof(*comm));
}

static int self_open(const struct kg_host *host, const void *conf, const struct kg_comm_open *args,
                     struct kg_comm **comm, struct kg_error *err)
{
    (void)conf;
    if (args->world != 1 || args->rank != 0)
        return kg_fail(err, KG_ECONFIG, "comm-self: rank %u of %u, but it serves a single rank",
                       args->rank, args->world);
    if (args->n_channels == 0)
        return kg_fail(err, KG_EINVAL, "comm-self: n_channels = 0, wanted at least 1");
    struct kg_comm *c = host->alloc(host->ctx, sizeof(*c), 0);
    if (c == NULL)
        return kg_fail(err, KG_ENOMEM, "comm-self: out of memory");
    memset(c, 0, sizeof(*c));
    c->host = host;
    c->symm_bytes = args->symm_bytes;
    c->n_channels = args->n_channels;
    c->last = "";
    *comm = c;
    return KG_OK;
}

static int self_alloc_symm(struct kg_comm *comm, uint64_t bytes, void **p)
{
    const struct kg_host *host = comm->host;

    if (comm->sealed || bytes == 0)
        return KG_EINVAL;
    if (bytes > comm->symm_bytes - comm->symm_used)
        return KG_ELIMIT;
    struct region *r = host->alloc(host->ctx, sizeof(*r), 0);
    if (r == NULL)
        return KG_ENOMEM;
    r->bytes = bytes;
    r->p = host->alloc(host->ctx, bytes, 64);
    if (r->p == NULL) {
        host->free(host->ctx, r, sizeof(*r));
        return KG_ENOMEM;
    }
    r->next = comm->regions;
    comm->regions = r;
    comm->symm_used += bytes;
    *p = r->p;
    return KG_OK;
}

static int self_seal(struct kg_comm *comm, struct kg_error *err)
{
    if (comm->sealed)
        return kg_fail(err, KG_EINVAL, "comm-self: sealed twice");
    comm->sealed = 1;
    return KG_OK;
}

/* What every collective checks first, and its place in the progress dump. */
static int begin(struct kg_comm *comm, uint32_t channel, const char *name)
{
    if (atomic_load(&comm->aborted))
        return KG_EDEVICE;
    if (channel >= comm->n_channels || !comm->sealed)
        return KG_EINVAL;
    comm->last = name;
    comm->calls++;
    if (comm->host->cells != NULL)
        kg_add(&comm->host->cells[M_CALLS], 1);
    return KG_OK;
}

static int move(struct kg_comm *comm, const struct kg_coll *c, uint64_t count, const char *name)
{
    size_t one = kg_dtype_bytes(c->dtype);

    if (one == 0 || count > SIZE_MAX / one || (count > 0 && (c->in == NULL || c->out == NULL)))
        return KG_EINVAL;
    int rc = begin(comm, c->channel, name);
    if (rc == KG_OK && count > 0 && c->in != c->out)
        memmove(c->out, c->in, (size_t)count * one);
    return rc;
}

static int sums(uint32_t dtype)
{
    return dtype == KG_F32 || dtype == KG_BF16;
}

static int self_all_reduce(struct kg_comm *comm, const struct kg_coll *c)
{
    return sums(c->dtype) ? move(comm, c, c->count, "all_reduce") : KG_EINVAL;
}

static int self_reduce_scatter(struct kg_comm *comm, const struct kg_coll *c)
{
    return sums(c->dtype) ? move(comm, c, c->count, "reduce_scatter") : KG_EINVAL;
}

static int self_all_gather(struct kg_comm *comm, const struct kg_coll *c)
{
    return move(comm, c, c->count, "all_gather");
}

static int self_all_to_all(struct kg_comm *comm, const struct kg_coll *c)
{
    uint64_t count = c->counts != NULL ? c->counts[0] : c->count;

    return count <= c->count ? move(comm, c, count, "all_to_all") : KG_EINVAL;
}

static int self_broadcast(struct kg_comm *comm, const struct kg_coll *c)
{
    return c->root == 0 ? move(comm, c, c->count, "broadcast") : KG_EINVAL;
}

static int self_barrier(struct kg_comm *comm, uint32_t channel)
{
    return begin(comm, channel, "barrier");
}

static int self_poll(struct kg_comm *comm)
{
    return atomic_load(&comm->aborted) ? KG_EDEVICE : KG_OK;
}

static void self_abort(struct kg_comm *comm)
{
    atomic_store(&comm->aborted, 1);
}

static size_t self_progress_dump(struct kg_comm *comm, char *text, size_t n)
{
    if (n == 0)
        return 0;
    int len = snprintf(text, n, "rank 0: %llu calls, last %s%s", (unsigned long long)comm->calls,
                       comm->last[0] != '\0' ? comm->last : "none",
                       atomic_load(&comm->aborted) ? ", aborted" : "");
    return len < 0 ? 0 : (size_t)len < n ? (size_t)len : n - 1;
}

static const struct kg_comm_ops ops = {
    .size = sizeof(ops),
    .open = self_open,
    .close = self_close,
    .alloc_symm = self_alloc_symm,
    .seal = self_seal,
    .all_reduce = self_all_reduce,
    .reduce_scatter = self_reduce_scatter,
    .all_gather = self_all_gather,
    .all_to_all = self_all_to_all,
    .broadcast = self_broadcast,
    .barrier = self_barrier,
    .poll = self_poll,
    .abort = self_abort,
    .progress_dump = self_progress_dump,
};

const struct kg_plugin kg_builtin_comm_self = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_COMM,
    .size = sizeof(struct kg_plugin),
    .major = KG_COMM_MAJOR,
    .minor = KG_COMM_MINOR,
    .name = "self",
    .version = KG_VERSION,
    .summary = "A group of one rank: every collective is the identity",
    .caps = KG_COMM_CAP_FIXED_ORDER | KG_COMM_CAP_HOST,
    .metrics = metrics,
    .ops = &ops,
};
