/* kedge bench serve: the flags, the warm-up, the run, and where the results go. */
#include "base/num.h"
#include "bench_serve.h"
#include "cmd.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The flags as text. */
struct texts {
    const char *base_url, *endpoint, *backend, *model, *tokenizer, *api_key, *dataset;
    const char *num_prompts, *num_warmups, *input_len, *output_len, *prefix_len, *range_ratio;
    const char *rep_prefix, *rep_suffix, *rep_prefixes, *rep_output, *vocab;
    const char *rate, *burstiness, *concurrency, *seed, *temperature;
    const char *result_dir, *result_filename, *metrics, *percentiles, *goodput, *timeout;
    int ignore_eos, save_result, save_detailed;
};

static int whole(const char *flag, const char *text, uint64_t min, uint64_t max, uint32_t *out,
                 struct kg_error *err)
{
    uint64_t v;

    if (kg_num_u64(text, &v) != KG_OK || v < min || v > max)
        return kg_fail(err, KG_ECONFIG, "%s %s: a whole number from %llu to %llu was expected",
                       flag, text, (unsigned long long)min, (unsigned long long)max);
    *out = (uint32_t)v;
    return KG_OK;
}

static int real(const char *flag, const char *text, double min, double max, double *out,
                struct kg_error *err)
{
    double v;

    if (kg_num_f64(text, &v) != KG_OK || v < min || v > max)
        return kg_fail(err, KG_ECONFIG, "%s %s: a number from %g to %g was expected", flag, text,
                       min, max);
    *out = v;
    return KG_OK;
}

/* "http://HOST[:PORT]" and the endpoint's path behind it. */
static int read_url(const struct texts *t, struct kg_bench_conf *c, struct kg_error *err)
{
    const char *p = t->base_url, *end, *colon;
    uint32_t port = 80;
    size_t n_host;

    if (strncmp(p, "http://", 7) != 0)
        return kg_fail(err, KG_ECONFIG, "--base-url %s: http://HOST:PORT was expected", p);
    p += 7;
    end = p + strcspn(p, "/?#");
    colon = memchr(p, ':', (size_t)(end - p));
    if (p[0] == '[') { /* IPv6 */
        const char *close = memchr(p, ']', (size_t)(end - p));
        colon = close != NULL && close[1] == ':' ? close + 1 : NULL;
        p++;
        n_host = close != NULL ? (size_t)(close - p) : 0;
    } else {
        n_host = (size_t)((colon != NULL ? colon : end) - p);
    }
    if (n_host == 0 || n_host >= sizeof(c->host))
        return kg_fail(err, KG_ECONFIG, "--base-url %s: no host", t->base_url);
    (void)snprintf(c->host, sizeof(c->host), "%.*s", (int)n_host, p);
    if (colon != NULL) {
        char text[16];
        (void)snprintf(text, sizeof(text), "%.*s", (int)(end - colon - 1), colon + 1);
        if (whole("--base-url port", text, 1, 65535, &port, err) != KG_OK)
            return KG_ECONFIG;
    }
    c->port = port;
    if (end[0] == '/' && end[1] == '\0')
        end++;
    if (t->endpoint[0] != '/' ||
        snprintf(c->path, sizeof(c->path), "%s%s", end, t->endpoint) >= (int)sizeof(c->path))
        return kg_fail(err, KG_ECONFIG, "--endpoint %s: a path was expected", t->endpoint);
    c->chat = strstr(t->endpoint, "/chat/") != NULL;
    return KG_OK;
}

static const char *const metric_words[KG_BENCH_METRICS] = {"ttft", "tpot", "itl", "e2el"};

static int metric_of(const char *word, size_t n)
{
    for (int m = 0; m < KG_BENCH_METRICS; m++) {
        if (strlen(metric_words[m]) == n && memcmp(metric_words[m], word, n) == 0)
            return m;
    }
    return -1;
}

static int read_metrics(const struct texts *t, struct kg_bench_conf *c, struct kg_error *err)
{
    for (const char *p = t->metrics; *p != '\0';) {
        size_t n = strcspn(p, ",");
        int m = metric_of(p, n);
        if (m < 0)
            return kg_fail(err, KG_ECONFIG,
                           "--percentile-metrics %s: words are ttft, tpot, itl, "
                           "e2el",
                           t->metrics);
        c->show[m] = true;
        p += n + (p[n] == ',');
    }
    for (const char *p = t->percentiles; *p != '\0';) {
        size_t n = strcspn(p, ",");
        char word[32];
        (void)snprintf(word, sizeof(word), "%.*s", n > 30 ? 30 : (int)n, p);
        if (c->n_percentiles == 16)
            return kg_fail(err, KG_ECONFIG, "--metric-percentiles: at most 16");
        if (real("--metric-percentiles", word, 0, 100, &c->percentiles[c->n_percentiles], err) !=
            KG_OK)
            return KG_ECONFIG;
        c->n_percentiles++;
        p += n + (p[n] == ',');
    }
    return KG_OK;
}

