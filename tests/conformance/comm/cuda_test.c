/*
 * comm-symmem on device memory when things go wrong: a driver or device that is missing, every call
 * of the driver failing in turn, kernels that hang, aborts, counts that cannot be.
 * usage: cuda_test PLUGIN FAKE
 */
#include "conf.h"
#include "fake_cuda.h"
#include "plugin.h"
#include "rig.h"

#include "base/clock.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SOON_NS (5 * KG_NS_PER_S) /* far from any deadline of a hang, near for a busy machine */

static const struct kg_plugin *plugin;
static struct fake_cuda_plan *fake;
static const char *fake_path;
static struct {
    int rc;
    struct kg_error err;
} said[RIG_WORLD];

static int reset(void **state)
{
    (void)state;
    atomic_store(&fake->devices, FAKE_DEVICES);
    atomic_store(&fake->init_result, 0);
    atomic_store(&fake->no_vmm, 0);
    atomic_store(&fake->capturing, 0);
    atomic_store(&fake->fails, 0);
    for (int r = 0; r < FAKE_DEVICES; r++)
        atomic_store(&fake->stuck[r], 0);
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
    assert_int_equal(atomic_load(&fake->streams), 0);
    assert_int_equal(atomic_load(&fake->events), 0);
    assert_int_equal(atomic_load(&fake->contexts), 0);
    assert_int_equal(atomic_load(&fake->faults), 0);
}

static void note(struct rank *r, int rc, const struct kg_error *err)
{
    said[r->rank].rc = rc;
    said[r->rank].err = *err;
}

static void run_with(uint32_t world, rig_case *run, uint64_t timeout_ns, char *option)
{
    char driver[600], fault[300];
    char *all[] = {"memory=cuda", "stage=64k", driver, option};
    struct kg_error err = {0};
    int before = descriptors();

    (void)snprintf(driver, sizeof(driver), "driver=%s", fake_path);
    void *conf = comm_conf(plugin, all, option != NULL ? 4 : 3, &err);
    assert_non_null(conf);
    const struct rig rig = {
        .plugin = plugin, .world = world, .timeout_ns = timeout_ns, .conf = conf, .refused = note};
    memset(said, 0, sizeof(said));
    int ok = rig_run(&rig, run, fault);
    free(conf);
    if (!ok)
        fail_msg("%s", fault);
    nothing_is_held();
    assert_int_equal(descriptors(), before);
}

static void open_only(struct rank *r)
{
    (void)r;
}

static void refused_with(int rc, const char *words, char *option)
{
    run_with(3, open_only, KG_NS_PER_S, option);
    for (uint32_t r = 0; r < 3; r++) {
        if (said[r].rc != rc || strstr(said[r].err.text, words) == NULL)
            fail_msg("rank %u: %d \"%s\", wanted %d \"%s\"", r, said[r].rc, said[r].err.text, rc,
                     words);
    }
}

static void test_a_machine_without_driver_or_device_says_which(void **state)
{
    (void)state;
    refused_with(KG_ECONFIG, "no CUDA device, the driver is not here: libcuda-not-here.so.1",
                 "driver=libcuda-not-here.so.1");
    refused_with(KG_ECONFIG, "has no function cuInit", "driver=libc.so.6");
    atomic_store(&fake->init_result, 100);
    refused_with(KG_ECONFIG, "no CUDA device: no CUDA-capable device", NULL);
    (void)reset(NULL);
    atomic_store(&fake->devices, 0);
    refused_with(KG_ECONFIG, "no CUDA device: the driver has none", NULL);
    atomic_store(&fake->devices, 2);
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
        atomic_store(&fake->fail_rank, rank);
        for (n = 1;; n++) {
            char who[20];
            atomic_store(&fake->fails, n);
            run_with(3, open_only, KG_NS_PER_S, NULL);
            if (said[rank].rc == KG_OK)
                break;
            (void)snprintf(who, sizeof(who), "rank %d", rank);
            for (int r = 0; r < 3; r++) {
                assert_int_equal(said[r].rc, KG_ENOMEM);
                assert_non_null(strstr(said[r].err.text, who));
                assert_non_null(strstr(said[r].err.text, "out of memory"));
            }
        }
        /* own memory and descriptor 3, two imports, range, maps, access, zeroing 7, kernels 3, host
         * memory, then address, stream and events of each channel */
        assert_int_equal(n - 1, 3 + 2 + 7 + 3 + 1 + RIG_CHANNELS * (1 + 1 + 17));
    }
}

