/* What a request gets: its tokens, its log probabilities, its end, or a refusal with the numbers.
 */
#include "rig.h"

#include <string.h>

static void one_request_follows_the_script_to_its_length(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){0});
    assert_int_equal(rig_submit(&r, 1, 37, 20, NULL), KG_OK);
    /* 37 tokens in chunks of 16 are 3 steps, the third gives the first token. */
    assert_int_equal(rig_run(&r, 100), 3 + 19);
    assert_int_equal(r.outs[1].end.finish, KG_FINISH_LENGTH);
    assert_int_equal(r.outs[1].end.n_output, 20);
    assert_int_equal(r.outs[1].end.n_prompt, 37);
    rig_assert_true(&r, 1);
    rig_assert_empty(&r);
    rig_close(&r);
}

static void many_requests_share_steps_and_units_come_back(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){0});
    for (uint32_t id = 1; id <= 40; id++) {
        assert_int_equal(rig_submit(&r, id, 1 + id % 23, 1 + id % 17, NULL), KG_OK);
    }
    uint32_t steps = rig_run(&r, 1000), tokens = 0;
    for (uint32_t id = 1; id <= 40; id++) {
        assert_int_equal(r.outs[id].end.finish, KG_FINISH_LENGTH);
        rig_assert_true(&r, id);
        tokens += r.outs[id].n_output;
    }
    assert_true(steps < tokens / 2); /* they did run together */
    rig_assert_empty(&r);
    rig_close(&r);
}

static void a_sampled_request_depends_on_its_seed_alone(void **state)
{
    (void)state;
    struct kg_sampling s = {.temperature = 0.8f, .seed = 11};
    struct rig r;
    rig_open(&r, &(struct rig_conf){0});
    assert_int_equal(rig_submit(&r, 1, 9, 30, &s), KG_OK);
    s.seed = 12;
    assert_int_equal(rig_submit(&r, 2, 9, 30, &s), KG_OK);
    rig_run(&r, 100);
    rig_assert_true(&r, 1);
    rig_assert_true(&r, 2);
    rig_close(&r);
}

static void a_stop_token_is_the_last_and_not_before_min_tokens(void **state)
{
    (void)state;
    struct kg_sampling s = {.n_stop_ids = 2, .stop_ids = {0, 1}, .min_tokens = 7};
    struct rig r;
    uint32_t n_stopped = 0;
    rig_open(&r, &(struct rig_conf){.exec_opts = "vocab=4"});
    for (uint32_t id = 1; id <= 20; id++) {
        assert_int_equal(rig_submit(&r, id, 5, 40, &s), KG_OK);
    }
    rig_run(&r, 1000);
    for (uint32_t id = 1; id <= 20; id++) {
        struct rig_out *o = &r.outs[id];
        rig_assert_true(&r, id);
        assert_true(o->n_output > 7);
        for (uint32_t i = 0; i + 1 < o->n_output; i++) {
            assert_true(o->tokens[o->n_prompt + i] > 1);
        }
        n_stopped += o->end.finish == KG_FINISH_STOP;
    }
    assert_true(n_stopped > 10);
    rig_close(&r);
}

static int submit_echo(struct rig *r, uint64_t id, uint32_t n_prompt)
{
    struct kg_error err;
    struct rig_out *o = &r->outs[id];
    rig_prompt(o->tokens, n_prompt, id, r->vocab);
    struct kg_request q = {.id = id,
                           .tokens = o->tokens,
                           .n_prompt = n_prompt,
                           .max_tokens = 6,
                           .flags = KG_REQ_ECHO,
                           .sampling = {.n_logprobs = 3}};
    o->submitted = 1;
    o->n_prompt = n_prompt;
    r->n_open++;
    return kg_engine_submit(r->engine, &q, &err);
}

