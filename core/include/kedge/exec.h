/*
 * The backend: holds the weights and the arena, runs one packed batch per step, samples and
 * accepts on its side (logits of a large vocabulary do not travel).
 *
 * Order at start: open -> describe -> (pool.open answers the layout) -> bind.
 * Order in a step: apply, draft, then unit copies, then submit, wait; all one stream. Commit
 * (state writes, checkpoint orders, draft injection) is part of submit; it is done when wait
 * returns.
 *
 * Identity. A sequence is known by a backend slot 0..max_seqs-1. The backend keeps, per slot, its
 * page list, tokens (for penalties), records and pending draft features; a step carries only what
 * was appended. KG_SEQ_RESET (admission, resumption) carries everything anew. drop() forgets.
 *
 * Position convention. `past` counts committed tokens of a sequence: those already in its pages
 * and state. Row j of a sequence has position past + j. A prefill chunk carries the next n prompt
 * tokens. A decoding sequence carries one row (the last emitted token, not yet computed) plus
 * n_draft draft rows. The token sampled at the last committed row has position past' (the new
 * committed length), which is also its noise position.
 *
 * Engine thread only, but for the ranks' own processes.
 */
#ifndef KEDGE_EXEC_H
#define KEDGE_EXEC_H

#include <kedge/abi.h>
#include <kedge/comm.h>
#include <kedge/host.h>
#include <kedge/pool.h>

#define KG_EXEC_MAJOR 1
#define KG_EXEC_MINOR 4

/* Capability bits. The first three are the promise of core/docs/architecture.md. */
#define KG_EXEC_CAP_INVARIANT_BATCH 1ull /* bits do not depend on the batch */
#define KG_EXEC_CAP_INVARIANT_CHUNK 2ull /* nor on how prefill was chunked */
#define KG_EXEC_CAP_INVARIANT_PATH 4ull  /* prefill = decode = verify = replay */
#define KG_EXEC_CAP_ASYNC 8ull           /* submit returns before the step is done */
#define KG_EXEC_CAP_DRAFT 16ull          /* draft() exists: a drafter can be loaded */
#define KG_EXEC_CAP_VERIFY 32ull         /* accepts n_draft > 0 */
#define KG_EXEC_CAP_LOGITS 64ull         /* can return logits to the host (tests, echo) */
#define KG_EXEC_CAP_VIRTUAL 128ull       /* advance() exists: time is virtual */
#define KG_EXEC_CAP_VIEWS 256ull         /* views() exists */
#define KG_EXEC_CAP_NO_BYTES 512ull      /* units hold nothing: bytes written are not read back */
#define KG_EXEC_CAP_RANKS 1024ull        /* works with world > 1, as one rank of several */
/* Computes in device memory: the comm of its ranks must have KG_COMM_CAP_CUDA, and rank r takes
 * device r. Without the bit it computes in host memory. Since minor 4. */
#define KG_EXEC_CAP_CUDA 2048ull

struct kg_exec; /* one instance; private to the plugin */

/* What open needs. Strings and tables live until close. */
struct kg_exec_open {
    size_t size;                        /* sizeof(struct kg_exec_open) */
    const char *model_path;             /* folder of the checkpoint, or "" where none is needed */
    const char *draft_path;             /* folder of the drafter, NULL for none */
    const struct kg_comm_ops *comm_ops; /* NULL when world is 1 */
    struct kg_comm *comm; /* opened; open takes its symmetric memory and seals; or NULL */
    uint32_t rank, world; /* this process, processes in the group */
    uint32_t max_seqs;    /* backend slots */
    uint32_t max_rows;    /* most rows of a step ([engine] step_tokens) */
    uint32_t max_context; /* most tokens of a sequence; 0 for the model's own limit */
    uint32_t max_draft;   /* most draft rows per sequence */
    /* How the ranks share the model (core/docs/ranks.md; minor 3). */
    uint32_t ep;              /* blocks of whole experts, a divisor of world; 0 and 1: none */
    uint32_t sp_rows;         /* steps of so many rows at least go sequence-parallel; 0: none */
    uint32_t allow_idle_rank; /* 1: a rank may be left with padding only */
};

