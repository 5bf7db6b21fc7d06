/*
 * How ranks wait for each other: spin a little, give the core away, then sleep on the other's
 * counter. A sleeper looks up every 50 ms for a lost group, a dead process and its deadline.
 * Posting is one store; whether somebody sleeps is asked a moment later, when the store is on its
 * way and a look at the others cost nothing.
 */
#include "symmem.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 50000000u
#define EAGER 40 /* looks without a pause between them: about what a cache line takes to come */
#define YIELDS 200
#define NS_PER_S 1000000000ull

uint64_t symm_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static void sleep_on(_Atomic uint32_t *word, uint32_t seen)
{
    const struct timespec slice = {.tv_nsec = SLICE_NS};

    (void)syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT, seen, &slice, NULL, 0);
}

static void wake(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

int symm_well(const struct kg_comm *c)
{
    return atomic_load_explicit(&c->head->lost, memory_order_acquire) == 0 ? KG_OK : KG_EDEVICE;
}

void symm_wake(struct kg_comm *c, uint32_t channel, uint32_t rank)
{
    wake(&symm_meet_of(c, channel, rank)->arrive);
}

int symm_lose(struct kg_comm *c, enum symm_loss why, uint32_t rank)
{
    uint32_t none = 0;

    (void)atomic_compare_exchange_strong(&c->head->lost, &none, (uint32_t)why | rank << 8);
    for (uint32_t ch = 0; ch < c->n_channels; ch++) {
        for (uint32_t r = 0; r < c->world; r++)
            symm_wake(c, ch, r);
    }
    return KG_EDEVICE;
}

int symm_is_dead(const struct kg_comm *c, uint32_t rank)
{
    struct pollfd p = {.fd = c->pidfds[rank], .events = POLLIN};

    return p.fd >= 0 && poll(&p, 1, 0) == 1 && (p.revents & POLLIN) != 0;
}

/* The other rank is not there yet: is there still hope? */
static int hope(struct kg_comm *c, uint32_t rank, uint64_t *give_up_ns)
{
    uint64_t now = symm_now_ns();

    if (symm_well(c) != KG_OK)
        return KG_EDEVICE;
    if (atomic_load(&c->head->ranks[rank].left) != 0)
        return symm_lose(c, SYMM_LEFT, rank);
    if (symm_is_dead(c, rank))
        return symm_lose(c, SYMM_DIED, rank);
    if (*give_up_ns == 0)
        *give_up_ns = c->timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + c->timeout_ns;
    if (now >= *give_up_ns)
        return symm_lose(c, SYMM_LATE, rank);
    return KG_OK;
}

static int came(const struct symm_meet *m, uint32_t meeting)
{
    return (int32_t)(atomic_load_explicit(&m->arrive, memory_order_acquire) - meeting) >= 0;
}

int symm_await(struct kg_comm *c, uint32_t channel, uint32_t rank, uint64_t *give_up_ns)
{
    struct symm_meet *m = symm_meet_of(c, channel, rank);
    _Atomic uint32_t *sleepers = &symm_log_of(c, channel, rank)->sleepers;
    uint32_t meeting = c->channels[channel].meeting;
    int rc = KG_OK;

    for (uint32_t i = 0; i < c->conf.spins; i++) {
        if (came(m, meeting))
            return KG_OK;
        pause_core();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (came(m, meeting))
            return KG_OK;
        (void)sched_yield();
    }
    (void)atomic_fetch_add(sleepers, 1);
    for (int slept = 0;; slept = 1) {
        uint32_t seen = atomic_load(&m->arrive);
        if ((int32_t)(seen - meeting) >= 0)
            break;
        rc = hope(c, rank, give_up_ns);
        if (rc != KG_OK)
            break;
        if (!slept && c->host->cells != NULL)
            kg_add(&c->host->cells[SYMM_M_PARKED], 1);
        sleep_on(&m->arrive, seen);
    }
    (void)atomic_fetch_sub(sleepers, 1);
    if (rc != KG_OK && came(m, meeting)) /* it came before the group was lost: this call is whole */
        rc = KG_OK;
    return rc;
}

void symm_arrive(struct kg_comm *c, uint32_t channel, const struct symm_said *said, uint64_t sum)
{
    struct symm_meet *m = symm_meet_of(c, channel, c->rank);
    uint32_t meeting = ++c->channels[channel].meeting;

    m->said[meeting & 1] = *said;
    if (c->conf.checksum)
        m->sums[meeting & 1] = sum;
    atomic_store_explicit(&m->arrive, meeting, memory_order_release);
}

void symm_tell(struct kg_comm *c, uint32_t channel)
{
    /* A sleeper adds itself, then looks at `arrive`. Both sides change one word: either its
     * addition is seen here, or it comes later and then sees that this rank arrived. */
    if (atomic_fetch_add(&symm_log_of(c, channel, c->rank)->sleepers, 0) != 0)
        wake(&symm_meet_of(c, channel, c->rank)->arrive);
}

/* A short look at everyone. */
static void glance(const struct kg_comm *c, uint32_t channel)
{
    uint32_t meeting = c->channels[channel].meeting;

    for (uint32_t r = 0; r < c->world; r++) {
        for (int i = 0; i < EAGER && !came(symm_meet_of(c, channel, r), meeting); i++)
            continue;
    }
}

int symm_meet_all(struct kg_comm *c, uint32_t channel, const struct symm_said *said, uint64_t sum)
{
    uint64_t give_up_ns = 0;

    symm_arrive(c, channel, said, sum);
    glance(c, channel);
    symm_tell(c, channel);
    for (uint32_t r = 0; r < c->world; r++) {
        if (r == c->rank)
            continue;
        int rc = symm_await(c, channel, r, &give_up_ns);
        if (rc != KG_OK)
            return rc;
        const struct symm_said *o = symm_heard(c, channel, r);
        if (o->what != said->what || o->root != said->root || o->count != said->count)
            return symm_lose(c, SYMM_DIFFER, r);
    }
    return KG_OK;
}
