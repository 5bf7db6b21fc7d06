/*
 * A naive, byte-exact model of an arena and of the backend that owns its bytes. It keeps a shadow
 * arena where each unit's slots are filled with the unit's own tag, applies moves and table
 * changes exactly as exec.apply must, poisons what is given back, and answers by counting and
 * placing units one by one what the pool answers by arithmetic.
 */
#ifndef KEDGE_TESTS_PROPERTY_POOL_MODEL_H
#define KEDGE_TESTS_PROPERTY_POOL_MODEL_H

#include "rig.h"

struct model_unit {
    uint8_t owned;
    uint8_t cached; /* belongs to the index */
    uint8_t locked; /* cached, but the index may not evict it now */
    uint8_t pinned;
    uint8_t written; /* the backend has put bytes there */
    uint32_t tag;    /* what its bytes say */
};

struct model {
    struct rig *rig;                      /* the open pool; not owned */
    struct model_unit *units[KG_N_KINDS]; /* by id */
    uint32_t *table[KG_N_KINDS];          /* the backend's copy, built from changes alone */
    uint8_t *arena;                       /* layout.arena_bytes */
    uint8_t *cover;                       /* scratch: bytes that belong to a unit */
    uint64_t rest;                        /* padding of the empty pool */
    uint32_t last_tag;
    uint64_t n_moves, moved_bytes, n_syncs; /* totals */
};

/* Each of these ends the test with a message when the pool and the model differ. */

void model_open(struct model *m, struct rig *rig);
/* The pool must be empty: nothing owned, everything free. */
void model_close(struct model *m);

/* Units just taken: must have been free; they have no bytes yet. */
void model_take(struct model *m, uint32_t kind, uint32_t n, const uint32_t *ids);
/* Units just given back: poisoned where the backend knows them. */
void model_give(struct model *m, uint32_t kind, uint32_t n, const uint32_t *ids);

/* Reads moves() and applies it, writes new units, compares all bytes and the tables. */
void model_sync(struct model *m);

/* Compares counts, classes and sums with the pool's; promised: units per kind. O(units). */
void model_compare(const struct model *m, const uint64_t promised[KG_N_KINDS]);

/* No byte has two units; then poisons every byte that has none. O(arena). */
void model_poison_rest(struct model *m);

/* Units that may be evicted: cached, neither locked nor pinned. Their number. */
int model_is_evictable(const struct model *m, uint32_t kind, uint32_t id);
uint32_t model_n_evictable(const struct model *m, uint32_t kind);
uint32_t model_n_owned(const struct model *m, uint32_t kind);

/*
 * The oracle: could n[kind] units of each kind be in the arena at once, those that are pinned now
 * staying where they are and all others anywhere the pool may put them?
 */
int model_fits(const struct model *m, const uint64_t n[KG_N_KINDS]);

/* Most moves that taking n units of a kind may cost. 0 where units never move. */
uint64_t model_move_bound(const struct model *m, uint32_t kind, uint32_t n);

/* Ends the test with a message (cmocka fail). */
__attribute__((format(printf, 2, 3))) void model_must(int cond, const char *fmt, ...);

#endif
