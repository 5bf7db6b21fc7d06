/* Everything that takes time: with a deadline, and an eye on all that can go wrong meanwhile. */
#include "comm_nccl.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SPINS 100u  /* looks before the core is given away */
#define YIELDS 200u /* times it is given away before it is slept */
#define NAP_NS 50000
#define LOCK_NS 500000000ull /* how long an abort waits for a call into NCCL to return */
#define LEFT_NS                                                                      \
    1000000000ull /* what a rank may be ahead: it has closed, the device is not done \
                   */
#define NS_PER_S 1000000000ull

uint64_t nccl_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static struct timespec at_ns(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

static uint64_t after(uint64_t now, uint64_t ns)
{
    return ns > UINT64_MAX - now ? UINT64_MAX : now + ns;
}

/* A rank whose process ended, or KG_NONE. */
static uint32_t dead_rank(const struct kg_comm *c)
{
    struct pollfd p[NCCL_MAX_WORLD];

    for (uint32_t r = 0; r < c->world; r++)
        p[r] = (struct pollfd){.fd = c->pidfds[r], .events = POLLIN};
    if (poll(p, c->world, 0) <= 0)
        return KG_NONE;
    for (uint32_t r = 0; r < c->world; r++) {
        if (p[r].revents & POLLIN)
            return r;
    }
    return KG_NONE;
}

static uint32_t left_rank(const struct kg_comm *c)
{
    for (uint32_t r = 0; r < c->world; r++) {
        if (r != c->rank && atomic_load(&c->board->places[r].left) != 0)
            return r;
    }
    return KG_NONE;
}

int nccl_hope(struct kg_comm *c, struct nccl_patience *p, const char *what, uint32_t rank)
{
    if (nccl_well(c) != KG_OK)
        return KG_EDEVICE;
    if (++p->looks < SPINS)
        return KG_OK;
    if (p->looks < SPINS + YIELDS) {
        (void)sched_yield();
        return KG_OK;
    }
    uint64_t now = nccl_now_ns();
    if (p->end_ns == 0)
        p->end_ns = after(now, p->timeout_ns);
    uint32_t gone = dead_rank(c);
    if (gone != KG_NONE)
        return nccl_lose(c, "death of rank %u", gone);
    gone = left_rank(c);
    if (gone != KG_NONE && p->left_ns == 0)
        p->left_ns = now;
    if (gone != KG_NONE && (gone == rank || now - p->left_ns > LEFT_NS))
        return nccl_lose(c, "early close of rank %u", gone);
    if (now >= p->end_ns && rank != KG_NONE)
        return nccl_lose(c, "time-out %s rank %u", what, rank);
    if (now >= p->end_ns)
        return nccl_lose(c, "time-out of rank %u in %s", c->rank, what);
    const struct timespec nap = {.tv_nsec = NAP_NS};
    (void)nanosleep(&nap, NULL);
    return KG_OK;
}

int nccl_returned(struct kg_comm *c, ncclResult_t r, ncclComm_t comm, const char *what)
{
    if (r == ncclSuccess || r == ncclInProgress)
        return KG_OK;
    const char *more = c->lib.nccl.last_error(comm);
    return nccl_lose(c, "rank %u, %s: NCCL: %s%s%.120s", c->rank, what, c->lib.nccl.error_string(r),
                     more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
}

/* NCCL's asynchronous word on a channel: *busy while it has not done what it was told. */
static int async(struct kg_comm *c, uint32_t channel, const char *what, int *busy)
{
    struct nccl_channel *ch = &c->channels[channel];
    ncclResult_t state = ncclSuccess, r = ncclSuccess;

    (void)pthread_mutex_lock(&ch->lock);
    ncclComm_t comm = atomic_load(&ch->comm);
    if (comm != NULL)
        r = c->lib.nccl.async_error(comm, &state);
    (void)pthread_mutex_unlock(&ch->lock);
    if (comm == NULL)
        return KG_EDEVICE; /* aborted */
    *busy = state == ncclInProgress;
    return nccl_returned(c, r != ncclSuccess ? r : state, NULL, what);
}

int nccl_settle(struct kg_comm *c, uint32_t channel, uint64_t timeout_ns, const char *what)
{
    struct nccl_patience p = {.timeout_ns = timeout_ns};

    for (;;) {
        int busy = 0;
        int rc = async(c, channel, what, &busy);
        if (rc != KG_OK || !busy)
            return rc;
        rc = nccl_hope(c, &p, what, KG_NONE);
        if (rc != KG_OK)
            return rc;
    }
}

static int cuda_failed(struct kg_comm *c, CUresult e, const char *what)
{
    return nccl_lose(c, "rank %u, %s: CUDA: %s", c->rank, what, nccl_cuda_text(&c->lib, e));
}

int nccl_finish(struct kg_comm *c, uint32_t channel, CUstream stream, const char *what)
{
    struct nccl_channel *ch = &c->channels[channel];
    struct nccl_patience p = {.timeout_ns = c->timeout_ns};

    CUresult e = c->lib.cuda.event_record(ch->event, stream);
    if (e != CUDA_SUCCESS)
        return cuda_failed(c, e, what);
    for (;;) {
        int busy = 0;
        e = c->lib.cuda.event_query(ch->event);
        if (e != CUDA_SUCCESS && e != CUDA_ERROR_NOT_READY)
            return cuda_failed(c, e, what);
        int rc = async(c, channel, what, &busy);
        if (rc != KG_OK || (e == CUDA_SUCCESS && !busy))
            return rc;
        rc = nccl_hope(c, &p, what, KG_NONE);
        if (rc != KG_OK)
            return rc;
    }
}

/* Drops the tracked calls that are done; the lock is held. Whether the oldest left takes too long:
 * since it was given, or since the one before it was done. */
static int drain(struct kg_comm *c, struct nccl_channel *ch, CUresult *bad)
{
    uint64_t now = nccl_now_ns();

    while (ch->ring_n > 0) {
        uint32_t at = ch->ring_from;
        CUresult e = c->lib.cuda.event_query(ch->ring[at]);
        if (e == CUDA_ERROR_NOT_READY)
            return now >= after(ch->since_ns[at], c->timeout_ns);
        if (e != CUDA_SUCCESS) {
            *bad = e;
            return 0;
        }
        ch->ring_from = (at + 1) % NCCL_RING;
        if (--ch->ring_n > 0)
            ch->since_ns[ch->ring_from] = now;
    }
    return 0;
}

int nccl_track(struct kg_comm *c, uint32_t channel, CUstream stream)
{
    struct nccl_channel *ch = &c->channels[channel];
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult e = c->lib.cuda.stream_capturing(stream, &status);

    if (e == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
        return KG_OK; /* an event recorded now would become part of the graph */
    (void)pthread_mutex_lock(&ch->lock);
    if (e == CUDA_SUCCESS)
        (void)drain(c, ch, &e);
    if (e == CUDA_SUCCESS) {
        /* when there is no room the newest event moves behind this call */
        uint32_t k = ch->ring_n < NCCL_RING ? ch->ring_n++ : NCCL_RING - 1;
        uint32_t at = (ch->ring_from + k) % NCCL_RING;
        ch->since_ns[at] = nccl_now_ns();
        e = c->lib.cuda.event_record(ch->ring[at], stream);
    }
    (void)pthread_mutex_unlock(&ch->lock);
    return e == CUDA_SUCCESS ? KG_OK : cuda_failed(c, e, "a stream");
}

int nccl_look(struct kg_comm *c)
{
    if (nccl_well(c) != KG_OK)
        return KG_EDEVICE;
    uint32_t gone = dead_rank(c);
    if (gone != KG_NONE)
        return nccl_lose(c, "death of rank %u", gone);
    for (uint32_t i = 0; i < c->n_channels; i++) {
        CUresult bad = CUDA_SUCCESS;
        int busy;
        int rc = async(c, i, "poll", &busy);
        (void)pthread_mutex_lock(&c->channels[i].lock);
        int late = drain(c, &c->channels[i], &bad);
        (void)pthread_mutex_unlock(&c->channels[i].lock);
        if (rc == KG_OK && late)
            rc = nccl_lose(c, "time-out of rank %u in a stream, channel %u", c->rank, i);
        if (rc == KG_OK && bad != CUDA_SUCCESS)
            rc = cuda_failed(c, bad, "poll");
        if (rc != KG_OK)
            return rc;
    }
    return KG_OK;
}

/* --- the end, when it is not orderly --- */

static void let_go(struct nccl_fall *f)
{
    (void)pthread_mutex_lock(&f->lock);
    uint32_t users = --f->users;
    (void)pthread_mutex_unlock(&f->lock);
    if (users > 0)
        return;
    (void)pthread_cond_destroy(&f->change);
    (void)pthread_mutex_destroy(&f->lock);
    free(f);
}

static void *fall(void *arg)
{
    struct nccl_fall *f = arg;

    for (uint32_t i = 0; i < f->n; i++)
        (void)f->abort(f->comms[i]);
    (void)pthread_mutex_lock(&f->lock);
    f->done = 1;
    (void)pthread_cond_broadcast(&f->change);
    (void)pthread_mutex_unlock(&f->lock);
    let_go(f);
    return NULL;
}

/* Looks again and again: race detectors do not know pthread_mutex_clocklock. 0: not within ns. */
static int lock_within(pthread_mutex_t *lock, uint64_t ns)
{
    uint64_t end = after(nccl_now_ns(), ns);

    while (pthread_mutex_trylock(lock) != 0) {
        if (nccl_now_ns() >= end)
            return 0;
        (void)poll(NULL, 0, 1);
    }
    return 1;
}

void nccl_fall(struct kg_comm *c)
{
    struct nccl_fall *f = c->fall;
    pthread_t thread;

    if (atomic_exchange(&c->fallen, 1) != 0)
        return;
    for (uint32_t i = 0; i < c->n_channels; i++) {
        struct nccl_channel *ch = &c->channels[i];
        /* who hangs in NCCL with the lock is set free by nothing but the abort */
        int held = lock_within(&ch->lock, LOCK_NS);
        ncclComm_t comm = atomic_exchange(&ch->comm, NULL);
        if (held)
            (void)pthread_mutex_unlock(&ch->lock);
        if (comm != NULL)
            f->comms[f->n++] = comm;
    }
    f->users++;
    if (pthread_create(&thread, NULL, fall, f) == 0)
        (void)pthread_detach(thread);
    else
        (void)fall(f);
}

int nccl_fallen(struct kg_comm *c, uint64_t timeout_ns)
{
    struct nccl_fall *f = c->fall;
    struct timespec end = at_ns(nccl_now_ns() + timeout_ns);
    int done = 1;

    if (f == NULL)
        return 1;
    if (atomic_load(&c->fallen) != 0) {
        (void)pthread_mutex_lock(&f->lock);
        while (f->done == 0 &&
               pthread_cond_clockwait(&f->change, &f->lock, CLOCK_MONOTONIC, &end) == 0) {
        }
        done = (int)f->done;
        (void)pthread_mutex_unlock(&f->lock);
    }
    c->fall = NULL;
    let_go(f);
    return done;
}

int nccl_part(struct kg_comm *c, uint32_t channel, uint64_t timeout_ns)
{
    struct nccl_channel *ch = &c->channels[channel];
    const struct timespec nap = {.tv_nsec = NAP_NS};
    uint64_t end = after(nccl_now_ns(), timeout_ns);
    ncclComm_t comm = atomic_load(&ch->comm);
    ncclResult_t state = ncclSuccess;

    if (comm == NULL)
        return 1;
    if (ch->window != NULL && c->lib.nccl.window_end(comm, ch->window) > ncclSuccess)
        return 0;
    ncclResult_t r = c->lib.nccl.finalize(comm);
    if (r != ncclSuccess && r != ncclInProgress)
        return 0;
    for (;;) {
        r = c->lib.nccl.async_error(comm, &state);
        if (r != ncclSuccess || (state != ncclSuccess && state != ncclInProgress))
            return 0;
        if (state == ncclSuccess)
            break;
        if (nccl_now_ns() >= end)
            return 0;
        (void)nanosleep(&nap, NULL);
    }
    atomic_store(&ch->comm, NULL);
    return c->lib.nccl.destroy(comm) == ncclSuccess;
}
