/* Sampling on the device against core/model: the same tokens, flags and bits of log probabilities.
 */
#include "kit.h"

#include "kernels/cuda/sample.h"
#include "model/accept.h"

_Static_assert(sizeof(struct kg_cuda_logprob) == sizeof(struct kg_logprob), "one layout");
_Static_assert(sizeof(struct kg_cuda_accepted) == sizeof(struct kg_accepted), "one layout");
_Static_assert(KG_CUDA_NAN == KG_RES_NAN && KG_CUDA_STOP == KG_RES_STOP, "one meaning");
_Static_assert(KG_CUDA_STOP_IDS == KG_MAX_STOP_IDS && KG_CUDA_LOGPROBS == KG_MAX_LOGPROBS,
               "limits");

#define ROWS 5 /* most of a window */
#define WIDTH 33

/* One sequence on both sides. */
struct seq {
    struct kg_sampling s;
    struct kg_accept run;
    struct kg_cuda_window w;
    struct kg_token_counts counts;
    void *counts_mem;
    float *logits, *hidden;
    uint32_t drafts[ROWS], tokens[ROWS];
    struct kg_logprob logprobs[ROWS][1 + KG_MAX_LOGPROBS];
    uint32_t *echo; /* device; NULL: none */
    uint32_t given[ROWS];
};

static float logit(uint64_t *s, uint32_t kind)
{
    uint64_t z = rnd(s) % 16;

    if (kind == 1) /* ties */
        return (float)(z % 4) - (z == 5 ? 3.0f : 0.0f);
    if (kind == 2) /* masked by the model */
        return z < 8 ? -INFINITY : rnd_f(s) * 9;
    if (kind == 3) /* zeros of either sign */
        return z < 8 ? 0.0f : -0.0f;
    if (kind == 4) /* one far above */
        return rnd_f(s) + (rnd(s) % 64 == 0 ? 30.0f : 0.0f);
    if (kind == 5) /* nothing but -inf, often */
        return rnd(s) % 4096 == 0 ? 1.0f : -INFINITY;
    return (rnd_f(s) + rnd_f(s) + rnd_f(s)) * 6;
}

static struct kg_sampling random_sampling(uint64_t *s, uint32_t vocab)
{
    static const float temperatures[] = {0, 1, 0.7f, 1.3f, 0.05f, 100};
    struct kg_sampling p = {.temperature = temperatures[rnd(s) % 6], .seed = rnd(s)};

    if (rnd(s) % 3 == 0)
        p.top_k = 1 + (uint32_t)(rnd(s) % (rnd(s) % 2 ? 50 : vocab + 2));
    if (rnd(s) % 3 == 0)
        p.top_p = rnd(s) % 5 == 0   ? 1e-6f
                  : rnd(s) % 5 == 0 ? 1.0f
                                    : 0.5f + 0.499f * fabsf(rnd_f(s));
    if (rnd(s) % 4 == 0)
        p.min_p = rnd(s) % 4 == 0 ? 1.0f : 0.2f * fabsf(rnd_f(s));
    if (rnd(s) % 4 == 0)
        p.repetition_penalty = rnd(s) % 2 ? 1.2f : 1e-30f;
    if (rnd(s) % 4 == 0)
        p.frequency_penalty = rnd_f(s) * 2;
    if (rnd(s) % 4 == 0)
        p.presence_penalty = rnd_f(s) * 2;
    if (rnd(s) % 2 == 0)
        p.n_logprobs = (uint32_t)(rnd(s) % (KG_MAX_LOGPROBS + 1));
    if (rnd(s) % 2 == 0)
        p.n_stop_ids = 1 + (uint32_t)(rnd(s) % KG_MAX_STOP_IDS);
    if (rnd(s) % 3 == 0)
        p.min_tokens = (uint32_t)(rnd(s) % 8);
    for (uint32_t i = 0; i < p.n_stop_ids; i++)
        p.stop_ids[i] = rnd(s) % 2 ? i : (uint32_t)(rnd(s) % (vocab + 3));
    return p;
}

static struct kg_cuda_sampling on_device(const struct kg_sampling *p)
{
    struct kg_cuda_sampling d = {.temperature = p->temperature,
                                 .top_p = p->top_p,
                                 .min_p = p->min_p,
                                 .repetition_penalty = p->repetition_penalty,
                                 .frequency_penalty = p->frequency_penalty,
                                 .presence_penalty = p->presence_penalty,
                                 .top_k = p->top_k,
                                 .n_logprobs = p->n_logprobs,
                                 .min_tokens = p->min_tokens,
                                 .n_stop_ids = p->n_stop_ids,
                                 .seed = p->seed};

