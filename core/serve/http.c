/* Connections: accepting, reading heads and bodies, deadlines, closing. */
#include "serve/http.h"

#include "base/clock.h"
#include "base/hash.h"
#include "serve/http_conn.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* Input kept unread while a request is being answered: further requests wait in the kernel. */
#define BUSY_INPUT_BYTES 65536
#define LINGER_BYTES (1u << 20)
#define NOTSENT_BYTES 65536
#define LOOK_MS 200 /* between two looks whether a peer is there that we do not read from */

static size_t unsent_of(const struct kg_http_req *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

void kg_conn_enter(struct kg_http_req *c, enum conn_state state, uint32_t ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};

    c->state = state;
    if (ms > 0)
        (void)evtimer_add(c->timer, &tv);
    else
        (void)evtimer_del(c->timer);
}

/* Forgets the request, keeps the connection. */
static void reset_request(struct kg_http_req *c)
{
    c->http->bodies_bytes -= c->body.len;
    kg_buf_fini(&c->body);
    kg_buf_init(&c->body, c->http->conf->body_bytes);
    kg_buf_reset(&c->head_bytes);
    c->chunks = (struct kg_http_chunks){0};
    c->head.n_headers = 0;
    c->head.method = c->head.path = (struct kg_span){NULL, 0};
    c->scanned = 0;
    c->id[0] = '\0';
    c->note = NULL;
    c->error[0] = '\0';
    c->owner = (struct kg_http_owner){NULL, NULL, NULL};
    c->status = 0;
    c->streaming = c->chunked_out = c->above_soft = false;
    c->sent_bytes = 0;
}

static void conn_free(struct kg_http_req *c)
{
    struct kg_http *h = c->http;

    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        h->conns = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    h->n_conns--;
    h->bodies_bytes -= c->body.len;
    if (h->staged_for == c)
        kg_conn_flush(h);
    if (c->bev != NULL) {
        h->unsent_bytes -= unsent_of(c);
        bufferevent_free(c->bev);
    }
    if (c->timer != NULL)
        event_free(c->timer);
    kg_buf_fini(&c->head_bytes);
    kg_buf_fini(&c->body);
    free(c);
}

void kg_conn_close(struct kg_http_req *c, bool tell)
{
    struct kg_http_owner owner = c->owner;

    if (c->dead)
        return;
    c->dead = true;
    if (c->state == CONN_BUSY) {
        c->http->n_requests--;
        c->http->ops->answered(c->http->ctx, c, tell ? 499 : c->status, c->sent_bytes);
    }
    c->owner = (struct kg_http_owner){NULL, NULL, NULL};
    if (tell && owner.gone != NULL)
        owner.gone(owner.self);
    if (!c->in_callback)
        conn_free(c);
}

void kg_conn_answered(struct kg_http_req *c)
{
    bool keep = c->keep_alive && !c->http->draining;

    (void)bufferevent_enable(c->bev, EV_READ); /* unless its input was held, it is */

    if (c->state == CONN_BUSY)
        c->http->n_requests--;
    c->http->ops->answered(c->http->ctx, c, c->status, c->sent_bytes);
    c->n_done++;
    reset_request(c);
    if (!keep) {
        if (c->http->staged_for == c)
            kg_conn_flush(c->http);
        kg_conn_enter(c, CONN_FLUSH, 0); /* the write time-out ends it if the peer does not read */
        (void)bufferevent_enable(c->bev, EV_WRITE);
        if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
            kg_conn_on_written(c);
        return;
    }
    kg_conn_enter(c, CONN_IDLE, c->http->conf->idle_ms);
    /* A pipelined request may have arrived already; the callback runs from the loop, so that a
     * thousand of them do not nest. */
    bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_OPT_DEFER_CALLBACKS);
}

void kg_conn_refuse(struct kg_http_req *c, int status, const char *code, const char *text)
{
    struct kg_api_error err = {0};

    (void)kg_api_fail(&err, status, code, "", "%s", text);
    c->keep_alive = false;
    kg_http_reply_error(c, &err);
}

static void make_id(struct kg_http_req *c)
{
    struct kg_span v = kg_http_header_get(&c->head, "x-request-id");
    bool good = v.p != NULL && v.n >= 1 && v.n <= 128;

    for (size_t i = 0; good && i < v.n; i++)
        good = v.p[i] > ' ' && v.p[i] < 127;
    if (good) {
        memcpy(c->id, v.p, v.n);
        c->id[v.n] = '\0';
        return;
    }
    (void)snprintf(c->id, sizeof(c->id), "%016llx",
                   (unsigned long long)kg_hash_mix(c->http->id_salt + c->http->next_id++));
}

