/* Which home a request goes on from: the whole table against a rule that places units one by one;
 * and the names units have in a tier. */
#include "engine/chain.h"
#include "engine/reconcile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define MOST 7u /* lengths 0 .. MOST-1, in pages */

/* Slow and plain: lay out which pages and states there are, try every length from the longest. */
static struct kg_reuse naive(struct kg_pair arena, struct kg_pair tier)
{
    int page[MOST] = {0}, arena_state[MOST] = {0}, tier_state[MOST] = {0};

    for (uint32_t i = 0; i < MOST; i++) {
        page[i] = i < arena.pages ? 1 : i < tier.pages ? 2 : 0; /* 2: the tier must bring it */
    }
    arena_state[arena.state] = arena.state > 0;
    tier_state[tier.state] = tier.state > 0;
    for (uint32_t n = MOST - 1; n > 0; n--) {
        uint32_t here = 0, anywhere = 0;
        for (uint32_t i = 0; i < n; i++) {
            here += page[i] == 1;
            anywhere += page[i] != 0;
        }
        if (arena_state[n] && here == n) {
            return (struct kg_reuse){KG_HOME_ARENA, n, n};
        }
        if (tier_state[n] && anywhere == n) {
            return (struct kg_reuse){KG_HOME_TIER, n, here};
        }
    }
    return (struct kg_reuse){KG_HOME_NONE, 0, 0};
}

/* Every combination of four lengths, those that cannot be included: V4, V22. `tier.pages` counts
 * what both homes give together, so below arena.pages it says nothing new. */
static void the_whole_table_is_the_naive_rule(void **state)
{
    uint32_t homes[3] = {0}, n = 0;

    (void)state;
    for (uint32_t k = 0; k < MOST * MOST * MOST * MOST; k++) {
        struct kg_pair arena = {k % MOST, k / MOST % MOST};
        struct kg_pair tier = {k / MOST / MOST % MOST, k / MOST / MOST / MOST};
        if (tier.pages < arena.pages) {
            continue;
        }
        struct kg_reuse got = kg_reconcile(arena, tier), want = naive(arena, tier);
        if (memcmp(&got, &want, sizeof(got)) != 0) {
            fail_msg("arena (%u, %u) tier (%u, %u): home %u tokens %u from %u, wanted %u %u %u",
                     arena.pages, arena.state, tier.pages, tier.state, got.home, got.tokens,
                     got.load_from, want.home, want.tokens, want.load_from);
        }
        homes[got.home]++;
        n++;
    }
    assert_int_equal(n, MOST * (MOST + 1) / 2 * MOST * MOST);
    assert_true(homes[0] > 100 && homes[1] > 100 && homes[2] > 100);
}

/* What arrived is judged by the same rule: a state that did not come is none, V3. */
static void nothing_is_resumed_without_its_state_or_a_page_before_it(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < MOST * MOST * MOST * MOST; k++) {
        struct kg_pair arena = {k % MOST, k / MOST % MOST};
        struct kg_pair tier = {k / MOST / MOST % MOST, k / MOST / MOST / MOST};
        struct kg_reuse r = kg_reconcile(arena, tier);
        assert_true(
            r.tokens == 0 ||
            (r.home == KG_HOME_ARENA && r.tokens == arena.state && arena.state <= arena.pages) ||
            (r.home == KG_HOME_TIER && r.tokens == tier.state && tier.state <= tier.pages));
        assert_true(r.load_from <= r.tokens);
        struct kg_reuse without = kg_reconcile(arena, (struct kg_pair){tier.pages, 0});
        assert_true(without.home != KG_HOME_TIER && without.tokens <= r.tokens);
    }
}

static void siphash_is_the_published_one(void **state)
{
    /* vectors of the reference implementation: key 00..0f, message 00 01 .. of n bytes */
    static const struct {
        size_t n;
        uint64_t w[2];
    } vectors[] = {{0, {0xe6a825ba047f81a3, 0x930255c71472f66d}},
                   {1, {0x44af996bd8c187da, 0x45fc229b11597634}}};
    const uint64_t key[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
    unsigned char message[64];

    (void)state;
    for (unsigned i = 0; i < sizeof(message); i++) {
        message[i] = (unsigned char)i;
    }
    for (size_t i = 0; i < 2; i++) {
        struct kg_chain got = kg_siphash128(key, message, vectors[i].n);
        assert_true(got.w[0] == vectors[i].w[0] && got.w[1] == vectors[i].w[1]);
    }
}

static void a_chain_key_depends_on_salt_key_and_every_token(void **state)
{
    const uint64_t key[2] = {1, 2}, other[2] = {1, 3};
    uint32_t tokens[16];
    struct kg_chain seen[40], start = kg_chain_start(key, 0), first;
    uint32_t n = 0;

    (void)state;
    for (uint32_t i = 0; i < 16; i++) {
        tokens[i] = i * 3;
    }
    first = kg_chain_next(key, &start, tokens, 8);
    seen[n++] = first;
    seen[n++] = kg_chain_next(key, &first, tokens + 8, 8);
    seen[n++] = kg_chain_next(key, &start, tokens + 8, 8);
    seen[n++] = start;
    start = kg_chain_start(key, 9);
    seen[n++] = kg_chain_next(key, &start, tokens, 8);
    start = kg_chain_start(other, 0);
    seen[n++] = kg_chain_next(other, &start, tokens, 8);
    start = kg_chain_start(key, 0);
    for (uint32_t i = 0; i < 8; i++) {
        tokens[i] ^= 1u << 20;
        struct kg_chain changed = kg_chain_next(key, &start, tokens, 8);
        seen[n++] = changed;
        seen[n++] = kg_chain_next(key, &changed, tokens + 8, 8); /* and all that is behind it */
        tokens[i] ^= 1u << 20;
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < i; k++) {
            assert_true(memcmp(&seen[i], &seen[k], sizeof(seen[i])) != 0);
        }
    }
    struct kg_chain again = kg_chain_next(key, &start, tokens, 8);
    assert_memory_equal(&again, &first, sizeof(first));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_whole_table_is_the_naive_rule),
        cmocka_unit_test(nothing_is_resumed_without_its_state_or_a_page_before_it),
        cmocka_unit_test(siphash_is_the_published_one),
        cmocka_unit_test(a_chain_key_depends_on_salt_key_and_every_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
