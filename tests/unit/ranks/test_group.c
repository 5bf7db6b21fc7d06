/* Groups of processes: their ends, falls, and starts that fail. The backend is a toy, so that ranks
 * can be made to differ. */
#include "ranks/ranks.h"

#include "base/clock.h"
#include "ranks/group.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define TAPE 4096
#define DIFFERENT 1u /* as context of a profile: rank 1 refuses it */
#define END 2u       /* rank 1 ends with status 7 */

/* A backend that has a rank and nothing else. */
struct kg_exec {
    uint32_t rank;
};

static void toy_close(struct kg_exec *x)
{
    (void)x;
}

static void toy_describe(const struct kg_exec *x, struct kg_exec_desc *d)
{
    (void)x;
    *d = (struct kg_exec_desc){.size = sizeof(*d)};
}

static int toy_profile(struct kg_exec *x, uint32_t n_seqs, uint32_t rows, uint32_t context,
                       uint64_t *ns)
{
    (void)n_seqs, (void)rows;
    *ns = 1;
    if (x->rank == 1 && context == END)
        _exit(7);
    return x->rank == 1 && context == DIFFERENT ? KG_EINVAL : KG_OK;
}

static const struct kg_exec_ops toy = {
    .size = sizeof(toy), .close = toy_close, .describe = toy_describe, .profile = toy_profile};

static int follow(void *ctx, uint32_t rank, struct kg_boot *boot, struct kg_tape *tape)
{
    struct kg_exec x = {rank};
    struct kg_error err = {0};

    (void)ctx, (void)boot;
    return kg_follow(tape, rank, &toy, &x, 4, &err);
}

struct group {
    struct kg_ranks *ranks;
    struct kg_exec local, *lead;
    const struct kg_exec_ops *ops;
    struct kg_log log;
    FILE *lines;
};

static void open_group(struct group *g, uint32_t world)
{
    struct kg_error err = {0};

    *g = (struct group){.lines = tmpfile()};
    assert_non_null(g->lines);
    kg_log_init(&g->log, fileno(g->lines), KG_LOG_INFO);
    const struct kg_ranks_args args = {.world = world,
                                       .tape_bytes = TAPE,
                                       .timeout_ns = 20 * KG_NS_PER_S,
                                       .follow = follow,
                                       .log = &g->log};
    assert_int_equal(kg_ranks_start(&args, &g->ranks, &err), KG_OK);
    assert_int_equal(kg_ranks_watch(g->ranks, NULL, NULL, &err), KG_OK);
    assert_int_equal(kg_lead_open(g->ranks, &toy, &g->local, 4, &g->ops, &g->lead, &err), KG_OK);
}

/* Returns how many ranks did not end by themselves; *lines: bytes that were logged. */
static int close_group(struct group *g, long *logged)
{
    int bad = kg_ranks_stop(g->ranks);

    g->ops->close(g->lead);
    *logged = (long)lseek(fileno(g->lines), 0, SEEK_END);
    (void)fclose(g->lines);
    return bad;
}

static int profile(struct group *g, uint32_t context)
{
    uint64_t ns;

    return g->ops->profile(g->lead, 1, 1, context, &ns);
}

static void a_group_that_is_told_to_end_is_not_lost(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct group g;
        long logged;
        open_group(&g, 3);
        assert_int_equal(profile(&g, 0), KG_OK);
        assert_int_equal(close_group(&g, &logged), 0);
        assert_int_equal(logged, 0);
    }
}

/* Rank 0 closes its end of a pipe: its reader, which waits for that, is not kept by the others. */
static void a_rank_holds_nothing_of_who_started_it(void **state)
{
    struct group g;
    struct pollfd p = {.events = POLLIN};
    long logged;
    int ends[2], high;
    char byte;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    high = dup2(ends[1], 900); /* above its sockets too */
    assert_int_equal(high, 900);
    open_group(&g, 3);
    (void)close(ends[1]);
    (void)close(high);
    p.fd = ends[0];
    assert_int_equal(poll(&p, 1, 20000), 1);
    assert_int_equal(read(ends[0], &byte, 1), 0);
    (void)close(ends[0]);
    assert_int_equal(profile(&g, 0), KG_OK);
    assert_int_equal(profile(&g, DIFFERENT), KG_EDEVICE); /* it can still say so */
    (void)close_group(&g, &logged);
    assert_true(logged > 0);
}

static void ranks_that_came_to_different_results_are_a_lost_group(void **state)
{
    struct group g;
    struct kg_error err = {0};
    long logged;

    (void)state;
    open_group(&g, 3);
    assert_int_equal(profile(&g, 0), KG_OK);
    assert_int_equal(kg_ranks_well(g.ranks, &err), KG_OK);
    assert_int_equal(profile(&g, DIFFERENT), KG_EDEVICE);
    assert_int_equal(kg_ranks_well(g.ranks, &err), KG_EDEVICE);
    assert_non_null(strstr(err.text, "rank 1 came to another result"));
    (void)close_group(&g, &logged);
    assert_true(logged > 0);
}

/* Until the watcher has seen it; a machine may be slow, not that slow. */
static int is_lost(struct group *g, struct kg_error *err)
{
    uint64_t end = kg_now_ns() + 60 * KG_NS_PER_S;
    int rc;

    do {
        rc = kg_ranks_well(g->ranks, err);
    } while (rc == KG_OK && kg_now_ns() < end);
    return rc == KG_EDEVICE;
}

