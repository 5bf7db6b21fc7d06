#include "fake_nccl.h"

#include "fake_driver.h"

#include <fcntl.h>
#include <nccl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define STAGE (4u << 20)
#define BOX (STAGE / FAKE_RANKS)
#define QUEUE 64
#define COPIES 8
#define BUSY_LOOKS 3 /* how often a communicator says "in progress" after it was told something */

FAKE extern struct fake_plan fake_nccl_plan;
struct fake_plan fake_nccl_plan = {.version = NCCL_VERSION_CODE};
#define plan fake_nccl_plan

/* --- the driver --- */

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    uint64_t behind; /* this many operations of the stream */
};

struct stream {
    struct CUstream_st base;    /* each task that was given and is not done has a reference too */
    struct copy copies[COPIES]; /* that wait for operations before them */
    int n_copies;
};

FAKE CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    memset(uuid, 0, sizeof(*uuid));
    uuid->bytes[0] = (char)(atomic_load(&plan.one_gpu) ? 1 : device + 1);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t bytes)
{
    void *m = fake_fails() ? NULL : fake_taken(aligned_alloc(512, (bytes + 511) / 512 * 512));

    if (m == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_fetch_add(&plan.allocations, 1);
    *p = (CUdeviceptr)(uintptr_t)m;
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemFree_v2(CUdeviceptr p)
{
    free((void *)(uintptr_t)p);
    atomic_fetch_sub(&plan.allocations, 1);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemAllocHost_v2(void **p, size_t bytes)
{
    CUdeviceptr d;
    CUresult e = cuMemAlloc_v2(&d, bytes);

    if (e == CUDA_SUCCESS)
        *p = (void *)(uintptr_t)d;
    return e;
}

FAKE CUresult cuMemFreeHost(void *p)
{
    return cuMemFree_v2((CUdeviceptr)(uintptr_t)p);
}

FAKE CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    struct stream *s = fake_stream_new(sizeof(*s));

    (void)flags;
    if (s == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *stream = &s->base;
    return CUDA_SUCCESS;
}

/* Returns at once; what the stream still runs ends by itself. */
FAKE CUresult cuStreamDestroy_v2(CUstream stream)
{
    fake_stream_unref(stream);
    atomic_fetch_sub(&fake_driver_plan.streams, 1);
    return CUDA_SUCCESS;
}

/* Does the copies whose time has come. */
CUresult fake_look(struct CUstream_st *stream)
{
    struct stream *s = (struct stream *)stream;
    int left = 0;

    if (s == NULL)
        return CUDA_SUCCESS;
    uint64_t done = atomic_load(&stream->done);
    (void)pthread_mutex_lock(&stream->lock);
    for (int i = 0; i < s->n_copies; i++) {
        if (s->copies[i].behind <= done)
            memcpy(s->copies[i].to, s->copies[i].from, s->copies[i].bytes);
        else
            s->copies[left++] = s->copies[i];
    }
    s->n_copies = left;
    (void)pthread_mutex_unlock(&stream->lock);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    struct stream *s = (struct stream *)stream;
    struct copy c = {to, (const void *)(uintptr_t)from, bytes, atomic_load(&stream->given)};

    (void)pthread_mutex_lock(&stream->lock);
    int room = s->n_copies < COPIES;
    if (room)
        s->copies[s->n_copies++] = c;
    (void)pthread_mutex_unlock(&stream->lock);
    (void)fake_look(stream);
    return room ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
}

/* --- communicators --- */

enum op { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, EXCHANGE };

struct task {
    enum op op;
    const char *in;
    char *out;
    size_t n, one;
    ncclDataType_t type;
    int root, stuck, error;
    CUstream stream;
    struct {
        const char *from;
        char *to;
        size_t sends, receives; /* bytes */
    } peers[FAKE_RANKS];
};

/* What the ranks of a communicator share. */
struct shared {
    _Atomic uint32_t arrive[FAKE_RANKS];
    struct box {
        _Atomic uint32_t posted, taken;
        size_t bytes;
    } boxes[FAKE_RANKS][FAKE_RANKS]; /* [from][to]; the bytes are in the sender's stage */
    char stage[FAKE_RANKS][STAGE];
};

struct ncclComm {
    struct shared *shared;
    int rank, world, owner_fd;
    uint32_t meeting;
    _Atomic int aborted, state, busy, ending, finalized;
    int at_work; /* on a task; under the lock */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct task queue[QUEUE];
    uint32_t from, n;
};

static FAKE_THREAD int group_depth;
static FAKE_THREAD struct task group_task;
static FAKE_THREAD struct ncclComm *group_comm;

/* Waits until a counter of another rank reaches `n`; 0 when aborted meanwhile. */
static int await(struct ncclComm *c, _Atomic uint32_t *counter, uint32_t n)
{
    for (int i = 0; (int32_t)(atomic_load(counter) - n) < 0; i++) {
        if (atomic_load(&c->aborted))
            return 0;
        if (i < 1000)
            (void)sched_yield();
        else
            (void)usleep(50);
    }
    return 1;
}

static int meet(struct ncclComm *c)
{
    uint32_t meeting = ++c->meeting;

    atomic_store(&c->shared->arrive[c->rank], meeting);
    for (int r = 0; r < c->world; r++) {
        if (!await(c, &c->shared->arrive[r], meeting))
            return 0;
    }
    return 1;
}

static float widen(const char *p, ncclDataType_t type, size_t i)
{
    uint32_t bits;
    uint16_t half;
    float f;

    if (type == ncclFloat32) {
        memcpy(&f, p + i * 4, 4);
        return f;
    }
    memcpy(&half, p + i * 2, 2);
    bits = (uint32_t)half << 16;
    memcpy(&f, &bits, 4);
    return f;
}

static void narrow(char *p, ncclDataType_t type, size_t i, float f)
{
    uint32_t bits;

    if (type == ncclFloat32) {
        memcpy(p + i * 4, &f, 4);
        return;
    }
    memcpy(&bits, &f, 4);
    bits += 0x7fff + (bits >> 16 & 1);
    uint16_t half = (uint16_t)(bits >> 16);
    memcpy(p + i * 2, &half, 2);
}

static void sum(const struct ncclComm *c, const struct task *t, size_t from)
{
    for (size_t i = 0; i < t->n; i++) {
        float total = widen(c->shared->stage[0], t->type, from + i);
        for (int r = 1; r < c->world; r++)
            total += widen(c->shared->stage[r], t->type, from + i);
        narrow(t->out, t->type, i, total);
    }
}

/* 0 when there is too much. */
static int lay_down(struct ncclComm *c, const struct task *t)
{
    size_t bytes = t->n * t->one * (t->op == REDUCE_SCATTER ? (size_t)c->world : 1);

    if (bytes <= STAGE && (t->op != BROADCAST || t->root == c->rank))
        memcpy(c->shared->stage[c->rank], t->in, bytes);
    return bytes <= STAGE;
}

static int post(struct ncclComm *c, const struct task *t, int p)
{
    struct box *b = &c->shared->boxes[c->rank][p];

    if (t->peers[p].sends > BOX)
        return 0;
    memcpy(c->shared->stage[c->rank] + (size_t)p * BOX, t->peers[p].from, t->peers[p].sends);
    b->bytes = t->peers[p].sends;
    atomic_fetch_add(&b->posted, 1);
    return 1;
}

/* Both sides must have named the same number. */
static int fetch(struct ncclComm *c, const struct task *t, int r)
{
    struct box *b = &c->shared->boxes[r][c->rank];

    if (!await(c, &b->posted, atomic_load(&b->taken) + 1))
        return 1;
    if (b->bytes != t->peers[r].receives)
        return 0;
    memcpy(t->peers[r].to, c->shared->stage[r] + (size_t)c->rank * BOX, b->bytes);
    atomic_fetch_add(&b->taken, 1);
    return 1;
}

/* Only pairs that have something to say to each other meet, as in the real one. */
static void exchange(struct ncclComm *c, const struct task *t)
{
    int ok = 1;

    for (int p = 0; p < c->world && ok; p++)
        ok = t->peers[p].sends == 0 || post(c, t, p);
    for (int r = 0; r < c->world && ok; r++)
        ok = t->peers[r].receives == 0 || fetch(c, t, r);
    for (int p = 0; p < c->world && ok; p++) {
        struct box *b = &c->shared->boxes[c->rank][p];
        if (t->peers[p].sends > 0 && !await(c, &b->taken, atomic_load(&b->posted)))
            return;
    }
    if (!ok)
        atomic_store(&c->state, ncclInvalidUsage);
}

static void take(struct ncclComm *c, const struct task *t)
{
    size_t block = t->n * t->one;

    switch (t->op) {
    case ALL_REDUCE:
        sum(c, t, 0);
        break;
    case REDUCE_SCATTER:
        sum(c, t, (size_t)c->rank * t->n);
        break;
    case ALL_GATHER:
        for (int r = 0; r < c->world; r++)
            memcpy(t->out + (size_t)r * block, c->shared->stage[r], block);
        break;
    default:
        memcpy(t->out, c->shared->stage[t->root], block);
        break;
    }
}

static void perform(struct ncclComm *c, const struct task *t)
{
    if (t->error != 0) { /* the kernel is gone; peers wait for it for ever */
        atomic_store(&c->state, t->error);
        while (!atomic_load(&c->aborted))
            (void)usleep(100);
        return;
    }
    while (t->stuck && !atomic_load(&c->aborted))
        (void)usleep(100);
    if (t->stuck)
        return;
    if (t->op == EXCHANGE) {
        exchange(c, t);
        return;
    }
    if (!lay_down(c, t))
        atomic_store(&c->state, ncclInternalError);
    else if (meet(c))
        take(c, t);
    (void)meet(c);
}

/* The device: joins the others, then does one task after the other. */
static void *work(void *arg)
{
    struct ncclComm *c = arg;

    while (atomic_load(&plan.init_hangs[c->rank]) && !atomic_load(&c->aborted))
        (void)usleep(100);
    if (!atomic_load(&c->aborted) && meet(c))
        atomic_store(&c->state, ncclSuccess);
    (void)pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->n == 0 && !atomic_load(&c->ending))
            (void)pthread_cond_wait(&c->change, &c->lock);
        if (c->n == 0)
            break;
        struct task t = c->queue[c->from];
        c->from = (c->from + 1) % QUEUE;
        c->n--;
        c->at_work = 1;
        (void)pthread_mutex_unlock(&c->lock);
        if (!atomic_load(&c->aborted))
            perform(c, &t);
        atomic_fetch_add(&t.stream->done, 1);
        fake_stream_unref(t.stream);
        (void)pthread_mutex_lock(&c->lock);
        c->at_work = 0;
    }
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

static ncclResult_t give(struct ncclComm *c, struct task *t)
{
    int error = atomic_exchange(&plan.call_error[c->rank], 0);

    if (error != 0)
        return (ncclResult_t)error;
    t->error = atomic_exchange(&plan.async_error[c->rank], 0);
    t->stuck = atomic_exchange(&fake_driver_plan.stuck[c->rank], 0);
    (void)pthread_mutex_lock(&c->lock);
    int room = c->n < QUEUE;
    if (room) {
        c->queue[(c->from + c->n++) % QUEUE] = *t;
        atomic_fetch_add(&t->stream->given, 1);
        atomic_fetch_add(&t->stream->refs, 1);
        atomic_store(&c->busy, BUSY_LOOKS);
        (void)pthread_cond_signal(&c->change);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return room ? ncclInProgress : ncclInternalError;
}

static void end(struct ncclComm *c)
{
    (void)pthread_mutex_lock(&c->lock);
    atomic_store(&c->ending, 1);
    (void)pthread_cond_signal(&c->change);
    (void)pthread_mutex_unlock(&c->lock);
    (void)pthread_join(c->thread, NULL);
    (void)munmap(c->shared, sizeof(*c->shared));
    if (c->owner_fd >= 0)
        (void)close(c->owner_fd);
    (void)pthread_cond_destroy(&c->change);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
    atomic_fetch_sub(&plan.comms, 1);
}

/* --- NCCL --- */

FAKE ncclResult_t ncclGetVersion(int *version)
{
    *version = atomic_load(&plan.version);
    return ncclSuccess;
}

FAKE const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[ncclNumResults] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "in progress"};

    return (unsigned int)result < ncclNumResults ? texts[result] : "unknown";
}

FAKE const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "as the test wanted";
}