/* What the backend says of itself after open. Sizes in bytes, counts as named. */
struct kg_exec_desc {
    size_t size;                /* sizeof(struct kg_exec_desc) of the backend */
    uint64_t caps;              /* KG_EXEC_CAP_* of this instance (<= the plugin's) */
    uint64_t token_bytes;       /* of one token in a page, all MLA layers (draft KV included) */
    uint64_t draft_token_bytes; /* the part of token_bytes that is draft KV */
    uint64_t state_part_bytes;  /* of one part (one KDA layer: recurrent + convolution) */
    uint64_t recurrent_bytes;   /* of a state: recurrent share; the rest is convolution */
    uint64_t weight_bytes;      /* memory the weights take as loaded */
    uint64_t scratch_bytes;     /* other memory taken at open */
    uint32_t n_state_parts;
    uint32_t page_tokens_align; /* page_tokens must be a multiple, >= 1 */
    uint32_t align;             /* unit alignment in bytes, power of two */
    uint32_t n_layers;          /* transformer layers */
    uint32_t n_mla_layers, n_kda_layers;
    uint32_t vocab;              /* size of the logits row */
    uint32_t max_context;        /* effective */
    uint32_t max_orders;         /* checkpoint orders per sequence and step, >= 4 */
    uint32_t draft_block;        /* tokens the drafter proposes at most; 0 without one */
    uint32_t max_draft;          /* draft rows per sequence it accepts */
    const char *family;          /* "kimi_k3", "kimi_linear", "scripted"; lives until close */
    const char *kernels;         /* what computes: "avx512-bf16, 2 threads"; lives until close */
    const char *math;            /* "exact", "fast" or "" */
    uint64_t record_bytes;       /* VERIFY: kept of one draft row until the commit; 0: not said */
    uint64_t rewind_bytes;       /* the part of scratch_bytes that is such records, all sequences */
    const char *rewind;          /* "replay", "snapshot" or NULL; lives until close */
    uint64_t draft_weight_bytes; /* the part of weight_bytes that is the drafter's (minor 1) */
    uint64_t draft_q_bytes; /* of scratch, probabilities of drafts of all sequences: taken, beside
                               scratch_bytes, as far as rejection and block need them (minor 2) */
};

/* How drafts are accepted (core/model/accept.h has the rules). Without drafts and at temperature 0
 * all are the same: plain decoding, bit for bit. A backend that answers from a script may ignore
 * it. */
enum kg_accept_rule {
    KG_ACCEPT_COUPLED = 0,   /* output equal to plain decoding, bit for bit */
    KG_ACCEPT_REJECTION = 1, /* output equal in distribution; each draft on its own */
    KG_ACCEPT_BLOCK = 2,     /* output equal in distribution; the window as a whole */
};

/* Sampling of one request. Zero-initialised plus temperature 1 is a legal value. */
#define KG_MAX_STOP_IDS 16
#define KG_MAX_LOGPROBS 20
struct kg_sampling {
    float temperature;        /* 0 = greedy; 0..100 */
    float top_p;              /* 0 < p <= 1; 0 means 1 (off) */
    float min_p;              /* 0..1, 0 off */
    float repetition_penalty; /* > 0; 0 means 1 (off); prompt and output tokens */
    float frequency_penalty;  /* -2..2, output tokens */
    float presence_penalty;   /* -2..2, output tokens */
    uint32_t top_k;           /* 0 off */
    uint32_t n_logprobs;      /* alternatives to report, 0..KG_MAX_LOGPROBS */
    uint32_t want_logprob;    /* 1: report the chosen token's log probability too */
    uint32_t min_tokens;      /* stop ids cannot be picked before this many output tokens */
    uint32_t n_stop_ids;
    uint32_t ignore_eos; /* 1: stop_ids of the model do not stop (the request's own do) */
    uint32_t stop_ids[KG_MAX_STOP_IDS]; /* end the request; model's and request's merged */
    uint64_t seed;                      /* of the coupled noise */
    uint32_t accept;                    /* enum kg_accept_rule (since minor 1) */
    uint32_t reserved;                  /* 0 */
};

/* When the committed length of the sequence reaches `position`, also write its state to `unit`. */
struct kg_order {
    uint32_t position; /* tokens; past < position <= past + rows */
    uint32_t unit;     /* state id */
};

