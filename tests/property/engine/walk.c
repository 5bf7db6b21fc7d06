/*
 * Random walks of the whole engine on exec-null: a seed chooses pool, scheduler, speculation,
 * lifetime and what is forced on the engine; requests arrive, are cancelled, paused and finished at
 * random. Whatever happens, each output is the script's, no step stalls while somebody could
 * advance, and at the end every unit is back. KEDGE_SEED replays one walk, KEDGE_FULL=1 runs many.
 */
#include "rig.h"
#include "script.h"

#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_REQUESTS 60

/* What all walks together met: a walk in a world where nothing happens proves nothing. */
struct met {
    uint64_t preemptions, moves, drafted, accepted, drafts_failed, plans_dropped, nan_rows, orders;
    uint64_t reused, lost, cached, written, unused, pruned, taken_over, evicted[2];
    uint64_t finished[8];
    uint64_t tier_stored[2], tier_had[2], tier_loaded[2], tier_tokens, tier_failed, tier_fallbacks;
};

struct walk {
    struct rig rig;
    struct kg_rng rng;
    struct kg_engine_test test;
    uint64_t poisoned; /* id whose next step is NaN, 0 none */
    uint64_t n_orders;
    uint32_t n_submitted, n_nan;
    uint8_t steered[RIG_IDS]; /* 1 cancelled, 2 finished by the caller, 4 poisoned */
    uint8_t paused[RIG_IDS];
};

static uint32_t below(struct walk *w, uint32_t n)
{
    return (uint32_t)kg_rng_below(&w->rng, n);
}

/* --- hooks --- */

static uint32_t hook_chunk(void *ctx, uint64_t id, uint32_t past, uint32_t n)
{
    (void)id;
    (void)past;
    return 1 + below(ctx, n);
}

static int hook_poison(void *ctx, uint64_t id, uint32_t past)
{
    struct walk *w = ctx;

    (void)past;
    if (w->poisoned != id) {
        return 0;
    }
    w->poisoned = 0;
    w->n_nan++;
    w->steered[id] |= 4;
    return 1;
}

/* A forced length at most the natural one keeps the output; 0 always is. */
static uint32_t hook_accept(void *ctx, uint64_t id, uint32_t past, uint32_t n_draft)
{
    (void)id;
    (void)past;
    (void)n_draft;
    return below(ctx, 3) == 0 ? 0 : KG_NONE;
}

/* The checkpoint holds the state at its position, part by part. */
static void hook_order(void *ctx, uint64_t id, uint32_t position, uint32_t unit)
{
    struct walk *w = ctx;
    const struct rig_out *o = &w->rig.outs[id];
    uint64_t state[4][8];

    assert_int_equal(w->rig.parts.exec_ops->read(w->rig.exec, KG_STATE, unit, state, sizeof(state)),
                     KG_OK);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(state[i][1], position);
        /* Tokens of this very step are not in `outs` yet; below that the hash is known. */
        if (position <= o->n_prompt + o->n_output) {
            assert_int_equal(state[i][0], truth_hash(o->tokens, position) + i);
        }
    }
    w->n_orders++;
}

/* --- the walk --- */

/* Draws happen one to a statement: the order of arguments differs between compilers, and a seed
 * must mean the same walk everywhere. */
static void choose_options(struct walk *w, struct rig_conf *c, char *spec_opts, char *exec_opts,
                           size_t n)
{
    uint32_t vocab = below(w, 2) ? 1024 : 5;
    uint32_t drafts = below(w, 6);
    uint32_t async = below(w, 2);
    double accept = 0.25 * below(w, 5);

    (void)snprintf(exec_opts, n, "vocab=%u draft_block=%u async=%s accept=%g", vocab, drafts,
                   async ? "yes" : "no", accept);
    uint32_t seed = below(w, 1000);
    uint32_t block = below(w, 7);
    uint32_t bad = below(w, 4) == 0;
    (void)snprintf(spec_opts, n, "seed=%u block=%u vocab=%u bad=%s", seed, block, vocab,
                   bad ? "yes" : "no");
    c->exec_opts = exec_opts;
    if (c->spec != NULL && strncmp(c->spec, "fake", 4) == 0) {
        c->spec_opts = spec_opts;
    }
    uint32_t rule = below(w, 10);
    if (strcmp(c->sched, "lifo") == 0 && bad) {
        static const char *const rules[] = {"bad=1", "bad=2", "bad=3", "bad=4", "bad=5",
                                            "bad=6", "bad=7", "bad=8", "bad=9", "bad=10"};
        c->sched_opts = rules[rule];
    }
}

