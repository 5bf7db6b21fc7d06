/*
 * The prefix index: one radix tree over page-sized token runs. A node stores its tokens, the pages
 * that hold them and at most one state, valid for exactly the node's end; a match compares tokens
 * and salt, a seeded hash only finds the child. What can be reused of a prompt is a pair: pages as
 * far as they reach, and a state at or below that length.
 *
 * A node without units is a ghost: tokens and counts only. It tells where requests parted or came
 * back after their memory was gone.
 *
 * Owners. A page or state in the index belongs to the index; the caller tells the pool (own) and
 * gives back what the index hands out. The index never calls the pool.
 * Locks. A path locks the pages from the root to its end. Every page on a path is one its request
 * uses, so a path pins nothing beyond the request's own list; the state it starts from is locked
 * apart, until kg_index_release. A lock on units that were evictable happens in kg_index_open only;
 * all other calls leave free + evictable units as they were or raise them, once what they handed
 * out was given back to the pool.
 *
 * Everything is sized at create; nothing allocates afterwards. Engine thread only. Lengths are
 * tokens unless a name says pages. Design and approximations: core/docs/prefix.md.
 */
#ifndef KEDGE_ENGINE_INDEX_H
#define KEDGE_ENGINE_INDEX_H

#include "engine/chain.h"

#include <kedge/types.h>

struct kg_index;

#define KG_INDEX_KINDS 28u /* kinds of checkpoints the index tells apart */

struct kg_index_conf {
    uint32_t page_tokens;            /* tokens of a page, >= 1 */
    uint32_t max_units[KG_N_KINDS];  /* unit ids are below these; pages >= 1 */
    uint64_t unit_bytes[KG_N_KINDS]; /* bytes a unit takes from the budget, >= 1 */
    uint64_t ghost_bytes;            /* host memory ghosts may take; 0: no ghosts */
    uint64_t seed;                   /* of the hash: differs per process outside tests */
    /* ns to compute the tokens from..to-1 of one request, from < to; NULL: one per token. Must
     * give the same answer for the same arguments while the index lives, or rise and fall slowly:
     * what is ranked already is ranked anew when it is touched or about to be evicted. */
    uint64_t (*cost_ns)(void *ctx, uint32_t from, uint32_t to);
    void *cost_ctx;
    /*
     * For a second home of what leaves; NULL without one. Called by kg_index_evict for each unit
     * before it goes, with the chain key and length up to its end: for every state, and for pages
     * before a state for which it answered 1 (kept). May not call the index.
     */
    int (*leave)(void *ctx, uint32_t kind, uint32_t unit, const struct kg_chain *chain,
                 uint32_t n_tokens);
    void *leave_ctx;
    uint64_t chain_key[2]; /* of chain keys, with `leave` */
};

/* What a prompt would find. Valid until the index changes on its path (kg_index_is_fresh). */
struct kg_index_match {
    uint32_t page_tokens;  /* pages reach so far, at most page * floor((n - 1) / page) */
    uint32_t state_tokens; /* end of the deepest state within it: what can be reused */
    uint32_t seen_tokens;  /* equal tokens reach so far, ghosts included, whole pages of all n */
    uint32_t seen_count;   /* requests seen that reached or passed the end of the run there */
    uint32_t state;        /* state id at state_tokens, KG_NONE for none */
    /* private: */
    uint32_t node, at, deep;
    uint64_t clock;
};

/* A request's place in the index. Zero it before the first use; private but for n_tokens. */
struct kg_index_path {
    uint32_t n_tokens;   /* pages of these tokens are the index's, locked for this request */
    uint32_t tip;        /* node the path ends at */
    uint32_t state_node; /* node whose state is locked, KG_NONE for none */
    uint32_t kind;       /* of the state that was taken over */
    uint32_t open;       /* 1 between open and close */
    uint64_t salt;
};

