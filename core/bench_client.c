/* The client of kedge bench serve: connections over libevent, kept alive and used again. */
#include "base/clock.h"
#include "bench_serve.h"
#include "front.h"
#include "serve/http_parse.h"
#include "text/rawjson.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEAD 65536
#define MAX_LINE (1u << 20) /* of a stream, and of an error body kept */

struct run;

/* A connection; busy while req is set. */
struct peer {
    struct run *run;
    struct bufferevent *bev;
    struct peer *next_idle;
    struct peer *next; /* all */
    struct kg_bench_req *req;
    bool used, in_body, chunked, until_close;
    int status;
    uint64_t left; /* of a body with a length */
    struct kg_http_chunks chunks;
    struct kg_buf line; /* a line of the stream, or the body of an error */
};

struct run {
    const struct kg_bench_conf *conf;
    struct kg_bench_req *reqs;
    uint32_t n, next, n_flying, n_done;
    struct event_base *base;
    struct event *timer;
    struct peer *peers, *idle;
    struct sockaddr_storage addr;
    socklen_t addr_len;
    uint64_t start_ns, end_ns;
    struct kg_buf *get_body; /* of kg_bench_get: everything goes here */
};

static void launch(struct run *run);

static uint64_t now_of(const struct run *run)
{
    return kg_now_ns() - run->start_ns;
}

static void peer_free(struct peer *p)
{
    for (struct peer **at = &p->run->peers; *at != NULL; at = &(*at)->next) {
        if (*at == p) {
            *at = p->next;
            break;
        }
    }
    for (struct peer **at = &p->run->idle; *at != NULL; at = &(*at)->next_idle) {
        if (*at == p) {
            *at = p->next_idle;
            break;
        }
    }
    if (p->bev != NULL)
        bufferevent_free(p->bev);
    kg_buf_fini(&p->line);
    free(p);
}

/* The request of this connection is over. `why` NULL: it went well. */
static void finish(struct peer *p, const char *why, bool reuse)
{
    struct run *run = p->run;
    struct kg_bench_req *q = p->req;

    q->done = true;
    q->end_ns = now_of(run);
    if (why == NULL && run->get_body == NULL && q->first_ns == 0)
        why = "the stream had no output";
    q->ok = why == NULL;
    if (why != NULL && q->error[0] == '\0')
        (void)snprintf(q->error, sizeof(q->error), "%.190s", why);
    if (q->n_output == 0)
        q->n_output = q->n_chunks;
    p->req = NULL;
    run->n_flying--;
    run->n_done++;
    run->end_ns = q->end_ns;
    if (reuse) {
        p->next_idle = run->idle;
        run->idle = p;
    } else {
        peer_free(p);
    }
    if (run->n_done == run->n)
        (void)event_base_loopbreak(run->base);
    else
        launch(run);
}

static void add_gap(struct kg_bench_req *q, uint64_t gap)
{
    if (q->n_gaps == q->cap_gaps) {
        uint32_t cap = q->cap_gaps * 2 + 64;
        uint64_t *v = realloc(q->gaps_ns, cap * sizeof(*v));
        if (v == NULL)
            return;
        q->gaps_ns = v;
        q->cap_gaps = cap;
    }
    q->gaps_ns[q->n_gaps++] = gap;
}

/* True when a choice of the chunk carries output, be it text, reasoning or a tool call. */
static bool has_output(struct kg_span choice, bool chat)
{
    struct kg_raw_member m, d;
    bool found = false;

    for (size_t at = 0; kg_raw_next(choice, &at, &m);) {
        if (!chat && kg_span_is(m.key, "\"text\""))
            found = kg_raw_type_of(m.value) == KG_RAW_STRING;
        if (!chat || !kg_span_is(m.key, "\"delta\"") || kg_raw_type_of(m.value) != KG_RAW_OBJECT)
            continue;
        for (size_t k = 0; kg_raw_next(m.value, &k, &d);)
            found = found || (!kg_span_is(d.key, "\"role\"") && !kg_span_is(d.value, "\"\"") &&
                              kg_raw_type_of(d.value) != KG_RAW_NULL);
    }
    return found;
}

static uint32_t count_of(struct kg_span usage, const char *name)
{
    struct kg_span v;

    return kg_raw_get(usage, name, &v) && kg_raw_type_of(v) == KG_RAW_NUMBER
               ? (uint32_t)strtoul(v.p, NULL, 10)
               : 0;
}

