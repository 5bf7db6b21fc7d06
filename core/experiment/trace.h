/*
 * Workload traces: requests with arrival, lengths and what is known of their content. Contents are
 * named, not stored: a prompt is a list of pieces, each a run of content blocks with consecutive
 * ids; equal id means equal block. expand.h turns them into tokens.
 *
 * core/docs/replay.md describes the formats field by field.
 */
#ifndef KEDGE_EXPERIMENT_TRACE_H
#define KEDGE_EXPERIMENT_TRACE_H

#include <kedge/types.h>

#define KG_TRACE_MAX_TOKENS (1u << 24) /* prompt or answer of one request */
#define KG_TRACE_NEVER UINT64_MAX

enum kg_trace_format {
    KG_TRACE_NATIVE = 0,   /* JSON lines of ours */
    KG_TRACE_MOONCAKE = 1, /* a subset of native */
    KG_TRACE_AGENTIC = 2,  /* sessions of coding agents, block ids as runs */
    KG_TRACE_AZURE = 3,    /* CSV: time and lengths */
    KG_TRACE_SERVEGEN = 4, /* clients as distributions; requests are drawn */
    KG_TRACE_AIPERF = 5,   /* sessions whose turns list only new blocks */
    KG_TRACE_BAILIAN = 6,  /* chats with a parent, times in seconds */
};

/* How to read. Zero is a legal value of every field but scale (1). */
struct kg_trace_conf {
    uint32_t format;     /* enum kg_trace_format */
    uint32_t block;      /* tokens of a content block; 0: as the format has it */
    uint32_t scale;      /* lengths and blocks are divided by it, rounded down, at least 1 token */
    uint32_t max_input;  /* drop requests (sessions: whole ones) with longer prompts; 0 off */
    uint32_t n_sessions; /* agentic: sessions taken; 0 all */
    uint32_t main_only;  /* agentic: 1 leaves sub-agents out */
    uint64_t limit;      /* requests taken; 0 all */
    uint64_t spread_ns;  /* agentic: session starts are spread evenly over this time */
    uint64_t horizon_ns; /* leave out what was recorded later than this; 0 off */
    uint64_t seed;       /* servegen: of the draws */
};

/* Tokens [at, at + n) of a prompt are the blocks id, id + 1, ... of `block` tokens from the start
 * of the first. */
struct kg_trace_piece {
    uint64_t id;
    uint32_t at, n;
};

/* One request. `at` fields are offsets into the arrays of the trace. */
struct kg_trace_req {
    uint64_t arrive_ns; /* from the start; with `after`: not before this */
    uint64_t delay_ns;  /* after the end of `after` */
    uint64_t cancel_ns; /* the client leaves so long after arrival; KG_TRACE_NEVER */
    uint64_t tenant;    /* hash of its name, 0 for none */
    uint64_t line;      /* where it stands in the file */
    size_t name_at;     /* text: id as given, or the number of the request from 1 */
    size_t tenant_at;   /* text: name of the tenant; "" for none */
    size_t domain_at;   /* text: acceptance profile; "" for none */
    size_t pieces_at;   /* n_pieces, ascending `at`, without holes from 0 */
    size_t tokens_at;   /* n_tokens literal tokens instead of pieces */
    size_t prompt_at;   /* text: prompt of n_text bytes instead of pieces, to be tokenised */
    size_t bounds_at;   /* n_bounds message ends, token positions, ascending */
    uint32_t n_pieces, n_tokens, n_text, n_bounds;
    uint32_t n_prompt; /* tokens; 0 while n_text waits for a tokenizer */
    uint32_t n_output; /* tokens, >= 1 */
    uint32_t n_named;  /* prompt tokens in full blocks; what follows is resolved by expand.h */
    uint32_t block;    /* tokens of a block of this request */
    uint32_t after;    /* request that must finish first, KG_NONE */
    uint32_t cont;     /* request whose prompt is known to go on from this one's, KG_NONE */
};

struct kg_trace {
    struct kg_trace_req *reqs; /* [n] by arrival; turns of a session in order */
    uint32_t n;
    struct kg_trace_piece *pieces;
    uint32_t *tokens;
    uint32_t *bounds;
    char *text; /* starts with an empty string */
    size_t n_pieces, n_tokens, n_bounds, n_text;
    size_t cap_reqs, cap_pieces, cap_tokens, cap_bounds, cap_text;
    uint64_t n_raised;     /* lengths of 0 that became 1 */
    uint64_t n_dropped;    /* requests left out by max_input */
    char unknown[64];      /* first field nobody knows, "" for none */
    uint64_t unknown_line; /* where it was */
};

/*
 * Reads a trace. KG_EINVAL names file, line and field; KG_ENOENT, KG_EIO, KG_ENOMEM. An empty trace
 * is KG_EINVAL. Owner of *trace: the caller, until kg_trace_free.
 */
KG_CHECKED int kg_trace_read(const char *path, const struct kg_trace_conf *conf,
                             struct kg_trace **trace, struct kg_error *err);
/* The same from n bytes of memory. */
KG_CHECKED int kg_trace_read_mem(const char *name, const void *data, size_t n,
                                 const struct kg_trace_conf *conf, struct kg_trace **trace,
                                 struct kg_error *err);
void kg_trace_free(struct kg_trace *trace); /* NULL is allowed */

/* "native" .. "bailian". KG_EINVAL for another word. */
KG_CHECKED int kg_trace_format_parse(const char *word, uint32_t *format);

/* Replaces the prompt text of a request by n tokens (at least 1), which it copies. KG_ENOMEM. */
KG_CHECKED int kg_trace_set_tokens(struct kg_trace *trace, uint32_t i, const uint32_t *tokens,
                                   uint32_t n);

static inline const char *kg_trace_name(const struct kg_trace *t, uint32_t i)
{
    return t->text + t->reqs[i].name_at;
}

#endif
