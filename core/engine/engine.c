/* The engine's life, its thread, and the order of a step. */
#include "base/clock.h"
#include "engine/internal.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REST_MS 1000 /* idle for so long, the engine checks itself */

/* --- life --- */

static int check_conf(const struct kg_engine_conf *c, struct kg_error *err)
{
    if (c->max_seqs == 0 || c->step_tokens == 0 || c->prefill_chunk == 0 || c->page_tokens == 0) {
        return kg_fail(
            err, KG_ECONFIG,
            "max_seqs %u, step_tokens %u, prefill_chunk %u, page_tokens %u: none may be 0",
            c->max_seqs, c->step_tokens, c->prefill_chunk, c->page_tokens);
    }
    if (c->max_requests < c->max_seqs || c->max_requests > 1u << 20) {
        return kg_fail(err, KG_ECONFIG, "max_requests %u must be between max_seqs %u and %u",
                       c->max_requests, c->max_seqs, 1u << 20);
    }
    return KG_OK;
}

/* Arrays of a step, sized once for the largest. */
static int alloc_all(struct kg_engine *e)
{
    uint32_t n = e->conf.max_seqs, rows = 1 + e->max_block;
    int missing = 0;

    e->reqs = calloc(e->conf.max_requests, sizeof(*e->reqs));
    e->waiting.cap = 2 * e->conf.max_requests + 2;
    e->waiting.head = e->waiting.cap / 2;
    e->waiting.rows = calloc(e->waiting.cap, sizeof(*e->waiting.rows));
    e->running = calloc(n, sizeof(*e->running));
    e->admitted = calloc(n, sizeof(*e->admitted));
    e->free_slots = calloc(n, sizeof(*e->free_slots));
    e->items = calloc(n, sizeof(*e->items));
    e->picks = calloc(n, sizeof(*e->picks));
    e->seqs = calloc(n, sizeof(*e->seqs));
    e->orders = calloc((size_t)n * e->desc.max_orders + 1, sizeof(*e->orders));
    e->order_why = calloc((size_t)n * e->desc.max_orders + 1, sizeof(*e->order_why));
    e->spec_seqs = calloc(n, sizeof(*e->spec_seqs));
    e->drafts = calloc(n, sizeof(*e->drafts));
    e->survival = calloc((size_t)n * rows, sizeof(*e->survival));
    e->draft_tokens = calloc((size_t)n * rows + 1, sizeof(*e->draft_tokens));
    e->draft_counts = calloc(n, sizeof(*e->draft_counts));
    e->lengths = calloc(n, sizeof(*e->lengths));
    for (uint32_t i = 0; i < e->n_arms; i++) {
        e->arms[i].seen = calloc(2 * (size_t)n, sizeof(*e->arms[i].seen));
        missing |= e->arms[i].seen == NULL;
    }
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        e->ballast[k] = calloc(2 * (size_t)e->test.relocate + 1, sizeof(uint32_t));
    }
    if (e->reqs == NULL || e->waiting.rows == NULL || e->running == NULL || e->admitted == NULL ||
        e->free_slots == NULL || e->items == NULL || e->picks == NULL || e->seqs == NULL ||
        e->orders == NULL || e->order_why == NULL || e->spec_seqs == NULL || e->drafts == NULL ||
        e->survival == NULL || e->draft_tokens == NULL || e->draft_counts == NULL ||
        e->lengths == NULL || missing || e->ballast[KG_PAGE] == NULL ||
        e->ballast[KG_STATE] == NULL) {
        return KG_ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        e->free_slots[e->n_free_slots++] = n - 1 - i;
    }
    return KG_OK;
}

static void free_all(struct kg_engine *e)
{
    free(e->reqs);
    free(e->waiting.rows);
    free(e->running);
    free(e->admitted);
    free(e->free_slots);
    free(e->items);
    free(e->picks);
    free(e->seqs);
    free(e->orders);
    free(e->order_why);
    free(e->spec_seqs);
    free(e->drafts);
    free(e->survival);
    free(e->draft_tokens);
    free(e->draft_counts);
    free(e->lengths);
    for (uint32_t i = 0; i < e->n_arms; i++) {
        free(e->arms[i].seen);
    }
    free(e->ballast[KG_PAGE]);
    free(e->ballast[KG_STATE]);
}

