/*
 * The log: one logfmt line per event on a descriptor (stderr),
 *     time=... level=info module=http msg="listening" host=127.0.0.1 port=8000
 * The same message of a module appears at most KG_LOG_PER_SECOND times a second; the next line of
 * it that gets through says how many were dropped. Any thread; a line is one write, so lines do not
 * mix. Prompt and output text is never logged; other text of users goes through kg_log_quote.
 */
#ifndef KEDGE_BASE_LOG_H
#define KEDGE_BASE_LOG_H

#include "base/clock.h"

#include <kedge/host.h>

#define KG_LOG_PER_SECOND 10
#define KG_LOG_SITES 256
#define KG_LOG_MODULES 16
#define KG_LOG_LINE 1024 /* bytes of a line at most; longer ones end in "..." */

/* Rate state of one message; private. */
struct kg_log_site {
    _Atomic uint64_t key;    /* hash of module and message, 0 unused */
    _Atomic uint64_t window; /* second << 20 | lines in it */
    _Atomic uint64_t dropped;
};

struct kg_log {
    int fd;                /* not owned; -1 drops everything */
    uint32_t level;        /* enum kg_log_level: the lowest importance written */
    struct kg_clock clock; /* for the rate limit */
    uint32_t n_modules;
    struct {
        char name[24];
        uint32_t level;
    } modules[KG_LOG_MODULES]; /* levels of single modules */
    struct kg_log_site sites[KG_LOG_SITES];
};

/* A log to `fd` at `level` with the machine's clock. Needs no fini. */
void kg_log_init(struct kg_log *log, int fd, uint32_t level);
/* Level of one module; before threads start. KG_ELIMIT when there are too many. */
int kg_log_set_level(struct kg_log *log, const char *module, uint32_t level);
/* Whether a line of this level would be written; cheap. log may be NULL (false). */
int kg_log_on(const struct kg_log *log, uint32_t level, const char *module);

/*
 * Writes one line. `msg` is a fixed text: it is what the rate limit counts. `kv_fmt` formats
 * "key=value key=value", "" for none. log may be NULL.
 */
__attribute__((format(printf, 5, 6))) void kg_log_line(struct kg_log *log, uint32_t level,
                                                       const char *module, const char *msg,
                                                       const char *kv_fmt, ...);
/* The same without the rate limit, for records that must be complete: one line a request. */
__attribute__((format(printf, 5, 6))) void kg_log_record(struct kg_log *log, uint32_t level,
                                                         const char *module, const char *msg,
                                                         const char *kv_fmt, ...);
/* As kg_log_line for a message that is formatted itself; counted by `site`, a fixed text. */
void kg_log_text(struct kg_log *log, uint32_t level, const char *module, const char *site,
                 const char *text);

/* Text of a user as one quoted word: control bytes, quotes and broken UTF-8 escaped, at most 64
 * bytes of it. Use .text inside the call: it lives until the end of the full expression. */
struct kg_quoted {
    char text[96];
};
struct kg_quoted kg_log_quote(const char *s, size_t n);

/* "error" .. "trace", and back: KG_EINVAL for an unknown name. */
const char *kg_log_level_name(uint32_t level);
KG_CHECKED int kg_log_level_parse(const char *name, uint32_t *level);

#endif
