/* kedge check: what a configuration will do, or why it cannot work. */
#include "check.h"
#include "cmd.h"
#include "engine/cost.h"
#include "text/tokenizer.h"
#include "trace_flags.h"

#include <errno.h>
#include <string.h>

/* What the line asks for beside the report itself. */
struct wish {
    const char *cost; /* file for step times, NULL none */
    struct kg_trace_flags trace;
    struct kg_trace_conf read;
    uint64_t length, states; /* --mean-length, 0 none; --states */
};

/* The backend's step times into a file for [engine] cost. */
static int write_cost(struct kg_stack *stack, const char *path, struct kg_error *err)
{
    const struct kg_plugin *p = kg_config_choice(stack->config, KG_KIND_EXEC)->ref.plugin;
    const struct kg_engine_conf *e = &stack->conf->engine;
    char about[160];

    int rc = kg_stack_engine(stack, err);
    if (rc != KG_OK)
        return rc;
    (void)snprintf(about, sizeof(about), "exec-%s %s, up to %u sequences and %u rows", p->name,
                   p->version, e->max_seqs, e->step_tokens);
    FILE *f = fopen(path, "w");
    if (f == NULL)
        return kg_fail(err, KG_EIO, "%.150s: %s", path, strerror(errno));
    rc = kg_cost_write(kg_engine_cost(stack->engine), about, f);
    if (fclose(f) != 0 || rc != KG_OK)
        return kg_fail(err, KG_EIO, "%.150s: %s", path, strerror(errno));
    return KG_OK;
}

/* Reads the vocabulary as kedge serve will. KG_OK also when the folder has none: simulations need
 * none; then *missing says so. */
static int try_vocabulary(const char *path, struct kg_error *missing, struct kg_error *err)
{
    struct kg_tok *tok = NULL;
    int rc = path[0] != '\0' ? kg_tok_open(path, &tok, err) : KG_OK;

    kg_tok_close(tok);
    if (rc == KG_ENOENT) {
        *missing = *err;
        return KG_OK;
    }
    return rc;
}

static int look_at_trace(struct kg_check *check, const struct wish *wish, struct kg_error *err)
{
    int rc = kg_check_trace_read(wish->trace.trace, &wish->read, check->layout.page_tokens,
                                 check->stack->conf->engine.interval, &check->trace, err);

    if (rc == KG_OK)
        kg_check_trace_warn(check);
    return rc;
}

static int report(struct kg_config *config, int json, const struct wish *wish)
{
    struct kg_error err = {0}, missing = {0};
    struct kg_stack *stack;
    struct kg_check check;
    struct kg_buf out;

    int rc = try_vocabulary(kg_config_conf(config)->model_path, &missing, &err);
    if (rc == KG_OK)
        rc = kg_stack_open(config, &stack, &err);
    if (rc != KG_OK)
        return kg_cmd_fail(&err);
    rc = kg_check_gather(&check, config, stack, (uint32_t)wish->length, (uint32_t)wish->states,
                         &err);
    if (rc == KG_OK && missing.rc != KG_OK)
        (void)kg_buf_printf(&check.warnings, "no vocabulary, kedge serve will refuse: %s\n",
                            missing.text);
    if (rc == KG_OK)
        kg_check_parallel_warn(&check);
    if (rc == KG_OK && wish->trace.trace != NULL)
        rc = look_at_trace(&check, wish, &err);
    if (rc == KG_OK && wish->cost != NULL)
        rc = write_cost(stack, wish->cost, &err);
    if (rc == KG_OK) {
        kg_buf_init(&out, 4 << 20);
        if (json)
            kg_check_json(&check, &out);
        else
            kg_check_text(&check, &out);
        (void)fwrite(kg_buf_cstr(&out), 1, out.len, stdout);
        kg_buf_fini(&out);
    }
    kg_check_trace_fini(&check.trace);
    kg_check_fini(&check);
    kg_stack_close(stack);
    return rc == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&err);
}

int kg_cmd_check(int argc, char **argv)
{
    struct kg_cmd_line line;
    struct kg_config *config;
    struct kg_buf values;
    const char *length = NULL, *states = NULL;
    struct wish wish = {.states = 1};
    int show = 0;
    const struct kg_cmd_flag flags[] = {
        {"--write-cost", "FILE", "measure what steps take, into a file for [engine] cost",
         &wish.cost, NULL},
        {"--mean-length", "N", "tokens of a request: how many fit, how to cut a split", &length,
         NULL},
        {"--states", "N", "with --mean-length: states a request holds, cached ones too (1)",
         &states, NULL},
        KG_TRACE_FLAG_ROWS(&wish.trace,
                           "what a trace repeats, and what [prefix] interval loses of it"),
        {"--values", NULL, "print every effective value and where it comes from", NULL, &show},
        {0},
    };

    int rc =
        kg_cmd_parse(&line, argc, argv,
                     "kedge check -c FILE [--json] [--values] [--mean-length N] [--trace FILE]",
                     "Says what a configuration will do, warns of what silently costs, and "
                     "refuses what cannot work.",
                     flags, 0);
    if (rc >= 0)
        return rc;
    rc = kg_cmd_whole("--mean-length", length, 1, UINT32_MAX - 1, &wish.length);
    rc = rc >= 0 ? rc : kg_cmd_whole("--states", states, 1, 65536, &wish.states);
    rc = rc >= 0 ? rc : kg_trace_flags_read(&wish.trace, &wish.read);
    if (rc >= 0)
        return rc;
    if (wish.cost != NULL && line.n_sets == KG_CMD_SETS) {
        (void)fputs("kedge: too many --set\n", stderr);
        return KG_EXIT_USAGE;
    }
    if (wish.cost != NULL)
        line.sets[line.n_sets++] = "engine.cost=measured";
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
    rc = report(config, line.json, &wish);
    kg_config_destroy(config);
    return rc;
}
