/*
 * What to change in a configuration for a trace: which settings there are to try, in what order
 * they are tried, closed-form guidance, and whether what was found is more than luck. Nothing here
 * runs anything: the caller brings a function that replays candidates.
 */
#ifndef KEDGE_EXPERIMENT_ADVISE_H
#define KEDGE_EXPERIMENT_ADVISE_H

#include "experiment/ab.h"

#define KG_ADVISE_DIMS 4
#define KG_ADVISE_SETTINGS 40 /* of a dimension, the user's own included */
#define KG_ADVISE_SETS 4      /* assignments of a setting */
#define KG_ADVISE_SET_BYTES 64
#define KG_ADVISE_TRIES 256
#define KG_ADVISE_FINALISTS 3
#define KG_ADVISE_WINDOWS 16u /* a trace is cut into, to pick on every other one */

enum kg_advise_objective {
    KG_ADVISE_TTFT,       /* mean time to first token */
    KG_ADVISE_TPOT,       /* mean time per output token */
    KG_ADVISE_E2E,        /* mean time to the last token */
    KG_ADVISE_THROUGHPUT, /* requests per time when there is always work */
    KG_ADVISE_GOODPUT,    /* share of requests inside the limits */
    KG_ADVISE_N_OBJECTIVES,
};

/* "ttft" .. "goodput"; NULL past the last. */
const char *kg_advise_objective_name(uint32_t objective);
/* KG_EINVAL for another word. */
KG_CHECKED int kg_advise_objective_parse(const char *word, uint32_t *objective);

/* --- the space --- */

/* What the space is made from: the effective values of the user's configuration, and sizes. Its
 * strings outlive the space. */
struct kg_advise_facts {
    uint32_t prefix;               /* [prefix] enabled */
    const char *checkpoint;        /* its word */
    uint32_t interval;             /* tokens */
    const char *pool, *style;      /* plugin name; pool-split style */
    double ratio;                  /* of pool-split */
    uint32_t states, state_blocks; /* of pool-split */
    const char *lifetime;          /* its word */
    uint32_t quantile;             /* percent */
    const char *spec;              /* plugin name */
    uint32_t draft_length;         /* of spec-dspark, 0 the block */
    uint32_t draft_block;          /* of the backend, 0 without a drafter */
    uint32_t has_cost;             /* 1: [engine] cost is not off */
    uint32_t page_tokens;          /* effective */
    uint32_t longest;              /* tokens of the trace's longest request, answer included */
    uint32_t least_interval;       /* below it a grid cuts prompts into smaller chunks; 0 no such */
    double mean_ratio[2];          /* bytes of states per byte of pages of a mean request
                                      with one state and with two; 0 not known */
};

/* One value of a dimension: assignments on top of the user's configuration. */
struct kg_advise_setting {
    char label[KG_ADVISE_SET_BYTES];
    char sets[KG_ADVISE_SETS][KG_ADVISE_SET_BYTES]; /* "prefix.interval=1024" */
    uint32_t n_sets;                                /* 0: as it is */
    uint32_t family;                                /* enum kg_advise_family */
    double at;                                      /* place on the family's scale, 0 without one */
};

enum kg_advise_family {
    KG_ADVISE_PLAIN = 0,
    KG_ADVISE_INTERVAL = 1, /* checkpoint = interval, tokens */
    KG_ADVISE_AUTO = 2,     /* checkpoint = auto, tokens of the first octave */
    KG_ADVISE_RATIO = 3,    /* pool-split, style = ratio */
};

enum { KG_ADVISE_REUSE, KG_ADVISE_POOL, KG_ADVISE_LIFETIME, KG_ADVISE_SPEC };

/* A dimension. settings[0] is the user's own. */
struct kg_advise_dim {
    const char *name;
    struct kg_advise_setting settings[KG_ADVISE_SETTINGS];
    uint32_t n;
};