static void choose_hooks(struct walk *w)
{
    struct kg_engine_test *t = &w->test;

    *t = (struct kg_engine_test){.ctx = w, .poison = hook_poison, .on_order = hook_order};
    t->relocate = below(w, 2) ? 1 + below(w, 3) : 0;
    t->preempt_one_in = below(w, 2) ? 3 + below(w, 20) : 0;
    t->seed = below(w, 1000);
    t->force_orders = below(w, 2);
    t->chunk = below(w, 2) ? hook_chunk : NULL;
    t->force_accept = below(w, 2) ? hook_accept : NULL;
}

/* None, one that keeps all or little, or one that fails; slow or quick. */
static void choose_tier(struct walk *w, struct rig_conf *c)
{
    static const char *const faults[] = {
        "bytes=1000000 lose=9",
        "bytes=1000000 spoil=9",
        "bytes=1000000 cut=9",
        "bytes=1000000 fail=9",
        "bytes=1000000 refuse=3",
        "bytes=1000000 forget=9",
        "bytes=30000 lose=20 spoil=20 cut=20 fail=20 refuse=9 forget=20"};
    static const char *const sizes[] = {"bytes=1000000", "bytes=20000", "bytes=1000"};
    uint32_t kind = below(w, 4), fault = below(w, 7), size = below(w, 3), slow = below(w, 2);

    c->tier = kind == 0 ? NULL : kind == 1 ? "fake" : "mem";
    c->tier_opts = kind == 1 ? faults[fault] : sizes[size];
    c->tier_step_bytes = slow ? 1 + below(w, 3000) : 0;
}

static void choose_conf(struct walk *w, struct rig_conf *c, char *spec_opts, char *exec_opts,
                        size_t n)
{
    static const char *const pools[][2] = {
        {"unified", NULL}, {"split", NULL}, {"split", "style=uniform"}, {"shuffle", NULL}};
    static const char *const specs[] = {NULL, "off", "fake-host", "fake-model"};
    const char *const *pool = pools[below(w, 4)];

    *c = (struct rig_conf){.pool = pool[0], .pool_opts = pool[1], .test = &w->test};
    c->sched = below(w, 2) ? "fcfs" : "lifo";
    c->spec = specs[below(w, 4)];
    c->max_seqs = 1 + below(w, 8);
    c->page_tokens = 1 + below(w, 9);
    c->n_pages = (16 + below(w, 40)) * 8 / c->page_tokens + 1;
    c->step_tokens = 4 + below(w, 40);
    c->prefill_chunk = 1 + below(w, 20);
    c->lifetime = below(w, 3);
    c->no_prefix = below(w, 8) == 0;
    c->checkpoint = 1 + below(w, 5);
    c->interval = 1 + below(w, 40);
    c->ghost_bytes = 1 + below(w, 4000);
    c->max_wait_ms = below(w, 2);
    choose_options(w, c, spec_opts, exec_opts, n);
    choose_hooks(w);
    choose_tier(w, c);
}

static void submit_one(struct walk *w)
{
    struct kg_sampling s = {0};
    uint64_t id = w->n_submitted + 1;

    if (below(w, 2)) {
        s.temperature = 0.8f;
        s.seed = kg_rng_u64(&w->rng);
    }
    if (below(w, 4) == 0) {
        s.n_stop_ids = 1 + below(w, 3);
        s.min_tokens = below(w, 6);
        for (uint32_t i = 0; i < s.n_stop_ids; i++) {
            s.stop_ids[i] = below(w, w->rig.vocab);
        }
    }
    w->rig.flags = below(w, 10) == 0 ? KG_REQ_NO_CACHE : 0;
    w->rig.flags |= below(w, 10) == 0 ? KG_REQ_ECHO : 0;
    w->rig.salt = below(w, 8) == 0;
    if (below(w, 3) == 0) { /* the same length again: more equal prompts */
        w->rig.n_shared = below(w, 60);
        w->rig.n_groups = 1 + below(w, 3);
    }
    uint32_t n_prompt = 1 + below(w, 60);
    uint32_t max_tokens = 1 + below(w, 40);
    int rc = rig_submit(&w->rig, id, n_prompt, max_tokens, &s);
    assert_true(rc == KG_OK || rc == KG_ENEVER);
    w->n_submitted++;
}

