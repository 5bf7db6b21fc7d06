/*
 * The pool: bytes, nothing else. It maps virtual unit ids of two kinds (page, state) to physical
 * slots of one arena that the backend allocates; it never touches the arena's bytes.
 *
 * - Ids are virtual and never change while a unit is owned; slots may (moves).
 * - A unit has exactly one owner, a request or an index node. No reference counts here.
 * - A grant is a promise for a request's whole expected lifetime in both kinds: all or nothing.
 *   Room is counted in bytes *after compaction* where the pool can move units: a unit that is
 *   pinned keeps its place, and free slots between it and its kind's end serve that kind only.
 * - `evictable` is what covers a promise beside free bytes. The caller keeps it true: whatever
 *   makes a cached unit unevictable (a lock, a pin) goes through grant_open or pin first.
 * - Every byte of the arena is in exactly one class of kg_pool_bytes.
 *
 * Engine thread only. open/close may allocate; nothing else does.
 */
#ifndef KEDGE_POOL_H
#define KEDGE_POOL_H

#include <kedge/abi.h>
#include <kedge/host.h>

#define KG_POOL_MAJOR 1
#define KG_POOL_MINOR 2

/* Capability bits. */
#define KG_POOL_CAP_MOVES 1ull  /* units may move: moves() can answer some, compact() exists */
#define KG_POOL_CAP_SHARED 2ull /* both kinds draw on one budget: evicting either kind helps */

/*
 * What classes() says of a unit (since minor 2); bits above these are the pool's own. A unit that
 * is not owned is free; one that is owned counts as pinned if it is, else as cached if it is, else
 * as live, as in kg_pool_bytes.
 */
#define KG_UNIT_OWNED 1u
#define KG_UNIT_CACHED 2u
#define KG_UNIT_PINNED 4u

struct kg_pool; /* one instance; private to the plugin */

/* What the core knows before the arena exists. From exec.describe and [memory]. */
struct kg_pool_geom {
    size_t size;                /* sizeof(struct kg_pool_geom) */
    uint64_t arena_bytes;       /* [memory] bytes: most the arena may take */
    uint64_t token_bytes;       /* bytes of one token of a page, all MLA layers, > 0 */
    uint64_t state_part_bytes;  /* bytes of one indivisible part of a state (one KDA layer) */
    uint32_t n_state_parts;     /* parts of a state; state bytes = parts * part bytes */
    uint32_t page_tokens;       /* wanted tokens per page; the pool may raise it */
    uint32_t page_tokens_align; /* the effective page_tokens is a multiple of this */
    uint32_t align;             /* bytes; each unit (each table entry of a state) starts on it */
    uint32_t max_seqs;          /* most sequences at once: at least this many states must fit */
    uint32_t reserved;          /* 0 */
};

/* What no pool can plan for, whatever its design: KG_EABI, or KG_ECONFIG with the numbers. With
 * KG_OK all counts are above 0, and products of two of them and of sizes are to be checked. */
static inline int kg_pool_geom_check(const struct kg_pool_geom *g, struct kg_error *err)
{
    const uint32_t most_parts = 1u << 16, most_seqs = 1u << 20;

    if (g->size < sizeof(*g))
        return kg_fail(err, KG_EABI, "pool geometry has %zu bytes, wanted %zu", g->size,
                       sizeof(*g));
    if (g->token_bytes == 0 || g->state_part_bytes == 0 || g->n_state_parts == 0 ||
        g->page_tokens == 0 || g->page_tokens_align == 0 || g->max_seqs == 0)
        return kg_fail(err, KG_ECONFIG,
                       "pool geometry needs all of: token bytes %llu, state parts %u of %llu "
                       "bytes, page tokens %u in steps of %u, max_seqs %u",
                       (unsigned long long)g->token_bytes, g->n_state_parts,
                       (unsigned long long)g->state_part_bytes, g->page_tokens,
                       g->page_tokens_align, g->max_seqs);
    if (g->align == 0 || (g->align & (g->align - 1)) != 0)
        return kg_fail(err, KG_ECONFIG, "pool alignment %u is not a power of two", g->align);
    if (g->n_state_parts > most_parts || g->max_seqs > most_seqs)
        return kg_fail(err, KG_ECONFIG, "%u state parts (at most %u), max_seqs = %u (at most %u)",
                       g->n_state_parts, most_parts, g->max_seqs, most_seqs);
    if (g->arena_bytes >= UINT64_C(1) << 60)
        return kg_fail(err, KG_ECONFIG, "[memory] bytes = %llu is beyond any machine",
                       (unsigned long long)g->arena_bytes);
    return KG_OK;
}

