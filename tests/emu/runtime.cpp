/* Devices, errors, copies, streams, events, graphs. */
#include "tests/emu/runtime.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "tests/emu/device.h"
#include "tests/emu/internal.h"

namespace emu
{

unsigned checks;
bool track;

struct graph {
    std::vector<work> nodes;
};

struct stream {
    std::deque<work> queue; /* KG_EMU_LAZY; the worker's, with KG_EMU_THREADS */
    std::thread worker;     /* the rest of these with KG_EMU_THREADS */
    std::mutex lock;
    std::condition_variable change;
    bool busy = false, ending = false;
    std::unique_ptr<graph> capture;
    bool broken = false; /* the capture */
    int device = 0;
};

struct event {
    uint64_t ns = 0;
    std::atomic<unsigned long> pending{0}; /* records not reached yet */
    bool recorded = false;
    stream *on = nullptr;
};

static const int MAX_DEVICES = 16;

struct devices {
    std::mutex lock;
    int n = 1, major = 9, minor = 0;
    unsigned long long memory_bytes = 2ull << 30;
    std::string fault[MAX_DEVICES], first;
    cudaError_t code[MAX_DEVICES] = {};
    std::set<stream *> streams;
    devices();
};

static unsigned parse_checks(const char *letters)
{
    unsigned c = 0;

    for (; *letters != '\0'; letters++)
        c |= *letters == 'r'   ? KG_EMU_RACES
             : *letters == 'p' ? KG_EMU_PROTECT
             : *letters == 'l' ? KG_EMU_LAZY
             : *letters == 'b' ? KG_EMU_BACKWARD
             : *letters == 'o' ? KG_EMU_QUIET
             : *letters == 't' ? KG_EMU_THREADS
                               : 0;
    return c;
}

devices::devices()
{
    const char *s = getenv("KG_EMU_DEVICES");

    if (s != nullptr)
        n = atoi(s);
    s = getenv("KG_EMU_MEMORY");
    if (s != nullptr)
        memory_bytes = strtoull(s, nullptr, 10);
    s = getenv("KG_EMU_CAPABILITY");
    if (s != nullptr)
        (void)sscanf(s, "%d.%d", &major, &minor);
    s = getenv("KG_EMU_CHECKS");
    if (s != nullptr) {
        checks = parse_checks(s);
        track = (checks & KG_EMU_RACES) != 0;
    }
}

static devices &all()
{
    static devices d;
    return d;
}

static devices &started = all(); /* reads the environment before main */

static thread_local int device;
static thread_local cudaError_t last_error;

int current_device()
{
    return device;
}

cudaError_t remember(cudaError_t e)
{
    if (e != cudaSuccess)
        last_error = e;
    return e;
}

cudaError_t device_fault()
{
    return started.code[device];
}

void keep_fault(cudaError_t code, const std::string &text)
{
    std::lock_guard<std::mutex> guard(all().lock);

    if (all().first.empty())
        all().first = text;
    if (all().code[device] == cudaSuccess) {
        all().code[device] = code;
        all().fault[device] = text;
    }
    if ((checks & KG_EMU_QUIET) == 0)
        fprintf(stderr, "emu: %s\n", text.c_str());
}

/* The state of the device, for calls that fail once it has failed. */
static cudaError_t state()
{
    if (all().n < 0)
        return remember(cudaErrorInsufficientDriver);
    if (all().n == 0)
        return remember(cudaErrorNoDevice);
    return device_fault();
}

static void work_off(stream *s)
{
    std::unique_lock<std::mutex> guard(s->lock);

    device = s->device;
    for (;;) {
        while (s->queue.empty() && !s->ending)
            s->change.wait(guard);
        if (s->queue.empty())
            return;
        work w = std::move(s->queue.front());

        s->queue.pop_front();
        s->busy = true;
        guard.unlock();
        w();
        guard.lock();
        s->busy = false;
        s->change.notify_all();
    }
}

static bool is_threaded(const stream *s)
{
    return s->worker.joinable();
}

/* Does what is queued, or waits for it. */
static void run_stream(stream *s)
{
    if (is_threaded(s)) {
        std::unique_lock<std::mutex> guard(s->lock);

        while (!s->queue.empty() || s->busy)
            s->change.wait(guard);
        return;
    }
    while (!s->queue.empty()) {
        work w = std::move(s->queue.front());

        s->queue.pop_front();
        w();
    }
}

/* Of this thread's device: others belong to other threads. */
void run_all_streams()
{
    std::vector<stream *> list;
    {
        std::lock_guard<std::mutex> guard(all().lock);
        for (stream *s : all().streams)
            if (s->device == device)
                list.push_back(s);
    }
    for (stream *s : list)
        run_stream(s);
}

void queue(cudaStream_t s, work fn)
{
    if (s == nullptr) {
        run_all_streams();
        fn();
    } else if (s->capture) {
        s->capture->nodes.push_back(std::move(fn));
    } else if (is_threaded(s)) {
        std::lock_guard<std::mutex> guard(s->lock);

        s->queue.push_back(std::move(fn));
        s->change.notify_all();
    } else if ((checks & KG_EMU_LAZY) != 0) {
        s->queue.push_back(std::move(fn));
    } else {
        fn();
    }
}

/* Waiting is not allowed while the stream records. */
static cudaError_t wait_stream(stream *s)
{
    if (s != nullptr && s->capture) {
        s->broken = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    if (s == nullptr)
        run_all_streams();
    else
        run_stream(s);
    return device_fault();
}

/* ---- copies ------------------------------------------------------------------------------- */

static void copy_rows(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                      size_t height)
{
    open_memory open;

    if (device_fault() != cudaSuccess)
        return;
    for (size_t r = 0; r < height; r++)
        memmove(static_cast<char *>(dst) + r * dpitch, static_cast<const char *>(src) + r * spitch,
                width);
}

static size_t extent(size_t pitch, size_t width, size_t height)
{
    return height == 0 ? 0 : (height - 1) * pitch + width;
}

static bool check_side(const char *name, const void *p, size_t bytes, bool want_device)
{
    std::string wrong;

    if (want_device)
        wrong = check_device_range(p, bytes);
    else if (is_device(p))
        wrong = "is device memory where host memory is wanted";
    if (wrong.empty())
        return true;
    keep_fault(cudaErrorIllegalAddress, std::string("copy: ") + name + " " + wrong);
    return false;
}

static unsigned long long brought;

static cudaError_t copy(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width,
                        size_t height, cudaMemcpyKind kind, stream *s)
{
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;

    if (state() != cudaSuccess)
        return state();
    if (kind == cudaMemcpyDefault) {
        from_device = is_device(src);
        to_device = is_device(dst);
    }
    if (width == 0 || height == 0)
        return cudaSuccess;
    if (!check_side("source", src, extent(spitch, width, height), from_device) ||
        !check_side("destination", dst, extent(dpitch, width, height), to_device))
        return remember(device_fault());
    size_t bytes = extent(spitch, width, height);

    if (from_device && !to_device)
        (void)__atomic_add_fetch(&brought, uint64_t(width) * height, __ATOMIC_RELAXED);
    if (to_device && !from_device && s != nullptr && !s->capture && !is_page_locked(src, bytes)) {
        auto kept = std::make_shared<std::vector<char>>(static_cast<const char *>(src),
                                                        static_cast<const char *>(src) + bytes);
        queue(s, [=]() { copy_rows(dst, dpitch, kept->data(), spitch, width, height); });
        return device_fault();
    }
    queue(s, [=]() { copy_rows(dst, dpitch, src, spitch, width, height); });
    if (from_device && !to_device && s != nullptr && !s->capture &&
        !is_page_locked(dst, extent(dpitch, width, height)))
        return remember(wait_stream(s));
    return device_fault();
}

static cudaError_t fill(void *p, int byte, size_t bytes, stream *s)
{
    if (state() != cudaSuccess)
        return state();
    if (bytes == 0)
        return cudaSuccess;
    if (!check_side("destination", p, bytes, true))
        return remember(device_fault());
    queue(s, [=]() {
        open_memory open;
        if (device_fault() == cudaSuccess)
            memset(p, byte, bytes);
    });
    return device_fault();
}

} // namespace emu

using emu::all;
using emu::remember;

/* ---- devices and errors ------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 0;
    if (all().n < 0)
        return remember(cudaErrorInsufficientDriver);
    if (all().n == 0)
        return remember(cudaErrorNoDevice);
    *n = all().n;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= all().n)
        return remember(cudaErrorInvalidDevice);
    emu::device = device;
    return emu::device_fault();
}

cudaError_t cudaGetDevice(int *device)
{
    *device = emu::device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    if (device < 0 || device >= all().n)
        return remember(cudaErrorInvalidDevice);
    *prop = cudaDeviceProp();
    snprintf(prop->name, sizeof(prop->name), "emulated");
    prop->totalGlobalMem = all().memory_bytes;
    prop->major = all().major;
    prop->minor = all().minor;
    prop->multiProcessorCount = 4;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attr, int device)
{
    if (device < 0 || device >= all().n)
        return remember(cudaErrorInvalidDevice);
    *value = attr == cudaDevAttrMultiProcessorCount      ? 4
             : attr == cudaDevAttrComputeCapabilityMajor ? all().major
             : attr == cudaDevAttrComputeCapabilityMinor ? all().minor
                                                         : 0;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    cudaError_t e = emu::state();
    unsigned long long used = emu::bytes_used(emu::device);

    if (e != cudaSuccess)
        return e;
    *total = all().memory_bytes;
    *free_bytes = used > *total ? 0 : *total - used;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize()
{
    emu::run_all_streams();
    return remember(emu::device_fault());
}

cudaError_t cudaGetLastError()
{
    cudaError_t e = cudaPeekAtLastError();

    emu::last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError()
{
    return emu::device_fault() != cudaSuccess ? emu::device_fault() : emu::last_error;
}

static const struct {
    cudaError_t code;
    const char *name, *text;
} error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "emulated: no driver"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
};

const char *cudaGetErrorName(cudaError_t e)
{
    for (auto &t : error_texts)
        if (t.code == e)
            return t.name;
    return "unknown";
}

const char *cudaGetErrorString(cudaError_t e)
{
    if ((e == cudaErrorIllegalAddress || e == cudaErrorLaunchFailure) &&
        all().code[emu::device] == e)
        return all().fault[emu::device].c_str();
    for (auto &t : error_texts)
        if (t.code == e)
            return t.text;
    return "unknown";
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind)
{
    return emu::copy(dst, bytes, src, bytes, bytes, 1, kind, nullptr);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return emu::copy(dst, bytes, src, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
    if (width > dpitch || width > spitch)
        return remember(cudaErrorInvalidValue);
    return emu::copy(dst, dpitch, src, spitch, width, height, kind, stream);
}

cudaError_t cudaMemset(void *p, int byte, size_t bytes)
{
    return emu::fill(p, byte, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t stream)
{
    return emu::fill(p, byte, bytes, stream);
}

/* ---- streams and events ------------------------------------------------------------------- */

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    if (emu::state() != cudaSuccess)
        return emu::state();
    emu::stream *s = new emu::stream;

