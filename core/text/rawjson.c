#include "text/rawjson.h"

#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

static bool is_white(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_white(struct kg_span s, size_t i)
{
    while (i < s.n && is_white(s.p[i])) {
        i++;
    }
    return i;
}

static int hex4(const char *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) {
            return -1;
        }
        v = v * 16 + d;
    }
    return v;
}

/* Each scan_ function reads from s.p[i] and returns the end of what it read, 0 if ill-formed. */
static size_t scan_string(struct kg_span s, size_t i)
{
    if (i >= s.n || s.p[i] != '"') {
        return 0;
    }
    for (i++; i < s.n;) {
        uint8_t c = (uint8_t)s.p[i];
        if (c == '"') {
            return i + 1;
        }
        if (c < 0x20) {
            return 0;
        }
        if (c == '\\') {
            if (i + 1 >= s.n) {
                return 0;
            }
            if (s.p[i + 1] == 'u') {
                if (s.n - i < 6 || hex4(s.p + i + 2) < 0) {
                    return 0;
                }
                i += 6;
            } else if (strchr("\"\\/bfnrt", s.p[i + 1]) != NULL && s.p[i + 1] != '\0') {
                i += 2;
            } else {
                return 0;
            }
            continue;
        }
        uint32_t cp;
        size_t len = c < 0x80 ? 1 : kg_utf8_decode(s.p + i, s.n - i, &cp);
        if (len == 0) {
            return 0;
        }
        i += len;
    }
    return 0;
}

static size_t scan_digits(struct kg_span s, size_t i)
{
    size_t from = i;
    while (i < s.n && s.p[i] >= '0' && s.p[i] <= '9') {
        i++;
    }
    return i > from ? i : 0;
}

static size_t scan_number(struct kg_span s, size_t i)
{
    i += s.p[i] == '-';
    if (i < s.n && s.p[i] == '0') {
        i++;
    } else {
        i = scan_digits(s, i);
    }
    if (i != 0 && i < s.n && s.p[i] == '.') {
        i = scan_digits(s, i + 1);
    }
    if (i != 0 && i < s.n && (s.p[i] == 'e' || s.p[i] == 'E')) {
        i++;
        i += i < s.n && (s.p[i] == '+' || s.p[i] == '-');
        i = scan_digits(s, i);
    }
    return i;
}

static size_t scan_word(struct kg_span s, size_t i, const char *word)
{
    size_t n = strlen(word);
    return s.n - i >= n && memcmp(s.p + i, word, n) == 0 ? i + n : 0;
}

static size_t scan_scalar(struct kg_span s, size_t i)
{
    switch (s.p[i]) {
    case '"':
        return scan_string(s, i);
    case 't':
        return scan_word(s, i, "true");
    case 'f':
        return scan_word(s, i, "false");
    case 'n':
        return scan_word(s, i, "null");
    default:
        return scan_number(s, i);
    }
}

/* Reads `"key" :` before a member's value. */
static size_t scan_key(struct kg_span s, size_t i)
{
    i = scan_string(s, skip_white(s, i));
    if (i == 0) {
        return 0;
    }
    i = skip_white(s, i);
    return i < s.n && s.p[i] == ':' ? i + 1 : 0;
}

/*
 * Where every object and array of a text ends, in the order they begin. Writing a value looks ends
 * up here: reading an inner value again at every level would cost its size times its depth.
 */
struct extents {
    struct extent {
        const char *from, *to;
    } * v; /* [n] */
    size_t n, cap;
    bool failed; /* out of memory */
};

/* Index of a new extent. */
static size_t extent_open(struct extents *all, const char *from)
{
    if (all->n == all->cap) {
        size_t cap = all->cap == 0 ? 64 : 2 * all->cap;
        struct extent *v = all->failed ? NULL : realloc(all->v, cap * sizeof(*v));
        if (v == NULL) {
            all->failed = true;
            return 0;
        }
        all->v = v;
        all->cap = cap;
    }
    all->v[all->n].from = from;
    return all->n++;
}

/*
 * One value without recursion: `open` remembers which bracket is open at each depth. `all`, if not
 * NULL, gets the extents met.
 */
