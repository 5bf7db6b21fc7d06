#include "surface.h"
#include "lines.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct sim_lines lines;
    struct sim_surface *s;
    uint32_t n_row; /* points of the row of steps at hand */
};

#define BAD(r, fmt, ...) SIM_BAD(&(r)->lines, fmt, __VA_ARGS__)

int sim_surface_is(const char *path)
{
    char buf[64] = "";
    FILE *f = fopen(path, "r");

    if (f != NULL) {
        (void)(fgets(buf, sizeof(buf), f) != NULL);
        (void)fclose(f);
    }
    return strncmp(buf, "kedge-surface ", 14) == 0;
}

static int numbers(struct reader *r, const char *key, char *rest, double *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int rc = sim_lines_number(&r->lines, key, strsep(&rest, " "), 1e15, &v[i]);
        if (rc != KG_OK) {
            return rc;
        }
    }
    return rest == NULL ? KG_OK : BAD(r, "%s: \"%.40s\" behind it", key, rest);
}

/* The exponent of a power of two below 2^n, or n. */
static uint32_t exponent(double v, uint32_t n)
{
    uint32_t i = 0;

    while (i < n && ldexp(1, (int)i) != v) {
        i++;
    }
    return i;
}

static int read_step(struct reader *r, const double *v)
{
    struct sim_surface *s = r->s;
    uint32_t i = exponent(v[0], 2 * SIM_SURFACE_SEQS), j = exponent(v[1], SIM_SURFACE_ROWS);

    /* The first row says how many points there are; a hole in another would be a step of no time.
     */
    int begins = s->n_seqs == 0 || (j == 0 && r->n_row == s->n_rows && i / 2 == s->n_seqs);
    r->n_row = begins ? 0 : r->n_row;
    if (i % 2 != 0 || i / 2 >= SIM_SURFACE_SEQS || j >= SIM_SURFACE_ROWS || j != r->n_row ||
        i / 2 + 1 != s->n_seqs + (uint32_t)begins || (i > 0 && j >= s->n_rows)) {
        return BAD(r, "step %g %g: not the point that comes next", v[0], v[1]);
    }
    /* Lines that fall would go on below zero, past their last point. */
    if ((j > 0 && v[2] < s->step[i / 2][j - 1]) || (i > 0 && v[2] < s->step[i / 2 - 1][j])) {
        return BAD(r, "step %g %g: %g ns, less than with fewer rows or sequences", v[0], v[1],
                   v[2]);
    }
    s->n_seqs = i / 2 + 1;
    s->n_rows = i == 0 ? j + 1 : s->n_rows;
    r->n_row++;
    s->step[i / 2][j] = v[2];
    return KG_OK;
}

static int read_pair(void *ctx, const char *key, char *rest)
{
    struct reader *r = ctx;
    struct sim_surface *s = r->s;
    double v[3];
    int rc;

    if (rest == NULL) {
        return BAD(r, "%.40s: nothing behind it", key);
    }
    if (strcmp(key, "token_ns") == 0) {
        return numbers(r, key, rest, &s->token_ns, 1);
    }
    if (strcmp(key, "prompt_token_ns") == 0) {
        return numbers(r, key, rest, &s->prompt_token_ns, 1);
    }
    if (strcmp(key, "draft_token_ns") == 0) {
        return numbers(r, key, rest, &s->draft_token_ns, 1);
    }
    if (strcmp(key, "step") == 0) {
        rc = numbers(r, key, rest, v, 3);
        return rc == KG_OK ? read_step(r, v) : rc;
    }
    if (strcmp(key, "chunk") == 0) {
        rc = numbers(r, key, rest, v, 2);
        if (rc == KG_OK && (s->n_chunk == SIM_SURFACE_ROWS || ldexp(1, (int)s->n_chunk) != v[0])) {
            return BAD(r, "chunk %g: not the point that comes next", v[0]);
        }
        if (rc == KG_OK && s->n_chunk > 0 && v[1] < s->chunk[s->n_chunk - 1]) {
            return BAD(r, "chunk %g: %g ns, less than with fewer rows", v[0], v[1]);
        }
        if (rc == KG_OK) {
            s->chunk[s->n_chunk++] = v[1];
        }
        return rc;
    }
    if (strcmp(key, "draft") == 0) {
        rc = numbers(r, key, rest, v, 3);
        double rows = rc == KG_OK ? v[0] * v[1] : 0;
        if (rc == KG_OK && s->n_draft < 64 &&
            (s->n_draft == 0 || rows > s->draft_rows[s->n_draft - 1])) {
            double least = s->n_draft > 0 ? s->draft[s->n_draft - 1] : 0;
            s->draft_rows[s->n_draft] = rows;
            s->draft[s->n_draft++] = v[2] > least ? v[2] : least;
        }
        return rc;
    }
    return BAD(r, "%.40s: no such key", key);
}

