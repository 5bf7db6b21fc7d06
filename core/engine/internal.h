/*
 * The inside of the engine: one struct shared by its files. Everything here belongs to the engine
 * thread, but for `port` (the caller's side, port.c) and what is marked atomic.
 *
 * Between two steps nothing is in flight: a step submits, waits and settles its results. So a
 * request changes state only between steps, in request.c, and units go back in stream order.
 */
#ifndef KEDGE_ENGINE_INTERNAL_H
#define KEDGE_ENGINE_INTERNAL_H

#include "base/clock.h"
#include "base/hash.h"
#include "base/ring.h"
#include "base/rng.h"
#include "engine/cost.h"
#include "engine/engine.h"
#include "engine/index.h"
#include "engine/index_policy.h"
#include "engine/reconcile.h"
#include "engine/test.h"

#include <pthread.h>

/*
 * A request's shared half, one allocation of the calling thread. It belongs to the engine from
 * submit until its DONE entry is in the outbox, then to the caller again; of its arrays the caller
 * may read what an outbox entry names.
 */
struct kg_job {
    size_t bytes; /* of the allocation */
    uint64_t id, tenant, salt;
    uint32_t n_prompt, max_tokens; /* max_tokens is cut to the context limit */
    uint32_t flags, priority, arm;
    uint32_t n_lp;      /* log probabilities per token, 0 for none */
    uint32_t n_echo_lp; /* the same for the prompt */
    uint32_t n_boundaries, n_marks;
    char tenant_name[32], class_name[32];
    struct kg_sampling sampling;
    uint32_t *tokens;            /* [n_prompt + max_tokens] prompt, then output */
    uint32_t *pages;             /* [pages of n_prompt + max_tokens + block] ids in order */
    uint8_t *cached;             /* [as pages] 1: the page is the index's, locked for us */
    uint32_t *boundaries;        /* [n_boundaries] */
    uint32_t *marks;             /* [n_marks] */
    struct kg_chain *chain;      /* [whole pages of n_prompt + max_tokens] with a tier, else NULL */
    uint32_t n_chain;            /* of them known */
    struct kg_logprob *logprobs; /* [max_tokens][n_lp] */
    struct kg_logprob *echo;     /* [n_prompt - 1][n_echo_lp] of tokens 1.. */
    struct kg_event done;        /* the DONE event */
};

enum kg_req_state {
    KG_LIFE_FREE = 0,    /* the index is unused */
    KG_LIFE_WAITING = 1, /* in `waiting`; holds nothing */
    KG_LIFE_PREFILL = 2, /* in `running`; holds slot, grant, state, pages */
    KG_LIFE_DECODE = 3,  /* the same; all known tokens but the last are computed */
};

/* kg_req.loading */
enum { KG_LOAD_NONE = 0, KG_LOAD_PLANNED = 1, KG_LOAD_HELD = 2 };

