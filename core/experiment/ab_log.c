#include "experiment/ab_log.h"

#include "experiment/ab.h"
#include "experiment/ab_row.h"
#include "experiment/lines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The arm of a name, made when it is new; NULL: too many. */
static struct kg_ab_log_arm *arm_of(struct kg_ab_log *log, const char *name, double share)
{
    for (uint32_t i = 0; i < log->n; i++) {
        if (strcmp(log->arms[i].name, name) == 0) {
            log->shares_changed |= log->arms[i].share != share;
            log->arms[i].share = share;
            return &log->arms[i];
        }
    }
    if (log->n == KG_AB_LOG_ARMS || strlen(name) >= sizeof(log->arms[0].name)) {
        return NULL;
    }
    struct kg_ab_log_arm *a = &log->arms[log->n++];
    (void)snprintf(a->name, sizeof(a->name), "%s", name);
    a->share = share;
    return a;
}

static int grow(struct kg_ab_log_arm *a)
{
    uint32_t cap = a->cap == 0 ? 1024 : 2 * a->cap;
    struct kg_ab_row *rows = realloc(a->run.rows, (size_t)cap * sizeof(*rows));

    a->run.rows = rows != NULL ? rows : a->run.rows;
    uint64_t *keys = rows != NULL ? realloc(a->keys, (size_t)cap * sizeof(*keys)) : NULL;
    a->keys = keys != NULL ? keys : a->keys;
    if (keys == NULL || cap > UINT32_MAX / 4) {
        return KG_ENOMEM;
    }
    a->cap = cap;
    return KG_OK;
}

/* Whether an object is a row: times and counts that are there are numbers a server could write. */
static int is_row(const json_t *o)
{
    static const char *const keys[] = {
        "arrival_ms",  "prompt_tokens", "output_tokens", "hit_page_tokens", "reused_tokens",
        "lost_tokens", "ttft_ms",       "tpot_ms",       "e2e_ms",          "queue_ms",
        "preemptions", "drafted",       "verified",      "accepted",        "share"};
    int good = json_is_string(json_object_get(o, "outcome"));

    for (size_t i = 0; good && i < sizeof(keys) / sizeof(keys[0]); i++) {
        const json_t *v = json_object_get(o, keys[i]);
        double x = json_number_value(v);
        good = v == NULL || json_is_null(v) ||
               (json_is_number(v) && (x == 0 || (x >= 1e-9 && x <= 1e15)));
    }
    return good;
}

static int add_row(struct kg_ab_log *log, const json_t *o, double ttft_slo_ms, double tpot_slo_ms,
                   struct kg_error *err)
{
    const char *name = json_string_value(json_object_get(o, "arm"));
    const char *key = json_string_value(json_object_get(o, "key"));

    if (name == NULL || key == NULL) {
        log->n_armless++;
        return KG_OK;
    }
    if (json_is_true(json_object_get(o, "forced"))) {
        log->n_forced++;
        return KG_OK;
    }
    struct kg_ab_log_arm *a = arm_of(log, name, json_number_value(json_object_get(o, "share")));
    if (a == NULL) {
        return kg_fail(err, KG_EINVAL, "more than %u arms, or a name over 31 bytes",
                       KG_AB_LOG_ARMS);
    }
    if (a->n == a->cap && grow(a) != KG_OK) {
        return kg_fail(err, KG_ENOMEM, "no memory for its rows");
    }
    kg_ab_row_of(o, ttft_slo_ms, tpot_slo_ms, &a->run.rows[a->n]);
    a->keys[a->n++] = strtoull(key, NULL, 16);
    return KG_OK;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct kg_ab_log_arm *)a)->name, ((const struct kg_ab_log_arm *)b)->name);
}

