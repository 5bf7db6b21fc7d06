/* The policy's word on verify windows: kept, asked for seldom, and without effect on any token. */
#include "rig.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

#define N_REQS 8
#define N_OUT 60

/* A policy that lets everybody in; its word on a class is by the tenant's first letter. */
struct windows {
    struct kg_engine_policy ops;
    struct kg_window_answer words[128];
    int rc;
    uint32_t off, swap; /* no hook; rules changed at the next step */
    uint32_t n_asked, n_steps;
    struct kg_window_view last;
    char last_tenant[32];
    /* What was verified, by id. */
    uint32_t most[RIG_IDS], n_rows[RIG_IDS];
};

static int on_step(void *ctx)
{
    struct windows *w = ctx;
    uint32_t swap = w->swap;

    w->n_steps++;
    w->swap = 0;
    return (int)swap;
}

static int on_admit(void *ctx, const struct kg_admit_view *view, struct kg_admit_answer *answer)
{
    (void)ctx;
    (void)view;
    (void)answer;
    return KG_ENOENT;
}

static bool has_window(void *ctx)
{
    return !((struct windows *)ctx)->off;
}

static int on_window(void *ctx, const struct kg_window_view *view, struct kg_window_answer *answer)
{
    struct windows *w = ctx;

    w->n_asked++;
    w->last = *view;
    (void)snprintf(w->last_tenant, sizeof(w->last_tenant), "%s", view->tenant);
    *answer = w->words[view->tenant[0] & 127];
    return w->rc;
}

static void on_result(void *ctx, const struct kg_seq *q, const struct kg_seq_result *res)
{
    struct windows *w = ctx;

    (void)res;
    w->n_rows[q->id] += q->n_draft;
    w->most[q->id] = q->n_draft > w->most[q->id] ? q->n_draft : w->most[q->id];
}

static void submit_as(struct rig *r, uint64_t id, const char *tenant)
{
    uint32_t tokens[12];
    struct kg_error err;
    struct kg_request q = {.id = id,
                           .tokens = tokens,
                           .n_prompt = 12,
                           .max_tokens = N_OUT,
                           .tenant_name = tenant,
                           .class_name = "any"};

    rig_prompt(tokens, 12, id, r->vocab);
    memcpy(r->outs[id].tokens, tokens, sizeof(tokens));
    r->outs[id].n_prompt = 12;
    r->outs[id].max_tokens = N_OUT;
    assert_int_equal(kg_engine_submit(r->engine, &q, &err), KG_OK);
    r->outs[id].submitted = 1;
    r->n_open++;
}

/* Four requests of tenant a, four of tenant b. */
static void open_eight(struct rig *r, struct windows *w, const char *spec, const char *spec_opts,
                       struct kg_engine_test *test)
{
    *test = (struct kg_engine_test){.ctx = w, .on_result = on_result};
    w->ops = (struct kg_engine_policy){w, on_step, on_admit, NULL, has_window, on_window};
    rig_open(r, &(struct rig_conf){.exec_opts = "draft_block=6 accept=0.8",
                                   .spec = spec,
                                   .spec_opts = spec_opts,
                                   .n_pages = 128,
                                   .step_tokens = 128,
                                   .test = test,
                                   .policy = &w->ops});
    for (uint32_t id = 1; id <= N_REQS; id++) {
        submit_as(r, id, id % 2 ? "a" : "b");
    }
}

static void close_eight(struct rig *r)
{
    for (uint32_t id = 1; id <= N_REQS; id++) {
        rig_assert_true(r, id);
        assert_int_equal(r->outs[id].n_output, N_OUT);
    }
    rig_assert_empty(r);
    rig_close(r);
}

static uint32_t run_eight(struct windows *w, const char *spec, const char *opts)
{
    struct kg_engine_test test;
    struct rig r;

    open_eight(&r, w, spec, opts, &test);
    uint32_t steps = rig_run(&r, 1000);
    close_eight(&r);
    return steps;
}

static const struct {
    const char *spec, *opts;
} kinds[] = {{"fake-host", "block=6"}, {"fake-model", "block=6"}};

static void a_cap_is_kept_by_its_class_and_by_no_other(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct windows w = {0};
        w.words['a'] = (struct kg_window_answer){KG_WINDOW_CAP, 2};
        run_eight(&w, kinds[k].spec, kinds[k].opts);
        for (uint32_t id = 1; id <= N_REQS; id++) {
            assert_true(w.n_rows[id] > 0);
            assert_true(id % 2 ? w.most[id] <= 2 : w.most[id] > 2);
        }
    }
}