static void a_rank_that_ends_is_named(void **state)
{
    struct group g;
    struct kg_error err = {0};
    long logged;

    (void)state;
    open_group(&g, 3);
    assert_int_equal(profile(&g, END), KG_EDEVICE);
    assert_true(is_lost(&g, &err));
    assert_non_null(strstr(err.text, "rank 1 (process "));
    assert_non_null(strstr(err.text, "ended with status 7"));
    (void)close_group(&g, &logged);
}

static void a_rank_that_ends_is_noticed_where_the_kernel_reaps_children(void **state)
{
    struct group g;
    struct kg_error err = {0};
    long logged;

    (void)state;
    (void)signal(SIGCHLD, SIG_IGN);
    open_group(&g, 3);
    assert_int_equal(profile(&g, END), KG_EDEVICE);
    assert_true(is_lost(&g, &err));
    assert_non_null(strstr(err.text, "rank 1 (process "));
    (void)close_group(&g, &logged);
    (void)signal(SIGCHLD, SIG_DFL);
}

static uint32_t open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    uint32_t n = 0;

    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    (void)closedir(d);
    return n;
}

/* Rank 1 fails before its first message; the others are in a call of the bootstrap by then, and
 * what that left is still on its way when they report. 0 when the report names the cause. */
static int fail_first(struct kg_boot *boot, void *arg)
{
    struct kg_error mine = {0}, err = {0};
    char all[4 * 8], hello[8] = "hello";

    if (boot->rank == 1) {
        (void)kg_fail(&mine, KG_ENOMEM, "the cause");
    } else {
        mine.rc = boot->ops.all_gather(boot, hello, all, sizeof(hello), 20 * KG_NS_PER_S);
        if (mine.rc != KG_EDEVICE)
            return 2;
        (void)kg_fail(&mine, mine.rc, "the other ranks did not come");
    }
    (void)arg;
    if (kg_ranks_meet(boot, &mine, 0, &err) != KG_ENOMEM)
        return 3;
    return strcmp(err.text, "rank 1: the cause") == 0 ? 0 : 4;
}

static void the_cause_of_a_failed_start_is_told_whoever_failed_first(void **state)
{
    int status[4];
    struct kg_error err = {0};

    (void)state;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(kg_group_run(4, fail_first, NULL, 60 * KG_NS_PER_S, status, &err), KG_OK);
        for (int r = 0; r < 4; r++)
            assert_int_equal(status[r], 0);
    }
}

static int end_with_rank(struct kg_boot *boot, void *arg)
{
    (void)arg;
    return (int)boot->rank + 3;
}

static void ranks_are_waited_for_where_the_kernel_would_reap_them(void **state)
{
    struct sigaction was, ignore = {.sa_handler = SIG_IGN}, after;
    uint64_t begin = kg_now_ns();
    struct kg_error err = {0};
    int status[2];

    (void)state;
    assert_int_equal(sigaction(SIGCHLD, &ignore, &was), 0);
    assert_int_equal(kg_group_run(2, end_with_rank, NULL, 600 * KG_NS_PER_S, status, &err), KG_OK);
    assert_int_equal(sigaction(SIGCHLD, &was, &after), 0);
    assert_true(after.sa_handler == SIG_IGN);
    assert_int_equal(status[0], 3);
    assert_int_equal(status[1], 4);
    assert_true(kg_now_ns() - begin < 300 * KG_NS_PER_S); /* not at its deadline */
}

static void a_group_that_cannot_start_leaves_nothing_behind(void **state)
{
    const struct kg_ranks_args args = {
        .world = 5, .tape_bytes = TAPE, .timeout_ns = KG_NS_PER_S, .follow = follow};
    struct rlimit was, less;
    struct kg_ranks *ranks = NULL;
    uint32_t before = open_files();
    int failed = 0;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    for (rlim_t most = before; most < before + 40; most++) { /* 20 of sockets, 4 of processes */
        struct kg_error err = {0};
        less = (struct rlimit){most, was.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &less), 0);
        int rc = kg_ranks_start(&args, &ranks, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
        if (rc == KG_OK) {
            assert_int_equal(kg_ranks_stop(ranks), 0);
        } else {
            assert_int_equal(rc, KG_EIO);
            assert_true(err.text[0] != '\0');
            failed++;
        }
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
        assert_int_equal(errno, ECHILD);
        assert_int_equal(open_files(), before);
    }
    assert_true(failed > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_that_is_told_to_end_is_not_lost),
        cmocka_unit_test(a_rank_holds_nothing_of_who_started_it),
        cmocka_unit_test(ranks_that_came_to_different_results_are_a_lost_group),
        cmocka_unit_test(a_rank_that_ends_is_named),
        cmocka_unit_test(a_rank_that_ends_is_noticed_where_the_kernel_reaps_children),
        cmocka_unit_test(the_cause_of_a_failed_start_is_told_whoever_failed_first),
        cmocka_unit_test(ranks_are_waited_for_where_the_kernel_would_reap_them),
        cmocka_unit_test(a_group_that_cannot_start_leaves_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
