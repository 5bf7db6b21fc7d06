/* Self-check of the prefix index: everything it keeps incrementally, counted again. */
#include "engine/index_impl.h"

#include <string.h>

#define BAD(...) kg_fail(err, KG_EINVAL, "prefix index: " __VA_ARGS__)

/* Sums over all nodes, to compare with the running ones. */
struct sums {
    uint64_t n_nodes, n_cells, n_live, tips, ghost_bytes;
    uint64_t cached[KG_N_KINDS], evictable[KG_N_KINDS];
    uint64_t heap[KG_IX_HEAPS], list[KG_IX_LISTS];
};

/* Cell c of v: its chain key, and what is before a wanted page is wanted. */
static int check_chain(const struct kg_index *ix, uint32_t v, uint32_t c, struct kg_error *err)
{
    const struct kg_ix_node *n = &ix->nodes[v];
    uint32_t before = ix->prev[c] != KG_NONE ? ix->prev[c] : ix->nodes[n->parent].last;
    struct kg_chain start = kg_chain_start(ix->conf.chain_key, n->salt);
    struct kg_chain want =
        kg_chain_next(ix->conf.chain_key, before != KG_NONE ? &ix->chain[before] : &start,
                      kg_ix_tokens(ix, c), ix->conf.page_tokens);

    if (memcmp(&want, &ix->chain[c], sizeof(want)) != 0) {
        return BAD("node %u: cell %u has another chain key", v, c);
    }
    if (ix->wanted[c] && before != KG_NONE && !ix->wanted[before]) {
        return BAD("node %u: cell %u is wanted, the one before it is not", v, c);
    }
    return KG_OK;
}

static int check_cells(const struct kg_index *ix, uint32_t v, struct kg_error *err)
{
    const struct kg_ix_node *n = &ix->nodes[v];
    uint32_t k = 0, prev = KG_NONE;

    for (uint32_t c = n->first; c != KG_NONE; c = ix->next[c], k++) {
        if (c >= ix->cell_top || ix->prev[c] != prev || k > n->n_pages) {
            return BAD("node %u: broken list of cells at %u", v, c);
        }
        if (ix->chain != NULL && check_chain(ix, v, c, err) != KG_OK) {
            return KG_EINVAL;
        }
        uint32_t unit = ix->unit[c];
        if (n->ghost != (unit == KG_NONE)) {
            return BAD("node %u: page %u of a %s", v, unit, n->ghost ? "ghost" : "live node");
        }
        if (!n->ghost && (unit >= ix->conf.max_units[KG_PAGE] || ix->mark[unit] & 1u)) {
            return BAD("node %u: page %u is out of range or in two places", v, unit);
        }
        if (!n->ghost) {
            ix->mark[unit] |= 1u;
        }
        prev = c;
    }
    if (k != n->n_pages || k == 0 || prev != n->last ||
        n->end != ix->nodes[n->parent].end + n->n_pages) {
        return BAD("node %u: %u cells for %u pages that end at %u", v, k, n->n_pages, n->end);
    }
    return KG_OK;
}

/* Counts that hang together between a node and its children. */
static int check_family(const struct kg_index *ix, uint32_t v, struct kg_error *err)
{
    const struct kg_ix_node *n = &ix->nodes[v];
    uint32_t children = 0, live = 0, locks = n->tips, below = 0, prev = KG_NONE;

    for (uint32_t c = n->child; c != KG_NONE; prev = c, c = ix->nodes[c].next) {
        const struct kg_ix_node *x = &ix->nodes[c];
        if (!x->used || x->parent != v || x->prev != prev || children > ix->n_nodes) {
            return BAD("node %u: child %u does not know it", v, c);
        }
        if (v != KG_IX_ROOT && (x->salt != n->salt || (n->ghost && !x->ghost))) {
            return BAD("node %u: child %u has another salt or more pages", v, c);
        }
        children++;
        live += !x->ghost;
        locks += x->locks;
        below += x->below + (x->state != KG_NONE);
    }
    if (children != n->n_children || live != n->n_live || below != n->below) {
        return BAD("node %u: %u children, %u live, %u states below; counted %u, %u, %u", v,
                   n->n_children, n->n_live, n->below, children, live, below);
    }
    if (v != KG_IX_ROOT && locks != n->locks) {
        return BAD("node %u: %u locks, %u paths end at or below it", v, n->locks, locks);
    }
    if (n->state_locks > n->locks || (n->state_locks > 0 && n->state == KG_NONE) ||
        (n->ghost && (n->locks > 0 || n->state != KG_NONE))) {
        return BAD("node %u: %u locks of the state %u, %u of the pages", v, n->state_locks,
                   n->state, n->locks);
    }
    return KG_OK;
}

