/*
 * Life and death. Ranks do each step of opening together and tell each other how it went before the
 * next one: NCCL's own meeting does not end while a rank is missing, so nobody enters it unless all
 * came so far.
 */
#include "comm_nccl.h"
#include "gates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x4b474e48u /* "KGNH" */
#define NS_PER_MS 1000000ull
#define LOAD_NS 600000000000ull /* what ranks may differ in loading their weights */
#define PART_NS 2000000000ull
#define FALL_NS 5000000000ull

/* What ranks tell each other at each step. */
struct hello {
    uint32_t magic, world, n_channels, windows;
    uint64_t symm_bytes;
    int64_t pid;
    unsigned char gpu[16]; /* its UUID */
    int32_t version;       /* of NCCL */
    int32_t rc;            /* how far it came */
    char text[300];        /* of its error */
};

static uint64_t init_ns(const struct kg_comm *c)
{
    return c->conf.init_ms * NS_PER_MS;
}

/* Swaps hellos; the first rank that failed fails all, with its words. */
static int greet(const struct kg_comm *c, const struct kg_bootstrap *boot, struct hello *mine,
                 struct hello *all, const struct kg_error *sofar, struct kg_error *err)
{
    int rc = KG_OK;

    mine->rc = sofar->rc;
    (void)snprintf(mine->text, sizeof(mine->text), "%.290s", sofar->text);
    if (boot == NULL)
        all[0] = *mine;
    else
        rc = boot->all_gather(boot->ctx, mine, all, sizeof(*mine), init_ns(c));
    if (rc != KG_OK && sofar->rc == KG_OK)
        return kg_fail(err, rc, "comm-nccl: rank %u of %u: the other ranks did not come", c->rank,
                       c->world);
    if (sofar->rc != KG_OK) {
        *err = *sofar;
        return sofar->rc;
    }
    for (uint32_t r = 0; r < c->world; r++) {
        if (all[r].magic != MAGIC)
            return kg_fail(err, KG_ECONFIG, "comm-nccl: rank %u is another plugin", r);
        if (all[r].rc != KG_OK)
            return kg_fail(err, all[r].rc, "rank %u: %.290s", r, all[r].text);
    }
    return KG_OK;
}

/* What must be equal on all ranks is, and what must differ does. */
static int compare(const struct kg_comm *c, const struct hello *all, struct kg_error *err)
{
    const struct hello *mine = &all[c->rank];

    for (uint32_t r = 0; r < c->world; r++) {
        const struct hello *h = &all[r];
        if (h->world != mine->world || h->n_channels != mine->n_channels ||
            h->symm_bytes != mine->symm_bytes || h->windows != mine->windows)
            return kg_fail(err, KG_ECONFIG,
                           "comm-nccl: ranks %u and %u have different options, channels or "
                           "symmetric bytes",
                           r, c->rank);
        if (h->version != mine->version)
            return kg_fail(err, KG_ECONFIG, "comm-nccl: ranks %u and %u load NCCL %d and %d", r,
                           c->rank, h->version, mine->version);
        for (uint32_t q = 0; q < r; q++) {
            if (memcmp(h->gpu, all[q].gpu, sizeof(h->gpu)) == 0)
                return kg_fail(err, KG_ECONFIG,
                               "comm-nccl: ranks %u and %u are on the same GPU, and each needs one",
                               q, r);
        }
    }
    return KG_OK;
}

static int windows_allowed(const struct kg_comm *c, struct kg_error *err)
{
    enum nccl_feature f = NCCL_WINDOWS;
    char have[24], want[24];

    if (!c->conf.windows)
        return KG_OK;
    if (nccl_allows(c->lib.version, f) && c->world == 2)
        f = NCCL_WINDOWS_OF_TWO;
    if (nccl_allows(c->lib.version, f))
        return KG_OK;
    nccl_version_text(c->lib.version, have, sizeof(have));
    nccl_version_text(nccl_gate(f)->from, want, sizeof(want));
    return kg_fail(err, KG_ECONFIG,
                   "[comm-nccl] windows = yes: NCCL %s %s; %s need %s, or windows = no", have,
                   nccl_gate(f)->why, nccl_gate(f)->name, want);
}

