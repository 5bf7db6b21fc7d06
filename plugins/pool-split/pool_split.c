/*
 * pool-split: the two static designs that engines for hybrid models use.
 *
 *   style = ratio    two arenas, one per kind, sized once at start. A unit is one slot of its
 *                    arena; what one kind does not use the other cannot have.
 *   style = uniform  one arena of equal blocks. A page is one block; a state is spread over
 *                    slots_per_state blocks, any that are free. Pages are inflated and states
 *                    padded until both fill whole blocks (plan.c chooses the block).
 *
 * Both are the same machine: an `area` is a stack of free slots, a kind draws `width` slots per
 * unit from its area, and the kinds have either an area each or one together. Slots of an area are
 * equal, so nothing ever needs to move and every count is exact. Each op is O(units named).
 */
#include "plan.h"

#include <kedge/abi.h>
#include <kedge/pool.h>
#include <string.h>

enum { M_REFUSED, M_NEVER, M_PIN_REFUSED, M_PAGES_PEAK, M_STATES_PEAK, M_BYTES_PEAK };

static const struct kg_metric metrics[] = {
    [M_REFUSED] = {"grants_refused_total", KG_COUNTER,
                   "Grants opened or extended that found no room, in calls."},
    [M_NEVER] = {"grants_never_total", KG_COUNTER,
                 "Grants that an empty pool could not hold, in calls."},
    [M_PIN_REFUSED] = {"pins_refused_total", KG_COUNTER,
                       "Pins refused because an open promise would be left uncovered, in calls."},
    [M_PAGES_PEAK] = {"pages_used_peak", KG_GAUGE, "Most pages ever owned at once, in pages."},
    [M_STATES_PEAK] = {"states_used_peak", KG_GAUGE, "Most states ever owned at once, in states."},
    [M_BYTES_PEAK] = {"used_bytes_peak", KG_GAUGE, "Most bytes ever owned at once, in bytes."},
    {0},
};

static const struct kg_opt options[] = {
    {.name = "style",
     .type = KG_OPT_ENUM,
     .offset = offsetof(struct conf, style),
     .def = "ratio",
     .choices = "ratio|uniform",
     .doc = "ratio: two arenas sized at start. uniform: one list of equal blocks; pages are "
            "inflated until a block holds a set of state parts. Unit: none."},
    {.name = "ratio",
     .type = KG_OPT_F64,
     .offset = offsetof(struct conf, ratio),
     .def = "0.9",
     .min = 0.001,
     .max = 1000,
     .doc = "style = ratio: bytes of states for one byte of pages. Unit: none."},
    {.name = "states",
     .type = KG_OPT_U32,
     .offset = offsetof(struct conf, states),
     .def = "0",
     .min = 0,
     .max = 1048576,
     .doc = "style = ratio: exact number of states; 0 takes it from `ratio`. Unit: states."},
    {.name = "state_blocks",
     .type = KG_OPT_U32,
     .offset = offsetof(struct conf, state_blocks),
     .def = "0",
     .min = 0,
     .max = 65536,
     .doc = "style = uniform: blocks that a state is spread over, at most; 0 chooses the number "
            "that wastes least per sequence (state padding and half a page). Unit: blocks."},
    {0},
};

/* Unit flags; the first three are what classes() shows. */
#define OWNED KG_UNIT_OWNED
#define CACHED KG_UNIT_CACHED
#define PINNED KG_UNIT_PINNED
#define DIRTY 8u  /* its entries changed since moves() */
#define NAMED 16u /* scratch of give: seen in this call */

enum class { LIVE, INDEX, HELD, N_CLASSES };

/* Equal slots that one kind or both draw on. */
struct area {
    uint32_t *free; /* stack, room for n_slots */
    uint8_t *seen;  /* scratch of check() */
    uint32_t n_slots, n_free;
    uint64_t promised; /* slots of open grants that are not taken yet */
};

struct kind {
    struct area *area;
    uint32_t width;     /* slots, and table entries, per unit */
    uint32_t n_units;   /* ids are 0 .. n_units-1 */
    uint64_t natural;   /* bytes of a unit without stride and packing */
    uint32_t *table;    /* id * width + i -> slot */
    uint32_t *free_ids; /* stack of n_units - n_used */
    uint32_t *dirty;    /* ids whose entries changed since moves(), each once */
    uint8_t *flags;     /* per id */
    uint32_t n_used, n_dirty;
    uint32_t n_class[N_CLASSES];
};

