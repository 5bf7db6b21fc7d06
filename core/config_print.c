/* Configuration as text: effective values with their sources, and the reference of all options. */
#include "config_int.h"
#include "opt.h"

#include <string.h>

static bool is_secret(const char *section, const char *key)
{
    return strcmp(section, "server") == 0 && strcmp(key, "api_key") == 0;
}

static void dump_rows(const struct kg_config *c, const char *section, const struct kg_opt *rows,
                      struct kg_buf *b)
{
    if (rows == NULL || rows->name == NULL)
        return;
    (void)kg_buf_printf(b, "[%s]\n", section);
    for (; rows->name != NULL; rows++) {
        const struct kg_entry *e = kg_config_find(c, section, rows->name);
        const char *value = e != NULL ? e->value : rows->def;
        if (is_secret(section, rows->name) && value[0] != '\0')
            value = "(set)";
        (void)kg_buf_printf(b, "%s = %s ; %s\n", rows->name, value,
                            e != NULL ? e->where : "default");
    }
    (void)kg_buf_putc(b, '\n');
}

/* "pool-unified" of a chosen plugin; false when the kind has none. */
static bool section_of(const struct kg_config *c, uint32_t kind, char section[80])
{
    const struct kg_plugin *p = c->choices[kind].ref.plugin;

    if (p != NULL)
        (void)snprintf(section, 80, "%s-%s", kg_plugin_kind_name(kind), p->name);
    return p != NULL;
}

/* What the arms say; their defaults are the values above. */
static void dump_arms(const struct kg_config *c, struct kg_buf *b)
{
    const char *section = "";

    for (size_t i = 0; i < c->n_entries; i++) {
        const struct kg_entry *e = &c->entries[i];
        if (!kg_config_is_arm(e->section))
            continue;
        if (strcmp(section, e->section) != 0)
            (void)kg_buf_printf(b, "%s[%s]\n", section[0] != '\0' ? "\n" : "", e->section);
        section = e->section;
        if (e->key[0] != '\0')
            (void)kg_buf_printf(b, "%s = %s ; %s\n", e->key, e->value, e->where);
    }
    if (section[0] != '\0')
        (void)kg_buf_putc(b, '\n');
}

void kg_config_dump(const struct kg_config *config, struct kg_buf *b)
{
    char section[80];

    for (const struct kg_section *s = kg_conf_sections; s->name != NULL; s++)
        dump_rows(config, s->name, s->rows, b);
    for (uint32_t kind = KG_KIND_POOL; kind < KG_PLUGIN_KINDS; kind++) {
        if (section_of(config, kind, section))
            dump_rows(config, section, config->choices[kind].ref.plugin->opts, b);
    }
    dump_arms(config, b);
}

/* Rows of a section, core or chosen plugin; NULL when there is no such section. */
static const struct kg_opt *rows_of(const struct kg_config *c, const char *section)
{
    char word[80];

    for (const struct kg_section *s = kg_conf_sections; s->name != NULL; s++) {
        if (strcmp(s->name, section) == 0)
            return s->rows;
    }
    for (uint32_t kind = KG_KIND_POOL; kind < KG_PLUGIN_KINDS; kind++) {
        if (section_of(c, kind, word) && strcmp(word, section) == 0)
            return c->choices[kind].ref.plugin->opts;
    }
    return NULL;
}

const char *kg_config_value(const struct kg_config *config, const char *section, const char *key,
                            const char **source)
{
    const struct kg_opt *row = kg_opt_find(rows_of(config, section), key);

    if (row == NULL)
        return NULL;
    const struct kg_entry *e = kg_config_find(config, section, key);
    if (source != NULL)
        *source = e != NULL ? e->where : "default";
    return e != NULL ? e->value : row->def;
}

/* A cell of a Markdown table: '|' would end it. */
static void put_cell(struct kg_buf *b, const char *s)
{
    for (; *s != '\0'; s++) {
        if (*s == '|')
            (void)kg_buf_puts(b, "\\|");
        else
            (void)kg_buf_putc(b, *s);
    }
}

