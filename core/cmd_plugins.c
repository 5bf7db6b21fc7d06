/* kedge plugins: what there is, what it can do, how it is set, or why it was refused. */
#include "cmd.h"
#include "opt.h"

#include <string.h>

struct printer {
    struct kg_buf *out;
    int json, first, refused;
};

static void json_options(const struct kg_plugin *p, struct kg_buf *b)
{
    struct kg_buf wanted;

    (void)kg_buf_puts(b, ",\"options\":[");
    for (const struct kg_opt *o = p->opts; o != NULL && o->name != NULL; o++) {
        kg_buf_init(&wanted, 1000);
        kg_opt_wanted(o, &wanted);
        (void)kg_buf_puts(b, o == p->opts ? "{" : ",{");
        kg_buf_key_str(b, "name", o->name);
        kg_buf_key_str(b, "default", o->def);
        kg_buf_key_str(b, "legal", kg_buf_cstr(&wanted));
        kg_buf_key_str(b, "doc", o->doc);
        (void)kg_buf_putc(b, '}');
        kg_buf_fini(&wanted);
    }
    (void)kg_buf_putc(b, ']');
}

static void json_caps(const struct kg_plugin *p, struct kg_buf *b)
{
    const char *comma = "";

    (void)kg_buf_puts(b, ",\"caps\":[");
    for (uint64_t left = p->caps; left != 0; left &= left - 1) {
        struct kg_buf word;
        kg_buf_init(&word, 100);
        kg_plugin_caps(p->kind, left & (0 - left), &word);
        (void)kg_buf_puts(b, comma);
        (void)kg_buf_json_str(b, kg_buf_cstr(&word), word.len);
        kg_buf_fini(&word);
        comma = ",";
    }
    (void)kg_buf_putc(b, ']');
}

static void visit_json(struct printer *pr, uint32_t kind, const char *name,
                       const struct kg_plugin_ref *ref, const struct kg_error *err)
{
    struct kg_buf *b = pr->out;

    (void)kg_buf_puts(b, pr->first ? "{" : ",\n{");
    kg_buf_key_str(b, "kind", kg_plugin_kind_name(kind));
    kg_buf_key_str(b, "name", name);
    if (ref == NULL) {
        kg_buf_key_str(b, "refused", err->text);
    } else {
        const struct kg_plugin *p = ref->plugin;
        kg_buf_key_str(b, "version", p->version);
        (void)kg_buf_printf(b, ",\"abi\":\"%u.%u\"", p->major, p->minor);
        kg_buf_key_str(b, "summary", p->summary);
        kg_buf_key_str(b, "path", ref->path);
        json_caps(p, b);
        json_options(p, b);
    }
    (void)kg_buf_putc(b, '}');
}

static void visit_text(struct printer *pr, uint32_t kind, const char *name,
                       const struct kg_plugin_ref *ref, const struct kg_error *err)
{
    struct kg_buf *b = pr->out;

    if (ref == NULL) {
        (void)kg_buf_printf(b, "%-6s %-12s refused: %s\n", kg_plugin_kind_name(kind), name,
                            err->text);
        return;
    }
    const struct kg_plugin *p = ref->plugin;
    (void)kg_buf_printf(b, "%-6s %-12s %-8s %s\n", kg_plugin_kind_name(kind), name, p->version,
                        p->summary);
    (void)kg_buf_printf(b, "       from     %s\n", ref->path[0] != '\0' ? ref->path : "built in");
    (void)kg_buf_puts(b, "       can      ");
    if (p->caps != 0)
        kg_plugin_caps(kind, p->caps, b);
    else
        (void)kg_buf_puts(b, "-");
    (void)kg_buf_putc(b, '\n');
    for (const struct kg_opt *o = p->opts; o != NULL && o->name != NULL; o++) {
        (void)kg_buf_printf(b, "       option   %s = %s (", o->name, o->def);
        kg_opt_wanted(o, b);
        (void)kg_buf_puts(b, ")\n");
    }
}

static void visit(void *ctx, uint32_t kind, const char *name, const struct kg_plugin_ref *ref,
                  const struct kg_error *err)
{
    struct printer *pr = ctx;

    if (pr->json)
        visit_json(pr, kind, name, ref, err);
    else
        visit_text(pr, kind, name, ref, err);
    pr->first = 0;
    pr->refused += ref == NULL;
}

/* The folder of -c, of --set plugins.dir, or the default one. The rest of the file is not judged
 * here: a plugin that a file cannot use is what this command is asked about. */
static int choose_dir(const struct kg_cmd_line *line, struct kg_config *c, const char **dir)
{
    int rc;

    if (line->conf != NULL)
        (void)kg_config_read(c, line->conf);
    for (int i = 0; i < line->n_sets; i++)
        (void)kg_config_set(c, line->sets[i]);
    if (kg_config_errors(c)[0] != '\0') {
        kg_cmd_say("error", kg_config_errors(c));
        return KG_EXIT_USAGE;
    }
    rc = kg_config_finish(c); /* for the folder; what it finds wrong is shown per plugin below */
    (void)rc;
    *dir = kg_config_plugin_dir(c);
    return -1;
}

static int list(const char *dir, int json)
{
    struct kg_error err = {0};
    struct kg_buf out;
    struct printer pr = {.out = &out, .json = json, .first = 1};

    kg_buf_init(&out, 4 << 20);
    if (json)
        (void)kg_buf_putc(&out, '[');
    int rc = kg_plugin_scan(dir[0] != '\0' ? dir : NULL, visit, &pr, &err);
    if (json)
        (void)kg_buf_puts(&out, "]\n");
    (void)fwrite(kg_buf_cstr(&out), 1, out.len, stdout);
    kg_buf_fini(&out);
    if (rc != KG_OK)
        return kg_cmd_fail(&err);
    return pr.refused > 0 ? KG_EXIT_FAILED : KG_EXIT_OK;
}

int kg_cmd_plugins(int argc, char **argv)
{
    struct kg_cmd_line line;
    struct kg_config *config;
    const char *dir = "";

    int rc = kg_cmd_parse(&line, argc, argv, "kedge plugins [-c FILE] [--json]",
                          "Lists every plugin: kind, name, version, what it can do, its options, "
                          "or why it was refused (exit status 1 then).",
                          NULL, 0);
    if (rc >= 0)
        return rc;
    if (kg_config_create(&config) != KG_OK)
        return KG_EXIT_FAILED;
    rc = choose_dir(&line, config, &dir);
    if (rc < 0)
        rc = list(dir, line.json);
    kg_config_destroy(config);
    return rc;
}
