/* Nodes and cells of the prefix index: find, add, extend, split, merge, remove. */
#include "engine/index_impl.h"

#include "base/hash.h"

#include <string.h>
#include <xxhash.h>

static uint32_t bucket_of(const struct kg_index *ix, uint32_t parent, uint64_t salt,
                          const uint32_t *tokens)
{
    uint64_t seed = ix->conf.seed ^ kg_hash_mix(salt + 0x9e3779b97f4a7c15ull * (parent + 1ull));

    return (uint32_t)XXH3_64bits_withSeed(tokens, ix->conf.page_tokens * sizeof(*tokens), seed) &
           ix->mask;
}

static int same_page(const struct kg_index *ix, uint32_t cell, const uint32_t *tokens)
{
    return memcmp(kg_ix_tokens(ix, cell), tokens, ix->conf.page_tokens * sizeof(*tokens)) == 0;
}

uint32_t kg_ix_find(const struct kg_index *ix, uint32_t parent, uint64_t salt,
                    const uint32_t *tokens)
{
    if (ix->nodes[parent].n_children == 0) {
        return KG_NONE;
    }
    uint32_t v = ix->table[bucket_of(ix, parent, salt, tokens)];
    while (v != KG_NONE) {
        const struct kg_ix_node *n = &ix->nodes[v];
        if (n->parent == parent && n->salt == salt && same_page(ix, n->first, tokens)) {
            break;
        }
        v = n->chain;
    }
    return v;
}

uint32_t kg_ix_common(const struct kg_index *ix, uint32_t v, const uint32_t *tokens, uint32_t n)
{
    uint32_t page = ix->conf.page_tokens, k = 0;
    uint32_t most = ix->nodes[v].n_pages < n ? ix->nodes[v].n_pages : n;

    for (uint32_t c = ix->nodes[v].first; k < most; k++, c = ix->next[c]) {
        if (!same_page(ix, c, tokens + (uint64_t)k * page)) {
            break;
        }
    }
    return k;
}

static void hash_in(struct kg_index *ix, uint32_t v)
{
    struct kg_ix_node *n = &ix->nodes[v];

    n->bucket = bucket_of(ix, n->parent, n->salt, kg_ix_tokens(ix, n->first));
    n->chain = ix->table[n->bucket];
    ix->table[n->bucket] = v;
}

static void hash_out(struct kg_index *ix, uint32_t v)
{
    uint32_t *at = &ix->table[ix->nodes[v].bucket];

    while (*at != v) {
        at = &ix->nodes[*at].chain;
    }
    *at = ix->nodes[v].chain;
}

static void link_child(struct kg_index *ix, uint32_t parent, uint32_t v)
{
    struct kg_ix_node *p = &ix->nodes[parent], *n = &ix->nodes[v];

    n->parent = parent;
    n->prev = KG_NONE;
    n->next = p->child;
    if (p->child != KG_NONE) {
        ix->nodes[p->child].prev = v;
    }
    p->child = v;
    p->n_children++;
    p->n_live += !n->ghost;
}

static void unlink_child(struct kg_index *ix, uint32_t v)
{
    struct kg_ix_node *n = &ix->nodes[v], *p = &ix->nodes[n->parent];

    if (n->prev != KG_NONE) {
        ix->nodes[n->prev].next = n->next;
    } else {
        p->child = n->next;
    }
    if (n->next != KG_NONE) {
        ix->nodes[n->next].prev = n->prev;
    }
    p->n_children--;
    p->n_live -= !n->ghost;
}

/* Nodes outnumber cells and each node but the root has one: there is always one free. */
static uint32_t node_new(struct kg_index *ix)
{
    uint32_t v = ix->free_node;

    if (v != KG_NONE) {
        ix->free_node = ix->nodes[v].parent;
    } else {
        v = ix->node_top++;
    }
    ix->nodes[v] = (struct kg_ix_node){.child = KG_NONE,
                                       .next = KG_NONE,
                                       .prev = KG_NONE,
                                       .chain = KG_NONE,
                                       .first = KG_NONE,
                                       .last = KG_NONE,
                                       .state = KG_NONE,
                                       .stamp = ++ix->clock,
                                       .heap_at = {KG_NONE, KG_NONE},
                                       .list = KG_IX_NOLIST,
                                       .used = 1};
    ix->n_nodes++;
    return v;
}

static void node_free(struct kg_index *ix, uint32_t v)
{
    struct kg_ix_node *n = &ix->nodes[v];

    n->stamp = ++ix->clock;
    n->used = 0;
    n->parent = ix->free_node;
    ix->free_node = v;
    ix->n_nodes--;
}

/* The key of a cell that was appended to v. */
static void name_cell(struct kg_index *ix, uint32_t v, uint32_t c)
{
    const struct kg_ix_node *n = &ix->nodes[v];
    uint32_t before = ix->prev[c] != KG_NONE ? ix->prev[c] : ix->nodes[n->parent].last;
    struct kg_chain start;

    if (ix->chain == NULL) {
        return;
    }
    if (before == KG_NONE) { /* below the root */
        start = kg_chain_start(ix->conf.chain_key, n->salt);
    }
    ix->chain[c] =
        kg_chain_next(ix->conf.chain_key, before == KG_NONE ? &start : &ix->chain[before],
                      kg_ix_tokens(ix, c), ix->conf.page_tokens);
    ix->wanted[c] = 0;
}

