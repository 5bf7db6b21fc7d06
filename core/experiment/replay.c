#include "experiment/replay.h"

#include "base/clock.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Something due at a time: ARRIVE or CANCEL of a request. */
struct due {
    uint64_t at_ns, serial; /* equal times in the order they were added */
    uint32_t req, cancel;
};

struct run {
    const struct kg_replay_conf *c;
    struct kg_replay_result *out;
    struct kg_error *err;
    struct due *heap; /* [n_heap] */
    size_t n_heap, cap_heap;
    uint64_t serial;
    uint32_t *child, *sibling; /* [n] turns that follow a request */
    uint8_t *live;             /* [n] */
    uint32_t *tokens;          /* scratch for the longest prompt */
    uint64_t start_ns;         /* backend clock at the start */
    uint32_t n_live, n_done, is_virtual;
    uint64_t last_ns, last_steps, last_step_sum, last_engine_sum, shown_ns;
};

/* --- the heap --- */

static int before(const struct due *a, const struct due *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->serial < b->serial;
}

static int heap_add(struct run *r, uint64_t at_ns, uint32_t req, uint32_t cancel)
{
    if (r->n_heap == r->cap_heap) {
        size_t cap = r->cap_heap == 0 ? 1024 : 2 * r->cap_heap;
        struct due *p = realloc(r->heap, cap * sizeof(*p));
        if (p == NULL) {
            return kg_fail(r->err, KG_ENOMEM, "no memory for %zu arrivals", cap);
        }
        r->heap = p;
        r->cap_heap = cap;
    }
    struct due d = {at_ns, r->serial++, req, cancel};
    size_t i = r->n_heap++;
    while (i > 0 && before(&d, &r->heap[(i - 1) / 2])) {
        r->heap[i] = r->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    r->heap[i] = d;
    return KG_OK;
}

static struct due heap_pop(struct run *r)
{
    struct due top = r->heap[0], d = r->heap[--r->n_heap];
    size_t i = 0, k;

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

static uint64_t now(const struct run *r)
{
    return r->c->exec_ops->now(r->c->exec) - r->start_ns;
}

static uint64_t stretched(const struct run *r, uint64_t ns)
{
    if (r->c->saturate) {
        return 0;
    }
    double v = (double)ns * r->c->stretch;
    return v < 9e18 ? (uint64_t)(v + 0.5) : (uint64_t)9e18;
}

/* --- requests --- */

/* A request is over: its next turns may come. */
static int settle(struct run *r, uint32_t i)
{
    struct kg_replay_row *row = &r->out->rows[i];
    const struct kg_trace *t = r->c->trace;
    int rc = KG_OK;

    r->n_done++;
    for (uint32_t k = r->child[i]; rc == KG_OK && k != KG_NONE; k = r->sibling[k]) {
        uint64_t at = row->done_ns + stretched(r, t->reqs[k].delay_ns);
        uint64_t floor_ns = stretched(r, t->reqs[k].arrive_ns);
        rc = heap_add(r, at > floor_ns ? at : floor_ns, k, 0);
    }
    return rc;
}

/* Ends a request that the engine did not take. */
static int refuse(struct run *r, uint32_t i, int rc, const char *text)
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
    row->done_ns = now(r);
    return settle(r, i);
}

/* The policy's word; 1 when it refused the request. */
static int ask_policy(struct run *r, uint32_t i, struct kg_replay_arrival *a)
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

/* KG_EAGAIN only with saturate: the request must come again. */
static int submit(struct run *r, const struct due *d)
{
    const struct kg_trace *t = r->c->trace;
    const struct kg_trace_req *q = &t->reqs[d->req];
    struct kg_replay_row *row = &r->out->rows[d->req];
    struct kg_replay_arrival a = {.tenant = t->text + q->tenant_at,
                                  .n_prompt = q->n_prompt,
                                  .now_ns = now(r) + r->start_ns,
                                  .n_live = r->n_live,
                                  .stats = &r->out->stats,
                                  .max_tokens = q->n_output};
    struct kg_error why = {0};

    row->arrival_ns = d->at_ns;
    row->n_prompt = q->n_prompt;
    if (ask_policy(r, d->req, &a)) {
        return refuse(r, d->req, KG_ELIMIT, a.reason);
    }
    int renamed = a.tenant_name[0] != '\0';
    const char *tenant = renamed ? a.tenant_name : a.tenant;
    kg_expand_prompt(r->c->expand, d->req, r->tokens);
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
    int rc = kg_engine_submit(r->c->engine, &req, &why);
    if (rc != KG_OK) {
        return rc == KG_EAGAIN && r->c->saturate ? rc : refuse(r, d->req, rc, why.text);
    }
    r->live[d->req] = 1;
    r->n_live++;
    if (q->cancel_ns != KG_TRACE_NEVER && !r->c->saturate) {
        return heap_add(r, d->at_ns + q->cancel_ns, d->req, 1);
    }
    return KG_OK;
}

/* Everything that is due by now. */
static int play_due(struct run *r)
{
    uint64_t t = now(r);
    int rc = KG_OK;

    while (rc == KG_OK && r->n_heap > 0 && r->heap[0].at_ns <= t) {
        if (r->c->saturate && r->n_live >= r->c->max_live) {
            break;
        }
        struct due d = heap_pop(r);
        if (d.cancel) {
            if (r->live[d.req]) {
                kg_engine_cancel(r->c->engine, (uint64_t)d.req + 1);
            }
            continue;
        }
        rc = submit(r, &d);
        if (rc == KG_EAGAIN) {
            return heap_add(r, d.at_ns, d.req, 0);
        }
    }
    return rc;
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

static uint64_t since_start(const struct run *r, uint64_t ns)
{
    return ns < r->start_ns || ns == 0 ? UINT64_MAX : ns - r->start_ns;
}

static int take_done(struct run *r, const struct kg_event *ev)
{
    uint32_t i = (uint32_t)(ev->id - 1);
    struct kg_replay_row *row = &r->out->rows[i];

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
    row->admitted_ns = since_start(r, ev->admitted_ns);
    row->first_ns = since_start(r, ev->first_ns);
    row->done_ns = since_start(r, ev->done_ns);
    if (row->done_ns == UINT64_MAX) {
        row->done_ns = now(r);
    }
    r->live[i] = 0;
    r->n_live--;
    return settle(r, i);
}

static void take_tokens(struct run *r, const struct kg_event *ev)
{
    uint64_t *h = &r->out->rows[ev->id - 1].output_hash;

    for (uint32_t i = 0; i < ev->n; i++) {
        *h = kg_hash_mix(*h + ev->tokens[i] + 1);
    }
}

static int read_events(struct run *r)
{
    struct kg_event ev;
    int rc = KG_OK;

    while (rc == KG_OK && kg_engine_next(r->c->engine, &ev) == KG_OK) {
        if (ev.type == KG_EVENT_DONE) {
            rc = take_done(r, &ev);
        } else if (ev.type == KG_EVENT_TOKENS) {
            take_tokens(r, &ev);
        }
    }
    return rc;
}

/* --- what a step left --- */

/* Two bins become one. */
static void widen(struct kg_replay_series *s)
{
    for (uint32_t i = 0; i < KG_REPLAY_BINS; i++) {
        uint32_t from = 2 * i;
        int is_there = from + 1 < KG_REPLAY_BINS;
        s->ns[i] = is_there ? s->ns[from] + s->ns[from + 1] : 0;
        for (uint32_t k = 0; k < KG_N_BYTES; k++) {
            s->sum[i][k] = is_there ? s->sum[from][k] + s->sum[from + 1][k] : 0;
        }
    }
    s->width_ns *= 2;
}

/* The time from..to with v bytes of each class, spread over the bins it touches. */
static void add_series(struct kg_replay_series *s, uint64_t from, uint64_t to,
                       const uint64_t v[KG_N_BYTES])
{
    while (to > s->width_ns * KG_REPLAY_BINS) {
        widen(s);
    }
    while (from < to) {
        uint64_t i = from / s->width_ns, end = (i + 1) * s->width_ns;
        double dt = (double)((end < to ? end : to) - from);
        s->ns[i] += dt;
        for (uint32_t k = 0; k < KG_N_BYTES; k++) {
            s->sum[i][k] += (double)v[k] * dt;
        }
        from = end;
    }
}

static void add_bytes(struct run *r, const struct kg_pool_bytes *b, uint64_t t, uint64_t dt)
{
    const uint64_t v[KG_N_BYTES] = {
        [KG_BYTES_LIVE_PAGES] = b->live[KG_PAGE],
        [KG_BYTES_LIVE_STATES] = b->live[KG_STATE],
        [KG_BYTES_CACHED_PAGES] = b->cached[KG_PAGE],
        [KG_BYTES_CACHED_STATES] = b->cached[KG_STATE],
        [KG_BYTES_PINNED] = b->pinned,
        [KG_BYTES_HOLES] = b->holes,
        [KG_BYTES_GAP] = b->gap,
        [KG_BYTES_PADDING] = b->padding,
        [KG_BYTES_PROMISED] = b->promised,
    };

    for (uint32_t k = 0; k < KG_N_BYTES; k++) {
        struct kg_replay_bytes *out = &r->out->bytes[k];
        out->sum += (double)v[k] * (double)dt;
        out->max = v[k] > out->max ? v[k] : out->max;
    }
    if (r->out->series != NULL) {
        add_series(r->out->series, t - dt, t, v);
    }
    r->out->bytes_ns += dt;
    r->out->arena_bytes = b->arena;
}

static int room_for_steps(struct run *r)
{
    struct kg_replay_result *o = r->out;
    size_t cap = o->cap_steps == 0 ? 4096 : 2 * o->cap_steps;
    uint64_t *p = realloc(o->step_ns, cap * sizeof(*p));

    o->step_ns = p != NULL ? p : o->step_ns;
    if (p != NULL && r->c->time_engine) {
        p = realloc(o->engine_ns, cap * sizeof(*p));
        o->engine_ns = p != NULL ? p : o->engine_ns;
    }
    if (p == NULL) {
        return kg_fail(r->err, KG_ENOMEM, "no memory for %zu step times", cap);
    }
    o->cap_steps = cap;
    return KG_OK;
}

/* Step times, and bytes for the time since the last look. */
static int look(struct run *r)
{
    struct kg_replay_result *o = r->out;
    uint64_t t = now(r);

    kg_engine_stats(r->c->engine, &o->stats);
    add_bytes(r, &o->stats.bytes, t, t - r->last_ns);
    r->last_ns = t;
    if (o->stats.steps == r->last_steps) {
        return KG_OK;
    }
    if (o->n_steps == o->cap_steps && room_for_steps(r) != KG_OK) {
        return KG_ENOMEM;
    }
    if (r->c->time_engine) {
        o->engine_ns[o->n_steps] = o->stats.overhead_ns_sum - r->last_engine_sum;
        r->last_engine_sum = o->stats.overhead_ns_sum;
    }
    o->step_ns[o->n_steps++] = o->stats.step_ns_sum - r->last_step_sum;
    r->last_steps = o->stats.steps;
    r->last_step_sum = o->stats.step_ns_sum;
    return KG_OK;
}

static void show(struct run *r)
{
    if (r->c->progress != NULL && kg_now_ns() - r->shown_ns > KG_NS_PER_S / 2) {
        r->shown_ns = kg_now_ns();
        r->c->progress(r->c->ctx, r->n_done, r->out->n, now(r));
    }
}

/* Nothing ran: on to the next arrival. Real time sleeps, at most a little, so that the engine sees
 * its own deadlines. Returns 1 when time can move. */
static int move_on(struct run *r)
{
    uint64_t t = now(r), next = r->n_heap > 0 ? r->heap[0].at_ns : UINT64_MAX;

    if (next <= t) { /* due already: held back by max_live, or not looked at yet */
        return !(r->c->saturate && r->n_live >= r->c->max_live);
    }
    if (r->is_virtual) {
        if (next != UINT64_MAX) {
            r->c->exec_ops->advance(r->c->exec, r->start_ns + next);
        }
        return next != UINT64_MAX;
    }
    uint64_t ns = next - t < 10 * KG_NS_PER_MS ? next - t : 10 * KG_NS_PER_MS;
    const struct timespec pause = {0, (long)ns};
    (void)nanosleep(&pause, NULL);
    return next != UINT64_MAX || r->n_live > 0;
}

static int loop(struct run *r)
{
    struct kg_error why = {0};
    uint32_t idle = 0;

    while (r->n_live > 0 || r->n_heap > 0) {
        int rc = play_due(r);
        if (rc != KG_OK) {
            return rc;
        }
        uint64_t t = now(r);
        /* An idle step must not pass an arrival; one that is due already is held by max_live. */
        int ahead = r->n_heap > 0 && r->heap[0].at_ns > t;
        kg_engine_horizon(r->c->engine, ahead ? r->start_ns + r->heap[0].at_ns : UINT64_MAX);
        int ran = kg_engine_step(r->c->engine, &why);
        rc = read_events(r);
        if (rc == KG_OK) {
            rc = look(r);
        }
        if (rc != KG_OK) {
            return rc;
        }
        show(r);
        idle = ran > 0 || now(r) > t ? 0 : idle + 1;
        if (ran <= 0 && now(r) == t && !move_on(r) && idle > 8) {
            return kg_fail(r->err, KG_EDEVICE, "the engine stands still with %u requests: %s",
                           r->n_live, ran < 0 ? why.text : "no plan");
        }
    }
    r->out->duration_ns = now(r);
    return KG_OK;
}

/* --- life --- */

static int prepare(struct run *r)
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
            rc = heap_add(r, stretched(r, t->reqs[i].arrive_ns), i, 0);
        }
    }
    return rc;
}

int kg_replay_run(const struct kg_replay_conf *conf, struct kg_replay_result *result,
                  struct kg_error *err)
{
    struct run r = {.c = conf, .out = result, .err = err};

    memset(result, 0, sizeof(*result));
    r.is_virtual = (kg_engine_desc(conf->engine)->caps & KG_EXEC_CAP_VIRTUAL) != 0;
    if (conf->exec_ops->now(conf->exec) == 0 && r.is_virtual) {
        conf->exec_ops->advance(conf->exec, 1); /* 0 means "did not happen" in events */
    }
    if (conf->time_engine) {
        kg_engine_count_cpu(conf->engine);
    }
    r.start_ns = conf->exec_ops->now(conf->exec);
    int rc = prepare(&r);
    if (rc == KG_OK) {
        rc = loop(&r);
    }
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
