/* kedge advise: what to change in a configuration for a trace. See core/docs/advise.md. */
#include "advise_run.h"
#include "base/clock.h"
#include "base/num.h"
#include "check.h"
#include "cmd.h"
#include "engine/cost.h"
#include "experiment/replay.h"
#include "trace_flags.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_WORDS (KG_TRACE_WORDS + 4)
/* Tokens a prompt given as text may have. */
#define TEXT_TOKENS 131072u
/* Replays a search takes, for saying how long it would be in real time. */
#define TYPICAL_REPLAYS 45
/* With sessions the held-out requests run beside those that picked: the confirming replays get
 * other arrivals, so that luck of the schedule does not count twice. */
#define JITTER 1.01

struct advise {
    struct kg_cmd_line line;
    struct kg_trace_flags trace;
    const char *load, *stretch, *ttft_slo, *tpot_slo, *objective, *only;
    const char *seed_text, *jobs_text, *rounds_text, *least_text, *summary;
    uint64_t seed, jobs, rounds;
    double least_percent, ttft_slo_ms, tpot_slo_ms, load_share, stretch_by;
    struct kg_trace_conf read;
    const char *words[MAX_WORDS]; /* of the trace */
    uint32_t n_words, objective_id;
    char max_requests[48]; /* assignment, "" for none */
    char folder[KG_RUNS_PATH];
    struct kg_config *config;
    struct kg_advise_space space;
    struct kg_advise_runner runner;
    struct kg_advise_found found;
    struct kg_advise_row rows[KG_ADVISE_TRIES];
    struct kg_advise_final finals[KG_ADVISE_FINALISTS];
    struct kg_advise_report report;
    struct kg_buf check;
    char guide_note[200], spec_note[200];
    struct kg_error err;
};

/* --- the line --- */

static int numbers(struct advise *x)
{
    int rc = kg_trace_flags_read(&x->trace, &x->read);

    rc = rc >= 0 ? rc : kg_cmd_real("--load", x->load, 1e-9, 100, &x->load_share);
    rc = rc >= 0 ? rc : kg_cmd_real("--stretch", x->stretch, 1e-9, 1e6 / JITTER, &x->stretch_by);
    rc = rc >= 0 ? rc : kg_cmd_real("--ttft-slo", x->ttft_slo, 1e-9, 1e9, &x->ttft_slo_ms);
    rc = rc >= 0 ? rc : kg_cmd_real("--tpot-slo", x->tpot_slo, 1e-9, 1e9, &x->tpot_slo_ms);
    rc = rc >= 0 ? rc : kg_cmd_whole("--seed", x->seed_text, 0, UINT64_MAX / 2, &x->seed);
    rc = rc >= 0 ? rc : kg_cmd_whole("--jobs", x->jobs_text, 1, 16, &x->jobs);
    rc = rc >= 0 ? rc : kg_cmd_whole("--rounds", x->rounds_text, 1, 4, &x->rounds);
    rc = rc >= 0 ? rc : kg_cmd_real("--least", x->least_text, 0, 100, &x->least_percent);
    x->read.seed = x->seed;
    return rc;
}

/* Words of the line that must fit each other. */
static int check_words(const struct advise *x)
{
    const char *why = NULL;

    if (x->line.conf == NULL || x->trace.trace == NULL) {
        why = "advise needs -c FILE and --trace FILE";
    } else if (x->load != NULL && x->stretch != NULL) {
        why = "--load and --stretch exclude each other";
    } else if (x->objective_id == KG_ADVISE_THROUGHPUT && (x->load != NULL || x->stretch != NULL)) {
        why = "--objective throughput lets nothing wait for its arrival: leave out --load and "
              "--stretch";
    } else if (x->objective_id == KG_ADVISE_GOODPUT && x->ttft_slo == NULL && x->tpot_slo == NULL) {
        why = "--objective goodput needs --ttft-slo or --tpot-slo";
    }
    if (why != NULL) {
        (void)fprintf(stderr, "kedge: %s\n", why);
        return KG_EXIT_USAGE;
    }
    return -1;
}

