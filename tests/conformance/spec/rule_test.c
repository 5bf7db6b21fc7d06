/*
 * The output under every policy has the distribution of plain decoding: spec_rule_test NAME
 * [OPTIONS]. A batch of requests that come and go, drafted for and verified as the policy says,
 * with a cost surface under which windows are trimmed; 10^5 requests of three tokens for each rule
 * of acceptance, by chi-square against exact probabilities.
 */
#include "rig.h"
#include "unit/model/rule_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQS 6
#define REQUESTS 100000

static const char *spec_name, *spec_options;

/* A request in a slot. */
struct live {
    uint64_t id;                                   /* 0: none */
    uint32_t tokens[BEGIN + LENGTH + MOST + 1], n; /* known; drafts behind them */
    uint64_t seed;
    float survival[MOST], q[MOST][V];
    int ended;
    int drawn; /* the drafts are the drafter's */
};

struct batch {
    struct rig_part part;
    const struct kg_spec_ops *ops;
    struct kg_spec *spec;
    int host, model;
    struct world w;
    struct live live[SEQS];
    struct kg_spec_seq seqs[SEQS];
    uint32_t at[SEQS], n; /* slots of the step */
    uint32_t lengths[SEQS];
    uint64_t n_begun, n_done, n_rows, n_drafted, n_looked, n_accepted, n_stopped, step;
    uint32_t counts[CELLS];
    void *scratch;
};

static uint64_t step_ns(void *ctx, uint32_t n_seqs, uint32_t rows, uint64_t context)
{
    (void)ctx;
    (void)context;
    return 4000 + 100 * n_seqs + 1200 * rows;
}

static uint64_t draft_ns(void *ctx, uint32_t n_seqs, uint32_t n_tokens, uint64_t context)
{
    (void)ctx;
    (void)context;
    return 100 + 10 * n_seqs * n_tokens;
}

static void batch_open(struct batch *b, uint32_t rule)
{
    const struct kg_plugin *p = rig_find(KG_KIND_SPEC, spec_name);
    struct kg_error err = {0};

    assert_non_null(p);
    memset(b, 0, sizeof(*b));
    rig_part_open(&b->part, p, spec_options, 1);
    b->ops = p->ops;
    b->host = (p->caps & KG_SPEC_CAP_HOST) != 0;
    b->model = (p->caps & KG_SPEC_CAP_MODEL) != 0;
    assert_int_equal(b->ops->open(&b->part.host, b->part.conf, SEQS, MOST, &b->spec, &err), KG_OK);
    b->w = (struct world){
        .salt = 31,
        .sampling = {.temperature = 0.9f, .accept = rule, .n_stop_ids = 2, .stop_ids = {1, 9}}};
    world_make(&b->w);
    b->scratch = aligned_alloc(64, (kg_accept_scratch_bytes(V) + 63) / 64 * 64);
}

static void batch_close(struct batch *b)
{
    free(b->scratch);
    b->ops->close(b->spec);
    rig_part_closed(&b->part);
}

/* New requests in free slots, and who takes part in the step. */
static void fill(struct batch *b, uint32_t cap)
{
    b->n = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        struct live *r = &b->live[s];
        uint64_t h = world_mix(b->step * SEQS + s);
        if (r->id == 0 && h % 4 > 0 && b->n_begun < REQUESTS) {
            *r = (struct live){.id = ++b->n_begun, .tokens = {3, 5}, .n = BEGIN};
            r->seed = world_mix(r->id);
        }
        if (r->id == 0 || (h >> 8) % 8 == 0)
            continue;
        uint32_t left = BEGIN + LENGTH - r->n, most = left - 1 < MOST ? left - 1 : MOST;
        b->seqs[b->n] = (struct kg_spec_seq){.id = r->id,
                                             .slot = s,
                                             .context = r->n - 1,
                                             .max_draft = most < cap ? most : cap,
                                             .n_history = r->n,
                                             .history = b->host ? r->tokens : NULL};
        b->at[b->n++] = s;
    }
}

/* What a drafter does for one sequence; says the exact probability of rejection's acceptance. */
static uint32_t draft_one(struct batch *b, struct live *r, uint32_t n)
{
    float survival = 1.0f;

    b->w.sampling.seed = r->seed;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t a = r->tokens[r->n + k - 2], c = r->tokens[r->n + k - 1];
        r->survival[k] = survival *= (float)b->w.survives[a][c];
        memcpy(r->q[k], b->w.q[a][c], sizeof(r->q[k]));
        r->tokens[r->n + k] = world_draw(&b->w, r->tokens, r->n, k);
        if (world_is_stop(&b->w, r->tokens[r->n + k]))
            return k + 1; /* nothing comes after it */
    }
    return n;
}

static void draft(struct batch *b, const struct kg_spec_view *v)
{
    uint32_t tokens[SEQS * 64] = {0}, counts[SEQS] = {0};

    if (b->host && b->ops->draft(b->spec, v, tokens, 64, counts) < 0)
        memset(counts, 0, sizeof(counts));
    for (uint32_t i = 0; i < b->n; i++) {
        struct live *r = &b->live[b->at[i]];
        b->seqs[i].n_drafted = counts[i];
        r->drawn = counts[i] == 0;
        memcpy(r->tokens + r->n, tokens + (size_t)i * 64, counts[i] * sizeof(*tokens));
        b->n_looked += counts[i];
        counts[i] = counts[i] > 0 || !b->model ? 0 : b->seqs[i].max_draft;
    }
    if (KG_HAS(b->ops, struct kg_spec_ops, want))
        b->ops->want(b->spec, v, counts);
    for (uint32_t i = 0; i < b->n; i++) {
        struct live *r = &b->live[b->at[i]];
        if (r->drawn) {
            b->seqs[i].n_drafted = draft_one(b, r, counts[i]);
            b->seqs[i].survival = r->survival;
        }
        for (uint32_t k = 0; k < b->seqs[i].n_drafted; k++) /* fakes have a larger vocabulary */
            r->tokens[r->n + k] %= V;
        b->n_drafted += b->seqs[i].n_drafted;
    }
}

