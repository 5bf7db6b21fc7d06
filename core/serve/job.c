/*
 * The life of an API request in the loop: prepare, submit one sequence per choice, take events,
 * free. A job lives until its answer is out (or its client gone), every sequence it put into the
 * engine is DONE, and no preparation thread holds it.
 */
#include "serve/job.h"

#include "base/clock.h"
#include "base/hash.h"
#include "serve/reqlog.h"
#include "serve/split.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SENDS_PER_LOOK 16 /* jobs between two looks at the clock */

uint64_t kg_slot_id(const struct kg_serve *s, uint32_t slot)
{
    return (uint64_t)s->slots[slot].generation << 32 | ((uint64_t)slot + 1);
}

static void slot_free(struct kg_serve *s, uint32_t slot)
{
    struct kg_slot *x = &s->slots[slot];

    if (x->job->paused)
        s->n_paused--;
    x->job = NULL;
    x->generation++;
    x->next_free = s->free_slot;
    s->free_slot = slot;
    s->n_live--;
}

static void note_unsent(struct kg_job *job)
{
    struct kg_serve *s = job->serve;

    if (job->is_unsent)
        return;
    job->is_unsent = true;
    job->next_unsent = NULL;
    job->prev_unsent = s->last_unsent;
    if (s->last_unsent != NULL)
        s->last_unsent->next_unsent = job;
    else
        s->unsent = job;
    s->last_unsent = job;
}

static void forget_unsent(struct kg_job *job)
{
    struct kg_serve *s = job->serve;

    if (!job->is_unsent)
        return;
    if (job->prev_unsent != NULL)
        job->prev_unsent->next_unsent = job->next_unsent;
    else
        s->unsent = job->next_unsent;
    if (job->next_unsent != NULL)
        job->next_unsent->prev_unsent = job->prev_unsent;
    else
        s->last_unsent = job->prev_unsent;
    job->is_unsent = false;
}

/* The connection may be cut by it: job->req is NULL then. */
static void send_unsent(struct kg_job *job)
{
    forget_unsent(job);
    for (uint32_t i = 0; i < job->n_answers && job->req != NULL; i++) {
        if (job->answers[i].unsent)
            kg_job_send(job, i);
        job->answers[i].unsent = false;
    }
}

bool kg_jobs_send(struct kg_serve *s, uint64_t until_ns)
{
    for (uint32_t n = 1; s->unsent != NULL; n++) {
        send_unsent(s->unsent);
        if (n % SENDS_PER_LOOK == 0 && kg_now_ns() >= until_ns)
            break;
    }
    return s->unsent == NULL;
}

/* Takes the piles of a job that was answered out of the sum; late events of it do nothing. */
static void release_piles(struct kg_job *job)
{
    for (uint32_t i = 0; job->answers != NULL && i < job->n_answers; i++) {
        job->serve->piled_bytes -= job->answers[i].piled_bytes;
        job->answers[i].piled_bytes = 0;
        kg_answer_close(&job->answers[i].answer);
    }
}

/* Too much is held for clients: whoever holds most of it goes, and not whoever came last. */
static void cut_largest(struct kg_serve *s)
{
    struct kg_api_error err = {0};
    struct kg_job *largest = NULL;
    uint64_t most = 0;

    for (struct kg_job *job = s->jobs; job != NULL; job = job->next) {
        uint64_t n = 0;
        for (uint32_t i = 0; job->answers != NULL && i < job->n_answers; i++)
            n += job->answers[i].piled_bytes;
        if (job->req != NULL && !job->failed && n > most) {
            most = n;
            largest = job;
        }
    }
    if (kg_http_cut_largest(s->http, most) || largest == NULL)
        return;
    (void)kg_api_fail(&err, 503, "overloaded", "",
                      "all answers together are above [server] replies_bytes and this one is the "
                      "largest; ask for it as a stream");
    kg_job_fail(largest, &err);
    release_piles(largest); /* it still waits for its sequences to end */
}

/*
 * Keeps the sum of what plain answers pile up; streams empty theirs at once and are bounded by
 * their connection.
 */
static void count_pile(struct kg_job *job, struct kg_job_answer *a)
{
    struct kg_serve *s = job->serve;
    uint64_t n = kg_answer_bytes(&a->answer);

    if (job->task.call.stream)
        return;
    s->piled_bytes += n - a->piled_bytes;
    a->piled_bytes = n;
    if (s->piled_bytes + kg_http_unsent_bytes(s->http) > s->parts.conf->replies_bytes)
        cut_largest(s);
}

