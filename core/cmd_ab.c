/* kedge ab: two configurations on one trace, compared request by request. See core/docs/ab.md. */
#include "base/clock.h"
#include "cmd.h"
#include "experiment/ab.h"
#include "runs.h"
#include "trace_flags.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_VALUES 16u
#define MAX_ARMS (2 * MAX_VALUES)
#define MAX_REPEATS 50u
#define MAX_ARGS 256
#define MAX_SETS_B 16

struct arm {
    const char *conf;
    char name[48], what[300];
    char set[160];   /* of --vary, "" for none */
    int has_more;    /* 1: takes --set-b */
    const char *at;  /* its value, NULL */
    uint32_t second; /* 1: takes --seed-b */
    struct kg_ab_run runs[MAX_REPEATS];
    uint32_t n_rows;
    struct kg_ab_facts facts;
};

struct ab {
    struct kg_cmd_line line;
    struct kg_trace_flags trace;
    const char *replicas, *slack; /* go to the replays as they are */
    const char *load, *stretch, *ttft_slo, *tpot_slo, *vary, *dir, *summary, *html;
    const char *route, *route_b;
    const char *repeat_text, *seed_text, *seed_b_text, *draws_text, *window_text, *least_text;
    uint64_t repeat, seed, seed_b, draws, window;
    double ttft_slo_ms, tpot_slo_ms, least_percent;
    struct arm arms[MAX_ARMS];
    uint32_t n_arms, is_pairs; /* is_pairs: arms 2k and 2k + 1 are compared; else 0 and k */
    char *values;              /* of --vary or --set-b, cut in place */
    const char *set_b, *sets_b[MAX_SETS_B];
    int n_sets_b;
    char temp[KG_RUNS_PATH]; /* folder that is removed at the end, "" for none */
    char stretched[40];      /* what the first replay found for --load */
    uint64_t began_ns;
    struct kg_error err;
};

/* --- the line --- */

static int numbers(struct ab *x)
{
    int rc = -1;

    rc = rc >= 0 ? rc : kg_cmd_whole("--repeat", x->repeat_text, 1, MAX_REPEATS, &x->repeat);
    rc = rc >= 0 ? rc : kg_cmd_whole("--seed", x->seed_text, 0, UINT64_MAX / 2, &x->seed);
    x->seed_b = x->seed;
    rc = rc >= 0 ? rc : kg_cmd_whole("--seed-b", x->seed_b_text, 0, UINT64_MAX / 2, &x->seed_b);
    rc = rc >= 0 ? rc : kg_cmd_whole("--draws", x->draws_text, 100, 100000, &x->draws);
    rc = rc >= 0 ? rc : kg_cmd_whole("--window", x->window_text, 1, UINT32_MAX, &x->window);
    rc = rc >= 0 ? rc : kg_cmd_real("--least", x->least_text, 0, 1e9, &x->least_percent);
    rc = rc >= 0 ? rc : kg_cmd_real("--ttft-slo", x->ttft_slo, 0, 1e9, &x->ttft_slo_ms);
    rc = rc >= 0 ? rc : kg_cmd_real("--tpot-slo", x->tpot_slo, 0, 1e9, &x->tpot_slo_ms);
    if (rc < 0 && x->load != NULL && x->stretch != NULL) {
        (void)fputs("kedge: --load and --stretch exclude each other\n", stderr);
        return KG_EXIT_USAGE;
    }
    return rc;
}

/* Of several replicas; NULL: as replay has it. */
static const char *route_of(const struct ab *x, const struct arm *a)
{
    return a->second && x->route_b != NULL ? x->route_b : x->route;
}

