#include "experiment/ab_html_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_COLOURS 12u

/* --- over time --- */

/* Mean time of the steps of each bin; the line is broken where no step ended. */
static void put_steps(struct kg_buf *b, const struct kg_ab_facts *f, uint32_t arm, double span_s,
                      double top)
{
    int is_open = 0;

    (void)kg_buf_printf(b, "<path class=\"%s\" d=\"", KG_HTML_ARM(arm));
    for (uint32_t i = 0; i < f->n_bins; i++) {
        if (isnan(f->step_ms[i])) {
            is_open = 0;
            continue;
        }
        double x = KG_HTML_LEFT + KG_HTML_WIDE * fmin(f->width_s * (i + 0.5) / span_s, 1);
        double y = KG_HTML_ABOVE + KG_HTML_TALL * (1 - f->step_ms[i] / top);
        (void)kg_buf_printf(b, is_open ? "L%.1f %.1f" : "M%.1f %.1f", x, y);
        (void)kg_buf_puts(b, is_open ? "" : "h0"); /* a bin by itself is a point */
        is_open = 1;
    }
    (void)kg_buf_puts(b, "\"/>");
}

void kg_html_steps(struct kg_buf *b, const struct kg_ab_report *r)
{
    double most[2] = {0}, span_s = fmax(r->facts[0].duration_s, r->facts[1].duration_s);
    char words[300];

    for (uint32_t arm = 0; arm < 2; arm++) {
        for (uint32_t i = 0; i < r->facts[arm].n_bins; i++) {
            most[arm] = fmax(most[arm], r->facts[arm].step_ms[i]); /* of NAN and x: x */
        }
    }
    if (!(most[0] > 0) || !(most[1] > 0) || !(span_s > 0)) {
        return;
    }
    double top = kg_html_ceiling(fmax(most[0], most[1]));
    (void)snprintf(words, sizeof(words),
                   "Mean time of a step over time: %.60s at most %.3g ms, %.60s %.3g ms",
                   r->names[0], most[0], r->names[1], most[1]);
    kg_html_open(b, "Mean time of a step, ms, over time, s", KG_HTML_HEIGHT, words);
    kg_html_levels(b, top, "");
    kg_html_times(b, span_s);
    put_steps(b, &r->facts[0], 0, span_s, top);
    put_steps(b, &r->facts[1], 1, span_s, top);
    kg_html_close(b);
}

/* --- what steps were made of --- */

/* A part of the steps of both arms, by its name; s is 0 where an arm has none. */
struct row {
    const char *name;
    double s[2]; /* of all steps */
};

/* At most 2 * KG_AB_PARTS rows, in the order of the first arm. Returns how many. */
static uint32_t rows_of(const struct kg_ab_report *r, struct row *rows)
{
    uint32_t n = 0;

    for (uint32_t arm = 0; arm < 2; arm++) {
        for (uint32_t i = 0; i < r->facts[arm].n_parts; i++) {
            const struct kg_ab_part *part = &r->facts[arm].parts[i];
            uint32_t k = 0;
            while (k < n && strcmp(rows[k].name, part->name) != 0) {
                k++;
            }
            if (k == n) {
                rows[n++] = (struct row){.name = part->name};
            }
            rows[k].s[arm] += part->s;
        }
    }
    return n;
}

/* Mean of a step, ms. */
static double each_ms(const struct kg_ab_report *r, uint32_t arm, double s)
{
    double n = r->facts[arm].n_steps;

    return n > 0 ? 1e3 * s / n : 0;
}

static void put_bars(struct kg_buf *b, const struct kg_ab_report *r, const struct row *rows,
                     uint32_t n, const double ms[2])
{
    double left = 150, wide = KG_HTML_WIDTH - left - 80, most = fmax(ms[0], ms[1]);
    char text[40];

    for (uint32_t arm = 0; arm < 2; arm++) {
        double x = left;
        (void)snprintf(text, sizeof(text), "%.24s", r->names[arm]);
        kg_html_label(b, left - 10, 24 + 32.0 * arm, "end", text);
        for (uint32_t i = 0; i < n; i++) {
            double part = each_ms(r, arm, rows[i].s[arm]);
            (void)kg_buf_printf(b,
                                "<rect class=\"p%u\" x=\"%.2f\" y=\"%g\" width=\"%.2f\" "
                                "height=\"22\"><title>",
                                i % N_COLOURS, x, 8 + 32.0 * arm, part / most * wide);
            kg_html_text(b, rows[i].name);
            (void)kg_buf_printf(b, " %.3g ms, %.1f %%</title></rect>", part, 100 * part / ms[arm]);
            x += part / most * wide;
        }
        (void)snprintf(text, sizeof(text), "%.3g ms", ms[arm]);
        kg_html_label(b, x + 8, 24 + 32.0 * arm, "start", text);
    }
}