static int check_only(const struct advise *x)
{
    static const char *const names[] = {"reuse", "pool", "lifetime", "speculation"};

    for (const char *w = x->only; w != NULL && *w != '\0';) {
        size_t n = strcspn(w, ",");
        int known = 0;
        for (size_t i = 0; i < 4; i++) {
            known |= strlen(names[i]) == n && strncmp(names[i], w, n) == 0;
        }
        if (!known) {
            return kg_cmd_bad("--only", x->only, "some of reuse,pool,lifetime,speculation");
        }
        w += n + (w[n] == ',');
    }
    return -1;
}

/* The words every replay gets to read the same trace; --limit comes apart from them. */
static void gather_words(struct advise *x)
{
    struct kg_trace_flags all = x->trace;

    all.limit = NULL;
    x->n_words = kg_trace_flags_words(&all, x->words);
    if (x->ttft_slo != NULL) {
        x->words[x->n_words++] = "--ttft-slo";
        x->words[x->n_words++] = x->ttft_slo;
    }
    if (x->tpot_slo != NULL) {
        x->words[x->n_words++] = "--tpot-slo";
        x->words[x->n_words++] = x->tpot_slo;
    }
}

static int parse(struct advise *x, int argc, char **argv)
{
    const struct kg_cmd_flag flags[] = {
        KG_TRACE_FLAG_ROWS(&x->trace, "trace to advise for"),
        {"--objective", "NAME", "ttft (default), tpot, e2e, throughput or goodput", &x->objective,
         NULL},
        {"--load", "X", "offered work as a share of the capacity as it is", &x->load, NULL},
        {"--stretch", "X", "stretch arrivals and delays by X", &x->stretch, NULL},
        {"--ttft-slo", "MS", "limit of goodput", &x->ttft_slo, NULL},
        {"--tpot-slo", "MS", "limit of goodput", &x->tpot_slo, NULL},
        {"--only", "LIST", "what to try: reuse,pool,lifetime,speculation (all)", &x->only, NULL},
        {"--rounds", "N", "times through all that is tried, at most (2)", &x->rounds_text, NULL},
        {"--least", "PERCENT", "smaller gains are not worth a change (1)", &x->least_text, NULL},
        {"--jobs", "N", "replays at once (one a CPU)", &x->jobs_text, NULL},
        {"--seed", "N", "of contents, draws and intervals (1)", &x->seed_text, NULL},
        {"--summary", "FILE", "the report as one JSON object; --json prints it", &x->summary, NULL},
        {0},
    };
    int rc = kg_cmd_parse(&x->line, argc, argv,
                          "kedge advise -c FILE --trace FILE [--load X] [--objective NAME]",
                          "Says which lines of a configuration to change for a trace, what that "
                          "gains beyond chance, and why.",
                          flags, 0);

    if (rc < 0 && x->objective != NULL &&
        kg_advise_objective_parse(x->objective, &x->objective_id) != KG_OK) {
        rc = kg_cmd_bad("--objective", x->objective, "ttft, tpot, e2e, throughput or goodput");
    }
    rc = rc >= 0 ? rc : numbers(x);
    rc = rc >= 0 ? rc : check_words(x);
    rc = rc >= 0 ? rc : check_only(x);
    if (rc < 0) {
        gather_words(x);
    }
    return rc;
}

/* --- the configuration and the trace --- */

static const char *value(const struct advise *x, const char *section, const char *key,
                         const char *without)
{
    const char *source, *v = kg_config_value(x->config, section, key, &source);

    return v != NULL && v[0] != '\0' ? v : without;
}

static uint32_t whole(const struct advise *x, const char *section, const char *key)
{
    uint64_t n = 0;

    return kg_num_u64_suffix(value(x, section, key, "0"), &n) == KG_OK && n <= UINT32_MAX
               ? (uint32_t)n
               : 0;
}

