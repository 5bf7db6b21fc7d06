#include "model/sample.h"

#include "kernels/sampling.h"

#include <math.h>

#define DIGIT_BITS 11
#define N_BINS (1u << DIGIT_BITS)

/* Views into the caller's working memory. */
struct work {
    uint64_t *bins; /* [N_BINS] */
    uint64_t *keys; /* [vocab] */
    uint64_t *tmp;  /* [vocab] */
    float *x;       /* [vocab] */
};

size_t kg_sample_scratch_bytes(uint32_t vocab)
{
    return N_BINS * sizeof(uint64_t) + (size_t)vocab * (2 * sizeof(uint64_t) + sizeof(float));
}

static struct work split_scratch(void *scratch, uint32_t vocab)
{
    struct work w;

    w.bins = scratch;
    w.keys = w.bins + N_BINS;
    w.tmp = w.keys + vocab;
    w.x = (float *)(w.tmp + vocab);
    return w;
}

/* --- noise ------------------------------------------------------------------------------------ */

double kg_sample_noise(uint64_t seed, uint32_t position, uint32_t token)
{
    return kg_gumbel(kg_noise_bits(kg_noise_key(seed, position), token));
}

uint64_t kg_sample_stream(uint64_t seed, uint32_t stream, uint32_t window)
{
    return kg_mix64(kg_mix64(seed ^ stream * 0xd6e8feb86659fd93ull) + (window + 1ull) * KG_WEYL);
}

double kg_sample_uniform(uint64_t seed, uint32_t position)
{
    return ((double)kg_noise_bits(kg_noise_key(seed, position), 0) + 0.5) * 0x1p-52;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Largest value of a row; 0 in *ok when a value is NaN or +inf, or all are -inf. */
static float row_max(const float *x, uint32_t n, int *ok)
{
    int32_t hi = INT32_MIN, lo = INT32_MAX;

    for (uint32_t i = 0; i < n; i++) {
        int32_t o = kg_order_of(x[i]);
        hi = o > hi ? o : hi;
        lo = o < lo ? o : lo;
    }
    *ok = kg_order_ok(lo, hi);
    return kg_order_value(hi);
}

/* Lowest index that holds the value. */
static uint32_t first_of(const float *x, uint32_t n, float value)
{
    uint32_t i = 0;

    while (i + 1 < n && !(x[i] == value)) {
        i++;
    }
    return i;
}

/* Sum over the row of e^(x - max). */
static double sum_exp(const float *x, uint32_t n, double max)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += kg_sampling_mass(kg_exact_exp((double)x[i] - max));
    }
    return kg_sampling_sum(sum);
}

/* --- keys: value and token in one number, larger is better ------------------------------------ */

/* How a key counts: as 1, or with the mass of its value in the softmax. */
struct weigh {
    int by_mass;
    double max, scale; /* mass of e^((value - max) * scale) */
};

/* Weights of n <= BLOCK keys: by blocks, so that the exponentials vectorise. */
#define BLOCK 64
static void weights_of(const struct weigh *w, const uint64_t *keys, uint32_t n, uint64_t *out)
{
    for (uint32_t i = 0; i < n && !w->by_mass; i++) {
        out[i] = 1;
    }
    for (uint32_t i = 0; i < n && w->by_mass; i++) {
        out[i] =
            kg_sampling_mass(kg_exact_exp(((double)kg_key_value(keys[i]) - w->max) * w->scale));
    }
}

/* Sum of all weights. */
static uint64_t total(const struct weigh *w, const uint64_t *keys, uint32_t n)
{
    uint64_t out[BLOCK], sum = 0;

    for (uint32_t i = 0; i < n; i += BLOCK) {
        uint32_t m = n - i < BLOCK ? n - i : BLOCK;
        weights_of(w, keys + i, m, out);
        for (uint32_t j = 0; j < m; j++) {
            sum += out[j];
        }
    }
    return sum;
}

