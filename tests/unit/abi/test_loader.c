#include "plugin.h"

#include <kedge/exec.h>
#include <kedge/spec.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* FIXTURES: the folder meson builds the fixtures into, absolute. */

static void each_wrong_field_is_refused_with_what_was_found_and_wanted(void **state)
{
    /* fixture spec-<name>.so: field, found, wanted as the text must say them */
    static const struct {
        const char *name, *field, *found, *wanted;
    } cases[] = {
        {"magic", "magic", "0x12345678", "0x4b454447"},
        {"size", "size", "88", "96"},
        {"reserved", "reserved", "7", "0"},
        {"kind", "kind", "1 (pool)", "3 (spec)"},
        {"major", "major", "2", "1"},
        {"needs-minor", "needs_minor", "3", "at most 2"},
        {"needs-above", "needs_minor", "3", "at most"},
        {"name", "name", "\"other\"", "\"name\""},
        {"version", "version", "nothing", "text"},
        {"summary", "summary", "nothing", "one line"},
        {"ops", "ops", "NULL", "a table"},
        {"short-ops", "op check", "nothing (table of 56 bytes)", "a function"},
        {"missing-op", "op choose", "nothing", "a function"},
        {"cap-without-op", "op draft", "nothing", "a function for capability host"},
        {"op-without-cap", "op draft", "a function", "only with capability host"},
        {"caps", "caps", "0x10000000001", "bits of 0x7"},
        {"two-caps", "caps", "host and model", "one of them"},
        {"conf-size", "option struct", "1099511627776 bytes", "at most 1 MiB"},
        {"opt-name", "option name", "\"Size!\"", "a-z"},
        {"opt-twice", "option count", "twice", "once"},
        {"opt-type", "option size type", "99", "1 .. 6"},
        {"opt-flags", "option size flags", "0x80", "at most 0x7"},
        {"opt-offset", "option size offset", "12", "inside 12 bytes"},
        {"opt-align", "option size offset", "2", "a multiple of 4"},
        {"opt-no-default", "option size default", "NULL", "text"},
        {"opt-default", "option default size", "\"17\"", "1 .. 16"},
        {"opt-range", "option size range", "16 .. 1", "min <= max"},
        {"opt-doc", "option size doc", "nothing", "a sentence"},
        {"opt-choices", "option mode choices", "nothing", "words"},
        {"metric-name", "metric name", "\"Used-Bytes\"", "a-z"},
        {"metric-type", "metric used_bytes type", "120", "'c' or 'g'"},
        {"metric-total", "metric used_total", "type 'g'", "_total on counters"},
        {"metric-doc", "metric used_bytes doc", "nothing", "a sentence"},
        {"metric-twice", "metric calls_total", "twice", "once"},
        {"null", "descriptor", "NULL", "an address"},
        {"symbol", "symbol", "none", "kg_plugin_entry"},
        {"unresolved", "does not load", "no_such_function", "undefined symbol"},
    };
    struct kg_plugin_ref ref = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct kg_error err = {0};
        int rc = kg_plugin_load(FIXTURES, KG_KIND_SPEC, cases[i].name, &ref, &err);
        if (rc != KG_EABI || err.rc != KG_EABI)
            fail_msg("%s: rc %d, text \"%s\"", cases[i].name, rc, err.text);
        if (strstr(err.text, cases[i].field) == NULL || strstr(err.text, cases[i].found) == NULL ||
            strstr(err.text, cases[i].wanted) == NULL)
            fail_msg("%s: \"%s\" does not say %s, %s, %s", cases[i].name, err.text, cases[i].field,
                     cases[i].found, cases[i].wanted);
    }
    assert_null(ref.plugin); /* set on success only */
}

static void a_right_plugin_loads_and_its_words_are_found(void **state)
{
    struct kg_plugin_ref ref;
    struct kg_error err;

    (void)state;
    assert_int_equal(kg_plugin_load(FIXTURES, KG_KIND_SPEC, "good", &ref, &err), KG_OK);
    assert_string_equal(ref.plugin->name, "good");
    assert_string_equal(ref.path, FIXTURES "/spec-good.so");
    const struct kg_plugin *first = ref.plugin;
    assert_int_equal(kg_plugin_load(FIXTURES, KG_KIND_SPEC, "spec-good", &ref, &err), KG_OK);
    assert_ptr_equal(ref.plugin, first);
    assert_int_equal(kg_plugin_load("/nowhere", KG_KIND_SPEC, FIXTURES "/spec-good.so", &ref, &err),
                     KG_OK);
    assert_ptr_equal(ref.plugin, first);
}

static void a_newer_minor_loads_when_it_can_live_with_ours(void **state)
{
    struct kg_plugin_ref ref;
    struct kg_error err;

    (void)state;
    assert_int_equal(kg_plugin_load(FIXTURES, KG_KIND_SPEC, "newer", &ref, &err), KG_OK);
}

