#include "text/parser_impl.h"

#include <string.h>

/* functions.NAME:INDEX in p->head; the whole of it is the call's id. */
static int begin_call(struct kg_parser *p)
{
    int rc = kg_parser_head_end(p);
    if (rc == KG_OK) {
        rc = kg_parser_go(p, KG_AT_TOOLS);
    }
    if (rc != KG_OK || p->head_overflow) {
        return rc;
    }
    char *id = p->head.v;
    size_t n = strlen(id);
    while (n > 0 && strchr(" \t\r\n", id[n - 1]) != NULL) {
        id[--n] = '\0';
    }
    id += strspn(id, " \t\r\n");
    n = strlen(id);
    const char *from = strncmp(id, "functions.", 10) == 0 ? id + 10 : id;
    const char *colon = strrchr(from, ':');
    size_t name_n =
        colon != NULL && colon[1] != '\0' && strspn(colon + 1, "0123456789") == strlen(colon + 1)
            ? (size_t)(colon - from)
            : strlen(from);
    if (name_n == 0) {
        return KG_OK;
    }
    struct kg_text name = {0};
    rc = kg_text_add(&name, from, name_n);
    if (rc == KG_OK) {
        rc = kg_parser_call(p, name.v, id);
        p->place = KG_AT_RAW;
    }
    kg_text_free(&name);
    return rc;
}

/* Ends the open call; one whose arguments never began has none. */
static int end_call(struct kg_parser *p)
{
    if (p->place == KG_AT_HEAD) {
        int rc = p->head_of == p->chat->call_begin ? begin_call(p) : kg_parser_head_end(p);
        if (rc != KG_OK) {
            return rc;
        }
    }
    return kg_parser_call_end(p);
}

static int go(struct kg_parser *p, enum kg_place place)
{
    int rc = end_call(p);
    p->begun = true;
    return rc == KG_OK ? kg_parser_go(p, place) : rc;
}

static int control(struct kg_parser *p, uint32_t id)
{
    const struct kg_chat *c = p->chat;
    if (id == c->end || id == c->eos) {
        int rc = end_call(p);
        return rc == KG_OK ? kg_parser_end(p) : rc;
    }
    if (id == c->calls_begin) {
        return go(p, KG_AT_TOOLS);
    }
    if (id == c->calls_end) {
        return go(p, KG_AT_RESPONSE);
    }
    if (id == c->call_begin) {
        int rc = go(p, KG_AT_TOOLS);
        return rc == KG_OK ? kg_parser_head(p, id) : rc;
    }
    if (id == c->call_arg) {
        return p->place == KG_AT_HEAD && p->head_of == c->call_begin ? begin_call(p) : KG_OK;
    }
    if (id == c->call_end) {
        return p->call_open || p->place == KG_AT_HEAD ? go(p, KG_AT_TOOLS) : KG_OK;
    }
    if (id == c->assistant || id == c->user || id == c->system) {
        if (p->begun) {
            int rc = end_call(p);
            p->begun = false; /* with past_end, the next turn's header follows */
            rc = rc == KG_OK ? kg_parser_end(p) : rc;
            return rc == KG_OK && p->past_end ? kg_parser_head(p, id) : rc;
        }
        return kg_parser_head(p, id);
    }
    if (id == c->middle && p->place == KG_AT_HEAD && p->head_of != c->call_begin) {
        int rc = kg_parser_head_end(p);
        p->begun = true;
        return rc == KG_OK ? kg_parser_go(p, KG_AT_RESPONSE) : rc;
    }
    return KG_OK;
}

int kg_parser_linear(struct kg_parser *p, uint32_t id)
{
    if (kg_tok_is_control(p->tok, id)) {
        return control(p, id);
    }
    struct kg_span s = kg_tok_bytes(p->tok, id);
    return kg_parser_text(p, s.p, s.n);
}
