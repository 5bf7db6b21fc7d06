/*
 * pool-shuffle: an adversary. Two fixed sets of slots, a fresh random slot for each unit taken,
 * and a compact() that moves random units to random free slots, whatever sense that makes. Counts
 * are exact, so it is also the simplest statement of what grants promise.
 */
#include "doubles.h"

#include "base/rng.h"

#include <kedge/pool.h>
#include <string.h>

#define MAX_UNITS 4096
#define MAX_GRANTS 1024

struct shuffle_conf {
    uint32_t pages, states;
    uint64_t seed;
};

/* One kind. Slots are numbered like units; one slot stays free so that something can move. */
struct side {
    uint32_t n; /* units that may be owned */
    uint32_t n_used, n_promised;
    uint32_t table[MAX_UNITS];   /* unit -> slot */
    uint8_t busy[MAX_UNITS + 1]; /* slot taken */
    uint8_t owned[MAX_UNITS], cached[MAX_UNITS], pinned[MAX_UNITS], dirty[MAX_UNITS];
    uint8_t fresh[MAX_UNITS]; /* taken since moves(): no bytes yet */
};

struct kg_pool {
    const struct kg_host *host;
    struct kg_rng rng;
    struct side side[KG_N_KINDS];
    uint32_t open[MAX_GRANTS];
    uint32_t left[MAX_GRANTS][KG_N_KINDS];
    uint64_t unit_bytes[KG_N_KINDS];
    struct kg_move moves[2 * MAX_UNITS];
    uint32_t n_moves;
    struct kg_table_change changes[2 * MAX_UNITS];
};

static const struct kg_opt options[] = {
    {"pages", KG_OPT_U32, 0, offsetof(struct shuffle_conf, pages), "64", 1, MAX_UNITS, NULL,
     "Pages. Unit: pages."},
    {"states", KG_OPT_U32, 0, offsetof(struct shuffle_conf, states), "8", 1, MAX_UNITS, NULL,
     "States. Unit: states."},
    {"seed", KG_OPT_U64, 0, offsetof(struct shuffle_conf, seed), "1", 0, 0, NULL,
     "Seed of the moves. Unit: none."},
    {0},
};

static int open_pool(const struct kg_host *host, const void *conf, const struct kg_pool_geom *geom,
                     struct kg_pool **pool, struct kg_pool_layout *layout, struct kg_error *err)
{
    const struct shuffle_conf *c = conf;
    struct kg_pool *p = host->alloc(host->ctx, sizeof(*p), 0);

    if (p == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory");
    }
    memset(p, 0, sizeof(*p));
    p->host = host;
    kg_rng_seed(&p->rng, c->seed);
    p->side[KG_PAGE].n = c->pages;
    p->side[KG_STATE].n = c->states;
    memset(p->side[KG_PAGE].table, 0xff, sizeof(p->side[KG_PAGE].table));
    memset(p->side[KG_STATE].table, 0xff, sizeof(p->side[KG_STATE].table));
    p->unit_bytes[KG_PAGE] = geom->token_bytes * geom->page_tokens;
    p->unit_bytes[KG_STATE] = geom->state_part_bytes * geom->n_state_parts;
    struct kg_pool_layout l = {.size = sizeof(l),
                               .page_tokens = geom->page_tokens,
                               .slots_per_state = 1,
                               .parts_per_slot = geom->n_state_parts,
                               .caps = KG_POOL_CAP_MOVES};
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        l.base[k] = l.arena_bytes;
        l.stride[k] = l.unit_bytes[k] = p->unit_bytes[k];
        l.max_units[k] = p->side[k].n;
        l.max_slots[k] = p->side[k].n + 1;
        l.arena_bytes += l.stride[k] * l.max_slots[k];
    }
    *layout = l;
    *pool = p;
    return KG_OK;
}

static void close_pool(struct kg_pool *p)
{
    if (p != NULL) {
        p->host->free(p->host->ctx, p, sizeof(*p));
    }
}

static const uint32_t *table(const struct kg_pool *p, uint32_t kind)
{
    return p->side[kind].table;
}

static int covers(const struct kg_pool *p, const uint32_t need[KG_N_KINDS],
                  const uint32_t evictable[KG_N_KINDS], struct kg_shortage *shortage)
{
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        const struct side *s = &p->side[k];
        if (need[k] > s->n) {
            return KG_ENEVER;
        }
        uint32_t room = s->n - s->n_used + evictable[k];
        if (s->n_promised + need[k] > room) {
            uint32_t missing = s->n_promised + need[k] - room;
            *shortage = (struct kg_shortage){.kind = k, .bytes = missing * p->unit_bytes[k]};
            shortage->evict[k] = missing;
            shortage->evict[1 - k] = KG_NONE;
            return KG_EAGAIN;
        }
    }
    return KG_OK;
}