/* The whole head is in head_bytes. */
static void head_done(struct kg_http_req *c)
{
    struct kg_http *h = c->http;
    struct kg_api_error err = {0};
    const char *why = NULL;
    int status = kg_http_head_parse(c->head_bytes.data, c->head_bytes.len, &c->head, &why);

    if (status != 0) {
        kg_conn_refuse(c, status, "bad_request", why);
        return;
    }
    c->keep_alive = c->head.keep_alive;
    make_id(c);
    if (h->ops->head(h->ctx, c, &err) == KG_OK && c->head.content_length > h->conf->body_bytes)
        (void)kg_api_fail(
            &err, 413, "body_too_large", "", "the body has %llu bytes, at most %llu are taken",
            (unsigned long long)c->head.content_length, (unsigned long long)h->conf->body_bytes);
    if (err.status != 0) {
        /* Whatever body follows is not read. */
        c->keep_alive = c->keep_alive && !c->head.chunked && c->head.content_length == 0;
        kg_http_reply_error(c, &err);
        return;
    }
    if (c->head.expect_continue && (c->head.chunked || c->head.content_length > 0)) {
        kg_conn_flush(h); /* an answer before it, to a request on the same connection */
        (void)bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    }
    kg_conn_enter(c, CONN_BODY, h->conf->body_ms);
}

/* Looks for the end of the head in the input. True when something changed. */
static bool read_head(struct kg_http_req *c, struct evbuffer *in)
{
    struct kg_http *h = c->http;
    size_t have = evbuffer_get_length(in), max = h->conf->head_bytes;
    char skip[2];
    const char *p;
    size_t n;

    /* Empty lines before a request line are tolerated: old clients send one after a body. */
    while (c->scanned == 0 && have >= 2 && evbuffer_copyout(in, skip, 2) == 2 && skip[0] == '\r' &&
           skip[1] == '\n') {
        (void)evbuffer_drain(in, 2);
        have -= 2;
    }
    if (have == 0)
        return false;
    if (c->state == CONN_IDLE) {
        c->start_ns = kg_now_ns();
        kg_conn_enter(c, CONN_HEAD, h->conf->head_ms);
    }
    n = have < max ? have : max;
    p = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
    if (p == NULL) {
        kg_conn_refuse(c, 503, "overloaded", "out of memory");
        return false;
    }
    n = kg_http_head_find(p, n, c->scanned > 3 ? c->scanned - 3 : 0);
    if (n == 0) {
        c->scanned = have < max ? have : max;
        if (have >= max)
            kg_conn_refuse(c, 431, "head_too_large", "request line and headers are too long");
        return false;
    }
    if (kg_buf_add(&c->head_bytes, p, n) != KG_OK) {
        kg_conn_refuse(c, 503, "overloaded", "out of memory");
        return false;
    }
    (void)evbuffer_drain(in, n);
    head_done(c);
    return true;
}

/* Moves bytes of the body from the input. 1 complete, 0 more to come, -1 refused. */
static int take_body(struct kg_http_req *c, struct evbuffer *in)
{
    struct kg_http *h = c->http;
    struct evbuffer_iovec v;
    size_t used, got;
    int done = 0;

    if (!c->head.chunked && c->body.len == c->head.content_length)
        return 1;
    if (evbuffer_peek(in, -1, NULL, &v, 1) < 1 || v.iov_len == 0)
        return 0;
    got = v.iov_len;
    if (c->head.chunked) {
        /* In place: what counts against the limits is the body, not its coding. */
        done = kg_http_chunks_feed(&c->chunks, v.iov_base, got, &used, v.iov_base, &got);
        if (done < 0) {
            kg_conn_refuse(c, 400, "bad_request", "the chunked coding of the body is broken");
            return -1;
        }
    } else {
        if (got > c->head.content_length - c->body.len)
            got = (size_t)(c->head.content_length - c->body.len);
        used = got;
    }
    if (h->bodies_bytes + got > h->conf->bodies_bytes ||
        kg_buf_add(&c->body, v.iov_base, got) != KG_OK) {
        bool big = c->body.rc == KG_ELIMIT;
        kg_conn_refuse(c, big ? 413 : 503, big ? "body_too_large" : "overloaded",
                       big ? "the body is longer than [server] body_bytes"
                           : "too many request bodies at once; try again");
        return -1;
    }
    h->bodies_bytes += got;
    (void)evbuffer_drain(in, used);
    if (!c->head.chunked)
        done = c->body.len == c->head.content_length;
    return done;
}

