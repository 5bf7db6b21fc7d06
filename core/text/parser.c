#include "text/parser_impl.h"

#include <stdlib.h>
#include <string.h>

int kg_parser_new(const struct kg_tok *tok, const struct kg_chat *chat,
                  const struct kg_parser_opts *opts, struct kg_parser **out, struct kg_error *err)
{
    struct kg_parser *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        return kg_fail(err, KG_ENOMEM, "output parser: out of memory");
    }
    p->tok = tok;
    p->chat = chat;
    p->sink = opts->sink;
    p->show_special = opts->text.show_special;
    p->past_end = opts->past_end;
    p->begun = opts->start != KG_START_MESSAGE;
    if (chat == NULL || opts->start == KG_START_RESPONSE) {
        p->place = KG_AT_RESPONSE;
    } else if (opts->start == KG_START_THINK) {
        /* Kimi-Linear has no reasoning. */
        p->place = chat->format == KG_CHAT_K3 ? KG_AT_THINK : KG_AT_RESPONSE;
    } else {
        p->place = KG_AT_MESSAGE;
    }
    int rc =
        kg_stop_open(&p->stop, opts->text.stops, opts->text.n_stops, opts->text.keep_stop, err);
    if (rc == KG_OK && opts->call_id_prefix != NULL) {
        p->call_id_prefix = strdup(opts->call_id_prefix);
        if (p->call_id_prefix == NULL) {
            rc = kg_fail(err, KG_ENOMEM, "output parser: out of memory");
        }
    }
    if (rc != KG_OK) {
        kg_parser_free(p);
        return rc;
    }
    *out = p;
    return KG_OK;
}

void kg_parser_free(struct kg_parser *parser)
{
    if (parser == NULL) {
        return;
    }
    kg_stop_close(&parser->stop);
    kg_text_free(&parser->step);
    kg_text_free(&parser->ready);
    kg_text_free(&parser->value);
    kg_text_free(&parser->head);
    free(parser->call_id_prefix);
    free(parser);
}

/* Only a negative answer of the sink counts. */
static int answered(int rc)
{
    return rc < 0 ? rc : KG_OK;
}

static int send_args(struct kg_parser *p, const char *json, size_t n)
{
    if (n == 0 || p->sink.tool_args == NULL) {
        return KG_OK;
    }
    return answered(p->sink.tool_args(p->sink.user, p->n_calls - 1, json, n));
}

static int send_args_z(struct kg_parser *p, const char *json)
{
    return send_args(p, json, strlen(json));
}

static int send_ready(struct kg_parser *p)
{
    if (p->ready.n == 0 || p->sink.content == NULL) {
        return KG_OK;
    }
    return answered(p->sink.content(p->sink.user, p->ready.v, p->ready.n));
}

/* Content goes through the stop strings; 1 when one matched. */
static int content(struct kg_parser *p, const char *text, size_t n)
{
    p->ready.n = 0;
    int hit = kg_stop_push(&p->stop, text, n, &p->ready);
    if (hit < 0) {
        return hit;
    }
    int rc = send_ready(p);
    if (rc == KG_OK && hit == 1) {
        p->state = KG_PARSE_STOPPED;
    }
    return rc == KG_OK ? hit : rc;
}

static int escaped_args(struct kg_parser *p, const char *text, size_t n)
{
    p->ready.n = 0;
    int rc = kg_raw_escape(text, n, &p->ready);
    return rc == KG_OK ? send_args(p, p->ready.v, p->ready.n) : rc;
}

/* Whole characters at the current place. */
static int whole_text(struct kg_parser *p, const char *text, size_t n)
{
    if (n == 0) {
        return KG_OK;
    }
    switch (p->place) {
    case KG_AT_THINK:
        return p->sink.reasoning == NULL ? KG_OK
                                         : answered(p->sink.reasoning(p->sink.user, text, n));
    case KG_AT_MESSAGE:
    case KG_AT_RESPONSE:
        return content(p, text, n);
    case KG_AT_STRING:
        return escaped_args(p, text, n);
    case KG_AT_VALUE:
        return kg_text_add(&p->value, text, n);
    case KG_AT_RAW:
        p->n_args++;
        return send_args(p, text, n);
    case KG_AT_HEAD:
        if (p->head.n + n > KG_PARSER_MAX_HEAD) {
            p->head_overflow = true;
            return KG_OK;
        }
        return kg_text_add(&p->head, text, n);
    default:
        return KG_OK;
    }
}

