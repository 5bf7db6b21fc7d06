/*
 * JSON by its text: finds where a value begins and ends, so that it can be passed on exactly as it
 * was written (1e2 stays 1e2, which a parser that goes through double cannot promise). Strict RFC
 * 8259 in UTF-8, nesting up to KG_RAW_MAX_DEPTH; nothing here recurses deeper than that.
 */
#ifndef KEDGE_TEXT_RAWJSON_H
#define KEDGE_TEXT_RAWJSON_H

#include "text/text.h"
#include <jansson.h>

#define KG_RAW_MAX_DEPTH 256

enum kg_raw_type {
    KG_RAW_STRING,
    KG_RAW_NUMBER,
    KG_RAW_BOOLEAN,
    KG_RAW_NULL,
    KG_RAW_OBJECT,
    KG_RAW_ARRAY,
};

/* JSON's own word for a type: "string", "number", "boolean", "null", "object", "array". */
const char *kg_raw_type_name(enum kg_raw_type type);

/* Type of a value that kg_raw_value accepted, by its first character. */
enum kg_raw_type kg_raw_type_of(struct kg_span value);

/*
 * The value at the start of text, white space before it skipped: its own characters in *value, how
 * many bytes of text were read (white space and value) as the result. KG_EINVAL if there is no
 * well-formed value.
 */
ptrdiff_t kg_raw_value(struct kg_span text, struct kg_span *value);

/* One member of an object. The key is as written, quotes included. */
struct kg_raw_member {
    struct kg_span key;
    struct kg_span value;
};

/*
 * Members of a well-formed object, or elements of a well-formed array (key then is empty), one per
 * call; *at starts as 0. Returns false behind the last one.
 */
bool kg_raw_next(struct kg_span container, size_t *at, struct kg_raw_member *member);

/* The last member called `name` (plain text) of a well-formed object; false if absent. */
bool kg_raw_get(struct kg_span object, const char *name, struct kg_span *value);

/* Appends the characters of a well-formed JSON string. A lone surrogate gives U+FFFD. KG_ENOMEM. */
int KG_CHECKED kg_raw_unquote(struct kg_span string, struct kg_text *out);

/* Appends text as the inside of a JSON string: quote, backslash and controls are escaped.
 * KG_ENOMEM. */
int KG_CHECKED kg_raw_escape(const char *text, size_t n, struct kg_text *out);

enum kg_raw_style {
    KG_RAW_SORTED, /* keys in code point order at every level, separators "," and ":" */
    KG_RAW_SPACED, /* keys as they come, separators ", " and ": " */
    KG_RAW_TIGHT,  /* keys as they come, separators "," and ":" */
};

/*
 * Appends a well-formed value in a style. Numbers keep their spelling, strings are written with as
 * few escapes as possible, of equal keys the last value stays (at the first one's place).
 * KG_ENOMEM.
 */
int KG_CHECKED kg_raw_write(struct kg_span value, enum kg_raw_style style, struct kg_text *out);

/*
 * Appends a parsed value as tight JSON text; reals with the fewest digits that read back equal,
 * with
 * ".0" when they have no fraction. KG_ENOMEM; KG_EINVAL when nested deeper than KG_RAW_MAX_DEPTH.
 */
int KG_CHECKED kg_raw_from_json(const json_t *value, struct kg_text *out);

/*
 * Members of a well-formed object in the order of first appearance, of equal keys the last value.
 * *members [return value] belongs to the caller (free). KG_ENOMEM.
 */
ptrdiff_t kg_raw_members(struct kg_span object, struct kg_raw_member **members);

#endif
