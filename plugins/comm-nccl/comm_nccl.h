/*
 * comm-nccl: what its files share.
 *
 * A communicator per channel, made so that it does not block: every call into NCCL returns at once,
 * and what it began is waited for here, in one place (wait.c), with a deadline, an eye on NCCL's
 * asynchronous error, on the other processes, and on the board.
 *
 * The board is a page of host memory that all ranks map. NCCL has no word for "this group is lost":
 * whoever finds a reason writes it there, everyone else reads it within a millisecond of waiting.
 * Ranks also meet there where no device is needed (barrier, seal).
 *
 * A lost group is only ever aborted: nccl's own orderly end waits for ranks that may be gone. The
 * abort runs in a thread of its own, because it may hang too.
 */
#ifndef KEDGE_COMM_NCCL_COMM_NCCL_H
#define KEDGE_COMM_NCCL_COMM_NCCL_H

#include "library.h"

#include <kedge/comm.h>
#include <pthread.h>
#include <stdatomic.h>

#define NCCL_MAX_WORLD 64u
#define NCCL_MAX_CHANNELS 16u
#define NCCL_RING 16u /* calls of a channel that are timed at once */

enum nccl_op {
    NCCL_OP_NONE,
    NCCL_OP_ALL_REDUCE,
    NCCL_OP_REDUCE_SCATTER,
    NCCL_OP_ALL_GATHER,
    NCCL_OP_ALL_TO_ALL,
    NCCL_OP_BROADCAST,
    NCCL_OP_BARRIER,
    NCCL_N_OPS,
};

/* A rank's place on the board; written by its rank only. */
struct nccl_place {
    _Alignas(128) _Atomic uint32_t left; /* closed in good order */
    _Atomic uint64_t symm_used;
    struct {
        _Atomic uint32_t op, calls; /* of the last call, for the dump */
        _Atomic uint32_t arrive;    /* meetings it came to */
        _Atomic uint64_t said[2];   /* hash of the call it means, by the meeting's parity */
    } channels[NCCL_MAX_CHANNELS];
};

struct nccl_board {
    uint32_t magic, world, n_channels;
    _Atomic uint32_t lost; /* 0, 1 while `why` is written, then 2 */
    char why[240];         /* "time-out waiting for rank 1": one line without ';' */
    struct nccl_place places[NCCL_MAX_WORLD];
};

struct nccl_conf {
    const char *library, *driver;
    uint32_t windows; /* 0 no, 1 yes */
    uint32_t init_ms;
};

/* Abort on its way; lives as long as its thread or its communicator, whichever is longer. */
struct nccl_fall {
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint32_t users, done, n;
    ncclResult_t (*abort)(ncclComm_t comm);
    ncclComm_t comms[NCCL_MAX_CHANNELS];
};

struct nccl_channel {
    pthread_mutex_t lock; /* one thread in NCCL at a time: around each call into it, never longer */
    _Atomic(ncclComm_t) comm;
    ncclWindow_t window;
    CUstream stream;         /* for calls that bring none */
    CUevent event;           /* behind the last call that is waited for here */
    CUevent ring[NCCL_RING]; /* behind calls in streams of the caller */
    uint64_t since_ns[NCCL_RING];
    uint32_t ring_from, ring_n;
    CUdeviceptr scratch; /* [world][world] counts; warming up */
    uint64_t *counts;    /* pinned host memory, [world][world] */
    uint32_t meeting;    /* meetings this rank came to */
};

struct kg_comm {
    const struct kg_host *host;
    struct nccl_library lib;
    struct nccl_conf conf;
    struct nccl_board *board;
    struct nccl_fall *fall;  /* made at open, so that nothing has to be had when it is needed */
    _Atomic uint32_t fallen; /* the abort was begun */
    CUdevice device;
    CUcontext context;      /* the device's primary one, retained */
    CUdeviceptr symm;       /* [symm_bytes] */
    CUdeviceptr scratch;    /* of all channels */
    uint64_t *host_scratch; /* the same, pinned */
    uint64_t scratch_bytes; /* of one channel */
    uint64_t symm_bytes, symm_used, timeout_ns;
    struct nccl_channel channels[NCCL_MAX_CHANNELS];
    int pidfds[NCCL_MAX_WORLD]; /* of other processes, -1 where there is none */
    uint32_t rank, world, n_channels;
    int sealed;
};

