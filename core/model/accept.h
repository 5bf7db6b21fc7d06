/*
 * From the logits of a window to its tokens: acceptance by coupling. Row j of a window picks the
 * token of position `position` + j with that position's own noise (kg_sample). Draft j is accepted
 * iff it is that pick, and only then does row j + 1 count, with penalties, min_tokens and stop ids
 * as they stand after the accepted token. So the tokens, their log probabilities and the end are
 * those of decoding one token at a time, whatever was drafted. A window of no drafts is plain
 * decoding: there is one path.
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
    uint32_t force;         /* tests: accept exactly min(this, n_draft) drafts; KG_NONE: off */
    const uint32_t *drafts; /* [n_draft] */
    const float *q;         /* [n_draft][vocab] probabilities each draft was drawn from, with noise
                               of KG_STREAM_DRAFT; NULL: it was not drawn (prompt lookup). Not read
                               under coupling */
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

/* scratch: as kg_sample. */
void kg_accept_run(const struct kg_accept *run, void *scratch, struct kg_accepted *out);

#endif
