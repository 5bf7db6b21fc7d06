#include "experiment/ab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sizes of a plot in px: the frame, and its margins left and below. */
#define WIDTH 720.0
#define HEIGHT 220.0
#define LEFT 60.0
#define BELOW 30.0
#define N_BINS 240u
#define N_STEPS 200u

static const char style[] =
    "body{font:15px/1.45 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;"
    "color:#222;background:#fff}table{border-collapse:collapse}td,th{padding:.15em .7em;"
    "text-align:right}td:first-child,th:first-child{text-align:left}tr:nth-child(even){background:"
    "#f4f4f2}.v{font-size:1.15em}svg{display:block;margin:.3em 0 1.2em;max-width:100%;height:auto}"
    "svg text{font:12px system-ui,sans-serif;fill:#444}.a{stroke:#2f6db3;fill:none}.b{stroke:"
    "#c4501b;fill:none}.fa{fill:#2f6db3}.fb{fill:#c4501b}.fx{fill:#777}.x{stroke:#999}.g{stroke:#"
    "ddd}"
    "path{stroke-width:1.6}.d{stroke-dasharray:5 3}.m{font-weight:bold}";

/* --- text --- */

static void put_text(struct kg_buf *b, const char *s)
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

static void put_label(struct kg_buf *b, double x, double y, const char *anchor, const char *text)
{
    (void)kg_buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    put_text(b, text);
    (void)kg_buf_puts(b, "</text>");
}

static void put_line(struct kg_buf *b, const char *class, double x0, double y0, double x1,
                     double y1)
{
    (void)kg_buf_printf(b, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>",
                        class, x0, y0, x1, y1);
}

static void open_svg(struct kg_buf *b, double height)
{
    (void)kg_buf_printf(b, "<svg viewBox=\"0 0 %g %g\" width=\"%g\" role=\"img\">\n", WIDTH, height,
                        WIDTH);
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
    (void)kg_buf_puts(b, "<table><tr><th></th><th>");
    put_text(b, r->names[0]);
    (void)kg_buf_puts(b, "</th><th>");
    put_text(b, r->names[1]);
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
    (void)kg_buf_puts(b, "</table>\n");
}

/* --- intervals --- */

static double clip(double v, double lo, double hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

/* Relative changes, one line each; what reaches beyond -100 .. +200 % is cut there. */
static void put_intervals(struct kg_buf *b, const struct kg_ab_result *s)
{
    double lo = -0.01, hi = 0.01, y = 20;
    uint32_t n = 0;
    char text[40];

    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        const struct kg_ab_figure *f = &s->figures[m];
        if (is_told(f) && !isnan(f->rel) && !isnan(f->rel_lo)) {
            lo = fmin(lo, clip(fmin(f->rel, f->rel_lo), -1, 2));
            hi = fmax(hi, clip(fmax(f->rel, f->rel_hi), -1, 2));
            n++;
        }
    }
    double left = 120, scale = (WIDTH - left - 20) / (hi - lo), zero = left - lo * scale;
    open_svg(b, 18.0 * n + 50);
    put_line(b, "x", zero, 10, zero, 18.0 * n + 18);
    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        const struct kg_ab_figure *f = &s->figures[m];
        if (!is_told(f) || isnan(f->rel) || isnan(f->rel_lo)) {
            continue;
        }
        const char *class = f->is_different && !f->is_small ? "b" : "x";
        put_label(b, left - 12, y + 4, "end", kg_ab_figure_about(m)->name);
        put_line(b, class, zero + clip(f->rel_lo, lo, hi) * scale, y,
                 zero + clip(f->rel_hi, lo, hi) * scale, y);
        (void)kg_buf_printf(b, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>",
                            class[0] == 'b' ? "fb" : "fx", zero + clip(f->rel, lo, hi) * scale, y);
        y += 18;
    }
    const double marks[] = {lo, 0, hi};
    for (uint32_t i = 0; i < 3; i++) {
        if (i != 1 && fabs(marks[i]) * scale < 50) {
            continue; /* too near to that of 0 */
        }
        (void)snprintf(text, sizeof(text), "%+.1f %%", 100 * marks[i]);
        put_label(b, zero + marks[i] * scale, y + 14,
                  i == 0   ? "start"
                  : i == 1 ? "middle"
                           : "end",
                  i == 1 ? "0" : text);
    }
    (void)kg_buf_puts(b, "</svg>\n");
}

/* --- distributions --- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* All values above 0 of one time of one arm, ascending; *v is the caller's. NULL: none, or no
 * memory. */
