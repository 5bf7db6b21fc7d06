/*
 * The server: one loop thread that owns every connection, answer and log line of requests, and
 * talks to the engine by messages. See core/docs/server.md for the interface clients see.
 */
#ifndef KEDGE_SERVE_SERVE_H
#define KEDGE_SERVE_SERVE_H

#include "base/buf.h"
#include "base/log.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "serve/arms.h"
#include "serve/conf.h"
#include "text/chat.h"

struct kg_serve;

/* A request as the policy sees it: never its text. Borrowed for the call. */
struct kg_arrive_view {
    const char *tenant, *user; /* "" for none */
    const char *arm;           /* name of its arm, "" without arms */
    bool chat, stream, echo;
    uint32_t n_prompts, n;  /* prompts; choices of each */
    uint64_t prompt_tokens; /* of all prompts */
    uint32_t max_tokens;    /* of one answer, the longest */
    uint32_t priority;
    uint64_t now_ns;                   /* backend clock */
    uint32_t sequences, max_sequences; /* of this server in the engine; [server] max_queue */
    const struct kg_engine_stats *stats;
};

struct kg_arrive_answer {
    int status; /* 0: accepted; else the HTTP status to refuse it with */
    char reason[200];
    char tenant[32], class_name[32]; /* "": as it was */
    bool has_priority;
    uint32_t priority;
    uint32_t max_tokens; /* cap of an answer; 0: none */
};

/* A policy, called on the loop thread only. */
struct kg_serve_policy {
    void *ctx;
    bool (*has_arrive)(void *ctx); /* false: arrive would accept everything */
    void (*arrive)(void *ctx, const struct kg_arrive_view *view, struct kg_arrive_answer *answer);
    /* SIGHUP: reads its rules again, all or none; *err says why not. */
    int (*reload)(void *ctx, struct kg_error *err);
    /* Writes the log lines that came up in steps of the engine; NULL: there are none. */
    void (*write_lines)(void *ctx);
};

/* Plugins to put in the place of others; NULL: stays. arm: whose speculation, NULL without arms. */
struct kg_swap_names {
    const char *sched, *spec, *arm;
};

/* Plugins of a running server in exchange for others, called on the loop thread only. */
struct kg_serve_admin {
    void *ctx;
    /* 1: KG_EVENT_SWAPPED of the engine will come; 0: nothing to do; negative: nothing changed,
     * *field ("sched", "spec", "arm", "") says which name is wrong, *err why; KG_EAGAIN: later. */
    int (*swap)(void *ctx, const struct kg_swap_names *names, const char **field,
                struct kg_error *err);
    void (*swapped)(void *ctx); /* the event came */
    /* A JSON object and a newline: what is active and what could be. */
    int (*write)(void *ctx, struct kg_buf *b, struct kg_error *err);
};

/* What the server works with; all borrowed, all outlive it. */
struct kg_serve_parts {
    const struct kg_server_conf *conf;
    struct kg_engine *engine;
    const struct kg_tok *tok;
    const struct kg_chat *chat; /* NULL when the vocabulary has no chat format */
    const char *model_name;
    struct kg_metrics *metrics;           /* rows of others, written out with ours; may be NULL */
    struct kg_log *log;                   /* may be NULL */
    const struct kg_serve_policy *policy; /* NULL: everything is accepted */
    const struct kg_serve_admin *admin;   /* NULL: plugins stay as they are */
    const struct kg_arms_conf *arms;      /* NULL or empty: none; as many as the engine has */
};

/* Binds and listens; nothing is answered before kg_serve_run. From here until destroy SIGTERM,
 * SIGINT and SIGHUP are messages to the loop; SIGPIPE and SIGXFSZ are ignored. KG_EIO, KG_ENOMEM,
 * KG_ECONFIG. */
KG_CHECKED int kg_serve_create(const struct kg_serve_parts *parts, struct kg_serve **serve,
                               struct kg_error *err);
/* After run. Requests still open are cut; the engine may go on sending events for them. */
void kg_serve_destroy(struct kg_serve *serve); /* NULL is allowed */

/* "http://127.0.0.1:8000", and the port alone. Valid until destroy. */
const char *kg_serve_url(const struct kg_serve *serve);
uint32_t kg_serve_port(const struct kg_serve *serve);

/*
 * Serves on the calling thread until SIGTERM or SIGINT, then drains: stops listening, lets
 * requests finish for drain_ms, cancels the rest. A second signal ends at once. SIGHUP
 * reloads the policy.
 */
KG_CHECKED int kg_serve_run(struct kg_serve *serve, struct kg_error *err);
/* What SIGTERM does. Any thread, any number of times. */
void kg_serve_stop(struct kg_serve *serve);

#endif
