/* The picture of the engine: what it says is so, and what making one costs is bounded. */
#include "rig.h"

#include <poll.h>

static struct kg_engine_stats stats_of(const struct rig *r)
{
    struct kg_engine_stats s;

    kg_engine_stats(r->engine, &s);
    return s;
}

static uint64_t sum_of(const struct kg_picture *p, uint32_t class)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < p->n_bins; i++) {
        sum += p->bins[class][i];
    }
    return sum;
}

/* Every bin is full of something, and the classes come to what the pool says. */
static void assert_is(const struct kg_picture *p, const struct kg_pool_bytes *b)
{
    for (uint32_t i = 0; i < p->n_bins; i++) {
        uint64_t sum = 0, from = i * p->bin_bytes;
        for (uint32_t c = 0; c < KG_N_PICTURE_CLASSES; c++) {
            sum += p->bins[c][i];
        }
        assert_int_equal(sum, b->arena - from < p->bin_bytes ? b->arena - from : p->bin_bytes);
    }
    assert_int_equal(sum_of(p, KG_PICTURE_LIVE_PAGE), b->live[KG_PAGE]);
    assert_int_equal(sum_of(p, KG_PICTURE_LIVE_STATE), b->live[KG_STATE]);
    assert_int_equal(sum_of(p, KG_PICTURE_CACHED_PAGE), b->cached[KG_PAGE]);
    assert_int_equal(sum_of(p, KG_PICTURE_CACHED_STATE), b->cached[KG_STATE]);
    assert_int_equal(sum_of(p, KG_PICTURE_PINNED), b->pinned);
    assert_int_equal(sum_of(p, KG_PICTURE_HOLES), b->holes);
    assert_int_equal(sum_of(p, KG_PICTURE_GAP), b->gap);
    assert_int_equal(sum_of(p, KG_PICTURE_PADDING), b->padding);
}

static uint32_t first_bin(const struct kg_picture *p, uint32_t class)
{
    for (uint32_t i = 0; i < p->n_bins; i++) {
        if (p->bins[class][i] > 0) {
            return i;
        }
    }
    return KG_NONE;
}

static uint32_t last_bin(const struct kg_picture *p, uint32_t class)
{
    for (uint32_t i = p->n_bins; i-- > 0;) {
        if (p->bins[class][i] > 0) {
            return i;
        }
    }
    return 0;
}

/* States below, then the gap, then pages; a bin may hold the border. */
static void assert_in_order(const struct kg_picture *p)
{
    uint32_t states = last_bin(p, KG_PICTURE_LIVE_STATE),
             more = last_bin(p, KG_PICTURE_CACHED_STATE);
    uint32_t pages = first_bin(p, KG_PICTURE_LIVE_PAGE),
             less = first_bin(p, KG_PICTURE_CACHED_PAGE);

    states = more > states ? more : states;
    pages = less < pages ? less : pages;
    assert_true(states <= pages);
    if (last_bin(p, KG_PICTURE_GAP) > 0) {
        assert_true(states <= first_bin(p, KG_PICTURE_GAP));
        assert_true(last_bin(p, KG_PICTURE_GAP) <= pages);
    }
}

