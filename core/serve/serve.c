/* Life of the server: building, the loop, signals, draining. */
#include "serve/serve.h"

#include "base/clock.h"
#include "serve/reqlog.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* What the engine's events may take of a turn of the loop, before connections are looked at again. */
#define TAKE_NS (KG_NS_PER_MS / 2)
#define SEND_NS (2 * KG_NS_PER_MS)
#define EVENTS_PER_LOOK 64 /* between two looks at the clock */
#define DRAIN_TICK_MS 20
#define LAST_WORDS_MS 2000 /* after the cancel, for the answers to leave */

void kg_serve_write_lines(struct kg_serve *s)
{
    if (s->parts.policy != NULL && s->parts.policy->write_lines != NULL)
        s->parts.policy->write_lines(s->parts.policy->ctx);
}

/* Takes events until there are none, or until_ns. False when there may be more. */
static bool take_events(struct kg_serve *s, uint64_t until_ns)
{
    struct kg_event ev;

    for (uint32_t n = 1; kg_engine_next(s->parts.engine, &ev) == KG_OK; n++) {
        if (ev.type == KG_EVENT_SWAPPED)
            kg_admin_swapped(s);
        else
            kg_job_event(s, &ev);
        if (n % EVENTS_PER_LOOK == 0 && kg_now_ns() >= until_ns)
            return false;
    }
    return true;
}

/*
 * A token costs a fraction of what its chunk costs, which is a system call here and one there. So
 * what is there is taken first, of all streams, and then sent, as far as the turn goes: whose turn
 * does not come finds more tokens in its next chunk, and where the engine is quicker than the
 * sockets each stream falls behind a little instead of all of them ever more.
 */
static void on_engine(evutil_socket_t fd, short what, void *arg)
{
    struct timeval soon = {0, 0};
    struct kg_serve *s = arg;
    uint64_t start = kg_now_ns();
    bool all = take_events(s, start + TAKE_NS);

    (void)fd;
    (void)what;
    (void)event_del(s->more_event); /* both may be due: one turn is enough */
    if (all)
        kg_serve_write_lines(s);
    all = kg_jobs_send(s, start + TAKE_NS + SEND_NS) && all;
    /* A timer and not event_active: an event made active here would run before the loop looks at
     * its sockets again, and a quick engine would keep them waiting for ever. */
    if (!all)
        (void)event_add(s->more_event, &soon);
}

static void on_prep(evutil_socket_t fd, short what, void *arg)
{
    struct kg_serve *s = arg;
    struct kg_prep_task *task;

    (void)fd;
    (void)what;
    while ((task = kg_prep_next(s->prep)) != NULL)
        kg_job_prepared(task);
}

static void on_drain_tick(evutil_socket_t fd, short what, void *arg)
{
    struct kg_serve *s = arg;
    uint64_t ms = (kg_now_ns() - s->drain_start_ns) / KG_NS_PER_MS;

    (void)fd;
    (void)what;
    if (kg_http_n_connections(s->http) == 0 && s->n_jobs == 0) {
        (void)event_base_loopbreak(s->base);
        return;
    }
    if (!s->cancelled && ms >= s->parts.conf->drain_ms) {
        kg_log_line(s->parts.log, KG_LOG_WARN, "serve", "drain time is over", "cancelled=%u",
                    s->n_jobs);
        s->cancelled = true;
        s->n_cut = s->n_jobs;
        kg_jobs_cancel(s);
    }
    if (s->cancelled && ms >= (uint64_t)s->parts.conf->drain_ms + LAST_WORDS_MS)
        (void)event_base_loopbreak(s->base);
}

static void begin_drain(struct kg_serve *s)
{
    struct timeval tick = {.tv_sec = 0, .tv_usec = DRAIN_TICK_MS * 1000L};

    if (s->draining) {
        kg_log_line(s->parts.log, KG_LOG_WARN, "serve", "second signal, ending at once",
                    "requests=%u", s->n_jobs);
        (void)event_base_loopbreak(s->base);
        return;
    }
    s->draining = true;
    s->drain_start_ns = kg_now_ns();
    kg_log_line(s->parts.log, KG_LOG_INFO, "serve", "draining", "requests=%u drain_ms=%u",
                s->n_jobs, s->parts.conf->drain_ms);
    kg_http_drain(s->http);
    (void)event_add(s->drain_timer, &tick);
}

