/* What a configuration will do, as numbers: gathered once, printed as text or JSON. */
#ifndef KEDGE_CORE_CHECK_H
#define KEDGE_CORE_CHECK_H

#include "comm_times.h"
#include "stack.h"

#define KG_CHECK_FITS 5

/* Requests of one length in the pool as it is. */
struct kg_check_size {
    uint32_t tokens, states; /* of a request; tokens 0: not asked for */
    uint64_t pages;          /* of a request, draft rows included */
    uint64_t bytes[KG_N_KINDS];
    uint64_t requests;          /* that get a grant at once */
    double load;                /* the same with its fraction: budget over what one takes */
    double by_kind[KG_N_KINDS]; /* requests each kind alone would allow; shared budgets: not used */
    double ratio;               /* bytes of states per byte of pages that run out together */
    uint64_t balanced_states;   /* their number under such a split of the same bytes */
};

/* What a trace repeats. */
struct kg_check_trace {
    uint32_t n, n_repeating;   /* requests; those that begin like an earlier one. n 0: no trace */
    uint64_t prompt, repeated; /* tokens; of them seen before, whole pages */
    uint64_t fresh, again;     /* tokens in different whole pages, answers included; of these seen
                                  more than once, each counted once */
    uint64_t lost;             /* of those, behind the last multiple of [prefix] interval */
    uint32_t better;           /* interval that loses little, tokens */
    uint64_t better_lost;
    uint32_t *shared; /* [n] repeated tokens of each request */
};

/* One kind of message of a step. */
#define KG_CHECK_MESSAGES 32
struct kg_check_message {
    const char *step; /* "decode" or "prefill" */
    uint32_t rows;    /* of the step */
    struct kg_message m;
    uint64_t bytes;                 /* a rank gives */
    const char *plugin, *algorithm; /* NULL: neither the plugin nor a table has a word for it */
    double us;                      /* of a call, with a basis */
    enum kg_comm_basis basis;
    int reckoned; /* us is what the backend reckons with */
};

struct kg_check {
    struct kg_config *config; /* not owned */
    struct kg_stack *stack;   /* not owned */
    struct kg_pool_layout layout;
    struct kg_pool_bytes bytes;       /* of the empty pool */
    uint32_t context;                 /* most tokens of a request by model and [engine] */
    uint32_t max_tokens;              /* most tokens of a request that also fit the memory */
    uint64_t page_bytes, state_bytes; /* natural bytes of a unit */
    struct {
        uint32_t tokens, requests; /* so many requests of so many tokens fit at once */
    } fits[KG_CHECK_FITS];         /* falling length; the last ones may be 0, 0 */
    uint64_t tier_bytes;           /* what a tier may keep, 0 without one */
    struct kg_check_size size;     /* of the length asked for */
    struct kg_check_trace trace;   /* of the trace given */
    struct kg_comm_times times;    /* of [parallel] comm_times */
    struct kg_check_message messages[KG_CHECK_MESSAGES]; /* [n_messages], by step */
    uint32_t n_messages;
    struct kg_dealt dealt; /* ranks 0: nothing is dealt, or nobody says how */
    struct kg_buf warnings; /* a line each, those of the configuration first */
};

/* Fills everything from an open stack. mean_length: tokens of a request to size for, 0 for none;
 * states: those a request holds, its cached ones included, >= 1. KG_ECONFIG when the pool refuses.
 */
KG_CHECKED int kg_check_gather(struct kg_check *check, struct kg_config *config,
                               struct kg_stack *stack, uint32_t mean_length, uint32_t states,
                               struct kg_error *err);
void kg_check_fini(struct kg_check *check);
void kg_check_text(const struct kg_check *check, struct kg_buf *b);
void kg_check_json(const struct kg_check *check, struct kg_buf *b);

/* Draft rows the engine keeps room for beside a request's tokens. */
uint64_t kg_check_draft_rows(const struct kg_check *check);
/* Whether the pool grants so many units of both kinds at once. */
int kg_check_fits(const struct kg_check *check, struct kg_pool *pool, uint64_t pages,
                  uint64_t states);
/* check_trace.c, of the binary. Fills what a trace file repeats in pages of `page` tokens;
 * KG_EINVAL and the like as kg_trace_read. Free `shared` with kg_check_trace_fini. */
struct kg_trace_conf;
KG_CHECKED int kg_check_trace_read(const char *path, const struct kg_trace_conf *conf,
                                   uint32_t page, uint32_t interval, struct kg_check_trace *trace,
                                   struct kg_error *err);
void kg_check_trace_fini(struct kg_check_trace *trace);
/* check_parallel.c, of the binary. Warns of what a layout over ranks and machines silently costs.
 */
void kg_check_parallel_warn(struct kg_check *check);

/* check_comm.c. What steps of the usual sizes send between ranks, by what algorithm, and how long
 * that takes where somebody measured it. Reads [parallel] comm_times: as kg_comm_times_read. */
KG_CHECKED int kg_check_comm(struct kg_check *check, struct kg_error *err);
void kg_check_comm_text(const struct kg_check *check, struct kg_buf *b);
void kg_check_comm_json(const struct kg_check *check, struct kg_buf *b);

/* check_deal.c. What each rank holds, asked of the backend. KG_ENOMEM and its other errors. */
KG_CHECKED int kg_check_deal(struct kg_check *check, struct kg_error *err);
void kg_check_deal_text(const struct kg_check *check, struct kg_buf *b);
void kg_check_deal_json(const struct kg_check *check, struct kg_buf *b);

/* check_size.c */
void kg_check_trace_warn(struct kg_check *check);
void kg_check_trace_text(const struct kg_check *check, struct kg_buf *b);
void kg_check_trace_json(const struct kg_check *check, struct kg_buf *b);
void kg_check_size(const struct kg_check *check, struct kg_pool *pool, uint32_t tokens,
                   uint32_t states, struct kg_check_size *size);
/* Warns of a static split that starves a kind at this length. */
void kg_check_size_warn(struct kg_check *check, const struct kg_check_size *size, int guessed);

#endif
