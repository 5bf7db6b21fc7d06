/*
 * A set of small integers as a bitmap with summaries: a bit of a level tells whether a word of the
 * level below holds any. Add, remove, lowest and highest member cost one word per level, and 2^31
 * members make six levels. Used for free, used and pinned positions of a band.
 */
#ifndef KEDGE_POOL_UNIFIED_BITS_H
#define KEDGE_POOL_UNIFIED_BITS_H

#include <kedge/types.h>

#define BITS_LEVELS 6

struct bits {
    uint64_t *level[BITS_LEVELS]; /* level[0] holds the members; owned by the caller */
    uint32_t n_levels;
};

/* 64-bit words that a set of members 0 .. n-1 needs, all levels together; n in 1 .. 2^31. */
uint64_t bits_words(uint32_t n);

/* Lays an empty set for members 0 .. n-1 into bits_words(n) words. */
void bits_init(struct bits *b, uint32_t n, uint64_t *words);

void bits_add(struct bits *b, uint32_t i);    /* a member may be added again */
void bits_remove(struct bits *b, uint32_t i); /* a non-member may be removed */
int bits_has(const struct bits *b, uint32_t i);

/* Lowest and highest member; KG_NONE of an empty set. */
uint32_t bits_first(const struct bits *b);
uint32_t bits_last(const struct bits *b);

#endif