/* The engine's half of a request. */
struct kg_req {
    struct kg_job *job;
    uint64_t id;
    uint64_t arrival;   /* serial number of arrival */
    uint64_t admission; /* serial number of the first admission, 0 before it */
    uint64_t stamp;     /* plan check that last saw it */
    uint32_t state;     /* enum kg_req_state */
    uint32_t index;
    uint32_t paused;
    uint32_t n_tokens; /* known tokens: prompt and output */
    uint32_t n_target; /* tokens known at admission: prefill ends there */
    uint32_t past;     /* committed tokens */
    uint32_t n_echoed; /* prompt tokens whose log probability was reported */
    uint32_t slot, epoch, grant;
    uint32_t n_granted;    /* pages promised, those taken and those from the cache included */
    uint32_t n_pages;      /* pages in its list */
    uint32_t n_sent;       /* pages the backend was told of */
    uint32_t unit;         /* state unit */
    uint32_t fresh;        /* the next batch must RESET the slot */
    uint32_t place;        /* in `running`, while a holder */
    uint32_t nan;          /* its units must be poisoned when they go back */
    uint32_t finish_at;    /* kg_engine_finish: tokens + 1, 0 for none */
    uint32_t lifetime;     /* enum kg_lifetime of the first admission */
    uint32_t short_of;     /* waiting: 1 + the kind it was short of when last asked for, or 0 */
    uint32_t held;         /* waiting, and the policy put it off */
    uint32_t put_off;      /* the policy's last answer was to put it off */
    uint64_t asked;        /* n_changes when the policy was asked, 0: ask */
    uint64_t ask_at_ns;    /* held: ask again then */
    uint64_t window_key;   /* window.c: of its class, 0 before it was looked for */
    uint32_t window_class; /* where that was */
    /* cache.c */
    struct kg_index_path path;
    struct kg_index_match match; /* what it would find, while it waits */
    uint32_t has_match, sighted;
    uint32_t source;              /* state unit the first step copies, KG_NONE for zero */
    uint32_t branch;              /* tokens the index had seen at admission */
    uint32_t last_ckpt;           /* position of its last checkpoint, the hit included */
    uint32_t n_offered;           /* whole pages the index was last shown */
    uint32_t answer, answer_unit; /* checkpoint at the end of the answer so far; 0 none */
    uint32_t before, before_unit; /* the one before it, while the answer may be cut there; 0 none */
    /* tier.c */
    struct kg_reuse reuse; /* of the match, and of what the tier had then */
    uint32_t loading;      /* KG_LOAD_*: while not NONE nothing is computed and it is not planned */
    uint32_t load_at;      /* page that comes next */
    uint32_t state_came, no_tier;
};

/* Waiting requests by arrival: a window of an array, so that both ends are cheap. */
struct kg_waiting {
    struct kg_sched_req *rows; /* [cap] */
    uint32_t cap, head, n;
    uint32_t last_gone; /* rows up to here may be gone (index KG_NONE); head when none are */
    uint32_t dirty;
};

/* A line of the step: what was planned for a request and where it stands in the batch. */
struct kg_pick {
    struct kg_req *req;
    uint32_t n_tokens; /* prefill rows, or 1 */
    uint32_t decode;
    uint32_t max_draft; /* decode: drafts memory and max_tokens allow */
    uint32_t n_draft;   /* decode: verify length */
    uint32_t spec;      /* decode: place in the spec view */
    uint32_t n_orders;
};

/* An outbox entry; a record of the ring is an array of them. */
struct kg_out {
    uint32_t index;
    uint32_t type;  /* enum kg_event_type */
    uint32_t first; /* output (ECHO: prompt) token the event starts at */
    uint32_t n;
};

/* An inbox record. */
enum kg_msg_type {
    KG_MSG_SUBMIT = 1,
    KG_MSG_CONTROL = 2, /* look at control[index] */
    KG_MSG_SWAP = 3,
};
struct kg_msg {
    uint32_t type, index;
    struct kg_job *job;
    struct kg_engine_swap *swap;
};

/* What the caller wants of a request: levels, so that one message may stand for many. */
struct kg_control {
    _Atomic uint32_t pending; /* a CONTROL message is under way */
    _Atomic uint32_t cancel, pause;
    _Atomic uint32_t finish_at; /* tokens + 1 */
};

/* The caller's side: touched by the calling thread only. */
struct kg_port {
    struct kg_job **jobs; /* [max_requests] */
    uint32_t *free_index; /* [max_requests] stack */
    uint32_t n_free;
    uint32_t *map; /* [map_mask + 1] id -> index, KG_NONE empty */
    uint32_t map_mask;
    const struct kg_out *record; /* being read */
    uint32_t n_record, at;
    uint32_t ended;    /* index whose DONE was the last event, KG_NONE for none */
    uint32_t swapping; /* a SWAP message is under way */
};

/* Observed output lengths of a tenant (slot 0: of all), a histogram over powers of two in eighths;
 * halved when full, so that it follows the traffic. */
#define KG_SEEN_BUCKETS 256
#define KG_SEEN_TENANTS 64
struct kg_seen {
    uint64_t tenant;
    uint32_t n;
    uint32_t count[KG_SEEN_BUCKETS];
};

