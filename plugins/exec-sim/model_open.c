/* Finds the curves a model on its ranks needs. */
#include "model.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double sim_gemm_sol(const struct sim_model *m, double n, double k, double rows, double bytes)
{
    const struct sim_table *t = &m->table;
    double flops = bytes >= 2                        ? t->bf16_flops
                   : bytes >= 1 || t->fp4_flops == 0 ? t->fp8_flops
                                                     : t->fp4_flops;
    double mem = (n * k * bytes + (rows * k + rows * n) * 2) / t->mem_bw;
    double ops = 2 * n * k * rows / flops;

    return (mem > ops ? mem : ops) * 1e6;
}

/* The three measured shapes nearest in log space. */
static void find_near(const struct sim_model *m, struct sim_gemm *g)
{
    uint32_t n;
    const struct sim_curve *c = sim_table_prefix(&m->table, "gemm/", &n);
    double best[3] = {INFINITY, INFINITY, INFINITY};

    for (uint32_t i = 0; i < n; i++) {
        double gn = 0, gk = 0;
        (void)sscanf(c[i].key, "gemm/%lf/%lf", &gn, &gk);
        if (!(gn > 0 && gk > 0)) {
            continue;
        }
        double d = hypot(log(gn / g->n), log(gk / g->k));
        for (uint32_t j = 0; j < 3; j++) {
            if (d < best[j]) {
                for (uint32_t l = 2; l > j; l--) {
                    best[l] = best[l - 1];
                    g->near[l] = g->near[l - 1];
                    g->near_n[l] = g->near_n[l - 1];
                    g->near_k[l] = g->near_k[l - 1];
                }
                best[j] = d;
                g->near[j] = &c[i];
                g->near_n[j] = gn;
                g->near_k[j] = gk;
                break;
            }
        }
    }
    for (uint32_t j = 0; j < 3; j++) {
        g->weight[j] = g->near[j] != NULL ? 1 / (0.05 + best[j]) : 0;
    }
}

static void add_gemm(struct sim_model *m, struct sim_gemm *list, uint32_t *n_list, uint32_t part,
                     uint32_t rows, double count, double n, double k)
{
    struct sim_gemm *g = &list[*n_list];
    char key[64];

    if (count <= 0 || n <= 0 || k <= 0 || *n_list == SIM_GEMMS) {
        return;
    }
    *g =
        (struct sim_gemm){.n = floor(n), .k = floor(k), .count = count, .part = part, .rows = rows};
    (void)snprintf(key, sizeof(key), "gemm/%.0f/%.0f", g->n, g->k);
    g->exact = sim_table_find(&m->table, key);
    if (g->exact == NULL) {
        find_near(m, g);
    }
    (*n_list)++;
}

