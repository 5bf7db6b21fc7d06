/* The tokenizer against the golden vectors, its own inverse, a naive BPE, and hostile files. */
#include "text_test.h"

#include "text/tok_impl.h"
#include <jansson.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

static void golden_vectors_have_equal_ids(void **state)
{
    struct fixture *f = *state;
    char path[4096];
    json_t *all = json_load_file(root_path(path, sizeof(path), "tests/golden/tokenizer.json"),
                                 JSON_ALLOW_NUL, NULL);
    assert_non_null(all);
    assert_int_equal(json_array_size(all), 60);
    for (size_t i = 0; i < json_array_size(all); i++) {
        json_t *one = json_array_get(all, i), *text = json_object_get(one, "text");
        json_t *want = json_object_get(one, "ids");
        struct kg_ids ids = {0};
        assert_int_equal(kg_tok_encode(f->tok, f->scratch, KG_TOK_PLAIN, json_string_value(text),
                                       json_string_length(text), &ids),
                         KG_OK);
        if (ids.n != json_array_size(want)) {
            fail_msg("vector %zu: %zu ids, wanted %zu", i, ids.n, json_array_size(want));
        }
        for (size_t k = 0; k < ids.n; k++) {
            assert_int_equal(ids.v[k], json_integer_value(json_array_get(want, k)));
        }
        kg_ids_free(&ids);
    }
    json_decref(all);
}

static void markup_mode_turns_control_strings_into_ids(void **state)
{
    struct fixture *f = *state;
    const char text[] = "a<|open|>message<|sep|>[BOS]<|reserved_token_4000|><|nope|>";
    struct kg_ids ids = {0};
    assert_int_equal(kg_tok_encode(f->tok, f->scratch, KG_TOK_MARKUP, text, sizeof(text) - 1, &ids),
                     KG_OK);
    uint32_t open, sep, bos;
    assert_int_equal(kg_tok_control(f->tok, "<|open|>", &open), KG_OK);
    assert_int_equal(kg_tok_control(f->tok, "<|sep|>", &sep), KG_OK);
    assert_int_equal(kg_tok_control(f->tok, "[BOS]", &bos), KG_OK);
    const uint32_t want[] = {64, open, 376, sep, bos, 4000};
    assert_true(ids.n > 6);
    assert_memory_equal(ids.v, want, sizeof(want));
    for (size_t i = 6; i < ids.n; i++) {
        assert_false(kg_tok_is_control(f->tok, ids.v[i]));
    }
    assert_false(kg_tok_is_special(f->tok, open));
    assert_true(kg_tok_is_special(f->tok, bos));
    assert_int_equal(kg_tok_control(f->tok, "<|nope|>", &open), KG_ENOENT);
    kg_ids_free(&ids);
}

static void check_inverse(struct fixture *f, enum kg_tok_mode mode, const char *text, size_t n)
{
    struct kg_ids ids = {0};
    struct kg_text back = {0};
    assert_int_equal(kg_tok_encode(f->tok, f->scratch, mode, text, n, &ids), KG_OK);
    assert_int_equal(kg_tok_decode(f->tok, ids.v, ids.n, &back), KG_OK);
    assert_int_equal(back.n, n);
    if (n > 0) {
        assert_memory_equal(back.v, text, n);
    }
    kg_ids_free(&ids);
    kg_text_free(&back);
}

static void decode_is_the_inverse_of_encode_for_any_bytes(void **state)
{
    struct fixture *f = *state;
    uint64_t seed = 42;
    char text[300];
    static const char *const bits[] = {"a",
                                       "Z",
                                       " ",
                                       "\n",
                                       "\r\n",
                                       "9",
                                       "\xe4\xbd\xa0",
                                       "'s",
                                       "<|open|>",
                                       "\xf0\x9f\x98\x80",
                                       "\xe0\xa4\xa8\xe0\xa5\x8d",
                                       "\xcc\x81",
                                       "\xc2\x85",
                                       "\xed\xa0\x80",
                                       "\xf0\x90"};
    for (int round = 0; round < 20000; round++) {
        size_t n = rnd(&seed) % 200, at = 0;
        bool raw = rnd(&seed) % 3 == 0;
        while (at < n) {
            if (raw) {
                text[at++] = (char)rnd(&seed);
            } else {
                const char *b = bits[rnd(&seed) % (sizeof(bits) / sizeof(bits[0]))];
                memcpy(text + at, b, strlen(b));
                at += strlen(b);
            }
        }
        check_inverse(f, round % 2 ? KG_TOK_MARKUP : KG_TOK_PLAIN, text, at);
    }
}

