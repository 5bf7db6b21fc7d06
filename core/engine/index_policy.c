/* Checkpoint policies. */
#include "engine/index_policy.h"

#include <math.h>

#define N_WHY 7u /* reasons */

/* Interval in tokens, whole pages. */
static uint32_t step_of(const struct kg_ckpt_view *v)
{
    uint32_t step = v->interval / v->page_tokens * v->page_tokens;

    return step > 0 ? step : v->page_tokens;
}

/* First of n ascending positions that is p or above: n when there is none. */
static uint32_t first_from(const uint32_t *at, uint32_t n, uint32_t p)
{
    uint32_t lo = 0, hi = n;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (at[mid] < p) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static int is_asked(const struct kg_ckpt_view *v, uint32_t p)
{
    uint32_t i = first_from(v->marks, v->n_marks, p);

    return i < v->n_marks && v->marks[i] - p < v->page_tokens;
}

/* Message ends that round down to p; bit 1: it is the first or the last of the prompt. */
static uint32_t message_at(const struct kg_ckpt_view *v, uint32_t p)
{
    uint32_t lo = first_from(v->boundaries, v->n_boundaries, p);

    if (lo == v->n_boundaries || v->boundaries[lo] - p >= v->page_tokens) {
        return 0;
    }
    uint32_t end = lo;
    while (end + 1 < v->n_boundaries && v->boundaries[end + 1] - p < v->page_tokens) {
        end++;
    }
    return 1u | (lo == 0 || end + 1 == v->n_boundaries ? 2u : 0u);
}

static int is_octave(const struct kg_ckpt_view *v, uint32_t p)
{
    uint32_t step = step_of(v), k = p / step;

    return p % step == 0 && (k & (k - 1)) == 0;
}

/* What message ends, prompt and answer say of p. `last`: checkpoint before it. */
static uint32_t boundary_why(const struct kg_ckpt_view *v, uint32_t p, uint32_t last)
{
    uint32_t why = 0;
    uint32_t prompt_end = (v->n_prompt - 1) / v->page_tokens * v->page_tokens;
    uint32_t message = p <= v->n_prompt ? message_at(v, p) : 0;

    if (message != 0 && (v->policy == KG_CKPT_BOUNDARY || message & 2u || p - last >= v->gap)) {
        why |= KG_CKPT_WHY_MESSAGE;
    }
    if (p == prompt_end) {
        why |= KG_CKPT_WHY_PROMPT;
    }
    if (p >= v->n_prompt) { /* what is behind the prompt's last token */
        why |= KG_CKPT_WHY_ANSWER;
    }
    return why;
}

static uint32_t why_of(const struct kg_ckpt_view *v, uint32_t p, uint32_t last)
{
    switch (v->policy) {
    case KG_CKPT_INTERVAL:
        return p % step_of(v) == 0 ? KG_CKPT_WHY_INTERVAL : 0;
    case KG_CKPT_BOUNDARY:
        return boundary_why(v, p, last);
    case KG_CKPT_BRANCH:
        return p == v->branch ? KG_CKPT_WHY_BRANCH : 0;
    case KG_CKPT_AUTO:
        return boundary_why(v, p, last) | (p == v->branch ? KG_CKPT_WHY_BRANCH : 0) |
               (is_octave(v, p) ? KG_CKPT_WHY_OCTAVE : 0);
    default:
        return 0;
    }
}

uint32_t kg_ckpt_orders(const struct kg_ckpt_view *v, struct kg_ckpt *out, uint32_t *n_rows)
{
    uint32_t page = v->page_tokens, last = v->last, n = 0;
    uint64_t end = (uint64_t)v->past + v->n_rows;

    *n_rows = v->n_rows;
    if (v->policy == KG_CKPT_OFF || v->max_orders == 0) {
        return 0;
    }
    for (uint64_t p = (v->past / page + 1ull) * page; p <= end; p += page) {
        uint32_t why =
            why_of(v, (uint32_t)p, last) | (is_asked(v, (uint32_t)p) ? KG_CKPT_WHY_ASKED : 0);
        if (why == 0) {
            continue;
        }
        if (n == v->max_orders) {
            *n_rows = out[n - 1].position - v->past;
            break;
        }
        out[n++] = (struct kg_ckpt){(uint32_t)p, why};
        last = (uint32_t)p;
    }
    return n;
}

/* Requests that go on from others come back more often than strangers: 0 .. 3. */
static uint32_t familiar(uint32_t seen, uint32_t n_prompt, uint32_t page)
{
    uint64_t s = seen, n = n_prompt;

    if (s >= (n > 0 ? (n - 1) / page * page : 0)) {
        return 3;
    }
    return 4 * s >= 3 * n ? 2 : 4 * s >= n;
}

uint32_t kg_ckpt_kind(uint32_t why, uint32_t seen, uint32_t n_prompt, uint32_t page_tokens)
{
    static const uint32_t rarest_first[] = {
        KG_CKPT_WHY_BRANCH, KG_CKPT_WHY_PROMPT,   KG_CKPT_WHY_MESSAGE, KG_CKPT_WHY_ANSWER,
        KG_CKPT_WHY_OCTAVE, KG_CKPT_WHY_INTERVAL, KG_CKPT_WHY_ASKED};
    uint32_t kind = 0;

    while (kind + 1 < N_WHY && !(why & rarest_first[kind])) {
        kind++;
    }
    return kind + N_WHY * familiar(seen, n_prompt, page_tokens);
}

/* Fates of a kind from which on its share is believed. */
#define ENOUGH 32u
/* Places of the reasons among the kinds of a familiarity, as in kg_ckpt_kind. */
enum { AT_PROMPT = 1, AT_MESSAGE = 2, AT_ANSWER = 3, AT_OCTAVE = 4 };

/* Best share of the ends of messages, prompts and answers of prompts so familiar. */
static double best_end(uint32_t familiar, const double *share, const uint32_t *known)
{
    double best = 0;

    for (uint32_t k = N_WHY * familiar + AT_PROMPT; k <= N_WHY * familiar + AT_ANSWER; k++) {
        best = known[k] >= ENOUGH && share[k] > best ? share[k] : best;
    }
    return best;
}

int kg_ckpt_proven(uint32_t kind, const double *share, const uint32_t *known)
{
    uint32_t at = kind % N_WHY, how = kind / N_WHY;

    if (how > 1 || (at != AT_PROMPT && at != AT_ANSWER && at != AT_OCTAVE) ||
        known[kind] < ENOUGH) {
        return 1;
    }
    return 2 * best_end(how, share, known) >=
           fmax(best_end(2, share, known), best_end(3, share, known));
}

int kg_ckpt_wins(uint32_t policy, double worth, double cheapest)
{
    return policy == KG_CKPT_AUTO ? worth > cheapest : !isinf(cheapest);
}