static void add_gemms(struct sim_model *m)
{
    const struct sim_shape *s = m->shape;
    double tp = m->layout.tp, h = s->hidden, p = s->linear_heads * s->linear_dim, k;
    struct sim_gemm *l = m->gemms;
    uint32_t *n = &m->n_gemms;

    k = s->linear_layers;
    add_gemm(m, l, n, SIM_KDA_GEMM, SIM_ROWS_ALL, k, s->linear_split / tp, h);
    add_gemm(m, l, n, SIM_KDA_GEMM, SIM_ROWS_ALL, k, s->linear_whole, h);
    add_gemm(m, l, n, SIM_KDA_GEMM, SIM_ROWS_ALL, k, s->linear_low / tp, 128);
    add_gemm(m, l, n, SIM_KDA_GEMM, SIM_ROWS_ALL, k, h, p / tp);
    k = s->mla_layers;
    add_gemm(m, l, n, SIM_ATTN_GEMM, SIM_ROWS_ALL, k, s->q_lora + 576, h);
    add_gemm(m, l, n, SIM_ATTN_GEMM, SIM_ROWS_ALL, k, s->mla_heads * 192 / tp,
             s->q_lora > 0 ? s->q_lora : h);
    add_gemm(m, l, n, SIM_ATTN_GEMM, SIM_ROWS_PROMPT, k, 256 * m->heads, 512);
    add_gemm(m, l, n, SIM_ATTN_GEMM, SIM_ROWS_ALL, k * s->gate, s->mla_heads * 128 / tp, h);
    add_gemm(m, l, n, SIM_ATTN_GEMM, SIM_ROWS_ALL, k, h, s->mla_heads * 128 / tp);
    k = s->gqa_layers;
    double kv = s->gqa_kv > tp ? s->gqa_kv / tp : 1;
    add_gemm(m, l, n, SIM_ATTN_GEMM, SIM_ROWS_ALL, k,
             s->gqa_dim * ((1 + s->gate) * s->gqa_heads / tp + 2 * kv), h);
    add_gemm(m, l, n, SIM_ATTN_GEMM, SIM_ROWS_ALL, k, h, s->gqa_heads * s->gqa_dim / tp);
    k = s->moe_layers;
    add_gemm(m, l, n, SIM_MOE_GEMM, SIM_ROWS_ALL, k, s->n_experts, h);
    add_gemm(m, l, n, SIM_MOE_GEMM, SIM_ROWS_ALL, s->latent > 0 ? k : 0, s->latent, h);
    add_gemm(m, l, n, SIM_MOE_GEMM, SIM_ROWS_ALL, s->latent > 0 ? k : 0, h, s->latent);
    add_gemm(m, l, n, SIM_MOE_GEMM, SIM_ROWS_ALL, k, 2 * s->shared_inter / tp, h);
    add_gemm(m, l, n, SIM_MOE_GEMM, SIM_ROWS_ALL, k, h, s->shared_inter / tp);
    k = s->dense_layers;
    add_gemm(m, l, n, SIM_ENDS, SIM_ROWS_ALL, k, 2 * s->dense_inter / tp, h);
    add_gemm(m, l, n, SIM_ENDS, SIM_ROWS_ALL, k, h, s->dense_inter / tp);
    add_gemm(m, l, n, SIM_ENDS, SIM_ROWS_SAMPLED, 1, s->vocab / tp, h);
    /* the published K3 drafter: five dense layers, 64 heads of 64 on 16, 14336 wide */
    l = m->draft;
    n = &m->n_draft;
    add_gemm(m, l, n, SIM_DRAFT, SIM_ROWS_ALL, 5, (4096 + 2048) / tp, h);
    add_gemm(m, l, n, SIM_DRAFT, SIM_ROWS_ALL, 5, h, 4096 / tp);
    add_gemm(m, l, n, SIM_DRAFT, SIM_ROWS_ALL, 5, 28672 / tp, h);
    add_gemm(m, l, n, SIM_DRAFT, SIM_ROWS_ALL, 5, h, 14336 / tp);
    add_gemm(m, l, n, SIM_DRAFT, SIM_ROWS_ALL, 1, s->vocab / tp, h);
}

/* Families of "<prefix><number>/..." by that number, each over the next number of the key. */
static void find_grid(const struct sim_table *t, const char *prefix, struct sim_grid *grid)
{
    uint32_t n, len = (uint32_t)strlen(prefix);
    const struct sim_curve *c = sim_table_prefix(t, prefix, &n);

    grid->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        double at = strtod(c[i].key + len, NULL);
        uint32_t k = 0;
        while (k < grid->n && grid->at[k] < at) {
            k++;
        }
        if ((k < grid->n && grid->at[k] == at) || grid->n == SIM_FAMILY) {
            continue;
        }
        memmove(&grid->at[k + 1], &grid->at[k], (grid->n - k) * sizeof(double));
        grid->at[k] = at;
        grid->n++;
    }
    for (uint32_t k = 0; k < grid->n; k++) {
        char p[120];
        (void)snprintf(p, sizeof(p), "%s%.0f/", prefix, grid->at[k]);
        sim_family_find(t, p, "", &grid->family[k]);
    }
}

/* Kernels of the recurrence: the release's own, or the other engine's. */
static void find_linear(struct sim_model *m)
{
    const struct sim_table *t = &m->table;
    const char *fw = m->stack.kda_fw;
    int vllm = strcmp(fw, "vllm") == 0;
    char p[120];

    (void)snprintf(p, sizeof(p), "kda/%s/generation/%s/", fw,
                   vllm ? "fused_kda_decode" : "kda_fused_decode");
    sim_family_find(t, p, "/1", &m->decode);
    /* conv + recurrence, or one fused kernel: whatever of the release was measured */
    static const char *const verify[] = {"causal_conv1d_update", "fused_kda_decode_mtp_dspark",
                                         "fused_recurrent_kda",
                                         "fused_sigmoid_gating_delta_rule_update"};
    uint32_t k = 0;
    for (uint32_t i = 0; i < sizeof(verify) / sizeof(verify[0]) && k < 2; i++) {
        (void)snprintf(p, sizeof(p), "kda/%s/verify/%s/", fw, verify[i]);
        find_grid(t, p, &m->verify[k]);
        k += m->verify[k].n > 0;
    }
    /* vLLM's rows of the convolution hold a host launch: SGLang's stand for both */
    find_grid(t, "kda/sglang/context/causal_conv1d_fn_qkv3/", &m->context[0]);
    (void)snprintf(p, sizeof(p), "kda/%s/context/%s/", fw, vllm ? "flashkda_fwd" : "chunk_kda");
    find_grid(t, p, &m->context[1]);
}

