#include "text/chat.h"

#include "text/chat_impl.h"
#include <stdlib.h>
#include <string.h>

/* Finds all control names of a list; returns how many are missing, the first one in *missing. */
static int find_all(const struct kg_tok *tok, const char *const *names, uint32_t *const *ids,
                    const char **missing)
{
    int n = 0;
    for (int i = 0; names[i] != NULL; i++) {
        if (kg_tok_control(tok, names[i], ids[i]) != KG_OK) {
            *missing = n == 0 ? names[i] : *missing;
            n++;
        }
    }
    return n;
}

int kg_chat_open(const struct kg_tok *tok, struct kg_chat **out, struct kg_error *err)
{
    struct kg_chat *chat = calloc(1, sizeof(*chat));
    if (chat == NULL) {
        return kg_fail(err, KG_ENOMEM, "chat format: out of memory");
    }
    chat->tok = tok;
    static const char *const k3_names[] = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>",
                                           NULL};
    uint32_t *const k3_ids[] = {&chat->open, &chat->close, &chat->sep, &chat->end};
    static const char *const linear_names[] = {"<|im_user|>",
                                               "<|im_assistant|>",
                                               "<|im_system|>",
                                               "<|im_middle|>",
                                               "<|im_end|>",
                                               "<|tool_calls_section_begin|>",
                                               "<|tool_calls_section_end|>",
                                               "<|tool_call_begin|>",
                                               "<|tool_call_argument_begin|>",
                                               "<|tool_call_end|>",
                                               NULL};
    uint32_t *const linear_ids[] = {
        &chat->user,        &chat->assistant, &chat->system,     &chat->middle,   &chat->end,
        &chat->calls_begin, &chat->calls_end, &chat->call_begin, &chat->call_arg, &chat->call_end};
    const char *no_k3 = NULL, *no_linear = NULL;
    if (find_all(tok, k3_names, k3_ids, &no_k3) == 0) {
        chat->format = KG_CHAT_K3;
    } else if (find_all(tok, linear_names, linear_ids, &no_linear) == 0) {
        chat->format = KG_CHAT_LINEAR;
    } else {
        free(chat);
        return kg_fail(err, KG_ECONFIG,
                       "chat format: the vocabulary has no %s (K3) and no %s (Kimi-Linear)", no_k3,
                       no_linear);
    }
    if (kg_tok_control(tok, "[EOS]", &chat->eos) != KG_OK) {
        chat->eos = KG_NONE;
    }
    *out = chat;
    return KG_OK;
}

void kg_chat_close(struct kg_chat *chat)
{
    free(chat);
}

uint32_t kg_chat_stop_id(const struct kg_chat *chat)
{
    return chat->end;
}

size_t kg_chat_stop_ids(const struct kg_chat *chat, uint32_t ids[2])
{
    ids[0] = chat->end;
    if (chat->eos == KG_NONE) {
        return 1;
    }
    ids[1] = chat->eos;
    return 2;
}

void kg_chat_prompt_free(struct kg_chat_prompt *prompt)
{
    kg_ids_free(&prompt->ids);
    kg_ids_free(&prompt->boundaries);
    kg_ids_free(&prompt->marks);
}

void kg_writer_bad(struct kg_writer *w, const char *fmt, ...)
{
    if (w->rc != KG_OK) {
        return;
    }
    w->rc = KG_EINVAL;
    if (w->err != NULL) {
        va_list ap;
        va_start(ap, fmt);
        w->err->rc = KG_EINVAL;
        (void)vsnprintf(w->err->text, sizeof(w->err->text), fmt, ap);
        va_end(ap);
    }
}

static void no_memory(struct kg_writer *w)
{
    if (w->rc == KG_OK) {
        w->rc = kg_fail(w->err, KG_ENOMEM, "chat prompt: out of memory");
    }
}

void kg_writer_id(struct kg_writer *w, uint32_t id)
{
    if (w->rc == KG_OK && kg_ids_push(&w->out->ids, id) != KG_OK) {
        no_memory(w);
    }
}

