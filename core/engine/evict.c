/*
 * What is worth keeping. A state at p whose nearest state above is at q saves cost(q, p) at each
 * hit and takes its own bytes and those of the pages only it needs; its rank is
 *
 *     base + reuse * cost(q, p) / bytes
 *
 * with `base` the scale when it was used last and the scale rising to the rank of each victim (the
 * GreedyDual-Size-Frequency rule): what is not used falls behind without anybody visiting it.
 *
 * Ranks in the heaps are computed when a node is touched. A state evicted above makes those below
 * worth more: found out when they reach the top (recomputed there before it counts). A state
 * planted above makes them worth less: found out by a cursor that refreshes REFRESH entries per
 * eviction.
 */
#include "engine/index_impl.h"

#include <math.h>

/* Entries of the heap whose rank is refreshed at each eviction. */
#define REFRESH 4
/* Times the top of a heap is ranked anew before what is on top is taken. */
#define RETRIES 32
/* States of every kind that are taken as known before anything is, and how many of them were hit:
 * all at the end of a path, one in eight of those passed. */
#define CREDIT 4.0
static const double credit_hit[KG_IX_STANDS] = {CREDIT, CREDIT / 8};
/* Fates after which a kind's counts are halved. */
#define FATES 1024u

/* --- lists --- */

void kg_ix_list_add(struct kg_index *ix, uint32_t list, uint32_t v)
{
    struct kg_ix_list *l = &ix->list[list];
    struct kg_ix_node *n = &ix->nodes[v];

    n->list = (uint8_t)list;
    n->list_next = KG_NONE;
    n->list_prev = l->tail;
    if (l->tail != KG_NONE) {
        ix->nodes[l->tail].list_next = v;
    } else {
        l->head = v;
    }
    l->tail = v;
}

void kg_ix_list_drop(struct kg_index *ix, uint32_t v)
{
    struct kg_ix_node *n = &ix->nodes[v];

    if (n->list == KG_IX_NOLIST) {
        return;
    }
    struct kg_ix_list *l = &ix->list[n->list];
    if (n->list_prev != KG_NONE) {
        ix->nodes[n->list_prev].list_next = n->list_next;
    } else {
        l->head = n->list_next;
    }
    if (n->list_next != KG_NONE) {
        ix->nodes[n->list_next].list_prev = n->list_prev;
    } else {
        l->tail = n->list_prev;
    }
    n->list = KG_IX_NOLIST;
}

void kg_ix_list_after(struct kg_index *ix, uint32_t v, uint32_t w)
{
    struct kg_ix_node *n = &ix->nodes[v], *x = &ix->nodes[w];
    struct kg_ix_list *l = &ix->list[n->list];

    x->list = n->list;
    x->list_prev = v;
    x->list_next = n->list_next;
    if (n->list_next != KG_NONE) {
        ix->nodes[n->list_next].list_prev = w;
    } else {
        l->tail = w;
    }
    n->list_next = w;
}

/* --- heaps: least rank on top, ties by node, so that the order is the same everywhere --- */

static int before(const struct kg_index *ix, uint32_t a, uint32_t b)
{
    double x = ix->nodes[a].rank, y = ix->nodes[b].rank;

    return x != y ? x < y : a < b;
}

static void heap_put(struct kg_index *ix, uint32_t h, uint32_t i, uint32_t v)
{
    ix->heap[h].node[i] = v;
    ix->nodes[v].heap_at[h] = i;
}

