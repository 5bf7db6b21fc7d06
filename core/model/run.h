/*
 * What every backend that computes is made of, but for its device: the model, an arena, the
 * sequences and one step at a time; the functions below are the table of kedge/exec.h. A plugin
 * opens its kernels and, with a device, its memory, and calls kg_run_open.
 *
 * On the host submit computes and wait hands out, so a step is over before submit returns. On a
 * device submit queues the pass and the way back of what is drawn from; wait waits for it, draws on
 * the host, and queues the commit. Units, tables and the next step follow in stream order.
 */
#ifndef KEDGE_MODEL_RUN_H
#define KEDGE_MODEL_RUN_H

#include "model/accept.h"
#include "model/draft.h"
#include "model/model.h"
#include "model/run_arena.h"
#include "model/run_slots.h"
#include "model/sampler.h"

#include <kedge/exec.h>

#define KG_RUN_MAX_ORDERS 8 /* checkpoint orders per sequence and step */

/* What is read off the logits of a sequence: the tokens of a window, or one row of an echo. */
struct kg_run_draw {
    uint32_t seq;           /* index in the batch */
    uint32_t is_pick;       /* 1: tokens, 0: log probability of `token` in the first row */
    uint32_t token;         /* echo: the known next token; KG_NONE when there is none */
    uint32_t window;        /* of the sampler of the device; KG_NONE: the host draws */
    struct kg_accept run;   /* of an echo: logits, vocab, sampling, logprobs; of a window of the
                               sampler: where the host finds the results, and sampling */
    struct kg_accepted got; /* out; of an echo only the NaN flag */
};

/* Draws on the device, and what they need: taken at open. Device memory unless said. */
struct kg_run_sampling {
    const struct kg_sampler *ops;      /* NULL: the host draws all */
    struct kg_sampler_window *windows; /* host: [max_windows] of the step */
    uint32_t max_windows, n_windows;
    uint32_t *n_counted; /* host: [max_seqs] tokens of the history counted so far, by slot */
    uint32_t *counts;    /* [max_seqs][vocab] for penalties, by slot */
    uint32_t *tokens;    /* [max_context + 1] on their way to be counted */
    uint8_t *scratch;
    uint64_t scratch_bytes;
    /* Next tokens of rows that echo: where they are gathered on the host, and on the device. */
    uint32_t *near_known, *known; /* [max_rows] */
    /* Results: in page-locked memory, and on the device. */
    struct kg_accepted *near_accepted, *accepted; /* [max_windows] */
    uint32_t *near_emitted, *emitted;             /* [max_rows] token picked at each row */
    struct kg_logprob *near_logprobs, *logprobs;  /* [max_rows][1 + KG_MAX_LOGPROBS] */
    uint8_t *mem, *near, *lists; /* blocks of the above: device, page-locked, host */
    uint64_t bytes, list_bytes;
};

/* Memory of a step, taken at bind; [n] as named. Host memory unless said. */
struct kg_run_step {
    uint32_t *tokens;     /* [max_rows] packed */
    struct kg_seq *batch; /* [max_seqs] of the step in flight; their arrays are the caller's */
    uint32_t *out_rows;   /* [max_rows] */
    struct kg_forward_seq *seqs; /* [max_seqs] */
    uint32_t *first_logits;      /* [max_seqs] first row of logits of a sequence */
    uint32_t *last_hidden;       /* [max_seqs] row of kg_model_hidden of its last row */
    const float **logits_at;     /* [max_seqs] its rows of logits where the host reads them; NULL:
                                    nobody does */
    const float **hidden_at;     /* [max_seqs] its last row's vector, likewise; those of the
                                    drafts before it where the host draws */
    struct kg_run_draw *draws;   /* [max_rows] */
    uint32_t *emitted;           /* [max_rows] token picked at each row */
    struct kg_logprob *logprobs; /* [max_rows][1 + KG_MAX_LOGPROBS], those of the step's
                                    sequences one after the other */
    struct kg_logprob **logprobs_at; /* [max_seqs] first of a sequence; NULL: none */
    uint32_t *n_commit;              /* [max_seqs] verified rows that stay */
    uint32_t *n_inject;              /* [max_seqs] rows that stay */
    uint32_t *is_own;                /* [max_seqs] 1: its drafts are the backend's drafter's */
    struct kg_seq_result *results;   /* [max_seqs] */
    struct kg_token_counts *counts;  /* [max_seqs] for penalties */
    uint32_t *n_counted;             /* [max_seqs] tokens of the history counted so far */
    uint8_t *sample_scratch;         /* [threads] areas of sample_bytes */
    uint64_t sample_bytes;
    uint32_t n_draws, n_verify, n_known, n_logprobs;
    uint32_t n_results;
    uint64_t number;  /* of the step that was submitted last */
    uint64_t took_ns; /* its time, drafts included */
    uint64_t draft_ns, commit_ns;
    uint8_t *counts_mem;
    uint64_t counts_bytes;
    struct kg_forward pass; /* in flight */
    /* With a device only. */
    uint32_t *dev_tokens; /* device: [max_rows] */
    uint32_t *dev_pages;  /* device: [max_seqs][max_pages] of each slot, appended to */
    float *near_logits;   /* page-locked: [near_rows][vocab], for steps that bring few rows */
    float *far_logits;    /* [max_rows][vocab], mapped: for those that bring more */
    float *near_hidden;   /* page-locked: [near_hidden_rows][hidden] */
    uint64_t far_bytes;
    uint32_t near_rows, near_hidden_rows;
    uint64_t bench, benches; /* number of the units a profile runs on, 0: the arena; so far */
    uint32_t waiting;        /* 1: submitted, not yet waited for */
};

