/*
 * Drives an engine with a trace: submits requests when they arrive on the backend's clock, steps
 * the engine on the calling thread, follows sessions, lets clients leave. Time is virtual where the
 * backend's is: then nothing sleeps and the result is a function of trace, configuration and seed.
 *
 * With virtual time there may be several engines, replicas of each other that share nothing but the
 * time. The one that is furthest behind steps next, and a request is routed when none is behind its
 * arrival: so whatever is decided at a time knows what happened before it and nothing else.
 */
#ifndef KEDGE_EXPERIMENT_REPLAY_H
#define KEDGE_EXPERIMENT_REPLAY_H

#include "engine/engine.h"
#include "experiment/expand.h"
#include "experiment/route.h"

enum kg_outcome {
    KG_OUTCOME_OK = 0,
    KG_OUTCOME_REFUSED = 1,
    KG_OUTCOME_CANCELLED = 2,
    KG_OUTCOME_ERROR = 3,
};

/* Why a request was refused, or how it ended. */
enum kg_reason {
    KG_REASON_LENGTH = 0,  /* ok: all tokens the trace wants */
    KG_REASON_STOP = 1,    /* ok: a stop token */
    KG_REASON_CLIENT = 2,  /* cancelled: cancel_after */
    KG_REASON_QUEUE = 3,   /* refused: max_requests were in the engine */
    KG_REASON_NEVER = 4,   /* refused: can never fit */
    KG_REASON_TIMEOUT = 5, /* refused: waited longer than queue_timeout_ms */
    KG_REASON_POLICY = 6,  /* refused: by a script */
    KG_REASON_FAULT = 7,   /* error: see detail */
    KG_N_REASONS = 8,
};

/* What became of one request. Times are ns from the start of the replay on the backend's clock;
 * UINT64_MAX: did not happen. */
struct kg_replay_row {
    uint64_t arrival_ns, admitted_ns, first_ns, done_ns;
    char *detail; /* text of a refusal or an error, NULL for none */
    uint32_t outcome, reason;
    uint32_t n_prompt, n_output;
    uint32_t replica, expected; /* it was sent to; tokens the router took to be reusable there */
    uint32_t hit_page, hit_state, reused, lost; /* tokens; see the replay format */
    uint64_t output_hash;                       /* of the tokens said, in order; 0 without any */
    uint32_t n_checkpoints, n_preempted, n_drafted, n_verified, n_accepted;
};

/* Mean over time and maximum of bytes of one class. */
struct kg_replay_bytes {
    double sum; /* bytes times ns */
    uint64_t max, now;
};

enum kg_bytes_class {
    KG_BYTES_LIVE_PAGES,
    KG_BYTES_LIVE_STATES,
    KG_BYTES_CACHED_PAGES,
    KG_BYTES_CACHED_STATES,
    KG_BYTES_PINNED,
    KG_BYTES_HOLES,
    KG_BYTES_GAP,
    KG_BYTES_PADDING,
    KG_BYTES_PROMISED, /* beside the sum */
    KG_N_BYTES,
};

/* Bytes of each class and steps over time, in bins of one width from the start. The width doubles
 * when the last bin is full, so any length fits. */
#define KG_REPLAY_BINS 256u
struct kg_replay_series {
    uint64_t width_ns;
    double ns[KG_REPLAY_BINS];                               /* time seen of a bin */
    double sum[KG_REPLAY_BINS][KG_N_BYTES];                  /* bytes times ns */
    double step_ns[KG_REPLAY_BINS], n_steps[KG_REPLAY_BINS]; /* of steps that ended in a bin */
};

/* What one replica did. */
struct kg_replay_share {
    struct kg_engine_stats stats; /* at the end */
    double bytes_sum[KG_N_BYTES]; /* bytes times ns */
    uint64_t n_steps, step_ns_sum;
};

struct kg_replay_result {
    struct kg_replay_row *rows; /* [n] in the order of the trace */
    uint32_t n;
    uint64_t duration_ns; /* from the start to the last end */
    uint64_t *step_ns;    /* [n_steps] */
    uint64_t *engine_ns;  /* [n_steps] CPU time outside the backend; NULL unless time_engine */
    size_t n_steps, cap_steps;
    struct kg_replay_bytes bytes[KG_N_BYTES];
    uint64_t bytes_ns, arena_bytes;  /* bytes_ns: time the means stand for */
    struct kg_replay_series *series; /* NULL unless asked for */
    struct kg_engine_stats stats;    /* at the end; of several replicas the sums */
    struct kg_replay_share *shares;  /* [n_replicas] */
    uint32_t n_replicas;
};

/* A request before it is submitted, and what a policy may change of it. */
struct kg_replay_arrival {
    const char *tenant; /* "" for none */
    uint32_t n_prompt;  /* tokens */
    uint64_t now_ns;    /* backend clock */
    uint32_t n_live;    /* requests in the engine it goes to */
    uint32_t replica;   /* it goes to */
    const struct kg_engine_stats *stats;
    /* set by the policy */
    uint32_t rejected; /* 1: refused with `reason` */
    char reason[200];
    char tenant_name[32], class_name[32]; /* "": as it was */
    uint32_t priority, max_tokens;        /* max_tokens: of the trace, may be lowered */
};

/* One engine and its backend. */
struct kg_replay_replica {
    struct kg_engine *engine; /* not started, without requests */
    const struct kg_exec_ops *exec_ops;
    struct kg_exec *exec;
};

struct kg_replay_conf {
    const struct kg_replay_replica *replicas; /* [n_replicas]; of one configuration */
    uint32_t n_replicas;      /* 1..KG_ROUTE_MAX_REPLICAS; more than one only in virtual time */
    struct kg_router *router; /* NULL with one */
    const struct kg_trace *trace;
    const struct kg_expand *expand;
    double stretch;       /* of arrivals and delays; 1 as they are */
    uint32_t saturate;    /* 1: as fast as they are taken, to measure capacity */
    uint32_t max_live;    /* with saturate: requests in an engine at once */
    uint32_t time_engine; /* 1: engine_ns is filled */
    uint32_t series;      /* 1: series is filled */
    /* Asked about each request before it is submitted; NULL for none. */
    void (*arrive)(void *ctx, struct kg_replay_arrival *arrival);
    /* Called about twice a second of real time; NULL for none. */
    void (*progress)(void *ctx, uint32_t n_done, uint32_t n, uint64_t now_ns);
    void *ctx; /* of both */
};

/*
 * Runs the whole trace. Every request has a row afterwards, whatever became of it. KG_EDEVICE when
 * the engine stands still with work left, KG_ENOMEM; *result then holds what there is and is freed
 * like any other.
 */
KG_CHECKED int kg_replay_run(const struct kg_replay_conf *conf, struct kg_replay_result *result,
                             struct kg_error *err);
void kg_replay_free(struct kg_replay_result *result);

/* Nominal time of the last arrival, a session's turns counted from their delays; ns. */
KG_CHECKED int kg_replay_span(const struct kg_trace *trace, uint64_t *span_ns);

#endif