struct grant {
    uint32_t left[KG_N_KINDS]; /* promised, not yet taken */
    uint32_t is_open;
    uint32_t next_free; /* while closed */
};

struct kg_pool {
    const struct kg_host *host;
    size_t bytes; /* of this block: the struct and all arrays behind it */
    struct kg_pool_layout layout;
    struct area areas[KG_N_KINDS];
    struct kind kinds[KG_N_KINDS];
    struct grant *grants;
    uint32_t n_grants, free_grant;
    struct kg_table_change *changes;
};

static enum class class_of(uint8_t flags) {
    return (flags & PINNED) != 0   ? HELD
           : (flags & CACHED) != 0 ? INDEX
                                   : LIVE;
}

static void set_flags(struct kind *k, uint32_t id, uint8_t flags)
{
    k->n_class[class_of(k->flags[id])]--;
    k->n_class[class_of(flags)]++;
    k->flags[id] = flags;
}

static int is_owned(const struct kind *k, uint32_t id)
{
    return id < k->n_units && (k->flags[id] & OWNED) != 0;
}

static void mark_dirty(struct kind *k, uint32_t id)
{
    if ((k->flags[id] & DIRTY) == 0) {
        k->flags[id] |= DIRTY;
        k->dirty[k->n_dirty++] = id;
    }
}

static struct grant *grant_of(const struct kg_pool *pool, uint32_t grant)
{
    return grant < pool->n_grants && pool->grants[grant].is_open ? &pool->grants[grant] : NULL;
}

/*
 * Slots missing in `area` once all its promises and `need` are met and `evictable` is evicted.
 * Counts are 32-bit and width is at most 2^16, so sums stay far below 64 bits.
 */
static uint64_t missing(const struct kg_pool *pool, const struct area *area,
                        const uint32_t need[KG_N_KINDS], const uint32_t evictable[KG_N_KINDS])
{
    uint64_t demand = area->promised;
    uint64_t supply = area->n_free;

    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        const struct kind *k = &pool->kinds[i];
        if (k->area != area)
            continue;
        uint32_t known = k->n_class[INDEX];
        demand += (uint64_t)need[i] * k->width;
        supply += (uint64_t)(evictable[i] < known ? evictable[i] : known) * k->width;
    }
    return demand > supply ? demand - supply : 0;
}

static int refuse(const struct kg_pool *pool, uint32_t kind, uint64_t slots,
                  struct kg_shortage *shortage)
{
    const struct area *area = pool->kinds[kind].area;

    *shortage = (struct kg_shortage){.kind = kind, .bytes = slots * pool->layout.stride[kind]};
    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        const struct kind *k = &pool->kinds[i];
        shortage->evict[i] =
            k->area == area ? (uint32_t)((slots + k->width - 1) / k->width) : KG_NONE;
    }
    return KG_EAGAIN;
}

/* KG_OK when all promises and `need` are covered; else *shortage says what is short. */
static int covered(const struct kg_pool *pool, const uint32_t need[KG_N_KINDS],
                   const uint32_t evictable[KG_N_KINDS], struct kg_shortage *shortage)
{
    const uint32_t states_only[KG_N_KINDS] = {[KG_STATE] = need[KG_STATE]};
    const struct area *area = pool->kinds[KG_STATE].area;
    uint32_t kind = missing(pool, area, states_only, evictable) > 0 ? KG_STATE : KG_PAGE;
    uint64_t slots = missing(pool, pool->kinds[kind].area, need, evictable);

    return slots > 0 ? refuse(pool, kind, slots, shortage) : KG_OK;
}

/* True when the pool, empty, could hold these many units. */
static int fits_empty(const struct kg_pool *pool, const uint64_t units[KG_N_KINDS])
{
    for (uint32_t a = 0; a < KG_N_KINDS; a++) {
        uint64_t slots = 0;
        for (uint32_t i = 0; i < KG_N_KINDS; i++) {
            if (pool->kinds[i].area == &pool->areas[a])
                slots += units[i] * pool->kinds[i].width;
        }
        if (slots > pool->areas[a].n_slots)
            return 0;
    }
    return 1;
}

static void promise(struct kg_pool *pool, struct grant *g, const uint32_t need[KG_N_KINDS])
{
    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        g->left[i] += need[i];
        pool->kinds[i].area->promised += (uint64_t)need[i] * pool->kinds[i].width;
    }
}

