/* What there is to try, and in what order. */
#include "experiment/advise.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const objective_names[KG_ADVISE_N_OBJECTIVES] = {"ttft", "tpot", "e2e",
                                                                    "throughput", "goodput"};

const char *kg_advise_objective_name(uint32_t objective)
{
    return objective < KG_ADVISE_N_OBJECTIVES ? objective_names[objective] : NULL;
}

int kg_advise_objective_parse(const char *word, uint32_t *objective)
{
    for (uint32_t i = 0; i < KG_ADVISE_N_OBJECTIVES; i++) {
        if (strcmp(word, objective_names[i]) == 0) {
            *objective = i;
            return KG_OK;
        }
    }
    return KG_EINVAL;
}

/* --- settings --- */

static struct kg_advise_setting *blank(struct kg_advise_dim *d)
{
    struct kg_advise_setting *s = &d->settings[d->n];

    memset(s, 0, sizeof(*s));
    return s;
}

__attribute__((format(printf, 2, 3))) static void assign(struct kg_advise_setting *s,
                                                         const char *fmt, ...)
{
    va_list ap;

    if (s->n_sets < KG_ADVISE_SETS) {
        va_start(ap, fmt);
        (void)vsnprintf(s->sets[s->n_sets++], KG_ADVISE_SET_BYTES, fmt, ap);
        va_end(ap);
    }
}

/* Whether a setting on a scale is there already, to a twentieth. */
static int is_there(const struct kg_advise_dim *d, uint32_t family, double at)
{
    for (uint32_t i = 0; i < d->n; i++) {
        const struct kg_advise_setting *s = &d->settings[i];
        if (s->family == family && s->at > 0 && fabs(s->at / at - 1) < 0.05) {
            return 1;
        }
    }
    return 0;
}

static void keep(struct kg_advise_dim *d)
{
    if (d->n + 1 < KG_ADVISE_SETTINGS) {
        d->n++;
    }
}

/* Checkpoints by a rule with a distance. */
static void add_interval(const struct kg_advise_facts *f, struct kg_advise_dim *d, uint32_t family,
                         double tokens)
{
    uint32_t page = f->page_tokens > 0 ? f->page_tokens : 1;
    uint32_t n = (uint32_t)fmin(fmax(round(tokens / page), 1) * page, 1 << 24);
    const char *word = family == KG_ADVISE_INTERVAL ? "interval" : "auto";
    struct kg_advise_setting *s = blank(d);

    if (n > f->longest || n < f->least_interval || is_there(d, family, n)) {
        return;
    }
    s->family = family;
    s->at = n;
    (void)snprintf(s->label, sizeof(s->label), "%s %u", word, n);
    if (!f->prefix) {
        assign(s, "prefix.enabled=yes");
    }
    if (!f->prefix || strcmp(f->checkpoint, word) != 0) {
        assign(s, "prefix.checkpoint=%s", word);
    }
    assign(s, "prefix.interval=%u", n);
    keep(d);
}

static void add_policy(const struct kg_advise_facts *f, struct kg_advise_dim *d, const char *word)
{
    struct kg_advise_setting *s = blank(d);

    if (f->prefix && strcmp(f->checkpoint, word) == 0) {
        return;
    }
    (void)snprintf(s->label, sizeof(s->label), "checkpoint %s", word);
    if (!f->prefix) {
        assign(s, "prefix.enabled=yes");
    }
    assign(s, "prefix.checkpoint=%s", word);
    keep(d);
}

static void make_reuse(const struct kg_advise_facts *f, struct kg_advise_dim *d)
{
    struct kg_advise_setting *own = &d->settings[0];

    d->name = "reuse";
    if (f->prefix && strcmp(f->checkpoint, "interval") == 0) {
        own->family = KG_ADVISE_INTERVAL;
    } else if (f->prefix && strcmp(f->checkpoint, "auto") == 0) {
        own->family = KG_ADVISE_AUTO;
    }
    own->at = own->family != KG_ADVISE_PLAIN ? f->interval : 0;
    add_policy(f, d, "boundary");
    add_policy(f, d, "branch");
    for (double n = 1024; n <= 16384; n *= 4) {
        add_interval(f, d, KG_ADVISE_AUTO, n);
    }
    for (double n = 512; n <= 131072; n *= 4) {
        add_interval(f, d, KG_ADVISE_INTERVAL, n);
    }
    if (f->prefix) {
        struct kg_advise_setting *s = blank(d);
        (void)snprintf(s->label, sizeof(s->label), "no reuse");
        assign(s, "prefix.enabled=no");
        keep(d);
    }
}