void kg_writer_plain(struct kg_writer *w, const char *text, size_t n)
{
    if (w->rc == KG_OK &&
        kg_tok_encode(w->chat->tok, w->scratch, KG_TOK_PLAIN, text, n, &w->out->ids) != KG_OK) {
        no_memory(w);
    }
}

void kg_writer_puts(struct kg_writer *w, const char *zstr)
{
    kg_writer_plain(w, zstr, strlen(zstr));
}

void kg_writer_end(struct kg_writer *w)
{
    kg_writer_id(w, w->chat->end);
    if (w->rc == KG_OK && w->out->ids.n >= UINT32_MAX) {
        kg_writer_bad(w, "messages: the prompt has more than 2^32 tokens");
    }
    if (w->rc == KG_OK && kg_ids_push(&w->out->boundaries, (uint32_t)w->out->ids.n) != KG_OK) {
        no_memory(w);
    }
}

/* Whether an object carries cache_control; `part` says where, for errors. */
static bool cache_control(struct kg_writer *w, json_t *o, size_t i, const char *part)
{
    json_t *v = json_object_get(o, "cache_control");
    const char *type = json_string_value(json_object_get(v, "type"));

    if (v == NULL || json_is_null(v)) {
        return false;
    }
    if (type == NULL || strcmp(type, "ephemeral") != 0) {
        kg_writer_bad(w, "messages[%zu]%s.cache_control: wanted {\"type\": \"ephemeral\"}", i,
                      part);
    }
    return true;
}

void kg_writer_mark(struct kg_writer *w, json_t *message, size_t i)
{
    json_t *v = json_object_get(message, "checkpoint");
    json_t *content = json_object_get(message, "content");
    bool wanted = json_is_true(v);

    if (v != NULL && !json_is_null(v) && !json_is_boolean(v)) {
        kg_writer_bad(w, "messages[%zu].checkpoint: wanted true or false", i);
    }
    wanted |= cache_control(w, message, i, "");
    for (size_t k = 0; k < json_array_size(content); k++) {
        char part[40];
        (void)snprintf(part, sizeof(part), ".content[%zu]", k);
        wanted |= cache_control(w, json_array_get(content, k), i, part);
    }
    size_t n = w->out->boundaries.n;
    if (w->rc == KG_OK && wanted && n > 0 &&
        kg_ids_push(&w->out->marks, w->out->boundaries.v[n - 1]) != KG_OK) {
        no_memory(w);
    }
}

enum kg_role kg_message_role(struct kg_writer *w, json_t *message, size_t i)
{
    static const struct {
        const char *name;
        enum kg_role role;
    } roles[] = {
        {"system", KG_ROLE_SYSTEM},       {"developer", KG_ROLE_SYSTEM}, {"user", KG_ROLE_USER},
        {"assistant", KG_ROLE_ASSISTANT}, {"tool", KG_ROLE_TOOL},
    };
    const char *role = json_string_value(json_object_get(message, "role"));
    if (role == NULL) {
        kg_writer_bad(w, "messages[%zu].role: a string is required", i);
        return KG_ROLE_USER;
    }
    /* Also where the role has no use for them: a wrong type is a mistake of the client. */
    (void)kg_message_string(w, message, i, "name");
    (void)kg_message_string(w, message, i, "tool_call_id");
    for (size_t k = 0; k < sizeof(roles) / sizeof(roles[0]); k++) {
        if (strcmp(role, roles[k].name) == 0) {
            return roles[k].role;
        }
    }
    kg_writer_bad(w,
                  "messages[%zu].role: unknown role \"%.40s\", known are system, developer, user, "
                  "assistant, tool",
                  i, role);
    return KG_ROLE_USER;
}

/* A string that would be cut at a zero byte; content is read by length instead. */
static bool has_zero(const json_t *string)
{
    return string != NULL && json_is_string(string) &&
           strlen(json_string_value(string)) != json_string_length(string);
}

const char *kg_message_string(struct kg_writer *w, json_t *message, size_t i, const char *key)
{
    json_t *v = json_object_get(message, key);
    if (v == NULL || json_is_null(v)) {
        return NULL;
    }
    if (!json_is_string(v)) {
        kg_writer_bad(w, "messages[%zu].%s: not a string", i, key);
    } else if (has_zero(v)) {
        kg_writer_bad(w, "messages[%zu].%s: holds a zero byte", i, key);
    }
    return json_string_value(v);
}

