/*
 * comm-symmem on device memory when things go wrong: a driver or device that is missing, every call
 * of the driver failing in turn, kernels that hang, aborts, counts that cannot be.
 * usage: cuda_test PLUGIN FAKE
 */
#include "fake_cuda.h"
#include "faults.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct fake_cuda_plan *fake;
static struct fake_driver_plan *driver;

static int reset(void **state)
{
    (void)state;
    faults_reset();
    atomic_store(&fake->no_vmm, 0);
    return 0;
}

static int descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(d);
    while (readdir(d) != NULL)
        n++;
    (void)closedir(d);
    return n;
}

static void nothing_is_held(void)
{
    assert_int_equal(atomic_load(&fake->handles), 0);
    assert_int_equal(atomic_load(&fake->maps), 0);
    assert_int_equal(atomic_load(&fake->ranges), 0);
    assert_int_equal(atomic_load(&fake->hosts), 0);
    assert_int_equal(atomic_load(&fake->modules), 0);
    assert_int_equal(atomic_load(&fake->faults), 0);
    faults_nothing_is_held();
}

static void run_with(uint32_t world, rig_case *run, uint64_t timeout_ns, char *option)
{
    char path[600], *all[] = {"memory=cuda", "stage=64k", path};
    int before = descriptors();

    (void)snprintf(path, sizeof(path), "driver=%s", faults.fake_path);
    faults_run(&(struct faults_run){.world = world,
                                    .run = run,
                                    .timeout_ns = timeout_ns,
                                    .words = &option,
                                    .n = option != NULL},
               all, 3);
    nothing_is_held();
    assert_int_equal(descriptors(), before);
}

static void refused_with(int rc, const char *words, char *option)
{
    run_with(3, open_only, KG_NS_PER_S, option);
    faults_refused(3, rc, words);
}

static void test_a_machine_without_driver_or_device_says_which(void **state)
{
    (void)state;
    refused_with(KG_ECONFIG, "no CUDA device, the driver is not here: libcuda-not-here.so.1",
                 "driver=libcuda-not-here.so.1");
    refused_with(KG_ECONFIG, "has no function cuInit", "driver=libc.so.6");
    atomic_store(&driver->init_result, 100);
    refused_with(KG_ECONFIG, "no CUDA device: no CUDA-capable device", NULL);
    (void)reset(NULL);
    atomic_store(&driver->devices, 0);
    refused_with(KG_ECONFIG, "no CUDA device: the driver has none", NULL);
    atomic_store(&driver->devices, 2);
    refused_with(KG_ECONFIG, "rank 2 wants device 2, and there are 2", NULL);
    (void)reset(NULL);
    atomic_store(&fake->no_vmm, 1);
    refused_with(KG_ECONFIG, "does not share memory by descriptor", NULL);
}

static void test_every_failing_call_is_an_error_everywhere_and_leaves_nothing(void **state)
{
    int n = 1;

    (void)state;
    for (int rank = getenv("KEDGE_FULL") != NULL ? 0 : 2; rank < 3; rank++) {
        atomic_store(&driver->fail_rank, rank);
        for (n = 1;; n++) {
            char who[20];
            atomic_store(&driver->fails, n);
            run_with(3, open_only, KG_NS_PER_S, NULL);
            if (faults.said[rank].rc == KG_OK)
                break;
            (void)snprintf(who, sizeof(who), "rank %d", rank);
            for (int r = 0; r < 3; r++) {
                assert_int_equal(faults.said[r].rc, KG_ENOMEM);
                assert_non_null(strstr(faults.said[r].err.text, who));
                assert_non_null(strstr(faults.said[r].err.text, "out of memory"));
            }
        }
        /* own memory and descriptor 3, two imports, range, maps, access, zeroing 7, kernels 4, host
         * memory, then address, stream and events of each channel */
        assert_int_equal(n - 1, 3 + 2 + 7 + 4 + 1 + RIG_CHANNELS * (1 + 1 + 17));
    }
}