static void a_plugin_in_a_folder_of_its_own_is_found(void **state)
{
    struct kg_plugin_ref ref;
    struct kg_error err;

    (void)state;
    assert_int_equal(kg_plugin_load(PLUGINS, KG_KIND_SCHED, "fcfs", &ref, &err), KG_OK);
    assert_string_equal(ref.path, PLUGINS "/sched-fcfs/sched-fcfs.so");
}

static void the_current_folder_is_never_searched(void **state)
{
    struct kg_plugin_ref ref;
    struct kg_error err;

    (void)state;
    assert_int_equal(chdir(FIXTURES), 0);
    assert_int_equal(kg_plugin_load(PLUGINS, KG_KIND_SPEC, "good", &ref, &err), KG_ENOENT);
    assert_non_null(strstr(err.text, "spec-good.so"));
    assert_int_equal(kg_plugin_load("", KG_KIND_SPEC, "good", &ref, &err), KG_ENOENT);
}

static void names_cannot_leave_the_folder(void **state)
{
    static const char *const bad[] = {"", "..", "a.so", "good.so", "GOOD", "a b", "good\n"};
    struct kg_plugin_ref ref;
    struct kg_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(kg_plugin_load(FIXTURES, KG_KIND_SPEC, bad[i], &ref, &err), KG_ENOENT);
    assert_int_equal(kg_plugin_load(FIXTURES, KG_KIND_SPEC, "/etc/passwd", &ref, &err), KG_ENOENT);
    assert_int_equal(kg_plugin_load(FIXTURES, KG_KIND_SPEC, "/no/such/spec-x.so", &ref, &err),
                     KG_ENOENT);
}

static void a_file_that_is_no_library_is_refused(void **state)
{
    char path[] = "/tmp/kedge-test-XXXXXX";
    char file[64];
    struct kg_plugin_ref ref;
    struct kg_error err;

    (void)state;
    assert_non_null(mkdtemp(path));
    (void)snprintf(file, sizeof(file), "%s/spec-text.so", path);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    (void)fputs("not a library\n", f);
    (void)fclose(f);
    assert_int_equal(kg_plugin_load(path, KG_KIND_SPEC, "text", &ref, &err), KG_EABI);
    assert_non_null(strstr(err.text, "does not load"));
    (void)unlink(file);
    (void)rmdir(path);
}

/* In a child: what is wrong with a cut plugin is death by SIGBUS inside dlopen. */
static void a_file_cut_anywhere_is_refused(void **state)
{
    char path[] = "/tmp/kedge-test-XXXXXX";
    char file[64];
    struct kg_plugin_ref ref;
    struct kg_error err;
    static char bytes[4 << 20];

    (void)state;
    FILE *f = fopen(FIXTURES "/spec-good.so", "r");
    assert_non_null(f);
    size_t n = fread(bytes, 1, sizeof(bytes), f);
    (void)fclose(f);
    assert_true(n > 4096 && n < sizeof(bytes));
    assert_non_null(mkdtemp(path));
    (void)snprintf(file, sizeof(file), "%s/spec-good.so", path);
    for (size_t cut = 0; cut < 12288 && cut < n; cut += cut < 1024 ? 37 : 997) {
        f = fopen(file, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(bytes, 1, cut, f), cut);
        (void)fclose(f);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            int rc = kg_plugin_load(path, KG_KIND_SPEC, "good", &ref, &err);
            _exit(rc == KG_EABI && strstr(err.text, file) != NULL ? 0 : 1);
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("cut at %zu of %zu: wait status %d", cut, n, status);
        (void)unlink(file);
    }
    (void)rmdir(path);
}

static void built_ins_are_verified_like_files(void **state)
{
    struct kg_plugin_ref ref;
    struct kg_error err = {0};
    struct kg_plugin wrong;

    (void)state;
    assert_int_equal(kg_plugin_load("", KG_KIND_SPEC, "off", &ref, &err), KG_OK);
    assert_string_equal(ref.path, "");
    assert_int_equal(kg_plugin_load("", KG_KIND_COMM, "self", &ref, &err), KG_OK);
    assert_int_equal(kg_plugin_load("", KG_KIND_TIER, "mem", &ref, &err), KG_OK);
    wrong = *ref.plugin;
    wrong.reserved = 1;
    assert_int_equal(kg_plugin_verify(&wrong, KG_KIND_TIER, "mem", "here", &err), KG_EABI);
    assert_string_equal(err.text, "here: reserved: found 1, wanted 0");
    assert_null(kg_plugin_builtin(KG_KIND_TIER, "self"));
}

