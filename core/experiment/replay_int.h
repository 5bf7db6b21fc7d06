/* What the two halves of a replay share: the loop (replay.c) and its bookkeeping (replay_look.c).
 */
#ifndef KEDGE_EXPERIMENT_REPLAY_INT_H
#define KEDGE_EXPERIMENT_REPLAY_INT_H

#include "experiment/replay.h"

enum kg_replay_due_kind {
    KG_DUE_ARRIVE,
    KG_DUE_CANCEL, /* the client leaves */
    KG_DUE_LEAVE,  /* it is over, and the router learns it */
};

/* Something due at a time. */
struct kg_replay_due {
    uint64_t at_ns, serial; /* equal times in the order they were added */
    uint32_t req, kind;
};

struct kg_replica {
    const struct kg_replay_replica *c;
    uint64_t start_ns; /* backend clock at the start */
    uint64_t last_ns, last_steps, last_step_sum, last_engine_sum;
    uint64_t bytes[KG_N_BYTES]; /* at the last look */
    uint32_t n_live;
    uint32_t is_awake; /* it may have something to do; else its clock may be behind */
    uint32_t is_stuck; /* at this time it can do nothing by itself */
    struct kg_replay_share *out;
};

struct kg_replay_play {
    const struct kg_replay_conf *c;
    struct kg_replay_result *out;
    struct kg_error *err;
    struct kg_replica *replicas;       /* [c->n_replicas] */
    struct kg_replay_due *heap;        /* [n_heap] */
    size_t n_heap, cap_heap, n_coming; /* n_coming: arrivals in the heap */
    uint64_t serial;
    uint32_t *child, *sibling; /* [n] turns that follow a request */
    uint8_t *live;             /* [n] */
    uint32_t *tokens;          /* scratch for the longest prompt */
    uint32_t n_live, n_done, is_virtual;
    uint64_t shown_ns;
};

/* A replica's clock, from the start of the replay. */
static inline uint64_t kg_replica_now(const struct kg_replica *p)
{
    return p->c->exec_ops->now(p->c->exec) - p->start_ns;
}

/* After a step: step times, and bytes for the time since the last look. KG_ENOMEM. */
KG_CHECKED int kg_replay_look(struct kg_replay_play *run, struct kg_replica *replica);
/* Brings all replicas to the same end, and adds up. */
void kg_replay_finish(struct kg_replay_play *run);

#endif
