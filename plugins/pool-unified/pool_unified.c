/*
 * pool-unified: one arena for both kinds. States fill it from the low end, pages from the high
 * end, each at its natural size, and the gap between them belongs to whoever needs it next.
 *
 *   0                                                                         arena_bytes
 *   | state 0 | state 1 | . | state 3 |        gap        | page | . | page | page |
 *
 * A take uses the band's own holes, then the gap. When the gap is too small, the *neighbour* gives
 * room: its topmost units move into its own holes (packing one's own band would trade a hole for
 * as much gap and win nothing). So room counts in bytes after compaction, and whether `n` units of
 * each kind fit is one sum:
 *
 *     max(n_states, floor_states) * state + max(n_pages, floor_pages) * page <= arena
 *
 * where floor is the position above the topmost pinned unit of a band: it cannot move, so neither
 * can the frontier pass it. Every promise is checked against this sum, and since every take,
 * eviction and give changes both sides alike, a promise once given stays covered.
 *
 * A take is O(units + moves), everything else O(units named); the bitmaps cost one word per level.
 */
#include "band.h"

#include <inttypes.h>
#include <kedge/abi.h>
#include <kedge/pool.h>

/* Far above any arena; sums of a few such still fit 64 bits. */
#define TOO_MUCH (UINT64_C(1) << 60)

struct conf {
    uint32_t idle_moves; /* most units one idle compaction moves */
};

enum {
    M_MOVES,
    M_MOVED_BYTES,
    M_URGENT,
    M_IDLE,
    M_REFUSED,
    M_NEVER,
    M_PIN_REFUSED,
    M_PAGES_PEAK,
    M_STATES_PEAK,
    M_BYTES_PEAK
};

static const struct kg_metric metrics[] = {
    [M_MOVES] = {"relocations_total", KG_COUNTER,
                 "Units whose bytes were copied to another slot, in units."},
    [M_MOVED_BYTES] = {"relocated_bytes_total", KG_COUNTER, "Bytes so copied, in bytes."},
    [M_URGENT] = {"urgent_compactions_total", KG_COUNTER,
                  "Takes that had to move units of the other kind, in calls."},
    [M_IDLE] = {"idle_compactions_total", KG_COUNTER,
                "Idle compactions that moved a unit, in calls."},
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
    {.name = "idle_moves",
     .type = KG_OPT_U32,
     .offset = offsetof(struct conf, idle_moves),
     .def = "64",
     .min = 0,
     .max = 1048576,
     .doc = "Most units that one idle compaction moves; 0 compacts only when a request needs the "
            "room. Unit: units."},
    {0},
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
    struct band bands[KG_N_KINDS];
    uint64_t promised[KG_N_KINDS]; /* units of open grants that are not taken yet */
    struct grant *grants;
    uint32_t n_grants, free_grant;
    uint32_t idle_moves;
    /*
     * Since the last moves(). A band records at most n_slots: a move lowers the topmost position
     * that holds bytes, and a unit taken meanwhile has none, so it never raises it.
     */
    struct kg_move *moves;
    uint32_t n_moves;
    struct kg_table_change *changes;
};

static struct grant *grant_of(const struct kg_pool *pool, uint32_t grant)
{
    return grant < pool->n_grants && pool->grants[grant].is_open ? &pool->grants[grant] : NULL;
}

/* Bytes that n units of a band take from its end to its frontier, holes closed. */
static uint64_t packed(const struct band *b, uint64_t n)
{
    uint64_t floor = band_floor(b);

    return (n > floor ? n : floor) * b->stride;
}

/* Bytes that are missing for n[kind] units of each kind, after compaction. */
static uint64_t missing(const struct kg_pool *pool, const uint64_t n[KG_N_KINDS])
{
    uint64_t bytes =
        packed(&pool->bands[KG_PAGE], n[KG_PAGE]) + packed(&pool->bands[KG_STATE], n[KG_STATE]);

    return bytes > pool->layout.arena_bytes ? bytes - pool->layout.arena_bytes : 0;
}

/* Least number of units of `kind` to take off n so that it fits; KG_NONE if none will do. */
static uint32_t evictions(const struct kg_pool *pool, uint32_t kind, const uint64_t n[KG_N_KINDS])
{
    const struct band *b = &pool->bands[kind];
    uint64_t other = packed(&pool->bands[!kind], n[!kind]);

    if (other > pool->layout.arena_bytes)
        return KG_NONE;
    uint64_t fit = (pool->layout.arena_bytes - other) / b->stride;
    if (fit < band_floor(b))
        return KG_NONE;
    return n[kind] > fit ? (uint32_t)(n[kind] - fit) : 0;
}

