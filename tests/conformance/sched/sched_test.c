/*
 * Every scheduler against the contract of sched.h: sched_test NAME [OPTIONS]. A simulated core
 * with random requests, budgets and answers to admit() checks each plan line by line and plays its
 * effects; every request must be through in the end.
 */
#include "rig.h"

#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_REQUESTS 48
#define MAX_SEQS 12

static const char *sched_name, *sched_options;

/* What the simulated core knows of a request, beside the row the scheduler sees. */
struct sim_req {
    struct kg_sched_req row;
    uint32_t state; /* 0 free, 1 waiting, 2 running */
    uint32_t n_out, goal_out;
    uint64_t admission, stamp;
};

struct sim {
    struct rig_part part;
    const struct kg_sched_ops *ops;
    struct kg_sched *sched;
    struct kg_rng rng;
    struct sim_req reqs[MAX_REQUESTS];
    struct kg_sched_req running[MAX_SEQS], waiting[MAX_REQUESTS];
    uint32_t n_running, n_waiting, n_slots, n_arrived, n_done, step_tokens, chunk, decode_rows;
    uint32_t later_one_in; /* how often admit says later; 0 never */
    uint64_t n_ids, n_admissions, now;
    uint32_t admitted, asked[MAX_REQUESTS];
};

static void sim_open(struct sim *m, uint64_t seed)
{
    const struct kg_plugin *p = rig_find(KG_KIND_SCHED, sched_name);
    struct kg_error err = {0};

    assert_non_null(p);
    memset(m, 0, sizeof(*m));
    kg_rng_seed(&m->rng, seed);
    rig_part_open(&m->part, p, sched_options, 1);
    m->ops = p->ops;
    assert_int_equal(m->ops->open(&m->part.host, m->part.conf, MAX_REQUESTS, &m->sched, &err),
                     KG_OK);
    m->n_slots = 1 + (uint32_t)kg_rng_below(&m->rng, MAX_SEQS);
    m->decode_rows = 1 + (uint32_t)kg_rng_below(&m->rng, 5);
    m->step_tokens = m->decode_rows + (uint32_t)kg_rng_below(&m->rng, 60);
    m->chunk = 1 + (uint32_t)kg_rng_below(&m->rng, 30);
    m->later_one_in = (uint32_t)kg_rng_below(&m->rng, 4);
}

static void sim_close(struct sim *m)
{
    struct kg_error err = {0};

    assert_int_equal(m->ops->check(m->sched, &err), KG_OK);
    m->ops->close(m->sched);
    m->ops->close(NULL); /* allowed */
    rig_part_closed(&m->part);
}

static void arrive(struct sim *m)
{
    uint32_t i = 0;

    while (i < MAX_REQUESTS && m->reqs[i].state != 0) {
        i++;
    }
    if (i == MAX_REQUESTS) {
        return;
    }
    struct sim_req *r = &m->reqs[i];
    *r = (struct sim_req){.state = 1, .goal_out = 1 + (uint32_t)kg_rng_below(&m->rng, 12)};
    r->row = (struct kg_sched_req){.index = i,
                                   .id = ++m->n_ids,
                                   .tenant = kg_rng_below(&m->rng, 3),
                                   .priority = (uint32_t)kg_rng_below(&m->rng, 2),
                                   .arrival_ns = m->now,
                                   .n_prompt = 1 + (uint32_t)kg_rng_below(&m->rng, 90)};
    m->n_arrived++;
    m->ops->add(m->sched, &r->row);
}

/* The arrays of the view, running by admission and waiting by arrival. */
static void fill(struct sim *m)
{
    m->n_running = m->n_waiting = 0;
    for (uint64_t a = 1; a <= m->n_admissions; a++) {
        for (uint32_t i = 0; i < MAX_REQUESTS; i++) {
            if (m->reqs[i].state == 2 && m->reqs[i].admission == a) {
                m->running[m->n_running++] = m->reqs[i].row;
            }
        }
    }
    for (uint64_t id = 1; id <= m->n_ids; id++) {
        for (uint32_t i = 0; i < MAX_REQUESTS; i++) {
            if (m->reqs[i].state == 1 && m->reqs[i].row.id == id) {
                m->waiting[m->n_waiting++] = m->reqs[i].row;
            }
        }
    }
}

static void leave(struct sim *m, struct sim_req *r)
{
    m->ops->remove(m->sched, r->row.index);
    r->state = 0;
    m->n_done++;
}

static enum kg_admit admit(void *ctx, uint32_t index, uint32_t *computed)
{
    struct sim *m = ctx;

    assert_true(index < MAX_REQUESTS);
    struct sim_req *r = &m->reqs[index];
    assert_int_equal(r->state, 1);          /* it waits */
    assert_false(r->row.paused);            /* and may run */
    assert_int_equal(m->asked[index]++, 0); /* each once a step */
    if (kg_rng_below(&m->rng, 40) == 0) {
        leave(m, r);
        return KG_ADMIT_NEVER;
    }
    if (m->n_running + m->admitted >= m->n_slots ||
        (m->later_one_in > 0 && kg_rng_below(&m->rng, m->later_one_in) == 0)) {
        return KG_ADMIT_LATER;
    }
    m->admitted++;
    r->state = 2;
    r->admission = ++m->n_admissions;
    r->row.n_computed = (uint32_t)kg_rng_below(&m->rng, r->row.n_prompt); /* a prefix hit */
    *computed = r->row.n_computed;
    return KG_ADMIT_YES;
}

