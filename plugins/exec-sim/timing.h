/*
 * What a step takes: from a cost table (cost.h), another backend's surface (surface.h) or measured
 * kernels (model.h). Keeps what the
 * steps of a run were made of, for [exec-sim] explain.
 */
#ifndef KEDGE_EXEC_SIM_TIMING_H
#define KEDGE_EXEC_SIM_TIMING_H

#include "cost.h"
#include "model.h"
#include "surface.h"

/* Parts of a step that a cost table tells apart. */
#define SIM_COST_PARTS 6

struct sim_timing {
    struct sim_cost cost;
    struct sim_surface surface; /* n_seqs 0: there is none */
    struct sim_model *model;    /* NULL: the table or the surface decides */
    char name[160];             /* of the table, or of release, system and layout */
    uint64_t n_steps, n_prompt_steps, draft_ns;
    uint64_t host_ns; /* copies to and from the host, beside the steps */
    double jitter_ns; /* what noise added to the steps, or took away */
    double rows, cost_ns[SIM_COST_PARTS];
    struct sim_parts parts; /* us, all steps */
};

struct sim_timing_conf {
    const char *cost, *tables, *stack, *model, *system; /* "" for none */
    struct sim_layout layout;
    uint32_t max_rows;
};

/* Exactly one of cost and tables. KG_ECONFIG, KG_ENOENT, KG_EIO, KG_ENOMEM. */
int sim_timing_open(struct sim_timing *timing, const struct sim_timing_conf *conf,
                    struct kg_error *err);
void sim_timing_close(struct sim_timing *timing);
/* Nanoseconds of a step; remembered. */
uint64_t sim_timing_step(struct sim_timing *timing, const struct sim_load *load);
/* The same, not remembered. */
uint64_t sim_timing_guess(const struct sim_timing *timing, const struct sim_load *load);
/* Attention of a prompt's rows, for sim_load.prompt_us; 0 where a table decides. */
double sim_timing_prompt(const struct sim_timing *timing, double past, double n);
/* Writes what the steps so far were made of. KG_EIO with text. */
int sim_timing_explain(const struct sim_timing *timing, const char *path, struct kg_error *err);

#endif
