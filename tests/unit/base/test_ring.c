#include "base/ring.h"
#include "base/rng.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int readable(const struct kg_ring *r)
{
    struct pollfd p = {.fd = kg_ring_fd(r), .events = POLLIN};

    return poll(&p, 1, 0) == 1;
}

static void records_come_out_whole_and_in_order(void **state)
{
    struct kg_ring *r;
    size_t n;

    (void)state;
    assert_int_equal(kg_ring_create(256, &r), KG_OK);
    assert_null(kg_ring_peek(r, &n));
    assert_int_equal(kg_ring_put(r, "abc", 3), KG_OK);
    assert_int_equal(kg_ring_put(r, "", 0), KG_OK);
    assert_int_equal(kg_ring_put(r, "12345678", 8), KG_OK);
    assert_memory_equal(kg_ring_peek(r, &n), "abc", 3);
    assert_int_equal(n, 3);
    assert_memory_equal(kg_ring_peek(r, &n), "abc", 3); /* a peek takes nothing */
    kg_ring_consume(r);
    assert_non_null(kg_ring_peek(r, &n));
    assert_int_equal(n, 0);
    kg_ring_consume(r);
    assert_memory_equal(kg_ring_peek(r, &n), "12345678", 8);
    kg_ring_consume(r);
    assert_null(kg_ring_peek(r, &n));
    kg_ring_destroy(r);
    kg_ring_destroy(NULL);
}

static void a_full_ring_refuses_and_room_says_what_still_fits(void **state)
{
    struct kg_ring *r;
    struct kg_rng rng;
    size_t n;
    int full = 0;

    (void)state;
    kg_rng_seed(&rng, 7);
    assert_int_equal(kg_ring_create(1000, &r), KG_OK); /* rounded up to 1024 */
    assert_int_equal(kg_ring_max(r), 504);
    assert_int_equal(kg_ring_put(r, "x", kg_ring_max(r) + 1), KG_ELIMIT);
    for (int i = 0; i < 20000; i++) {
        size_t room = kg_ring_room(r);
        if (room < kg_ring_max(r))
            assert_null(kg_ring_reserve(r, room + 8));
        if (room > 0)
            assert_non_null(kg_ring_reserve(r, room));
        size_t want = 1 + kg_rng_below(&rng, 200);
        void *p = kg_ring_reserve(r, want);
        assert_int_equal(p != NULL, want <= room);
        if (p != NULL)
            kg_ring_commit(r, want);
        full += p == NULL;
        if (kg_rng_below(&rng, 2) == 0 && kg_ring_peek(r, &n) != NULL)
            kg_ring_consume(r);
    }
    assert_true(full > 1000);
    kg_ring_destroy(r);
}

static void a_record_may_be_committed_shorter_than_reserved(void **state)
{
    struct kg_ring *r;
    size_t n;

    (void)state;
    assert_int_equal(kg_ring_create(256, &r), KG_OK);
    char *p = kg_ring_reserve(r, 100);
    memcpy(p, "hello", 5);
    kg_ring_commit(r, 5);
    assert_memory_equal(kg_ring_peek(r, &n), "hello", 5);
    assert_int_equal(n, 5);
    kg_ring_destroy(r);
}

static void the_descriptor_wakes_only_a_consumer_that_saw_nothing(void **state)
{
    struct kg_ring *r;
    size_t n;

    (void)state;
    assert_int_equal(kg_ring_create(256, &r), KG_OK);
    assert_false(readable(r));
    assert_int_equal(kg_ring_put(r, "a", 1), KG_OK);
    assert_true(readable(r));
    assert_non_null(kg_ring_peek(r, &n));
    kg_ring_consume(r);
    assert_null(kg_ring_peek(r, &n)); /* saw nothing: cleared and armed again */
    assert_false(readable(r));
    kg_ring_wake(r);
    assert_true(readable(r));
    kg_ring_wait(r, -1);
    assert_null(kg_ring_peek(r, &n));
    assert_false(readable(r));
    kg_ring_destroy(r);
}

#define N_RECORDS 100000

/* Record i: its number, then bytes that follow from the number. */
static size_t length_of(uint64_t i)
{
    return 8 + kg_hash_mix(i) % 90;
}

static void *produce(void *arg)
{
    struct kg_ring *r = arg;

    for (uint64_t i = 0; i < N_RECORDS; i++) {
        size_t n = length_of(i);
        unsigned char *p;
        while ((p = kg_ring_reserve(r, n)) == NULL)
            sched_yield();
        memcpy(p, &i, sizeof(i));
        memset(p + 8, (int)(i & 0xff), n - 8);
        kg_ring_commit(r, n);
    }
    return NULL;
}

static void two_threads_pass_every_record_and_no_wake_up_is_lost(void **state)
{
    struct kg_ring *r;
    pthread_t thread;
    uint64_t next = 0;
    size_t n;

    (void)state;
    assert_int_equal(kg_ring_create(512, &r), KG_OK); /* small: wraps and fills all the time */
    assert_int_equal(pthread_create(&thread, NULL, produce, r), 0);
    while (next < N_RECORDS) {
        const unsigned char *p = kg_ring_peek(r, &n);
        if (p == NULL) {
            kg_ring_wait(r, -1); /* a lost wake-up would hang here */
            continue;
        }
        uint64_t i;
        memcpy(&i, p, sizeof(i));
        if (i != next || n != length_of(i) || (n > 8 && p[n - 1] != (unsigned char)(i & 0xff)))
            fail_msg("record %llu came as %llu with %zu bytes", (unsigned long long)next,
                     (unsigned long long)i, n);
        kg_ring_consume(r);
        next++;
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_null(kg_ring_peek(r, &n));
    kg_ring_destroy(r);
}

static void bad_sizes_are_refused(void **state)
{
    struct kg_ring *r = NULL;

    (void)state;
    assert_int_equal(kg_ring_create(0, &r), KG_EINVAL);
    assert_int_equal(kg_ring_create(((size_t)1 << 30) + 1, &r), KG_EINVAL);
    assert_null(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_out_whole_and_in_order),
        cmocka_unit_test(a_full_ring_refuses_and_room_says_what_still_fits),
        cmocka_unit_test(a_record_may_be_committed_shorter_than_reserved),
        cmocka_unit_test(the_descriptor_wakes_only_a_consumer_that_saw_nothing),
        cmocka_unit_test(two_threads_pass_every_record_and_no_wake_up_is_lost),
        cmocka_unit_test(bad_sizes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
