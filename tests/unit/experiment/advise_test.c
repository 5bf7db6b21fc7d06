/* The advisor without replays: guidance by hand, the search on made-up gains, confirmation on
 * made-up rows of known truth. */
#include "experiment/advise_report.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

static const struct kg_advise_facts plain = {
    .prefix = 1,
    .checkpoint = "auto",
    .interval = 4096,
    .pool = "unified",
    .style = "ratio",
    .ratio = 0.9,
    .lifetime = "prompt",
    .quantile = 90,
    .spec = "off",
    .page_tokens = 64,
    .longest = 100000,
    .mean_ratio = {0.15, 0.30},
};

/* --- guidance --- */

static void the_interval_is_that_of_a_computation_by_hand(void **state)
{
    /* A state of 56,171,520 bytes, 27,648 a token: 2031.67 tokens. 1,000 requests, 400 of them
     * repeat 3,200,000 tokens: 8,000 each. 1,600,000 different ones come back: 4,000 for each of
     * the 400. sqrt(2 x 2031.67 x 4000) = 4031.5; 62.99 pages. */
    struct kg_guide_in in = {.state_bytes = 56171520,
                             .token_bytes = 27648,
                             .token_ns = 50000,
                             .n = 1000,
                             .n_repeating = 400,
                             .prompt_tokens = 8000000,
                             .repeated_tokens = 3200000,
                             .again_tokens = 1600000,
                             .page_tokens = 64,
                             .least = 2048,
                             .longest = 50000};
    struct kg_guide g;

    (void)state;
    kg_guide_of(&in, &g);
    assert_true(fabs(g.state_tokens - 2031.6667) < 0.001);
    assert_true(fabs(g.state_ms - 101.583) < 0.001);
    assert_true(fabs(g.token_us - 50) < 1e-9);
    assert_true(g.shared_tokens == 8000 && g.kept_tokens == 4000 && g.repeated_share == 0.4);
    assert_true(g.interval == 63 * 64 && g.interval_lost == 31.5 * 64 && !g.is_least);
    assert_true(g.interval_is_long == 1); /* 4,031 of 8,000 */
    in.least = 5000;
    kg_guide_of(&in, &g);
    assert_true(g.is_least && g.interval == 78 * 64);
}

static void the_interval_is_where_both_sides_cost_least_together(void **state)
{
    const struct kg_guide_in in = {.state_bytes = 3e6,
                                   .token_bytes = 1000,
                                   .n_repeating = 70,
                                   .repeated_tokens = 70 * 300000.0,
                                   .again_tokens = 70 * 90000.0,
                                   .prompt_tokens = 1e8};
    struct kg_guide g;
    double again, displaced, least = INFINITY, at = 0;

    (void)state;
    for (double n = 100; n < 200000; n += 10) {
        kg_guide_sides(&in, n, &again, &displaced);
        if (again + displaced < least) {
            least = again + displaced;
            at = n;
        }
    }
    kg_guide_of(&in, &g);
    assert_true(fabs(g.interval - at) <= 10);
    assert_int_equal(g.interval_is_long, 0);
}

static void nothing_repeated_asks_for_no_interval(void **state)
{
    const struct kg_guide_in in = {
        .state_bytes = 1000, .token_bytes = 10, .n = 5, .prompt_tokens = 100};
    struct kg_guide g;

    (void)state;
    kg_guide_of(&in, &g);
    assert_true(g.interval == 0 && g.shared_tokens == 0 && g.state_tokens == 100);
}

/* --- the space --- */

static const struct kg_advise_setting *setting(const struct kg_advise_space *s, uint32_t dim,
                                               const char *label, uint32_t *at)
{
    for (uint32_t i = 0; i < s->dims[dim].n; i++) {
        if (strcmp(s->dims[dim].settings[i].label, label) == 0) {
            *at = i;
            return &s->dims[dim].settings[i];
        }
    }
    return NULL;
}