static void add_ratio(const struct kg_advise_facts *f, struct kg_advise_dim *d, double ratio)
{
    struct kg_advise_setting *s = blank(d);
    char text[24];

    (void)snprintf(text, sizeof(text), "%.3g", ratio);
    if (!(ratio >= 0.001 && ratio <= 1000) || is_there(d, KG_ADVISE_RATIO, ratio)) {
        return;
    }
    s->family = KG_ADVISE_RATIO;
    s->at = ratio;
    (void)snprintf(s->label, sizeof(s->label), "split ratio %s", text);
    if (strcmp(f->pool, "split") != 0) {
        assign(s, "plugins.pool=split");
    }
    if (strcmp(f->style, "ratio") != 0) {
        assign(s, "pool-split.style=ratio");
    }
    if (f->states != 0) { /* it would win over the ratio */
        assign(s, "pool-split.states=0");
    }
    assign(s, "pool-split.ratio=%s", text);
    keep(d);
}

static void make_pool(const struct kg_advise_facts *f, struct kg_advise_dim *d)
{
    static const double grid[] = {0.1, 0.3, 0.9, 2.7};
    struct kg_advise_setting *own = &d->settings[0], *s;
    int is_split = strcmp(f->pool, "split") == 0, is_ratio = strcmp(f->style, "ratio") == 0;

    d->name = "pool";
    if (is_split && is_ratio && f->states == 0) {
        own->family = KG_ADVISE_RATIO;
        own->at = f->ratio;
    }
    if (strcmp(f->pool, "unified") != 0) {
        s = blank(d);
        (void)snprintf(s->label, sizeof(s->label), "pool unified");
        assign(s, "plugins.pool=unified");
        keep(d);
    }
    if (!is_split || is_ratio || f->state_blocks != 0) {
        s = blank(d);
        (void)snprintf(s->label, sizeof(s->label), "split uniform");
        if (!is_split) {
            assign(s, "plugins.pool=split");
        }
        if (is_ratio) {
            assign(s, "pool-split.style=uniform");
        }
        if (f->state_blocks != 0) {
            assign(s, "pool-split.state_blocks=0");
        }
        keep(d);
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (f->mean_ratio[i] > 0) {
            add_ratio(f, d, f->mean_ratio[i]);
        }
    }
    for (size_t i = 0; i < sizeof(grid) / sizeof(grid[0]); i++) {
        add_ratio(f, d, grid[i]);
    }
}

static void add_lifetime(const struct kg_advise_facts *f, struct kg_advise_dim *d, const char *word,
                         uint32_t quantile)
{
    struct kg_advise_setting *s = blank(d);
    int is_same = strcmp(f->lifetime, word) == 0;

    if (is_same && (quantile == 0 || quantile == f->quantile)) {
        return;
    }
    (void)snprintf(s->label, sizeof(s->label), "lifetime %s", word);
    if (!is_same) {
        assign(s, "admission.lifetime=%s", word);
    }
    if (quantile != 0) {
        (void)snprintf(s->label, sizeof(s->label), "lifetime %s, %u %%", word, quantile);
        assign(s, "admission.quantile=%u", quantile);
    }
    keep(d);
}

static void make_lifetime(const struct kg_advise_facts *f, struct kg_advise_dim *d)
{
    static const uint32_t quantiles[] = {50, 75, 90};

    d->name = "lifetime";
    add_lifetime(f, d, "prompt", 0);
    add_lifetime(f, d, "max", 0);
    for (size_t i = 0; i < sizeof(quantiles) / sizeof(quantiles[0]); i++) {
        add_lifetime(f, d, "expected", quantiles[i]);
    }
}

