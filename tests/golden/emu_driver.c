/*
 * The driver of comm-symmem's tests beside the emulator of exec-cuda's: what the collectives call
 * goes to the former, but in streams of the latter it runs in their order, and memory that ranks
 * share is device memory to the latter too. Which plugin has the emulator says KG_EMU_PLUGIN, a
 * path; it must be loaded already. Linked to the other driver, which has all other functions.
 *
 * A kernel in a stream of the emulator runs in a stream of the other driver's that nobody else
 * uses, and the emulator's waits for it.
 */
#include "../../plugins/comm-symmem/cuda_args.h"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EMU_DRIVER __attribute__((visibility("default")))
#define STREAMS 64

static struct {
    CUresult (*context)(CUcontext context);
    CUresult (*map)(CUdeviceptr p, size_t n, size_t at, CUmemGenericAllocationHandle handle,
                    unsigned long long flags);
    CUresult (*unmap)(CUdeviceptr p, size_t n);
    CUresult (*launch)(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, CUstream stream, void **args,
                       void **extra);
    CUresult (*stream_create)(CUstream *stream, unsigned flags);
    CUresult (*stream_destroy)(CUstream stream);
    CUresult (*capturing)(CUstream stream, CUstreamCaptureStatus *status);
    CUresult (*event_create)(CUevent *event, unsigned flags);
    CUresult (*event_destroy)(CUevent event);
    CUresult (*event_record)(CUevent event, CUstream stream);
    CUresult (*event_query)(CUevent event);
} real;

static struct {
    void (*queue)(void *stream, void (*fn)(void *arg), const void *arg, unsigned long long bytes);
    int (*capturing)(void *stream);
    void (*adopt)(void *p, unsigned long long bytes);
    void (*disown)(void *p);
} emu;

static CUstream own[STREAMS]; /* made by the other driver for its callers */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local CUcontext current;

static void find(void *so, const char *name, void *to)
{
    void *f = dlsym(so, name);

    if (f == NULL) {
        (void)fprintf(stderr, "emu_driver: no %s: %s\n", name, dlerror());
        abort();
    }
    memcpy(to, &f, sizeof(f));
}

static void load(void)
{
    const char *path = getenv("KG_EMU_PLUGIN");
    void *so = path != NULL ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;

    if (so == NULL) {
        (void)fprintf(stderr, "emu_driver: KG_EMU_PLUGIN = %s is not loaded\n",
                      path != NULL ? path : "");
        abort();
    }
    find(so, "kg_emu_queue", &emu.queue);
    find(so, "kg_emu_capturing", &emu.capturing);
    find(so, "kg_emu_adopt", &emu.adopt);
    find(so, "kg_emu_disown", &emu.disown);
    find(RTLD_NEXT, "cuCtxSetCurrent", &real.context);
    find(RTLD_NEXT, "cuMemMap", &real.map);
    find(RTLD_NEXT, "cuMemUnmap", &real.unmap);
    find(RTLD_NEXT, "cuLaunchKernel", &real.launch);
    find(RTLD_NEXT, "cuStreamCreate", &real.stream_create);
    find(RTLD_NEXT, "cuStreamDestroy_v2", &real.stream_destroy);
    find(RTLD_NEXT, "cuStreamIsCapturing", &real.capturing);
    find(RTLD_NEXT, "cuEventCreate", &real.event_create);
    find(RTLD_NEXT, "cuEventDestroy_v2", &real.event_destroy);
    find(RTLD_NEXT, "cuEventRecord", &real.event_record);
    find(RTLD_NEXT, "cuEventQuery", &real.event_query);
}

static void ready(void)
{
    (void)pthread_once(&once, load);
}

/* Notes, forgets or (both NULL) looks for a stream of the other driver's. */
static int is_own(CUstream stream, CUstream from, CUstream to)
{
    int found = 0;

    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < STREAMS && !found; i++) {
        found = own[i] == (from != to ? from : stream);
        if (found && from != to)
            own[i] = to;
    }
    (void)pthread_mutex_unlock(&lock);
    return found;
}

EMU_DRIVER CUresult cuCtxSetCurrent(CUcontext context)
{
    ready();
    current = context;
    return real.context(context);
}

EMU_DRIVER CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t at,
                             CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    ready();
    emu.adopt((void *)(uintptr_t)p, bytes);
    return real.map(p, bytes, at, handle, flags);
}

