/*
 * The engine as the rest of the core sees it: submit, steer, read events, look at numbers. One
 * engine thread runs the step and makes every plugin call (collectives excepted); the functions
 * below say from which thread they may be called. A request is two objects, the caller's and the
 * engine's; they refer to each other by id. KG_EVENT_DONE is always the last event of a request.
 */
#ifndef KEDGE_ENGINE_ENGINE_H
#define KEDGE_ENGINE_ENGINE_H

#include <kedge/exec.h>
#include <kedge/pool.h>
#include <kedge/sched.h>
#include <kedge/spec.h>
#include <kedge/tier.h>
#include <stdbool.h>

#define KG_MAX_ARMS 8u /* of an engine */

struct kg_engine;
struct kg_engine_test;
struct kg_cost_table;

/* [engine], [memory] and [admission] as the engine needs them. */
struct kg_engine_conf {
    uint32_t max_seqs;      /* most requests that hold memory at once */
    uint32_t max_requests;  /* most requests in the engine, waiting ones included */
    uint32_t step_tokens;   /* most rows of a step */
    uint32_t prefill_chunk; /* most prefill tokens of one request in a step */
    uint32_t max_context;   /* most tokens of a request; 0 for the model's limit */
    uint32_t page_tokens;   /* wanted; the pool answers the effective value */
    uint64_t arena_bytes;   /* [memory] bytes */
    uint32_t lifetime;      /* enum kg_lifetime */
    uint32_t quantile;      /* lifetime expected: reserves for so many percent of the observed
                             * outputs, 1 .. 100; 0: 90 */
    uint32_t max_draft;     /* draft rows to keep room for beyond what parts.spec asks for, so that
                             * another plugin can take its place; 0: none */
    uint32_t cost;          /* 1: a cost surface is measured at start and follows the steps */
    const struct kg_cost_table *cost_table; /* one that stays as it is (engine/cost.h), copied;
                                               NULL: `cost` says */
    uint32_t max_wait_ms;                   /* past it nobody younger is admitted first; 0 off */
    uint32_t queue_timeout_ms; /* a request that waited longer ends with KG_FINISH_TIMEOUT; 0 off */
    uint32_t prefix;           /* [prefix] enabled: 1 to reuse equal beginnings of prompts */
    uint32_t checkpoint;      /* [prefix] checkpoint: enum kg_ckpt_policy (engine/index_policy.h) */
    uint32_t interval;        /* [prefix] interval, tokens */
    uint64_t ghost_bytes;     /* [prefix] ghost_bytes */
    uint64_t tier_step_bytes; /* most bytes copied to the tier in a step, and from it; the first
                                 unit always */
    uint32_t accept;          /* [spec] accept: enum kg_accept_rule of requests that say COUPLED */
    uint32_t debug;           /* check() after each step, poison freed units */
    const struct kg_engine_test *test; /* engine/test.h; NULL outside tests; copied */
};

/* How much of a request's future admission reserves. */
enum kg_lifetime {
    KG_LIFETIME_PROMPT = 0,   /* the prompt; growth settles the rest */
    KG_LIFETIME_MAX = 1,      /* prompt + max_tokens */
    KG_LIFETIME_EXPECTED = 2, /* a quantile of observed output lengths */
};

/* What the policy sees of a request that is first in line for memory. Borrowed for the call. */
struct kg_admit_view {
    uint64_t now_ns, arrival_ns; /* backend clock */
    uint64_t id;
    const char *tenant, *class_name; /* "" for none */
    const char *arm;                 /* name of the request's arm, "" without arms */
    uint32_t priority;
    uint32_t n_prompt, max_tokens;                 /* tokens */
    uint32_t hit_page_tokens, hit_state_tokens;    /* of the prefix cache; 0 without one */
    uint32_t need[KG_N_KINDS];                     /* units by the built-in rule */
    uint32_t live[KG_N_KINDS], cached[KG_N_KINDS]; /* units of requests, of the index; unpinned */
    uint32_t n_waiting, n_running, max_running;    /* requests */
    uint32_t step_tokens;
    const uint64_t *unit_bytes; /* [KG_N_KINDS] */
    struct kg_pool_bytes bytes;
};

