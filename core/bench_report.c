/* Figures of a benchmark, its report block and its result object. */
#include "bench_serve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *title, *name, *key;
} metrics[KG_BENCH_METRICS] = {
    [KG_BENCH_TTFT] = {"Time to First Token", "TTFT", "ttft"},
    [KG_BENCH_TPOT] = {"Time per Output Token (excl. 1st token)", "TPOT", "tpot"},
    [KG_BENCH_ITL] = {"Inter-token Latency", "ITL", "itl"},
    [KG_BENCH_E2EL] = {"End-to-end Latency", "E2EL", "e2el"},
};

struct values {
    double *v;
    size_t n;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Percentile p (0..100) of sorted values, linear between neighbours. */
static double percentile(const struct values *x, double p)
{
    double at = p / 100 * (double)(x->n - 1);
    size_t i = (size_t)floor(at);

    if (i + 1 >= x->n)
        return x->v[x->n - 1];
    return x->v[i] + (at - (double)i) * (x->v[i + 1] - x->v[i]);
}

static void summarise(const struct kg_bench_conf *conf, struct values *x, struct kg_bench_stat *s)
{
    double sum = 0, sq = 0;

    if (x->n == 0)
        return;
    qsort(x->v, x->n, sizeof(*x->v), by_value);
    for (size_t i = 0; i < x->n; i++)
        sum += x->v[i];
    s->mean = sum / (double)x->n;
    for (size_t i = 0; i < x->n; i++)
        sq += (x->v[i] - s->mean) * (x->v[i] - s->mean);
    s->std = sqrt(sq / (double)x->n);
    s->median = percentile(x, 50);
    for (uint32_t i = 0; i < conf->n_percentiles; i++)
        s->percentile[i] = percentile(x, conf->percentiles[i]);
}

/* Value of a metric of one request in ms; NaN when it has none. */
static double value_of(const struct kg_bench_req *q, enum kg_bench_metric m)
{
    double e2e = (double)(q->end_ns - q->sent_ns) / 1e6;
    double ttft = (double)(q->first_ns - q->sent_ns) / 1e6;

    switch (m) {
    case KG_BENCH_TTFT:
        return ttft;
    case KG_BENCH_E2EL:
        return e2e;
    case KG_BENCH_TPOT:
        return q->n_output > 1 ? (e2e - ttft) / (q->n_output - 1) : NAN;
    default:
        return NAN; /* has many */
    }
}

static int measure_metric(const struct kg_bench_conf *conf, const struct kg_bench_req *reqs,
                          uint32_t n, enum kg_bench_metric m, struct kg_bench_stat *s)
{
    struct values x = {NULL, 0};
    size_t cap = 1;

    for (uint32_t i = 0; i < n; i++)
        cap += m == KG_BENCH_ITL ? reqs[i].n_gaps : 1;
    x.v = calloc(cap, sizeof(*x.v));
    if (x.v == NULL)
        return KG_ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        const struct kg_bench_req *q = &reqs[i];
        if (!q->ok)
            continue;
        for (uint32_t j = 0; m == KG_BENCH_ITL && j < q->n_gaps; j++)
            x.v[x.n++] = (double)q->gaps_ns[j] / 1e6;
        if (m != KG_BENCH_ITL && !isnan(value_of(q, m)))
            x.v[x.n++] = value_of(q, m);
    }
    summarise(conf, &x, s);
    free(x.v);
    return KG_OK;
}

static bool is_good(const struct kg_bench_conf *conf, const struct kg_bench_req *q)
{
    for (uint32_t m = 0; m < KG_BENCH_METRICS; m++) {
        if (conf->goodput_ms[m] > 0 && value_of(q, m) > conf->goodput_ms[m])
            return false;
    }
    return true;
}

/* Tokens and requests in flight, second by second. */
static int measure_peaks(const struct kg_bench_req *reqs, uint32_t n, uint64_t duration_ns,
                         struct kg_bench_result *r)
{
    size_t seconds = (size_t)(duration_ns / 1000000000) + 2;
    double *tokens = calloc(seconds, sizeof(*tokens));
    uint32_t *flying = calloc(seconds, sizeof(*flying));

    if (tokens == NULL || flying == NULL) {
        free(tokens);
        free(flying);
        return KG_ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct kg_bench_req *q = &reqs[i];
        double each = q->n_chunks > 0 ? (double)q->n_output / q->n_chunks : 0;
        uint64_t at = q->first_ns;
        if (!q->ok)
            continue;
        for (uint64_t t = q->sent_ns / 1000000000; t <= q->end_ns / 1000000000 && t < seconds; t++)
            flying[t]++;
        for (uint32_t j = 0; j < q->n_chunks; j++) {
            if (at / 1000000000 < seconds)
                tokens[at / 1000000000] += each;
            at += j < q->n_gaps ? q->gaps_ns[j] : 0;
        }
    }
    for (size_t i = 0; i < seconds; i++) {
        r->peak_output_throughput = fmax(r->peak_output_throughput, tokens[i]);
        r->peak_concurrent = flying[i] > r->peak_concurrent ? flying[i] : r->peak_concurrent;
    }
    free(tokens);
    free(flying);
    return KG_OK;
}

