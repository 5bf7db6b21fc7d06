/*
 * The engine on exec-cpu with a drafter that knows the truth and spoils it at will: runs a set of
 * requests and keeps every token, log probability, logits hash and checkpointed state.
 */
#ifndef KEDGE_TESTS_GOLDEN_SPEC_RIG_H
#define KEDGE_TESTS_GOLDEN_SPEC_RIG_H

#include "engine/test.h"
#include "exec_rig.h"
#include "stack.h"

#define SPEC_REQS 24
#define SPEC_LOGPROBS 3 /* per token: the chosen one and two more */
#define SPEC_BLOCK 8    /* most drafts of a step */

/* What came of a set of requests. */
struct spec_run {
    struct xreq reqs[SPEC_REQS]; /* tokens; bits: hash of the logits at each position */
    struct kg_logprob logprobs[SPEC_REQS][XRIG_TOKENS][SPEC_LOGPROBS]; /* by output token */
    uint64_t states[SPEC_REQS][XRIG_TOKENS];                           /* checkpoint hashes */
    /* the drafter of the backend: survivals of its drafts at each committed length */
    float survivals[SPEC_REQS][XRIG_TOKENS][SPEC_BLOCK];
    uint8_t n_survivals[SPEC_REQS][XRIG_TOKENS];
    uint32_t n_blocks; /* drafted, with a survival each */
    uint32_t finish[SPEC_REQS];
    uint32_t n_done, n_states, n_preempted, n_cached;
    uint64_t n_drafted, n_verified, n_accepted; /* of DONE events */
    uint64_t n_rows;                            /* rows computed */
    struct kg_engine_stats stats;
};

/* How the drafter behaves. */
struct spec_drafts {
    uint32_t length;       /* drafts a step, 0: random 0..8 */
    uint32_t choose;       /* 1: verify a random part of what was drafted */
    uint32_t right;        /* percent of drafts that are the truth */
    uint32_t reject;       /* 1: force random rejections of right drafts */
    uint32_t odd_only;     /* 1: only requests with odd ids draft */
    const int8_t *pattern; /* lengths in turn, ends with -1; NULL: by `length` */
    uint32_t model;        /* 1: the backend's drafter drafts; the lengths are the test's */
    uint32_t idle;         /* 1: its drafts are made and none is verified */
    uint32_t pause;        /* so many steps without drafts, then as many with, and so on; 0: off */
    uint32_t fail;         /* one in so many calls of the backend's draft fails; 0: never */
};

/* One way to run them. */
struct spec_way {
    const char *name;
    const char *sets; /* "section.key=value ..." over the defaults */
    uint32_t batch;   /* requests at once */
    uint32_t chunk;   /* most rows of a prefill, 0: as planned */
    uint32_t relocate, preempt;
    uint64_t seed;
    const struct spec_drafts *drafts; /* NULL: the policy the configuration names */
    uint64_t nan_id;                  /* this request's row is NaN once it has n_nan tokens */
    uint32_t nan_at;
};

/* Requests of a set: penalties, min_tokens, filters, log probabilities differ between them. */
void spec_requests(struct spec_run *run, uint32_t n, float temperature);
/* Requests with stop ids that a run of `truth` met in its output. */
void spec_stops(struct spec_run *run, const struct spec_run *truth, uint32_t n);
/* Runs the n requests in `run`; `truth` is what the drafter knows, NULL for none. */
void spec_go(const struct spec_way *w, const char *math, struct spec_run *run,
             const struct spec_run *truth, uint32_t n);
/* What the backend drafted at a committed length is what it drafted there in `truth`: the same
 * survivals, bit for bit, as far as both have them. Returns the blocks compared. */
uint32_t spec_same_drafts(const struct spec_way *w, const struct spec_run *run,
                          const struct spec_run *truth, uint32_t n);
/* Tokens, log probabilities, ends, logits and checkpointed states are the same bits. */
void spec_equal(const struct spec_way *w, const struct spec_run *run, const struct spec_run *truth,
                uint32_t n);

#endif
