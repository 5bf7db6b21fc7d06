#include "experiment/ab.h"

#include "base/hash.h"
#include "experiment/ab_row.h"
#include "experiment/lines.h"
#include "experiment/results.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(KG_AB_N_BYTES == KG_N_BYTES, "the classes of a summary");

/* --- reading --- */

static double number(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : NAN;
}

static double count(const json_t *o, const char *key)
{
    double v = number(o, key);

    return v >= 0 ? v : 0;
}

static uint32_t whole(const json_t *o, const char *key)
{
    return (uint32_t)fmin(count(o, key), UINT32_MAX);
}

static const char *word(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s != NULL ? s : "";
}

void kg_ab_row_of(const json_t *o, double ttft_slo_ms, double tpot_slo_ms, struct kg_ab_row *row)
{
    const char *id = word(o, "id"), *outcome = word(o, "outcome");
    double *v = row->v;

    row->id = kg_hash_bytes(id, strlen(id), 0);
    row->output_hash = strtoull(word(o, "output_hash"), NULL, 16);
    row->ok = strcmp(outcome, "ok") == 0;
    row->n_prompt = whole(o, "prompt_tokens");
    row->n_output = whole(o, "output_tokens");
    row->arrival_ms = count(o, "arrival_ms");
    v[KG_AB_TTFT] = number(o, "ttft_ms");
    v[KG_AB_TPOT] = number(o, "tpot_ms");
    v[KG_AB_E2E] = number(o, "e2e_ms");
    v[KG_AB_QUEUE] = number(o, "queue_ms");
    v[KG_AB_REFUSED] = strcmp(outcome, "refused") == 0;
    v[KG_AB_FAILED] = strcmp(outcome, "error") == 0;
    v[KG_AB_GOOD] = row->ok && (ttft_slo_ms == 0 || v[KG_AB_TTFT] <= ttft_slo_ms) &&
                    (tpot_slo_ms == 0 || !(v[KG_AB_TPOT] > tpot_slo_ms));
    v[KG_AB_HIT_PAGE] = count(o, "hit_page_tokens");
    v[KG_AB_REUSED] = count(o, "reused_tokens");
    v[KG_AB_LOST] = count(o, "lost_tokens");
    v[KG_AB_PREEMPTED] = count(o, "preemptions");
    v[KG_AB_VERIFIED] = count(o, "verified");
    v[KG_AB_ACCEPTED] = count(o, "accepted");
}

int kg_ab_read_rows(const char *path, double ttft_slo_ms, double tpot_slo_ms, struct kg_ab_run *run,
                    uint32_t *n, struct kg_error *err)
{
    struct kg_lines *lines = NULL;
    struct kg_ab_row *rows = NULL;
    uint32_t n_rows = 0, cap = 0;
    const char *text;
    size_t len;

    int rc = kg_lines_open(path, &lines, err);
    while (rc >= 0 && (rc = kg_lines_next(lines, &text, &len, err)) == 1) {
        if (n_rows == cap) {
            cap = cap == 0 ? 1024 : 2 * cap;
            struct kg_ab_row *p = realloc(rows, (size_t)cap * sizeof(*p));
            rows = p != NULL ? p : rows;
            rc = p != NULL ? rc : kg_fail(err, KG_ENOMEM, "%s: no memory for its rows", path);
        }
        json_t *o = rc == 1 ? json_loadb(text, len, 0, NULL) : NULL;
        if (rc == 1 && !json_is_string(json_object_get(o, "outcome"))) {
            rc = kg_fail(err, KG_EINVAL, "%s: line %u: not a row of a replay", path, n_rows + 1);
        }
        if (rc == 1) {
            kg_ab_row_of(o, ttft_slo_ms, tpot_slo_ms, &rows[n_rows++]);
        }
        json_decref(o);
    }
    kg_lines_close(lines);
    if (rc < 0) {
        free(rows);
        return rc;
    }
    run->rows = rows;
    *n = n_rows;
    return KG_OK;
}

void kg_ab_run_free(struct kg_ab_run *run)
{
    free(run->rows);
    run->rows = NULL;
}

static void read_series(const json_t *o, struct kg_ab_facts *facts)
{
    facts->width_s = count(o, "width_s");
    for (uint32_t k = 0; k < KG_AB_N_BYTES && facts->width_s > 0; k++) {
        const json_t *v = json_object_get(o, kg_results_class_name(k));
        for (uint32_t i = 0; i < json_array_size(v) && i < KG_AB_BINS; i++) {
            facts->series[k][i] = json_number_value(json_array_get(v, i));
            facts->n_bins = i + 1 > facts->n_bins ? i + 1 : facts->n_bins;
        }
    }
}