static int grow_grant(struct kg_pool *pool, struct grant *g, const uint32_t need[KG_N_KINDS],
                      const uint32_t evictable[KG_N_KINDS], struct kg_shortage *shortage)
{
    const uint64_t total[KG_N_KINDS] = {(uint64_t)g->left[0] + need[0],
                                        (uint64_t)g->left[1] + need[1]};

    if (!fits_empty(pool, total)) {
        kg_add(&pool->host->cells[M_NEVER], 1);
        return KG_ENEVER;
    }
    int rc = covered(pool, need, evictable, shortage);
    if (rc != KG_OK) {
        kg_add(&pool->host->cells[M_REFUSED], 1);
        return rc;
    }
    promise(pool, g, need);
    return KG_OK;
}

static int split_grant_open(struct kg_pool *pool, const uint32_t need[KG_N_KINDS],
                            const uint32_t evictable[KG_N_KINDS], uint32_t *grant,
                            struct kg_shortage *shortage)
{
    uint32_t i = pool->free_grant;

    if (i == KG_NONE)
        return KG_ELIMIT;
    struct grant *g = &pool->grants[i];
    int rc = grow_grant(pool, g, need, evictable, shortage);
    if (rc != KG_OK)
        return rc;
    pool->free_grant = g->next_free;
    g->is_open = 1;
    *grant = i;
    return KG_OK;
}

static int split_grant_extend(struct kg_pool *pool, uint32_t grant, const uint32_t more[KG_N_KINDS],
                              const uint32_t evictable[KG_N_KINDS], struct kg_shortage *shortage)
{
    struct grant *g = grant_of(pool, grant);

    return g == NULL ? KG_EINVAL : grow_grant(pool, g, more, evictable, shortage);
}

static void split_grant_close(struct kg_pool *pool, uint32_t grant)
{
    struct grant *g = grant_of(pool, grant);

    if (g == NULL)
        return;
    for (uint32_t i = 0; i < KG_N_KINDS; i++)
        pool->kinds[i].area->promised -= (uint64_t)g->left[i] * pool->kinds[i].width;
    *g = (struct grant){.next_free = pool->free_grant};
    pool->free_grant = grant;
}

static int split_shortfall(const struct kg_pool *pool, uint32_t grant, uint32_t kind, uint32_t n,
                           struct kg_shortage *shortage)
{
    const struct grant *g = grant_of(pool, grant);

    if (g == NULL || kind >= KG_N_KINDS || n > g->left[kind])
        return KG_EINVAL;
    const struct kind *k = &pool->kinds[kind];
    uint64_t slots = (uint64_t)n * k->width;
    return slots > k->area->n_free ? refuse(pool, kind, slots - k->area->n_free, shortage) : KG_OK;
}

static void note_peaks(struct kg_pool *pool)
{
    struct kg_cell *cells = pool->host->cells;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        struct kg_cell *peak = &cells[i == KG_PAGE ? M_PAGES_PEAK : M_STATES_PEAK];
        uint32_t n = pool->kinds[i].n_used;
        bytes += n * pool->layout.unit_bytes[i];
        if (n > kg_get(peak))
            kg_set(peak, n);
    }
    if (bytes > kg_get(&cells[M_BYTES_PEAK]))
        kg_set(&cells[M_BYTES_PEAK], bytes);
}

static int split_take(struct kg_pool *pool, uint32_t grant, uint32_t kind, uint32_t n,
                      uint32_t *ids)
{
    struct kg_shortage unused;
    int rc = split_shortfall(pool, grant, kind, n, &unused);

    if (rc != KG_OK)
        return rc;
    struct kind *k = &pool->kinds[kind];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = k->free_ids[k->n_units - ++k->n_used];
        uint32_t *entry = &k->table[(size_t)id * k->width];
        for (uint32_t j = 0; j < k->width; j++)
            entry[j] = k->area->free[--k->area->n_free];
        mark_dirty(k, id);
        k->flags[id] |= OWNED;
        k->n_class[LIVE]++;
        ids[i] = id;
    }
    k->area->promised -= (uint64_t)n * k->width;
    pool->grants[grant].left[kind] -= n;
    note_peaks(pool);
    return KG_OK;
}

/* All named units are owned, not pinned, and named once? Leaves no trace. */
static int may_give(struct kind *k, uint32_t n, const uint32_t *ids)
{
    uint32_t seen = 0;

    while (seen < n && is_owned(k, ids[seen]) && (k->flags[ids[seen]] & (PINNED | NAMED)) == 0)
        k->flags[ids[seen++]] |= NAMED;
    for (uint32_t i = 0; i < seen; i++)
        k->flags[ids[i]] &= (uint8_t)~NAMED;
    return seen == n;
}

