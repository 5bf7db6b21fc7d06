#include "serve/http_parse.h"

#include <string.h>
#include <strings.h>

#define MAX_METHOD 20
#define MAX_TARGET 8192
#define MAX_SIZE_DIGITS 12 /* of a chunk: far above any body limit */
#define MAX_SIZE_LINE 256  /* a chunk size with its extensions */
#define MAX_TRAILER_BYTES 8192

bool kg_span_is(struct kg_span span, const char *text)
{
    return span.p != NULL && span.n == strlen(text) && memcmp(span.p, text, span.n) == 0;
}

bool kg_span_is_nocase(struct kg_span span, const char *text)
{
    return span.p != NULL && span.n == strlen(text) && strncasecmp(span.p, text, span.n) == 0;
}

struct kg_span kg_http_header_get(const struct kg_http_head *head, const char *name)
{
    for (uint32_t i = 0; i < head->n_headers; i++) {
        if (kg_span_is_nocase(head->headers[i].name, name))
            return head->headers[i].value;
    }
    return (struct kg_span){NULL, 0};
}

size_t kg_http_head_find(const char *buf, size_t n, size_t from)
{
    /* Both CRLF CRLF and a bare LF LF end the search: the parser then refuses the second. */
    for (size_t i = from; i < n; i++) {
        const char *nl = memchr(buf + i, '\n', n - i);
        if (nl == NULL)
            return 0;
        i = (size_t)(nl - buf);
        if (i + 1 < n && buf[i + 1] == '\n')
            return i + 2;
        if (i + 2 < n && buf[i + 1] == '\r' && buf[i + 2] == '\n')
            return i + 3;
    }
    return 0;
}

