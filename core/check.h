/* What a configuration will do, as numbers: gathered once, printed as text or JSON. */
#ifndef KEDGE_CORE_CHECK_H
#define KEDGE_CORE_CHECK_H

#include "stack.h"

#define KG_CHECK_FITS 5

struct kg_check {
    struct kg_config *config; /* not owned */
    struct kg_stack *stack;   /* not owned */
    struct kg_pool_layout layout;
    struct kg_pool_bytes bytes;       /* of the empty pool */
    uint32_t context;                 /* most tokens of a request by model and [engine] */
    uint32_t max_tokens;              /* most tokens of a request that also fit the memory */
    uint64_t page_bytes, state_bytes; /* natural bytes of a unit */
    struct {
        uint32_t tokens, requests; /* so many requests of so many tokens fit at once */
    } fits[KG_CHECK_FITS];         /* falling length; the last ones may be 0, 0 */
    struct kg_buf warnings;        /* a line each, those of the configuration first */
};

/* Fills everything from an open stack. KG_ECONFIG when the pool refuses. */
KG_CHECKED int kg_check_gather(struct kg_check *check, struct kg_config *config,
                               struct kg_stack *stack, struct kg_error *err);
void kg_check_fini(struct kg_check *check);
void kg_check_text(const struct kg_check *check, struct kg_buf *b);
void kg_check_json(const struct kg_check *check, struct kg_buf *b);

#endif
