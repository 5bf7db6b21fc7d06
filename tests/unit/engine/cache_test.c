/* The prefix cache as the engine uses it: who finds what, who pays, what is never done. Rows of the
 * list of public failures by name. Contents of pages and states are checked by exec-null itself. */
#include "rig.h"

#include "engine/index_policy.h"

#include <string.h>

#define PAGE 8u

static struct kg_engine_stats stats_of(const struct rig *r)
{
    struct kg_engine_stats s;

    kg_engine_stats(r->engine, &s);
    return s;
}

/* One request from begin to end; tokens it found cached. */
static uint32_t ask(struct rig *r, uint64_t id, uint32_t n_prompt, uint32_t max_tokens)
{
    assert_int_equal(rig_submit(r, id, n_prompt, max_tokens, NULL), KG_OK);
    rig_run(r, 2000);
    assert_int_equal(r->outs[id].end.finish, KG_FINISH_LENGTH);
    rig_assert_true(r, id);
    return r->outs[id].end.n_cached;
}

static void a_second_request_goes_on_from_the_first(void **state) /* V15, V21 */
{
    static const char *const pools[][2] = {{"unified", NULL}, {"split", NULL}, {"shuffle", NULL}};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct rig r;
        rig_open(&r, &(struct rig_conf){.pool = pools[i][0], .n_states = 12});
        r.n_shared = 44;
        r.n_groups = 1;
        assert_int_equal(ask(&r, 1, 60, 5), 0);
        assert_int_equal(ask(&r, 2, 60, 5), 40); /* 44 rounded down to pages */
        assert_int_equal(ask(&r, 3, 44, 5), 40); /* the shared text alone */
        assert_int_equal(ask(&r, 4, 41, 5), 40);
        assert_int_equal(ask(&r, 5, 40, 5), 32); /* its last token is computed */
        struct kg_engine_stats s = stats_of(&r);
        assert_int_equal(s.cached_tokens, 40 * 3 + 32);
        assert_int_equal(s.queried_tokens, 60 + 60 + 44 + 41 + 40);
        assert_int_equal(s.prompt_tokens, s.queried_tokens - s.cached_tokens);
        rig_assert_empty(&r);
        rig_close(&r);
    }
}

static void pages_without_a_state_are_lost_and_counted(void **state) /* V3, V17 */
{
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){.checkpoint = KG_CKPT_OFF + 1});
    r.n_shared = 44;
    r.n_groups = 1;
    (void)ask(&r, 1, 60, 5);
    assert_int_equal(ask(&r, 2, 60, 5), 0);
    assert_int_equal(r.outs[2].end.n_lost, 40);
    assert_int_equal(stats_of(&r).lost_tokens, 40);
    assert_int_equal(stats_of(&r).ckpt_written, 0);
    rig_close(&r);
}

static void no_cache_takes_nothing_and_leaves_nothing(void **state)
{
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){0});
    r.n_shared = 44;
    r.n_groups = 1;
    r.flags = KG_REQ_NO_CACHE;
    (void)ask(&r, 1, 60, 5);
    assert_int_equal(stats_of(&r).n_used[KG_PAGE], 0);
    r.flags = 0;
    assert_int_equal(ask(&r, 2, 60, 5), 0);
    r.flags = KG_REQ_NO_CACHE;
    assert_int_equal(ask(&r, 3, 60, 5), 0);
    r.flags = 0;
    assert_int_equal(ask(&r, 4, 60, 5), 40);
    rig_close(&r);
}

static void salts_separate_tenants(void **state)
{
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){0});
    r.n_shared = 44;
    r.n_groups = 1;
    (void)ask(&r, 1, 60, 5);
    r.salt = 9;
    assert_int_equal(ask(&r, 2, 60, 5), 0);
    assert_int_equal(ask(&r, 3, 60, 5), 40);
    r.salt = 0;
    assert_int_equal(ask(&r, 4, 60, 5), 40);
    rig_close(&r);
}

static void echo_computes_the_whole_prompt(void **state)
{
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){0});
    r.n_shared = 44;
    r.n_groups = 1;
    (void)ask(&r, 1, 60, 5);
    r.flags = KG_REQ_ECHO;
    assert_int_equal(ask(&r, 2, 60, 5), 0);
    assert_int_equal(r.outs[2].n_echo, 59);
    rig_close(&r);
}

