/* The prefix index: life, matches, and the paths of requests. */
#include "engine/index_impl.h"

#include <stdlib.h>
#include <string.h>

/* Most cells and ghosts an index can number. */
#define MAX_CELLS 0x7ffffff0u

static int check_conf(const struct kg_index_conf *c, struct kg_error *err)
{
    if (c->page_tokens == 0 || c->max_units[KG_PAGE] == 0 || c->unit_bytes[KG_PAGE] == 0 ||
        c->unit_bytes[KG_STATE] == 0) {
        return kg_fail(err, KG_EINVAL,
                       "prefix index: page_tokens %u, max_units %u, unit_bytes %llu and %llu: none "
                       "may be 0",
                       c->page_tokens, c->max_units[KG_PAGE],
                       (unsigned long long)c->unit_bytes[KG_PAGE],
                       (unsigned long long)c->unit_bytes[KG_STATE]);
    }
    if (c->max_units[KG_PAGE] > MAX_CELLS / 4) {
        return kg_fail(err, KG_EINVAL, "prefix index: max_units %u is above %u",
                       c->max_units[KG_PAGE], MAX_CELLS / 4);
    }
    return KG_OK;
}

/* Cells: one for each page that can exist, and what the ghosts may take. */
static uint32_t cells_of(const struct kg_index_conf *c)
{
    uint64_t each = (c->page_tokens + 3ull) * sizeof(uint32_t);
    uint64_t n = c->max_units[KG_PAGE] + c->ghost_bytes / each;

    return n < MAX_CELLS / 2 ? (uint32_t)n : MAX_CELLS / 2;
}

static int alloc_all(struct kg_index *ix)
{
    const struct kg_index_conf *c = &ix->conf;
    uint32_t most = c->max_units[0] > c->max_units[1] ? c->max_units[0] : c->max_units[1];
    uint32_t places = 16;

    ix->max_cells = cells_of(c);
    ix->max_nodes = ix->max_cells + 2;
    while (places < ix->max_nodes) {
        places *= 2;
    }
    ix->mask = places - 1;
    ix->nodes = calloc(ix->max_nodes, sizeof(*ix->nodes));
    ix->tokens = calloc(ix->max_cells, c->page_tokens * sizeof(*ix->tokens));
    ix->unit = calloc(ix->max_cells, sizeof(*ix->unit));
    ix->next = calloc(ix->max_cells, sizeof(*ix->next));
    ix->prev = calloc(ix->max_cells, sizeof(*ix->prev));
    ix->table = malloc(places * sizeof(*ix->table));
    if (c->leave != NULL) {
        ix->chain = calloc(ix->max_cells, sizeof(*ix->chain));
        ix->wanted = calloc(ix->max_cells, sizeof(*ix->wanted));
    }
    ix->mark = calloc(most, 1);
    ix->heap[0].node = calloc(c->max_units[KG_STATE] + 1ull, sizeof(uint32_t));
    ix->heap[1].node = calloc(c->max_units[KG_STATE] + 1ull, sizeof(uint32_t));
    if (ix->nodes == NULL || ix->tokens == NULL || ix->unit == NULL || ix->next == NULL ||
        ix->prev == NULL || ix->table == NULL || ix->mark == NULL || ix->heap[0].node == NULL ||
        ix->heap[1].node == NULL ||
        (c->leave != NULL && (ix->chain == NULL || ix->wanted == NULL))) {
        return KG_ENOMEM;
    }
    memset(ix->table, 0xff, places * sizeof(*ix->table));
    return KG_OK;
}