bool kg_message_part(struct kg_writer *w, json_t *message, size_t i, size_t k, bool optional,
                     struct kg_span *part)
{
    json_t *content = json_object_get(message, "content");
    if (w->rc != KG_OK) {
        return false;
    }
    if (content == NULL || json_is_null(content)) {
        if (!optional) {
            kg_writer_bad(w, "messages[%zu].content: required for this role", i);
        }
        return false;
    }
    if (json_is_string(content)) {
        *part = (struct kg_span){json_string_value(content), json_string_length(content)};
        return k == 0;
    }
    if (!json_is_array(content)) {
        kg_writer_bad(w, "messages[%zu].content: not a string or a list of parts", i);
        return false;
    }
    if (k >= json_array_size(content)) {
        return false;
    }
    json_t *one = json_array_get(content, k);
    const char *type = json_string_value(json_object_get(one, "type"));
    json_t *text = json_object_get(one, "text");
    if (type == NULL) {
        kg_writer_bad(w, "messages[%zu].content[%zu].type: a string is required", i, k);
    } else if (strcmp(type, "text") != 0) {
        kg_writer_bad(w, "messages[%zu].content[%zu].type: unknown part \"%.40s\", only text works",
                      i, k, type);
    } else if (!json_is_string(text)) {
        kg_writer_bad(w, "messages[%zu].content[%zu].text: a string is required", i, k);
    }
    *part = (struct kg_span){json_string_value(text), json_string_length(text)};
    return w->rc == KG_OK;
}

struct kg_span kg_raw_sub(struct kg_span object, const char *name)
{
    struct kg_span value = {NULL, 0};
    if (object.p == NULL || object.p[0] != '{' || !kg_raw_get(object, name, &value)) {
        return (struct kg_span){NULL, 0};
    }
    return value;
}

static void check_call(struct kg_writer *w, json_t *one, size_t i, size_t k,
                       struct kg_chat_call *call)
{
    json_t *function = json_object_get(one, "function");
    json_t *id = json_object_get(one, "id"), *type = json_object_get(one, "type");
    call->name = json_string_value(json_object_get(function, "name"));
    call->id = json_string_value(id);
    call->arguments = json_object_get(function, "arguments");
    if (json_is_null(call->arguments)) {
        call->arguments = NULL;
    }
    if (id != NULL && !json_is_string(id) && !json_is_null(id)) {
        kg_writer_bad(w, "messages[%zu].tool_calls[%zu].id: not a string", i, k);
    } else if (type != NULL &&
               (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0)) {
        kg_writer_bad(w, "messages[%zu].tool_calls[%zu].type: only \"function\" is known", i, k);
    } else if (!json_is_object(function)) {
        kg_writer_bad(w, "messages[%zu].tool_calls[%zu].function: an object is required", i, k);
    } else if (call->name == NULL || call->name[0] == '\0') {
        kg_writer_bad(w, "messages[%zu].tool_calls[%zu].function.name: a string is required", i, k);
    } else if (has_zero(id) || has_zero(json_object_get(function, "name"))) {
        kg_writer_bad(w, "messages[%zu].tool_calls[%zu]: id or name holds a zero byte", i, k);
    } else if (call->arguments != NULL && !json_is_string(call->arguments) &&
               !json_is_object(call->arguments)) {
        kg_writer_bad(
            w, "messages[%zu].tool_calls[%zu].function.arguments: not a string or an object", i, k);
    }
}