static int refuse(const struct kg_pool *pool, uint32_t kind, const uint64_t n[KG_N_KINDS],
                  struct kg_shortage *shortage)
{
    *shortage = (struct kg_shortage){
        .kind = kind,
        .bytes = missing(pool, n),
        .evict = {evictions(pool, 0, n), evictions(pool, 1, n)},
    };
    return KG_EAGAIN;
}

/* KG_OK when all promises and `need` are covered; else *shortage says what is short. */
static int covered(const struct kg_pool *pool, const uint32_t need[KG_N_KINDS],
                   const uint32_t evictable[KG_N_KINDS], struct kg_shortage *shortage)
{
    uint64_t n[KG_N_KINDS], states_only[KG_N_KINDS];

    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        const struct band *b = &pool->bands[i];
        uint32_t known = b->n_class[INDEX];
        n[i] = b->n_used - (evictable[i] < known ? evictable[i] : known) + pool->promised[i];
        states_only[i] = n[i] + (i == KG_STATE ? need[i] : 0);
        n[i] += need[i];
    }
    if (missing(pool, n) == 0)
        return KG_OK;
    return refuse(pool, missing(pool, states_only) > 0 ? KG_STATE : KG_PAGE, n, shortage);
}

static int fits_empty(const struct kg_pool *pool, const uint64_t units[KG_N_KINDS])
{
    const struct band *pages = &pool->bands[KG_PAGE], *states = &pool->bands[KG_STATE];

    return units[KG_PAGE] <= pages->n_slots && units[KG_STATE] <= states->n_slots &&
           units[KG_PAGE] * pages->stride + units[KG_STATE] * states->stride <=
               pool->layout.arena_bytes;
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
    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        g->left[i] += need[i];
        pool->promised[i] += need[i];
    }
    return KG_OK;
}

static int unified_grant_open(struct kg_pool *pool, const uint32_t need[KG_N_KINDS],
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

static int unified_grant_extend(struct kg_pool *pool, uint32_t grant,
                                const uint32_t more[KG_N_KINDS],
                                const uint32_t evictable[KG_N_KINDS], struct kg_shortage *shortage)
{
    struct grant *g = grant_of(pool, grant);

    return g == NULL ? KG_EINVAL : grow_grant(pool, g, more, evictable, shortage);
}

static void unified_grant_close(struct kg_pool *pool, uint32_t grant)
{
    struct grant *g = grant_of(pool, grant);

    if (g == NULL)
        return;
    for (uint32_t i = 0; i < KG_N_KINDS; i++)
        pool->promised[i] -= g->left[i];
    *g = (struct grant){.next_free = pool->free_grant};
    pool->free_grant = grant;
}

static int unified_shortfall(const struct kg_pool *pool, uint32_t grant, uint32_t kind, uint32_t n,
                             struct kg_shortage *shortage)
{
    const struct grant *g = grant_of(pool, grant);

    if (g == NULL || kind >= KG_N_KINDS || n > g->left[kind])
        return KG_EINVAL;
    uint64_t units[KG_N_KINDS] = {pool->bands[0].n_used, pool->bands[1].n_used};
    units[kind] += n;
    return missing(pool, units) > 0 ? refuse(pool, kind, units, shortage) : KG_OK;
}

static void shrink(struct kg_pool *pool, struct band *b)
{
    if (band_shrink(b, &pool->moves[pool->n_moves])) {
        pool->n_moves++;
        kg_add(&pool->host->cells[M_MOVES], 1);
        kg_add(&pool->host->cells[M_MOVED_BYTES], b->stride);
    }
}

/*
 * Urgent compaction: opens the gap for n more units of `kind`, which are known to fit once the
 * neighbour is packed. Each move gives back at least one of the neighbour's units, so there are
 * at most ceil(missing bytes / its unit bytes).
 */
static void make_room(struct kg_pool *pool, uint32_t kind, uint32_t n)
{
    const struct band *b = &pool->bands[kind];
    struct band *neighbour = &pool->bands[!kind];
    uint32_t n_moves = 0;

    /* With own holes for all n the neighbour is within this already. */
    uint64_t room = pool->layout.arena_bytes - ((uint64_t)b->n_used + n) * b->stride;
    for (; band_frontier(neighbour) * neighbour->stride > room; n_moves++)
        shrink(pool, neighbour);
    if (n_moves > 0)
        kg_add(&pool->host->cells[M_URGENT], 1);
}

static void note_peaks(struct kg_pool *pool)
{
    struct kg_cell *cells = pool->host->cells;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        struct kg_cell *peak = &cells[i == KG_PAGE ? M_PAGES_PEAK : M_STATES_PEAK];
        uint32_t n = pool->bands[i].n_used;
        bytes += n * pool->bands[i].stride;
        if (n > kg_get(peak))
            kg_set(peak, n);
    }
    if (bytes > kg_get(&cells[M_BYTES_PEAK]))
        kg_set(&cells[M_BYTES_PEAK], bytes);
}

