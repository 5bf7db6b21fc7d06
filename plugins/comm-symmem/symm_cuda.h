/*
 * comm-symmem on device memory. The group still has its segment of host memory, small: there ranks
 * meet before the device is ready, seal, and say why the group is lost. Beside it each rank owns
 * one allocation of device memory that all others map, at one stride, so that a kernel finds any
 * rank's area from a base.
 */
#ifndef KEDGE_COMM_SYMMEM_SYMM_CUDA_H
#define KEDGE_COMM_SYMMEM_SYMM_CUDA_H

#include "cuda_args.h"
#include "symmem.h"

#include <cuda.h>

#define SYMM_CUDA_RING 16u /* calls in streams of the caller that are timed at once */

/* Functions of the driver, by what they do; loaded when the group is opened. */
struct symm_driver {
    CUresult (*init)(unsigned int flags);
    CUresult (*error_string)(CUresult e, const char **text);
    CUresult (*device_count)(int *n);
    CUresult (*device_get)(CUdevice *device, int ordinal);
    CUresult (*device_attribute)(int *value, CUdevice_attribute what, CUdevice device);
    CUresult (*context_retain)(CUcontext *context, CUdevice device);
    CUresult (*context_release)(CUdevice device);
    CUresult (*context_set)(CUcontext context);
    CUresult (*context_wait)(void);
    CUresult (*granularity)(size_t *bytes, const CUmemAllocationProp *prop,
                            CUmemAllocationGranularity_flags what);
    CUresult (*create)(CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *prop, unsigned long long flags);
    CUresult (*release)(CUmemGenericAllocationHandle handle);
    CUresult (*export_handle)(void *fd, CUmemGenericAllocationHandle handle,
                              CUmemAllocationHandleType type, unsigned long long flags);
    CUresult (*import_handle)(CUmemGenericAllocationHandle *handle, void *fd,
                              CUmemAllocationHandleType type);
    CUresult (*reserve)(CUdeviceptr *p, size_t bytes, size_t align, CUdeviceptr at,
                        unsigned long long flags);
    CUresult (*unreserve)(CUdeviceptr p, size_t bytes);
    CUresult (*map)(CUdeviceptr p, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags);
    CUresult (*unmap)(CUdeviceptr p, size_t bytes);
    CUresult (*set_access)(CUdeviceptr p, size_t bytes, const CUmemAccessDesc *desc, size_t n);
    CUresult (*fill)(CUdeviceptr p, unsigned char value, size_t bytes);
    CUresult (*host_alloc)(void **p, size_t bytes, unsigned int flags);
    CUresult (*host_free)(void *p);
    CUresult (*host_address)(CUdeviceptr *device, void *host, unsigned int flags);
    CUresult (*copy_to_host)(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
    CUresult (*module_load)(CUmodule *module, const void *image);
    CUresult (*module_unload)(CUmodule module);
    CUresult (*function)(CUfunction *f, CUmodule module, const char *name);
    CUresult (*launch)(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                       unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                       CUstream stream, void **args, void **extra);
    CUresult (*stream_create)(CUstream *stream, unsigned int flags);
    CUresult (*stream_destroy)(CUstream stream);
    CUresult (*stream_capturing)(CUstream stream, CUstreamCaptureStatus *status);
    CUresult (*event_create)(CUevent *event, unsigned int flags);
    CUresult (*event_destroy)(CUevent event);
    CUresult (*event_record)(CUevent event, CUstream stream);
    CUresult (*event_query)(CUevent event);
    CUresult (*multicast_granularity)(size_t *bytes, const CUmulticastObjectProp *prop,
                                      CUmulticastGranularity_flags what);
    CUresult (*multicast_create)(CUmemGenericAllocationHandle *handle,
                                 const CUmulticastObjectProp *prop);
    CUresult (*multicast_add)(CUmemGenericAllocationHandle handle, CUdevice device);
    CUresult (*multicast_bind)(CUmemGenericAllocationHandle handle, size_t at,
                               CUmemGenericAllocationHandle memory, size_t from, size_t bytes,
                               unsigned long long flags);
    CUresult (*multicast_unbind)(CUmemGenericAllocationHandle handle, CUdevice device, size_t at,
                                 size_t bytes);
};

struct symm_cuda_channel {
    CUstream stream; /* for calls that bring none */
    CUevent event;
    CUevent ring[SYMM_CUDA_RING];
    uint64_t since_ns[SYMM_CUDA_RING];
    uint32_t ring_from, ring_n;
    uint64_t late_ns; /* when a call in a caller's stream was found late; 0: none was */
    struct symm_cuda_word *word; /* host memory */
    CUdeviceptr word_at;         /* the same, as the device sees it */
    uint64_t *counts;            /* [world] host memory, for the check of all_to_all */
};

/* The multicast object over the memories of all ranks, each bound whole, at offset 0. */
struct symm_multicast {
    int use;       /* wanted, and nothing speaks against it on this rank; agreed: on any */
    char why[100]; /* what spoke against it first */
    uint64_t step; /* its granularity, bytes; agreed: the largest */
    CUmemGenericAllocationHandle handle; /* 0 for none */
    int bound, mapped;                   /* this rank's memory; at base */
    CUdeviceptr base;                    /* [bytes] of addresses, 0 for none */
};

struct symm_cuda {
    struct symm_driver driver;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction push, staged, multicast;
    struct symm_multicast many;
    int told;       /* that there is no multicast, and why */
    uint64_t bytes; /* of one rank's allocation: the stride too, a multiple of the granularity */
    CUmemGenericAllocationHandle handles[SYMM_MAX_WORLD]; /* own and imported; 0 for none */
    uint32_t n_mapped;                                    /* ranks whose memory is mapped */
    CUdeviceptr base;                                     /* [world] of `bytes` */
    struct symm_cuda_args args;                           /* what all calls have in common */
    uint64_t channels, channel;                           /* offset of the first, bytes of one */
    void *host;                                           /* words and counts of all channels */
    uint64_t stage, push_max;                             /* bytes */
    struct symm_cuda_channel chan[SYMM_MAX_CHANNELS];
};

/* cuda_driver.c: loads the driver by name or path. KG_ECONFIG with what is missing: the library, a
 * function, a device. */
int symm_driver_load(const char *name, struct symm_driver *d, struct kg_error *err);
const char *symm_driver_text(const struct symm_driver *d, CUresult e);

/* cuda_segment.c */

/* Tells the others how this rank fares (*err, c->cuda->many), and returns what all came to: the
 * first that failed, with its words in *err; likewise in `many`. */
typedef int symm_agree(struct kg_comm *c, const struct kg_bootstrap *boot, struct kg_error *err);
/* Fills c->cuda, which is zero but for stage and push_max: device, this rank's memory, the others',
 * kernels, streams. What was taken before an error is given back by symm_cuda_unmap. */
int symm_cuda_map(struct kg_comm *c, const struct kg_bootstrap *boot, uint32_t ordinal,
                  symm_agree *agree, struct kg_error *err);
void symm_cuda_unmap(struct kg_comm *c);

/*
 * cuda_multicast.c: the steps of making the object, in their order; ranks agree between any two
 * (symm_agree), and go on only while `use` is left on all. What fails clears `use` and says why: it
 * is no error, sums have other ways. symm_multicast_drop undoes what was done, at any point.
 */
void symm_multicast_probe(struct kg_comm *c);
/* Rank 0, once it has its memory: the object as a descriptor, for all others. */
void symm_multicast_create(struct kg_comm *c, int *fd);
/* Sends or receives it and adds the device. KG_ETIMEOUT or KG_EDEVICE: the bootstrap's. */
int symm_multicast_join(struct kg_comm *c, const struct kg_bootstrap *boot, int fd,
                        struct kg_error *err);
/* Once all have joined, or it would wait for them: binds this rank's memory and maps the object. */
void symm_multicast_bind(struct kg_comm *c);
void symm_multicast_drop(struct kg_comm *c);

/* What both ask for: memory that is handed out as a descriptor. */
#define SYMM_HANDLES CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
#define SYMM_MEET_NS 30000000000ull

#endif
