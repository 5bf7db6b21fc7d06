/*
 * kedge bench step: the engine's own time per step. The backend is exec-null without its checks,
 * so that a step is nothing but the core and the plugins of the configuration; what is spent inside
 * the backend is taken off. All requests decode, one token each a step.
 */
#include "base/clock.h"
#include "base/num.h"
#include "bench_step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_PROMPT 16

/* One line of the report: medians over repeats, ns. */
struct bench_row {
    uint32_t n_seqs;
    double p50, p99, mean, exec;
};

static int by_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double kg_bench_median(double *v, uint64_t n)
{
    qsort(v, n, sizeof(*v), by_double);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

int kg_bench_step_config(const struct kg_bench_step *b, uint32_t n, uint64_t context, uint64_t rows,
                         struct kg_config **config)
{
    char texts[8][80];
    struct kg_cmd_line line = *b->line;
    int k = 0;

    (void)snprintf(texts[k++], 80, "plugins.exec=null");
    (void)snprintf(texts[k++], 80, "exec-null.check=no");
    (void)snprintf(texts[k++], 80, "exec-null.max_context=%llu", (unsigned long long)context);
    (void)snprintf(texts[k++], 80, "engine.max_seqs=%u", n);
    (void)snprintf(texts[k++], 80, "engine.max_requests=%u", 2 * n + 2);
    (void)snprintf(texts[k++], 80, "engine.step_tokens=%llu", (unsigned long long)rows);
    /* 16 bytes a token by default, and as much again for states. */
    (void)snprintf(texts[k++], 80, "memory.bytes=%llu",
                   (unsigned long long)(n * (context * 16 + 65536) * 2));
    (void)snprintf(texts[k++], 80, "admission.lifetime=max");
    if (line.n_sets + k > KG_CMD_SETS) {
        (void)fputs("kedge: too many --set\n", stderr);
        return KG_EXIT_USAGE;
    }
    line.n_sets = 0;
    for (int i = 0; i < k; i++) {
        line.sets[line.n_sets++] = texts[i];
    }
    for (int i = 0; i < b->line->n_sets; i++) {
        line.sets[line.n_sets++] = b->line->sets[i];
    }
    int rc = kg_cmd_config(&line, config);
    return rc < 0 ? kg_cmd_no_arms(*config, "bench step") : rc;
}

/* n requests that decode until the bench is over. */
static int submit_all(struct kg_engine *e, uint32_t n, uint32_t max_tokens, struct kg_error *err)
{
    uint32_t prompt[N_PROMPT];
    int rc = KG_OK;

    for (uint32_t id = 1; rc == KG_OK && id <= n; id++) {
        for (uint32_t i = 0; i < N_PROMPT; i++) {
            prompt[i] = (id + i) % 2;
        }
        struct kg_request q = {
            .id = id, .tokens = prompt, .n_prompt = N_PROMPT, .max_tokens = max_tokens};
        rc = kg_engine_submit(e, &q, err);
    }
    return rc;
}

static void read_events(struct kg_engine *e)
{
    struct kg_event ev;

    while (kg_engine_next(e, &ev) == KG_OK) {
    }
}

/* Steps until all n requests decode. */
static int warm_up(const struct kg_bench_step *b, struct kg_engine *e, uint32_t n,
                   struct kg_error *err)
{
    struct kg_engine_stats s = {0};

    for (uint64_t i = 0; i < b->warm; i++) {
        if (kg_engine_step(e, err) < 0) {
            return err->rc;
        }
        read_events(e);
    }
    kg_engine_stats(e, &s);
    if (s.n_seqs_step != n) {
        return kg_fail(err, KG_ECONFIG, "only %u of %u requests run: raise memory.bytes",
                       s.n_seqs_step, n);
    }
    return KG_OK;
}

/* One repeat: p50, p99 and mean of the engine's own time, mean time inside the backend. */
static int repeat(const struct kg_bench_step *b, struct kg_engine *e, double out[4],
                  struct kg_error *err)
{
    struct kg_engine_stats s;
    uint64_t sum = 0, all = 0;

    kg_engine_stats(e, &s);
    uint64_t before = s.overhead_ns_sum;
    for (uint64_t i = 0; i < b->steps; i++) {
        uint64_t t = kg_now_ns();
        if (kg_engine_step(e, err) < 0) {
            return err->rc;
        }
        all += kg_now_ns() - t;
        kg_engine_stats(e, &s);
        b->step_ns[i] = (uint32_t)(s.overhead_ns_sum - before);
        sum += b->step_ns[i];
        before = s.overhead_ns_sum;
        read_events(e);
    }
    qsort(b->step_ns, b->steps, sizeof(*b->step_ns), by_u32);
    out[0] = b->step_ns[b->steps / 2];
    out[1] = b->step_ns[b->steps * 99 / 100];
    out[2] = (double)sum / (double)b->steps;
    out[3] = (double)(all - sum) / (double)b->steps;
    return KG_OK;
}

static int run_one(const struct kg_bench_step *b, struct kg_stack *stack, struct bench_row *row,
                   struct kg_error *err)
{
    double v[4][KG_BENCH_REPEATS], out[4] = {0};
    uint32_t most = (uint32_t)(b->warm + b->repeats * b->steps + 1);
    int rc = kg_stack_engine(stack, err);

    if (rc == KG_OK) {
        rc = submit_all(stack->engine, row->n_seqs, most, err);
    }
    if (rc == KG_OK) {
        rc = warm_up(b, stack->engine, row->n_seqs, err);
    }
    for (uint64_t i = 0; rc == KG_OK && i < b->repeats; i++) {
        rc = repeat(b, stack->engine, out, err);
        for (int k = 0; k < 4; k++) {
            v[k][i] = out[k];
        }
    }
    if (rc == KG_OK) {
        row->p50 = kg_bench_median(v[0], b->repeats);
        row->p99 = kg_bench_median(v[1], b->repeats);
        row->mean = kg_bench_median(v[2], b->repeats);
        row->exec = kg_bench_median(v[3], b->repeats);
    }
    return rc;
}

static const char *name_of(const struct kg_config *config, uint32_t kind)
{
    return kg_config_choice(config, kind)->ref.plugin->name;
}

static void print_head(const struct kg_bench_step *b, const struct kg_config *config)
{
    if (b->line->json) {
        (void)printf("{\"bench\":\"step\",\"pool\":\"%s\",\"sched\":\"%s\",\"spec\":\"%s\","
                     "\"repeats\":%llu,\"steps\":%llu,\"rows\":[",
                     name_of(config, KG_KIND_POOL), name_of(config, KG_KIND_SCHED),
                     name_of(config, KG_KIND_SPEC), (unsigned long long)b->repeats,
                     (unsigned long long)b->steps);
        return;
    }
    (void)printf("pool %s, sched %s, spec %s; medians of %llu repeats of %llu steps\n"
                 "requests  engine us per step                   backend us  ns per request\n"
                 "               p50       p99      mean\n",
                 name_of(config, KG_KIND_POOL), name_of(config, KG_KIND_SCHED),
                 name_of(config, KG_KIND_SPEC), (unsigned long long)b->repeats,
                 (unsigned long long)b->steps);
}

static void print_row(const struct kg_bench_step *b, const struct bench_row *r, int first)
{
    if (b->line->json) {
        (void)printf("%s{\"requests\":%u,\"p50_us\":%.3f,\"p99_us\":%.3f,\"mean_us\":%.3f,"
                     "\"backend_us\":%.3f}",
                     first ? "" : ",", r->n_seqs, r->p50 / 1e3, r->p99 / 1e3, r->mean / 1e3,
                     r->exec / 1e3);
        return;
    }
    (void)printf("%8u  %8.2f  %8.2f  %8.2f            %8.2f        %8.1f\n", r->n_seqs,
                 r->p50 / 1e3, r->p99 / 1e3, r->mean / 1e3, r->exec / 1e3, r->p50 / r->n_seqs);
}

/* One count of requests, from configuration to line. */
static int bench_count(const struct kg_bench_step *b, uint32_t n, int first)
{
    struct bench_row row = {.n_seqs = n};
    struct kg_error err = {0};
    struct kg_config *config;
    struct kg_stack *stack;
    uint64_t context = N_PROMPT + b->warm + b->repeats * b->steps + 64;
    int rc = kg_bench_step_config(b, n, context, n < 512 ? 512 : 2 * n, &config);

    if (rc >= 0) {
        return rc;
    }
    rc = kg_stack_open(config, &stack, &err);
    if (rc == KG_OK) {
        rc = run_one(b, stack, &row, &err);
        kg_stack_close(stack);
    }
    if (rc == KG_OK) {
        if (first) {
            print_head(b, config);
        }
        print_row(b, &row, first);
    }
    kg_config_destroy(config);
    return rc == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&err);
}

