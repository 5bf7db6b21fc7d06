/* Sampling: exact rules on small rows, distributions against probabilities worked out here. */
#include "model/sample.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_V 4096
#define NOISE_HASH 0xdc8cc584f40ce6bdull
#define PICK_HASH 0x597f08a15bab743aull

static struct kg_sample_pick pick_at(const float *x, uint32_t vocab, const struct kg_sampling *s,
                                     uint32_t position, uint32_t n_output,
                                     const struct kg_token_counts *counts,
                                     struct kg_logprob *logprobs)
{
    struct kg_sample_row row = {.logits = x,
                                .vocab = vocab,
                                .position = position,
                                .n_output = n_output,
                                .sampling = s,
                                .counts = counts};
    size_t n = kg_sample_scratch_bytes(vocab);
    void *scratch = aligned_alloc(64, (n + 63) / 64 * 64);
    struct kg_sample_pick p;

    assert_non_null(scratch);
    kg_sample(&row, scratch, &p, logprobs);
    free(scratch);
    return p;
}

static uint32_t token(const float *x, uint32_t vocab, const struct kg_sampling *s)
{
    return pick_at(x, vocab, s, 7, 0, NULL, NULL).token;
}

/* Deterministic numbers for rows, independent of the code under test. */
static uint32_t lcg(uint32_t *s)
{
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

static void fill(float *x, uint32_t n, uint32_t seed, float spread)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = ((float)(lcg(&seed) & 0xffff) / 65536.0f - 0.5f) * spread;
    }
}

static void greedy_takes_the_largest_and_the_lowest_id_of_equals(void **state)
{
    struct kg_sampling s = {0};
    float x[9] = {-1, 3, 2, 3, -5, 3, 0, 1, 2};
    float zeros[5] = {-1, -0.0f, 0.0f, -0.0f, -2};
    float low[4] = {-INFINITY, -FLT_MAX, -INFINITY, -FLT_MAX};
    float one[1] = {-3};

    (void)state;
    assert_int_equal(token(x, 9, &s), 1);
    x[8] = 4;
    assert_int_equal(token(x, 9, &s), 8);
    assert_int_equal(token(zeros, 5, &s), 1);
    assert_int_equal(token(low, 4, &s), 1);
    assert_int_equal(token(one, 1, &s), 0);
}

static void noise_is_a_fixed_function_with_the_gumbel_law(void **state)
{
    enum { N = 200000 };
    double sum = 0, sum2 = 0;
    uint32_t below = 0;

    (void)state;
    for (uint32_t i = 0; i < N; i++) {
        double g = kg_sample_noise(42, i / 500, i % 500);
        assert_true(isfinite(g) && g > -4 && g < 37);
        sum += g;
        sum2 += g * g;
        below += g < 1.0;
    }
    /* mean 0.5772, variance pi^2/6, P(G < 1) = exp(-exp(-1)): within 5 standard errors */
    double mean = sum / N, var = sum2 / N - mean * mean, p = exp(-exp(-1.0));
    assert_true(fabs(mean - 0.57721566) < 5 * sqrt(1.645 / N));
    assert_true(fabs(var - 1.6449341) < 0.03);
    assert_true(fabs((double)below / N - p) < 5 * sqrt(p * (1 - p) / N));
    assert_true(kg_sample_noise(1, 2, 3) == kg_sample_noise(1, 2, 3));
    assert_true(kg_sample_noise(1, 2, 3) != kg_sample_noise(2, 2, 3));
    assert_true(kg_sample_noise(1, 2, 3) != kg_sample_noise(1, 3, 3));
    assert_true(kg_sample_noise(1, 2, 3) != kg_sample_noise(1, 2, 4));
    /* neighbours in seed and position do not go together */
    double both = 0;
    for (uint32_t i = 0; i < N; i++) {
        both += (kg_sample_noise(7, i, 1) - 0.5772) * (kg_sample_noise(8, i, 1) - 0.5772);
        both += (kg_sample_noise(7, i, 1) - 0.5772) * (kg_sample_noise(7, i + 1, 1) - 0.5772);
    }
    assert_true(fabs(both / (2 * N)) < 5 * 1.645 / sqrt(2.0 * N));
}