static size_t scan_value(struct kg_span s, size_t i, struct extents *all)
{
    char open[KG_RAW_MAX_DEPTH];
    size_t extent[KG_RAW_MAX_DEPTH];
    size_t depth = 0;
    for (;;) {
        i = skip_white(s, i);
        if (i >= s.n) {
            return 0;
        }
        if (s.p[i] == '{' || s.p[i] == '[') {
            if (depth == KG_RAW_MAX_DEPTH) {
                return 0;
            }
            open[depth] = s.p[i] == '{' ? '}' : ']';
            extent[depth++] = all != NULL ? extent_open(all, s.p + i) : 0;
            i = skip_white(s, i + 1);
            if (i >= s.n || s.p[i] != open[depth - 1]) {
                if (open[depth - 1] == '}') {
                    i = scan_key(s, i);
                    if (i == 0) {
                        return 0;
                    }
                }
                continue;
            }
        } else {
            i = scan_scalar(s, i);
            if (i == 0) {
                return 0;
            }
            if (depth == 0) {
                return i;
            }
            i = skip_white(s, i);
        }
        while (i < s.n && depth > 0 && s.p[i] == open[depth - 1]) {
            i++;
            depth--;
            if (all != NULL && !all->failed) {
                all->v[extent[depth]].to = s.p + i;
            }
            if (depth == 0) {
                return i;
            }
            i = skip_white(s, i);
        }
        if (i >= s.n || s.p[i] != ',') {
            return 0;
        }
        i++;
        if (open[depth - 1] == '}') {
            i = scan_key(s, i);
            if (i == 0) {
                return 0;
            }
        }
    }
}

const char *kg_raw_type_name(enum kg_raw_type type)
{
    static const char *const names[] = {"string", "number", "boolean", "null", "object", "array"};
    return names[type];
}

enum kg_raw_type kg_raw_type_of(struct kg_span value)
{
    switch (value.p[0]) {
    case '"':
        return KG_RAW_STRING;
    case '{':
        return KG_RAW_OBJECT;
    case '[':
        return KG_RAW_ARRAY;
    case 't':
    case 'f':
        return KG_RAW_BOOLEAN;
    case 'n':
        return KG_RAW_NULL;
    default:
        return KG_RAW_NUMBER;
    }
}

ptrdiff_t kg_raw_value(struct kg_span text, struct kg_span *value)
{
    size_t from = skip_white(text, 0);
    size_t end = scan_value(text, from, NULL);
    if (end == 0) {
        return KG_EINVAL;
    }
    *value = (struct kg_span){text.p + from, end - from};
    return (ptrdiff_t)end;
}

/* End of the value at s.p[i], looked up if it is an object or array that `all` knows. */
static size_t value_end(struct kg_span s, size_t i, const struct extents *all)
{
    if (all == NULL || (s.p[i] != '{' && s.p[i] != '[')) {
        return scan_value(s, i, NULL);
    }
    size_t lo = 0, hi = all->n - 1;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (all->v[mid].from < s.p + i) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return (size_t)(all->v[lo].to - s.p);
}

static bool next_member(struct kg_span container, size_t *at, struct kg_raw_member *member,
                        const struct extents *all)
{
    /* Stands on the opening bracket, a comma, or behind a value. */
    size_t i = *at == 0 ? 1 : skip_white(container, *at);
    if (*at != 0) {
        if (container.p[i] != ',') {
            return false;
        }
        i++;
    }
    i = skip_white(container, i);
    if (container.p[i] == '}' || container.p[i] == ']') {
        return false;
    }
    member->key = (struct kg_span){NULL, 0};
    if (container.p[0] == '{') {
        size_t end = scan_string(container, i);
        member->key = (struct kg_span){container.p + i, end - i};
        i = skip_white(container, skip_white(container, end) + 1);
    }
    size_t end = value_end(container, i, all);
    member->value = (struct kg_span){container.p + i, end - i};
    *at = end;
    return true;
}

bool kg_raw_next(struct kg_span container, size_t *at, struct kg_raw_member *member)
{
    return next_member(container, at, member, NULL);
}

