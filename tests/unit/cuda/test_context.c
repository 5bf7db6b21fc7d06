/* The context: devices that are not there, memory, lists on their way, recorded steps, errors. */
#include "kit.h"

#include <stdatomic.h>
#include <time.h>

/* Facts other than those of the environment, until the end of the test. */
static void with_device(int devices, int major, int minor, unsigned long long bytes)
{
    kg_emu_reset();
    kg_emu_set_checks(KG_EMU_RACES);
    kg_emu_set_device(devices, major, minor, bytes);
}

static int plain_device(void **state)
{
    (void)state;
    with_device(1, 9, 0, 256ull << 20);
    return 0;
}

static void no_device_and_no_driver_are_told_apart_from_failures(void **state)
{
    struct kg_cuda_args args = {0};
    struct kg_cuda *cuda = NULL;
    struct kg_error err;
    uint32_t n = 7;

    (void)state;
    with_device(0, 9, 0, 1 << 20);
    assert_int_equal(kg_cuda_count(&n, &err), KG_ENOENT);
    assert_non_null(strstr(err.text, "no CUDA-capable device"));
    assert_int_equal(n, 7);
    assert_int_equal(kg_cuda_open(&args, &cuda, &err), KG_ENOENT);
    with_device(-1, 9, 0, 1 << 20);
    assert_int_equal(kg_cuda_count(&n, &err), KG_ENOENT);
    assert_non_null(strstr(err.text, "driver"));
    with_device(2, 9, 0, 1 << 28);
    assert_int_equal(kg_cuda_count(&n, &err), KG_OK);
    assert_int_equal(n, 2);
    args.device = 2;
    assert_int_equal(kg_cuda_open(&args, &cuda, &err), KG_ENOENT);
    assert_non_null(strstr(err.text, "device 2"));
    assert_null(cuda);
    kg_cuda_close(NULL);
}

static void memory_that_is_not_there_is_an_error_with_the_bytes(void **state)
{
    struct kg_cuda_args args = {.stage_bytes = 64 << 10};
    struct kg_cuda *cuda = NULL;
    struct kg_error err;
    void *p = NULL;

    (void)state;
    with_device(1, 10, 0, 1 << 20);
    args.stage_bytes = 1 << 20;
    assert_int_equal(kg_cuda_open(&args, &cuda, &err), KG_ENOMEM);
    assert_null(cuda);
    assert_int_equal(kg_emu_bytes(), 0);
    args.stage_bytes = UINT64_MAX;
    assert_int_equal(kg_cuda_open(&args, &cuda, &err), KG_EINVAL);
    args.stage_bytes = 64 << 10;
    assert_int_equal(kg_cuda_open(&args, &cuda, &err), KG_OK);
    struct kg_cuda_facts facts;
    kg_cuda_facts(cuda, &facts);
    assert_string_equal(facts.name, "emulated, sm_100");
    assert_int_equal(facts.memory_bytes, 1 << 20);
    assert_int_equal(facts.major, 10);
    assert_int_equal(kg_cuda_alloc(cuda, 1 << 20, &p, &err), KG_ENOMEM);
    assert_non_null(strstr(err.text, "1048576 bytes"));
    assert_null(p);
    assert_int_equal(kg_cuda_sync(cuda, &err), KG_OK); /* it is no failure of the device */
    assert_int_equal(kg_cuda_alloc(cuda, 1000, &p, &err), KG_OK);
    assert_int_equal((uintptr_t)p % 256, 0);
    kg_cuda_free(cuda, p);
    kg_cuda_close(cuda);
    assert_int_equal(kg_emu_bytes(), 0);
}

static void copies_keep_stream_order(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    struct kg_error err;
    uint8_t *pinned, *a = dev_alloc(&r, 100), *b = dev_alloc(&r, 100);
    void *p;

    (void)state;
    kg_emu_set_checks(kg_emu_checks() | KG_EMU_LAZY);
    assert_int_equal(kg_cuda_alloc_host(r.cuda, 100, &p, &err), KG_OK);
    pinned = p;
    memset(pinned, 1, 100);
    kg_cuda_fill(r.cuda, a, 9, 100);
    kg_cuda_upload(r.cuda, a, pinned, 50);
    kg_cuda_copy(r.cuda, b, a, 100);
    kg_cuda_fill(r.cuda, a, 0, 100);
    uint8_t got[100];
    kg_cuda_download(r.cuda, got, b, 100);
    rig_sync(&r);
    assert_int_equal(got[49], 1);
    assert_int_equal(got[50], 9);
    kg_cuda_free_host(r.cuda, pinned);
    kg_cuda_free(r.cuda, a);
    kg_cuda_free(r.cuda, b);
    rig_close(&r);
}

