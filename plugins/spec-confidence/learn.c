#include "learn.h"

#include <math.h>

#define PRIOR 16.0f     /* trials that an estimate starts with */
#define MOST 1024.0f    /* trials of a cell before it forgets half */
#define START 0.7f      /* acceptance before anything was seen */
#define EDGE 0.0024726f /* confidences beyond logit -6 and 6 count as these */
#define WIDTH 1.5f      /* of a bin, in logits */

uint32_t learn_bucket(uint32_t context)
{
    uint32_t b = 0;

    for (uint32_t c = context / 256; c > 0 && b + 1 < LEARN_BUCKETS; c /= 2) {
        b++;
    }
    return b;
}

static float clip(float c)
{
    if (!(c > EDGE)) {
        return EDGE;
    }
    return c < 1.0f - EDGE ? c : 1.0f - EDGE;
}

static float logit(float p)
{
    return logf(p / (1.0f - p));
}

static uint32_t bin_of(float c)
{
    int b = (int)floorf(logit(clip(c)) / WIDTH + LEARN_BINS / 2.0f);

    return b < 0 ? 0 : b < LEARN_BINS ? (uint32_t)b : LEARN_BINS - 1;
}

/* Share of a cell, drawn towards `prior`. */
static float share(float sum, float n, float prior)
{
    return clip((sum + PRIOR * prior) / (n + PRIOR));
}

/* What a cell adds to the logit. */
static float shift(const struct learn_cell *cell, const struct learn_cell *pooled, float c)
{
    float said = clip(c), accepted = said;

    if (pooled != NULL) {
        accepted = share(pooled->accepted, pooled->n, said);
        said = share(pooled->said, pooled->n, said);
    }
    return logit(share(cell->accepted, cell->n, accepted)) -
           logit(share(cell->said, cell->n, said));
}

static float moved(float c, float by)
{
    float x = clip(c);

    return by == 0.0f ? c : 1.0f / (1.0f + expf(-(logit(x) + by)));
}

static float corrected_near(const struct learn *l, uint32_t class, uint32_t position, float c)
{
    uint32_t b = bin_of(c);
    const struct learn_cell *pooled = &l->pooled[class][b];
    const struct learn_cell *cell = &l->at[class][position][b];

    return pooled->n > 0 ? moved(c, shift(cell, pooled, c)) : c;
}

float learn_correct(const struct learn *l, uint32_t class, uint32_t position, uint32_t bucket,
                    float c)
{
    float x = c > 0.0f ? c : 0.0f; /* of NaN: 0 */

    x = corrected_near(l, class, position, x < 1.0f ? x : 1.0f);
    if (l->far[bucket].n > 0) {
        x = moved(x, shift(&l->far[bucket], NULL, x));
    }
    return x;
}

static void count(struct learn_cell *cell, float said, int accepted)
{
    if (cell->n >= MOST) {
        cell->n *= 0.5f;
        cell->said *= 0.5f;
        cell->accepted *= 0.5f;
    }
    cell->n += 1.0f;
    cell->said += said;
    cell->accepted += accepted ? 1.0f : 0.0f;
}

void learn_trial(struct learn *l, uint32_t class, uint32_t position, uint32_t bucket, float c,
                 int accepted)
{
    float said = clip(c);
    uint32_t b = bin_of(c);

    count(&l->far[bucket], clip(corrected_near(l, class, position, said)), accepted);
    count(&l->at[class][position][b], said, accepted);
    count(&l->pooled[class][b], said, accepted);
    count(&l->mean[class][position], said, accepted);
}

float learn_mean(const struct learn *l, uint32_t class, uint32_t position)
{
    const struct learn_cell *m = &l->mean[class][position];

    return share(m->accepted, m->n, START);
}
