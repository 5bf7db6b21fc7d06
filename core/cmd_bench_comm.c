/* kedge bench comm: how long a sum over ranks takes, by size, ranks and algorithm, here. */
#include "bench_comm.h"
#include "cmd.h"
#include "comm_times.h"
#include "opt.h"
#include "plugin.h"

#include "base/arena.h"
#include "base/num.h"
#include "ranks/boot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_WORLDS 8

/* The ways there are, in the order of the table: every algorithm of every plugin, and the plugin as
 * it chooses between them. What cannot run here is left out and says why. */
#define HOST "memory=host multicast=off "
#define CUDA "memory=cuda multicast=off "
#define MANY "memory=cuda push=1 multicast=on "
static const struct {
    const char *name, *plugin,
        *sets;   /* sets: KEY=VALUE, blank between, over the plugin's section */
    int device;  /* works on a device's memory, each rank on its own */
    int chooses; /* the plugin's own choice is shown */
    int alias;   /* it is one of those above at any size */
} ways[] = {
    {"plain", NULL, NULL, 0, 0, 0},
    {"push", "symmem", HOST "push=1m", 0, 0, 0},
    {"one-shot", "symmem", HOST "push=1 one_shot=1g", 0, 0, 0},
    {"two-shot", "symmem", HOST "push=1 one_shot=1", 0, 0, 0},
    {"symmem", "symmem", HOST, 0, 1, 1},
    {"cuda push", "symmem", CUDA "push=1m", 1, 0, 0},
    {"cuda two-shot", "symmem", CUDA "push=1", 1, 0, 0},
    {"multicast one-shot", "symmem", MANY "multicast_one_shot=1g", 1, 0, 0},
    {"multicast two-shot", "symmem", MANY "multicast_one_shot=0", 1, 0, 0},
    {"cuda symmem", "symmem", "memory=cuda", 1, 1, 1},
    {"nccl", "nccl", "windows=no", 1, 1, 0},
    {"nccl windows", "nccl", "windows=yes", 1, 1, 0},
};
#define N_WAYS (sizeof(ways) / sizeof(ways[0]))
_Static_assert(N_WAYS <= KG_BENCH_COMM_WAYS, "a column for each");
enum { WAY_PUSH = 1, WAY_ONE_SHOT, WAY_TWO_SHOT };

struct bench {
    struct kg_bench_comm b;
    uint32_t which[KG_BENCH_COMM_WAYS]; /* index into ways of each column */
    struct kg_bench_way all[N_WAYS]; /* as `ways`; conf: owned; plugin NULL where it is not here */
    struct kg_arena strings;
    uint32_t worlds[MAX_WORLDS], n_worlds;
    FILE *out; /* --out, NULL without */
    struct kg_error missing[N_WAYS];
};

static int set_options(struct bench *b, const struct kg_plugin *p, const char *sets, void *conf,
                       struct kg_error *err)
{
    char copy[100];
    char *rest = copy, *word;
    int rc = KG_OK;

    (void)snprintf(copy, sizeof(copy), "%s", sets != NULL ? sets : "");
    while (rc == KG_OK && (word = strsep(&rest, " ")) != NULL && *word != '\0') {
        char *value = strchr(word, '=');
        *value++ = '\0';
        const struct kg_opt *row = kg_opt_find(p->opts, word);
        rc = row == NULL ? kg_fail(err, KG_EABI, "comm-%s has no option \"%s\"", p->name, word)
                         : kg_opt_parse(row, value, conf, &b->strings, err);
    }
    return rc;
}

/* Whether the largest group has its devices: opened once, in processes, because a driver must not
 * be begun before a fork. */
static int try_device(struct bench *b, uint32_t way, const struct kg_bench_way *w)
{
    struct kg_bench_comm once = {.world = b->worlds[b->n_worlds - 1],
                                 .n_ways = 1,
                                 .n_sizes = 1,
                                 .repeats = 1,
                                 .calls = 1,
                                 .op = b->b.op,
                                 .ways = {*w},
                                 .sizes = {4}};

    return kg_bench_comm_run(&once, &b->missing[way]);
}

