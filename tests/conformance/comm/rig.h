/* Runs one function on every rank of a group; ranks are threads, joined before it returns. */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_RIG_H
#define KEDGE_TESTS_CONFORMANCE_COMM_RIG_H

#include "base/log.h"

#include <kedge/comm.h>

#define RIG_WORLD 8
#define RIG_SYMM (1u << 20)
#define RIG_CHANNELS 2

/* One rank inside a case. */
struct rank {
    const struct kg_comm_ops *ops;
    struct kg_comm *comm;
    uint64_t caps; /* with the rig's options */
    uint32_t rank, world;
    char fault[300]; /* first thing that was wrong; "" for none */
};

/* Notes what is wrong and leaves the case. Asserts of cmocka may not run off the main thread. */
#define WANT(r, cond)                      \
    do {                                   \
        if (!(cond)) {                     \
            rig_fault(r, __LINE__, #cond); \
            return;                        \
        }                                  \
    } while (0)
void rig_fault(struct rank *r, int line, const char *text);

typedef void rig_case(struct rank *r);

struct rig {
    const struct kg_plugin *plugin;
    const struct kg_comm_ops *ops; /* in place of the plugin's own; NULL: those */
    uint32_t world;
    uint64_t timeout_ns; /* of a collective */
    const void *conf;    /* the plugin's options, or NULL for its own defaults */
    /* What is wanted of a rank that cannot be opened; NULL: that is a fault. */
    void (*refused)(struct rank *r, int rc, const struct kg_error *err);
    uint32_t absent;    /* 1 + a rank that never comes; 0: all come */
    struct kg_log *log; /* where plugins write; NULL: nowhere */
};

/* Opens every rank, runs the case on each, closes; false with *fault (300 bytes) when one failed.
 */
int rig_run(const struct rig *rig, rig_case *run, char *fault);

/* Symmetric memory of this rank, NULL on failure. */
void *rig_symm(struct rank *r, uint64_t bytes);

#endif
