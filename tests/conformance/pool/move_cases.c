/* Moves and compaction; cases return at once where units never move. */
#include "cases.h"

#include <stdlib.h>
#include <string.h>

/*
 * The band of a kind with every second unit given back, and the rest of the arena full of the
 * other kind: room only by compaction. Returns how many units of `kind` are left in ids.
 */
static uint32_t swiss(uint32_t kind, uint32_t *ids, uint32_t *others, uint32_t *n_others)
{
    uint32_t n = rig.layout.max_units[kind] / 2, kept = 0;

    take(kind, n, ids);
    *n_others = fill(!kind, others);
    for (uint32_t i = 0; i < n; i++) {
        if (i % 2 == 0)
            give(kind, 1, &ids[i]);
        else
            ids[kept++] = ids[i];
    }
    forget_moves();
    return kept;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

static void urgent_moves_are_bounded_by_the_missing_bytes(void **state)
{
    static uint32_t ids[MOST], others[MOST], got[MOST];

    (void)state;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        struct kg_shortage s;
        uint32_t n_others, total = 0;
        reopen();
        if (!has(KG_POOL_CAP_MOVES))
            return;
        swiss(k, ids, others, &n_others);
        for (uint32_t n = 1;; n++) {
            if (try_grant(k == KG_PAGE ? 0 : n, k == KG_PAGE ? n : 0, nothing, &s) != KG_OK) {
                assert_true(healthy().holes + healthy().gap < n * rig.layout.unit_bytes[!k]);
                break;
            }
            uint64_t need = n * rig.layout.unit_bytes[!k], gap = healthy().gap;
            uint64_t missing = need > gap ? need - gap : 0;
            take(!k, n, got);
            uint32_t moved = forget_moves();
            assert_true(moved <= ceil_div(missing, rig.layout.unit_bytes[k]));
            total += moved;
            assert_no_overlap();
            healthy();
        }
        assert_true(total > 0);
        assert_int_equal(rig_metric(&rig, "relocations_total"), total);
        assert_int_equal(rig_metric(&rig, "relocated_bytes_total"), total * rig.layout.stride[k]);
    }
}

static void own_holes_are_used_before_anything_moves(void **state)
{
    static uint32_t ids[MOST], others[MOST], got[MOST];
    uint32_t n_others;

    (void)state;
    if (!has(KG_POOL_CAP_MOVES))
        return;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        reopen();
        uint32_t kept = swiss(k, ids, others, &n_others);
        uint64_t gap = healthy().gap;
        take(k, kept, got); /* one hole below each unit that was kept */
        assert_int_equal(forget_moves(), 0);
        assert_int_equal(healthy().gap, gap);
    }
}

/* A shadow of the table, kept by moves and changes alone, equals the table. */
static void moves_and_changes_lead_to_the_table(void **state) /* S3 */
{
    static uint32_t ids[MOST], others[MOST], got[MOST], shadow[KG_N_KINDS][MOST * 8];
    uint32_t n_others;

    (void)state;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        const struct kg_move *moves;
        const struct kg_table_change *changes;
        uint32_t n_moves, n_changes;
        reopen();
        uint32_t kept = swiss(k, ids, others, &n_others);
        for (uint32_t i = 0; i < KG_N_KINDS; i++)
            memcpy(shadow[i], rig.ops->table(rig.pool, i),
                   rig.layout.max_units[i] * rig_width(&rig, i) * sizeof(uint32_t));
        if (has(KG_POOL_CAP_MOVES)) {
            take(!k, 2, got);
            assert_true(rig.ops->compact(rig.pool, 3) <= 3);
        }
        give(k, 1, ids);
        take(k, 1, got);
        rig.ops->moves(rig.pool, &moves, &n_moves, &changes, &n_changes);
        for (uint32_t i = 0; i < n_moves; i++) {
            assert_true(moves[i].from != moves[i].to);
            assert_int_equal(shadow[moves[i].kind][moves[i].id], moves[i].from);
            shadow[moves[i].kind][moves[i].id] = moves[i].to;
        }
        static uint8_t seen[KG_N_KINDS][MOST * 8];
        memset(seen, 0, sizeof(seen));
        for (uint32_t i = 0; i < n_changes; i++) {
            const struct kg_table_change *c = &changes[i];
            assert_int_equal(seen[c->kind][c->entry]++, 0); /* each once */
            assert_int_equal(c->slot, rig.ops->table(rig.pool, c->kind)[c->entry]);
            shadow[c->kind][c->entry] = c->slot;
        }
        for (uint32_t i = 0; i < n_moves; i++) /* moved entries are among the changes */
            assert_true(seen[moves[i].kind][moves[i].id]);
        for (uint32_t i = 0; i < KG_N_KINDS; i++)
            assert_memory_equal(shadow[i], rig.ops->table(rig.pool, i),
                                rig.layout.max_units[i] * rig_width(&rig, i) * sizeof(uint32_t));
        rig.ops->moves(rig.pool, &moves, &n_moves, &changes, &n_changes);
        assert_int_equal(n_moves + n_changes, 0); /* told once */
        assert_true(kept > 0);
    }
}

static void a_unit_without_bytes_changes_place_without_a_move(void **state)
{
    uint32_t ids[6];

    (void)state;
    if (!has(KG_POOL_CAP_MOVES))
        return;
    take(KG_PAGE, 3, ids);
    forget_moves();
    take(KG_PAGE, 3, ids + 3);
    give(KG_PAGE, 3, ids);
    assert_int_equal(rig.ops->compact(rig.pool, 100), 3);
    assert_int_equal(forget_moves(), 0);
    assert_int_equal(rig_metric(&rig, "relocations_total"), 0);
    assert_int_equal(healthy().holes, 0);
}