/* What the policy said about the windows of a class of requests, and when to ask again. */
struct kg_window_class {
    uint64_t key;         /* hash of the names, 0: unused */
    uint64_t used;        /* n_gathered when it last had a decoding request */
    uint64_t asked;       /* n_gathered when it was asked about */
    uint64_t rules;       /* n_rules then, 0 never */
    uint64_t ask_at_ns;   /* ask at the latest, while it may not draft */
    uint64_t context_sum; /* tokens, of this step */
    uint32_t n_seqs;      /* of this step */
    uint32_t verified, accepted;
    uint32_t acceptance, batch, context; /* ranges it was asked about */
    uint32_t rule, length;               /* enum kg_window_rule */
    uint32_t arm;
    char tenant[32], class_name[32];
};

/* An arm: what holds for its requests alone. Without arms there is one. */
struct kg_arm {
    char name[32]; /* "" without arms */
    uint64_t salt; /* 0: prefixes are shared with other arms */
    uint32_t checkpoint, interval, lifetime, accept;
    const struct kg_spec_ops *spec_ops; /* NULL: no speculation */
    struct kg_spec *spec;
    uint64_t spec_caps;
    uint32_t block;            /* most draft rows of one of its sequences */
    uint32_t cap;              /* the same in the coming step */
    uint32_t first, n_spec;    /* its decoding picks in spec_seqs */
    uint32_t first_draft;      /* its sequences in drafts, where the backend drafts for it */
    struct kg_spec_seen *seen; /* [2 * max_seqs] */
    uint32_t n_seen;
};

struct kg_engine {
    struct kg_engine_parts parts;
    struct kg_engine_conf conf;
    struct kg_engine_test test;
    struct kg_exec_desc desc;
    struct kg_pool *pool;
    struct kg_pool_layout layout;
    uint32_t max_context; /* tokens of a request */
    uint32_t max_pages;   /* pages one request can ever hold beside its state */
    struct kg_arm arms[KG_MAX_ARMS];
    uint32_t n_arms;     /* >= 1 */
    uint32_t block;      /* most draft rows of a sequence of any arm */
    uint32_t max_block;  /* the same for every plugin that may be swapped in: room for so many */
    uint32_t cap;        /* draft rows of the coming step, of the arm with most */
    struct kg_cost cost; /* for the policy; size 0: there is none */
    struct kg_cost_table cost_table;

    struct kg_req *reqs; /* [max_requests] */
    uint32_t n_live;
    uint64_t n_arrivals, n_admissions;
    struct kg_waiting waiting;
    struct kg_sched_req *running; /* [max_seqs] by admission number */
    uint32_t n_running;
    uint32_t running_dirty; /* some rows are gone (index KG_NONE) */
    uint32_t *admitted;     /* [max_seqs] indexes admitted during a plan */
    uint32_t n_admitted, n_asked, planning;
    uint64_t n_changes; /* requests begun, ended, preempted, rules replaced: from 1 */
    uint64_t n_rules;   /* rules replaced: from 1 */
    uint64_t scanned;   /* n_changes when waiting requests were last gone through for the policy */
    uint32_t asks;      /* the policy has a word on admissions in this step */
    uint32_t n_held;    /* requests the policy put off */
    uint32_t n_put_off; /* of them, in this step: the next one shows the scheduler others */
    uint64_t ask_at_ns; /* when the first of them is asked about again */
    uint32_t *free_slots; /* [max_seqs] stack */
    uint32_t n_free_slots;

    uint64_t step, n_checks;
    struct kg_sched_item *items; /* [max_seqs] */
    struct kg_pick *picks;       /* [max_seqs] */
    uint32_t n_picks, n_rows;
    struct kg_seq *seqs;     /* [max_seqs] */
    struct kg_order *orders; /* [max_seqs][max_orders] */
    uint32_t *order_why;     /* [max_seqs][max_orders] KG_CKPT_WHY_* */
    struct kg_batch batch;
    struct kg_result result;

    struct kg_spec_seq *spec_seqs; /* [max_seqs] decoding picks, arm by arm */
    struct kg_draft *drafts;       /* [max_seqs] */
    float *survival;               /* [max_seqs][block] */
    uint32_t *draft_tokens;        /* [max_seqs][1 + block] row tokens of decoding picks */
    uint32_t *draft_counts, *lengths;
    uint32_t n_spec;
    uint32_t n_drafting, most_drafted; /* sequences the backend drafted for in this step; tokens */

