#include "fake_driver.h"

#include <stdlib.h>
#include <string.h>

#define MOST_KEPT 256

struct fake_driver_plan fake_driver_plan = {.devices = FAKE_DEVICES};
#define plan fake_driver_plan

struct CUctx_st {
    int ordinal;
};

struct CUevent_st {
    struct CUstream_st *stream; /* NULL: never recorded */
    uint64_t behind;
};

static struct CUctx_st contexts[FAKE_DEVICES] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static FAKE_THREAD int current = -1;
static void *kept[MOST_KEPT]; /* still known here, so no leak */
static atomic_uint n_kept;

int fake_current(void)
{
    return current;
}

int fake_fails(void)
{
    if (atomic_load(&plan.fails) == 0 || atomic_load(&plan.fail_rank) != current)
        return 0;
    return atomic_fetch_sub(&plan.fails, 1) == 1;
}

void *fake_taken(void *p)
{
    int keeps = atomic_load(&plan.keeps);

    if (keeps != 0 && keeps == current + 1)
        kept[atomic_fetch_add(&n_kept, 1) % MOST_KEPT] = p;
    return p;
}

FAKE CUresult cuInit(unsigned int flags)
{
    (void)flags;
    return (CUresult)atomic_load(&plan.init_result);
}

FAKE CUresult cuGetErrorString(CUresult e, const char **text)
{
    *text = e == CUDA_ERROR_NO_DEVICE       ? "no CUDA-capable device is detected"
            : e == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
                                            : "some error";
    return CUDA_SUCCESS;
}

FAKE CUresult cuDeviceGetCount(int *n)
{
    *n = atomic_load(&plan.devices);
    return CUDA_SUCCESS;
}

FAKE CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

FAKE CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    *context = &contexts[device];
    atomic_fetch_add(&plan.contexts, 1);
    return CUDA_SUCCESS;
}

FAKE CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    (void)device;
    atomic_fetch_sub(&plan.contexts, 1);
    return CUDA_SUCCESS;
}

FAKE CUresult cuCtxSetCurrent(CUcontext context)
{
    current = context->ordinal;
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

/* --- streams and events --- */

void *fake_stream_new(size_t bytes)
{
    struct CUstream_st *s = fake_fails() ? NULL : fake_taken(calloc(1, bytes));

    if (s == NULL)
        return NULL;
    (void)pthread_mutex_init(&s->lock, NULL);
    atomic_store(&s->refs, 1);
    atomic_fetch_add(&plan.streams, 1);
    return s;
}

void fake_stream_unref(struct CUstream_st *s)
{
    if (s == NULL || atomic_fetch_sub(&s->refs, 1) != 1)
        return;
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

FAKE CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    *status = atomic_load(&plan.capturing) ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                           : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

FAKE CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    struct CUevent_st *e = fake_fails() ? NULL : fake_taken(calloc(1, sizeof(*e)));

    (void)flags;
    if (e == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_fetch_add(&plan.events, 1);
    *event = e;
    return CUDA_SUCCESS;
}

FAKE CUresult cuEventDestroy_v2(CUevent event)
{
    fake_stream_unref(event->stream);
    free(event);
    atomic_fetch_sub(&plan.events, 1);
    return CUDA_SUCCESS;
}

FAKE CUresult cuEventRecord(CUevent event, CUstream stream)
{
    atomic_fetch_add(&stream->refs, 1);
    fake_stream_unref(event->stream);
    event->stream = stream;
    event->behind = atomic_load(&stream->given);
    return CUDA_SUCCESS;
}

FAKE CUresult cuEventQuery(CUevent event)
{
    CUresult e = fake_look(event->stream);

    if (e != CUDA_SUCCESS || event->stream == NULL)
        return e;
    return atomic_load(&event->stream->done) >= event->behind ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