static int unified_take(struct kg_pool *pool, uint32_t grant, uint32_t kind, uint32_t n,
                        uint32_t *ids)
{
    struct kg_shortage unused;
    int rc = unified_shortfall(pool, grant, kind, n, &unused);

    if (rc != KG_OK || n == 0)
        return rc;
    make_room(pool, kind, n);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = band_take(&pool->bands[kind]);
    pool->promised[kind] -= n;
    pool->grants[grant].left[kind] -= n;
    note_peaks(pool);
    return KG_OK;
}

static int unified_give(struct kg_pool *pool, uint32_t kind, uint32_t n, const uint32_t *ids)
{
    if (kind >= KG_N_KINDS || !band_may_give(&pool->bands[kind], n, ids))
        return KG_EINVAL;
    for (uint32_t i = 0; i < n; i++)
        band_give(&pool->bands[kind], ids[i]);
    return KG_OK;
}

static int unified_own(struct kg_pool *pool, uint32_t kind, uint32_t n, const uint32_t *ids,
                       uint32_t cached)
{
    if (kind >= KG_N_KINDS || cached > 1)
        return KG_EINVAL;
    for (uint32_t i = 0; i < n; i++) {
        if (!band_owns(&pool->bands[kind], ids[i]))
            return KG_EINVAL;
    }
    for (uint32_t i = 0; i < n; i++)
        band_set_cached(&pool->bands[kind], ids[i], cached);
    return KG_OK;
}

static int unified_pin(struct kg_pool *pool, uint32_t kind, uint32_t id,
                       const uint32_t evictable[KG_N_KINDS])
{
    static const uint32_t nothing[KG_N_KINDS];
    struct kg_shortage unused;

    if (kind >= KG_N_KINDS || !band_owns(&pool->bands[kind], id) ||
        (pool->bands[kind].flags[id] & PINNED) != 0)
        return KG_EINVAL;
    band_set_pinned(&pool->bands[kind], id, 1);
    if (covered(pool, nothing, evictable, &unused) == KG_OK)
        return KG_OK;
    band_set_pinned(&pool->bands[kind], id, 0);
    kg_add(&pool->host->cells[M_PIN_REFUSED], 1);
    return KG_EAGAIN;
}

static int unified_unpin(struct kg_pool *pool, uint32_t kind, uint32_t id)
{
    if (kind >= KG_N_KINDS || !band_owns(&pool->bands[kind], id) ||
        (pool->bands[kind].flags[id] & PINNED) == 0)
        return KG_EINVAL;
    band_set_pinned(&pool->bands[kind], id, 0);
    return KG_OK;
}

static void unified_moves(struct kg_pool *pool, const struct kg_move **moves, uint32_t *n_moves,
                          const struct kg_table_change **changes, uint32_t *n_changes)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < KG_N_KINDS; i++)
        n += band_report(&pool->bands[i], pool->changes + n);
    *moves = pool->moves;
    *n_moves = pool->n_moves;
    *changes = pool->changes;
    *n_changes = n;
    pool->n_moves = 0;
}

static const uint32_t *unified_table(const struct kg_pool *pool, uint32_t kind)
{
    return pool->bands[kind].table;
}

static const uint8_t *unified_classes(const struct kg_pool *pool, uint32_t kind)
{
    return pool->bands[kind].flags;
}

static uint32_t unified_n_used(const struct kg_pool *pool, uint32_t kind)
{
    return pool->bands[kind].n_used;
}

static void unified_bytes(const struct kg_pool *pool, struct kg_pool_bytes *bytes)
{
    *bytes =
        (struct kg_pool_bytes){.arena = pool->layout.arena_bytes, .gap = pool->layout.arena_bytes};
    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        const struct band *b = &pool->bands[i];
        uint32_t frontier = band_frontier(b);
        bytes->live[i] = b->n_class[LIVE] * b->natural;
        bytes->cached[i] = b->n_class[INDEX] * b->natural;
        bytes->pinned += b->n_class[HELD] * b->natural;
        bytes->padding += b->n_used * (b->stride - b->natural);
        bytes->holes += (frontier - b->n_used) * b->stride;
        bytes->gap -= frontier * b->stride;
        bytes->promised += pool->promised[i] * b->stride;
    }
}