int kg_index_create(const struct kg_index_conf *conf, struct kg_index **index, struct kg_error *err)
{
    int rc = check_conf(conf, err);

    if (rc != KG_OK) {
        return rc;
    }
    struct kg_index *ix = calloc(1, sizeof(*ix));
    if (ix == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory for a prefix index");
    }
    ix->conf = *conf;
    if (alloc_all(ix) != KG_OK) {
        kg_index_destroy(ix);
        return kg_fail(err, KG_ENOMEM, "no memory for a prefix index of %u pages",
                       conf->max_units[KG_PAGE]);
    }
    ix->free_node = ix->free_cell = KG_NONE;
    ix->list[0] = ix->list[1] = (struct kg_ix_list){KG_NONE, KG_NONE};
    ix->node_top = 1;
    ix->nodes[KG_IX_ROOT] = (struct kg_ix_node){.parent = KG_NONE,
                                                .child = KG_NONE,
                                                .next = KG_NONE,
                                                .prev = KG_NONE,
                                                .first = KG_NONE,
                                                .last = KG_NONE,
                                                .state = KG_NONE,
                                                .heap_at = {KG_NONE, KG_NONE},
                                                .list = KG_IX_NOLIST,
                                                .used = 1};
    *index = ix;
    return KG_OK;
}

void kg_index_destroy(struct kg_index *ix)
{
    if (ix == NULL) {
        return;
    }
    free(ix->nodes);
    free(ix->tokens);
    free(ix->unit);
    free(ix->next);
    free(ix->prev);
    free(ix->table);
    free(ix->mark);
    free(ix->chain);
    free(ix->wanted);
    free(ix->heap[0].node);
    free(ix->heap[1].node);
    free(ix);
}

/* --- matches --- */

void kg_index_match(const struct kg_index *ix, uint64_t salt, const uint32_t *tokens, uint32_t n,
                    struct kg_index_match *m)
{
    uint32_t page = ix->conf.page_tokens, full = n / page, i = 0, live = 0;
    uint32_t cap = n > 0 ? (n - 1) / page : 0;

    *m = (struct kg_index_match){.state = KG_NONE};
    while (i < full) {
        const uint32_t *rest = tokens + (uint64_t)i * page;
        uint32_t v = kg_ix_find(ix, m->at, salt, rest);
        if (v == KG_NONE) {
            break;
        }
        const struct kg_ix_node *x = &ix->nodes[v];
        uint32_t k = kg_ix_common(ix, v, rest, full - i);
        i += k;
        live = x->ghost ? live : i;
        m->deep = v;
        m->seen_count = x->seen;
        if (k < x->n_pages) {
            break;
        }
        m->at = v;
        if (x->state != KG_NONE && x->end <= cap) {
            m->node = v;
            m->state = x->state;
            m->state_tokens = x->end * page;
        }
    }
    m->seen_tokens = i * page;
    m->page_tokens = (live < cap ? live : cap) * page;
    m->clock = ix->clock;
}

int kg_index_is_fresh(const struct kg_index *ix, const struct kg_index_match *m)
{
    uint32_t v = m->deep;

    if (v >= ix->node_top || !ix->nodes[v].used || ix->nodes[m->at].kids > m->clock) {
        return 0;
    }
    /* Whatever changes a path leaves a younger node on it. */
    while (v != KG_IX_ROOT && ix->nodes[v].stamp <= m->clock) {
        v = ix->nodes[v].parent;
    }
    return v == KG_IX_ROOT;
}

/* --- locks --- */

/* One more path through v and all above. */
static void lock(struct kg_index *ix, uint32_t v)
{
    for (; v != KG_IX_ROOT; v = ix->nodes[v].parent) {
        if (ix->nodes[v].locks++ == 0) {
            ix->evictable[KG_PAGE] -= ix->nodes[v].n_pages;
            kg_ix_place(ix, v);
        }
    }
}

static void unlock(struct kg_index *ix, uint32_t v)
{
    while (v != KG_IX_ROOT) {
        uint32_t parent = ix->nodes[v].parent;
        if (--ix->nodes[v].locks == 0) {
            ix->evictable[KG_PAGE] += ix->nodes[v].n_pages;
            kg_ix_place(ix, v);
        }
        v = parent;
    }
}

