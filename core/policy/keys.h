/*
 * A bounded table of named numbers: what kg.rate and kg.count remember. Fixed size, no allocation
 * after create; when a set is full the key used longest ago gives way. One thread.
 */
#ifndef KEDGE_POLICY_KEYS_H
#define KEDGE_POLICY_KEYS_H

#include <kedge/types.h>

#define KG_KEY_BYTES 48 /* most of a key */
#define KG_KEYS 2048    /* keys held at most */

struct kg_key {
    uint64_t hash; /* 0: free */
    uint64_t used; /* serial of the last use */
    uint64_t ns;   /* rate: when `level` was right */
    double level;  /* rate: tokens left; count: the value */
    uint32_t n;    /* bytes of text */
    char text[KG_KEY_BYTES];
};

struct kg_keys {
    uint64_t seed, serial;
    uint64_t evicted; /* keys that gave way */
    struct kg_key keys[KG_KEYS];
};

/* All zero but for the seed is an empty table. The entry of a key, made (level 0, ns UINT64_MAX)
 * when it is new. n <= KG_KEY_BYTES. Valid until the next call. */
struct kg_key *kg_keys_get(struct kg_keys *keys, const char *text, size_t n);

/*
 * A token bucket: filled at `per_s` up to `burst`, full when new. Takes `cost` if it is there:
 * returns 0, else the seconds until it will be (infinite when cost > burst or per_s = 0 and it
 * will never be). per_s >= 0, burst > 0, cost >= 0.
 */
double kg_keys_take(struct kg_keys *keys, const char *text, size_t n, uint64_t now_ns, double per_s,
                    double burst, double cost);

#endif
