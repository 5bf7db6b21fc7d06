#include "exec_ranks.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint32_t world = 1, ep = 1, on_device;

void xrig_on_device(uint32_t device)
{
    on_device = device;
    if (!device)
        return;
#ifdef EXEC_CUDA_EMU
    /* read when the plugin, and the driver of the collectives, are loaded */
    (void)setenv("KG_EMU_DEVICES", "4", 1);
    (void)setenv("KG_EMU_CHECKS", "ot", 1);
    (void)setenv("KG_EMU_PLUGIN", EXEC_CUDA_EMU, 1);
#endif
}

void xrig_set_ranks(int argc, char **argv)
{
    if (argc > 1)
        world = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        ep = (uint32_t)strtoul(argv[2], NULL, 10);
    xrig_on_device(argc > 3 && strcmp(argv[3], "device") == 0);
}

const char *xrig_sets(void)
{
    static char sets[160];

    if (world > 1)
        (void)snprintf(sets, sizeof(sets),
                       "plugins.comm=symmem parallel.tp=%u parallel.ep=%u parallel.sp_rows=20 "
                       "parallel.allow_idle_rank=yes",
                       world, ep);
    return sets;
}

uint32_t xrig_world(void)
{
    return world;
}

uint32_t xrig_is_on_device(void)
{
    return on_device;
}

static const char *plugin_of(const struct xrig_options *o)
{
#ifdef EXEC_CUDA_EMU
    if (on_device)
        return EXEC_CUDA_EMU;
#endif
    return o->plugin != NULL ? o->plugin : EXEC_CPU;
}

static void *host_alloc(void *ctx, size_t bytes, size_t align)
{
    struct xrig *x = ctx;
    void *p = NULL;

    if (posix_memalign(&p, align < 16 ? 16 : align, bytes) != 0)
        return NULL;
    x->held_bytes += bytes;
    return p;
}

static void host_free(void *ctx, void *p, size_t bytes)
{
    struct xrig *x = ctx;

    if (p != NULL)
        x->held_bytes -= bytes;
    free(p);
}

__attribute__((format(printf, 3, 4))) static void host_log(void *ctx, uint32_t level,
                                                           const char *fmt, ...)
{
    (void)ctx;
    (void)level;
    (void)fmt;
}

static uint64_t host_now(void *ctx)
{
    (void)ctx;
    return 0;
}

