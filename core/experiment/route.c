#include "experiment/route.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* One page of a prompt, known by all that stands before it. */
struct page {
    uint64_t key;         /* of the prompt up to the page's end */
    uint64_t has, states; /* bit k: replica k has the page; a state at its end */
    uint32_t next;        /* of its bucket */
    uint32_t newer, older;
};

struct kg_router {
    struct kg_route_conf c;
    uint32_t load[KG_ROUTE_MAX_REPLICAS]; /* requests under way */
    uint64_t sent[KG_ROUTE_MAX_REPLICAS]; /* turn of the last one, 0 never */
    uint64_t turn;
    uint32_t next; /* round-robin */
    uint32_t expected;
    /* prefix */
    struct page *pages; /* [cap_pages], the first n_pages in use; grows to max_pages */
    uint32_t *buckets;  /* [mask + 1] */
    uint64_t mask;
    uint32_t n_pages, cap_pages, newest, oldest;
    uint64_t *keys; /* [cap_keys] of the prompt under way */
    size_t cap_keys;
};

static const char *const names[] = {"round-robin", "least-load", "prefix"};

int kg_route_parse(const char *word, uint32_t *kind)
{
    for (uint32_t i = 0; i < 3; i++) {
        if (strcmp(word, names[i]) == 0) {
            *kind = i;
            return KG_OK;
        }
    }
    return KG_EINVAL;
}

const char *kg_route_name(uint32_t kind)
{
    return names[kind];
}

/* --- load --- */

/* The least loaded of those that are open; of equals the one that waited longest. */
static uint32_t least(const struct kg_router *r, uint64_t open)
{
    uint32_t best = NONE;

    for (uint32_t k = 0; k < r->c.n_replicas; k++) {
        if ((open >> k & 1) != 0 && (best == NONE || r->load[k] < r->load[best] ||
                                     (r->load[k] == r->load[best] && r->sent[k] < r->sent[best]))) {
            best = k;
        }
    }
    return best;
}

static uint32_t in_turn(struct kg_router *r, uint64_t open)
{
    uint32_t k = r->next;

    while ((open >> k & 1) == 0) {
        k = (k + 1) % r->c.n_replicas;
    }
    r->next = (k + 1) % r->c.n_replicas;
    return k;
}

/* --- pages --- */

static uint32_t *bucket(const struct kg_router *r, uint64_t key)
{
    return &r->buckets[key & r->mask];
}

static struct page *find(const struct kg_router *r, uint64_t key)
{
    for (uint32_t i = *bucket(r, key); i != NONE; i = r->pages[i].next) {
        if (r->pages[i].key == key) {
            return &r->pages[i];
        }
    }
    return NULL;
}

static void unlink_page(struct kg_router *r, const struct page *p)
{
    if (p->newer != NONE) {
        r->pages[p->newer].older = p->older;
    } else {
        r->newest = p->older;
    }
    if (p->older != NONE) {
        r->pages[p->older].newer = p->newer;
    } else {
        r->oldest = p->newer;
    }
}

static void make_newest(struct kg_router *r, struct page *p)
{
    uint32_t i = (uint32_t)(p - r->pages);

    p->newer = NONE;
    p->older = r->newest;
    if (r->newest != NONE) {
        r->pages[r->newest].newer = i;
    } else {
        r->oldest = i;
    }
    r->newest = i;
}

/* A place for a page: a fresh one, else that of the page not seen for longest. */
static struct page *place(struct kg_router *r)
{
    if (r->n_pages < r->c.max_pages) {
        return &r->pages[r->n_pages++];
    }
    struct page *p = &r->pages[r->oldest];
    uint32_t *at = bucket(r, p->key);
    while (&r->pages[*at] != p) {
        at = &r->pages[*at].next;
    }
    *at = p->next;
    unlink_page(r, p);
    return p;
}

static struct page *find_or_add(struct kg_router *r, uint64_t key)
{
    struct page *p = find(r, key);

    if (p != NULL) {
        unlink_page(r, p);
    } else {
        p = place(r);
        uint32_t *at = bucket(r, key);
        *p = (struct page){.key = key, .next = *at};
        *at = (uint32_t)(p - r->pages);
    }
    make_newest(r, p);
    return p;
}

/* --- prefix --- */

/* Places for n more pages, as far as there may be. */
static int make_room(struct kg_router *r, uint32_t n)
{
    uint64_t want = (uint64_t)r->n_pages + n, cap = r->cap_pages > 0 ? r->cap_pages : 1024;

    while (cap < want) {
        cap *= 2;
    }
    cap = cap < r->c.max_pages ? cap : r->c.max_pages;
    if (cap > r->cap_pages) {
        struct page *p = realloc(r->pages, cap * sizeof(*p));
        if (p == NULL) {
            return KG_ENOMEM;
        }
        r->pages = p;
        r->cap_pages = (uint32_t)cap;
    }
    return KG_OK;
}

/* Keys of the prompt's whole pages; their number, or KG_ENOMEM. */
static int64_t make_keys(struct kg_router *r, const struct kg_route_req *q)
{
    size_t page = r->c.page_tokens, n = q->n_prompt / page;
    uint64_t h = kg_hash_mix(q->tenant);

    if (n > r->cap_keys) {
        uint64_t *p = realloc(r->keys, 2 * n * sizeof(*p));
        if (p == NULL) {
            return KG_ENOMEM;
        }
        r->keys = p;
        r->cap_keys = 2 * n;
    }
    for (size_t i = 0; i < n; i++) {
        const uint32_t *t = q->tokens + i * page;
        for (size_t j = 0; j + 1 < page; j += 2) { /* two tokens at once: this is the hot loop */
            h = kg_hash_mix(h ^ (t[j] | (uint64_t)t[j + 1] << 32)) + 1;
        }
        h = page % 2 != 0 ? kg_hash_mix(h ^ t[page - 1]) + 1 : h;
        r->keys[i] = h;
    }
    return (int64_t)n;
}

