/*
 * Rejection and block against the distribution plain decoding has, by chi-square: a target and a
 * drafter over 16 tokens that look at the two tokens before, and 10^5 requests of three tokens each
 * for every rule and way to choose windows. The reference is computed here, from the logits.
 */
#include "rule_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum window {
    FIXED,     /* MOST drafts each time */
    DRAWN,     /* of a length that was drawn */
    THRESHOLD, /* up to the first draft whose predecessors say it is unlikely to survive */
    LAGGED,    /* as many as the last window of the request would have deserved */
    UNSAFE,    /* without drafts that look unlikely themselves */
};

/* A target and a drafter and how windows are chosen. */
struct choice {
    enum window window;
    struct world w;
};

/* --- a request -------------------------------------------------------------------------------- */

struct request {
    uint32_t tokens[BEGIN + LENGTH + MOST + 1]; /* a prompt of two tokens, then the output */
    uint32_t n;
    uint32_t lag; /* length the last window deserved */
    uint64_t n_drafted, n_accepted, n_windows, n_stopped;
};

/* Drafts up to `most` tokens behind the request's own; returns how many are verified. */
static uint32_t draft(const struct choice *c, struct request *r, uint32_t most, float q[MOST][V])
{
    const struct world *w = &c->w;
    uint32_t n_safe = most, n_likely = most, lag = r->lag, asked = most;

    for (uint32_t k = 0; k < most; k++) {
        uint32_t a = r->tokens[r->n + k - 2], b = r->tokens[r->n + k - 1];
        if (w->survives[a][b] < 0.8 && n_safe == most)
            n_safe = k;
        uint32_t x = r->tokens[r->n + k] = world_draw(w, r->tokens, r->n, k);
        memcpy(q[k], w->q[a][b], sizeof(q[k]));
        if (w->q[a][b][x] < 0.1f && n_likely == most)
            n_likely = k;
        if (world_is_stop(w, x)) { /* the last draft, as of the drafter */
            most = k + 1;
            n_safe = n_safe < most ? n_safe : most;
            n_likely = n_likely < most ? n_likely : most;
        }
    }
    r->lag = n_safe;
    switch (c->window) {
    case FIXED:
        return most;
    case DRAWN:
        n_likely = (uint32_t)(world_mix(w->sampling.seed * 31 + r->n) % (asked + 1));
        return n_likely < most ? n_likely : most;
    case THRESHOLD:
        return n_safe;
    case LAGGED:
        return lag < most ? lag : most;
    default:
        return n_likely;
    }
}

static void count(const struct request *r, struct kg_token_counts *c)
{
    for (uint32_t i = 0; i < r->n; i++)
        assert_int_equal(kg_token_counts_add(c, r->tokens[i], i >= BEGIN), KG_OK);
}

/* One round; windows end before the last token that is wanted, as in the engine. */
static void round_of(const struct choice *c, struct request *r, struct kg_token_counts *counts,
                     void *scratch)
{
    const struct world *w = &c->w;
    float q[MOST][V], logits[MOST + 1][V];
    struct kg_accepted got;
    uint32_t tokens[MOST + 1], left = BEGIN + LENGTH - r->n;
    uint32_t n = draft(c, r, left - 1 < MOST ? left - 1 : MOST, q);

    for (uint32_t j = 0; j <= n; j++)
        memcpy(logits[j], w->x[1][r->tokens[r->n + j - 2]][r->tokens[r->n + j - 1]],
               sizeof(logits[j]));
    struct kg_accept a = {.logits = logits[0],
                          .vocab = V,
                          .position = r->n,
                          .output_start = BEGIN,
                          .n_draft = n,
                          .left = left,
                          .force = KG_NONE,
                          .drafts = r->tokens + r->n,
                          .q = w->one_hot ? NULL : q[0],
                          .sampling = &w->sampling,
                          .counts = kg_sampling_has_penalty(&w->sampling) ? counts : NULL,
                          .tokens = tokens};
    kg_accept_run(&a, scratch, &got);
    assert_int_equal(got.flags & ~KG_RES_STOP, 0);
    assert_true(got.n_tokens >= 1 && got.n_tokens <= n + 1 && got.n_accepted <= n);
    assert_memory_equal(tokens, r->tokens + r->n, got.n_accepted * sizeof(uint32_t));
    memcpy(r->tokens + r->n, tokens, got.n_tokens * sizeof(uint32_t));
    r->n += got.n_tokens;
    r->n_drafted += n;
    r->n_accepted += got.n_accepted;
    r->n_windows += n > 0;
    assert_int_equal(world_is_stop(w, r->tokens[r->n - 1]), (got.flags & KG_RES_STOP) != 0);
    if (got.flags & KG_RES_STOP) {
        r->n_stopped++;
        for (; r->n < BEGIN + LENGTH; r->n++)
            r->tokens[r->n] = r->tokens[r->n - 1];
    }
}