/* Compares a quoted key with plain text without building it, as long as it has no escapes. */
static bool key_is(struct kg_span key, const char *name)
{
    size_t n = strlen(name);
    if (memchr(key.p, '\\', key.n) == NULL) {
        return key.n == n + 2 && memcmp(key.p + 1, name, n) == 0;
    }
    struct kg_text plain = {0};
    bool same =
        kg_raw_unquote(key, &plain) == KG_OK && plain.n == n && memcmp(plain.v, name, n) == 0;
    kg_text_free(&plain);
    return same;
}

bool kg_raw_get(struct kg_span object, const char *name, struct kg_span *value)
{
    struct kg_raw_member m;
    bool found = false;
    for (size_t at = 0; kg_raw_next(object, &at, &m);) {
        if (key_is(m.key, name)) {
            *value = m.value;
            found = true;
        }
    }
    return found;
}

/* The character of the escape at p (p[0] is the backslash); *len is how much was read. */
static uint32_t escaped(const char *p, const char *end, size_t *len)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    *len = 2;
    if (p[1] != 'u') {
        const char *which = strchr(from, p[1]);
        return which != NULL ? (uint32_t)to[which - from] : (uint8_t)p[1];
    }
    *len = 6;
    uint32_t cp = (uint32_t)hex4(p + 2);
    if (cp >= 0xd800 && cp < 0xdc00 && end - p >= 12 && p[6] == '\\' && p[7] == 'u') {
        uint32_t low = (uint32_t)hex4(p + 8);
        if (low >= 0xdc00 && low < 0xe000) {
            *len = 12;
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    return cp;
}

int kg_raw_unquote(struct kg_span string, struct kg_text *out)
{
    const char *p = string.p + 1, *end = string.p + string.n - 1;
    while (p < end) {
        const char *slash = memchr(p, '\\', (size_t)(end - p));
        size_t plain = (size_t)((slash != NULL ? slash : end) - p);
        int rc = kg_text_add(out, p, plain);
        p += plain;
        if (rc == KG_OK && p < end) {
            char utf8[4];
            size_t len;
            uint32_t cp = escaped(p, end, &len);
            /* Half a surrogate pair is no character. */
            size_t n = kg_utf8_encode(cp, utf8);
            rc = n > 0 ? kg_text_add(out, utf8, n) : kg_text_puts(out, "\xef\xbf\xbd");
            p += len;
        }
        if (rc != KG_OK) {
            return rc;
        }
    }
    return kg_text_add(out, "", 0);
}

int kg_raw_escape(const char *text, size_t n, struct kg_text *out)
{
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = (uint8_t)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        static const char short_of[] = "btn\0fr"; /* 0x08..0x0d, none for 0x0b */
        char code[8];
        int len;
        if (c == '"' || c == '\\') {
            len = snprintf(code, sizeof(code), "\\%c", c);
        } else if (c >= 0x08 && c <= 0x0d && c != 0x0b) {
            len = snprintf(code, sizeof(code), "\\%c", short_of[c - 0x08]);
        } else {
            len = snprintf(code, sizeof(code), "\\u%04x", c);
        }
        if (kg_text_add(out, text + from, i - from) != KG_OK ||
            kg_text_add(out, code, (size_t)len) != KG_OK) {
            return KG_ENOMEM;
        }
        from = i + 1;
    }
    return from < n ? kg_text_add(out, text + from, n - from) : KG_OK;
}

/* A member with its decoded key, for sorting. */
struct sort_member {
    struct kg_raw_member m;
    struct kg_text key;
    size_t place; /* in the object */
};

/* UTF-8 sorts by bytes as code points do. */
static int by_key(const void *a, const void *b)
{
    const struct sort_member *x = a, *y = b;
    size_t n = x->key.n < y->key.n ? x->key.n : y->key.n;
    int c = n == 0 ? 0 : memcmp(x->key.v, y->key.v, n);
    if (c != 0) {
        return c;
    }
    if (x->key.n != y->key.n) {
        return x->key.n < y->key.n ? -1 : 1;
    }
    return x->place < y->place ? -1 : 1;
}