static bool is_token_char(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool is_token(struct kg_span s)
{
    for (size_t i = 0; i < s.n; i++) {
        if (!is_token_char((unsigned char)s.p[i]))
            return false;
    }
    return s.n > 0;
}

/* Cuts the next line, without its CRLF, off the front of *rest. False: not ended by CRLF. */
static bool cut_line(struct kg_span *rest, struct kg_span *line)
{
    const char *nl = memchr(rest->p, '\n', rest->n);

    if (nl == NULL || nl == rest->p || nl[-1] != '\r')
        return false;
    *line = (struct kg_span){rest->p, (size_t)(nl - 1 - rest->p)};
    if (memchr(line->p, '\r', line->n) != NULL)
        return false;
    rest->n -= (size_t)(nl + 1 - rest->p);
    rest->p = nl + 1;
    return true;
}

/* Absolute form (a proxy's habit): "http://host/path" becomes "/path". */
static void strip_authority(struct kg_span *target)
{
    const char *slash;

    if (target->n < 7 || strncasecmp(target->p, "http://", 7) != 0)
        return;
    target->p += 7;
    target->n -= 7;
    slash = memchr(target->p, '/', target->n);
    if (slash == NULL)
        return;
    target->n -= (size_t)(slash - target->p);
    target->p = slash;
}

static int parse_version(struct kg_span v, struct kg_http_head *head, const char **why)
{
    if (v.n != 8 || memcmp(v.p, "HTTP/", 5) != 0 || v.p[6] != '.') {
        *why = "the request line does not end with an HTTP version";
        return 400;
    }
    if (v.p[5] != '1' || (v.p[7] != '0' && v.p[7] != '1')) {
        *why = "only HTTP/1.1 and HTTP/1.0 are spoken here";
        return 505;
    }
    head->minor = (uint32_t)(v.p[7] - '0');
    return 0;
}

static int parse_request_line(struct kg_span line, struct kg_http_head *head, const char **why)
{
    const char *sp1 = memchr(line.p, ' ', line.n);
    const char *sp2 =
        sp1 == NULL ? NULL : memchr(sp1 + 1, ' ', line.n - (size_t)(sp1 + 1 - line.p));
    struct kg_span target;
    const char *q;
    int rc;

    *why = "the request line is not \"METHOD /path HTTP/1.1\"";
    if (sp2 == NULL)
        return 400;
    head->method = (struct kg_span){line.p, (size_t)(sp1 - line.p)};
    target = (struct kg_span){sp1 + 1, (size_t)(sp2 - sp1 - 1)};
    if (head->method.n > MAX_METHOD || !is_token(head->method))
        return 400;
    rc = parse_version((struct kg_span){sp2 + 1, line.n - (size_t)(sp2 + 1 - line.p)}, head, why);
    if (rc != 0)
        return rc;
    if (target.n > MAX_TARGET) {
        *why = "the request target is longer than 8192 bytes";
        return 414;
    }
    *why = "the request target is not a path";
    for (size_t i = 0; i < target.n; i++) {
        unsigned char c = (unsigned char)target.p[i];
        if (c <= ' ' || c >= 127)
            return 400;
    }
    strip_authority(&target);
    if (target.n == 0 || (target.p[0] != '/' && !kg_span_is(target, "*")))
        return 400;
    q = memchr(target.p, '?', target.n);
    head->path = target;
    head->query = (struct kg_span){target.p + target.n, 0};
    if (q != NULL) {
        head->path.n = (size_t)(q - target.p);
        head->query = (struct kg_span){q + 1, target.n - head->path.n - 1};
    }
    return 0;
}

static int parse_header(struct kg_span line, struct kg_http_header *h, const char **why)
{
    const char *colon = memchr(line.p, ':', line.n);
    struct kg_span v;

    *why = "a header line is not \"Name: value\"";
    if (colon == NULL)
        return 400;
    h->name = (struct kg_span){line.p, (size_t)(colon - line.p)};
    if (!is_token(h->name)) /* also refuses folded lines and blanks before the colon */
        return 400;
    v = (struct kg_span){colon + 1, line.n - h->name.n - 1};
    while (v.n > 0 && (v.p[0] == ' ' || v.p[0] == '\t')) {
        v.p++;
        v.n--;
    }
    while (v.n > 0 && (v.p[v.n - 1] == ' ' || v.p[v.n - 1] == '\t'))
        v.n--;
    for (size_t i = 0; i < v.n; i++) {
        unsigned char c = (unsigned char)v.p[i];
        if ((c < ' ' && c != '\t') || c == 127) {
            *why = "a header value holds a control character";
            return 400;
        }
    }
    h->value = v;
    return 0;
}

/* Length in *bytes from decimal digits only. */
static bool parse_length(struct kg_span v, uint64_t *bytes)
{
    uint64_t x = 0;

    if (v.n == 0 || v.n > 18)
        return false;
    for (size_t i = 0; i < v.n; i++) {
        if (v.p[i] < '0' || v.p[i] > '9')
            return false;
        x = x * 10 + (uint64_t)(v.p[i] - '0');
    }
    *bytes = x;
    return true;
}

/* True when a comma-separated list holds the word. */
static bool list_has(struct kg_span list, const char *word)
{
    size_t n = strlen(word);

    for (size_t i = 0; i < list.n;) {
        size_t end, from;
        while (i < list.n && (list.p[i] == ' ' || list.p[i] == '\t' || list.p[i] == ','))
            i++;
        from = i;
        while (i < list.n && list.p[i] != ',')
            i++;
        end = i;
        while (end > from && (list.p[end - 1] == ' ' || list.p[end - 1] == '\t'))
            end--;
        if (end - from == n && strncasecmp(list.p + from, word, n) == 0)
            return true;
    }
    return false;
}

/* What the headers say of body and connection. */
static int parse_framing(struct kg_http_head *head, const char **why)
{
    uint32_t n_host = 0, n_length = 0, n_coding = 0;

    head->keep_alive = head->minor == 1;
    for (uint32_t i = 0; i < head->n_headers; i++) {
        const struct kg_http_header *h = &head->headers[i];
        if (kg_span_is_nocase(h->name, "host")) {
            n_host++;
        } else if (kg_span_is_nocase(h->name, "content-length")) {
            n_length++;
            head->has_length = true;
            *why = "Content-Length is not a number";
            if (!parse_length(h->value, &head->content_length))
                return 400;
        } else if (kg_span_is_nocase(h->name, "transfer-encoding")) {
            n_coding++;
            *why = "the only Transfer-Encoding known is chunked, in HTTP/1.1";
            if (!kg_span_is_nocase(h->value, "chunked") || head->minor != 1)
                return 501;
            head->chunked = true;
        } else if (kg_span_is_nocase(h->name, "connection")) {
            if (list_has(h->value, "close"))
                head->keep_alive = false;
            else if (head->minor == 0 && list_has(h->value, "keep-alive"))
                head->keep_alive = true;
        } else if (kg_span_is_nocase(h->name, "expect")) {
            *why = "the only expectation known is 100-continue";
            if (!kg_span_is_nocase(h->value, "100-continue"))
                return 417;
            head->expect_continue = head->minor == 1;
        }
    }
    *why = "Content-Length and Transfer-Encoding may be given once, and not both";
    if (n_length > 1 || n_coding > 1 || n_length + n_coding > 1)
        return 400;
    *why = "HTTP/1.1 needs exactly one Host header";
    if (n_host > 1 || (head->minor == 1 && n_host == 0))
        return 400;
    return 0;
}

int kg_http_head_parse(const char *buf, size_t n, struct kg_http_head *head, const char **why)
{
    struct kg_span rest = {buf, n}, line;
    int rc;

    memset(head, 0, sizeof(*head));
    *why = "lines of a request head end with CR LF";
    if (!cut_line(&rest, &line))
        return 400;
    rc = parse_request_line(line, head, why);
    if (rc != 0)
        return rc;
    for (;;) {
        *why = "lines of a request head end with CR LF";
        if (!cut_line(&rest, &line))
            return 400;
        if (line.n == 0)
            break;
        *why = "more than 100 headers";
        if (head->n_headers == KG_HTTP_MAX_HEADERS)
            return 431;
        rc = parse_header(line, &head->headers[head->n_headers], why);
        if (rc != 0)
            return rc;
        head->n_headers++;
    }
    return parse_framing(head, why);
}

enum chunk_state {
    CHUNK_SIZE = 0, /* hexadecimal digits */
    CHUNK_EXT,      /* rest of the size line */
    CHUNK_SIZE_LF,
    CHUNK_DATA,
    CHUNK_DATA_CR,
    CHUNK_DATA_LF,
    CHUNK_TRAILER,    /* at the start of a trailer line */
    CHUNK_TRAILER_IN, /* inside one */
    CHUNK_TRAILER_LF,
    CHUNK_END_LF,
    CHUNK_DONE,
};

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* One byte of a size line. Returns false when it cannot be there. */
static bool size_byte(struct kg_http_chunks *c, char b)
{
    int d = c->state == CHUNK_SIZE ? hex_digit(b) : -1;

    if (++c->n_line > MAX_SIZE_LINE)
        return false;
    if (c->state == CHUNK_SIZE_LF) {
        if (b != '\n')
            return false;
        c->n_line = 0;
        c->n_digits = 0;
        c->state = c->left > 0 ? CHUNK_DATA : CHUNK_TRAILER;
        return true;
    }
    if (d >= 0) {
        if (++c->n_digits > MAX_SIZE_DIGITS)
            return false;
        c->left = c->left * 16 + (uint64_t)d;
        return true;
    }
    if (c->n_digits == 0 || b == '\n')
        return false;
    if (b == '\r') {
        c->state = CHUNK_SIZE_LF;
        return true;
    }
    if (c->state == CHUNK_SIZE && b != ';' && b != ' ' && b != '\t')
        return false;
    c->state = CHUNK_EXT;
    return true;
}

/* One byte after the last chunk. Returns false when it cannot be there. */
static bool trailer_byte(struct kg_http_chunks *c, char b)
{
    if (++c->n_line > MAX_TRAILER_BYTES)
        return false;
    switch (c->state) {
    case CHUNK_TRAILER:
        c->state = b == '\r' ? CHUNK_END_LF : CHUNK_TRAILER_IN;
        return b != '\n';
    case CHUNK_TRAILER_IN:
        if (b == '\r')
            c->state = CHUNK_TRAILER_LF;
        return b != '\n';
    case CHUNK_TRAILER_LF:
        c->state = CHUNK_TRAILER;
        return b == '\n';
    default:
        c->state = CHUNK_DONE;
        return b == '\n';
    }
}

int kg_http_chunks_feed(struct kg_http_chunks *c, const char *in, size_t n, size_t *n_used,
                        char *out, size_t *n_out)
{
    size_t i = 0, o = 0;
    bool good = true;

    while (good && i < n && c->state != CHUNK_DONE) {
        if (c->state == CHUNK_DATA) {
            size_t take = n - i < c->left ? n - i : (size_t)c->left;
            memmove(out + o, in + i, take);
            i += take;
            o += take;
            c->left -= take;
            if (c->left == 0)
                c->state = CHUNK_DATA_CR;
        } else if (c->state == CHUNK_DATA_CR) {
            good = in[i++] == '\r';
            c->state = CHUNK_DATA_LF;
        } else if (c->state == CHUNK_DATA_LF) {
            good = in[i++] == '\n';
            c->state = CHUNK_SIZE;
        } else if (c->state <= CHUNK_SIZE_LF) {
            good = size_byte(c, in[i++]);
        } else {
            good = trailer_byte(c, in[i++]);
        }
    }
    *n_used = i;
    *n_out = o;
    if (!good)
        return -1;
    return c->state == CHUNK_DONE ? 1 : 0;
}