enum { NCCL_M_CALLS, NCCL_M_BYTES, NCCL_M_WAITED };

/* --- board.c --- */

/* Makes (rank 0) or receives the board. KG_ENOMEM, KG_EIO, or what the bootstrap says. */
int nccl_board_open(struct kg_comm *c, const struct kg_bootstrap *boot, uint64_t deadline_ns);
void nccl_board_close(struct kg_comm *c);
/* Writes why the group is lost, if nobody did yet, and begins the abort; returns KG_EDEVICE. Any
 * thread. */
__attribute__((format(printf, 2, 3))) int nccl_lose(struct kg_comm *c, const char *fmt, ...);
/* Why the group is lost, "" while it is not; waits a moment for who is just writing it. */
const char *nccl_why(const struct kg_comm *c);
/* KG_OK, or KG_EDEVICE once a reason is on the board; begins this rank's abort then. */
int nccl_well(struct kg_comm *c);
/* Meets all ranks of a channel on the board; each must mean the same `said`. KG_EDEVICE. */
int nccl_meet(struct kg_comm *c, uint32_t channel, uint64_t said, uint64_t timeout_ns);

/* --- wait.c --- */

struct nccl_patience {
    uint64_t end_ns; /* 0: not looked at the clock yet */
    uint64_t timeout_ns;
    uint64_t left_ns; /* when a rank was first seen to have closed */
    uint32_t looks;
};

/* What is waited for is not there yet: lets time pass. KG_OK to look again, KG_EDEVICE. `what`
 * names it for the reason, `rank` the rank that is waited for or KG_NONE. */
int nccl_hope(struct kg_comm *c, struct nccl_patience *p, const char *what, uint32_t rank);
/* Waits until the communicator of a channel is done with what it was told (it was enqueued). */
int nccl_settle(struct kg_comm *c, uint32_t channel, uint64_t timeout_ns, const char *what);
/* Records the channel's event in `stream` and waits for it. */
int nccl_finish(struct kg_comm *c, uint32_t channel, CUstream stream, const char *what);
/* Notes a call in a caller's stream, so that nccl_look() can tell when it takes too long. */
int nccl_track(struct kg_comm *c, uint32_t channel, CUstream stream);
/* Looks at everything once; KG_OK or KG_EDEVICE. */
int nccl_look(struct kg_comm *c);
/* What NCCL returned for a call: KG_OK for success and in progress, else the group is lost. */
int nccl_returned(struct kg_comm *c, ncclResult_t r, ncclComm_t comm, const char *what);
/* Begins the abort of this rank's communicators; once. Does not wait. Any thread. */
void nccl_fall(struct kg_comm *c);
/* Waits for it; 0 when it did not come back in time. */
int nccl_fallen(struct kg_comm *c, uint64_t timeout_ns);
/* The orderly end of one channel's communicator; 0 when it has to be aborted instead. */
int nccl_part(struct kg_comm *c, uint32_t channel, uint64_t timeout_ns);
uint64_t nccl_now_ns(void);

/* --- run.c --- */

/* The five ops behind the checks, for arguments that are valid. */
int nccl_run(struct kg_comm *c, enum nccl_op op, const struct kg_coll *k);
/* Each op once with a single element, in all channels: NCCL connects and allocates when it is first
 * asked. */
int nccl_warm(struct kg_comm *c);

/* --- open.c --- */

int nccl_open(const struct kg_host *host, const void *conf, const struct kg_comm_open *args,
              struct kg_comm **comm, struct kg_error *err);
void nccl_close(struct kg_comm *comm);
int nccl_seal(struct kg_comm *comm, struct kg_error *err);

#endif
