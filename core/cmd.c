#include "cmd.h"

#include "base/num.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_flag(const char *left, const char *doc)
{
    (void)printf("  %-28s %s\n", left, doc);
}

static void print_help(const char *usage, const char *about, const struct kg_cmd_flag *flags)
{
    char left[100];

    (void)printf("usage: %s\n\n%s\n\n", usage, about);
    print_flag("-c, --config FILE", "configuration; without it the defaults");
    print_flag("--set SECTION.KEY=VALUE", "override one option; may be repeated");
    print_flag("--json", "print for programs, where the command prints a report");
    for (; flags != NULL && flags->name != NULL; flags++) {
        (void)snprintf(left, sizeof(left), "%s%s%s", flags->name, flags->metavar != NULL ? " " : "",
                       flags->metavar != NULL ? flags->metavar : "");
        print_flag(left, flags->doc);
    }
    print_flag("-h, --help", "this text");
}

static int bad_line(const char *usage, const char *why, const char *what)
{
    (void)fprintf(stderr, "kedge: %s \"%.100s\"\nusage: %s\n", why, what, usage);
    return KG_EXIT_USAGE;
}

/* Whether arg is the flag; *value is what follows '=', NULL when nothing does. */
static int is_flag(const char *arg, const char *name, const char **value)
{
    size_t n = strlen(name);

    if (strncmp(arg, name, n) != 0 || (arg[n] != '\0' && arg[n] != '='))
        return 0;
    *value = arg[n] == '=' ? arg + n + 1 : NULL;
    return 1;
}

static const struct kg_cmd_flag *find_flag(const struct kg_cmd_flag *flags, const char *arg,
                                           const char **value)
{
    for (; flags != NULL && flags->name != NULL; flags++) {
        if (is_flag(arg, flags->name, value))
            return flags;
    }
    return NULL;
}

/* One flag, common or the command's own; *i moves past its value. -1 to go on. */
static int take_flag(struct kg_cmd_line *line, int argc, char **argv, int *i, const char *usage,
                     const struct kg_cmd_flag *flags)
{
    const char *set = NULL;
    const struct kg_cmd_flag common[] = {
        {"-c", "FILE", "", &line->conf, NULL},
        {"--config", "FILE", "", &line->conf, NULL},
        {"--set", "ASSIGNMENT", "", &set, NULL},
        {"--json", NULL, "", NULL, &line->json},
        {0},
    };
    const char *value = NULL;

    const struct kg_cmd_flag *f = find_flag(common, argv[*i], &value);
    if (f == NULL)
        f = find_flag(flags, argv[*i], &value);
    if (f == NULL)
        return bad_line(usage, "unknown flag", argv[*i]);
    if (f->metavar == NULL) {
        if (value != NULL)
            return bad_line(usage, "this flag takes no value:", argv[*i]);
        *f->on = 1;
        return -1;
    }
    if (value == NULL) {
        if (*i + 1 >= argc)
            return bad_line(usage, "a value is missing behind", argv[*i]);
        value = argv[++*i];
    }
    *f->value = value;
    if (set == NULL)
        return -1;
    if (line->n_sets == KG_CMD_SETS)
        return bad_line(usage, "too many --set, at", set);
    line->sets[line->n_sets++] = set;
    return -1;
}

int kg_cmd_parse(struct kg_cmd_line *line, int argc, char **argv, const char *usage,
                 const char *about, const struct kg_cmd_flag *flags, int max_rest)
{
    int plain = 0;

    memset(line, 0, sizeof(*line));
    line->rest = argv + 1; /* gathered in place: never ahead of the reader */
    for (int i = 1; i < argc; i++) {
        char *arg = argv[i];
        if (!plain && strcmp(arg, "--") == 0) {
            plain = 1;
        } else if (!plain && (strcmp(arg, "-h") == 0 || strcmp(arg, "--help") == 0)) {
            print_help(usage, about, flags);
            return KG_EXIT_OK;
        } else if (!plain && arg[0] == '-' && arg[1] != '\0') {
            int rc = take_flag(line, argc, argv, &i, usage, flags);
            if (rc >= 0)
                return rc;
        } else {
            if (line->n_rest == max_rest)
                return bad_line(usage, "unexpected argument", arg);
            line->rest[line->n_rest++] = arg;
        }
    }
    return -1;
}

