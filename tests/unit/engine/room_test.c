/* Who pays for whose room, and what an idle engine does about holes. */
#include "rig.h"

#include "engine/index_policy.h"
#include "engine/internal.h"

#include <string.h>

#define PAGE_BYTES 128u /* of exec-null's defaults at 8 tokens a page */
#define STATE_BYTES 256u

static struct kg_engine_stats stats_of(const struct rig *r)
{
    struct kg_engine_stats s;

    kg_engine_stats(r->engine, &s);
    return s;
}

/* A kind would have to move units of the other for its next one, and there are holes to move to. */
static int in_the_way(const struct rig *r)
{
    const struct kg_pool_ops *p = r->parts.pool_ops;
    struct kg_pool *pool = r->engine->pool;

    return stats_of(r).bytes.holes > 0 &&
           (p->loose(pool, KG_PAGE) == 0 || p->loose(pool, KG_STATE) == 0);
}

struct spells {
    uint32_t n, in_the_way; /* spells of work; of them ended with holes in the way */
    uint64_t idle_moves, moves;
};

/* Spells of random work in an arena full of what is cached, each until nothing runs. */
static struct spells work(const char *pool_opts)
{
    struct rig r;
    struct spells out = {0};
    struct kg_rng rng;

    kg_rng_seed(&rng, 7);
    rig_open(&r, &(struct rig_conf){.pool_opts = pool_opts,
                                    .n_pages = 41,
                                    .n_states = 7,
                                    .max_seqs = 6,
                                    .checkpoint = KG_CKPT_INTERVAL + 1,
                                    .interval = 8});
    r.n_shared = 24;
    r.n_groups = 9;
    for (uint64_t id = 1; id < 400;) {
        for (uint32_t n = 1 + (uint32_t)kg_rng_below(&rng, 6); n > 0 && id < 400; n--, id++) {
            uint32_t n_prompt = 1 + (uint32_t)kg_rng_below(&rng, 90);
            assert_int_equal(rig_submit(&r, id, n_prompt, 6, NULL), KG_OK);
        }
        rig_run(&r, 4000);
        uint64_t bytes = stats_of(&r).moved_bytes;
        while (rig_step(&r) > 0) {
            assert_true(stats_of(&r).moved_bytes - bytes <= STATE_BYTES + PAGE_BYTES);
            bytes = stats_of(&r).moved_bytes;
        }
        out.n++;
        out.in_the_way += in_the_way(&r);
    }
    for (uint64_t id = 1; id < 400; id++) {
        rig_assert_true(&r, id);
    }
    out.idle_moves = stats_of(&r).idle_moves;
    out.moves = stats_of(&r).moves;
    rig_close(&r);
    return out;
}

static void an_idle_engine_has_room_for_a_unit_of_each_kind_without_a_move(void **state)
{
    (void)state;
    struct spells tidy = work(NULL);
    assert_int_equal(tidy.in_the_way, 0);
    assert_true(tidy.idle_moves > 0);
    assert_true(tidy.idle_moves < tidy.moves / 4); /* no more than is missing */
    struct spells never = work("idle_moves=0");
    assert_true(never.in_the_way > 0);
    assert_int_equal(never.idle_moves, 0);
}

/* Reason of the admission that was refused last, as the request will tell it: 1 + kind, or 0. */
static uint32_t short_of(const struct rig *r, uint64_t id)
{
    for (uint32_t i = 0; i < r->engine->conf.max_requests; i++) {
        if (r->engine->reqs[i].state == KG_LIFE_WAITING && r->engine->reqs[i].id == id) {
            return r->engine->reqs[i].short_of;
        }
    }
    return 0;
}

static uint64_t free_bytes(const struct rig *r)
{
    struct kg_pool_bytes b = stats_of(r).bytes;

    return b.gap + b.holes;
}

/*
 * Memory full of pages somebody may give up, a state of two beginnings among them; then both come
 * again and a third request beside them, each in need of a state. One step: how many of them run.
 */
