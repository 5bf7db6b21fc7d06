/*
 * Hooks for tests: what a test may force on an engine to prove that outputs depend on the request
 * alone. Given through kg_engine_conf.test; all fields zero force nothing. Hooks run on the engine
 * thread, in a step, and may call the backend's read but, on_full apart, no function of the engine.
 */
#ifndef KEDGE_ENGINE_TEST_H
#define KEDGE_ENGINE_TEST_H

#include <kedge/exec.h>

struct kg_engine_test {
    void *ctx; /* first argument of each hook */

    /* Relocation: each step takes `relocate` pages and states, gives back those of the step
     * before, so that holes open among live units, then compacts without a limit. The units are
     * returned before anybody is refused or preempted for want of room. */
    uint32_t relocate;
    /* Each step one random holder is preempted with probability 1 / preempt_one_in; 0: off. */
    uint32_t preempt_one_in;
    uint64_t seed; /* of the choices above */
    /* Order a checkpoint at every page boundary a step may commit. */
    uint32_t force_orders;
    /* Ask for the logits of every row (KG_EXEC_CAP_LOGITS). */
    uint32_t logits;

    /* Rows to prefill instead of the n planned ones: 1..n. */
    uint32_t (*chunk)(void *ctx, uint64_t id, uint32_t past, uint32_t n);
    /* kg_seq.force_accept of a sequence with n_draft drafts; KG_NONE for the natural answer. */
    uint32_t (*force_accept)(void *ctx, uint64_t id, uint32_t past, uint32_t n_draft);
    /* 1: this sequence's last hidden row is NaN in this step. */
    int (*poison)(void *ctx, uint64_t id, uint32_t past);
    /* A checkpoint was written: state `unit` holds the request's state at `position`. */
    void (*on_order)(void *ctx, uint64_t id, uint32_t position, uint32_t unit);
    /* What was asked of a sequence and what came back, before the engine acts on it. */
    void (*on_result)(void *ctx, const struct kg_seq *seq, const struct kg_seq_result *result);
    /* The outbox has no room for a step, which is why there is none; the thread sleeps next. May
     * read events (kg_engine_next) while nobody else does. */
    void (*on_full)(void *ctx);
};

#endif
