/*
 * Copies of what a request has computed, pages and state, from one backend to another whose pages
 * hold another number of tokens, whose states lie in other entries, or both. What is copied and
 * where it lies is said by exec.views alone: a page is a token-level cache, a state request-level
 * parts.
 *
 * Units travel through host memory by exec.read and exec.write. Both sides must be between two
 * steps, and the source's units pinned or owned by the caller, while they are copied.
 */
#ifndef KEDGE_ENGINE_TRANSFER_H
#define KEDGE_ENGINE_TRANSFER_H

#include <kedge/exec.h>

struct kg_transfer;

/* A backend that is bound, and the layout it was bound with. Borrowed until close. */
struct kg_side {
    const struct kg_exec_ops *ops;
    struct kg_exec *exec;
    const struct kg_pool_layout *layout;
};

/* Pairs the views of both sides by name, kind and layer. KG_EINVAL with text when a backend has no
 * views, one side has a view the other has not, or type or size of a pair differ; KG_ENOMEM. */
KG_CHECKED int kg_transfer_open(const struct kg_side *from, const struct kg_side *to,
                                struct kg_transfer **transfer, struct kg_error *err);
void kg_transfer_close(struct kg_transfer *transfer); /* NULL is allowed */

/* Copies a state. The rc of read or write, with text. */
KG_CHECKED int kg_transfer_state(struct kg_transfer *transfer, uint32_t from, uint32_t to,
                                 struct kg_error *err);
/*
 * Copies tokens first..end-1 of a sequence. from[] and to[] are its pages on both sides in order,
 * from its first token on; `first` is a multiple of the far side's page_tokens. What is behind
 * `end` in the last page is zero.
 */
KG_CHECKED int kg_transfer_pages(struct kg_transfer *transfer, uint32_t first, uint32_t end,
                                 const uint32_t *from, const uint32_t *to, struct kg_error *err);

#endif