static bool all_white(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strchr(" \t\r\n", text[i]) == NULL || text[i] == '\0') {
            return false;
        }
    }
    return true;
}

int kg_parser_text(struct kg_parser *p, const char *bytes, size_t n)
{
    static const enum kg_channel channels[] = {
        [KG_AT_MESSAGE] = KG_CHANNEL_CONTENT,  [KG_AT_THINK] = KG_CHANNEL_REASONING,
        [KG_AT_RESPONSE] = KG_CHANNEL_CONTENT, [KG_AT_TOOLS] = KG_CHANNEL_NONE,
        [KG_AT_CALL] = KG_CHANNEL_NONE,        [KG_AT_STRING] = KG_CHANNEL_TOOL,
        [KG_AT_VALUE] = KG_CHANNEL_TOOL,       [KG_AT_RAW] = KG_CHANNEL_TOOL,
        [KG_AT_HEAD] = KG_CHANNEL_NONE,
    };
    if (p->place == KG_AT_MESSAGE && !p->loose) {
        /* A line break between elements is not an answer. */
        if (all_white(bytes, n)) {
            return KG_OK;
        }
        p->loose = true;
        p->begun = true;
    }
    p->channel = channels[p->place];
    if (p->place == KG_AT_TOOLS || p->place == KG_AT_CALL) {
        return KG_OK;
    }
    p->step.n = 0;
    int rc = kg_utf8_gate_push(&p->chars, bytes, n, &p->step);
    return rc == KG_OK ? whole_text(p, p->step.v, p->step.n) : rc;
}

/* A collected value: passed on as it is when it is JSON, as a JSON string when it is not. */
static int value_end(struct kg_parser *p)
{
    struct kg_span text = {p->value.v, p->value.n}, value = {NULL, 0};
    ptrdiff_t end = text.n == 0 ? KG_EINVAL : kg_raw_value(text, &value);
    if (end >= 0 && all_white(text.p + end, text.n - (size_t)end)) {
        return send_args(p, value.p, value.n);
    }
    if (p->whole) {
        return text.n == 0 ? send_args_z(p, "{}") : send_args(p, text.p, text.n);
    }
    int rc = send_args_z(p, "\"");
    rc = rc == KG_OK ? escaped_args(p, text.p, text.n) : rc;
    return rc == KG_OK ? send_args_z(p, "\"") : rc;
}

int kg_parser_go(struct kg_parser *p, enum kg_place place)
{
    p->step.n = 0;
    int rc = kg_utf8_gate_finish(&p->chars, &p->step);
    if (rc == KG_OK) {
        rc = whole_text(p, p->step.v, p->step.n);
    }
    if (rc != KG_OK) {
        return rc;
    }
    if (p->place == KG_AT_MESSAGE || p->place == KG_AT_RESPONSE) {
        p->ready.n = 0;
        rc = kg_stop_finish(&p->stop, &p->ready);
        rc = rc == KG_OK ? send_ready(p) : rc;
    } else if (p->place == KG_AT_STRING) {
        rc = send_args_z(p, "\"");
    } else if (p->place == KG_AT_VALUE) {
        rc = value_end(p);
    }
    p->place = place;
    p->loose = false;
    return rc;
}

int kg_parser_end(struct kg_parser *p)
{
    int rc = kg_parser_call_end(p);
    if (rc == KG_OK) {
        rc = kg_parser_go(p, KG_AT_MESSAGE);
    }
    if (rc == KG_OK) {
        p->state = KG_PARSE_ENDED;
    }
    return rc;
}

int kg_parser_head(struct kg_parser *p, uint32_t id)
{
    int rc = KG_OK;
    if (p->place == KG_AT_HEAD) {
        p->chars.n = 0; /* the former header never ended: it is dropped */
    } else {
        /* A header cuts a character, but not a stop string: an element that is only a stray marker
         * must not change what content matches. */
        p->step.n = 0;
        rc = kg_utf8_gate_finish(&p->chars, &p->step);
        rc = rc == KG_OK ? whole_text(p, p->step.v, p->step.n) : rc;
        p->head_place = p->place;
        p->place = KG_AT_HEAD;
    }
    p->head_of = id;
    p->head.n = 0;
    p->head_overflow = false;
    return rc;
}

int kg_parser_head_end(struct kg_parser *p)
{
    p->step.n = 0;
    int rc = kg_utf8_gate_finish(&p->chars, &p->step);
    rc = rc == KG_OK ? whole_text(p, p->step.v, p->step.n) : rc;
    p->place = p->head_place;
    return rc == KG_OK ? kg_text_add(&p->head, "", 0) : rc;
}