/* Keys as numbers: their places among the different ones, which are left in all[n_clients]. */
static int number_clients(struct kg_ab_log_arm *a, uint64_t *all)
{
    a->clients = calloc((size_t)a->n + 1, sizeof(*a->clients));
    if (a->clients == NULL) {
        return KG_ENOMEM;
    }
    memcpy(all, a->keys, a->n * sizeof(*all));
    qsort(all, a->n, sizeof(*all), by_key);
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->n_clients == 0 || all[i] != all[a->n_clients - 1]) {
            all[a->n_clients++] = all[i];
        }
    }
    for (uint32_t i = 0; i < a->n; i++) {
        const uint64_t *at = bsearch(&a->keys[i], all, a->n_clients, sizeof(*all), by_key);
        a->clients[i] = (uint32_t)(at - all);
    }
    return KG_OK;
}

/* Clients of all arms; arrivals counted from the first one. */
static int settle(struct kg_ab_log *log)
{
    double first = INFINITY, last = -INFINITY;
    size_t n_all = 0, n = 0;

    qsort(log->arms, log->n, sizeof(log->arms[0]), by_name);
    for (uint32_t i = 0; i < log->n; i++) {
        n_all += log->arms[i].n;
    }
    uint64_t *all = calloc(n_all + 1, sizeof(*all));
    for (uint32_t i = 0; all != NULL && i < log->n; i++) {
        struct kg_ab_log_arm *a = &log->arms[i];
        if (number_clients(a, all + n) != KG_OK) {
            free(all);
            return KG_ENOMEM;
        }
        n += a->n_clients;
        for (uint32_t k = 0; k < a->n; k++) {
            const struct kg_ab_row *row = &a->run.rows[k];
            double end = row->arrival_ms + (row->v[KG_AB_E2E] > 0 ? row->v[KG_AB_E2E] : 0);
            first = row->arrival_ms < first ? row->arrival_ms : first;
            last = end > last ? end : last;
        }
    }
    if (all == NULL) {
        return KG_ENOMEM;
    }
    qsort(all, n, sizeof(*all), by_key);
    for (size_t i = 1; i < n; i++) {
        log->n_in_both += all[i] == all[i - 1] && (i == 1 || all[i - 2] != all[i]);
    }
    free(all);
    log->span_s = last > first ? (last - first) / 1000 : 0;
    for (uint32_t i = 0; i < log->n; i++) {
        for (uint32_t k = 0; k < log->arms[i].n; k++) {
            log->arms[i].run.rows[k].arrival_ms -= first;
        }
    }
    return KG_OK;
}

int kg_ab_log_read(const char *path, double ttft_slo_ms, double tpot_slo_ms, struct kg_ab_log *log,
                   struct kg_error *err)
{
    struct kg_lines *lines = NULL;
    struct kg_error why;
    const char *text;
    size_t len;

    memset(log, 0, sizeof(*log));
    int rc = kg_lines_open(path, &lines, err);
    while (rc >= 0 && (rc = kg_lines_next(lines, &text, &len, err)) == 1) {
        json_t *o = json_loadb(text, len, 0, NULL);
        if (!is_row(o)) {
            log->n_odd++;
        } else if (add_row(log, o, ttft_slo_ms, tpot_slo_ms, &why) != KG_OK) {
            rc = kg_fail(err, why.rc, "%s: %s", path, why.text);
        }
        json_decref(o);
    }
    kg_lines_close(lines);
    if (rc < 0) {
        return rc;
    }
    if (log->n == 0) {
        return kg_fail(err, KG_EINVAL,
                       "%s: no request with an arm in it (%llu without, %llu forced, %llu other "
                       "lines): it takes the request log of a server with [arm NAME] sections",
                       path, (unsigned long long)log->n_armless, (unsigned long long)log->n_forced,
                       (unsigned long long)log->n_odd);
    }
    return settle(log) == KG_OK ? KG_OK : kg_fail(err, KG_ENOMEM, "%s: no memory", path);
}

void kg_ab_log_free(struct kg_ab_log *log)
{
    for (uint32_t i = 0; i < log->n; i++) {
        kg_ab_run_free(&log->arms[i].run);
        free(log->arms[i].keys);
        free(log->arms[i].clients);
    }
    log->n = 0;
}