static uint32_t unified_loose(const struct kg_pool *pool, uint32_t kind)
{
    const struct band *b = &pool->bands[kind], *neighbour = &pool->bands[!kind];

    uint64_t room = pool->layout.arena_bytes - band_frontier(neighbour) * neighbour->stride;
    return (uint32_t)(room / b->stride) - b->n_used;
}

static int unified_check(const struct kg_pool *pool, struct kg_error *err)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        const struct band *b = &pool->bands[i];
        uint64_t promised = 0;
        int rc = band_check(b, err);
        if (rc != KG_OK)
            return rc;
        for (uint32_t g = 0; g < pool->n_grants; g++)
            promised += pool->grants[g].left[i];
        if (promised != pool->promised[i])
            return kg_fail(err, KG_EINVAL, "%" PRIu64 " %ss promised, grants hold %" PRIu64,
                           pool->promised[i], kg_kind_name(i), promised);
        bytes += band_frontier(b) * b->stride;
    }
    if (bytes > pool->layout.arena_bytes)
        return kg_fail(err, KG_EINVAL, "the bands overlap: %" PRIu64 " bytes of %" PRIu64, bytes,
                       pool->layout.arena_bytes);
    return KG_OK;
}

/* Idle compaction: the band with more bytes in holes first, topmost unit by topmost unit. */
static int unified_compact(struct kg_pool *pool, uint32_t max_moves)
{
    uint32_t most = max_moves < pool->idle_moves ? max_moves : pool->idle_moves;
    uint32_t n_moves = 0;

    for (; n_moves < most; n_moves++) {
        struct band *best = NULL;
        uint64_t best_holes = 0;
        for (uint32_t i = 0; i < KG_N_KINDS; i++) {
            struct band *b = &pool->bands[i];
            uint64_t holes = (band_frontier(b) - b->n_used) * b->stride;
            if (band_can_shrink(b) && holes > best_holes) {
                best = b;
                best_holes = holes;
            }
        }
        if (best == NULL)
            break;
        shrink(pool, best);
    }
    if (n_moves > 0)
        kg_add(&pool->host->cells[M_IDLE], 1);
    return (int)n_moves;
}

/* a * b, or TOO_MUCH: what is too much to count fits nowhere. */
static uint64_t mul(uint64_t a, uint64_t b)
{
    uint64_t product;

    if (__builtin_mul_overflow(a, b, &product) || product > TOO_MUCH)
        return TOO_MUCH;
    return product;
}

static uint64_t round_up(uint64_t a, uint64_t step)
{
    return mul(a / step + (a % step != 0), step);
}

static int plan_arena(const struct kg_pool_geom *g, struct kg_pool_layout *l,
                      uint64_t natural[KG_N_KINDS], struct kg_error *err)
{
    int rc = kg_pool_geom_check(g, err);
    if (rc != KG_OK)
        return rc;

    uint64_t tokens = round_up(g->page_tokens, g->page_tokens_align);
    natural[KG_PAGE] = mul(tokens, g->token_bytes);
    natural[KG_STATE] = mul(g->n_state_parts, g->state_part_bytes);
    uint64_t page = round_up(natural[KG_PAGE], g->align);
    uint64_t state = round_up(natural[KG_STATE], g->align);
    uint64_t arena = g->arena_bytes / g->align * g->align;
    uint64_t least = mul(g->max_seqs, state) + page;
    if (tokens > UINT32_MAX || least > arena)
        return kg_fail(err, KG_ECONFIG,
                       "[memory] bytes = %" PRIu64 " cannot hold max_seqs = %u states of %" PRIu64
                       " bytes and one page of %" PRIu64 " bytes: %" PRIu64 " bytes",
                       g->arena_bytes, g->max_seqs, state, page, least);
    uint64_t pages = arena / page, states = arena / state;
    if (pages > INT32_MAX || states > INT32_MAX)
        return kg_fail(err, KG_ECONFIG,
                       "%" PRIu64 " pages of %" PRIu64 " bytes or %" PRIu64 " states of %" PRIu64
                       " bytes: ids are 32-bit, at most %d",
                       pages, page, states, state, INT32_MAX);

    *l = (struct kg_pool_layout){
        .size = sizeof(*l),
        .arena_bytes = arena,
        .base = {[KG_STATE] = 0, [KG_PAGE] = arena - pages * page},
        .stride = {[KG_STATE] = state, [KG_PAGE] = page},
        .unit_bytes = {[KG_STATE] = state, [KG_PAGE] = page},
        .max_slots = {[KG_STATE] = (uint32_t)states, [KG_PAGE] = (uint32_t)pages},
        .max_units = {[KG_STATE] = (uint32_t)states, [KG_PAGE] = (uint32_t)pages},
        .page_tokens = (uint32_t)tokens,
        .slots_per_state = 1,
        .parts_per_slot = g->n_state_parts,
        .caps = KG_POOL_CAP_MOVES | KG_POOL_CAP_SHARED,
    };
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
    uint64_t n_slots = 0;

    (void)deal(room, 1, sizeof(*pool));
    for (uint32_t i = 0; i < KG_N_KINDS; i++) {
        struct band *b = &pool->bands[i];
        uint64_t words = bits_words(b->n_slots);
        uint64_t *free_words = deal(room, words, sizeof(uint64_t));
        uint64_t *used_words = deal(room, words, sizeof(uint64_t));
        uint64_t *pinned_words = deal(room, words, sizeof(uint64_t));
        b->table = deal(room, b->n_slots, sizeof(uint32_t));
        b->owner = deal(room, b->n_slots, sizeof(uint32_t));
        b->free_ids = deal(room, b->n_slots, sizeof(uint32_t));
        b->dirty = deal(room, b->n_slots, sizeof(uint32_t));
        b->flags = deal(room, b->n_slots, sizeof(uint8_t));
        n_slots += b->n_slots;
        if (room->base != NULL)
            band_init(b, free_words, used_words, pinned_words);
    }
    pool->grants = deal(room, pool->n_grants, sizeof(struct grant));
    pool->moves = deal(room, n_slots + 1, sizeof(struct kg_move));
    pool->changes = deal(room, n_slots, sizeof(struct kg_table_change));
}

