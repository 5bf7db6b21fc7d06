#include "base/clock.h"
#include "base/num.h"
#include "base/rng.h"
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void whole_numbers_are_digits_only_and_must_fit(void **state)
{
    static const char *const bad[] = {"",    " 1", "1 ",  "+1", "-1",  "0x10",    "1.0",
                                      "1e3", "k",  "1kb", "1K", "12x", "\xd9\xa1"};
    uint64_t v = 77;

    (void)state;
    assert_int_equal(kg_num_u64("0", &v), KG_OK);
    assert_true(v == 0);
    assert_int_equal(kg_num_u64("18446744073709551615", &v), KG_OK);
    assert_true(v == UINT64_MAX);
    v = 77;
    assert_int_equal(kg_num_u64("18446744073709551616", &v), KG_ELIMIT);
    assert_int_equal(kg_num_u64("99999999999999999999999999", &v), KG_ELIMIT);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(kg_num_u64(bad[i], &v), KG_EINVAL);
    assert_true(v == 77); /* outputs are set on success only */
}

static void suffixes_are_powers_of_1024(void **state)
{
    uint64_t v = 0;

    (void)state;
    assert_int_equal(kg_num_u64_suffix("3", &v), KG_OK);
    assert_true(v == 3);
    assert_int_equal(kg_num_u64_suffix("2k", &v), KG_OK);
    assert_true(v == 2048);
    assert_int_equal(kg_num_u64_suffix("3M", &v), KG_OK);
    assert_true(v == 3145728);
    assert_int_equal(kg_num_u64_suffix("1g", &v), KG_OK);
    assert_true(v == 1073741824);
    assert_int_equal(kg_num_u64_suffix("16777215T", &v), KG_OK);
    assert_true(v == UINT64_C(16777215) << 40);
    assert_int_equal(kg_num_u64_suffix("16777216t", &v), KG_ELIMIT);
    assert_int_equal(kg_num_u64_suffix("1kk", &v), KG_EINVAL);
    assert_int_equal(kg_num_u64_suffix("1kb", &v), KG_EINVAL);
    assert_int_equal(kg_num_u64_suffix("k", &v), KG_EINVAL);
}

static void decimal_numbers_are_strict(void **state)
{
    static const char *const bad[] = {"",      ".5", "5.", "1e",  "1e+", "nan",  "inf",
                                      "0x1p3", " 1", "1 ", "1,5", "--1", "1.5.2"};
    double v = 7;

    (void)state;
    assert_int_equal(kg_num_f64("-2.5e-3", &v), KG_OK);
    assert_true(v == -0.0025);
    assert_int_equal(kg_num_f64("10", &v), KG_OK);
    assert_true(v == 10);
    v = 7;
    assert_int_equal(kg_num_f64("1e400", &v), KG_ELIMIT);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(kg_num_f64(bad[i], &v), KG_EINVAL);
    assert_true(v == 7);
}

static void yes_and_no_have_four_spellings(void **state)
{
    static const char *const yes[] = {"yes", "ON", "true", "1"};
    static const char *const no[] = {"no", "off", "False", "0"};
    uint32_t v;

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(kg_num_bool(yes[i], &v), KG_OK);
        assert_int_equal(v, 1);
        assert_int_equal(kg_num_bool(no[i], &v), KG_OK);
        assert_int_equal(v, 0);
    }
    assert_int_equal(kg_num_bool("y", &v), KG_EINVAL);
    assert_int_equal(kg_num_bool("", &v), KG_EINVAL);
}

static void every_character_encodes_and_decodes_to_itself(void **state)
{
    char out[4];

    (void)state;
    for (uint32_t cp = 0; cp <= 0x110010; cp++) {
        uint32_t back = 0;
        size_t n = kg_utf8_encode(cp, out);
        int legal = cp <= 0x10ffff && (cp < 0xd800 || cp > 0xdfff);
        if ((n != 0) != legal)
            fail_msg("U+%04X: %zu bytes", cp, n);
        if (n == 0)
            continue;
        if (kg_utf8_decode(out, n, &back) != n || back != cp || kg_utf8_valid(out, n) != n)
            fail_msg("U+%04X came back as U+%04X", cp, back);
        for (size_t cut = 1; cut < n; cut++) {
            if (kg_utf8_decode(out, cut, &back) != 0 || !kg_utf8_is_cut(out, cut) ||
                kg_utf8_broken(out, cut) != cut)
                fail_msg("U+%04X cut to %zu bytes", cp, cut);
        }
    }
}