/* mix takes a list: pairs of vectors, picked by pointers that change from call to call. */
#define PLACES 2000

struct lists {
    struct rig r;
    float *src[8], *m, *y;
    uint32_t cols;
};

static struct lists lists_open(uint32_t n_graphs)
{
    struct kg_cuda_args args = {.n_graphs = n_graphs, .stage_bytes = 4096};
    struct lists l = {.r = rig_open(KG_MATH_EXACT, 0), .cols = 20};
    float v[20];

    kg_cuda_close(l.r.cuda); /* less staging memory, to be full sooner */
    assert_int_equal(kg_cuda_open(&args, &l.r.cuda, NULL), KG_OK);
    l.r.team = kg_cuda_team(l.r.cuda);

    for (int i = 0; i < 8; i++) {
        for (int c = 0; c < 20; c++)
            v[c] = (float)(i + 1);
        l.src[i] = dev_copy(&l.r, v, sizeof(v));
    }
    memset(v, 0, sizeof(v)); /* equal scores: y is the mean of the sources */
    l.m = dev_copy(&l.r, v, sizeof(v));
    l.y = dev_alloc(&l.r, PLACES * sizeof(v));
    return l;
}

static void lists_free(struct lists *l)
{
    for (int i = 0; i < 8; i++)
        kg_cuda_free(l->r.cuda, l->src[i]);
    kg_cuda_free(l->r.cuda, l->m);
    kg_cuda_free(l->r.cuda, l->y);
}

static void lists_close(struct lists *l)
{
    lists_free(l);
    rig_close(&l->r);
}

static void mean_of(struct lists *l, uint32_t i, uint32_t j, uint32_t place)
{
    const float *srcs[2] = {l->src[i], l->src[j]}; /* gone when the operation runs */
    struct kg_mix a = {.srcs = srcs,
                       .m = l->m,
                       .y = l->y + place * l->cols,
                       .src_stride = l->cols,
                       .y_stride = l->cols,
                       .n_srcs = 2,
                       .rows = 1,
                       .cols = l->cols,
                       .eps = 1};

    l->r.k->mix(l->r.team, &a);
    memset(srcs, 0, sizeof(srcs));
}

static void expect_mean(struct lists *l, uint32_t i, uint32_t j, uint32_t place)
{
    float *got = host_copy(&l->r, l->y + place * l->cols, l->cols * sizeof(float));

    for (uint32_t c = 0; c < l->cols; c++)
        if (got[c] != (float)(i + j + 2) / 2)
            fail_msg("place %u: %g, want %g", place, (double)got[c], (double)(i + j + 2) / 2);
    free(got);
}

/* 4 KiB of lists hold 256 of these; the ring goes round many times while nothing has run. */
static void lists_outlive_the_call_and_the_ring_waits_for_its_readers(void **state)
{
    struct lists l = lists_open(0);

    (void)state;
    kg_emu_set_checks((kg_emu_checks() & ~(unsigned)KG_EMU_RACES) | KG_EMU_LAZY);
    for (uint32_t n = 0; n < PLACES; n++)
        mean_of(&l, (n + n / 256) % 8, n / 8 % 8, n); /* no period of the ring */
    float *got = host_copy(&l.r, l.y, PLACES * l.cols * sizeof(float));
    for (uint32_t n = 0; n < PLACES; n++)
        assert_true(got[n * l.cols] == (float)((n + n / 256) % 8 + n / 8 % 8 + 2) / 2);
    free(got);
    lists_close(&l);
}

static void a_list_longer_than_the_staging_memory_is_kept_as_an_error(void **state)
{
    struct kg_cuda_args args = {.stage_bytes = 64};
    struct kg_cuda *cuda;
    struct kg_error err;
    const float *srcs[9] = {NULL};
    struct kg_mix a = {.srcs = srcs, .n_srcs = 9, .rows = 1, .cols = 1};

    (void)state;
    assert_int_equal(kg_cuda_open(&args, &cuda, &err), KG_OK);
    kg_kernels_cuda(KG_MATH_EXACT)->mix(kg_cuda_team(cuda), &a);
    assert_int_equal(kg_cuda_sync(cuda, &err), KG_ELIMIT);
    assert_non_null(strstr(err.text, "mix"));
    assert_non_null(strstr(err.text, "stage_bytes"));
    kg_cuda_close(cuda);
}