/* The policy's answer; as given to it, `lifetime` is the configured one. */
struct kg_admit_answer {
    uint32_t verdict;  /* enum kg_admit; YES: if it fits */
    uint32_t lifetime; /* enum kg_lifetime */
    uint64_t defer_ns; /* LATER: ask again then at the latest; 0: within a second */
    char text[200];    /* NEVER: the reason */
};

/* A class of decoding requests, one tenant, class and arm, as the policy sees it. Borrowed. */
struct kg_window_view {
    const char *tenant, *class_name; /* "" for none */
    const char *arm;                 /* its name, "" without arms */
    uint64_t now_ns;                 /* backend clock */
    uint32_t block;                  /* drafts of a sequence at most */
    uint32_t n_seqs, batch;          /* decoding requests: of the class, of all */
    uint32_t context_tokens;         /* the power of two at or below the class's mean context */
    uint32_t verified, accepted;     /* draft rows of the class, older ones count less */
};

enum kg_window_rule {
    KG_WINDOW_FREE = 0, /* as the speculation plugin chooses */
    KG_WINDOW_CAP = 1,  /* at most `length` drafts; 0: none are made */
    KG_WINDOW_SET = 2,  /* as many, if there are so many: the plugin is not asked how many */
};

struct kg_window_answer {
    uint32_t rule; /* enum kg_window_rule */
    uint32_t length;
};

/* A policy, called on the engine thread only. It may not call the engine. */
struct kg_engine_policy {
    void *ctx;
    /* A step begins. 1: rules have changed, everybody is asked about again. */
    int (*step)(void *ctx);
    /* KG_OK: *answer is the policy's. KG_ENOENT: it has none, the built-in rule answers. KG_EAGAIN:
     * it may not be asked any more in this step. */
    int (*admit)(void *ctx, const struct kg_admit_view *view, struct kg_admit_answer *answer);
    /* It has a word on admissions. Changes at step() only, as has_window. NULL: always. */
    bool (*has_admit)(void *ctx);
    /* Both NULL: windows are none of its business. has_window: it would be asked. window: results
     * as of admit. */
    bool (*has_window)(void *ctx);
    int (*window)(void *ctx, const struct kg_window_view *view, struct kg_window_answer *answer);
};

/*
 * One arm of an experiment inside an engine: rules and a speculation for its requests, in place of
 * those of kg_engine_conf and kg_engine_parts. Requests of all arms share memory, scheduler and
 * batch. The engine closes no speculation.
 */
struct kg_engine_arm {
    const char *name; /* for the policy, cut to 31 bytes */
    uint64_t salt;    /* mixed into its requests' salts, so that arms share no prefix; 0: they do */
    uint32_t checkpoint;                /* enum kg_ckpt_policy */
    uint32_t interval;                  /* tokens, >= 1 */
    uint32_t lifetime;                  /* enum kg_lifetime */
    uint32_t accept;                    /* enum kg_accept_rule */
    const struct kg_spec_ops *spec_ops; /* NULL: no speculation */
    struct kg_spec *spec;
    uint64_t spec_caps;
};

/* Plugin instances the engine drives. exec is open but not bound; the engine opens the pool,
 * binds, and closes neither: whoever opened exec, sched and spec closes them after destroy. */
struct kg_engine_parts {
    const struct kg_exec_ops *exec_ops;
    struct kg_exec *exec;
    const struct kg_pool_ops *pool_ops;
    uint64_t pool_caps;
    const struct kg_host *pool_host;
    const void *pool_conf;
    const struct kg_sched_ops *sched_ops;
    struct kg_sched *sched;
    const struct kg_spec_ops *spec_ops; /* NULL: no speculation */
    struct kg_spec *spec;
    uint64_t spec_caps;
    const struct kg_engine_arm *arms; /* [n_arms], copied by create; n_arms 0: one, of the three
                                         above and the configuration */
    uint32_t n_arms;                  /* at most KG_MAX_ARMS */
    const struct kg_engine_policy *policy; /* NULL: none; outlives the engine */
    /* Opened by the engine as the pool is; tier_ops NULL: none. */
    const struct kg_tier_ops *tier_ops;
    const struct kg_host *tier_host;
    const void *tier_conf;
    /* Whether the backend is still there, asked once a second while nothing runs; any thread, never
     * blocks. Not KG_OK: it is lost, *err says how. NULL: it cannot be lost unnoticed. */
    int (*well)(void *ctx, struct kg_error *err);
    void *well_ctx;
};

