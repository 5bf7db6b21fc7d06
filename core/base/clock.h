/* Monotonic time that can be injected: tests and virtual backends give their own. */
#ifndef KEDGE_BASE_CLOCK_H
#define KEDGE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define KG_NS_PER_MS UINT64_C(1000000)
#define KG_NS_PER_S UINT64_C(1000000000)

struct kg_clock {
    uint64_t (*now_ns)(void *ctx); /* nanoseconds, never falls; any thread */
    void *ctx;
};

static inline uint64_t kg_clock_now(const struct kg_clock *c)
{
    return c->now_ns(c->ctx);
}

/* CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t kg_now_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * KG_NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* CPU time of the calling thread in nanoseconds: what others took meanwhile is not in it. */
static inline uint64_t kg_cpu_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * KG_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static inline uint64_t kg_clock_real(void *ctx)
{
    (void)ctx;
    return kg_now_ns();
}

/* The machine's monotonic clock. */
static inline struct kg_clock kg_clock_monotonic(void)
{
    return (struct kg_clock){kg_clock_real, NULL};
}

#endif
