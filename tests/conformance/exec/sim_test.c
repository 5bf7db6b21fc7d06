/* exec-sim: what it refuses, where its answers come from, what its time is made of. */
#include "xc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZES "token_bytes=64 n_state_parts=4 state_part_bytes=1048576 recurrent_part_bytes=512 "

static char options[400], cost_path[] = "/tmp/kedge-cost-XXXXXX",
                          answers_path[] = "/tmp/kedge-answers-XXXXXX";

static const char cost_text[] = "kedge-cost 1 # by hand\n"
                                "name by-hand\n"
                                "rows 1 1000\n"
                                "rows 11 2000\n"
                                "rows 64 10000\n"
                                "decode_context_ns 3\n"
                                "prefill_context_ns 0.5\n"
                                "state_copy_ns 70000\n"
                                "move_mib_ns 100\n"
                                "draft_ns 900000\n";

static void write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void open_sim(struct xc *x, const char *more)
{
    (void)snprintf(options, sizeof(options), SIZES "cost=%s %s", cost_path, more);
    xc_name = "sim";
    xc_options = options;
    xc_model = "";
    xc_open(x);
}

static uint64_t step_time(struct xc *x, struct xseq *s, uint32_t rows)
{
    uint64_t t = x->ops->now(x->exec);

    xc_one(x, s, rows);
    return x->ops->now(x->exec) - t;
}

static void a_state_resumed_at_another_length_is_refused(void **state)
{
    (void)state;
    struct xc x;
    struct xseq a, b;
    struct kg_error err = {0};
    open_sim(&x, "");
    xseq_init(&x, &a, 0, 21, 1);
    a.orders[0] = (struct kg_order){16, xc_take(&x, KG_STATE)};
    a.n_orders = 1;
    uint32_t unit = a.orders[0].unit;
    xc_one(&x, &a, 21);
    for (uint32_t past = 8; past <= 16; past += 8) {
        xseq_init(&x, &b, 1, 21, 1);
        for (uint32_t i = 0; i < past / 8; i++) {
            b.pages[b.n_pages++] = a.pages[i];
        }
        b.past = past;
        b.state_src = unit;
        b.rows = 21 - past;
        struct xseq *one = &b;
        int rc = xc_run(&x, &one, 1, &err);
        assert_int_equal(rc, past == 16 ? KG_OK : KG_EINVAL);
        if (past == 8) {
            assert_non_null(strstr(err.text, "stands for 16 tokens, past is 8"));
            xc_give(&x, KG_STATE, b.state);
        }
    }
    assert_int_equal(x.ops->poison(x.exec, KG_STATE, unit), KG_OK);
    xseq_init(&x, &b, 2, 21, 1);
    b.pages[b.n_pages++] = a.pages[0];
    b.past = 8;
    b.state_src = unit;
    b.rows = 13;
    struct xseq *one = &b;
    assert_int_equal(xc_run(&x, &one, 1, &err), KG_EINVAL);
    xc_close(&x);
}

/* Head and tokens of a file of answers. */
static size_t make_answers(uint8_t *out, uint64_t n, const uint64_t *start, const uint32_t *tokens)
{
    memcpy(out, "KGANSW01", 8);
    memcpy(out + 8, &n, 8);
    memcpy(out + 16, start, (n + 1) * 8);
    memcpy(out + 24 + n * 8, tokens, start[n] * 4);
    return 24 + n * 8 + start[n] * 4;
}

