/* A group of rank processes that run one function each: for programs that measure or test. */
#ifndef KEDGE_RANKS_GROUP_H
#define KEDGE_RANKS_GROUP_H

#include "ranks/boot.h"

/* What became of a rank. */
#define KG_RANK_SIGNAL 256 /* + the signal that ended it */
#define KG_RANK_STOPPED -1 /* it stood still when all others had ended, and was killed */
#define KG_RANK_LATE -2    /* it ran at the deadline, and was killed */

/* Runs in rank boot->rank; what it returns (0 .. 255) is the rank's status. */
typedef int kg_rank_main(struct kg_boot *boot, void *arg);

/*
 * Forks `world` ranks, which meet through a mesh of sockets and end with their parent, and waits
 * for them; nothing of them is left afterwards. status[world]: what became of each. The calling
 * process must have one thread. KG_EINVAL, KG_EIO, KG_ENOMEM when they cannot be started.
 */
int kg_group_run(uint32_t world, kg_rank_main *run, void *arg, uint64_t deadline_ns, int *status,
                 struct kg_error *err);

#endif
