#include "cost.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    const char *path;
    uint32_t line, seen; /* seen: bit per key below */
    struct sim_cost *cost;
    struct kg_error *err;
};

#define BAD(r, fmt, ...) \
    kg_fail((r)->err, KG_ECONFIG, "%s:%u: " fmt, (r)->path, (r)->line, __VA_ARGS__)

/* A finite number >= 0 and nothing behind it. */
static int number(struct reader *r, const char *key, const char *text, double *v)
{
    char *end;

    errno = 0;
    *v = text != NULL ? strtod(text, &end) : 0;
    if (text == NULL || end == text || *end != '\0' || errno != 0 || !(*v >= 0 && *v <= 1e15)) {
        return BAD(r, "%s: wanted a number from 0 to 1e15, found \"%.40s\"", key,
                   text != NULL ? text : "");
    }
    return KG_OK;
}

static int read_point(struct reader *r, char *rest)
{
    struct sim_cost *c = r->cost;
    const char *first = strsep(&rest, " ");
    double rows, ns;

    int rc = number(r, "rows", first, &rows);
    if (rc == KG_OK) {
        rc = number(r, "rows", rest, &ns);
    }
    if (rc != KG_OK) {
        return rc;
    }
    if (rows < 1 || rows > 1e6 || rows != floor(rows) || c->n == SIM_COST_POINTS) {
        return BAD(r, "rows: wanted an integer 1 .. 1000000, and at most %d points",
                   SIM_COST_POINTS);
    }
    if (c->n > 0 && (rows <= c->rows[c->n - 1] || ns < c->ns[c->n - 1])) {
        return BAD(r, "rows: %.0f rows in %.0f ns after %u in %.0f: both must rise", rows, ns,
                   c->rows[c->n - 1], c->ns[c->n - 1]);
    }
    c->rows[c->n] = (uint32_t)rows;
    c->ns[c->n++] = ns;
    return KG_OK;
}

static int read_pair(struct reader *r, const char *key, char *value)
{
    struct sim_cost *c = r->cost;
    const struct {
        const char *key;
        double *v;
    } keys[] = {{"decode_context_ns", &c->decode_context_ns},
                {"prefill_context_ns", &c->prefill_context_ns},
                {"state_copy_ns", &c->state_copy_ns},
                {"move_mib_ns", &c->move_mib_ns},
                {"draft_ns", &c->draft_ns}};

    if (strcmp(key, "rows") == 0) {
        return read_point(r, value);
    }
    if (strcmp(key, "name") == 0 && value != NULL && value[0] != '\0') {
        (void)snprintf(c->name, sizeof(c->name), "%s", value);
        return KG_OK;
    }
    for (uint32_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (strcmp(key, keys[i].key) == 0) {
            if (r->seen & 1u << i) {
                return BAD(r, "%s: given twice", key);
            }
            r->seen |= 1u << i;
            return number(r, key, value, keys[i].v);
        }
    }
    return BAD(r, "%.40s: no such key", key);
}

/* Comment and blanks off both ends; runs of blanks become one. */
char *sim_clean(char *s)
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

static int read_lines(struct reader *r, FILE *f)
{
    char buf[256];
    int begun = 0;

    while (fgets(buf, sizeof(buf), f) != NULL) {
        r->line++;
        if (strchr(buf, '\n') == NULL && !feof(f)) {
            return BAD(r, "%s", "a line over 255 bytes");
        }
        char *rest = sim_clean(buf), *key;
        if (rest[0] == '\0') {
            continue;
        }
        if (!begun && strcmp(rest, "kedge-cost 1") != 0) {
            return BAD(r, "wanted \"kedge-cost 1\", found \"%.40s\"", rest);
        }
        key = strsep(&rest, " ");
        int rc = begun ? read_pair(r, key, rest) : KG_OK;
        if (rc != KG_OK) {
            return rc;
        }
        begun = 1;
    }
    if (ferror(f)) {
        return kg_fail(r->err, KG_EIO, "%s: cannot be read", r->path);
    }
    return r->cost->n > 0 ? KG_OK : BAD(r, "%s", "rows: no point");
}

int sim_cost_read(const char *path, struct sim_cost *cost, struct kg_error *err)
{
    struct reader r = {.path = path, .cost = cost, .err = err};
    FILE *f = fopen(path, "r");

    if (f == NULL) {
        return kg_fail(err, errno == ENOENT ? KG_ENOENT : KG_EIO, "%s: %s", path, strerror(errno));
    }
    memset(cost, 0, sizeof(*cost));
    (void)snprintf(cost->name, sizeof(cost->name), "table");
    int rc = read_lines(&r, f);
    (void)fclose(f);
    return rc;
}

static double rows_ns(const struct sim_cost *c, double rows)
{
    uint32_t i = 1;

    if (rows <= c->rows[0] || c->n == 1) {
        return c->ns[0];
    }
    while (i < c->n - 1 && rows > c->rows[i]) {
        i++;
    }
    double share = (rows - c->rows[i - 1]) / (c->rows[i] - c->rows[i - 1]);
    return c->ns[i - 1] + share * (c->ns[i] - c->ns[i - 1]);
}

uint64_t sim_whole_ns(double ns)
{
    if (!(ns > 0)) {
        return 0;
    }
    return ns < 1e15 ? (uint64_t)(ns + 0.5) : (uint64_t)1e15;
}

uint64_t sim_cost_step(const struct sim_cost *cost, const struct sim_work *work)
{
    double ns = rows_ns(cost, (double)work->rows);

    ns += cost->decode_context_ns * work->decode_context;
    ns += cost->prefill_context_ns * work->prefill_context;
    ns += cost->state_copy_ns * work->copies;
    ns += cost->move_mib_ns * work->moved_mib;
    ns += work->drafted ? cost->draft_ns : 0;
    return sim_whole_ns(ns);
}
