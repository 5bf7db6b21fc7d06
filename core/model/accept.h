/*
 * From the logits of a window to its tokens. p below is the distribution plain decoding draws from
 * at a row, after penalties, masks, temperature and filters; q the one the row's draft x was drawn
 * from, one at x when it was not drawn. Penalties, min_tokens and stop ids of a row are those after
 * the drafts before it, and only rows behind accepted drafts count. A stop id or `left` ends a run.
 *
 * KG_ACCEPT_COUPLED. Row j picks the token of position `position` + j with that position's own
 * noise (kg_sample); draft j is accepted iff it is that pick. So tokens, log probabilities and the
 * end are those of decoding one token at a time, whatever was drafted. A window of no drafts is
 * plain decoding: there is one path.
 *
 * KG_ACCEPT_REJECTION (Leviathan et al., arXiv 2211.17192). Draft x is accepted with probability
 * min(1, p(x) / q(x)); at the first that is not, the token is drawn from max(p - q, 0), scaled to
 * sum 1; behind the last, from p.
 *
 * KG_ACCEPT_BLOCK (Sun et al., arXiv 2403.10444). With P_0 = 1, P_i = min(P_(i-1) p_i(x_i) /
 * q_i(x_i), 1) and M_i = sum over v of max(P_i p_(i+1)(v) - q_(i+1)(v), 0): i drafts are kept for
 * the largest i with u_i <= h_i, where h_i = M_i / (M_i + 1 - P_i), and P_i for the whole window;
 * behind them the token is drawn from max(P_i p - q, 0), behind the whole window from p. Never
 * shorter in expectation than rejection. The window ends before this at a stop id, at `left` and at
 * a row that is not finite.
 *
 * Under the last two the output has the distribution of plain decoding, provided nothing that
 * depends on a draft decides whether that draft is in the window. The tests u are noise of
 * KG_STREAM_ACCEPT, what is drawn is drawn with the position's own noise: without drafts, and at
 * temperature 0, the bits are those of plain decoding.
 */
#ifndef KEDGE_MODEL_ACCEPT_H
#define KEDGE_MODEL_ACCEPT_H

#include "model/sample.h"

struct kg_accept {
    const float *logits; /* [1 + n_draft][vocab] */
    const float *hidden; /* [1 + n_draft][width] final hidden vectors; NULL: not looked at */
    uint32_t vocab, width;
    uint32_t position;     /* of the first token to be picked */
    uint32_t output_start; /* position of the request's first output token */
    uint32_t n_draft;
    uint32_t left;          /* tokens that may be emitted, >= 1 */
    uint32_t force;         /* tests: accept exactly min(this, n_draft) drafts, and pick as under
                               coupling; KG_NONE: off */
    const uint32_t *drafts; /* [n_draft] */
    const float *q;         /* [n_draft][vocab] probabilities each draft was drawn from, with noise
                               of KG_STREAM_DRAFT; NULL: it was not drawn (prompt lookup). Not read
                               under coupling and at temperature 0 */
    const struct kg_sampling *sampling;
    struct kg_token_counts *counts; /* tokens before `position`; every emitted token is added.
                                       NULL: no penalties */
    uint32_t *tokens;               /* out: [1 + n_draft] */
    struct kg_logprob *logprobs;    /* out: [1 + n_draft][1 + n_logprobs], or NULL */
};

struct kg_accepted {
    uint32_t n_tokens;   /* emitted: accepted drafts and one more, unless a stop or `left` cut */
    uint32_t n_accepted; /* drafts among them */
    uint32_t flags;      /* KG_RES_NAN: a row that counts is not finite, nothing else is valid;
                            KG_RES_STOP: the last token is a stop id */
};

/* Working memory for one call at a time, 64-aligned. Bytes. */
size_t kg_accept_scratch_bytes(uint32_t vocab);

/*
 * For a drafter under rejection and block: a token of its own row, whose sampling has the seed of
 * KG_STREAM_DRAFT, and q, [vocab], what it was drawn from. Not set with KG_RES_NAN.
 */
void kg_accept_draw(const struct kg_sample_row *row, void *scratch, struct kg_sample_pick *pick,
                    float *q);

/* scratch: of kg_accept_scratch_bytes(run->vocab). */
void kg_accept_run(const struct kg_accept *run, void *scratch, struct kg_accepted *out);

#endif
