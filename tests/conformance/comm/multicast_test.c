/*
 * comm-symmem's sums by multicast: right for every size and place, within the bound of the plain
 * form, equal on all ranks where they are said to be; and what becomes of them where a device has
 * none or a call of the driver fails.
 * usage: multicast_test PLUGIN FAKE
 */
#include "fake_cuda.h"
#include "faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define WORLD 3

static struct fake_cuda_plan *fake;
static struct fake_driver_plan *driver;
static char written[8192]; /* by the plugins of the last run */

static int reset(void **state)
{
    (void)state;
    faults_reset();
    atomic_store(&fake->no_multicast, 0);
    atomic_store(&fake->no_unbind, 0);
    atomic_store(&fake->bound, 0);
    return 0;
}

static void nothing_is_held(void)
{
    assert_int_equal(atomic_load(&fake->handles), 0);
    assert_int_equal(atomic_load(&fake->maps), 0);
    assert_int_equal(atomic_load(&fake->ranges), 0);
    assert_int_equal(atomic_load(&fake->hosts), 0);
    assert_int_equal(atomic_load(&fake->modules), 0);
    assert_int_equal(atomic_load(&fake->bound), 0);
    assert_int_equal(atomic_load(&fake->faults), 0);
    faults_nothing_is_held();
}

/* Runs a case with these options, blank between. */
static void run_with(uint32_t world, rig_case *run, uint64_t timeout_ns, const char *options)
{
    char path[600], set[200], *rest = set, *word, *words[6], *all[] = {"memory=cuda", path};
    int n = 0, fd = memfd_create("log", MFD_CLOEXEC);
    struct kg_log log;

    assert_true(fd >= 0);
    kg_log_init(&log, fd, KG_LOG_WARN);
    for (int k = 0; k < 4; k++)
        atomic_store(&fake->launched[k], 0);
    (void)snprintf(path, sizeof(path), "driver=%s", faults.fake_path);
    (void)snprintf(set, sizeof(set), "%s", options);
    while ((word = strsep(&rest, " ")) != NULL && n < 6)
        words[n++] = word;
    faults_run(&(struct faults_run){.world = world,
                                    .run = run,
                                    .timeout_ns = timeout_ns,
                                    .log = &log,
                                    .words = words,
                                    .n = n},
               all, 2);
    ssize_t bytes = pread(fd, written, sizeof(written) - 1, 0);
    written[bytes > 0 ? bytes : 0] = '\0';
    (void)close(fd);
}

static void run_clean(uint32_t world, rig_case *run, const char *options)
{
    run_with(world, run, 60 * KG_NS_PER_S, options);
    for (uint32_t r = 0; r < world; r++)
        assert_int_equal(faults.said[r].rc, KG_OK);
    nothing_is_held();
}

/* --- right --- */

#define MOST 600
#define GUARD 32

static void put(char *p, uint32_t dtype, uint64_t i, float f)
{
    uint32_t bits;

    memcpy(&bits, &f, 4);
    if (dtype == KG_F32)
        memcpy(p + i * 4, &bits, 4);
    else
        memcpy(p + i * 2, (char *)&bits + 2, 2); /* exact, or cut */
}

static float get(const char *p, uint32_t dtype, uint64_t i)
{
    uint32_t bits = 0;
    float f;

    memcpy(dtype == KG_F32 ? (char *)&bits : (char *)&bits + 2, p + i * (dtype == KG_F32 ? 4 : 2),
           dtype == KG_F32 ? 4 : 2);
    memcpy(&f, &bits, 4);
    return f;
}

/* Whole numbers, so that every order of adding is exact; nothing before or behind is touched. */
static void one_size(struct rank *r, uint32_t dtype, uint64_t n, uint64_t off, char *in, char *out)
{
    uint64_t one = kg_dtype_bytes(dtype);
    const struct kg_coll c = {
        .dtype = dtype, .count = n, .in = in + off * one, .out = out + GUARD + off * one};

    memset(out, 0x5a, 2 * GUARD + (off + n) * one);
    for (uint64_t i = 0; i < n; i++)
        put(in + off * one, dtype, i, (float)(int)((i * 7 + r->rank * 3 + n) % 21) - 10);
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
    for (uint64_t i = 0; i < n; i++) {
        float sum = 0;
        for (uint32_t k = 0; k < r->world; k++)
            sum += (float)(int)((i * 7 + k * 3 + n) % 21) - 10;
        WANT(r, get(c.out, dtype, i) == sum);
    }
    for (uint64_t i = 0; i < GUARD + off * one; i++)
        WANT(r, out[i] == 0x5a);
    for (uint64_t i = 0; i < GUARD; i++)
        WANT(r, out[GUARD + (off + n) * one + i] == 0x5a);
}