/* In real time this would take days, and equal runs would differ. */
static int refuse_real_time(struct advise *x, const struct kg_trace *t)
{
    uint64_t span_ns = 0;
    int rc = kg_replay_span(t, &span_ns);
    double s = (double)span_ns / 1e9 * (x->stretch_by > 0 ? x->stretch_by : 1);

    if (rc != KG_OK) {
        return kg_fail(&x->err, rc, "%s: its length cannot be found", x->trace.trace);
    }
    return kg_fail(&x->err, KG_ECONFIG,
                   "[plugins] exec = %s runs in real time: about %d replays of %.0f s would take "
                   "%.1f hours, and equal ones would differ; write down what its steps take (kedge "
                   "check --write-cost FILE) and advise with exec = sim and [exec-sim] cost = FILE",
                   kg_config_choice(x->config, KG_KIND_EXEC)->ref.plugin->name, TYPICAL_REPLAYS, s,
                   s * TYPICAL_REPLAYS / 3600);
}

/* How many, how long. */
static int look_at_trace(struct advise *x, struct kg_trace **trace, double *mean, uint32_t *longest)
{
    int rc = kg_trace_read(x->trace.trace, &x->read, trace, &x->err);
    double sum = 0;

    *longest = 0;
    for (uint32_t i = 0; rc == KG_OK && i < (*trace)->n; i++) {
        const struct kg_trace_req *q = &(*trace)->reqs[i];
        uint32_t n = q->n_prompt + q->n_output;
        sum += n;
        n = q->n_text > 0 ? TEXT_TOKENS : n; /* not known before a tokenizer saw it */
        *longest = n > *longest ? n : *longest;
    }
    if (rc == KG_OK) {
        *mean = sum / (*trace)->n;
        x->runner.n = (*trace)->n;
    }
    if (rc == KG_OK && (*trace)->n < 2) {
        rc = kg_fail(&x->err, KG_EINVAL, "%s: one request: nothing to pick on and to confirm with",
                     x->trace.trace);
    }
    return rc;
}

/* What the trace repeats, and what a token costs to compute again. */
static int look_closer(struct advise *x, const struct kg_check *check)
{
    const struct kg_pool_layout *l = &check->layout;
    struct kg_guide_in *in = &x->report.guide_in;
    struct kg_check_trace t;
    struct kg_error err = {0};

    int rc =
        kg_check_trace_read(x->trace.trace, &x->read, l->page_tokens, l->page_tokens, &t, &err);
    if (rc != KG_OK) {
        (void)snprintf(x->guide_note, sizeof(x->guide_note), "no guidance: %.170s", err.text);
        return rc == KG_ENOMEM ? kg_fail(&x->err, rc, "%s", err.text) : KG_OK;
    }
    in->state_bytes = (double)l->unit_bytes[KG_STATE];
    in->token_bytes = (double)l->unit_bytes[KG_PAGE] / l->page_tokens;
    in->n = t.n;
    in->n_repeating = t.n_repeating;
    in->prompt_tokens = (double)t.prompt;
    in->repeated_tokens = (double)t.repeated;
    in->again_tokens = (double)t.again;
    in->page_tokens = l->page_tokens;
    if (check->stack->desc.max_orders > 0) {
        in->least =
            (double)check->stack->conf->engine.prefill_chunk / check->stack->desc.max_orders;
    }
    x->report.has_guide = 1;
    kg_check_trace_fini(&t);
    return KG_OK;
}

/* ns to compute a prompt token, by the backend's own profile at the trace's mean prompt. 0 when it
 * cannot tell. */
