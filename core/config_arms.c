/*
 * [arms] and [arm NAME]. An arm starts from the configuration and overrides what is marked ARM:
 * rows of the core by their own key, and rows of its speculation plugin. Everything else is the
 * engine's.
 */
#include "config_int.h"
#include "opt.h"

#include <kedge/spec.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "arm "
#define PREFIX_LEN 4

/* An arm being read. */
struct reading {
    struct kg_config *config;
    const char *section; /* "arm fast" */
    const char *where;   /* its first line */
    struct kg_serve_arm *arm;
    struct kg_conf *own; /* the configuration with what the arm overrides */
    struct kg_choice *spec;
};

bool kg_config_is_arm(const char *section)
{
    return strncmp(section, PREFIX, PREFIX_LEN) == 0;
}

static bool name_is_good(const char *s)
{
    size_t n = strlen(s);

    return n > 0 && n < 32 && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") == n;
}

/* The row of the core that has this key, ARM ones before others; *section says where. */
static const struct kg_opt *core_row(const char *key, const struct kg_section **section)
{
    const struct kg_opt *any = NULL;

    for (const struct kg_section *s = kg_conf_sections; s->name != NULL; s++) {
        const struct kg_opt *row = kg_opt_find(s->rows, key);
        if (row == NULL || (any != NULL && (row->flags & KG_OPT_ARM) == 0))
            continue;
        any = row;
        *section = s;
        if ((row->flags & KG_OPT_ARM) != 0)
            break;
    }
    return any;
}

/* Whether a row of a plugin may stand in an arm: names of the arm and of the core go first. */
static bool is_for_plugin(const struct kg_opt *row)
{
    const struct kg_section *s;
    const struct kg_opt *core = core_row(row->name, &s);

    return (row->flags & KG_OPT_ARM) != 0 && kg_opt_find(kg_arm_rows, row->name) == NULL &&
           (core == NULL || (core->flags & KG_OPT_ARM) == 0);
}

/* The keys an arm may have, "share, class, spec, ...". */
static void put_keys(const struct kg_opt *plugin_rows, struct kg_buf *b)
{
    for (const struct kg_opt *row = kg_arm_rows; row->name != NULL; row++)
        (void)kg_buf_printf(b, "%s, ", row->name);
    for (const struct kg_section *s = kg_conf_sections; s->name != NULL; s++) {
        for (const struct kg_opt *row = s->rows; row->name != NULL; row++) {
            if ((row->flags & KG_OPT_ARM) != 0)
                (void)kg_buf_printf(b, "%s, ", row->name);
        }
    }
    for (const struct kg_opt *row = plugin_rows; row != NULL && row->name != NULL; row++) {
        if ((row->flags & KG_OPT_ARM) != 0)
            (void)kg_buf_printf(b, "%s, ", row->name);
    }
    if (b->len >= 2)
        b->data[b->len -= 2] = '\0';
}

static void blame_key(const struct reading *r, const struct kg_entry *e)
{
    const struct kg_section *s = NULL;
    const struct kg_plugin *p = r->spec->ref.plugin;
    struct kg_buf keys;

    if (core_row(e->key, &s) != NULL) {
        kg_config_blame(r->config, e->where,
                        "[%s] %s: [%s] %s is the same for all arms, which share one engine; to "
                        "compare two of them run kedge ab",
                        r->section, e->key, s->name, e->key);
        return;
    }
    kg_buf_init(&keys, 4096);
    put_keys(p != NULL ? p->opts : NULL, &keys);
    kg_config_blame(
        r->config, e->where,
        "[%s] %s: no such key of an arm, which may set %s%s; what belongs to the engine "
        "is compared by kedge ab",
        r->section, e->key, kg_buf_cstr(&keys),
        p != NULL && p->opts == NULL ? ", and with another spec its options" : "");
    kg_buf_fini(&keys);
}

static void parse(const struct reading *r, const struct kg_entry *e, const struct kg_opt *row,
                  void *conf)
{
    struct kg_error err = {0};

    if (kg_opt_parse(row, e->value, conf, &r->config->arena, &err) != KG_OK)
        kg_config_blame(r->config, e->where, "[%s] %s", r->section, err.text);
}

