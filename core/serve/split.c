#include "serve/split.h"

#include "serve/job.h"

#include <stdlib.h>
#include <string.h>

#define ARM_HEADER "x-kedge-arm"

/* Counters of an arm, in the order of the rows. */
enum arm_cell {
    CELL_OK, /* by enum kg_outcome_word */
    CELL_REFUSED,
    CELL_CANCELLED,
    CELL_ERROR,
    CELL_PROMPT,
    CELL_OUTPUT,
    CELL_REUSED,
    CELL_LOST,
    CELL_DRAFTED,
    CELL_VERIFIED,
    CELL_ACCEPTED,
    CELL_PREEMPTED,
    N_CELLS,
};

enum arm_histo { HISTO_TTFT, HISTO_TPOT, HISTO_E2E, N_HISTOS };

struct arm {
    char header[64]; /* "x-kedge-arm: NAME\r\n" */
    struct kg_cell cells[N_CELLS];
    struct kg_histo histos[N_HISTOS];
};

struct kg_split {
    const struct kg_arms_conf *conf;
    enum kg_arms_field field;
    const char *header;                   /* of field = header:NAME */
    struct kg_serve_arm now[KG_MAX_ARMS]; /* shares as they are */
    struct arm arms[KG_MAX_ARMS];
    uint32_t n;
    struct kg_cell unkeyed;
};

static const struct {
    const char *name, *doc, *outcome;
} cell_rows[N_CELLS] = {
    [CELL_OK] = {"kedge:arm_requests_total", "Sequences of an arm that ended, by outcome.", "ok"},
    [CELL_REFUSED] = {"kedge:arm_requests_total", "Sequences of an arm that ended, by outcome.",
                      "refused"},
    [CELL_CANCELLED] = {"kedge:arm_requests_total", "Sequences of an arm that ended, by outcome.",
                        "cancelled"},
    [CELL_ERROR] = {"kedge:arm_requests_total", "Sequences of an arm that ended, by outcome.",
                    "error"},
    [CELL_PROMPT] = {"kedge:arm_prompt_tokens_total", "Prompt tokens of them.", NULL},
    [CELL_OUTPUT] = {"kedge:arm_output_tokens_total", "Output tokens of them.", NULL},
    [CELL_REUSED] = {"kedge:arm_reused_tokens_total", "Prompt tokens taken from the prefix cache.",
                     NULL},
    [CELL_LOST] = {"kedge:arm_lost_tokens_total",
                   "Prompt tokens whose pages were cached, lost for want of a state.", NULL},
    [CELL_DRAFTED] = {"kedge:arm_drafted_tokens_total", "Tokens drafted.", NULL},
    [CELL_VERIFIED] = {"kedge:arm_verified_tokens_total", "Drafted tokens verified.", NULL},
    [CELL_ACCEPTED] = {"kedge:arm_accepted_tokens_total", "Drafted tokens accepted.", NULL},
    [CELL_PREEMPTED] = {"kedge:arm_preemptions_total", "Preemptions.", NULL},
};

static const double time_s[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                1,     2.5,    5,     10,   20,    40,   80,  160,  640};
static const double token_s[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                 0.05,   0.075,   0.1,    0.15,  0.25,   0.5,   1,    2.5};

#define BOUNDS(x) x, sizeof(x) / sizeof((x)[0])

static const struct {
    const char *name, *key, *doc;
    const double *bounds;
    size_t n;
} histo_rows[N_HISTOS] = {
    [HISTO_TTFT] = {"kedge:arm_time_to_first_token_seconds", "ttft_ms",
                    "From arrival in the engine to the first token, by arm.", BOUNDS(time_s)},
    [HISTO_TPOT] = {"kedge:arm_time_per_output_token_seconds", "tpot_ms",
                    "Mean time per output token after the first of a sequence, by arm.",
                    BOUNDS(token_s)},
    [HISTO_E2E] = {"kedge:arm_e2e_seconds", "e2e_ms",
                   "From arrival in the engine to the end, by arm.", BOUNDS(time_s)},
};

