/*
 * The inside of the prefix index, shared by index.c (paths), index_tree.c (nodes and cells),
 * evict.c (ranks, order of eviction, ghosts) and index_check.c.
 *
 * A cell is one page: its tokens and its unit. A node is a list of cells. All of a node's cells
 * have units or none has (ghost); children of a ghost are ghosts.
 */
#ifndef KEDGE_ENGINE_INDEX_IMPL_H
#define KEDGE_ENGINE_INDEX_IMPL_H

#include "engine/index.h"

enum { KG_IX_ROOT = 0 }; /* never evicted, no cells; of all salts */

/* Heaps of states by rank: all that may go, and those of them whose pages may go next. */
enum { KG_IX_ANY = 0, KG_IX_LEAF = 1, KG_IX_HEAPS = 2 };

/* Lists by age: live leaves without a state, and ghosts. */
enum { KG_IX_DEAD = 0, KG_IX_GHOST = 1, KG_IX_LISTS = 2, KG_IX_NOLIST = 2 };

struct kg_ix_node {
    uint64_t salt;
    uint64_t stamp;             /* index clock when a match through the node changed last */
    uint64_t kids;              /* index clock when a child was added last */
    double rank;                /* in a heap: as computed last; may be too low or too high */
    double base;                /* scale of the index when the state was used last */
    uint32_t parent;            /* free nodes: next free */
    uint32_t child, next, prev; /* first child; siblings */
    uint32_t chain, bucket;     /* next in the hash bucket; which bucket */
    uint32_t first, last;       /* cells */
    uint32_t n_pages, end;      /* pages of the node; pages from the root to its end */
    uint32_t locks;             /* paths that end at or below */
    uint32_t tips;              /* paths that end here */
    uint32_t state, state_locks;
    uint32_t below;              /* states of descendants */
    uint32_t n_children, n_live; /* children; those that are no ghosts */
    uint32_t hits;               /* paths that began at the state */
    uint32_t seen;               /* requests whose tokens covered the node */
    uint32_t heap_at[KG_IX_HEAPS];
    uint32_t list_next, list_prev;
    uint64_t gone;  /* pages inserted by the time a state was evicted here */
    uint8_t list;   /* KG_IX_DEAD, KG_IX_GHOST, KG_IX_NOLIST */
    uint8_t ghost;  /* no units */
    uint8_t kind;   /* of the state */
    uint8_t missed; /* a state was evicted here, nobody came since: 1 + where it stood, else 0 */
    uint8_t was;    /* missed: what fates knew it as */
    uint8_t used;
};

/* Where a state stands on its path: nothing behind it, or others that went on from it. */
enum { KG_IX_END = 0, KG_IX_PASSED = 1, KG_IX_STANDS = 2 };

/* What became of states of a kind: of those nobody came to yet by the kind they were written as;
 * of the others by how often somebody had, up to KG_IX_TIMES. */
#define KG_IX_TIMES 3u
#define KG_IX_FATES (KG_INDEX_KINDS + KG_IX_TIMES)
struct kg_ix_fate {
    uint32_t known; /* hit or evicted. Both are halved when many, so that they follow */
    uint32_t hit;   /* of those: hit, or would have been soon after they went */
};

struct kg_ix_heap {
    uint32_t *node; /* [max_units[KG_STATE] + 1] */
    uint32_t n;
};

struct kg_ix_list {
    uint32_t head, tail; /* oldest, newest */
};