EMU_DRIVER CUresult cuMemUnmap(CUdeviceptr p, size_t bytes)
{
    emu.disown((void *)(uintptr_t)p);
    return real.unmap(p, bytes);
}

/* --- streams ---------------------------------------------------------------------------------- */

EMU_DRIVER CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    ready();
    CUresult e = real.stream_create(stream, flags);
    if (e == CUDA_SUCCESS && !is_own(NULL, NULL, *stream))
        abort(); /* more than this test has */
    return e;
}

EMU_DRIVER CUresult cuStreamDestroy_v2(CUstream stream)
{
    (void)is_own(NULL, stream, NULL);
    return real.stream_destroy(stream);
}

EMU_DRIVER CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    if (is_own(stream, NULL, NULL))
        return real.capturing(stream, status);
    *status =
        emu.capturing(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* A kernel in a stream of the emulator's. */
struct kernel {
    CUcontext context;
    CUfunction f;
    unsigned blocks, threads;
    struct symm_cuda_args args;
};

/* Of this thread, the worker of a stream: as long as it lives. */
static _Thread_local CUstream behind;
static _Thread_local CUevent done;

static void run(void *arg)
{
    const struct timespec nap = {.tv_nsec = 20000};
    struct kernel *k = arg;
    void *args[] = {&k->args};

    if (real.context(k->context) != CUDA_SUCCESS ||
        (behind == NULL && (real.stream_create(&behind, 1) != CUDA_SUCCESS ||
                            real.event_create(&done, 0) != CUDA_SUCCESS)))
        abort();
    if (real.launch(k->f, k->blocks, 1, 1, k->threads, 1, 1, 0, behind, args, NULL) !=
            CUDA_SUCCESS ||
        real.event_record(done, behind) != CUDA_SUCCESS)
        abort();
    while (real.event_query(done) == CUDA_ERROR_NOT_READY)
        (void)nanosleep(&nap, NULL);
}

EMU_DRIVER CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                   unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                   void **args, void **extra)
{
    struct kernel k = {.context = current, .f = f, .blocks = gx, .threads = bx};

    if (is_own(stream, NULL, NULL))
        return real.launch(f, gx, gy, gz, bx, by, bz, shared, stream, args, extra);
    if (gy * gz * by * bz != 1 || shared != 0 || extra != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&k.args, args[0], sizeof(k.args));
    emu.queue(stream, run, &k, sizeof(k));
    return CUDA_SUCCESS;
}

/* --- events ----------------------------------------------------------------------------------- */

/* One record in a stream of the emulator's. */
struct mark {
    atomic_int refs; /* the event's, and until it is reached the stream's */
    atomic_int reached;
};

struct event {
    CUevent real;
    struct mark *mark; /* NULL: the last record, if any, was in a stream of the other driver's */
};

static void unref(struct mark *m)
{
    if (m != NULL && atomic_fetch_sub(&m->refs, 1) == 1)
        free(m);
}

static void reach(void *arg)
{
    struct mark *m;

    memcpy(&m, arg, sizeof(m));
    atomic_store(&m->reached, 1);
    unref(m);
}

EMU_DRIVER CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    struct event *e = calloc(1, sizeof(*e));

    ready();
    CUresult r = e == NULL ? CUDA_ERROR_OUT_OF_MEMORY : real.event_create(&e->real, flags);
    if (r == CUDA_SUCCESS)
        *event = (CUevent)(void *)e;
    else
        free(e);
    return r;
}

EMU_DRIVER CUresult cuEventDestroy_v2(CUevent event)
{
    struct event *e = (struct event *)(void *)event;
    CUresult r = real.event_destroy(e->real);

    unref(e->mark);
    free(e);
    return r;
}

EMU_DRIVER CUresult cuEventRecord(CUevent event, CUstream stream)
{
    struct event *e = (struct event *)(void *)event;

    unref(e->mark);
    e->mark = NULL;
    if (is_own(stream, NULL, NULL))
        return real.event_record(e->real, stream);
    struct mark *m = malloc(sizeof(*m));
    if (m == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_init(&m->refs, 2);
    atomic_init(&m->reached, 0);
    e->mark = m;
    emu.queue(stream, reach, &m, sizeof(m));
    return CUDA_SUCCESS;
}

EMU_DRIVER CUresult cuEventQuery(CUevent event)
{
    struct event *e = (struct event *)(void *)event;
    CUresult r = real.event_query(e->real); /* also says what became of the device */

    if (e->mark == NULL || (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY))
        return r;
    return atomic_load(&e->mark->reached) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
