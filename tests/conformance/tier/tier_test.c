/*
 * What every tier plugin must do.
 * usage: tier_test PLUGIN [key=value...]     PLUGIN as "mem" or a path; options of the plugin
 */
#include "base/arena.h"
#include "base/rng.h"
#include "host.h"
#include "opt.h"
#include "plugin.h"

#include <kedge/tier.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t unit_bytes[KG_N_KINDS] = {[KG_PAGE] = 100, [KG_STATE] = 1000};
static const struct kg_tier_geom geom = {
    .size = sizeof(geom), .unit_bytes = {100, 1000}, .copy_bytes = {100, 1000}};

struct fixture {
    const struct kg_plugin *plugin;
    const struct kg_tier_ops *ops;
    struct kg_arena arena;
    void *conf;
    struct kg_clock clock;
    struct kg_instance *host;
    struct kg_tier *tier;
};

static struct fixture fix; /* of the test program, set once in main */

static int setup(void **state)
{
    struct kg_error err;

    (void)state;
    if (kg_instance_create(fix.plugin, NULL, &fix.clock, 1, &fix.host) != KG_OK)
        return -1;
    return fix.ops->open(&fix.host->host, fix.conf, &geom, &fix.tier, &err);
}

static int teardown(void **state)
{
    (void)state;
    fix.ops->close(fix.tier);
    if (kg_instance_bytes(fix.host) != 0)
        return -1; /* memory left behind at close */
    kg_instance_destroy(fix.host);
    return 0;
}

static struct kg_tier_key key_of(uint32_t n, uint32_t kind)
{
    return (struct kg_tier_key){{n, ~(uint64_t)n * 3}, n * 64 + 1, kind};
}

static void fill(unsigned char *p, uint32_t kind, uint32_t seed)
{
    for (uint64_t i = 0; i < unit_bytes[kind]; i++)
        p[i] = (unsigned char)(i * 7 + seed);
}

static int put(uint32_t n, uint32_t kind, uint32_t seed)
{
    unsigned char bytes[1000];
    struct kg_tier_key key = key_of(n, kind);

    fill(bytes, kind, seed);
    return fix.ops->put(fix.tier, &key, bytes);
}

/* 1: there with the bytes of the seed; 0: gone; -1: wrong bytes. */
static int get(uint32_t n, uint32_t kind, uint32_t seed)
{
    unsigned char bytes[1000], wanted[1000];
    struct kg_tier_key key = key_of(n, kind);
    int has = fix.ops->has(fix.tier, &key);

    int rc = fix.ops->get(fix.tier, &key, bytes);
    if (rc == KG_ENOENT)
        return has == 0 ? 0 : -1;
    fill(wanted, kind, seed);
    return rc == KG_OK && has == 1 && memcmp(bytes, wanted, unit_bytes[kind]) == 0 ? 1 : -1;
}

static void sound(void)
{
    struct kg_error err = {0};
    uint64_t used, limit;

    if (fix.ops->check(fix.tier, &err) != KG_OK)
        fail_msg("%s", err.text);
    fix.ops->bytes(fix.tier, &used, &limit);
    assert_true(used <= limit);
}

static void bytes_come_back_as_they_were_put(void **state)
{
    (void)state;
    assert_int_equal(put(1, KG_PAGE, 5), KG_OK);
    assert_int_equal(put(1, KG_STATE, 6), KG_OK);
    assert_int_equal(get(1, KG_PAGE, 5), 1);
    assert_int_equal(get(1, KG_STATE, 6), 1);
    assert_int_equal(get(1, KG_PAGE, 5), 1); /* reading takes nothing away */
    sound();
}

static void every_part_of_the_key_counts(void **state)
{
    struct kg_tier_key key = key_of(1, KG_PAGE), other;

    (void)state;
    assert_int_equal(put(1, KG_PAGE, 5), KG_OK);
    assert_int_equal(fix.ops->has(fix.tier, &key), 1);
    other = key;
    other.length++;
    assert_int_equal(fix.ops->has(fix.tier, &other), 0);
    other = key;
    other.kind = KG_STATE;
    assert_int_equal(fix.ops->has(fix.tier, &other), 0);
    for (int i = 0; i < 2; i++) {
        other = key;
        other.chain[i] ^= 1ull << 63;
        assert_int_equal(fix.ops->has(fix.tier, &other), 0);
    }
}