static double *values_of(const struct kg_ab_report *r, uint32_t arm, uint32_t field, size_t *n)
{
    uint32_t most = kg_ab_n_rows(&r->conf, arm);
    double *v = malloc(((size_t)most + 1) * sizeof(*v));

    *n = 0;
    for (uint32_t i = 0; v != NULL && i < most; i++) {
        const struct kg_ab_row *row = kg_ab_row_at(&r->conf, arm, i);
        if (row->ok && row->v[field] > 0) {
            v[(*n)++] = row->v[field];
        }
    }
    if (v != NULL) {
        qsort(v, *n, sizeof(*v), by_value);
    }
    return v;
}

/* Lines at 1, 2 and 5 times each power of ten between lo and hi. */
static void put_log_grid(struct kg_buf *b, double lo, double hi, double scale)
{
    const double steps[] = {1, 2, 5};
    char text[32];

    for (double ten = pow(10, floor(log10(lo))); ten <= hi; ten *= 10) {
        for (uint32_t i = 0; i < 3; i++) {
            double v = ten * steps[i], x = LEFT + log(v / lo) * scale;
            if (v < lo || v > hi || (i > 0 && hi / lo > 300)) {
                continue;
            }
            put_line(b, "g", x, 10, x, HEIGHT - BELOW);
            (void)snprintf(text, sizeof(text), "%g", v);
            put_label(b, x, HEIGHT - BELOW + 16, "middle", text);
        }
    }
}

static void put_ecdf(struct kg_buf *b, const struct kg_ab_report *r, uint32_t field,
                     const char *title)
{
    size_t n[2];
    double *v[2] = {values_of(r, 0, field, &n[0]), values_of(r, 1, field, &n[1])};
    double tall = HEIGHT - BELOW - 10;

    if (v[0] != NULL && v[1] != NULL && n[0] > 1 && n[1] > 1) {
        double lo = fmin(v[0][n[0] / 200], v[1][n[1] / 200]);
        double hi = fmax(v[0][n[0] - 1], v[1][n[1] - 1]);
        hi = hi > lo * 1.01 ? hi : lo * 1.01;
        double scale = (WIDTH - LEFT - 20) / log(hi / lo);
        (void)kg_buf_printf(b, "<h3>%s, ms: share of requests at or below</h3>\n", title);
        open_svg(b, HEIGHT);
        put_log_grid(b, lo, hi, scale);
        for (uint32_t i = 0; i <= 4; i++) {
            char text[16];
            (void)snprintf(text, sizeof(text), "%u %%", 25 * i);
            put_line(b, "g", LEFT, 10 + tall * (4 - i) / 4, WIDTH - 20, 10 + tall * (4 - i) / 4);
            put_label(b, LEFT - 8, 14 + tall * (4 - i) / 4, "end", text);
        }
        for (uint32_t arm = 0; arm < 2; arm++) {
            (void)kg_buf_printf(b, "<path class=\"%s\" d=\"", arm == 0 ? "a" : "b");
            for (uint32_t i = 0; i <= N_STEPS; i++) {
                size_t at = (n[arm] - 1) * i / N_STEPS;
                double x = LEFT + log(clip(v[arm][at], lo, hi) / lo) * scale;
                (void)kg_buf_printf(b, "%s%.1f %.1f", i == 0 ? "M" : "L", x,
                                    10 + tall * (1 - (double)(at + 1) / (double)n[arm]));
            }
            (void)kg_buf_puts(b, "\"/>");
        }
        (void)kg_buf_puts(b, "</svg>\n");
    }
    free(v[0]);
    free(v[1]);
}

/* --- over time --- */

/* Adds the share of each bin that lies in from..to. */
static void add_span(double *bins, double from, double to, double width)
{
    if (!(to > from) || !(width > 0)) {
        return;
    }
    uint32_t i = (uint32_t)clip(from / width, 0, N_BINS - 1);
    for (; i < N_BINS && width * i < to; i++) {
        bins[i] += (fmin(to, width * (i + 1)) - fmax(from, width * i)) / width;
    }
}

/* Requests that wait and that run, of the first run of an arm, means over bins of `width` ms. */
static void load_of(const struct kg_ab_report *r, uint32_t arm, double width, double *waiting,
                    double *running)
{
    uint32_t n = r->log != NULL ? r->conf.n_of[arm] : r->conf.n;

    for (uint32_t i = 0; i < n; i++) {
        const struct kg_ab_row *row = kg_ab_row_at(&r->conf, arm, i);
        double from = row->arrival_ms, end = row->v[KG_AB_E2E], queue = row->v[KG_AB_QUEUE];
        if (isnan(end)) {
            continue;
        }
        queue = isnan(queue) || queue > end ? end : queue; /* never admitted: it only waited */
        add_span(waiting, from, from + queue, width);
        add_span(running, from + queue, from + end, width);
    }
}

