/*
 * A tier in the memory of this process: copies of units under a byte limit, the longest unused
 * one dropped first. A hash table with chains finds them, a ring list keeps the order of use.
 */
#include "base/hash.h"
#include "engine/builtin/builtin.h"

#include <kedge/tier.h>
#include <string.h>

struct conf {
    uint64_t bytes;
};

struct entry {
    struct entry *next;          /* of its bucket */
    struct entry *newer, *older; /* order of use; the list's own node is kg_tier.order */
    struct kg_tier_key key;
    unsigned char *bytes; /* unit_bytes[key.kind] */
};

struct kg_tier {
    const struct kg_host *host;
    uint64_t unit_bytes[KG_N_KINDS];
    uint64_t used, limit;
    struct entry **buckets; /* [n_buckets], a power of two */
    size_t n_buckets, n;
    struct entry order; /* older end: order.newer; newest: order.older */
};

enum { M_PUTS, M_HITS, M_MISSES, M_DROPPED, M_BYTES };
static const struct kg_metric metrics[] = {
    [M_PUTS] = {"puts_total", KG_COUNTER, "Units stored."},
    [M_HITS] = {"hits_total", KG_COUNTER, "Units read back."},
    [M_MISSES] = {"misses_total", KG_COUNTER, "Reads of units that were gone."},
    [M_DROPPED] = {"dropped_total", KG_COUNTER, "Units dropped to make room."},
    [M_BYTES] = {"used_bytes", KG_GAUGE, "Bytes of units kept."},
    {0},
};

static void count(struct kg_tier *t, int metric)
{
    if (t->host->cells != NULL)
        kg_add(&t->host->cells[metric], 1);
}

static uint64_t hash_of(const struct kg_tier_key *key)
{
    return kg_hash_mix(key->chain[0] ^ kg_hash_mix(key->chain[1] + key->length) ^ key->kind);
}

static int same(const struct kg_tier_key *a, const struct kg_tier_key *b)
{
    return a->chain[0] == b->chain[0] && a->chain[1] == b->chain[1] && a->length == b->length &&
           a->kind == b->kind;
}

/* The link that points to the entry, or to the NULL at the end of its bucket. */
static struct entry **find(const struct kg_tier *t, const struct kg_tier_key *key)
{
    struct entry **link = &t->buckets[hash_of(key) & (t->n_buckets - 1)];

    while (*link != NULL && !same(&(*link)->key, key))
        link = &(*link)->next;
    return link;
}

static void unlink_order(struct entry *e)
{
    e->newer->older = e->older;
    e->older->newer = e->newer;
}

static void make_newest(struct kg_tier *t, struct entry *e)
{
    e->older = t->order.older;
    e->newer = &t->order;
    t->order.older->newer = e;
    t->order.older = e;
}

static void forget(struct kg_tier *t, struct entry **link)
{
    const struct kg_host *host = t->host;
    struct entry *e = *link;

    *link = e->next;
    unlink_order(e);
    t->used -= t->unit_bytes[e->key.kind];
    t->n--;
    host->free(host->ctx, e->bytes, t->unit_bytes[e->key.kind]);
    host->free(host->ctx, e, sizeof(*e));
    if (host->cells != NULL)
        kg_set(&host->cells[M_BYTES], t->used);
}

static void mem_close(struct kg_tier *tier)
{
    if (tier == NULL)
        return;
    const struct kg_host *host = tier->host;
    while (tier->n > 0)
        forget(tier, find(tier, &tier->order.newer->key));
    host->free(host->ctx, tier->buckets, tier->n_buckets * sizeof(*tier->buckets));
    host->free(host->ctx, tier, sizeof(*tier));
}

static int mem_open(const struct kg_host *host, const void *conf,
                    const uint64_t unit_bytes[KG_N_KINDS], struct kg_tier **tier,
                    struct kg_error *err)
{
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        if (unit_bytes[k] == 0)
            return kg_fail(err, KG_EINVAL, "tier-mem: a %s of 0 bytes", kg_kind_name(k));
    }
    struct kg_tier *t = host->alloc(host->ctx, sizeof(*t), 0);
    if (t == NULL)
        return kg_fail(err, KG_ENOMEM, "tier-mem: out of memory");
    memset(t, 0, sizeof(*t));
    t->host = host;
    t->limit = ((const struct conf *)conf)->bytes;
    t->order.newer = &t->order;
    t->order.older = &t->order;
    memcpy(t->unit_bytes, unit_bytes, sizeof(t->unit_bytes));
    t->n_buckets = 64;
    t->buckets = host->alloc(host->ctx, t->n_buckets * sizeof(*t->buckets), 0);
    if (t->buckets == NULL) {
        host->free(host->ctx, t, sizeof(*t));
        return kg_fail(err, KG_ENOMEM, "tier-mem: out of memory");
    }
    memset(t->buckets, 0, t->n_buckets * sizeof(*t->buckets));
    *tier = t;
    return KG_OK;
}

