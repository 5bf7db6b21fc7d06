/* Plugins that change while requests run: nothing is lost and no token differs. */
#include "rig.h"

#include "base/rng.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_REQS 64
#define MAX_SWAPS 2000

/* A scheduler and a speculation that the test opened itself; their hosts stay where they are. */
struct spare {
    struct rig_part sched_part, spec_part;
    struct kg_engine_swap swap, given;
};

struct switching {
    struct rig rig;
    struct spare *spares[MAX_SWAPS];
    uint32_t n;
};

static struct spare *open_spare(const char *sched, const char *spec, const char *spec_opts)
{
    struct spare *s = calloc(1, sizeof(*s));
    struct kg_error err = {0};

    assert_non_null(s);
    if (sched != NULL) {
        const struct kg_plugin *p = rig_find(KG_KIND_SCHED, sched);
        assert_non_null(p);
        rig_part_open(&s->sched_part, p, NULL, 1);
        s->swap.sched_ops = p->ops;
        assert_int_equal(s->swap.sched_ops->open(&s->sched_part.host, s->sched_part.conf, 128,
                                                 &s->swap.sched, &err),
                         KG_OK);
    }
    if (spec != NULL) {
        const struct kg_plugin *p = rig_find(KG_KIND_SPEC, spec);
        assert_non_null(p);
        rig_part_open(&s->spec_part, p, spec_opts, 1);
        s->swap.spec_ops = p->ops;
        s->swap.spec_caps = p->caps;
        assert_int_equal(s->swap.spec_ops->open(&s->spec_part.host, s->spec_part.conf, 16, 4,
                                                &s->swap.spec, &err),
                         KG_OK);
    }
    s->given = s->swap;
    return s;
}

static void close_swap(const struct kg_engine_swap *s)
{
    if (s->sched_ops != NULL) {
        s->sched_ops->close(s->sched);
    }
    if (s->spec_ops != NULL) {
        s->spec_ops->close(s->spec);
    }
}

/* The swap was carried out: what it replaced is closed, what was given runs. */
static void took(struct rig *r, const struct spare *s)
{
    close_swap(&s->swap);
    if (s->given.sched_ops != NULL) {
        r->parts.sched_ops = s->given.sched_ops;
        r->parts.sched = s->given.sched;
    }
    if (s->given.spec_ops != NULL) {
        r->parts.spec_ops = s->given.spec_ops;
        r->parts.spec = s->given.spec;
    }
}

static void open_many(struct switching *w, const struct kg_engine_test *test)
{
    memset(w, 0, sizeof(*w));
    rig_open(&w->rig, &(struct rig_conf){.exec_opts = "draft_block=4 accept=0.7",
                                         .spec = "off",
                                         .n_pages = 90,
                                         .max_seqs = 16,
                                         .max_requests = 128,
                                         .keep_draft = 8,
                                         .test = test});
}

static void submit_many(struct switching *w, uint32_t first)
{
    for (uint32_t id = first; id < first + N_REQS; id++) {
        assert_int_equal(rig_submit(&w->rig, id, 5 + id % 40, 20 + id % 50, NULL), KG_OK);
    }
}

static void close_many(struct switching *w, uint32_t first)
{
    for (uint32_t id = first; id < first + N_REQS; id++) {
        rig_assert_true(&w->rig, id);
        assert_int_equal(w->rig.outs[id].n_output, 20 + id % 50);
    }
    rig_assert_empty(&w->rig);
    rig_close(&w->rig);
    for (uint32_t i = 0; i < w->n; i++) {
        rig_part_closed(&w->spares[i]->sched_part);
        rig_part_closed(&w->spares[i]->spec_part);
        free(w->spares[i]);
    }
}

/* Other plugins by chance, from the next step on. */
static void swap_once(struct switching *w, struct kg_rng *rng)
{
    static const char *const scheds[] = {"fcfs", "fair", "lifo", NULL};
    static const struct {
        const char *name, *opts;
    } specs[] = {{"off", NULL},
                 {"ngram", "drafts=5"},
                 {"fake-host", "block=6"},
                 {"fake-model", "block=4"},
                 {NULL, NULL}};
    uint32_t k = (uint32_t)kg_rng_below(rng, 5);
    struct kg_error err;

    assert_true(w->n < MAX_SWAPS);
    struct spare *s = open_spare(scheds[kg_rng_below(rng, 4)], specs[k].name, specs[k].opts);
    w->spares[w->n++] = s;
    assert_int_equal(kg_engine_swap(w->rig.engine, &s->swap, &err), KG_OK);
    assert_int_equal(kg_engine_swap(w->rig.engine, &s->swap, &err), KG_EAGAIN);
    assert_true(rig_step(&w->rig) >= 0);
    assert_int_equal(w->rig.n_swapped, w->n);
    took(&w->rig, s);
}

static void run_switching(struct switching *w, uint64_t seed)
{
    struct kg_rng rng;

    kg_rng_seed(&rng, seed);
    while (w->rig.n_open > 0) {
        swap_once(w, &rng);
        for (uint32_t k = (uint32_t)kg_rng_below(&rng, 4); k > 0; k--) {
            assert_true(rig_step(&w->rig) >= 0);
        }
    }
}