static void job_free(struct kg_job *job)
{
    struct kg_serve *s = job->serve;

    forget_unsent(job);
    if (job->prev != NULL)
        job->prev->next = job->next;
    else
        s->jobs = job->next;
    if (job->next != NULL)
        job->next->prev = job->prev;
    s->n_jobs--;
    release_piles(job);
    if (job->pause_timer != NULL)
        event_free(job->pause_timer);
    free(job->answers);
    kg_buf_fini(&job->chunk_open);
    kg_call_free(&job->task.call);
    if (job->has_body)
        kg_http_free_body(s->http, &job->body);
    free(job);
}

static void job_free_if_over(struct kg_job *job)
{
    if (job->req == NULL && job->n_live == 0 && !job->in_prep)
        job_free(job);
}

void kg_job_cancel(struct kg_job *job)
{
    for (uint32_t i = 0; job->n_live > 0 && i < job->n_answers; i++) {
        if (job->answers[i].slot != KG_NONE)
            kg_engine_cancel(job->serve->parts.engine,
                             kg_slot_id(job->serve, job->answers[i].slot));
    }
}

/* Its reader stayed behind for pause_ms. */
static void on_paused_too_long(evutil_socket_t fd, short what, void *arg)
{
    struct kg_job *job = arg;

    (void)fd;
    (void)what;
    if (job->req == NULL || !job->paused)
        return;
    kg_job_cut(job);
    job_free_if_over(job);
}

static void watch_pause(struct kg_job *job)
{
    uint32_t ms = job->serve->parts.conf->pause_ms;
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};

    if (job->pause_timer == NULL)
        job->pause_timer = evtimer_new(job->serve->base, on_paused_too_long, job);
    if (job->pause_timer != NULL)
        (void)evtimer_add(job->pause_timer, &tv);
}

void kg_job_pause(struct kg_job *job, bool paused)
{
    struct kg_serve *s = job->serve;

    if (job->paused == paused)
        return;
    job->paused = paused;
    if (paused) {
        kg_add(&s->cells[KG_SC_PAUSED], 1);
        s->n_paused += job->n_live;
        watch_pause(job);
    } else {
        if (job->pause_timer != NULL)
            (void)evtimer_del(job->pause_timer);
        s->n_paused -= job->n_live;
        s->busy_since_ns = kg_engine_now(s->parts.engine); /* it could not advance till now */
    }
    for (uint32_t i = 0; i < job->n_answers; i++) {
        if (job->answers[i].slot != KG_NONE)
            kg_engine_pause(s->parts.engine, kg_slot_id(s, job->answers[i].slot), paused);
    }
}

static void on_gone(void *self)
{
    struct kg_job *job = self;

    job->req = NULL;
    kg_job_cancel(job);
    job_free_if_over(job);
}

static void on_drained(void *self)
{
    kg_job_pause(self, false);
}

/* A reply that needs nothing of the engine. */
static void reply_now(struct kg_job *job)
{
    struct kg_http_req *req = job->req;
    struct kg_buf *b = &job->task.call.reply;

    job->req = NULL;
    kg_http_reply(req, 200, "application/json", NULL, b->data, b->len);
    job_free_if_over(job);
}

static uint64_t next_seed(struct kg_serve *s)
{
    return kg_hash_mix(s->seed_state++);
}

/* Opens every answer before the first submit: what can fail for want of memory fails here. */
static int open_answers(struct kg_job *job, struct kg_api_error *err)
{
    struct kg_serve *s = job->serve;
    const struct kg_call *call = &job->task.call;
    struct kg_error e = {0};

    job->n_answers = call->n_prompts * call->n;
    if (job->n_answers > s->n_slots - s->n_live)
        return kg_api_fail(err, 503, "overloaded", "",
                           "%u sequences are running or waiting, %u more were asked for, at most "
                           "%u are taken; try again",
                           s->n_live, job->n_answers, s->n_slots);
    job->answers = calloc(job->n_answers, sizeof(*job->answers));
    if (job->answers == NULL)
        return kg_call_no_memory(err);
    for (uint32_t i = 0; i < job->n_answers; i++)
        job->answers[i].slot = KG_NONE;
    for (uint32_t i = 0; i < job->n_answers; i++) {
        if (kg_answer_open(&job->answers[i].answer, &s->api, call, i, i / call->n, &e) != KG_OK)
            return e.rc == KG_EINVAL ? kg_api_refuse(err, "stop", "%s", e.text)
                                     : kg_call_no_memory(err);
    }
    return KG_OK;
}