    s->device = emu::device;
    if ((emu::checks & KG_EMU_THREADS) != 0)
        s->worker = std::thread(emu::work_off, s);
    std::lock_guard<std::mutex> guard(all().lock);
    all().streams.insert(s);
    *stream = s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (stream == nullptr)
        return remember(cudaErrorInvalidResourceHandle);
    emu::run_stream(stream);
    {
        std::lock_guard<std::mutex> guard(all().lock);
        all().streams.erase(stream);
    }
    if (emu::is_threaded(stream)) {
        {
            std::lock_guard<std::mutex> guard(stream->lock);
            stream->ending = true;
            stream->change.notify_all();
        }
        stream->worker.join();
    }
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return remember(emu::wait_stream(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    if (stream != nullptr) {
        std::lock_guard<std::mutex> guard(stream->lock);
        if (!stream->queue.empty() || stream->busy)
            return cudaErrorNotReady;
    }
    return emu::device_fault();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    if (event->on != nullptr && event->on != stream && event->pending > 0)
        emu::run_stream(event->on);
    return emu::device_fault();
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    if (emu::state() != cudaSuccess)
        return emu::state();
    *event = new emu::event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (event == nullptr)
        return remember(cudaErrorInvalidResourceHandle);
    if (event->on != nullptr && event->pending > 0)
        emu::run_stream(event->on);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    if (emu::state() != cudaSuccess)
        return emu::state();
    bool captured = stream != nullptr && stream->capture;

    if (captured && flags != cudaEventRecordExternal)
        return cudaSuccess; /* orders nodes; says nothing of time */
    event->recorded = true;
    event->on = stream;
    if (!captured)
        event->pending++;
    emu::queue(stream, [event, captured]() {
        event->ns = uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                 std::chrono::steady_clock::now().time_since_epoch())
                                 .count());
        if (!captured)
            event->pending--;
    });
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event->pending > 0)
        emu::run_stream(event->on);
    return remember(emu::device_fault());
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return event->pending > 0 ? cudaErrorNotReady : emu::device_fault();
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->recorded || !to->recorded)
        return remember(cudaErrorInvalidResourceHandle);
    if (from->pending > 0 || to->pending > 0)
        return cudaErrorNotReady;
    *ms = float(double(int64_t(to->ns - from->ns)) * 1e-6);
    return cudaSuccess;
}

