/*
 * Sampling. Rows are cut into chunks of tokens, a block each; three launches follow each other
 * because each needs a fact of the whole row before: the largest value; then the best token, sums
 * and a first histogram; then one block per row that joins them and ends the filters' search. The
 * last launch walks each window's picks. Every join is a maximum, a minimum or a sum of whole
 * numbers, so no order of threads shows.
 *
 * Roofline, per row of a vocabulary V: 4 V bytes are read twice (3 times with filters), which a
 * level-2 cache holds; with temperature or log probabilities some 40 double operations for each
 * token that is not far below the best, so on devices with few double units those bound it.
 */
#include "context.h"
#include "sample.h"

#include "kernels/sampling.h"

#include <cmath>

namespace
{

#define CHUNK 4096 /* tokens of a block */
#define THREADS 256
#define PICK_THREADS 512
#define BINS 2048       /* of 11 bits of a key */
#define MOST_ROWS 65535 /* of a launch: the second dimension of a grid */
#define PROMPT 0x80000000u

typedef unsigned long long u64;

/* What a block found in its chunk. */
struct found {
    int32_t raw_hi, raw_lo; /* orders of the logits */
    int32_t hi;             /* largest after penalties and masks */
    uint32_t bad;           /* 1: the hidden vector is not finite */
    uint32_t first;         /* first token of the largest value */
    uint32_t token;         /* of the best score */
    double score;
    u64 sum; /* masses of the unmodified softmax */
};

struct outcome {
    uint32_t token, flags;
};

/* Place of a row: its window and its number there. */
struct place {
    uint32_t window, j;
};

/* One launch's view; row 0 of `places`, `facts`.. is the pass's first row. */
struct run {
    const struct kg_cuda_window *windows;
    const place *places;
    found *facts;      /* [rows][chunks] */
    u64 *tops;         /* [rows][chunks][KG_CUDA_LOGPROBS] best keys of the logits */
    u64 *bins;         /* [rows][BINS] */
    u64 *list;         /* [rows][vocab] keys */
    outcome *outcomes; /* [rows] */
    uint32_t vocab, chunks;
};

/* A row of logits as the rule sees it. */
struct view {
    const struct kg_cuda_window *w;
    const float *logits;
    struct kg_penalties penalties;
    uint32_t j;
    bool penalty, mask;
};

__device__ view view_of(const run &r, uint32_t row)
{
    const struct kg_cuda_window *w = &r.windows[r.places[row].window];
    const struct kg_cuda_sampling &s = w->sampling;
    view v;

    v.w = w;
    v.j = r.places[row].j;
    v.logits = w->logits + (size_t)v.j * r.vocab;
    v.penalties = {s.repetition_penalty, s.frequency_penalty, s.presence_penalty};
    v.penalty = w->counts != nullptr && w->echo == nullptr && kg_penalties_any(&v.penalties);
    uint32_t at = w->position + v.j, n = at > w->output_start ? at - w->output_start : 0;
    v.mask = n < s.min_tokens && s.n_stop_ids > 0;
    return v;
}

__device__ bool is_stop(const struct kg_cuda_sampling &s, uint32_t token)
{
    bool is = false;

    for (uint32_t i = 0; i < s.n_stop_ids; i++)
        is |= s.stop_ids[i] == token;
    return is;
}

/* Value of a token after penalties, of which drafts before the row count as output, and masks. */
__device__ float value_at(const view &v, uint32_t token)
{
    float x = v.logits[token];

    if (v.penalty) {
        uint32_t count = v.w->counts[token], n = count & ~PROMPT;

        for (uint32_t d = 0; d < v.j; d++)
            n += v.w->drafts[d] == token;
        if (n > 0 || count != 0)
            x = kg_penalised(&v.penalties, n, x);
    }
    return v.mask && is_stop(v.w->sampling, token) ? -INFINITY : x;
}

__device__ bool has_filter(const struct kg_cuda_sampling &s)
{
    return s.top_k > 0 || (s.top_p > 0 && s.top_p < 1);
}

/* ---- joins over a block -------------------------------------------------------------------- */

enum join {
    JOIN_MAX,
    JOIN_MIN,
    JOIN_SUM,
};

template <class T> __device__ inline T join_two(enum join how, T a, T b)
{
    if (how == JOIN_SUM)
        return a + b;
    return (how == JOIN_MAX) == (b > a) ? b : a;
}

/* All threads of a block of at most 1024 get the join. s: shared, 32 of T. */
template <class T, class S> __device__ T join_all(enum join how, T v, S &s)
{
    for (int d = 16; d > 0; d /= 2)
        v = join_two<T>(how, v, __shfl_xor_sync(0xffffffffu, v, d));
    __syncthreads();
    if (threadIdx.x % KG_WARP == 0)
        s[threadIdx.x / KG_WARP] = v;
    __syncthreads();
    v = s[0];
    for (uint32_t i = 1; i < blockDim.x / KG_WARP; i++)
        v = join_two<T>(how, v, s[i]);
    return v;
}

/* Orders of doubles that are not NaN, as whole numbers. */
__device__ inline u64 score_order(double d)
{
    u64 b;

    d = d + 0.0;
    memcpy(&b, &d, sizeof(b));
    return b >> 63 ? ~b : b | 1ull << 63;
}

/* The best of a block's threads. */
template <class S> __device__ kg_best join_best(kg_best b, S &s)
{
    u64 mine = score_order(b.score), top = join_all<u64>(JOIN_MAX, mine, s);
    u64 token = join_all<u64>(JOIN_MIN, mine == top ? b.token : 0xffffffffu, s);
    u64 bits = top >> 63 ? top & ~(1ull << 63) : ~top;

    memcpy(&b.score, &bits, sizeof(bits));
    b.token = (uint32_t)token;
    return b;
}

/* ---- 1: largest values --------------------------------------------------------------------- */

__global__ void sample_facts(run r)
{
    KG_SHARED(int, s, 32);
    uint32_t row = blockIdx.y, c = blockIdx.x;
    view v = view_of(r, row);
    int hi = INT32_MIN, lo = INT32_MAX, x_hi = INT32_MIN, bad = 0;

    for (uint32_t i = threadIdx.x; i < CHUNK && c * CHUNK + i < r.vocab; i += THREADS) {
        uint32_t token = c * CHUNK + i;
        int o = kg_order_of(v.logits[token]);

        hi = o > hi ? o : hi;
        lo = o < lo ? o : lo;
        if (v.penalty || v.mask)
            o = kg_order_of(value_at(v, token));
        x_hi = o > x_hi ? o : x_hi;
    }
    if (v.w->hidden != nullptr && c == 0) {
        for (uint32_t i = threadIdx.x; i < v.w->width; i += THREADS) {
            int o = kg_order_of(v.w->hidden[(size_t)v.j * v.w->width + i]);

            bad |= o >= KG_ORDER_INF || o <= KG_ORDER_NEG_INF;
        }
    }
    for (uint32_t b = c * THREADS + threadIdx.x; b < BINS; b += r.chunks * THREADS)
        r.bins[(size_t)row * BINS + b] = 0;
    hi = join_all<int>(JOIN_MAX, hi, s);
    lo = join_all<int>(JOIN_MIN, lo, s);
    x_hi = join_all<int>(JOIN_MAX, x_hi, s);
    bad = join_all<int>(JOIN_MAX, bad, s);
    if (threadIdx.x == 0) {
        found f = {};

        f.raw_hi = hi;
        f.raw_lo = lo;
        f.hi = x_hi;
        f.bad = (uint32_t)bad;
        r.facts[(size_t)row * r.chunks + c] = f;
    }
}

/* The same of the whole row. */
struct whole {
    bool ok, any; /* the row can be sampled; something is left after the masks */
    float raw_max, max;
};

template <class S> __device__ whole whole_of(const run &r, uint32_t row, S &s)
{
    int hi = INT32_MIN, lo = INT32_MAX, x_hi = INT32_MIN, bad = 0;

    for (uint32_t c = threadIdx.x; c < r.chunks; c += blockDim.x) {
        const found &f = r.facts[(size_t)row * r.chunks + c];

        hi = f.raw_hi > hi ? f.raw_hi : hi;
        lo = f.raw_lo < lo ? f.raw_lo : lo;
        x_hi = f.hi > x_hi ? f.hi : x_hi;
        bad |= (int)f.bad;
    }
    hi = join_all<int>(JOIN_MAX, hi, s);
    lo = join_all<int>(JOIN_MIN, lo, s);
    x_hi = join_all<int>(JOIN_MAX, x_hi, s);
    bad = join_all<int>(JOIN_MAX, bad, s);
    return {kg_order_ok(lo, hi) && !bad, x_hi > KG_ORDER_NEG_INF, kg_order_value(hi),
            kg_order_value(x_hi)};
}

/* ---- filters ------------------------------------------------------------------------------- */

/* Of (x - max) * scale: what min_p keeps is not less. */
__device__ double least_of(const struct kg_cuda_sampling &s)
{
    if (!(s.min_p > 0))
        return -INFINITY;
    return s.min_p < 1 ? kg_exact_log(s.min_p) : 0;
}

__device__ u64 mass_of(float value, double max, double scale)
{
    return kg_sampling_mass(kg_exact_exp(((double)value - max) * scale));
}

/* ---- 2: best token, sums, first digit, log probabilities ------------------------------------- */

/* The n best keys of the chunk's logits, best first, into out. */
template <class S>
__device__ void best_keys(const run &r, const view &v, uint32_t n, u64 *out, S &s)
{
    u64 below = ~0ull; /* what was taken is not below this */

    for (uint32_t k = 0; k < n; k++) {
        u64 best = 0;

        for (uint32_t i = threadIdx.x; i < CHUNK && blockIdx.x * CHUNK + i < r.vocab;
             i += THREADS) {
            uint32_t token = blockIdx.x * CHUNK + i;
            u64 key = kg_key_of(v.logits[token], token);

            best = key < below && key > best ? key : best;
        }
        below = join_all<u64>(JOIN_MAX, best, s); /* 0: there are no more */
        if (threadIdx.x == 0)
            out[k] = below;
    }
}

__global__ void sample_offer(run r)
{
    KG_SHARED(int, si, 32);
    KG_SHARED(u64, s, 32);
    KG_SHARED(u64, bins, BINS);
    uint32_t row = blockIdx.y, c = blockIdx.x;
    view v = view_of(r, row);
    const struct kg_cuda_sampling &p = v.w->sampling;
    whole all = whole_of(r, row, si);

    if (!all.ok)
        return;
    bool pick = v.w->echo == nullptr && all.any;
    bool draw = pick && p.temperature > 0, filter = draw && has_filter(p);
    bool sums = v.w->logprobs != nullptr;
    double max = all.max, scale = draw ? 1.0 / p.temperature : 0, least = least_of(p);
    uint64_t key = kg_noise_key(p.seed, v.w->position + v.j);
    kg_best best = {-INFINITY, KG_NONE};
    double bar = all.max * scale + KG_NOISE_MIN; /* the largest token scores no less */
    uint32_t first = KG_NONE;
    u64 sum = 0;

    for (uint32_t b = threadIdx.x; filter && b < BINS; b += THREADS)
        bins[b] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < CHUNK && c * CHUNK + i < r.vocab; i += THREADS) {
        uint32_t token = c * CHUNK + i;
        float raw = v.logits[token], x = v.penalty || v.mask ? value_at(v, token) : raw;

        if (sums)
            sum += mass_of(raw, all.raw_max, 1.0);
        if (all.any ? x == all.max : raw == all.raw_max)
            first = token < first ? token : first;
        if (!draw || !(((double)x - max) * scale >= least))
            continue;
        if (filter) {
            u64 weight = p.top_k > 0 ? 1 : mass_of(kg_key_value(kg_key_of(x, 0)), max, scale);

            if (weight > 0)
                atomicAdd(&bins[kg_key_of(x, token) >> 53], weight);
        } else if (x * scale + KG_NOISE_MAX >= bar) {
            kg_best_offer(&best, x * scale, key, token);
        }
    }
    __syncthreads();
    for (uint32_t b = threadIdx.x; filter && b < BINS; b += THREADS) {
        u64 n = bins[b];

        if (n > 0)
            atomicAdd(&r.bins[(size_t)row * BINS + b], n);
    }
    sum = join_all<u64>(JOIN_SUM, sum, s);
    first = (uint32_t)join_all<u64>(JOIN_MIN, first, s);
    best = join_best(best, s);
    if (threadIdx.x == 0) {
        found &f = r.facts[(size_t)row * r.chunks + c];

        f.sum = sum;
        f.first = first;
        f.score = best.score;
        f.token = best.token;
    }
    if (sums)
        best_keys(r, v, p.n_logprobs, r.tops + ((size_t)row * r.chunks + c) * KG_CUDA_LOGPROBS, s);
}