static void a_second_put_replaces_and_takes_no_more_room(void **state)
{
    uint64_t before, after, limit;

    (void)state;
    assert_int_equal(put(1, KG_STATE, 1), KG_OK);
    fix.ops->bytes(fix.tier, &before, &limit);
    assert_true(before >= unit_bytes[KG_STATE]);
    assert_int_equal(put(1, KG_STATE, 2), KG_OK);
    fix.ops->bytes(fix.tier, &after, &limit);
    assert_true(before == after);
    assert_int_equal(get(1, KG_STATE, 2), 1);
    sound();
}

static void what_was_dropped_is_gone_and_its_room_free(void **state)
{
    struct kg_tier_key key = key_of(1, KG_PAGE);
    uint64_t used, limit;

    (void)state;
    assert_int_equal(put(1, KG_PAGE, 1), KG_OK);
    fix.ops->drop(fix.tier, &key);
    fix.ops->drop(fix.tier, &key); /* unknown keys are no matter */
    assert_int_equal(get(1, KG_PAGE, 1), 0);
    fix.ops->bytes(fix.tier, &used, &limit);
    assert_true(used == 0);
    sound();
}

static void the_limit_is_never_passed_and_the_newest_stays(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 500; n++) {
        uint32_t kind = n % 3 == 0 ? KG_STATE : KG_PAGE;
        assert_int_equal(put(n, kind, n), KG_OK);
        sound();
        assert_int_equal(get(n, kind, n), 1);
    }
    assert_int_equal(get(0, KG_STATE, 0), 0); /* 10,000 bytes cannot hold 500 units */
}

static void the_longest_unused_goes_first(void **state)
{
    (void)state;
    if (strcmp(fix.plugin->name, "mem") != 0) {
        print_message("skipped: the order of dropping is a rule of tier-mem\n");
        skip();
    }
    for (uint32_t n = 0; n < 10; n++)
        assert_int_equal(put(n, KG_STATE, n), KG_OK); /* full: 10 x 1000 of 10,000 bytes */
    assert_int_equal(get(0, KG_STATE, 0), 1);         /* used now, so 1 is the oldest */
    assert_int_equal(put(2, KG_STATE, 22), KG_OK);    /* replaced: used too */
    struct kg_tier_key three = key_of(3, KG_STATE);
    assert_int_equal(fix.ops->hold(fix.tier, &three, 1), KG_OK);
    assert_int_equal(fix.ops->hold(fix.tier, &three, 0), KG_OK); /* held: used */
    assert_int_equal(put(10, KG_STATE, 10), KG_OK);
    assert_int_equal(put(11, KG_PAGE, 11), KG_OK); /* a small one drops a large one */
    const int there[] = {1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1};
    for (uint32_t n = 0; n <= 10; n++)
        assert_int_equal(get(n, KG_STATE, n == 2 ? 22 : n), there[n]);
    sound();
}

static void what_is_held_is_never_dropped_to_make_room(void **state)
{
    struct kg_tier_key one = key_of(1, KG_STATE), none = key_of(99, KG_STATE);

    (void)state;
    assert_int_equal(put(1, KG_STATE, 1), KG_OK);
    assert_int_equal(fix.ops->hold(fix.tier, &one, 1), KG_OK);
    assert_int_equal(fix.ops->hold(fix.tier, &one, 1), KG_OK);
    assert_int_equal(fix.ops->hold(fix.tier, &none, 1), KG_ENOENT);
    assert_int_equal(fix.ops->hold(fix.tier, &one, 0), KG_OK); /* holds nest */
    for (uint32_t n = 100; n < 200; n++) {
        assert_int_equal(put(n, n % 2, n), KG_OK);
        sound();
    }
    assert_int_equal(get(1, KG_STATE, 1), 1);
    assert_int_equal(put(1, KG_STATE, 7), KG_OK); /* replaced while held */
    assert_int_equal(get(1, KG_STATE, 7), 1);
    assert_int_equal(fix.ops->hold(fix.tier, &one, 0), KG_OK);
    (void)fix.ops->hold(fix.tier, &one, 0); /* one too many does nothing */
    for (uint32_t n = 200; n < 400; n++)
        assert_int_equal(put(n, KG_STATE, n), KG_OK);
    assert_int_equal(get(1, KG_STATE, 7), 0);
    sound();
}