/* Events of one echo request, in order, each prompt token once, preempted in between or not. */
static void check_echo(struct rig *r, uint32_t n_prompt)
{
    struct kg_event ev;
    struct kg_error err;
    uint32_t n_echo = 0, n_out = 0, done = 0;

    assert_int_equal(submit_echo(r, 1, n_prompt), KG_OK);
    for (uint32_t i = 0; i < 500 && !done; i++) {
        assert_true(kg_engine_step(r->engine, &err) >= 0);
        while (kg_engine_next(r->engine, &ev) == KG_OK) {
            done |= ev.type == KG_EVENT_DONE;
            for (uint32_t j = 0; ev.type == KG_EVENT_ECHO && j < ev.n; j++) {
                assert_int_equal(ev.n_logprobs, 4);
                assert_int_equal(ev.tokens[j], r->outs[1].tokens[1 + n_echo]);
                assert_int_equal(ev.logprobs[j * 4].id, ev.tokens[j]);
                assert_true(ev.logprobs[j * 4 + 1].logprob >= ev.logprobs[j * 4 + 2].logprob);
                n_echo++;
            }
            for (uint32_t j = 0; ev.type == KG_EVENT_TOKENS && j < ev.n; j++) {
                assert_int_equal(ev.n_logprobs, 4);
                assert_int_equal(ev.logprobs[j * 4].id, ev.tokens[j]);
                n_out++;
            }
        }
    }
    assert_true(done);
    assert_int_equal(n_echo, n_prompt - 1);
    assert_int_equal(n_out, 6);
    r->n_open--;
}

static void echo_reports_each_prompt_token_once(void **state)
{
    (void)state;
    struct kg_engine_test test = {.preempt_one_in = 4, .seed = 5};
    struct rig r;
    rig_open(&r, &(struct rig_conf){.prefill_chunk = 7});
    check_echo(&r, 40);
    rig_close(&r);
    rig_open(&r, &(struct rig_conf){.prefill_chunk = 7, .test = &test});
    check_echo(&r, 40);
    rig_close(&r);
    rig_open(&r, &(struct rig_conf){0});
    check_echo(&r, 1);
    rig_close(&r);
}

static void v49_what_can_never_fit_is_refused_with_numbers_and_the_next_runs(void **state)
{
    (void)state;
    struct rig r;
    struct kg_error err;
    uint32_t tokens[400] = {0};
    rig_open(&r, &(struct rig_conf){.n_pages = 10, .n_states = 2, .max_seqs = 2});
    uint32_t most = kg_engine_max_tokens(r.engine);
    struct kg_request q = {.id = 1, .tokens = tokens, .n_prompt = 20, .max_tokens = most - 20 + 1};
    assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_ENEVER);
    assert_non_null(strstr(err.text, "pages of 8 tokens"));
    assert_int_equal(rig_submit(&r, 2, 20, most - 20, NULL), KG_OK);
    rig_run(&r, 200);
    assert_int_equal(r.outs[2].end.finish, KG_FINISH_LENGTH);
    rig_assert_true(&r, 2);
    rig_close(&r);
}

static void the_context_limit_cuts_max_tokens_and_refuses_longer_prompts(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.max_context = 64});
    assert_int_equal(rig_submit(&r, 1, 64, 1, NULL), KG_ENEVER);
    assert_int_equal(rig_submit(&r, 2, 60, 100, NULL), KG_OK);
    rig_run(&r, 100);
    assert_int_equal(r.outs[2].end.finish, KG_FINISH_LENGTH);
    assert_int_equal(r.outs[2].n_output, 4);
    rig_close(&r);
}

static void a_wrong_field_is_named(void **state)
{
    (void)state;
    static const struct {
        struct kg_request q;
        const char *says;
    } bad[] = {
        {{.id = 0, .n_prompt = 3, .max_tokens = 1}, "id"},
        {{.id = 1, .n_prompt = 0, .max_tokens = 1}, "prompt"},
        {{.id = 1, .n_prompt = 3, .max_tokens = 0}, "max_tokens"},
        {{.id = 1, .n_prompt = 4, .max_tokens = 1}, "prompt token 3"},
        {{.id = 1, .n_prompt = 3, .max_tokens = 1, .sampling = {.temperature = -1}}, "temperature"},
        {{.id = 1, .n_prompt = 3, .max_tokens = 1, .sampling = {.top_p = 2}}, "top_p"},
        {{.id = 1, .n_prompt = 3, .max_tokens = 1, .sampling = {.n_logprobs = 21}}, "logprobs"},
        {{.id = 1, .n_prompt = 3, .max_tokens = 1, .sampling = {.presence_penalty = 3}},
         "penalties"},
        {{.id = 1, .n_prompt = 3, .max_tokens = 1, .n_boundaries = 2}, "boundary 1"},
    };
    static const uint32_t tokens[4] = {1, 2, 3, 1u << 30}, bounds[2] = {2, 2};
    struct rig r;
    rig_open(&r, &(struct rig_conf){0});
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kg_request q = bad[i].q;
        struct kg_error err = {0};
        q.tokens = tokens;
        q.boundaries = bounds;
        assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_EINVAL);
        if (strstr(err.text, bad[i].says) == NULL) {
            fail_msg("case %zu says \"%s\", not %s", i, err.text, bad[i].says);
        }
    }
    assert_int_equal(rig_submit(&r, 5, 3, 1, NULL), KG_OK);
    assert_int_equal(rig_submit(&r, 5, 3, 1, NULL), KG_EINVAL); /* it lives already */
    rig_close(&r);
}