/* What a client looks at in a chunk; p is NULL for what is not there. */
struct chunk {
    struct kg_span choice, usage;
};

/* False when the chunk is not JSON or tells of an error. A parser that builds the values would be
 * most of what this client costs. */
static bool read_chunk(struct kg_span text, struct chunk *c)
{
    struct kg_span root;
    struct kg_raw_member m;
    ptrdiff_t used = kg_raw_value(text, &root);

    *c = (struct chunk){{NULL, 0}, {NULL, 0}};
    while (used > 0 && (size_t)used < text.n && memchr(" \t\r\n", text.p[used], 4) != NULL)
        used++;
    if (used <= 0 || (size_t)used != text.n || kg_raw_type_of(root) != KG_RAW_OBJECT)
        return false;
    for (size_t at = 0; kg_raw_next(root, &at, &m);) {
        enum kg_raw_type type = kg_raw_type_of(m.value);
        size_t first = 0;
        if (kg_span_is(m.key, "\"error\"") && type != KG_RAW_NULL)
            return false;
        if (kg_span_is(m.key, "\"choices\"") && type == KG_RAW_ARRAY &&
            kg_raw_next(m.value, &first, &m) && kg_raw_type_of(m.value) == KG_RAW_OBJECT)
            c->choice = m.value;
        else if (kg_span_is(m.key, "\"usage\"") && type == KG_RAW_OBJECT)
            c->usage = m.value;
    }
    return true;
}

/* One "data:" line of a stream. */
static void take_data(struct peer *p, const char *text, size_t n)
{
    struct kg_bench_req *q = p->req;
    uint64_t now = now_of(p->run);
    struct chunk c;

    if (n == 6 && memcmp(text, "[DONE]", 6) == 0)
        return;
    if (!read_chunk((struct kg_span){text, n}, &c)) {
        (void)snprintf(q->error, sizeof(q->error), "%.*s", n > 190 ? 190 : (int)n, text);
        return;
    }
    /* The chunk that names the role comes with the first token, whether that shows or not. */
    if (c.choice.p != NULL && q->first_ns == 0)
        q->first_ns = now;
    if (c.choice.p != NULL && has_output(c.choice, p->run->conf->chat)) {
        if (q->n_chunks++ > 0)
            add_gap(q, now - q->last_ns);
        q->last_ns = now;
    }
    if (c.usage.p != NULL) {
        q->n_output = count_of(c.usage, "completion_tokens");
        q->n_input = count_of(c.usage, "prompt_tokens");
    }
}

/* Bytes of the body, in order. */
static void take_body(struct peer *p, const char *s, size_t n)
{
    if (p->run->get_body != NULL || p->status != 200) {
        kg_buf_add(p->run->get_body != NULL ? p->run->get_body : &p->line, s, n);
        return;
    }
    for (size_t i = 0; i < n;) {
        const char *nl = memchr(s + i, '\n', n - i);
        size_t take = nl != NULL ? (size_t)(nl - (s + i)) : n - i;
        kg_buf_add(&p->line, s + i, take);
        i += take;
        if (nl == NULL)
            return;
        i++;
        while (p->line.len > 0 && p->line.data[p->line.len - 1] == '\r')
            p->line.data[--p->line.len] = '\0';
        if (p->line.len > 6 && memcmp(p->line.data, "data: ", 6) == 0)
            take_data(p, p->line.data + 6, p->line.len - 6);
        kg_buf_reset(&p->line);
    }
}

/* The whole body is here. */
static void body_done(struct peer *p, bool reuse)
{
    struct kg_bench_req *q = p->req;

    if (p->status != 200) {
        char why[200];
        (void)snprintf(why, sizeof(why), "status %d: %.150s", p->status, kg_buf_cstr(&p->line));
        finish(p, why, reuse);
    } else {
        finish(p, q->error[0] != '\0' ? q->error : NULL, reuse);
    }
}

