/* From text to typed values: core sections, the chosen plugins, the sections of all plugins. */
#include "config_int.h"
#include "opt.h"

#include <kedge/exec.h>
#include <kedge/spec.h>
#include <string.h>

/* Strings that are paths; relative ones mean the folder of the INI file when they come from it. */
static const struct {
    const char *section, *key;
    bool only_with_slash; /* a plain word is a name, not a path */
} path_keys[] = {
    {"model", "path", false},   {"model", "draft", false}, {"plugins", "dir", false},
    {"lua", "script", false},   {"plugins", "exec", true}, {"plugins", "pool", true},
    {"plugins", "sched", true}, {"plugins", "spec", true}, {"plugins", "comm", true},
    {"plugins", "tier", true},
};

static bool is_path(const struct kg_entry *e)
{
    if (strcmp(e->section, "engine") == 0 && strcmp(e->key, "cost") == 0)
        return strcmp(e->value, "off") != 0 && strcmp(e->value, "measured") != 0;
    for (size_t i = 0; i < sizeof(path_keys) / sizeof(path_keys[0]); i++) {
        if (strcmp(e->section, path_keys[i].section) == 0 && strcmp(e->key, path_keys[i].key) == 0)
            return !path_keys[i].only_with_slash || strchr(e->value, '/') != NULL;
    }
    return false;
}

static void resolve_path(struct kg_config *c, struct kg_entry *e, const struct kg_opt *row)
{
    struct kg_buf b;

    if (e->from_set || e->resolved || (!is_path(e) && (row->flags & KG_OPT_PATH) == 0) ||
        e->value[0] == '/' || e->value[0] == '\0' || c->folder == NULL || c->folder[0] == '\0')
        return;
    kg_buf_init(&b, 8192);
    char *value = NULL;
    if (kg_buf_printf(&b, "%s%s", c->folder, e->value) == KG_OK)
        value = kg_arena_strndup(&c->arena, kg_buf_cstr(&b), b.len);
    e->resolved = true;
    if (value != NULL)
        e->value = value;
    else
        kg_config_blame(c, e->where, "[%s] %s: the path cannot be put together", e->section,
                        e->key);
    kg_buf_fini(&b);
}

/* Fills conf from the defaults and the assignments of a section; blames unknown keys. */
static void apply_section(struct kg_config *c, const char *section, const struct kg_opt *rows,
                          void *conf)
{
    struct kg_error err = {0};

    if (kg_opt_defaults(rows, conf, &c->arena, &err) != KG_OK)
        kg_config_blame(c, section, "%s", err.text);
    for (size_t i = 0; i < c->n_entries; i++) {
        struct kg_entry *e = &c->entries[i];
        if (strcmp(e->section, section) != 0)
            continue;
        e->used = true;
        const struct kg_opt *row = kg_opt_find(rows, e->key);
        if (row == NULL) {
            kg_config_blame(c, e->where, "[%s] %s: no such key", section, e->key);
            continue;
        }
        resolve_path(c, e, row);
        if (kg_opt_parse(row, e->value, conf, &c->arena, &err) != KG_OK)
            kg_config_blame(c, e->where, "[%s] %s", section, err.text);
    }
}

static void apply_core(struct kg_config *c)
{
    for (const struct kg_section *s = kg_conf_sections; s->name != NULL; s++)
        apply_section(c, s->name, s->rows, (char *)&c->conf + s->offset);
}

static void find_plugin_dir(struct kg_config *c)
{
    struct kg_error err;

    if (c->conf.plugin_dir == NULL || c->conf.plugin_dir[0] == '\0') {
        if (kg_plugin_default_dir(c->plugin_dir, &err) != KG_OK)
            c->plugin_dir[0] = '\0'; /* built-ins may be all that is wanted */
        return;
    }
    int n = snprintf(c->plugin_dir, sizeof(c->plugin_dir), "%s", c->conf.plugin_dir);
    if (n >= (int)sizeof(c->plugin_dir))
        kg_config_blame(c, "[plugins] dir", "over %d bytes", KG_PLUGIN_PATH - 1);
}

