/* The segment: its plan, how it is made, handed out, mapped and given back. */
#include "symmem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x4b47534du /* "KGSM" */
#define VERSION 2u
#define PAGE 4096ull
#define MEET_DEADLINE_NS 30000000000ull
#define RESERVE_STEP (UINT64_C(4) << 20)

static int round_up(uint64_t *n, uint64_t to)
{
    if (*n > UINT64_MAX - (to - 1))
        return 0;
    *n = (*n + to - 1) / to * to;
    return 1;
}

/* Two halves of `half` bytes behind *at. */
static int put(uint64_t *at, uint64_t *where, uint64_t *half, uint64_t bytes)
{
    *half = bytes;
    *where = *at;
    return round_up(half, 64) && !__builtin_add_overflow(*at, *half, at) &&
           !__builtin_add_overflow(*at, *half, at);
}

static int plan(struct kg_comm *c)
{
    struct symm_plan *p = &c->plan;
    uint64_t at = sizeof(struct symm_head);
    uint64_t line_bytes = (c->push_max / SYMM_LINE_DATA + 1) * sizeof(struct symm_line);
    uint64_t size;

    if (!round_up(&at, 128))
        return 0;
    p->meets = at;
    at += (uint64_t)c->n_channels * c->world * sizeof(struct symm_meet);
    p->logs = at;
    at += (uint64_t)c->n_channels * c->world * sizeof(struct symm_log);
    if (!round_up(&at, PAGE))
        return 0;
    p->areas = at;
    at = 0;
    if (!put(&at, &p->lines, &p->lines_half, line_bytes) ||
        !put(&at, &p->stage, &p->stage_half, c->conf.stage) ||
        !put(&at, &p->result, &p->result_half, c->conf.stage / c->world + 256) ||
        !put(&at, &p->notes, &p->notes_half, 2 * sizeof(uint64_t) * c->world))
        return 0;
    p->channel = at;
    at = c->symm_bytes;
    if (!round_up(&at, PAGE))
        return 0;
    p->channels = at;
    if (__builtin_mul_overflow(p->channel, (uint64_t)c->n_channels, &size) ||
        __builtin_add_overflow(p->channels, size, &p->area) || !round_up(&p->area, PAGE) ||
        __builtin_mul_overflow(p->area, (uint64_t)c->world, &size) ||
        __builtin_add_overflow(p->areas, size, &p->total))
        return 0;
    return p->total <= (uint64_t)INT64_MAX;
}

/* What ranks tell each other first; at most 64 bytes, what a bootstrap must carry. */
struct hello {
    uint32_t magic, version, world, n_channels;
    uint64_t total, bands; /* of the plan; of push and one-shot, mixed */
    int64_t pid;
    uint64_t base; /* rank 0: where it lies, for ranks of the same process */
    int32_t rc;    /* how far it came */
    uint32_t reserved;
};

_Static_assert(sizeof(struct hello) <= 64, "a bootstrap carries 64 bytes");

/* Swaps hellos. The first rank that failed, or that differs, fails all. */
static int greet(struct kg_comm *c, const struct kg_bootstrap *boot, const struct hello *mine,
                 struct hello *all, struct kg_error *err)
{
    int rc = KG_OK;

    if (boot == NULL)
        all[0] = *mine;
    else
        rc = boot->all_gather(boot->ctx, mine, all, sizeof(*mine), MEET_DEADLINE_NS);
    if (rc != KG_OK)
        return kg_fail(err, rc, "comm-symmem: rank %u of %u: the other ranks did not come", c->rank,
                       c->world);
    for (uint32_t r = 0; r < c->world; r++) {
        const struct hello *h = &all[r];
        if (h->magic != MAGIC || h->version != VERSION)
            return kg_fail(err, KG_ECONFIG, "comm-symmem: rank %u speaks version %u, rank %u %u", r,
                           h->version, c->rank, VERSION);
        if (h->rc != KG_OK)
            return kg_fail(err, h->rc,
                           "comm-symmem: rank %u could not make or map %llu bytes of "
                           "shared memory",
                           r, (unsigned long long)mine->total);
        if (h->world != mine->world || h->n_channels != mine->n_channels ||
            h->total != mine->total || h->bands != mine->bands)
            return kg_fail(err, KG_ECONFIG,
                           "comm-symmem: ranks %u and %u have different options, "
                           "channels or symmetric bytes",
                           r, c->rank);
    }
    return KG_OK;
}

/* Whether that much memory can be had without ruining everyone else: reserving it takes it. */
static int is_there(uint64_t total)
{
    char line[128];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/meminfo", "r");

    while (f != NULL && kb == 0 && fgets(line, sizeof(line), f) != NULL)
        (void)sscanf(line, "MemAvailable: %llu", &kb);
    if (f != NULL)
        (void)fclose(f);
    return kb == 0 || total / 1024 < kb;
}

