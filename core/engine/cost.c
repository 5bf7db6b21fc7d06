#include "engine/cost.h"

#include <string.h>

#define BASE_CONTEXT 256u      /* tokens of a sequence while the grid is measured */
#define FAR_CONTEXT 4096u      /* of the one point that shows what context costs */
#define WINDOW 16u             /* rows of a sequence */
#define CHUNK_CONTEXT_ROWS 64u /* of the prompt rows that show what context costs them */
#define LONGEST_NS 100000000u  /* no longer chunk is measured after one that takes this */
#define LEARN (1.0 / 16.0)     /* share of a difference that one step is believed */

static double seqs_at(uint32_t i)
{
    return (double)(1u << 2 * i);
}

static double rows_at(uint32_t j)
{
    return (double)(1u << j);
}

/* Points the backend cannot do, and rows fewer than sequences, from their neighbours. */
static void fill_gaps(double *ns, uint32_t n_rows, uint32_t first, uint32_t end)
{
    for (uint32_t j = 0; j < first; j++) {
        ns[j] = ns[first];
    }
    for (uint32_t j = end; j < n_rows; j++) {
        double slope = ns[end - 1] / rows_at(end - 1); /* one point only: rows are all */
        if (end - first > 1) {
            slope = (ns[end - 1] - ns[end - 2]) / rows_at(end - 2);
        }
        ns[j] = ns[end - 1] + slope * (rows_at(j) - rows_at(end - 1));
    }
}

/* Rows beyond the windows of few sequences were guessed; more sequences with as many rows were
 * measured, and they are no cheaper. */