/* "ttft:200 tpot:50", separated by blanks or commas. */
static int read_goodput(const struct texts *t, struct kg_bench_conf *c, struct kg_error *err)
{
    for (const char *p = t->goodput; p != NULL && *p != '\0';) {
        size_t n = strcspn(p, " ,"), key = strcspn(p, ":");
        char word[32];
        int m = key < n ? metric_of(p, key) : -1;
        if (m < 0 || m == KG_BENCH_ITL)
            return kg_fail(err, KG_ECONFIG, "--goodput %s: KEY:MS with ttft, tpot or e2el",
                           t->goodput);
        (void)snprintf(word, sizeof(word), "%.*s", (int)(n - key - 1), p + key + 1);
        if (real("--goodput", word, 1e-6, 1e9, &c->goodput_ms[m], err) != KG_OK)
            return KG_ECONFIG;
        c->has_goodput = true;
        p += n;
        p += strspn(p, " ,");
    }
    return KG_OK;
}

static int read_load(const struct texts *t, struct kg_bench_conf *c, struct kg_error *err)
{
    const uint64_t big = 16777216;
    bool rep = strcmp(t->dataset, "prefix_repetition") == 0;
    uint32_t seed = 0;
    int rc = KG_OK;

    if (!rep && strcmp(t->dataset, "random") != 0)
        return kg_fail(err, KG_ECONFIG, "--dataset-name %s: random or prefix_repetition",
                       t->dataset);
    c->dataset = rep ? KG_BENCH_PREFIX_REPETITION : KG_BENCH_RANDOM;
    rc = whole("--num-prompts", t->num_prompts, 1, 1000000, &c->num_prompts, err);
    if (rc == KG_OK)
        rc = whole("--num-warmups", t->num_warmups, 0, 100000, &c->num_warmups, err);
    if (rc == KG_OK)
        rc = whole(rep ? "--prefix-repetition-suffix-len" : "--random-input-len",
                   rep ? t->rep_suffix : t->input_len, 1, big, &c->input_len, err);
    if (rc == KG_OK)
        rc = whole(rep ? "--prefix-repetition-output-len" : "--random-output-len",
                   rep ? t->rep_output : t->output_len, 1, big, &c->output_len, err);
    if (rc == KG_OK)
        rc = whole(rep ? "--prefix-repetition-prefix-len" : "--random-prefix-len",
                   rep ? t->rep_prefix : t->prefix_len, 0, big, &c->prefix_len, err);
    if (rc == KG_OK)
        rc = whole("--prefix-repetition-num-prefixes", t->rep_prefixes, 1, 1000000, &c->n_prefixes,
                   err);
    if (rc == KG_OK && !rep)
        rc = real("--random-range-ratio", t->range_ratio, 0, 1, &c->range_ratio, err);
    if (rc == KG_OK)
        rc = whole("--vocab-size", t->vocab, 2, big, &c->vocab, err);
    if (rc == KG_OK)
        rc = whole("--seed", t->seed, 0, UINT32_MAX, &seed, err);
    c->seed = seed;
    c->request_rate = INFINITY;
    if (rc == KG_OK && strcmp(t->rate, "inf") != 0)
        rc = real("--request-rate", t->rate, 1e-6, 1e9, &c->request_rate, err);
    if (rc == KG_OK)
        rc = real("--burstiness", t->burstiness, 1e-3, 1e6, &c->burstiness, err);
    if (rc == KG_OK && t->concurrency != NULL)
        rc = whole("--max-concurrency", t->concurrency, 1, 1000000, &c->max_concurrency, err);
    c->temperature = NAN;
    if (rc == KG_OK && t->temperature != NULL)
        rc = real("--temperature", t->temperature, 0, 100, &c->temperature, err);
    if (rc == KG_OK)
        rc = whole("--timeout", t->timeout, 1, 86400, &c->timeout_s, err);
    return rc;
}