static int split_give(struct kg_pool *pool, uint32_t kind, uint32_t n, const uint32_t *ids)
{
    if (kind >= KG_N_KINDS || !may_give(&pool->kinds[kind], n, ids))
        return KG_EINVAL;
    struct kind *k = &pool->kinds[kind];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t *entry = &k->table[(size_t)ids[i] * k->width];
        for (uint32_t j = k->width; j-- > 0;) {
            k->area->free[k->area->n_free++] = entry[j];
            entry[j] = KG_NONE;
        }
        mark_dirty(k, ids[i]);
        k->n_class[class_of(k->flags[ids[i]])]--;
        k->flags[ids[i]] = DIRTY;
        k->free_ids[k->n_units - k->n_used--] = ids[i];
    }
    return KG_OK;
}

static int split_own(struct kg_pool *pool, uint32_t kind, uint32_t n, const uint32_t *ids,
                     uint32_t cached)
{
    if (kind >= KG_N_KINDS || cached > 1)
        return KG_EINVAL;
    struct kind *k = &pool->kinds[kind];
    for (uint32_t i = 0; i < n; i++) {
        if (!is_owned(k, ids[i]))
            return KG_EINVAL;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint8_t flags = k->flags[ids[i]];
        set_flags(k, ids[i], (uint8_t)(cached ? flags | CACHED : flags & ~CACHED));
    }
    return KG_OK;
}

static int split_pin(struct kg_pool *pool, uint32_t kind, uint32_t id,
                     const uint32_t evictable[KG_N_KINDS])
{
    static const uint32_t nothing[KG_N_KINDS];
    struct kg_shortage unused;

    if (kind >= KG_N_KINDS || !is_owned(&pool->kinds[kind], id))
        return KG_EINVAL;
    struct kind *k = &pool->kinds[kind];
    uint8_t before = k->flags[id];
    if ((before & PINNED) != 0)
        return KG_EINVAL;
    set_flags(k, id, before | PINNED);
    if (covered(pool, nothing, evictable, &unused) != KG_OK) {
        set_flags(k, id, before);
        kg_add(&pool->host->cells[M_PIN_REFUSED], 1);
        return KG_EAGAIN;
    }
    return KG_OK;
}

static int split_unpin(struct kg_pool *pool, uint32_t kind, uint32_t id)
{
    if (kind >= KG_N_KINDS || !is_owned(&pool->kinds[kind], id))
        return KG_EINVAL;
    struct kind *k = &pool->kinds[kind];
    if ((k->flags[id] & PINNED) == 0)
        return KG_EINVAL;
    set_flags(k, id, (uint8_t)(k->flags[id] & ~PINNED));
    return KG_OK;
}

static void split_moves(struct kg_pool *pool, const struct kg_move **moves, uint32_t *n_moves,
                        const struct kg_table_change **changes, uint32_t *n_changes)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        struct kind *k = &pool->kinds[i];
        for (uint32_t d = 0; d < k->n_dirty; d++) {
            uint32_t id = k->dirty[d];
            k->flags[id] &= (uint8_t)~DIRTY;
            for (uint32_t e = id * k->width; e < (id + 1) * k->width; e++)
                pool->changes[n++] = (struct kg_table_change){i, e, k->table[e]};
        }
        k->n_dirty = 0;
    }
    *moves = NULL;
    *n_moves = 0;
    *changes = pool->changes;
    *n_changes = n;
}

static const uint32_t *split_table(const struct kg_pool *pool, uint32_t kind)
{
    return pool->kinds[kind].table;
}

static const uint8_t *split_classes(const struct kg_pool *pool, uint32_t kind)
{
    return pool->kinds[kind].flags;
}

static uint32_t split_n_used(const struct kg_pool *pool, uint32_t kind)
{
    return pool->kinds[kind].n_used;
}

static void split_bytes(const struct kg_pool *pool, struct kg_pool_bytes *bytes)
{
    *bytes = (struct kg_pool_bytes){.arena = pool->layout.arena_bytes};
    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        const struct kind *k = &pool->kinds[i];
        const struct area *a = &pool->areas[i];
        bytes->live[i] = k->n_class[LIVE] * k->natural;
        bytes->cached[i] = k->n_class[INDEX] * k->natural;
        bytes->pinned += k->n_class[HELD] * k->natural;
        bytes->padding += k->n_used * (pool->layout.unit_bytes[i] - k->natural);
        bytes->holes += a->n_free * pool->layout.stride[i];
        bytes->promised += a->promised * pool->layout.stride[i];
    }
}