/* name NULL: KEY=VALUE of --vary. */
static void add_arm(struct ab *x, const char *conf, const char *name, const char *value,
                    uint32_t second)
{
    struct arm *a = &x->arms[x->n_arms++];
    size_t key = value != NULL ? strcspn(x->vary, "=") : 0;

    a->conf = conf;
    a->at = value;
    a->second = second;
    if (value != NULL) {
        (void)snprintf(a->set, sizeof(a->set), "%.*s=%s", (int)key, x->vary, value);
    }
    if (name != NULL) {
        (void)snprintf(a->name, sizeof(a->name), "%s", name);
    } else {
        (void)snprintf(a->name, sizeof(a->name), "%s", strchr(a->set, '.') + 1);
    }
    if (value != NULL) {
        (void)snprintf(a->what, sizeof(a->what), "%.120s, %.*s = %s", conf, (int)key, x->vary,
                       value);
    } else {
        (void)snprintf(a->what, sizeof(a->what), "%.290s", conf);
    }
    const char *route = route_of(x, a);
    if (route != NULL) {
        size_t n = strlen(a->what);
        (void)snprintf(a->what + n, sizeof(a->what) - n, ", %s", route);
    }
}

/* Cuts --set-b into its assignments. */
static int cut_sets(struct ab *x)
{
    x->values = strdup(x->set_b);
    for (char *v = x->values, *next; v != NULL; v = next) {
        next = strchr(v, ',');
        if (next != NULL) {
            *next++ = '\0';
        }
        if (x->n_sets_b == MAX_SETS_B || strchr(v, '.') == NULL || strchr(v, '=') == NULL) {
            return kg_cmd_bad("--set-b", x->set_b, "SECTION.KEY=VALUE,..., at most 16");
        }
        x->sets_b[x->n_sets_b++] = v;
    }
    return -1;
}

/* The arms: two files, or the values of --vary, or both files at each value. */
static int make_arms(struct ab *x)
{
    int n = x->line.n_rest;
    const char *first = n > 0 ? x->line.rest[0] : x->line.conf;
    uint32_t n_values = 0;

    if (x->trace.trace == NULL || first == NULL || (n > 0 && x->line.conf != NULL) ||
        (n < 2 && x->vary == NULL && x->set_b == NULL) || (x->vary != NULL && x->set_b != NULL)) {
        (void)fputs("kedge: ab needs --trace FILE and either two configurations or one and --vary "
                    "SECTION.KEY=V1,V2 or --set-b SECTION.KEY=VALUE\n",
                    stderr);
        return KG_EXIT_USAGE;
    }
    x->is_pairs = n == 2 || x->set_b != NULL;
    if (x->vary == NULL) {
        add_arm(x, first, "A", NULL, 0);
        add_arm(x, n == 2 ? x->line.rest[1] : first, "B", NULL, 1);
        x->arms[1].has_more = x->set_b != NULL;
        if (x->set_b != NULL) {
            (void)snprintf(x->arms[1].what, sizeof(x->arms[1].what), "%.120s, %.170s",
                           x->arms[1].conf, x->set_b);
        }
        return x->set_b != NULL ? cut_sets(x) : -1;
    }
    const char *list = strchr(x->vary, '=');
    x->values = list != NULL ? strdup(list + 1) : NULL;
    if (list == NULL || memchr(x->vary, '.', (size_t)(list - x->vary)) == NULL) {
        return kg_cmd_bad("--vary", x->vary, "SECTION.KEY=V1,V2,...");
    }
    for (char *v = x->values, *next; v != NULL; v = next) {
        next = strchr(v, ',');
        if (next != NULL) {
            *next++ = '\0';
        }
        if (n_values++ == MAX_VALUES || strlen(x->vary) > 150 || *v == '\0') {
            return kg_cmd_bad("--vary", x->vary, "SECTION.KEY=V1,V2,..., at most 16 values");
        }
        add_arm(x, first, x->is_pairs ? "A" : NULL, v, 0);
        if (x->is_pairs) {
            add_arm(x, x->line.rest[1], "B", v, 1);
        }
    }
    if (x->n_arms < 2) {
        return kg_cmd_bad("--vary", x->vary,
                          "SECTION.KEY=V1,V2,... with two values or two configurations");
    }
    return -1;
}

