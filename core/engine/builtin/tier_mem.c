/*
 * A tier in the memory of this process: copies of units under a byte limit, the longest unused
 * one dropped first. All memory is reserved at open and cut into blocks of the smaller kind's size;
 * a unit takes as many as it needs. A hash table with chains finds entries, a ring list keeps the
 * order of use; held entries are not in the list.
 */
#include "base/hash.h"
#include "engine/builtin/builtin.h"

#include <kedge/tier.h>
#include <string.h>

struct conf {
    uint64_t bytes;
};

struct entry {
    struct kg_tier_key key;
    uint32_t next;         /* of its bucket, or free entries */
    uint32_t newer, older; /* order of use; the list's own node is entries[max] */
    uint32_t first;        /* block */
    uint32_t holds;
};

struct kg_tier {
    const struct kg_host *host;
    struct kg_tier_geom geom;
    uint64_t limit, block_bytes; /* block_bytes: what a block counts for */
    uint64_t stride;             /* bytes from block to block */
    uint32_t takes[KG_N_KINDS];  /* blocks of a unit; above max when it never fits */
    uint32_t max;                /* blocks; entries are no more */
    uint32_t used, held;         /* blocks of entries, of held ones */
    uint32_t n, top, free_entry; /* entries: used, ever used, free ones by next */
    uint32_t block_top, free_block;
    uint32_t mask;
    uint32_t *buckets;     /* [mask + 1] */
    struct entry *entries; /* [max + 1] */
    uint32_t *next_block;  /* [max] of a unit, or free ones */
    unsigned char *blocks; /* [max][stride] */
};

enum { M_PUTS, M_HITS, M_MISSES, M_DROPPED, M_REFUSED, M_BYTES };
static const struct kg_metric metrics[] = {
    [M_PUTS] = {"puts_total", KG_COUNTER, "Units stored."},
    [M_HITS] = {"hits_total", KG_COUNTER, "Units read back."},
    [M_MISSES] = {"misses_total", KG_COUNTER, "Reads of units that were gone."},
    [M_DROPPED] = {"dropped_total", KG_COUNTER, "Units dropped to make room."},
    [M_REFUSED] = {"refused_total", KG_COUNTER, "Units there was no room for."},
    [M_BYTES] = {"used_bytes", KG_GAUGE, "Bytes of units kept."},
    {0},
};

static void count(struct kg_tier *t, int metric)
{
    if (t->host->cells != NULL)
        kg_add(&t->host->cells[metric], 1);
}

static uint64_t used_bytes(const struct kg_tier *t)
{
    return t->used * t->block_bytes;
}

static void show_bytes(struct kg_tier *t)
{
    if (t->host->cells != NULL)
        kg_set(&t->host->cells[M_BYTES], used_bytes(t));
}

static uint32_t bucket_of(const struct kg_tier *t, const struct kg_tier_key *key)
{
    uint64_t h = kg_hash_mix(key->chain[0] ^ kg_hash_mix(key->chain[1] + key->length) ^ key->kind);

    return (uint32_t)h & t->mask;
}

static int same(const struct kg_tier_key *a, const struct kg_tier_key *b)
{
    return a->chain[0] == b->chain[0] && a->chain[1] == b->chain[1] && a->length == b->length &&
           a->kind == b->kind;
}

/* The link that names the entry, or the KG_NONE at the end of its bucket. */
static uint32_t *find(const struct kg_tier *t, const struct kg_tier_key *key)
{
    uint32_t *link = &t->buckets[bucket_of(t, key)];

    while (*link != KG_NONE && !same(&t->entries[*link].key, key))
        link = &t->entries[*link].next;
    return link;
}

/* --- order of use --- */

static void unlink_order(struct kg_tier *t, uint32_t i)
{
    struct entry *e = &t->entries[i];

    t->entries[e->newer].older = e->older;
    t->entries[e->older].newer = e->newer;
}

static void make_newest(struct kg_tier *t, uint32_t i)
{
    struct entry *e = &t->entries[i], *list = &t->entries[t->max];

    e->older = list->older;
    e->newer = t->max;
    t->entries[list->older].newer = i;
    list->older = i;
}

static void touch(struct kg_tier *t, uint32_t i)
{
    if (t->entries[i].holds == 0) {
        unlink_order(t, i);
        make_newest(t, i);
    }
}

/* --- blocks --- */

static uint32_t take_block(struct kg_tier *t)
{
    uint32_t b = t->free_block;

    if (b != KG_NONE)
        t->free_block = t->next_block[b];
    else
        b = t->block_top++;
    return b;
}

/* Bytes of a unit between its blocks and memory of the caller. */
static void copy_unit(const struct kg_tier *t, const struct entry *e, unsigned char *in,
                      const unsigned char *out)
{
    uint64_t left = t->geom.copy_bytes[e->key.kind], at = 0;

    for (uint32_t b = e->first; left > 0; b = t->next_block[b]) {
        uint64_t n = left < t->stride ? left : t->stride;
        if (out != NULL)
            memcpy(t->blocks + b * t->stride, out + at, n);
        else
            memcpy(in + at, t->blocks + b * t->stride, n);
        at += n;
        left -= n;
    }
}