/* Rows of the arm itself and of the core; what is left for the plugin stays unused. */
static void read_core(struct reading *r)
{
    struct kg_config *c = r->config;

    for (size_t i = 0; i < c->n_entries; i++) {
        struct kg_entry *e = &c->entries[i];
        const struct kg_section *s = NULL;
        if (strcmp(e->section, r->section) != 0)
            continue;
        const struct kg_opt *row = kg_opt_find(kg_arm_rows, e->key);
        e->used = row != NULL || e->key[0] == '\0';
        if (row != NULL)
            parse(r, e, row, r->arm);
        if (e->used)
            continue;
        row = core_row(e->key, &s);
        e->used = row != NULL && (row->flags & KG_OPT_ARM) != 0;
        if (e->used)
            parse(r, e, row, (char *)r->own + s->offset);
    }
}

/* Options of a plugin for an arm. */
static int fill_spec(struct kg_config *c, const char *section, const struct kg_plugin *p,
                     struct kg_choice *choice)
{
    void *conf = kg_arena_zalloc(&c->arena, 1, p->conf_size + 1);
    struct kg_error err = {0};
    char own[80];

    if (conf == NULL || kg_opt_defaults(p->opts, conf, &c->arena, &err) != KG_OK)
        return KG_ENOMEM;
    (void)snprintf(own, sizeof(own), "%s-%s", kg_plugin_kind_name(p->kind), p->name);
    for (size_t i = 0; i < 2 * c->n_entries; i++) { /* the plugin's section, then the arm's */
        const struct kg_entry *e = &c->entries[i % c->n_entries];
        const char *from = i < c->n_entries ? own : section;
        const struct kg_opt *row =
            strcmp(e->section, from) == 0 ? kg_opt_find(p->opts, e->key) : NULL;
        /* A wrong value is blamed where its section is read. */
        if (row != NULL && (from == own || is_for_plugin(row)) &&
            kg_opt_parse(row, e->value, conf, &c->arena, &err) == KG_ENOMEM)
            return KG_ENOMEM;
    }
    choice->conf = p->conf_size > 0 ? conf : NULL;
    return KG_OK;
}

/* The arm's speculation plugin, with the options of its section and of the arm. */
static void read_spec(struct reading *r)
{
    struct kg_config *c = r->config;
    const struct kg_entry *e = kg_config_find(c, r->section, "spec");
    struct kg_error err = {0};

    r->spec->ref = c->choices[KG_KIND_SPEC].ref;
    if (e != NULL &&
        kg_plugin_load(c->plugin_dir, KG_KIND_SPEC, e->value, &r->spec->ref, &err) != KG_OK) {
        r->spec->ref.plugin = NULL;
        kg_config_blame(c, e->where, "[%s] spec = %.60s: %s", r->section, e->value, err.text);
    }
    const struct kg_plugin *p = r->spec->ref.plugin;
    if (p == NULL)
        return;
    if (fill_spec(c, r->section, p, r->spec) != KG_OK) {
        kg_config_blame(c, r->where, "[%s]: out of memory", r->section);
        return;
    }
    for (size_t i = 0; i < c->n_entries; i++) {
        struct kg_entry *k = &c->entries[i];
        if (strcmp(k->section, r->section) != 0 || k->used)
            continue;
        const struct kg_opt *row = kg_opt_find(p->opts, k->key);
        if (row == NULL || !is_for_plugin(row))
            continue;
        k->used = true;
        parse(r, k, row, (void *)(uintptr_t)r->spec->conf);
    }
}

/* Nobody else is to say anything about a section. */
static void use_all(struct kg_config *c, const char *section)
{
    for (size_t i = 0; i < c->n_entries; i++)
        c->entries[i].used |= strcmp(c->entries[i].section, section) == 0;
}

/* What an arm overrides, for people. */
static void tell_overrides(struct reading *r)
{
    struct kg_config *c = r->config;
    struct kg_buf b;

    kg_buf_init(&b, 1 << 16);
    for (size_t i = 0; i < c->n_entries; i++) {
        const struct kg_entry *e = &c->entries[i];
        if (strcmp(e->section, r->section) == 0 && e->key[0] != '\0' &&
            strcmp(e->key, "share") != 0)
            (void)kg_buf_printf(&b, "%s%s = %s", b.len > 0 ? ", " : "", e->key, e->value);
    }
    r->arm->overrides = kg_arena_strndup(&c->arena, kg_buf_cstr(&b), b.len);
    if (r->arm->overrides == NULL || b.rc != KG_OK)
        kg_config_blame(c, r->where, "[%s]: out of memory", r->section);
    kg_buf_fini(&b);
}

