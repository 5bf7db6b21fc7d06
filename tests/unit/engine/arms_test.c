/* Arms: rules and a speculation for a part of the requests, in one engine and one batch. */
#include "rig.h"

#include "engine/index_policy.h"

#include <stdio.h>
#include <string.h>

#define N_ARMS 4u

/* An engine of four arms beside the rig's own parts. */
struct armed {
    struct rig rig;
    struct rig_part parts[N_ARMS];
    struct kg_engine_arm arms[N_ARMS];
    uint64_t mixed_steps, rows_of[N_ARMS]; /* drafts verified by arm */
    uint64_t step, seen;                   /* arms of the step being looked at */
};

static uint32_t arm_of(uint64_t id)
{
    return (uint32_t)(id % N_ARMS);
}

static void on_result(void *ctx, const struct kg_seq *q, const struct kg_seq_result *res)
{
    struct armed *a = ctx;

    (void)res;
    a->seen |= 1ull << arm_of(q->id);
    a->rows_of[arm_of(q->id)] += q->n_draft;
}

static void open_arm(struct armed *a, uint32_t i, const char *spec, const char *opts)
{
    const struct kg_plugin *p = rig_find(KG_KIND_SPEC, spec);
    struct kg_error err;

    assert_non_null(p);
    rig_part_open(&a->parts[i], p, opts, 1);
    a->arms[i].spec_ops = p->ops;
    a->arms[i].spec_caps = p->caps;
    assert_int_equal(a->arms[i].spec_ops->open(&a->parts[i].host, a->parts[i].conf, 16, 4,
                                               &a->arms[i].spec, &err),
                     KG_OK);
}

/* Arm 0 drafts nothing and keeps no states, the others draft in three ways. */
static void open_armed(struct armed *a, struct rig_conf conf, uint64_t salt)
{
    static const struct kg_engine_arm rules[N_ARMS] = {
        {"plain", 0, KG_CKPT_OFF, 16, KG_LIFETIME_PROMPT, 0, NULL, NULL, 0},
        {"lookup", 0, KG_CKPT_BOUNDARY, 16, KG_LIFETIME_MAX, 0, NULL, NULL, 0},
        {"fake", 0, KG_CKPT_INTERVAL, 8, KG_LIFETIME_EXPECTED, 0, NULL, NULL, 0},
        {"model", 0, KG_CKPT_AUTO, 32, KG_LIFETIME_PROMPT, 0, NULL, NULL, 0}};
    struct kg_engine_parts parts;
    struct kg_error err;

    memcpy(a->arms, rules, sizeof(rules));
    open_arm(a, 0, "off", NULL);
    open_arm(a, 1, "ngram", "drafts=7 min_gain=0.001");
    open_arm(a, 2, "fake-host", "block=3 bad=yes vocab=8");
    open_arm(a, 3, "fake-model", "block=4 want=yes vocab=8");
    for (uint32_t i = 0; i < N_ARMS; i++)
        a->arms[i].salt = salt != 0 ? salt + i : 0;
    conf.max_seqs = 16;
    conf.arms = a->arms;
    conf.n_arms = N_ARMS;
    rig_open(&a->rig, &conf);
    parts = a->rig.parts;
    parts.spec_ops = parts.sched_ops == NULL ? NULL : a->arms[0].spec_ops;
    /* an engine has a speculation, or arms that have theirs */
    struct kg_engine *none = NULL;
    struct kg_engine_conf small = {.max_seqs = 1,
                                   .max_requests = 1,
                                   .step_tokens = 8,
                                   .prefill_chunk = 8,
                                   .page_tokens = 8,
                                   .arena_bytes = 65536};
    assert_int_equal(kg_engine_create(&parts, &small, &none, &err), KG_EINVAL);
    assert_null(none);
}

static void close_armed(struct armed *a)
{
    rig_close(&a->rig);
    for (uint32_t i = 0; i < N_ARMS; i++) {
        a->arms[i].spec_ops->close(a->arms[i].spec);
        rig_part_closed(&a->parts[i]);
    }
}