/* ---- 3: one block per row -------------------------------------------------------------------- */

/* Shared memory of a row's block, as parameters of what works on it: s: 32 of u64, bins: BINS of
 * u64, at: 4 of u64. */

/*
 * The digit at which the sums of bins, from the top, reach need (1..their sum); *above: the sum of
 * the digits over it. Four digits to a thread.
 */
template <class S, class B, class A>
__device__ uint32_t crossing(const B &bins, u64 need, u64 *above, S &s, A &at)
{
    uint32_t lane = threadIdx.x % KG_WARP, warp = threadIdx.x / KG_WARP;
    uint32_t top = BINS - 1 - 4 * threadIdx.x;
    u64 own[4], sum = 0, before = 0;

    __syncthreads();
    for (uint32_t i = 0; i < 4; i++) {
        own[i] = bins[top - i];
        sum += own[i];
    }
    before = sum;
    for (uint32_t d = 1; d < KG_WARP; d *= 2) {
        u64 from = __shfl_sync(0xffffffffu, before, (int)(lane < d ? lane : lane - d));

        before += lane < d ? 0 : from;
    }
    if (lane == KG_WARP - 1)
        s[warp] = before;
    __syncthreads();
    before -= sum;
    for (uint32_t w = 0; w < warp; w++)
        before += s[w];
    for (uint32_t i = 0; i < 4; i++) {
        if (before < need && before + own[i] >= need) {
            at[0] = top - i;
            at[1] = before;
        }
        before += own[i];
    }
    __syncthreads();
    *above = at[1];
    return (uint32_t)at[0];
}