static void read_steps(const json_t *o, struct kg_ab_facts *facts)
{
    const json_t *parts = json_object_get(o, "step_parts"), *at = json_object_get(o, "positions");
    const json_t *ms = json_object_get(json_object_get(o, "steps_over_time"), "ms");

    for (uint32_t i = 0; i < KG_AB_BINS; i++) {
        const json_t *v = json_array_get(ms, i);
        facts->step_ms[i] = json_is_number(v) ? json_number_value(v) : NAN;
    }

    facts->n_steps = count(o, "steps");
    for (; facts->n_parts < json_array_size(parts) && facts->n_parts < KG_AB_PARTS;
         facts->n_parts++) {
        const json_t *part = json_array_get(parts, facts->n_parts);
        struct kg_ab_part *to = &facts->parts[facts->n_parts];
        (void)snprintf(to->name, sizeof(to->name), "%s", word(part, "name"));
        to->s = count(part, "s");
    }
    for (; facts->n_drafts < json_array_size(at) && facts->n_drafts < KG_AB_DRAFTS;
         facts->n_drafts++) {
        const json_t *p = json_array_get(at, facts->n_drafts);
        facts->drafts[facts->n_drafts] =
            (struct kg_ab_draft){count(p, "verified"), count(p, "accepted"), count(p, "expected")};
    }
}

int kg_ab_read_facts(const char *path, struct kg_ab_facts *facts, struct kg_error *err)
{
    json_error_t why;
    json_t *o = json_load_file(path, 0, &why);
    const json_t *model = json_object_get(o, "model"), *inv = json_object_get(o, "invariant");
    const json_t *bytes = json_object_get(o, "bytes");

    if (!json_is_object(model) || !json_is_object(inv) || !json_is_object(bytes)) {
        json_decref(o);
        return kg_fail(err, KG_EINVAL, "%s: not the summary of a replay: %s", path,
                       o == NULL ? why.text : "model, invariant or bytes is missing");
    }
    memset(facts, 0, sizeof(*facts));
    const struct {
        char *to;
        size_t n;
        const json_t *from;
        const char *key;
    } words[] = {{facts->exec, sizeof(facts->exec), o, "exec"},
                 {facts->pool, sizeof(facts->pool), o, "pool"},
                 {facts->sched, sizeof(facts->sched), o, "sched"},
                 {facts->spec, sizeof(facts->spec), o, "spec"},
                 {facts->clock, sizeof(facts->clock), o, "clock"},
                 {facts->family, sizeof(facts->family), model, "family"},
                 {facts->math, sizeof(facts->math), model, "math"}};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        (void)snprintf(words[i].to, words[i].n, "%s", word(words[i].from, words[i].key));
    }
    facts->vocab = whole(model, "vocab");
    facts->batch = json_is_true(json_object_get(inv, "batch"));
    facts->chunk = json_is_true(json_object_get(inv, "chunk"));
    facts->path = json_is_true(json_object_get(inv, "path"));
    facts->duration_s = count(o, "duration_s");
    facts->stretch = number(json_object_get(o, "load"), "stretch");
    read_series(json_object_get(o, "bytes_over_time"), facts);
    read_steps(o, facts);
    facts->arena = count(bytes, "arena");
    for (uint32_t k = 0; k < KG_AB_N_BYTES; k++) {
        facts->bytes_mean[k] = count(json_object_get(bytes, kg_results_class_name(k)), "mean");
        facts->bytes_max[k] = count(json_object_get(bytes, kg_results_class_name(k)), "max");
    }
    json_decref(o);
    return KG_OK;
}

/* --- what may be compared --- */

int kg_ab_comparable(const struct kg_ab_facts *a, const struct kg_ab_facts *b, struct kg_error *err)
{
    if (strcmp(a->family, b->family) != 0 || a->vocab != b->vocab) {
        return kg_fail(err, KG_ECONFIG,
                       "two models cannot be compared request by request: %s with %u tokens in its "
                       "vocabulary against %s with %u",
                       a->family, a->vocab, b->family, b->vocab);
    }
    if (strcmp(a->clock, b->clock) != 0) {
        return kg_fail(err, KG_ECONFIG,
                       "times of a %s clock cannot be compared with those of a %s one", a->clock,
                       b->clock);
    }
    return KG_OK;
}

