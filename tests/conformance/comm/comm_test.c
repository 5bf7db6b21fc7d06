/*
 * What every comm plugin must do, checked against sums and copies computed here, serially.
 * usage: comm_test PLUGIN WORLD [mirror] [KEY=VALUE...]
 *
 * PLUGIN as in [plugins] comm: "self" or a path; KEY=VALUE: options of it. mirror: the memory is a
 * device's, which only copies of the driver reach (of `driver`, when that option is given);
 * skipped with fewer devices than ranks.
 */
#include "conf.h"
#include "mirror.h"
#include "plugin.h"
#include "rig.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t counts[] = {1, 2, 31, 32, 33, 127, 1000};
#define N_COUNTS (sizeof(counts) / sizeof(counts[0]))

/* Element i of rank r: whole numbers, so that sums are exact in F32 and BF16 alike. */
static float value(uint32_t r, uint64_t i)
{
    return (float)((int)((i * 7 + r * 13) % 15) - 7);
}

static void put(void *p, uint32_t dtype, uint64_t i, float f)
{
    uint32_t bits;

    memcpy(&bits, &f, 4);
    if (dtype == KG_F32)
        memcpy((char *)p + i * 4, &f, 4);
    else
        memcpy((char *)p + i * 2, (char *)&bits + 2, 2); /* exact: few digits */
}

static float get(const void *p, uint32_t dtype, uint64_t i)
{
    uint32_t bits = 0;
    float f;

    if (dtype == KG_F32)
        memcpy(&bits, (const char *)p + i * 4, 4);
    else
        memcpy((char *)&bits + 2, (const char *)p + i * 2, 2);
    memcpy(&f, &bits, 4);
    return f;
}

static float serial_sum(uint32_t world, uint64_t i)
{
    float s = 0;

    for (uint32_t r = 0; r < world; r++)
        s += value(r, i);
    return s;
}

static void seal(struct rank *r)
{
    struct kg_error err = {0};

    if (r->ops->seal(r->comm, &err) != KG_OK)
        rig_fault(r, __LINE__, err.text);
}

static void all_reduce_is_the_serial_sum(struct rank *r)
{
    char *in = rig_symm(r, 1000 * 4), *out = rig_symm(r, 1000 * 4);

    seal(r);
    for (uint32_t k = 0; k < N_COUNTS * 4 && r->fault[0] == '\0'; k++) {
        uint64_t n = counts[k / 4];
        uint32_t dtype = k % 2 == 0 ? KG_F32 : KG_BF16;
        int in_place = k / 2 % 2;
        struct kg_coll c = {.channel = k % RIG_CHANNELS,
                            .dtype = dtype,
                            .count = n,
                            .in = in,
                            .out = in_place ? in : out};
        for (uint64_t i = 0; i < n; i++)
            put(in, dtype, i, value(r->rank, i));
        WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
        for (uint64_t i = 0; i < n; i++)
            WANT(r, get(c.out, dtype, i) == serial_sum(r->world, i));
    }
}

/* Numbers whose sum depends on the order: with FIXED_ORDER it is rank 0 + 1 + 2 ... */
static void sums_of_fixed_order_have_the_bits_of_rank_order(struct rank *r)
{
    float *x = rig_symm(r, 64 * 4);
    struct kg_coll c = {.dtype = KG_F32, .count = 64, .in = x, .out = x};

    seal(r);
    WANT(r, x != NULL);
    for (uint32_t i = 0; i < 64; i++)
        x[i] = 1.0f / (float)(3 + i * 7 + r->rank * 11);
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
    if ((r->caps & KG_COMM_CAP_FIXED_ORDER) == 0)
        return;
    for (uint32_t i = 0; i < 64; i++) {
        float s = 0;
        for (uint32_t k = 0; k < r->world; k++)
            s += 1.0f / (float)(3 + i * 7 + k * 11);
        WANT(r, memcmp(&s, &x[i], 4) == 0);
    }
}

