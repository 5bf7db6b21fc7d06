/* What open answers and refuses; ids, slots and addresses. */
#include "cases.h"

#include <stdlib.h>
#include <string.h>

static void layout_keeps_units_inside_the_arena_and_aligned(void **state)
{
    const struct kg_pool_layout *l = &rig.layout;
    struct kg_pool_geom g = rig_odd_geom();

    (void)state;
    assert_int_equal(l->size, sizeof(*l));
    assert_true(l->arena_bytes <= g.arena_bytes && l->arena_bytes > 0);
    assert_true(l->page_tokens >= g.page_tokens);
    assert_int_equal(l->page_tokens % g.page_tokens_align, 0);
    assert_true(l->page_tokens * g.token_bytes <= l->stride[KG_PAGE]);
    assert_true(l->parts_per_slot * g.state_part_bytes <= l->stride[KG_STATE]);
    assert_true(l->slots_per_state * l->parts_per_slot >= g.n_state_parts);
    assert_true((l->slots_per_state - 1) * l->parts_per_slot < g.n_state_parts);
    assert_true(l->max_units[KG_PAGE] >= 1 && l->max_units[KG_STATE] >= g.max_seqs);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        assert_int_equal(l->base[k] % g.align, 0);
        assert_int_equal(l->stride[k] % g.align, 0);
        assert_true(l->base[k] + l->max_slots[k] * l->stride[k] <= l->arena_bytes);
        assert_int_equal(l->unit_bytes[k], rig_width(&rig, k) * l->stride[k]);
        assert_true(l->max_units[k] * rig_width(&rig, k) <= l->max_slots[k]);
    }
}

static void layout_capabilities_are_backed_by_the_descriptor(void **state)
{
    (void)state;
    assert_int_equal(rig.layout.caps & ~rig.plugin->caps, 0);
    if (has(KG_POOL_CAP_MOVES))
        assert_true(KG_HAS(rig.ops, struct kg_pool_ops, compact));
}

/* Only a layout that spreads a state over several slots may inflate the page. */
static void page_is_inflated_only_where_blocks_are_uniform(void **state) /* V31 */
{
    struct kg_pool_geom g = rig_odd_geom();
    uint32_t wanted =
        (g.page_tokens + g.page_tokens_align - 1) / g.page_tokens_align * g.page_tokens_align;

    (void)state;
    if (rig.layout.base[KG_PAGE] != rig.layout.base[KG_STATE])
        assert_int_equal(rig.layout.page_tokens, wanted);
    else
        assert_int_equal(rig.layout.stride[KG_PAGE], rig.layout.stride[KG_STATE]);
}

static void empty_pool_is_all_free(void **state)
{
    struct kg_pool_bytes b = healthy();

    (void)state;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        assert_int_equal(rig.ops->n_used(rig.pool, k), 0);
        assert_int_equal(b.live[k] + b.cached[k], 0);
        for (uint32_t e = 0; e < rig.layout.max_units[k] * rig_width(&rig, k); e++)
            assert_int_equal(rig.ops->table(rig.pool, k)[e], KG_NONE);
    }
    assert_int_equal(b.pinned + b.promised, 0);
    assert_true(b.padding < rig.layout.stride[KG_PAGE]);
}

static void assert_refused(const struct kg_pool_geom *g, const char *number)
{
    struct kg_error err = {0};
    struct rig other = rig; /* the plugin and its options; the open pool stays as it is */

    other.host.ctx = &other;
    other.host.cells = other.cells;
    other.host_bytes = 0;
    int rc = rig_open(&other, g, &err);
    assert_true(rc == KG_ECONFIG || rc == KG_EABI);
    assert_int_equal(err.rc, rc);
    if (strstr(err.text, number) == NULL)
        fail_msg("\"%s\" does not name %s", err.text, number);
}

/* Refused before anything is loaded, with the numbers. */
static void open_refuses_what_cannot_fit_and_names_the_numbers(void **state) /* V34 */
{
    struct kg_pool_geom g = rig_odd_geom();

    (void)state;
    g.arena_bytes = 20001; /* four states of 5,000 bytes and no page */
    assert_refused(&g, "20001");
    g = rig_odd_geom();
    g.max_seqs = 77;
    assert_refused(&g, "77");
    g = rig_odd_geom();
    g.arena_bytes = 0;
    assert_refused(&g, "bytes");
}

