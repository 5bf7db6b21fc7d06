#include "model/reader.h"

#include "model/file.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const json_t *kg_read_get(const struct kg_reader *r, const char *key)
{
    const json_t *v = json_object_get(r->obj, key);
    return v == NULL || json_is_null(v) ? NULL : v;
}

int kg_read_missing(const struct kg_reader *r, const char *key)
{
    return kg_fail(r->err, KG_EINVAL, "%.200s: %s%s is missing", r->file, r->at, key);
}

int kg_read_wrong(const struct kg_reader *r, const char *key, const char *want)
{
    return kg_fail(r->err, KG_EINVAL, "%.200s: %s%s must be %s", r->file, r->at, key, want);
}

int kg_read_u32(const struct kg_reader *r, const char *key, uint32_t min, uint32_t max,
                uint32_t def, uint32_t *out)
{
    const json_t *v = kg_read_get(r, key);

    if (v == NULL) {
        if (def == KG_NONE) {
            return kg_read_missing(r, key);
        }
        *out = def;
        return KG_OK;
    }
    if (!json_is_integer(v)) {
        return kg_read_wrong(r, key, "an integer");
    }
    json_int_t i = json_integer_value(v);
    if (i < (json_int_t)min || i > (json_int_t)max) {
        return kg_fail(r->err, KG_EINVAL,
                       "%.200s: %s%s is %" JSON_INTEGER_FORMAT ", must be in %" PRIu32 "..%" PRIu32,
                       r->file, r->at, key, i, min, max);
    }
    *out = (uint32_t)i;
    return KG_OK;
}

int kg_read_float(const struct kg_reader *r, const char *key, double min, double max, double def,
                  float *out)
{
    const json_t *v = kg_read_get(r, key);

    if (v == NULL) {
        if (isnan(def)) {
            return kg_read_missing(r, key);
        }
        *out = (float)def;
        return KG_OK;
    }
    if (!json_is_number(v)) {
        return kg_read_wrong(r, key, "a number");
    }
    double d = json_number_value(v);
    if (!(d >= min && d <= max)) {
        return kg_fail(r->err, KG_EINVAL, "%.200s: %s%s is %g, must be in %g..%g", r->file, r->at,
                       key, d, min, max);
    }
    *out = (float)d;
    return KG_OK;
}

int kg_read_bool(const struct kg_reader *r, const char *key, uint32_t def, uint32_t *out)
{
    const json_t *v = kg_read_get(r, key);

    if (v == NULL && def == KG_NONE) {
        return kg_read_missing(r, key);
    }
    if (v != NULL && !json_is_boolean(v)) {
        return kg_read_wrong(r, key, "true or false");
    }
    *out = v == NULL ? def : json_is_true(v) ? 1 : 0;
    return KG_OK;
}

int kg_read_word(const struct kg_reader *r, const char *key, const char *const *words,
                 uint32_t *out)
{
    const json_t *v = kg_read_get(r, key);
    char buf[KG_PRINTABLE];

    if (v == NULL) {
        return kg_read_missing(r, key);
    }
    if (!json_is_string(v)) {
        return kg_read_wrong(r, key, "a string");
    }
    for (uint32_t i = 0; words[i] != NULL; i++) {
        if (strcmp(json_string_value(v), words[i]) == 0) {
            *out = i;
            return KG_OK;
        }
    }
    return kg_fail(r->err, KG_EINVAL, "%.200s: %s%s \"%s\" is not supported (known: %s%s%s)",
                   r->file, r->at, key, kg_printable(json_string_value(v), buf), words[0],
                   words[1] != NULL ? ", " : "", words[1] != NULL ? words[1] : "");
}

int kg_read_enter(const struct kg_reader *r, const char *key, const char *at, struct kg_reader *in)
{
    const json_t *v = kg_read_get(r, key);

    if (v == NULL) {
        return kg_read_missing(r, key);
    }
    if (!json_is_object(v)) {
        return kg_read_wrong(r, key, "an object");
    }
    *in = (struct kg_reader){.file = r->file, .at = at, .obj = v, .err = r->err};
    return KG_OK;
}

json_t *kg_read_parse(const char *file, const char *text, size_t n, struct kg_error *err)
{
    json_error_t e;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);

    if (root == NULL) {
        (void)kg_fail(err, KG_EINVAL, "%.200s:%d: %s", file, e.line, e.text);
        return NULL;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        (void)kg_fail(err, KG_EINVAL, "%.200s: is not a JSON object", file);
        return NULL;
    }
    return root;
}
