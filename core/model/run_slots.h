/*
 * What a computing backend remembers of each sequence between steps, and the check of a batch
 * against it. All memory is taken when the arena is bound; a step allocates nothing.
 */
#ifndef KEDGE_MODEL_RUN_SLOTS_H
#define KEDGE_MODEL_RUN_SLOTS_H

#include "model/run_arena.h"

#include <kedge/exec.h>

/* One backend slot. `live` 0: it holds nothing and the next use must be KG_SEQ_RESET. */
struct kg_run_slot {
    uint32_t live;
    uint32_t past;         /* committed tokens */
    uint32_t state;        /* working state unit */
    uint32_t n_pages;      /* pages listed */
    uint32_t n_history;    /* tokens known, prompt and output */
    uint32_t output_start; /* position of the first output token */
    uint32_t n_drafted;    /* drafts the backend has made for the coming step */
    uint32_t *pages;       /* [max_pages + spare_pages] virtual ids, in order */
    uint32_t *history;     /* [max_context + 1] token ids */
    struct kg_sampling sampling;
};

/* What a batch is held against. Counts as named. */
struct kg_run_limits {
    uint32_t max_seqs;
    uint32_t max_rows;
    uint32_t max_context; /* tokens */
    uint32_t max_orders;
    uint32_t vocab;
    uint32_t max_draft;   /* draft rows of a sequence */
    uint32_t spare_pages; /* entries behind a sequence's pages, for a block that is drafted */
};

struct kg_run_slots {
    const struct kg_host *host;
    struct kg_run_limits limits;
    uint32_t max_pages; /* per sequence: ceil(max_context / page_tokens) */
    uint32_t n_units[KG_N_KINDS];
    struct kg_run_slot *slots;     /* [max_seqs] */
    uint64_t *used;                /* [max_seqs] number of the check that last saw the slot */
    uint64_t *written[KG_N_KINDS]; /* [units] number of the check in which a sequence writes it */
    uint64_t check;                /* number of the running check */
};

/* Takes the memory. KG_ENOMEM names the bytes. *s is zeroed before. */
KG_CHECKED int kg_run_slots_open(struct kg_run_slots *s, const struct kg_host *host,
                                 const struct kg_run_limits *limits,
                                 const struct kg_pool_layout *layout, struct kg_error *err);
void kg_run_slots_close(struct kg_run_slots *s);

/*
 * Holds a batch against the contract of exec.h. KG_EINVAL names sequence, field and both values;
 * nothing is changed in any case but the marks of the check itself.
 */
KG_CHECKED int kg_run_batch_check(struct kg_run_slots *s, const struct kg_run_arena *a,
                                  const struct kg_batch *batch, struct kg_error *err);

/* Takes over what a checked sequence brings: RESET data, appended pages, its tokens. */
void kg_run_slot_begin(struct kg_run_slots *s, const struct kg_seq *seq);
/* Adds an emitted token at the end of the history. */
void kg_run_slot_emit(struct kg_run_slots *s, uint32_t slot, uint32_t token);
/* Forgets a sequence; slots out of range are ignored. */
void kg_run_slot_drop(struct kg_run_slots *s, uint32_t slot);

#endif
