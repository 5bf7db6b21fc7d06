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

/* 1: *text is the next line that is not empty; 0: the end. Negative: KG_ECONFIG, KG_EIO. */
static int next(struct sim_lines *l, char **text)
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

static int read_all(struct sim_lines *l, const char *first, sim_lines_pair *pair, void *ctx)
{
    char *text = NULL;
    int rc = next(l, &text);

    if (rc == 0 || (rc == 1 && strcmp(text, first) != 0)) {
        return SIM_BAD(l, "wanted \"%s\", found \"%.40s\"", first, rc == 1 ? text : "");
    }
    while (rc > 0 && (rc = next(l, &text)) > 0) {
        const char *key = strsep(&text, " ");
        rc = pair(ctx, key, text);
        rc = rc == KG_OK ? 1 : rc;
    }
    return rc;
}

int sim_lines_read(struct sim_lines *l, const char *path, const char *first, sim_lines_pair *pair,
                   void *ctx, struct kg_error *err)
{
    *l = (struct sim_lines){.path = path, .err = err, .f = fopen(path, "r")};
    if (l->f == NULL) {
        return kg_fail(err, errno == ENOENT ? KG_ENOENT : KG_EIO, "%s: %s", path, strerror(errno));
    }
    int rc = read_all(l, first, pair, ctx);
    (void)fclose(l->f);
    l->f = NULL;
    return rc;
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
