/*
 * The arena of a computing backend: bytes laid out by the pool, in the backend's memory, its copy
 * of the pool's tables, and the unit traffic on them. On the host everything runs in the caller's
 * thread, in call order: that is the stream. On a device it is queued in that order.
 *
 * Bytes of a page: one block per MLA layer in layer order, each page_tokens rows of one token's
 * latent and shared key. Bytes of a state: parts in KDA layer order, `parts_per_slot` to an entry.
 */
#ifndef KEDGE_MODEL_RUN_ARENA_H
#define KEDGE_MODEL_RUN_ARENA_H

#include "model/memory.h"

#include "kernels/kernels.h"

#include <kedge/host.h>
#include <kedge/pool.h>

/* Unit sizes the layout must fit; from the model. */
struct kg_run_sizes {
    uint64_t token_bytes;      /* of one token in a page, > 0 */
    uint64_t state_part_bytes; /* of one part, > 0, a multiple of align */
    uint32_t n_state_parts;    /* > 0 */
    uint32_t align;            /* bytes, power of two */
    uint32_t n_spare_pages; /* pages of the backend's own behind the arena, see kg_run_spare_page */
};

struct kg_run_arena {
    const struct kg_host *host;
    const struct kg_memory *memory; /* of bytes; NULL: the host */
    struct kg_run_sizes sizes;
    struct kg_pool_layout layout;
    uint8_t *bytes;               /* [n_bytes], aligned to a huge page */
    uint64_t n_bytes;             /* layout.arena_bytes, and the spare pages behind them */
    uint32_t *table[KG_N_KINDS];  /* [max_units * entries] virtual entry -> slot or KG_NONE; behind
                                     those of KG_PAGE the spare pages */
    uint32_t *pages;              /* table[KG_PAGE], where kernels read it: the same, or its twin on
                                     the device */
    uint32_t entries[KG_N_KINDS]; /* table entries per unit: 1, slots_per_state */
};

/*
 * Checks the layout against the sizes and takes the memory. KG_ECONFIG names the field that does
 * not fit; KG_ENOMEM the bytes wanted. *a is zeroed memory before, closable after in any case.
 */
KG_CHECKED int kg_run_arena_open(struct kg_run_arena *a, const struct kg_host *host,
                                 const struct kg_memory *memory, const struct kg_run_sizes *sizes,
                                 const struct kg_pool_layout *layout, struct kg_error *err);
/* Writes to every page of a host's arena that was just opened, so that the kernel brings them in
 * now and not in the steps that use them first. team may be NULL. */
void kg_run_arena_touch(struct kg_run_arena *a, struct kg_team *team);
/* Frees; a zeroed or half-opened arena is allowed. */
void kg_run_arena_close(struct kg_run_arena *a);

/* Copies moves in order, then sets entries. KG_EINVAL for a number outside the layout: nothing
 * was changed then. */
KG_CHECKED int kg_run_arena_apply(struct kg_run_arena *a, const struct kg_move *moves,
                                  uint32_t n_moves, const struct kg_table_change *changes,
                                  uint32_t n_changes);

/* 1 when the id exists and all its entries are mapped. */
int kg_run_unit_is_mapped(const struct kg_run_arena *a, uint32_t kind, uint32_t id);
/* Address of table entry `entry` of a mapped unit. */
uint8_t *kg_run_unit_at(const struct kg_run_arena *a, uint32_t kind, uint32_t id, uint32_t entry);
/* Id of the backend's own page `i` < n_spare_pages: mapped, and outside the pool's numbers. */
uint32_t kg_run_spare_page(const struct kg_run_arena *a, uint32_t i);
/* Natural bytes of a unit: page_tokens * token_bytes, or parts * part bytes. */
uint64_t kg_run_unit_bytes(const struct kg_run_arena *a, uint32_t kind);

/* Unit traffic; KG_EINVAL for an unmapped unit or a wrong n, KG_EDEVICE from read on a device that
 * is lost. */
KG_CHECKED int kg_run_unit_copy(struct kg_run_arena *a, uint32_t kind, uint32_t dst, uint32_t src);
KG_CHECKED int kg_run_unit_fill(struct kg_run_arena *a, uint32_t kind, uint32_t id, uint8_t byte);
KG_CHECKED int kg_run_unit_read(const struct kg_run_arena *a, uint32_t kind, uint32_t id, void *dst,
                                uint64_t n);
KG_CHECKED int kg_run_unit_write(struct kg_run_arena *a, uint32_t kind, uint32_t id,
                                 const void *src, uint64_t n);

#endif