/* The noise written out again, with libm: what a second implementation would do. */
static double noise_again(uint64_t seed, uint32_t position, uint32_t tok)
{
    uint64_t h = seed + 0x9e3779b97f4a7c15ull;

    for (int round = 0; round < 3; round++) {
        if (round == 1) {
            h ^= ((uint64_t)position + 1) * 0x9e3779b97f4a7c15ull;
        } else if (round == 2) {
            h += ((uint64_t)tok + 1) * 0x9e3779b97f4a7c15ull;
        }
        h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ull;
        h = (h ^ (h >> 27)) * 0x94d049bb133111ebull;
        h ^= h >> 31;
    }
    double u = ((double)(h >> 12) + 0.5) / 4503599627370496.0;
    return -log(-log(u));
}

static void noise_agrees_with_its_definition(void **state)
{
    uint32_t r = 5;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint64_t seed = (uint64_t)lcg(&r) << 40 | lcg(&r);
        uint32_t pos = lcg(&r), tok = lcg(&r) % 163840;
        double a = kg_sample_noise(seed, pos, tok), b = noise_again(seed, pos, tok);
        assert_true(fabs(a - b) < 1e-12 * (1 + fabs(b)));
    }
}

static uint64_t hash_bytes(uint64_t h, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        h = (h ^ ((const unsigned char *)p)[i]) * 0x100000001b3ull;
    }
    return h;
}

/* The values were taken once; compilers, options and instruction sets must all reproduce them. */
static void bits_of_noise_picks_and_logprobs_are_fixed(void **state)
{
    enum { V = 2000 };
    static float x[V];
    uint64_t noise = 0xcbf29ce484222325ull, rest = noise;
    struct kg_logprob lp[6];

    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        double g = kg_sample_noise(i / 100, i % 100, i * 7);
        noise = hash_bytes(noise, &g, sizeof(g));
    }
    for (uint32_t i = 0; i < 200; i++) {
        struct kg_sampling s = {.temperature = 0.9f, .seed = i, .n_logprobs = 5};
        s.top_p = i % 2 ? 0.9f : 0;
        s.top_k = i % 3 ? 50 : 0;
        fill(x, V, i, 14.0f);
        struct kg_sample_pick k = pick_at(x, V, &s, i, 0, NULL, lp);
        rest = hash_bytes(rest, &k.token, sizeof(k.token));
        rest = hash_bytes(rest, lp, sizeof(lp));
    }
    assert_int_equal(noise, NOISE_HASH);
    assert_int_equal(rest, PICK_HASH);
}

/* Which tokens the filters keep, by sorting; written from the rule and slow. */
struct ranked {
    double p;
    uint32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->p != y->p) {
        return x->p > y->p ? -1 : 1;
    }
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Probabilities after the filters, [vocab]; 0 for what is cut. */
static void expected(const float *x, uint32_t vocab, const struct kg_sampling *s, double *p)
{
    static struct ranked r[MAX_V];
    double max = -INFINITY, sum = 0, run = 0;
    uint32_t n = 0, m = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        max = x[i] > max ? x[i] : max;
        p[i] = 0;
    }
    for (uint32_t i = 0; i < vocab; i++) {
        double w = exp(((double)x[i] - max) / s->temperature);
        if (w >= s->min_p) {
            r[n++] = (struct ranked){.p = w, .id = i};
        }
    }
    qsort(r, n, sizeof(*r), by_rank);
    n = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    for (uint32_t i = 0; i < n; i++) {
        sum += r[i].p;
    }
    double need = s->top_p > 0 && s->top_p < 1 ? s->top_p * sum : INFINITY;
    while (m < n && run < need) {
        run += r[m++].p;
    }
    for (uint32_t i = 0; i < m; i++) {
        p[r[i].id] = r[i].p / run;
    }
}

static const struct kg_sampling laws[] = {
    {.temperature = 1},
    {.temperature = 0.5f},
    {.temperature = 2.5f},
    {.temperature = 1, .top_k = 5},
    {.temperature = 1, .top_p = 0.8f},
    {.temperature = 1, .min_p = 0.1f},
    {.temperature = 1.3f, .top_k = 9, .top_p = 0.9f},
    {.temperature = 0.7f, .top_k = 12, .top_p = 0.95f, .min_p = 0.05f},
    {.temperature = 1, .top_k = 1},
    {.temperature = 1, .top_p = 0.01f},
    {.temperature = 1, .min_p = 1},
};
#define N_LAWS (sizeof(laws) / sizeof(laws[0]))