/* --- the comparison --------------------------------------------------------------------------- */

/* Runs the requests; *per_window: accepted drafts. */
static double run(struct choice *c, double *per_window)
{
    struct world *w = &c->w;
    static uint32_t counts[CELLS];
    static double cells[CELLS];
    uint64_t accepted = 0, windows = 0;
    struct kg_token_counts seen;
    uint64_t mem[64] = {0};
    void *scratch = aligned_alloc(64, (kg_accept_scratch_bytes(V) + 63) / 64 * 64);

    world_make(w);
    memset(counts, 0, sizeof(counts));
    assert_true(kg_token_counts_bytes(V) <= sizeof(mem));
    kg_token_counts_init(&seen, mem, V);
    for (uint32_t k = 0; k < REQUESTS; k++) {
        struct request r = {.tokens = {3, 5}, .n = BEGIN, .lag = MOST};
        w->sampling.seed = world_mix(k + w->salt) + k;
        kg_token_counts_clear(&seen);
        count(&r, &seen);
        while (r.n < BEGIN + LENGTH)
            round_of(c, &r, &seen, scratch);
        const uint32_t *t = r.tokens + BEGIN;
        counts[(t[0] * V + t[1]) * V + t[2]]++;
        accepted += r.n_accepted;
        windows += r.n_windows;
    }
    world_reference(w, cells);
    *per_window = (double)accepted / (double)(windows > 0 ? windows : 1);
    free(scratch);
    return world_deviations(cells, counts, REQUESTS);
}

static const struct kg_sampling plain = {.temperature = 0.9f};

static void check_run(const char *name, uint32_t rule, enum window window, int one_hot,
                      uint64_t salt, const struct kg_sampling *sampling)
{
    static const char *rules[] = {"coupled", "rejection", "block"};
    static const char *windows[] = {"fixed", "drawn", "threshold", "lagged"};
    struct choice w = {window, {.salt = salt, .one_hot = one_hot, .sampling = *sampling}};
    double accepted;

    w.w.sampling.accept = rule;
    double z = run(&w, &accepted);
    print_message("%s: %-9s %-9s %s %.3f accepted a window, z %+.2f\n", name, rules[rule],
                  windows[window], one_hot ? "one-hot" : "", accepted, z);
    assert_true(z < 3.5);
}

static void each_rule_has_the_distribution_of_plain_decoding(void **state)
{
    (void)state;
    for (uint32_t rule = KG_ACCEPT_COUPLED; rule <= KG_ACCEPT_BLOCK; rule++) {
        for (int window = FIXED; window <= LAGGED; window++) {
            if (getenv("KEDGE_FULL") != NULL || window != DRAWN)
                check_run("drawn", rule, (enum window)window, 0, 11, &plain);
        }
        check_run("guessed", rule, FIXED, 1, 11, &plain);
    }
}

static void filters_and_penalties_belong_to_the_distribution(void **state)
{
    static const struct kg_sampling cases[] = {
        {.temperature = 0.9f, .repetition_penalty = 1.4f, .frequency_penalty = 0.6f, .top_k = 7},
        {.temperature = 1.2f, .top_p = 0.7f},
        {.temperature = 0.8f, .top_k = 5},
        {.temperature = 0.9f, .repetition_penalty = 1.4f, .top_k = 7, .top_p = 0.9f},
    };
    uint32_t n = getenv("KEDGE_FULL") != NULL ? sizeof(cases) / sizeof(cases[0]) : 2;

    (void)state;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t rule = KG_ACCEPT_REJECTION; rule <= KG_ACCEPT_BLOCK; rule++)
            check_run("filtered", rule, FIXED, 0, 5 + i, &cases[i]);
    }
}

