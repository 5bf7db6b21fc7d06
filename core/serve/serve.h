/*
 * The server: one loop thread that owns every connection, answer and log line of requests, and
 * talks to the engine by messages. See core/docs/server.md for the interface clients see.
 */
#ifndef KEDGE_SERVE_SERVE_H
#define KEDGE_SERVE_SERVE_H

#include "base/log.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "serve/conf.h"
#include "text/chat.h"

struct kg_serve;

/* What the server works with; all borrowed, all outlive it. */
struct kg_serve_parts {
    const struct kg_server_conf *conf;
    struct kg_engine *engine;
    const struct kg_tok *tok;
    const struct kg_chat *chat; /* NULL when the vocabulary has no chat format */
    const char *model_name;
    struct kg_metrics *metrics; /* rows of others, written out with ours; may be NULL */
    struct kg_log *log;         /* may be NULL */
};

/* Binds and listens; nothing is answered before kg_serve_run. From here until destroy SIGTERM,
 * SIGINT and SIGHUP are messages to the loop; SIGPIPE is ignored. KG_EIO, KG_ENOMEM, KG_ECONFIG. */
KG_CHECKED int kg_serve_create(const struct kg_serve_parts *parts, struct kg_serve **serve,
                               struct kg_error *err);
/* After run. Requests still open are cut; the engine may go on sending events for them. */
void kg_serve_destroy(struct kg_serve *serve); /* NULL is allowed */

/* "http://127.0.0.1:8000", and the port alone. Valid until destroy. */
const char *kg_serve_url(const struct kg_serve *serve);
uint32_t kg_serve_port(const struct kg_serve *serve);

/*
 * Serves on the calling thread until SIGTERM or SIGINT, then drains: stops listening, lets
 * requests finish for drain_ms, cancels the rest. A second signal ends at once. SIGHUP is
 * reserved (logged).
 */
KG_CHECKED int kg_serve_run(struct kg_serve *serve, struct kg_error *err);
/* What SIGTERM does. Any thread, any number of times. */
void kg_serve_stop(struct kg_serve *serve);

#endif