    memcpy(d.stop_ids, p->stop_ids, sizeof(d.stop_ids));
    return d;
}

/* Some tokens before the window, in both tables. */
static void fill_counts(struct rig *r, uint64_t *s, struct seq *q, uint32_t vocab)
{
    uint32_t tokens[40], n = (uint32_t)(rnd(s) % 41), half = n / 2;

    q->counts_mem = take(kg_token_counts_bytes(vocab));
    memset(q->counts_mem, 0, kg_token_counts_bytes(vocab));
    kg_token_counts_init(&q->counts, q->counts_mem, vocab);
    q->w.counts = dev_alloc(r, vocab * sizeof(uint32_t));
    kg_cuda_fill(r->cuda, q->w.counts, 0, vocab * sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (uint32_t)(rnd(s) % (rnd(s) % 2 ? vocab : vocab < 9 ? vocab : 9));
        assert_int_equal(kg_token_counts_add(&q->counts, tokens[i], i >= half), KG_OK);
    }
    uint32_t *d = dev_copy(r, tokens, sizeof(tokens));
    kg_cuda_sample_count(r->cuda, q->w.counts, vocab, d, half, 0);
    kg_cuda_sample_count(r->cuda, q->w.counts, vocab, d + half, n - half, 1);
    rig_sync(r);
    kg_cuda_free(r->cuda, d);
}

/* The host is asked what it picks, so that drafts are accepted often. */
static void propose(uint64_t *s, struct seq *q, uint32_t vocab)
{
    void *scratch = take(kg_accept_scratch_bytes(vocab));

    for (uint32_t j = 0; j < q->run.n_draft; j++) {
        struct kg_sample_row row = {
            q->logits + (size_t)j * vocab, vocab, q->run.position + j, j, &q->s, q->run.counts};
        struct kg_sample_pick pick;

        kg_sample(&row, scratch, &pick, NULL);
        q->drafts[j] = rnd(s) % 6 == 0 ? (uint32_t)(rnd(s) % vocab) : pick.token;
    }
    free(scratch);
}

static void seq_make(struct rig *r, uint64_t *s, struct seq *q, uint32_t vocab, uint32_t most)
{
    uint32_t n = 1 + (uint32_t)(rnd(s) % most), kind = (uint32_t)(rnd(s) % 8);

    memset(q, 0, sizeof(*q));
    q->s = random_sampling(s, vocab);
    q->logits = take_f((size_t)n * vocab);
    for (size_t i = 0; i < (size_t)n * vocab; i++)
        q->logits[i] = logit(s, kind);
    if (rnd(s) % 8 == 0)
        q->logits[rnd(s) % ((size_t)n * vocab)] = rnd(s) % 2 ? NAN : INFINITY;
    q->hidden = random_f(s, n * WIDTH, 1);
    if (rnd(s) % 16 == 0)
        q->hidden[rnd(s) % (n * WIDTH)] = rnd(s) % 2 ? -NAN : -INFINITY;
    q->w = (struct kg_cuda_window){.width = WIDTH, .sampling = on_device(&q->s)};
    fill_counts(r, s, q, vocab);
    q->run = (struct kg_accept){.logits = q->logits,
                                .hidden = q->hidden,
                                .vocab = vocab,
                                .width = WIDTH,
                                .position = 5 + (uint32_t)(rnd(s) % 9),
                                .output_start = (uint32_t)(rnd(s) % 9),
                                .n_draft = n - 1,
                                .left = 1 + (uint32_t)(rnd(s) % (n + 1)),
                                .force = KG_NONE,
                                .drafts = q->drafts,
                                .sampling = &q->s,
                                .counts = &q->counts,
                                .tokens = q->tokens};
    if (rnd(s) % 6 == 0)
        q->run.force = (uint32_t)(rnd(s) % (n + 1));
    propose(s, q, vocab);
    if (rnd(s) % 5 == 0) {
        q->run.counts = NULL;
        kg_cuda_free(r->cuda, q->w.counts);
        q->w.counts = NULL;
    }
    q->w.logits = dev_copy(r, q->logits, (size_t)n * vocab * sizeof(float));
    q->w.hidden = dev_copy(r, q->hidden, n * WIDTH * sizeof(float));
    q->w.drafts = dev_copy(r, q->drafts, sizeof(q->drafts));
    q->w.tokens = dev_alloc(r, sizeof(q->tokens));
    q->w.accepted = dev_alloc(r, sizeof(struct kg_accepted));
    q->w.position = q->run.position;
    q->w.output_start = q->run.output_start;
    q->w.n_draft = q->run.n_draft;
    q->w.left = q->run.left;
    q->w.force = q->run.force;
    if (rnd(s) % 2 == 0) {
        q->run.logprobs = q->logprobs[0];
        q->w.logprobs = dev_alloc(r, sizeof(q->logprobs));
    }
    if (rnd(s) % 8 == 0) { /* known tokens instead of picks */
        for (uint32_t j = 0; j < n; j++)
            q->given[j] = rnd(s) % 5 == 0 ? KG_NONE : (uint32_t)(rnd(s) % vocab);
        q->echo = dev_copy(r, q->given, sizeof(q->given));
        q->w.echo = q->echo;
        kg_cuda_free(r->cuda, (void *)(uintptr_t)q->w.hidden);
        q->w.hidden = NULL;
        if (q->w.logprobs == NULL) {
            q->run.logprobs = q->logprobs[0];
            q->w.logprobs = dev_alloc(r, sizeof(q->logprobs));
        }
    }
}

