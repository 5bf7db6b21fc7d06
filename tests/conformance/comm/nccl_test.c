/*
 * comm-nccl when things go wrong: libraries that are missing, versions that may not be used,
 * errors of NCCL now and later, ranks that never come, hangs. Each must end as an error that says
 * what happened, in time, on every rank.
 * usage: nccl_test PLUGIN FAKE
 */
#include "conf.h"
#include "fake_nccl.h"
#include "faults.h"

#include "../../../plugins/comm-nccl/gates.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORLD 3

static struct fake_plan *fake;
static struct fake_driver_plan *driver;

/* Everything well, and nothing held. */
static int reset(void **state)
{
    (void)state;
    faults_reset();
    for (int r = 0; r < FAKE_RANKS; r++) {
        atomic_store(&fake->call_error[r], 0);
        atomic_store(&fake->async_error[r], 0);
        atomic_store(&fake->init_error[r], 0);
        atomic_store(&fake->init_hangs[r], 0);
        atomic_store(&fake->abort_hangs[r], 0);
        atomic_store(&fake->finalize_hangs[r], 0);
    }
    atomic_store(&fake->version, 22809);
    atomic_store(&fake->one_gpu, 0);
    atomic_store(&fake->no_window, 0);
    return 0;
}

static void nothing_is_held(void)
{
    assert_int_equal(atomic_load(&fake->comms), 0);
    assert_int_equal(atomic_load(&fake->allocations), 0);
    faults_nothing_is_held();
}

/* Runs a case with the fake, or what `words` say instead. */
static void run_with(uint32_t world, rig_case *run, uint64_t timeout_ns, uint32_t absent,
                     char *const *words, int n)
{
    char library[600], path[600], *all[] = {library, path};

    (void)snprintf(library, sizeof(library), "library=%s", faults.fake_path);
    (void)snprintf(path, sizeof(path), "driver=%s", faults.fake_path);
    faults_run(&(struct faults_run){.world = world,
                                    .run = run,
                                    .timeout_ns = timeout_ns,
                                    .absent = absent,
                                    .words = words,
                                    .n = n},
               all, 2);
}

/* Every rank was refused with this code and these words, and holds nothing. */
static void refused(uint32_t world, int rc, const char *words)
{
    faults_refused(world, rc, words);
    nothing_is_held();
}

static void refused_with(uint32_t world, int rc, const char *words, char *option)
{
    run_with(world, open_only, KG_NS_PER_S, 0, &option, option != NULL);
    refused(world, rc, words);
}

/* --- the gates --- */

static void test_each_gate_opens_at_its_version_and_not_before(void **state)
{
    static const struct {
        enum nccl_feature feature;
        int last, first;
    } rows[] = {
        {NCCL_PLAIN, 22808, 22809},          {NCCL_AVERAGE_ONE, 22906, 22907},
        {NCCL_GRAPHS_FAR, 23003, 23004},     {NCCL_WINDOWS, 23006, 23007},
        {NCCL_WINDOWS_OF_TWO, 23101, 23102}, {NCCL_WINDOWS_IN_ONE, 23101, 23102},
    };

    (void)state;
    assert_int_equal(sizeof(rows) / sizeof(rows[0]), NCCL_N_FEATURES);
    for (size_t i = 0; i < NCCL_N_FEATURES; i++) {
        assert_int_equal(rows[i].feature, i);
        assert_false(nccl_allows(rows[i].last, rows[i].feature));
        assert_true(nccl_allows(rows[i].first, rows[i].feature));
        assert_true(nccl_allows(23207, rows[i].feature));
        assert_false(nccl_allows(2809, rows[i].feature));
        assert_false(nccl_allows(30000, rows[i].feature));
        assert_true(strlen(nccl_gate(rows[i].feature)->why) > 10);
    }
    assert_null(nccl_gate(NCCL_N_FEATURES));
    assert_false(nccl_allows(23207, NCCL_N_FEATURES));
}