/* Chi-square over positions with a fixed seed, against probabilities from `expected`. The bound is
 * the mean plus 6 standard deviations: one run of fixed numbers, so it either holds or not. */
static void draws_follow_the_filtered_softmax(void **state)
{
    enum { V = 24, N = 40000 };
    float x[V];
    double p[V];

    (void)state;
    fill(x, V, 99, 5.0f);
    x[3] = x[17]; /* equal logits on either side of a cut */
    for (size_t c = 0; c < N_LAWS; c++) {
        struct kg_sampling s = laws[c];
        uint32_t count[V] = {0}, cells = 0;
        double chi = 0;
        s.seed = 1000 + c;
        expected(x, V, &s, p);
        struct kg_sample_pick k;
        void *scratch = aligned_alloc(64, (kg_sample_scratch_bytes(V) + 63) / 64 * 64);
        struct kg_sample_row row = {.logits = x, .vocab = V, .sampling = &s};
        for (uint32_t i = 0; i < N; i++) {
            row.position = i;
            kg_sample(&row, scratch, &k, NULL);
            assert_true(k.token < V);
            count[k.token]++;
        }
        free(scratch);
        for (uint32_t i = 0; i < V; i++) {
            if (p[i] == 0) {
                assert_int_equal(count[i], 0);
            } else {
                double e = p[i] * N, d = count[i] - e;
                chi += d * d / e;
                cells++;
            }
        }
        double df = cells - 1;
        if (chi > df + 6 * sqrt(2 * df) + 1e-9) {
            fail_msg("law %zu: chi-square %.1f with %.0f degrees", c, chi, df);
        }
    }
}

/* Large rows with many equal values: the pick is the argmax over what `expected` keeps. */
static void pick_is_the_argmax_of_logit_plus_noise_among_the_kept(void **state)
{
    static float x[MAX_V];
    static double p[MAX_V];

    (void)state;
    for (uint32_t run = 0; run < 60; run++) {
        uint32_t vocab = run % 5 == 0 ? 1 + run : 700 + 53 * run;
        struct kg_sampling s = laws[run % N_LAWS];
        s.seed = run * 77;
        if (run >= 30) {
            s.top_k *= 40;
        }
        fill(x, vocab, run, 12.0f);
        for (uint32_t i = 0; run % 3 == 0 && i < vocab; i++) {
            x[i] = roundf(x[i]); /* ties by the hundred */
        }
        expected(x, vocab, &s, p);
        double best = -INFINITY;
        uint32_t want = 0;
        for (uint32_t i = 0; i < vocab; i++) {
            double score = x[i] / (double)s.temperature + noise_again(s.seed, 31, i);
            if (p[i] > 0 && score > best) {
                best = score;
                want = i;
            }
        }
        struct kg_sample_pick k = pick_at(x, vocab, &s, 31, 0, NULL, NULL);
        if (k.token != want) {
            fail_msg("run %u: token %u, wanted %u of %u", run, k.token, want, vocab);
        }
    }
}

static void draw_depends_on_seed_and_position_only(void **state)
{
    enum { V = 512 };
    float x[V], y[V];
    struct kg_sampling s = {.temperature = 1, .seed = 5}, t = s;
    uint32_t changed = 0;

    (void)state;
    fill(x, V, 3, 8.0f);
    t.seed = 6;
    for (uint32_t pos = 0; pos < 200; pos++) {
        struct kg_sample_pick a = pick_at(x, V, &s, pos, 0, NULL, NULL);
        /* another place in memory, another time, another output length: same draw */
        memcpy(y, x, sizeof(y));
        assert_int_equal(pick_at(y, V, &s, pos, 99, NULL, NULL).token, a.token);
        changed += pick_at(x, V, &t, pos, 0, NULL, NULL).token != a.token;
        changed += pick_at(x, V, &s, pos + 1000, 0, NULL, NULL).token != a.token;
    }
    assert_true(changed > 300);
}

