#include "model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define POISON 0xff /* every float of such bytes is a NaN */

void model_must(int cond, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    if (cond)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    fail_msg("%s", text);
}

static uint32_t n_units(const struct model *m, uint32_t kind)
{
    return m->rig->layout.max_units[kind];
}

static uint64_t slot_at(const struct model *m, uint32_t kind, uint32_t slot)
{
    const struct kg_pool_layout *l = &m->rig->layout;

    model_must(slot < l->max_slots[kind], "%s slot %u of %u", kg_kind_name(kind), slot,
               l->max_slots[kind]);
    return l->base[kind] + (uint64_t)slot * l->stride[kind];
}

void model_open(struct model *m, struct rig *rig)
{
    struct kg_pool_bytes b;

    *m = (struct model){.rig = rig};
    rig->ops->bytes(rig->pool, &b);
    m->rest = b.padding;
    m->arena = malloc(rig->layout.arena_bytes);
    m->cover = malloc(rig->layout.arena_bytes);
    assert_non_null(m->arena);
    assert_non_null(m->cover);
    memset(m->arena, POISON, rig->layout.arena_bytes);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        size_t entries = (size_t)n_units(m, k) * rig_width(rig, k);
        m->units[k] = calloc(n_units(m, k), sizeof(*m->units[k]));
        m->table[k] = malloc(entries * sizeof(uint32_t));
        assert_non_null(m->units[k]);
        assert_non_null(m->table[k]);
        memset(m->table[k], 0xff, entries * sizeof(uint32_t));
    }
}

void model_close(struct model *m)
{
    struct kg_pool_bytes b;

    m->rig->ops->bytes(m->rig->pool, &b);
    model_must(b.holes + b.gap + m->rest == b.arena && b.padding == m->rest,
               "an emptied pool has %llu bytes in holes and %llu in the gap of %llu",
               (unsigned long long)b.holes, (unsigned long long)b.gap, (unsigned long long)b.arena);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        model_must(m->rig->ops->n_used(m->rig->pool, k) == 0, "%ss leaked", kg_kind_name(k));
        for (uint32_t e = 0; e < n_units(m, k) * rig_width(m->rig, k); e++)
            model_must(m->table[k][e] == KG_NONE, "%s entry %u stays mapped", kg_kind_name(k), e);
        free(m->units[k]);
        free(m->table[k]);
    }
    free(m->arena);
    free(m->cover);
}

/* The word that fills entry i of a unit; never poison. */
static uint32_t word_of(const struct model_unit *u, uint32_t i)
{
    return (u->tag * 2654435761u + i) & 0x7fffffff;
}

static void write_unit(struct model *m, uint32_t kind, uint32_t id)
{
    struct model_unit *u = &m->units[kind][id];
    uint32_t width = rig_width(m->rig, kind);

    u->written = 1;
    for (uint32_t i = 0; i < width; i++) {
        uint8_t *p = m->arena + slot_at(m, kind, m->table[kind][id * width + i]);
        uint32_t word = word_of(u, i);
        for (uint64_t b = 0; b < m->rig->layout.stride[kind]; b++)
            p[b] = (uint8_t)(word >> (8 * (b % 4)));
    }
}

static void verify_unit(const struct model *m, uint32_t kind, uint32_t id)
{
    const struct model_unit *u = &m->units[kind][id];
    uint32_t width = rig_width(m->rig, kind);
    uint64_t stride = m->rig->layout.stride[kind];

    for (uint32_t i = 0; i < width; i++) {
        const uint8_t *p = m->arena + slot_at(m, kind, m->table[kind][id * width + i]);
        uint32_t word = word_of(u, i);
        uint64_t head = stride < 4 ? stride : 4;
        int same = head == 4 ? memcmp(p, p + 4, stride - 4) == 0 : 1;
        for (uint64_t b = 0; b < head; b++)
            same &= p[b] == (uint8_t)(word >> (8 * b));
        model_must(same, "%s %u entry %u: its bytes are %02x%02x%02x%02x, wanted %08x",
                   kg_kind_name(kind), id, i, p[head - 1], p[head / 2], p[head / 4], p[0], word);
    }
}

void model_take(struct model *m, uint32_t kind, uint32_t n, const uint32_t *ids)
{
    for (uint32_t i = 0; i < n; i++) {
        model_must(ids[i] < n_units(m, kind) && !m->units[kind][ids[i]].owned,
                   "take gave %s %u, which is owned", kg_kind_name(kind), ids[i]);
        m->units[kind][ids[i]] = (struct model_unit){.owned = 1, .tag = ++m->last_tag};
    }
}

