#include "config.h"
#include "opt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kg_config *fresh(void)
{
    struct kg_config *c;

    assert_int_equal(kg_config_create(&c), KG_OK);
    assert_int_equal(kg_config_set(c, "plugins.dir=" PLUGINS), KG_OK);
    return c;
}

/* What is said about a text, all of it. */
static void says(const char *text, const char *wanted)
{
    struct kg_config *c = fresh();

    (void)kg_config_read_text(c, "t", text, strlen(text));
    int rc = kg_config_finish(c);
    assert_string_equal(kg_config_errors(c), wanted);
    assert_int_equal(rc, wanted[0] != '\0' ? KG_ECONFIG : KG_OK);
    kg_config_destroy(c);
}

static void defaults_alone_are_a_whole_configuration(void **state)
{
    struct kg_config *c = fresh();
    const char *source;

    (void)state;
    if (kg_config_finish(c) != KG_OK)
        fail_msg("%s", kg_config_errors(c));
    assert_string_equal(kg_config_warnings(c), "");
    assert_int_equal(kg_config_conf(c)->server.port, 8000);
    assert_true(kg_config_conf(c)->engine.arena_bytes == 268435456);
    assert_string_equal(kg_config_conf(c)->model_path, "");
    assert_string_equal(kg_config_choice(c, KG_KIND_POOL)->ref.plugin->name, "unified");
    assert_non_null(kg_config_choice(c, KG_KIND_POOL)->conf);
    assert_null(kg_config_choice(c, KG_KIND_TIER)->ref.plugin);
    assert_string_equal(kg_config_value(c, "engine", "max_seqs", &source), "64");
    assert_string_equal(source, "default");
    assert_null(kg_config_value(c, "engine", "nothing", NULL));
    assert_null(kg_config_value(c, "nothing", "max_seqs", NULL));
    kg_config_destroy(c);
    kg_config_destroy(NULL);
}

static void values_of_the_file_are_typed_and_know_their_line(void **state)
{
    static const char text[] = "\xef\xbb\xbf# comment\n"
                               "[server]\r\n"
                               "port = 9000 ; behind a value\r\n"
                               "host=::1\n"
                               "\n"
                               "[memory]\n"
                               "bytes = 3m\n"
                               "[pool-unified]\n"
                               "idle_moves = 3\n"
                               "[server]\n"
                               "api_key = a=b;c\n";
    struct kg_config *c = fresh();
    const char *source;

    (void)state;
    assert_int_equal(kg_config_read_text(c, "f.ini", text, sizeof(text) - 1), KG_OK);
    if (kg_config_finish(c) != KG_OK)
        fail_msg("%s", kg_config_errors(c));
    const struct kg_conf *v = kg_config_conf(c);
    assert_int_equal(v->server.port, 9000);
    assert_string_equal(v->server.host, "::1");
    assert_string_equal(v->server.api_key, "a=b;c");
    assert_true(v->engine.arena_bytes == 3145728);
    assert_string_equal(kg_config_value(c, "pool-unified", "idle_moves", &source), "3");
    assert_string_equal(source, "f.ini:9");
    kg_config_destroy(c);
}

static void set_wins_over_the_file_and_later_over_earlier(void **state)
{
    struct kg_config *c = fresh();
    const char *source;

    (void)state;
    assert_int_equal(kg_config_read_text(c, "f", "[engine]\nmax_seqs = 3\n", 22), KG_OK);
    assert_int_equal(kg_config_set(c, "engine.max_seqs=4"), KG_OK);
    assert_int_equal(kg_config_set(c, "engine.max_seqs=7"), KG_OK);
    assert_int_equal(kg_config_finish(c), KG_OK);
    assert_int_equal(kg_config_conf(c)->engine.max_seqs, 7);
    assert_string_equal(kg_config_value(c, "engine", "max_seqs", &source), "7");
    assert_string_equal(source, "--set");
    kg_config_destroy(c);
}

