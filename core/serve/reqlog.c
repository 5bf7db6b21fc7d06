#include "serve/reqlog.h"

#include "base/clock.h"
#include "base/ring.h"
#include "serve/job.h"
#include "serve/split.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_BYTES 65536
#define PIPE_WAIT_MS 100
#define LAST_WAIT_MS 2000 /* for a pipe that nobody reads, when the server ends */

enum { CELL_WRITTEN, CELL_DROPPED, CELL_FAILED, N_CELLS };

struct kg_reqlog {
    struct kg_ring *ring; /* lines, on their way to the writer */
    char *path;
    struct kg_log *log;
    _Atomic uint32_t stop, reopen;
    struct kg_cell cells[N_CELLS]; /* DROPPED is the loop's, the others the writer's */
    struct kg_buf line;            /* the loop's */
    pthread_t thread;
    /* the writer's */
    int fd;
    bool torn; /* what was written ends inside a line */
    char chunk[CHUNK_BYTES];
    size_t n_chunk;
    uint32_t n_lines; /* of the chunk */
};

/* --- the writer --- */

/* Whether a file ends inside a line, as one does whose writer was killed. */
static bool ends_torn(const char *path)
{
    struct stat st;
    char last = '\n';
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return false;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        (void)!pread(fd, &last, 1, st.st_size - 1);
    (void)close(fd);
    return last != '\n';
}

/* O_NONBLOCK for pipes: one without a reader must not hold up the start. */
static int open_file(struct kg_reqlog *l)
{
    bool torn = ends_torn(l->path);
    int fd = open(l->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0640);

    if (fd >= 0)
        l->torn = torn;
    return fd;
}

/* All of it, waiting for a pipe that is full. False: an error, or nobody reads and it is over. */
static bool write_all(struct kg_reqlog *l, const char *p, size_t n)
{
    struct pollfd wait = {.fd = l->fd, .events = POLLOUT};
    uint32_t waited_ms = 0;

    while (n > 0) {
        ssize_t w = write(l->fd, p, n);
        if (w > 0) {
            p += w;
            n -= (size_t)w;
            l->torn = p[-1] != '\n';
        } else if (w < 0 && errno == EAGAIN) {
            waited_ms = atomic_load(&l->stop) ? waited_ms + PIPE_WAIT_MS : 0;
            if (waited_ms > LAST_WAIT_MS)
                return false;
            (void)poll(&wait, 1, PIPE_WAIT_MS);
        } else if (w == 0 || errno != EINTR) {
            kg_log_line(l->log, KG_LOG_ERROR, "serve", "request log cannot be written",
                        "file=%s reason=\"%s\"", kg_log_quote(l->path, strlen(l->path)).text,
                        strerror(errno));
            return false;
        }
    }
    return true;
}

static void flush(struct kg_reqlog *l)
{
    bool good = l->n_chunk == 0 || !l->torn || write_all(l, "\n", 1);

    if (l->n_chunk == 0)
        return;
    good = good && write_all(l, l->chunk, l->n_chunk);
    kg_add(&l->cells[good ? CELL_WRITTEN : CELL_FAILED], l->n_lines);
    l->n_chunk = 0;
    l->n_lines = 0;
}

static void reopen(struct kg_reqlog *l)
{
    flush(l);
    int old = l->fd;
    int fd = open_file(l);

    if (fd < 0) {
        kg_log_line(l->log, KG_LOG_ERROR, "serve", "request log not reopened, the old file goes on",
                    "file=%s reason=\"%s\"", kg_log_quote(l->path, strlen(l->path)).text,
                    strerror(errno));
        return;
    }
    l->fd = fd;
    (void)close(old);
    kg_log_line(l->log, KG_LOG_INFO, "serve", "request log reopened", "file=%s",
                kg_log_quote(l->path, strlen(l->path)).text);
}

static void *writer(void *arg)
{
    struct kg_reqlog *l = arg;
    const char *line;
    size_t n;

    for (;;) {
        bool over = atomic_load(&l->stop); /* read before the last look at the ring */
        while ((line = kg_ring_peek(l->ring, &n)) != NULL) {
            if (l->n_chunk + n > sizeof(l->chunk))
                flush(l);
            memcpy(l->chunk + l->n_chunk, line, n);
            l->n_chunk += n;
            l->n_lines++;
            kg_ring_consume(l->ring);
        }
        flush(l);
        if (atomic_exchange(&l->reopen, 0))
            reopen(l);
        if (over)
            return NULL;
        if (!atomic_load(&l->stop))
            kg_ring_wait(l->ring, -1);
    }
}

/* --- life --- */

