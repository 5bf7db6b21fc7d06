#include "table.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_AXES 256
#define MAX_BYTES (4u << 20)

struct reader {
    const char *path;
    uint32_t line, begun;
    struct sim_table *t;
    const double *axis[MAX_AXES];
    uint32_t n_axis[MAX_AXES];
    size_t used, room; /* numbers */
    uint32_t cap;      /* curves */
    struct kg_error *err;
};

#define BAD(r, fmt, ...) \
    kg_fail((r)->err, KG_ECONFIG, "%s:%u: " fmt, (r)->path, (r)->line, __VA_ARGS__)

static int number(struct reader *r, const char *what, const char *s, double *v)
{
    char *end;

    *v = s != NULL ? strtod(s, &end) : 0;
    if (s == NULL || end == s || *end != '\0' || !(*v >= 0 && *v <= 1e18)) {
        return BAD(r, "%s: wanted a number from 0 to 1e18, found \"%.40s\"", what,
                   s != NULL ? s : "");
    }
    return KG_OK;
}

/* Numbers to the end of the line, all above 0. */
static int numbers(struct reader *r, const char *what, char *rest, const double **out, uint32_t *n)
{
    double *v = r->t->numbers + r->used;
    char *word;

    *n = 0;
    while ((word = strsep(&rest, " ")) != NULL) {
        if (r->used + *n == r->room) {
            return BAD(r, "%s: more numbers than words", what);
        }
        int rc = number(r, what, word, &v[*n]);
        if (rc != KG_OK) {
            return rc;
        }
        if (v[*n] <= 0) {
            return BAD(r, "%s: 0 is no size and no time", what);
        }
        (*n)++;
    }
    if (*n == 0) {
        return BAD(r, "%s: no numbers", what);
    }
    r->used += *n;
    *out = v;
    return KG_OK;
}

static int read_axis(struct reader *r, char *rest)
{
    const char *word = strsep(&rest, " ");
    double id;
    const double *x;
    uint32_t n;

    int rc = number(r, "x", word, &id);
    if (rc == KG_OK && (id != floor(id) || id >= MAX_AXES || r->n_axis[(int)id] > 0)) {
        rc = BAD(r, "x: axis %s is there already, or not below %d", word, MAX_AXES);
    }
    if (rc == KG_OK) {
        rc = numbers(r, "x", rest, &x, &n);
    }
    if (rc != KG_OK) {
        return rc;
    }
    for (uint32_t i = 1; i < n; i++) {
        if (x[i] <= x[i - 1]) {
            return BAD(r, "x: %g after %g: must rise", x[i], x[i - 1]);
        }
    }
    r->axis[(int)id] = x;
    r->n_axis[(int)id] = n;
    return KG_OK;
}

static int read_curve(struct reader *r, const char *key, char *rest)
{
    struct sim_table *t = r->t;
    const char *word = strsep(&rest, " ");
    const double *y;
    double id;
    uint32_t n;

    int rc = number(r, key, word, &id);
    if (rc == KG_OK && (id != floor(id) || id >= MAX_AXES || r->n_axis[(int)id] == 0)) {
        rc = BAD(r, "%.60s: no axis %s", key, word);
    }
    if (rc == KG_OK) {
        rc = numbers(r, key, rest, &y, &n);
    }
    if (rc != KG_OK) {
        return rc;
    }
    if (n != r->n_axis[(int)id]) {
        return BAD(r, "%.60s: %u numbers on an axis of %u", key, n, r->n_axis[(int)id]);
    }
    if (t->n_curves > 0 && strcmp(t->curves[t->n_curves - 1].key, key) >= 0) {
        return BAD(r, "%.60s: keys must rise", key);
    }
    if (t->n_curves == r->cap) {
        return BAD(r, "%.60s: more curves than lines", key);
    }
    t->curves[t->n_curves++] = (struct sim_curve){key, n, r->axis[(int)id], y};
    return KG_OK;
}

static int read_nominal(struct reader *r, char *rest)
{
    struct sim_table *t = r->t;
    const struct {
        const char *name;
        double *v;
    } names[] = {{"mem_bytes", &t->mem_bytes},
                 {"mem_bw", &t->mem_bw},
                 {"bf16_flops", &t->bf16_flops},
                 {"fp8_flops", &t->fp8_flops},
                 {"fp4_flops", &t->fp4_flops},
                 {"scaleup_bw", &t->scaleup_bw},
                 {"scaleout_bw", &t->scaleout_bw},
                 {"gpus_per_node", &t->gpus_per_node},
                 {"gpus_per_scaleup", &t->gpus_per_scaleup}};
    const char *name = strsep(&rest, " ");

    for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (name != NULL && strcmp(name, names[i].name) == 0) {
            return number(r, name, rest, names[i].v);
        }
    }
    return BAD(r, "nominal: no \"%.40s\"", name != NULL ? name : "");
}

