#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    struct kg_log log;
    int read_fd;
    uint64_t now;
    char text[65536];
};

static uint64_t fake_now(void *ctx)
{
    return ((struct fixture *)ctx)->now;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    int fds[2];

    if (f == NULL || pipe(fds) != 0)
        return -1;
    f->read_fd = fds[0];
    kg_log_init(&f->log, fds[1], KG_LOG_INFO);
    f->log.clock = (struct kg_clock){fake_now, f};
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    (void)close(f->read_fd);
    (void)close(f->log.fd);
    free(f);
    return 0;
}

/* All that was logged so far (the pipe holds it); a second passes. */
static const char *logged(struct fixture *f)
{
    kg_log_line(&f->log, KG_LOG_ERROR, "end", "end", "%s", "");
    ssize_t n = read(f->read_fd, f->text, sizeof(f->text) - 1);
    assert_true(n > 0);
    f->text[n] = '\0';
    char *end = strstr(f->text, " level=error module=end ");
    assert_non_null(end);
    while (end > f->text && end[-1] != '\n')
        end--;
    *end = '\0';
    f->now += KG_NS_PER_S;
    return f->text;
}

static int count(const char *text, const char *what)
{
    int n = 0;

    for (const char *p = text; (p = strstr(p, what)) != NULL; p += strlen(what))
        n++;
    return n;
}

static void a_line_has_time_level_module_message_and_pairs(void **state)
{
    struct fixture *f = *state;

    kg_log_line(&f->log, KG_LOG_INFO, "http", "listening", "host=%s port=%d", "127.0.0.1", 8000);
    const char *t = logged(f);
    assert_memory_equal(t, "time=20", 7);
    assert_non_null(
        strstr(t, "Z level=info module=http msg=\"listening\" host=127.0.0.1 port=8000\n"));
    assert_int_equal(count(t, "\n"), 1);
}

static void levels_are_kept_per_module(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(kg_log_set_level(&f->log, "engine", KG_LOG_TRACE), KG_OK);
    assert_int_equal(kg_log_set_level(&f->log, "http", KG_LOG_ERROR), KG_OK);
    kg_log_line(&f->log, KG_LOG_DEBUG, "other", "no", "%s", "");
    kg_log_line(&f->log, KG_LOG_TRACE, "engine", "yes", "%s", "");
    kg_log_line(&f->log, KG_LOG_WARN, "http", "no", "%s", "");
    kg_log_line(NULL, KG_LOG_ERROR, "http", "no", "%s", "");
    const char *t = logged(f);
    assert_int_equal(count(t, "msg=\"yes\""), 1);
    assert_int_equal(count(t, "msg=\"no\""), 0);
}

static void the_same_message_appears_ten_times_a_second_and_the_rest_is_counted(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 25; i++)
        kg_log_line(&f->log, KG_LOG_WARN, "pool", "odd", "i=%d", i);
    kg_log_line(&f->log, KG_LOG_WARN, "pool", "other", "%s", "");
    const char *t = logged(f);
    assert_int_equal(count(t, "msg=\"odd\""), KG_LOG_PER_SECOND);
    assert_int_equal(count(t, "msg=\"other\""), 1);
    kg_log_line(&f->log, KG_LOG_WARN, "pool", "odd", "i=%d", 99); /* a second later */
    t = logged(f);
    assert_int_equal(count(t, "i=99 dropped=15\n"), 1);
}

static void a_record_is_never_dropped(void **state)
{
    struct fixture *f = *state;
    const char *text;

    for (int i = 0; i < 50; i++)
        kg_log_record(&f->log, KG_LOG_INFO, "http", "request", "i=%d", i);
    kg_log_record(&f->log, KG_LOG_DEBUG, "http", "request", "%s", "");
    text = logged(f);
    assert_int_equal(count(text, "msg=\"request\""), 50);
    assert_int_equal(count(text, "dropped="), 0);
}

static void a_line_is_one_line_whatever_the_text_and_bounded(void **state)
{
    struct fixture *f = *state;
    char big[5000];

    memset(big, 'y', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    kg_log_line(&f->log, KG_LOG_WARN, "m", "one", "v=%s", "a\nlevel=error b");
    kg_log_line(&f->log, KG_LOG_WARN, "m", "two", "v=%s", big);
    kg_log_text(&f->log, KG_LOG_WARN, "m", "three", big);
    kg_log_text(&f->log, KG_LOG_WARN, "m", "four", "x\ny\"z");
    const char *t = logged(f);
    assert_int_equal(count(t, "\n"), 4);
    for (const char *p = t; *p != '\0'; p += strcspn(p, "\n") + 1)
        assert_true(strcspn(p, "\n") < KG_LOG_LINE);
    assert_non_null(strstr(t, "msg=\"x\\x0ay\\\"z\"\n"));
}

static void text_of_users_is_quoted_and_capped(void **state)
{
    char big[1000];

    (void)state;
    memset(big, 'z', sizeof(big));
    assert_string_equal(kg_log_quote("a b", 3).text, "\"a b\"");
    assert_string_equal(kg_log_quote("a\"\n\xff", 4).text, "\"a\\\"\\x0a\\xff\"");
    assert_string_equal(kg_log_quote("\xc3\xa9", 2).text, "\"\xc3\xa9\"");
    struct kg_quoted q = kg_log_quote(big, sizeof(big));
    assert_true(strlen(q.text) <= 72);
    assert_string_equal(q.text + strlen(q.text) - 4, "...\"");
}

static void level_names_go_both_ways(void **state)
{
    uint32_t level;

    (void)state;
    for (uint32_t i = 0; i <= KG_LOG_TRACE; i++) {
        assert_int_equal(kg_log_level_parse(kg_log_level_name(i), &level), KG_OK);
        assert_int_equal(level, i);
    }
    assert_int_equal(kg_log_level_parse("loud", &level), KG_EINVAL);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_line_has_time_level_module_message_and_pairs),
        CASE(levels_are_kept_per_module),
        CASE(the_same_message_appears_ten_times_a_second_and_the_rest_is_counted),
        CASE(a_record_is_never_dropped),
        CASE(a_line_is_one_line_whatever_the_text_and_bounded),
        CASE(text_of_users_is_quoted_and_capped),
        CASE(level_names_go_both_ways),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