static void stop_ids_among_drafts_end_runs_without_a_bias(void **state)
{
    static const struct kg_sampling stops = {
        .temperature = 0.9f, .n_stop_ids = 3, .stop_ids = {1, 6, 12}};

    (void)state;
    for (uint32_t rule = KG_ACCEPT_COUPLED; rule <= KG_ACCEPT_BLOCK; rule++) {
        check_run("stops", rule, FIXED, 0, 11, &stops);
        check_run("stops", rule, rule == KG_ACCEPT_BLOCK ? THRESHOLD : LAGGED, 0, 13, &stops);
    }
    check_run("stops", KG_ACCEPT_BLOCK, FIXED, 1, 11, &stops);
}

/* What the comparison is worth: it finds what is wrong. */
static void a_window_chosen_by_its_own_drafts_is_found_out(void **state)
{
    (void)state;
    for (uint32_t rule = KG_ACCEPT_REJECTION; rule <= KG_ACCEPT_BLOCK; rule++) {
        struct choice w = {UNSAFE, {.salt = 11, .sampling = plain}};
        double accepted;
        w.w.sampling.accept = rule;
        assert_true(run(&w, &accepted) > 10);
    }
}

static void under_coupling_no_choice_of_windows_can_do_harm(void **state)
{
    struct choice w = {UNSAFE, {.salt = 11, .sampling = plain}};
    double accepted;

    (void)state;
    assert_true(run(&w, &accepted) < 3.5);
}

static void exactness_costs_acceptance_in_this_order(void **state)
{
    double accepted[3];

    (void)state;
    for (uint32_t rule = KG_ACCEPT_COUPLED; rule <= KG_ACCEPT_BLOCK; rule++) {
        struct choice w = {FIXED, {.salt = 23, .sampling = plain}};
        w.w.sampling.accept = rule;
        (void)run(&w, &accepted[rule]);
    }
    assert_true(accepted[KG_ACCEPT_COUPLED] < accepted[KG_ACCEPT_REJECTION]);
    assert_true(accepted[KG_ACCEPT_REJECTION] < accepted[KG_ACCEPT_BLOCK]);
}

/* --- bits ------------------------------------------------------------------------------------- */

static void without_drafts_and_when_greedy_every_rule_is_plain_decoding(void **state)
{
    uint64_t mem[1024];
    float logits[MOST + 1][V];
    uint32_t drafts[MOST];
    struct kg_logprob lp[2][MOST + 1][3];
    uint32_t tokens[2][MOST + 1];
    struct kg_accepted got[2];

    (void)state;
    assert_true(kg_accept_scratch_bytes(V) <= sizeof(mem) * 8);
    void *scratch = aligned_alloc(64, (kg_accept_scratch_bytes(V) + 63) / 64 * 64);
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct kg_sampling s = {.n_logprobs = 2, .seed = seed, .n_stop_ids = 1};
        int greedy = seed % 2 == 0;
        s.temperature = greedy ? 0.0f : 0.8f;
        s.stop_ids[0] = seed % V;
        for (uint32_t j = 0; j <= MOST; j++) {
            for (uint32_t v = 0; v < V; v++)
                logits[j][v] = (float)(3 * world_unit(seed * 1000 + j * V + v));
        }
        for (uint32_t j = 0; j < MOST; j++) {
            drafts[j] = 0;
            for (uint32_t v = 1; v < V; v++)
                drafts[j] = logits[j][v] > logits[j][drafts[j]] ? v : drafts[j];
            drafts[j] = world_unit(seed * 77 + j) < 0.2 ? (drafts[j] + 1) % V : drafts[j];
        }
        for (uint32_t rule = KG_ACCEPT_REJECTION; rule <= KG_ACCEPT_BLOCK; rule++) {
            memset(tokens, 0, sizeof(tokens));
            memset(lp, 0, sizeof(lp));
            for (uint32_t k = 0; k < 2; k++) {
                struct kg_accept a = {.logits = logits[0],
                                      .vocab = V,
                                      .position = 10,
                                      .output_start = 4,
                                      .n_draft = greedy ? MOST : 0,
                                      .left = 3,
                                      .force = KG_NONE,
                                      .drafts = drafts,
                                      .sampling = &s,
                                      .tokens = tokens[k],
                                      .logprobs = lp[k][0]};
                s.accept = k == 0 ? KG_ACCEPT_COUPLED : rule;
                kg_accept_run(&a, scratch, &got[k]);
            }
            assert_memory_equal(&got[0], &got[1], sizeof(got[0]));
            assert_memory_equal(tokens[0], tokens[1], sizeof(tokens[0]));
            assert_memory_equal(lp[0], lp[1], sizeof(lp[0]));
        }
    }
    free(scratch);
}

