/* The split: fixed for ever, as random as it says, and moved as little as can be. */
#include "serve/arms.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_KEYS 100000u

static uint64_t key_of(uint32_t i, uint64_t seed)
{
    char text[32];
    int n = snprintf(text, sizeof(text), "user-%u", i);

    return kg_arms_key(text, (size_t)n, seed);
}

static struct kg_serve_arm arm(const char *name, double share)
{
    return (struct kg_serve_arm){.name = name, .share = share, .class_name = "", .overrides = ""};
}

/* Pearson's statistic of counts against shares. */
static double chi_square(const uint32_t *count, const struct kg_serve_arm *arms, uint32_t n,
                         uint32_t total)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        double want = total * arms[i].share / 100;
        sum += want > 0 ? (count[i] - want) * (count[i] - want) / want : 0;
    }
    return sum;
}

static void who_is_in_which_arm_never_changes(void **state)
{
    static const char *const users[] = {"ann", "bob", "carol", "dave", "eve", "#7f3a", "", "x y"};
    /* Written down once; a release that changes them moves clients. */
    static const uint32_t want[8] = {1, 1, 0, 1, 1, 0, 0, 1};
    struct kg_serve_arm arms[] = {arm("control", 50), arm("fast", 30), arm("slow", 20)};
    uint32_t got[8];

    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        uint64_t key = kg_arms_key(users[i], strlen(users[i]), 1);
        got[i] = kg_arms_pick(arms, 3, key);
        assert_int_equal(got[i], kg_arms_pick(arms, 3, key));
    }
    assert_memory_equal(got, want, sizeof(got));
    /* XXH3 of three bytes with a seed, computed from its specification */
    assert_true(kg_arms_key("ann", 3, 1) == UINT64_C(0x48a15fb59bc5e5dc));
}

static void shares_are_kept(void **state)
{
    static const struct {
        double shares[4];
        uint32_t n;
        double limit; /* chi-square at 1 in 1000 with n - 1 degrees of freedom */
    } cases[] = {{{50, 50}, 2, 10.83},          {{90, 10}, 2, 10.83},
                 {{99.5, 0.5}, 2, 10.83},       {{50, 30, 20}, 3, 13.82},
                 {{0, 60, 40}, 3, 13.82},       {{25, 25, 25, 25}, 4, 16.27},
                 {{33.3, 33.3, 33.4}, 3, 13.82}};
    static const char *const names[] = {"a", "b", "c", "d"};

    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            struct kg_serve_arm arms[4];
            uint32_t count[4] = {0};
            for (uint32_t i = 0; i < cases[c].n; i++)
                arms[i] = arm(names[i], cases[c].shares[i]);
            for (uint32_t i = 0; i < N_KEYS; i++)
                count[kg_arms_pick(arms, cases[c].n, key_of(i, seed))]++;
            double x = chi_square(count, arms, cases[c].n, N_KEYS);
            if (!(x < cases[c].limit))
                fail_msg("case %zu, seed %llu: chi-square %.2f", c, (unsigned long long)seed, x);
            for (uint32_t i = 0; i < cases[c].n; i++)
                assert_true(arms[i].share > 0 || count[i] == 0);
        }
    }
}

static void another_seed_is_another_split(void **state)
{
    struct kg_serve_arm arms[] = {arm("a", 50), arm("b", 50)};
    uint32_t table[2][2] = {{0}};

    (void)state;
    for (uint32_t i = 0; i < N_KEYS; i++)
        table[kg_arms_pick(arms, 2, key_of(i, 1))][kg_arms_pick(arms, 2, key_of(i, 2))]++;
    double x = 0;
    for (uint32_t i = 0; i < 4; i++) {
        double d = table[i / 2][i % 2] - N_KEYS / 4.0;
        x += d * d / (N_KEYS / 4.0);
    }
    assert_true(x < 16.27); /* 3 degrees of freedom, 1 in 1000 */
}

/* Keys that move from arm to arm between two sets of shares. */
static void moves(const struct kg_serve_arm *before, const struct kg_serve_arm *after, uint32_t n,
                  uint32_t moved[KG_MAX_ARMS][KG_MAX_ARMS])
{
    memset(moved, 0, sizeof(uint32_t) * KG_MAX_ARMS * KG_MAX_ARMS);
    for (uint32_t i = 0; i < N_KEYS; i++) {
        uint64_t key = key_of(i, 1);
        moved[kg_arms_pick(before, n, key)][kg_arms_pick(after, n, key)]++;
    }
}

