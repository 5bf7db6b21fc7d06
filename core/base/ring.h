/*
 * A bounded ring of variable-length records between exactly one producer thread and one consumer
 * thread, with an eventfd the consumer can sleep on. No locks, no allocation after create.
 *
 * Waking: a peek that finds nothing clears the descriptor, and the next commit makes it readable.
 * A consumer peeks until NULL, then looks at its own flags (kg_ring_wake is sent after a flag is
 * set), then sleeps. The descriptor may be readable without cause, never the other way round.
 */
#ifndef KEDGE_BASE_RING_H
#define KEDGE_BASE_RING_H

#include <kedge/types.h>

struct kg_ring;

/* bytes: room for records and their 8-byte heads, rounded up to a power of two, 256 .. 2^30.
 * KG_EINVAL, KG_ENOMEM, KG_EIO (no descriptor). */
KG_CHECKED int kg_ring_create(size_t bytes, struct kg_ring **ring);
/* Both threads must be done with it. NULL is allowed. */
void kg_ring_destroy(struct kg_ring *ring);

/* --- Producer --- */

/* Largest record that can ever fit. */
size_t kg_ring_max(const struct kg_ring *ring);
/* Largest record that kg_ring_reserve would take now; 0 when it is full. The consumer may ask too
 * while the producer stands still. */
size_t kg_ring_room(const struct kg_ring *ring);
/* n writable bytes, 8-byte aligned, or NULL when there is no room now (or n > kg_ring_max). A
 * second reserve without a commit replaces the first. */
void *kg_ring_reserve(struct kg_ring *ring, size_t n);
/* Publishes the first n bytes of the reserved record, n <= reserved. */
void kg_ring_commit(struct kg_ring *ring, size_t n);
/* reserve + copy + commit; KG_EAGAIN without room, KG_ELIMIT when it can never fit. */
int kg_ring_put(struct kg_ring *ring, const void *record, size_t n);

/* --- Consumer --- */

/* The oldest record, 8-byte aligned, and its bytes; NULL when there is none. Valid until
 * consume. */
const void *kg_ring_peek(struct kg_ring *ring, size_t *n);
/* Drops the record peek returned. */
void kg_ring_consume(struct kg_ring *ring);
/* Readable while a record may wait that no peek has seen. For poll; owned by the ring. */
int kg_ring_fd(const struct kg_ring *ring);
/* Sleeps until a record may wait, or timeout_ms (-1: no limit) passed. Call after an empty peek. */
void kg_ring_wait(struct kg_ring *ring, int timeout_ms);

/* Makes the descriptor readable without a record; any thread. For flags that the consumer looks at
 * between its empty peek and its sleep: a wake that came before that peek is cleared by it. */
void kg_ring_wake(struct kg_ring *ring);

#endif
