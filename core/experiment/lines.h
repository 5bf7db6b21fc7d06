/* Lines of a text file, plain or gzip, read one at a time; or of bytes in memory. */
#ifndef KEDGE_EXPERIMENT_LINES_H
#define KEDGE_EXPERIMENT_LINES_H

#include <kedge/types.h>

#define KG_LINE_MAX ((size_t)64 << 20) /* bytes of a line at most */

struct kg_lines;

/* Opens a file; gzip is recognised by its contents. KG_ENOENT, KG_EIO, KG_ENOMEM. */
KG_CHECKED int kg_lines_open(const char *path, struct kg_lines **lines, struct kg_error *err);
/* The same over n bytes that outlive it, `name` in place of the path. KG_ENOMEM. */
KG_CHECKED int kg_lines_open_mem(const char *name, const void *data, size_t n,
                                 struct kg_lines **lines, struct kg_error *err);
void kg_lines_close(struct kg_lines *lines); /* NULL is allowed */

/*
 * The next line without its end, NUL behind it, valid until the next call; blank lines are passed
 * over. Returns 1, 0 at the end, KG_EINVAL (a line over KG_LINE_MAX), KG_EIO (broken gzip),
 * KG_ENOMEM.
 */
int kg_lines_next(struct kg_lines *lines, const char **text, size_t *n, struct kg_error *err);
/* Number of the last line, from 1; and the name given at open. */
uint64_t kg_lines_number(const struct kg_lines *lines);
const char *kg_lines_name(const struct kg_lines *lines);

#endif