static bool may_be_missing(const struct kg_plugin *plugin, size_t offset)
{
    uint32_t kind = plugin->kind;

    return (kind == KG_KIND_EXEC && (offset == offsetof(struct kg_exec_ops, profile_draft) ||
                                     offset == offsetof(struct kg_exec_ops, messages) ||
                                     offset == offsetof(struct kg_exec_ops, dealt))) ||
           (kind == KG_KIND_POOL && (offset == offsetof(struct kg_pool_ops, loose) ||
                                     offset == offsetof(struct kg_pool_ops, classes))) ||
           (kind == KG_KIND_SPEC && offset == offsetof(struct kg_spec_ops, want)) ||
           (kind == KG_KIND_COMM && (offset == offsetof(struct kg_comm_ops, choose) ||
                                     offset == offsetof(struct kg_comm_ops, caps) ||
                                     (offset == offsetof(struct kg_comm_ops, watch) &&
                                      (plugin->caps & KG_COMM_CAP_GRAPHS) == 0)));
}

/* Whatever op is taken out of a whole table, the plugin is refused: mandatory ones because they
 * are, optional ones because their bit is set. */
static void no_op_of_any_kind_may_be_missing(void **state)
{
    static const struct {
        uint32_t kind;
        const char *dir, *name;
    } whole[] = {
        {KG_KIND_POOL, PLUGINS, "unified"}, {KG_KIND_SCHED, PLUGINS, "fcfs"},
        {KG_KIND_SPEC, FIXTURES, "good"},   {KG_KIND_COMM, "", "self"},
        {KG_KIND_EXEC, PLUGINS, "null"},    {KG_KIND_TIER, "", "mem"},
        {KG_KIND_COMM, PLUGINS, "symmem"},
    };
    struct kg_plugin_ref ref;
    struct kg_error err;
    char table[1024];
    size_t size;

    (void)state;
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        if (kg_plugin_load(whole[i].dir, whole[i].kind, whole[i].name, &ref, &err) != KG_OK)
            fail_msg("%s", err.text);
        struct kg_plugin copy = *ref.plugin;
        memcpy(&size, copy.ops, sizeof(size));
        assert_true(size <= sizeof(table));
        for (size_t at = sizeof(size); at < size; at += sizeof(void *)) {
            memcpy(table, copy.ops, size);
            memset(table + at, 0, sizeof(void *));
            copy.ops = table;
            if (may_be_missing(&copy, at))
                continue;
            if (kg_plugin_verify(&copy, copy.kind, copy.name, "copy", &err) != KG_EABI)
                fail_msg("%s without the op at %zu was taken", copy.name, at);
            assert_non_null(strstr(err.text, "copy: op "));
            copy.ops = ref.plugin->ops;
        }
        assert_int_equal(kg_plugin_verify(&copy, copy.kind, copy.name, "copy", &err), KG_OK);
    }
}

struct seen {
    int good, refused;
    char last[80];
};

static void note(void *ctx, uint32_t kind, const char *name, const struct kg_plugin_ref *ref,
                 const struct kg_error *err)
{
    struct seen *s = ctx;
    char word[80];

    (void)snprintf(word, sizeof(word), "%u%s", kind, name);
    assert_true(strcmp(word, s->last) > 0); /* sorted by kind, then name; nobody twice */
    memcpy(s->last, word, sizeof(word));
    if (ref != NULL) {
        assert_string_equal(ref->plugin->name, name);
        s->good++;
    } else {
        assert_true(err->text[0] != '\0');
        s->refused++;
    }
}

static void a_scan_visits_built_ins_and_files_good_and_refused(void **state)
{
    struct seen s = {0};
    struct kg_error err;

    (void)state;
    assert_int_equal(kg_plugin_scan(FIXTURES, note, &s, &err), KG_OK);
    assert_int_equal(s.good, 3 + 2);
    assert_int_equal(s.refused, 37);
    assert_int_equal(kg_plugin_scan("/no/such/folder", note, &s, &err), KG_EIO);
}

static void capability_bits_have_names(void **state)
{
    struct kg_buf b;

    (void)state;
    kg_buf_init(&b, 0);
    kg_plugin_caps(KG_KIND_SPEC, 0x15, &b);
    assert_string_equal(kg_buf_cstr(&b), "host,cost,0x10");
    kg_buf_fini(&b);
    assert_int_equal(kg_plugin_kind_parse("tier", 4), KG_KIND_TIER);
    assert_int_equal(kg_plugin_kind_parse("tie", 3), 0);
    assert_string_equal(kg_plugin_kind_name(99), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_wrong_field_is_refused_with_what_was_found_and_wanted),
        cmocka_unit_test(a_right_plugin_loads_and_its_words_are_found),
        cmocka_unit_test(a_newer_minor_loads_when_it_can_live_with_ours),
        cmocka_unit_test(a_plugin_in_a_folder_of_its_own_is_found),
        cmocka_unit_test(the_current_folder_is_never_searched),
        cmocka_unit_test(names_cannot_leave_the_folder),
        cmocka_unit_test(a_file_that_is_no_library_is_refused),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(built_ins_are_verified_like_files),
        cmocka_unit_test(no_op_of_any_kind_may_be_missing),
        cmocka_unit_test(a_scan_visits_built_ins_and_files_good_and_refused),
        cmocka_unit_test(capability_bits_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