/* Joins by the definition: scan for the lowest rank, leftmost first, until nothing joins. */
static void naive_bpe(const struct kg_tok *tok, const char *p, size_t n, struct kg_ids *out)
{
    size_t *cut = calloc(n + 1, sizeof(*cut));
    size_t parts = n;
    for (size_t i = 0; i <= n; i++) {
        cut[i] = i;
    }
    for (;;) {
        uint32_t best = KG_NONE;
        size_t at = 0;
        for (size_t i = 0; i + 1 < parts; i++) {
            uint32_t id = kg_tok_find(tok, &tok->map, p + cut[i], cut[i + 2] - cut[i]);
            if (id < best) {
                best = id;
                at = i;
            }
        }
        if (best == KG_NONE) {
            break;
        }
        memmove(cut + at + 1, cut + at + 2, (parts - at - 1) * sizeof(*cut));
        parts--;
    }
    for (size_t i = 0; i < parts; i++) {
        uint32_t id = kg_tok_find(tok, &tok->map, p + cut[i], cut[i + 1] - cut[i]);
        assert_int_equal(kg_ids_push(out, id), KG_OK);
    }
    free(cut);
}

static void joining_equals_the_naive_definition_at_every_length(void **state)
{
    struct fixture *f = *state;
    uint64_t seed = 7;
    char text[400];
    for (int round = 0; round < 600; round++) {
        size_t n = 1 + rnd(&seed) % (round % 4 == 0 ? sizeof(text) : 80);
        uint32_t kinds = 1 + (uint32_t)(rnd(&seed) % 26);
        for (size_t i = 0; i < n; i++) {
            text[i] = (char)('a' + rnd(&seed) % kinds);
        }
        struct kg_ids got = {0}, want = {0};
        assert_int_equal(kg_tok_bpe(f->tok, f->scratch, text, n, &got), KG_OK);
        uint32_t whole = kg_tok_find(f->tok, &f->tok->map, text, n);
        if (whole != KG_NONE) {
            assert_int_equal(kg_ids_push(&want, whole), KG_OK);
        } else {
            naive_bpe(f->tok, text, n, &want);
        }
        assert_int_equal(got.n, want.n);
        assert_memory_equal(got.v, want.v, want.n * sizeof(*want.v));
        kg_ids_free(&got);
        kg_ids_free(&want);
    }
}

/* Encodes `unit` repeated to about n characters; returns thread CPU seconds. */
static double run_of(struct fixture *f, const char *unit, size_t n)
{
    size_t len = strlen(unit);
    char *text = malloc(len * n);
    for (size_t i = 0; i < n; i++) {
        memcpy(text + i * len, unit, len);
    }
    struct timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    check_inverse(f, KG_TOK_PLAIN, text, len * n);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    free(text);
    return (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
}

/* No limit is asserted: a quadratic path takes minutes here and the runner's own limit ends it. */
static void single_runs_of_a_hundred_thousand_characters_finish(void **state)
{
    struct fixture *f = *state;
    static const char *const units[] = {"a",
                                        "A",
                                        "aA",
                                        " ",
                                        "\n",
                                        " \n",
                                        "!",
                                        "1",
                                        "\xe4\xbd\xa0",
                                        "\xd9\x85",
                                        "\xcc\x81",
                                        "\xe3\x81\x82",
                                        "ab",
                                        "\xff",
                                        "<",
                                        "A\xcc\x81",
                                        "'s",
                                        "\xe2\xba\x80",
                                        " \xe2\x80\x83"};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        print_message("%-12s %.3f s\n", i == 4 || i == 5 ? "newlines" : units[i],
                      run_of(f, units[i], 100000));
    }
}