static void read_body(struct kg_http_req *c, struct evbuffer *in)
{
    struct kg_http *h = c->http;
    int rc;

    do {
        size_t before = evbuffer_get_length(in);
        rc = take_body(c, in);
        if (rc == 0 && evbuffer_get_length(in) == before)
            return;
    } while (rc == 0);
    if (rc < 0)
        return;
    kg_conn_enter(c, CONN_BUSY, 0);
    h->n_requests++;
    h->ops->request(h->ctx, c);
}

static size_t input_bytes(const struct kg_http_req *c)
{
    uint64_t head = c->http->conf->head_bytes;

    return head > BUSY_INPUT_BYTES ? (size_t)head : BUSY_INPUT_BYTES;
}

/* Input that must wait is kept up to a limit; there reading stops until it is enabled again. True
 * when that was so. libevent's own high watermark is of no use: it calls the reader again and again
 * while it stands, and setting it dies where memory is short. */
static bool hold_input(struct kg_http_req *c, struct evbuffer *in)
{
    if (evbuffer_get_length(in) < input_bytes(c))
        return false;
    (void)bufferevent_disable(c->bev, EV_READ);
    return true;
}

/* Whether the peer closed or reset, whatever lies unread before that. */
static bool has_left(const struct kg_http_req *c)
{
    struct pollfd p = {.fd = bufferevent_getfd(c->bev), .events = POLLRDHUP};

    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct kg_http_req *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    bool more = true;

    c->in_callback = true;
    while (more && !c->dead) {
        more = false;
        switch (c->state) {
        case CONN_IDLE:
            /* Who does not read answers gets no further ones; kg_conn_on_written goes on. */
            c->above_soft = unsent_of(c) > c->http->conf->out_soft_bytes;
            if (c->above_soft) {
                hold_input(c, in);
                break;
            }
            more = read_head(c, in) && c->state == CONN_BODY;
            break;
        case CONN_HEAD:
            more = read_head(c, in) && c->state == CONN_BODY;
            break;
        case CONN_BODY:
            read_body(c, in);
            break;
        case CONN_BUSY:
            /* Kept until the answer is complete. When reading stops, so does the only way to hear
             * that the peer left. */
            if (hold_input(c, in))
                kg_conn_enter(c, CONN_BUSY, LOOK_MS);
            break;
        case CONN_FLUSH:
        case CONN_LINGER:
            c->scanned += evbuffer_get_length(in);
            (void)evbuffer_drain(in, evbuffer_get_length(in));
            if (c->scanned > LINGER_BYTES)
                kg_conn_close(c, true);
            break;
        }
    }
    c->in_callback = false;
    if (c->dead)
        conn_free(c);
}

static void on_write(struct bufferevent *bev, void *arg)
{
    struct kg_http_req *c = arg;

    (void)bev;
    c->in_callback = true;
    kg_conn_on_written(c);
    c->in_callback = false;
    if (c->dead)
        conn_free(c);
}

/* The peer closed, reset, or took nothing for write_ms. When it could take something now, it was
 * this loop that had no time to look: after a long pause the timeout is told and the chance to
 * write not. */
static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct pollfd p = {.fd = bufferevent_getfd(bev), .events = POLLOUT};

    if ((what & BEV_EVENT_TIMEOUT) != 0 && poll(&p, 1, 0) == 1 && p.revents == POLLOUT)
        (void)bufferevent_enable(bev, EV_WRITE);
    else
        kg_conn_close(arg, true);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct kg_http_req *c = arg;

    (void)fd;
    (void)what;
    c->in_callback = true;
    if (c->state == CONN_IDLE && unsent_of(c) > 0)
        kg_conn_enter(c, CONN_IDLE, c->http->conf->idle_ms); /* still reading the last answer */
    else if (c->state == CONN_HEAD || c->state == CONN_BODY)
        kg_conn_refuse(c, 408, "timeout", "the request did not arrive in time");
    else if (c->state == CONN_BUSY && !has_left(c))
        kg_conn_enter(c, CONN_BUSY, LOOK_MS);
    else
        kg_conn_close(c, true);
    c->in_callback = false;
    if (c->dead)
        conn_free(c);
}

static void on_output(struct evbuffer *out, const struct evbuffer_cb_info *info, void *arg)
{
    struct kg_http_req *c = arg;

    (void)out;
    c->http->unsent_bytes += info->n_added;
    c->http->unsent_bytes -= info->n_deleted;
}

