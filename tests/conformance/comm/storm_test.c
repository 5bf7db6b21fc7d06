/*
 * Many random collectives, and ranks that die or stand still in the middle of them.
 * usage: storm_test PLUGIN WORLD threads|processes [far] [lanes] [KEY=VALUE...]
 *
 * far: comm-symmem's counters begin just below their wrap; lanes: a thread for each channel;
 * KEY=VALUE: options of the plugin.
 *
 * Threads share one mapping, so that a race detector sees both sides; processes are what serves.
 */
#include "conf.h"
#include "plugin.h"
#include "storm.h"

#include "base/clock.h"
#include "host.h"
#include "ranks/group.h"

#include "../../../plugins/comm-symmem/symmem.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

/* What a run is; `said` is shared with the ranks. */
struct fix {
    const struct kg_plugin *plugin;
    struct kg_arena options;
    void *conf; /* in options */
    uint32_t world;
    int threads, far, lanes;
    uint64_t calls, seed, timeout_ns;
    uint64_t deadline_ns; /* of a whole storm of processes */
    int late;             /* this rank has more to load than time-out; -1 for none */
    int victim, signal;   /* this rank gets that signal after `after_us`; -1 for none */
    useconds_t after_us;
    struct {
        char fault[300];
        int rc;
        uint64_t end_ns; /* when it came out */
    } * said;            /* [world] */
};

static struct fix fix;

static void on_timer(int sig)
{
    (void)sig;
    (void)raise(fix.signal);
}

static void arm(uint32_t rank)
{
    struct itimerval t = {.it_value = {.tv_usec = fix.after_us}};

    if (fix.victim != (int)rank)
        return;
    (void)signal(SIGALRM, on_timer);
    (void)setitimer(ITIMER_REAL, &t, NULL);
}

static void load_for(uint64_t ns)
{
    uint64_t end = kg_now_ns() + ns;

    while (kg_now_ns() < end)
        (void)sched_yield();
}

/* Counters as after years: meetings wrap at 2^32 within the storm, pieces pass it. */
static int go_far(struct kg_comm *c, struct kg_boot *boot)
{
    for (uint32_t ch = 0; ch < c->n_channels; ch++) {
        c->channels[ch] = (struct symm_channel){(UINT64_C(1) << 32) - 200, UINT32_MAX - 300 - ch};
        atomic_store(&symm_meet_of(c, ch, c->rank)->arrive, c->channels[ch].meeting);
    }
    return boot->ops.barrier(boot, 20 * KG_NS_PER_S);
}

static int be_rank(struct kg_boot *boot, void *arg)
{
    struct kg_clock clock = kg_clock_monotonic();
    struct kg_instance *host;
    struct storm s = {.ops = fix.plugin->ops,
                      .rank = boot->rank,
                      .world = boot->world,
                      .seed = fix.seed,
                      .calls = fix.calls,
                      .fault = fix.said[boot->rank].fault,
                      .begun = arm,
                      .lanes = fix.lanes};
    const struct kg_comm_open args = {.size = sizeof(args),
                                      .rank = boot->rank,
                                      .world = boot->world,
                                      .boot = &boot->ops,
                                      .symm_bytes = STORM_SYMM,
                                      .n_channels = STORM_CHANNELS,
                                      .device = boot->rank,
                                      .timeout_ns = fix.timeout_ns};
    struct kg_error err = {0};

    (void)arg;
    s.loose = KG_HAS(s.ops, struct kg_comm_ops, caps) &&
              (s.ops->caps(fix.conf) & KG_COMM_CAP_FIXED_ORDER) == 0;
    if (kg_instance_create(fix.plugin, NULL, &clock, 0, &host) != KG_OK)
        return 3;
    int rc = s.ops->open(&host->host, fix.conf, &args, &s.comm, &err);
    if (rc != KG_OK) {
        (void)snprintf(s.fault, 300, "%.290s", err.text);
        return 4;
    }
    if (fix.far && go_far(s.comm, boot) != KG_OK)
        return 5;
    if (fix.late == (int)boot->rank)
        load_for(4 * fix.timeout_ns);
    rc = storm_run(&s);
    fix.said[boot->rank].rc = rc;
    fix.said[boot->rank].end_ns = kg_now_ns();
    if (rc == KG_OK)
        (void)boot->ops.barrier(boot, 20 * KG_NS_PER_S); /* nobody leaves while others use it */
    s.ops->close(s.comm);
    storm_end(&s);
    kg_instance_destroy(host);
    kg_boot_close(boot);
    return rc == KG_OK ? 0 : 1;
}

struct thread {
    pthread_t id;
    struct kg_boot boot;
    int status;
};

static void *enter(void *arg)
{
    struct thread *t = arg;

    t->status = be_rank(&t->boot, NULL);
    return NULL;
}

static void run_threads(int *status)
{
    struct thread t[KG_BOOT_MAX_WORLD];
    int *fds = malloc(sizeof(*fds) * fix.world * fix.world);
    struct kg_error err;

    assert_non_null(fds);
    assert_int_equal(kg_boot_pairs(fix.world, fds, &err), KG_OK);
    for (uint32_t r = 0; r < fix.world; r++) {
        kg_boot_init(&t[r].boot, r, fix.world, fds + (size_t)r * fix.world);
        assert_int_equal(pthread_create(&t[r].id, NULL, enter, &t[r]), 0);
    }
    for (uint32_t r = 0; r < fix.world; r++) {
        (void)pthread_join(t[r].id, NULL);
        status[r] = t[r].status;
    }
    free(fds);
}

