/* The caller's side with a real engine thread: nothing is lost, nobody waits for ever. TSan runs
 * this. */
#include "rig.h"

#include "base/rng.h"

#include <poll.h>
#include <semaphore.h>
#include <time.h>
#include <unistd.h>

/* Sleeps until events may wait; a lost wake-up fails instead of hanging. */
static void wait_events(struct rig *r)
{
    struct pollfd p = {.fd = kg_engine_fd(r->engine), .events = POLLIN};

    if (poll(&p, 1, 20000) == 0) {
        fail_msg("no event in 20 s, %u requests open", r->n_open);
    }
    rig_pump(r);
}

static void the_thread_answers_everything_it_is_asked(void **state)
{
    (void)state;
    struct kg_rng rng;
    struct kg_error err;
    struct rig r;
    kg_rng_seed(&rng, 7);
    rig_open(&r, &(struct rig_conf){.exec_opts = "clock=real draft_block=3",
                                    .spec = "fake-model",
                                    .n_pages = 40,
                                    .max_requests = 32,
                                    .lifetime = KG_LIFETIME_PROMPT});
    assert_int_equal(kg_engine_start(r.engine, &err), KG_OK);
    assert_int_equal(kg_engine_start(r.engine, &err), KG_EINVAL);
    for (uint32_t id = 1; id <= 600;) {
        int rc = rig_submit(&r, id, 1 + id % 40, 1 + id % 30, NULL);
        if (rc == KG_EAGAIN) {
            wait_events(&r);
            continue;
        }
        assert_int_equal(rc, KG_OK);
        uint64_t other = 1 + kg_rng_below(&rng, id);
        switch (kg_rng_below(&rng, 6)) {
        case 0:
            kg_engine_cancel(r.engine, other);
            break;
        case 1:
            kg_engine_finish(r.engine, other, 3);
            break;
        case 2:
            kg_engine_pause(r.engine, other, true);
            kg_engine_pause(r.engine, other, false);
            break;
        default:
            break;
        }
        id++;
    }
    while (r.n_open > 0) {
        wait_events(&r);
    }
    kg_engine_stop(r.engine);
    for (uint32_t id = 1; id <= 600; id++) {
        assert_true(r.outs[id].done);
        rig_assert_true(&r, id);
    }
    rig_assert_empty(&r);
    rig_close(&r);
}

static void a_full_outbox_stops_the_step_and_reading_resumes_it(void **state)
{
    (void)state;
    struct rig r;
    struct kg_error err;
    struct kg_event ev;
    uint32_t steps = 0, tokens = 0, done = 0, prompt[4] = {1, 2, 3, 4};
    rig_open(&r, &(struct rig_conf){.max_seqs = 4, .max_requests = 4, .n_pages = 300});
    for (uint32_t id = 1; id <= 4; id++) {
        struct kg_request q = {.id = id, .tokens = prompt, .n_prompt = 4, .max_tokens = 400};
        assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
    }
    while (kg_engine_step(r.engine, &err) > 0) { /* nobody reads */
        assert_true(++steps < 400);
    }
    assert_int_equal(kg_engine_step(r.engine, &err), 0);
    assert_true(steps > 1);
    for (uint32_t i = 0; i < 4000 && done < 4; i++) {
        while (kg_engine_next(r.engine, &ev) == KG_OK) {
            tokens += ev.type == KG_EVENT_TOKENS ? ev.n : 0;
            done += ev.type == KG_EVENT_DONE;
        }
        assert_true(kg_engine_step(r.engine, &err) >= 0);
    }
    assert_int_equal(done, 4);
    assert_int_equal(tokens, 4 * 400);
    rig_close(&r);
}

static void a_blocked_thread_is_woken_by_the_reader(void **state)
{
    (void)state;
    struct rig r;
    struct kg_error err;
    struct kg_event ev;
    struct kg_engine_stats s, before;
    uint32_t done = 0, prompt[4] = {1, 2, 3, 4};
    rig_open(&r, &(struct rig_conf){
                     .exec_opts = "clock=real", .max_seqs = 4, .max_requests = 4, .n_pages = 300});
    assert_int_equal(kg_engine_start(r.engine, &err), KG_OK);
    for (uint32_t id = 1; id <= 4; id++) {
        struct kg_request q = {.id = id, .tokens = prompt, .n_prompt = 4, .max_tokens = 400};
        assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
    }
    kg_engine_stats(r.engine, &s);
    do { /* until the engine stands still with its outbox full, or is through */
        before = s;
        for (int i = 0; i < 1000; i++) {
            kg_engine_stats(r.engine, &s);
        }
    } while (s.steps != before.steps || s.steps == 0);
    while (done < 4) {
        struct pollfd p = {.fd = kg_engine_fd(r.engine), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 20000), 1);
        while (kg_engine_next(r.engine, &ev) == KG_OK) {
            done += ev.type == KG_EVENT_DONE;
        }
    }
    rig_close(&r);
}

struct full {
    struct kg_engine *engine;
    uint32_t n_full, n_done;
    sem_t again;
};

/* The first time everything is read between the look for room and the sleep; after the second time
 * the test reads. */