static void filter_that_keeps_the_pick_does_not_change_it(void **state)
{
    enum { V = 300 };
    float x[V];

    (void)state;
    fill(x, V, 11, 9.0f);
    for (uint32_t pos = 0; pos < 300; pos++) {
        struct kg_sampling s = {.temperature = 1, .seed = 21};
        uint32_t free_pick = pick_at(x, V, &s, pos, 0, NULL, NULL).token;
        s.top_k = 40;
        double p[V];
        expected(x, V, &s, p);
        uint32_t cut_pick = pick_at(x, V, &s, pos, 0, NULL, NULL).token;
        if (p[free_pick] > 0) {
            assert_int_equal(cut_pick, free_pick);
        } else {
            assert_true(p[cut_pick] > 0);
        }
    }
}

static void penalties_follow_their_formulas(void **state)
{
    float x[6] = {2.0f, -1.0f, 1.9f, 1.8f, -0.5f, 1.7f};
    struct kg_token_counts c;
    struct kg_sampling s = {.repetition_penalty = 1.25f};
    void *mem = calloc(1, kg_token_counts_bytes(6));

    (void)state;
    kg_token_counts_init(&c, mem, 6);
    assert_int_equal(kg_token_counts_add(&c, 0, 0), KG_OK); /* in the prompt: 2.0 -> 1.6 */
    assert_int_equal(pick_at(x, 6, &s, 0, 0, &c, NULL).token, 2);
    assert_int_equal(pick_at(x, 6, &s, 0, 0, NULL, NULL).token, 0);
    /* frequency and presence see the output only */
    s = (struct kg_sampling){.frequency_penalty = 0.06f};
    assert_int_equal(pick_at(x, 6, &s, 0, 0, &c, NULL).token, 0);
    assert_int_equal(kg_token_counts_add(&c, 0, 1), KG_OK); /* 2.0 - 0.06 = 1.94 */
    assert_int_equal(pick_at(x, 6, &s, 0, 1, &c, NULL).token, 0);
    assert_int_equal(kg_token_counts_add(&c, 0, 1), KG_OK); /* 2.0 - 0.12 = 1.88 */
    assert_int_equal(pick_at(x, 6, &s, 0, 2, &c, NULL).token, 2);
    s = (struct kg_sampling){.presence_penalty = 0.15f}; /* once, however often */
    assert_int_equal(pick_at(x, 6, &s, 0, 2, &c, NULL).token, 2);
    s.presence_penalty = 0.05f;
    assert_int_equal(pick_at(x, 6, &s, 0, 2, &c, NULL).token, 0);
    /* negative logits are multiplied: the penalty never rewards */
    float low[3] = {-1.0f, -1.1f, -5.0f};
    s = (struct kg_sampling){.repetition_penalty = 1.5f};
    assert_int_equal(pick_at(low, 3, &s, 0, 0, &c, NULL).token, 1);
    /* extreme values stay comparable */
    float big[2] = {FLT_MAX, 1};
    s.repetition_penalty = 1e-30f;
    assert_int_equal(pick_at(big, 2, &s, 0, 0, &c, NULL).token, 0);
    assert_int_equal(pick_at(big, 2, &s, 0, 0, &c, NULL).flags, 0);
    free(mem);
}

static void stop_ids_wait_for_min_tokens(void **state)
{
    float x[5] = {1, 5, 2, 4, 3};
    struct kg_sampling s = {.min_tokens = 2, .n_stop_ids = 2, .stop_ids = {1, 3}};
    struct kg_sample_pick k;

    (void)state;
    assert_int_equal(pick_at(x, 5, &s, 0, 0, NULL, NULL).token, 4);
    assert_int_equal(pick_at(x, 5, &s, 0, 1, NULL, NULL).token, 4);
    assert_int_equal(pick_at(x, 5, &s, 0, 1, NULL, NULL).flags, 0);
    k = pick_at(x, 5, &s, 0, 2, NULL, NULL);
    assert_int_equal(k.token, 1);
    assert_int_equal(k.flags, KG_RES_STOP);
    /* everything else impossible: the lowest id that may be picked */
    float only[4] = {-INFINITY, 5, -INFINITY, 2};
    assert_int_equal(pick_at(only, 4, &s, 0, 0, NULL, NULL).token, 0);
    /* a vocabulary of stop ids alone: the best of them */
    float two[2] = {1, 2};
    s.stop_ids[0] = 0;
    s.stop_ids[1] = 1;
    assert_int_equal(pick_at(two, 2, &s, 0, 0, NULL, NULL).token, 1);
    /* ids outside the vocabulary do nothing */
    s.stop_ids[0] = 4000000000u;
    assert_int_equal(pick_at(two, 2, &s, 0, 0, NULL, NULL).token, 0);
}

