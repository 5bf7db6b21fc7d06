/*
 * A search for livelocks: far more requests than memory holds, which grow beyond what they were
 * admitted with, are preempted for each other, put off by a policy, cancelled and drafted for. A
 * seed chooses all of it. Whatever it chooses
 *
 *   - somebody gets on: between two steps in which a token came out or a request ended lie no more
 *     steps than one request alone could need;
 *   - every request ends, with its script's output, in steps bounded by the work there is;
 *   - past max_wait_ms nobody younger is let in before an older one that may go;
 *   - at the end every unit is back.
 *
 * KEDGE_SEED replays one, KEDGE_OVERLOADS says how many (300; 10000 with KEDGE_FULL=1).
 */
#include "rig.h"

#include "base/clock.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_REQUESTS 160u
#define MOST_PROMPT 70u
#define MOST_OUTPUT 70u
#define STEP_NS (2 * KG_NS_PER_MS)

/* What a request went through, beside what the rig keeps. */
struct fate {
    uint32_t cancelled, held, paused; /* 1: at some time */
};

struct overload {
    struct rig rig;
    struct rig_conf conf;
    struct kg_rng rng;
    struct kg_engine_test test;
    struct kg_engine_policy policy;
    struct fate fates[MOST_REQUESTS + 1];
    uint32_t n_requests, n_submitted, defers, rejects, replaces; /* one in n; 0 never */
    uint32_t cancels, pauses;                                    /* steps between, about; 0 never */
    uint32_t is_paused;                                          /* id, 0 nobody */
    uint32_t chunk, rows;                                        /* tokens of a prompt in a step */
    char exec_opts[120], spec_opts[120];
};

struct met {
    uint64_t seeds, requests, steps, preemptions, deferred, accepted, evicted, expected, max_gap;
    uint64_t finished[8];
};

static uint32_t below(struct overload *o, uint32_t n)
{
    return (uint32_t)kg_rng_below(&o->rng, n);
}

static int one_in(struct overload *o, uint32_t n)
{
    return n > 0 && below(o, n) == 0;
}

/* --- the policy --- */

static int policy_step(void *ctx)
{
    struct overload *o = ctx;

    return one_in(o, o->replaces);
}

static int policy_admit(void *ctx, const struct kg_admit_view *view, struct kg_admit_answer *a)
{
    struct overload *o = ctx;

    if (one_in(o, 9)) {
        return one_in(o, 2) ? KG_ENOENT : KG_EAGAIN;
    }
    a->lifetime = one_in(o, 4) ? below(o, 3) : a->lifetime;
    if (one_in(o, o->rejects)) {
        a->verdict = KG_ADMIT_NEVER;
        (void)snprintf(a->text, sizeof(a->text), "not today");
    } else if (one_in(o, o->defers)) {
        a->verdict = KG_ADMIT_LATER;
        a->defer_ns = below(o, 3) ? 1 + below(o, 100 * (uint32_t)KG_NS_PER_MS) : 0;
        o->fates[view->id].held = 1;
    } else {
        a->verdict = KG_ADMIT_YES;
    }
    return KG_OK;
}

static bool policy_says(void *ctx)
{
    (void)ctx;
    return true;
}

/* --- the world --- */