static void reduce_scatter_gives_each_rank_its_block_of_the_sum(struct rank *r)
{
    float *in = rig_symm(r, 1000 * RIG_WORLD * 4), *out = rig_symm(r, 1000 * 4);

    seal(r);
    for (uint32_t k = 0; k < N_COUNTS && r->fault[0] == '\0'; k++) {
        uint64_t n = counts[k];
        struct kg_coll c = {.dtype = KG_F32, .count = n, .in = in, .out = out};
        for (uint64_t i = 0; i < n * r->world; i++)
            in[i] = value(r->rank, i);
        WANT(r, r->ops->reduce_scatter(r->comm, &c) == KG_OK);
        for (uint64_t i = 0; i < n; i++)
            WANT(r, out[i] == serial_sum(r->world, r->rank * n + i));
    }
}

static unsigned char byte_of(uint32_t r, uint64_t i)
{
    return (unsigned char)(i * 31 + r * 101 + 7);
}

static void all_gather_keeps_rank_order_for_every_type(struct rank *r)
{
    unsigned char *in = rig_symm(r, 127 * 8), *out = rig_symm(r, 127 * 8 * RIG_WORLD);

    seal(r);
    for (uint32_t dtype = 0; dtype < KG_N_DTYPES && r->fault[0] == '\0'; dtype++) {
        uint64_t n = 127, bytes = n * kg_dtype_bytes(dtype);
        struct kg_coll c = {.channel = 1, .dtype = dtype, .count = n, .in = in, .out = out};
        for (uint64_t i = 0; i < bytes; i++)
            in[i] = byte_of(r->rank, i);
        WANT(r, r->ops->all_gather(r->comm, &c) == KG_OK);
        for (uint64_t i = 0; i < bytes * r->world; i++)
            WANT(r, out[i] == byte_of((uint32_t)(i / bytes), i % bytes));
    }
}

/* Elements rank `from` sends to rank `to`: some pairs send nothing. */
static uint64_t sent(uint32_t from, uint32_t to)
{
    return (from * 3 + to * 5) % 4 * 10;
}

static void all_to_all_moves_exactly_the_counts(struct rank *r)
{
    uint32_t *in = rig_symm(r, 30 * RIG_WORLD * 4), *out = rig_symm(r, 30 * RIG_WORLD * 4);
    uint64_t *n = rig_symm(r, RIG_WORLD * 8);
    struct kg_coll c = {.dtype = KG_U32, .count = 30, .in = in, .out = out, .counts = n};

    seal(r);
    WANT(r, in != NULL && out != NULL && n != NULL);
    for (int with_counts = 0; with_counts < 2; with_counts++) {
        c.counts = with_counts ? n : NULL;
        for (uint32_t p = 0; p < r->world; p++) {
            n[p] = sent(r->rank, p);
            for (uint32_t i = 0; i < 30; i++) {
                in[p * 30 + i] = r->rank << 16 | p << 8 | i;
                out[p * 30 + i] = 0xeeeeeeee;
            }
        }
        WANT(r, r->ops->all_to_all(r->comm, &c) == KG_OK);
        for (uint32_t p = 0; p < r->world; p++) {
            uint64_t came = with_counts ? sent(p, r->rank) : 30;
            for (uint32_t i = 0; i < 30; i++)
                WANT(r, out[p * 30 + i] == (i < came ? p << 16 | r->rank << 8 | i : 0xeeeeeeee));
        }
    }
}

static void broadcast_gives_everyone_the_roots_bytes(struct rank *r)
{
    unsigned char *x = rig_symm(r, 1000), *y = rig_symm(r, 1000);

    seal(r);
    for (uint32_t root = 0; root < r->world && r->fault[0] == '\0'; root++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            struct kg_coll c = {
                .dtype = KG_U8, .count = 1000, .in = x, .out = in_place ? x : y, .root = root};
            for (uint64_t i = 0; i < 1000; i++)
                x[i] = byte_of(r->rank, i);
            WANT(r, r->ops->broadcast(r->comm, &c) == KG_OK);
            for (uint64_t i = 0; i < 1000; i++)
                WANT(r, ((unsigned char *)c.out)[i] == byte_of(root, i));
        }
    }
}

