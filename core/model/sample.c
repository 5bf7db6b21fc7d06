#include "model/sample.h"

#include "model/exact.h"

#include <float.h>
#include <math.h>

#define LANES 8
#define DIGIT_BITS 11
#define N_BINS (1u << DIGIT_BITS)
#define LN2_UP 0.6931471806     /* a little above ln 2 */
#define NOISE_MAX (53 * LN2_UP) /* no noise is larger */

/* Views into the caller's working memory. */
struct work {
    double *bins;   /* [N_BINS] */
    uint64_t *keys; /* [vocab] */
    uint64_t *tmp;  /* [vocab] */
    float *x;       /* [vocab] */
};

size_t kg_sample_scratch_bytes(uint32_t vocab)
{
    return N_BINS * sizeof(double) + (size_t)vocab * (2 * sizeof(uint64_t) + sizeof(float));
}

static struct work split_scratch(void *scratch, uint32_t vocab)
{
    struct work w;

    w.bins = scratch;
    w.keys = (uint64_t *)(w.bins + N_BINS);
    w.tmp = w.keys + vocab;
    w.x = (float *)(w.tmp + vocab);
    return w;
}

/* --- noise ------------------------------------------------------------------------------------ */

/* A bijection of 64-bit numbers in which every input bit moves about half of the output bits
 * (the finisher of the splitmix64 generator). */
static inline uint64_t mix64(uint64_t h)
{
    h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ h >> 27) * 0x94d049bb133111ebull;
    return h ^ h >> 31;
}

#define WEYL 0x9e3779b97f4a7c15ull

/* One per row; with it a token's bits cost one more mix. */
static inline uint64_t noise_key(uint64_t seed, uint32_t position)
{
    return mix64(mix64(seed + WEYL) ^ (position + 1ull) * WEYL);
}

/* 52 random bits of a token. */
static inline uint64_t noise_bits(uint64_t key, uint32_t token)
{
    return mix64(key + (token + 1ull) * WEYL) >> 12;
}

static inline double gumbel(uint64_t bits)
{
    double u = ((double)bits + 0.5) * 0x1p-52; /* exact; in (0,1) */

    return -kg_exact_log(-kg_exact_log(u));
}

/* At least gumbel(bits), without a logarithm: -ln(u) >= 1 - u >= a power of two. */
static inline double gumbel_bound(uint64_t bits)
{
    uint64_t rest = (~bits & 0xfffffffffffffull) * 2 + 1; /* (1 - u) * 2^53 */

    return (double)(__builtin_clzll(rest) - 10) * LN2_UP;
}

double kg_sample_noise(uint64_t seed, uint32_t position, uint32_t token)
{
    return gumbel(noise_bits(noise_key(seed, position), token));
}

uint64_t kg_sample_stream(uint64_t seed, uint32_t stream, uint32_t window)
{
    return mix64(mix64(seed ^ stream * 0xd6e8feb86659fd93ull) + (window + 1ull) * WEYL);
}

double kg_sample_uniform(uint64_t seed, uint32_t position)
{
    return ((double)noise_bits(noise_key(seed, position), 0) + 0.5) * 0x1p-52;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Order of a float as a signed integer; NaNs lie beyond the infinities on either side. */
static inline int32_t order_of(float f)
{
    int32_t b;

    memcpy(&b, &f, sizeof(b));
    return b ^ (b >> 31 & INT32_MAX);
}

#define ORDER_INF 0x7f800000
#define ORDER_NEG_INF (-0x7f800001)

/* Largest value of a row; 0 in *ok when a value is NaN or +inf, or all are -inf. */
static float row_max(const float *x, uint32_t n, int *ok)
{
    int32_t hi = INT32_MIN, lo = INT32_MAX;
    float max;

    for (uint32_t i = 0; i < n; i++) {
        int32_t o = order_of(x[i]);
        hi = o > hi ? o : hi;
        lo = o < lo ? o : lo;
    }
    *ok = hi < ORDER_INF && lo >= ORDER_NEG_INF && hi > ORDER_NEG_INF;
    hi ^= hi >> 31 & INT32_MAX;
    memcpy(&max, &hi, sizeof(max));
    return max;
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
    double acc[LANES] = {0}, sum = 0;
    uint32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        for (uint32_t j = 0; j < LANES; j++) {
            acc[j] += kg_exact_exp((double)x[i + j] - max);
        }
    }
    for (; i < n; i++) {
        acc[0] += kg_exact_exp((double)x[i] - max);
    }
    for (uint32_t j = 0; j < LANES; j++) {
        sum += acc[j];
    }
    return sum;
}

/* --- keys: value and token in one number, larger is better ------------------------------------ */

static inline uint64_t key_of(float value, uint32_t token)
{
    uint32_t o = (uint32_t)order_of(value + 0.0f) ^ 0x80000000u; /* -0 becomes 0 */

    return (uint64_t)o << 32 | (UINT32_MAX - token);
}

static inline uint32_t key_token(uint64_t key)
{
    return UINT32_MAX - (uint32_t)key;
}

static inline float key_value(uint64_t key)
{
    int32_t o = (int32_t)((uint32_t)(key >> 32) ^ 0x80000000u);
    float f;

    o ^= o >> 31 & INT32_MAX;
    memcpy(&f, &o, sizeof(f));
    return f;
}

/* How a key counts: as 1, or with the weight of its value in the softmax. */
struct weigh {
    int by_mass;
    double max, scale; /* weight e^((value - max) * scale) */
};