int kg_serve_reload(struct kg_serve *s, struct kg_error *err)
{
    const struct kg_serve_policy *p = s->parts.policy;
    int rc = p != NULL ? p->reload(p->ctx, err) : KG_ENOENT;

    kg_reqlog_reopen(s);
    if (p == NULL && s->reqlog == NULL)
        kg_log_line(s->parts.log, KG_LOG_INFO, "serve", "nothing to reload", "%s", "");
    else if (rc == KG_OK)
        kg_log_line(s->parts.log, KG_LOG_INFO, "policy", "policy reloaded", "%s", "");
    else if (p != NULL)
        kg_log_line(s->parts.log, KG_LOG_ERROR, "policy",
                    "policy not reloaded, the old one goes on", "reason=\"%s\"", err->text);
    return rc;
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    struct kg_serve *s = arg;
    struct kg_error err = {0};

    (void)what;
    if (sig == SIGHUP)
        (void)kg_serve_reload(s, &err);
    else
        begin_drain(s);
}

static void on_stop(evutil_socket_t fd, short what, void *arg)
{
    uint64_t n;

    (void)what;
    if (read(fd, &n, sizeof(n)) == (ssize_t)sizeof(n))
        begin_drain(arg);
}

void kg_serve_stop(struct kg_serve *s)
{
    uint64_t one = 1;

    (void)!write(s->stop_fd, &one, sizeof(one));
}

static int open_slots(struct kg_serve *s, struct kg_error *err)
{
    s->n_slots = s->parts.conf->max_queue;
    s->slots = calloc(s->n_slots, sizeof(*s->slots));
    if (s->slots == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    for (uint32_t i = 0; i < s->n_slots; i++)
        s->slots[i].next_free = i + 1 < s->n_slots ? i + 1 : KG_NONE;
    s->free_slot = 0;
    return KG_OK;
}

static int open_events(struct kg_serve *s, struct kg_error *err)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct event_base *b = s->base;
    bool good;

    s->stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (s->stop_fd < 0)
        return kg_fail(err, KG_EIO, "eventfd: %s", strerror(errno));
    s->engine_event =
        event_new(b, kg_engine_fd(s->parts.engine), EV_READ | EV_PERSIST, on_engine, s);
    s->more_event = evtimer_new(b, on_engine, s);
    s->stop_event = event_new(b, s->stop_fd, EV_READ | EV_PERSIST, on_stop, s);
    s->drain_timer = event_new(b, -1, EV_PERSIST, on_drain_tick, s);
    s->term_event = evsignal_new(b, SIGTERM, on_signal, s);
    s->int_event = evsignal_new(b, SIGINT, on_signal, s);
    s->hup_event = evsignal_new(b, SIGHUP, on_signal, s);
    good = s->engine_event != NULL && s->more_event != NULL && s->stop_event != NULL &&
           s->drain_timer != NULL && s->term_event != NULL && s->int_event != NULL &&
           s->hup_event != NULL;
    good = good && event_add(s->engine_event, NULL) == 0 && event_add(s->stop_event, NULL) == 0;
    /* From here on a signal is a message to the loop, also before it runs; and nothing once the
     * events are gone and the process is on its way out. */
    for (int i = 0; i < 3; i++)
        (void)sigaction(((int[]){SIGTERM, SIGINT, SIGHUP})[i], &ignore, NULL);
    good = good && event_add(s->term_event, NULL) == 0 && event_add(s->int_event, NULL) == 0 &&
           event_add(s->hup_event, NULL) == 0;
    for (uint32_t i = 0; good && i < kg_prep_n_threads(s->prep); i++) {
        s->prep_events[i] = event_new(b, kg_prep_fd(s->prep, i), EV_READ | EV_PERSIST, on_prep, s);
        good = s->prep_events[i] != NULL && event_add(s->prep_events[i], NULL) == 0;
    }
    return good ? KG_OK : kg_fail(err, KG_ENOMEM, "out of memory");
}