static void a_kernel_never_comes(struct rank *r)
{
    float *x = sealed(r);
    struct kg_coll c = {.dtype = KG_F32, .count = 8, .in = x, .out = x};
    char text[600];

    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
    if (r->rank == 1)
        atomic_store(&driver->stuck[1], 1);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_EDEVICE);
    WANT(r, r->ops->poll(r->comm) == KG_EDEVICE);
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_EDEVICE);
    (void)r->ops->progress_dump(r->comm, text, sizeof(text));
    if (strstr(text, "lost: time-out waiting for rank 1") != text)
        rig_fault(r, __LINE__, text);
}

static void test_a_kernel_that_hangs_ends_with_the_time_out_and_is_named(void **state)
{
    uint64_t begin = kg_now_ns();

    (void)state;
    /* long enough that on a busy machine the others come in time, or one of them is named */
    run_with(3, a_kernel_never_comes, 2 * KG_NS_PER_S, NULL);
    run_with(3, a_kernel_never_comes, 2 * KG_NS_PER_S, "push=1");
    assert_true(kg_now_ns() - begin < 2 * SOON_NS);
}

static void test_an_abort_from_another_thread_ends_kernels_on_every_rank(void **state)
{
    uint64_t begin = kg_now_ns();

    (void)state;
    run_with(3, an_abort_ends_what_hangs, 60 * KG_NS_PER_S, NULL);
    assert_true(kg_now_ns() - begin < SOON_NS);
}

/* Everything in one stream of the caller: many calls, then a wait for all of them by the next call
 * without a stream, which goes to another one; so the stream is destroyed first, which waits. */
static void calls_in_a_stream_keep_their_order(struct rank *r)
{
    float *x = sealed(r);
    void *stream = new_stream();

    WANT(r, x != NULL && stream != NULL);
    struct kg_coll c = {.dtype = KG_F32, .count = 100, .in = x, .out = x, .stream = stream};
    for (uint32_t i = 0; i < 100; i++)
        x[i] = 1;
    for (int i = 0; i < 20; i++) { /* 2^20: each waits for the one before */
        WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
        WANT(r, r->ops->poll(r->comm) == KG_OK);
    }
    end_stream(stream);
    for (uint32_t i = 0; i < 100; i++)
        WANT(r, x[i] == 1048576.0f);
    WANT(r, r->ops->poll(r->comm) == KG_OK);
}

static void test_calls_in_a_stream_keep_their_order(void **state)
{
    (void)state;
    run_with(2, calls_in_a_stream_keep_their_order, 20 * KG_NS_PER_S, NULL);
    run_with(2, calls_in_a_stream_keep_their_order, 20 * KG_NS_PER_S, "push=1");
}

/* In a stream nobody looks at the counts before the kernel does; what it finds is told by poll. */
static void a_count_above_the_maximum_is_found_by_poll(struct rank *r)
{
    uint64_t *n = rig_symm(r, RIG_WORLD * sizeof(*n));
    float *y = rig_symm(r, 4096), *x = sealed(r);
    void *stream = new_stream();

    WANT(r, n != NULL && y != NULL && x != NULL && stream != NULL);
    struct kg_coll c = {
        .dtype = KG_F32, .count = 4, .in = x, .out = y, .counts = n, .stream = stream};
    for (uint32_t p = 0; p < r->world; p++)
        n[p] = r->rank == 1 ? 5 : 4;
    WANT(r, r->ops->all_to_all(r->comm, &c) == KG_OK);
    end_stream(stream);
    uint64_t begin = kg_now_ns();
    while (r->ops->poll(r->comm) == KG_OK)
        WANT(r, kg_now_ns() - begin < SOON_NS);
}

static void test_a_count_above_the_maximum_is_found_by_poll(void **state)
{
    (void)state;
    run_with(2, a_count_above_the_maximum_is_found_by_poll, 20 * KG_NS_PER_S, NULL);
}

int main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup(test_##f, reset)
    const struct CMUnitTest tests[] = {
        T(a_machine_without_driver_or_device_says_which),
        T(every_failing_call_is_an_error_everywhere_and_leaves_nothing),
        T(a_kernel_that_hangs_ends_with_the_time_out_and_is_named),
        T(an_abort_from_another_thread_ends_kernels_on_every_rank),
        T(calls_in_a_stream_keep_their_order),
        T(a_count_above_the_maximum_is_found_by_poll),
    };
    int rc = faults_load(argc, argv, "fake_cuda_plan");

    if (rc != 0)
        return rc;
    fake = faults.fake;
    driver = faults.driver;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
