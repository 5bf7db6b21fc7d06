#include "serve/json.h"

#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Error texts may quote a client's bytes, cut anywhere: keep them valid. */
static void make_valid(char *s)
{
    for (size_t n = strlen(s), i = 0; i < n;) {
        uint32_t cp;
        size_t len = kg_utf8_decode(s + i, n - i, &cp);
        if (len == 0 || (unsigned char)s[i] < ' ') {
            s[i] = '?';
            len = 1;
        }
        i += len;
    }
}

__attribute__((format(printf, 5, 0))) static void fill(struct kg_api_error *err, int status,
                                                       const char *code, const char *param,
                                                       const char *fmt, va_list ap)
{
    err->status = status;
    err->code = code;
    (void)snprintf(err->param, sizeof(err->param), "%s", param);
    (void)vsnprintf(err->message, sizeof(err->message), fmt, ap);
    make_valid(err->param);
    make_valid(err->message);
}

int kg_api_refuse(struct kg_api_error *err, const char *param, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fill(err, 400, "invalid_value", param, fmt, ap);
    va_end(ap);
    return KG_EINVAL;
}

int kg_api_fail(struct kg_api_error *err, int status, const char *code, const char *param,
                const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fill(err, status, code, param, fmt, ap);
    va_end(ap);
    return KG_EINVAL;
}

#define SCAN_MAX_DEPTH 1024
#define CONTAINER_VALUES 8 /* parsed, {} and [] take about eight numbers' memory */

/* One open array or object, outermost first. */
struct level {
    const char *key; /* of the member being read, not terminated; objects */
    uint32_t n_key;
    uint32_t index; /* of the element being read; arrays */
    bool is_array, in_value;
};

struct scan {
    const char *text;
    size_t n, at;
    uint32_t depth;
    uint64_t values; /* so far, containers counted several times */
    struct level levels[SCAN_MAX_DEPTH];
};

/* "messages[2].content": where the scanner stands. Long keys are cut. */
static void scan_path(const struct scan *s, char *buf, size_t n)
{
    size_t o = 0;

    buf[0] = '\0';
    for (uint32_t d = 0; d < s->depth && o + 64 < n; d++) {
        const struct level *l = &s->levels[d];
        int w = 0;
        if (l->is_array)
            w = snprintf(buf + o, n - o, "[%u]", l->index);
        else if (l->key != NULL && l->in_value)
            w = snprintf(buf + o, n - o, "%s%.*s", d > 0 ? "." : "",
                         (int)(l->n_key > 48 ? 48 : l->n_key), l->key);
        o += w > 0 ? (size_t)w : 0;
    }
}

static int scan_refuse(const struct scan *s, struct kg_api_error *err, const char *what)
{
    char path[160];

    scan_path(s, path, sizeof(path));
    return kg_api_refuse(err, path, "%s%s%s (byte %zu of the body)", path,
                         path[0] != '\0' ? ": " : "", what, s->at);
}

/* Four hexadecimal digits at `at`; -1 when they are not. */
static int32_t hex4(const struct scan *s, size_t at)
{
    int32_t v = 0;

    for (size_t i = at; i < at + 4; i++) {
        char c = i < s->n ? s->text[i] : 'x';
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return -1;
        v = v * 16 + d;
    }
    return v;
}

/* At a backslash. Moves behind the escape; surrogates must come in pairs. */
static int scan_escape(struct scan *s, struct kg_api_error *err)
{
    int32_t v, w;

    if (s->at + 1 >= s->n || s->text[s->at + 1] != 'u') {
        s->at += 2;
        return KG_OK;
    }
    v = hex4(s, s->at + 2);
    if (v < 0xd800 || v > 0xdfff) {
        s->at += 2; /* not hexadecimal: the parser will say so */
        return KG_OK;
    }
    w = s->at + 7 < s->n && s->text[s->at + 6] == '\\' && s->text[s->at + 7] == 'u'
            ? hex4(s, s->at + 8)
            : -1;
    if (v > 0xdbff || w < 0xdc00 || w > 0xdfff)
        return scan_refuse(s, err, "half of a surrogate pair is not a character");
    s->at += 12;
    return KG_OK;
}

/* At an opening quote. Moves behind the closing one (or to the end). */
static int scan_string(struct scan *s, struct kg_api_error *err)
{
    s->at++;
    while (s->at < s->n && s->text[s->at] != '"') {
        uint32_t cp;
        size_t len;
        if (s->text[s->at] == '\\') {
            int rc = scan_escape(s, err);
            if (rc != KG_OK)
                return rc;
            continue;
        }
        len = kg_utf8_decode(s->text + s->at, s->n - s->at, &cp);
        if (len == 0)
            return scan_refuse(s, err, "the text is not valid UTF-8");
        s->at += len;
    }
    s->at++;
    return KG_OK;
}