/* Other plugins for a running engine, opened by whoever swaps them in; NULL: the kind stays. */
struct kg_engine_swap {
    const struct kg_sched_ops *sched_ops;
    struct kg_sched *sched;
    const struct kg_spec_ops *spec_ops;
    struct kg_spec *spec;
    uint64_t spec_caps;
    uint32_t arm;   /* whose speculation; 0 without arms */
    uint32_t block; /* the engine's: rows of the new window */
};

/* kg_request.flags */
#define KG_REQ_ECHO 1u     /* log probabilities of the prompt (sampling.n_logprobs of them) */
#define KG_REQ_NO_CACHE 2u /* do not take or leave anything in the prefix cache */

/* A request as submitted. The engine copies everything it keeps. */
struct kg_request {
    uint64_t id;            /* chosen by the caller, unique while the request lives, > 0 */
    const uint32_t *tokens; /* [n_prompt] prompt */
    uint32_t n_prompt;      /* >= 1 */
    uint32_t max_tokens;    /* output tokens at most, >= 1 */
    uint32_t flags;
    uint32_t arm;                         /* below n_arms; 0 without arms */
    uint32_t priority;                    /* 0 normal, larger sooner */
    uint64_t tenant;                      /* hash, 0 none */
    const char *tenant_name, *class_name; /* for the policy, cut to 31 bytes; NULL for none */
    uint64_t salt;                        /* separates prefix caches; 0 none */
    struct kg_sampling sampling;
    const uint32_t *boundaries; /* [n_boundaries] token positions of message ends, ascending */
    uint32_t n_boundaries;
    const uint32_t *marks; /* [n_marks] positions where a checkpoint is asked for, ascending */
    uint32_t n_marks;
};

enum kg_finish {
    KG_FINISH_STOP = 0,      /* a stop token; it is the last token of the output */
    KG_FINISH_LENGTH = 1,    /* max_tokens or the context limit */
    KG_FINISH_CALLER = 2,    /* kg_engine_finish: a normal end at the given length */
    KG_FINISH_CANCELLED = 3, /* kg_engine_cancel */
    KG_FINISH_ERROR = 4,     /* NaN, device, or out of memory; `rc` and `text` say which */
    KG_FINISH_TIMEOUT = 5,   /* queue_timeout_ms */
    KG_FINISH_REFUSED = 6,   /* can never fit, or policy; `text` has the numbers */
};

enum kg_event_type {
    KG_EVENT_TOKENS = 1, /* n tokens of output */
    KG_EVENT_ECHO = 2,   /* log probabilities of prompt tokens, in order */
    KG_EVENT_DONE = 3,
    KG_EVENT_SWAPPED = 4, /* of no request: kg_engine_swap was carried out */
};

#define KG_SPEC_POSITIONS 16 /* told apart; what lies behind counts as the last */

/* Windows of drafts, by position. */
struct kg_spec_count {
    uint64_t rounds;                         /* windows of at least one draft */
    uint64_t verified[KG_SPEC_POSITIONS];    /* drafts verified at a position */
    uint64_t accepted[KG_SPEC_POSITIONS];    /* of them, accepted */
    uint64_t expected_um[KG_SPEC_POSITIONS]; /* millionths: what the drafter said would be */
};

