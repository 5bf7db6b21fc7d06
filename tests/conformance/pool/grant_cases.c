/* Promises, shortfall, take, give, own, pin: what holds for every pool, moving or not. */
#include "cases.h"

#include <stdlib.h>
#include <string.h>

static void refused_grant_takes_nothing_and_says_what_is_short(void **state)
{
    static struct view before;
    static uint32_t ids[MOST];
    struct kg_shortage s = {.kind = 99};

    (void)state;
    fill(KG_STATE, ids);
    look(&before);
    assert_int_equal(try_grant(1, 2, nothing, &s), KG_EAGAIN);
    assert_unchanged(&before);
    assert_int_equal(s.kind, KG_STATE);
    assert_true(s.bytes > 0);
    assert_true(s.evict[KG_STATE] >= 1 && s.evict[KG_STATE] <= 3);
    uint32_t n = fill(KG_PAGE, ids);
    look(&before);
    assert_int_equal(try_grant(1, 0, nothing, &s), KG_EAGAIN);
    assert_unchanged(&before);
    assert_int_equal(s.kind, KG_PAGE);
    assert_int_equal(s.evict[KG_PAGE], 1);
    assert_true(n <= MOST);
}

/* The refusal's numbers: giving back that many units of a kind is enough, one less is not. */
static void refusal_names_the_least_number_of_units(void **state)
{
    static uint32_t ids[KG_N_KINDS][MOST];
    const uint32_t needs[][KG_N_KINDS] = {{1, 0}, {0, 1}, {9, 0}, {5, 2}, {0, 3}};

    (void)state;
    for (uint32_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++) {
        for (uint32_t k = 0; k < KG_N_KINDS; k++) {
            struct kg_shortage s, again;
            reopen();
            take(KG_STATE, rig.layout.max_units[KG_STATE] / 2, ids[KG_STATE]);
            fill(KG_PAGE, ids[KG_PAGE]);
            if (!has(KG_POOL_CAP_SHARED))
                fill(KG_STATE, ids[KG_STATE] + rig.layout.max_units[KG_STATE] / 2);
            assert_int_equal(try_grant(needs[i][0], needs[i][1], nothing, &s), KG_EAGAIN);
            uint32_t n = s.evict[k];
            if (n == KG_NONE || n > rig.ops->n_used(rig.pool, k))
                continue;
            assert_true(n > 0);
            give(k, n - 1, ids[k]);
            int rc = try_grant(needs[i][0], needs[i][1], nothing, &again);
            /* separate budgets: the other kind may be short as well */
            if (has(KG_POOL_CAP_SHARED) || s.kind == k)
                assert_int_equal(rc, KG_EAGAIN);
            give(k, 1, ids[k] + n - 1);
            rc = try_grant(needs[i][0], needs[i][1], nothing, &again);
            if (has(KG_POOL_CAP_SHARED))
                assert_int_equal(rc, KG_OK);
            else
                assert_true(rc == KG_OK || again.kind != k);
        }
    }
}

/* What an empty pool cannot hold is never, not later. */
static void grant_that_an_empty_pool_cannot_hold_is_never(void **state)
{
    struct kg_shortage s;
    uint32_t ids[1];

    (void)state;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint32_t most = rig.layout.max_units[k];
        uint32_t p = k == KG_PAGE, q = k == KG_STATE;
        assert_int_equal(try_grant(p * most, q * most, nothing, &s), KG_OK);
        assert_int_equal(try_grant(p * (most + 1), q * (most + 1), nothing, &s), KG_ENEVER);
        assert_int_equal(try_grant(p * UINT32_MAX, q * UINT32_MAX, nothing, &s), KG_ENEVER);
    }
    assert_int_equal(try_grant(UINT32_MAX, UINT32_MAX, nothing, &s), KG_ENEVER);
    take(KG_PAGE, 1, ids);
    uint32_t most = rig.layout.max_units[KG_PAGE];
    assert_int_equal(try_grant(most, 0, nothing, &s), KG_EAGAIN);
    uint32_t grant = open_grant(1, 0, nothing);
    const uint32_t more[KG_N_KINDS] = {[KG_PAGE] = most};
    assert_int_equal(rig.ops->grant_extend(rig.pool, grant, more, nothing, &s), KG_ENEVER);
    const uint32_t less[KG_N_KINDS] = {[KG_PAGE] = most - 1};
    assert_int_equal(rig.ops->grant_extend(rig.pool, grant, less, nothing, &s), KG_EAGAIN);
    healthy();
}

