/*
 * One choice of an answer while its tokens arrive: text, reasoning, tool calls and log
 * probabilities pile up here until they are written. A stream writes and empties the pile after
 * each batch of tokens, a plain answer once at the end: the same bytes either way, so stream and
 * non-stream text are equal by construction.
 */
#ifndef KEDGE_SERVE_ANSWER_H
#define KEDGE_SERVE_ANSWER_H

#include "serve/call.h"
#include "text/parser.h"

/* A tool call of the answer. */
struct kg_tool_call {
    char *id, *name;    /* owned */
    bool fresh;         /* id and name were not written yet */
    bool touched;       /* something was added since the last delta */
    struct kg_buf args; /* JSON text not written yet */
};

struct kg_answer {
    const struct kg_api *api;   /* borrowed */
    const struct kg_call *call; /* borrowed; outlives the choice */
    uint32_t index;             /* in the answer */
    uint32_t prompt;            /* of call->prompts */
    struct kg_parser *parser;

    struct kg_buf content, reasoning;
    struct kg_tool_call *calls;
    uint32_t n_calls, cap_calls;
    struct kg_buf lp_main;                      /* chat: objects; completions: token strings */
    struct kg_buf lp_values, lp_top, lp_offset; /* completions: the other three lists */
    struct kg_buf token_ids;

    uint32_t n_tokens;  /* of the output so far, cut at a stop string */
    uint32_t n_echoed;  /* prompt tokens whose log probability was taken */
    uint64_t offset;    /* characters of all token strings so far: text_offset */
    bool role_sent;     /* stream: the first delta went out */
    bool stopped;       /* a stop string matched: later tokens do not count */
    const char *finish; /* finish_reason, NULL while running */
};

/* Prepares a choice; it takes its own memory for at most reply_bytes of answer. KG_ENOMEM. */
KG_CHECKED int kg_answer_open(struct kg_answer *c, const struct kg_api *api,
                              const struct kg_call *call, uint32_t index, uint32_t prompt,
                              struct kg_error *err);
void kg_answer_close(struct kg_answer *c); /* all zero is allowed */

/*
 * Takes n tokens, with n_logprobs log probabilities each (0: none). Returns 1 when a stop string
 * matched, c->n_tokens is then the length to finish at; 0; KG_ENOMEM; KG_ELIMIT when more than
 * [server] reply_bytes wait to be written.
 */
KG_CHECKED int kg_answer_tokens(struct kg_answer *c, const uint32_t *ids, uint32_t n,
                                const struct kg_logprob *logprobs, uint32_t n_logprobs);
/* The log probabilities of n further prompt tokens. */
KG_CHECKED int kg_answer_echo(struct kg_answer *c, uint32_t n, const struct kg_logprob *logprobs,
                              uint32_t n_logprobs);
/* The output ended normally; `length`: cut by max_tokens. Settles finish. */
KG_CHECKED int kg_answer_finish(struct kg_answer *c, bool length);

/* Bytes piled up and not written yet. */
uint64_t kg_answer_bytes(const struct kg_answer *c);
/* True when a delta would carry something. */
bool kg_answer_has_news(const struct kg_answer *c);
/* Appends the choice object of a stream chunk and empties the pile. */
void kg_answer_write_delta(struct kg_answer *c, struct kg_buf *b);
/* Appends the first delta of a chat: the role. */
void kg_answer_write_role(struct kg_answer *c, struct kg_buf *b);
/* Appends the choice object of a whole answer. */
void kg_answer_write(struct kg_answer *c, struct kg_buf *b);

#endif