static void heap_up(struct kg_index *ix, uint32_t h, uint32_t i)
{
    uint32_t v = ix->heap[h].node[i];

    while (i > 0 && before(ix, v, ix->heap[h].node[(i - 1) / 2])) {
        heap_put(ix, h, i, ix->heap[h].node[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_put(ix, h, i, v);
}

static void heap_down(struct kg_index *ix, uint32_t h, uint32_t i)
{
    const struct kg_ix_heap *q = &ix->heap[h];
    uint32_t v = q->node[i];

    for (;;) {
        uint32_t k = 2 * i + 1;
        if (k >= q->n) {
            break;
        }
        k += k + 1 < q->n && before(ix, q->node[k + 1], q->node[k]);
        if (!before(ix, q->node[k], v)) {
            break;
        }
        heap_put(ix, h, i, q->node[k]);
        i = k;
    }
    heap_put(ix, h, i, v);
}

static void heap_move(struct kg_index *ix, uint32_t h, uint32_t v)
{
    heap_up(ix, h, ix->nodes[v].heap_at[h]);
    heap_down(ix, h, ix->nodes[v].heap_at[h]);
}

static void heap_add(struct kg_index *ix, uint32_t h, uint32_t v)
{
    struct kg_ix_heap *q = &ix->heap[h];

    q->node[q->n] = v;
    heap_up(ix, h, q->n++);
}

static void heap_drop(struct kg_index *ix, uint32_t h, uint32_t v)
{
    struct kg_ix_heap *q = &ix->heap[h];
    uint32_t i = ix->nodes[v].heap_at[h], last = q->node[--q->n];

    ix->nodes[v].heap_at[h] = KG_NONE;
    if (last != v) {
        heap_put(ix, h, i, last);
        heap_move(ix, h, last);
    }
}

/* --- rank --- */

static double cost(const struct kg_index *ix, uint32_t from, uint32_t to)
{
    if (ix->conf.cost_ns == NULL) {
        return to - from;
    }
    return (double)ix->conf.cost_ns(ix->conf.cost_ctx, from, to);
}

static uint32_t stands(const struct kg_ix_node *n)
{
    return n->below == 0 ? KG_IX_END : KG_IX_PASSED;
}

static uint32_t known_as(const struct kg_ix_node *n)
{
    if (n->hits == 0) {
        return n->kind;
    }
    return KG_INDEX_KINDS + (n->hits < KG_IX_TIMES ? n->hits : KG_IX_TIMES) - 1;
}

void kg_ix_tell_fate(struct kg_index *ix, uint32_t v, uint32_t hit)
{
    const struct kg_ix_node *n = &ix->nodes[v];
    struct kg_ix_fate *f = &ix->fate[stands(n)][known_as(n)];

    if (f->known == FATES) {
        f->known /= 2;
        f->hit /= 2;
    }
    f->known++;
    f->hit += hit;
}

/* Soon enough counts as a hit: the memory has not been filled once more since. Later would have
 * cost others more than it saved. */
void kg_ix_tell_missed(struct kg_index *ix, uint32_t v)
{
    struct kg_ix_node *n = &ix->nodes[v];

    if (!n->missed) {
        return;
    }
    struct kg_ix_fate *f = &ix->fate[n->missed - 1][n->was];
    uint64_t since = ix->stats.inserted[KG_PAGE] - n->gone;
    f->hit += f->hit < f->known && since <= ix->conf.max_units[KG_PAGE];
    n->missed = 0;
}

/* Share of the states known as this that were hit. */
static double prior(const struct kg_index *ix, uint32_t where, uint32_t as)
{
    const struct kg_ix_fate *f = &ix->fate[where][as];

    return (f->hit + credit_hit[where]) / (f->known + CREDIT);
}

double kg_ix_rank(const struct kg_index *ix, uint32_t v)
{
    const struct kg_ix_node *n = &ix->nodes[v];
    uint32_t page = ix->conf.page_tokens, own = n->n_pages, up = n->parent;
    int alone = n->below == 0;
    double reuse = prior(ix, stands(n), known_as(n));

    for (; up != KG_IX_ROOT && ix->nodes[up].state == KG_NONE; up = ix->nodes[up].parent) {
        alone = alone && ix->nodes[up].below == 1;
        own += alone ? ix->nodes[up].n_pages : 0;
    }
    double bytes = (double)ix->conf.unit_bytes[KG_STATE];
    if (n->below == 0) {
        bytes += (double)ix->conf.unit_bytes[KG_PAGE] * own;
    }
    return n->base + reuse * cost(ix, ix->nodes[up].end * page, n->end * page) / bytes;
}

void kg_ix_place(struct kg_index *ix, uint32_t v)
{
    struct kg_ix_node *n = &ix->nodes[v];

    if (v == KG_IX_ROOT || n->ghost) {
        return;
    }
    int leaf = n->n_live == 0 && n->locks == 0;
    int want[KG_IX_HEAPS];
    want[KG_IX_ANY] = n->state != KG_NONE && n->state_locks == 0;
    want[KG_IX_LEAF] = want[KG_IX_ANY] && leaf;
    if (want[KG_IX_ANY]) {
        n->rank = kg_ix_rank(ix, v);
    }
    for (uint32_t h = 0; h < KG_IX_HEAPS; h++) {
        int in = n->heap_at[h] != KG_NONE;
        if (want[h] && in) {
            heap_move(ix, h, v);
        } else if (want[h]) {
            heap_add(ix, h, v);
        } else if (in) {
            heap_drop(ix, h, v);
        }
    }
    int dead = leaf && n->state == KG_NONE;
    if (dead && n->list == KG_IX_NOLIST) {
        kg_ix_list_add(ix, KG_IX_DEAD, v);
    } else if (!dead) {
        kg_ix_list_drop(ix, v);
    }
}

/* --- ghosts --- */

uint64_t kg_ix_ghost_cost(const struct kg_index *ix, uint32_t n_pages)
{
    return sizeof(struct kg_ix_node) +
           (uint64_t)n_pages * (ix->conf.page_tokens + 3u) * sizeof(uint32_t);
}

void kg_ix_set_ghost(struct kg_index *ix, uint32_t v, int ghost)
{
    struct kg_ix_node *n = &ix->nodes[v];
    uint64_t bytes = kg_ix_ghost_cost(ix, n->n_pages);

    kg_ix_list_drop(ix, v);
    n->ghost = (uint8_t)ghost;
    n->stamp = ++ix->clock;
    if (ghost) {
        ix->nodes[n->parent].n_live--;
        ix->ghost_bytes += bytes;
        kg_ix_list_add(ix, KG_IX_GHOST, v);
    } else {
        ix->nodes[n->parent].n_live++;
        ix->ghost_bytes -= bytes;
    }
    kg_ix_place(ix, n->parent);
}

int kg_ix_trim(struct kg_index *ix, uint32_t n)
{
    while (ix->ghost_bytes > ix->conf.ghost_bytes || ix->max_cells - ix->n_cells < n) {
        uint32_t v = ix->list[KG_IX_GHOST].head;
        if (v == KG_NONE) {
            return KG_EAGAIN;
        }
        while (ix->nodes[v].child != KG_NONE) { /* a parent is younger in the list: rarely */
            v = ix->nodes[v].child;
        }
        uint32_t parent = ix->nodes[v].parent;
        kg_ix_remove(ix, v);
        (void)kg_ix_merge(ix, parent);
    }
    return KG_OK;
}

/* --- states --- */

void kg_ix_set_state(struct kg_index *ix, uint32_t v, uint32_t state)
{
    struct kg_ix_node *n = &ix->nodes[v];
    uint32_t up = n->parent;
    int there = state != KG_NONE;

    n->state = state;
    n->missed = 0;
    n->stamp = ++ix->clock;
    n->hits = 0;
    n->base = ix->floor;
    for (uint32_t a = n->parent;; a = ix->nodes[a].parent) {
        ix->nodes[a].below += there ? 1u : UINT32_MAX;
        if (a == KG_IX_ROOT) {
            break;
        }
    }
    ix->cached[KG_STATE] += there ? 1u : UINT32_MAX;
    ix->evictable[KG_STATE] += there ? 1u : UINT32_MAX;
    kg_ix_place(ix, v);
    while (up != KG_IX_ROOT && ix->nodes[up].state == KG_NONE) {
        up = ix->nodes[up].parent;
    }
    kg_ix_place(ix, up); /* was the end of its path, or is it now */
}

/* --- eviction --- */

/* Ranks a few entries anew, in turn. */
static void refresh(struct kg_index *ix)
{
    const struct kg_ix_heap *q = &ix->heap[KG_IX_ANY];

    for (uint32_t i = 0; i < REFRESH && q->n > 0; i++) {
        ix->cursor = ix->cursor + 1 < q->n ? ix->cursor + 1 : 0;
        kg_ix_place(ix, q->node[ix->cursor]);
    }
}

/* Top of a heap with a rank that holds; KG_NONE when it is empty. */
static uint32_t top(struct kg_index *ix, uint32_t h)
{
    const struct kg_ix_heap *q = &ix->heap[h];

    for (uint32_t i = 0; i < RETRIES && q->n > 0; i++) {
        uint32_t v = q->node[0];
        kg_ix_place(ix, v);
        if (q->node[0] == v) {
            break;
        }
    }
    return q->n > 0 ? q->node[0] : KG_NONE;
}

/* --- a second home --- */

/* The state of v was kept: pages before it are wanted there too. Those before a wanted one are. */
static void want_pages(struct kg_index *ix, uint32_t v)
{
    for (; v != KG_IX_ROOT; v = ix->nodes[v].parent) {
        for (uint32_t c = ix->nodes[v].last; c != KG_NONE; c = ix->prev[c]) {
            if (ix->wanted[c]) {
                return;
            }
            ix->wanted[c] = 1;
        }
    }
}

static void state_leaves(struct kg_index *ix, uint32_t v)
{
    const struct kg_ix_node *n = &ix->nodes[v];

    if (ix->chain != NULL && ix->conf.leave(ix->conf.leave_ctx, KG_STATE, n->state,
                                            &ix->chain[n->last], n->end * ix->conf.page_tokens)) {
        want_pages(ix, v);
    }
}

/* Page number `end` - 1 of its requests, in cell c. */
static void page_leaves(struct kg_index *ix, uint32_t c, uint32_t end)
{
    if (ix->chain != NULL && ix->wanted[c]) {
        (void)ix->conf.leave(ix->conf.leave_ctx, KG_PAGE, ix->unit[c], &ix->chain[c],
                             end * ix->conf.page_tokens);
    }
}

/* The last pages of the oldest node nobody could resume behind. */
static void evict_pages(struct kg_index *ix, uint32_t n, uint32_t *pages,
                        struct kg_index_victim *victim)
{
    uint32_t v = ix->list[KG_IX_DEAD].head, k = ix->nodes[v].n_pages, i = 0;

    if (n < k) {
        (void)kg_ix_split(ix, v, k - n);
    }
    for (uint32_t c = ix->nodes[v].last; c != KG_NONE; c = ix->prev[c]) {
        page_leaves(ix, c, ix->nodes[v].end - i);
        pages[i++] = ix->unit[c];
        ix->unit[c] = KG_NONE;
    }
    victim->n_pages = i;
    ix->cached[KG_PAGE] -= i;
    ix->evictable[KG_PAGE] -= i;
    ix->stats.evicted[KG_PAGE] += i;
    kg_ix_set_ghost(ix, v, 1);
    (void)kg_ix_merge(ix, v);
    (void)kg_ix_trim(ix, 0);
}

/* The state of v went. Who used it went through the one before it: where that is the end of its
 * path now, it was used last when v's was. */
static void inherit(struct kg_index *ix, uint32_t v, double base)
{
    uint32_t up = ix->nodes[v].parent;

    while (up != KG_IX_ROOT && ix->nodes[up].state == KG_NONE) {
        up = ix->nodes[up].parent;
    }
    if (up != KG_IX_ROOT && ix->nodes[up].below == 0 && ix->nodes[up].base < base) {
        ix->nodes[up].base = base;
        kg_ix_place(ix, up);
    }
}

static void evict_state(struct kg_index *ix, uint32_t v, struct kg_index_victim *victim)
{
    struct kg_ix_node *n = &ix->nodes[v];

    state_leaves(ix, v);
    victim->state = n->state;
    victim->rank = n->rank;
    ix->floor = n->rank > ix->floor ? n->rank : ix->floor;
    ix->stats.evicted[KG_STATE]++;
    uint32_t missed = 1 + stands(n), was = known_as(n);
    kg_ix_tell_fate(ix, v, 0);
    double base = n->base;
    kg_ix_set_state(ix, v, KG_NONE);
    inherit(ix, v, base);
    n->missed = (uint8_t)missed;
    n->was = (uint8_t)was;
    n->gone = ix->stats.inserted[KG_PAGE];
    (void)kg_ix_merge(ix, v);
    refresh(ix);
}

int kg_index_evict(struct kg_index *ix, const uint32_t want[KG_N_KINDS], uint32_t *pages,
                   uint32_t max_pages, struct kg_index_victim *victim)
{
    *victim = (struct kg_index_victim){.state = KG_NONE};
    if (want[KG_PAGE] != KG_NONE && ix->list[KG_IX_DEAD].head != KG_NONE && max_pages > 0) {
        uint32_t n = want[KG_PAGE] > 0 ? want[KG_PAGE] : 1;
        evict_pages(ix, n < max_pages ? n : max_pages, pages, victim);
        return KG_OK;
    }
    uint32_t v = KG_NONE;
    if (want[KG_STATE] != KG_NONE) {
        v = top(ix, KG_IX_ANY);
    } else if (want[KG_PAGE] != KG_NONE) {
        v = top(ix, KG_IX_LEAF);
    }
    if (v == KG_NONE) {
        return KG_EAGAIN;
    }
    evict_state(ix, v, victim);
    return KG_OK;
}

uint32_t kg_index_evict_dead(struct kg_index *ix, uint32_t n, uint32_t *pages)
{
    struct kg_index_victim victim = {.state = KG_NONE};

    if (n > 0 && ix->list[KG_IX_DEAD].head != KG_NONE) {
        evict_pages(ix, n, pages, &victim);
    }
    return victim.n_pages;
}

int kg_index_has_dead(const struct kg_index *ix, uint32_t n)
{
    uint32_t v = ix->list[KG_IX_DEAD].head;

    for (; v != KG_NONE && ix->nodes[v].n_pages < n; v = ix->nodes[v].list_next) {
        n -= ix->nodes[v].n_pages;
    }
    return v != KG_NONE;
}

void kg_index_shares(const struct kg_index *ix, double share[KG_INDEX_KINDS],
                     uint32_t known[KG_INDEX_KINDS])
{
    for (uint32_t kind = 0; kind < KG_INDEX_KINDS; kind++) {
        share[kind] = prior(ix, KG_IX_END, kind);
        known[kind] = ix->fate[KG_IX_END][kind].known;
    }
}

double kg_index_worth(const struct kg_index *ix, uint32_t from, uint32_t to, uint32_t kind)
{
    double bytes = (double)ix->conf.unit_bytes[KG_STATE] +
                   (double)ix->conf.unit_bytes[KG_PAGE] * ((to - from) / ix->conf.page_tokens);

    return ix->floor + prior(ix, KG_IX_END, kind) * cost(ix, from, to) / bytes;
}

double kg_index_cheapest(struct kg_index *ix)
{
    uint32_t v = top(ix, KG_IX_ANY);

    return v != KG_NONE ? ix->nodes[v].rank : INFINITY;
}