static void open_promises_count_against_new_ones(void **state)
{
    struct kg_shortage s;
    uint32_t most = rig.layout.max_units[KG_PAGE];
    uint32_t grant = open_grant(most - 1, 0, nothing);

    (void)state;
    assert_int_equal(healthy().promised, (most - 1) * rig.layout.unit_bytes[KG_PAGE]);
    assert_int_equal(try_grant(2, 0, nothing, &s), KG_EAGAIN);
    assert_int_equal(try_grant(1, 0, nothing, &s), KG_OK);
    rig.ops->grant_close(rig.pool, grant);
    assert_int_equal(healthy().promised, 0);
    assert_int_equal(try_grant(most, 0, nothing, &s), KG_OK);
}

static void extend_adds_to_a_grant_and_close_ends_it(void **state)
{
    static uint32_t ids[MOST];
    struct kg_shortage s;
    const uint32_t more[KG_N_KINDS] = {2, 1};
    uint32_t grant = open_grant(1, 0, nothing);

    (void)state;
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_PAGE, 2, ids), KG_EINVAL);
    assert_int_equal(rig.ops->grant_extend(rig.pool, grant, more, nothing, &s), KG_OK);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_PAGE, 3, ids), KG_OK);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_PAGE, 1, ids), KG_EINVAL);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_STATE, 1, ids), KG_OK);
    rig.ops->grant_close(rig.pool, grant);
    rig.ops->grant_close(rig.pool, grant);
    rig.ops->grant_close(rig.pool, KG_NONE);
    assert_int_equal(rig.ops->grant_extend(rig.pool, grant, more, nothing, &s), KG_EINVAL);
    assert_int_equal(rig.ops->shortfall(rig.pool, grant, KG_PAGE, 0, &s), KG_EINVAL);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_PAGE, 0, ids), KG_EINVAL);
    assert_int_equal(rig.ops->n_used(rig.pool, KG_PAGE), 3); /* units taken stay owned */
    assert_int_equal(healthy().promised, 0);
}

static void number_of_open_grants_is_limited_and_said(void **state)
{
    struct kg_shortage s;
    uint32_t most = 8 * rig.geom.max_seqs + 64, grant = 0;

    (void)state;
    for (uint32_t i = 0; i < most; i++)
        grant = open_grant(0, 0, nothing);
    assert_int_equal(try_grant(0, 0, nothing, &s), KG_ELIMIT);
    rig.ops->grant_close(rig.pool, grant);
    assert_int_equal(try_grant(0, 0, nothing, &s), KG_OK);
    healthy();
}

static void take_beyond_the_grant_or_of_no_kind_is_refused(void **state)
{
    static struct view before;
    uint32_t ids[4] = {7, 7, 7, 7};
    struct kg_shortage s;
    uint32_t grant = open_grant(1, 1, nothing);

    (void)state;
    look(&before);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_PAGE, 2, ids), KG_EINVAL);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_STATE, 2, ids), KG_EINVAL);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_N_KINDS, 0, ids), KG_EINVAL);
    assert_int_equal(rig.ops->shortfall(rig.pool, grant, KG_STATE, 2, &s), KG_EINVAL);
    assert_int_equal(rig.ops->take(rig.pool, KG_NONE, KG_PAGE, 1, ids), KG_EINVAL);
    assert_int_equal(ids[0], 7);
    assert_unchanged(&before);
}

