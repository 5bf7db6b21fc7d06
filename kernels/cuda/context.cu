/*
 * One device in use: stream, lists on their way, recorded steps, the first error.
 *
 * Lists go through page-locked memory in two halves. Outside of recorded steps each list is copied
 * to its own place on the device; a half is used again when the copies out of it are done. In a
 * step with a key the lists lie one after another in one half, and go in one copy to one area on
 * the device that all recordings share: the stream runs one at a time.
 */
#include "context.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

static const uint64_t STAGE_BYTES = 4 << 20, STAGE_ALIGN = 16;
static const uint32_t N_MARKS = 8;
/* With work of others in the stream: launches between two looks at how far it is. A driver holds
 * about a thousand before a launch waits in it, where nobody asks `meanwhile`. */
static const uint32_t AHEAD = 256;
static const uint32_t N_LOCKED = 16;
static const uint32_t SPINS = 200; /* looks without a nap */
static const int64_t NAP_NS = 20000, STOP_NS = 10000000000;

enum mode {
    PLAIN,  /* operations are queued as they are called */
    RECORD, /* they go into a recording */
    FILL,   /* only their lists are written; the recording has the rest */
};

struct recording {
    uint64_t key, used; /* used: the step it last ran in; 0: free */
    uint64_t bytes;     /* of its lists */
    uint32_t context;
    cudaGraphExec_t exec;
};

struct kg_cuda {
    int device;
    struct kg_cuda_facts facts;
    cudaStream_t stream;
    char *host, *dev;    /* host: two halves; dev: the same, then the area of recorded steps */
    uint64_t half_bytes; /* of one half, and of the area */
    uint64_t used;       /* of the half in use */
    uint32_t half;       /* in use, 0 or 1 */
    cudaEvent_t left[2]; /* copies out of a half are done */
    enum mode mode;
    uint64_t key;
    uint32_t context;
    struct recording *recordings; /* [n_graphs] */
    struct recording *current;    /* in FILL */
    uint32_t n_graphs;
    uint64_t step;
    cudaEvent_t marks[N_MARKS];
    const char *op;
    struct kg_error error; /* rc 0: none */
    /* With work of others in the stream. */
    int (*meanwhile)(void *ctx);
    void *ctx;
    cudaEvent_t here, ahead[2]; /* of a wait; every AHEAD launches in turn */
    uint64_t launches;
    int stuck; /* 1: that work did not end: nothing can be waited for or freed */
    struct {
        const char *p;
        uint64_t bytes;
    } locked[N_LOCKED]; /* page-locked memory that was handed out */
};

static struct kg_cuda *of(const struct kg_team *team)
{
    return reinterpret_cast<struct kg_cuda *>(const_cast<struct kg_team *>(team));
}

static void keep(struct kg_cuda *c, int rc, const char *text)
{
    if (c->error.rc == 0)
        (void)kg_fail(&c->error, rc, "device %d, %s: %s", c->device, c->op, text);
}

/* Keeps e unless it is success; 0: success. */
static int failed(struct kg_cuda *c, cudaError_t e)
{
    if (e == cudaSuccess)
        return 0;
    keep(c, KG_EDEVICE, cudaGetErrorString(e));
    return 1;
}

/* The run time keeps a device for each thread, and any thread may come next. */
static cudaError_t enter(struct kg_cuda *c)
{
    return cudaSetDevice(c->device);
}

/* ---- for operations ----------------------------------------------------------------------- */

int kg_op(struct kg_team *team, const char *name)
{
    struct kg_cuda *c = of(team);

    c->op = name;
    return c->error.rc == 0 && !failed(c, enter(c));
}

void kg_keep(struct kg_team *team, int rc, const char *text)
{
    keep(of(team), rc, text);
}

cudaStream_t kg_cuda_stream(struct kg_team *team)
{
    return of(team)->stream;
}

int kg_launching(const struct kg_team *team)
{
    return of(team)->mode != FILL;
}

static int64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