static void a_piece_never_falls_back_to_a_single_character(void **state)
{
    /* The matcher's limits must not be met inside the cutting rule: 25,000 of a kind is one piece.
     */
    struct fixture *f = *state;
    static const char *const units[] = {"a",        "A", "\xe4\xbd\xa0", "\xd9\x85",
                                        "\xcc\x81", "!", "\xe3\x81\x82", "\xc7\x85",
                                        "\n",       " "};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        size_t len = strlen(units[i]), n = 25000;
        char *text = malloc(len * n);
        for (size_t k = 0; k < n; k++) {
            memcpy(text + k * len, units[i], len);
        }
        assert_int_equal(kg_tok_piece(f->tok, f->scratch, text, len * n), len * n);
        free(text);
    }
}

static void text_is_cut_at_runs_and_at_four_hundred_thousand(void **state)
{
    (void)state;
    size_t n = 1000000;
    char *text = malloc(n);
    memset(text, 'x', n);
    struct kg_tok_cutter c = {0};
    assert_int_equal(kg_tok_cut(&c, text, n), 25000);
    assert_int_equal(kg_tok_cut(&c, text + 25000, 25000), 25000);
    /* Words of nine letters and a space: only the 400,000 rule is left. */
    for (size_t i = 9; i < n; i += 10) {
        text[i] = ' ';
    }
    c = (struct kg_tok_cutter){0};
    assert_int_equal(kg_tok_cut(&c, text, n), 400000);
    assert_int_equal(kg_tok_cut(&c, text + 400000, n - 400000), 400000);
    assert_int_equal(kg_tok_cut(&c, text + 800000, 200000), 200000);
    /* A run starts anew behind a 400,000 cut: 399,990 spaced characters, then one long run. */
    memset(text + 399990, 'x', 60000);
    c = (struct kg_tok_cutter){0};
    assert_int_equal(kg_tok_cut(&c, text, n), 400000);
    assert_int_equal(kg_tok_cut(&c, text + 400000, n - 400000), 25000);
    free(text);
}

struct worker {
    const struct kg_tok *tok;
    const char *text;
    size_t n;
    struct kg_ids ids;
};

static void *encode_many(void *arg)
{
    struct worker *w = arg;
    struct kg_tok_scratch *s = kg_tok_scratch_new(w->tok);
    for (int i = 0; i < 50 && s != NULL; i++) {
        w->ids.n = 0;
        if (kg_tok_encode(w->tok, s, KG_TOK_PLAIN, w->text, w->n, &w->ids) != KG_OK) {
            break;
        }
    }
    kg_tok_scratch_free(s);
    return NULL;
}

static void threads_share_one_tokenizer(void **state)
{
    struct fixture *f = *state;
    char text[4000];
    uint64_t seed = 3;
    for (size_t i = 0; i < sizeof(text); i++) {
        text[i] = rnd(&seed) % 6 == 0 ? ' ' : (char)('a' + rnd(&seed) % 26);
    }
    struct worker w[4];
    pthread_t t[4];
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){f->tok, text, sizeof(text), {0}};
        assert_int_equal(pthread_create(&t[i], NULL, encode_many, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_true(w[i].ids.n > 0);
        assert_int_equal(w[i].ids.n, w[0].ids.n);
        assert_memory_equal(w[i].ids.v, w[0].ids.v, w[0].ids.n * sizeof(uint32_t));
    }
    for (int i = 0; i < 4; i++) {
        kg_ids_free(&w[i].ids);
    }
}

