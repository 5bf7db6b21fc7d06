/* The parts of a step; what it is made of is said in model.h. */
#include "model.h"
#include <math.h>
#include <stdlib.h>

/* A step under way. */
struct sum {
    struct sim_parts p;
};

static void add(struct sum *s, uint32_t part, double count, struct sim_value v)
{
    s->p.us[part][v.class] += count * v.us;
}

static struct sim_value gemm(const struct sim_model *m, const struct sim_gemm *g, double rows)
{
    double bytes = m->layout.weight_bytes, sol, acc = 0, weight = 0;

    if (rows <= 0) {
        return (struct sim_value){0, SIM_MEASURED};
    }
    if (g->exact != NULL) {
        struct sim_value v = sim_curve_at(g->exact, rows);
        if (bytes < 2) {
            sol = sim_gemm_sol(m, g->n, g->k, rows, bytes);
            v.us *= sol / sim_gemm_sol(m, g->n, g->k, rows, 2);
            v.us = v.us > 3 ? v.us : 3;
            v.class = SIM_EXTRAPOLATED;
        }
        return v;
    }
    for (uint32_t i = 0; i < 3 && g->near[i] != NULL; i++) {
        sol = sim_gemm_sol(m, g->near_n[i], g->near_k[i], rows, 2);
        acc += g->weight[i] * log(sol / sim_curve_at(g->near[i], rows).us);
        weight += g->weight[i];
    }
    double us = sim_gemm_sol(m, g->n, g->k, rows, bytes) / exp(weight > 0 ? acc / weight : 0);
    return (struct sim_value){us > 3 ? us : 3, SIM_EXTRAPOLATED};
}

/* At (heads, b, x): a family's own two numbers, between the heads of the grid. */
static struct sim_value grid_at(const struct sim_grid *g, double heads, double b, double x, int log)
{
    uint32_t i = 0;

    if (g->n == 0) {
        return (struct sim_value){0, SIM_ASSUMED};
    }
    while (i + 1 < g->n && g->at[i + 1] <= heads) {
        i++;
    }
    struct sim_value v = sim_family_at(&g->family[i], b, x, log);
    if (heads < g->at[0]) {
        v.class = v.class < SIM_EXTRAPOLATED ? SIM_EXTRAPOLATED : v.class;
    } else if (i == g->n - 1) {
        v.us *= heads / g->at[i];
        v.class = heads > g->at[i] && v.class < SIM_EXTRAPOLATED ? SIM_EXTRAPOLATED : v.class;
    } else if (heads > g->at[i]) {
        v = sim_between(g->at[i], v, g->at[i + 1], sim_family_at(&g->family[i + 1], b, x, log),
                        heads);
    }
    return v;
}

/* A kernel that only moves bytes. */
static struct sim_value elementwise(const struct sim_model *m, double bytes)
{
    return (struct sim_value){bytes / m->bandwidth * 1e6 + 3, SIM_ASSUMED};
}

static struct sim_value reduce(const struct sim_model *m, double bytes)
{
    struct sim_value best = {INFINITY, SIM_ASSUMED};

    if (m->n_reduce == 0) {
        return (struct sim_value){0, SIM_MEASURED};
    }
    for (uint32_t i = 0; i < m->n_reduce; i++) {
        struct sim_value v = sim_curve_at(m->reduce[i], bytes);
        if (m->doublings > 0) {
            double half = m->reduce_half[i] != NULL ? sim_curve_at(m->reduce_half[i], bytes).us : 0;
            v.us *= half > 0 && half < v.us ? pow(v.us / half, m->doublings) : 1;
            v.class = SIM_EXTRAPOLATED;
        }
        best = v.us < best.us ? v : best;
    }
    return best;
}

double sim_model_wide_sums(const struct sim_shape *s)
{
    return s->layers + s->dense_layers + (s->latent > 0 ? 0 : s->moe_layers);
}

double sim_model_reduce(const struct sim_model *m, double bytes)
{
    return reduce(m, bytes).us;
}

/* Recurrent layers: decoding sequences of `width` rows each, and prompts. */
static void add_linear(const struct sim_model *m, const struct sim_load *w, double dp,
                       struct sum *s)
{
    double heads = m->linear_heads, layers = m->shape->linear_layers;

