/* Random collectives of every kind and size, each checked against numbers computed here. */
#ifndef KEDGE_TESTS_CONFORMANCE_COMM_STORM_H
#define KEDGE_TESTS_CONFORMANCE_COMM_STORM_H

#include <kedge/comm.h>

#define STORM_SYMM (8u << 20) /* symmetric bytes a storm needs */
#define STORM_CHANNELS 2

struct storm {
    const struct kg_comm_ops *ops;
    struct kg_comm *comm; /* open, not sealed; STORM_SYMM bytes, STORM_CHANNELS channels */
    uint32_t rank, world;
    uint64_t seed;                /* equal on all ranks: what is called and with what */
    uint64_t calls;               /* how many */
    char *fault;                  /* [300] what was wrong first */
    void (*begun)(uint32_t rank); /* called behind seal; may be NULL */
    int loose; /* sums in any order: within a bound of the exact one, else to the bit */
    int lanes; /* each channel has a thread of its own; else calls go round the channels */
    void *held[2 * STORM_CHANNELS]; /* buffers of the calls, which may be written to until close */
};

/* Seals and calls; KG_OK, the first bad result of a call, or KG_EIO for a wrong element (fault). */
int storm_run(struct storm *s);
/* Behind close: frees what the calls used. */
void storm_end(struct storm *s);

#endif
