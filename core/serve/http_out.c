/* Answers: status line, headers, bodies whole or in chunks. */
#include "serve/http_conn.h"

#include "base/log.h"
#include "serve/openai_write.h"

#include <string.h>
#include <sys/socket.h>

/* Larger pieces are no matter of system calls; they wait in the bufferevent, where they count. */
#define STAGE_BYTES 16384

const char *kg_http_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } table[] = {
        {100, "Continue"},
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].status == status)
            return table[i].text;
    }
    return "Status";
}

static bool is_head(const struct kg_http_req *c)
{
    return kg_span_is(c->head.method, "HEAD");
}

static size_t unsent_of(const struct kg_http_req *c)
{
    return evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* Bytes wait for the socket to take more. */
static void wait_for_room(struct kg_http_req *c, const void *p, size_t n)
{
    if (bufferevent_write(c->bev, p, n) != 0)
        c->keep_alive = false; /* out of memory: the length would be wrong */
    if (unsent_of(c) > c->http->conf->out_soft_bytes)
        c->above_soft = true;
}

/*
 * A stream writes a small piece to each of its connections in every turn of the loop. Through a
 * bufferevent each costs a chain, a timer, and three system calls where one does it: so the pieces
 * of a turn are joined and sent at once, and only the rest of a full socket waits there. Errors are
 * left for the bufferevent to find and to tell.
 */
void kg_conn_flush(struct kg_http *h)
{
    struct kg_http_req *c = h->staged_for;
    ssize_t n;

    if (c == NULL)
        return;
    h->staged_for = NULL;
    n = send(bufferevent_getfd(c->bev), h->staged.data, h->staged.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
        n = 0;
    if ((size_t)n < h->staged.len)
        wait_for_room(c, h->staged.data + n, h->staged.len - (size_t)n);
    kg_buf_reset(&h->staged);
}

static void count_out(struct kg_http_req *c, size_t n)
{
    c->sent_bytes += n;
    if (c->answer_bytes > 0)
        c->answer_bytes += n;
}

static void put(struct kg_http_req *c, const void *p, size_t n)
{
    struct kg_http *h = c->http;

    count_out(c, n);
    if (h->staged_for != c && n <= STAGE_BYTES && unsent_of(c) == 0) {
        if (h->staged_for == NULL)
            event_active(h->flush_event, EV_TIMEOUT, 0);
        kg_conn_flush(h);
        h->staged_for = c;
    }
    if (h->staged_for == c && n <= STAGE_BYTES && kg_buf_add(&h->staged, p, n) == KG_OK) {
        if (h->staged.len > STAGE_BYTES)
            kg_conn_flush(h);
        return;
    }
    if (h->staged_for == c)
        kg_conn_flush(h);
    wait_for_room(c, p, n);
}

/* Status line and headers. length: bytes of the body, or -1 for a stream. */
static void put_head(struct kg_http_req *c, int status, const char *type, const char *extra,
                     int64_t length)
{
    struct kg_buf b;

    kg_buf_init(&b, 0);
    c->status = status;
    c->answer_bytes = 0;
    if (c->http->draining)
        c->keep_alive = false;
    if (length < 0 && !c->chunked_out)
        c->keep_alive = false; /* HTTP/1.0: the end of the stream is the end of the connection */
    kg_buf_printf(&b, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n", status, kg_http_reason(status),
                  type);
    if (length >= 0)
        kg_buf_printf(&b, "Content-Length: %lld\r\n", (long long)length);
    else if (c->chunked_out)
        kg_buf_puts(&b, "Transfer-Encoding: chunked\r\n");
    if (length < 0)
        kg_buf_puts(&b, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    kg_buf_printf(&b, "Connection: %s\r\n", c->keep_alive ? "keep-alive" : "close");
    if (c->id[0] != '\0')
        kg_buf_printf(&b, "x-request-id: %s\r\n", c->id);
    if (extra != NULL)
        kg_buf_puts(&b, extra);
    kg_buf_puts(&b, "\r\n");
    bool first = c->http->staged_for != c && unsent_of(c) == 0;
    if (b.rc != KG_OK) {
        c->keep_alive = false;
    } else if (length > STAGE_BYTES) { /* with its body, so that both can be taken back */
        if (c->http->staged_for == c)
            kg_conn_flush(c->http);
        count_out(c, b.len);
        wait_for_room(c, b.data, b.len);
    } else {
        put(c, b.data, b.len);
    }
    if (first && b.rc == KG_OK)
        c->answer_bytes = b.len;
    kg_buf_fini(&b);
}

void kg_http_reply(struct kg_http_req *c, int status, const char *type, const char *extra,
                   const void *body, size_t n)
{
    put_head(c, status, type, extra, (int64_t)n);
    if (n > 0 && !is_head(c))
        put(c, body, n);
    kg_conn_answered(c);
}

static void note_error(struct kg_http_req *c, const struct kg_api_error *err)
{
    size_t n = sizeof(c->error);
    int w = snprintf(c->error, n, "error=%s", err->code != NULL ? err->code : "invalid_request");

    if (w > 0 && err->param[0] != '\0')
        w += snprintf(c->error + w, n - (size_t)w, " param=%s",
                      kg_log_quote(err->param, strlen(err->param)).text);
    if (w > 0 && err->code != NULL && strcmp(err->code, KG_POLICY_REJECTED) == 0)
        (void)snprintf(c->error + w, n - (size_t)w, " reason=%s",
                       kg_log_quote(err->message, strlen(err->message)).text);
}

void kg_http_reply_error(struct kg_http_req *c, const struct kg_api_error *err)
{
    struct kg_buf b;
    const char *extra = err->header;

    if (err->status == 429 || err->status == 503)
        extra = "Retry-After: 1\r\n";
    else if (err->status == 401)
        extra = "WWW-Authenticate: Bearer\r\n";
    note_error(c, err);
    kg_buf_init(&b, 0);
    kg_write_error(&b, err);
    kg_buf_putc(&b, '\n');
    kg_http_reply(c, err->status, "application/json", extra, b.data, b.rc == KG_OK ? b.len : 0);
    kg_buf_fini(&b);
}

void kg_http_stream_begin(struct kg_http_req *c, int status, const char *type, const char *extra)
{
    c->streaming = true;
    c->chunked_out = c->head.minor == 1;
    put_head(c, status, type, extra, -1);
}

size_t kg_http_stream_send(struct kg_http_req *c, const void *data, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    char size[18] = {[16] = '\r', [17] = '\n'};
    size_t at = 16;

    if (c->chunked_out) {
        for (size_t left = n; left > 0 || at == 16; left >>= 4)
            size[--at] = digits[left & 15];
        put(c, size + at, sizeof(size) - at);
    }
    put(c, data, n);
    if (c->chunked_out)
        put(c, "\r\n", 2);
    return unsent_of(c);
}

void kg_http_stream_end(struct kg_http_req *c)
{
    if (c->chunked_out)
        put(c, "0\r\n\r\n", 5);
    kg_conn_answered(c);
}

bool kg_conn_take_back(struct kg_http_req *c)
{
    struct evbuffer *out = bufferevent_get_output(c->bev);
    struct kg_http_owner owner = c->owner;
    size_t n = evbuffer_get_length(out);

    if (c->answer_bytes == 0 || c->answer_bytes != n || c->dead)
        return false;
    /* A bufferevent guards the front of its output against everybody but itself. */
    (void)evbuffer_unfreeze(out, 1);
    int rc = evbuffer_drain(out, n);
    (void)evbuffer_freeze(out, 1);
    if (rc != 0)
        return false;
    c->sent_bytes = 0;
    c->owner = (struct kg_http_owner){NULL, NULL, NULL};
    if (c->state == CONN_BUSY && owner.gone != NULL)
        owner.gone(owner.self);
    kg_conn_refuse(c, 503, "overloaded",
                   "all answers together are above [server] replies_bytes and this one is the "
                   "largest");
    return true;
}

void kg_http_cut(struct kg_http_req *c)
{
    kg_conn_close(c, false);
}

void kg_conn_on_written(struct kg_http_req *c)
{
    size_t unsent = evbuffer_get_length(bufferevent_get_output(c->bev));

    if (c->state == CONN_FLUSH && unsent == 0) {
        if (c->http->draining) { /* nobody waits for a slow goodbye */
            kg_conn_close(c, true);
            return;
        }
        /* The peer may still be sending: closing now could destroy the answer on its way. */
        (void)shutdown(bufferevent_getfd(c->bev), SHUT_WR);
        kg_conn_enter(c, CONN_LINGER, 2000);
        return;
    }
    if (!c->above_soft || unsent > c->http->conf->out_soft_bytes / 2)
        return;
    c->above_soft = false;
    if (c->state == CONN_BUSY && c->owner.drained != NULL) {
        c->owner.drained(c->owner.self);
    } else if (c->state == CONN_IDLE) {
        (void)bufferevent_enable(c->bev, EV_READ);
        bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_OPT_DEFER_CALLBACKS);
    }
}
