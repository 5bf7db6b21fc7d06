/*
 * What rank 0 tells the others: each call of the exec table as bytes. The same build wrote and
 * reads them, so structs of the ABI go as they are; every count is checked against what is there.
 */
#ifndef KEDGE_RANKS_WIRE_H
#define KEDGE_RANKS_WIRE_H

#include "base/buf.h"

#include <kedge/exec.h>

enum kg_wire_op {
    KG_WIRE_STOP = 1, /* end in good order */
    KG_WIRE_BIND,     /* struct kg_pool_layout */
    KG_WIRE_APPLY,    /* moves, changes */
    KG_WIRE_SUBMIT,   /* a batch; wait follows by itself */
    KG_WIRE_DROP,     /* slots */
    KG_WIRE_COPY,     /* struct kg_wire_unit */
    KG_WIRE_ZERO,
    KG_WIRE_POISON,
    KG_WIRE_PROFILE, /* struct kg_wire_profile */
    KG_WIRE_PROFILE_DRAFT,
    KG_WIRE_DRAFT, /* slots and counts of struct kg_draft */
    KG_WIRE_N,
};

struct kg_wire_unit {
    uint32_t kind, dst, src, reserved;
};

struct kg_wire_profile {
    uint32_t n_seqs, n, context, reserved; /* n: rows, or tokens to draft */
};

/* Two counts in front of two arrays (the second may be empty). */
struct kg_wire_pair {
    uint32_t n, m;
};

/* Appends; KG_ENOMEM or KG_ELIMIT of the buffer. Begin with an empty buffer. */
KG_CHECKED int kg_wire_put(struct kg_buf *b, const void *p, size_t bytes); /* padded to 8 */
KG_CHECKED int kg_wire_put_batch(struct kg_buf *b, const struct kg_batch *batch);

/* A batch read back: pointers are into the bytes it was read from and into `seqs`. */
struct kg_wire_batch {
    struct kg_batch batch;
    struct kg_seq *seqs; /* [max_seqs], the reader's */
    uint32_t max_seqs;
};

/* Reads `p` (8-aligned). KG_EINVAL when lengths do not add up or there are too many sequences. */
KG_CHECKED int kg_wire_get_batch(const void *p, size_t bytes, struct kg_wire_batch *out);
/* Two arrays of n * a and m * b bytes behind a pair. KG_EINVAL as above. */
KG_CHECKED int kg_wire_get_pair(const void *p, size_t bytes, size_t a, size_t b,
                                const struct kg_wire_pair **pair, const void **first,
                                const void **second);

/* What a step came to, as a number: equal on all ranks or they have parted. */
uint64_t kg_wire_sum_result(const struct kg_result *result, uint64_t chain);

#endif
