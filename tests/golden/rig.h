/*
 * A model with units of its own, for tests that compare numbers: no pool, no plugin. Pages and
 * states are dealt so that slot numbers differ from ids.
 */
#ifndef KEDGE_TESTS_GOLDEN_RIG_H
#define KEDGE_TESTS_GOLDEN_RIG_H

#include "model/draft.h"
#include "model/model.h"
#include "model/safetensors.h"

#include <jansson.h>

#define RIG_SEQS 4
#define RIG_STATES 12
#define RIG_RANKS 4

struct rig {
    struct kg_ckpt *ckpt;
    struct kg_team *team;
    const struct kg_kernels *k;
    struct kg_model *model;
    struct kg_model_sizes sizes;
    struct kg_draft_ckpt *draft_ckpt; /* NULL without a drafter */
    struct kg_drafter *drafter;
    struct kg_drafter_sizes draft_sizes;
    struct kg_model_units units;
    uint32_t pages_per_seq, page_tokens;
    uint32_t *page_table, *state_table, *pages;
    uint32_t past[RIG_SEQS];
    void (*spoil)(float *features, uint32_t rows, size_t width);
    struct rig_ranks *ranks;       /* NULL alone */
    struct rig *others[RIG_RANKS]; /* [world] all ranks, this one first */
    uint32_t world;
};

struct rig_options {
    const char *model; /* folder */
    enum kg_math math;
    enum kg_isa isa;
    uint32_t threads, page_tokens, max_rows, max_tokens;
    uint32_t world;    /* ranks that share the model; 0 or 1: alone */
    uint32_t ep;       /* blocks of experts; 0: 1 */
    uint32_t sp_rows;  /* as kg_model_args */
    uint32_t idle;     /* 1: a rank may be left with padding only */
    const char *draft; /* folder of a drafter; NULL for none */
    /* changes what its config says before it is opened; may be NULL */
    void (*change)(struct kg_draft_config *config);
    /* changes the features before they are injected, (rows, width); may be NULL */
    void (*spoil)(float *features, uint32_t rows, size_t width);
};

/* Opens; prints why not and returns 0 on failure. */
int rig_open(struct rig *r, const struct rig_options *o);
void rig_close(struct rig *r);
/*
 * One pass with `n` rows of sequence `seq` (state unit = seq), from its current length. Logits of
 * the last n_logits rows are in kg_model_logits.
 */
void rig_rows(struct rig *r, uint32_t seq, const uint32_t *tokens, uint32_t n, uint32_t n_logits,
              const struct kg_order *orders, uint32_t n_orders);
/* Recurrent matrix of KDA layer `part` of a state as [head][v][k], and window as
 * [q, k, v][oldest..][channel]: the layout of the golden files. */
void rig_state(const struct rig *r, uint32_t state, uint32_t part, float *matrix, float *window);
/* One record of the drafter: (kv_lora + rope) values of a token in a draft layer; exact math. */
const float *rig_draft_record(const struct rig *r, uint32_t seq, uint32_t layer, uint32_t token);
/* Cached latent and shared key of MLA layer `index` of a sequence's tokens. */
void rig_latent(const struct rig *r, uint32_t seq, uint32_t index, uint32_t n, float *c, float *kr);

/* Number of a layer among those of its kind. */
uint32_t rig_index(const struct rig *r, uint32_t layer);

struct rig_diff {
    double l2;   /* |a - b| / |b| */
    double max;  /* largest |a - b| */
    double rel;  /* max over the largest |b| */
    double mean; /* mean |a - b| */
};
struct rig_diff rig_compare(const float *a, const float *b, uint64_t n);

/* An F32 or I32 tensor of a golden file; fails the test when it is not there. */
const float *rig_golden(const struct kg_st *st, const char *name, uint64_t n);
const int32_t *rig_golden_ids(const struct kg_st *st, const char *name, uint64_t n);
/* Array of ids in a JSON object. Caller frees. */
uint32_t *rig_ids(const json_t *object, const char *key, uint32_t *n);

#endif
