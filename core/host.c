#include "host.h"

#include "plugin.h"

#include <stdlib.h>
#include <string.h>

/* More than any address space holds: an overflow of the caller's, answered like a full machine. */
#define MAX_BYTES ((size_t)1 << 47)

static void *host_alloc(void *ctx, size_t bytes, size_t align)
{
    struct kg_instance *i = ctx;
    void *p;

    if (align < 16)
        align = 16;
    if (bytes == 0 || bytes > MAX_BYTES || (align & (align - 1)) != 0 ||
        posix_memalign(&p, align, bytes) != 0)
        return NULL;
    (void)atomic_fetch_add_explicit(&i->held_bytes, bytes, memory_order_relaxed);
    return p;
}

static void host_free(void *ctx, void *p, size_t bytes)
{
    struct kg_instance *i = ctx;

    if (p == NULL)
        return;
    (void)atomic_fetch_sub_explicit(&i->held_bytes, bytes, memory_order_relaxed);
    free(p);
}

__attribute__((format(printf, 3, 4))) static void host_log(void *ctx, uint32_t level,
                                                           const char *fmt, ...)
{
    struct kg_instance *i = ctx;
    char text[400];
    va_list ap;

    if (!kg_log_on(i->log, level, i->name))
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    kg_log_text(i->log, level, i->name, fmt, text);
}

static uint64_t host_now(void *ctx)
{
    return kg_clock_now(((struct kg_instance *)ctx)->clock);
}

static uint32_t count_rows(const struct kg_metric *rows)
{
    uint32_t n = 0;

    while (rows != NULL && rows[n].name != NULL)
        n++;
    return n;
}

int kg_instance_create(const struct kg_plugin *plugin, struct kg_log *log,
                       const struct kg_clock *clock, uint32_t debug, struct kg_instance **out)
{
    struct kg_instance *i = calloc(1, sizeof(*i));

    if (i == NULL)
        return KG_ENOMEM;
    i->log = log;
    i->clock = clock;
    i->n_cells = count_rows(plugin->metrics);
    (void)snprintf(i->name, sizeof(i->name), "%s-%s", kg_plugin_kind_name(plugin->kind),
                   plugin->name);
    if (i->n_cells > 0) {
        i->host.cells = calloc(i->n_cells, sizeof(*i->host.cells));
        if (i->host.cells == NULL) {
            free(i);
            return KG_ENOMEM;
        }
    }
    i->host.size = sizeof(i->host);
    i->host.ctx = i;
    i->host.alloc = host_alloc;
    i->host.free = host_free;
    i->host.log = host_log;
    i->host.now_ns = host_now;
    i->host.debug = debug;
    *out = i;
    return KG_OK;
}

void kg_instance_destroy(struct kg_instance *instance)
{
    if (instance == NULL)
        return;
    uint64_t left = kg_instance_bytes(instance);
    if (left != 0)
        kg_log_line(instance->log, KG_LOG_WARN, "host", "memory left behind at close",
                    "plugin=%s bytes=%llu", instance->name, (unsigned long long)left);
    free(instance->host.cells);
    free(instance);
}

uint64_t kg_instance_bytes(const struct kg_instance *instance)
{
    return atomic_load_explicit(&((struct kg_instance *)(uintptr_t)instance)->held_bytes,
                                memory_order_relaxed);
}
