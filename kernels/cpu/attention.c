/*
 * Absorbed attention over pages. A task is a group of heads for a run of rows of one sequence: its
 * queries, one row and head each, share the keys.
 */
#include "cpu.h"

#include "vmath.h"

#include <math.h>

#define QUERIES 8 /* most of a task */

/* Keys of a tile of two queries whose sums fit the registers. */
#if defined(__AVX512F__)
#define KEYS_AT_ONCE 8
#else
#define KEYS_AT_ONCE 2
#endif

struct mla_run {
    const struct kg_mla *a;
    uint32_t group;  /* heads of a task */
    uint32_t groups; /* tasks of a run of rows */
    uint32_t rows;   /* rows of a task */
};

/* One task: keys of the current block and the running softmax of each query. */
struct mla_work {
    const struct kg_mla *a;
    const uint32_t *ids;
    uint32_t queries, first; /* queries before `first` have passed their position */
    uint32_t last[QUERIES];  /* position of the row, rising */
    const float *qa[QUERIES], *qr[QUERIES];
    float *m[QUERIES];
    _Alignas(64) float best[LANES], keep[LANES];
    float sum[QUERIES];
    _Alignas(64) float score[QUERIES][KEY_BLOCK];
    uint32_t n[QUERIES];                             /* keys of this block that count */
    const float *key[KEY_BLOCK];                     /* absent ones are the first */
    _Alignas(64) float tile[KEY_BLOCK * KG_MLA_MAX]; /* widened keys of bf16 pages */
};

/* The keys t0 .. t0 + n - 1. */
static void load_keys(struct mla_work *w, uint32_t t0, uint32_t n)
{
    const struct kg_pages *p = &w->a->pages;
    uint32_t width = p->latent + p->rope;

    for (uint32_t j = 0; j < n; j++) {
        const uint8_t *record = page_record(p, w->ids, t0 + j);

        if (p->dtype == KG_F32) {
            w->key[j] = (const float *)record;
            continue;
        }
        const uint16_t *from = (const uint16_t *)record;
        float *to = w->tile + (size_t)j * width;
        uint32_t i = 0;

        w->key[j] = to;
        for (; i + LANES <= width; i += LANES)
            v_store(to + i, v_load_bf16(from + i));
        for (; i < width; i++)
            to[i] = bf16_widen(from[i]);
    }
    for (uint32_t j = n; j < KEY_BLOCK; j++)
        w->key[j] = w->key[0];
}

/* One part (latent or shared) of the products of `queries` queries with KEYS_AT_ONCE keys, by lane:
 * those of query h lie at acc[h * KEYS_AT_ONCE]. */
INLINE void score_part(const float *const *q, const float *const *key, uint32_t from, uint32_t len,
                       int queries, vf *acc)
{
    for (uint32_t d = 0; d < len; d += LANES) {
        uint32_t n = len - d < LANES ? len - d : LANES;
        vf x[2];

        for (int h = 0; h < queries; h++)
            x[h] = v_loadn(q[h] + d, n);
        for (int i = 0; i < KEYS_AT_ONCE; i++) {
            vf k = v_loadn(key[i] + from + d, n);

            for (int h = 0; h < queries; h++)
                acc[h * KEYS_AT_ONCE + i] = v_fma(x[h], k, acc[h * KEYS_AT_ONCE + i]);
        }
    }
}

