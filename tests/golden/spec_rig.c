#include "spec_rig.h"

#include "base/rng.h"
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK SPEC_BLOCK
#define SHARED 30 /* tokens */

/* --- the drafter ---------------------------------------------------------------------------- */

struct kg_spec {
    const struct spec_drafts *how;
    const struct spec_run *truth;
    struct kg_rng rng;
    uint32_t cap, vocab, turn;
    uint32_t natural[SPEC_REQS + 1]; /* by id: right drafts at the head of the last window */
    uint32_t n_steps, n_calls;
    struct spec_run *run;
    /* the sequences about to draft, by slot */
    uint64_t ids[64];
    uint32_t context[64];
};

static uint32_t below(struct kg_spec *s, uint32_t n)
{
    return (uint32_t)kg_rng_below(&s->rng, n);
}

static uint32_t oracle_block(const struct kg_spec *s)
{
    (void)s;
    return BLOCK;
}

static uint32_t oracle_cap(const struct kg_spec *s)
{
    return s->cap;
}

static uint32_t length_of(struct kg_spec *s, const struct kg_spec_seq *q)
{
    const struct spec_drafts *how = s->how;
    uint32_t n = how->length > 0 ? how->length : below(s, BLOCK + 1);

    if (how->pattern != NULL) {
        s->turn = how->pattern[s->turn] < 0 ? 0 : s->turn;
        n = (uint32_t)how->pattern[s->turn++];
    }
    if (how->odd_only && q->id % 2 == 0)
        n = 0;
    return n < q->max_draft ? n : q->max_draft;
}

static int oracle_draft(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *tokens,
                        uint32_t stride, uint32_t *counts)
{
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        const struct kg_spec_seq *q = &v->seqs[i];
        const struct xreq *t = &s->truth->reqs[q->id - 1];
        uint32_t *out = tokens + (size_t)i * stride, *natural = &s->natural[q->id];
        counts[i] = length_of(s, q);
        *natural = 0;
        for (uint32_t k = 0; k < counts[i]; k++) {
            uint32_t at = q->n_history + k;
            int known = at < t->n;
            out[k] = known && below(s, 100) < s->how->right ? t->tokens[at] : below(s, s->vocab);
            *natural += *natural == k && known && out[k] == t->tokens[at];
        }
    }
    return KG_OK;
}

/* MODEL: how long the backend drafts. */
static void oracle_want(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *wants)
{
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        const struct kg_spec_seq *q = &v->seqs[i];
        wants[i] = length_of(s, q);
        s->ids[q->slot] = q->id;
        s->context[q->slot] = q->context;
    }
}

static void oracle_choose(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *lengths)
{
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        uint32_t n = v->seqs[i].n_drafted;
        lengths[i] = s->how->idle ? 0 : s->how->choose ? below(s, n + 1) : n;
    }
}

static void oracle_observe(struct kg_spec *s, const struct kg_spec_seen *seen, uint32_t n,
                           uint64_t step_ns)
{
    (void)seen;
    (void)n;
    (void)step_ns;
    s->cap = s->how->choose ? below(s, BLOCK + 1) : BLOCK;
    if (s->how->pause > 0 && s->n_steps++ / s->how->pause % 2 == 0)
        s->cap = 0;
}

static int oracle_check(const struct kg_spec *s, struct kg_error *err)
{
    (void)s;
    (void)err;
    return KG_OK;
}

static const struct kg_spec_ops oracle_ops = {.size = sizeof(oracle_ops),
                                              .block = oracle_block,
                                              .cap = oracle_cap,
                                              .choose = oracle_choose,
                                              .observe = oracle_observe,
                                              .check = oracle_check,
                                              .draft = oracle_draft,
                                              .want = oracle_want};

/* The backend's draft() with a witness: one run at a time. */
static struct kg_spec *witness;
static const struct kg_exec_ops *real_ops;

static int watched_draft(struct kg_exec *exec, struct kg_draft *drafts, uint32_t n)
{
    int rc;

    if (witness->how->fail > 0 && ++witness->n_calls % witness->how->fail == 0)
        return KG_EDEVICE;
    rc = real_ops->draft(exec, drafts, n);
    for (uint32_t i = 0; rc == KG_OK && i < n; i++) {
        const struct kg_draft *d = &drafts[i];
        uint64_t id = witness->ids[d->slot];
        uint32_t past = witness->context[d->slot];
        assert_true(d->n <= SPEC_BLOCK);
        if (d->n < witness->run->n_survivals[id - 1][past])
            continue;
        witness->run->n_survivals[id - 1][past] = (uint8_t)d->n;
        memcpy(witness->run->survivals[id - 1][past], d->survival, d->n * sizeof(float));
        witness->run->n_blocks++;
    }
    return rc;
}

