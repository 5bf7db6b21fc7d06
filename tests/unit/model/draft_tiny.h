/*
 * Random drafters for a target, and what they compute, written down a second time: plain loops in
 * double over the formulas of model/draft.h, from the tensors as they stand in the file.
 */
#ifndef KEDGE_TESTS_UNIT_MODEL_DRAFT_TINY_H
#define KEDGE_TESTS_UNIT_MODEL_DRAFT_TINY_H

#include "model/draft_ckpt.h"
#include "tiny.h"

/* What differs between drafters; the target has hidden 32, vocabulary 40, 2 layers. */
struct dspec {
    uint32_t block, layers, heads, q_lora, kv_lora, nope, rope, v, inter, rank;
    uint32_t causal; /* bit l */
    uint32_t confidence, confidence_markov, interleave, yarn, prefix_sum;
    uint32_t biases; /* 1: the calibration has them, none of them 0 */
    const char *dtype;
};

/* A random legal one. */
struct dspec dspec_random(uint64_t seed);
/* Writes it for the target in `target_dir`; free with tiny_free. The file is written too. */
struct tiny *dspec_write(const struct dspec *s, const char *target_dir, uint64_t seed);
/* A number in 0..1 from a counter. */
double dspec_noise(uint64_t seed, uint64_t i);

/* Mistakes a port can make; the reference makes them on demand. */
enum dmistake {
    D_RIGHT,
    D_ROW_SHIFTED,     /* draft k is read off row k + 1 */
    D_POSITION_EARLY,  /* the block stands one position early */
    D_CONTEXT_SHIFTED, /* features of the neighbour token */
    D_CONTEXT_NORMED,  /* context rows pass the layer's input norm */
    D_TAPS_SWAPPED,    /* taps in another order */
    D_NO_MARKOV,       /* the bias is left out */
    D_OTHER_PAIRS,     /* rotation of the other layout */
    D_OTHER_MASK,      /* bidirectional where causal and the other way round */
    D_MISTAKES
};

/* A sequence: `past` tokens of context with their taps, then the anchor. */
struct dcase {
    const struct kg_draft_ckpt *ckpt;
    const struct kg_tensor *embed, *lm_head; /* the target's */
    const float *features;                   /* [past][taps * target hidden] */
    uint32_t past, anchor;
    const uint32_t *drafted; /* [block] tokens taken as drafted */
    uint32_t mistake;        /* enum dmistake */
};

#define DREF_WIDTH 64 /* most values of a record, and of hidden */
#define DREF_VOCAB 64

struct dref {
    double hidden[KG_DRAFT_MAX_BLOCK][DREF_WIDTH];
    double logits[KG_DRAFT_MAX_BLOCK][DREF_VOCAB]; /* bias included */
    double confidence[KG_DRAFT_MAX_BLOCK];         /* before the sigmoid */
};

void dref_run(const struct dcase *c, struct dref *out);
/* Records of the context tokens of one layer: (past, kv_lora + rope). */
void dref_records(const struct dcase *c, uint32_t layer, double *out);

#endif
