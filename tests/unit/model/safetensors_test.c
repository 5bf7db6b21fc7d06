/* What a tensor file may and may not say. Headers are given as text; offsets count data bytes. */
#include "model/safetensors.h"

#include "tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A file in memory of exactly its size (so that ASan sees a read past the end). */
static int parse(const char *head, uint64_t head_len, size_t n_data, struct kg_st **st,
                 unsigned char **mem, struct kg_error *err)
{
    size_t h = strlen(head), n = 8 + h + n_data;

    *mem = malloc(n);
    assert_non_null(*mem);
    for (int i = 0; i < 8; i++) {
        (*mem)[i] = (unsigned char)(head_len >> (8 * i));
    }
    memcpy(*mem + 8, head, h);
    memset(*mem + 8 + h, 0, n_data);
    return kg_st_parse("f.safetensors", *mem, n, st, err);
}

static void header_that_is_right_is_read(void **state)
{
    static const char head[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[30,32]},"
        "\"e\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[4,4]},"
        "\"x\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[32,40]}}   ";
    struct kg_error err = {0};
    unsigned char *mem;
    struct kg_st *st;

    (void)state;
    assert_int_equal(parse(head, strlen(head), 40, &st, &mem, &err), KG_OK);
    assert_int_equal(kg_st_count(st), 4);
    assert_string_equal(kg_st_at(st, 0)->name, "a");
    const struct kg_st_tensor *b = kg_st_find(st, "b");
    assert_non_null(b);
    assert_int_equal(b->dtype, KG_F32);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->dims[1], 3);
    assert_int_equal(b->bytes, 24);
    assert_ptr_equal(b->data, mem + 8 + strlen(head));
    assert_int_equal(kg_st_find(st, "a")->bytes, 2);
    assert_int_equal(kg_st_find(st, "e")->bytes, 0);
    assert_int_equal(kg_st_find(st, "x")->dtype, KG_ST_OTHER);
    assert_null(kg_st_find(st, "c"));
    kg_st_close(st);
    free(mem);
}

#define T(dtype, shape, span) \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" span "}}"

static void header_that_lies_is_refused(void **state)
{
    static const struct {
        const char *head, *want;
    } cases[] = {
        {T("\"F32\"", "[2]", "[0,4]"), "t: shape and dtype need 8 bytes, data_offsets span 4"},
        {T("\"F32\"", "[2]", "[0,12]"), "t: shape and dtype need 8 bytes"},
        {T("\"F32\"", "[10]", "[0,40]"), "t: data_offsets end at 40, the file has 32"},
        {T("\"F32\"", "[2]", "[8,0]"), "t: data_offsets run backwards"},
        {T("\"F32\"", "[2]", "[-8,0]"), "t: data_offsets[0] must be"},
        {T("\"F32\"", "[2]", "[0,8,16]"), "t: data_offsets must be"},
        {T("\"F32\"", "[2]", "[0.0,8]"), "t: data_offsets[0] must be"},
        {T("\"F32\"", "[2]", "[0,18446744073709551616]"), "f.safetensors: header"},
        {T("\"F32\"", "[-2]", "[0,8]"), "t: shape[0]"},
        {T("\"F32\"", "[2.0]", "[0,8]"), "t: shape[0]"},
        {T("\"F32\"", "2", "[0,8]"), "t: shape must be"},
        {T("\"F32\"", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), "t: shape must be a list of at most 8"},
        {T("\"F32\"", "[4611686018427387904,4]", "[0,0]"), "does not fit 64 bits"},
        {T("\"F32\"", "[4611686018427387904]", "[0,0]"), "does not fit 64 bits"},
        {T("\"F31\"", "[2]", "[0,8]"), "t: dtype F31 is unknown"},
        {T("7", "[2]", "[0,8]"), "t: dtype must be a string"},
        {"{\"t\":{\"shape\":[2],\"data_offsets\":[0,8]}}", "t: dtype must be"},
        {"{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", "t: shape must be"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2]}}", "t: data_offsets must be"},
        {"{\"t\":[]}", "t: its entry"},
        {"{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "a tensor name"},
        {"{\"__metadata__\":3}", "__metadata__: must be an object"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"t\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         "duplicate"},
        {"{\"t\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
         "duplicate"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]},"
         "\"u\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]}}",
         "u: its data overlap those of t"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]},"
         "\"u\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]}}",
         "its data overlap those of"},
        {"[1]", "is not a JSON object"},
        {" {}", "is not a JSON object"},
        {"{", "header:"},
        {"{}x", "header:"},
        {"{\"a\\u0000b\":{}}", "header:"},
        {"{\"\xff\":{}}", "header:"},
        {"", "is not a JSON object"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kg_error err = {0};
        unsigned char *mem;
        struct kg_st *st;
        int rc = parse(cases[i].head, strlen(cases[i].head), 32, &st, &mem, &err);
        if (rc != KG_EINVAL || strstr(err.text, cases[i].want) == NULL) {
            fail_msg("%s -> rc %d, \"%s\", wanted \"%s\"", cases[i].head, rc, err.text,
                     cases[i].want);
        }
        free(mem);
    }
}