static int parse(struct ab *x, int argc, char **argv)
{
    struct kg_trace_conf unused = {0};
    const struct kg_cmd_flag flags[] = {
        KG_TRACE_FLAG_ROWS(&x->trace, "trace both arms replay"),
        {"--vary", "SECTION.KEY=V1,V2", "one arm for each value", &x->vary, NULL},
        {"--set-b", "SECTION.KEY=V,...", "what arm B sets beside its file; without one, arm A's",
         &x->set_b, NULL},
        {"--repeat", "N", "runs of each arm, seeds --seed + 0 .. N-1 (1)", &x->repeat_text, NULL},
        {"--seed", "N", "of contents, draws and intervals (1)", &x->seed_text, NULL},
        {"--seed-b", "N", "another seed for arm B, to try equal arms", &x->seed_b_text, NULL},
        {"--out", "DIR", "keep rows and summaries of all runs here", &x->dir, NULL},
        {"--summary", "FILE", "the report as one JSON object; --json prints it", &x->summary, NULL},
        {"--html", "FILE", "the report as one page with plots (--out: DIR/ab.html)", &x->html,
         NULL},
        {"--draws", "N", "bootstrap samples (1000)", &x->draws_text, NULL},
        {"--window", "N", "requests drawn together (found from the data)", &x->window_text, NULL},
        {"--least", "PERCENT", "smaller changes are called small (1)", &x->least_text, NULL},
        {"--load", "X", "offered work as a share of arm A's capacity, for both", &x->load, NULL},
        {"--stretch", "X", "stretch arrivals and delays by X", &x->stretch, NULL},
        {"--ttft-slo", "MS", "limit of goodput", &x->ttft_slo, NULL},
        {"--tpot-slo", "MS", "limit of goodput", &x->tpot_slo, NULL},
        {"--replicas", "N", "these as in kedge replay", &x->replicas, NULL},
        {"--slack", "N", "", &x->slack, NULL},
        {"--route", "NAME", "", &x->route, NULL},
        {"--route-b", "NAME", "another route for arm B", &x->route_b, NULL},
        {0},
    };
    int rc = kg_cmd_parse(&x->line, argc, argv,
                          "kedge ab A.ini B.ini --trace FILE | kedge ab A.ini --vary "
                          "SECTION.KEY=V1,V2 --trace FILE",
                          "Replays one trace under two configurations and says what differs beyond "
                          "chance.",
                          flags, 2);
    rc = rc >= 0 ? rc : numbers(x);
    rc = rc >= 0 ? rc : kg_trace_flags_read(&x->trace, &unused); /* before the first replay */
    return rc >= 0 ? rc : make_arms(x);
}

/* --- configurations --- */

/* All arms must be right before the first run, and be of one model. */
static int check_arms(struct ab *x)
{
    char model[512] = "";
    const char *source;

    for (uint32_t i = 0; i < x->n_arms; i++) {
        struct kg_cmd_line line = x->line;
        struct kg_config *config = NULL;
        line.conf = x->arms[i].conf;
        line.quiet = i > 0 && x->arms[i].conf == x->arms[0].conf;
        if (x->arms[i].set[0] != '\0' && line.n_sets < KG_CMD_SETS) {
            line.sets[line.n_sets++] = x->arms[i].set;
        }
        for (int k = 0; x->arms[i].has_more && k < x->n_sets_b && line.n_sets < KG_CMD_SETS; k++) {
            line.sets[line.n_sets++] = x->sets_b[k];
        }
        int rc = kg_cmd_config(&line, &config);
        rc = rc < 0 ? kg_cmd_no_arms(config, "ab") : rc;
        if (rc >= 0) {
            kg_config_destroy(config);
            (void)fprintf(stderr, "kedge: ab: that was arm %s\n", x->arms[i].what);
            return rc;
        }
        const char *path = kg_config_value(config, "model", "path", &source);
        path = path != NULL ? path : "";
        int other = i > 0 && strcmp(path, model) != 0;
        if (other) {
            (void)fprintf(stderr,
                          "kedge: ab: [model] path is \"%s\" in %s and \"%s\" in %s: two models "
                          "cannot be compared request by request\n",
                          model, x->arms[0].what, path, x->arms[i].what);
        }
        (void)snprintf(model, sizeof(model), "%s", path);
        kg_config_destroy(config);
        if (other) {
            return KG_EXIT_USAGE;
        }
    }
    return -1;
}