/* A request passed all nodes from v up: sightings, and ghosts are young again. */
static void sight(struct kg_index *ix, uint32_t v)
{
    for (; v != KG_IX_ROOT; v = ix->nodes[v].parent) {
        ix->nodes[v].seen++;
        if (ix->nodes[v].list == KG_IX_GHOST) {
            kg_ix_list_drop(ix, v);
            kg_ix_list_add(ix, KG_IX_GHOST, v);
        }
    }
}

/* Below the deepest checkpoint that is left, all that were evicted unused at the end of their path,
 * one after the other from the end: each alone would have been hit. Of those passed, which stood
 * before one that was still there, only the deepest. */
static void tell_missed(struct kg_index *ix, uint32_t v)
{
    for (int deepest = 1; v != KG_IX_ROOT && ix->nodes[v].state == KG_NONE;
         v = ix->nodes[v].parent) {
        if (ix->nodes[v].missed == 1 + KG_IX_END || (ix->nodes[v].missed && deepest)) {
            deepest = 0;
            kg_ix_tell_missed(ix, v);
        }
    }
}

int kg_index_open(struct kg_index *ix, const struct kg_index_match *m, uint64_t salt, int use,
                  int counts, struct kg_index_path *path)
{
    if (path->open || !kg_index_is_fresh(ix, m)) {
        return KG_EINVAL;
    }
    *path =
        (struct kg_index_path){.open = 1, .salt = salt, .tip = KG_IX_ROOT, .state_node = KG_NONE};
    ix->stats.n_paths++;
    if (counts) {
        tell_missed(ix, m->at);
        sight(ix, m->at);
    }
    if (use && m->state != KG_NONE) {
        struct kg_ix_node *n = &ix->nodes[m->node];
        path->tip = path->state_node = m->node;
        path->n_tokens = m->state_tokens;
        if (counts) {
            kg_ix_tell_fate(ix, m->node, 1);
            n->hits++;
        }
        n->base = ix->floor;
        if (n->state_locks++ == 0) {
            ix->evictable[KG_STATE]--;
        }
        lock(ix, m->node);
        kg_ix_place(ix, m->node);
    }
    ix->nodes[path->tip].tips++;
    return KG_OK;
}

int kg_index_open_pages(struct kg_index *ix, const struct kg_index_match *m, uint64_t salt,
                        const uint32_t *tokens, uint32_t upto, int counts,
                        struct kg_index_path *path)
{
    uint32_t page = ix->conf.page_tokens, want = upto / page, v = KG_IX_ROOT;

    if (upto % page != 0 || upto > m->page_tokens) {
        return KG_EINVAL;
    }
    int rc = kg_index_open(ix, m, salt, 0, counts, path);
    if (rc != KG_OK) {
        return rc;
    }
    while (ix->nodes[v].end < want) {
        v = kg_ix_find(ix, v, salt, tokens + (uint64_t)ix->nodes[v].end * page);
    }
    if (ix->nodes[v].end > want) {
        v = kg_ix_split(ix, v, want - (ix->nodes[v].end - ix->nodes[v].n_pages));
    }
    ix->nodes[KG_IX_ROOT].tips--;
    ix->nodes[v].tips++;
    path->tip = v;
    path->n_tokens = upto;
    lock(ix, v);
    return KG_OK;
}

void kg_index_release(struct kg_index *ix, struct kg_index_path *path)
{
    uint32_t v = path->state_node;

    if (!path->open || v == KG_NONE) {
        return;
    }
    path->state_node = KG_NONE;
    if (--ix->nodes[v].state_locks == 0) {
        ix->evictable[KG_STATE]++;
        kg_ix_place(ix, v);
    }
}

uint32_t kg_index_take_over(struct kg_index *ix, struct kg_index_path *path)
{
    uint32_t v = path->state_node;

    if (!path->open || v == KG_NONE || ix->nodes[v].state_locks != 1) {
        return KG_NONE;
    }
    uint32_t state = ix->nodes[v].state;
    path->kind = ix->nodes[v].kind;
    kg_index_release(ix, path);
    kg_ix_set_state(ix, v, KG_NONE);
    return state;
}