static uint32_t three_want_states(struct rig *r, const char *pool)
{
    rig_open(r, &(struct rig_conf){.pool = pool,
                                   .n_pages = 24,
                                   .n_states = 3,
                                   .max_seqs = 3,
                                   .step_tokens = 200,
                                   .prefill_chunk = 64,
                                   .checkpoint = KG_CKPT_INTERVAL + 1,
                                   .interval = 40});
    r->n_shared = 44;
    r->n_groups = 10; /* ids that end with the same digit have the same prompt */
    for (uint64_t id = 1; id <= 4; id++) { /* five pages each */
        assert_int_equal(rig_submit(r, id, 44, 1, NULL), KG_OK);
        rig_run(r, 100);
        assert_int_equal(r->outs[id].end.n_cached, 0);
    }
    assert_true(stats_of(r).n_evictable[KG_PAGE] >= 10);
    if (r->engine->layout.caps & KG_POOL_CAP_SHARED) {
        assert_true(free_bytes(r) < 3 * STATE_BYTES);
    }
    assert_int_equal(rig_submit(r, 13, 44, 4, NULL), KG_OK);
    assert_int_equal(rig_submit(r, 14, 44, 4, NULL), KG_OK);
    assert_int_equal(rig_submit(r, 15, 44, 4, NULL), KG_OK);
    rig_step(r);
    assert_int_equal(stats_of(r).reused_tokens, 80);
    return stats_of(r).n_seqs_step;
}

/* Memory full of states somebody may give up, and two requests that need more pages than are free:
 * how many of them run after one step. */
static uint32_t two_want_pages(struct rig *r, const char *pool)
{
    rig_open(r, &(struct rig_conf){.pool = pool,
                                   .n_pages = 16,
                                   .n_states = 12,
                                   .max_seqs = 2,
                                   .prefill_chunk = 8,
                                   .checkpoint = KG_CKPT_INTERVAL + 1,
                                   .interval = 8,
                                   .lifetime = KG_LIFETIME_MAX,
                                   .exec_opts = "base_ns=1000000",
                                   .queue_timeout_ms = 5});
    assert_int_equal(rig_submit(r, 1, 90, 1, NULL), KG_OK);
    rig_run(r, 100);
    assert_true(stats_of(r).n_evictable[KG_STATE] >= 10);
    for (uint64_t id = 11; id <= 12; id++) { /* ten pages each */
        assert_int_equal(rig_submit(r, id, 40, 40, NULL), KG_OK);
    }
    rig_step(r);
    return stats_of(r).n_seqs_step;
}

static void starved_by_the_other_kind_each_is_admitted_in_one_arena(void **state) /* S1, S7 */
{
    struct rig r;

    (void)state;
    assert_int_equal(three_want_states(&r, "unified"), 3);
    assert_int_equal(stats_of(&r).n_short[KG_STATE] + stats_of(&r).n_short[KG_PAGE], 0);
    assert_true(stats_of(&r).evicted[KG_PAGE] > 0); /* pages paid for states */
    rig_run(&r, 100);
    rig_close(&r);

    assert_int_equal(two_want_pages(&r, "unified"), 2);
    assert_int_equal(stats_of(&r).n_short[KG_STATE] + stats_of(&r).n_short[KG_PAGE], 0);
    assert_true(stats_of(&r).evicted[KG_STATE] > 0); /* and states for pages */
    rig_run(&r, 400);
    rig_close(&r);
}

static void starved_by_the_other_kind_a_split_says_which_is_short(void **state) /* S21 */
{
    struct rig r;

    (void)state;
    assert_int_equal(three_want_states(&r, "split"), 2);
    assert_int_equal(short_of(&r, 15), 1 + KG_STATE);
    assert_true(stats_of(&r).n_short[KG_STATE] > 0);
    assert_int_equal(stats_of(&r).n_short[KG_PAGE], 0);
    assert_true(stats_of(&r).n_evictable[KG_PAGE] > 0); /* which nobody may have */
    rig_run(&r, 100);
    rig_close(&r);

    assert_int_equal(two_want_pages(&r, "split"), 1);
    assert_int_equal(short_of(&r, 12), 1 + KG_PAGE);
    assert_true(stats_of(&r).n_short[KG_PAGE] > 0);
    assert_int_equal(stats_of(&r).n_short[KG_STATE], 0);
    assert_true(stats_of(&r).n_evictable[KG_STATE] > 0);
    rig_run(&r, 400);
    assert_int_equal(r.outs[12].end.finish, KG_FINISH_TIMEOUT);
    assert_non_null(strstr(r.outs[12].end.text, "short of pages"));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_engine_has_room_for_a_unit_of_each_kind_without_a_move),
        cmocka_unit_test(starved_by_the_other_kind_each_is_admitted_in_one_arena),
        cmocka_unit_test(starved_by_the_other_kind_a_split_says_which_is_short),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
