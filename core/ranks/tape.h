/*
 * A tape in memory that processes share: one writer, some readers, each at its own pace. Records of
 * any length stream through; a writer that is a whole tape ahead of the slowest reader waits. Made
 * before the readers are forked.
 *
 * Each reader answers in a mark: how many records it is done with, and one number about them.
 */
#ifndef KEDGE_RANKS_TAPE_H
#define KEDGE_RANKS_TAPE_H

#include <kedge/types.h>

struct kg_tape;

/* What a wait asks about every 50 ms and before it gives up; KG_OK to go on. */
typedef int kg_tape_hope(void *ctx);

/* `bytes` is a power of two, 4096 at least; 1 .. 63 readers. KG_EINVAL, KG_ENOMEM. */
KG_CHECKED int kg_tape_create(uint64_t bytes, uint32_t readers, struct kg_tape **tape,
                              struct kg_error *err);
void kg_tape_destroy(struct kg_tape *tape); /* of this process; NULL is allowed */

/* Writer: appends a record; returns when all of it is on the tape. What hope() says instead. */
KG_CHECKED int kg_tape_write(struct kg_tape *tape, uint32_t op, const void *p, uint64_t bytes,
                             kg_tape_hope *hope, void *ctx);
/* Writer: waits until a reader is done with all records written so far; *sum is its number. */
KG_CHECKED int kg_tape_await(struct kg_tape *tape, uint32_t reader, uint64_t *sum,
                             kg_tape_hope *hope, void *ctx);

/*
 * Reader: the next record. Its payload goes to *p, which has room for *room bytes, comes from
 * malloc and is made larger when needed (*p may be NULL, *room 0; the caller frees it). KG_ENOMEM,
 * KG_EIO when the bytes are not what was written, or what hope() says.
 */
KG_CHECKED int kg_tape_read(struct kg_tape *tape, uint32_t reader, uint32_t *op, void **p,
                            size_t *room, uint64_t *bytes, kg_tape_hope *hope, void *ctx);
/* Reader: done with the record it read last. */
void kg_tape_done(struct kg_tape *tape, uint32_t reader, uint64_t sum);

#endif
