/* Checkpoint policies, alone and with the index: where a later request can resume. */
#include "index_kit.h"

#include <math.h>
#include <string.h>

#define PAGE 64u
#define MOST (1u << 17)

static struct kit kit;
static uint32_t a[MOST], b[MOST];

static struct kg_ckpt_view view_of(uint32_t policy, uint32_t n_prompt, uint32_t past, uint32_t rows)
{
    return (struct kg_ckpt_view){.policy = policy,
                                 .page_tokens = 16,
                                 .interval = 128,
                                 .gap = 64,
                                 .max_orders = 4,
                                 .n_prompt = n_prompt,
                                 .past = past,
                                 .n_rows = rows};
}

static void off_orders_nothing(void **state)
{
    struct kg_ckpt_view v = view_of(KG_CKPT_OFF, 1000, 0, 1000);
    struct kg_ckpt at[4];
    uint32_t rows;

    (void)state;
    assert_int_equal(kg_ckpt_orders(&v, at, &rows), 0);
    assert_int_equal(rows, 1000);
}

static void interval_counts_committed_tokens(void **state) /* S11 */
{
    struct kg_ckpt at[4];
    uint32_t rows;

    (void)state;
    for (uint32_t past = 126; past <= 129; past++) {
        struct kg_ckpt_view v = view_of(KG_CKPT_INTERVAL, 1000, past, 1);
        uint32_t n = kg_ckpt_orders(&v, at, &rows);
        assert_int_equal(n, past == 127); /* the row that makes it 128 */
        if (n > 0) {
            assert_int_equal(at[0].position, 128);
        }
    }
}

static void a_chunk_with_more_positions_ends_at_the_last_that_fits(void **state)
{
    struct kg_ckpt_view v = view_of(KG_CKPT_INTERVAL, 10000, 100, 5000);
    struct kg_ckpt at[4];
    uint32_t rows;

    (void)state;
    assert_int_equal(kg_ckpt_orders(&v, at, &rows), 4);
    assert_int_equal(at[0].position, 128);
    assert_int_equal(at[3].position, 512);
    assert_int_equal(100 + rows, 512);
    v.n_rows = 412; /* exactly there: nothing is cut */
    assert_int_equal(kg_ckpt_orders(&v, at, &rows), 4);
    assert_int_equal(rows, 412);
}

static void boundaries_are_rounded_down_and_the_prompt_ends_before_its_last_token(void **state)
{
    uint32_t ends[] = {17, 31, 49, 95}, rows;
    struct kg_ckpt_view v = view_of(KG_CKPT_BOUNDARY, 96, 0, 96);
    struct kg_ckpt at[8];

    (void)state;
    v.boundaries = ends;
    v.n_boundaries = 4;
    v.max_orders = 8;
    assert_int_equal(kg_ckpt_orders(&v, at, &rows), 4);
    assert_int_equal(at[0].position, 16); /* 17 and 31 are one */
    assert_int_equal(at[0].why, KG_CKPT_WHY_MESSAGE);
    assert_int_equal(at[1].position, 48);
    assert_int_equal(at[2].position, 80);
    assert_int_equal(at[2].why, KG_CKPT_WHY_MESSAGE | KG_CKPT_WHY_PROMPT);
    assert_int_equal(at[3].position, 96); /* a page crossing: maybe the end of the answer */
    assert_int_equal(at[3].why, KG_CKPT_WHY_ANSWER);
}

static void every_page_crossing_of_the_answer_may_be_its_end(void **state) /* V23 */
{
    struct kg_ckpt at[4];
    uint32_t rows, n = 0;

    (void)state;
    for (uint32_t past = 100; past < 200; past += 3) {
        struct kg_ckpt_view v = view_of(KG_CKPT_BOUNDARY, 100, past, 3);
        uint32_t k = kg_ckpt_orders(&v, at, &rows);
        assert_int_equal(k, (past + 3) / 16 - past / 16);
        assert_int_equal(rows, 3);
        n += k;
    }
    assert_int_equal(n, (100 + 102) / 16 - 100 / 16);
}

static void auto_leaves_out_messages_that_are_close(void **state)
{
    uint32_t ends[] = {16, 32, 48, 64, 80, 96, 112, 128, 144}, rows;
    struct kg_ckpt_view v = view_of(KG_CKPT_AUTO, 160, 0, 159);
    struct kg_ckpt at[16];

    (void)state;
    v.boundaries = ends;
    v.n_boundaries = 9;
    v.max_orders = 16;
    v.interval = 4096;
    uint32_t n = kg_ckpt_orders(&v, at, &rows);
    assert_int_equal(n, 3); /* the first, one a gap behind it, the last */
    assert_int_equal(at[0].position, 16);
    assert_int_equal(at[1].position, 80);
    assert_int_equal(at[2].position, 144);
}

