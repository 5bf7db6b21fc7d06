/* What spec-ngram looks up, copies, and when it stops. */
#include "rig.h"

#include <stdio.h>
#include <string.h>

struct one {
    struct rig_part part;
    const struct kg_spec_ops *ops;
    struct kg_spec *spec;
    uint32_t tokens[4][16], counts[4];
};

static void one_open(struct one *o, const char *options)
{
    const struct kg_plugin *p = rig_find(KG_KIND_SPEC, "ngram");
    struct kg_error err = {0};

    assert_non_null(p);
    memset(o, 0, sizeof(*o));
    rig_part_open(&o->part, p, options, 1);
    o->ops = p->ops;
    assert_int_equal(o->ops->open(&o->part.host, o->part.conf, 4, 0, &o->spec, &err), KG_OK);
}

static void one_close(struct one *o)
{
    o->ops->close(o->spec);
    rig_part_closed(&o->part);
}

/* Drafts for one sequence; returns how many. */
static uint32_t ask(struct one *o, uint64_t id, const uint32_t *history, uint32_t n,
                    uint32_t max_draft, const struct kg_cost *cost)
{
    struct kg_spec_seq q = {
        .id = id, .context = n - 1, .max_draft = max_draft, .n_history = n, .history = history};
    struct kg_spec_view v = {
        .size = sizeof(v), .seqs = &q, .n_seqs = 1, .cap = 16, .rows_left = 100, .cost = cost};

    memset(o->tokens, 0xff, sizeof(o->tokens));
    assert_int_equal(o->ops->draft(o->spec, &v, o->tokens[0], 16, o->counts), KG_OK);
    return o->counts[0];
}

static void tell(struct one *o, uint64_t id, uint32_t n_verified, uint32_t n_accepted)
{
    struct kg_spec_seen seen = {
        .id = id, .n_verified = n_verified, .n_accepted = n_accepted, .n_tokens = n_accepted + 1};

    o->ops->observe(o->spec, &seen, 1, 1000);
}

#define ASK(o, id, max, ...)                    \
    ask(o, id, (const uint32_t[]){__VA_ARGS__}, \
        sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), max, NULL)

static void the_longest_match_wins_then_the_most_recent(void **state)
{
    (void)state;
    struct one o;
    one_open(&o, "min_n=2 max_n=4 drafts=2 min_gain=0");
    /* 1 2 3 at the end; 9 1 2 3 does not occur, 1 2 3 does at the start, 2 3 later. */
    assert_int_equal(ASK(&o, 1, 8, 1, 2, 3, 40, 41, 7, 2, 3, 50, 51, 9, 1, 2, 3), 2);
    assert_int_equal(o.tokens[0][0], 40);
    assert_int_equal(o.tokens[0][1], 41);
    assert_true(o.tokens[0][2] == UINT32_MAX);
    assert_int_equal(ASK(&o, 1, 8, 5, 2, 3, 40, 41, 6, 2, 3, 50, 51, 2, 3), 2);
    assert_int_equal(o.tokens[0][0], 50);                   /* equal lengths: the later one */
    assert_int_equal(ASK(&o, 1, 8, 5, 3, 40, 41, 6, 3), 0); /* one token is below min_n */
    assert_int_equal(ASK(&o, 1, 8, 3), 0);
    one_close(&o);
    one_open(&o, "min_n=1 max_n=1 drafts=3 min_gain=0");
    assert_int_equal(ASK(&o, 1, 8, 5, 3, 40, 41, 6, 3), 3);
    assert_int_equal(o.tokens[0][0], 40);
    one_close(&o);
}

static void a_match_near_the_end_goes_round(void **state)
{
    (void)state;
    struct one o;
    static const uint32_t want[] = {1, 2, 3, 1, 2, 3, 1, 2};
    one_open(&o, "drafts=8 min_gain=0");
    assert_int_equal(ASK(&o, 1, 8, 9, 1, 2, 3, 1, 2, 3), 8);
    assert_memory_equal(o.tokens[0], want, sizeof(want));
    assert_int_equal(ASK(&o, 1, 3, 9, 1, 2, 3, 1, 2, 3), 3); /* no more than memory allows */
    assert_int_equal(ASK(&o, 1, 0, 9, 1, 2, 3, 1, 2, 3), 0);
    one_close(&o);
}

static void nothing_before_the_window_is_found(void **state)
{
    (void)state;
    struct one o;
    one_open(&o, "window=6 min_gain=0");
    assert_int_equal(ASK(&o, 1, 8, 1, 2, 40, 41, 42, 43, 44, 1, 2), 0);
    one_close(&o);
    one_open(&o, "window=9 min_gain=0");
    assert_true(ASK(&o, 1, 8, 1, 2, 40, 41, 42, 43, 44, 1, 2) > 0);
    one_close(&o);
}

static const uint32_t repeats[] = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4};
#define REPEATS repeats, sizeof(repeats) / sizeof(repeats[0])

