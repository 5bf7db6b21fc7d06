/*
 * One model in several processes. Rank 0 has pool, index, scheduler, speculation and HTTP; the
 * others are forked before anything is opened and apply what rank 0's backend is told, in the same
 * order. To the engine the group is one exec table (kg_lead_open).
 */
#ifndef KEDGE_RANKS_RANKS_H
#define KEDGE_RANKS_RANKS_H

#include "base/log.h"
#include "ranks/boot.h"
#include "ranks/tape.h"

#include <kedge/exec.h>

struct kg_ranks;

/* What a rank above 0 does; its return value is its exit status. Runs in the forked process. */
typedef int kg_ranks_follow(void *ctx, uint32_t rank, struct kg_boot *boot, struct kg_tape *tape);

struct kg_ranks_args {
    uint32_t world;      /* 2 .. KG_BOOT_MAX_WORLD */
    uint64_t tape_bytes; /* a power of two */
    uint64_t timeout_ns; /* what a rank may take beyond rank 0 before the group is given up */
    kg_ranks_follow *follow;
    void *ctx;
    struct kg_log *log; /* may be NULL */
};

/* Forks ranks 1 .. world - 1, which end with this process. It must have one thread. KG_EINVAL,
 * KG_EIO, KG_ENOMEM; none is left then. */
KG_CHECKED int kg_ranks_start(const struct kg_ranks_args *args, struct kg_ranks **ranks,
                              struct kg_error *err);
/* Rank 0's side of the bootstrap; the group's. */
struct kg_boot *kg_ranks_boot(struct kg_ranks *ranks);

/* How far a rank came, told to all: the first that failed, named, is everyone's result. Called by
 * all ranks at the same point. `mine` is this rank's rc and text; `agree` must be equal on all. */
KG_CHECKED int kg_ranks_meet(struct kg_boot *boot, const struct kg_error *mine, uint64_t agree,
                             struct kg_error *err);

/* From now on a thread watches the processes and aborts the collectives when one ends. `comm` may
 * be NULL; it must outlive kg_ranks_stop. KG_ENOMEM. */
KG_CHECKED int kg_ranks_watch(struct kg_ranks *ranks, const struct kg_comm_ops *ops,
                              struct kg_comm *comm, struct kg_error *err);
/* KG_OK, or KG_EDEVICE with who was lost and how. Any thread; never blocks. */
int kg_ranks_well(struct kg_ranks *ranks, struct kg_error *err);

/* After a start that lost a rank: KG_EDEVICE and who, when a signal ended it. Takes up to 0.2 s. */
int kg_ranks_killed(const struct kg_ranks *ranks, struct kg_error *err);

/* Tells the others to end, waits for at most the time-out, kills who is left; frees. Returns how
 * many did not end by themselves. NULL is allowed. */
int kg_ranks_stop(struct kg_ranks *ranks);

/*
 * The group as one backend: `local`, open with rank 0, and the ranks behind the tape. The table and
 * the instance live in *exec, which is the caller's to give to kg_exec_ops.close (that closes the
 * local one too). Ops the group cannot do (read and write of unit bytes: each rank has its own)
 * return KG_EINVAL. KG_ENOMEM.
 */
KG_CHECKED int kg_lead_open(struct kg_ranks *ranks, const struct kg_exec_ops *local_ops,
                            struct kg_exec *local, uint32_t max_seqs,
                            const struct kg_exec_ops **ops, struct kg_exec **exec,
                            struct kg_error *err);

/* Ranks above 0: applies what the tape says to this rank's backend until it says stop (0) or the
 * group is lost (1). max_seqs as at open. */
int kg_follow(struct kg_tape *tape, uint32_t rank, const struct kg_exec_ops *ops,
              struct kg_exec *exec, uint32_t max_seqs, struct kg_error *err);

#endif