static void run(int *status)
{
    struct kg_error err = {0};

    memset(fix.said, 0, fix.world * sizeof(*fix.said));
    if (fix.threads)
        run_threads(status);
    else if (kg_group_run(fix.world, be_rank, NULL, fix.deadline_ns, status, &err) != KG_OK)
        fail_msg("%s", err.text);
}

static void test_random_collectives_are_right_to_the_bit(void **state)
{
    int status[KG_BOOT_MAX_WORLD];

    (void)state;
    run(status);
    for (uint32_t r = 0; r < fix.world; r++) {
        if (status[r] != 0)
            fail_msg("rank %u: status %d, rc %d: %s", r, status[r], fix.said[r].rc,
                     fix.said[r].fault);
    }
}

/* A collective may take timeout_ns; the time before it, when weights are loaded, is not one. */
static void test_a_rank_that_loads_longer_than_the_time_out_is_waited_for(void **state)
{
    struct fix was = fix;
    int status[KG_BOOT_MAX_WORLD];

    (void)state;
    fix.late = (int)fix.world - 1;
    fix.timeout_ns = KG_NS_PER_S / 20;
    fix.calls = 0;
    run(status);
    for (uint32_t r = 0; r < fix.world; r++) {
        if (status[r] != 0)
            fail_msg("rank %u: status %d, rc %d", r, status[r], fix.said[r].rc);
    }
    fix = was;
}

/* Everyone but the victim gets KG_EDEVICE, in time, wherever the storm was. */
static void fall(int signal, uint64_t timeout_ns, uint64_t most_ns)
{
    int rounds = getenv("KEDGE_FULL") != NULL ? 60 : 4;

    fix.calls = 1u << 30;
    fix.timeout_ns = timeout_ns;
    fix.signal = signal;
    for (int i = 0; i < rounds; i++) {
        int status[KG_BOOT_MAX_WORLD];
        fix.seed = (uint64_t)i;
        fix.victim = i % (int)fix.world;
        fix.after_us = (useconds_t)(1000 + i * 7919 % 40000);
        uint64_t begin = kg_now_ns();
        run(status);
        for (uint32_t r = 0; r < fix.world; r++) {
            if ((int)r == fix.victim) {
                assert_int_equal(status[r],
                                 signal == SIGSTOP ? KG_RANK_STOPPED : KG_RANK_SIGNAL + signal);
                continue;
            }
            if (status[r] != 1 || fix.said[r].rc != KG_EDEVICE)
                fail_msg("round %d, rank %u: status %d, rc %d: %s", i, r, status[r], fix.said[r].rc,
                         fix.said[r].fault);
            assert_true(fix.said[r].end_ns - begin < fix.after_us * 1000ull + most_ns);
        }
    }
    fix.victim = -1;
}

static void test_a_killed_rank_is_an_error_on_the_others_within_a_second(void **state)
{
    (void)state;
    fall(SIGKILL, 20 * KG_NS_PER_S, 5 * KG_NS_PER_S); /* a second, and what a busy machine adds */
}

static void test_a_stopped_rank_is_an_error_after_the_time_out(void **state)
{
    (void)state;
    fall(SIGSTOP, KG_NS_PER_S / 2, 6 * KG_NS_PER_S);
}

static int prepare(int argc, char **argv)
{
    struct kg_plugin_ref ref;
    struct kg_error err = {0};

    if (argc < 4 || kg_plugin_load("", KG_KIND_COMM, argv[1], &ref, &err) != KG_OK)
        return 0;
    fix.plugin = ref.plugin;
    fix.world = (uint32_t)strtoul(argv[2], NULL, 10);
    fix.threads = strcmp(argv[3], "threads") == 0;
    for (int i = 4; i < argc; i++) {
        fix.far |= strcmp(argv[i], "far") == 0;
        fix.lanes |= strcmp(argv[i], "lanes") == 0;
    }
    kg_arena_init(&fix.options, 0, 0); /* lives as long as the program */
    fix.conf = comm_conf(ref.plugin, &fix.options, argv + 4, argc - 4, &err);
    fix.said = mmap(NULL, sizeof(*fix.said) * KG_BOOT_MAX_WORLD, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fix.victim = fix.late = -1;
    fix.timeout_ns = 60 * KG_NS_PER_S;
    fix.seed = 7;
    fix.calls = getenv("KEDGE_FULL") != NULL ? 100000 : 1500;
    fix.deadline_ns = (getenv("KEDGE_FULL") != NULL ? 3600 : 300) * KG_NS_PER_S;
    return fix.world >= 1 && fix.world <= KG_BOOT_MAX_WORLD && fix.conf != NULL &&
           fix.said != MAP_FAILED;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_collectives_are_right_to_the_bit),
        cmocka_unit_test(test_a_rank_that_loads_longer_than_the_time_out_is_waited_for),
    };
    const struct CMUnitTest falls[] = {
        cmocka_unit_test(test_a_killed_rank_is_an_error_on_the_others_within_a_second),
        cmocka_unit_test(test_a_stopped_rank_is_an_error_after_the_time_out),
    };

    if (!prepare(argc, argv)) {
        (void)fprintf(stderr, "usage: storm_test PLUGIN WORLD threads|processes [far] [lanes] "
                              "[KEY=VALUE...]\n");
        return 2;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (!fix.threads && fix.world > 1)
        rc += cmocka_run_group_tests(falls, NULL, NULL);
    return rc;
}
