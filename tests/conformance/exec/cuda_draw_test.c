/*
 * Who draws the tokens of exec-cuda: the device by itself, or the host for it. Requests of random
 * settings give the tokens, log probabilities and echoes of exec-cpu to the bit, and under the
 * emulator, of which the plugin is then a part, what comes to the host is counted.
 * cuda_draw_test MODEL.
 */
#include "xc.h"

#include <stdlib.h>
#include <string.h>

#ifndef XC_ON_DEVICE
#include "tests/emu/emu.h"

const struct kg_plugin *kg_plugin_entry(void);
#endif
#define N_SEQS 3
#define SCRIPT 14 /* tokens a request is known to draw */

/* One request on both sides. */
struct request {
    struct xseq s[2]; /* the device, the host */
    uint32_t script[SCRIPT];
    uint32_t n_script, over;
};

struct pair {
    struct xc x[2];
    struct request r[N_SEQS];
    uint64_t random, requests;
};

static uint32_t below(struct pair *p, uint32_t n)
{
    p->random = p->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(p->random >> 33) % n;
}

static void open_device(struct xc *x, const char *options)
{
#ifdef XC_ON_DEVICE
    xc_plugin = NULL;
#else
    xc_plugin = kg_plugin_entry();
#endif
    xc_name = "cuda";
    xc_options = options;
    xc_open(x);
}

static void open_host(struct xc *x)
{
    xc_plugin = NULL;
    xc_name = "cpu";
    xc_options = "math=exact threads=1";
    xc_open(x);
}

static struct kg_sampling random_sampling(struct pair *p)
{
    static const float temperatures[] = {0, 1, 0.7f, 1.5f};
    struct kg_sampling s = {.temperature = temperatures[below(p, 4)], .seed = below(p, 1000)};

    s.top_k = below(p, 3) == 0 ? 1 + below(p, 60) : 0;
    s.top_p = below(p, 3) == 0 ? 0.8f : 0;
    s.min_p = below(p, 4) == 0 ? 0.05f : 0;
    if (below(p, 2) == 0) {
        s.repetition_penalty = 1.3f;
        s.frequency_penalty = 0.5f * (float)below(p, 3);
        s.presence_penalty = -0.5f;
    }
    s.n_logprobs = below(p, 2) == 0 ? below(p, 6) : 0;
    s.want_logprob = below(p, 3) == 0;
    s.accept = below(p, 3);
    if (below(p, 3) == 0)
        s.min_tokens = 1 + below(p, 6);
    return s;
}

/* What plain decoding draws, so that drafts are good now and then, and a stop id is met. */
static void write_script(struct pair *p, struct request *r)
{
    struct xc *x = &p->x[1];
    struct xseq plain;

    xseq_init(x, &plain, N_SEQS, r->s[1].n_prompt, p->requests);
    plain.sampling = r->s[1].sampling;
    xc_generate(x, &plain, 64, SCRIPT);
    memcpy(r->script, plain.tokens + plain.n_prompt, sizeof(r->script));
    xseq_end(x, &plain);
}

static void begin(struct pair *p, uint32_t i)
{
    struct request *r = &p->r[i];
    uint32_t n_prompt = 1 + below(p, 20);

    p->requests++;
    r->over = 0;
    for (uint32_t side = 0; side < 2; side++)
        xseq_init(&p->x[side], &r->s[side], i, n_prompt, p->requests);
    r->s[0].sampling = r->s[1].sampling = random_sampling(p);
    write_script(p, r);
    if (below(p, 2) == 0)
        for (uint32_t side = 0; side < 2; side++) {
            r->s[side].sampling.n_stop_ids = 2;
            r->s[side].sampling.stop_ids[0] = r->script[SCRIPT / 2];
            r->s[side].sampling.stop_ids[1] = 7;
        }
}

/* What the next step of request i is: on both sides the same. */
static void choose(struct pair *p, uint32_t i, uint32_t drafts[XC_DRAFT])
{
    struct request *r = &p->r[i];
    const struct xseq *a = &r->s[0];
    uint32_t known = a->n - a->past, out = a->n - a->n_prompt, rows = known, n_draft = 0;
    uint32_t force = KG_NONE, flags = 0, left = 1 + below(p, XC_DRAFT + 2);

    if (known > 1) { /* a prompt, in chunks */
        rows = 1 + below(p, known);
    } else if (below(p, 2) == 0) {
        n_draft = 1 + below(p, XC_DRAFT);
        rows = 1 + n_draft;
        force = below(p, 4) == 0 ? below(p, n_draft + 1) : KG_NONE;
    }
    flags |= below(p, 3) == 0 ? KG_SEQ_ECHO : 0;
    flags |= below(p, 4) == 0 ? KG_SEQ_LOGITS : 0;
    flags |= below(p, 20) == 0 ? KG_SEQ_POISON : 0;
    for (uint32_t k = 0; k < n_draft; k++)
        drafts[k] = out + k < SCRIPT && below(p, 5) > 0 ? r->script[out + k] : below(p, 4096);
    for (uint32_t side = 0; side < 2; side++) {
        struct xseq *s = &r->s[side];
        s->rows = rows;
        s->n_draft = n_draft;
        s->force = force;
        s->flags = flags;
        s->left = left;
        s->drafts = drafts;
    }
}

