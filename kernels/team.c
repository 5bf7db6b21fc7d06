#include "kernels.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * How long a waiting member looks before it sleeps. A sleeper is late by tens of microseconds, and
 * the kernel may wake it on the core of a member that works, where it waits for a tick while its
 * own core is idle: within a step nobody should sleep. Where others want the cores, too, it is the
 * other way round: a member that was put aside comes back sooner on the core of one that sleeps.
 * They see it by a clock that leaps while they look and by a round that does not end, and look but
 * shortly for a while. Tasks of milliseconds, as in a long prefill, look the same: there it is of
 * little account.
 */
#define LOOKS 64 /* between two looks at the clock: a microsecond or three */
#define LONG_NS UINT64_C(400000)
#define SHORT_NS UINT64_C(30000)
#define LEAP_NS UINT64_C(1000000)   /* more than a thread needs that only passes something on */
#define WARY_NS UINT64_C(200000000) /* so long after a leap */

typedef void kg_team_fn(void *arg, uint32_t task, uint32_t member);

struct member {
    struct kg_team *team;
    uint32_t index;
    pthread_t thread;
};

/*
 * A run is a round. `next` holds the round in its upper half and the first task nobody took in
 * its lower half, so a member takes a task and checks that the run is still the one it looked at
 * in one step. Nobody waits for members that took nothing: on a busy machine a sleeping member
 * may come late and find the run over.
 */
struct kg_team {
    uint32_t n;
    atomic_int stop;
    /* Of the run in progress. A late member may read the next run's: its take then fails. */
    _Atomic(kg_team_fn *) fn;
    _Atomic(void *) arg;
    atomic_uint n_tasks;
    _Alignas(64) _Atomic uint64_t next;
    _Alignas(64) atomic_uint round;    /* of the run in progress; members sleep on it */
    _Alignas(64) atomic_uint done;     /* tasks finished; the caller sleeps on it */
    atomic_uint waiting;               /* the caller is about to sleep */
    _Alignas(64) atomic_uint sleepers; /* members asleep: no wake-up call when zero */
    _Atomic uint64_t wary_until;       /* monotonic: until then they look shortly */
    struct member members[];           /* [n - 1] */
};