/* --- life --- */

static int add_metrics(struct kg_serve *s, struct arm *a, const char *labels, struct kg_error *err)
{
    char with[500];
    int rc = KG_OK;

    for (uint32_t i = 0; rc == KG_OK && i < N_CELLS; i++) {
        const struct kg_metric_row one[2] = {{cell_rows[i].name, KG_COUNTER, cell_rows[i].doc, 0},
                                             {0}};
        const char *outcome = cell_rows[i].outcome;
        (void)snprintf(with, sizeof(with), "%s%s%s%s", labels, outcome != NULL ? ",outcome=\"" : "",
                       outcome != NULL ? outcome : "", outcome != NULL ? "\"" : "");
        rc = kg_metrics_add(s->own_metrics, one, &a->cells[i], with, err);
    }
    for (uint32_t i = 0; rc == KG_OK && i < N_HISTOS; i++) {
        if (kg_histo_init(&a->histos[i], histo_rows[i].bounds, (uint32_t)histo_rows[i].n) != KG_OK)
            return kg_fail(err, KG_ENOMEM, "out of memory");
        rc = kg_metrics_add_histo(s->own_metrics, histo_rows[i].name, histo_rows[i].doc,
                                  &a->histos[i], labels, err);
    }
    return rc;
}

int kg_split_open(struct kg_serve *s, struct kg_error *err)
{
    static const struct kg_metric_row unkeyed[2] = {
        {"kedge:arms_unkeyed_total", KG_COUNTER,
         "Requests without the field that [arms] splits by: they were split by their id.", 0},
        {0}};
    const struct kg_arms_conf *c = s->parts.arms;
    char labels[400];

    if (c == NULL || c->n == 0)
        return KG_OK;
    struct kg_split *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    s->split = p;
    p->conf = c;
    memcpy(p->now, c->arms, sizeof(p->now));
    int rc = kg_arms_field_parse(c->field, &p->field, &p->header);
    if (rc != KG_OK)
        return kg_fail(err, KG_ECONFIG, "[arms] field = %s", c->field);
    for (uint32_t i = 0; rc == KG_OK && i < c->n; i++) {
        (void)snprintf(p->arms[i].header, sizeof(p->arms[i].header), ARM_HEADER ": %s\r\n",
                       c->arms[i].name);
        (void)snprintf(labels, sizeof(labels), "%s,arm=\"%s\"", s->model_label, c->arms[i].name);
        p->n = i + 1;
        rc = add_metrics(s, &p->arms[i], labels, err);
    }
    if (rc == KG_OK)
        rc = kg_metrics_add(s->own_metrics, unkeyed, &p->unkeyed, s->model_label, err);
    return rc;
}

void kg_split_close(struct kg_serve *s)
{
    for (uint32_t i = 0; s->split != NULL && i < s->split->n; i++) {
        for (uint32_t k = 0; k < N_HISTOS; k++)
            kg_histo_fini(&s->split->arms[i].histos[k]);
    }
    free(s->split);
    s->split = NULL;
}

/* --- a request --- */

/* The bytes of a request that choose its arm; none when it does not have the field. */
static struct kg_span field_of(const struct kg_job *job)
{
    const struct kg_split *p = job->serve->split;
    const char *id = kg_http_req_id(job->req);

    switch (p != NULL ? p->field : KG_ARMS_USER) {
    case KG_ARMS_TENANT:
        return (struct kg_span){job->tenant, strlen(job->tenant)};
    case KG_ARMS_REQUEST:
        return (struct kg_span){id, strlen(id)};
    case KG_ARMS_HEADER:
        return kg_http_header_get(kg_http_req_head(job->req), p->header);
    default:
        return (struct kg_span){job->task.call.user, strlen(job->task.call.user)};
    }
}