void kg_cmd_say(const char *word, const char *lines)
{
    while (*lines != '\0') {
        size_t n = strcspn(lines, "\n");
        (void)fprintf(stderr, "%s: %.*s\n", word, (int)n, lines);
        lines += n + (lines[n] == '\n');
    }
}

int kg_cmd_config(const struct kg_cmd_line *line, struct kg_config **config)
{
    struct kg_config *c;

    if (kg_config_create(&c) != KG_OK) {
        (void)fputs("kedge: out of memory\n", stderr);
        return KG_EXIT_FAILED;
    }
    if (line->conf != NULL)
        (void)kg_config_read(c, line->conf);
    for (int i = 0; i < line->n_sets; i++)
        (void)kg_config_set(c, line->sets[i]);
    int rc = kg_config_finish(c);
    if (!line->quiet || rc != KG_OK)
        kg_cmd_say("warning", kg_config_warnings(c));
    if (rc != KG_OK) {
        kg_cmd_say("error", kg_config_errors(c));
        kg_config_destroy(c);
        return KG_EXIT_USAGE;
    }
    *config = c;
    return -1;
}

int kg_cmd_fail(const struct kg_error *err)
{
    (void)fprintf(stderr, "kedge: %s\n", err->text);
    return err->rc == KG_ECONFIG || err->rc == KG_EABI || err->rc == KG_ENOENT ? KG_EXIT_USAGE
                                                                               : KG_EXIT_FAILED;
}

int kg_cmd_save(const char *path, const struct kg_buf *b, struct kg_error *err)
{
    if (b->rc != KG_OK)
        return kg_fail(err, b->rc, "%s: no memory for what is to be written", path);
    FILE *f = strcmp(path, "-") == 0 ? stdout : fopen(path, "wb");
    if (f == NULL)
        return kg_fail(err, KG_EIO, "%s: %s", path, strerror(errno));
    size_t n = b->len > 0 ? fwrite(b->data, 1, b->len, f) : 0;
    int closed = f == stdout ? fflush(f) : fclose(f);
    return n == b->len && closed == 0 ? KG_OK
                                      : kg_fail(err, KG_EIO, "%s: %s", path, strerror(errno));
}

int kg_cmd_bad(const char *flag, const char *text, const char *wanted)
{
    (void)fprintf(stderr, "kedge: %s \"%.60s\": wanted %s\n", flag, text, wanted);
    return KG_EXIT_USAGE;
}

int kg_cmd_whole(const char *flag, const char *text, uint64_t lo, uint64_t hi, uint64_t *v)
{
    char wanted[60];
    uint64_t n;

    if (text == NULL) {
        return -1;
    }
    if (kg_num_u64_suffix(text, &n) != KG_OK || n < lo || n > hi) {
        (void)snprintf(wanted, sizeof(wanted), "%llu .. %llu", (unsigned long long)lo,
                       (unsigned long long)hi);
        return kg_cmd_bad(flag, text, wanted);
    }
    *v = n;
    return -1;
}

int kg_cmd_real(const char *flag, const char *text, double lo, double hi, double *v)
{
    char wanted[60];
    double d;

    if (text == NULL) {
        return -1;
    }
    if (kg_num_f64(text, &d) != KG_OK || !(d >= lo && d <= hi)) {
        (void)snprintf(wanted, sizeof(wanted), "a number from %g to %g", lo, hi);
        return kg_cmd_bad(flag, text, wanted);
    }
    *v = d;
    return -1;
}

int kg_cmd_no_arms(const struct kg_config *config, const char *command)
{
    if (kg_config_conf(config)->arms.n == 0)
        return -1;
    (void)fprintf(stderr,
                  "kedge: %s: [arm NAME] sections split the requests of a server; here, compare "
                  "two configurations with kedge ab\n",
                  command);
    return KG_EXIT_USAGE;
}
