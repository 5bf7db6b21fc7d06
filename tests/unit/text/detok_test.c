/* Streaming text: whole characters only, stop strings held back and cut, whatever the pushes. */
#include "text_test.h"

#include "base/utf8.h"
#include "text/detok.h"

struct fixture {
    struct kg_tok *tok;
    struct kg_tok_scratch *scratch;
};

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    f->tok = open_tiny();
    f->scratch = kg_tok_scratch_new(f->tok);
    *state = f;
    return f->scratch == NULL;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    kg_tok_scratch_free(f->scratch);
    kg_tok_close(f->tok);
    free(f);
    return 0;
}

static bool well_formed(const struct kg_text *t)
{
    uint32_t cp;
    for (size_t i = 0; i < t->n;) {
        size_t n = kg_utf8_decode(t->v + i, t->n - i, &cp);
        if (n == 0) {
            return false;
        }
        i += n;
    }
    return true;
}

/* Text of ids pushed as [0, a), [a, b), [b, n); returns the number of ids used. */
static size_t text_of(struct fixture *f, const struct kg_detok_opts *opts, const struct kg_ids *ids,
                      size_t a, size_t b, struct kg_text *out)
{
    struct kg_detok *d = NULL;
    struct kg_error err = {0};
    assert_int_equal(kg_detok_new(f->tok, opts, &d, &err), KG_OK);
    const size_t cut[] = {0, a, b, ids->n};
    size_t total = 0;
    for (int i = 0; i < 3; i++) {
        size_t used = 0, n = cut[i + 1] - cut[i];
        int rc = kg_detok_push(d, ids->v + cut[i], n, out, &used);
        assert_true(rc == 0 || rc == 1);
        assert_true(rc == 1 || used == n);
        assert_true(well_formed(out));
        total += used;
    }
    assert_int_equal(kg_detok_finish(d, out), KG_OK);
    assert_int_equal(kg_text_add(out, "", 0), KG_OK);
    kg_detok_free(d);
    return total;
}

/* Every split in three pushes gives the wanted text and count. */
static void check_splits(struct fixture *f, const struct kg_detok_opts *opts,
                         const struct kg_ids *ids, const char *want, size_t used)
{
    for (size_t a = 0; a <= ids->n; a++) {
        for (size_t b = a; b <= ids->n; b += ids->n > 60 ? 7 : 1) {
            struct kg_text out = {0};
            size_t got = text_of(f, opts, ids, a, b, &out);
            assert_string_equal(out.v, want);
            assert_int_equal(got, used);
            kg_text_free(&out);
        }
    }
}

static struct kg_ids byte_ids(struct fixture *f, const char *bytes, size_t n)
{
    struct kg_ids ids = {0};
    for (size_t i = 0; i < n; i++) {
        uint32_t id = 0;
        while (kg_tok_bytes(f->tok, id).n != 1 || kg_tok_bytes(f->tok, id).p[0] != bytes[i]) {
            id++;
        }
        assert_int_equal(kg_ids_push(&ids, id), KG_OK);
    }
    return ids;
}

#define R "\xef\xbf\xbd"

static void ill_formed_bytes_become_one_replacement_per_maximal_run(void **state)
{
    struct fixture *f = *state;
    /* The first four are the examples of the Unicode standard, section 3.9. */
    static const struct {
        const char *bytes;
        const char *want;
    } cases[] = {
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", R R R R R R R R "A"},
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", R R R R R R R R "A"},
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", R R R R R "A" R R "B"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", R R R R "A"},
        {"a\xf0\x9f\x98\x80z", "a\xf0\x9f\x98\x80z"},
        {"a\xf0\x9f\x98", "a" R},
        {"\xe4\xbd\xa0\xe5\xa5", "\xe4\xbd\xa0" R},
        {"\xf0\x9f\xf0\x9f\x98\x80", R "\xf0\x9f\x98\x80"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kg_ids ids = byte_ids(f, cases[i].bytes, strlen(cases[i].bytes));
        check_splits(f, NULL, &ids, cases[i].want, ids.n);
        kg_ids_free(&ids);
    }
}

static void well_formed_text_comes_out_as_it_is(void **state)
{
    struct fixture *f = *state;
    const char text[] = "na\xc3\xafve \xe6\xbc\xa2\xe5\xad\x97 \xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f"
                        "\x91\xa9 line\r\nend \xd7\xa9\xd7\x9c";
    struct kg_ids ids = {0};
    assert_int_equal(kg_tok_encode(f->tok, f->scratch, KG_TOK_PLAIN, text, sizeof(text) - 1, &ids),
                     KG_OK);
    check_splits(f, NULL, &ids, text, ids.n);
    kg_ids_free(&ids);
}

static void special_tokens_are_dropped_or_shown(void **state)
{
    struct fixture *f = *state;
    const char text[] = "a[BOS]<|open|>b<|reserved_token_4000|>";
    struct kg_ids ids = {0};
    assert_int_equal(kg_tok_encode(f->tok, f->scratch, KG_TOK_MARKUP, text, sizeof(text) - 1, &ids),
                     KG_OK);
    check_splits(f, NULL, &ids, "a<|open|>b", ids.n);
    struct kg_detok_opts opts = {.show_special = true};
    check_splits(f, &opts, &ids, text, ids.n);
    kg_ids_free(&ids);
}

