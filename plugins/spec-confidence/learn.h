/*
 * Confidences against what came of them. A drafter says c, the probability that a draft is accepted
 * when the ones before it were; it may be off, for one because it was trained on another rule of
 * acceptance. So each trial is counted in a cell by class of acceptance, position and confidence,
 * and c is corrected by the cell's odds: logit(c') = logit(c) + logit(accepted) - logit(said), both
 * shares drawn towards those of all positions, and these towards each other, by a weight of PRIOR
 * trials. A cell of no trials corrects nothing. What is left of the error is counted again by
 * length of context, because drafters fail beyond what they were trained on.
 *
 * Only outcomes of earlier rounds go in, so a corrected confidence knows no more than c does.
 */
#ifndef KEDGE_SPEC_CONFIDENCE_LEARN_H
#define KEDGE_SPEC_CONFIDENCE_LEARN_H

#include <kedge/types.h>

#define LEARN_BLOCK 16   /* positions told apart */
#define LEARN_BINS 8     /* of confidence, even in its logit from -6 to 6 */
#define LEARN_CLASSES 4  /* of acceptance: coupled, greedy, rejection, block */
#define LEARN_BUCKETS 16 /* of context: to 256 tokens, 512, 1024, .. */

struct learn_cell {
    float n, said, accepted; /* trials, sum of confidences, acceptances; halved now and then */
};

struct learn {
    struct learn_cell at[LEARN_CLASSES][LEARN_BLOCK][LEARN_BINS];
    struct learn_cell pooled[LEARN_CLASSES][LEARN_BINS]; /* all positions */
    struct learn_cell far[LEARN_BUCKETS];                /* said: after the correction above */
    struct learn_cell mean[LEARN_CLASSES][LEARN_BLOCK];  /* of a position, whatever was said */
};

uint32_t learn_bucket(uint32_t context);
/* c corrected; in 0..1. c may be anything; NaN counts as 0. */
float learn_correct(const struct learn *l, uint32_t class, uint32_t position, uint32_t bucket,
                    float c);
/* One trial: all drafts before were accepted, this one was or not. */
void learn_trial(struct learn *l, uint32_t class, uint32_t position, uint32_t bucket, float c,
                 int accepted);
/* What a position accepts when nothing is known of the draft. */
float learn_mean(const struct learn *l, uint32_t class, uint32_t position);

#endif