void kg_index_close(struct kg_index *ix, struct kg_index_path *path)
{
    if (!path->open) {
        return;
    }
    kg_index_release(ix, path);
    ix->nodes[path->tip].tips--;
    unlock(ix, path->tip);
    for (uint32_t v = path->tip; v != KG_IX_ROOT;) {
        uint32_t parent = ix->nodes[v].parent;
        (void)kg_ix_merge(ix, v);
        v = parent;
    }
    ix->stats.n_paths--;
    *path = (struct kg_index_path){.state_node = KG_NONE};
}

void kg_index_pages(const struct kg_index *ix, const struct kg_index_path *path, uint32_t *pages)
{
    uint32_t i = ix->nodes[path->tip].end;

    for (uint32_t v = path->tip; v != KG_IX_ROOT; v = ix->nodes[v].parent) {
        for (uint32_t c = ix->nodes[v].last; c != KG_NONE; c = ix->prev[c]) {
            pages[--i] = ix->unit[c];
        }
    }
}

/* --- insertion --- */

/* The path's end moves down to v, a child of its tip. */
static void advance(struct kg_index *ix, struct kg_index_path *path, uint32_t v)
{
    uint32_t old = path->tip;

    ix->nodes[v].locks++;
    ix->nodes[v].tips++;
    ix->nodes[old].tips--;
    path->tip = v;
    path->n_tokens = ix->nodes[v].end * ix->conf.page_tokens;
    kg_ix_place(ix, v);
    (void)kg_ix_merge(ix, old);
}

/* Units for the cells from c on: pages and out as in kg_index_append. used: another path reads what
 * is there. */
static void adopt(struct kg_index *ix, uint32_t c, uint32_t *pages, uint32_t n, int used,
                  uint32_t *out)
{
    ix->stats.shared += used ? n : 0;
    for (uint32_t i = 0; i < n; i++, c = ix->next[c]) {
        if (used) {
            out[i] = pages[i];
            pages[i] = ix->unit[c];
            continue;
        }
        out[i] = ix->unit[c];
        ix->unit[c] = pages[i];
        ix->stats.inserted[KG_PAGE]++;
        if (out[i] != KG_NONE) {
            ix->stats.replaced++;
        } else {
            ix->cached[KG_PAGE]++;
        }
    }
}

/* Follows tokens that are in the index already: k pages of the child v. Returns the pages of
 * another path it uses now. */
static uint32_t follow(struct kg_index *ix, struct kg_index_path *path, uint32_t v, uint32_t k,
                       uint32_t *pages, uint32_t *out)
{
    uint32_t used = ix->nodes[v].locks > 0;

    if (k < ix->nodes[v].n_pages) {
        v = kg_ix_split(ix, v, k);
    }
    if (!used && !ix->nodes[v].ghost) {
        ix->evictable[KG_PAGE] -= k;
    }
    adopt(ix, ix->nodes[v].first, pages, k, (int)used, out);
    if (ix->nodes[v].ghost) {
        kg_ix_set_ghost(ix, v, 0);
    }
    advance(ix, path, v);
    return used ? k : 0;
}

/* New tokens: behind the tip where nothing else hangs on its end, else as a child of it. */
static void grow(struct kg_index *ix, struct kg_index_path *path, const uint32_t *tokens,
                 uint32_t *pages, uint32_t n, uint32_t *out)
{
    struct kg_ix_node *tip = &ix->nodes[path->tip];
    uint32_t v, c;

    if (path->tip != KG_IX_ROOT && tip->locks == 1 && tip->tips == 1 && tip->n_children == 0 &&
        tip->state == KG_NONE && !tip->missed) {
        c = tip->last;
        kg_ix_extend(ix, path->tip, tokens, n);
        path->n_tokens = tip->end * ix->conf.page_tokens;
        adopt(ix, ix->next[c], pages, n, 0, out);
        return;
    }
    v = kg_ix_add(ix, path->tip, path->salt, tokens, n);
    ix->nodes[v].seen = 1;
    adopt(ix, ix->nodes[v].first, pages, n, 0, out);
    advance(ix, path, v);
}