static void the_next_turn_finds_prompt_and_answer(void **state) /* V23 */
{
    struct rig r;
    uint32_t chat[200], n = 20;
    struct kg_error err;

    (void)state;
    rig_open(&r, &(struct rig_conf){.n_pages = 100});
    rig_prompt(chat, n, 7, r.vocab);
    for (uint64_t turn = 1; turn <= 5; turn++) {
        struct rig_out *o = &r.outs[turn];
        uint32_t end = n - 2;
        *o = (struct rig_out){.submitted = 1, .n_prompt = n, .max_tokens = 13};
        memcpy(o->tokens, chat, n * sizeof(*chat));
        struct kg_request q = {.id = turn,
                               .tokens = chat,
                               .n_prompt = n,
                               .max_tokens = 13,
                               .boundaries = &end,
                               .n_boundaries = 1};
        assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
        r.n_open++;
        rig_run(&r, 200);
        rig_assert_true(&r, turn);
        if (turn > 1) { /* all but the user's 7 new tokens, and the answer's last one */
            assert_int_equal(o->end.n_cached, (n - 7 - 1) / PAGE * PAGE);
            assert_int_equal(o->end.n_lost, 0);
        }
        memcpy(chat + n, o->tokens + n, 13 * sizeof(*chat));
        rig_prompt(chat + n + 13, 7, 50 + turn, r.vocab);
        n += 13 + 7;
    }
    rig_close(&r);
}

/* A stop string is found when the engine is past it, maybe past the end of a page: the next turn,
 * which ends before it, still finds the answer up to the page before. */
static void an_answer_cut_behind_a_page_is_found_up_to_the_page_before(void **state)
{
    struct rig r;
    uint32_t chat[100];

    (void)state;
    for (uint32_t over = 1; over <= 8; over++) {
        rig_open(&r, &(struct rig_conf){.n_pages = 100, .checkpoint = 1 + KG_CKPT_BOUNDARY});
        assert_int_equal(rig_submit(&r, 1, 20, 40, NULL), KG_OK);
        while (r.outs[1].n_output < 20 + over) { /* 40 tokens are five pages */
            rig_step(&r);
        }
        kg_engine_finish(r.engine, 1, 18); /* two tokens before the page's end */
        rig_run(&r, 10);
        memcpy(chat, r.outs[1].tokens, 38 * sizeof(*chat));
        rig_prompt(chat + 38, 7, 9, r.vocab);
        r.outs[2] = (struct rig_out){.submitted = 1, .n_prompt = 45, .max_tokens = 2};
        memcpy(r.outs[2].tokens, chat, 45 * sizeof(*chat));
        struct kg_request q = {.id = 2, .tokens = chat, .n_prompt = 45, .max_tokens = 2};
        struct kg_error err;
        assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
        r.n_open++;
        rig_run(&r, 100);
        /* Four pages, or when the answer went on for half a page, what the prompt left. */
        assert_int_equal(r.outs[2].end.n_cached, over <= PAGE / 2 ? 32 : 16);
        rig_close(&r);
    }
}

static void equal_prompts_at_once_end_on_one_copy(void **state) /* V11 */
{
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){.n_pages = 200, .n_states = 40, .step_tokens = 200});
    r.n_shared = 44;
    r.n_groups = 1;
    for (uint64_t id = 1; id <= 8; id++) { /* all cold: nobody has finished a page yet */
        assert_int_equal(rig_submit(&r, id, 44, 20, NULL), KG_OK);
    }
    rig_run(&r, 300);
    for (uint64_t id = 1; id <= 8; id++) {
        rig_assert_true(&r, id);
        assert_memory_equal(r.outs[id].tokens, r.outs[1].tokens, 64 * sizeof(uint32_t));
    }
    assert_int_equal(ask(&r, 9, 44, 20), 40);
    /* one copy of what they shared is left: 5 pages of prompt, 2 of output */
    assert_int_equal(stats_of(&r).n_cached[KG_PAGE], 7);
    rig_assert_empty(&r);
    rig_close(&r);
}

/* Two begin together and share their first pages: whose pages the index took first must not keep
 * the other from leaving its own and its checkpoints, while both run and after. */