static void answers_come_from_the_file_then_from_the_script(void **state)
{
    (void)state;
    const uint64_t start[] = {0, 2, 6};
    const uint32_t tokens[] = {7, 8, 40, 41, 42, 43};
    uint8_t bytes[200];
    char more[200];
    struct xc x;
    struct xseq s, again, other;
    write_file(answers_path, bytes, make_answers(bytes, 2, start, tokens));
    (void)snprintf(more, sizeof(more), "vocab=50 answers=%s", answers_path);
    open_sim(&x, more);
    xseq_init(&x, &s, 0, 12, 1);
    s.sampling.seed = 2;
    xc_generate(&x, &s, 5, 7);
    assert_memory_equal(s.tokens + 12, tokens + 2, 4 * sizeof(uint32_t));
    xseq_init(&x, &other, 1, 12, 1);
    other.sampling.seed = 3; /* nobody's */
    xc_generate(&x, &other, 5, 7);
    assert_memory_equal(s.tokens + 16, other.tokens + 16, 3 * sizeof(uint32_t));
    assert_memory_not_equal(s.tokens + 12, other.tokens + 12, 4 * sizeof(uint32_t));
    xseq_init(&x, &again, 2, 12, 1); /* preempted after three tokens of output */
    again.sampling.seed = 2;
    memcpy(again.tokens + 12, s.tokens + 12, 3 * sizeof(uint32_t));
    again.n = 15;
    xc_generate(&x, &again, 5, 7);
    assert_memory_equal(s.tokens, again.tokens, 19 * sizeof(uint32_t));
    xc_close(&x);
}

/* What bind says to a file of answers. */
static int bind_answers(const void *bytes, size_t n)
{
    const struct kg_plugin *p = rig_find(KG_KIND_EXEC, "sim");
    const struct kg_exec_ops *ops = p->ops;
    struct kg_pool_layout l = {.size = sizeof(l),
                               .page_tokens = 8,
                               .slots_per_state = 1,
                               .parts_per_slot = 4,
                               .stride = {1 << 20, 8 << 20},
                               .max_slots = {4, 4},
                               .max_units = {4, 4}};
    struct kg_exec_open args = {
        .size = sizeof(args), .model_path = "", .world = 1, .max_seqs = 2, .max_rows = 8};
    struct rig_part part;
    struct kg_exec *exec;
    struct kg_error err = {0};
    char opts[400];

    write_file(answers_path, bytes, n);
    (void)snprintf(opts, sizeof(opts), SIZES "vocab=50 max_context=64 cost=%s answers=%s",
                   cost_path, answers_path);
    rig_part_open(&part, p, opts, 1);
    assert_int_equal(ops->open(&part.host, part.conf, &args, &exec, &err), KG_OK);
    int rc = ops->bind(exec, &l, &err);
    ops->close(exec);
    rig_part_closed(&part);
    return rc;
}

static void broken_files_of_answers_are_refused(void **state)
{
    (void)state;
    const uint64_t start[] = {0, 2, 6}, back[] = {0, 7, 6}, late[] = {1, 2, 6};
    const uint32_t tokens[] = {7, 8, 40, 41, 42, 43}, high[] = {7, 8, 40, 41, 42, 50};
    uint8_t b[200];
    size_t n = make_answers(b, 2, start, tokens);
    assert_int_equal(bind_answers(b, n), KG_OK);
    for (size_t cut = 0; cut < n; cut++) {
        assert_int_equal(bind_answers(b, cut), KG_ECONFIG);
    }
    assert_int_equal(bind_answers(b, n + 4), KG_ECONFIG);
    assert_int_equal(bind_answers(b, make_answers(b, 2, back, tokens)), KG_ECONFIG);
    assert_int_equal(bind_answers(b, make_answers(b, 2, late, tokens)), KG_ECONFIG);
    assert_int_equal(bind_answers(b, make_answers(b, 2, start, high)), KG_ECONFIG);
    n = make_answers(b, 2, start, tokens);
    memset(b + 8, 0xff, 8); /* 2^64 - 1 answers */
    assert_int_equal(bind_answers(b, n), KG_ECONFIG);
}