static void malformed_set_is_refused(void **state)
{
    static const char *const bad[] = {"",     "a",    "a.b",   "a=b",     "=x",
                                      ".b=1", "a.=1", "A.b=1", "a.b c=1", "server.api_key=\x01"};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kg_config *c = fresh();
        assert_int_equal(kg_config_set(c, bad[i]), KG_ECONFIG);
        assert_non_null(strstr(kg_config_errors(c), "wanted section.key=value"));
        assert_int_equal(kg_config_finish(c), KG_ECONFIG);
        kg_config_destroy(c);
    }
}

static void every_mistake_is_listed_with_its_line(void **state)
{
    (void)state;
    says("port = 1\n"
         "[server]\n"
         "port = 99999\n"
         "prot = 1\n"
         "  host = x\n"
         "host\n"
         "[engine\n"
         "max_seqs = 0\n"
         "[no-such]\n"
         "a = 1\n"
         "b = 2\n"
         "[memory] x\n"
         "bytes = lots\n"
         "[memory]\n"
         "bytes = lots\n"
         "page_tokens = 32\n"
         "page_tokens = 64\n"
         "[pool-split]\n"
         "style = round\n"
         "stlye = ratio\n"
         "[admission]\n"
         "lifetime = max # forever\n"
         "[plugins]\n"
         "sched = nobody\n",
         "t:1: key before any [section]\n"
         "t:5: indented line; a value cannot go on in the next line\n"
         "t:6: wanted key = value\n"
         "t:7: section header without ]\n"
         "t:12: text behind a section header\n"
         "t:17: [memory] page_tokens is given twice, first at t:16\n"
         "t:22: a comment behind a value begins with ;\n"
         "t:3: [server] port = \"99999\": wanted 0 .. 65535\n"
         "t:4: [server] prot: no such key\n"
         "t:15: [memory] bytes = \"lots\": wanted 4096 .. 1099511627776\n"
         "t:24: [plugins] sched = nobody: no plugin sched-nobody: not built in, and no "
         "sched-nobody.so in " PLUGINS "; kedge plugins lists what there is\n"
         "t:10: [no-such]: no such section\n"
         "t:19: [pool-split] style = \"round\": wanted ratio, uniform\n"
         "t:20: [pool-split] stlye: no such key\n");
}

static void what_inih_would_bend_is_refused(void **state)
{
    char text[400];

    (void)state;
    /* inih alone cuts this line and reads its rest as another key */
    (void)snprintf(text, sizeof(text), "[server]\nhost = %0190d\nport = 1\n", 7);
    assert_int_equal(strcspn(text + 9, "\n"), 197);
    says(text, "");
    (void)snprintf(text, sizeof(text), "[server]\nhost = %0191d\nport = 99999\n", 7);
    says(text, "t:2: line over 197 bytes\n"
               "t:3: [server] port = \"99999\": wanted 0 .. 65535\n");
    says("[server]\nhost = \xff\n", "t:2: not UTF-8\n");
    says("[server]\nhost = a\x01z\n", "t:2: control character\n");
    says("[Server]\n", "t:1: section name: wanted a-z 0-9 _ - and blanks\n");
    says("[server]\nHost = a\n", "t:2: key: wanted a-z 0-9 _ before =\n");
    says("[server]\nhost : a\n", "t:2: wanted key = value\n");
    says("[0123456789012345678901234567890123456789012345678]\n",
         "t:1: section name over 48 bytes\n");
    says("[server]\na123456789012345678901234567890123456789012345678 = 1\n",
         "t:2: key over 48 bytes\n");
    /* keys under a broken header are not taken for the section before */
    says("[server]\n[ser ver\nport = 1\n[engine]\nmax_seqs = 2\n",
         "t:2: section header without ]\n");
}

