/*
 * The time of one step from measured kernels: a serial sum of what one rank runs, layer by layer,
 * as the fusions and habits of an engine's release (stack.h) change it. Every part says how much of
 * it is of which class.
 *
 * Of prompts and decoding rows in one step, projections, experts and collectives see all rows
 * together, attention and the recurrence each kind by itself. tp splits heads, projections and
 * experts; ep > 1 splits the experts by expert instead; dp splits sequences, so that dp * tp ranks
 * share the experts; dcp splits the cache of full attention over its ranks, which then hold all
 * heads of the group; pp runs the layers on so many groups of ranks, one after the other.
 *
 * Collectives of more ranks than were measured grow with each doubling of ranks as they did with
 * the last one that was. Terms without a measured kernel: elementwise work takes bytes / (0.8
 * bandwidth) + 3 us a kernel, a transfer 10 us + bytes / link. Projections of an unmeasured shape
 * take the utilisation of the three nearest ones; those of 8 and 4 bit weights the utilisation of
 * 16 bit ones. Experts of another model than K3 take K3's time beyond its floor, in proportion to
 * weights and operations.
 */
#ifndef KEDGE_EXEC_SIM_MODEL_H
#define KEDGE_EXEC_SIM_MODEL_H

#include "stack.h"

/* A transformer as far as its time goes. Sizes in elements, weights in bytes per element. */
struct sim_shape {
    const char *name;
    double hidden, layers, vocab;
    double linear_layers, linear_heads, linear_dim; /* recurrent layers; KDA or alike */
    double linear_split, linear_whole; /* rows of their projections from hidden, per group, whole */
    double linear_low;                 /* rows of second factors (from 128), of the group */
    double mla_layers, mla_heads, q_lora; /* q_lora 0: none */
    double gqa_layers, gqa_heads, gqa_kv, gqa_dim;
    double gate;     /* attention's output gate: 1 there, 0 not */
    double residual; /* 1: attention over residuals between layers */
    double dense_layers, dense_inter;
    double moe_layers, latent, moe_inter, n_experts, top_k, shared_inter; /* latent 0: hidden */
    double expert_bytes, weight_bytes;                                    /* as trained */
};

const struct sim_shape *sim_shape_find(const char *name);

/* How the model lies on its ranks. */
struct sim_layout {
    uint32_t tp, ep, pp, dcp, dp;      /* >= 1 */
    const char *kv;                    /* "bfloat16" or "fp8" */
    double expert_bytes, weight_bytes; /* 0: as the shape says */
};

/* Which rows a projection sees. */
enum sim_rows { SIM_ROWS_ALL, SIM_ROWS_SAMPLED, SIM_ROWS_PROMPT };

#define SIM_GEMMS 32
struct sim_gemm {
    const struct sim_curve *exact, *near[3]; /* exact: this shape was measured */
    double n, k, near_n[3], near_k[3], weight[3], count;
    uint32_t part, rows; /* enum sim_rows */
};

/* A family per heads of the grid, over a second number of the key. */
struct sim_grid {
    uint32_t n;
    double at[SIM_FAMILY];
    struct sim_family family[SIM_FAMILY];
};

struct sim_model {
    const struct sim_shape *shape;
    struct sim_layout layout;
    struct sim_table table;
    struct sim_stack stack;
    double heads, linear_heads; /* on one rank */
    struct sim_gemm gemms[SIM_GEMMS], draft[SIM_GEMMS];
    uint32_t n_gemms, n_draft;
    /* routed experts: floor + (curve of so many ranks - floor) * roofline ratio */
    const struct sim_curve *experts;
    double experts_have, experts_floor;
    uint32_t experts_class;
    /* recurrence: over heads, then sequences; verify and prompts one per width or length */
    struct sim_family decode;
    struct sim_grid verify[2], context[2]; /* kernels that run one after the other */
    struct sim_grid mla_gen, mla_ctx;      /* over heads, then batch, then length */
    struct sim_family bmm[2];
    struct sim_family draft_attn; /* over batch, then length */
    /* collectives, and the same on half the ranks where `doublings` of ranks were not measured */
    const struct sim_curve *reduce[8], *reduce_half[8];
    uint32_t n_reduce;
    double doublings;
    double bandwidth; /* bytes/s that kernels without a table reach */
};

/* What a step carries. */
struct sim_load {
    double seqs, rows; /* decoding: sequences, and their rows, drafts included */
    double context;    /* sum of their contexts, tokens */
    double prompts, prompt_rows;
    double pairs;     /* of prompts: sum of row times tokens before it */
    double prompt_us; /* of prompts: attention of one layer, sim_model_prompt of each */
    double samples;   /* rows that go to the logits */
    double drafts;    /* rows of the drafter */
    double copies, moved_bytes,
        copy_bytes; /* states copied; bytes that changed place; of a state */
};

struct sim_parts {
    double us[SIM_N_PARTS][SIM_N_CLASSES];
};

/* Loads the table and finds every curve. KG_ECONFIG names what the table does not have. */
int sim_model_open(struct sim_model *model, const char *table, const char *stack,
                   const struct sim_shape *shape, const struct sim_layout *layout,
                   struct kg_error *err);
void sim_model_close(struct sim_model *model);
/* Attention of one layer over a prompt's n rows behind `past` tokens, us. */
double sim_model_prompt(const struct sim_model *model, double past, double n);
/* Time of a step, us; its parts are added to *parts (NULL: not wanted). */
double sim_model_step(const struct sim_model *model, const struct sim_load *load,
                      struct sim_parts *parts);
/* Sums over ranks of the hidden width in a step; time of one of `bytes` bytes, us. */
double sim_model_wide_sums(const struct sim_shape *shape);
double sim_model_reduce(const struct sim_model *model, double bytes);
/* Roofline of a projection of `rows` rows with weights of `bytes` each, us. */
double sim_gemm_sol(const struct sim_model *model, double n, double k, double rows, double bytes);
/* Bytes of the experts of one layer that so many tokens meet, evenly loaded. */
double sim_expert_bytes(const struct sim_shape *shape, double weight_bytes, double tokens);
/* Roofline of the experts of one layer dealt to so many ranks, us. */
double sim_expert_sol(const struct sim_model *model, const struct sim_shape *shape,
                      double weight_bytes, double ranks, double tokens);
/* Leave one out: relative error of every inner point of every curve of the table whose key begins
 * with prefix, from its neighbours along the curve. Sorted; *n of them; free() it. KG_ENOMEM. */
int sim_table_left_out(const struct sim_table *table, const char *prefix, int log, double **errors,
                       uint32_t *n);

#endif
