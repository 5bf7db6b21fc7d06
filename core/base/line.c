#include "base/line.h"

int kg_line_read(FILE *f, char *line, size_t room)
{
    size_t n = 0;
    int c = 0;

    while (c != '\n' && (c = getc(f)) != EOF) {
        if (c == '\0') {
            return KG_EINVAL;
        }
        if (n == room - 1) {
            return KG_ELIMIT;
        }
        line[n++] = (char)c;
    }
    line[n] = '\0';
    return n > 0 && !ferror(f) ? KG_OK : KG_ENOENT;
}
