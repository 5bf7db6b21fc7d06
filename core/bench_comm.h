/* What `kedge bench comm` measures: collectives of rank processes, each way to do one beside
 * others. */
#ifndef KEDGE_CORE_BENCH_COMM_H
#define KEDGE_CORE_BENCH_COMM_H

#include <kedge/comm.h>

#define KG_BENCH_COMM_WAYS 12
#define KG_BENCH_COMM_SIZES 24

/* One way: a plugin with options, or (plugin NULL) a plain barrier and memcpy. */
struct kg_bench_way {
    const char *name;
    const struct kg_plugin *plugin;
    const void *conf;
};

/* One cell: times of a call, seen by rank 0, microseconds; the medians of the repeats' medians and
 * of their 99th percentiles. */
struct kg_bench_comm_cell {
    double p50_us, p99_us;
};

struct kg_bench_comm {
    uint32_t world, n_ways, n_sizes, repeats, calls; /* calls of a repeat */
    uint32_t op;                                     /* KG_COMM_ALL_REDUCE or KG_COMM_ALL_GATHER */
    uint32_t pin; /* 1: rank r is bound to core r of those it may use, counted round */
    struct kg_bench_way ways[KG_BENCH_COMM_WAYS];
    uint64_t sizes[KG_BENCH_COMM_SIZES]; /* bytes a rank gives, multiples of 4, ascending */
    struct kg_bench_comm_cell cells[KG_BENCH_COMM_SIZES][KG_BENCH_COMM_WAYS];
};

/* Collectives in F32, every way in turn, `repeats` times, in `world` processes. The calling process
 * has one thread. Fills cells. KG_EDEVICE when a rank failed. */
int kg_bench_comm_run(struct kg_bench_comm *b, struct kg_error *err);

#endif
