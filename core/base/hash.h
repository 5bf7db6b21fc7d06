/* A 64-bit hash of bytes, the same on every machine and in every release: for splitting traffic,
 * tenant names and tables of our own keys. Not for keys an attacker chooses without a seed. */
#ifndef KEDGE_BASE_HASH_H
#define KEDGE_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Mixes 64 bits: a bijection in which each input bit changes about half of the output bits.
 * Constants of Stafford's variant 13 of the MurmurHash3 finaliser, as used by splitmix64. */
static inline uint64_t kg_hash_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* FNV-1a over n bytes, started from the seed and mixed once at the end. */
static inline uint64_t kg_hash_bytes(const void *p, size_t n, uint64_t seed)
{
    const unsigned char *b = (const unsigned char *)p;
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ kg_hash_mix(seed);

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * UINT64_C(0x100000001b3);
    return kg_hash_mix(h);
}

#endif