static void choose_world(struct overload *o)
{
    static const char *const pools[][2] = {
        {"unified", NULL}, {"split", NULL}, {"split", "style=uniform"}, {"shuffle", NULL}};
    static const char *const scheds[] = {"fcfs", "fair", "lifo"};
    static const char *const specs[] = {NULL, "fake-host", "fake-model", "off"};
    const char *const *pool = pools[below(o, 4)];
    struct rig_conf *c = &o->conf;

    *c = (struct rig_conf){.pool = pool[0], .pool_opts = pool[1], .test = &o->test};
    c->sched = scheds[below(o, 3)];
    c->spec = specs[below(o, 4)];
    c->max_seqs = 2 + below(o, 9);
    c->max_requests = MOST_REQUESTS;
    c->page_tokens = 1 + below(o, 8);
    uint32_t block = c->spec != NULL && c->spec[0] == 'f' ? below(o, 6) : 0;
    uint32_t most = MOST_PROMPT + MOST_OUTPUT + block;
    c->n_pages = most / c->page_tokens + 2 + below(o, most / c->page_tokens);
    if (strcmp(c->pool, "split") == 0) { /* its share of pages must hold the largest request */
        c->n_pages *= 2;
    }
    o->chunk = c->prefill_chunk = 1 + below(o, 24);
    c->step_tokens = c->prefill_chunk + 6 + below(o, 40);
    c->lifetime = below(o, 3) == 0 ? KG_LIFETIME_PROMPT : KG_LIFETIME_EXPECTED;
    c->checkpoint = 1 + below(o, 5);
    c->interval = 1 + below(o, 40);
    c->no_prefix = one_in(o, 5);
    c->ghost_bytes = 1 + below(o, 4000);
    c->max_wait_ms = below(o, 2) ? 1 + below(o, 60) : 0;
    c->queue_timeout_ms = one_in(o, 6) ? 500 + below(o, 3000) : 0;
    double accept = 0.25 * below(o, 5);
    (void)snprintf(o->exec_opts, sizeof(o->exec_opts),
                   "vocab=64 base_ns=%llu draft_block=%u async=%s accept=%g",
                   (unsigned long long)STEP_NS, block, below(o, 2) ? "yes" : "no", accept);
    (void)snprintf(o->spec_opts, sizeof(o->spec_opts), "seed=%u block=%u vocab=64", below(o, 1000),
                   block);
    c->exec_opts = o->exec_opts;
    c->spec_opts = block > 0 || (c->spec != NULL && c->spec[0] == 'f') ? o->spec_opts : NULL;
}

static void choose_trouble(struct overload *o)
{
    o->n_requests = 40 + below(o, MOST_REQUESTS - 40);
    o->cancels = below(o, 2) ? 4 + below(o, 20) : 0;
    o->pauses = one_in(o, 3) ? 10 + below(o, 40) : 0;
    o->test = (struct kg_engine_test){.ctx = o, .seed = below(o, 1000)};
    o->test.relocate = one_in(o, 3) ? 1 + below(o, 3) : 0;
    if (one_in(o, 4) && o->chunk >= 8) { /* rarely enough that the longest prompt gets through */
        o->test.preempt_one_in = 100 + below(o, 100);
    }
    if (below(o, 2)) {
        o->defers = 1 + below(o, 6);
        o->defers = o->defers == 1 ? 2 : o->defers; /* who always says later means it */
        o->rejects = one_in(o, 3) ? 10 + below(o, 50) : 0;
        o->replaces = one_in(o, 3) ? 5 + below(o, 50) : 0;
        o->policy = (struct kg_engine_policy){
            .ctx = o, .step = policy_step, .admit = policy_admit, .has_admit = policy_says};
        o->conf.policy = &o->policy;
    }
}

/* Bursts that share beginnings, prompts short or long, answers that outlive what is expected. */
static void submit_some(struct overload *o, uint32_t n)
{
    for (; n > 0 && o->n_submitted < o->n_requests; n--) {
        uint64_t id = ++o->n_submitted;
        o->rig.n_shared = below(o, 3) ? below(o, MOST_PROMPT) : 0;
        o->rig.n_groups = 1 + below(o, 4);
        uint32_t long_one = below(o, 4) == 0;
        uint32_t n_prompt = 1 + below(o, long_one ? MOST_PROMPT : MOST_PROMPT / 4);
        uint32_t n_output = 1 + below(o, below(o, 3) == 0 ? MOST_OUTPUT : MOST_OUTPUT / 4);
        struct kg_sampling s = {.n_stop_ids = below(o, 4) == 0, .stop_ids = {below(o, 64)}};
        int rc = rig_submit(&o->rig, id, n_prompt, n_output, &s);
        if (rc != KG_OK) {
            fail_msg("request %u of %u and %u tokens: %d", (uint32_t)id, n_prompt, n_output, rc);
        }
    }
}