struct kg_chat_call *kg_message_calls(struct kg_writer *w, json_t *message, size_t i,
                                      struct kg_span raw, size_t *n)
{
    json_t *calls = json_object_get(message, "tool_calls");
    *n = 0;
    if (calls == NULL || json_is_null(calls) || w->rc != KG_OK) {
        return NULL;
    }
    if (!json_is_array(calls)) {
        kg_writer_bad(w, "messages[%zu].tool_calls: not a list", i);
        return NULL;
    }
    if (json_array_size(calls) == 0) {
        return NULL;
    }
    struct kg_chat_call *list = calloc(json_array_size(calls), sizeof(*list));
    if (list == NULL) {
        no_memory(w);
        return NULL;
    }
    struct kg_span raw_calls = kg_raw_sub(raw, "tool_calls");
    size_t at = 0;
    for (size_t k = 0; k < json_array_size(calls); k++) {
        struct kg_raw_member m = {0};
        check_call(w, json_array_get(calls, k), i, k, &list[k]);
        if (raw_calls.p != NULL && raw_calls.p[0] == '[' && kg_raw_next(raw_calls, &at, &m)) {
            list[k].raw = kg_raw_sub(kg_raw_sub(m.value, "function"), "arguments");
        }
    }
    if (w->rc != KG_OK) {
        free(list);
        return NULL;
    }
    *n = json_array_size(calls);
    return list;
}

json_t *kg_checked_tools(struct kg_writer *w, json_t *tools, const char *field)
{
    if (tools == NULL || json_is_null(tools) || w->rc != KG_OK) {
        return NULL;
    }
    if (!json_is_array(tools)) {
        kg_writer_bad(w, "%s: not a list", field);
    }
    for (size_t k = 0; k < json_array_size(tools) && w->rc == KG_OK; k++) {
        json_t *one = json_array_get(tools, k), *function = json_object_get(one, "function");
        const char *type = json_string_value(json_object_get(one, "type"));
        const char *name = json_string_value(json_object_get(function, "name"));
        if (type == NULL || strcmp(type, "function") != 0) {
            kg_writer_bad(w, "%s[%zu].type: only \"function\" is known", field, k);
        } else if (name == NULL || name[0] == '\0') {
            kg_writer_bad(w, "%s[%zu].function.name: a string is required", field, k);
        }
    }
    return w->rc == KG_OK && json_array_size(tools) > 0 ? tools : NULL;
}

struct kg_span kg_writer_json(struct kg_writer *w, const json_t *value, struct kg_span raw,
                              enum kg_raw_style style)
{
    struct kg_text plain = {0};
    int rc = w->rc;
    w->tmp.n = 0;
    if (rc == KG_OK && raw.p == NULL) {
        rc = kg_raw_from_json(value, &plain);
        raw = (struct kg_span){plain.v, plain.n};
        if (rc == KG_EINVAL) {
            kg_writer_bad(w, "a JSON value is nested deeper than %d", KG_RAW_MAX_DEPTH);
        }
    }
    if (rc == KG_OK) {
        rc = kg_raw_write(raw, style, &w->tmp);
    }
    kg_text_free(&plain);
    if (rc != KG_OK) {
        no_memory(w);
        w->tmp.n = 0;
    }
    return (struct kg_span){w->tmp.v, w->tmp.n};
}

/* A true or false member; `def` when absent or null. */
static bool flag(struct kg_writer *w, json_t *v, bool def, const char *field)
{
    if (v == NULL || json_is_null(v)) {
        return def;
    }
    if (!json_is_boolean(v)) {
        kg_writer_bad(w, "%s: not true or false", field);
    }
    return json_is_true(v);
}

static void read_effort(struct kg_writer *w, const json_t *request, struct kg_chat_request *req)
{
    json_t *v = json_object_get(request, "reasoning_effort");
    const char *s = json_string_value(v);
    if (v == NULL) {
        req->effort = "max";
    } else if (json_is_null(v)) {
        req->effort = NULL;
    } else if (s == NULL || (strcmp(s, "low") != 0 && strcmp(s, "medium") != 0 &&
                             strcmp(s, "high") != 0 && strcmp(s, "max") != 0)) {
        kg_writer_bad(w, "reasoning_effort: wanted low, medium, high, max or null");
    } else {
        req->effort = s;
    }
}

static void read_choice(struct kg_writer *w, const json_t *request, struct kg_chat_request *req)
{
    json_t *v = json_object_get(request, "tool_choice");
    const char *s = json_string_value(v);
    if (v == NULL || json_is_null(v) || (s != NULL && strcmp(s, "auto") == 0)) {
        return;
    }
    if (s == NULL || (strcmp(s, "none") != 0 && strcmp(s, "required") != 0)) {
        kg_writer_bad(w, "tool_choice: wanted \"auto\", \"none\" or \"required\"");
    }
    req->choice = s;
}

