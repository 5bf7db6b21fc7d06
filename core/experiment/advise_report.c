#include "experiment/advise_report.h"

#include "experiment/results.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)
#define GIB (1024.0 * MIB)
#define TABLE_ROWS 16u /* of candidates shown to people */

/* Classes of bytes, in the order of struct kg_ab_facts. */
enum { LIVE_PAGES, LIVE_STATES, CACHED_PAGES, CACHED_STATES, PINNED, HOLES, GAP, PADDING };

/* --- figures --- */

int kg_advise_figures_of(const struct kg_ab_run *run, uint32_t from, uint32_t n,
                         const struct kg_ab_facts *facts, struct kg_advise_figures *g)
{
    double *ttft = calloc((size_t)n + 1, sizeof(*ttft)), tpot = 0, e2e = 0, queue = 0;
    uint32_t n_tpot = 0;

    if (ttft == NULL) {
        return KG_ENOMEM;
    }
    memset(g, 0, sizeof(*g));
    g->n = n;
    for (uint32_t i = from; i < from + n; i++) {
        const struct kg_ab_row *r = &run->rows[i];
        g->n_refused += r->v[KG_AB_REFUSED] > 0;
        g->n_failed += r->v[KG_AB_FAILED] > 0;
        g->good_share += r->v[KG_AB_GOOD] / n;
        g->prompt += r->n_prompt;
        g->reused += r->v[KG_AB_REUSED];
        g->lost += r->v[KG_AB_LOST];
        g->preempted += r->v[KG_AB_PREEMPTED];
        g->verified += r->v[KG_AB_VERIFIED];
        g->accepted += r->v[KG_AB_ACCEPTED];
        if (!r->ok) {
            continue;
        }
        ttft[g->n_ok++] = r->v[KG_AB_TTFT];
        e2e += r->v[KG_AB_E2E];
        queue += r->v[KG_AB_QUEUE];
        n_tpot += !isnan(r->v[KG_AB_TPOT]);
        tpot += isnan(r->v[KG_AB_TPOT]) ? 0 : r->v[KG_AB_TPOT];
    }
    struct kg_quantiles q = kg_quantiles_of(ttft, g->n_ok);
    free(ttft);
    g->ttft_ms = q.mean;
    g->ttft_p50_ms = q.p50;
    g->ttft_p99_ms = q.p99;
    g->tpot_ms = n_tpot > 0 ? tpot / n_tpot : NAN;
    g->e2e_ms = g->n_ok > 0 ? e2e / g->n_ok : NAN;
    g->queue_ms = g->n_ok > 0 ? queue / g->n_ok : NAN;
    memcpy(g->bytes_mean, facts->bytes_mean, sizeof(g->bytes_mean));
    g->arena = facts->arena;
    return KG_OK;
}

/* --- the choice --- */

/* Better where it was picked and where it was not, by what counts; nobody lost. */
static int is_worth_it(const struct kg_advise_report *r, const struct kg_advise_final *f)
{
    return f->why[0] == '\0' && f->gain.is_better && f->figures.n_ok >= r->base.n_ok &&
           r->rows[f->row].gain >= r->least;
}

uint32_t kg_advise_recommend(const struct kg_advise_report *r)
{
    double sign =
        r->objective == KG_ADVISE_THROUGHPUT || r->objective == KG_ADVISE_GOODPUT ? 1 : -1;
    uint32_t best = KG_NONE, simple = KG_NONE;

    for (uint32_t i = 0; i < r->n_finals; i++) {
        const struct kg_advise_final *f = &r->finals[i];
        if (is_worth_it(r, f) &&
            (best == KG_NONE || sign * f->gain.rel > sign * r->finals[best].gain.rel)) {
            best = i;
        }
    }
    simple = best;
    for (uint32_t i = 0; best != KG_NONE && i < r->n_finals; i++) {
        const struct kg_advise_final *f = &r->finals[i];
        if (is_worth_it(r, f) && sign * f->gain.rel >= sign * r->finals[best].gain.rel - r->least &&
            r->rows[f->row].n_sets < r->rows[r->finals[simple].row].n_sets) {
            simple = i;
        }
    }
    return simple;
}

/* --- for people --- */