static void read_all_once(void *ctx)
{
    struct full *f = ctx;
    struct kg_event ev;

    if (++f->n_full == 1) {
        while (kg_engine_next(f->engine, &ev) == KG_OK) {
            f->n_done += ev.type == KG_EVENT_DONE;
        }
    } else if (f->n_full == 2) {
        (void)sem_post(&f->again);
    }
}

static void room_made_before_the_thread_sleeps_is_seen(void **state)
{
    (void)state;
    struct rig r;
    struct kg_error err;
    struct kg_event ev;
    struct full f = {0};
    struct kg_engine_test test = {.ctx = &f, .on_full = read_all_once};
    struct timespec until;
    uint32_t prompt[4] = {1, 2, 3, 4};
    assert_int_equal(sem_init(&f.again, 0, 0), 0);
    rig_open(&r, &(struct rig_conf){.exec_opts = "clock=real",
                                    .max_seqs = 4,
                                    .max_requests = 4,
                                    .n_pages = 300,
                                    .test = &test});
    f.engine = r.engine;
    for (uint32_t id = 1; id <= 4; id++) {
        struct kg_request q = {.id = id, .tokens = prompt, .n_prompt = 4, .max_tokens = 400};
        assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
    }
    assert_int_equal(kg_engine_start(r.engine, &err), KG_OK);
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    if (sem_timedwait(&f.again, &until) != 0) {
        fail_msg("the thread sleeps with an empty outbox");
    }
    while (f.n_done < 4) {
        struct pollfd p = {.fd = kg_engine_fd(r.engine), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 20000), 1);
        while (kg_engine_next(r.engine, &ev) == KG_OK) {
            f.n_done += ev.type == KG_EVENT_DONE;
        }
    }
    rig_close(&r);
    (void)sem_destroy(&f.again);
}

static void a_full_thread_stops_when_told(void **state)
{
    (void)state;
    struct rig r;
    struct kg_error err;
    struct full f = {.n_full = 1}; /* nobody reads */
    struct kg_engine_test test = {.ctx = &f, .on_full = read_all_once};
    uint32_t prompt[4] = {1, 2, 3, 4};
    assert_int_equal(sem_init(&f.again, 0, 0), 0);
    rig_open(&r, &(struct rig_conf){.exec_opts = "clock=real",
                                    .max_seqs = 4,
                                    .max_requests = 4,
                                    .n_pages = 300,
                                    .test = &test});
    struct kg_request q = {.id = 1, .tokens = prompt, .n_prompt = 4, .max_tokens = 400};
    assert_int_equal(kg_engine_submit(r.engine, &q, &err), KG_OK);
    assert_int_equal(kg_engine_start(r.engine, &err), KG_OK);
    assert_int_equal(sem_wait(&f.again), 0);
    kg_engine_stop(r.engine);
    rig_close(&r);
    (void)sem_destroy(&f.again);
}

static void destroy_ends_live_requests_and_an_idle_thread(void **state)
{
    (void)state;
    struct kg_error err;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.exec_opts = "clock=real"});
    assert_int_equal(kg_engine_start(r.engine, &err), KG_OK);
    for (uint32_t id = 1; id <= 20; id++) {
        assert_int_equal(rig_submit(&r, id, 10, 500, NULL), KG_OK);
    }
    rig_close(&r); /* the rig checks that plugins got their memory back */
    rig_open(&r, &(struct rig_conf){.exec_opts = "clock=real"});
    assert_int_equal(kg_engine_start(r.engine, &err), KG_OK);
    kg_engine_stop(r.engine);
    kg_engine_stop(r.engine);
    assert_int_equal(rig_submit(&r, 1, 10, 5, NULL), KG_OK);
    assert_int_equal(kg_engine_start(r.engine, &err), KG_OK); /* again, with work waiting */
    while (r.n_open > 0) {
        wait_events(&r);
    }
    rig_assert_true(&r, 1);
    rig_close(&r);
}

static void a_queue_timeout_wakes_the_idle_thread(void **state)
{
    (void)state;
    struct kg_error err;
    struct rig r;
    rig_open(&r, &(struct rig_conf){.exec_opts = "clock=real", .queue_timeout_ms = 5});
    assert_int_equal(rig_submit(&r, 1, 10, 100, NULL), KG_OK);
    kg_engine_pause(r.engine, 1, true); /* it waits whatever is free */
    assert_int_equal(kg_engine_start(r.engine, &err), KG_OK);
    while (!r.outs[1].done) {
        wait_events(&r);
    }
    assert_int_equal(r.outs[1].end.finish, KG_FINISH_TIMEOUT);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_thread_answers_everything_it_is_asked),
        cmocka_unit_test(a_full_outbox_stops_the_step_and_reading_resumes_it),
        cmocka_unit_test(a_blocked_thread_is_woken_by_the_reader),
        cmocka_unit_test(room_made_before_the_thread_sleeps_is_seen),
        cmocka_unit_test(a_full_thread_stops_when_told),
        cmocka_unit_test(destroy_ends_live_requests_and_an_idle_thread),
        cmocka_unit_test(a_queue_timeout_wakes_the_idle_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