static void a_zero_byte_ends_no_line_early(void **state)
{
    static const char text[] = "[server]\nhost = a\0port = 99999\n";
    struct kg_config *c = fresh();

    (void)state;
    assert_int_equal(kg_config_read_text(c, "t", text, sizeof(text) - 1), KG_ECONFIG);
    assert_string_equal(kg_config_errors(c), "t:2: control character\n");
    kg_config_destroy(c);
}

static void a_long_path_hides_no_line_number(void **state)
{
    static const char text[] = "[server]\nhost\n";
    char name[1000], want[1100];
    struct kg_config *c = fresh();

    (void)state;
    memset(name, 'd', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    (void)snprintf(want, sizeof(want), "%s:2: wanted key = value\n", name);
    assert_int_equal(kg_config_read_text(c, name, text, sizeof(text) - 1), KG_ECONFIG);
    assert_string_equal(kg_config_errors(c), want);
    kg_config_destroy(c);
}

#define NO_FABRIC(name)                                                                           \
    "t:2: [cluster] nodes = 2, fabric = " name                                                    \
    ": ranks exchange rows twice a layer, and without RDMA or NVLink between the machines each "  \
    "exchange takes tens of microseconds. Run a server on each machine behind a router; or name " \
    "the fabric; or see what it costs with allow_slow_fabric = yes\n"

static void what_is_not_built_is_refused_or_warned_of(void **state)
{
    static const char text[] = "[prefix]\nenabled = no\ninterval = 512\n";
    struct kg_config *c = fresh();

    (void)state;
    says("[parallel]\ntp = 2\nep = 3\n",
         "t:2: [parallel] tp = 2: [plugins] comm = self serves one rank; try symmem\n"
         "t:3: [parallel] ep = 3 does not divide tp = 2: blocks of experts are dealt to the ranks "
         "of tp\n");
    says("[cluster]\nnodes = 2\nfabric = rdma\n",
         "t:2: [cluster] nodes = 2: more than one machine is not built yet\n");
    says("[cluster]\nnodes = 2\nfabric = tcp\nallow_slow_fabric = yes\n",
         "t:2: [cluster] nodes = 2: more than one machine is not built yet\n");
    for (uint32_t i = 0; i < 2; i++) {
        says(i == 0 ? "[cluster]\nnodes = 2\n" : "[cluster]\nnodes = 2\nfabric = tcp\n",
             i == 0 ? NO_FABRIC("none") : NO_FABRIC("tcp"));
    }
    assert_int_equal(kg_config_read_text(c, "t", text, sizeof(text) - 1), KG_OK);
    assert_int_equal(kg_config_finish(c), KG_OK);
    assert_string_equal(kg_config_warnings(c),
                        "t:2: [prefix] enabled = no: every request is computed from its first "
                        "token, also a chat's next turn\n");
    kg_config_destroy(c);
}

#define TWO "[arm a]\nshare = 50\n[arm b]\nshare = 50\n"

static uint32_t drafts_of(const struct kg_choice *c)
{
    size_t at = kg_opt_find(c->ref.plugin->opts, "drafts")->offset;

    return *(const uint32_t *)(const void *)((const char *)c->conf + at);
}

static void an_arm_overrides_what_is_marked_and_nothing_else(void **state)
{
    static const char ok[] = "[arms]\nfield = header:x-session\nseed = 7\n"
                             "[prefix]\ncheckpoint = branch\ninterval = 100\n"
                             "[spec-ngram]\ndrafts = 5\nmin_gain = 0.25\n"
                             "[arm control]\nshare = 30\n"
                             "[arm fast-1]\nshare = 70\nspec = ngram\ndrafts = 3\n"
                             "checkpoint = interval\nlifetime = max\naccept = block\nclass = f\n";
    struct kg_config *c = fresh();

    (void)state;
    assert_int_equal(kg_config_read_text(c, "t", ok, sizeof(ok) - 1), KG_OK);
    if (kg_config_finish(c) != KG_OK)
        fail_msg("%s", kg_config_errors(c));
    const struct kg_conf *v = kg_config_conf(c);
    assert_int_equal(v->arms.n, 2);
    assert_string_equal(v->arms.arms[0].name, "control");
    assert_string_equal(v->arms.arms[0].overrides, "");
    assert_string_equal(v->arms.arms[1].overrides,
                        "spec = ngram, drafts = 3, checkpoint = interval, lifetime = max, "
                        "accept = block, class = f");
    assert_true(v->arms.arms[0].share == 30 && v->arms.arms[1].share == 70);
    assert_string_equal(v->arms.arms[1].class_name, "f");
    const struct kg_engine_arm *a = &v->arm_rules[0], *b = &v->arm_rules[1];
    assert_true(a->checkpoint == 3 && a->interval == 100 && a->lifetime == 0 && a->accept == 0);
    assert_true(b->checkpoint == 1 && b->interval == 100 && b->lifetime == 1 && b->accept == 2);
    assert_true(a->salt != 0 && b->salt != 0 && a->salt != b->salt);
    assert_string_equal(kg_config_arm_choice(c, 0)->ref.plugin->name, "off");
    assert_string_equal(kg_config_arm_choice(c, 1)->ref.plugin->name, "ngram");
    assert_int_equal(drafts_of(kg_config_arm_choice(c, 1)), 3);
    struct kg_choice other;
    struct kg_error err;
    assert_int_equal(kg_config_arm_plugin(c, 0, "ngram", &other, &err), KG_OK);
    assert_int_equal(drafts_of(&other), 5);
    assert_int_equal(v->engine.checkpoint, 3); /* what the others have stays */
    kg_config_destroy(c);
    c = fresh();
    assert_int_equal(kg_config_read_text(c, "t", TWO, sizeof(TWO) - 1), KG_OK);
    assert_int_equal(kg_config_set(c, "arms.share_cache=yes"), KG_OK);
    assert_int_equal(kg_config_set(c, "arm b.interval=64"), KG_OK);
    assert_int_equal(kg_config_finish(c), KG_OK);
    assert_true(kg_config_conf(c)->arm_rules[1].salt == 0);
    assert_int_equal(kg_config_conf(c)->arm_rules[1].interval, 64);
    kg_config_destroy(c);
}

static void mistakes_in_arms_name_section_and_key(void **state)
{
    (void)state;
    says("[arm a]\nshare = 100\n[arm b]\nshare = 0\nmax_seqs = 3\n",
         "t:5: [arm b] max_seqs: [engine] max_seqs is the same for all arms, which share one "
         "engine; to compare two of them run kedge ab\n");
    says("[arm a]\nshare = 100\n[arm b]\nshare = 0\ndraft = x\n",
         "t:5: [arm b] draft: [model] draft is the same for all arms, which share one engine; to "
         "compare two of them run kedge ab\n");
    says("[arm a]\nshare = 100\n[arm b]\nshare = 0\nspec = ngram\nlength = 3\n",
         "t:6: [arm b] length: no such key of an arm, which may set share, class, spec, "
         "checkpoint, interval, lifetime, accept, drafts, min_gain; what belongs to the engine is "
         "compared by kedge ab\n");
    says("[arm a]\nshare = 100\n[arm b]\nshare = 0\ndrafts = 3\n",
         "t:5: [arm b] drafts: no such key of an arm, which may set share, class, spec, "
         "checkpoint, interval, lifetime, accept, and with another spec its options; what belongs "
         "to the engine is compared by kedge ab\n");
    says("[arm a]\nshare = 100\n[arm b]\n", "t:3: [arm b] share is missing: the percentage of the "
                                            "keys it gets\n");
    says("[arm a]\nshare = 90\n[arm b]\nshare = 11\n",
         "config: [arm NAME] share: the shares add up to 101, wanted 100\n");
    says("[arm a]\nshare = 100\n", "config: [arm a] is the only arm: a comparison needs another "
                                   "one, which may override nothing\n");
    says("[arm a]\nshare = 101\n[arm b]\nshare = 0\n",
         "t:2: [arm a] share = \"101\": wanted 0 .. 100\n");
    says("[arm a]\nshare = 100\n[arm b]\nshare = 0\ncheckpoint = never\n",
         "t:5: [arm b] checkpoint = \"never\": wanted off, interval, boundary, branch, auto\n");
    says("[arm a]\nshare = 100\n[arm b]\nshare = 0\nspec = ngram\ndrafts = 99\n",
         "t:6: [arm b] drafts = \"99\": wanted 1 .. 16\n");
    says("[arm two words]\nshare = 100\n",
         "t:1: [arm two words]: the name of an arm has at most 31 of a-z 0-9 _ -\n");
    says(TWO "[arms]\nfield = session\n",
         "t:6: [arms] field = session: wanted user, tenant, request or header:NAME\n");
    says(TWO "[arms]\nshares = 3\n", "t:6: [arms] shares: no such key\n");
    says("[arm a]\nshare = 50\n[arm b]\nshare = 50\n[arm a]\nshare = 50\n",
         "t:6: [arm a] share is given twice, first at t:2\n");
    says("[arm 0]\nshare=0\n[arm 1]\nshare=0\n[arm 2]\nshare=0\n[arm 3]\nshare=0\n"
         "[arm 4]\nshare=0\n[arm 5]\nshare=0\n[arm 6]\nshare=0\n[arm 7]\nshare=0\n"
         "[arm 8]\nshare=100\n",
         "t:17: [arm 8]: more than 8 arms\n");
}

static void values_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    says("[engine]\nstep_tokens = 100\nprefill_chunk = 101\n",
         "t:3: [engine] prefill_chunk = 101 is above step_tokens = 100\n");
    says("[engine]\nmax_requests = 10\n",
         "default: [engine] max_seqs = 64 is above max_requests = 10\n");
}