static void the_users_own_values_are_not_tried_twice(void **state)
{
    struct kg_advise_facts f = plain;
    struct kg_advise_space s;
    uint32_t at;

    (void)state;
    kg_advise_space_make(&f, &s);
    assert_null(setting(&s, KG_ADVISE_REUSE, "auto 4096", &at));
    assert_null(setting(&s, KG_ADVISE_POOL, "pool unified", &at));
    assert_null(setting(&s, KG_ADVISE_LIFETIME, "lifetime prompt", &at));
    assert_int_equal(s.dims[KG_ADVISE_SPEC].n, 1);
    assert_int_equal(setting(&s, KG_ADVISE_REUSE, "auto 1024", &at)->n_sets, 1);
    assert_int_equal(setting(&s, KG_ADVISE_REUSE, "interval 2048", &at)->n_sets, 2);
    f.checkpoint = "interval";
    f.interval = 2048;
    f.pool = "split";
    f.lifetime = "expected";
    kg_advise_space_make(&f, &s);
    assert_null(setting(&s, KG_ADVISE_REUSE, "interval 2048", &at));
    assert_null(setting(&s, KG_ADVISE_POOL, "split ratio 0.9", &at));
    assert_null(setting(&s, KG_ADVISE_LIFETIME, "lifetime expected, 90 %", &at));
    const struct kg_advise_setting *q =
        setting(&s, KG_ADVISE_LIFETIME, "lifetime expected, 50 %", &at);
    assert_int_equal(q->n_sets, 1);
    assert_string_equal(q->sets[0], "admission.quantile=50");
}

static void a_drafter_opens_the_verify_policies_and_states_do_not_win_over_a_ratio(void **state)
{
    struct kg_advise_facts f = plain;
    struct kg_advise_space s;
    uint32_t at;

    (void)state;
    f.draft_block = 7;
    f.pool = "split";
    f.states = 200;
    kg_advise_space_make(&f, &s);
    const struct kg_advise_setting *c = setting(&s, KG_ADVISE_SPEC, "spec confidence", &at);
    assert_string_equal(c->sets[0], "plugins.spec=confidence");
    assert_string_equal(c->sets[1], "engine.cost=measured");
    assert_non_null(setting(&s, KG_ADVISE_SPEC, "spec dspark, 3 drafts", &at));
    const struct kg_advise_setting *r = setting(&s, KG_ADVISE_POOL, "split ratio 0.9", &at);
    assert_string_equal(r->sets[0], "pool-split.states=0");
    assert_string_equal(r->sets[1], "pool-split.ratio=0.9");
}

static void intervals_are_whole_pages_within_the_trace(void **state)
{
    struct kg_advise_facts f = plain;
    struct kg_advise_space s;

    (void)state;
    f.page_tokens = 1536;
    f.longest = 9000;
    kg_advise_space_make(&f, &s);
    for (uint32_t i = 1; i < s.dims[KG_ADVISE_REUSE].n; i++) {
        const struct kg_advise_setting *t = &s.dims[KG_ADVISE_REUSE].settings[i];
        assert_true(fmod(t->at, 1536) == 0 && t->at <= 9000);
    }
}

/* --- the search --- */

/* Made-up gains: a sum over dimensions, and a bonus that two settings have together only. */
struct truth {
    const struct kg_advise_space *space;
    const char *best[KG_ADVISE_DIMS]; /* labels, NULL for none */
    double worth[KG_ADVISE_DIMS];
    double peak;            /* with KG_ADVISE_INTERVAL: gain falls with the logarithm's distance */
    double refused_from;    /* ratios at or above cannot run */
    uint32_t one_is_enough; /* 1: of several best ones only the one worth most counts */
    uint32_t n_runs;
};

static int run_truth(void *ctx, struct kg_advise_try *tries, uint32_t n, uint32_t n_left)
{
    struct truth *t = ctx;

    (void)n_left;
    for (uint32_t i = 0; i < n; i++, t->n_runs++) {
        tries[i].gain = 0;
        for (uint32_t d = 0; d < KG_ADVISE_DIMS; d++) {
            const struct kg_advise_setting *s = &t->space->dims[d].settings[tries[i].point.at[d]];
            if (t->best[d] != NULL && strcmp(s->label, t->best[d]) == 0) {
                tries[i].gain = t->one_is_enough ? fmax(tries[i].gain, t->worth[d])
                                                 : tries[i].gain + t->worth[d];
            }
            if (t->peak > 0 && s->family == KG_ADVISE_INTERVAL) {
                tries[i].gain += 0.5 - 0.1 * fabs(log2(s->at / t->peak));
            }
            if (t->refused_from > 0 && s->family == KG_ADVISE_RATIO && s->at >= t->refused_from) {
                tries[i].gain = NAN;
            }
        }
    }
    return KG_OK;
}

static struct kg_advise_found *search(struct kg_advise_space *s, struct truth *t)
{
    struct kg_advise_found *f = calloc(1, sizeof(*f));
    const struct kg_advise_search conf = {
        .space = s, .least = 0.01, .n_rounds = 2, .run = run_truth, .ctx = t};

