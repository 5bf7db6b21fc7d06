#include "text/chat_impl.h"

#include <stdlib.h>
#include <string.h>

static void open_tag(struct kg_writer *w, const char *tag)
{
    kg_writer_id(w, w->chat->open);
    kg_writer_puts(w, tag);
}

static void open_done(struct kg_writer *w)
{
    kg_writer_id(w, w->chat->sep);
}

static void close_tag(struct kg_writer *w, const char *tag)
{
    kg_writer_id(w, w->chat->close);
    kg_writer_puts(w, tag);
    kg_writer_id(w, w->chat->sep);
}

/* ` key="value"`, each of the four parts a piece of its own. */
static void attribute(struct kg_writer *w, const char *key, const char *value, size_t n)
{
    char name[16];
    (void)snprintf(name, sizeof(name), " %s", key);
    kg_writer_puts(w, name);
    kg_writer_puts(w, "=\"");
    struct kg_text safe = {0};
    int rc = KG_OK;
    for (size_t i = 0; i < n && rc == KG_OK; i++) {
        rc = value[i] == '&'   ? kg_text_puts(&safe, "&amp;")
             : value[i] == '"' ? kg_text_puts(&safe, "&quot;")
                               : kg_text_add(&safe, value + i, 1);
    }
    if (rc != KG_OK && w->rc == KG_OK) {
        w->rc = kg_fail(w->err, rc, "chat prompt: out of memory");
    }
    kg_writer_plain(w, safe.v, safe.n);
    kg_text_free(&safe);
    kg_writer_puts(w, "\"");
}

static void attribute_z(struct kg_writer *w, const char *key, const char *value)
{
    attribute(w, key, value, strlen(value));
}

static void attribute_index(struct kg_writer *w, size_t index)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%zu", index);
    attribute_z(w, "index", text);
}

static void message_open(struct kg_writer *w, const char *role)
{
    open_tag(w, "message");
    attribute_z(w, "role", role);
}

static void message_close(struct kg_writer *w)
{
    close_tag(w, "message");
    kg_writer_end(w);
}

/* A system message of a type whose text the format itself gives. */
static void system_message(struct kg_writer *w, const char *type, const char *text, size_t n)
{
    message_open(w, "system");
    attribute_z(w, "type", type);
    open_done(w);
    kg_writer_plain(w, text, n);
    message_close(w);
}

/* The text of a system message is one piece: intro, JSON, tail. */
static void json_message(struct kg_writer *w, const char *type, const char *intro,
                         const json_t *value, struct kg_span raw)
{
    struct kg_span json = kg_writer_json(w, value, raw, KG_RAW_SORTED);
    struct kg_text text = {0};
    int rc = kg_text_puts(&text, intro);
    rc = rc == KG_OK ? kg_text_puts(&text, "```json\n") : rc;
    rc = rc == KG_OK ? kg_text_add(&text, json.p, json.n) : rc;
    rc = rc == KG_OK ? kg_text_puts(&text, "\n```") : rc;
    if (rc != KG_OK && w->rc == KG_OK) {
        w->rc = kg_fail(w->err, rc, "chat prompt: out of memory");
    }
    system_message(w, type, text.v, text.n);
    kg_text_free(&text);
}

static void effort_message(struct kg_writer *w, const char *effort)
{
    char text[400];
    int n = snprintf(text, sizeof(text),
                     "`thinking_effort` guides on how much to think in your thinking channel (not "
                     "including the response channel), supported values include `low`, `medium`, "
                     "`high`, and `max`.\nNow the system is invoked with `thinking_effort=%s`.",
                     effort);
    system_message(w, "thinking-effort", text, (size_t)n);
}

static void parts(struct kg_writer *w, json_t *message, size_t i, bool optional)
{
    struct kg_span part;
    for (size_t k = 0; kg_message_part(w, message, i, k, optional, &part); k++) {
        kg_writer_plain(w, part.p, part.n);
    }
}

static void plain_message(struct kg_writer *w, json_t *message, size_t i, const char *role)
{
    const char *name = kg_message_string(w, message, i, "name");
    message_open(w, role);
    if (name != NULL) {
        attribute_z(w, "name", name);
    }
    open_done(w);
    parts(w, message, i, false);
    message_close(w);
}

static void system_turn(struct kg_writer *w, json_t *message, size_t i, struct kg_span raw)
{
    char field[48];
    (void)snprintf(field, sizeof(field), "messages[%zu].tools", i);
    json_t *tools = kg_checked_tools(w, json_object_get(message, "tools"), field);
    if (tools == NULL) {
        plain_message(w, message, i, "system");
        return;
    }
    struct kg_span part;
    for (size_t k = 0; kg_message_part(w, message, i, k, true, &part); k++) {
        if (part.n > 0) {
            kg_writer_bad(w, "messages[%zu].content: a system message with tools has none", i);
        }
    }
    json_message(w, "tool-declare",
                 "## New Tools Available\nThe system dynamically extends the toolset via "
                 "lazy-loading.\nYou have access to all existing and extended tools.\nHere are the "
                 "specs for the extended tools.\n\n",
                 tools, kg_raw_sub(raw, "tools"));
}