static void relative_paths_mean_the_folder_of_the_file(void **state)
{
    char dir[] = "/tmp/kedge-test-XXXXXX";
    char file[64], wanted[64];
    struct kg_config *c = fresh();

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(file, sizeof(file), "%s/a.ini", dir);
    (void)snprintf(wanted, sizeof(wanted), "%s/../m", dir);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    (void)fputs("[model]\npath = ../m\n", f);
    (void)fclose(f);
    assert_int_equal(kg_config_read(c, file), KG_OK);
    assert_int_equal(kg_config_finish(c), KG_OK);
    assert_string_equal(kg_config_conf(c)->model_path, wanted);
    kg_config_destroy(c);
    c = fresh();
    assert_int_equal(kg_config_read(c, file), KG_OK);
    assert_int_equal(kg_config_set(c, "model.path=x/y"), KG_OK);
    assert_int_equal(kg_config_finish(c), KG_OK);
    assert_string_equal(kg_config_conf(c)->model_path, "x/y");
    kg_config_destroy(c);
    (void)unlink(file);
    (void)rmdir(dir);
    c = fresh();
    assert_int_equal(kg_config_read(c, file), KG_ECONFIG);
    assert_non_null(strstr(kg_config_errors(c), "No such file"));
    kg_config_destroy(c);
}

