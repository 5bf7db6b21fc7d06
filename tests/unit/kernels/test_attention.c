#include "kit.h"

/* A sequence's cache in pages scattered over slots, one layer of two inside a page. */
struct cache {
    struct kg_pages p;
    uint8_t *arena;
    uint32_t *table, *ids;
};

static struct cache make_cache(uint64_t *s, uint32_t dtype, uint32_t page_tokens, uint32_t latent,
                               uint32_t rope, uint32_t tokens)
{
    uint32_t n = (tokens + page_tokens - 1) / page_tokens, element = dtype == KG_F32 ? 4 : 2;
    struct cache c = {.table = take(n * 4), .ids = take(n * 4)};
    size_t layer = (size_t)page_tokens * (latent + rope) * element;

    c.p = (struct kg_pages){.table = c.table, .page_tokens = page_tokens, .dtype = dtype};
    c.p.latent = latent;
    c.p.rope = rope;
    c.p.token_stride = (latent + rope) * element;
    c.p.page_stride = 2 * layer + 64;
    c.arena = take((n + 1) * c.p.page_stride);
    c.p.base = c.arena + layer; /* the second layer */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = (uint32_t)(rnd(s) % (i + 1)); /* a random order of slots */

        c.table[i] = c.table[j];
        c.table[j] = i;
    }
    for (uint32_t i = 0; i < n; i++)
        c.ids[i] = n - 1 - i;
    return c;
}

static void drop_cache(struct cache *c)
{
    free(c->arena);
    free(c->table);
    free(c->ids);
}

struct attn_case {
    uint32_t tokens, heads, latent, rope;
    float *qa, *qr, *c, *kr;
};

static struct attn_case make_case(uint64_t *s, uint32_t tokens, uint32_t heads, uint32_t latent,
                                  uint32_t rope)
{
    struct attn_case a = {.tokens = tokens, .heads = heads, .latent = latent, .rope = rope};

    a.qa = random_f(s, (size_t)tokens * heads * latent, 1);
    a.qr = random_f(s, (size_t)tokens * heads * rope + 1, 1);
    a.c = random_f(s, (size_t)tokens * latent, 2);
    a.kr = random_f(s, (size_t)tokens * rope + 1, 2);
    return a;
}

static void drop_case(struct attn_case *a)
{
    free(a->qa);
    free(a->qr);
    free(a->c);
    free(a->kr);
}

#define SCALE 0.3f

/* Rows past .. past+n-1: writes their keys, then attends; m: [tokens][heads][latent]. */
static void step(const struct kg_kernels *k, struct kg_team *team, const struct attn_case *a,
                 const struct cache *cache, uint32_t past, uint32_t n, float *m)
{
    struct kg_mla_seq seq = {cache->ids, past, n, past};
    size_t qa = (size_t)a->heads * a->latent, qr = (size_t)a->heads * a->rope;
    struct kg_mla args = {
        .pages = cache->p, .qa = a->qa, .qr = a->rope == 0 ? NULL : a->qr, .m = m};

    args.qa_stride = args.m_stride = qa;
    args.qr_stride = qr;
    args.qr_head_stride = a->rope;
    args.scale = SCALE;
    args.heads = a->heads;
    args.seqs = &seq;
    args.n_seqs = 1;
    k->page_write(team, &cache->p, a->c, a->latent, a->kr, a->rope, &seq, 1);
    k->mla(team, &args);
}

static double as_stored(const struct kg_kernels *k, float x)
{
    return k->state_dtype == KG_BF16 ? kg_f32_from_bf16(kg_bf16_from_f32(x)) : x;
}

static void check_row(const struct kg_kernels *k, const struct attn_case *a, uint32_t pos,
                      uint32_t h, const float *m)
{
    const float *qa = a->qa + ((size_t)pos * a->heads + h) * a->latent;
    const float *qr = a->qr + ((size_t)pos * a->heads + h) * a->rope;
    double *score = calloc(pos + 1, sizeof(double)), top = -INFINITY, sum = 0;

    for (uint32_t t = 0; t <= pos; t++) {
        for (uint32_t i = 0; i < a->latent; i++)
            score[t] += qa[i] * as_stored(k, a->c[t * a->latent + i]);
        for (uint32_t i = 0; i < a->rope; i++)
            score[t] += qr[i] * as_stored(k, a->kr[t * a->rope + i]);
        score[t] *= SCALE;
        top = fmax(top, score[t]);
    }
    for (uint32_t t = 0; t <= pos; t++)
        sum += exp(score[t] - top);
    for (uint32_t i = 0; i < a->latent; i++) {
        double want = 0;

        for (uint32_t t = 0; t <= pos; t++)
            want += exp(score[t] - top) / sum * as_stored(k, a->c[t * a->latent + i]);
        near("attention", m[i], want, 2e-5);
    }
    free(score);
}

