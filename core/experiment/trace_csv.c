/* The Azure traces: a header, then "2023-11-16 18:17:03.9799600,4808,10" a line. */
#include "base/num.h"
#include "experiment/trace_int.h"

#include <stdio.h>
#include <string.h>

/* n digits at *s into *v; 0 when there are fewer. */
static int digits(const char **s, int n, uint64_t *v)
{
    *v = 0;
    for (int i = 0; i < n; i++, (*s)++) {
        if (**s < '0' || **s > '9') {
            return 0;
        }
        *v = *v * 10 + (uint64_t)(**s - '0');
    }
    return 1;
}

/* Days from 1970-01-01 in the Gregorian calendar: whole years with their leap days, then months. */
static int64_t days(uint64_t year, uint64_t month, uint64_t day)
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int64_t y = (int64_t)year - 1;
    int64_t n = y * 365 + y / 4 - y / 100 + y / 400 - 719162 + before[month - 1] + (int64_t)day - 1;
    int leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

    return n + (leap && month > 2);
}

/* "YYYY-MM-DD hh:mm:ss[.digits][+00:00]" to ns since 1970; 0 when it is no time. */
static int parse_time(const char *s, uint64_t *ns)
{
    uint64_t f[6], frac = 0, unit = 100000000;
    static const char ends[] = "--T::";

    for (int i = 0; i < 6; i++) {
        if (!digits(&s, i == 0 ? 4 : 2, &f[i])) {
            return 0;
        }
        if (i < 5 && *s != ends[i] && !(i == 2 && *s == ' ')) {
            return 0;
        }
        s += i < 5;
    }
    if (f[0] < 1970 || f[0] > 2200 || f[1] < 1 || f[1] > 12 || f[2] < 1 || f[2] > 31 || f[3] > 23 ||
        f[4] > 59 || f[5] > 60) {
        return 0;
    }
    if (*s == '.') {
        for (s++; *s >= '0' && *s <= '9'; s++, unit /= 10) {
            frac += (uint64_t)(*s - '0') * unit;
        }
    }
    if (*s != '\0' && strcmp(s, "Z") != 0 && strcmp(s, "+00:00") != 0) {
        return 0;
    }
    uint64_t sec = (uint64_t)days(f[0], f[1], f[2]) * 86400 + f[3] * 3600 + f[4] * 60 + f[5];
    *ns = sec * 1000000000 + frac;
    return 1;
}

/* One row of three columns; the text is cut in place. */
static int read_row(struct kg_reader *r, char *text, uint64_t *start_ns)
{
    struct kg_trace_req q = kg_trace_blank(r);
    char *column[3], *rest = text;
    uint64_t ns, in, out;

    for (int i = 0; i < 3; i++) {
        column[i] = strsep(&rest, ",");
        if (column[i] == NULL) {
            return KG_BAD(r, "%d columns, wanted 3", i);
        }
    }
    if (rest != NULL) {
        return KG_BAD(r, "%s", "more than 3 columns");
    }
    if (!parse_time(column[0], &ns)) {
        return KG_BAD(r, "TIMESTAMP: \"%.40s\" is no time", column[0]);
    }
    if (kg_num_u64(column[1], &in) != KG_OK || in > KG_TRACE_MAX_TOKENS) {
        return KG_BAD(r, "ContextTokens: wanted 0 .. %u, found \"%.40s\"", KG_TRACE_MAX_TOKENS,
                      column[1]);
    }
    if (kg_num_u64(column[2], &out) != KG_OK || out > KG_TRACE_MAX_TOKENS) {
        return KG_BAD(r, "GeneratedTokens: wanted 0 .. %u, found \"%.40s\"", KG_TRACE_MAX_TOKENS,
                      column[2]);
    }
    if (*start_ns == UINT64_MAX) {
        *start_ns = ns;
    }
    if (ns < *start_ns) {
        return KG_BAD(r, "%s", "TIMESTAMP: before that of the first row");
    }
    q.arrive_ns = ns - *start_ns;
    q.n_prompt = q.n_named = kg_trace_scaled(r, in);
    q.n_output = kg_trace_scaled(r, out);
    q.block = KG_TRACE_MAX_TOKENS;
    if (r->conf->horizon_ns != 0 && q.arrive_ns > r->conf->horizon_ns) {
        return KG_OK;
    }
    if (r->conf->max_input != 0 && q.n_prompt > r->conf->max_input) {
        r->t->n_dropped++;
        return KG_OK;
    }
    int rc = kg_trace_piece(r, &q, KG_ID_PROMPT(r->t->n), q.n_prompt);
    return rc == KG_OK ? kg_trace_add(r, &q, NULL) : rc;
}

int kg_read_azure(struct kg_reader *r)
{
    uint64_t start_ns = UINT64_MAX;
    const char *text;
    char row[200];
    size_t n;
    int rc = 1;

    while (rc > 0 && !kg_trace_full(r) && (rc = kg_lines_next(r->lines, &text, &n, r->err)) > 0) {
        if (n >= sizeof(row)) {
            return KG_BAD(r, "a row of %zu bytes", n);
        }
        memcpy(row, text, n + 1);
        if (kg_lines_number(r->lines) == 1 && strncmp(row, "TIMESTAMP,", 10) == 0) {
            if (strcmp(row, "TIMESTAMP,ContextTokens,GeneratedTokens") != 0) {
                return KG_BAD(r,
                              "header: wanted TIMESTAMP,ContextTokens,GeneratedTokens, found "
                              "\"%.60s\"",
                              row);
            }
            continue;
        }
        rc = read_row(r, row, &start_ns);
        rc = rc == KG_OK ? 1 : rc;
    }
    return rc < 0 ? rc : KG_OK;
}