struct kg_index {
    struct kg_index_conf conf;
    struct kg_ix_node *nodes; /* [max_nodes] */
    uint32_t max_nodes, node_top, free_node, n_nodes;
    uint32_t *tokens;       /* [max_cells][page_tokens] */
    uint32_t *unit;         /* [max_cells] page id, KG_NONE in ghosts */
    uint32_t *next, *prev;  /* [max_cells] cells of a node; free cells by next */
    struct kg_chain *chain; /* [max_cells] key up to the cell's end; NULL without `leave` */
    uint8_t *wanted;        /* [max_cells] 1: a state at or behind it was kept elsewhere */
    uint32_t max_cells, cell_top, free_cell, n_cells;
    uint32_t *table; /* [mask + 1] */
    uint32_t mask;
    struct kg_ix_heap heap[KG_IX_HEAPS];
    struct kg_ix_list list[KG_IX_LISTS];
    struct kg_ix_fate fate[KG_IX_STANDS][KG_IX_FATES];
    uint64_t clock;  /* changes so far */
    double floor;    /* rank of the last state evicted: the scale rises, so what is unused ages */
    uint32_t cursor; /* heap place whose rank is refreshed next */
    uint32_t cached[KG_N_KINDS], evictable[KG_N_KINDS];
    uint64_t ghost_bytes;
    struct kg_index_stats stats;
    uint8_t *mark; /* [max units of the larger kind] scratch of check */
};

/* --- index_tree.c --- */

static inline const uint32_t *kg_ix_tokens(const struct kg_index *ix, uint32_t cell)
{
    return ix->tokens + (uint64_t)cell * ix->conf.page_tokens;
}

uint32_t kg_ix_find(const struct kg_index *ix, uint32_t parent, uint64_t salt,
                    const uint32_t *tokens);
/* Leading pages of node v equal to tokens, at most n. */
uint32_t kg_ix_common(const struct kg_index *ix, uint32_t v, const uint32_t *tokens, uint32_t n);
/* A child of `parent` with n new cells that hold tokens, without units. The cells exist. */
uint32_t kg_ix_add(struct kg_index *ix, uint32_t parent, uint64_t salt, const uint32_t *tokens,
                   uint32_t n);
/* n more cells at the end of v. The cells exist. */
void kg_ix_extend(struct kg_index *ix, uint32_t v, const uint32_t *tokens, uint32_t n);
/* The first k pages of v, 0 < k < n_pages, become a node of their own; v keeps the rest, its end,
 * its state. Returns the new node. Cannot fail: there are more nodes than cells. */
uint32_t kg_ix_split(struct kg_index *ix, uint32_t v, uint32_t k);
/* v and its only child become one, if nothing tells them apart. Returns 1 when v is gone. */
int kg_ix_merge(struct kg_index *ix, uint32_t v);
/* Forgets a ghost without children. */
void kg_ix_remove(struct kg_index *ix, uint32_t v);

/* --- evict.c --- */

/* Enters v in the heaps and lists it belongs to, leaves the others; ranks its state. */
void kg_ix_place(struct kg_index *ix, uint32_t v);
void kg_ix_list_add(struct kg_index *ix, uint32_t list, uint32_t v);
void kg_ix_list_drop(struct kg_index *ix, uint32_t v);
/* In v's list, `w` enters right behind v (newer). */
void kg_ix_list_after(struct kg_index *ix, uint32_t v, uint32_t w);
double kg_ix_rank(const struct kg_index *ix, uint32_t v);
/* The state of v is hit (before that is counted), or goes without. */
void kg_ix_tell_fate(struct kg_index *ix, uint32_t v, uint32_t hit);
/* A request came to v whose state was evicted: had it stayed, it would have been hit. */
void kg_ix_tell_missed(struct kg_index *ix, uint32_t v);
/* v's pages are gone or back. */
void kg_ix_set_ghost(struct kg_index *ix, uint32_t v, int ghost);
/* Forgets ghosts until they keep to their bound and `n` cells are free; KG_EAGAIN: not so many. */
int kg_ix_trim(struct kg_index *ix, uint32_t n);
/* Host bytes of a ghost of n pages. */
uint64_t kg_ix_ghost_cost(const struct kg_index *ix, uint32_t n_pages);
/* v's state is gone or there. */
void kg_ix_set_state(struct kg_index *ix, uint32_t v, uint32_t state);

#endif