/* ---- graphs ------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
    (void)mode;
    if (emu::state() != cudaSuccess)
        return emu::state();
    if (stream == nullptr || stream->capture)
        return remember(cudaErrorStreamCaptureUnsupported);
    stream->capture.reset(new emu::graph);
    stream->broken = false;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = nullptr;
    if (!stream->capture)
        return remember(cudaErrorInvalidValue);
    std::unique_ptr<emu::graph> g = std::move(stream->capture);

    if (stream->broken)
        return remember(cudaErrorStreamCaptureInvalidated);
    if (emu::state() != cudaSuccess)
        return emu::state();
    *graph = g.release();
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *exec = new emu::graph(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    if (emu::state() != cudaSuccess)
        return emu::state();
    for (const emu::work &w : exec->nodes)
        emu::queue(stream, w);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec; /* what was queued of it holds its own copies */
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

/* ---- for tests ---------------------------------------------------------------------------- */

extern "C" void kg_emu_queue(void *stream, void (*fn)(void *arg), const void *arg,
                             unsigned long long bytes)
{
    auto kept = std::make_shared<std::vector<char>>(static_cast<const char *>(arg),
                                                    static_cast<const char *>(arg) + bytes);

    emu::queue(static_cast<cudaStream_t>(stream), [=]() { fn(kept->data()); });
}