    t->space = s;
    assert_non_null(f);
    assert_int_equal(kg_advise_search(&conf, f), KG_OK);
    return f;
}

static const char *label_of(const struct kg_advise_space *s, const struct kg_advise_point *p,
                            char text[200])
{
    struct kg_buf b;

    kg_buf_init(&b, 0);
    (void)kg_advise_label(s, p, &b);
    (void)snprintf(text, 200, "%s", kg_buf_cstr(&b));
    kg_buf_fini(&b);
    return text;
}

static void the_search_ends_at_the_planted_settings_of_all_dimensions(void **state)
{
    struct kg_advise_space s;
    struct truth t = {.best = {"checkpoint branch", "split ratio 0.3", "lifetime expected, 75 %"},
                      .worth = {0.05, 0.10, 0.03},
                      .refused_from = 2};
    char text[200];

    (void)state;
    kg_advise_space_make(&plain, &s);
    struct kg_advise_found *f = search(&s, &t);
    assert_string_equal(label_of(&s, &f->tries[f->best].point, text),
                        "checkpoint branch + split ratio 0.3 + lifetime expected, 75 %");
    assert_true(fabs(f->tries[f->best].gain - 0.18) < 1e-9);
    assert_int_equal(f->n, t.n_runs);
    assert_int_equal(f->finalists[0], f->best);
    assert_int_equal(f->n_finalists, 3);
    /* The second one is the best single change: it cost one of the dimensions to find. */
    assert_string_equal(label_of(&s, &f->tries[f->finalists[1]].point, text), "checkpoint branch");
    /* And one with more than one change: no other dimension was tried alone. */
    assert_true(f->tries[f->finalists[2]].gain >= 0.15 - 1e-9);
    for (uint32_t i = 0; i < f->n; i++) {
        for (uint32_t k = 0; k < i; k++) {
            assert_true(memcmp(&f->tries[i].point, &f->tries[k].point, sizeof(f->tries[i].point)) !=
                        0);
        }
    }
    free(f);
}

static void a_scale_is_looked_at_more_closely_around_its_best(void **state)
{
    struct kg_advise_space s;
    struct truth t = {.peak = 4096};
    char text[200];

    (void)state;
    kg_advise_space_make(&plain, &s);
    struct kg_advise_found *f = search(&s, &t); /* the grid has 2,048 and 8,192 */
    assert_string_equal(label_of(&s, &f->tries[f->best].point, text), "interval 4096");
    free(f);
}

static void what_was_far_behind_is_not_tried_with_other_neighbours(void **state)
{
    struct kg_advise_space s;
    struct truth t = {.best = {"checkpoint branch", "split ratio 0.3"}, .worth = {0.20, 0.10}};
    uint32_t n_reuse = 0;

    (void)state;
    kg_advise_space_make(&plain, &s);
    struct kg_advise_found *f = search(&s, &t);
    for (uint32_t i = 0; i < f->n; i++) { /* only the one they moved to, and it taken back once */
        const struct kg_advise_point *p = &f->tries[i].point;
        n_reuse += p->at[KG_ADVISE_POOL] != 0 &&
                   p->at[KG_ADVISE_REUSE] != f->tries[f->best].point.at[KG_ADVISE_REUSE];
    }
    assert_int_equal(n_reuse, 1);
    assert_true(fabs(f->tries[f->best].gain - 0.30) < 1e-9);
    free(f);
}

static void nothing_better_ends_where_it_began(void **state)
{
    struct kg_advise_space s;
    struct truth t = {.best = {"checkpoint branch"}, .worth = {0.009}};

    (void)state;
    kg_advise_space_make(&plain, &s);
    struct kg_advise_found *f = search(&s, &t);
    assert_int_equal(f->best, 0);
    assert_true(f->n_finalists > 0); /* the best is confirmed all the same, and found too small */
    free(f);
    t.worth[0] = -0.1;
    kg_advise_space_make(&plain, &s);
    f = search(&s, &t);
    assert_int_equal(f->best, 0);
    assert_int_equal(f->n_finalists, 0);
    free(f);
}