struct small {
    float logits[MOST + 1][V], q[MOST][V];
    uint32_t drafts[MOST], tokens[MOST + 1];
    struct kg_logprob lp[MOST + 1][3];
    struct kg_sampling s;
    struct kg_accepted got;
};

/* Target and drafter of one mind, so that every draft is accepted. */
static void agree(struct small *m, uint32_t rule, uint64_t seed)
{
    memset(m, 0, sizeof(*m));
    m->s = (struct kg_sampling){.temperature = 1.0f, .n_logprobs = 2, .seed = seed, .accept = rule};
    for (uint32_t j = 0; j <= MOST; j++) {
        for (uint32_t v = 0; v < V; v++) {
            m->logits[j][v] = 0;
            if (j < MOST)
                m->q[j][v] = 1.0f / V;
        }
    }
    for (uint32_t j = 0; j < MOST; j++)
        m->drafts[j] = (uint32_t)(world_mix(seed * 9 + j) % V);
}

static void decide(struct small *m, uint32_t left)
{
    void *scratch = aligned_alloc(64, (kg_accept_scratch_bytes(V) + 63) / 64 * 64);
    struct kg_accept a = {.logits = m->logits[0],
                          .vocab = V,
                          .position = 10,
                          .output_start = 8,
                          .n_draft = MOST,
                          .left = left,
                          .force = KG_NONE,
                          .drafts = m->drafts,
                          .q = m->q[0],
                          .sampling = &m->s,
                          .tokens = m->tokens,
                          .logprobs = m->lp[0]};

    kg_accept_run(&a, scratch, &m->got);
    free(scratch);
}

static void a_stop_id_or_the_last_token_ends_an_accepted_run(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        for (uint32_t rule = KG_ACCEPT_REJECTION; rule <= KG_ACCEPT_BLOCK; rule++) {
            struct small m;
            agree(&m, rule, seed);
            decide(&m, 20);
            assert_int_equal(m.got.n_accepted, MOST); /* p = q */
            assert_int_equal(m.got.n_tokens, MOST + 1);
            for (uint32_t left = 1; left <= MOST; left++) {
                agree(&m, rule, seed);
                decide(&m, left);
                assert_int_equal(m.got.n_tokens, left);
                assert_int_equal(m.got.n_accepted, left);
            }
            agree(&m, rule, seed);
            m.s.n_stop_ids = 1;
            m.s.stop_ids[0] = m.drafts[1];
            decide(&m, 20);
            uint32_t at = m.drafts[0] == m.drafts[1] ? 1 : 2;
            assert_int_equal(m.got.flags, KG_RES_STOP);
            assert_int_equal(m.got.n_tokens, at);
            assert_int_equal(m.got.n_accepted, at);
            for (uint32_t j = 0; j < m.got.n_tokens; j++)
                assert_int_equal(m.lp[j][0].id, m.tokens[j]);
        }
    }
}

