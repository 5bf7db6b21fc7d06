/* The drafter's arithmetic: against a second writing of its formulas, and against itself. */
#include "draft_tiny.h"

#include "model/draft.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_PAST 64
#define MAX_SEQS 4
#define N_PAGES 400

static struct tiny *target;
static struct kg_ckpt *target_ckpt;

/* A drafter over pages of its own, with features for MAX_PAST tokens of MAX_SEQS sequences. */
struct bench {
    struct tiny *files;
    struct kg_draft_ckpt *ckpt;
    struct kg_model *model;
    struct kg_drafter *drafter;
    struct kg_drafter_sizes sizes;
    struct kg_model_units units;
    uint32_t table[N_PAGES], pages[MAX_SEQS][N_PAGES / MAX_SEQS];
    uint64_t bytes;
    float features[MAX_SEQS][MAX_PAST][DREF_WIDTH];
    uint64_t seed;
};

static int open_target(void **state)
{
    struct kg_error err = {0};
    uint64_t n = 0;

    (void)state;
    target = tiny_new(1);
    for (uint32_t i = 0; i < 2; i++) {
        struct tiny_tensor *t = tiny_find(target, i ? "lm_head.weight" : "embed_tokens.weight");
        for (uint64_t j = 0; j < 40 * 32; j++)
            tiny_set(target, t, j, (float)(2 * dspec_noise(99, n++) - 1));
    }
    tiny_write(target);
    if (kg_ckpt_open(target->dir, &target_ckpt, &err) < 0)
        fail_msg("%s", err.text);
    return 0;
}

static int close_target(void **state)
{
    (void)state;
    kg_ckpt_close(target_ckpt);
    tiny_free(target);
    return 0;
}

static void open_bench(struct bench *b, const struct dspec *s, uint64_t seed, enum kg_math math,
                       uint32_t page_tokens)
{
    const struct kg_kernels *k = kg_kernels_cpu(math, KG_ISA_AVX512_FP16);
    struct kg_error err = {0};
    struct kg_model_sizes sizes;

    memset(b, 0, sizeof(*b));
    b->seed = seed;
    b->files = dspec_write(s, target->dir, seed);
    if (kg_draft_ckpt_open(b->files->dir, &target_ckpt->config, target->dir, &b->ckpt, &err) < 0)
        fail_msg("%s", err.text);
    struct kg_model_args model = {.kernels = k,
                                  .ckpt = target_ckpt,
                                  .max_rows = 64,
                                  .max_seqs = 4,
                                  .draft = &b->ckpt->config};
    if (kg_model_open(&model, &b->model, &err) < 0)
        fail_msg("%s", err.text);
    struct kg_drafter_args args = {
        .kernels = k, .target = b->model, .ckpt = b->ckpt, .max_rows = 64, .max_seqs = MAX_SEQS};
    if (kg_drafter_open(&args, &b->drafter, &err) < 0)
        fail_msg("%s", err.text);
    kg_drafter_sizes(b->drafter, &b->sizes);
    kg_model_sizes(b->model, &sizes);
    b->units.layout.page_tokens = page_tokens;
    b->units.layout.stride[KG_PAGE] =
        (page_tokens * (sizes.token_bytes + b->sizes.token_bytes) + 63) / 64 * 64;
    b->units.table[KG_PAGE] = b->table;
    b->bytes = b->units.layout.stride[KG_PAGE] * N_PAGES;
    b->units.arena = aligned_alloc(64, b->bytes);
    assert_non_null(b->units.arena);
    memset(b->units.arena, 0xff, b->bytes); /* NaN: what nobody wrote must not be read */
    for (uint32_t i = 0; i < N_PAGES; i++) {
        b->table[i] = (i * 7 + (uint32_t)seed) % N_PAGES;
        b->pages[i % MAX_SEQS][i / MAX_SEQS] = i;
    }
    for (uint32_t q = 0; q < MAX_SEQS; q++)
        for (uint32_t t = 0; t < MAX_PAST; t++)
            for (uint32_t i = 0; i < 32; i++)
                b->features[q][t][i] =
                    (float)(3 * dspec_noise(seed + q, (uint64_t)t * 32 + i) - 1.5);
}

static void close_bench(struct bench *b)
{
    free(b->units.arena);
    kg_drafter_close(b->drafter);
    kg_model_close(b->model);
    kg_draft_ckpt_close(b->ckpt);
    tiny_free(b->files);
}

