/* Lines of a text file that a person wrote. */
#ifndef KEDGE_BASE_LINE_H
#define KEDGE_BASE_LINE_H

#include <kedge/types.h>

#include <stdio.h>

/* The next line of f, with its end of line where the file has one, as text in line[room]
 * (room >= 2). KG_OK; KG_ENOENT at the end of the file or where reading failed (see ferror);
 * KG_ELIMIT when it does not fit; KG_EINVAL at a byte of 0, behind which text would be lost.
 * Reads no more than room bytes, whatever the file is. */
KG_CHECKED int kg_line_read(FILE *f, char *line, size_t room);

#endif
