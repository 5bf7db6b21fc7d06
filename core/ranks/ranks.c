/* The processes: how they start, who watches them, how they end. */
#include "ranks/impl.h"

#include "ranks/wire.h"

#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MEET_NS (600 * KG_NS_PER_S) /* loading weights may take long */
#define STOP_NS (10 * KG_NS_PER_S)

/* A rank keeps the standard descriptors, where it logs, and its sockets. Whatever else the process
 * had open at the fork is rank 0's, and somebody may wait for the end of it: of --ready-fd, of a
 * pipe a supervisor gave. A kernel without the call (before 5.9) leaves them open. */
static void keep_own(const int *row, uint32_t world, int log_fd)
{
    for (int64_t from = 3;;) {
        int64_t next = log_fd >= from ? log_fd : INT64_MAX;
        for (uint32_t i = 0; i < world; i++) {
            if (row[i] >= from && row[i] < next)
                next = row[i];
        }
        unsigned int last = next == INT64_MAX ? UINT_MAX : (unsigned int)next - 1;
        if (next > from)
            (void)syscall(SYS_close_range, (unsigned int)from, last, 0);
        if (next == INT64_MAX)
            return;
        from = next + 1;
    }
}

static _Noreturn void be_rank(struct kg_ranks *r, uint32_t rank, int *fds, pid_t parent)
{
    const struct kg_ranks_args *a = &r->args;
    int *row = &fds[(size_t)rank * a->world];
    struct kg_boot boot;

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(255);
    (void)signal(SIGINT, SIG_IGN); /* rank 0 tells it when to end */
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    keep_own(row, a->world, a->log != NULL ? a->log->fd : -1);
    kg_boot_init(&boot, rank, a->world, row);
    memset(row, 0xff, a->world * sizeof(*row));
    kg_boot_close_fds(fds, (size_t)a->world * a->world);
    int status = a->follow(a->ctx, rank, &boot, r->tape);
    _exit(status & 0xff);
}

static int fork_all(struct kg_ranks *r, int *fds, struct kg_error *err)
{
    pid_t parent = getpid();

    for (uint32_t i = 1; i < r->args.world; i++) {
        r->pids[i] = fork();
        if (r->pids[i] == 0)
            be_rank(r, i, fds, parent);
        if (r->pids[i] < 0) {
            r->pids[i] = 0;
            return kg_fail(err, KG_EIO, "rank %u cannot start: %s", i, strerror(errno));
        }
        r->pidfds[i] = (int)syscall(SYS_pidfd_open, r->pids[i], 0);
        if (r->pidfds[i] < 0)
            return kg_fail(err, KG_EIO, "rank %u cannot be watched: %s", i, strerror(errno));
    }
    return KG_OK;
}

int kg_ranks_start(const struct kg_ranks_args *args, struct kg_ranks **ranks, struct kg_error *err)
{
    if (args->world < 2 || args->world > KG_BOOT_MAX_WORLD)
        return kg_fail(err, KG_EINVAL, "%u ranks, wanted 2 .. %u", args->world, KG_BOOT_MAX_WORLD);
    struct kg_ranks *r = calloc(1, sizeof(*r));
    int *fds = malloc(sizeof(*fds) * args->world * args->world);
    if (r == NULL || fds == NULL) {
        free(r);
        free(fds);
        return kg_fail(err, KG_ENOMEM, "out of memory");
    }
    r->args = *args;
    r->stop_fd = -1;
    memset(r->pidfds, 0xff, sizeof(r->pidfds));
    int rc = kg_tape_create(args->tape_bytes, args->world - 1, &r->tape, err);
    if (rc == KG_OK)
        rc = kg_boot_pairs(args->world, fds, err);
    if (rc == KG_OK) {
        rc = fork_all(r, fds, err);
        kg_boot_init(&r->boot, 0, args->world, fds);
        memset(fds, 0xff, args->world * sizeof(*fds));
        kg_boot_close_fds(fds, (size_t)args->world * args->world);
    } else {
        memset(r->boot.fds, 0xff, sizeof(r->boot.fds));
    }
    free(fds);
    if (rc != KG_OK) {
        atomic_store(&r->lost, 1); /* nobody listens: do not write to the tape */
        (void)kg_ranks_stop(r);
        return rc;
    }
    *ranks = r;
    return KG_OK;
}