/* Waits for an event; 0: it failed, or is not to be waited for any longer. */
static int await(struct kg_cuda *c, cudaEvent_t event)
{
    const struct timespec nap = {0, NAP_NS};

    if (c->meanwhile == nullptr)
        return !failed(c, cudaEventSynchronize(event));
    for (uint32_t looks = 0; c->error.rc == 0; looks++) {
        cudaError_t e = cudaEventQuery(event);

        if (e == cudaSuccess)
            return 1;
        if (e != cudaErrorNotReady)
            return !failed(c, e);
        (void)cudaGetLastError(); /* not ready is no error to keep */
        if (c->meanwhile(c->ctx) != 0)
            keep(c, KG_EDEVICE, "a rank is lost");
        if (looks > SPINS)
            (void)nanosleep(&nap, nullptr);
    }
    return 0;
}

extern "C" void kg_cuda_drain(struct kg_cuda *c)
{
    const struct timespec nap = {0, NAP_NS};
    int64_t until = now_ns() + STOP_NS;

    if (c->meanwhile == nullptr || c->stuck || c->here == nullptr)
        return;
    if (enter(c) != cudaSuccess || cudaEventRecord(c->here, c->stream) != cudaSuccess)
        return; /* a device that is lost has nothing to wait for */
    while (!c->stuck && cudaEventQuery(c->here) == cudaErrorNotReady) {
        (void)c->meanwhile(c->ctx);
        c->stuck = now_ns() > until;
        (void)nanosleep(&nap, nullptr);
    }
    (void)cudaGetLastError();
}

void kg_note(struct kg_team *team)
{
    struct kg_cuda *c = of(team);

    if (failed(c, cudaGetLastError()) || c->meanwhile == nullptr || c->mode != PLAIN ||
        ++c->launches % AHEAD != 0)
        return;
    uint64_t turn = c->launches / AHEAD;

    if (!failed(c, cudaEventRecord(c->ahead[turn % 2], c->stream)) && turn > 1)
        (void)await(c, c->ahead[(turn - 1) % 2]);
}

const struct kg_cuda_facts *kg_device(const struct kg_team *team)
{
    return &of(team)->facts;
}

uint32_t kg_launch_context(struct kg_team *team, uint32_t longest)
{
    struct kg_cuda *c = of(team);

    if (c->mode == PLAIN)
        return longest;
    if (longest > c->context)
        keep(c, KG_EINVAL, "a context longer than the one its step was begun with");
    return c->context;
}

/* Goes on in the other half, when what was copied out of it has arrived. */
static int turn(struct kg_cuda *c)
{
    if (failed(c, cudaEventRecord(c->left[c->half], c->stream)))
        return 0;
    c->half ^= 1;
    c->used = 0;
    return await(c, c->left[c->half]);
}

const void *kg_stage_bytes(struct kg_team *team, const void *host, uint64_t bytes)
{
    struct kg_cuda *c = of(team);
    uint64_t need = (bytes + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;

    if (c->error.rc != 0)
        return nullptr;
    if (need < bytes || need > c->half_bytes - (c->mode == PLAIN ? 0 : c->used)) {
        c->op = c->op == nullptr ? "stage" : c->op;
        keep(c, KG_ELIMIT, "the lists of one step are longer than stage_bytes");
        return nullptr;
    }
    if (c->mode == PLAIN && need > c->half_bytes - c->used && !turn(c))
        return nullptr;
    uint64_t at = c->half * c->half_bytes + c->used;

    memcpy(c->host + at, host, bytes);
    c->used += need;
    if (c->mode != PLAIN)
        return c->dev + 2 * c->half_bytes + (c->used - need);
    if (failed(c, cudaMemcpyAsync(c->dev + at, c->host + at, bytes, cudaMemcpyHostToDevice,
                                  c->stream)))
        return nullptr;
    return c->dev + at;
}

/* ---- devices ------------------------------------------------------------------------------ */

extern "C" int kg_cuda_count(uint32_t *n, struct kg_error *err)
{
    int found = 0;
    cudaError_t e = cudaGetDeviceCount(&found);

    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return kg_fail(err, KG_ENOENT, "no CUDA device: %s", cudaGetErrorString(e));
    }
    if (found == 0)
        return kg_fail(err, KG_ENOENT, "no CUDA device: the driver knows of none");
    *n = uint32_t(found);
    return KG_OK;
}

/* Does this build hold code for the device? An empty kernel tells. */
static __global__ void probe_kernel(int unused)
{
    (void)unused;
}

