#include "opt.h"
#include "plugin.h"

#include <kedge/comm.h>
#include <kedge/exec.h>
#include <kedge/pool.h>
#include <kedge/sched.h>
#include <kedge/spec.h>
#include <kedge/tier.h>
#include <stdbool.h>
#include <string.h>

/* An op of a kind: mandatory when cap is 0, else there iff the bit is set. */
struct op_row {
    const char *name;
    size_t offset;
    uint64_t cap;
};

struct cap_row {
    uint64_t bit;
    const char *name;
};

/* What the core knows of a kind. */
struct kind_row {
    const char *name;
    uint32_t major, minor;
    const struct op_row *ops;
    const struct cap_row *caps;
};

#define OP(kind, fn)                                 \
    {                                                \
#fn, offsetof(struct kg_##kind##_ops, fn), 0 \
    }
#define OP_IF(kind, fn, bit)                           \
    {                                                  \
#fn, offsetof(struct kg_##kind##_ops, fn), bit \
    }

static const struct op_row pool_ops[] = {
    OP(pool, open),
    OP(pool, close),
    OP(pool, table),
    OP(pool, grant_open),
    OP(pool, grant_extend),
    OP(pool, grant_close),
    OP(pool, shortfall),
    OP(pool, take),
    OP(pool, give),
    OP(pool, own),
    OP(pool, pin),
    OP(pool, unpin),
    OP(pool, moves),
    OP(pool, bytes),
    OP(pool, n_used),
    OP(pool, check),
    OP_IF(pool, compact, KG_POOL_CAP_MOVES),
    {0},
};
static const struct op_row sched_ops[] = {
    OP(sched, open),   OP(sched, close), OP(sched, add),   OP(sched, remove),
    OP(sched, served), OP(sched, plan),  OP(sched, check), {0},
};
static const struct op_row spec_ops[] = {
    OP(spec, open),
    OP(spec, close),
    OP(spec, block),
    OP(spec, cap),
    OP(spec, choose),
    OP(spec, observe),
    OP(spec, check),
    OP_IF(spec, draft, KG_SPEC_CAP_HOST),
    {0},
};
static const struct op_row comm_ops[] = {
    OP(comm, open),
    OP(comm, close),
    OP(comm, alloc_symm),
    OP(comm, seal),
    OP(comm, all_reduce),
    OP(comm, reduce_scatter),
    OP(comm, all_gather),
    OP(comm, all_to_all),
    OP(comm, broadcast),
    OP(comm, barrier),
    OP(comm, poll),
    OP(comm, abort),
    OP(comm, progress_dump),
    OP_IF(comm, watch, KG_COMM_CAP_GRAPHS),
    {0},
};
static const struct op_row exec_ops[] = {
    OP(exec, open),
    OP(exec, close),
    OP(exec, describe),
    OP(exec, bind),
    OP(exec, apply),
    OP(exec, submit),
    OP(exec, wait),
    OP(exec, drop),
    OP(exec, copy),
    OP(exec, zero),
    OP(exec, poison),
    OP(exec, read),
    OP(exec, write),
    OP(exec, profile),
    OP(exec, now),
    OP_IF(exec, draft, KG_EXEC_CAP_DRAFT),
    OP_IF(exec, advance, KG_EXEC_CAP_VIRTUAL),
    OP_IF(exec, views, KG_EXEC_CAP_VIEWS),
    {0},
};
static const struct op_row tier_ops[] = {
    OP(tier, open), OP(tier, close), OP(tier, put),   OP(tier, has),   OP(tier, get),
    OP(tier, drop), OP(tier, hold),  OP(tier, bytes), OP(tier, check), {0},
};

static const struct cap_row pool_caps[] = {
    {KG_POOL_CAP_MOVES, "moves"}, {KG_POOL_CAP_SHARED, "shared"}, {0}};
static const struct cap_row sched_caps[] = {
    {KG_SCHED_CAP_PRIORITY, "priority"}, {KG_SCHED_CAP_FAIR, "fair"}, {0}};
static const struct cap_row spec_caps[] = {
    {KG_SPEC_CAP_HOST, "host"}, {KG_SPEC_CAP_MODEL, "model"}, {KG_SPEC_CAP_COST, "cost"}, {0}};
static const struct cap_row comm_caps[] = {{KG_COMM_CAP_FIXED_ORDER, "fixed-order"},
                                           {KG_COMM_CAP_HOST, "host"},
                                           {KG_COMM_CAP_CUDA, "cuda"},
                                           {KG_COMM_CAP_MULTICAST, "multicast"},
                                           {KG_COMM_CAP_GRAPHS, "graphs"},
                                           {0}};