int kg_bench_measure(const struct kg_bench_conf *conf, const struct kg_bench_req *reqs, uint32_t n,
                     uint64_t duration_ns, struct kg_bench_result *r, struct kg_error *err)
{
    uint32_t good = 0;
    double s = duration_ns > 0 ? (double)duration_ns / 1e9 : 1e-9;
    int rc;

    *r = (struct kg_bench_result){.duration_s = s};
    for (uint32_t i = 0; i < n; i++) {
        const struct kg_bench_req *q = &reqs[i];
        if (!q->ok) {
            r->failed++;
            continue;
        }
        r->completed++;
        r->total_input += q->n_input;
        r->total_output += q->n_output;
        good += is_good(conf, q);
    }
    r->request_throughput = r->completed / s;
    r->request_goodput = good / s;
    r->output_throughput = (double)r->total_output / s;
    r->total_throughput = (double)(r->total_input + r->total_output) / s;
    rc = measure_peaks(reqs, n, duration_ns, r);
    for (uint32_t m = 0; rc == KG_OK && m < KG_BENCH_METRICS; m++)
        rc = measure_metric(conf, reqs, n, m, &r->stats[m]);
    return rc == KG_OK ? KG_OK : kg_fail(err, rc, "out of memory");
}

/* A title in the middle of 50 columns. */
static void put_title(struct kg_buf *b, const char *title, char fill)
{
    size_t n = strlen(title), left = n < 50 ? (50 - n) / 2 : 0;
    size_t right = n < 50 ? 50 - n - left : 0;

    for (size_t i = 0; i < left; i++)
        kg_buf_putc(b, fill);
    kg_buf_puts(b, title);
    for (size_t i = 0; i < right; i++)
        kg_buf_putc(b, fill);
    kg_buf_putc(b, '\n');
}

static void put_count(struct kg_buf *b, const char *label, uint64_t v)
{
    kg_buf_printf(b, "%-40s %-10llu\n", label, (unsigned long long)v);
}

static void put_value(struct kg_buf *b, const char *label, double v)
{
    kg_buf_printf(b, "%-40s %-10.2f\n", label, v);
}

static void put_metric(const struct kg_bench_conf *conf, const struct kg_bench_result *r,
                       enum kg_bench_metric m, struct kg_buf *b)
{
    const struct kg_bench_stat *s = &r->stats[m];
    char label[64];

    put_title(b, metrics[m].title, '-');
    (void)snprintf(label, sizeof(label), "Mean %s (ms):", metrics[m].name);
    put_value(b, label, s->mean);
    (void)snprintf(label, sizeof(label), "Median %s (ms):", metrics[m].name);
    put_value(b, label, s->median);
    for (uint32_t i = 0; i < conf->n_percentiles; i++) {
        (void)snprintf(label, sizeof(label), "P%g %s (ms):", conf->percentiles[i], metrics[m].name);
        put_value(b, label, s->percentile[i]);
    }
}

void kg_bench_print(const struct kg_bench_conf *conf, const struct kg_bench_result *r,
                    struct kg_buf *b)
{
    put_title(b, " Serving Benchmark Result ", '=');
    put_count(b, "Successful requests:", r->completed);
    put_count(b, "Failed requests:", r->failed);
    if (conf->max_concurrency > 0)
        put_count(b, "Maximum request concurrency:", conf->max_concurrency);
    if (isfinite(conf->request_rate))
        put_value(b, "Request rate configured (RPS):", conf->request_rate);
    put_value(b, "Benchmark duration (s):", r->duration_s);
    put_count(b, "Total input tokens:", r->total_input);
    put_count(b, "Total generated tokens:", r->total_output);
    put_value(b, "Request throughput (req/s):", r->request_throughput);
    if (conf->has_goodput)
        put_value(b, "Request goodput (req/s):", r->request_goodput);
    put_value(b, "Output token throughput (tok/s):", r->output_throughput);
    put_value(b, "Peak output token throughput (tok/s):", r->peak_output_throughput);
    put_value(b, "Peak concurrent requests:", r->peak_concurrent);
    put_value(b, "Total token throughput (tok/s):", r->total_throughput);
    for (uint32_t m = 0; m < KG_BENCH_METRICS; m++) {
        if (conf->show[m])
            put_metric(conf, r, m, b);
    }
    put_title(b, "", '=');
}