/* The option struct of a plugin, filled from its section. *conf stays NULL when there is none. */
static int fill_choice(struct kg_config *c, struct kg_choice *choice)
{
    const struct kg_plugin *p = choice->ref.plugin;
    void *conf = kg_arena_zalloc(&c->arena, 1, p->conf_size + 1);
    char section[80];

    if (conf == NULL)
        return KG_ENOMEM;
    (void)snprintf(section, sizeof(section), "%s-%s", kg_plugin_kind_name(p->kind), p->name);
    apply_section(c, section, p->opts, conf);
    choice->conf = p->conf_size > 0 ? conf : NULL;
    return KG_OK;
}

static void load_choice(struct kg_config *c, uint32_t kind)
{
    const char *word = c->conf.plugins[kind];
    const struct kg_entry *e = kg_config_find(c, "plugins", kg_plugin_kind_name(kind));
    struct kg_choice *choice = &c->choices[kind];
    struct kg_error err = {0};

    if (word == NULL || (kind == KG_KIND_TIER && strcmp(word, "off") == 0))
        return;
    if (kg_plugin_load(c->plugin_dir, kind, word, &choice->ref, &err) != KG_OK) {
        choice->ref.plugin = NULL;
        kg_config_blame(c, e != NULL ? e->where : "default", "[plugins] %s = %.60s: %s",
                        kg_plugin_kind_name(kind), word, err.text);
        return;
    }
    if (fill_choice(c, choice) != KG_OK)
        kg_config_blame(c, "[plugins]", "out of memory");
}

int kg_config_plugin(struct kg_config *c, uint32_t kind, const char *name, struct kg_choice *choice,
                     struct kg_error *err)
{
    bool failed = c->failed;
    struct kg_choice got = {0};
    int rc = kg_plugin_load(c->plugin_dir, kind, name, &got.ref, err);

    if (rc != KG_OK)
        return rc;
    c->failed = false;
    kg_buf_reset(&c->errors);
    rc = fill_choice(c, &got);
    if (rc != KG_OK)
        rc = kg_fail(err, rc, "out of memory");
    else if (c->failed) /* a file that came after the start */
        rc = kg_fail(err, KG_ECONFIG, "%.400s", kg_buf_cstr(&c->errors));
    c->failed = failed;
    if (rc == KG_OK)
        *choice = got;
    return rc;
}

/* A section of a plugin that was not chosen: its keys are checked all the same. */
static void check_other(struct kg_config *c, const struct kg_entry *e)
{
    const char *dash = strchr(e->section, '-');
    uint32_t kind =
        dash != NULL ? kg_plugin_kind_parse(e->section, (size_t)(dash - e->section)) : 0;
    struct kg_plugin_ref ref;
    struct kg_error err = {0};

    if (kind == 0) {
        kg_config_blame(c, e->where, "[%s]: no such section", e->section);
        return;
    }
    if (kg_plugin_load(c->plugin_dir, kind, dash + 1, &ref, &err) != KG_OK) {
        if (c->conf.plugins[kind] == NULL || strcmp(c->conf.plugins[kind], dash + 1) != 0)
            kg_config_blame(c, e->where, "[%s]: %s", e->section, err.text);
        return; /* else it was said at [plugins] */
    }
    void *conf = kg_arena_zalloc(&c->arena, 1, ref.plugin->conf_size + 1);
    if (conf != NULL)
        apply_section(c, e->section, ref.plugin->opts, conf);
}

static void check_rest(struct kg_config *c)
{
    for (size_t i = 0; i < c->n_entries; i++) {
        struct kg_entry *e = &c->entries[i];
        if (e->used)
            continue;
        check_other(c, e);
        for (size_t k = i; k < c->n_entries; k++) { /* one line per section is enough */
            if (strcmp(c->entries[k].section, e->section) == 0)
                c->entries[k].used = true;
        }
    }
}