    struct kg_window_class *classes;      /* [n_classes]; NULL: no policy has a say */
    struct kg_window_class **classes_now; /* [max_seqs] those with decoding requests */
    uint32_t n_classes, n_classes_now;
    uint32_t n_decoding; /* requests counted in them */
    uint32_t windows;    /* the policy has a say in this step */
    uint64_t n_gathered;

    struct kg_ring *inbox, *outbox;
    struct kg_control *control; /* [max_requests] */
    struct kg_out *out;         /* [out_cap] entries of this step */
    uint32_t n_out, out_cap;
    _Atomic uint32_t blocked; /* the engine waits for room in the outbox */
    uint32_t full;            /* the last look found none */
    int room_fd;              /* eventfd: readable when the reader made room for a step, or stop */
    _Atomic uint32_t stop, lost;
    struct kg_port port;
    pthread_t thread;
    uint32_t started;

    struct kg_seen seen_lengths[KG_SEEN_TENANTS];
    struct kg_rng rng;             /* test hooks */
    uint32_t *ballast[KG_N_KINDS]; /* [test.relocate] */
    uint32_t n_ballast[KG_N_KINDS];

    struct kg_index *index; /* NULL: no prefix reuse */
    uint32_t gap;           /* tokens whose pages take the bytes of a state */
    uint32_t *moved_out;    /* [max_units[KG_PAGE]] ids on their way */
    uint32_t n_unproven;    /* checkpoints that kg_ckpt_proven said no to */

    struct kg_tier *tier;                 /* NULL: none */
    unsigned char *tier_buf;              /* one unit with its head */
    uint64_t tier_bytes[KG_N_KINDS];      /* of a unit, natural */
    uint64_t tier_kept[KG_N_KINDS];       /* of those, kept: fewer when the backend has none */
    uint64_t tier_out_left, tier_in_left; /* bytes, of this step */
    uint32_t tier_out_any, tier_in_any;   /* a unit was copied in this step */
    uint64_t chain_key[2];

    uint64_t exec_ns;      /* time inside exec in this step, by kg_engine_tick */
    uint32_t count_cpu;    /* kg_engine_count_cpu */
    uint64_t horizon_ns;   /* kg_engine_horizon */
    uint64_t moved_clock;  /* the idle step advanced the virtual clock */
    uint64_t checked;      /* steps when the idle engine last checked itself */
    struct kg_error error; /* why the backend was lost */
    struct kg_engine_stats stats;
    _Atomic uint64_t *published; /* stats as words, then the clock */
    struct kg_painter *painter;  /* picture.c */
};

/* Pages that hold n tokens. */
static inline uint32_t kg_pages_of(const struct kg_engine *e, uint64_t n_tokens)
{
    return (uint32_t)((n_tokens + e->layout.page_tokens - 1) / e->layout.page_tokens);
}

/* Output tokens so far. */
static inline uint32_t kg_req_output(const struct kg_req *r)
{
    return r->n_tokens - r->job->n_prompt;
}

/* The salt of a request in an arm: of its own, or as the request has it. */
static inline uint64_t kg_arm_salt(const struct kg_arm *a, uint64_t salt)
{
    return a->salt != 0 ? kg_hash_mix(a->salt ^ kg_hash_mix(salt)) | 1u : salt;
}

static inline const struct kg_arm *kg_req_arm(const struct kg_engine *e, const struct kg_req *r)
{
    return &e->arms[r->job->arm];
}

static inline int kg_req_holds(const struct kg_req *r)
{
    return r->state == KG_LIFE_PREFILL || r->state == KG_LIFE_DECODE;
}

/* --- request.c: states, lists, units --- */

void kg_req_arrive(struct kg_engine *e, uint32_t index, struct kg_job *job);
/* Tells a scheduler that was put in place of another of every request. */
void kg_req_introduce(struct kg_engine *e);
/* Takes slot, grant and state as given; the request joins `running` when the plan ends. */
void kg_req_admit(struct kg_engine *e, struct kg_req *r, uint32_t grant, uint32_t n_pages,
                  uint32_t unit);
