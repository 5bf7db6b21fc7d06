/*
 * A bump arena: memory of one request or one step, freed all at once. Not thread-safe. Blocks are
 * kept over a reset, so a step that has reached its usual size allocates nothing.
 */
#ifndef KEDGE_BASE_ARENA_H
#define KEDGE_BASE_ARENA_H

#include <kedge/types.h>

struct kg_arena_block; /* private */

struct kg_arena {
    struct kg_arena_block *first, *last; /* owned; blocks after `last` are empty */
    size_t used_bytes;                   /* handed out since the last reset, padding included */
    size_t held_bytes;                   /* taken from the machine */
    size_t max_bytes;                    /* held_bytes may not pass it */
    size_t block_bytes;                  /* size of a normal block */
};

/* block_bytes: taken from the machine at a time (0: 4096). max_bytes: the cap (0: none). */
void kg_arena_init(struct kg_arena *a, size_t block_bytes, size_t max_bytes);
/* Frees everything. */
void kg_arena_fini(struct kg_arena *a);
/* Forgets all allocations, keeps the blocks. */
void kg_arena_reset(struct kg_arena *a);

/* `bytes` uninitialised, aligned to `align` (a power of two <= 64; 0: 16). NULL past the cap or
 * without memory. Valid until reset or fini. */
void *kg_arena_alloc(struct kg_arena *a, size_t bytes, size_t align);
/* Zeroed array of n elements; NULL also when n * size overflows. */
void *kg_arena_zalloc(struct kg_arena *a, size_t n, size_t size);
/* A copy of n bytes with a NUL behind them. */
char *kg_arena_strndup(struct kg_arena *a, const char *s, size_t n);

#endif
