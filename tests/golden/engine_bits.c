/*
 * The master test through the engine: the same prompts under every pool, with every way of
 * chunking, relocation each step, preemption at random points and checkpoints at page boundaries,
 * must give the logits bits, the tokens and the checkpointed states of a request that runs alone.
 */
#include "config.h"
#include "engine/test.h"
#include "exec_rig.h"
#include "stack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FULL_PROMPTS 40

struct seen {
    struct xreq reqs[FULL_PROMPTS];             /* bits and tokens as they come */
    uint64_t states[FULL_PROMPTS][XRIG_TOKENS]; /* hash of the state at a checkpoint */
    uint32_t n_done, n_ordered, n_preempted;
    uint64_t n_moves;
    uint32_t chunk; /* most rows of a prefill; 0: as planned */
    uint8_t *state_bytes;
    uint64_t n_state_bytes;
    struct kg_stack *stack;
};

static struct seen truth, work;

static uint32_t n_prompts(void)
{
    return xrig_is_full() ? FULL_PROMPTS : xrig_world() > 1 ? 8 : 10;
}

static uint32_t limit_chunk(void *ctx, uint64_t id, uint32_t past, uint32_t n)
{
    const struct seen *s = ctx;

    (void)id;
    (void)past;
    return s->chunk != 0 && n > s->chunk ? s->chunk : n;
}

static void see_result(void *ctx, const struct kg_seq *seq, const struct kg_seq_result *res)
{
    struct seen *s = ctx;
    struct xreq *r = &s->reqs[seq->id - 1];
    uint32_t vocab = s->stack->desc.vocab;

    assert_non_null(res->logits);
    for (uint32_t j = 0; j < seq->n_rows; j++) {
        uint64_t h = xrig_hash(res->logits + (size_t)j * vocab, vocab);
        if (r->bits[seq->past + j] != 0)
            assert_int_equal(r->bits[seq->past + j], h); /* recomputed after a preemption */
        r->bits[seq->past + j] = h;
    }
}

static void see_order(void *ctx, uint64_t id, uint32_t position, uint32_t unit)
{
    struct seen *s = ctx;
    const struct kg_engine_parts *p = &s->stack->parts;
    uint64_t h;

    memset(s->state_bytes, 1, s->n_state_bytes);
    /* units of a group cannot be read: each rank has its part */
    assert_int_equal(p->exec_ops->read(p->exec, KG_STATE, unit, s->state_bytes, s->n_state_bytes),
                     xrig_world() > 1 ? KG_EINVAL : KG_OK);
    h = xrig_hash((const float *)(const void *)s->state_bytes, (uint32_t)(s->n_state_bytes / 4));
    if (s->states[id - 1][position] != 0)
        assert_int_equal(s->states[id - 1][position], h);
    s->states[id - 1][position] = h;
    s->n_ordered++;
}

static void take_event(struct seen *s, const struct kg_event *e)
{
    struct xreq *r = &s->reqs[e->id - 1];

    if (e->type == KG_EVENT_TOKENS) {
        assert_true(r->n + e->n <= XRIG_TOKENS);
        memcpy(r->tokens + r->n, e->tokens, e->n * sizeof(uint32_t));
        r->n += e->n;
    }
    if (e->type != KG_EVENT_DONE)
        return;
    if (e->finish != KG_FINISH_LENGTH)
        fail_msg("request %u ended with %u: %s", (uint32_t)e->id, e->finish, e->text);
    s->n_done++;
    s->n_preempted += e->n_preempted;
}

static void submit(struct kg_engine *engine, const struct xreq *r, uint64_t id)
{
    struct kg_request q = {.id = id,
                           .tokens = r->tokens,
                           .n_prompt = r->n_prompt,
                           .max_tokens = r->n_max - r->n_prompt,
                           .sampling = r->sampling};
    struct kg_error err = {0};

    if (kg_engine_submit(engine, &q, &err) < 0)
        fail_msg("submit: %s", err.text);
}

/* Runs all requests, `batch` of them at a time in the engine. */
static void drive(struct kg_engine *engine, struct seen *s, uint32_t batch)
{
    struct kg_error err = {0};
    struct kg_event e;
    uint32_t submitted = 0;

    for (uint32_t steps = 0; s->n_done < n_prompts(); steps++) {
        assert_true(steps < 100000);
        for (; submitted < n_prompts() && submitted - s->n_done < batch; submitted++)
            submit(engine, &s->reqs[submitted], submitted + 1);
        if (kg_engine_step(engine, &err) < 0)
            fail_msg("step: %s", err.text);
        while (kg_engine_next(engine, &e) == KG_OK)
            take_event(s, &e);
    }
}

struct way {
    const char *name;
    const char *sets; /* "section.key=value ..." */
    uint32_t batch, chunk, relocate, preempt;
};

static struct kg_config *configure(const char *sets)
{
    struct kg_config *config = NULL;
    char text[2048], *rest = text, *word;

    assert_int_equal(kg_config_create(&config), KG_OK);
    (void)snprintf(
        text, sizeof(text),
        "model.path=%s/models/k3-tiny plugins.dir=%s plugins.exec=cpu "
        "plugins.sched=fcfs plugins.spec=off engine.max_seqs=32 engine.step_tokens=256 "
        "engine.prefill_chunk=256 memory.bytes=48m exec-cpu.threads=2 log.level=warn %s %s",
        TEST_ROOT, PLUGIN_DIR, xrig_sets(), sets);
    while ((word = strsep(&rest, " ")) != NULL) {
        if (word[0] != '\0')
            (void)kg_config_set(config, word);
    }
    if (kg_config_finish(config) != KG_OK)
        fail_msg("%s", kg_config_errors(config));
    return config;
}

