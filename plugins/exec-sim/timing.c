#include "timing.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const cost_names[SIM_COST_PARTS] = {
    "rows", "context of decoding", "context of prompts", "states copied", "units moved", "draft"};

static int open_model(struct sim_timing *t, const struct sim_timing_conf *c, struct kg_error *err)
{
    const struct sim_shape *shape = sim_shape_find(c->model);
    const struct sim_layout *l = &c->layout;

    if (shape == NULL) {
        return kg_fail(err, KG_ECONFIG, "[exec-sim] model: no shape \"%s\" is known", c->model);
    }
    t->model = malloc(sizeof(*t->model));
    if (t->model == NULL) {
        return kg_fail(err, KG_ENOMEM, "exec-sim: no memory for a model");
    }
    int rc = sim_model_open(t->model, c->tables, c->stack, shape, l, err);
    if (rc == KG_OK && c->system[0] != '\0' && strcmp(c->system, t->model->table.system) != 0) {
        rc = kg_fail(err, KG_ECONFIG, "[exec-sim] system: %s, but the table %s is of %s", c->system,
                     c->tables, t->model->table.system);
        sim_model_close(t->model);
    }
    if (rc != KG_OK) {
        free(t->model);
        t->model = NULL;
        return rc;
    }
    (void)snprintf(t->name, sizeof(t->name), "%s on %s, %s tp%u ep%u pp%u dcp%u dp%u, %s cache",
                   t->model->stack.name, t->model->table.system, shape->name, l->tp, l->ep, l->pp,
                   l->dcp, l->dp, l->kv);
    return KG_OK;
}

int sim_timing_open(struct sim_timing *t, const struct sim_timing_conf *c, struct kg_error *err)
{
    memset(t, 0, sizeof(*t));
    if ((c->cost[0] != '\0') == (c->tables[0] != '\0')) {
        return kg_fail(err, KG_ECONFIG,
                       "[exec-sim] cost: name the file with the step times, or one with kernel "
                       "times under tables; %s",
                       c->cost[0] != '\0' ? "not both" : "there is neither");
    }
    if (c->tables[0] != '\0') {
        return open_model(t, c, err);
    }
    if (sim_surface_is(c->cost)) {
        (void)snprintf(t->name, sizeof(t->name), "surface of another backend");
        return sim_surface_read(c->cost, &t->surface, err);
    }
    int rc = sim_cost_read(c->cost, &t->cost, err);
    if (rc == KG_OK && c->max_rows > t->cost.rows[t->cost.n - 1]) {
        return kg_fail(err, KG_ECONFIG,
                       "%s: the table ends at %u rows, [engine] step_tokens is %u; nothing is "
                       "guessed beyond it",
                       c->cost, t->cost.rows[t->cost.n - 1], c->max_rows);
    }
    (void)snprintf(t->name, sizeof(t->name), "%s", t->cost.name);
    return rc;
}

void sim_timing_close(struct sim_timing *t)
{
    if (t->model != NULL) {
        sim_model_close(t->model);
        free(t->model);
    }
    memset(t, 0, sizeof(*t));
}

static uint64_t from_surface(const struct sim_timing *t, const struct sim_load *w, double *parts)
{
    double ns = sim_surface_ns(&t->surface, w);

    if (parts != NULL) {
        const struct sim_load drafts = {.context = w->context, .drafts = w->drafts};
        double decoding = t->surface.token_ns * w->context;
        double prompts = t->surface.prompt_token_ns * w->pairs;
        double drafting = sim_surface_ns(&t->surface, &drafts);
        parts[1] += decoding;
        parts[2] += prompts;
        parts[5] += drafting;
        parts[0] += ns - decoding - prompts - drafting;
    }
    return sim_whole_ns(ns);
}

static uint64_t from_table(const struct sim_timing *t, const struct sim_load *w, double *parts)
{
    if (t->surface.n_seqs > 0) {
        return from_surface(t, w, parts);
    }
    double bytes = w->moved_bytes / 1048576;
    struct sim_work work = {.rows = (uint64_t)(w->rows + w->prompt_rows),
                            .decode_context = w->context,
                            .prefill_context = w->pairs,
                            .moved_mib = bytes,
                            .copies = (uint32_t)w->copies,
                            .drafted = w->drafts > 0};
    const struct sim_cost *c = &t->cost;

    if (work.rows == 0) { /* the drafter alone */
        return (uint64_t)(work.drafted ? c->draft_ns + 0.5 : 0);
    }
    if (parts != NULL) {
        const double v[SIM_COST_PARTS] = {0,
                                          c->decode_context_ns * work.decode_context,
                                          c->prefill_context_ns * work.prefill_context,
                                          c->state_copy_ns * work.copies,
                                          c->move_mib_ns * bytes,
                                          work.drafted ? c->draft_ns : 0};
        double rest = (double)sim_cost_step(c, &work);
        for (uint32_t i = 1; i < SIM_COST_PARTS; i++) {
            parts[i] += v[i];
            rest -= v[i];
        }
        parts[0] += rest;
    }
    return sim_cost_step(c, &work);
}

