/*
 * The HTTP/1.1 server: connections over libevent, one request at a time on each, limits on
 * everything a peer controls. It knows methods, paths and bytes, nothing of models. Own reader
 * and writer over bufferevents instead of evhttp, which in the release at hand has no deadline
 * for a whole head (a peer may drip bytes for ever), stops reading while a request runs (so a
 * client that left is not noticed), and cannot refuse by header before the body has arrived.
 *
 * Loop thread only. Order for each request: ops.head (may refuse before the body), ops.request;
 * then the owner answers with kg_http_reply, or kg_http_stream_begin .. kg_http_stream_end. When
 * the peer goes away first, `gone` is called once and the request must not be touched again.
 */
#ifndef KEDGE_SERVE_HTTP_H
#define KEDGE_SERVE_HTTP_H

#include "base/buf.h"
#include "serve/conf.h"
#include "serve/http_parse.h"
#include "serve/json.h"

struct event_base;
struct kg_http;
struct kg_http_req;

struct kg_http_ops {
    /* The head is complete. KG_OK to take the body, or *err filled: it becomes the answer. */
    int (*head)(void *ctx, struct kg_http_req *req, struct kg_api_error *err);
    /* The body is complete. The owner must answer, now or later. */
    void (*request)(void *ctx, struct kg_http_req *req);
    /* A request was answered, by whoever; bytes sent include the head. For log and counters. */
    void (*answered)(void *ctx, struct kg_http_req *req, int status, uint64_t bytes);
};

/* Called on the owner of a request that is being answered. */
struct kg_http_owner {
    void *self;
    void (*gone)(void *self);    /* the peer left or was cut; forget the request */
    void (*drained)(void *self); /* unsent output fell below half the soft limit */
};

/* Binds conf->host and conf->port and listens. conf, ops and base are borrowed. KG_EIO. */
KG_CHECKED int kg_http_create(struct event_base *base, const struct kg_server_conf *conf,
                              const struct kg_http_ops *ops, void *ctx, struct kg_http **http,
                              struct kg_error *err);
/* Closes everything; owners of unanswered requests are told (gone). NULL is allowed. */
void kg_http_destroy(struct kg_http *http);
/* Stops listening, closes idle connections, and every other one after its answer. */
void kg_http_drain(struct kg_http *http);
/* Port that is listened on, "http://host:port". Valid until destroy. */
uint32_t kg_http_port(const struct kg_http *http);
const char *kg_http_url(const struct kg_http *http);
/* Connections open now; requests between head and end of answer; refused for want of room. */
uint32_t kg_http_n_connections(const struct kg_http *http);
uint32_t kg_http_n_requests(const struct kg_http *http);
uint64_t kg_http_n_refused(const struct kg_http *http);
/* Bytes of answers written and not taken by the kernel yet, all connections. */
uint64_t kg_http_unsent_bytes(const struct kg_http *http);
/* Cuts the connection with the most unsent bytes, if they are more than that. True when it did. */
bool kg_http_cut_largest(struct kg_http *http, uint64_t bytes);
/* Bytes of request bodies held now. */
uint64_t kg_http_bodies_bytes(const struct kg_http *http);

/* --- One request --- */

const struct kg_http_head *kg_http_req_head(const struct kg_http_req *req);
/* Moves the body to the caller, who may keep it longer than the request lives and gives it back
 * with kg_http_free_body (until then it counts against bodies_bytes). Once. */
void kg_http_take_body(struct kg_http_req *req, struct kg_buf *body);
void kg_http_free_body(struct kg_http *http, struct kg_buf *body);
/* The peer's address, "127.0.0.1:40404". */
const char *kg_http_req_peer(const struct kg_http_req *req);
/* The peer's x-request-id if it is 1..128 visible ASCII characters, else one made here. */
const char *kg_http_req_id(const struct kg_http_req *req);
/* Monotonic time of the first byte of the request, ns. */
uint64_t kg_http_req_start_ns(const struct kg_http_req *req);
/* A word the owner may hang on the request for `answered`. */
void kg_http_req_set_note(struct kg_http_req *req, const char *note);
const char *kg_http_req_note(const struct kg_http_req *req);
/* Why it was refused, as "error=CODE param=FIELD reason=TEXT" without what is not known; "" when it
 * was not. Only the policy's own reason is text: other messages may quote the client. */
const char *kg_http_req_error(const struct kg_http_req *req);

/* Who is told about the rest of the request's life. */
void kg_http_req_own(struct kg_http_req *req, struct kg_http_owner owner);

/*
 * The whole answer. `extra` holds further header lines, each ended by CRLF, or NULL. The bytes
 * are copied. The request must not be touched afterwards.
 */
void kg_http_reply(struct kg_http_req *req, int status, const char *type, const char *extra,
                   const void *body, size_t n);
/* The same for an error in OpenAI's form; 429 and 503 carry Retry-After. */
void kg_http_reply_error(struct kg_http_req *req, const struct kg_api_error *err);

/* An answer in pieces: status and headers, `extra` as above, then any number of sends, then the
 * end. */
void kg_http_stream_begin(struct kg_http_req *req, int status, const char *type, const char *extra);
/* Returns bytes the socket had no room for, this piece included or, if it leaves at the end of the
 * turn, not yet. 0 < n. */
size_t kg_http_stream_send(struct kg_http_req *req, const void *data, size_t n);
/* The request must not be touched afterwards. */
void kg_http_stream_end(struct kg_http_req *req);
/* Cuts the connection without an end: the peer can tell the answer is not whole. `gone` is not
 * called; the request must not be touched afterwards. */
void kg_http_cut(struct kg_http_req *req);

#endif