static void bound_guesses(struct kg_cost_table *t, const uint32_t *end)
{
    for (uint32_t i = t->n_seqs; i-- > 1;) {
        for (uint32_t j = end[i - 1]; j < t->n_rows; j++) {
            if (j >= 2 * i && t->ns[i - 1][j] > t->ns[i][j]) {
                t->ns[i - 1][j] = t->ns[i][j];
            }
        }
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
    for (uint32_t j = 1; j < t->n_chunk; j++) {
        t->chunk_ns[j] = t->chunk_ns[j] > t->chunk_ns[j - 1] ? t->chunk_ns[j] : t->chunk_ns[j - 1];
    }
}

/* What rows of a prompt take: without context by their number, and with it. */
static void measure_chunks(struct kg_cost_table *t, const struct kg_exec_ops *ops,
                           struct kg_exec *exec, uint32_t near, uint32_t far)
{
    uint32_t some = 1, j = 0;
    uint64_t ns = 0, far_ns;

    while (2 * some <= rows_at(t->n_rows - 1) && some < CHUNK_CONTEXT_ROWS) {
        some *= 2;
    }
    if (far > near && ops->profile(exec, 1, some, near, &ns) == KG_OK &&
        ops->profile(exec, 1, some, far, &far_ns) == KG_OK && far_ns > ns) {
        t->prompt_token_ns = (double)(far_ns - ns) / (double)(far - near) / some;
    }
    for (; j < t->n_rows && ns < LONGEST_NS; j++) {
        double rows = rows_at(j);
        if (ops->profile(exec, 1, 1u << j, near, &ns) != KG_OK) {
            break;
        }
        double context = t->prompt_token_ns * rows * (near + (rows - 1) / 2);
        t->chunk_ns[j] = (double)ns > context ? (double)ns - context : 0.0;
    }
    t->n_chunk = t->n_rows;
    if (j > 0) {
        fill_gaps(t->chunk_ns, t->n_chunk, 0, j);
    }
}

int kg_cost_measure(struct kg_cost_table *t, const struct kg_exec_ops *ops, struct kg_exec *exec,
                    uint32_t max_seqs, uint32_t max_rows, uint32_t max_context)
{
    uint32_t near = max_context / 4 < BASE_CONTEXT ? max_context / 4 : BASE_CONTEXT;
    uint32_t far = max_context / 2 < FAR_CONTEXT ? max_context / 2 : FAR_CONTEXT;
    uint32_t end[KG_COST_SEQS] = {0}; /* first row count of a line that was not measured */
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
        fill_gaps(t->ns[i], t->n_rows, 2 * i, j);
        end[t->n_seqs++] = j;
    }
    bound_guesses(t, end);
    measure_chunks(t, ops, exec, near, far);
    make_monotone(t);
    memcpy(t->start_ns, t->ns, sizeof(t->start_ns));
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

/* Where a step lies on the grid: the cell's corners and how far from its low ones. */
struct spot {
    uint32_t i, i1, j, j1;
    double x, y;
};

static struct spot spot_of(const struct kg_cost_table *t, uint32_t n_seqs, uint32_t rows)
{
    struct spot s;

    s.x = place(n_seqs > 0 ? n_seqs : 1, seqs_at, t->n_seqs, &s.i);
    s.y = place(rows > 0 ? rows : 1, rows_at, t->n_rows, &s.j);
    s.x = s.x < 1.0 ? s.x : 1.0; /* more sequences than measured cost their rows */
    s.i1 = s.i + 1 < t->n_seqs ? s.i + 1 : s.i;
    s.j1 = s.j + 1 < t->n_rows ? s.j + 1 : s.j;
    return s;
}

static double grid_ns(const struct kg_cost_table *t, const struct spot *s)
{
    const double *a = t->ns[s->i], *b = t->ns[s->i1];
    double low = a[s->j] + (a[s->j1] - a[s->j]) * s->y;
    double high = b[s->j] + (b[s->j1] - b[s->j]) * s->y;

    return low + (high - low) * s->x;
}

uint64_t kg_cost_whole_ns(double ns)
{
    if (!(ns > 0)) {
        return 0;
    }
    return ns < 1e18 ? (uint64_t)ns : (uint64_t)1e18;
}

uint64_t kg_cost_step_ns(void *ctx, uint32_t n_seqs, uint32_t rows, uint64_t context)
{
    const struct kg_cost_table *t = ctx;
    struct spot s = spot_of(t, n_seqs, rows);

    return kg_cost_whole_ns(grid_ns(t, &s) + t->token_ns * (double)context);
}

/* --- prompts --- */

static double chunk_ns(const struct kg_cost_table *t, uint32_t rows, uint32_t *j, double *y)
{
    *y = place(rows, rows_at, t->n_chunk, j);
    uint32_t j1 = *j + 1 < t->n_chunk ? *j + 1 : *j;

    return t->chunk_ns[*j] + (t->chunk_ns[j1] - t->chunk_ns[*j]) * *y;
}

/* Tokens before each row, over `rows` rows behind `from` tokens. */
static double context_of(uint32_t from, uint32_t rows)
{
    return (double)rows * (from + ((double)rows - 1) / 2);
}

uint64_t kg_cost_prefill_ns(const struct kg_cost_table *t, uint32_t from, uint32_t to,
                            uint32_t chunk)
{
    uint32_t j;
    double y;

    if (to <= from) {
        return 0;
    }
    uint32_t n = to - from, whole = n / chunk, rest = n % chunk;
    double ns = t->prompt_token_ns * context_of(from, n);
    ns += whole > 0 ? whole * chunk_ns(t, chunk, &j, &y) : 0.0;
    ns += rest > 0 ? chunk_ns(t, rest, &j, &y) : 0.0;
    return kg_cost_whole_ns(ns);
}

/* --- learning --- */

/* How far a value is corrected by one step that should have taken `value` and took `seen`. */
static double step_towards(double value, double seen)
{
    double least = value / 2, most = 2 * value + 1000; /* one hiccup says little */

    seen = seen < least ? least : seen;
    return LEARN * ((seen < most ? seen : most) - value);
}

static double rise(double v, double by)
{
    return v + by > 0.0 ? v + by : 0.0;
}

/* A point of the grid moves, down to the share `kept` of what was measured at start; those it would
 * overtake go with it. */
static void move_point(struct kg_cost_table *t, uint32_t i, uint32_t j, double by, double kept)
{
    double v = rise(t->ns[i][j], by), least = t->start_ns[i][j] * kept;

    v = v > least ? v : least;
    t->ns[i][j] = v;

    for (uint32_t a = by > 0 ? i : 0; a < (by > 0 ? t->n_seqs : i + 1); a++) {
        for (uint32_t b = by > 0 ? j : 0; b < (by > 0 ? t->n_rows : j + 1); b++) {
            if (by > 0 ? t->ns[a][b] < v : t->ns[a][b] > v) {
                t->ns[a][b] = v;
            }
        }
    }
}

void kg_cost_learn(struct kg_cost_table *t, uint32_t n_seqs, uint32_t rows, uint64_t context,
                   uint64_t ns)
{
    struct spot s = spot_of(t, n_seqs, rows);
    double grid = grid_ns(t, &s), of_context = t->token_ns * (double)context;
    double by = step_towards(grid, (double)ns - of_context);
    double y = s.y < 1.0 ? s.y : 1.0; /* beyond the last point: that one */
    /* The more of a step is context, the less it says of the point. Where a token of a long context
     * costs less than the start measured, nothing would be left of the point for short ones, and a
     * step of drafts could look cheaper than a plain one. */
    double kept = of_context > 0 ? of_context / (grid + of_context) / 2 : 0;

    move_point(t, s.i, s.j, by * (1 - s.x) * (1 - y), kept);
    move_point(t, s.i, s.j1, by * (1 - s.x) * y, kept);
    move_point(t, s.i1, s.j, by * s.x * (1 - y), kept);
    move_point(t, s.i1, s.j1, by * s.x * y, kept);
}

static void move_chunk(struct kg_cost_table *t, uint32_t j, double by)
{
    double v = t->chunk_ns[j] = rise(t->chunk_ns[j], by);

    for (uint32_t b = 0; b < t->n_chunk; b++) {
        if (b > j ? t->chunk_ns[b] < v : t->chunk_ns[b] > v) {
            t->chunk_ns[b] = v;
        }
    }
}

void kg_cost_learn_chunk(struct kg_cost_table *t, uint32_t from, uint32_t rows, uint64_t ns)
{
    uint32_t j;
    double y, now = chunk_ns(t, rows, &j, &y);
    double by = step_towards(now, (double)ns - t->prompt_token_ns * context_of(from, rows));

    y = y < 1.0 ? y : 1.0;
    move_chunk(t, j, by * (1 - y));
    move_chunk(t, j + 1 < t->n_chunk ? j + 1 : j, by * y);
}