/* A string in the text: a key when an object waits for one. */
static int scan_string_at(struct scan *s, struct kg_api_error *err)
{
    struct level *l = s->depth > 0 ? &s->levels[s->depth - 1] : NULL;
    size_t from = s->at + 1;
    int rc = scan_string(s, err);

    if (rc == KG_OK && l != NULL && !l->is_array && !l->in_value) {
        l->key = s->text + from;
        l->n_key = s->at - 1 - from > 4096 ? 4096 : (uint32_t)(s->at - 1 - from);
    }
    return rc;
}

static void scan_mark(struct scan *s, char c)
{
    struct level *l = s->depth > 0 ? &s->levels[s->depth - 1] : NULL;

    if (l == NULL)
        return;
    if (c == ':') {
        l->in_value = true;
    } else if (c == ',') {
        l->in_value = false;
        l->index++;
    }
}

int kg_json_scan(const char *text, size_t n, uint32_t max_depth, uint32_t max_values,
                 struct kg_api_error *err)
{
    struct scan s;

    s.text = text;
    s.n = n;
    s.at = 0;
    s.depth = 0;
    s.values = 0;
    while (s.at < n) {
        char c = text[s.at];
        s.values += c == ',' ? 1 : c == '[' || c == '{' ? CONTAINER_VALUES : 0;
        if (s.values > max_values) {
            char what[64];
            (void)snprintf(what, sizeof(what), "more than %u values", max_values);
            return scan_refuse(&s, err, what);
        }
        if (c == '"') {
            int rc = scan_string_at(&s, err);
            if (rc != KG_OK)
                return rc;
            continue;
        }
        if (c == '[' || c == '{') {
            char what[64];
            if (s.depth == max_depth || s.depth == SCAN_MAX_DEPTH) {
                (void)snprintf(what, sizeof(what), "nested deeper than %u levels", max_depth);
                return scan_refuse(&s, err, what);
            }
            s.levels[s.depth++] = (struct level){.is_array = c == '['};
        } else if ((c == ']' || c == '}') && s.depth > 0) {
            s.depth--;
        } else if ((unsigned char)c >= 0x80) {
            return scan_refuse(&s, err, "a byte outside any string is not JSON");
        } else {
            scan_mark(&s, c);
        }
        s.at++;
    }
    return KG_OK;
}

/*
 * Whether memory for parsing n bytes is there. The parser drops bytes of a string whose buffer
 * cannot grow, one slow failure each, so it must not run into that.
 */
static bool has_memory(size_t n)
{
    void *p = n < SIZE_MAX / 8 ? malloc(4 * n + 65536) : NULL;

    free(p);
    return p != NULL;
}

/* Names the key that the parser met a second time: its text ends with near '"KEY"',
 * as it was written. */
static int refuse_double(const json_error_t *e, struct kg_api_error *err)
{
    const char *key = strstr(e->text, "'\"");
    size_t n = key != NULL ? strcspn(key + 2, "\"") : 0;
    char name[80];

    (void)snprintf(name, sizeof(name), "%.*s", (int)(n < 60 ? n : 60), n > 0 ? key + 2 : "");
    return kg_api_refuse(err, name, "line %d, column %d: \"%s\" stands twice in one object", e->line,
                         e->column, name);
}

static int load(const char *text, size_t n, uint32_t max_depth, uint32_t max_values, size_t flags,
                json_t **root, struct kg_api_error *err)
{
    json_error_t e;
    json_t *v;
    char what[80];
    int rc;

    if (n == 0)
        return kg_api_refuse(err, "", "the body is empty; a JSON object was expected");
    rc = kg_json_scan(text, n, max_depth, max_values, err);
    if (rc != KG_OK)
        return rc;
    if (!has_memory(n)) {
        (void)kg_api_fail(err, 500, "out_of_memory", "", "the server is out of memory");
        return KG_ENOMEM;
    }
    v = json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_ANY | flags, &e);
    if (v == NULL && (json_error_code(&e) == json_error_out_of_memory || e.text[0] == '\0')) {
        (void)kg_api_fail(err, 500, "out_of_memory", "", "the server is out of memory");
        return KG_ENOMEM;
    }
    if (v == NULL && json_error_code(&e) == json_error_duplicate_key)
        return refuse_double(&e, err);
    if (v == NULL)
        return kg_api_fail(err, 400, "invalid_json", "",
                           "the body is not valid JSON: line %d, column %d: %s", e.line, e.column,
                           e.text);
    if (!json_is_object(v)) {
        rc = kg_api_refuse(err, "", "the body must be a JSON object, not %s",
                           kg_json_describe(v, what, sizeof(what)));
        json_decref(v);
        return rc;
    }
    *root = v;
    return KG_OK;
}

int kg_json_load(const char *text, size_t n, uint32_t max_depth, uint32_t max_values, json_t **root,
                 struct kg_api_error *err)
{
    return load(text, n, max_depth, max_values, 0, root, err);
}