static int by_place(const void *a, const void *b)
{
    const struct sort_member *x = a, *y = b;
    return x->place < y->place ? -1 : 1;
}

static bool same_key(const struct sort_member *x, const struct sort_member *y)
{
    return x->key.n == y->key.n && (x->key.n == 0 || memcmp(x->key.v, y->key.v, x->key.n) == 0);
}

/* Members sorted by key; of equal ones one is kept, with the first place and the last value. */
static int sorted_members(struct kg_span object, const struct extents *ends,
                          struct sort_member **out, size_t *n_out)
{
    struct kg_raw_member m;
    size_t n = 0, at = 0, kept = 0;
    while (next_member(object, &at, &m, ends)) {
        n++;
    }
    struct sort_member *all = calloc(n + 1, sizeof(*all));
    int rc = all == NULL ? KG_ENOMEM : KG_OK;
    at = 0;
    for (size_t i = 0; i < n && rc == KG_OK; i++) {
        (void)next_member(object, &at, &all[i].m, ends);
        all[i].place = i;
        rc = kg_raw_unquote(all[i].m.key, &all[i].key);
    }
    if (rc == KG_OK) {
        qsort(all, n, sizeof(*all), by_key);
        for (size_t i = 0; i < n; i++) {
            if (kept > 0 && same_key(&all[kept - 1], &all[i])) {
                all[kept - 1].m = all[i].m;
                kg_text_free(&all[i].key);
            } else {
                all[kept++] = all[i];
            }
        }
        *out = all;
        *n_out = kept;
        return KG_OK;
    }
    for (size_t i = 0; all != NULL && i < n; i++) {
        kg_text_free(&all[i].key);
    }
    free(all);
    return rc;
}

static void free_members(struct sort_member *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        kg_text_free(&all[i].key);
    }
    free(all);
}

ptrdiff_t kg_raw_members(struct kg_span object, struct kg_raw_member **members)
{
    struct sort_member *all = NULL;
    size_t n = 0;
    if (sorted_members(object, NULL, &all, &n) != KG_OK) {
        return KG_ENOMEM;
    }
    qsort(all, n, sizeof(*all), by_place);
    struct kg_raw_member *list = calloc(n + 1, sizeof(*list));
    for (size_t i = 0; list != NULL && i < n; i++) {
        list[i] = all[i].m;
    }
    free_members(all, n);
    if (list == NULL) {
        return KG_ENOMEM;
    }
    *members = list;
    return (ptrdiff_t)n;
}

static int write_string(const char *text, size_t n, struct kg_text *out)
{
    if (kg_text_puts(out, "\"") != KG_OK || kg_raw_escape(text, n, out) != KG_OK) {
        return KG_ENOMEM;
    }
    return kg_text_puts(out, "\"");
}

static int write_value(struct kg_span value, const struct extents *ends, enum kg_raw_style style,
                       struct kg_text *out);

static int write_object(struct kg_span object, const struct extents *ends, enum kg_raw_style style,
                        struct kg_text *out)
{
    struct sort_member *all = NULL;
    size_t n = 0;
    int rc = sorted_members(object, ends, &all, &n);
    if (rc == KG_OK && style != KG_RAW_SORTED) {
        qsort(all, n, sizeof(*all), by_place);
    }
    if (rc == KG_OK) {
        rc = kg_text_puts(out, "{");
    }
    for (size_t i = 0; i < n && rc == KG_OK; i++) {
        if (i > 0) {
            rc = kg_text_puts(out, style == KG_RAW_SPACED ? ", " : ",");
        }
        if (rc == KG_OK) {
            rc = write_string(all[i].key.v, all[i].key.n, out);
        }
        if (rc == KG_OK) {
            rc = kg_text_puts(out, style == KG_RAW_SPACED ? ": " : ":");
        }
        if (rc == KG_OK) {
            rc = write_value(all[i].m.value, ends, style, out);
        }
    }
    free_members(all, n);
    return rc == KG_OK ? kg_text_puts(out, "}") : rc;
}