static void add_spec(const struct kg_advise_facts *f, struct kg_advise_dim *d, const char *word,
                     uint32_t length)
{
    struct kg_advise_setting *s = blank(d);
    int is_same = strcmp(f->spec, word) == 0, is_dspark = strcmp(word, "dspark") == 0;

    if (is_same && (!is_dspark || length == f->draft_length)) {
        return;
    }
    (void)snprintf(s->label, sizeof(s->label), "spec %s", word);
    if (length != 0) {
        (void)snprintf(s->label, sizeof(s->label), "spec %s, %u drafts", word, length);
    }
    if (!is_same) {
        assign(s, "plugins.spec=%s", word);
    }
    if (is_dspark && length != f->draft_length) {
        assign(s, "spec-dspark.length=%u", length);
    }
    if (strcmp(word, "confidence") == 0 && !f->has_cost) {
        assign(s, "engine.cost=measured");
    }
    keep(d);
}

static void make_spec(const struct kg_advise_facts *f, struct kg_advise_dim *d)
{
    d->name = "speculation";
    if (f->draft_block == 0) {
        return;
    }
    add_spec(f, d, "off", 0);
    add_spec(f, d, "confidence", 0);
    add_spec(f, d, "dspark", 0);
    for (uint32_t n = f->draft_block / 2; n > 0; n /= 2) {
        add_spec(f, d, "dspark", n);
    }
}

void kg_advise_space_make(const struct kg_advise_facts *facts, struct kg_advise_space *space)
{
    static void (*const make[KG_ADVISE_DIMS])(const struct kg_advise_facts *,
                                              struct kg_advise_dim *) = {
        [KG_ADVISE_REUSE] = make_reuse,
        [KG_ADVISE_POOL] = make_pool,
        [KG_ADVISE_LIFETIME] = make_lifetime,
        [KG_ADVISE_SPEC] = make_spec,
    };

    memset(space, 0, sizeof(*space));
    space->facts = *facts;
    for (uint32_t i = 0; i < KG_ADVISE_DIMS; i++) {
        space->dims[i].n = 1;
        make[i](facts, &space->dims[i]);
    }
}

uint32_t kg_advise_sets(const struct kg_advise_space *space, const struct kg_advise_point *p,
                        const char **sets, uint32_t max)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < KG_ADVISE_DIMS; i++) {
        const struct kg_advise_setting *s = &space->dims[i].settings[p->at[i]];
        for (uint32_t k = 0; k < s->n_sets && n < max; k++) {
            sets[n++] = s->sets[k];
        }
    }
    return n;
}

int kg_advise_label(const struct kg_advise_space *space, const struct kg_advise_point *p,
                    struct kg_buf *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < KG_ADVISE_DIMS; i++) {
        if (p->at[i] != 0) {
            (void)kg_buf_printf(b, "%s%s", n++ > 0 ? " + " : "",
                                space->dims[i].settings[p->at[i]].label);
        }
    }
    return n > 0 ? b->rc : kg_buf_puts(b, "as it is");
}

/* --- the search --- */

struct walk {
    const struct kg_advise_search *s;
    struct kg_advise_found *f;
    struct kg_advise_point here; /* best so far */
    double gain;                 /* of here */
    uint32_t n_later;            /* about how many replays come after this dimension */
    unsigned char hopeless[KG_ADVISE_DIMS][KG_ADVISE_SETTINGS]; /* not tried in later rounds */
};

/* So far behind the best of its dimension, a setting is not tried again with other neighbours. */
#define HOPELESS 0.05

static int same(const struct kg_advise_point *a, const struct kg_advise_point *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

static const struct kg_advise_try *find(const struct kg_advise_found *f,
                                        const struct kg_advise_point *p)
{
    for (uint32_t i = 0; i < f->n; i++) {
        if (same(&f->tries[i].point, p)) {
            return &f->tries[i];
        }
    }
    return NULL;
}

static uint32_t n_sets_of(const struct kg_advise_space *space, const struct kg_advise_point *p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < KG_ADVISE_DIMS; i++) {
        n += space->dims[i].settings[p->at[i]].n_sets;
    }
    return n;
}