static void test_what_a_version_may_not_do_is_listed(void **state)
{
    char text[300], small[12];

    (void)state;
    nccl_gates_text(22809, text, sizeof(text));
    assert_non_null(strstr(text, "symmetric windows"));
    assert_null(strstr(text, "plain"));
    nccl_gates_text(23207, text, sizeof(text));
    assert_string_equal(text, "nothing");
    memset(small, 'x', sizeof(small));
    nccl_gates_text(20000, small, sizeof(small));
    assert_int_equal(strlen(small), sizeof(small) - 1);
    nccl_version_text(22809, text, sizeof(text));
    assert_string_equal(text, "2.28.9");
}

/* --- what is missing --- */

static void test_a_machine_without_driver_or_device_or_nccl_says_which(void **state)
{
    (void)state;
    refused_with(WORLD, KG_ECONFIG, "no CUDA device", "driver=libcuda-not-here.so.1");
    refused_with(WORLD, KG_ECONFIG, "libcuda-not-here.so.1", "driver=libcuda-not-here.so.1");
    refused_with(WORLD, KG_ECONFIG, "NCCL not found", "library=libnccl-not-here.so.2");
    refused_with(WORLD, KG_ECONFIG, "libnccl-not-here.so.2", "library=libnccl-not-here.so.2");
    refused_with(WORLD, KG_ECONFIG, "has no function ncclGetVersion", "library=libc.so.6");
    refused_with(WORLD, KG_ECONFIG, "has no function cuInit", "driver=libc.so.6");
    atomic_store(&driver->init_result, 100);
    refused_with(WORLD, KG_ECONFIG, "no CUDA device: no CUDA-capable device", NULL);
    atomic_store(&driver->init_result, 0);
    atomic_store(&driver->devices, 0);
    refused_with(WORLD, KG_ECONFIG, "no CUDA device: the driver has none", NULL);
    atomic_store(&driver->devices, WORLD - 1);
    refused_with(WORLD, KG_ECONFIG, "rank 2 wants device 2, and there are 2", NULL);
    atomic_store(&driver->devices, FAKE_RANKS);
    atomic_store(&fake->one_gpu, 1);
    refused_with(WORLD, KG_ECONFIG, "on the same GPU", NULL);
}

static void test_versions_with_known_faults_are_refused_with_the_one_that_works(void **state)
{
    (void)state;
    atomic_store(&fake->version, 22703);
    refused_with(WORLD, KG_ECONFIG, "NCCL 2.27.3", NULL);
    atomic_store(&fake->version, 22809);
    refused_with(WORLD, KG_ECONFIG, "need 2.30.7", "windows=yes");
    refused_with(2, KG_ECONFIG, "need 2.30.7", "windows=yes");
    atomic_store(&fake->version, 23007);
    refused_with(2, KG_ECONFIG, "need 2.31.2", "windows=yes");
}

static void sums_are_right(struct rank *r)
{
    float *x = rig_symm(r, 64 * sizeof(*x));
    struct kg_coll c = {.dtype = KG_F32, .count = 64, .in = x, .out = x};
    struct kg_error err = {0};

    WANT(r, x != NULL);
    if (r->ops->seal(r->comm, &err) != KG_OK) {
        faults.said[r->rank].rc = err.rc;
        faults.said[r->rank].err = err;
        return;
    }
    for (uint32_t i = 0; i < 64; i++)
        x[i] = (float)(i + r->rank);
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
    for (uint32_t i = 0; i < 64; i++)
        WANT(r, x[i] == (float)(i * r->world + r->world * (r->world - 1) / 2));
}

