/* The engine under a policy: a double that answers as the test says, on exec-null in virtual time.
 */
#include "rig.h"

#include "base/clock.h"

#include <string.h>

/* Answers by request id. */
struct word {
    uint32_t verdict, lifetime, has_lifetime;
    uint64_t defer_ns;
    int rc;
};

struct double_policy {
    struct kg_engine_policy ops;
    struct word words[RIG_IDS];
    uint32_t asked[RIG_IDS];
    uint64_t last_ns[RIG_IDS];
    struct kg_admit_view last;
    uint32_t steps, swap; /* swap: the next step says the rules changed */
    uint64_t n;
};

static struct double_policy policy;

static int on_step(void *ctx)
{
    struct double_policy *p = ctx;
    uint32_t swap = p->swap;

    p->steps++;
    p->swap = 0;
    return (int)swap;
}

static int on_admit(void *ctx, const struct kg_admit_view *view, struct kg_admit_answer *answer)
{
    struct double_policy *p = ctx;
    const struct word *w = &p->words[view->id];

    p->n++;
    p->asked[view->id]++;
    p->last_ns[view->id] = view->now_ns;
    p->last = *view;
    if (w->rc != KG_OK) {
        return w->rc;
    }
    answer->verdict = w->verdict;
    answer->defer_ns = w->defer_ns;
    if (w->has_lifetime) {
        answer->lifetime = w->lifetime;
    }
    (void)snprintf(answer->text, sizeof(answer->text), "no room for %s", view->tenant);
    return KG_OK;
}

static void open_rig(struct rig *r, struct rig_conf conf)
{
    memset(&policy, 0, sizeof(policy));
    policy.ops = (struct kg_engine_policy){&policy, on_step, on_admit, NULL, NULL, NULL};
    conf.policy = &policy.ops;
    rig_open(r, &conf);
}

static void submit(struct rig *r, uint64_t id)
{
    assert_int_equal(rig_submit(r, id, 20, 10, NULL), KG_OK);
}

static void a_rejected_request_ends_with_the_reason_and_holds_nothing(void **state)
{
    struct rig r;

    (void)state;
    open_rig(&r, (struct rig_conf){0});
    policy.words[2].verdict = KG_ADMIT_NEVER;
    for (uint64_t id = 1; id <= 3; id++) {
        submit(&r, id);
    }
    rig_run(&r, 100);
    assert_int_equal(r.outs[2].end.finish, KG_FINISH_REFUSED);
    assert_int_equal(r.outs[2].end.rc, KG_ELIMIT);
    assert_string_equal(r.outs[2].end.text, "no room for ");
    assert_int_equal(r.outs[2].n_output, 0);
    for (uint64_t id = 1; id <= 3; id += 2) {
        assert_int_equal(r.outs[id].end.finish, KG_FINISH_LENGTH);
        rig_assert_true(&r, id);
    }
    assert_int_equal(policy.asked[2], 1);
    rig_assert_empty(&r);
    rig_close(&r);
}

static void the_view_has_the_need_the_memory_and_the_queue(void **state)
{
    struct rig r;
    uint32_t tokens[20];

    (void)state;
    open_rig(&r, (struct rig_conf){.max_seqs = 8, .page_tokens = 8, .n_pages = 64});
    submit(&r, 1);
    rig_step(&r);
    rig_prompt(tokens, 20, 9, r.vocab);
    struct kg_request q = {.id = 9,
                           .tokens = tokens,
                           .n_prompt = 20,
                           .max_tokens = 10,
                           .priority = 4,
                           .tenant_name = "a tenant whose name is longer than 31 bytes",
                           .class_name = "batch"};
    struct kg_error err;
    policy.words[9].verdict = KG_ADMIT_NEVER;
    assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
    r.outs[9].submitted = 1;
    r.n_open++;
    struct kg_engine_stats s;
    kg_engine_stats(r.engine, &s);
    rig_step(&r);
    const struct kg_admit_view *v = &policy.last;
    assert_int_equal(v->id, 9);
    assert_int_equal(v->priority, 4);
    assert_int_equal(v->n_prompt, 20);
    assert_int_equal(v->max_tokens, 10);
    assert_int_equal(v->need[KG_PAGE], 3); /* 20 + 1 tokens, pages of 8 */
    assert_int_equal(v->need[KG_STATE], 1);
    assert_int_equal(v->n_waiting, 1);
    assert_int_equal(v->n_running, 1);
    assert_int_equal(v->max_running, 8);
    assert_true(v->bytes.live[KG_STATE] > 0 && v->bytes.live[KG_STATE] == s.bytes.live[KG_STATE]);
    assert_true(v->bytes.arena == s.bytes.arena);
    assert_true(v->now_ns >= v->arrival_ns);
    assert_string_equal(r.outs[9].end.text, "no room for a tenant whose name is longer t");
    rig_run(&r, 100);
    rig_close(&r);
}

