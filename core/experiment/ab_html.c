#include "experiment/ab_html_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Colours of classes of bytes and of arms are those of the server's page. */
static const char style[] =
    ":root{color-scheme:light "
    "dark;--bg:#fff;--ink:#1c1d20;--dim:#5a5e66;--line:#dededa;--row:#f4f4f2;"
    "--a:#2f6db3;--b:#c4501b;--ls:#4a3a8c;--cs:#a79bd6;--lp:#1f6b44;--cp:#8fc7a3;--pn:#c98a1b;"
    "--ho:#b4b4ae;--gp:#ececea;--pd:#75757a}"
    "@media(prefers-color-scheme:dark){:root{--bg:#131519;--ink:#e6e7ea;--dim:#a0a6b0;--line:#"
    "30343b;"
    "--row:#1b1e23;--a:#6aa9ee;--b:#f08a55;--ls:#a893ff;--cs:#5b4c9e;--lp:#5fce94;--cp:#2f6e4d;"
    "--pn:#e8b04a;--ho:#5c6067;--gp:#262a30;--pd:#85888f}}"
    "*{box-sizing:border-box}"
    "body{font:15px/1.45 system-ui,sans-serif;font-variant-numeric:tabular-nums;max-width:56rem;"
    "margin:0 auto;padding:1rem 1rem 3rem;color:var(--ink);background:var(--bg);"
    "overflow-wrap:anywhere}"
    "h1{font-size:1.5rem;margin:.3em 0}h2{font-size:1.25rem;margin:1.2em 0 .5em}"
    "h3{font-size:1rem;margin:1.6em 0 .4em}p{margin:.5em 0}"
    ".key{position:sticky;top:0;z-index:1;background:var(--bg);padding:.4em 0;margin:.8em 0;"
    "border-bottom:1px solid var(--line);display:flex;flex-wrap:wrap;gap:.1em 1.6em}"
    ".key "
    "svg{width:22px;height:10px;margin-right:.5em}.sw{width:.8em;height:.8em;margin-right:.5em}"
    ".wide{overflow-x:auto}.plot svg{display:block;width:100%;min-width:33rem;height:auto}"
    "table{border-collapse:collapse;font-size:.93em}td,th{padding:.15em .7em;text-align:right;"
    "white-space:nowrap}th{color:var(--dim);font-weight:600}td:first-child,th:first-child{"
    "text-align:left;padding-left:0}tr:nth-child(even) "
    "td{background:var(--row)}.m{font-weight:bold}"
    ".v{font-size:1.15em}.note,summary{color:var(--dim);font-size:.93em}summary{cursor:pointer}"
    "svg text{font:12px system-ui,sans-serif;fill:var(--dim)}"
    ".a{stroke:var(--a);fill:none}.b{stroke:var(--b);fill:none}path,.key line{stroke-width:1.7;"
    "stroke-linejoin:round}path.b,.key .b{stroke-dasharray:7 3}.fa{fill:var(--a)}.fb{fill:var(--b)}"
    ".fx{fill:var(--dim)}.x{stroke:var(--dim)}.g{stroke:var(--line)}.mark{stroke:var(--ink);"
    "stroke-width:2}"
    ".ls{fill:var(--ls)}.cs{fill:var(--cs)}.lp{fill:var(--lp)}.cp{fill:var(--cp)}.pn{fill:var(--pn)"
    "}"
    ".ho{fill:var(--ho)}.gp{fill:var(--gp)}.pd{fill:var(--pd)}"
    ".p0{fill:#3f7cc0}.p1{fill:#cf6a2e}.p2{fill:#2f8f5f}.p3{fill:#8a70c4}.p4{fill:#cf9a2c}"
    ".p5{fill:#3aa0a6}.p6{fill:#bb5779}.p7{fill:#848f36}.p8{fill:#68799a}.p9{fill:#d68f74}"
    ".p10{fill:#7faad6}.p11{fill:#97978f}";

/* --- pieces --- */

void kg_html_text(struct kg_buf *b, const char *s)
{
    for (; *s != '\0'; s++) {
        switch (*s) {
        case '&':
            (void)kg_buf_puts(b, "&amp;");
            break;
        case '<':
            (void)kg_buf_puts(b, "&lt;");
            break;
        case '>':
            (void)kg_buf_puts(b, "&gt;");
            break;
        case '"':
            (void)kg_buf_puts(b, "&quot;");
            break;
        default:
            (void)kg_buf_putc(b, *s);
        }
    }
}