/*
 * The pool's answer. The bytes of table entry e of kind k lie at
 *     base[k] + (uint64_t)table(k)[e] * stride[k]
 * A page has one entry. A state has slots_per_state entries, entry i holding the parts
 * i*parts_per_slot .. of it, each state_part_bytes long, one after the other.
 */
struct kg_pool_layout {
    size_t size;                     /* sizeof(struct kg_pool_layout) */
    uint64_t arena_bytes;            /* bytes the backend allocates, <= geom.arena_bytes */
    uint64_t base[KG_N_KINDS];       /* byte offset of slot 0 */
    uint64_t stride[KG_N_KINDS];     /* bytes from slot to slot */
    uint64_t unit_bytes[KG_N_KINDS]; /* bytes a unit takes from the budget: all its slots */
    uint32_t max_slots[KG_N_KINDS];  /* physical slots that exist at most */
    uint32_t max_units[KG_N_KINDS];  /* virtual ids are 0 .. max_units-1 */
    uint32_t page_tokens;            /* effective tokens per page */
    uint32_t slots_per_state;        /* table entries of a state, >= 1 */
    uint32_t parts_per_slot;         /* state parts in one entry */
    uint32_t caps;                   /* KG_POOL_CAP_* that hold with these options: a subset of
                                        the descriptor's */
};

/* Every byte of the arena, by class; the classes sum to `arena`. All in bytes. */
struct kg_pool_bytes {
    uint64_t live[KG_N_KINDS];   /* units owned by requests, natural bytes */
    uint64_t cached[KG_N_KINDS]; /* units owned by the index, natural bytes */
    uint64_t pinned;             /* natural bytes of pinned units (not in live or cached) */
    uint64_t holes;              /* free slots inside a kind's region */
    uint64_t gap;                /* free, belongs to no kind yet (split: 0) */
    uint64_t padding;            /* stride or part packing above natural bytes; unusable rest */
    uint64_t arena;              /* the sum */
    uint64_t promised;           /* open promises not yet taken; reported beside the sum */
};

/* Why and by how much a request for room was refused. */
struct kg_shortage {
    /* The kind that is short. With one budget: states if they alone do not fit, else pages. */
    uint32_t kind;
    uint32_t reserved; /* 0 */
    uint64_t bytes;    /* bytes missing, after compaction (grants: and beyond `evictable`) */
    /*
     * Least number of units of that kind alone whose eviction would cover what `kind` is short of;
     * KG_NONE where evicting that kind cannot, be it another budget or pinned units in the way.
     * May be more than there are: evict what there is, of a kind that is not KG_NONE, and ask
     * again. The kind asked for is never KG_NONE in a shortfall.
     */
    uint32_t evict[KG_N_KINDS];
};

/*
 * The bytes of one table entry changed place: copy stride[kind] bytes from slot `from` to slot
 * `to`. Slots of one move never overlap. Moves are copied in the order given, by slot number:
 * a later move may read or write a slot that an earlier one wrote or read. A unit taken since the
 * last call of moves() has no bytes yet: it changes place without a move.
 */
struct kg_move {
    uint32_t kind;
    uint32_t from, to; /* slots of that kind */
    uint32_t id;       /* virtual id of the unit, for logs and tests */
};

/* The final slot of a table entry that changed since the last call, moved entries included. */
struct kg_table_change {
    uint32_t kind;
    uint32_t entry; /* id * entries per unit + i */
    uint32_t slot;  /* KG_NONE when unmapped */
};

/*
 * A grant with its remaining need. `evictable` arguments below: units of each kind the engine
 * could evict now, without those that are locked or already part of the need. More than the pool
 * knows to be cached and not pinned are not counted.
 */
struct kg_pool_ops {
    size_t size; /* sizeof(struct kg_pool_ops) as compiled */

    /*
     * Plans the arena. conf: the plugin's option struct. Fails with KG_ECONFIG when one page and
     * max_seqs states do not fit, naming the numbers. *pool and *layout set only on success.
     */
    int (*open)(const struct kg_host *host, const void *conf, const struct kg_pool_geom *geom,
                struct kg_pool **pool, struct kg_pool_layout *layout, struct kg_error *err);
    void (*close)(struct kg_pool *pool); /* NULL is allowed */

    /* Virtual entry -> slot, KG_NONE where unmapped. Owned by the pool, address is constant. */
    const uint32_t *(*table)(const struct kg_pool *pool, uint32_t kind);