static void seq_drop(struct rig *r, struct seq *q)
{
    free(q->logits);
    free(q->hidden);
    free(q->counts_mem);
    kg_cuda_free(r->cuda, (void *)(uintptr_t)q->w.logits);
    kg_cuda_free(r->cuda, (void *)(uintptr_t)q->w.hidden);
    kg_cuda_free(r->cuda, (void *)(uintptr_t)q->w.drafts);
    kg_cuda_free(r->cuda, q->w.tokens);
    kg_cuda_free(r->cuda, q->w.accepted);
    kg_cuda_free(r->cuda, q->w.logprobs);
    kg_cuda_free(r->cuda, q->w.counts);
    kg_cuda_free(r->cuda, q->echo);
}

/* Log probabilities of the first n rows. */
static void check_logprobs(struct rig *r, const struct seq *q, uint32_t n)
{
    size_t each = 1 + q->s.n_logprobs;
    struct kg_logprob *got = host_copy(r, q->w.logprobs, sizeof(q->logprobs));

    for (size_t i = 0; i < n * each; i++) {
        const struct kg_logprob *want = &q->logprobs[0][0] + i;
        if (memcmp(&got[i], want, sizeof(*want)) != 0)
            fail_msg("log probability %zu: %u %.9g, on the host %u %.9g", i, got[i].id,
                     (double)got[i].logprob, want->id, (double)want->logprob);
    }
    free(got);
}

static void check_echo(struct rig *r, struct seq *q)
{
    struct kg_accepted *got = host_copy(r, q->w.accepted, sizeof(*got));
    uint32_t flags = 0, n = q->run.n_draft + 1, vocab = q->run.vocab;

    for (uint32_t j = 0; j < n; j++)
        flags |=
            kg_sample_logprobs(q->logits + (size_t)j * vocab, vocab, q->given[j], q->s.n_logprobs,
                               &q->logprobs[0][0] + (size_t)j * (1 + q->s.n_logprobs));
    assert_int_equal(got->flags, flags);
    assert_int_equal(got->n_tokens, 0);
    check_logprobs(r, q, n);
    free(got);
}

static void check_counts(struct rig *r, const struct seq *q)
{
    uint32_t *got = host_copy(r, q->w.counts, q->run.vocab * sizeof(*got));

    for (uint32_t t = 0; t < q->run.vocab; t++) {
        const struct kg_token_count *e = kg_token_counts_get(&q->counts, t);
        assert_int_equal(got[t], e == NULL ? 0 : e->n_output | (uint32_t)e->in_prompt << 31);
    }
    free(got);
}