static int open_pool(struct kg_engine *e, struct kg_error *err)
{
    const struct kg_engine_parts *p = &e->parts;
    struct kg_pool_geom geom = {.size = sizeof(geom),
                                .arena_bytes = e->conf.arena_bytes,
                                .token_bytes = e->desc.token_bytes,
                                .state_part_bytes = e->desc.state_part_bytes,
                                .n_state_parts = e->desc.n_state_parts,
                                .page_tokens = e->conf.page_tokens,
                                .page_tokens_align = e->desc.page_tokens_align,
                                .align = e->desc.align,
                                .max_seqs = e->conf.max_seqs};

    e->layout.size = sizeof(e->layout);
    int rc = p->pool_ops->open(p->pool_host, p->pool_conf, &geom, &e->pool, &e->layout, err);
    if (rc == KG_OK) {
        rc = p->exec_ops->bind(p->exec, &e->layout, err);
    }
    return rc;
}

/* Rows a sequence may verify, now and with whatever may be swapped in. */
static void size_blocks(struct kg_engine *e)
{
    uint32_t most = e->conf.max_draft;

    for (uint32_t i = 0; i < e->n_arms; i++) {
        struct kg_arm *a = &e->arms[i];
        a->block = kg_draft_block(e, a->spec_ops, a->spec, a->spec_caps);
    }
    kg_draft_size(e);
    most = e->desc.caps & KG_EXEC_CAP_VERIFY ? most : 0;
    most = most < e->desc.max_draft ? most : e->desc.max_draft;
    most = most < e->conf.step_tokens - 1 ? most : e->conf.step_tokens - 1;
    e->max_block = e->block > most ? e->block : most;
}

static int measure_cost(struct kg_engine *e, struct kg_error *err)
{
    int rc = kg_cost_measure(&e->cost_table, e->parts.exec_ops, e->parts.exec, e->conf.max_seqs,
                             e->conf.step_tokens, e->max_context);

    if (rc != KG_OK) {
        return kg_fail(err, rc, "the backend cannot time a step ([engine] cost = measured)");
    }
    /* with a drafter at hand, whoever drafts now: a plugin may be put in that does */
    uint32_t block = e->desc.draft_block < e->max_block ? e->desc.draft_block : e->max_block;
    if (block > 0) {
        rc = kg_draft_cost_measure(&e->cost_table.draft, e->parts.exec_ops, e->parts.exec,
                                   e->conf.max_seqs, block, e->max_context);
    }
    if (rc != KG_OK) {
        return kg_fail(err, rc, "the backend cannot time a draft ([engine] cost = measured)");
    }
    return KG_OK;
}

/* The surface of `cost`, measured before the index and the pool hold anything. */
static int make_cost(struct kg_engine *e, struct kg_error *err)
{
    if (e->conf.cost_table != NULL) {
        e->cost_table = *e->conf.cost_table;
        e->conf.cost_table = NULL; /* the caller's */
        e->conf.cost = 0;
    } else if (e->conf.cost) {
        int rc = measure_cost(e, err);
        if (rc != KG_OK) {
            return rc;
        }
    } else {
        return KG_OK;
    }
    e->cost = (struct kg_cost){sizeof(e->cost), &e->cost_table, kg_cost_step_ns, kg_cost_draft_ns};
    return KG_OK;
}

