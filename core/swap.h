/*
 * Scheduler and speculation of a running stack in exchange for others. New ones are opened here,
 * on the caller's thread; the engine takes them between two steps; the old ones are closed when it
 * says so. A plugin's host (memory, metric cells) stays until the end, so that a plugin that comes
 * back counts on.
 */
#ifndef KEDGE_CORE_SWAP_H
#define KEDGE_CORE_SWAP_H

#include "stack.h"

/* Belongs to the stack and ends with it. `config` is the one it was opened with. KG_ENOMEM. */
KG_CHECKED int kg_swapper_open(struct kg_stack *stack, struct kg_config *config,
                               struct kg_error *err);
/* kg_stack_close's: when engine and active plugins are gone. NULL is allowed. */
void kg_swapper_close(struct kg_swapper *w);

/*
 * Opens the plugins of these names with the options of their INI sections, a speculation with
 * those of its arm, and hands them to the engine. 1: KG_EVENT_SWAPPED will come, then call
 * kg_swapper_done. 0: they are active already. Negative: nothing changed, *field says which name
 * was wrong ("sched", "spec", "arm"); KG_EAGAIN while another swap is under way. The thread that
 * submits.
 */
int kg_swapper_swap(struct kg_swapper *w, const struct kg_swap_names *names, const char **field,
                    struct kg_error *err);
void kg_swapper_done(struct kg_swapper *w);

/* As JSON, what is active and what could be: {"active":{..},"sched":[..],"spec":[..]}. KG_EIO. */
int kg_swapper_write(const struct kg_swapper *w, struct kg_buf *b, struct kg_error *err);

#endif
