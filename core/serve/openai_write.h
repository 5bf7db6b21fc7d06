/* The JSON around choices: envelopes of answers and chunks, usage, errors, the model list. */
#ifndef KEDGE_SERVE_OPENAI_WRITE_H
#define KEDGE_SERVE_OPENAI_WRITE_H

#include "base/buf.h"
#include "serve/json.h"

/* Tokens of an answer, all its choices together. */
struct kg_usage {
    uint64_t prompt, completion, cached;
    uint64_t verified, accepted; /* drafts; 0 verified: nothing is said of them */
};

/* What every object of one answer begins with. */
struct kg_envelope {
    const char *id;    /* "chatcmpl-..." */
    const char *model; /* name in answers */
    int64_t created;   /* seconds since 1970 */
    bool chat, chunk;
};

/* {"error": {...}} */
void kg_write_error(struct kg_buf *b, const struct kg_api_error *err);
/* {"id": .., "choices":[ ; the caller appends choices and calls the close. */
void kg_write_open(struct kg_buf *b, const struct kg_envelope *e);
/* ] and "usage": the numbers, null when usage is NULL and `with_null`, or nothing; }. */
void kg_write_close(struct kg_buf *b, const struct kg_usage *usage, bool with_null);
/* The answer of /v1/models, or of one model alone. max_tokens: of a sequence. */
void kg_write_models(struct kg_buf *b, const char *model, int64_t created, uint32_t max_tokens,
                     bool alone);
/* Reason phrase of an HTTP status. */
const char *kg_http_reason(int status);

#endif