int kg_ab_must_agree(const struct kg_ab_report *r)
{
    const struct kg_ab_facts *a = &r->facts[0], *b = &r->facts[1];

    return a->batch && a->chunk && a->path && b->batch && b->chunk && b->path &&
           strcmp(a->exec, b->exec) == 0 && strcmp(a->math, b->math) == 0 &&
           r->seeds[0] == r->seeds[1];
}

/* --- for people --- */

static void put_value(struct kg_buf *b, const struct kg_ab_figure_about *about, double v)
{
    char text[40];

    if (isnan(v)) {
        (void)snprintf(text, sizeof(text), "-");
    } else if (about->is_share) {
        (void)snprintf(text, sizeof(text), "%.2f %%", 100 * v);
    } else {
        (void)snprintf(text, sizeof(text), v < 10 ? "%.3f %s" : "%.1f %s", v, about->unit);
    }
    (void)kg_buf_printf(b, " %16s", text);
}

static void put_figure(struct kg_buf *b, uint32_t m, const struct kg_ab_figure *f)
{
    const struct kg_ab_figure_about *about = kg_ab_figure_about(m);
    const char *mark = f->is_small ? "small" : f->is_different ? "*" : "";

    if (isnan(f->diff) || (f->a == 0 && f->b == 0) || (about->is_share && f->a == 1 && f->b == 1)) {
        return;
    }
    (void)kg_buf_printf(b, "  %-13s", about->name);
    put_value(b, about, f->a);
    put_value(b, about, f->b);
    if (about->is_share) {
        (void)kg_buf_printf(b, " %+8.2f pt  %+8.2f .. %+.2f", 100 * f->diff, 100 * f->lo,
                            100 * f->hi);
    } else if (isnan(f->rel)) {
        (void)kg_buf_printf(b, " %+8.3g     %+8.3g .. %+.3g", f->diff, f->lo, f->hi);
    } else {
        (void)kg_buf_printf(b, " %+8.2f %%   %+8.2f .. %+.2f", 100 * f->rel, 100 * f->rel_lo,
                            100 * f->rel_hi);
    }
    (void)kg_buf_printf(b, "  %s\n", !f->is_tested ? "too few to tell" : mark);
}

static void put_rate(struct kg_buf *b, const char *name, const struct kg_ab_rate *r)
{
    if (isnan(r->a)) {
        return;
    }
    (void)kg_buf_printf(b, "  %-13s %10.1f tok/s %10.1f tok/s %+8.2f %%", name, r->a, r->b,
                        100 * r->rel);
    if (!isnan(r->rel_lo)) {
        (void)kg_buf_printf(b, "   %+8.2f .. %+.2f", 100 * r->rel_lo, 100 * r->rel_hi);
    }
    (void)kg_buf_puts(b, "\n");
}

static double share_of(const struct kg_ab_report *r, uint32_t arm)
{
    const struct kg_ab_log *l = r->log;

    for (uint32_t i = 0; i < l->n; i++) {
        if (strcmp(l->arms[i].name, r->names[arm]) == 0) {
            return l->arms[i].share;
        }
    }
    return 0;
}

/* Whether chance gives one in a thousand logs so uneven a number of clients for these shares. */
static int split_is_off(const struct kg_ab_report *r)
{
    double a = share_of(r, 0), b = share_of(r, 1);
    double n = (double)r->conf.n_clients[0] + r->conf.n_clients[1], p = a / (a + b);

    return !r->log->shares_changed && a > 0 && b > 0 &&
           fabs(r->conf.n_clients[0] - n * p) > 3.29 * sqrt(n * p * (1 - p));
}

