/*
 * The policy of a configuration, as the engine and the server call it: core/policy knows neither
 * of them, and they know no Lua.
 */
#ifndef KEDGE_CORE_HOOKS_H
#define KEDGE_CORE_HOOKS_H

#include "base/log.h"
#include "base/metrics.h"
#include "config.h"
#include "serve/serve.h"

struct kg_policy;

struct kg_hooks {
    struct kg_policy *policy;
    struct kg_log *log;
    struct kg_ring *lines; /* kg.log of the engine's hooks, on its way to the loop; NULL: at once */
    struct kg_engine_policy engine; /* engine thread; ctx is this struct */
    struct kg_serve_policy serve;   /* loop thread */
};

/*
 * Opens [lua] script of the configuration and registers its counters. timed: budgets count wall
 * time too; not under a virtual clock. *hooks is NULL when no script is set. KG_ECONFIG with the
 * line of the script.
 */
KG_CHECKED int kg_hooks_open(const struct kg_conf *conf, bool timed, struct kg_log *log,
                             struct kg_metrics *metrics, struct kg_hooks **hooks,
                             struct kg_error *err);
/* A step writes no log lines: what the engine's hooks say waits until the server's loop asks for
 * it. Before threads start. KG_ENOMEM, KG_EIO. */
KG_CHECKED int kg_hooks_defer_lines(struct kg_hooks *hooks, struct kg_error *err);
/* The hooks the script has, "arrive, admit"; "none" without any. Before threads start. */
void kg_hooks_list(const struct kg_hooks *hooks, char *text, size_t size);
void kg_hooks_close(struct kg_hooks *hooks); /* NULL is allowed; both threads have ended */

#endif