static _Atomic uint32_t arrived;

static void nobody_leaves_a_barrier_before_the_last_one_came(struct rank *r)
{
    seal(r);
    for (uint32_t round = 0; round < 200; round++) {
        atomic_fetch_add(&arrived, 1);
        WANT(r, r->ops->barrier(r->comm, round % RIG_CHANNELS) == KG_OK);
        WANT(r, atomic_load(&arrived) >= (round + 1) * r->world);
        WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
        WANT(r, atomic_load(&arrived) == (round + 1) * r->world);
        WANT(r, r->ops->barrier(r->comm, 1) == KG_OK);
    }
}

static void symmetric_memory_is_bounded_aligned_and_closed_by_seal(struct rank *r)
{
    char *a = rig_symm(r, 1), *b = rig_symm(r, 1000);
    struct kg_error err;
    void *p = NULL;

    WANT(r, a != NULL && b != NULL);
    WANT(r, (uintptr_t)a % 16 == 0 && (uintptr_t)b % 16 == 0);
    memset(b, 1, 1000);
    WANT(r, r->ops->alloc_symm(r->comm, 0, &p) == KG_EINVAL);
    WANT(r, r->ops->alloc_symm(r->comm, RIG_SYMM, &p) == KG_ELIMIT);
    WANT(r, r->ops->alloc_symm(r->comm, UINT64_MAX, &p) == KG_ELIMIT);
    struct kg_coll c = {.dtype = KG_U8, .count = 1, .in = b, .out = b};
    WANT(r, r->ops->broadcast(r->comm, &c) == KG_EINVAL); /* not before seal */
    seal(r);
    WANT(r, r->ops->alloc_symm(r->comm, 16, &p) == KG_EINVAL);
    WANT(r, p == NULL);
    WANT(r, r->ops->seal(r->comm, &err) == KG_EINVAL);
}

static void wrong_calls_are_refused_without_waiting(struct rank *r)
{
    float *x = rig_symm(r, 64 * RIG_WORLD);
    uint64_t *n = rig_symm(r, RIG_WORLD * 8);
    struct kg_coll good = {.dtype = KG_F32, .count = 4, .in = x, .out = x};
    struct kg_coll c = good;

    seal(r);
    WANT(r, x != NULL && n != NULL);
    c.channel = RIG_CHANNELS;
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_EINVAL);
    WANT(r, r->ops->barrier(r->comm, RIG_CHANNELS) == KG_EINVAL);
    c = good;
    c.dtype = KG_U8; /* no sums of bytes */
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_EINVAL);
    WANT(r, r->ops->reduce_scatter(r->comm, &c) == KG_EINVAL);
    c.dtype = KG_N_DTYPES;
    WANT(r, r->ops->all_gather(r->comm, &c) == KG_EINVAL);
    c = good;
    c.root = r->world;
    WANT(r, r->ops->broadcast(r->comm, &c) == KG_EINVAL);
    c = good;
    for (uint32_t p = 0; p < r->world; p++)
        n[p] = 5; /* above count */
    c.counts = n;
    WANT(r, r->ops->all_to_all(r->comm, &c) == KG_EINVAL);
    WANT(r, r->ops->all_reduce(r->comm, &good) == KG_OK); /* and nothing broke */
}

static void the_dump_names_the_last_call_and_fits_its_buffer(struct rank *r)
{
    float *x = rig_symm(r, 64);
    struct kg_coll c = {.dtype = KG_F32, .count = 4, .in = x, .out = x};
    char text[2000], small[8];

    seal(r);
    WANT(r, x != NULL);
    memset(x, 0, 64);
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_OK);
    size_t n = r->ops->progress_dump(r->comm, text, sizeof(text));
    WANT(r, n > 0 && n < sizeof(text) && strlen(text) == n);
    WANT(r, strstr(text, "all_reduce") != NULL && strstr(text, "rank 0") != NULL);
    n = r->ops->progress_dump(r->comm, small, sizeof(small));
    WANT(r, n <= sizeof(small) - 1 && small[n] == '\0');
    WANT(r, r->ops->progress_dump(r->comm, small, 0) == 0);
}