/* What one call of kg_index_evict took out. The caller owns the units now. */
struct kg_index_victim {
    uint32_t n_pages; /* ids in the caller's array */
    uint32_t state;   /* KG_NONE for none */
    double rank;      /* value that was lost, ns saved per byte on the index's scale; 0 for pages */
};

/* Counts since create, and numbers of now. */
struct kg_index_stats {
    uint64_t evicted[KG_N_KINDS];   /* units handed out by kg_index_evict */
    uint64_t inserted[KG_N_KINDS];  /* units taken in */
    uint64_t replaced;              /* pages handed back because an equal one was brought */
    uint64_t skipped;               /* insertions and donations refused for want of a place */
    uint64_t shared;                /* pages brought that gave way to equal ones in use */
    uint64_t ghosts_dropped;        /* ghost pages forgotten */
    uint64_t ghost_bytes;           /* now */
    uint32_t cached[KG_N_KINDS];    /* units in the index, now */
    uint32_t evictable[KG_N_KINDS]; /* of those, not locked, now */
    uint32_t n_nodes, n_ghost_pages, n_paths;
};

/* Room for conf.max_units units and ghosts. KG_ENOMEM, or KG_EINVAL naming the field. */
KG_CHECKED int kg_index_create(const struct kg_index_conf *conf, struct kg_index **index,
                               struct kg_error *err);
void kg_index_destroy(struct kg_index *ix); /* NULL is allowed; units are not given back */

/* Longest match of tokens[n] under a salt. Changes nothing. */
void kg_index_match(const struct kg_index *ix, uint64_t salt, const uint32_t *tokens, uint32_t n,
                    struct kg_index_match *m);
/* 1 while kg_index_match would answer the same; O(nodes on the path), compares no token. */
int kg_index_is_fresh(const struct kg_index *ix, const struct kg_index_match *m);

/*
 * Begins a path at the match: locks the pages of m->state_tokens tokens and the state there. With
 * use = 0 it begins at the root and locks nothing. `counts`: 1 for a request's first admission, so
 * that sightings count requests. KG_EINVAL for a match that is not fresh or a path that is open.
 */
int kg_index_open(struct kg_index *ix, const struct kg_index_match *m, uint64_t salt, int use,
                  int counts, struct kg_index_path *path);
/*
 * The same, but the path ends after `upto` tokens, a multiple of a page and at most m->page_tokens,
 * and no state is locked: the caller has one from elsewhere. tokens: of the request, from its
 * first.
 */
int kg_index_open_pages(struct kg_index *ix, const struct kg_index_match *m, uint64_t salt,
                        const uint32_t *tokens, uint32_t upto, int counts,
                        struct kg_index_path *path);
/* Takes the locked state out of the index for the path's request to work in, instead of a copy.
 * KG_NONE when others are copying it. The caller owns it; it was not evictable before. */
uint32_t kg_index_take_over(struct kg_index *ix, struct kg_index_path *path);
/* The state was copied: it may be evicted again. Nothing when none is locked. */
void kg_index_release(struct kg_index *ix, struct kg_index_path *path);
/* Ids of the path's pages, root first: pages[path->n_tokens / page_tokens]. */
void kg_index_pages(const struct kg_index *ix, const struct kg_index_path *path, uint32_t *pages);

/*
 * Brings the next n pages of the request, computed and whole: tokens[n * page_tokens] behind
 * path->n_tokens, units pages[n]. Returns how many of them the path covers and locks now, fewer
 * than n for want of memory. Of these pages[i] is what the request uses from now on, the index's,
 * and out[i] a unit that the caller gives back, KG_NONE for none:
 *   - new tokens: the page is taken in, nothing goes back;
 *   - an equal page used by nobody: the one brought takes its place, the old one goes back;
 *   - an equal page that another path uses: it stays, pages[i] becomes its id, and the one brought
 *     goes back. *shared (may be NULL) counts these: the backend has to be told of their ids.
 */
uint32_t kg_index_append(struct kg_index *ix, struct kg_index_path *path, const uint32_t *tokens,
                         uint32_t *pages, uint32_t n, uint32_t *out, uint32_t *shared);

