/*
 * Two configurations on one trace, compared request by request. The rows of both arms are paired by
 * place (same trace, same ids) and by repeat. An interval comes from a bootstrap that draws whole
 * windows of consecutive requests, the same ones for both arms: neighbours wait in one queue and
 * share one cache, so drawing them one by one would give intervals that are too narrow. Repeats are
 * drawn too. Equal rows, options and seed give equal results, to the bit.
 *
 * Or two arms of one server (kg_ab_conf.clients): other requests of other clients in each, split by
 * chance. Nothing is paired then; the bootstrap draws clients of each arm with all their requests,
 * since those of one client are alike and chance moved them together.
 */
#ifndef KEDGE_EXPERIMENT_AB_STATS_H
#define KEDGE_EXPERIMENT_AB_STATS_H

#include "base/buf.h"

/* What is known of one request. The first four are ms and count only where both arms ended the
 * request well; NaN where a row has none. The others are counts or 0 and 1, of all requests. */
enum kg_ab_field {
    KG_AB_TTFT,
    KG_AB_TPOT,
    KG_AB_E2E,
    KG_AB_QUEUE,
    KG_AB_N_TIMES,
    KG_AB_REFUSED = KG_AB_N_TIMES,
    KG_AB_FAILED,    /* ended by an error */
    KG_AB_GOOD,      /* ok and inside the limits of goodput */
    KG_AB_HIT_PAGE,  /* tokens */
    KG_AB_REUSED,    /* tokens */
    KG_AB_LOST,      /* tokens */
    KG_AB_PREEMPTED, /* times */
    KG_AB_VERIFIED,  /* drafted tokens that were verified */
    KG_AB_ACCEPTED,  /* and those accepted */
    KG_AB_N_FIELDS,
};

struct kg_ab_row {
    uint64_t id;                 /* hash of the trace's id */
    uint64_t output_hash;        /* of the tokens said, in order; 0: not known */
    uint32_t ok;                 /* 1: ended well */
    uint32_t n_prompt, n_output; /* tokens */
    double arrival_ms;           /* for plots; not compared */
    double v[KG_AB_N_FIELDS];
};

/* One run of an arm. */
struct kg_ab_run {
    struct kg_ab_row *rows; /* [n] in the order of the trace */
    double duration_s;
};

/* The figures that are compared; kg_ab_figure_about names them. */
enum {
    KG_AB_FIG_TIMES = 0, /* 3 for each time: median, mean, p99 */
    KG_AB_FIG_COUNTS = 3 * KG_AB_N_TIMES,
    /* refused, failed, good, hit pages, reused, lost, preempted: means */
    KG_AB_FIG_ACCEPTANCE = KG_AB_FIG_COUNTS + (KG_AB_VERIFIED - KG_AB_REFUSED),
    KG_AB_N_FIGURES,
};

struct kg_ab_figure_about {
    const char *name;  /* "median TTFT" */
    const char *unit;  /* "ms", "tokens", "" for a share */
    uint32_t is_share; /* 1: shown in percent, compared in points */
    int better;        /* -1 less is better, 1 more is, 0 neither */
};
const struct kg_ab_figure_about *kg_ab_figure_about(uint32_t figure);

struct kg_ab_conf {
    const struct kg_ab_run *runs[2]; /* [n_repeats] each: arm A, arm B */
    uint32_t n_repeats;              /* >= 1 */
    uint32_t n;                      /* requests of a run, >= 1 */
    uint32_t n_draws;                /* bootstrap samples, >= 100 */
    uint32_t block;                  /* requests of a window; 0: found from the data */
    uint32_t runs_vary;              /* 1: measured time, equal runs differ by themselves */
    uint32_t n_comparisons;          /* made side by side on one report, >= 1 */
    double alpha;                    /* chance of any false difference in the report, 0.01 */
    double level;                    /* of the intervals of single figures; 0: 0.95 */
    double least;                    /* relative change that is too small to speak of, 0.01 */
    uint64_t seed;
    /* Not pairs: the client of each of runs[arm][0].rows, a number below n_clients[arm]; n_repeats
     * is 1 then, n and block are not looked at. NULL: pairs. */
    const uint32_t *clients[2]; /* [n_of[arm]] */
    uint32_t n_of[2], n_clients[2];
};

/* Rows of an arm, all repeats together, and one of them. */
static inline uint32_t kg_ab_n_rows(const struct kg_ab_conf *c, uint32_t arm)
{
    return c->clients[0] != NULL ? c->n_of[arm] : c->n * c->n_repeats;
}

static inline const struct kg_ab_row *kg_ab_row_at(const struct kg_ab_conf *c, uint32_t arm,
                                                   uint32_t at)
{
    return c->clients[0] != NULL ? &c->runs[arm][0].rows[at]
                                 : &c->runs[arm][at / c->n].rows[at % c->n];
}

/* One figure. All in its unit. */
struct kg_ab_figure {
    double a, b, diff; /* diff = b - a; NaN where no pair has it */
    double lo, hi;     /* `level` of the difference */
    double rel;        /* diff / a; NaN where a is 0 */
    double rel_lo, rel_hi;
    double se;             /* of the difference */
    double critical;       /* standard errors it must exceed where it alone is looked at */
    uint32_t n;            /* pairs behind it */
    uint32_t is_tested;    /* 0: too few pairs or windows to tell */
    uint32_t is_different; /* beyond chance, all figures of the report considered */
    uint32_t is_small;     /* different, but by less than `least` */
};

/* A figure of whole runs. The interval is Student's over repeats; NaN below three. */
struct kg_ab_rate {
    double a, b, rel, rel_lo, rel_hi; /* tokens/s; means over repeats */
};

struct kg_ab_result {
    struct kg_ab_figure figures[KG_AB_N_FIGURES];
    struct kg_ab_rate throughput, goodput; /* output tokens/s: all, and of good requests */
    uint32_t block, n_blocks;              /* requests of a window, windows; of clients: 0, and as
                                              many of one size as the lesser arm's are worth */
    uint32_t n_clients[2];                 /* 0: pairs */
    uint32_t n_pairs;                      /* requests, over all repeats, that ended well in both */
    uint32_t n_tested;
    uint32_t is_same;     /* 1: every row of both arms is equal */
    uint32_t cannot_tell; /* 1: runs_vary and a single repeat */
    double critical;      /* standard errors that a difference must exceed */
    uint64_t n_outputs_compared, n_outputs_differ; /* of equal length, hash known in both */
};

/*
 * KG_EINVAL: ids or prompt lengths of the arms differ (two traces, or two tokenizers), naming the
 * request; KG_ENOMEM. Memory: about 150 bytes a request and repeat, 400 a draw.
 *
 * A figure is different when |diff| exceeds `critical` standard errors. critical is the quantile
 * 1 - alpha / n_comparisons of the largest standardised deviation over all tested figures in the
 * same draw (so figures that move together cost nothing), stretched by Student's factor for the
 * number of windows (with runs_vary: of repeats; of clients: see n_blocks). The 95 % intervals are
 * of each figure by itself.
 */
KG_CHECKED int kg_ab_compare(const struct kg_ab_conf *conf, struct kg_ab_result *result,
                             struct kg_error *err);

/* Appends one to four sentences for people, each a line, about arms called `a` and `b`. Returns
 * buf->rc. */
int kg_ab_verdict(const struct kg_ab_result *result, const char *a, const char *b,
                  struct kg_buf *buf);

/* Two-sided quantile of Student's t: P(|t| <= value) = p with df >= 1 degrees of freedom. */
double kg_ab_student(double p, uint32_t df);

#endif
