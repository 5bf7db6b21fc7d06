#include "kernels.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How often a waiting member looks before it sleeps; some microseconds. */
#define SPINS 2000

struct member {
    struct kg_team *team;
    uint32_t index;
    pthread_t thread;
};

struct kg_team {
    uint32_t n;
    /* Of the run in progress; written before `round` rises. */
    void (*fn)(void *arg, uint32_t task, uint32_t member);
    void *arg;
    uint32_t n_tasks;
    int stop;
    _Alignas(64) atomic_uint next;     /* first task nobody took */
    _Alignas(64) atomic_uint round;    /* rises with each run; members sleep on it */
    _Alignas(64) atomic_uint busy;     /* members that have not finished; the caller sleeps on it */
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

static void take_tasks(struct kg_team *team, uint32_t index)
{
    for (;;) {
        uint32_t task = atomic_fetch_add_explicit(&team->next, 1, memory_order_relaxed);

        if (task >= team->n_tasks)
            return;
        team->fn(team->arg, task, index);
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
        if (team->stop)
            return NULL;
        take_tasks(team, me->index);
        if (atomic_fetch_sub(&team->busy, 1) == 1)
            futex_wake(&team->busy);
    }
}

static void start_round(struct kg_team *team)
{
    atomic_fetch_add(&team->round, 1);
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
    t->n = 1;
    t->fn = NULL;
    t->arg = NULL;
    t->n_tasks = 0;
    t->stop = 0;
    atomic_init(&t->next, 0);
    atomic_init(&t->round, 0);
    atomic_init(&t->busy, 0);
    atomic_init(&t->sleepers, 0);
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
    team->stop = 1;
    start_round(team);
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
    team->fn = fn;
    team->arg = arg;
    team->n_tasks = n_tasks;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    atomic_store_explicit(&team->busy, team->n - 1, memory_order_relaxed);
    start_round(team);
    take_tasks(team, team->n - 1);
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&team->busy, memory_order_acquire) == 0)
            return;
        relax();
    }
    for (;;) {
        unsigned busy = atomic_load_explicit(&team->busy, memory_order_acquire);

        if (busy == 0)
            return;
        futex_wait(&team->busy, busy);
    }
}
