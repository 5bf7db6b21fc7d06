#include "comm_times.h"

#include "base/line.h"
#include "base/num.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_LINE "kedge-comm 1"
#define WORDS 8

struct reader {
    const char *path;
    struct kg_comm_times *t;
    struct kg_error *err;
    uint32_t line, room;
    int begun;
};

#define BAD(r, ...) bad((r), __VA_ARGS__)

__attribute__((format(printf, 2, 3))) static int bad(const struct reader *r, const char *fmt, ...)
{
    char what[160];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    return kg_fail(r->err, KG_EINVAL, "%.120s, line %u: %s", r->path, r->line, what);
}

static const char *const op_names[KG_COMM_N_OPS] = {
    [KG_COMM_ALL_REDUCE] = "all_reduce", [KG_COMM_REDUCE_SCATTER] = "reduce_scatter",
    [KG_COMM_ALL_GATHER] = "all_gather", [KG_COMM_ALL_TO_ALL] = "all_to_all",
    [KG_COMM_BROADCAST] = "broadcast",
};

const char *kg_comm_op_name(uint32_t op)
{
    return op > 0 && op < KG_COMM_N_OPS ? op_names[op] : "?";
}

static uint32_t op_of(const char *name)
{
    for (uint32_t op = 1; op < KG_COMM_N_OPS; op++) {
        if (strcmp(op_names[op], name) == 0)
            return op;
    }
    return 0;
}

static int is_curve(const struct kg_comm_time *t, const char *plugin, const char *algorithm,
                    uint32_t op, uint32_t ranks)
{
    return t->op == op && t->ranks == ranks && strcmp(t->plugin, plugin) == 0 &&
           strcmp(t->algorithm, algorithm) == 0;
}