uint32_t spec_same_drafts(const struct spec_way *w, const struct spec_run *run,
                          const struct spec_run *truth, uint32_t n)
{
    uint32_t both = 0;

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t p = 0; p < XRIG_TOKENS; p++) {
            uint32_t a = run->n_survivals[i][p], b = truth->n_survivals[i][p];
            uint32_t most = a < b ? a : b;
            if (most > 0 &&
                memcmp(run->survivals[i][p], truth->survivals[i][p], most * sizeof(float)) != 0)
                fail_msg("%s: request %u: drafts at position %u differ", w->name, i, p);
            both += most > 0;
        }
    }
    return both;
}

/* --- hooks ---------------------------------------------------------------------------------- */

struct work {
    const struct spec_way *way;
    struct spec_run *run;
    struct kg_spec oracle;
    struct kg_stack *stack;
    uint8_t *state_bytes;
    uint64_t n_state_bytes;
};

static uint32_t limit_chunk(void *ctx, uint64_t id, uint32_t past, uint32_t n)
{
    const struct work *w = ctx;

    (void)id;
    (void)past;
    return w->way->chunk != 0 && n > w->way->chunk ? w->way->chunk : n;
}

/* Never more than is right, so that the output stays what it would be. */
static uint32_t reject_some(void *ctx, uint64_t id, uint32_t past, uint32_t n_draft)
{
    struct work *w = ctx;
    uint32_t n = w->oracle.natural[id] < n_draft ? w->oracle.natural[id] : n_draft;

    (void)past;
    return below(&w->oracle, n + 1);
}

/* What the backend drafted is not known here: all of it is rejected, or nothing by force. */
static uint32_t reject_all(void *ctx, uint64_t id, uint32_t past, uint32_t n_draft)
{
    struct work *w = ctx;

    (void)id;
    (void)past;
    (void)n_draft;
    return below(&w->oracle, 2) == 0 ? 0 : KG_NONE;
}

static int poison(void *ctx, uint64_t id, uint32_t past)
{
    const struct work *w = ctx;

    return id == w->way->nan_id && past >= w->way->nan_at;
}

static void see_result(void *ctx, const struct kg_seq *seq, const struct kg_seq_result *res)
{
    struct work *w = ctx;
    struct xreq *r = &w->run->reqs[seq->id - 1];
    uint32_t vocab = w->stack->desc.vocab;

    w->run->n_rows += seq->n_rows;
    if (res->flags & KG_RES_NAN)
        return;
    assert_non_null(res->logits);
    for (uint32_t j = 0; j < res->past - seq->past; j++) { /* rows behind it were rejected */
        uint64_t h = xrig_hash(res->logits + (size_t)j * vocab, vocab);
        if (r->bits[seq->past + j] != 0)
            assert_int_equal(r->bits[seq->past + j], h); /* recomputed after a preemption */
        r->bits[seq->past + j] = h;
    }
}

static void see_order(void *ctx, uint64_t id, uint32_t position, uint32_t unit)
{
    struct work *w = ctx;
    const struct kg_engine_parts *p = &w->stack->parts;
    uint64_t *at = &w->run->states[id - 1][position], h;

    memset(w->state_bytes, 1, w->n_state_bytes);
    /* units of a group cannot be read: each rank has its part */
    assert_int_equal(p->exec_ops->read(p->exec, KG_STATE, unit, w->state_bytes, w->n_state_bytes),
                     xrig_world() > 1 ? KG_EINVAL : KG_OK);
    h = xrig_hash((const float *)(const void *)w->state_bytes, (uint32_t)(w->n_state_bytes / 4));
    if (*at != 0)
        assert_int_equal(*at, h);
    *at = h;
    w->run->n_states++;
}

/* --- requests ------------------------------------------------------------------------------- */

void spec_requests(struct spec_run *run, uint32_t n, float temperature)
{
    memset(run, 0, sizeof(*run));
    xreq_prompts(run->reqs, n, temperature);
    for (uint32_t i = 0; i < n; i++) {
        struct xreq *r = &run->reqs[i];
        /* All but the short ones begin alike, for the prefix cache. */
        if (i > 1 && r->n > SHARED)
            memcpy(r->tokens, run->reqs[1].tokens, SHARED * sizeof(uint32_t));
        r->n_max = r->n_prompt + 26 + i % 5;
        r->sampling.n_logprobs = i % 3 == 0 ? SPEC_LOGPROBS - 1 : 0;
    }
}

