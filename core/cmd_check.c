/* kedge check: what a configuration will do, or why it cannot work. */
#include "check.h"
#include "cmd.h"

static int report(struct kg_config *config, int json)
{
    struct kg_error err = {0};
    struct kg_stack *stack;
    struct kg_check check;
    struct kg_buf out;

    int rc = kg_stack_open(config, &stack, &err);
    if (rc != KG_OK)
        return kg_cmd_fail(&err);
    rc = kg_check_gather(&check, config, stack, &err);
    if (rc == KG_OK) {
        kg_buf_init(&out, 4 << 20);
        if (json)
            kg_check_json(&check, &out);
        else
            kg_check_text(&check, &out);
        (void)fwrite(kg_buf_cstr(&out), 1, out.len, stdout);
        kg_buf_fini(&out);
    }
    kg_check_fini(&check);
    kg_stack_close(stack);
    return rc == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&err);
}

int kg_cmd_check(int argc, char **argv)
{
    struct kg_cmd_line line;
    struct kg_config *config;
    struct kg_buf values;
    int show = 0;
    const struct kg_cmd_flag flags[] = {
        {"--values", NULL, "print every effective value and where it comes from", NULL, &show},
        {0},
    };

    int rc = kg_cmd_parse(&line, argc, argv, "kedge check -c FILE [--json] [--values]",
                          "Says what a configuration will do, warns of what silently costs, and "
                          "refuses what cannot work.",
                          flags, 0);
    if (rc >= 0)
        return rc;
    line.quiet = 1; /* warnings are part of the report */
    rc = kg_cmd_config(&line, &config);
    if (rc >= 0)
        return rc;
    if (show) {
        kg_buf_init(&values, 4 << 20);
        kg_config_dump(config, &values);
        (void)fwrite(kg_buf_cstr(&values), 1, values.len, stdout);
        kg_buf_fini(&values);
    }
    rc = report(config, line.json);
    kg_config_destroy(config);
    return rc;
}
