/*
 * Every speculation policy against the contract of spec.h: spec_test NAME [OPTIONS]. Random
 * sequences come and go through slots; block, cap, drafts and lengths stay inside their bounds in
 * every view, and length 0 is what a view without drafts gets.
 */
#include "rig.h"

#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SEQS 10
#define HISTORY 200
#define VOCAB 64
#define MAX_BLOCK 64

static const char *spec_name, *spec_options;

struct sim {
    struct rig_part part;
    const struct kg_spec_ops *ops;
    struct kg_spec *spec;
    struct kg_rng rng;
    uint64_t ids[MAX_SEQS]; /* request in a slot, 0 none */
    uint32_t history[MAX_SEQS][HISTORY], n[MAX_SEQS];
    uint64_t n_ids;
    uint32_t n_steps_drafted;
};

static uint32_t below(struct sim *m, uint64_t n)
{
    return (uint32_t)kg_rng_below(&m->rng, n);
}

static void sim_open(struct sim *m, uint64_t seed)
{
    const struct kg_plugin *p = rig_find(KG_KIND_SPEC, spec_name);
    struct kg_error err = {0};

    assert_non_null(p);
    memset(m, 0, sizeof(*m));
    kg_rng_seed(&m->rng, seed);
    rig_part_open(&m->part, p, spec_options, 1);
    m->ops = p->ops;
    uint64_t both = KG_SPEC_CAP_HOST | KG_SPEC_CAP_MODEL;
    assert_true((p->caps & both) != both || p->needs_minor >= 2);
    assert_int_equal((p->caps & KG_SPEC_CAP_HOST) != 0, KG_HAS(m->ops, struct kg_spec_ops, draft));
    uint32_t block = p->caps & KG_SPEC_CAP_MODEL ? 4 : 0; /* the drafter's */
    assert_int_equal(m->ops->open(&m->part.host, m->part.conf, MAX_SEQS, block, &m->spec, &err),
                     KG_OK);
    assert_true(m->ops->block(m->spec) <= MAX_BLOCK);
}

static void sim_close(struct sim *m)
{
    struct kg_error err = {0};

    assert_int_equal(m->ops->check(m->spec, &err), KG_OK);
    m->ops->close(m->spec);
    m->ops->close(NULL); /* allowed */
    rig_part_closed(&m->part);
}

/* Requests begin in free slots. */
static void begin(struct sim *m)
{
    for (uint32_t s = 0; s < MAX_SEQS; s++) {
        if (m->ids[s] == 0 && below(m, 3) == 0) {
            m->ids[s] = ++m->n_ids;
            m->n[s] = 1 + below(m, HISTORY / 2);
            for (uint32_t i = 0; i < m->n[s];
                 i++) { /* repetitive, so that lookups find something */
                m->history[s][i] = i % 7 + below(m, 2);
            }
        }
    }
}

static uint32_t fill(struct sim *m, struct kg_spec_seq *seqs, uint32_t cap)
{
    uint32_t n = 0;

    for (uint32_t s = 0; s < MAX_SEQS; s++) {
        if (m->ids[s] != 0 && below(m, 5) > 0) { /* not every one is planned each step */
            seqs[n++] = (struct kg_spec_seq){.id = m->ids[s],
                                             .slot = s,
                                             .context = m->n[s] - 1,
                                             .max_draft = below(m, cap + 1ull),
                                             .greedy = below(m, 2),
                                             .n_history = m->n[s],
                                             .history = m->history[s]};
        }
    }
    return n;
}

/* As the engine asks: with what is allowed filled in. */
static void ask_wants(struct sim *m, const struct kg_spec_view *v, uint32_t *wants)
{
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        wants[i] = v->seqs[i].n_drafted > 0 ? 0 : v->seqs[i].max_draft;
    }
    if (KG_HAS(m->ops, struct kg_spec_ops, want)) {
        m->ops->want(m->spec, v, wants);
    }
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        assert_true(wants[i] <= v->seqs[i].max_draft);
        assert_true(wants[i] == 0 || v->seqs[i].n_drafted == 0); /* one or the other drafts */
    }
}

/* Drafts of the plugin or of an imagined backend; every count inside its bound. */
static void draft(struct sim *m, const struct kg_spec_view *v, struct kg_spec_seq *seqs,
                  float survival[MAX_SEQS][MAX_BLOCK])
{
    uint32_t tokens[MAX_SEQS * MAX_BLOCK], counts[MAX_SEQS] = {0}, stride = MAX_BLOCK;

    memset(tokens, 0xff, sizeof(tokens));
    if (m->part.plugin->caps & KG_SPEC_CAP_HOST) {
        int rc = m->ops->draft(m->spec, v, tokens, stride, counts);
        for (uint32_t i = 0; rc >= 0 && i < v->n_seqs; i++) {
            assert_true(counts[i] <= seqs[i].max_draft);
            for (uint32_t k = 0; k < stride; k++) { /* and nothing behind the count was written */
                assert_int_equal(tokens[i * stride + k] < VOCAB, k < counts[i]);
            }
            seqs[i].n_drafted = counts[i];
            m->n_steps_drafted += counts[i] > 0;
        }
    }
    if (m->part.plugin->caps & KG_SPEC_CAP_MODEL) {
        ask_wants(m, v, counts);
        for (uint32_t i = 0; i < v->n_seqs; i++) {
            float p = 1.0f;
            if (seqs[i].n_drafted > 0) {
                continue;
            }
            seqs[i].n_drafted = counts[i] < 4 ? counts[i] : 4;
            for (uint32_t k = 0; k < seqs[i].n_drafted; k++) {
                survival[i][k] = p *= (float)kg_rng_f64(&m->rng);
            }
            seqs[i].survival = below(m, 4) ? survival[i] : NULL;
            m->n_steps_drafted += seqs[i].n_drafted > 0;
        }
    }
}