static void overlong_surrogate_and_stray_bytes_are_not_utf8(void **state)
{
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xe0\x9f\xbf",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xfe",
                                      "\xc3("};
    uint32_t cp;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(kg_utf8_decode(bad[i], strlen(bad[i]), &cp), 0);
        assert_int_equal(kg_utf8_valid(bad[i], strlen(bad[i])), 0);
        assert_false(kg_utf8_is_cut(bad[i], strlen(bad[i])));
    }
    assert_int_equal(kg_utf8_valid("ab\xc3\xa9\xff", 5), 4);
}

static void the_hash_is_the_same_in_every_release(void **state)
{
    (void)state;
    /* computed apart, in Python, from the published definitions of FNV-1a and splitmix64 */
    assert_true(kg_hash_mix(1) == UINT64_C(0x5692161d100b05e5));
    assert_true(kg_hash_bytes("", 0, 0) == UINT64_C(0xf52a15e9a9b5e89b));
    assert_true(kg_hash_bytes("tenant-a", 8, 0) == UINT64_C(0xcac5cf1c9ddded39));
    assert_true(kg_hash_bytes("tenant-a", 8, 42) == UINT64_C(0x92ea7fe81ec94f3d));
}

static void the_generator_follows_its_published_definition(void **state)
{
    struct kg_rng r;

    (void)state;
    kg_rng_seed(&r, 1);
    assert_true(r.s[0] ==
                UINT64_C(0x910a2dec89025cc1)); /* first outputs of splitmix64 seeded with 1 */
    assert_true(r.s[3] == UINT64_C(0x71c18690ee42c90b));
    r = (struct kg_rng){{1, 2, 3, 4}};
    assert_true(kg_rng_u64(&r) == UINT64_C(0x0000000000002d00));
    assert_true(kg_rng_u64(&r) == UINT64_C(0x0000000000000000));
    assert_true(kg_rng_u64(&r) == UINT64_C(0x000000005a007080));
}

static void drawn_numbers_stay_in_range_and_average_right(void **state)
{
    struct kg_rng r;
    double sum = 0;
    uint64_t seen[10] = {0};

    (void)state;
    kg_rng_seed(&r, 5);
    for (int i = 0; i < 100000; i++) {
        double u = kg_rng_f64(&r);
        assert_true(u >= 0 && u < 1);
        sum += u;
        seen[kg_rng_below(&r, 10)]++;
    }
    assert_true(sum > 49500 && sum < 50500);
    for (int i = 0; i < 10; i++)
        assert_true(seen[i] > 9600 && seen[i] < 10400);
    for (int i = 0; i < 100; i++)
        assert_true(kg_rng_below(&r, 1) == 0);
}

static uint64_t fake(void *ctx)
{
    return *(uint64_t *)ctx;
}

static void a_clock_can_be_injected_and_the_real_one_never_falls(void **state)
{
    uint64_t t = 5;
    struct kg_clock c = {fake, &t}, real = kg_clock_monotonic();

    (void)state;
    assert_true(kg_clock_now(&c) == 5);
    uint64_t before = kg_clock_now(&real);
    for (int i = 0; i < 1000; i++) {
        uint64_t now = kg_clock_now(&real);
        assert_true(now >= before);
        before = now;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers_are_digits_only_and_must_fit),
        cmocka_unit_test(suffixes_are_powers_of_1024),
        cmocka_unit_test(decimal_numbers_are_strict),
        cmocka_unit_test(yes_and_no_have_four_spellings),
        cmocka_unit_test(every_character_encodes_and_decodes_to_itself),
        cmocka_unit_test(overlong_surrogate_and_stray_bytes_are_not_utf8),
        cmocka_unit_test(the_hash_is_the_same_in_every_release),
        cmocka_unit_test(the_generator_follows_its_published_definition),
        cmocka_unit_test(drawn_numbers_stay_in_range_and_average_right),
        cmocka_unit_test(a_clock_can_be_injected_and_the_real_one_never_falls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
