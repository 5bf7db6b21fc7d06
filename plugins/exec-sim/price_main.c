/*
 * sim-price: prices steps with exec-sim's model, for the gates of scripts/perf and for people.
 *
 *     sim-price TABLE STACK|- MODEL [tp=8 ep=1 pp=1 dcp=1 dp=1 kv=bfloat16 expert=B weight=B] <
 * loads sim-price TABLE left-out PREFIX [log]
 *
 * A load is a line: sequences rows context prompts prompt_rows past samples drafts; context is of
 * one sequence, prompt_rows and past of one prompt. Answer, a line each: microseconds in all, then
 * of each part, then of each class. The names stand in the first line.
 */
#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int left_out(const char *path, const char *prefix, int log)
{
    struct kg_error err = {0};
    struct sim_table table;
    double *e;
    uint32_t n;

    if (sim_table_read(path, &table, &err) != KG_OK) {
        (void)fprintf(stderr, "sim-price: %s\n", err.text);
        return 1;
    }
    int rc = sim_table_left_out(&table, prefix, log, &e, &n);
    if (rc == KG_OK && n > 0) {
        (void)printf("%u %.4f %.4f\n", n, e[n / 2], e[n * 9 / 10]);
    }
    free(rc == KG_OK ? e : NULL);
    sim_table_free(&table);
    return rc != KG_OK || n == 0;
}

static int option(struct sim_layout *l, char *arg)
{
    const struct {
        const char *name;
        uint32_t *n;
        double *v;
    } names[] = {{"tp", &l->tp, NULL},
                 {"ep", &l->ep, NULL},
                 {"pp", &l->pp, NULL},
                 {"dcp", &l->dcp, NULL},
                 {"dp", &l->dp, NULL},
                 {"expert", NULL, &l->expert_bytes},
                 {"weight", NULL, &l->weight_bytes}};
    char *value = strchr(arg, '=');

    if (value == NULL) {
        return KG_EINVAL;
    }
    *value++ = '\0';
    if (strcmp(arg, "kv") == 0) {
        l->kv = value;
        return KG_OK;
    }
    for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(arg, names[i].name) == 0) {
            double v = strtod(value, NULL);
            if (names[i].n != NULL && v >= 1 && v <= 4096) {
                *names[i].n = (uint32_t)v;
            } else if (names[i].v != NULL && v > 0) {
                *names[i].v = v;
            } else {
                return KG_EINVAL;
            }
            return KG_OK;
        }
    }
    return KG_EINVAL;
}

static void answer(const struct sim_model *m, const double *v)
{
    struct sim_parts parts = {0};
    struct sim_load w = {.seqs = v[0],
                         .rows = v[1],
                         .context = v[0] * v[2],
                         .prompts = v[3],
                         .prompt_rows = v[3] * v[4],
                         .samples = v[6],
                         .drafts = v[7]};

    if (w.prompts > 0) {
        w.prompt_us = w.prompts * sim_model_prompt(m, v[5], v[4]);
    }
    (void)printf("%.3f", sim_model_step(m, &w, &parts));
    for (uint32_t p = 0; p < SIM_N_PARTS; p++) {
        double us = 0;
        for (uint32_t c = 0; c < SIM_N_CLASSES; c++) {
            us += parts.us[p][c];
        }
        (void)printf(" %.3f", us);
    }
    for (uint32_t c = 0; c < SIM_N_CLASSES; c++) {
        double us = 0;
        for (uint32_t p = 0; p < SIM_N_PARTS; p++) {
            us += parts.us[p][c];
        }
        (void)printf(" %.3f", us);
    }
    (void)printf("\n");
}

static int usage(void)
{
    (void)fputs("usage: sim-price TABLE STACK|- MODEL [tp=N ...] < loads\n"
                "       sim-price TABLE left-out PREFIX [log]\n",
                stderr);
    return 2;
}

int main(int argc, char **argv)
{
    struct sim_layout layout = {1, 1, 1, 1, 1, "bfloat16", 0, 0};
    struct kg_error err = {0};
    struct sim_model m;
    char line[400];

    if (argc < 4) {
        return usage();
    }
    if (strcmp(argv[2], "left-out") == 0) {
        return left_out(argv[1], argv[3], argc > 4);
    }
    const struct sim_shape *shape = sim_shape_find(argv[3]);
    for (int i = 4; i < argc; i++) {
        if (option(&layout, argv[i]) != KG_OK) {
            return usage();
        }
    }
    if (shape == NULL) {
        (void)fprintf(stderr, "sim-price: no model \"%s\"\n", argv[3]);
        return 2;
    }
    if (sim_model_open(&m, argv[1], argv[2][0] == '-' ? NULL : argv[2], shape, &layout, &err) !=
        KG_OK) {
        (void)fprintf(stderr, "sim-price: %s\n", err.text);
        return 1;
    }
    (void)printf("total");
    for (uint32_t p = 0; p < SIM_N_PARTS; p++) {
        (void)printf(" %s", sim_part_names[p]);
    }
    (void)printf(" measured interpolated extrapolated published assumed\n");
    while (fgets(line, sizeof(line), stdin) != NULL) {
        double v[8] = {0};
        if (sscanf(line, "%lf %lf %lf %lf %lf %lf %lf %lf", &v[0], &v[1], &v[2], &v[3], &v[4],
                   &v[5], &v[6], &v[7]) != 8) {
            (void)fprintf(stderr, "sim-price: no load: %s", line);
            sim_model_close(&m);
            return 1;
        }
        answer(&m, v);
    }
    sim_model_close(&m);
    return 0;
}