/* kg_seq.flags */
#define KG_SEQ_RESET 1u   /* everything below is complete, forget what the slot held */
#define KG_SEQ_SAMPLE 2u  /* the last committed row yields a token (decode, or prompt complete) */
#define KG_SEQ_ECHO 4u    /* report the log probability of each row's next token (prompt echo) */
#define KG_SEQ_LOGITS 8u  /* copy this sequence's logits rows to the host (CAP_LOGITS, tests) */
#define KG_SEQ_POISON 16u /* tests: treat this sequence's last hidden row as NaN */

/* state_src of kg_seq */
#define KG_STATE_KEEP UINT32_MAX       /* the working state continues */
#define KG_STATE_ZERO (UINT32_MAX - 1) /* start from zero */

/* One sequence of a step. Pointers are the engine's and live until wait returns. */
struct kg_seq {
    uint32_t slot;          /* backend slot */
    uint32_t epoch;         /* of the request; returned untouched */
    uint64_t id;            /* of the request; returned untouched */
    uint32_t flags;         /* KG_SEQ_* */
    uint32_t past;          /* committed tokens before this step */
    uint32_t n_rows;        /* rows of this sequence, >= 1; 1 + n_draft when decoding */
    uint32_t n_draft;       /* verify length: the last n_draft rows are drafts; > 0 needs SAMPLE
                               and n_rows 1 + n_draft */
    const uint32_t *tokens; /* [n_rows]; draft rows of a MODEL drafter are ignored */
    const uint32_t *pages;  /* [n_pages] page ids appended (RESET: all) */
    uint32_t n_pages;
    uint32_t state;     /* working state unit */
    uint32_t state_src; /* KG_STATE_KEEP, KG_STATE_ZERO, or a unit to copy first; with RESET it may
                           be `state` itself, which then holds the state of `past` tokens */
    uint32_t n_orders;  /* <= describe.max_orders, ascending positions */
    const struct kg_order *orders;
    /* RESET only: all tokens so far (prompt and output, [n_history], the rows of this step
     * included where they are known), where the output starts, and the sampling. */
    const uint32_t *history;
    uint32_t n_history;
    uint32_t output_start;
    const struct kg_sampling *sampling;
    uint32_t left;         /* tokens that may still be emitted, >= 1 with SAMPLE */
    uint32_t force_accept; /* tests: accept exactly min(this, n_draft) drafts; KG_NONE: off */
};

struct kg_batch {
    size_t size;   /* sizeof(struct kg_batch) */
    uint64_t step; /* number of this step, returned in the result */
    const struct kg_seq *seqs;
    uint32_t n_seqs;
    uint32_t n_rows; /* sum of n_rows, <= max_rows */
};

/* One reported log probability; ids ordered by falling logprob. */
struct kg_logprob {
    uint32_t id;
    float logprob; /* natural log, of the unmodified softmax of the logits */
};

/* kg_seq_result.flags */
#define KG_RES_NAN 1u  /* a row was not finite: nothing else is valid, end the request */
#define KG_RES_STOP 2u /* the last token of `tokens` is a stop id */

/* What one sequence did. Arrays belong to the backend and live until the next submit. */
struct kg_seq_result {
    uint64_t id;
    uint32_t slot, epoch;
    uint32_t flags;
    uint32_t past;          /* committed length after the step */
    uint32_t n_accepted;    /* drafts accepted, 0..n_draft */
    uint32_t n_tokens;      /* tokens emitted: accepted drafts + 1 with SAMPLE, cut by stop/left */
    const uint32_t *tokens; /* [n_tokens] */
    const struct kg_logprob *logprobs; /* [n_tokens][1 + n_logprobs], chosen token first */
    const struct kg_logprob *echo;     /* ECHO: [n_rows][1 + n_logprobs], next token of each row
                                          first; the last row's is the sampled one */
    const float *logits;               /* LOGITS: [n_rows][vocab] */
};

struct kg_result {
    size_t size; /* sizeof(struct kg_result), set by the caller */
    uint64_t step;
    uint64_t step_ns; /* time the step took on the backend's clock, its drafts included */
    uint32_t n_seqs;
    uint32_t reserved;
    const struct kg_seq_result *seqs; /* in the order of the batch */
    uint64_t draft_ns;                /* of step_ns: drafting; 0 where not told (since minor 1) */
    uint64_t commit_ns;               /* of step_ns: bringing states to the last accepted row */
};

