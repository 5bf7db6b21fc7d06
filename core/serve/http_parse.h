/*
 * HTTP/1.1 requests as bytes: one head at a time, and the chunked coding of bodies. Strict, so
 * that no proxy in front can read a request differently: lines end with CRLF, no folded headers,
 * no Content-Length beside Transfer-Encoding, no repeated ones. No I/O, no allocation; any input.
 */
#ifndef KEDGE_SERVE_HTTP_PARSE_H
#define KEDGE_SERVE_HTTP_PARSE_H

#include "text/text.h"

#define KG_HTTP_MAX_HEADERS 100

struct kg_http_header {
    struct kg_span name, value; /* value without surrounding blanks */
};

/* A request head. Spans point into the buffer that was parsed. */
struct kg_http_head {
    struct kg_span method;
    struct kg_span path;     /* target up to '?', begins with '/', or is "*"; not decoded */
    struct kg_span query;    /* after '?', empty if none */
    uint32_t minor;          /* of HTTP/1.x: 0 or 1 */
    bool keep_alive;         /* the connection may be used again */
    bool chunked;            /* the body is chunked; content_length is 0 */
    bool has_length;         /* Content-Length was given */
    bool expect_continue;    /* the client waits for 100 before it sends the body */
    uint64_t content_length; /* bytes */
    uint32_t n_headers;
    struct kg_http_header headers[KG_HTTP_MAX_HEADERS];
};

/*
 * Length of the head at the start of buf, its final empty line included; 0 when it is not there
 * yet. `from` is where to begin looking: what an earlier call was given, less 3.
 */
size_t kg_http_head_find(const char *buf, size_t n, size_t from);

/*
 * Parses a whole head of n bytes as kg_http_head_find measured it. Returns 0, or the HTTP status
 * to refuse it with (400, 414, 417, 431, 501, 505) and a constant text in *why.
 */
int kg_http_head_parse(const char *buf, size_t n, struct kg_http_head *head, const char **why);

/* Value of the first header of that name (any case); a span with p == NULL when absent. */
struct kg_span kg_http_header_get(const struct kg_http_head *head, const char *name);

/* True when the span equals the text; kg_span_is_nocase ignores ASCII case. */
bool kg_span_is(struct kg_span span, const char *text);
bool kg_span_is_nocase(struct kg_span span, const char *text);

/* Decoder of one chunked body. All zero is the start. */
struct kg_http_chunks {
    uint32_t state;
    uint32_t n_line;   /* bytes of the size line, or of all trailers, so far */
    uint32_t n_digits; /* of the chunk size */
    uint64_t left;     /* bytes of the current chunk still to come */
};

/*
 * Decodes up to n bytes. Writes body bytes to out (at most n; out may be in) and their number to
 * *n_out, the bytes used to *n_used. Returns 1 when the body is complete (bytes after it are not
 * used), 0 when more is needed, -1 when the coding is broken.
 */
int kg_http_chunks_feed(struct kg_http_chunks *c, const char *in, size_t n, size_t *n_used,
                        char *out, size_t *n_out);

#endif
