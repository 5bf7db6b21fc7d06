/*
 * One instance of the backend "cpu": the model, its arena, the sequences and one step at a time.
 * submit computes, wait hands out; so a step is over before submit returns.
 */
#ifndef KEDGE_EXEC_CPU_CPU_H
#define KEDGE_EXEC_CPU_CPU_H

#include "arena.h"
#include "model/accept.h"
#include "model/draft.h"
#include "model/model.h"
#include "slots.h"

#include <kedge/exec.h>

#define CPU_MAX_ORDERS 8 /* checkpoint orders per sequence and step */

/* Options, filled by the core. */
struct cpu_conf {
    uint32_t math;    /* enum kg_math */
    uint32_t threads; /* 0: as many as the process may use */
    uint32_t isa;     /* enum cpu_isa */
    uint32_t rewind;  /* enum kg_rewind */
    uint32_t clock;   /* 0 real, 1 CPU time of the process */
};

enum cpu_isa {
    CPU_ISA_AUTO = 0,
    CPU_ISA_REF = 1,
    CPU_ISA_AVX2 = 2,
    CPU_ISA_AVX512 = 3,
};

/* What is read off the logits of a sequence: the tokens of a window, or one row of an echo. */
struct cpu_draw {
    uint32_t seq;           /* index in the batch */
    uint32_t is_pick;       /* 1: tokens, 0: log probability of `token` in the first row */
    uint32_t token;         /* echo: the known next token; KG_NONE when there is none */
    struct kg_accept run;   /* of an echo: logits, vocab, sampling, logprobs */
    struct kg_accepted got; /* out; of an echo only the NaN flag */
};

/* Memory of a step, taken at bind; [n] as named. */
struct cpu_step {
    uint32_t *tokens;               /* [max_rows] packed */
    uint32_t *out_rows;             /* [max_rows] */
    struct kg_forward_seq *seqs;    /* [max_seqs] */
    uint32_t *first_logits;         /* [max_seqs] first row of logits of a sequence */
    uint32_t *last_hidden;          /* [max_seqs] row of kg_model_hidden of its last row */
    struct cpu_draw *draws;         /* [max_rows] */
    uint32_t *emitted;              /* [max_rows] token picked at each row */
    struct kg_logprob *logprobs;    /* [max_rows][1 + KG_MAX_LOGPROBS], a sequence's lie close */
    uint32_t *n_commit;             /* [max_seqs] verified rows that stay */
    uint32_t *n_inject;             /* [max_seqs] rows that stay */
    uint32_t *is_own;               /* [max_seqs] 1: its drafts are the backend's drafter's */
    struct kg_seq_result *results;  /* [max_seqs] */
    struct kg_token_counts *counts; /* [max_seqs] for penalties */
    uint32_t *n_counted;            /* [max_seqs] tokens of the history counted so far */
    uint8_t *sample_scratch;        /* [threads] areas of sample_bytes */
    uint64_t sample_bytes;
    uint32_t n_draws, n_verify;
    uint32_t n_results;
    uint64_t number;  /* of the step that was submitted last */
    uint64_t took_ns; /* its time, drafts included */
    uint64_t draft_ns, commit_ns;
    uint8_t *counts_mem;
    uint64_t counts_bytes;
    uint32_t waiting; /* 1: submitted, not yet waited for */
};