/* --- running --- */

static void path_of(const struct ab *x, uint32_t arm, uint32_t run, const char *end, char *path,
                    size_t n)
{
    (void)snprintf(path, n, "%s/arm%u-run%u.%s", x->dir, arm + 1, run + 1, end);
}

/* The words of one replay; *n of them, a NULL behind. Texts live in `texts`. */
static void words_of(struct ab *x, uint32_t arm, uint32_t run, char texts[3][600],
                     const char *words[MAX_ARGS])
{
    const struct arm *a = &x->arms[arm];
    uint32_t n = 0;

    words[n++] = "kedge";
    words[n++] = "replay";
    words[n++] = "-c";
    words[n++] = a->conf;
    for (int i = 0; i < x->line.n_sets; i++) {
        words[n++] = "--set";
        words[n++] = x->line.sets[i];
    }
    if (a->set[0] != '\0') {
        words[n++] = "--set";
        words[n++] = a->set;
    }
    for (int i = 0; a->has_more && i < x->n_sets_b; i++) {
        words[n++] = "--set";
        words[n++] = x->sets_b[i];
    }
    n += kg_trace_flags_words(&x->trace, words + n);
    if (x->replicas != NULL) {
        words[n++] = "--replicas";
        words[n++] = x->replicas;
    }
    if (x->slack != NULL) {
        words[n++] = "--slack";
        words[n++] = x->slack;
    }
    const char *route = route_of(x, a);
    if (route != NULL) {
        words[n++] = "--route";
        words[n++] = route;
    }
    int found = x->stretched[0] != '\0';
    if (x->load != NULL || x->stretch != NULL) {
        words[n++] = x->load != NULL && !found ? "--load" : "--stretch";
        words[n++] = found ? x->stretched : x->load != NULL ? x->load : x->stretch;
    }
    path_of(x, arm, run, "rows.jsonl", texts[0], sizeof(texts[0]));
    path_of(x, arm, run, "json", texts[1], sizeof(texts[1]));
    (void)snprintf(texts[2], sizeof(texts[2]), "%llu",
                   (unsigned long long)((a->second ? x->seed_b : x->seed) + run));
    const char *const last[] = {"--out", texts[0], "--summary", texts[1], "--seed", texts[2]};
    for (uint32_t i = 0; i < 6; i++) {
        words[n++] = last[i];
    }
    if (run == 0) {
        words[n++] = "--series";
    }
    words[n] = NULL;
}

static void show_progress(const struct ab *x, uint32_t n_done, uint32_t n, const struct arm *arm)
{
    double spent = (double)(kg_now_ns() - x->began_ns) / 1e9;

    (void)fprintf(stderr, "\rrun %u of %u, arm %.40s, %.0f s spent", n_done + 1, n, arm->what,
                  spent);
    if (n_done > 0) {
        (void)fprintf(stderr, ", about %.0f s left", spent * (n - n_done) / n_done);
    }
    (void)fputs(" \033[K", stderr);
}

/* One replay in a process of its own, so that arms share no memory. */
static int replay(struct ab *x, uint32_t arm, uint32_t run, uint32_t n_done, uint32_t n_runs)
{
    const char *words[MAX_ARGS];
    char texts[3][600], log[600], what[320];
    int tty = isatty(STDERR_FILENO), status = 0;
    pid_t pid;

    words_of(x, arm, run, texts, words);
    path_of(x, arm, run, "log", log, sizeof(log));
    int rc = kg_runs_start(words, log, &pid, &x->err);
    while (rc == KG_OK && !kg_runs_poll(pid, !tty, &status)) {
        const struct timespec half = {.tv_nsec = 200000000};
        show_progress(x, n_done, n_runs, &x->arms[arm]);
        (void)nanosleep(&half, NULL);
    }
    if (tty) {
        (void)fputs("\r\033[K", stderr);
    }
    (void)snprintf(what, sizeof(what), "the replay of arm %s", x->arms[arm].what);
    if (rc == KG_OK && (rc = kg_runs_verdict(status, what, &x->err)) != KG_OK) {
        kg_runs_show_log(log);
    }
    return rc;
}