/* Status line and headers at s, n bytes with the empty line. False when they make no sense. */
static bool take_head(struct peer *p, const char *s, size_t n)
{
    const char *end = s + n;

    if (n < 12 || memcmp(s, "HTTP/1.", 7) != 0)
        return false;
    p->status = (int)strtol(s + 9, NULL, 10);
    p->chunked = false;
    p->until_close = true;
    p->left = 0;
    for (const char *line = s; line < end;) {
        const char *nl = memchr(line, '\n', (size_t)(end - line));
        if (nl == NULL)
            break;
        if (strncasecmp(line, "content-length:", 15) == 0) {
            p->left = strtoull(line + 15, NULL, 10);
            p->until_close = false;
        } else if (strncasecmp(line, "transfer-encoding:", 18) == 0) {
            p->chunked = true;
            p->until_close = false;
        }
        line = nl + 1;
    }
    p->chunks = (struct kg_http_chunks){0};
    p->in_body = true;
    return true;
}

/* Takes the head, and those of answers that only announce it (1xx). 1: a body follows, 0: more must
 * arrive, -1: the request ended. */
static int take_heads(struct peer *p, struct evbuffer *in)
{
    while (!p->in_body) {
        size_t n = evbuffer_get_length(in);
        const char *s = (const char *)evbuffer_pullup(in, -1);
        size_t head = n > 0 ? kg_http_head_find(s, n, 0) : 0;
        if (head == 0 && n < MAX_HEAD)
            return 0;
        if (head == 0 || !take_head(p, s, head)) {
            finish(p, "not an HTTP answer", false);
            return -1;
        }
        (void)evbuffer_drain(in, head);
        if (p->status >= 100 && p->status < 200) {
            p->in_body = false;
        } else if (!p->chunked && !p->until_close && p->left == 0) {
            body_done(p, true);
            return -1;
        }
    }
    return 1;
}

/* Takes what has arrived. True when the request ended. */
static bool take_input(struct peer *p, struct evbuffer *in)
{
    int heads = take_heads(p, in), done = 0;
    size_t n = evbuffer_get_length(in), used = n, got = n;

    if (heads <= 0 || n == 0)
        return heads < 0;
    char *s = (char *)evbuffer_pullup(in, -1);
    if (p->chunked) {
        done = kg_http_chunks_feed(&p->chunks, s, n, &used, s, &got);
    } else if (!p->until_close) {
        got = used = n < p->left ? n : (size_t)p->left;
        p->left -= got;
        done = p->left == 0;
    }
    take_body(p, s, got);
    (void)evbuffer_drain(in, used);
    if (done < 0)
        finish(p, "broken chunked coding", false);
    else if (done == 1)
        body_done(p, true);
    return done != 0;
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct peer *p = arg;
    struct evbuffer *in = bufferevent_get_input(bev);

    if (p->req == NULL) {
        (void)evbuffer_drain(in, evbuffer_get_length(in));
        return;
    }
    (void)take_input(p, in);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct peer *p = arg;

    (void)bev;
    if ((what & BEV_EVENT_CONNECTED) != 0)
        return;
    if (p->req == NULL) {
        peer_free(p);
    } else if (p->in_body && p->until_close && (what & BEV_EVENT_EOF) != 0) {
        body_done(p, false);
    } else if ((what & BEV_EVENT_TIMEOUT) != 0) {
        finish(p, "timed out", false);
    } else {
        finish(p, (what & BEV_EVENT_EOF) != 0 ? "connection closed" : "connection failed", false);
    }
}

static struct peer *peer_open(struct run *run)
{
    struct peer *p = run->idle;
    struct timeval tv = {.tv_sec = run->conf->timeout_s};

