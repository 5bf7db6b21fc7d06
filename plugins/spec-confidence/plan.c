#include "plan.h"

/* --- candidates in their order: a heap of the first untaken one of each sequence ---------------
 */

struct heads {
    const struct plan_seqs *seqs;
    uint32_t *lengths; /* [n] taken of each */
    uint32_t n;        /* in the heap */
};

static float head_of(const struct heads *h, uint32_t r)
{
    return h->seqs->survival[(size_t)r * h->seqs->stride + h->lengths[r]];
}

static int before(const struct heads *h, uint32_t a, uint32_t b)
{
    float x = head_of(h, a), y = head_of(h, b);

    if (x != y) {
        return x > y;
    }
    if (h->lengths[a] != h->lengths[b]) {
        return h->lengths[a] < h->lengths[b];
    }
    return a < b;
}

static void sink(const struct heads *h, uint32_t at)
{
    uint32_t *heap = h->seqs->heap, r = heap[at];

    for (uint32_t child = 2 * at + 1; child < h->n; child = 2 * at + 1) {
        if (child + 1 < h->n && before(h, heap[child + 1], heap[child])) {
            child++;
        }
        if (!before(h, heap[child], r)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = r;
}

static struct heads heads_of(const struct plan_seqs *seqs, uint32_t *lengths)
{
    struct heads h = {.seqs = seqs, .lengths = lengths};

    for (uint32_t r = 0; r < seqs->n; r++) {
        lengths[r] = 0;
        if (seqs->most[r] > 0) {
            seqs->heap[h.n++] = r;
        }
    }
    for (uint32_t i = h.n / 2; i-- > 0;) {
        sink(&h, i);
    }
    return h;
}

/* Takes the best candidate; there is one. */
static void take(struct heads *h)
{
    uint32_t *heap = h->seqs->heap, r = heap[0];

    if (++h->lengths[r] == h->seqs->most[r]) {
        heap[0] = heap[--h->n];
    }
    sink(h, 0);
}

/* --- the rules ---------------------------------------------------------------------------------
 */

uint32_t plan_take(const struct plan_seqs *seqs, uint32_t rows, float least, uint32_t *lengths)
{
    struct heads h = heads_of(seqs, lengths);
    uint32_t n = 0;

    while (n < rows && h.n > 0 && head_of(&h, seqs->heap[0]) >= least) {
        take(&h);
        n++;
    }
    return n;
}

static uint32_t candidates(const struct plan_seqs *seqs, uint32_t limit)
{
    uint64_t n = 0;

    for (uint32_t r = 0; r < seqs->n; r++) {
        n += seqs->most[r];
    }
    return n < limit ? (uint32_t)n : limit;
}

/* Numbers of rows that a search of many candidates looks at. */
#define LOOKS 512

struct plan_best plan_search(const struct plan_seqs *seqs, const struct plan_cost *cost,
                             uint32_t limit, uint32_t *lengths)
{
    struct heads h = heads_of(seqs, lengths);
    struct plan_best best = {.tokens = seqs->n, .ns = cost->ns(cost->ctx, 0)};
    uint32_t total = candidates(seqs, limit), every = 1 + total / LOOKS;
    double tokens = seqs->n, ns = best.ns;

    for (uint32_t k = 1; k <= total; k++) {
        tokens += (double)head_of(&h, seqs->heap[0]);
        take(&h);
        if (k % every != 0 && k != total) {
            continue;
        }
        ns = cost->ns(cost->ctx, k);
        if (tokens * best.ns > best.tokens * ns) {
            best.rows = k;
            best.tokens = tokens;
            best.ns = ns;
        }
    }
    best.total = total;
    best.all_tokens = tokens;
    best.all_ns = ns;
    return best;
}

struct plan_best plan_stop(const struct plan_seqs *seqs, const struct plan_cost *cost,
                           uint32_t limit, uint32_t *lengths, double *path, uint32_t *n_path)
{
    struct heads h = heads_of(seqs, lengths);
    struct plan_best best = {.tokens = seqs->n, .ns = cost->ns(cost->ctx, 0)};
    uint32_t n = 0;

    best.total = candidates(seqs, limit);
    if (path != NULL) {
        path[n++] = best.tokens / best.ns;
    }
    for (uint32_t k = 1; k <= best.total; k++) {
        double tokens = best.tokens + (double)head_of(&h, seqs->heap[0]);
        double ns = cost->ns(cost->ctx, k);
        if (path != NULL) {
            path[n++] = tokens / ns;
        }
        if (!(tokens * best.ns > best.tokens * ns)) {
            break;
        }
        take(&h);
        best.rows = k;
        best.tokens = tokens;
        best.ns = ns;
    }
    if (n_path != NULL) {
        *n_path = n;
    }
    return best;
}
