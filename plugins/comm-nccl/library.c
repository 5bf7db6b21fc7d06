#include "library.h"

#include "gates.h"

#include <dlfcn.h>
#include <string.h>

/* Where a function goes, and its name there. */
struct symbol {
    const char *name;
    size_t offset;
};

#define CUDA(field, name)                       \
    {                                           \
        name, offsetof(struct nccl_cuda, field) \
    }
#define NCCL(field, name)                            \
    {                                                \
        name, offsetof(struct nccl_functions, field) \
    }

/* The driver keeps old meanings under old names; these are the ones cuda.h stands for today. */
static const struct symbol cuda_symbols[] = {
    CUDA(init, "cuInit"),
    CUDA(error_string, "cuGetErrorString"),
    CUDA(device_count, "cuDeviceGetCount"),
    CUDA(device_get, "cuDeviceGet"),
    CUDA(device_uuid, "cuDeviceGetUuid_v2"),
    CUDA(context_retain, "cuDevicePrimaryCtxRetain"),
    CUDA(context_release, "cuDevicePrimaryCtxRelease_v2"),
    CUDA(context_set, "cuCtxSetCurrent"),
    CUDA(memory_alloc, "cuMemAlloc_v2"),
    CUDA(memory_free, "cuMemFree_v2"),
    CUDA(host_alloc, "cuMemAllocHost_v2"),
    CUDA(host_free, "cuMemFreeHost"),
    CUDA(copy_to_host, "cuMemcpyDtoHAsync_v2"),
    CUDA(stream_create, "cuStreamCreate"),
    CUDA(stream_destroy, "cuStreamDestroy_v2"),
    CUDA(stream_capturing, "cuStreamIsCapturing"),
    CUDA(event_create, "cuEventCreate"),
    CUDA(event_destroy, "cuEventDestroy_v2"),
    CUDA(event_record, "cuEventRecord"),
    CUDA(event_query, "cuEventQuery"),
    {0},
};

static const struct symbol nccl_symbols[] = {
    NCCL(version, "ncclGetVersion"),
    NCCL(unique_id, "ncclGetUniqueId"),
    NCCL(init, "ncclCommInitRankConfig"),
    NCCL(finalize, "ncclCommFinalize"),
    NCCL(destroy, "ncclCommDestroy"),
    NCCL(abort, "ncclCommAbort"),
    NCCL(async_error, "ncclCommGetAsyncError"),
    NCCL(error_string, "ncclGetErrorString"),
    NCCL(last_error, "ncclGetLastError"),
    NCCL(memory_alloc, "ncclMemAlloc"),
    NCCL(memory_free, "ncclMemFree"),
    NCCL(window, "ncclCommWindowRegister"),
    NCCL(window_end, "ncclCommWindowDeregister"),
    NCCL(all_reduce, "ncclAllReduce"),
    NCCL(reduce_scatter, "ncclReduceScatter"),
    NCCL(all_gather, "ncclAllGather"),
    NCCL(broadcast, "ncclBroadcast"),
    NCCL(send, "ncclSend"),
    NCCL(recv, "ncclRecv"),
    NCCL(group_start, "ncclGroupStart"),
    NCCL(group_end, "ncclGroupEnd"),
    {0},
};

/* Fills the table at `to`; the name that is missing, or NULL. */
static const char *fill(void *so, const struct symbol *symbols, void *to)
{
    for (const struct symbol *s = symbols; s->name != NULL; s++) {
        void *f = dlsym(so, s->name);
        if (f == NULL)
            return s->name;
        memcpy((char *)to + s->offset, &f, sizeof(f));
    }
    return NULL;
}

static int load(const char *name, const struct symbol *symbols, void *to, const char *what,
                struct kg_error *err)
{
    void *so = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

    if (so == NULL) {
        const char *why = dlerror();
        return kg_fail(err, KG_ECONFIG, "comm-nccl: %s: %.300s", what, why != NULL ? why : name);
    }
    const char *missing = fill(so, symbols, to);
    (void)dlclose(so); /* it stays: NODELETE */
    if (missing != NULL)
        return kg_fail(err, KG_ECONFIG, "comm-nccl: %.200s has no function %s", name, missing);
    return KG_OK;
}

const char *nccl_cuda_text(const struct nccl_library *lib, CUresult e)
{
    const char *text = NULL;

    return lib->cuda.error_string(e, &text) == CUDA_SUCCESS && text != NULL ? text
                                                                            : "unknown error";
}

int nccl_library_load(const char *driver, const char *name, struct nccl_library *lib,
                      struct kg_error *err)
{
    char version[24];
    int devices = 0;

    int rc = load(driver, cuda_symbols, &lib->cuda, "no CUDA device, the driver is not here", err);
    if (rc != KG_OK)
        return rc;
    CUresult e = lib->cuda.init(0);
    if (e == CUDA_SUCCESS)
        e = lib->cuda.device_count(&devices);
    if (e != CUDA_SUCCESS || devices == 0)
        return kg_fail(err, KG_ECONFIG, "comm-nccl: no CUDA device: %s",
                       e != CUDA_SUCCESS ? nccl_cuda_text(lib, e) : "the driver has none");
    rc = load(name, nccl_symbols, &lib->nccl, "NCCL not found", err);
    if (rc != KG_OK)
        return rc;
    ncclResult_t r = lib->nccl.version(&lib->version);
    if (r != ncclSuccess)
        return kg_fail(err, KG_ECONFIG, "comm-nccl: NCCL does not tell its version: %s",
                       lib->nccl.error_string(r));
    nccl_version_text(lib->version, version, sizeof(version));
    if (!nccl_allows(lib->version, NCCL_PLAIN))
        return kg_fail(err, KG_ECONFIG, "comm-nccl: NCCL %s %s (%d.%d.%d)", version,
                       nccl_gate(NCCL_PLAIN)->why, nccl_gate(NCCL_PLAIN)->from / 10000,
                       nccl_gate(NCCL_PLAIN)->from / 100 % 100, nccl_gate(NCCL_PLAIN)->from % 100);
    return KG_OK;
}
