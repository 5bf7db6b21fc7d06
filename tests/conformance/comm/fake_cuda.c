#include "fake_cuda.h"

#include "../../../plugins/comm-symmem/cuda_args.h"
#include "../../emu/emu.h"
#include "fake_driver.h"
#include "fake_multicast.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)0)
#endif

#define QUEUE 64

FAKE extern struct fake_cuda_plan fake_cuda_plan;
struct fake_cuda_plan fake_cuda_plan;
#define plan fake_cuda_plan

/* The kernels, built for the emulator. */
void symm_emulate(int kernel, unsigned blocks, unsigned threads, const struct symm_cuda_args *a);

struct task {
    int kernel; /* 1 push, 2 staged, 3 multicast, 0 a copy */
    int stuck;
    unsigned blocks, threads;
    struct symm_cuda_args args;
    struct fake_team *team; /* that a kernel uses */
    void *to;
    const void *from;
    size_t bytes;
};

struct stream {
    struct CUstream_st base;
    pthread_t thread;
    pthread_cond_t change;
    struct task queue[QUEUE];
    uint32_t from, n;
    int ending;
};

CUresult fake_rule(int kept)
{
    if (!kept)
        atomic_fetch_add(&plan.faults, 1);
    return kept ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute what, CUdevice device)
{
    if (what == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED) {
        *value = (atomic_load(&plan.no_multicast) >> device & 1) == 0;
        return fake_fails() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    *value = what == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED ||
             !atomic_load(&plan.no_vmm);
    return CUDA_SUCCESS;
}

FAKE CUresult cuCtxSynchronize(void)
{
    return fake_fails() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* --- memory --- */

FAKE CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
                                            CUmemAllocationGranularity_flags what)
{
    (void)what;
    *bytes = FAKE_GRANULARITY;
    return fake_fails()
               ? CUDA_ERROR_OUT_OF_MEMORY
               : fake_rule(prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

struct fake_handle *fake_handle_new(int fd, int device, size_t bytes)
{
    struct fake_handle *h = malloc(sizeof(*h));

    if (h == NULL)
        abort(); /* no case can say anything */
    *h = (struct fake_handle){fd, device, bytes, NULL};
    if (bytes == FAKE_TEAM_BYTES)
        fake_team_open(h);
    atomic_fetch_add(&plan.handles, 1);
    return h;
}

FAKE CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                          const CUmemAllocationProp *prop, unsigned long long flags)
{
    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (fake_rule(bytes > 0 && bytes % FAKE_GRANULARITY == 0 && flags == 0 &&
                  prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
                  prop->location.id == fake_current()))
        return CUDA_ERROR_INVALID_VALUE;
    int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        abort();
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)fake_handle_new(fd, fake_current(), bytes);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct fake_handle *h = (struct fake_handle *)(uintptr_t)handle;

    fake_team_close(h);
    (void)close(h->fd);
    free(h);
    atomic_fetch_sub(&plan.handles, 1);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemExportToShareableHandle(void *fd, CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType type, unsigned long long flags)
{
    const struct fake_handle *h = (const struct fake_handle *)(uintptr_t)handle;

    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)fd = dup(h->fd);
    return fake_rule(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0);
}

FAKE CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *fd,
                                             CUmemAllocationHandleType type)
{
    int mine = dup((int)(intptr_t)fd);
    off_t bytes = lseek(mine, 0, SEEK_END);

    if (fake_fails() || fake_rule(mine >= 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
        (void)close(mine);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)fake_handle_new(mine, -1, (size_t)bytes);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemAddressReserve(CUdeviceptr *p, size_t bytes, size_t align, CUdeviceptr at,
                                  unsigned long long flags)
{
    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (fake_rule(bytes % FAKE_GRANULARITY == 0 && (align & (align - 1)) == 0 && at == 0 &&
                  flags == 0))
        return CUDA_ERROR_INVALID_VALUE;
    char *m =
        mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED)
        abort();
    if (align > 0) { /* what is before and behind is given back */
        size_t before = (align - (uintptr_t)m % align) % align;
        if (before > 0)
            (void)munmap(m, before);
        m += before;
        if (align > before)
            (void)munmap(m + bytes, align - before);
    }
    ASAN_UNPOISON_MEMORY_REGION(m, bytes); /* a thread's stack may have been there */
    *p = (CUdeviceptr)(uintptr_t)m;
    atomic_fetch_add(&plan.ranges, 1);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemAddressFree(CUdeviceptr p, size_t bytes)
{
    atomic_fetch_sub(&plan.ranges, 1);
    return fake_rule(munmap((void *)(uintptr_t)p, bytes) == 0);
}

/* Mapped, but closed until access is set. */
FAKE CUresult cuMemMap(CUdeviceptr p, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    const struct fake_handle *h = (const struct fake_handle *)(uintptr_t)handle;

    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (h->team != NULL) {
        if (fake_rule(bytes == h->team->bytes && offset == 0 && flags == 0 &&
                      p % FAKE_MULTICAST_GRANULARITY == 0 &&
                      atomic_load(&h->team->added) == h->team->all))
            return CUDA_ERROR_INVALID_VALUE;
        fake_team_map(h->team, p);
        atomic_fetch_add(&plan.maps, 1);
        return CUDA_SUCCESS;
    }
    if (fake_rule(bytes == h->bytes && offset == 0 && flags == 0))
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap((void *)(uintptr_t)p, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, h->fd, 0) ==
        MAP_FAILED)
        abort();
    atomic_fetch_add(&plan.maps, 1);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemUnmap(CUdeviceptr p, size_t bytes)
{
    atomic_fetch_sub(&plan.maps, 1);
    if (fake_team_unmap(p))
        return CUDA_SUCCESS;
    return fake_rule(mmap((void *)(uintptr_t)p, bytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                          0) != MAP_FAILED);
}

FAKE CUresult cuMemSetAccess(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *desc, size_t n)
{
    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (fake_rule(n == 1 && desc->location.id == fake_current() &&
                  desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
        return CUDA_ERROR_INVALID_VALUE;
    if (fake_team_access(p))
        return CUDA_SUCCESS;
    return fake_rule(mprotect((void *)(uintptr_t)p, bytes, PROT_READ | PROT_WRITE) == 0);
}

FAKE CUresult cuMemsetD8_v2(CUdeviceptr p, unsigned char value, size_t bytes)
{
    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset((void *)(uintptr_t)p, value, bytes);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned int flags)
{
    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    atomic_fetch_add(&plan.hosts, 1);
    return fake_rule(*p != NULL && flags == CU_MEMHOSTALLOC_DEVICEMAP);
}

FAKE CUresult cuMemFreeHost(void *p)
{
    free(p);
    atomic_fetch_sub(&plan.hosts, 1);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned int flags)
{
    *device = (CUdeviceptr)(uintptr_t)host;
    return fake_fails() ? CUDA_ERROR_OUT_OF_MEMORY : fake_rule(flags == 0);
}

/* --- kernels --- */

FAKE CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    uint32_t magic;

    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(&magic, image, sizeof(magic));
    *module = (CUmodule)(uintptr_t)1;
    atomic_fetch_add(&plan.modules, 1);
    return fake_rule(magic == 0xba55ed50u); /* a container of device code */
}

FAKE CUresult cuModuleUnload(CUmodule module)
{
    (void)module;
    atomic_fetch_sub(&plan.modules, 1);
    return CUDA_SUCCESS;
}

FAKE CUresult cuModuleGetFunction(CUfunction *f, CUmodule module, const char *name)
{
    (void)module;
    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    static const char *const names[] = {"", "symm_push", "symm_staged", "symm_multicast"};
    uintptr_t i = sizeof(names) / sizeof(names[0]) - 1;
    while (i > 0 && strcmp(name, names[i]) != 0)
        i--;
    *f = (CUfunction)i;
    return fake_rule(i > 0);
}

static void perform(const struct task *t)
{
    struct symm_cuda_word *w = (struct symm_cuda_word *)(uintptr_t)t->args.word;

    if (t->kernel == 0) {
        memcpy(t->to, t->from, t->bytes);
        return;
    }
    while (t->stuck && __atomic_load_n(&w->stop, __ATOMIC_ACQUIRE) == 0)
        (void)usleep(100);
    if (t->stuck)
        return;
    if (t->team != NULL)
        atomic_fetch_add(&t->team->busy, 1);
    symm_emulate(t->kernel, t->blocks, t->threads, &t->args);
    if (t->team != NULL)
        atomic_fetch_sub(&t->team->busy, 1);
}

static void *work(void *arg)
{
    struct stream *s = arg;

    (void)pthread_mutex_lock(&s->base.lock);
    for (;;) {
        while (s->n == 0 && !s->ending)
            (void)pthread_cond_wait(&s->change, &s->base.lock);
        if (s->n == 0)
            break;
        struct task t = s->queue[s->from];
        s->from = (s->from + 1) % QUEUE;
        s->n--;
        (void)pthread_mutex_unlock(&s->base.lock);
        perform(&t);
        atomic_fetch_add(&s->base.done, 1);
        (void)pthread_mutex_lock(&s->base.lock);
        (void)pthread_cond_broadcast(&s->change);
    }
    (void)pthread_mutex_unlock(&s->base.lock);
    return NULL;
}

static void give(CUstream stream, const struct task *t)
{
    struct stream *s = (struct stream *)stream;

    (void)pthread_mutex_lock(&s->base.lock);
    while (s->n == QUEUE)
        (void)pthread_cond_wait(&s->change, &s->base.lock);
    s->queue[(s->from + s->n++) % QUEUE] = *t;
    atomic_fetch_add(&s->base.given, 1);
    (void)pthread_cond_broadcast(&s->change);
    (void)pthread_mutex_unlock(&s->base.lock);
}

FAKE CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                             unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                             CUstream stream, void **args, void **extra)
{
    struct task t = {.kernel = (int)(uintptr_t)f,
                     .blocks = gx,
                     .threads = bx,
                     .stuck = atomic_exchange(&fake_driver_plan.stuck[fake_current()], 0)};

    if (fake_rule(gy == 1 && gz == 1 && by == 1 && bz == 1 && shared == 0 && extra == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&t.args, args[0], sizeof(t.args));
    if (t.kernel == 3)
        t.team = fake_team_ready(t.args.many);
    if (fake_rule(t.kernel != 3 || t.team != NULL))
        return CUDA_ERROR_INVALID_VALUE;
    atomic_fetch_add(&plan.launched[t.kernel], 1);
    give(stream, &t);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    const struct task t = {.to = to, .from = (const void *)(uintptr_t)from, .bytes = bytes};

    give(stream, &t);
    return CUDA_SUCCESS;
}

/* --- streams --- */

FAKE CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    struct stream *s = fake_stream_new(sizeof(*s));

    (void)flags;
    if (s == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (void)pthread_cond_init(&s->change, NULL);
    if (pthread_create(&s->thread, NULL, work, s) != 0)
        abort();
    *stream = &s->base;
    return CUDA_SUCCESS;
}

FAKE CUresult cuStreamDestroy_v2(CUstream stream)
{
    struct stream *s = (struct stream *)stream;

    (void)pthread_mutex_lock(&s->base.lock);
    s->ending = 1;
    (void)pthread_cond_broadcast(&s->change);
    (void)pthread_mutex_unlock(&s->base.lock);
    (void)pthread_join(s->thread, NULL);
    (void)pthread_cond_destroy(&s->change);
    fake_stream_unref(stream);
    atomic_fetch_sub(&fake_driver_plan.streams, 1);
    return CUDA_SUCCESS;
}

/* A kernel that broke a rule of the emulator is an error of everything behind it. */
CUresult fake_look(struct CUstream_st *s)
{
    (void)s;
    return kg_emu_fault()[0] != '\0' ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}