/* Holder -> waiting: all units go back, known tokens stay. */
void kg_req_preempt(struct kg_engine *e, struct kg_req *r);
/* The same for a request that has not computed anything yet and must begin otherwise. */
void kg_req_requeue(struct kg_engine *e, struct kg_req *r);
/* The prompt is complete. */
void kg_req_decode(struct kg_engine *e, struct kg_req *r);
/* Any state -> free, with the DONE event. text may be NULL. */
void kg_req_end(struct kg_engine *e, struct kg_req *r, uint32_t finish, int rc, const char *text);
/* Ends every request with the same answer. */
void kg_req_end_all(struct kg_engine *e, uint32_t finish, int rc, const char *text);
/* Removes rows of requests that left, adds those that were admitted. */
void kg_req_settle(struct kg_engine *e);
/* Acts on what the caller asked for: cancel, finish, pause. 1 when the request changed. */
int kg_req_steer(struct kg_engine *e, uint32_t index);
/* Ends waiting requests past queue_timeout_ms; returns their number. */
int kg_req_timeouts(struct kg_engine *e, uint64_t now_ns);
/* Clock at which the next one ends, UINT64_MAX for never. */
uint64_t kg_req_deadline(const struct kg_engine *e);
/* Invariants of lists and units; debug runs. */
int kg_req_check(const struct kg_engine *e, struct kg_error *err);

/* --- admit.c: memory --- */

/* Pages one request needs for its whole life, drafts included. */
uint64_t kg_adm_max_pages(const struct kg_engine *e, uint64_t n_prompt, uint64_t max_tokens);
/* Most pages an empty pool grants beside one state. */
uint32_t kg_adm_probe(struct kg_engine *e);
enum kg_admit kg_adm_ask(void *ctx, uint32_t index, uint32_t *computed);
/* Promises every decoding request its next rows, preempting the youngest where needed. */
void kg_adm_growth(struct kg_engine *e);
/* Takes pages up to `n_rows` rows beyond `past` out of the request's grant. */
int kg_adm_take(struct kg_engine *e, struct kg_req *r, uint32_t n_rows);
/* One unit outside any request's grant, evict: at the cost of what is cached. KG_EAGAIN when there
 * is no room. */
int kg_adm_single(struct kg_engine *e, uint32_t kind, int evict, uint32_t *id);
/* Tells the backend what the pool moved. */
void kg_adm_sync(struct kg_engine *e);
/* Gives units back in stream order; poisoned in debug runs or when asked. */
void kg_adm_give(struct kg_engine *e, uint32_t kind, const uint32_t *ids, uint32_t n,
                 uint32_t poison);
/* Nothing runs: moves units out of the way of the other kind, at most the bytes of a state a call;
 * 1 when that made room. */
int kg_adm_tidy(struct kg_engine *e);
/* Counts an output length for lifetime = expected. */
void kg_adm_observe(struct kg_engine *e, uint64_t tenant, uint32_t n_output);
/* Test hooks: forced preemption and relocation before a plan; ballast given back. */
void kg_adm_disturb(struct kg_engine *e);
int kg_adm_drop_ballast(struct kg_engine *e);

/* --- policy.c --- */

/* Before the plan of a step. */
void kg_pol_begin(struct kg_engine *e, uint64_t now_ns);
/* YES: go on, r->lifetime is set. LATER: it is held. NEVER: it was refused and is gone. */
enum kg_admit kg_pol_ask(struct kg_engine *e, struct kg_req *r, const uint32_t need[KG_N_KINDS]);
/* Not held any more, for whatever reason; to be asked about anew. */
void kg_pol_release(struct kg_engine *e, struct kg_req *r);

/* --- cache.c: the prefix index --- */

#define KG_MAX_ORDERS 16u