/* Both sides report the same. */
static void compare(struct pair *p, uint32_t i, uint32_t rows)
{
    const struct xseq *a = &p->r[i].s[0], *b = &p->r[i].s[1];
    const struct kg_seq_result *m = &a->res, *n = &b->res;
    size_t entry = (1 + b->sampling.n_logprobs) * sizeof(*n->logprobs);

    assert_int_equal(m->flags, n->flags);
    assert_int_equal(m->n_tokens, n->n_tokens);
    assert_int_equal(m->n_accepted, n->n_accepted);
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->past, b->past);
    assert_memory_equal(a->tokens, b->tokens, a->n * sizeof(uint32_t));
    assert_int_equal(m->logprobs == NULL, n->logprobs == NULL);
    assert_int_equal(m->echo == NULL, n->echo == NULL);
    assert_int_equal(m->logits == NULL, n->logits == NULL);
    if (n->logprobs != NULL)
        assert_memory_equal(m->logprobs, n->logprobs, n->n_tokens * entry);
    if (n->echo != NULL)
        assert_memory_equal(m->echo, n->echo, rows * entry);
    if (n->logits != NULL)
        assert_memory_equal(m->logits, n->logits, rows * p->x[0].desc.vocab * sizeof(float));
}

static void end(struct pair *p, uint32_t i)
{
    for (uint32_t side = 0; side < 2; side++)
        xseq_end(&p->x[side], &p->r[i].s[side]);
    begin(p, i);
}

static void step(struct pair *p)
{
    uint32_t drafts[N_SEQS][XC_DRAFT], rows[N_SEQS];
    struct kg_error err = {0};

    for (uint32_t i = 0; i < N_SEQS; i++) {
        choose(p, i, drafts[i]);
        rows[i] = p->r[i].s[0].rows;
    }
    for (uint32_t side = 0; side < 2; side++) {
        struct xseq *all[N_SEQS] = {&p->r[0].s[side], &p->r[1].s[side], &p->r[2].s[side]};
        if (xc_run(&p->x[side], all, N_SEQS, &err) != KG_OK)
            fail_msg("%s: %s", side == 0 ? "device" : "host", err.text);
    }
    for (uint32_t i = 0; i < N_SEQS; i++)
        compare(p, i, rows[i]);
    for (uint32_t i = 0; i < N_SEQS; i++) { /* results live until the next submit */
        const struct xseq *s = &p->r[i].s[0];
        if (s->res.flags != 0 || s->n - s->n_prompt > 20)
            end(p, i);
    }
}

static void requests_draw_the_bits_of_the_host(const char *options, uint32_t steps, uint64_t seed)
{
    struct pair *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    p->random = seed;
    open_device(&p->x[0], options);
    open_host(&p->x[1]);
    for (uint32_t i = 0; i < N_SEQS; i++)
        begin(p, i);
    for (uint32_t t = 0; t < steps; t++)
        step(p);
    xc_close(&p->x[0]);
    xc_close(&p->x[1]);
    free(p);
}

static void the_device_draws_the_bits_of_the_host(void **state)
{
    const char *full = getenv("KEDGE_FULL");

    (void)state;
    requests_draw_the_bits_of_the_host("math=exact threads=1",
                                       full != NULL && full[0] == '1' ? 400 : 40, 3);
}

static void draws_on_the_host_are_the_same(void **state)
{
    (void)state;
    requests_draw_the_bits_of_the_host("math=exact threads=1 draws=host", 12, 5);
}

#ifndef XC_ON_DEVICE
/* Bytes that one step of a sequence brings to the host. */
static unsigned long long brought(struct xc *x, struct xseq *s, uint32_t rows)
{
    unsigned long long before = kg_emu_brought();

    xc_one(x, s, rows);
    return kg_emu_brought() - before;
}

static void logits_stay_where_they_are_unless_somebody_reads_them(void **state)
{
    static const uint32_t drafts[2] = {1, 2};
    struct xseq s;
    struct xc x;

    (void)state;
    open_device(&x, "math=exact threads=1");
    uint64_t row = x.desc.vocab * sizeof(float);
    for (uint32_t accept = 0; accept < 3; accept++) {
        xseq_init(&x, &s, 0, 9, 3);
        s.sampling = (struct kg_sampling){
            .temperature = 0.8f, .repetition_penalty = accept == 0 ? 1.2f : 0, .accept = accept};
        assert_true(brought(&x, &s, 5) < row); /* a hidden vector, to see that it is finite */
        s.flags = KG_SEQ_ECHO;
        assert_true(brought(&x, &s, 3) < row);
        assert_true(brought(&x, &s, 1) <= 64);
        for (uint32_t i = 0; i < 3; i++) /* recorded, and launched again */
            assert_true(brought(&x, &s, 1) <= 64);
        s.flags = KG_SEQ_LOGITS;
        assert_in_range(brought(&x, &s, 1), row, row + 64);
        s.n_draft = 2;
        s.drafts = drafts;
        if (accept == KG_ACCEPT_COUPLED)
            assert_true(brought(&x, &s, 3) <= 64);
        else
            assert_true(brought(&x, &s, 3) >= 3 * row);
        s.sampling.n_logprobs = 0;
        xseq_end(&x, &s);
    }
    xc_close(&x);
}
#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_draws_the_bits_of_the_host),
        cmocka_unit_test(draws_on_the_host_are_the_same),
#ifndef XC_ON_DEVICE
        cmocka_unit_test(logits_stay_where_they_are_unless_somebody_reads_them),
#endif
    };

#ifdef XC_ON_DEVICE /* a build for machines with a GPU takes no arguments */
    static char *device[] = {"gpu_draw_test", XC_ON_DEVICE};

    if (argc < 2) {
        argc = 2;
        argv = device;
    }
#endif
    if (argc < 2)
        return 2;
    xc_model = argv[1];
    xc_name = "cuda";
    xc_options = "threads=1";
#ifdef XC_ON_DEVICE
    if (xc_is_absent())
        return 77;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
