/* What serve and run share: the stack, the vocabulary and the chat format of one configuration. */
#ifndef KEDGE_CORE_FRONT_H
#define KEDGE_CORE_FRONT_H

#include "cmd.h"
#include "serve/call.h"
#include "stack.h"

struct kg_front {
    struct kg_config *config;
    struct kg_stack *stack;
    struct kg_tok *tok;
    struct kg_chat *chat;    /* NULL when the vocabulary has no chat format */
    char model_name[256];    /* [server] model_name, or the last part of [model] path */
    struct kg_error no_chat; /* why chat is NULL */
};

/*
 * Opens everything of a finished configuration, which it takes over even when it
 * fails, and creates the engine
 * (not started). KG_ECONFIG when the backend's clock is virtual: clients live in real time.
 */
KG_CHECKED int kg_front_open(struct kg_front *front, struct kg_config *config,
                             struct kg_error *err);
/* Closes in reverse; a half-open one too. */
void kg_front_close(struct kg_front *front);
/* One line a fact on stderr: what will run, with which plugins, and what fits. */
void kg_front_print(const struct kg_front *front);

/* Asks the system for n open descriptors and some more. False when fewer are allowed. */
bool kg_front_files(uint32_t n);

#endif