static void without_a_least_gain_equal_settings_are_no_reason_to_move(void **state)
{
    struct kg_advise_space s;
    struct truth t = {.peak = 3072, .space = &s};
    const struct kg_advise_search conf = {
        .space = &s, .least = 0, .n_rounds = 2, .run = run_truth, .ctx = &t};
    struct kg_advise_found *f = calloc(1, sizeof(*f));
    struct kg_advise_facts facts = plain;

    (void)state;
    assert_non_null(f);
    facts.checkpoint = "interval"; /* the user's own is the best, with worse ones beside it */
    facts.interval = 3072; /* a step of two lies beside the grid */
    kg_advise_space_make(&facts, &s);
    assert_int_equal(kg_advise_search(&conf, f), KG_OK);
    assert_int_equal(f->best, 0);
    free(f);
}

static void a_change_that_is_worth_nothing_beside_the_others_is_taken_back(void **state)
{
    struct kg_advise_space s;
    struct truth t = {.best = {"checkpoint branch", "split ratio 0.3"},
                      .worth = {0.05, 0.10},
                      .one_is_enough = 1};
    char text[200];

    (void)state;
    kg_advise_space_make(&plain, &s);
    struct kg_advise_found *f = search(&s, &t); /* it comes by way of branch */
    assert_string_equal(label_of(&s, &f->tries[f->best].point, text), "split ratio 0.3");
    free(f);
}

static void the_same_gains_give_the_same_search(void **state)
{
    struct kg_advise_space s, u;
    struct truth t = {.best = {"checkpoint branch", "split uniform"}, .worth = {0.05, 0.02}}, v = t;

    (void)state;
    kg_advise_space_make(&plain, &s);
    kg_advise_space_make(&plain, &u);
    struct kg_advise_found *f = search(&s, &t), *g = search(&u, &v);
    assert_int_equal(f->n, g->n);
    assert_memory_equal(f->tries, g->tries, f->n * sizeof(f->tries[0]));
    assert_memory_equal(f->finalists, g->finalists, sizeof(f->finalists));
    free(f);
    free(g);
}

/* --- judging --- */

/* n requests; times have a common part, noise of their own (AR, `sd` relative) and a factor. */
static struct kg_ab_run made_run(struct kg_rng *rng, uint32_t n, double factor, double sd)
{
    struct kg_ab_run run = {calloc(n, sizeof(*run.rows)), 0};
    double noise = 0;

    assert_non_null(run.rows);
    for (uint32_t i = 0; i < n; i++) {
        struct kg_ab_row *r = &run.rows[i];
        double u = (double)kg_rng_below(rng, 1 << 20) / (1 << 20) - 0.5;
        noise = 0.7 * noise + u * sd;
        r->id = i + 1;
        r->ok = 1;
        r->n_prompt = 100;
        r->n_output = 10;
        r->arrival_ms = 10.0 * i;
        r->v[KG_AB_TTFT] = (100 + i % 37) * factor * exp(noise);
        r->v[KG_AB_TPOT] = 5 * factor * exp(noise);
        r->v[KG_AB_E2E] = r->v[KG_AB_TTFT] + 45 * factor;
        r->v[KG_AB_GOOD] = r->v[KG_AB_TTFT] < 120;
    }
    run.duration_s = n / 100.0;
    return run;
}

static struct kg_advise_gain judged(const struct kg_ab_run *a, const struct kg_ab_run *b,
                                    uint32_t from, uint32_t n, uint32_t objective)
{
    const struct kg_advise_judge j = {.base = a,
                                      .other = b,
                                      .n_all = from + n,
                                      .from = from,
                                      .n = n,
                                      .objective = objective,
                                      .n_finalists = 3,
                                      .least = 0.01,
                                      .seed = 1};
    struct kg_advise_gain g;
    struct kg_error err;

    assert_int_equal(kg_advise_judge(&j, &g, NULL, &err), KG_OK);
    return g;
}

static void the_best_of_many_equal_ones_is_not_taken_for_better(void **state)
{
    uint32_t n = 600, n_tries = 20, n_trials = getenv("KEDGE_FULL") != NULL ? 200 : 20;
    uint32_t n_wrong = 0, n_picked = 0;
    struct kg_rng rng;

    (void)state;
    kg_rng_seed(&rng, 7);
    for (uint32_t trial = 0; trial < n_trials; trial++) {
        struct kg_ab_run base = made_run(&rng, n, 1, 0.3), best = {0};
        double most = -INFINITY;
        uint32_t n_pick = 0;
        assert_int_equal(kg_advise_part(&base, n, &n_pick), KG_OK);
        for (uint32_t k = 0; k < n_tries; k++) {
            struct kg_ab_run c = made_run(&rng, n, 1, 0.3);
            assert_int_equal(kg_advise_part(&c, n, &n_pick), KG_OK);
            const struct kg_advise_judge j = {.base = &base, .other = &c, .n_all = n, .n = n_pick};
            double gain = kg_advise_gain_of(&j);
            if (gain > most) {
                free(best.rows);
                best = c;
                most = gain;
            } else {
                free(c.rows);
            }
        }
        n_picked += most > 0.01; /* picking alone would have fallen for it */
        n_wrong += judged(&base, &best, n_pick, n - n_pick, KG_ADVISE_TTFT).is_better;
        free(base.rows);
        free(best.rows);
    }
    print_message("%u of %u: picked %u, confirmed %u\n", n_trials, n_trials, n_picked, n_wrong);
    assert_true(n_picked >= n_trials / 2);
    assert_true(n_wrong <= n_trials / 20);
}

