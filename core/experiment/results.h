/* The files a replay leaves: one JSON line per request, one JSON object for all.
 * core/docs/replay.md names the fields. */
#ifndef KEDGE_EXPERIMENT_RESULTS_H
#define KEDGE_EXPERIMENT_RESULTS_H

#include "base/buf.h"
#include "experiment/replay.h"

/* Percentiles of a set, linear between ranks; NaN without values. */
struct kg_quantiles {
    double mean, p50, p90, p99;
    uint64_t n;
};

/* Sorts v[n] and reads them off. */
struct kg_quantiles kg_quantiles_of(double *v, uint64_t n);

/* What the summary says beside the result. */
struct kg_results_about {
    const struct kg_trace *trace;
    struct kg_expand_share share;
    const char *exec, *pool, *sched, *spec; /* plugin names */
    char family[32], math[16];              /* of the backend */
    uint32_t vocab;
    uint64_t caps; /* KG_EXEC_CAP_* of the backend */
    uint64_t seed;
    double load, capacity_s, stretch; /* load 0: not asked for */
    double ttft_slo_ms, tpot_slo_ms;  /* 0: no limit */
    uint32_t is_virtual;
    uint32_t route; /* enum kg_route_kind, with several replicas */
    const char
        *explained; /* what exec-sim said of its steps, of all replicas; NULL or "": nothing */
};

/* Sums over the rows. */
struct kg_totals {
    uint64_t n, outcome[4], reason[KG_N_REASONS];
    uint64_t prompt, output, hit_page, hit_state, reused, lost; /* tokens of ok requests */
    uint64_t checkpoints, preemptions, drafted, verified, accepted;
    uint64_t n_good, good_output;                     /* ok and inside the limits */
    struct kg_quantiles ttft, tpot, e2e, queue, step; /* ms */
    struct kg_quantiles engine;                       /* us of CPU a step; n 0: not measured */
    double engine_max, engine_sum;                    /* us */
    uint64_t engine_over;                             /* steps above 1 ms */
};

KG_CHECKED int kg_results_totals(const struct kg_replay_result *result,
                                 const struct kg_results_about *about, struct kg_totals *totals);

/* Appends row i as one line. Returns b->rc. */
int kg_results_row(const struct kg_replay_result *result, const struct kg_trace *trace, uint32_t i,
                   struct kg_buf *b);
/* Appends the summary as one JSON object and a newline. Returns b->rc. */
int kg_results_summary(const struct kg_replay_result *result, const struct kg_results_about *about,
                       const struct kg_totals *totals, struct kg_buf *b);
/* results_steps.c: appends the members step_parts and positions, each after a comma. */
void kg_results_steps(struct kg_buf *b, const struct kg_replay_result *result,
                      const struct kg_results_about *about);
/* The summary for people. Returns b->rc. */
int kg_results_text(const struct kg_replay_result *result, const struct kg_results_about *about,
                    const struct kg_totals *totals, struct kg_buf *b);

/* With several replicas: what each did and how unevenly, as a member of the summary, and for
 * people. KG_ENOMEM. */
KG_CHECKED int kg_results_cluster_json(const struct kg_replay_result *result,
                                       const struct kg_results_about *about, struct kg_buf *b);
KG_CHECKED int kg_results_cluster_text(const struct kg_replay_result *result,
                                       const struct kg_results_about *about, struct kg_buf *b);
/* The classes of bytes as files name them, by enum kg_bytes_class. */
const char *kg_results_class_name(uint32_t class);

#endif
