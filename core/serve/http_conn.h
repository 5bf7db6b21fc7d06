/* One connection, shared by the reading half (http.c) and the writing half (http_out.c). */
#ifndef KEDGE_SERVE_HTTP_CONN_H
#define KEDGE_SERVE_HTTP_CONN_H

#include "base/buf.h"
#include "serve/http.h"
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>

enum conn_state {
    CONN_IDLE,   /* no byte of a request yet */
    CONN_HEAD,   /* inside a head */
    CONN_BODY,   /* inside a body */
    CONN_BUSY,   /* the owner is answering */
    CONN_FLUSH,  /* answered, the rest of the output leaves, then close */
    CONN_LINGER, /* our side is shut; input is thrown away until the peer closes or time is up */
};

/* A connection and the one request on it. */
struct kg_http_req {
    struct kg_http *http;
    struct kg_http_req *prev, *next; /* all connections */
    struct bufferevent *bev;
    struct event *timer; /* the state's deadline */
    enum conn_state state;
    uint32_t n_done;        /* requests answered on this connection */
    bool in_callback, dead; /* freed when the callback ends */
    char peer[64];

    /* the request */
    uint64_t start_ns;
    size_t scanned; /* bytes of input already searched for the end of the head */
    struct kg_buf head_bytes, body;
    struct kg_http_head head; /* spans into head_bytes */
    struct kg_http_chunks chunks;
    char id[132];
    const char *note;
    char error[400]; /* for the access log: code, field and the policy's reason; "" for none */
    struct kg_http_owner owner;

    /* the answer */
    int status;
    bool streaming, keep_alive, chunked_out, above_soft;
    uint64_t sent_bytes;
    uint64_t answer_bytes; /* of the last answer, if nothing was unsent when it began; else 0 */
};

struct kg_http {
    struct event_base *base;
    const struct kg_server_conf *conf;
    const struct kg_http_ops *ops;
    void *ctx;
    struct evconnlistener *listener;
    struct event *accept_timer; /* listen again after descriptors ran out */
    struct event *flush_event;  /* active while something is staged */
    struct kg_buf staged;       /* output of one connection that leaves at the end of this turn */
    struct kg_http_req *staged_for; /* whose, NULL for nobody; its bufferevent holds nothing */
    struct kg_http_req *conns;
    uint32_t n_conns, n_requests, port;
    uint64_t n_refused, bodies_bytes, unsent_bytes, next_id, id_salt;
    bool draining;
    char url[320];
};

/* Sends what is staged; what the kernel does not take goes to the connection's bufferevent. */
void kg_conn_flush(struct kg_http *h);
/* Closes the connection; tells the owner when `tell`. Safe inside its own callbacks. */
void kg_conn_close(struct kg_http_req *c, bool tell);
/* The answer is complete: next request, or flush and close. */
void kg_conn_answered(struct kg_http_req *c);
/* Sets the state and its deadline from now; 0 for none. */
void kg_conn_enter(struct kg_http_req *c, enum conn_state state, uint32_t ms);
/* Refuses what was read so far with an error answer and closes afterwards. */
void kg_conn_refuse(struct kg_http_req *c, int status, const char *code, const char *text);
/* If not a byte of the last answer has left: an error takes its place and the connection ends. */
bool kg_conn_take_back(struct kg_http_req *c);
/* The output fell below its low mark (bufferevent write callback). */
void kg_conn_on_written(struct kg_http_req *c);

#endif