/* Replays those of the points that are new. */
static int look(struct walk *w, const struct kg_advise_point *points, uint32_t n, uint32_t n_left)
{
    struct kg_advise_found *f = w->f;
    uint32_t from = f->n;

    for (uint32_t i = 0; i < n; i++) {
        if (find(f, &points[i]) != NULL) {
            continue;
        }
        if (f->n == KG_ADVISE_TRIES) {
            return KG_ELIMIT;
        }
        f->tries[f->n++] = (struct kg_advise_try){.point = points[i], .gain = NAN};
    }
    return f->n > from ? w->s->run(w->s->ctx, &f->tries[from], f->n - from, n_left) : KG_OK;
}

/* Moves to the best of the points if it is better than here by what counts. Of those within a
 * fifth of that of the best, the one with fewest assignments, then the first. */
static int move(struct walk *w, const struct kg_advise_point *points, uint32_t n)
{
    double best = w->gain, tie = w->s->least / 5;
    const struct kg_advise_try *to = NULL;

    for (uint32_t i = 0; i < n; i++) {
        const struct kg_advise_try *t = find(w->f, &points[i]);
        best = t != NULL && t->gain > best ? t->gain : best;
    }
    if (!(best > w->gain) || best < w->gain + w->s->least) {
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct kg_advise_try *t = find(w->f, &points[i]);
        if (t != NULL && t->gain >= best - tie &&
            (to == NULL ||
             n_sets_of(w->s->space, &t->point) < n_sets_of(w->s->space, &to->point))) {
            to = t;
        }
    }
    w->here = to->point;
    w->gain = to->gain;
    return 1;
}

/* Two settings beside the one the walk stands at, half a step of the grid away; 0 without a scale.
 */
static uint32_t refine(struct walk *w, uint32_t dim, struct kg_advise_point points[2])
{
    struct kg_advise_space *space = w->s->space;
    struct kg_advise_dim *d = &space->dims[dim];
    const struct kg_advise_setting own = d->settings[w->here.at[dim]];
    double step = own.family == KG_ADVISE_RATIO ? 1.7 : 2;
    uint32_t n = 0, from = d->n;

    if (own.at <= 0) {
        return 0;
    }
    for (uint32_t k = 0; k < 2; k++) {
        double at = k == 0 ? own.at / step : own.at * step;
        if (own.family == KG_ADVISE_RATIO) {
            add_ratio(&space->facts, d, at);
        } else {
            add_interval(&space->facts, d, own.family, at);
        }
    }
    for (; from < d->n; from++, n++) {
        points[n] = w->here;
        points[n].at[dim] = from;
    }
    return n;
}

/* Marks what was far behind among the points, settings of one dimension. */
static void drop_hopeless(struct walk *w, uint32_t dim, const struct kg_advise_point *points,
                          uint32_t n)
{
    double best = -INFINITY;

    for (uint32_t i = 0; i < n; i++) {
        const struct kg_advise_try *t = find(w->f, &points[i]);
        best = t->gain > best ? t->gain : best;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct kg_advise_try *t = find(w->f, &points[i]);
        w->hopeless[dim][points[i].at[dim]] |= !(t->gain >= best - HOPELESS);
    }
}

static int walk_dim(struct walk *w, uint32_t dim, int *moved)
{
    const struct kg_advise_dim *d = &w->s->space->dims[dim];
    struct kg_advise_point points[KG_ADVISE_SETTINGS] = {{{0}}};
    uint32_t n = 0;

    for (uint32_t i = 0; i < d->n; i++) {
        if (!w->hopeless[dim][i] || i == w->here.at[dim]) {
            points[n] = w->here;
            points[n++].at[dim] = i;
        }
    }
    int rc = look(w, points, n, w->n_later);
    if (rc != KG_OK || d->n < 2) {
        return rc;
    }
    drop_hopeless(w, dim, points, n);
    *moved |= move(w, points, n);
    /* Also around the user's own when it held against a coarse grid. */
    n = refine(w, dim, points);
    if (n > 0) {
        rc = look(w, points, n, w->n_later);
        *moved |= rc == KG_OK && move(w, points, n);
    }
    return rc;
}