static void promise(struct kg_pool *p, uint32_t grant, const uint32_t need[KG_N_KINDS])
{
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        p->left[grant][k] += need[k];
        p->side[k].n_promised += need[k];
    }
}

static int grant_open(struct kg_pool *p, const uint32_t need[KG_N_KINDS],
                      const uint32_t evictable[KG_N_KINDS], uint32_t *grant,
                      struct kg_shortage *shortage)
{
    int rc = covers(p, need, evictable, shortage);

    for (uint32_t g = 0; rc == KG_OK && g < MAX_GRANTS; g++) {
        if (!p->open[g]) {
            p->open[g] = 1;
            p->left[g][KG_PAGE] = p->left[g][KG_STATE] = 0;
            promise(p, g, need);
            *grant = g;
            return KG_OK;
        }
    }
    return rc == KG_OK ? KG_ELIMIT : rc;
}

static int grant_extend(struct kg_pool *p, uint32_t grant, const uint32_t more[KG_N_KINDS],
                        const uint32_t evictable[KG_N_KINDS], struct kg_shortage *shortage)
{
    if (grant >= MAX_GRANTS || !p->open[grant]) {
        return KG_EINVAL;
    }
    int rc = covers(p, more, evictable, shortage);
    if (rc == KG_OK) {
        promise(p, grant, more);
    }
    return rc;
}

static void grant_close(struct kg_pool *p, uint32_t grant)
{
    if (grant < MAX_GRANTS && p->open[grant]) {
        p->open[grant] = 0;
        for (uint32_t k = 0; k < KG_N_KINDS; k++) {
            p->side[k].n_promised -= p->left[grant][k];
        }
    }
}

static int shortfall(const struct kg_pool *p, uint32_t grant, uint32_t kind, uint32_t n,
                     struct kg_shortage *shortage)
{
    const struct side *s = &p->side[kind];

    if (grant >= MAX_GRANTS || !p->open[grant] || n > p->left[grant][kind]) {
        return KG_EINVAL;
    }
    if (n > s->n - s->n_used) {
        uint32_t missing = n - (s->n - s->n_used);
        *shortage = (struct kg_shortage){.kind = kind, .bytes = missing * p->unit_bytes[kind]};
        shortage->evict[kind] = missing;
        shortage->evict[1 - kind] = KG_NONE;
        return KG_EAGAIN;
    }
    return KG_OK;
}

/* A random free slot; there is always one. */
static uint32_t free_slot(struct kg_pool *p, const struct side *s)
{
    uint32_t at = (uint32_t)kg_rng_below(&p->rng, s->n + 1ull);

    while (s->busy[at]) {
        at = (at + 1) % (s->n + 1);
    }
    return at;
}

static int take(struct kg_pool *p, uint32_t grant, uint32_t kind, uint32_t n, uint32_t *ids)
{
    struct side *s = &p->side[kind];
    struct kg_shortage unused;
    int rc = shortfall(p, grant, kind, n, &unused);

    for (uint32_t i = 0; rc == KG_OK && i < n; i++) {
        uint32_t id = (uint32_t)kg_rng_below(&p->rng, s->n);
        while (s->owned[id]) {
            id = (id + 1) % s->n;
        }
        uint32_t slot = free_slot(p, s);
        s->busy[slot] = s->owned[id] = s->dirty[id] = s->fresh[id] = 1;
        s->cached[id] = s->pinned[id] = 0;
        s->table[id] = slot;
        s->n_used++;
        s->n_promised--;
        p->left[grant][kind]--;
        ids[i] = id;
    }
    return rc;
}

static int give(struct kg_pool *p, uint32_t kind, uint32_t n, const uint32_t *ids)
{
    struct side *s = &p->side[kind];

    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= s->n || !s->owned[ids[i]] || s->pinned[ids[i]]) {
            return KG_EINVAL;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        s->busy[s->table[ids[i]]] = 0;
        s->table[ids[i]] = KG_NONE;
        s->owned[ids[i]] = 0;
        s->dirty[ids[i]] = 1;
        s->n_used--;
    }
    return KG_OK;
}

static int own(struct kg_pool *p, uint32_t kind, uint32_t n, const uint32_t *ids, uint32_t cached)
{
    for (uint32_t i = 0; i < n; i++) {
        p->side[kind].cached[ids[i]] = cached != 0;
    }
    return KG_OK;
}

