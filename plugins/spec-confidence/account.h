/*
 * What drafting has cost. A round loses the time it took beyond what plain decoding would have
 * taken for the tokens it brought; a loss below zero is a gain. Rounds of which it is not known
 * that they pay are begun only while the account holds their price, and it is filled by SHARE of
 * all the time that goes by. So however wrong prices are and however texts change, all losses less
 * all gains stay below START plain steps, SHARE of the time and the last round. Nothing is kept
 * beyond MOST plain steps: old gains do not pay for new losses without end.
 */
#ifndef KEDGE_SPEC_CONFIDENCE_ACCOUNT_H
#define KEDGE_SPEC_CONFIDENCE_ACCOUNT_H

#define ACCOUNT_SHARE 0.0025 /* of the time, each of two sources of drafts */
#define ACCOUNT_START 1.0    /* plain steps */
#define ACCOUNT_MOST 32.0    /* plain steps */

struct account {
    double left_ns; /* may be below zero after a round that lost more than it held */
    int open;
};

/* A step took `ns`, whatever it did; plain_ns: what a plain one takes now, > 0. */
void account_pass(struct account *a, double ns, double plain_ns);
/* A round lost loss_ns; it gained when that is below zero. */
void account_round(struct account *a, double loss_ns, double plain_ns);
/* Whether a round may lose cost_ns >= 0. */
int account_allows(const struct account *a, double cost_ns);

#endif
