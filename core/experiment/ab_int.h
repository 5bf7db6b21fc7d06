/* Shared by the two ways of comparing: pairs (ab_stats.c) and clients (ab_clients.c). */
#ifndef KEDGE_EXPERIMENT_AB_INT_H
#define KEDGE_EXPERIMENT_AB_INT_H

#include "experiment/ab_stats.h"

/* A value and its place in the column. */
struct kg_ab_item {
    double v;
    uint32_t at;
};

struct kg_ab_work {
    const struct kg_ab_conf *c;
    uint32_t n_all[2];                           /* rows of an arm, all repeats; equal for pairs */
    double *col[2][KG_AB_N_FIELDS];              /* [n_all] each, one repeat behind the other */
    struct kg_ab_item *sorted[2][KG_AB_N_TIMES]; /* [n_timed] ascending */
    uint32_t n_timed[2][KG_AB_N_TIMES];
    uint32_t *w[2]; /* [n_all] how often a row was drawn; one array for pairs */
    uint32_t *cb;   /* [n] the same by request; of clients: by client */
    double *diffs;  /* [n_draws][KG_AB_N_FIGURES] */
    double *rels;   /* the same, relative */
    double *line;   /* [2 * max(n_draws, n)] scratch */
    void *memory[8];
    uint32_t n_memory;
};

/* n + 1 zeroed elements, freed with the work; NULL is found by looking through memory. */
void *kg_ab_take(struct kg_ab_work *k, size_t n, size_t size);
/* For qsort of kg_ab_item, ascending. */
int kg_ab_by_item(const void *a, const void *b);
/* All figures of an arm under the weights. */
void kg_ab_figures(const struct kg_ab_work *k, uint32_t arm, double out[KG_AB_N_FIGURES]);
/* (b - a) / a, NaN unless a > 0. */
double kg_ab_relative(double a, double b);
/* Fills a, b, diff, rel, n of the rows as they are; leaves the weights at 1. */
void kg_ab_measure(struct kg_ab_work *k, struct kg_ab_result *r);
/* Fills the rest of the figures, n_tested and critical from the draws and r->n_blocks. */
void kg_ab_judge(struct kg_ab_work *k, struct kg_ab_result *r);

/* ab_clients.c: kg_ab_compare of clients. */
KG_CHECKED int kg_ab_compare_clients(const struct kg_ab_conf *conf, struct kg_ab_result *result,
                                     struct kg_error *err);

#endif