static double token_ns(struct advise *x)
{
    struct kg_cmd_line line = x->line;
    struct kg_config *config = NULL;
    struct kg_stack *stack = NULL;
    struct kg_error err = {0};
    double ns = 0, mean = x->report.guide_in.prompt_tokens / fmax(x->report.guide_in.n, 1);

    if (strcmp(kg_config_conf(x->config)->cost, "off") == 0 && line.n_sets < KG_CMD_SETS) {
        line.sets[line.n_sets++] = "engine.cost=measured";
    }
    line.quiet = 1;
    if (mean < 1 || kg_cmd_config(&line, &config) >= 0) {
        return 0;
    }
    if (kg_stack_open(config, &stack, &err) == KG_OK && kg_stack_engine(stack, &err) == KG_OK) {
        const struct kg_cost_table *t = kg_engine_cost(stack->engine);
        uint32_t chunk = stack->conf->engine.prefill_chunk, n = (uint32_t)mean;
        ns = t != NULL ? (double)kg_cost_prefill_ns(t, 0, n, chunk) / n : 0;
    }
    kg_stack_close(stack);
    kg_config_destroy(config);
    return ns;
}

static void make_space(struct advise *x, const struct kg_check *check, uint32_t longest)
{
    const struct kg_stack *s = check->stack;
    const struct kg_advise_facts facts = {
        .prefix = s->conf->engine.prefix,
        .checkpoint = value(x, "prefix", "checkpoint", "auto"),
        .interval = s->conf->engine.interval,
        .pool = kg_config_choice(x->config, KG_KIND_POOL)->ref.plugin->name,
        .style = value(x, "pool-split", "style", "ratio"),
        .ratio = strtod(value(x, "pool-split", "ratio", "0.9"), NULL),
        .states = whole(x, "pool-split", "states"),
        .state_blocks = whole(x, "pool-split", "state_blocks"),
        .lifetime = value(x, "admission", "lifetime", "prompt"),
        .quantile = s->conf->engine.quantile,
        .spec = kg_config_choice(x->config, KG_KIND_SPEC)->ref.plugin->name,
        .draft_length = whole(x, "spec-dspark", "length"),
        .draft_block = s->desc.draft_block,
        .has_cost = strcmp(s->conf->cost, "off") != 0,
        .page_tokens = check->layout.page_tokens,
        .longest = longest,
        .least_interval =
            s->desc.max_orders > 0 ? s->conf->engine.prefill_chunk / s->desc.max_orders : 0,
        .mean_ratio = {check->size.ratio, 2 * check->size.ratio},
    };

    kg_advise_space_make(&facts, &x->space);
    for (uint32_t i = 0; x->only != NULL && i < KG_ADVISE_DIMS; i++) {
        const char *at = strstr(x->only, x->space.dims[i].name);
        if (at == NULL) { /* words of the list are none another's part */
            x->space.dims[i].n = 1;
            x->space.dims[i].settings[0].at = 0;
        }
    }
    if (facts.draft_block == 0 && value(x, "exec-sim", "acceptance", NULL) != NULL) {
        (void)snprintf(x->spec_note, sizeof(x->spec_note),
                       "no verify policy was tried: there are profiles of acceptance but no "
                       "drafter ([exec-sim] draft_block = 0)");
    }
}

/* Opens the configuration once, to see what it is; everything that is refused is refused here. */
static int gather(struct advise *x)
{
    const struct kg_plugin *exec = kg_config_choice(x->config, KG_KIND_EXEC)->ref.plugin;
    struct kg_trace *trace = NULL;
    struct kg_stack *stack = NULL;
    struct kg_check check;
    double mean = 0;
    uint32_t longest = 0;

    int rc = look_at_trace(x, &trace, &mean, &longest);
    if (rc == KG_OK && (exec->caps & KG_EXEC_CAP_VIRTUAL) == 0) {
        rc = refuse_real_time(x, trace);
    }
    rc = rc == KG_OK ? kg_stack_open(x->config, &stack, &x->err) : rc;
    if (rc == KG_OK && (stack->desc.caps & KG_EXEC_CAP_VIRTUAL) == 0) {
        rc = refuse_real_time(x, trace);
    }
    kg_trace_free(trace);
    if (rc == KG_OK) {
        rc = kg_check_gather(&check, x->config, stack, (uint32_t)fmin(fmax(mean, 1), 1 << 24), 1,
                             &x->err);
        if (rc == KG_OK) {
            make_space(x, &check, longest);
            rc = look_closer(x, &check);
            x->report.guide_in.longest = longest;
        }
        kg_check_fini(&check);
    }
    kg_stack_close(stack);
    if (rc == KG_OK && x->report.has_guide) {
        x->report.guide_in.token_ns = token_ns(x);
        kg_guide_of(&x->report.guide_in, &x->report.guide);
    }
    return rc;
}