struct kg_advise_space {
    struct kg_advise_facts facts;
    struct kg_advise_dim dims[KG_ADVISE_DIMS];
};

/* Fills all dimensions; the user's own values are not there twice. The speculation dimension has
 * one setting without a drafter. */
void kg_advise_space_make(const struct kg_advise_facts *facts, struct kg_advise_space *space);

/* --- the search --- */

/* One setting of each dimension. */
struct kg_advise_point {
    uint32_t at[KG_ADVISE_DIMS];
};

/* Assignments of a point, in the order of the dimensions; returns how many, at most `max`. */
uint32_t kg_advise_sets(const struct kg_advise_space *space, const struct kg_advise_point *p,
                        const char **sets, uint32_t max);
/* Appends the labels of what differs from the user's configuration; "as it is" without. */
int kg_advise_label(const struct kg_advise_space *space, const struct kg_advise_point *p,
                    struct kg_buf *b);

/* What was tried. gain: relative, above 0 better than the user's configuration; NaN when it could
 * not run. */
struct kg_advise_try {
    struct kg_advise_point point;
    double gain;
    void *data; /* the caller's, set by run */
};

struct kg_advise_search {
    struct kg_advise_space *space; /* grows by refinement */
    double least;                  /* gains below it move nothing, relative: 0.01 */
    uint32_t n_rounds;             /* through all dimensions, >= 1; fewer when nothing moves */
    /*
     * Replays n new points, side by side if it can, and sets gain and data of each. n_left: about
     * how many more will follow. Returns a negative rc to stop the search.
     */
    int (*run)(void *ctx, struct kg_advise_try *tries, uint32_t n, uint32_t n_left);
    void *ctx;
};

struct kg_advise_found {
    struct kg_advise_try tries[KG_ADVISE_TRIES]; /* in order; [0] is the user's own, gain 0 */
    uint32_t n;
    uint32_t best;                           /* the point the search ended at */
    uint32_t finalists[KG_ADVISE_FINALISTS]; /* best first; gains above 0 */
    uint32_t n_finalists;
};

/*
 * Coordinate descent from the user's configuration (tries[0], run first): all settings of a
 * dimension with the others as they stand, then two steps finer around a winner that has a scale,
 * and so on through the dimensions until a round moves nothing. What
 * was more than 5 % behind the best of its dimension is not tried in later rounds. Ties go to the
 * setting with fewer assignments. At the end changes whose removal costs less than half of `least`
 * are taken back. The finalists are the end point, the best point with one change, the best with
 * one change in another dimension, then the best of the others; none that came out equal.
 * Deterministic if `run` is. Returns what run said, KG_OK or KG_ELIMIT past KG_ADVISE_TRIES (what
 * was found so far is there then).
 */
KG_CHECKED int kg_advise_search(const struct kg_advise_search *search,
                                struct kg_advise_found *found);

/* --- guidance in closed form --- */

struct kg_guide_in {
    double state_bytes;     /* of a state as the pool holds it */
    double token_bytes;     /* of a token in a page */
    double token_ns;        /* to compute one prompt token again, at the trace's mean length; 0
                               not known */
    double n, n_repeating;  /* requests; those whose prompt begins like an earlier one's */
    double prompt_tokens;   /* of all */
    double repeated_tokens; /* of these, seen before, in whole pages */
    double again_tokens;    /* different ones that come back at all, each counted once */
    double page_tokens;     /* an interval is so many times n */
    double least, longest;  /* bounds of an interval: a shorter one cuts prompts into smaller
                               chunks, because a step takes only so many orders */
};