/* How keys count. */
struct weigh {
    bool by_mass;
    double max, scale;
};

__device__ u64 weight_of(const weigh &w, u64 key)
{
    return w.by_mass ? mass_of(kg_key_value(key), w.max, w.scale) : 1;
}

/* Of list[0..n-1]: the smallest of the shortest run of best keys whose weights reach need. Worse
 * keys than those that make need up do not matter. The digits of `cut` in core/model/sample.c. */
template <class S, class B, class A>
__device__ u64 cut(const u64 *list, uint32_t n, u64 need, const weigh &w, S &s, B &bins, A &at)
{
    u64 prefix = 0; /* the digits found */
    int known = 64; /* bits below which nothing is known yet */

    while (known > 0) {
        int shift = known < 11 ? 0 : known - 11;
        u64 above;

        __syncthreads();
        for (uint32_t b = threadIdx.x; b < BINS; b += blockDim.x)
            bins[b] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
            u64 key = list[i];

            if (known == 64 || key >> known == prefix) {
                u64 weight = weight_of(w, key);

                if (weight > 0)
                    atomicAdd(&bins[key >> shift & (BINS - 1)], weight);
            }
        }
        uint32_t digit = crossing(bins, need, &above, s, at);
        need -= above;
        prefix =
            shift == 0 ? (prefix << known | (digit & ((1ull << known) - 1))) : prefix << 11 | digit;
        known = shift;
    }
    return prefix;
}