/* --- running --- */

static int prepare(struct advise *x)
{
    struct kg_advise_runner *r = &x->runner;
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = r->n;

    r->conf = x->line.conf;
    r->words = x->words;
    r->n_words = x->n_words;
    r->limit = x->trace.limit;
    r->load = x->load;
    (void)snprintf(r->stretch, sizeof(r->stretch), "%s", x->stretch != NULL ? x->stretch : "");
    if (x->objective_id == KG_ADVISE_THROUGHPUT) {
        if (n > 1048576 || x->line.n_sets == KG_CMD_SETS) {
            return kg_fail(&x->err, KG_EINVAL,
                           "--objective throughput queues all requests at once, at most 1048576; "
                           "the trace has %u: use --limit",
                           n);
        }
        (void)snprintf(r->stretch, sizeof(r->stretch), "1e-9");
        if (kg_config_conf(x->config)->engine.max_requests < n) {
            (void)snprintf(x->max_requests, sizeof(x->max_requests), "engine.max_requests=%u", n);
            x->line.sets[x->line.n_sets++] = x->max_requests;
        }
    }
    r->sets = x->line.sets;
    r->n_sets = x->line.n_sets;
    r->seed = x->seed;
    r->ttft_slo_ms = x->ttft_slo_ms;
    r->tpot_slo_ms = x->tpot_slo_ms;
    r->n_jobs = x->jobs != 0 ? (uint32_t)x->jobs : n_cpus > 0 ? (uint32_t)n_cpus : 1;
    r->objective = x->objective_id;
    r->space = &x->space;
    r->rows = x->rows;
    r->err = &x->err;
    r->folder = x->folder;
    r->began_ns = kg_now_ns();
    return kg_runs_folder("advise", x->folder, &x->err);
}

/* The whole trace as it is: finds the stretch of --load. */
static int run_whole(struct advise *x)
{
    struct kg_advise_runner *r = &x->runner;
    struct kg_advise_job job = {.is_first = 1};
    double all = 0;

    for (uint32_t i = 0; i < KG_ADVISE_DIMS; i++) {
        all += x->space.dims[i].n - 1;
    }
    r->phase = "as it is";
    r->left = (6 + 1.5 * all) * r->n;
    int rc = kg_advise_run(r, &job, 1);
    if (rc == KG_OK && job.run.rows == NULL) {
        rc = kg_fail(&x->err, KG_EINVAL, "%s: %s", x->line.conf, job.why);
    }
    r->base = job.run;
    r->facts = job.facts;
    if (rc == KG_OK && x->load != NULL && job.facts.stretch * JITTER > 1e6) {
        rc = kg_fail(&x->err, KG_EINVAL,
                     "--load %g: arrivals would be stretched by %g, wanted at "
                     "most %g",
                     x->load_share, job.facts.stretch, 1e6 / JITTER);
    }
    if (rc == KG_OK && x->load != NULL) {
        (void)snprintf(r->stretch, sizeof(r->stretch), "%.17g", job.facts.stretch);
    }
    return rc;
}

static int search(struct advise *x)
{
    const struct kg_advise_search s = {.space = &x->space,
                                       .least = x->least_percent / 100,
                                       .n_rounds = (uint32_t)x->rounds,
                                       .run = kg_advise_run_tries,
                                       .ctx = &x->runner};

    x->runner.phase = "trying";
    int rc = kg_advise_search(&s, &x->found);
    return rc == KG_ELIMIT ? KG_OK : rc;
}