static int read_facts(struct kg_cuda *c, struct kg_error *err)
{
    cudaDeviceProp prop;
    size_t free_bytes = 0, total = 0;
    int multicast = 0;
    cudaError_t e = cudaGetDeviceProperties(&prop, c->device);

    if (e == cudaSuccess)
        e = cudaMemGetInfo(&free_bytes, &total);
    if (e != cudaSuccess)
        return kg_fail(err, KG_EDEVICE, "CUDA device %d: %s", c->device, cudaGetErrorString(e));
    /* the driver's CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, which the run time passes on */
    if (cudaDeviceGetAttribute(&multicast, cudaDeviceAttr(132), c->device) != cudaSuccess) {
        (void)cudaGetLastError();
        multicast = 0;
    }
    (void)snprintf(c->facts.name, sizeof(c->facts.name), "%.80s, sm_%d%d", prop.name, prop.major,
                   prop.minor);
    c->facts.major = uint32_t(prop.major);
    c->facts.minor = uint32_t(prop.minor);
    c->facts.n_sm = uint32_t(prop.multiProcessorCount);
    c->facts.memory_bytes = total;
    c->facts.free_bytes = free_bytes;
    c->facts.multicast = multicast != 0;
    c->facts.tensor_cores = prop.major >= 8; /* the emulator has them too */
    KG_LAUNCH(probe_kernel, 1, 32, c->stream, 0);
    e = cudaGetLastError();
    if (e == cudaSuccess)
        e = cudaStreamSynchronize(c->stream);
    if (e != cudaSuccess)
        return kg_fail(err, KG_ECONFIG, "CUDA device %d (%s): this build has no code for it: %s",
                       c->device, c->facts.name, cudaGetErrorString(e));
    return KG_OK;
}