/* This rank's device and its context. */
static int take_device(struct kg_comm *c, uint32_t ordinal, struct hello *mine,
                       struct kg_error *err)
{
    const struct nccl_cuda *cuda = &c->lib.cuda;
    int devices = 0;
    CUuuid uuid;

    CUresult e = cuda->device_count(&devices);
    if (e == CUDA_SUCCESS && ordinal >= (uint32_t)devices)
        return kg_fail(err, KG_ECONFIG,
                       "comm-nccl: rank %u wants device %u, and there are %d: each rank needs one",
                       c->rank, ordinal, devices);
    if (e == CUDA_SUCCESS)
        e = cuda->device_get(&c->device, (int)ordinal);
    if (e == CUDA_SUCCESS)
        e = cuda->device_uuid(&uuid, c->device);
    if (e == CUDA_SUCCESS)
        e = cuda->context_retain(&c->context, c->device);
    if (e == CUDA_SUCCESS)
        e = cuda->context_set(c->context);
    if (e != CUDA_SUCCESS)
        return kg_fail(err, KG_EDEVICE, "comm-nccl: device %u: %s", ordinal,
                       nccl_cuda_text(&c->lib, e));
    memcpy(mine->gpu, uuid.bytes, sizeof(mine->gpu));
    return KG_OK;
}

/* Streams, events and the counts of a channel. */
static CUresult open_channel(struct kg_comm *c, uint32_t i)
{
    const struct nccl_cuda *cuda = &c->lib.cuda;
    struct nccl_channel *ch = &c->channels[i];

    CUresult e = cuda->stream_create(&ch->stream, CU_STREAM_NON_BLOCKING);
    if (e == CUDA_SUCCESS)
        e = cuda->event_create(&ch->event, CU_EVENT_DISABLE_TIMING);
    for (uint32_t k = 0; k < NCCL_RING && e == CUDA_SUCCESS; k++)
        e = cuda->event_create(&ch->ring[k], CU_EVENT_DISABLE_TIMING);
    ch->scratch = c->scratch + i * c->scratch_bytes;
    ch->counts = c->host_scratch + i * c->scratch_bytes / sizeof(uint64_t);
    return e;
}

/* All memory there will be, but for NCCL's own. */
static int take_memory(struct kg_comm *c, struct kg_error *err)
{
    const struct nccl_cuda *cuda = &c->lib.cuda;
    CUresult e = CUDA_SUCCESS;
    void *p = NULL;

    c->scratch_bytes = (2 * sizeof(uint64_t) * c->world * c->world + 511) / 512 * 512;
    if (c->conf.windows) {
        ncclResult_t r = c->lib.nccl.memory_alloc(&p, c->symm_bytes);
        if (r != ncclSuccess)
            return kg_fail(err, KG_ENOMEM, "comm-nccl: %llu symmetric bytes: NCCL: %s",
                           (unsigned long long)c->symm_bytes, c->lib.nccl.error_string(r));
        c->symm = (CUdeviceptr)(uintptr_t)p;
    } else {
        e = cuda->memory_alloc(&c->symm, c->symm_bytes);
    }
    if (e == CUDA_SUCCESS)
        e = cuda->memory_alloc(&c->scratch, c->scratch_bytes * c->n_channels);
    if (e == CUDA_SUCCESS)
        e = cuda->host_alloc(&p, c->scratch_bytes * c->n_channels);
    if (e == CUDA_SUCCESS)
        c->host_scratch = p;
    for (uint32_t i = 0; i < c->n_channels && e == CUDA_SUCCESS; i++)
        e = open_channel(c, i);
    if (e != CUDA_SUCCESS)
        return kg_fail(err, KG_ENOMEM, "comm-nccl: %llu symmetric bytes, streams or events: %s",
                       (unsigned long long)c->symm_bytes, nccl_cuda_text(&c->lib, e));
    return KG_OK;
}