static void
test_windows_are_registered_where_they_may_and_refused_where_there_are_none(void **state)
{
    char *yes = "windows=yes";
    int before = atomic_load(&fake->windows);

    (void)state;
    atomic_store(&fake->version, 23102);
    run_with(2, sums_are_right, SOON_NS, 0, &yes, 1);
    assert_int_equal(faults.said[0].rc, KG_OK);
    assert_int_equal(atomic_load(&fake->windows) - before, 2 * RIG_CHANNELS);
    nothing_is_held();
    atomic_store(&fake->version, 23007);
    run_with(WORLD, sums_are_right, SOON_NS, 0, &yes, 1);
    assert_int_equal(faults.said[0].rc, KG_OK);
    atomic_store(&fake->no_window, 1);
    run_with(WORLD, sums_are_right, SOON_NS, 0, &yes, 1);
    refused(WORLD, KG_EDEVICE, "NCCL has no symmetric windows on this machine");
}

/* --- making communicators --- */

static void test_every_failure_of_the_driver_is_an_error_everywhere_and_gives_all_back(void **state)
{
    int n = 1;

    (void)state;
    atomic_store(&driver->fail_rank, 1);
    for (;; n++) {
        atomic_store(&driver->fails, n);
        run_with(2, open_only, KG_NS_PER_S, 0, NULL, 0);
        if (faults.said[1].rc == KG_OK)
            break;
        refused(2, KG_ENOMEM, "out of memory");
        assert_non_null(strstr(faults.said[0].err.text, "rank 1"));
    }
    assert_int_equal(faults.said[0].rc, KG_OK);
    assert_true(n > 3 + RIG_CHANNELS * 18); /* memory thrice, then streams and events */
    nothing_is_held();
}

static void test_a_communicator_that_cannot_be_made_is_an_error_everywhere(void **state)
{
    (void)state;
    for (int r = 0; r < WORLD; r++) {
        atomic_store(&fake->init_error[r], 2);
        run_with(WORLD, open_only, KG_NS_PER_S, 0, NULL, 0);
        refused(WORLD, KG_EDEVICE, "unhandled system error: as the test wanted");
        atomic_store(&fake->init_error[r], 0);
    }
}

static void test_a_communicator_that_is_never_ready_ends_after_init_ms(void **state)
{
    char *option = "init_ms=600"; /* the ids come in less on a busy machine too */

    (void)state;
    for (int r = 0; r < WORLD; r++) {
        uint64_t begin = kg_now_ns();
        atomic_store(&fake->init_hangs[r], 1);
        run_with(WORLD, open_only, 60 * KG_NS_PER_S, 0, &option, 1);
        assert_true(kg_now_ns() - begin < SOON_NS);
        refused(WORLD, KG_EDEVICE, "making a communicator");
        atomic_store(&fake->init_hangs[r], 0);
    }
}

static void test_a_rank_that_never_comes_ends_after_init_ms(void **state)
{
    char *option = "init_ms=200";

    (void)state;
    for (uint32_t r = 0; r < WORLD; r++) {
        run_with(WORLD, open_only, 60 * KG_NS_PER_S, r + 1, &option, 1);
        for (uint32_t o = 0; o < WORLD; o++) {
            assert_int_equal(faults.said[o].rc, o == r ? KG_OK : KG_ETIMEOUT);
            assert_true(o == r || strstr(faults.said[o].err.text, "did not come") != NULL);
        }
        nothing_is_held();
    }
}

/* --- collectives --- */

static _Atomic uint32_t victim;
static _Atomic(_Atomic int *) trap; /* [rank] of the plan */
static _Atomic int trap_value;
static const char *words;

static int call(struct rank *r, uint32_t op, const struct kg_coll *c)
{
    switch (op) {
    case 0:
        return r->ops->all_reduce(r->comm, c);
    case 1:
        return r->ops->reduce_scatter(r->comm, c);
    case 2:
        return r->ops->all_gather(r->comm, c);
    case 3:
        return r->ops->all_to_all(r->comm, c);
    default:
        return r->ops->broadcast(r->comm, c);
    }
}

static _Atomic uint32_t op_under_test;

/* Three good calls, then the trap: this and every later call is KG_EDEVICE, and all ranks have the
 * same words for it. */
