/*
 * What a plugin instance gets from the core (struct kg_host): counted memory, log lines with the
 * instance's name in front, the clock, metric cells. One kg_instance per open plugin.
 */
#ifndef KEDGE_CORE_HOST_H
#define KEDGE_CORE_HOST_H

#include "base/clock.h"
#include "base/log.h"

#include <kedge/abi.h>
#include <kedge/host.h>

struct kg_instance {
    struct kg_host host;          /* give &instance->host to open() */
    char name[64];                /* "pool-unified", log module */
    struct kg_log *log;           /* not owned, may be NULL */
    const struct kg_clock *clock; /* not owned; may be switched by the owner before threads start */
    uint32_t n_cells;
    _Atomic uint64_t held_bytes; /* allocated and not yet freed */
};

/*
 * An instance of `plugin` under its name. `clock` is read through at each call, so that the
 * backend's clock can take its place once it is open. KG_ENOMEM.
 */
KG_CHECKED int kg_instance_create(const struct kg_plugin *plugin, struct kg_log *log,
                                  const struct kg_clock *clock, uint32_t debug,
                                  struct kg_instance **out);
/* After the plugin's close. NULL is allowed. Logs a warning when memory was left behind. */
void kg_instance_destroy(struct kg_instance *instance);
/* Bytes the plugin holds through host.alloc; any thread. */
uint64_t kg_instance_bytes(const struct kg_instance *instance);

#endif
