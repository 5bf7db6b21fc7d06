/* kedge ab --log: the arms of a server, compared by its own request log. See core/docs/arms.md. */
#include "cmd.h"
#include "experiment/ab.h"
#include "runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct from_log {
    struct kg_cmd_line line;
    const char *path, *arms, *summary, *html, *ttft_slo, *tpot_slo;
    const char *draws_text, *least_text, *seed_text;
    uint64_t draws, seed;
    double ttft_slo_ms, tpot_slo_ms, least_percent;
    struct kg_ab_log log;
    uint32_t picked[KG_AB_LOG_ARMS], n_picked; /* of log.arms */
    struct kg_error err;
};

int kg_cmd_ab_has_log(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--log") == 0 || strncmp(argv[i], "--log=", 6) == 0) {
            return 1;
        }
    }
    return 0;
}

static int parse(struct from_log *x, int argc, char **argv)
{
    const struct kg_cmd_flag flags[] = {
        {"--log", "FILE", "request log of a server with arms, plain or .gz", &x->path, NULL},
        {"--arms", "A,B", "these, all against the first (all, by name)", &x->arms, NULL},
        {"--summary", "FILE", "the report as one JSON object; --json prints it", &x->summary, NULL},
        {"--html", "FILE", "the report as one page with plots", &x->html, NULL},
        {"--draws", "N", "bootstrap samples (1000)", &x->draws_text, NULL},
        {"--seed", "N", "of the samples (1)", &x->seed_text, NULL},
        {"--least", "PERCENT", "smaller changes are called small (1)", &x->least_text, NULL},
        {"--ttft-slo", "MS", "limit of what is good", &x->ttft_slo, NULL},
        {"--tpot-slo", "MS", "limit of what is good", &x->tpot_slo, NULL},
        {0},
    };
    int rc = kg_cmd_parse(&x->line, argc, argv, "kedge ab --log FILE [--arms A,B]",
                          "Says from a server's request log what differs between its arms beyond "
                          "chance.",
                          flags, 0);

    rc = rc >= 0 ? rc : kg_cmd_whole("--draws", x->draws_text, 100, 100000, &x->draws);
    rc = rc >= 0 ? rc : kg_cmd_whole("--seed", x->seed_text, 0, UINT64_MAX / 2, &x->seed);
    rc = rc >= 0 ? rc : kg_cmd_real("--least", x->least_text, 0, 1e9, &x->least_percent);
    rc = rc >= 0 ? rc : kg_cmd_real("--ttft-slo", x->ttft_slo, 0, 1e9, &x->ttft_slo_ms);
    rc = rc >= 0 ? rc : kg_cmd_real("--tpot-slo", x->tpot_slo, 0, 1e9, &x->tpot_slo_ms);
    if (rc < 0 && x->path == NULL) { /* the word was another flag's value */
        (void)fputs("kedge: ab --log needs the request log of a server\n", stderr);
        return KG_EXIT_USAGE;
    }
    if (rc < 0 && x->line.conf != NULL) {
        (void)fputs("kedge: ab --log takes no configuration: the log says what was served\n",
                    stderr);
        return KG_EXIT_USAGE;
    }
    return rc;
}

static uint32_t find(const struct kg_ab_log *log, const char *name, size_t n)
{
    uint32_t i = 0;

    while (i < log->n &&
           (strlen(log->arms[i].name) != n || memcmp(log->arms[i].name, name, n) != 0)) {
        i++;
    }
    return i;
}

/* Names that are there, for a message. */
static int unknown_arm(struct from_log *x, const char *name, size_t n)
{
    char list[KG_AB_LOG_ARMS * 34] = "";
    size_t at = 0;

    for (uint32_t i = 0; i < x->log.n; i++) {
        at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", i > 0 ? ", " : "",
                               x->log.arms[i].name);
    }
    (void)fprintf(stderr, "kedge: --arms %.*s: no such arm in the log; there are %s\n", (int)n,
                  name, list);
    return KG_EXIT_USAGE;
}