static void the_view_has_the_hit_and_the_need_that_is_left(void **state)
{
    struct rig r;

    (void)state;
    open_rig(&r, (struct rig_conf){.page_tokens = 8});
    submit(&r, 1); /* 20 tokens: pages and a state of the first 16 stay */
    rig_run(&r, 100);
    assert_int_equal(policy.last.hit_page_tokens, 0);
    assert_int_equal(policy.last.need[KG_PAGE], 3);
    struct kg_request q = {.id = 2, .tokens = r.outs[1].tokens, .n_prompt = 20, .max_tokens = 10};
    struct kg_error err;
    policy.words[2].verdict = KG_ADMIT_NEVER;
    assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
    r.outs[2].submitted = 1;
    r.n_open++;
    rig_run(&r, 100);
    assert_int_equal(policy.last.id, 2);
    assert_int_equal(policy.last.hit_page_tokens, 16);
    assert_int_equal(policy.last.hit_state_tokens, 16);
    assert_int_equal(policy.last.need[KG_PAGE], 1);
    assert_int_equal(policy.last.need[KG_STATE], 1);
    assert_true(policy.last.bytes.cached[KG_PAGE] > 0);
    rig_close(&r);
}

/* A padded state takes more of the budget than it holds: units are not bytes over budget bytes. */
static void units_of_a_padded_pool_are_counted_whole(void **state)
{
    struct rig r;

    (void)state;
    open_rig(&r, (struct rig_conf){.pool = "split",
                                   .pool_opts = "style=uniform",
                                   .exec_opts = "n_state_parts=5",
                                   .no_prefix = 1});
    for (uint64_t id = 1; id <= 4; id++) {
        submit(&r, id);
        rig_step(&r);
    }
    submit(&r, 9);
    policy.words[9].verdict = KG_ADMIT_NEVER;
    rig_step(&r);
    const struct kg_admit_view *v = &policy.last;
    assert_int_equal(v->id, 9);
    assert_true(v->bytes.padding > 0);
    assert_int_equal(v->live[KG_STATE], 4);
    assert_int_equal(v->live[KG_STATE] * 5 * 64, v->bytes.live[KG_STATE]);
    assert_true(v->unit_bytes[KG_STATE] > 5 * 64);
    assert_true(v->live[KG_PAGE] >= 4);
    assert_int_equal(v->live[KG_PAGE] * 16 * kg_engine_layout(r.engine)->page_tokens,
                     v->bytes.live[KG_PAGE]);
    assert_int_equal(v->cached[KG_PAGE] + v->cached[KG_STATE], 0);
    rig_run(&r, 200);
    rig_close(&r);
}

static void a_time_to_wait_is_kept_by_the_backends_clock(void **state)
{
    struct rig r;

    (void)state;
    open_rig(&r, (struct rig_conf){0});
    policy.words[1] = (struct word){.verdict = KG_ADMIT_LATER, .defer_ns = 50 * KG_NS_PER_MS};
    submit(&r, 1);
    rig_step(&r);
    assert_int_equal(policy.asked[1], 1);
    uint64_t first = policy.last_ns[1];
    while (policy.asked[1] < 2) { /* idle steps move the virtual clock to the next deadline */
        rig_step(&r);
    }
    assert_true(policy.last_ns[1] >= first + 50 * KG_NS_PER_MS);
    assert_true(policy.last_ns[1] < first + 51 * KG_NS_PER_MS);
    assert_int_equal(r.outs[1].done, 0);
    policy.words[1].verdict = KG_ADMIT_YES;
    rig_run(&r, 100);
    assert_int_equal(policy.asked[1], 3);
    rig_assert_true(&r, 1);
    assert_true(r.outs[1].end.admitted_ns >= first + 100 * KG_NS_PER_MS);
    rig_close(&r);
}