/* One step: two operations with lists, one without, an upload. */
static void step(struct lists *l, uint64_t key, uint32_t i, uint32_t j, float scale)
{
    float v[20];

    for (int c = 0; c < 20; c++)
        v[c] = scale;
    kg_cuda_begin(l->r.cuda, key, 128);
    kg_cuda_upload(l->r.cuda, l->src[7], v, sizeof(v));
    mean_of(l, i, j, 0);
    mean_of(l, j, i, 1);
    l->r.k->add(l->r.team, l->y + 2 * l->cols, l->cols, l->y, l->cols, l->src[7], l->cols, 1,
                l->cols);
    kg_cuda_end(l->r.cuda);
}

static void expect_step(struct lists *l, uint32_t i, uint32_t j, float scale)
{
    float *got = host_copy(&l->r, l->y + 2 * l->cols, l->cols * sizeof(float));

    expect_mean(l, i, j, 0);
    expect_mean(l, j, i, 1);
    assert_true(got[3] == (float)(i + j + 2) / 2 + scale);
    free(got);
}

static void a_recorded_step_runs_again_with_new_lists_and_uploads(void **state)
{
    struct lists l = lists_open(2);

    (void)state;
    for (int lazy = 0; lazy < 2; lazy++) {
        kg_emu_set_checks(KG_EMU_RACES | (lazy ? KG_EMU_LAZY : 0));
        for (uint32_t n = 0; n < 10; n++) {
            unsigned long long before = kg_emu_launches();

            step(&l, 1 + (uint64_t)lazy, n % 7, n / 2 % 7, (float)n);
            expect_step(&l, n % 7, n / 2 % 7, (float)n);
            assert_int_equal(kg_emu_launches() - before, 3); /* none twice, none left out */
        }
    }
    /* Many in flight: each keeps the lists it was called with. */
    kg_emu_set_checks(KG_EMU_LAZY);
    for (uint32_t n = 0; n < 50; n++)
        step(&l, 1 + n % 2, n % 7, 3, (float)n);
    expect_step(&l, 49 % 7, 3, 49);
    lists_close(&l);
}

static void steps_without_a_key_and_without_room_for_recordings_run_as_called(void **state)
{
    struct lists l = lists_open(0);

    (void)state;
    step(&l, 0, 1, 2, 5);
    expect_step(&l, 1, 2, 5);
    step(&l, 77, 2, 3, 6);
    expect_step(&l, 2, 3, 6);
    step(&l, 77, 4, 3, 7);
    expect_step(&l, 4, 3, 7);
    lists_close(&l);
}

/* With room for two, three keys in turn record anew each time; two keys do not. */
static void the_recording_used_longest_ago_goes(void **state)
{
    struct lists l = lists_open(2);

    (void)state;
    for (uint32_t n = 0; n < 12; n++) {
        step(&l, 1 + n % 3, n % 7, 0, 1);
        expect_step(&l, n % 7, 0, 1);
    }
    for (uint32_t n = 0; n < 12; n++) {
        step(&l, n % 2 == 0 ? 1 : 3, n % 7, 0, 1);
        expect_step(&l, n % 7, 0, 1);
    }
    lists_close(&l);
}

static void a_step_that_differs_from_its_recording_is_an_error(void **state)
{
    struct lists l = lists_open(2);
    struct kg_error err;

    (void)state;
    step(&l, 5, 1, 2, 1);
    kg_cuda_begin(l.r.cuda, 5, 128);
    mean_of(&l, 1, 2, 0);
    kg_cuda_end(l.r.cuda);
    assert_int_equal(kg_cuda_sync(l.r.cuda, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, "differs"));
    lists_free(&l);
    kg_cuda_close(l.r.cuda);
}

static void waiting_inside_a_recording_is_an_error(void **state)
{
    struct lists l = lists_open(2);
    struct kg_error err;

    (void)state;
    kg_cuda_begin(l.r.cuda, 5, 128);
    mean_of(&l, 1, 2, 0);
    assert_int_equal(kg_cuda_sync(l.r.cuda, &err), KG_EDEVICE);
    kg_cuda_end(l.r.cuda);
    assert_int_equal(kg_cuda_sync(l.r.cuda, &err), KG_EDEVICE);
    lists_free(&l);
    kg_cuda_close(l.r.cuda);
}