static void answers_do_not_depend_on_the_arm(void **state)
{
    static const char *const pools[] = {"unified", "split", "shuffle"};

    (void)state;
    for (size_t p = 0; p < 3; p++) {
        struct armed a = {0};
        struct kg_engine_test test = {.ctx = &a,
                                      .seed = 5 + p,
                                      .preempt_one_in = 23,
                                      .relocate = p == 0 ? 2 : 0,
                                      .on_result = on_result};
        open_armed(&a,
                   (struct rig_conf){.exec_opts = "vocab=8 draft_block=4 accept=0.7",
                                     .pool = pools[p],
                                     .n_pages = 120,
                                     .n_states = 24,
                                     .max_requests = 128,
                                     .test = &test},
                   p == 2 ? 0 : 77);
        a.rig.n_shared = 24;
        a.rig.n_groups = 3;
        for (uint64_t id = 1; id <= 80; id++) {
            a.rig.arm = arm_of(id);
            assert_int_equal(rig_submit(&a.rig, id, 20 + id % 30, 20 + id % 40, NULL), KG_OK);
        }
        for (uint32_t n = 0; a.rig.n_open > 0; n++) {
            assert_true(n < 20000);
            a.seen = 0;
            assert_true(rig_step(&a.rig) >= 0);
            a.mixed_steps += (a.seen & (a.seen - 1)) != 0;
        }
        uint32_t preempted = 0, accepted[N_ARMS] = {0}, written[N_ARMS] = {0};
        for (uint64_t id = 1; id <= 80; id++) {
            const struct rig_out *o = &a.rig.outs[id];
            rig_assert_true(&a.rig, id);
            assert_int_equal(o->n_output, 20 + id % 40);
            preempted += o->end.n_preempted;
            accepted[arm_of(id)] += o->end.n_accepted;
            written[arm_of(id)] += o->end.n_checkpoints;
        }
        assert_true(preempted > 0 && a.mixed_steps > 20);
        assert_true(a.rows_of[0] == 0 && accepted[0] == 0 && written[0] == 0);
        for (uint32_t i = 1; i < N_ARMS; i++)
            assert_true(a.rows_of[i] > 0 && accepted[i] > 0 && written[i] > 0);
        if (test.relocate == 0) { /* else the test holds units itself */
            rig_assert_empty(&a.rig);
        }
        close_armed(&a);
    }
}

/* Tokens that the second of two requests with one prompt finds cached. */
static uint32_t found(uint64_t salt, uint32_t first_arm, uint32_t second_arm)
{
    struct armed a = {0};

    open_armed(&a, (struct rig_conf){0}, salt);
    a.rig.n_shared = 44;
    a.rig.n_groups = 1;
    for (uint64_t id = 1; id <= 2; id++) {
        a.rig.arm = id == 1 ? first_arm : second_arm;
        assert_int_equal(rig_submit(&a.rig, id, 60, 5, NULL), KG_OK);
        rig_run(&a.rig, 2000);
        rig_assert_true(&a.rig, id);
    }
    uint32_t n = a.rig.outs[2].end.n_cached;
    close_armed(&a);
    return n;
}

static void salts_keep_arms_apart_and_no_salt_does_not(void **state)
{
    (void)state;
    assert_int_equal(found(9, 1, 1), 40);
    assert_int_equal(found(9, 1, 2), 0);
    assert_int_equal(found(9, 2, 1), 0);
    assert_int_equal(found(9, 0, 0), 0); /* it keeps no states */
    assert_int_equal(found(0, 1, 3), 40);
    assert_int_equal(found(0, 1, 0), 40); /* what others kept it may use */
    assert_int_equal(found(0, 0, 1), 0);
}

static void an_arm_that_is_not_there_is_refused(void **state)
{
    struct armed a = {0};

    (void)state;
    open_armed(&a, (struct rig_conf){0}, 0);
    a.rig.arm = N_ARMS;
    assert_int_equal(rig_submit(&a.rig, 1, 10, 5, NULL), KG_EINVAL);
    struct kg_engine_swap swap = {.spec_ops = a.arms[0].spec_ops, .arm = N_ARMS};
    struct kg_error err;
    assert_int_equal(kg_engine_swap(a.rig.engine, &swap, &err), KG_EINVAL);
    close_armed(&a);
}