static void put_part_row(struct kg_buf *b, const struct kg_ab_report *r, const struct row *row,
                         const char *swatch, const double sum[2])
{
    (void)kg_buf_puts(b, "<tr><td>");
    if (swatch != NULL) {
        (void)kg_buf_printf(b,
                            "<svg class=\"sw\" viewBox=\"0 0 10 10\" aria-hidden=\"true\">"
                            "<rect class=\"%s\" width=\"10\" height=\"10\"/></svg>",
                            swatch);
    }
    kg_html_text(b, row->name);
    (void)kg_buf_puts(b, "</td>");
    for (uint32_t arm = 0; arm < 2; arm++) {
        double ms = each_ms(r, arm, row->s[arm]);
        (void)kg_buf_printf(b, ms < 10 ? "<td>%.3f ms</td>" : "<td>%.2f ms</td>", ms);
        (void)kg_buf_printf(b, "<td>%.1f %%</td>", sum[arm] > 0 ? 100 * row->s[arm] / sum[arm] : 0);
        (void)kg_buf_printf(b, "<td>%.2f s</td>", row->s[arm]);
    }
    (void)kg_buf_puts(b, "</tr>\n");
}

static void put_part_table(struct kg_buf *b, const struct kg_ab_report *r, const struct row *rows,
                           uint32_t n, const double sum[2])
{
    const struct row all = {.name = "all", .s = {sum[0], sum[1]}};
    char class[8];

    (void)kg_buf_puts(b, "<div class=\"wide\"><table><tr><th>of a step</th>");
    for (uint32_t arm = 0; arm < 2; arm++) {
        (void)kg_buf_puts(b, "<th>");
        kg_html_text(b, r->names[arm]);
        (void)kg_buf_puts(b, "</th><th>share</th><th>in all</th>");
    }
    (void)kg_buf_puts(b, "</tr>\n");
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(class, sizeof(class), "p%u", i % N_COLOURS);
        put_part_row(b, r, &rows[i], class, sum);
    }
    put_part_row(b, r, &all, NULL, sum);
    (void)kg_buf_printf(b, "<tr><td>steps</td><td>%.0f</td><td></td><td></td><td>%.0f</td>",
                        r->facts[0].n_steps, r->facts[1].n_steps);
    (void)kg_buf_puts(b, "<td></td><td></td></tr>\n</table></div>\n");
}

void kg_html_parts(struct kg_buf *b, const struct kg_ab_report *r)
{
    struct row rows[2 * KG_AB_PARTS] = {0};
    uint32_t n = rows_of(r, rows);
    double sum[2] = {0}, ms[2];
    char words[300];

    for (uint32_t i = 0; i < n; i++) {
        sum[0] += rows[i].s[0];
        sum[1] += rows[i].s[1];
    }
    ms[0] = each_ms(r, 0, sum[0]);
    ms[1] = each_ms(r, 1, sum[1]);
    if (!(ms[0] > 0) || !(ms[1] > 0)) {
        return;
    }
    (void)snprintf(words, sizeof(words),
                   "Mean time of a step by parts: %.60s %.3g ms in all, %.60s %.3g ms; the table "
                   "below has the parts",
                   r->names[0], ms[0], r->names[1], ms[1]);
    kg_html_open(b, "Where the time of a step goes, mean over all steps", 70, words);
    put_bars(b, r, rows, n, ms);
    kg_html_close(b);
    put_part_table(b, r, rows, n, sum);
}

/* --- drafts --- */

static double ratio(double part, double all)
{
    return all > 0 ? part / all : 0;
}