void model_give(struct model *m, uint32_t kind, uint32_t n, const uint32_t *ids)
{
    uint32_t width = rig_width(m->rig, kind);

    for (uint32_t i = 0; i < n; i++) {
        struct model_unit *u = &m->units[kind][ids[i]];
        for (uint32_t j = 0; u->written && j < width; j++)
            memset(m->arena + slot_at(m, kind, m->table[kind][ids[i] * width + j]), POISON,
                   m->rig->layout.stride[kind]);
        *u = (struct model_unit){0};
    }
}

static void apply(struct model *m, const struct kg_move *moves, uint32_t n_moves,
                  const struct kg_table_change *changes, uint32_t n_changes)
{
    for (uint32_t i = 0; i < n_moves; i++) {
        const struct kg_move *v = &moves[i];
        uint64_t stride = m->rig->layout.stride[v->kind];
        model_must(v->from != v->to, "a move from slot %u to itself", v->from);
        memcpy(m->arena + slot_at(m, v->kind, v->to), m->arena + slot_at(m, v->kind, v->from),
               stride);
        m->moved_bytes += stride;
    }
    for (uint32_t i = 0; i < n_changes; i++)
        m->table[changes[i].kind][changes[i].entry] = changes[i].slot;
    m->n_moves += n_moves;
    m->n_syncs++;
}

void model_sync(struct model *m)
{
    const struct kg_move *moves;
    const struct kg_table_change *changes;
    uint32_t n_moves, n_changes;

    m->rig->ops->moves(m->rig->pool, &moves, &n_moves, &changes, &n_changes);
    apply(m, moves, n_moves, changes, n_changes);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        size_t entries = (size_t)n_units(m, k) * rig_width(m->rig, k);
        model_must(memcmp(m->table[k], m->rig->ops->table(m->rig->pool, k),
                          entries * sizeof(uint32_t)) == 0,
                   "%s table: changes do not lead to it", kg_kind_name(k));
        for (uint32_t id = 0; id < n_units(m, k); id++) {
            if (m->units[k][id].owned && !m->units[k][id].written)
                write_unit(m, k, id);
        }
    }
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        for (uint32_t id = 0; id < n_units(m, k); id++) {
            if (m->units[k][id].owned)
                verify_unit(m, k, id);
        }
    }
}

void model_poison_rest(struct model *m)
{
    uint64_t n = m->rig->layout.arena_bytes;

    model_sync(m);
    memset(m->cover, 0, n);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        for (uint32_t e = 0; e < n_units(m, k) * rig_width(m->rig, k); e++) {
            if (m->table[k][e] == KG_NONE)
                continue;
            uint64_t at = slot_at(m, k, m->table[k][e]);
            model_must(at + m->rig->layout.stride[k] <= n, "%s entry %u leaves the arena",
                       kg_kind_name(k), e);
            model_must(memchr(m->cover + at, 1, m->rig->layout.stride[k]) == NULL,
                       "%s entry %u overlaps another", kg_kind_name(k), e);
            memset(m->cover + at, 1, m->rig->layout.stride[k]);
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        if (!m->cover[i])
            m->arena[i] = POISON;
    }
}

int model_is_evictable(const struct model *m, uint32_t kind, uint32_t id)
{
    const struct model_unit *u = &m->units[kind][id];

    return u->owned && u->cached && !u->locked && !u->pinned;
}

uint32_t model_n_evictable(const struct model *m, uint32_t kind)
{
    uint32_t n = 0;

    for (uint32_t id = 0; id < n_units(m, kind); id++)
        n += (uint32_t)model_is_evictable(m, kind, id);
    return n;
}

uint32_t model_n_owned(const struct model *m, uint32_t kind)
{
    uint32_t n = 0;

    for (uint32_t id = 0; id < n_units(m, kind); id++)
        n += m->units[kind][id].owned;
    return n;
}

static uint64_t natural_bytes(const struct model *m, uint32_t kind)
{
    const struct kg_pool_geom *g = &m->rig->geom;

    return kind == KG_PAGE ? m->rig->layout.page_tokens * g->token_bytes
                           : g->n_state_parts * g->state_part_bytes;
}