static void name_peer(const struct sockaddr *addr, int len, char *out, size_t n)
{
    char host[48], port[8];

    if (getnameinfo(addr, (socklen_t)len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        (void)snprintf(out, n, "?");
    else
        (void)snprintf(out, n, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host, port);
}

static void refuse_connection(struct kg_http *h, evutil_socket_t fd)
{
    static const char body[] = "{\"error\":{\"message\":\"too many connections\","
                               "\"type\":\"server_error\",\"param\":null,"
                               "\"code\":\"overloaded\"}}\n";
    char text[400];
    int n = snprintf(text, sizeof(text),
                     "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\nRetry-After: 1\r\n\r\n%s",
                     sizeof(body) - 1, body);

    h->n_refused++;
    (void)!send(fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)shutdown(fd, SHUT_WR);
    (void)evutil_closesocket(fd);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int len,
                      void *arg)
{
    struct kg_http *h = arg;
    struct kg_http_req *c;
    struct timeval write_tv = {.tv_sec = h->conf->write_ms / 1000,
                               .tv_usec = (suseconds_t)(h->conf->write_ms % 1000) * 1000};
    int one = 1, notsent = NOTSENT_BYTES;

    (void)l;
    if (h->n_conns >= h->conf->max_connections) {
        refuse_connection(h, fd);
        return;
    }
    c = calloc(1, sizeof(*c));
    if (c == NULL) {
        refuse_connection(h, fd);
        return;
    }
    c->http = h;
    c->next = h->conns;
    if (c->next != NULL)
        c->next->prev = c;
    h->conns = c;
    h->n_conns++;
    kg_buf_init(&c->head_bytes, h->conf->head_bytes);
    kg_buf_init(&c->body, h->conf->body_bytes);
    name_peer(addr, len, c->peer, sizeof(c->peer));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    /* Unsent bytes wait in our buffer, where they count against the limits, not in the kernel. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &notsent, sizeof(notsent));
    c->timer = evtimer_new(h->base, on_deadline, c);
    c->bev = bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (c->bev == NULL)
        (void)evutil_closesocket(fd);
    if (c->timer == NULL || c->bev == NULL ||
        evbuffer_add_cb(bufferevent_get_output(c->bev), on_output, c) == NULL) {
        conn_free(c);
        return;
    }
    bufferevent_setcb(c->bev, on_read, on_write, on_event, c);
    bufferevent_setwatermark(c->bev, EV_WRITE, h->conf->out_soft_bytes / 2, 0);
    bufferevent_set_timeouts(c->bev, NULL, &write_tv);
    kg_conn_enter(c, CONN_IDLE, h->conf->idle_ms);
    (void)bufferevent_enable(c->bev, EV_READ | EV_WRITE);
}

static void on_accept_again(evutil_socket_t fd, short what, void *arg)
{
    struct kg_http *h = arg;

    (void)fd;
    (void)what;
    if (h->listener != NULL)
        (void)evconnlistener_enable(h->listener);
}

static void on_flush(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    kg_conn_flush(arg);
}

/* Out of descriptors or memory: stop for a moment instead of spinning on the same error. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
    struct kg_http *h = arg;
    struct timeval tv = {.tv_sec = 0, .tv_usec = 100000};

    h->n_refused++;
    (void)evconnlistener_disable(l);
    (void)evtimer_add(h->accept_timer, &tv);
}

/* Listens on the first address of the name that works. All who may be connected may come at once:
 * with a shorter queue the kernel drops the rest, who try again after one second and then three. */
static int listen_on(struct kg_http *h, struct kg_error *err)
{
    int backlog = h->conf->max_connections > 511 ? (int)h->conf->max_connections : 511;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_ADDRCONFIG};
    struct addrinfo *list = NULL;
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof(ss);
    char port[8], name[64];
    int rc;

    (void)snprintf(port, sizeof(port), "%u", h->conf->port);
    rc = getaddrinfo(h->conf->host, port, &hints, &list);
    if (rc != 0)
        return kg_fail(err, KG_EIO, "[server] host = %s: %s", h->conf->host, gai_strerror(rc));
    for (struct addrinfo *a = list; a != NULL && h->listener == NULL; a = a->ai_next)
        h->listener = evconnlistener_new_bind(h->base, on_accept, h,
                                              LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
                                                  LEV_OPT_REUSEABLE,
                                              backlog, a->ai_addr, (int)a->ai_addrlen);
    rc = errno;
    freeaddrinfo(list);
    if (h->listener == NULL)
        return kg_fail(err, KG_EIO, "cannot listen on %s port %u: %s", h->conf->host, h->conf->port,
                       strerror(rc));
    evconnlistener_set_error_cb(h->listener, on_accept_error);
    if (getsockname(evconnlistener_get_fd(h->listener), (struct sockaddr *)&ss, &len) != 0)
        return kg_fail(err, KG_EIO, "getsockname: %s", strerror(errno));
    h->port = ntohs(ss.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&ss)->sin6_port
                                             : ((struct sockaddr_in *)&ss)->sin_port);
    name_peer((struct sockaddr *)&ss, (int)len, name, sizeof(name));
    (void)snprintf(h->url, sizeof(h->url), "http://%s", name);
    return KG_OK;
}

int kg_http_create(struct event_base *base, const struct kg_server_conf *conf,
                   const struct kg_http_ops *ops, void *ctx, struct kg_http **http,
                   struct kg_error *err)
{
    struct kg_http *h = calloc(1, sizeof(*h));
    int rc;

    if (h == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    h->base = base;
    h->conf = conf;
    h->ops = ops;
    h->ctx = ctx;
    if (getrandom(&h->id_salt, sizeof(h->id_salt), 0) != (ssize_t)sizeof(h->id_salt))
        h->id_salt = kg_now_ns();
    kg_buf_init(&h->staged, 0);
    h->accept_timer = evtimer_new(base, on_accept_again, h);
    h->flush_event = evtimer_new(base, on_flush, h);
    rc = h->accept_timer == NULL || h->flush_event == NULL
             ? kg_fail(err, KG_ENOMEM, "out of memory")
             : listen_on(h, err);
    if (rc != KG_OK) {
        kg_http_destroy(h);
        return rc;
    }
    *http = h;
    return KG_OK;
}

void kg_http_destroy(struct kg_http *h)
{
    if (h == NULL)
        return;
    if (h->listener != NULL)
        evconnlistener_free(h->listener);
    while (h->conns != NULL)
        kg_conn_close(h->conns, true);
    if (h->accept_timer != NULL)
        event_free(h->accept_timer);
    if (h->flush_event != NULL)
        event_free(h->flush_event);
    kg_buf_fini(&h->staged);
    free(h);
}

void kg_http_drain(struct kg_http *h)
{
    h->draining = true;
    if (h->listener != NULL)
        evconnlistener_free(h->listener);
    h->listener = NULL;
    for (struct kg_http_req *c = h->conns, *next; c != NULL; c = next) {
        next = c->next;
        if (c->state == CONN_IDLE)
            kg_conn_close(c, true);
    }
}

uint32_t kg_http_port(const struct kg_http *h)
{
    return h->port;
}

const char *kg_http_url(const struct kg_http *h)
{
    return h->url;
}

uint32_t kg_http_n_connections(const struct kg_http *h)
{
    return h->n_conns;
}

uint32_t kg_http_n_requests(const struct kg_http *h)
{
    return h->n_requests;
}

uint64_t kg_http_n_refused(const struct kg_http *h)
{
    return h->n_refused;
}

uint64_t kg_http_unsent_bytes(const struct kg_http *h)
{
    return h->unsent_bytes;
}

bool kg_http_cut_largest(struct kg_http *h, uint64_t bytes)
{
    struct kg_http_req *largest = NULL;

    kg_conn_flush(h);
    for (struct kg_http_req *c = h->conns; c != NULL; c = c->next) {
        if (!c->dead && unsent_of(c) > bytes) {
            bytes = unsent_of(c);
            largest = c;
        }
    }
    if (largest != NULL && !kg_conn_take_back(largest))
        kg_conn_close(largest, true);
    return largest != NULL;
}

uint64_t kg_http_bodies_bytes(const struct kg_http *h)
{
    return h->bodies_bytes;
}

const struct kg_http_head *kg_http_req_head(const struct kg_http_req *c)
{
    return &c->head;
}

void kg_http_take_body(struct kg_http_req *c, struct kg_buf *body)
{
    *body = c->body;
    kg_buf_init(&c->body, c->http->conf->body_bytes);
}

void kg_http_free_body(struct kg_http *h, struct kg_buf *body)
{
    h->bodies_bytes -= body->len;
    kg_buf_fini(body);
}

const char *kg_http_req_peer(const struct kg_http_req *c)
{
    return c->peer;
}

const char *kg_http_req_id(const struct kg_http_req *c)
{
    return c->id;
}

uint64_t kg_http_req_start_ns(const struct kg_http_req *c)
{
    return c->start_ns;
}

void kg_http_req_set_note(struct kg_http_req *c, const char *note)
{
    c->note = note;
}

const char *kg_http_req_note(const struct kg_http_req *c)
{
    return c->note;
}

const char *kg_http_req_error(const struct kg_http_req *c)
{
    return c->error;
}

void kg_http_req_own(struct kg_http_req *c, struct kg_http_owner owner)
{
    c->owner = owner;
}