/* The engine said no: what the client is told. */
static void explain_submit(int rc, const struct kg_error *e, struct kg_api_error *err)
{
    if (rc == KG_EAGAIN)
        (void)kg_api_fail(err, 503, "overloaded", "", "the queue of the engine is full; try again");
    else if (rc == KG_ENEVER)
        (void)kg_api_fail(err, 400, "request_too_large", "", "%s", e->text);
    else if (rc == KG_EINVAL)
        (void)kg_api_fail(err, 400, "invalid_value", "", "%s", e->text);
    else
        (void)kg_api_fail(err, 500, "engine_error", "", "%s", e->text);
}

static int submit_one(struct kg_job *job, uint32_t i, uint64_t seed, struct kg_api_error *err)
{
    struct kg_serve *s = job->serve;
    const struct kg_call *call = &job->task.call;
    const struct kg_prompt *p = &call->prompts[i / call->n];
    uint32_t slot = s->free_slot;
    struct kg_error e = {0};
    struct kg_request r = {
        .id = kg_slot_id(s, slot),
        .tokens = p->ids.v,
        .n_prompt = (uint32_t)p->ids.n,
        .max_tokens = p->max_tokens,
        .flags = (call->echo && call->logprobs ? KG_REQ_ECHO : 0) |
                 (call->no_cache ? KG_REQ_NO_CACHE : 0),
        .arm = job->arm,
        .priority = job->priority,
        .tenant = job->tenant[0] != '\0' ? kg_hash_bytes(job->tenant, strlen(job->tenant), 3) : 0,
        .tenant_name = job->tenant,
        .class_name = job->class_name,
        .salt = call->salt,
        .sampling = call->sampling,
        .boundaries = p->boundaries.v,
        .n_boundaries = (uint32_t)p->boundaries.n,
        .marks = p->marks.v,
        .n_marks = (uint32_t)p->marks.n,
    };
    int rc;

    r.sampling.seed = seed + i % call->n;
    if (r.sampling.min_tokens > r.max_tokens) /* the policy capped the answer below it */
        r.sampling.min_tokens = r.max_tokens;
    if (call->no_output) /* the one token that is made and dropped may be anything */
        r.sampling.min_tokens = 0;
    rc = kg_engine_submit(s->parts.engine, &r, &e);
    if (rc != KG_OK) {
        explain_submit(rc, &e, err);
        return rc;
    }
    if (s->n_live == 0)
        s->busy_since_ns = kg_engine_now(s->parts.engine);
    s->free_slot = s->slots[slot].next_free;
    s->slots[slot].job = job;
    s->slots[slot].answer = i;
    s->n_live++;
    kg_histo_observe(&s->histos[KG_SH_MAX_TOKENS], p->max_tokens);
    job->answers[i].slot = slot;
    job->n_live++;
    return KG_OK;
}

/* Sequences that the engine never saw, once the job has an arm. */
static void count_refused(const struct kg_job *job, const struct kg_api_error *why)
{
    uint32_t n = job->task.call.n_prompts * job->task.call.n;

    for (uint32_t i = job->n_live; job->key != 0 && i < n; i++) {
        kg_split_refused(job);
        kg_reqlog_refused(job, i, why);
    }
}

static void submit(struct kg_job *job)
{
    struct kg_serve *s = job->serve;
    const struct kg_call *call = &job->task.call;
    uint64_t seed = call->has_seed ? call->sampling.seed : next_seed(s);
    struct kg_api_error err = {0};
    bool chat = call->endpoint == KG_EP_CHAT;
    int rc = kg_job_policy(job, &err);

    if (rc == KG_OK)
        rc = open_answers(job, &err);
    (void)snprintf(job->id, sizeof(job->id), "%s%s", chat ? "chatcmpl-" : "cmpl-",
                   kg_http_req_id(job->req));
    job->envelope = (struct kg_envelope){.id = job->id,
                                         .model = s->parts.model_name,
                                         .created = (int64_t)time(NULL),
                                         .chat = chat,
                                         .chunk = call->stream};
    kg_histo_observe(&s->histos[KG_SH_N], call->n);
    for (uint32_t i = 0; rc == KG_OK && i < job->n_answers; i++)
        rc = submit_one(job, i, seed, &err);
    if (rc != KG_OK) {
        count_refused(job, &err);
        kg_job_fail(job, &err);
        job_free_if_over(job);
    }
}