/* Arms as given, or one of what holds for the engine. */
static int set_arms(struct kg_engine *e, struct kg_error *err)
{
    const struct kg_engine_conf *c = &e->conf;
    const struct kg_engine_arm one = {.name = "",
                                      .checkpoint = c->checkpoint,
                                      .interval = c->interval,
                                      .lifetime = c->lifetime,
                                      .accept = c->accept,
                                      .spec_ops = e->parts.spec_ops,
                                      .spec = e->parts.spec,
                                      .spec_caps = e->parts.spec_caps};
    const struct kg_engine_arm *given = e->parts.n_arms > 0 ? e->parts.arms : &one;
    uint32_t n = e->parts.n_arms > 0 ? e->parts.n_arms : 1;

    if (n > KG_MAX_ARMS || (e->parts.n_arms > 0 && e->parts.spec_ops != NULL)) {
        return kg_fail(err, KG_EINVAL, "%u arms: at most %u, and no speculation beside theirs", n,
                       KG_MAX_ARMS);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct kg_arm *a = &e->arms[i];
        *a = (struct kg_arm){.salt = given[i].salt,
                             .checkpoint = given[i].checkpoint,
                             .interval = given[i].interval,
                             .lifetime = given[i].lifetime,
                             .accept = given[i].accept,
                             .spec_ops = given[i].spec_ops,
                             .spec = given[i].spec,
                             .spec_caps = given[i].spec_caps};
        (void)snprintf(a->name, sizeof(a->name), "%s", given[i].name);
    }
    e->n_arms = n;
    e->parts.arms = NULL; /* the caller's */
    return KG_OK;
}

static int init(struct kg_engine *e, struct kg_error *err)
{
    e->parts.exec_ops->describe(e->parts.exec, &e->desc);
    e->max_context = e->desc.max_context;
    if (e->conf.max_context != 0 && e->conf.max_context < e->max_context) {
        e->max_context = e->conf.max_context;
    }
    size_blocks(e);
    int rc = open_pool(e, err);
    if (rc != KG_OK) {
        return rc;
    }
    if (alloc_all(e) != KG_OK || kg_stats_create(e) != KG_OK || kg_port_create(e) != KG_OK ||
        kg_window_create(e) != KG_OK || kg_picture_create(e) != KG_OK) {
        return kg_fail(err, KG_ENOMEM, "no memory for an engine of %u sequences, %u requests",
                       e->conf.max_seqs, e->conf.max_requests);
    }
    rc = make_cost(e, err);
    if (rc == KG_OK) {
        rc = kg_tier_create(e, err);
    }
    if (rc == KG_OK) {
        rc = kg_cache_create(e, err);
    }
    if (rc != KG_OK) {
        return rc;
    }
    e->max_pages = kg_adm_probe(e);
    if (kg_adm_max_pages(e, 1, 1) > e->max_pages) {
        return kg_fail(err, KG_ECONFIG,
                       "the pool holds %u pages beside a state, one request of two "
                       "tokens needs %llu",
                       e->max_pages, (unsigned long long)kg_adm_max_pages(e, 1, 1));
    }
    kg_rng_seed(&e->rng, e->test.seed);
    kg_draft_observe(e, 0); /* the first cap */
    kg_stats_publish(e, e->parts.exec_ops->now(e->parts.exec));
    return KG_OK;
}

int kg_engine_create(const struct kg_engine_parts *parts, const struct kg_engine_conf *conf,
                     struct kg_engine **engine, struct kg_error *err)
{
    int rc = check_conf(conf, err);

    if (rc != KG_OK) {
        return rc;
    }
    struct kg_engine *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory for an engine");
    }
    e->parts = *parts;
    e->room_fd = -1;
    e->n_changes = 1;
    e->horizon_ns = UINT64_MAX;
    e->n_rules = 1;
    e->conf = *conf;
    if (conf->test != NULL) {
        e->test = *conf->test;
        e->conf.test = NULL;
    }
    rc = set_arms(e, err);
    rc = rc == KG_OK ? init(e, err) : rc;
    if (rc != KG_OK) {
        kg_engine_destroy(e);
        return rc;
    }
    *engine = e;
    return KG_OK;
}

void kg_engine_destroy(struct kg_engine *engine)
{
    if (engine == NULL) {
        return;
    }
    kg_engine_stop(engine);
    if (engine->outbox != NULL) {
        (void)kg_port_drain(engine, 0);
        (void)kg_adm_drop_ballast(engine);
        kg_req_end_all(engine, KG_FINISH_CANCELLED, KG_ECANCEL, NULL);
    }
    if (engine->pool != NULL) {
        engine->parts.pool_ops->close(engine->pool);
    }
    kg_cache_destroy(engine);
    kg_tier_destroy(engine);
    kg_port_destroy(engine);
    kg_stats_destroy(engine);
    kg_picture_destroy(engine);
    kg_window_destroy(engine);
    free_all(engine);
    free(engine);
}

