/* The request log of a server with arms, as kedge ab --log reads it. */
#ifndef KEDGE_EXPERIMENT_AB_LOG_H
#define KEDGE_EXPERIMENT_AB_LOG_H

#include "experiment/ab_stats.h"

#define KG_AB_LOG_ARMS 16u /* told apart; a log with more is refused */

/* What a log says of one arm. */
struct kg_ab_log_arm {
    char name[32];
    struct kg_ab_run run; /* rows in the order of the log, arrivals from the log's first */
    uint64_t *keys;       /* [n] hash of the client */
    uint32_t *clients;    /* [n] the same as a number below n_clients */
    uint32_t n, cap, n_clients;
    double share; /* percent, of the last row */
};

struct kg_ab_log {
    struct kg_ab_log_arm arms[KG_AB_LOG_ARMS]; /* by name */
    uint32_t n;
    uint64_t n_odd;          /* lines that are no rows: torn, of others, impossible figures */
    uint64_t n_forced;       /* rows whose arm was asked for: not split by chance, left out */
    uint64_t n_armless;      /* rows without an arm, left out */
    uint32_t shares_changed; /* 1: an arm has rows of different shares */
    uint32_t n_in_both;      /* clients with rows in more than one arm */
    double span_s;           /* from the first arrival to the last end */
};

/* Reads a log, plain or .gz. Times as in kg_ab_read_rows. KG_ENOENT, KG_EINVAL: no rows with arms
 * in it, or too many arms; KG_ENOMEM. Free with kg_ab_log_free, also after an error. */
KG_CHECKED int kg_ab_log_read(const char *path, double ttft_slo_ms, double tpot_slo_ms,
                              struct kg_ab_log *log, struct kg_error *err);
void kg_ab_log_free(struct kg_ab_log *log);

#endif