static void every_byte_is_where_the_pool_says(void **state)
{
    static const struct {
        const char *pool, *opts;
    } arms[] = {{"unified", NULL}, {"split", "style=ratio"}, {"split", "style=uniform"}};
    static struct kg_picture p;

    (void)state;
    for (size_t a = 0; a < 3; a++) {
        struct rig r;
        uint64_t cached = 0, gaps = 0, padding = 0;
        rig_open(&r, &(struct rig_conf){.pool = arms[a].pool,
                                        .pool_opts = arms[a].opts,
                                        .exec_opts =
                                            "token_bytes=24 n_state_parts=5 state_part_bytes=80",
                                        .n_pages = 60,
                                        .lifetime = KG_LIFETIME_PROMPT});
        r.n_shared = 30;
        r.n_groups = 5;
        for (uint32_t id = 1; id <= 60; id++) {
            assert_int_equal(rig_submit(&r, id, 20 + id % 50, 1 + id % 20, NULL), KG_OK);
            kg_engine_picture_ask(r.engine);
            assert_true(rig_step(&r) >= 0);
            assert_int_equal(kg_engine_picture(r.engine, &p), KG_OK);
            struct kg_engine_stats s = stats_of(&r);
            assert_int_equal(p.serial, id);
            assert_int_equal(p.last_step, s.steps);
            assert_is(&p, &s.bytes);
            cached += s.bytes.cached[KG_STATE];
            gaps += s.bytes.gap;
            padding += s.bytes.padding;
            if (a == 0) {
                assert_in_order(&p);
            }
            while (r.n_open > 6) {
                assert_true(rig_step(&r) >= 0);
            }
        }
        assert_true(cached > 0);
        assert_true((gaps > 0) == (a == 0));
        assert_true(a != 2 || padding > 0);
        rig_run(&r, 3000);
        rig_close(&r);
    }
}

static void a_step_looks_at_no_more_than_a_slice(void **state)
{
    static struct kg_picture p;
    struct rig r;
    uint32_t n_steps = 0;

    (void)state;
    rig_open(&r, &(struct rig_conf){.n_pages = 40000, .no_debug = 1});
    uint32_t n = kg_engine_layout(r.engine)->max_units[KG_PAGE] +
                 kg_engine_layout(r.engine)->max_units[KG_STATE];
    assert_int_equal(rig_submit(&r, 1, 16, 200, NULL), KG_OK);
    kg_engine_picture_ask(r.engine);
    while (kg_engine_picture(r.engine, &p) == KG_ENOENT) {
        assert_int_equal(rig_step(&r), 1);
        n_steps++;
    }
    assert_true(n_steps >= n / 2048 && n_steps <= n / 2048 + 3);
    assert_int_equal(p.n_entries, n);
    assert_true(p.last_step - p.first_step + 1 <= n_steps);
    assert_true(p.last_step - p.first_step + 1 >= n / 2048);
    assert_int_equal(p.n_bins, (kg_engine_layout(r.engine)->arena_bytes - 1) / p.bin_bytes + 1);
    /* with nothing to do it is made at once */
    rig_run(&r, 3000);
    kg_engine_picture_ask(r.engine);
    (void)rig_step(&r);
    assert_int_equal(kg_engine_picture(r.engine, &p), KG_OK);
    assert_int_equal(p.serial, 2);
    assert_int_equal(p.first_step, p.last_step);
    struct kg_engine_stats s = stats_of(&r);
    assert_is(&p, &s.bytes);
    rig_close(&r);
}

static void none_is_made_that_nobody_asked_for(void **state)
{
    static struct kg_picture p;
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){0});
    assert_int_equal(rig_submit(&r, 1, 16, 20, NULL), KG_OK);
    rig_run(&r, 300);
    assert_int_equal(kg_engine_picture(r.engine, &p), KG_ENOENT);
    assert_int_equal(stats_of(&r).pictures, 0);
    assert_int_equal(stats_of(&r).picture_ns_sum, 0);
    for (uint32_t i = 0; i < 5; i++) {
        kg_engine_picture_ask(r.engine);
    }
    for (uint32_t i = 0; i < 5; i++) {
        (void)rig_step(&r);
    }
    assert_int_equal(kg_engine_picture(r.engine, &p), KG_OK);
    assert_int_equal(p.serial, 1);
    assert_int_equal(stats_of(&r).pictures, 1);
    rig_close(&r);
}