int kg_config_finish(struct kg_config *config)
{
    apply_core(config);
    find_plugin_dir(config);
    for (uint32_t kind = KG_KIND_POOL; kind < KG_PLUGIN_KINDS; kind++)
        load_choice(config, kind);
    kg_config_arms(config);
    check_rest(config);
    if (!config->failed)
        kg_config_cross(config);
    if (config->errors.rc != KG_OK || config->warnings.rc != KG_OK)
        config->failed = true;
    return config->failed ? KG_ECONFIG : KG_OK;
}

/* Where a key stands, for messages about its value. */
static const char *where_of(const struct kg_config *c, const char *section, const char *key)
{
    const struct kg_entry *e = kg_config_find(c, section, key);

    return e != NULL ? e->where : "default";
}

/* What more than one rank asks of the plugins. */
static void check_ranks(struct kg_config *c)
{
    const struct kg_plugin *exec = c->choices[KG_KIND_EXEC].ref.plugin;
    const struct kg_plugin *comm = c->choices[KG_KIND_COMM].ref.plugin;
    const char *where = where_of(c, "parallel", "tp");
    int device = exec != NULL && (exec->caps & KG_EXEC_CAP_CUDA) != 0;
    uint32_t tp = c->conf.tp;

    if (tp > KG_MAX_RANKS)
        kg_config_blame(c, where, "[parallel] tp = %u: at most %d ranks", tp, KG_MAX_RANKS);
    if (exec != NULL && (exec->caps & KG_EXEC_CAP_RANKS) == 0)
        kg_config_blame(c, where, "[parallel] tp = %u: exec-%s works in one rank only", tp,
                        exec->name);
    if (comm != NULL && strcmp(comm->name, "self") == 0)
        kg_config_blame(
            c, where, "[parallel] tp = %u: [plugins] comm = self serves one rank; try symmem", tp);
    else if (comm != NULL && device && (comm->caps & KG_COMM_CAP_CUDA) == 0)
        kg_config_blame(c, where_of(c, "plugins", "comm"),
                        "[plugins] comm = %s works on host memory, exec-%s computes on a device; "
                        "try symmem with [comm-symmem] memory = cuda, or nccl",
                        comm->name, exec->name);
    if (comm != NULL && (comm->caps & KG_COMM_CAP_HOST) == 0 && exec != NULL && !device)
        kg_config_blame(c, where_of(c, "plugins", "comm"),
                        "[plugins] comm = %s works on device memory, exec-%s computes on the host; "
                        "try symmem",
                        comm->name, exec->name);
    if (c->choices[KG_KIND_TIER].ref.plugin != NULL)
        kg_config_blame(c, where_of(c, "plugins", "tier"),
                        "[plugins] tier with [parallel] tp = %u: units of other ranks cannot be "
                        "read",
                        tp);
}

/* Several machines: only with a fabric that carries a step's exchanges, and only simulated. */
static void check_machines(struct kg_config *c)
{
    const struct kg_conf *v = &c->conf;
    const struct kg_plugin *exec = c->choices[KG_KIND_EXEC].ref.plugin;
    const char *where = where_of(c, "cluster", "nodes");

    if (kg_conf_slow_fabric(v) && !v->allow_slow_fabric)
        kg_config_blame(c, where,
                        "[cluster] nodes = %u, fabric = %s: ranks exchange rows twice a layer, and "
                        "without RDMA or NVLink between the machines each exchange takes tens of "
                        "microseconds. Run a server on each machine behind a router; or name the "
                        "fabric; or see what it costs with allow_slow_fabric = yes",
                        v->nodes, v->fabric == 0 ? "none" : "tcp");
    else if ((exec->caps & KG_EXEC_CAP_NO_BYTES) == 0)
        kg_config_blame(c, where, "[cluster] nodes = %u: more than one machine is not built yet",
                        v->nodes);
}

