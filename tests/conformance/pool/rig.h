/*
 * Opens any pool plugin for a test: by path, with "key=value" settings that go through the
 * plugin's own option rows, on a host that counts memory and forbids allocation after open.
 */
#ifndef KEDGE_TESTS_CONFORMANCE_POOL_RIG_H
#define KEDGE_TESTS_CONFORMANCE_POOL_RIG_H

#include <kedge/abi.h>
#include <kedge/host.h>
#include <kedge/pool.h>

#define RIG_MOST_METRICS 32

struct rig {
    const struct kg_plugin *plugin;
    const struct kg_pool_ops *ops;
    void *conf; /* filled from the rows; owned */
    struct kg_host host;
    struct kg_cell cells[RIG_MOST_METRICS];
    uint64_t host_bytes;  /* allocated through the host now */
    uint64_t late_allocs; /* calls of alloc after open: must stay 0 */
    int sealed;           /* open has returned */
    struct kg_pool *pool; /* NULL unless open */
    struct kg_pool_geom geom;
    struct kg_pool_layout layout;
};

/* Loads the plugin and fills its options: defaults, then settings. 0, or -1 with text on stderr. */
int rig_load(struct rig *rig, const char *path, int n_settings, char **settings);
void rig_unload(struct rig *rig);

/* Opens the pool; the plugin's answer. A failed open that set outputs or kept memory aborts. */
int rig_open(struct rig *rig, const struct kg_pool_geom *geom, struct kg_error *err);
/* Closes it; 0, or -1 if memory leaked or was allocated after open. */
int rig_close(struct rig *rig);

/* Value of a metric by name; UINT64_MAX when the plugin has no such row. */
uint64_t rig_metric(const struct rig *rig, const char *name);

/* True when every byte is in one class: the classes sum to the arena. */
int rig_sums_hold(const struct kg_pool_bytes *b);

/* Table entries of a unit of a kind. */
uint32_t rig_width(const struct rig *rig, uint32_t kind);

/* Byte address of entry `entry` of a kind, from layout and table only. */
uint64_t rig_address(const struct rig *rig, uint32_t kind, uint32_t entry);

/* A small geometry whose sizes are no multiples of each other or of the alignment. */
struct kg_pool_geom rig_odd_geom(void);

#endif