/* `parsed`: the value came inside the request's own JSON, not as text. */
static void argument(struct kg_writer *w, const struct kg_raw_member *m, bool parsed)
{
    enum kg_raw_type type = kg_raw_type_of(m->value);
    struct kg_text key = {0}, value = {0};
    int rc = kg_raw_unquote(m->key, &key);
    if (rc == KG_OK && type == KG_RAW_STRING) {
        rc = kg_raw_unquote(m->value, &value);
    } else if (rc == KG_OK && parsed) {
        rc = kg_raw_write(m->value, KG_RAW_SPACED, &value);
    } else if (rc == KG_OK) {
        rc = kg_text_add(&value, m->value.p, m->value.n);
    }
    if (rc != KG_OK && w->rc == KG_OK) {
        w->rc = kg_fail(w->err, rc, "chat prompt: out of memory");
    }
    open_tag(w, "argument");
    attribute(w, "key", key.v, key.n);
    attribute_z(w, "type", kg_raw_type_name(type));
    open_done(w);
    kg_writer_plain(w, value.v, value.n);
    close_tag(w, "argument");
    kg_text_free(&key);
    kg_text_free(&value);
}

static void arguments(struct kg_writer *w, const struct kg_chat_call *call)
{
    struct kg_span text = {NULL, 0}, object = {NULL, 0};
    bool parsed = json_is_object(call->arguments);
    if (parsed) {
        /* Tight first: then one path reads members, whichever way they came. */
        object = kg_writer_json(w, call->arguments, call->raw, KG_RAW_TIGHT);
    } else if (call->arguments != NULL) {
        text = (struct kg_span){json_string_value(call->arguments),
                                json_string_length(call->arguments)};
        if (text.n == 0) {
            return;
        }
        if (kg_raw_value(text, &object) < 0 || kg_raw_type_of(object) != KG_RAW_OBJECT) {
            object.p = NULL;
        }
    } else {
        return;
    }
    if (w->rc != KG_OK) {
        return;
    }
    if (object.p == NULL) {
        open_tag(w, "json");
        attribute_z(w, "type", "object");
        open_done(w);
        kg_writer_plain(w, text.p, text.n);
        close_tag(w, "json");
        return;
    }
    struct kg_raw_member *members = NULL;
    ptrdiff_t n = kg_raw_members(object, &members);
    if (n < 0) {
        w->rc = kg_fail(w->err, KG_ENOMEM, "chat prompt: out of memory");
    }
    for (ptrdiff_t k = 0; k < n; k++) {
        argument(w, &members[k], parsed);
    }
    free(members);
}

/* What later tool results refer to: the last assistant turn. */
struct turn {
    struct kg_chat_call *calls; /* [n_calls], owned */
    size_t n_calls;
    json_t *by_id;  /* call id -> index, owned; NULL before the first assistant turn */
    size_t results; /* tool results since */
};

static void turn_free(struct turn *turn)
{
    free(turn->calls);
    json_decref(turn->by_id);
    *turn = (struct turn){0};
}

static void assistant_turn(struct kg_writer *w, const struct kg_chat_request *req, json_t *message,
                           size_t i, struct kg_span raw, struct turn *turn)
{
    turn_free(turn);
    turn->by_id = json_object();
    message_open(w, "assistant");
    open_done(w);
    if (req->thinking) {
        const char *reasoning = kg_message_string(w, message, i, "reasoning_content");
        if (reasoning == NULL) {
            reasoning = kg_message_string(w, message, i, "reasoning");
        }
        open_tag(w, "think");
        open_done(w);
        kg_writer_puts(w, reasoning != NULL ? reasoning : "");
        close_tag(w, "think");
    }
    open_tag(w, "response");
    open_done(w);
    parts(w, message, i, true);
    close_tag(w, "response");
    turn->calls = kg_message_calls(w, message, i, raw, &turn->n_calls);
    if (turn->n_calls > 0) {
        open_tag(w, "tools");
        open_done(w);
        for (size_t k = 0; k < turn->n_calls; k++) {
            const struct kg_chat_call *call = &turn->calls[k];
            open_tag(w, "call");
            attribute_z(w, "tool", call->name);
            attribute_index(w, k + 1);
            open_done(w);
            arguments(w, call);
            close_tag(w, "call");
            if (call->id != NULL && json_object_get(turn->by_id, call->id) == NULL) {
                (void)json_object_set_new(turn->by_id, call->id, json_integer((json_int_t)k));
            }
        }
        close_tag(w, "tools");
    }
    message_close(w);
}

struct result {
    size_t message;
    size_t call; /* SIZE_MAX: its id belongs to no call */
};

static int by_call(const void *a, const void *b)
{
    const struct result *x = a, *y = b;
    if (x->call != y->call) {
        return x->call < y->call ? -1 : 1;
    }
    return x->message < y->message ? -1 : 1;
}