static const struct cap_row exec_caps[] = {{KG_EXEC_CAP_INVARIANT_BATCH, "invariant-batch"},
                                           {KG_EXEC_CAP_INVARIANT_CHUNK, "invariant-chunk"},
                                           {KG_EXEC_CAP_INVARIANT_PATH, "invariant-path"},
                                           {KG_EXEC_CAP_ASYNC, "async"},
                                           {KG_EXEC_CAP_DRAFT, "draft"},
                                           {KG_EXEC_CAP_VERIFY, "verify"},
                                           {KG_EXEC_CAP_LOGITS, "logits"},
                                           {KG_EXEC_CAP_VIRTUAL, "virtual"},
                                           {KG_EXEC_CAP_VIEWS, "views"},
                                           {KG_EXEC_CAP_NO_BYTES, "no-bytes"},
                                           {KG_EXEC_CAP_RANKS, "ranks"},
                                           {KG_EXEC_CAP_CUDA, "cuda"},
                                           {0}};
static const struct cap_row tier_caps[] = {{0}};

static const struct kind_row kinds[KG_PLUGIN_KINDS] = {
    [KG_KIND_POOL] = {"pool", KG_POOL_MAJOR, KG_POOL_MINOR, pool_ops, pool_caps},
    [KG_KIND_SCHED] = {"sched", KG_SCHED_MAJOR, KG_SCHED_MINOR, sched_ops, sched_caps},
    [KG_KIND_SPEC] = {"spec", KG_SPEC_MAJOR, KG_SPEC_MINOR, spec_ops, spec_caps},
    [KG_KIND_COMM] = {"comm", KG_COMM_MAJOR, KG_COMM_MINOR, comm_ops, comm_caps},
    [KG_KIND_EXEC] = {"exec", KG_EXEC_MAJOR, KG_EXEC_MINOR, exec_ops, exec_caps},
    [KG_KIND_TIER] = {"tier", KG_TIER_MAJOR, KG_TIER_MINOR, tier_ops, tier_caps},
};

const char *kg_plugin_kind_name(uint32_t kind)
{
    return kind >= KG_KIND_POOL && kind <= KG_KIND_TIER ? kinds[kind].name : "?";
}

uint32_t kg_plugin_kind_parse(const char *word, size_t n)
{
    for (uint32_t k = KG_KIND_POOL; k <= KG_KIND_TIER; k++) {
        if (strlen(kinds[k].name) == n && memcmp(kinds[k].name, word, n) == 0)
            return k;
    }
    return 0;
}

uint64_t kg_plugin_caps_of(const struct kg_plugin *p, const void *conf)
{
    const struct kg_comm_ops *comm = p->kind == KG_KIND_COMM ? p->ops : NULL;

    return comm != NULL && KG_HAS(comm, struct kg_comm_ops, caps) ? comm->caps(conf) : p->caps;
}

void kg_plugin_caps(uint32_t kind, uint64_t caps, struct kg_buf *b)
{
    const char *comma = "";

    if (kind >= KG_KIND_POOL && kind <= KG_KIND_TIER) {
        for (const struct cap_row *c = kinds[kind].caps; c->name != NULL; c++) {
            if ((caps & c->bit) == 0)
                continue;
            (void)kg_buf_printf(b, "%s%s", comma, c->name);
            comma = ",";
            caps &= ~c->bit;
        }
    }
    if (caps != 0)
        (void)kg_buf_printf(b, "%s0x%llx", comma, (unsigned long long)caps);
}

static int verify_numbers(const struct kg_plugin *p, uint32_t kind, const char *where,
                          struct kg_error *err)
{
    const struct kind_row *k = &kinds[kind];

    if (p->magic != KG_ABI_MAGIC)
        return kg_fail(err, KG_EABI, "%s: magic: found 0x%08x, wanted 0x%08x", where, p->magic,
                       KG_ABI_MAGIC);
    if (p->size != sizeof(*p))
        return kg_fail(err, KG_EABI, "%s: size: found %zu, wanted %zu", where, p->size, sizeof(*p));
    if (p->reserved != 0)
        return kg_fail(err, KG_EABI, "%s: reserved: found %u, wanted 0", where, p->reserved);
    if (p->kind != kind)
        return kg_fail(err, KG_EABI, "%s: kind: found %u (%s), wanted %u (%s)", where, p->kind,
                       kg_plugin_kind_name(p->kind), kind, k->name);
    if (p->major != k->major)
        return kg_fail(err, KG_EABI, "%s: major: found %u, wanted %u", where, p->major, k->major);
    if (p->needs_minor > k->minor)
        return kg_fail(err, KG_EABI, "%s: needs_minor: found %u, wanted at most %u", where,
                       p->needs_minor, k->minor);
    if (p->needs_minor > p->minor)
        return kg_fail(err, KG_EABI, "%s: needs_minor: found %u, wanted at most its minor %u",
                       where, p->needs_minor, p->minor);
    return KG_OK;
}

