#include "text/parser_impl.h"

#include <string.h>

/*
 * Value of an attribute ` key="value"` in the header behind the tag name, unescaped into *out.
 * false if it is not there.
 */
static bool attribute(struct kg_span head, const char *key, struct kg_text *out, int *rc)
{
    size_t n = strlen(key), i = 0;
    while (i < head.n) {
        while (i < head.n && head.p[i] == ' ') {
            i++;
        }
        size_t from = i;
        while (i < head.n && head.p[i] != '=') {
            i++;
        }
        size_t name_n = i - from;
        if (head.n - i < 2 || head.p[i + 1] != '"') {
            return false;
        }
        const char *value = head.p + i + 2;
        const char *quote = memchr(value, '"', head.n - i - 2);
        if (quote == NULL) {
            return false;
        }
        if (name_n != n || memcmp(head.p + from, key, n) != 0) {
            i = (size_t)(quote - head.p) + 1;
            continue;
        }
        out->n = 0;
        *rc = kg_text_reserve(out, (size_t)(quote - value));
        for (const char *c = value; c < quote && *rc == KG_OK; c++) {
            size_t left = (size_t)(quote - c);
            if (left >= 5 && memcmp(c, "&amp;", 5) == 0) {
                *rc = kg_text_puts(out, "&");
                c += 4;
            } else if (left >= 6 && memcmp(c, "&quot;", 6) == 0) {
                *rc = kg_text_puts(out, "\"");
                c += 5;
            } else {
                *rc = kg_text_add(out, c, 1);
            }
        }
        return *rc == KG_OK && kg_text_add(out, "", 0) == KG_OK;
    }
    return false;
}

static bool is(struct kg_span tag, const char *word)
{
    return tag.n == strlen(word) && memcmp(tag.p, word, tag.n) == 0;
}

static bool in_call(const struct kg_parser *p)
{
    return p->call_open;
}

/* Leaves think, response or a call, whichever is open, for `place`. */
static int element(struct kg_parser *p, enum kg_place place)
{
    int rc = kg_parser_call_end(p);
    p->begun = true;
    return rc == KG_OK ? kg_parser_go(p, place) : rc;
}

static int open_call(struct kg_parser *p, struct kg_span attributes)
{
    int rc = element(p, KG_AT_TOOLS);
    struct kg_text name = {0};
    if (rc == KG_OK && !p->head_overflow && attribute(attributes, "tool", &name, &rc) &&
        name.n > 0) {
        rc = kg_parser_call(p, name.v, NULL);
    }
    kg_text_free(&name);
    return rc;
}

static int open_argument(struct kg_parser *p, struct kg_span attributes)
{
    struct kg_text key = {0}, type = {0};
    int rc = kg_parser_go(p, KG_AT_CALL);
    bool has_key = rc == KG_OK && !p->head_overflow && attribute(attributes, "key", &key, &rc);
    bool has_type = rc == KG_OK && attribute(attributes, "type", &type, &rc);
    if (rc == KG_OK && has_key && !p->whole) {
        rc = kg_parser_argument(p, (struct kg_span){key.v, key.n},
                                !has_type || strcmp(type.v, "string") == 0);
    }
    kg_text_free(&key);
    kg_text_free(&type);
    return rc;
}

static int open_json(struct kg_parser *p)
{
    int rc = kg_parser_go(p, KG_AT_CALL);
    if (rc == KG_OK && p->n_args == 0 && !p->whole) {
        p->whole = true;
        p->value.n = 0;
        p->place = KG_AT_VALUE;
    }
    return rc;
}

/* An unknown element is only a stray marker: what is in it belongs to what is around it. */
static int opened(struct kg_parser *p, struct kg_span tag, struct kg_span attributes)
{
    if (is(tag, "message")) {
        return p->begun ? kg_parser_end(p) : KG_OK;
    }
    if (is(tag, "think")) {
        return element(p, KG_AT_THINK);
    }
    if (is(tag, "response")) {
        return element(p, KG_AT_RESPONSE);
    }
    if (is(tag, "tools")) {
        return element(p, KG_AT_TOOLS);
    }
    if (is(tag, "call")) {
        return open_call(p, attributes);
    }
    if (is(tag, "argument") && in_call(p)) {
        return open_argument(p, attributes);
    }
    if (is(tag, "json") && in_call(p)) {
        return open_json(p);
    }
    return KG_OK;
}

static int closed(struct kg_parser *p, struct kg_span tag)
{
    bool talk = p->place == KG_AT_THINK || p->place == KG_AT_RESPONSE;
    if (is(tag, "message")) {
        return kg_parser_end(p);
    }
    if ((is(tag, "think") && p->place == KG_AT_THINK) || (is(tag, "response") && talk)) {
        return kg_parser_go(p, KG_AT_MESSAGE);
    }
    if (is(tag, "tools") && !talk && p->place != KG_AT_MESSAGE) {
        return element(p, KG_AT_MESSAGE);
    }
    if (is(tag, "call")) {
        return kg_parser_call_end(p);
    }
    if ((is(tag, "argument") && (p->place == KG_AT_STRING || p->place == KG_AT_VALUE)) ||
        (is(tag, "json") && p->place == KG_AT_VALUE)) {
        return kg_parser_go(p, KG_AT_CALL);
    }
    return KG_OK;
}

static int header(struct kg_parser *p)
{
    int rc = kg_parser_head_end(p);
    if (rc != KG_OK) {
        return rc;
    }
    const char *space = memchr(p->head.v, ' ', p->head.n);
    struct kg_span tag = {p->head.v, space != NULL ? (size_t)(space - p->head.v) : p->head.n};
    struct kg_span rest = {p->head.v + tag.n, p->head.n - tag.n};
    return p->head_of == p->chat->open ? opened(p, tag, rest) : closed(p, tag);
}

int kg_parser_k3(struct kg_parser *p, uint32_t id)
{
    if (!kg_tok_is_control(p->tok, id)) {
        struct kg_span s = kg_tok_bytes(p->tok, id);
        return kg_parser_text(p, s.p, s.n);
    }
    if (id == p->chat->open || id == p->chat->close) {
        return kg_parser_head(p, id);
    }
    if (id == p->chat->sep) {
        return p->place == KG_AT_HEAD ? header(p) : KG_OK;
    }
    if (id == p->chat->end || id == p->chat->eos) {
        int rc = p->place == KG_AT_HEAD ? kg_parser_head_end(p) : KG_OK;
        return rc == KG_OK ? kg_parser_end(p) : rc;
    }
    return KG_OK;
}