static void without_a_time_it_is_asked_when_something_changed_and_each_second(void **state)
{
    struct rig r;

    (void)state;
    open_rig(&r, (struct rig_conf){0});
    policy.words[1].verdict = KG_ADMIT_LATER;
    submit(&r, 1);
    rig_step(&r);
    submit(&r, 2);
    rig_step(&r); /* 2 begins */
    rig_step(&r); /* so 1 is asked about again */
    assert_int_equal(policy.asked[1], 2);
    while (!r.outs[2].done) {
        rig_step(&r);
        assert_int_equal(policy.asked[1], 2); /* nothing changes while 2 decodes */
    }
    rig_step(&r);
    assert_int_equal(policy.asked[1], 3);
    uint64_t then = policy.last_ns[1];
    while (policy.asked[1] == 3) {
        rig_step(&r);
    }
    assert_true(policy.last_ns[1] - then >= KG_NS_PER_S);
    assert_true(policy.last_ns[1] - then < KG_NS_PER_S + KG_NS_PER_MS);
    policy.swap = 1; /* a reload is a change */
    rig_step(&r);
    assert_int_equal(policy.asked[1], 5);
    policy.words[1].verdict = KG_ADMIT_YES;
    rig_run(&r, 100);
    rig_close(&r);
}

static void an_answer_stands_while_the_request_waits_for_memory(void **state)
{
    struct rig r;

    (void)state;
    open_rig(&r, (struct rig_conf){
                     .pool = "split", .n_pages = 4, .max_seqs = 4, .lifetime = KG_LIFETIME_MAX});
    submit(&r, 1); /* 4 pages of 8 for 30 tokens: no second one fits */
    rig_step(&r);
    submit(&r, 2);
    rig_step(&r);
    uint32_t before = policy.asked[2];
    assert_int_equal(before, 1);
    while (!r.outs[1].done) {
        rig_step(&r);
        assert_int_equal(policy.asked[2], before);
    }
    rig_run(&r, 100);
    assert_int_equal(policy.asked[2], before + 1);
    rig_assert_true(&r, 2);
    rig_close(&r);
}

static void any_number_of_held_requests_let_the_others_pass(void **state)
{
    struct rig r;

    (void)state;
    open_rig(&r, (struct rig_conf){.max_requests = 256, .max_wait_ms = 1, .n_pages = 256});
    for (uint64_t id = 1; id <= 200; id++) { /* more than a scheduler looks past */
        policy.words[id].verdict = KG_ADMIT_LATER;
        submit(&r, id);
    }
    rig_step(&r);
    submit(&r, 201);
    for (int i = 0; i < 60 && !r.outs[201].done; i++) {
        rig_step(&r);
    }
    assert_true(r.outs[201].done); /* though the others waited past max_wait_ms, too */
    rig_assert_true(&r, 201);
    for (uint64_t id = 1; id <= 200; id++) {
        policy.words[id].verdict = KG_ADMIT_YES;
    }
    rig_run(&r, 3000);
    for (uint64_t id = 1; id <= 200; id++) {
        rig_assert_true(&r, id);
    }
    rig_assert_empty(&r);
    rig_close(&r);
}

static void the_lifetime_it_sets_is_what_is_reserved(void **state)
{
    uint64_t preempted[2];

    (void)state;
    for (uint32_t max = 0; max < 2; max++) {
        struct rig r;
        struct kg_engine_stats s;
        open_rig(&r, (struct rig_conf){.n_pages = 10, .max_seqs = 4, .page_tokens = 8});
        for (uint64_t id = 1; id <= 4; id++) {
            policy.words[id] = (struct word){.lifetime = KG_LIFETIME_MAX, .has_lifetime = max};
            assert_int_equal(rig_submit(&r, id, 9, 40, NULL), KG_OK);
        }
        rig_run(&r, 1000);
        kg_engine_stats(r.engine, &s);
        preempted[max] = s.preemptions;
        for (uint64_t id = 1; id <= 4; id++) {
            rig_assert_true(&r, id);
        }
        rig_close(&r);
    }
    assert_true(preempted[0] > 0);
    assert_int_equal(preempted[1], 0);
}

