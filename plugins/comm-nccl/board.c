/* The page all ranks map: who is where, and why the group is lost. */
#include "comm_nccl.h"

#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x4b474e43u /* "KGNC" */

static int came(struct nccl_place *place, uint32_t channel, uint32_t meeting)
{
    return (int32_t)(atomic_load(&place->channels[channel].arrive) - meeting) >= 0;
}

static int map(struct kg_comm *c, int fd)
{
    void *p = mmap(NULL, sizeof(*c->board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED)
        return KG_ENOMEM;
    c->board = p;
    return KG_OK;
}

static int make(struct kg_comm *c, int *fd)
{
    *fd = memfd_create("kedge-nccl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0 || ftruncate(*fd, sizeof(*c->board)) != 0 ||
        fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return KG_ENOMEM;
    int rc = map(c, *fd);
    if (rc == KG_OK) {
        c->board->magic = MAGIC;
        c->board->world = c->world;
        c->board->n_channels = c->n_channels;
    }
    return rc;
}

int nccl_board_open(struct kg_comm *c, const struct kg_bootstrap *boot, uint64_t deadline_ns)
{
    int fd = -1;
    int rc;

    if (c->rank == 0) {
        rc = make(c, &fd);
        for (uint32_t r = 1; r < c->world && rc == KG_OK; r++)
            rc = boot->send_fd(boot->ctx, r, fd, deadline_ns);
    } else {
        rc = boot->recv_fd(boot->ctx, 0, &fd, deadline_ns);
        if (rc == KG_OK)
            rc = map(c, fd);
        if (rc == KG_OK && c->board->magic != MAGIC)
            rc = KG_EIO;
    }
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

void nccl_board_close(struct kg_comm *c)
{
    if (c->board != NULL)
        (void)munmap(c->board, sizeof(*c->board));
    c->board = NULL;
    for (uint32_t r = 0; r < c->world; r++) {
        if (c->pidfds[r] >= 0)
            (void)close(c->pidfds[r]);
        c->pidfds[r] = -1;
    }
}

int nccl_lose(struct kg_comm *c, const char *fmt, ...)
{
    uint32_t none = 0;
    va_list ap;

    if (atomic_compare_exchange_strong(&c->board->lost, &none, 1)) {
        va_start(ap, fmt);
        (void)vsnprintf(c->board->why, sizeof(c->board->why), fmt, ap);
        va_end(ap);
        for (char *s = c->board->why; *s != '\0'; s++) {
            if (*s == ';' || *s == '\n')
                *s = ','; /* ';' ends the reason in the dump */
        }
        atomic_store(&c->board->lost, 2);
        c->host->log(c->host->ctx, KG_LOG_ERROR, "rank %u: the group is lost: %s", c->rank,
                     c->board->why);
    }
    nccl_fall(c);
    return KG_EDEVICE;
}

const char *nccl_why(const struct kg_comm *c)
{
    uint32_t lost = atomic_load(&c->board->lost);

    for (int i = 0; i < 10000 && lost == 1; i++) { /* who writes it may be killed in the middle */
        (void)sched_yield();
        lost = atomic_load(&c->board->lost);
    }
    return lost == 0 ? "" : lost == 2 ? c->board->why : "a rank that could not say more";
}

int nccl_well(struct kg_comm *c)
{
    if (atomic_load_explicit(&c->board->lost, memory_order_acquire) == 0)
        return KG_OK;
    nccl_fall(c);
    return KG_EDEVICE;
}

int nccl_meet(struct kg_comm *c, uint32_t channel, uint64_t said, uint64_t timeout_ns)
{
    struct nccl_patience p = {.timeout_ns = timeout_ns};
    uint32_t meeting = ++c->channels[channel].meeting;
    struct nccl_place *mine = &c->board->places[c->rank];

    atomic_store(&mine->channels[channel].said[meeting & 1], said);
    atomic_store(&mine->channels[channel].arrive, meeting);
    for (uint32_t r = 0; r < c->world; r++) {
        struct nccl_place *o = &c->board->places[r];
        while (!came(o, channel, meeting)) {
            int rc = nccl_hope(c, &p, "waiting for", r);
            if (rc != KG_OK && !came(o, channel, meeting)) /* else it came before the loss */
                return rc;
        }
        if (atomic_load(&o->channels[channel].said[meeting & 1]) != said)
            return nccl_lose(c, "a different call by rank %u", r);
    }
    return KG_OK;
}
