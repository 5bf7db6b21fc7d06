/*
 * What an engine's release makes of the kernels of the tables: which of them it calls, what it has
 * fused since, what its host adds. A text file, `key value...` a line, '#' begins a comment:
 *
 *     kedge-stack 1              first line
 *     name WORD                  engine and release; printed with results
 *     class WORD                 what its figures are: published, assumed, ...
 *     moe FW DTYPE LOAD          rows of the tables: sglang w4a8_mxfp4_mxfp8 power_law_1.01
 *     kda FW                     sglang or vllm
 *     allreduce NAME             sglang, vllm, trtllm, nccl, or best: the quickest at each size
 *     fuse NAME PART US ROWS     a fusion: PART loses US per layer in steps of up to ROWS rows
 *     scale PART X               PART takes X times as long
 *     moe_small X FROM TO        experts' time beyond that of one row, times X up to FROM rows,
 *                                1 from TO rows on, between them by the logarithm of rows
 *     graph N...                 captured sizes: a step of decoding rows only is run at the next
 *     host_us US, host_seq_us US per step, and per sequence of it
 *     prompt_us US               per step that computes prompt rows
 *     decode_scale X             a step of decoding rows takes X times as long
 *     prompt_scale X             so does what prompt rows add to a step
 *     client_us US, client_steps N   between client and engine, and steps a first token waits where
 * an engine looks for arrivals or sends every so many; added to the time to first token by
 * scripts/perf/e2e, not to a step overlap X                  share of the collectives hidden behind
 * other work, 0 .. 1
 *
 * PART is a name of sim_part_names. Nothing given: the kernels as they were measured, in a row.
 */
#ifndef KEDGE_EXEC_SIM_STACK_H
#define KEDGE_EXEC_SIM_STACK_H

#include "table.h"

/* Where the time of a step goes. */
enum sim_part {
    SIM_KDA_KERNEL,
    SIM_KDA_GEMM,
    SIM_ATTN,      /* MLA, or full attention */
    SIM_ATTN_GEMM, /* its projections */
    SIM_EXPERTS,   /* routed experts */
    SIM_MOE_GEMM,  /* router, latent and shared projections */
    SIM_ENDS,      /* dense layers, logits */
    SIM_REDUCE,    /* collectives */
    SIM_ELEMENTWISE,
    SIM_PIPE,  /* between stages */
    SIM_DRAFT, /* the drafter */
    SIM_COPY,  /* states copied, units moved */
    SIM_HOST,
    SIM_N_PARTS,
};

extern const char *const sim_part_names[SIM_N_PARTS];

#define SIM_FUSIONS 24
#define SIM_GRAPHS 64

struct sim_fusion {
    char name[40];
    uint32_t part;
    double us, rows; /* us per layer; up to rows */
};

struct sim_stack {
    char name[64];
    uint32_t class; /* enum sim_class of what it adds */
    char moe_fw[24], moe_dtype[32], moe_load[32], kda_fw[24], allreduce[16];
    struct sim_fusion fusions[SIM_FUSIONS];
    uint32_t n_fusions, n_graphs;
    double scale[SIM_N_PARTS];
    double graphs[SIM_GRAPHS]; /* [n_graphs] ascending */
    double small, small_from, small_to;
    double host_us, host_seq_us, prompt_us, overlap, decode_scale, prompt_scale, client_us,
        client_steps;
};

/* The kernels as measured: on Hopper vllm's experts, on Blackwell sglang's. */
void sim_stack_plain(struct sim_stack *stack, int hopper);
/* Reads a file over *stack, which holds what it does not say. As sim_table_read. */
int sim_stack_read(const char *path, struct sim_stack *stack, struct kg_error *err);

#endif