void spec_stops(struct spec_run *run, const struct spec_run *truth, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct xreq *r = &run->reqs[i];
        /* The second is masked where the first min_tokens output tokens hold it. */
        r->sampling.n_stop_ids = 2;
        r->sampling.stop_ids[0] = truth->reqs[i].tokens[r->n_prompt + 5 + i % 9];
        r->sampling.stop_ids[1] = truth->reqs[i].tokens[r->n_prompt + 1];
        r->sampling.min_tokens = 3 + i % 4;
    }
}

static void take_event(struct spec_run *run, const struct kg_event *e)
{
    struct xreq *r = &run->reqs[e->id - 1];

    if (e->type == KG_EVENT_TOKENS) {
        assert_true(r->n + e->n <= r->n_max);
        for (uint32_t k = 0; k < e->n; k++) {
            r->tokens[r->n + k] = e->tokens[k];
            if (e->n_logprobs > 0)
                memcpy(run->logprobs[e->id - 1][r->n + k - r->n_prompt],
                       e->logprobs + (size_t)k * e->n_logprobs,
                       e->n_logprobs * sizeof(*e->logprobs));
        }
        r->n += e->n;
    }
    if (e->type != KG_EVENT_DONE)
        return;
    run->finish[e->id - 1] = e->finish;
    run->n_done++;
    run->n_preempted += e->n_preempted;
    run->n_cached += e->n_cached;
    run->n_drafted += e->n_drafted;
    run->n_verified += e->n_verified;
    run->n_accepted += e->n_accepted;
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

static void drive(struct kg_engine *engine, struct spec_run *run, uint32_t n, uint32_t batch)
{
    struct kg_error err = {0};
    struct kg_event e;
    uint32_t submitted = 0;

    for (uint32_t steps = 0; run->n_done < n; steps++) {
        assert_true(steps < 100000);
        for (; submitted < n && submitted - run->n_done < batch; submitted++)
            submit(engine, &run->reqs[submitted], submitted + 1);
        if (kg_engine_step(engine, &err) < 0)
            fail_msg("step: %s", err.text);
        while (kg_engine_next(engine, &e) == KG_OK)
            take_event(run, &e);
    }
}

/* --- running -------------------------------------------------------------------------------- */

static struct kg_config *configure(const char *math, const char *sets)
{
    struct kg_config *config = NULL;
    char text[2048], *rest = text, *word;

    assert_int_equal(kg_config_create(&config), KG_OK);
    (void)snprintf(text, sizeof(text),
                   "model.path=%s/models/k3-tiny plugins.dir=%s plugins.exec=cpu "
                   "plugins.sched=fcfs plugins.spec=ngram engine.max_seqs=32 "
                   "engine.step_tokens=256 engine.prefill_chunk=128 memory.bytes=48m "
                   "memory.page_tokens=8 exec-cpu.threads=1 exec-cpu.math=%s log.level=warn %s %s",
                   TEST_ROOT, PLUGIN_DIR, math, xrig_sets(), sets);
    while ((word = strsep(&rest, " ")) != NULL) {
        if (word[0] != '\0')
            (void)kg_config_set(config, word);
    }
    if (kg_config_finish(config) != KG_OK)
        fail_msg("%s", kg_config_errors(config));
    return config;
}

static void run_engine(struct work *w, const struct kg_engine_test *test, uint32_t n)
{
    struct kg_engine_parts parts = w->stack->parts;
    struct kg_engine_conf conf = w->stack->conf->engine;
    struct kg_engine *engine = NULL;
    struct kg_error err = {0};

    if (w->way->drafts != NULL) {
        parts.spec_ops = &oracle_ops;
        parts.spec_caps = w->way->drafts->model ? KG_SPEC_CAP_MODEL : KG_SPEC_CAP_HOST;
        parts.spec = &w->oracle;
    }
    struct kg_exec_ops ops = *parts.exec_ops;
    if (w->way->drafts != NULL && w->way->drafts->model) {
        real_ops = parts.exec_ops;
        witness = &w->oracle;
        ops.draft = watched_draft;
        parts.exec_ops = &ops;
    }
    conf.test = test;
    conf.debug = 1;
    if (kg_engine_create(&parts, &conf, &engine, &err) < 0)
        fail_msg("%s: %s", w->way->name, err.text);
    drive(engine, w->run, n, w->way->batch);
    kg_engine_stats(engine, &w->run->stats);
    kg_engine_destroy(engine);
}

void spec_go(const struct spec_way *way, const char *math, struct spec_run *run,
             const struct spec_run *truth, uint32_t n)
{
    struct work w = {.way = way,
                     .run = run,
                     .oracle = {.how = way->drafts, .truth = truth, .run = run, .cap = BLOCK}};
    struct kg_engine_test test = {.ctx = &w,
                                  .relocate = way->relocate,
                                  .preempt_one_in = way->preempt,
                                  .seed = way->seed + 11,
                                  .force_orders = 1,
                                  .logits = 1,
                                  .chunk = limit_chunk,
                                  .on_order = see_order,
                                  .on_result = see_result};
    struct kg_config *config = configure(math, way->sets);
    struct kg_error err = {0};

    if (way->drafts != NULL && way->drafts->reject)
        test.force_accept = way->drafts->model ? reject_all : reject_some;
    if (way->nan_id != 0)
        test.poison = poison;
    kg_rng_seed(&w.oracle.rng, way->seed + 1);
    if (kg_stack_open(config, &w.stack, &err) < 0)
        fail_msg("%s: %s", way->name, err.text);
    w.oracle.vocab = w.stack->desc.vocab;
    w.n_state_bytes = w.stack->desc.n_state_parts * w.stack->desc.state_part_bytes;
    w.state_bytes = malloc(w.n_state_bytes);
    assert_non_null(w.state_bytes);
    run_engine(&w, &test, n);
    kg_stack_close(w.stack);
    kg_config_destroy(config);
    free(w.state_bytes);
    print_message("  %s, %s: %llu steps, %llu of %llu drafts accepted, %u checkpoints, "
                  "%u preemptions, %u tokens cached\n",
                  way->name, math, (unsigned long long)run->stats.steps,
                  (unsigned long long)run->n_accepted, (unsigned long long)run->n_verified,
                  run->n_states, run->n_preempted, run->n_cached);
}

static void equal_request(const char *name, const struct spec_run *run,
                          const struct spec_run *truth, uint32_t i)
{
    const struct xreq *a = &run->reqs[i], *b = &truth->reqs[i];

    if (a->n != b->n || memcmp(a->tokens, b->tokens, b->n * sizeof(uint32_t)) != 0)
        fail_msg("%s: request %u: tokens differ", name, i);
    if (run->finish[i] != truth->finish[i])
        fail_msg("%s: request %u ended with %u, not %u", name, i, run->finish[i], truth->finish[i]);
    for (uint32_t j = 0; j + 1 < b->n; j++) {
        if (a->bits[j] == 0 && j + 1 < b->n_prompt)
            continue; /* came from the prefix cache */
        if (b->bits[j] != 0 && a->bits[j] != b->bits[j])
            fail_msg("%s: request %u: logits at position %u differ", name, i, j);
    }
    if (memcmp(run->logprobs[i], truth->logprobs[i], sizeof(run->logprobs[i])) != 0)
        fail_msg("%s: request %u: log probabilities differ", name, i);
}

void spec_equal(const struct spec_way *w, const struct spec_run *run, const struct spec_run *truth,
                uint32_t n)
{
    uint32_t both = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 == w->nan_id)
            continue;
        equal_request(w->name, run, truth, i);
        for (uint32_t j = 0; j < XRIG_TOKENS; j++) {
            if (run->states[i][j] == 0 || truth->states[i][j] == 0)
                continue;
            both++;
            if (run->states[i][j] != truth->states[i][j])
                fail_msg("%s: request %u: state at position %u differs", w->name, i, j);
        }
    }
    /* Pages of split uniform are longer than these requests: no boundary, no checkpoint. */
    assert_true(both > 0 || strstr(w->sets, "uniform") != NULL);
    assert_true(w->preempt == 0 || run->n_preempted > 0);
    assert_int_equal(run->stats.drafts_failed > 0, w->drafts != NULL && w->drafts->fail > 0);
    assert_int_equal(run->stats.drafted, run->n_drafted);
    assert_int_equal(run->stats.verified, run->n_verified);
    assert_int_equal(run->stats.accepted, run->n_accepted);
}