int kg_serve_create(const struct kg_serve_parts *parts, struct kg_serve **serve,
                    struct kg_error *err)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct kg_serve *s;
    int rc = kg_server_conf_check(parts->conf, err);

    if (rc != KG_OK)
        return rc;
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    s->parts = *parts;
    s->stop_fd = -1;
    s->created = (int64_t)time(NULL);
    s->start_ns = kg_now_ns();
    kg_buf_init(&s->scratch_out, 0);
    if (getrandom(&s->seed_state, sizeof(s->seed_state), 0) != (ssize_t)sizeof(s->seed_state))
        s->seed_state = kg_now_ns();
    json_object_seed(0);                     /* before any thread parses */
    (void)sigaction(SIGPIPE, &ignore, NULL); /* a client that left is an error of the write */
    (void)sigaction(SIGXFSZ, &ignore, NULL); /* and so is a log that may not grow */
    kg_api_init(&s->api, parts->conf, parts->tok, parts->chat, parts->model_name,
                kg_engine_max_tokens(parts->engine), kg_engine_desc(parts->engine)->vocab);
    s->base = event_base_new();
    s->scratch = kg_tok_scratch_new(parts->tok);
    rc = s->base == NULL || s->scratch == NULL ? kg_fail(err, KG_ENOMEM, "out of memory")
                                               : open_slots(s, err);
    if (rc == KG_OK && kg_page_open(s) != KG_OK)
        rc = kg_fail(err, KG_ENOMEM, "out of memory");
    if (rc == KG_OK)
        rc = kg_stats_open(s, err);
    if (rc == KG_OK)
        rc = kg_reqlog_open(s, err);
    if (rc == KG_OK)
        rc = kg_prep_create(&s->api, &s->prep, err);
    if (rc == KG_OK)
        rc = open_events(s, err);
    if (rc == KG_OK)
        rc = kg_http_create(s->base, parts->conf, &kg_routes_ops, s, &s->http, err);
    if (rc != KG_OK) {
        kg_serve_destroy(s);
        return rc;
    }
    *serve = s;
    return KG_OK;
}

void kg_serve_destroy(struct kg_serve *s)
{
    struct event *events[10];

    if (s == NULL)
        return;
    memcpy(events,
           (struct event *[10]){s->engine_event, s->more_event, s->stop_event, s->drain_timer,
                                s->term_event, s->int_event, s->hup_event, s->prep_events[0],
                                s->prep_events[1], NULL},
           sizeof(events));
    kg_prep_destroy(s->prep); /* from here on nobody else reads a body */
    kg_jobs_free(s);
    kg_http_destroy(s->http);
    kg_reqlog_close(s);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        if (events[i] != NULL)
            event_free(events[i]);
    }
    if (s->stop_fd >= 0)
        (void)close(s->stop_fd);
    kg_stats_close(s);
    kg_page_close(s);
    kg_tok_scratch_free(s->scratch);
    free(s->slots);
    kg_buf_fini(&s->scratch_out);
    if (s->base != NULL)
        event_base_free(s->base);
    free(s);
}

const char *kg_serve_url(const struct kg_serve *s)
{
    return kg_http_url(s->http);
}

uint32_t kg_serve_port(const struct kg_serve *s)
{
    return kg_http_port(s->http);
}

int kg_serve_run(struct kg_serve *s, struct kg_error *err)
{
    if (event_base_dispatch(s->base) < 0)
        return kg_fail(err, KG_EIO, "the event loop failed");
    kg_log_line(s->parts.log, KG_LOG_INFO, "serve", "ended", "requests_cut=%u",
                s->cancelled ? s->n_cut : s->n_jobs);
    return KG_OK;
}
