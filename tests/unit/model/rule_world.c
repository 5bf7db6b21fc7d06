#include "rule_world.h"

#include <math.h>
#include <string.h>

uint64_t world_mix(uint64_t h)
{
    h = (h ^ h >> 31) * 0x7fb5d329728ea185ull;
    h = (h ^ h >> 27) * 0x81dadef4bc2dd44dull;
    return h ^ h >> 33;
}

double world_unit(uint64_t h)
{
    return (double)(world_mix(h) >> 11) * 0x1p-53;
}

/* Logits: the drafter knows the target by halves. */
static void make_logits(struct world *w)
{
    for (uint32_t i = 0; i < V * V * V; i++) {
        uint64_t h = world_mix(w->salt + i * 2654435761ull);
        double shared = 4 * world_unit(h);
        (&w->x[0][0][0][0])[i] = (float)(0.8 * shared + 1.6 * world_unit(h + 1));
        (&w->x[1][0][0][0])[i] = (float)(0.7 * shared + 1.2 * world_unit(h + 2));
    }
}

/* Probabilities of a row, by sorting: penalties, temperature, top_k, top_p. */
static void probs(const struct world *w, const float *x, const uint32_t *in_prompt,
                  const uint32_t *in_output, double *p)
{
    const struct kg_sampling *s = &w->sampling;
    double e[V], sum = 0, kept = 0;
    uint32_t order[V];

    for (uint32_t v = 0; v < V; v++) {
        double l = x[v];
        if (s->repetition_penalty > 0 && in_prompt[v] + in_output[v] > 0)
            l = l > 0 ? l / s->repetition_penalty : l * s->repetition_penalty;
        l -= s->frequency_penalty * in_output[v];
        e[v] = exp(l / s->temperature);
        order[v] = v;
        for (uint32_t i = v; i > 0 && e[order[i]] > e[order[i - 1]]; i--) {
            uint32_t t = order[i];
            order[i] = order[i - 1];
            order[i - 1] = t;
        }
    }
    for (uint32_t i = 0; i < V; i++) {
        if (s->top_k > 0 && i >= s->top_k)
            e[order[i]] = 0;
        sum += e[order[i]];
    }
    for (uint32_t i = 0; i < V && s->top_p > 0; i++) {
        if (kept >= s->top_p * sum)
            e[order[i]] = 0;
        kept += e[order[i]];
    }
    sum = 0;
    for (uint32_t v = 0; v < V; v++)
        sum += e[v];
    for (uint32_t v = 0; v < V; v++)
        p[v] = e[v] / sum;
}

void world_make(struct world *w)
{
    static const uint32_t none[V];
    double q[V];

    make_logits(w);
    for (uint32_t a = 0; a < V; a++) {
        for (uint32_t b = 0; b < V; b++) {
            double sum = 0;
            for (uint32_t v = 0; v < V; v++)
                sum += q[v] = exp(w->x[0][a][b][v] / w->sampling.temperature);
            probs(w, w->x[1][a][b], none, none, w->p[a][b]);
            for (uint32_t v = 0; v < V; v++) {
                w->q[a][b][v] = (float)(q[v] / sum);
                w->log_q[a][b][v] = log(q[v] / sum);
                /* 1 - total variation: what rejection accepts of a draft here */
                w->survives[a][b] += fmin(w->p[a][b][v], q[v] / sum);
            }
        }
    }
}

uint32_t world_draw(const struct world *w, const uint32_t *tokens, uint32_t n, uint32_t k)
{
    uint32_t at = n + k, a = tokens[at - 2], b = tokens[at - 1], x = 0;

    if (w->one_hot) { /* a guess that is not drawn, as of prompt lookup */
        return (a * 5 + b * 3 + 1) % V;
    }
    if (w->sampling.accept == KG_ACCEPT_COUPLED) {
        double best = -INFINITY;
        for (uint32_t v = 0; v < V; v++) {
            double score = w->log_q[a][b][v] + kg_sample_noise(w->sampling.seed, at, v);
            x = score > best ? v : x;
            best = score > best ? score : best;
        }
        return x;
    }
    uint64_t noise = kg_sample_stream(w->sampling.seed, KG_STREAM_DRAFT, n);
    double u = kg_sample_uniform(noise, at);
    for (; x + 1 < V && u >= w->q[a][b][x]; x++)
        u -= w->q[a][b][x];
    return x;
}

int world_is_stop(const struct world *w, uint32_t token)
{
    for (uint32_t i = 0; i < w->sampling.n_stop_ids; i++) {
        if (w->sampling.stop_ids[i] == token)
            return 1;
    }
    return 0;
}

void world_reference(const struct world *w, double *cells)
{
    for (uint32_t c = 0; c < CELLS; c++) {
        uint32_t t[BEGIN + LENGTH] = {3, 5, c / (V * V), c / V % V, c % V};
        uint32_t in_prompt[V] = {0}, in_output[V] = {0};
        double p[V];
        in_prompt[3] = in_prompt[5] = 1;
        cells[c] = 1.0;
        for (uint32_t i = BEGIN; i < BEGIN + LENGTH; i++) {
            if (i > BEGIN && world_is_stop(w, t[i - 1])) {
                cells[c] *= t[i] == t[i - 1];
                continue;
            }
            if (kg_sampling_has_penalty(&w->sampling))
                probs(w, w->x[1][t[i - 2]][t[i - 1]], in_prompt, in_output, p);
            else
                memcpy(p, w->p[t[i - 2]][t[i - 1]], sizeof(p));
            cells[c] *= p[t[i]];
            in_output[t[i]]++;
        }
    }
}

double world_deviations(const double *cells, const uint32_t *counts, double n_requests)
{
    double stat = 0, rare_want = 0, rare_got = 0;
    uint32_t n = 0;

    for (uint32_t c = 0; c < CELLS; c++) {
        double want = cells[c] * n_requests;
        if (want < 8) {
            rare_want += want;
            rare_got += counts[c];
            continue;
        }
        stat += (counts[c] - want) * (counts[c] - want) / want;
        n++;
    }
    if (rare_want > 8) {
        stat += (rare_got - rare_want) * (rare_got - rare_want) / rare_want;
        n++;
    }
    double free = n - 1.0;
    return (cbrt(stat / free) - (1 - 2 / (9 * free))) / sqrt(2 / (9 * free));
}