static int read_line(struct reader *r, char *s)
{
    char *rest = s;

    if (s[0] == '\0' || s[0] == '#') {
        return KG_OK;
    }
    if (!r->begun) {
        r->begun = 1;
        return strcmp(s, "kedge-table 1") == 0
                   ? KG_OK
                   : BAD(r, "wanted \"kedge-table 1\", found \"%.40s\"", s);
    }
    const char *key = strsep(&rest, " ");
    if (rest == NULL) {
        return BAD(r, "%.60s: nothing behind it", key);
    }
    if (strcmp(key, "system") == 0) {
        (void)snprintf(r->t->system, sizeof(r->t->system), "%s", rest);
        return KG_OK;
    }
    if (strcmp(key, "nominal") == 0) {
        return read_nominal(r, rest);
    }
    return strcmp(key, "x") == 0 ? read_axis(r, rest) : read_curve(r, key, rest);
}

/* The whole file as text. */
static int load(const char *path, char **text, size_t *bytes, struct kg_error *err)
{
    FILE *f = fopen(path, "r");

    if (f == NULL) {
        return kg_fail(err, errno == ENOENT ? KG_ENOENT : KG_EIO, "%s: %s", path, strerror(errno));
    }
    char *p = malloc(MAX_BYTES);
    size_t n = p != NULL ? fread(p, 1, MAX_BYTES, f) : 0;
    int bad = p == NULL || ferror(f);
    (void)fclose(f);
    if (bad || n == MAX_BYTES) {
        free(p);
        return bad ? kg_fail(err, p == NULL ? KG_ENOMEM : KG_EIO, "%s: cannot be read", path)
                   : kg_fail(err, KG_ECONFIG, "%s: not below %u bytes", path, MAX_BYTES);
    }
    p[n] = '\0';
    *text = p;
    *bytes = n;
    return KG_OK;
}

int sim_table_read(const char *path, struct sim_table *table, struct kg_error *err)
{
    struct reader r = {.path = path, .t = table, .err = err};
    size_t bytes = 0;

    memset(table, 0, sizeof(*table));
    int rc = load(path, &table->text, &bytes, err);
    if (rc != KG_OK) {
        return rc;
    }
    r.cap = 1;
    for (size_t i = 0; i < bytes; i++) {
        r.cap += table->text[i] == '\n';
        r.room += table->text[i] == ' ';
    }
    table->curves = calloc(r.cap, sizeof(*table->curves));
    table->numbers = calloc(r.room + 1, sizeof(double));
    if (table->curves == NULL || table->numbers == NULL) {
        rc = kg_fail(err, KG_ENOMEM, "%s: no memory for %u lines", path, r.cap);
    }
    char *rest = table->text, *s;
    while (rc == KG_OK && (s = strsep(&rest, "\n")) != NULL) {
        r.line++;
        rc = read_line(&r, s);
    }
    if (rc == KG_OK && (table->n_curves == 0 || !(table->mem_bw > 0) || !(table->bf16_flops > 0))) {
        rc = BAD(&r, "%s", "no curves, or no nominal mem_bw and bf16_flops");
    }
    if (rc != KG_OK) {
        sim_table_free(table);
    }
    return rc;
}

void sim_table_free(struct sim_table *table)
{
    free(table->text);
    free(table->curves);
    free(table->numbers);
    memset(table, 0, sizeof(*table));
}