/* Keys that min_p keeps and whose first digit is at least `digit`, in any order. */
template <class A>
__device__ uint32_t gather(const run &r, const view &v, u64 *list, uint32_t digit, const whole &all,
                           A &at)
{
    double max = all.max, scale = 1.0 / v.w->sampling.temperature;
    double least = least_of(v.w->sampling);

    __syncthreads();
    if (threadIdx.x == 0)
        at[2] = 0;
    __syncthreads();
    for (uint32_t token = threadIdx.x; token < r.vocab; token += blockDim.x) {
        float x = v.penalty || v.mask ? value_at(v, token) : v.logits[token];
        u64 key = kg_key_of(x, token);

        if (((double)x - max) * scale >= least && key >> 53 >= digit)
            list[atomicAdd(&at[2], 1ull)] = key;
    }
    __syncthreads();
    return (uint32_t)at[2];
}

/* The token that the filters and the noise choose. */
template <class S, class B, class A>
__device__ uint32_t choose(const run &r, const view &v, uint32_t row, const whole &all, S &s,
                           B &bins, A &at)
{
    const struct kg_cuda_sampling &p = v.w->sampling;
    weigh count = {false, 0, 0}, mass = {true, all.max, 1.0 / p.temperature};
    u64 *list = r.list + (size_t)row * r.vocab, total = 0, above, least = 0;
    bool top_p = p.top_p > 0 && p.top_p < 1;

    for (uint32_t b = threadIdx.x; b < BINS; b += blockDim.x) {
        u64 n = r.bins[(size_t)row * BINS + b];

        bins[b] = n;
        total += n;
    }
    total = join_all<u64>(JOIN_SUM, total, s);
    bool some = p.top_k > 0 && p.top_k < total; /* else the bins hold masses, or top_k keeps all */
    u64 need = p.top_k > 0 ? p.top_k : kg_sampling_need(p.top_p, total);
    uint32_t digit = 0;
    if (p.top_k == 0 || some)
        digit = crossing(bins, need, &above, s, at);
    uint32_t n = gather(r, v, list, digit, all, at);
    if (some)
        least = cut(list, n, need, count, s, bins, at);
    if (top_p) {
        total = p.top_k == 0 ? total : 0;
        if (p.top_k > 0) {
            for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
                total += list[i] >= least ? weight_of(mass, list[i]) : 0;
            total = join_all<u64>(JOIN_SUM, total, s);
        }
        least = cut(list, n, kg_sampling_need(p.top_p, total), mass, s, bins, at);
    }
    uint64_t key = kg_noise_key(p.seed, v.w->position + v.j);
    kg_best best = {-INFINITY, KG_NONE};
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        if (list[i] >= least && kg_key_value(list[i]) > -INFINITY)
            kg_best_offer(&best, kg_key_value(list[i]) * mass.scale, key, kg_key_token(list[i]));
    return join_best(best, s).token;
}

