#include "advise_run.h"

#include "base/clock.h"
#include "cmd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_JOBS 16u
#define MAX_OTHERS 56 /* command, -c, words of the trace, --seed .. --summary, NULL */
_Static_assert(KG_ADVISE_WORDS >=
                   2 * KG_CMD_SETS + 2 * KG_ADVISE_DIMS * KG_ADVISE_SETS + MAX_OTHERS,
               "a line with every assignment fits");

uint32_t kg_advise_words(const struct kg_advise_runner *r, const struct kg_advise_job *job,
                         const char *out, const char *summary, char seed[24],
                         const char *words[KG_ADVISE_WORDS])
{
    const char *sets[KG_ADVISE_DIMS * KG_ADVISE_SETS];
    uint32_t n = 0,
             n_sets = kg_advise_sets(r->space, &job->point, sets, KG_ADVISE_DIMS * KG_ADVISE_SETS);

    words[n++] = "kedge";
    words[n++] = "replay";
    if (r->conf != NULL) {
        words[n++] = "-c";
        words[n++] = r->conf;
    }
    for (int i = 0; i < r->n_sets; i++) {
        words[n++] = "--set";
        words[n++] = r->sets[i];
    }
    for (uint32_t i = 0; i < n_sets; i++) {
        words[n++] = "--set";
        words[n++] = sets[i];
    }
    for (uint32_t i = 0; i < r->n_words; i++) {
        words[n++] = r->words[i];
    }
    (void)snprintf(seed, 24, "%llu", (unsigned long long)r->seed);
    const char *clock = job->is_first && r->load != NULL ? "--load" : "--stretch";
    const char *rate = job->is_first && r->load != NULL ? r->load : r->stretch;
    const struct {
        const char *flag, *value;
    } more[] = {{"--seed", seed},
                {"--limit", r->limit},
                {clock, rate[0] != '\0' ? rate : NULL},
                {"--out", out},
                {"--summary", summary}};
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        if (more[i].value != NULL) {
            words[n++] = more[i].flag;
            words[n++] = more[i].value;
        }
    }
    words[n] = NULL;
    return n;
}

/* --- running --- */

/* A job under way. */
struct slot {
    struct kg_advise_job *job; /* NULL: free */
    pid_t pid;
    char rows[100], summary[100], log[100];
};

static double work_of(const struct kg_advise_runner *r, const struct kg_advise_job *job)
{
    return (double)r->n * (job->is_first && r->load != NULL ? 2 : 1);
}

static void show(const struct kg_advise_runner *r, uint32_t n_running)
{
    double spent = (double)(kg_now_ns() - r->began_ns) / 1e9;

    (void)fprintf(stderr, "\r%s: %u replays done, %u running, %.0f s spent", r->phase, r->n_done,
                  n_running, spent);
    if (r->done > 0) {
        (void)fprintf(stderr, ", about %.0f s left", spent * r->left / r->done);
    }
    (void)fputs(" \033[K", stderr);
}

static int start(struct kg_advise_runner *r, struct slot *s, uint32_t place,
                 struct kg_advise_job *job)
{
    const char *words[KG_ADVISE_WORDS];
    char seed[24];

    (void)snprintf(s->rows, sizeof(s->rows), "%s/%u.rows", r->folder, place);
    (void)snprintf(s->summary, sizeof(s->summary), "%s/%u.json", r->folder, place);
    (void)snprintf(s->log, sizeof(s->log), "%s/%u.log", r->folder, place);
    (void)kg_advise_words(r, job, s->rows, s->summary, seed, words);
    int rc = kg_runs_start(words, s->log, &s->pid, r->err);
    s->job = rc == KG_OK ? job : NULL;
    return rc;
}

/* Reads what a replay left. */
static int finish(struct kg_advise_runner *r, struct slot *s, int status)
{
    struct kg_advise_job *job = s->job;
    struct kg_error err = {0};
    int rc = kg_runs_verdict(status, "the replay", &err);

    s->job = NULL;
    r->n_done++;
    r->done += work_of(r, job);
    r->left = fmax(0, r->left - work_of(r, job));
    if (rc != KG_OK) {
        kg_runs_why(s->log, job->why, sizeof(job->why));
        if (job->why[0] == '\0') {
            (void)snprintf(job->why, sizeof(job->why), "%.150s", err.text);
        }
        return KG_OK;
    }
    rc = kg_ab_read_facts(s->summary, &job->facts, r->err);
    rc = rc == KG_OK
             ? kg_ab_read_rows(s->rows, r->ttft_slo_ms, r->tpot_slo_ms, &job->run, &job->n, r->err)
             : rc;
    if (rc == KG_OK && job->n != r->n) {
        rc = kg_fail(r->err, KG_EINVAL, "%u requests were read, %u replayed", r->n, job->n);
    }
    if (rc == KG_OK && kg_advise_part(&job->run, job->n, &r->n_pick) != KG_OK) {
        rc = kg_fail(r->err, KG_ENOMEM, "no memory for %u rows", job->n);
    }
    job->run.duration_s = job->facts.duration_s;
    (void)unlink(s->rows);
    (void)unlink(s->summary);
    return rc;
}

