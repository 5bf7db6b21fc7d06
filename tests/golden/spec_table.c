/*
 * Not a test: what speculation brings on this CPU, by domain, batch and policy, side by side.
 *
 *   spec_table [speed] [REPEATS] [TEMPERATURE] [SETS...]   tokens per second of CPU time
 *   spec_table accept [TEMPERATURE] [SETS...]              what each rule of acceptance accepts
 *
 * speed: B requests at a time on held-out prompts (domains.json), B in all and at least 4, each
 * policy in turn, REPEATS times after a turn that is not counted; medians. Only steps of B decoding
 * sequences and no prompt count. SETS are "section.key=value", for all policies.
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
#include <jansson.h>

#define N_OUT 48
#define MOST_BATCH 32
#define MOST_REPEATS 15
#define N_DOMAINS 3
#define DRAFTER "model.draft=" TEST_ROOT "/models/k3-tiny-dspark "

static const char *const domains[N_DOMAINS] = {"fiction", "code", "json"};

struct policy {
    const char *name, *sets;
    struct kg_config *config;
    struct kg_stack *stack;
};

static struct policy policies[] = {
    {"off", "plugins.spec=off", NULL, NULL},
    {"dspark2", DRAFTER "plugins.spec=dspark spec-dspark.length=2", NULL, NULL},
    {"dspark4", DRAFTER "plugins.spec=dspark spec-dspark.length=4", NULL, NULL},
    {"dspark7", DRAFTER "plugins.spec=dspark spec-dspark.length=7", NULL, NULL},
    {"confidence", DRAFTER "plugins.spec=confidence", NULL, NULL},
    {"ngram", "plugins.spec=ngram", NULL, NULL},
    {"loaded", DRAFTER "plugins.spec=off", NULL, NULL}, /* what a drafter at hand costs */
};
#define N_POLICIES (sizeof(policies) / sizeof(policies[0]))

static const char *const by_rule[] = {"coupling", "rejection", "block"};

struct prompts {
    uint32_t n, lengths[16], tokens[16][512];
};
static struct prompts prompts[N_DOMAINS];

static void read_prompts(void)
{
    json_error_t err;
    json_t *root = json_load_file(TEST_ROOT "/golden/domains.json", 0, &err);

    assert_non_null(root);
    for (uint32_t d = 0; d < N_DOMAINS; d++) {
        const json_t *list = json_object_get(root, domains[d]);
        struct prompts *p = &prompts[d];
        p->n = (uint32_t)json_array_size(list);
        assert_true(p->n > 0 && p->n <= 16);
        for (uint32_t i = 0; i < p->n; i++) {
            const json_t *ids = json_array_get(list, i);
            p->lengths[i] = (uint32_t)json_array_size(ids);
            assert_true(p->lengths[i] > 0 && p->lengths[i] <= 512);
            for (uint32_t k = 0; k < p->lengths[i]; k++)
                p->tokens[i][k] = (uint32_t)json_integer_value(json_array_get(ids, k));
        }
    }
    json_decref(root);
}

static double cpu_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void open_policy(struct policy *p, const char *accept, char **sets, int n_sets)
{
    static const char *const base[] = {("model.path=" TEST_ROOT "/models/k3-tiny"),
                                       ("plugins.dir=" PLUGIN_DIR),
                                       "plugins.exec=cpu",
                                       "exec-cpu.threads=1",
                                       "engine.max_seqs=32",
                                       "engine.cost=measured",
                                       "memory.bytes=64m",
                                       "log.level=warn"};
    char words[1024], *word, *rest = words;
    struct kg_error err = {0};

    assert_int_equal(kg_config_create(&p->config), KG_OK);
    for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++)
        (void)kg_config_set(p->config, base[i]);
    (void)snprintf(words, sizeof(words), "%s spec.accept=%s", p->sets, accept);
    while ((word = strsep(&rest, " ")) != NULL) {
        if (word[0] != '\0')
            (void)kg_config_set(p->config, word);
    }
    for (int i = 0; i < n_sets; i++)
        (void)kg_config_set(p->config, sets[i]);
    if (kg_config_finish(p->config) != KG_OK)
        fail_msg("%s", kg_config_errors(p->config));
    if (kg_stack_open(p->config, &p->stack, &err) < 0 || kg_stack_engine(p->stack, &err) < 0)
        fail_msg("%s: %s", p->name, err.text);
}

static void close_policy(struct policy *p)
{
    kg_stack_close(p->stack);
    kg_config_destroy(p->config);
    p->stack = NULL;
    p->config = NULL;
}

