/* Rows of sequences dealt out to blocks. */
#ifndef KEDGE_KERNELS_CUDA_SEQ_CUH
#define KEDGE_KERNELS_CUDA_SEQ_CUH

#include "context.h"

/*
 * Rows are cut into runs of `per` rows of one sequence. How many runs there are depends on the
 * lengths of the sequences, which a recorded step may not depend on; this is the most there can be
 * of `rows` rows in n_seqs sequences (exact when per is 1 or every sequence is one row).
 */
static inline uint32_t kg_runs_most(uint32_t rows, uint32_t n_seqs, uint32_t per)
{
    return (rows - n_seqs) / per + n_seqs;
}

template <class S> static inline uint32_t kg_rows_of(const S *seqs, uint32_t n_seqs)
{
    uint32_t rows = 0;

    for (uint32_t s = 0; s < n_seqs; s++)
        rows += seqs[s].n;
    return rows;
}

/* Which sequence the run is of, and which of its runs; 0: there is no such run. All lanes of the
 * warp ask for the same one. */
template <class S>
static __device__ __forceinline__ int kg_find_run(const S *seqs, uint32_t n_seqs, uint32_t per,
                                                  uint32_t run, uint32_t *seq, uint32_t *at)
{
    const unsigned all = 0xffffffffu;
    uint32_t lane = threadIdx.x % KG_WARP;

    for (uint32_t s = 0; s < n_seqs; s += KG_WARP) {
        unsigned count = s + lane < n_seqs ? (seqs[s + lane].n + per - 1) / per : 0, end = count;

        for (unsigned d = 1; d < KG_WARP; d *= 2) {
            unsigned below = __shfl_up_sync(all, end, d);

            end += lane >= d ? below : 0;
        }
        unsigned past = __ballot_sync(all, end > run);

        if (past != 0) {
            int first = __ffs(int(past)) - 1;

            *seq = s + uint32_t(first);
            *at = run - __shfl_sync(all, end - count, first);
            return 1;
        }
        run -= __shfl_sync(all, end, KG_WARP - 1);
    }
    return 0;
}

#endif
