/* What ranks.c and lead.c share. */
#ifndef KEDGE_RANKS_IMPL_H
#define KEDGE_RANKS_IMPL_H

#include "ranks/ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

struct kg_ranks {
    struct kg_ranks_args args;
    struct kg_tape *tape;
    struct kg_boot boot;
    pid_t pids[KG_BOOT_MAX_WORLD]; /* 0: reaped, or rank 0 */
    int pidfds[KG_BOOT_MAX_WORLD]; /* -1 where there is none */
    int status[KG_BOOT_MAX_WORLD]; /* of waitid, once reaped */
    _Atomic uint32_t lost;         /* 1 while `how` is written, then 2; 0: well */
    char how[200];
    pthread_t watcher;
    int watching, stop_fd;
    const struct kg_comm_ops *comm_ops;
    struct kg_comm *comm;
};

/* The group is lost; the first reason stays. Any thread. */
void kg_ranks_give_up(struct kg_ranks *r, const char *why);

/* The collectives' word on who was lost first ("lost: time-out waiting for rank 1"), at most n - 1
 * bytes; "" without collectives. */
void kg_ranks_loss(const struct kg_ranks *r, char *text, size_t n);

#endif
