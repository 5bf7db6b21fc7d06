/* Known failures of other servers that no other test of the engine is named after. */
#include "engine/index_policy.h"
#include "rig.h"

static struct kg_engine_stats stats_of(const struct rig *r)
{
    struct kg_engine_stats s;

    kg_engine_stats(r->engine, &s);
    return s;
}

#define CHATS 6u
#define TURNS 10u
#define TURN_TOKENS 8u /* a page */

/* Share of the prompt tokens of a turn that were not computed, all conversations together. Each
 * turn repeats the conversation so far and adds a page to it. */
static double reused_in(struct rig *r, uint32_t turn)
{
    uint64_t before = stats_of(r).reused_tokens, asked = 0;

    for (uint32_t chat = 0; chat < CHATS; chat++) {
        r->n_groups = CHATS;
        r->n_shared = turn * TURN_TOKENS;
        asked += r->n_shared + 3;
        assert_int_equal(rig_submit(r, (uint64_t)turn * CHATS + chat, r->n_shared + 3, 2, NULL),
                         KG_OK);
        (void)rig_run(r, 200);
    }
    return (double)(stats_of(r).reused_tokens - before) / (double)asked;
}

/* States at every page would take four fifths of the memory and push the pages out; worth by its
 * bytes decides, so the pages of running conversations stay, and late turns hit as early ones do.
 */
static void v25_dense_states_do_not_push_pages_out(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.n_pages = 64,
                                    .n_states = 10,
                                    .max_seqs = 2,
                                    .checkpoint = 1 + KG_CKPT_INTERVAL,
                                    .interval = TURN_TOKENS});
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        double share = reused_in(&r, turn);
        double all = (turn - 1.0) * TURN_TOKENS / (turn * TURN_TOKENS + 3);
        if (share < all * 0.9) {
            fail_msg("turn %u reuses %.2f of its tokens, %.2f are known", turn, share, all);
        }
    }
    struct kg_engine_stats s = stats_of(&r);
    assert_true(s.evicted[KG_STATE] > 0); /* there was pressure */
    rig_close(&r);
}

/* Every request wants a checkpoint at every page while no state is left: skipped and counted. */
static void s2_donations_with_no_state_left_are_skipped(void **state)
{
    (void)state;
    static const struct kg_engine_test force = {.force_orders = 1};
    struct rig r;
    rig_open(&r, &(struct rig_conf){
                     .pool = "split", .n_pages = 64, .n_states = 4, .max_seqs = 4, .test = &force});
    for (uint64_t id = 1; id <= 12; id++) {
        assert_int_equal(rig_submit(&r, id, 20 + (uint32_t)id, 20, NULL), KG_OK);
    }
    (void)rig_run(&r, 500);
    struct kg_engine_stats s = stats_of(&r);
    assert_true(s.ckpt_skipped + s.ckpt_pruned > 0);
    for (uint64_t id = 1; id <= 12; id++) {
        assert_int_equal(r.outs[id].end.finish, KG_FINISH_LENGTH);
        rig_assert_true(&r, id);
    }
    rig_close(&r);
}

/* A request takes one state, not one for each thing it may do: max_seqs states run max_seqs
 * requests, speculation and checkpoints included. */
static void s23_as_many_requests_run_as_there_are_states(void **state)
{
    (void)state;
    static const char *const pools[][2] = {
        {"unified", NULL}, {"split", NULL}, {"split", "style=uniform"}};
    for (uint32_t i = 0; i < 3; i++) {
        struct rig r;
        rig_open(&r, &(struct rig_conf){.pool = pools[i][0],
                                        .pool_opts = pools[i][1],
                                        .n_pages = 64,
                                        .n_states = 5,
                                        .max_seqs = 5,
                                        .step_tokens = 200,
                                        .spec = "fake-host"});
        for (uint64_t id = 1; id <= 5; id++) {
            assert_int_equal(rig_submit(&r, id, 10, 10, NULL), KG_OK);
        }
        (void)rig_step(&r);
        assert_int_equal(stats_of(&r).n_running, 5);
        (void)rig_run(&r, 200);
        rig_close(&r);
    }
}

/* Ten thousand conversations that come and go: what they held is cached or free, states too. */
static void s17_ten_thousand_conversations_leave_only_what_is_cached(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.n_pages = 32, .max_seqs = 4, .no_debug = 1});
    for (uint32_t i = 0; i < 10000; i++) {
        uint64_t id = 1 + i % 1000;
        assert_int_equal(rig_submit(&r, id, 1 + i % 20, 1 + i % 3, NULL), KG_OK);
        if (i % 7 == 0) {
            (void)rig_step(&r);
            kg_engine_cancel(r.engine, id);
        }
        (void)rig_run(&r, 100);
        if (i % 1000 == 999) {
            struct kg_engine_stats s = stats_of(&r);
            for (uint32_t k = 0; k < KG_N_KINDS; k++) {
                assert_int_equal(s.n_used[k], s.n_cached[k]);
                assert_int_equal(s.n_cached[k], s.n_evictable[k]);
            }
        }
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v25_dense_states_do_not_push_pages_out),
        cmocka_unit_test(s2_donations_with_no_state_left_are_skipped),
        cmocka_unit_test(s23_as_many_requests_run_as_there_are_states),
        cmocka_unit_test(s17_ten_thousand_conversations_leave_only_what_is_cached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
