#include "experiment/results.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const outcome_words[] = {"ok", "refused", "cancelled", "error"};
static const char *const reason_words[KG_N_REASONS] = {
    "length", "stop", "client", "queue_full", "never_fits", "timeout", "policy", "fault"};
static const char *const class_words[KG_N_BYTES] = {"live_pages",    "live_states", "cached_pages",
                                                    "cached_states", "pinned",      "holes",
                                                    "gap",           "padding",     "promised"};

const char *kg_results_class_name(uint32_t class)
{
    return class_words[class];
}

/* --- numbers --- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double quantile(const double *v, uint64_t n, double q)
{
    double at = q * (double)(n - 1);
    uint64_t i = (uint64_t)at;

    return i + 1 < n ? v[i] + (at - (double)i) * (v[i + 1] - v[i]) : v[n - 1];
}

struct kg_quantiles kg_quantiles_of(double *v, uint64_t n)
{
    double sum = 0;

    if (n == 0) {
        return (struct kg_quantiles){NAN, NAN, NAN, NAN, 0};
    }
    qsort(v, n, sizeof(*v), by_value);
    for (uint64_t i = 0; i < n; i++) {
        sum += v[i];
    }
    return (struct kg_quantiles){sum / (double)n, quantile(v, n, 0.5), quantile(v, n, 0.9),
                                 quantile(v, n, 0.99), n};
}

/* The times of one row in ms; NaN where there is none. */
struct times {
    double ttft, tpot, e2e, queue;
};

static double span_ms(uint64_t from, uint64_t to)
{
    return to == UINT64_MAX || to < from ? NAN : (double)(to - from) / 1e6;
}

static struct times times_of(const struct kg_replay_row *row)
{
    struct times t = {.ttft = span_ms(row->arrival_ns, row->first_ns),
                      .tpot = NAN,
                      .e2e = span_ms(row->arrival_ns, row->done_ns),
                      .queue = span_ms(row->arrival_ns, row->admitted_ns)};

    if (row->n_output > 1 && row->first_ns != UINT64_MAX) {
        t.tpot = span_ms(row->first_ns, row->done_ns) / (row->n_output - 1);
    }
    return t;
}

static int is_good(const struct kg_results_about *a, const struct times *t)
{
    return (a->ttft_slo_ms == 0 || t->ttft <= a->ttft_slo_ms) &&
           (a->tpot_slo_ms == 0 || !(t->tpot > a->tpot_slo_ms));
}

static void add_row(const struct kg_replay_row *row, const struct kg_results_about *about,
                    const struct times *t, struct kg_totals *s)
{
    s->n++;
    s->outcome[row->outcome]++;
    s->reason[row->reason]++;
    s->preemptions += row->n_preempted;
    s->checkpoints += row->n_checkpoints;
    s->drafted += row->n_drafted;
    s->verified += row->n_verified;
    s->accepted += row->n_accepted;
    if (row->outcome != KG_OUTCOME_OK) {
        return;
    }
    s->prompt += row->n_prompt;
    s->output += row->n_output;
    s->hit_page += row->hit_page;
    s->hit_state += row->hit_state;
    s->reused += row->reused;
    s->lost += row->lost;
    if (is_good(about, t)) {
        s->n_good++;
        s->good_output += row->n_output;
    }
}

int kg_results_totals(const struct kg_replay_result *result, const struct kg_results_about *about,
                      struct kg_totals *totals)
{
    size_t most = result->n > result->n_steps ? result->n : result->n_steps;
    double *v = malloc((4 * (size_t)result->n + most + 1) * sizeof(*v));
    uint64_t n[4] = {0};

