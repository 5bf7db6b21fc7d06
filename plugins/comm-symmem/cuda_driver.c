#include "symm_cuda.h"

#include <dlfcn.h>
#include <string.h>

#define F(field, name)                            \
    {                                             \
        name, offsetof(struct symm_driver, field) \
    }

/* The names behind the names of cuda.h: the driver keeps older meanings under the plain ones. */
static const struct {
    const char *name;
    size_t offset;
} symbols[] = {
    F(init, "cuInit"),
    F(error_string, "cuGetErrorString"),
    F(device_count, "cuDeviceGetCount"),
    F(device_get, "cuDeviceGet"),
    F(device_attribute, "cuDeviceGetAttribute"),
    F(context_retain, "cuDevicePrimaryCtxRetain"),
    F(context_release, "cuDevicePrimaryCtxRelease_v2"),
    F(context_set, "cuCtxSetCurrent"),
    F(context_wait, "cuCtxSynchronize"),
    F(granularity, "cuMemGetAllocationGranularity"),
    F(create, "cuMemCreate"),
    F(release, "cuMemRelease"),
    F(export_handle, "cuMemExportToShareableHandle"),
    F(import_handle, "cuMemImportFromShareableHandle"),
    F(reserve, "cuMemAddressReserve"),
    F(unreserve, "cuMemAddressFree"),
    F(map, "cuMemMap"),
    F(unmap, "cuMemUnmap"),
    F(set_access, "cuMemSetAccess"),
    F(fill, "cuMemsetD8_v2"),
    F(host_alloc, "cuMemHostAlloc"),
    F(host_free, "cuMemFreeHost"),
    F(host_address, "cuMemHostGetDevicePointer_v2"),
    F(copy_to_host, "cuMemcpyDtoHAsync_v2"),
    F(module_load, "cuModuleLoadData"),
    F(module_unload, "cuModuleUnload"),
    F(function, "cuModuleGetFunction"),
    F(launch, "cuLaunchKernel"),
    F(stream_create, "cuStreamCreate"),
    F(stream_destroy, "cuStreamDestroy_v2"),
    F(stream_capturing, "cuStreamIsCapturing"),
    F(event_create, "cuEventCreate"),
    F(event_destroy, "cuEventDestroy_v2"),
    F(event_record, "cuEventRecord"),
    F(event_query, "cuEventQuery"),
    F(multicast_granularity, "cuMulticastGetGranularity"),
    F(multicast_create, "cuMulticastCreate"),
    F(multicast_add, "cuMulticastAddDevice"),
    F(multicast_bind, "cuMulticastBindMem"),
    F(multicast_unbind, "cuMulticastUnbind"),
};

const char *symm_driver_text(const struct symm_driver *d, CUresult e)
{
    const char *text = NULL;

    return d->error_string(e, &text) == CUDA_SUCCESS && text != NULL ? text : "unknown error";
}

static int fill(void *so, const char *name, struct symm_driver *d, struct kg_error *err)
{
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *f = dlsym(so, symbols[i].name);
        if (f == NULL)
            return kg_fail(err, KG_ECONFIG, "comm-symmem: %.200s has no function %s", name,
                           symbols[i].name);
        memcpy((char *)d + symbols[i].offset, &f, sizeof(f));
    }
    return KG_OK;
}

int symm_driver_load(const char *name, struct symm_driver *d, struct kg_error *err)
{
    void *so = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    int devices = 0;

    if (so == NULL) {
        const char *why = dlerror();
        return kg_fail(
            err, KG_ECONFIG,
            "[comm-symmem] memory = cuda: no CUDA device, the driver is not here: %.300s",
            why != NULL ? why : name);
    }
    int rc = fill(so, name, d, err);
    (void)dlclose(so); /* it stays: NODELETE */
    if (rc != KG_OK)
        return rc;
    CUresult e = d->init(0);
    if (e == CUDA_SUCCESS)
        e = d->device_count(&devices);
    if (e != CUDA_SUCCESS || devices == 0)
        return kg_fail(err, KG_ECONFIG, "[comm-symmem] memory = cuda: no CUDA device: %s",
                       e != CUDA_SUCCESS ? symm_driver_text(d, e) : "the driver has none");
    return KG_OK;
}
