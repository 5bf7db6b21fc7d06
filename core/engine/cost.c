#include "engine/cost.h"

#define BASE_CONTEXT 256u /* tokens of a sequence while the grid is measured */
#define FAR_CONTEXT 4096u /* of the one point that shows what context costs */
#define WINDOW 16u        /* rows of a sequence */

static double seqs_at(uint32_t i)
{
    return (double)(1u << 2 * i);
}

static double rows_at(uint32_t j)
{
    return (double)(1u << j);
}

/* Points the backend cannot do, and rows fewer than sequences, from their neighbours. */
static void fill_gaps(struct kg_cost_table *t, uint32_t i, uint32_t first, uint32_t end)
{
    for (uint32_t j = 0; j < first; j++) {
        t->ns[i][j] = t->ns[i][first];
    }
    for (uint32_t j = end; j < t->n_rows; j++) {
        double slope = t->ns[i][end - 1] / rows_at(end - 1); /* one point only: rows are all */
        if (end - first > 1) {
            slope = (t->ns[i][end - 1] - t->ns[i][end - 2]) / rows_at(end - 2);
        }
        t->ns[i][j] = t->ns[i][end - 1] + slope * (rows_at(j) - rows_at(end - 1));
    }
}

/* Never falls with rows or sequences: noise must not make a longer window look cheaper. */
static void make_monotone(struct kg_cost_table *t)
{
    for (uint32_t i = 0; i < t->n_seqs; i++) {
        for (uint32_t j = 0; j < t->n_rows; j++) {
            double least = j > 0 ? t->ns[i][j - 1] : 0.0;
            if (i > 0 && t->ns[i - 1][j] > least) {
                least = t->ns[i - 1][j];
            }
            if (t->ns[i][j] < least) {
                t->ns[i][j] = least;
            }
        }
    }
}

int kg_cost_measure(struct kg_cost_table *t, const struct kg_exec_ops *ops, struct kg_exec *exec,
                    uint32_t max_seqs, uint32_t max_rows, uint32_t max_context)
{
    uint32_t near = max_context / 4 < BASE_CONTEXT ? max_context / 4 : BASE_CONTEXT;
    uint32_t far = max_context / 2 < FAR_CONTEXT ? max_context / 2 : FAR_CONTEXT;
    uint64_t ns, far_ns;
    int rc = ops->profile(exec, 1, 1, near, &ns);

    *t = (struct kg_cost_table){0};
    if (rc == KG_OK) {
        rc = ops->profile(exec, 1, 1, far, &far_ns);
    }
    if (rc != KG_OK) {
        return rc;
    }
    if (far_ns > ns && far > near) {
        t->token_ns = (double)(far_ns - ns) / (double)(far - near);
    }
    while (t->n_rows < KG_COST_ROWS && (1u << t->n_rows) <= max_rows) {
        t->n_rows++;
    }
    for (uint32_t i = 0; i < KG_COST_SEQS && (1u << 2 * i) <= max_seqs && 2 * i < t->n_rows; i++) {
        uint32_t n = 1u << 2 * i, j = 2 * i;
        for (; j < t->n_rows && (1u << j) <= n * WINDOW; j++) {
            if (ops->profile(exec, n, 1u << j, near, &ns) != KG_OK) {
                break;
            }
            double context = t->token_ns * n * near;
            t->ns[i][j] = (double)ns > context ? (double)ns - context : 0.0;
        }
        if (j == 2 * i) {
            break; /* more sequences than it can do */
        }
        fill_gaps(t, i, 2 * i, j);
        t->n_seqs++;
    }
    make_monotone(t);
    return KG_OK;
}

/* Cell and place inside it of a value on an axis; past the last point the last cell goes on. */
static double place(double v, double (*at)(uint32_t i), uint32_t n, uint32_t *cell)
{
    uint32_t i = 0;

    while (i + 2 < n && v >= at(i + 1)) {
        i++;
    }
    *cell = i;
    return n < 2 ? 0.0 : (v - at(i)) / (at(i + 1) - at(i));
}

uint64_t kg_cost_step_ns(void *ctx, uint32_t n_seqs, uint32_t rows, uint64_t context)
{
    const struct kg_cost_table *t = ctx;
    uint32_t i, j;
    double x = place(n_seqs > 0 ? n_seqs : 1, seqs_at, t->n_seqs, &i);
    double y = place(rows > 0 ? rows : 1, rows_at, t->n_rows, &j);
    x = x < 1.0 ? x : 1.0; /* more sequences than measured cost their rows */
    uint32_t i1 = i + 1 < t->n_seqs ? i + 1 : i, j1 = j + 1 < t->n_rows ? j + 1 : j;
    double low = t->ns[i][j] + (t->ns[i][j1] - t->ns[i][j]) * y;
    double high = t->ns[i1][j] + (t->ns[i1][j1] - t->ns[i1][j]) * y;

    return (uint64_t)(low + (high - low) * x + t->token_ns * (double)context);
}