static void a_gain_of_eight_percent_is_confirmed_and_its_sign_is_right(void **state)
{
    struct kg_rng rng;

    (void)state;
    kg_rng_seed(&rng, 3);
    struct kg_ab_run a = made_run(&rng, 1200, 1, 0.1), b = made_run(&rng, 1200, 0.92, 0.1);
    struct kg_advise_gain g = judged(&a, &b, 600, 600, KG_ADVISE_TTFT);
    assert_true(g.is_better && !g.is_worse && g.lo < -0.08 && g.hi > -0.08 && g.hi < 0);
    g = judged(&b, &a, 600, 600, KG_ADVISE_TTFT);
    assert_true(!g.is_better && g.is_worse);
    g = judged(&a, &b, 600, 600, KG_ADVISE_GOODPUT);
    assert_true(g.is_better && g.rel > 0 && g.lo > 0);
    g = judged(&a, &a, 600, 600, KG_ADVISE_TTFT);
    assert_true(!g.is_better && !g.is_worse && g.rel == 0);
    free(a.rows);
    free(b.rows);
}

static void every_other_window_is_held_out_and_nobody_is_lost(void **state)
{
    struct kg_rng rng;
    uint32_t n_pick = 0, seen[100] = {0};

    (void)state;
    kg_rng_seed(&rng, 5);
    struct kg_ab_run a =
        made_run(&rng, 100, 1, 0); /* windows of 7: 0 .. 6 picked on, 7 .. 13 not */
    assert_int_equal(kg_advise_part(&a, 100, &n_pick), KG_OK);
    assert_int_equal(n_pick, 8 * 7 - 5); /* the last window, 98 .. 99, is one of them */
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t at = (uint32_t)a.rows[i].id - 1;
        assert_int_equal(at / 7 % 2, i >= n_pick);
        assert_true(i == 0 || i == n_pick || a.rows[i].id > a.rows[i - 1].id);
        seen[at]++;
    }
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(seen[i], 1);
    }
    free(a.rows);
}

static void throughput_is_requests_over_the_time_until_the_last_ended(void **state)
{
    uint32_t n = 400;
    struct kg_rng rng;

    (void)state;
    kg_rng_seed(&rng, 5);
    struct kg_ab_run a = made_run(&rng, n, 1, 0), b = made_run(&rng, n, 1, 0);
    for (uint32_t i = 0; i < n; i++) { /* all at once; one ends every 10 ms, in b every 8 */
        a.rows[i].arrival_ms = b.rows[i].arrival_ms = 0;
        a.rows[i].v[KG_AB_E2E] = 10.0 * (i + 1);
        b.rows[i].v[KG_AB_E2E] = 8.0 * (i + 1);
    }
    struct kg_advise_gain g = judged(&a, &b, 0, n, KG_ADVISE_THROUGHPUT);
    assert_true(fabs(g.a - 100) < 1e-6 && fabs(g.b - 125) < 1e-6 && fabs(g.rel - 0.25) < 1e-9);
    assert_true(g.lo <= g.rel && g.rel <= g.hi);
    g = judged(&a, &b, n / 2, n / 2, KG_ADVISE_THROUGHPUT); /* only what these took */
    assert_true(fabs(g.a - 100) < 1e-6 && fabs(g.b - 125) < 1e-6);
    const struct kg_advise_judge j = {.base = &a,
                                      .other = &b,
                                      .n_all = n,
                                      .from = 100,
                                      .n = 200,
                                      .objective = KG_ADVISE_THROUGHPUT};
    assert_true(fabs(kg_advise_gain_of(&j) - 0.25) < 1e-9);
    free(a.rows);
    free(b.rows);
}