/*
 * Drafts of one sequence: written by draft() into the backend's own memory; the core sees only
 * the survivals. survival[k] = estimated probability that drafts 0..k are all accepted.
 */
struct kg_draft {
    uint32_t slot;
    uint32_t n;      /* in: tokens wanted, <= draft_block; out: tokens drafted */
    float *survival; /* [n], the engine's; may be NULL */
};

/* One span of a unit for transfers: `n` elements of `dtype` from byte `offset` of table entry
 * `entry` of the unit (0 .. slots_per_state-1; pages: 0). */
struct kg_view {
    const char *name; /* "mla", "draft", "recurrent", "conv"; lives until close */
    uint32_t kind;    /* KG_PAGE: per token; KG_STATE: per request */
    uint32_t layer;   /* transformer layer, 0-based; "draft": of the drafter */
    uint32_t dtype;   /* enum kg_dtype */
    uint32_t entry;
    uint64_t offset;       /* bytes inside the entry */
    uint64_t token_stride; /* KG_PAGE: bytes from token to token; else 0 */
    uint64_t n;            /* elements (per token for KG_PAGE) */
};

/* One kind of message that a step sends to the other ranks, or that the ranks a simulator stands
 * for would (since minor 3). */
struct kg_message {
    const char *what;   /* "hidden", "latent", "logits"; lives until close */
    uint32_t op, dtype; /* enum kg_comm_op, enum kg_dtype */
    uint64_t count;     /* elements per rank, as in kg_coll */
    uint32_t times;     /* calls of a step */
    uint32_t ranks;     /* that take part */
    double us;          /* of one call as this backend reckons its steps; 0: it does not */
    const char *how;    /* with us: the collective it reckons with; lives until close */
};

/* One thing of the model that ranks share (since minor 3). Counts are of that thing. */
struct kg_dealt_row {
    const char *what;   /* "KDA heads"; lives until close */
    uint32_t ranks;     /* or blocks of ranks, that share it */
    uint32_t idle;      /* of them, those left with padding only */
    uint64_t n;         /* in the model */
    uint64_t each;      /* that the first rank has; no rank has more */
    uint64_t last;      /* that the last rank has; 0: it is idle */
    uint64_t last_zero; /* that the last rank holds beside them, as zeros */
    uint64_t all_zero;  /* the same, of all that share it */
};

/* How a model lies on its ranks, or on those a simulator stands for (since minor 3). */
#define KG_DEALT_ROWS 12
struct kg_dealt {
    size_t size;     /* sizeof(struct kg_dealt), set by the caller */
    uint32_t ranks;  /* of the group, >= 2 */
    uint32_t blocks; /* of whole experts; 1: none, every rank has a part of each */
    uint32_t n_rows, reserved;
    struct kg_dealt_row rows[KG_DEALT_ROWS]; /* [n_rows] */
    /* Bytes; 0 where the backend has none or does not know. */
    uint64_t first_weights, last_weights; /* of the weights of the first rank, of the last */
    uint64_t last_weights_zero;           /* of last_weights: padding */
    uint64_t all_weights_zero;            /* padding on all ranks */
    uint64_t state_bytes;                 /* of a state on a rank */
    uint64_t last_state_zero;             /* of it, on the last rank: heads that are padding */
    uint64_t all_state_zero;              /* of one state, on all ranks */
    uint64_t symm_bytes;                  /* symmetric memory that suffices for a rank */
    const char *everywhere;               /* what every rank has whole; lives until close */
};

struct kg_exec_ops {
    size_t size; /* sizeof(struct kg_exec_ops) as compiled */

    /* Loads the model. Bad checkpoints are KG_EINVAL or KG_ENOENT naming file and tensor. */
    int (*open)(const struct kg_host *host, const void *conf, const struct kg_exec_open *args,
                struct kg_exec **exec, struct kg_error *err);
    void (*close)(struct kg_exec *exec); /* NULL is allowed */
    /* Fills *desc; the same at every call. */
    void (*describe)(const struct kg_exec *exec, struct kg_exec_desc *desc);
    /* Allocates the arena for the pool's layout. Once (KG_EINVAL). KG_ECONFIG names the field of a
     * layout that does not fit the model, KG_ENOMEM the bytes. */
    int (*bind)(struct kg_exec *exec, const struct kg_pool_layout *layout, struct kg_error *err);

