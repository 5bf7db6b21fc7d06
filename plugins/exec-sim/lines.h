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
    FILE *f;
    const char *path; /* not owned */
    uint32_t line;    /* of the last one read, from 1 */
    struct kg_error *err;
    char buf[SIM_LINE_BYTES];
};

/* An error of the line read last. */
#define SIM_BAD(l, fmt, ...) \
    kg_fail((l)->err, KG_ECONFIG, "%s:%u: " fmt, (l)->path, (l)->line, __VA_ARGS__)

/* Opens a file whose first line that is not empty must be `first`. KG_ENOENT, KG_EIO, KG_ECONFIG;
 * nothing is open then. */
int sim_lines_open(struct sim_lines *l, const char *path, const char *first, struct kg_error *err);
/* 1: *text is the next line that is not empty, without comment, blanks made one; may be cut up, and
 * is good until the next call. 0: the end. Negative: KG_ECONFIG, KG_EIO. */
int sim_lines_next(struct sim_lines *l, char **text);
void sim_lines_close(struct sim_lines *l);

/* A number from 0 to `most` and nothing behind it; `text` may be NULL. KG_ECONFIG. */
int sim_lines_number(const struct sim_lines *l, const char *key, const char *text, double most,
                     double *v);

#endif
