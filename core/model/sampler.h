/*
 * Draws where the logits are. A device that can do them fills struct kg_sampler and names it in its
 * kg_memory; run_draw.c hands it the windows it covers: all under coupling. The bits are those of
 * kg_accept_run and kg_sample_logprobs.
 */
#ifndef KEDGE_MODEL_SAMPLER_H
#define KEDGE_MODEL_SAMPLER_H

#include "model/accept.h"

/* A window, or with `echo` rows whose next tokens are known. */
struct kg_sampler_window {
    /* As on the host, but that everything it points to lies on the device, except `sampling`;
     * `counts` and `q` are not read. With `echo` n_draft is the number of rows less one. */
    struct kg_accept run;
    const uint32_t *echo;         /* [1 + n_draft], KG_NONE where not known: only log probabilities
                                     are made, and KG_RES_NAN if a row is not finite. NULL: pick */
    uint32_t *counts;             /* [vocab], as `count` leaves them; what is emitted is counted.
                                     NULL: no penalties. Windows must not share them */
    struct kg_accepted *accepted; /* out */
};

/* Calls queue on the stream of the memory, in order, and allocate nothing. */
struct kg_sampler {
    void *ctx; /* handed to every call */
    /* Bytes of scratch for windows of `rows` rows in all, `at_once` of them at a time. */
    uint64_t (*scratch_bytes)(void *ctx, uint32_t at_once, uint32_t rows, uint32_t vocab);
    /*
     * n >= 1 windows. What is launched follows from n, their rows, vocab and scratch_bytes alone,
     * so that a recorded step may hold it. KG_EINVAL, nothing queued, for scratch that is too
     * small.
     */
    int (*draw)(void *ctx, const struct kg_sampler_window *windows, uint32_t n, uint32_t vocab,
                void *scratch, uint64_t scratch_bytes, struct kg_error *err);
    /* Counts n tokens (device memory) of a prompt (output 0) or an output (1). counts: [vocab] on
     * the device, zeros at first. */
    void (*count)(void *ctx, uint32_t *counts, uint32_t vocab, const uint32_t *tokens, uint32_t n,
                  uint32_t output);
};

#endif