static void a_full_tier_of_held_units_refuses_and_loses_nothing(void **state)
{
    uint32_t n = 0;

    (void)state;
    for (; put(n, KG_STATE, n) == KG_OK; n++) {
        struct kg_tier_key key = key_of(n, KG_STATE);
        assert_true(n < 10000);
        assert_int_equal(fix.ops->hold(fix.tier, &key, 1), KG_OK);
    }
    assert_int_equal(put(n, KG_STATE, n), KG_EAGAIN);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(get(i, KG_STATE, i), 1);
    sound();
    struct kg_tier_key first = key_of(0, KG_STATE);
    fix.ops->drop(fix.tier, &first); /* held or not */
    assert_int_equal(get(0, KG_STATE, 0), 0);
    assert_int_equal(fix.ops->hold(fix.tier, &first, 0), KG_ENOENT);
    assert_int_equal(put(n, KG_STATE, n), KG_OK);
    sound();
}

/* A backend whose units hold nothing: few bytes are kept, but units count as they would. */
static void units_count_for_their_size_whatever_is_copied(void **state)
{
    const struct kg_tier_geom small = {sizeof(small), {100, 1000}, {8, 16}};
    unsigned char in[16] = "kept bytes here", out[16];
    struct kg_tier *tier = NULL;
    struct kg_error err;
    uint64_t used, limit;
    uint32_t n = 0;

    (void)state;
    assert_int_equal(fix.ops->open(&fix.host->host, fix.conf, &small, &tier, &err), KG_OK);
    for (uint32_t i = 0; i < 50; i++) {
        struct kg_tier_key key = key_of(i, KG_STATE);
        in[0] = (unsigned char)i;
        assert_int_equal(fix.ops->put(tier, &key, in), KG_OK);
        assert_int_equal(fix.ops->get(tier, &key, out), KG_OK);
        assert_memory_equal(in, out, sizeof(in));
    }
    for (uint32_t i = 0; i < 50; i++) {
        struct kg_tier_key key = key_of(i, KG_STATE);
        n += (uint32_t)fix.ops->has(tier, &key);
    }
    fix.ops->bytes(tier, &used, &limit);
    assert_true(used == n * 1000ull && used <= limit && n >= 1);
    fix.ops->close(tier);
}

/* Nothing is allocated once the tier is open: its memory does not change with what it keeps. */
static void nothing_is_allocated_in_a_step(void **state)
{
    uint64_t bytes = kg_instance_bytes(fix.host);

    (void)state;
    for (uint32_t n = 0; n < 300; n++) {
        assert_int_equal(put(n, n % 3 != 0, n), KG_OK);
        assert_true(kg_instance_bytes(fix.host) == bytes);
    }
}

static void random_traffic_never_returns_wrong_bytes(void **state)
{
    static uint32_t seeds[KG_N_KINDS][64]; /* last put, 0: never or dropped */
    struct kg_rng rng;
    uint32_t hits = 0;

    (void)state;
    memset(seeds, 0, sizeof(seeds));
    kg_rng_seed(&rng, 11);
    for (uint32_t i = 1; i <= 20000; i++) {
        uint32_t n = (uint32_t)kg_rng_below(&rng, 64);
        uint32_t kind = (uint32_t)kg_rng_below(&rng, KG_N_KINDS);
        struct kg_tier_key key = key_of(n, kind);
        switch (kg_rng_below(&rng, 4)) {
        case 0:
            assert_int_equal(put(n, kind, i), KG_OK);
            seeds[kind][n] = i;
            break;
        case 1:
            fix.ops->drop(fix.tier, &key);
            seeds[kind][n] = 0;
            break;
        default: {
            int rc = get(n, kind, seeds[kind][n]);
            assert_int_not_equal(rc, -1);
            if (seeds[kind][n] == 0)
                assert_int_equal(rc, 0);
            hits += rc == 1;
        }
        }
        if (i % 64 == 0)
            sound();
    }
    assert_true(hits > 1000);
}