static const char *figure_name(uint32_t objective)
{
    static const char *const names[KG_ADVISE_N_OBJECTIVES] = {
        "mean TTFT", "mean TPOT", "mean E2E", "throughput", "requests inside the limits"};

    return names[objective];
}

static double share(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static void put_table_head(struct kg_buf *b)
{
    (void)kg_buf_printf(b, "  %-46s %8s %9s %9s %8s %7s %7s %6s %7s %7s  %s\n", "candidate", "gain",
                        "TTFT p50", "p99, s", "TPOT ms", "good %", "reused%", "lost%", "preempt",
                        "refused", "GiB live, cached pages, states, idle");
}

static void put_table_row(struct kg_buf *b, const char *label, double gain, const char *why,
                          const struct kg_advise_figures *g)
{
    char text[24] = "-", times[3][24];
    const double ms[3] = {g->ttft_p50_ms / 1e3, g->ttft_p99_ms / 1e3, g->tpot_ms};

    if (why[0] != '\0') {
        (void)kg_buf_printf(b, "  %-46.46s cannot run: %s\n", label, why);
        return;
    }
    if (gain != 0) {
        (void)snprintf(text, sizeof(text), isnan(gain) ? "fewer ok" : "%+.1f %%", 100 * gain);
    }
    for (uint32_t i = 0; i < 3; i++) { /* nobody has it: nothing ended, or one token each */
        (void)snprintf(times[i], sizeof(times[i]), isnan(ms[i]) ? "-" : "%.*f", i == 0 ? 3 : 2,
                       ms[i]);
    }
    const double *m = g->bytes_mean;
    (void)kg_buf_printf(
        b, "  %-46.46s %8s %9s %9s %8s %7.2f %7.2f %6.2f %7.0f %7u  %.1f %.1f %.1f %.1f\n", label,
        text, times[0], times[1], times[2], 100 * g->good_share, share(g->reused, g->prompt),
        share(g->lost, g->prompt), g->preempted, g->n_refused,
        (m[LIVE_PAGES] + m[LIVE_STATES]) / GIB, m[CACHED_PAGES] / GIB, m[CACHED_STATES] / GIB,
        (m[PINNED] + m[HOLES] + m[GAP] + m[PADDING]) / GIB);
}

/* The candidate with the largest gain among those after `last` in that order; n_rows at the end.
 * Those that did not run come last, in order of trying. */
static uint32_t next_row(const struct kg_advise_report *r, const unsigned char *shown)
{
    uint32_t best = KG_NONE;

    for (uint32_t i = 0; i < r->n_rows; i++) {
        double gain = isnan(r->rows[i].gain) ? -INFINITY : r->rows[i].gain;
        if (!shown[i] && (best == KG_NONE ||
                          gain > (isnan(r->rows[best].gain) ? -INFINITY : r->rows[best].gain))) {
            best = i;
        }
    }
    return best;
}

static void put_candidates(const struct kg_advise_report *r, struct kg_buf *b)
{
    unsigned char shown[KG_ADVISE_TRIES] = {1};
    uint32_t n_left = r->n_rows - 1;

    put_table_head(b);
    put_table_row(b, r->rows[0].label, 0, "", &r->rows[0].figures);
    for (uint32_t k = 0; k < TABLE_ROWS && n_left > 0; k++, n_left--) {
        uint32_t i = next_row(r, shown);
        put_table_row(b, r->rows[i].label, r->rows[i].gain, r->rows[i].why, &r->rows[i].figures);
        shown[i] = 1;
    }
    if (n_left > 0) {
        (void)kg_buf_printf(b, "  and %u more; --json has all\n", n_left);
    }
}

/* The interval tried that did best among candidates that change nothing but reuse. */
static const struct kg_advise_row *best_interval(const struct kg_advise_report *r)
{
    const struct kg_advise_row *best = NULL;

    for (uint32_t i = 0; i < r->n_rows; i++) {
        const struct kg_advise_row *row = &r->rows[i];
        if (strncmp(row->label, "interval ", 9) == 0 && strstr(row->label, " + ") == NULL &&
            !isnan(row->gain) && (best == NULL || row->gain > best->gain)) {
            best = row;
        }
    }
    return best;
}

static void put_guide(const struct kg_advise_report *r, struct kg_buf *b)
{
    const struct kg_guide *g = &r->guide;
    const struct kg_advise_row *tried = best_interval(r);

    (void)kg_buf_puts(b, "In closed form, where memory is full\n");
    if (!r->has_guide) {
        (void)kg_buf_printf(b, "  %s\n", r->guide_note);
        return;
    }
    (void)kg_buf_printf(b, "  a state takes %.1f MiB, the room of %.0f cached tokens",
                        r->guide_in.state_bytes / MIB, g->state_tokens);
    if (g->token_us > 0) {
        (void)kg_buf_printf(b, " (%.0f ms to compute again, %.1f us each)", g->state_ms,
                            g->token_us);
    }
    (void)kg_buf_printf(
        b,
        ":\n  it pays where a hit on it saves more than that, at equal chances of use\n"
        "  %.1f %% of the prompt tokens were seen before, %.0f in each request that "
        "repeats any; %.0f tokens a\n  repeating request come back at all\n",
        100 * g->repeated_share, g->shared_tokens, g->kept_tokens);
    if (g->interval > 0) {
        (void)kg_buf_printf(b,
                            "  interval = sqrt(2 x %.0f x %.0f) = %.0f, taken as %.0f tokens%s, "
                            "%.0f computed again "
                            "per hit%s\n",
                            g->state_tokens, g->kept_tokens,
                            sqrt(2 * g->state_tokens * g->kept_tokens), g->interval,
                            g->is_least
                                ? " (no less: a step writes so many states of a prompt and no "
                                  "more)"
                                : " (whole pages)",
                            g->interval_lost,
                            g->interval_is_long ? "; that is not well below what is shared: places "
                                                  "(branch, boundary, auto) pay better than a grid"
                                                : "");
    } else {
        (void)kg_buf_puts(b, "  nothing repeats: no checkpoint pays\n");
    }
    if (tried != NULL) {
        (void)kg_buf_printf(b, "  simulated: the best grid tried is %s, %+.1f %%\n", tried->label,
                            100 * tried->gain);
    }
}

static void put_gain(const struct kg_advise_report *r, const struct kg_advise_gain *g,
                     struct kg_buf *b)
{
    if (r->objective == KG_ADVISE_GOODPUT) {
        (void)kg_buf_printf(b, "%s %.2f -> %.2f %%, %+.2f points (95 %% %+.2f .. %+.2f)",
                            figure_name(r->objective), 100 * g->a, 100 * g->b, 100 * g->rel,
                            100 * g->lo, 100 * g->hi);
        return;
    }
    (void)kg_buf_printf(b, "%s %.4g -> %.4g %s, %+.1f %% (95 %% %+.1f .. %+.1f)",
                        figure_name(r->objective), g->a, g->b,
                        r->objective == KG_ADVISE_THROUGHPUT ? "requests/s" : "ms", 100 * g->rel,
                        100 * g->lo, 100 * g->hi);
}

static void put_finals(const struct kg_advise_report *r, struct kg_buf *b)
{
    if (r->n_finals == 0) {
        return;
    }
    (void)kg_buf_printf(
        b, "\nConfirmed on the other %u requests, which picked nothing, at other arrivals\n",
        r->n - r->n_pick);
    for (uint32_t i = 0; i < r->n_finals; i++) {
        const struct kg_advise_final *f = &r->finals[i];
        (void)kg_buf_printf(b, "  %s: ", r->rows[f->row].label);
        if (f->why[0] != '\0') {
            (void)kg_buf_printf(b, "%s\n", f->why);
            continue;
        }
        put_gain(r, &f->gain, b);
        (void)kg_buf_printf(b, "; all requests %+.1f %s\n", 100 * f->whole.rel,
                            r->objective == KG_ADVISE_GOODPUT ? "points" : "%");
    }
}

int kg_advise_ini(const char *const *sets, uint32_t n, const char *indent, struct kg_buf *b)
{
    for (uint32_t i = 0; i < n; i++) {
        size_t section = strcspn(sets[i], "."), key = strcspn(sets[i], "=");
        int is_done = 0;
        for (uint32_t k = 0; k < i; k++) {
            is_done |= strncmp(sets[k], sets[i], section + 1) == 0;
        }
        if (is_done) {
            continue;
        }
        (void)kg_buf_printf(b, "%s[%.*s]\n", indent, (int)section, sets[i]);
        for (uint32_t k = i; k < n; k++) {
            if (strncmp(sets[k], sets[i], section + 1) == 0) {
                key = strcspn(sets[k], "=");
                (void)kg_buf_printf(b, "%s%.*s = %s\n", indent, (int)(key - section - 1),
                                    sets[k] + section + 1, sets[k] + key + 1);
            }
        }
    }
    return b->rc;
}

/* --- the reason --- */

static void put_reason_reuse(const struct kg_advise_report *r, const struct kg_advise_figures *a,
                             const struct kg_advise_figures *c, struct kg_buf *b)
{
    double more = (c->reused - a->reused) / a->n, ms = more * r->guide.token_us / 1e3;

    if (fabs(more) >= 1) {
        (void)kg_buf_printf(b,
                            "  - %.1f %% of the prompt tokens come from the cache instead of %.1f "
                            "%%: %.0f %s a request",
                            share(c->reused, c->prompt), share(a->reused, a->prompt), fabs(more),
                            more > 0 ? "fewer to compute" : "more to compute");
        if (r->has_guide && r->guide.token_us > 0) {
            (void)kg_buf_printf(b, ", %.0f ms of computing each, %.0f s in all", fabs(ms),
                                fabs(ms) * a->n / 1e3);
        }
        (void)kg_buf_puts(b, "\n");
    }
    if (fabs(c->lost - a->lost) >= a->n) {
        (void)kg_buf_printf(b,
                            "  - %.0f tokens a request are found but lost for want of a state, "
                            "instead of %.0f\n",
                            c->lost / a->n, a->lost / a->n);
    }
}

static void put_reason_bytes(const struct kg_advise_report *r, const struct kg_advise_figures *a,
                             const struct kg_advise_figures *c, struct kg_buf *b)
{
    static const struct {
        const char *what;
        uint32_t from, to;
    } classes[] = {{"states kept for later", CACHED_STATES, CACHED_STATES},
                   {"pages kept for later", CACHED_PAGES, CACHED_PAGES},
                   {"running requests", LIVE_PAGES, LIVE_STATES},
                   {"idle memory (gap, holes, padding)", HOLES, PADDING}};

    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        double before = 0, now = 0;
        for (uint32_t k = classes[i].from; k <= classes[i].to; k++) {
            before += a->bytes_mean[k];
            now += c->bytes_mean[k];
        }
        if (fabs(now - before) < a->arena / 100) {
            continue;
        }
        (void)kg_buf_printf(b, "  - %s: %.1f GiB instead of %.1f", classes[i].what, now / GIB,
                            before / GIB);
        if (classes[i].from == CACHED_PAGES && r->guide_in.token_bytes > 0) {
            (void)kg_buf_printf(b, ", %+.0f thousand tokens",
                                (now - before) / r->guide_in.token_bytes / 1e3);
        }
        (void)kg_buf_puts(b, "\n");
    }
}

