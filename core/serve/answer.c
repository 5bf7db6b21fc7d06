/* Tokens in: parsing, stop strings, piling up. Writing is answer_write.c. */
#include "serve/answer.h"

#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int on_reasoning(void *user, const char *text, size_t n)
{
    struct kg_answer *c = user;

    return c->call->include_reasoning ? kg_buf_add(&c->reasoning, text, n) : KG_OK;
}

static int on_content(void *user, const char *text, size_t n)
{
    struct kg_answer *c = user;

    return kg_buf_add(&c->content, text, n);
}

static int on_tool_begin(void *user, uint32_t index, const char *id, const char *name)
{
    struct kg_answer *c = user;
    struct kg_tool_call *t;

    if (c->call->one_call && index > 0)
        return KG_OK;
    if (c->n_calls == c->cap_calls) {
        uint32_t cap = c->cap_calls * 2 + 4;
        t = realloc(c->calls, cap * sizeof(*t));
        if (t == NULL)
            return KG_ENOMEM;
        c->calls = t;
        c->cap_calls = cap;
    }
    t = &c->calls[c->n_calls];
    *t = (struct kg_tool_call){.id = strdup(id), .name = strdup(name), .fresh = true};
    t->touched = true;
    kg_buf_init(&t->args, c->content.max);
    if (t->id == NULL || t->name == NULL) {
        free(t->id);
        free(t->name);
        return KG_ENOMEM;
    }
    c->n_calls++;
    return KG_OK;
}

static int on_tool_args(void *user, uint32_t index, const char *json, size_t n)
{
    struct kg_answer *c = user;

    if (index >= c->n_calls) /* dropped: one_call */
        return KG_OK;
    c->calls[index].touched = true;
    return kg_buf_add(&c->calls[index].args, json, n);
}

int kg_answer_open(struct kg_answer *c, const struct kg_api *api, const struct kg_call *call,
                   uint32_t index, uint32_t prompt, struct kg_error *err)
{
    const struct kg_prompt *p = &call->prompts[prompt];
    struct kg_parser_opts opts = {0};
    struct kg_buf *bufs[] = {&c->content, &c->reasoning, &c->lp_main,  &c->lp_values,
                             &c->lp_top,  &c->lp_offset, &c->token_ids};
    bool chat = call->endpoint == KG_EP_CHAT;
    int rc;

    *c = (struct kg_answer){.api = api, .call = call, .index = index, .prompt = prompt};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        kg_buf_init(bufs[i], api->conf->reply_bytes);
    opts.sink = (struct kg_parse_sink){.user = c,
                                       .reasoning = on_reasoning,
                                       .content = on_content,
                                       .tool_begin = on_tool_begin,
                                       .tool_args = on_tool_args};
    opts.start = call->start;
    opts.text = (struct kg_detok_opts){.stops = call->stops,
                                       .n_stops = call->n_stops,
                                       .keep_stop = call->keep_stop,
                                       .show_special = !chat && !call->skip_special};
    opts.past_end = call->sampling.ignore_eos != 0;
    rc = kg_parser_new(api->tok, chat ? api->chat : NULL, &opts, &c->parser, err);
    if (rc == KG_OK && call->echo) {
        rc = kg_buf_add(&c->content, p->text.v, p->text.n);
        if (rc == KG_OK && call->logprobs)
            rc = kg_answer_echo(c, 1, NULL, 0); /* nothing comes before the first token */
    }
    if (rc != KG_OK)
        kg_answer_close(c);
    return rc;
}

void kg_answer_close(struct kg_answer *c)
{
    struct kg_buf *bufs[] = {&c->content, &c->reasoning, &c->lp_main,  &c->lp_values,
                             &c->lp_top,  &c->lp_offset, &c->token_ids};

    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        kg_buf_fini(bufs[i]);
    for (uint32_t i = 0; i < c->n_calls; i++) {
        free(c->calls[i].id);
        free(c->calls[i].name);
        kg_buf_fini(&c->calls[i].args);
    }
    free(c->calls);
    kg_parser_free(c->parser);
    *c = (struct kg_answer){0};
}

/* A token as the string of a log probability list. */
static void put_token(struct kg_buf *b, const struct kg_answer *c, uint32_t id)
{
    struct kg_span s = kg_tok_bytes(c->api->tok, id);

    if (c->call->tokens_as_ids)
        kg_buf_printf(b, "\"token_id:%u\"", id);
    else
        kg_buf_json_str(b, s.p, s.n);
}

