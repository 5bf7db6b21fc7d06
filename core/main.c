/* argv -> command table. Each command is one file cmd_NAME.c beside this one. */
#include "cmd.h"

#include <signal.h>
#include <string.h>

struct command {
    const char *name, *sub; /* "bench" "serve"; sub is NULL for most */
    int (*run)(int argc, char **argv);
    const char *about;
};

static const struct command commands[] = {
    {"serve", NULL, kg_cmd_serve, "serve a model over HTTP"},
    {"run", NULL, kg_cmd_run, "complete one text on standard output"},
    {"check", NULL, kg_cmd_check, "say what a configuration will do, or why it cannot work"},
    {"replay", NULL, kg_cmd_replay, "run the core on a trace, simulated or real"},
    {"ab", NULL, kg_cmd_ab, "compare two configurations on one trace, request by request"},
    {"advise", NULL, kg_cmd_advise, "say which options to change for a trace, and what it gains"},
    {"bench", "serve", kg_cmd_bench_serve, "load a running server and report its figures"},
    {"bench", "step", kg_cmd_bench_step, "measure the engine's own time per step"},
    {"bench", "index", kg_cmd_bench_index, "measure the prefix index alone"},
    {"bench", "comm", kg_cmd_bench_comm, "measure sums over ranks by size and algorithm"},
    {"plugins", NULL, kg_cmd_plugins, "list plugins, their options, or why one was refused"},
    {"config-reference", NULL, kg_cmd_config_reference, "print all options as Markdown"},
    {"tokenize", NULL, kg_cmd_tokenize, "show the tokens of a text"},
    {"version", NULL, kg_cmd_version, "print the version"},
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

int kg_cmd_version(int argc, char **argv)
{
    struct kg_cmd_line line;
    int rc = kg_cmd_parse(&line, argc, argv, "kedge version", "Prints the version.", NULL, 0);

    if (rc >= 0)
        return rc;
    if (line.json)
        (void)printf("{\"version\":\"%s\"}\n", KG_VERSION);
    else
        (void)printf("kedge %s\n", KG_VERSION);
    return KG_EXIT_OK;
}

/* only: the name of those that are shown, NULL for all. */
static void print_commands(FILE *to, const char *only)
{
    (void)fputs("usage: kedge COMMAND [-c FILE] [--set SECTION.KEY=VALUE]... [ARGS]\n\n", to);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const struct command *c = &commands[i];
        char name[40];
        if (only != NULL && strcmp(c->name, only) != 0)
            continue;
        (void)snprintf(name, sizeof(name), "%s%s%s", c->name, c->sub != NULL ? " " : "",
                       c->sub != NULL ? c->sub : "");
        (void)fprintf(to, "  %-18s %s\n", name, c->about);
    }
    (void)fputs("\nkedge COMMAND --help says more. Exit status: 0 ok, 1 failed, 2 bad usage or "
                "configuration.\n",
                to);
}

static int is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* What a command printed and nobody could take is no success. */
static int flushed(int status)
{
    if ((fflush(stdout) == 0 && ferror(stdout) == 0) || status != KG_EXIT_OK)
        return status;
    (void)fputs("kedge: standard output cannot be written\n", stderr);
    return KG_EXIT_FAILED;
}

int main(int argc, char **argv)
{
    int known = 0;

    (void)signal(SIGPIPE, SIG_IGN); /* a reader that left is an error of the write */
    if (argc < 2) {
        print_commands(stderr, NULL);
        return KG_EXIT_USAGE;
    }
    if (is_help(argv[1]) || strcmp(argv[1], "help") == 0) {
        print_commands(stdout, NULL);
        return KG_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0)
        argv[1] = "version";
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const struct command *c = &commands[i];
        if (strcmp(argv[1], c->name) != 0)
            continue;
        known = 1;
        if (c->sub == NULL)
            return flushed(c->run(argc - 1, argv + 1));
        if (argc > 2 && strcmp(argv[2], c->sub) == 0)
            return flushed(c->run(argc - 2, argv + 2));
    }
    if (known && argc > 2 && is_help(argv[2])) {
        print_commands(stdout, argv[1]);
        return KG_EXIT_OK;
    }
    if (known)
        (void)fprintf(stderr, "kedge: %s needs one of the kinds below%s%.60s\n\n", argv[1],
                      argc > 2 ? ", not " : "", argc > 2 ? argv[2] : "");
    else
        (void)fprintf(stderr, "kedge: unknown command \"%.60s\"\n\n", argv[1]);
    print_commands(stderr, known ? argv[1] : NULL);
    return KG_EXIT_USAGE;
}
