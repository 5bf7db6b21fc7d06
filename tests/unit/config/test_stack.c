#include "check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A finished configuration on exec-null; more assignments, NULL ends them. */
static struct kg_config *config_of(const char *const *sets)
{
    struct kg_config *c;

    assert_int_equal(kg_config_create(&c), KG_OK);
    assert_int_equal(kg_config_set(c, "plugins.dir=" PLUGINS), KG_OK);
    assert_int_equal(kg_config_set(c, "plugins.exec=null"), KG_OK);
    for (; *sets != NULL; sets++)
        assert_int_equal(kg_config_set(c, *sets), KG_OK);
    if (kg_config_finish(c) != KG_OK)
        fail_msg("%s", kg_config_errors(c));
    return c;
}

static void what_check_says_fits_is_what_the_engine_takes(void **state) /* V33 */
{
    static const char *const arms[][5] = {
        {"memory.bytes=64k", "engine.max_seqs=4", NULL},
        {"memory.bytes=70000", "engine.max_seqs=7", "memory.page_tokens=16", NULL},
        {"memory.bytes=1m", "plugins.pool=split", "engine.max_seqs=9", NULL},
        {"memory.bytes=200k", "plugins.pool=split", "pool-split.style=uniform", "engine.max_seqs=9",
         NULL},
        {"memory.bytes=16m", "engine.max_context=777", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(arms) / sizeof(arms[0]); i++) {
        struct kg_config *c = config_of(arms[i]);
        struct kg_stack *s;
        struct kg_check k;
        struct kg_error err = {0};
        if (kg_stack_open(c, &s, &err) != KG_OK || kg_check_gather(&k, c, s, 0, 1, &err) != KG_OK ||
            kg_stack_engine(s, &err) != KG_OK)
            fail_msg("arm %zu: %s", i, err.text);
        assert_int_equal(k.max_tokens, kg_engine_max_tokens(s->engine));
        assert_memory_equal(&k.layout, kg_engine_layout(s->engine), sizeof(k.layout));
        assert_true(k.fits[0].tokens == k.max_tokens && k.fits[0].requests >= 1);
        for (int f = 1; f < KG_CHECK_FITS && k.fits[f].tokens != 0; f++)
            assert_true(k.fits[f].requests >= k.fits[f - 1].requests);
        kg_check_fini(&k);
        kg_stack_close(s);
        kg_config_destroy(c);
    }
}

static void the_clock_of_all_instances_is_the_backends(void **state)
{
    static const char *const sets[] = {"exec-null.clock=virtual", NULL};
    struct kg_config *c = config_of(sets);
    struct kg_stack *s;
    struct kg_error err = {0};

    (void)state;
    assert_int_equal(kg_stack_open(c, &s, &err), KG_OK);
    const struct kg_host *pool = &s->hosts[KG_KIND_POOL]->host;
    uint64_t before = pool->now_ns(pool->ctx);
    s->parts.exec_ops->advance(s->parts.exec, before + 5000);
    assert_true(pool->now_ns(pool->ctx) == before + 5000);
    assert_true(kg_clock_now(&s->clock) == before + 5000);
    kg_stack_close(s);
    kg_stack_close(NULL);
    kg_config_destroy(c);
}

static void metrics_of_the_plugins_are_exposed_with_their_name(void **state)
{
    static const char *const sets[] = {NULL};
    struct kg_config *c = config_of(sets);
    const struct kg_metric *rows = kg_config_choice(c, KG_KIND_POOL)->ref.plugin->metrics;
    struct kg_stack *s;
    struct kg_buf b;
    struct kg_error err = {0};
    char wanted[200];

    (void)state;
    assert_non_null(rows);
    assert_int_equal(kg_stack_open(c, &s, &err), KG_OK);
    kg_set(&s->hosts[KG_KIND_POOL]->host.cells[0], 41);
    kg_buf_init(&b, 0);
    assert_int_equal(kg_metrics_write(s->metrics, &b), KG_OK);
    (void)snprintf(wanted, sizeof(wanted), "\nkedge:pool_%s{plugin=\"unified\"} 41\n",
                   rows[0].name);
    assert_non_null(strstr(kg_buf_cstr(&b), wanted));
    kg_buf_fini(&b);
    kg_stack_close(s);
    kg_config_destroy(c);
}

static void what_does_not_go_together_is_refused_and_closed_again(void **state)
{
    static const char *const no_room[] = {"memory.bytes=4096", NULL};
    static const char *const drafter[] = {"plugins.exec=cpu", "model.path=/no/such",
                                          "model.draft=/no/such", NULL};
    struct kg_config *c = config_of(no_room);
    struct kg_stack *s = NULL;
    struct kg_error err = {0};

    (void)state;
    assert_int_equal(kg_stack_open(c, &s, &err), KG_OK);
    assert_int_equal(kg_stack_engine(s, &err), KG_ECONFIG);
    assert_non_null(strstr(err.text, "4096"));
    assert_null(s->engine);
    kg_stack_close(s);
    kg_config_destroy(c);
    s = NULL;
    c = config_of(drafter);
    assert_true(kg_stack_open(c, &s, &err) < 0);
    assert_non_null(strstr(err.text, "/no/such"));
    assert_null(s);
    kg_config_destroy(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_check_says_fits_is_what_the_engine_takes),
        cmocka_unit_test(the_clock_of_all_instances_is_the_backends),
        cmocka_unit_test(metrics_of_the_plugins_are_exposed_with_their_name),
        cmocka_unit_test(what_does_not_go_together_is_refused_and_closed_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
