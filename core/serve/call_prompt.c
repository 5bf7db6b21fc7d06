/* Prompts: text, token ids, lists of either, chats; and the token utilities. */
#include "serve/call.h"

#include <stdlib.h>
#include <string.h>

int kg_call_ids(const struct kg_api *api, const json_t *list, const char *where, struct kg_ids *ids,
                struct kg_api_error *err)
{
    size_t n = json_array_size(list);

    if (kg_ids_reserve(ids, n) != KG_OK)
        return kg_call_no_memory(err);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t x = json_integer_value(v);
        char at[120], what[80];
        if (!json_is_integer(v) || x < 0 || x >= (json_int_t)api->vocab) {
            (void)snprintf(at, sizeof(at), "%.80s[%zu]", where, i);
            return kg_api_refuse(err, at, "%s must be a token id from 0 to %u, not %s", at,
                                 api->vocab - 1, kg_json_describe(v, what, sizeof(what)));
        }
        ids->v[ids->n++] = (uint32_t)x;
    }
    return KG_OK;
}

/* One prompt of a completion: a string or a list of ids. */
static int read_prompt(const struct kg_api *api, struct kg_tok_scratch *scratch, const json_t *v,
                       const char *where, bool echo, struct kg_prompt *p, struct kg_api_error *err)
{
    char what[80];
    int rc = KG_OK;

    if (json_is_array(v)) {
        rc = kg_call_ids(api, v, where, &p->ids, err);
        if (rc == KG_OK && echo && kg_tok_decode(api->tok, p->ids.v, p->ids.n, &p->text) != KG_OK)
            rc = kg_call_no_memory(err);
    } else if (json_is_string(v)) {
        const char *text = json_string_value(v);
        size_t n = json_string_length(v);
        if (kg_tok_encode(api->tok, scratch, KG_TOK_MARKUP, text, n, &p->ids) != KG_OK ||
            (echo && kg_text_add(&p->text, text, n) != KG_OK))
            rc = kg_call_no_memory(err);
    } else {
        rc = kg_api_refuse(err, where, "%s must be a string or an array of token ids, not %s",
                           where, kg_json_describe(v, what, sizeof(what)));
    }
    if (rc == KG_OK && p->ids.n == 0)
        rc = kg_api_refuse(err, where, "%s is empty; at least one token is needed", where);
    return rc;
}

/* A prompt list is one prompt when it holds numbers, many when it holds strings or lists. */
static int read_completion_prompts(const struct kg_api *api, struct kg_tok_scratch *scratch,
                                   const json_t *root, struct kg_call *call,
                                   struct kg_api_error *err)
{
    const json_t *v = kg_json_get(root, "prompt");
    const json_t *first;
    bool many;
    size_t n;
    int rc = KG_OK;

    if (v == NULL)
        return kg_api_refuse(err, "prompt",
                             "prompt is missing; a string, an array of token ids, or an array of "
                             "either was expected");
    first = json_is_array(v) ? json_array_get(v, 0) : NULL;
    many = first != NULL && !json_is_number(first);
    n = many ? json_array_size(v) : 1;
    if (n > api->conf->max_prompts)
        return kg_api_refuse(err, "prompt", "prompt has %zu prompts, at most %u are taken", n,
                             api->conf->max_prompts);
    call->prompts = calloc(n, sizeof(*call->prompts));
    if (call->prompts == NULL)
        return kg_call_no_memory(err);
    call->n_prompts = (uint32_t)n;
    for (size_t i = 0; i < n && rc == KG_OK; i++) {
        char where[32];
        if (many)
            (void)snprintf(where, sizeof(where), "prompt[%zu]", i);
        else
            (void)snprintf(where, sizeof(where), "prompt");
        rc = read_prompt(api, scratch, many ? json_array_get(v, i) : v, where, call->echo,
                         &call->prompts[i], err);
    }
    return rc;
}