void kg_html_label(struct kg_buf *b, double x, double y, const char *anchor, const char *text)
{
    (void)kg_buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    kg_html_text(b, text);
    (void)kg_buf_puts(b, "</text>");
}

void kg_html_line(struct kg_buf *b, const char *class, double x0, double y0, double x1, double y1)
{
    (void)kg_buf_printf(b, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>",
                        class, x0, y0, x1, y1);
}

void kg_html_open(struct kg_buf *b, const char *heading, double height, const char *label)
{
    (void)kg_buf_puts(b, "<h3>");
    kg_html_text(b, heading);
    (void)kg_buf_printf(b,
                        "</h3>\n<div class=\"wide plot\"><svg viewBox=\"0 0 %g %g\" role=\"img\" "
                        "aria-label=\"",
                        KG_HTML_WIDTH, height);
    kg_html_text(b, label);
    (void)kg_buf_puts(b, "\">\n");
}

void kg_html_close(struct kg_buf *b)
{
    (void)kg_buf_puts(b, "</svg></div>\n");
}

double kg_html_clip(double v, double lo, double hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

double kg_html_ceiling(double v)
{
    const double steps[] = {1, 2, 4, 6, 8, 10};
    double ten = v > 0 ? pow(10, floor(log10(v))) : 0.1;

    for (uint32_t i = 0; i < 5; i++) {
        if (steps[i] * ten >= v * 0.999 && v > 0) {
            return steps[i] * ten;
        }
    }
    return 10 * ten;
}

void kg_html_levels(struct kg_buf *b, double top, const char *unit)
{
    char text[40];

    for (uint32_t i = 0; i <= 4; i++) {
        double y = KG_HTML_ABOVE + KG_HTML_TALL * (4 - i) / 4;
        (void)snprintf(text, sizeof(text), "%.3g%.16s", top * i / 4, unit);
        kg_html_line(b, i == 0 ? "x" : "g", KG_HTML_LEFT, y, KG_HTML_WIDTH - KG_HTML_RIGHT, y);
        kg_html_label(b, KG_HTML_LEFT - 8, y + 4, "end", text);
    }
}

void kg_html_times(struct kg_buf *b, double span_s)
{
    double step = kg_html_ceiling(span_s / 6);
    char text[32];

    for (uint32_t i = 0; i <= 6 && span_s > 0 && step * i <= span_s; i++) {
        double x = KG_HTML_LEFT + KG_HTML_WIDE * step * i / span_s;
        (void)snprintf(text, sizeof(text), "%.6g", step * i);
        kg_html_line(b, "x", x, KG_HTML_HEIGHT - KG_HTML_BELOW, x,
                     KG_HTML_HEIGHT - KG_HTML_BELOW + 4);
        kg_html_label(b, x, KG_HTML_HEIGHT - KG_HTML_BELOW + 17, "middle", text);
    }
}

/* --- the table --- */

static void put_cell(struct kg_buf *b, const struct kg_ab_figure_about *about, double v)
{
    if (isnan(v)) {
        (void)kg_buf_puts(b, "<td>-</td>");
    } else if (about->is_share) {
        (void)kg_buf_printf(b, "<td>%.2f %%</td>", 100 * v);
    } else {
        (void)kg_buf_printf(b, v < 10 ? "<td>%.3f %s</td>" : "<td>%.1f %s</td>", v, about->unit);
    }
}

/* Whether there is anything to say of a figure. */
static int is_told(const struct kg_ab_figure *f)
{
    return !isnan(f->diff) && (f->a != 0 || f->b != 0);
}

static void put_row(struct kg_buf *b, uint32_t m, const struct kg_ab_figure *f)
{
    const struct kg_ab_figure_about *about = kg_ab_figure_about(m);
    const char *word = !f->is_tested     ? "too few to tell"
                       : f->is_small     ? "small"
                       : f->is_different ? "beyond chance"
                                         : "";

    (void)kg_buf_printf(b, "<tr%s><td>%s</td>", f->is_different ? " class=\"m\"" : "", about->name);
    put_cell(b, about, f->a);
    put_cell(b, about, f->b);
    if (about->is_share) {
        (void)kg_buf_printf(b, "<td>%+.2f pt</td><td>%+.2f .. %+.2f</td>", 100 * f->diff,
                            100 * f->lo, 100 * f->hi);
    } else if (isnan(f->rel)) {
        (void)kg_buf_printf(b, "<td>%+.3g</td><td>%+.3g .. %+.3g</td>", f->diff, f->lo, f->hi);
    } else {
        (void)kg_buf_printf(b, "<td>%+.2f %%</td><td>%+.2f .. %+.2f</td>", 100 * f->rel,
                            100 * f->rel_lo, 100 * f->rel_hi);
    }
    (void)kg_buf_printf(b, "<td>%s</td></tr>\n", word);
}

static void put_rate(struct kg_buf *b, const char *name, const struct kg_ab_rate *r)
{
    (void)kg_buf_printf(b, "<tr><td>%s</td><td>%.1f tok/s</td><td>%.1f tok/s</td><td>%+.2f %%</td>",
                        name, r->a, r->b, 100 * r->rel);
    if (isnan(r->rel_lo)) {
        (void)kg_buf_puts(b, "<td></td><td></td></tr>\n");
    } else {
        (void)kg_buf_printf(b, "<td>%+.2f .. %+.2f</td><td></td></tr>\n", 100 * r->rel_lo,
                            100 * r->rel_hi);
    }
}

static void put_table(struct kg_buf *b, const struct kg_ab_report *r)
{
    (void)kg_buf_puts(b, "<div class=\"wide\"><table><tr><th></th><th>");
    kg_html_text(b, r->names[0]);
    (void)kg_buf_puts(b, "</th><th>");
    kg_html_text(b, r->names[1]);
    (void)kg_buf_puts(b, "</th><th>change</th><th>95 % of the change</th><th></th></tr>\n");
    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        if (is_told(&r->result.figures[m])) {
            put_row(b, m, &r->result.figures[m]);
        }
    }
    if (r->log == NULL) {
        put_rate(b, "throughput", &r->result.throughput);
        put_rate(b, "goodput", &r->result.goodput);
    }
    (void)kg_buf_puts(b, "</table></div>\n");
}

