/* Option rows (struct kg_opt): text to field, and the checks a row itself must pass. */
#ifndef KEDGE_CORE_OPT_H
#define KEDGE_CORE_OPT_H

#include "base/arena.h"
#include "base/buf.h"

#include <kedge/abi.h>

/*
 * Parses `text` into the field of `conf` the row names. Strings are copied into `strings`.
 * KG_EINVAL with a text that says what was found and what is wanted; nothing is written then.
 */
KG_CHECKED int kg_opt_parse(const struct kg_opt *row, const char *text, void *conf,
                            struct kg_arena *strings, struct kg_error *err);
/* The row of that name, or NULL. rows may be NULL. */
const struct kg_opt *kg_opt_find(const struct kg_opt *rows, const char *name);
/* Fills every field of conf from the defaults of verified rows. */
KG_CHECKED int kg_opt_defaults(const struct kg_opt *rows, void *conf, struct kg_arena *strings,
                               struct kg_error *err);
/* Whether the rows are sane: legal unique names, known types, fields inside conf_size and
 * aligned, ranges in order, choices, docs, defaults that parse. KG_EABI. */
KG_CHECKED int kg_opt_verify(const struct kg_opt *rows, size_t conf_size, struct kg_error *err);
/* What values are legal, in words: "64 .. 65536", "ratio, uniform", "yes or no". */
void kg_opt_wanted(const struct kg_opt *row, struct kg_buf *b);

/* Whether a name of an option or a metric is a-z, then a-z 0-9 _. */
bool kg_opt_name_ok(const char *s);

#endif