    memset(totals, 0, sizeof(*totals));
    if (v == NULL) {
        return KG_ENOMEM;
    }
    for (uint32_t i = 0; i < result->n; i++) {
        const struct kg_replay_row *row = &result->rows[i];
        struct times t = times_of(row);
        const double all[4] = {t.ttft, t.tpot, t.e2e, t.queue};
        add_row(row, about, &t, totals);
        for (uint32_t k = 0; k < 4; k++) {
            if (row->outcome == KG_OUTCOME_OK && !isnan(all[k])) {
                v[k * (size_t)result->n + n[k]++] = all[k];
            }
        }
    }
    struct kg_quantiles *q[4] = {&totals->ttft, &totals->tpot, &totals->e2e, &totals->queue};
    for (uint32_t k = 0; k < 4; k++) {
        *q[k] = kg_quantiles_of(v + k * (size_t)result->n, n[k]);
    }
    for (size_t i = 0; i < result->n_steps; i++) {
        v[i] = (double)result->step_ns[i] / 1e6;
    }
    totals->step = kg_quantiles_of(v, result->n_steps);
    for (size_t i = 0; result->engine_ns != NULL && i < result->n_steps; i++) {
        v[i] = (double)result->engine_ns[i] / 1e3;
        totals->engine_max = v[i] > totals->engine_max ? v[i] : totals->engine_max;
        totals->engine_sum += v[i];
        totals->engine_over += v[i] > 1000;
    }
    if (result->engine_ns != NULL) {
        totals->engine = kg_quantiles_of(v, result->n_steps);
    }
    free(v);
    return KG_OK;
}

/* --- JSON --- */

/* ,"name":value with at most six digits behind the point: ns are exact; null for NaN. */
static void put_ms(struct kg_buf *b, const char *name, double v)
{
    (void)kg_buf_printf(b, ",\"%s\":", name);
    if (isnan(v)) {
        (void)kg_buf_puts(b, "null");
    } else {
        (void)kg_buf_printf(b, "%.6f", v);
    }
}

int kg_results_row(const struct kg_replay_result *result, const struct kg_trace *trace, uint32_t i,
                   struct kg_buf *b)
{
    const struct kg_replay_row *row = &result->rows[i];
    const char *name = kg_trace_name(trace, i);
    struct times t = times_of(row);

    (void)kg_buf_puts(b, "{\"id\":");
    (void)kg_buf_json_str(b, name, strlen(name));
    put_ms(b, "arrival_ms", (double)row->arrival_ns / 1e6);
    (void)kg_buf_printf(b, ",\"outcome\":\"%s\",\"reason\":\"%s\"", outcome_words[row->outcome],
                        reason_words[row->reason]);
    (void)kg_buf_printf(b,
                        ",\"prompt_tokens\":%u,\"output_tokens\":%u,\"hit_page_tokens\":%u,"
                        "\"hit_state_tokens\":%u,\"reused_tokens\":%u,\"lost_tokens\":%u,"
                        "\"checkpoints_written\":%u",
                        row->n_prompt, row->n_output, row->hit_page, row->hit_state, row->reused,
                        row->lost, row->n_checkpoints);
    put_ms(b, "ttft_ms", t.ttft);
    put_ms(b, "tpot_ms", t.tpot);
    put_ms(b, "e2e_ms", t.e2e);
    put_ms(b, "queue_ms", t.queue);
    (void)kg_buf_printf(b, ",\"preemptions\":%u,\"drafted\":%u,\"verified\":%u,\"accepted\":%u",
                        row->n_preempted, row->n_drafted, row->n_verified, row->n_accepted);
    (void)kg_buf_printf(b, ",\"output_hash\":\"%016llx\"", (unsigned long long)row->output_hash);
    if (result->n_replicas > 1) {
        (void)kg_buf_printf(b, ",\"replica\":%u,\"expected_tokens\":%u", row->replica,
                            row->expected);
    }
    if (row->detail != NULL) {
        (void)kg_buf_puts(b, ",\"detail\":");
        (void)kg_buf_json_str(b, row->detail, strlen(row->detail));
    }
    return kg_buf_puts(b, "}\n");
}

