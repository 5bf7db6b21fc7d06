/*
 * The drafter: guesses the next tokens of a sequence in one small pass over features of the target
 * (DSpark). Written, as the target, as calls on the kernel table; the bits of a draft depend on the
 * tokens of its own sequence and on the wanted length at most where every layer is causal not even
 * on that.
 *
 * Context. Of every committed token the drafter keeps one record per draft layer, made from the
 * token's taps: c = rms(context_proj . taps; context_norm), then latent and shared key as in an MLA
 * layer, the key rotated to the token's position. kg_drafter_inject writes them; rows that were
 * rejected are never injected. The anchor, the last token and not yet run through the target, has
 * none: its features do not exist yet.
 *
 * Block. Rows at positions past, past + 1, ..: the target's embedding of the anchor, then of the
 * mask token. They see the context below `past` and the block (config.causal). Row k yields draft
 * k, the token of position past + 1 + k:
 *   z_k = lm_head . h_k + W2 W1[token before it],   h_k after the final norm
 * so drafts are drawn one after the other: kg_drafter_next adds the second term once the token
 * before is known. confidence_k = w . [h_k ; W1[token before]] + b.
 *
 * Bytes. The drafter's part of a page lies behind the target's: one block per draft layer, a block
 * page_tokens records of kv_lora + rope values in the dtype of pages.
 */
#ifndef KEDGE_MODEL_DRAFT_H
#define KEDGE_MODEL_DRAFT_H

#include "model/draft_ckpt.h"
#include "model/model.h"

struct kg_drafter; /* packed weights and working memory */

struct kg_drafter_args {
    const struct kg_host *host;       /* memory; NULL takes it from libc */
    const struct kg_kernels *kernels; /* as the target's */
    struct kg_team *team;             /* of the table; may be NULL: one thread */
    const struct kg_memory *memory;   /* of weights and working memory, as the target's; NULL: the
                                         host */
    struct kg_team *pack_team;        /* with `memory`: host threads for packing, or NULL */
    struct kg_model *target;          /* opened with this drafter's config; must outlive it */
    const struct kg_draft_ckpt *ckpt; /* must outlive the drafter: W1 is read there */
    uint32_t max_rows;                /* most rows of a pass of the target */
    uint32_t max_seqs;                /* most sequences that draft at once */
};

struct kg_drafter_sizes {
    uint64_t token_bytes;   /* of one token in a page: the drafter's part */
    uint64_t record_bytes;  /* of one token in one draft layer's block */
    uint64_t weight_bytes;  /* packed; embedding and lm_head are the target's */
    uint64_t scratch_bytes; /* working memory */
};

/* KG_EINVAL names what of the configuration the kernels cannot do, or the tensor with a value that
 * is not finite; KG_ENOMEM the bytes. *drafter is set only on success. */
KG_CHECKED int kg_drafter_open(const struct kg_drafter_args *args, struct kg_drafter **drafter,
                               struct kg_error *err);
void kg_drafter_close(struct kg_drafter *drafter); /* NULL is allowed */
void kg_drafter_sizes(const struct kg_drafter *drafter, struct kg_drafter_sizes *sizes);

/*
 * Writes the records of the first n_rows[i] rows of each sequence of the target's last pass, which
 * are committed. `features`: kg_model_features, changed here.
 */
void kg_drafter_inject(struct kg_drafter *drafter, const struct kg_model_units *units,
                       float *features, const struct kg_forward_seq *seqs, const uint32_t *n_rows,
                       uint32_t n_seqs);

/* One sequence that drafts. */
struct kg_draft_seq {
    uint32_t past;         /* committed tokens; the anchor's position */
    uint32_t anchor;       /* token at `past` */
    uint32_t n;            /* drafts wanted, 1..block */
    const uint32_t *pages; /* virtual ids covering past + block tokens; those from page
                              past / page_tokens on are written and hold nothing else */
    uint32_t tail;         /* page that holds the records of the tokens past / page_tokens *
                              page_tokens .. past - 1; not read when there are none */
    uint32_t first; /* pages[past / page_tokens]; on a device only, where the host cannot read
                       pages */
};

/* Runs the block of n_seqs <= max_seqs sequences. */
void kg_drafter_begin(struct kg_drafter *drafter, const struct kg_model_units *units,
                      const struct kg_draft_seq *seqs, uint32_t n_seqs);
/* Draft k, rising from 0, of the sequences whose n is above k: before[i] is the token before it, of
 * sequence i (k = 0: the anchor). Afterwards the two below answer for draft k. On a device it waits
 * for what they answer. */
void kg_drafter_next(struct kg_drafter *drafter, uint32_t k, const uint32_t *before);
/* KG_OK, or KG_EDEVICE once such a wait failed: the device is lost. */
int kg_drafter_lost(const struct kg_drafter *drafter);
/* Logits of draft k of sequence i (vocab), before temperature and filters. */
const float *kg_drafter_logits(const struct kg_drafter *drafter, uint32_t i, uint32_t k);
/*
 * Probability that draft k of sequence i is accepted if those before it are: sigmoid(confidence /
 * temperature + bias), both of the class and of k; 1 without a confidence head, 0 when it is not
 * finite. cls: enum kg_draft_class. Same bits on every machine.
 */
float kg_drafter_confidence(const struct kg_drafter *drafter, uint32_t i, uint32_t k, uint32_t cls);
/* For tests on the host: rows of the last block after the final norm, (hidden): of draft k of
 * sequence i. */
const float *kg_drafter_hidden(const struct kg_drafter *drafter, uint32_t i, uint32_t k);

/*
 * Rotation by position. Rates: radians per token of each of rope_dim / 2 pairs. Angles: cosines and
 * sines of one position, [rope_dim / 2] each, scaled as yarn says. Score scale: what yarn
 * multiplies the scale of attention with; 1 without it.
 */
void kg_rope_rates(const struct kg_rope *rope, uint32_t rope_dim, double *rates);
void kg_rope_angles(const struct kg_rope *rope, uint32_t rope_dim, const double *rates,
                    uint32_t position, float *cosines, float *sines);
float kg_rope_score_scale(const struct kg_rope *rope);

#endif