static void a_pause_stops_drafting_in_its_class(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        struct windows w = {0};
        w.words['b'] = (struct kg_window_answer){KG_WINDOW_SET, 0};
        run_eight(&w, kinds[k].spec, kinds[k].opts);
        for (uint32_t id = 1; id <= N_REQS; id++) {
            assert_true(id % 2 ? w.n_rows[id] > 0 : w.n_rows[id] == 0);
        }
    }
}

static void when_all_pause_no_draft_is_made(void **state)
{
    (void)state;
    struct windows w = {.words = {['a'] = {KG_WINDOW_CAP, 0}, ['b'] = {KG_WINDOW_CAP, 0}}};
    struct kg_engine_stats s;
    struct kg_engine_test test;
    struct rig r;

    open_eight(&r, &w, "fake-host", "block=6", &test);
    rig_step(&r);
    rig_run(&r, 1000);
    kg_engine_stats(r.engine, &s);
    assert_int_equal(s.drafted, 0);
    close_eight(&r);
}

static void set_verifies_all_drafts_whatever_the_plugin_chooses(void **state)
{
    (void)state;
    struct windows w = {.words = {['a'] = {KG_WINDOW_SET, 3}, ['b'] = {KG_WINDOW_SET, 3}}};
    struct kg_engine_stats s;
    struct kg_engine_test test;
    struct rig r;

    open_eight(&r, &w, "fake-model", "block=6", &test);
    rig_run(&r, 1000);
    kg_engine_stats(r.engine, &s);
    assert_true(s.drafted > 100);
    assert_int_equal(s.verified, s.drafted);
    for (uint32_t id = 1; id <= N_REQS; id++) {
        assert_true(w.most[id] <= 3);
    }
    close_eight(&r);
}

static void what_is_no_rule_of_ours_is_left_to_the_plugin(void **state)
{
    (void)state;
    struct windows none = {.rc = KG_ENOENT, .words = {['a'] = {KG_WINDOW_CAP, 0}}};
    struct windows off = {.off = 1, .words = {['a'] = {KG_WINDOW_CAP, 0}}};

    run_eight(&none, "fake-host", "block=6");
    run_eight(&off, "fake-host", "block=6");
    assert_true(none.n_asked > 0);
    assert_int_equal(off.n_asked, 0);
    for (uint32_t id = 1; id <= N_REQS; id++) {
        assert_int_equal(none.n_rows[id], off.n_rows[id]);
        assert_true(off.n_rows[id] > 0);
    }
}

static void a_spent_budget_leaves_the_last_word_and_asks_again(void **state)
{
    (void)state;
    struct windows w = {.words = {['a'] = {KG_WINDOW_CAP, 0}, ['b'] = {KG_WINDOW_CAP, 0}}};
    struct kg_engine_test test;
    struct kg_engine_stats s;
    struct rig r;

    open_eight(&r, &w, "fake-host", "block=6", &test);
    for (int i = 0; i < 8; i++) {
        rig_step(&r);
    }
    uint32_t asked = w.n_asked;
    w.rc = KG_EAGAIN;
    w.swap = 1;
    rig_step(&r);
    rig_step(&r);
    assert_int_equal(w.n_asked, asked + 4); /* both classes, each step */
    kg_engine_stats(r.engine, &s);
    assert_int_equal(s.drafted, 0);
    w.rc = KG_OK;
    rig_run(&r, 1000);
    close_eight(&r);
}

static void a_class_is_asked_about_when_something_changed_and_not_before(void **state)
{
    (void)state;
    struct windows w = {.words = {['a'] = {KG_WINDOW_CAP, 0}, ['b'] = {KG_WINDOW_CAP, 0}}};
    struct kg_engine_test test;
    struct rig r;

    open_eight(&r, &w, "fake-host", "block=6", &test);
    for (int i = 0; i < 24; i++) { /* contexts up to 36: from 8 to 32 */
        rig_step(&r);
    }
    assert_true(w.n_asked >= 2 && w.n_asked <= 8);
    uint32_t before = w.n_asked;
    for (int i = 0; i < 12; i++) {
        rig_step(&r);
    }
    assert_int_equal(w.n_asked, before); /* 36 .. 48 tokens, nothing is verified */
    w.swap = 1;
    rig_step(&r);
    assert_int_equal(w.n_asked, before + 2);
    rig_run(&r, 1000);
    close_eight(&r);
}

