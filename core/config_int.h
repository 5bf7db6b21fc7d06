/* Shared by the files config*.c only. */
#ifndef KEDGE_CORE_CONFIG_INT_H
#define KEDGE_CORE_CONFIG_INT_H

#include "base/arena.h"
#include "base/log.h"
#include "config.h"

#include <stdbool.h>

/* One assignment, as text, with where it stands. */
struct kg_entry {
    const char *section, *key, *value;
    const char *where; /* "tiny.ini:7" or "--set" */
    bool from_set;
    bool used; /* some row took it */
};

struct kg_config {
    struct kg_arena arena; /* every string and option struct */
    struct kg_entry *entries;
    size_t n_entries, cap_entries;
    struct kg_buf errors, warnings;
    bool failed;
    const char *folder; /* of the INI file with its slash; NULL or "": the current folder */
    char plugin_dir[KG_PLUGIN_PATH];
    struct kg_conf conf;
    struct kg_choice choices[KG_PLUGIN_KINDS];
};

__attribute__((format(printf, 3, 4))) void kg_config_blame(struct kg_config *c, const char *where,
                                                           const char *fmt, ...);
__attribute__((format(printf, 3, 4))) void kg_config_warn(struct kg_config *c, const char *where,
                                                          const char *fmt, ...);
/* The assignment of a key, or NULL. */
struct kg_entry *kg_config_find(const struct kg_config *c, const char *section, const char *key);
/* Cross-checks of core values and what is not built yet; blames and warns. */
void kg_config_cross(struct kg_config *c);

#endif