static int start(struct kg_serve *s, struct kg_reqlog *l, struct kg_error *err)
{
    static const struct kg_metric_row row[2] = {
        {"kedge:request_log_lines_total", KG_COUNTER,
         "Lines of the request log: written, dropped because the disk did not keep up, failed.", 0},
        {0}};
    static const char *const words[N_CELLS] = {"written", "dropped", "failed"};
    const char *path = s->parts.conf->request_log;
    char labels[400];

    int rc = kg_ring_create(s->parts.conf->request_log_bytes, &l->ring);
    l->path = strdup(path);
    if (rc != KG_OK || l->path == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for the request log");
    for (uint32_t i = 0; i < N_CELLS; i++) {
        (void)snprintf(labels, sizeof(labels), "%s,outcome=\"%s\"", s->model_label, words[i]);
        rc = kg_metrics_add(s->own_metrics, row, &l->cells[i], labels, err);
        if (rc != KG_OK)
            return rc;
    }
    l->fd = open_file(l);
    if (l->fd < 0)
        return kg_fail(err, KG_ECONFIG, "[server] request_log = %s: %s", path,
                       errno == ENXIO ? "a pipe that nobody reads" : strerror(errno));
    rc = pthread_create(&l->thread, NULL, writer, l);
    if (rc != 0)
        return kg_fail(err, KG_ENOMEM, "cannot start the writer of the request log: %s",
                       strerror(rc));
    return KG_OK;
}

static void reqlog_free(struct kg_reqlog *l)
{
    kg_buf_fini(&l->line);
    kg_ring_destroy(l->ring);
    if (l->fd >= 0)
        (void)close(l->fd);
    free(l->path);
    free(l);
}

int kg_reqlog_open(struct kg_serve *s, struct kg_error *err)
{
    if (s->parts.conf->request_log == NULL || s->parts.conf->request_log[0] == '\0')
        return KG_OK;
    struct kg_reqlog *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    l->fd = -1;
    l->log = s->parts.log;
    kg_buf_init(&l->line, CHUNK_BYTES / 2);
    int rc = start(s, l, err);
    if (rc == KG_OK)
        s->reqlog = l;
    else
        reqlog_free(l);
    return rc;
}

void kg_reqlog_close(struct kg_serve *s)
{
    struct kg_reqlog *l = s->reqlog;

    if (l == NULL)
        return;
    atomic_store(&l->stop, 1);
    kg_ring_wake(l->ring);
    (void)pthread_join(l->thread, NULL);
    uint64_t n = kg_get(&l->cells[CELL_DROPPED]) + kg_get(&l->cells[CELL_FAILED]);
    if (n > 0)
        kg_log_line(l->log, KG_LOG_WARN, "serve", "request log is not complete", "lines_lost=%llu",
                    (unsigned long long)n);
    s->reqlog = NULL;
    reqlog_free(l);
}

void kg_reqlog_reopen(struct kg_serve *s)
{
    if (s->reqlog == NULL)
        return;
    atomic_store(&s->reqlog->reopen, 1);
    kg_ring_wake(s->reqlog->ring);
}

/* --- lines --- */

/* ,"name":value in ms; null when it did not happen. */
static void put_ms(struct kg_buf *b, const char *name, double v)
{
    if (isnan(v))
        (void)kg_buf_printf(b, ",\"%s\":null", name);
    else
        (void)kg_buf_printf(b, ",\"%s\":%.6f", name, v);
}

static double span_ms(uint64_t from, uint64_t to)
{
    return to == 0 || to < from ? NAN : (double)(to - from) / 1e6;
}

static double wall_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

/* Whether a sequence of a job has a line: not one that was turned away before it had an arm. */
static bool is_logged(const struct kg_job *job)
{
    return job->serve->reqlog != NULL && job->key != 0 &&
           (job->has_arm || job->serve->split == NULL);
}

static struct kg_buf *begin(const struct kg_job *job, uint32_t index, double arrival_ms,
                            const char *outcome, const char *reason)
{
    struct kg_buf *b = &job->serve->reqlog->line;

    kg_buf_reset(b);
    (void)kg_buf_puts(b, "{\"id\":\"");
    (void)kg_buf_json_escape(b, job->id, strlen(job->id));
    if (job->task.call.n_prompts * job->task.call.n > 1)
        (void)kg_buf_printf(b, "-%u", index);
    (void)kg_buf_printf(b, "\",\"arrival_ms\":%.3f,\"outcome\":\"%s\",\"reason\":\"%s\"",
                        arrival_ms, outcome, reason);
    return b;
}

/* Who it was, and off it goes. */
static void end(const struct kg_job *job, struct kg_buf *b)
{
    struct kg_reqlog *l = job->serve->reqlog;

    if (job->has_arm)
        (void)kg_buf_printf(b, ",\"arm\":\"%s\",\"share\":%.10g,\"forced\":%s", kg_split_name(job),
                            job->share, job->forced ? "true" : "false");
    (void)kg_buf_printf(b, ",\"key\":\"%016llx\",\"endpoint\":\"%s\"}\n",
                        (unsigned long long)job->key,
                        job->task.call.endpoint == KG_EP_CHAT ? "chat" : "completions");
    if (b->rc != KG_OK || kg_ring_put(l->ring, b->data, b->len) != KG_OK)
        kg_add(&l->cells[CELL_DROPPED], 1);
}

static const char *reason_of(const struct kg_job *job, const struct kg_event *e)
{
    switch (e->finish) {
    case KG_FINISH_LENGTH:
        return "length";
    case KG_FINISH_CANCELLED:
        return job->serve->cancelled ? "shutdown" : "client";
    case KG_FINISH_ERROR:
        return "fault";
    case KG_FINISH_TIMEOUT:
        return "timeout";
    case KG_FINISH_REFUSED:
        return e->rc == KG_ELIMIT ? "policy" : "never_fits";
    default:
        return "stop";
    }
}

void kg_reqlog_done(const struct kg_job *job, uint32_t index, const struct kg_event *e)
{
    static const char *const outcomes[KG_N_SEQ_OUTCOMES] = {[KG_SEQ_OK] = "ok",
                                                            [KG_SEQ_REFUSED] = "refused",
                                                            [KG_SEQ_CANCELLED] = "cancelled",
                                                            [KG_SEQ_ERROR] = "error"};

    if (!is_logged(job))
        return;
    uint64_t now = kg_engine_now(job->serve->parts.engine);
    double age_ms = now > e->arrival_ns ? (double)(now - e->arrival_ns) / 1e6 : 0;
    struct kg_buf *b =
        begin(job, index, wall_ms() - age_ms, outcomes[kg_seq_outcome(e)], reason_of(job, e));
    (void)kg_buf_printf(b,
                        ",\"prompt_tokens\":%u,\"output_tokens\":%u,\"hit_page_tokens\":%u,"
                        "\"hit_state_tokens\":%u,\"reused_tokens\":%u,\"lost_tokens\":%u,"
                        "\"checkpoints_written\":%u",
                        e->n_prompt, e->n_output, e->n_cached + e->n_lost, e->n_cached, e->n_cached,
                        e->n_lost, e->n_checkpoints);
    put_ms(b, "ttft_ms", span_ms(e->arrival_ns, e->first_ns));
    put_ms(b, "tpot_ms",
           e->n_output > 1 && e->first_ns != 0
               ? span_ms(e->first_ns, e->done_ns) / (e->n_output - 1)
               : NAN);
    put_ms(b, "e2e_ms", span_ms(e->arrival_ns, e->done_ns));
    put_ms(b, "queue_ms", span_ms(e->arrival_ns, e->admitted_ns));
    (void)kg_buf_printf(b, ",\"preemptions\":%u,\"drafted\":%u,\"verified\":%u,\"accepted\":%u",
                        e->n_preempted, e->n_drafted, e->n_verified, e->n_accepted);
    end(job, b);
}

void kg_reqlog_refused(const struct kg_job *job, uint32_t index, const struct kg_api_error *why)
{
    static const struct {
        const char *code, *reason;
    } reasons[] = {{KG_POLICY_REJECTED, "policy"},
                   {"overloaded", "queue_full"},
                   {"request_too_large", "never_fits"}};
    const char *reason = "fault";

    if (!is_logged(job))
        return;
    for (size_t i = 0; why->code != NULL && i < sizeof(reasons) / sizeof(reasons[0]); i++)
        reason = strcmp(why->code, reasons[i].code) == 0 ? reasons[i].reason : reason;
    const struct kg_call *call = &job->task.call;
    struct kg_buf *b =
        begin(job, index, wall_ms(), strcmp(reason, "fault") == 0 ? "error" : "refused", reason);
    (void)kg_buf_printf(b,
                        ",\"prompt_tokens\":%zu,\"output_tokens\":0,\"hit_page_tokens\":0,"
                        "\"hit_state_tokens\":0,\"reused_tokens\":0,\"lost_tokens\":0,"
                        "\"checkpoints_written\":0,\"ttft_ms\":null,\"tpot_ms\":null,"
                        "\"e2e_ms\":null,\"queue_ms\":null,\"preemptions\":0,\"drafted\":0,"
                        "\"verified\":0,\"accepted\":0",
                        call->prompts[index / call->n].ids.n);
    end(job, b);
}