static void every_size_and_place(struct rank *r)
{
    /* the pieces of 4096 bytes, their blocks and slices begin and end around these */
    static const uint64_t large[] = {1023, 1024, 1025, 2047, 2048, 2049, 3 * 1024 + 5, 9001};
    char *in = rig_symm(r, 65536), *out = rig_symm(r, 65536);

    WANT(r, sealed(r) != NULL && in != NULL && out != NULL);
    for (uint32_t dtype = KG_F32; dtype <= KG_BF16; dtype++) {
        for (uint64_t n = 1; n <= MOST && r->fault[0] == '\0'; n += n < 40 ? 1 : 7)
            one_size(r, dtype, n, n % 9, in, out);
        for (uint32_t k = 0; k < sizeof(large) / sizeof(large[0]) && r->fault[0] == '\0'; k++)
            one_size(r, dtype, large[k], k % 2, in, out);
    }
}

static void test_sums_are_right_for_every_size_and_place(void **state)
{
    (void)state;
    _Static_assert(KG_BF16 == KG_F32 + 1, "the loop");
    run_clean(WORLD, every_size_and_place, "push=1 stage=4096 multicast=on");
    assert_true(atomic_load(&fake->launched[3]) > 0);
    assert_int_equal(atomic_load(&fake->launched[2]), 0);
    run_clean(WORLD, every_size_and_place, "push=1 stage=4096 multicast=on multicast_one_shot=1m");
    assert_int_equal(atomic_load(&fake->launched[2]), 0);
    run_clean(2, every_size_and_place, "push=1 stage=64k multicast=on");
}

/* --- bits --- */

#define N_SUMS 4000

static float sums[RIG_WORLD][N_SUMS]; /* of each rank */
static uint32_t sums_dtype;

static float addend(uint32_t rank, uint64_t i)
{
    float f = (i % 3 == 0 ? -1.0f : 1.0f) / (float)(3 + i * 7 + rank * 11);
    char two[2];

    put(two, sums_dtype == KG_F32 ? KG_BF16 : sums_dtype, 0, f);
    return sums_dtype == KG_F32 ? f : get(two, KG_BF16, 0);
}

static void sums_that_depend_on_the_order(struct rank *r)
{
    char *x = rig_symm(r, sizeof(sums[0]));

    WANT(r, sealed(r) != NULL && x != NULL);
    for (uint64_t i = 0; i < N_SUMS; i++)
        put(x, sums_dtype, i, addend(r->rank, i));
    const struct kg_coll c = {.dtype = sums_dtype, .count = N_SUMS, .in = x, .out = x};
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
    for (uint64_t i = 0; i < N_SUMS; i++)
        sums[r->rank][i] = get(x, sums_dtype, i);
}

/* How many elements differ between two ranks; all within the bound that multimem.cuh states. */
static uint32_t differ(void)
{
    uint32_t n = 0;

    for (uint64_t i = 0; i < N_SUMS; i++) {
        double exact = 0, size = 0;
        int same = 1;
        for (uint32_t r = 0; r < WORLD; r++) {
            exact += (double)addend(r, i);
            size += addend(r, i) < 0 ? -(double)addend(r, i) : (double)addend(r, i);
            same &= memcmp(&sums[r][i], &sums[0][i], 4) == 0;
        }
        double most = (WORLD - 1) * 0x1p-23 * size;
        most += sums_dtype == KG_F32 ? 0 : 0x1p-8 * (exact < 0 ? -exact : exact);
        for (uint32_t r = 0; r < WORLD; r++) {
            double off = (double)sums[r][i] - exact;
            if (off > most || -off > most)
                fail_msg("element %u on rank %u: %.9g, exact %.17g", (unsigned)i, r,
                         (double)sums[r][i], exact);
        }
        n += !same;
    }
    return n;
}

static void test_two_shots_give_every_rank_the_same_bits(void **state)
{
    (void)state;
    for (sums_dtype = KG_F32; sums_dtype <= KG_BF16; sums_dtype++) {
        run_clean(WORLD, sums_that_depend_on_the_order, "push=1 multicast=on");
        assert_true(atomic_load(&fake->launched[3]) == WORLD);
        assert_int_equal(differ(), 0);
    }
}