/* Reads what a run left. The first one also says what --load came to. */
static int collect(struct ab *x, uint32_t arm, uint32_t run)
{
    struct arm *a = &x->arms[arm];
    struct kg_ab_facts facts = {0};
    char path[600];
    uint32_t n = 0;

    path_of(x, arm, run, "json", path, sizeof(path));
    int rc = kg_ab_read_facts(path, &facts, &x->err);
    if (rc == KG_OK) {
        path_of(x, arm, run, "rows.jsonl", path, sizeof(path));
        rc = kg_ab_read_rows(path, x->ttft_slo_ms, x->tpot_slo_ms, &a->runs[run], &n, &x->err);
    }
    if (rc != KG_OK) {
        return rc;
    }
    a->runs[run].duration_s = facts.duration_s;
    if (run == 0) {
        a->facts = facts;
        a->n_rows = n;
    }
    if (x->load != NULL && x->stretched[0] == '\0') {
        (void)snprintf(x->stretched, sizeof(x->stretched), "%.17g", facts.stretch);
    }
    if (n == 0 || n != x->arms[0].n_rows) {
        return kg_fail(&x->err, KG_EINVAL, "run %u of arm %s has %u requests, the first run %u",
                       run + 1, a->what, n, x->arms[0].n_rows);
    }
    return arm > 0 ? kg_ab_comparable(&x->arms[0].facts, &facts, &x->err) : KG_OK;
}

/* All runs. Every other repeat goes backwards, so that a machine that slows down harms both. */
static int run_all(struct ab *x)
{
    uint32_t n_runs = (uint32_t)x->repeat * x->n_arms, n_done = 0;
    int rc = KG_OK;

    x->began_ns = kg_now_ns();
    for (uint32_t run = 0; rc == KG_OK && run < x->repeat; run++) {
        for (uint32_t i = 0; rc == KG_OK && i < x->n_arms; i++) {
            uint32_t arm = run % 2 == 0 ? i : x->n_arms - 1 - i;
            rc = replay(x, arm, run, n_done++, n_runs);
            rc = rc == KG_OK ? collect(x, arm, run) : rc;
        }
    }
    return rc;
}

/* --- the report --- */

/* Whether two equal runs differ in their times: measured ones do, also where waiting is skipped. */
static uint32_t times_vary(const struct kg_ab_facts *f)
{
    return strcmp(f->clock, "virtual") != 0 ||
           (strcmp(f->exec, "sim") != 0 && strcmp(f->exec, "null") != 0);
}

static int compare(struct ab *x, uint32_t i, uint32_t j, uint32_t n, struct kg_ab_report *r)
{
    const struct arm *a = &x->arms[i], *b = &x->arms[j];

    *r = (struct kg_ab_report){
        .trace = x->trace.trace,
        .names = {a->name, b->name},
        .what = {a->what, b->what},
        .at = x->is_pairs && x->vary != NULL ? a->set : NULL,
        .facts = {a->facts, b->facts},
        .conf = {.runs = {a->runs, b->runs},
                 .n_repeats = (uint32_t)x->repeat,
                 .n = a->n_rows,
                 .n_draws = (uint32_t)x->draws,
                 .block = (uint32_t)x->window,
                 .runs_vary = times_vary(&a->facts) || times_vary(&b->facts),
                 .n_comparisons = n,
                 .alpha = 0.01,
                 .least = x->least_percent / 100,
                 .seed = x->seed},
        .seeds = {a->second ? x->seed_b : x->seed, b->second ? x->seed_b : x->seed},
    };
    return kg_ab_compare(&r->conf, &r->result, &x->err);
}

/* The report in its three forms. */
struct forms {
    struct kg_buf text, json, html;
};