static void put_series(struct kg_buf *b, const char *title, double span_s,
                       const double bins[2][N_BINS])
{
    double most = 1, tall = HEIGHT - BELOW - 10, step = (WIDTH - LEFT - 20) / N_BINS;
    char text[32];

    for (uint32_t i = 0; i < N_BINS; i++) {
        most = fmax(most, fmax(bins[0][i], bins[1][i]));
    }
    (void)kg_buf_printf(b, "<h3>%s over time, s</h3>\n", title);
    open_svg(b, HEIGHT);
    for (uint32_t i = 0; i <= 4; i++) {
        (void)snprintf(text, sizeof(text), "%.3g", most * i / 4);
        put_line(b, "g", LEFT, 10 + tall * (4 - i) / 4, WIDTH - 20, 10 + tall * (4 - i) / 4);
        put_label(b, LEFT - 8, 14 + tall * (4 - i) / 4, "end", text);
        (void)snprintf(text, sizeof(text), "%.0f", span_s * i / 4);
        put_label(b, LEFT + step * N_BINS * i / 4, HEIGHT - BELOW + 16, "middle", text);
    }
    for (uint32_t arm = 0; arm < 2; arm++) {
        (void)kg_buf_printf(b, "<path class=\"%s\" d=\"", arm == 0 ? "a" : "b");
        for (uint32_t i = 0; i < N_BINS; i++) {
            (void)kg_buf_printf(b, "%s%.1f %.1f", i == 0 ? "M" : "L", LEFT + step * (i + 0.5),
                                10 + tall * (1 - bins[arm][i] / most));
        }
        (void)kg_buf_puts(b, "\"/>");
    }
    (void)kg_buf_puts(b, "</svg>\n");
}

static void put_load(struct kg_buf *b, const struct kg_ab_report *r)
{
    double waiting[2][N_BINS] = {{0}}, running[2][N_BINS] = {{0}};
    double span_s = fmax(r->facts[0].duration_s, r->facts[1].duration_s);

    for (uint32_t arm = 0; arm < 2; arm++) {
        load_of(r, arm, span_s * 1000 / N_BINS, waiting[arm], running[arm]);
    }
    put_series(b, "Requests that wait", span_s, waiting);
    put_series(b, "Requests that run", span_s, running);
}

/* --- memory --- */

/* As the pool is laid out, from the end of the states to that of the pages. */
static const struct {
    uint32_t class;
    const char *name, *colour;
} parts[] = {{1, "live states", "#4a3a8c"},  {3, "cached states", "#a79bd6"},
             {6, "free", "#ececea"},         {5, "holes", "#bbb"},
             {7, "padding", "#888"},         {4, "pinned", "#d9a441"},
             {2, "cached pages", "#8fc7a3"}, {0, "live pages", "#2c7a4b"}};
#define N_PARTS (sizeof(parts) / sizeof(parts[0]))

/* The pool of each arm, means over time: states from the left end, pages from the right one. */
static void put_memory(struct kg_buf *b, const struct kg_ab_report *r)
{
    double x, wide = WIDTH - LEFT - 90;

    (void)kg_buf_puts(b, "<h3>Memory, mean over time</h3>\n");
    open_svg(b, 120);
    for (uint32_t arm = 0; arm < 2; arm++) {
        const struct kg_ab_facts *f = &r->facts[arm];
        put_label(b, 120, 24 + 32.0 * arm, "end", r->names[arm]);
        x = 130;
        for (uint32_t i = 0; f->arena > 0 && i < N_PARTS; i++) {
            double share = f->bytes_mean[parts[i].class] / f->arena;
            (void)kg_buf_printf(
                b,
                "<rect x=\"%.2f\" y=\"%g\" width=\"%.2f\" height=\"22\" fill=\"%s\">"
                "<title>%s %.1f %%</title></rect>",
                x, 8 + 32.0 * arm, share * wide, parts[i].colour, parts[i].name, 100 * share);
            x += share * wide;
        }
    }
    for (uint32_t i = 0; i < N_PARTS; i++) {
        x = 130 + 145.0 * (i % 4);
        double y = 82 + 18.0 * (i / 4);
        (void)kg_buf_printf(b, "<rect x=\"%g\" y=\"%g\" width=\"10\" height=\"10\" fill=\"%s\"/>",
                            x, y, parts[i].colour);
        put_label(b, x + 14, y + 9, "start", parts[i].name);
    }
    (void)kg_buf_puts(b, "</svg>\n");
}