/* One thing that happened to a request. Pointers live until the next kg_engine_next. */
struct kg_event {
    uint64_t id;
    uint32_t type;                     /* enum kg_event_type */
    uint32_t n;                        /* TOKENS, ECHO: entries */
    const uint32_t *tokens;            /* TOKENS: [n] */
    uint32_t n_logprobs;               /* entries per token below; 0: none */
    const struct kg_logprob *logprobs; /* [n][n_logprobs], chosen (ECHO: actual) token first */
    /* Set by DONE only; other events leave these as they were */
    uint32_t finish;                       /* enum kg_finish */
    int rc;                                /* enum kg_rc */
    char text[200];                        /* for errors and refusals */
    uint32_t n_prompt, n_output, n_cached; /* tokens; n_cached came from the prefix cache */
    uint32_t n_lost;        /* prompt tokens whose pages were cached, lost for want of a state */
    uint32_t n_checkpoints; /* states it gave to the prefix index */
    uint32_t n_drafted, n_verified, n_accepted, n_preempted;
    struct kg_spec_count spec;
    uint64_t arrival_ns, admitted_ns, first_ns, done_ns; /* backend clock; 0: did not happen */
};

/* Numbers for /metrics, /health and tests; a consistent-enough snapshot, any thread. */
struct kg_engine_stats {
    uint64_t steps, step_ns_sum; /* steps run; time inside exec */
    uint64_t overhead_ns_sum;    /* time of steps outside exec */
    uint64_t prompt_tokens, output_tokens;
    uint64_t queried_tokens; /* prompt tokens of first admissions */
    uint64_t cached_tokens;  /* prompt tokens from the prefix cache, first admissions */
    uint64_t lost_tokens;    /* with pages cached, but no state to go on from; all admissions */
    uint64_t ghost_tokens;   /* known once, memory gone; first admissions, beyond cached pages */
    uint64_t reused_tokens;  /* not computed thanks to the cache; all admissions */
    uint64_t ckpt_written;   /* states given to the index */
    uint64_t ckpt_unused;    /* written, but the index had one there */
    uint64_t ckpt_skipped;   /* wanted, no unit to be had */
    uint64_t ckpt_pruned;    /* wanted, worth less than what would have had to go */
    uint64_t taken_over;     /* hits whose request works in the cached state itself */
    uint64_t evicted[KG_N_KINDS]; /* cached units given up for room */
    uint64_t n_short[KG_N_KINDS]; /* admissions put off, by the kind that was short */
    /* The tier. Of evicted states, and of evicted pages before a stored one: stored + had + skipped
     * is their number. */
    uint64_t tier_stored[KG_N_KINDS]; /* copied to it */
    uint64_t tier_had[KG_N_KINDS];    /* there already */
    uint64_t
        tier_skipped[KG_N_KINDS];     /* no room there, the step's share used up, or not readable */
    uint64_t tier_loaded[KG_N_KINDS]; /* copied back */
    uint64_t tier_failed;             /* gone or not what was put, or the backend would not copy */
    uint64_t tier_fallbacks;          /* requests that began again without it for that */
    uint64_t tier_tokens;             /* of reused_tokens, more than the arena alone gave */
    uint64_t tier_bytes, tier_limit;  /* it keeps, it may keep; now */
    uint64_t drafted, verified, accepted;
    struct kg_spec_count spec;
    uint64_t draft_ns_sum, commit_ns_sum; /* of step_ns_sum, as far as the backend says */
    uint64_t preemptions, moves, moved_bytes;
    uint64_t idle_moves;    /* of moves: while nothing ran, so that no step has to */
    uint64_t finished[8];   /* by enum kg_finish */
    uint64_t plans_dropped; /* scheduler plans that broke a rule */
    uint64_t drafts_failed, nan_rows;
    uint64_t last_progress_ns; /* backend clock of the last step that advanced a request */
    uint32_t n_waiting, n_running, n_seqs_step; /* now; sequences of the last step */
    uint32_t n_used[KG_N_KINDS];                /* pool units owned */
    uint32_t n_cached[KG_N_KINDS];              /* of those, the prefix index's */
    uint32_t n_evictable[KG_N_KINDS];           /* of those, not in use */
    uint64_t ghost_bytes;                       /* of ghosts, host memory */
    uint64_t shared_pages; /* computed, and given back for equal ones that others had cached */
    uint64_t pictures, picture_ns_sum; /* made for kg_engine_picture; CPU time */
    uint64_t picture_ns_max;           /* most of it that came after one step */
    uint32_t lost;     /* 1: the backend is gone, every request ends with KG_EDEVICE */
    uint32_t reserved; /* 0 */
    struct kg_pool_bytes bytes;
};

/* --- A picture of the engine, for people --- */