/* Injects tokens from .. to-1 of a sequence. */
static void inject(struct bench *b, uint32_t q, uint32_t from, uint32_t to)
{
    struct kg_forward_seq seq = {
        .row0 = 0, .n_rows = to - from, .past = from, .pages = b->pages[q]};
    uint32_t n = to - from;
    float packed[MAX_PAST][32];

    for (uint32_t t = from; t < to; t++)
        memcpy(packed[t - from], b->features[q][t], sizeof(packed[0]));
    kg_drafter_inject(b->drafter, &b->units, packed[0], &seq, &n, 1);
}

static struct kg_draft_seq draft_seq(struct bench *b, uint32_t q, uint32_t past, uint32_t n)
{
    return (struct kg_draft_seq){.past = past,
                                 .anchor = (uint32_t)(40 * dspec_noise(b->seed, 700 + q)),
                                 .n = n,
                                 .pages = b->pages[q],
                                 .tail = b->pages[q][past / b->units.layout.page_tokens]};
}

/* Token taken as draft k: any, for the arithmetic. */
static uint32_t taken(const struct bench *b, uint32_t q, uint32_t k)
{
    return (uint32_t)(40 * dspec_noise(b->seed, 800 + 31 * q + k));
}

/* Drafts of n sequences; their logits and confidences one after the other into out. */
static size_t run(struct bench *b, const struct kg_draft_seq *seqs, const uint32_t *who, uint32_t n,
                  float *out)
{
    size_t at = 0;

    kg_drafter_begin(b->drafter, &b->units, seqs, n);
    for (uint32_t k = 0; k < b->ckpt->config.block; k++) {
        uint32_t before[MAX_SEQS];
        for (uint32_t i = 0; i < n; i++)
            before[i] = k == 0 ? seqs[i].anchor : taken(b, who[i], k - 1);
        kg_drafter_next(b->drafter, k, before);
        for (uint32_t i = 0; i < n; i++) {
            if (seqs[i].n <= k)
                continue;
            memcpy(out + ((size_t)i * 16 + k) * 41, kg_drafter_logits(b->drafter, i, k),
                   40 * sizeof(float));
            out[((size_t)i * 16 + k) * 41 + 40] =
                kg_drafter_confidence(b->drafter, i, k, KG_DRAFT_COUPLED);
            at++;
        }
    }
    return at;
}

/* Largest difference of what the drafter computes from the reference with a mistake. */
static double distance(struct bench *b, uint32_t past, uint32_t mistake)
{
    const struct kg_draft_config *c = &b->ckpt->config;
    static float out[MAX_SEQS * 16 * 41], features[MAX_PAST][32];
    static struct dref ref;
    struct kg_draft_seq seq = draft_seq(b, 0, past, c->block);
    uint32_t drafted[KG_DRAFT_MAX_BLOCK], who = 0;
    double worst = 0;

    for (uint32_t t = 0; t < past; t++)
        memcpy(features[t], b->features[0][t], sizeof(features[0]));
    for (uint32_t k = 0; k < c->block; k++)
        drafted[k] = taken(b, 0, k);
    struct dcase ref_case = {.ckpt = b->ckpt,
                             .embed = &target_ckpt->embed,
                             .lm_head = &target_ckpt->lm_head,
                             .features = features[0],
                             .past = past,
                             .anchor = seq.anchor,
                             .drafted = drafted,
                             .mistake = mistake};
    dref_run(&ref_case, &ref);
    (void)run(b, &seq, &who, 1, out);
    for (uint32_t k = 0; k < c->block; k++) {
        double conf = 1;
        for (uint32_t v = 0; v < 40; v++)
            worst = fmax(worst, fabs(out[(size_t)k * 41 + v] - ref.logits[k][v]));
        if (c->confidence)
            conf = 1 / (1 + exp(-ref.confidence[k] / c->temperature[KG_DRAFT_COUPLED][k] -
                                c->bias[KG_DRAFT_COUPLED][k]));
        worst = fmax(worst, fabs(out[(size_t)k * 41 + 40] - conf));
        for (uint32_t i = 0; i < 32; i++)
            worst = fmax(worst, fabs(kg_drafter_hidden(b->drafter, 0, k)[i] - ref.hidden[k][i]));
    }
    return worst;
}

static void random_drafters_agree_with_the_formulas_written_twice(void **state)
{
    static struct bench b;
    uint32_t n = getenv("KEDGE_FULL") != NULL ? 400 : 40;
    double worst = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= n; seed++) {
        struct dspec s = dspec_random(seed);
        uint32_t page_tokens = 1 + (uint32_t)(20 * dspec_noise(seed, 50));
        uint32_t past = 1 + (uint32_t)((MAX_PAST - 1) * dspec_noise(seed, 51));
        open_bench(&b, &s, seed, KG_MATH_EXACT, page_tokens);
        inject(&b, 0, 0, past);
        double d = distance(&b, past, D_RIGHT);
        if (!(d < 1e-4))
            fail_msg("seed %u: off by %g", (unsigned)seed, d);
        worst = fmax(worst, d);
        close_bench(&b);
    }
    print_message("  %u random drafters, largest difference %.2g\n", n, worst);
}

