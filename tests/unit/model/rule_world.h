/*
 * A target and a drafter over 16 tokens that look at the two tokens before, the exact distribution
 * of three tokens behind a fixed prompt, and a chi-square test against it. Nothing of core/model is
 * used for the reference.
 */
#ifndef KEDGE_TESTS_UNIT_MODEL_RULE_WORLD_H
#define KEDGE_TESTS_UNIT_MODEL_RULE_WORLD_H

#include "model/accept.h"

#define V 16
#define LENGTH 3
#define CELLS (V * V * V)
#define REQUESTS 100000
#define MOST 4 /* drafts of a window */
#define BEGIN 2

struct world {
    uint64_t salt;
    int one_hot; /* 1: drafts are guesses that were not drawn, as of prompt lookup */
    struct kg_sampling sampling;
    /* [before the last][last][token]; p without penalties */
    float x[2][V][V][V], q[V][V][V];
    double log_q[V][V][V], p[V][V][V], survives[V][V];
};

/* Fills the tables from salt and sampling. */
void world_make(struct world *w);
int world_is_stop(const struct world *w, uint32_t token);
uint64_t world_mix(uint64_t h);
double world_unit(uint64_t h); /* in 0..1, of a hash */
/* Draft k, rising from 0, behind the n known tokens and the drafts before it: a token of q, coupled
 * with the target's own draw under that rule. */
uint32_t world_draw(const struct world *w, const uint32_t *tokens, uint32_t n, uint32_t k);
/* Exact probabilities of the LENGTH tokens behind the prompt 3, 5: cells[CELLS]. Behind a stop id
 * the rest of a cell is that id. */
void world_reference(const struct world *w, double *cells);
/* How many deviations the statistic lies above its mean (Wilson and Hilferty), counts[CELLS] of n
 * requests; cells that are rare count as one. */
double world_deviations(const double *cells, const uint32_t *counts, double n);

#endif
