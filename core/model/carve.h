/*
 * Arrays of one block. A list of kg_carve calls runs twice: first with mem NULL, which adds up the bytes
 * in `at`, then over the block, which hands the arrays out in the same places.
 */
#ifndef KEDGE_MODEL_CARVE_H
#define KEDGE_MODEL_CARVE_H

#include <stddef.h>
#include <stdint.h>

struct kg_carver {
    uint8_t *mem;   /* the block, aligned to `align`; its owner's. NULL: only adds up */
    uint64_t at;    /* bytes taken so far, a multiple of align */
    uint64_t align; /* of every array, bytes: 64 on the host, 256 on a device; not 0 */
};

/* n elements of `bytes` each, not cleared; NULL while adding up. */
static inline void *kg_carve(struct kg_carver *c, uint64_t n, size_t bytes)
{
    void *p = c->mem == NULL ? NULL : c->mem + c->at;

    c->at += (n * bytes + c->align - 1) / c->align * c->align;
    return p;
}

#endif