static void every_mistake_of_a_port_is_seen(void **state)
{
    static struct bench b;
    struct dspec s = {.block = 6,
                      .layers = 2,
                      .heads = 2,
                      .q_lora = 12,
                      .kv_lora = 12,
                      .nope = 6,
                      .rope = 8,
                      .v = 6,
                      .inter = 24,
                      .rank = 8,
                      .causal = 1,
                      .confidence = 1,
                      .confidence_markov = 1,
                      .dtype = "F32"};

    (void)state;
    open_bench(&b, &s, 5, KG_MATH_EXACT, 8);
    inject(&b, 0, 0, 21);
    for (uint32_t m = D_RIGHT; m < D_MISTAKES; m++) {
        double d = distance(&b, 21, m);
        if (m == D_RIGHT ? !(d < 1e-4) : !(d > 0.01))
            fail_msg("mistake %u: off by %g", m, d);
    }
    close_bench(&b);
}

static void records_are_those_of_the_formulas_however_the_rows_came(void **state)
{
    static struct bench b, c;
    static float packed[3][10][32];
    static double want[MAX_PAST * DREF_WIDTH];
    struct dspec s = dspec_random(7);
    uint32_t width = s.kv_lora + s.rope, keep[3] = {7, 0, 4};

    (void)state;
    open_bench(&b, &s, 7, KG_MATH_EXACT, 5);
    open_bench(&c, &s, 7, KG_MATH_EXACT, 5);
    inject(&b, 0, 0, 13);
    inject(&b, 2, 0, 4);
    for (uint32_t t = 0; t < 6;
         t++) /* one by one, then rows of three sequences of which some stay */
        inject(&c, 0, t, t + 1);
    struct kg_forward_seq seqs[3];
    for (uint32_t q = 0; q < 3; q++) {
        seqs[q] = (struct kg_forward_seq){
            .row0 = 10 * q, .n_rows = 10, .past = q == 0 ? 6 : 0, .pages = c.pages[q]};
        for (uint32_t t = 0; t < 10; t++)
            memcpy(packed[q][t], c.features[q][seqs[q].past + t], sizeof(packed[0][0]));
    }
    kg_drafter_inject(c.drafter, &c.units, packed[0][0], seqs, keep, 3);
    assert_memory_equal(b.units.arena, c.units.arena, b.bytes);
    struct dcase ref = {.ckpt = b.ckpt, .features = NULL, .past = 13};
    static float features[MAX_PAST][32];
    for (uint32_t t = 0; t < 13; t++)
        memcpy(features[t], b.features[0][t], sizeof(features[0]));
    ref.features = features[0];
    dref_records(&ref, 0, want);
    for (uint32_t t = 0; t < 13; t++) {
        const float *have =
            (const float *)(const void *)(kg_model_page_block(b.model, &b.units, b.pages[0][t / 5],
                                                              target_ckpt->config.n_mla_layers)) +
            (size_t)(t % 5) * width;
        for (uint32_t i = 0; i < width; i++)
            assert_true(fabs(have[i] - want[t * width + i]) < 1e-4);
    }
    close_bench(&b);
    close_bench(&c);
}

static void bits_do_not_depend_on_the_batch_nor_on_the_length_wanted(void **state)
{
    static struct bench b;
    static float alone[MAX_SEQS][16 * 41], together[MAX_SEQS * 16 * 41];

    (void)state;
    for (uint64_t seed = 20; seed < 28; seed++) {
        struct dspec s = dspec_random(seed);
        struct kg_draft_seq seqs[MAX_SEQS];
        uint32_t past[MAX_SEQS] = {1, 17, 32, 45}, who[MAX_SEQS] = {0, 1, 2, 3};
        open_bench(&b, &s, seed, seed % 2 ? KG_MATH_FAST : KG_MATH_EXACT, 16);
        for (uint32_t q = 0; q < MAX_SEQS; q++) {
            inject(&b, q, 0, past[q]);
            seqs[q] = draft_seq(&b, q, past[q], s.block);
            (void)run(&b, &seqs[q], &who[q], 1, alone[q]);
            seqs[q].n = 1 + (q + (uint32_t)seed) % s.block;
        }
        (void)run(&b, seqs, who, MAX_SEQS, together);
        for (uint32_t q = 0; q < MAX_SEQS; q++)
            assert_memory_equal(alone[q], together + (size_t)q * 16 * 41,
                                (size_t)seqs[q].n * 41 * sizeof(float));
        close_bench(&b);
    }
}