static int check_places(const struct kg_index *ix, uint32_t v, struct kg_error *err)
{
    const struct kg_ix_node *n = &ix->nodes[v];
    int leaf = !n->ghost && n->n_live == 0 && n->locks == 0;
    int any = n->state != KG_NONE && n->state_locks == 0;
    uint32_t list = n->ghost ? KG_IX_GHOST : KG_IX_NOLIST;

    if (leaf && n->state == KG_NONE) {
        list = KG_IX_DEAD;
    }
    for (uint32_t h = 0; h < KG_IX_HEAPS; h++) {
        uint32_t at = n->heap_at[h];
        int want = any && (h == KG_IX_ANY || leaf);
        if (want != (at != KG_NONE) ||
            (want && (at >= ix->heap[h].n || ix->heap[h].node[at] != v))) {
            return BAD("node %u: place %u in heap %u, wanted %d", v, at, h, want);
        }
        if (want && at > 0) {
            const struct kg_ix_node *up = &ix->nodes[ix->heap[h].node[(at - 1) / 2]];
            if (up->rank > n->rank) {
                return BAD("heap %u is out of order at %u", h, at);
            }
        }
    }
    if (n->list != list) {
        return BAD("node %u: in list %u, belongs to %u", v, n->list, list);
    }
    return KG_OK;
}

static int check_node(const struct kg_index *ix, uint32_t v, struct sums *s, struct kg_error *err)
{
    const struct kg_ix_node *n = &ix->nodes[v];

    if (check_cells(ix, v, err) != KG_OK || check_places(ix, v, err) != KG_OK) {
        return KG_EINVAL;
    }
    if (kg_ix_find(ix, n->parent, n->salt, kg_ix_tokens(ix, n->first)) != v) {
        return BAD("node %u is not found by its tokens", v);
    }
    if (n->missed > (n->state == KG_NONE ? KG_IX_STANDS : 0u) || n->kind >= KG_INDEX_KINDS) {
        return BAD("node %u: state %u, of kind %u, is missed %u", v, n->state, n->kind, n->missed);
    }
    if (n->state != KG_NONE) {
        if (n->state >= ix->conf.max_units[KG_STATE] || ix->mark[n->state] & 2u) {
            return BAD("node %u: state %u is out of range or in two places", v, n->state);
        }
        ix->mark[n->state] |= 2u;
    }
    s->n_nodes++;
    s->n_cells += n->n_pages;
    s->ghost_bytes += n->ghost ? kg_ix_ghost_cost(ix, n->n_pages) : 0;
    s->cached[KG_PAGE] += n->ghost ? 0 : n->n_pages;
    s->cached[KG_STATE] += n->state != KG_NONE;
    s->evictable[KG_PAGE] += n->ghost || n->locks > 0 ? 0 : n->n_pages;
    s->evictable[KG_STATE] += n->state != KG_NONE && n->state_locks == 0;
    for (uint32_t h = 0; h < KG_IX_HEAPS; h++) {
        s->heap[h] += n->heap_at[h] != KG_NONE;
    }
    if (n->list < KG_IX_LISTS) {
        s->list[n->list]++;
    }
    return KG_OK;
}

static int check_sums(const struct kg_index *ix, const struct sums *s, struct kg_error *err)
{
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        if (s->cached[k] != ix->cached[k] || s->evictable[k] != ix->evictable[k]) {
            return BAD("%u %ss cached, %u evictable; counted %llu, %llu", ix->cached[k],
                       kg_kind_name(k), ix->evictable[k], (unsigned long long)s->cached[k],
                       (unsigned long long)s->evictable[k]);
        }
    }
    if (s->n_nodes != ix->n_nodes || s->n_cells != ix->n_cells ||
        s->ghost_bytes != ix->ghost_bytes || s->tips != ix->stats.n_paths) {
        return BAD("%u nodes, %u cells, %llu ghost bytes, %u paths; counted %llu, %llu, %llu, %llu",
                   ix->n_nodes, ix->n_cells, (unsigned long long)ix->ghost_bytes, ix->stats.n_paths,
                   (unsigned long long)s->n_nodes, (unsigned long long)s->n_cells,
                   (unsigned long long)s->ghost_bytes, (unsigned long long)s->tips);
    }
    for (uint32_t h = 0; h < KG_IX_HEAPS; h++) {
        if (s->heap[h] != ix->heap[h].n) {
            return BAD("heap %u has %u entries, %llu nodes say so", h, ix->heap[h].n,
                       (unsigned long long)s->heap[h]);
        }
    }
    for (uint32_t l = 0; l < KG_IX_LISTS; l++) {
        uint64_t n = 0;
        for (uint32_t v = ix->list[l].head; v != KG_NONE && n <= s->list[l]; n++) {
            v = ix->nodes[v].list_next;
        }
        if (n != s->list[l]) {
            return BAD("list %u has %llu entries, %llu nodes say so", l, (unsigned long long)n,
                       (unsigned long long)s->list[l]);
        }
    }
    return KG_OK;
}

int kg_index_check(const struct kg_index *ix, struct kg_error *err)
{
    uint32_t most = ix->conf.max_units[0] > ix->conf.max_units[1] ? ix->conf.max_units[0]
                                                                  : ix->conf.max_units[1];
    struct sums s = {0};

    memset(ix->mark, 0, most);
    for (uint32_t v = 0; v < ix->node_top; v++) {
        if (!ix->nodes[v].used) {
            continue;
        }
        if (check_family(ix, v, err) != KG_OK ||
            (v != KG_IX_ROOT && check_node(ix, v, &s, err) != KG_OK)) {
            return KG_EINVAL;
        }
        s.tips += ix->nodes[v].tips;
    }
    return check_sums(ix, &s, err);
}