/* Something happens to a request, alive or not. */
static void steer(struct walk *w)
{
    uint64_t id = 1 + below(w, w->n_submitted + 1);
    struct kg_engine *e = w->rig.engine;

    switch (below(w, 12)) {
    case 0:
        kg_engine_cancel(e, id);
        w->steered[id] |= 1;
        break;
    case 1:
        kg_engine_finish(e, id, below(w, 20));
        w->steered[id] |= 2;
        break;
    case 2:
    case 3:
        w->paused[id] = !w->paused[id];
        kg_engine_pause(e, id, w->paused[id]);
        break;
    case 4:
        w->poisoned = w->poisoned == 0 && below(w, 3) == 0 ? id : w->poisoned;
        break;
    default:
        break;
    }
}

static void check_end(struct walk *w, uint64_t id)
{
    struct rig_out *o = &w->rig.outs[id];
    uint32_t finish = o->end.finish;

    if (!o->submitted) {
        return;
    }
    assert_true(o->done);
    rig_assert_true(&w->rig, id);
    assert_true(o->n_output >= o->end.n_output);
    if (finish == KG_FINISH_ERROR) {
        if (!(w->steered[id] & 4)) {
            fail_msg("request %u ended with an error: %s", (uint32_t)id, o->end.text);
        }
    } else if (finish == KG_FINISH_CANCELLED) {
        assert_true(w->steered[id] & 1);
    } else if (finish == KG_FINISH_CALLER) {
        assert_true(w->steered[id] & 2);
    } else {
        assert_true(finish == KG_FINISH_STOP || finish == KG_FINISH_LENGTH);
        assert_int_equal(o->end.n_output, o->n_output);
    }
}

static void run_walk(uint64_t seed, struct met *met)
{
    struct walk *w = calloc(1, sizeof(*w));
    struct rig_conf c;
    char spec_opts[100], exec_opts[100];
    uint32_t idle = 0;

    assert_non_null(w);
    kg_rng_seed(&w->rng, seed);
    choose_conf(w, &c, spec_opts, exec_opts, sizeof(spec_opts));
    rig_open(&w->rig, &c);
    for (uint32_t step = 0; w->n_submitted < N_REQUESTS || w->rig.n_open > 0; step++) {
        if (w->n_submitted < N_REQUESTS && below(w, 3) == 0) {
            submit_one(w);
        }
        if (w->n_submitted > 0 && below(w, 4) == 0) {
            steer(w);
        }
        if (step > 4000 && step % 100 == 0) { /* nobody may be left paused at the end */
            for (uint64_t id = 1; id <= N_REQUESTS; id++) {
                kg_engine_pause(w->rig.engine, id, false);
                w->paused[id] = 0;
            }
        }
        int rc = rig_step(&w->rig);
        if (rc < 0) {
            fail_msg("backend lost: %s", w->rig.outs[1].end.text);
        }
        uint32_t any_paused = memchr(w->paused, 1, sizeof(w->paused)) != NULL;
        idle = rc > 0 || w->rig.n_open == 0 || any_paused ? 0 : idle + 1;
        if (idle > 2 || step > 60000) {
            fail_msg("stalled at step %u with %u requests open", step, w->rig.n_open);
        }
    }
    for (uint64_t id = 1; id <= w->n_submitted; id++) {
        check_end(w, id);
    }
    struct kg_engine_stats s;
    kg_engine_stats(w->rig.engine, &s);
    assert_int_equal(s.nan_rows, w->n_nan);
    if (c.sched_opts == NULL) {
        assert_int_equal(s.plans_dropped, 0);
    }
    if (strstr(spec_opts, "bad=no") != NULL) {
        assert_int_equal(s.drafts_failed, 0);
    }
    met->preemptions += s.preemptions;
    met->moves += s.moves;
    met->drafted += s.drafted;
    met->accepted += s.accepted;
    met->drafts_failed += s.drafts_failed;
    met->plans_dropped += s.plans_dropped;
    met->nan_rows += s.nan_rows;
    met->reused += s.reused_tokens;
    met->cached += s.cached_tokens;
    met->lost += s.lost_tokens;
    met->written += s.ckpt_written;
    met->unused += s.ckpt_unused;
    met->pruned += s.ckpt_pruned;
    met->taken_over += s.taken_over;
    met->tier_tokens += s.tier_tokens;
    met->tier_failed += s.tier_failed;
    met->tier_fallbacks += s.tier_fallbacks;
    assert_true(s.tier_bytes <= s.tier_limit);
    if (c.tier != NULL && !c.no_prefix) { /* every state that left went somewhere, or is counted */
        assert_int_equal(s.evicted[KG_STATE],
                         s.tier_stored[KG_STATE] + s.tier_had[KG_STATE] + s.tier_skipped[KG_STATE]);
    }
    for (uint32_t k = 0; k < 2; k++) {
        met->tier_stored[k] += s.tier_stored[k];
        met->tier_had[k] += s.tier_had[k];
        met->tier_loaded[k] += s.tier_loaded[k];
        met->evicted[k] += s.evicted[k];
        assert_int_equal(s.n_cached[k], s.n_evictable[k]); /* nothing is locked any more */
    }
    met->orders += w->n_orders;
    for (uint32_t i = 0; i < 8; i++) {
        met->finished[i] += s.finished[i];
    }
    rig_close(&w->rig);
    free(w);
}

