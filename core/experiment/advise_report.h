/* What kedge advise says: figures of each candidate, what was confirmed, and the reason. */
#ifndef KEDGE_EXPERIMENT_ADVISE_REPORT_H
#define KEDGE_EXPERIMENT_ADVISE_REPORT_H

#include "experiment/advise.h"

/* Of some requests of one run; bytes are of the whole run. */
struct kg_advise_figures {
    uint32_t n, n_ok, n_refused, n_failed;                               /* requests */
    double ttft_ms, ttft_p50_ms, ttft_p99_ms, tpot_ms, e2e_ms, queue_ms; /* of those that ended
                                                                            well; NaN without */
    double good_share;                       /* of all: ended well inside the limits */
    double prompt, reused, lost, preempted;  /* tokens; times */
    double verified, accepted;               /* drafts */
    double bytes_mean[KG_AB_N_BYTES], arena; /* bytes by class (ab.h), mean over time */
};

/* Requests from .. from + n - 1 of a run. KG_ENOMEM. */
KG_CHECKED int kg_advise_figures_of(const struct kg_ab_run *run, uint32_t from, uint32_t n,
                                    const struct kg_ab_facts *facts,
                                    struct kg_advise_figures *figures);

/* A candidate that was replayed, or could not be. */
struct kg_advise_row {
    char label[200];
    const char *sets[KG_ADVISE_DIMS * KG_ADVISE_SETS]; /* owned by the space */
    uint32_t n_sets;
    char why[160]; /* why it did not run; "" when it did */
    double gain;   /* on the requests used for picking; NaN when it did not run or lost requests */
    struct kg_advise_figures figures; /* of the same requests */
};

/* A finalist, replayed whole. */
struct kg_advise_final {
    uint32_t row;                /* index of its row */
    char why[160];               /* why it could not be judged; "" */
    struct kg_advise_gain gain;  /* on the requests not used for picking */
    struct kg_advise_gain whole; /* on all, which kedge ab shows; its interval is no more than 95 %
                                    of one comparison on data it was picked by */
    struct kg_advise_figures figures; /* of all requests */
    struct kg_ab_result result;       /* on the requests not used for picking */
};

struct kg_advise_report {
    const char *conf, *trace; /* as given */
    uint32_t objective;
    double load, stretch, ttft_slo_ms, tpot_slo_ms; /* load, limits: 0 for none */
    double least;
    uint64_t seed;
    uint32_t n, n_pick; /* requests; those of every other window (kg_advise_part), picked on */
    const struct kg_advise_row *rows; /* [n_rows]; 0 is the configuration as it is */
    uint32_t n_rows;
    uint32_t has_guide; /* 0: the trace was not looked at, see guide_note */
    const char *guide_note;
    struct kg_guide_in guide_in;
    struct kg_guide guide;
    struct kg_advise_figures base;        /* whole run as it is */
    const struct kg_advise_final *finals; /* [n_finals] */
    uint32_t n_finals;
    uint32_t recommended;  /* index into finals, KG_NONE: no change is worth it */
    const char *check;     /* command that shows the gain on the whole trace; "" without */
    const char *spec_note; /* why no verify policy was tried; "" */
};

/* Which finalist to recommend: of those better beyond chance that lose no request, and that gained
 * `least` where they were picked too, the one with the largest confirmed gain; one with fewer
 * assignments is preferred when it gains as much but for `least`. KG_NONE for none. */
uint32_t kg_advise_recommend(const struct kg_advise_report *report);

/* Appends why the recommendation gains, in bytes and seconds, a line each ("  - ..."); nothing
 * without one. Returns b->rc. */
int kg_advise_reason(const struct kg_advise_report *report, struct kg_buf *b);

/* Append the report for people; one JSON object and a newline. Return b->rc. */
int kg_advise_text(const struct kg_advise_report *report, struct kg_buf *b);
int kg_advise_json(const struct kg_advise_report *report, struct kg_buf *b);
/* Appends assignments as INI lines, each behind `indent`, a section once. */
int kg_advise_ini(const char *const *sets, uint32_t n, const char *indent, struct kg_buf *b);

#endif
