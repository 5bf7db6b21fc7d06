/* kedge replay: a trace through the configured core. See core/docs/replay.md. */
#include "base/clock.h"
#include "cmd.h"
#include "experiment/results.h"
#include "stack.h"
#include "text/tokenizer.h"
#include "trace_flags.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What --stretch may be, and what --load may make of it. */
#define STRETCH_MIN 1e-9
#define STRETCH_MAX 1e6

/* The line, parsed, and what is made of it. */
struct replay {
    struct kg_cmd_line *line;
    const char *out_path, *summary_path;
    struct kg_trace_flags trace_flags;
    struct kg_trace_conf read;
    uint64_t seed;
    uint32_t engine_time, series;
    double load, stretch, ttft_slo_ms, tpot_slo_ms;
    struct kg_trace *trace;
    struct kg_expand *expand;
    int answers_fd;          /* file of answers for exec-sim; -1 none */
    int explain;             /* --explain: say so to people */
    int explain_fd;          /* file in which exec-sim says what its steps were made of; -1 none */
    struct kg_buf explained; /* what it said, of all replicas */
    uint32_t n_replicas, route, slack;
    struct kg_results_about about;
    struct kg_error *err;
    uint64_t began_ns; /* real time, for progress */
    const char *phase;
    struct kg_stack *stacks[KG_ROUTE_MAX_REPLICAS]; /* of the pass under way; NULL: not open */
};

/* --- the line --- */

/* Texts of the flags. */
struct words {
    const char *seed, *load, *stretch, *ttft_slo, *tpot_slo, *replicas, *route, *slack;
    int engine_time, series;
};

/* What a router remembers: 48 MiB at most, prompts of 64M tokens with pages of 64. */
#define ROUTER_PAGES (1u << 20)
/* Requests a replica may have under way beyond the least loaded and still be chosen for its prefix.
 */
#define ROUTER_SLACK 8

static int parse_cluster(struct replay *r, const struct words *w)
{
    uint64_t replicas = 1, slack = ROUTER_SLACK;
    int rc = kg_cmd_whole("--replicas", w->replicas, 1, KG_ROUTE_MAX_REPLICAS, &replicas);

    rc = rc >= 0 ? rc : kg_cmd_whole("--slack", w->slack, 0, UINT32_MAX, &slack);
    r->n_replicas = (uint32_t)replicas;
    r->slack = (uint32_t)slack;
    if (rc >= 0) {
        return rc;
    }
    if (w->route != NULL && kg_route_parse(w->route, &r->route) != KG_OK) {
        return kg_cmd_bad("--route", w->route, "round-robin, least-load or prefix");
    }
    if (w->replicas == NULL && (w->route != NULL || w->slack != NULL)) {
        (void)fputs("kedge: --route and --slack need --replicas N\n", stderr);
        return KG_EXIT_USAGE;
    }
    return rc;
}

static int parse_words(struct replay *r, const struct words *w)
{
    if (r->trace_flags.trace == NULL) {
        (void)fputs("kedge: replay needs --trace FILE\n", stderr);
        return KG_EXIT_USAGE;
    }
    int rc = kg_trace_flags_read(&r->trace_flags, &r->read);
    rc = rc >= 0 ? rc : kg_cmd_whole("--seed", w->seed, 0, UINT64_MAX, &r->seed);
    rc = rc >= 0 ? rc : kg_cmd_real("--load", w->load, 1e-9, 100, &r->load);
    rc = rc >= 0 ? rc : kg_cmd_real("--stretch", w->stretch, STRETCH_MIN, STRETCH_MAX, &r->stretch);
    rc = rc >= 0 ? rc : kg_cmd_real("--ttft-slo", w->ttft_slo, 1e-9, 1e9, &r->ttft_slo_ms);
    rc = rc >= 0 ? rc : kg_cmd_real("--tpot-slo", w->tpot_slo, 1e-9, 1e9, &r->tpot_slo_ms);
    if (rc < 0 && w->load != NULL && w->stretch != NULL) {
        (void)fputs("kedge: --load and --stretch exclude each other\n", stderr);
        return KG_EXIT_USAGE;
    }
    r->engine_time = (uint32_t)w->engine_time;
    r->series = (uint32_t)w->series;
    r->read.seed = r->seed;
    return rc >= 0 ? rc : parse_cluster(r, w);
}