uint32_t kg_index_append(struct kg_index *ix, struct kg_index_path *path, const uint32_t *tokens,
                         uint32_t *pages, uint32_t n, uint32_t *out, uint32_t *shared)
{
    uint32_t page = ix->conf.page_tokens, i = 0, n_shared = 0;

    while (path->open && i < n) {
        const uint32_t *rest = tokens + (uint64_t)i * page;
        if (kg_ix_trim(ix, n - i) != KG_OK) {
            ix->stats.skipped++;
            break;
        }
        uint32_t v = kg_ix_find(ix, path->tip, path->salt, rest);
        if (v == KG_NONE) {
            grow(ix, path, rest, pages + i, n - i, out + i);
            i = n;
            break;
        }
        uint32_t k = kg_ix_common(ix, v, rest, n - i);
        n_shared += follow(ix, path, v, k, pages + i, out + i);
        i += k;
    }
    if (shared != NULL) {
        *shared = n_shared;
    }
    return i;
}

/* --- states --- */

/* Node that holds page number p - 1 of the path, p <= the path's pages. */
static uint32_t node_on_path(const struct kg_index *ix, const struct kg_index_path *path,
                             uint32_t p)
{
    uint32_t v = path->tip;

    while (ix->nodes[v].end - ix->nodes[v].n_pages >= p) {
        v = ix->nodes[v].parent;
    }
    return v;
}

/* Live node that holds page p - 1 of tokens, below the path's end; KG_NONE without one. */
static uint32_t node_below(const struct kg_index *ix, const struct kg_index_path *path,
                           const uint32_t *tokens, uint32_t p)
{
    uint32_t v = path->tip, i = ix->nodes[v].end;

    while (i < p) {
        const uint32_t *rest = tokens + (uint64_t)i * ix->conf.page_tokens;
        v = kg_ix_find(ix, v, path->salt, rest);
        if (v == KG_NONE || ix->nodes[v].ghost) {
            return KG_NONE;
        }
        uint32_t k = kg_ix_common(ix, v, rest, p - i);
        i += k;
        if (i < p && k < ix->nodes[v].n_pages) {
            return KG_NONE;
        }
    }
    return v;
}

int kg_index_donate(struct kg_index *ix, const struct kg_index_path *path, const uint32_t *tokens,
                    uint32_t position, uint32_t state, uint32_t kind)
{
    uint32_t p = position / ix->conf.page_tokens;

    if (kind >= KG_INDEX_KINDS || p == 0 || position % ix->conf.page_tokens != 0 ||
        state >= ix->conf.max_units[KG_STATE]) {
        return KG_EINVAL;
    }
    uint32_t v = KG_NONE;
    if (path->open) {
        v = position <= path->n_tokens ? node_on_path(ix, path, p)
                                       : node_below(ix, path, tokens, p);
    }
    if (v == KG_NONE || (ix->nodes[v].end == p && ix->nodes[v].state != KG_NONE)) {
        ix->stats.skipped++;
        return KG_EAGAIN;
    }
    if (ix->nodes[v].end > p) {
        v = kg_ix_split(ix, v, p - (ix->nodes[v].end - ix->nodes[v].n_pages));
    }
    ix->nodes[v].kind = (uint8_t)kind;
    kg_ix_set_state(ix, v, state);
    ix->stats.inserted[KG_STATE]++;
    return KG_OK;
}