/* JSON has no infinity: a token that cannot be picked gets the value other servers give it. */
static void put_logprob(struct kg_buf *b, float v)
{
    if (isfinite(v))
        kg_buf_printf(b, "%.9g", (double)v);
    else
        kg_buf_puts(b, "-9999.0");
}

static void put_bytes(struct kg_buf *b, struct kg_span s)
{
    kg_buf_putc(b, '[');
    for (size_t i = 0; i < s.n; i++) {
        if (i > 0)
            kg_buf_putc(b, ',');
        kg_buf_put_u64(b, (unsigned char)s.p[i]);
    }
    kg_buf_putc(b, ']');
}

/* {"token":..,"logprob":..,"bytes":[..] without the closing brace. */
static void put_chat_entry(struct kg_buf *b, const struct kg_answer *c, struct kg_logprob lp)
{
    kg_buf_puts(b, "{\"token\":");
    put_token(b, c, lp.id);
    kg_buf_puts(b, ",\"logprob\":");
    put_logprob(b, lp.logprob);
    kg_buf_puts(b, ",\"bytes\":");
    put_bytes(b, kg_tok_bytes(c->api->tok, lp.id));
}

static void add_chat_logprob(struct kg_answer *c, const struct kg_logprob *lp, uint32_t n)
{
    struct kg_buf *b = &c->lp_main;

    if (b->len > 0)
        kg_buf_putc(b, ',');
    put_chat_entry(b, c, lp[0]);
    kg_buf_puts(b, ",\"top_logprobs\":[");
    for (uint32_t i = 1; i < n; i++) {
        if (i > 1)
            kg_buf_putc(b, ',');
        put_chat_entry(b, c, lp[i]);
        kg_buf_putc(b, '}');
    }
    kg_buf_puts(b, "]}");
}

/*
 * {"token": value, ...}: the alternatives and the token itself, each string once. Strings are
 * compared as written: broken bytes all look alike once they are U+FFFD.
 */
static void add_top_map(struct kg_answer *c, const struct kg_logprob *lp, uint32_t n)
{
    struct kg_buf *b = &c->lp_top;
    struct {
        size_t at, n;
    } keys[KG_MAX_LOGPROBS + 1];
    uint32_t n_keys = 0;

    kg_buf_putc(b, '{');
    for (uint32_t i = 0; i < n && i <= KG_MAX_LOGPROBS; i++) {
        size_t before = b->len;
        bool seen = false;
        if (i > 0)
            kg_buf_putc(b, ',');
        keys[n_keys].at = b->len;
        put_token(b, c, lp[i].id);
        if (b->rc != KG_OK)
            return;
        keys[n_keys].n = b->len - keys[n_keys].at;
        for (uint32_t j = 0; j < n_keys && !seen; j++)
            seen = keys[j].n == keys[n_keys].n &&
                   memcmp(b->data + keys[j].at, b->data + keys[n_keys].at, keys[j].n) == 0;
        if (seen) {
            b->len = before;
            b->data[b->len] = '\0';
            continue;
        }
        n_keys++;
        kg_buf_putc(b, ':');
        put_logprob(b, lp[i].logprob);
    }
    kg_buf_putc(b, '}');
}

static uint64_t count_chars(struct kg_span s)
{
    uint64_t n = 0;
    uint32_t cp;

    for (size_t i = 0; i < s.n; n++) {
        size_t len = kg_utf8_decode(s.p + i, s.n - i, &cp);
        i += len > 0 ? len : kg_utf8_broken(s.p + i, s.n - i);
    }
    return n;
}

/* lp NULL: a token with nothing before it. */
static void add_text_logprob(struct kg_answer *c, uint32_t id, const struct kg_logprob *lp,
                             uint32_t n)
{
    if (c->lp_main.len > 0) {
        kg_buf_putc(&c->lp_main, ',');
        kg_buf_putc(&c->lp_values, ',');
        kg_buf_putc(&c->lp_top, ',');
        kg_buf_putc(&c->lp_offset, ',');
    }
    put_token(&c->lp_main, c, id);
    kg_buf_put_u64(&c->lp_offset, c->offset);
    c->offset += count_chars(kg_tok_bytes(c->api->tok, id));
    if (lp == NULL || n == 0) {
        kg_buf_puts(&c->lp_values, "null");
        kg_buf_puts(&c->lp_top, "null");
        return;
    }
    put_logprob(&c->lp_values, lp[0].logprob);
    add_top_map(c, lp, n);
}