/* The plain form of the instruction adds for each rank in another order: the sums above do depend
 * on it, and this is why one shot has to be asked for. */
static void test_one_shot_does_not(void **state)
{
    (void)state;
    sums_dtype = KG_F32;
    run_clean(WORLD, sums_that_depend_on_the_order, "push=1 multicast=on multicast_one_shot=1m");
    assert_true(differ() > N_SUMS / 100);
}

static void test_what_it_can_follows_the_options(void **state)
{
    const struct kg_comm_ops *ops = faults.plugin->ops;

    (void)state;
    assert_true((faults.plugin->caps & KG_COMM_CAP_MULTICAST) != 0);
    assert_true((ops->caps(NULL) & KG_COMM_CAP_FIXED_ORDER) != 0);
    assert_int_equal(ops->caps(NULL) & (KG_COMM_CAP_MULTICAST | KG_COMM_CAP_CUDA), 0);
}

/* --- who uses it --- */

/* Both halves of the bands: 4 bytes, 2 KB, 8 KB. */
static void three_sizes(struct rank *r)
{
    static const uint64_t sizes[] = {1, 512, 2048};
    float *x = rig_symm(r, 8192);

    WANT(r, sealed(r) != NULL && x != NULL);
    for (uint32_t k = 0; k < 3; k++) {
        const struct kg_coll c = {.dtype = KG_F32, .count = sizes[k], .in = x, .out = x};
        for (uint64_t i = 0; i < sizes[k]; i++)
            x[i] = (float)(r->rank + 1);
        WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
        for (uint64_t i = 0; i < sizes[k]; i++)
            WANT(r, x[i] == (float)(r->world * (r->world + 1)) / 2);
    }
}

/* What there was of an object that is not used is given back at once, not at the end. */
static void three_sizes_and_no_object(struct rank *r)
{
    three_sizes(r);
    if (r->comm != NULL)
        WANT(r, atomic_load(&fake->bound) == 0);
}

static void launched(int push, int staged, int multicast)
{
    assert_int_equal(atomic_load(&fake->launched[1]), push);
    assert_int_equal(atomic_load(&fake->launched[2]), staged);
    assert_int_equal(atomic_load(&fake->launched[3]), multicast);
}

static void test_it_is_used_where_the_options_say(void **state)
{
    (void)state;
    run_clean(3, three_sizes, "push=1k"); /* off */
    launched(3, 6, 0);
    assert_int_equal(atomic_load(&fake->bound), 0);
    run_clean(3, three_sizes, "push=1k multicast=auto");
    launched(3, 0, 6);
    run_clean(2, three_sizes, "push=1k multicast=auto"); /* worse with two ranks */
    launched(2, 4, 0);
    run_clean(2, three_sizes, "push=1k multicast=on");
    launched(2, 0, 4);
    run_clean(2, three_sizes, "push=1k multicast=auto multicast_one_shot=2k");
    launched(2, 2, 2);
    run_clean(1, three_sizes, "push=1k multicast=on"); /* nobody to cast to */
    launched(1, 2, 0);
    assert_string_equal(written, "");
}

/* --- where it cannot be had --- */

static void test_a_device_without_it_is_named_and_sums_go_without(void **state)
{
    (void)state;
    atomic_store(&fake->no_multicast, 1 << 1);
    run_clean(3, three_sizes, "push=1k multicast=auto");
    launched(3, 6, 0);
    if (strstr(written, "sums go without multicast: rank 1, multicast: its device has none") ==
        NULL)
        fail_msg("%s", written);
    run_with(3, open_only, KG_NS_PER_S, "push=1k multicast=on");
    faults_refused(3, KG_ECONFIG, "multicast = on: rank 1, multicast: its device has none");
    nothing_is_held();
    atomic_store(&fake->no_multicast, 1 << 7); /* of nobody's */
    run_clean(3, three_sizes, "push=1k multicast=on");
    launched(3, 0, 6);
}

static void test_host_memory_has_none(void **state)
{
    struct kg_error err = {0};

    (void)state;
    run_with(2, open_only, KG_NS_PER_S, "memory=host multicast=on");
    faults_refused(2, KG_ECONFIG, "multicast = on: wants memory = cuda");
    run_with(2, open_only, KG_NS_PER_S, "memory=host multicast=auto");
    assert_int_equal(faults.said[0].rc, KG_OK);
    (void)err;
}

