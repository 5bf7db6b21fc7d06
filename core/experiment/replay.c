#include "experiment/replay_int.h"

#include "base/clock.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- the heap --- */

static int before(const struct kg_replay_due *a, const struct kg_replay_due *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->serial < b->serial;
}

static int heap_add(struct kg_replay_play *r, uint64_t at_ns, uint32_t req, uint32_t kind)
{
    if (r->n_heap == r->cap_heap) {
        size_t cap = r->cap_heap == 0 ? 1024 : 2 * r->cap_heap;
        struct kg_replay_due *p = realloc(r->heap, cap * sizeof(*p));
        if (p == NULL) {
            return kg_fail(r->err, KG_ENOMEM, "no memory for %zu arrivals", cap);
        }
        r->heap = p;
        r->cap_heap = cap;
    }
    struct kg_replay_due d = {at_ns, r->serial++, req, kind};
    r->n_coming += kind == KG_DUE_ARRIVE;
    size_t i = r->n_heap++;
    while (i > 0 && before(&d, &r->heap[(i - 1) / 2])) {
        r->heap[i] = r->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    r->heap[i] = d;
    return KG_OK;
}

static struct kg_replay_due heap_pop(struct kg_replay_play *r)
{
    struct kg_replay_due top = r->heap[0], d = r->heap[--r->n_heap];
    size_t i = 0, k;

    r->n_coming -= top.kind == KG_DUE_ARRIVE;
    while ((k = 2 * i + 1) < r->n_heap) {
        k += k + 1 < r->n_heap && before(&r->heap[k + 1], &r->heap[k]);
        if (!before(&r->heap[k], &d)) {
            break;
        }
        r->heap[i] = r->heap[k];
        i = k;
    }
    r->heap[i] = d;
    return top;
}

/* --- time --- */

static void advance(const struct kg_replica *p, uint64_t ns)
{
    p->c->exec_ops->advance(p->c->exec, p->start_ns + ns);
}

/* Where request i is or was. */
static struct kg_replica *home(const struct kg_replay_play *r, uint32_t i)
{
    return &r->replicas[r->out->rows[i].replica];
}

static uint64_t stretched(const struct kg_replay_play *r, uint64_t ns)
{
    if (r->c->saturate) {
        return 0;
    }
    double v = (double)ns * r->c->stretch;
    return v < 9e18 ? (uint64_t)(v + 0.5) : (uint64_t)9e18;
}

/* --- requests --- */

/* A request is over: its next turns may come. */
static int settle(struct kg_replay_play *r, uint32_t i)
{
    struct kg_replay_row *row = &r->out->rows[i];
    const struct kg_trace *t = r->c->trace;
    int rc = KG_OK;

    r->n_done++;
    for (uint32_t k = r->child[i]; rc == KG_OK && k != KG_NONE; k = r->sibling[k]) {
        uint64_t at = row->done_ns + stretched(r, t->reqs[k].delay_ns);
        uint64_t floor_ns = stretched(r, t->reqs[k].arrive_ns);
        rc = heap_add(r, at > floor_ns ? at : floor_ns, k, KG_DUE_ARRIVE);
    }
    if (rc == KG_OK && r->c->router != NULL) {
        rc = heap_add(r, row->done_ns, i, KG_DUE_LEAVE);
    }
    return rc;
}

/* Ends a request that the engine did not take. */
static int refuse(struct kg_replay_play *r, uint32_t i, int rc, const char *text)
{
    struct kg_replay_row *row = &r->out->rows[i];

    row->outcome = KG_OUTCOME_REFUSED;
    if (row->reason != KG_REASON_POLICY) {
        row->reason = rc == KG_EAGAIN ? KG_REASON_QUEUE : KG_REASON_NEVER;
    }
    if (rc != KG_EAGAIN && rc != KG_ENEVER && rc != KG_ELIMIT) {
        row->outcome = KG_OUTCOME_ERROR;
        row->reason = KG_REASON_FAULT;
    }
    row->detail = strdup(text);
    row->done_ns = kg_replica_now(home(r, i));
    return settle(r, i);
}

/* The policy's word; 1 when it refused the request. */
static int ask_policy(struct kg_replay_play *r, uint32_t i, struct kg_replay_arrival *a)
{
    if (r->c->arrive == NULL) {
        return 0;
    }
    r->c->arrive(r->c->ctx, a);
    if (a->rejected) {
        r->out->rows[i].reason = KG_REASON_POLICY;
    }
    return (int)a->rejected;
}

/* Which replicas may take one more: all, but for saturate. */
static uint64_t open_replicas(const struct kg_replay_play *r)
{
    uint64_t open = 0;

    for (uint32_t k = 0; k < r->c->n_replicas; k++) {
        if (!r->c->saturate || r->replicas[k].n_live < r->c->max_live) {
            open |= UINT64_C(1) << k;
        }
    }
    return open;
}

/* Chooses a replica, whose clock is brought to the arrival if it slept. r->tokens is the prompt. */
static int route(struct kg_replay_play *r, const struct kg_replay_due *d, uint64_t open)
{
    const struct kg_trace *t = r->c->trace;
    const struct kg_trace_req *q = &t->reqs[d->req];
    const struct kg_route_req req = {.tokens = r->tokens,
                                     .n_prompt = q->n_prompt,
                                     .tenant = q->tenant,
                                     .bounds = t->bounds + q->bounds_at,
                                     .n_bounds = q->n_bounds};
    uint32_t k = 0;

    if (r->c->router != NULL) {
        int rc = kg_router_choose(r->c->router, &req, open, &k);
        if (rc != KG_OK) {
            return kg_fail(r->err, rc, "no memory to route a prompt of %u tokens", q->n_prompt);
        }
    }
    struct kg_replica *p = &r->replicas[k];
    r->out->rows[d->req].replica = k;
    r->out->rows[d->req].expected = r->c->router != NULL ? kg_router_expected(r->c->router) : 0;
    if (!p->is_awake && r->is_virtual && kg_replica_now(p) < d->at_ns) {
        advance(p, d->at_ns);
    }
    p->is_awake = 1;
    p->is_stuck = 0;
    return KG_OK;
}

/* KG_EAGAIN only with saturate: the request must come again. */
static int submit(struct kg_replay_play *r, const struct kg_replay_due *d)
{
    const struct kg_trace *t = r->c->trace;
    const struct kg_trace_req *q = &t->reqs[d->req];
    struct kg_replay_row *row = &r->out->rows[d->req];
    struct kg_replica *p = home(r, d->req);
    struct kg_replay_arrival a = {.tenant = t->text + q->tenant_at,
                                  .n_prompt = q->n_prompt,
                                  .now_ns = kg_replica_now(p) + p->start_ns,
                                  .n_live = p->n_live,
                                  .replica = row->replica,
                                  .stats = &p->out->stats,
                                  .max_tokens = q->n_output};
    struct kg_error why = {0};

    row->arrival_ns = d->at_ns;
    row->n_prompt = q->n_prompt;
    if (ask_policy(r, d->req, &a)) {
        return refuse(r, d->req, KG_ELIMIT, a.reason);
    }
    int renamed = a.tenant_name[0] != '\0';
    const char *tenant = renamed ? a.tenant_name : a.tenant;
    const struct kg_request req = {
        .id = (uint64_t)d->req + 1,
        .tokens = r->tokens,
        .n_prompt = q->n_prompt,
        .max_tokens = a.max_tokens,
        .priority = a.priority,
        .tenant = renamed ? kg_hash_bytes(tenant, strlen(tenant), 0) | 1 : q->tenant,
        .tenant_name = tenant,
        .class_name = a.class_name,
        .sampling = {.seed = (uint64_t)d->req + 1, .ignore_eos = 1},
        .boundaries = t->bounds + q->bounds_at,
        .n_boundaries = q->n_bounds,
    };
    int rc = kg_engine_submit(p->c->engine, &req, &why);
    if (rc != KG_OK) {
        return rc == KG_EAGAIN && r->c->saturate ? rc : refuse(r, d->req, rc, why.text);
    }
    r->live[d->req] = 1;
    r->n_live++;
    p->n_live++;
    if (q->cancel_ns != KG_TRACE_NEVER && !r->c->saturate) {
        return heap_add(r, d->at_ns + q->cancel_ns, d->req, KG_DUE_CANCEL);
    }
    return KG_OK;
}

static int arrive(struct kg_replay_play *r, const struct kg_replay_due *d, uint64_t open)
{
    kg_expand_prompt(r->c->expand, d->req, r->tokens);
    int rc = route(r, d, open);
    if (rc == KG_OK) {
        rc = submit(r, d);
    }
    if (rc == KG_EAGAIN) {
        if (r->c->router != NULL) {
            kg_router_done(r->c->router, r->out->rows[d->req].replica);
        }
        rc = heap_add(r, d->at_ns, d->req, KG_DUE_ARRIVE);
        return rc == KG_OK ? KG_EAGAIN : rc;
    }
    return rc;
}

/* Everything that is due by t, as long as no replica is behind it: one that wakes may be.
 * KG_EAGAIN: the engine takes no more for now. */
static int play_due(struct kg_replay_play *r, uint64_t t)
{
    int rc = KG_OK;

    while (rc == KG_OK && r->n_heap > 0 && r->heap[0].at_ns <= t) {
        struct kg_replay_due d = r->heap[0];
        uint64_t open = open_replicas(r);
        if (d.kind == KG_DUE_ARRIVE && open == 0) {
            break;
        }
        (void)heap_pop(r);
        if (d.kind == KG_DUE_LEAVE) {
            kg_router_done(r->c->router, r->out->rows[d.req].replica);
        } else if (d.kind == KG_DUE_ARRIVE) {
            rc = arrive(r, &d, open);
            uint64_t at = kg_replica_now(home(r, d.req));
            t = at < t ? at : t;
        } else if (r->live[d.req]) {
            kg_engine_cancel(home(r, d.req)->c->engine, (uint64_t)d.req + 1);
        }
    }
    return rc == KG_EAGAIN ? KG_OK : rc;
}

static void set_outcome(struct kg_replay_row *row, const struct kg_event *ev)
{
    static const struct {
        uint32_t outcome, reason;
    } table[] = {
        [KG_FINISH_STOP] = {KG_OUTCOME_OK, KG_REASON_STOP},
        [KG_FINISH_LENGTH] = {KG_OUTCOME_OK, KG_REASON_LENGTH},
        [KG_FINISH_CALLER] = {KG_OUTCOME_OK, KG_REASON_STOP},
        [KG_FINISH_CANCELLED] = {KG_OUTCOME_CANCELLED, KG_REASON_CLIENT},
        [KG_FINISH_ERROR] = {KG_OUTCOME_ERROR, KG_REASON_FAULT},
        [KG_FINISH_TIMEOUT] = {KG_OUTCOME_REFUSED, KG_REASON_TIMEOUT},
        [KG_FINISH_REFUSED] = {KG_OUTCOME_REFUSED, KG_REASON_NEVER},
    };

    row->outcome = table[ev->finish].outcome;
    row->reason = table[ev->finish].reason;
    if (ev->finish == KG_FINISH_REFUSED && ev->rc != KG_ENEVER) {
        row->reason = KG_REASON_POLICY;
    }
    if (row->outcome == KG_OUTCOME_ERROR || row->outcome == KG_OUTCOME_REFUSED) {
        row->detail = strdup(ev->text);
    }
}

static uint64_t since_start(const struct kg_replica *p, uint64_t ns)
{
    return ns < p->start_ns || ns == 0 ? UINT64_MAX : ns - p->start_ns;
}

static int take_done(struct kg_replay_play *r, const struct kg_event *ev)
{
    uint32_t i = (uint32_t)(ev->id - 1);
    struct kg_replay_row *row = &r->out->rows[i];
    struct kg_replica *p = home(r, i);

    set_outcome(row, ev);
    row->n_output = ev->n_output;
    row->reused = row->hit_state = ev->n_cached; /* a state counts where its pages are there too */
    row->lost = ev->n_lost;
    row->hit_page = ev->n_cached + ev->n_lost;
    row->n_checkpoints = ev->n_checkpoints;
    row->n_preempted = ev->n_preempted;
    row->n_drafted = ev->n_drafted;
    row->n_verified = ev->n_verified;
    row->n_accepted = ev->n_accepted;
    row->admitted_ns = since_start(p, ev->admitted_ns);
    row->first_ns = since_start(p, ev->first_ns);
    row->done_ns = since_start(p, ev->done_ns);
    if (row->done_ns == UINT64_MAX) {
        row->done_ns = kg_replica_now(p);
    }
    r->live[i] = 0;
    r->n_live--;
    p->n_live--;
    return settle(r, i);
}

static void take_tokens(struct kg_replay_play *r, const struct kg_event *ev)
{
    uint64_t *h = &r->out->rows[ev->id - 1].output_hash;

    for (uint32_t i = 0; i < ev->n; i++) {
        *h = kg_hash_mix(*h + ev->tokens[i] + 1);
    }
}

static int read_events(struct kg_replay_play *r, const struct kg_replica *p)
{
    struct kg_event ev;
    int rc = KG_OK;

    while (rc == KG_OK && kg_engine_next(p->c->engine, &ev) == KG_OK) {
        if (ev.type == KG_EVENT_DONE) {
            rc = take_done(r, &ev);
        } else if (ev.type == KG_EVENT_TOKENS) {
            take_tokens(r, &ev);
        }
    }
    return rc;
}

/* --- the loop --- */

static void show(struct kg_replay_play *r, const struct kg_replica *p)
{
    if (r->c->progress != NULL && kg_now_ns() - r->shown_ns > KG_NS_PER_S / 2) {
        r->shown_ns = kg_now_ns();
        r->c->progress(r->c->ctx, r->n_done, r->out->n, kg_replica_now(p));
    }
}

/* The awake replica that is furthest behind; of equals one that is not stuck. NULL: all sleep. */
static struct kg_replica *furthest_behind(struct kg_replay_play *r)
{
    struct kg_replica *best = NULL;
    uint64_t best_ns = 0;

    for (uint32_t k = 0; k < r->c->n_replicas; k++) {
        struct kg_replica *p = &r->replicas[k];
        uint64_t t = p->is_awake ? kg_replica_now(p) : 0;
        if (p->is_awake &&
            (best == NULL || t < best_ns || (t == best_ns && best->is_stuck && !p->is_stuck))) {
            best = p;
            best_ns = t;
        }
    }
    return best;
}

/* The next time at which something can happen to p from outside: an arrival, or another replica
 * ending a request. t itself when another one may still do something at t; UINT64_MAX: never. */
static uint64_t next_outside(const struct kg_replay_play *r, const struct kg_replica *p, uint64_t t)
{
    uint64_t next = r->n_heap > 0 && r->heap[0].at_ns > t ? r->heap[0].at_ns : UINT64_MAX;

    for (uint32_t k = 0; k < r->c->n_replicas; k++) {
        const struct kg_replica *o = &r->replicas[k];
        if (o == p || !o->is_awake) {
            continue;
        }
        uint64_t at = kg_replica_now(o);
        if ((at > t || !o->is_stuck) && at < next) {
            next = at;
        }
    }
    return next;
}

/* p ran nothing and its time stands: on to where something happens. Real time sleeps, at most a
 * little, so that the engine sees its own deadlines. Returns 1 when time can move. */
static int move_on(struct kg_replay_play *r, struct kg_replica *p)
{
    uint64_t t = kg_replica_now(p);

    if (p->n_live == 0 && r->is_virtual) {
        p->is_awake = 0;
        return 1;
    }
    if (r->n_heap > 0 && r->heap[0].at_ns <= t) { /* held back by max_live, or not looked at yet */
        return open_replicas(r) != 0;
    }
    uint64_t next = next_outside(r, p, t);
    if (r->is_virtual) {
        p->is_stuck = next == t;
        if (next != UINT64_MAX && next > t) {
            advance(p, next);
        }
        return next != UINT64_MAX;
    }
    uint64_t ns = next - t < 10 * KG_NS_PER_MS ? next - t : 10 * KG_NS_PER_MS;
    const struct timespec pause = {0, (long)ns};
    (void)nanosleep(&pause, NULL);
    return next != UINT64_MAX || r->n_live > 0;
}

/* One step of a replica. *idle counts turns in which nothing at all happened. */
static int step(struct kg_replay_play *r, struct kg_replica *p, uint32_t *idle)
{
    struct kg_error why = {0};
    uint64_t t = kg_replica_now(p);
    /* An idle step must not pass an arrival; one that is due already is held by max_live. */
    uint64_t next = next_outside(r, p, t);

    kg_engine_horizon(p->c->engine, next != UINT64_MAX ? p->start_ns + next : UINT64_MAX);
    int ran = kg_engine_step(p->c->engine, &why);
    int rc = read_events(r, p);
    if (rc == KG_OK) {
        rc = kg_replay_look(r, p);
    }
    if (rc != KG_OK) {
        return rc;
    }
    show(r, p);
    int moved = ran > 0 || kg_replica_now(p) > t;
    p->is_stuck = moved ? 0 : p->is_stuck;
    *idle = moved ? 0 : *idle + 1;
    if (ran <= 0 && kg_replica_now(p) == t && !move_on(r, p) && *idle > 8) {
        return kg_fail(r->err, KG_EDEVICE, "the engine stands still with %u requests: %s",
                       p->n_live, ran < 0 ? why.text : "no plan");
    }
    return KG_OK;
}

static int loop(struct kg_replay_play *r)
{
    uint32_t idle = 0;
    int rc = KG_OK;

    while (rc == KG_OK && (r->n_live > 0 || r->n_coming > 0)) {
        struct kg_replica *p = furthest_behind(r);
        uint64_t t = p != NULL ? kg_replica_now(p) : r->heap[0].at_ns;
        rc = play_due(r, t);
        if (rc == KG_OK && p != NULL && p == furthest_behind(r)) { /* nobody woke behind it */
            rc = step(r, p, &idle);
        }
    }
    return rc;
}

/* --- life --- */

static int prepare(struct kg_replay_play *r)
{
    const struct kg_trace *t = r->c->trace;
    uint32_t longest = 1;
    int rc = KG_OK;

    r->out->rows = calloc(t->n, sizeof(*r->out->rows));
    r->child = malloc(t->n * sizeof(*r->child));
    r->sibling = malloc(t->n * sizeof(*r->sibling));
    r->live = calloc(t->n, 1);
    for (uint32_t i = 0; i < t->n; i++) {
        longest = t->reqs[i].n_prompt > longest ? t->reqs[i].n_prompt : longest;
    }
    r->tokens = malloc((size_t)longest * sizeof(*r->tokens));
    if (r->out->rows == NULL || r->child == NULL || r->sibling == NULL || r->live == NULL ||
        r->tokens == NULL) {
        return kg_fail(r->err, KG_ENOMEM, "no memory for %u requests", t->n);
    }
    if (r->c->series) {
        r->out->series = calloc(1, sizeof(*r->out->series));
        if (r->out->series == NULL) {
            return kg_fail(r->err, KG_ENOMEM, "no memory for bytes over time");
        }
        r->out->series->width_ns = KG_NS_PER_MS;
    }
    r->out->n = t->n;
    memset(r->child, 0xff, t->n * sizeof(*r->child));
    for (uint32_t i = t->n; i-- > 0;) { /* backwards: lists in the order of the trace */
        uint32_t p = t->reqs[i].after;
        r->out->rows[i].admitted_ns = r->out->rows[i].first_ns = UINT64_MAX;
        if (p != KG_NONE) {
            r->sibling[i] = r->child[p];
            r->child[p] = i;
        }
    }
    for (uint32_t i = 0; rc == KG_OK && i < t->n; i++) {
        if (t->reqs[i].after == KG_NONE) {
            rc = heap_add(r, stretched(r, t->reqs[i].arrive_ns), i, KG_DUE_ARRIVE);
        }
    }
    return rc;
}

/* Clocks start at 1: 0 means "did not happen" in events. */
static void start(struct kg_replay_play *r)
{
    for (uint32_t k = 0; k < r->c->n_replicas; k++) {
        struct kg_replica *p = &r->replicas[k];
        p->c = &r->c->replicas[k];
        p->out = &r->out->shares[k];
        p->is_awake = 1;
        if (r->is_virtual && p->c->exec_ops->now(p->c->exec) == 0) {
            p->c->exec_ops->advance(p->c->exec, 1);
        }
        if (r->c->time_engine) {
            kg_engine_count_cpu(p->c->engine);
        }
        p->start_ns = p->c->exec_ops->now(p->c->exec);
    }
}

int kg_replay_run(const struct kg_replay_conf *conf, struct kg_replay_result *result,
                  struct kg_error *err)
{
    struct kg_replay_play r = {.c = conf, .out = result, .err = err};

    memset(result, 0, sizeof(*result));
    r.is_virtual = (kg_engine_desc(conf->replicas[0].engine)->caps & KG_EXEC_CAP_VIRTUAL) != 0;
    if (conf->n_replicas > 1 && (!r.is_virtual || conf->router == NULL)) {
        return kg_fail(err, KG_EINVAL, "several replicas need virtual time and a router");
    }
    result->n_replicas = conf->n_replicas;
    result->shares = calloc(conf->n_replicas, sizeof(*result->shares));
    r.replicas = calloc(conf->n_replicas, sizeof(*r.replicas));
    int rc = result->shares == NULL || r.replicas == NULL
                 ? kg_fail(err, KG_ENOMEM, "no memory for %u replicas", conf->n_replicas)
                 : KG_OK;
    if (rc == KG_OK) {
        start(&r);
        rc = prepare(&r);
    }
    if (rc == KG_OK) {
        rc = loop(&r);
    }
    if (rc == KG_OK) {
        kg_replay_finish(&r);
    }
    free(r.replicas);
    free(r.heap);
    free(r.child);
    free(r.sibling);
    free(r.live);
    free(r.tokens);
    return rc;
}

void kg_replay_free(struct kg_replay_result *result)
{
    for (uint32_t i = 0; result->rows != NULL && i < result->n; i++) {
        free(result->rows[i].detail);
    }
    free(result->rows);
    free(result->step_ns);
    free(result->engine_ns);
    free(result->series);
    free(result->shares);
    memset(result, 0, sizeof(*result));
}

int kg_replay_span(const struct kg_trace *trace, uint64_t *span_ns)
{
    uint64_t *at = calloc((size_t)trace->n + 1, sizeof(*at)), last = 0;

    if (at == NULL) {
        return KG_ENOMEM;
    }
    for (uint32_t i = 0; i < trace->n; i++) { /* a turn stands behind the one it follows */
        const struct kg_trace_req *q = &trace->reqs[i];
        at[i] = q->after != KG_NONE ? at[q->after] + q->delay_ns : q->arrive_ns;
        at[i] = at[i] > q->arrive_ns ? at[i] : q->arrive_ns;
        last = at[i] > last ? at[i] : last;
    }
    free(at);
    *span_ns = last;
    return KG_OK;
}