/* Rank 0's ids, one per channel, to everyone. */
static int share_ids(const struct kg_comm *c, const struct kg_bootstrap *boot, ncclUniqueId *ids,
                     struct kg_error *err)
{
    size_t bytes = c->n_channels * sizeof(*ids);
    ncclResult_t r = ncclSuccess;
    int rc = KG_OK;

    memset(ids, 0, bytes);
    for (uint32_t i = 0; i < c->n_channels && c->rank == 0 && r == ncclSuccess; i++)
        r = c->lib.nccl.unique_id(&ids[i]);
    if (r != ncclSuccess)
        return kg_fail(err, KG_EDEVICE, "comm-nccl: no id for a communicator: %s",
                       c->lib.nccl.error_string(r));
    if (boot == NULL)
        return KG_OK;
    ncclUniqueId *all = malloc(bytes * c->world);
    rc = all == NULL ? KG_ENOMEM : boot->all_gather(boot->ctx, ids, all, bytes, init_ns(c));
    if (rc == KG_OK)
        memcpy(ids, all, bytes);
    free(all);
    return rc == KG_OK ? rc : kg_fail(err, rc, "comm-nccl: ids of communicators did not come");
}

/* NCCL's own meeting: one communicator after the other, each with what is left of the time. */
static int make_comms(struct kg_comm *c, const ncclUniqueId *ids, struct kg_error *err)
{
    uint64_t begin = nccl_now_ns(), most = init_ns(c);
    int rc = KG_OK;

    for (uint32_t i = 0; i < c->n_channels && rc == KG_OK; i++) {
        ncclConfig_t conf = NCCL_CONFIG_INITIALIZER;
        ncclComm_t comm = NULL;
        uint64_t gone = nccl_now_ns() - begin;
        conf.blocking = 0;
        ncclResult_t r = c->lib.nccl.init(&comm, (int)c->world, ids[i], (int)c->rank, &conf);
        if (r == ncclSuccess || r == ncclInProgress)
            atomic_store(&c->channels[i].comm, comm);
        rc = nccl_returned(c, r, NULL, "making a communicator");
        if (rc == KG_OK)
            rc = nccl_settle(c, i, gone < most ? most - gone : 0, "making a communicator");
    }
    return rc == KG_OK ? rc : kg_fail(err, rc, "comm-nccl: %s", nccl_why(c));
}

static void find_processes(struct kg_comm *c, const struct hello *all)
{
    for (uint32_t r = 0; r < c->world; r++) {
        if (r != c->rank && all[r].pid != (int64_t)getpid())
            c->pidfds[r] = (int)syscall(SYS_pidfd_open, (pid_t)all[r].pid, 0);
    }
}

/* The steps of opening; each is agreed on before the next. `all` has room for the group. */
static int meet(struct kg_comm *c, const struct kg_comm_open *args, struct hello *all,
                struct kg_error *err)
{
    const struct kg_bootstrap *boot = args->boot;
    struct hello mine = {.magic = MAGIC,
                         .world = c->world,
                         .n_channels = c->n_channels,
                         .windows = c->conf.windows,
                         .symm_bytes = c->symm_bytes,
                         .pid = getpid()};
    ncclUniqueId ids[NCCL_MAX_CHANNELS];
    struct kg_error sofar = {0};

    sofar.rc = nccl_library_load(c->conf.driver, c->conf.library, &c->lib, &sofar);
    mine.version = c->lib.version;
    c->fall->abort = c->lib.nccl.abort;
    if (sofar.rc == KG_OK)
        sofar.rc = windows_allowed(c, &sofar);
    if (sofar.rc == KG_OK)
        sofar.rc = take_device(c, args->device, &mine, &sofar);
    int rc = greet(c, boot, &mine, all, &sofar, err);
    if (rc == KG_OK)
        rc = compare(c, all, err);
    if (rc != KG_OK)
        return rc;
    find_processes(c, all);
    sofar.rc = nccl_board_open(c, boot, init_ns(c));
    if (sofar.rc != KG_OK)
        (void)kg_fail(&sofar, sofar.rc, "comm-nccl: no memory to meet in");
    else
        sofar.rc = take_memory(c, &sofar);
    rc = greet(c, boot, &mine, all, &sofar, err);
    if (rc == KG_OK)
        rc = share_ids(c, boot, ids, err);
    if (rc != KG_OK)
        return rc;
    sofar.rc = make_comms(c, ids, &sofar);
    return greet(c, boot, &mine, all, &sofar, err);
}