int kg_advise_reason(const struct kg_advise_report *r, struct kg_buf *b)
{
    const struct kg_advise_figures *a = &r->base;

    if (r->recommended == KG_NONE) {
        return b->rc;
    }
    const struct kg_advise_figures *c = &r->finals[r->recommended].figures;
    put_reason_reuse(r, a, c, b);
    put_reason_bytes(r, a, c, b);
    if (c->preempted != a->preempted) {
        (void)kg_buf_printf(b, "  - %.0f preemptions instead of %.0f\n", c->preempted,
                            a->preempted);
    }
    if (c->n_refused != a->n_refused) {
        (void)kg_buf_printf(b, "  - %u requests refused instead of %u\n", c->n_refused,
                            a->n_refused);
    }
    if (c->verified != a->verified) {
        (void)kg_buf_printf(b,
                            "  - %.0f drafts verified a request instead of %.0f, %.0f accepted "
                            "instead of %.0f\n",
                            c->verified / c->n, a->verified / a->n, c->accepted / c->n,
                            a->accepted / a->n);
    }
    if (fabs(c->queue_ms - a->queue_ms) > 0.01 * a->ttft_ms) {
        (void)kg_buf_printf(b,
                            "  - mean wait for admission %.2f s instead of %.2f: what one request "
                            "is spared, those behind it are spared too\n",
                            c->queue_ms / 1e3, a->queue_ms / 1e3);
    }
    return b->rc;
}