static void outputs_are_the_scripts_whatever_happens(void **state) /* V12, V53, V60, S10, S37 */
{
    (void)state;
    const char *one = getenv("KEDGE_SEED");
    uint64_t n = getenv("KEDGE_FULL") != NULL ? 2000 : 150;
    struct met met = {0};
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;

    for (uint64_t seed = first; seed < first + (one != NULL ? 1 : n); seed++) {
        print_message("seed %llu\n", (unsigned long long)seed);
        run_walk(seed, &met);
    }
    print_message(
        "preemptions %llu moves %llu drafted %llu accepted %llu bad drafts %llu bad plans "
        "%llu NaN %llu checkpoints %llu\nreused %llu (first %llu) lost %llu written %llu unused "
        "%llu pruned %llu evicted %llu pages %llu states\n",
        (unsigned long long)met.preemptions, (unsigned long long)met.moves,
        (unsigned long long)met.drafted, (unsigned long long)met.accepted,
        (unsigned long long)met.drafts_failed, (unsigned long long)met.plans_dropped,
        (unsigned long long)met.nan_rows, (unsigned long long)met.orders,
        (unsigned long long)met.reused, (unsigned long long)met.cached,
        (unsigned long long)met.lost, (unsigned long long)met.written,
        (unsigned long long)met.unused, (unsigned long long)met.pruned,
        (unsigned long long)met.evicted[0], (unsigned long long)met.evicted[1]);
    print_message(
        "tier: stored %llu pages %llu states, had %llu %llu, loaded %llu %llu, %llu tokens, "
        "%llu failed, %llu fell back\n",
        (unsigned long long)met.tier_stored[0], (unsigned long long)met.tier_stored[1],
        (unsigned long long)met.tier_had[0], (unsigned long long)met.tier_had[1],
        (unsigned long long)met.tier_loaded[0], (unsigned long long)met.tier_loaded[1],
        (unsigned long long)met.tier_tokens, (unsigned long long)met.tier_failed,
        (unsigned long long)met.tier_fallbacks);
    if (one == NULL) {
        assert_true(met.tier_loaded[0] > 0 && met.tier_loaded[1] > 0 && met.tier_tokens > 0);
        assert_true(met.tier_failed > 0 && met.tier_fallbacks > 0);
        assert_true(met.preemptions > 0 && met.moves > 0 && met.accepted > 0 && met.orders > 0);
        assert_true(met.reused > met.cached && met.cached > 0 && met.lost > 0 && met.pruned > 0);
        assert_true(met.evicted[KG_PAGE] > 0 && met.evicted[KG_STATE] > 0 && met.unused > 0 &&
                    met.taken_over > 0);
        assert_true(met.drafts_failed > 0 && met.plans_dropped > 0 && met.nan_rows > 0);
        assert_true(met.finished[KG_FINISH_STOP] > 0 && met.finished[KG_FINISH_LENGTH] > 0);
        assert_true(met.finished[KG_FINISH_CALLER] > 0 && met.finished[KG_FINISH_CANCELLED] > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_the_scripts_whatever_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
