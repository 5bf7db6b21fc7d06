/* tier-fake: tier-mem that fails now and then, in each way a store can. */
#include "doubles.h"

#include "base/rng.h"
#include "engine/builtin/builtin.h"

#include <kedge/tier.h>
#include <stddef.h>
#include <string.h>

struct fake_conf {
    uint64_t bytes; /* first: it is the conf of tier-mem */
    uint64_t seed;
    uint32_t lose, spoil, cut, fail, refuse, forget; /* one in so many; 0 never */
};

struct kg_tier {
    const struct kg_host *host;
    struct fake_conf conf;
    struct kg_rng rng;
    uint64_t copy_bytes[KG_N_KINDS];
    struct kg_tier *mem;
};

static const struct kg_opt options[] = {
    {"bytes", KG_OPT_U64, 0, offsetof(struct fake_conf, bytes), "1048576", 0, 0, NULL,
     "As of tier-mem. Unit: bytes."},
    {"seed", KG_OPT_U64, 0, offsetof(struct fake_conf, seed), "1", 0, 0, NULL,
     "Of all faults. Unit: none."},
    {"lose", KG_OPT_U32, 0, offsetof(struct fake_conf, lose), "0", 0, 0, NULL,
     "One read in so many finds nothing. Unit: reads."},
    {"spoil", KG_OPT_U32, 0, offsetof(struct fake_conf, spoil), "0", 0, 0, NULL,
     "One read in so many has a wrong bit. Unit: reads."},
    {"cut", KG_OPT_U32, 0, offsetof(struct fake_conf, cut), "0", 0, 0, NULL,
     "One read in so many brings only its first bytes. Unit: reads."},
    {"fail", KG_OPT_U32, 0, offsetof(struct fake_conf, fail), "0", 0, 0, NULL,
     "One read in so many fails. Unit: reads."},
    {"refuse", KG_OPT_U32, 0, offsetof(struct fake_conf, refuse), "0", 0, 0, NULL,
     "One put in so many is refused. Unit: puts."},
    {"forget", KG_OPT_U32, 0, offsetof(struct fake_conf, forget), "0", 0, 0, NULL,
     "One hold in so many finds nothing. Unit: holds."},
    {0},
};

static const struct kg_tier_ops *mem_ops(void)
{
    return kg_builtin_tier_mem.ops;
}

static int open_fake(const struct kg_host *host, const void *conf, const struct kg_tier_geom *geom,
                     struct kg_tier **tier, struct kg_error *err)
{
    struct kg_tier *t = host->alloc(host->ctx, sizeof(*t), 0);

    if (t == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory");
    }
    *t = (struct kg_tier){.host = host, .conf = *(const struct fake_conf *)conf};
    memcpy(t->copy_bytes, geom->copy_bytes, sizeof(t->copy_bytes));
    kg_rng_seed(&t->rng, t->conf.seed);
    int rc = mem_ops()->open(host, &t->conf, geom, &t->mem, err);
    if (rc != KG_OK) {
        host->free(host->ctx, t, sizeof(*t));
        return rc;
    }
    *tier = t;
    return KG_OK;
}

static void close_fake(struct kg_tier *t)
{
    if (t != NULL) {
        mem_ops()->close(t->mem);
        t->host->free(t->host->ctx, t, sizeof(*t));
    }
}

static int now(struct kg_tier *t, uint32_t one_in)
{
    return one_in > 0 && kg_rng_below(&t->rng, one_in) == 0;
}

static int put(struct kg_tier *t, const struct kg_tier_key *key, const void *bytes)
{
    return now(t, t->conf.refuse) ? KG_EAGAIN : mem_ops()->put(t->mem, key, bytes);
}

static int has(const struct kg_tier *t, const struct kg_tier_key *key)
{
    return mem_ops()->has(t->mem, key);
}

static int get(struct kg_tier *t, const struct kg_tier_key *key, void *bytes)
{
    uint64_t n = t->copy_bytes[key->kind], keep;
    unsigned char *p = bytes;

    if (now(t, t->conf.lose)) {
        return KG_ENOENT;
    }
    if (now(t, t->conf.fail)) {
        return KG_EIO;
    }
    int rc = mem_ops()->get(t->mem, key, bytes);
    if (rc == KG_OK && now(t, t->conf.spoil)) {
        p[kg_rng_below(&t->rng, n)] ^= (unsigned char)(1u << kg_rng_below(&t->rng, 8));
    }
    if (rc == KG_OK && now(t, t->conf.cut)) {
        keep = kg_rng_below(&t->rng, n);
        memset(p + keep, 0xee, n - keep);
    }
    return rc;
}

static void drop(struct kg_tier *t, const struct kg_tier_key *key)
{
    mem_ops()->drop(t->mem, key);
}

static int hold(struct kg_tier *t, const struct kg_tier_key *key, uint32_t on)
{
    if (on && now(t, t->conf.forget)) {
        mem_ops()->drop(t->mem, key);
    }
    return mem_ops()->hold(t->mem, key, on);
}

static void bytes(const struct kg_tier *t, uint64_t *used, uint64_t *limit)
{
    mem_ops()->bytes(t->mem, used, limit);
}

static int check(const struct kg_tier *t, struct kg_error *err)
{
    return mem_ops()->check(t->mem, err);
}

static const struct kg_tier_ops ops = {.size = sizeof(ops),
                                       .open = open_fake,
                                       .close = close_fake,
                                       .put = put,
                                       .has = has,
                                       .get = get,
                                       .drop = drop,
                                       .hold = hold,
                                       .bytes = bytes,
                                       .check = check};

const struct kg_plugin double_tier_fake = {.magic = KG_ABI_MAGIC,
                                           .kind = KG_KIND_TIER,
                                           .size = sizeof(struct kg_plugin),
                                           .major = KG_TIER_MAJOR,
                                           .minor = KG_TIER_MINOR,
                                           .name = "fake",
                                           .version = "0",
                                           .summary = "tier-mem with faults",
                                           .opts = options,
                                           .conf_size = sizeof(struct fake_conf),
                                           .ops = &ops};
