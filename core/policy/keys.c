#include "policy/keys.h"

#include "base/hash.h"

#include <math.h>
#include <string.h>

#define WAYS 8

struct kg_key *kg_keys_get(struct kg_keys *keys, const char *text, size_t n)
{
    uint64_t hash = kg_hash_bytes(text, n, keys->seed) | 1;
    struct kg_key *set = &keys->keys[(hash >> 1) % (KG_KEYS / WAYS) * WAYS];
    struct kg_key *oldest = set;

    for (struct kg_key *k = set; k < set + WAYS; k++) {
        if (k->hash == hash && k->n == n && memcmp(k->text, text, n) == 0) {
            k->used = ++keys->serial;
            return k;
        }
        if (k->used < oldest->used)
            oldest = k;
    }
    keys->evicted += oldest->hash != 0;
    *oldest =
        (struct kg_key){.hash = hash, .used = ++keys->serial, .ns = UINT64_MAX, .n = (uint32_t)n};
    memcpy(oldest->text, text, n);
    return oldest;
}

double kg_keys_take(struct kg_keys *keys, const char *text, size_t n, uint64_t now_ns, double per_s,
                    double burst, double cost)
{
    struct kg_key *k = kg_keys_get(keys, text, n);

    if (k->ns == UINT64_MAX) {
        k->level = burst;
    } else if (now_ns > k->ns) {
        k->level += (double)(now_ns - k->ns) * 1e-9 * per_s;
    }
    k->ns = now_ns;
    if (k->level > burst)
        k->level = burst;
    if (k->level >= cost) {
        k->level -= cost;
        return 0;
    }
    return cost > burst || per_s == 0 ? (double)INFINITY : (cost - k->level) / per_s;
}