/* The renderer's texts begin with the field: "messages[2].content: ...". */
static int refuse_render(const struct kg_error *e, struct kg_api_error *err)
{
    char param[160];
    size_t n =
        strspn(e->text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.[]");

    if (e->rc == KG_ENOMEM)
        return kg_call_no_memory(err);
    while (n > 0 && e->text[n - 1] == '.')
        n--;
    (void)snprintf(param, sizeof(param), "%.*s", n > 150 ? 150 : (int)n, e->text);
    return kg_api_refuse(err, param, "%s", e->text);
}

/* Fields of a chat that the renderer does not judge, or that are limited here. */
static int check_chat(const struct kg_api *api, const json_t *root, struct kg_api_error *err)
{
    const json_t *list = NULL, *choice;
    char what[80];
    int rc;

    if (api->chat == NULL)
        return kg_api_fail(err, 400, "no_chat_format", "",
                           "the vocabulary of this model has no chat format; use /v1/completions");
    rc = kg_json_array(root, "", "messages", &list, err);
    if (rc != KG_OK)
        return rc;
    if (list == NULL || json_array_size(list) == 0)
        return kg_api_refuse(err, "messages",
                             "messages is missing or empty; an array of at least "
                             "one message was expected");
    if (json_array_size(list) > api->conf->max_messages)
        return kg_api_refuse(err, "messages", "messages has %zu messages, at most %u are taken",
                             json_array_size(list), api->conf->max_messages);
    list = NULL;
    rc = kg_json_array(root, "", "tools", &list, err);
    if (rc != KG_OK)
        return rc;
    if (list != NULL && json_array_size(list) > api->conf->max_tools)
        return kg_api_refuse(err, "tools", "tools has %zu tools, at most %u are taken",
                             json_array_size(list), api->conf->max_tools);
    choice = kg_json_get(root, "tool_choice");
    if (choice != NULL && !json_is_string(choice))
        return kg_api_fail(err, 400, "unsupported_parameter", "tool_choice",
                           "tool_choice must be \"auto\", \"none\" or \"required\", not %s",
                           kg_json_describe(choice, what, sizeof(what)));
    if (json_is_string(choice) && strcmp(json_string_value(choice), "required") == 0 &&
        (list == NULL || json_array_size(list) == 0))
        return kg_api_refuse(err, "tool_choice", "tool_choice = \"required\" needs tools");
    return KG_OK;
}

static int render_chat(const struct kg_api *api, struct kg_tok_scratch *scratch, const json_t *root,
                       struct kg_span body, struct kg_chat_prompt *out, struct kg_api_error *err)
{
    struct kg_error e = {0};
    int rc = check_chat(api, root, err);

    if (rc != KG_OK)
        return rc;
    rc = kg_chat_render(api->chat, scratch, root, body, out, &e);
    if (rc != KG_OK) {
        e.rc = rc;
        return refuse_render(&e, err);
    }
    return KG_OK;
}

static int read_chat_prompt(const struct kg_api *api, struct kg_tok_scratch *scratch,
                            const json_t *root, struct kg_span body, struct kg_call *call,
                            struct kg_api_error *err)
{
    struct kg_chat_prompt out = {0};
    int rc = render_chat(api, scratch, root, body, &out, err);

    if (rc == KG_OK) {
        call->prompts = calloc(1, sizeof(*call->prompts));
        if (call->prompts == NULL)
            rc = kg_call_no_memory(err);
    }
    if (rc == KG_OK) {
        call->n_prompts = 1;
        call->start = out.start;
        call->prompts[0].ids = out.ids;
        call->prompts[0].boundaries = out.boundaries;
        call->prompts[0].marks = out.marks;
        return KG_OK;
    }
    kg_chat_prompt_free(&out);
    return rc;
}

/* Answer length of each prompt: what was asked for, or the default, within the context. */
static int set_lengths(const struct kg_api *api, const json_t *root, struct kg_call *call,
                       struct kg_api_error *err)
{
    uint32_t want = UINT32_MAX, chat_want = UINT32_MAX;
    uint32_t min = call->endpoint == KG_EP_COMPLETIONS && call->echo ? 0 : 1;
    int rc = kg_json_u32(root, "", "max_tokens", min, UINT32_MAX - 1, &want, err);

    if (rc == KG_OK && call->endpoint == KG_EP_CHAT)
        rc = kg_json_u32(root, "", "max_completion_tokens", 1, UINT32_MAX - 1, &chat_want, err);
    if (rc != KG_OK)
        return rc;
    if (chat_want != UINT32_MAX)
        want = chat_want;
    call->no_output = want == 0;
    if (want == 0)
        want = 1;
    for (uint32_t i = 0; i < call->n_prompts; i++) {
        struct kg_prompt *p = &call->prompts[i];
        uint32_t rest, max = want;
        if (p->ids.n >= api->max_tokens)
            return kg_api_fail(err, 400, "context_length_exceeded",
                               call->endpoint == KG_EP_CHAT ? "messages" : "prompt",
                               "the prompt has %zu tokens; a sequence may have %u, the answer "
                               "included",
                               p->ids.n, api->max_tokens);
        rest = api->max_tokens - (uint32_t)p->ids.n;
        if (max == UINT32_MAX) {
            max = call->endpoint == KG_EP_COMPLETIONS ? 16 : api->conf->default_max_tokens;
            max = max == 0 || max > rest ? rest : max;
        }
        if (max > rest)
            return kg_api_fail(err, 400, "context_length_exceeded", "max_tokens",
                               "the prompt has %zu tokens and max_tokens asks for %u more; "
                               "together at most %u fit",
                               p->ids.n, max, api->max_tokens);
        if (call->sampling.min_tokens > max)
            return kg_api_refuse(err, "min_tokens", "min_tokens = %u is above max_tokens = %u",
                                 call->sampling.min_tokens, max);
        p->max_tokens = max;
    }
    return KG_OK;
}

int kg_call_prompts(const struct kg_api *api, struct kg_tok_scratch *scratch, const json_t *root,
                    struct kg_span body, struct kg_call *call, struct kg_api_error *err)
{
    int rc = call->endpoint == KG_EP_CHAT ? read_chat_prompt(api, scratch, root, body, call, err)
                                          : read_completion_prompts(api, scratch, root, call, err);

    if (rc == KG_OK && (uint64_t)call->n_prompts * call->n > api->conf->max_sequences)
        rc = kg_api_refuse(err, "n", "%u prompts times n = %u is above %u sequences",
                           call->n_prompts, call->n, api->conf->max_sequences);
    if (rc == KG_OK)
        rc = set_lengths(api, root, call, err);
    return rc;
}

static int tokenize_reply(const struct kg_api *api, const struct kg_ids *ids, bool strings,
                          struct kg_call *call, struct kg_api_error *err)
{
    struct kg_buf *b = &call->reply;

    kg_buf_init(b, 0);
    kg_buf_printf(b, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids->n, api->max_tokens);
    for (size_t i = 0; i < ids->n; i++)
        kg_buf_printf(b, i > 0 ? ",%u" : "%u", ids->v[i]);
    kg_buf_putc(b, ']');
    if (strings) {
        kg_buf_puts(b, ",\"token_strs\":[");
        for (size_t i = 0; i < ids->n; i++) {
            struct kg_span s = kg_tok_bytes(api->tok, ids->v[i]);
            if (i > 0)
                kg_buf_putc(b, ',');
            kg_buf_json_str(b, s.p, s.n);
        }
        kg_buf_putc(b, ']');
    }
    kg_buf_puts(b, "}\n");
    return b->rc == KG_OK ? KG_OK : kg_call_no_memory(err);
}

int kg_call_tokenize(const struct kg_api *api, struct kg_tok_scratch *scratch, const json_t *root,
                     struct kg_span body, struct kg_call *call, struct kg_api_error *err)
{
    struct kg_chat_prompt out = {0};
    bool strings = false;
    int rc = kg_json_bool(root, "", "return_token_strs", &strings, err);

    if (rc != KG_OK)
        return rc;
    if (kg_json_get(root, "messages") != NULL) {
        rc = render_chat(api, scratch, root, body, &out, err);
    } else {
        const json_t *v = kg_json_get(root, "prompt");
        char what[80];
        if (v == NULL)
            rc = kg_api_refuse(err, "prompt", "prompt (a string) or messages is missing");
        else if (!json_is_string(v))
            rc = kg_api_refuse(err, "prompt", "prompt must be a string, not %s",
                               kg_json_describe(v, what, sizeof(what)));
        else if (kg_tok_encode(api->tok, scratch, KG_TOK_MARKUP, json_string_value(v),
                               json_string_length(v), &out.ids) != KG_OK)
            rc = kg_call_no_memory(err);
    }
    if (rc == KG_OK)
        rc = tokenize_reply(api, &out.ids, strings, call, err);
    kg_chat_prompt_free(&out);
    return rc;
}

int kg_call_detokenize(const struct kg_api *api, const json_t *root, struct kg_call *call,
                       struct kg_api_error *err)
{
    const json_t *list = NULL;
    struct kg_ids ids = {0};
    struct kg_text text = {0};
    int rc = kg_json_array(root, "", "tokens", &list, err);

    if (rc == KG_OK && list == NULL)
        rc = kg_api_refuse(err, "tokens", "tokens is missing; an array of token ids was expected");
    if (rc == KG_OK)
        rc = kg_call_ids(api, list, "tokens", &ids, err);
    if (rc == KG_OK && kg_tok_decode(api->tok, ids.v, ids.n, &text) != KG_OK)
        rc = kg_call_no_memory(err);
    if (rc == KG_OK) {
        kg_buf_init(&call->reply, 0);
        kg_buf_puts(&call->reply, "{\"prompt\":");
        kg_buf_json_str(&call->reply, text.v, text.n);
        kg_buf_puts(&call->reply, "}\n");
        if (call->reply.rc != KG_OK)
            rc = kg_call_no_memory(err);
    }
    kg_ids_free(&ids);
    kg_text_free(&text);
    return rc;
}
