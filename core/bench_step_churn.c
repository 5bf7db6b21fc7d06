/*
 * kedge bench step --output-tokens: steps in which requests end and others begin. The same engine
 * asks the policy script and does not, in turns, so that what the machine does meanwhile and where
 * things lie in memory meet both alike. A step during which the system took the processor away is
 * not counted.
 */
#include "base/clock.h"
#include "bench_step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* One line of the table. */
struct load {
    uint32_t n, output;
    uint32_t *prompt; /* [b->prompt] scratch */
    uint64_t n_prompt;
    struct kg_config *config;
    struct kg_stack *stack;
    uint64_t next_id, n_ended;
    double mean[2][KG_BENCH_REPEATS], admissions[KG_BENCH_REPEATS]; /* of a step; off and on */
};

static int submit(struct load *l, uint32_t max_tokens, struct kg_error *err)
{
    uint64_t id = l->next_id++;

    for (uint64_t i = 0; i < l->n_prompt; i++)
        l->prompt[i] = (uint32_t)((id >> (i % 32)) & 1);
    const struct kg_request q = {.id = id,
                                 .tokens = l->prompt,
                                 .n_prompt = (uint32_t)l->n_prompt,
                                 .max_tokens = max_tokens,
                                 .tenant_name = "tenant",
                                 .class_name = "class"};
    return kg_engine_submit(l->stack->engine, &q, err);
}

/* A request for each one that ended: as many wait as ever. */
static int replace_ended(struct load *l, struct kg_error *err)
{
    struct kg_event ev;
    uint32_t n = 0;
    int rc = KG_OK;

    while (kg_engine_next(l->stack->engine, &ev) == KG_OK) {
        if (ev.type != KG_EVENT_DONE)
            continue;
        n++;
        if (ev.finish != KG_FINISH_LENGTH)
            return kg_fail(err, KG_ECONFIG, "a request ended with %u: %.120s", ev.finish, ev.text);
    }
    l->n_ended += n;
    while (rc == KG_OK && n-- > 0)
        rc = submit(l, l->output, err);
    return rc;
}

static long taken_away(void)
{
    struct rusage u;

    return getrusage(RUSAGE_THREAD, &u) == 0 ? u.ru_nivcsw : 0;
}

/* Steps; with out, their mean time and the admissions of one. */
static int run_steps(struct load *l, uint64_t steps, double *mean, double *admissions,
                     struct kg_error *err)
{
    struct kg_engine_stats s;
    uint64_t sum = 0, n = 0;
    int rc = KG_OK;

    l->n_ended = 0;
    kg_engine_stats(l->stack->engine, &s);
    for (uint64_t i = 0; rc == KG_OK && i < steps; i++) {
        uint64_t before = s.overhead_ns_sum;
        long away = taken_away();
        if (kg_engine_step(l->stack->engine, err) < 0)
            return err->rc;
        kg_engine_stats(l->stack->engine, &s);
        if (taken_away() == away) {
            sum += s.overhead_ns_sum - before;
            n++;
        }
        rc = replace_ended(l, err);
    }
    if (mean != NULL && n > 0) {
        *mean = (double)sum / (double)n;
        *admissions = (double)l->n_ended / (double)steps;
    }
    return rc;
}

/* As many as can run, whose ends are spread over the length of an answer, and a quarter more that
 * wait; then steps until all are under way. */
static int fill(struct load *l, uint64_t warm, struct kg_error *err)
{
    struct kg_engine_stats s;
    int rc = KG_OK;

    l->next_id = 1;
    for (uint32_t i = 0; rc == KG_OK && i < l->n; i++)
        rc = submit(l, 1 + (uint32_t)((uint64_t)i * l->output / l->n), err);
    for (uint32_t i = 0; rc == KG_OK && i < 1 + l->n / 4; i++)
        rc = submit(l, l->output, err);
    if (rc == KG_OK)
        rc = run_steps(l, warm + l->output, NULL, NULL, err);
    if (rc != KG_OK)
        return rc;
    kg_engine_stats(l->stack->engine, &s);
    if (s.n_seqs_step < l->n - l->n / 8)
        return kg_fail(err, KG_ECONFIG, "only %u of %u requests run: raise memory.bytes",
                       s.n_seqs_step, l->n);
    return KG_OK;
}

static void close_load(struct load *l)
{
    kg_stack_close(l->stack);
    kg_config_destroy(l->config);
    l->stack = NULL;
    l->config = NULL;
}