/* The plugin of a way with its options: those of its section, then the way's. KG_OK where there is
 * none too, with a word in `missing`. */
static int load_way(struct bench *b, uint32_t i, struct kg_config *config, struct kg_error *err)
{
    struct kg_bench_way *w = &b->all[i];
    struct kg_choice choice;

    w->name = ways[i].name;
    if (ways[i].plugin == NULL)
        return KG_OK;
    if (kg_config_plugin(config, KG_KIND_COMM, ways[i].plugin, &choice, &b->missing[i]) != KG_OK)
        return KG_OK;
    const struct kg_plugin *p = choice.ref.plugin;
    void *conf = calloc(1, p->conf_size + 1);
    if (conf == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    if (p->conf_size > 0)
        memcpy(conf, choice.conf, p->conf_size);
    w->plugin = p;
    w->conf = conf;
    return set_options(b, p, ways[i].sets, conf, err);
}

/* Loads what can be loaded; what finds no device is left out. */
static int find_ways(struct bench *b, struct kg_config *config, struct kg_error *err)
{
    int rc = KG_OK;

    for (uint32_t i = 0; i < N_WAYS && rc == KG_OK; i++) {
        rc = load_way(b, i, config, err);
        if (rc != KG_OK || b->missing[i].rc != KG_OK ||
            (ways[i].device && try_device(b, i, &b->all[i]) != KG_OK))
            continue;
        b->which[b->b.n_ways] = i;
        b->b.ways[b->b.n_ways++] = b->all[i];
    }
    return rc;
}

/* What way i of all does with size `size`, in its plugin's word; NULL for the plain way, a plugin
 * that is not here, and what it would refuse. */
static const char *word_of(const struct bench *b, uint32_t i, uint32_t size)
{
    const struct kg_bench_way *way = &b->all[i];
    const struct kg_comm_ops *ops = way->plugin != NULL ? way->plugin->ops : NULL;

    if (ops == NULL)
        return NULL;
    return KG_HAS(ops, struct kg_comm_ops, choose)
               ? ops->choose(way->conf, b->b.world, b->b.op, KG_F32,
                             b->b.sizes[size] / sizeof(float))
               : "own";
}

/* The quickest algorithm of all on devices; NULL: none was measured. */
static const char *quickest(const struct bench *b, uint32_t size)
{
    const char *name = NULL;
    double best = 0;

    for (uint32_t w = 0; w < b->b.n_ways; w++) {
        uint32_t i = b->which[w];
        double us = b->b.cells[size][w].p50_us;
        if (!ways[i].device || ways[i].alias || (name != NULL && us >= best))
            continue;
        name = ways[i].name;
        best = us;
    }
    return name;
}

/* By size what a way of all would do, or (way N_WAYS) what was quickest on devices, where it
 * changes. */
static void print_run(const struct bench *b, uint32_t way, const char *title)
{
    const char *last = NULL, *name;

    for (uint32_t i = 0; i < b->b.n_sizes; i++) {
        name = way < N_WAYS ? word_of(b, way, i) : quickest(b, i);
        if (name == NULL || (last != NULL && strcmp(name, last) == 0))
            continue;
        (void)printf("%s%s %s from %llu", last == NULL ? title : "", last == NULL ? ":" : ",", name,
                     (unsigned long long)b->b.sizes[i]);
        last = name;
    }
    if (last != NULL)
        (void)printf(" bytes\n");
}

static void print_runs(const struct bench *b)
{
    char title[60];

    for (uint32_t i = 0; i < N_WAYS; i++) {
        (void)snprintf(title, sizeof(title), "%s would choose", ways[i].name);
        if (ways[i].chooses)
            print_run(b, i, title);
    }
    print_run(b, N_WAYS, "quickest on devices");
}

static void json_runs(const struct bench *b)
{
    const char *comma = "";

    (void)fputs(",\"chooses\":{", stdout);
    for (uint32_t i = 0; i < N_WAYS; i++) {
        const char *last = NULL, *name;
        if (!ways[i].chooses || word_of(b, i, 0) == NULL)
            continue;
        (void)printf("%s\"%s\":[", comma, ways[i].name);
        for (uint32_t k = 0; k < b->b.n_sizes; k++) {
            name = word_of(b, i, k);
            if (name == NULL || (last != NULL && strcmp(name, last) == 0))
                continue;
            (void)printf("%s{\"from\":%llu,\"algorithm\":\"%s\"}", last == NULL ? "" : ",",
                         (unsigned long long)b->b.sizes[k], name);
            last = name;
        }
        (void)putchar(']');
        comma = ",";
    }
    (void)fputs("},\"not_measured\":[", stdout);
    comma = "";
    for (uint32_t i = 0; i < N_WAYS; i++) {
        if (b->missing[i].rc == KG_OK)
            continue;
        (void)printf("%s\"%s\"", comma, ways[i].name);
        comma = ",";
    }
    (void)putchar(']');
}

/* The largest size up to which a way is the fastest of three at every size; 0 for none. */
static uint64_t band(const struct bench *b, uint32_t way, uint32_t than)
{
    uint32_t a = KG_BENCH_COMM_WAYS, c = KG_BENCH_COMM_WAYS;
    uint64_t to = 0;

    for (uint32_t w = 0; w < b->b.n_ways; w++) {
        a = b->which[w] == way ? w : a;
        c = b->which[w] == than ? w : c;
    }
    if (a == KG_BENCH_COMM_WAYS || c == KG_BENCH_COMM_WAYS)
        return 0;
    for (uint32_t i = 0; i < b->b.n_sizes; i++) {
        if (b->b.cells[i][a].p50_us > b->b.cells[i][c].p50_us)
            break;
        to = b->b.sizes[i];
    }
    return to;
}

static void print_table(const struct bench *b)
{
    (void)printf("%s, F32, %u ranks (processes), microseconds: median (99 %%)\n%10s",
                 kg_comm_op_name(b->b.op), b->b.world, "bytes");
    for (uint32_t w = 0; w < b->b.n_ways; w++)
        (void)printf(" %18s", b->b.ways[w].name);
    (void)putchar('\n');
    for (uint32_t i = 0; i < b->b.n_sizes; i++) {
        (void)printf("%10llu", (unsigned long long)b->b.sizes[i]);
        for (uint32_t w = 0; w < b->b.n_ways; w++)
            (void)printf(" %8.2f (%7.1f)", b->b.cells[i][w].p50_us, b->b.cells[i][w].p99_us);
        (void)putchar('\n');
    }
    if (b->b.op == KG_COMM_ALL_REDUCE)
        (void)printf("measured bands: push up to %llu, one-shot up to %llu bytes, then two-shot\n",
                     (unsigned long long)band(b, WAY_PUSH, WAY_ONE_SHOT),
                     (unsigned long long)band(b, WAY_ONE_SHOT, WAY_TWO_SHOT));
    print_runs(b);
    (void)putchar('\n');
}

static void print_json(const struct bench *b, int first)
{
    (void)printf("%s{\"ranks\":%u,\"op\":\"%s\",\"dtype\":\"f32\",\"rows\":[", first ? "[" : ",",
                 b->b.world, kg_comm_op_name(b->b.op));
    for (uint32_t i = 0; i < b->b.n_sizes; i++) {
        (void)printf("%s{\"bytes\":%llu", i == 0 ? "" : ",", (unsigned long long)b->b.sizes[i]);
        for (uint32_t w = 0; w < b->b.n_ways; w++)
            (void)printf(",\"%s\":{\"p50_us\":%.3f,\"p99_us\":%.3f}", b->b.ways[w].name,
                         b->b.cells[i][w].p50_us, b->b.cells[i][w].p99_us);
        (void)putchar('}');
    }
    (void)putchar(']');
    json_runs(b);
    if (b->b.op == KG_COMM_ALL_REDUCE)
        (void)printf(",\"push_to\":%llu,\"one_shot_to\":%llu",
                     (unsigned long long)band(b, WAY_PUSH, WAY_ONE_SHOT),
                     (unsigned long long)band(b, WAY_ONE_SHOT, WAY_TWO_SHOT));
    (void)putchar('}');
}

/* "2,4" or "256,14k" as ascending numbers lo .. hi, at most `most`; their count, 0 when wrong. */
static uint32_t parse_list(const char *text, uint64_t lo, uint64_t hi, uint64_t *out, uint32_t most)
{
    char copy[300];
    char *rest = copy, *word;
    uint32_t n = 0;

    if (strlen(text) >= sizeof(copy))
        return 0;
    (void)snprintf(copy, sizeof(copy), "%s", text);
    while ((word = strsep(&rest, ",")) != NULL) {
        uint64_t v;
        if (n == most || kg_num_u64_suffix(word, &v) != KG_OK || v < lo || v > hi ||
            (n > 0 && v <= out[n - 1]))
            return 0;
        out[n++] = v;
    }
    return n;
}

/* Whether a later way does the same at this size: the plugin as it is comes last. */
static int again(const struct bench *b, uint32_t w, uint32_t i)
{
    const char *name = word_of(b, b->which[w], i), *other;

    for (uint32_t k = w + 1; k < b->b.n_ways; k++) {
        other = word_of(b, b->which[k], i);
        if (b->b.ways[k].plugin == b->b.ways[w].plugin && other != NULL && strcmp(name, other) == 0)
            return 1;
    }
    return 0;
}

static void write_times(const struct bench *b)
{
    for (uint32_t w = 0; w < b->b.n_ways; w++) {
        for (uint32_t i = 0; i < b->b.n_sizes; i++) {
            const char *name = word_of(b, b->which[w], i);
            if (name != NULL && !again(b, w, i))
                kg_comm_times_put(b->out, b->b.ways[w].plugin->name, name, b->b.op, b->b.world,
                                  b->b.sizes[i], b->b.cells[i][w].p50_us);
        }
    }
}

static int any_device(const struct bench *b)
{
    int any = 0;

    for (uint32_t w = 0; w < b->b.n_ways; w++)
        any |= ways[b->which[w]].device;
    return any;
}

static int open_out(struct bench *b, const char *path, struct kg_error *err)
{
    time_t now = time(NULL);
    struct tm day;

    b->out = fopen(path, "w");
    if (b->out == NULL)
        return kg_fail(err, KG_EIO, "%.150s: %s", path, strerror(errno));
    (void)gmtime_r(&now, &day);
    (void)fprintf(b->out,
                  "kedge-comm 1\n# kedge bench comm: medians of %u repeats of %u calls, F32, "
                  "processes\nabout host memory%s, %ld cores%s, %04d-%02d-%02d\n",
                  b->b.repeats, b->b.calls, any_device(b) ? " and devices" : "",
                  sysconf(_SC_NPROCESSORS_ONLN), b->b.pin ? ", ranks bound" : "",
                  day.tm_year + 1900, day.tm_mon + 1, day.tm_mday);
    return KG_OK;
}

static int close_out(struct bench *b, const char *path, int rc, struct kg_error *err)
{
    if (b->out == NULL)
        return rc;
    int bad = ferror(b->out);
    bad |= fclose(b->out) != 0;
    b->out = NULL;
    return rc == KG_OK && bad ? kg_fail(err, KG_EIO, "%.150s: %s", path, strerror(errno)) : rc;
}

/* Sums of every group, then with a file gathers. */
static int run_all(struct bench *b, const struct kg_cmd_line *line, struct kg_error *err)
{
    static const uint32_t ops[] = {KG_COMM_ALL_REDUCE, KG_COMM_ALL_GATHER};
    int rc = KG_OK, first = 1;

    for (uint32_t o = 0; o < (b->out != NULL ? 2 : 1); o++) {
        b->b.op = ops[o];
        for (uint32_t i = 0; i < b->n_worlds; i++) {
            b->b.world = b->worlds[i];
            rc = kg_bench_comm_run(&b->b, err);
            if (rc != KG_OK)
                return rc;
            if (line->json)
                print_json(b, first);
            else
                print_table(b);
            first = 0;
            if (b->out != NULL && b->b.world > 1)
                write_times(b);
        }
    }
    return rc;
}

static int measure(struct bench *b, const struct kg_cmd_line *line, struct kg_config *config,
                   const char *out)
{
    struct kg_error err = {0};

    int rc = find_ways(b, config, &err);
    if (rc == KG_OK && out != NULL)
        rc = open_out(b, out, &err);
    if (rc == KG_OK)
        rc = run_all(b, line, &err);
    rc = close_out(b, out, rc, &err);
    if (rc == KG_OK && line->json)
        (void)puts("]");
    for (uint32_t i = 0; i < N_WAYS && rc == KG_OK && !line->json; i++) {
        if (b->missing[i].rc != KG_OK)
            (void)printf("%s: not measured: %s\n", ways[i].name, b->missing[i].text);
    }
    for (uint32_t i = 0; i < N_WAYS; i++)
        free((void *)(uintptr_t)b->all[i].conf);
    return rc == KG_OK ? KG_EXIT_OK : kg_cmd_fail(&err);
}

/* Sizes are those of whole floats. */
static int whole_floats(const struct kg_bench_comm *b)
{
    for (uint32_t i = 0; i < b->n_sizes; i++) {
        if (b->sizes[i] % sizeof(float) != 0)
            return 0;
    }
    return 1;
}

int kg_cmd_bench_comm(int argc, char **argv)
{
    const char *ranks = "2,4", *sizes = "256,1k,4k,14336,64k,256k,1m,4m", *repeats = NULL,
               *calls = NULL, *out = NULL;
    int pin = 0;
    const struct kg_cmd_flag flags[] = {
        {"--ranks", "LIST", "group sizes (2,4)", &ranks, NULL},
        {"--sizes", "LIST", "bytes a rank gives (256,1k,4k,14336,64k,256k,1m,4m)", &sizes, NULL},
        {"--repeats", "N", "repeats a figure is the median of (7)", &repeats, NULL},
        {"--calls", "N", "calls of a repeat (200)", &calls, NULL},
        {"--pin", NULL, "bind rank r to core r, counted round", NULL, &pin},
        {"--out", "FILE", "measure gathers too; times for [parallel] comm_times", &out, NULL},
        {0},
    };
    struct kg_cmd_line line;
    struct kg_config *config;
    struct bench *b;
    uint64_t worlds[MAX_WORLDS], n_repeats = 7, n_calls = 200;

    int rc =
        kg_cmd_parse(&line, argc, argv, "kedge bench comm [--ranks LIST] [--sizes LIST]",
                     "Measures sums over ranks by size and algorithm, in processes.", flags, 0);
    if (rc >= 0)
        return rc;
    b = calloc(1, sizeof(*b));
    if (b == NULL) {
        (void)fputs("kedge: out of memory\n", stderr);
        return KG_EXIT_FAILED;
    }
    kg_arena_init(&b->strings, 4096, 1 << 20);
    b->n_worlds = parse_list(ranks, 1, KG_BOOT_MAX_WORLD, worlds, MAX_WORLDS);
    b->b.n_sizes = parse_list(sizes, 4, 1u << 28, b->b.sizes, KG_BENCH_COMM_SIZES);
    if (b->n_worlds == 0)
        rc = kg_cmd_bad("--ranks", ranks, "up to 8 ascending numbers of 1 .. 64");
    else if (b->b.n_sizes == 0)
        rc = kg_cmd_bad("--sizes", sizes, "up to 24 ascending numbers of 4 .. 256m");
    else if (!whole_floats(&b->b))
        rc = kg_cmd_bad("--sizes", sizes, "multiples of 4, a float's bytes");
    else if ((rc = kg_cmd_whole("--repeats", repeats, 1, 99, &n_repeats)) < 0)
        rc = kg_cmd_whole("--calls", calls, 4, 100000, &n_calls);
    if (rc < 0)
        rc = kg_cmd_config(&line, &config);
    if (rc < 0) {
        for (uint32_t i = 0; i < b->n_worlds; i++)
            b->worlds[i] = (uint32_t)worlds[i];
        b->b.repeats = (uint32_t)n_repeats;
        b->b.calls = (uint32_t)n_calls;
        b->b.pin = (uint32_t)pin;
        rc = measure(b, &line, config, out);
        kg_config_destroy(config);
    }
    kg_arena_fini(&b->strings);
    free(b);
    return rc;
}