    if (layers <= 0) {
        return;
    }
    if (w->seqs > 0) {
        double n = ceil(w->seqs / dp), width = w->rows / w->seqs;
        struct sim_value v = sim_family_at(&m->decode, heads, n, 0);
        if (width > 1) {
            struct sim_value wide = {0, SIM_MEASURED};
            double from = width < 2 ? 2 : width; /* the grid begins at 2 */
            for (uint32_t k = 0; k < 2 && m->verify[k].n > 0; k++) {
                struct sim_value one = grid_at(&m->verify[k], heads, from, n, 0);
                wide.us += one.us;
                wide.class = one.class > wide.class ? one.class : wide.class;
            }
            v = width < 2 ? sim_between(1, v, 2, wide, width) : wide;
        }
        add(s, SIM_KDA_KERNEL, layers, v);
    }
    if (w->prompts > 0) {
        double n = ceil(w->prompts / dp), rows = w->prompt_rows / dp / n;
        for (uint32_t k = 0; k < 2; k++) {
            add(s, SIM_KDA_KERNEL, layers, grid_at(&m->context[k], heads, rows, n, 0));
        }
    }
}

/* Full attention of layers without MLA: from bytes and operations alone. */
static double gqa_us(const struct sim_model *m, double tokens_read, double pairs)
{
    const struct sim_shape *s = m->shape;
    double tp = m->layout.tp, kv = s->gqa_kv > tp ? s->gqa_kv / tp : 1;
    double read = tokens_read * 2 * kv * s->gqa_dim * 2 / (0.65 * m->table.mem_bw);
    double ops = pairs * 4 * s->gqa_heads / tp * s->gqa_dim / (0.45 * m->table.bf16_flops);

    return (read + ops) * 1e6;
}

static void add_attention(const struct sim_model *m, const struct sim_load *w, double dp,
                          struct sum *s)
{
    const struct sim_shape *sh = m->shape;
    double dcp = m->layout.dcp;

    if (w->prompts > 0) {
        add(s, SIM_ATTN, sh->mla_layers + sh->gqa_layers,
            (struct sim_value){w->prompt_us / dp, SIM_INTERPOLATED});
    }
    if (w->seqs <= 0) {
        return;
    }
    double n = ceil(w->seqs / dp), length = w->context / w->seqs;
    if (sh->gqa_layers > 0) {
        add(s, SIM_ATTN, sh->gqa_layers,
            (struct sim_value){6 + gqa_us(m, n * length, 0), SIM_ASSUMED});
    }
    if (sh->mla_layers > 0) {
        double q = m->heads * dcp * w->rows / w->seqs;
        struct sim_value v =
            grid_at(&m->mla_gen, q < 128 ? q : 128, n, length / dcp < 1 ? 1 : length / dcp, 0);
        add(s, SIM_ATTN, sh->mla_layers, v);
        for (uint32_t k = 0; k < 2; k++) {
            add(s, SIM_ATTN_GEMM, sh->mla_layers,
                sim_family_at(&m->bmm[k], m->heads, w->rows / dp, 0));
        }
    }
    if (dcp > 1 && sh->mla_layers > 0) { /* queries gathered, outputs and their sums scattered */
        double bytes = w->rows / dp * m->heads * dcp * 2;
        add(s, SIM_REDUCE, sh->mla_layers, reduce(m, bytes * 576));
        add(s, SIM_REDUCE, sh->mla_layers, reduce(m, bytes * 512));
    }
}

double sim_model_prompt(const struct sim_model *m, double past, double n)
{
    if (m->shape->mla_layers <= 0) {
        return 6 + gqa_us(m, past + n, n * (past + 0.5 * n));
    }
    double own = grid_at(&m->mla_ctx, m->heads, 1, n, 1).us;
    if (past <= 0) {
        return own;
    }
    double more = grid_at(&m->mla_ctx, m->heads, 1, past + n, 1).us -
                  grid_at(&m->mla_ctx, m->heads, 1, past, 1).us;
    return more > own ? more : own;
}

static void add_experts(const struct sim_model *m, double tokens, struct sum *s)
{
    if (m->experts == NULL || tokens <= 0) {
        return;
    }
    const struct sim_stack *k = &m->stack;
    struct sim_value v = sim_curve_at(m->experts, tokens);
    double small = 1;
    if (k->small != 1 && tokens < k->small_to) {
        double share = tokens <= k->small_from
                           ? 0
                           : log(tokens / k->small_from) / log(k->small_to / k->small_from);
        small = k->small + share * (1 - k->small);
    }
    double first = m->experts->y[0], floor_us = m->experts_floor, us = v.us;
    if (us > first) {
        us = first + (us - first) * small;
    }
    if (m->experts_class != SIM_MEASURED && us > floor_us) {
        const struct sim_shape *k3 = sim_shape_find("kimi_k3");
        double n = m->layout.ep > 1 ? m->layout.ep : m->layout.tp;
        double own = sim_expert_sol(m, m->shape, m->layout.expert_bytes, n, tokens);
        double had = sim_expert_sol(m, k3, k3->expert_bytes, m->experts_have, tokens);
        us = floor_us + (us - floor_us) * own / had;
    }
    v.class = v.class > m->experts_class ? v.class : m->experts_class;
    if (small != 1 && v.class < k->class) {
        v.class = k->class;
    }
    add(s, SIM_EXPERTS, m->shape->moe_layers, (struct sim_value){us, v.class});
}

