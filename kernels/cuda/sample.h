/*
 * Sampling and coupled acceptance on the device: tokens, log probabilities and flags have the bits
 * of kg_accept_run (core/model/accept.h) and kg_sample_logprobs, and logits stay where they are.
 * The arithmetic is that of kernels/sampling.h. Only acceptance by coupling is here; it is exact
 * for every drafter. A backend refuses KG_ACCEPT_REJECTION and KG_ACCEPT_BLOCK (kg_cuda_sample
 * does).
 *
 * C; structures of its own, because this folder knows nothing of the executor's interface.
 */
#ifndef KEDGE_KERNELS_CUDA_SAMPLE_H
#define KEDGE_KERNELS_CUDA_SAMPLE_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KG_CUDA_STOP_IDS 16 /* most stop ids of a request */
#define KG_CUDA_LOGPROBS 20 /* most alternatives reported */

/* kg_cuda_accepted.flags; the values of KG_RES_NAN and KG_RES_STOP */
#define KG_CUDA_NAN 1u
#define KG_CUDA_STOP 2u

/* As the members of struct kg_sampling with these names. */
struct kg_cuda_sampling {
    float temperature, top_p, min_p;
    float repetition_penalty, frequency_penalty, presence_penalty;
    uint32_t top_k, n_logprobs, min_tokens, n_stop_ids;
    uint32_t stop_ids[KG_CUDA_STOP_IDS];
    uint64_t seed;
};

/* The layout of struct kg_logprob. */
struct kg_cuda_logprob {
    uint32_t id;
    float logprob;
};

/* The layout of struct kg_accepted. */
struct kg_cuda_accepted {
    uint32_t n_tokens, n_accepted, flags;
};

/*
 * One sequence: a window of 1 + n_draft rows to pick from (struct kg_accept says what the members
 * mean), or with `echo` rows whose next tokens are known. The structure is the host's; what it
 * points to is on the device.
 */
struct kg_cuda_window {
    const float *logits;    /* [1 + n_draft][vocab] */
    const float *hidden;    /* [1 + n_draft][width], or NULL */
    const uint32_t *drafts; /* [n_draft] */
    const uint32_t *echo;   /* NULL: pick. Else [1 + n_draft], KG_NONE where not wanted: only log
                               probabilities, and KG_CUDA_NAN if a row is not finite */
    uint32_t *counts;       /* [vocab] of kg_cuda_sample_count, or NULL: no penalties; tokens that
                               are emitted are counted */
    uint32_t width, position, output_start, n_draft, left, force;
    struct kg_cuda_sampling sampling;
    uint32_t *tokens;                  /* out: [1 + n_draft]; not written with echo */
    struct kg_cuda_logprob *logprobs;  /* out: [1 + n_draft][1 + n_logprobs], or NULL */
    struct kg_cuda_accepted *accepted; /* out */
};

/* Working memory on the device for `rows` rows at a time, bytes. With less, down to that of one row
 * and 32 bytes for each of the others, rows take turns: the same bits. */
uint64_t kg_cuda_sample_scratch_bytes(uint32_t rows, uint32_t vocab);

/*
 * Queues all windows. The launches follow from n, their rows, vocab and scratch_bytes, not from
 * what is asked of a row: a recorded step is right for all requests of its shape. accept: the
 * largest enum kg_accept_rule among them. KG_EINVAL, with nothing queued: accept is not 0
 * (coupled); scratch too small; more stop ids than KG_CUDA_STOP_IDS. scratch 256-byte aligned.
 * Windows must not share counts.
 */
KG_CHECKED int kg_cuda_sample(struct kg_cuda *cuda, const struct kg_cuda_window *windows,
                              uint32_t n, uint32_t vocab, uint32_t accept, void *scratch,
                              uint64_t scratch_bytes, struct kg_error *err);

/*
 * Counts n tokens (on the device, those >= vocab are left out) of a prompt (output 0) or of output
 * (1). counts: [vocab] on the device, zero at first: bit 31 says the token is in the prompt, the
 * others how often it is in the output.
 */
void kg_cuda_sample_count(struct kg_cuda *cuda, uint32_t *counts, uint32_t vocab,
                          const uint32_t *tokens, uint32_t n, uint32_t output);

#ifdef __cplusplus
}
#endif

#endif
