/* What a benchmark sends: prompts of drawn token ids (or words, for chats) and their times. */
#include "base/rng.h"
#include "bench_serve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* About one token each in usual vocabularies; for endpoints that take no token ids. */
static const char *const words[] = {
    "time",     "year",    "people",   "way",    "day",        "man",    "thing",   "woman",
    "life",     "child",   "world",    "school", "state",      "family", "student", "group",
    "country",  "problem", "hand",     "part",   "place",      "case",   "week",    "company",
    "system",   "program", "question", "work",   "government", "number", "night",   "point",
    "home",     "water",   "room",     "mother", "area",       "money",  "story",   "fact",
    "month",    "lot",     "right",    "study",  "book",       "eye",    "job",     "word",
    "business", "issue",   "side",     "kind",   "head",       "house",  "service", "friend",
    "father",   "power",   "hour",     "game",   "line",       "end",    "law",     "car",
};
#define N_WORDS (sizeof(words) / sizeof(words[0]))

/* Gaps of mean 1/rate, stretched so that the last request is due at n / rate exactly. */
static void set_times(const struct kg_bench_conf *conf, struct kg_rng *r, struct kg_bench_req *reqs,
                      uint32_t n)
{
    double *at, sum = 0;

    if (!isfinite(conf->request_rate) || (at = calloc(n, sizeof(*at))) == NULL)
        return; /* all due at 0 */
    for (uint32_t i = 0; i < n; i++) {
        sum += kg_rng_gamma(r, conf->burstiness) / conf->burstiness / conf->request_rate;
        at[i] = sum;
    }
    for (uint32_t i = 0; i < n && sum > 0; i++)
        reqs[i].due_ns = (uint64_t)(at[i] * (n / conf->request_rate / sum) * 1e9);
    free(at);
}

/* A length within the ratio around `len`, at least 1. */
static uint32_t draw_len(struct kg_rng *r, uint32_t len, double ratio)
{
    uint32_t lo = (uint32_t)floor(len * (1 - ratio)), hi = (uint32_t)ceil(len * (1 + ratio));
    uint32_t n = lo + (uint32_t)kg_rng_below(r, (uint64_t)(hi - lo) + 1);

    return n > 0 ? n : 1;
}

/* n drawn tokens: ids, or words. */
static void put_tokens(const struct kg_bench_conf *conf, struct kg_rng *r, uint32_t n, bool first,
                       struct kg_buf *b)
{
    for (uint32_t i = 0; i < n; i++) {
        if (conf->chat)
            kg_buf_printf(b, "%s%s", first ? "" : " ", words[kg_rng_below(r, N_WORDS)]);
        else
            kg_buf_printf(b, first ? "%u" : ",%u", (uint32_t)kg_rng_below(r, conf->vocab));
        first = false;
    }
}

static void put_body(const struct kg_bench_conf *conf, struct kg_rng *r, uint64_t prefix_seed,
                     uint32_t prefix, struct kg_bench_req *q, struct kg_buf *b)
{
    struct kg_rng shared;

    kg_rng_seed(&shared, prefix_seed);
    kg_buf_puts(b, "{\"model\":");
    kg_buf_json_str(b, conf->model, strlen(conf->model));
    kg_buf_puts(b,
                conf->chat ? ",\"messages\":[{\"role\":\"user\",\"content\":\"" : ",\"prompt\":[");
    put_tokens(conf, &shared, prefix, true, b);
    put_tokens(conf, r, q->n_input - prefix, prefix == 0, b);
    kg_buf_puts(b, conf->chat ? "\"}]" : "]");
    kg_buf_printf(b,
                  ",\"max_tokens\":%u,\"stream\":true,\"stream_options\":"
                  "{\"include_usage\":true}",
                  q->n_want);
    if (conf->chat)
        kg_buf_printf(b, ",\"max_completion_tokens\":%u", q->n_want);
    if (!isnan(conf->temperature)) {
        kg_buf_puts(b, ",\"temperature\":");
        kg_buf_json_f64(b, conf->temperature);
    }
    if (conf->ignore_eos)
        kg_buf_puts(b, ",\"ignore_eos\":true");
    kg_buf_putc(b, '}');
}

int kg_bench_load(const struct kg_bench_conf *conf, uint32_t n, uint64_t seed,
                  struct kg_bench_req **out, struct kg_error *err)
{
    struct kg_bench_req *reqs = calloc(n > 0 ? n : 1, sizeof(*reqs));
    struct kg_rng r;

    if (reqs == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    kg_rng_seed(&r, seed);
    for (uint32_t i = 0; i < n; i++) {
        struct kg_bench_req *q = &reqs[i];
        struct kg_buf b;
        uint32_t group = conf->dataset == KG_BENCH_PREFIX_REPETITION ? i % conf->n_prefixes : 0;
        kg_buf_init(&b, 0);
        q->n_input = conf->prefix_len + draw_len(&r, conf->input_len, conf->range_ratio);
        q->n_want = draw_len(&r, conf->output_len, conf->range_ratio);
        put_body(conf, &r, seed * 1000003 + group + 1, conf->prefix_len, q, &b);
        if (b.rc != KG_OK) {
            kg_buf_fini(&b);
            kg_bench_free(reqs, n);
            return kg_fail(err, KG_ENOMEM, "out of memory");
        }
        q->body = b.data;
        q->n_body = b.len;
    }
    set_times(conf, &r, reqs, n);
    *out = reqs;
    return KG_OK;
}

void kg_bench_free(struct kg_bench_req *reqs, uint32_t n)
{
    for (uint32_t i = 0; reqs != NULL && i < n; i++) {
        free(reqs[i].body);
        free(reqs[i].gaps_ns);
    }
    free(reqs);
}