/* Outcomes of a step; some requests end, and some slots are freed without one. */
static void observe(struct sim *m, const struct kg_spec_seq *seqs, const uint32_t *lengths,
                    uint32_t n)
{
    struct kg_spec_seen seen[2 * MAX_SEQS];
    uint32_t tokens[MAX_BLOCK + 1], n_seen = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t s = seqs[i].slot, accepted = below(m, lengths[i] + 1ull);
        for (uint32_t k = 0; k <= accepted && m->n[s] < HISTORY; k++) {
            tokens[k] = m->history[s][m->n[s]++] = below(m, VOCAB);
        }
        seen[n_seen++] = (struct kg_spec_seen){.id = m->ids[s],
                                               .slot = s,
                                               .n_verified = lengths[i],
                                               .n_accepted = accepted,
                                               .n_tokens = accepted + 1,
                                               .greedy = seqs[i].greedy,
                                               .tokens = tokens};
        if (m->n[s] == HISTORY || below(m, 10) == 0) {
            seen[n_seen++] = (struct kg_spec_seen){.id = m->ids[s], .slot = s, .ended = 1};
            m->ids[s] = 0;
        }
    }
    m->ops->observe(m->spec, seen, n_seen, 1000 + below(m, 1000));
}

static uint64_t step_ns(void *ctx, uint32_t n_seqs, uint32_t rows, uint64_t context)
{
    return 1000 + 10 * n_seqs + *(uint32_t *)ctx * rows + context / 64;
}

static uint64_t draft_ns(void *ctx, uint32_t n_seqs, uint32_t n_tokens, uint64_t context)
{
    return *(uint32_t *)ctx * n_tokens + n_seqs + context / 64;
}

static void answers_stay_inside_their_bounds(void **state)
{
    (void)state;
    uint64_t n_walks = getenv("KEDGE_FULL") != NULL ? 300 : 20;
    for (uint64_t seed = 1; seed <= n_walks; seed++) {
        struct kg_spec_seq seqs[MAX_SEQS];
        float survival[MAX_SEQS][MAX_BLOCK];
        uint32_t lengths[MAX_SEQS], drafts = 0;
        struct kg_error err = {0};
        struct sim m;
        sim_open(&m, seed);
        uint32_t row_ns = 1 + below(&m, 500);
        struct kg_cost cost = {sizeof(cost), &row_ns, step_ns, draft_ns};
        uint32_t block = m.ops->block(m.spec);
        for (uint32_t k = 0; k < 200; k++) {
            uint32_t cap = m.ops->cap(m.spec);
            assert_true(cap <= block);
            assert_int_equal(m.ops->block(m.spec), block); /* memory was granted for it */
            begin(&m);
            uint32_t n = fill(&m, seqs, cap);
            struct kg_spec_view v = {.size = sizeof(v),
                                     .seqs = seqs,
                                     .n_seqs = n,
                                     .other_rows = below(&m, 20),
                                     .rows_left = below(&m, 60),
                                     .cap = cap,
                                     .cost = seed % 3 > 0 ? &cost : NULL};
            draft(&m, &v, seqs, survival);
            memset(lengths, 0xff, sizeof(lengths));
            m.ops->choose(m.spec, &v, lengths);
            for (uint32_t i = 0; i < n; i++) {
                assert_true(lengths[i] <= seqs[i].n_drafted);
                assert_true(lengths[i] <= seqs[i].max_draft && lengths[i] <= cap);
                drafts += lengths[i];
            }
            observe(&m, seqs, lengths, n);
            assert_int_equal(m.ops->check(m.spec, &err), KG_OK);
        }
        assert_true(drafts > 0 || block == 0 || m.n_steps_drafted == 0);
        sim_close(&m);
    }
}

static void an_empty_view_is_no_work(void **state)
{
    (void)state;
    struct sim m;
    struct kg_spec_view v = {.size = sizeof(v)};
    uint32_t none;
    sim_open(&m, 1);
    m.ops->choose(m.spec, &v, &none);
    m.ops->observe(m.spec, NULL, 0, 0);
    sim_close(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_stay_inside_their_bounds),
        cmocka_unit_test(an_empty_view_is_no_work),
    };
    if (argc < 2) {
        (void)fputs("usage: spec_test NAME [OPTIONS]\n", stderr);
        return 2;
    }
    spec_name = argv[1];
    spec_options = argc > 2 ? argv[2] : "";
    return cmocka_run_group_tests_name(spec_name, tests, NULL, NULL);
}
