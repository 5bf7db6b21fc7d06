#include "bits.h"

#include <string.h>

static uint64_t words_for(uint64_t n)
{
    return (n + 63) / 64;
}

uint64_t bits_words(uint32_t n)
{
    uint64_t total = 0;
    uint64_t words = n;

    do {
        words = words_for(words);
        total += words;
    } while (words > 1);
    return total;
}

void bits_init(struct bits *b, uint32_t n, uint64_t *words)
{
    uint64_t size = n;

    memset(words, 0, bits_words(n) * sizeof(*words));
    b->n_levels = 0;
    do {
        size = words_for(size);
        b->level[b->n_levels++] = words;
        words += size;
    } while (size > 1);
}

void bits_add(struct bits *b, uint32_t i)
{
    for (uint32_t l = 0; l < b->n_levels; l++) {
        uint64_t *word = &b->level[l][i >> 6];
        uint64_t before = *word;
        *word |= UINT64_C(1) << (i & 63);
        if (before != 0)
            return;
        i >>= 6;
    }
}

void bits_remove(struct bits *b, uint32_t i)
{
    for (uint32_t l = 0; l < b->n_levels; l++) {
        uint64_t *word = &b->level[l][i >> 6];
        *word &= ~(UINT64_C(1) << (i & 63));
        if (*word != 0)
            return;
        i >>= 6;
    }
}

int bits_has(const struct bits *b, uint32_t i)
{
    return (int)(b->level[0][i >> 6] >> (i & 63) & 1);
}

uint32_t bits_first(const struct bits *b)
{
    uint32_t i = 0;

    for (uint32_t l = b->n_levels; l-- > 0;) {
        uint64_t word = b->level[l][i];
        if (word == 0)
            return KG_NONE;
        i = i << 6 | (uint32_t)__builtin_ctzll(word);
    }
    return i;
}

uint32_t bits_last(const struct bits *b)
{
    uint32_t i = 0;

    for (uint32_t l = b->n_levels; l-- > 0;) {
        uint64_t word = b->level[l][i];
        if (word == 0)
            return KG_NONE;
        i = i << 6 | (63 - (uint32_t)__builtin_clzll(word));
    }
    return i;
}