static void the_first_error_stays_with_its_operation_and_later_ones_do_nothing(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 0);
    struct kg_error err;
    float host[4] = {1, 2, 3, 4}, *d = dev_copy(&r, host, sizeof(host));

    (void)state;
    kg_emu_set_checks(KG_EMU_RACES | KG_EMU_QUIET);
    r.k->add(r.team, d, 8, d, 8, d, 8, 1000, 4); /* rows that are not there */
    unsigned long long launches = kg_emu_launches();
    r.k->sigmoid(r.team, d, 4, d, 4, 1, 4);
    assert_int_equal(kg_emu_launches(), launches);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(kg_cuda_sync(r.cuda, &err), KG_EDEVICE);
        assert_non_null(strstr(err.text, "device 0, add: "));
        assert_non_null(strstr(err.text, "past the end of a block of 16 bytes"));
    }
    kg_emu_reset(); /* a failed device frees nothing */
    kg_cuda_free(r.cuda, d);
    kg_cuda_close(r.cuda);
}

static void marks_measure_the_stream(void **state)
{
    struct rig r = rig_open(KG_MATH_EXACT, 1);
    float *d = dev_alloc(&r, 1 << 16);

    (void)state;
    assert_int_equal(kg_cuda_time_ns(r.cuda, 0, 1), 0); /* never set */
    for (int pass = 0; pass < 3; pass++) {
        kg_cuda_begin(r.cuda, pass == 0 ? 0 : 4, 1); /* plain, recorded, run again */
        kg_cuda_mark(r.cuda, 0);
        kg_cuda_fill(r.cuda, d, 0, 1 << 16);
        kg_cuda_mark(r.cuda, 1);
        kg_cuda_end(r.cuda);
        rig_sync(&r);
        assert_true(kg_cuda_time_ns(r.cuda, 0, 1) > 0);
        assert_int_equal(kg_cuda_time_ns(r.cuda, 1, 0), 0);
    }
    kg_cuda_mark(r.cuda, 8); /* no such mark */
    assert_int_equal(kg_cuda_time_ns(r.cuda, 0, 8), 0);
    kg_cuda_free(r.cuda, d);
    rig_close(&r);
}

/* Work of others in the stream, as a collective whose peer is gone. */
struct guest {
    atomic_int stop, asked, begun; /* begun: it is in the stream, asks count */
    int obeys;                     /* 1: it stops when it is told, at the fourth ask */
};

static void hang(void *arg)
{
    const struct timespec nap = {.tv_nsec = 100000};
    struct guest *g;

    memcpy(&g, arg, sizeof(g));
    while (!atomic_load(&g->stop))
        (void)nanosleep(&nap, NULL);
}

static int ask(void *ctx)
{
    struct guest *g = ctx;
    int lost = atomic_load(&g->begun) && atomic_fetch_add(&g->asked, 1) >= 3;

    if (lost && g->obeys)
        atomic_store(&g->stop, 1);
    return lost;
}

static struct kg_cuda *open_with(struct guest *g)
{
    const struct kg_cuda_args args = {
        .stage_bytes = 64 << 10, .n_graphs = 1, .meanwhile = ask, .ctx = g};
    struct kg_cuda *cuda = NULL;
    struct kg_error err;

    kg_emu_set_checks(KG_EMU_THREADS);
    if (kg_cuda_open(&args, &cuda, &err) < 0)
        fail_msg("%s", err.text);
    return cuda;
}

static void work_of_others_that_is_lost_ends_every_wait(void **state)
{
    (void)state;
    for (int pageable = 0; pageable < 2; pageable++) {
        struct guest g = {.obeys = 1}, *at = &g;
        struct kg_cuda *cuda = open_with(&g);
        struct kg_error err;
        float host[4] = {0};
        void *dev = NULL;

        assert_int_equal(kg_cuda_alloc(cuda, sizeof(host), &dev, &err), KG_OK);
        kg_cuda_begin(cuda, 1, 0);
        assert_non_null(kg_cuda_guest(cuda)); /* recorded */
        kg_cuda_end(cuda);
        kg_cuda_begin(cuda, 1, 0);
        assert_null(kg_cuda_guest(cuda)); /* the recording has it */
        kg_cuda_end(cuda);
        assert_int_equal(kg_cuda_sync(cuda, &err), KG_OK);
        atomic_store(&g.begun, 1);
        kg_emu_queue(kg_cuda_guest(cuda), hang, &at, sizeof(at));
        if (pageable) { /* the driver would wait within the copy */
            kg_cuda_download(cuda, host, dev, sizeof(host));
            assert_true(atomic_load(&g.asked) > 3);
        }
        assert_int_equal(kg_cuda_sync(cuda, &err), KG_EDEVICE);
        assert_non_null(strstr(err.text, "a rank is lost"));
        assert_null(kg_cuda_guest(cuda));
        kg_cuda_drain(cuda);
        kg_cuda_free(cuda, dev);
        kg_cuda_close(cuda);
        assert_int_equal(kg_emu_bytes(), 0);
    }
}

