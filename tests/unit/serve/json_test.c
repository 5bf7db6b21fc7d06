/* Bodies before and after parsing: depth, UTF-8, surrogates, and errors that name the field. */
#include "serve/json.h"

#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int load(const char *text, size_t n, struct kg_api_error *err)
{
    json_t *root = NULL;
    int rc;

    *err = (struct kg_api_error){0};
    rc = kg_json_load(text, n, 64, 1u << 21, &root, err);
    json_decref(root);
    return rc;
}

static void deep_nesting_is_refused_before_it_is_parsed(void **state)
{
    static char text[200000];
    struct kg_api_error err;

    (void)state;
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', 63);
    memset(text + 68, ']', 63);
    text[131] = '}';
    assert_int_equal(load(text, 132, &err), KG_OK);
    memset(text + 5, '[', 100000);
    assert_int_equal(load(text, 100005, &err), KG_EINVAL);
    assert_int_equal(err.status, 400);
    assert_non_null(strstr(err.message, "64 levels"));
    assert_memory_equal(err.param, "a[0][0]", 7);
}

static void a_body_of_too_many_values_is_refused_before_it_is_parsed(void **state)
{
    struct kg_api_error err = {0};

    (void)state;
    assert_int_equal(kg_json_scan("{\"a\":[1,2,3,4]}", 15, 64, 19, &err), KG_OK);
    assert_int_equal(kg_json_scan("{\"a\":[1,2,3,4]}", 15, 64, 18, &err), KG_EINVAL);
    assert_int_equal(err.status, 400);
    assert_string_equal(err.param, "a[2]");
    assert_non_null(strstr(err.message, "more than 18 values"));
    /* An empty object costs as much memory as eight numbers. */
    assert_int_equal(kg_json_scan("{\"a\":[{},{}]}", 13, 64, 32, &err), KG_EINVAL);
    /* What is inside a string is no value. */
    assert_int_equal(kg_json_scan("{\"a\":\"[,,,,,,,,,,,,\"}", 21, 64, 8, &err), KG_OK);
}

static void broken_utf8_is_refused_with_the_name_of_its_field(void **state)
{
    static const struct {
        const char *text, *param;
    } rows[] = {
        {"{\"prompt\":\"a\xff\"}", "prompt"},
        {"{\"prompt\":[\"a\",\"\xc3(\"]}", "prompt[1]"},
        {"{\"messages\":[{\"role\":\"user\"},{\"role\":\"user\",\"content\":\"\xed\xa0\x80\"}]}",
         "messages[1].content"},
        {"{\"a\":[[1,2],[{\"b\":{\"c\":\"\xf5\"}}]]}", "a[1][0].b.c"},
        {"{\"a\":1,\"b\xc0\":2}", ""},
        {"{\"x\":\"\xe2\x82\"}", "x"},
        {"{\"x\":\"\\ud800\"}", "x"},
        {"{\"x\":[\"\\udc00\"]}", "x[0]"},
        {"{\"x\":{\"y\":\"\\ud800\\u0041\"}}", "x.y"},
    };
    struct kg_api_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(load(rows[i].text, strlen(rows[i].text), &err), KG_EINVAL);
        assert_int_equal(err.status, 400);
        assert_string_equal(err.param, rows[i].param);
        assert_int_equal(kg_utf8_valid(err.message, strlen(err.message)), strlen(err.message));
    }
}

static void text_that_is_no_json_object_is_refused(void **state)
{
    static const char *const rows[] = {
        "",
        "nul",
        "[]",
        "7",
        "\"x\"",
        "{\"a\":}",
        "{",
        "{\"a\":1",
        "{\"a\":1}}",
        "{a:1}",
        "{\"a\":\"x\n\"}",
        "{\"a\":\"",
        "{} x",
        "{\"a\":01}",
        "{\"a\":1e999}",
        "{\"\\ud8\":1}",
        "\xff",
        "{\"a\":\"\\",
        "{\"\\",
        "{\"a\":tru}",
        "{\"a\":99999999999999999999}",
    };
    struct kg_api_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (load(rows[i], strlen(rows[i]), &err) != KG_EINVAL || err.status != 400)
            fail_msg("row %zu was taken", i);
    }
}

static void good_bodies_are_taken(void **state)
{
    static const char *const rows[] = {
        "{}",
        " { \"a\" : [ ] } ",
        "{\"a\":\"\\ud83d\\ude00 \\u0041 \\\\ \\\" \\u0000\"}",
        "{\"a\":\"\xf0\x9f\x98\x80\"}",
        "{\"a\":null,\"a\":1}",
        "{\"a\\\"b\":[1,{\"c\":2}]}",
    };
    struct kg_api_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (load(rows[i], strlen(rows[i]), &err) != KG_OK)
            fail_msg("row %zu was refused: %s", i, err.message);
    }
}