/* --- the step --- */

void kg_engine_lose(struct kg_engine *e, const struct kg_error *why)
{
    e->error = *why;
    atomic_store(&e->lost, 1);
    kg_req_end_all(e, KG_FINISH_ERROR, KG_EDEVICE, why->text);
}

/* Self-checks; what they find ends the engine like a lost backend. */
static void check_all(struct kg_engine *e)
{
    struct kg_error why = {0};

    int rc = kg_req_check(e, &why);
    if (rc == KG_OK) {
        rc = e->parts.pool_ops->check(e->pool, &why);
    }
    if (rc == KG_OK) {
        rc = e->parts.sched_ops->check(e->parts.sched, &why);
    }
    for (uint32_t i = 0; rc == KG_OK && i < e->n_arms; i++) {
        const struct kg_arm *a = &e->arms[i];
        rc = a->spec_ops != NULL ? a->spec_ops->check(a->spec, &why) : KG_OK;
    }
    if (rc == KG_OK && e->tier != NULL) {
        rc = e->parts.tier_ops->check(e->tier, &why);
    }
    if (rc != KG_OK) {
        kg_engine_lose(e, &why);
    }
}

/* Nothing ran: memory is put in order, then virtual time moves on to the next deadline. 1: call
 * again. */
static int idle(struct kg_engine *e)
{
    uint64_t deadline = kg_req_deadline(e);

    if (kg_adm_tidy(e)) {
        return 1;
    }
    if (deadline != UINT64_MAX && (e->desc.caps & KG_EXEC_CAP_VIRTUAL)) {
        deadline = deadline < e->horizon_ns ? deadline : e->horizon_ns;
        e->parts.exec_ops->advance(e->parts.exec, deadline);
        e->moved_clock = 1;
    }
    return 0;
}

static int run_step(struct kg_engine *e)
{
    int changed = kg_port_drain(e, 0);
    struct kg_error why = {0};

    if (atomic_load_explicit(&e->lost, memory_order_relaxed)) {
        kg_req_end_all(e, KG_FINISH_ERROR, KG_EDEVICE, e->error.text);
        return changed;
    }
    changed += kg_req_timeouts(e, e->parts.exec_ops->now(e->parts.exec));
    if (e->n_live == 0) {
        if (e->parts.well != NULL && e->parts.well(e->parts.well_ctx, &why) != KG_OK) {
            kg_engine_lose(e, &why);
            return 1;
        }
        changed = changed == 0 ? idle(e) : changed;
        if (e->conf.debug && changed > 0) {
            check_all(e);
        }
        return changed;
    }
    e->step++;
    kg_tier_begin(e);
    kg_pol_begin(e, e->parts.exec_ops->now(e->parts.exec));
    kg_adm_disturb(e);
    kg_adm_growth(e);
    changed += kg_tier_step(e);
    uint64_t before = e->n_changes;
    kg_plan_step(e);
    changed += e->n_changes != before; /* refused for good, or admitted and not planned yet */
    changed += e->n_put_off > 0;       /* behind those put off others may be let in */
    if (e->n_picks == 0) {
        if (changed == 0) {
            changed = idle(e);
        }
    } else {
        changed++;
        if (kg_batch_run(e, &why) == KG_EDEVICE) {
            kg_engine_lose(e, &why);
        }
    }
    if (e->conf.debug) {
        check_all(e);
    }
    return changed;
}

int kg_engine_step(struct kg_engine *engine, struct kg_error *err)
{
    uint64_t t0 = kg_engine_tick(engine);

    engine->exec_ns = 0;
    engine->moved_clock = 0;
    if (!kg_port_room(engine)) {
        return 0;
    }
    uint64_t steps = engine->stats.steps;
    int changed = run_step(engine);
    kg_port_flush(engine);
    if (engine->stats.steps != steps) {
        engine->stats.overhead_ns_sum += kg_engine_tick(engine) - t0 - engine->exec_ns;
    }
    kg_picture_step(engine, engine->stats.steps != steps);
    kg_stats_publish(engine, engine->parts.exec_ops->now(engine->parts.exec));
    if (atomic_load_explicit(&engine->lost, memory_order_relaxed)) {
        kg_req_end_all(engine, KG_FINISH_ERROR, KG_EDEVICE, engine->error.text);
        kg_port_flush(engine);
        return kg_fail(err, KG_EDEVICE, "%s", engine->error.text);
    }
    return changed > 0;
}

