#include "serve/openai_write.h"

#include <string.h>

static void put_str(struct kg_buf *b, const char *s)
{
    kg_buf_json_str(b, s, strlen(s));
}

/* The word clients map to an exception class. */
static const char *error_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

void kg_write_error(struct kg_buf *b, const struct kg_api_error *err)
{
    kg_buf_puts(b, "{\"error\":{\"message\":");
    put_str(b, err->message);
    kg_buf_printf(b, ",\"type\":\"%s\",\"param\":", error_type(err->status));
    if (err->param[0] != '\0')
        put_str(b, err->param);
    else
        kg_buf_puts(b, "null");
    kg_buf_puts(b, ",\"code\":");
    if (err->code != NULL)
        put_str(b, err->code);
    else
        kg_buf_puts(b, "null");
    kg_buf_puts(b, "}}");
}

void kg_write_open(struct kg_buf *b, const struct kg_envelope *e)
{
    const char *object =
        e->chat ? e->chunk ? "chat.completion.chunk" : "chat.completion" : "text_completion";

    kg_buf_puts(b, "{\"id\":");
    put_str(b, e->id);
    kg_buf_printf(b, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object,
                  (long long)e->created);
    put_str(b, e->model);
    kg_buf_puts(b, ",\"system_fingerprint\":\"kedge-" KG_VERSION "\",\"choices\":[");
}

void kg_write_close(struct kg_buf *b, const struct kg_usage *u, bool with_null)
{
    kg_buf_putc(b, ']');
    if (u != NULL) {
        kg_buf_printf(b,
                      ",\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,"
                      "\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%llu}",
                      (unsigned long long)u->prompt, (unsigned long long)u->completion,
                      (unsigned long long)(u->prompt + u->completion),
                      (unsigned long long)u->cached);
        if (u->verified > 0)
            kg_buf_printf(b,
                          ",\"completion_tokens_details\":{\"accepted_prediction_tokens\":%llu,"
                          "\"rejected_prediction_tokens\":%llu}",
                          (unsigned long long)u->accepted,
                          (unsigned long long)(u->verified - u->accepted));
        kg_buf_putc(b, '}');
    } else if (with_null) {
        kg_buf_puts(b, ",\"usage\":null");
    }
    kg_buf_putc(b, '}');
}

void kg_write_models(struct kg_buf *b, const char *model, int64_t created, uint32_t max_tokens,
                     bool alone)
{
    if (!alone)
        kg_buf_puts(b, "{\"object\":\"list\",\"data\":[");
    kg_buf_puts(b, "{\"id\":");
    put_str(b, model);
    kg_buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"kedge\",\"root\":",
                  (long long)created);
    put_str(b, model);
    kg_buf_printf(b, ",\"parent\":null,\"max_model_len\":%u}%s\n", max_tokens, alone ? "" : "]}");
}