/* What one wave did. */
struct wave {
    double cpu_s;    /* of steps without a prompt */
    uint64_t tokens; /* of these steps */
    uint64_t n_steps;
    uint64_t check; /* of all tokens, whoever emitted them when */
    struct kg_spec_count spec;
    uint64_t drafted, output;
};

static void submit(struct kg_engine *engine, uint32_t d, uint32_t i, uint64_t seed,
                   float temperature)
{
    const struct prompts *p = &prompts[d];
    struct kg_error err = {0};
    struct kg_request q = {.id = i + 1,
                           .tokens = p->tokens[i % p->n],
                           .n_prompt = p->lengths[i % p->n],
                           .max_tokens = N_OUT,
                           .sampling = {.temperature = temperature,
                                        .seed = seed * 1000 + i,
                                        .n_stop_ids = 1,
                                        .stop_ids = {3842}}};

    if (kg_engine_submit(engine, &q, &err) < 0)
        fail_msg("submit: %s", err.text);
}

static void take(const struct kg_event *e, struct wave *w, uint32_t *open)
{
    if (e->type == KG_EVENT_TOKENS) {
        for (uint32_t k = 0; k < e->n; k++)
            w->check += (e->tokens[k] + 1ull) * (e->id * 31 + 7);
        w->output += e->n;
    } else if (e->type == KG_EVENT_DONE) {
        if (e->finish > KG_FINISH_LENGTH)
            fail_msg("request %llu: %s", (unsigned long long)e->id, e->text);
        w->drafted += e->n_drafted;
        w->spec.rounds += e->spec.rounds;
        for (uint32_t j = 0; j < KG_SPEC_POSITIONS; j++) {
            w->spec.verified[j] += e->spec.verified[j];
            w->spec.accepted[j] += e->spec.accepted[j];
            w->spec.expected_um[j] += e->spec.expected_um[j];
        }
        (*open)--;
    }
}