static void result_message(struct kg_writer *w, json_t *message, const struct result *r,
                           bool in_order, struct turn *turn)
{
    const char *name = in_order ? NULL : kg_message_string(w, message, r->message, "name");
    if (name == NULL && r->call != SIZE_MAX) {
        name = turn->calls[r->call].name;
    }
    if (name == NULL) {
        kg_writer_bad(w,
                      "messages[%zu].tool_call_id: no such call in the last assistant message, and "
                      "no name is given",
                      r->message);
        return;
    }
    message_open(w, "tool");
    attribute_z(w, "tool", name);
    attribute_index(w, ++turn->results);
    open_done(w);
    parts(w, message, r->message, false);
    message_close(w);
}

/* Writes the run of n tool results that begins at message i, in call order if all of them match. */
static void result_run(struct kg_writer *w, json_t *messages, size_t i, size_t n, struct turn *turn)
{
    struct result *run = calloc(n, sizeof(*run));
    if (run == NULL) {
        w->rc = kg_fail(w->err, KG_ENOMEM, "chat prompt: out of memory");
        return;
    }
    bool in_order = true;
    for (size_t k = 0; k < n; k++) {
        json_t *message = json_array_get(messages, i + k);
        const char *id = kg_message_string(w, message, i + k, "tool_call_id");
        json_t *call = id == NULL ? NULL : json_object_get(turn->by_id, id);
        run[k] = (struct result){i + k, call == NULL ? SIZE_MAX : (size_t)json_integer_value(call)};
        in_order = in_order && call != NULL;
    }
    if (in_order) {
        qsort(run, n, sizeof(*run), by_call);
    }
    for (size_t k = 0; k < n && w->rc == KG_OK; k++) {
        json_t *message = json_array_get(messages, run[k].message);
        result_message(w, message, &run[k], in_order, turn);
        kg_writer_mark(w, message, run[k].message);
    }
    free(run);
}

static void all_messages(struct kg_writer *w, const struct kg_chat_request *req)
{
    struct turn turn = {0};
    size_t raw_at = 0;
    bool raw = req->raw_messages.p != NULL && req->raw_messages.p[0] == '[';
    size_t n = json_array_size(req->messages);
    for (size_t i = 0, run = 0; i < n && w->rc == KG_OK; i++) {
        json_t *message = json_array_get(req->messages, i);
        struct kg_raw_member own = {0};
        raw = raw && kg_raw_next(req->raw_messages, &raw_at, &own);
        enum kg_role role = kg_message_role(w, message, i);
        run = role == KG_ROLE_TOOL ? run + 1 : 0;
        switch (role) {
        case KG_ROLE_SYSTEM:
            system_turn(w, message, i, own.value);
            break;
        case KG_ROLE_USER:
            plain_message(w, message, i, "user");
            break;
        case KG_ROLE_ASSISTANT:
            assistant_turn(w, req, message, i, own.value, &turn);
            break;
        case KG_ROLE_TOOL: {
            const char *next =
                json_string_value(json_object_get(json_array_get(req->messages, i + 1), "role"));
            if (next == NULL || strcmp(next, "tool") != 0) {
                result_run(w, req->messages, i + 1 - run, run, &turn);
            }
            break;
        }
        }
        if (role != KG_ROLE_TOOL) {
            kg_writer_mark(w, message, i);
        }
    }
    turn_free(&turn);
}

static void choice_message(struct kg_writer *w, const char *choice)
{
    char text[160];
    int n = snprintf(text, sizeof(text),
                     "The system is invoked with `tool_choice=%s`.\nYou MUST %s tools in the next "
                     "message.",
                     choice, strcmp(choice, "none") == 0 ? "NOT call any" : "call");
    system_message(w, "tool-choice", text, (size_t)n);
}

static void format_message(struct kg_writer *w, const struct kg_chat_request *req)
{
    bool schema = req->schema != NULL;
    char text[400];
    int n =
        snprintf(text, sizeof(text),
                 "The system is invoked with `response_format=%s`.\nYour response must be raw "
                 "JSON data without markdown code blocks (```json) or any additional "
                 "formatting.%s",
                 req->format, schema ? "\nThe JSON data must match the following schema:\n" : "");
    if (schema) {
        json_message(w, "response-format", text, req->schema, req->raw_schema);
    } else {
        system_message(w, "response-format", text, (size_t)n);
    }
}

void kg_chat_k3(struct kg_writer *w, const struct kg_chat_request *req)
{
    if (req->tools != NULL) {
        json_message(w, "tool-declare",
                     "# Tools\nHere are the available tools, described in JSONSchema.\n\n",
                     req->tools, req->raw_tools);
    }
    if (req->thinking && req->effort != NULL) {
        effort_message(w, req->effort);
    }
    all_messages(w, req);
    if (req->choice != NULL) {
        choice_message(w, req->choice);
    }
    if (req->format != NULL) {
        format_message(w, req);
    }
    if (req->generation) {
        message_open(w, "assistant");
        open_done(w);
        open_tag(w, req->thinking ? "think" : "response");
        open_done(w);
        w->out->start = req->thinking ? KG_START_THINK : KG_START_RESPONSE;
    }
}