/* By curve, then by bytes. */
static int by_curve(const void *a, const void *b)
{
    const struct kg_comm_time *x = a, *y = b;
    int c = strcmp(x->plugin, y->plugin);

    c = c != 0 ? c : strcmp(x->algorithm, y->algorithm);
    if (c != 0)
        return c;
    if (x->op != y->op || x->ranks != y->ranks)
        return x->op != y->op ? (x->op > y->op) * 2 - 1 : (x->ranks > y->ranks) * 2 - 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int append(struct reader *r, const struct kg_comm_time *row)
{
    struct kg_comm_times *t = r->t;

    if (t->n == KG_COMM_TIMES_ROWS)
        return BAD(r, "more than %u times", KG_COMM_TIMES_ROWS);
    if (t->n == r->room) {
        uint32_t room = r->room == 0 ? 64 : 2 * r->room;
        struct kg_comm_time *rows = realloc(t->rows, room * sizeof(*rows));
        if (rows == NULL)
            return kg_fail(r->err, KG_ENOMEM, "out of memory");
        t->rows = rows;
        r->room = room;
    }
    t->rows[t->n++] = *row;
    return KG_OK;
}

/* Puts the curves in order. */
static int finish(struct reader *r)
{
    struct kg_comm_times *t = r->t;

    if (t->n == 0)
        return BAD(r, "the file ends without a time");
    qsort(t->rows, t->n, sizeof(*t->rows), by_curve);
    for (uint32_t i = 1; i < t->n; i++) {
        const struct kg_comm_time *x = &t->rows[i];
        if (by_curve(&t->rows[i - 1], x) == 0)
            return kg_fail(r->err, KG_EINVAL, "%.120s: %s %s %s, %u ranks: %llu bytes twice",
                           r->path, x->plugin, x->algorithm, kg_comm_op_name(x->op), x->ranks,
                           (unsigned long long)x->bytes);
    }
    return KG_OK;
}

static int read_time(struct reader *r, char **w)
{
    struct kg_comm_time row = {.op = op_of(w[2])};
    uint64_t ranks;

    if (strlen(w[0]) >= KG_COMM_WORD || strlen(w[1]) >= KG_COMM_WORD)
        return BAD(r, "a name of %u letters or more", KG_COMM_WORD);
    (void)snprintf(row.plugin, sizeof(row.plugin), "%s", w[0]);
    (void)snprintf(row.algorithm, sizeof(row.algorithm), "%s", w[1]);
    if (row.op == 0)
        return BAD(r, "%.40s: no such collective", w[2]);
    if (kg_num_u64(w[3], &ranks) != KG_OK || ranks < 2 || ranks > 65536)
        return BAD(r, "ranks \"%.40s\": wanted 2 .. 65536", w[3]);
    row.ranks = (uint32_t)ranks;
    if (kg_num_u64(w[4], &row.bytes) != KG_OK || row.bytes == 0)
        return BAD(r, "bytes \"%.40s\": wanted a whole number from 1", w[4]);
    if (kg_num_f64(w[5], &row.us) != KG_OK || !(row.us > 0) || row.us > 1e12)
        return BAD(r, "time \"%.40s\": wanted microseconds above 0", w[5]);
    return append(r, &row);
}

static int read_line(struct reader *r, char *line)
{
    char *words[WORDS], *rest = line, *word;
    uint32_t n = 0;

    line[strcspn(line, "#\r\n")] = '\0';
    if (r->begun && strncmp(line, "about ", 6) == 0) {
        (void)snprintf(r->t->about, sizeof(r->t->about), "%.190s", line + 6);
        return KG_OK;
    }
    while ((word = strsep(&rest, " \t")) != NULL) {
        if (*word == '\0')
            continue;
        if (n == WORDS)
            return BAD(r, "more than %d words", WORDS);
        words[n++] = word;
    }
    if (n == 0)
        return KG_OK;
    if (!r->begun) {
        r->begun = n == 2 && strcmp(words[0], "kedge-comm") == 0 && strcmp(words[1], "1") == 0;
        return r->begun ? KG_OK : BAD(r, "wanted \"%s\" on the first line", FIRST_LINE);
    }
    if (strcmp(words[0], "time") != 0)
        return BAD(r, "%.40s: no such key", words[0]);
    return n == 7 ? read_time(r, words + 1)
                  : BAD(r, "time: wanted PLUGIN ALGORITHM OP RANKS BYTES US behind it");
}

static int read_all(struct reader *r, FILE *f)
{
    char line[256];
    int rc;

    while ((rc = kg_line_read(f, line, sizeof(line))) != KG_ENOENT) {
        r->line++;
        if (rc == KG_ELIMIT)
            return BAD(r, "a line over %u bytes", (unsigned)sizeof(line) - 2);
        if (rc != KG_OK)
            return BAD(r, "a byte of 0: this is no text");
        rc = read_line(r, line);
        if (rc != KG_OK)
            return rc;
    }
    if (ferror(f))
        return kg_fail(r->err, KG_EIO, "%.150s: %s", r->path, strerror(errno));
    return finish(r);
}

int kg_comm_times_read(const char *path, struct kg_comm_times *times, struct kg_error *err)
{
    struct kg_comm_times t = {0};
    struct reader r = {.path = path, .t = &t, .err = err};
    FILE *f = fopen(path, "r");

    if (f == NULL)
        return kg_fail(err, errno == ENOENT ? KG_ENOENT : KG_EIO, "%.150s: %s", path,
                       strerror(errno));
    int rc = read_all(&r, f);
    (void)fclose(f);
    if (rc == KG_OK)
        *times = t;
    else
        kg_comm_times_fini(&t);
    return rc;
}

void kg_comm_times_fini(struct kg_comm_times *t)
{
    free(t->rows);
    memset(t, 0, sizeof(*t));
}

void kg_comm_times_put(FILE *f, const char *plugin, const char *algorithm, uint32_t op,
                       uint32_t ranks, uint64_t bytes, double us)
{
    (void)fprintf(f, "time %s %s %s %u %llu %.3f\n", plugin, algorithm, kg_comm_op_name(op), ranks,
                  (unsigned long long)bytes, us);
}

static double line_at(const struct kg_comm_time *a, const struct kg_comm_time *b, uint64_t bytes)
{
    return a->us + (b->us - a->us) * ((double)bytes - (double)a->bytes) /
                       ((double)b->bytes - (double)a->bytes);
}

/* On one curve. */
static enum kg_comm_basis find_on(const struct kg_comm_times *t, const char *plugin,
                                  const char *algorithm, uint32_t op, uint32_t ranks,
                                  uint64_t bytes, double *us)
{
    const struct kg_comm_time *before = NULL, *last = NULL;

    for (uint32_t i = 0; i < t->n; i++) {
        const struct kg_comm_time *row = &t->rows[i];
        if (!is_curve(row, plugin, algorithm, op, ranks))
            continue;
        if (row->bytes == bytes) {
            *us = row->us;
            return KG_COMM_MEASURED;
        }
        before = last;
        last = row;
        if (row->bytes > bytes)
            break;
    }
    if (last == NULL)
        return KG_COMM_NOT_MEASURED;
    if (before == NULL) { /* below the first, or a curve of one point */
        *us = last->us;
        return KG_COMM_BEYOND;
    }
    double v = line_at(before, last, bytes);
    *us = v > last->us || last->bytes > bytes ? v : last->us;
    return last->bytes > bytes ? KG_COMM_BETWEEN : KG_COMM_BEYOND;
}

enum kg_comm_basis kg_comm_times_find(const struct kg_comm_times *t, const char **plugin,
                                      const char **algorithm, uint32_t op, uint32_t ranks,
                                      uint64_t bytes, double *us)
{
    enum kg_comm_basis basis = KG_COMM_NOT_MEASURED;
    const struct kg_comm_time *best = NULL;

    if (*plugin != NULL && *algorithm != NULL)
        return find_on(t, *plugin, *algorithm, op, ranks, bytes, us);
    for (uint32_t i = 0; i < t->n; i++) {
        const struct kg_comm_time *row = &t->rows[i];
        double v;
        if (row->op != op || row->ranks != ranks ||
            (*plugin != NULL && strcmp(row->plugin, *plugin) != 0) ||
            (best != NULL && is_curve(row, best->plugin, best->algorithm, op, ranks)))
            continue;
        enum kg_comm_basis b = find_on(t, row->plugin, row->algorithm, op, ranks, bytes, &v);
        if (best == NULL || v < *us) {
            *us = v;
            basis = b;
            best = row;
        }
    }
    if (best != NULL) {
        *plugin = best->plugin;
        *algorithm = best->algorithm;
    }
    return basis;
}
