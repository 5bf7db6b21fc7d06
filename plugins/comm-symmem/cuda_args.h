/* What host and kernels of the device memory agree on: one argument, the layout of a channel. C and
 * C++. All addresses are of the device's address space, offsets in bytes. */
#ifndef KEDGE_COMM_SYMMEM_CUDA_ARGS_H
#define KEDGE_COMM_SYMMEM_CUDA_ARGS_H

#include <stdint.h>

#define SYMM_CUDA_BLOCKS 32u   /* of a kernel at most: all must be resident, they wait for peers */
#define SYMM_CUDA_THREADS 256u /* of a block; at least as many as there are ranks */
#define SYMM_CUDA_RANKS 64u

/* The first bytes of a channel, of its own rank but for `arrived`, which peers write. Zero at
 * first. */
struct symm_cuda_pad {
    uint32_t epoch;       /* kernels of this channel that are done */
    uint32_t blocks_done; /* of the running one */
    uint32_t unused[30];
    uint32_t met[SYMM_CUDA_BLOCKS];                      /* meetings a block came to */
    uint32_t arrived[SYMM_CUDA_BLOCKS][SYMM_CUDA_RANKS]; /* as each peer's block says */
};

/* Host memory that the device reads and writes: how a kernel is told to give up, and its word on
 * what it waited for or could not do. One per channel. */
struct symm_cuda_word {
    uint32_t stop;  /* the host: leave */
    uint32_t peer;  /* the kernel: 1 + the rank it waited for when it left */
    uint32_t wrong; /* the kernel: 1, a count above the agreed maximum */
    uint32_t unused[29];
};

struct symm_cuda_args {
    uint64_t base, stride;      /* rank r's area is at base + r * stride */
    uint64_t many;              /* all areas at once, for multimem.cuh only; 0: no multicast */
    uint64_t word;              /* struct symm_cuda_word */
    uint64_t pad;               /* from the start of an area, as those below */
    uint64_t lines, lines_half; /* per half: [world] of lines_one bytes, by sender */
    uint64_t lines_one;
    uint64_t notes, notes_half; /* per half: [SYMM_CUDA_BLOCKS][SYMM_CUDA_RANKS] of uint64_t */
    uint64_t stage, stage_half;
    uint64_t result, result_half;
    uint64_t in, out, counts; /* counts: 0 for none */
    uint64_t count, at, n;    /* elements: of the call, where this piece begins, of it */
    uint32_t rank, world, op, dtype, one, root; /* op: enum symm_op; one: bytes of an element */
    uint32_t shots, unused;                     /* of a sum by multicast: 1 or 2 */
};

#endif
