/* The server's own parts, shared by serve.c, routes.c, job.c and stats.c. Loop thread only. */
#ifndef KEDGE_SERVE_SERVE_IMPL_H
#define KEDGE_SERVE_SERVE_IMPL_H

#include "serve/answer.h"
#include "serve/http.h"
#include "serve/openai_write.h"
#include "serve/page.h"
#include "serve/prep.h"
#include "serve/serve.h"
#include <event2/event.h>

struct kg_job;
struct kg_page;

/* One sequence of a job in the engine: the message id is `generation << 32 | slot + 1`. */
struct kg_slot {
    struct kg_job *job; /* NULL: free */
    uint32_t answer;    /* of job->answers */
    uint32_t generation;
    uint32_t next_free;
};

/* Counters of /metrics, in the order of the rows in stats.c. */
enum kg_serve_cell {
    KG_SC_SUCCESS_STOP,
    KG_SC_SUCCESS_LENGTH,
    KG_SC_SUCCESS_ABORT,
    KG_SC_SUCCESS_ERROR,
    KG_SC_HTTP_2XX,
    KG_SC_HTTP_4XX,
    KG_SC_HTTP_5XX,
    KG_SC_HTTP_GONE,
    KG_SC_SENT_BYTES,
    KG_SC_PAUSED,
    KG_SC_SLOW_CUT,
    KG_SC_PREPARED_APART,
    KG_N_SERVE_CELLS,
};

enum kg_serve_histo {
    KG_SH_TTFT,
    KG_SH_ITL,
    KG_SH_TPOT,
    KG_SH_E2E,
    KG_SH_QUEUE,
    KG_SH_INFERENCE,
    KG_SH_PREFILL,
    KG_SH_DECODE,
    KG_SH_PROMPT_TOKENS,
    KG_SH_OUTPUT_TOKENS,
    KG_SH_MAX_TOKENS,
    KG_SH_N,
    KG_SH_PREEMPTIONS,
    KG_N_SERVE_HISTOS,
};

struct kg_serve {
    struct kg_serve_parts parts;
    struct kg_api api;
    struct event_base *base;
    struct kg_http *http;
    struct kg_prep *prep;
    struct kg_tok_scratch *scratch; /* the loop's own */
    struct event *engine_event, *more_event, *stop_event, *term_event, *int_event, *hup_event,
        *drain_timer;
    struct event *prep_events[2];
    int stop_fd; /* eventfd of kg_serve_stop */

    struct kg_slot *slots; /* [conf->max_queue] */
    uint32_t n_slots, free_slot, n_live;
    uint64_t piled_bytes;   /* of plain answers, not written yet */
    uint32_t n_paused;      /* sequences paused for slow readers */
    uint64_t busy_since_ns; /* backend clock: when n_live last rose from 0 */
    struct kg_job *jobs;    /* all of them */
    uint32_t n_jobs;
    struct kg_job *unsent, *last_unsent; /* jobs with tokens not sent yet, oldest first */
    uint64_t seed_state;   /* seeds of requests that name none */
    struct kg_buf scratch_out;

    struct kg_http_req
        *admin_req; /* waits for a change of plugins; NULL: none, or its client left */
    bool draining, cancelled;
    uint32_t n_cut;          /* requests cancelled by the end of the drain */
    uint64_t drain_start_ns; /* monotonic */
    uint64_t start_ns;       /* monotonic */
    int64_t created;         /* seconds since 1970 */
    struct kg_page *page;    /* page.c */

    struct kg_cell cells[KG_N_SERVE_CELLS];
    struct kg_histo histos[KG_N_SERVE_HISTOS];
    struct kg_metrics *own_metrics;
    struct kg_split *split;   /* split.h; NULL without arms */
    struct kg_reqlog *reqlog; /* reqlog.h; NULL without one */
    char model_label[300];    /* model_name="...",engine="0" */
};

/* --- routes.c --- */
extern const struct kg_http_ops kg_routes_ops;

/* --- job.c --- */
/* Takes a request whose body is complete; answers now or later. */
void kg_job_start(struct kg_serve *s, struct kg_http_req *req, enum kg_endpoint endpoint);
/* A task of a job came back from its preparation thread. */
void kg_job_prepared(struct kg_prep_task *task);
/* An event of the engine. */
void kg_job_event(struct kg_serve *s, const struct kg_event *ev);
/* Sends what events brought, to whoever waits longest first: one chunk per sequence, and the end of
 * a sequence in the same chunk as its last tokens. Stops when until_ns (monotonic) has passed; false
 * when somebody still waits. */
bool kg_jobs_send(struct kg_serve *s, uint64_t until_ns);
/* Ends every job with a 503 (shutting down). */
void kg_jobs_cancel(struct kg_serve *s);
/* Frees all jobs without telling anybody; the engine and prep threads are out of reach by now. */
void kg_jobs_free(struct kg_serve *s);

/* --- serve.c --- */
/* What SIGHUP does, with its log line: the policy is read again, the request log opened anew.
 * KG_ENOENT: there is no policy. */
int kg_serve_reload(struct kg_serve *s, struct kg_error *err);
/* Log lines that steps of the engine left behind. */
void kg_serve_write_lines(struct kg_serve *s);

/* --- admin.c --- */
/* Whether a request may go to /admin: from this machine, or with the key. */
int kg_admin_allowed(const struct kg_serve *s, struct kg_http_req *req, bool key_is_good,
                     struct kg_api_error *err);
/* The peer is this machine, and nobody passed its request on. */
bool kg_admin_is_local(const struct kg_http_req *req);
/* Each answers the request, change perhaps later. */
void kg_admin_list(struct kg_serve *s, struct kg_http_req *req);
void kg_admin_change(struct kg_serve *s, struct kg_http_req *req);
void kg_admin_reload(struct kg_serve *s, struct kg_http_req *req);
/* The engine took other plugins. */
void kg_admin_swapped(struct kg_serve *s);

/* --- stats.c --- */
KG_CHECKED int kg_stats_open(struct kg_serve *s, struct kg_error *err);
void kg_stats_close(struct kg_serve *s);
/* The Prometheus text. */
int kg_stats_write(struct kg_serve *s, struct kg_buf *b);
/* Counts a finished sequence: e is its DONE event. */
void kg_stats_done(struct kg_serve *s, const struct kg_event *e, const char *finish);
/* True while the engine does its work or has none; else fills what is wrong. */
bool kg_stats_healthy(struct kg_serve *s, struct kg_api_error *err);

#endif
