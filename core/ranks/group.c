#include "ranks/group.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOK_MS 10

struct group {
    uint32_t world, running;
    pid_t pids[KG_BOOT_MAX_WORLD]; /* 0: ended */
    int stopped[KG_BOOT_MAX_WORLD];
    int *status;
};

static void be_rank(uint32_t rank, uint32_t world, int *fds, pid_t parent, kg_rank_main *run,
                    void *arg)
{
    struct kg_boot boot;
    int *row = &fds[(size_t)rank * world];

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(255);
    kg_boot_init(&boot, rank, world, row);
    memset(row, 0xff, world * sizeof(*row));
    kg_boot_close_fds(fds, (size_t)world * world); /* of the others: their end must be seen */
    _exit(run(&boot, arg) & 0xff);
}

/* Looks at every rank once. */
static void look(struct group *g)
{
    for (uint32_t r = 0; r < g->world; r++) {
        int st;
        if (g->pids[r] == 0 || waitpid(g->pids[r], &st, WNOHANG | WUNTRACED) != g->pids[r])
            continue;
        if (WIFSTOPPED(st)) {
            g->stopped[r] = 1;
            continue;
        }
        if (g->status[r] >= 0)
            g->status[r] = WIFEXITED(st) ? WEXITSTATUS(st) : KG_RANK_SIGNAL + WTERMSIG(st);
        g->pids[r] = 0;
        g->running--;
    }
}

/* Kills who still runs; `why` becomes their status. */
static void end_all(struct group *g, int why)
{
    for (uint32_t r = 0; r < g->world; r++) {
        if (g->pids[r] == 0)
            continue;
        g->status[r] = why;
        (void)kill(g->pids[r], SIGKILL);
        while (waitpid(g->pids[r], NULL, 0) < 0 && errno == EINTR)
            continue;
        g->pids[r] = 0;
        g->running--;
    }
}

static int all_stopped(const struct group *g)
{
    for (uint32_t r = 0; r < g->world; r++) {
        if (g->pids[r] != 0 && !g->stopped[r])
            return 0;
    }
    return 1;
}

int kg_group_run(uint32_t world, kg_rank_main *run, void *arg, uint64_t deadline_ns, int *status,
                 struct kg_error *err)
{
    struct group g = {.world = world, .status = status};
    struct sigaction told = {.sa_handler = SIG_DFL}, was;
    uint64_t end_ns = kg_now_ns() + deadline_ns;
    int *fds = malloc(sizeof(*fds) * world * world);
    pid_t parent = getpid();

    if (fds == NULL)
        return kg_fail(err, KG_ENOMEM, "ranks: out of memory");
    int rc = kg_boot_pairs(world, fds, err);
    if (rc != KG_OK) {
        free(fds);
        return rc;
    }
    (void)sigaction(SIGCHLD, &told, &was); /* ignored, the kernel would reap ranks unseen */
    for (uint32_t r = 0; rc == KG_OK && r < world; r++) {
        status[r] = 0;
        g.pids[r] = fork();
        if (g.pids[r] == 0)
            be_rank(r, world, fds, parent, run, arg);
        if (g.pids[r] < 0) {
            rc = kg_fail(err, KG_EIO, "ranks: rank %u cannot start: %s", r, strerror(errno));
            g.pids[r] = 0;
        } else {
            g.running++;
        }
    }
    kg_boot_close_fds(fds, (size_t)world * world);
    free(fds);
    while (rc == KG_OK && g.running > 0) {
        look(&g);
        if (g.running > 0 && all_stopped(&g))
            end_all(&g, KG_RANK_STOPPED);
        else if (kg_now_ns() >= end_ns)
            end_all(&g, KG_RANK_LATE);
        else if (g.running > 0)
            (void)poll(NULL, 0, LOOK_MS);
    }
    end_all(&g, KG_RANK_LATE);
    (void)sigaction(SIGCHLD, &was, NULL);
    return rc;
}