static void forget(struct kg_tier *t, uint32_t *link)
{
    uint32_t i = *link;
    struct entry *e = &t->entries[i];
    uint32_t n = t->takes[e->key.kind], last = e->first;

    *link = e->next;
    if (e->holds == 0)
        unlink_order(t, i);
    else
        t->held -= n;
    for (uint32_t k = 1; k < n; k++)
        last = t->next_block[last];
    t->next_block[last] = t->free_block;
    t->free_block = e->first;
    e->next = t->free_entry;
    t->free_entry = i;
    t->used -= n;
    t->n--;
    show_bytes(t);
}

/* --- life --- */

static void mem_close(struct kg_tier *tier)
{
    if (tier == NULL)
        return;
    kg_host_put(tier->host, tier->buckets, tier->mask + 1ull, sizeof(*tier->buckets));
    kg_host_put(tier->host, tier->entries, tier->max + 1ull, sizeof(*tier->entries));
    kg_host_put(tier->host, tier->next_block, tier->max + 1ull, sizeof(*tier->next_block));
    kg_host_put(tier->host, tier->blocks, tier->max + 1ull, tier->stride);
    tier->host->free(tier->host->ctx, tier, sizeof(*tier));
}

static int plan(struct kg_tier *t, struct kg_error *err)
{
    const struct kg_tier_geom *g = &t->geom;
    uint64_t block = UINT64_MAX, most = 0;

    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        if (g->unit_bytes[k] == 0 || g->copy_bytes[k] == 0 || g->copy_bytes[k] > g->unit_bytes[k])
            return kg_fail(err, KG_EINVAL, "tier-mem: a %s of %llu bytes, %llu to copy",
                           kg_kind_name(k), (unsigned long long)g->unit_bytes[k],
                           (unsigned long long)g->copy_bytes[k]);
        block = g->unit_bytes[k] < block ? g->unit_bytes[k] : block;
    }
    if (t->limit / block >= KG_NONE / 2)
        return kg_fail(err, KG_EINVAL, "tier-mem: %llu bytes are too many units of %llu",
                       (unsigned long long)t->limit, (unsigned long long)block);
    t->block_bytes = block;
    t->max = (uint32_t)(t->limit / block);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        uint64_t n = (g->unit_bytes[k] + block - 1) / block;
        uint64_t each = (g->copy_bytes[k] + n - 1) / n;
        t->takes[k] = n <= t->max ? (uint32_t)n : t->max + 1;
        most = each > most ? each : most;
    }
    t->stride = (most + 63) / 64 * 64;
    t->mask = 63;
    while (t->mask < t->max)
        t->mask = t->mask * 2 + 1;
    return KG_OK;
}

static int mem_open(const struct kg_host *host, const void *conf, const struct kg_tier_geom *geom,
                    struct kg_tier **tier, struct kg_error *err)
{
    struct kg_tier *t = host->alloc(host->ctx, sizeof(*t), 0);

    if (t == NULL)
        return kg_fail(err, KG_ENOMEM, "tier-mem: out of memory");
    memset(t, 0, sizeof(*t));
    t->host = host;
    t->geom = *geom;
    t->limit = ((const struct conf *)conf)->bytes;
    t->free_entry = t->free_block = KG_NONE;
    int rc = plan(t, err);
    if (rc != KG_OK) {
        host->free(host->ctx, t, sizeof(*t));
        return rc;
    }
    t->buckets = kg_host_take(t->host, t->mask + 1ull, sizeof(*t->buckets));
    t->entries = kg_host_take(t->host, t->max + 1ull, sizeof(*t->entries));
    t->next_block = kg_host_take(t->host, t->max + 1ull, sizeof(*t->next_block));
    t->blocks = kg_host_take(t->host, t->max + 1ull, t->stride);
    if (t->buckets == NULL || t->entries == NULL || t->next_block == NULL || t->blocks == NULL) {
        mem_close(t);
        return kg_fail(err, KG_ENOMEM, "tier-mem: no memory for %llu bytes",
                       (unsigned long long)((uint64_t)t->max * t->stride));
    }
    memset(t->buckets, 0xff, (t->mask + 1ull) * sizeof(*t->buckets));
    t->entries[t->max].newer = t->entries[t->max].older = t->max;
    *tier = t;
    return KG_OK;
}

/* --- units --- */

static uint32_t new_entry(struct kg_tier *t, const struct kg_tier_key *key)
{
    uint32_t i = t->free_entry, n = t->takes[key->kind];

    if (i != KG_NONE)
        t->free_entry = t->entries[i].next;
    else
        i = t->top++;
    struct entry *e = &t->entries[i];
    *e = (struct entry){.key = *key};
    uint32_t *link = &e->first;
    for (uint32_t k = 0; k < n; k++) {
        *link = take_block(t);
        link = &t->next_block[*link];
    }
    *link = KG_NONE;
    t->used += n;
    t->n++;
    return i;
}