uint64_t sim_timing_guess(const struct sim_timing *t, const struct sim_load *w)
{
    if (t->model == NULL) {
        return from_table(t, w, NULL);
    }
    return sim_whole_ns(1e3 * sim_model_step(t->model, w, NULL));
}

uint64_t sim_timing_step(struct sim_timing *t, const struct sim_load *w)
{
    t->n_steps++;
    t->n_prompt_steps += w->prompt_rows > 0;
    t->rows += w->rows + w->prompt_rows;
    if (t->model == NULL) {
        return from_table(t, w, t->cost_ns);
    }
    return sim_whole_ns(1e3 * sim_model_step(t->model, w, &t->parts));
}

double sim_timing_prompt(const struct sim_timing *t, double past, double n)
{
    return t->model != NULL ? sim_model_prompt(t->model, past, n) : 0;
}

static void line(FILE *f, const char *name, const double *us, double all)
{
    double sum = 0;

    for (uint32_t c = 0; c < SIM_N_CLASSES; c++) {
        sum += us[c];
    }
    if (sum <= 0) {
        return;
    }
    (void)fprintf(f, "%-20s %12.3f %6.1f", name, sum / 1e6, 100 * sum / all);
    for (uint32_t c = 0; c < SIM_N_CLASSES; c++) {
        (void)fprintf(f, " %6.1f", 100 * us[c] / sum);
    }
    (void)fprintf(f, "\n");
}

static void explain_model(const struct sim_timing *t, FILE *f)
{
    double by_class[SIM_N_CLASSES] = {0}, all = 0;

    for (uint32_t p = 0; p < SIM_N_PARTS; p++) {
        for (uint32_t c = 0; c < SIM_N_CLASSES; c++) {
            by_class[c] += t->parts.us[p][c];
            all += t->parts.us[p][c];
        }
    }
    (void)fprintf(f, "%-20s %12s %6s %6s %6s %6s %6s %6s\n", "part", "seconds", "%", "meas.",
                  "inter.", "extra.", "publ.", "ass.");
    for (uint32_t p = 0; p < SIM_N_PARTS; p++) {
        line(f, sim_part_names[p], t->parts.us[p], all);
    }
    line(f, "all", by_class, all);
}

static void explain_cost(const struct sim_timing *t, FILE *f)
{
    double all = 0;

    for (uint32_t i = 0; i < SIM_COST_PARTS; i++) {
        all += t->cost_ns[i];
    }
    (void)fprintf(f, "%-20s %12s %6s\n", "part", "seconds", "%");
    for (uint32_t i = 0; i < SIM_COST_PARTS; i++) {
        if (t->cost_ns[i] > 0) {
            (void)fprintf(f, "%-20s %12.3f %6.1f\n", cost_names[i], t->cost_ns[i] / 1e9,
                          100 * t->cost_ns[i] / all);
        }
    }
    (void)fprintf(f, "all of it as the file says: nothing was measured by itself\n");
}

int sim_timing_explain(const struct sim_timing *t, const char *path, struct kg_error *err)
{
    FILE *f = fopen(path, "w");

    if (f == NULL) {
        return kg_fail(err, KG_EIO, "%s: %s", path, strerror(errno));
    }
    (void)fprintf(f, "where a step goes: %s\n%llu steps, %llu of them with prompts, %.0f rows\n",
                  t->name, (unsigned long long)t->n_steps, (unsigned long long)t->n_prompt_steps,
                  t->rows);
    if (t->model != NULL) {
        explain_model(t, f);
    } else {
        explain_cost(t, f);
    }
    if (t->host_ns > 0) {
        (void)fprintf(f, "copies to and from the host, before steps: %.3f s\n",
                      (double)t->host_ns / 1e9);
    }
    if (t->jitter_ns < 0 || t->jitter_ns > 0) {
        (void)fprintf(f, "noise of steps, assumed, beside the parts: %+.3f s\n",
                      t->jitter_ns / 1e9);
    }
    int bad = ferror(f);
    return fclose(f) != 0 || bad ? kg_fail(err, KG_EIO, "%s: cannot be written", path) : KG_OK;
}
