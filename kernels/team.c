#include "kernels.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How often a waiting member looks before it sleeps; some microseconds. */
#define SPINS 2000

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

static unsigned wait_round(struct kg_team *team, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        unsigned now = atomic_load_explicit(&team->round, memory_order_acquire);

        if (now != seen)
            return now;
        relax();
    }
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

    /* next first: whoever sees a new fn or arg below cannot take a task of an older round */
    atomic_store(&team->next, (uint64_t)round << 32);
    atomic_store_explicit(&team->fn, fn, memory_order_release);
    atomic_store_explicit(&team->arg, arg, memory_order_release);
    atomic_store_explicit(&team->n_tasks, n_tasks, memory_order_release);
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    start_round(team, round);
    take_tasks(team, team->n - 1, round);
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&team->done, memory_order_acquire) == n_tasks)
            return;
        relax();
    }
    atomic_store(&team->waiting, 1);
    for (;;) {
        unsigned done = atomic_load(&team->done);

        if (done == n_tasks)
            break;
        futex_wait(&team->done, done);
    }
    atomic_store(&team->waiting, 0);
}
