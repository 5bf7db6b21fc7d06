/*
 * From one engine's prefix cache to another's: what was computed of a beginning goes where the
 * request goes on. The source's units are pinned while they are read, the other's are taken as any
 * checkpoint is: out of what no promise needs.
 */
#include "engine/internal.h"
#include "engine/transfer.h"

#include <stdlib.h>

/* One side and the path of the beginning in its index. */
struct end {
    struct kg_engine *e;
    struct kg_index_match match;
    struct kg_index_path path;
    uint32_t *pages; /* [pages of the beginning] */
    uint32_t n;      /* of them taken (to), pinned (from) */
    uint32_t state;  /* KG_NONE until it is there */
};

static uint32_t common_multiple(uint32_t a, uint32_t b)
{
    uint32_t x = a, y = b;

    while (y != 0) {
        uint32_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* --- the source: found, locked, pinned --- */

static void let_go(struct end *f)
{
    for (uint32_t i = 0; i < f->n; i++) {
        (void)f->e->parts.pool_ops->unpin(f->e->pool, KG_PAGE, f->pages[i]);
    }
    if (f->state != KG_NONE) {
        (void)f->e->parts.pool_ops->unpin(f->e->pool, KG_STATE, f->state);
    }
    kg_index_close(f->e->index, &f->path);
}

static int pin(struct end *f, uint32_t kind, uint32_t id)
{
    uint32_t evictable[KG_N_KINDS];

    kg_cache_evictable(f->e, evictable);
    return f->e->parts.pool_ops->pin(f->e->pool, kind, id, evictable);
}

/* The deepest state at a whole number of pages of both sides. KG_ENOENT: there is none. */
static int find(struct end *f, uint64_t salt, const uint32_t *tokens, uint32_t n, uint32_t unit)
{
    for (kg_index_match(f->e->index, salt, tokens, n, &f->match); f->match.state_tokens % unit != 0;
         kg_index_match(f->e->index, salt, tokens, n, &f->match)) {
        n = f->match.state_tokens; /* a match ends before its last token: the next one above */
    }
    return f->match.state_tokens > 0 ? KG_OK : KG_ENOENT;
}

static int hold(struct end *f, uint64_t salt)
{
    uint32_t n = f->match.state_tokens / f->e->layout.page_tokens;
    int rc = kg_index_open(f->e->index, &f->match, salt, 1, 0, &f->path);

    if (rc == KG_OK) {
        kg_index_pages(f->e->index, &f->path, f->pages);
    }
    while (rc == KG_OK && f->n < n) {
        rc = pin(f, KG_PAGE, f->pages[f->n]);
        f->n += rc == KG_OK;
    }
    if (rc == KG_OK) {
        rc = pin(f, KG_STATE, f->match.state);
        f->state = rc == KG_OK ? f->match.state : KG_NONE;
    }
    return rc;
}

/* --- the other side: taken, filled, cached --- */

static void give_up(struct end *t, uint32_t first)
{
    kg_adm_give(t->e, KG_PAGE, t->pages + first, t->n - first, 0);
    if (t->state != KG_NONE) {
        kg_adm_give(t->e, KG_STATE, &t->state, 1, 0);
    }
    kg_index_close(t->e->index, &t->path);
}

/* Pages from `first` on and a state, at the cost of what is cached. */
static int take(struct end *t, uint32_t first, uint32_t n)
{
    int rc = KG_OK;

    t->n = first;
    while (rc == KG_OK && t->n < n) {
        rc = kg_adm_single(t->e, KG_PAGE, 1, &t->pages[t->n]);
        t->n += rc == KG_OK;
    }
    if (rc == KG_OK) {
        rc = kg_adm_single(t->e, KG_STATE, 1, &t->state);
    }
    kg_adm_sync(t->e);
    return rc;
}

/* The units become the index's; what it does not want goes back. */
static int cache(struct end *t, const uint32_t *tokens, uint32_t first, uint32_t position,
                 struct kg_error *err)
{
    uint32_t page = t->e->layout.page_tokens, *out = t->e->moved_out;
    int rc = KG_OK;
    uint32_t n = kg_index_append(t->e->index, &t->path, tokens + (size_t)first * page,
                                 t->pages + first, t->n - first, out, NULL);

    kg_cache_own(t->e, KG_PAGE, t->pages + first, n, 1);
    for (uint32_t i = 0; i < n; i++) {
        kg_adm_give(t->e, KG_PAGE, &out[i], out[i] != KG_NONE, 0);
    }
    if (kg_index_donate(t->e->index, &t->path, tokens, position, t->state, 0) == KG_OK) {
        kg_cache_own(t->e, KG_STATE, &t->state, 1, 1);
        t->state = KG_NONE;
    } else {
        rc = kg_fail(err, KG_EAGAIN, "hand-over: the other side's index has no place for it");
    }
    give_up(t, first + n); /* what was not taken in, and the path */
    return rc;
}

static int copy(struct end *f, struct end *t, uint64_t salt, const uint32_t *tokens,
                struct kg_error *err)
{
    const struct kg_side from = {f->e->parts.exec_ops, f->e->parts.exec, &f->e->layout};
    const struct kg_side to = {t->e->parts.exec_ops, t->e->parts.exec, &t->e->layout};
    uint32_t p = f->match.state_tokens, page = t->e->layout.page_tokens, first;
    struct kg_transfer *transfer;

    kg_index_match(t->e->index, salt, tokens, p + 1, &t->match);
    if (t->match.state_tokens >= p) {
        return KG_OK; /* it is there */
    }
    first = t->match.page_tokens < p ? t->match.page_tokens / page : p / page;
    int rc = kg_transfer_open(&from, &to, &transfer, err);
    if (rc != KG_OK) {
        return rc;
    }
    rc = kg_index_open_pages(t->e->index, &t->match, salt, tokens, first * page, 0, &t->path);
    if (rc == KG_OK) {
        rc = take(t, first, p / page);
        if (rc == KG_OK) {
            kg_index_pages(t->e->index, &t->path, t->pages);
            rc = kg_transfer_state(transfer, f->state, t->state, err);
        } else {
            (void)kg_fail(err, rc, "hand-over: no room for %u pages and a state", p / page - first);
        }
        if (rc == KG_OK) {
            rc = kg_transfer_pages(transfer, first * page, p, f->pages, t->pages, err);
        }
        if (rc == KG_OK) {
            rc = cache(t, tokens, first, p, err);
        } else {
            give_up(t, first);
        }
    }
    kg_transfer_close(transfer);
    return rc;
}

int kg_engine_hand_over(struct kg_engine *from, struct kg_engine *to, uint64_t salt,
                        const uint32_t *tokens, uint32_t n, uint32_t *n_copied,
                        struct kg_error *err)
{
    struct end f = {.e = from, .state = KG_NONE}, t = {.e = to, .state = KG_NONE};

    if (from->index == NULL || to->index == NULL) {
        return kg_fail(err, KG_EINVAL, "hand-over: both engines need a prefix cache");
    }
    int rc = find(&f, salt, tokens, n,
                  common_multiple(from->layout.page_tokens, to->layout.page_tokens));
    if (rc != KG_OK) {
        return kg_fail(err, rc, "hand-over: no state is cached at whole pages of both sides");
    }
    f.pages = calloc(f.match.state_tokens / from->layout.page_tokens + 1, sizeof(uint32_t));
    t.pages = calloc(f.match.state_tokens / to->layout.page_tokens + 1, sizeof(uint32_t));
    if (f.pages == NULL || t.pages == NULL) {
        rc = kg_fail(err, KG_ENOMEM, "hand-over: out of memory");
    } else {
        rc = hold(&f, salt);
        if (rc == KG_OK) {
            kg_adm_sync(from);
            rc = copy(&f, &t, salt, tokens, err);
        } else {
            (void)kg_fail(err, rc, "hand-over: the source's units are promised to others");
        }
        let_go(&f);
    }
    if (rc == KG_OK) {
        *n_copied = f.match.state_tokens;
    }
    free(f.pages);
    free(t.pages);
    return rc;
}
