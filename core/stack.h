/*
 * Everything that is open for one configuration: backend, scheduler, speculation, engine, in the
 * order the ABI asks for, and closed in reverse.
 */
#ifndef KEDGE_CORE_STACK_H
#define KEDGE_CORE_STACK_H

#include "base/log.h"
#include "base/metrics.h"
#include "config.h"
#include "hooks.h"
#include "host.h"

struct kg_stack_ranks;
struct kg_swapper;

struct kg_stack {
    const struct kg_config *config; /* not owned; outlives the stack */
    const struct kg_conf *conf;
    struct kg_log log;
    struct kg_clock clock;      /* the machine's, then the backend's once it is open */
    struct kg_metrics *metrics; /* plugins are registered; the caller may add its own */
    struct kg_instance *hosts[KG_PLUGIN_KINDS]; /* not of speculation */
    /* [n_specs] rules and speculation of each arm with its host; without arms there is one, and
     * parts.spec is the same. */
    struct kg_engine_arm arms[KG_MAX_ARMS];
    struct kg_instance *spec_hosts[KG_MAX_ARMS];
    uint32_t n_specs;
    struct kg_exec_desc desc; /* after open */
    struct kg_hooks *hooks;   /* NULL without [lua] script */
    struct kg_engine_parts parts;
    struct kg_engine *engine;   /* after kg_stack_engine; not started */
    struct kg_stack_ranks *group; /* NULL with one rank (stack_ranks.h) */
    struct kg_swapper *swapper; /* NULL: plugins do not change (swap.h) */
};

/* Opens backend, scheduler and speculation of a finished configuration. Reads the weights. */
KG_CHECKED int kg_stack_open(const struct kg_config *config, struct kg_stack **stack,
                             struct kg_error *err);
/*
 * Opens a pool of its own, as the engine will, to see what it answers: geometry, and by grants
 * what fits. Nothing of the arena is allocated. Close it with parts.pool_ops->close.
 */
KG_CHECKED int kg_stack_pool(struct kg_stack *stack, struct kg_pool **pool,
                             struct kg_pool_layout *layout, struct kg_error *err);
/* Creates the engine (pool, arena). The caller starts it, or steps it. */
KG_CHECKED int kg_stack_engine(struct kg_stack *stack, struct kg_error *err);
/* Host services for one more plugin, its metrics registered; `arm` is a label of theirs, NULL for
 * none. KG_ENOMEM. */
KG_CHECKED int kg_stack_host(struct kg_stack *stack, const struct kg_plugin *plugin,
                             const char *arm, struct kg_instance **host, struct kg_error *err);
/* The speculation chosen for an arm, without arms that of [plugins]. */
const struct kg_choice *kg_stack_spec(const struct kg_stack *stack, uint32_t arm);
/* Longest window of the arms, tokens; 0: nobody drafts. */
uint32_t kg_stack_block(const struct kg_stack *stack);
/* Closes everything in reverse; NULL is allowed. */
void kg_stack_close(struct kg_stack *stack);

#endif