/* The pool of one arm over time: states from below, pages from above. */
static void put_pool(struct kg_buf *b, const struct kg_ab_report *r, uint32_t arm)
{
    const struct kg_ab_facts *f = &r->facts[arm];
    double tall = HEIGHT - BELOW - 10, span_s = f->width_s * f->n_bins, low[KG_AB_BINS] = {0};
    double step = (WIDTH - LEFT - 20) / (f->n_bins > 1 ? f->n_bins - 1 : 1);
    char text[32];

    if (f->n_bins < 2 || !(f->arena > 0)) {
        return;
    }
    (void)kg_buf_puts(b, "<h3>Memory over time, s: ");
    put_text(b, r->names[arm]);
    (void)kg_buf_puts(b, "</h3>\n");
    open_svg(b, HEIGHT);
    for (uint32_t p = 0; p < N_PARTS; p++) {
        (void)kg_buf_printf(b, "<polygon fill=\"%s\" points=\"", parts[p].colour);
        for (uint32_t i = 0; i < f->n_bins; i++) {
            (void)kg_buf_printf(b, "%.1f,%.1f ", LEFT + step * i, 10 + tall * (1 - low[i]));
            low[i] = fmin(low[i] + f->series[parts[p].class][i] / f->arena, 1);
        }
        for (uint32_t i = f->n_bins; i-- > 0;) {
            (void)kg_buf_printf(b, "%.1f,%.1f ", LEFT + step * i, 10 + tall * (1 - low[i]));
        }
        (void)kg_buf_printf(b, "\"><title>%s</title></polygon>\n", parts[p].name);
    }
    for (uint32_t i = 0; i <= 4; i++) {
        (void)snprintf(text, sizeof(text), "%u %%", 25 * i);
        put_label(b, LEFT - 8, 14 + tall * (4 - i) / 4, "end", text);
        (void)snprintf(text, sizeof(text), "%.0f", span_s * i / 4);
        put_label(b, LEFT + (WIDTH - LEFT - 20) * i / 4, HEIGHT - BELOW + 16, "middle", text);
    }
    (void)kg_buf_puts(b, "</svg>\n");
}

/* --- the page --- */

int kg_ab_html_head(const char *trace, struct kg_buf *b)
{
    (void)kg_buf_puts(b, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                         "<meta name=\"viewport\" content=\"width=device-width\">"
                         "<title>kedge ab</title>\n<style>");
    (void)kg_buf_puts(b, style);
    (void)kg_buf_puts(b, "</style></head><body>\n<h1>A/B on ");
    put_text(b, trace);
    return kg_buf_puts(b, "</h1>\n");
}

static void put_lines(struct kg_buf *b, const char *text)
{
    struct kg_buf escaped;

    kg_buf_init(&escaped, 0);
    put_text(&escaped, text);
    for (const char *s = kg_buf_cstr(&escaped); *s != '\0'; s++) {
        if (*s == '\n') {
            (void)kg_buf_puts(b, "<br>\n");
        } else {
            (void)kg_buf_putc(b, *s);
        }
    }
    kg_buf_fini(&escaped);
}

int kg_ab_html(const struct kg_ab_report *r, struct kg_buf *b)
{
    struct kg_buf words;

    (void)kg_buf_puts(b, "<section>\n<h2>");
    put_text(b, r->at != NULL ? r->at : r->names[0]);
    if (r->at == NULL) {
        (void)kg_buf_puts(b, " against ");
        put_text(b, r->names[1]);
    }
    (void)kg_buf_puts(b, "</h2>\n<p>");
    kg_buf_init(&words, 0);
    for (uint32_t k = 0; k < 2; k++) {
        (void)kg_buf_printf(b,
                            "<svg width=\"14\" height=\"10\" style=\"display:inline;margin:0\">"
                            "<rect class=\"f%c\" width=\"10\" height=\"10\"/></svg>",
                            'a' + (char)k);
        put_text(b, r->names[k]);
        (void)kg_buf_puts(b, ": ");
        kg_buf_reset(&words);
        (void)kg_ab_about(r, k, &words);
        put_text(b, kg_buf_cstr(&words));
        (void)kg_buf_puts(b, "<br>\n");
    }
    kg_buf_reset(&words);
    (void)kg_ab_size(r, &words);
    put_text(b, kg_buf_cstr(&words));
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
    (void)kg_buf_puts(b, "<h3>Changes with their 95 % intervals</h3>\n");
    put_intervals(b, &r->result);
    put_ecdf(b, r, KG_AB_TTFT, "TTFT");
    put_ecdf(b, r, KG_AB_TPOT, "TPOT");
    put_ecdf(b, r, KG_AB_E2E, "E2E");
    put_load(b, r);
    if (r->log == NULL) { /* the arms of a server have one memory */
        put_memory(b, r);
        put_pool(b, r, 0);
        put_pool(b, r, 1);
    }
    return kg_buf_puts(b, "</section>\n");
}

int kg_ab_html_tail(struct kg_buf *b)
{
    return kg_buf_puts(b, "</body></html>\n");
}