/* Reserves a piece at a time: a signal undoes a reservation that is under way. */
static int reserve(int fd, uint64_t total)
{
    for (uint64_t at = 0, n; at < total; at += n) {
        int e;
        n = total - at < RESERVE_STEP ? total - at : RESERVE_STEP;
        do {
            e = posix_fallocate(fd, (off_t)at, (off_t)n);
        } while (e == EINTR);
        if (e != 0)
            return KG_ENOMEM;
    }
    return KG_OK;
}

/* Rank 0: a memory file that cannot shrink under a mapping, with all its bytes reserved. */
static int make_file(uint64_t total)
{
    int fd = is_there(total) ? memfd_create("kedge-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING) : -1;

    if (fd < 0)
        return -1;
    if (reserve(fd, total) != KG_OK ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static int map(struct kg_comm *c, int fd)
{
    void *p = mmap(NULL, (size_t)c->plan.total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED)
        return KG_ENOMEM;
    c->head = p;
    return KG_OK;
}

/* Hands the file from rank 0 to the others; *fd is -1 or this rank's own afterwards. */
static int hand_out(const struct kg_comm *c, const struct kg_bootstrap *boot, int *fd)
{
    int rc = KG_OK;

    if (c->rank != 0)
        return boot->recv_fd(boot->ctx, 0, fd, MEET_DEADLINE_NS);
    for (uint32_t r = 1; r < c->world && rc == KG_OK; r++)
        rc = boot->send_fd(boot->ctx, r, *fd, MEET_DEADLINE_NS);
    return rc;
}

static void find_processes(struct kg_comm *c, const struct hello *all)
{
    for (uint32_t r = 0; r < c->world; r++) {
        if (r != c->rank && all[r].pid != (int64_t)getpid())
            c->pidfds[r] = (int)syscall(SYS_pidfd_open, (pid_t)all[r].pid, 0);
    }
}

int symm_segment_open(struct kg_comm *c, const struct kg_bootstrap *boot, struct kg_error *err)
{
    struct hello all[SYMM_MAX_WORLD];
    struct hello mine = {.magic = MAGIC,
                         .version = VERSION,
                         .world = c->world,
                         .n_channels = c->n_channels,
                         .pid = getpid()};
    int fd = -1;

    if (!plan(c))
        return kg_fail(err, KG_ELIMIT, "comm-symmem: symm_bytes and stage do not fit an address");
    mine.total = c->plan.total;
    mine.bands = (uint64_t)c->push_max << 32 | (c->one_shot_max & ~1u) | c->conf.checksum;
    if (c->rank == 0) {
        fd = make_file(c->plan.total);
        mine.rc = fd < 0 ? KG_ENOMEM : map(c, fd);
        mine.base = (uint64_t)(uintptr_t)c->head;
    }
    int rc = greet(c, boot, &mine, all, err);
    if (rc == KG_OK) {
        c->shared = 1;
        for (uint32_t r = 0; r < c->world; r++)
            c->shared &= all[r].pid == mine.pid;
        if (c->shared)
            c->head = (struct symm_head *)(uintptr_t)all[0].base;
        else
            mine.rc = hand_out(c, boot, &fd);
        if (mine.rc == KG_OK && c->head == NULL)
            mine.rc = map(c, fd);
        if (mine.rc == KG_OK && !c->shared) /* pages lie near the rank that touches them first */
            memset(symm_area(c, c->rank), 0, (size_t)c->plan.area);
        if (mine.rc == KG_OK && c->rank == 0) {
            c->head->magic = MAGIC;
            c->head->world = c->world;
            c->head->n_channels = c->n_channels;
            atomic_store(&c->head->attached, c->shared ? c->world : 1);
        }
        rc = greet(c, boot, &mine, all, err);
    }
    if (fd >= 0)
        (void)close(fd);
    if (rc == KG_OK)
        find_processes(c, all);
    else if (c->head != NULL && (!c->shared || c->rank == 0))
        (void)munmap(c->head, (size_t)c->plan.total);
    if (rc != KG_OK)
        c->head = NULL;
    return rc;
}

void symm_segment_close(struct kg_comm *c)
{
    for (uint32_t r = 0; r < c->world; r++) {
        if (c->pidfds[r] >= 0)
            (void)close(c->pidfds[r]);
    }
    if (c->head == NULL)
        return;
    if (c->shared && atomic_fetch_sub(&c->head->attached, 1) != 1)
        return;
    (void)munmap(c->head, (size_t)c->plan.total);
}
