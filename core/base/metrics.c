#include "base/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HISTOGRAM 'h'

/* One series: a cell or a histogram under a name with labels. */
struct series {
    char *name, *doc, *labels; /* owned */
    char type;
    double scale;
    const struct kg_cell *cell;
    const struct kg_histo *histo;
};

struct kg_metrics {
    struct series *series; /* [n], those of one name side by side, names in order of arrival */
    size_t n, cap;
};

int kg_histo_init(struct kg_histo *h, const double *bounds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(bounds[i]) || (i > 0 && bounds[i] <= bounds[i - 1]))
            return KG_EINVAL;
    }
    struct kg_cell *cells = calloc((size_t)n + 1, sizeof(*cells));
    if (cells == NULL)
        return KG_ENOMEM;
    h->bounds = bounds;
    h->n = n;
    h->cells = cells;
    atomic_init(&h->sum, 0.0);
    return KG_OK;
}

void kg_histo_fini(struct kg_histo *h)
{
    free(h->cells);
    h->cells = NULL;
    h->n = 0;
}

void kg_histo_observe(struct kg_histo *h, double v)
{
    uint32_t lo = 0;
    uint32_t hi = h->n;

    if (isnan(v))
        return;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (v <= h->bounds[mid])
            hi = mid;
        else
            lo = mid + 1;
    }
    kg_add(&h->cells[lo], 1);
    double sum = atomic_load_explicit(&h->sum, memory_order_relaxed);
    atomic_store_explicit(&h->sum, sum + v, memory_order_relaxed);
}

int kg_metrics_create(struct kg_metrics **m)
{
    struct kg_metrics *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return KG_ENOMEM;
    *m = p;
    return KG_OK;
}

static void series_fini(struct series *s)
{
    free(s->name);
    free(s->doc);
    free(s->labels);
}

void kg_metrics_destroy(struct kg_metrics *m)
{
    if (m == NULL)
        return;
    for (size_t i = 0; i < m->n; i++)
        series_fini(&m->series[i]);
    free(m->series);
    free(m);
}

static int name_ok(const char *s)
{
    size_t n = 0;

    for (; s[n] != '\0'; n++) {
        char c = s[n];
        int alpha = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':';
        if (!alpha && (n == 0 || c < '0' || c > '9'))
            return 0;
    }
    return n > 0;
}

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s);
    size_t k = strlen(end);

    return n >= k && strcmp(s + n - k, end) == 0;
}

/* Where a series of this name goes: behind the last one of the name, else at the end. */
static int find_place(const struct kg_metrics *m, const struct series *s, size_t *at,
                      struct kg_error *err)
{
    *at = m->n;
    for (size_t i = 0; i < m->n; i++) {
        const struct series *o = &m->series[i];
        if (strcmp(o->name, s->name) != 0)
            continue;
        if (o->type != s->type || strcmp(o->doc, s->doc) != 0)
            return kg_fail(err, KG_EINVAL, "metric %s: registered with another type or text",
                           s->name);
        if (strcmp(o->labels, s->labels) == 0)
            return kg_fail(err, KG_EINVAL, "metric %s{%s}: registered twice", s->name, s->labels);
        *at = i + 1;
    }
    return KG_OK;
}

/* Takes over the strings of s, on failure too. */
static int insert(struct kg_metrics *m, struct series s, struct kg_error *err)
{
    size_t at = m->n;
    int rc = KG_OK;

    if (s.name == NULL || s.doc == NULL || s.labels == NULL)
        rc = kg_fail(err, KG_ENOMEM, "metrics: out of memory");
    else if (!name_ok(s.name))
        rc = kg_fail(err, KG_EINVAL, "metric \"%s\": not a legal name", s.name);
    else if ((s.type == KG_COUNTER) != (ends_with(s.name, "_total") != 0))
        rc = kg_fail(err, KG_EINVAL, "metric %s: counters and only counters end in _total", s.name);
    else if (s.type != KG_COUNTER && s.type != KG_GAUGE && s.type != HISTOGRAM)
        rc = kg_fail(err, KG_EINVAL, "metric %s: unknown type", s.name);
    else
        rc = find_place(m, &s, &at, err);
    if (rc == KG_OK && m->n == m->cap) {
        size_t cap = m->cap != 0 ? m->cap * 2 : 64;
        struct series *p = realloc(m->series, cap * sizeof(*p));
        if (p == NULL) {
            rc = kg_fail(err, KG_ENOMEM, "metrics: out of memory");
        } else {
            m->series = p;
            m->cap = cap;
        }
    }
    if (rc != KG_OK) {
        series_fini(&s);
        return rc;
    }
    memmove(m->series + at + 1, m->series + at, (m->n - at) * sizeof(s));
    m->series[at] = s;
    m->n++;
    return KG_OK;
}

int kg_metrics_add(struct kg_metrics *m, const struct kg_metric_row *rows,
                   const struct kg_cell *cells, const char *labels, struct kg_error *err)
{
    for (size_t i = 0; rows[i].name != NULL; i++) {
        struct series s = {.name = strdup(rows[i].name),
                           .doc = strdup(rows[i].doc),
                           .labels = strdup(labels),
                           .type = rows[i].type,
                           .scale = rows[i].scale != 0 ? rows[i].scale : 1,
                           .cell = &cells[i]};
        int rc = insert(m, s, err);
        if (rc != KG_OK)
            return rc;
    }
    return KG_OK;
}

