/*
 * Speculation policy: how long to draft and how much to verify. A HOST plugin fills draft tokens
 * itself (one-hot proposals); a MODEL plugin states a block length and the core calls exec.draft;
 * one that is both drafts for some sequences and lets the backend draft for others. Length 0 is
 * always legal. Output never depends on the answer: acceptance is the core's and lossless.
 */
#ifndef KEDGE_SPEC_H
#define KEDGE_SPEC_H

#include <kedge/abi.h>
#include <kedge/host.h>

#define KG_SPEC_MAJOR 1
#define KG_SPEC_MINOR 2

/* Capability bits. HOST, MODEL, or neither (spec-off); since minor 2 both: draft() is asked first,
 * then want() about the sequences it had nothing for. */
#define KG_SPEC_CAP_HOST 1ull  /* draft() exists */
#define KG_SPEC_CAP_MODEL 2ull /* needs a drafter in the backend */
#define KG_SPEC_CAP_COST 4ull  /* decides better with a cost surface */

struct kg_spec; /* one instance; private to the plugin */

/* What a step and its drafts take, monotone in every argument but ctx; the engine's. NULL while
 * there is none. */
struct kg_cost {
    size_t size;
    void *ctx;
    /* Expected ns of a step of `rows` rows in all, `n_seqs` sequences, `context` tokens in all. */
    uint64_t (*step_ns)(void *ctx, uint32_t n_seqs, uint32_t rows, uint64_t context);
    /* Since minor 1: expected ns of drafting n_tokens tokens for each of n_seqs sequences of
     * `context` tokens in all; 0 without a drafter, and where the backend cannot time it. Not part
     * of step_ns above. */
    uint64_t (*draft_ns)(void *ctx, uint32_t n_seqs, uint32_t n_tokens, uint64_t context);
};

/* A decoding sequence of the coming step. */
struct kg_spec_seq {
    uint64_t id;             /* of the request */
    uint32_t slot;           /* backend slot: the plugin's key for per-sequence state */
    uint32_t context;        /* committed tokens */
    uint32_t max_draft;      /* most drafts memory and max_tokens allow now */
    uint32_t n_drafted;      /* choose: drafts that exist (0 when none were made); want of a plugin
                                that is HOST too: what its draft() made */
    uint32_t greedy;         /* 1: temperature 0 */
    uint32_t n_history;      /* tokens so far */
    const uint32_t *history; /* [n_history], prompt and output; NULL unless HOST */
    const float *survival;   /* choose: [n_drafted]; NULL when the drafter gives none */
};

/* The coming step as far as it is fixed. */
struct kg_spec_view {
    size_t size;                    /* sizeof(struct kg_spec_view) of the core */
    const struct kg_spec_seq *seqs; /* [n_seqs] decoding sequences; live during the call */
    uint32_t n_seqs;
    uint32_t other_rows; /* rows of the step that are not decodes or drafts */
    uint32_t rows_left;  /* draft rows that still fit the step */
    uint32_t cap; /* what this plugin announced after the last step, or less: all decoding requests,
                     and a chunk of a prompt that waits, must fit the step */
    const struct kg_cost *cost; /* NULL: no surface */
};

/* What became of one sequence's window. */
struct kg_spec_seen {
    uint64_t id;            /* of the request */
    uint32_t slot;          /* backend slot */
    uint32_t n_verified;    /* draft rows verified */
    uint32_t n_accepted;    /* of those, accepted */
    uint32_t n_tokens;      /* emitted: accepted drafts and one more, cut by stop or length */
    uint32_t greedy;        /* 1: temperature 0 */
    uint32_t ended;         /* 1: the request gave up the slot; forget it, the rest is 0 */
    uint32_t accept;        /* enum kg_accept_rule of the request (since minor 2, before it 0) */
    const uint32_t *tokens; /* [n_tokens] */
};

struct kg_spec_ops {
    size_t size; /* sizeof(struct kg_spec_ops) as compiled */

    /* block: drafter's block length (0 without one); max_seqs: backend slots. KG_ENOMEM,
     * KG_ECONFIG. *spec set only on success. */
    int (*open)(const struct kg_host *host, const void *conf, uint32_t max_seqs, uint32_t block,
                struct kg_spec **spec, struct kg_error *err);
    void (*close)(struct kg_spec *spec); /* NULL is allowed */

    /* Longest window this plugin ever asks for; memory is granted for 1 + block rows. */
    uint32_t (*block)(const struct kg_spec *spec);
    /* The most drafts per sequence in the next step (lagged budget), <= block. */
    uint32_t (*cap)(const struct kg_spec *spec);
    /* Verify lengths, lengths[i] <= min(seqs[i].n_drafted, cap, max_draft). */
    void (*choose)(struct kg_spec *spec, const struct kg_spec_view *view, uint32_t *lengths);
    /* What became of the windows of a step and of requests that ended: seen[n], the core's.
     * step_ns: the step's time on the backend's clock, drafts included; 0 when it is not that of
     * these windows, and where decisions shall not depend on a clock (a surface from a file). */
    void (*observe)(struct kg_spec *spec, const struct kg_spec_seen *seen, uint32_t n,
                    uint64_t step_ns);
    /* Self-check, after each step of debug runs. KG_OK or KG_EINVAL with text. */
    int (*check)(const struct kg_spec *spec, struct kg_error *err);

    /* Optional, KG_SPEC_CAP_HOST: drafts for each sequence: tokens[i*stride ..], counts[i] <=
     * max_draft. A negative result means no drafts this step; it is counted. */
    int (*draft)(struct kg_spec *spec, const struct kg_spec_view *view, uint32_t *tokens,
                 uint32_t stride, uint32_t *counts);
    /* Optional, KG_SPEC_CAP_MODEL (since minor 1): before the backend drafts, how many tokens for
     * each sequence: wants[i] <= max_draft, 0 for no draft. The core has set wants[i] to max_draft;
     * that is also the answer without this op. Of a sequence that draft() made drafts for it is 0
     * and stays so. */
    void (*want)(struct kg_spec *spec, const struct kg_spec_view *view, uint32_t *wants);
};

#endif