/* What a comparison of clients rests on, and what was left out. */
static int clients_basis(const struct kg_ab_report *r, struct kg_buf *b)
{
    const struct kg_ab_log *l = r->log;

    (void)kg_buf_puts(b, "Rests on: the hash that split the clients among the arms. They are drawn "
                         "with all their requests. The arms ran in one engine: throughput is not "
                         "theirs and not compared.\n");
    if (l->shares_changed) {
        (void)kg_buf_puts(b,
                          "Shares changed within the log: hours and clients are not alike in the "
                          "arms. Compare a part of it with the same shares.\n");
    }
    if (split_is_off(r)) {
        (void)kg_buf_printf(
            b,
            "The split is off: %u and %u clients at shares of %g and %g. Chance does "
            "that in one log of a thousand; more likely requests of one arm are "
            "missing, and then no figure here is to be believed.\n",
            r->conf.n_clients[0], r->conf.n_clients[1], share_of(r, 0), share_of(r, 1));
    }
    if (l->n_in_both > 0) {
        (void)kg_buf_printf(b, "%u clients have requests in more than one arm.\n", l->n_in_both);
    }
    if (l->n_forced + l->n_armless + l->n_odd > 0) {
        (void)kg_buf_printf(b,
                            "Left out: %llu requests whose arm was asked for, %llu without an arm, "
                            "%llu lines that are no requests.\n",
                            (unsigned long long)l->n_forced, (unsigned long long)l->n_armless,
                            (unsigned long long)l->n_odd);
    }
    return b->rc;
}

int kg_ab_about(const struct kg_ab_report *r, uint32_t arm, struct kg_buf *b)
{
    const struct kg_ab_facts *f = &r->facts[arm];

    if (r->log != NULL) {
        return kg_buf_printf(b, "%u requests of %u clients", r->conf.n_of[arm],
                             r->conf.n_clients[arm]);
    }
    return kg_buf_printf(b, "%s (exec %s, pool %s, sched %s, spec %s)", r->what[arm], f->exec,
                         f->pool, f->sched, f->spec);
}

int kg_ab_size(const struct kg_ab_report *r, struct kg_buf *b)
{
    if (r->log != NULL) {
        return kg_buf_printf(b, "split by client, not paired; measured time, %.0f s",
                             r->log->span_s);
    }
    return kg_buf_printf(b, "%u requests, %u run%s of each, %u pairs; %s time; windows of %u",
                         r->conf.n, r->conf.n_repeats, r->conf.n_repeats == 1 ? "" : "s",
                         r->result.n_pairs, r->facts[0].clock, r->result.block);
}

int kg_ab_basis(const struct kg_ab_report *r, struct kg_buf *b)
{
    const struct kg_ab_facts *a = &r->facts[0], *f = &r->facts[1];
    unsigned long long n = r->result.n_outputs_compared, differ = r->result.n_outputs_differ;

    if (r->log != NULL) {
        return clients_basis(r, b);
    }
    if (kg_ab_must_agree(r)) {
        (void)kg_buf_puts(b, "Rests on: both backends promise that the tokens do not depend on "
                             "batch, chunk or path, so the arms do the same work.\n");
        (void)kg_buf_printf(b,
                            differ == 0 ? "Outputs: equal in all %llu requests compared.\n"
                                        : "Outputs: THE PROMISE IS BROKEN, of %llu requests "
                                          "compared %llu differ.\n",
                            n, differ);
        return b->rc;
    }
    if (r->seeds[0] != r->seeds[1]) {
        (void)kg_buf_puts(b, "Rests on: lengths and sharing alone, contents have other seeds.\n");
        return b->rc;
    }
    (void)kg_buf_printf(b,
                        "Rests on: equal lengths. No common promise of equal tokens (A: batch %s, "
                        "chunk %s, path %s; B: %s, %s, %s).\n",
                        a->batch ? "yes" : "no", a->chunk ? "yes" : "no", a->path ? "yes" : "no",
                        f->batch ? "yes" : "no", f->chunk ? "yes" : "no", f->path ? "yes" : "no");
    return kg_buf_printf(b, "Outputs: %llu of %llu requests compared differ.\n", differ, n);
}

int kg_ab_text(const struct kg_ab_report *r, struct kg_buf *b)
{
    const struct kg_ab_result *s = &r->result;

    if (r->at != NULL) {
        (void)kg_buf_printf(b, "--- %s\n", r->at);
    }
    for (uint32_t k = 0; k < 2; k++) {
        (void)kg_buf_printf(b, "%s: ", r->names[k]);
        (void)kg_ab_about(r, k, b);
        (void)kg_buf_putc(b, '\n');
    }
    (void)kg_ab_size(r, b);
    (void)kg_buf_puts(b, "\n\n");
    (void)kg_buf_printf(b, "  %-13s %16s %16s %10s   %20s\n", "", r->names[0], r->names[1],
                        "change", "95 % of the change");
    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        put_figure(b, m, &s->figures[m]);
    }
    put_rate(b, "throughput", &s->throughput);
    put_rate(b, "goodput", &s->goodput);
    if (s->n_tested > 0) {
        (void)kg_buf_printf(
            b,
            "  * beyond chance: more than %.1f standard errors; of reports on equal "
            "arms %g %% have any\n",
            s->critical, 100 * r->conf.alpha);
    }
    (void)kg_buf_puts(b, "\n");
    (void)kg_ab_verdict(s, r->names[0], r->names[1], b);
    (void)kg_ab_basis(r, b);
    return b->rc;
}