static void units_that_cannot_be_are_refused(void **state)
{
    const struct kg_tier_geom none = {sizeof(none), {100, 0}, {100, 1}};
    const struct kg_tier_geom no_copy = {sizeof(none), {100, 1000}, {100, 0}};
    const struct kg_tier_geom more = {sizeof(none), {100, 1000}, {101, 1000}};
    const struct kg_tier_geom huge = {sizeof(huge), {100, 1ull << 40}, {100, 1000}};
    struct kg_tier_key key = key_of(1, KG_STATE), odd = key_of(1, 7);
    unsigned char bytes[1000] = {0};
    struct kg_tier *tier = NULL;
    struct kg_error err;

    (void)state;
    assert_int_equal(fix.ops->open(&fix.host->host, fix.conf, &none, &tier, &err), KG_EINVAL);
    assert_int_equal(fix.ops->open(&fix.host->host, fix.conf, &no_copy, &tier, &err), KG_EINVAL);
    assert_int_equal(fix.ops->open(&fix.host->host, fix.conf, &more, &tier, &err), KG_EINVAL);
    assert_null(tier);
    assert_int_equal(fix.ops->put(fix.tier, &odd, bytes), KG_EINVAL);
    assert_int_equal(fix.ops->open(&fix.host->host, fix.conf, &huge, &tier, &err), KG_OK);
    assert_int_equal(fix.ops->put(tier, &key, bytes), KG_EAGAIN); /* larger than the limit */
    assert_int_equal(fix.ops->has(tier, &key), 0);
    fix.ops->close(tier);
    fix.ops->close(NULL);
}

static int parse_options(int argc, char **argv)
{
    struct kg_error err = {0};

    fix.conf = calloc(1, fix.plugin->conf_size + 1);
    kg_arena_init(&fix.arena, 0, 0);
    if (fix.conf == NULL || kg_opt_defaults(fix.plugin->opts, fix.conf, &fix.arena, &err) != KG_OK)
        return -1;
    for (int i = 2; i < argc; i++) {
        char *eq = strchr(argv[i], '=');
        if (eq == NULL)
            return -1;
        *eq = '\0';
        const struct kg_opt *row = kg_opt_find(fix.plugin->opts, argv[i]);
        if (row == NULL || kg_opt_parse(row, eq + 1, fix.conf, &fix.arena, &err) != KG_OK)
            return -1;
    }
    return 0;
}

int main(int argc, char **argv)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(bytes_come_back_as_they_were_put),
        T(every_part_of_the_key_counts),
        T(a_second_put_replaces_and_takes_no_more_room),
        T(what_was_dropped_is_gone_and_its_room_free),
        T(the_limit_is_never_passed_and_the_newest_stays),
        T(the_longest_unused_goes_first),
        T(what_is_held_is_never_dropped_to_make_room),
        T(a_full_tier_of_held_units_refuses_and_loses_nothing),
        T(units_count_for_their_size_whatever_is_copied),
        T(nothing_is_allocated_in_a_step),
        T(random_traffic_never_returns_wrong_bytes),
        T(units_that_cannot_be_are_refused),
    };
    struct kg_plugin_ref ref;
    struct kg_error err = {0};

    if (argc < 2 || kg_plugin_load("", KG_KIND_TIER, argv[1], &ref, &err) != KG_OK) {
        (void)fprintf(stderr, "usage: tier_test PLUGIN [key=value...]: %s\n", err.text);
        return 2;
    }
    fix.plugin = ref.plugin;
    fix.ops = ref.plugin->ops;
    fix.clock = kg_clock_monotonic();
    if (parse_options(argc, argv) != 0)
        return 2;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    kg_arena_fini(&fix.arena);
    free(fix.conf);
    return rc;
}