static void trouble(struct overload *o)
{
    if (one_in(o, o->cancels)) {
        uint64_t id = 1 + below(o, o->n_submitted);
        kg_engine_cancel(o->rig.engine, id);
        o->fates[id].cancelled = 1;
    }
    if (o->is_paused != 0) {
        if (one_in(o, 6)) {
            kg_engine_pause(o->rig.engine, o->is_paused, false);
            o->is_paused = 0;
        }
    } else if (one_in(o, o->pauses)) {
        o->is_paused = 1 + below(o, o->n_submitted);
        kg_engine_pause(o->rig.engine, o->is_paused, true);
        o->fates[o->is_paused].paused = 1;
    }
}

/* Steps one request may need alone, its longest prefill at one row a time when others leave no
 * more, and a while for what a policy puts off (ms of the clock pass with idle steps too). */
static uint32_t most_gap(const struct overload *o)
{
    uint32_t rows = o->chunk < 4 ? o->chunk : 4;

    return 2 * (MOST_PROMPT + MOST_OUTPUT) / rows + 60;
}

/* --- what must hold --- */

static void check_waits(const struct overload *o)
{
    uint64_t limit = o->conf.max_wait_ms * KG_NS_PER_MS;

    for (uint32_t a = 1; limit > 0 && a <= o->n_submitted; a++) {
        const struct kg_event *old = &o->rig.outs[a].end;
        if (o->fates[a].held || o->fates[a].paused || old->arrival_ns == 0) {
            continue; /* it was let pass */
        }
        uint64_t until = old->admitted_ns != 0 ? old->admitted_ns : old->done_ns;
        for (uint32_t b = a + 1; b <= o->n_submitted; b++) {
            uint64_t at = o->rig.outs[b].end.admitted_ns;
            /* Equal arrivals too: b came behind a. */
            if (at > old->arrival_ns + limit && at < until) {
                fail_msg("request %u, let in at %llu, passed %u, which came at %llu and got in at "
                         "%llu; max_wait %u ms",
                         b, (unsigned long long)at, a, (unsigned long long)old->arrival_ns,
                         (unsigned long long)until, o->conf.max_wait_ms);
            }
        }
    }
}

static void check_end(struct overload *o, uint64_t id)
{
    const struct rig_out *r = &o->rig.outs[id];

    assert_true(r->done);
    rig_assert_true(&o->rig, id);
    switch (r->end.finish) {
    case KG_FINISH_STOP:
    case KG_FINISH_LENGTH:
        break;
    case KG_FINISH_CANCELLED:
        assert_true(o->fates[id].cancelled);
        break;
    case KG_FINISH_TIMEOUT:
        assert_true(o->conf.queue_timeout_ms > 0);
        break;
    case KG_FINISH_REFUSED:
        assert_true(o->rejects > 0);
        break;
    default:
        fail_msg("request %u ended with an error: %s", (uint32_t)id, r->end.text);
    }
}

static uint64_t progress_of(const struct kg_engine_stats *s)
{
    uint64_t n = s->output_tokens;

    for (uint32_t i = 0; i < 8; i++) {
        n += s->finished[i];
    }
    return n;
}

static void add_met(struct overload *o, struct met *met, uint32_t steps)
{
    struct kg_engine_stats s;

    kg_engine_stats(o->rig.engine, &s);
    met->seeds++;
    met->requests += o->n_submitted;
    met->steps += steps;
    met->preemptions += s.preemptions;
    met->accepted += s.accepted;
    met->evicted += s.evicted[KG_PAGE] + s.evicted[KG_STATE];
    met->expected += o->conf.lifetime == KG_LIFETIME_EXPECTED ? s.preemptions : 0;
    for (uint32_t id = 1; id <= o->n_submitted; id++) {
        met->deferred += o->fates[id].held;
    }
    for (uint32_t i = 0; i < 8; i++) {
        met->finished[i] += s.finished[i];
    }
}