int kg_index_withdraw(struct kg_index *ix, const struct kg_index_path *path, uint32_t position,
                      uint32_t state)
{
    if (!path->open || position == 0 || position > path->n_tokens) {
        return KG_EAGAIN;
    }
    uint32_t v = node_on_path(ix, path, position / ix->conf.page_tokens);
    struct kg_ix_node *n = &ix->nodes[v];
    if (n->end * ix->conf.page_tokens != position || n->state != state || n->state_locks > 0 ||
        n->hits > 0 || n->n_children > 1) {
        return KG_EAGAIN;
    }
    kg_ix_set_state(ix, v, KG_NONE);
    (void)kg_ix_merge(ix, v);
    return KG_OK;
}

/* A node that only this path uses: its units leave, the path ends above it. */
static void drop_tip(struct kg_index *ix, struct kg_index_path *path, uint32_t *pages,
                     struct kg_index_victim *victim)
{
    uint32_t v = path->tip, parent = ix->nodes[v].parent;

    victim->state = ix->nodes[v].state;
    if (victim->state != KG_NONE) {
        kg_ix_set_state(ix, v, KG_NONE);
    }
    for (uint32_t c = ix->nodes[v].first; c != KG_NONE; c = ix->next[c]) {
        pages[victim->n_pages++] = ix->unit[c];
        ix->unit[c] = KG_NONE;
    }
    ix->cached[KG_PAGE] -= victim->n_pages;
    ix->nodes[v].locks--;
    ix->nodes[v].tips--;
    ix->nodes[parent].tips++;
    path->tip = parent;
    path->n_tokens = ix->nodes[parent].end * ix->conf.page_tokens;
    kg_ix_set_ghost(ix, v, 1);
    (void)kg_ix_trim(ix, 0);
}

int kg_index_distrust(struct kg_index *ix, struct kg_index_path *path, uint32_t *pages,
                      uint32_t max_pages, struct kg_index_victim *victim)
{
    *victim = (struct kg_index_victim){.state = KG_NONE};
    if (!path->open) {
        return KG_EAGAIN;
    }
    kg_index_release(ix, path);
    const struct kg_ix_node *tip = &ix->nodes[path->tip];
    if (path->tip != KG_IX_ROOT && tip->locks == 1 && tip->tips == 1 && tip->n_live == 0 &&
        tip->n_pages <= max_pages) {
        drop_tip(ix, path, pages, victim);
        return KG_OK;
    }
    for (uint32_t v = path->tip; v != KG_IX_ROOT; v = ix->nodes[v].parent) {
        if (ix->nodes[v].state != KG_NONE && ix->nodes[v].state_locks == 0) {
            victim->state = ix->nodes[v].state;
            kg_ix_set_state(ix, v, KG_NONE);
            (void)kg_ix_merge(ix, v);
            return KG_OK;
        }
    }
    return KG_EAGAIN;
}

uint32_t kg_index_state_below(const struct kg_index *ix, const struct kg_index_path *path,
                              uint32_t position)
{
    uint32_t page = ix->conf.page_tokens;

    for (uint32_t v = path->tip; path->open && v != KG_IX_ROOT; v = ix->nodes[v].parent) {
        if (ix->nodes[v].state != KG_NONE && ix->nodes[v].end * page <= position) {
            return ix->nodes[v].end * page;
        }
    }
    return 0;
}

/* --- numbers --- */

void kg_index_cached(const struct kg_index *ix, uint32_t n[KG_N_KINDS])
{
    memcpy(n, ix->cached, sizeof(ix->cached));
}

void kg_index_evictable(const struct kg_index *ix, uint32_t n[KG_N_KINDS])
{
    memcpy(n, ix->evictable, sizeof(ix->evictable));
}

void kg_index_stats(const struct kg_index *ix, struct kg_index_stats *stats)
{
    *stats = ix->stats;
    memcpy(stats->cached, ix->cached, sizeof(ix->cached));
    memcpy(stats->evictable, ix->evictable, sizeof(ix->evictable));
    stats->ghost_bytes = ix->ghost_bytes;
    stats->n_nodes = ix->n_nodes;
    stats->n_ghost_pages = ix->n_cells - ix->cached[KG_PAGE];
}