static void a_call_falls_into_the_trap(struct rank *r)
{
    float *x = rig_symm(r, 4096), *y = rig_symm(r, 4096);
    uint64_t *counts = rig_symm(r, RIG_WORLD * sizeof(*counts));
    struct kg_coll c = {.dtype = KG_F32, .count = 8, .in = x, .out = y, .counts = counts};
    uint32_t op = atomic_load(&op_under_test);
    struct kg_error err;
    char text[600];

    WANT(r, x != NULL && y != NULL && counts != NULL);
    memset(x, 0, 4096);
    for (uint32_t p = 0; p < r->world; p++)
        counts[p] = p;
    WANT(r, r->ops->seal(r->comm, &err) == KG_OK);
    for (int i = 0; i < 3; i++)
        WANT(r, call(r, op, &c) == KG_OK);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
    if (r->rank == atomic_load(&victim))
        atomic_store(&atomic_load(&trap)[r->rank], atomic_load(&trap_value));
    WANT(r, call(r, op, &c) == KG_EDEVICE);
    WANT(r, r->ops->poll(r->comm) == KG_EDEVICE);
    WANT(r, r->ops->barrier(r->comm, 1) == KG_EDEVICE);
    WANT(r, call(r, op, &c) == KG_EDEVICE);
    (void)r->ops->progress_dump(r->comm, text, sizeof(text));
    if (strncmp(text, "lost: ", 6) != 0 || strstr(text, words) == NULL)
        rig_fault(r, __LINE__, text);
}

static void fall_into(_Atomic int *plan, int value, uint64_t timeout_ns, const char *text)
{
    words = text;
    atomic_store(&trap, plan);
    atomic_store(&trap_value, value);
    for (uint32_t r = 0; r < 5; r++) {
        uint64_t begin = kg_now_ns();
        atomic_store(&op_under_test, r);
        atomic_store(&victim, r % WORLD);
        run_with(WORLD, a_call_falls_into_the_trap, timeout_ns, 0, NULL, 0);
        assert_int_equal(faults.said[0].rc, KG_OK);
        assert_true(kg_now_ns() - begin < timeout_ns + SOON_NS);
        nothing_is_held();
    }
}

static void test_an_asynchronous_error_reaches_every_rank_with_its_words(void **state)
{
    (void)state;
    fall_into(fake->async_error, 6, 60 * KG_NS_PER_S,
              "NCCL: remote process exited or there was a network error");
    fall_into(fake->async_error, 1, 60 * KG_NS_PER_S, "unhandled cuda error: as the test wanted");
}

static void test_an_error_of_the_call_itself_reaches_every_rank(void **state)
{
    (void)state;
    fall_into(fake->call_error, 4, 60 * KG_NS_PER_S, "NCCL: invalid argument");
}

static void test_a_kernel_that_hangs_ends_with_the_time_out(void **state)
{
    (void)state;
    fall_into(driver->stuck, 1, KG_NS_PER_S / 2, "time-out of rank");
}

static void test_an_abort_from_another_thread_ends_a_collective_on_every_rank(void **state)
{
    uint64_t begin = kg_now_ns();

    (void)state;
    run_with(WORLD, an_abort_ends_what_hangs, 60 * KG_NS_PER_S, 0, NULL, 0);
    assert_true(kg_now_ns() - begin < SOON_NS);
    nothing_is_held();
}

static _Atomic int closed; /* ranks that came out of close */

static void fail_and_leave(struct rank *r)
{
    struct kg_error err;

    WANT(r, r->ops->seal(r->comm, &err) == KG_OK);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
    r->ops->abort(r->comm);
    atomic_fetch_add(&closed, 1);
}

