/* The pile of a choice as JSON: deltas of a stream, or the whole. */
#include "serve/answer.h"

#include <string.h>

bool kg_answer_has_news(const struct kg_answer *c)
{
    for (uint32_t i = 0; i < c->n_calls; i++) {
        if (c->calls[i].touched)
            return true;
    }
    return c->content.len > 0 || c->reasoning.len > 0 || c->lp_main.len > 0 ||
           c->token_ids.len > 0 || c->finish != NULL;
}

static void write_finish(const struct kg_answer *c, struct kg_buf *b)
{
    if (c->finish == NULL) {
        kg_buf_puts(b, ",\"finish_reason\":null");
        return;
    }
    kg_buf_puts(b, ",\"finish_reason\":\"");
    kg_buf_puts(b, c->finish);
    kg_buf_putc(b, '"');
}

static void write_ids(const struct kg_answer *c, struct kg_buf *b)
{
    if (!c->call->return_token_ids)
        return;
    kg_buf_puts(b, ",\"token_ids\":[");
    kg_buf_add(b, kg_buf_cstr(&c->token_ids), c->token_ids.len);
    kg_buf_putc(b, ']');
}

static void write_prompt_ids(const struct kg_answer *c, struct kg_buf *b)
{
    const struct kg_ids *p = &c->call->prompts[c->prompt].ids;

    if (!c->call->return_token_ids)
        return;
    kg_buf_puts(b, ",\"prompt_token_ids\":[");
    for (size_t i = 0; i < p->n; i++) {
        if (i > 0)
            kg_buf_putc(b, ',');
        kg_buf_put_u64(b, p->v[i]);
    }
    kg_buf_putc(b, ']');
}

static void write_list(struct kg_buf *b, const char *name, const struct kg_buf *items)
{
    kg_buf_puts(b, name);
    kg_buf_add(b, kg_buf_cstr(items), items->len);
    kg_buf_putc(b, ']');
}

static void write_logprobs(const struct kg_answer *c, struct kg_buf *b)
{
    kg_buf_puts(b, ",\"logprobs\":");
    if (!c->call->logprobs) {
        kg_buf_puts(b, "null");
    } else if (c->call->endpoint == KG_EP_CHAT) {
        write_list(b, "{\"content\":[", &c->lp_main);
        kg_buf_puts(b, ",\"refusal\":null}");
    } else {
        write_list(b, "{\"tokens\":[", &c->lp_main);
        write_list(b, ",\"token_logprobs\":[", &c->lp_values);
        if (c->call->sampling.n_logprobs > 0)
            write_list(b, ",\"top_logprobs\":[", &c->lp_top);
        else
            kg_buf_puts(b, ",\"top_logprobs\":null");
        write_list(b, ",\"text_offset\":[", &c->lp_offset);
        kg_buf_putc(b, '}');
    }
}

static void empty(struct kg_answer *c)
{
    kg_buf_reset(&c->content);
    kg_buf_reset(&c->reasoning);
    kg_buf_reset(&c->lp_main);
    kg_buf_reset(&c->lp_values);
    kg_buf_reset(&c->lp_top);
    kg_buf_reset(&c->lp_offset);
    kg_buf_reset(&c->token_ids);
    for (uint32_t i = 0; i < c->n_calls; i++) {
        kg_buf_reset(&c->calls[i].args);
        c->calls[i].fresh = c->calls[i].touched = false;
    }
}

static void write_index(const struct kg_answer *c, struct kg_buf *b)
{
    kg_buf_puts(b, "{\"index\":");
    kg_buf_put_u64(b, c->index);
}

static void write_delta_calls(const struct kg_answer *c, struct kg_buf *b, const char *comma)
{
    bool open = false;

    for (uint32_t i = 0; i < c->n_calls; i++) {
        const struct kg_tool_call *t = &c->calls[i];
        if (!t->touched)
            continue;
        if (open)
            kg_buf_putc(b, ',');
        else
            kg_buf_printf(b, "%s\"tool_calls\":[", comma);
        open = true;
        kg_buf_puts(b, "{\"index\":");
        kg_buf_put_u64(b, i);
        if (t->fresh) {
            kg_buf_puts(b, ",\"id\":");
            kg_buf_json_str(b, t->id, strlen(t->id));
            kg_buf_puts(b, ",\"type\":\"function\",\"function\":{\"name\":");
            kg_buf_json_str(b, t->name, strlen(t->name));
            kg_buf_puts(b, ",\"arguments\":");
        } else {
            kg_buf_puts(b, ",\"function\":{\"arguments\":");
        }
        kg_buf_json_str(b, kg_buf_cstr(&t->args), t->args.len);
        kg_buf_puts(b, "}}");
    }
    if (open)
        kg_buf_putc(b, ']');
}

