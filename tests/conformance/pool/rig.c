#include "rig.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *host_alloc(void *ctx, size_t bytes, size_t align)
{
    struct rig *rig = ctx;

    if (rig->sealed)
        rig->late_allocs++;
    if (align == 0)
        align = 16;
    size_t rounded = (bytes + align - 1) / align * align;
    if (bytes == 0 || rounded < bytes)
        return NULL;
    void *p = aligned_alloc(align, rounded);
    if (p != NULL) {
        memset(p, 0xa5, rounded); /* nobody may count on zeroes */
        rig->host_bytes += bytes;
    }
    return p;
}

static void host_free(void *ctx, void *p, size_t bytes)
{
    struct rig *rig = ctx;

    if (p != NULL)
        rig->host_bytes -= bytes;
    free(p);
}

static void host_log(void *ctx, uint32_t level, const char *fmt, ...)
{
    (void)ctx;
    (void)level;
    (void)fmt;
}

static uint64_t host_now_ns(void *ctx)
{
    (void)ctx;
    return 0;
}

static int parse_enum(const char *choices, const char *text, uint32_t *value)
{
    size_t len = strlen(text);

    for (uint32_t i = 0; *choices != '\0'; i++) {
        size_t n = strcspn(choices, "|");
        if (n == len && memcmp(choices, text, n) == 0) {
            *value = i;
            return 0;
        }
        choices += n + (choices[n] == '|');
    }
    return -1;
}

static int parse_number(const struct kg_opt *row, const char *text, double *value)
{
    char *end = NULL;

    *value = strtod(text, &end);
    if (*text == '\0' || *end != '\0')
        return -1;
    return (row->min != 0 || row->max != 0) && (*value < row->min || *value > row->max) ? -1 : 0;
}

static int set_option(struct rig *rig, const struct kg_opt *row, const char *text)
{
    char *field = (char *)rig->conf + row->offset;
    double number = 0;

    switch (row->type) {
    case KG_OPT_U32:
        if (parse_number(row, text, &number) != 0)
            return -1;
        *(uint32_t *)field = (uint32_t)number;
        return 0;
    case KG_OPT_U64:
        if (parse_number(row, text, &number) != 0)
            return -1;
        *(uint64_t *)field = (uint64_t)number;
        return 0;
    case KG_OPT_F64:
        return parse_number(row, text, (double *)field);
    case KG_OPT_BOOL:
        *(uint32_t *)field = strcmp(text, "yes") == 0;
        return 0;
    case KG_OPT_STR:
        *(const char **)field = text;
        return 0;
    case KG_OPT_ENUM:
        return parse_enum(row->choices, text, (uint32_t *)field);
    default:
        return -1;
    }
}

static const struct kg_opt *find_option(const struct rig *rig, const char *key, size_t len)
{
    for (const struct kg_opt *row = rig->plugin->opts; row != NULL && row->name != NULL; row++) {
        if (strlen(row->name) == len && memcmp(row->name, key, len) == 0)
            return row;
    }
    return NULL;
}

static int fill_options(struct rig *rig, int n_settings, char **settings)
{
    for (const struct kg_opt *row = rig->plugin->opts; row != NULL && row->name != NULL; row++) {
        if (set_option(rig, row, row->def) != 0) {
            fprintf(stderr, "option %s refuses its own default %s\n", row->name, row->def);
            return -1;
        }
    }
    for (int i = 0; i < n_settings; i++) {
        size_t len = strcspn(settings[i], "=");
        const struct kg_opt *row = find_option(rig, settings[i], len);
        if (row == NULL || settings[i][len] != '=' ||
            set_option(rig, row, settings[i] + len + 1) != 0) {
            fprintf(stderr, "bad setting %s\n", settings[i]);
            return -1;
        }
    }
    return 0;
}

