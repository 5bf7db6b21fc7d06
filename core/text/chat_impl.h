/*
 * Inside of the chat formats: what chat.c (requests, checks, dispatch), chat_k3.c and chat_linear.c
 * share.
 */
#ifndef KEDGE_TEXT_CHAT_IMPL_H
#define KEDGE_TEXT_CHAT_IMPL_H

#include "text/chat.h"
#include "text/rawjson.h"

struct kg_chat {
    const struct kg_tok *tok;
    enum kg_chat_format format;
    uint32_t end;                            /* <|end_of_msg|> or <|im_end|> */
    uint32_t eos;                            /* [EOS], KG_NONE if the vocabulary has none */
    uint32_t open, close, sep;               /* K3 */
    uint32_t user, assistant, system;        /* Kimi-Linear: openers of a turn */
    uint32_t middle;                         /* Kimi-Linear: behind the opener's name */
    uint32_t calls_begin, calls_end;         /* Kimi-Linear: <|tool_calls_section_begin|>, _end */
    uint32_t call_begin, call_arg, call_end; /* Kimi-Linear: <|tool_call_begin|> and so on */
};

/*
 * A prompt in the making. The first failure stays in rc and turns later writes into nothing, so a
 * format reads like the text it writes.
 */
struct kg_writer {
    const struct kg_chat *chat;
    struct kg_tok_scratch *scratch;
    struct kg_chat_prompt *out;
    struct kg_error *err;
    struct kg_text tmp; /* for one value at a time */
    int rc;
};

/* A request with its defaults filled in; json_t are borrowed. */
struct kg_chat_request {
    json_t *messages;   /* non-empty array of objects */
    json_t *tools;      /* non-empty array of checked tools, or NULL */
    const char *effort; /* NULL: no effort message */
    const char *choice; /* "none", "required", or NULL for auto */
    const char *format; /* "json_object", "json_schema", or NULL for text */
    json_t *schema;     /* set with json_schema */
    bool thinking;
    bool generation;
    struct kg_span raw_messages, raw_tools,
        raw_schema; /* the same as raw text, p NULL if unknown */
};

enum kg_role {
    KG_ROLE_SYSTEM,
    KG_ROLE_USER,
    KG_ROLE_ASSISTANT,
    KG_ROLE_TOOL,
};

/* A tool call of an assistant message, checked. */
struct kg_chat_call {
    const char *id; /* or NULL */
    const char *name;
    json_t *arguments;  /* string or object, or NULL */
    struct kg_span raw; /* of an object, p NULL if unknown */
};

/* Records the first failure: err text "field: reason". */
__attribute__((format(printf, 2, 3))) void kg_writer_bad(struct kg_writer *w, const char *fmt, ...);

void kg_writer_id(struct kg_writer *w, uint32_t id);
/* One piece of text in plain mode. */
void kg_writer_plain(struct kg_writer *w, const char *text, size_t n);
void kg_writer_puts(struct kg_writer *w, const char *zstr);
/* The end marker of a message; notes the boundary. */
void kg_writer_end(struct kg_writer *w);
/* messages[i] was written: notes its end once more if it asks for a checkpoint. */
void kg_writer_mark(struct kg_writer *w, json_t *message, size_t i);

/* Role of messages[i]; KG_ROLE_USER with a failure recorded when it has none of the known ones. */
enum kg_role kg_message_role(struct kg_writer *w, json_t *message, size_t i);
/* The string member `key` of messages[i], NULL if absent or null; anything else, a zero byte in it
 * too, is a failure. */
const char *kg_message_string(struct kg_writer *w, json_t *message, size_t i, const char *key);
/*
 * Part k of the content of messages[i] (a string is one part): false behind the last one or after a
 * failure. Absent or null content is a failure unless `optional`.
 */
bool kg_message_part(struct kg_writer *w, json_t *message, size_t i, size_t k, bool optional,
                     struct kg_span *part);
/*
 * The tool calls of assistant message i as an array of the caller (free), *n of them; NULL when
 * there are none or after a failure. raw is the message's own text or p NULL.
 */
struct kg_chat_call *kg_message_calls(struct kg_writer *w, json_t *message, size_t i,
                                      struct kg_span raw, size_t *n);
/* Checks a list of tool definitions called `field`; NULL when empty, absent, null or bad. */
json_t *kg_checked_tools(struct kg_writer *w, json_t *tools, const char *field);

/*
 * A value as JSON text in a style, from its raw text if known. The result lives in w->tmp until the
 * next call.
 */
struct kg_span kg_writer_json(struct kg_writer *w, const json_t *value, struct kg_span raw,
                              enum kg_raw_style style);

/* The member `name` of raw object text; p NULL if raw is unknown or has no such member. */
struct kg_span kg_raw_sub(struct kg_span object, const char *name);

void kg_chat_k3(struct kg_writer *w, const struct kg_chat_request *req);
void kg_chat_linear(struct kg_writer *w, const struct kg_chat_request *req);

#endif
