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
    float best[HEADS], sum[HEADS];
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

/* Scores of `n` keys (a constant) from key j on for one head. */
INLINE void score_keys(const struct mla_work *w, uint32_t h, uint32_t j, int n, float *score)
{
    const struct kg_pages *p = &w->a->pages;
    vf acc[4];

    for (int i = 0; i < n; i++)
        acc[i] = v_zero();
    for (int part = 0; part < 2; part++) {
        const float *q = part == 0 ? w->qa[h] : w->qr[h];
        uint32_t from = part == 0 ? 0 : p->latent, len = part == 0 ? p->latent : p->rope, d = 0;

        for (; d + LANES <= len; d += LANES) {
            vf x = v_load(q + d);

            for (int i = 0; i < n; i++)
                acc[i] = v_fma(x, v_load(w->key[j + (uint32_t)i] + from + d), acc[i]);
        }
        if (d == len)
            continue;
        vf x = v_loadn(q + d, len - d);
        for (int i = 0; i < n; i++)
            acc[i] = v_fma(x, v_loadn(w->key[j + (uint32_t)i] + from + d, len - d), acc[i]);
    }
    for (int i = 0; i < n; i++)
        score[i] = v_join(acc[i]) * w->a->scale;
}

/* score[] becomes the weights of the block; returns what the past is multiplied with. */
static float softmax_step(struct mla_work *w, uint32_t h, float *score)
{
    float top = w->best[h];

    for (uint32_t j = 0; j < w->n; j++)
        top = score[j] > top ? score[j] : top;
    float keep = s_exp(w->best[h] - top);
    v_store(score, v_exp(v_sub(v_load(score), v_set1(top))));
    w->best[h] = top;
    w->sum[h] *= keep;
    for (uint32_t j = 0; j < w->n; j++)
        w->sum[h] += score[j];
    return keep;
}

/* m = m * keep + sum of weighted keys for `vecs` registers (a constant) at d. */
INLINE void mix_keys(const struct mla_work *w, float *m, int vecs, uint32_t d, uint32_t lanes,
                     const float *weight, float keep)
{
    vf acc[8];

    for (int i = 0; i < vecs; i++)
        acc[i] = v_mul(v_loadn(m + d + i * LANES, lanes), v_set1(keep));
    for (uint32_t j = 0; j < w->n; j++) {
        vf x = v_set1(weight[j]);

        for (int i = 0; i < vecs; i++)
            acc[i] = v_fma(x, v_loadn(w->key[j] + d + i * LANES, lanes), acc[i]);
    }
    for (int i = 0; i < vecs; i++)
        v_storen(m + d + i * LANES, acc[i], lanes);
}

static void block_head(struct mla_work *w, uint32_t h)
{
    uint32_t latent = w->a->pages.latent, j = 0, d = 0;
    float score[KEY_BLOCK] = {0};

    for (; j + 4 <= w->n; j += 4)
        score_keys(w, h, j, 4, score + j);
    for (; j < w->n; j++)
        score_keys(w, h, j, 1, score + j);
    float keep = softmax_step(w, h, score);
    for (; d + 8 * LANES <= latent; d += 8 * LANES)
        mix_keys(w, w->m[h], 8, d, LANES, score, keep);
    for (; d + LANES <= latent; d += LANES)
        mix_keys(w, w->m[h], 1, d, LANES, score, keep);
    if (d < latent)
        mix_keys(w, w->m[h], 1, d, latent - d, score, keep);
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
        memset(w.m[h], 0, a->pages.latent * sizeof(float));
    }
    for (uint32_t t0 = 0; t0 <= w.last; t0 += KEY_BLOCK) {
        load_keys(&w, t0);
        for (uint32_t h = 0; h < w.heads; h++)
            block_head(&w, h);
    }
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
