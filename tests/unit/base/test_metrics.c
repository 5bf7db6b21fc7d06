#include "base/metrics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void exposition_groups_families_and_scales_cells(void **state)
{
    static const struct kg_metric_row rows[] = {
        {"kedge:steps_total", KG_COUNTER, "Steps run.", 0},
        {"kedge:step_seconds_total", KG_COUNTER, "Time of steps.", 1e-9},
        {0},
    };
    static const struct kg_metric plugin_rows[] = {
        {"moves_total", KG_COUNTER, "Moves made."}, {"used_bytes", KG_GAUGE, "Bytes in use."}, {0}};
    struct kg_cell cells[2] = {0}, a[2] = {0}, b[2] = {0};
    struct kg_metrics *m;
    struct kg_buf out;
    struct kg_error err;

    (void)state;
    assert_int_equal(kg_metrics_create(&m), KG_OK);
    assert_int_equal(kg_metrics_add_plugin(m, "kedge:pool_", plugin_rows, a, "plugin=\"a\"", &err),
                     KG_OK);
    assert_int_equal(kg_metrics_add(m, rows, cells, "", &err), KG_OK);
    assert_int_equal(kg_metrics_add_plugin(m, "kedge:pool_", plugin_rows, b, "plugin=\"b\"", &err),
                     KG_OK);
    kg_add(&cells[0], 3);
    kg_add(&cells[0], 4);
    kg_set(&cells[1], 1500000000);
    kg_set(&a[1], 1ull << 40);
    kg_add(&b[0], 5);
    kg_buf_init(&out, 0);
    assert_int_equal(kg_metrics_write(m, &out), KG_OK);
    assert_string_equal(kg_buf_cstr(&out), "# HELP kedge:pool_moves_total Moves made.\n"
                                           "# TYPE kedge:pool_moves_total counter\n"
                                           "kedge:pool_moves_total{plugin=\"a\"} 0\n"
                                           "kedge:pool_moves_total{plugin=\"b\"} 5\n"
                                           "# HELP kedge:pool_used_bytes Bytes in use.\n"
                                           "# TYPE kedge:pool_used_bytes gauge\n"
                                           "kedge:pool_used_bytes{plugin=\"a\"} 1099511627776\n"
                                           "kedge:pool_used_bytes{plugin=\"b\"} 0\n"
                                           "# HELP kedge:steps_total Steps run.\n"
                                           "# TYPE kedge:steps_total counter\n"
                                           "kedge:steps_total 7\n"
                                           "# HELP kedge:step_seconds_total Time of steps.\n"
                                           "# TYPE kedge:step_seconds_total counter\n"
                                           "kedge:step_seconds_total 1.5\n");
    kg_buf_fini(&out);
    kg_metrics_destroy(m);
    kg_metrics_destroy(NULL);
}

static void a_histogram_is_cumulative_and_bounds_belong_to_their_bucket(void **state)
{
    static const double bounds[] = {0.1, 1, 10};
    struct kg_metrics *m;
    struct kg_histo h;
    struct kg_buf out;
    struct kg_error err;

    (void)state;
    assert_int_equal(kg_metrics_create(&m), KG_OK);
    assert_int_equal(kg_histo_init(&h, bounds, 3), KG_OK);
    assert_int_equal(kg_metrics_add_histo(m, "vllm:ttft_seconds", "Wait.", &h, "a=\"b\"", &err),
                     KG_OK);
    kg_histo_observe(&h, 0.1); /* le means <= */
    kg_histo_observe(&h, 0.5);
    kg_histo_observe(&h, 1);
    kg_histo_observe(&h, 100);
    kg_histo_observe(&h, NAN);
    kg_buf_init(&out, 0);
    assert_int_equal(kg_metrics_write(m, &out), KG_OK);
    assert_string_equal(kg_buf_cstr(&out), "# HELP vllm:ttft_seconds Wait.\n"
                                           "# TYPE vllm:ttft_seconds histogram\n"
                                           "vllm:ttft_seconds_bucket{a=\"b\",le=\"0.1\"} 1\n"
                                           "vllm:ttft_seconds_bucket{a=\"b\",le=\"1\"} 3\n"
                                           "vllm:ttft_seconds_bucket{a=\"b\",le=\"10\"} 3\n"
                                           "vllm:ttft_seconds_bucket{a=\"b\",le=\"+Inf\"} 4\n"
                                           "vllm:ttft_seconds_sum{a=\"b\"} 101.6\n"
                                           "vllm:ttft_seconds_count{a=\"b\"} 4\n");
    kg_buf_fini(&out);
    kg_histo_fini(&h);
    kg_metrics_destroy(m);
}

static void refused(const char *name, char type, const char *doc, const char *labels,
                    struct kg_metrics *m)
{
    const struct kg_metric_row rows[] = {{name, type, doc, 0}, {0}};
    struct kg_cell cell = {0};
    struct kg_error err = {0};

    assert_int_equal(kg_metrics_add(m, rows, &cell, labels, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, name));
}

static void names_types_and_repeats_that_break_the_format_are_refused(void **state)
{
    static const struct kg_metric_row good[] = {{"ok_total", KG_COUNTER, "Fine.", 0}, {0}};
    static const double falling[] = {1, 1};
    struct kg_cell cell = {0};
    struct kg_metrics *m;
    struct kg_histo h;
    struct kg_error err;

    (void)state;
    assert_int_equal(kg_metrics_create(&m), KG_OK);
    assert_int_equal(kg_metrics_add(m, good, &cell, "", &err), KG_OK);
    refused("ok_total", KG_COUNTER, "Fine.", "", m);
    refused("ok_total", KG_COUNTER, "Another text.", "x=\"1\"", m);
    refused("9lives", KG_GAUGE, "Bad name.", "", m);
    refused("a-b", KG_GAUGE, "Bad name.", "", m);
    refused("things", KG_COUNTER, "No _total.", "", m);
    refused("things_total", KG_GAUGE, "A gauge with _total.", "", m);
    refused("things", 'x', "No such type.", "", m);
    assert_int_equal(kg_histo_init(&h, falling, 2), KG_EINVAL);
    kg_metrics_destroy(m);
}

static void label_values_and_help_texts_are_escaped(void **state)
{
    struct kg_buf out;

    (void)state;
    kg_buf_init(&out, 0);
    (void)kg_metrics_label(&out, "a", "x\\y\"z\nw");
    (void)kg_metrics_label(&out, "b", "2");
    assert_string_equal(kg_buf_cstr(&out), "a=\"x\\\\y\\\"z\\nw\",b=\"2\"");
    kg_buf_reset(&out);
    (void)kg_metrics_family(&out, "n", KG_GAUGE, "one\\two\nthree");
    (void)kg_metrics_sample(&out, "n", "", NAN);
    (void)kg_metrics_sample(&out, "n", NULL, INFINITY);
    assert_string_equal(kg_buf_cstr(&out), "# HELP n one\\\\two\\nthree\n# TYPE n gauge\n"
                                           "n NaN\nn +Inf\n");
    kg_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exposition_groups_families_and_scales_cells),
        cmocka_unit_test(a_histogram_is_cumulative_and_bounds_belong_to_their_bucket),
        cmocka_unit_test(names_types_and_repeats_that_break_the_format_are_refused),
        cmocka_unit_test(label_values_and_help_texts_are_escaped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