/* Nothing is left but -inf: the lowest id that may be picked, or the best logit. */
__device__ uint32_t pick_of_nothing(const struct kg_cuda_sampling &p, uint32_t vocab,
                                    uint32_t first)
{
    for (uint32_t i = 0; i < vocab && i <= KG_CUDA_STOP_IDS; i++)
        if (!is_stop(p, i))
            return i;
    return first;
}

/* The log probability of `token`, then the best. */
template <class S>
__device__ void put_logprobs(const run &r, const view &v, uint32_t row, uint32_t token,
                             const whole &all, u64 sum, S &s)
{
    uint32_t n = v.w->sampling.n_logprobs;
    struct kg_cuda_logprob *out = v.w->logprobs + (size_t)v.j * (1 + n);
    double lse = (double)all.raw_max + kg_exact_log(kg_sampling_sum(sum));
    const u64 *tops = r.tops + (size_t)row * r.chunks * KG_CUDA_LOGPROBS;
    u64 below = ~0ull;

    if (threadIdx.x == 0) {
        out[0] = {KG_NONE, 0};
        if (token < r.vocab)
            out[0] = {token, (float)(v.logits[token] - lse)};
    }
    for (uint32_t k = 0; k < n; k++) {
        u64 best = 0;

        for (uint32_t i = threadIdx.x; i < r.chunks * n; i += blockDim.x) {
            u64 key = tops[i / n * KG_CUDA_LOGPROBS + i % n];

            best = key < below && key > best ? key : best;
        }
        below = join_all<u64>(JOIN_MAX, best, s);
        if (threadIdx.x == 0) {
            out[1 + k] = {KG_NONE, -INFINITY};
            if (below > 0)
                out[1 + k] = {kg_key_token(below),
                              (float)((double)v.logits[kg_key_token(below)] - lse)};
        }
    }
}

