/*
 * What a plugin exports: one function, kg_plugin_entry, that returns the address of one constant
 * struct kg_plugin. It does nothing else: no constructors, no registration, no mutable globals.
 *
 * The loader checks, before anything else of the plugin runs: magic, size, kind, major, minor,
 * name (equal to the configured one), mandatory ops, and that every capability bit is backed by
 * its op. Each refusal names the field, what was found and what was wanted.
 *
 * Versions. KG_ABI_MAGIC changes only if struct kg_plugin does. Each kind has a major (something
 * was removed, reordered, or means something else) and a minor (something was appended). A table
 * or parameter struct begins with `size_t size`; an op is absent when the table is too short for
 * it or the pointer is NULL (KG_HAS).
 */
#ifndef KEDGE_ABI_H
#define KEDGE_ABI_H

#include <kedge/types.h>

#define KG_ABI_MAGIC 0x4b454447u /* "KEDG" */

/* The symbol every plugin exports, and its type. */
#define KG_PLUGIN_SYMBOL "kg_plugin_entry"
#define KG_EXPORT __attribute__((visibility("default")))

enum kg_plugin_kind {
    KG_KIND_POOL = 1,
    KG_KIND_SCHED = 2,
    KG_KIND_SPEC = 3,
    KG_KIND_COMM = 4,
    KG_KIND_EXEC = 5,
    KG_KIND_TIER = 6,
};

/* How the text of an option becomes a field of the plugin's option struct. */
enum kg_opt_type {
    KG_OPT_U32 = 1,  /* uint32_t */
    KG_OPT_U64 = 2,  /* uint64_t; accepts k, m, g, t suffixes (powers of 1024) */
    KG_OPT_F64 = 3,  /* double */
    KG_OPT_BOOL = 4, /* uint32_t 0 or 1; accepts yes/no/on/off/true/false/1/0 */
    KG_OPT_STR = 5,  /* const char *, owned by the core, valid until close */
    KG_OPT_ENUM = 6, /* uint32_t index into `choices` */
};

/* Option flags. */
#define KG_OPT_RELOAD 1u /* reserved: nothing reads options again while running */
#define KG_OPT_ARM 2u    /* may be overridden in [arm NAME] */
#define KG_OPT_PATH 4u   /* STR: a path; relative ones mean the folder of the INI file */

/*
 * One option. From these rows come parsing, range errors with line numbers, the configuration
 * reference and the dump of effective values. A list ends with a row whose name is NULL.
 */
struct kg_opt {
    const char *name;    /* key inside the plugin's section: "style" */
    uint32_t type;       /* enum kg_opt_type */
    uint32_t flags;      /* KG_OPT_* flags */
    size_t offset;       /* of the field in the option struct */
    const char *def;     /* default as text; passes the same parser */
    double min, max;     /* inclusive range for U32, U64, F64; 0,0 for no range */
    const char *choices; /* ENUM: "ratio|uniform" */
    const char *doc;     /* what it does; ends with the unit: "Unit: tokens." */
};

/* Metric types of kg_metric.type. */
#define KG_COUNTER 'c'
#define KG_GAUGE 'g'

/*
 * One metric of a plugin instance; cells of struct kg_host are in the order of these rows. A list
 * ends with a row whose name is NULL. The core prefixes "kedge:" and adds labels kind and plugin.
 */
struct kg_metric {
    const char *name; /* base units, "_total" for counters: "compaction_moves_total" */
    char type;        /* KG_COUNTER or KG_GAUGE */
    const char *doc;  /* one sentence with the unit */
};

struct kg_plugin {
    uint32_t magic;                  /* KG_ABI_MAGIC */
    uint32_t kind;                   /* enum kg_plugin_kind */
    size_t size;                     /* sizeof(struct kg_plugin) as compiled */
    uint32_t major;                  /* KG_<KIND>_MAJOR as compiled */
    uint32_t minor;                  /* KG_<KIND>_MINOR as compiled */
    uint32_t needs_minor;            /* lowest core minor it can live with */
    uint32_t reserved;               /* must be 0 */
    const char *name;                /* "unified"; the file is pool-unified.so */
    const char *version;             /* of the plugin, free text */
    const char *summary;             /* one line */
    uint64_t caps;                   /* KG_<KIND>_CAP_*: the most an instance may have */
    const struct kg_opt *opts;       /* rows, or NULL */
    size_t conf_size;                /* of the option struct the rows fill */
    const struct kg_metric *metrics; /* rows, or NULL */
    const void *ops;                 /* struct kg_<kind>_ops */
};

typedef const struct kg_plugin *kg_plugin_entry_fn(void);

#endif