/* What the change makes worse beyond chance, objective aside. */
static void put_price(const struct kg_advise_final *f, struct kg_buf *b)
{
    uint32_t n = 0;

    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        const struct kg_ab_figure *g = &f->result.figures[m];
        const struct kg_ab_figure_about *about = kg_ab_figure_about(m);
        if (!g->is_different || g->is_small || about->better == 0 ||
            (g->diff > 0 ? 1 : -1) == about->better) {
            continue;
        }
        (void)kg_buf_puts(b, n++ == 0 ? "What it costs: " : ", ");
        if (about->is_share || isnan(g->rel)) {
            (void)kg_buf_printf(b, "%s %.4g -> %.4g %s", about->name, g->a, g->b, about->unit);
        } else {
            (void)kg_buf_printf(b, "%s %+.1f %%", about->name, 100 * g->rel);
        }
    }
    (void)kg_buf_puts(b, n > 0 ? "\n" : "What it costs: nothing that shows beyond chance\n");
}

static void put_verdict(const struct kg_advise_report *r, struct kg_buf *b)
{
    (void)kg_buf_puts(b, "\n");
    if (r->recommended == KG_NONE) {
        uint32_t n_tested = 0;
        for (uint32_t i = 0; i < r->n_finals; i++) {
            n_tested += r->finals[i].gain.is_tested;
        }
        if (r->base.n_ok == 0) {
            (void)kg_buf_puts(b, "Cannot tell: no request ended well as it is. Nothing is "
                                 "recommended.\n");
            return;
        }
        if (r->objective == KG_ADVISE_TPOT && isnan(r->base.tpot_ms)) {
            (void)kg_buf_puts(b, "Cannot tell: no answer has a second token, so none has a time "
                                 "per token. Nothing is recommended.\n");
            return;
        }
        if (r->n_finals > 0 && n_tested == 0) {
            (void)kg_buf_printf(b,
                                "Cannot tell: %u requests are too few to confirm what picking "
                                "found. Nothing is recommended.\n",
                                r->n - r->n_pick);
            return;
        }
        (void)kg_buf_printf(
            b, "No change is worth it: %s\n",
            r->n_finals == 0
                ? "no candidate did better than the configuration as it is"
                : "what looked better where it was picked does not do so beyond chance where it "
                  "was not, or by too little to matter in one of the two");
        return;
    }
    const struct kg_advise_final *f = &r->finals[r->recommended];
    const struct kg_advise_row *row = &r->rows[f->row];
    (void)kg_buf_puts(b, "Recommended\n\n");
    (void)kg_advise_ini(row->sets, row->n_sets, "    ", b);
    (void)kg_buf_puts(b, "\nExpected: ");
    put_gain(r, &f->gain, b);
    if (r->n_finals > 1) {
        (void)kg_buf_printf(b, "; the interval holds although %u were compared", r->n_finals);
    }
    (void)kg_buf_puts(b, "\nWhy, over all requests\n");
    (void)kg_advise_reason(r, b);
    put_price(f, b);
    (void)kg_buf_printf(b, "See for yourself: %s\n", r->check);
}

int kg_advise_text(const struct kg_advise_report *r, struct kg_buf *b)
{
    (void)kg_buf_printf(b, "%s on %s: %u requests, arrivals times %.4g", r->conf, r->trace, r->n,
                        r->stretch);
    if (r->load > 0) {
        (void)kg_buf_printf(b, " (load %.2f)", r->load);
    }
    (void)kg_buf_printf(b, ", objective %s\n", kg_advise_objective_name(r->objective));
    (void)kg_buf_printf(b,
                        "Picked on %u requests in every other one of %u windows, %u candidates\n\n",
                        r->n_pick, KG_ADVISE_WINDOWS, r->n_rows - 1);
    put_candidates(r, b);
    if (r->spec_note[0] != '\0') {
        (void)kg_buf_printf(b, "  %s\n", r->spec_note);
    }
    (void)kg_buf_puts(b, "\n");
    put_guide(r, b);
    put_finals(r, b);
    put_verdict(r, b);
    return b->rc;
}