static int judge(struct advise *x, const struct kg_advise_job *job, struct kg_advise_final *f)
{
    const struct kg_advise_runner *r = &x->runner;
    struct kg_advise_judge j = {.base = &r->base,
                                .other = &job->run,
                                .n_all = r->n,
                                .from = r->n_pick,
                                .n = r->n - r->n_pick,
                                .objective = x->objective_id,
                                .n_finalists = x->found.n_finalists,
                                .least = x->least_percent / 100,
                                .seed = x->seed};

    (void)snprintf(f->why, sizeof(f->why), "%s", job->why);
    if (job->run.rows == NULL) {
        return KG_OK;
    }
    int rc = kg_advise_judge(&j, &f->gain, &f->result, &x->err);
    j.from = 0;
    j.n = r->n;
    j.n_finalists = 1;
    rc = rc == KG_OK ? kg_advise_judge(&j, &f->whole, NULL, &x->err) : rc;
    if (rc == KG_OK &&
        kg_advise_figures_of(&job->run, 0, r->n, &job->facts, &f->figures) != KG_OK) {
        rc = kg_fail(&x->err, KG_ENOMEM, "no memory for %u rows", r->n);
    }
    return rc;
}

/* The finalists and the base once more, at other arrivals and contents. */
static int confirm(struct advise *x)
{
    struct kg_advise_runner *r = &x->runner;
    struct kg_advise_job jobs[KG_ADVISE_FINALISTS + 1];
    uint32_t n = x->found.n_finalists;
    double by = r->stretch[0] != '\0' ? strtod(r->stretch, NULL) : 1;
    int rc = KG_OK;

    memset(jobs, 0, sizeof(jobs));
    for (uint32_t i = 0; i < n; i++) {
        jobs[i].point = x->found.tries[x->found.finalists[i]].point;
    }
    if (n > 0) {
        (void)snprintf(r->stretch, sizeof(r->stretch), "%.17g", by * JITTER);
        r->seed++;
        r->phase = "confirming";
        r->left = (double)(n + 1) * r->n;
        rc = kg_advise_run(r, jobs, n + 1);
    }
    if (rc == KG_OK && n > 0 && jobs[n].run.rows == NULL) {
        rc = kg_fail(&x->err, KG_EINVAL, "%s: %s", x->line.conf, jobs[n].why);
    } else if (rc == KG_OK && n > 0) {
        kg_ab_run_free(&r->base);
        r->base = jobs[n].run;
        r->facts = jobs[n].facts;
        jobs[n].run.rows = NULL;
    }
    for (uint32_t i = 0; i <= n; i++) {
        if (i < n) {
            x->finals[i].row = x->found.finalists[i];
        }
        rc = rc == KG_OK && i < n ? judge(x, &jobs[i], &x->finals[i]) : rc;
        kg_ab_run_free(&jobs[i].run);
    }
    return rc;
}

/* --- the report --- */

/* A word as a shell takes it. */
static void put_word(struct kg_buf *b, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "-_./=,:+@%";

    (void)kg_buf_putc(b, ' ');
    if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
        (void)kg_buf_puts(b, word);
        return;
    }
    (void)kg_buf_putc(b, '\'');
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            (void)kg_buf_puts(b, "'\\''");
        } else {
            (void)kg_buf_putc(b, *word);
        }
    }
    (void)kg_buf_putc(b, '\'');
}