/* Distinct experts of one layer that n tokens meet, evenly loaded. */
static double distinct(double experts, double top_k, double tokens)
{
    return experts * (1 - pow(1 - top_k / experts, tokens));
}

double sim_expert_bytes(const struct sim_shape *s, double weight, double tokens)
{
    double width = s->latent > 0 ? s->latent : s->hidden;

    return distinct(s->n_experts, s->top_k, tokens) * 3 * width * s->moe_inter * weight;
}

static const struct sim_curve *experts_curve(const struct sim_model *m, uint32_t tp, uint32_t ep)
{
    char key[160];

    (void)snprintf(key, sizeof(key), "moe/%s/%s/%s/%u/%u", m->stack.moe_fw, m->stack.moe_dtype,
                   m->stack.moe_load, tp, ep);
    return sim_table_find(&m->table, key);
}

double sim_expert_sol(const struct sim_model *m, const struct sim_shape *s, double weight,
                      double ranks, double tokens)
{
    const struct sim_table *t = &m->table;
    double width = s->latent > 0 ? s->latent : s->hidden;
    double flops = weight >= 2 ? t->bf16_flops : t->fp8_flops;
    double mem = sim_expert_bytes(s, weight, tokens) / ranks / t->mem_bw;
    double ops = 6 * tokens * s->top_k * width * s->moe_inter / ranks / flops;

    return (mem > ops ? mem : ops) * 1e6;
}

/* The curve of the layout, or of the nearest number of ranks there is. */
static int find_experts(struct sim_model *m, struct kg_error *err)
{
    const struct sim_shape *s = m->shape, *k3 = sim_shape_find("kimi_k3");
    uint32_t n = m->layout.ep > 1 ? m->layout.ep : m->layout.tp, have = 0;

    if (s->moe_layers == 0) {
        return KG_OK;
    }
    for (uint32_t step = 0; step < 8 && m->experts == NULL; step++) {
        for (int up = 0; up < 2 && m->experts == NULL; up++) {
            have = up ? n << step : n >> step;
            if (have > 0) {
                m->experts =
                    m->layout.ep > 1 ? experts_curve(m, 1, have) : experts_curve(m, have, 1);
            }
        }
    }
    if (m->experts == NULL) {
        return kg_fail(err, KG_ECONFIG, "%s: no experts of %s %s %s", m->table.system,
                       m->stack.moe_fw, m->stack.moe_dtype, m->stack.moe_load);
    }
    m->experts_class = have == n && s == k3 ? SIM_MEASURED : SIM_EXTRAPOLATED;
    m->experts_have = have;
    double sol = sim_expert_sol(m, k3, k3->expert_bytes, have, 1);
    m->experts_floor = m->experts->y[0] - sol;
    m->experts_floor = m->experts_floor > 0 ? m->experts_floor : 0;
    return KG_OK;
}

static void find_reduce(struct sim_model *m)
{
    static const char *const names[] = {"ar/sglang", "ar/vllm", "ar/trtllm", "nccl/all_reduce"};
    static const char *const words[] = {"sglang", "vllm", "trtllm", "nccl"};
    uint32_t ranks = m->layout.tp, have = 1;
    int best = strcmp(m->stack.allreduce, "best") == 0;
    char key[64];

    if (ranks == 1) {
        return;
    }
    while (have * 2 <= ranks) {
        have *= 2;
    }
    for (; m->n_reduce == 0 && have > 1; have /= 2) {
        for (uint32_t i = 0; i < 4; i++) {
            (void)snprintf(key, sizeof(key), "%s/%u", names[i], have);
            const struct sim_curve *c = sim_table_find(&m->table, key);
            if (c != NULL && (best || strcmp(m->stack.allreduce, words[i]) == 0)) {
                (void)snprintf(key, sizeof(key), "%s/%u", names[i], have / 2);
                m->reduce_half[m->n_reduce] = sim_table_find(&m->table, key);
                m->reduce[m->n_reduce++] = c;
            }
        }
        m->doublings = log2((double)ranks / have);
    }
}