static void open_refuses_nonsense(void **state)
{
    struct kg_pool_geom good = rig_odd_geom(), g;

    (void)state;
#define BAD(field, value, number)   \
    do {                            \
        g = good;                   \
        g.field = (value);          \
        assert_refused(&g, number); \
    } while (0)
    BAD(size, sizeof(g) - 8, "56");
    BAD(token_bytes, 0, "token bytes 0");
    BAD(state_part_bytes, 0, "0 bytes");
    BAD(n_state_parts, 0, "state parts 0");
    BAD(page_tokens, 0, "page tokens 0");
    BAD(page_tokens_align, 0, "steps of 0");
    BAD(max_seqs, 0, "max_seqs 0");
    BAD(align, 0, "alignment 0");
    BAD(align, 48, "48");
    BAD(arena_bytes, UINT64_MAX, "18446744073709551615");
    /* products that wrap 64 bits */
    BAD(token_bytes, UINT64_C(1) << 62, "100003");
    BAD(state_part_bytes, UINT64_C(1) << 62, "100003");
    BAD(state_part_bytes, UINT64_MAX, "100003");
    BAD(page_tokens, UINT32_MAX, "100003");
    BAD(page_tokens_align, UINT32_MAX, "100003");
    BAD(max_seqs, UINT32_MAX, "4294967295");
    BAD(n_state_parts, UINT32_MAX, "");
    BAD(align, 1u << 31, "100003");
#undef BAD
}

/* At the smallest arena that is accepted, one page and max_seqs states do fit. */
static void smallest_accepted_arena_holds_a_page_and_max_seqs_states(void **state)
{
    struct kg_pool_geom g = rig_odd_geom();
    struct kg_error err;
    uint64_t low = 0, high = g.arena_bytes;

    (void)state;
    assert_int_equal(close_odd(NULL), 0);
    while (high - low > 1) {
        g.arena_bytes = low + (high - low) / 2;
        if (rig_open(&rig, &g, &err) == KG_OK) {
            high = g.arena_bytes;
            assert_int_equal(rig_close(&rig), 0);
        } else {
            low = g.arena_bytes;
        }
    }
    g.arena_bytes = high;
    assert_int_equal(rig_open(&rig, &g, &err), KG_OK);
    uint32_t ids[8];
    uint32_t grant = open_grant(1, g.max_seqs, nothing);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_STATE, g.max_seqs, ids), KG_OK);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_PAGE, 1, ids), KG_OK);
    healthy();
}

static void taken_ids_are_distinct_and_their_bytes_never_overlap(void **state)
{
    static uint32_t pages[MOST], states[MOST];
    char seen[MOST] = {0};

    (void)state;
    uint32_t n_states = rig.layout.max_units[KG_STATE] / 2 + 1;
    take(KG_STATE, n_states, states);
    uint32_t n_pages = fill(KG_PAGE, pages);
    assert_true(n_pages > 0);
    for (uint32_t i = 0; i < n_pages; i++) {
        assert_true(pages[i] < rig.layout.max_units[KG_PAGE] && !seen[pages[i]]);
        seen[pages[i]] = 1;
    }
    assert_int_equal(rig.ops->n_used(rig.pool, KG_PAGE), n_pages);
    assert_int_equal(rig.ops->n_used(rig.pool, KG_STATE), n_states);
    assert_no_overlap();
    healthy();
}

static void given_units_are_unmapped_and_can_be_taken_again(void **state)
{
    static uint32_t ids[MOST];
    const uint32_t *table = rig.ops->table(rig.pool, KG_PAGE);

    (void)state;
    for (int round = 0; round < 3; round++) {
        uint32_t n = fill(KG_PAGE, ids);
        assert_int_equal(n, rig.layout.max_units[KG_PAGE]);
        give(KG_PAGE, n, ids);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(table[ids[i]], KG_NONE);
        healthy();
    }
    assert_ptr_equal(table, rig.ops->table(rig.pool, KG_PAGE));
}

static void taking_none_is_allowed_and_takes_nothing(void **state)
{
    static struct view before;
    struct kg_shortage s;
    uint32_t grant = open_grant(0, 0, nothing);

    (void)state;
    look(&before);
    assert_int_equal(rig.ops->shortfall(rig.pool, grant, KG_PAGE, 0, &s), KG_OK);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_STATE, 0, NULL), KG_OK);
    assert_int_equal(rig.ops->give(rig.pool, KG_STATE, 0, NULL), KG_OK);
    assert_unchanged(&before);
}

