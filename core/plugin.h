/*
 * Finding, loading and verifying plugins. A plugin is refused unless everything its descriptor
 * says holds; until then nothing of it but the entry function has run. A plugin is never unloaded.
 */
#ifndef KEDGE_CORE_PLUGIN_H
#define KEDGE_CORE_PLUGIN_H

#include "base/buf.h"

#include <kedge/abi.h>

#define KG_PLUGIN_KINDS (KG_KIND_TIER + 1) /* size of an array indexed by kind */
#define KG_PLUGIN_PATH 512

struct kg_plugin_ref {
    const struct kg_plugin *plugin;
    char path[KG_PLUGIN_PATH]; /* of the file, "" for a built-in */
};

/* "pool", "sched", ...; "?" for an unknown kind. */
const char *kg_plugin_kind_name(uint32_t kind);
/* 0 when the word names no kind. */
uint32_t kg_plugin_kind_parse(const char *word, size_t n);
/* Capability bits of a plugin with these options (its conf, NULL for its defaults): of kinds whose
 * plugins can tell, else those of the descriptor. */
uint64_t kg_plugin_caps_of(const struct kg_plugin *p, const void *conf);
/* Words of capability bits, comma separated ("moves,shared"); unknown bits as numbers. */
void kg_plugin_caps(uint32_t kind, uint64_t caps, struct kg_buf *b);

/*
 * Checks a descriptor against this core: magic, size, reserved, kind, major, minor, name,
 * mandatory ops, capability bits against ops, option and metric rows. `where` names the plugin in
 * texts. KG_EABI with field, found, wanted.
 */
KG_CHECKED int kg_plugin_verify(const struct kg_plugin *p, uint32_t kind, const char *name,
                                const char *where, struct kg_error *err);

/* The built-in of that kind and name, or NULL. */
const struct kg_plugin *kg_plugin_builtin(uint32_t kind, const char *name);

/*
 * Loads by the name of the configuration: "unified" or "pool-unified" is a built-in, or the file
 * pool-unified.so in `dir` or in its subfolder pool-unified; a word with a slash is a path to the
 * file. The current folder is never searched. KG_ENOENT, KG_EABI.
 */
KG_CHECKED int kg_plugin_load(const char *dir, uint32_t kind, const char *word,
                              struct kg_plugin_ref *out, struct kg_error *err);

/* Called once per plugin that exists: `ref` is NULL when it was refused, `err` says why. */
typedef void kg_plugin_visit(void *ctx, uint32_t kind, const char *name,
                             const struct kg_plugin_ref *ref, const struct kg_error *err);
/* Visits built-ins and every KIND-NAME.so of `dir`, sorted by kind and name. KG_EIO. */
KG_CHECKED int kg_plugin_scan(const char *dir, kg_plugin_visit *visit, void *ctx,
                              struct kg_error *err);
/* The same for one kind; files of others are not opened. */
KG_CHECKED int kg_plugin_scan_kind(const char *dir, uint32_t kind, kg_plugin_visit *visit,
                                   void *ctx, struct kg_error *err);

/* Where plugins lie when [plugins] dir is empty: plugins/ beside the running binary (build tree)
 * or ../LIBDIR/kedge from it (installed; LIBDIR of the build, lib or lib/x86_64-linux-gnu).
 * KG_ENOENT when neither exists. */
KG_CHECKED int kg_plugin_default_dir(char dir[KG_PLUGIN_PATH], struct kg_error *err);

#endif