static void the_host_is_few_launches_ahead_of_work_of_others(void **state)
{
    struct guest g = {.obeys = 1}, *at = &g;
    struct kg_cuda *cuda = open_with(&g);
    const struct kg_kernels *k = kg_kernels_cuda(KG_MATH_EXACT);
    struct kg_error err;
    void *x = NULL;

    (void)state;
    assert_int_equal(kg_cuda_alloc(cuda, 64, &x, &err), KG_OK);
    kg_cuda_fill(cuda, x, 0, 64);
    assert_int_equal(kg_cuda_sync(cuda, &err), KG_OK);
    atomic_store(&g.begun, 1);
    kg_emu_queue(kg_cuda_guest(cuda), hang, &at, sizeof(at));
    unsigned long long before = kg_emu_launches();
    for (int i = 0; i < 4000; i++) /* none runs before the guest ends: a driver's queue is full */
        k->add(kg_cuda_team(cuda), x, 16, x, 16, x, 16, 1, 16);
    assert_int_equal(kg_cuda_sync(cuda, &err), KG_EDEVICE);
    kg_cuda_drain(cuda);
    unsigned long long ran = kg_emu_launches() - before;
    assert_true(ran >= 256 && ran <= 768);
    kg_cuda_free(cuda, x);
    kg_cuda_close(cuda);
}

/* Takes ten seconds, and leaves memory behind: the last one, with KEDGE_FULL=1. */
static void work_of_others_that_never_ends_keeps_its_memory(void **state)
{
    const char *full = getenv("KEDGE_FULL");
    static struct guest g, *at = &g;
    struct kg_error err;

    (void)state;
    if (full == NULL || full[0] != '1')
        return;
    struct kg_cuda *cuda = open_with(&g);
    atomic_store(&g.begun, 1);
    kg_emu_queue(kg_cuda_guest(cuda), hang, &at, sizeof(at));
    assert_int_equal(kg_cuda_sync(cuda, &err), KG_EDEVICE);
    kg_cuda_close(cuda);
    assert_true(kg_emu_bytes() > 0);
    atomic_store(&g.stop, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(no_device_and_no_driver_are_told_apart_from_failures, plain_device),
        cmocka_unit_test_setup(memory_that_is_not_there_is_an_error_with_the_bytes, plain_device),
        cmocka_unit_test_setup(copies_keep_stream_order, plain_device),
        cmocka_unit_test_setup(lists_outlive_the_call_and_the_ring_waits_for_its_readers,
                               plain_device),
        cmocka_unit_test_setup(a_list_longer_than_the_staging_memory_is_kept_as_an_error,
                               plain_device),
        cmocka_unit_test_setup(a_recorded_step_runs_again_with_new_lists_and_uploads, plain_device),
        cmocka_unit_test_setup(steps_without_a_key_and_without_room_for_recordings_run_as_called,
                               plain_device),
        cmocka_unit_test_setup(the_recording_used_longest_ago_goes, plain_device),
        cmocka_unit_test_setup(a_step_that_differs_from_its_recording_is_an_error, plain_device),
        cmocka_unit_test_setup(waiting_inside_a_recording_is_an_error, plain_device),
        cmocka_unit_test_setup(the_first_error_stays_with_its_operation_and_later_ones_do_nothing,
                               plain_device),
        cmocka_unit_test_setup(marks_measure_the_stream, plain_device),
        cmocka_unit_test_setup(work_of_others_that_is_lost_ends_every_wait, plain_device),
        cmocka_unit_test_setup(the_host_is_few_launches_ahead_of_work_of_others, plain_device),
        cmocka_unit_test_setup(work_of_others_that_never_ends_keeps_its_memory, plain_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
