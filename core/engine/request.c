/* Requests: the states, the two lists, and the one place where a request changes state. */
#include "engine/internal.h"

#include <stdio.h>
#include <string.h>

/* Which state may follow which: row from, bit to. */
static const uint8_t follows[] = {
    [KG_LIFE_FREE] = 1u << KG_LIFE_WAITING,
    [KG_LIFE_WAITING] = 1u << KG_LIFE_PREFILL | 1u << KG_LIFE_FREE,
    [KG_LIFE_PREFILL] = 1u << KG_LIFE_DECODE | 1u << KG_LIFE_WAITING | 1u << KG_LIFE_FREE,
    [KG_LIFE_DECODE] = 1u << KG_LIFE_WAITING | 1u << KG_LIFE_FREE,
};

/* A change of state outside the table is a fault of the engine itself: the backend is given up,
 * because units could belong to two requests from here on. */
static void set_state(struct kg_engine *e, struct kg_req *r, uint32_t to)
{
    if (!(follows[r->state] & 1u << to)) {
        struct kg_error why;
        (void)kg_fail(&why, KG_EDEVICE, "request %llu may not go from state %u to %u",
                      (unsigned long long)r->id, r->state, to);
        atomic_store(&e->lost, 1);
        e->error = why;
    }
    r->state = to;
}

static struct kg_sched_req row_of(const struct kg_req *r)
{
    return (struct kg_sched_req){
        .index = r->index,
        .priority = r->job->priority,
        .id = r->arrival,
        .tenant = r->job->tenant,
        .arrival_ns = r->job->done.arrival_ns,
        .n_prompt = r->n_target,
        .n_computed = r->past,
        .decoding = r->state == KG_LIFE_DECODE,
        .paused = r->paused || r->loading == KG_LOAD_HELD,
    };
}

/* --- the waiting window --- */