static const uint32_t shapes[][3] = {{1, 1, 0},   {3, 64, 16},  {2, 15, 17}, {9, 33, 1},
                                     {20, 16, 8}, {5, 127, 31}, {8, 512, 64}};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))
#define TOKENS 53

/* The keys before `past` come from pages written by other calls, chunks and page sizes vary, one
 * and two threads: always the bits of one piece in plain C. */
static void attention_matches_double_whatever_the_chunks_pages_and_threads(void **state)
{
    static const uint32_t page_tokens[] = {1, 3, 16, 64};
    uint64_t s = 41;
    struct kg_team *team;

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (size_t n = 0; n < N_SHAPES; n++) {
        struct attn_case a = make_case(&s, TOKENS, shapes[n][0], shapes[n][1], shapes[n][2]);
        size_t all = (size_t)TOKENS * a.heads * a.latent;
        float *base[2] = {take_f(all), take_f(all)}, *m = take_f(all);

        for (uint32_t math = 0; math < 2; math++) {
            const struct kg_kernels *k = kg_kernels_ref((enum kg_math)math);
            struct cache c = make_cache(&s, k->state_dtype, 16, a.latent, a.rope, TOKENS);

            step(k, NULL, &a, &c, 0, TOKENS, base[math]);
            for (uint32_t pos = 0; pos < TOKENS; pos += 4)
                for (uint32_t h = 0; h < a.heads; h += 2)
                    check_row(k, &a, pos, h, base[math] + ((size_t)pos * a.heads + h) * a.latent);
            drop_cache(&c);
        }
        for (EACH_TABLE(t)) {
            for (size_t p = 0; p < 4; p++) {
                struct cache c =
                    make_cache(&s, t.k->state_dtype, page_tokens[p], a.latent, a.rope, TOKENS);

                memset(m, 0xff, all * sizeof(float));
                for (uint32_t past = 0; past < TOKENS;) {
                    uint32_t run = p == 0 ? TOKENS : 1 + (uint32_t)(rnd(&s) % 20);

                    run = run > TOKENS - past ? TOKENS - past : run;
                    step(t.k, p % 2 ? team : NULL, &a, &c, past, run, m);
                    past += run;
                }
                same_bits(t.k->name, m, base[t.k->math], all);
                drop_cache(&c);
            }
        }
        free(base[0]);
        free(base[1]);
        free(m);
        drop_case(&a);
    }
    kg_team_destroy(team);
}

/* Bytes past a row's position are NaN in a fresh arena (kit.h): they must not be used. Positions
 * written later change nothing either. */
static void attention_never_looks_past_its_position(void **state)
{
    uint64_t s = 42;
    struct attn_case a = make_case(&s, TOKENS, 3, 64, 16);
    size_t row = 3 * 64;
    float *before = take_f(TOKENS * row), *after = take_f(TOKENS * row);

    (void)state;
    for (EACH_TABLE(t)) {
        struct cache c = make_cache(&s, t.k->state_dtype, 16, 64, 16, TOKENS);

        step(t.k, NULL, &a, &c, 0, 21, before);
        step(t.k, NULL, &a, &c, 0, TOKENS, after);
        same_bits("rows of a prefix", before, after, 21 * row);
        for (size_t i = 0; i < 21 * row; i++)
            assert_true(isfinite(before[i]));
        drop_cache(&c);
    }
    free(before);
    free(after);
    drop_case(&a);
}

/* Rows of one sequence share the keys they read; a key that is not finite reaches only the rows
 * from its position on. */
