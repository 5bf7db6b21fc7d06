/*
 * Inside of the output parser: parser.c (public calls, text on its way to the sink, tool calls),
 * parser_k3.c and parser_linear.c (which id means what).
 */
#ifndef KEDGE_TEXT_PARSER_IMPL_H
#define KEDGE_TEXT_PARSER_IMPL_H

#include "text/chat_impl.h"
#include "text/parser.h"
#include "text/stop.h"
#include "text/utf8_gate.h"

#define KG_PARSER_MAX_HEAD 65536 /* bytes of an element's or a call's header that are looked at */

/* Where in the message the next text token falls. */
enum kg_place {
    KG_AT_MESSAGE,  /* between elements */
    KG_AT_THINK,    /* reasoning */
    KG_AT_RESPONSE, /* content */
    KG_AT_TOOLS,    /* between calls; text is dropped */
    KG_AT_CALL,     /* between arguments; text is dropped */
    KG_AT_STRING,   /* a string argument */
    KG_AT_VALUE,    /* any other argument, or a whole block of arguments: collected until its end */
    KG_AT_RAW,      /* Kimi-Linear arguments, passed on as they come */
    KG_AT_HEAD,     /* a header being collected */
};

struct kg_parser {
    const struct kg_tok *tok;
    const struct kg_chat *chat; /* NULL: plain mode */
    struct kg_parse_sink sink;
    char *call_id_prefix; /* owned, or NULL */
    bool show_special, past_end;

    enum kg_parse_state state;
    enum kg_channel channel;
    enum kg_place place;
    bool begun;    /* the message has begun: another one in it is its end */
    bool loose;    /* content was seen between elements */
    bool finished; /* kg_parser_finish was called */

    struct kg_utf8_gate chars; /* of the text at `place` */
    struct kg_stop_gate stop;  /* of content */
    struct kg_text step;       /* whole characters of one id */
    struct kg_text ready;      /* what goes to the sink */
    struct kg_text value;      /* KG_AT_VALUE */

    uint32_t head_of;   /* the control id that opened the header */
    bool head_overflow; /* the header is longer than is looked at */
    struct kg_text head;
    enum kg_place head_place; /* where we were before */

    uint32_t n_calls;
    bool call_open;
    bool whole; /* the arguments of the call came as one block */
    size_t n_args;
};

/* Text at the current place, n bytes of one id. */
int kg_parser_text(struct kg_parser *p, const char *bytes, size_t n);
/* Ends whatever is open at the current place and goes to `place`. */
int kg_parser_go(struct kg_parser *p, enum kg_place place);
/* The message is over. */
int kg_parser_end(struct kg_parser *p);

/* Starts to collect a header; text goes to p->head until kg_parser_head_end. */
int kg_parser_head(struct kg_parser *p, uint32_t id);
/* Ends collecting: place is again what it was, p->head holds whole characters and a final NUL. */
int kg_parser_head_end(struct kg_parser *p);

/* A call begins; id NULL: made from the prefix. The place becomes KG_AT_CALL. */
int kg_parser_call(struct kg_parser *p, const char *name, const char *id);
/* An argument of the open call begins; the place becomes KG_AT_STRING or KG_AT_VALUE. */
int kg_parser_argument(struct kg_parser *p, struct kg_span key, bool string);
/* Ends the open call, if any; the place becomes KG_AT_TOOLS then. */
int kg_parser_call_end(struct kg_parser *p);

/* One id. Return 0, 1 after a stop string matched, or a negative kg_rc. */
int kg_parser_k3(struct kg_parser *p, uint32_t id);
int kg_parser_linear(struct kg_parser *p, uint32_t id);

#endif