static void a_row_that_is_not_finite_ends_the_request_only_if_it_counts(void **state)
{
    uint32_t ended = 0, went_on = 0;

    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        for (uint32_t rule = KG_ACCEPT_REJECTION; rule <= KG_ACCEPT_BLOCK; rule++) {
            struct small m;
            agree(&m, rule, seed);
            for (uint32_t v = 0; v < V; v++) /* draft 1 is accepted in about half of the cases */
                m.q[1][v] = v == m.drafts[1] ? 2.0f / V : (V - 2.0f) / (V - 1.0f) / V;
            m.logits[2][3] = NAN;
            decide(&m, 20);
            if (m.got.flags == KG_RES_NAN) {
                assert_int_equal(m.got.n_tokens, 0);
                ended++;
            } else {
                assert_int_equal(m.got.n_accepted, 1);
                assert_int_equal(m.got.n_tokens, 2);
                went_on++;
            }
        }
    }
    assert_true(ended > 200 && went_on > 200);
}

static void a_draft_its_own_q_excludes_is_not_accepted(void **state)
{
    (void)state;
    for (uint32_t rule = KG_ACCEPT_REJECTION; rule <= KG_ACCEPT_BLOCK; rule++) {
        struct small m;
        agree(&m, rule, 1);
        for (uint32_t v = 0; v < V; v++)
            m.q[0][v] = v == m.drafts[0] ? 0.0f : 1.0f / (V - 1);
        decide(&m, 20);
        assert_int_equal(m.got.n_accepted, 0);
        assert_int_equal(m.tokens[0], m.drafts[0]); /* all the residual has */
    }
}

/* Counts are as the emitted tokens say, whatever the rule looked at on the way. */
static void counts_hold_the_emitted_tokens_and_no_others(void **state)
{
    void *scratch = aligned_alloc(64, (kg_accept_scratch_bytes(V) + 63) / 64 * 64);

    (void)state;
    for (uint64_t seed = 0; seed < 500; seed++) {
        struct kg_token_counts counts, want;
        uint64_t mem[2][64] = {{0}};
        struct small m;
        kg_token_counts_init(&counts, mem[0], V);
        kg_token_counts_init(&want, mem[1], V);
        agree(&m, KG_ACCEPT_BLOCK, seed);
        m.s.frequency_penalty = 1.0f;
        (void)kg_token_counts_add(&counts, m.drafts[0], 0);
        (void)kg_token_counts_add(&want, m.drafts[0], 0);
        struct kg_accept a = {.logits = m.logits[0],
                              .vocab = V,
                              .position = 10,
                              .output_start = 10,
                              .n_draft = MOST,
                              .left = 20,
                              .force = KG_NONE,
                              .drafts = m.drafts,
                              .q = m.q[0],
                              .sampling = &m.s,
                              .counts = &counts,
                              .tokens = m.tokens};
        kg_accept_run(&a, scratch, &m.got);
        for (uint32_t i = 0; i < m.got.n_tokens; i++)
            (void)kg_token_counts_add(&want, m.tokens[i], 1);
        assert_int_equal(counts.n, want.n);
        assert_memory_equal(counts.slots, want.slots, want.n_slots * sizeof(uint32_t));
        assert_memory_equal(counts.entries, want.entries, want.n * sizeof(*want.entries));
    }
    free(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule_has_the_distribution_of_plain_decoding),
        cmocka_unit_test(filters_and_penalties_belong_to_the_distribution),
        cmocka_unit_test(stop_ids_among_drafts_end_runs_without_a_bias),
        cmocka_unit_test(a_window_chosen_by_its_own_drafts_is_found_out),
        cmocka_unit_test(under_coupling_no_choice_of_windows_can_do_harm),
        cmocka_unit_test(exactness_costs_acceptance_in_this_order),
        cmocka_unit_test(without_drafts_and_when_greedy_every_rule_is_plain_decoding),
        cmocka_unit_test(a_stop_id_or_the_last_token_ends_an_accepted_run),
        cmocka_unit_test(a_row_that_is_not_finite_ends_the_request_only_if_it_counts),
        cmocka_unit_test(a_draft_its_own_q_excludes_is_not_accepted),
        cmocka_unit_test(counts_hold_the_emitted_tokens_and_no_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
