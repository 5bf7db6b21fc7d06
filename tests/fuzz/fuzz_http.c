/* Any bytes as a request head and a chunked body: refused with a status, or taken apart into spans
 * that lie inside the input; a chunked body decodes equally however it is cut. */
#include "serve/http_parse.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void inside(struct kg_span s, const char *buf, size_t n)
{
    if (s.p != NULL && (s.p < buf || s.p + s.n > buf + n))
        abort();
}

static void check_head(const char *buf, size_t n)
{
    struct kg_http_head head;
    const char *why = NULL;
    size_t len = kg_http_head_find(buf, n, 0);
    int status;

    if (len == 0)
        return;
    if (len > n)
        abort();
    status = kg_http_head_parse(buf, len, &head, &why);
    if (status != 0 && (status < 400 || status > 599 || why == NULL))
        abort();
    if (status != 0)
        return;
    inside(head.method, buf, len);
    inside(head.path, buf, len);
    inside(head.query, buf, len);
    for (uint32_t i = 0; i < head.n_headers; i++) {
        inside(head.headers[i].name, buf, len);
        inside(head.headers[i].value, buf, len);
    }
    if (head.chunked && head.has_length)
        abort();
}

/* Decodes in pieces of `step`; bytes to out, their number to *n_out. */
static int decode(const char *buf, size_t n, size_t step, char *out, size_t *n_out)
{
    struct kg_http_chunks c = {0};
    size_t at = 0;
    int rc = 0;

    *n_out = 0;
    while (rc == 0 && at < n) {
        size_t take = n - at < step ? n - at : step, used = 0, got = 0;
        rc = kg_http_chunks_feed(&c, buf + at, take, &used, out + *n_out, &got);
        if (used > take || got > used || (rc == 0 && used != take))
            abort();
        at += used;
        *n_out += got;
    }
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *buf = malloc(n + 1), *a = malloc(n + 1), *b = malloc(n + 1);
    size_t na, nb;

    if (buf == NULL || a == NULL || b == NULL)
        abort();
    memcpy(buf, data, n);
    check_head(buf, n);
    if (decode(buf, n, n + 1, a, &na) != decode(buf, n, 1, b, &nb) || na != nb ||
        memcmp(a, b, na) != 0)
        abort();
    free(buf);
    free(a);
    free(b);
    return 0;
}