static int read_conf(const struct texts *t, struct kg_bench_conf *c, struct kg_error *err)
{
    int rc;

    *c = (struct kg_bench_conf){
        .base_url = t->base_url,
        .endpoint = t->endpoint,
        .backend = t->backend,
        .model = t->model,
        .tokenizer = t->tokenizer,
        .api_key = t->api_key,
        .ignore_eos = t->ignore_eos != 0,
        .save_result = t->save_result != 0 || t->save_detailed != 0,
        .save_detailed = t->save_detailed != 0,
        .result_dir = t->result_dir,
        .result_filename = t->result_filename,
    };
    rc = read_url(t, c, err);
    if (rc == KG_OK)
        rc = read_load(t, c, err);
    if (rc == KG_OK)
        rc = read_metrics(t, c, err);
    if (rc == KG_OK)
        rc = read_goodput(t, c, err);
    return rc;
}

/* The name of the first model the server lists. */
static int ask_model(struct kg_bench_conf *c, char *name, size_t n, struct kg_error *err)
{
    struct kg_buf body;
    json_t *root;
    const char *id;
    int rc;

    kg_buf_init(&body, 1u << 20);
    rc = kg_bench_get(c, "/v1/models", &body, err);
    if (rc != KG_OK) {
        kg_buf_fini(&body);
        return rc;
    }
    root = json_loadb(kg_buf_cstr(&body), body.len, 0, NULL);
    id = json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
    (void)snprintf(name, n, "%s", id != NULL ? id : "");
    json_decref(root);
    kg_buf_fini(&body);
    if (name[0] == '\0')
        return kg_fail(err, KG_EIO, "/v1/models names no model; give --model");
    c->model = name;
    return KG_OK;
}

static int save(const struct kg_bench_conf *c, const struct kg_bench_result *r,
                const struct kg_bench_req *reqs, bool to_stdout, struct kg_error *err)
{
    char path[1024];
    struct kg_buf b;
    int rc = KG_OK;

    kg_buf_init(&b, 0);
    kg_bench_json(c, r, reqs, c->num_prompts, &b);
    if (b.rc != KG_OK)
        rc = kg_fail(err, KG_ENOMEM, "out of memory");
    if (rc == KG_OK && to_stdout)
        (void)fwrite(b.data, 1, b.len, stdout);
    if (rc == KG_OK && c->save_result) {
        (void)snprintf(path, sizeof(path), "%s%s%s", c->result_dir != NULL ? c->result_dir : "",
                       c->result_dir != NULL ? "/" : "",
                       c->result_filename != NULL ? c->result_filename : "bench-serve.json");
        rc = kg_cmd_save(path, &b, err);
        if (rc == KG_OK)
            (void)fprintf(stderr, "results in %s\n", path);
    }
    kg_buf_fini(&b);
    return rc;
}

/* Requests before the clock starts; their prompts are not those of the run. */
static int warm_up(const struct kg_bench_conf *c, struct kg_error *err)
{
    struct kg_bench_conf at = *c;
    struct kg_bench_req *reqs = NULL;
    uint64_t ns;
    int rc;

    if (c->num_warmups == 0)
        return KG_OK;
    at.request_rate = INFINITY;
    rc = kg_bench_load(&at, c->num_warmups, ~c->seed, &reqs, err);
    if (rc == KG_OK)
        rc = kg_bench_run(&at, reqs, c->num_warmups, &ns, err);
    kg_bench_free(reqs, c->num_warmups);
    return rc;
}

static int run_bench(struct kg_bench_conf *c, bool json, struct kg_error *err)
{
    struct kg_bench_req *reqs = NULL;
    struct kg_bench_result r;
    struct kg_buf b;
    char model[256];
    uint64_t ns = 0;
    int rc = c->model == NULL ? ask_model(c, model, sizeof(model), err) : KG_OK;

    if (rc == KG_OK)
        rc = kg_bench_load(c, c->num_prompts, c->seed, &reqs, err);
    if (rc == KG_OK)
        rc = warm_up(c, err);
    if (rc == KG_OK)
        rc = kg_bench_run(c, reqs, c->num_prompts, &ns, err);
    if (rc == KG_OK)
        rc = kg_bench_measure(c, reqs, c->num_prompts, ns, &r, err);
    if (rc == KG_OK) {
        kg_buf_init(&b, 0);
        kg_bench_print(c, &r, &b);
        (void)fputs(kg_buf_cstr(&b), json ? stderr : stdout);
        kg_buf_fini(&b);
        for (uint32_t i = 0; r.failed > 0 && i < c->num_prompts; i++) {
            if (!reqs[i].ok) {
                (void)fprintf(stderr, "first failure: %s\n", reqs[i].error);
                break;
            }
        }
        rc = save(c, &r, reqs, json, err);
        if (rc == KG_OK && r.completed == 0)
            rc = kg_fail(err, KG_EIO, "no request succeeded");
    }
    if (c->model == model)
        c->model = NULL;
    kg_bench_free(reqs, c->num_prompts);
    return rc;
}

