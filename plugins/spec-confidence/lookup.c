#include "lookup.h"

#define LEAST_MATCH 2
#define LONGEST_MATCH 5
#define STEP 0.125f
#define FIRST_WAIT 4 /* tokens, after a lookup that was wrong; doubled each time */
#define LONGEST_WAIT 32

void look_begin(struct look *l, float p)
{
    *l = (struct look){.p = p};
}

/* Tokens in which the history up to `end` agrees with its own end. */
static uint32_t match_at(const uint32_t *h, uint32_t n, uint32_t end)
{
    uint32_t k = 0;

    while (k < LONGEST_MATCH && k <= end && h[end - k] == h[n - 1 - k]) {
        k++;
    }
    return k;
}

/* Position of the last token of the best match; KG_NONE: none. */
static uint32_t best_match(const uint32_t *h, uint32_t n)
{
    uint32_t first = n > LOOK_WINDOW ? n - LOOK_WINDOW : 0;
    uint32_t best = LEAST_MATCH - 1, at = KG_NONE;

    for (uint32_t i = n > 0 ? n - 1 : 0; i-- > first && best < LONGEST_MATCH;) {
        if (h[i] != h[n - 1]) {
            continue;
        }
        uint32_t k = match_at(h, n, i);
        if (k > best) {
            best = k;
            at = i;
        }
    }
    return at;
}

uint32_t look_up(const uint32_t *h, uint32_t n, uint32_t most, uint32_t *out)
{
    uint32_t at = best_match(h, n);

    if (at == KG_NONE) {
        return 0;
    }
    for (uint32_t i = 0; i < most; i++) { /* one that overlaps its own end goes round */
        uint32_t p = at + 1 + i;
        out[i] = p < n ? h[p] : out[p - n];
    }
    return most;
}

int look_wants(const struct look *l)
{
    return l->n == 0 && l->wait == 0;
}

void look_take(struct look *l, const uint32_t *history, uint32_t n, uint32_t most)
{
    l->n = look_up(history, n, most < LOOK_MOST ? most : LOOK_MOST, l->tokens);
    l->at = 0;
    if (l->n == 0) {
        l->wait = FIRST_WAIT;
    }
}

static void right(struct look *l)
{
    l->p += STEP * (1.0f - l->p);
    l->n_right++;
}

static void wrong(struct look *l)
{
    l->p -= STEP * l->p;
    l->n_wrong++;
    l->n = 0;
    l->rest = l->rest == 0 ? FIRST_WAIT : l->rest * 2 < LONGEST_WAIT ? l->rest * 2 : LONGEST_WAIT;
    l->wait = l->rest;
}

void look_seen(struct look *l, const uint32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (l->n == 0) {
            l->wait -= l->wait > 0;
        } else if (l->tokens[l->at] != tokens[i]) {
            wrong(l);
        } else {
            right(l);
            l->rest = 0;
            if (++l->at == l->n) {
                l->n = 0;
            }
        }
    }
}

void look_judged(struct look *l, uint32_t n_verified, uint32_t n_accepted, int cut)
{
    l->n = 0;
    for (uint32_t k = 0; k < n_accepted; k++) {
        right(l);
    }
    if (n_accepted == n_verified) {
        l->wait = l->rest = 0;
    } else if (!cut) {
        wrong(l);
    }
}