static void put_position(struct kg_buf *b, const struct kg_ab_report *r, uint32_t i, double x,
                         double each)
{
    char text[16];

    for (uint32_t arm = 0; arm < 2; arm++) {
        const struct kg_ab_draft *d = &r->facts[arm].drafts[i];
        if (i >= r->facts[arm].n_drafts) {
            continue;
        }
        double wide = each * 0.4, from = x + each * 0.1 + wide * arm;
        double tall = KG_HTML_TALL * kg_html_clip(ratio(d->accepted, d->verified), 0, 1);
        double line = KG_HTML_ABOVE +
                      KG_HTML_TALL * (1 - kg_html_clip(ratio(d->expected, d->verified), 0, 1));
        (void)kg_buf_printf(
            b,
            "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>"
            "%.0f of %.0f</title></rect>",
            KG_HTML_ARM_AREA(arm), from, KG_HTML_ABOVE + KG_HTML_TALL - tall, wide - 2, tall,
            d->accepted, d->verified);
        if (d->expected > 0) {
            kg_html_line(b, "mark", from - 1, line, from + wide - 1, line);
        }
    }
    (void)snprintf(text, sizeof(text), "%u", i + 1);
    kg_html_label(b, x + each / 2, KG_HTML_HEIGHT - KG_HTML_BELOW + 16, "middle", text);
}

static void put_draft_table(struct kg_buf *b, const struct kg_ab_report *r, uint32_t n)
{
    (void)kg_buf_puts(b, "<details><summary>Numbers</summary><div class=\"wide\"><table><tr><th>"
                         "position</th>");
    for (uint32_t arm = 0; arm < 2; arm++) {
        (void)kg_buf_puts(b, "<th>");
        kg_html_text(b, r->names[arm]);
        (void)kg_buf_puts(b, "</th><th>verified</th><th>accepted</th><th>expected</th>");
    }
    (void)kg_buf_puts(b, "</tr>\n");
    for (uint32_t i = 0; i < n; i++) {
        (void)kg_buf_printf(b, "<tr><td>%u</td>", i + 1);
        for (uint32_t arm = 0; arm < 2; arm++) {
            const struct kg_ab_draft *d = &r->facts[arm].drafts[i];
            if (i >= r->facts[arm].n_drafts) {
                (void)kg_buf_puts(b, "<td>-</td><td></td><td></td><td></td>");
                continue;
            }
            (void)kg_buf_printf(b, "<td>%.1f %%</td><td>%.0f</td><td>%.0f</td>",
                                100 * ratio(d->accepted, d->verified), d->verified, d->accepted);
            (void)kg_buf_printf(b, d->expected > 0 ? "<td>%.0f</td>" : "<td>-</td>", d->expected);
        }
        (void)kg_buf_puts(b, "</tr>\n");
    }
    (void)kg_buf_puts(b, "</table></div></details>\n");
}

/* How many drafts of a window each arm had accepted on average. */
static void draft_words(const struct kg_ab_report *r, char *words, size_t n)
{
    size_t at = (size_t)snprintf(words, n, "Drafts accepted of a window, on average:");

    for (uint32_t arm = 0; arm < 2; arm++) {
        const struct kg_ab_facts *f = &r->facts[arm];
        double sum = 0;
        for (uint32_t i = 0; i < f->n_drafts; i++) {
            sum += f->drafts[i].accepted;
        }
        at += (size_t)snprintf(words + at, n - at, "%s %.60s ", arm > 0 ? "," : "", r->names[arm]);
        at += f->n_drafts > 0
                  ? (size_t)snprintf(words + at, n - at, "%.2f", ratio(sum, f->drafts[0].verified))
                  : (size_t)snprintf(words + at, n - at, "verified none");
    }
}

void kg_html_drafts(struct kg_buf *b, const struct kg_ab_report *r)
{
    uint32_t n =
        r->facts[0].n_drafts > r->facts[1].n_drafts ? r->facts[0].n_drafts : r->facts[1].n_drafts;
    char words[300];

    if (n == 0) {
        return;
    }
    double each = fmin(KG_HTML_WIDE / n, 80);
    draft_words(r, words, sizeof(words));
    kg_html_open(b, "Drafts accepted of those verified, by position", KG_HTML_HEIGHT, words);
    kg_html_levels(b, 100, " %");
    for (uint32_t i = 0; i < n; i++) {
        put_position(b, r, i, KG_HTML_LEFT + each * i, each);
    }
    kg_html_close(b);
    (void)kg_buf_puts(b, "<p class=\"note\">");
    kg_html_text(b, words);
    (void)kg_buf_puts(b, ". A line across a bar is what the drafter expected.</p>\n");
    put_draft_table(b, r, n);
}