/* Sum of the weights by the digit of their keys at bit s. */
static void sort_mass(const struct weigh *w, const uint64_t *keys, uint32_t n, int s,
                      uint64_t *bins)
{
    uint64_t out[BLOCK];

    memset(bins, 0, N_BINS * sizeof(*bins));
    for (uint32_t i = 0; i < n; i += BLOCK) {
        uint32_t m = n - i < BLOCK ? n - i : BLOCK;
        weights_of(w, keys + i, m, out);
        for (uint32_t j = 0; j < m; j++) {
            bins[keys[i + j] >> s & (N_BINS - 1)] += out[j];
        }
    }
}

/*
 * The smallest key of the shortest run of best keys whose weights reach `need`; need is at most the
 * sum of all. Radix search from the top digit down: each pass looks only at keys that
 * share the digits fixed so far. O(n), no sorting. `tmp` holds n keys, n >= 1.
 */
static uint64_t cut(const uint64_t *keys, uint32_t n, uint64_t need, const struct weigh *w,
                    uint64_t *tmp, uint64_t *bins)
{
    uint64_t above = 0;

    for (int shift = 64 - DIGIT_BITS; n > 1; shift -= DIGIT_BITS) {
        int s = shift < 0 ? 0 : shift;
        uint32_t bin = N_BINS, m = 0;
        sort_mass(w, keys, n, s, bins);
        for (uint32_t d = N_BINS; d-- > 0;) {
            if (bins[d] == 0) {
                continue;
            }
            bin = d;
            if (above + bins[d] >= need) {
                break;
            }
            above += bins[d];
        }
        for (uint32_t i = 0; i < n; i++) {
            if ((keys[i] >> s & (N_BINS - 1)) == bin) {
                tmp[m++] = keys[i];
            }
        }
        keys = tmp;
        n = m;
    }
    return keys[0];
}

/* Keeps the keys >= least, in place; returns how many. */
static uint32_t keep(uint64_t *keys, uint32_t n, uint64_t least)
{
    uint32_t m = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (keys[i] >= least) {
            keys[m++] = keys[i];
        }
    }
    return m;
}

/* --- logits to x ------------------------------------------------------------------------------ */

static struct kg_penalties penalties_of(const struct kg_sampling *s)
{
    return (struct kg_penalties){.repetition = s->repetition_penalty,
                                 .frequency = s->frequency_penalty,
                                 .presence = s->presence_penalty};
}

int kg_sampling_has_penalty(const struct kg_sampling *s)
{
    struct kg_penalties p = penalties_of(s);

    return kg_penalties_any(&p);
}

static int is_stop(const struct kg_sampling *s, uint32_t token)
{
    for (uint32_t i = 0; i < s->n_stop_ids && i < KG_MAX_STOP_IDS; i++) {
        if (s->stop_ids[i] == token) {
            return 1;
        }
    }
    return 0;
}

/* The row the rule works on: the logits themselves, or a changed copy in w->x. */
static const float *adjust(const struct kg_sample_row *row, const struct work *w)
{
    const struct kg_sampling *s = row->sampling;
    const struct kg_token_counts *c = row->counts;
    struct kg_penalties p = penalties_of(s);
    int penalty = c != NULL && c->n > 0 && kg_penalties_any(&p);
    int mask = row->n_output < s->min_tokens && s->n_stop_ids > 0;

    if (!penalty && !mask) {
        return row->logits;
    }
    memcpy(w->x, row->logits, row->vocab * sizeof(*w->x));
    for (uint32_t i = 0; penalty && i < c->n; i++) {
        const struct kg_token_count *e = &c->entries[i];
        if (e->token < row->vocab) {
            w->x[e->token] = kg_penalised(&p, e->n_output, row->logits[e->token]);
        }
    }
    for (uint32_t i = 0; mask && i < s->n_stop_ids && i < KG_MAX_STOP_IDS; i++) {
        if (s->stop_ids[i] < row->vocab) {
            w->x[s->stop_ids[i]] = -INFINITY;
        }
    }
    return w->x;
}