static void with_two_arms_exactly_the_change_moves(void **state)
{
    struct kg_serve_arm before[] = {arm("a", 50), arm("b", 50)};
    struct kg_serve_arm after[] = {arm("a", 60), arm("b", 40)};
    uint32_t moved[KG_MAX_ARMS][KG_MAX_ARMS];

    (void)state;
    moves(before, after, 2, moved);
    assert_int_equal(moved[0][1], 0);
    double sigma = sqrt(N_KEYS * 0.1 * 0.9);
    assert_true(fabs(moved[1][0] - 0.1 * N_KEYS) < 4 * sigma);
    moves(after, before, 2, moved); /* and back: the very same ones */
    assert_int_equal(moved[1][0], 0);
    assert_true(fabs(moved[0][1] - 0.1 * N_KEYS) < 4 * sigma);
    moves(before, before, 2, moved);
    assert_int_equal(moved[0][1] + moved[1][0], 0);
}

static void with_more_arms_few_keys_move_and_never_against_the_change(void **state)
{
    static const double cases[][2][4] = {
        {{25, 25, 25, 25}, {40, 20, 20, 20}}, {{25, 25, 25, 25}, {50, 30, 20, 0}},
        {{70, 10, 10, 10}, {10, 70, 10, 10}}, {{97, 1, 1, 1}, {94, 2, 2, 2}},
        {{60, 40, 0, 0}, {50, 30, 20, 0}},    {{10, 20, 30, 40}, {40, 30, 20, 10}}};
    static const char *const names[] = {"a", "b", "c", "d"};

    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct kg_serve_arm before[4], after[4];
        uint32_t moved[KG_MAX_ARMS][KG_MAX_ARMS], all = 0;
        double gained = 0;
        for (uint32_t i = 0; i < 4; i++) {
            before[i] = arm(names[i], cases[c][0][i]);
            after[i] = arm(names[i], cases[c][1][i]);
            gained += fmax(0, after[i].share - before[i].share) / 100;
        }
        moves(before, after, 4, moved);
        for (uint32_t i = 0; i < 4; i++) {
            for (uint32_t k = 0; k < 4; k++) {
                all += i != k ? moved[i][k] : 0;
                if (i != k && moved[i][k] > 0)
                    assert_true(after[k].share * before[i].share >
                                after[i].share * before[k].share);
            }
        }
        double most = 2 * gained / (1 + gained), share = (double)all / N_KEYS;
        double slack = 4 * sqrt(0.25 / N_KEYS);
        if (share > most + slack || share < gained - slack)
            fail_msg("case %zu: %.4f of the keys moved, %.4f of the shares changed", c, share,
                     gained);
    }
}

static void only_names_count(void **state)
{
    struct kg_serve_arm a[] = {arm("x", 20), arm("y", 50), arm("z", 30)};
    struct kg_serve_arm b[] = {a[2], a[0], a[1]};

    (void)state;
    for (uint32_t i = 0; i < 1000; i++) {
        uint64_t key = key_of(i, 9);
        assert_string_equal(a[kg_arms_pick(a, 3, key)].name, b[kg_arms_pick(b, 3, key)].name);
    }
    assert_int_equal(kg_arms_find(a, 3, "y", 1), 1);
    assert_int_equal(kg_arms_find(a, 3, "yy", 2), 3);
    assert_int_equal(kg_arms_find(a, 3, "", 0), 3);
}

static void fields_and_shares_are_checked(void **state)
{
    static const char *const bad[] = {
        "", "User", "header", "header:", "header:a b", "header:a:b", "session"};
    struct kg_serve_arm arms[] = {arm("x", 60), arm("y", 40)};
    enum kg_arms_field field;
    const char *header;
    struct kg_error err;

    (void)state;
    assert_int_equal(kg_arms_field_parse("user", &field, &header), KG_OK);
    assert_true(field == KG_ARMS_USER && header == NULL);
    assert_int_equal(kg_arms_field_parse("header:x-session-id", &field, &header), KG_OK);
    assert_int_equal(field, KG_ARMS_HEADER);
    assert_string_equal(header, "x-session-id");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(kg_arms_field_parse(bad[i], &field, &header), KG_EINVAL);
    assert_int_equal(kg_arms_check_shares(arms, 2, &err), KG_OK);
    arms[1].share = 40.1;
    assert_int_equal(kg_arms_check_shares(arms, 2, &err), KG_ECONFIG);
    assert_string_equal(err.text, "the shares add up to 100.1, wanted 100");
    arms[0].share = -20;
    arms[1].share = 120;
    assert_int_equal(kg_arms_check_shares(arms, 2, &err), KG_ECONFIG);
    assert_string_equal(err.text, "the share of x is -20, wanted 0 .. 100");
    arms[0].share = NAN;
    assert_int_equal(kg_arms_check_shares(arms, 2, &err), KG_ECONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_is_in_which_arm_never_changes),
        cmocka_unit_test(shares_are_kept),
        cmocka_unit_test(another_seed_is_another_split),
        cmocka_unit_test(with_two_arms_exactly_the_change_moves),
        cmocka_unit_test(with_more_arms_few_keys_move_and_never_against_the_change),
        cmocka_unit_test(only_names_count),
        cmocka_unit_test(fields_and_shares_are_checked),
    };

    return cmocka_run_group_tests_name("arms", tests, NULL, NULL);
}
