/*
 * The scheduler: given queues and budgets, plans one step: who decodes, who prefills how many
 * tokens, whom to admit. Memory, admission and preemption are the core's; the scheduler asks
 * admit() for a waiting request and is told yes, later or never.
 *
 * The core checks every plan: budgets kept, nobody twice, somebody advances when somebody can,
 * nobody younger admitted before a request that waited past max_wait. A plan that breaks a rule
 * is dropped, the built-in fcfs plans that step and a counter rises.
 */
#ifndef KEDGE_SCHED_H
#define KEDGE_SCHED_H

#include <kedge/abi.h>
#include <kedge/host.h>

#define KG_SCHED_MAJOR 1
#define KG_SCHED_MINOR 0

/* Capability bits. */
#define KG_SCHED_CAP_PRIORITY 1ull /* honours kg_sched_req.priority */
#define KG_SCHED_CAP_FAIR 2ull     /* shares service between tenants */

struct kg_sched; /* one instance; private to the plugin */

enum kg_admit {
    KG_ADMIT_YES = 0,
    KG_ADMIT_LATER = 1, /* no memory or slot now; ask again in a later step */
    KG_ADMIT_NEVER = 2, /* refused for good; the request is gone when the call returns */
};

/* What the scheduler knows of a request. `index` names it to the core; it is stable from add to
 * remove and below open's max_requests. */
struct kg_sched_req {
    uint32_t index;
    uint32_t priority;   /* 0 is normal, larger is sooner */
    uint64_t id;         /* rises with arrival */
    uint64_t tenant;     /* hash of the tenant; 0 for none */
    uint64_t arrival_ns; /* backend clock */
    uint32_t n_prompt;   /* tokens to prefill in all (after preemption: with its output) */
    uint32_t n_computed; /* of those, already in pages and state */
    uint32_t decoding;   /* 1: prefill is complete */
    uint32_t paused;     /* 1: may not run now (slow reader) */
};

/* One line of a plan. */
struct kg_sched_item {
    uint32_t index;
    uint32_t n_tokens; /* prefill: 1 .. budget; decode: 1 (drafts are added by the core) */
};

/* Budgets and queues of a step. Arrays are the core's and live during the call. */
struct kg_sched_view {
    size_t size;                        /* sizeof(struct kg_sched_view) of the core */
    uint64_t now_ns;                    /* backend clock */
    uint32_t step_tokens;               /* rows a step may carry */
    uint32_t prefill_chunk;             /* most prefill tokens of one request in a step */
    uint32_t decode_rows;               /* rows a decoding request counts: 1 + cap of drafts */
    uint32_t n_slots;                   /* requests that may still be admitted */
    const struct kg_sched_req *running; /* [n_running] holders of memory, by admission number */
    uint32_t n_running;
    uint32_t n_waiting;
    const struct kg_sched_req *waiting; /* [n_waiting] by arrival */
    /* Asks the core to admit waiting[i].index; on YES *computed is how many tokens it already
     * has (prefix hit). May be called for several, each once. */
    enum kg_admit (*admit)(void *ctx, uint32_t index, uint32_t *computed);
    void *ctx; /* first argument of admit */
};

struct kg_sched_ops {
    size_t size; /* sizeof(struct kg_sched_ops) as compiled */

    /* conf: the plugin's option struct; max_requests: most requests at once, indexes are below.
     * KG_ENOMEM, KG_ECONFIG. *sched set only on success. */
    int (*open)(const struct kg_host *host, const void *conf, uint32_t max_requests,
                struct kg_sched **sched, struct kg_error *err);
    void (*close)(struct kg_sched *sched); /* NULL is allowed */

    /* A request arrived, or left (any state). For schedulers that keep accounts. */
    void (*add)(struct kg_sched *sched, const struct kg_sched_req *req);
    void (*remove)(struct kg_sched *sched, uint32_t index);
    /* Tokens a request was served in the last step (prefill and output), for accounts. */
    void (*served)(struct kg_sched *sched, uint32_t index, uint32_t n_prefill, uint32_t n_output);

    /* Plans one step into items[max_items]; returns their number, >= 0. No allocation. */
    int (*plan)(struct kg_sched *sched, const struct kg_sched_view *view,
                struct kg_sched_item *items, uint32_t max_items);
    /* Self-check, after each step of debug runs. KG_OK or KG_EINVAL with text. */
    int (*check)(const struct kg_sched *sched, struct kg_error *err);
};

#endif