static int bad(const char *flag, const char *text, const char *wanted)
{
    (void)fprintf(stderr, "kedge: %s \"%.60s\": wanted %s\n", flag, text, wanted);
    return KG_EXIT_USAGE;
}

/* "1,64,256" into counts, each 1 .. most; their number, or -1. */
static int parse_counts(const char *text, uint64_t most, uint32_t counts[KG_BENCH_ROWS])
{
    char copy[200];
    char *rest = copy, *word;
    int n = 0;

    if (strlen(text) >= sizeof(copy)) {
        return -1;
    }
    (void)snprintf(copy, sizeof(copy), "%s", text);
    while ((word = strsep(&rest, ",")) != NULL) {
        uint64_t v = 0;
        if (n == KG_BENCH_ROWS || kg_num_u64(word, &v) != KG_OK || v == 0 || v > most) {
            return -1;
        }
        counts[n++] = (uint32_t)v;
    }
    return n;
}

int kg_cmd_bench_step(int argc, char **argv)
{
    const char *seqs = "1,64,256", *repeats = "7", *steps = "1000", *output = NULL, *prompt = "256";
    const struct kg_cmd_flag flags[] = {
        {"--requests", "LIST", "running requests, comma separated (1,64,256)", &seqs, NULL},
        {"--repeats", "N", "repeats a figure is the median of (7)", &repeats, NULL},
        {"--steps", "N", "steps of a repeat (1000)", &steps, NULL},
        {"--output-tokens", "LIST",
         "requests end after so many tokens and others begin; policy script off and on, in turns",
         &output, NULL},
        {"--prompt-tokens", "N", "of those requests (256)", &prompt, NULL},
        {0},
    };
    struct kg_cmd_line line;
    struct kg_bench_step b = {.line = &line, .warm = 100};
    uint32_t counts[KG_BENCH_ROWS], outputs[KG_BENCH_ROWS];
    int n_outputs = 0;

    int rc = kg_cmd_parse(&line, argc, argv, "kedge bench step [-c FILE] [--requests LIST]",
                          "Measures the engine's own time per step, with a backend that costs "
                          "nothing.",
                          flags, 0);
    if (rc >= 0) {
        return rc;
    }
    int n = parse_counts(seqs, 4096, counts);
    if (n < 1) {
        return bad("--requests", seqs, "up to 16 numbers of 1 .. 4096");
    }
    if (kg_num_u64(repeats, &b.repeats) != KG_OK || b.repeats < 1 || b.repeats > KG_BENCH_REPEATS) {
        return bad("--repeats", repeats, "1 .. 99");
    }
    if (kg_num_u64(steps, &b.steps) != KG_OK || b.steps < 10 || b.steps > 100000) {
        return bad("--steps", steps, "10 .. 100000");
    }
    if (kg_num_u64(prompt, &b.prompt) != KG_OK || b.prompt < 1 || b.prompt > 65536) {
        return bad("--prompt-tokens", prompt, "1 .. 65536");
    }
    if (output != NULL) {
        n_outputs = parse_counts(output, 65536, outputs);
        return n_outputs < 1 ? bad("--output-tokens", output, "up to 16 numbers of 1 .. 65536")
                             : kg_bench_step_churn(&b, counts, n, outputs, n_outputs);
    }
    b.step_ns = calloc(b.steps, sizeof(*b.step_ns));
    if (b.step_ns == NULL) {
        (void)fputs("kedge: out of memory\n", stderr);
        return KG_EXIT_FAILED;
    }
    for (int i = 0; i < n && rc <= KG_EXIT_OK; i++) {
        rc = bench_count(&b, counts[i], i == 0);
    }
    if (line.json && rc == KG_EXIT_OK) {
        (void)puts("]}");
    }
    free(b.step_ns);
    return rc;
}