static void requests_are_listed_oldest_first(void **state)
{
    static struct kg_picture p;
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){.max_seqs = 3, .n_pages = 300, .prefill_chunk = 8});
    for (uint32_t id = 1; id <= 50; id++) {
        assert_int_equal(rig_submit(&r, id, 10 * (id % 3 + 1), 40, NULL), KG_OK);
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(rig_step(&r), 1);
    }
    kg_engine_cancel(r.engine, 5);
    kg_engine_picture_ask(r.engine);
    assert_int_equal(rig_step(&r), 1);
    assert_int_equal(kg_engine_picture(r.engine, &p), KG_OK);
    assert_int_equal(p.n_running, 3);
    assert_int_equal(p.n_waiting, KG_PICTURE_WAITING);
    assert_int_equal(p.n_decoding + p.n_prefilling, stats_of(&r).n_seqs_step);
    assert_int_equal(p.decode_rows, p.n_decoding);
    for (uint32_t i = 0; i < 3; i++) {
        const struct kg_picture_req *q = &p.running[i];
        assert_int_equal(q->n_prompt, 10 * ((i + 1) % 3 + 1));
        assert_int_equal(q->max_tokens, 40);
        assert_int_equal(q->state, q->n_output > 0 ? KG_PICTURE_DECODES : KG_PICTURE_PREFILLS);
        assert_true(q->n_computed > 0 && q->n_computed <= q->n_prompt + q->n_output);
        assert_true(q->n_pages * 8 >= q->n_computed);
    }
    for (uint32_t i = 0; i < p.n_waiting; i++) {
        uint32_t id = i == 0 ? 4 : i + 5; /* 5 left */
        assert_int_equal(p.waiting[i].n_prompt, 10 * (id % 3 + 1));
        assert_int_equal(p.waiting[i].state, KG_PICTURE_WAITS);
        assert_true(i == 0 || p.waiting[i].serial > p.waiting[i - 1].serial);
    }
    rig_run(&r, 9000);
    rig_close(&r);
}

static void a_pool_that_does_not_say_has_no_bins(void **state)
{
    static struct kg_picture p;
    struct rig r;

    (void)state;
    rig_open(&r, &(struct rig_conf){.pool = "shuffle"});
    assert_int_equal(rig_submit(&r, 1, 16, 20, NULL), KG_OK);
    kg_engine_picture_ask(r.engine);
    assert_int_equal(rig_step(&r), 1);
    assert_int_equal(kg_engine_picture(r.engine, &p), KG_OK);
    assert_int_equal(p.n_bins, 0);
    assert_int_equal(p.n_running, 1);
    rig_run(&r, 300);
    rig_close(&r);
}

/* The engine's thread makes pictures while this one reads them. */
static void what_is_read_is_one_picture(void **state)
{
    static struct kg_picture p;
    struct rig r;
    struct kg_error err;
    uint64_t last = 0;
    uint32_t id = 0;

    (void)state;
    rig_open(&r, &(struct rig_conf){.exec_opts = "clock=real", .n_pages = 500, .no_debug = 1});
    uint64_t arena = kg_engine_layout(r.engine)->arena_bytes;
    assert_int_equal(kg_engine_start(r.engine, &err), KG_OK);
    while (last < 300) {
        if (id < RIG_IDS - 1 && r.n_open < 8) {
            id++;
            assert_int_equal(rig_submit(&r, id, 1 + id % 60, 1 + id % 30, NULL), KG_OK);
        }
        kg_engine_picture_ask(r.engine);
        rig_pump(&r);
        if (kg_engine_picture(r.engine, &p) != KG_OK) {
            continue;
        }
        uint64_t sum = 0;
        for (uint32_t c = 0; c < KG_N_PICTURE_CLASSES; c++) {
            sum += sum_of(&p, c);
        }
        assert_int_equal(sum, arena);
        assert_true(p.serial >= last);
        last = p.serial;
    }
    while (r.n_open > 0) {
        struct pollfd fd = {.fd = kg_engine_fd(r.engine), .events = POLLIN};
        assert_true(poll(&fd, 1, 20000) > 0);
        rig_pump(&r);
    }
    kg_engine_stop(r.engine);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_where_the_pool_says),
        cmocka_unit_test(a_step_looks_at_no_more_than_a_slice),
        cmocka_unit_test(none_is_made_that_nobody_asked_for),
        cmocka_unit_test(requests_are_listed_oldest_first),
        cmocka_unit_test(a_pool_that_does_not_say_has_no_bins),
        cmocka_unit_test(what_is_read_is_one_picture),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