/* One sequence while it drafts. */
struct cpu_draft_run {
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
struct cpu_drafting {
    struct kg_draft_ckpt *ckpt; /* NULL: no drafter */
    struct kg_drafter *drafter;
    struct kg_drafter_sizes sizes;
    struct kg_draft_seq *seqs;  /* [max_seqs] */
    struct cpu_draft_run *runs; /* [max_seqs] */
    uint32_t *before;           /* [max_seqs] token before the next draft */
    uint32_t *saved;            /* [max_seqs][spare] page ids a block stands in for */
    uint32_t *tokens;           /* [max_seqs][block] by slot */
    float *q;                   /* [max_seqs][block][vocab] by slot: what they were drawn from */
    uint8_t *mem;
    uint64_t bytes, q_bytes;
    uint64_t ns;    /* of drafting since the last step */
    uint32_t spare; /* pages of a block */
    uint32_t k;     /* draft in progress */
};

struct kg_exec {
    const struct kg_host *host;
    uint32_t cpu_clock;          /* [exec-cpu] clock = cpu */
    _Atomic uint64_t skipped_ns; /* by advance, with it */
    struct kg_ckpt *ckpt;
    struct kg_team *team;
    const struct kg_kernels *kernels;
    struct kg_model *model;
    struct kg_model_sizes sizes;
    struct cpu_limits limits;
    uint32_t threads, world; /* world: ranks of the model */
    uint32_t rewind;       /* enum kg_rewind */
    char kernels_text[64]; /* describe.kernels */
    uint32_t bound;
    struct cpu_arena arena;
    struct cpu_slots slots;
    struct kg_model_units units;
    struct cpu_step step;
    struct cpu_drafting draft;
    uint8_t *step_mem;
    uint64_t step_bytes;
    struct kg_view *views; /* [n_views] */
    uint32_t n_views;
};

/* Takes the memory of steps. After the slots are open. */
KG_CHECKED int cpu_step_open(struct kg_exec *e, struct kg_error *err);
void cpu_step_close(struct kg_exec *e);
int cpu_submit(struct kg_exec *e, const struct kg_batch *batch, struct kg_error *err);
/* Token counts of a sequence up to date with its history; NULL when it has no penalties. */
struct kg_token_counts *cpu_count_tokens(struct kg_exec *e, uint32_t slot);
/* Answers the first n draws of the step, on the team. */
void cpu_draw_all(struct kg_exec *e, uint32_t n);
int cpu_wait(struct kg_exec *e, struct kg_result *result, struct kg_error *err);

/* The drafter: its files, once the target's are open; itself, once the model is. */
KG_CHECKED int cpu_draft_load(struct kg_exec *e, const struct kg_exec_open *args,
                              struct kg_error *err);
KG_CHECKED int cpu_draft_open(struct kg_exec *e, struct kg_error *err);
/* Probabilities of all drafts; there is a drafter. */
uint64_t cpu_draft_q_bytes(const struct kg_exec *e);
/* Pages a block takes beside those of its sequence; 0 without a drafter. */
uint32_t cpu_draft_pages(const struct kg_exec *e, uint32_t page_tokens);
/* Memory of drafting; after the arena, whose spare pages it uses. */
KG_CHECKED int cpu_draft_bind(struct kg_exec *e, struct kg_error *err);
void cpu_draft_unbind(struct kg_exec *e);
void cpu_draft_close(struct kg_exec *e);
/* kg_exec_ops.draft */
int cpu_draft(struct kg_exec *e, struct kg_draft *drafts, uint32_t n);
/* What a slot has drafted: [block] tokens, and what they were drawn from: [block][vocab], NULL when
 * its rule of acceptance does not look at it. */
const uint32_t *cpu_draft_tokens(const struct kg_exec *e, uint32_t slot);
const float *cpu_draft_q(const struct kg_exec *e, uint32_t slot);

/* kg_exec_ops.profile and profile_draft, on memory of their own. */
int cpu_profile(struct kg_exec *e, uint32_t n_seqs, uint32_t rows, uint32_t context,
                uint64_t *step_ns);
int cpu_profile_draft(struct kg_exec *e, uint32_t n_seqs, uint32_t n_tokens, uint32_t context,
                      uint64_t *ns);
/* Nanoseconds of the monotonic clock. */
uint64_t cpu_now_ns(const struct kg_exec *e);
/* Fills e->views for the bound layout. */
KG_CHECKED int cpu_views_open(struct kg_exec *e, struct kg_error *err);

#endif