/* Ids up to 2^20 at K3's page stride; every address in 64 bits. */
static void addresses_of_a_million_large_units_are_64_bit(void **state) /* V29, S5 */
{
    struct kg_pool_geom g = {
        .size = sizeof(g),
        .arena_bytes = (UINT64_C(884736) << 20) + 4 * UINT64_C(60000000),
        .token_bytes = 13824,
        .state_part_bytes = 814080,
        .n_state_parts = 69,
        .page_tokens = 64,
        .page_tokens_align = 64,
        .align = 256,
        .max_seqs = 4,
    };
    struct kg_error err = {0};

    (void)state;
    assert_int_equal(close_odd(NULL), 0);
    assert_int_equal(rig_open(&rig, &g, &err), KG_OK);
    uint32_t n = rig.layout.max_units[KG_PAGE];
    assert_true((unsigned __int128)n * rig.layout.stride[KG_PAGE] > UINT64_C(0xffffffff));
    uint32_t *ids = calloc(n, sizeof(*ids));
    uint8_t *seen = calloc(rig.layout.max_slots[KG_PAGE], 1);
    assert_non_null(ids);
    assert_non_null(seen);
    take(KG_PAGE, n, ids);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t slot = rig.ops->table(rig.pool, KG_PAGE)[ids[i]];
        unsigned __int128 want =
            (unsigned __int128)slot * rig.layout.stride[KG_PAGE] + rig.layout.base[KG_PAGE];
        assert_true(slot < rig.layout.max_slots[KG_PAGE] && !seen[slot]);
        seen[slot] = 1;
        assert_true(want == rig_address(&rig, KG_PAGE, ids[i]));
        assert_true(want + rig.layout.stride[KG_PAGE] <= rig.layout.arena_bytes);
    }
    uint64_t live = (uint64_t)n * rig.layout.page_tokens * g.token_bytes;
    assert_int_equal(healthy().live[KG_PAGE], live);
    /* holes all over, then full again: the free structures at their deepest */
    for (uint32_t i = 0; i < n; i += 1 + (i * 2654435761u >> 20) % 7)
        give(KG_PAGE, 1, &ids[i]);
    uint32_t n_given = n - rig.ops->n_used(rig.pool, KG_PAGE);
    assert_true(n_given > n / 8);
    healthy();
    take(KG_PAGE, n_given, ids);
    assert_int_equal(healthy().live[KG_PAGE], live);
    free(ids);
    free(seen);
}

/* Each owner class by itself, of both kinds; free again in the end. The address never changes. */
static void classes_name_the_owner_of_each_unit(void **state)
{
    static uint32_t ids[MOST];
    struct kg_shortage s;

    (void)state;
    if (!KG_HAS(rig.ops, struct kg_pool_ops, classes))
        return;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        const uint8_t *flags = rig.ops->classes(rig.pool, k);
        take(k, 3, ids);
        assert_int_equal(rig.ops->own(rig.pool, k, 2, ids, 1), KG_OK);
        assert_int_equal(rig.ops->pin(rig.pool, k, ids[0], nothing), KG_OK);
        assert_int_equal(flags[ids[0]] & 7, KG_UNIT_OWNED | KG_UNIT_CACHED | KG_UNIT_PINNED);
        assert_int_equal(flags[ids[1]] & 7, KG_UNIT_OWNED | KG_UNIT_CACHED);
        assert_int_equal(flags[ids[2]] & 7, KG_UNIT_OWNED);
        healthy();
        assert_int_equal(rig.ops->unpin(rig.pool, k, ids[0]), KG_OK);
        give(k, 3, ids);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(flags[ids[i]] & 7, 0);
        while (try_grant(k == KG_PAGE, k == KG_STATE, nothing, &s) == KG_OK)
            take(k, 1, ids);
        healthy();
        assert_ptr_equal(flags, rig.ops->classes(rig.pool, k));
        reopen();
    }
}

const struct CMUnitTest layout_cases[] = {
    CASE(layout_keeps_units_inside_the_arena_and_aligned),
    CASE(layout_capabilities_are_backed_by_the_descriptor),
    CASE(page_is_inflated_only_where_blocks_are_uniform),
    CASE(empty_pool_is_all_free),
    CASE(open_refuses_what_cannot_fit_and_names_the_numbers),
    CASE(open_refuses_nonsense),
    CASE(smallest_accepted_arena_holds_a_page_and_max_seqs_states),
    CASE(taken_ids_are_distinct_and_their_bytes_never_overlap),
    CASE(given_units_are_unmapped_and_can_be_taken_again),
    CASE(taking_none_is_allowed_and_takes_nothing),
    CASE(addresses_of_a_million_large_units_are_64_bit),
    CASE(classes_name_the_owner_of_each_unit),
};
const size_t n_layout_cases = sizeof(layout_cases) / sizeof(layout_cases[0]);