/* The body was prepared, here or on a thread. */
static void prepared(struct kg_job *job)
{
    if (job->has_body)
        kg_http_free_body(job->serve->http, &job->body);
    job->has_body = false;
    if (job->req == NULL) { /* the client left meanwhile */
        job_free_if_over(job);
    } else if (job->task.rc != KG_OK) {
        kg_job_fail(job, &job->task.err);
        job_free_if_over(job);
    } else if (job->task.endpoint == KG_EP_TOKENIZE || job->task.endpoint == KG_EP_DETOKENIZE) {
        reply_now(job);
    } else {
        submit(job);
    }
}

void kg_job_prepared(struct kg_prep_task *task)
{
    struct kg_job *job = (struct kg_job *)((char *)task - offsetof(struct kg_job, task));

    job->in_prep = false;
    prepared(job);
}

void kg_job_start(struct kg_serve *s, struct kg_http_req *req, enum kg_endpoint endpoint)
{
    struct kg_job *job = calloc(1, sizeof(*job));
    struct kg_api_error err = {0};

    if (job == NULL) {
        (void)kg_call_no_memory(&err);
        kg_http_reply_error(req, &err);
        return;
    }
    job->serve = s;
    kg_buf_init(&job->chunk_open, 0);
    job->req = req;
    job->start_ns = kg_http_req_start_ns(req);
    job->next = s->jobs;
    if (job->next != NULL)
        job->next->prev = job;
    s->jobs = job;
    s->n_jobs++;
    kg_http_req_own(req, (struct kg_http_owner){job, on_gone, on_drained});
    kg_http_take_body(req, &job->body);
    job->has_body = true;
    job->task.endpoint = endpoint;
    job->task.body = (struct kg_span){kg_buf_cstr(&job->body), job->body.len};
    if (job->body.len < s->parts.conf->prep_bytes) {
        job->task.rc = kg_call_prepare(&s->api, s->scratch, endpoint, job->task.body,
                                       &job->task.call, &job->task.err);
        prepared(job);
        return;
    }
    kg_add(&s->cells[KG_SC_PREPARED_APART], 1);
    if (kg_prep_submit(s->prep, &job->task) == KG_OK) {
        job->in_prep = true;
        return;
    }
    (void)kg_api_fail(&err, 503, "overloaded", "",
                      "too many long prompts wait to be tokenised; try again");
    kg_job_fail(job, &err);
    job_free_if_over(job);
}

static void take_tokens(struct kg_job *job, uint32_t i, const struct kg_event *ev)
{
    struct kg_serve *s = job->serve;
    struct kg_job_answer *a = &job->answers[i];
    uint64_t now = kg_now_ns();
    struct kg_api_error err = {0};
    bool was_stopped = a->answer.stopped;
    int rc;

    if (job->first_ns == 0) {
        job->first_ns = now;
        kg_histo_observe(&s->histos[KG_SH_TTFT], (double)(now - job->start_ns) / 1e9);
    }
    if (a->last_ns != 0)
        kg_histo_observe(&s->histos[KG_SH_ITL], (double)(now - a->last_ns) / 1e9);
    a->last_ns = now;
    rc = kg_answer_tokens(&a->answer, ev->tokens, ev->n, ev->logprobs, ev->n_logprobs);
    if (rc >= 0)
        count_pile(job, a);
    if (job->failed)
        return;
    if (rc == 1 && !was_stopped)
        kg_engine_finish(s->parts.engine, ev->id, a->answer.n_tokens);
    if (rc >= 0) {
        a->unsent = job->task.call.stream;
        if (a->unsent)
            note_unsent(job);
        return;
    }
    if (rc == KG_ELIMIT)
        (void)kg_api_fail(&err, 500, "answer_too_large", "",
                          "the answer is above [server] reply_bytes; ask for it as a stream");
    else
        (void)kg_call_no_memory(&err);
    kg_job_fail(job, &err);
}

