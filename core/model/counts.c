#include "model/sample.h"

#include <string.h>

static uint32_t n_slots_for(uint32_t max_distinct)
{
    uint32_t n = 2;
    while (n < 2 * max_distinct) {
        n *= 2;
    }
    return n;
}

size_t kg_token_counts_bytes(uint32_t max_distinct)
{
    if (max_distinct == 0 || max_distinct > 1u << 28) {
        return 0;
    }
    return (size_t)n_slots_for(max_distinct) * sizeof(uint32_t) +
           (size_t)max_distinct * sizeof(struct kg_token_count);
}

void kg_token_counts_init(struct kg_token_counts *counts, void *mem, uint32_t max_distinct)
{
    counts->max_distinct = max_distinct;
    counts->n_slots = n_slots_for(max_distinct);
    counts->slots = mem;
    counts->entries = (struct kg_token_count *)(counts->slots + counts->n_slots);
    counts->n = 0;
}

/* Slot of a token: where it is, or the empty one where it would go. */
static uint32_t slot_of(const struct kg_token_counts *counts, uint32_t token)
{
    uint32_t mask = counts->n_slots - 1;
    uint32_t s = token * 0x9e3779b1u;

    s = (s ^ s >> 15) & mask;
    while (counts->slots[s] != 0 && counts->entries[counts->slots[s] - 1].token != token) {
        s = (s + 1) & mask;
    }
    return s;
}

void kg_token_counts_clear(struct kg_token_counts *counts)
{
    /* Last in, first out: a slot found by probing is still reachable when it is emptied. */
    while (counts->n > 0) {
        counts->slots[slot_of(counts, counts->entries[counts->n - 1].token)] = 0;
        counts->n--;
    }
}

int kg_token_counts_add(struct kg_token_counts *counts, uint32_t token, int output)
{
    uint32_t s = slot_of(counts, token);

    if (counts->slots[s] == 0) {
        if (counts->n == counts->max_distinct) {
            return KG_ELIMIT;
        }
        counts->entries[counts->n] = (struct kg_token_count){.token = token};
        counts->slots[s] = ++counts->n;
    }
    struct kg_token_count *e = &counts->entries[counts->slots[s] - 1];
    if (output) {
        e->n_output++;
    } else {
        e->in_prompt = 1;
    }
    return KG_OK;
}

void kg_token_counts_pop(struct kg_token_counts *counts, uint32_t token)
{
    uint32_t s = slot_of(counts, token);

    if (counts->slots[s] == 0) {
        return;
    }
    struct kg_token_count *e = &counts->entries[counts->slots[s] - 1];
    e->n_output -= e->n_output > 0;
    if (e->n_output == 0 && !e->in_prompt && counts->slots[s] == counts->n) {
        counts->slots[s] = 0; /* it came last: nobody was put behind it */
        counts->n--;
    }
}

const struct kg_token_count *kg_token_counts_get(const struct kg_token_counts *counts,
                                                 uint32_t token)
{
    uint32_t s = slot_of(counts, token);

    return counts->slots[s] == 0 ? NULL : &counts->entries[counts->slots[s] - 1];
}