static void read_arm(struct kg_config *c, const struct kg_entry *first)
{
    struct kg_arms_conf *arms = &c->conf.arms;
    const char *name = first->section + PREFIX_LEN;
    struct kg_error err = {0};

    if (!name_is_good(name)) {
        kg_config_blame(c, first->where, "[%s]: the name of an arm has at most 31 of a-z 0-9 _ -",
                        first->section);
        use_all(c, first->section);
        return;
    }
    if (arms->n == KG_MAX_ARMS) {
        kg_config_blame(c, first->where, "[%s]: more than %u arms", first->section, KG_MAX_ARMS);
        use_all(c, first->section);
        return;
    }
    uint32_t at = arms->n++;
    struct reading r = {c,
                        first->section,
                        first->where,
                        &arms->arms[at],
                        malloc(sizeof(*r.own)),
                        &c->arm_specs[at]};
    r.arm->name = name;
    if (r.own == NULL || kg_opt_defaults(kg_arm_rows, r.arm, &c->arena, &err) != KG_OK) {
        kg_config_blame(c, first->where, "out of memory");
        free(r.own);
        return;
    }
    *r.own = c->conf;
    read_core(&r);
    read_spec(&r);
    for (size_t i = 0; i < c->n_entries; i++) {
        struct kg_entry *e = &c->entries[i];
        if (strcmp(e->section, r.section) == 0 && !e->used)
            blame_key(&r, e);
    }
    use_all(c, r.section);
    if (kg_config_find(c, r.section, "share") == NULL)
        kg_config_blame(c, r.where, "[%s] share is missing: the percentage of the keys it gets",
                        r.section);
    tell_overrides(&r);
    const struct kg_engine_conf *o = &r.own->engine;
    c->conf.arm_rules[at] = (struct kg_engine_arm){
        .name = name,
        .salt = arms->share_cache ? 0 : kg_arms_key(name, strlen(name), 1),
        .checkpoint = o->checkpoint,
        .interval = o->interval,
        .lifetime = o->lifetime,
        .accept = o->accept,
    };
    free(r.own);
}

/* What holds for all arms together. */
static void check_arms(struct kg_config *c)
{
    const struct kg_arms_conf *a = &c->conf.arms;
    const struct kg_entry *field = kg_config_find(c, "arms", "field");
    enum kg_arms_field what;
    const char *header;
    struct kg_error err = {0};

    if (kg_arms_field_parse(a->field, &what, &header) != KG_OK)
        kg_config_blame(c, field != NULL ? field->where : "default",
                        "[arms] field = %s: wanted user, tenant, request or header:NAME", a->field);
    for (uint32_t i = 0; i < a->n; i++) {
        const char *name = a->arms[i].class_name;
        size_t n = 0;
        while (name[n] > ' ' && name[n] <= '~')
            n++;
        if (n > 31 || name[n] != '\0')
            kg_config_blame(c, "config",
                            "[arm %s] class: a name has at most 31 visible ASCII characters",
                            a->arms[i].name);
    }
    if (a->n == 1)
        kg_config_blame(c, "config",
                        "[arm %s] is the only arm: a comparison needs another one, which may "
                        "override nothing",
                        a->arms[0].name);
    if (a->n > 1 && kg_arms_check_shares(a->arms, a->n, &err) != KG_OK)
        kg_config_blame(c, "config", "[arm NAME] share: %s", err.text);
    for (size_t i = 0; a->n == 0 && i < c->n_entries; i++) {
        if (strcmp(c->entries[i].section, "arms") == 0) {
            kg_config_warn(c, c->entries[i].where, "[arms]: no effect without [arm NAME] sections");
            break;
        }
    }
}

void kg_config_arms(struct kg_config *c)
{
    for (size_t i = 0; i < c->n_entries; i++) {
        const struct kg_entry *e = &c->entries[i];
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++)
            seen = strcmp(c->entries[k].section, e->section) == 0;
        if (kg_config_is_arm(e->section) && !seen)
            read_arm(c, e);
    }
    if (!c->failed)
        check_arms(c);
}

const struct kg_choice *kg_config_arm_choice(const struct kg_config *config, uint32_t arm)
{
    return &config->arm_specs[arm < KG_MAX_ARMS ? arm : 0];
}

int kg_config_arm_plugin(struct kg_config *config, uint32_t arm, const char *name,
                         struct kg_choice *choice, struct kg_error *err)
{
    struct kg_choice got = {0};
    char section[80];
    int rc = kg_config_plugin(config, KG_KIND_SPEC, name, &got, err);

    if (rc != KG_OK)
        return rc;
    (void)snprintf(section, sizeof(section), PREFIX "%s", config->conf.arms.arms[arm].name);
    rc = fill_spec(config, section, got.ref.plugin, &got);
    if (rc != KG_OK)
        return kg_fail(err, rc, "out of memory");
    *choice = got;
    return KG_OK;
}