int kg_cache_create(struct kg_engine *e, struct kg_error *err);
void kg_cache_destroy(struct kg_engine *e);
/* Units of each kind that could be evicted now. */
void kg_cache_evictable(const struct kg_engine *e, uint32_t n[KG_N_KINDS]);
/* Gives back the cheapest units of a kind that helps (want as in kg_index_evict); 0: none left. */
int kg_cache_evict(struct kg_engine *e, const uint32_t want[KG_N_KINDS]);
/* Gives back up to n pages that nobody could resume behind; 0: there are none. */
int kg_cache_sweep(struct kg_engine *e, uint32_t n);
/* 1 when there are at least n of them. */
int kg_cache_has_dead(const struct kg_engine *e, uint32_t n);
/* Matches a waiting request, anew only if the index changed on its path. Pages it would find. */
uint32_t kg_cache_look(struct kg_engine *e, struct kg_req *r);
/* Begins the request's path at what is cached, locked (use = 0: at nothing). Pages it found. The
 * caller asks the pool and then admits or closes. */
uint32_t kg_cache_open(struct kg_engine *e, struct kg_req *r, int use);
/* The state the path began at becomes the request's own, KG_NONE if it cannot; and back again. */
uint32_t kg_cache_take_over(struct kg_engine *e, struct kg_req *r);
void kg_cache_put_back(struct kg_engine *e, struct kg_req *r, uint32_t unit);
/* Tells the pool whose units are: cached = 1 the index's. */
void kg_cache_own(struct kg_engine *e, uint32_t kind, const uint32_t *ids, uint32_t n,
                  uint32_t cached);
/* What the tier adds has arrived: into the index with it. */
void kg_cache_restored(struct kg_engine *e, struct kg_req *r);
/* The request holds a grant: its list begins with the pages found. */
void kg_cache_admit(struct kg_engine *e, struct kg_req *r);
/* A step of the request was waited for: pages and checkpoints into the index. good = 0: the step
 * failed or was not finite, its checkpoints go back. */
void kg_cache_settle(struct kg_engine *e, const struct kg_pick *p, const struct kg_seq *q,
                     int good);
/* The request holds nothing any more: its pages go to the index or the pool. */
void kg_cache_close(struct kg_engine *e, struct kg_req *r);
/* Rows a prefilling pick may have so that its checkpoints fit in one step. */
uint32_t kg_cache_rows(const struct kg_engine *e, const struct kg_pick *p);
/* Takes units for the checkpoints of a pick, its draft length fixed. */
void kg_cache_order(struct kg_engine *e, struct kg_pick *p, struct kg_order *orders, uint32_t *why);
/* Pages of the list that are the request's own. */
uint32_t kg_cache_own_pages(const struct kg_req *r);
/* Adds the units the index owns; KG_EINVAL when it is not sound. */
int kg_cache_check(const struct kg_engine *e, uint64_t used[KG_N_KINDS], struct kg_error *err);
void kg_cache_stats(struct kg_engine *e);

/* --- tier.c: a second home for what is evicted --- */

/* Before kg_cache_create. */
int kg_tier_create(struct kg_engine *e, struct kg_error *err);
void kg_tier_destroy(struct kg_engine *e);
/* Chain keys of the first n_pages pages of a job. */
void kg_tier_name(const struct kg_engine *e, struct kg_job *j, uint32_t n_pages);
/* The index's leave. */
int kg_tier_leave(void *ctx, uint32_t kind, uint32_t unit, const struct kg_chain *chain,
                  uint32_t n_tokens);
/* A request was matched anew: what arena and tier give together. */
void kg_tier_look(struct kg_engine *e, struct kg_req *r);
/* A request that shall load has a grant: what it needs may not be dropped any more. Not KG_OK: some
 * of it is gone, and r->reuse is what the arena has. */
int kg_tier_hold(struct kg_engine *e, struct kg_req *r);
/* A loading request gives up. */
void kg_tier_abort(struct kg_engine *e, struct kg_req *r);
/* A request's contents are in doubt: nothing of its tokens stays in the tier. */
void kg_tier_forget(struct kg_engine *e, struct kg_req *r);
/* A step begins: its shares are whole. */
void kg_tier_begin(struct kg_engine *e);
/* Goes on loading, oldest request first; the number of requests that changed. */
int kg_tier_step(struct kg_engine *e);
/* The same for those just admitted; picks of requests that are not done yet are left out. */
void kg_tier_picks(struct kg_engine *e);