static void read_format(struct kg_writer *w, const json_t *request, struct kg_span raw,
                        struct kg_chat_request *req)
{
    json_t *v = json_object_get(request, "response_format");
    const char *type = json_string_value(json_object_get(v, "type"));
    if (v == NULL || json_is_null(v) || (type != NULL && strcmp(type, "text") == 0)) {
        return;
    }
    if (type == NULL || (strcmp(type, "json_object") != 0 && strcmp(type, "json_schema") != 0)) {
        kg_writer_bad(w, "response_format.type: wanted text, json_object or json_schema");
        return;
    }
    req->format = type;
    if (strcmp(type, "json_object") == 0) {
        return;
    }
    struct kg_span at = kg_raw_sub(raw, "response_format");
    json_t *wrapped = json_object_get(v, "json_schema");
    if (json_is_object(wrapped)) {
        v = wrapped;
        at = kg_raw_sub(at, "json_schema");
    } else if (json_object_get(v, "schema") == NULL) {
        kg_writer_bad(w, "response_format.json_schema: an object is required");
    }
    static const char *const inner[] = {"schema", "json_schema"};
    req->schema = v;
    req->raw_schema = at;
    for (size_t i = 0; i < 2; i++) {
        json_t *s = json_object_get(v, inner[i]);
        if (json_is_object(s)) {
            req->schema = s;
            req->raw_schema = kg_raw_sub(at, inner[i]);
            return;
        }
    }
}

static void read_request(struct kg_writer *w, const json_t *request, struct kg_span raw,
                         struct kg_chat_request *req)
{
    req->messages = json_object_get(request, "messages");
    req->raw_messages = kg_raw_sub(raw, "messages");
    if (!json_is_array(req->messages) || json_array_size(req->messages) == 0) {
        kg_writer_bad(w, "messages: a list of at least one message is required");
        return;
    }
    for (size_t i = 0; i < json_array_size(req->messages); i++) {
        if (!json_is_object(json_array_get(req->messages, i))) {
            kg_writer_bad(w, "messages[%zu]: not an object", i);
        }
    }
    req->tools = kg_checked_tools(w, json_object_get(request, "tools"), "tools");
    req->raw_tools = kg_raw_sub(raw, "tools");
    json_t *extra = json_object_get(request, "chat_template_kwargs");
    if (extra != NULL && !json_is_null(extra) && !json_is_object(extra)) {
        kg_writer_bad(w, "chat_template_kwargs: not an object");
    }
    req->thinking =
        flag(w, json_object_get(extra, "thinking"), true, "chat_template_kwargs.thinking");
    req->generation =
        flag(w, json_object_get(request, "add_generation_prompt"), true, "add_generation_prompt");
    read_effort(w, request, req);
    read_choice(w, request, req);
    read_format(w, request, raw, req);
}

int kg_chat_render(const struct kg_chat *chat, struct kg_tok_scratch *scratch,
                   const json_t *request, struct kg_span raw, struct kg_chat_prompt *out,
                   struct kg_error *err)
{
    struct kg_writer w = {.chat = chat, .scratch = scratch, .out = out, .err = err};
    struct kg_chat_request req = {0};
    struct kg_span body = {NULL, 0};
    out->ids.n = 0;
    out->boundaries.n = 0;
    out->marks.n = 0;
    out->start = KG_START_MESSAGE;
    if (!json_is_object(request)) {
        return kg_fail(err, KG_EINVAL, "request: not a JSON object");
    }
    /* Text this reader is stricter about than the parser was is only not used. */
    if (raw.p != NULL && kg_raw_value(raw, &body) < 0) {
        body = (struct kg_span){NULL, 0};
    }
    read_request(&w, request, body, &req);
    if (w.rc == KG_OK) {
        if (chat->format == KG_CHAT_K3) {
            kg_chat_k3(&w, &req);
        } else {
            kg_chat_linear(&w, &req);
        }
    }
    kg_text_free(&w.tmp);
    return w.rc;
}