static void who_starts_beside_an_equal_beginning_leaves_all_it_computed(void **state)
{
    static const uint32_t policies[] = {KG_CKPT_INTERVAL, KG_CKPT_BOUNDARY, KG_CKPT_AUTO};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct rig r;
        rig_open(&r, &(struct rig_conf){
                         .n_pages = 200, .checkpoint = policies[i] + 1, .step_tokens = 200});
        r.n_shared = 20;
        r.n_groups = 1;
        assert_int_equal(rig_submit(&r, 1, 100, 200, NULL), KG_OK);
        assert_int_equal(rig_submit(&r, 2, 100, 5, NULL), KG_OK);
        for (uint32_t n = 0; !r.outs[2].done && n < 60; n++) {
            assert_true(rig_step(&r) >= 0);
        }
        assert_true(r.outs[2].done && !r.outs[1].done);
        struct kg_request q = {
            .id = 3, .tokens = r.outs[2].tokens, .n_prompt = 100, .max_tokens = 5};
        struct kg_error err = {0};
        r.outs[3] = (struct rig_out){.n_prompt = 100, .max_tokens = 5, .submitted = 1};
        memcpy(r.outs[3].tokens, q.tokens, 100 * sizeof(*q.tokens));
        assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
        r.n_open++;
        rig_run(&r, 600);
        assert_int_equal(r.outs[3].end.n_cached, 96);
        assert_memory_equal(r.outs[3].tokens, r.outs[2].tokens, 105 * sizeof(*q.tokens));
        for (uint64_t id = 1; id <= 3; id++) {
            rig_assert_true(&r, id);
        }
        assert_int_equal(stats_of(&r).shared_pages, 2);
        rig_assert_empty(&r);
        rig_close(&r);
    }
}

static void a_hit_is_not_its_own_victim(void **state) /* V6 */
{
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){
                     .n_pages = 16, .n_states = 2, .max_seqs = 2, .lifetime = KG_LIFETIME_MAX});
    r.n_shared = 64;
    r.n_groups = 1;
    (void)ask(&r, 1, 66, 2); /* 8 pages and states cached; they fill what is free */
    assert_int_equal(ask(&r, 2, 70, 58), 64); /* needs all 16 pages, 8 of them its hit */
    rig_assert_empty(&r);
    rig_close(&r);
}

static void either_kind_pays_for_the_other_in_one_arena(void **state) /* S1, S7 */
{
    struct rig r;

    (void)state;
    /* pages of 128 bytes, states of 256: room for 32 pages or 16 states */
    rig_open(&r, &(struct rig_conf){.n_pages = 16,
                                    .n_states = 8,
                                    .max_seqs = 8,
                                    .prefill_chunk = 64,
                                    .step_tokens = 600,
                                    .checkpoint = KG_CKPT_BRANCH + 1});
    for (uint64_t id = 1; id <= 6; id++) { /* evictable pages fill the arena, no state with them */
        (void)ask(&r, id, 40, 1);
    }
    struct kg_engine_stats s = stats_of(&r);
    assert_true(s.n_evictable[KG_PAGE] >= 24);
    for (uint64_t id = 11; id <= 18; id++) { /* eight states are wanted at once */
        assert_int_equal(rig_submit(&r, id, 8, 1, NULL), KG_OK);
    }
    rig_step(&r);
    s = stats_of(&r);
    assert_int_equal(s.n_short[KG_STATE] + s.n_short[KG_PAGE], 0);
    rig_run(&r, 10);
    rig_close(&r);
    /* and the mirror: cached states give way to pages */
    rig_open(&r, &(struct rig_conf){.n_pages = 24,
                                    .n_states = 8,
                                    .max_seqs = 2,
                                    .prefill_chunk = 8,
                                    .checkpoint = KG_CKPT_INTERVAL + 1,
                                    .interval = 8,
                                    .lifetime = KG_LIFETIME_MAX});
    for (uint64_t id = 1; id <= 4; id++) {
        (void)ask(&r, id, 40, 1);
    }
    s = stats_of(&r);
    assert_true(s.n_evictable[KG_STATE] > 8);
    (void)ask(&r, 9, 200, 80); /* 36 of the arena's 40 pages */
    s = stats_of(&r);
    assert_int_equal(s.n_short[KG_STATE] + s.n_short[KG_PAGE], 0);
    assert_true(s.evicted[KG_STATE] > 0);
    rig_assert_empty(&r);
    rig_close(&r);
}

