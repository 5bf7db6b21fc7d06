#include "ref.h"

/* One block of 16 outputs for one row: y[0..15] = sum over k. */
static void block_row(const struct kg_weight *w, uint32_t block, const float *x, int fast,
                      float y[16])
{
    float acc[16] = {0};
    int pairs = fast && w->type != KG_W_F32;

    for (uint32_t i = 0; i < w->in + (pairs ? w->in % 2 : 0); i++) {
        uint32_t k = pairs ? i ^ 1 : i; /* odd element of a pair first */
        float xk = k < w->in ? x[k] : 0.0f;

        if (pairs)
            xk = bf16_widen(bf16_round(xk));
        for (uint32_t l = 0; l < 16; l++) {
            uint32_t o = block * 16 + l;
            float wk = o < w->out && k < w->in ? kg_weight_at(w, o, k) : 0.0f;

            acc[l] = fmaf(xk, wk, acc[l]);
        }
    }
    memcpy(y, acc, sizeof(acc));
}

/* One step of a sum in fp16: the product and the sum are exact in double where it matters, since
 * what double would lose is too small to lie beside a tie. */
static double half_step(double acc, double x, double w)
{
    return (double)kg_f32_from_f16(kg_f16_from_f64(acc + x * w));
}

/* A group of 256 inputs of narrow weights: y[0..15] += its sums. */
static void half_group(const struct kg_weight *w, uint32_t block, uint32_t k0, const float *x,
                       float y[16])
{
    uint32_t n = w->in - k0 < HALF_GROUP ? w->in - k0 : HALF_GROUP, top = 0, bits;
    float sums[16][2] = {{0}}, back;

    for (uint32_t i = 0; i < n; i++) {
        memcpy(&bits, &x[k0 + i], sizeof(bits));
        top = (bits & 0x7fffffffu) > top ? bits & 0x7fffffffu : top;
    }
    float scale = half_scale(top, w->shift, &back);
    for (uint32_t l = 0; l < 16 && block * 16 + l < w->out; l++) {
        for (uint32_t c = 0; c < n; c += HALF_CHAIN) {
            double acc[2] = {0, 0};
            for (uint32_t i = c; i < n && i < c + HALF_CHAIN; i++) {
                double xk = kg_f32_from_f16(kg_f16_from_f64((double)(x[k0 + i] * scale)));
                double wk = ldexp((double)kg_weight_at(w, block * 16 + l, k0 + i), -w->shift);
                acc[i % 2] = half_step(acc[i % 2], xk, wk);
            }
            for (uint32_t i = 0; i < 2; i++)
                sums[l][i] = c == 0 ? (float)acc[i] : sums[l][i] + (float)acc[i];
        }
        y[l] = fmaf(sums[l][0] + sums[l][1], back, y[l]);
    }
}

static void half_row(const struct kg_weight *w, uint32_t block, const float *x, float y[16])
{
    memset(y, 0, 16 * sizeof(*y));
    for (uint32_t k0 = 0; k0 < w->in; k0 += HALF_GROUP)
        half_group(w, block, k0, x, y);
}

static void product(const struct kg_product *p, int fast)
{
    for (uint32_t b = 0; b < (p->w->out + 15) / 16; b++) {
        for (uint32_t r = 0; r < p->rows; r++) {
            uint32_t n = p->w->out - b * 16 < 16 ? p->w->out - b * 16 : 16;
            float y[16];

            if (p->w->type == KG_W_E4M7)
                half_row(p->w, b, p->x + r * p->x_stride, y);
            else
                block_row(p->w, b, p->x + r * p->x_stride, fast, y);
            memcpy(p->y + r * p->y_stride + b * 16, y, n * sizeof(float));
        }
    }
}

struct job {
    const struct kg_product *p;
    int fast;
};

static void product_task(void *arg, uint32_t task, uint32_t member)
{
    struct job *job = arg;

    (void)member;
    product(&job->p[task], job->fast);
}

void ref_product_exact(struct kg_team *team, const struct kg_product *p, uint32_t n)
{
    struct job job = {.p = p, .fast = 0};

    kg_team_run(team, product_task, &job, n);
}

void ref_product_fast(struct kg_team *team, const struct kg_product *p, uint32_t n)
{
    struct job job = {.p = p, .fast = 1};

    kg_team_run(team, product_task, &job, n);
}

/* Expert by expert, row by row. */
static void moe_pass(const struct kg_moe *m, uint32_t row0, uint32_t rows, int fast)
{
    struct moe_plan plan;
    uint32_t ff = m->gate[0].out, out = m->down[0].out;

    moe_plan_make(&plan, m, row0, rows);
    for (uint32_t a = 0; a < plan.n_active; a++) {
        uint32_t e = plan.active[a];

        for (uint32_t j = plan.offset[a]; j < plan.offset[a + 1]; j++) {
            const float *x = m->x + (row0 + plan.token[j]) * m->x_stride;
            float *gate = plan.gate + (size_t)j * ff, *up = plan.up + (size_t)j * ff;
            struct kg_product first[2] = {{&m->gate[e], x, gate, 0, 0, 1},
                                          {&m->up[e], x, up, 0, 0, 1}};
            struct kg_product last = {&m->down[e], gate, plan.result + (size_t)plan.slot[j] * out,
                                      0,           0,    1};

            product(&first[0], fast);
            product(&first[1], fast);
            for (uint32_t i = 0; i < ff; i++)
                gate[i] = ref_act(&m->act, gate[i], up[i]);
            product(&last, fast);
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t *ids = m->ids + (size_t)(row0 + r) * m->top_k;
        const float *w = m->weights + (size_t)(row0 + r) * m->top_k;

        for (uint32_t c = 0; c < out; c++) {
            const float *v = plan.result + (size_t)r * m->top_k * out + c;
            float sum = 0;
            int begun = 0;

            for (uint32_t s = 0; s < m->top_k; s++) {
                if (ids[s] - m->first >= m->n_experts)
                    continue;
                sum = begun ? fmaf(w[s], v[(size_t)s * out], sum) : w[s] * v[(size_t)s * out];
                begun = 1;
            }
            m->y[(row0 + r) * m->y_stride + c] = sum;
        }
    }
}

static void moe(const struct kg_moe *m, int fast)
{
    uint32_t pass = m->rows == 0 ? 1 : moe_pass_rows(m);

    for (uint32_t r = 0; r < m->rows; r += pass)
        moe_pass(m, r, m->rows - r < pass ? m->rows - r : pass, fast);
}

void ref_moe_exact(struct kg_team *team, const struct kg_moe *args)
{
    (void)team;
    moe(args, 0);
}

void ref_moe_fast(struct kg_team *team, const struct kg_moe *args)
{
    (void)team;
    moe(args, 1);
}