static void futex_wait(atomic_uint *word, unsigned seen)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Works on run `round` until it has no task left. */
static void take_tasks(struct kg_team *team, uint32_t index, uint32_t round)
{
    for (;;) {
        kg_team_fn *fn = atomic_load_explicit(&team->fn, memory_order_acquire);
        void *arg = atomic_load_explicit(&team->arg, memory_order_acquire);
        uint32_t n = atomic_load_explicit(&team->n_tasks, memory_order_acquire);
        uint64_t next = atomic_load_explicit(&team->next, memory_order_acquire);

        if ((uint32_t)(next >> 32) != round || (uint32_t)next >= n)
            return;
        if (!atomic_compare_exchange_strong_explicit(&team->next, &next, next + 1,
                                                     memory_order_acq_rel, memory_order_relaxed))
            continue;
        fn(arg, (uint32_t)next, index);
        if (atomic_fetch_add(&team->done, 1) + 1 == n && atomic_load(&team->waiting) != 0)
            futex_wake(&team->done);
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void be_wary(struct kg_team *team, uint64_t now)
{
    atomic_store_explicit(&team->wary_until, now + WARY_NS, memory_order_relaxed);
}

/* 1: the word is `value` (is = 1) or not (is = 0). 0: it is time to sleep; *start is when the
 * looking began, about. */
static int look(struct kg_team *team, atomic_uint *word, unsigned value, int is, uint64_t *start)
{
    uint64_t last = 0, limit = 0;

    for (;;) {
        for (int i = 0; i < LOOKS; i++) {
            if ((atomic_load_explicit(word, memory_order_acquire) == value) == is)
                return 1;
            relax();
        }
        uint64_t now = now_ns();
        if (last == 0) {
            uint64_t wary = atomic_load_explicit(&team->wary_until, memory_order_relaxed);
            *start = now;
            limit = now < wary ? SHORT_NS : LONG_NS;
        } else if (now - last > LEAP_NS) {
            be_wary(team, now);
        }
        if (now - *start > limit)
            return 0;
        last = now;
    }
}

static unsigned wait_round(struct kg_team *team, unsigned seen)
{
    uint64_t start;

    if (look(team, &team->round, seen, 0, &start))
        return atomic_load_explicit(&team->round, memory_order_acquire);
    /* Sequentially consistent on both sides: either the caller sees the sleeper or the kernel sees
     * the new round. */
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(&team->round) == seen)
        futex_wait(&team->round, seen);
    atomic_fetch_sub(&team->sleepers, 1);
    return atomic_load(&team->round);
}

static void *member_main(void *arg)
{
    struct member *me = arg;
    struct kg_team *team = me->team;
    unsigned seen = 0;

    for (;;) {
        seen = wait_round(team, seen);
        if (atomic_load(&team->stop))
            return NULL;
        take_tasks(team, me->index, seen);
    }
}

static void start_round(struct kg_team *team, uint32_t round)
{
    atomic_store(&team->round, round);
    if (atomic_load(&team->sleepers) > 0)
        futex_wake(&team->round);
}

int kg_team_create(uint32_t n_threads, struct kg_team **team, struct kg_error *err)
{
    if (n_threads < 1 || n_threads > KG_TEAM_MAX)
        return kg_fail(err, KG_EINVAL, "threads = %u: must be 1..%u", n_threads, KG_TEAM_MAX);
    size_t bytes = sizeof(struct kg_team) + (n_threads - 1) * sizeof(struct member);
    struct kg_team *t = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (t == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for a team of %u threads", n_threads);
    memset(t, 0, bytes);
    t->n = 1;
    for (uint32_t i = 0; i + 1 < n_threads; i++) {
        struct member *m = &t->members[i];

        m->team = t;
        m->index = i;
        if (pthread_create(&m->thread, NULL, member_main, m) != 0) {
            kg_team_destroy(t);
            return kg_fail(err, KG_ENOMEM, "cannot start thread %u of %u", i + 2, n_threads);
        }
        t->n++;
    }
    *team = t;
    return KG_OK;
}

void kg_team_destroy(struct kg_team *team)
{
    if (team == NULL)
        return;
    atomic_store(&team->stop, 1);
    start_round(team, atomic_load(&team->round) + 1);
    for (uint32_t i = 0; i + 1 < team->n; i++)
        (void)pthread_join(team->members[i].thread, NULL);
    free(team);
}

uint32_t kg_team_size(const struct kg_team *team)
{
    return team == NULL ? 1 : team->n;
}

void kg_team_run(struct kg_team *team, void (*fn)(void *arg, uint32_t task, uint32_t member),
                 void *arg, uint32_t n_tasks)
{
    if (team == NULL || team->n == 1 || n_tasks <= 1) {
        for (uint32_t task = 0; task < n_tasks; task++)
            fn(arg, task, kg_team_size(team) - 1);
        return;
    }
    uint32_t round = atomic_load_explicit(&team->round, memory_order_relaxed) + 1;
    uint64_t start;

    /* next first: whoever sees a new fn or arg below cannot take a task of an older round */
    atomic_store(&team->next, (uint64_t)round << 32);
    atomic_store_explicit(&team->fn, fn, memory_order_release);
    atomic_store_explicit(&team->arg, arg, memory_order_release);
    atomic_store_explicit(&team->n_tasks, n_tasks, memory_order_release);
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    start_round(team, round);
    take_tasks(team, team->n - 1, round);
    if (look(team, &team->done, n_tasks, 1, &start))
        return;
    atomic_store(&team->waiting, 1);
    for (;;) {
        unsigned done = atomic_load(&team->done);

        if (done == n_tasks)
            break;
        futex_wait(&team->done, done);
    }
    atomic_store(&team->waiting, 0);
    uint64_t now = now_ns();
    if (now - start > LEAP_NS)
        be_wary(team, now);
}