static void the_view_names_the_class_and_counts_its_own_drafts(void **state)
{
    (void)state;
    struct windows w = {0};
    struct kg_engine_test test = {0};
    struct rig r;
    uint32_t verified = 0;

    open_eight(&r, &w, "fake-host", "block=6", &test);
    while (r.outs[1].n_output < 50) {
        rig_step(&r);
    }
    w.swap = 1;
    rig_step(&r);
    for (uint32_t id = 1; id <= N_REQS; id++) {
        if (w.last_tenant[0] == (id % 2 ? 'a' : 'b')) {
            verified += w.n_rows[id];
        }
    }
    assert_int_equal(w.last.verified, verified);
    assert_true(w.last.accepted > 0 && w.last.accepted < w.last.verified);
    assert_int_equal(w.last.block, 6);
    assert_true(w.last.n_seqs <= 4 && w.last.batch <= 8 && w.last.batch >= w.last.n_seqs);
    assert_true(w.last.context_tokens == 32 || w.last.context_tokens == 64);
    rig_run(&r, 1000);
    close_eight(&r);
}

static void more_tenants_than_places_each_keep_their_own_rule(void **state)
{
    (void)state;
    static char names[600][8];
    struct windows w = {.words = {['a'] = {KG_WINDOW_CAP, 1}, ['b'] = {KG_WINDOW_CAP, 0}}};
    struct kg_engine_test test;
    struct rig r;

    open_eight(&r, &w, "fake-host", "block=6", &test);
    for (uint32_t id = 9; id < 600; id++) {
        (void)snprintf(names[id], sizeof(names[id]), "%c%u", "ab"[id % 2], id);
        while (r.n_open >= 40) {
            rig_step(&r);
        }
        submit_as(&r, id, names[id]);
    }
    rig_run(&r, 10000);
    for (uint32_t id = 9; id < 600; id++) {
        rig_assert_true(&r, id);
        assert_true(w.most[id] <= (id % 2 ? 0u : 1u));
        assert_true(id % 2 || w.n_rows[id] > 0);
    }
    close_eight(&r);
}

/* From the next step on. What it replaces is closed; its host stays with `part`. */
static void draft_with(struct rig *r, struct rig_part *part, const char *spec, const char *opts)
{
    const struct kg_plugin *p = rig_find(KG_KIND_SPEC, spec);
    struct kg_engine_swap swap = {0};
    struct kg_error err;

    assert_non_null(p);
    rig_part_open(part, p, opts, 1);
    const struct kg_spec_ops *ops = p->ops;
    swap.spec_ops = ops;
    swap.spec_caps = p->caps;
    assert_int_equal(ops->open(&part->host, part->conf, 16, 6, &swap.spec, &err), KG_OK);
    struct kg_spec *given = swap.spec;
    assert_int_equal(kg_engine_swap(r->engine, &swap, &err), KG_OK);
    assert_true(rig_step(r) >= 0);
    swap.spec_ops->close(swap.spec); /* the old one came back */
    r->parts.spec_ops = ops;
    r->parts.spec = given;
}

static void who_came_and_went_without_drafting_is_not_asked_about_later(void **state)
{
    (void)state;
    struct windows w = {.words = {['t'] = {KG_WINDOW_CAP, 1}}};
    struct kg_engine_test test;
    struct rig_part off = {0}, on = {0};
    struct rig r;
    char name[8];

    open_eight(&r, &w, "fake-host", "block=6", &test);
    rig_run(&r, 1000);
    draft_with(&r, &off, "off", NULL);
    for (uint32_t id = 9; id < 600; id++) {
        (void)snprintf(name, sizeof(name), "t%u", id);
        while (r.n_open >= 40) {
            rig_step(&r);
        }
        submit_as(&r, id, name);
    }
    rig_run(&r, 10000);
    w.n_asked = 0;
    draft_with(&r, &on, "fake-host", "block=6");
    submit_as(&r, 600, "last");
    rig_run(&r, 1000);
    assert_string_equal(w.last_tenant, "last");
    assert_true(w.n_asked > 0 && w.n_asked <= r.outs[600].n_output);
    close_eight(&r);
    rig_part_closed(&off);
    rig_part_closed(&on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cap_is_kept_by_its_class_and_by_no_other),
        cmocka_unit_test(a_pause_stops_drafting_in_its_class),
        cmocka_unit_test(when_all_pause_no_draft_is_made),
        cmocka_unit_test(set_verifies_all_drafts_whatever_the_plugin_chooses),
        cmocka_unit_test(what_is_no_rule_of_ours_is_left_to_the_plugin),
        cmocka_unit_test(a_spent_budget_leaves_the_last_word_and_asks_again),
        cmocka_unit_test(a_class_is_asked_about_when_something_changed_and_not_before),
        cmocka_unit_test(the_view_names_the_class_and_counts_its_own_drafts),
        cmocka_unit_test(more_tenants_than_places_each_keep_their_own_rule),
        cmocka_unit_test(who_came_and_went_without_drafting_is_not_asked_about_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