static int write_array(struct kg_span array, const struct extents *ends, enum kg_raw_style style,
                       struct kg_text *out)
{
    struct kg_raw_member m;
    int rc = kg_text_puts(out, "[");
    for (size_t at = 0; rc == KG_OK;) {
        bool first = at == 0;
        if (!next_member(array, &at, &m, ends)) {
            break;
        }
        if (!first) {
            rc = kg_text_puts(out, style == KG_RAW_SPACED ? ", " : ",");
        }
        if (rc == KG_OK) {
            rc = write_value(m.value, ends, style, out);
        }
    }
    return rc == KG_OK ? kg_text_puts(out, "]") : rc;
}

static int write_value(struct kg_span value, const struct extents *ends, enum kg_raw_style style,
                       struct kg_text *out)
{
    switch (kg_raw_type_of(value)) {
    case KG_RAW_OBJECT:
        return write_object(value, ends, style, out);
    case KG_RAW_ARRAY:
        return write_array(value, ends, style, out);
    case KG_RAW_STRING: {
        struct kg_text plain = {0};
        int rc = kg_raw_unquote(value, &plain);
        if (rc == KG_OK) {
            rc = write_string(plain.v, plain.n, out);
        }
        kg_text_free(&plain);
        return rc;
    }
    default:
        return kg_text_add(out, value.p, value.n);
    }
}

int kg_raw_write(struct kg_span value, enum kg_raw_style style, struct kg_text *out)
{
    struct extents ends = {0};
    (void)scan_value(value, 0, &ends);
    int rc = ends.failed ? KG_ENOMEM : write_value(value, &ends, style, out);
    free(ends.v);
    return rc;
}

/* Plain notation from 1e-4 to below 1e16, exponents outside, as most JSON writers have it. */
static int real_text(double v, struct kg_text *out)
{
    char text[48];
    int digits = 1;
    for (; digits < 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*e", digits - 1, v);
        if (strtod(text, NULL) == v) {
            break;
        }
    }
    (void)snprintf(text, sizeof(text), "%.*e", digits - 1, v);
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent >= -4 && exponent < 16) {
        int places = digits - 1 - exponent;
        (void)snprintf(text, sizeof(text), "%.*f", places > 1 ? places : 1, v);
    }
    return kg_text_puts(out, text);
}

static int json_text(const json_t *value, int depth, struct kg_text *out);

static int container_text(const json_t *value, int depth, struct kg_text *out)
{
    bool object = json_is_object(value);
    int rc = kg_text_puts(out, object ? "{" : "[");
    bool first = true;
    if (object) {
        const char *key;
        json_t *v;
        /* The iterator takes a mutable object but does not change it. */
        json_object_foreach((json_t *)(uintptr_t)value, key, v)
        {
            if (rc == KG_OK && !first) {
                rc = kg_text_puts(out, ",");
            }
            first = false;
            if (rc == KG_OK) {
                rc = write_string(key, strlen(key), out);
            }
            if (rc == KG_OK) {
                rc = kg_text_puts(out, ":");
            }
            if (rc == KG_OK) {
                rc = json_text(v, depth + 1, out);
            }
        }
    } else {
        for (size_t i = 0; i < json_array_size(value) && rc == KG_OK; i++) {
            if (i > 0) {
                rc = kg_text_puts(out, ",");
            }
            if (rc == KG_OK) {
                rc = json_text(json_array_get(value, i), depth + 1, out);
            }
        }
    }
    return rc == KG_OK ? kg_text_puts(out, object ? "}" : "]") : rc;
}

static int json_text(const json_t *value, int depth, struct kg_text *out)
{
    char number[32];
    if (depth > KG_RAW_MAX_DEPTH) {
        return KG_EINVAL;
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        return container_text(value, depth, out);
    case JSON_STRING:
        return write_string(json_string_value(value), json_string_length(value), out);
    case JSON_INTEGER:
        (void)snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return kg_text_puts(out, number);
    case JSON_REAL:
        return real_text(json_real_value(value), out);
    case JSON_TRUE:
        return kg_text_puts(out, "true");
    case JSON_FALSE:
        return kg_text_puts(out, "false");
    default:
        return kg_text_puts(out, "null");
    }
}

int kg_raw_from_json(const json_t *value, struct kg_text *out)
{
    return json_text(value, 1, out);
}
