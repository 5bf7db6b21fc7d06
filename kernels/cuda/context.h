/*
 * What the operations of this folder are written on. C++, for .cu files only. An operation reads
 *
 *     static void scale(struct kg_team *team, float *y, const struct job *jobs, uint32_t n)
 *     {
 *         if (n == 0 || !kg_op(team, "scale"))
 *             return;
 *         const struct job *list = kg_stage(team, jobs, n);
 *
 *         if (list != nullptr)
 *             KG_RUN(team, scale_kernel, n, 128, y, list);
 *     }
 *
 * and must do the same calls of kg_stage and KG_RUN, in the same order with the same sizes,
 * whenever its shapes are the same: graphs rest on it. It allocates nothing and waits for nothing.
 */
#ifndef KEDGE_KERNELS_CUDA_CONTEXT_H
#define KEDGE_KERNELS_CUDA_CONTEXT_H

#include "cuda.h"
#include "device.h"

/* Begins an operation; the name goes into error texts and must be a literal. 0: the context has
 * failed, the operation does nothing. */
int kg_op(struct kg_team *team, const char *name);

/* Keeps an error of the running operation unless there is one: sync reports it. */
void kg_keep(struct kg_team *team, int rc, const char *text);

cudaStream_t kg_cuda_stream(struct kg_team *team);

/* 0 while a recorded step is filled again: nothing may be queued then, only kg_stage called. */
int kg_launching(const struct kg_team *team);

/* After a launch: keeps what the run time says of it. */
void kg_note(struct kg_team *team);

/*
 * Copies bytes of host memory to the device in stream order; the address there, 16-byte aligned,
 * is good for the operations of this call. The source may be reused at return. NULL, with the
 * error kept, when it does not fit (KG_ELIMIT): return then.
 */
const void *kg_stage_bytes(struct kg_team *team, const void *host, uint64_t bytes);

template <class T> static inline const T *kg_stage(struct kg_team *team, const T *host, uint64_t n)
{
    return static_cast<const T *>(kg_stage_bytes(team, host, n * sizeof(T)));
}

/* The context length to shape launches by: `longest` itself or, in a step with a key, `context` of
 * kg_cuda_begin. What launches by it must be right for every length up to it. */
uint32_t kg_launch_context(struct kg_team *team, uint32_t longest);

/* As kg_cuda_facts. */
const struct kg_cuda_facts *kg_device(const struct kg_team *team);

#define KG_RUN(team, kernel, grid, block, ...)                                 \
    do {                                                                       \
        if (kg_launching(team)) {                                              \
            KG_LAUNCH(kernel, grid, block, kg_cuda_stream(team), __VA_ARGS__); \
            kg_note(team);                                                     \
        }                                                                      \
    } while (0)

/* Each file's part of the table; table.cu calls them in turn. */
void kg_cuda_fill_rows(struct kg_kernels *k, enum kg_math math);
void kg_cuda_fill_products(struct kg_kernels *k, enum kg_math math);
void kg_cuda_fill_experts(struct kg_kernels *k, enum kg_math math);
void kg_cuda_fill_recurrence(struct kg_kernels *k, enum kg_math math);
void kg_cuda_fill_attention(struct kg_kernels *k, enum kg_math math);

#endif