/* The self-check counts everything again and compares. */

static int check_units(const struct kind *k, uint32_t kind, struct kg_error *err)
{
    uint32_t n_class[N_CLASSES] = {0};

    for (uint32_t id = 0; id < k->n_units; id++) {
        int owned = (k->flags[id] & OWNED) != 0;
        if (owned)
            n_class[class_of(k->flags[id])]++;
        for (uint32_t j = 0; j < k->width; j++) {
            uint32_t slot = k->table[(size_t)id * k->width + j];
            if (owned ? slot >= k->area->n_slots : slot != KG_NONE)
                return kg_fail(err, KG_EINVAL, "%s %u: entry %u holds slot %u", kg_kind_name(kind),
                               id, j, slot);
        }
    }
    for (uint32_t c = 0; c < N_CLASSES; c++) {
        if (n_class[c] != k->n_class[c])
            return kg_fail(err, KG_EINVAL, "%ss of class %u: %u counted, %u kept",
                           kg_kind_name(kind), c, n_class[c], k->n_class[c]);
    }
    if (n_class[LIVE] + n_class[INDEX] + n_class[HELD] != k->n_used)
        return kg_fail(err, KG_EINVAL, "%ss owned: %u kept, classes differ", kg_kind_name(kind),
                       k->n_used);
    for (uint32_t i = 0; i < k->n_units - k->n_used; i++) {
        if (k->free_ids[i] >= k->n_units || is_owned(k, k->free_ids[i]))
            return kg_fail(err, KG_EINVAL, "%s %u is in the free list", kg_kind_name(kind),
                           k->free_ids[i]);
    }
    return KG_OK;
}

static int mark_seen(const struct area *area, uint32_t slot, struct kg_error *err)
{
    if (slot >= area->n_slots || area->seen[slot])
        return kg_fail(err, KG_EINVAL, "slot %u of %u is beyond the area or has two owners", slot,
                       area->n_slots);
    area->seen[slot] = 1;
    return KG_OK;
}

/* Each slot of an area is free once or mapped once; its promises are those of the grants. */
static int check_area(const struct kg_pool *pool, const struct area *area, struct kg_error *err)
{
    uint64_t n = area->n_free, demand = 0;
    int rc = KG_OK;

    memset(area->seen, 0, area->n_slots);
    for (uint32_t i = 0; i < area->n_free && rc == KG_OK; i++)
        rc = mark_seen(area, area->free[i], err);
    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        const struct kind *k = &pool->kinds[i];
        if (k->area != area)
            continue;
        for (uint64_t e = 0; e < (uint64_t)k->n_units * k->width && rc == KG_OK; e++) {
            if (k->table[e] != KG_NONE) {
                rc = mark_seen(area, k->table[e], err);
                n++;
            }
        }
        for (uint32_t g = 0; g < pool->n_grants; g++)
            demand += (uint64_t)pool->grants[g].left[i] * k->width;
    }
    if (rc == KG_OK && n != area->n_slots)
        rc = kg_fail(err, KG_EINVAL, "%llu of %u slots are free or mapped", (unsigned long long)n,
                     area->n_slots);
    if (rc == KG_OK && demand != area->promised)
        rc = kg_fail(err, KG_EINVAL, "%llu slots promised, grants hold %llu",
                     (unsigned long long)area->promised, (unsigned long long)demand);
    return rc;
}

static int split_check(const struct kg_pool *pool, struct kg_error *err)
{
    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        int rc = check_units(&pool->kinds[i], i, err);
        if (rc == KG_OK)
            rc = check_area(pool, &pool->areas[i], err);
        if (rc != KG_OK)
            return rc;
    }
    return KG_OK;
}

/* Room behind the struct is dealt out in order; with base NULL it is only measured. */
struct room {
    char *base;
    uint64_t used;
};

static void *deal(struct room *room, uint64_t n, size_t size)
{
    void *p = room->base != NULL ? room->base + room->used : NULL;

    room->used += (n * size + 15) & ~(uint64_t)15;
    return p;
}