/* --- for programs --- */

static void json_figure(struct kg_buf *b, uint32_t m, const struct kg_ab_figure *f)
{
    (void)kg_buf_putc(b, '{');
    kg_buf_key_str(b, "name", kg_ab_figure_about(m)->name);
    kg_buf_key_str(b, "unit", kg_ab_figure_about(m)->unit);
    kg_buf_key_f64(b, "a", f->a);
    kg_buf_key_f64(b, "b", f->b);
    kg_buf_key_f64(b, "diff", f->diff);
    kg_buf_key_f64(b, "lo", f->lo);
    kg_buf_key_f64(b, "hi", f->hi);
    kg_buf_key_f64(b, "rel", f->rel);
    kg_buf_key_f64(b, "rel_lo", f->rel_lo);
    kg_buf_key_f64(b, "rel_hi", f->rel_hi);
    kg_buf_key_f64(b, "se", f->se);
    kg_buf_key_u64(b, "n", f->n);
    kg_buf_key_bool(b, "tested", f->is_tested);
    kg_buf_key_bool(b, "different", f->is_different);
    kg_buf_key_bool(b, "small", f->is_small);
    (void)kg_buf_putc(b, '}');
}

static void json_rate(struct kg_buf *b, const char *key, const struct kg_ab_rate *r)
{
    (void)kg_buf_printf(b, ",\"%s\":{\"unit\":\"tok/s\"", key);
    kg_buf_key_f64(b, "a", r->a);
    kg_buf_key_f64(b, "b", r->b);
    kg_buf_key_f64(b, "rel", r->rel);
    kg_buf_key_f64(b, "rel_lo", r->rel_lo);
    kg_buf_key_f64(b, "rel_hi", r->rel_hi);
    (void)kg_buf_putc(b, '}');
}

static void json_steps(struct kg_buf *b, const struct kg_ab_facts *f)
{
    (void)kg_buf_printf(b, ",\"steps\":%.0f,\"step_parts\":[", f->n_steps);
    for (uint32_t i = 0; i < f->n_parts; i++) {
        (void)kg_buf_puts(b, i > 0 ? ",{" : "{");
        kg_buf_key_str(b, "name", f->parts[i].name);
        kg_buf_key_f64(b, "s", f->parts[i].s);
        (void)kg_buf_putc(b, '}');
    }
    (void)kg_buf_puts(b, "],\"positions\":[");
    for (uint32_t i = 0; i < f->n_drafts; i++) {
        const struct kg_ab_draft *d = &f->drafts[i];
        (void)kg_buf_printf(b, "%s{\"verified\":%.0f,\"accepted\":%.0f", i > 0 ? "," : "",
                            d->verified, d->accepted);
        kg_buf_key_f64(b, "expected", d->expected);
        (void)kg_buf_putc(b, '}');
    }
    (void)kg_buf_putc(b, ']');
}

static void json_arm(struct kg_buf *b, const struct kg_ab_report *r, uint32_t k)
{
    const struct kg_ab_facts *f = &r->facts[k];

    (void)kg_buf_putc(b, '{');
    kg_buf_key_str(b, "name", r->names[k]);
    if (r->log != NULL) {
        (void)kg_buf_printf(b, ",\"requests\":%u,\"clients\":%u}", r->conf.n_of[k],
                            r->conf.n_clients[k]);
        return;
    }
    kg_buf_key_str(b, "config", r->what[k]);
    (void)kg_buf_printf(b,
                        ",\"exec\":\"%s\",\"pool\":\"%s\",\"sched\":\"%s\",\"spec\":\"%s\","
                        "\"clock\":\"%s\",\"seed\":%llu,\"invariant\":{\"batch\":%s,\"chunk\":%s,"
                        "\"path\":%s}",
                        f->exec, f->pool, f->sched, f->spec, f->clock,
                        (unsigned long long)r->seeds[k], f->batch ? "true" : "false",
                        f->chunk ? "true" : "false", f->path ? "true" : "false");
    kg_buf_key_f64(b, "stretch", f->stretch);
    kg_buf_key_f64(b, "duration_s", f->duration_s);
    kg_buf_key_f64(b, "arena_bytes", f->arena);
    (void)kg_buf_puts(b, ",\"bytes\":{");
    for (uint32_t c = 0; c < KG_AB_N_BYTES; c++) {
        (void)kg_buf_printf(b, "%s\"%s\":{\"mean\":%.0f,\"max\":%.0f}", c > 0 ? "," : "",
                            kg_results_class_name(c), f->bytes_mean[c], f->bytes_max[c]);
    }
    (void)kg_buf_putc(b, '}');
    json_steps(b, f);
    (void)kg_buf_putc(b, '}');
}

