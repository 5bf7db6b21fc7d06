/*
 * Weights of a checkpoint brought into the layout of the kernels. Packing runs twice over the same
 * list: first with mem NULL to add up bytes, then for real, so the plan and the work cannot
 * disagree. Internal to core/model.
 */
#ifndef KEDGE_MODEL_PACK_H
#define KEDGE_MODEL_PACK_H

#include "model/forward.h"

struct kg_packer {
    const struct kg_host *host;
    struct kg_team *team;
    uint8_t *mem; /* NULL: plan */
    uint64_t at;
    int rc; /* the first error stays; pointers are not to be used then */
    /* The rest with memory of a device only: the block is written through a window on the host. */
    const struct kg_memory *memory;
    uint8_t *window;
    uint64_t window_bytes, window_at; /* window_at: place in the block of its first byte */
    uint64_t largest;                 /* room so far: what the window must hold */
    uint8_t *lists;                   /* host block */
    uint64_t lists_at;
    /* What the kernels make of a complete matrix in host memory; NULL: it stays as it is. */
    void (*prepare)(struct kg_team *team, struct kg_weight *w);
    uint64_t zero_bytes; /* so far, of what a tensor has nothing for: padding */
};

/* What packing the weights of m->split and m->c takes, and how much of it is padding; nothing is
 * written but m->layers and other pointers of m, so give it a copy. */
KG_CHECKED int kg_model_pack_plan(struct kg_model *m, const struct kg_ckpt *ckpt, uint64_t *bytes,
                                  uint64_t *zero_bytes);
/* With a device, between planning and packing: takes the window and the block of lists, of
 * *list_bytes, which is zeroed and the caller's (p->lists). KG_ENOMEM names the bytes. */
KG_CHECKED int kg_pack_host(struct kg_packer *p, uint64_t *list_bytes, struct kg_error *err);
/* With a device, behind the packing: the rest is sent, and there. The window is freed in any case.
 */
KG_CHECKED int kg_pack_end(struct kg_packer *p, struct kg_error *err);
/* `bytes` of the block to be written now, 64-aligned; NULL while planning. Good until the next
 * room, or, without a device, for ever. */
void *kg_pack_room(struct kg_packer *p, uint64_t bytes);
/* Where what was written to `room`, the last, will lie: the address for the kernels. */
void *kg_pack_place(const struct kg_packer *p, void *room);
/* Host memory that stays; NULL while planning. */
void *kg_pack_list(struct kg_packer *p, uint64_t bytes);
/* A small tensor as floats; NULL for a tensor the model does not have, and while planning. */
float *kg_pack_vector(struct kg_packer *p, const struct kg_tensor *t);
/* A table of rows as they are, for lookups: of a host where the checkpoint has them. F16 becomes
 * floats. */
void kg_pack_table(struct kg_packer *p, struct kg_tensor *to, const struct kg_tensor *t);
/* The same as kg_pack_vector for elements first .. first + n - 1; zero beyond the end of the
 * tensor. */
float *kg_pack_vector_part(struct kg_packer *p, const struct kg_tensor *t, uint32_t first,
                           uint32_t n);
/* The (out, in) matrix whose first element is t[row0][col0]; zero beyond the end of the tensor. */
struct kg_block {
    uint32_t row0, col0, out, in;
};
void kg_pack_part(struct kg_packer *p, struct kg_weight *w, const struct kg_tensor *t,
                  const struct kg_block *b);
/* A matrix in its own type; one the model does not have is left alone. */
void kg_pack_matrix(struct kg_packer *p, struct kg_weight *w, const struct kg_tensor *t);
void kg_pack_mlp(struct kg_packer *p, struct kg_w_mlp *w, const struct kg_ckpt_mlp *t);
/* `c`: the sizes of an MLA layer; its heads are those of the tensors from head0 on. */
void kg_pack_mla(struct kg_packer *p, const struct kg_model_config *c, uint32_t head0,
                 struct kg_w_mla *w, const struct kg_ckpt_mla *t);

#endif
