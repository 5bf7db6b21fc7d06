#include "band.h"

#include <string.h>

static enum class class_of(uint8_t flags) {
    return (flags & PINNED) != 0   ? HELD
           : (flags & CACHED) != 0 ? INDEX
                                   : LIVE;
}

static void set_flags(struct band *b, uint32_t id, uint8_t flags)
{
    b->n_class[class_of(b->flags[id])]--;
    b->n_class[class_of(flags)]++;
    b->flags[id] = flags;
}

/* Every change of a table entry goes through here. */
static void map(struct band *b, uint32_t id, uint32_t slot)
{
    b->table[id] = slot;
    if ((b->flags[id] & DIRTY) == 0) {
        b->flags[id] |= DIRTY;
        b->dirty[b->n_dirty++] = id;
    }
}

static void occupy(struct band *b, uint32_t at, uint32_t id)
{
    bits_remove(&b->free, at);
    bits_add(&b->used, at);
    b->owner[at] = id;
}

static void vacate(struct band *b, uint32_t at)
{
    bits_remove(&b->used, at);
    bits_add(&b->free, at);
    b->owner[at] = KG_NONE;
}

void band_init(struct band *b, uint64_t *free_words, uint64_t *used_words, uint64_t *pinned_words)
{
    bits_init(&b->free, b->n_slots, free_words);
    bits_init(&b->used, b->n_slots, used_words);
    bits_init(&b->pinned, b->n_slots, pinned_words);
    for (uint32_t i = 0; i < b->n_slots; i++) {
        bits_add(&b->free, i);
        b->free_ids[i] = b->n_slots - 1 - i;
    }
    memset(b->table, 0xff, b->n_slots * sizeof(*b->table));
    memset(b->owner, 0xff, b->n_slots * sizeof(*b->owner));
    memset(b->flags, 0, b->n_slots);
    memset(b->n_class, 0, sizeof(b->n_class));
    b->n_used = 0;
    b->n_dirty = 0;
}

uint32_t band_take(struct band *b)
{
    uint32_t id = b->free_ids[b->n_slots - ++b->n_used];
    uint32_t at = bits_first(&b->free);

    occupy(b, at, id);
    map(b, id, band_flip(b, at));
    b->flags[id] |= OWNED | FRESH;
    b->n_class[LIVE]++;
    return id;
}

void band_give(struct band *b, uint32_t id)
{
    vacate(b, band_flip(b, b->table[id]));
    map(b, id, KG_NONE);
    b->n_class[class_of(b->flags[id])]--;
    b->flags[id] = DIRTY;
    b->free_ids[b->n_slots - b->n_used--] = id;
}

int band_may_give(struct band *b, uint32_t n, const uint32_t *ids)
{
    uint32_t seen = 0;

    while (seen < n && band_owns(b, ids[seen]) && (b->flags[ids[seen]] & (PINNED | NAMED)) == 0)
        b->flags[ids[seen++]] |= NAMED;
    for (uint32_t i = 0; i < seen; i++)
        b->flags[ids[i]] &= (uint8_t)~NAMED;
    return seen == n;
}

void band_set_cached(struct band *b, uint32_t id, uint32_t cached)
{
    uint8_t flags = b->flags[id];

    set_flags(b, id, (uint8_t)(cached ? flags | CACHED : flags & ~CACHED));
}

void band_set_pinned(struct band *b, uint32_t id, uint32_t pinned)
{
    uint8_t flags = b->flags[id];
    uint32_t at = band_flip(b, b->table[id]);

    if (pinned)
        bits_add(&b->pinned, at);
    else
        bits_remove(&b->pinned, at);
    set_flags(b, id, (uint8_t)(pinned ? flags | PINNED : flags & ~PINNED));
}

int band_can_shrink(const struct band *b)
{
    uint32_t frontier = band_frontier(b);

    return frontier > b->n_used && frontier > band_floor(b);
}

int band_shrink(struct band *b, struct kg_move *move)
{
    uint32_t from = bits_last(&b->used);
    uint32_t to = bits_first(&b->free);
    uint32_t id = b->owner[from];

    vacate(b, from);
    occupy(b, to, id);
    map(b, id, band_flip(b, to));
    if ((b->flags[id] & FRESH) != 0)
        return 0;
    *move = (struct kg_move){b->kind, band_flip(b, from), band_flip(b, to), id};
    return 1;
}

uint32_t band_report(struct band *b, struct kg_table_change *changes)
{
    uint32_t n = b->n_dirty;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = b->dirty[i];
        b->flags[id] &= (uint8_t) ~(DIRTY | FRESH);
        changes[i] = (struct kg_table_change){b->kind, id, b->table[id]};
    }
    b->n_dirty = 0;
    return n;
}

static int check_position(const struct band *b, uint32_t at, struct kg_error *err)
{
    uint32_t id = b->owner[at];
    int used = id != KG_NONE;

    if (bits_has(&b->used, at) != used || bits_has(&b->free, at) == used)
        return kg_fail(err, KG_EINVAL, "%s position %u: owner %u, bitmaps differ",
                       kg_kind_name(b->kind), at, id);
    if (used && (!band_owns(b, id) || b->table[id] != band_flip(b, at)))
        return kg_fail(err, KG_EINVAL, "%s position %u: owner %u is not mapped here",
                       kg_kind_name(b->kind), at, id);
    if (bits_has(&b->pinned, at) != (used && (b->flags[id] & PINNED) != 0))
        return kg_fail(err, KG_EINVAL, "%s position %u: pin bits differ", kg_kind_name(b->kind),
                       at);
    return KG_OK;
}

int band_check(const struct band *b, struct kg_error *err)
{
    uint32_t n_class[N_CLASSES] = {0};
    uint32_t n_positions = 0, last = KG_NONE;

    for (uint32_t i = 0; i < b->n_slots; i++) {
        int rc = check_position(b, i, err);
        if (rc != KG_OK)
            return rc;
        if (b->owner[i] != KG_NONE) {
            n_positions++;
            last = i;
        }
        if ((b->flags[i] & OWNED) != 0)
            n_class[class_of(b->flags[i])]++;
        else if (b->table[i] != KG_NONE)
            return kg_fail(err, KG_EINVAL, "%s %u is free and mapped", kg_kind_name(b->kind), i);
    }
    if (last != bits_last(&b->used) || n_positions != b->n_used)
        return kg_fail(err, KG_EINVAL, "%ss: %u positions used up to %u, %u and %u kept",
                       kg_kind_name(b->kind), n_positions, last, b->n_used, bits_last(&b->used));
    for (uint32_t c = 0; c < N_CLASSES; c++) {
        if (n_class[c] != b->n_class[c])
            return kg_fail(err, KG_EINVAL, "%ss of class %u: %u counted, %u kept",
                           kg_kind_name(b->kind), c, n_class[c], b->n_class[c]);
    }
    if (n_class[LIVE] + n_class[INDEX] + n_class[HELD] != b->n_used)
        return kg_fail(err, KG_EINVAL, "%ss owned: %u kept, classes differ", kg_kind_name(b->kind),
                       b->n_used);
    for (uint32_t i = 0; i < b->n_slots - b->n_used; i++) {
        if (b->free_ids[i] >= b->n_slots || band_owns(b, b->free_ids[i]))
            return kg_fail(err, KG_EINVAL, "%s %u is in the free list", kg_kind_name(b->kind),
                           b->free_ids[i]);
    }
    return KG_OK;
}