/* One step outside on each side is refused, the bounds themselves are taken. */
static void check_bounds(const struct kg_opt *row, size_t conf_size, int *n)
{
    struct kg_arena arena;
    struct kg_error err;
    char text[64];

    if ((row->min == 0 && row->max == 0) || row->type == KG_OPT_F64 || row->type > KG_OPT_F64)
        return;
    kg_arena_init(&arena, 0, 0);
    void *conf = calloc(1, conf_size);
    const double edges[] = {row->min, row->max, row->min - 1, row->max + 1};
    for (int i = 0; i < 4; i++) {
        (void)snprintf(text, sizeof(text), "%.0f", edges[i]);
        int rc = kg_opt_parse(row, text, conf, &arena, &err);
        if ((rc == KG_OK) != (i < 2))
            fail_msg("%s = %s: rc %d", row->name, text, rc);
    }
    (*n)++;
    free(conf);
    kg_arena_fini(&arena);
}

static void check_plugin_bounds(void *ctx, uint32_t kind, const char *name,
                                const struct kg_plugin_ref *ref, const struct kg_error *err)
{
    (void)kind;
    if (ref == NULL)
        fail_msg("%s: %s", name, err->text);
    for (const struct kg_opt *o = ref->plugin->opts; o != NULL && o->name != NULL; o++)
        check_bounds(o, ref->plugin->conf_size, ctx);
}