struct kg_boot *kg_ranks_boot(struct kg_ranks *ranks)
{
    return &ranks->boot;
}

struct report {
    uint64_t agree;
    int rc;
    char text[500];
};

int kg_ranks_meet(struct kg_boot *boot, const struct kg_error *mine, uint64_t agree,
                  struct kg_error *err)
{
    struct report said = {.agree = agree, .rc = mine->rc}, all[KG_BOOT_MAX_WORLD];
    uint32_t worst = boot->world;

    (void)snprintf(said.text, sizeof(said.text), "%s", mine->text);
    int rc = kg_boot_report(boot, &said, all, sizeof(said), MEET_NS);
    if (rc != KG_OK)
        return kg_fail(err, rc, "rank %u: a rank ended before it said how far it came", boot->rank);
    for (uint32_t r = 0; r < boot->world; r++) { /* the cause, not those who lost a peer by it */
        if (all[r].rc != KG_OK && (worst == boot->world || all[worst].rc == KG_EDEVICE))
            worst = r;
    }
    if (worst < boot->world)
        return kg_fail(err, all[worst].rc, "rank %u: %.480s", worst, all[worst].text);
    for (uint32_t r = 0; r < boot->world; r++) {
        if (all[r].agree != agree)
            return kg_fail(err, KG_ECONFIG, "ranks %u and %u do not have the same sizes",
                           boot->rank, r);
    }
    return KG_OK;
}

void kg_ranks_give_up(struct kg_ranks *r, const char *why)
{
    uint32_t none = 0;

    if (!atomic_compare_exchange_strong(&r->lost, &none, 1))
        return;
    (void)snprintf(r->how, sizeof(r->how), "%s", why);
    atomic_store(&r->lost, 2);
    if (r->args.log != NULL)
        kg_log_line(r->args.log, KG_LOG_ERROR, "ranks", "the group is lost", "%s", why);
    if (r->comm != NULL)
        r->comm_ops->abort(r->comm);
}

void kg_ranks_loss(const struct kg_ranks *r, char *text, size_t n)
{
    text[0] = '\0';
    if (r->comm != NULL && KG_HAS(r->comm_ops, struct kg_comm_ops, progress_dump))
        (void)r->comm_ops->progress_dump(r->comm, text, n);
    text[strcspn(text, ";")] = '\0';
}

/* What became of a rank is why the group is lost. */
static void tell(struct kg_ranks *r, uint32_t rank, const siginfo_t *info)
{
    const char *what = info->si_code == CLD_EXITED ? "ended with status" : "was killed by signal";
    char text[200], first[80];

    kg_ranks_loss(r, first, sizeof(first));
    if (info->si_code == CLD_EXITED && strncmp(first, "lost", 4) == 0)
        (void)snprintf(text, sizeof(text), "%s", first); /* it gave up for that reason */
    else if (info->si_pid == 0)
        (void)snprintf(text, sizeof(text), "rank %u (process %d) ended", rank, (int)r->pids[rank]);
    else
        (void)snprintf(text, sizeof(text), "rank %u (process %d) %s %d", rank, (int)info->si_pid,
                       what, info->si_status);
    kg_ranks_give_up(r, text);
}

static void *watch(void *arg)
{
    struct kg_ranks *r = arg;
    struct pollfd p[KG_BOOT_MAX_WORLD + 1];

    for (uint32_t i = 0; i < r->args.world; i++)
        p[i] = (struct pollfd){.fd = r->pidfds[i], .events = POLLIN};
    p[r->args.world] = (struct pollfd){.fd = r->stop_fd, .events = POLLIN};
    for (;;) {
        if (poll(p, r->args.world + 1, -1) < 0 && errno != EINTR)
            return NULL;
        if (p[r->args.world].revents != 0)
            return NULL;
        for (uint32_t i = 1; i < r->args.world; i++) {
            siginfo_t info = {0};
            if ((p[i].revents & POLLIN) == 0)
                continue;
            p[i].fd = -1;
            if (waitid(P_PID, (id_t)r->pids[i], &info, WEXITED | WNOHANG | WNOWAIT) != 0)
                info = (siginfo_t){0}; /* whoever started this process has SIGCHLD ignored */
            tell(r, i, &info);
        }
    }
}

