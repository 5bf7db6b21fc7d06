#include "experiment/results.h"

#include <stdlib.h>
#include <string.h>

#define MOST_PARTS 24
#define NAME_COLUMNS 20 /* of a line exec-sim explains a part with; then a blank and seconds */

struct part {
    char name[NAME_COLUMNS + 1];
    double s;
};

struct parts {
    struct part v[MOST_PARTS];
    uint32_t n;
};

static double sum_of(const struct parts *parts)
{
    double sum = 0;

    for (uint32_t i = 0; i < parts->n; i++) {
        sum += parts->v[i].s;
    }
    return sum;
}

/* Adds s seconds to the part of this name; parts beyond the last place go into that. */
static void add_part(struct parts *parts, const char *name, size_t n, double s)
{
    uint32_t i = 0;

    while (i < parts->n &&
           (strlen(parts->v[i].name) != n || memcmp(parts->v[i].name, name, n) != 0)) {
        i++;
    }
    if (i == MOST_PARTS) {
        i--;
    }
    if (i == parts->n) {
        parts->n++;
        memcpy(parts->v[i].name, name, n);
    }
    parts->v[i].s += s;
}

/* A line of the table: a name in its columns, seconds, a share. Others are passed over. */
static void read_line(const char *line, size_t n, struct parts *parts)
{
    char text[NAME_COLUMNS + 64];
    size_t name = NAME_COLUMNS;
    char *end, *last;

    if (n <= NAME_COLUMNS || n >= 200 || line[NAME_COLUMNS] != ' ') {
        return;
    }
    (void)snprintf(text, sizeof(text), "%.*s", (int)n, line);
    double s = strtod(text + NAME_COLUMNS, &end);
    double share = strtod(end, &last);
    while (name > 0 && text[name - 1] == ' ') {
        name--;
    }
    int is_row = end != text + NAME_COLUMNS && last != end && (*last == ' ' || *last == '\0');
    if (is_row && s >= 0 && share >= 0 && name > 0 && strncmp(text, "all ", 4) != 0) {
        add_part(parts, text, name, s);
    }
}

/* What exec-sim said, of all replicas. */
static void read_parts(const char *text, struct parts *parts)
{
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        read_line(text, n, parts);
        text += n + (text[n] == '\n');
    }
}

/* What the engine itself knows of its steps. */
static void known_parts(const struct kg_engine_stats *st, int is_virtual, struct parts *parts)
{
    const uint64_t inside = st->draft_ns_sum + st->commit_ns_sum;
    const struct {
        const char *name;
        uint64_t ns;
    } known[] = {{"forward pass", st->step_ns_sum > inside ? st->step_ns_sum - inside : 0},
                 {"drafting", st->draft_ns_sum},
                 {"commit", st->commit_ns_sum},
                 {"engine", is_virtual ? 0 : st->overhead_ns_sum}};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].ns > 0) {
            add_part(parts, known[i].name, strlen(known[i].name), (double)known[i].ns / 1e9);
        }
    }
}

static void put_positions(struct kg_buf *b, const struct kg_spec_count *c)
{
    (void)kg_buf_puts(b, ",\"positions\":[");
    for (uint32_t j = 0; j < KG_SPEC_POSITIONS && c->verified[j] > 0; j++) {
        (void)kg_buf_puts(b, j > 0 ? ",{" : "{");
        kg_buf_key_u64(b, "verified", c->verified[j]);
        kg_buf_key_u64(b, "accepted", c->accepted[j]);
        kg_buf_key_f64(b, "expected", (double)c->expected_um[j] * 1e-6);
        (void)kg_buf_putc(b, '}');
    }
    (void)kg_buf_putc(b, ']');
}

void kg_results_steps(struct kg_buf *b, const struct kg_replay_result *r,
                      const struct kg_results_about *about)
{
    struct parts parts = {0};

    if (about->explained != NULL) {
        read_parts(about->explained, &parts);
    }
    if (parts.n == 0) {
        known_parts(&r->stats, about->is_virtual, &parts);
    } else {
        double rest = (double)r->stats.step_ns_sum / 1e9 - sum_of(&parts);
        if (rest > 0.002 * sum_of(&parts)) {
            add_part(&parts, "not told apart", strlen("not told apart"), rest);
        }
    }
    (void)kg_buf_puts(b, ",\"step_parts\":[");
    for (uint32_t i = 0; i < parts.n; i++) {
        (void)kg_buf_puts(b, i > 0 ? ",{" : "{");
        kg_buf_key_str(b, "name", parts.v[i].name);
        kg_buf_key_f64(b, "s", parts.v[i].s);
        (void)kg_buf_putc(b, '}');
    }
    (void)kg_buf_putc(b, ']');
    put_positions(b, &r->stats.spec);
}