/* The command that replays base and recommendation as they were confirmed. */
static void make_check(struct advise *x)
{
    const struct kg_advise_runner *r = &x->runner;
    const struct kg_advise_row *row = &x->rows[x->finals[x->report.recommended].row];
    struct kg_buf *b = &x->check;

    (void)kg_buf_puts(b, "kedge ab");
    put_word(b, x->line.conf);
    (void)kg_buf_puts(b, " --set-b ");
    for (uint32_t i = 0; i < row->n_sets; i++) {
        (void)kg_buf_printf(b, "%s%s", i > 0 ? "," : "", row->sets[i]);
    }
    for (int i = 0; i < r->n_sets; i++) {
        (void)kg_buf_puts(b, " --set");
        put_word(b, r->sets[i]);
    }
    for (uint32_t i = 0; i < r->n_words; i++) {
        put_word(b, r->words[i]);
    }
    if (r->limit != NULL) {
        (void)kg_buf_printf(b, " --limit %s", r->limit);
    }
    if (r->stretch[0] != '\0') {
        (void)kg_buf_printf(b, " --stretch %s", r->stretch);
    }
    if (r->seed != 1) {
        (void)kg_buf_printf(b, " --seed %llu", (unsigned long long)r->seed);
    }
}

static int fill_report(struct advise *x)
{
    const struct kg_advise_runner *r = &x->runner;
    struct kg_advise_report *p = &x->report;

    p->conf = x->line.conf;
    p->trace = x->trace.trace;
    p->objective = x->objective_id;
    p->load = x->load_share;
    p->stretch = r->stretch[0] != '\0' ? strtod(r->stretch, NULL) : 1;
    p->ttft_slo_ms = x->ttft_slo_ms;
    p->tpot_slo_ms = x->tpot_slo_ms;
    p->least = x->least_percent / 100;
    p->seed = x->seed;
    p->n = r->n;
    p->n_pick = r->n_pick;
    p->rows = x->rows;
    p->n_rows = r->n_rows;
    p->guide_note = x->guide_note;
    p->spec_note = x->spec_note;
    p->finals = x->finals;
    p->n_finals = x->found.n_finalists;
    if (kg_advise_figures_of(&r->base, 0, r->n, &r->facts, &p->base) != KG_OK) {
        return kg_fail(&x->err, KG_ENOMEM, "no memory for the report");
    }
    p->recommended = kg_advise_recommend(p);
    if (p->recommended != KG_NONE) {
        make_check(x);
    }
    p->check = kg_buf_cstr(&x->check);
    return KG_OK;
}

static int tell(struct advise *x)
{
    struct kg_buf text, json;

    int rc = fill_report(x);
    if (rc != KG_OK) {
        return rc;
    }
    kg_buf_init(&text, 0);
    kg_buf_init(&json, 0);
    (void)kg_advise_text(&x->report, &text);
    (void)kg_advise_json(&x->report, &json);
    if (text.rc != KG_OK || json.rc != KG_OK) {
        rc = kg_fail(&x->err, KG_ENOMEM, "no memory for the report");
    }
    if (rc == KG_OK && x->summary != NULL) {
        rc = kg_cmd_save(x->summary, &json, &x->err);
    }
    if (rc == KG_OK) {
        (void)fputs(kg_buf_cstr(x->line.json ? &json : &text), stdout);
    }
    kg_buf_fini(&text);
    kg_buf_fini(&json);
    return rc;
}

static int advise(struct advise *x)
{
    int rc = gather(x);

    rc = rc == KG_OK ? prepare(x) : rc;
    rc = rc == KG_OK ? run_whole(x) : rc;
    rc = rc == KG_OK ? search(x) : rc;
    rc = rc == KG_OK ? confirm(x) : rc;
    return rc == KG_OK ? tell(x) : rc;
}

int kg_cmd_advise(int argc, char **argv)
{
    struct advise *x = calloc(1, sizeof(*x));

    if (x == NULL) {
        (void)fputs("kedge: out of memory\n", stderr);
        return KG_EXIT_FAILED;
    }
    x->seed = 1;
    x->rounds = 2;
    x->least_percent = 1;
    kg_buf_init(&x->check, 0);
    int status = parse(x, argc, argv);
    if (status < 0) {
        status = kg_cmd_config(&x->line, &x->config);
    }
    if (status < 0) {
        status = advise(x) == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&x->err);
    }
    kg_runs_drop(x->folder);
    kg_ab_run_free(&x->runner.base);
    kg_buf_fini(&x->check);
    kg_config_destroy(x->config);
    free(x);
    return status;
}
