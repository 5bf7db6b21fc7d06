/*
 * comm-symmem on host memory: what its files share.
 *
 * One segment for the group, a memory file that rank 0 makes and hands to the others by descriptor;
 * it has no name, so nothing can collide or be left behind. Ranks that are threads of one process
 * use one mapping.
 *
 *   head | a line per rank | a meeting per channel and rank | a log likewise | area of rank 0 | ...
 *   area: user memory (alloc_symm), then per channel: lines, stage, result, notes; each twice
 *
 * Meetings. Every collective is cut into pieces; in a piece all ranks meet once or twice. A rank
 * that finishes piece k knows that all others began it, so had finished k - 1: what was written for
 * k - 1 may be overwritten in k + 1. That is why everything lies there twice, by the piece's
 * parity, and no collective needs a barrier behind it.
 */
#ifndef KEDGE_COMM_SYMMEM_SYMMEM_H
#define KEDGE_COMM_SYMMEM_SYMMEM_H

#include <kedge/comm.h>
#include <stdatomic.h>

#define SYMM_MAX_WORLD 64u
#define SYMM_MAX_CHANNELS 16u
#define SYMM_LINE_DATA 56u /* bytes of payload in a line of 64 */
#define SYMM_NOWHERE UINT64_MAX

enum symm_op {
    SYMM_NONE,
    SYMM_ALL_REDUCE,
    SYMM_REDUCE_SCATTER,
    SYMM_ALL_GATHER,
    SYMM_ALL_TO_ALL,
    SYMM_BROADCAST,
    SYMM_BARRIER,
    SYMM_N_OPS,
};

/* Why the group is lost; symm_head.lost is reason | rank << 8. */
enum symm_loss {
    SYMM_WELL = 0,
    SYMM_ABORTED,
    SYMM_DIED,
    SYMM_LEFT,
    SYMM_LATE,
    SYMM_DIFFER,
    SYMM_CORRUPT,
    SYMM_DEVICE,
};

/* A rank's word on the collective it is in. */
struct symm_said {
    uint32_t what, root; /* what: enum symm_op | dtype << 8 */
    uint64_t count;      /* elements, as in kg_coll */
    uint64_t in_offset;  /* of its input from the start of its area, or SYMM_NOWHERE */
};

/* Where ranks meet, one per channel and rank; written by its rank only. What others look for in
 * every call is one cache line; two are taken because neighbours are fetched in pairs. */
struct symm_meet {
    _Alignas(128) _Atomic uint32_t arrive; /* meetings this rank came to; others sleep on it */
    uint32_t reserved;
    struct symm_said said[2];
    _Alignas(64) uint64_t sums[2]; /* checksum mode: of the outputs */
};
_Static_assert(offsetof(struct symm_meet, sums) == 64, "the first line holds the rest");

/* What its rank writes in each call and others touch only when they park, or dump: lines of its
 * own. */
struct symm_log {
    _Alignas(128) _Atomic uint32_t sleepers; /* on this rank's `arrive` */
    _Atomic uint32_t op;                     /* enum symm_op of the last call */
    _Atomic uint32_t calls;
};

struct symm_rank {
    _Alignas(128) _Atomic uint32_t left; /* closed in good order */
    _Atomic uint32_t quiet;              /* and its device is done; device memory only */
};

/* 56 bytes and the word that says they are there: the number of the piece, and what the call is. */
struct symm_line {
    unsigned char data[SYMM_LINE_DATA];
    _Atomic uint64_t flag;
};

struct symm_head {
    _Alignas(128) uint32_t magic;
    uint32_t world, n_channels;
    _Atomic uint32_t lost;     /* 0, or enum symm_loss | rank << 8 */
    _Atomic uint32_t attached; /* ranks that use this mapping, where they share one */
    struct symm_rank ranks[SYMM_MAX_WORLD];
};

/* Offsets and sizes of the segment, bytes. Equal on all ranks. */
struct symm_plan {
    uint64_t meets, logs, areas, total; /* from the start of the segment */
    uint64_t area;                      /* one rank's */
    uint64_t channels, channel;         /* from the start of an area: the first one; size of one */
    uint64_t lines, stage, result, notes; /* from the start of a channel: both halves */
    uint64_t lines_half, stage_half, result_half, notes_half;
};

struct symm_conf {
    uint64_t stage, push, one_shot;
    uint32_t spins, checksum;
    uint32_t memory; /* enum symm_memory */
    const char *driver;
    uint32_t multicast; /* enum symm_multicast_use */
    uint64_t multicast_one_shot;
};

enum symm_memory { SYMM_HOST, SYMM_CUDA };
enum symm_multicast_use { SYMM_MULTICAST_OFF, SYMM_MULTICAST_AUTO, SYMM_MULTICAST_ON };

/* This rank's side of a channel. */
struct symm_channel {
    uint64_t piece;   /* pieces begun */
    uint32_t meeting; /* meetings arrived at */
};

struct kg_comm {
    const struct kg_host *host;
    struct symm_conf conf;
    struct symm_plan plan;
    struct symm_head *head; /* the segment */
    struct symm_channel channels[SYMM_MAX_CHANNELS];
    int pidfds[SYMM_MAX_WORLD]; /* of other ranks, -1 where there is none */
    uint64_t symm_bytes, symm_used, timeout_ns;
    uint32_t rank, world, n_channels;
    uint32_t push_max, one_shot_max; /* bytes a rank gives, by the band table or the options */
    int shared;                      /* ranks are threads and share one mapping */
    int sealed;
    struct symm_cuda *cuda; /* NULL: host memory */
};