static int check_args(const struct kg_comm_open *args, struct kg_error *err)
{
    if (args->world == 0 || args->world > NCCL_MAX_WORLD || args->rank >= args->world)
        return kg_fail(err, KG_ECONFIG, "comm-nccl: rank %u of %u, wanted a rank of 1 .. %u",
                       args->rank, args->world, NCCL_MAX_WORLD);
    if (args->n_channels == 0 || args->n_channels > NCCL_MAX_CHANNELS)
        return kg_fail(err, KG_EINVAL, "comm-nccl: n_channels = %u, wanted 1 .. %u",
                       args->n_channels, NCCL_MAX_CHANNELS);
    if (args->symm_bytes == 0 || args->timeout_ns == 0)
        return kg_fail(err, KG_EINVAL, "comm-nccl: symm_bytes or timeout_ns is 0");
    if (args->size >= sizeof(*args) && args->memory == KG_COMM_CAP_HOST)
        return kg_fail(err, KG_ECONFIG,
                       "comm-nccl works on device memory, the backend computes in host memory");
    if (args->world > 1 && args->boot == NULL)
        return kg_fail(err, KG_EINVAL, "comm-nccl: %u ranks and no bootstrap", args->world);
    return KG_OK;
}

/* An empty communicator: all there is to take down is zero. */
static struct kg_comm *make(const struct kg_host *host, const void *conf,
                            const struct kg_comm_open *args)
{
    static const struct nccl_conf defaults = {
        .library = "libnccl.so.2", .driver = "libcuda.so.1", .init_ms = 60000};
    struct kg_comm *c = host->alloc(host->ctx, sizeof(*c), 0);
    struct nccl_fall *f = calloc(1, sizeof(*f)); /* may outlive the instance */

    if (c == NULL || f == NULL) {
        host->free(host->ctx, c, sizeof(*c));
        free(f);
        return NULL;
    }
    memset(c, 0, sizeof(*c));
    c->host = host;
    c->conf = conf != NULL ? *(const struct nccl_conf *)conf : defaults;
    c->fall = f;
    c->symm_bytes = args->symm_bytes;
    c->timeout_ns = args->timeout_ns;
    c->rank = args->rank;
    c->world = args->world;
    c->n_channels = args->n_channels;
    memset(c->pidfds, 0xff, sizeof(c->pidfds));
    for (uint32_t i = 0; i < c->n_channels; i++)
        (void)pthread_mutex_init(&c->channels[i].lock, NULL);
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->change, NULL);
    f->users = 1;
    return c;
}

static void tell_version(const struct kg_comm *c)
{
    char version[24], without[200];

    nccl_version_text(c->lib.version, version, sizeof(version));
    nccl_gates_text(c->lib.version, without, sizeof(without));
    c->host->log(c->host->ctx, KG_LOG_INFO, "NCCL %s, not used for its faults: %s", version,
                 without);
}

int nccl_open(const struct kg_host *host, const void *conf, const struct kg_comm_open *args,
              struct kg_comm **comm, struct kg_error *err)
{
    int rc = check_args(args, err);

    if (rc != KG_OK)
        return rc;
    struct kg_comm *c = make(host, conf, args);
    struct hello *all = calloc(args->world, sizeof(*all));
    if (c == NULL || all == NULL)
        rc = kg_fail(err, KG_ENOMEM, "comm-nccl: out of memory");
    else
        rc = meet(c, args, all, err);
    free(all);
    if (rc != KG_OK) {
        nccl_close(c);
        return rc;
    }
    if (c->rank == 0)
        tell_version(c);
    *comm = c;
    return KG_OK;
}

