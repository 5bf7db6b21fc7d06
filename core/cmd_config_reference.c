/* kedge config-reference: all options as Markdown, from the rows that parse them. */
#include "cmd.h"

int kg_cmd_config_reference(int argc, char **argv)
{
    struct kg_cmd_line line;
    struct kg_error err = {0};
    struct kg_buf out;
    char found[KG_PLUGIN_PATH];
    const char *dir = NULL;
    const struct kg_cmd_flag flags[] = {
        {"--plugins", "DIR", "folder of plugins instead of the default one", &dir, NULL},
        {0},
    };

    int rc = kg_cmd_parse(&line, argc, argv, "kedge config-reference [--plugins DIR]",
                          "Prints the reference of all options as Markdown.", flags, 0);
    if (rc >= 0)
        return rc;
    if (dir == NULL && kg_plugin_default_dir(found, &err) == KG_OK)
        dir = found;
    kg_buf_init(&out, 4 << 20);
    rc = kg_config_reference(dir, &out, &err);
    if (rc == KG_OK)
        (void)fwrite(kg_buf_cstr(&out), 1, out.len, stdout);
    kg_buf_fini(&out);
    return rc == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&err);
}
