/* Request heads and chunked bodies: what is taken, what is refused, and that cuts do not matter. */
#include "serve/http_parse.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int parse(const char *text, struct kg_http_head *head)
{
    const char *why = NULL;
    int status = kg_http_head_parse(text, strlen(text), head, &why);

    assert_non_null(why);
    return status;
}

static void a_plain_request_is_taken_apart(void **state)
{
    struct kg_http_head h;

    (void)state;
    assert_int_equal(parse("POST /v1/completions?a=b HTTP/1.1\r\nHost: x\r\n"
                           "Content-Length: 12\r\nX-Request-Id:  abc \t\r\n\r\n",
                           &h),
                     0);
    assert_true(kg_span_is(h.method, "POST"));
    assert_true(kg_span_is(h.path, "/v1/completions"));
    assert_true(kg_span_is(h.query, "a=b"));
    assert_int_equal(h.minor, 1);
    assert_true(h.keep_alive);
    assert_true(h.has_length);
    assert_int_equal(h.content_length, 12);
    assert_true(kg_span_is(kg_http_header_get(&h, "x-request-id"), "abc"));
    assert_null(kg_http_header_get(&h, "absent").p);
}

static void connection_follows_version_and_header(void **state)
{
    struct kg_http_head h;

    (void)state;
    assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n", &h), 0);
    assert_false(h.keep_alive);
    assert_int_equal(parse("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", &h), 0);
    assert_true(h.keep_alive);
    assert_int_equal(parse("GET / HTTP/1.1\r\nHost: x\r\nConnection: foo, close\r\n\r\n", &h), 0);
    assert_false(h.keep_alive);
}

static void a_proxys_absolute_target_becomes_a_path(void **state)
{
    struct kg_http_head h;

    (void)state;
    assert_int_equal(parse("GET http://a:1/health HTTP/1.1\r\nHost: a:1\r\n\r\n", &h), 0);
    assert_true(kg_span_is(h.path, "/health"));
    assert_int_equal(parse("GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", &h), 400);
}

static void broken_heads_are_refused_with_their_status(void **state)
{
    static const struct {
        const char *text;
        int status;
    } rows[] = {
        {"GET / HTTP/1.1\nHost: x\n\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nA: b\rc\r\n\r\n", 400},
        {"GET /\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"G(T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {" GET / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET x HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/1.1 \r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505},
        {"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505},
        {"GET / http/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\n: v\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nA: \x01\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1x\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999999999999\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
         400},
        {"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
        {"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
        {"GET / HTTP/1.1\r\nHost: x\r\nExpect: cake\r\n\r\n", 417},
    };
    struct kg_http_head h;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int status = parse(rows[i].text, &h);
        if (status != rows[i].status)
            fail_msg("row %zu: status %d, wanted %d", i, status, rows[i].status);
    }
}

static void headers_and_targets_are_counted(void **state)
{
    struct kg_http_head h;
    static char text[20000];
    size_t n = (size_t)sprintf(text, "GET / HTTP/1.1\r\nHost: x\r\n");

    (void)state;
    for (int i = 0; i < KG_HTTP_MAX_HEADERS - 1; i++)
        n += (size_t)sprintf(text + n, "A%d: b\r\n", i);
    (void)sprintf(text + n, "\r\n");
    assert_int_equal(parse(text, &h), 0);
    assert_int_equal(h.n_headers, KG_HTTP_MAX_HEADERS);
    (void)sprintf(text + n, "One: more\r\n\r\n");
    assert_int_equal(parse(text, &h), 431);

    n = (size_t)sprintf(text, "GET /");
    memset(text + n, 'a', 9000);
    (void)sprintf(text + n + 9000, " HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_int_equal(parse(text, &h), 414);
}

static void the_end_of_a_head_is_found_wherever_it_is_cut(void **state)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\nBODY";
    size_t whole = sizeof(text) - 1 - 4;

    (void)state;
    for (size_t n = 0; n < whole; n++)
        assert_int_equal(kg_http_head_find(text, n, n > 3 ? n - 3 : 0), 0);
    for (size_t n = whole; n < sizeof(text); n++) {
        assert_int_equal(kg_http_head_find(text, n, 0), whole);
        assert_int_equal(kg_http_head_find(text, n, whole - 1 - 3), whole);
    }
    assert_int_equal(kg_http_head_find("a\n\nb", 4, 0), 3);
}

/* Feeds a coded body in pieces of `step` bytes; returns the last result and the body. */
static int feed(const char *text, size_t step, char *out, size_t *n_out, size_t *n_used)
{
    struct kg_http_chunks c = {0};
    size_t n = strlen(text), at = 0, o = 0;
    int rc = 0;

    while (rc == 0 && at < n) {
        size_t take = n - at < step ? n - at : step, used, got;
        rc = kg_http_chunks_feed(&c, text + at, take, &used, out + o, &got);
        assert_true(used <= take && got <= used);
        at += used;
        o += got;
    }
    *n_out = o;
    *n_used = at;
    return rc;
}

static void chunks_decode_equally_however_they_arrive(void **state)
{
    static const char text[] = "4\r\nWiki\r\nA;x=\"y\"\r\n0123456789\r\n00000000000\r\n"
                               "Trailer: z\r\nOther: w\r\n\r\nGET /";
    char out[64];
    size_t n, used;

    (void)state;
    for (size_t step = 1; step < sizeof(text); step++) {
        assert_int_equal(feed(text, step, out, &n, &used), 1);
        assert_int_equal(n, 14);
        assert_memory_equal(out, "Wiki0123456789", 14);
        assert_int_equal(used, sizeof(text) - 1 - 5);
    }
}

static void broken_chunks_are_refused(void **state)
{
    static const char *const rows[] = {
        "\r\n",        "x\r\n",           "4\nWiki",         "4 x\n",
        "4\r\nWikiXX", "4\r\nWiki\rX",    "-1\r\n",          "1234567890abc\r\n",
        "0\r\n\n",     "0\r\nA: b\nX",    "0\r\nA: b\r\r\n", "0\r\n\rX",
        "4\rX",        "0x4\r\nWiki\r\n", ";a\r\n",
    };
    char out[64];
    size_t n, used;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (feed(rows[i], 1, out, &n, &used) != -1)
            fail_msg("row %zu was taken", i);
        assert_int_equal(feed(rows[i], 64, out, &n, &used), -1);
    }
}

static void endless_size_lines_and_trailers_are_refused(void **state)
{
    static char text[20000], out[20000];
    size_t n, used;

    (void)state;
    memset(text, 'e', 19000);
    memcpy(text, "4;", 2);
    assert_int_equal(feed(text, 1000, out, &n, &used), -1);
    memcpy(text, "0\r\nA: ", 6);
    assert_int_equal(feed(text, 1000, out, &n, &used), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_request_is_taken_apart),
        cmocka_unit_test(connection_follows_version_and_header),
        cmocka_unit_test(a_proxys_absolute_target_becomes_a_path),
        cmocka_unit_test(broken_heads_are_refused_with_their_status),
        cmocka_unit_test(headers_and_targets_are_counted),
        cmocka_unit_test(the_end_of_a_head_is_found_wherever_it_is_cut),
        cmocka_unit_test(chunks_decode_equally_however_they_arrive),
        cmocka_unit_test(broken_chunks_are_refused),
        cmocka_unit_test(endless_size_lines_and_trailers_are_refused),
    };

    return cmocka_run_group_tests_name("http_parse", tests, NULL, NULL);
}
