/*
 * The configuration: one INI file and `--set section.key=value`, checked as a whole. Every
 * mistake is found and listed with its line before anything is opened; nothing is taken from a
 * file that has one.
 *
 * Relative paths ([model] path and draft, [plugins] dir and names with a slash, [lua] script) mean
 * the folder of the INI file when they stand in the file, the current folder when they come by
 * --set.
 */
#ifndef KEDGE_CORE_CONFIG_H
#define KEDGE_CORE_CONFIG_H

#include "base/buf.h"
#include "engine/cost.h"
#include "engine/engine.h"
#include "plugin.h"
#include "serve/arms.h"
#include "serve/conf.h"

/* Everything but the sections of plugins. Strings live as long as the configuration. */
#define KG_MAX_RANKS 64

struct kg_conf {
    struct kg_server_conf server;
    const char *model_path; /* absolute or as seen from the current folder; "" for none */
    const char *draft_path; /* "" for none */
    const char *plugin_dir; /* "" for the default */
    const char *plugins[KG_PLUGIN_KINDS]; /* words of [plugins] */
    struct kg_engine_conf engine;
    const char *cost;                 /* "off", "measured" or a file */
    struct kg_cost_table cost_table;  /* of the file; engine.cost_table points here */
    uint32_t tp, ep, rank_timeout_ms; /* tp <= KG_MAX_RANKS */
    uint32_t sp_rows, allow_idle_rank;
    uint64_t symm_bytes;
    const char *comm_times; /* file, "" for none */
    uint32_t nodes, fabric, allow_slow_fabric;
    const char *lua_script; /* "" for none */
    uint32_t lua_on_error;  /* 0 reject, 1 admit */
    uint64_t lua_instructions, lua_arrive_us, lua_step_us;
    uint32_t log_level; /* enum kg_log_level */
    const char *log_modules;
    struct kg_arms_conf arms;
    /* [arms.n] what holds for an arm in the engine, but for its speculation */
    struct kg_engine_arm arm_rules[KG_MAX_ARMS];
};

/* Whether what connects the machines is too slow for a step's exchanges: Ethernet, or not named. */
static inline int kg_conf_slow_fabric(const struct kg_conf *c)
{
    return c->fabric == 0 || c->fabric == 3; /* none, tcp: the order of [cluster] fabric */
}

/* One section of core options. A list ends with a row whose name is NULL. */
struct kg_section {
    const char *name;
    const struct kg_opt *rows;
    size_t offset; /* of the struct the rows fill, inside struct kg_conf */
    const char *doc;
};
extern const struct kg_section kg_conf_sections[];
/* Rows of [arm NAME] itself; they fill a struct kg_serve_arm. Beside them an arm may have the rows
 * above that are marked KG_OPT_ARM, and those of its speculation plugin that are. */
extern const struct kg_opt kg_arm_rows[];

/* A plugin the configuration chose, verified, with its options. */
struct kg_choice {
    struct kg_plugin_ref ref;
    const void *conf; /* option struct for open(), owned by the configuration; may be NULL */
};

struct kg_config;

KG_CHECKED int kg_config_create(struct kg_config **config);
void kg_config_destroy(struct kg_config *config); /* NULL is allowed */

/* Reads a file. Mistakes are kept, see kg_config_errors. KG_ECONFIG when there were any. */
int kg_config_read(struct kg_config *config, const char *path);
/* The same from memory, `name` in place of the path; for tests and fuzzing. */
int kg_config_read_text(struct kg_config *config, const char *name, const char *text, size_t n);
/* One `section.key=value`; later ones win over the file and over earlier ones. */
int kg_config_set(struct kg_config *config, const char *assignment);
/*
 * Once, after reading: types every value, loads and verifies the chosen plugins, checks the
 * sections of plugins that were not chosen, and what single ranges cannot say. KG_ECONFIG when
 * anything was wrong, here or before.
 */
KG_CHECKED int kg_config_finish(struct kg_config *config);

/* All mistakes, one a line ("tiny.ini:7: [server] port = 99999: ..."); "" when there are none. */
const char *kg_config_errors(const struct kg_config *config);
/* Things that work but not as the reader may think; the same form. */
const char *kg_config_warnings(const struct kg_config *config);

/* After a good finish; owned by the configuration. */
const struct kg_conf *kg_config_conf(const struct kg_config *config);
/* The choice of a kind; its ref.plugin is NULL for tier = off. */
const struct kg_choice *kg_config_choice(const struct kg_config *config, uint32_t kind);
/* The speculation of an arm, with the arm's options. */
const struct kg_choice *kg_config_arm_choice(const struct kg_config *config, uint32_t arm);
/* Another one for it: options of the plugin's section, then those of the arm that it has. As
 * kg_config_plugin. */
KG_CHECKED int kg_config_arm_plugin(struct kg_config *config, uint32_t arm, const char *name,
                                    struct kg_choice *choice, struct kg_error *err);
/* One more plugin of a kind by its name, with the options of its section, which were checked by
 * finish; owned by the configuration, one copy a call. KG_ENOENT, KG_EABI, KG_ECONFIG, KG_ENOMEM.
 */
KG_CHECKED int kg_config_plugin(struct kg_config *config, uint32_t kind, const char *name,
                                struct kg_choice *choice, struct kg_error *err);
const char *kg_config_plugin_dir(const struct kg_config *config);
/* Effective values as INI text, each with where it comes from. Secrets are not shown. */
void kg_config_dump(const struct kg_config *config, struct kg_buf *b);
/* Effective value of one key and its source ("default", "tiny.ini:4", "--set"); NULL if unknown. */
const char *kg_config_value(const struct kg_config *config, const char *section, const char *key,
                            const char **source);

/* The reference of all options as Markdown: core sections, then plugins of `dir` (may be NULL). */
KG_CHECKED int kg_config_reference(const char *dir, struct kg_buf *b, struct kg_error *err);

#endif