/*
 * Gives a state, valid at exactly `position` of the request with tokens[position] (from its first
 * token on), to the node that ends there. KG_OK: the index owns it. KG_EAGAIN: there is one
 * already, or its pages are not in the index: the caller keeps it. KG_EINVAL: not a multiple of a
 * page, or 0. kind: below KG_INDEX_KINDS, why it was written; how often states of a kind were hit,
 * or would have been had they stayed a little longer, decides what one of that kind is worth.
 */
int kg_index_donate(struct kg_index *ix, const struct kg_index_path *path, const uint32_t *tokens,
                    uint32_t position, uint32_t state, uint32_t kind);
/* Takes back a state that was donated at `position` and that nobody hit since: KG_OK, the caller
 * owns it. KG_EAGAIN when it is gone, another one, in use, or was worth something to somebody. */
int kg_index_withdraw(struct kg_index *ix, const struct kg_index_path *path, uint32_t position,
                      uint32_t state);
/*
 * For a path whose contents are in doubt, before it is closed: takes out, from its end upwards,
 * what only this path uses, pages and states, and then the states above that nobody is copying. One
 * node per call; max_pages: room in pages[], at least the path's. KG_EAGAIN: nothing is left.
 */
int kg_index_distrust(struct kg_index *ix, struct kg_index_path *path, uint32_t *pages,
                      uint32_t max_pages, struct kg_index_victim *victim);
/* Ends a path: its pages may be evicted once no other path covers them. */
void kg_index_close(struct kg_index *ix, struct kg_index_path *path);

/* Units in the index, and those of them that could be evicted now. */
void kg_index_cached(const struct kg_index *ix, uint32_t n[KG_N_KINDS]);
void kg_index_evictable(const struct kg_index *ix, uint32_t n[KG_N_KINDS]);

/*
 * Takes the cheapest evictable units out: pages nobody could reuse (no state at or behind them)
 * first, up to want[KG_PAGE] (at least 1) and max_pages of them, else the state of least value.
 * want[k] = KG_NONE: units of kind k alone do not help; then a state goes only where pages follow
 * it, or no page goes. KG_EAGAIN when nothing is left that could help.
 */
int kg_index_evict(struct kg_index *ix, const uint32_t want[KG_N_KINDS], uint32_t *pages,
                   uint32_t max_pages, struct kg_index_victim *victim);

/* Takes up to n pages nobody could resume behind, of one node, into pages[n]: they are worth
 * nothing. Returns their number, 0: there are none. */
uint32_t kg_index_evict_dead(struct kg_index *ix, uint32_t n, uint32_t *pages);
/* 1 when there are at least n of them, n >= 1. O(their nodes), at most n. */
int kg_index_has_dead(const struct kg_index *ix, uint32_t n);

/* Of the states of each kind that stood at the end of their path: known[kind], those of which it is
 * known what became (at most some thousand, old ones fade), share[kind], how many of them were hit.
 */
void kg_index_shares(const struct kg_index *ix, double share[KG_INDEX_KINDS],
                     uint32_t known[KG_INDEX_KINDS]);
/* Value of a checkpoint at `to` for a request whose nearest state is at `from` < to, on the scale
 * of kg_index_cheapest: expected reuse that of its kind, all pages between counted. */
double kg_index_worth(const struct kg_index *ix, uint32_t from, uint32_t to, uint32_t kind);
/* Value of the state that would be evicted next; INFINITY when none could be. */
double kg_index_cheapest(struct kg_index *ix);
/* Position of the deepest state on a path at or below `position`; 0 for none. */
uint32_t kg_index_state_below(const struct kg_index *ix, const struct kg_index_path *path,
                              uint32_t position);

void kg_index_stats(const struct kg_index *ix, struct kg_index_stats *stats);
/* Full self-check, O(index). KG_OK or KG_EINVAL with text. */
int kg_index_check(const struct kg_index *ix, struct kg_error *err);

#endif