static void row_that_is_not_finite_is_flagged(void **state)
{
    static const float values[] = {NAN, -NAN, INFINITY};
    struct kg_logprob lp[3];
    float x[37];

    (void)state;
    for (size_t c = 0; c < N_LAWS; c++) {
        struct kg_sampling s = laws[c];
        s.n_logprobs = 2;
        for (size_t v = 0; v < 3; v++) {
            for (uint32_t at = 0; at < 37; at += 4) {
                fill(x, 37, 2, 4.0f);
                x[at] = values[v];
                struct kg_sample_pick k = pick_at(x, 37, &s, 0, 0, NULL, lp);
                assert_int_equal(k.flags, KG_RES_NAN);
                assert_int_equal(k.token, 0);
                assert_int_equal(lp[2].id, KG_NONE);
            }
        }
        for (uint32_t i = 0; i < 37; i++) {
            x[i] = -INFINITY;
        }
        assert_int_equal(pick_at(x, 37, &s, 0, 0, NULL, NULL).flags, KG_RES_NAN);
        x[20] = -FLT_MAX; /* one possible token is enough */
        struct kg_sample_pick k = pick_at(x, 37, &s, 0, 0, NULL, lp);
        assert_int_equal(k.flags, 0);
        assert_int_equal(k.token, 20);
        assert_int_equal(lp[0].id, 20);
        assert_true(lp[0].logprob == 0);
        assert_int_equal(lp[2].id, 0);
        assert_true(lp[2].logprob == -INFINITY);
    }
}

static void logprobs_are_of_the_unmodified_softmax(void **state)
{
    enum { V = 1000 };
    float x[V];
    struct kg_sampling s = {.temperature = 0.3f,
                            .top_k = 3,
                            .n_logprobs = 20,
                            .repetition_penalty = 2,
                            .min_tokens = 9,
                            .n_stop_ids = 1,
                            .stop_ids = {17}};
    struct kg_logprob lp[21];
    struct kg_token_counts c;
    void *mem = calloc(1, kg_token_counts_bytes(8));
    double sum = 0;

    (void)state;
    fill(x, V, 8, 10.0f);
    x[100] = x[900] = x[500] = 6.5f; /* equals: lower id first */
    x[17] = 7.0f;
    kg_token_counts_init(&c, mem, 8);
    assert_int_equal(kg_token_counts_add(&c, 100, 1), KG_OK);
    struct kg_sample_pick k = pick_at(x, V, &s, 3, 0, &c, lp);
    for (uint32_t i = 0; i < V; i++) {
        sum += exp((double)x[i]);
    }
    assert_int_equal(lp[0].id, k.token);
    assert_int_equal(lp[1].id, 17); /* masked for the pick, reported as it is */
    assert_int_equal(lp[2].id, 100);
    assert_int_equal(lp[3].id, 500);
    assert_int_equal(lp[4].id, 900);
    for (uint32_t i = 0; i < 21; i++) {
        assert_true(fabs(lp[i].logprob - (x[lp[i].id] - log(sum))) < 1e-6);
        assert_true(i < 2 || lp[i].logprob <= lp[i - 1].logprob);
    }
    /* nothing outside the list is better than its last */
    for (uint32_t i = 0; i < V; i++) {
        int listed = 0;
        for (uint32_t j = 1; j < 21; j++) {
            listed |= lp[j].id == i;
        }
        assert_true(listed || x[i] <= x[lp[20].id]);
    }
    struct kg_logprob echo[6];
    assert_int_equal(kg_sample_logprobs(x, V, 333, 5, echo), 0);
    assert_int_equal(echo[0].id, 333);
    assert_true(fabs(echo[0].logprob - (x[333] - log(sum))) < 1e-6);
    assert_memory_equal(echo + 1, lp + 1, 5 * sizeof(*lp));
    assert_int_equal(kg_sample_logprobs(x, 3, KG_NONE, 5, echo), 0);
    assert_int_equal(echo[0].id, KG_NONE);
    assert_int_equal(echo[4].id, KG_NONE); /* the vocabulary is shorter */
    assert_true(echo[4].logprob == -INFINITY);
    free(mem);
}