/* Weights of n <= BLOCK keys: by blocks, so that the exponentials vectorise. */
#define BLOCK 64
static void weights_of(const struct weigh *w, const uint64_t *keys, uint32_t n, double *out)
{
    for (uint32_t i = 0; i < n && !w->by_mass; i++) {
        out[i] = 1.0;
    }
    for (uint32_t i = 0; i < n && w->by_mass; i++) {
        out[i] = kg_exact_exp(((double)key_value(keys[i]) - w->max) * w->scale);
    }
}

/* Sum of all weights. */
static double total(const struct weigh *w, const uint64_t *keys, uint32_t n)
{
    double out[BLOCK], sum = 0;

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
static void sort_mass(const struct weigh *w, const uint64_t *keys, uint32_t n, int s, double *bins)
{
    double out[BLOCK];

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
 * The smallest key of the shortest run of best keys whose weights reach `need`; the smallest of
 * all when they never do. Radix search from the top digit down: each pass looks only at keys that
 * share the digits fixed so far. O(n), no sorting. `tmp` holds n keys, n >= 1.
 */
static uint64_t cut(const uint64_t *keys, uint32_t n, double need, const struct weigh *w,
                    uint64_t *tmp, double *bins)
{
    double above = 0;

    for (int shift = 64 - DIGIT_BITS; n > 1; shift -= DIGIT_BITS) {
        int s = shift < 0 ? 0 : shift;
        uint32_t bin = N_BINS, m = 0;
        sort_mass(w, keys, n, s, bins);
        for (uint32_t d = N_BINS; d-- > 0;) {
            if (bins[d] <= 0) {
                continue;
            }
            bin = d; /* stays at the lowest digit in use if rounding keeps the sum short */
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

int kg_sampling_has_penalty(const struct kg_sampling *s)
{
    return (s->repetition_penalty > 0 && s->repetition_penalty != 1.0f) ||
           s->frequency_penalty != 0 || s->presence_penalty != 0;
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

static float penalised(const struct kg_sampling *s, const struct kg_token_count *e, float l)
{
    float x = l;

    if (s->repetition_penalty > 0) {
        x = x > 0 ? x / s->repetition_penalty : x * s->repetition_penalty;
    }
    x -= s->frequency_penalty * (float)e->n_output;
    x -= e->n_output > 0 ? s->presence_penalty : 0;
    if (!(x <= FLT_MAX)) { /* overflow of an extreme penalty: stay comparable */
        x = x > 0 ? FLT_MAX : l;
    }
    return x;
}

/* The row the rule works on: the logits themselves, or a changed copy in w->x. */
static const float *adjust(const struct kg_sample_row *row, const struct work *w)
{
    const struct kg_sampling *s = row->sampling;
    const struct kg_token_counts *c = row->counts;
    int penalty = c != NULL && c->n > 0 && kg_sampling_has_penalty(s);
    int mask = row->n_output < s->min_tokens && s->n_stop_ids > 0;

    if (!penalty && !mask) {
        return row->logits;
    }
    memcpy(w->x, row->logits, row->vocab * sizeof(*w->x));
    for (uint32_t i = 0; penalty && i < c->n; i++) {
        const struct kg_token_count *e = &c->entries[i];
        if (e->token < row->vocab) {
            w->x[e->token] = penalised(s, e, row->logits[e->token]);
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

struct best {
    double score;
    uint32_t token;
};

static inline void offer(struct best *b, double y, uint64_t key, uint32_t token)
{
    uint64_t bits;

    if (y + NOISE_MAX < b->score) {
        return;
    }
    bits = noise_bits(key, token);
    if (y + gumbel_bound(bits) < b->score) {
        return;
    }
    double score = y + gumbel(bits);
    if (score > b->score || (score == b->score && token < b->token)) {
        b->score = score;
        b->token = token;
    }
}

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
            w->keys[n++] = key_of(x[i], i);
        }
    }
    if (s->top_k > 0 && s->top_k < n) {
        n = keep(w->keys, n, cut(w->keys, n, s->top_k, &count, w->tmp, w->bins));
    }
    if (s->top_p > 0 && s->top_p < 1 && n > 1) {
        double need = s->top_p * total(&mass, w->keys, n);
        n = keep(w->keys, n, cut(w->keys, n, need, &mass, w->tmp, w->bins));
    }
    return n;
}

static uint32_t draw(const struct kg_sample_row *row, const float *x, float max,
                     const struct work *w)
{
    const struct kg_sampling *s = row->sampling;
    double scale = 1.0 / s->temperature;
    uint64_t key = noise_key(s->seed, row->position);
    uint32_t top = first_of(x, row->vocab, max);
    struct best b = {.score = -INFINITY, .token = top};

    offer(&b, max * scale, key, top); /* a good bar first: most others fail it cheaply */
    if (s->min_p > 0 || s->top_k > 0 || (s->top_p > 0 && s->top_p < 1)) {
        uint32_t n = filter(s, x, row->vocab, max, w);
        for (uint32_t i = 0; i < n; i++) {
            offer(&b, key_value(w->keys[i]) * scale, key, key_token(w->keys[i]));
        }
        return b.token;
    }
    for (uint32_t i = 0; i < row->vocab; i++) {
        offer(&b, x[i] * scale, key, i);
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
            p[key_token(w->keys[i])] = kg_exact_exp(((double)key_value(w->keys[i]) - max) * scale);
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