int rig_load(struct rig *rig, const char *path, int n_settings, char **settings)
{
    *rig = (struct rig){0};
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (so == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
    kg_plugin_entry_fn *entry;
    *(void **)&entry = dlsym(so, KG_PLUGIN_SYMBOL);
    rig->plugin = entry != NULL ? entry() : NULL;
    if (rig->plugin == NULL || rig->plugin->magic != KG_ABI_MAGIC ||
        rig->plugin->kind != KG_KIND_POOL || rig->plugin->major != KG_POOL_MAJOR) {
        fprintf(stderr, "%s is not a pool plugin of this ABI\n", path);
        return -1;
    }
    rig->ops = rig->plugin->ops;
    rig->host = (struct kg_host){
        .size = sizeof(rig->host),
        .ctx = rig,
        .alloc = host_alloc,
        .free = host_free,
        .log = host_log,
        .now_ns = host_now_ns,
        .cells = rig->cells,
        .debug = 1,
    };
    rig->conf = calloc(1, rig->plugin->conf_size + 1);
    return rig->conf != NULL ? fill_options(rig, n_settings, settings) : -1;
}

void rig_unload(struct rig *rig)
{
    free(rig->conf);
    rig->conf = NULL;
}

int rig_open(struct rig *rig, const struct kg_pool_geom *geom, struct kg_error *err)
{
    struct kg_pool *pool = NULL;
    struct kg_pool_layout layout, untouched;

    memset(&untouched, 0x5a, sizeof(untouched));
    layout = untouched;
    memset(rig->cells, 0, sizeof(rig->cells));
    rig->sealed = 0;
    int rc = rig->ops->open(&rig->host, rig->conf, geom, &pool, &layout, err);
    if (rc != KG_OK) {
        if (pool != NULL || memcmp(&layout, &untouched, sizeof(layout)) != 0 ||
            rig->host_bytes != 0) {
            fprintf(stderr, "a failed open set outputs or kept memory\n");
            abort();
        }
        return rc;
    }
    rig->sealed = 1;
    rig->pool = pool;
    rig->geom = *geom;
    rig->layout = layout;
    return KG_OK;
}

int rig_close(struct rig *rig)
{
    rig->ops->close(rig->pool);
    rig->pool = NULL;
    int clean = rig->host_bytes == 0 && rig->late_allocs == 0;
    if (!clean)
        fprintf(stderr, "%llu bytes leaked, %llu allocations after open\n",
                (unsigned long long)rig->host_bytes, (unsigned long long)rig->late_allocs);
    rig->host_bytes = 0;
    rig->late_allocs = 0;
    return clean ? 0 : -1;
}

uint64_t rig_metric(const struct rig *rig, const char *name)
{
    const struct kg_metric *rows = rig->plugin->metrics;

    for (uint32_t i = 0; rows != NULL && rows[i].name != NULL; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return kg_get(&rig->cells[i]);
    }
    return UINT64_MAX;
}

int rig_sums_hold(const struct kg_pool_bytes *b)
{
    uint64_t sum = b->pinned + b->holes + b->gap + b->padding;

    for (uint32_t k = 0; k < KG_N_KINDS; k++)
        sum += b->live[k] + b->cached[k];
    return sum == b->arena;
}

uint32_t rig_width(const struct rig *rig, uint32_t kind)
{
    return kind == KG_STATE ? rig->layout.slots_per_state : 1;
}

uint64_t rig_address(const struct rig *rig, uint32_t kind, uint32_t entry)
{
    uint32_t slot = rig->ops->table(rig->pool, kind)[entry];

    return rig->layout.base[kind] + (uint64_t)slot * rig->layout.stride[kind];
}

struct kg_pool_geom rig_odd_geom(void)
{
    return (struct kg_pool_geom){
        .size = sizeof(struct kg_pool_geom),
        .arena_bytes = 100003,
        .token_bytes = 73,
        .state_part_bytes = 1000,
        .n_state_parts = 5,
        .page_tokens = 7,
        .page_tokens_align = 4,
        .align = 64,
        .max_seqs = 4,
    };
}