    /*
     * Promises need[k] units of each kind, all or nothing. Succeeds iff, in bytes after
     * compaction, free + evictable covers all open promises plus the need. KG_EAGAIN fills
     * *shortage and takes nothing; KG_ENEVER when an empty pool could not hold the need; KG_ELIMIT
     * when 8 * max_seqs + 64 grants are open.
     */
    int (*grant_open)(struct kg_pool *pool, const uint32_t need[KG_N_KINDS],
                      const uint32_t evictable[KG_N_KINDS], uint32_t *grant,
                      struct kg_shortage *shortage);
    /* Adds to an open grant; same answers, KG_ENEVER measured on what the grant then holds. */
    int (*grant_extend)(struct kg_pool *pool, uint32_t grant, const uint32_t more[KG_N_KINDS],
                        const uint32_t evictable[KG_N_KINDS], struct kg_shortage *shortage);
    /*
     * Ends the promise for what was not taken. Units taken stay owned. A grant that is not open is
     * ignored; every other op answers KG_EINVAL for one.
     */
    void (*grant_close)(struct kg_pool *pool, uint32_t grant);

    /*
     * What must be evicted so that take(grant, kind, n) succeeds: KG_OK for nothing, KG_EAGAIN
     * with *shortage otherwise. n must not exceed what the grant still holds (KG_EINVAL).
     */
    int (*shortfall)(const struct kg_pool *pool, uint32_t grant, uint32_t kind, uint32_t n,
                     struct kg_shortage *shortage);
    /*
     * Takes n units of a kind out of the grant: ids[n], owned by a request. After a shortfall of
     * KG_OK it cannot fail. Urgent compaction: at most ceil(missing bytes / the neighbour's unit
     * bytes) moves. KG_EAGAIN takes nothing; KG_EINVAL beyond the grant.
     */
    int (*take)(struct kg_pool *pool, uint32_t grant, uint32_t kind, uint32_t n, uint32_t *ids);
    /* Gives units back. KG_EINVAL, nothing changed, for a unit free, pinned, or named twice. */
    int (*give)(struct kg_pool *pool, uint32_t kind, uint32_t n, const uint32_t *ids);
    /* Tells whether units belong to the index now (cached = 1) or to a request (0). KG_EINVAL,
     * nothing changed, for a unit that is free. */
    int (*own)(struct kg_pool *pool, uint32_t kind, uint32_t n, const uint32_t *ids,
               uint32_t cached);

    /*
     * Pins a unit for an out-of-stream reader: it can neither move nor be given back. Refused
     * with KG_EAGAIN when an open promise would be left uncovered by free + evictable, the unit
     * being no part of `evictable` any more. Pins do not nest (KG_EINVAL). Moves made so far must
     * be applied before the reader starts.
     */
    int (*pin)(struct kg_pool *pool, uint32_t kind, uint32_t id,
               const uint32_t evictable[KG_N_KINDS]);
    /* Ends a pin; the owner is what it was. KG_EINVAL for a unit that is not pinned. */
    int (*unpin)(struct kg_pool *pool, uint32_t kind, uint32_t id);

    /*
     * What happened since the last call, for exec.apply: first all moves are copied in order, then
     * each changed entry is set once to its final slot. Both arrays belong to the pool and live
     * until the next op that changes it. Bounded: at most max_slots entries of a kind each, so the
     * pool needs no allocation here.
     */
    void (*moves)(struct kg_pool *pool, const struct kg_move **moves, uint32_t *n_moves,
                  const struct kg_table_change **changes, uint32_t *n_changes);

    /* The arena by class, now. O(1). */
    void (*bytes)(const struct kg_pool *pool, struct kg_pool_bytes *bytes);
    /* Units of a kind that are owned, now. */
    uint32_t (*n_used)(const struct kg_pool *pool, uint32_t kind);
    /* Full self-check, O(pool): sums, tables, holes, promises. KG_OK or KG_EINVAL with text. */
    int (*check)(const struct kg_pool *pool, struct kg_error *err);

    /* Optional, with KG_POOL_CAP_MOVES: idle compaction of at most max_moves units; returns the
     * number of units that changed place. */
    int (*compact)(struct kg_pool *pool, uint32_t max_moves);

    /* Optional, with KG_POOL_CAP_MOVES: units of a kind that a take would get now without moving
     * any other unit. O(1). Since minor 1. */
    uint32_t (*loose)(const struct kg_pool *pool, uint32_t kind);

    /* Optional: virtual id -> KG_UNIT_* bits, [max_units[kind]]. Owned by the pool, address is
     * constant. With table() it says what lies where in the arena. Since minor 2. */
    const uint8_t *(*classes)(const struct kg_pool *pool, uint32_t kind);
};

#endif