static int open_parts(struct kg_cuda *c, const struct kg_cuda_args *args, struct kg_error *err)
{
    void *host = nullptr, *dev = nullptr;

    c->half_bytes = args->stage_bytes == 0 ? STAGE_BYTES : args->stage_bytes;
    if (c->half_bytes > UINT64_MAX / 4 - STAGE_ALIGN)
        return kg_fail(err, KG_EINVAL, "stage_bytes = %llu: too large",
                       (unsigned long long)args->stage_bytes);
    c->half_bytes = (c->half_bytes + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
    cudaError_t e = cudaMallocHost(&host, 2 * c->half_bytes);

    c->host = static_cast<char *>(host);
    if (e == cudaSuccess) {
        e = cudaMalloc(&dev, 3 * c->half_bytes);
        c->dev = static_cast<char *>(dev);
    }
    for (int i = 0; i < 2 && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&c->left[i], cudaEventDisableTiming);
    for (uint32_t i = 0; i < N_MARKS && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&c->marks[i], cudaEventDefault);
    c->meanwhile = args->meanwhile;
    c->ctx = args->ctx;
    cudaEvent_t *waits[3] = {&c->here, &c->ahead[0], &c->ahead[1]};
    for (int i = 0; i < 3 && c->meanwhile != nullptr && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(waits[i], cudaEventDisableTiming);
    if (e != cudaSuccess)
        return kg_fail(err, e == cudaErrorMemoryAllocation ? KG_ENOMEM : KG_EDEVICE,
                       "CUDA device %d: staging memory of %llu bytes: %s", c->device,
                       (unsigned long long)(3 * c->half_bytes), cudaGetErrorString(e));
    if (args->n_graphs > 0) {
        c->recordings =
            static_cast<struct recording *>(calloc(args->n_graphs, sizeof(struct recording)));
        if (c->recordings == nullptr)
            return kg_fail(err, KG_ENOMEM, "no memory for %u recorded steps", args->n_graphs);
        c->n_graphs = args->n_graphs;
    }
    return KG_OK;
}

extern "C" int kg_cuda_open(const struct kg_cuda_args *args, struct kg_cuda **cuda,
                            struct kg_error *err)
{
    uint32_t n = 0;
    int rc = kg_cuda_count(&n, err);

    if (rc < 0)
        return rc;
    if (args->device >= n)
        return kg_fail(err, KG_ENOENT, "no CUDA device %u: there are %u", args->device, n);
    struct kg_cuda *c = static_cast<struct kg_cuda *>(calloc(1, sizeof(*c)));

    if (c == nullptr)
        return kg_fail(err, KG_ENOMEM, "no memory for a CUDA context");
    c->device = int(args->device);
    c->op = "open";
    (void)cudaGetLastError(); /* of somebody else's call */
    cudaError_t e = cudaSetDevice(c->device);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (e != cudaSuccess)
        rc = kg_fail(err, e == cudaErrorMemoryAllocation ? KG_ENOMEM : KG_EDEVICE,
                     "CUDA device %u: %s", args->device, cudaGetErrorString(e));
    if (rc >= 0)
        rc = read_facts(c, err);
    if (rc >= 0)
        rc = open_parts(c, args, err);
    if (rc < 0) {
        kg_cuda_close(c);
        (void)cudaGetLastError();
        return rc;
    }
    *cuda = c;
    return KG_OK;
}

extern "C" void kg_cuda_close(struct kg_cuda *c)
{
    if (c == nullptr)
        return;
    (void)cudaSetDevice(c->device);
    kg_cuda_drain(c);
    if (c->stuck) /* whatever is freed waits for the device */
        return;
    if (c->stream != nullptr)
        (void)cudaStreamSynchronize(c->stream);
    cudaEvent_t waits[3] = {c->here, c->ahead[0], c->ahead[1]};
    for (int i = 0; i < 3; i++)
        if (waits[i] != nullptr)
            (void)cudaEventDestroy(waits[i]);
    for (uint32_t i = 0; i < c->n_graphs; i++)
        if (c->recordings[i].exec != nullptr)
            (void)cudaGraphExecDestroy(c->recordings[i].exec);
    free(c->recordings);
    for (int i = 0; i < 2; i++)
        if (c->left[i] != nullptr)
            (void)cudaEventDestroy(c->left[i]);
    for (uint32_t i = 0; i < N_MARKS; i++)
        if (c->marks[i] != nullptr)
            (void)cudaEventDestroy(c->marks[i]);
    (void)cudaFree(c->dev);
    (void)cudaFreeHost(c->host);
    if (c->stream != nullptr)
        (void)cudaStreamDestroy(c->stream);
    free(c);
}

extern "C" void kg_cuda_facts(const struct kg_cuda *cuda, struct kg_cuda_facts *facts)
{
    *facts = cuda->facts;
}

extern "C" struct kg_team *kg_cuda_team(struct kg_cuda *cuda)
{
    return reinterpret_cast<struct kg_team *>(cuda);
}

/* ---- memory ------------------------------------------------------------------------------- */

static int answer(struct kg_cuda *c, cudaError_t e, const char *what, uint64_t bytes,
                  struct kg_error *err)
{
    (void)cudaGetLastError();
    return kg_fail(err, e == cudaErrorMemoryAllocation ? KG_ENOMEM : KG_EDEVICE,
                   "CUDA device %d: %llu bytes of %s memory: %s", c->device,
                   (unsigned long long)bytes, what, cudaGetErrorString(e));
}

extern "C" int kg_cuda_alloc(struct kg_cuda *cuda, uint64_t bytes, void **p, struct kg_error *err)
{
    void *q = nullptr;
    cudaError_t e = enter(cuda);

    if (e == cudaSuccess)
        e = cudaMalloc(&q, bytes == 0 ? 1 : bytes);
    if (e != cudaSuccess)
        return answer(cuda, e, "device", bytes, err);
    *p = q;
    return KG_OK;
}

extern "C" void kg_cuda_free(struct kg_cuda *cuda, void *p)
{
    cuda->op = "free";
    if (!cuda->stuck && !failed(cuda, enter(cuda)))
        (void)failed(cuda, cudaFree(p));
}

extern "C" int kg_cuda_alloc_host(struct kg_cuda *cuda, uint64_t bytes, void **p,
                                  struct kg_error *err)
{
    void *q = nullptr;
    cudaError_t e = enter(cuda);

    if (e == cudaSuccess)
        e = cudaMallocHost(&q, bytes == 0 ? 1 : bytes);
    if (e != cudaSuccess)
        return answer(cuda, e, "page-locked host", bytes, err);
    for (uint32_t i = 0; i < N_LOCKED; i++) {
        if (cuda->locked[i].p != nullptr)
            continue;
        cuda->locked[i] = {static_cast<char *>(q), bytes};
        break;
    }
    *p = q;
    return KG_OK;
}

/* What is not known to be page-locked is taken for pageable. */
static int is_locked(const struct kg_cuda *c, const void *p, uint64_t bytes)
{
    for (uint32_t i = 0; i < N_LOCKED; i++) {
        uint64_t at = uint64_t(static_cast<const char *>(p) - c->locked[i].p);

        if (c->locked[i].p != nullptr && static_cast<const char *>(p) >= c->locked[i].p &&
            at <= c->locked[i].bytes && bytes <= c->locked[i].bytes - at)
            return 1;
    }
    return 0;
}

extern "C" void kg_cuda_free_host(struct kg_cuda *cuda, void *p)
{
    cuda->op = "free_host";
    if (cuda->stuck)
        return;
    for (uint32_t i = 0; i < N_LOCKED; i++)
        if (cuda->locked[i].p == p)
            cuda->locked[i] = {};
    (void)failed(cuda, cudaFreeHost(p));
}

/* Waits for all that is queued, asking `meanwhile`. 0 as await; 1 in a step with a key, where
 * nothing may wait. */
static int settle(struct kg_cuda *c)
{
    if (c->mode != PLAIN)
        return 1;
    return !failed(c, cudaEventRecord(c->here, c->stream)) && await(c, c->here);
}

extern "C" void *kg_cuda_guest(struct kg_cuda *cuda)
{
    cuda->op = "collective";
    return cuda->mode == FILL || cuda->error.rc != 0 ? nullptr : cuda->stream;
}

/* Nothing is queued by what is in the recording already, or after an error. */
static int begin_copy(struct kg_cuda *c, const char *op, uint64_t bytes)
{
    c->op = op;
    return bytes > 0 && c->error.rc == 0 && !failed(c, enter(c));
}

extern "C" void kg_cuda_upload(struct kg_cuda *cuda, void *device, const void *host, uint64_t bytes)
{
    if (!begin_copy(cuda, "upload", bytes))
        return;
    if (cuda->mode == PLAIN) {
        (void)failed(cuda,
                     cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda->stream));
        return;
    }
    const void *staged = kg_stage_bytes(kg_cuda_team(cuda), host, bytes); /* new on each run */

    if (staged != nullptr && cuda->mode == RECORD)
        (void)failed(
            cuda, cudaMemcpyAsync(device, staged, bytes, cudaMemcpyDeviceToDevice, cuda->stream));
}

extern "C" void kg_cuda_download(struct kg_cuda *cuda, void *host, const void *device,
                                 uint64_t bytes)
{
    if (!begin_copy(cuda, "download", bytes) ||
        (cuda->meanwhile != nullptr && !is_locked(cuda, host, bytes) && !settle(cuda)))
        return;
    if (cuda->mode != FILL)
        (void)failed(cuda,
                     cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda->stream));
}