static struct kg_span span(const char *s)
{
    return (struct kg_span){s, strlen(s)};
}

static void text_ends_before_a_stop_string_and_ids_are_counted(void **state)
{
    struct fixture *f = *state;
    const char text[] = "abcabcabd, \xe4\xbd\xa0\xe5\xa5\xbd! end";
    struct kg_ids ids = byte_ids(f, text, sizeof(text) - 1);
    static const struct {
        const char *stops[3];
        const char *want;
        size_t used; /* = bytes, every id being one byte */
        bool keep;
    } cases[] = {
        {{"abcabd"}, "abc", 9, false},
        {{"abcabd"}, "abcabcabd", 9, true},
        {{"zzz", "bd"}, "abcabca", 9, false},
        {{"d", "abd", "bd"}, "abcabc", 9, false}, /* all end at one byte: the longest counts */
        {{"abcabcabx", "ca"}, "ab", 4, false},    /* the one that ends first */
        {{"\xe5\xa5\xbd"}, "abcabcabd, \xe4\xbd\xa0", 17, false},
        {{"end!"},
         "abcabcabd, \xe4\xbd\xa0\xe5\xa5\xbd! end",
         22,
         false}, /* held, never complete */
        {{"aaaa", "dd"}, "abcabcabd, \xe4\xbd\xa0\xe5\xa5\xbd! end", 22, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kg_span stops[3];
        size_t n = 0;
        while (n < 3 && cases[i].stops[n] != NULL) {
            stops[n] = span(cases[i].stops[n]);
            n++;
        }
        struct kg_detok_opts opts = {.stops = stops, .n_stops = n, .keep_stop = cases[i].keep};
        check_splits(f, &opts, &ids, cases[i].want, cases[i].used);
    }
    kg_ids_free(&ids);
}

/* The first end of any stop string in text, by looking at every prefix; SIZE_MAX if none. */
static size_t naive_stop(const char *text, size_t n, const struct kg_span *stops, size_t n_stops,
                         size_t *len)
{
    for (size_t end = 1; end <= n; end++) {
        *len = 0;
        for (size_t k = 0; k < n_stops; k++) {
            if (stops[k].n <= end && stops[k].n > *len &&
                memcmp(text + end - stops[k].n, stops[k].p, stops[k].n) == 0) {
                *len = stops[k].n;
            }
        }
        if (*len > 0) {
            return end;
        }
    }
    return SIZE_MAX;
}

static void stop_strings_equal_the_naive_search_on_random_text(void **state)
{
    struct fixture *f = *state;
    uint64_t seed = 11;
    for (int round = 0; round < 3000; round++) {
        char text[41] = "", stop_text[3][8];
        struct kg_span stops[3];
        for (size_t i = 0; i < 40; i++) {
            text[i] = (char)('a' + rnd(&seed) % 2);
        }
        for (size_t k = 0; k < 3; k++) {
            stops[k] = (struct kg_span){stop_text[k], 3 + rnd(&seed) % 5};
            for (size_t i = 0; i < stops[k].n; i++) {
                stop_text[k][i] = (char)('a' + rnd(&seed) % 2);
            }
        }
        size_t len = 0, end = naive_stop(text, 40, stops, 3, &len);
        struct kg_ids ids = byte_ids(f, text, 40);
        struct kg_detok_opts opts = {.stops = stops, .n_stops = 3};
        struct kg_text out = {0};
        size_t a = rnd(&seed) % 41, b = a + rnd(&seed) % (41 - a);
        size_t used = text_of(f, &opts, &ids, a, b, &out);
        assert_int_equal(used, end == SIZE_MAX ? 40 : end);
        assert_int_equal(out.n, end == SIZE_MAX ? 40 : end - len);
        assert_memory_equal(out.v, text, out.n);
        kg_text_free(&out);
        kg_ids_free(&ids);
    }
}

static void bad_stop_lists_are_refused(void **state)
{
    struct fixture *f = *state;
    struct kg_span many[KG_STOP_MAX + 1], empty = {"", 0}, huge = {NULL, KG_STOP_MAX_BYTES + 1};
    for (size_t i = 0; i <= KG_STOP_MAX; i++) {
        many[i] = span("x");
    }
    struct kg_detok *d = NULL;
    struct kg_error err = {0};
    struct kg_detok_opts opts = {.stops = many, .n_stops = KG_STOP_MAX + 1};
    assert_int_equal(kg_detok_new(f->tok, &opts, &d, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, "stop: 17 strings"));
    many[2] = empty;
    opts.n_stops = 3;
    assert_int_equal(kg_detok_new(f->tok, &opts, &d, &err), KG_EINVAL);
    assert_non_null(strstr(err.text, "stop[2]"));
    many[2] = huge;
    assert_int_equal(kg_detok_new(f->tok, &opts, &d, &err), KG_EINVAL);
    assert_null(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ill_formed_bytes_become_one_replacement_per_maximal_run),
        cmocka_unit_test(well_formed_text_comes_out_as_it_is),
        cmocka_unit_test(special_tokens_are_dropped_or_shown),
        cmocka_unit_test(text_ends_before_a_stop_string_and_ids_are_counted),
        cmocka_unit_test(stop_strings_equal_the_naive_search_on_random_text),
        cmocka_unit_test(bad_stop_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