/* How many pages of the prompt each replica has, and how many up to its last state there. The last
 * token of a prompt is always computed, so a state behind it is none. */
struct match {
    uint32_t pages[KG_ROUTE_MAX_REPLICAS], states[KG_ROUTE_MAX_REPLICAS];
};

static void look_up(const struct kg_router *r, uint32_t n, uint32_t n_usable, struct match *m)
{
    uint64_t alive = UINT64_MAX;

    memset(m, 0, sizeof(*m));
    for (uint32_t i = 0; i < n && alive != 0; i++) {
        const struct page *p = find(r, r->keys[i]);
        alive &= p != NULL ? p->has : 0;
        for (uint64_t left = alive; left != 0; left &= left - 1) {
            uint32_t k = (uint32_t)__builtin_ctzll(left);
            m->pages[k] = i + 1;
            if ((p->states >> k & 1) != 0 && i < n_usable) {
                m->states[k] = i + 1;
            }
        }
    }
}

/* Takes note of what replica k will have: the deepest page first, so that what many prompts share
 * is what was seen last. */
static void note(struct kg_router *r, const struct kg_route_req *q, uint32_t n, uint32_t n_usable,
                 uint32_t parted, uint32_t k)
{
    uint64_t bit = UINT64_C(1) << k;
    uint32_t b = q->n_bounds;

    for (uint32_t i = n; i-- > 0;) {
        struct page *p = find_or_add(r, r->keys[i]);
        int has_state = i + 1 == n_usable || i + 1 == parted;
        while (b > 0 && q->bounds[b - 1] / r->c.page_tokens >= i + 1) {
            has_state |= q->bounds[--b] / r->c.page_tokens == i + 1;
        }
        p->has |= bit;
        p->states |= has_state ? bit : 0;
    }
}

static int by_prefix(struct kg_router *r, const struct kg_route_req *q, uint64_t open,
                     uint32_t *replica)
{
    struct match m;
    uint64_t longest = 0;
    uint32_t most = 0;

    int64_t made = make_keys(r, q);
    if (made < 0) {
        return (int)made;
    }
    if (make_room(r, (uint32_t)made) != KG_OK) {
        return KG_ENOMEM;
    }
    uint32_t n = (uint32_t)made, n_usable = (q->n_prompt - 1) / r->c.page_tokens;
    look_up(r, n, n_usable, &m);
    uint32_t lightest = r->load[least(r, open)];
    for (uint32_t k = 0; k < r->c.n_replicas; k++) {
        int counts = (open >> k & 1) != 0 && r->load[k] - lightest <= r->c.slack;
        if (counts && (longest == 0 || m.states[k] >= most)) {
            longest = longest != 0 && m.states[k] == most ? longest : 0;
            longest |= UINT64_C(1) << k;
            most = m.states[k];
        }
    }
    *replica = least(r, longest);
    r->expected = most * r->c.page_tokens;
    note(r, q, n, n_usable, m.pages[*replica], *replica);
    return KG_OK;
}

/* --- the calls --- */

int kg_router_choose(struct kg_router *r, const struct kg_route_req *req, uint64_t open,
                     uint32_t *replica)
{
    uint32_t k = 0;
    int rc = KG_OK;

    r->expected = 0;
    switch (r->c.kind) {
    case KG_ROUTE_ROUND_ROBIN:
        k = in_turn(r, open);
        break;
    case KG_ROUTE_LEAST_LOAD:
        k = least(r, open);
        break;
    default:
        rc = by_prefix(r, req, open, &k);
        break;
    }
    if (rc == KG_OK) {
        r->load[k]++;
        r->sent[k] = ++r->turn;
        *replica = k;
    }
    return rc;
}

void kg_router_done(struct kg_router *r, uint32_t replica)
{
    r->load[replica] -= r->load[replica] > 0;
}

uint32_t kg_router_expected(const struct kg_router *r)
{
    return r->expected;
}

int kg_router_create(const struct kg_route_conf *conf, struct kg_router **router,
                     struct kg_error *err)
{
    struct kg_router *r = calloc(1, sizeof(*r));

    if (r != NULL && conf->kind == KG_ROUTE_PREFIX) {
        r->mask = 1;
        while (r->mask < conf->max_pages) {
            r->mask *= 2;
        }
        r->buckets = malloc(r->mask * sizeof(*r->buckets));
    }
    if (r == NULL || (conf->kind == KG_ROUTE_PREFIX && r->buckets == NULL)) {
        kg_router_destroy(r);
        return kg_fail(err, KG_ENOMEM, "no memory for a router of %u pages", conf->max_pages);
    }
    r->c = *conf;
    r->newest = r->oldest = NONE;
    if (r->buckets != NULL) {
        memset(r->buckets, 0xff, r->mask * sizeof(*r->buckets));
        r->mask--;
    }
    *router = r;
    return KG_OK;
}

void kg_router_destroy(struct kg_router *r)
{
    if (r != NULL) {
        free(r->pages);
        free(r->buckets);
        free(r->keys);
        free(r);
    }
}