static void switching_under_64_requests_loses_none_and_changes_no_token(void **state)
{
    static struct switching w;
    struct kg_engine_stats s;

    (void)state;
    for (uint32_t seed = 1; seed <= 10; seed++) {
        struct kg_engine_test test = {.preempt_one_in = seed % 2 ? 7 : 0, .seed = seed};
        open_many(&w, &test);
        submit_many(&w, 1);
        run_switching(&w, seed);
        kg_engine_stats(w.rig.engine, &s);
        assert_true(w.n > 50);
        assert_true(s.accepted > 0);
        close_many(&w, 1);
    }
}

static void an_idle_engine_takes_other_plugins_too(void **state)
{
    static struct switching w;
    struct kg_rng rng;

    (void)state;
    kg_rng_seed(&rng, 3);
    open_many(&w, NULL);
    for (int i = 0; i < 20; i++) {
        swap_once(&w, &rng);
    }
    submit_many(&w, 1);
    rig_run(&w.rig, 5000);
    close_many(&w, 1);
}

static void what_there_is_no_room_for_is_refused_and_nothing_changes(void **state)
{
    static struct switching w;
    struct kg_error err = {0};
    struct rig *r = &w.rig;

    (void)state;
    memset(&w, 0, sizeof(w));
    rig_open(r, &(struct rig_conf){.spec = "off", .max_requests = 128});
    struct spare *host = open_spare(NULL, "ngram", NULL);
    struct spare *model = open_spare(NULL, "fake-model", "block=4");
    assert_int_equal(kg_engine_swap(r->engine, &host->swap, &err), KG_ECONFIG);
    assert_string_equal(err.text,
                        "the backend was opened without room for drafts ([engine] max_draft)");
    assert_int_equal(kg_engine_swap(r->engine, &model->swap, &err), KG_ECONFIG);
    assert_string_equal(err.text, "it needs a drafter, and none was loaded at start");
    submit_many(&w, 1);
    rig_run(r, 5000);
    assert_int_equal(r->n_swapped, 0);
    close_swap(&host->swap);
    close_swap(&model->swap);
    w.spares[w.n++] = host;
    w.spares[w.n++] = model;
    close_many(&w, 1);
}

static void an_engine_that_ends_meanwhile_leaves_both_to_be_closed(void **state)
{
    static struct switching w;
    struct kg_error err;

    (void)state;
    open_many(&w, NULL);
    struct spare *s = open_spare("fair", "ngram", NULL);
    w.spares[w.n++] = s;
    assert_int_equal(kg_engine_swap(w.rig.engine, &s->swap, &err), KG_OK);
    kg_engine_destroy(w.rig.engine);
    w.rig.engine = NULL;
    assert_true(s->swap.sched != s->given.sched && s->swap.spec != s->given.spec);
    took(&w.rig, s);
    rig_close(&w.rig);
    rig_part_closed(&s->sched_part);
    free(s);
}

static _Atomic uint32_t n_checks;

/* The second look finds something. */
static int counting_check(const struct kg_spec *spec, struct kg_error *err)
{
    (void)spec;
    return atomic_fetch_add(&n_checks, 1) == 0 ? KG_OK : kg_fail(err, KG_EINVAL, "out of order");
}

/* Events until `n` checks were made and every request is done. */
static void wait_for_checks(struct rig *r, uint32_t n)
{
    for (int i = 0; i < 2000 && (atomic_load(&n_checks) < n || r->n_open > 0); i++) {
        struct pollfd p = {.fd = kg_engine_fd(r->engine), .events = POLLIN};
        (void)poll(&p, 1, 10);
        rig_pump(r);
    }
    assert_int_equal(atomic_load(&n_checks), n);
    assert_int_equal(r->n_open, 0);
}

static void an_idle_engine_checks_itself_once_and_stops_when_something_is_wrong(void **state)
{
    static struct switching w;
    static struct kg_spec_ops ops;
    struct kg_error err;
    struct rig *r = &w.rig;

    (void)state;
    memset(&w, 0, sizeof(w));
    rig_open(r, &(struct rig_conf){
                    .exec_opts = "clock=real", .spec = "off", .keep_draft = 8, .no_debug = 1});
    struct spare *s = open_spare(NULL, "fake-host", NULL);
    w.spares[w.n++] = s;
    ops = *s->swap.spec_ops;
    ops.check = counting_check;
    s->swap.spec_ops = s->given.spec_ops = &ops;
    assert_int_equal(kg_engine_swap(r->engine, &s->swap, &err), KG_OK);
    assert_int_equal(kg_engine_start(r->engine, &err), KG_OK);
    assert_int_equal(rig_submit(r, 1, 10, 20, NULL), KG_OK);
    wait_for_checks(r, 1);
    took(r, s);
    assert_int_equal(rig_submit(r, 2, 10, 20, NULL), KG_OK);
    wait_for_checks(r, 2);
    rig_assert_true(r, 1);
    rig_assert_true(r, 2);
    while (rig_submit(r, 3, 10, 20, NULL) == KG_OK) { /* it may not have drawn the line yet */
        while (!r->outs[3].done) {
            rig_pump(r);
        }
        r->outs[3].submitted = 0;
    }
    rig_close(r);
    rig_part_closed(&s->spec_part);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(switching_under_64_requests_loses_none_and_changes_no_token),
        cmocka_unit_test(an_idle_engine_takes_other_plugins_too),
        cmocka_unit_test(what_there_is_no_room_for_is_refused_and_nothing_changes),
        cmocka_unit_test(an_engine_that_ends_meanwhile_leaves_both_to_be_closed),
        cmocka_unit_test(an_idle_engine_checks_itself_once_and_stops_when_something_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