__global__ void sample_pick(run r)
{
    KG_SHARED(int, si, 32);
    KG_SHARED(u64, s, 32);
    KG_SHARED(u64, bins, BINS);
    KG_SHARED(u64, at, 4);
    uint32_t row = blockIdx.x, token = 0, flags = 0;
    view v = view_of(r, row);
    const struct kg_cuda_sampling &p = v.w->sampling;
    whole all = whole_of(r, row, si);
    u64 sum = 0, first = KG_NONE;
    kg_best best = {-INFINITY, KG_NONE};

    if (!all.ok) {
        for (uint32_t i = threadIdx.x; v.w->logprobs != nullptr && i <= p.n_logprobs;
             i += blockDim.x)
            v.w->logprobs[(size_t)v.j * (1 + p.n_logprobs) + i] = {KG_NONE, 0};
        if (threadIdx.x == 0)
            r.outcomes[row] = {0, KG_CUDA_NAN};
        return;
    }
    for (uint32_t c = threadIdx.x; c < r.chunks; c += blockDim.x) {
        const found &f = r.facts[(size_t)row * r.chunks + c];

        sum += f.sum;
        first = f.first < first ? f.first : first;
        if (f.score > best.score || (f.score == best.score && f.token < best.token))
            best = {f.score, f.token};
    }
    sum = join_all<u64>(JOIN_SUM, sum, s);
    first = join_all<u64>(JOIN_MIN, first, s);
    best = join_best(best, s);
    if (v.w->echo != nullptr)
        token = v.w->echo[v.j];
    else if (!all.any)
        token = pick_of_nothing(p, r.vocab, (uint32_t)first);
    else if (!(p.temperature > 0))
        token = (uint32_t)first;
    else if (has_filter(p))
        token = choose(r, v, row, all, s, bins, at);
    else
        token = best.token;
    if (v.w->echo == nullptr) {
        flags = is_stop(p, token) ? KG_CUDA_STOP : 0;
        if (v.w->force != KG_NONE && v.j < v.w->force && v.j < v.w->n_draft &&
            v.w->drafts[v.j] != token) {
            uint32_t emitted = v.w->position + v.j;

            token = v.w->drafts[v.j];
            emitted = emitted > v.w->output_start ? emitted - v.w->output_start : 0;
            flags = emitted >= p.min_tokens && is_stop(p, token) ? KG_CUDA_STOP : 0;
        }
    }
    if (threadIdx.x == 0)
        r.outcomes[row] = {token, flags};
    if (v.w->logprobs != nullptr)
        put_logprobs(r, v, row, token, all, sum, s);
}

/* ---- 4: windows ------------------------------------------------------------------------------ */

/* A thread walks a window: the loop of run_coupled in core/model/accept.c. */
__global__ void sample_accept(const struct kg_cuda_window *windows, const uint32_t *first,
                              const outcome *outcomes, uint32_t n, uint32_t vocab)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    struct kg_cuda_accepted out = {0, 0, 0};

    if (i >= n)
        return;
    const struct kg_cuda_window &w = windows[i];
    const outcome *o = outcomes + first[i];
    bool more = true;
    for (uint32_t j = 0; w.echo != nullptr && j <= w.n_draft; j++)
        out.flags |= o[j].flags;
    for (uint32_t j = 0; w.echo == nullptr && more; j++) {
        if (o[j].flags & KG_CUDA_NAN) {
            out = {0, 0, KG_CUDA_NAN};
            break;
        }
        more = j < w.n_draft && (w.force != KG_NONE ? j < w.force : w.drafts[j] == o[j].token);
        out.n_accepted += more;
        w.tokens[out.n_tokens++] = o[j].token;
        out.flags |= o[j].flags;
        if (w.counts != nullptr && o[j].token < vocab)
            w.counts[o[j].token]++;
        more = more && !(o[j].flags & KG_CUDA_STOP) && out.n_tokens < w.left;
    }
    *w.accepted = out;
}

__global__ void count_kernel(uint32_t *counts, uint32_t vocab, const uint32_t *tokens, uint32_t n,
                             uint32_t output)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= n || tokens[i] >= vocab)
        return;
    if (output)
        atomicAdd(&counts[tokens[i]], 1u);
    else
        atomicOr(&counts[tokens[i]], PROMPT);
}

/* ---- host ---------------------------------------------------------------------------------- */

uint64_t align256(uint64_t n)
{
    return (n + 255) / 256 * 256;
}

uint64_t chunks_of(uint32_t vocab)
{
    return ((uint64_t)vocab + CHUNK - 1) / CHUNK;
}

uint64_t row_bytes(uint32_t vocab)
{
    return align256(chunks_of(vocab) * (sizeof(found) + KG_CUDA_LOGPROBS * sizeof(u64)) +
                    (BINS + (uint64_t)vocab) * sizeof(u64));
}

int check(const struct kg_cuda_window *windows, uint32_t n, uint32_t accept, uint64_t *rows,
          struct kg_error *err)
{
    if (accept != 0)
        return kg_fail(err, KG_EINVAL,
                       "accept: this device accepts drafts by coupling only (rule %u was asked)",
                       accept);
    *rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (windows[i].sampling.n_stop_ids > KG_CUDA_STOP_IDS ||
            windows[i].sampling.n_logprobs > KG_CUDA_LOGPROBS)
            return kg_fail(err, KG_EINVAL, "sequence %u: %u stop ids, %u log probabilities", i,
                           windows[i].sampling.n_stop_ids, windows[i].sampling.n_logprobs);
        *rows += 1 + (uint64_t)windows[i].n_draft;
    }
    return KG_OK;
}

