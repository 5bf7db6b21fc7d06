/*
 * Policy in Lua: one script with up to three hooks, each called with plain tables of numbers and
 * short strings. `arrive` runs on the loop thread, `admit` and `window` on the engine thread, so
 * each of the two threads has a Lua state of its own, loaded from the same script. A script can
 * say no, wait and set numbers; it cannot see prompts, reach the machine, or take longer than its
 * budget. See core/docs/policy.md for scripts.
 *
 * Functions say which thread may call them. "Loop" and "engine" may be one thread.
 */
#ifndef KEDGE_POLICY_POLICY_H
#define KEDGE_POLICY_POLICY_H

#include <kedge/types.h>
#include <stdbool.h>

struct kg_metrics;
struct kg_policy;

#define KG_POLICY_NAME 32             /* bytes of a tenant or class name, NUL included */
#define KG_POLICY_TEXT 160            /* bytes of a reason or log line, NUL included */
#define KG_POLICY_SCRIPT_BYTES 65536  /* most of a script file */
#define KG_POLICY_STATE_BYTES 1048576 /* most memory of one Lua state */

enum kg_policy_hook {
    KG_HOOK_ARRIVE = 0,
    KG_HOOK_ADMIT = 1,
    KG_HOOK_WINDOW = 2,
    KG_N_HOOKS = 3,
};

struct kg_policy_conf {
    const char *path;      /* of the script; copied */
    uint64_t instructions; /* Lua instructions of one arrive call, and of all engine calls of a
                            * step; counted in twenties, a call counts at least one */
    uint64_t arrive_ns;    /* wall time of one arrive call; 0: none, as under virtual time */
    uint64_t step_ns;      /* wall time of all engine calls of a step; 0: none */
    bool admit_on_error;   /* arrive failed: accept the request, else reject it with 503 */
    uint64_t seed;         /* of the key tables; equal seeds make equal runs */
    /* Lines of kg.log and of failures, NUL-terminated, one line; both threads. May be NULL. */
    void (*log)(void *ctx, const char *text, bool failure);
    /* Lines of kg.log of the engine's hooks instead; NULL: log. */
    void (*log_in_step)(void *ctx, const char *text, bool failure);
    void *log_ctx;
};

/* What arrive sees of a request. Strings are NUL-terminated and borrowed for the call. */
struct kg_policy_arrive {
    const char *tenant;   /* "" for none */
    const char *user;     /* field of the body; "" for none */
    const char *arm;      /* of the server; "" without arms */
    const char *endpoint; /* "chat" or "completions" */
    bool stream, echo;
    uint32_t n_prompts, n;  /* prompts; choices of each */
    uint64_t prompt_tokens; /* of all prompts */
    uint32_t max_tokens;    /* of one answer, the longest */
    uint32_t priority;
};

/* The server as arrive sees it: gauges, a step old at most. */
struct kg_policy_load {
    uint64_t now_ns;                   /* backend clock */
    uint32_t sequences, max_sequences; /* in the engine from this server; most of them */
    uint32_t running, waiting;         /* sequences */
    uint64_t arena_bytes, live_bytes, cached_bytes, promised_bytes;
};

/* What arrive decided. */
struct kg_policy_arrived {
    uint32_t reject; /* 0: accepted; else HTTP status 403, 429 or 503 */
    char reason[KG_POLICY_TEXT];
    char tenant[KG_POLICY_NAME]; /* "": as it was */
    char class_name[KG_POLICY_NAME];
    bool has_priority;
    uint32_t priority;
    uint32_t max_tokens; /* cap of an answer; 0: none */
};

