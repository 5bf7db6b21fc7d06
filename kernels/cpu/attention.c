/* Absorbed attention over pages. A task is one row and a group of heads, which share the keys. */
#include "cpu.h"

#include "vmath.h"

#include <math.h>

#define HEADS 8 /* most heads of a task */

struct mla_run {
    const struct kg_mla *a;
    uint32_t group;  /* heads of a task */
    uint32_t groups; /* tasks of a row */
};

/* One task: keys of the current block and the running softmax of each head. */
struct mla_work {
    const struct kg_mla *a;
    const uint32_t *ids;
    uint32_t last; /* position of the row */
    uint32_t heads;
    const float *qa[HEADS], *qr[HEADS];
    float *m[HEADS];
    float best[HEADS], sum[HEADS], keep[HEADS];
    float score[HEADS][KEY_BLOCK];
    uint32_t n; /* keys in this block */
    const float *key[KEY_BLOCK];
    float tile[KEY_BLOCK * KG_MLA_MAX]; /* widened keys of bf16 pages */
};

static void load_keys(struct mla_work *w, uint32_t t0)
{
    const struct kg_pages *p = &w->a->pages;
    uint32_t width = p->latent + p->rope;

    w->n = w->last - t0 + 1 < KEY_BLOCK ? w->last - t0 + 1 : KEY_BLOCK;
    for (uint32_t j = 0; j < w->n; j++) {
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
}

/* One part (latent or shared) of the scores of `heads` x `keys` (constants). */
INLINE void score_part(const struct mla_work *w, const float *const *q, uint32_t from, uint32_t len,
                       uint32_t j, int heads, int keys, vf *acc)
{
    for (uint32_t d = 0; d < len; d += LANES) {
        uint32_t n = len - d < LANES ? len - d : LANES;
        vf x[2];

        for (int h = 0; h < heads; h++)
            x[h] = v_loadn(q[h] + d, n);
        for (int i = 0; i < keys; i++) {
            vf key = v_loadn(w->key[j + (uint32_t)i] + from + d, n);

            for (int h = 0; h < heads; h++)
                acc[h * keys + i] = v_fma(x[h], key, acc[h * keys + i]);
        }
    }
}

/* Scores of keys j .. j+keys-1 for heads h .. h+heads-1. */
INLINE void score_keys(struct mla_work *w, uint32_t h, uint32_t j, int heads, int keys)
{
    const struct kg_pages *p = &w->a->pages;
    vf acc[2 * 4];

    for (int i = 0; i < heads * keys; i++)
        acc[i] = v_zero();
    score_part(w, &w->qa[h], 0, p->latent, j, heads, keys, acc);
    score_part(w, &w->qr[h], p->latent, p->rope, j, heads, keys, acc);
    for (int i = 0; i < heads * keys; i++)
        w->score[h + (uint32_t)(i / keys)][j + (uint32_t)(i % keys)] = v_join(acc[i]) * w->a->scale;
}

/* score[] becomes the weights of the block, keep what the past is multiplied with. */
static void softmax_step(struct mla_work *w, uint32_t h)
{
    float top = w->best[h], *score = w->score[h];

    for (uint32_t j = 0; j < w->n; j++)
        top = score[j] > top ? score[j] : top;
    w->keep[h] = s_exp(w->best[h] - top);
    v_store(score, v_exp(v_sub(v_load(score), v_set1(top))));
    w->best[h] = top;
    w->sum[h] *= w->keep[h];
    for (uint32_t j = 0; j < w->n; j++)
        w->sum[h] += score[j];
}

/* m = m * keep + the weighted keys, for `heads` heads and `vecs` registers (constants) at d. */
INLINE void mix_keys(struct mla_work *w, uint32_t h, uint32_t d, int heads, int vecs,
                     uint32_t lanes)
{
    vf acc[2 * 4];

    for (int i = 0; i < heads * vecs; i++)
        acc[i] = v_mul(v_loadn(w->m[h + (uint32_t)(i / vecs)] + d + i % vecs * LANES, lanes),
                       v_set1(w->keep[h + (uint32_t)(i / vecs)]));
    for (uint32_t j = 0; j < w->n; j++) {
        vf key[4];

        for (int v = 0; v < vecs; v++)
            key[v] = v_loadn(w->key[j] + d + v * LANES, lanes);
        for (int i = 0; i < heads * vecs; i++)
            acc[i] = v_fma(v_set1(w->score[h + (uint32_t)(i / vecs)][j]), key[i % vecs], acc[i]);
    }
    for (int i = 0; i < heads * vecs; i++)
        v_storen(w->m[h + (uint32_t)(i / vecs)] + d + i % vecs * LANES, acc[i], lanes);
}

/* The current block of keys for heads h .. h+heads-1. */
INLINE void block_heads(struct mla_work *w, uint32_t h, int heads)
{
    uint32_t latent = w->a->pages.latent, j = 0, d = 0;

    for (; j + 4 <= w->n; j += 4)
        score_keys(w, h, j, heads, 4);
    for (; j < w->n; j++)
        score_keys(w, h, j, heads, 1);
    for (int i = 0; i < heads; i++)
        softmax_step(w, h + (uint32_t)i);
    for (; d + 4 * LANES <= latent; d += 4 * LANES)
        mix_keys(w, h, d, heads, 4, LANES);
    for (; d < latent; d += LANES)
        mix_keys(w, h, d, heads, 1, latent - d < LANES ? latent - d : LANES);
}

static void block_one(struct mla_work *w, uint32_t h)
{
    block_heads(w, h, 1);
}

static void block_two(struct mla_work *w, uint32_t h)
{
    block_heads(w, h, 2);
}

static void run_block(struct mla_work *w, uint32_t t0)
{
    uint32_t h = 0;

    load_keys(w, t0);
    for (; h + 2 <= w->heads; h += 2)
        block_two(w, h);
    if (h < w->heads)
        block_one(w, h);
}

static void mla_task(void *arg, uint32_t task, uint32_t member)
{
    const struct mla_run *run = arg;
    const struct kg_mla *a = run->a;
    struct mla_work w;
    uint32_t row, h0 = task % run->groups * run->group;
    const struct kg_mla_seq *s = &a->seqs[mla_seq_of(a->seqs, task / run->groups, &row)];
    size_t r = s->row0 + row;

    (void)member;
    w.a = a;
    w.ids = s->pages;
    w.last = s->past + row;
    w.heads = a->heads - h0 < run->group ? a->heads - h0 : run->group;
    for (uint32_t h = 0; h < w.heads; h++) {
        w.qa[h] = a->qa + r * a->qa_stride + (size_t)(h0 + h) * a->pages.latent;
        w.qr[h] = a->qr == NULL ? NULL : a->qr + r * a->qr_stride + (h0 + h) * a->qr_head_stride;
        w.m[h] = a->m + r * a->m_stride + (size_t)(h0 + h) * a->pages.latent;
        w.best[h] = -INFINITY;
        w.sum[h] = 0.0f;
        memset(w.score[h], 0, sizeof(w.score[h])); /* absent keys: any finite number */
        memset(w.m[h], 0, a->pages.latent * sizeof(float));
    }
    for (uint32_t t0 = 0; t0 <= w.last; t0 += KEY_BLOCK)
        run_block(&w, t0);
    for (uint32_t h = 0; h < w.heads; h++)
        for (uint32_t i = 0; i < a->pages.latent; i++)
            w.m[h][i] = w.m[h][i] / w.sum[h];
}

void ISA(mla)(struct kg_team *team, const struct kg_mla *args)
{
    struct mla_run run = {.a = args, .group = HEADS};
    uint32_t rows = mla_rows(args->seqs, args->n_seqs);
    uint64_t keys = 0;

    for (uint32_t s = 0; s < args->n_seqs; s++)
        keys += (uint64_t)args->seqs[s].n * (args->seqs[s].past + args->seqs[s].n);
    /* few rows: smaller groups, so that every member has work */
    while (run.group > 1 &&
           rows * ((args->heads + run.group - 1) / run.group) < 2 * kg_team_size(team))
        run.group /= 2;
    run.groups = (args->heads + run.group - 1) / run.group;
    run_sized(team, mla_task, &run, rows * run.groups,
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