static void a_speculation_is_swapped_in_one_arm_alone(void **state)
{
    struct armed a = {0};
    struct kg_engine_test test = {.ctx = &a, .on_result = on_result};
    struct kg_error err;

    (void)state;
    open_armed(&a,
               (struct rig_conf){
                   .exec_opts = "vocab=8 draft_block=4 accept=0.7", .n_pages = 200, .test = &test},
               0);
    for (uint64_t id = 1; id <= 16; id++) {
        a.rig.arm = arm_of(id);
        assert_int_equal(rig_submit(&a.rig, id, 20, 200, NULL), KG_OK);
    }
    for (uint32_t n = 0; n < 30; n++)
        (void)rig_step(&a.rig);
    assert_true(a.rows_of[1] > 0 && a.rows_of[2] > 0 && a.rows_of[0] == 0);
    /* plain and lookup change places; the engine leaves what was there */
    struct kg_engine_swap swap = {.spec_ops = a.arms[0].spec_ops,
                                  .spec = a.arms[0].spec,
                                  .spec_caps = a.arms[0].spec_caps,
                                  .arm = 1};
    assert_int_equal(kg_engine_swap(a.rig.engine, &swap, &err), KG_OK);
    while (a.rig.n_swapped == 0)
        (void)rig_step(&a.rig);
    assert_ptr_equal(swap.spec, a.arms[1].spec);
    uint64_t before = a.rows_of[1], others = a.rows_of[2];
    for (uint32_t n = 0; n < 20; n++)
        (void)rig_step(&a.rig);
    assert_true(a.rows_of[1] == before && a.rows_of[2] > others);
    rig_run(&a.rig, 5000);
    for (uint64_t id = 1; id <= 16; id++) {
        rig_assert_true(&a.rig, id);
        assert_int_equal(a.rig.outs[id].n_output, 200);
    }
    close_armed(&a);
}

/* A policy that remembers what it was shown. */
struct watcher {
    uint32_t admits[N_ARMS], windows[N_ARMS], blocks[N_ARMS];
};

static int step(void *ctx)
{
    (void)ctx;
    return 0;
}

static uint32_t named(const char *arm)
{
    static const char *const names[N_ARMS] = {"plain", "lookup", "fake", "model"};
    uint32_t i = 0;

    while (i < N_ARMS && strcmp(names[i], arm) != 0)
        i++;
    assert_true(i < N_ARMS);
    return i;
}

static int admit(void *ctx, const struct kg_admit_view *view, struct kg_admit_answer *answer)
{
    struct watcher *w = ctx;

    (void)answer;
    assert_int_equal(named(view->arm), arm_of(view->id));
    w->admits[named(view->arm)]++;
    return KG_ENOENT;
}

static bool always(void *ctx)
{
    (void)ctx;
    return true;
}

/* Everybody in one class of names: arms alone tell them apart. */
static int window(void *ctx, const struct kg_window_view *view, struct kg_window_answer *answer)
{
    struct watcher *w = ctx;
    uint32_t i = named(view->arm);

    w->windows[i]++;
    w->blocks[i] = view->block;
    *answer = (struct kg_window_answer){i == 1 ? KG_WINDOW_CAP : KG_WINDOW_FREE, 0};
    return KG_OK;
}

static void the_policy_sees_the_arm_and_may_rule_one(void **state)
{
    struct armed a = {0};
    struct watcher w = {0};
    struct kg_engine_policy policy = {&w, step, admit, always, always, window};
    struct kg_engine_test test = {.ctx = &a, .on_result = on_result};

    (void)state;
    open_armed(&a,
               (struct rig_conf){.exec_opts = "vocab=8 draft_block=4 accept=0.7",
                                 .n_pages = 200,
                                 .policy = &policy,
                                 .test = &test},
               0);
    for (uint64_t id = 1; id <= 16; id++) {
        a.rig.arm = arm_of(id);
        assert_int_equal(rig_submit(&a.rig, id, 20, 60, NULL), KG_OK);
    }
    rig_run(&a.rig, 3000);
    for (uint32_t i = 0; i < N_ARMS; i++)
        assert_true(w.admits[i] == 4 && w.windows[i] > 0);
    assert_true(w.blocks[0] == 0 && w.blocks[1] == 7 && w.blocks[2] == 3 && w.blocks[3] == 4);
    assert_true(a.rows_of[1] == 0 && a.rows_of[2] > 0 && a.rows_of[3] > 0);
    close_armed(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_do_not_depend_on_the_arm),
        cmocka_unit_test(salts_keep_arms_apart_and_no_salt_does_not),
        cmocka_unit_test(an_arm_that_is_not_there_is_refused),
        cmocka_unit_test(a_speculation_is_swapped_in_one_arm_alone),
        cmocka_unit_test(the_policy_sees_the_arm_and_may_rule_one),
    };

    return cmocka_run_group_tests_name("arms", tests, NULL, NULL);
}
