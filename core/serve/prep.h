/*
 * Preparation threads: long bodies are parsed and tokenised here, so that a prompt of a million
 * tokens does not hold up everybody's streams. One ring of pointers in each direction per thread;
 * a task belongs to the thread from submit until it comes out of kg_prep_next.
 */
#ifndef KEDGE_SERVE_PREP_H
#define KEDGE_SERVE_PREP_H

#include "serve/call.h"

struct kg_prep;

/* One body on its way. The owner fills the first part, the thread the second. */
struct kg_prep_task {
    enum kg_endpoint endpoint;
    struct kg_span body; /* lives until the task is back */
    struct kg_call call; /* all zero before */
    struct kg_api_error err;
    int rc;
};

/* Starts conf->prep_threads threads. `api` is borrowed. KG_ENOMEM, KG_EIO. */
KG_CHECKED int kg_prep_create(const struct kg_api *api, struct kg_prep **prep,
                              struct kg_error *err);
/* Ends the threads after their current task. Tasks not handed back are the owner's again. */
void kg_prep_destroy(struct kg_prep *prep); /* NULL is allowed */

/* Loop thread. KG_EAGAIN when conf->prep_queue tasks wait for each thread. */
KG_CHECKED int kg_prep_submit(struct kg_prep *prep, struct kg_prep_task *task);
/* A task that is done, NULL when there is none. Loop thread. */
struct kg_prep_task *kg_prep_next(struct kg_prep *prep);
/* Threads, and the descriptor of one that is readable while kg_prep_next may find something. */
uint32_t kg_prep_n_threads(const struct kg_prep *prep);
int kg_prep_fd(const struct kg_prep *prep, uint32_t thread);
/* Tasks submitted and not handed back. */
uint32_t kg_prep_n_tasks(const struct kg_prep *prep);

#endif