static void value_decides_under_auto_only(void **state)
{
    (void)state;
    assert_true(kg_ckpt_wins(KG_CKPT_AUTO, 2.0, 1.0));
    assert_false(kg_ckpt_wins(KG_CKPT_AUTO, 1.0, 2.0));
    assert_false(kg_ckpt_wins(KG_CKPT_AUTO, 1.0, 1.0));
    assert_true(kg_ckpt_wins(KG_CKPT_INTERVAL, 1.0, 2.0));
    assert_false(kg_ckpt_wins(KG_CKPT_INTERVAL, 1.0, (double)INFINITY)); /* nothing to evict */
}

static void a_kind_is_a_reason_and_how_much_was_seen(void **state)
{
    const uint32_t n = 1000, seen[4] = {249, 749, 959, 960};
    uint32_t used = 0;

    (void)state;
    for (uint32_t i = 0; i < 7; i++) {
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t kind = kg_ckpt_kind(1u << i, seen[k], n, 64);
            assert_true(kind < KG_INDEX_KINDS);
            assert_false(used >> kind & 1u); /* each its own */
            used |= 1u << kind;
            assert_int_equal(kg_ckpt_kind(1u << i | KG_CKPT_WHY_BRANCH, seen[k], n, 64),
                             kg_ckpt_kind(KG_CKPT_WHY_BRANCH, seen[k], n, 64));
        }
    }
    assert_int_equal(kg_ckpt_kind(1, 250, n, 64), kg_ckpt_kind(1, 749, n, 64));
    assert_int_equal(kg_ckpt_kind(1, 0, 64, 64), kg_ckpt_kind(1, 64, 64, 64)); /* no whole page */
    assert_true(kg_ckpt_kind(0, 0, 0, 64) < KG_INDEX_KINDS);
}

static void strangers_are_kept_while_they_come_back_half_as_often(void **state)
{
    double share[KG_INDEX_KINDS];
    uint32_t known[KG_INDEX_KINDS];
    uint32_t stranger = kg_ckpt_kind(KG_CKPT_WHY_PROMPT, 0, 1000, 64);
    uint32_t octave = kg_ckpt_kind(KG_CKPT_WHY_OCTAVE, 0, 1000, 64);
    uint32_t friend = kg_ckpt_kind(KG_CKPT_WHY_ANSWER, 900, 1000, 64);

    (void)state;
    for (uint32_t k = 0; k < KG_INDEX_KINDS; k++) {
        share[k] = 0.1;
        known[k] = 100;
    }
    share[friend] = 0.2;
    assert_true(kg_ckpt_proven(stranger, share, known));
    share[friend] = 0.21;
    assert_false(kg_ckpt_proven(stranger, share, known));
    assert_false(kg_ckpt_proven(octave, share, known));
    assert_true(kg_ckpt_proven(friend, share, known));
    /* a fork, an end of a message and a wish are no matter of probation */
    assert_true(kg_ckpt_proven(kg_ckpt_kind(KG_CKPT_WHY_BRANCH, 0, 1000, 64), share, known));
    assert_true(kg_ckpt_proven(kg_ckpt_kind(KG_CKPT_WHY_MESSAGE, 0, 1000, 64), share, known));
    assert_true(kg_ckpt_proven(kg_ckpt_kind(KG_CKPT_WHY_ASKED, 0, 1000, 64), share, known));
    known[stranger] = 31; /* too little is known of it, but not of the octave */
    assert_true(kg_ckpt_proven(stranger, share, known));
    assert_false(kg_ckpt_proven(octave, share, known));
    known[friend] = 31;
    assert_true(kg_ckpt_proven(octave, share, known));
}

/* A prompt with `shared` tokens of a and the rest its own. */
static const uint32_t *fork_of(uint32_t shared, uint64_t seed)
{
    memcpy(b, a, shared * sizeof(*a));
    kit_tokens(b + shared, MOST - shared, seed);
    return b;
}