static int parse(struct replay *r, int argc, char **argv)
{
    struct words w = {0};
    const struct kg_cmd_flag flags[] = {
        KG_TRACE_FLAG_ROWS(&r->trace_flags, "trace to replay"),
        {"--out", "FILE", "one JSON line per request", &r->out_path, NULL},
        {"--summary", "FILE", "one JSON object for all", &r->summary_path, NULL},
        {"--load", "X", "stretch time so that the offered work is X of the capacity", &w.load,
         NULL},
        {"--stretch", "X", "stretch arrivals and delays by X", &w.stretch, NULL},
        {"--engine-time", NULL, "measure the engine's own CPU time per step", NULL, &w.engine_time},
        {"--series", NULL, "summary: bytes by class over time, parts of steps", NULL, &w.series},
        {"--seed", "N", "of contents and draws (1)", &w.seed, NULL},
        {"--ttft-slo", "MS", "goodput counts requests with at most this time to first token",
         &w.ttft_slo, NULL},
        {"--tpot-slo", "MS", "and at most this time per output token", &w.tpot_slo, NULL},
        {"--replicas", "N", "N engines behind a router, in virtual time (1)", &w.replicas, NULL},
        {"--route", "NAME", "round-robin (default), least-load, prefix", &w.route, NULL},
        {"--slack", "N", "prefix: requests a replica may have more than the least loaded (8)",
         &w.slack, NULL},
        {"--explain", NULL, "exec-sim: what the steps were made of, on standard error", NULL,
         &r->explain},
        {0},
    };
    int rc = kg_cmd_parse(r->line, argc, argv,
                          "kedge replay -c FILE --trace FILE [--out FILE] [--summary FILE]",
                          "Runs the configured core on a trace, in virtual time where the backend "
                          "has it.",
                          flags, 0);
    return rc >= 0 ? rc : parse_words(r, &w);
}

/* --- trace and contents --- */

/* Prompts given as text become tokens of the model's tokenizer. */
static int tokenize(struct replay *r, const char *model_path)
{
    struct kg_tok *tok = NULL;
    struct kg_tok_scratch *scratch = NULL;
    struct kg_ids ids = {0};
    int rc = KG_OK;

    for (uint32_t i = 0; rc == KG_OK && i < r->trace->n; i++) {
        const struct kg_trace_req *q = &r->trace->reqs[i];
        if (q->n_text == 0) {
            continue;
        }
        if (tok == NULL && model_path[0] == '\0') {
            return kg_fail(r->err, KG_ECONFIG,
                           "%s: line %llu: prompt: text needs a tokenizer, set [model] path",
                           r->trace_flags.trace, (unsigned long long)q->line);
        }
        if (tok == NULL && (rc = kg_tok_open(model_path, &tok, r->err)) != KG_OK) {
            break;
        }
        if (scratch == NULL && (scratch = kg_tok_scratch_new(tok)) == NULL) {
            rc = kg_fail(r->err, KG_ENOMEM, "out of memory");
            break;
        }
        ids.n = 0;
        rc = kg_tok_encode(tok, scratch, KG_TOK_PLAIN, r->trace->text + q->prompt_at, q->n_text,
                           &ids);
        if (rc == KG_OK) {
            rc = kg_trace_set_tokens(r->trace, i, ids.v, (uint32_t)ids.n);
        }
    }
    kg_ids_free(&ids);
    kg_tok_scratch_free(scratch);
    kg_tok_close(tok);
    return rc;
}