    /* Copies moves in order, then sets changed entries (pool.moves). In stream order. KG_EINVAL,
     * nothing changed, for a slot or entry outside the layout. */
    int (*apply)(struct kg_exec *exec, const struct kg_move *moves, uint32_t n_moves,
                 const struct kg_table_change *changes, uint32_t n_changes);
    /*
     * Queues one step. KG_EINVAL with text for a batch that breaks the contract (unmapped unit,
     * too few pages for past + n_rows, too many rows); nothing was computed then.
     */
    int (*submit)(struct kg_exec *exec, const struct kg_batch *batch, struct kg_error *err);
    /* Waits for the step. KG_EDEVICE when the backend is lost. */
    int (*wait)(struct kg_exec *exec, struct kg_result *result, struct kg_error *err);
    /* Forgets sequences. Their units may be given back afterwards. */
    void (*drop)(struct kg_exec *exec, const uint32_t *slots, uint32_t n);

    /* Unit traffic, in stream order. `kind`/ids are virtual; a page or a whole state each.
     * KG_EINVAL, nothing changed, for a unit that is not mapped. */
    int (*copy)(struct kg_exec *exec, uint32_t kind, uint32_t dst, uint32_t src);
    int (*zero)(struct kg_exec *exec, uint32_t kind, uint32_t id);
    int (*poison)(struct kg_exec *exec, uint32_t kind, uint32_t id); /* fill with NaN */
    /* Host copies of a unit's bytes (all its entries, one after the other), for tiers and tests.
     * n must be unit_bytes' natural size: page_tokens*token_bytes, or parts*part bytes
     * (KG_EINVAL). */
    int (*read)(struct kg_exec *exec, uint32_t kind, uint32_t id, void *dst, uint64_t n);
    int (*write)(struct kg_exec *exec, uint32_t kind, uint32_t id, const void *src, uint64_t n);

    /* Step time in ns for a batch of n_seqs decoding sequences of `context` tokens with `rows`
     * rows in all, measured on scratch units or taken from a model. Once bound; not in a step.
     * KG_EINVAL beyond the limits of describe, KG_ENOMEM. */
    int (*profile)(struct kg_exec *exec, uint32_t n_seqs, uint32_t rows, uint32_t context,
                   uint64_t *step_ns);
    uint64_t (*now)(const struct kg_exec *exec); /* ns, monotonic; virtual or real; any thread */

    /* Optional, KG_EXEC_CAP_DRAFT: drafts for n sequences of the coming step. Anything but KG_OK
     * means no drafts this step. */
    int (*draft)(struct kg_exec *exec, struct kg_draft *drafts, uint32_t n);
    /* Optional, KG_EXEC_CAP_VIRTUAL: moves the clock forward to `t_ns` while nothing is in
     * flight. */
    void (*advance)(struct kg_exec *exec, uint64_t t_ns);
    /* Optional, KG_EXEC_CAP_VIEWS: the spans of a page and of a state. The array is the
     * backend's. */
    int (*views)(const struct kg_exec *exec, const struct kg_view **views, uint32_t *n);
    /* Optional, KG_EXEC_CAP_DRAFT (since minor 1): time in ns of drafting `n_tokens` tokens for
     * each of n_seqs sequences of `context` tokens. As profile: once bound, not in a step,
     * KG_EINVAL beyond the limits of describe, KG_ENOMEM. */
    int (*profile_draft)(struct kg_exec *exec, uint32_t n_seqs, uint32_t n_tokens, uint32_t context,
                         uint64_t *ns);
    /* Optional (since minor 3): what a step of `rows` rows sends, `samples` of which go to the
     * logits; drafting is not in it. Fills at most n entries in the order of first use and returns
     * how many there are; 0 for one rank. Nothing is sent. */
    uint32_t (*messages)(const struct kg_exec *exec, uint32_t rows, uint32_t samples,
                         struct kg_message *messages, uint32_t n);
    /* Optional (since minor 3): how the model lies on the ranks, this one or another. Not in a
     * step. KG_ENOENT for one rank, or where nothing is dealt; KG_ENOMEM. */
    int (*dealt)(const struct kg_exec *exec, struct kg_dealt *dealt);
};

#endif