int sim_surface_read(const char *path, struct sim_surface *surface, struct kg_error *err)
{
    struct reader r = {.s = surface};

    memset(surface, 0, sizeof(*surface));
    int rc = sim_lines_read(&r.lines, path, "kedge-surface 1", read_pair, &r, err);
    if (rc == KG_OK && (surface->n_seqs == 0 || surface->n_chunk == 0)) {
        rc = BAD(&r, "%s", "no step, or no chunk");
    } else if (rc == KG_OK && r.n_row != surface->n_rows) {
        rc = BAD(&r, "the last steps end at %u of %u points", r.n_row, surface->n_rows);
    }
    return rc;
}

/* Between points at 2^j, beyond the last as the last two go on. */
static double at_power(const double *y, uint32_t n, double x)
{
    uint32_t j = 0;

    if (n == 1 || x <= 1) {
        return n == 1 ? y[0] * (x > 1 ? x : 1) : y[0];
    }
    while (j + 2 < n && ldexp(1, (int)j + 1) <= x) {
        j++;
    }
    double a = ldexp(1, (int)j);
    return y[j] + (y[j + 1] - y[j]) * (x - a) / a;
}

/* Sequences of `width` rows each at point i of the grid. */
static double at_width(const struct sim_surface *s, uint32_t i, double width)
{
    uint32_t j = 2 * i;

    return j < s->n_rows ? at_power(s->step[i] + j, s->n_rows - j, width)
                         : s->step[i][s->n_rows - 1] * width;
}

static double decode_ns(const struct sim_surface *s, double seqs, double rows)
{
    uint32_t i = 0;
    double width = rows / seqs;

    if (s->n_seqs == 1) {
        return at_width(s, 0, width) * seqs;
    }
    while (i + 2 < s->n_seqs && ldexp(1, 2 * (int)i + 2) <= seqs) {
        i++;
    }
    double a = ldexp(1, 2 * (int)i), low = at_width(s, i, width);
    return low + (at_width(s, i + 1, width) - low) * (seqs - a) / (3 * a);
}

static double draft_ns(const struct sim_surface *s, double rows)
{
    uint32_t i = 0;

    if (s->n_draft == 0 || rows <= 0) {
        return 0;
    }
    if (rows <= s->draft_rows[0] || s->n_draft == 1) {
        return s->draft[0];
    }
    while (i + 2 < s->n_draft && s->draft_rows[i + 1] <= rows) {
        i++;
    }
    double share = (rows - s->draft_rows[i]) / (s->draft_rows[i + 1] - s->draft_rows[i]);
    return s->draft[i] + share * (s->draft[i + 1] - s->draft[i]);
}

double sim_surface_ns(const struct sim_surface *s, const struct sim_load *w)
{
    double ns = draft_ns(s, w->drafts);

    if (w->drafts > 0) {
        ns += s->draft_token_ns * w->context;
    }
    if (w->seqs > 0 && w->rows > 0) {
        ns += decode_ns(s, w->seqs, w->rows) + s->token_ns * w->context;
    }
    if (w->prompt_rows > 0) {
        double chunk = at_power(s->chunk, s->n_chunk, w->prompt_rows);
        ns += w->rows > 0 ? chunk - s->chunk[0] : chunk;
        ns += s->prompt_token_ns * w->pairs;
    }
    return ns;
}