int kg_parser_call(struct kg_parser *p, const char *name, const char *id)
{
    p->call_open = true;
    p->whole = false;
    p->n_args = 0;
    uint32_t index = p->n_calls++;
    p->ready.n = 0;
    if (id == NULL) {
        char number[16];
        (void)snprintf(number, sizeof(number), "%s%u", p->call_id_prefix != NULL ? "" : ":", index);
        int rc =
            kg_text_puts(&p->ready, p->call_id_prefix != NULL ? p->call_id_prefix : "functions.");
        rc = rc == KG_OK && p->call_id_prefix == NULL ? kg_text_puts(&p->ready, name) : rc;
        rc = rc == KG_OK ? kg_text_puts(&p->ready, number) : rc;
        if (rc != KG_OK) {
            return rc;
        }
        id = p->ready.v;
    }
    p->place = KG_AT_CALL;
    return p->sink.tool_begin == NULL ? KG_OK
                                      : answered(p->sink.tool_begin(p->sink.user, index, id, name));
}

int kg_parser_argument(struct kg_parser *p, struct kg_span key, bool string)
{
    int rc = send_args_z(p, p->n_args++ == 0 ? "{\"" : ", \"");
    rc = rc == KG_OK ? escaped_args(p, key.p, key.n) : rc;
    rc = rc == KG_OK ? send_args_z(p, string ? "\": \"" : "\": ") : rc;
    p->value.n = 0;
    p->place = string ? KG_AT_STRING : KG_AT_VALUE;
    return rc;
}

int kg_parser_call_end(struct kg_parser *p)
{
    if (!p->call_open) {
        return KG_OK;
    }
    bool raw = p->place == KG_AT_RAW;
    int rc = kg_parser_go(p, KG_AT_TOOLS);
    if (rc == KG_OK && !p->whole) {
        rc = p->n_args == 0 ? send_args_z(p, "{}") : raw ? KG_OK : send_args_z(p, "}");
    }
    p->call_open = false;
    if (rc == KG_OK && p->sink.tool_end != NULL) {
        rc = answered(p->sink.tool_end(p->sink.user, p->n_calls - 1));
    }
    return rc;
}

static int plain_id(struct kg_parser *p, uint32_t id)
{
    if (!p->show_special && kg_tok_is_special(p->tok, id)) {
        return KG_OK;
    }
    struct kg_span s = kg_tok_bytes(p->tok, id);
    return kg_parser_text(p, s.p, s.n);
}

int kg_parser_push(struct kg_parser *parser, const uint32_t *ids, size_t n, size_t *used)
{
    *used = 0;
    if (parser->state == KG_PARSE_STOPPED) {
        return 1;
    }
    for (size_t i = 0; i < n && !parser->finished; i++) {
        parser->channel = KG_CHANNEL_NONE;
        int rc = KG_OK;
        if (parser->chat == NULL) {
            rc = plain_id(parser, ids[i]);
        } else if (parser->state != KG_PARSE_ENDED || parser->past_end) {
            rc = parser->chat->format == KG_CHAT_K3 ? kg_parser_k3(parser, ids[i])
                                                    : kg_parser_linear(parser, ids[i]);
        }
        *used = i + 1;
        if (rc != KG_OK) {
            return rc;
        }
    }
    *used = n;
    return KG_OK;
}

int kg_parser_finish(struct kg_parser *parser)
{
    if (parser->finished || parser->state == KG_PARSE_STOPPED) {
        return KG_OK;
    }
    parser->finished = true;
    if (parser->place == KG_AT_HEAD) {
        parser->chars.n = 0; /* half a header says nothing */
        parser->place = parser->head_place;
    }
    if (parser->place != KG_AT_MESSAGE && parser->place != KG_AT_RESPONSE &&
        parser->place != KG_AT_THINK) {
        return KG_OK; /* inside a call: it stays as it is */
    }
    int rc = kg_parser_go(parser, KG_AT_MESSAGE);
    return rc < 0 ? rc : KG_OK;
}

enum kg_parse_state kg_parser_state(const struct kg_parser *parser)
{
    return parser->state;
}

enum kg_channel kg_parser_channel(const struct kg_parser *parser)
{
    return parser->channel;
}

uint32_t kg_parser_n_calls(const struct kg_parser *parser)
{
    return parser->n_calls;
}
