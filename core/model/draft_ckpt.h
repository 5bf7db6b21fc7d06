/*
 * A drafter's checkpoint bound to its configuration and to its target. Names are those of the
 * published Kimi K3 drafters:
 *
 *   context_proj.weight [hidden, taps * target hidden], context_norm.weight, final_norm.weight
 *   layers.N.input_layernorm.weight, layers.N.post_attention_layernorm.weight
 *   layers.N.self_attn.*   an MLA layer as in the target (checkpoint.h), without output gate
 *   layers.N.mlp.gate_proj, up_proj, down_proj .weight
 *   markov_head.markov_w1.weight, markov_w2.weight [vocab, rank]
 *   confidence_head.proj.weight [1, hidden + rank], confidence_head.proj.bias [1]
 *   embed_tokens.weight    a copy of the target's: not looked at
 *
 * Refused by name: what checkpoint.h refuses, any other tensor, a target of another shape, and a
 * target whose weights are not those the drafter was trained for.
 */
#ifndef KEDGE_MODEL_DRAFT_CKPT_H
#define KEDGE_MODEL_DRAFT_CKPT_H

#include "model/checkpoint.h"
#include "model/draft_config.h"

struct kg_draft_ckpt_layer {
    struct kg_tensor input_norm, post_norm; /* [hidden] */
    struct kg_ckpt_mla mla;
    struct kg_ckpt_mlp mlp;
};

struct kg_draft_ckpt {
    struct kg_draft_config config;
    uint64_t n_tensors, bound_bytes;    /* used ones */
    struct kg_tensor context_proj;      /* [hidden][taps * target hidden] */
    struct kg_tensor context_norm;      /* [hidden] */
    struct kg_tensor final_norm;        /* [hidden] */
    struct kg_tensor w1, w2;            /* markov_rank: [vocab][rank] */
    struct kg_tensor confidence_w;      /* confidence: [1][hidden (+ rank)] */
    struct kg_tensor confidence_b;      /* [1] */
    struct kg_draft_ckpt_layer *layers; /* [config.net.n_layers] */
};

/*
 * Reads the folder `dir` for a target that was read from `target_dir`. Codes as kg_ckpt_open;
 * KG_EINVAL too when the two do not fit. Caller closes; all views die then.
 */
KG_CHECKED int kg_draft_ckpt_open(const char *dir, const struct kg_model_config *target,
                                  const char *target_dir, struct kg_draft_ckpt **ckpt,
                                  struct kg_error *err);
/*
 * Looks at every value of every tensor in use. KG_EINVAL with file and tensor when one is not
 * finite: such a drafter would draft nothing, or badly, and say nothing. Reads all weights, so it
 * is for those who are about to (kg_drafter_open); opening alone reads headers and vectors.
 */
KG_CHECKED int kg_draft_ckpt_check_values(const struct kg_draft_ckpt *ckpt, struct kg_error *err);
void kg_draft_ckpt_close(struct kg_draft_ckpt *ckpt); /* NULL is allowed */

#endif
