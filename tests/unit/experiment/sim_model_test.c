/* exec-sim's files and what it makes of them: tables, stacks, acceptance, the parts of a step. */
#include "../../../plugins/exec-sim/accept.h"
#include "../../../plugins/exec-sim/cost.h"
#include "../../../plugins/exec-sim/model.h"
#include "../../../plugins/exec-sim/surface.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *tables, *stack_file; /* of the command line */
static char path[] = "/tmp/kedge-sim-XXXXXX";

static void write_text(const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* --- acceptance --- */

static const char profile[] = "kedge-acceptance 1\n"
                              "domain easy\n"
                              "survive 0.9 0.8 0.7 0.5 # four drafts\n"
                              "insight 0.8\n"
                              "domain hard\n"
                              "survive 0.4 0.1\n"
                              "domain fixed\n"
                              "pinned 4.5\n";

static void read_profile(struct sim_acceptance *a)
{
    struct kg_error err = {0};

    write_text(profile);
    if (sim_acceptance_read(path, a, &err) != KG_OK) {
        fail_msg("%s", err.text);
    }
}

/* Four standard deviations of a share p of n. */
static double slack(double p, double n)
{
    return 4 * sqrt(p * (1 - p) / n);
}

static void each_position_survives_as_often_as_the_profile_says(void **state)
{
    (void)state;
    static struct sim_acceptance a;
    read_profile(&a);
    for (uint32_t i = 0; i < 2; i++) {
        const struct sim_domain *d = &a.domains[i];
        uint32_t seen[5] = {0}, n = 40000;
        for (uint32_t k = 0; k < n; k++) {
            uint32_t right = sim_acceptance_draw(d, k % 200, 7 + k / 200, 4, NULL);
            assert_true(right <= d->n);
            for (uint32_t j = 0; j < right; j++) {
                seen[j]++;
            }
        }
        for (uint32_t j = 0; j < d->n; j++) {
            double share = (double)seen[j] / n;
            assert_true(fabs(share - d->survive[j]) < slack(d->survive[j], n));
        }
    }
}

static void luck_does_not_depend_on_the_window(void **state)
{
    (void)state;
    static struct sim_acceptance a;
    read_profile(&a);
    for (uint32_t p = 0; p < 2000; p++) {
        uint32_t most = sim_acceptance_draw(&a.domains[0], 3, p, 4, NULL);
        for (uint32_t n = 0; n < 4; n++) {
            float told[4];
            assert_int_equal(sim_acceptance_draw(&a.domains[0], 3, p, n, told),
                             most < n ? most : n);
        }
    }
}

static void confidence_is_calibrated_and_tells_something(void **state)
{
    (void)state;
    static struct sim_acceptance a;
    read_profile(&a);
    double told_sum[2] = {0}, hit[2] = {0}, n[2] = {0};
    for (uint32_t p = 0; p < 40000; p++) {
        float told[4];
        uint32_t right = sim_acceptance_draw(&a.domains[0], 11, p, 4, told);
        for (uint32_t k = 1; k < 4; k++) {
            assert_true(told[k] <= told[k - 1]);
        }
        int high = told[3] > 0.5f;
        told_sum[high] += (double)told[3];
        hit[high] += right == 4;
        n[high]++;
    }
    for (uint32_t i = 0; i < 2; i++) {
        double mean = told_sum[i] / n[i];
        assert_true(n[i] > 5000);
        assert_true(fabs(hit[i] / n[i] - mean) < slack(mean, n[i]));
    }
    assert_true(hit[1] / n[1] - hit[0] / n[0] > 0.3);
}

static void pinned_windows_are_alike_and_have_their_mean(void **state)
{
    (void)state;
    static struct sim_acceptance a;
    read_profile(&a);
    const struct sim_domain *d = &a.domains[sim_acceptance_find(&a, "fixed")];
    uint32_t at = 0, windows = 0;
    while (at < 900) {
        uint32_t right = sim_acceptance_draw(d, 1, at, 7, NULL);
        assert_int_equal(right, sim_acceptance_draw(d, 99, at, 7, NULL));
        assert_true(right == 3 || right == 4);
        at += right + 1;
        windows++;
    }
    assert_int_equal(at, 900);
    assert_int_equal(windows, 200);
}

static void unknown_domains_follow_the_first(void **state)
{
    (void)state;
    static struct sim_acceptance a;
    read_profile(&a);
    assert_int_equal(sim_acceptance_find(&a, "hard"), 1);
    assert_int_equal(sim_acceptance_find(&a, "nobody"), 0);
}

static void refuse_acceptance(const char *text, const char *words)
{
    static struct sim_acceptance a;
    struct kg_error err = {0};

    write_text(text);
    assert_int_equal(sim_acceptance_read(path, &a, &err), KG_ECONFIG);
    if (strstr(err.text, words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
    }
}

static void broken_profiles_are_refused_with_their_line(void **state)
{
    (void)state;
    refuse_acceptance("", "wanted \"kedge-acceptance 1\"");
    refuse_acceptance("kedge-acceptance 1\n", "no domain");
    refuse_acceptance("domain a\n", ":1: wanted");
    refuse_acceptance("kedge-acceptance 1\nsurvive 0.5\n", ":2: survive: before");
    refuse_acceptance("kedge-acceptance 1\ndomain a\nsurvive 0.5 0.6\n", ":3: survive: 0.6");
    refuse_acceptance("kedge-acceptance 1\ndomain a\nsurvive 1.5\n", ":3: survive: wanted");
    refuse_acceptance("kedge-acceptance 1\ndomain a\nsurvive 1\ndomain a\n", ":4: domain: a");
    refuse_acceptance("kedge-acceptance 1\ndomain a\nsurvive 1\nsurvive 1\n", ":4: survive:");
    refuse_acceptance("kedge-acceptance 1\ndomain a\nnoise 1\n", "wants survive");
    refuse_acceptance("kedge-acceptance 1\ndomain a\nsurvive 1\nmagic 1\n", ":4: magic: no such");
}

/* --- tables --- */

static const char small[] = "kedge-table 1\n"
                            "system small\n"
                            "nominal mem_bw 1e12\n"
                            "nominal bf16_flops 1e14\n"
                            "x 0 1 10 100\n"
                            "gemm/8/8 0 5 6 20\n"
                            "kda/1/a 0 1 2 3\n"
                            "kda/4/a 0 4 5 6\n";

static void values_between_and_beyond_points_follow_the_rules(void **state)
{
    (void)state;
    struct sim_table t;
    struct sim_family f;
    write_text(small);
    assert_int_equal(sim_table_read(path, &t, NULL), KG_OK);
    const struct sim_curve *c = sim_table_find(&t, "gemm/8/8");
    assert_non_null(c);
    const struct {
        double x, us;
        uint32_t class;
    } want[] = {{0.5, 5, SIM_EXTRAPOLATED}, {1, 5, SIM_MEASURED},    {10, 6, SIM_MEASURED},
                {55, 13, SIM_INTERPOLATED}, {100, 20, SIM_MEASURED}, {300, 60, SIM_EXTRAPOLATED}};
    for (uint32_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        struct sim_value v = sim_curve_at(c, want[i].x);
        assert_true(fabs(v.us - want[i].us) < 1e-9);
        assert_int_equal(v.class, want[i].class);
    }
    assert_true(fabs(sim_curve_log_at(c, sqrt(1000)).us - sqrt(120)) < 1e-9);
    sim_family_find(&t, "kda/", "/a", &f);
    assert_int_equal(f.n, 2);
    struct sim_value v = sim_family_at(&f, 2, 10, 0);
    assert_true(fabs(v.us - 3) < 1e-9);
    assert_int_equal(v.class, SIM_INTERPOLATED);
    assert_true(fabs(sim_family_at(&f, 8, 10, 0).us - 10) < 1e-9);
    assert_null(sim_table_find(&t, "gemm/8"));
    sim_table_free(&t);
}

static void refuse_table(const char *more, const char *words)
{
    struct sim_table t;
    struct kg_error err = {0};
    char text[600];

    (void)snprintf(text, sizeof(text), "%s%s", small, more);
    write_text(text);
    assert_int_equal(sim_table_read(path, &t, &err), KG_ECONFIG);
    if (strstr(err.text, words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
    }
}

static void a_table_without_the_rates_of_the_layout_is_no_model(void **state)
{
    static struct sim_model m;
    struct sim_layout l = {1, 1, 1, 1, 1, "bfloat16", 0, 0};
    struct kg_error err = {0};
    char text[600];

    (void)state;
    write_text(small);
    assert_int_equal(sim_model_open(&m, path, "", sim_shape_find("kimi_k3"), &l, &err), KG_ECONFIG);
    assert_non_null(strstr(err.text, "small: no nominal fp8_flops"));
    (void)snprintf(text, sizeof(text), "%snominal fp8_flops 1e14\n", small);
    write_text(text);
    l.dp = 2;
    assert_int_equal(sim_model_open(&m, path, "", sim_shape_find("kimi_k3"), &l, &err), KG_ECONFIG);
    assert_non_null(strstr(err.text, "small: no nominal scaleup_bw"));
}

static void broken_tables_are_refused_with_their_line(void **state)
{
    (void)state;
    refuse_table("a/b 0 1 2 3\n", ":9: a/b: keys must rise");
    refuse_table("z 7 1\n", ":9: z: no axis 7");
    refuse_table("z 0 1 2\n", "2 numbers on an axis of 3");
    refuse_table("z 0 1 0 2\n", "0 is no size");
    refuse_table("z 0 1 -2 3\n", "wanted a number");
    refuse_table("x 1 3 2\n", "must rise");
    refuse_table("x 0 3\n", "is there already");
    refuse_table("nominal speed 3\n", "no \"speed\"");
    refuse_table("z\n", "nothing behind");
    write_text("kedge-table 2\n");
    struct sim_table t;
    assert_int_equal(sim_table_read(path, &t, NULL), KG_ECONFIG);
    assert_int_equal(sim_table_read("/nonexistent", &t, NULL), KG_ENOENT);
}

/* --- steps --- */

static const struct sim_layout eight = {8, 1, 1, 1, 1, "bfloat16", 0, 0};

static void open_model(struct sim_model *m, const char *stack)
{
    struct kg_error err = {0};

    if (sim_model_open(m, tables, stack, sim_shape_find("kimi_k3"), &eight, &err) != KG_OK) {
        fail_msg("%s", err.text);
    }
}

static void parts_and_classes_add_up_to_the_step(void **state)
{
    (void)state;
    static struct sim_model m;
    open_model(&m, stack_file);
    struct sim_load w = {.seqs = 5,
                         .rows = 40,
                         .context = 5 * 3000.0,
                         .prompts = 2,
                         .prompt_rows = 900,
                         .samples = 41,
                         .drafts = 35,
                         .copies = 3,
                         .copy_bytes = 56e6};
    w.prompt_us = sim_model_prompt(&m, 1000, 450) * 2;
    struct sim_parts p = {0};
    double total = sim_model_step(&m, &w, &p), sum = 0;
    for (uint32_t i = 0; i < SIM_N_PARTS; i++) {
        for (uint32_t c = 0; c < SIM_N_CLASSES; c++) {
            assert_true(p.us[i][c] >= 0);
            sum += p.us[i][c];
        }
    }
    assert_true(total > 0 && fabs(sum - total) < 1e-6 * total);
    assert_true(p.us[SIM_COPY][SIM_ASSUMED] > 0);
    sim_model_close(&m);
}

static void more_work_takes_more_time(void **state)
{
    (void)state;
    static struct sim_model m;
    open_model(&m, stack_file);
    double before = 0;
    for (double n = 1; n <= 256; n *= 2) {
        struct sim_load w = {.seqs = n, .rows = n, .context = n * 4096, .samples = n};
        double us = sim_model_step(&m, &w, NULL);
        assert_true(us > before);
        before = us;
        w.context *= 8;
        assert_true(sim_model_step(&m, &w, NULL) > us);
    }
    for (double past = 0; past <= 1 << 20; past = past * 4 + 4096) {
        assert_true(sim_model_prompt(&m, past * 4 + 4096, 512) >= sim_model_prompt(&m, past, 512));
    }
    sim_model_close(&m);
}

static void a_release_changes_only_what_it_says(void **state)
{
    (void)state;
    static struct sim_model plain, scaled;
    open_model(&plain, NULL);
    write_text("kedge-stack 1\nname s\nclass assumed\nscale experts 2\nfuse f kda_gemm 1 64\n"
               "host_us 100\n");
    open_model(&scaled, path);
    struct sim_load w = {.seqs = 4, .rows = 4, .context = 4096, .samples = 4};
    struct sim_parts a = {0}, b = {0};
    (void)sim_model_step(&plain, &w, &a);
    (void)sim_model_step(&scaled, &w, &b);
    for (uint32_t i = 0; i < SIM_N_PARTS; i++) {
        double x = 0, y = 0;
        for (uint32_t c = 0; c < SIM_N_CLASSES; c++) {
            x += a.us[i][c];
            y += b.us[i][c];
        }
        double want = i == SIM_EXPERTS ? 2 * x : i == SIM_KDA_GEMM ? x - 93 : x;
        want = i == SIM_HOST ? 100 : want;
        assert_true(fabs(y - want) < 1e-6 * (want + 1));
    }
    sim_model_close(&plain);
    sim_model_close(&scaled);
}

static void refuse_stack(const char *line, const char *words)
{
    struct sim_stack s;
    struct kg_error err = {0};
    char text[200];

    (void)snprintf(text, sizeof(text), "kedge-stack 1\n%s\n", line);
    write_text(text);
    sim_stack_plain(&s, 0);
    assert_int_equal(sim_stack_read(path, &s, &err), KG_ECONFIG);
    if (strstr(err.text, words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
    }
}

static void broken_stacks_and_layouts_are_refused(void **state)
{
    (void)state;
    refuse_stack("scale nothing 2", ":2: scale: no part");
    refuse_stack("fuse f experts -1 3", "fuse: us: wanted");
    refuse_stack("graph 4 2", "sizes rise");
    refuse_stack("overlap 2", "from 0 to 1");
    refuse_stack("moe_small 0.5 8 8", "from 8 to 8");
    refuse_stack("class good", "class: no");
    refuse_stack("what 1", "no such key");
    static struct sim_model m;
    struct kg_error err = {0};
    struct sim_layout l = eight;
    l.dcp = 3;
    assert_int_equal(sim_model_open(&m, tables, NULL, sim_shape_find("kimi_k3"), &l, &err),
                     KG_ECONFIG);
    write_text("kedge-stack 1\nmoe sglang w4a8_mxfp4_mxfp8 nobody\n");
    assert_int_equal(sim_model_open(&m, tables, path, sim_shape_find("kimi_k3"), &eight, &err),
                     KG_ECONFIG);
    assert_non_null(strstr(err.text, "no experts of"));
    assert_null(sim_shape_find("gpt"));
}

static void every_model_has_a_time_on_every_system(void **state)
{
    (void)state;
    static const char *const shapes[] = {"kimi_k3",     "kimi_linear", "kimi_k2",
                                         "deepseek_v3", "minimax_m2",  "qwen35_397b"};
    static const char *const systems[] = {"h100_sxm", "h200_sxm", "b200_sxm",
                                          "b300_sxm", "gb200",    "gb300"};
    static const struct sim_layout layouts[] = {
        {1, 1, 1, 1, 1, "bfloat16", 0, 0}, {8, 1, 1, 1, 1, "bfloat16", 0, 0},
        {8, 8, 1, 1, 1, "fp8", 0, 0},      {8, 1, 2, 8, 1, "bfloat16", 0, 0},
        {1, 8, 1, 1, 8, "bfloat16", 1, 1}, {16, 1, 1, 1, 1, "bfloat16", 0.53, 0}};
    for (uint32_t i = 0; i < 6 * 6 * 6; i++) {
        static struct sim_model m;
        struct kg_error err = {0};
        char file[400];
        (void)snprintf(file, sizeof(file), "%.*s/%s.tab", (int)(strrchr(tables, '/') - tables),
                       tables, systems[i % 6]);
        if (sim_model_open(&m, file, NULL, sim_shape_find(shapes[i / 6 % 6]), &layouts[i / 36],
                           &err) != KG_OK) {
            fail_msg("%s", err.text);
        }
        struct sim_load w = {.seqs = 4, .rows = 4, .context = 16384, .samples = 4};
        double one = sim_model_step(&m, &w, NULL);
        w.prompts = 1;
        w.prompt_rows = 2048;
        w.prompt_us = sim_model_prompt(&m, 512, 2048);
        double both = sim_model_step(&m, &w, NULL);
        assert_true(one > 500 && one < 1e6 && both > one && both < 1e8);
        sim_model_close(&m);
    }
}

/* --- surfaces --- */

static const char surface_text[] = "kedge-surface 1\n"
                                   "token_ns 2\n"
                                   "prompt_token_ns 0.5\n"
                                   "step 1 1 100\nstep 1 2 120\nstep 1 4 160\nstep 1 8 160\n"
                                   "step 4 1 200\nstep 4 2 200\nstep 4 4 200\nstep 4 8 300\n"
                                   "chunk 1 90\nchunk 2 110\nchunk 4 150\n"
                                   "draft_token_ns 1\n"
                                   "draft 1 2 30\ndraft 1 4 50\n";

static void a_surface_is_met_at_its_points_and_between(void **state)
{
    (void)state;
    static struct sim_surface s;
    struct kg_error err = {0};
    write_text(surface_text);
    assert_true(sim_surface_is(path));
    assert_int_equal(sim_surface_read(path, &s, &err), KG_OK);
    const struct {
        struct sim_load w;
        double ns;
    } want[] = {
        {{.seqs = 1, .rows = 1}, 100},
        {{.seqs = 4, .rows = 4}, 200},
        {{.seqs = 2, .rows = 2}, 100 + 100 / 3.0}, /* a third of the way from 1 to 4 */
        {{.seqs = 1, .rows = 3}, 140},
        {{.seqs = 4, .rows = 8, .context = 10}, 320},
        {{.seqs = 7, .rows = 7}, 300}, /* as the last two go on */
        {{.prompts = 1, .prompt_rows = 3, .pairs = 6}, 130 + 3},
        {{.seqs = 1, .rows = 1, .prompts = 1, .prompt_rows = 4}, 100 + 60},
        {{.drafts = 3}, 40},
    };
    for (uint32_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        assert_true(fabs(sim_surface_ns(&s, &want[i].w) - want[i].ns) < 1e-9);
    }
}

static void times_that_no_integer_holds_are_bounded(void **state)
{
    (void)state;
    assert_int_equal(sim_whole_ns(1.5), 2);
    assert_int_equal(sim_whole_ns(-3), 0);
    assert_int_equal(sim_whole_ns(-1e300), 0);
    assert_int_equal(sim_whole_ns(1e300), 1000000000000000);
    assert_int_equal(sim_whole_ns(NAN), 0);
}

static void broken_surfaces_are_refused_with_their_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"kedge-surface 2\n", ":1: wanted"},
        {"kedge-surface 1\nstep 1 1 5\n", "no chunk"},
        {"kedge-surface 1\nstep 16 1 5\n", ":2: step 16 1"},
        {"kedge-surface 1\nstep 1 1 5\nstep 2 1 5\n", ":3: step 2 1"},
        {"kedge-surface 1\nstep 1 1 5\nstep 1 4 9\n", ":3: step 1 4"},
        {"kedge-surface 1\nstep 1 1 5\nstep 1 2 6\nstep 4 1 7\nstep 16 1 7\n", ":5: step 16 1"},
        {"kedge-surface 1\nstep 1 1 5\nstep 4 1 6\nstep 4 2 7\n", ":4: step 4 2"},
        {"kedge-surface 1\nstep 1 1 5\nstep 1 2 6\nstep 4 1 7\nchunk 1 5\n", "1 of 2 points"},
        {"kedge-surface 1\nstep 1 1 5\nstep 1 2 4\n", ":3: step 1 2: 4 ns, less"},
        {"kedge-surface 1\nstep 1 1 5\nstep 4 1 4\n", ":3: step 4 1: 4 ns, less"},
        {"kedge-surface 1\nchunk 1 5\nchunk 2 4\n", ":3: chunk 2: 4 ns, less"},
        {"kedge-surface 1\nchunk 2 5\n", ":2: chunk 2"},
        {"kedge-surface 1\ntoken_ns -1\n", ":2: token_ns"},
        {"kedge-surface 1\ntoken_ns 1 2\n", "behind it"},
        {"kedge-surface 1\nwhat 1\n", "no such key"}};
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        static struct sim_surface s;
        struct kg_error err = {0};
        write_text(bad[i].text);
        assert_int_equal(sim_surface_read(path, &s, &err), KG_ECONFIG);
        if (strstr(err.text, bad[i].words) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].words);
        }
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_position_survives_as_often_as_the_profile_says),
        cmocka_unit_test(luck_does_not_depend_on_the_window),
        cmocka_unit_test(confidence_is_calibrated_and_tells_something),
        cmocka_unit_test(pinned_windows_are_alike_and_have_their_mean),
        cmocka_unit_test(unknown_domains_follow_the_first),
        cmocka_unit_test(broken_profiles_are_refused_with_their_line),
        cmocka_unit_test(values_between_and_beyond_points_follow_the_rules),
        cmocka_unit_test(broken_tables_are_refused_with_their_line),
        cmocka_unit_test(a_table_without_the_rates_of_the_layout_is_no_model),
        cmocka_unit_test(parts_and_classes_add_up_to_the_step),
        cmocka_unit_test(more_work_takes_more_time),
        cmocka_unit_test(a_release_changes_only_what_it_says),
        cmocka_unit_test(broken_stacks_and_layouts_are_refused),
        cmocka_unit_test(every_model_has_a_time_on_every_system),
        cmocka_unit_test(a_surface_is_met_at_its_points_and_between),
        cmocka_unit_test(times_that_no_integer_holds_are_bounded),
        cmocka_unit_test(broken_surfaces_are_refused_with_their_line),
    };
    int fd = mkstemp(path);

    if (argc != 3 || fd < 0) {
        return 2;
    }
    (void)close(fd);
    tables = argv[1];
    stack_file = argv[2];
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    return rc;
}
