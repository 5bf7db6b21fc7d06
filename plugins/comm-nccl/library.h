/*
 * The libraries this plugin lives on, loaded when it is opened: the CUDA driver and NCCL. A machine
 * without them gets an error that says which is missing, and the plugin itself loads everywhere.
 */
#ifndef KEDGE_COMM_NCCL_LIBRARY_H
#define KEDGE_COMM_NCCL_LIBRARY_H

#include <cuda.h>
#include <kedge/types.h>
#include <nccl.h>

/* Functions by the names they have there. */
struct nccl_cuda {
    CUresult (*init)(unsigned int flags);
    CUresult (*error_string)(CUresult e, const char **text);
    CUresult (*device_count)(int *n);
    CUresult (*device_get)(CUdevice *device, int ordinal);
    CUresult (*device_uuid)(CUuuid *uuid, CUdevice device);
    CUresult (*context_retain)(CUcontext *context, CUdevice device);
    CUresult (*context_release)(CUdevice device);
    CUresult (*context_set)(CUcontext context);
    CUresult (*memory_alloc)(CUdeviceptr *p, size_t bytes);
    CUresult (*memory_free)(CUdeviceptr p);
    CUresult (*host_alloc)(void **p, size_t bytes);
    CUresult (*host_free)(void *p);
    CUresult (*copy_to_host)(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
    CUresult (*stream_create)(CUstream *stream, unsigned int flags);
    CUresult (*stream_destroy)(CUstream stream);
    CUresult (*stream_capturing)(CUstream stream, CUstreamCaptureStatus *status);
    CUresult (*event_create)(CUevent *event, unsigned int flags);
    CUresult (*event_destroy)(CUevent event);
    CUresult (*event_record)(CUevent event, CUstream stream);
    CUresult (*event_query)(CUevent event);
};

struct nccl_functions {
    ncclResult_t (*version)(int *version);
    ncclResult_t (*unique_id)(ncclUniqueId *id);
    ncclResult_t (*init)(ncclComm_t *comm, int world, ncclUniqueId id, int rank,
                         ncclConfig_t *conf);
    ncclResult_t (*finalize)(ncclComm_t comm);
    ncclResult_t (*destroy)(ncclComm_t comm);
    ncclResult_t (*abort)(ncclComm_t comm);
    ncclResult_t (*async_error)(ncclComm_t comm, ncclResult_t *error);
    const char *(*error_string)(ncclResult_t e);
    const char *(*last_error)(ncclComm_t comm);
    ncclResult_t (*memory_alloc)(void **p, size_t bytes);
    ncclResult_t (*memory_free)(void *p);
    ncclResult_t (*window)(ncclComm_t comm, void *p, size_t bytes, ncclWindow_t *window, int flags);
    ncclResult_t (*window_end)(ncclComm_t comm, ncclWindow_t window);
    ncclResult_t (*all_reduce)(const void *in, void *out, size_t n, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*reduce_scatter)(const void *in, void *out, size_t n, ncclDataType_t type,
                                   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*all_gather)(const void *in, void *out, size_t n, ncclDataType_t type,
                               ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*broadcast)(const void *in, void *out, size_t n, ncclDataType_t type, int root,
                              ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*send)(const void *p, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                         cudaStream_t stream);
    ncclResult_t (*recv)(void *p, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                         cudaStream_t stream);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
};

struct nccl_library {
    struct nccl_cuda cuda;
    struct nccl_functions nccl;
    int version; /* as ncclGetVersion gives it */
};

/* Loads driver `driver` and NCCL `name` (names or paths for the loader; they stay loaded), starts
 * the driver and asks for a device. KG_ECONFIG with what is missing: no driver, no device, no NCCL,
 * a function it lacks, a version that may not be used. */
int nccl_library_load(const char *driver, const char *name, struct nccl_library *lib,
                      struct kg_error *err);

/* The driver's word for a result; never NULL. */
const char *nccl_cuda_text(const struct nccl_library *lib, CUresult e);

#endif