/* Lists with one entry a request: seconds, as published results have them. */
static void put_detail(const struct kg_bench_req *reqs, uint32_t n, struct kg_buf *b)
{
    kg_buf_puts(b, ",\"input_lens\":[");
    for (uint32_t i = 0; i < n; i++)
        kg_buf_printf(b, i > 0 ? ",%u" : "%u", reqs[i].n_input);
    kg_buf_puts(b, "],\"output_lens\":[");
    for (uint32_t i = 0; i < n; i++)
        kg_buf_printf(b, i > 0 ? ",%u" : "%u", reqs[i].ok ? reqs[i].n_output : 0);
    kg_buf_puts(b, "],\"ttfts\":[");
    for (uint32_t i = 0; i < n; i++)
        kg_buf_printf(b, i > 0 ? ",%.9g" : "%.9g",
                      reqs[i].ok ? (double)(reqs[i].first_ns - reqs[i].sent_ns) / 1e9 : 0.0);
    kg_buf_puts(b, "],\"itls\":[");
    for (uint32_t i = 0; i < n; i++) {
        kg_buf_puts(b, i > 0 ? ",[" : "[");
        for (uint32_t j = 0; j < reqs[i].n_gaps; j++)
            kg_buf_printf(b, j > 0 ? ",%.9g" : "%.9g", (double)reqs[i].gaps_ns[j] / 1e9);
        kg_buf_putc(b, ']');
    }
    kg_buf_puts(b, "],\"errors\":[");
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            kg_buf_putc(b, ',');
        kg_buf_json_str(b, reqs[i].error, strlen(reqs[i].error));
    }
    kg_buf_putc(b, ']');
}

static void put_head(const struct kg_bench_conf *conf, struct kg_buf *b)
{
    char date[32] = "";
    time_t now = time(NULL);
    struct tm tm;

    if (gmtime_r(&now, &tm) != NULL)
        (void)strftime(date, sizeof(date), "%Y%m%d-%H%M%S", &tm);
    kg_buf_printf(b, "{\"date\":\"%s\"", date);
    kg_buf_key_str(b, "endpoint_type", conf->backend);
    kg_buf_key_str(b, "backend", conf->backend);
    kg_buf_key_str(b, "label", NULL);
    kg_buf_key_str(b, "model_id", conf->model);
    kg_buf_key_str(b, "tokenizer_id", conf->tokenizer != NULL ? conf->tokenizer : conf->model);
    kg_buf_printf(b, ",\"num_prompts\":%u", conf->num_prompts);
    if (isfinite(conf->request_rate))
        kg_buf_key_f64(b, "request_rate", conf->request_rate);
    else
        kg_buf_key_str(b, "request_rate", "inf");
    kg_buf_key_f64(b, "burstiness", conf->burstiness);
    if (conf->max_concurrency > 0)
        kg_buf_printf(b, ",\"max_concurrency\":%u", conf->max_concurrency);
    else
        kg_buf_puts(b, ",\"max_concurrency\":null");
}

void kg_bench_json(const struct kg_bench_conf *conf, const struct kg_bench_result *r,
                   const struct kg_bench_req *reqs, uint32_t n, struct kg_buf *b)
{
    put_head(conf, b);
    kg_buf_key_f64(b, "duration", r->duration_s);
    kg_buf_printf(b, ",\"completed\":%u,\"failed\":%u", r->completed, r->failed);
    kg_buf_printf(b, ",\"total_input_tokens\":%llu,\"total_output_tokens\":%llu",
                  (unsigned long long)r->total_input, (unsigned long long)r->total_output);
    kg_buf_key_f64(b, "request_throughput", r->request_throughput);
    if (conf->has_goodput)
        kg_buf_key_f64(b, "request_goodput", r->request_goodput);
    else
        kg_buf_puts(b, ",\"request_goodput\":null");
    kg_buf_key_f64(b, "output_throughput", r->output_throughput);
    kg_buf_key_f64(b, "total_token_throughput", r->total_throughput);
    kg_buf_key_f64(b, "max_output_tokens_per_s", r->peak_output_throughput);
    kg_buf_printf(b, ",\"max_concurrent_requests\":%u", r->peak_concurrent);
    for (uint32_t m = 0; m < KG_BENCH_METRICS; m++) {
        const struct kg_bench_stat *s = &r->stats[m];
        char key[40];
        if (!conf->show[m])
            continue;
        (void)snprintf(key, sizeof(key), "mean_%s_ms", metrics[m].key);
        kg_buf_key_f64(b, key, s->mean);
        (void)snprintf(key, sizeof(key), "median_%s_ms", metrics[m].key);
        kg_buf_key_f64(b, key, s->median);
        (void)snprintf(key, sizeof(key), "std_%s_ms", metrics[m].key);
        kg_buf_key_f64(b, key, s->std);
        for (uint32_t i = 0; i < conf->n_percentiles; i++) {
            (void)snprintf(key, sizeof(key), "p%g_%s_ms", conf->percentiles[i], metrics[m].key);
            kg_buf_key_f64(b, key, s->percentile[i]);
        }
    }
    if (conf->save_detailed)
        put_detail(reqs, n, b);
    kg_buf_puts(b, "}\n");
}