static void put_quantiles(struct kg_buf *b, const char *name, const struct kg_quantiles *q)
{
    (void)kg_buf_printf(b, ",\"%s\":{", name);
    kg_buf_key_f64(b, "mean", q->mean);
    kg_buf_key_f64(b, "p50", q->p50);
    kg_buf_key_f64(b, "p90", q->p90);
    kg_buf_key_f64(b, "p99", q->p99);
    (void)kg_buf_putc(b, '}');
}

#define ULL(v) ((unsigned long long)(v))

static void put_about(struct kg_buf *b, const struct kg_results_about *a)
{
    const struct kg_expand_share *s = &a->share;

    (void)kg_buf_printf(b,
                        "{\"exec\":\"%s\",\"pool\":\"%s\",\"sched\":\"%s\",\"spec\":\"%s\","
                        "\"clock\":\"%s\",\"seed\":%llu",
                        a->exec, a->pool, a->sched, a->spec, a->is_virtual ? "virtual" : "real",
                        ULL(a->seed));
    (void)kg_buf_printf(b,
                        ",\"model\":{\"family\":\"%s\",\"vocab\":%u,\"math\":\"%s\"},"
                        "\"invariant\":{\"batch\":%s,\"chunk\":%s,\"path\":%s}",
                        a->family, a->vocab, a->math,
                        a->caps & KG_EXEC_CAP_INVARIANT_BATCH ? "true" : "false",
                        a->caps & KG_EXEC_CAP_INVARIANT_CHUNK ? "true" : "false",
                        a->caps & KG_EXEC_CAP_INVARIANT_PATH ? "true" : "false");
    (void)kg_buf_puts(b, ",\"load\":{");
    kg_buf_key_f64(b, "wanted", a->load);
    kg_buf_key_f64(b, "capacity_s", a->capacity_s);
    kg_buf_key_f64(b, "stretch", a->stretch);
    (void)kg_buf_printf(b,
                        "},\"expansion\":{\"tail_tokens\":%llu,\"tail_resolved\":%llu,"
                        "\"answer_tokens\":%llu,\"answer_resolved\":%llu}",
                        ULL(s->tail_tokens), ULL(s->tail_resolved), ULL(s->answer_tokens),
                        ULL(s->answer_resolved));
}

static void put_counts(struct kg_buf *b, const struct kg_totals *s)
{
    (void)kg_buf_printf(b, ",\"requests\":{\"total\":%llu", ULL(s->n));
    for (uint32_t k = 0; k < 4; k++) {
        (void)kg_buf_printf(b, ",\"%s\":%llu", outcome_words[k], ULL(s->outcome[k]));
    }
    (void)kg_buf_puts(b, "},\"refusals\":{");
    for (uint32_t k = KG_REASON_QUEUE; k <= KG_REASON_POLICY; k++) {
        (void)kg_buf_printf(b, "%s\"%s\":%llu", k > KG_REASON_QUEUE ? "," : "", reason_words[k],
                            ULL(s->reason[k]));
    }
    (void)kg_buf_printf(b,
                        "},\"tokens\":{\"prompt\":%llu,\"output\":%llu,\"hit_page\":%llu,"
                        "\"hit_state\":%llu,\"reused\":%llu,\"lost\":%llu},"
                        "\"checkpoints_written\":%llu,\"preemptions\":%llu,\"drafted\":%llu,"
                        "\"verified\":%llu,\"accepted\":%llu",
                        ULL(s->prompt), ULL(s->output), ULL(s->hit_page), ULL(s->hit_state),
                        ULL(s->reused), ULL(s->lost), ULL(s->checkpoints), ULL(s->preemptions),
                        ULL(s->drafted), ULL(s->verified), ULL(s->accepted));
}

