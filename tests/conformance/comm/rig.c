#include "rig.h"

#include "base/clock.h"
#include "host.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* A bootstrap of threads: one board under a lock. */
struct board {
    pthread_mutex_t lock;
    pthread_cond_t change;
    uint32_t world, waiting;
    uint64_t round;
    unsigned char bytes[RIG_WORLD][4096];
    int fds[RIG_WORLD][RIG_WORLD]; /* [from][to], -1 empty */
};

struct seat {
    struct board *board;
    uint32_t rank;
};

static struct timespec end_of(uint64_t deadline_ns)
{
    struct timespec end;

    (void)clock_gettime(CLOCK_REALTIME, &end);
    uint64_t ns = (uint64_t)end.tv_nsec + deadline_ns;
    end.tv_sec += (time_t)(ns / KG_NS_PER_S);
    end.tv_nsec = (long)(ns % KG_NS_PER_S);
    return end;
}

static int board_wait(struct board *b, uint64_t deadline_ns)
{
    struct timespec end = end_of(deadline_ns);
    uint64_t round = b->round;

    if (++b->waiting == b->world) {
        b->waiting = 0;
        b->round++;
        (void)pthread_cond_broadcast(&b->change);
    }
    while (b->round == round) {
        if (pthread_cond_timedwait(&b->change, &b->lock, &end) != 0 && b->round == round)
            return KG_ETIMEOUT;
    }
    return KG_OK;
}

static int board_all_gather(void *ctx, const void *in, void *out, size_t bytes,
                            uint64_t deadline_ns)
{
    struct seat *s = ctx;
    struct board *b = s->board;

    if (bytes > sizeof(b->bytes[0]))
        return KG_ELIMIT;
    (void)pthread_mutex_lock(&b->lock);
    memcpy(b->bytes[s->rank], in, bytes);
    int rc = board_wait(b, deadline_ns);
    for (uint32_t r = 0; rc == KG_OK && r < b->world; r++)
        memcpy((char *)out + r * bytes, b->bytes[r], bytes);
    if (rc == KG_OK)
        rc = board_wait(b, deadline_ns); /* nobody overwrites what others still read */
    (void)pthread_mutex_unlock(&b->lock);
    return rc;
}

static int board_barrier(void *ctx, uint64_t deadline_ns)
{
    struct seat *s = ctx;

    (void)pthread_mutex_lock(&s->board->lock);
    int rc = board_wait(s->board, deadline_ns);
    (void)pthread_mutex_unlock(&s->board->lock);
    return rc;
}

static int board_send_fd(void *ctx, uint32_t to, int fd, uint64_t deadline_ns)
{
    struct seat *s = ctx;
    struct board *b = s->board;
    struct timespec end = end_of(deadline_ns);
    int rc = KG_OK;

    (void)pthread_mutex_lock(&b->lock);
    while (rc == KG_OK && b->fds[s->rank][to] >= 0) { /* the one before it was not taken yet */
        if (pthread_cond_timedwait(&b->change, &b->lock, &end) != 0)
            rc = KG_ETIMEOUT;
    }
    if (rc == KG_OK)
        b->fds[s->rank][to] = dup(fd);
    (void)pthread_cond_broadcast(&b->change);
    (void)pthread_mutex_unlock(&b->lock);
    return rc;
}