void kg_answer_write_role(struct kg_answer *c, struct kg_buf *b)
{
    write_index(c, b);
    kg_buf_puts(b, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                   "\"logprobs\":null,\"finish_reason\":null");
    write_prompt_ids(c, b);
    kg_buf_putc(b, '}');
    c->role_sent = true;
}

static void write_chat_delta(const struct kg_answer *c, struct kg_buf *b)
{
    const char *comma = "";

    write_index(c, b);
    kg_buf_puts(b, ",\"delta\":{");
    if (c->reasoning.len > 0) {
        kg_buf_puts(b, "\"reasoning_content\":");
        kg_buf_json_str(b, c->reasoning.data, c->reasoning.len);
        comma = ",";
    }
    if (c->content.len > 0) {
        kg_buf_puts(b, comma);
        kg_buf_puts(b, "\"content\":");
        kg_buf_json_str(b, c->content.data, c->content.len);
        comma = ",";
    }
    write_delta_calls(c, b, comma);
    kg_buf_putc(b, '}');
    if (c->lp_main.len > 0)
        write_logprobs(c, b);
    else
        kg_buf_puts(b, ",\"logprobs\":null");
    write_finish(c, b);
    write_ids(c, b);
    kg_buf_putc(b, '}');
}

static void write_text(const struct kg_answer *c, struct kg_buf *b, bool first)
{
    write_index(c, b);
    kg_buf_puts(b, ",\"text\":");
    kg_buf_json_str(b, kg_buf_cstr(&c->content), c->content.len);
    write_logprobs(c, b);
    write_finish(c, b);
    write_ids(c, b);
    if (first)
        write_prompt_ids(c, b);
    kg_buf_putc(b, '}');
}

void kg_answer_write_delta(struct kg_answer *c, struct kg_buf *b)
{
    if (c->call->endpoint == KG_EP_CHAT)
        write_chat_delta(c, b);
    else
        write_text(c, b, !c->role_sent);
    c->role_sent = true;
    empty(c);
}

static void write_message(const struct kg_answer *c, struct kg_buf *b)
{
    write_index(c, b);
    kg_buf_puts(b, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->content.len > 0 || c->n_calls == 0)
        kg_buf_json_str(b, kg_buf_cstr(&c->content), c->content.len);
    else
        kg_buf_puts(b, "null");
    kg_buf_puts(b, ",\"refusal\":null,\"reasoning_content\":");
    if (c->reasoning.len > 0)
        kg_buf_json_str(b, c->reasoning.data, c->reasoning.len);
    else
        kg_buf_puts(b, "null");
    for (uint32_t i = 0; i < c->n_calls; i++) {
        const struct kg_tool_call *t = &c->calls[i];
        kg_buf_puts(b, i == 0 ? ",\"tool_calls\":[{\"id\":" : ",{\"id\":");
        kg_buf_json_str(b, t->id, strlen(t->id));
        kg_buf_puts(b, ",\"type\":\"function\",\"function\":{\"name\":");
        kg_buf_json_str(b, t->name, strlen(t->name));
        kg_buf_puts(b, ",\"arguments\":");
        kg_buf_json_str(b, kg_buf_cstr(&t->args), t->args.len);
        kg_buf_puts(b, i + 1 == c->n_calls ? "}}]" : "}}");
    }
    kg_buf_putc(b, '}');
    write_logprobs(c, b);
    write_finish(c, b);
    write_ids(c, b);
    write_prompt_ids(c, b);
    kg_buf_putc(b, '}');
}

void kg_answer_write(struct kg_answer *c, struct kg_buf *b)
{
    if (c->call->endpoint == KG_EP_CHAT)
        write_message(c, b);
    else
        write_text(c, b, true);
}