/* One rank calls abort; everyone else waits in a collective and must come out with KG_EDEVICE. */
static void an_abort_reaches_every_rank(struct rank *r)
{
    float *x = rig_symm(r, 64);
    struct kg_coll c = {.dtype = KG_F32, .count = 4, .in = x, .out = x};

    seal(r);
    WANT(r, x != NULL);
    memset(x, 0, 64);
    WANT(r, r->ops->poll(r->comm) == KG_OK);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_OK);
    if (r->rank == r->world - 1)
        r->ops->abort(r->comm);
    else
        WANT(r, r->ops->all_reduce(r->comm, &c) == KG_EDEVICE);
    WANT(r, r->ops->poll(r->comm) == KG_EDEVICE);
    WANT(r, r->ops->barrier(r->comm, 1) == KG_EDEVICE);
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_EDEVICE);
}

/* One rank is gone without a word: the others find out by themselves. */
static void a_dead_rank_is_an_error_on_every_other(struct rank *r)
{
    float *x = rig_symm(r, 64);
    struct kg_coll c = {.dtype = KG_F32, .count = 4, .in = x, .out = x};

    seal(r);
    WANT(r, x != NULL);
    memset(x, 0, 64);
    if (r->rank == r->world - 1)
        return;
    WANT(r, r->ops->all_reduce(r->comm, &c) == KG_EDEVICE);
    WANT(r, r->ops->poll(r->comm) == KG_EDEVICE);
    WANT(r, r->ops->barrier(r->comm, 0) == KG_EDEVICE);
}

static struct rig rig;

static void run(rig_case *f)
{
    char fault[300];

    if (!rig_run(&rig, f, fault))
        fail_msg("%s", fault);
}

#define GROUP_CASE(f)                  \
    static void test_##f(void **state) \
    {                                  \
        (void)state;                   \
        run(f);                        \
    }

GROUP_CASE(all_reduce_is_the_serial_sum)
GROUP_CASE(sums_of_fixed_order_have_the_bits_of_rank_order)
GROUP_CASE(reduce_scatter_gives_each_rank_its_block_of_the_sum)
GROUP_CASE(all_gather_keeps_rank_order_for_every_type)
GROUP_CASE(all_to_all_moves_exactly_the_counts)
GROUP_CASE(broadcast_gives_everyone_the_roots_bytes)
GROUP_CASE(nobody_leaves_a_barrier_before_the_last_one_came)
GROUP_CASE(symmetric_memory_is_bounded_aligned_and_closed_by_seal)
GROUP_CASE(wrong_calls_are_refused_without_waiting)
GROUP_CASE(the_dump_names_the_last_call_and_fits_its_buffer)
GROUP_CASE(an_abort_reaches_every_rank)

static void test_a_dead_rank_is_an_error_on_every_other(void **state)
{
    (void)state;
    rig.timeout_ns = 200 * KG_NS_PER_MS;
    run(a_dead_rank_is_an_error_on_every_other);
}

static void test_a_group_it_cannot_serve_is_refused(void **state)
{
    const struct kg_comm_ops *ops = rig.plugin->ops;
    struct kg_comm_open args = {.size = sizeof(args), .symm_bytes = 64, .n_channels = 1};
    struct kg_comm *comm = NULL;
    struct kg_error err = {0};

    (void)state;
    args.world = rig.world;
    args.rank = rig.world; /* not in the group */
    assert_int_equal(ops->open(NULL, NULL, &args, &comm, &err), KG_ECONFIG);
    assert_true(err.text[0] != '\0');
    args.rank = 0;
    args.n_channels = 0;
    assert_int_equal(ops->open(NULL, NULL, &args, &comm, &err), KG_EINVAL);
    assert_null(comm);
    ops->close(NULL);
}