static void a_full_engine_says_come_back_and_does(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.max_seqs = 2, .max_requests = 5});
    for (uint32_t id = 1; id <= 5; id++) {
        assert_int_equal(rig_submit(&r, id, 4, 4, NULL), KG_OK);
    }
    assert_int_equal(rig_submit(&r, 6, 4, 4, NULL), KG_EAGAIN);
    rig_run(&r, 100);
    assert_int_equal(rig_submit(&r, 6, 4, 4, NULL), KG_OK);
    rig_run(&r, 100);
    rig_assert_empty(&r);
    rig_close(&r);
}

static void sizes_that_cannot_work_are_refused_at_create(void **state)
{
    (void)state;
    struct rig r;
    struct kg_engine *none = NULL;
    struct kg_error err;
    rig_open(&r, &(struct rig_conf){0});
    struct kg_engine_conf conf = {.max_seqs = 4,
                                  .max_requests = 3,
                                  .step_tokens = 8,
                                  .prefill_chunk = 8,
                                  .page_tokens = 8,
                                  .arena_bytes = 1 << 20};
    assert_int_equal(kg_engine_create(&r.parts, &conf, &none, &err), KG_ECONFIG);
    assert_non_null(strstr(err.text, "max_requests 3"));
    conf.max_requests = 4;
    conf.step_tokens = 0;
    assert_int_equal(kg_engine_create(&r.parts, &conf, &none, &err), KG_ECONFIG);
    conf.step_tokens = 8;
    conf.arena_bytes = 100; /* not one page and four states */
    assert_int_equal(kg_engine_create(&r.parts, &conf, &none, &err), KG_ECONFIG);
    assert_null(none);
    rig_close(&r);
}

/* Equal requests at once: each page the second computes gives way to the first's. */
static void equal_requests_at_once_end_on_one_copy_of_their_pages(void **state)
{
    (void)state;
    struct kg_engine_stats stats;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.page_tokens = 8});
    assert_int_equal(rig_submit(&r, 1, 21, 100, NULL), KG_OK);
    struct rig_out *o = &r.outs[2];
    *o = (struct rig_out){.n_prompt = 21, .max_tokens = 90, .submitted = 1};
    rig_prompt(o->tokens, 21, 1, r.vocab);
    struct kg_request q = {.id = 2, .tokens = o->tokens, .n_prompt = 21, .max_tokens = 90};
    struct kg_error err = {0};
    assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
    r.n_open++;
    rig_run(&r, 300);
    rig_assert_true(&r, 1);
    rig_assert_true(&r, 2);
    assert_memory_equal(r.outs[1].tokens, o->tokens, (21 + 90) * sizeof(uint32_t));
    kg_engine_stats(r.engine, &stats);
    assert_in_range(stats.shared_pages, 1, (21 + 90) / 8);
    rig_assert_empty(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_follows_the_script_to_its_length),
        cmocka_unit_test(many_requests_share_steps_and_units_come_back),
        cmocka_unit_test(a_sampled_request_depends_on_its_seed_alone),
        cmocka_unit_test(a_stop_token_is_the_last_and_not_before_min_tokens),
        cmocka_unit_test(echo_reports_each_prompt_token_once),
        cmocka_unit_test(v49_what_can_never_fit_is_refused_with_numbers_and_the_next_runs),
        cmocka_unit_test(the_context_limit_cuts_max_tokens_and_refuses_longer_prompts),
        cmocka_unit_test(a_wrong_field_is_named),
        cmocka_unit_test(a_full_engine_says_come_back_and_does),
        cmocka_unit_test(sizes_that_cannot_work_are_refused_at_create),
        cmocka_unit_test(equal_requests_at_once_end_on_one_copy_of_their_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