static void who_ends_fewer_requests_well_gains_nothing(void **state)
{
    struct kg_rng rng;

    (void)state;
    kg_rng_seed(&rng, 5);
    struct kg_ab_run a = made_run(&rng, 100, 1, 0), b = made_run(&rng, 100, 0.5, 0);
    const struct kg_advise_judge j = {.base = &a, .other = &b, .n_all = 100, .n = 100};
    assert_true(fabs(kg_advise_gain_of(&j) - 0.5) < 1e-9);
    b.rows[7].ok = 0;
    b.rows[7].v[KG_AB_REFUSED] = 1;
    assert_true(isnan(kg_advise_gain_of(&j)));
    free(a.rows);
    free(b.rows);
}

static void the_simpler_of_two_that_gain_alike_is_recommended(void **state)
{
    struct kg_advise_row rows[3] = {
        {.n_sets = 0}, {.n_sets = 3, .gain = 0.2}, {.n_sets = 1, .gain = 0.2}};
    struct kg_advise_final finals[2] = {
        {.row = 1, .gain = {.rel = -0.200, .is_better = 1}, .figures = {.n_ok = 10}},
        {.row = 2, .gain = {.rel = -0.195, .is_better = 1}, .figures = {.n_ok = 10}}};
    struct kg_advise_report r = {.rows = rows,
                                 .n_rows = 3,
                                 .finals = finals,
                                 .n_finals = 2,
                                 .least = 0.01,
                                 .base = {.n_ok = 10}};

    (void)state;
    assert_int_equal(kg_advise_recommend(&r), 1);
    finals[1].gain.rel = -0.15;
    assert_int_equal(kg_advise_recommend(&r), 0);
    finals[0].figures.n_ok = 9; /* it refused somebody in the other half */
    assert_int_equal(kg_advise_recommend(&r), 1);
    rows[2].gain = 0.009; /* it was better by chance where it was picked, or is here */
    assert_int_equal(kg_advise_recommend(&r), KG_NONE);
    rows[2].gain = 0.2;
    finals[1].gain.is_better = 0;
    assert_int_equal(kg_advise_recommend(&r), KG_NONE);
}

static void assignments_become_ini_lines_by_section(void **state)
{
    static const char *const sets[] = {"prefix.checkpoint=interval", "pool-split.style=ratio",
                                       "prefix.interval=512", "pool-split.ratio=0.3"};
    struct kg_buf b;

    (void)state;
    kg_buf_init(&b, 0);
    assert_int_equal(kg_advise_ini(sets, 4, "", &b), KG_OK);
    assert_string_equal(kg_buf_cstr(&b), "[prefix]\ncheckpoint = interval\ninterval = 512\n"
                                         "[pool-split]\nstyle = ratio\nratio = 0.3\n");
    kg_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_interval_is_that_of_a_computation_by_hand),
        cmocka_unit_test(the_interval_is_where_both_sides_cost_least_together),
        cmocka_unit_test(nothing_repeated_asks_for_no_interval),
        cmocka_unit_test(the_users_own_values_are_not_tried_twice),
        cmocka_unit_test(a_drafter_opens_the_verify_policies_and_states_do_not_win_over_a_ratio),
        cmocka_unit_test(intervals_are_whole_pages_within_the_trace),
        cmocka_unit_test(the_search_ends_at_the_planted_settings_of_all_dimensions),
        cmocka_unit_test(a_scale_is_looked_at_more_closely_around_its_best),
        cmocka_unit_test(what_was_far_behind_is_not_tried_with_other_neighbours),
        cmocka_unit_test(nothing_better_ends_where_it_began),
        cmocka_unit_test(without_a_least_gain_equal_settings_are_no_reason_to_move),
        cmocka_unit_test(a_change_that_is_worth_nothing_beside_the_others_is_taken_back),
        cmocka_unit_test(the_same_gains_give_the_same_search),
        cmocka_unit_test(the_best_of_many_equal_ones_is_not_taken_for_better),
        cmocka_unit_test(a_gain_of_eight_percent_is_confirmed_and_its_sign_is_right),
        cmocka_unit_test(every_other_window_is_held_out_and_nobody_is_lost),
        cmocka_unit_test(throughput_is_requests_over_the_time_until_the_last_ended),
        cmocka_unit_test(who_ends_fewer_requests_well_gains_nothing),
        cmocka_unit_test(the_simpler_of_two_that_gain_alike_is_recommended),
        cmocka_unit_test(assignments_become_ini_lines_by_section),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