static int pin(struct kg_pool *p, uint32_t kind, uint32_t id, const uint32_t evictable[KG_N_KINDS])
{
    struct side *s = &p->side[kind];

    if (id >= s->n || !s->owned[id] || s->pinned[id]) {
        return KG_EINVAL;
    }
    if (s->n_promised > s->n - s->n_used + evictable[kind]) {
        return KG_EAGAIN;
    }
    s->pinned[id] = 1;
    return KG_OK;
}

static int unpin(struct kg_pool *p, uint32_t kind, uint32_t id)
{
    if (id >= p->side[kind].n || !p->side[kind].pinned[id]) {
        return KG_EINVAL;
    }
    p->side[kind].pinned[id] = 0;
    return KG_OK;
}

static void moves(struct kg_pool *p, const struct kg_move **out_moves, uint32_t *n_moves,
                  const struct kg_table_change **changes, uint32_t *n_changes)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        struct side *s = &p->side[k];
        for (uint32_t id = 0; id < s->n; id++) {
            if (s->dirty[id]) {
                p->changes[n++] = (struct kg_table_change){k, id, s->table[id]};
                s->dirty[id] = s->fresh[id] = 0;
            }
        }
    }
    *out_moves = p->moves;
    *n_moves = p->n_moves;
    *changes = p->changes;
    *n_changes = n;
    p->n_moves = 0;
}

static void bytes(const struct kg_pool *p, struct kg_pool_bytes *b)
{
    *b = (struct kg_pool_bytes){0};
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        const struct side *s = &p->side[k];
        for (uint32_t id = 0; id < s->n; id++) {
            uint64_t n = s->owned[id] ? p->unit_bytes[k] : 0;
            b->pinned += s->pinned[id] ? n : 0;
            b->cached[k] += s->cached[id] && !s->pinned[id] ? n : 0;
            b->live[k] += !s->cached[id] && !s->pinned[id] ? n : 0;
        }
        b->holes += (s->n + 1 - s->n_used) * p->unit_bytes[k];
        b->arena += (s->n + 1) * p->unit_bytes[k];
        b->promised += s->n_promised * p->unit_bytes[k];
    }
}

static uint32_t n_used(const struct kg_pool *p, uint32_t kind)
{
    return p->side[kind].n_used;
}

static int check(const struct kg_pool *p, struct kg_error *err)
{
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint32_t used = 0, busy = 0, promised = 0;
        for (uint32_t i = 0; i <= p->side[k].n; i++) {
            used += i < p->side[k].n && p->side[k].owned[i];
            busy += p->side[k].busy[i];
        }
        for (uint32_t g = 0; g < MAX_GRANTS; g++) {
            promised += p->open[g] ? p->left[g][k] : 0;
        }
        if (used != p->side[k].n_used || busy != used || promised != p->side[k].n_promised) {
            return kg_fail(err, KG_EINVAL, "%s: used %u, slots %u, counted %u", kg_kind_name(k),
                           used, busy, p->side[k].n_used);
        }
    }
    return KG_OK;
}

static int compact(struct kg_pool *p, uint32_t max_moves)
{
    uint32_t done = 0;

    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        struct side *s = &p->side[k];
        for (uint32_t id = 0; id < s->n && done < max_moves && p->n_moves < MAX_UNITS; id++) {
            if (!s->owned[id] || s->pinned[id] || kg_rng_below(&p->rng, 2)) {
                continue;
            }
            uint32_t to = free_slot(p, s), from = s->table[id];
            if (!s->fresh[id]) {
                p->moves[p->n_moves++] = (struct kg_move){k, from, to, id};
            }
            s->busy[from] = 0;
            s->busy[to] = s->dirty[id] = 1;
            s->table[id] = to;
            done++;
        }
    }
    return (int)done;
}

static const struct kg_pool_ops ops = {
    .size = sizeof(ops),
    .open = open_pool,
    .close = close_pool,
    .table = table,
    .grant_open = grant_open,
    .grant_extend = grant_extend,
    .grant_close = grant_close,
    .shortfall = shortfall,
    .take = take,
    .give = give,
    .own = own,
    .pin = pin,
    .unpin = unpin,
    .moves = moves,
    .bytes = bytes,
    .n_used = n_used,
    .check = check,
    .compact = compact,
};

const struct kg_plugin double_pool_shuffle = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_POOL,
    .size = sizeof(double_pool_shuffle),
    .major = KG_POOL_MAJOR,
    .minor = KG_POOL_MINOR,
    .name = "shuffle",
    .version = "test",
    .summary = "random slots and random moves",
    .caps = KG_POOL_CAP_MOVES,
    .opts = options,
    .conf_size = sizeof(struct shuffle_conf),
    .ops = &ops,
};