static int verify_texts(const struct kg_plugin *p, const char *name, const char *where,
                        struct kg_error *err)
{
    if (p->name == NULL || strcmp(p->name, name) != 0)
        return kg_fail(err, KG_EABI, "%s: name: found \"%.60s\", wanted \"%s\"", where,
                       p->name != NULL ? p->name : "", name);
    if (p->version == NULL || p->version[0] == '\0')
        return kg_fail(err, KG_EABI, "%s: version: found nothing, wanted text", where);
    if (p->summary == NULL || p->summary[0] == '\0')
        return kg_fail(err, KG_EABI, "%s: summary: found nothing, wanted one line", where);
    return KG_OK;
}

/* Whether the table is long enough for the op and its pointer is set. */
static bool has_op(const void *ops, size_t size, const struct op_row *op)
{
    void (*fn)(void) = NULL;

    if (size < op->offset + sizeof(fn))
        return false;
    memcpy(&fn, (const char *)ops + op->offset, sizeof(fn));
    return fn != NULL;
}

static const char *cap_name(const struct kind_row *k, uint64_t bit)
{
    for (const struct cap_row *c = k->caps; c->name != NULL; c++) {
        if (c->bit == bit)
            return c->name;
    }
    return "?";
}

static int verify_ops(const struct kg_plugin *p, const char *where, struct kg_error *err)
{
    const struct kind_row *k = &kinds[p->kind];
    uint64_t known = 0;
    size_t size;

    if (p->ops == NULL)
        return kg_fail(err, KG_EABI, "%s: ops: found NULL, wanted a table", where);
    memcpy(&size, p->ops, sizeof(size));
    for (const struct op_row *op = k->ops; op->name != NULL; op++) {
        bool there = has_op(p->ops, size, op);
        if (op->cap == 0 && !there)
            return kg_fail(err, KG_EABI,
                           "%s: op %s: found nothing (table of %zu bytes), wanted a function",
                           where, op->name, size);
        if (op->cap != 0 && there != ((p->caps & op->cap) != 0))
            return kg_fail(err, KG_EABI, "%s: op %s: found %s, wanted %s capability %s", where,
                           op->name, there ? "a function" : "nothing",
                           there ? "it only with" : "a function for", cap_name(k, op->cap));
    }
    for (const struct cap_row *c = k->caps; c->name != NULL; c++)
        known |= c->bit;
    if ((p->caps & ~known) != 0 && p->minor <= k->minor)
        return kg_fail(err, KG_EABI, "%s: caps: found 0x%llx, wanted bits of 0x%llx", where,
                       (unsigned long long)p->caps, (unsigned long long)known);
    if (p->kind == KG_KIND_SPEC && (p->caps & KG_SPEC_CAP_HOST) != 0 &&
        (p->caps & KG_SPEC_CAP_MODEL) != 0 && p->needs_minor < 2) /* an older core would not know */
        return kg_fail(err, KG_EABI,
                       "%s: caps: found host and model, wanted one of them at most, or needs_minor "
                       "2",
                       where);
    return KG_OK;
}

static int verify_metrics(const struct kg_plugin *p, const char *where, struct kg_error *err)
{
    for (const struct kg_metric *m = p->metrics; m != NULL && m->name != NULL; m++) {
        size_t n = strlen(m->name);
        bool total = n > 6 && strcmp(m->name + n - 6, "_total") == 0;
        if (!kg_opt_name_ok(m->name) || n > 80)
            return kg_fail(err, KG_EABI,
                           "%s: metric name: found \"%.80s\", wanted at most 80 of a-z 0-9 _",
                           where, m->name);
        if (m->type != KG_COUNTER && m->type != KG_GAUGE)
            return kg_fail(err, KG_EABI, "%s: metric %s type: found %d, wanted 'c' or 'g'", where,
                           m->name, m->type);
        if (total != (m->type == KG_COUNTER))
            return kg_fail(err, KG_EABI,
                           "%s: metric %s: found type '%c', wanted _total on counters only", where,
                           m->name, m->type);
        if (m->doc == NULL || m->doc[0] == '\0')
            return kg_fail(err, KG_EABI, "%s: metric %s doc: found nothing, wanted a sentence",
                           where, m->name);
        for (const struct kg_metric *o = p->metrics; o != m; o++) {
            if (strcmp(o->name, m->name) == 0)
                return kg_fail(err, KG_EABI, "%s: metric %s: found twice, wanted once", where,
                               m->name);
        }
    }
    return KG_OK;
}

int kg_plugin_verify(const struct kg_plugin *p, uint32_t kind, const char *name, const char *where,
                     struct kg_error *err)
{
    struct kg_error why = {0};

    if (p == NULL)
        return kg_fail(err, KG_EABI, "%s: descriptor: found NULL, wanted an address", where);
    int rc = verify_numbers(p, kind, where, err);
    if (rc == KG_OK)
        rc = verify_texts(p, name, where, err);
    if (rc == KG_OK)
        rc = verify_ops(p, where, err);
    if (rc == KG_OK && kg_opt_verify(p->opts, p->conf_size, &why) != KG_OK)
        rc = kg_fail(err, KG_EABI, "%s: %.300s", where, why.text);
    if (rc == KG_OK)
        rc = verify_metrics(p, where, err);
    return rc;
}