static void put_rates(struct kg_buf *b, const struct kg_replay_result *r,
                      const struct kg_results_about *a, const struct kg_totals *s)
{
    double sec = (double)r->duration_ns / 1e9;

    kg_buf_key_f64(b, "duration_s", sec);
    kg_buf_key_f64(b, "output_tokens_per_s", sec > 0 ? (double)s->output / sec : NAN);
    kg_buf_key_f64(b, "total_tokens_per_s", sec > 0 ? (double)(s->output + s->prompt) / sec : NAN);
    (void)kg_buf_puts(b, ",\"goodput\":{");
    kg_buf_key_f64(b, "requests_per_s", sec > 0 ? (double)s->n_good / sec : NAN);
    kg_buf_key_f64(b, "output_tokens_per_s", sec > 0 ? (double)s->good_output / sec : NAN);
    kg_buf_key_f64(b, "share", s->n > 0 ? (double)s->n_good / (double)s->n : NAN);
    kg_buf_key_f64(b, "ttft_slo_ms", a->ttft_slo_ms);
    kg_buf_key_f64(b, "tpot_slo_ms", a->tpot_slo_ms);
    (void)kg_buf_putc(b, '}');
}

static void put_memory(struct kg_buf *b, const struct kg_replay_result *r)
{
    (void)kg_buf_printf(b, ",\"bytes\":{\"arena\":%llu", ULL(r->arena_bytes));
    for (uint32_t k = 0; k < KG_N_BYTES; k++) {
        double mean = r->bytes_ns > 0 ? r->bytes[k].sum / (double)r->bytes_ns : 0;
        (void)kg_buf_printf(b, ",\"%s\":{\"mean\":%.0f,\"max\":%llu}", class_words[k], mean,
                            ULL(r->bytes[k].max));
    }
    (void)kg_buf_printf(
        b,
        "},\"evictions\":{\"pages\":%llu,\"states\":%llu},\"relocations\":{"
        "\"moves\":%llu,\"idle_moves\":%llu,\"bytes\":%llu},\"checkpoints\":{\"written\":%llu,"
        "\"unused\":%llu,\"skipped\":%llu,\"pruned\":%llu}",
        ULL(r->stats.evicted[KG_PAGE]), ULL(r->stats.evicted[KG_STATE]), ULL(r->stats.moves),
        ULL(r->stats.idle_moves), ULL(r->stats.moved_bytes), ULL(r->stats.ckpt_written),
        ULL(r->stats.ckpt_unused), ULL(r->stats.ckpt_skipped), ULL(r->stats.ckpt_pruned));
    if (r->stats.tier_limit > 0) {
        (void)kg_buf_printf(
            b,
            ",\"tier\":{\"reused_tokens\":%llu,\"stored\":{\"pages\":%llu,\"states\":%llu},"
            "\"loaded\":{\"pages\":%llu,\"states\":%llu},\"skipped\":{\"pages\":%llu,"
            "\"states\":%llu},\"failed\":%llu,\"bytes\":%llu,\"limit_bytes\":%llu}",
            ULL(r->stats.tier_tokens), ULL(r->stats.tier_stored[KG_PAGE]),
            ULL(r->stats.tier_stored[KG_STATE]), ULL(r->stats.tier_loaded[KG_PAGE]),
            ULL(r->stats.tier_loaded[KG_STATE]), ULL(r->stats.tier_skipped[KG_PAGE]),
            ULL(r->stats.tier_skipped[KG_STATE]), ULL(r->stats.tier_failed),
            ULL(r->stats.tier_bytes), ULL(r->stats.tier_limit));
    }
}