/* --- intervals --- */

/* Relative changes, one line each; what reaches beyond -100 .. +200 % is cut there. */
static void put_intervals(struct kg_buf *b, const struct kg_ab_result *s)
{
    double lo = -0.01, hi = 0.01, y = 20;
    uint32_t n = 0;
    char text[64];

    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        const struct kg_ab_figure *f = &s->figures[m];
        if (is_told(f) && !isnan(f->rel) && !isnan(f->rel_lo)) {
            lo = fmin(lo, kg_html_clip(fmin(f->rel, f->rel_lo), -1, 2));
            hi = fmax(hi, kg_html_clip(fmax(f->rel, f->rel_hi), -1, 2));
            n++;
        }
    }
    double left = 120, scale = (KG_HTML_WIDTH - left - 20) / (hi - lo), zero = left - lo * scale;
    (void)snprintf(text, sizeof(text), "Intervals of %u figures, as in the table", n);
    kg_html_open(b, "Changes with their 95 % intervals", 18.0 * n + 50, text);
    kg_html_line(b, "x", zero, 10, zero, 18.0 * n + 18);
    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        const struct kg_ab_figure *f = &s->figures[m];
        if (!is_told(f) || isnan(f->rel) || isnan(f->rel_lo)) {
            continue;
        }
        const char *class = f->is_different && !f->is_small ? "b" : "x";
        kg_html_label(b, left - 12, y + 4, "end", kg_ab_figure_about(m)->name);
        kg_html_line(b, class, zero + kg_html_clip(f->rel_lo, lo, hi) * scale, y,
                     zero + kg_html_clip(f->rel_hi, lo, hi) * scale, y);
        (void)kg_buf_printf(b, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>",
                            class[0] == 'b' ? "fb" : "fx",
                            zero + kg_html_clip(f->rel, lo, hi) * scale, y);
        y += 18;
    }
    const double marks[] = {lo, 0, hi};
    for (uint32_t i = 0; i < 3; i++) {
        if (i != 1 && fabs(marks[i]) * scale < 50) {
            continue; /* too near to that of 0 */
        }
        (void)snprintf(text, sizeof(text), "%+.1f %%", 100 * marks[i]);
        kg_html_label(b, zero + marks[i] * scale, y + 14,
                      i == 0   ? "start"
                      : i == 1 ? "middle"
                               : "end",
                      i == 1 ? "0" : text);
    }
    kg_html_close(b);
}