static void under_a_split_the_starving_kind_is_named(void **state) /* S21 */
{
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){.pool = "split",
                                    .n_pages = 16,
                                    .n_states = 4,
                                    .max_seqs = 4,
                                    .lifetime = KG_LIFETIME_MAX});
    for (uint64_t id = 1; id <= 3; id++) {
        assert_int_equal(rig_submit(&r, id, 40, 40, NULL), KG_OK); /* 10 pages each */
    }
    rig_step(&r);
    struct kg_engine_stats s = stats_of(&r);
    assert_true(s.n_short[KG_PAGE] > 0);
    assert_int_equal(s.n_short[KG_STATE], 0);
    rig_run(&r, 500);
    rig_close(&r);
}

static void alone_it_fits_even_beside_its_hit(void **state) /* V53, S36 */
{
    struct rig r;

    (void)state;
    /* one state in all: the cached one must go for the working one */
    rig_open(&r, &(struct rig_conf){.pool = "split",
                                    .n_pages = 20,
                                    .n_states = 2,
                                    .max_seqs = 2,
                                    .lifetime = KG_LIFETIME_MAX});
    r.n_shared = 40;
    r.n_groups = 1;
    (void)ask(&r, 1, 60, 4);
    for (uint64_t id = 2; id <= 12; id++) {
        assert_int_equal(rig_submit(&r, id, 41 + (uint32_t)id, 20, NULL), KG_OK);
    }
    rig_run(&r, 3000);
    for (uint64_t id = 2; id <= 12; id++) {
        assert_int_equal(r.outs[id].end.finish, KG_FINISH_LENGTH);
        rig_assert_true(&r, id);
    }
    rig_assert_empty(&r);
    rig_close(&r);
}

static void a_hit_makes_nobody_wait_who_would_be_admitted_without_it(void **state)
{
    static const char *const pools[] = {"split", "shuffle"};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct rig r;
        rig_open(&r, &(struct rig_conf){.pool = pools[i],
                                        .n_pages = 60,
                                        .n_states = 3,
                                        .max_seqs = 3,
                                        .lifetime = KG_LIFETIME_MAX});
        r.n_shared = 40;
        r.n_groups = 1;
        (void)ask(&r, 1, 41, 1);
        r.flags = KG_REQ_NO_CACHE; /* two others take the other two states */
        assert_int_equal(rig_submit(&r, 2, 30, 60, NULL), KG_OK);
        assert_int_equal(rig_submit(&r, 3, 30, 60, NULL), KG_OK);
        rig_step(&r);
        r.flags = 0;
        assert_int_equal(rig_submit(&r, 4, 50, 5, NULL), KG_OK);
        while (!r.outs[4].done) {
            rig_step(&r);
        }
        assert_false(r.outs[2].done || r.outs[3].done); /* it did not wait for them */
        assert_int_equal(r.outs[4].end.n_cached, 40);
        assert_int_equal(stats_of(&r).taken_over, 1);
        rig_run(&r, 500);
        for (uint64_t id = 2; id <= 4; id++) {
            rig_assert_true(&r, id);
        }
        rig_assert_empty(&r);
        rig_close(&r);
    }
}

static void a_preempted_request_resumes_from_its_own_pages(void **state)
{
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){
                     .n_pages = 24, .n_states = 4, .max_seqs = 2, .lifetime = KG_LIFETIME_PROMPT});
    assert_int_equal(rig_submit(&r, 1, 56, 60, NULL), KG_OK);
    assert_int_equal(rig_submit(&r, 2, 56, 60, NULL), KG_OK);
    rig_run(&r, 600);
    struct kg_engine_stats s = stats_of(&r);
    assert_true(s.preemptions > 0);
    rig_assert_true(&r, 1);
    rig_assert_true(&r, 2);
    assert_int_equal(s.cached_tokens, 0);
    assert_int_equal(r.outs[2].end.n_cached, 0); /* its first admission found nothing */
    rig_assert_empty(&r);
    rig_close(&r);
}