static int register_windows(struct kg_comm *c, struct kg_error *err)
{
    int rc = KG_OK;

    for (uint32_t i = 0; i < c->n_channels && c->conf.windows && rc == KG_OK; i++) {
        struct nccl_channel *ch = &c->channels[i];
        ncclComm_t comm = atomic_load(&ch->comm);
        ncclResult_t r = c->lib.nccl.window(comm, (void *)(uintptr_t)c->symm, c->symm_bytes,
                                            &ch->window, NCCL_WIN_COLL_SYMMETRIC);
        rc = nccl_returned(c, r, NULL, "registering a window");
        if (rc == KG_OK)
            rc = nccl_settle(c, i, init_ns(c), "registering a window");
        if (rc == KG_OK && ch->window == NULL) /* success and no window: not supported here */
            rc = nccl_lose(c, "rank %u: NCCL has no symmetric windows on this machine", c->rank);
    }
    return rc == KG_OK ? rc : kg_fail(err, rc, "comm-nccl: %s", nccl_why(c));
}

int nccl_seal(struct kg_comm *comm, struct kg_error *err)
{
    uint64_t longest = comm->timeout_ns > LOAD_NS ? comm->timeout_ns : LOAD_NS;

    if (comm->sealed)
        return kg_fail(err, KG_EINVAL, "comm-nccl: sealed twice");
    comm->sealed = 1;
    int rc = nccl_meet(comm, 0, comm->symm_used, longest);
    if (rc != KG_OK)
        return kg_fail(err, rc,
                       "comm-nccl: rank %u: ranks did not seal the same %llu symmetric bytes, or "
                       "one is lost: %s",
                       comm->rank, (unsigned long long)comm->symm_used, nccl_why(comm));
    (void)comm->lib.cuda.context_set(comm->context);
    rc = register_windows(comm, err);
    if (rc == KG_OK && nccl_warm(comm) != KG_OK)
        rc = kg_fail(err, KG_EDEVICE, "comm-nccl: first collectives: %s", nccl_why(comm));
    return rc;
}

static void free_channel(struct kg_comm *c, struct nccl_channel *ch)
{
    for (uint32_t k = 0; k < NCCL_RING; k++) {
        if (ch->ring[k] != NULL)
            (void)c->lib.cuda.event_destroy(ch->ring[k]);
    }
    if (ch->event != NULL)
        (void)c->lib.cuda.event_destroy(ch->event);
    if (ch->stream != NULL)
        (void)c->lib.cuda.stream_destroy(ch->stream);
}

/* Device memory, unless kernels of a hanging abort may still use it. */
static void free_device(struct kg_comm *c)
{
    if (c->context == NULL)
        return;
    (void)c->lib.cuda.context_set(c->context);
    for (uint32_t i = 0; i < c->n_channels; i++)
        free_channel(c, &c->channels[i]);
    if (c->symm != 0 && c->conf.windows)
        (void)c->lib.nccl.memory_free((void *)(uintptr_t)c->symm);
    else if (c->symm != 0)
        (void)c->lib.cuda.memory_free(c->symm);
    if (c->scratch != 0)
        (void)c->lib.cuda.memory_free(c->scratch);
    if (c->host_scratch != NULL)
        (void)c->lib.cuda.host_free(c->host_scratch);
    (void)c->lib.cuda.context_release(c->device);
}

void nccl_close(struct kg_comm *comm)
{
    int calm = 1;

    if (comm == NULL)
        return;
    const struct kg_host *host = comm->host;
    if (comm->context != NULL)
        (void)comm->lib.cuda.context_set(comm->context);
    if (comm->board != NULL) {
        atomic_store(&comm->board->places[comm->rank].left, 1);
        if (nccl_well(comm) != KG_OK)
            calm = 0;
    }
    for (uint32_t i = 0; i < comm->n_channels && calm; i++)
        calm = nccl_part(comm, i, PART_NS);
    if (!calm)
        nccl_fall(comm);
    if (nccl_fallen(comm, FALL_NS))
        free_device(comm);
    else
        host->log(host->ctx, KG_LOG_ERROR,
                  "rank %u: NCCL does not come back from its abort; its memory stays", comm->rank);
    nccl_board_close(comm);
    for (uint32_t i = 0; i < comm->n_channels; i++)
        (void)pthread_mutex_destroy(&comm->channels[i].lock);
    host->free(host->ctx, comm, sizeof(*comm));
}
