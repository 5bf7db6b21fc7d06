#include "stack.h"
#include "lines.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const sim_part_names[SIM_N_PARTS] = {
    [SIM_KDA_KERNEL] = "kda_kernel",
    [SIM_KDA_GEMM] = "kda_gemm",
    [SIM_ATTN] = "attention",
    [SIM_ATTN_GEMM] = "attention_gemm",
    [SIM_EXPERTS] = "experts",
    [SIM_MOE_GEMM] = "moe_gemm",
    [SIM_ENDS] = "ends",
    [SIM_REDUCE] = "collectives",
    [SIM_ELEMENTWISE] = "elementwise",
    [SIM_PIPE] = "pipeline",
    [SIM_DRAFT] = "draft",
    [SIM_COPY] = "copies",
    [SIM_HOST] = "host",
};

struct reader {
    struct sim_lines lines;
    struct sim_stack *s;
};

#define BAD(r, fmt, ...) SIM_BAD(&(r)->lines, fmt, __VA_ARGS__)

void sim_stack_plain(struct sim_stack *stack, int hopper)
{
    *stack = (struct sim_stack){
        .name = "kernels", .class = SIM_MEASURED, .small = 1, .decode_scale = 1, .prompt_scale = 1};
    (void)snprintf(stack->moe_fw, sizeof(stack->moe_fw), "%s", hopper ? "vllm" : "sglang");
    (void)snprintf(stack->moe_dtype, sizeof(stack->moe_dtype), "%s",
                   hopper ? "w4a16_mxfp4" : "w4a8_mxfp4_mxfp8");
    (void)snprintf(stack->moe_load, sizeof(stack->moe_load), "power_law_1.01");
    (void)snprintf(stack->kda_fw, sizeof(stack->kda_fw), "sglang");
    (void)snprintf(stack->allreduce, sizeof(stack->allreduce), "sglang");
    for (uint32_t i = 0; i < SIM_N_PARTS; i++) {
        stack->scale[i] = 1;
    }
}

static int word(struct reader *r, const char *key, const char *s, char *out, size_t n)
{
    if (s == NULL || s[0] == '\0' || strlen(s) >= n) {
        return BAD(r, "%s: wanted a word of at most %zu characters", key, n - 1);
    }
    (void)snprintf(out, n, "%s", s);
    return KG_OK;
}

static int part(struct reader *r, const char *key, const char *s, uint32_t *out)
{
    for (uint32_t i = 0; i < SIM_N_PARTS; i++) {
        if (s != NULL && strcmp(s, sim_part_names[i]) == 0) {
            *out = i;
            return KG_OK;
        }
    }
    return BAD(r, "%s: no part \"%.40s\"", key, s != NULL ? s : "");
}

static int read_fuse(struct reader *r, char *rest)
{
    struct sim_stack *s = r->s;

    if (s->n_fusions == SIM_FUSIONS) {
        return BAD(r, "fuse: at most %d", SIM_FUSIONS);
    }
    struct sim_fusion *f = &s->fusions[s->n_fusions++];
    int rc = word(r, "fuse", strsep(&rest, " "), f->name, sizeof(f->name));
    if (rc == KG_OK) {
        rc = part(r, "fuse", strsep(&rest, " "), &f->part);
    }
    if (rc == KG_OK) {
        rc = sim_lines_number(&r->lines, "fuse: us", strsep(&rest, " "), 1e6, &f->us);
    }
    return rc == KG_OK ? sim_lines_number(&r->lines, "fuse: rows", rest, 1e9, &f->rows) : rc;
}

static int read_graph(struct reader *r, char *rest)
{
    struct sim_stack *s = r->s;
    const char *w;

    s->n_graphs = 0;
    while ((w = strsep(&rest, " ")) != NULL) {
        double v;
        int rc = sim_lines_number(&r->lines, "graph", w, 1e6, &v);
        if (rc != KG_OK) {
            return rc;
        }
        if (s->n_graphs == SIM_GRAPHS || v < 1 ||
            (s->n_graphs > 0 && v <= s->graphs[s->n_graphs - 1])) {
            return BAD(r, "graph: %g: sizes rise, at most %d of them", v, SIM_GRAPHS);
        }
        s->graphs[s->n_graphs++] = v;
    }
    return KG_OK;
}