static void verify(struct batch *b, uint32_t i, struct kg_spec_seen *seen, uint32_t *tokens)
{
    struct live *r = &b->live[b->at[i]];
    uint32_t n = b->lengths[i];
    float logits[MOST + 1][V];
    struct kg_accepted got;

    for (uint32_t j = 0; j <= n; j++)
        memcpy(logits[j], b->w.x[1][r->tokens[r->n + j - 2]][r->tokens[r->n + j - 1]],
               sizeof(logits[j]));
    b->w.sampling.seed = r->seed;
    struct kg_accept a = {.logits = logits[0],
                          .vocab = V,
                          .position = r->n,
                          .output_start = BEGIN,
                          .n_draft = n,
                          .left = BEGIN + LENGTH - r->n,
                          .force = KG_NONE,
                          .drafts = r->tokens + r->n,
                          .q = r->drawn ? r->q[0] : NULL,
                          .sampling = &b->w.sampling,
                          .tokens = tokens};
    kg_accept_run(&a, b->scratch, &got);
    memcpy(r->tokens + r->n, tokens, got.n_tokens * sizeof(*tokens));
    r->n += got.n_tokens;
    r->ended = r->n == BEGIN + LENGTH || (got.flags & KG_RES_STOP);
    b->n_rows += n;
    b->n_accepted += got.n_accepted;
    *seen = (struct kg_spec_seen){.id = r->id,
                                  .slot = b->at[i],
                                  .n_verified = n,
                                  .n_accepted = got.n_accepted,
                                  .n_tokens = got.n_tokens,
                                  .tokens = tokens};
}

static void run_step(struct batch *b)
{
    struct kg_cost cost = {sizeof(cost), NULL, step_ns, draft_ns};
    struct kg_spec_seen seen[2 * SEQS];
    uint32_t tokens[SEQS][MOST + 1], n_seen = 0, cap = b->ops->cap(b->spec);

    fill(b, cap);
    struct kg_spec_view v = {.size = sizeof(v),
                             .seqs = b->seqs,
                             .n_seqs = b->n,
                             .rows_left = 1000,
                             .cap = cap,
                             .cost = &cost};
    memset(b->lengths, 0, sizeof(b->lengths));
    if (cap > 0 && b->n > 0) {
        draft(b, &v);
        b->ops->choose(b->spec, &v, b->lengths);
    }
    for (uint32_t i = 0; i < b->n; i++) {
        assert_true(b->lengths[i] <= b->seqs[i].n_drafted);
        verify(b, i, &seen[n_seen++], tokens[i]);
        struct live *r = &b->live[b->at[i]];
        const uint32_t *t = r->tokens + BEGIN;
        if (r->ended) {
            b->n_stopped += r->n < BEGIN + LENGTH;
            for (; r->n < BEGIN + LENGTH; r->n++)
                r->tokens[r->n] = r->tokens[r->n - 1];
            b->counts[(t[0] * V + t[1]) * V + t[2]]++;
            b->n_done++;
            seen[n_seen++] = (struct kg_spec_seen){.id = r->id, .slot = b->at[i], .ended = 1};
            r->id = 0;
        }
    }
    b->ops->observe(b->spec, seen, n_seen, 0);
    b->step++;
}

static void check_rule(const char *name, uint32_t rule)
{
    static double cells[CELLS];
    static struct batch b;

    batch_open(&b, rule);
    while (b.n_done < REQUESTS)
        run_step(&b);
    world_reference(&b.w, cells);
    double z = world_deviations(cells, b.counts, REQUESTS);
    print_message("%s: drafted %llu verified %llu accepted %llu, z %+.2f\n", name,
                  (unsigned long long)b.n_drafted, (unsigned long long)b.n_rows,
                  (unsigned long long)b.n_accepted, z);
    assert_true(z < 3.5);
    assert_true(b.n_stopped > 1000); /* before the last token */
    if (b.ops->block(b.spec) > 0)
        assert_true(b.n_rows > 1000); /* it did speculate */
    batch_close(&b);
}

static void coupled_output_has_the_distribution_of_plain_decoding(void **state)
{
    (void)state;
    check_rule("coupled", KG_ACCEPT_COUPLED);
}

static void so_has_rejection(void **state)
{
    (void)state;
    check_rule("rejection", KG_ACCEPT_REJECTION);
}

static void so_has_block(void **state)
{
    (void)state;
    check_rule("block", KG_ACCEPT_BLOCK);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coupled_output_has_the_distribution_of_plain_decoding),
        cmocka_unit_test(so_has_rejection),
        cmocka_unit_test(so_has_block),
    };
    if (argc < 2) {
        (void)fputs("usage: spec_rule_test NAME [OPTIONS]\n", stderr);
        return 2;
    }
    spec_name = argv[1];
    spec_options = argc > 2 ? argv[2] : "";
    return cmocka_run_group_tests_name(spec_name, tests, NULL, NULL);
}