static void only_units_known_as_cached_count_as_evictable(void **state)
{
    static uint32_t ids[MOST];
    const uint32_t many[KG_N_KINDS] = {UINT32_MAX, UINT32_MAX};
    struct kg_shortage s;

    (void)state;
    uint32_t n = fill(KG_PAGE, ids);
    assert_int_equal(try_grant(1, 0, many, &s), KG_EAGAIN);
    assert_int_equal(rig.ops->own(rig.pool, KG_PAGE, 2, ids, 1), KG_OK);
    assert_int_equal(try_grant(2, 0, many, &s), KG_OK);
    assert_int_equal(try_grant(3, 0, many, &s), KG_EAGAIN);
    assert_int_equal(s.evict[KG_PAGE], 1);
    const uint32_t one[KG_N_KINDS] = {[KG_PAGE] = 1};
    assert_int_equal(try_grant(1, 0, one, &s), KG_OK);
    assert_int_equal(try_grant(2, 0, one, &s), KG_EAGAIN);
    assert_true(n >= 3);
}

/* A pool full of cached units of both kinds, with some holes in both. */
static void cached_full(uint32_t ids[KG_N_KINDS][MOST], uint32_t n[KG_N_KINDS])
{
    n[KG_STATE] = rig.layout.max_units[KG_STATE] / 2;
    take(KG_STATE, n[KG_STATE], ids[KG_STATE]);
    n[KG_PAGE] = fill(KG_PAGE, ids[KG_PAGE]);
    if (!has(KG_POOL_CAP_SHARED))
        n[KG_STATE] += fill(KG_STATE, ids[KG_STATE] + n[KG_STATE]);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        assert_int_equal(rig.ops->own(rig.pool, k, n[k], ids[k], 1), KG_OK);
        give(k, 1, &ids[k][1]);
        ids[k][1] = ids[k][--n[k]];
    }
    forget_moves();
}

/* Evicts n cached units of a kind, from all over the list. */
static void evict(uint32_t kind, uint32_t n, uint32_t ids[KG_N_KINDS][MOST],
                  uint32_t left[KG_N_KINDS])
{
    for (; n > 0; n--) {
        uint32_t i = (left[kind] * 7 + n) % left[kind];
        give(kind, 1, &ids[kind][i]);
        ids[kind][i] = ids[kind][--left[kind]];
    }
}

static void shortfall_is_exact_for_kind(uint32_t kind, uint32_t n, uint32_t other)
{
    static uint32_t ids[KG_N_KINDS][MOST], got[MOST];
    uint32_t left[KG_N_KINDS];
    struct kg_shortage s;

    reopen();
    cached_full(ids, left);
    uint32_t grant = open_grant(kind == KG_PAGE ? n : 0, kind == KG_STATE ? n : 0, left);
    int rc = rig.ops->shortfall(rig.pool, grant, kind, n, &s);
    if (rc == KG_OK) {
        assert_int_equal(rig.ops->take(rig.pool, grant, kind, n, got), KG_OK);
        return;
    }
    assert_int_equal(rc, KG_EAGAIN);
    assert_int_equal(s.kind, kind);
    if (!has(KG_POOL_CAP_SHARED))
        assert_int_equal(s.evict[!kind], KG_NONE);
    uint32_t x = s.evict[other];
    if (x == KG_NONE || x > left[other])
        return;
    evict(other, x - 1, ids, left);
    assert_int_equal(rig.ops->shortfall(rig.pool, grant, kind, n, &s), KG_EAGAIN);
    assert_int_equal(s.evict[other], 1);
    static struct view before;
    look(&before);
    assert_int_equal(rig.ops->take(rig.pool, grant, kind, n, got), KG_EAGAIN);
    assert_unchanged(&before);
    evict(other, 1, ids, left);
    assert_int_equal(rig.ops->shortfall(rig.pool, grant, kind, n, &s), KG_OK);
    assert_int_equal(rig.ops->take(rig.pool, grant, kind, n, got), KG_OK);
    assert_no_overlap();
    healthy();
}