/* What a sequence that did not end well means to the client. */
static void explain_done(const struct kg_event *ev, struct kg_api_error *err)
{
    switch (ev->finish) {
    case KG_FINISH_TIMEOUT:
        (void)kg_api_fail(err, 503, "queue_timeout", "",
                          "[admission] queue_timeout_ms: the request %s", ev->text);
        break;
    case KG_FINISH_REFUSED:
        if (ev->rc == KG_ELIMIT) {
            (void)kg_api_fail(err, 429, KG_POLICY_REJECTED, "", "%s", ev->text);
            break;
        }
        (void)kg_api_fail(err, 400, "request_too_large", "", "%s", ev->text);
        break;
    case KG_FINISH_CANCELLED:
        (void)kg_api_fail(err, 503, "shutting_down", "", "the request was cancelled");
        break;
    default:
        (void)kg_api_fail(err, ev->rc == KG_ETIMEOUT ? 504 : 500, "engine_error", "", "%s",
                          ev->text[0] != '\0' ? ev->text : "the engine failed");
        break;
    }
}

static void take_done(struct kg_job *job, uint32_t i, const struct kg_event *ev)
{
    struct kg_job_answer *a = &job->answers[i];
    /* Past a stop string the answer is whole, whatever became of the sequence. */
    bool good = ev->finish <= KG_FINISH_CALLER || a->answer.stopped;
    struct kg_api_error err = {0};

    a->n_cached = ev->n_cached;
    a->n_verified = ev->n_verified;
    a->n_accepted = ev->n_accepted;
    job->n_preempted += ev->n_preempted;
    if (job->failed || job->req == NULL)
        return;
    if (good && kg_answer_finish(&a->answer, ev->finish == KG_FINISH_LENGTH) < 0) {
        (void)kg_call_no_memory(&err);
        good = false;
    } else if (!good) {
        explain_done(ev, &err);
        if (job->began) /* what came before it went wrong is its client's */
            send_unsent(job);
    }
    if (!good && job->req != NULL)
        kg_job_fail(job, &err);
    if (!good)
        return;
    kg_job_send(job, i);
    a->unsent = false;
    if (job->n_live == 0 && job->req != NULL)
        kg_job_finish(job);
}

void kg_job_event(struct kg_serve *s, const struct kg_event *ev)
{
    uint32_t slot = (uint32_t)(ev->id & UINT32_MAX) - 1;
    struct kg_job *job;
    uint32_t i;

    if (slot >= s->n_slots || s->slots[slot].job == NULL || kg_slot_id(s, slot) != ev->id)
        return;
    job = s->slots[slot].job;
    i = s->slots[slot].answer;
    if (ev->type == KG_EVENT_DONE) {
        job->answers[i].slot = KG_NONE;
        slot_free(s, slot);
        job->n_live--;
        take_done(job, i, ev);
        kg_stats_done(s, ev, job->answers[i].answer.finish);
        kg_split_done(job, ev);
        kg_page_done(s, ev, kg_split_name(job));
        kg_reqlog_done(job, i, ev);
        job_free_if_over(job);
        return;
    }
    if (job->failed || job->req == NULL)
        return;
    if (ev->type == KG_EVENT_TOKENS) {
        take_tokens(job, i, ev);
    } else if (ev->type == KG_EVENT_ECHO && kg_answer_echo(&job->answers[i].answer, ev->n,
                                                           ev->logprobs, ev->n_logprobs) != KG_OK) {
        struct kg_api_error err = {0};
        (void)kg_call_no_memory(&err);
        kg_job_fail(job, &err);
    } else if (ev->type == KG_EVENT_ECHO) {
        count_pile(job, &job->answers[i]);
    }
}

void kg_jobs_cancel(struct kg_serve *s)
{
    struct kg_api_error err = {0};

    (void)kg_api_fail(&err, 503, "shutting_down", "", "the server is shutting down");
    for (struct kg_job *job = s->jobs, *next; job != NULL; job = next) {
        next = job->next;
        if (job->req == NULL)
            continue;
        if (job->began)
            send_unsent(job);
        if (job->req != NULL)
            kg_job_fail(job, &err);
        job_free_if_over(job);
    }
}

void kg_jobs_free(struct kg_serve *s)
{
    while (s->jobs != NULL) {
        if (s->jobs->req != NULL)
            kg_http_req_own(s->jobs->req, (struct kg_http_owner){NULL, NULL, NULL});
        job_free(s->jobs);
    }
}