static void acceptance_lengthens_and_rejection_stops_and_is_retried(void **state)
{
    (void)state;
    struct one o;
    one_open(&o, "min_gain=0.5 retry=10 drafts=8");
    uint32_t first = ask(&o, 7, REPEATS, 8, NULL);
    assert_true(first > 0 && first < 8); /* some trust, not all */
    for (uint32_t k = 0; k < 6; k++)
        tell(&o, 7, 4, 4);
    assert_int_equal(ask(&o, 7, REPEATS, 8, NULL), 8);
    assert_int_equal(o.ops->cap(o.spec), 8);
    uint32_t rejected = 0;
    while (ask(&o, 7, REPEATS, 8, NULL) > 0) {
        tell(&o, 7, 2, 0);
        assert_true(++rejected < 20);
    }
    assert_true(rejected > 2);
    assert_int_equal(o.ops->cap(o.spec), 0); /* nobody wants any */
    for (uint32_t k = 0; k < 9; k++) {
        tell(&o, 7, 0, 0);
        assert_int_equal(ask(&o, 7, REPEATS, 8, NULL), 0);
    }
    tell(&o, 7, 0, 0); /* the tenth token since */
    assert_int_equal(o.ops->cap(o.spec), 2);
    assert_int_equal(ask(&o, 7, REPEATS, 8, NULL), 2);
    tell(&o, 7, 2, 0);
    assert_int_equal(ask(&o, 7, REPEATS, 8, NULL), 0); /* and waits again */
    /* Another request in the same slot is judged anew, and so is the next after an end. */
    assert_int_equal(ask(&o, 8, REPEATS, 8, NULL), first);
    struct kg_spec_seen end = {.id = 8, .ended = 1};
    o.ops->observe(o.spec, &end, 1, 0);
    assert_int_equal(o.ops->cap(o.spec), 8);
    one_close(&o);
}

static void a_run_cut_by_a_stop_is_no_rejection(void **state)
{
    (void)state;
    struct one o;
    struct kg_spec_seen cut = {.id = 7, .n_verified = 8, .n_accepted = 1, .n_tokens = 1};
    one_open(&o, "min_gain=0.5");
    uint32_t first = ask(&o, 7, REPEATS, 8, NULL);
    o.ops->observe(o.spec, &cut, 1, 0);
    assert_true(ask(&o, 7, REPEATS, 8, NULL) >= first);
    one_close(&o);
}

static uint64_t linear(void *ctx, uint32_t n_seqs, uint32_t rows, uint64_t context)
{
    const uint64_t *t = ctx;

    (void)n_seqs;
    (void)context;
    return t[0] + t[1] * rows;
}

static void the_cost_surface_prices_a_row(void **state)
{
    (void)state;
    struct one o;
    uint64_t cheap[2] = {1000, 1}, dear[2] = {0, 1000};
    struct kg_cost cost = {.size = sizeof(cost), .ctx = cheap, .step_ns = linear};
    one_open(&o, "min_gain=1 drafts=8");
    assert_int_equal(ask(&o, 7, REPEATS, 8, NULL), 2); /* everybody gets one try */
    tell(&o, 7, 2, 2);
    assert_int_equal(ask(&o, 7, REPEATS, 8, NULL), 2); /* and another after a right one */
    tell(&o, 7, 2, 1);
    assert_int_equal(ask(&o, 7, REPEATS, 8, NULL), 0); /* min_gain, without a surface */
    assert_int_equal(ask(&o, 7, REPEATS, 8, &cost), 8);
    cost.ctx = dear; /* a row costs what a token costs: no draft can pay */
    assert_int_equal(ask(&o, 7, REPEATS, 8, &cost), 0);
    one_close(&o);
}

static void max_n_below_min_n_is_refused_by_name(void **state)
{
    (void)state;
    const struct kg_plugin *p = rig_find(KG_KIND_SPEC, "ngram");
    const struct kg_spec_ops *ops = p->ops;
    struct rig_part part;
    struct kg_spec *spec = NULL;
    struct kg_error err = {0};
    memset(&part, 0, sizeof(part));
    rig_part_open(&part, p, "min_n=4 max_n=3", 1);
    assert_int_equal(ops->open(&part.host, part.conf, 4, 0, &spec, &err), KG_ECONFIG);
    assert_string_equal(err.text, "[spec-ngram] max_n = 3 is below min_n = 4");
    assert_null(spec);
    rig_part_closed(&part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_match_wins_then_the_most_recent),
        cmocka_unit_test(a_match_near_the_end_goes_round),
        cmocka_unit_test(nothing_before_the_window_is_found),
        cmocka_unit_test(acceptance_lengthens_and_rejection_stops_and_is_retried),
        cmocka_unit_test(a_run_cut_by_a_stop_is_no_rejection),
        cmocka_unit_test(the_cost_surface_prices_a_row),
        cmocka_unit_test(max_n_below_min_n_is_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