static int read_class(struct reader *r, const char *s)
{
    static const char *const names[SIM_N_CLASSES] = {"measured", "interpolated", "extrapolated",
                                                     "published", "assumed"};

    for (uint32_t i = 0; i < SIM_N_CLASSES; i++) {
        if (s != NULL && strcmp(s, names[i]) == 0) {
            r->s->class = i;
            return KG_OK;
        }
    }
    return BAD(r, "class: no \"%.40s\"", s != NULL ? s : "");
}

static int read_three(struct reader *r, const char *key, char *rest)
{
    struct sim_stack *s = r->s;
    const char *a = strsep(&rest, " "), *b = strsep(&rest, " ");
    int rc;

    if (strcmp(key, "moe") == 0) {
        rc = word(r, key, a, s->moe_fw, sizeof(s->moe_fw));
        rc = rc == KG_OK ? word(r, key, b, s->moe_dtype, sizeof(s->moe_dtype)) : rc;
        return rc == KG_OK ? word(r, key, rest, s->moe_load, sizeof(s->moe_load)) : rc;
    }
    rc = sim_lines_number(&r->lines, key, a, 100, &s->small);
    rc = rc == KG_OK ? sim_lines_number(&r->lines, key, b, 1e9, &s->small_from) : rc;
    rc = rc == KG_OK ? sim_lines_number(&r->lines, key, rest, 1e9, &s->small_to) : rc;
    if (rc == KG_OK && (s->small_from < 1 || s->small_to <= s->small_from)) {
        rc = BAD(r, "moe_small: from %g to %g rows", s->small_from, s->small_to);
    }
    return rc;
}

static int read_pair(void *ctx, const char *key, char *rest)
{
    struct reader *r = ctx;
    struct sim_stack *s = r->s;
    const struct {
        const char *key;
        double *v, hi;
    } keys[] = {{"host_us", &s->host_us, 1e9},           {"host_seq_us", &s->host_seq_us, 1e9},
                {"prompt_us", &s->prompt_us, 1e9},       {"overlap", &s->overlap, 1},
                {"decode_scale", &s->decode_scale, 100}, {"prompt_scale", &s->prompt_scale, 100},
                {"client_us", &s->client_us, 1e9},       {"client_steps", &s->client_steps, 1e6}};
    uint32_t p = 0;

    if (strcmp(key, "name") == 0) {
        return word(r, key, rest, s->name, sizeof(s->name));
    }
    if (strcmp(key, "class") == 0) {
        return read_class(r, rest);
    }
    if (strcmp(key, "kda") == 0) {
        return word(r, key, rest, s->kda_fw, sizeof(s->kda_fw));
    }
    if (strcmp(key, "allreduce") == 0) {
        return word(r, key, rest, s->allreduce, sizeof(s->allreduce));
    }
    if (strcmp(key, "moe") == 0 || strcmp(key, "moe_small") == 0) {
        return read_three(r, key, rest);
    }
    if (strcmp(key, "fuse") == 0) {
        return read_fuse(r, rest);
    }
    if (strcmp(key, "graph") == 0) {
        return read_graph(r, rest);
    }
    if (strcmp(key, "scale") == 0) {
        int rc = part(r, key, strsep(&rest, " "), &p);
        return rc == KG_OK ? sim_lines_number(&r->lines, key, rest, 100, &s->scale[p]) : rc;
    }
    for (uint32_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (strcmp(key, keys[i].key) == 0) {
            return sim_lines_number(&r->lines, key, rest, keys[i].hi, keys[i].v);
        }
    }
    return BAD(r, "%.40s: no such key", key);
}

int sim_stack_read(const char *path, struct sim_stack *stack, struct kg_error *err)
{
    struct reader r = {.s = stack};

    return sim_lines_read(&r.lines, path, "kedge-stack 1", read_pair, &r, err);
}