/* Fills the forms; *n_broken: comparisons whose outputs differ against the promise. */
static int tell(struct ab *x, struct forms *f, uint32_t *n_broken)
{
    uint32_t n = x->is_pairs ? x->n_arms / 2 : x->n_arms - 1;
    int rc = KG_OK;

    (void)kg_buf_puts(&f->json, "{\"comparisons\":[");
    (void)kg_ab_html_head(x->trace.trace, &f->html);
    for (uint32_t k = 0; rc == KG_OK && k < n; k++) {
        struct kg_ab_report r;
        rc = compare(x, x->is_pairs ? 2 * k : 0, x->is_pairs ? 2 * k + 1 : k + 1, n, &r);
        if (rc == KG_OK) {
            (void)kg_buf_puts(&f->text, k > 0 ? "\n" : "");
            (void)kg_buf_puts(&f->json, k > 0 ? "," : "");
            (void)kg_ab_text(&r, &f->text);
            (void)kg_ab_json(&r, &f->json);
            (void)kg_ab_html(&r, &f->html);
            *n_broken += kg_ab_must_agree(&r) && r.result.n_outputs_differ > 0;
        }
    }
    (void)kg_buf_puts(&f->json, "]}\n");
    (void)kg_ab_html_tail(&f->html);
    if (rc == KG_OK && (f->text.rc != KG_OK || f->json.rc != KG_OK || f->html.rc != KG_OK)) {
        return kg_fail(&x->err, KG_ENOMEM, "no memory for the report");
    }
    return rc;
}

static int report(struct ab *x)
{
    struct forms f;
    uint32_t n_broken = 0;
    char json[600], html[600];

    kg_buf_init(&f.text, 0);
    kg_buf_init(&f.json, 0);
    kg_buf_init(&f.html, 0);
    int rc = tell(x, &f, &n_broken);
    (void)snprintf(json, sizeof(json), "%s/ab.json", x->dir);
    (void)snprintf(html, sizeof(html), "%s/ab.html", x->dir);
    rc = rc == KG_OK ? kg_cmd_save(json, &f.json, &x->err) : rc;
    rc = rc == KG_OK ? kg_cmd_save(html, &f.html, &x->err) : rc;
    rc = rc == KG_OK && x->summary != NULL ? kg_cmd_save(x->summary, &f.json, &x->err) : rc;
    rc = rc == KG_OK && x->html != NULL ? kg_cmd_save(x->html, &f.html, &x->err) : rc;
    if (rc == KG_OK) {
        (void)fputs(kg_buf_cstr(x->line.json ? &f.json : &f.text), stdout);
    }
    kg_buf_fini(&f.text);
    kg_buf_fini(&f.json);
    kg_buf_fini(&f.html);
    if (rc == KG_OK && n_broken > 0) {
        rc =
            kg_fail(&x->err, KG_EINVAL, "outputs differ although both backends promise equal ones");
    }
    return rc;
}

/* --- the folder --- */

static int open_dir(struct ab *x)
{
    if (x->dir != NULL) {
        if (mkdir(x->dir, 0755) != 0 && errno != EEXIST) {
            return kg_fail(&x->err, KG_EIO, "--out %s: %s", x->dir, strerror(errno));
        }
        return KG_OK;
    }
    x->dir = x->temp;
    return kg_runs_folder("ab", x->temp, &x->err);
}

int kg_cmd_ab(int argc, char **argv)
{
    if (kg_cmd_ab_has_log(argc, argv)) {
        return kg_cmd_ab_log(argc, argv);
    }
    struct ab *x = calloc(1, sizeof(*x));

    if (x == NULL) {
        (void)fputs("kedge: out of memory\n", stderr);
        return KG_EXIT_FAILED;
    }
    x->repeat = x->seed = 1;
    x->draws = 1000;
    x->least_percent = 1;
    int status = parse(x, argc, argv);
    if (status < 0) {
        status = check_arms(x);
    }
    if (status < 0) {
        int rc = open_dir(x);
        rc = rc == KG_OK ? run_all(x) : rc;
        rc = rc == KG_OK ? report(x) : rc;
        status = rc == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&x->err);
    }
    kg_runs_drop(x->temp);
    for (uint32_t i = 0; i < x->n_arms; i++) {
        for (uint32_t k = 0; k < x->repeat; k++) {
            kg_ab_run_free(&x->arms[i].runs[k]);
        }
    }
    free(x->values);
    free(x);
    return status;
}
