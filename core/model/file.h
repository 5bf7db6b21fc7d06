/*
 * Files of a checkpoint folder. Symbolic links are followed (model caches are made of them), but
 * what they lead to must be a regular file. Errors name the path.
 */
#ifndef KEDGE_MODEL_FILE_H
#define KEDGE_MODEL_FILE_H

#include <kedge/types.h>

/*
 * Reads a whole file of at most `max` bytes. *text has a NUL after its *n bytes; the caller frees
 * it. KG_ENOENT: there is none; KG_EIO: not a regular file or a call failed; KG_EINVAL: too large.
 */
KG_CHECKED int kg_file_read(const char *path, size_t max, char **text, size_t *n,
                            struct kg_error *err);

/* Maps a whole file read-only; kg_file_unmap ends it. Codes as above; empty is KG_EINVAL. */
KG_CHECKED int kg_file_map(const char *path, const void **data, uint64_t *n, struct kg_error *err);
void kg_file_unmap(const void *data, uint64_t n); /* data NULL is allowed */

/* "dir/name" in new memory, or NULL. */
char *kg_file_join(const char *dir, const char *name);
/* 1 when the path exists, whatever it is. */
int kg_file_exists(const char *path);

/* A string out of a file made fit for one line of a message: control and non-ASCII bytes become
 * '?', a long one is cut. Returns buf. */
#define KG_PRINTABLE 128
const char *kg_printable(const char *s, char buf[KG_PRINTABLE]);

#endif