/* How much there is, and what was left out of a log. */
static void json_size(struct kg_buf *b, const struct kg_ab_report *r)
{
    const struct kg_ab_result *s = &r->result;
    const struct kg_ab_log *l = r->log;

    if (l != NULL) {
        (void)kg_buf_printf(
            b,
            ",\"draws\":%u,\"worth_clients\":%u,\"shares_changed\":%s,"
            "\"split_is_off\":%s,\"clients_in_both\":%u,\"left_out\":{\"forced\":%llu,"
            "\"without_arm\":%llu,\"no_rows\":%llu},\"tested\":%u,"
            "\"comparisons\":%u",
            r->conf.n_draws, s->n_blocks, l->shares_changed ? "true" : "false",
            split_is_off(r) ? "true" : "false", l->n_in_both, (unsigned long long)l->n_forced,
            (unsigned long long)l->n_armless, (unsigned long long)l->n_odd, s->n_tested,
            r->conf.n_comparisons);
        return;
    }
    (void)kg_buf_printf(b,
                        ",\"requests\":%u,\"repeats\":%u,\"pairs\":%u,\"draws\":%u,\"window\":%u,"
                        "\"windows\":%u,\"tested\":%u,\"comparisons\":%u",
                        r->conf.n, r->conf.n_repeats, s->n_pairs, r->conf.n_draws, s->block,
                        s->n_blocks, s->n_tested, r->conf.n_comparisons);
}

/* What only a replay has: rates of whole runs, outputs that must be equal. */
static void json_runs(struct kg_buf *b, const struct kg_ab_report *r)
{
    const struct kg_ab_result *s = &r->result;

    json_rate(b, "throughput", &s->throughput);
    json_rate(b, "goodput", &s->goodput);
    (void)kg_buf_printf(b,
                        ",\"outputs\":{\"promised\":%s,\"compared\":%llu,\"differ\":%llu},"
                        "\"same\":%s",
                        kg_ab_must_agree(r) ? "true" : "false",
                        (unsigned long long)s->n_outputs_compared,
                        (unsigned long long)s->n_outputs_differ, s->is_same ? "true" : "false");
}

int kg_ab_json(const struct kg_ab_report *r, struct kg_buf *b)
{
    const struct kg_ab_result *s = &r->result;
    struct kg_buf words;

    (void)kg_buf_putc(b, '{');
    kg_buf_key_str(b, "trace", r->trace);
    if (r->at != NULL) {
        kg_buf_key_str(b, "at", r->at);
    }
    (void)kg_buf_puts(b, ",\"arms\":[");
    json_arm(b, r, 0);
    (void)kg_buf_putc(b, ',');
    json_arm(b, r, 1);
    (void)kg_buf_putc(b, ']');
    json_size(b, r);
    kg_buf_key_f64(b, "alpha", r->conf.alpha);
    kg_buf_key_f64(b, "critical", s->critical);
    (void)kg_buf_puts(b, ",\"figures\":[");
    for (uint32_t m = 0; m < KG_AB_N_FIGURES; m++) {
        (void)kg_buf_puts(b, m > 0 ? "," : "");
        json_figure(b, m, &s->figures[m]);
    }
    (void)kg_buf_putc(b, ']');
    if (r->log == NULL) {
        json_runs(b, r);
    }
    kg_buf_key_bool(b, "cannot_tell", s->cannot_tell);
    kg_buf_init(&words, 0);
    (void)kg_ab_verdict(s, r->names[0], r->names[1], &words);
    kg_buf_key_str(b, "verdict", kg_buf_cstr(&words));
    kg_buf_fini(&words);
    return kg_buf_putc(b, '}');
}
