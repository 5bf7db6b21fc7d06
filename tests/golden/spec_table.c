/*
 * Not a test: what speculation brings on this CPU, by domain, batch and policy, side by side.
 *
 *   spec_table tables [WAVES] [SETS...]               the two tables of core/docs/speculation.md
 *   spec_table speed [WAVES] [TEMPERATURE] [SETS...]  one of them
 *   spec_table accept [TEMPERATURE] [SETS...]         what each rule of acceptance accepts
 *
 * speed: a wave is B requests at a time on held-out prompts (domains.json), B in all and at
 * least 4. Every policy runs the same wave on an engine of its own, and they advance in turn, a few
 * steps each, so that whatever the machine does meanwhile happens to all of them. Of a turn the
 * first steps are not counted: the caches still hold somebody else's weights. CPU time of steps of
 * B decoding sequences and no prompt; of each wave the ratio to decoding without drafts in the same
 * wave, and of these the median. The engines' own clock is that of the process, and their memory
 * lies in huge pages: with small ones two equal engines differ by a tenth, by where their weights
 * came to lie. `again` is off a second time: what equal policies differ by. SETS are
 * "section.key=value", for all policies.
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
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#define N_OUT 48
#define MOST_BATCH 32
#define MOST_WAVES 63
#define TURN_STEPS 64 /* most steps of a turn */
#define TURN_S 0.020  /* a turn ends after so much CPU time, */
#define LEAST_STEPS 6 /* and not before so many steps, */
#define COLD_STEPS 3  /* the first of which are not counted */
#define FIXED_EVERY 3 /* fixed windows, which are far off, run in each third wave */
#define N_DOMAINS 3
#define DRAFTER "model.draft=" TEST_ROOT "/models/k3-tiny-dspark "

static const char *const domains[N_DOMAINS] = {"fiction", "code", "json"};

struct policy {
    const char *name, *sets;
    struct kg_config *config;
    struct kg_stack *stack;
};

enum { OFF, AGAIN, LOADED, DSPARK2, DSPARK4, DSPARK7, NGRAM, CONFIDENCE, N_POLICIES };

static struct policy policies[N_POLICIES] = {
    [OFF] = {"off", "plugins.spec=off", NULL, NULL},
    [AGAIN] = {"again", "plugins.spec=off", NULL, NULL},
    [LOADED] = {"loaded", DRAFTER "plugins.spec=off", NULL,
                NULL}, /* what a drafter at hand costs */
    [DSPARK2] = {"dspark2", DRAFTER "plugins.spec=dspark spec-dspark.length=2", NULL, NULL},
    [DSPARK4] = {"dspark4", DRAFTER "plugins.spec=dspark spec-dspark.length=4", NULL, NULL},
    [DSPARK7] = {"dspark7", DRAFTER "plugins.spec=dspark spec-dspark.length=7", NULL, NULL},
    [NGRAM] = {"ngram", DRAFTER "plugins.spec=ngram", NULL, NULL},
    [CONFIDENCE] = {"confidence", DRAFTER "plugins.spec=confidence", NULL, NULL},
};

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
                                       "exec-cpu.clock=cpu",
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
    double cpu_s;    /* of the steps that count */
    uint64_t tokens; /* of these steps */
    uint64_t n_steps;
    uint64_t check; /* of all tokens, whoever emitted them when */
    struct kg_spec_count spec;
    uint64_t drafted, output;
    uint32_t sent, open; /* requests */
};

/* Requests of a wave: `total`, `batch` at a time. */
struct load {
    uint32_t domain, batch, total;
    uint64_t seed;
    float temperature;
};

static void submit(struct kg_engine *engine, const struct load *l, uint32_t i)
{
    const struct prompts *p = &prompts[l->domain];
    struct kg_error err = {0};
    struct kg_request q = {.id = i + 1,
                           .tokens = p->tokens[i % p->n],
                           .n_prompt = p->lengths[i % p->n],
                           .max_tokens = N_OUT,
                           .sampling = {.temperature = l->temperature,
                                        .seed = l->seed * 1000 + i,
                                        .n_stop_ids = 1,
                                        .stop_ids = {3842}}};

    if (kg_engine_submit(engine, &q, &err) < 0)
        fail_msg("submit: %s", err.text);
}

static void take(const struct kg_event *e, struct wave *w)
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
        w->open--;
    }
}