/* One line of the plan, checked and played. Returns the rows it counts. */
static uint32_t play(struct sim *m, const struct kg_sched_item *it, uint64_t stamp)
{
    assert_true(it->index < MAX_REQUESTS);
    struct sim_req *r = &m->reqs[it->index];
    assert_int_equal(r->state, 2);
    assert_false(r->row.paused);
    assert_true(r->stamp != stamp); /* nobody twice */
    r->stamp = stamp;
    if (r->row.decoding) {
        assert_int_equal(it->n_tokens, 1);
        r->n_out++;
        m->ops->served(m->sched, it->index, 0, 1);
    } else {
        assert_true(it->n_tokens >= 1 && it->n_tokens <= m->chunk);
        assert_true(it->n_tokens <= r->row.n_prompt - r->row.n_computed);
        r->row.n_computed += it->n_tokens;
        uint32_t first = r->row.n_computed == r->row.n_prompt;
        r->row.decoding = first;
        r->n_out += first;
        m->ops->served(m->sched, it->index, it->n_tokens, first);
        return it->n_tokens;
    }
    return m->decode_rows;
}

static void step(struct sim *m, uint64_t stamp)
{
    struct kg_sched_item items[MAX_SEQS];
    struct kg_error err = {0};

    fill(m);
    m->admitted = 0;
    memset(m->asked, 0, sizeof(m->asked));
    struct kg_sched_view v = {.size = sizeof(v),
                              .now_ns = m->now,
                              .step_tokens = m->step_tokens,
                              .prefill_chunk = m->chunk,
                              .decode_rows = m->decode_rows,
                              .n_slots = m->n_slots - m->n_running,
                              .running = m->running,
                              .n_running = m->n_running,
                              .n_waiting = m->n_waiting,
                              .waiting = m->waiting,
                              .admit = admit,
                              .ctx = m};
    int n = m->ops->plan(m->sched, &v, items, MAX_SEQS);
    assert_true(n >= 0 && n <= MAX_SEQS);
    uint32_t rows = 0, can = m->admitted;
    for (uint32_t i = 0; i < m->n_running; i++) {
        can += !m->running[i].paused;
    }
    for (int i = 0; i < n; i++) {
        rows += play(m, &items[i], stamp);
    }
    assert_true(rows <= m->step_tokens);
    assert_true(n > 0 || can == 0); /* somebody advances when somebody can */
    for (uint32_t i = 0; i < MAX_REQUESTS; i++) {
        struct sim_req *r = &m->reqs[i];
        if (r->state == 2 && r->n_out >= r->goal_out) {
            leave(m, r);
        } else if (r->state == 2 && kg_rng_below(&m->rng, 60) == 0) { /* preempted */
            r->state = 1;
            r->row.n_prompt += r->n_out;
            r->row.n_computed = r->row.decoding = 0;
        } else if (r->state != 0 && kg_rng_below(&m->rng, 90) == 0) { /* cancelled */
            leave(m, r);
        }
    }
    assert_int_equal(m->ops->check(m->sched, &err), KG_OK);
    m->now += 1000000;
}

static void pause_some(struct sim *m)
{
    for (uint32_t i = 0; i < MAX_REQUESTS; i++) {
        if (m->reqs[i].state != 0) {
            m->reqs[i].row.paused = kg_rng_below(&m->rng, 5) == 0;
        }
    }
}

static void plans_keep_the_rules_and_everybody_gets_through(void **state)
{
    (void)state;
    uint64_t n_walks = getenv("KEDGE_FULL") != NULL ? 500 : 40;
    for (uint64_t seed = 1; seed <= n_walks; seed++) {
        struct sim m;
        uint64_t stamp = 0;
        sim_open(&m, seed);
        while (m.n_arrived < 100 || m.n_done < m.n_arrived) {
            if (m.n_arrived < 100 && kg_rng_below(&m.rng, 2)) {
                arrive(&m);
            }
            if (kg_rng_below(&m.rng, 8) == 0) {
                pause_some(&m);
            }
            step(&m, ++stamp);
            if (stamp > 20000) {
                fail_msg("seed %llu: %u of %u requests through after %llu steps",
                         (unsigned long long)seed, m.n_done, m.n_arrived,
                         (unsigned long long)stamp);
            }
        }
        sim_close(&m);
    }
}

static void an_empty_world_is_an_empty_plan(void **state)
{
    (void)state;
    struct sim m;
    sim_open(&m, 1);
    step(&m, 1);
    sim_close(&m);
}

static void a_plan_fits_the_array_it_is_given(void **state)
{
    (void)state;
    struct sim m;
    struct kg_sched_item items[4] = {{0, 0}, {0, 0}, {77, 77}, {77, 77}};
    sim_open(&m, 2);
    m.later_one_in = 0;
    m.n_slots = MAX_SEQS;
    m.step_tokens = 1000;
    for (int i = 0; i < 6; i++) {
        arrive(&m);
    }
    fill(&m);
    struct kg_sched_view v = {.size = sizeof(v),
                              .step_tokens = 1000,
                              .prefill_chunk = 8,
                              .decode_rows = 1,
                              .n_slots = MAX_SEQS,
                              .running = m.running,
                              .waiting = m.waiting,
                              .n_waiting = m.n_waiting,
                              .admit = admit,
                              .ctx = &m};
    int n = m.ops->plan(m.sched, &v, items, 2);
    assert_true(n >= 0 && n <= 2);
    assert_int_equal(items[2].index, 77);
    sim_close(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_keep_the_rules_and_everybody_gets_through),
        cmocka_unit_test(an_empty_world_is_an_empty_plan),
        cmocka_unit_test(a_plan_fits_the_array_it_is_given),
    };
    if (argc < 2) {
        (void)fputs("usage: sched_test NAME [OPTIONS]\n", stderr);
        return 2;
    }
    sched_name = argv[1];
    sched_options = argc > 2 ? argv[2] : "";
    return cmocka_run_group_tests_name(sched_name, tests, NULL, NULL);
}