/* Means over bins, of the classes in their order; up to the last bin that saw time. */
static void put_series(struct kg_buf *b, const struct kg_replay_series *s)
{
    uint32_t n = KG_REPLAY_BINS;

    while (n > 0 && s->ns[n - 1] == 0) {
        n--;
    }
    (void)kg_buf_puts(b, ",\"bytes_over_time\":{");
    kg_buf_key_f64(b, "width_s", (double)s->width_ns / 1e9);
    for (uint32_t k = 0; k < KG_N_BYTES; k++) {
        (void)kg_buf_printf(b, ",\"%s\":[", class_words[k]);
        for (uint32_t i = 0; i < n; i++) {
            (void)kg_buf_printf(b, "%s%.0f", i > 0 ? "," : "",
                                s->ns[i] > 0 ? s->sum[i][k] / s->ns[i] : 0);
        }
        (void)kg_buf_putc(b, ']');
    }
    (void)kg_buf_puts(b, "},\"steps_over_time\":{");
    kg_buf_key_f64(b, "width_s", (double)s->width_ns / 1e9);
    (void)kg_buf_puts(b, ",\"n\":[");
    for (uint32_t i = 0; i < n; i++) {
        (void)kg_buf_printf(b, "%s%.0f", i > 0 ? "," : "", s->n_steps[i]);
    }
    (void)kg_buf_puts(b, "],\"ms\":[");
    for (uint32_t i = 0; i < n; i++) {
        (void)kg_buf_puts(b, i > 0 ? "," : "");
        (void)kg_buf_json_f64(b, s->n_steps[i] > 0 ? s->step_ns[i] / s->n_steps[i] / 1e6 : NAN);
    }
    (void)kg_buf_puts(b, "]}");
}

int kg_results_summary(const struct kg_replay_result *result, const struct kg_results_about *about,
                       const struct kg_totals *totals, struct kg_buf *b)
{
    put_about(b, about);
    put_counts(b, totals);
    put_rates(b, result, about, totals);
    put_quantiles(b, "ttft_ms", &totals->ttft);
    put_quantiles(b, "tpot_ms", &totals->tpot);
    put_quantiles(b, "e2e_ms", &totals->e2e);
    put_quantiles(b, "queue_ms", &totals->queue);
    (void)kg_buf_printf(b, ",\"steps\":%zu", result->n_steps);
    put_quantiles(b, "step_ms", &totals->step);
    if (totals->engine.n > 0) {
        put_quantiles(b, "engine_step_us", &totals->engine);
        put_ms(b, "engine_step_us_max", totals->engine_max);
        put_ms(b, "engine_us", totals->engine_sum);
        (void)kg_buf_printf(b, ",\"engine_steps_over_1ms\":%llu", ULL(totals->engine_over));
    }
    kg_results_steps(b, result, about);
    put_memory(b, result);
    if (result->series != NULL) {
        put_series(b, result->series);
    }
    if (result->n_replicas > 1) {
        int rc = kg_results_cluster_json(result, about, b);
        if (rc != KG_OK) {
            return rc;
        }
    }
    return kg_buf_puts(b, "}\n");
}

/* --- for people --- */

static void text_quantiles(struct kg_buf *b, const char *name, const struct kg_quantiles *q)
{
    if (q->n == 0) {
        (void)kg_buf_printf(b, "%-12s -\n", name);
        return;
    }
    (void)kg_buf_printf(b, "%-12s mean %.2f, p50 %.2f, p90 %.2f, p99 %.2f ms\n", name, q->mean,
                        q->p50, q->p90, q->p99);
}

static double percent(uint64_t part, uint64_t all)
{
    return all > 0 ? 100.0 * (double)part / (double)all : 0;
}

static void text_memory(struct kg_buf *b, const struct kg_replay_result *r)
{
    (void)kg_buf_puts(b, "memory      ");
    for (uint32_t k = 0; k < KG_BYTES_PROMISED; k++) {
        double mean = r->bytes_ns > 0 ? r->bytes[k].sum / (double)r->bytes_ns : 0;
        if (r->bytes[k].max > 0) {
            (void)kg_buf_printf(b, " %s %.1f (max %.1f)%%,", class_words[k],
                                100 * mean / (double)r->arena_bytes,
                                percent(r->bytes[k].max, r->arena_bytes));
        }
    }
    (void)kg_buf_printf(b, " of %.1f MiB\n", (double)r->arena_bytes / 1048576);
}

