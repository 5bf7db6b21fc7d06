/*
 * Collectives between the ranks of one model. Counts are elements per rank; buffers are symmetric
 * memory (alloc_symm) unless a plugin says otherwise. After seal() nothing is allocated or
 * registered. A dead or stopped rank is KG_EDEVICE on every other rank within a second; nothing
 * hangs. Called by the thread that runs the forward pass.
 */
#ifndef KEDGE_COMM_H
#define KEDGE_COMM_H

#include <kedge/abi.h>
#include <kedge/host.h>

#define KG_COMM_MAJOR 1
#define KG_COMM_MINOR 2

/* Capability bits: of a plugin, what it has with some of its options; what it has with given ones
 * is told by the op `caps`, where there is one. */
#define KG_COMM_CAP_FIXED_ORDER 1ull /* sums in rank order: same bits on every rank, every run */
#define KG_COMM_CAP_HOST 2ull        /* works on host memory */
#define KG_COMM_CAP_CUDA 4ull        /* works on device memory, in stream order */
/* Uses a multicast object, where the devices have one; its sums are in no order that is documented. */
#define KG_COMM_CAP_MULTICAST 8ull
/* Calls with a stream may be recorded into a graph and run again with it, on all ranks alike: watch()
 * exists (since minor 2). */
#define KG_COMM_CAP_GRAPHS 16ull

struct kg_comm; /* one instance per rank; private to the plugin */

/* Collectives by number (since minor 1). */
enum kg_comm_op {
    KG_COMM_ALL_REDUCE = 1,
    KG_COMM_REDUCE_SCATTER = 2,
    KG_COMM_ALL_GATHER = 3,
    KG_COMM_ALL_TO_ALL = 4,
    KG_COMM_BROADCAST = 5,
};
#define KG_COMM_N_OPS 6 /* numbers below this */

/*
 * How ranks find each other before the plugin has a channel of its own; given by the core. Each
 * call has a deadline in ns (relative); KG_ETIMEOUT or KG_EDEVICE when a rank is missing.
 */
struct kg_bootstrap {
    size_t size;
    void *ctx;
    /* Every rank gives `bytes` bytes and gets world * bytes, in rank order. */
    int (*all_gather)(void *ctx, const void *in, void *out, size_t bytes, uint64_t deadline_ns);
    /* Sends a descriptor to `to`, or receives one from `from`; the receiver owns it. */
    int (*send_fd)(void *ctx, uint32_t to, int fd, uint64_t deadline_ns);
    int (*recv_fd)(void *ctx, uint32_t from, int *fd, uint64_t deadline_ns);
    int (*barrier)(void *ctx, uint64_t deadline_ns);
};

struct kg_comm_open {
    size_t size;
    uint32_t rank, world;
    const struct kg_bootstrap *boot; /* NULL when world is 1 */
    uint64_t symm_bytes;             /* symmetric memory this rank will need at most */
    uint32_t n_channels;             /* independent channels, >= 1 */
    uint32_t device;                 /* device ordinal for CUDA plugins, else 0 */
    uint64_t timeout_ns;             /* a collective that takes longer is an error */
    /* Since minor 1: what memory the backend computes in, KG_COMM_CAP_HOST or KG_COMM_CAP_CUDA; 0
     * for whatever the plugin works on. KG_ECONFIG when that is another. */
    uint64_t memory;
};

/* A collective: `count` elements of `dtype` per rank. `stream` is a device stream or NULL:
 * with one the call returns when it is enqueued there, and what goes wrong later is told by poll();
 * without, it returns with the result. */
struct kg_coll {
    uint32_t channel; /* < n_channels; calls of one channel are ordered */
    uint32_t dtype;   /* enum kg_dtype */
    uint64_t count;
    const void *in;
    void *out; /* may be `in` for all_reduce and broadcast */
    void *stream;
    uint32_t root; /* broadcast only */
    uint32_t reserved;
    const uint64_t *counts; /* all_to_all only: [world] elements for each peer, in symmetric
                               memory; `count` is then the maximum per peer */
};