extern "C" void kg_cuda_copy(struct kg_cuda *cuda, void *dst, const void *src, uint64_t bytes)
{
    if (begin_copy(cuda, "copy", bytes) && cuda->mode != FILL)
        (void)failed(cuda,
                     cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, cuda->stream));
}

extern "C" void kg_cuda_fill(struct kg_cuda *cuda, void *p, uint8_t byte, uint64_t bytes)
{
    if (begin_copy(cuda, "fill", bytes) && cuda->mode != FILL)
        (void)failed(cuda, cudaMemsetAsync(p, byte, bytes, cuda->stream));
}

extern "C" int kg_cuda_sync(struct kg_cuda *cuda, struct kg_error *err)
{
    cudaError_t e = enter(cuda);

    if (e == cudaSuccess && cuda->meanwhile != nullptr)
        (void)settle(cuda);
    else if (e == cudaSuccess)
        e = cudaStreamSynchronize(cuda->stream);
    if (e == cudaSuccess)
        e = cudaGetLastError();
    (void)failed(cuda, e);
    if (cuda->error.rc != 0)
        return kg_fail(err, cuda->error.rc, "%s", cuda->error.text);
    return KG_OK;
}

/* ---- recorded steps ----------------------------------------------------------------------- */

static struct recording *find_recording(struct kg_cuda *c, uint64_t key)
{
    for (uint32_t i = 0; i < c->n_graphs; i++)
        if (c->recordings[i].used != 0 && c->recordings[i].key == key)
            return &c->recordings[i];
    return nullptr;
}