/* Rates that times are divided by: without them a step would never end. */
static int check_rates(const struct sim_table *t, const struct sim_layout *l, struct kg_error *err)
{
    int far = l->dp > 1 || l->pp > 1;

    if (t->fp8_flops > 0 && (!far || t->scaleup_bw > 0)) {
        return KG_OK;
    }
    return kg_fail(err, KG_ECONFIG, "%s: no nominal %s", t->system,
                   t->fp8_flops > 0 ? "scaleup_bw" : "fp8_flops");
}

static int check(const struct sim_model *m, struct kg_error *err)
{
    const struct sim_shape *s = m->shape;
    const struct sim_layout *l = &m->layout;

    if (l->tp == 0 || l->ep == 0 || l->pp == 0 || l->dcp == 0 || l->dp == 0 ||
        l->tp % l->dcp != 0) {
        return kg_fail(err, KG_ECONFIG,
                       "tp %u, ep %u, pp %u, dcp %u, dp %u: at least 1, and dcp "
                       "divides tp",
                       l->tp, l->ep, l->pp, l->dcp, l->dp);
    }
    if (l->tp > 1 && m->n_reduce == 0) {
        return kg_fail(err, KG_ECONFIG, "%s: no collective \"%s\" of %u ranks or fewer",
                       m->table.system, m->stack.allreduce, l->tp);
    }
    if (s->linear_layers > 0 && (m->decode.n == 0 || m->context[1].n == 0)) {
        return kg_fail(err, KG_ECONFIG, "%s: no recurrent kernels of \"%s\"", m->table.system,
                       m->stack.kda_fw);
    }
    if (s->mla_layers > 0 && (m->mla_gen.n == 0 || m->mla_ctx.n == 0)) {
        return kg_fail(err, KG_ECONFIG, "%s: no MLA kernels for a cache of %s", m->table.system,
                       l->kv);
    }
    return KG_OK;
}

int sim_model_open(struct sim_model *m, const char *table, const char *stack,
                   const struct sim_shape *shape, const struct sim_layout *layout,
                   struct kg_error *err)
{
    char p[64];

    memset(m, 0, sizeof(*m));
    int rc = sim_table_read(table, &m->table, err);
    if (rc != KG_OK) {
        return rc;
    }
    m->shape = shape;
    m->layout = *layout;
    if (!(layout->expert_bytes > 0)) {
        m->layout.expert_bytes = shape->expert_bytes;
    }
    if (!(layout->weight_bytes > 0)) {
        m->layout.weight_bytes = shape->weight_bytes;
    }
    m->bandwidth = 0.8 * m->table.mem_bw;
    sim_stack_plain(&m->stack, strncmp(m->table.system, "h", 1) == 0);
    rc = check_rates(&m->table, layout, err);
    if (rc == KG_OK && stack != NULL && stack[0] != '\0') {
        rc = sim_stack_read(stack, &m->stack, err);
    }
    if (rc == KG_OK && layout->tp > 0) {
        m->heads = (shape->mla_layers > 0 ? shape->mla_heads : shape->gqa_heads) / layout->tp;
        m->linear_heads = shape->linear_heads / layout->tp;
        add_gemms(m);
        find_linear(m);
        find_reduce(m);
        (void)snprintf(p, sizeof(p), "mla_gen/%s/", layout->kv);
        find_grid(&m->table, p, &m->mla_gen);
        (void)snprintf(p, sizeof(p), "mla_ctx/%s/", layout->kv);
        find_grid(&m->table, p, &m->mla_ctx);
        sim_family_find(&m->table, "bmm/vllm/mla_gen_pre/", "", &m->bmm[0]);
        sim_family_find(&m->table, "bmm/vllm/mla_gen_post/", "", &m->bmm[1]);
        (void)snprintf(p, sizeof(p), "gqa_gen/%u/%u/64/", 64 / layout->tp, 16 / layout->tp);
        sim_family_find(&m->table, p, "", &m->draft_attn);
        rc = find_experts(m, err);
    }
    if (rc == KG_OK) {
        rc = check(m, err);
    }
    if (rc != KG_OK) {
        sim_table_free(&m->table);
    }
    return rc;
}

void sim_model_close(struct sim_model *m)
{
    sim_table_free(&m->table);
}