static int write_all(int fd, const void *p, size_t n)
{
    const char *at = p;

    while (n > 0) {
        ssize_t k = write(fd, at, n);
        if (k < 0 && errno != EINTR) {
            return KG_EIO;
        }
        at += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
    return KG_OK;
}

/* The file plugins/exec-sim/answers.h describes: the answer of seed i + 1 is that of request i. */
static int write_answers(struct replay *r)
{
    const struct kg_trace *t = r->trace;
    uint64_t *head = calloc((size_t)t->n + 3, sizeof(*head));
    uint32_t longest = 1;
    int rc = head == NULL ? KG_ENOMEM : KG_OK;

    for (uint32_t i = 0; rc == KG_OK && i < t->n; i++) {
        head[i + 3] = head[i + 2] + t->reqs[i].n_output;
        longest = t->reqs[i].n_output > longest ? t->reqs[i].n_output : longest;
    }
    uint32_t *tokens = malloc((size_t)longest * sizeof(*tokens));
    if (rc == KG_OK && tokens != NULL) {
        memcpy(head, "KGANSW02", 8);
        head[1] = t->n;
        rc = write_all(r->answers_fd, head, ((size_t)t->n + 3) * sizeof(*head));
    }
    for (uint32_t i = 0; rc == KG_OK && tokens != NULL && i < t->n; i++) {
        kg_expand_answer(r->expand, i, tokens);
        rc = write_all(r->answers_fd, tokens, t->reqs[i].n_output * sizeof(*tokens));
    }
    for (uint32_t i = 0; rc == KG_OK && tokens != NULL && i < t->n; i++) {
        char domain[24] = {0};
        (void)snprintf(domain, sizeof(domain), "%s", t->text + t->reqs[i].domain_at);
        rc = write_all(r->answers_fd, domain, sizeof(domain));
    }
    rc = rc == KG_OK && tokens == NULL ? KG_ENOMEM : rc;
    free(tokens);
    free(head);
    return rc == KG_OK ? rc : kg_fail(r->err, rc, "answers cannot be written: %s", strerror(errno));
}

/* --- configuration --- */

/* A file in memory that exec-sim opens by the path written to set, "exec-sim.KEY=PATH"; -1 and a
 * word on standard error. */
static int memory_file(const char *key, char *set, size_t n)
{
    int fd = memfd_create("kedge-replay", MFD_CLOEXEC);

    if (fd < 0) {
        (void)fprintf(stderr, "kedge: no file for %s: %s\n", key, strerror(errno));
    }
    (void)snprintf(set, n, "exec-sim.%s=/proc/self/fd/%d", key, fd);
    return fd;
}

#define SIM_SETS 3
#define MOST_SIM_SEED 9000000000000000u

/* What replay tells exec-sim, unless the configuration does: answers, seed, and where to explain.
 */
static int tell_sim(struct replay *r, const struct kg_config *config, struct kg_cmd_line *line,
                    char sets[SIM_SETS][64])
{
    const char *source = "";
    const char *own = kg_config_value(config, "exec-sim", "answers", &source);
    uint32_t n = 0;

    if (own == NULL || own[0] == '\0') {
        r->answers_fd = memory_file("answers", sets[n], sizeof(sets[n]));
        line->sets[line->n_sets++] = sets[n++];
    }
    const char *path = kg_config_value(config, "exec-sim", "explain", &source);
    int explains = r->explain || (r->series && (path == NULL || path[0] == '\0'));
    if (explains) {
        r->explain_fd = memory_file("explain", sets[n], sizeof(sets[n]));
        line->sets[line->n_sets++] = sets[n++];
    }
    (void)kg_config_value(config, "exec-sim", "seed", &source);
    if (strcmp(source, "default") == 0) {
        (void)snprintf(sets[n], sizeof(sets[n]), "exec-sim.seed=%llu",
                       (unsigned long long)(r->seed % MOST_SIM_SEED));
        line->sets[line->n_sets++] = sets[n++];
    }
    int failed =
        ((own == NULL || own[0] == '\0') && r->answers_fd < 0) || (explains && r->explain_fd < 0);
    return failed ? KG_EXIT_FAILED : -1;
}

/* The configuration; under exec-sim with what replay adds. */
static int configure(struct replay *r, struct kg_config **config)
{
    char sets[SIM_SETS][64];
    struct kg_cmd_line line = *r->line;

    int rc = kg_cmd_config(&line, config);
    rc = rc < 0 ? kg_cmd_no_arms(*config, "replay") : rc;
    if (rc >= 0) {
        return rc;
    }
    if (strcmp(kg_config_choice(*config, KG_KIND_EXEC)->ref.plugin->name, "sim") != 0) {
        return -1;
    }
    if (line.n_sets > KG_CMD_SETS - SIM_SETS) {
        (void)fprintf(stderr, "kedge: replay takes at most %d --set\n", KG_CMD_SETS - SIM_SETS);
        return KG_EXIT_USAGE;
    }
    rc = tell_sim(r, *config, &line, sets);
    if (rc >= 0) {
        return rc;
    }
    line.quiet = 1; /* it was read once and said what it had to say */
    kg_config_destroy(*config);
    *config = NULL;
    return kg_cmd_config(&line, config);
}

/* --- running --- */

static void progress(void *ctx, uint32_t n_done, uint32_t n, uint64_t now_ns)
{
    const struct replay *r = ctx;
    double spent = (double)(kg_now_ns() - r->began_ns) / 1e9;
    double left = n_done > 0 ? spent * (n - n_done) / n_done : 0;

    (void)fprintf(stderr, "\r%s %u of %u requests, %.0f s of its time, %.0f s left \033[K",
                  r->phase, n_done, n, (double)now_ns / 1e9, left);
}

/* The script's word on an arriving request, as the server asks it. */
static void arrive(void *ctx, struct kg_replay_arrival *a)
{
    const struct replay *r = ctx;
    const struct kg_stack *stack = r->stacks[a->replica];
    const struct kg_serve_policy *p = &stack->hooks->serve;
    const struct kg_arrive_view view = {.tenant = a->tenant,
                                        .arm = "",
                                        .user = "",
                                        .n_prompts = 1,
                                        .n = 1,
                                        .prompt_tokens = a->n_prompt,
                                        .max_tokens = a->max_tokens,
                                        .now_ns = a->now_ns,
                                        .sequences = a->n_live,
                                        .max_sequences = stack->conf->engine.max_requests,
                                        .stats = a->stats};
    struct kg_arrive_answer answer = {0};

    if (!p->has_arrive(p->ctx)) {
        return;
    }
    p->arrive(p->ctx, &view, &answer);
    a->rejected = answer.status != 0;
    (void)snprintf(a->reason, sizeof(a->reason), "%s", answer.reason);
    (void)snprintf(a->tenant_name, sizeof(a->tenant_name), "%s", answer.tenant);
    (void)snprintf(a->class_name, sizeof(a->class_name), "%s", answer.class_name);
    a->priority = answer.has_priority ? answer.priority : a->priority;
    if (answer.max_tokens != 0 && answer.max_tokens < a->max_tokens) {
        a->max_tokens = answer.max_tokens;
    }
}

/* Tokens and answers need the vocabulary, which the opened backend knows. */
static int expand(struct replay *r, const struct kg_stack *stack)
{
    int rc = KG_OK;

    if (r->expand == NULL) {
        rc = tokenize(r, stack->conf->model_path);
        if (rc == KG_OK) {
            rc = kg_expand_create(r->trace, r->seed, stack->desc.vocab, &r->expand, r->err);
        }
        if (rc == KG_OK && r->answers_fd >= 0) {
            rc = write_answers(r);
        }
    }
    return rc;
}

/* Closes all replicas; what exec-sim says of its steps at the end is kept. */
static void close_replicas(struct replay *r)
{
    char buf[4096];
    ssize_t n;

    for (uint32_t k = 0; k < KG_ROUTE_MAX_REPLICAS; k++) {
        if (r->stacks[k] == NULL) {
            continue;
        }
        kg_stack_close(r->stacks[k]);
        r->stacks[k] = NULL;
        if (r->explain_fd >= 0 && r->n_replicas > 1) {
            (void)kg_buf_printf(&r->explained, "replica %u: ", k);
        }
        for (off_t at = 0;
             r->explain_fd >= 0 && (n = pread(r->explain_fd, buf, sizeof(buf), at)) > 0; at += n) {
            (void)kg_buf_add(&r->explained, buf, (size_t)n);
        }
        if (r->explain_fd >= 0) {
            (void)!ftruncate(r->explain_fd, 0); /* the next one may have nothing to say */
        }
    }
}

/* Its time stands between two calls: it is virtual, and not what a processor spends. */
static int is_simulated(const struct kg_exec_desc *d)
{
    return (d->caps & KG_EXEC_CAP_VIRTUAL) != 0 && (d->caps & KG_EXEC_CAP_NO_BYTES) != 0;
}

/* Opens them, each with everything of its own. */
static int open_replicas(struct replay *r, const struct kg_config *config,
                         struct kg_replay_replica *replicas)
{
    int rc = KG_OK;

    kg_buf_reset(&r->explained);
    for (uint32_t k = 0; rc == KG_OK && k < r->n_replicas; k++) {
        rc = kg_stack_open(config, &r->stacks[k], r->err);
        if (rc == KG_OK && r->n_replicas > 1 && !is_simulated(&r->stacks[k]->desc)) {
            rc = kg_fail(
                r->err, KG_ECONFIG,
                "--replicas needs exec = sim and its clock = virtual, found exec-%s in %s time: "
                "replicas share a virtual clock",
                r->about.exec,
                (r->stacks[k]->desc.caps & KG_EXEC_CAP_VIRTUAL) != 0 ? "virtual" : "real");
        }
        if (rc == KG_OK) {
            rc = expand(r, r->stacks[k]);
        }
        if (rc == KG_OK) {
            rc = kg_stack_engine(r->stacks[k], r->err);
        }
        if (rc == KG_OK) {
            replicas[k] = (struct kg_replay_replica){
                r->stacks[k]->engine, r->stacks[k]->parts.exec_ops, r->stacks[k]->parts.exec};
        }
    }
    return rc;
}

/* The router of several replicas. The work that can be done at all is measured in turns, so that it
 * is the same for all routes. */
static int open_router(struct replay *r, int saturate, struct kg_router **router)
{
    const struct kg_route_conf conf = {
        .kind = saturate ? KG_ROUTE_ROUND_ROBIN : r->route,
        .n_replicas = r->n_replicas,
        .page_tokens = kg_engine_layout(r->stacks[0]->engine)->page_tokens,
        .max_pages = ROUTER_PAGES,
        .slack = r->slack,
    };

    return r->n_replicas > 1 ? kg_router_create(&conf, router, r->err) : KG_OK;
}

static void describe(struct replay *r)
{
    const struct kg_exec_desc *d = &r->stacks[0]->desc;

    (void)snprintf(r->about.family, sizeof(r->about.family), "%s", d->family);
    (void)snprintf(r->about.math, sizeof(r->about.math), "%s", d->math != NULL ? d->math : "");
    r->about.vocab = d->vocab;
    r->about.caps = d->caps;
    r->about.is_virtual = (d->caps & KG_EXEC_CAP_VIRTUAL) != 0;
    r->about.route = r->route;
}

/* One pass over the trace with cores of its own. */
static int run(struct replay *r, const struct kg_config *config, const char *phase, int saturate,
               struct kg_replay_result *result)
{
    struct kg_replay_replica replicas[KG_ROUTE_MAX_REPLICAS] = {0};
    struct kg_router *router = NULL;
    int tty = isatty(STDERR_FILENO);

    int rc = open_replicas(r, config, replicas);
    if (rc == KG_OK) {
        rc = open_router(r, saturate, &router);
    }
    if (rc == KG_OK) {
        const struct kg_engine_conf *e = &r->stacks[0]->conf->engine;
        uint32_t twice = 2 * e->max_seqs;
        const struct kg_replay_conf conf = {
            .replicas = replicas,
            .n_replicas = r->n_replicas,
            .router = router,
            .trace = r->trace,
            .expand = r->expand,
            .stretch = r->stretch,
            .saturate = (uint32_t)saturate,
            .time_engine = r->engine_time,
            .series = r->series,
            .max_live = twice < e->max_requests ? twice : e->max_requests,
            .arrive = r->stacks[0]->hooks != NULL ? arrive : NULL,
            .progress = tty ? progress : NULL,
            .ctx = r,
        };
        describe(r);
        r->phase = phase;
        r->began_ns = kg_now_ns();
        rc = kg_replay_run(&conf, result, r->err);
        if (tty) {
            (void)fputs("\r\033[K", stderr);
        }
    }
    kg_router_destroy(router);
    close_replicas(r);
    return rc;
}

/* --load: how long the work takes when nothing waits for its arrival, then the stretch that makes
 * it last X of that. */
static int find_stretch(struct replay *r, const struct kg_config *config)
{
    struct kg_replay_result result = {0};
    uint64_t span_ns = 0;

    int rc = run(r, config, "capacity:", 1, &result);
    uint64_t capacity_ns = result.duration_ns;
    kg_replay_free(&result);
    if (rc == KG_OK) {
        rc = kg_replay_span(r->trace, &span_ns);
    }
    if (rc != KG_OK) {
        return rc;
    }
    if (span_ns == 0) {
        return kg_fail(r->err, KG_EINVAL, "--load: all requests of the trace arrive at once");
    }
    r->about.load = r->load;
    r->about.capacity_s = (double)capacity_ns / 1e9;
    r->stretch = (double)capacity_ns / (r->load * (double)span_ns);
    if (!(r->stretch >= STRETCH_MIN && r->stretch <= STRETCH_MAX)) {
        return kg_fail(r->err, KG_EINVAL,
                       "--load %g: arrivals would be stretched by %g, wanted %g to %g", r->load,
                       r->stretch, STRETCH_MIN, STRETCH_MAX);
    }
    (void)fprintf(stderr,
                  "load %.2f: the work takes %.1f s at full speed, arrivals spread over %.1f s "
                  "(times %.4f)\n",
                  r->load, (double)capacity_ns / 1e9, (double)span_ns * r->stretch / 1e9,
                  r->stretch);
    if (r->load > 0.9) {
        (void)fprintf(stderr,
                      "warning: --load %.2f: above 0.9 waiting in the queue dominates every "
                      "figure\n",
                      r->load);
    }
    return KG_OK;
}

/* --- results --- */

static int save_rows(struct replay *r, const struct kg_replay_result *result)
{
    struct kg_buf b;

    kg_buf_init(&b, 0);
    for (uint32_t i = 0; i < result->n && b.rc == KG_OK; i++) {
        (void)kg_results_row(result, r->trace, i, &b);
    }
    int rc = kg_cmd_save(r->out_path, &b, r->err);
    kg_buf_fini(&b);
    return rc;
}

static int save_summary(struct replay *r, const struct kg_replay_result *result)
{
    struct kg_totals totals;
    struct kg_buf json, text;

    kg_expand_shares(r->expand, &r->about.share);
    if (kg_results_totals(result, &r->about, &totals) != KG_OK) {
        return kg_fail(r->err, KG_ENOMEM, "no memory for the summary");
    }
    kg_buf_init(&json, 0);
    kg_buf_init(&text, 0);
    int rc = kg_results_summary(result, &r->about, &totals, &json);
    rc = rc == KG_OK ? kg_results_text(result, &r->about, &totals, &text) : rc;
    if (rc != KG_OK) {
        rc = kg_fail(r->err, rc, "no memory for the summary");
    }
    rc = rc == KG_OK && r->summary_path != NULL ? kg_cmd_save(r->summary_path, &json, r->err) : rc;
    if (rc == KG_OK) {
        rc = kg_cmd_save("-", r->line->json ? &json : &text, r->err);
    }
    kg_buf_fini(&json);
    kg_buf_fini(&text);
    return rc;
}

static void warn_trace(const struct replay *r)
{
    const struct kg_trace *t = r->trace;

    if (t->unknown[0] != '\0') {
        (void)fprintf(stderr, "warning: %s: line %llu: field \"%s\" is not known and not read\n",
                      r->trace_flags.trace, (unsigned long long)t->unknown_line, t->unknown);
    }
    if (t->n_raised > 0) {
        (void)fprintf(stderr, "warning: %s: %llu lengths of 0 count as 1 token\n",
                      r->trace_flags.trace, (unsigned long long)t->n_raised);
    }
    if (t->n_dropped > 0) {
        (void)fprintf(stderr, "%s: %llu requests left out by --max-input\n", r->trace_flags.trace,
                      (unsigned long long)t->n_dropped);
    }
}

static int replay(struct replay *r, const struct kg_config *config)
{
    struct kg_replay_result result = {0};

    int rc = kg_trace_read(r->trace_flags.trace, &r->read, &r->trace, r->err);
    if (rc != KG_OK) {
        return rc;
    }
    warn_trace(r);
    if (r->load > 0) {
        rc = find_stretch(r, config);
    }
    if (rc == KG_OK) {
        rc = run(r, config, "replay:", 0, &result);
    }
    if (rc == KG_OK) {
        r->about.trace = r->trace;
        r->about.explained = kg_buf_cstr(&r->explained);
        r->about.seed = r->seed;
        r->about.stretch = r->stretch;
        r->about.ttft_slo_ms = r->ttft_slo_ms;
        r->about.tpot_slo_ms = r->tpot_slo_ms;
        rc = r->out_path != NULL ? save_rows(r, &result) : KG_OK;
    }
    if (rc == KG_OK) {
        rc = save_summary(r, &result);
    }
    kg_replay_free(&result);
    return rc;
}

/* What exec-sim wrote of its steps, of the last pass. */
static void show_explain(struct replay *r)
{
    if (r->explain && r->explain_fd < 0) {
        (void)fputs("kedge: --explain: only exec-sim can tell\n", stderr);
    }
    if (r->explain) {
        (void)fputs(kg_buf_cstr(&r->explained), stderr);
    }
    kg_buf_fini(&r->explained);
    if (r->explain_fd >= 0) {
        (void)close(r->explain_fd);
    }
}

int kg_cmd_replay(int argc, char **argv)
{
    struct kg_cmd_line line;
    struct kg_error err = {0};
    struct replay r = {
        .line = &line, .seed = 1, .stretch = 1, .answers_fd = -1, .explain_fd = -1, .err = &err};
    struct kg_config *config = NULL;

    kg_buf_init(&r.explained, 0);
    int status = parse(&r, argc, argv);
    if (status < 0) {
        status = configure(&r, &config);
    }
    if (status < 0) {
        r.about.exec = kg_config_choice(config, KG_KIND_EXEC)->ref.plugin->name;
        r.about.pool = kg_config_choice(config, KG_KIND_POOL)->ref.plugin->name;
        r.about.sched = kg_config_choice(config, KG_KIND_SCHED)->ref.plugin->name;
        r.about.spec = kg_config_choice(config, KG_KIND_SPEC)->ref.plugin->name;
        status = replay(&r, config) == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&err);
    }
    kg_expand_destroy(r.expand);
    kg_trace_free(r.trace);
    kg_config_destroy(config);
    show_explain(&r);
    if (r.answers_fd >= 0) {
        (void)close(r.answers_fd);
    }
    return status;
}