static void time_has_its_parts(void **state)
{
    (void)state;
    struct xc x;
    struct xseq s;
    uint64_t ns = 0;
    open_sim(&x, "draft_block=2");
    xseq_init(&x, &s, 0, 20, 1);
    /* 1500 + 21 / 2, rounded; then 2000 + 3/53 of 8000 + 189 / 2: each row sees those before it. */
    assert_int_equal(step_time(&x, &s, 6), 1511);
    assert_int_equal(step_time(&x, &s, 14), 2547);
    assert_int_equal(step_time(&x, &s, 1), 1000 + 3 * 21);
    xc_shuffle(&x); /* everything that is mapped changes place */
    uint64_t moved = 0;
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        for (uint32_t id = 0; id < XC_PAGES; id++) {
            moved +=
                x.slot_of[k][id] != KG_NONE && id < x.layout.max_units[k] ? x.layout.stride[k] : 0;
        }
    }
    double want = 1000 + 3 * 22 + 100 * (double)moved / 1048576;
    assert_int_equal(step_time(&x, &s, 1), (uint64_t)(want + 0.5));
    s.orders[0] = (struct kg_order){s.past + 1, xc_take(&x, KG_STATE)};
    s.n_orders = 1;
    assert_int_equal(step_time(&x, &s, 1), 1000 + 3 * 23 + 70000);
    struct kg_draft d = {.slot = 0, .n = 2};
    assert_int_equal(x.ops->draft(x.exec, &d, 1), KG_OK);
    s.n_draft = 2;
    assert_int_equal(step_time(&x, &s, 3), 1200 + 3 * 24 + 900000);
    assert_int_equal(x.ops->profile(x.exec, 2, 6, 40, &ns), KG_OK); /* windows of 1 + 2 */
    assert_int_equal(ns, 1500 + 2 * 40 * 3);
    assert_int_equal(x.ops->profile(x.exec, 2, 11, 40, &ns), KG_OK); /* longer: two prompts */
    assert_int_equal(ns, 2000 + 11 * 42 / 2 + 1);
    xc_close(&x);
}

/* A unit's way to the host and back takes its bytes over the rate of that direction, once. */
static void copies_to_the_host_take_their_time_before_the_next_step(void **state)
{
    static uint8_t unit[4 << 20];
    const uint64_t n = sizeof(unit);
    struct xc x;
    struct xseq s;

    (void)state;
    open_sim(&x, "to_host_gb_s=4 from_host_gb_s=2");
    xseq_init(&x, &s, 0, 40, 1);
    uint64_t plain = step_time(&x, &s, 10); /* 1900 + 55 / 2 */
    uint32_t other = xc_take(&x, KG_STATE);
    assert_int_equal(x.ops->read(x.exec, KG_STATE, s.state, unit, n), KG_OK);
    assert_int_equal(step_time(&x, &s, 10), plain + n / 4 + 50); /* ten rows, ten tokens before */
    assert_int_equal(x.ops->write(x.exec, KG_STATE, other, unit, n), KG_OK);
    assert_int_equal(x.ops->write(x.exec, KG_STATE, other, unit, n), KG_OK);
    assert_int_equal(step_time(&x, &s, 10), plain + 2 * (n / 2) + 100);
    assert_int_equal(step_time(&x, &s, 10), plain + 150);
    xseq_end(&x, &s);
    xc_close(&x);
}

static void profiled_time_never_falls(void **state)
{
    (void)state;
    struct xc x;
    open_sim(&x, "");
    for (uint32_t seqs = 1; seqs <= 6; seqs++) {
        uint64_t row_before = 0;
        for (uint32_t rows = seqs; rows <= XC_ROWS; rows++) {
            uint64_t before = 0, first = 0;
            for (uint32_t context = 0; context <= XC_CONTEXT; context += 16) {
                uint64_t ns = 0;
                assert_int_equal(x.ops->profile(x.exec, seqs, rows, context, &ns), KG_OK);
                assert_true(ns >= before);
                first = context == 0 ? ns : first;
                before = ns;
            }
            assert_true(first >= row_before);
            row_before = first;
        }
    }
    xc_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_resumed_at_another_length_is_refused),
        cmocka_unit_test(answers_come_from_the_file_then_from_the_script),
        cmocka_unit_test(broken_files_of_answers_are_refused),
        cmocka_unit_test(time_has_its_parts),
        cmocka_unit_test(copies_to_the_host_take_their_time_before_the_next_step),
        cmocka_unit_test(profiled_time_never_falls),
    };
    int fds[2] = {mkstemp(cost_path), mkstemp(answers_path)};

    if (fds[0] < 0 || fds[1] < 0) {
        return 1;
    }
    write_file(cost_path, cost_text, sizeof(cost_text) - 1);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)close(fds[0]);
    (void)close(fds[1]);
    (void)unlink(cost_path);
    (void)unlink(answers_path);
    return rc;
}
