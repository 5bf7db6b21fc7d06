/* Several rigs that are the ranks of one model, each in a thread of its own while it computes. */
#ifndef KEDGE_TESTS_GOLDEN_RIG_RANKS_H
#define KEDGE_TESTS_GOLDEN_RIG_RANKS_H

#include "rig.h"

/* Opens rank 0 in *r and the others behind it; as rig_open. */
int rig_ranks_open(struct rig *r, const struct rig_options *o);
/* Runs one pass on all ranks. */
void rig_ranks_forward(struct rig *r, const struct kg_forward *f);
void rig_ranks_close(struct rig *r);

/* For rig.c: one rank. */
int rig_open_rank(struct rig *r, const struct rig_options *o, const struct kg_comm_ops *ops,
                  struct kg_comm *comm, uint32_t rank);

#endif