/* An arm asked for by header: for whoever sits at this machine, to try one out. */
static int forced_arm(struct kg_job *job, struct kg_span name, struct kg_api_error *err)
{
    const struct kg_split *p = job->serve->split;

    if (!kg_admin_is_local(job->req))
        return kg_api_fail(err, 403, "forbidden", ARM_HEADER,
                           ARM_HEADER ": only a client on this machine may choose an arm");
    uint32_t i = p != NULL ? kg_arms_find(p->now, p->n, name.p, name.n) : 0;
    if (p == NULL || i == p->n)
        return kg_api_refuse(err, ARM_HEADER, ARM_HEADER ": there is no arm %.*s",
                             (int)(name.n < 40 ? name.n : 40), name.p);
    job->arm = i;
    job->forced = true;
    return KG_OK;
}

int kg_split_choose(struct kg_job *job, struct kg_api_error *err)
{
    struct kg_split *p = job->serve->split;
    struct kg_span field = field_of(job);
    struct kg_span wanted = kg_http_header_get(kg_http_req_head(job->req), ARM_HEADER);
    uint64_t seed = p != NULL ? p->conf->seed : 1;

    if (field.p == NULL || field.n == 0) {
        field = (struct kg_span){kg_http_req_id(job->req), strlen(kg_http_req_id(job->req))};
        if (p != NULL)
            kg_add(&p->unkeyed, 1);
    }
    job->key = kg_arms_key(field.p, field.n, seed);
    if (wanted.p != NULL) {
        int rc = forced_arm(job, wanted, err);
        if (rc != KG_OK)
            return rc;
    } else if (p != NULL) {
        job->arm = kg_arms_pick(p->now, p->n, job->key);
    }
    job->has_arm = p != NULL;
    job->share = p != NULL ? p->now[job->arm].share : 0;
    if (p != NULL)
        (void)snprintf(job->class_name, sizeof(job->class_name), "%s", p->now[job->arm].class_name);
    return KG_OK;
}

const char *kg_split_name(const struct kg_job *job)
{
    return job->has_arm ? job->serve->split->now[job->arm].name : "";
}

const char *kg_split_arm(const struct kg_serve *s, uint32_t arm)
{
    return s->split != NULL && arm < s->split->n ? s->split->now[arm].name : "";
}

const char *kg_split_header(const struct kg_job *job)
{
    return job->has_arm ? job->serve->split->arms[job->arm].header : NULL;
}