int kg_json_load_once(const char *text, size_t n, uint32_t max_depth, uint32_t max_values,
                      json_t **root, struct kg_api_error *err)
{
    return load(text, n, max_depth, max_values, JSON_REJECT_DUPLICATES, root, err);
}

const json_t *kg_json_get(const json_t *obj, const char *name)
{
    const json_t *v = json_object_get(obj, name);

    return v == NULL || json_is_null(v) ? NULL : v;
}

const char *kg_json_describe(const json_t *value, char *buf, size_t n)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        (void)snprintf(buf, n, "the string \"%.40s\"", json_string_value(value));
        return buf;
    case JSON_INTEGER:
        (void)snprintf(buf, n, "the number %lld", (long long)json_integer_value(value));
        return buf;
    case JSON_REAL:
        (void)snprintf(buf, n, "the number %g", json_real_value(value));
        return buf;
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

/* The message of a wrong field: "path: must be WHAT, not VALUE". */
__attribute__((format(printf, 5, 6))) static int wrong(struct kg_api_error *err, const char *where,
                                                       const char *name, const json_t *v,
                                                       const char *fmt, ...)
{
    char path[160], must[160], what[80];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(must, sizeof(must), fmt, ap);
    va_end(ap);
    (void)snprintf(path, sizeof(path), "%s%s%s", where, where[0] != '\0' ? "." : "", name);
    return kg_api_refuse(err, path, "%s must be %s, not %s", path, must,
                         kg_json_describe(v, what, sizeof(what)));
}

/* True and the value when v is a whole number (7 or 7.0). */
static bool whole(const json_t *v, int64_t *out)
{
    double d;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    if (!json_is_real(v))
        return false;
    d = json_real_value(v);
    if (d != floor(d) || fabs(d) > 9007199254740992.0)
        return false;
    *out = (int64_t)d;
    return true;
}

int kg_json_u32(const json_t *obj, const char *where, const char *name, uint32_t min, uint32_t max,
                uint32_t *out, struct kg_api_error *err)
{
    const json_t *v = kg_json_get(obj, name);
    int64_t x;

    if (v == NULL)
        return KG_OK;
    if (!whole(v, &x) || x < (int64_t)min || x > (int64_t)max)
        return wrong(err, where, name, v, "a whole number from %u to %u", min, max);
    *out = (uint32_t)x;
    return KG_OK;
}

int kg_json_i64(const json_t *obj, const char *where, const char *name, int64_t *out,
                struct kg_api_error *err)
{
    const json_t *v = kg_json_get(obj, name);
    int64_t x;

    if (v == NULL)
        return KG_OK;
    if (!whole(v, &x))
        return wrong(err, where, name, v, "a whole number");
    *out = x;
    return KG_OK;
}

int kg_json_f32(const json_t *obj, const char *where, const char *name, double min, double max,
                float *out, struct kg_api_error *err)
{
    const json_t *v = kg_json_get(obj, name);
    double x;

    if (v == NULL)
        return KG_OK;
    x = json_number_value(v);
    if (!json_is_number(v) || !(x >= min && x <= max))
        return wrong(err, where, name, v, "a number from %g to %g", min, max);
    *out = (float)x;
    return KG_OK;
}

int kg_json_bool(const json_t *obj, const char *where, const char *name, bool *out,
                 struct kg_api_error *err)
{
    const json_t *v = kg_json_get(obj, name);

    if (v == NULL)
        return KG_OK;
    if (!json_is_boolean(v))
        return wrong(err, where, name, v, "true or false");
    *out = json_is_true(v);
    return KG_OK;
}

int kg_json_str(const json_t *obj, const char *where, const char *name, const char **out,
                struct kg_api_error *err)
{
    const json_t *v = kg_json_get(obj, name);

    if (v == NULL)
        return KG_OK;
    if (!json_is_string(v))
        return wrong(err, where, name, v, "a string");
    if (strlen(json_string_value(v)) != json_string_length(v))
        return wrong(err, where, name, v, "a string without zero bytes");
    *out = json_string_value(v);
    return KG_OK;
}

int kg_json_array(const json_t *obj, const char *where, const char *name, const json_t **out,
                  struct kg_api_error *err)
{
    const json_t *v = kg_json_get(obj, name);

    if (v == NULL)
        return KG_OK;
    if (!json_is_array(v))
        return wrong(err, where, name, v, "an array");
    *out = v;
    return KG_OK;
}

int kg_json_object(const json_t *obj, const char *where, const char *name, const json_t **out,
                   struct kg_api_error *err)
{
    const json_t *v = kg_json_get(obj, name);

    if (v == NULL)
        return KG_OK;
    if (!json_is_object(v))
        return wrong(err, where, name, v, "an object");
    *out = v;
    return KG_OK;
}