/* Twice the buckets once there are as many entries; without memory the chains grow instead. */
static void maybe_grow(struct kg_tier *t)
{
    const struct kg_host *host = t->host;
    size_t n = t->n_buckets * 2;

    if (t->n < t->n_buckets)
        return;
    struct entry **buckets = host->alloc(host->ctx, n * sizeof(*buckets), 0);
    if (buckets == NULL)
        return;
    memset(buckets, 0, n * sizeof(*buckets));
    for (struct entry *e = t->order.newer; e != &t->order; e = e->newer) {
        struct entry **link = &buckets[hash_of(&e->key) & (n - 1)];
        e->next = *link;
        *link = e;
    }
    host->free(host->ctx, t->buckets, t->n_buckets * sizeof(*t->buckets));
    t->buckets = buckets;
    t->n_buckets = n;
}

static struct entry *new_entry(struct kg_tier *t, const struct kg_tier_key *key)
{
    const struct kg_host *host = t->host;
    struct entry *e = host->alloc(host->ctx, sizeof(*e), 0);

    if (e == NULL)
        return NULL;
    e->bytes = host->alloc(host->ctx, t->unit_bytes[key->kind], 64);
    if (e->bytes == NULL) {
        host->free(host->ctx, e, sizeof(*e));
        return NULL;
    }
    e->key = *key;
    return e;
}

static int mem_put(struct kg_tier *tier, const struct kg_tier_key *key, const void *bytes)
{
    if (key->kind >= KG_N_KINDS)
        return KG_EINVAL;
    uint64_t unit = tier->unit_bytes[key->kind];
    struct entry *e = *find(tier, key);
    if (e != NULL) {
        unlink_order(e);
    } else {
        if (unit > tier->limit)
            return KG_EAGAIN;
        while (tier->used > tier->limit - unit) {
            forget(tier, find(tier, &tier->order.newer->key));
            count(tier, M_DROPPED);
        }
        e = new_entry(tier, key);
        if (e == NULL)
            return KG_EAGAIN; /* the machine is full: as good as no room */
        maybe_grow(tier);
        struct entry **link = find(tier, key);
        e->next = NULL;
        *link = e;
        tier->n++;
        tier->used += unit;
    }
    memcpy(e->bytes, bytes, unit);
    make_newest(tier, e);
    count(tier, M_PUTS);
    if (tier->host->cells != NULL)
        kg_set(&tier->host->cells[M_BYTES], tier->used);
    return KG_OK;
}

static int mem_has(const struct kg_tier *tier, const struct kg_tier_key *key)
{
    return *find(tier, key) != NULL;
}

static int mem_get(struct kg_tier *tier, const struct kg_tier_key *key, void *bytes)
{
    struct entry *e = *find(tier, key);

    count(tier, e != NULL ? M_HITS : M_MISSES);
    if (e == NULL)
        return KG_ENOENT;
    memcpy(bytes, e->bytes, tier->unit_bytes[key->kind]);
    unlink_order(e);
    make_newest(tier, e);
    return KG_OK;
}

static void mem_drop(struct kg_tier *tier, const struct kg_tier_key *key)
{
    struct entry **link = find(tier, key);

    if (*link != NULL)
        forget(tier, link);
}

static void mem_bytes(const struct kg_tier *tier, uint64_t *used, uint64_t *limit)
{
    *used = tier->used;
    *limit = tier->limit;
}

static int mem_check(const struct kg_tier *tier, struct kg_error *err)
{
    uint64_t used = 0;
    size_t n = 0, chained = 0;

    for (const struct entry *e = tier->order.newer; e != &tier->order; e = e->newer) {
        if (e->newer->older != e || *find(tier, &e->key) != e)
            return kg_fail(err, KG_EINVAL, "tier-mem: entry %zu is not linked both ways", n);
        used += tier->unit_bytes[e->key.kind];
        n++;
    }
    for (size_t i = 0; i < tier->n_buckets; i++) {
        for (const struct entry *e = tier->buckets[i]; e != NULL; e = e->next)
            chained++;
    }
    if (n != tier->n || chained != n || used != tier->used || used > tier->limit)
        return kg_fail(err, KG_EINVAL,
                       "tier-mem: %zu listed, %zu chained, %zu counted; %llu bytes, %llu counted, "
                       "limit %llu",
                       n, chained, tier->n, (unsigned long long)used,
                       (unsigned long long)tier->used, (unsigned long long)tier->limit);
    return KG_OK;
}

static const struct kg_opt options[] = {
    {.name = "bytes",
     .type = KG_OPT_U64,
     .offset = offsetof(struct conf, bytes),
     .def = "1g",
     .min = 0,
     .max = 1099511627776.0,
     .doc = "Most memory for copies of pages and states. Unit: bytes."},
    {0},
};

static const struct kg_tier_ops ops = {
    .size = sizeof(ops),
    .open = mem_open,
    .close = mem_close,
    .put = mem_put,
    .has = mem_has,
    .get = mem_get,
    .drop = mem_drop,
    .bytes = mem_bytes,
    .check = mem_check,
};

const struct kg_plugin kg_builtin_tier_mem = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_TIER,
    .size = sizeof(struct kg_plugin),
    .major = KG_TIER_MAJOR,
    .minor = KG_TIER_MINOR,
    .name = "mem",
    .version = KG_VERSION,
    .summary = "Copies of units in the memory of this process, least recently used dropped first",
    .opts = options,
    .conf_size = sizeof(struct conf),
    .metrics = metrics,
    .ops = &ops,
};