uint32_t kg_seq_outcome(const struct kg_event *done)
{
    switch (done->finish) {
    case KG_FINISH_CANCELLED:
        return KG_SEQ_CANCELLED;
    case KG_FINISH_ERROR:
        return KG_SEQ_ERROR;
    case KG_FINISH_TIMEOUT:
    case KG_FINISH_REFUSED:
        return KG_SEQ_REFUSED;
    default:
        return KG_SEQ_OK;
    }
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

void kg_split_done(const struct kg_job *job, const struct kg_event *e)
{
    uint32_t outcome = kg_seq_outcome(e);

    if (!job->has_arm)
        return;
    struct arm *a = &job->serve->split->arms[job->arm];
    kg_add(&a->cells[CELL_OK + outcome], 1);
    kg_add(&a->cells[CELL_PREEMPTED], e->n_preempted);
    kg_add(&a->cells[CELL_DRAFTED], e->n_drafted);
    kg_add(&a->cells[CELL_VERIFIED], e->n_verified);
    kg_add(&a->cells[CELL_ACCEPTED], e->n_accepted);
    if (outcome != KG_SEQ_OK)
        return;
    kg_add(&a->cells[CELL_PROMPT], e->n_prompt);
    kg_add(&a->cells[CELL_OUTPUT], e->n_output);
    kg_add(&a->cells[CELL_REUSED], e->n_cached);
    kg_add(&a->cells[CELL_LOST], e->n_lost);
    kg_histo_observe(&a->histos[HISTO_E2E], seconds(e->arrival_ns, e->done_ns));
    if (e->first_ns == 0)
        return;
    kg_histo_observe(&a->histos[HISTO_TTFT], seconds(e->arrival_ns, e->first_ns));
    if (e->n_output > 1)
        kg_histo_observe(&a->histos[HISTO_TPOT],
                         seconds(e->first_ns, e->done_ns) / (e->n_output - 1));
}

void kg_split_refused(const struct kg_job *job)
{
    if (job->has_arm)
        kg_add(&job->serve->split->arms[job->arm].cells[CELL_REFUSED], 1);
}

void kg_split_write(const struct kg_serve *s, struct kg_buf *b)
{
    static const char name[] = "kedge:arm_share_ratio";
    const struct kg_split *p = s->split;
    char labels[400];

    if (p == NULL)
        return;
    (void)kg_metrics_family(b, name, KG_GAUGE, "Share of the keys an arm gets, 0 to 1.");
    for (uint32_t i = 0; i < p->n; i++) {
        (void)snprintf(labels, sizeof(labels), "%s,arm=\"%s\"", s->model_label, p->now[i].name);
        (void)kg_metrics_sample(b, name, labels, p->now[i].share / 100);
    }
}

/* --- /admin/arms --- */

static void put_str(struct kg_buf *b, const char *key, const char *text)
{
    (void)kg_buf_printf(b, "\"%s\":", key);
    (void)kg_buf_json_str(b, text, strlen(text));
}

static void put_figures(struct kg_buf *b, const struct arm *a)
{
    static const struct {
        const char *key;
        enum arm_cell cell;
    } counts[] = {{"ok", CELL_OK},
                  {"refused", CELL_REFUSED},
                  {"cancelled", CELL_CANCELLED},
                  {"error", CELL_ERROR},
                  {"prompt_tokens", CELL_PROMPT},
                  {"output_tokens", CELL_OUTPUT},
                  {"reused_tokens", CELL_REUSED},
                  {"lost_tokens", CELL_LOST},
                  {"drafted", CELL_DRAFTED},
                  {"verified", CELL_VERIFIED},
                  {"accepted", CELL_ACCEPTED},
                  {"preemptions", CELL_PREEMPTED}};

    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        (void)kg_buf_printf(b, "%s\"%s\":%llu", i > 0 ? "," : "", counts[i].key,
                            (unsigned long long)kg_get(&a->cells[counts[i].cell]));
    for (uint32_t i = 0; i < N_HISTOS; i++) {
        const struct kg_histo *h = &a->histos[i];
        double n = 0;
        for (uint32_t k = 0; k <= h->n; k++)
            n += (double)kg_get(&h->cells[k]);
        (void)kg_buf_printf(b, ",\"%s\":", histo_rows[i].key);
        if (n > 0)
            (void)kg_buf_printf(b, "%.3f",
                                1000 * atomic_load(&((struct kg_histo *)(uintptr_t)h)->sum) / n);
        else
            (void)kg_buf_puts(b, "null");
    }
}

void kg_split_put(const struct kg_serve *s, struct kg_buf *b)
{
    const struct kg_split *p = s->split;

    (void)kg_buf_putc(b, '[');
    for (uint32_t i = 0; p != NULL && i < p->n; i++) {
        (void)kg_buf_puts(b, i > 0 ? ",{" : "{");
        put_str(b, "name", p->now[i].name);
        (void)kg_buf_puts(b, ",\"share\":");
        (void)kg_buf_json_f64(b, p->now[i].share);
        (void)kg_buf_putc(b, ',');
        put_str(b, "overrides", p->now[i].overrides);
        (void)kg_buf_puts(b, ",\"figures\":{");
        put_figures(b, &p->arms[i]);
        (void)kg_buf_puts(b, "}}");
    }
    (void)kg_buf_putc(b, ']');
}

static void reply_arms(struct kg_serve *s, struct kg_http_req *req)
{
    const struct kg_split *p = s->split;
    struct kg_api_error err = {0};
    struct kg_buf b;

    kg_buf_init(&b, 1 << 20);
    (void)kg_buf_putc(&b, '{');
    put_str(&b, "field", p->conf->field);
    (void)kg_buf_printf(&b, ",\"seed\":%llu,\"share_cache\":%s,\"arms\":",
                        (unsigned long long)p->conf->seed, p->conf->share_cache ? "true" : "false");
    kg_split_put(s, &b);
    (void)kg_buf_puts(&b, "}\n");
    if (b.rc == KG_OK) {
        kg_http_reply(req, 200, "application/json", NULL, b.data, b.len);
    } else {
        (void)kg_call_no_memory(&err);
        kg_http_reply_error(req, &err);
    }
    kg_buf_fini(&b);
}

static bool has_arms(const struct kg_serve *s, struct kg_http_req *req)
{
    struct kg_api_error err = {0};

    if (s->split == NULL) {
        (void)kg_api_fail(&err, 404, "no_arms", "", "this server has no [arm NAME] sections");
        kg_http_reply_error(req, &err);
    }
    return s->split != NULL;
}

void kg_split_list(struct kg_serve *s, struct kg_http_req *req)
{
    if (has_arms(s, req))
        reply_arms(s, req);
}

/* {"shares": {NAME: percent, ..}}; arms that are not named keep theirs. */
static int read_shares(const struct kg_split *p, const json_t *root, struct kg_serve_arm *arms,
                       struct kg_api_error *err)
{
    const json_t *shares = NULL, *value;
    const char *key;
    char where[80], what[80];
    struct kg_error why;

    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        if (strcmp(key, "shares") != 0)
            return kg_api_refuse(err, key, "%.60s: only shares can be changed", key);
    }
    int rc = kg_json_object(root, "", "shares", &shares, err);
    if (rc != KG_OK)
        return rc;
    if (shares == NULL || json_object_size(shares) == 0)
        return kg_api_refuse(err, "shares", "expected {\"shares\": {NAME: percentage, ...}}");
    json_object_foreach((json_t *)(uintptr_t)shares, key, value)
    {
        uint32_t i = kg_arms_find(arms, p->n, key, strlen(key));
        (void)snprintf(where, sizeof(where), "shares.%.60s", key);
        if (i == p->n)
            return kg_api_refuse(err, where, "%s: there is no such arm", where);
        double v = json_is_number(value) ? json_number_value(value) : -1;
        if (!(v >= 0 && v <= 100))
            return kg_api_refuse(err, where, "%s: expected a number from 0 to 100, found %s", where,
                                 kg_json_describe(value, what, sizeof(what)));
        arms[i].share = v;
    }
    if (kg_arms_check_shares(arms, p->n, &why) != KG_OK)
        return kg_api_refuse(err, "shares", "%s; those that are not named stay", why.text);
    return KG_OK;
}