/* One sequence while it drafts. */
struct kg_run_draft_run {
    struct kg_draft *draft; /* the caller's */
    struct kg_sampling sampling;
    struct kg_token_counts *counts; /* NULL: no penalties */
    struct kg_sample_pick pick;
    double survival; /* of the drafts so far */
    uint32_t slot;
    uint32_t whole; /* pages of the context that are full */
    uint32_t done;  /* 1: drafts no more */
};

/* The drafter, what it has drafted, and the memory of a call. */
struct kg_run_drafting {
    struct kg_draft_ckpt *ckpt; /* NULL: no drafter */
    struct kg_drafter *drafter;
    struct kg_drafter_sizes sizes;
    struct kg_draft_seq *seqs;     /* [max_seqs] */
    struct kg_run_draft_run *runs; /* [max_seqs] */
    uint32_t *before;              /* [max_seqs] token before the next draft */
    uint32_t *saved;               /* [max_seqs][spare] page ids a block stands in for */
    uint32_t *dev_pages;           /* device: [max_seqs][max_pages + spare] */
    uint32_t *tokens;              /* [max_seqs][block] by slot */
    float *q;                      /* [max_seqs][block][vocab] by slot: what they were drawn from */
    uint8_t *mem;
    uint64_t bytes, q_bytes;
    uint64_t ns;    /* of drafting since the last step */
    uint32_t spare; /* pages of a block */
    uint32_t k;     /* draft in progress */
};

struct kg_exec {
    const struct kg_host *host;
    const struct kg_memory *memory; /* NULL: the host */
    const char *name;               /* of the plugin, for texts: "exec-cpu" */
    uint32_t cpu_clock;             /* 1: time is what this process computed */
    _Atomic uint64_t skipped_ns;    /* by advance, with it */
    struct kg_ckpt *ckpt;
    struct kg_team *team;        /* of the host: draws, and packing */
    struct kg_team *device_team; /* of the table */
    const struct kg_kernels *kernels;
    struct kg_model *model;
    struct kg_model_sizes sizes;
    struct kg_run_limits limits;
    uint32_t threads, world; /* world: ranks of the model */
    uint32_t rewind;         /* enum kg_rewind */
    uint32_t touch;          /* 1: bind brings the arena's memory in */
    uint64_t caps;           /* describe.caps */
    char kernels_text[96];   /* describe.kernels */
    uint32_t bound;
    uint32_t lost; /* 1: the device failed, nothing works from then on */
    struct kg_run_arena arena;
    struct kg_run_slots slots;
    struct kg_model_units units;
    struct kg_run_step step;
    struct kg_run_sampling sampling;
    struct kg_run_drafting draft;
    uint8_t *step_mem;
    uint64_t step_bytes;
    struct kg_view *views; /* [n_views] */
    uint32_t n_views;
};

/* What a plugin brings. */
struct kg_run_args {
    const struct kg_exec_open *open;
    const struct kg_memory *memory;   /* NULL: the host; must outlive the instance */
    const struct kg_kernels *kernels; /* and with e->kernels_text filled */
    struct kg_team *device_team;      /* of the table, when it is not e->team */
    uint32_t rewind;                  /* enum kg_rewind */
    uint32_t touch;                   /* 1: bind brings the arena's memory in; on the host */
    uint64_t caps;                    /* KG_EXEC_CAP_* beside those of a drafter */
};

/* CPUs the process may use, 1..KG_TEAM_MAX. */
uint32_t kg_run_cpus(void);
/* Of the arguments of open: KG_ECONFIG names what no computing backend can do. `name`: of the
 * plugin. */
KG_CHECKED int kg_run_check(const char *name, const struct kg_exec_open *args,
                            struct kg_error *err);
/*
 * Loads checkpoint and drafter and opens the model. *e is zeroed but for host, name, cpu_clock,
 * threads and team. On an error what was taken is freed by kg_run_close.
 */
KG_CHECKED int kg_run_open(struct kg_exec *e, const struct kg_run_args *args, struct kg_error *err);
/* Frees all that was taken here; not *e, team and memory. */
void kg_run_close(struct kg_exec *e);

/* Members of kg_exec_ops. */
void kg_run_describe(const struct kg_exec *e, struct kg_exec_desc *d);
int kg_run_bind(struct kg_exec *e, const struct kg_pool_layout *layout, struct kg_error *err);
int kg_run_apply(struct kg_exec *e, const struct kg_move *moves, uint32_t n_moves,
                 const struct kg_table_change *changes, uint32_t n_changes);
