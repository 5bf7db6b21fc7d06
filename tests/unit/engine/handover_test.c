/* From one engine's cache to another's, pages and states of other sizes and places. Contents are
 * checked by exec-null on the far side. */
#include "rig.h"

#include "engine/index_policy.h"

#include "base/rng.h"

#include <string.h>

static struct kg_engine_stats stats_of(const struct rig *r)
{
    struct kg_engine_stats s;

    kg_engine_stats(r->engine, &s);
    return s;
}

/* A request to its end; its prompt is that of id and n_prompt alone. */
static void ask(struct rig *r, uint64_t id, uint32_t n_prompt, uint32_t max_tokens)
{
    assert_int_equal(rig_submit(r, id, n_prompt, max_tokens, NULL), KG_OK);
    rig_run(r, 3000);
    assert_int_equal(r->outs[id].end.finish, KG_FINISH_LENGTH);
    rig_assert_true(r, id);
}

static const struct rig_conf sides[] = {
    {.page_tokens = 4, .n_pages = 400, .n_states = 300},
    {.page_tokens = 16, .n_pages = 150, .n_states = 300, .pool = "split"},
    {.page_tokens = 4,
     .n_pages = 400,
     .n_states = 300,
     .pool = "split",
     .pool_opts = "style=uniform"},
    {.page_tokens = 12, .n_pages = 200, .n_states = 300, .pool = "shuffle"},
};

static struct rig_conf side(size_t i)
{
    struct rig_conf c = sides[i];

    c.checkpoint = KG_CKPT_INTERVAL + 1;
    c.interval = c.page_tokens;
    return c;
}

static uint32_t lcm(uint32_t a, uint32_t b)
{
    uint32_t m = a;

    while (m % b != 0) {
        m += a;
    }
    return m;
}

/* Every pair of sides, every length: what arrives is the deepest common whole page, to the token.
 */
static void a_beginning_goes_on_at_the_other_side(void **state) /* V64 */
{
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < 4; k++) {
            struct rig_conf ca = side(i), cb = side(k);
            struct rig a, b;
            rig_open(&a, &ca);
            rig_open(&b, &cb);
            uint32_t pa = kg_engine_layout(a.engine)->page_tokens;
            uint32_t pb = kg_engine_layout(b.engine)->page_tokens, unit = lcm(pa, pb);
            for (uint32_t n = 1; n < 120; n += 7) {
                struct kg_error err = {0};
                uint32_t copied = 0;
                uint64_t id = n;
                ask(&a, id, n, 3);
                int rc =
                    kg_engine_hand_over(a.engine, b.engine, 0, a.outs[id].tokens, n, &copied, &err);
                uint32_t want = (n - 1) / unit * unit;
                assert_int_equal(rc, want > 0 ? KG_OK : KG_ENOENT);
                assert_int_equal(copied, want);
                ask(&b, id, n, 3);
                assert_int_equal(b.outs[id].end.n_cached, want);
                assert_memory_equal(a.outs[id].tokens, b.outs[id].tokens, (n + 3) * 4);
            }
            rig_assert_empty(&a);
            rig_assert_empty(&b);
            rig_close(&a);
            rig_close(&b);
        }
    }
}

static void what_is_there_already_is_not_copied_again(void **state)
{
    struct rig_conf ca = side(0), cb = side(1);
    struct kg_error err = {0};
    uint32_t copied;
    struct rig a, b;

    (void)state;
    rig_open(&a, &ca);
    rig_open(&b, &cb);
    ask(&a, 1, 70, 3);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(
            kg_engine_hand_over(a.engine, b.engine, 0, a.outs[1].tokens, 70, &copied, &err), KG_OK);
        assert_int_equal(copied, 64);
        rig_assert_empty(&b);
        assert_int_equal(stats_of(&b).n_cached[KG_PAGE], 4);
        assert_int_equal(stats_of(&b).n_cached[KG_STATE], 1);
    }
    assert_int_equal(
        kg_engine_hand_over(a.engine, b.engine, 9, a.outs[1].tokens, 70, &copied, &err),
        KG_ENOENT); /* another tenant's */
    rig_close(&a);
    rig_close(&b);
}

/* Both sides at work, little memory: copies are refused with a text or right, V62. */
static void copies_between_busy_engines_are_right_or_refused(void **state)
{
    uint32_t n_ok = 0, n_again = 0, n_none = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct rig_conf ca = side(seed % 4), cb = side(seed / 4 % 4);
        struct kg_rng rng;
        struct rig a, b;
        ca.n_states = cb.n_states = ca.max_seqs = cb.max_seqs = 3;
        ca.n_pages = 110 / ca.page_tokens;
        cb.n_pages = 110 / cb.page_tokens;
        ca.lifetime = cb.lifetime = KG_LIFETIME_MAX;
        kg_rng_seed(&rng, seed);
        rig_open(&a, &ca);
        rig_open(&b, &cb);
        a.n_shared = b.n_shared = 50;
        a.n_groups = b.n_groups = 3;
        for (uint64_t id = 1; id < 60; id++) {
            struct rig *from = id % 2 ? &a : &b, *to = id % 2 ? &b : &a;
            uint32_t n = 20 + (uint32_t)kg_rng_below(&rng, 60), copied = 0;
            struct kg_error err = {0};
            assert_int_equal(rig_submit(from, id, n, 1 + (uint32_t)kg_rng_below(&rng, 12), NULL),
                             KG_OK);
            for (uint64_t i = kg_rng_below(&rng, 12); i > 0; i--) {
                assert_true(rig_step(&a) >= 0);
                assert_true(rig_step(&b) >= 0);
            }
            int rc = kg_engine_hand_over(from->engine, to->engine, 0, from->outs[id].tokens, n,
                                         &copied, &err);
            n_ok += rc == KG_OK;
            n_again += rc == KG_EAGAIN;
            n_none += rc == KG_ENOENT;
            if (rc != KG_OK) {
                assert_true(rc == KG_EAGAIN || rc == KG_ENOENT);
                assert_true(strlen(err.text) > 0 && copied == 0);
            }
        }
        rig_run(&a, 9000);
        rig_run(&b, 9000);
        for (uint64_t id = 1; id < 60; id++) {
            rig_assert_true(id % 2 ? &a : &b, id);
        }
        rig_assert_empty(&a);
        rig_assert_empty(&b);
        rig_close(&a);
        rig_close(&b);
    }
    print_message("%u copied, %u refused for now, %u not there\n", n_ok, n_again, n_none);
    assert_true(n_ok > 20 && n_again > 0 && n_none > 0);
}

static void backends_that_do_not_fit_are_refused(void **state) /* V63, V65 */
{
    static const char *const others[] = {"token_bytes=128", "state_part_bytes=128",
                                         "n_state_parts=3"};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct rig_conf ca = side(0), cb = side(0);
        struct kg_error err = {0};
        uint32_t copied = 7;
        struct rig a, b;
        cb.exec_opts = others[i];
        rig_open(&a, &ca);
        rig_open(&b, &cb);
        ask(&a, 1, 30, 3);
        assert_int_equal(
            kg_engine_hand_over(a.engine, b.engine, 0, a.outs[1].tokens, 30, &copied, &err),
            KG_EINVAL);
        assert_true(strstr(err.text, "transfer") != NULL && copied == 7);
        rig_assert_empty(&a);
        rig_assert_empty(&b);
        rig_close(&a);
        rig_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_beginning_goes_on_at_the_other_side),
        cmocka_unit_test(what_is_there_already_is_not_copied_again),
        cmocka_unit_test(copies_between_busy_engines_are_right_or_refused),
        cmocka_unit_test(backends_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
