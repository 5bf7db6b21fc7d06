/* The inside of spec-confidence, shared by its files; confidence.c says what it does. */
#ifndef KEDGE_SPEC_CONFIDENCE_CONFIDENCE_H
#define KEDGE_SPEC_CONFIDENCE_CONFIDENCE_H

#include "account.h"
#include "learn.h"
#include "lookup.h"
#include "plan.h"

#include <kedge/spec.h>

#define BATCHES 9     /* of sequences: 1, 2, 4, .. 256 and more */
#define ROUNDING 1e-6 /* two averages that are equal may part by so much, and no more */
#define RATIO_MOST 4.0

enum rule { RULE_BUDGET = 0, RULE_STOP = 1 };

struct confidence_conf {
    uint32_t rule, drafts, retry, learn, lookup;
    double min_gain;
};

/* What is known of the sequence in a backend slot. */
struct seq {
    uint64_t id; /* request, 0: none */
    uint32_t context;
    uint32_t placed;             /* 1: context is known */
    uint32_t looks;              /* 1: `look` has begun */
    uint32_t class;              /* of what it is to accept, LEARN_CLASSES */
    uint32_t asked;              /* drafts asked for in this round; 0: nobody asked */
    uint32_t n_looked;           /* drafts of a lookup in the round in flight */
    uint32_t n_said;             /* drafts of the drafter in it */
    uint32_t n_usual;            /* positions below */
    float said[LEARN_BLOCK];     /* confidence of each, as the drafter said */
    float survival[LEARN_BLOCK]; /* of each, corrected; not rising */
    float usual[LEARN_BLOCK];    /* survivals of the rounds before, averaged */
    struct look look;
};

enum stand { STAND_OFF = 0, STAND_TRIAL, STAND_JUDGE, STAND_ON };

/* Whether the drafter pays at a length of context and a number of sequences. */
struct region {
    double extra, rows; /* expected accepted drafts, verified rows, of a sequence and round */
    uint32_t n;         /* rounds seen, at most 8 */
    uint32_t stand;     /* enum stand */
    uint32_t left;      /* rounds of the trial */
    uint64_t only;      /* the request that drafts in it, 0: all */
    uint32_t skip;      /* rounds until the next try, when that was last set */
    uint64_t due;       /* round of the next try */
};

/* What steps took over what the surface says: the last ones, and their median, because a step now
 * and then is held up and says nothing. */
#define RATIOS 9
struct ratio {
    float last[RATIOS], median; /* median: set with the first */
    uint32_t n;                 /* seen; last[n % RATIOS] goes next */
    uint64_t round;             /* of the last one */
};

/* At a number of sequences. */
struct batch {
    struct ratio plain, drafting, looking; /* drafting: rounds in which the drafter drafted */
};

/* The step in flight, as it was priced. */
struct flight {
    uint32_t is_priced, n_seqs, batch, is_mixed;
    uint32_t n_drafting; /* sequences the backend drafted for */
    uint32_t n_drafted;  /* by either source */
    double plain_ns;     /* with the same other rows, without drafts */
    double unit_ns;      /* one token of plain decoding */
    double round_ns;     /* as chosen, drafting included */
    double look_ns;      /* of it, rows of lookups */
};

struct kg_spec {
    const struct kg_host *host;
    struct confidence_conf conf;
    uint32_t max_seqs, block;
    uint64_t rounds;
    uint64_t quiet;     /* nobody drafts before this round, if nothing happens */
    uint64_t plain_at;  /* round of the last plain step that was timed */
    uint32_t is_sample; /* in this round one sequence tries for all */
    uint32_t news;      /* something happened */
    uint32_t batch;     /* last one seen */
    uint32_t is_timed;  /* steps are timed */
    uint32_t warned, said_never, said_lost; /* 1: the log has it */
    uint32_t accept;                        /* enum kg_accept_rule of the request seen last */
    double plain_ns;                        /* of a plain step, last known; 0 never */
    struct account drafter, lookup;
    float usual_p[2]; /* of lookups, all sequences: sampled, greedy */
    struct flight flight;
    struct batch batches[BATCHES];
    struct learn learn;
    struct region regions[BATCHES][LEARN_BUCKETS];
    uint64_t bytes;
    uint32_t *most, *asked; /* [max_seqs] drafts that came; that were asked for */
    uint32_t *heap;         /* [max_seqs] */
    float *now, *usual;     /* [max_seqs][block] */
    struct seq seqs[];      /* [max_seqs] */
};

enum {
    ROUNDS,
    WHOLE,
    TRIMMED,
    PAUSED,
    TRIALS,
    EXPECTED,
    ACCEPTED,
    ACTIVE,
    GAIN,
    HOPELESS,
    LOST,
    GAINED,
    LOOKED,
    LOOK_ACCEPTED
};

/* The sequence in a slot; one that was not known is new. */
struct seq *seq_of(struct kg_spec *s, uint32_t slot, uint64_t id);
uint32_t batch_of(uint32_t n_seqs);

/* --- price.c --- */

/* A step of the view with `given` more rows; ns(rows) adds rows of drafts. */
struct price {
    const struct kg_spec_view *view;
    uint64_t context;
    uint32_t given;
    double draft_ns;
};
/* n_drafting: sequences that the backend drafts n_tokens tokens for. */
struct price price_of(const struct kg_spec_view *v, uint32_t n_drafting, uint32_t n_tokens,
                      uint32_t given);
double price_ns(void *price, uint32_t rows);
/* The same without drafting, and without the rows of others: a plain step. */
double price_plain_ns(const struct price *p);

/* --- whether.c --- */

/* Which sequences the backend drafts for. */
void whether_want(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *wants);
/* Drafts worth a lookup for a sequence of acceptance p, 0: none; `given` rows are lookups' already.
 */
uint32_t whether_look(struct kg_spec *s, const struct kg_spec_view *v, float p, uint32_t most,
                      uint32_t given);
/* 1: this step shall be a plain one, to see what that takes. */
int whether_compare(const struct kg_spec *s);
/* Prices the step in flight: n_tokens were drafted for n_drafting sequences, `rows` of the
 * drafter's drafts and `looked` of lookups are verified.
 */
void whether_flight(struct kg_spec *s, const struct kg_spec_view *v, uint32_t n_drafting,
                    uint32_t n_tokens, uint32_t rows, uint32_t looked);
/* It took step_ns (0: not told) and brought n_tokens, n_looked of them accepted lookups. */
void whether_settle(struct kg_spec *s, uint64_t step_ns, uint32_t n_tokens, uint32_t n_looked);

/* --- choose.c --- */

void choose_confidence(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *lengths);

#endif
