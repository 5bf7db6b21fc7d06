/* A rig's backend as a group of rank processes, as the server has it: collectives of comm-symmem,
 * the tape, the table of rank 0. */
#ifndef KEDGE_TESTS_GOLDEN_EXEC_RANKS_H
#define KEDGE_TESTS_GOLDEN_EXEC_RANKS_H

#include "exec_rig.h"

/* Forks the others and opens all; x->ops and x->exec become the group's. `args` says how many.
 * Returns the rc of what failed first, wherever it was. */
int xranks_open(struct xrig *x, const void *conf, const struct kg_exec_open *args,
                struct kg_error *err);
/* What a collective may take in groups opened from here on; 60 s at first. */
void xranks_set_timeout(uint64_t ns);
/* Process of the rank above 0. */
int xranks_pid(const struct xrig *x, uint32_t rank);
/* Closes a group that has lost a rank. */
void xranks_close_lost(struct xrig *x);
/* Ends the others, which must end by themselves, and closes all. */
void xranks_close(struct xrig *x);

#endif