static int nan_for_two(void *ctx, uint64_t id, uint32_t past)
{
    (void)ctx;
    return id == 2 && past >= 48;
}

static void a_nan_takes_what_it_read_and_wrote_out_of_the_cache(void **state) /* V46, S24 */
{
    struct kg_engine_test test = {.poison = nan_for_two};
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){.n_pages = 200, .n_states = 30, .test = &test});
    r.n_shared = 44;
    r.n_groups = 1;
    (void)ask(&r, 1, 60, 5);
    assert_int_equal(rig_submit(&r, 2, 60, 5, NULL), KG_OK);
    rig_run(&r, 100);
    assert_int_equal(r.outs[2].end.finish, KG_FINISH_ERROR);
    assert_int_equal(ask(&r, 3, 60, 5), 0); /* computed again, not resumed */
    assert_int_equal(ask(&r, 4, 60, 5), 40);
    rig_assert_empty(&r);
    rig_close(&r);
}

static void random_aborts_leave_only_what_is_cached(void **state) /* V60 */
{
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){.n_pages = 60, .n_states = 12});
    r.n_shared = 30;
    r.n_groups = 3;
    for (uint64_t id = 1; id <= 1000; id++) {
        assert_int_equal(rig_submit(&r, id, 20 + id % 30, 1 + id % 9, NULL), KG_OK);
        for (uint64_t k = 0; k < id % 4; k++) {
            rig_step(&r);
        }
        kg_engine_cancel(r.engine, 1 + (id * 7919) % id);
    }
    rig_run(&r, 2000);
    rig_assert_empty(&r);
    rig_close(&r);
}

static void hits_of_all_depths_at_page_edges(void **state) /* V13, V19 */
{
    struct rig r;

    (void)state;
    for (uint32_t shared = 1; shared <= 3 * PAGE + 1; shared++) {
        rig_open(&r, &(struct rig_conf){.checkpoint = KG_CKPT_BOUNDARY + 1});
        r.n_shared = shared;
        r.n_groups = 1;
        (void)ask(&r, 1, 40, 1);
        for (uint32_t n = shared; n <= shared + 2; n++) {
            /* the state lies at the shared message's end; one more token must be computed */
            uint32_t at = shared / PAGE * PAGE, want = at < n ? at : 0;
            uint32_t got = ask(&r, 2 + n - shared, n, 1);
            if (got != want) {
                fail_msg("%u shared of %u: %u cached, wanted %u", shared, n, got, want);
            }
        }
        rig_close(&r);
    }
}

static void off_means_off(void **state)
{
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){.no_prefix = 1});
    r.n_shared = 44;
    r.n_groups = 1;
    (void)ask(&r, 1, 60, 5);
    assert_int_equal(stats_of(&r).n_used[KG_PAGE], 0);
    assert_int_equal(ask(&r, 2, 60, 5), 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_request_goes_on_from_the_first),
        cmocka_unit_test(pages_without_a_state_are_lost_and_counted),
        cmocka_unit_test(no_cache_takes_nothing_and_leaves_nothing),
        cmocka_unit_test(salts_separate_tenants),
        cmocka_unit_test(echo_computes_the_whole_prompt),
        cmocka_unit_test(the_next_turn_finds_prompt_and_answer),
        cmocka_unit_test(an_answer_cut_behind_a_page_is_found_up_to_the_page_before),
        cmocka_unit_test(equal_prompts_at_once_end_on_one_copy),
        cmocka_unit_test(who_starts_beside_an_equal_beginning_leaves_all_it_computed),
        cmocka_unit_test(a_hit_is_not_its_own_victim),
        cmocka_unit_test(either_kind_pays_for_the_other_in_one_arena),
        cmocka_unit_test(under_a_split_the_starving_kind_is_named),
        cmocka_unit_test(alone_it_fits_even_beside_its_hit),
        cmocka_unit_test(a_hit_makes_nobody_wait_who_would_be_admitted_without_it),
        cmocka_unit_test(a_preempted_request_resumes_from_its_own_pages),
        cmocka_unit_test(a_nan_takes_what_it_read_and_wrote_out_of_the_cache),
        cmocka_unit_test(random_aborts_leave_only_what_is_cached),
        cmocka_unit_test(hits_of_all_depths_at_page_edges),
        cmocka_unit_test(off_means_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