/* Looks at all slots once; *n_running falls with each that ended. */
static int poll_all(struct kg_advise_runner *r, struct slot *slots, uint32_t *n_running)
{
    int rc = KG_OK, status;

    for (uint32_t i = 0; i < r->n_jobs; i++) {
        if (slots[i].job != NULL && kg_runs_poll(slots[i].pid, 0, &status)) {
            int one = finish(r, &slots[i], status);
            rc = rc == KG_OK ? one : rc;
            (*n_running)--;
        }
    }
    return rc;
}

int kg_advise_run(struct kg_advise_runner *r, struct kg_advise_job *jobs, uint32_t n)
{
    struct slot slots[MAX_JOBS] = {{0}};
    const struct timespec tick = {.tv_nsec = 10000000};
    uint32_t next = 0, n_running = 0, n_ticks = 0;
    int rc = KG_OK, tty = isatty(STDERR_FILENO);

    r->n_jobs = r->n_jobs < MAX_JOBS ? r->n_jobs : MAX_JOBS;
    while (n_running > 0 || (rc == KG_OK && next < n)) {
        for (uint32_t i = 0; rc == KG_OK && next < n && i < r->n_jobs; i++) {
            if (slots[i].job == NULL) {
                rc = start(r, &slots[i], i, &jobs[next++]);
                n_running += rc == KG_OK;
            }
        }
        int one = poll_all(r, slots, &n_running);
        rc = rc == KG_OK ? one : rc;
        rc = rc == KG_OK && kg_runs_told() ? kg_fail(r->err, KG_ECANCEL, "interrupted") : rc;
        if (tty && n_ticks++ % 20 == 0) {
            show(r, n_running);
        }
        (void)nanosleep(&tick, NULL);
    }
    if (tty) {
        (void)fputs("\r\033[K", stderr);
    }
    return rc;
}

/* --- tries --- */

/* A row from a job, and the gain over the base. */
static int record(struct kg_advise_runner *r, const struct kg_advise_job *job,
                  struct kg_advise_try *t)
{
    struct kg_advise_row *row = &r->rows[r->n_rows++];
    struct kg_buf label;

    memset(row, 0, sizeof(*row));
    kg_buf_init(&label, 0);
    (void)kg_advise_label(r->space, &t->point, &label);
    (void)snprintf(row->label, sizeof(row->label), "%s", kg_buf_cstr(&label));
    kg_buf_fini(&label);
    row->n_sets = kg_advise_sets(r->space, &t->point, row->sets, KG_ADVISE_DIMS * KG_ADVISE_SETS);
    (void)snprintf(row->why, sizeof(row->why), "%s", job->why);
    row->gain = t->gain = NAN;
    t->data = row;
    if (job->run.rows == NULL) {
        return KG_OK;
    }
    const struct kg_advise_judge judge = {.base = &r->base,
                                          .other = &job->run,
                                          .n_all = r->n,
                                          .n = r->n_pick,
                                          .objective = r->objective};
    row->gain = t->gain = kg_advise_gain_of(&judge);
    return kg_advise_figures_of(&job->run, 0, r->n_pick, &job->facts, &row->figures);
}

int kg_advise_run_tries(void *runner, struct kg_advise_try *tries, uint32_t n, uint32_t n_left)
{
    struct kg_advise_runner *r = runner;
    r->left = (double)(n + n_left + KG_ADVISE_FINALISTS + 1) * r->n;
    if (r->n_rows == 0) { /* the configuration as it is was replayed before */
        const struct kg_advise_job job = {.run = r->base, .n = r->n, .facts = r->facts};
        int rc = record(r, &job, &tries[0]);
        tries[0].gain = 0;
        return rc != KG_OK || n == 1 ? rc : kg_advise_run_tries(r, tries + 1, n - 1, n_left);
    }
    struct kg_advise_job *jobs = calloc(n, sizeof(*jobs));
    if (jobs == NULL) {
        return kg_fail(r->err, KG_ENOMEM, "no memory for %u candidates", n);
    }
    for (uint32_t i = 0; i < n; i++) {
        jobs[i].point = tries[i].point;
    }
    int rc = kg_advise_run(r, jobs, n);
    for (uint32_t i = 0; i < n; i++) {
        rc = rc == KG_OK ? record(r, &jobs[i], &tries[i]) : rc;
        kg_ab_run_free(&jobs[i].run);
    }
    free(jobs);
    return rc;
}