uint64_t kg_answer_bytes(const struct kg_answer *c)
{
    uint64_t n = c->content.len + c->reasoning.len + c->lp_main.len + c->lp_values.len +
                 c->lp_top.len + c->lp_offset.len + c->token_ids.len;

    for (uint32_t i = 0; i < c->n_calls; i++)
        n += c->calls[i].args.len;
    return n;
}

static int pile_state(const struct kg_answer *c)
{
    const struct kg_buf *bufs[] = {&c->content, &c->reasoning, &c->lp_main,  &c->lp_values,
                                   &c->lp_top,  &c->lp_offset, &c->token_ids};

    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++) {
        if (bufs[i]->rc != KG_OK)
            return bufs[i]->rc;
    }
    return KG_OK;
}

int kg_answer_echo(struct kg_answer *c, uint32_t n, const struct kg_logprob *logprobs,
                   uint32_t n_logprobs)
{
    const struct kg_ids *ids = &c->call->prompts[c->prompt].ids;

    for (uint32_t i = 0; i < n && c->n_echoed < ids->n; i++)
        add_text_logprob(c, ids->v[c->n_echoed++],
                         logprobs != NULL ? logprobs + (size_t)i * n_logprobs : NULL, n_logprobs);
    return pile_state(c);
}

/* A token of text that ends the request is not part of the text, as a stop string is not. */
static bool is_silent_stop(const struct kg_answer *c, uint32_t id)
{
    const struct kg_sampling *s = &c->call->sampling;

    if (c->call->keep_stop || kg_tok_is_control(c->api->tok, id))
        return false;
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == id)
            return true;
    }
    return false;
}

static void add_logprob(struct kg_answer *c, uint32_t id, const struct kg_logprob *lp, uint32_t n)
{
    if (c->call->endpoint == KG_EP_COMPLETIONS)
        add_text_logprob(c, id, lp, n);
    else if (kg_parser_channel(c->parser) == KG_CHANNEL_CONTENT)
        add_chat_logprob(c, lp, n);
}

int kg_answer_tokens(struct kg_answer *c, const uint32_t *ids, uint32_t n,
                     const struct kg_logprob *logprobs, uint32_t n_logprobs)
{
    bool with_logprobs = c->call->logprobs && logprobs != NULL && n_logprobs > 0;

    for (uint32_t i = 0; i < n && !c->stopped && !c->call->no_output;) {
        /* One at a time where the channel of each token is asked for. */
        uint32_t take = with_logprobs ? 1 : n - i;
        size_t used = 0;
        int rc = 0;

        for (uint32_t j = 1; j < take; j++) {
            if (is_silent_stop(c, ids[i + j]))
                take = j;
        }
        if (is_silent_stop(c, ids[i]))
            used = 1;
        else
            rc = kg_parser_push(c->parser, ids + i, take, &used);
        if (rc < 0)
            return rc;
        c->stopped = rc == 1;
        if (with_logprobs && used > 0)
            add_logprob(c, ids[i], logprobs + (size_t)i * n_logprobs, n_logprobs);
        for (size_t j = 0; c->call->return_token_ids && j < used; j++) {
            if (c->token_ids.len > 0)
                kg_buf_putc(&c->token_ids, ',');
            kg_buf_put_u64(&c->token_ids, ids[i + j]);
        }
        c->n_tokens += (uint32_t)used;
        i += take;
    }
    if (pile_state(c) != KG_OK)
        return pile_state(c);
    return c->stopped ? 1 : 0;
}

int kg_answer_finish(struct kg_answer *c, bool length)
{
    int rc = c->call->no_output ? KG_OK : kg_parser_finish(c->parser);

    if (rc < 0)
        return rc;
    /* The engine may have run to its limit before it heard of the stop string. */
    if (c->stopped)
        c->finish = "stop";
    else if (length || c->call->no_output)
        c->finish = "length";
    else
        c->finish = c->n_calls > 0 ? "tool_calls" : "stop";
    return pile_state(c);
}
