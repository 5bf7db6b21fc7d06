/* What kedge ab reads and writes: the files of two replays in, text and JSON out. */
#ifndef KEDGE_EXPERIMENT_AB_H
#define KEDGE_EXPERIMENT_AB_H

#include "experiment/ab_log.h"
#include "experiment/ab_stats.h"

#define KG_AB_N_BYTES 9 /* classes of bytes in a summary */
#define KG_AB_BINS 256  /* bins of bytes over time, at most */
#define KG_AB_PARTS 24  /* of what steps were made of, at most */
#define KG_AB_DRAFTS 16 /* positions of a window of drafts, at most */

/* Seconds of all steps. */
struct kg_ab_part {
    char name[24];
    double s;
};

/* Windows of drafts at one position: how many were verified, how many of them were accepted, how
 * many the drafter said would be. */
struct kg_ab_draft {
    double verified, accepted, expected;
};

/* Of the summary of one replay. */
struct kg_ab_facts {
    char exec[32], pool[32], sched[32], spec[32], clock[16], family[32], math[16];
    uint32_t vocab, batch, chunk, path; /* the last three: promised invariances, 0 or 1 */
    double duration_s, stretch;
    /* Bytes by class over time, means over n_bins bins; n_bins 0: not in the summary. */
    uint32_t n_bins;
    double width_s, series[KG_AB_N_BYTES][KG_AB_BINS];
    double step_ms[KG_AB_BINS]; /* mean of the steps that ended in a bin; NAN: none did */
    double bytes_mean[KG_AB_N_BYTES], bytes_max[KG_AB_N_BYTES], arena;
    uint32_t n_parts, n_drafts; /* 0: not in the summary */
    double n_steps;
    struct kg_ab_part parts[KG_AB_PARTS];
    struct kg_ab_draft drafts[KG_AB_DRAFTS];
};

/* One comparison as it is told. */
struct kg_ab_report {
    const char *trace;
    const char *names[2], *what[2]; /* "A"; "a.ini, engine.max_seqs = 16" */
    const char *at;                 /* the value of --vary both arms share, NULL for none */
    struct kg_ab_facts facts[2];    /* of the first repeat; of a log duration_s alone */
    const struct kg_ab_log *log;    /* the log that two arms are compared by; NULL: replays */
    struct kg_ab_conf conf;
    struct kg_ab_result result;
    uint64_t seeds[2]; /* of the first repeat */
};

/* Reads the rows of a replay; a request is good with at most so many ms (0: no limit). *run is
 * owned by the caller, kg_ab_run_free. KG_ENOENT, KG_EINVAL naming the line, KG_ENOMEM. */
KG_CHECKED int kg_ab_read_rows(const char *path, double ttft_slo_ms, double tpot_slo_ms,
                               struct kg_ab_run *run, uint32_t *n, struct kg_error *err);
void kg_ab_run_free(struct kg_ab_run *run);
/* Reads the summary of a replay. KG_EINVAL names the file and what is missing. */
KG_CHECKED int kg_ab_read_facts(const char *path, struct kg_ab_facts *facts, struct kg_error *err);

/* KG_ECONFIG with the reason when two runs cannot be compared: models, clocks. */
KG_CHECKED int kg_ab_comparable(const struct kg_ab_facts *a, const struct kg_ab_facts *b,
                                struct kg_error *err);
/* Whether both arms must say the same tokens, by what their backends promise. */
int kg_ab_must_agree(const struct kg_ab_report *report);

/* Append what an arm is, and how much was compared; no newline. Return b->rc. */
int kg_ab_about(const struct kg_ab_report *report, uint32_t arm, struct kg_buf *b);
int kg_ab_size(const struct kg_ab_report *report, struct kg_buf *b);
/* Appends what the comparison rests on, and whether outputs agree; lines. Returns b->rc. */
int kg_ab_basis(const struct kg_ab_report *report, struct kg_buf *b);
/* Append table, verdict and what it rests on; one JSON object without a newline. Return b->rc. */
int kg_ab_text(const struct kg_ab_report *report, struct kg_buf *b);
int kg_ab_json(const struct kg_ab_report *report, struct kg_buf *b);

/*
 * One page that needs nothing else: no script, no network. Head, then a section for each report
 * (the rows of its runs must still be there), then the tail. Return b->rc.
 */
int kg_ab_html_head(const char *trace, struct kg_buf *b);
int kg_ab_html(const struct kg_ab_report *report, struct kg_buf *b);
int kg_ab_html_tail(struct kg_buf *b);

#endif
