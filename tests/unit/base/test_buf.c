#include "base/arena.h"
#include "base/buf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void a_buffer_never_passes_its_cap_and_keeps_the_first_error(void **state)
{
    struct kg_buf b;

    (void)state;
    kg_buf_init(&b, 8);
    assert_int_equal(kg_buf_puts(&b, "12345"), KG_OK);
    assert_int_equal(kg_buf_puts(&b, "6789"), KG_ELIMIT);
    assert_string_equal(kg_buf_cstr(&b), "12345"); /* nothing of the failed call */
    assert_int_equal(kg_buf_puts(&b, "6"), KG_ELIMIT);
    assert_int_equal(b.len, 5);
    kg_buf_reset(&b);
    assert_int_equal(kg_buf_puts(&b, "12345678"), KG_OK);
    assert_int_equal(kg_buf_printf(&b, "%d", 9), KG_ELIMIT);
    assert_string_equal(kg_buf_cstr(&b), "12345678");
    assert_true(b.cap <= 64);
    kg_buf_fini(&b);
}

static void printf_appends_texts_longer_than_what_was_allocated(void **state)
{
    struct kg_buf b;
    char big[3000];

    (void)state;
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    kg_buf_init(&b, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(kg_buf_printf(&b, "%s|%d|", big, i), KG_OK);
    assert_int_equal(b.len, 3 * (sizeof(big) - 1 + 3));
    assert_string_equal(b.data + b.len - 3, "|2|");
    kg_buf_fini(&b);
}

static void consume_drops_from_the_front_and_at_most_what_is_there(void **state)
{
    struct kg_buf b;

    (void)state;
    kg_buf_init(&b, 0);
    kg_buf_consume(&b, 3);
    (void)kg_buf_puts(&b, "abcdef");
    kg_buf_consume(&b, 2);
    assert_string_equal(kg_buf_cstr(&b), "cdef");
    kg_buf_consume(&b, 100);
    assert_string_equal(kg_buf_cstr(&b), "");
    kg_buf_fini(&b);
}

static void json_of(const char *s, size_t n, const char *wanted)
{
    struct kg_buf b;

    kg_buf_init(&b, 0);
    assert_int_equal(kg_buf_json_str(&b, s, n), KG_OK);
    assert_string_equal(kg_buf_cstr(&b), wanted);
    kg_buf_fini(&b);
}

#define REPLACED "\xef\xbf\xbd"

static void json_text_is_escaped_and_broken_bytes_become_one_replacement_each(void **state)
{
    (void)state;
    json_of("", 0, "\"\"");
    json_of("plain", 5, "\"plain\"");
    json_of("a\"b\\c", 5, "\"a\\\"b\\\\c\"");
    json_of("\b\f\n\r\t", 5, "\"\\b\\f\\n\\r\\t\"");
    json_of("\0\x1f\x7f", 3, "\"\\u0000\\u001f\\u007f\"");
    json_of("\xc3\xa9\xf0\x9f\x98\x80", 6, "\"\xc3\xa9\xf0\x9f\x98\x80\"");
    json_of("\xff", 1, "\"" REPLACED "\"");
    json_of("\xf0\x9f\x98", 3, "\"" REPLACED "\"");
    /* the example of the Unicode standard's table 3-11 (maximal subparts) */
    json_of("a\xf1\x80\x80\xe1\x80\xc2"
            "b\x80"
            "c\x80\xbf"
            "d",
            14 - 1, "\"a" REPLACED REPLACED REPLACED "b" REPLACED "c" REPLACED REPLACED "d\"");
    json_of("\xed\xa0\x80", 3, "\"" REPLACED REPLACED REPLACED "\"");
    json_of("\xc0\xaf", 2, "\"" REPLACED REPLACED "\"");
}

static void json_numbers_read_back_equal(void **state)
{
    static const double values[] = {0, 1, -1, 0.1, 1.0 / 3, 1e300, 5e-324, 123456789.125, -2.5e-7};
    struct kg_buf b;

    (void)state;
    kg_buf_init(&b, 0);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        kg_buf_reset(&b);
        assert_int_equal(kg_buf_json_f64(&b, values[i]), KG_OK);
        assert_true(strtod(kg_buf_cstr(&b), NULL) == values[i]);
    }
    kg_buf_reset(&b);
    (void)kg_buf_json_f64(&b, NAN);
    (void)kg_buf_json_f64(&b, -INFINITY);
    (void)kg_buf_json_f64(&b, 0.1);
    assert_string_equal(kg_buf_cstr(&b), "nullnull0.1");
    kg_buf_fini(&b);
}