/* Takes back what is not worth its line. */
static int prune(struct walk *w)
{
    int rc = KG_OK;

    for (uint32_t i = 0; rc == KG_OK && i < KG_ADVISE_DIMS; i++) {
        struct kg_advise_point p = w->here;
        if (p.at[i] == 0) {
            continue;
        }
        p.at[i] = 0;
        rc = look(w, &p, 1, KG_ADVISE_DIMS - 1 - i);
        const struct kg_advise_try *t = find(w->f, &p);
        if (rc == KG_OK && t->gain >= w->gain - w->s->least / 2) {
            w->here = p;
            w->gain = t->gain;
        }
    }
    return rc;
}

static uint32_t n_changed(const struct kg_advise_point *p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < KG_ADVISE_DIMS; i++) {
        n += p->at[i] != 0;
    }
    return n;
}

/* Whether the point changes one dimension only, and not `but`. */
static int is_single(const struct kg_advise_point *p, uint32_t but)
{
    return n_changed(p) == 1 && (but >= KG_ADVISE_DIMS || p->at[but] == 0);
}

/* Adds the best try that is not there yet; `single`: of those with one change, not in `but`.
 * Returns its index, KG_NONE for none. */
static uint32_t add_finalist(struct kg_advise_found *f, int single, uint32_t but)
{
    uint32_t best = KG_NONE;

    for (uint32_t i = 1; i < f->n; i++) {
        const struct kg_advise_try *t = &f->tries[i];
        int is_in = 0;
        for (uint32_t k = 0; k < f->n_finalists; k++) { /* equal gains: what differs was not met */
            is_in |= f->tries[f->finalists[k]].gain == t->gain;
        }
        if (!is_in && t->gain > 0 && (!single || is_single(&t->point, but)) &&
            (best == KG_NONE || t->gain > f->tries[best].gain)) {
            best = i;
        }
    }
    if (best == KG_NONE || f->n_finalists == KG_ADVISE_FINALISTS) {
        return KG_NONE;
    }
    f->finalists[f->n_finalists++] = best;
    return best;
}

/* The dimension a point with one change changes. */
static uint32_t dim_of(const struct kg_advise_point *p)
{
    uint32_t dim = 0;

    while (dim < KG_ADVISE_DIMS && p->at[dim] == 0) {
        dim++;
    }
    return dim;
}

static void choose_finalists(struct kg_advise_found *f)
{
    uint32_t single = f->best;

    if (f->best != 0) {
        f->finalists[f->n_finalists++] = f->best;
    }
    if (n_changed(&f->tries[f->best].point) != 1) {
        single = add_finalist(f, 1, KG_ADVISE_DIMS);
    }
    if (single != KG_NONE && single != 0) { /* another dimension: it may fare otherwise */
        (void)add_finalist(f, 1, dim_of(&f->tries[single].point));
    }
    while (f->n_finalists < KG_ADVISE_FINALISTS && add_finalist(f, 0, 0) != KG_NONE) {
    }
}

/* The settings of dimensions after `dim`, all of them again for each further round. */
static uint32_t later(const struct kg_advise_search *s, uint32_t dim, uint32_t round)
{
    uint32_t n = 0, all = 0;

    for (uint32_t i = 0; i < KG_ADVISE_DIMS; i++) {
        all += s->space->dims[i].n - 1;
        n += i > dim ? s->space->dims[i].n - 1 : 0;
    }
    return n + all * (s->n_rounds - 1 - round) / 2;
}

int kg_advise_search(const struct kg_advise_search *search, struct kg_advise_found *found)
{
    struct walk w = {.s = search, .f = found};
    int moved = 1;

    memset(found, 0, sizeof(*found));
    int rc = look(&w, &w.here, 1, later(search, 0, 0) + search->space->dims[0].n - 1);
    for (uint32_t round = 0; rc == KG_OK && moved && round < search->n_rounds; round++) {
        moved = 0;
        for (uint32_t dim = 0; rc == KG_OK && dim < KG_ADVISE_DIMS; dim++) {
            w.n_later = later(search, dim, round);
            rc = walk_dim(&w, dim, &moved);
        }
    }
    rc = rc == KG_OK ? prune(&w) : rc;
    if (rc == KG_OK || rc == KG_ELIMIT) {
        const struct kg_advise_try *t = find(found, &w.here);
        found->best = t != NULL ? (uint32_t)(t - found->tries) : 0;
        choose_finalists(found);
    }
    return rc;
}