static void take_shares(struct kg_serve *s, const struct kg_serve_arm *arms)
{
    struct kg_split *p = s->split;
    char text[KG_MAX_ARMS * 48] = "";
    size_t n = 0;

    for (uint32_t i = 0; i < p->n; i++) {
        p->now[i].share = arms[i].share;
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s:%g", i > 0 ? "," : "", arms[i].name,
                              arms[i].share);
    }
    kg_log_line(s->parts.log, KG_LOG_INFO, "serve", "shares of arms changed", "shares=%s", text);
}

void kg_split_change(struct kg_serve *s, struct kg_http_req *req)
{
    struct kg_serve_arm arms[KG_MAX_ARMS];
    struct kg_api_error err = {0};
    json_t *root = NULL;
    struct kg_buf body;

    if (!has_arms(s, req))
        return;
    memcpy(arms, s->split->now, sizeof(arms));
    kg_http_take_body(req, &body);
    int rc = kg_json_load_once(kg_buf_cstr(&body), body.len, s->parts.conf->max_json_depth, 1024,
                               &root, &err);
    if (rc == KG_OK)
        rc = read_shares(s->split, root, arms, &err);
    if (rc == KG_OK) {
        take_shares(s, arms);
        reply_arms(s, req);
    } else {
        kg_http_reply_error(req, &err);
    }
    json_decref(root);
    kg_http_free_body(s->http, &body);
}