static int mem_put(struct kg_tier *tier, const struct kg_tier_key *key, const void *bytes)
{
    if (key->kind >= KG_N_KINDS)
        return KG_EINVAL;
    uint32_t i = *find(tier, key), n = tier->takes[key->kind];
    if (i == KG_NONE) {
        if (n > tier->max - tier->held) {
            count(tier, M_REFUSED);
            return KG_EAGAIN;
        }
        while (tier->max - tier->used < n) {
            forget(tier, find(tier, &tier->entries[tier->entries[tier->max].newer].key));
            count(tier, M_DROPPED);
        }
        i = new_entry(tier, key);
        uint32_t *bucket = &tier->buckets[bucket_of(tier, key)];
        tier->entries[i].next = *bucket;
        *bucket = i;
        make_newest(tier, i);
    }
    copy_unit(tier, &tier->entries[i], NULL, bytes);
    touch(tier, i);
    count(tier, M_PUTS);
    show_bytes(tier);
    return KG_OK;
}

static int mem_has(const struct kg_tier *tier, const struct kg_tier_key *key)
{
    return *find(tier, key) != KG_NONE;
}

static int mem_get(struct kg_tier *tier, const struct kg_tier_key *key, void *bytes)
{
    uint32_t i = *find(tier, key);

    count(tier, i != KG_NONE ? M_HITS : M_MISSES);
    if (i == KG_NONE)
        return KG_ENOENT;
    copy_unit(tier, &tier->entries[i], bytes, NULL);
    touch(tier, i);
    return KG_OK;
}

static void mem_drop(struct kg_tier *tier, const struct kg_tier_key *key)
{
    uint32_t *link = find(tier, key);

    if (*link != KG_NONE)
        forget(tier, link);
}

static int mem_hold(struct kg_tier *tier, const struct kg_tier_key *key, uint32_t on)
{
    uint32_t i = *find(tier, key);

    if (i == KG_NONE)
        return KG_ENOENT;
    struct entry *e = &tier->entries[i];
    if (on && e->holds++ == 0) {
        unlink_order(tier, i);
        tier->held += tier->takes[key->kind];
    } else if (!on && e->holds > 0 && --e->holds == 0) {
        make_newest(tier, i);
        tier->held -= tier->takes[key->kind];
    }
    return KG_OK;
}

static void mem_bytes(const struct kg_tier *tier, uint64_t *used, uint64_t *limit)
{
    *used = used_bytes(tier);
    *limit = tier->limit;
}

static int mem_check(const struct kg_tier *tier, struct kg_error *err)
{
    uint64_t used = 0, held = 0, free = 0;
    uint32_t n = 0, listed = 0;

    for (uint32_t b = 0; b <= tier->mask; b++) {
        for (uint32_t i = tier->buckets[b]; i != KG_NONE && n <= tier->max; n++) {
            const struct entry *e = &tier->entries[i];
            uint32_t k = 0;
            for (uint32_t c = e->first; c != KG_NONE && k <= tier->max; c = tier->next_block[c])
                k++;
            if (k != tier->takes[e->key.kind] || *find(tier, &e->key) != i)
                return kg_fail(err, KG_EINVAL, "tier-mem: entry %u has %u blocks or is not found",
                               i, k);
            used += k;
            held += e->holds > 0 ? k : 0;
            listed += e->holds == 0;
            i = e->next;
        }
    }
    for (uint32_t c = tier->free_block; c != KG_NONE && free <= tier->max; c = tier->next_block[c])
        free++;
    for (uint32_t i = tier->entries[tier->max].newer; i != tier->max; listed--) {
        uint32_t newer = tier->entries[i].newer;
        if (listed == 0 || tier->entries[newer].older != i)
            return kg_fail(err, KG_EINVAL, "tier-mem: entry %u is not linked both ways", i);
        i = newer;
    }
    if (n != tier->n || used != tier->used || held != tier->held || listed != 0 ||
        used + free != tier->block_top || used_bytes(tier) > tier->limit)
        return kg_fail(err, KG_EINVAL,
                       "tier-mem: %u entries of %u; blocks: %llu used of %u, %llu held of %u, %llu "
                       "free of %u taken",
                       n, tier->n, (unsigned long long)used, tier->used, (unsigned long long)held,
                       tier->held, (unsigned long long)free, tier->block_top);
    return KG_OK;
}

static const struct kg_opt options[] = {
    {.name = "bytes",
     .type = KG_OPT_U64,
     .offset = offsetof(struct conf, bytes),
     .def = "1g",
     .min = 0,
     .max = 1099511627776.0,
     .doc = "Most memory for copies of pages and states; reserved at start, used as it fills. "
            "Unit: bytes."},
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
    .hold = mem_hold,
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