static float *sealed(struct rank *r)
{
    float *x = rig_symm(r, 4096);
    struct kg_error err;

    if (x != NULL)
        memset(x, 0, 4096);
    if (r->ops->seal(r->comm, &err) != KG_OK)
        rig_fault(r, __LINE__, err.text);
    return x;
}

static void a_kernel_never_comes(struct rank *r)
{
    float *x = sealed(r);
    struct kg_coll c = {.dtype = KG_F32, .count = 8, .in = x, .out = x};
    char text[600];

    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
    if (r->rank == 1)
        atomic_store(&fake->stuck[1], 1);
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
    run_with(3, a_kernel_never_comes, KG_NS_PER_S / 3, NULL);
    run_with(3, a_kernel_never_comes, KG_NS_PER_S / 3, "push=1");
    assert_true(kg_now_ns() - begin < 2 * SOON_NS);
}

static void *abort_soon(void *arg)
{
    struct rank *r = arg;

    r->ops->abort(r->comm);
    return NULL;
}

static void an_abort_ends_what_hangs(struct rank *r)
{
    float *x = sealed(r);
    struct kg_coll c = {.dtype = KG_F32, .count = 8, .in = x, .out = x};
    pthread_t thread;

    if (r->rank == 0)
        atomic_store(&fake->stuck[0], 1);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
    if (r->rank == 1)
        WANT(r, pthread_create(&thread, NULL, abort_soon, r) == 0);
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_EDEVICE);
    if (r->rank == 1)
        (void)pthread_join(thread, NULL);
}

static void test_an_abort_from_another_thread_ends_kernels_on_every_rank(void **state)
{
    uint64_t begin = kg_now_ns();

    (void)state;
    run_with(3, an_abort_ends_what_hangs, 60 * KG_NS_PER_S, NULL);
    assert_true(kg_now_ns() - begin < SOON_NS);
}

static void *in_fake(const char *name)
{
    return dlsym(dlopen(fake_path, RTLD_NOW), name);
}

/* Everything in one stream of the caller: many calls, then a wait for all of them by the next call
 * without a stream, which goes to another one; so the stream is destroyed first, which waits. */
static void calls_in_a_stream_keep_their_order(struct rank *r)
{
    int (*create)(void **stream, unsigned int flags);
    int (*destroy)(void *stream);
    float *x = sealed(r);
    void *stream = NULL;

    *(void **)&create = in_fake("cuStreamCreate");
    *(void **)&destroy = in_fake("cuStreamDestroy_v2");
    WANT(r, x != NULL && create(&stream, 1) == 0);
    struct kg_coll c = {.dtype = KG_F32, .count = 100, .in = x, .out = x, .stream = stream};
    for (uint32_t i = 0; i < 100; i++)
        x[i] = 1;
    for (int i = 0; i < 20; i++) { /* 2^20: each waits for the one before */
        WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
        WANT(r, r->ops->poll(r->comm) == KG_OK);
    }
    (void)destroy(stream);
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
    int (*create)(void **stream, unsigned int flags);
    int (*destroy)(void *stream);
    uint64_t *n = rig_symm(r, RIG_WORLD * sizeof(*n));
    float *y = rig_symm(r, 4096), *x = sealed(r);
    void *stream = NULL;

    *(void **)&create = in_fake("cuStreamCreate");
    *(void **)&destroy = in_fake("cuStreamDestroy_v2");
    WANT(r, n != NULL && y != NULL && x != NULL && create(&stream, 1) == 0);
    struct kg_coll c = {
        .dtype = KG_F32, .count = 4, .in = x, .out = y, .counts = n, .stream = stream};
    for (uint32_t p = 0; p < r->world; p++)
        n[p] = r->rank == 1 ? 5 : 4;
    WANT(r, r->ops->all_to_all(r->comm, &c) == KG_OK);
    (void)destroy(stream);
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
    struct kg_plugin_ref ref;
    struct kg_error err = {0};

    if (argc != 3 || kg_plugin_load("", KG_KIND_COMM, argv[1], &ref, &err) != KG_OK) {
        (void)fprintf(stderr, "usage: cuda_test PLUGIN FAKE: %s\n", err.text);
        return 2;
    }
    plugin = ref.plugin;
    fake_path = argv[2];
    void *so = dlopen(fake_path, RTLD_NOW);
    fake = so != NULL ? dlsym(so, "fake_cuda_plan") : NULL;
    if (fake == NULL) {
        (void)fprintf(stderr, "cuda_test: %s\n", dlerror());
        return 2;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