static int unified_open(const struct kg_host *host, const void *conf,
                        const struct kg_pool_geom *geom, struct kg_pool **pool,
                        struct kg_pool_layout *layout, struct kg_error *err)
{
    struct kg_pool plan = {.host = host, .idle_moves = ((const struct conf *)conf)->idle_moves};
    uint64_t natural[KG_N_KINDS];
    int rc = plan_arena(geom, &plan.layout, natural, err);

    if (rc != KG_OK)
        return rc;
    plan.n_grants = 8 * geom->max_seqs + 64;
    for (uint32_t i = 0; i < KG_N_KINDS; i++)
        plan.bands[i] = (struct band){.kind = i,
                                      .from_top = i == KG_PAGE,
                                      .n_slots = plan.layout.max_slots[i],
                                      .stride = plan.layout.stride[i],
                                      .natural = natural[i]};

    struct room room = {0};
    deal_arrays(&plan, &room);
    char *block = host->alloc(host->ctx, room.used, 64);
    if (block == NULL)
        return kg_fail(err, KG_ENOMEM, "pool-unified: no memory for %" PRIu64 " bytes of tables",
                       room.used);
    plan.bytes = room.used;
    room = (struct room){.base = block};
    deal_arrays(&plan, &room);
    for (uint32_t g = 0; g < plan.n_grants; g++)
        plan.grants[g] = (struct grant){.next_free = g + 1 < plan.n_grants ? g + 1 : KG_NONE};

    struct kg_pool *p = (struct kg_pool *)block;
    *p = plan;
    *layout = p->layout;
    *pool = p;
    return KG_OK;
}

static void unified_close(struct kg_pool *pool)
{
    if (pool != NULL)
        pool->host->free(pool->host->ctx, pool, pool->bytes);
}

static const struct kg_pool_ops ops = {
    .size = sizeof(ops),
    .open = unified_open,
    .close = unified_close,
    .table = unified_table,
    .grant_open = unified_grant_open,
    .grant_extend = unified_grant_extend,
    .grant_close = unified_grant_close,
    .shortfall = unified_shortfall,
    .take = unified_take,
    .give = unified_give,
    .own = unified_own,
    .pin = unified_pin,
    .unpin = unified_unpin,
    .moves = unified_moves,
    .bytes = unified_bytes,
    .n_used = unified_n_used,
    .check = unified_check,
    .compact = unified_compact,
    .loose = unified_loose,
    .classes = unified_classes,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_POOL,
    .size = sizeof(plugin),
    .major = KG_POOL_MAJOR,
    .minor = KG_POOL_MINOR,
    .name = "unified",
    .version = KG_VERSION,
    .summary = "one arena for both kinds, filled from its two ends; units may move",
    .caps = KG_POOL_CAP_MOVES | KG_POOL_CAP_SHARED,
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