void kg_ix_extend(struct kg_index *ix, uint32_t v, const uint32_t *tokens, uint32_t n)
{
    struct kg_ix_node *x = &ix->nodes[v];
    uint32_t page = ix->conf.page_tokens;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t c = ix->free_cell;
        if (c != KG_NONE) {
            ix->free_cell = ix->next[c];
        } else {
            c = ix->cell_top++;
        }
        memcpy(ix->tokens + (uint64_t)c * page, tokens + (uint64_t)i * page,
               page * sizeof(*tokens));
        ix->unit[c] = KG_NONE;
        ix->next[c] = KG_NONE;
        ix->prev[c] = x->last;
        if (x->last != KG_NONE) {
            ix->next[x->last] = c;
        } else {
            x->first = c;
        }
        x->last = c;
        name_cell(ix, v, c);
    }
    ix->n_cells += n;
    x->n_pages += n;
    x->end += n;
    x->stamp = ++ix->clock;
}

uint32_t kg_ix_add(struct kg_index *ix, uint32_t parent, uint64_t salt, const uint32_t *tokens,
                   uint32_t n)
{
    uint32_t v = node_new(ix);

    ix->nodes[v].salt = salt;
    ix->nodes[v].end = ix->nodes[parent].end;
    link_child(ix, parent, v);
    ix->nodes[parent].kids = ++ix->clock;
    kg_ix_extend(ix, v, tokens, n);
    hash_in(ix, v);
    return v;
}

/* Cell number k of v, from the nearer end. */
static uint32_t cell_at(const struct kg_index *ix, uint32_t v, uint32_t k)
{
    const struct kg_ix_node *n = &ix->nodes[v];
    uint32_t c;

    if (k <= n->n_pages / 2) {
        for (c = n->first; k > 0; k--) {
            c = ix->next[c];
        }
    } else {
        for (c = n->last; k + 1 < n->n_pages; k++) {
            c = ix->prev[c];
        }
    }
    return c;
}

uint32_t kg_ix_split(struct kg_index *ix, uint32_t v, uint32_t k)
{
    struct kg_ix_node *n = &ix->nodes[v];
    uint32_t u = node_new(ix), parent = n->parent, cut = cell_at(ix, v, k);
    struct kg_ix_node *up = &ix->nodes[u];

    hash_out(ix, v);
    unlink_child(ix, v);
    up->salt = n->salt;
    up->ghost = n->ghost;
    up->locks = n->locks;
    up->seen = n->seen;
    up->below = n->below + (n->state != KG_NONE);
    up->first = n->first;
    up->last = ix->prev[cut];
    up->n_pages = k;
    up->end = n->end - n->n_pages + k;
    ix->next[up->last] = KG_NONE;
    ix->prev[cut] = KG_NONE;
    n->first = cut;
    n->n_pages -= k;
    n->stamp = ++ix->clock;
    link_child(ix, parent, u);
    link_child(ix, u, v);
    hash_in(ix, u);
    hash_in(ix, v);
    if (n->ghost) {
        kg_ix_list_after(ix, v, u);
        ix->ghost_bytes += sizeof(struct kg_ix_node);
    }
    return u;
}

int kg_ix_merge(struct kg_index *ix, uint32_t v)
{
    struct kg_ix_node *n = &ix->nodes[v];

    if (v == KG_IX_ROOT || n->n_children != 1 || n->tips != 0 || n->state != KG_NONE || n->missed) {
        return 0;
    }
    uint32_t c = n->child, parent = n->parent;
    struct kg_ix_node *x = &ix->nodes[c];
    if (x->ghost != n->ghost || x->locks != n->locks) {
        return 0;
    }
    hash_out(ix, v);
    hash_out(ix, c);
    unlink_child(ix, c);
    unlink_child(ix, v);
    ix->next[n->last] = x->first;
    ix->prev[x->first] = n->last;
    x->first = n->first;
    x->n_pages += n->n_pages;
    x->stamp = ++ix->clock;
    link_child(ix, parent, c);
    hash_in(ix, c);
    if (n->ghost) {
        kg_ix_list_drop(ix, c);
        kg_ix_list_after(ix, v, c);
        kg_ix_list_drop(ix, v);
        ix->ghost_bytes -= sizeof(struct kg_ix_node);
    }
    node_free(ix, v);
    return 1;
}

void kg_ix_remove(struct kg_index *ix, uint32_t v)
{
    struct kg_ix_node *n = &ix->nodes[v];

    kg_ix_list_drop(ix, v);
    ix->ghost_bytes -= kg_ix_ghost_cost(ix, n->n_pages);
    ix->stats.ghosts_dropped += n->n_pages;
    hash_out(ix, v);
    unlink_child(ix, v);
    ix->next[n->last] = ix->free_cell;
    ix->free_cell = n->first;
    ix->n_cells -= n->n_pages;
    node_free(ix, v);
}
