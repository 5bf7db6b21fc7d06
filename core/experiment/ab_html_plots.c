#include "experiment/ab_html_int.h"

#include <math.h>
#include <stdlib.h>

#define N_BINS 240u  /* of requests over time */
#define N_STEPS 200u /* of a distribution */

/* --- distributions --- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Values above 0 of one time of an arm, ascending; v is NULL without memory. */
struct values {
    double *v;
    size_t n;
};

static struct values values_of(const struct kg_ab_report *r, uint32_t arm, uint32_t field)
{
    uint32_t most = kg_ab_n_rows(&r->conf, arm);
    struct values out = {.v = malloc(((size_t)most + 1) * sizeof(double))};

    for (uint32_t i = 0; out.v != NULL && i < most; i++) {
        const struct kg_ab_row *row = kg_ab_row_at(&r->conf, arm, i);
        if (row->ok && row->v[field] > 0) {
            out.v[out.n++] = row->v[field];
        }
    }
    if (out.v != NULL) {
        qsort(out.v, out.n, sizeof(*out.v), by_value);
    }
    return out;
}

/* Lines at 1, 2 and 5 times each power of ten between lo and hi. */
static void put_log_grid(struct kg_buf *b, double lo, double hi, double scale)
{
    const double steps[] = {1, 2, 5};
    char text[32];

    for (double ten = pow(10, floor(log10(lo))); ten <= hi; ten *= 10) {
        for (uint32_t i = 0; i < 3; i++) {
            double v = ten * steps[i], x = KG_HTML_LEFT + log(v / lo) * scale;
            if (v < lo || v > hi || (i > 0 && hi / lo > 300)) {
                continue;
            }
            kg_html_line(b, "g", x, KG_HTML_ABOVE, x, KG_HTML_HEIGHT - KG_HTML_BELOW);
            (void)snprintf(text, sizeof(text), "%g", v);
            kg_html_label(b, x, KG_HTML_HEIGHT - KG_HTML_BELOW + 16, "middle", text);
        }
    }
}

static void put_curve(struct kg_buf *b, uint32_t arm, const struct values *s, double lo, double hi,
                      double scale)
{
    (void)kg_buf_printf(b, "<path class=\"%s\" d=\"", KG_HTML_ARM(arm));
    for (uint32_t i = 0; i <= N_STEPS; i++) {
        size_t at = (s->n - 1) * i / N_STEPS;
        (void)kg_buf_printf(b, "%s%.1f %.1f", i == 0 ? "M" : "L",
                            KG_HTML_LEFT + log(kg_html_clip(s->v[at], lo, hi) / lo) * scale,
                            KG_HTML_ABOVE + KG_HTML_TALL * (1 - (double)(at + 1) / (double)s->n));
    }
    (void)kg_buf_puts(b, "\"/>");
}

static void put_ecdf(struct kg_buf *b, const struct kg_ab_report *r, uint32_t field,
                     const char *title)
{
    struct values s[2] = {values_of(r, 0, field), values_of(r, 1, field)};
    char heading[80], words[400];

    if (s[0].v != NULL && s[1].v != NULL && s[0].n > 1 && s[1].n > 1) {
        double lo = fmin(s[0].v[s[0].n / 200], s[1].v[s[1].n / 200]);
        double hi = fmax(s[0].v[s[0].n - 1], s[1].v[s[1].n - 1]);
        hi = hi > lo * 1.01 ? hi : lo * 1.01;
        double scale = KG_HTML_WIDE / log(hi / lo);
        (void)snprintf(heading, sizeof(heading), "%s, ms: share of requests at or below", title);
        (void)snprintf(words, sizeof(words),
                       "%s: %.60s median %.4g ms, 90 %% within %.4g ms; %.60s median %.4g ms, 90 "
                       "%% within %.4g ms",
                       title, r->names[0], s[0].v[s[0].n / 2], s[0].v[s[0].n * 9 / 10], r->names[1],
                       s[1].v[s[1].n / 2], s[1].v[s[1].n * 9 / 10]);
        kg_html_open(b, heading, KG_HTML_HEIGHT, words);
        put_log_grid(b, lo, hi, scale);
        kg_html_levels(b, 100, " %");
        put_curve(b, 0, &s[0], lo, hi, scale);
        put_curve(b, 1, &s[1], lo, hi, scale);
        kg_html_close(b);
    }
    free(s[0].v);
    free(s[1].v);
}