void model_compare(const struct model *m, const uint64_t promised[KG_N_KINDS])
{
    struct kg_pool_bytes b;
    uint64_t taken = 0, pinned = 0, promise = 0;

    m->rig->ops->bytes(m->rig->pool, &b);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint64_t natural = natural_bytes(m, k), live = 0, cached = 0, n = 0;
        for (uint32_t id = 0; id < n_units(m, k); id++) {
            const struct model_unit *u = &m->units[k][id];
            n += u->owned;
            live += (uint64_t)(u->owned && !u->pinned && !u->cached) * natural;
            cached += (uint64_t)(u->owned && !u->pinned && u->cached) * natural;
            pinned += (uint64_t)(u->owned && u->pinned) * natural;
        }
        model_must(n == m->rig->ops->n_used(m->rig->pool, k), "%ss owned differ", kg_kind_name(k));
        model_must(live == b.live[k] && cached == b.cached[k], "%s classes differ",
                   kg_kind_name(k));
        taken += n * m->rig->layout.unit_bytes[k];
        promise += promised[k] * m->rig->layout.unit_bytes[k];
    }
    model_must(pinned == b.pinned, "pinned bytes differ");
    model_must(promise == b.promised, "promised bytes differ");
    model_must(rig_sums_hold(&b) && b.arena == m->rig->layout.arena_bytes, "classes do not sum");
    model_must(b.holes + b.gap + taken + m->rest == b.arena, "free bytes differ");
}

/* Positions from the kind's own end of a pool that moves units: states low, pages high. */
static uint32_t position(const struct model *m, uint32_t kind, uint32_t id)
{
    uint32_t slot = m->rig->ops->table(m->rig->pool, kind)[id];

    return kind == KG_STATE ? slot : m->rig->layout.max_slots[kind] - 1 - slot;
}

/* Bytes from the kind's end to the last of n units, pinned ones in place, others packed. */
static uint64_t place(const struct model *m, uint32_t kind, uint64_t n)
{
    uint32_t slots = m->rig->layout.max_slots[kind], end = 0;
    uint8_t *held = calloc(slots + 1, 1);
    uint64_t left = n;

    assert_non_null(held);
    for (uint32_t id = 0; id < n_units(m, kind); id++) {
        if (m->units[kind][id].owned && m->units[kind][id].pinned) {
            uint32_t at = position(m, kind, id);
            held[at] = 1;
            end = at + 1 > end ? at + 1 : end;
            left--;
        }
    }
    for (uint32_t at = 0; left > 0; at++) {
        if (at >= slots) {
            free(held);
            return UINT64_MAX / 4;
        }
        if (!held[at]) {
            left--;
            end = at + 1 > end ? at + 1 : end;
        }
    }
    free(held);
    return end * m->rig->layout.stride[kind];
}

int model_fits(const struct model *m, const uint64_t n[KG_N_KINDS])
{
    const struct kg_pool_layout *l = &m->rig->layout;

    if ((l->caps & KG_POOL_CAP_MOVES) != 0)
        return place(m, KG_PAGE, n[KG_PAGE]) + place(m, KG_STATE, n[KG_STATE]) <= l->arena_bytes;
    if ((l->caps & KG_POOL_CAP_SHARED) != 0)
        return n[KG_PAGE] + n[KG_STATE] * l->slots_per_state <= l->max_slots[KG_PAGE];
    return n[KG_PAGE] <= l->max_slots[KG_PAGE] && n[KG_STATE] <= l->max_slots[KG_STATE];
}

/* Positions a band of units reaches now, and would with n more on the lowest free ones. */
static uint64_t reach(const struct model *m, uint32_t kind, uint32_t n)
{
    uint32_t slots = m->rig->layout.max_slots[kind], end = 0;
    uint8_t *held = calloc(slots + 1, 1);

    assert_non_null(held);
    for (uint32_t id = 0; id < n_units(m, kind); id++) {
        if (m->units[kind][id].owned) {
            uint32_t at = position(m, kind, id);
            held[at] = 1;
            end = at + 1 > end ? at + 1 : end;
        }
    }
    for (uint32_t at = 0; n > 0 && at < slots; at++) {
        if (!held[at]) {
            n--;
            end = at + 1 > end ? at + 1 : end;
        }
    }
    free(held);
    return end;
}

uint64_t model_move_bound(const struct model *m, uint32_t kind, uint32_t n)
{
    const struct kg_pool_layout *l = &m->rig->layout;

    if ((l->caps & KG_POOL_CAP_MOVES) == 0)
        return 0;
    uint64_t bytes = reach(m, kind, n) * l->stride[kind] + reach(m, !kind, 0) * l->stride[!kind];
    if (bytes <= l->arena_bytes)
        return 0;
    return (bytes - l->arena_bytes + l->stride[!kind] - 1) / l->stride[!kind];
}