/* NCCL's abort does not come back on one rank: closing gives it up and keeps the memory. */
static void test_an_abort_that_hangs_does_not_hold_the_rank(void **state)
{
    uint64_t begin = kg_now_ns();

    (void)state;
    atomic_store(&closed, 0);
    atomic_store(&fake->abort_hangs[1], 1);
    atomic_store(&driver->keeps, 1 + 1);
    run_with(2, fail_and_leave, 60 * KG_NS_PER_S, 0, NULL, 0);
    assert_true(kg_now_ns() - begin < 2 * SOON_NS);
    assert_int_equal(atomic_load(&closed), 2);
    assert_int_equal(atomic_load(&fake->comms), RIG_CHANNELS);
    assert_int_equal(atomic_load(&driver->contexts), 1);
    atomic_store(&fake->abort_hangs[1], 0);
    while (atomic_load(&fake->comms) != 0) /* its thread ends by itself */
        (void)sched_yield();
    atomic_store(&driver->contexts, 0); /* what it kept is lost by design */
    atomic_store(&driver->streams, 0);
    atomic_store(&driver->events, 0);
    atomic_store(&fake->allocations, 0);
}

static void test_an_orderly_end_that_hangs_becomes_an_abort(void **state)
{
    (void)state;
    atomic_store(&fake->finalize_hangs[0], 1);
    run_with(2, sums_are_right, SOON_NS, 0, NULL, 0);
    nothing_is_held();
}

/* --- streams --- */

/* One rank's kernel hangs; the calls return all the same, and poll finds out. */
static void a_hang_in_a_stream_is_found_by_poll(struct rank *r)
{
    float *x = rig_symm(r, 4096);
    void *stream = new_stream();
    struct kg_coll c = {.dtype = KG_F32, .count = 8, .in = x, .out = x, .stream = stream};
    struct kg_error err;

    WANT(r, x != NULL);
    memset(x, 0, 4096);
    WANT(r, r->ops->seal(r->comm, &err) == KG_OK);
    for (int i = 0; i < 40; i++) /* more than are timed at once */
        WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
    if (r->rank == 0)
        atomic_store(&driver->stuck[0], 1);
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
    uint64_t begin = kg_now_ns();
    while (r->ops->poll(r->comm) == KG_OK) {
        WANT(r, kg_now_ns() - begin < 2 * SOON_NS);
        (void)sched_yield();
    }
    end_stream(stream);
}

static void test_a_hang_in_a_stream_is_found_by_poll(void **state)
{
    (void)state;
    run_with(2, a_hang_in_a_stream_is_found_by_poll, KG_NS_PER_S / 2, 0, NULL, 0);
    nothing_is_held();
}

static void graphs_take_what_has_fixed_sizes(struct rank *r)
{
    float *x = rig_symm(r, 4096), *y = rig_symm(r, 4096);
    uint64_t *counts = rig_symm(r, RIG_WORLD * sizeof(*counts));
    void *stream = new_stream();
    struct kg_coll c = {.dtype = KG_F32, .count = 8, .in = x, .out = y, .stream = stream};
    struct kg_error err;

    WANT(r, x != NULL && y != NULL && counts != NULL);
    memset(x, 0, 4096);
    memset(counts, 0, RIG_WORLD * sizeof(*counts));
    WANT(r, r->ops->seal(r->comm, &err) == KG_OK);
    atomic_store(&driver->capturing, 1);
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
    WANT(r, r->ops->all_to_all(r->comm, &c) == KG_OK);
    c.counts = counts;
    WANT(r, r->ops->all_to_all(r->comm, &c) == KG_EINVAL);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
    c.stream = NULL;
    atomic_store(&driver->capturing, 0);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
    WANT(r, r->ops->all_to_all(r->comm, &c) == KG_OK); /* behind all of them */
    end_stream(stream);
}

static void test_a_graph_takes_no_exchange_whose_sizes_are_data(void **state)
{
    (void)state;
    run_with(2, graphs_take_what_has_fixed_sizes, SOON_NS, 0, NULL, 0);
    nothing_is_held();
}

/* --- what is told without a group --- */

static const char *word(const char *option, uint32_t world, uint32_t op, uint32_t dtype, uint64_t n)
{
    const struct kg_comm_ops *ops = faults.plugin->ops;
    char *set[] = {(char *)(uintptr_t)option};
    struct kg_arena options;
    struct kg_error err = {0};

    kg_arena_init(&options, 0, 0);
    void *conf = comm_conf(faults.plugin, &options, set, 1, &err);
    assert_non_null(conf);
    const char *name = ops->choose(conf, world, op, dtype, n);
    kg_arena_fini(&options);
    return name;
}