/* --- the page --- */

int kg_ab_html_head(const char *trace, struct kg_buf *b)
{
    (void)kg_buf_puts(b,
                      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                      "<meta name=\"viewport\" content=\"width=device-width\">"
                      "<meta name=\"color-scheme\" content=\"light dark\">"
                      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';"
                      "style-src 'unsafe-inline'\">"
                      "<title>kedge ab</title>\n<style>");
    (void)kg_buf_puts(b, style);
    (void)kg_buf_puts(b, "</style></head><body>\n<h1>A/B on ");
    kg_html_text(b, trace);
    return kg_buf_puts(b, "</h1>\n");
}

static void put_lines(struct kg_buf *b, const char *text)
{
    struct kg_buf escaped;

    kg_buf_init(&escaped, 0);
    kg_html_text(&escaped, text);
    for (const char *s = kg_buf_cstr(&escaped); *s != '\0'; s++) {
        if (*s == '\n') {
            (void)kg_buf_puts(b, "<br>\n");
        } else {
            (void)kg_buf_putc(b, *s);
        }
    }
    kg_buf_fini(&escaped);
}

/* Which line is whose; it stays in sight. */
static void put_key(struct kg_buf *b, const struct kg_ab_report *r)
{
    (void)kg_buf_puts(b, "<p class=\"key\">");
    for (uint32_t k = 0; k < 2; k++) {
        (void)kg_buf_printf(
            b,
            "<span><svg viewBox=\"0 0 22 10\" aria-hidden=\"true\"><line class=\"%s\" "
            "x1=\"0\" y1=\"5\" x2=\"22\" y2=\"5\"/></svg>",
            KG_HTML_ARM(k));
        kg_html_text(b, r->names[k]);
        (void)kg_buf_puts(b, "</span>");
    }
    (void)kg_buf_puts(b, "</p>\n");
}

int kg_ab_html(const struct kg_ab_report *r, struct kg_buf *b)
{
    struct kg_buf words;

    (void)kg_buf_puts(b, "<section>\n<h2>");
    kg_html_text(b, r->at != NULL ? r->at : r->names[0]);
    if (r->at == NULL) {
        (void)kg_buf_puts(b, " against ");
        kg_html_text(b, r->names[1]);
    }
    (void)kg_buf_puts(b, "</h2>\n<p>");
    kg_buf_init(&words, 0);
    for (uint32_t k = 0; k < 2; k++) {
        kg_html_text(b, r->names[k]);
        (void)kg_buf_puts(b, ": ");
        kg_buf_reset(&words);
        (void)kg_ab_about(r, k, &words);
        kg_html_text(b, kg_buf_cstr(&words));
        (void)kg_buf_puts(b, "<br>\n");
    }
    kg_buf_reset(&words);
    (void)kg_ab_size(r, &words);
    kg_html_text(b, kg_buf_cstr(&words));
    (void)kg_buf_puts(b, "</p>\n<p class=\"v\">");
    kg_buf_reset(&words);
    (void)kg_ab_verdict(&r->result, r->names[0], r->names[1], &words);
    put_lines(b, kg_buf_cstr(&words));
    (void)kg_buf_puts(b, "</p>\n<p>");
    kg_buf_reset(&words);
    (void)kg_ab_basis(r, &words);
    put_lines(b, kg_buf_cstr(&words));
    kg_buf_fini(&words);
    (void)kg_buf_puts(b, "</p>\n");
    put_table(b, r);
    put_key(b, r);
    put_intervals(b, &r->result);
    kg_html_distributions(b, r);
    kg_html_load(b, r);
    if (r->log == NULL) { /* the arms of a server have steps and memory in common */
        kg_html_steps(b, r);
        kg_html_parts(b, r);
        kg_html_drafts(b, r);
        kg_html_pools(b, r);
    }
    return kg_buf_puts(b, "</section>\n");
}

int kg_ab_html_tail(struct kg_buf *b)
{
    return kg_buf_puts(b, "</body></html>\n");
}
