#include "fake_multicast.h"

#include "fake_cuda.h"
#include "fake_driver.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANGES 32
#define plan fake_cuda_plan

FAKE extern struct fake_cuda_plan fake_cuda_plan;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    CUdeviceptr p; /* 0: free */
    struct fake_team *team;
    int open;
} ranges[RANGES]; /* of this process */

void fake_team_open(struct fake_handle *h)
{
    void *p = mmap(NULL, FAKE_TEAM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, h->fd, 0);

    if (p == MAP_FAILED)
        abort(); /* no case can say anything */
    h->team = p;
}

void fake_team_close(struct fake_handle *h)
{
    if (h->team != NULL)
        (void)munmap(h->team, FAKE_TEAM_BYTES);
}

/* The range that begins at p, or a free one (p 0); RANGES: none. */
static unsigned find(CUdeviceptr p)
{
    unsigned i = 0;

    while (i < RANGES && ranges[i].p != p)
        i++;
    return i;
}

void fake_team_map(struct fake_team *team, CUdeviceptr p)
{
    (void)pthread_mutex_lock(&lock);
    unsigned i = find(0);
    if (i == RANGES)
        abort();
    ranges[i].p = p;
    ranges[i].team = team;
    ranges[i].open = 0;
    (void)pthread_mutex_unlock(&lock);
}

static int change(CUdeviceptr p, int open)
{
    (void)pthread_mutex_lock(&lock);
    unsigned i = find(p);
    if (i < RANGES) {
        ranges[i].p = open ? p : 0;
        ranges[i].open = open;
    }
    (void)pthread_mutex_unlock(&lock);
    return i < RANGES;
}

int fake_team_unmap(CUdeviceptr p)
{
    return change(p, 0);
}

int fake_team_access(CUdeviceptr p)
{
    return change(p, 1);
}

struct fake_team *fake_team_ready(CUdeviceptr p)
{
    struct fake_team *team = NULL;

    (void)pthread_mutex_lock(&lock);
    unsigned i = p != 0 ? find(p) : RANGES;
    if (i < RANGES && ranges[i].open)
        team = ranges[i].team;
    (void)pthread_mutex_unlock(&lock);
    return team != NULL && atomic_load(&team->bound) == team->all ? team : NULL;
}

static int is_prop(const CUmulticastObjectProp *prop)
{
    return prop->numDevices >= 1 && prop->numDevices <= FAKE_DEVICES && prop->size > 0 &&
           prop->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && prop->flags == 0;
}

/* Not the granularity of memory, and a recommendation that nobody can follow. */
FAKE CUresult cuMulticastGetGranularity(size_t *bytes, const CUmulticastObjectProp *prop,
                                        CUmulticastGranularity_flags what)
{
    *bytes = FAKE_MULTICAST_GRANULARITY;
    if (what == CU_MULTICAST_GRANULARITY_RECOMMENDED)
        *bytes = (size_t)1 << 40;
    return fake_fails() ? CUDA_ERROR_OUT_OF_MEMORY : fake_rule(is_prop(prop));
}

FAKE CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                                const CUmulticastObjectProp *prop)
{
    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (fake_rule(is_prop(prop) && prop->size % FAKE_MULTICAST_GRANULARITY == 0))
        return CUDA_ERROR_INVALID_VALUE;
    int fd = memfd_create("fake-multicast", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, FAKE_TEAM_BYTES) != 0)
        abort();
    struct fake_handle *h = fake_handle_new(fd, -1, FAKE_TEAM_BYTES);
    h->team->bytes = prop->size;
    h->team->all = (1u << prop->numDevices) - 1;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)h;
    return CUDA_SUCCESS;
}

FAKE CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice device)
{
    struct fake_team *team = ((struct fake_handle *)(uintptr_t)handle)->team;
    unsigned bit = 1u << device;

    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    return fake_rule(team != NULL && device == fake_current() && (team->all & bit) != 0 &&
                     (atomic_fetch_or(&team->added, bit) & bit) == 0);
}

/* Would wait for a device that is missing: who calls it then is late or deadlocked. */
FAKE CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at,
                                 CUmemGenericAllocationHandle memory, size_t from, size_t bytes,
                                 unsigned long long flags)
{
    struct fake_team *team = ((struct fake_handle *)(uintptr_t)handle)->team;
    const struct fake_handle *m = (const struct fake_handle *)(uintptr_t)memory;

    if (fake_fails())
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (fake_rule(team != NULL && atomic_load(&team->added) == team->all && at == 0 && from == 0 &&
                  flags == 0 && m->team == NULL && m->device == fake_current() &&
                  bytes == team->bytes && bytes <= m->bytes &&
                  bytes % FAKE_MULTICAST_GRANULARITY == 0))
        return CUDA_ERROR_INVALID_VALUE;
    atomic_fetch_or(&team->bound, 1u << fake_current());
    atomic_fetch_add(&plan.bound, 1);
    return CUDA_SUCCESS;
}

FAKE CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
                                size_t bytes)
{
    struct fake_team *team = ((struct fake_handle *)(uintptr_t)handle)->team;

    if (atomic_load(&plan.no_unbind))
        return CUDA_ERROR_ILLEGAL_STATE;
    if (fake_rule(team != NULL && device == fake_current() && at == 0 && bytes == team->bytes &&
                  (atomic_load(&team->bound) >> device & 1) != 0 && atomic_load(&team->busy) == 0))
        return CUDA_ERROR_INVALID_VALUE;
    atomic_fetch_and(&team->bound, ~(1u << device));
    atomic_fetch_sub(&plan.bound, 1);
    return CUDA_SUCCESS;
}