static void put_row(struct kg_buf *b, const struct kg_opt *row)
{
    struct kg_buf wanted;

    kg_buf_init(&wanted, 1000);
    kg_opt_wanted(row, &wanted);
    (void)kg_buf_printf(b, "| `%s` | ", row->name);
    if (row->def[0] != '\0')
        (void)kg_buf_printf(b, "`%s`", row->def);
    (void)kg_buf_puts(b, " | ");
    put_cell(b, kg_buf_cstr(&wanted));
    (void)kg_buf_puts(b, " | ");
    put_cell(b, row->doc);
    if ((row->flags & KG_OPT_ARM) != 0)
        (void)kg_buf_puts(b, " An arm may override it.");
    (void)kg_buf_puts(b, " |\n");
    kg_buf_fini(&wanted);
}

/* An option of another section that an arm may override. */
static void put_override(struct kg_buf *b, const char *section, const struct kg_opt *row)
{
    struct kg_buf wanted;

    kg_buf_init(&wanted, 1000);
    kg_opt_wanted(row, &wanted);
    (void)kg_buf_printf(b, "| `%s` | as `[%s]` | ", row->name, section);
    put_cell(b, kg_buf_cstr(&wanted));
    (void)kg_buf_printf(b, " | In place of `[%s] %s`. |\n", section, row->name);
    kg_buf_fini(&wanted);
}

static void put_arm(struct kg_buf *b)
{
    (void)kg_buf_puts(b,
                      "### [arm NAME]\n\nAn arm of the server: requests that differ in the rules "
                      "below, and in options marked so of their speculation plugin, by their "
                      "own names. NAME has at most 31 of a-z 0-9 _ -.\n\n");
    (void)kg_buf_puts(b, "| key | default | legal | what it does |\n|---|---|---|---|\n");
    for (const struct kg_opt *row = kg_arm_rows; row->name != NULL; row++)
        put_row(b, row);
    for (const struct kg_section *s = kg_conf_sections; s->name != NULL; s++) {
        for (const struct kg_opt *row = s->rows; row->name != NULL; row++) {
            if ((row->flags & KG_OPT_ARM) != 0)
                put_override(b, s->name, row);
        }
    }
    (void)kg_buf_putc(b, '\n');
}

static void put_section(struct kg_buf *b, const char *name, const char *doc,
                        const struct kg_opt *rows)
{
    (void)kg_buf_printf(b, "### [%s]\n\n%s\n\n", name, doc);
    if (rows == NULL || rows->name == NULL) {
        (void)kg_buf_puts(b, "No options.\n\n");
        return;
    }
    (void)kg_buf_puts(b, "| key | default | legal | what it does |\n|---|---|---|---|\n");
    for (; rows->name != NULL; rows++)
        put_row(b, rows);
    (void)kg_buf_putc(b, '\n');
}

static void put_plugin(void *ctx, uint32_t kind, const char *name, const struct kg_plugin_ref *ref,
                       const struct kg_error *err)
{
    char section[80];

    (void)err;
    if (ref == NULL)
        return; /* kedge plugins says why; the reference is of what works */
    (void)snprintf(section, sizeof(section), "%s-%s", kg_plugin_kind_name(kind), name);
    put_section(ctx, section, ref->plugin->summary, ref->plugin->opts);
}

int kg_config_reference(const char *dir, struct kg_buf *b, struct kg_error *err)
{
    for (const struct kg_section *s = kg_conf_sections; s->name != NULL; s++)
        put_section(b, s->name, s->doc, s->rows);
    put_arm(b);
    int rc = kg_plugin_scan(dir, put_plugin, b, err);
    if (rc == KG_OK && b->rc != KG_OK)
        rc = kg_fail(err, b->rc, "configuration reference: out of memory");
    return rc;
}