static void check(struct rig *r, struct seq *q)
{
    void *scratch = take(kg_accept_scratch_bytes(q->run.vocab));
    struct kg_accepted want, *got;
    uint32_t *tokens;

    if (q->echo != NULL) {
        check_echo(r, q);
        free(scratch);
        return;
    }
    got = host_copy(r, q->w.accepted, sizeof(*got));
    tokens = host_copy(r, q->w.tokens, sizeof(q->tokens));
    kg_accept_run(&q->run, scratch, &want);
    if (memcmp(&want, got, sizeof(want)) != 0 ||
        (!(want.flags & KG_RES_NAN) && memcmp(tokens, q->tokens, want.n_tokens * 4) != 0))
        fail_msg("vocab %u, %u drafts, temperature %g top_k %u top_p %g min_p %g: %u tokens, %u "
                 "accepted, flags %u, first %u; host %u, %u, %u, %u",
                 q->run.vocab, q->run.n_draft, (double)q->s.temperature, q->s.top_k,
                 (double)q->s.top_p, (double)q->s.min_p, got->n_tokens, got->n_accepted, got->flags,
                 tokens[0], want.n_tokens, want.n_accepted, want.flags, q->tokens[0]);
    if (!(want.flags & KG_RES_NAN)) {
        if (q->w.logprobs != NULL)
            check_logprobs(r, q, want.n_tokens);
        if (q->w.counts != NULL)
            check_counts(r, q);
    }
    free(got);
    free(tokens);
    free(scratch);
}

/* n batches of up to `seqs` windows; scratch for some of the rows or all. */
static void batches(uint32_t vocab, uint32_t n, uint32_t seqs, uint32_t most, uint64_t seed)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    struct seq *q = take(seqs * sizeof(*q));
    struct kg_cuda_window *w = take(seqs * sizeof(*w));

    for (uint32_t i = 0; i < n; i++) {
        uint64_t s = seed + i, rows = 0;
        uint32_t m = 1 + (uint32_t)(rnd(&s) % seqs);
        struct kg_error err;

        for (uint32_t k = 0; k < m; k++) {
            seq_make(&r, &s, &q[k], vocab, most);
            w[k] = q[k].w;
            rows += 1 + q[k].run.n_draft;
        }
        uint64_t bytes = kg_cuda_sample_scratch_bytes((uint32_t)rows, vocab);
        if (i % 2 == 1)
            bytes = kg_cuda_sample_scratch_bytes((uint32_t)(1 + rows / 3), vocab) + 256 + rows * 32;
        void *scratch = dev_alloc(&r, bytes);
        assert_int_equal(kg_cuda_sample(r.cuda, w, m, vocab, 0, scratch, bytes, &err), KG_OK);
        rig_sync(&r);
        for (uint32_t k = 0; k < m; k++) {
            check(&r, &q[k]);
            seq_drop(&r, &q[k]);
        }
        kg_cuda_free(r.cuda, scratch);
    }
    free(q);
    free(w);
    rig_close(&r);
}

static uint32_t times(uint32_t n)
{
    return getenv("KEDGE_FULL") != NULL ? n * 20 : n;
}

static void a_vocabulary_of_one_and_of_seventeen(void **state)
{
    (void)state;
    batches(1, times(15), 3, ROWS, 1000);
    batches(17, times(60), 3, ROWS, 2000);
}

static void rows_of_one_chunk_and_a_little_more(void **state)
{
    (void)state;
    batches(4096, times(6), 2, 3, 3000);
    batches(4099, times(6), 2, 3, 4000);
}

static void rows_of_a_large_vocabulary(void **state)
{
    (void)state;
    batches(163840, getenv("KEDGE_FULL") != NULL ? 40 : 2, 1, 1, 5000);
}

static void what_the_device_does_not_do_is_refused(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    uint64_t s = 7;
    struct seq q;
    struct kg_error err;

    (void)state;
    seq_make(&r, &s, &q, 17, 1);
    uint64_t bytes = kg_cuda_sample_scratch_bytes(1, 17);
    void *scratch = dev_alloc(&r, bytes);
    assert_int_equal(kg_cuda_sample(r.cuda, &q.w, 1, 17, KG_ACCEPT_REJECTION, scratch, bytes, &err),
                     KG_EINVAL);
    assert_non_null(strstr(err.text, "coupling only"));
    assert_int_equal(kg_cuda_sample(r.cuda, &q.w, 1, 17, 0, scratch, bytes - 256, &err), KG_EINVAL);
    q.w.sampling.n_stop_ids = 17;
    assert_int_equal(kg_cuda_sample(r.cuda, &q.w, 1, 17, 0, scratch, bytes, &err), KG_EINVAL);
    assert_int_equal(kg_cuda_sample(r.cuda, &q.w, 0, 17, 0, scratch, 0, &err), KG_OK);
    kg_cuda_free(r.cuda, scratch);
    seq_drop(&r, &q);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_vocabulary_of_one_and_of_seventeen),
        cmocka_unit_test(rows_of_one_chunk_and_a_little_more),
        cmocka_unit_test(rows_of_a_large_vocabulary),
        cmocka_unit_test(what_the_device_does_not_do_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
