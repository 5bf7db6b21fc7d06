/*
 * Prompt lookup for sequences that repeat themselves: the last tokens are looked up in what came
 * before, and what followed the longest match, of equals the most recent, is the draft.
 *
 * Whether that is worth rows is found out without any: a lookup is kept in hand and compared with
 * the tokens that come. So p, the probability that a token of a lookup is the one that comes, is
 * known before the first row is spent. It is of earlier tokens only.
 */
#ifndef KEDGE_SPEC_CONFIDENCE_LOOKUP_H
#define KEDGE_SPEC_CONFIDENCE_LOOKUP_H

#include <kedge/types.h>

#define LOOK_MOST 16     /* tokens of a lookup */
#define LOOK_WINDOW 4096 /* tokens back it may lie */

/* Of one sequence. */
struct look {
    float p;
    uint32_t n, at;            /* tokens in hand; of these, compared */
    uint32_t wait;             /* tokens until the next lookup */
    uint32_t rest;             /* that wait, when it began */
    uint32_t n_right, n_wrong; /* tokens of lookups, since somebody set them to 0 */
    uint32_t tokens[LOOK_MOST];
};

/* p: of what is known of other sequences. */
void look_begin(struct look *l, float p);
/* At most `most` tokens that may follow history[n] into out; 0 when the last two are not found. */
uint32_t look_up(const uint32_t *history, uint32_t n, uint32_t most, uint32_t *out);
/* Whether a lookup should be taken in hand. */
int look_wants(const struct look *l);
/* Takes one in hand, at most LOOK_MOST tokens. */
void look_take(struct look *l, const uint32_t *history, uint32_t n, uint32_t most);
/* The n tokens that came. */
void look_seen(struct look *l, const uint32_t *tokens, uint32_t n);
/* What became of a lookup that was verified; cut: the run ended before it could be rejected. */
void look_judged(struct look *l, uint32_t n_verified, uint32_t n_accepted, int cut);

#endif
