/* Answers of a job: server-sent events as tokens come, or one object at the end. */
#include "serve/job.h"
#include "serve/split.h"

#include "base/clock.h"

static struct kg_usage usage_of(const struct kg_job *job)
{
    const struct kg_call *call = &job->task.call;
    struct kg_usage u = {0};

    for (uint32_t i = 0; i < job->n_answers; i++) {
        u.completion += job->answers[i].answer.n_tokens;
        u.verified += job->answers[i].n_verified;
        u.accepted += job->answers[i].n_accepted;
        if (i % call->n != 0)
            continue;
        u.prompt += call->prompts[i / call->n].ids.n;
        u.cached += job->answers[i].n_cached;
    }
    return u;
}

/* For the access log: lengths and times, no text. */
static void write_note(struct kg_job *job, const char *finish)
{
    struct kg_usage u = usage_of(job);
    double ttft = job->first_ns != 0 ? (double)(job->first_ns - job->start_ns) / 1e6 : -1;

    (void)snprintf(job->note, sizeof(job->note),
                   "n=%u prompt_tokens=%llu output_tokens=%llu cached_tokens=%llu ttft_ms=%.1f "
                   "preempted=%u verified=%llu accepted=%llu finish=%s%s%s",
                   job->n_answers, (unsigned long long)u.prompt, (unsigned long long)u.completion,
                   (unsigned long long)u.cached, ttft, job->n_preempted,
                   (unsigned long long)u.verified, (unsigned long long)u.accepted, finish,
                   job->has_arm ? " arm=" : "", kg_split_name(job));
    kg_http_req_set_note(job->req, job->note);
}

void kg_job_cut(struct kg_job *job)
{
    struct kg_http_req *req = job->req;

    kg_add(&job->serve->cells[KG_SC_SLOW_CUT], 1);
    write_note(job, "slow_reader");
    job->failed = true;
    job->req = NULL;
    kg_http_cut(req);
    kg_job_cancel(job);
}

/* Sends the scratch buffer as one event. Looks after slow readers. */
static void send_event(struct kg_job *job)
{
    struct kg_serve *s = job->serve;
    struct kg_buf *b = &s->scratch_out;
    size_t unsent;

    kg_buf_puts(b, "\n\n");
    if (b->rc != KG_OK) {
        struct kg_http_req *req = job->req;
        job->failed = true;
        job->req = NULL;
        kg_http_cut(req); /* out of memory: better an end that shows than a hole that does not */
        kg_job_cancel(job);
        return;
    }
    if (!job->began)
        kg_http_stream_begin(job->req, 200, "text/event-stream; charset=utf-8",
                             kg_split_header(job));
    job->began = true;
    unsent = kg_http_stream_send(job->req, b->data, b->len);
    if (unsent > s->parts.conf->out_hard_bytes) {
        kg_job_cut(job);
    } else if (unsent > s->parts.conf->out_soft_bytes) {
        kg_job_pause(job, true);
    }
}

static struct kg_buf *open_event(struct kg_job *job)
{
    struct kg_buf *b = &job->serve->scratch_out;

    if (job->chunk_open.len == 0) {
        kg_buf_reset(&job->chunk_open);
        kg_buf_puts(&job->chunk_open, "data: ");
        kg_write_open(&job->chunk_open, &job->envelope);
    }
    kg_buf_reset(b);
    b->rc = job->chunk_open.rc;
    kg_buf_add(b, kg_buf_cstr(&job->chunk_open), job->chunk_open.len);
    return b;
}

static void close_event(struct kg_job *job)
{
    const struct kg_call *call = &job->task.call;
    struct kg_usage u;

    if (call->continuous_usage)
        u = usage_of(job);
    kg_write_close(&job->serve->scratch_out, call->continuous_usage ? &u : NULL,
                   call->include_usage);
    send_event(job);
}

void kg_job_send(struct kg_job *job, uint32_t index)
{
    struct kg_answer *a = &job->answers[index].answer;
    const struct kg_call *call = &job->task.call;

    if (!call->stream)
        return;
    if (call->endpoint == KG_EP_CHAT && !a->role_sent) {
        kg_answer_write_role(a, open_event(job));
        close_event(job);
    }
    if (job->req == NULL || !kg_answer_has_news(a))
        return;
    kg_answer_write_delta(a, open_event(job));
    close_event(job);
}

/* Answers the whole thing and lets go of the request. */
static void reply(struct kg_job *job)
{
    struct kg_usage u = usage_of(job);
    struct kg_http_req *req = job->req;
    struct kg_api_error err = {0};
    struct kg_buf b;

    kg_buf_init(&b, 0);
    kg_write_open(&b, &job->envelope);
    for (uint32_t i = 0; i < job->n_answers; i++) {
        if (i > 0)
            kg_buf_putc(&b, ',');
        kg_answer_write(&job->answers[i].answer, &b);
    }
    kg_write_close(&b, &u, false);
    kg_buf_putc(&b, '\n');
    job->req = NULL;
    if (b.rc == KG_OK) {
        kg_http_reply(req, 200, "application/json", kg_split_header(job), b.data, b.len);
    } else {
        (void)kg_call_no_memory(&err);
        kg_http_reply_error(req, &err);
    }
    kg_buf_fini(&b);
}

/* The last words of a stream. */
static void end_stream(struct kg_job *job)
{
    static const char done[] = "data: [DONE]\n\n";
    struct kg_http_req *req = job->req;

    job->req = NULL;
    (void)kg_http_stream_send(req, done, sizeof(done) - 1);
    kg_http_stream_end(req);
}

void kg_job_finish(struct kg_job *job)
{
    write_note(job, job->answers[0].answer.finish);
    if (!job->task.call.stream) {
        reply(job);
        return;
    }
    if (job->task.call.include_usage) {
        struct kg_usage u = usage_of(job);
        kg_write_close(open_event(job), &u, false);
        send_event(job);
    }
    if (job->req != NULL)
        end_stream(job);
}

void kg_job_fail(struct kg_job *job, const struct kg_api_error *err)
{
    struct kg_http_req *req = job->req;

    job->failed = true;
    if (job->answers != NULL)
        write_note(job, err->code);
    if (!job->began) {
        job->req = NULL;
        kg_http_reply_error(req, err);
    } else {
        struct kg_buf *b = &job->serve->scratch_out;
        kg_buf_reset(b);
        kg_buf_puts(b, "data: ");
        kg_write_error(b, err);
        kg_buf_puts(b, "\n\n");
        if (b->rc == KG_OK)
            (void)kg_http_stream_send(req, b->data, b->len);
        end_stream(job);
    }
    kg_job_cancel(job);
}