int kg_metrics_add_plugin(struct kg_metrics *m, const char *prefix, const struct kg_metric *rows,
                          const struct kg_cell *cells, const char *labels, struct kg_error *err)
{
    for (size_t i = 0; rows != NULL && rows[i].name != NULL; i++) {
        size_t n = strlen(prefix) + strlen(rows[i].name) + 1;
        char *name = malloc(n);
        if (name != NULL)
            (void)snprintf(name, n, "%s%s", prefix, rows[i].name);
        struct series s = {.name = name,
                           .doc = strdup(rows[i].doc),
                           .labels = strdup(labels),
                           .type = rows[i].type,
                           .scale = 1,
                           .cell = &cells[i]};
        int rc = insert(m, s, err);
        if (rc != KG_OK)
            return rc;
    }
    return KG_OK;
}

int kg_metrics_add_histo(struct kg_metrics *m, const char *name, const char *doc,
                         const struct kg_histo *h, const char *labels, struct kg_error *err)
{
    struct series s = {.name = strdup(name),
                       .doc = strdup(doc),
                       .labels = strdup(labels),
                       .type = HISTOGRAM,
                       .scale = 1,
                       .histo = h};

    return insert(m, s, err);
}

static void put_number(struct kg_buf *b, double v)
{
    if (isnan(v))
        (void)kg_buf_puts(b, "NaN");
    else if (isinf(v))
        (void)kg_buf_puts(b, v > 0 ? "+Inf" : "-Inf");
    else if (v == floor(v) && fabs(v) < 0x1.0p53)
        (void)kg_buf_printf(b, "%.0f", v);
    else
        (void)kg_buf_json_f64(b, v);
}

/* Escapes for HELP (quotes = 0) and label values (quotes = 1). */
static void put_escaped(struct kg_buf *b, const char *s, int quotes)
{
    for (; *s != '\0'; s++) {
        if (*s == '\\')
            (void)kg_buf_puts(b, "\\\\");
        else if (*s == '\n')
            (void)kg_buf_puts(b, "\\n");
        else if (*s == '"' && quotes)
            (void)kg_buf_puts(b, "\\\"");
        else
            (void)kg_buf_putc(b, *s);
    }
}

int kg_metrics_family(struct kg_buf *b, const char *name, char type, const char *doc)
{
    const char *word = type == KG_COUNTER ? "counter" : type == KG_GAUGE ? "gauge" : "histogram";

    (void)kg_buf_printf(b, "# HELP %s ", name);
    put_escaped(b, doc, 0);
    return kg_buf_printf(b, "\n# TYPE %s %s\n", name, word);
}

int kg_metrics_sample(struct kg_buf *b, const char *name, const char *labels, double v)
{
    (void)kg_buf_puts(b, name);
    if (labels != NULL && labels[0] != '\0')
        (void)kg_buf_printf(b, "{%s}", labels);
    (void)kg_buf_putc(b, ' ');
    put_number(b, v);
    return kg_buf_putc(b, '\n');
}

int kg_metrics_label(struct kg_buf *b, const char *name, const char *value)
{
    (void)kg_buf_printf(b, "%s%s=\"", b->len > 0 ? "," : "", name);
    put_escaped(b, value, 1);
    return kg_buf_putc(b, '"');
}

/* _count is the +Inf bucket by construction, so a scrape during an observation is consistent. */
static void put_histo(struct kg_buf *b, const struct series *s)
{
    const struct kg_histo *h = s->histo;
    const char *comma = s->labels[0] != '\0' ? "," : "";
    const char *open = s->labels[0] != '\0' ? "{" : "";
    const char *close = s->labels[0] != '\0' ? "}" : "";
    uint64_t total = 0;

    for (uint32_t i = 0; i <= h->n; i++) {
        total += kg_get(&h->cells[i]);
        (void)kg_buf_printf(b, "%s_bucket{%s%sle=\"", s->name, s->labels, comma);
        put_number(b, i < h->n ? h->bounds[i] : INFINITY);
        (void)kg_buf_printf(b, "\"} %llu\n", (unsigned long long)total);
    }
    (void)kg_buf_printf(b, "%s_sum%s%s%s ", s->name, open, s->labels, close);
    put_number(b,
               atomic_load_explicit(&((struct kg_histo *)(uintptr_t)h)->sum, memory_order_relaxed));
    (void)kg_buf_printf(b, "\n%s_count%s%s%s %llu\n", s->name, open, s->labels, close,
                        (unsigned long long)total);
}

int kg_metrics_write(const struct kg_metrics *m, struct kg_buf *b)
{
    for (size_t i = 0; i < m->n; i++) {
        const struct series *s = &m->series[i];
        if (i == 0 || strcmp(s->name, m->series[i - 1].name) != 0)
            (void)kg_metrics_family(b, s->name, s->type, s->doc);
        if (s->type == HISTOGRAM)
            put_histo(b, s);
        else
            (void)kg_metrics_sample(b, s->name, s->labels, (double)kg_get(s->cell) * s->scale);
    }
    return b->rc;
}
