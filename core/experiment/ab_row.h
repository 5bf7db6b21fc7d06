/* One JSON row of a replay or a request log, for ab.c and ab_log.c. */
#ifndef KEDGE_EXPERIMENT_AB_ROW_H
#define KEDGE_EXPERIMENT_AB_ROW_H

#include "experiment/ab_stats.h"

#include <jansson.h>

/* Fills a row; a time that is not there is NaN, a count 0. */
void kg_ab_row_of(const json_t *o, double ttft_slo_ms, double tpot_slo_ms, struct kg_ab_row *row);

#endif