int kg_ranks_watch(struct kg_ranks *ranks, const struct kg_comm_ops *ops, struct kg_comm *comm,
                   struct kg_error *err)
{
    ranks->comm_ops = ops;
    ranks->comm = comm;
    ranks->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (ranks->stop_fd < 0)
        return kg_fail(err, KG_ENOMEM, "ranks: no descriptor to watch with: %s", strerror(errno));
    int e = pthread_create(&ranks->watcher, NULL, watch, ranks);
    if (e != 0)
        return kg_fail(err, KG_ENOMEM, "ranks: no thread to watch with: %s", strerror(e));
    ranks->watching = 1;
    return KG_OK;
}

int kg_ranks_well(struct kg_ranks *ranks, struct kg_error *err)
{
    switch (atomic_load(&ranks->lost)) {
    case 0:
        return KG_OK;
    case 1:
        return kg_fail(err, KG_EDEVICE, "the group of ranks is lost");
    default:
        return kg_fail(err, KG_EDEVICE, "%s", ranks->how);
    }
}

static int find_killed(const struct kg_ranks *r, struct kg_error *err)
{
    for (uint32_t i = 1; i < r->args.world; i++) {
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)r->pids[i], &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid != 0 && info.si_code != CLD_EXITED)
            return kg_fail(err, KG_EDEVICE, "rank %u (process %d) was killed by signal %d", i,
                           (int)info.si_pid, info.si_status);
    }
    return KG_OK;
}

int kg_ranks_killed(const struct kg_ranks *ranks, struct kg_error *err)
{
    int rc = find_killed(ranks, err);

    /* its sockets are closed a moment before it can be waited for */
    for (int i = 0; i < 20 && rc == KG_OK; i++) {
        (void)poll(NULL, 0, 10);
        rc = find_killed(ranks, err);
    }
    return rc;
}

struct patience {
    struct kg_ranks *ranks;
    uint64_t end_ns;
};

static int well(void *ctx)
{
    const struct patience *p = ctx;

    return kg_now_ns() < p->end_ns ? kg_ranks_well(p->ranks, NULL) : KG_ETIMEOUT;
}

/* Waits for a rank until end_ns, then kills it; 1 when it did not end by itself. */
static int reap(struct kg_ranks *r, uint32_t rank, uint64_t end_ns)
{
    int st = 0, killed = 0;

    while (r->pids[rank] != 0) {
        struct pollfd p = {.fd = r->pidfds[rank], .events = POLLIN};
        uint64_t now = kg_now_ns();
        int ms = now >= end_ns ? 0 : (int)((end_ns - now) / KG_NS_PER_MS) + 1;
        if (p.fd >= 0 && !killed && poll(&p, 1, ms) < 0 && errno == EINTR)
            continue;
        if ((p.revents & POLLIN) == 0 && !killed) {
            (void)kill(r->pids[rank], SIGKILL);
            killed = 1;
        }
        if (waitpid(r->pids[rank], &st, 0) == r->pids[rank] || errno != EINTR)
            r->pids[rank] = 0;
    }
    return killed || !WIFEXITED(st); /* one that ended by itself has said why */
}

int kg_ranks_stop(struct kg_ranks *ranks)
{
    const uint64_t one = 1;
    int bad = 0;

    if (ranks == NULL)
        return 0;
    struct patience p = {ranks, kg_now_ns() + STOP_NS};
    if (ranks->watching) { /* first: a rank that ends because it is told to is no loss */
        if (write(ranks->stop_fd, &one, sizeof(one)) == sizeof(one))
            (void)pthread_join(ranks->watcher, NULL);
    }
    kg_boot_close(&ranks->boot); /* a rank that still waits there for this one goes on */
    int lost = atomic_load(&ranks->lost) != 0;
    if (!lost && kg_tape_write(ranks->tape, KG_WIRE_STOP, NULL, 0, well, &p) != KG_OK)
        lost = 1;
    uint64_t end_ns = lost ? kg_now_ns() : p.end_ns;
    for (uint32_t i = 1; i < ranks->args.world; i++) {
        bad += reap(ranks, i, end_ns);
        if (ranks->pidfds[i] >= 0)
            (void)close(ranks->pidfds[i]);
    }
    if (ranks->stop_fd >= 0)
        (void)close(ranks->stop_fd);
    kg_tape_destroy(ranks->tape);
    free(ranks);
    return bad;
}