/* Nothing is left but -inf: the lowest id that may be picked, or simply the best logit. */
static uint32_t pick_of_nothing(const struct kg_sample_row *row, float raw_max)
{
    for (uint32_t i = 0; i < row->vocab && i <= KG_MAX_STOP_IDS; i++) {
        if (!is_stop(row->sampling, i)) {
            return i;
        }
    }
    return first_of(row->logits, row->vocab, raw_max);
}

/* --- the pick --------------------------------------------------------------------------------- */

/* Keys of what the filters keep, in w->keys; returns how many, at least 1. */
static uint32_t filter(const struct kg_sampling *s, const float *x, uint32_t vocab, float max,
                       const struct work *w)
{
    double scale = 1.0 / s->temperature;
    struct weigh count = {0}, mass = {.by_mass = 1, .max = max, .scale = scale};
    double least = -INFINITY; /* of (x - max) * scale */
    uint32_t n = 0;

    if (s->min_p > 0) {
        least = s->min_p < 1 ? kg_exact_log(s->min_p) : 0;
    }
    for (uint32_t i = 0; i < vocab; i++) {
        if (((double)x[i] - max) * scale >= least) {
            w->keys[n++] = kg_key_of(x[i], i);
        }
    }
    if (s->top_k > 0 && s->top_k < n) {
        n = keep(w->keys, n, cut(w->keys, n, s->top_k, &count, w->tmp, w->bins));
    }
    if (s->top_p > 0 && s->top_p < 1 && n > 1) {
        uint64_t need = kg_sampling_need(s->top_p, total(&mass, w->keys, n));
        n = keep(w->keys, n, cut(w->keys, n, need, &mass, w->tmp, w->bins));
    }
    return n;
}

static uint32_t draw(const struct kg_sample_row *row, const float *x, float max,
                     const struct work *w)
{
    const struct kg_sampling *s = row->sampling;
    double scale = 1.0 / s->temperature;
    uint64_t key = kg_noise_key(s->seed, row->position);
    uint32_t top = first_of(x, row->vocab, max);
    struct kg_best b = {.score = -INFINITY, .token = top};

    kg_best_offer(&b, max * scale, key, top); /* a good bar first: most others fail it cheaply */
    if (s->min_p > 0 || s->top_k > 0 || (s->top_p > 0 && s->top_p < 1)) {
        uint32_t n = filter(s, x, row->vocab, max, w);
        for (uint32_t i = 0; i < n; i++) {
            kg_best_offer(&b, kg_key_value(w->keys[i]) * scale, key, kg_key_token(w->keys[i]));
        }
        return b.token;
    }
    for (uint32_t i = 0; i < row->vocab; i++) {
        kg_best_offer(&b, x[i] * scale, key, i);
    }
    return b.token;
}

/* Weights of what the filters keep, in p; the rest is 0. */
static void weigh_row(const struct kg_sampling *s, const float *x, uint32_t vocab, float max,
                      const struct work *w, double *p)
{
    double scale = 1.0 / s->temperature;

    if (s->min_p > 0 || s->top_k > 0 || (s->top_p > 0 && s->top_p < 1)) {
        uint32_t n = filter(s, x, vocab, max, w);
        memset(p, 0, vocab * sizeof(*p));
        for (uint32_t i = 0; i < n; i++) {
            p[kg_key_token(w->keys[i])] =
                kg_exact_exp(((double)kg_key_value(w->keys[i]) - max) * scale);
        }
        return;
    }
    for (uint32_t i = 0; i < vocab; i++) {
        p[i] = kg_exact_exp(((double)x[i] - max) * scale);
    }
}

