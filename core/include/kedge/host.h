/*
 * What the core gives a plugin instance: memory, log, clock, metric cells. One struct kg_host per
 * instance, valid until the instance's close() returns. Not offered on purpose: threads, files,
 * sockets, the event loop, other plugins.
 */
#ifndef KEDGE_HOST_H
#define KEDGE_HOST_H

#include <kedge/types.h>
#include <stdatomic.h>

enum kg_log_level {
    KG_LOG_ERROR = 0, /* an operator must act */
    KG_LOG_WARN = 1,  /* unexpected; we go on and say so */
    KG_LOG_INFO = 2,  /* life of the process */
    KG_LOG_DEBUG = 3, /* per object */
    KG_LOG_TRACE = 4, /* per step */
};

/* One metric value. One writer; read by other threads with relaxed loads. */
struct kg_cell {
    _Atomic uint64_t v;
};

struct kg_host {
    size_t size; /* sizeof(struct kg_host) of the core */
    void *ctx;   /* first argument of each service */

    /*
     * Memory, counted per instance. `bytes` > 0, `align` a power of two >= 8 (0 means 16).
     * NULL when there is none. Free with the same `bytes`; p may be NULL. Not in a step.
     */
    void *(*alloc)(void *ctx, size_t bytes, size_t align);
    void (*free)(void *ctx, void *p, size_t bytes);

    /* One line, prefixed with the instance; ten a second of a message at most. In a step only on
     * what is rare: a fault, or a plugin that changes its mind for long. */
    void (*log)(void *ctx, uint32_t level, const char *fmt, ...)
        __attribute__((format(printf, 3, 4)));

    /* Nanoseconds of a monotonic clock; the backend's clock once one is open (virtual or real). */
    uint64_t (*now_ns)(void *ctx);

    /* Cells in the order of the plugin's metric rows; NULL without rows. */
    struct kg_cell *cells;

    /* True in debug runs: poison freed units, checksum collectives, run check() after each step. */
    uint32_t debug;
    uint32_t reserved; /* 0 */
};

/*
 * An array of n elements of `each` bytes, aligned to 64; n may be 0. NULL when there is no memory,
 * or no number for its bytes. Not in a step. It goes back with the same n and each.
 */
static inline void *kg_host_take(const struct kg_host *host, size_t n, size_t each)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, each, &bytes)) {
        return NULL;
    }
    return host->alloc(host->ctx, bytes == 0 ? 1 : bytes, 64);
}

/* Gives an array of kg_host_take back; p may be NULL. */
static inline void kg_host_put(const struct kg_host *host, void *p, size_t n, size_t each)
{
    if (p != NULL) {
        host->free(host->ctx, p, n * each == 0 ? 1 : n * each);
    }
}

/* Adds to a counter. One writer per cell, so a plain relaxed store is enough. */
static inline void kg_add(struct kg_cell *cell, uint64_t n)
{
    uint64_t v = atomic_load_explicit(&cell->v, memory_order_relaxed);
    atomic_store_explicit(&cell->v, v + n, memory_order_relaxed);
}

/* Sets a gauge. */
static inline void kg_set(struct kg_cell *cell, uint64_t v)
{
    atomic_store_explicit(&cell->v, v, memory_order_relaxed);
}

/* Reads a cell; any thread. */
static inline uint64_t kg_get(const struct kg_cell *cell)
{
    return atomic_load_explicit(&((struct kg_cell *)(uintptr_t)cell)->v, memory_order_relaxed);
}

#endif