static void every_row_is_sane_and_every_bound_is_exact(void **state)
{
    struct kg_error err = {0};
    int n = 0;

    (void)state;
    for (const struct kg_section *s = kg_conf_sections; s->name != NULL; s++) {
        if (kg_opt_verify(s->rows, sizeof(struct kg_conf) - s->offset, &err) != KG_OK)
            fail_msg("[%s] %s", s->name, err.text);
        for (const struct kg_opt *o = s->rows; o->name != NULL; o++)
            check_bounds(o, sizeof(struct kg_conf), &n);
    }
    assert_int_equal(kg_plugin_scan(PLUGINS, check_plugin_bounds, &n, &err), KG_OK);
    assert_true(n > 40);
}

static void options_parse_strictly_and_write_only_on_success(void **state)
{
    struct {
        uint32_t u, b, e;
        uint64_t big;
        double f;
        const char *s;
    } conf = {.u = 1, .big = 2, .f = 3};
    const struct kg_opt rows[] = {
        {.name = "u", .type = KG_OPT_U32, .offset = offsetof(__typeof__(conf), u)},
        {.name = "big", .type = KG_OPT_U64, .offset = offsetof(__typeof__(conf), big)},
        {.name = "f",
         .type = KG_OPT_F64,
         .offset = offsetof(__typeof__(conf), f),
         .min = -0.5,
         .max = 0.5},
        {.name = "b", .type = KG_OPT_BOOL, .offset = offsetof(__typeof__(conf), b)},
        {.name = "e",
         .type = KG_OPT_ENUM,
         .offset = offsetof(__typeof__(conf), e),
         .choices = "one|two|three"},
        {.name = "s", .type = KG_OPT_STR, .offset = offsetof(__typeof__(conf), s)},
        {0},
    };
    struct kg_arena a;
    struct kg_error err;

    (void)state;
    kg_arena_init(&a, 0, 0);
    assert_int_equal(kg_opt_parse(&rows[0], "4294967296", &conf, &a, &err), KG_EINVAL);
    assert_int_equal(kg_opt_parse(&rows[0], "1k", &conf, &a, &err), KG_EINVAL);
    assert_string_equal(err.text, "u = \"1k\": wanted a whole number");
    assert_int_equal(conf.u, 1);
    assert_int_equal(kg_opt_parse(&rows[0], "4294967295", &conf, &a, &err), KG_OK);
    assert_true(conf.u == UINT32_MAX);
    assert_int_equal(kg_opt_parse(&rows[1], "2g", &conf, &a, &err), KG_OK);
    assert_true(conf.big == UINT64_C(2147483648));
    assert_int_equal(kg_opt_parse(&rows[2], "0.51", &conf, &a, &err), KG_EINVAL);
    assert_string_equal(err.text, "f = \"0.51\": wanted -0.5 .. 0.5");
    assert_int_equal(kg_opt_parse(&rows[2], "-0.5", &conf, &a, &err), KG_OK);
    assert_true(conf.f == -0.5);
    assert_int_equal(kg_opt_parse(&rows[3], "maybe", &conf, &a, &err), KG_EINVAL);
    assert_int_equal(kg_opt_parse(&rows[3], "on", &conf, &a, &err), KG_OK);
    assert_int_equal(conf.b, 1);
    assert_int_equal(kg_opt_parse(&rows[4], "thre", &conf, &a, &err), KG_EINVAL);
    assert_int_equal(kg_opt_parse(&rows[4], "two|three", &conf, &a, &err), KG_EINVAL);
    assert_int_equal(kg_opt_parse(&rows[4], "", &conf, &a, &err), KG_EINVAL);
    assert_int_equal(kg_opt_parse(&rows[4], "three", &conf, &a, &err), KG_OK);
    assert_int_equal(conf.e, 2);
    assert_int_equal(kg_opt_parse(&rows[5], "text", &conf, &a, &err), KG_OK);
    assert_string_equal(conf.s, "text");
    kg_arena_fini(&a);
}

