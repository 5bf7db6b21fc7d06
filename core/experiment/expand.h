/*
 * From the blocks a trace names to tokens. A token is a function of (seed, block id, offset), so
 * equal ids give equal tokens and nothing else does.
 *
 * What a trace leaves open is taken from the conversation's own continuation, so that reuse is
 * neither invented nor lost. For a request whose last full block is B at place k: the first later
 * request with B at place k and something behind it goes on from this one. The rest of the prompt
 * (its partial last block) and the answer equal that request's tokens at the same positions as far
 * as it reaches; what it does not reach is seeded. A prompt without a full block has no such
 * request, nor has one whose B has KG_EXPAND_MAX_BEHIND different full blocks behind it in the
 * trace: that is a beginning many share, not the end of one conversation.
 */
#ifndef KEDGE_EXPERIMENT_EXPAND_H
#define KEDGE_EXPERIMENT_EXPAND_H

#include "experiment/trace.h"

struct kg_expand;

#define KG_EXPAND_MAX_BEHIND 8u

/* How much was resolved from a continuation, tokens. */
struct kg_expand_share {
    uint64_t tail_tokens, tail_resolved;     /* partial last blocks */
    uint64_t answer_tokens, answer_resolved; /* answers */
};

/* Finds the continuations. `trace` outlives it; prompts of text must have their tokens by now. */
KG_CHECKED int kg_expand_create(const struct kg_trace *trace, uint64_t seed, uint32_t vocab,
                                struct kg_expand **expand, struct kg_error *err);
void kg_expand_destroy(struct kg_expand *expand); /* NULL is allowed */

/* Writes the n_prompt tokens of request i, each < vocab (literal tokens as they are). */
void kg_expand_prompt(const struct kg_expand *expand, uint32_t i, uint32_t *tokens);
/* Writes its n_output answer tokens. */
void kg_expand_answer(const struct kg_expand *expand, uint32_t i, uint32_t *tokens);
/* The request i goes on in, KG_NONE. */
uint32_t kg_expand_cont(const struct kg_expand *expand, uint32_t i);
/* Over all requests; O(requests). */
void kg_expand_shares(const struct kg_expand *expand, struct kg_expand_share *share);

#endif