#define KG_PICTURE_BINS 512   /* parts of the arena, at most */
#define KG_PICTURE_RUNNING 64 /* requests listed, at most */
#define KG_PICTURE_WAITING 32

/* As kg_pool_bytes; padding of a unit counts where the unit lies. */
enum kg_picture_class {
    KG_PICTURE_LIVE_PAGE,
    KG_PICTURE_LIVE_STATE,
    KG_PICTURE_CACHED_PAGE,
    KG_PICTURE_CACHED_STATE,
    KG_PICTURE_PINNED,
    KG_PICTURE_HOLES,
    KG_PICTURE_GAP,
    KG_PICTURE_PADDING,
    KG_N_PICTURE_CLASSES,
};

enum kg_picture_state { KG_PICTURE_WAITS, KG_PICTURE_PREFILLS, KG_PICTURE_DECODES };

/* A request in numbers: nothing of its text. */
struct kg_picture_req {
    uint64_t serial;                         /* of arrival, from 1 */
    uint64_t arrival_ns;                     /* backend clock */
    uint32_t n_prompt, n_output, max_tokens; /* tokens: prompt, said so far, said at most */
    uint32_t n_computed;                     /* tokens in pages and state */
    uint32_t n_pages, n_preempted;
    uint32_t state;                             /* enum kg_picture_state */
    uint32_t paused;                            /* 1: for a slow reader */
    uint32_t short_of;                          /* waits: 1 + the kind that was short, 0 none */
    uint32_t hit_page_tokens, hit_state_tokens; /* waits: what it would find; else what it found */
    uint32_t arm;                               /* kg_request.arm */
};

struct kg_picture {
    uint64_t serial;                /* of pictures, from 1 */
    uint64_t taken_ns;              /* backend clock, when it was complete */
    uint64_t first_step, last_step; /* steps run when the walk began and ended */
    uint64_t n_entries;             /* table entries looked at */
    /* Bin i is bytes i * bin_bytes .. of the arena; the last one may be shorter. Bytes by class in
     * each; with first_step == last_step they are kg_pool_bytes of that moment to the byte, else
     * parts of them are a few steps older than others. n_bins 0: the pool does not say (it lacks
     * the op `classes`). */
    uint64_t bin_bytes;
    uint32_t n_bins;
    uint32_t n_running, n_waiting;                  /* rows below; oldest first */
    uint32_t n_decoding, n_prefilling;              /* sequences of the last step */
    uint32_t decode_rows, draft_rows, prefill_rows; /* rows of the last step */
    struct kg_picture_req running[KG_PICTURE_RUNNING], waiting[KG_PICTURE_WAITING];
    uint64_t bins[KG_N_PICTURE_CLASSES][KG_PICTURE_BINS];
};

/* Opens the pool, binds the backend, sizes everything for conf. Nothing runs yet.
 * KG_ECONFIG with numbers when it cannot work. `parts` and `conf` are copied. */
KG_CHECKED int kg_engine_create(const struct kg_engine_parts *parts,
                                const struct kg_engine_conf *conf, struct kg_engine **engine,
                                struct kg_error *err);
/* Stops the thread if it runs, ends all requests, closes the pool. NULL is allowed. */
void kg_engine_destroy(struct kg_engine *engine);

/* Starts the engine thread. Without it, the caller drives kg_engine_step itself. */
KG_CHECKED int kg_engine_start(struct kg_engine *engine, struct kg_error *err);
/* Ends the thread after the step in flight. Requests stay; destroy ends them. */
void kg_engine_stop(struct kg_engine *engine);

/*
 * One step on the calling thread; only while the thread is not started. Returns 1 when a batch
 * ran or a request changed, 0 when there is nothing to do (with virtual time, the clock was moved
 * to the next deadline if there is one), negative when the backend is lost.
 */
int kg_engine_step(struct kg_engine *engine, struct kg_error *err);

/* Takes the policy away, or puts it back, between two steps of an engine whose thread is not
 * started: to measure what it costs. Nobody may be put off by it. */
void kg_engine_use_policy(struct kg_engine *engine, const struct kg_engine_policy *policy);
/* With virtual time: a step that finds nothing to do moves the clock no further than `ns`, when the
 * caller has something to submit. UINT64_MAX, as at the start: to the next deadline. */
