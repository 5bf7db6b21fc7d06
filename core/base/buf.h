/*
 * A growable byte buffer with a hard cap. The first failure (over the cap, no memory) is kept in
 * `rc` and makes every later append a no-op, so a writer may check once at the end. The bytes are
 * always followed by a NUL that is not counted.
 */
#ifndef KEDGE_BASE_BUF_H
#define KEDGE_BASE_BUF_H

#include <kedge/types.h>
#include <stdbool.h>
#include <string.h>

struct kg_buf {
    char *data; /* [len] bytes and a NUL; NULL while empty and never grown */
    size_t len; /* bytes used */
    size_t cap; /* bytes allocated */
    size_t max; /* bytes `len` may reach */
    int rc;     /* KG_OK, KG_ELIMIT past max, KG_ENOMEM */
};

/* An empty buffer that never holds more than max_bytes (0: no limit but memory). */
void kg_buf_init(struct kg_buf *b, size_t max_bytes);
/* Frees the bytes; the buffer may be used again after kg_buf_init. */
void kg_buf_fini(struct kg_buf *b);
/* Forgets contents and error, keeps the memory. */
void kg_buf_reset(struct kg_buf *b);

/* Room for `more` bytes beyond len. KG_ELIMIT, KG_ENOMEM, or the error already kept. */
int kg_buf_reserve(struct kg_buf *b, size_t more);

/* Append; each returns b->rc. On failure nothing of the call was appended. */
int kg_buf_add(struct kg_buf *b, const void *p, size_t n);
int kg_buf_put_u64(struct kg_buf *b, uint64_t v); /* decimal */

/* Here for the compiler to see the length of what is written: streams write little else. */
static inline int kg_buf_puts(struct kg_buf *b, const char *s)
{
    return kg_buf_add(b, s, strlen(s));
}

static inline int kg_buf_putc(struct kg_buf *b, char c)
{
    return kg_buf_add(b, &c, 1);
}

__attribute__((format(printf, 2, 3))) int kg_buf_printf(struct kg_buf *b, const char *fmt, ...);
__attribute__((format(printf, 2, 0))) int kg_buf_vprintf(struct kg_buf *b, const char *fmt,
                                                         va_list ap);

/* Appends n bytes of text as the inside of a JSON string (no quotes). Bytes that are not UTF-8
 * become U+FFFD, one per broken sequence. */
int kg_buf_json_escape(struct kg_buf *b, const char *s, size_t n);
/* The same with quotes around it. */
int kg_buf_json_str(struct kg_buf *b, const char *s, size_t n);
/* A finite number in the shortest form that reads back equal; null for NaN and infinity. */
int kg_buf_json_f64(struct kg_buf *b, double v);

/* A member of a JSON object that is being written, "key":value, with a comma before it unless the
 * text so far is empty or ends in '{' or ','. A key is plain: nothing in it needs an escape. str:
 * a NULL text is null; f64: as kg_buf_json_f64. A failure is kept in rc. */
void kg_buf_key_str(struct kg_buf *b, const char *key, const char *text);
void kg_buf_key_f64(struct kg_buf *b, const char *key, double v);
void kg_buf_key_u64(struct kg_buf *b, const char *key, uint64_t v);
void kg_buf_key_bool(struct kg_buf *b, const char *key, bool v);

/* Drops n bytes (at most len) from the front; O(rest). */
void kg_buf_consume(struct kg_buf *b, size_t n);
/* The text so far, "" when empty; valid until the next append. */
const char *kg_buf_cstr(const struct kg_buf *b);

#endif