static void a_request_that_began_is_not_asked_about_again(void **state)
{
    struct kg_engine_test test = {.preempt_one_in = 4, .seed = 5};
    struct rig r;
    struct kg_engine_stats s;

    (void)state;
    open_rig(&r, (struct rig_conf){.test = &test});
    for (uint64_t id = 1; id <= 4; id++) {
        submit(&r, id);
    }
    do {
        rig_step(&r);
        kg_engine_stats(r.engine, &s);
    } while (s.preemptions == 0);
    for (uint64_t id = 1; id <= 4; id++) {
        policy.words[id].verdict = KG_ADMIT_NEVER;
    }
    rig_run(&r, 2000);
    for (uint64_t id = 1; id <= 4; id++) {
        assert_int_equal(policy.asked[id], 1);
        rig_assert_true(&r, id);
    }
    rig_close(&r);
}

static void without_an_answer_the_built_in_rule_admits(void **state)
{
    struct rig r;

    (void)state;
    open_rig(&r, (struct rig_conf){0});
    policy.words[1].rc = KG_ENOENT;
    policy.words[2].rc = KG_EAGAIN; /* never put off before */
    submit(&r, 1);
    submit(&r, 2);
    rig_run(&r, 100);
    rig_assert_true(&r, 1);
    rig_assert_true(&r, 2);
    rig_close(&r);
}

static void a_spent_step_does_not_let_in_what_was_put_off(void **state)
{
    struct rig r;

    (void)state;
    open_rig(&r, (struct rig_conf){0});
    policy.words[1] = (struct word){.verdict = KG_ADMIT_LATER, .defer_ns = KG_NS_PER_MS};
    submit(&r, 1);
    rig_step(&r);
    policy.words[1].rc = KG_EAGAIN;
    for (int i = 0; i < 20; i++) {
        rig_step(&r);
    }
    assert_true(policy.asked[1] > 2);
    assert_int_equal(r.outs[1].n_output, 0);
    policy.words[1].rc = KG_ENOENT; /* an error, though, leaves the built-in rule */
    rig_run(&r, 100);
    rig_assert_true(&r, 1);
    rig_close(&r);
}

static void held_requests_end_like_any_other(void **state)
{
    struct rig r;

    (void)state;
    open_rig(&r, (struct rig_conf){.queue_timeout_ms = 30});
    for (uint64_t id = 1; id <= 6; id++) {
        policy.words[id] = (struct word){.verdict = KG_ADMIT_LATER, .defer_ns = 1000 * KG_NS_PER_S};
        submit(&r, id);
    }
    rig_step(&r);
    kg_engine_cancel(r.engine, 2);
    kg_engine_finish(r.engine, 3, 0);
    kg_engine_pause(r.engine, 4, true);
    rig_step(&r);
    kg_engine_pause(r.engine, 4, false);
    assert_int_equal(r.outs[2].end.finish, KG_FINISH_CANCELLED);
    assert_int_equal(r.outs[3].end.finish, KG_FINISH_CALLER);
    rig_run(&r, 100);
    assert_int_equal(r.outs[1].end.finish, KG_FINISH_TIMEOUT);
    assert_int_equal(r.outs[4].end.finish, KG_FINISH_TIMEOUT);
    assert_int_equal(r.outs[6].end.finish, KG_FINISH_TIMEOUT);
    submit(&r, 7);
    rig_run(&r, 100);
    rig_assert_true(&r, 7);
    rig_assert_empty(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rejected_request_ends_with_the_reason_and_holds_nothing),
        cmocka_unit_test(the_view_has_the_need_the_memory_and_the_queue),
        cmocka_unit_test(units_of_a_padded_pool_are_counted_whole),
        cmocka_unit_test(the_view_has_the_hit_and_the_need_that_is_left),
        cmocka_unit_test(a_time_to_wait_is_kept_by_the_backends_clock),
        cmocka_unit_test(without_a_time_it_is_asked_when_something_changed_and_each_second),
        cmocka_unit_test(an_answer_stands_while_the_request_waits_for_memory),
        cmocka_unit_test(any_number_of_held_requests_let_the_others_pass),
        cmocka_unit_test(the_lifetime_it_sets_is_what_is_reserved),
        cmocka_unit_test(a_request_that_began_is_not_asked_about_again),
        cmocka_unit_test(without_an_answer_the_built_in_rule_admits),
        cmocka_unit_test(a_spent_step_does_not_let_in_what_was_put_off),
        cmocka_unit_test(held_requests_end_like_any_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