static void deal_arrays(struct kg_pool *pool, struct room *room)
{
    uint64_t n_entries = 0;

    (void)deal(room, 1, sizeof(*pool));
    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        struct kind *k = &pool->kinds[i];
        uint64_t entries = (uint64_t)k->n_units * k->width;
        pool->areas[i].free = deal(room, pool->areas[i].n_slots, sizeof(uint32_t));
        pool->areas[i].seen = deal(room, pool->areas[i].n_slots, sizeof(uint8_t));
        k->table = deal(room, entries, sizeof(uint32_t));
        k->free_ids = deal(room, k->n_units, sizeof(uint32_t));
        k->dirty = deal(room, k->n_units, sizeof(uint32_t));
        k->flags = deal(room, k->n_units, sizeof(uint8_t));
        n_entries += entries;
    }
    pool->grants = deal(room, pool->n_grants, sizeof(struct grant));
    pool->changes = deal(room, n_entries, sizeof(struct kg_table_change));
}

static void fill_arrays(struct kg_pool *pool)
{
    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        struct area *a = &pool->areas[i];
        struct kind *k = &pool->kinds[i];
        for (a->n_free = 0; a->n_free < a->n_slots; a->n_free++)
            a->free[a->n_free] = a->n_slots - 1 - a->n_free;
        for (uint32_t id = 0; id < k->n_units; id++)
            k->free_ids[id] = k->n_units - 1 - id;
        memset(k->table, 0xff, (size_t)k->n_units * k->width * sizeof(uint32_t));
        memset(k->flags, 0, k->n_units);
    }
    for (uint32_t g = 0; g < pool->n_grants; g++)
        pool->grants[g] = (struct grant){.next_free = g + 1 < pool->n_grants ? g + 1 : KG_NONE};
}

static int split_open(const struct kg_host *host, const void *conf, const struct kg_pool_geom *geom,
                      struct kg_pool **pool, struct kg_pool_layout *layout, struct kg_error *err)
{
    struct kg_pool plan = {.host = host};
    uint64_t natural[KG_N_KINDS];
    int rc = plan_arena(conf, geom, &plan.layout, natural, err);

    if (rc != KG_OK)
        return rc;
    plan.n_grants = 8 * geom->max_seqs + 64;
    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        plan.kinds[i].n_units = plan.layout.max_units[i];
        plan.kinds[i].width = i == KG_STATE ? plan.layout.slots_per_state : 1;
        plan.kinds[i].natural = natural[i];
    }
    int shared = (plan.layout.caps & KG_POOL_CAP_SHARED) != 0;
    plan.areas[KG_PAGE].n_slots = plan.layout.max_slots[KG_PAGE];
    plan.areas[KG_STATE].n_slots = shared ? 0 : plan.layout.max_slots[KG_STATE];

    struct room room = {0};
    deal_arrays(&plan, &room);
    char *block = host->alloc(host->ctx, room.used, 64);
    if (block == NULL)
        return kg_fail(err, KG_ENOMEM, "pool-split: no memory for %llu bytes of tables",
                       (unsigned long long)room.used);
    plan.bytes = room.used;
    room = (struct room){.base = block};
    deal_arrays(&plan, &room);

    struct kg_pool *p = (struct kg_pool *)block;
    *p = plan;
    p->kinds[KG_PAGE].area = &p->areas[KG_PAGE];
    p->kinds[KG_STATE].area = &p->areas[shared ? KG_PAGE : KG_STATE];
    fill_arrays(p);
    *layout = p->layout;
    *pool = p;
    return KG_OK;
}

static void split_close(struct kg_pool *pool)
{
    if (pool != NULL)
        pool->host->free(pool->host->ctx, pool, pool->bytes);
}

static const struct kg_pool_ops ops = {
    .size = sizeof(ops),
    .open = split_open,
    .close = split_close,
    .table = split_table,
    .grant_open = split_grant_open,
    .grant_extend = split_grant_extend,
    .grant_close = split_grant_close,
    .shortfall = split_shortfall,
    .take = split_take,
    .give = split_give,
    .own = split_own,
    .pin = split_pin,
    .unpin = split_unpin,
    .moves = split_moves,
    .bytes = split_bytes,
    .n_used = split_n_used,
    .check = split_check,
    .classes = split_classes,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_POOL,
    .size = sizeof(plugin),
    .major = KG_POOL_MAJOR,
    .minor = KG_POOL_MINOR,
    .name = "split",
    .version = KG_VERSION,
    .summary = "static memory: an arena per kind, or one list of equal blocks",
    .caps = KG_POOL_CAP_SHARED,
    .opts = options,
    .conf_size = sizeof(struct conf),
    .metrics = metrics,
    .ops = &ops,
};

KG_EXPORT kg_plugin_entry_fn kg_plugin_entry;

KG_EXPORT const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