static void evicting_exactly_the_shortfall_is_enough_and_one_less_is_not(void **state) /* S7 */
{
    (void)state;
    for (uint32_t other = 0; other < KG_N_KINDS; other++) {
        for (uint32_t n = 1; n <= 4; n++)
            shortfall_is_exact_for_kind(KG_STATE, n, other);
        for (uint32_t n = 1; n <= rig.layout.max_units[KG_PAGE] && n <= 40; n += 3)
            shortfall_is_exact_for_kind(KG_PAGE, n, other);
    }
}

/* Full of evictable units of one kind, a request for the other must be funded by them. */
static void one_budget_is_funded_by_either_kind(void **state) /* S1, S7 */
{
    static uint32_t ids[MOST];
    uint32_t got[1];

    (void)state;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        struct kg_shortage s;
        uint32_t evictable[KG_N_KINDS] = {0};
        reopen();
        evictable[k] = fill(k, ids);
        if (has(KG_POOL_CAP_SHARED))
            assert_int_equal(evictable[k], rig.layout.max_units[k]);
        assert_int_equal(rig.ops->own(rig.pool, k, evictable[k], ids, 1), KG_OK);
        while (try_grant(k != KG_PAGE, k != KG_STATE, nothing, &s) == KG_OK)
            take(!k, 1, got); /* the rest of the arena, live */
        int rc = try_grant(k != KG_PAGE, k != KG_STATE, evictable, &s);
        if (!has(KG_POOL_CAP_SHARED)) {
            assert_int_equal(rc, KG_EAGAIN);
            assert_int_equal(s.evict[k], KG_NONE);
            continue;
        }
        assert_int_equal(rc, KG_OK);
        uint32_t grant = open_grant(k != KG_PAGE, k != KG_STATE, evictable);
        assert_int_equal(rig.ops->shortfall(rig.pool, grant, !k, 1, &s), KG_EAGAIN);
        assert_true(s.evict[k] != KG_NONE);
        give(k, s.evict[k], ids);
        assert_int_equal(rig.ops->take(rig.pool, grant, !k, 1, got), KG_OK);
        healthy();
    }
}

/* Grants opened until refused, then taken out unit by unit, evicting only what shortfall says. */
static void every_promise_is_kept_to_the_last_unit(void **state)
{
    static uint32_t ids[KG_N_KINDS][MOST];
    uint32_t left[KG_N_KINDS], got[1], grants[64], n_grants = 0;
    const uint32_t need[KG_N_KINDS] = {[KG_PAGE] = 3, [KG_STATE] = 1};
    struct kg_shortage s;

    (void)state;
    cached_full(ids, left);
    while (n_grants < 64 &&
           rig.ops->grant_open(rig.pool, need, left, &grants[n_grants], &s) == KG_OK)
        n_grants++;
    assert_true(n_grants >= 4);
    for (uint32_t round = 0; round < 4; round++) {
        for (uint32_t g = 0; g < n_grants; g++) {
            uint32_t kind = round == 1 ? KG_STATE : KG_PAGE;
            while (rig.ops->shortfall(rig.pool, grants[g], kind, 1, &s) == KG_EAGAIN) {
                /* a kind that can help and is there, by turns */
                uint32_t k = (g + round) % KG_N_KINDS;
                if (s.evict[k] == KG_NONE || left[k] == 0)
                    k = !k;
                assert_true(s.evict[k] != KG_NONE && left[k] > 0);
                evict(k, s.evict[k] < left[k] ? s.evict[k] : left[k], ids, left);
            }
            assert_int_equal(rig.ops->take(rig.pool, grants[g], kind, 1, got), KG_OK);
        }
        healthy();
    }
    assert_int_equal(healthy().promised, 0);
    assert_no_overlap();
}

