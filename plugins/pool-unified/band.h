/*
 * A band: the units of one kind at one end of the arena. Positions count from the band's own end,
 * 0 .. n_slots-1, so that both ends look the same; only the slot number in the table differs.
 *
 *   end                 frontier
 *    | u u . u P . u u |   gap ...        u used, P used and pinned, . hole
 *
 * New units take the lowest free position: a hole if there is one, else the frontier moves on. A
 * band gives room to its neighbour by moving its topmost unit into its lowest hole.
 */
#ifndef KEDGE_POOL_UNIFIED_BAND_H
#define KEDGE_POOL_UNIFIED_BAND_H

#include "bits.h"

#include <kedge/pool.h>

/* Unit flags; the first three are what classes() shows. */
#define OWNED KG_UNIT_OWNED
#define CACHED KG_UNIT_CACHED
#define PINNED KG_UNIT_PINNED
#define DIRTY 8u  /* its table entry changed since the last report */
#define FRESH 16u /* taken since the last report: it has no bytes yet */
#define NAMED 32u /* scratch of give: seen in this call */

enum class { LIVE, INDEX, HELD, N_CLASSES };

struct band {
    uint32_t kind;      /* enum kg_kind, for reports */
    uint32_t from_top;  /* slots count down from the high end of the arena */
    uint32_t n_slots;   /* positions, and ids: both 0 .. n_slots-1 */
    uint64_t stride;    /* bytes of a position */
    uint64_t natural;   /* bytes of a unit, <= stride */
    struct bits free;   /* positions without a unit, beyond the frontier too */
    struct bits used;   /* positions with one */
    struct bits pinned; /* positions whose unit is pinned */
    uint32_t *table;    /* id -> slot, KG_NONE unmapped */
    uint32_t *owner;    /* position -> id, KG_NONE free */
    uint32_t *free_ids; /* stack of n_slots - n_used */
    uint32_t *dirty;    /* ids whose entry changed since the last report, each once */
    uint8_t *flags;     /* per id */
    uint32_t n_used, n_dirty;
    uint32_t n_class[N_CLASSES];
};

/* Position <-> slot: the same formula both ways. */
static inline uint32_t band_flip(const struct band *b, uint32_t at)
{
    return b->from_top ? b->n_slots - 1 - at : at;
}

static inline int band_owns(const struct band *b, uint32_t id)
{
    return id < b->n_slots && (b->flags[id] & OWNED) != 0;
}

/* Positions up to and including the topmost unit; pinned: the topmost pinned one. */
static inline uint32_t band_frontier(const struct band *b)
{
    return bits_last(&b->used) + 1; /* KG_NONE + 1 is 0 */
}

static inline uint32_t band_floor(const struct band *b)
{
    return bits_last(&b->pinned) + 1;
}

/* Empties the band; its arrays are in place. */
void band_init(struct band *b, uint64_t *free_words, uint64_t *used_words, uint64_t *pinned_words);

/* A new live unit on the lowest free position; its id. The caller knows that there is one. */
uint32_t band_take(struct band *b);

/* Takes back a unit that is owned and not pinned. */
void band_give(struct band *b, uint32_t id);

/* True when the units are owned, not pinned, and each named once. */
int band_may_give(struct band *b, uint32_t n, const uint32_t *ids);

/* Sets the owner class bits of an owned unit. */
void band_set_cached(struct band *b, uint32_t id, uint32_t cached);
void band_set_pinned(struct band *b, uint32_t id, uint32_t pinned);

/* True when the topmost unit may move to a hole below it. */
int band_can_shrink(const struct band *b);

/*
 * Moves the topmost unit to the lowest hole; only when band_can_shrink. Returns 1 and sets *move
 * when bytes have to be copied, 0 when the unit has none yet.
 */
int band_shrink(struct band *b, struct kg_move *move);

/* Writes the changed entries and forgets them; at most n_slots. Returns their number. */
uint32_t band_report(struct band *b, struct kg_table_change *changes);

/* Counts everything again: KG_OK, or KG_EINVAL with what differs. */
int band_check(const struct band *b, struct kg_error *err);

#endif
