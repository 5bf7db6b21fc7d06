#include "cost.h"
#include "lines.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    struct sim_lines lines;
    uint32_t seen; /* bit per key below */
    struct sim_cost *cost;
};

#define BAD(r, fmt, ...) SIM_BAD(&(r)->lines, fmt, __VA_ARGS__)
#define MOST 1e15

static int read_point(struct reader *r, char *rest)
{
    struct sim_cost *c = r->cost;
    const char *first = strsep(&rest, " ");
    double rows, ns;

    int rc = sim_lines_number(&r->lines, "rows", first, MOST, &rows);
    if (rc == KG_OK) {
        rc = sim_lines_number(&r->lines, "rows", rest, MOST, &ns);
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

static int read_pair(void *ctx, const char *key, char *value)
{
    struct reader *r = ctx;
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
            return sim_lines_number(&r->lines, key, value, MOST, keys[i].v);
        }
    }
    return BAD(r, "%.40s: no such key", key);
}

int sim_cost_read(const char *path, struct sim_cost *cost, struct kg_error *err)
{
    struct reader r = {.cost = cost};

    memset(cost, 0, sizeof(*cost));
    (void)snprintf(cost->name, sizeof(cost->name), "table");
    int rc = sim_lines_read(&r.lines, path, "kedge-cost 1", read_pair, &r, err);
    return rc == KG_OK && cost->n == 0 ? BAD(&r, "%s", "rows: no point") : rc;
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