void kg_engine_use_policy(struct kg_engine *engine, const struct kg_engine_policy *policy)
{
    engine->parts.policy = policy;
}

/* --- the thread --- */

/* Sleeps until the inbox speaks or the next deadline of the real clock. */
static void sleep_until(struct kg_engine *e, uint64_t deadline)
{
    int timeout_ms = -1;

    if (deadline != UINT64_MAX) {
        uint64_t now = e->parts.exec_ops->now(e->parts.exec);
        uint64_t ms = deadline > now ? (deadline - now) / 1000000 + 1 : 0;
        timeout_ms = ms < INT_MAX ? (int)ms : INT_MAX;
    }
    kg_ring_wait(e->inbox, timeout_ms);
}

/* Nobody is there and nobody came for a while: time to look whether everything is in order, once
 * for each spell of work. */
static void rest(struct kg_engine *e)
{
    size_t bytes;

    if (e->checked == e->stats.steps || e->conf.debug) {
        kg_ring_wait(e->inbox, e->parts.well != NULL ? REST_MS : -1);
        return;
    }
    kg_ring_wait(e->inbox, REST_MS);
    if (kg_ring_peek(e->inbox, &bytes) == NULL && !atomic_load(&e->stop)) {
        e->checked = e->stats.steps;
        check_all(e);
    }
}

static void *thread_main(void *arg)
{
    struct kg_engine *e = arg;
    struct kg_error err;
    size_t bytes;

    while (!atomic_load(&e->stop)) {
        int rc = kg_engine_step(e, &err);
        if (rc > 0 || e->moved_clock) {
            continue;
        }
        if (e->full) {
            kg_port_wait_room(e); /* messages may wait meanwhile */
        } else if (kg_ring_peek(e->inbox, &bytes) == NULL && !atomic_load(&e->stop) &&
                   !kg_picture_is_asked(e)) {
            if (rc >= 0 && e->n_live == 0) {
                rest(e);
            } else {
                sleep_until(e, rc < 0 ? UINT64_MAX : kg_req_deadline(e));
            }
        }
    }
    return NULL;
}

int kg_engine_start(struct kg_engine *engine, struct kg_error *err)
{
    if (engine->started) {
        return kg_fail(err, KG_EINVAL, "the engine thread runs already");
    }
    atomic_store(&engine->stop, 0);
    int rc = pthread_create(&engine->thread, NULL, thread_main, engine);
    if (rc != 0) {
        return kg_fail(err, KG_ENOMEM, "cannot start the engine thread: %s", strerror(rc));
    }
    engine->started = 1;
    return KG_OK;
}

void kg_engine_stop(struct kg_engine *engine)
{
    if (engine->started) {
        atomic_store(&engine->stop, 1);
        kg_port_wake(engine);
        (void)pthread_join(engine->thread, NULL);
        engine->started = 0;
    }
}

void kg_engine_horizon(struct kg_engine *engine, uint64_t ns)
{
    engine->horizon_ns = ns;
}

void kg_engine_count_cpu(struct kg_engine *engine)
{
    engine->count_cpu = 1;
}

/* --- constants --- */

const struct kg_exec_desc *kg_engine_desc(const struct kg_engine *engine)
{
    return &engine->desc;
}

const struct kg_pool_layout *kg_engine_layout(const struct kg_engine *engine)
{
    return &engine->layout;
}

uint32_t kg_engine_max_tokens(const struct kg_engine *engine)
{
    uint64_t held = (uint64_t)engine->max_pages * engine->layout.page_tokens - engine->max_block;

    return held < engine->max_context ? (uint32_t)held : engine->max_context;
}

const struct kg_cost_table *kg_engine_cost(const struct kg_engine *engine)
{
    return engine->cost.size != 0 ? &engine->cost_table : NULL;
}