static void give_of_a_free_foreign_pinned_or_twice_named_unit_changes_nothing(void **state) /* S4 */
{
    static struct view before;

    (void)state;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint32_t ids[4], bad[4];
        take(k, 3, ids);
        give(k, 1, &ids[2]);
        assert_int_equal(rig.ops->pin(rig.pool, k, ids[1], nothing), KG_OK);
        look(&before);
        const uint32_t wrong[] = {ids[2], ids[1], rig.layout.max_units[k], KG_NONE, ids[0]};
        for (uint32_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
            bad[0] = ids[0];
            bad[1] = wrong[i]; /* the last one: ids[0] twice */
            assert_int_equal(rig.ops->give(rig.pool, k, 2, bad), KG_EINVAL);
            assert_unchanged(&before);
        }
        assert_int_equal(rig.ops->unpin(rig.pool, k, ids[1]), KG_OK);
        give(k, 2, ids);
        assert_int_equal(rig.ops->give(rig.pool, k, 1, ids), KG_EINVAL);
        healthy();
    }
    uint32_t id = 0;
    assert_int_equal(rig.ops->give(rig.pool, KG_N_KINDS, 1, &id), KG_EINVAL);
}

static void own_moves_bytes_between_live_and_cached(void **state)
{
    static struct view before;

    (void)state;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint64_t natural = k == KG_PAGE ? rig.layout.page_tokens * rig.geom.token_bytes
                                        : rig.geom.n_state_parts * rig.geom.state_part_bytes;
        uint32_t ids[3];
        take(k, 2, ids);
        ids[2] = rig.layout.max_units[k] - 1; /* free */
        assert_int_equal(healthy().live[k], 2 * natural);
        assert_int_equal(rig.ops->own(rig.pool, k, 2, ids, 1), KG_OK);
        assert_int_equal(rig.ops->own(rig.pool, k, 1, ids, 1), KG_OK);
        assert_int_equal(healthy().cached[k], 2 * natural);
        assert_int_equal(healthy().live[k], 0);
        look(&before);
        assert_int_equal(rig.ops->own(rig.pool, k, 3, ids, 0), KG_EINVAL);
        assert_unchanged(&before);
        assert_int_equal(rig.ops->own(rig.pool, k, 1, ids, 0), KG_OK);
        assert_int_equal(healthy().cached[k], natural);
        assert_int_equal(healthy().live[k], natural);
        give(k, 2, ids);
        assert_int_equal(healthy().cached[k], 0);
    }
}

static void pinned_units_are_a_class_of_their_own(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint64_t natural = k == KG_PAGE ? rig.layout.page_tokens * rig.geom.token_bytes
                                        : rig.geom.n_state_parts * rig.geom.state_part_bytes;
        uint32_t ids[2];
        take(k, 2, ids);
        assert_int_equal(rig.ops->own(rig.pool, k, 1, ids, 1), KG_OK);
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(rig.ops->pin(rig.pool, k, ids[i], nothing), KG_OK);
        assert_int_equal(healthy().pinned, 2 * natural);
        assert_int_equal(healthy().live[k] + healthy().cached[k], 0);
        /* the owner may change meanwhile; it shows once unpinned */
        assert_int_equal(rig.ops->own(rig.pool, k, 1, &ids[1], 1), KG_OK);
        assert_int_equal(healthy().pinned, 2 * natural);
        assert_int_equal(rig.ops->pin(rig.pool, k, ids[0], nothing), KG_EINVAL);
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(rig.ops->unpin(rig.pool, k, ids[i]), KG_OK);
        assert_int_equal(rig.ops->unpin(rig.pool, k, ids[0]), KG_EINVAL);
        assert_int_equal(healthy().cached[k], 2 * natural);
        give(k, 2, ids);
        assert_int_equal(rig.ops->pin(rig.pool, k, ids[0], nothing), KG_EINVAL);
        assert_int_equal(rig.ops->unpin(rig.pool, k, KG_NONE), KG_EINVAL);
    }
    assert_int_equal(rig.ops->pin(rig.pool, KG_N_KINDS, 0, nothing), KG_EINVAL);
    assert_int_equal(rig.ops->unpin(rig.pool, KG_N_KINDS, 0), KG_EINVAL);
}