/* Scores of a query, absent keys minus infinity; the new maximum goes to keep[]. */
INLINE void score_end(struct mla_work *w, uint32_t q, const vf *acc)
{
    const float lanes[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vf top = v_set1(w->best[q]), s = v_mul(v_join16(acc), v_set1(w->a->scale));

    s = v_select(v_lt(v_load(lanes), v_set1((float)w->n[q])), s, v_set1(-INFINITY));
    v_store(w->score[q], s);
    w->keep[q] = v_top(v_select(v_lt(top, s), s, top)); /* a NaN is no maximum */
}

/* Scores of queries q .. q + queries - 1 (a constant) with the keys of the block. */
INLINE void score_queries(struct mla_work *w, uint32_t q, int queries)
{
    const struct kg_pages *p = &w->a->pages;
    vf all[2][KEY_BLOCK];

    for (int j = 0; j < KEY_BLOCK; j += KEYS_AT_ONCE) {
        vf acc[2 * KEYS_AT_ONCE]; /* stays in registers */

        for (int i = 0; i < queries * KEYS_AT_ONCE; i++)
            acc[i] = v_zero();
        score_part(&w->qa[q], &w->key[j], 0, p->latent, queries, acc);
        score_part(&w->qr[q], &w->key[j], p->latent, p->rope, queries, acc);
        for (int i = 0; i < queries * KEYS_AT_ONCE; i++)
            all[i / KEYS_AT_ONCE][j + i % KEYS_AT_ONCE] = acc[i];
    }
    for (int h = 0; h < queries; h++)
        score_end(w, q + (uint32_t)h, all[h]);
}

static void score_one(struct mla_work *w, uint32_t q)
{
    score_queries(w, q, 1);
}

static void score_two(struct mla_work *w, uint32_t q)
{
    score_queries(w, q, 2);
}

/* score[] becomes the weights of the block, keep what the past is multiplied with. */
static void softmax_step(struct mla_work *w)
{
    vf top = v_load(w->keep);
    uint32_t least = KEY_BLOCK;

    v_store(w->keep, v_exp(v_sub(v_load(w->best), top)));
    v_store(w->best, top);
    for (uint32_t q = w->first; q < w->queries; q++) {
        v_store(w->score[q], v_exp(v_sub(v_load(w->score[q]), v_set1(w->best[q]))));
        w->sum[q] *= w->keep[q];
        least = w->n[q] < least ? w->n[q] : least;
    }
    /* key by key, so that the sums of the queries do not wait for each other */
    for (uint32_t j = 0; j < least; j++)
        for (uint32_t q = w->first; q < w->queries; q++)
            w->sum[q] += w->score[q][j];
    for (uint32_t q = w->first; q < w->queries; q++)
        for (uint32_t j = least; j < w->n[q]; j++)
            w->sum[q] += w->score[q][j];
}

/* m = m * keep + the weighted keys, for `queries` queries and `vecs` registers (constants) at d. */
INLINE void mix_keys(struct mla_work *w, uint32_t q, uint32_t d, int queries, int vecs,
                     uint32_t lanes)
{
    vf acc[2 * 4];

    for (int i = 0; i < queries * vecs; i++)
        acc[i] = v_mul(v_loadn(w->m[q + (uint32_t)(i / vecs)] + d + i % vecs * LANES, lanes),
                       v_set1(w->keep[q + (uint32_t)(i / vecs)]));
    for (uint32_t j = 0; j < w->n[q]; j++) {
        vf key[4];

        for (int v = 0; v < vecs; v++)
            key[v] = v_loadn(w->key[j] + d + v * LANES, lanes);
        for (int i = 0; i < queries * vecs; i++)
            acc[i] = v_fma(v_set1(w->score[q + (uint32_t)(i / vecs)][j]), key[i % vecs], acc[i]);
    }
    for (int i = 0; i < queries * vecs; i++)
        v_storen(w->m[q + (uint32_t)(i / vecs)] + d + i % vecs * LANES, acc[i], lanes);
}

INLINE void mix_queries(struct mla_work *w, uint32_t q, int queries)
{
    uint32_t latent = w->a->pages.latent, d = 0;

    for (; d + 4 * LANES <= latent; d += 4 * LANES)
        mix_keys(w, q, d, queries, 4, LANES);
    for (; d < latent; d += LANES)
        mix_keys(w, q, d, queries, 1, latent - d < LANES ? latent - d : LANES);
}

static void mix_one(struct mla_work *w, uint32_t q)
{
    mix_queries(w, q, 1);
}

static void mix_two(struct mla_work *w, uint32_t q)
{
    mix_queries(w, q, 2);
}

static void run_block(struct mla_work *w, uint32_t t0)
{
    uint32_t left = w->last[w->queries - 1] - t0 + 1;

    load_keys(w, t0, left < KEY_BLOCK ? left : KEY_BLOCK);
    while (w->last[w->first] < t0)
        w->first++;
    for (uint32_t q = w->first; q < w->queries; q++)
        w->n[q] = w->last[q] - t0 + 1 < KEY_BLOCK ? w->last[q] - t0 + 1 : KEY_BLOCK;
    for (uint32_t q = w->first; q < w->queries; q += 2) {
        if (q + 1 < w->queries)
            score_two(w, q);
        else
            score_one(w, q);
    }
    softmax_step(w);
    for (uint32_t q = w->first; q < w->queries; q++) {
        if (q + 1 < w->queries && w->n[q + 1] == w->n[q])
            mix_two(w, q++);
        else
            mix_one(w, q);
    }
}

static void add_query(struct mla_work *w, size_t r, uint32_t h, uint32_t position)
{
    const struct kg_mla *a = w->a;
    uint32_t q = w->queries++, latent = a->pages.latent;

    w->last[q] = position;
    w->qa[q] = a->qa + r * a->qa_stride + (size_t)h * latent;
    w->qr[q] = a->qr == NULL ? NULL : a->qr + r * a->qr_stride + h * a->qr_head_stride;
    w->m[q] = a->m + r * a->m_stride + (size_t)h * latent;
    w->best[q] = -INFINITY;
    w->sum[q] = 0.0f;
    memset(w->m[q], 0, latent * sizeof(float));
}

/* Runs of rows of a sequence; `task` counts them over all sequences. */
static const struct kg_mla_seq *run_of(const struct mla_run *run, uint32_t task, uint32_t *row)
{
    const struct kg_mla_seq *s = run->a->seqs;

    for (; task >= (s->n + run->rows - 1) / run->rows; s++)
        task -= (s->n + run->rows - 1) / run->rows;
    *row = task * run->rows;
    return s;
}

static void mla_task(void *arg, uint32_t task, uint32_t member)
{
    const struct mla_run *run = arg;
    const struct kg_mla *a = run->a;
    struct mla_work w;
    uint32_t row, h0 = task % run->groups * run->group;
    const struct kg_mla_seq *s = run_of(run, task / run->groups, &row);

    (void)member;
    w.a = a;
    w.ids = s->pages;
    w.queries = w.first = 0;
    memset(w.best, 0, sizeof(w.best)); /* lanes without a query: any finite number */
    memset(w.keep, 0, sizeof(w.keep));
    for (uint32_t r = row; r < s->n && r < row + run->rows; r++)
        for (uint32_t h = h0; h < a->heads && h < h0 + run->group; h++)
            add_query(&w, s->row0 + r, h, s->past + r);
    for (uint32_t t0 = 0; t0 <= w.last[w.queries - 1]; t0 += KEY_BLOCK)
        run_block(&w, t0);
    for (uint32_t q = 0; q < w.queries; q++)
        for (uint32_t i = 0; i < a->pages.latent; i++)
            w.m[q][i] = w.m[q][i] / w.sum[q];
}

void ISA(mla)(struct kg_team *team, const struct kg_mla *args)
{
    struct mla_run run = {.a = args, .group = QUERIES, .rows = 1};
    uint32_t rows = mla_rows(args->seqs, args->n_seqs), runs = 0;
    uint64_t keys = 0;

    for (uint32_t s = 0; s < args->n_seqs; s++)
        keys += (uint64_t)args->seqs[s].n * (args->seqs[s].past + args->seqs[s].n);
    /* few rows: smaller groups, so that every member has work */
    while (run.group > 1 &&
           rows * ((args->heads + run.group - 1) / run.group) < 2 * kg_team_size(team))
        run.group /= 2;
    if (args->heads < run.group && rows >= 16 * kg_team_size(team))
        run.rows = QUERIES / args->heads;
    run.groups = (args->heads + run.group - 1) / run.group;
    for (uint32_t s = 0; s < args->n_seqs; s++)
        runs += (args->seqs[s].n + run.rows - 1) / run.rows;
    run_sized(team, mla_task, &run, runs * run.groups,
              keys * args->heads * (args->pages.latent * 2 + args->pages.rope));
}

void ISA(page_write)(struct kg_team *team, const struct kg_pages *pages, const float *c,
                     size_t c_stride, const float *kr, size_t kr_stride,
                     const struct kg_mla_seq *seqs, uint32_t n_seqs)
{
    (void)team; /* a copy of a few KiB a row */
    for (uint32_t n = 0; n < n_seqs; n++) {
        for (uint32_t j = 0; j < seqs[n].n; j++) {
            uint8_t *record = page_record(pages, seqs[n].pages, seqs[n].past + j);
            size_t r = seqs[n].row0 + j;

            if (pages->dtype == KG_F32) {
                memcpy(record, c + r * c_stride, pages->latent * sizeof(float));
                if (pages->rope > 0)
                    memcpy((float *)record + pages->latent, kr + r * kr_stride,
                           pages->rope * sizeof(float));
                continue;
            }
            uint16_t *to = (uint16_t *)record;
            for (uint32_t i = 0; i < pages->latent; i++)
                to[i] = bf16_round(c[r * c_stride + i]);
            for (uint32_t i = 0; i < pages->rope; i++)
                to[pages->latent + i] = bf16_round(kr[r * kr_stride + i]);
        }
    }
}