/* -1 to go on, or the exit status. */
static int open_load(struct load *l, const struct kg_bench_step *b)
{
    /* Room in a step for four times the prompts that begin in it on average. */
    uint64_t rows = 512 + l->n + 4 * b->prompt * (1 + l->n / l->output);
    struct kg_error err = {0};
    int rc = kg_bench_step_config(b, l->n, b->prompt + l->output + 64, rows, &l->config);

    if (rc >= 0)
        return rc;
    rc = kg_stack_open(l->config, &l->stack, &err);
    if (rc == KG_OK && l->stack->hooks == NULL)
        rc = kg_fail(&err, KG_ECONFIG, "--output-tokens measures a policy: set lua.script");
    if (rc == KG_OK)
        rc = kg_stack_engine(l->stack, &err);
    if (rc == KG_OK)
        rc = fill(l, b->warm, &err);
    return rc == KG_OK ? -1 : kg_cmd_fail(&err);
}

/* Medians of both and of what the script adds in each pair of turns. */
static void print_row(const struct kg_bench_step *b, struct load *l, int first)
{
    double more[KG_BENCH_REPEATS], admissions = kg_bench_median(l->admissions, b->repeats);

    for (uint64_t i = 0; i < b->repeats; i++)
        more[i] = l->mean[1][i] - l->mean[0][i];
    double off = kg_bench_median(l->mean[0], b->repeats);
    double on = kg_bench_median(l->mean[1], b->repeats);
    double extra = kg_bench_median(more, b->repeats);
    if (b->line->json) {
        (void)printf("%s{\"requests\":%u,\"output_tokens\":%u,\"admissions\":%.4f,"
                     "\"off_us\":%.3f,\"on_us\":%.3f,\"extra_us\":%.3f,\"extra_percent\":%.2f}",
                     first ? "" : ",", l->n, l->output, admissions, off / 1e3, on / 1e3,
                     extra / 1e3, 100 * extra / off);
        return;
    }
    (void)printf("%8u  %13u  %10.3f  %8.2f  %8.2f  %8.3f  %7.1f %%  %10.0f\n", l->n, l->output,
                 admissions, off / 1e3, on / 1e3, extra / 1e3, 100 * extra / off,
                 admissions > 0 ? extra / admissions : 0);
}

static void print_head(const struct kg_bench_step *b)
{
    if (b->line->json)
        (void)printf("{\"bench\":\"step churn\",\"prompt_tokens\":%llu,\"repeats\":%llu,"
                     "\"steps\":%llu,\"rows\":[",
                     (unsigned long long)b->prompt, (unsigned long long)b->repeats,
                     (unsigned long long)b->steps);
    else
        (void)printf("prompts of %llu tokens; medians of %llu repeats of %llu steps, script off "
                     "and on in turns\n"
                     "requests  output tokens  admissions  engine us per step, mean      script    "
                     "  ns more per\n"
                     "                          per step       off        on     more      share  "
                     "  admission\n",
                     (unsigned long long)b->prompt, (unsigned long long)b->repeats,
                     (unsigned long long)b->steps);
}

static int measure(const struct kg_bench_step *b, struct load *l)
{
    struct kg_error err = {0};
    int rc = KG_OK;

    for (uint64_t i = 0; rc == KG_OK && i < 2 * b->repeats; i++) {
        uint64_t on = (i ^ i >> 1) & 1; /* off on on off: neither is always first */
        kg_engine_use_policy(l->stack->engine, on ? &l->stack->hooks->engine : NULL);
        rc = run_steps(l, b->steps, &l->mean[on][i / 2], &l->admissions[i / 2], &err);
    }
    return rc == KG_OK ? -1 : kg_cmd_fail(&err);
}

static int one_row(const struct kg_bench_step *b, struct load *l, int first)
{
    int rc = open_load(l, b);

    if (rc < 0)
        rc = measure(b, l);
    if (rc < 0) {
        if (first)
            print_head(b);
        print_row(b, l, first);
        (void)fflush(stdout);
    }
    close_load(l);
    return rc < 0 ? KG_EXIT_OK : rc;
}

int kg_bench_step_churn(const struct kg_bench_step *b, const uint32_t *counts, int n_counts,
                        const uint32_t *outputs, int n_outputs)
{
    struct load *l = calloc(1, sizeof(*l));
    uint32_t *prompt = calloc(b->prompt, sizeof(*prompt));
    int rc = KG_EXIT_OK;

    if (l == NULL || prompt == NULL) {
        free(l);
        free(prompt);
        (void)fputs("kedge: out of memory\n", stderr);
        return KG_EXIT_FAILED;
    }
    l->prompt = prompt;
    l->n_prompt = b->prompt;
    for (int i = 0; rc == KG_EXIT_OK && i < n_counts * n_outputs; i++) {
        l->n = counts[i / n_outputs];
        l->output = outputs[i % n_outputs];
        rc = one_row(b, l, i == 0);
    }
    if (b->line->json && rc == KG_EXIT_OK)
        (void)puts("]}");
    free(prompt);
    free(l);
    return rc;
}
