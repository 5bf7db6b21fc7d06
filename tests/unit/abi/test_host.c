#include "host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct kg_metric rows[] = {{"a_total", KG_COUNTER, "A."}, {"b", KG_GAUGE, "B."}, {0}};
static const struct kg_plugin plugin = {.kind = KG_KIND_POOL, .name = "x", .metrics = rows};
static const struct kg_plugin bare = {.kind = KG_KIND_TIER, .name = "y"};

static void memory_is_counted_aligned_and_freed_by_size(void **state)
{
    struct kg_clock clock = kg_clock_monotonic();
    struct kg_instance *i;

    (void)state;
    assert_int_equal(kg_instance_create(&plugin, NULL, &clock, 0, &i), KG_OK);
    const struct kg_host *h = &i->host;
    assert_int_equal(h->size, sizeof(*h));
    void *p = h->alloc(h->ctx, 1000, 0);
    void *q = h->alloc(h->ctx, 50, 4096);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 16, 0);
    assert_int_equal((uintptr_t)q % 4096, 0);
    assert_int_equal(kg_instance_bytes(i), 1050);
    assert_null(h->alloc(h->ctx, 0, 0));
    assert_null(h->alloc(h->ctx, 8, 24)); /* no power of two */
    assert_null(h->alloc(h->ctx, SIZE_MAX / 2, 0));
    h->free(h->ctx, p, 1000);
    h->free(h->ctx, NULL, 77);
    assert_int_equal(kg_instance_bytes(i), 50);
    h->free(h->ctx, q, 50);
    assert_int_equal(kg_instance_bytes(i), 0);
    kg_instance_destroy(i);
    kg_instance_destroy(NULL);
}

static uint64_t fixed(void *ctx)
{
    return *(uint64_t *)ctx;
}

static void the_clock_can_be_switched_under_an_open_instance(void **state)
{
    uint64_t t = 41;
    struct kg_clock clock = kg_clock_monotonic();
    struct kg_instance *i;

    (void)state;
    assert_int_equal(kg_instance_create(&bare, NULL, &clock, 1, &i), KG_OK);
    assert_true(i->host.now_ns(i->host.ctx) > 0);
    clock = (struct kg_clock){fixed, &t};
    assert_true(i->host.now_ns(i->host.ctx) == 41);
    assert_int_equal(i->host.debug, 1);
    kg_instance_destroy(i);
}

static void cells_exist_for_each_row_and_are_absent_without_rows(void **state)
{
    struct kg_clock clock = kg_clock_monotonic();
    struct kg_instance *i, *k;

    (void)state;
    assert_int_equal(kg_instance_create(&plugin, NULL, &clock, 0, &i), KG_OK);
    assert_int_equal(kg_instance_create(&bare, NULL, &clock, 0, &k), KG_OK);
    assert_non_null(i->host.cells);
    assert_null(k->host.cells);
    assert_int_equal(i->n_cells, 2);
    kg_add(&i->host.cells[0], 2);
    kg_add(&i->host.cells[0], 3);
    kg_set(&i->host.cells[1], 9);
    assert_true(kg_get(&i->host.cells[0]) == 5);
    assert_true(kg_get(&i->host.cells[1]) == 9);
    kg_instance_destroy(i);
    kg_instance_destroy(k);
}

static void lines_carry_the_instance_and_memory_left_behind_is_said(void **state)
{
    struct kg_clock clock = kg_clock_monotonic();
    struct kg_instance *i;
    struct kg_log log;
    char text[4000];
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    kg_log_init(&log, fds[1], KG_LOG_INFO);
    assert_int_equal(kg_instance_create(&plugin, &log, &clock, 0, &i), KG_OK);
    i->host.log(i->host.ctx, KG_LOG_WARN, "odd value %d", 7);
    i->host.log(i->host.ctx, KG_LOG_DEBUG, "not shown");
    void *left = i->host.alloc(i->host.ctx, 33, 0);
    kg_instance_destroy(i);
    free(left);
    ssize_t n = read(fds[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_non_null(strstr(text, "level=warn module=pool-x msg=\"odd value 7\"\n"));
    assert_null(strstr(text, "not shown"));
    assert_non_null(strstr(text, "plugin=pool-x bytes=33\n"));
    (void)close(fds[0]);
    (void)close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_counted_aligned_and_freed_by_size),
        cmocka_unit_test(the_clock_can_be_switched_under_an_open_instance),
        cmocka_unit_test(cells_exist_for_each_row_and_are_absent_without_rows),
        cmocka_unit_test(lines_carry_the_instance_and_memory_left_behind_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
