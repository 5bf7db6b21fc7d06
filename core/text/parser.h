/*
 * What a model's output means: reasoning, content and tool calls, told apart by token id, never by
 * text. One object per choice; ids are pushed as they come and deltas come out through a sink. Any
 * way of cutting the ids into pushes gives the same deltas joined. A control token never reaches
 * content, and missing close markers (think -> tools, message closed inside response) lose nothing.
 */
#ifndef KEDGE_TEXT_PARSER_H
#define KEDGE_TEXT_PARSER_H

#include "text/chat.h"
#include "text/detok.h"

struct kg_parser;

/*
 * Receives deltas; a NULL function drops them. Text is UTF-8, whole characters, n > 0, not
 * NUL-terminated, valid during the call only. `index` counts tool calls from 0. A function returns
 * 0 or a negative kg_rc that ends the push with that rc.
 */
struct kg_parse_sink {
    void *user;
    int (*reasoning)(void *user, const char *text, size_t n);
    int (*content)(void *user, const char *text, size_t n);
    int (*tool_begin)(void *user, uint32_t index, const char *id, const char *name);
    /* A further part of the arguments, as JSON text; all parts of an ended call joined are valid
     * JSON unless the model itself wrote an invalid JSON block. */
    int (*tool_args)(void *user, uint32_t index, const char *json, size_t n);
    int (*tool_end)(void *user, uint32_t index);
};

struct kg_parser_opts {
    struct kg_parse_sink sink;
    enum kg_chat_start start; /* from kg_chat_render; ignored when chat is NULL */
    /* Stop strings work on content only (plain mode: on the whole text), not on reasoning and tool
     * calls. show_special is for plain mode only. */
    struct kg_detok_opts text;
    const char *call_id_prefix; /* K3 call ids are PREFIX then the index; NULL:
                                 * functions.NAME:INDEX. Kimi-Linear: the model's own id. Copied */
    bool past_end;              /* ignore_eos: text behind the end of the message is content */
};

/* What the last token of a push was part of: for log probabilities of content tokens. */
enum kg_channel {
    KG_CHANNEL_NONE, /* structure: control tokens, element names; dropped text */
    KG_CHANNEL_REASONING,
    KG_CHANNEL_CONTENT,
    KG_CHANNEL_TOOL,
};

enum kg_parse_state {
    KG_PARSE_OPEN,    /* more may come */
    KG_PARSE_ENDED,   /* the model closed its message */
    KG_PARSE_STOPPED, /* a stop string matched */
};

/*
 * chat NULL is plain mode (completions): all text is content. tok and chat are borrowed. KG_EINVAL
 * (stop list), KG_ENOMEM.
 */
int KG_CHECKED kg_parser_new(const struct kg_tok *tok, const struct kg_chat *chat,
                             const struct kg_parser_opts *opts, struct kg_parser **out,
                             struct kg_error *err);
void kg_parser_free(struct kg_parser *parser); /* NULL is allowed */

/*
 * Takes n ids. Returns 0, or 1 when a stop string matched: *used is then how many ids of this call
 * belong to the output, the completing one included; later pushes return 1 with used 0. Otherwise
 * *used = n. KG_ENOMEM, or what the sink returned.
 */
int KG_CHECKED kg_parser_push(struct kg_parser *parser, const uint32_t *ids, size_t n,
                              size_t *used);

/*
 * The output has ended: sends what was held back. A tool call that was cut off stays open (no
 * tool_end, its arguments incomplete): nobody shall run half a call.
 */
int KG_CHECKED kg_parser_finish(struct kg_parser *parser);

enum kg_parse_state kg_parser_state(const struct kg_parser *parser);
enum kg_channel kg_parser_channel(const struct kg_parser *parser); /* of the last id taken */
uint32_t kg_parser_n_calls(const struct kg_parser *parser);        /* tool calls begun */

#endif