extern "C" int kg_emu_capturing(void *stream)
{
    return static_cast<cudaStream_t>(stream)->capture != nullptr;
}

extern "C" void kg_emu_set_checks(unsigned checks)
{
    if (((checks ^ emu::checks) & KG_EMU_PROTECT) != 0)
        emu::protect_memory((checks & KG_EMU_PROTECT) != 0);
    emu::checks = checks;
    emu::track = (checks & KG_EMU_RACES) != 0;
}

extern "C" unsigned kg_emu_checks(void)
{
    return emu::checks;
}

extern "C" const char *kg_emu_fault(void)
{
    return all().first.c_str();
}

extern "C" void kg_emu_reset(void)
{
    std::lock_guard<std::mutex> guard(all().lock);

    all().first.clear();
    for (int i = 0; i < emu::MAX_DEVICES; i++) {
        all().fault[i].clear();
        all().code[i] = cudaSuccess;
    }
    emu::last_error = cudaSuccess;
}

extern "C" void kg_emu_set_device(int devices, int major, int minor, unsigned long long bytes)
{
    all().n = devices > emu::MAX_DEVICES ? emu::MAX_DEVICES : devices;
    all().major = major;
    all().minor = minor;
    all().memory_bytes = bytes;
}

extern "C" unsigned long long kg_emu_bytes(void)
{
    return emu::bytes_used(-1);
}

extern "C" unsigned long long kg_emu_brought(void)
{
    return __atomic_load_n(&emu::brought, __ATOMIC_RELAXED);
}
