/* What the two forms of kedge bench step share: the configuration of a run and its requests. */
#ifndef KEDGE_CORE_BENCH_STEP_H
#define KEDGE_CORE_BENCH_STEP_H

#include "cmd.h"
#include "stack.h"

#define KG_BENCH_REPEATS 99
#define KG_BENCH_ROWS 16

struct kg_bench_step {
    const struct kg_cmd_line *line;
    uint64_t repeats, steps, warm;
    uint64_t prompt;   /* tokens of a prompt */
    uint32_t *step_ns; /* [steps] engine's own time of each step of a repeat */
};

/*
 * A configuration for n running requests of `context` tokens and steps of `rows`: defaults of the
 * bench, then the caller's. Returns -1 and *config to go on, or the exit status.
 */
int kg_bench_step_config(const struct kg_bench_step *b, uint32_t n, uint64_t context, uint64_t rows,
                         struct kg_config **config);
double kg_bench_median(double *v, uint64_t n); /* sorts v */

/*
 * The engine's own time when requests end after `output` tokens and others are admitted in their
 * place, with the policy script of the configuration and without, in turns. Prints its own table.
 */
int kg_bench_step_churn(const struct kg_bench_step *b, const uint32_t *counts, int n_counts,
                        const uint32_t *outputs, int n_outputs);

/* What one more request costs a step of an engine in which n_running requests decode. */
struct kg_bench_admit {
    uint32_t n_running, n_tokens, n_pages; /* tokens and pages of the request */
    double step_ns;                        /* engine's own time of a step without it */
    double more_ns;                        /* of one in which it is admitted, computed and ended */
};

/* Medians; *out only on success. */
int kg_bench_admit(const struct kg_cmd_line *line, struct kg_bench_admit *out,
                   struct kg_error *err);

#endif