static void header_length_that_lies_is_refused(void **state)
{
    static const uint64_t lengths[] = {
        0, 1, 13, 35, 1000, 1ull << 31, 1ull << 32, 1ull << 63, UINT64_MAX, UINT64_MAX - 7};
    static const char head[] = "{\"__metadata__\":{}}"; /* 19 bytes, then 15 of data */

    (void)state;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct kg_error err = {0};
        unsigned char *mem;
        struct kg_st *st;
        assert_int_equal(parse(head, lengths[i], 15, &st, &mem, &err), KG_EINVAL);
        assert_non_null(strstr(err.text, "f.safetensors"));
        free(mem);
    }
    for (size_t n = 0; n < 8; n++) {
        struct kg_error err = {0};
        unsigned char *mem = calloc(1, n + 1);
        struct kg_st *st;
        assert_int_equal(kg_st_parse("f.safetensors", mem, n, &st, &err), KG_EINVAL);
        assert_non_null(strstr(err.text, "too few"));
        free(mem);
    }
}

static void file_cut_anywhere_is_refused(void **state)
{
    struct tiny *m = tiny_new(1);
    size_t n;
    unsigned char *all = tiny_bytes(m, &n);
    struct kg_error err = {0};
    struct kg_st *st;

    (void)state;
    assert_int_equal(kg_st_parse("f", all, n, &st, &err), KG_OK);
    assert_int_equal(kg_st_count(st), m->n);
    kg_st_close(st);
    for (size_t cut = 0; cut < n; cut += cut < 16 || cut + 64 > n ? 1 : 97) {
        unsigned char *part = malloc(cut + 1);
        memcpy(part, all, cut);
        assert_int_equal(kg_st_parse("f", part, cut, &st, &err), KG_EINVAL);
        free(part);
    }
    free(all);
    tiny_free(m);
}

/* Any single byte of length and header changed: refused or read, never a crash. */
static void header_with_one_changed_byte_is_survived(void **state)
{
    struct tiny *m = tiny_new(0);
    size_t n, head;
    unsigned char *all = tiny_bytes(m, &n);
    uint32_t step = getenv("KEDGE_FULL") != NULL ? 1 : 7, refused = 0, x = 1;

    (void)state;
    head = 8 + (size_t)(all[0] | all[1] << 8);
    for (size_t i = 0; i < head; i += step) {
        struct kg_error err = {0};
        unsigned char was = all[i];
        struct kg_st *st = NULL;
        x = x * 1664525u + 1013904223u;
        all[i] = (unsigned char)(x >> 24);
        if (kg_st_parse("f", all, n, &st, &err) == KG_OK) {
            kg_st_close(st);
        } else {
            refused++;
        }
        all[i] = was;
    }
    assert_true(refused > head / step / 2);
    free(all);
    tiny_free(m);
}

static void expect(const struct tiny *m, int rc, const char *want)
{
    struct kg_error err = {0};
    struct kg_st *st;

    if (kg_st_open(m->dir, &st, &err) != rc || strstr(err.text, want) == NULL) {
        fail_msg("\"%s\", wanted \"%s\"", err.text, want);
    }
}

static void files_that_are_no_files_are_refused(void **state)
{
    struct tiny *m = tiny_new(0);
    char path[600];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", m->dir);
    expect(m, KG_ENOENT, "model.safetensors");
    assert_int_equal(mkdir(path, 0700), 0);
    expect(m, KG_EIO, "is not a regular file");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not wait for a writer */
    expect(m, KG_EIO, "is not a regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/null", path), 0);
    expect(m, KG_EIO, "is not a regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("model.safetensors", path), 0); /* a loop */
    expect(m, KG_EIO, "model.safetensors");
    assert_int_equal(unlink(path), 0);
    tiny_file(m, "model.safetensors", "", 0);
    expect(m, KG_EINVAL, "0 bytes");
    tiny_free(m);
}

static void link_to_a_file_is_followed(void **state)
{
    struct tiny *m = tiny_new(0);
    char path[600];
    size_t n;
    unsigned char *b = tiny_bytes(m, &n);
    struct kg_error err = {0};
    struct kg_st *st;

    (void)state;
    tiny_file(m, "blob", b, n);
    free(b);
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", m->dir);
    assert_int_equal(symlink("blob", path), 0);
    assert_int_equal(kg_st_open(m->dir, &st, &err), KG_OK);
    assert_int_equal(kg_st_count(st), m->n);
    kg_st_close(st);
    tiny_free(m);
}

