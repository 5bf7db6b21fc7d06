/*
 * From a row of logits to a token: one algorithm for every backend that computes on the host.
 *
 * With x the logits after penalties (repetition, then frequency and presence) and after stop ids
 * are masked while fewer than min_tokens were emitted:
 *   temperature 0:  the token of the largest x;
 *   otherwise:      the token of the largest x / temperature + noise(seed, position, token) among
 *                   those the filters keep. The noise is Gumbel, so this draws from the softmax.
 * Ties go to the lower id. "Better" below means larger x, then lower id.
 *
 * Filters, in this order, with p the softmax of x / temperature:
 *   min_p  keeps p >= min_p * max p;
 *   top_k  keeps the k best of these;
 *   top_p  keeps, of these and with p renormalised over them, the shortest run of best tokens
 *          whose sum reaches top_p (at least one).
 * The noise of a token does not depend on the filters, on the batch or on what ran before: only
 * on the seed, the position and the token.
 *
 * All arithmetic is IEEE double with +, -, * and / (no libm, no fused products;
 * kernels/sampling.h). Sums of weights of the softmax are of whole numbers, units of 2^-41 of the
 * largest weight, so they have no order: a row gives the same token and the same log probabilities
 * on every machine, and on devices that share a row among many threads.
 */
#ifndef KEDGE_MODEL_SAMPLE_H
#define KEDGE_MODEL_SAMPLE_H

#include <kedge/exec.h>

/*
 * How often each token occurs in one sequence, for penalties. Open addressing over memory the
 * caller owns; holds at most `max_distinct` different tokens (min of context and vocabulary is
 * enough). Not thread-safe.
 */
struct kg_token_counts {
    uint32_t *slots;                /* [n_slots] entry index + 1; 0 empty */
    struct kg_token_count *entries; /* [max_distinct] */
    uint32_t n_slots;               /* power of two, >= 2 * max_distinct */
    uint32_t max_distinct;
    uint32_t n; /* entries in use */
};

struct kg_token_count {
    uint32_t token;
    uint32_t in_prompt; /* 1: occurs in the prompt */
    uint32_t n_output;  /* occurrences in the output */
};

/* Bytes kg_token_counts_init needs; 0 when max_distinct is 0 or above 2^28. */
size_t kg_token_counts_bytes(uint32_t max_distinct);
/* `mem`: that many bytes, all zero, 8-aligned, the caller's; must outlive *counts. */
void kg_token_counts_init(struct kg_token_counts *counts, void *mem, uint32_t max_distinct);
/* Forgets everything. O(entries in use). */
void kg_token_counts_clear(struct kg_token_counts *counts);
/* Counts one token; `output` 0: prompt, 1: output. KG_ELIMIT when the table is full. */
int kg_token_counts_add(struct kg_token_counts *counts, uint32_t token, int output);
/* Takes back the last kg_token_counts_add of an output token; the one before may follow. */
void kg_token_counts_pop(struct kg_token_counts *counts, uint32_t token);
/* Entry of a token, or NULL. */
const struct kg_token_count *kg_token_counts_get(const struct kg_token_counts *counts,
                                                 uint32_t token);

/* True when this request needs counts at all. */
int kg_sampling_has_penalty(const struct kg_sampling *sampling);

/* Working memory for one call at a time: kg_sample_scratch_bytes(vocab) bytes, 64-aligned. */
size_t kg_sample_scratch_bytes(uint32_t vocab);

struct kg_sample_row {
    const float *logits; /* [vocab], not changed */
    uint32_t vocab;      /* 1..KG_MAX_VOCAB */
    uint32_t position;   /* of the token to be drawn: the committed length before it */
    uint32_t n_output;   /* output tokens before it, for min_tokens */
    const struct kg_sampling *sampling;
    const struct kg_token_counts *counts; /* tokens before it; NULL: no penalties are applied */
};

struct kg_sample_pick {
    uint32_t token; /* < vocab */
    uint32_t flags; /* KG_RES_NAN: the row has a NaN, a +inf or nothing but -inf; token is 0 then
                       and log probabilities are 0. KG_RES_STOP: token is one of stop_ids */
};

/*
 * Picks a token. `logprobs`: NULL, or [1 + sampling->n_logprobs]: the pick first, then the best
 * tokens of the unmodified softmax (natural log, ties to the lower id), best first. When the
 * vocabulary is shorter the rest has id KG_NONE and logprob -inf.
 */
void kg_sample(const struct kg_sample_row *row, void *scratch, struct kg_sample_pick *pick,
               struct kg_logprob *logprobs);

/*
 * The distribution kg_sample draws from at temperature > 0: after penalties, masks, temperature and
 * filters. p: [vocab], sums to 1 within rounding. Returns 0; or KG_RES_NAN, p is not set then.
 */
uint32_t kg_sample_probs(const struct kg_sample_row *row, void *scratch, double *p);

/*
 * Log probabilities of one row without a pick (prompt echo): `token` first (KG_NONE: out[0] is
 * {KG_NONE, 0}), then the n_top best. Same rules. Returns 0, or KG_RES_NAN.
 */
uint32_t kg_sample_logprobs(const float *logits, uint32_t vocab, uint32_t token, uint32_t n_top,
                            struct kg_logprob *out);

/*
 * The noise: -log(-log(u)), u in (0,1) from a 64-bit hash of the three numbers. Same bits
 * everywhere; drafters use it to draw coupled with the target.
 */
double kg_sample_noise(uint64_t seed, uint32_t position, uint32_t token);

/*
 * Noise that is independent of a request's own, and between windows: a seed for kg_sample_noise.
 * `window`: position of the window's first draft; each window of a request begins at another one.
 * Under rejection and block a drafter draws with KG_STREAM_DRAFT: noise that depended on the
 * position alone would come back in the next window, after its drafts have been looked at. Under
 * coupling it draws with the request's own seed.
 */
enum kg_stream {
    KG_STREAM_DRAFT = 1,  /* what a drafter draws with */
    KG_STREAM_ACCEPT = 2, /* the tests of acceptance */
};
uint64_t kg_sample_stream(uint64_t seed, uint32_t stream, uint32_t window);
/* Uniform in (0,1), from the same hash. */
double kg_sample_uniform(uint64_t seed, uint32_t position);

/*
 * Acceptance by coupling: a draft is kept iff it is the token the target picked at that position
 * with its own noise. So the output equals plain decoding, bit for bit.
 */
static inline int kg_accept_coupled(uint32_t draft, uint32_t pick)
{
    return draft == pick;
}

#endif