void kg_engine_horizon(struct kg_engine *engine, uint64_t ns);
/* From here on overhead_ns_sum is CPU time of the stepping thread, which a busy machine does not
 * lengthen. Before the first step; costs a system call or two a step. */
void kg_engine_count_cpu(struct kg_engine *engine);

/* --- Caller side: one thread (the loop), the same for all of these --- */

/*
 * Hands over a request. KG_EAGAIN: the engine's inbox or queue is full (503). KG_ENEVER: it can
 * never fit, text has the numbers (400). KG_EINVAL: a field is wrong, text names it. On anything
 * but KG_OK no event will come.
 */
KG_CHECKED int kg_engine_submit(struct kg_engine *engine, const struct kg_request *req,
                                struct kg_error *err);
/* Ends a request; DONE(CANCELLED) follows unless it was done already. Unknown ids are ignored. */
void kg_engine_cancel(struct kg_engine *engine, uint64_t id);
/* Normal end after n_output tokens (a stop string matched): later tokens are not counted. */
void kg_engine_finish(struct kg_engine *engine, uint64_t id, uint32_t n_output);
/* A slow reader: plan without this request until resumed. */
void kg_engine_pause(struct kg_engine *engine, uint64_t id, bool paused);
/*
 * Puts other plugins in the place of scheduler and speculation, between two steps; no request is
 * lost and no token changes. *swap stays the engine's until KG_EVENT_SWAPPED was read; then it
 * holds what was replaced, which is the caller's to close (so it is when the engine is destroyed
 * meanwhile: either may be in it). KG_EAGAIN: one is under way. KG_ECONFIG: there is no room for
 * the drafts, or no drafter. On anything but KG_OK nothing changed.
 */
KG_CHECKED int kg_engine_swap(struct kg_engine *engine, struct kg_engine_swap *swap,
                              struct kg_error *err);
/* Next event, KG_OK or KG_EAGAIN when there is none. */
int kg_engine_next(struct kg_engine *engine, struct kg_event *event);
/* Descriptor that is readable while events may wait; kg_engine_next drains it. */
int kg_engine_fd(const struct kg_engine *engine);

/*
 * Copies what `from` has cached of tokens[n] under a salt into the cache of `to`, as far as a state
 * is at a whole number of pages of both, so that a request that begins so goes on there. The two
 * may differ in page size, pool and layout; backends must have views and the same model. While
 * neither thread is started, between steps. KG_OK: *n_copied tokens are there now. KG_ENOENT:
 * nothing to copy. KG_EAGAIN: units of `from` are promised to others, or `to` has no room now.
 * KG_EINVAL: the backends' views do not fit each other.
 */
KG_CHECKED int kg_engine_hand_over(struct kg_engine *from, struct kg_engine *to, uint64_t salt,
                                   const uint32_t *tokens, uint32_t n, uint32_t *n_copied,
                                   struct kg_error *err);

/* --- Any thread --- */

/* Asks for a new picture: the engine makes it between its next steps, at once when it is idle. */
void kg_engine_picture_ask(struct kg_engine *engine);
/* The last picture made. KG_ENOENT: there is none yet. KG_EAGAIN: a new one came while it was read,
 * again and again. */
int kg_engine_picture(const struct kg_engine *engine, struct kg_picture *picture);

void kg_engine_stats(const struct kg_engine *engine, struct kg_engine_stats *stats);
/* What backend and pool said at start. Owned by the engine, constant. */
const struct kg_exec_desc *kg_engine_desc(const struct kg_engine *engine);
const struct kg_pool_layout *kg_engine_layout(const struct kg_engine *engine);
/* The cost surface as measured or given, NULL without one. Owned by the engine, whose thread
 * changes it while it runs. */
const struct kg_cost_table *kg_engine_cost(const struct kg_engine *engine);
/* Backend clock, ns. */
uint64_t kg_engine_now(const struct kg_engine *engine);
/* Most prompt + output tokens one request can ever hold. */
uint32_t kg_engine_max_tokens(const struct kg_engine *engine);

#endif