static void a_block_in_pages_of_its_own_is_the_same_and_leaves_the_context_alone(void **state)
{
    static struct bench b;
    static float own[16 * 41], apart[16 * 41];
    struct dspec s = dspec_random(31);
    struct kg_draft_seq seq;
    uint32_t who = 0, list[N_PAGES / MAX_SEQS];
    uint8_t *before;

    (void)state;
    open_bench(&b, &s, 31, KG_MATH_EXACT, 8);
    inject(&b, 0, 0, 21);
    before = malloc(b.bytes);
    assert_non_null(before);
    memcpy(before, b.units.arena, b.bytes);
    seq = draft_seq(&b, 0, 21, s.block);
    memcpy(list, b.pages[0], sizeof(list));
    for (uint32_t i = 0; i < 3; i++)
        list[2 + i] = b.pages[3][i];
    seq.pages = list;
    (void)run(&b, &seq, &who, 1, apart);
    for (uint32_t i = 0; i < N_PAGES; i++) {
        uint64_t stride = b.units.layout.stride[KG_PAGE];
        if (i != b.table[b.pages[3][0]] && i != b.table[b.pages[3][1]])
            assert_memory_equal(before + i * stride, b.units.arena + i * stride, stride);
    }
    seq = draft_seq(&b, 0, 21, s.block);
    (void)run(&b, &seq, &who, 1, own);
    assert_memory_equal(own, apart, (size_t)s.block * 41 * sizeof(float));
    free(before);
    close_bench(&b);
}

static void a_drafter_with_a_matrix_that_is_not_finite_does_not_open(void **state)
{
    static struct bench b;
    struct dspec s = dspec_random(31);
    struct kg_drafter *again = NULL;
    struct kg_draft_ckpt *ckpt = NULL;
    struct kg_error err = {0};

    (void)state;
    open_bench(&b, &s, 31, KG_MATH_EXACT, 8);
    tiny_set(b.files, tiny_find(b.files, "mlp.down_proj.weight"), 9, NAN);
    tiny_write(b.files);
    assert_int_equal(
        kg_draft_ckpt_open(b.files->dir, &target_ckpt->config, target->dir, &ckpt, &err), KG_OK);
    struct kg_drafter_args args = {.kernels = kg_kernels_cpu(KG_MATH_EXACT, KG_ISA_AVX512_FP16),
                                   .target = b.model,
                                   .ckpt = ckpt,
                                   .max_rows = 64,
                                   .max_seqs = MAX_SEQS};
    assert_int_equal(kg_drafter_open(&args, &again, &err), KG_EINVAL);
    assert_null(again);
    assert_non_null(strstr(err.text, "mlp.down_proj.weight: value 9 is not finite"));
    kg_draft_ckpt_close(ckpt);
    close_bench(&b);
}

static void features_that_are_not_finite_stay_in_their_sequence(void **state)
{
    static struct bench b;
    static float clean[16 * 41], both[MAX_SEQS * 16 * 41];
    struct dspec s = dspec_random(44);
    struct kg_draft_seq seqs[2];
    uint32_t who[2] = {0, 1};

    (void)state;
    s.confidence = 1;
    open_bench(&b, &s, 44, KG_MATH_EXACT, 8);
    inject(&b, 0, 0, 20);
    b.features[1][3][5] = NAN;
    inject(&b, 1, 0, 20);
    seqs[0] = draft_seq(&b, 0, 20, s.block);
    seqs[1] = draft_seq(&b, 1, 20, s.block);
    (void)run(&b, &seqs[0], who, 1, clean);
    (void)run(&b, seqs, who, 2, both);
    assert_memory_equal(clean, both, (size_t)s.block * 41 * sizeof(float));
    assert_true(isnan(both[16 * 41]));
    assert_true(both[16 * 41 + 40] == 0.0f); /* survival of what is not finite */
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_drafters_agree_with_the_formulas_written_twice),
        cmocka_unit_test(every_mistake_of_a_port_is_seen),
        cmocka_unit_test(records_are_those_of_the_formulas_however_the_rows_came),
        cmocka_unit_test(bits_do_not_depend_on_the_batch_nor_on_the_length_wanted),
        cmocka_unit_test(a_block_in_pages_of_its_own_is_the_same_and_leaves_the_context_alone),
        cmocka_unit_test(a_drafter_with_a_matrix_that_is_not_finite_does_not_open),
        cmocka_unit_test(features_that_are_not_finite_stay_in_their_sequence),
    };

    return cmocka_run_group_tests(tests, open_target, close_target);
}