    if (p != NULL) {
        run->idle = p->next_idle;
        return p;
    }
    p = calloc(1, sizeof(*p));
    if (p == NULL)
        return NULL;
    p->run = run;
    kg_buf_init(&p->line, MAX_LINE);
    p->next = run->peers;
    run->peers = p;
    p->bev = bufferevent_socket_new(run->base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (p->bev == NULL) {
        peer_free(p);
        return NULL;
    }
    bufferevent_setcb(p->bev, on_read, NULL, on_event, p);
    bufferevent_set_timeouts(p->bev, &tv, &tv);
    (void)bufferevent_enable(p->bev, EV_READ | EV_WRITE);
    if (bufferevent_socket_connect(p->bev, (struct sockaddr *)&run->addr, (int)run->addr_len) !=
        0) {
        peer_free(p);
        return NULL;
    }
    return p;
}

static void send_request(struct run *run, struct kg_bench_req *q)
{
    const struct kg_bench_conf *conf = run->conf;
    struct peer *p = peer_open(run);
    struct evbuffer *out;

    run->n_flying++;
    q->sent_ns = now_of(run);
    if (p == NULL) {
        (void)snprintf(q->error, sizeof(q->error), "cannot open a connection");
        q->done = true;
        q->end_ns = q->sent_ns;
        run->n_flying--;
        run->n_done++;
        return;
    }
    p->req = q;
    p->in_body = false;
    kg_buf_reset(&p->line);
    out = bufferevent_get_output(p->bev);
    (void)evbuffer_add_printf(out, "%s %s HTTP/1.1\r\nHost: %s:%u\r\n",
                              run->get_body != NULL ? "GET" : "POST", conf->path, conf->host,
                              conf->port);
    if (conf->api_key != NULL)
        (void)evbuffer_add_printf(out, "Authorization: Bearer %s\r\n", conf->api_key);
    if (run->get_body == NULL)
        (void)evbuffer_add_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                                  q->n_body);
    (void)evbuffer_add(out, "\r\n", 2);
    (void)evbuffer_add(out, q->body, q->n_body);
}

/* Sends what is due and allowed, and sets the timer for the next. */
static void launch(struct run *run)
{
    uint32_t limit = run->conf->max_concurrency;

    while (run->next < run->n && (limit == 0 || run->n_flying < limit)) {
        struct kg_bench_req *q = &run->reqs[run->next];
        uint64_t now = now_of(run);
        if (q->due_ns > now) {
            uint64_t us = (q->due_ns - now) / 1000 + 1;
            struct timeval tv = {.tv_sec = (time_t)(us / 1000000),
                                 .tv_usec = (suseconds_t)(us % 1000000)};
            (void)evtimer_add(run->timer, &tv);
            return;
        }
        run->next++;
        send_request(run, q);
    }
    if (run->n_done == run->n)
        (void)event_base_loopbreak(run->base);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    launch(arg);
}

static int resolve(struct run *run, struct kg_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char port[12];
    int rc;

    (void)snprintf(port, sizeof(port), "%u", run->conf->port);
    rc = getaddrinfo(run->conf->host, port, &hints, &list);
    if (rc != 0)
        return kg_fail(err, KG_EIO, "%s: %s", run->conf->host, gai_strerror(rc));
    memcpy(&run->addr, list->ai_addr, list->ai_addrlen);
    run->addr_len = list->ai_addrlen;
    freeaddrinfo(list);
    return KG_OK;
}

static int run_all(struct run *run, struct kg_error *err)
{
    int rc = resolve(run, err);

    if (rc != KG_OK)
        return rc;
    (void)kg_front_files(run->n);
    run->base = event_base_new();
    run->timer = run->base != NULL ? evtimer_new(run->base, on_timer, run) : NULL;
    if (run->timer == NULL) {
        rc = kg_fail(err, KG_ENOMEM, "out of memory");
    } else if (run->n > 0) {
        run->start_ns = kg_now_ns();
        launch(run);
        if (run->n_done < run->n && event_base_dispatch(run->base) < 0)
            rc = kg_fail(err, KG_EIO, "the event loop failed");
    }
    while (run->peers != NULL)
        peer_free(run->peers);
    if (run->timer != NULL)
        event_free(run->timer);
    if (run->base != NULL)
        event_base_free(run->base);
    return rc;
}

int kg_bench_run(const struct kg_bench_conf *conf, struct kg_bench_req *reqs, uint32_t n,
                 uint64_t *duration_ns, struct kg_error *err)
{
    struct run run = {.conf = conf, .reqs = reqs, .n = n};
    int rc = run_all(&run, err);

    if (rc == KG_OK)
        *duration_ns = run.end_ns;
    return rc;
}

int kg_bench_get(const struct kg_bench_conf *conf, const char *path, struct kg_buf *body,
                 struct kg_error *err)
{
    struct kg_bench_conf at = *conf;
    struct kg_bench_req q = {0};
    struct run run = {.conf = &at, .reqs = &q, .n = 1, .get_body = body};
    int rc;

    (void)snprintf(at.path, sizeof(at.path), "%s", path);
    at.timeout_s = 30;
    rc = run_all(&run, err);
    if (rc == KG_OK && !q.ok)
        rc = kg_fail(err, KG_EIO, "%s:%u%s: %s", at.host, at.port, path, q.error);
    return rc;
}