/* Holes of a kind and the gap are loose for it; what the neighbour holds is not. */
static void what_is_loose_is_taken_without_a_move(void **state)
{
    static uint32_t ids[MOST], others[MOST], got[MOST];
    uint32_t n_others;

    (void)state;
    if (!has(KG_POOL_CAP_MOVES) || !KG_HAS(rig.ops, struct kg_pool_ops, loose))
        return;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        reopen();
        assert_int_equal(rig.ops->loose(rig.pool, k), rig.layout.max_units[k]);
        (void)swiss(k, ids, others, &n_others); /* no gap, holes among units of kind k */
        uint32_t n = rig.ops->loose(rig.pool, k);
        assert_true(n > 0);
        forget_moves();
        take(k, n - 1, got);
        assert_int_equal(forget_moves(), 0);
        assert_int_equal(rig.ops->loose(rig.pool, k), 1);
        give(k, n - 1, got);
        n = rig.ops->loose(rig.pool, !k); /* the gap alone */
        take(!k, n + 1, got);
        assert_true(forget_moves() > 0);
    }
}

static void idle_compaction_is_capped_and_closes_holes(void **state)
{
    static uint32_t ids[MOST], others[MOST];
    uint32_t n_others, moved = 0;

    (void)state;
    if (!has(KG_POOL_CAP_MOVES))
        return;
    uint32_t kept = swiss(KG_PAGE, ids, others, &n_others);
    uint64_t holes = healthy().holes;
    assert_true(holes > 0);
    assert_int_equal(rig.ops->compact(rig.pool, 0), 0);
    assert_int_equal(healthy().holes, holes);
    for (;;) {
        int n = rig.ops->compact(rig.pool, 2);
        assert_true(n >= 0 && n <= 2);
        assert_int_equal(forget_moves(), n);
        if (n == 0)
            break;
        moved += (uint32_t)n;
        assert_true(healthy().holes < holes);
        holes = healthy().holes;
    }
    assert_int_equal(holes, 0);
    assert_true(moved <= kept);
    assert_no_overlap();
}

/* The topmost unit of the band with holes, pinned, holds its frontier; nothing moves it. */
static void compaction_works_around_pinned_units(void **state)
{
    static uint32_t ids[MOST], others[MOST];
    uint32_t n_others, got[1];

    (void)state;
    if (!has(KG_POOL_CAP_MOVES))
        return;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        struct kg_shortage s;
        reopen();
        uint32_t kept = swiss(k, ids, others, &n_others);
        uint32_t p = k != KG_PAGE, q = k != KG_STATE;
        uint32_t most = 1;
        while (try_grant(p * (most + 1), q * (most + 1), nothing, &s) == KG_OK)
            most++;
        uint32_t top = ids[kept - 1], slot = rig.ops->table(rig.pool, k)[top];
        assert_int_equal(rig.ops->pin(rig.pool, k, top, nothing), KG_OK);
        assert_int_equal(try_grant(p * most, q * most, nothing, &s), KG_EAGAIN);
        assert_int_equal(s.evict[k], KG_NONE); /* evicting below the pin frees nothing */
        assert_true(s.evict[!k] != KG_NONE && s.evict[!k] <= most);
        assert_int_equal(rig.ops->compact(rig.pool, 1000), 0);
        assert_int_equal(rig.ops->table(rig.pool, k)[top], slot);
        /* a pin in the middle holds its own place, what is above it still moves */
        assert_int_equal(rig.ops->unpin(rig.pool, k, top), KG_OK);
        uint32_t middle = ids[kept / 2];
        slot = rig.ops->table(rig.pool, k)[middle];
        assert_int_equal(rig.ops->pin(rig.pool, k, middle, nothing), KG_OK);
        while (try_grant(p, q, nothing, &s) == KG_OK)
            take(!k, 1, got);
        assert_true(forget_moves() > 0);
        assert_int_equal(rig.ops->table(rig.pool, k)[middle], slot);
        assert_no_overlap();
        assert_int_equal(rig.ops->unpin(rig.pool, k, middle), KG_OK);
        healthy();
    }
}

static void pin_that_holds_room_of_a_promise_is_refused(void **state)
{
    static uint32_t ids[MOST], others[MOST], got[MOST];
    static struct view before;
    uint32_t n_others, most = 0;

    (void)state;
    if (!has(KG_POOL_CAP_MOVES))
        return;
    struct kg_shortage s;
    uint32_t kept = swiss(KG_STATE, ids, others, &n_others);
    while (try_grant(most + 1, 0, nothing, &s) == KG_OK)
        most++;
    uint32_t grant = open_grant(most, 0, nothing);
    look(&before);
    assert_int_equal(rig.ops->pin(rig.pool, KG_STATE, ids[kept - 1], nothing), KG_EAGAIN);
    assert_unchanged(&before);
    assert_int_equal(rig.ops->pin(rig.pool, KG_STATE, ids[0], nothing), KG_OK);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_PAGE, most, got), KG_OK);
    assert_true(forget_moves() > 0);
    healthy();
}

const struct CMUnitTest move_cases[] = {
    CASE(urgent_moves_are_bounded_by_the_missing_bytes),
    CASE(own_holes_are_used_before_anything_moves),
    CASE(moves_and_changes_lead_to_the_table),
    CASE(a_unit_without_bytes_changes_place_without_a_move),
    CASE(what_is_loose_is_taken_without_a_move),
    CASE(idle_compaction_is_capped_and_closes_holes),
    CASE(compaction_works_around_pinned_units),
    CASE(pin_that_holds_room_of_a_promise_is_refused),
};
const size_t n_move_cases = sizeof(move_cases) / sizeof(move_cases[0]);