/* The first curve whose key is not below. */
static uint32_t lower(const struct sim_table *t, const char *key)
{
    uint32_t lo = 0, hi = t->n_curves;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (strcmp(t->curves[mid].key, key) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

const struct sim_curve *sim_table_find(const struct sim_table *table, const char *key)
{
    uint32_t i = lower(table, key);

    return i < table->n_curves && strcmp(table->curves[i].key, key) == 0 ? &table->curves[i] : NULL;
}

const struct sim_curve *sim_table_prefix(const struct sim_table *table, const char *prefix,
                                         uint32_t *n)
{
    size_t len = strlen(prefix);
    uint32_t i = lower(table, prefix);

    *n = 0;
    while (i + *n < table->n_curves && strncmp(table->curves[i + *n].key, prefix, len) == 0) {
        (*n)++;
    }
    return *n > 0 ? &table->curves[i] : NULL;
}

/* Index of the point at or before x; curve->n - 1 at most. */
static uint32_t place(const struct sim_curve *c, double x)
{
    uint32_t lo = 0, hi = c->n - 1;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        if (c->x[mid] <= x) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return lo;
}

struct sim_value sim_curve_at(const struct sim_curve *curve, double x)
{
    uint32_t i = place(curve, x), last = curve->n - 1;

    if (x <= curve->x[0]) {
        return (struct sim_value){curve->y[0], x < curve->x[0] ? SIM_EXTRAPOLATED : SIM_MEASURED};
    }
    if (x >= curve->x[last]) {
        return (struct sim_value){curve->y[last] * x / curve->x[last],
                                  x > curve->x[last] ? SIM_EXTRAPOLATED : SIM_MEASURED};
    }
    double share = (x - curve->x[i]) / (curve->x[i + 1] - curve->x[i]);
    return (struct sim_value){curve->y[i] + share * (curve->y[i + 1] - curve->y[i]),
                              share > 0 ? SIM_INTERPOLATED : SIM_MEASURED};
}

struct sim_value sim_curve_log_at(const struct sim_curve *curve, double x)
{
    uint32_t i = place(curve, x), last = curve->n - 1;
    uint32_t class = SIM_INTERPOLATED;

    if (x <= curve->x[0] || curve->n == 1 || x == curve->x[i]) {
        return sim_curve_at(curve, x);
    }
    if (i == last) {
        i = last - 1;
        class = SIM_EXTRAPOLATED;
    }
    double slope = log(curve->y[i + 1] / curve->y[i]) / log(curve->x[i + 1] / curve->x[i]);
    slope = class == SIM_EXTRAPOLATED && slope < 1 ? 1 : slope;
    double from = class == SIM_EXTRAPOLATED ? curve->x[last] : curve->x[i];
    double y = class == SIM_EXTRAPOLATED ? curve->y[last] : curve->y[i];
    return (struct sim_value){y * pow(x / from, slope), class};
}

void sim_family_find(const struct sim_table *table, const char *prefix, const char *suffix,
                     struct sim_family *family)
{
    uint32_t n, len = (uint32_t)strlen(prefix);
    const struct sim_curve *c = sim_table_prefix(table, prefix, &n);

    family->n = 0;
    for (uint32_t i = 0; i < n && family->n < SIM_FAMILY; i++) {
        char *end;
        double at = strtod(c[i].key + len, &end);
        if (end == c[i].key + len || strcmp(end, suffix) != 0) {
            continue;
        }
        uint32_t k = family->n++;
        for (; k > 0 && family->at[k - 1] > at; k--) {
            family->at[k] = family->at[k - 1];
            family->curve[k] = family->curve[k - 1];
        }
        family->at[k] = at;
        family->curve[k] = &c[i];
    }
}

struct sim_value sim_between(double a, struct sim_value va, double b, struct sim_value vb, double x)
{
    double share = b > a ? (x - a) / (b - a) : 0;
    uint32_t class = va.class > vb.class ? va.class : vb.class;

    if (share > 0 && share < 1 && class < SIM_INTERPOLATED) {
        class = SIM_INTERPOLATED;
    }
    return (struct sim_value){va.us + share * (vb.us - va.us), class};
}

struct sim_value sim_family_at(const struct sim_family *f, double at, double x, int log)
{
    struct sim_value (*get)(const struct sim_curve *, double) =
        log ? sim_curve_log_at : sim_curve_at;
    uint32_t i = 0;

    if (f->n == 0) {
        return (struct sim_value){0, SIM_ASSUMED};
    }
    while (i + 1 < f->n && f->at[i + 1] <= at) {
        i++;
    }
    struct sim_value v = get(f->curve[i], x);
    if (at < f->at[0]) {
        v.class = v.class < SIM_EXTRAPOLATED ? SIM_EXTRAPOLATED : v.class;
    } else if (i == f->n - 1) {
        v.us *= at / f->at[i];
        v.class = at > f->at[i] && v.class < SIM_EXTRAPOLATED ? SIM_EXTRAPOLATED : v.class;
    } else if (at > f->at[i]) {
        v = sim_between(f->at[i], v, f->at[i + 1], get(f->curve[i + 1], x), at);
    }
    return v;
}