static void run_seed(uint64_t seed, struct met *met)
{
    struct overload *o = calloc(1, sizeof(*o));
    uint32_t gap = 0, step = 0;
    uint64_t before = 0, work = 0;

    assert_non_null(o);
    kg_rng_seed(&o->rng, seed);
    choose_world(o);
    choose_trouble(o);
    rig_open(&o->rig, &o->conf);
    uint32_t rush = 1 + below(o, 12), every = 1 + below(o, 20);
    for (; o->n_submitted < o->n_requests || o->rig.n_open > 0; step++) {
        if (step % every == 0) {
            submit_some(o, 1 + below(o, rush));
        }
        trouble(o);
        if (rig_step(&o->rig) < 0) {
            fail_msg("seed %llu: backend lost: %s", (unsigned long long)seed, o->rig.error.text);
        }
        struct kg_engine_stats s;
        kg_engine_stats(o->rig.engine, &s);
        uint64_t now = progress_of(&s);
        gap = now != before || o->rig.n_open == 0 || o->is_paused != 0 ? 0 : gap + 1;
        before = now;
        met->max_gap = gap > met->max_gap ? gap : met->max_gap;
        if (gap > most_gap(o)) {
            fail_msg("seed %llu: nobody got on for %u steps, %u requests open at step %u",
                     (unsigned long long)seed, gap, o->rig.n_open, step);
        }
    }
    for (uint32_t id = 1; id <= o->n_submitted; id++) {
        work += o->rig.outs[id].n_prompt + o->rig.outs[id].max_tokens;
        check_end(o, id);
    }
    if (step > 20 * work) {
        fail_msg("seed %llu: %u steps for %llu tokens", (unsigned long long)seed, step,
                 (unsigned long long)work);
    }
    check_waits(o);
    add_met(o, met, step);
    rig_close(&o->rig);
    free(o);
}

static void every_request_ends_in_overload_with_growth(void **state) /* V51, V52, V53, V54, S36 */
{
    (void)state;
    const char *one = getenv("KEDGE_SEED"), *many = getenv("KEDGE_OVERLOADS");
    uint64_t n = many != NULL                   ? strtoull(many, NULL, 10)
                 : getenv("KEDGE_FULL") != NULL ? 10000
                                                : 300;
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
    struct met met = {0};

    n = one != NULL && many == NULL ? 1 : n;
    for (uint64_t seed = first; seed < first + n; seed++) {
        if (one != NULL || getenv("KEDGE_LOUD") != NULL) {
            print_message("seed %llu\n", (unsigned long long)seed);
        }
        run_seed(seed, &met);
    }
    print_message("%llu seeds from %llu on: %llu requests in %llu steps, longest without progress "
                  "%llu; %llu preemptions (%llu with expected lifetimes), %llu requests put off, "
                  "%llu drafts accepted, %llu units evicted; ended: %llu stop %llu length %llu "
                  "cancelled %llu timeout %llu refused\n",
                  (unsigned long long)met.seeds, (unsigned long long)first,
                  (unsigned long long)met.requests, (unsigned long long)met.steps,
                  (unsigned long long)met.max_gap, (unsigned long long)met.preemptions,
                  (unsigned long long)met.expected, (unsigned long long)met.deferred,
                  (unsigned long long)met.accepted, (unsigned long long)met.evicted,
                  (unsigned long long)met.finished[KG_FINISH_STOP],
                  (unsigned long long)met.finished[KG_FINISH_LENGTH],
                  (unsigned long long)met.finished[KG_FINISH_CANCELLED],
                  (unsigned long long)met.finished[KG_FINISH_TIMEOUT],
                  (unsigned long long)met.finished[KG_FINISH_REFUSED]);
    if (n >= 300) {
        assert_true(met.preemptions > met.seeds && met.expected > 0 && met.deferred > 0);
        assert_true(met.accepted > 0 && met.evicted > 0 && met.finished[KG_FINISH_LENGTH] > 0);
        assert_true(met.finished[KG_FINISH_CANCELLED] > 0 && met.finished[KG_FINISH_TIMEOUT] > 0 &&
                    met.finished[KG_FINISH_REFUSED] > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_ends_in_overload_with_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
