/*
 * A request body made ready: parsed, every field checked, prompts rendered and tokenised. A pure
 * function of the body and of things that never change while the server runs, so that it may run
 * on the loop thread (short bodies) or on a preparation thread (long ones).
 *
 * Unknown fields are ignored, as clients send many; fields that are known and would change the
 * answer, but are not supported, are refused by name.
 */
#ifndef KEDGE_SERVE_CALL_H
#define KEDGE_SERVE_CALL_H

#include "base/buf.h"
#include "serve/conf.h"
#include "serve/json.h"
#include "text/chat.h"
#include "text/detok.h"
#include <kedge/exec.h>

enum kg_endpoint {
    KG_EP_COMPLETIONS,
    KG_EP_CHAT,
    KG_EP_TOKENIZE,
    KG_EP_DETOKENIZE,
};

/* What preparing a call needs. Constant, borrowed, shared by threads. */
struct kg_api {
    const struct kg_server_conf *conf;
    const struct kg_tok *tok;
    const struct kg_chat *chat; /* NULL: the vocabulary speaks no chat format */
    const char *model_name;
    uint32_t max_tokens; /* prompt and output of one sequence at most */
    uint32_t vocab;      /* ids the model takes are below */
    uint32_t n_stop_ids; /* of the model */
    uint32_t stop_ids[KG_MAX_STOP_IDS];
};

/*
 * Fills *api; all arguments are borrowed. max_tokens: of a sequence, prompt and output; vocab: ids
 * the model takes are below (the tokenizer's own count is another bound).
 */
void kg_api_init(struct kg_api *api, const struct kg_server_conf *conf, const struct kg_tok *tok,
                 const struct kg_chat *chat, const char *model_name, uint32_t max_tokens,
                 uint32_t vocab);

struct kg_prompt {
    struct kg_ids ids;
    struct kg_ids boundaries; /* chat: positions behind message ends, rising */
    struct kg_ids marks;      /* chat: those of them where a checkpoint is asked for */
    struct kg_text text;      /* echo: the prompt as text */
    uint32_t max_tokens;      /* of the answer, >= 1 */
};

/* A prepared request. All zero is empty; owner: whoever called kg_call_prepare. */
struct kg_call {
    enum kg_endpoint endpoint;
    uint32_t n_prompts;
    struct kg_prompt *prompts; /* [n_prompts]; chat: one */
    enum kg_chat_start start;  /* chat: where the answer begins */
    uint32_t n;                /* choices per prompt */
    struct kg_sampling sampling;
    bool has_seed; /* else sampling.seed is to be drawn */
    uint64_t salt; /* of the prefix cache, 0 none */
    bool no_cache; /* cache_prompt = false: neither takes from the prefix cache nor leaves there */
    char user[32]; /* field user as a name, see kg_call_name; "" for none */

    bool stream, include_usage, continuous_usage;
    bool echo, no_output; /* no_output: max_tokens = 0 with echo; one token is made and dropped */
    bool logprobs;        /* report them; sampling.n_logprobs alternatives */
    bool return_token_ids, tokens_as_ids;
    bool include_reasoning, one_call; /* one_call: parallel_tool_calls = false */
    bool skip_special, keep_stop;

    uint32_t n_stops;
    struct kg_span stops[KG_STOP_MAX]; /* point into stop_bytes */
    struct kg_text stop_bytes;

    struct kg_buf reply; /* TOKENIZE, DETOKENIZE: the answer's body */
};

/*
 * Prepares a body. scratch belongs to the calling thread. On success *call is filled (it must be
 * all zero before); else the error says what is wrong and *call may be freed or not.
 */
int kg_call_prepare(const struct kg_api *api, struct kg_tok_scratch *scratch,
                    enum kg_endpoint endpoint, struct kg_span body, struct kg_call *call,
                    struct kg_api_error *err);
/* A name of at most 31 visible ASCII characters from n bytes of whatever: itself when it is one,
 * else "#" and a hash of it, always the same. n = 0: "". */
void kg_call_name(const char *s, size_t n, char name[32]);
/* Frees what the call holds and zeroes it. */
void kg_call_free(struct kg_call *call);

/* For the parts of preparing, in several files. */
int kg_call_sampling(const struct kg_api *api, const json_t *root, struct kg_call *call,
                     struct kg_api_error *err);
int kg_call_prompts(const struct kg_api *api, struct kg_tok_scratch *scratch, const json_t *root,
                    struct kg_span body, struct kg_call *call, struct kg_api_error *err);
int kg_call_tokenize(const struct kg_api *api, struct kg_tok_scratch *scratch, const json_t *root,
                     struct kg_span body, struct kg_call *call, struct kg_api_error *err);
int kg_call_detokenize(const struct kg_api *api, const json_t *root, struct kg_call *call,
                       struct kg_api_error *err);
/* A token id list into ids. `where` names it. */
int kg_call_ids(const struct kg_api *api, const json_t *list, const char *where, struct kg_ids *ids,
                struct kg_api_error *err);
/* 500 for want of memory. */
int kg_call_no_memory(struct kg_api_error *err);

#endif