/* Rows in passes of `most`, each in all of `area`. */
void run_rows(struct kg_team *team, run r, uint8_t *area, uint32_t rows, uint32_t most)
{
    for (uint32_t row0 = 0; row0 < rows; row0 += most) {
        uint32_t m = rows - row0 < most ? rows - row0 : most;
        run now = r;

        now.places += row0;
        now.outcomes += row0;
        now.bins = (u64 *)area;
        now.list = now.bins + (uint64_t)m * BINS;
        now.tops = now.list + (uint64_t)m * r.vocab;
        now.facts = (found *)(now.tops + (uint64_t)m * r.chunks * KG_CUDA_LOGPROBS);
        KG_RUN(team, sample_facts, dim3(r.chunks, m), THREADS, now);
        KG_RUN(team, sample_offer, dim3(r.chunks, m), THREADS, now);
        KG_RUN(team, sample_pick, m, PICK_THREADS, now);
    }
}

__global__ void sample_places(const struct kg_cuda_window *windows, uint32_t n, place *places,
                              uint32_t *first)
{
    uint32_t row = 0;

    /* One warp: a window's first row is the number of rows before it. */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rows = 1 + windows[i].n_draft;

        for (uint32_t j = threadIdx.x; j < rows; j += KG_WARP)
            places[row + j] = {i, j};
        if (threadIdx.x == 0)
            first[i] = row;
        row += rows;
    }
}

} // namespace

/* outcomes, places (8 bytes each a row), first rows of windows (at most one a row): 20, so 32. */
#define INDEX_BYTES 32

uint64_t kg_cuda_sample_scratch_bytes(uint32_t rows, uint32_t vocab)
{
    return align256((uint64_t)rows * INDEX_BYTES) + rows * row_bytes(vocab);
}

int kg_cuda_sample(struct kg_cuda *cuda, const struct kg_cuda_window *windows, uint32_t n,
                   uint32_t vocab, uint32_t accept, void *scratch, uint64_t scratch_bytes,
                   struct kg_error *err)
{
    struct kg_team *team = kg_cuda_team(cuda);
    uint64_t rows = 0, most = 0;
    int rc = check(windows, n, accept, &rows, err);

    if (rc < 0 || n == 0)
        return rc;
    uint64_t index = align256(rows * INDEX_BYTES);
    if (scratch_bytes > index)
        most = (scratch_bytes - index) / row_bytes(vocab);
    if (most > MOST_ROWS)
        most = MOST_ROWS;
    if (most == 0 || vocab == 0 || rows > UINT32_MAX)
        return kg_fail(err, KG_EINVAL,
                       "sampling: %llu rows of %u tokens do not fit %llu bytes of scratch",
                       (unsigned long long)rows, vocab, (unsigned long long)scratch_bytes);
    if (!kg_op(team, "sample"))
        return KG_OK;
    const struct kg_cuda_window *list = kg_stage(team, windows, n);
    if (list == nullptr)
        return KG_OK; /* kept, as any error of an operation */
    run r = {};
    uint8_t *at = (uint8_t *)scratch;
    r.windows = list;
    r.outcomes = (outcome *)at;
    place *places = (place *)(at + rows * sizeof(outcome));
    uint32_t *first = (uint32_t *)(places + rows);
    r.places = places;
    r.vocab = vocab;
    r.chunks = (uint32_t)chunks_of(vocab);
    KG_RUN(team, sample_places, 1, KG_WARP, list, n, places, first);
    run_rows(team, r, at + index, (uint32_t)rows, (uint32_t)(most < rows ? most : rows));
    KG_RUN(team, sample_accept, (n + 63) / 64, 64, list, first, r.outcomes, n, vocab);
    return KG_OK;
}

void kg_cuda_sample_count(struct kg_cuda *cuda, uint32_t *counts, uint32_t vocab,
                          const uint32_t *tokens, uint32_t n, uint32_t output)
{
    struct kg_team *team = kg_cuda_team(cuda);

    if (n > 0 && kg_op(team, "sample_count"))
        KG_RUN(team, count_kernel, (n + 127) / 128, 128, counts, vocab, tokens, n, output);
}