static void closing_nothing_is_allowed(void **state)
{
    (void)state;
    rig.ops->close(NULL);
}

static void counters_follow(void **state)
{
    static uint32_t ids[MOST];
    struct kg_shortage s;

    (void)state;
    uint32_t n = fill(KG_PAGE, ids); /* ends with one refusal */
    assert_int_equal(rig_metric(&rig, "grants_refused_total"), 1);
    assert_int_equal(try_grant(UINT32_MAX, 0, nothing, &s), KG_ENEVER);
    assert_int_equal(rig_metric(&rig, "grants_refused_total"), 1);
    assert_int_equal(rig_metric(&rig, "grants_never_total"), 1);
    give(KG_PAGE, n, ids);
    assert_int_equal(rig_metric(&rig, "pages_used_peak"), n);
    assert_int_equal(rig_metric(&rig, "used_bytes_peak"), n * rig.layout.unit_bytes[KG_PAGE]);
}

static void pin_that_uncovers_a_promise_is_refused(void **state)
{
    static uint32_t ids[MOST];
    static struct view before;
    uint32_t got[2];

    (void)state;
    fill(KG_PAGE, ids);
    assert_int_equal(rig.ops->own(rig.pool, KG_PAGE, 2, ids, 1), KG_OK);
    const uint32_t two[KG_N_KINDS] = {[KG_PAGE] = 2}, one[KG_N_KINDS] = {[KG_PAGE] = 1};
    uint32_t grant = open_grant(1, 0, two);
    assert_int_equal(rig.ops->pin(rig.pool, KG_PAGE, ids[0], one), KG_OK);
    look(&before);
    assert_int_equal(rig.ops->pin(rig.pool, KG_PAGE, ids[1], nothing), KG_EAGAIN);
    assert_int_equal(rig.ops->pin(rig.pool, KG_PAGE, ids[1], one), KG_EAGAIN); /* itself */
    assert_unchanged(&before);
    give(KG_PAGE, 1, &ids[1]);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_PAGE, 1, got), KG_OK);
    assert_int_equal(rig.ops->unpin(rig.pool, KG_PAGE, ids[0]), KG_OK);
}

const struct CMUnitTest grant_cases[] = {
    CASE(refused_grant_takes_nothing_and_says_what_is_short),
    CASE(refusal_names_the_least_number_of_units),
    CASE(grant_that_an_empty_pool_cannot_hold_is_never),
    CASE(open_promises_count_against_new_ones),
    CASE(extend_adds_to_a_grant_and_close_ends_it),
    CASE(number_of_open_grants_is_limited_and_said),
    CASE(take_beyond_the_grant_or_of_no_kind_is_refused),
    CASE(only_units_known_as_cached_count_as_evictable),
    CASE(evicting_exactly_the_shortfall_is_enough_and_one_less_is_not),
    CASE(one_budget_is_funded_by_either_kind),
    CASE(every_promise_is_kept_to_the_last_unit),
    CASE(give_of_a_free_foreign_pinned_or_twice_named_unit_changes_nothing),
    CASE(own_moves_bytes_between_live_and_cached),
    CASE(pinned_units_are_a_class_of_their_own),
    CASE(closing_nothing_is_allowed),
    CASE(counters_follow),
    CASE(pin_that_uncovers_a_promise_is_refused),
};
const size_t n_grant_cases = sizeof(grant_cases) / sizeof(grant_cases[0]);