/*
 * State price: the pages a state displaces, S / t tokens (S bytes a state, t bytes a token). Where
 * memory is full a state pays if it saves more than that at the same chance of being used: the
 * break-even distance.
 *
 * Interval: with states every N tokens a request that finds something computes N / 2 tokens of it
 * again on average, the remainder being anywhere. W new tokens bring W / N states, each displacing
 * S / t tokens. A token displaced that would have come back is computed once more and is then in
 * the cache again: it costs one, however often it comes back later. Tokens that come back at all
 * are A of W. In tokens computed, for the whole trace:
 *
 *     cost(N) = n_repeating N / 2 + W / N * S / t * A / W,
 *
 * least at N = sqrt(2 S / t * A / n_repeating) = sqrt(2 * state price * a), a = A / n_repeating:
 * the tokens worth keeping that a repeating request brings. It is Young's rule for checkpoints of
 * long computations (CACM 17 (9), 1974) with the price of a state for the time a checkpoint takes
 * and a for the time between failures; the time to compute a token falls out. It holds where memory
 * is full and N is well below the length that is shared. With room to spare states cost nothing and
 * the least interval is best; and pages that are evicted first are wanted less than others are, so
 * it is rather too long than too short.
 */
struct kg_guide {
    double state_tokens;       /* state price = break-even distance, tokens */
    double state_ms;           /* time to compute so many tokens again; 0 not known */
    double shared_tokens;      /* mean repeated tokens of a request that repeats any */
    double kept_tokens;        /* a, tokens */
    double interval;           /* best by the rule, within its bounds; 0 without repetition */
    double interval_lost;      /* tokens computed again per repeating request there, N / 2 */
    double repeated_share;     /* of the prompt tokens */
    double token_us;           /* to compute one token again; 0 not known */
    uint32_t is_least;         /* 1: the rule asks for less than the bound */
    uint32_t interval_is_long; /* 1: above half the shared length, states at places pay better */
};

void kg_guide_of(const struct kg_guide_in *in, struct kg_guide *guide);
/* The two sides of the rule at an interval, in tokens computed again per repeating request: behind
 * the last state, and for pages that states displaced. */
void kg_guide_sides(const struct kg_guide_in *in, double interval, double *again,
                    double *displaced);

/* --- judging --- */

/* A figure of the objective, candidate against the user's configuration. */
struct kg_advise_gain {
    double a, b;           /* ms, share, or requests/s (throughput) */
    double rel, lo, hi;    /* relative change (goodput: difference of shares) and its interval */
    uint32_t n, n_windows; /* pairs, windows */
    uint32_t is_tested, is_better, is_worse; /* beyond chance and not small */
};

/* Puts the rows of windows 0, 2, .. of a run before those of 1, 3, ..: the first *n_pick are picked
 * on, the others held out. n: rows, >= 1. KG_ENOMEM. */
KG_CHECKED int kg_advise_part(struct kg_ab_run *run, uint32_t n, uint32_t *n_pick);

struct kg_advise_judge {
    const struct kg_ab_run *base, *other; /* rows of the same requests, in order */
    uint32_t n_all;                       /* rows of both */
    uint32_t from, n;                     /* those looked at: from .. from + n - 1 */
    uint32_t objective;
    uint32_t n_finalists; /* compared side by side: intervals hold for all */
    double least;         /* smaller changes are not worth it */
    uint64_t seed;
};

/*
 * Compares as kedge ab does (ab_stats.h). With n_finalists > 1 each interval has level
 * 1 - 0.05 / n_finalists, so that all hold together with 95 %. is_better asks for both: more
 * standard errors than chance gives this figure (with Student's factor for the windows), and an
 * interval without 0. `result` gets the whole comparison; may be NULL. KG_EINVAL, KG_ENOMEM.
 */
KG_CHECKED int kg_advise_judge(const struct kg_advise_judge *judge, struct kg_advise_gain *gain,
                               struct kg_ab_result *result, struct kg_error *err);

/*
 * The objective's figure over the requests both ended well, without an interval; for picking. The
 * gain is above 0 when `other` is better, NaN when it ended fewer requests well.
 */
double kg_advise_gain_of(const struct kg_advise_judge *judge);

#endif
