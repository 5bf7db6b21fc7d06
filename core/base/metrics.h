/*
 * Metrics: rows say what exists, cells (struct kg_cell, one writer each) hold values, and one call
 * writes the Prometheus text exposition, version 0.0.4. Series of one name that come from several
 * instances are written together, as the format demands.
 *
 * Names are given whole ("kedge:engine_steps_total", "vllm:num_requests_running"). The registry
 * is filled before threads start; writing the exposition may run on any one thread.
 */
#ifndef KEDGE_BASE_METRICS_H
#define KEDGE_BASE_METRICS_H

#include "base/buf.h"

#include <kedge/abi.h>
#include <kedge/host.h>

struct kg_metrics;

/* One metric of the core. A list ends with a row whose name is NULL. */
struct kg_metric_row {
    const char *name; /* whole name, base unit in it; counters end in _total */
    char type;        /* KG_COUNTER or KG_GAUGE */
    const char *doc;  /* one sentence */
    double scale;     /* exposed value = cell * scale; 0 means 1. 1e-9 for cells in ns */
};

/* A histogram with fixed upper bounds; +Inf is implied. One writer. */
struct kg_histo {
    const double *bounds; /* [n] rising, in base units; not owned */
    uint32_t n;
    struct kg_cell *cells; /* [n+1] observations per bucket, not cumulative; owned */
    _Atomic double sum;
};

/* Allocates the cells. bounds must outlive it. KG_EINVAL when they do not rise, KG_ENOMEM. */
KG_CHECKED int kg_histo_init(struct kg_histo *h, const double *bounds, uint32_t n);
void kg_histo_fini(struct kg_histo *h);
/* Counts one observation in base units; NaN is dropped. No allocation. O(log n). */
void kg_histo_observe(struct kg_histo *h, double v);

KG_CHECKED int kg_metrics_create(struct kg_metrics **m);
void kg_metrics_destroy(struct kg_metrics *m); /* NULL is allowed; cells are not touched */

/*
 * Registers rows whose cells[i] belongs to rows[i]. `labels` is the inside of the braces
 * (`kind="pool",plugin="pool-split"`), "" for none; copied. Cells must outlive the registry.
 * KG_EINVAL when a name is not legal or was registered with another type or text.
 */
KG_CHECKED int kg_metrics_add(struct kg_metrics *m, const struct kg_metric_row *rows,
                              const struct kg_cell *cells, const char *labels,
                              struct kg_error *err);
/* The rows of a plugin under `prefix` ("kedge:pool_"). */
KG_CHECKED int kg_metrics_add_plugin(struct kg_metrics *m, const char *prefix,
                                     const struct kg_metric *rows, const struct kg_cell *cells,
                                     const char *labels, struct kg_error *err);
KG_CHECKED int kg_metrics_add_histo(struct kg_metrics *m, const char *name, const char *doc,
                                    const struct kg_histo *h, const char *labels,
                                    struct kg_error *err);
/* Appends every family. Returns b->rc. */
int kg_metrics_write(const struct kg_metrics *m, struct kg_buf *b);

/* --- For values computed when asked: the same text by hand --- */

/* "# HELP", "# TYPE". type as in rows. Each family once, its samples right behind it. */
int kg_metrics_family(struct kg_buf *b, const char *name, char type, const char *doc);
int kg_metrics_sample(struct kg_buf *b, const char *name, const char *labels, double v);
/* One label with its value escaped: name="value"; a comma before it when b is not empty. */
int kg_metrics_label(struct kg_buf *b, const char *name, const char *value);

#endif