/* Optional op: a word for every call it would take, none for one it would refuse. */
static void test_an_algorithm_has_a_name_before_there_is_a_group(void **state)
{
    const struct kg_comm_ops *ops = rig.plugin->ops;

    (void)state;
    if (!KG_HAS(ops, struct kg_comm_ops, choose))
        return;
    for (uint32_t op = KG_COMM_ALL_REDUCE; op < KG_COMM_N_OPS; op++) {
        for (uint64_t n = 1; n < UINT64_C(1) << 40; n *= 3) {
            const char *name = ops->choose(NULL, rig.world, op, KG_F32, n);
            assert_non_null(name);
            assert_true(name[0] != '\0' && strchr(name, ' ') == NULL && strlen(name) < 24);
        }
    }
    assert_null(ops->choose(NULL, rig.world, KG_COMM_ALL_REDUCE, KG_U8, 1));
    assert_null(ops->choose(NULL, rig.world, KG_COMM_N_OPS, KG_F32, 1));
    assert_null(ops->choose(NULL, 0, KG_COMM_ALL_REDUCE, KG_F32, 1));
}

/* 0: nothing to mirror, or done; else the status to end with. */
static int mirror(char **words, int n)
{
    const char *driver = NULL;
    struct kg_error err = {0};
    int wanted = 0;

    for (int i = 0; i < n; i++) {
        wanted |= strcmp(words[i], "mirror") == 0;
        if (strncmp(words[i], "driver=", 7) == 0)
            driver = words[i] + 7;
    }
    if (!wanted)
        return 0;
    rig.ops = mirror_ops(rig.plugin->ops, driver, rig.world, &err);
    if (rig.ops != NULL)
        return 0;
    printf("skipped: %s\n", err.text);
    return 77;
}

int main(int argc, char **argv)
{
#define T(f) cmocka_unit_test(test_##f)
    const struct CMUnitTest tests[] = {
        T(all_reduce_is_the_serial_sum),
        T(sums_of_fixed_order_have_the_bits_of_rank_order),
        T(reduce_scatter_gives_each_rank_its_block_of_the_sum),
        T(all_gather_keeps_rank_order_for_every_type),
        T(all_to_all_moves_exactly_the_counts),
        T(broadcast_gives_everyone_the_roots_bytes),
        T(nobody_leaves_a_barrier_before_the_last_one_came),
        T(symmetric_memory_is_bounded_aligned_and_closed_by_seal),
        T(wrong_calls_are_refused_without_waiting),
        T(the_dump_names_the_last_call_and_fits_its_buffer),
        T(an_abort_reaches_every_rank),
        T(a_group_it_cannot_serve_is_refused),
        T(an_algorithm_has_a_name_before_there_is_a_group),
    };
    const struct CMUnitTest of_several[] = {T(a_dead_rank_is_an_error_on_every_other)};
    struct kg_plugin_ref ref;
    struct kg_arena options;
    struct kg_error err = {0};

    if (argc < 3 || kg_plugin_load("", KG_KIND_COMM, argv[1], &ref, &err) != KG_OK) {
        (void)fprintf(stderr, "usage: comm_test PLUGIN WORLD [mirror] [KEY=VALUE...]: %s\n",
                      err.text);
        return 2;
    }
    rig = (struct rig){.plugin = ref.plugin,
                       .world = (uint32_t)strtoul(argv[2], NULL, 10),
                       .timeout_ns = 20 * KG_NS_PER_S};
    kg_arena_init(&options, 0, 0);
    if (argc > 3)
        rig.conf = comm_conf(ref.plugin, &options, argv + 3, argc - 3, &err);
    if (rig.world < 1 || rig.world > RIG_WORLD || (argc > 3 && rig.conf == NULL)) {
        (void)fprintf(stderr, "comm_test: %s\n", err.text);
        return 2;
    }
    int rc = mirror(argv + 3, argc - 3);
    if (rc != 0)
        return rc;
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (rig.world > 1) /* a dead rank is noticed by another */
        rc += cmocka_run_group_tests(of_several, NULL, NULL);
    kg_arena_fini(&options);
    return rc;
}