static void members_of_an_object_have_commas_between_them_only(void **state)
{
    struct kg_buf b;

    (void)state;
    kg_buf_init(&b, 0);
    kg_buf_key_str(&b, "alone", "{");
    kg_buf_key_u64(&b, "after", UINT64_MAX); /* the brace before it is text */
    assert_string_equal(kg_buf_cstr(&b), "\"alone\":\"{\",\"after\":18446744073709551615");
    kg_buf_reset(&b);
    (void)kg_buf_puts(&b, "{\"list\":[{");
    kg_buf_key_f64(&b, "a", 0.5);
    (void)kg_buf_puts(&b, "},{");
    kg_buf_key_f64(&b, "a", NAN);
    (void)kg_buf_puts(&b, "}]");
    kg_buf_key_bool(&b, "yes", true);
    (void)kg_buf_puts(&b, ",");
    kg_buf_key_bool(&b, "no", false);
    kg_buf_key_str(&b, "none", NULL);
    kg_buf_key_str(&b, "quoted", "a\"b");
    (void)kg_buf_putc(&b, '}');
    assert_string_equal(kg_buf_cstr(&b), "{\"list\":[{\"a\":0.5},{\"a\":null}],\"yes\":true,"
                                         "\"no\":false,\"none\":null,\"quoted\":\"a\\\"b\"}");
    kg_buf_fini(&b);
    kg_buf_init(&b, 4);
    kg_buf_key_str(&b, "key", "too long");
    assert_int_equal(b.rc, KG_ELIMIT);
    kg_buf_fini(&b);
}

static void an_arena_gives_aligned_disjoint_memory(void **state)
{
    struct kg_arena a;
    unsigned char *p[100];

    (void)state;
    kg_arena_init(&a, 256, 0);
    for (size_t i = 0; i < 100; i++) {
        size_t align = (size_t)1 << (i % 7);
        p[i] = kg_arena_alloc(&a, i + 1, align);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % align, 0);
        memset(p[i], (int)i, i + 1);
    }
    for (size_t i = 0; i < 100; i++) {
        for (size_t k = 0; k <= i; k++)
            assert_int_equal(p[i][k], i);
    }
    kg_arena_fini(&a);
}

static void a_reset_arena_of_the_same_use_takes_nothing_new(void **state)
{
    struct kg_arena a;

    (void)state;
    kg_arena_init(&a, 128, 0);
    for (int i = 0; i < 50; i++)
        assert_non_null(kg_arena_alloc(&a, 40, 0));
    size_t held = a.held_bytes;
    for (int round = 0; round < 3; round++) {
        kg_arena_reset(&a);
        assert_int_equal(a.used_bytes, 0);
        for (int i = 0; i < 50; i++)
            assert_non_null(kg_arena_alloc(&a, 40, 0));
        assert_int_equal(a.held_bytes, held);
    }
    kg_arena_fini(&a);
}

static void an_arena_refuses_what_passes_its_cap_or_overflows(void **state)
{
    struct kg_arena a;

    (void)state;
    kg_arena_init(&a, 1024, 4096);
    assert_null(kg_arena_alloc(&a, 5000, 0));
    assert_null(kg_arena_alloc(&a, SIZE_MAX, 0));
    assert_null(kg_arena_alloc(&a, SIZE_MAX - 64, 0));
    assert_null(kg_arena_zalloc(&a, SIZE_MAX / 2, 4));
    assert_null(kg_arena_strndup(&a, "x", SIZE_MAX));
    assert_non_null(kg_arena_alloc(&a, 1000, 0));
    size_t n = 0;
    while (kg_arena_alloc(&a, 1000, 0) != NULL)
        n++;
    assert_true(n >= 1 && n < 4);
    assert_true(a.held_bytes <= 4096);
    kg_arena_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_never_passes_its_cap_and_keeps_the_first_error),
        cmocka_unit_test(printf_appends_texts_longer_than_what_was_allocated),
        cmocka_unit_test(consume_drops_from_the_front_and_at_most_what_is_there),
        cmocka_unit_test(json_text_is_escaped_and_broken_bytes_become_one_replacement_each),
        cmocka_unit_test(json_numbers_read_back_equal),
        cmocka_unit_test(members_of_an_object_have_commas_between_them_only),
        cmocka_unit_test(an_arena_gives_aligned_disjoint_memory),
        cmocka_unit_test(a_reset_arena_of_the_same_use_takes_nothing_new),
        cmocka_unit_test(an_arena_refuses_what_passes_its_cap_or_overflows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