int kg_results_text(const struct kg_replay_result *result, const struct kg_results_about *about,
                    const struct kg_totals *totals, struct kg_buf *b)
{
    const struct kg_totals *s = totals;
    double sec = (double)result->duration_ns / 1e9;

    (void)kg_buf_printf(b, "requests     %llu: %llu ok, %llu refused, %llu cancelled, %llu error\n",
                        ULL(s->n), ULL(s->outcome[0]), ULL(s->outcome[1]), ULL(s->outcome[2]),
                        ULL(s->outcome[3]));
    for (uint32_t k = KG_REASON_QUEUE; k <= KG_REASON_POLICY; k++) {
        if (s->reason[k] > 0) {
            (void)kg_buf_printf(b, "refused      %s %llu\n", reason_words[k], ULL(s->reason[k]));
        }
    }
    (void)kg_buf_printf(b, "time         %.1f s %s, %zu steps\n", sec,
                        about->is_virtual ? "simulated" : "real", result->n_steps);
    (void)kg_buf_printf(b, "throughput   %.1f output tokens/s, %.1f in all\n",
                        sec > 0 ? (double)s->output / sec : 0,
                        sec > 0 ? (double)(s->output + s->prompt) / sec : 0);
    (void)kg_buf_printf(b, "goodput      %.3f requests/s, %.1f %% of all\n",
                        sec > 0 ? (double)s->n_good / sec : 0, percent(s->n_good, s->n));
    (void)kg_buf_printf(b,
                        "prompts      %llu tokens, %.1f %% reused, %.1f %% lost for want of a "
                        "state\n",
                        ULL(s->prompt), percent(s->reused, s->prompt), percent(s->lost, s->prompt));
    text_quantiles(b, "ttft", &s->ttft);
    text_quantiles(b, "tpot", &s->tpot);
    text_quantiles(b, "e2e", &s->e2e);
    text_quantiles(b, "queue", &s->queue);
    text_quantiles(b, "step", &s->step);
    if (s->engine.n > 0) {
        (void)kg_buf_printf(
            b,
            "engine       mean %.2f, p50 %.2f, p99 %.2f, max %.1f us of CPU a step; "
            "%llu steps above 1 ms\n",
            s->engine.mean, s->engine.p50, s->engine.p99, s->engine_max, ULL(s->engine_over));
    }
    text_memory(b, result);
    (void)kg_buf_printf(b, "checkpoints  %llu written, %llu skipped, %llu pruned\n",
                        ULL(result->stats.ckpt_written), ULL(result->stats.ckpt_skipped),
                        ULL(result->stats.ckpt_pruned));
    (void)kg_buf_printf(b,
                        "evicted      %llu pages, %llu states; %llu preemptions; %llu units moved, "
                        "%llu of them while nothing ran, %.1f MiB\n",
                        ULL(result->stats.evicted[KG_PAGE]), ULL(result->stats.evicted[KG_STATE]),
                        ULL(s->preemptions), ULL(result->stats.moves),
                        ULL(result->stats.idle_moves), (double)result->stats.moved_bytes / 1048576);
    if (result->stats.tier_limit > 0) {
        const struct kg_engine_stats *t = &result->stats;
        (void)kg_buf_printf(
            b,
            "tier         %llu tokens reused thanks to it; %llu pages and %llu states stored, %llu "
            "and %llu came back, %llu and %llu were not taken\n",
            ULL(t->tier_tokens), ULL(t->tier_stored[KG_PAGE]), ULL(t->tier_stored[KG_STATE]),
            ULL(t->tier_loaded[KG_PAGE]), ULL(t->tier_loaded[KG_STATE]),
            ULL(t->tier_skipped[KG_PAGE]), ULL(t->tier_skipped[KG_STATE]));
    }
    if (result->n_replicas > 1) {
        int rc = kg_results_cluster_text(result, about, b);
        if (rc != KG_OK) {
            return rc;
        }
    }
    return kg_buf_printf(b,
                         "expansion    %.1f %% of partial blocks and %.1f %% of answers taken from "
                         "the continuation\n",
                         percent(about->share.tail_resolved, about->share.tail_tokens),
                         percent(about->share.answer_resolved, about->share.answer_tokens));
}