/* --- plan.c --- */

/* Fills picks; their number is n_picks. */
void kg_plan_step(struct kg_engine *e);

/* --- draft.c: speculation --- */

void kg_draft_step(struct kg_engine *e);
/* Notes a window's outcome, or that a slot is free (tokens NULL), for the arm of its request. */
void kg_draft_seen(struct kg_engine *e, uint32_t arm, const struct kg_spec_seen *seen);
void kg_draft_observe(struct kg_engine *e, uint64_t step_ns);
/* The first n drafts of a request's window were accepted: into the counters. */
void kg_draft_accepted(struct kg_engine *e, struct kg_req *r, uint32_t n);
/* Draft rows of a speculation plugin, cut to what backend and step can do; 0: it cannot draft. */
uint32_t kg_draft_block(const struct kg_engine *e, const struct kg_spec_ops *ops,
                        const struct kg_spec *spec, uint64_t caps);
/* Fills e->block of what the arms have. */
void kg_draft_size(struct kg_engine *e);
/* Puts another speculation in the place of an arm's; *swap is left with the old one. */
void kg_draft_swap(struct kg_engine *e, struct kg_engine_swap *swap);

/* --- window.c: the policy's word on verify windows --- */

int kg_window_create(struct kg_engine *e);
void kg_window_destroy(struct kg_engine *e);
/* Before the cap of the coming step is known: asks about classes that changed. The longest window
 * that a decoding request may have. */
uint32_t kg_window_step(struct kg_engine *e);
uint32_t kg_window_limit(const struct kg_engine *e, const struct kg_req *r);
/* All drafts are to be verified. */
int kg_window_is_set(const struct kg_engine *e, const struct kg_req *r);
/* What became of a request's window. */
void kg_window_seen(struct kg_engine *e, struct kg_req *r, uint32_t n_verified,
                    uint32_t n_accepted);
/* A request whose step was settled decodes in the next one. */
void kg_window_count(struct kg_engine *e, struct kg_req *r);

/* --- batch.c --- */

/* Takes units, builds, submits, waits, settles results. KG_EDEVICE when the backend is lost. */
int kg_batch_run(struct kg_engine *e, struct kg_error *err);

/* --- port.c --- */

int kg_port_create(struct kg_engine *e);
void kg_port_destroy(struct kg_engine *e);
/* Reads the inbox; returns the number of requests that changed. While a step is in flight it stops
 * at the first message that steers a request. */
int kg_port_drain(struct kg_engine *e, int in_flight);
/* The outbox has room for the largest step; else e->full. */
int kg_port_room(struct kg_engine *e);
/* Sleeps until it has, or until kg_port_wake. */
void kg_port_wait_room(struct kg_engine *e);
/* Whatever the engine thread sleeps on; any thread. */
void kg_port_wake(struct kg_engine *e);
void kg_port_out(struct kg_engine *e, uint32_t index, uint32_t type, uint32_t first, uint32_t n);
void kg_port_flush(struct kg_engine *e);

/* --- stats.c --- */

int kg_stats_create(struct kg_engine *e);
void kg_stats_destroy(struct kg_engine *e);
void kg_stats_publish(struct kg_engine *e, uint64_t now_ns);

/* --- picture.c: what people look at --- */

int kg_picture_create(struct kg_engine *e);
void kg_picture_destroy(struct kg_engine *e);
/* After a step. busy = 0: nothing ran in it. */
void kg_picture_step(struct kg_engine *e, int busy);
/* Somebody asked since the last picture was begun: the thread must not sleep. */
int kg_picture_is_asked(const struct kg_engine *e);

/* --- engine.c --- */

/* The clock of overhead_ns_sum. */
static inline uint64_t kg_engine_tick(const struct kg_engine *e)
{
    return e->count_cpu ? kg_cpu_ns() : kg_now_ns();
}

/* The backend is gone: every request ends with KG_EDEVICE, now and later. */
void kg_engine_lose(struct kg_engine *e, const struct kg_error *why);

#endif