static void extreme_temperatures_stay_defined(void **state)
{
    float x[4] = {1, 1.0001f, -3, 0.5f};
    struct kg_sampling cold = {.temperature = 1e-30f}, hot = {.temperature = 100};
    uint32_t seen[4] = {0};

    (void)state;
    for (uint32_t i = 0; i < 400; i++) {
        assert_int_equal(pick_at(x, 4, &cold, i, 0, NULL, NULL).token, 1);
        seen[pick_at(x, 4, &hot, i, 0, NULL, NULL).token]++;
    }
    for (int i = 0; i < 4; i++) {
        assert_true(seen[i] > 60);
    }
}

static void coupled_acceptance_means_equal(void **state)
{
    (void)state;
    assert_true(kg_accept_coupled(5, 5));
    assert_false(kg_accept_coupled(5, 6));
}

/* Counts against plain arrays, over clears and a full table. */
static void token_counts_count(void **state)
{
    enum { ROOM = 100, IDS = 5000 };
    static uint32_t prompt[IDS], output[IDS];
    struct kg_token_counts c;
    void *mem = calloc(1, kg_token_counts_bytes(ROOM));
    uint32_t r = 1;

    (void)state;
    assert_int_equal(kg_token_counts_bytes(0), 0);
    assert_int_equal(kg_token_counts_bytes((1u << 28) + 1), 0);
    kg_token_counts_init(&c, mem, ROOM);
    for (int round = 0; round < 20; round++) {
        uint32_t distinct = 0;
        memset(prompt, 0, sizeof(prompt));
        memset(output, 0, sizeof(output));
        for (int i = 0; i < 400; i++) {
            uint32_t t = lcg(&r) % (round % 2 ? 90 : IDS), out = lcg(&r) & 1;
            int is_new = !prompt[t] && !output[t];
            int rc = kg_token_counts_add(&c, t, (int)out);
            if (is_new && distinct == ROOM) {
                assert_int_equal(rc, KG_ELIMIT);
                continue;
            }
            assert_int_equal(rc, KG_OK);
            distinct += (uint32_t)is_new;
            output[t] += out;
            prompt[t] |= !out;
        }
        assert_int_equal(c.n, distinct);
        for (uint32_t t = 0; t < IDS; t++) {
            const struct kg_token_count *e = kg_token_counts_get(&c, t);
            assert_int_equal(e != NULL, prompt[t] || output[t]);
            if (e != NULL) {
                assert_int_equal(e->token, t);
                assert_int_equal(e->in_prompt, prompt[t]);
                assert_int_equal(e->n_output, output[t]);
            }
        }
        kg_token_counts_clear(&c);
        assert_int_equal(c.n, 0);
        assert_null(kg_token_counts_get(&c, 3));
        for (uint32_t i = 0; i < c.n_slots; i++) {
            assert_int_equal(c.slots[i], 0);
        }
    }
    free(mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_largest_and_the_lowest_id_of_equals),
        cmocka_unit_test(noise_is_a_fixed_function_with_the_gumbel_law),
        cmocka_unit_test(noise_agrees_with_its_definition),
        cmocka_unit_test(bits_of_noise_picks_and_logprobs_are_fixed),
        cmocka_unit_test(draws_follow_the_filtered_softmax),
        cmocka_unit_test(pick_is_the_argmax_of_logit_plus_noise_among_the_kept),
        cmocka_unit_test(draw_depends_on_seed_and_position_only),
        cmocka_unit_test(filter_that_keeps_the_pick_does_not_change_it),
        cmocka_unit_test(penalties_follow_their_formulas),
        cmocka_unit_test(stop_ids_wait_for_min_tokens),
        cmocka_unit_test(row_that_is_not_finite_is_flagged),
        cmocka_unit_test(logprobs_are_of_the_unmodified_softmax),
        cmocka_unit_test(extreme_temperatures_stay_defined),
        cmocka_unit_test(coupled_acceptance_means_equal),
        cmocka_unit_test(token_counts_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