void kg_run_drop(struct kg_exec *e, const uint32_t *slots, uint32_t n);
int kg_run_copy(struct kg_exec *e, uint32_t kind, uint32_t dst, uint32_t src);
int kg_run_zero(struct kg_exec *e, uint32_t kind, uint32_t id);
int kg_run_poison(struct kg_exec *e, uint32_t kind, uint32_t id);
int kg_run_read(struct kg_exec *e, uint32_t kind, uint32_t id, void *dst, uint64_t n);
int kg_run_write(struct kg_exec *e, uint32_t kind, uint32_t id, const void *src, uint64_t n);
int kg_run_views(const struct kg_exec *e, const struct kg_view **views, uint32_t *n);

uint32_t kg_run_messages(const struct kg_exec *e, uint32_t rows, uint32_t samples,
                         struct kg_message *messages, uint32_t n);
int kg_run_dealt(const struct kg_exec *exec, struct kg_dealt *dealt);

/* Takes the memory of steps. After the slots are open. */
KG_CHECKED int kg_run_step_open(struct kg_exec *e, struct kg_error *err);
void kg_run_step_close(struct kg_exec *e);
int kg_run_submit(struct kg_exec *e, const struct kg_batch *batch, struct kg_error *err);
/* Token counts of a sequence up to date with its history; NULL when it has no penalties. */
struct kg_token_counts *kg_run_count_tokens(struct kg_exec *e, uint32_t slot);
/* The pass, on a device with its windows behind it. KG_EINVAL: the sampler refused them. */
KG_CHECKED int kg_run_pass(struct kg_exec *e, const struct kg_forward *f, struct kg_error *err);
/* Answers the first n draws of the step: from the device, or on the team. */
void kg_run_draw_all(struct kg_exec *e, uint32_t n);

/* run_draw.c. Memory of draws on the device, if it makes any; and its bytes there. */
KG_CHECKED int kg_run_sampling_open(struct kg_exec *e, struct kg_error *err);
void kg_run_sampling_close(struct kg_exec *e);
/* Plans what is drawn in the step that is packed, by whom, and which rows the host reads for it. */
void kg_run_plan(struct kg_exec *e, const struct kg_forward *f);
/* The next free window of the sampler, for rows of logits from `out` on and a token at each row of
 * the batch from `row` on. */
struct kg_sampler_window *kg_run_window(struct kg_exec *e, uint32_t out, uint32_t row);
/* Where `rows` rows of logits lie on the host, when a device brings them. */
float *kg_run_home(const struct kg_exec *e, uint32_t rows);
/* On a device, behind the pass: the windows; then results, and rows the host reads, on their way.
 */
KG_CHECKED int kg_run_queue_draws(struct kg_exec *e, struct kg_error *err);
void kg_run_bring(struct kg_exec *e, const struct kg_forward *f);
int kg_run_wait(struct kg_exec *e, struct kg_result *result, struct kg_error *err);

/* The drafter: its files, once the target's are open; itself, once the model is. */
KG_CHECKED int kg_run_draft_load(struct kg_exec *e, const struct kg_exec_open *args,
                                 struct kg_error *err);
KG_CHECKED int kg_run_draft_open(struct kg_exec *e, struct kg_error *err);
/* Probabilities of all drafts; there is a drafter. */
uint64_t kg_run_draft_q_bytes(const struct kg_exec *e);
/* Pages a block takes beside those of its sequence; 0 without a drafter. */
uint32_t kg_run_draft_pages(const struct kg_exec *e, uint32_t page_tokens);
/* Memory of drafting; after the arena, whose spare pages it uses. */
KG_CHECKED int kg_run_draft_bind(struct kg_exec *e, struct kg_error *err);
void kg_run_draft_unbind(struct kg_exec *e);
void kg_run_draft_close(struct kg_exec *e);
/* kg_exec_ops.draft */
int kg_run_draft(struct kg_exec *e, struct kg_draft *drafts, uint32_t n);
/* What a slot has drafted: [block] tokens, and what they were drawn from: [block][vocab], NULL when
 * its rule of acceptance does not look at it. */
const uint32_t *kg_run_draft_tokens(const struct kg_exec *e, uint32_t slot);
const float *kg_run_draft_q(const struct kg_exec *e, uint32_t slot);

/* kg_exec_ops.profile and profile_draft, on memory of their own. */
int kg_run_profile(struct kg_exec *e, uint32_t n_seqs, uint32_t rows, uint32_t context,
                   uint64_t *step_ns);
int kg_run_profile_draft(struct kg_exec *e, uint32_t n_seqs, uint32_t n_tokens, uint32_t context,
                         uint64_t *ns);
/* Nanoseconds of the monotonic clock; kg_exec_ops.now. */
uint64_t kg_run_now_ns(const struct kg_exec *e);
/* Fills e->views for the bound layout. */
KG_CHECKED int kg_run_views_open(struct kg_exec *e, struct kg_error *err);

#endif