static int board_recv_fd(void *ctx, uint32_t from, int *fd, uint64_t deadline_ns)
{
    struct seat *s = ctx;
    struct board *b = s->board;
    struct timespec end = end_of(deadline_ns);
    int rc = KG_OK;

    (void)pthread_mutex_lock(&b->lock);
    while (rc == KG_OK && b->fds[from][s->rank] < 0) {
        if (pthread_cond_timedwait(&b->change, &b->lock, &end) != 0)
            rc = KG_ETIMEOUT;
    }
    if (rc == KG_OK) {
        *fd = b->fds[from][s->rank];
        b->fds[from][s->rank] = -1;
        (void)pthread_cond_broadcast(&b->change);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return rc;
}

void rig_fault(struct rank *r, int line, const char *text)
{
    if (r->fault[0] == '\0')
        (void)snprintf(r->fault, sizeof(r->fault), "rank %u of %u, line %d: %.200s", r->rank,
                       r->world, line, text);
}

struct worker {
    const struct rig *rig;
    struct seat seat;
    rig_case *run;
    struct rank r;
};

static void work(struct worker *w, struct kg_instance *host)
{
    const struct kg_bootstrap boot = {.size = sizeof(boot),
                                      .ctx = &w->seat,
                                      .all_gather = board_all_gather,
                                      .send_fd = board_send_fd,
                                      .recv_fd = board_recv_fd,
                                      .barrier = board_barrier};
    const struct kg_comm_open args = {.size = sizeof(args),
                                      .rank = w->r.rank,
                                      .world = w->r.world,
                                      .boot = w->r.world > 1 ? &boot : NULL,
                                      .symm_bytes = RIG_SYMM,
                                      .n_channels = RIG_CHANNELS,
                                      .device = w->r.rank,
                                      .timeout_ns = w->rig->timeout_ns};
    struct kg_error err = {0};

    int rc = w->r.ops->open(&host->host, w->rig->conf, &args, &w->r.comm, &err);
    if (rc != KG_OK) {
        if (w->rig->refused != NULL)
            w->rig->refused(&w->r, rc, &err);
        else
            rig_fault(&w->r, __LINE__, err.text);
        if (kg_instance_bytes(host) != 0)
            rig_fault(&w->r, __LINE__, "memory left behind at a failed open");
        return;
    }
    w->run(&w->r);
    (void)board_barrier(&w->seat, 20 * KG_NS_PER_S); /* nobody leaves while others use it */
    w->r.ops->close(w->r.comm);
    if (kg_instance_bytes(host) != 0)
        rig_fault(&w->r, __LINE__, "memory left behind at close");
}

static void *enter(void *arg)
{
    struct worker *w = arg;
    struct kg_clock clock = kg_clock_monotonic();
    struct kg_instance *host;

    if (w->rig->absent == w->r.rank + 1)
        return NULL;
    if (kg_instance_create(w->rig->plugin, w->rig->log, &clock, 1, &host) != KG_OK) {
        rig_fault(&w->r, __LINE__, "no host services");
        return NULL;
    }
    work(w, host);
    kg_instance_destroy(host);
    return NULL;
}

int rig_run(const struct rig *rig, rig_case *run, char *fault)
{
    struct board board = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER, .world = rig->world};
    struct worker workers[RIG_WORLD];
    pthread_t threads[RIG_WORLD];

    memset(board.fds, 0xff, sizeof(board.fds));
    memset(workers, 0, sizeof(workers));
    for (uint32_t i = 0; i < rig->world; i++) {
        struct worker *w = &workers[i];
        w->rig = rig;
        w->seat = (struct seat){&board, i};
        w->run = run;
        const struct kg_comm_ops *ops = rig->ops != NULL ? rig->ops : rig->plugin->ops;
        w->r = (struct rank){.ops = ops,
                             .caps = KG_HAS(ops, struct kg_comm_ops, caps) ? ops->caps(rig->conf)
                                                                           : rig->plugin->caps,
                             .rank = i,
                             .world = rig->world};
        if (pthread_create(&threads[i], NULL, enter, w) != 0)
            abort(); /* the machine is out of threads: no case can say anything */
    }
    fault[0] = '\0';
    for (uint32_t i = 0; i < rig->world; i++) {
        (void)pthread_join(threads[i], NULL);
        if (fault[0] == '\0' && workers[i].r.fault[0] != '\0')
            memcpy(fault, workers[i].r.fault, sizeof(workers[i].r.fault));
    }
    return fault[0] == '\0';
}

void *rig_symm(struct rank *r, uint64_t bytes)
{
    void *p = NULL;

    if (r->ops->alloc_symm(r->comm, bytes, &p) != KG_OK) {
        rig_fault(r, __LINE__, "alloc_symm");
        return NULL;
    }
    return p;
}
