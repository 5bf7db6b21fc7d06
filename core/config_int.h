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
    bool used;     /* some row took it */
    bool resolved; /* a relative path was put behind the folder */
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
    struct kg_choice arm_specs[KG_MAX_ARMS];
};

__attribute__((format(printf, 3, 4))) void kg_config_blame(struct kg_config *c, const char *where,
                                                           const char *fmt, ...);
__attribute__((format(printf, 3, 4))) void kg_config_warn(struct kg_config *c, const char *where,
                                                          const char *fmt, ...);
/* The assignment of a key, or NULL. */
struct kg_entry *kg_config_find(const struct kg_config *c, const char *section, const char *key);
/* config_arms.c: whether a section is of an arm, "arm NAME"; an entry without a key stands for its
 * header, so that an empty section is seen. Reads all of them, after the plugins. */
bool kg_config_is_arm(const char *section);
void kg_config_arms(struct kg_config *c);
/* Cross-checks of core values and what is not built yet; blames and warns. */
void kg_config_cross(struct kg_config *c);

#endif