#define TEXT(flag, meta, doc, field)     \
    {                                    \
        flag, meta, doc, &t->field, NULL \
    }
#define SWITCH(flag, doc, field)         \
    {                                    \
        flag, NULL, doc, NULL, &t->field \
    }

static const struct texts defaults = {
    .base_url = "http://127.0.0.1:8000",
    .endpoint = "/v1/completions",
    .backend = "openai",
    .dataset = "random",
    .num_prompts = "100",
    .num_warmups = "0",
    .input_len = "1024",
    .output_len = "128",
    .prefix_len = "0",
    .range_ratio = "0",
    .rep_prefix = "256",
    .rep_suffix = "256",
    .rep_prefixes = "10",
    .rep_output = "128",
    .vocab = "3000",
    .rate = "inf",
    .burstiness = "1",
    .seed = "0",
    .metrics = "ttft,tpot,itl",
    .percentiles = "99",
    .timeout = "600",
};

static int parse(struct texts *t, struct kg_cmd_line *line, int argc, char **argv)
{
    const struct kg_cmd_flag flags[] = {
        TEXT("--base-url", "URL", "the server; default http://127.0.0.1:8000", base_url),
        TEXT("--endpoint", "PATH", "/v1/completions (default) or /v1/chat/completions", endpoint),
        TEXT("--backend", "NAME", "written into the results", backend),
        TEXT("--model", "NAME", "default: the first of /v1/models", model),
        TEXT("--tokenizer", "NAME", "written into the results", tokenizer),
        TEXT("--api-key", "KEY", "sent as a bearer token", api_key),
        TEXT("--dataset-name", "NAME", "random (default) or prefix_repetition", dataset),
        TEXT("--num-prompts", "N", "requests; default 100", num_prompts),
        TEXT("--num-warmups", "N", "requests before, not counted; default 0", num_warmups),
        TEXT("--random-input-len", "N", "prompt tokens; default 1024", input_len),
        TEXT("--random-output-len", "N", "output tokens; default 128", output_len),
        TEXT("--random-prefix-len", "N", "further tokens that all share; default 0", prefix_len),
        TEXT("--random-range-ratio", "X", "lengths vary by this share; default 0", range_ratio),
        TEXT("--prefix-repetition-prefix-len", "N", "default 256", rep_prefix),
        TEXT("--prefix-repetition-suffix-len", "N", "default 256", rep_suffix),
        TEXT("--prefix-repetition-num-prefixes", "N", "default 10", rep_prefixes),
        TEXT("--prefix-repetition-output-len", "N", "default 128", rep_output),
        TEXT("--vocab-size", "N", "token ids are drawn below; default 3000", vocab),
        TEXT("--request-rate", "X", "requests/s, open loop; default inf: all at once", rate),
        TEXT("--burstiness", "X", "1 is Poisson (default), smaller comes in bursts", burstiness),
        TEXT("--max-concurrency", "N", "requests in flight at most, closed loop", concurrency),
        TEXT("--seed", "N", "of prompts and times; the same again hits a prefix cache", seed),
        TEXT("--temperature", "X", "sent with each request", temperature),
        SWITCH("--ignore-eos", "answers run to their full length", ignore_eos),
        SWITCH("--save-result", "write a JSON file", save_result),
        SWITCH("--save-detailed", "write it with lists of all requests", save_detailed),
        TEXT("--result-dir", "DIR", "where; default here", result_dir),
        TEXT("--result-filename", "FILE", "default bench-serve.json", result_filename),
        TEXT("--percentile-metrics", "LIST", "of ttft,tpot,itl,e2el", metrics),
        TEXT("--metric-percentiles", "LIST", "default 99", percentiles),
        TEXT("--goodput", "LIST", "KEY:MS ..., keys ttft, tpot, e2el", goodput),
        TEXT("--timeout", "S", "of one request; default 600", timeout),
        {NULL, NULL, NULL, NULL, NULL},
    };

    return kg_cmd_parse(line, argc, argv, "kedge bench serve --base-url URL [flags]",
                        "Loads an OpenAI-compatible server and reports what its clients see.",
                        flags, 0);
}

int kg_cmd_bench_serve(int argc, char **argv)
{
    struct texts t = defaults;
    struct kg_cmd_line line;
    struct kg_bench_conf conf;
    struct kg_error err = {0};
    int status = parse(&t, &line, argc, argv);

    if (status >= 0)
        return status;
    if (read_conf(&t, &conf, &err) != KG_OK || run_bench(&conf, line.json != 0, &err) != KG_OK)
        return kg_cmd_fail(&err);
    return KG_EXIT_OK;
}