enum {
    SYMM_M_CALLS,
    SYMM_M_BYTES,
    SYMM_M_PUSH,
    SYMM_M_ONE_SHOT,
    SYMM_M_TWO_SHOT,
    SYMM_M_PARKED,
    SYMM_M_MULTICAST,
};

/* segment.c: makes or receives the segment, in lockstep: all ranks succeed or all fail. */
int symm_segment_open(struct kg_comm *c, const struct kg_bootstrap *boot, struct kg_error *err);
void symm_segment_close(struct kg_comm *c);

static inline struct symm_meet *symm_meet_of(const struct kg_comm *c, uint32_t channel,
                                             uint32_t rank)
{
    struct symm_meet *m = (struct symm_meet *)((char *)c->head + c->plan.meets);
    return &m[(size_t)channel * c->world + rank];
}

static inline struct symm_log *symm_log_of(const struct kg_comm *c, uint32_t channel, uint32_t rank)
{
    struct symm_log *l = (struct symm_log *)((char *)c->head + c->plan.logs);
    return &l[(size_t)channel * c->world + rank];
}

/* Start of a rank's area. */
static inline char *symm_area(const struct kg_comm *c, uint32_t rank)
{
    return (char *)c->head + c->plan.areas + (uint64_t)rank * c->plan.area;
}

static inline char *symm_chan_area(const struct kg_comm *c, uint32_t channel, uint32_t rank)
{
    return symm_area(c, rank) + c->plan.channels + (uint64_t)channel * c->plan.channel;
}

/* meet.c. All return KG_OK or KG_EDEVICE. */
int symm_well(const struct kg_comm *c);
/* Marks the group lost, if it is not yet, and wakes everyone; returns KG_EDEVICE. Any thread. */
int symm_lose(struct kg_comm *c, enum symm_loss why, uint32_t rank);
/* Wakes who sleeps on a rank's counter. */
void symm_wake(struct kg_comm *c, uint32_t channel, uint32_t rank);
/* Says `said` and arrives; does not wait, and wakes nobody: symm_tell must follow before this rank
 * waits for long or leaves. `sum`: of the output, in checksum mode. */
void symm_arrive(struct kg_comm *c, uint32_t channel, const struct symm_said *said, uint64_t sum);
/* Wakes who slept until this rank arrived. */
void symm_tell(struct kg_comm *c, uint32_t channel);
/* Waits until `rank` came to this rank's last meeting of the channel. */
int symm_await(struct kg_comm *c, uint32_t channel, uint32_t rank, uint64_t *give_up_ns);
/* Arrives, waits for all, and demands that all said the same call. */
int symm_meet_all(struct kg_comm *c, uint32_t channel, const struct symm_said *said, uint64_t sum);
/* What `rank` said at this rank's last meeting; valid until the next one. */
static inline const struct symm_said *symm_heard(const struct kg_comm *c, uint32_t channel,
                                                 uint32_t rank)
{
    return &symm_meet_of(c, channel, rank)->said[c->channels[channel].meeting & 1];
}

static inline uint64_t symm_heard_sum(const struct kg_comm *c, uint32_t channel, uint32_t rank)
{
    return symm_meet_of(c, channel, rank)->sums[c->channels[channel].meeting & 1];
}

/* Whether the process of another rank has ended. */
int symm_is_dead(const struct kg_comm *c, uint32_t rank);
uint64_t symm_now_ns(void);

/* symmem.c: up to how many bytes push is used on device memory, bytes a rank gives. */
uint64_t symm_cuda_push(const struct symm_conf *conf, uint32_t world);
/* How a collective on device memory is done. `bytes`: a rank gives (to each block, where there are
 * blocks); multicast: whether the group has the object. */
enum symm_way {
    SYMM_WAY_PUSH,
    SYMM_WAY_STAGED,
    SYMM_WAY_MULTICAST_ONE,
    SYMM_WAY_MULTICAST_TWO,
};
enum symm_way symm_cuda_way(const struct symm_conf *conf, uint32_t world, int multicast,
                            enum symm_op op, uint64_t bytes);

/* cuda_run.c, the same on device memory; KG_ECONFIG from open where it is not built. */
int symm_cuda_open(struct kg_comm *c, const struct kg_comm_open *args, struct kg_error *err);
void symm_cuda_close(struct kg_comm *c);
char *symm_cuda_area(const struct kg_comm *c); /* this rank's, in addresses of the device */
int symm_cuda_run(struct kg_comm *c, enum symm_op op, const struct kg_coll *coll);
int symm_cuda_poll(struct kg_comm *c);
int symm_cuda_watch(struct kg_comm *c, uint32_t channel, void *stream);
void symm_cuda_stop(struct kg_comm *c); /* kernels in flight leave; any thread */

/* collective.c: the five ops behind the checks, for arguments that are valid. */
int symm_run(struct kg_comm *c, enum symm_op op, const struct kg_coll *coll);

/* sum.c: out[i] = x[0][i] + x[1][i] + .. in this order, in F32; BF16 is rounded once. n elements;
 * `out` may be one of x. */
void symm_sum(uint32_t dtype, void *out, const void *const *x, uint32_t n_x, uint64_t n);
/* A checksum of bytes; order matters. */
uint64_t symm_hash(const void *p, uint64_t bytes, uint64_t seed);

#endif
