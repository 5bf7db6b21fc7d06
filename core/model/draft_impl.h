/* Inside of a drafter: packed weights and working memory. Shared by draft.c and draft_forward.c. */
#ifndef KEDGE_MODEL_DRAFT_IMPL_H
#define KEDGE_MODEL_DRAFT_IMPL_H

#include "model/draft.h"
#include "model/forward.h"

struct kg_w_draft_layer {
    float *input_norm, *post_norm; /* [hidden] */
    struct kg_w_mla mla;           /* without gate */
    struct kg_w_mlp mlp;
};

/* Working memory, the drafter's unless said. Rows of context: (context_rows, width); of blocks:
 * (block_rows, width). The two are never alive together, the shared ones have room for either. */
struct kg_draft_scratch {
    float *cosines, *sines;  /* both, rope_dim / 2 */
    float *kv;               /* both, kv_lora + rope */
    float *context;          /* context, hidden */
    float *x, *normed, *out; /* block, hidden */
    float *q_a;              /* block, q_lora */
    float *q;                /* block, H * (nope + rope) */
    float *qa, *m;           /* block, H * kv_lora */
    float *o;                /* block, H * v */
    float *gate, *up;        /* block, dense_inter */
    float *hidden;           /* block, hidden: after the final norm, wanted rows only */
    float *logits;           /* block, vocab */
    float *head_in;          /* (max_seqs, hidden + rank): inputs of the confidence head */
    float *before;           /* (max_seqs, rank): embeddings of the tokens before */
    float *bias;             /* (max_seqs, vocab) */
    uint32_t *lookups;       /* [block_rows] ids on their way through a table */
    /* Host memory from here on. Without a device lookups and angles are those above. */
    float *near_cosines, *near_sines;
    uint32_t *ids;               /* [block_rows] */
    float *confidence;           /* [max_seqs] of the last draft, b included */
    float *near_logits;          /* (max_seqs, vocab) of the last draft, page-locked; device only */
    float *near_confidence;      /* [max_seqs] of the active ones, page-locked; device only */
    uint32_t *active;            /* [max_seqs] sequences that still draft */
    uint32_t *row0, *out0;       /* [max_seqs] first row of a sequence: block, hidden */
    struct kg_mla_seq *seqs;     /* [max(block_rows, max_seqs)] */
    struct kg_product *products; /* [max(8, heads)] */
};

struct kg_drafter {
    const struct kg_host *host;
    const struct kg_kernels *k;
    struct kg_team *team, *pack_team;
    const struct kg_memory *memory; /* NULL: the host */
    struct kg_model *target;
    const struct kg_draft_config *c;
    struct kg_drafter_sizes sizes;
    uint32_t max_seqs, context_rows, block_rows;
    uint32_t all_causal; /* 1: rows behind the wanted ones are not needed */
    float scale;         /* of attention scores */
    double *rates;       /* [rope_dim / 2] */
    struct kg_w_draft_layer *layers;
    struct kg_weight context_proj, w2, confidence_w;
    float *context_norm, *final_norm;
    float confidence_b;
    struct kg_tensor w1;
    struct kg_draft_scratch s;
    uint8_t *weight_mem, *scratch_mem;     /* in `memory` */
    uint8_t *weight_lists, *scratch_lists; /* host; with `memory` only, else in the blocks above */
    uint64_t weight_list_bytes, scratch_list_bytes;
    int lost;                        /* KG_EDEVICE: the device is */
    const struct kg_draft_seq *seqs; /* of the block in progress */
    uint32_t n_seqs;
};

#endif