/* The id is where the shared memory is found: a descriptor of this process. */
FAKE ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    int fd = memfd_create("fake-nccl", MFD_CLOEXEC);

    if (fd < 0 || ftruncate(fd, sizeof(struct shared)) != 0)
        return ncclSystemError;
    memset(id, 0, sizeof(*id));
    (void)snprintf(id->internal, sizeof(id->internal), "/proc/%d/fd/%d", (int)getpid(), fd);
    return ncclSuccess;
}

static struct shared *open_shared(const ncclUniqueId *id)
{
    int fd = open(id->internal, O_RDWR | O_CLOEXEC);
    void *p = MAP_FAILED;

    if (fd >= 0) {
        p = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        (void)close(fd);
    }
    return p == MAP_FAILED ? NULL : p;
}

FAKE ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId,
                                         int rank, ncclConfig_t *config)
{
    int error = atomic_load(&plan.init_error[rank]);

    if (config->blocking != 0 || config->magic != 0xcafebeef || nranks > FAKE_RANKS)
        return ncclInvalidArgument;
    struct shared *shared = open_shared(&commId);
    if (shared == NULL)
        return ncclSystemError;
    if (rank == 0 && error != 0)
        (void)close(atoi(strrchr(commId.internal, '/') + 1));
    if (error != 0) {
        (void)munmap(shared, sizeof(*shared));
        return (ncclResult_t)error;
    }
    struct ncclComm *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return ncclSystemError;
    c->shared = shared;
    c->rank = rank;
    c->world = nranks;
    c->owner_fd = rank == 0 ? atoi(strrchr(commId.internal, '/') + 1) : -1;
    atomic_store(&c->state, ncclInProgress);
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->change, NULL);
    atomic_fetch_add(&plan.comms, 1);
    if (pthread_create(&c->thread, NULL, work, c) != 0)
        abort(); /* the machine is out of threads: no case can say anything */
    *comm = c;
    return ncclInProgress;
}