static void reads_check_type_and_range_and_name_the_field(void **state)
{
    const char text[] = "{\"u\":7,\"w\":7.0,\"f\":0.5,\"b\":true,\"s\":\"x\",\"z\":\"a\\u0000b\","
                        "\"n\":null,\"o\":{},\"l\":[]}";
    struct kg_api_error err = {0};
    json_t *root = NULL;
    uint32_t u = 99;
    float f = 9;
    bool b = false;
    const char *s = NULL;
    const json_t *v = NULL;

    (void)state;
    assert_int_equal(kg_json_load(text, sizeof(text) - 1, 64, 1u << 21, &root, &err), KG_OK);
    assert_int_equal(kg_json_u32(root, "", "u", 0, 7, &u, &err), KG_OK);
    assert_int_equal(u, 7);
    assert_int_equal(kg_json_u32(root, "", "w", 7, 9, &u, &err), KG_OK);
    assert_int_equal(kg_json_u32(root, "", "absent", 0, 1, &u, &err), KG_OK);
    assert_int_equal(kg_json_u32(root, "", "n", 0, 1, &u, &err), KG_OK);
    assert_int_equal(u, 7);
    assert_int_equal(kg_json_u32(root, "", "u", 0, 6, &u, &err), KG_EINVAL);
    assert_string_equal(err.message, "u must be a whole number from 0 to 6, not the number 7");
    assert_int_equal(kg_json_u32(root, "", "f", 0, 6, &u, &err), KG_EINVAL);
    assert_int_equal(kg_json_u32(root, "", "s", 0, 6, &u, &err), KG_EINVAL);
    assert_int_equal(kg_json_f32(root, "", "f", 0, 1, &f, &err), KG_OK);
    assert_true(f == 0.5f);
    assert_int_equal(kg_json_f32(root, "q", "u", 0, 1, &f, &err), KG_EINVAL);
    assert_string_equal(err.param, "q.u");
    assert_int_equal(kg_json_bool(root, "", "b", &b, &err), KG_OK);
    assert_true(b);
    assert_int_equal(kg_json_bool(root, "", "u", &b, &err), KG_EINVAL);
    assert_int_equal(kg_json_str(root, "", "s", &s, &err), KG_OK);
    assert_string_equal(s, "x");
    assert_int_equal(kg_json_str(root, "", "z", &s, &err), KG_EINVAL);
    assert_int_equal(kg_json_array(root, "", "l", &v, &err), KG_OK);
    assert_int_equal(kg_json_array(root, "", "o", &v, &err), KG_EINVAL);
    assert_int_equal(kg_json_object(root, "", "o", &v, &err), KG_OK);
    assert_int_equal(kg_json_object(root, "", "l", &v, &err), KG_EINVAL);
    assert_string_equal(err.message, "l must be an object, not an array");
    json_decref(root);
}

static void of_equal_names_the_last_counts_or_the_body_is_refused_by_name(void **state)
{
    static const struct {
        const char *text, *param;
    } twice[] = {{"{\"a\":1,\"b\":2,\"a\":3}", "a"},
                 {"{\"o\":{\"x\":1},\"l\":[{\"y\":1,\"y\":1}]}", "y"},
                 {"{\"aA\":1,\"a\\u0041\":2}", "a\\u0041"}, /* as written */
                 {"{\"\":1,\"\":2}", ""}};
    struct kg_api_error err;
    json_t *root;

    (void)state;
    for (size_t i = 0; i < sizeof(twice) / sizeof(twice[0]); i++) {
        const char *t = twice[i].text;
        err = (struct kg_api_error){0};
        root = NULL;
        assert_int_equal(kg_json_load_once(t, strlen(t), 64, 1024, &root, &err), KG_EINVAL);
        assert_int_equal(err.status, 400);
        assert_string_equal(err.param, twice[i].param);
        assert_non_null(strstr(err.message, "stands twice in one object"));
        assert_null(root);
        assert_int_equal(kg_json_load(t, strlen(t), 64, 1024, &root, &err), KG_OK);
        json_decref(root);
    }
    const char *same = "{\"a\":{\"a\":1},\"b\":{\"a\":1}}"; /* in different objects */
    assert_int_equal(kg_json_load_once(same, strlen(same), 64, 1024, &root, &err), KG_OK);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deep_nesting_is_refused_before_it_is_parsed),
        cmocka_unit_test(a_body_of_too_many_values_is_refused_before_it_is_parsed),
        cmocka_unit_test(broken_utf8_is_refused_with_the_name_of_its_field),
        cmocka_unit_test(text_that_is_no_json_object_is_refused),
        cmocka_unit_test(good_bodies_are_taken),
        cmocka_unit_test(reads_check_type_and_range_and_name_the_field),
        cmocka_unit_test(of_equal_names_the_last_counts_or_the_body_is_refused_by_name),
    };

    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