/* One step; whether it counts. */
static int step(struct kg_engine *engine, const struct load *l, struct wave *w, int counted)
{
    struct kg_engine_stats before, after;
    struct kg_error err = {0};
    struct kg_event e;
    uint64_t seen = w->output;

    for (; w->sent < l->total && w->open < l->batch; w->sent++, w->open++)
        submit(engine, l, w->sent);
    kg_engine_stats(engine, &before);
    double start = cpu_s();
    if (kg_engine_step(engine, &err) < 0)
        fail_msg("step: %s", err.text);
    double took = cpu_s() - start;
    while (kg_engine_next(engine, &e) == KG_OK)
        take(&e, w);
    kg_engine_stats(engine, &after);
    if (after.prompt_tokens != before.prompt_tokens || after.n_seqs_step != l->batch ||
        after.steps == before.steps)
        return 0;
    if (counted) {
        w->cpu_s += took;
        w->tokens += w->output - seen;
        w->n_steps++;
    }
    return 1;
}

static int is_over(const struct load *l, const struct wave *w)
{
    return w->open == 0 && w->sent == l->total;
}

/* A policy's turn. Steps with prompts do not shorten it: they warm the caches. */
static void turn(struct kg_engine *engine, const struct load *l, struct wave *w)
{
    double start = cpu_s();
    uint32_t n = 0;

    while (!is_over(l, w) && n < TURN_STEPS && (n < LEAST_STEPS || cpu_s() - start < TURN_S))
        n += step(engine, l, w, n >= COLD_STEPS) != 0;
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

/* Of a row of the table: ratios to `off` by wave, and sums. */
struct row {
    double ratio[N_POLICIES][MOST_WAVES], cpu_s, tokens;
    uint32_t n[N_POLICIES];
    uint64_t drafted, verified; /* by confidence */
};

/* One wave of all policies that take part, in turns. */
static void wave(const struct load *l, const int *takes_part, struct wave *w)
{
    uint32_t n_open = 1, first = (uint32_t)l->seed;

    memset(w, 0, N_POLICIES * sizeof(*w));
    while (n_open > 0) {
        n_open = 0;
        for (uint32_t k = 0; k < N_POLICIES; k++) {
            uint32_t at = (k + first) % N_POLICIES;
            if (takes_part[at] && !is_over(l, &w[at])) {
                turn(policies[at].stack->engine, l, &w[at]);
                n_open++;
            }
        }
        first++;
    }
    for (uint32_t k = 1; k < N_POLICIES; k++) {
        if (takes_part[k] && (w[k].check != w[OFF].check || w[k].output != w[OFF].output))
            fail_msg("%s %u %s: tokens differ", domains[l->domain], l->batch, policies[k].name);
    }
}

static void run_row(uint32_t d, uint32_t batch, uint32_t n_waves, float temperature, struct row *r)
{
    struct load l = {.domain = d, .batch = batch, .temperature = temperature};
    struct wave w[N_POLICIES];

    memset(r, 0, sizeof(*r));
    l.total = batch > 4 ? batch : 4;
    for (uint32_t i = 0; i <= n_waves; i++) { /* the first is not counted */
        int takes_part[N_POLICIES];
        for (uint32_t k = 0; k < N_POLICIES; k++)
            takes_part[k] = k < DSPARK2 || k > DSPARK7 || (i > 0 && i % FIXED_EVERY == 0);
        l.seed = 1 + i;
        wave(&l, takes_part, w);
        for (uint32_t k = 0; k < N_POLICIES && i > 0; k++) {
            if (takes_part[k] && w[k].n_steps > 0 && w[OFF].n_steps > 0)
                r->ratio[k][r->n[k]++] =
                    (double)w[k].tokens / w[k].cpu_s / ((double)w[OFF].tokens / w[OFF].cpu_s);
        }
        r->cpu_s += i > 0 ? w[OFF].cpu_s : 0;
        r->tokens += i > 0 ? (double)w[OFF].tokens : 0;
        r->drafted += i > 0 ? w[CONFIDENCE].drafted : 0;
        r->verified += i > 0 ? sum(w[CONFIDENCE].spec.verified) : 0;
    }
}

/* Rows where confidence is within 3 % of the best of all others with the drafter loaded, and of
 * decoding without drafts and without a drafter. */
struct good {
    uint32_t best, off;
};

static void print_row(uint32_t d, uint32_t batch, struct row *r, struct good *good)
{
    static const char *const names[N_DOMAINS] = {"fiction", "code", "JSON, tools"};
    double m[N_POLICIES], best = 0;

    for (uint32_t k = 0; k < N_POLICIES; k++) {
        m[k] = r->n[k] > 0 ? median(r->ratio[k], r->n[k]) : 0;
        if (k >= LOADED && k != CONFIDENCE && m[k] > best)
            best = m[k];
    }
    (void)printf("| %s | %u | %.0f |", names[d], batch, r->tokens / r->cpu_s);
    for (uint32_t k = AGAIN; k < N_POLICIES; k++) {
        if (r->n[k] > 0)
            (void)printf(k == CONFIDENCE ? " **%.3f** |" : " %.3f |", m[k]);
        else
            (void)printf(" - |"); /* it was through before a step counted */
    }
    (void)printf(" %.3f | %.3f | %llu |\n", m[CONFIDENCE] / m[LOADED], m[CONFIDENCE] / best,
                 (unsigned long long)r->drafted);
    good->best += m[CONFIDENCE] >= 0.97 * best;
    good->off += m[CONFIDENCE] >= 0.97;
}

static void print_head(uint32_t n_waves, float temperature)
{
    (void)printf("\nTemperature %.1f, %u waves:\n\n"
                 "| domain | batch | off, tokens/s | again | loaded | dspark 2 | 4 | 7 | ngram | "
                 "confidence | / loaded | / best | drafted |\n"
                 "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
                 (double)temperature, n_waves);
}

static void table(uint32_t n_waves, float temperature)
{
    static const uint32_t batches[] = {1, 4, 16, 32};
    struct good good = {0};
    static struct row r;

    print_head(n_waves, temperature);
    for (uint32_t b = 0; b < sizeof(batches) / sizeof(batches[0]); b++) {
        for (uint32_t d = 0; d < N_DOMAINS; d++) {
            /* waves of few sequences are short: more of them */
            uint32_t n = n_waves * (batches[b] == 1 ? 3 : batches[b] == 4 ? 2 : 1);
            run_row(d, batches[b], n < MOST_WAVES ? n : MOST_WAVES, temperature, &r);
            print_row(d, batches[b], &r, &good);
        }
    }
    (void)printf(
        "\nWithin 3 %% of the best of all others with the drafter loaded, or ahead: %u of 12 "
        "rows; of off without one: %u.\n",
        good.best, good.off);
}

static void speed(uint32_t n_waves, const float *temperatures, uint32_t n, char **sets, int n_sets)
{
    for (uint32_t k = 0; k < N_POLICIES; k++)
        open_policy(&policies[k], "coupling", sets, n_sets);
    for (uint32_t t = 0; t < n; t++)
        table(n_waves, temperatures[t]);
    for (uint32_t k = 0; k < N_POLICIES; k++)
        close_policy(&policies[k]);
}

/* --- acceptance --------------------------------------------------------------------------------
 */

static void accept_of(uint32_t d, float temperature, char **sets, int n_sets)
{
    for (uint32_t rule = 0; rule < (temperature > 0 ? 3u : 1u); rule++) {
        struct policy p = policies[DSPARK7];
        struct load l = {d, MOST_BATCH, 128, 100, temperature};
        struct wave all = {0};
        open_policy(&p, by_rule[rule], sets, n_sets);
        while (!is_over(&l, &all))
            (void)step(p.stack->engine, &l, &all, 1);
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

/* malloc reads this when the process begins. */
static void huge_pages(char **argv)
{
    if (getenv("GLIBC_TUNABLES") == NULL &&
        setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1", 1) == 0)
        (void)execv("/proc/self/exe", argv);
}

static int usage(void)
{
    (void)fputs("usage: spec_table tables [WAVES] [SETS...]\n"
                "       spec_table speed [WAVES] [TEMPERATURE] [SETS...]\n"
                "       spec_table accept [TEMPERATURE] [SETS...]\n",
                stderr);
    return 2;
}

int main(int argc, char **argv)
{
    static const float both[] = {0.8f, 0.0f};
    const char *what = argc > 1 ? argv[1] : "";
    int at = strcmp(what, "speed") == 0 ? 4 : 3; /* where SETS begin */
    char **sets = argv + (argc > at ? at : argc);
    int n_sets = argc > at ? argc - at : 0;

    huge_pages(argv);
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* rows as they come */
    read_prompts();
    if (strcmp(what, "accept") == 0) {
        float t = argc > 2 ? (float)atof(argv[2]) : 1.0f;
        (void)printf("%-8s %4s %-9s %7s %7s %8s  accepted of verified, by position\n", "domain",
                     "temp", "rule", "windows", "length", "expected");
        for (uint32_t d = 0; d < N_DOMAINS; d++)
            accept_of(d, t, sets, n_sets);
        return 0;
    }
    uint32_t n_waves = argc > 2 ? (uint32_t)atoi(argv[2]) : 9;
    if (n_waves < FIXED_EVERY || n_waves > MOST_WAVES)
        return usage();
    if (strcmp(what, "tables") == 0) {
        speed(n_waves, both, 2, sets, n_sets);
    } else if (strcmp(what, "speed") == 0) {
        float t = argc > 3 ? (float)atof(argv[3]) : 0.0f;
        speed(n_waves, &t, 1, sets, n_sets);
    } else {
        return usage();
    }
    return 0;
}
