#include "lines.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Comment and blanks off both ends; runs of blanks become one. */
static char *clean(char *s)
{
    char *out = s;
    const char *in = s + strspn(s, " \t");

    for (; *in != '\0' && *in != '#' && *in != '\n' && *in != '\r'; in++) {
        char c = *in == '\t' ? ' ' : *in;
        if (c != ' ' || (out > s && out[-1] != ' ')) {
            *out++ = c;
        }
    }
    while (out > s && out[-1] == ' ') {
        out--;
    }
    *out = '\0';
    return s;
}

int sim_lines_next(struct sim_lines *l, char **text)
{
    while (fgets(l->buf, sizeof(l->buf), l->f) != NULL) {
        l->line++;
        if (strchr(l->buf, '\n') == NULL && !feof(l->f)) {
            return SIM_BAD(l, "a line over %d bytes", SIM_LINE_BYTES - 1);
        }
        char *s = clean(l->buf);
        if (s[0] != '\0') {
            *text = s;
            return 1;
        }
    }
    return ferror(l->f) ? kg_fail(l->err, KG_EIO, "%s: cannot be read", l->path) : 0;
}

int sim_lines_open(struct sim_lines *l, const char *path, const char *first, struct kg_error *err)
{
    char *text = NULL;

    *l = (struct sim_lines){.path = path, .err = err, .f = fopen(path, "r")};
    if (l->f == NULL) {
        return kg_fail(err, errno == ENOENT ? KG_ENOENT : KG_EIO, "%s: %s", path, strerror(errno));
    }
    int rc = sim_lines_next(l, &text);
    if (rc == 0 || (rc == 1 && strcmp(text, first) != 0)) {
        rc = SIM_BAD(l, "wanted \"%s\", found \"%.40s\"", first, rc == 1 ? text : "");
    }
    if (rc < 0) {
        sim_lines_close(l);
        return rc;
    }
    return KG_OK;
}

void sim_lines_close(struct sim_lines *l)
{
    if (l->f != NULL) {
        (void)fclose(l->f);
    }
    l->f = NULL;
}

int sim_lines_number(const struct sim_lines *l, const char *key, const char *text, double most,
                     double *v)
{
    char *end;

    *v = text != NULL ? strtod(text, &end) : 0;
    if (text == NULL || end == text || *end != '\0' || !(*v >= 0 && *v <= most)) {
        return SIM_BAD(l, "%s: wanted a number from 0 to %g, found \"%.40s\"", key, most,
                       text != NULL ? text : "");
    }
    return KG_OK;
}
