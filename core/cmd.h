/*
 * Commands of the kedge binary. Each lives in a file cmd_NAME.c and is a row in main.c; it gets
 * argv from its own name on and returns the exit status: 0 ok, 1 failed, 2 bad usage or
 * configuration.
 */
#ifndef KEDGE_CORE_CMD_H
#define KEDGE_CORE_CMD_H

#include "base/buf.h"
#include "config.h"

enum { KG_EXIT_OK = 0, KG_EXIT_FAILED = 1, KG_EXIT_USAGE = 2 };

int kg_cmd_serve(int argc, char **argv);
int kg_cmd_run(int argc, char **argv);
int kg_cmd_check(int argc, char **argv);
int kg_cmd_bench_serve(int argc, char **argv); /* kedge bench serve ... */
int kg_cmd_bench_step(int argc, char **argv);  /* kedge bench step ... */
int kg_cmd_bench_index(int argc, char **argv); /* kedge bench index ... */
int kg_cmd_bench_comm(int argc, char **argv);  /* kedge bench comm ... */
int kg_cmd_replay(int argc, char **argv);
int kg_cmd_ab(int argc, char **argv);
int kg_cmd_advise(int argc, char **argv);
/* kedge ab --log FILE ..., and whether a line is that. */
int kg_cmd_ab_log(int argc, char **argv);
int kg_cmd_ab_has_log(int argc, char **argv);
int kg_cmd_plugins(int argc, char **argv);
int kg_cmd_config_reference(int argc, char **argv);
int kg_cmd_tokenize(int argc, char **argv);
int kg_cmd_version(int argc, char **argv);

/* A flag of one command beside the common ones. Exactly one of the two pointers is set. */
struct kg_cmd_flag {
    const char *name;    /* "--prompt" */
    const char *metavar; /* "TEXT", for usage; NULL for a switch */
    const char *doc;     /* one line */
    const char *
        *value; /* gets the argument (--prompt TEXT or --prompt=TEXT), unchanged if absent */
    int *on;    /* set to 1 */
};

#define KG_CMD_SETS 64

/* The parsed line. Pointers are argv's. */
struct kg_cmd_line {
    const char *conf; /* -c FILE, --config FILE; NULL without */
    const char *sets[KG_CMD_SETS];
    int n_sets;
    int json;    /* --json */
    int quiet;   /* set by a command that prints the warnings of the configuration itself */
    char **rest; /* [n_rest] other arguments, in order; inside argv */
    int n_rest;
};

/*
 * Parses argv[1..]. `usage` is the first line of the help ("kedge run -c FILE [TEXT]"), `about`
 * one sentence. flags ends with a row without a name, or is NULL. Arguments that begin with '-'
 * and are no flag are an error; after "--" everything is rest. max_rest: most other arguments.
 *
 * Returns -1 to go on, or the exit status: --help was printed (0), the line is wrong (2).
 */
int kg_cmd_parse(struct kg_cmd_line *line, int argc, char **argv, const char *usage,
                 const char *about, const struct kg_cmd_flag *flags, int max_rest);

/* Says on stderr that the argument `text` of `flag` is not what was `wanted`; KG_EXIT_USAGE. */
int kg_cmd_bad(const char *flag, const char *text, const char *wanted);
/* The argument of a flag as a whole number lo .. hi, with a suffix k, m, g if any; *v stays when
 * text is NULL (not given). Returns -1 to go on, or KG_EXIT_USAGE after saying why. */
int kg_cmd_whole(const char *flag, const char *text, uint64_t lo, uint64_t hi, uint64_t *v);
/* The same for a number lo .. hi. */
int kg_cmd_real(const char *flag, const char *text, double lo, double hi, double *v);

/* Prints a list of mistakes or warnings on stderr, a line each: "error: a.ini:3: ...". */
void kg_cmd_say(const char *word, const char *lines);

/*
 * Reads and finishes the configuration of the line (defaults alone without -c) and prints all
 * mistakes on stderr. Returns -1 and *config to go on, or the exit status.
 */
int kg_cmd_config(const struct kg_cmd_line *line, struct kg_config **config);

/* -1, or KG_EXIT_USAGE after saying that `command` knows no arms, when the configuration has some.
 */
int kg_cmd_no_arms(const struct kg_config *config, const char *command);

/* Writes what is in b to a file, "-" for standard output. The error b kept, or KG_EIO; the text
 * names the file. */
KG_CHECKED int kg_cmd_save(const char *path, const struct kg_buf *b, struct kg_error *err);

/* Prints "kedge: TEXT" of an error on stderr; the exit status that fits its rc. */
int kg_cmd_fail(const struct kg_error *err);

#endif