/* The n-th call that takes something fails, on a rank that makes the object or one that gets it. */
static void fail_each(int rank, const char *options, int must)
{
    /* asking and granularity; then making and exporting it, or importing it; adding, binding,
     * addresses, mapping, access */
    const int many = 2 + (rank == 0 ? 2 : 1) + 5;
    /* own memory and descriptor 3, two imports, range, maps, access, zeroing 7, kernels 4, host
     * memory, then address, stream and events of each channel */
    const int others = 3 + 2 + 7 + 4 + 1 + RIG_CHANNELS * (1 + 1 + 17);
    int n_without = 0;

    for (int n = 1; n <= many + others; n++) {
        char who[20];
        (void)reset(NULL);
        atomic_store(&driver->fail_rank, rank);
        atomic_store(&driver->fails, n);
        run_with(WORLD, three_sizes_and_no_object, 60 * KG_NS_PER_S, options);
        int refused = faults.said[rank].rc;
        nothing_is_held();
        (void)snprintf(who, sizeof(who), "rank %d", rank);
        for (uint32_t r = 0; r < WORLD; r++) {
            assert_int_equal(faults.said[r].rc, refused);
            if (refused == KG_OK)
                continue;
            assert_non_null(strstr(faults.said[r].err.text, who));
            assert_non_null(strstr(faults.said[r].err.text, "out of memory"));
        }
        if (refused != KG_OK)
            continue;
        n_without++;
        assert_non_null(strstr(written, "sums go without multicast"));
        assert_non_null(strstr(written, who));
        launched(3, 6, 0);
    }
    assert_int_equal(n_without, must ? 0 : many);
    (void)reset(NULL);
    atomic_store(&driver->fail_rank, rank);
    atomic_store(&driver->fails, many + others + 1); /* there are not so many calls */
    run_clean(WORLD, three_sizes, options);
    launched(3, 0, 6);
}

static void test_every_failing_call_leaves_nothing_and_multicast_only_itself(void **state)
{
    (void)state;
    fail_each(0, "push=1k multicast=auto", 0);
    fail_each(2, "push=1k multicast=auto", 0);
    if (getenv("KEDGE_FULL") == NULL)
        return;
    fail_each(0, "push=1k multicast=on", 1);
    fail_each(1, "push=1k multicast=on", 1);
}

static void test_memory_that_cannot_be_taken_out_is_said(void **state)
{
    (void)state;
    atomic_store(&fake->no_unbind, 1);
    run_with(WORLD, three_sizes, 60 * KG_NS_PER_S, "push=1k multicast=on");
    assert_non_null(strstr(written, "unbinding its memory: CUDA"));
    assert_int_equal(atomic_load(&fake->bound), WORLD);
    atomic_store(&fake->bound, 0);
    nothing_is_held();
}

/* --- ends --- */

/* Rank 0 is done first and closes: it may not take its memory out while others still read it. */
static void one_leaves_at_once(struct rank *r)
{
    float *x = rig_symm(r, 8192);

    WANT(r, sealed(r) != NULL && x != NULL);
    const struct kg_coll c = {.dtype = KG_F32, .count = 2048, .in = x, .out = x};
    for (int i = 0; i < 3; i++)
        WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
    r->ops->close(r->comm);
    r->comm = NULL;
}

static void test_nobody_takes_memory_out_that_others_read(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        run_clean(RIG_WORLD, one_leaves_at_once, "push=1 multicast=on multicast_one_shot=1m");
}

static void test_an_abort_ends_a_sum_that_hangs(void **state)
{
    uint64_t begin = kg_now_ns();

    (void)state;
    run_with(WORLD, an_abort_ends_what_hangs, 60 * KG_NS_PER_S, "push=1 multicast=on");
    assert_true(kg_now_ns() - begin < SOON_NS);
    nothing_is_held();
}

int main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup(test_##f, reset)
    const struct CMUnitTest tests[] = {
        T(sums_are_right_for_every_size_and_place),
        T(two_shots_give_every_rank_the_same_bits),
        T(one_shot_does_not),
        T(what_it_can_follows_the_options),
        T(it_is_used_where_the_options_say),
        T(a_device_without_it_is_named_and_sums_go_without),
        T(host_memory_has_none),
        T(every_failing_call_leaves_nothing_and_multicast_only_itself),
        T(memory_that_cannot_be_taken_out_is_said),
        T(nobody_takes_memory_out_that_others_read),
        T(an_abort_ends_a_sum_that_hangs),
    };
    int rc = faults_load(argc, argv, "fake_cuda_plan");

    if (rc != 0)
        return rc;
    fake = faults.fake;
    driver = faults.driver;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
