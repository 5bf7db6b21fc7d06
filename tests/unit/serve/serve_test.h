/* What tests of the serve area share: the demo vocabulary and an API around it. */
#ifndef KEDGE_TESTS_UNIT_SERVE_SERVE_TEST_H
#define KEDGE_TESTS_UNIT_SERVE_SERVE_TEST_H

#include "serve/call.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct kg_server_conf conf;
    struct kg_tok *tok;
    struct kg_chat *chat;
    struct kg_tok_scratch *scratch;
    struct kg_api api;
};

/* Options at their defaults, as far as a number or a word says. */
static inline void fixture_defaults(struct kg_server_conf *conf)
{
    for (const struct kg_opt *row = kg_server_opts; row->name != NULL; row++) {
        char *end = NULL;
        unsigned long long v = strtoull(row->def, &end, 10);
        void *field = (char *)conf + row->offset;
        if (*end == 'k')
            v <<= 10;
        else if (*end == 'm')
            v <<= 20;
        if (row->type == KG_OPT_STR)
            *(const char **)field = row->def;
        else if (row->type == KG_OPT_U32)
            *(uint32_t *)field = (uint32_t)v;
        else
            *(uint64_t *)field = v;
    }
}

static inline int fixture_open(void **state)
{
    static struct fixture f;
    struct kg_error err = {0};
    char dir[1024];

    (void)snprintf(dir, sizeof(dir), "%s/tests/models/k3-tiny", getenv("KEDGE_ROOT"));
    fixture_defaults(&f.conf);
    if (kg_tok_open(dir, &f.tok, &err) != KG_OK || kg_chat_open(f.tok, &f.chat, &err) != KG_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    f.scratch = kg_tok_scratch_new(f.tok);
    kg_api_init(&f.api, &f.conf, f.tok, f.chat, "k3-tiny", 1000, 4096);
    *state = &f;
    return f.scratch == NULL ? -1 : 0;
}

static inline int fixture_close(void **state)
{
    struct fixture *f = *state;

    kg_tok_scratch_free(f->scratch);
    kg_chat_close(f->chat);
    kg_tok_close(f->tok);
    return 0;
}

/* Prepares a body into *call (freed first). */
static inline int fixture_prepare(struct fixture *f, enum kg_endpoint ep, const char *body,
                                  struct kg_call *call, struct kg_api_error *err)
{
    kg_call_free(call);
    *err = (struct kg_api_error){0};
    return kg_call_prepare(&f->api, f->scratch, ep, (struct kg_span){body, strlen(body)}, call,
                           err);
}

#endif