static void test_the_kernels_of_windows_have_another_name(void **state)
{
    const uint64_t most = INT64_MAX / 4;

    (void)state;
    for (uint32_t op = KG_COMM_ALL_REDUCE; op < KG_COMM_N_OPS; op++) {
        int kernels = op <= KG_COMM_ALL_GATHER; /* sums and gathers have symmetric ones */
        const char *plain = op == KG_COMM_ALL_TO_ALL ? "send-recv" : "own";
        assert_string_equal(word("windows=no", 8, op, KG_BF16, 7168), plain);
        assert_string_equal(word("windows=yes", 8, op, KG_BF16, 7168), kernels ? "windows" : plain);
    }
    /* what a call would refuse */
    assert_null(word("windows=no", 65, KG_COMM_ALL_REDUCE, KG_F32, 1));
    assert_null(word("windows=no", 8, KG_COMM_REDUCE_SCATTER, KG_U8, 1));
    assert_null(word("windows=no", 8, KG_COMM_ALL_GATHER, KG_N_DTYPES, 1));
    assert_non_null(word("windows=no", 8, KG_COMM_ALL_REDUCE, KG_F32, most));
    assert_null(word("windows=no", 8, KG_COMM_ALL_REDUCE, KG_F32, most + 1));
    assert_null(word("windows=no", 8, KG_COMM_ALL_GATHER, KG_F32, most / 4));
}

/* --- debug runs --- */

static void different_calls_are_noticed(struct rank *r)
{
    float *x = rig_symm(r, 4096);
    struct kg_coll c = {.dtype = KG_F32, .count = 8 + r->rank, .in = x, .out = x};
    struct kg_error err;
    char text[300];

    WANT(r, x != NULL);
    WANT(r, r->ops->seal(r->comm, &err) == KG_OK);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK); /* nobody is still in seal */
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_EDEVICE);
    (void)r->ops->progress_dump(r->comm, text, sizeof(text));
    WANT(r, strstr(text, "a different call by rank") != NULL);
}

static void test_debug_runs_notice_ranks_in_different_calls(void **state)
{
    (void)state;
    run_with(WORLD, different_calls_are_noticed, 60 * KG_NS_PER_S, 0, NULL, 0);
    nothing_is_held();
}

int main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup(test_##f, reset)
    const struct CMUnitTest tests[] = {
        T(each_gate_opens_at_its_version_and_not_before),
        T(what_a_version_may_not_do_is_listed),
        T(a_machine_without_driver_or_device_or_nccl_says_which),
        T(versions_with_known_faults_are_refused_with_the_one_that_works),
        T(windows_are_registered_where_they_may_and_refused_where_there_are_none),
        T(every_failure_of_the_driver_is_an_error_everywhere_and_gives_all_back),
        T(a_communicator_that_cannot_be_made_is_an_error_everywhere),
        T(a_communicator_that_is_never_ready_ends_after_init_ms),
        T(a_rank_that_never_comes_ends_after_init_ms),
        T(an_asynchronous_error_reaches_every_rank_with_its_words),
        T(an_error_of_the_call_itself_reaches_every_rank),
        T(a_kernel_that_hangs_ends_with_the_time_out),
        T(an_abort_from_another_thread_ends_a_collective_on_every_rank),
        T(an_abort_that_hangs_does_not_hold_the_rank),
        T(an_orderly_end_that_hangs_becomes_an_abort),
        T(a_hang_in_a_stream_is_found_by_poll),
        T(a_graph_takes_no_exchange_whose_sizes_are_data),
        T(the_kernels_of_windows_have_another_name),
        T(debug_runs_notice_ranks_in_different_calls),
    };
    int rc = faults_load(argc, argv, "fake_nccl_plan");

    if (rc != 0)
        return rc;
    fake = faults.fake;
    driver = faults.driver;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