struct kg_comm_ops {
    size_t size; /* sizeof(struct kg_comm_ops) as compiled */

    /* Meets the other ranks. KG_ECONFIG for a group it cannot serve, KG_ETIMEOUT or KG_EDEVICE when
     * a rank is missing. *comm set only on success. */
    int (*open)(const struct kg_host *host, const void *conf, const struct kg_comm_open *args,
                struct kg_comm **comm, struct kg_error *err);
    void (*close)(struct kg_comm *comm); /* NULL is allowed */

    /* Memory at the same offset on every rank; every rank calls with the same bytes. Before seal.
     * Owned by the plugin until close. KG_ELIMIT beyond symm_bytes, KG_EINVAL after seal or for 0
     * bytes, KG_ENOMEM. */
    int (*alloc_symm)(struct kg_comm *comm, uint64_t bytes, void **p);
    /* Once, on every rank, after the last alloc_symm and before the first collective. Ranks load
     * their weights before it: it waits longer than timeout_ns for one that is late, not for one
     * that is dead. */
    int (*seal)(struct kg_comm *comm, struct kg_error *err);

    /* Collectives: KG_EINVAL for a field that cannot be (channel, dtype, buffers, not sealed),
     * KG_EDEVICE when a rank is lost or the group was aborted. */

    /* out[i] = sum over ranks of in[i]. F32 and BF16 (with FIXED_ORDER summed in F32, rounded
     * once). */
    int (*all_reduce)(struct kg_comm *comm, const struct kg_coll *c);
    /* in: world*count elements; out: count elements, this rank's block of the sum. */
    int (*reduce_scatter)(struct kg_comm *comm, const struct kg_coll *c);
    /* in: count; out: world*count, in rank order. Any dtype. */
    int (*all_gather)(struct kg_comm *comm, const struct kg_coll *c);
    /* Block p of in (at p*count) goes to rank p; out block r comes from rank r. */
    int (*all_to_all)(struct kg_comm *comm, const struct kg_coll *c);
    /* out = root's in. */
    int (*broadcast)(struct kg_comm *comm, const struct kg_coll *c);
    /* Returns when every rank has called it. */
    int (*barrier)(struct kg_comm *comm, uint32_t channel);

    /* KG_OK while the group is well, KG_EDEVICE once a rank is lost. Never blocks. What a collective
     * that failed had begun may use its buffers until the group is closed: free them behind `close`. */
    int (*poll)(struct kg_comm *comm);
    /* Ends everything in flight on this rank and tells the others. Any thread. */
    void (*abort)(struct kg_comm *comm);
    /* One text: which call of which channel each rank was last seen in. Returns bytes written
     * without the NUL, at most n-1. */
    size_t (*progress_dump)(struct kg_comm *comm, char *text, size_t n);

    /* Optional (since minor 1). Names the algorithm that `world` ranks with these options would use
     * for `count` elements of `dtype` per rank, counted as in kg_coll: a word that lives as long as
     * the plugin. NULL for what it would refuse. `conf` as at open. Needs no group, never blocks;
     * any thread. */
    const char *(*choose)(const void *conf, uint32_t world, uint32_t op, uint32_t dtype,
                          uint64_t count);

    /* Optional (since minor 2). Capability bits with these options; `conf` as at open. Absent:
     * those of the plugin. */
    uint64_t (*caps)(const void *conf);
    /* Optional, KG_COMM_CAP_GRAPHS (since minor 2). What is in `stream` now counts as one call of
     * the channel: poll() tells when it is not done within the time-out. For graphs, whose calls
     * nobody sees. KG_EINVAL for a channel that cannot be, KG_EDEVICE. Device memory only. */
    int (*watch)(struct kg_comm *comm, uint32_t channel, void *stream);
};

#endif