FAKE ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    *asyncError = (ncclResult_t)atomic_load(&comm->state);
    (void)pthread_mutex_lock(&comm->lock);
    int at_work = comm->n > 0 || comm->at_work;
    (void)pthread_mutex_unlock(&comm->lock);
    if (*asyncError == ncclSuccess && atomic_load(&comm->finalized) && at_work) {
        *asyncError = ncclInProgress;
    } else if (*asyncError == ncclSuccess && atomic_load(&comm->busy) > 0) {
        atomic_fetch_sub(&comm->busy, 1);
        *asyncError = ncclInProgress;
    }
    return ncclSuccess;
}

FAKE ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    atomic_store(&comm->finalized, 1);
    atomic_store(&comm->busy, atomic_load(&plan.finalize_hangs[comm->rank]) ? 1 << 30 : BUSY_LOOKS);
    return ncclInProgress;
}

FAKE ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    end(comm);
    return ncclSuccess;
}

FAKE ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    while (atomic_load(&plan.abort_hangs[comm->rank]))
        (void)usleep(1000);
    atomic_store(&comm->aborted, 1);
    end(comm);
    return ncclSuccess;
}

FAKE ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    return cuMemAllocHost_v2(ptr, size) == CUDA_SUCCESS ? ncclSuccess : ncclUnhandledCudaError;
}