uint64_t xrig_random(struct xrig *x)
{
    x->random += 0x9e3779b97f4a7c15ull;
    uint64_t z = x->random;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static void set_option(const struct kg_plugin *p, void *conf, const char *name, uint32_t value)
{
    for (const struct kg_opt *o = p->opts; o->name != NULL; o++) {
        if (strcmp(o->name, name) == 0) {
            memcpy((uint8_t *)conf + o->offset, &value, sizeof(value));
            return;
        }
    }
    fail_msg("%s has no option %s", p->name, name);
}

int xrig_try_open(struct xrig *x, const struct xrig_options *o, const char *model_path,
                  struct kg_error *err)
{
    struct kg_exec_open args = {.size = sizeof(args),
                                .model_path = model_path,
                                .world = world,
                                .ep = ep,
                                .sp_rows = o->sp_rows,
                                .allow_idle_rank = 1,
                                .max_seqs = o->max_seqs,
                                .max_rows = o->max_rows,
                                .max_draft = o->max_draft};
    char draft[512];
    union {
        uint64_t align;
        uint8_t bytes[256];
    } conf = {0};
    kg_plugin_entry_fn *entry;
    const struct kg_plugin *p;

    (void)snprintf(draft, sizeof(draft), "%s/%s", TEST_ROOT, o->draft != NULL ? o->draft : "");
    args.draft_path = o->draft != NULL ? draft : NULL;
    memset(x, 0, sizeof(*x));
    x->so = dlopen(plugin_of(o), RTLD_NOW | RTLD_LOCAL | (on_device ? RTLD_NODELETE : 0));
    if (x->so == NULL)
        fail_msg("%s", dlerror());
    *(void **)&entry = dlsym(x->so, KG_PLUGIN_SYMBOL);
    p = entry();
    x->ops = p->ops;
    x->host = (struct kg_host){.size = sizeof(x->host),
                               .ctx = x,
                               .alloc = host_alloc,
                               .free = host_free,
                               .log = host_log,
                               .now_ns = host_now};
    set_option(p, &conf, "math", o->math);
    set_option(p, &conf, "threads", o->threads);
    if (on_device)
        set_option(p, &conf, "graphs", 16);
    else
        set_option(p, &conf, "isa", o->isa);
    set_option(p, &conf, "rewind", o->rewind);
    return world > 1 ? xranks_open(x, &conf, &args, err)
                     : x->ops->open(&x->host, &conf, &args, &x->exec, err);
}

static void open_units(struct xrig *x, uint32_t kind, uint32_t n, uint32_t entries)
{
    struct xrig_units *u = &x->units[kind];

    u->n = n;
    u->entries = entries;
    u->n_slots = n * entries + 8;
    u->table = malloc((size_t)n * entries * sizeof(uint32_t));
    u->slot_used = calloc(u->n_slots, 1);
    u->unit_used = calloc(n, 1);
    assert_true(u->table != NULL && u->slot_used != NULL && u->unit_used != NULL);
    memset(u->table, 0xff, (size_t)n * entries * sizeof(uint32_t));
}

static void plan_layout(struct xrig *x, const struct xrig_options *o)
{
    struct kg_pool_layout *l = &x->layout;
    const struct kg_exec_desc *d = &x->desc;
    uint32_t per_slot = o->parts_per_slot == 0 ? d->n_state_parts : o->parts_per_slot;
    uint32_t entries = (d->n_state_parts + per_slot - 1) / per_slot;

    open_units(x, KG_PAGE, o->n_pages ? o->n_pages : XRIG_PAGES, 1);
    open_units(x, KG_STATE, o->n_states ? o->n_states : XRIG_STATES, entries);
    l->size = sizeof(*l);
    l->page_tokens = o->page_tokens;
    l->slots_per_state = entries;
    l->parts_per_slot = per_slot;
    l->stride[KG_PAGE] = (d->token_bytes * o->page_tokens + 127) / 64 * 64;
    l->stride[KG_STATE] = d->state_part_bytes * per_slot + 64;
    for (uint32_t kind = 0; kind < KG_N_KINDS; kind++) {
        l->base[kind] = l->arena_bytes;
        l->max_slots[kind] = x->units[kind].n_slots;
        l->max_units[kind] = x->units[kind].n;
        l->unit_bytes[kind] = l->stride[kind] * x->units[kind].entries;
        l->arena_bytes += l->stride[kind] * l->max_slots[kind];
    }
}

void xrig_open(struct xrig *x, const struct xrig_options *o)
{
    char path[512];
    struct kg_error err = {0};

    (void)snprintf(path, sizeof(path), "%s/%s", o->model[0] == '/' ? "" : TEST_ROOT, o->model);
    if (xrig_try_open(x, o, path, &err) < 0)
        fail_msg("open: %s", err.text);
    x->ops->describe(x->exec, &x->desc);
    plan_layout(x, o);
    if (x->ops->bind(x->exec, &x->layout, &err) < 0)
        fail_msg("bind: %s", err.text);
    x->changes = calloc((size_t)(x->units[0].n + x->units[1].n) * 8, sizeof(*x->changes));
    assert_non_null(x->changes);
}

void xrig_close(struct xrig *x)
{
    if (x->group != NULL)
        xranks_close(x);
    else
        x->ops->close(x->exec);
    assert_int_equal(x->held_bytes, 0);
    for (uint32_t kind = 0; kind < KG_N_KINDS; kind++) {
        free(x->units[kind].table);
        free(x->units[kind].slot_used);
        free(x->units[kind].unit_used);
    }
    free(x->changes);
    (void)dlclose(x->so);
}

static uint32_t free_slot(struct xrig *x, const struct xrig_units *u)
{
    uint32_t at = (uint32_t)(xrig_random(x) % u->n_slots);

    for (uint32_t i = 0; i < u->n_slots; i++) {
        uint32_t slot = (at + i) % u->n_slots;
        if (!u->slot_used[slot])
            return slot;
    }
    fail_msg("the test's pool has no slot left");
    return 0;
}

static void map(struct xrig *x, uint32_t kind, uint32_t entry, uint32_t slot)
{
    struct xrig_units *u = &x->units[kind];

    u->table[entry] = slot;
    if (slot != KG_NONE)
        u->slot_used[slot] = 1;
    x->changes[x->n_changes++] =
        (struct kg_table_change){.kind = kind, .entry = entry, .slot = slot};
}

uint32_t xrig_take(struct xrig *x, uint32_t kind)
{
    struct xrig_units *u = &x->units[kind];
    uint32_t id = (uint32_t)(xrig_random(x) % u->n);

    for (uint32_t i = 0; u->unit_used[id]; i++) {
        assert_true(i < u->n);
        id = (id + 1) % u->n;
    }
    u->unit_used[id] = 1;
    for (uint32_t i = 0; i < u->entries; i++)
        map(x, kind, id * u->entries + i, free_slot(x, u));
    xrig_apply(x, 0);
    /* Whatever a fresh unit held must not matter. */
    assert_int_equal(x->ops->poison(x->exec, kind, id), KG_OK);
    return id;
}

void xrig_give(struct xrig *x, uint32_t kind, uint32_t id)
{
    struct xrig_units *u = &x->units[kind];

    assert_true(u->unit_used[id]);
    assert_int_equal(x->ops->poison(x->exec, kind, id), KG_OK);
    u->unit_used[id] = 0;
    for (uint32_t i = 0; i < u->entries; i++) {
        u->slot_used[u->table[id * u->entries + i]] = 0;
        map(x, kind, id * u->entries + i, KG_NONE);
    }
}

void xrig_apply(struct xrig *x, uint32_t n)
{
    struct kg_move moves[256] = {0};
    uint32_t n_moves = 0;

    for (uint32_t i = 0; i < n * KG_N_KINDS; i++) {
        uint32_t kind = i % KG_N_KINDS;
        struct xrig_units *u = &x->units[kind];
        uint32_t entry = (uint32_t)(xrig_random(x) % ((uint64_t)u->n * u->entries));
        uint32_t from = u->table[entry], to;
        for (uint32_t tries = 0; from == KG_NONE && tries < u->n * u->entries; tries++) {
            entry = (entry + 1) % (u->n * u->entries);
            from = u->table[entry];
        }
        if (from == KG_NONE || n_moves == 256)
            continue;
        to = free_slot(x, u);
        u->slot_used[from] = 0;
        moves[n_moves++] =
            (struct kg_move){.kind = kind, .from = from, .to = to, .id = entry / u->entries};
        map(x, kind, entry, to);
    }
    assert_int_equal(x->ops->apply(x->exec, moves, n_moves, x->changes, x->n_changes), KG_OK);
    x->n_changes = 0;
}

void xrig_step(struct xrig *x, const struct kg_seq *seqs, uint32_t n, struct kg_result *result)
{
    struct kg_batch batch = {.size = sizeof(batch), .step = ++x->step, .seqs = seqs, .n_seqs = n};
    struct kg_error err = {0};

    for (uint32_t i = 0; i < n; i++)
        batch.n_rows += seqs[i].n_rows;
    if (x->ops->submit(x->exec, &batch, &err) < 0)
        fail_msg("submit: %s", err.text);
    *result = (struct kg_result){.size = sizeof(*result)};
    if (x->ops->wait(x->exec, result, &err) < 0)
        fail_msg("wait: %s", err.text);
    assert_int_equal(result->step, x->step);
    assert_int_equal(result->n_seqs, n);
}