static void add_elementwise(const struct sim_model *m, double rows, struct sum *s)
{
    const struct sim_shape *h = m->shape;
    double tp = m->layout.tp;

    add(s, SIM_ELEMENTWISE, 2 * h->layers, elementwise(m, 4 * rows * h->hidden));
    if (h->residual > 0) {
        add(s, SIM_ELEMENTWISE, 2 * h->layers, elementwise(m, 12 * rows * h->hidden));
    }
    add(s, SIM_ELEMENTWISE, h->linear_layers,
        elementwise(m, 8 * rows * h->linear_heads * h->linear_dim / tp));
    add(s, SIM_ELEMENTWISE, h->mla_layers, elementwise(m, 6 * rows * h->mla_heads * 128 / tp));
    add(s, SIM_ELEMENTWISE, h->gqa_layers,
        elementwise(m, 6 * rows * h->gqa_heads * h->gqa_dim / tp));
    if (h->shared_inter > 0) {
        add(s, SIM_ELEMENTWISE, h->moe_layers, elementwise(m, 6 * rows * h->shared_inter / tp));
    }
}

static void add_reduce(const struct sim_model *m, double rows, double dp, struct sum *s)
{
    const struct sim_shape *h = m->shape;
    double wide = sim_model_wide_sums(h);
    double bytes = rows * h->hidden * 2;

    if (m->layout.tp > 1) {
        add(s, SIM_REDUCE, wide, reduce(m, bytes));
        if (h->latent > 0) {
            add(s, SIM_REDUCE, h->moe_layers, reduce(m, rows * h->latent * 2));
        }
    }
    if (dp > 1) { /* tokens to the experts of other ranks and back: top_k copies, one way each */
        double sent = rows * h->top_k * (h->latent > 0 ? h->latent : h->hidden) * 3;
        add(s, SIM_REDUCE, h->moe_layers,
            (struct sim_value){30 + sent / m->layout.tp / (0.5 * m->table.scaleup_bw) * 1e6,
                               SIM_ASSUMED});
    }
    if (m->layout.pp > 1) {
        double n = m->layout.pp - 1;
        add(s, SIM_PIPE, n,
            (struct sim_value){10 + bytes / m->table.scaleup_bw * 1e6, SIM_ASSUMED});
    }
}

static void add_draft(const struct sim_model *m, const struct sim_load *w, struct sum *s)
{
    if (w->drafts <= 0) {
        return;
    }
    for (uint32_t i = 0; i < m->n_draft; i++) {
        struct sim_gemm g = m->draft[i];
        struct sim_value v = gemm(m, &g, w->drafts);
        add(s, SIM_DRAFT, g.count, v);
    }
    add(s, SIM_DRAFT, 10, reduce(m, w->drafts * m->shape->hidden * 2));
    if (w->seqs > 0 && m->draft_attn.n > 0) {
        add(s, SIM_DRAFT, 5, sim_family_at(&m->draft_attn, w->seqs, w->context / w->seqs, 0));
    } else if (w->seqs > 0) { /* not measured there: a launch, and the bytes of its cache */
        double bytes = w->context * 2 * 16 * 64 * 2 / m->layout.tp;
        add(s, SIM_DRAFT, 5, (struct sim_value){9 + bytes / m->bandwidth * 1e6, SIM_ASSUMED});
    }
    add(s, SIM_DRAFT, 10, elementwise(m, 4 * w->drafts * m->shape->hidden));
}

/* The release's factors of parts, and its fusions. */
static void apply_stack(const struct sim_model *m, double rows, struct sum *s)
{
    const struct sim_stack *k = &m->stack;
    double part[SIM_N_PARTS];

    for (uint32_t p = 0; p < SIM_N_PARTS; p++) {
        double factor = k->scale[p] * (p == SIM_REDUCE ? 1 - k->overlap : 1);
        part[p] = 0;
        for (uint32_t c = 0; c < SIM_N_CLASSES; c++) {
            s->p.us[p][c] *= factor;
            part[p] += s->p.us[p][c];
        }
    }
    for (uint32_t i = 0; i < k->n_fusions; i++) {
        const struct sim_fusion *f = &k->fusions[i];
        double less = f->us * m->shape->layers;
        if (rows > f->rows || part[f->part] <= 0) {
            continue;
        }
        less = less < 0.8 * part[f->part] ? less : 0.8 * part[f->part];
        for (uint32_t c = 0; c < SIM_N_CLASSES; c++) {
            s->p.us[f->part][c] *= 1 - less / part[f->part];
        }
        part[f->part] -= less;
    }
}

/* Rows a captured graph runs for a step of decoding rows. */
static double padded(const struct sim_stack *k, double rows)
{
    for (uint32_t i = 0; i < k->n_graphs; i++) {
        if (k->graphs[i] >= rows) {
            return k->graphs[i];
        }
    }
    return rows;
}