FAKE ncclResult_t ncclMemFree(void *ptr)
{
    (void)cuMemFreeHost(ptr);
    return ncclSuccess;
}

FAKE ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size,
                                         ncclWindow_t *win, int winFlags)
{
    (void)buff;
    (void)size;
    if (winFlags != NCCL_WIN_COLL_SYMMETRIC)
        return ncclInvalidArgument;
    if (!atomic_load(&plan.no_window)) {
        atomic_fetch_add(&plan.windows, 1);
        *win = (ncclWindow_t)(void *)comm;
    }
    return ncclInProgress;
}

FAKE ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
    return (void *)win == (void *)comm ? ncclSuccess : ncclInvalidArgument;
}

static size_t bytes_of(ncclDataType_t type)
{
    static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return sizes[type];
}

FAKE ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream)
{
    struct task t = {.op = ALL_REDUCE,
                     .in = sendbuff,
                     .out = recvbuff,
                     .n = count,
                     .one = bytes_of(datatype),
                     .type = datatype,
                     .stream = stream};

    return op == ncclSum ? give(comm, &t) : ncclInvalidArgument;
}

FAKE ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                    ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                    cudaStream_t stream)
{
    struct task t = {.op = REDUCE_SCATTER,
                     .in = sendbuff,
                     .out = recvbuff,
                     .n = recvcount,
                     .one = bytes_of(datatype),
                     .type = datatype,
                     .stream = stream};

    return op == ncclSum ? give(comm, &t) : ncclInvalidArgument;
}