void kg_html_distributions(struct kg_buf *b, const struct kg_ab_report *r)
{
    put_ecdf(b, r, KG_AB_TTFT, "TTFT");
    put_ecdf(b, r, KG_AB_TPOT, "TPOT");
    put_ecdf(b, r, KG_AB_E2E, "E2E");
}

/* --- over time --- */

/* Adds the share of each bin that lies in from..to. */
static void add_span(double *bins, double from, double to, double width)
{
    if (!(to > from) || !(width > 0)) {
        return;
    }
    uint32_t i = (uint32_t)kg_html_clip(from / width, 0, N_BINS - 1);
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

static void put_series(struct kg_buf *b, const struct kg_ab_report *r, const char *title,
                       double span_s, const double bins[2][N_BINS])
{
    double most[2] = {0}, mean[2] = {0}, step = KG_HTML_WIDE / N_BINS;
    char heading[80], words[400];

    for (uint32_t arm = 0; arm < 2; arm++) {
        for (uint32_t i = 0; i < N_BINS; i++) {
            most[arm] = fmax(most[arm], bins[arm][i]);
            mean[arm] += bins[arm][i] / N_BINS;
        }
    }
    double top = kg_html_ceiling(fmax(most[0], most[1]));
    (void)snprintf(heading, sizeof(heading), "%s over time, s", title);
    (void)snprintf(words, sizeof(words),
                   "%s: %.60s mean %.3g, most %.3g; %.60s mean %.3g, most %.3g", title, r->names[0],
                   mean[0], most[0], r->names[1], mean[1], most[1]);
    kg_html_open(b, heading, KG_HTML_HEIGHT, words);
    kg_html_levels(b, top, "");
    kg_html_times(b, span_s);
    for (uint32_t arm = 0; arm < 2; arm++) {
        (void)kg_buf_printf(b, "<path class=\"%s\" d=\"", KG_HTML_ARM(arm));
        for (uint32_t i = 0; i < N_BINS; i++) {
            (void)kg_buf_printf(b, "%s%.1f %.1f", i == 0 ? "M" : "L",
                                KG_HTML_LEFT + step * (i + 0.5),
                                KG_HTML_ABOVE + KG_HTML_TALL * (1 - bins[arm][i] / top));
        }
        (void)kg_buf_puts(b, "\"/>");
    }
    kg_html_close(b);
}

void kg_html_load(struct kg_buf *b, const struct kg_ab_report *r)
{
    double waiting[2][N_BINS] = {{0}}, running[2][N_BINS] = {{0}};
    double span_s = fmax(r->facts[0].duration_s, r->facts[1].duration_s);

    for (uint32_t arm = 0; arm < 2; arm++) {
        load_of(r, arm, span_s * 1000 / N_BINS, waiting[arm], running[arm]);
    }
    put_series(b, r, "Requests that wait", span_s, waiting);
    put_series(b, r, "Requests that run", span_s, running);
}

/* --- memory --- */

/* As the pool is laid out, from the end of the states to that of the pages. */
static const struct {
    uint32_t class;
    const char *name, *fill; /* class of the style */
} parts[] = {{1, "live states", "ls"},  {3, "cached states", "cs"}, {6, "free", "gp"},
             {5, "holes", "ho"},        {7, "padding", "pd"},       {4, "pinned", "pn"},
             {2, "cached pages", "cp"}, {0, "live pages", "lp"}};
#define N_PARTS (sizeof(parts) / sizeof(parts[0]))

static void size_text(double bytes, char *text, size_t n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    uint32_t i = 0;

    for (; bytes >= 1024 && i < 4; i++) {
        bytes /= 1024;
    }
    (void)snprintf(text, n, "%.3g %s", bytes, units[i]);
}

static double share_of(const struct kg_ab_facts *f, double bytes)
{
    return f->arena > 0 ? bytes / f->arena : 0;
}

/* What the pool held on average, in words. */
static void pool_words(const struct kg_ab_report *r, uint32_t arm, char *words, size_t n)
{
    const struct kg_ab_facts *f = &r->facts[arm];
    const double *m = f->bytes_mean;

    (void)snprintf(words, n, "%.60s: states %.1f %%, pages %.1f %%, holes %.1f %%, free %.1f %%",
                   r->names[arm], 100 * share_of(f, m[1] + m[3]), 100 * share_of(f, m[0] + m[2]),
                   100 * share_of(f, m[5]), 100 * share_of(f, m[6]));
}

/* The pool of each arm, means over time: states from the left end, pages from the right one. */
static void put_memory(struct kg_buf *b, const struct kg_ab_report *r)
{
    double x, left = 150, wide = KG_HTML_WIDTH - left - 90;
    char size[32], words[2][200], both[420];

    pool_words(r, 0, words[0], sizeof(words[0]));
    pool_words(r, 1, words[1], sizeof(words[1]));
    (void)snprintf(both, sizeof(both), "%s; %s", words[0], words[1]);
    kg_html_open(b, "Memory, mean over time", 120, both);
    for (uint32_t arm = 0; arm < 2; arm++) {
        const struct kg_ab_facts *f = &r->facts[arm];
        (void)snprintf(both, sizeof(both), "%.24s", r->names[arm]);
        kg_html_label(b, left - 10, 24 + 32.0 * arm, "end", both);
        x = left;
        for (uint32_t i = 0; f->arena > 0 && i < N_PARTS; i++) {
            double share = share_of(f, f->bytes_mean[parts[i].class]);
            (void)kg_buf_printf(b,
                                "<rect class=\"%s\" x=\"%.2f\" y=\"%g\" width=\"%.2f\" "
                                "height=\"22\"><title>%s %.1f %%</title></rect>",
                                parts[i].fill, x, 8 + 32.0 * arm, share * wide, parts[i].name,
                                100 * share);
            x += share * wide;
        }
        size_text(f->arena, size, sizeof(size));
        kg_html_label(b, left + wide + 10, 24 + 32.0 * arm, "start", size);
    }
    for (uint32_t i = 0; i < N_PARTS; i++) {
        x = left + 135.0 * (i % 4);
        double y = 82 + 18.0 * (i / 4);
        (void)kg_buf_printf(b, "<rect class=\"%s\" x=\"%g\" y=\"%g\" width=\"10\" height=\"10\"/>",
                            parts[i].fill, x, y);
        kg_html_label(b, x + 14, y + 9, "start", parts[i].name);
    }
    kg_html_close(b);
}

/* Areas on each other: states from below, pages from above. */
static void put_areas(struct kg_buf *b, const struct kg_ab_facts *f, uint32_t n_bins, double step)
{
    double low[KG_AB_BINS] = {0};

    for (uint32_t p = 0; p < N_PARTS; p++) {
        (void)kg_buf_printf(b, "<polygon class=\"%s\" points=\"", parts[p].fill);
        for (uint32_t i = 0; i < n_bins; i++) {
            (void)kg_buf_printf(b, "%.1f,%.1f ", KG_HTML_LEFT + step * i,
                                KG_HTML_ABOVE + KG_HTML_TALL * (1 - low[i]));
            low[i] = fmin(low[i] + share_of(f, f->series[parts[p].class][i]), 1);
        }
        for (uint32_t i = n_bins; i-- > 0;) {
            (void)kg_buf_printf(b, "%.1f,%.1f ", KG_HTML_LEFT + step * i,
                                KG_HTML_ABOVE + KG_HTML_TALL * (1 - low[i]));
        }
        (void)kg_buf_printf(b, "\"><title>%s</title></polygon>\n", parts[p].name);
    }
}

/* The pool of one arm over time. The last bin ends after the run, so it is left out where it can
 * be. */
static void put_pool(struct kg_buf *b, const struct kg_ab_report *r, uint32_t arm)
{
    const struct kg_ab_facts *f = &r->facts[arm];
    uint32_t n = f->n_bins;
    char heading[160], words[200], size[32];

    if (n < 2 || !(f->arena > 0)) {
        return;
    }
    double span_s = f->width_s * (n - 1);
    (void)snprintf(heading, sizeof(heading), "Memory over time, s: %.100s", r->names[arm]);
    pool_words(r, arm, words, sizeof(words));
    kg_html_open(b, heading, KG_HTML_HEIGHT, words);
    put_areas(b, f, n, KG_HTML_WIDE / (n - 1));
    for (uint32_t i = 0; i <= 4; i++) {
        size_text(f->arena * i / 4, size, sizeof(size));
        kg_html_label(b, KG_HTML_LEFT - 6, KG_HTML_ABOVE + 4 + KG_HTML_TALL * (4 - i) / 4, "end",
                      i == 0 ? "0" : size);
    }
    kg_html_times(b, span_s);
    kg_html_label(b, KG_HTML_LEFT + 8, KG_HTML_ABOVE + KG_HTML_TALL - 8, "start", "states");
    kg_html_label(b, KG_HTML_LEFT + 8, KG_HTML_ABOVE + 16, "start", "pages");
    kg_html_close(b);
}

void kg_html_pools(struct kg_buf *b, const struct kg_ab_report *r)
{
    put_memory(b, r);
    put_pool(b, r, 0);
    put_pool(b, r, 1);
}