static void index_that_is_right_joins_the_shards(void **state)
{
    struct tiny *m = tiny_new(0);
    struct kg_error err = {0};
    struct kg_st *st;

    (void)state;
    tiny_write_sharded(m, NULL);
    assert_int_equal(kg_st_open(m->dir, &st, &err), KG_OK);
    assert_int_equal(kg_st_count(st), m->n);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct kg_st_tensor *t = kg_st_find(st, m->t[i].name);
        assert_non_null(t);
        assert_memory_equal(t->data, m->data + m->t[i].begin, t->bytes);
        assert_non_null(strstr(kg_st_file(st, t->shard), m->t[i].shard ? "b.safe" : "a.safe"));
    }
    kg_st_close(st);
    tiny_free(m);
}

static void index_that_lies_is_refused(void **state)
{
    static const struct {
        const char *index;
        int rc;
        const char *want;
    } cases[] = {
        {"{\"weight_map\":{\"t\":\"../a.safetensors\"}}", KG_EINVAL, "t: its file ../a.safe"},
        {"{\"weight_map\":{\"t\":\"/etc/a.safetensors\"}}", KG_EINVAL, "t: its file /etc/a"},
        {"{\"weight_map\":{\"t\":\"x/a.safetensors\"}}", KG_EINVAL, "t: its file x/a"},
        {"{\"weight_map\":{\"t\":\".safetensors\"}}", KG_EINVAL, "t: its file .safetensors"},
        {"{\"weight_map\":{\"t\":\"..safetensors\"}}", KG_EINVAL, "t: its file ..safetensors"},
        {"{\"weight_map\":{\"t\":\"passwd\"}}", KG_EINVAL, "t: its file passwd"},
        {"{\"weight_map\":{\"t\":\"a\\nb.safetensors\"}}", KG_EINVAL, "t: its file a?b.safe"},
        {"{\"weight_map\":{\"t\":7}}", KG_EINVAL, "t: its file (not a string)"},
        {"{\"weight_map\":{\"t\":\"c.safetensors\"}}", KG_ENOENT, "c.safetensors"},
        {"{\"weight_map\":{\"t\":\"a.safetensors\"}}", KG_EINVAL, "t: is not in a.safetensors"},
        {"{\"weight_map\":{\"lm_head.weight\":\"a.safetensors\"}}", KG_EINVAL,
         "is not in the index"},
        {"{\"weight_map\":{\"t\":\"a.safetensors\",\"t\":\"b.safetensors\"}}", KG_EINVAL,
         "duplicate"},
        {"{\"weight_map\":{}}", KG_EINVAL, "weight_map must be"},
        {"{\"weight_map\":[]}", KG_EINVAL, "weight_map must be"},
        {"[]", KG_EINVAL, "weight_map must be"},
        {"{}", KG_EINVAL, "weight_map must be"},
        {"{\"weight_map\":", KG_EINVAL, "index.json:1"},
        {"", KG_EINVAL, "index.json:"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tiny *m = tiny_new(0);
        tiny_write_sharded(m, cases[i].index);
        expect(m, cases[i].rc, cases[i].want);
        tiny_free(m);
    }
}

static void tensor_in_the_wrong_or_in_two_shards_is_refused(void **state)
{
    struct tiny *m = tiny_new(0);
    size_t n;

    (void)state;
    tiny_write_sharded(m, NULL);
    struct tiny_tensor *t = tiny_find(m, "lm_head.weight");
    unsigned char *b;
    /* a.safetensors with every tensor: those of b are then in both */
    b = tiny_bytes(m, &n);
    tiny_file(m, "a.safetensors", b, n);
    free(b);
    expect(m, KG_EINVAL, "too");
    /* the index still says where lm_head was, the shards were written anew without it there */
    tiny_write_sharded(m, NULL);
    char index[600];
    (void)snprintf(index, sizeof(index), "%s/model.safetensors.index.json", m->dir);
    char *keep = malloc(64 * 1024);
    FILE *f = fopen(index, "rb");
    assert_non_null(f);
    size_t got = fread(keep, 1, 64 * 1024, f);
    assert_int_equal(fclose(f), 0);
    t->shard = !t->shard;
    tiny_write_sharded(m, NULL);
    tiny_file(m, "model.safetensors.index.json", keep, got);
    expect(m, KG_EINVAL, "lm_head.weight: is in ");
    free(keep);
    tiny_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_that_is_right_is_read),
        cmocka_unit_test(header_that_lies_is_refused),
        cmocka_unit_test(header_length_that_lies_is_refused),
        cmocka_unit_test(file_cut_anywhere_is_refused),
        cmocka_unit_test(header_with_one_changed_byte_is_survived),
        cmocka_unit_test(files_that_are_no_files_are_refused),
        cmocka_unit_test(link_to_a_file_is_followed),
        cmocka_unit_test(index_that_is_right_joins_the_shards),
        cmocka_unit_test(index_that_lies_is_refused),
        cmocka_unit_test(tensor_in_the_wrong_or_in_two_shards_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
