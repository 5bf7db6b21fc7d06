#include "experiment/lines.h"

#include "base/buf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define CHUNK ((size_t)256 << 10)

struct kg_lines {
    char *name;
    gzFile file; /* NULL: memory */
    const char *data;
    size_t n_data, at;
    char *chunk; /* [CHUNK] of a file */
    struct kg_buf line;
    uint64_t number;
};

static struct kg_lines *lines_new(const char *name, struct kg_error *err)
{
    struct kg_lines *l = calloc(1, sizeof(*l));

    if (l == NULL || (l->name = strdup(name)) == NULL) {
        free(l);
        (void)kg_fail(err, KG_ENOMEM, "out of memory");
        return NULL;
    }
    kg_buf_init(&l->line, KG_LINE_MAX);
    return l;
}

int kg_lines_open(const char *path, struct kg_lines **lines, struct kg_error *err)
{
    struct kg_lines *l = lines_new(path, err);

    if (l == NULL) {
        return KG_ENOMEM;
    }
    errno = 0;
    l->file = gzopen(path, "rb");
    l->chunk = malloc(CHUNK);
    if (l->file == NULL || l->chunk == NULL) {
        int e = errno;
        kg_lines_close(l);
        if (e == 0 || e == ENOMEM) {
            return kg_fail(err, KG_ENOMEM, "out of memory");
        }
        return kg_fail(err, e == ENOENT ? KG_ENOENT : KG_EIO, "%s: %s", path, strerror(e));
    }
    (void)gzbuffer(l->file, CHUNK);
    *lines = l;
    return KG_OK;
}

int kg_lines_open_mem(const char *name, const void *data, size_t n, struct kg_lines **lines,
                      struct kg_error *err)
{
    struct kg_lines *l = lines_new(name, err);

    if (l == NULL) {
        return KG_ENOMEM;
    }
    l->data = data;
    l->n_data = n;
    *lines = l;
    return KG_OK;
}

void kg_lines_close(struct kg_lines *lines)
{
    if (lines == NULL) {
        return;
    }
    if (lines->file != NULL) {
        (void)gzclose(lines->file);
    }
    kg_buf_fini(&lines->line);
    free(lines->chunk);
    free(lines->name);
    free(lines);
}

/* More bytes of a file into the chunk: 1, 0 at the end, KG_EIO. */
static int refill(struct kg_lines *l, struct kg_error *err)
{
    if (l->file == NULL) {
        return 0;
    }
    errno = 0;
    int got = gzread(l->file, l->chunk, CHUNK);
    int code = Z_OK;
    const char *why = gzerror(l->file, &code);
    if (got < 0 || (got == 0 && code != Z_OK && code != Z_STREAM_END)) {
        return kg_fail(err, KG_EIO, "%s: line %llu: cannot be read: %s", l->name,
                       (unsigned long long)l->number + 1, code == Z_ERRNO ? strerror(errno) : why);
    }
    l->data = l->chunk;
    l->n_data = (size_t)got;
    l->at = 0;
    return got > 0;
}

/* One line, its end taken off, into l->line: 1, 0 at the end, or an error. */
static int read_line(struct kg_lines *l, struct kg_error *err)
{
    int any = 0;

    kg_buf_reset(&l->line);
    for (;;) {
        if (l->at == l->n_data) {
            int rc = refill(l, err);
            if (rc < 0) {
                return rc;
            }
            if (rc == 0) {
                return any;
            }
        }
        any = 1;
        const char *from = l->data + l->at;
        const char *end = memchr(from, '\n', l->n_data - l->at);
        size_t n = end != NULL ? (size_t)(end - from) : l->n_data - l->at;
        if (kg_buf_add(&l->line, from, n) != KG_OK) {
            return kg_fail(err, l->line.rc == KG_ENOMEM ? KG_ENOMEM : KG_EINVAL,
                           "%s: line %llu: %s", l->name, (unsigned long long)l->number + 1,
                           l->line.rc == KG_ENOMEM ? "out of memory" : "longer than 64 MiB");
        }
        l->at += n + (end != NULL);
        if (end != NULL) {
            return 1;
        }
    }
}

int kg_lines_next(struct kg_lines *lines, const char **text, size_t *n, struct kg_error *err)
{
    for (;;) {
        int rc = read_line(lines, err);
        if (rc <= 0) {
            return rc;
        }
        lines->number++;
        struct kg_buf *b = &lines->line;
        if (b->len > 0 && b->data[b->len - 1] == '\r') {
            b->data[--b->len] = '\0';
        }
        if (b->len > 0 && strspn(b->data, " \t") < b->len) {
            *text = b->data;
            *n = b->len;
            return 1;
        }
    }
}

uint64_t kg_lines_number(const struct kg_lines *lines)
{
    return lines->number;
}

const char *kg_lines_name(const struct kg_lines *lines)
{
    return lines->name;
}
