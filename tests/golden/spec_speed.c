/*
 * Not a test: tokens per second of CPU time with speculation off and with prompt lookup, on the
 * golden prompts and on one that repeats itself. usage: spec_speed [SETS...], each "section.key=v"
 */
#include "config.h"
#include "exec_rig.h"
#include "stack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define N_OUT 128

static const char *const kinds[] = {"code", "prose", "chat", "long", "repeat"};

struct outcome {
    double tokens_per_s;
    struct kg_engine_stats stats;
    uint64_t check; /* of the tokens */
};

static double cpu_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct kg_config *configure(const char *spec, char **sets, int n_sets)
{
    struct kg_config *config = NULL;
    char text[512];

    assert_int_equal(kg_config_create(&config), KG_OK);
    (void)snprintf(text, sizeof(text), "model.path=%s/models/k3-tiny", TEST_ROOT);
    (void)kg_config_set(config, text);
    (void)snprintf(text, sizeof(text), "plugins.dir=%s", PLUGIN_DIR);
    (void)kg_config_set(config, text);
    (void)snprintf(text, sizeof(text), "plugins.spec=%s", spec);
    (void)kg_config_set(config, text);
    (void)kg_config_set(config, "plugins.exec=cpu");
    (void)kg_config_set(config, "exec-cpu.threads=1");
    (void)kg_config_set(config, "prefix.enabled=no");
    (void)kg_config_set(config, "memory.bytes=64m");
    (void)kg_config_set(config, "log.level=error");
    for (int i = 0; i < n_sets; i++)
        (void)kg_config_set(config, sets[i]);
    if (kg_config_finish(config) != KG_OK)
        fail_msg("%s", kg_config_errors(config));
    return config;
}

/* Requests that all go on with one prompt, each with its own noise. */
static void requests(struct xreq *reqs, uint32_t n, uint32_t kind, float temperature)
{
    static struct xreq golden[4];

    xreq_prompts(golden, 4, temperature);
    memset(reqs, 0, n * sizeof(*reqs));
    for (uint32_t i = 0; i < n; i++) {
        const struct xreq *from = &golden[kind < 4 ? kind : 0];
        reqs[i].n_prompt = kind < 4 ? from->n_prompt : 96;
        for (uint32_t j = 0; j < reqs[i].n_prompt; j++)
            reqs[i].tokens[j] = from->tokens[kind < 4 ? j : j % (from->n_prompt - 1)];
        reqs[i].sampling.temperature = temperature;
        reqs[i].sampling.seed = 77 + i;
    }
}

static void run(struct kg_engine *engine, const struct xreq *reqs, uint32_t n, struct outcome *o)
{
    struct kg_error err = {0};
    struct kg_event e;
    uint32_t open = n;
    double start;

    for (uint32_t i = 0; i < n; i++) {
        struct kg_request q = {.id = i + 1,
                               .tokens = reqs[i].tokens,
                               .n_prompt = reqs[i].n_prompt,
                               .max_tokens = N_OUT,
                               .sampling = reqs[i].sampling};
        if (kg_engine_submit(engine, &q, &err) < 0)
            fail_msg("submit: %s", err.text);
    }
    start = cpu_s();
    o->check = 0;
    while (open > 0) {
        if (kg_engine_step(engine, &err) < 0)
            fail_msg("step: %s", err.text);
        while (kg_engine_next(engine, &e) == KG_OK) {
            for (uint32_t k = 0; e.type == KG_EVENT_TOKENS && k < e.n; k++)
                o->check += (e.tokens[k] + 1ull) * (e.id * 31 + 7);
            open -= e.type == KG_EVENT_DONE;
        }
    }
    o->tokens_per_s = (double)n * N_OUT / (cpu_s() - start);
    kg_engine_stats(engine, &o->stats);
}

static void once(const struct kg_config *config, const struct xreq *reqs, uint32_t n,
                 struct outcome *best)
{
    struct kg_stack *stack = NULL;
    struct kg_error err = {0};
    struct outcome o;

    if (kg_stack_open(config, &stack, &err) < 0 || kg_stack_engine(stack, &err) < 0)
        fail_msg("%s", err.text);
    run(stack->engine, reqs, n, &o);
    if (o.tokens_per_s > best->tokens_per_s)
        *best = o;
    kg_stack_close(stack);
}

/* The best of five each, in turn, so that a slow spell of the machine meets both. */
static void measure(char **sets, int n_sets, const struct xreq *reqs, uint32_t n,
                    struct outcome *off, struct outcome *on)
{
    struct kg_config *a = configure("off", sets, n_sets), *b = configure("ngram", sets, n_sets);

    memset(off, 0, sizeof(*off));
    memset(on, 0, sizeof(*on));
    for (int k = 0; k < 5; k++) {
        once(a, reqs, n, off);
        once(b, reqs, n, on);
    }
    kg_config_destroy(a);
    kg_config_destroy(b);
}

int main(int argc, char **argv)
{
    static const uint32_t batches[] = {1, 16};
    static struct xreq reqs[16];
    struct outcome off, on;

    (void)printf("%-7s %5s %5s %10s %10s %6s %9s %9s %7s\n", "prompt", "temp", "batch", "off tok/s",
                 "ngram", "ratio", "verified", "accepted", "a step");
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* rows as they come */
    for (uint32_t kind = 0; kind < 5; kind++) {
        for (uint32_t b = 0; b < 2; b++) {
            for (uint32_t t = 0; t < 2; t++) {
                uint32_t n = batches[b];
                requests(reqs, n, kind, t ? 0.8f : 0.0f);
                measure(argv + 1, argc - 1, reqs, n, &off, &on);
                if (on.check != off.check)
                    fail_msg("%s: tokens differ", kinds[kind]);
                (void)printf("%-7s %5.1f %5u %10.0f %10.0f %6.2f %9llu %8.0f%% %7.2f\n",
                             kinds[kind], t ? 0.8 : 0.0, n, off.tokens_per_s, on.tokens_per_s,
                             on.tokens_per_s / off.tokens_per_s,
                             (unsigned long long)on.stats.verified,
                             on.stats.verified > 0
                                 ? 100.0 * (double)on.stats.accepted / (double)on.stats.verified
                                 : 0.0,
                             (double)off.stats.steps / (double)on.stats.steps);
            }
        }
    }
    return 0;
}