/* A folder with the given files (NULL: absent); all 256 bytes as ranks come first if `bytes`. */
static void make_folder(char dir[64], bool bytes, const char *model, const char *tok_config,
                        const char *config)
{
    static const char *const names[] = {"tiktoken.model", "tokenizer_config.json", "config.json"};
    const char *const texts[] = {model, tok_config, config};
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    strcpy(dir, "/tmp/kedge-tok-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 3; i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        FILE *f = texts[i] == NULL ? NULL : fopen(path, "wb");
        for (int b = 0; f != NULL && i == 0 && bytes && b < 256; b++) {
            (void)fprintf(f, "%c%c== %d\n", digits[b >> 2], digits[(b & 3) << 4], b);
        }
        if (f != NULL) {
            (void)fputs(texts[i], f);
            (void)fclose(f);
        }
    }
}

static void remove_folder(const char *dir)
{
    static const char *const names[] = {"tiktoken.model", "tokenizer_config.json", "config.json"};
    for (int i = 0; i < 3; i++) {
        char path[128];
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

static void bad_files_are_refused_with_file_and_line(void **state)
{
    (void)state;
    static const struct {
        bool bytes;
        const char *model, *tok_config, *config, *want;
        int rc;
    } cases[] = {
        {true, NULL, "{}", NULL, "tiktoken.model", KG_ENOENT},
        {true, "", NULL, NULL, "tokenizer_config.json", KG_ENOENT},
        {false, "", "{}", NULL, "0 lines", KG_ECONFIG},
        {false, "YQ== 0\n", "{}", NULL, "single byte 0x00", KG_ECONFIG},
        {true, "YWI= 256\nYWI= 257\n", "{}", NULL, ":258: rank 257 has the bytes of rank 256",
         KG_ECONFIG},
        {true, "YWI= 256\nYWM= 256\n", "{}", NULL, ":258: rank 256 again, first on line 257",
         KG_ECONFIG},
        {true, "YWI= 257\n", "{}", NULL, ":257: rank 257, but", KG_ECONFIG},
        {true, "YWI= -1\n", "{}", NULL, ":257: the rank is not a number", KG_ECONFIG},
        {true, "YWI= 99999999999999999999\n", "{}", NULL, ":257: the rank", KG_ECONFIG},
        {true, "YWI= 256 \n", "{}", NULL, ":257: the rank", KG_ECONFIG},
        {true, "YWI= 0256\n", "{}", NULL, ":257: the rank", KG_ECONFIG},
        {true, "YWI 256\n", "{}", NULL, ":257: not base64", KG_ECONFIG},
        {true, "Y*I= 256\n", "{}", NULL, ":257: not base64", KG_ECONFIG},
        {true, "Y=I= 256\n", "{}", NULL, ":257: not base64", KG_ECONFIG},
        {true, "YWJ= 256\n", "{}", NULL, ":257: not base64", KG_ECONFIG},
        {true, "==== 256\n", "{}", NULL, ":257: not base64", KG_ECONFIG},
        {true, " 256\n", "{}", NULL, ":257: not base64", KG_ECONFIG},
        {true, "\n", "{}", NULL, ":257: not \"base64 rank\"", KG_ECONFIG},
        {true, "YWI=256\n", "{}", NULL, ":257: not \"base64 rank\"", KG_ECONFIG},
        {true, "", "[]", NULL, "not a JSON object", KG_ECONFIG},
        {true, "", "{", NULL, "tokenizer_config.json:1:", KG_ECONFIG},
        {true, "", "{\"added_tokens_decoder\": 3}", NULL, "added_tokens_decoder: not an object",
         KG_ECONFIG},
        {true, "", "{\"added_tokens_decoder\": {\"255\": {\"content\": \"x\"}}}", NULL,
         "added_tokens_decoder.255: not an id from 256", KG_ECONFIG},
        {true, "", "{\"added_tokens_decoder\": {\"300\": {\"content\": \"\"}}}", NULL,
         "added_tokens_decoder.300.content", KG_ECONFIG},
        {true, "", "{\"added_tokens_decoder\": {\"300\": {\"content\": 1}}}", NULL,
         "added_tokens_decoder.300.content", KG_ECONFIG},
        {true, "",
         "{\"added_tokens_decoder\": {\"256\": {\"content\": \"x\"}, \"257\": {\"content\": "
         "\"x\"}}}",
         NULL, "ids 256 and 257 have the same content", KG_ECONFIG},
        {true, "", "{\"added_tokens_decoder\": {\"300\": {\"content\": \"x\"}}}",
         "{\"vocab_size\": 300}", "id 300, but the vocabulary has 300", KG_ECONFIG},
        {true, "", "{}", "{\"vocab_size\": 255}", "vocab_size 255", KG_ECONFIG},
        {true, "", "{}", "{\"vocab_size\": \"many\"}", "vocab_size: not an integer", KG_ECONFIG},
        {true, "", "{}", "{\"text_config\": {\"vocab_size\": 9999999999}}", "vocab_size",
         KG_ECONFIG},
        {true, "", "{}", "{\"vocab_size\": 16000000}", "ids behind the 256 ranks", KG_ECONFIG},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char dir[64];
        make_folder(dir, cases[i].bytes, cases[i].model, cases[i].tok_config, cases[i].config);
        struct kg_tok *tok = NULL;
        struct kg_error err = {0};
        int rc = kg_tok_open(dir, &tok, &err);
        remove_folder(dir);
        if (rc != cases[i].rc || strstr(err.text, cases[i].want) == NULL) {
            fail_msg("case %zu: rc %d, \"%s\", wanted %d \"%s\"", i, rc, err.text, cases[i].rc,
                     cases[i].want);
        }
        assert_null(tok);
    }
}

static void huge_line_is_refused_and_any_rank_order_is_fine(void **state)
{
    (void)state;
    char *model = malloc(100000);
    memset(model, 'A', 90000);
    strcpy(model + 90000, " 256\n");
    char dir[64];
    struct kg_tok *tok = NULL;
    struct kg_error err = {0};
    make_folder(dir, true, model, "{}", NULL);
    assert_int_equal(kg_tok_open(dir, &tok, &err), KG_ECONFIG);
    assert_non_null(strstr(err.text, ":257: a token of more than 4096 bytes"));
    remove_folder(dir);
    free(model);
    make_folder(dir, true, "YWJj 257\r\nYWI= 256",
                "{\"added_tokens_decoder\": {\"258\": {\"content\": \"<x>\", \"special\": true}}}",
                "{\"text_config\": {\"vocab_size\": 260}, \"vocab_size\": 1}");
    assert_int_equal(kg_tok_open(dir, &tok, &err), KG_OK);
    remove_folder(dir);
    assert_int_equal(kg_tok_n_vocab(tok), 260);
    assert_int_equal(kg_tok_n_ranks(tok), 258);
    struct kg_span s = kg_tok_bytes(tok, 257);
    assert_int_equal(s.n, 3);
    assert_memory_equal(s.p, "abc", 3);
    s = kg_tok_bytes(tok, 259);
    assert_int_equal(s.n, strlen("<|reserved_token_259|>"));
    assert_int_equal(kg_tok_bytes(tok, 260).n, 0);
    uint32_t bad = 260;
    struct kg_text out = {0};
    assert_int_equal(kg_tok_decode(tok, &bad, 1, &out), KG_EINVAL);
    kg_tok_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_vectors_have_equal_ids),
        cmocka_unit_test(markup_mode_turns_control_strings_into_ids),
        cmocka_unit_test(decode_is_the_inverse_of_encode_for_any_bytes),
        cmocka_unit_test(joining_equals_the_naive_definition_at_every_length),
        cmocka_unit_test(single_runs_of_a_hundred_thousand_characters_finish),
        cmocka_unit_test(a_piece_never_falls_back_to_a_single_character),
        cmocka_unit_test(text_is_cut_at_runs_and_at_four_hundred_thousand),
        cmocka_unit_test(threads_share_one_tokenizer),
        cmocka_unit_test(bad_files_are_refused_with_file_and_line),
        cmocka_unit_test(huge_line_is_refused_and_any_rank_order_is_fine),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
