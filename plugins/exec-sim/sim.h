/*
 * exec-sim: a backend that computes nothing and holds nothing, but takes the time a real one would.
 * Step times come from measured kernels (model.h) or a cost table (cost.h), which drafts are right
 * from profiles (accept.h), answers from a file of kedge replay (answers.h) or from a script. Pages
 * have no bytes; a state remembers the length it stands for, so that a state resumed at another
 * length is an error with a text.
 *
 * Script, where no answer is given: the token at position p is
 *     mix(seed + p * 0x9e3779b97f4a7c15) scaled to the vocabulary
 * (seed 0 when greedy); a stop id that comes before min_tokens gives way to the next id that is
 * none.
 */
#ifndef KEDGE_EXEC_SIM_SIM_H
#define KEDGE_EXEC_SIM_SIM_H

#include "accept.h"
#include "answers.h"
#include "timing.h"
#include <kedge/exec.h>

struct sim_conf {
    uint32_t clock; /* 0 virtual, 1 real */
    const char *cost, *answers, *family;
    const char *tables, *stack, *model, *system, *acceptance, *domain, *explain;
    uint32_t tp, ep, pp, dcp, dp, fp8_kv;
    uint32_t vocab, max_context, n_state_parts, n_mla_layers, page_tokens_align, draft_block;
    uint64_t token_bytes, draft_token_bytes, state_part_bytes, recurrent_part_bytes, seed;
    double jitter, accept, expert_bytes, weight_bytes, to_host_gb_s, from_host_gb_s;
};

/* One backend slot. */
struct sim_slot {
    uint64_t id, stamp; /* stamp: step that last named the slot */
    uint32_t epoch, live;
    uint32_t past;    /* committed tokens */
    uint32_t n_known; /* tokens known: prompt and output */
    uint32_t output_start, state, n_pages, n_drafts;
    uint32_t *drafts;       /* [max_draft] */
    uint32_t *history;      /* [max_context] only while the prompt is echoed */
    const uint32_t *answer; /* [n_answer] or NULL */
    uint32_t n_answer, domain;
    struct kg_sampling sampling;
};

struct kg_exec {
    const struct kg_host *host;
    struct sim_conf conf;
    struct sim_timing timing;
    struct sim_acceptance acceptance;
    struct sim_answers answers;
    uint32_t max_seqs, max_rows, max_context, max_draft, max_pages;
    uint32_t bound;
    uint64_t caps;
    struct kg_pool_layout layout;
    uint32_t *table[KG_N_KINDS]; /* entry -> slot */
    uint32_t n_table[KG_N_KINDS], n_entry[KG_N_KINDS];
    uint32_t *state_length;        /* [max_units] tokens a state stands for, KG_NONE: garbage */
    struct sim_slot *slots;        /* [max_seqs] */
    uint32_t *drafts, *histories;  /* of all slots */
    struct kg_seq_result *results; /* [max_seqs] */
    uint32_t *out_tokens;          /* [max_seqs][1 + max_draft] */
    struct kg_logprob *logprobs;   /* [n_logprobs] */
    size_t n_logprobs, used_logprobs;
    const struct kg_batch *batch;      /* in flight */
    struct sim_load load;              /* of the step in flight */
    uint64_t moved_bytes;              /* since the last step */
    double host_ns;                    /* copies to and from the host since the last step */
    uint64_t t_submit, stamp, drafted; /* drafted: rows of draft() since the last step */
    _Atomic uint64_t now_ns;           /* virtual clock */
};

static inline uint64_t sim_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* deal.c */
int sim_dealt(const struct kg_exec *x, struct kg_dealt *dealt);
/* messages.c */
uint32_t sim_messages(const struct kg_exec *x, uint32_t rows, uint32_t samples,
                      struct kg_message *messages, uint32_t n);

/* sim.c */
uint64_t sim_now(const struct kg_exec *x);
int sim_unit_mapped(const struct kg_exec *x, uint32_t kind, uint32_t id);

/* check.c: KG_OK or KG_EINVAL with text; changes nothing but stamps. */
int sim_check_batch(struct kg_exec *x, const struct kg_batch *batch, struct kg_error *err);

/* step.c */
int sim_submit(struct kg_exec *x, const struct kg_batch *batch, struct kg_error *err);
int sim_wait(struct kg_exec *x, struct kg_result *result, struct kg_error *err);
int sim_draft(struct kg_exec *x, struct kg_draft *drafts, uint32_t n);
void sim_drop(struct kg_exec *x, const uint32_t *slots, uint32_t n);

#endif
