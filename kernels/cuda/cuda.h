/*
 * The kernel table on a CUDA device, and what a backend needs beside it: one context per device
 * with its stream, memory, and lists on their way to the device. C; no CUDA header is needed to
 * use it.
 *
 * Rules for the table of this folder, beside those of kernels.h:
 * - `team` of an operation is kg_cuda_team(context). Operations are queued on the context's one
 *   stream and return at once; results are complete in stream order. What fails is kept in the
 *   context and reported by the next kg_cuda_sync, never lost.
 * - Device memory: activations, weights' data, vectors, states, windows, page bytes, the page
 *   table (kg_pages.table), page lists (kg_mla_seq.pages), token ids of embed, ids and weights of
 *   route and moe, scratch.
 * - Host memory, copied to the device by the operation: arrays of kg_product, kg_conv_seq,
 *   kg_kda_seq, kg_mla_seq; kg_mix.srcs; the arrays gate, up, down of kg_moe. Of those three the
 *   first and second element are read: experts lie at equal distances (KG_EINVAL, kept, if not).
 * - exact math: the same bits as every other table. fast math: bits of its own, which do not
 *   depend on the number of rows, the batch or the cut of a sequence either; products of BF16 and
 *   MXFP4 weights run on tensor cores where the device has them and agree with the plain kernel
 *   within the bound in product.cu.
 *
 * One context is used by one thread at a time.
 */
#ifndef KEDGE_KERNELS_CUDA_CUDA_H
#define KEDGE_KERNELS_CUDA_CUDA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kg_cuda; /* a device in use: stream, staging, graphs, the first error */

struct kg_cuda_args {
    uint32_t device;      /* ordinal */
    uint64_t stage_bytes; /* for the lists of one step (host arrays above); 0: 4 MiB */
    uint32_t n_graphs;    /* most recorded steps kept; 0: none */
    /*
     * Asked again and again while the host waits for the stream, when there is work of others in
     * it that may never end (collectives); it may not use the context. 0: wait on. Anything else:
     * that work is being stopped, and the wait ends with KG_EDEVICE kept. With it the host never
     * waits inside the driver: few launches are ahead of the device, copies of pageable memory
     * follow a wait. NULL: waits sleep in the driver.
     */
    int (*meanwhile)(void *ctx);
    void *ctx;
};

struct kg_cuda_facts {
    char name[96];         /* of the device, "NVIDIA H200, sm_90" */
    uint32_t major, minor; /* compute capability */
    uint32_t n_sm;
    uint64_t memory_bytes, free_bytes;
    uint32_t tensor_cores; /* 1: the tensor-core kernels of this build run on it */
    uint32_t multicast;    /* 1: multicast objects */
};

/* How many devices there are. KG_ENOENT: none, with what the driver says as the text; also when
 * there is no driver. */
KG_CHECKED int kg_cuda_count(uint32_t *n, struct kg_error *err);
/* KG_ENOENT as above or for an ordinal that is not there; KG_ECONFIG for a device this build has
 * no code for; KG_ENOMEM. *cuda is set only on success. */
KG_CHECKED int kg_cuda_open(const struct kg_cuda_args *args, struct kg_cuda **cuda,
                            struct kg_error *err);
/* With `meanwhile`, before memory is freed: waits for the stream whatever became of the context,
 * ten seconds at most; if it is not done then, all memory stays taken. */
void kg_cuda_drain(struct kg_cuda *cuda);
/* Waits; NULL is allowed. Where the work of others did not end, all memory stays taken. */
void kg_cuda_close(struct kg_cuda *cuda);
void kg_cuda_facts(const struct kg_cuda *cuda, struct kg_cuda_facts *facts);

/* The table; never NULL. */
const struct kg_kernels *kg_kernels_cuda(enum kg_math math);
/* kg_mla.scratch that lets fast math share the keys of `rows` rows in all between blocks, up to
 * contexts of `context` tokens (exact math has one running order a row and head, and uses none). */
uint64_t kg_cuda_mla_scratch_bytes(uint32_t rows, uint32_t heads, uint32_t latent,
                                   uint32_t context);
/* What the table's operations take as team. */
struct kg_team *kg_cuda_team(struct kg_cuda *cuda);

/* Device memory, 256-byte aligned, not cleared. KG_ENOMEM names the bytes. Not in a step. */
KG_CHECKED int kg_cuda_alloc(struct kg_cuda *cuda, uint64_t bytes, void **p, struct kg_error *err);
void kg_cuda_free(struct kg_cuda *cuda, void *p);
/* Page-locked host memory, for copies that do not stop the stream. */
KG_CHECKED int kg_cuda_alloc_host(struct kg_cuda *cuda, uint64_t bytes, void **p,
                                  struct kg_error *err);
void kg_cuda_free_host(struct kg_cuda *cuda, void *p);
/* In stream order. Of pageable host memory the source may be reused at return, else after a sync;
 * what was copied to the host is there after a sync. */
void kg_cuda_upload(struct kg_cuda *cuda, void *device, const void *host, uint64_t bytes);
void kg_cuda_download(struct kg_cuda *cuda, void *host, const void *device, uint64_t bytes);
void kg_cuda_copy(struct kg_cuda *cuda, void *dst, const void *src, uint64_t bytes);
void kg_cuda_fill(struct kg_cuda *cuda, void *p, uint8_t byte, uint64_t bytes);

/* Waits for everything queued. The first error since open with the operation it was seen in:
 * KG_EDEVICE, KG_ELIMIT for lists longer than stage_bytes, KG_EINVAL for arguments or steps
 * against the rules here. The context is of no use then. Not between begin and end. */
KG_CHECKED int kg_cuda_sync(struct kg_cuda *cuda, struct kg_error *err);

/*
 * Graphs. Between begin and end the operations of one pass are called as ever. begin(key): a key
 * not seen before is recorded, and run at end; one that is known is not launched again by the
 * operations, they only write their lists into the staging memory, in the same order, and end
 * runs the recording. So two passes of one key must call the same operations with the same
 * shapes and the same device pointers, and differ in contents of device memory and of lists
 * only. key 0: neither; operations run as they are called. With n_graphs recordings the one used
 * longest ago goes. Between begin and end nothing may wait; uploads are lists too, so they are
 * bounded by stage_bytes, and downloads go to the same page-locked address each time. Launch shapes
 * that follow from a context length are taken for the length rounded up to `context` of begin.
 */
void kg_cuda_begin(struct kg_cuda *cuda, uint64_t key, uint32_t context);
void kg_cuda_end(struct kg_cuda *cuda);

/* The stream, a cudaStream_t, for work of others that is to run behind what was queued; NULL when
 * it is not to be queued now: a recorded step has it already, or the context has failed. */
void *kg_cuda_guest(struct kg_cuda *cuda);

/* Nanoseconds between two moments of the stream; for step times. Marks 0..7. time: after a sync;
 * 0 when a mark was never set. */
void kg_cuda_mark(struct kg_cuda *cuda, uint32_t mark);
uint64_t kg_cuda_time_ns(struct kg_cuda *cuda, uint32_t from, uint32_t to);

#ifdef __cplusplus
}
#endif

#endif