static void go(const struct way *w, const char *math, float temperature, struct seen *s)
{
    char sets[512];
    struct kg_error err = {0};
    struct kg_config *config;
    struct kg_engine *engine = NULL;
    struct kg_engine_conf conf;
    struct kg_engine_stats stats;
    struct kg_engine_test test = {.ctx = s,
                                  .relocate = w->relocate,
                                  .preempt_one_in = w->preempt,
                                  .seed = 11,
                                  .force_orders = 1,
                                  .logits = 1,
                                  .chunk = limit_chunk,
                                  .on_order = see_order,
                                  .on_result = see_result};

    memset(s, 0, sizeof(*s));
    xreq_prompts(s->reqs, n_prompts(), temperature);
    s->chunk = w->chunk;
    (void)snprintf(sets, sizeof(sets), "exec-cpu.math=%s %s", math, w->sets);
    config = configure(sets);
    if (kg_stack_open(config, &s->stack, &err) < 0)
        fail_msg("%s: %s", w->name, err.text);
    s->n_state_bytes = s->stack->desc.n_state_parts * s->stack->desc.state_part_bytes;
    s->state_bytes = malloc(s->n_state_bytes);
    assert_non_null(s->state_bytes);
    conf = kg_config_conf(config)->engine;
    conf.test = &test;
    conf.debug = 1;
    if (kg_engine_create(&s->stack->parts, &conf, &engine, &err) < 0)
        fail_msg("%s: %s", w->name, err.text);
    drive(engine, s, w->batch);
    kg_engine_stats(engine, &stats);
    s->n_moves = stats.moves;
    kg_engine_destroy(engine);
    kg_stack_close(s->stack);
    kg_config_destroy(config);
    free(s->state_bytes);
    print_message("  %s: %llu steps, %llu moves, %u checkpoints, %u preemptions\n", w->name,
                  (unsigned long long)stats.steps, (unsigned long long)s->n_moves, s->n_ordered,
                  s->n_preempted);
}

static void expect_equal(const struct way *w)
{
    uint32_t both = 0;

    for (uint32_t i = 0; i < n_prompts(); i++) {
        const struct xreq *a = &work.reqs[i], *b = &truth.reqs[i];
        assert_int_equal(a->n, b->n);
        for (uint32_t j = 0; j + 1 < b->n; j++) {
            if (b->bits[j] == 0)
                fail_msg("the truth never saw the logits of request %u at position %u", i, j);
            if (a->bits[j] != b->bits[j])
                fail_msg("%s: request %u: logits at position %u differ", w->name, i, j);
        }
        if (memcmp(a->tokens, b->tokens, b->n * sizeof(uint32_t)) != 0)
            fail_msg("%s: request %u: tokens differ", w->name, i);
        for (uint32_t j = 0; j < XRIG_TOKENS; j++) {
            if (work.states[i][j] == 0 || truth.states[i][j] == 0)
                continue;
            both++;
            if (work.states[i][j] != truth.states[i][j])
                fail_msg("%s: request %u: state at position %u differs", w->name, i, j);
        }
    }
    /* Pages of split uniform are inflated past these prompts: no boundary, no checkpoint. */
    assert_true(both > 0 || strstr(w->sets, "uniform") != NULL);
    assert_true(w->preempt == 0 || work.n_preempted > 0);
    assert_true(w->relocate == 0 || work.n_moves > 0 || strstr(w->sets, "unified") == NULL);
}

static const struct way alone = {"alone", "plugins.pool=unified memory.page_tokens=8", 1, 0, 0, 0};

/* A request that needs n steps outlives preemption one in n steps with luck only: the longer its
 * run, the rarer. */
static const struct way ways[] = {
    {"unified, relocated each step", "plugins.pool=unified memory.page_tokens=16", 32, 64, 2, 0},
    {"unified, one row a step, preempted", "plugins.pool=unified memory.page_tokens=8", 32, 1, 1,
     60},
    {"split by ratio, chunks of 17, preempted",
     "plugins.pool=split pool-split.style=ratio memory.page_tokens=8", 32, 17, 1, 6},
    {"split uniform, whole, preempted",
     "plugins.pool=split pool-split.style=uniform memory.page_tokens=8", 9, 0, 1, 3},
};

static void check_ways(const char *math, float temperature)
{
    go(&alone, math, temperature, &truth);
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        go(&ways[i], math, temperature, &work);
        expect_equal(&ways[i]);
    }
}

/* V10, V43. */
static void exact_sampled_bits_do_not_depend_on_pool_chunk_or_preemption(void **state)
{
    (void)state;
    check_ways("exact", 0.8f);
}

static void fast_greedy_bits_do_not_depend_on_pool_chunk_or_preemption(void **state)
{
    (void)state;
    check_ways("fast", 0.0f);
}

static void exact_greedy_and_fast_sampled_bits_too(void **state)
{
    (void)state;
    if (!xrig_is_full())
        return;
    check_ways("exact", 0.0f);
    check_ways("fast", 0.8f);
}

/* usage: engine_bits [RANKS [EP]] */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_sampled_bits_do_not_depend_on_pool_chunk_or_preemption),
        cmocka_unit_test(fast_greedy_bits_do_not_depend_on_pool_chunk_or_preemption),
        cmocka_unit_test(exact_greedy_and_fast_sampled_bits_too),
    };

    xrig_set_ranks(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
