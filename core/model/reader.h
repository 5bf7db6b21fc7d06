/*
 * Values of a config.json, checked as they are read. Every refusal names file and key; the first
 * error is the caller's to return. Internal to core/model.
 */
#ifndef KEDGE_MODEL_READER_H
#define KEDGE_MODEL_READER_H

#include <kedge/types.h>

#include <jansson.h>

/* Where a value is read from: an object of the file and the path to it, for messages. */
struct kg_reader {
    const char *file;
    const char *at; /* "" or "text_config." or ... */
    const json_t *obj;
    struct kg_error *err;
};

/* Value of a key; JSON null counts as absent. */
const json_t *kg_read_get(const struct kg_reader *r, const char *key);
/* Fills the error; returns KG_EINVAL. */
int kg_read_missing(const struct kg_reader *r, const char *key);
int kg_read_wrong(const struct kg_reader *r, const char *key, const char *want);
/* Integer in min..max. Absent: `def`, or an error when def is KG_NONE. */
int kg_read_u32(const struct kg_reader *r, const char *key, uint32_t min, uint32_t max,
                uint32_t def, uint32_t *out);
/* Number in min..max. Absent: `def`, or an error when def is NaN. */
int kg_read_float(const struct kg_reader *r, const char *key, double min, double max, double def,
                  float *out);
/* true or false. Absent: `def`, or an error when def is KG_NONE. */
int kg_read_bool(const struct kg_reader *r, const char *key, uint32_t def, uint32_t *out);
/* A string that must be one of the NULL-ended `words`; *out is its index. */
int kg_read_word(const struct kg_reader *r, const char *key, const char *const *words,
                 uint32_t *out);
/* An object under a key, as a reader of its own; `at` is the full path with a dot. */
int kg_read_enter(const struct kg_reader *r, const char *key, const char *at, struct kg_reader *in);
/* Text to an object, the caller's to decref; NULL with the error filled. */
json_t *kg_read_parse(const char *file, const char *text, size_t n, struct kg_error *err);

#endif