/* A free place, else the one used longest ago, emptied. */
static struct recording *take_recording(struct kg_cuda *c)
{
    struct recording *oldest = &c->recordings[0];

    for (uint32_t i = 1; i < c->n_graphs; i++)
        if (c->recordings[i].used < oldest->used)
            oldest = &c->recordings[i];
    if (oldest->exec != nullptr)
        (void)cudaGraphExecDestroy(oldest->exec); /* one in flight lives until it is done */
    *oldest = recording();
    return oldest;
}

extern "C" void kg_cuda_begin(struct kg_cuda *cuda, uint64_t key, uint32_t context)
{
    cuda->op = "begin";
    if (key == 0 || cuda->n_graphs == 0 || cuda->error.rc != 0 || failed(cuda, enter(cuda)))
        return;
    if (cuda->mode != PLAIN) {
        keep(cuda, KG_EINVAL, "a step is begun already");
        return;
    }
    if (!turn(cuda)) /* lists of the step: one half, from its start */
        return;
    cuda->key = key;
    cuda->context = context;
    cuda->step++;
    cuda->current = find_recording(cuda, key);
    if (cuda->current != nullptr) {
        if (cuda->current->context != context)
            keep(cuda, KG_EINVAL, "one key with two contexts");
        cuda->mode = FILL;
        return;
    }
    if (!failed(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal)))
        cuda->mode = RECORD;
}

/* Ends the recording and keeps it. NULL: it failed. */
static struct recording *keep_recording(struct kg_cuda *c)
{
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;

    if (failed(c, cudaStreamEndCapture(c->stream, &graph)))
        return nullptr;
    int bad = failed(c, cudaGraphInstantiate(&exec, graph, 0));

    (void)cudaGraphDestroy(graph);
    if (bad || c->error.rc != 0) { /* an operation failed on the way */
        if (!bad)
            (void)cudaGraphExecDestroy(exec);
        return nullptr;
    }
    struct recording *r = take_recording(c);

    r->key = c->key;
    r->context = c->context;
    r->bytes = c->used;
    r->exec = exec;
    return r;
}

extern "C" void kg_cuda_end(struct kg_cuda *cuda)
{
    struct recording *r = cuda->current;

    if (cuda->mode == PLAIN)
        return;
    if (cuda->mode == RECORD)
        r = keep_recording(cuda);
    cuda->mode = PLAIN;
    cuda->current = nullptr;
    cuda->op = "end";
    if (cuda->error.rc != 0 || r == nullptr)
        return;
    if (r->bytes != cuda->used) {
        keep(cuda, KG_EINVAL, "a step differs from the one recorded under its key");
        return;
    }
    r->used = cuda->step;
    if (cuda->used > 0 &&
        failed(cuda, cudaMemcpyAsync(cuda->dev + 2 * cuda->half_bytes,
                                     cuda->host + cuda->half * cuda->half_bytes, cuda->used,
                                     cudaMemcpyHostToDevice, cuda->stream)))
        return;
    (void)failed(cuda, cudaGraphLaunch(r->exec, cuda->stream));
}

extern "C" void kg_cuda_mark(struct kg_cuda *cuda, uint32_t mark)
{
    cuda->op = "mark";
    if (mark >= N_MARKS || cuda->error.rc != 0 || cuda->mode == FILL)
        return;
    (void)failed(cuda, cudaEventRecordWithFlags(cuda->marks[mark], cuda->stream,
                                                cuda->mode == RECORD ? cudaEventRecordExternal
                                                                     : cudaEventRecordDefault));
}

extern "C" uint64_t kg_cuda_time_ns(struct kg_cuda *cuda, uint32_t from, uint32_t to)
{
    float ms = 0;

    if (from >= N_MARKS || to >= N_MARKS || cuda->error.rc != 0)
        return 0;
    if (cudaEventElapsedTime(&ms, cuda->marks[from], cuda->marks[to]) != cudaSuccess) {
        (void)cudaGetLastError(); /* a mark never set */
        return 0;
    }
    return ms <= 0 ? 0 : uint64_t(double(ms) * 1e6);
}
