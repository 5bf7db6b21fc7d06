#include "base/buf.h"

#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void kg_buf_init(struct kg_buf *b, size_t max_bytes)
{
    *b = (struct kg_buf){.max = max_bytes != 0 ? max_bytes : SIZE_MAX / 2};
}

void kg_buf_fini(struct kg_buf *b)
{
    free(b->data);
    b->data = NULL;
    b->len = 0;
    b->cap = 0;
}

void kg_buf_reset(struct kg_buf *b)
{
    b->len = 0;
    b->rc = KG_OK;
    if (b->data != NULL)
        b->data[0] = '\0';
}

int kg_buf_reserve(struct kg_buf *b, size_t more)
{
    if (b->rc != KG_OK)
        return b->rc;
    if (more > b->max - b->len) {
        b->rc = KG_ELIMIT;
        return b->rc;
    }
    size_t need = b->len + more + 1;
    if (need <= b->cap)
        return KG_OK;
    size_t cap = b->cap < 64 ? 64 : b->cap;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    if (cap > b->max && b->max + 1 >= need)
        cap = b->max + 1;
    char *data = realloc(b->data, cap);
    if (data == NULL) {
        b->rc = KG_ENOMEM;
        return b->rc;
    }
    b->data = data;
    b->cap = cap;
    return KG_OK;
}

int kg_buf_add(struct kg_buf *b, const void *p, size_t n)
{
    if ((b->rc != KG_OK || n >= b->cap - b->len || n > b->max - b->len) &&
        kg_buf_reserve(b, n) != KG_OK)
        return b->rc;
    if (n > 0)
        memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = '\0';
    return KG_OK;
}

int kg_buf_put_u64(struct kg_buf *b, uint64_t v)
{
    char text[20];
    size_t at = sizeof(text);

    do {
        text[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v != 0);
    return kg_buf_add(b, text + at, sizeof(text) - at);
}

int kg_buf_vprintf(struct kg_buf *b, const char *fmt, va_list ap)
{
    va_list again;

    if (b->rc != KG_OK)
        return b->rc;
    va_copy(again, ap);
    size_t room = b->cap - b->len;
    int n = vsnprintf(room != 0 ? b->data + b->len : NULL, room, fmt, ap);
    if (n >= 0 && (size_t)n >= room && kg_buf_reserve(b, (size_t)n) == KG_OK)
        n = vsnprintf(b->data + b->len, b->cap - b->len, fmt, again);
    va_end(again);
    if (n < 0)
        b->rc = KG_EINVAL;
    if (b->rc == KG_OK && (size_t)n > b->max - b->len)
        b->rc = KG_ELIMIT;
    if (b->rc == KG_OK)
        b->len += (size_t)n;
    if (b->data != NULL)
        b->data[b->len] = '\0';
    return b->rc;
}

int kg_buf_printf(struct kg_buf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int rc = kg_buf_vprintf(b, fmt, ap);
    va_end(ap);
    return rc;
}

/* Whether a byte stands for itself inside a JSON string. */
static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

/* The two-letter escape of a byte, or 0. */
static char short_escape(unsigned char c)
{
    switch (c) {
    case '"':
        return '"';
    case '\\':
        return '\\';
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    default:
        return 0;
    }
}

int kg_buf_json_escape(struct kg_buf *b, const char *s, size_t n)
{
    size_t start = b->len;
    size_t plain = 0; /* first byte not yet copied */
    size_t i = 0;

    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        uint32_t cp;

        if (is_plain(c)) {
            i++;
            continue;
        }
        size_t len = c < 0x80 ? 1 : kg_utf8_decode(s + i, n - i, &cp);
        if (c >= 0x80 && len > 0) {
            i += len;
            continue;
        }
        (void)kg_buf_add(b, s + plain, i - plain);
        if (len == 0) {
            i += kg_utf8_broken(s + i, n - i);
            (void)kg_buf_puts(b, "\xef\xbf\xbd");
        } else {
            i++;
            if (short_escape(c) != 0)
                (void)kg_buf_add(b, (const char[2]){'\\', short_escape(c)}, 2);
            else
                (void)kg_buf_printf(b, "\\u%04x", c);
        }
        plain = i;
    }
    if (plain < n) /* s may be NULL when n is 0 */
        (void)kg_buf_add(b, s + plain, n - plain);
    if (b->rc != KG_OK && b->data != NULL) {
        b->len = start;
        b->data[start] = '\0';
    }
    return b->rc;
}

int kg_buf_json_str(struct kg_buf *b, const char *s, size_t n)
{
    size_t start = b->len;

    (void)kg_buf_putc(b, '"');
    (void)kg_buf_json_escape(b, s, n);
    (void)kg_buf_putc(b, '"');
    if (b->rc != KG_OK && b->data != NULL) {
        b->len = start;
        b->data[start] = '\0';
    }
    return b->rc;
}

int kg_buf_json_f64(struct kg_buf *b, double v)
{
    char text[40];

    if (!isfinite(v))
        return kg_buf_puts(b, "null");
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    return kg_buf_puts(b, text);
}

static void put_key(struct kg_buf *b, const char *key)
{
    char last = b->len > 0 ? b->data[b->len - 1] : '{';

    (void)kg_buf_printf(b, "%s\"%s\":", last == '{' || last == ',' ? "" : ",", key);
}

void kg_buf_key_str(struct kg_buf *b, const char *key, const char *text)
{
    put_key(b, key);
    if (text != NULL)
        (void)kg_buf_json_str(b, text, strlen(text));
    else
        (void)kg_buf_puts(b, "null");
}

void kg_buf_key_f64(struct kg_buf *b, const char *key, double v)
{
    put_key(b, key);
    (void)kg_buf_json_f64(b, v);
}

void kg_buf_key_u64(struct kg_buf *b, const char *key, uint64_t v)
{
    put_key(b, key);
    (void)kg_buf_put_u64(b, v);
}

void kg_buf_key_bool(struct kg_buf *b, const char *key, bool v)
{
    put_key(b, key);
    (void)kg_buf_puts(b, v ? "true" : "false");
}

void kg_buf_consume(struct kg_buf *b, size_t n)
{
    if (b->data == NULL)
        return;
    if (n > b->len)
        n = b->len;
    memmove(b->data, b->data + n, b->len - n + 1);
    b->len -= n;
}

const char *kg_buf_cstr(const struct kg_buf *b)
{
    return b->data != NULL ? b->data : "";
}
