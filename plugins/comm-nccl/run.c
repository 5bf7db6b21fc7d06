/* The collectives. A call without a stream uses the channel's own and waits for the result; one
 * with a stream returns when it is enqueued there. */
#include "comm_nccl.h"

#include <string.h>

struct job {
    struct kg_comm *c;
    const struct kg_coll *k;
    struct nccl_channel *ch;
    CUstream stream;
    ncclDataType_t type;
    size_t one; /* bytes of an element */
    enum nccl_op op;
};

static const char *const names[NCCL_N_OPS] = {
    "nothing", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier"};

static ncclDataType_t type_of(uint32_t dtype)
{
    static const ncclDataType_t types[KG_N_DTYPES] = {
        [KG_F32] = ncclFloat32, [KG_BF16] = ncclBfloat16, [KG_F16] = ncclFloat16,
        [KG_U8] = ncclUint8,    [KG_I32] = ncclInt32,     [KG_U32] = ncclUint32,
        [KG_I64] = ncclInt64,
    };

    return types[dtype];
}

/* Tells NCCL one collective; the lock is held and comm is there. */
static ncclResult_t tell(const struct job *j, ncclComm_t comm)
{
    const struct nccl_functions *n = &j->c->lib.nccl;
    const struct kg_coll *k = j->k;

    switch (j->op) {
    case NCCL_OP_ALL_REDUCE:
        return n->all_reduce(k->in, k->out, k->count, j->type, ncclSum, comm, j->stream);
    case NCCL_OP_REDUCE_SCATTER:
        return n->reduce_scatter(k->in, k->out, k->count, j->type, ncclSum, comm, j->stream);
    case NCCL_OP_ALL_GATHER:
        return n->all_gather(k->in, k->out, k->count, j->type, comm, j->stream);
    default:
        return n->broadcast(k->in, k->out, k->count, j->type, (int)k->root, comm, j->stream);
    }
}

/* Elements this rank sends to `peer`, and gets from it. */
static uint64_t sent(const struct job *j, uint32_t peer)
{
    return j->k->counts == NULL ? j->k->count
                                : j->ch->counts[(size_t)j->c->rank * j->c->world + peer];
}

static uint64_t received(const struct job *j, uint32_t peer)
{
    return j->k->counts == NULL ? j->k->count
                                : j->ch->counts[(size_t)peer * j->c->world + j->c->rank];
}

/* All sends and receives of an exchange, as one group; pairs without elements are left out. */
static ncclResult_t exchange(const struct job *j, ncclComm_t comm)
{
    const struct nccl_functions *n = &j->c->lib.nccl;
    uint64_t block = j->k->count * j->one;

    ncclResult_t r = n->group_start();
    for (uint32_t p = 0; p < j->c->world && r == ncclSuccess; p++) {
        const char *from = (const char *)j->k->in + p * block;
        char *to = (char *)j->k->out + p * block;
        if (sent(j, p) > 0)
            r = n->send(from, sent(j, p), j->type, (int)p, comm, j->stream);
        if ((r == ncclSuccess || r == ncclInProgress) && received(j, p) > 0)
            r = n->recv(to, received(j, p), j->type, (int)p, comm, j->stream);
        r = r == ncclInProgress ? ncclSuccess : r;
    }
    ncclResult_t end = n->group_end(); /* also after a failure, or the thread stays in the group */
    return r != ncclSuccess ? r : end;
}

/* Gives a collective to NCCL and waits until it is in the stream. */
static int issue(const struct job *j)
{
    ncclResult_t r = ncclSuccess;

    (void)pthread_mutex_lock(&j->ch->lock);
    ncclComm_t comm = atomic_load(&j->ch->comm);
    if (comm != NULL)
        r = j->op == NCCL_OP_ALL_TO_ALL ? exchange(j, comm) : tell(j, comm);
    (void)pthread_mutex_unlock(&j->ch->lock);
    if (comm == NULL)
        return KG_EDEVICE;
    int rc = nccl_returned(j->c, r, NULL, names[j->op]);
    return rc == KG_OK ? nccl_settle(j->c, j->k->channel, j->c->timeout_ns, names[j->op]) : rc;
}

/* Copies device memory behind the stream's work to the host, and waits for it. */
static int fetch(const struct job *j, void *to, CUdeviceptr from, size_t bytes)
{
    CUresult e = j->c->lib.cuda.copy_to_host(to, from, bytes, j->stream);

    if (e != CUDA_SUCCESS)
        return nccl_lose(j->c, "rank %u, all_to_all: CUDA: %s", j->c->rank,
                         nccl_cuda_text(&j->c->lib, e));
    return nccl_finish(j->c, j->k->channel, j->stream, names[j->op]);
}

/*
 * Who sends how much to whom: [world][world] on the host. NCCL wants both sides of a pair to name
 * the same number, and the receiver does not know it. KG_EINVAL for a count of this rank's that
 * cannot be, before the others are troubled.
 */
static int learn_counts(const struct job *j)
{
    const struct kg_comm *c = j->c;
    const struct kg_coll k = {.channel = j->k->channel,
                              .count = c->world,
                              .in = j->k->counts,
                              .out = (void *)(uintptr_t)j->ch->scratch};
    struct job gather = *j;
    size_t row = c->world * sizeof(uint64_t);
    uint64_t *mine = j->ch->counts + (size_t)c->rank * c->world;

    int rc = fetch(j, mine, (CUdeviceptr)(uintptr_t)j->k->counts, row);
    for (uint32_t p = 0; p < c->world && rc == KG_OK; p++)
        rc = mine[p] > j->k->count ? KG_EINVAL : KG_OK;
    if (rc != KG_OK)
        return rc;
    gather.k = &k;
    gather.op = NCCL_OP_ALL_GATHER;
    gather.type = ncclUint64;
    rc = issue(&gather);
    if (rc == KG_OK)
        rc = nccl_finish(j->c, k.channel, j->stream, names[j->op]);
    if (rc == KG_OK)
        rc = fetch(j, j->ch->counts, j->ch->scratch, row * c->world);
    for (uint64_t i = 0; i < (uint64_t)c->world * c->world && rc == KG_OK; i++) {
        if (j->ch->counts[i] > j->k->count)
            rc = nccl_lose(j->c, "rank %u sends more than the agreed maximum",
                           (uint32_t)(i / c->world));
    }
    return rc;
}

static int is_captured(const struct job *j)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return j->c->lib.cuda.stream_capturing(j->stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Debug runs: all ranks mean the same call. NCCL itself would hang, or add what does not belong
 * together. */
static int agree(const struct job *j)
{
    const struct kg_coll *k = j->k;
    uint64_t h = (uint64_t)j->op | (uint64_t)k->dtype << 8 |
                 (j->op == NCCL_OP_BROADCAST ? (uint64_t)k->root << 16 : 0);

    return nccl_meet(j->c, k->channel, (h ^ k->count * 0x9e3779b97f4a7c15ull) | 1,
                     j->c->timeout_ns);
}

int nccl_run(struct kg_comm *c, enum nccl_op op, const struct kg_coll *k)
{
    struct job j = {.c = c,
                    .k = k,
                    .ch = &c->channels[k->channel],
                    .stream =
                        k->stream != NULL ? (CUstream)k->stream : c->channels[k->channel].stream,
                    .type = type_of(k->dtype),
                    .one = kg_dtype_bytes(k->dtype),
                    .op = op};
    int rc = KG_OK;

    if (op == NCCL_OP_ALL_TO_ALL && k->counts != NULL) {
        if (is_captured(&j))
            return KG_EINVAL; /* its sizes are known when it runs, not when it is recorded */
        rc = learn_counts(&j);
    }
    if (rc == KG_OK && c->host->debug)
        rc = agree(&j);
    if (rc == KG_OK)
        rc = issue(&j);
    if (rc != KG_OK)
        return rc;
    if (k->stream == NULL)
        return nccl_finish(c, k->channel, j.stream, names[op]);
    return nccl_track(c, k->channel, j.stream);
}

int nccl_warm(struct kg_comm *c)
{
    static const enum nccl_op ops[] = {NCCL_OP_ALL_REDUCE, NCCL_OP_REDUCE_SCATTER,
                                       NCCL_OP_ALL_GATHER, NCCL_OP_ALL_TO_ALL, NCCL_OP_BROADCAST};
    int rc = KG_OK;

    for (uint32_t ch = 0; ch < c->n_channels; ch++) {
        char *p = (char *)(uintptr_t)c->channels[ch].scratch;
        for (uint32_t i = 0; i < sizeof(ops) / sizeof(ops[0]) && rc == KG_OK; i++) {
            const struct kg_coll k = {.channel = ch,
                                      .dtype = KG_F32,
                                      .count = 1,
                                      .in = p,
                                      .out = p + c->scratch_bytes / 2};
            rc = nccl_run(c, ops[i], &k);
        }
    }
    return rc;
}