/* Refuses what would change what is computed or who may ask, but does not exist yet. */
static void refuse_unbuilt(struct kg_config *c)
{
    const struct kg_conf *v = &c->conf;

    if (v->tp != 1)
        check_ranks(c);
    if (v->tp % v->ep != 0)
        kg_config_blame(c, where_of(c, "parallel", "ep"),
                        "[parallel] ep = %u does not divide tp = %u: blocks of experts are dealt "
                        "to the ranks of tp",
                        v->ep, v->tp);
    if (v->nodes != 1)
        check_machines(c);
}

/* Warns of what would only make things faster, but does not exist yet. */
static void warn_unbuilt(struct kg_config *c)
{
    const struct kg_conf *v = &c->conf;

    if (!v->engine.prefix && c->choices[KG_KIND_TIER].ref.plugin != NULL)
        kg_config_warn(c, where_of(c, "plugins", "tier"),
                       "[plugins] tier: no effect, [prefix] enabled = no");

    if (!v->engine.prefix)
        kg_config_warn(
            c, where_of(c, "prefix", "enabled"),
            "[prefix] enabled = no: every request is computed from its first token, also "
            "a chat's next turn");
    if (v->nodes == 1 && (v->fabric != 0 || v->allow_slow_fabric))
        kg_config_warn(c, where_of(c, "cluster", v->fabric != 0 ? "fabric" : "allow_slow_fabric"),
                       "[cluster]: no effect on a single machine");
}

void kg_config_cross(struct kg_config *c)
{
    const struct kg_conf *v = &c->conf;
    struct kg_error err = {0};

    c->conf.engine.cost = strcmp(v->cost, "measured") == 0;
    if (!c->conf.engine.cost && strcmp(v->cost, "off") != 0) {
        c->conf.engine.cost_table = &c->conf.cost_table;
        if (kg_cost_read(v->cost, &c->conf.cost_table, &err) != KG_OK)
            kg_config_blame(c, where_of(c, "engine", "cost"), "[engine] cost: %s", err.text);
    }
    if (kg_server_conf_check(&v->server, &err) != KG_OK)
        kg_config_blame(c, "config", "%s", err.text);
    if (v->engine.prefill_chunk > v->engine.step_tokens)
        kg_config_blame(c, where_of(c, "engine", "prefill_chunk"),
                        "[engine] prefill_chunk = %u is above step_tokens = %u",
                        v->engine.prefill_chunk, v->engine.step_tokens);
    if (v->engine.max_seqs > v->engine.max_requests)
        kg_config_blame(c, where_of(c, "engine", "max_seqs"),
                        "[engine] max_seqs = %u is above max_requests = %u", v->engine.max_seqs,
                        v->engine.max_requests);
    if (v->engine.max_seqs > v->engine.step_tokens)
        kg_config_warn(c, where_of(c, "engine", "max_seqs"),
                       "[engine] max_seqs = %u is above step_tokens = %u: not all of them can "
                       "advance in one step",
                       v->engine.max_seqs, v->engine.step_tokens);
    const struct kg_plugin *spec = c->choices[KG_KIND_SPEC].ref.plugin;
    const struct kg_plugin *exec = c->choices[KG_KIND_EXEC].ref.plugin;
    /* a backend that computes nothing brings a drafter of its own or says so when it is opened */
    if (v->draft_path[0] == '\0' && (spec->caps & KG_SPEC_CAP_MODEL) != 0 &&
        (exec->caps & KG_EXEC_CAP_NO_BYTES) == 0)
        kg_config_blame(c, where_of(c, "plugins", "spec"),
                        "[plugins] spec = %s needs a drafter: set [model] draft", spec->name);
    refuse_unbuilt(c);
    warn_unbuilt(c);
}

const struct kg_conf *kg_config_conf(const struct kg_config *config)
{
    return &config->conf;
}

const struct kg_choice *kg_config_choice(const struct kg_config *config, uint32_t kind)
{
    return &config->choices[kind < KG_PLUGIN_KINDS ? kind : 0];
}

const char *kg_config_plugin_dir(const struct kg_config *config)
{
    return config->plugin_dir;
}