/* First place at or after the head whose request arrived at `arrival` or later. */
static uint32_t waiting_find(const struct kg_waiting *w, uint64_t arrival)
{
    uint32_t lo = w->head, hi = w->head + w->n;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (w->rows[mid].id < arrival) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Room for one more row on either side; O(n) once in max_requests insertions. */
static void waiting_recentre(struct kg_waiting *w)
{
    uint32_t head = (w->cap - w->n) / 2;

    memmove(w->rows + head, w->rows + w->head, w->n * sizeof(*w->rows));
    w->head = head;
    w->last_gone = head;
}

static void waiting_insert(struct kg_engine *e, const struct kg_req *r)
{
    struct kg_waiting *w = &e->waiting;

    kg_req_settle(e); /* no rows that are gone */
    if (w->head == 0 || w->head + w->n == w->cap) {
        waiting_recentre(w);
    }
    uint32_t at = waiting_find(w, r->arrival);
    if (at - w->head < w->n / 2) {
        memmove(w->rows + w->head - 1, w->rows + w->head, (at - w->head) * sizeof(*w->rows));
        w->head--;
        at--;
    } else {
        memmove(w->rows + at + 1, w->rows + at, (w->head + w->n - at) * sizeof(*w->rows));
    }
    w->rows[at] = row_of(r);
    w->n++;
}

static void waiting_remove(struct kg_engine *e, const struct kg_req *r)
{
    struct kg_waiting *w = &e->waiting;
    uint32_t at = waiting_find(w, r->arrival);

    w->rows[at].index = KG_NONE;
    if (!w->dirty || at > w->last_gone) {
        w->last_gone = at;
    }
    w->dirty = 1;
}

/* Closes the gaps by moving the rows before them; they lie near the head, as admission does. */
static void waiting_compact(struct kg_waiting *w)
{
    if (!w->dirty) {
        return;
    }
    uint32_t to = w->last_gone + 1;
    for (uint32_t i = to; i-- > w->head;) {
        if (w->rows[i].index != KG_NONE) {
            w->rows[--to] = w->rows[i];
        }
    }
    w->n -= to - w->head;
    w->head = to;
    w->dirty = 0;
}

/* --- the running list --- */

static void running_compact(struct kg_engine *e)
{
    uint32_t n = 0;

    if (!e->running_dirty) {
        return;
    }
    for (uint32_t i = 0; i < e->n_running; i++) {
        if (e->running[i].index != KG_NONE) {
            e->reqs[e->running[i].index].place = n;
            e->running[n++] = e->running[i];
        }
    }
    e->n_running = n;
    e->running_dirty = 0;
}

static void running_insert(struct kg_engine *e, struct kg_req *r)
{
    uint32_t at = e->n_running++;

    while (at > 0 && e->reqs[e->running[at - 1].index].admission > r->admission) {
        e->running[at] = e->running[at - 1];
        e->reqs[e->running[at].index].place = at;
        at--;
    }
    e->running[at] = row_of(r);
    r->place = at;
}

void kg_req_settle(struct kg_engine *e)
{
    if (e->planning) { /* the scheduler reads the arrays */
        return;
    }
    waiting_compact(&e->waiting);
    running_compact(e);
    for (uint32_t i = 0; i < e->n_admitted; i++) {
        running_insert(e, &e->reqs[e->admitted[i]]);
    }
    e->n_admitted = 0;
}

/* --- transitions --- */

void kg_req_arrive(struct kg_engine *e, uint32_t index, struct kg_job *job)
{
    struct kg_req *r = &e->reqs[index];
    uint32_t epoch = r->epoch;

    *r = (struct kg_req){.job = job, .id = job->id, .index = index, .epoch = epoch};
    r->arrival = ++e->n_arrivals;
    r->n_tokens = r->n_target = job->n_prompt;
    r->slot = r->grant = r->unit = KG_NONE;
    r->lifetime = kg_req_arm(e, r)->lifetime;
    job->done.arrival_ns = e->parts.exec_ops->now(e->parts.exec);
    set_state(e, r, KG_LIFE_WAITING);
    e->n_live++;
    waiting_insert(e, r);
    struct kg_sched_req row = row_of(r);
    e->parts.sched_ops->add(e->parts.sched, &row);
}

void kg_req_introduce(struct kg_engine *e)
{
    const struct kg_waiting *w = &e->waiting;

    kg_req_settle(e);
    for (uint32_t i = 0; i < e->n_running; i++) {
        e->parts.sched_ops->add(e->parts.sched, &e->running[i]);
    }
    for (uint32_t i = w->head; i < w->head + w->n; i++) {
        e->parts.sched_ops->add(e->parts.sched, &w->rows[i]);
    }
}

void kg_req_admit(struct kg_engine *e, struct kg_req *r, uint32_t grant, uint32_t n_pages,
                  uint32_t unit)
{
    waiting_remove(e, r);
    r->grant = grant;
    r->n_granted = n_pages;
    r->unit = unit;
    r->slot = e->free_slots[--e->n_free_slots];
    r->epoch++;
    r->n_target = r->n_tokens;
    r->past = r->n_pages = r->n_sent = 0;
    r->source = KG_NONE;
    kg_cache_admit(e, r);
    r->fresh = 1;
    if (r->admission == 0) {
        r->admission = ++e->n_admissions;
        r->job->done.admitted_ns = e->parts.exec_ops->now(e->parts.exec);
    }
    set_state(e, r, KG_LIFE_PREFILL);
    e->admitted[e->n_admitted++] = r->index;
    e->n_changes++;
}

void kg_req_decode(struct kg_engine *e, struct kg_req *r)
{
    set_state(e, r, KG_LIFE_DECODE);
    e->running[r->place].decoding = 1;
}

/* A holder gives everything back and leaves `running`. */
static void release(struct kg_engine *e, struct kg_req *r)
{
    struct kg_spec_seen gone = {.id = r->id, .slot = r->slot, .ended = 1};

    e->parts.exec_ops->drop(e->parts.exec, &r->slot, 1);
    kg_draft_seen(e, r->job->arm, &gone);
    kg_cache_close(e, r);
    kg_adm_give(e, KG_STATE, &r->unit, 1, r->nan);
    e->parts.pool_ops->grant_close(e->pool, r->grant);
    e->free_slots[e->n_free_slots++] = r->slot;
    r->slot = r->grant = r->unit = KG_NONE;
    r->n_pages = r->n_granted = r->n_sent = 0;
    e->running[r->place].index = KG_NONE;
    e->running_dirty = 1;
}

void kg_req_requeue(struct kg_engine *e, struct kg_req *r)
{
    kg_req_settle(e); /* one that was just admitted has no place yet */
    release(e, r);
    r->past = 0;
    r->has_match = 0; /* more tokens are known now */
    r->n_target = r->n_tokens;
    e->n_changes++;
    set_state(e, r, KG_LIFE_WAITING);
    waiting_insert(e, r);
}

void kg_req_preempt(struct kg_engine *e, struct kg_req *r)
{
    r->job->done.n_preempted++;
    e->stats.preemptions++;
    kg_req_requeue(e, r);
}

void kg_req_end(struct kg_engine *e, struct kg_req *r, uint32_t finish, int rc, const char *text)
{
    struct kg_event *done = &r->job->done;

    if (kg_req_holds(r)) {
        if (e->n_admitted > 0) { /* it may have no place yet; not else: many may end in one step */
            kg_req_settle(e);
        }
        release(e, r);
    } else {
        waiting_remove(e, r);
    }
    e->parts.sched_ops->remove(e->parts.sched, r->index);
    done->id = r->id;
    done->type = KG_EVENT_DONE;
    done->finish = finish;
    done->rc = rc;
    done->n_prompt = r->job->n_prompt;
    done->n_output = kg_req_output(r);
    if (finish == KG_FINISH_CALLER && r->finish_at != 0 && r->finish_at - 1 < done->n_output) {
        done->n_output = r->finish_at - 1;
    }
    done->done_ns = e->parts.exec_ops->now(e->parts.exec);
    (void)snprintf(done->text, sizeof(done->text), "%s", text != NULL ? text : "");
    if (finish == KG_FINISH_STOP || finish == KG_FINISH_LENGTH || finish == KG_FINISH_CALLER) {
        kg_adm_observe(e, r->job->tenant, done->n_output);
    }
    e->stats.finished[finish]++;
    kg_pol_release(e, r);
    e->n_changes++;
    set_state(e, r, KG_LIFE_FREE);
    r->job = NULL;
    e->n_live--;
    kg_port_out(e, r->index, KG_EVENT_DONE, 0, 0);
}

void kg_req_end_all(struct kg_engine *e, uint32_t finish, int rc, const char *text)
{
    for (uint32_t i = 0; i < e->conf.max_requests && e->n_live > 0; i++) {
        if (e->reqs[i].state != KG_LIFE_FREE) {
            kg_req_end(e, &e->reqs[i], finish, rc, text);
        }
    }
    kg_req_settle(e);
}

int kg_req_steer(struct kg_engine *e, uint32_t index)
{
    struct kg_req *r = &e->reqs[index];
    struct kg_control *c = &e->control[index];

    if (r->state == KG_LIFE_FREE) {
        return 0;
    }
    if (atomic_load_explicit(&c->cancel, memory_order_relaxed)) {
        kg_req_end(e, r, KG_FINISH_CANCELLED, KG_ECANCEL, NULL);
        return 1;
    }
    r->finish_at = atomic_load_explicit(&c->finish_at, memory_order_relaxed);
    if (r->finish_at != 0) {
        kg_req_end(e, r, KG_FINISH_CALLER, KG_OK, NULL);
        return 1;
    }
    r->paused = atomic_load_explicit(&c->pause, memory_order_relaxed);
    if (kg_req_holds(r)) {
        e->running[r->place].paused = r->paused || r->loading == KG_LOAD_HELD;
    } else {
        e->waiting.rows[waiting_find(&e->waiting, r->arrival)].paused = r->paused || r->held;
    }
    return 1;
}

int kg_req_timeouts(struct kg_engine *e, uint64_t now_ns)
{
    uint64_t limit = e->conf.queue_timeout_ms * 1000000ull;
    struct kg_waiting *w = &e->waiting;
    int n = 0;

    if (limit == 0) {
        return 0;
    }
    kg_req_settle(e);
    for (uint32_t i = w->head; i < w->head + w->n; i++) {
        struct kg_req *r = &e->reqs[w->rows[i].index];
        if (now_ns < w->rows[i].arrival_ns + limit) {
            break;
        }
        if (r->admission == 0) { /* a preempted request has begun its answer: it stays */
            char text[100];
            (void)snprintf(
                text, sizeof(text), "waited %u ms for memory without being admitted%s%s%s",
                e->conf.queue_timeout_ms, r->short_of > 0 ? ": short of " : "",
                r->short_of > 0 ? kg_kind_name(r->short_of - 1) : "", r->short_of > 0 ? "s" : "");
            kg_req_end(e, r, KG_FINISH_TIMEOUT, KG_ETIMEOUT, text);
            n++;
        }
    }
    kg_req_settle(e);
    return n;
}

uint64_t kg_req_deadline(const struct kg_engine *e)
{
    const struct kg_waiting *w = &e->waiting;

    uint64_t asked = e->n_held > 0 ? e->ask_at_ns : UINT64_MAX;

    for (uint32_t i = w->head; e->conf.queue_timeout_ms != 0 && i < w->head + w->n; i++) {
        if (w->rows[i].index != KG_NONE && e->reqs[w->rows[i].index].admission == 0) {
            uint64_t out = w->rows[i].arrival_ns + e->conf.queue_timeout_ms * 1000000ull;
            return out < asked ? out : asked;
        }
    }
    return asked;
}

/* One holder's line: its place, and pages that match what it computed. */
static int check_running(const struct kg_engine *e, uint32_t i, struct kg_error *err)
{
    const struct kg_sched_req *row = &e->running[i];
    const struct kg_req *r = &e->reqs[row->index];

    if (!kg_req_holds(r) || r->place != i || row->n_computed != r->past ||
        row->decoding != (r->state == KG_LIFE_DECODE)) {
        return kg_fail(err, KG_EINVAL, "engine: running row %u of request %llu is not its state", i,
                       (unsigned long long)r->id);
    }
    if (r->n_pages > r->n_granted || kg_pages_of(e, r->past) > r->n_pages ||
        r->past > r->n_tokens) {
        return kg_fail(err, KG_EINVAL,
                       "engine: request %llu: %u pages of %u granted for %u of %u tokens",
                       (unsigned long long)r->id, r->n_pages, r->n_granted, r->past, r->n_tokens);
    }
    if (i > 0 && e->reqs[e->running[i - 1].index].admission >= r->admission) {
        return kg_fail(err, KG_EINVAL, "engine: running row %u is out of order", i);
    }
    return KG_OK;
}

int kg_req_check(const struct kg_engine *e, struct kg_error *err)
{
    const struct kg_waiting *w = &e->waiting;
    uint64_t used[KG_N_KINDS] = {e->n_ballast[KG_PAGE], e->n_ballast[KG_STATE] + e->n_running};

    if (w->n + e->n_running != e->n_live || e->n_running + e->n_free_slots != e->conf.max_seqs) {
        return kg_fail(err, KG_EINVAL, "engine: %u waiting + %u running of %u live, %u free slots",
                       w->n, e->n_running, e->n_live, e->n_free_slots);
    }
    for (uint32_t i = 0; i < e->n_running; i++) {
        if (check_running(e, i, err) != KG_OK) {
            return KG_EINVAL;
        }
        used[KG_PAGE] += kg_cache_own_pages(&e->reqs[e->running[i].index]);
    }
    if (kg_cache_check(e, used, err) != KG_OK) {
        return KG_EINVAL;
    }
    for (uint32_t i = w->head; i < w->head + w->n; i++) {
        const struct kg_req *r = &e->reqs[w->rows[i].index];
        if (r->state != KG_LIFE_WAITING || r->n_pages != 0 || r->grant != KG_NONE ||
            (i > w->head && w->rows[i - 1].id >= w->rows[i].id)) {
            return kg_fail(err, KG_EINVAL, "engine: waiting row %u holds memory or is out of order",
                           i - w->head);
        }
    }
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint32_t n = e->parts.pool_ops->n_used(e->pool, k);
        if (n != used[k]) {
            return kg_fail(err, KG_EINVAL,
                           "engine: requests and index hold %llu %ss, the pool says %u",
                           (unsigned long long)used[k], kg_kind_name(k), n);
        }
    }
    return KG_OK;
}