/* A request first in line for memory. Bytes are natural bytes; kinds by enum kg_kind. */
struct kg_policy_admit {
    const char *tenant, *class_name, *arm; /* "" for none */
    uint64_t now_ns, waited_ns;            /* backend clock */
    uint32_t priority;
    uint32_t prompt_tokens, max_tokens;
    uint32_t hit_page_tokens, hit_state_tokens;
    uint32_t need_units[KG_N_KINDS]; /* by the built-in rule */
    uint64_t need_bytes[KG_N_KINDS];
    uint64_t arena_bytes, free_bytes, promised_bytes; /* free: holes and gap; promised: not taken */
    uint64_t live_bytes[KG_N_KINDS], cached_bytes[KG_N_KINDS];
    uint32_t live_units[KG_N_KINDS], cached_units[KG_N_KINDS];
    uint32_t waiting, running, max_running; /* requests */
    uint32_t step_tokens;                   /* budget of a step */
};

enum kg_policy_verdict {
    KG_VERDICT_ADMIT = 0, /* if it fits: the engine still decides about memory */
    KG_VERDICT_DEFER = 1,
    KG_VERDICT_REJECT = 2,
};

enum kg_policy_lifetime {
    KG_POLICY_LIFETIME_KEEP = 0, /* as configured */
    KG_POLICY_LIFETIME_PROMPT = 1,
    KG_POLICY_LIFETIME_MAX = 2,
    KG_POLICY_LIFETIME_EXPECTED = 3,
};

struct kg_policy_admitted {
    uint32_t verdict;  /* enum kg_policy_verdict */
    uint32_t lifetime; /* enum kg_policy_lifetime */
    uint32_t defer_ms; /* DEFER: ask again then, or when something changed; 0: the latter */
    char reason[KG_POLICY_TEXT];
};

/* A request class whose acceptance, batch or context bucket changed. */
struct kg_policy_class {
    const char *tenant, *class_name, *arm;
    uint64_t now_ns;
    uint32_t block;              /* most drafts a window may have */
    uint32_t sequences;          /* decoding, of this class */
    uint32_t batch;              /* decoding, of all */
    uint32_t context_tokens;     /* lower end of the context bucket */
    uint64_t verified, accepted; /* drafts of this class so far, lately */
};

struct kg_policy_window {
    bool has_cap, has_set; /* at most one */
    uint32_t length;       /* cap or fixed length, <= block; 0 pauses drafting */
};

/* Reads and tries the script. Loop. KG_EIO, KG_EINVAL, KG_ENOMEM with the line and the cause. */
KG_CHECKED int kg_policy_create(const struct kg_policy_conf *conf, struct kg_policy **policy,
                                struct kg_error *err);
/* With both threads ended, or on the one that is left. NULL is allowed. */
void kg_policy_destroy(struct kg_policy *policy);
/* Registers counters; they live until destroy. Before threads start. */
KG_CHECKED int kg_policy_metrics(struct kg_policy *policy, struct kg_metrics *metrics,
                                 struct kg_error *err);

/*
 * Reads the file again, builds a state for each thread, tries every hook with made-up requests,
 * and swaps both, or neither: then *err says why and the old script goes on. The engine's state is
 * taken at its next step. Key tables of kg.rate and kg.count go on. Loop.
 */
KG_CHECKED int kg_policy_reload(struct kg_policy *policy, struct kg_error *err);

/* Whether the script has the hook, as that hook's thread sees it now. That thread. */
bool kg_policy_has(const struct kg_policy *policy, enum kg_policy_hook hook);

/* Decides about a request. A failing or overlong script is answered by `admit_on_error`. Loop. */
void kg_policy_arrive(struct kg_policy *policy, const struct kg_policy_arrive *req,
                      const struct kg_policy_load *load, struct kg_policy_arrived *out);

/* Begins an engine step: takes a reloaded script (then it returns 1), fills the step's budget.
 * Engine. */
int kg_policy_step(struct kg_policy *policy);
/* True: *out is the script's answer. False: none, the built-in rule is to answer. Engine. */
bool kg_policy_admit(struct kg_policy *policy, const struct kg_policy_admit *req,
                     struct kg_policy_admitted *out);
bool kg_policy_window(struct kg_policy *policy, const struct kg_policy_class *req,
                      struct kg_policy_window *out);
/* The step's budget is spent: calls until the next step answer false. Engine. */
bool kg_policy_spent(const struct kg_policy *policy);

#endif