/* -1, or the exit status. */
static int pick(struct from_log *x)
{
    for (const char *p = x->arms; p != NULL && *p != '\0';) {
        size_t n = strcspn(p, ",");
        uint32_t i = find(&x->log, p, n);
        if (i == x->log.n) {
            return unknown_arm(x, p, n);
        }
        for (uint32_t k = 0; k < x->n_picked; k++) {
            if (x->picked[k] == i) {
                return kg_cmd_bad("--arms", x->arms, "different arms");
            }
        }
        x->picked[x->n_picked++] = i;
        p += n + (p[n] == ',');
    }
    for (uint32_t i = 0; x->arms == NULL && i < x->log.n; i++) {
        x->picked[x->n_picked++] = i;
    }
    if (x->n_picked < 2) {
        (void)fprintf(stderr, "kedge: ab --log: %u arm in it, a comparison needs two\n",
                      x->n_picked);
        return KG_EXIT_USAGE;
    }
    return -1;
}

static int compare(struct from_log *x, uint32_t k, struct kg_ab_report *r)
{
    const struct kg_ab_log_arm *a = &x->log.arms[x->picked[0]], *b = &x->log.arms[x->picked[k]];

    *r = (struct kg_ab_report){
        .trace = x->path,
        .names = {a->name, b->name},
        .what = {"", ""},
        .log = &x->log,
        .conf = {.runs = {&a->run, &b->run},
                 .n_repeats = 1,
                 .n_draws = (uint32_t)x->draws,
                 .n_comparisons = x->n_picked - 1,
                 .alpha = 0.01,
                 .least = x->least_percent / 100,
                 .seed = x->seed,
                 .clients = {a->clients, b->clients},
                 .n_of = {a->n, b->n},
                 .n_clients = {a->n_clients, b->n_clients}},
    };
    r->facts[0].duration_s = r->facts[1].duration_s = x->log.span_s;
    return kg_ab_compare(&r->conf, &r->result, &x->err);
}

static int tell(struct from_log *x, struct kg_buf *text, struct kg_buf *json, struct kg_buf *html)
{
    int rc = KG_OK;

    (void)kg_buf_puts(json, "{\"comparisons\":[");
    (void)kg_ab_html_head(x->path, html);
    for (uint32_t k = 1; rc == KG_OK && k < x->n_picked; k++) {
        struct kg_ab_report r;
        rc = compare(x, k, &r);
        if (rc == KG_OK) {
            (void)kg_buf_puts(text, k > 1 ? "\n" : "");
            (void)kg_buf_puts(json, k > 1 ? "," : "");
            (void)kg_ab_text(&r, text);
            (void)kg_ab_json(&r, json);
            (void)kg_ab_html(&r, html);
        }
    }
    (void)kg_buf_puts(json, "]}\n");
    (void)kg_ab_html_tail(html);
    if (rc == KG_OK && (text->rc != KG_OK || json->rc != KG_OK || html->rc != KG_OK)) {
        return kg_fail(&x->err, KG_ENOMEM, "no memory for the report");
    }
    return rc;
}

static int report(struct from_log *x)
{
    struct kg_buf text, json, html;

    kg_buf_init(&text, 0);
    kg_buf_init(&json, 0);
    kg_buf_init(&html, 0);
    int rc = tell(x, &text, &json, &html);
    rc = rc == KG_OK && x->summary != NULL ? kg_cmd_save(x->summary, &json, &x->err) : rc;
    rc = rc == KG_OK && x->html != NULL ? kg_cmd_save(x->html, &html, &x->err) : rc;
    if (rc == KG_OK) {
        (void)fputs(kg_buf_cstr(x->line.json ? &json : &text), stdout);
    }
    kg_buf_fini(&text);
    kg_buf_fini(&json);
    kg_buf_fini(&html);
    return rc;
}

int kg_cmd_ab_log(int argc, char **argv)
{
    struct from_log *x = calloc(1, sizeof(*x));

    if (x == NULL) {
        (void)fputs("kedge: out of memory\n", stderr);
        return KG_EXIT_FAILED;
    }
    x->draws = 1000;
    x->seed = 1;
    x->least_percent = 1;
    int status = parse(x, argc, argv);
    if (status < 0) {
        int rc = kg_ab_log_read(x->path, x->ttft_slo_ms, x->tpot_slo_ms, &x->log, &x->err);
        status = rc == KG_OK ? pick(x) : kg_cmd_fail(&x->err);
    }
    if (status < 0) {
        status = report(x) == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&x->err);
    }
    kg_ab_log_free(&x->log);
    free(x);
    return status;
}