/* `total` requests, `batch` at a time. */
static void run_wave(struct kg_engine *engine, uint32_t d, uint32_t batch, uint32_t total,
                     uint64_t seed, float temperature, struct wave *w)
{
    struct kg_engine_stats before, after;
    struct kg_error err = {0};
    struct kg_event e;
    uint32_t sent = 0, open = 0;

    memset(w, 0, sizeof(*w));
    kg_engine_stats(engine, &before);
    while (open > 0 || sent < total) {
        for (; sent < total && open < batch; sent++, open++)
            submit(engine, d, sent, seed, temperature);
        uint64_t seen = w->output;
        double start = cpu_s();
        if (kg_engine_step(engine, &err) < 0)
            fail_msg("step: %s", err.text);
        double took = cpu_s() - start;
        while (kg_engine_next(engine, &e) == KG_OK)
            take(&e, w, &open);
        kg_engine_stats(engine, &after);
        if (after.prompt_tokens == before.prompt_tokens && after.n_seqs_step == batch &&
            after.steps > before.steps) {
            w->cpu_s += took;
            w->tokens += w->output - seen;
            w->n_steps++;
        }
        before = after;
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, uint32_t n)
{
    qsort(v, n, sizeof(*v), by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static uint64_t sum(const uint64_t *v)
{
    uint64_t all = 0;

    for (uint32_t j = 0; j < KG_SPEC_POSITIONS; j++)
        all += v[j];
    return all;
}

/* --- speed -------------------------------------------------------------------------------------
 */

static void speed_of(uint32_t d, uint32_t batch, uint32_t repeats, float temperature)
{
    static double rate[N_POLICIES][MOST_REPEATS];
    struct wave w, total[N_POLICIES];
    double best = 0, medians[N_POLICIES];

    memset(total, 0, sizeof(total));
    for (uint32_t r = 0; r <= repeats; r++) {
        uint64_t check = 0;
        for (uint32_t k = 0; k < N_POLICIES; k++) {
            uint32_t at = (uint32_t)((k + r) % N_POLICIES);
            run_wave(policies[at].stack->engine, d, batch, batch > 4 ? batch : 4, 1 + r,
                     temperature, &w);
            if (k > 0 && w.check != check)
                fail_msg("%s %u %s: tokens differ", domains[d], batch, policies[at].name);
            check = w.check;
            if (r > 0) {
                rate[at][r - 1] = (double)w.tokens / w.cpu_s;
                total[at].tokens += w.tokens;
                total[at].n_steps += w.n_steps;
                total[at].spec.rounds += w.spec.rounds;
                total[at].drafted += w.drafted;
                total[at].spec.verified[0] += sum(w.spec.verified);
                total[at].spec.accepted[0] += sum(w.spec.accepted);
            }
        }
    }
    for (uint32_t k = 0; k < N_POLICIES; k++) {
        medians[k] = median(rate[k], repeats);
        best = k != 4 && medians[k] > best ? medians[k] : best;
    }
    (void)printf("%-8s %5u", domains[d], batch);
    for (uint32_t k = 0; k < N_POLICIES; k++)
        (void)printf(" %10.0f", medians[k]);
    (void)printf("   %5.3f %5.3f %7.3f", medians[4] / best, medians[4] / medians[0],
                 medians[4] / medians[6]);
    for (uint32_t k = 1; k < N_POLICIES; k++)
        (void)printf(" %5.2f", (double)total[k].tokens * (double)total[0].n_steps /
                                   (double)total[0].tokens / (double)total[k].n_steps);
    (void)printf("  %llu %llu\n", (unsigned long long)total[4].drafted,
                 (unsigned long long)total[4].spec.verified[0]);
}

static void speed(uint32_t repeats, float temperature, char **sets, int n_sets)
{
    static const uint32_t batches[] = {1, 4, 16, 32};

    for (uint32_t k = 0; k < N_POLICIES; k++)
        open_policy(&policies[k], "coupling", sets, n_sets);
    (void)printf("tokens per second of CPU time, median of %u, temperature %.1f; confidence over "
                 "the best of the others, over off and over off with the drafter loaded; tokens a "
                 "step over off; tokens confidence drafted and verified\n%-8s %5s",
                 repeats, (double)temperature, "domain", "batch");
    for (uint32_t k = 0; k < N_POLICIES; k++)
        (void)printf(" %10s", policies[k].name);
    (void)printf("   %5s %5s %7s %5s %5s %5s %5s %5s %5s\n", "/best", "/off", "/loaded", "d2", "d4",
                 "d7", "conf", "ngram", "load");
    for (uint32_t b = 0; b < sizeof(batches) / sizeof(batches[0]); b++) {
        for (uint32_t d = 0; d < N_DOMAINS; d++)
            speed_of(d, batches[b], repeats, temperature);
    }
    for (uint32_t k = 0; k < N_POLICIES; k++)
        close_policy(&policies[k]);
}

/* --- acceptance --------------------------------------------------------------------------------
 */

static void accept_of(uint32_t d, float temperature, char **sets, int n_sets)
{
    for (uint32_t rule = 0; rule < (temperature > 0 ? 3u : 1u); rule++) {
        struct policy p = policies[3];
        struct wave all;
        open_policy(&p, by_rule[rule], sets, n_sets);
        run_wave(p.stack->engine, d, MOST_BATCH, 128, 100, temperature, &all);
        (void)printf("%-8s %4.1f %-9s %7llu %7.3f %8.3f ", domains[d], (double)temperature,
                     by_rule[rule], (unsigned long long)all.spec.rounds,
                     1.0 + (double)sum(all.spec.accepted) / (double)all.spec.rounds,
                     1.0 + (double)sum(all.spec.expected_um) * 1e-6 / (double)all.spec.rounds);
        for (uint32_t j = 0; j < 7; j++)
            (void)printf(" %.3f",
                         (double)all.spec.accepted[j] / (double)(all.spec.verified[j] + 1e-9));
        (void)printf("\n");
        close_policy(&p);
    }
}

int main(int argc, char **argv)
{
    int at = 1;

    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* rows as they come */
    read_prompts();
    if (argc > 1 && strcmp(argv[1], "accept") == 0) {
        float t = argc > 2 ? (float)atof(argv[2]) : 1.0f;
        (void)printf("%-8s %4s %-9s %7s %7s %8s  accepted of verified, by position\n", "domain",
                     "temp", "rule", "windows", "length", "expected");
        for (uint32_t d = 0; d < N_DOMAINS; d++)
            accept_of(d, t, argv + (argc > 3 ? 3 : argc), argc > 3 ? argc - 3 : 0);
        return 0;
    }
    at += argc > 1 && strcmp(argv[1], "speed") == 0;
    uint32_t repeats = argc > at ? (uint32_t)atoi(argv[at]) : 5;
    float t = argc > at + 1 ? (float)atof(argv[at + 1]) : 0.0f;
    if (repeats < 1 || repeats > MOST_REPEATS)
        fail_msg("1 .. %d repeats", MOST_REPEATS);
    at += 2;
    speed(repeats, t, argv + (argc > at ? at : argc), argc > at ? argc - at : 0);
    return 0;
}
