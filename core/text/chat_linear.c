#include "text/chat_impl.h"

#include <stdlib.h>
#include <string.h>

/* Opener, name, <|im_middle|>. */
static void turn_open(struct kg_writer *w, uint32_t opener, const char *name)
{
    kg_writer_id(w, opener);
    kg_writer_puts(w, name);
    kg_writer_id(w, w->chat->middle);
}

/* Everything between two control tokens is one piece, as the format's own template has it. */
static void text_piece(struct kg_writer *w, json_t *message, size_t i, bool optional,
                       const char *before)
{
    struct kg_text text = {0};
    struct kg_span part;
    int rc = kg_text_puts(&text, before);
    for (size_t k = 0; kg_message_part(w, message, i, k, optional, &part); k++) {
        rc = rc == KG_OK ? kg_text_add(&text, part.p, part.n) : rc;
    }
    if (rc != KG_OK && w->rc == KG_OK) {
        w->rc = kg_fail(w->err, rc, "chat prompt: out of memory");
    }
    kg_writer_plain(w, text.v, text.n);
    kg_text_free(&text);
}

/* functions.NAME:INDEX, or the call's own id if that already has this form. */
static int call_label(const struct kg_chat_call *call, size_t index, struct kg_text *out)
{
    size_t n = strlen(call->name);
    const char *id = call->id;
    if (id != NULL && strncmp(id, "functions.", 10) == 0 && strncmp(id + 10, call->name, n) == 0 &&
        id[10 + n] == ':' && id[11 + n] != '\0' &&
        strspn(id + 11 + n, "0123456789") == strlen(id + 11 + n)) {
        return kg_text_puts(out, id);
    }
    char number[24];
    (void)snprintf(number, sizeof(number), ":%zu", index);
    int rc = kg_text_puts(out, "functions.");
    rc = rc == KG_OK ? kg_text_puts(out, call->name) : rc;
    return rc == KG_OK ? kg_text_puts(out, number) : rc;
}

/* The calls of the last assistant message: id -> {label, name}, owned. */
static void assistant_turn(struct kg_writer *w, json_t *message, size_t i, struct kg_span raw,
                           json_t **by_id)
{
    size_t n = 0;
    struct kg_chat_call *calls = kg_message_calls(w, message, i, raw, &n);
    json_decref(*by_id);
    *by_id = json_object();
    text_piece(w, message, i, true, "");
    if (n > 0) {
        kg_writer_id(w, w->chat->calls_begin);
    }
    for (size_t k = 0; k < n && w->rc == KG_OK; k++) {
        struct kg_text label = {0};
        if (call_label(&calls[k], k, &label) != KG_OK) {
            w->rc = kg_fail(w->err, KG_ENOMEM, "chat prompt: out of memory");
            break;
        }
        kg_writer_id(w, w->chat->call_begin);
        kg_writer_plain(w, label.v, label.n);
        kg_writer_id(w, w->chat->call_arg);
        if (json_is_object(calls[k].arguments)) {
            struct kg_span json =
                kg_writer_json(w, calls[k].arguments, calls[k].raw, KG_RAW_SPACED);
            kg_writer_plain(w, json.p, json.n);
        } else if (json_string_length(calls[k].arguments) > 0) {
            kg_writer_plain(w, json_string_value(calls[k].arguments),
                            json_string_length(calls[k].arguments));
        } else {
            kg_writer_puts(w, "{}");
        }
        kg_writer_id(w, w->chat->call_end);
        if (calls[k].id != NULL && json_object_get(*by_id, calls[k].id) == NULL) {
            (void)json_object_set_new(*by_id, calls[k].id,
                                      json_pack("[ss]", label.v, calls[k].name));
        }
        kg_text_free(&label);
    }
    if (n > 0) {
        kg_writer_id(w, w->chat->calls_end);
    }
    free(calls);
}

static void tool_turn(struct kg_writer *w, json_t *message, size_t i, json_t *by_id)
{
    const char *id = kg_message_string(w, message, i, "tool_call_id");
    const char *name = kg_message_string(w, message, i, "name");
    json_t *call = id == NULL ? NULL : json_object_get(by_id, id);
    const char *label = call != NULL ? json_string_value(json_array_get(call, 0)) : id;
    if (name == NULL) {
        name = call != NULL ? json_string_value(json_array_get(call, 1)) : "tool";
    }
    struct kg_text head = {0};
    int rc = kg_text_puts(&head, "## Return of ");
    rc = rc == KG_OK ? kg_text_puts(&head, label != NULL ? label : name) : rc;
    rc = rc == KG_OK ? kg_text_puts(&head, "\n") : rc;
    if (rc != KG_OK && w->rc == KG_OK) {
        w->rc = kg_fail(w->err, rc, "chat prompt: out of memory");
    }
    turn_open(w, w->chat->system, name);
    text_piece(w, message, i, false, rc == KG_OK ? head.v : "");
    kg_text_free(&head);
}

static void one_message(struct kg_writer *w, json_t *message, size_t i, struct kg_span raw,
                        json_t **by_id)
{
    enum kg_role role = kg_message_role(w, message, i);
    const char *name = kg_message_string(w, message, i, "name");
    switch (role) {
    case KG_ROLE_USER:
        turn_open(w, w->chat->user, name != NULL ? name : "user");
        text_piece(w, message, i, false, "");
        break;
    case KG_ROLE_ASSISTANT:
        turn_open(w, w->chat->assistant, name != NULL ? name : "assistant");
        assistant_turn(w, message, i, raw, by_id);
        break;
    case KG_ROLE_TOOL:
        tool_turn(w, message, i, *by_id);
        break;
    default:
        turn_open(w, w->chat->system, name != NULL ? name : "system");
        text_piece(w, message, i, false, "");
        break;
    }
    kg_writer_end(w);
    kg_writer_mark(w, message, i);
}

void kg_chat_linear(struct kg_writer *w, const struct kg_chat_request *req)
{
    if (req->choice != NULL && strcmp(req->choice, "required") == 0) {
        kg_writer_bad(w, "tool_choice: this model's chat format cannot require a tool call");
    }
    if (req->format != NULL) {
        kg_writer_bad(w, "response_format: this model's chat format only has text");
    }
    /* tool_choice none is said by not declaring the tools. */
    if (req->tools != NULL && req->choice == NULL) {
        turn_open(w, w->chat->system, "tool_declare");
        struct kg_span json = kg_writer_json(w, req->tools, req->raw_tools, KG_RAW_TIGHT);
        kg_writer_plain(w, json.p, json.n);
        kg_writer_end(w);
    }
    json_t *by_id = NULL;
    size_t raw_at = 0;
    bool raw = req->raw_messages.p != NULL && req->raw_messages.p[0] == '[';
    for (size_t i = 0; i < json_array_size(req->messages) && w->rc == KG_OK; i++) {
        struct kg_raw_member own = {0};
        raw = raw && kg_raw_next(req->raw_messages, &raw_at, &own);
        one_message(w, json_array_get(req->messages, i), i, own.value, &by_id);
    }
    json_decref(by_id);
    if (req->generation) {
        turn_open(w, w->chat->assistant, "assistant");
        w->out->start = KG_START_RESPONSE;
    }
}