static void a_key_that_is_no_number_reaches_no_earlier_row(void **state)
{
    uint64_t s = 44;

    (void)state;
    for (uint32_t heads = 1; heads <= 9; heads += 2) {
        struct attn_case a = make_case(&s, TOKENS, heads, 33, 5);
        size_t row = (size_t)heads * 33;
        float *clean = take_f(TOKENS * row), *m = take_f(TOKENS * row);

        for (EACH_TABLE(t)) {
            struct cache c = make_cache(&s, t.k->state_dtype, 16, 33, 5, TOKENS);
            float was = a.c[37 * 33 + 4];

            step(t.k, NULL, &a, &c, 0, TOKENS, clean);
            a.c[37 * 33 + 4] = NAN;
            step(t.k, NULL, &a, &c, 0, TOKENS, m);
            a.c[37 * 33 + 4] = was;
            same_bits(t.k->name, m, clean, 37 * row);
            for (size_t r = 37; r < TOKENS; r++)
                assert_true(isnan(m[r * row + 4]));
            drop_cache(&c);
        }
        free(clean);
        free(m);
        drop_case(&a);
    }
}

/* Three sequences in one call, rows interleaved with gaps, against one call each. */
static void attention_of_a_batch_equals_sequences_alone(void **state)
{
    uint64_t s = 43;
    struct kg_team *team;
    struct attn_case a = make_case(&s, TOKENS, 9, 33, 5);
    size_t row = 9 * 33;
    float *alone = take_f(TOKENS * row), *m = take_f(TOKENS * row);

    (void)state;
    assert_int_equal(kg_team_create(2, &team, NULL), KG_OK);
    for (EACH_TABLE(t)) {
        struct cache c = make_cache(&s, t.k->state_dtype, 4, 33, 5, 64);
        /* ids 0..15: four pages each for three sequences of 3, 1 and 12 rows */
        struct kg_mla_seq seqs[3] = {
            {c.ids, 0, 3, 0}, {c.ids + 4, 10, 1, 0}, {c.ids + 8, 20, 12, 0}};
        struct kg_mla args = {.pages = c.p, .qa = a.qa, .qr = a.qr, .m = m, .scale = SCALE};

        args.qa_stride = args.m_stride = row;
        args.qr_stride = 45;
        args.qr_head_stride = 5;
        args.heads = 9;
        args.seqs = seqs;
        args.n_seqs = 3;
        t.k->page_write(team, &c.p, a.c, 33, a.kr, 5, seqs, 3);
        t.k->mla(team, &args);
        args.m = alone;
        args.n_seqs = 1;
        for (int i = 0; i < 3; i++) {
            args.seqs = &seqs[i];
            t.k->mla(NULL, &args);
            same_bits("sequence", m + seqs[i].row0 * row, alone + seqs[i].row0 * row,
                      seqs[i].n * row);
        }
        drop_cache(&c);
    }
    kg_team_destroy(team);
    free(alone);
    free(m);
    drop_case(&a);
}

/* Scores of hundreds apart and a first block far below a later one: weights stay finite. */
static void attention_survives_extreme_scores(void **state)
{
    uint64_t s = 44;
    struct attn_case a = make_case(&s, TOKENS, 2, 16, 4);
    float *m = take_f(TOKENS * 32);

    (void)state;
    for (size_t i = 0; i < TOKENS * 32; i++)
        a.qa[i] *= 300;
    for (EACH_TABLE(t)) {
        struct cache c = make_cache(&s, t.k->state_dtype, 16, 16, 4, TOKENS);

        step(t.k, NULL, &a, &c, 0, TOKENS, m);
        for (uint32_t pos = 0; pos < TOKENS; pos++)
            for (size_t i = 0; i < 32; i++)
                assert_true(isfinite(m[pos * 32 + i]) && fabsf(m[pos * 32 + i]) <= 2.01f);
        drop_cache(&c);
    }
    free(m);
    drop_case(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_matches_double_whatever_the_chunks_pages_and_threads),
        cmocka_unit_test(attention_never_looks_past_its_position),
        cmocka_unit_test(a_key_that_is_no_number_reaches_no_earlier_row),
        cmocka_unit_test(attention_of_a_batch_equals_sequences_alone),
        cmocka_unit_test(attention_survives_extreme_scores),
    };

    return cmocka_run_group_tests(tests, say_skipped, NULL);
}
