/* Routed experts: rows sorted by expert, so that a weight is read once for all its rows. */
#include "cpu.h"

#include "vmath.h"

#include <string.h>

struct moe_run {
    const struct kg_moe *m;
    struct moe_plan plan;
    uint32_t row0, rows; /* of this pass */
    uint32_t per;        /* blocks of a task */
    uint32_t groups;     /* tasks of an expert */
    int fast;
};

static uint32_t blocks_of(uint32_t out)
{
    return (out + LANES - 1) / LANES;
}

/* h = act(gate x, up x) for one run of blocks of one expert; h replaces the gate product. */
static void first_task(void *arg, uint32_t task, uint32_t member)
{
    const struct moe_run *run = arg;
    const struct kg_moe *m = run->m;
    const struct moe_plan *plan = &run->plan;
    uint32_t a = task / run->groups, e = plan->active[a], ff = m->gate[0].out;
    uint32_t b0 = task % run->groups * run->per, b1 = b0 + run->per;
    size_t entry = plan->offset[a];
    struct product_job job = {.w = &m->gate[e],
                              .x = m->x + (size_t)run->row0 * m->x_stride,
                              .y = plan->gate + entry * ff,
                              .x_stride = m->x_stride,
                              .y_stride = ff,
                              .x_row = plan->token + entry,
                              .rows = plan->offset[a + 1] - plan->offset[a]};
    uint32_t c1 = b1 * LANES < ff ? b1 * LANES : ff;

    (void)member;
    b1 = b1 < blocks_of(ff) ? b1 : blocks_of(ff);
    ISA(product_blocks)(&job, b0, b1, run->fast);
    job.w = &m->up[e];
    job.y = plan->up + entry * ff;
    ISA(product_blocks)(&job, b0, b1, run->fast);
    for (uint32_t j = 0; j < job.rows; j++) {
        float *h = plan->gate + (entry + j) * ff;
        const float *up = plan->up + (entry + j) * ff;

        for (uint32_t c = b0 * LANES; c < c1; c += LANES) {
            uint32_t n = c1 - c < LANES ? c1 - c : LANES;

            v_storen(h + c,
                     v_act(m->act.act, v_set1(m->act.beta), v_set1(m->act.linear_beta),
                           v_loadn(h + c, n), v_loadn(up + c, n)),
                     n);
        }
    }
}

static void second_task(void *arg, uint32_t task, uint32_t member)
{
    const struct moe_run *run = arg;
    const struct moe_plan *plan = &run->plan;
    uint32_t a = task / run->groups, out = run->m->down[0].out, ff = run->m->gate[0].out;
    uint32_t b0 = task % run->groups * run->per, b1 = b0 + run->per;
    size_t entry = plan->offset[a];
    struct product_job job = {.w = &run->m->down[plan->active[a]],
                              .x = plan->gate + entry * ff,
                              .y = plan->result,
                              .x_stride = ff,
                              .y_stride = out,
                              .y_row = plan->slot + entry,
                              .rows = plan->offset[a + 1] - plan->offset[a]};

    (void)member;
    ISA(product_blocks)(&job, b0, b1 < blocks_of(out) ? b1 : blocks_of(out), run->fast);
}

static void sum_task(void *arg, uint32_t r, uint32_t member)
{
    const struct moe_run *run = arg;
    const struct kg_moe *m = run->m;
    uint32_t out = m->down[0].out;
    const uint32_t *ids = m->ids + (size_t)(run->row0 + r) * m->top_k;
    const float *w = m->weights + (size_t)(run->row0 + r) * m->top_k;
    const float *v = run->plan.result + (size_t)r * m->top_k * out;
    float *y = m->y + (size_t)(run->row0 + r) * m->y_stride;
    uint32_t s0 = 0; /* the first that is here */

    (void)member;
    while (s0 < m->top_k && ids[s0] - m->first >= m->n_experts)
        s0++;
    if (s0 == m->top_k) {
        memset(y, 0, out * sizeof(*y));
        return;
    }
    for (uint32_t c = 0; c < out; c += LANES) {
        uint32_t n = out - c < LANES ? out - c : LANES;
        vf sum = v_mul(v_set1(w[s0]), v_loadn(v + (size_t)s0 * out + c, n));

        for (uint32_t s = s0 + 1; s < m->top_k; s++) {
            if (ids[s] - m->first < m->n_experts)
                sum = v_fma(v_set1(w[s]), v_loadn(v + (size_t)s * out + c, n), sum);
        }
        v_storen(y + c, sum, n);
    }
}

/* Blocks per task so that the members have several tasks each. */
static void split(struct moe_run *run, struct kg_team *team, uint32_t out)
{
    uint32_t want = kg_team_size(team) * 4;

    run->per = 16;
    while (run->per > 4 && (uint64_t)blocks_of(out) * run->plan.n_active / run->per < want)
        run->per -= 4;
    run->groups = (blocks_of(out) + run->per - 1) / run->per;
}

static void moe_pass(struct kg_team *team, struct moe_run *run)
{
    const struct kg_moe *m = run->m;
    uint32_t ff = m->gate[0].out, out = m->down[0].out;
    uint64_t entries = (uint64_t)run->rows * m->top_k;

    moe_plan_make(&run->plan, m, run->row0, run->rows);
    split(run, team, ff);
    run_sized(team, first_task, run, run->plan.n_active * run->groups,
              entries * ff * m->gate[0].in * 2);
    split(run, team, out);
    run_sized(team, second_task, run, run->plan.n_active * run->groups, entries * ff * out);
    run_sized(team, sum_task, run, run->rows, entries * out);
}

static void moe(struct kg_team *team, const struct kg_moe *m, int fast)
{
    struct moe_run run = {.m = m, .fast = fast};
    uint32_t pass = m->rows == 0 ? 1 : moe_pass_rows(m);

    for (; run.row0 < m->rows; run.row0 += pass) {
        run.rows = m->rows - run.row0 < pass ? m->rows - run.row0 : pass;
        moe_pass(team, &run);
    }
}

#if !defined(KG_HALF)
void ISA(moe_exact)(struct kg_team *team, const struct kg_moe *args)
{
    moe(team, args, 0);
}
#endif

void ISA(moe_fast)(struct kg_team *team, const struct kg_moe *args)
{
    moe(team, args, 1);
}
