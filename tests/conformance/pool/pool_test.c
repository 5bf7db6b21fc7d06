/*
 * What every pool must do, run over each plugin and style: pool_test PLUGIN.so [KEY=VALUE ...].
 * Cases that need a capability look it up in the layout. V and S numbers name the public failure
 * of another engine that a case would have caught.
 */
#include "cases.h"

#include <stdlib.h>
#include <string.h>

struct rig rig;
const uint32_t nothing[KG_N_KINDS];

int has(uint64_t cap)
{
    return (rig.layout.caps & cap) != 0;
}

int open_odd(void **state)
{
    struct kg_pool_geom geom = rig_odd_geom();
    struct kg_error err = {0};

    (void)state;
    if (rig_open(&rig, &geom, &err) != KG_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    assert_true(rig.layout.max_units[0] <= MOST && rig.layout.max_units[1] <= MOST);
    return 0;
}

int close_odd(void **state)
{
    (void)state;
    return rig_close(&rig);
}

void reopen(void)
{
    assert_int_equal(close_odd(NULL), 0);
    assert_int_equal(open_odd(NULL), 0);
}

/* What classes() says of each unit comes to the bytes by class, and owned units alone are mapped.
 */
static void assert_classes_hold(const struct kg_pool_bytes *b)
{
    uint64_t pinned = 0;

    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        const uint8_t *flags = rig.ops->classes(rig.pool, k);
        const uint32_t *table = rig.ops->table(rig.pool, k);
        uint64_t natural = k == KG_PAGE ? rig.layout.page_tokens * rig.geom.token_bytes
                                        : rig.geom.n_state_parts * rig.geom.state_part_bytes;
        uint64_t n[8] = {0};
        for (uint32_t i = 0; i < rig.layout.max_units[k]; i++) {
            n[flags[i] & 7]++;
            if (((flags[i] & KG_UNIT_OWNED) != 0) != (table[i * rig_width(&rig, k)] != KG_NONE))
                fail_msg("unit %u of kind %u: flags %u, slot %u", i, k, flags[i],
                         table[i * rig_width(&rig, k)]);
        }
        assert_int_equal(n[2] + n[4] + n[6], 0); /* nobody's units are nothing else */
        assert_int_equal(n[1] * natural, b->live[k]);
        assert_int_equal(n[3] * natural, b->cached[k]);
        pinned += (n[5] + n[7]) * natural;
    }
    assert_int_equal(pinned, b->pinned);
}

struct kg_pool_bytes healthy(void)
{
    struct kg_error err = {0};
    struct kg_pool_bytes b;
    uint64_t units = 0, owned;

    if (rig.ops->check(rig.pool, &err) != KG_OK)
        fail_msg("check: %s", err.text);
    rig.ops->bytes(rig.pool, &b);
    assert_true(rig_sums_hold(&b));
    assert_int_equal(b.arena, rig.layout.arena_bytes);
    for (uint32_t k = 0; k < KG_N_KINDS; k++)
        units += rig.ops->n_used(rig.pool, k) * rig.layout.unit_bytes[k];
    owned = b.arena - b.holes - b.gap;
    assert_true(owned >= units);
    if (KG_HAS(rig.ops, struct kg_pool_ops, classes))
        assert_classes_hold(&b);
    return b;
}

void look(struct view *v)
{
    memset(v, 0, sizeof(*v));
    v->bytes = healthy();
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint32_t n = rig.layout.max_units[k] * rig_width(&rig, k);
        assert_true(n <= MOST * 8);
        v->used[k] = rig.ops->n_used(rig.pool, k);
        memcpy(v->table[k], rig.ops->table(rig.pool, k), n * sizeof(uint32_t));
    }
}

void assert_unchanged(const struct view *before)
{
    static struct view now;

    look(&now);
    assert_memory_equal(before, &now, sizeof(now));
}

uint32_t open_grant(uint32_t pages, uint32_t states, const uint32_t *evictable)
{
    const uint32_t need[KG_N_KINDS] = {[KG_PAGE] = pages, [KG_STATE] = states};
    struct kg_shortage s;
    uint32_t grant = KG_NONE;

    assert_int_equal(rig.ops->grant_open(rig.pool, need, evictable, &grant, &s), KG_OK);
    return grant;
}

int try_grant(uint32_t pages, uint32_t states, const uint32_t *evictable, struct kg_shortage *s)
{
    const uint32_t need[KG_N_KINDS] = {[KG_PAGE] = pages, [KG_STATE] = states};
    uint32_t grant = KG_NONE;
    int rc = rig.ops->grant_open(rig.pool, need, evictable, &grant, s);

    if (rc == KG_OK)
        rig.ops->grant_close(rig.pool, grant);
    else
        assert_int_equal(grant, KG_NONE);
    return rc;
}

void take(uint32_t kind, uint32_t n, uint32_t *ids)
{
    uint32_t grant = open_grant(kind == KG_PAGE ? n : 0, kind == KG_STATE ? n : 0, nothing);

    assert_int_equal(rig.ops->take(rig.pool, grant, kind, n, ids), KG_OK);
    rig.ops->grant_close(rig.pool, grant);
}

uint32_t fill(uint32_t kind, uint32_t *ids)
{
    struct kg_shortage s;
    uint32_t n = 0;

    while (try_grant(kind == KG_PAGE, kind == KG_STATE, nothing, &s) == KG_OK)
        take(kind, 1, &ids[n++]);
    return n;
}

void give(uint32_t kind, uint32_t n, const uint32_t *ids)
{
    assert_int_equal(rig.ops->give(rig.pool, kind, n, ids), KG_OK);
}

uint32_t forget_moves(void)
{
    const struct kg_move *moves;
    const struct kg_table_change *changes;
    uint32_t n_moves, n_changes;

    rig.ops->moves(rig.pool, &moves, &n_moves, &changes, &n_changes);
    return n_moves;
}

struct span {
    uint64_t from, to;
};

static int by_from(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    return x->from < y->from ? -1 : x->from > y->from;
}

void assert_no_overlap(void)
{
    static struct span spans[MOST * 10];
    uint32_t n = 0;

    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        for (uint32_t e = 0; e < rig.layout.max_units[k] * rig_width(&rig, k); e++) {
            if (rig.ops->table(rig.pool, k)[e] == KG_NONE)
                continue;
            uint64_t at = rig_address(&rig, k, e);
            spans[n++] = (struct span){at, at + rig.layout.stride[k]};
        }
    }
    qsort(spans, n, sizeof(*spans), by_from);
    for (uint32_t i = 0; i + 1 < n; i++)
        assert_true(spans[i].to <= spans[i + 1].from);
    assert_true(n == 0 || spans[n - 1].to <= rig.layout.arena_bytes);
}

int main(int argc, char **argv)
{
    struct CMUnitTest all[64];
    const struct CMUnitTest *lists[] = {layout_cases, grant_cases, move_cases};
    const size_t sizes[] = {n_layout_cases, n_grant_cases, n_move_cases};
    size_t n = 0;

    if (argc < 2 || rig_load(&rig, argv[1], argc - 2, argv + 2) != 0) {
        print_error("usage: pool_test PLUGIN.so [KEY=VALUE ...]\n");
        return 2;
    }
    for (size_t i = 0; i < 3; i++) {
        memcpy(all + n, lists[i], sizes[i] * sizeof(*all));
        n += sizes[i];
    }
    int failed = _cmocka_run_group_tests("pool", all, n, NULL, NULL);
    rig_unload(&rig);
    return failed;
}
