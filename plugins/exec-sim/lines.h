/*
 * The text files exec-sim reads: a first line that says what it is, then one key and its values a
 * line, '#' begins a comment. Every error names file and line.
 */
#ifndef KEDGE_EXEC_SIM_LINES_H
#define KEDGE_EXEC_SIM_LINES_H

#include <kedge/abi.h>
#include <stdio.h>

#define SIM_LINE_BYTES 1000

struct sim_lines {
    FILE *f;          /* NULL but while it is read */
    const char *path; /* not owned */
    uint32_t line;    /* of the last one read, from 1 */
    struct kg_error *err;
    char buf[SIM_LINE_BYTES];
};

/* An error of the line read last. */
#define SIM_BAD(l, fmt, ...) \
    kg_fail((l)->err, KG_ECONFIG, "%s:%u: " fmt, (l)->path, (l)->line, __VA_ARGS__)

/* One line: its first word, and what is behind it, NULL for nothing; blanks are single, there is no
 * comment. Both may be cut up and are good until it returns, KG_OK or the error that ends the file.
 */
typedef int sim_lines_pair(void *ctx, const char *key, char *rest);

/* Reads a file whose first line that is not empty must be `first`, and calls `pair` for each of the
 * others that is not. Afterwards SIM_BAD speaks of the last line. KG_ENOENT, KG_EIO, KG_ECONFIG, or
 * what `pair` returned. */
int sim_lines_read(struct sim_lines *l, const char *path, const char *first, sim_lines_pair *pair,
                   void *ctx, struct kg_error *err);

/* A number from 0 to `most` and nothing behind it; `text` may be NULL. KG_ECONFIG. */
int sim_lines_number(const struct sim_lines *l, const char *key, const char *text, double most,
                     double *v);

#endif