/* The kernels of a step, one after the other; total in us. */
static double kernels(const struct sim_model *m, const struct sim_load *w, struct sum *s)
{
    double dp = m->layout.dp, all = w->rows + w->prompt_rows, rows = ceil(all / dp), total = 0;

    if (all > 0) {
        for (uint32_t i = 0; i < m->n_gemms; i++) {
            const struct sim_gemm *g = &m->gemms[i];
            double n = g->rows == SIM_ROWS_ALL       ? rows
                       : g->rows == SIM_ROWS_SAMPLED ? ceil(w->samples / dp)
                                                     : ceil(w->prompt_rows / dp);
            add(s, g->part, g->count, gemm(m, g, n));
        }
        add_linear(m, w, dp, s);
        add_attention(m, w, dp, s);
        add_experts(m, all, s);
        add_elementwise(m, rows, s);
        add_reduce(m, rows, dp, s);
    }
    add_draft(m, w, s);
    double copied = 2 * (w->copies * w->copy_bytes + w->moved_bytes);
    add(s, SIM_COPY, 1, (struct sim_value){copied / m->bandwidth * 1e6, SIM_ASSUMED});
    apply_stack(m, all, s);
    for (uint32_t p = 0; p < SIM_N_PARTS; p++) {
        for (uint32_t c = 0; c < SIM_N_CLASSES; c++) {
            total += s->p.us[p][c];
        }
    }
    return total;
}

/* What the release's two factors make of a step's kernels: one factor for all of them. */
static double release_factor(const struct sim_model *m, const struct sim_load *w, double total)
{
    double of_decode = m->stack.decode_scale, of_prompt = m->stack.prompt_scale;

    if (w->prompt_rows <= 0 || of_decode == of_prompt || total <= 0) {
        return w->prompt_rows > 0 ? of_prompt : of_decode;
    }
    if (w->rows <= 0) {
        return of_prompt;
    }
    struct sim_load rest = *w;
    struct sum s = {0};
    rest.prompts = rest.prompt_rows = rest.pairs = rest.prompt_us = 0;
    rest.samples = rest.rows;
    double alone = kernels(m, &rest, &s);
    alone = alone < total ? alone : total;
    return (of_decode * alone + of_prompt * (total - alone)) / total;
}

double sim_model_step(const struct sim_model *m, const struct sim_load *load,
                      struct sim_parts *parts)
{
    struct sum s = {0};
    struct sim_load w = *load;

    if (w.prompt_rows <= 0 && w.seqs > 0 && w.rows > 0 && m->stack.n_graphs > 0) {
        double width = w.rows / w.seqs, seqs = padded(&m->stack, w.seqs);
        w.context += seqs - w.seqs; /* rows of padding read one token */
        w.seqs = seqs;
        w.rows = seqs * width;
    }
    double total = kernels(m, &w, &s), factor = release_factor(m, &w, total), host = 0;
    if (w.rows + w.prompt_rows > 0) {
        host = m->stack.host_us + m->stack.host_seq_us * (w.seqs + w.prompts);
        host += w.prompt_rows > 0 ? m->stack.prompt_us : 0;
    }
    if (parts != NULL) {
        for (uint32_t p = 0; p < SIM_N_PARTS; p++) {
            for (uint32_t c = 0; c < SIM_N_CLASSES; c++) {
                parts->us[p][c] += s.p.us[p][c] * factor;
            }
        }
        parts->us[SIM_HOST][m->stack.class] += host;
    }
    return total * factor + host;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

int sim_table_left_out(const struct sim_table *table, const char *prefix, int log, double **errors,
                       uint32_t *n)
{
    uint32_t n_curves, cap = 1;
    const struct sim_curve *c = sim_table_prefix(table, prefix, &n_curves);

    for (uint32_t i = 0; i < n_curves; i++) {
        cap += c[i].n;
    }
    double *e = malloc(cap * sizeof(*e));
    if (e == NULL) {
        return KG_ENOMEM;
    }
    *n = 0;
    for (uint32_t i = 0; i < n_curves; i++) {
        for (uint32_t j = 1; j + 1 < c[i].n; j++) {
            double x[2] = {c[i].x[j - 1], c[i].x[j + 1]}, y[2] = {c[i].y[j - 1], c[i].y[j + 1]};
            struct sim_curve rest = {c[i].key, 2, x, y};
            struct sim_value v =
                log ? sim_curve_log_at(&rest, c[i].x[j]) : sim_curve_at(&rest, c[i].x[j]);
            e[(*n)++] = fabs(v.us / c[i].y[j] - 1);
        }
    }
    qsort(e, *n, sizeof(*e), by_value);
    *errors = e;
    return KG_OK;
}