FAKE ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                                ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
    struct task t = {.op = ALL_GATHER,
                     .in = sendbuff,
                     .out = recvbuff,
                     .n = sendcount,
                     .one = bytes_of(datatype),
                     .type = datatype,
                     .stream = stream};

    return give(comm, &t);
}

FAKE ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                                ncclDataType_t datatype, int root, ncclComm_t comm,
                                cudaStream_t stream)
{
    struct task t = {.op = BROADCAST,
                     .in = sendbuff,
                     .out = recvbuff,
                     .n = count,
                     .root = root,
                     .one = bytes_of(datatype),
                     .type = datatype,
                     .stream = stream};

    return give(comm, &t);
}

FAKE ncclResult_t ncclGroupStart(void);
FAKE ncclResult_t ncclGroupStart(void)
{
    if (group_depth++ == 0) {
        memset(&group_task, 0, sizeof(group_task));
        group_task.op = EXCHANGE;
        group_comm = NULL;
    }
    return ncclSuccess;
}

FAKE ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclComm_t comm, cudaStream_t stream)
{
    if (group_depth == 0 || peer < 0 || peer >= comm->world || group_task.peers[peer].sends != 0)
        return ncclInvalidUsage;
    group_comm = comm;
    group_task.stream = stream;
    group_task.peers[peer].from = sendbuff;
    group_task.peers[peer].sends = count * bytes_of(datatype);
    return ncclSuccess;
}

FAKE ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclComm_t comm, cudaStream_t stream)
{
    if (group_depth == 0 || peer < 0 || peer >= comm->world || group_task.peers[peer].receives != 0)
        return ncclInvalidUsage;
    group_comm = comm;
    group_task.stream = stream;
    group_task.peers[peer].to = recvbuff;
    group_task.peers[peer].receives = count * bytes_of(datatype);
    return ncclSuccess;
}

FAKE ncclResult_t ncclGroupEnd(void);
FAKE ncclResult_t ncclGroupEnd(void)
{
    if (--group_depth > 0 || group_comm == NULL)
        return ncclSuccess;
    return give(group_comm, &group_task);
}
