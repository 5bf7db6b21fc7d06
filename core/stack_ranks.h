/* The part of a stack that is there with [parallel] tp > 1: collectives, and the other ranks. */
#ifndef KEDGE_CORE_STACK_RANKS_H
#define KEDGE_CORE_STACK_RANKS_H

#include "stack.h"

/* Forks the other ranks and opens the collectives of rank 0; fills rank, world and comm of *args,
 * with which the backend is opened next. Nothing to do for one rank. */
KG_CHECKED int kg_stack_ranks_open(struct kg_stack *s, struct kg_exec_open *args,
                                   struct kg_error *err);
/* Behind exec.open of rank 0, which came to `mine`: all ranks say how far they came, sizes are
 * compared, and parts.exec becomes the group. *err, where it fails, is the cause wherever it was.
 */
KG_CHECKED int kg_stack_ranks_meet(struct kg_stack *s, const struct kg_error *mine,
                                   struct kg_error *err);
/* Ends the other ranks; before the backend is closed. */
void kg_stack_ranks_stop(struct kg_stack *s);
/* Closes the collectives; after the backend. */
void kg_stack_ranks_close(struct kg_stack *s);

#endif