uint32_t kg_sample_probs(const struct kg_sample_row *row, void *scratch, double *p)
{
    struct work w = split_scratch(scratch, row->vocab);
    int ok, any = 1;
    float raw_max = row_max(row->logits, row->vocab, &ok);
    double sum = 0;

    if (!ok) {
        return KG_RES_NAN;
    }
    const float *x = adjust(row, &w);
    float max = x == row->logits ? raw_max : row_max(x, row->vocab, &any);
    if (!any) {
        memset(p, 0, row->vocab * sizeof(*p));
        p[pick_of_nothing(row, raw_max)] = 1.0;
        return 0;
    }
    weigh_row(row->sampling, x, row->vocab, max, &w, p);
    for (uint32_t i = 0; i < row->vocab; i++) {
        sum += p[i];
    }
    for (uint32_t i = 0; i < row->vocab; i++) {
        p[i] /= sum;
    }
    return 0;
}

/* --- log probabilities ------------------------------------------------------------------------ */

/* out[0..n-1]: the n best of the row, best first; entries past the vocabulary are empty. */
static void best_n(const float *x, uint32_t vocab, uint32_t n, struct kg_logprob *out)
{
    uint32_t have = 0;

    for (uint32_t i = 0; i < vocab && n > 0; i++) {
        if (have == n && !(x[i] > out[n - 1].logprob)) {
            continue;
        }
        uint32_t at = have < n ? have++ : n - 1;
        while (at > 0 && x[i] > out[at - 1].logprob) {
            out[at] = out[at - 1];
            at--;
        }
        out[at] = (struct kg_logprob){.id = i, .logprob = x[i]};
    }
    while (have < n) {
        out[have++] = (struct kg_logprob){.id = KG_NONE, .logprob = -INFINITY};
    }
}

static void fill_logprobs(const float *x, uint32_t vocab, float max, uint32_t token, uint32_t n_top,
                          struct kg_logprob *out)
{
    double lse = (double)max + kg_exact_log(sum_exp(x, vocab, max));

    out[0] = (struct kg_logprob){.id = KG_NONE};
    if (token < vocab) {
        out[0] = (struct kg_logprob){.id = token, .logprob = (float)(x[token] - lse)};
    }
    best_n(x, vocab, n_top, out + 1);
    for (uint32_t i = 1; i <= n_top; i++) {
        out[i].logprob = (float)(out[i].logprob - lse);
    }
}

static void empty_logprobs(uint32_t n, struct kg_logprob *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (struct kg_logprob){.id = KG_NONE};
    }
}

static uint32_t n_alternatives(uint32_t n)
{
    return n < KG_MAX_LOGPROBS ? n : KG_MAX_LOGPROBS;
}

uint32_t kg_sample_logprobs(const float *logits, uint32_t vocab, uint32_t token, uint32_t n_top,
                            struct kg_logprob *out)
{
    uint32_t n = n_alternatives(n_top);
    int ok;
    float max = row_max(logits, vocab, &ok);

    if (!ok) {
        empty_logprobs(1 + n, out);
        return KG_RES_NAN;
    }
    fill_logprobs(logits, vocab, max, token, n, out);
    return 0;
}

void kg_sample(const struct kg_sample_row *row, void *scratch, struct kg_sample_pick *pick,
               struct kg_logprob *logprobs)
{
    const struct kg_sampling *s = row->sampling;
    struct work w = split_scratch(scratch, row->vocab);
    uint32_t n = n_alternatives(s->n_logprobs), token;
    int ok, any = 1;
    float raw_max = row_max(row->logits, row->vocab, &ok);

    if (!ok) {
        *pick = (struct kg_sample_pick){.flags = KG_RES_NAN};
        if (logprobs != NULL) {
            empty_logprobs(1 + n, logprobs);
        }
        return;
    }
    const float *x = adjust(row, &w);
    float max = x == row->logits ? raw_max : row_max(x, row->vocab, &any);
    if (!any) {
        token = pick_of_nothing(row, raw_max);
    } else if (s->temperature > 0) {
        token = draw(row, x, max, &w);
    } else {
        token = first_of(x, row->vocab, max);
    }
    *pick = (struct kg_sample_pick){.token = token, .flags = is_stop(s, token) ? KG_RES_STOP : 0};
    if (logprobs != NULL) {
        fill_logprobs(row->logits, row->vocab, raw_max, token, n, logprobs);
    }
}