static void interval_32768_of_a_shared_40960_reuses_32768_and_loses_8192(void **state) /* V17 */
{
    (void)state;
    kit_open(&kit, PAGE, 2048, 64, KG_CKPT_INTERVAL, 32768);
    kit_tokens(a, MOST, 1);
    (void)kit_run(&kit, fork_of(40960, 10), 42000, 1, NULL, 0);
    struct kit_seen s = kit_run(&kit, fork_of(40960, 11), 42000, 1, NULL, 0);
    assert_int_equal(s.reused, 32768);
    assert_int_equal(s.pages, 40960);
    assert_int_equal(s.lost, 8192);
    kit_close(&kit);
}

static void second_sighting_of_a_system_prompt_reuses_it_whole(void **state) /* V16 */
{
    const uint32_t policies[] = {KG_CKPT_BOUNDARY, KG_CKPT_AUTO};
    const uint32_t lengths[] = {40960, 1500, 65, 528};

    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t shared = lengths[i / 2], ends[2] = {shared, shared + 690};
        kit_open(&kit, PAGE, 2048, 64, policies[i % 2], 32768);
        kit_tokens(a, MOST, 1);
        (void)kit_run(&kit, fork_of(shared, 10), shared + 700, 5, ends, 2);
        struct kit_seen s = kit_run(&kit, fork_of(shared, 11), shared + 700, 5, ends, 2);
        assert_int_equal(s.reused, shared / PAGE * PAGE);
        assert_int_equal(s.lost, 0);
        kit_close(&kit);
    }
}

static void without_message_ends_a_branch_is_known_from_the_third_sighting(void **state)
{
    const uint32_t policies[] = {KG_CKPT_BRANCH, KG_CKPT_AUTO};

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        kit_open(&kit, PAGE, 2048, 64, policies[i], 32768);
        kit_tokens(a, MOST, 1);
        (void)kit_run(&kit, fork_of(1500, 10), 2200, 1, NULL, 0);
        (void)kit_run(&kit, fork_of(1500, 11), 2200, 1, NULL, 0);
        struct kit_seen s = kit_run(&kit, fork_of(1500, 12), 2200, 1, NULL, 0);
        assert_int_equal(s.reused, 1500 / PAGE * PAGE);
        kit_close(&kit);
    }
}

static void a_branch_is_known_from_ghosts_too(void **state)
{
    struct kg_index_victim v;

    (void)state;
    kit_open(&kit, PAGE, 2048, 64, KG_CKPT_BRANCH, 32768);
    kit_tokens(a, MOST, 1);
    (void)kit_run(&kit, fork_of(1500, 10), 2200, 1, NULL, 0);
    while (kit_evict(&kit, 64, 1, &v) == KG_OK) { /* all memory went to others meanwhile */
    }
    struct kit_seen s = kit_run(&kit, fork_of(1500, 11), 2200, 1, NULL, 0);
    assert_int_equal(s.pages, 0);
    assert_int_equal(s.seen, 1500 / PAGE * PAGE);
    s = kit_run(&kit, fork_of(1500, 12), 2200, 1, NULL, 0);
    assert_int_equal(s.reused, 1500 / PAGE * PAGE);
    kit_close(&kit);
}

static void the_first_repeat_of_a_prompt_hits(void **state) /* V15 */
{
    const uint32_t policies[] = {KG_CKPT_BOUNDARY, KG_CKPT_AUTO};

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        kit_open(&kit, PAGE, 2048, 64, policies[i], 4096);
        kit_tokens(a, MOST, 1);
        (void)kit_run(&kit, a, 11910, 3, NULL, 0);
        assert_int_equal(kit_run(&kit, a, 11910, 3, NULL, 0).reused, 11909 / PAGE * PAGE);
        kit_close(&kit);
    }
}

static void the_next_turn_resumes_behind_the_answer(void **state) /* V23 */
{
    const uint32_t policies[] = {KG_CKPT_BOUNDARY, KG_CKPT_AUTO};

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        kit_open(&kit, PAGE, 2048, 64, policies[i], 4096);
        kit_tokens(a, MOST, 1);
        uint32_t n = 1000;
        for (uint32_t turn = 0; turn < 6; turn++) {
            uint32_t n_output = turn == 3 ? 1 : 300, ends[1] = {n - 4};
            struct kit_seen s = kit_run(&kit, a, n, n_output, ends, 1);
            if (turn > 0) {
                uint32_t computed = n - 100 - 1; /* the last token of an answer never is */
                assert_int_equal(s.reused, computed / PAGE * PAGE);
                assert_int_equal(s.lost, 0);
            }
            n += n_output + 100;
        }
        kit_close(&kit);
    }
}

