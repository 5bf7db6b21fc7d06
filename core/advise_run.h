/* Candidates of kedge advise as replays in processes of their own, several at once. */
#ifndef KEDGE_CORE_ADVISE_RUN_H
#define KEDGE_CORE_ADVISE_RUN_H

#include "experiment/advise_report.h"
#include "runs.h"

#define KG_ADVISE_WORDS 224 /* of a replay's line, the NULL behind them included */

/* What all replays have in common, and what the base run found. */
struct kg_advise_runner {
    const char *conf;        /* NULL: defaults */
    const char *const *sets; /* [n_sets] the user's own */
    int n_sets;
    const char *const *words; /* [n_words] of the trace: "--trace" "FILE" .. without --limit */
    uint32_t n_words;
    const char *limit; /* the user's own --limit, NULL */
    const char *load;  /* of the first replay, NULL; then `stretch` */
    char stretch[40];  /* "": as recorded */
    uint64_t seed;
    double ttft_slo_ms, tpot_slo_ms;
    uint32_t n_jobs; /* replays at once, >= 1 */
    uint32_t objective;
    const char *folder;            /* for files */
    struct kg_advise_space *space; /* of the points */
    uint32_t n, n_pick;            /* requests; those picked on, which come first in all rows */
    struct kg_ab_run base;         /* rows of the configuration as it is */
    struct kg_ab_facts facts;      /* of the base run */
    struct kg_advise_row *rows;    /* [KG_ADVISE_TRIES] filled as tries are run */
    uint32_t n_rows;
    /* Progress: work is counted in requests replayed. */
    const char *phase;
    uint64_t began_ns;
    double done, left; /* requests */
    uint32_t n_done;   /* replays */
    struct kg_error *err;
};

/* One replay and what it left. */
struct kg_advise_job {
    struct kg_advise_point point;
    uint32_t is_first; /* 1: finds the stretch of --load */
    char why[160];     /* set when it did not run */
    struct kg_ab_run
        run;    /* rows, of the caller, parted (kg_advise_part); NULL when it did not run */
    uint32_t n; /* rows */
    struct kg_ab_facts facts;
};

/*
 * Runs the jobs, up to n_jobs at once. A job whose configuration is refused, or whose replay fails,
 * says so in `why`; anything else is an error and stops all. Progress goes to standard error when
 * it is a terminal.
 */
KG_CHECKED int kg_advise_run(struct kg_advise_runner *r, struct kg_advise_job *jobs, uint32_t n);

/* struct kg_advise_search.run over a runner (ctx): fills rows and gains. */
int kg_advise_run_tries(void *runner, struct kg_advise_try *tries, uint32_t n, uint32_t n_left);

/* Puts the words of one replay, a NULL behind them; the seed is written to `seed`. Returns how
 * many. out and summary NULL: none. */
uint32_t kg_advise_words(const struct kg_advise_runner *r, const struct kg_advise_job *job,
                         const char *out, const char *summary, char seed[24],
                         const char *words[KG_ADVISE_WORDS]);

#endif