static void the_dump_reads_back_equal_and_hides_the_key(void **state)
{
    struct kg_config *c = fresh(), *d;
    struct kg_buf text, again;

    (void)state;
    assert_int_equal(kg_config_set(c, "server.api_key=secret"), KG_OK);
    assert_int_equal(kg_config_set(c, "memory.bytes=17m"), KG_OK);
    assert_int_equal(kg_config_set(c, "plugins.pool=split"), KG_OK);
    assert_int_equal(kg_config_set(c, "pool-split.style=uniform"), KG_OK);
    assert_int_equal(kg_config_finish(c), KG_OK);
    kg_buf_init(&text, 0);
    kg_buf_init(&again, 0);
    kg_config_dump(c, &text);
    assert_null(strstr(kg_buf_cstr(&text), "secret"));
    assert_non_null(strstr(kg_buf_cstr(&text), "\nbytes = 17m ; --set\n"));
    assert_int_equal(kg_config_create(&d), KG_OK);
    assert_int_equal(kg_config_read_text(d, "dump", text.data, text.len), KG_OK);
    if (kg_config_finish(d) != KG_OK)
        fail_msg("%s", kg_config_errors(d));
    assert_true(kg_config_conf(d)->engine.arena_bytes == 17u << 20);
    assert_string_equal(kg_config_choice(d, KG_KIND_POOL)->ref.plugin->name, "split");
    assert_memory_equal(kg_config_choice(d, KG_KIND_POOL)->conf,
                        kg_config_choice(c, KG_KIND_POOL)->conf,
                        kg_config_choice(c, KG_KIND_POOL)->ref.plugin->conf_size);
    kg_buf_fini(&text);
    kg_buf_fini(&again);
    kg_config_destroy(c);
    kg_config_destroy(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_alone_are_a_whole_configuration),
        cmocka_unit_test(values_of_the_file_are_typed_and_know_their_line),
        cmocka_unit_test(set_wins_over_the_file_and_later_over_earlier),
        cmocka_unit_test(malformed_set_is_refused),
        cmocka_unit_test(every_mistake_is_listed_with_its_line),
        cmocka_unit_test(what_inih_would_bend_is_refused),
        cmocka_unit_test(a_zero_byte_ends_no_line_early),
        cmocka_unit_test(a_long_path_hides_no_line_number),
        cmocka_unit_test(what_is_not_built_is_refused_or_warned_of),
        cmocka_unit_test(an_arm_overrides_what_is_marked_and_nothing_else),
        cmocka_unit_test(mistakes_in_arms_name_section_and_key),
        cmocka_unit_test(values_that_contradict_each_other_are_refused),
        cmocka_unit_test(relative_paths_mean_the_folder_of_the_file),
        cmocka_unit_test(every_row_is_sane_and_every_bound_is_exact),
        cmocka_unit_test(options_parse_strictly_and_write_only_on_success),
        cmocka_unit_test(the_dump_reads_back_equal_and_hides_the_key),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