static void one_state_at_a_time_for_the_end_of_an_answer(void **state)
{
    struct kg_index_stats s;

    (void)state;
    kit_open(&kit, PAGE, 2048, 64, KG_CKPT_BOUNDARY, 4096);
    kit_tokens(a, MOST, 1);
    (void)kit_run(&kit, a, 1000, 2000, NULL, 0);
    kg_index_stats(kit.ix, &s);
    assert_int_equal(s.cached[KG_STATE], 2); /* end of prompt, end of answer */
    assert_true(kit.n_written > 30);
    kit_close(&kit);
}

static void a_fork_at_8k_inside_32k_chains_never_drops_to_0(void **state) /* V16 */
{
    (void)state;
    kit_open(&kit, PAGE, 4096, 64, KG_CKPT_AUTO, 4096);
    kit_tokens(a, MOST, 1);
    (void)kit_run(&kit, a, 32768, 1, NULL, 0);
    for (uint64_t i = 0; i < 6; i++) {
        struct kit_seen s = kit_run(&kit, fork_of(8192, 10 + i), 32768, 1, NULL, 0);
        assert_int_equal(s.reused, 8192);
        s = kit_run(&kit, fork_of(8192 + 1000 + 64 * (uint32_t)i, 20 + i), 12000, 1, NULL, 0);
        assert_true(s.reused >= 8192);
    }
    kit_close(&kit);
}

static void a_fork_anywhere_reuses_half_of_what_is_shared(void **state)
{
    (void)state;
    kit_open(&kit, PAGE, 4096, 64, KG_CKPT_AUTO, 1024);
    kit_tokens(a, MOST, 1);
    (void)kit_run(&kit, a, 100000, 1, NULL, 0);
    for (uint32_t at = 1024; at < 100000; at += 7777) {
        fork_of(at, at);
        struct kg_index_match m = kit_match(&kit, 0, b, 100001);
        assert_true(m.page_tokens >= at / PAGE * PAGE);
        assert_true(2 * m.state_tokens >= at);
    }
    kit_close(&kit);
}

static void under_pressure_auto_keeps_what_saves_more(void **state)
{
    (void)state;
    kit_open(&kit, PAGE, 4096, 3, KG_CKPT_AUTO, 1u << 20);
    kit_tokens(a, MOST, 1);
    uint32_t ends[1] = {20000};
    for (uint64_t i = 0; i < 3; i++) { /* a long system prompt that is used */
        (void)kit_run(&kit, fork_of(20000, 10 + i), 21000, 1, ends, 1);
    }
    for (uint64_t i = 0; i < 5; i++) { /* strangers with little to save */
        kit_tokens(b, MOST, 100 + i);
        (void)kit_run(&kit, b, 200, 1, NULL, 0);
    }
    assert_int_equal(kit_run(&kit, fork_of(20000, 50), 21000, 1, ends, 1).reused,
                     20000 / PAGE * PAGE);
    assert_true(kit.n_pruned > 0);
    kit_close(&kit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(off_orders_nothing),
        cmocka_unit_test(interval_counts_committed_tokens),
        cmocka_unit_test(a_chunk_with_more_positions_ends_at_the_last_that_fits),
        cmocka_unit_test(boundaries_are_rounded_down_and_the_prompt_ends_before_its_last_token),
        cmocka_unit_test(every_page_crossing_of_the_answer_may_be_its_end),
        cmocka_unit_test(auto_leaves_out_messages_that_are_close),
        cmocka_unit_test(value_decides_under_auto_only),
        cmocka_unit_test(a_kind_is_a_reason_and_how_much_was_seen),
        cmocka_unit_test(strangers_are_kept_while_they_come_back_half_as_often),
        cmocka_unit_test(interval_32768_of_a_shared_40960_reuses_32768_and_loses_8192),
        cmocka_unit_test(second_sighting_of_a_system_prompt_reuses_it_whole),
        cmocka_unit_test(without_message_ends_a_branch_is_known_from_the_third_sighting),
        cmocka_unit_test(a_branch_is_known_from_ghosts_too),
        cmocka_unit_test(the_first_repeat_of_a_prompt_hits),
        cmocka_unit_test(the_next_turn_resumes_behind_the_answer),
        cmocka_unit_test(one_state_at_a_time_for_the_end_of_an_answer),
        cmocka_unit_test(a_fork_at_8k_inside_32k_chains_never_drops_to_0),
        cmocka_unit_test(a_fork_anywhere_reuses_half_of_what_is_shared),
        cmocka_unit_test(under_pressure_auto_keeps_what_saves_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
