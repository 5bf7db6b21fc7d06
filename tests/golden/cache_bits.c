/*
 * Warm equals cold: a request that finds a beginning of its prompt in the prefix cache gives the
 * logits bits and the tokens of one that computes everything. Prompts part from a cached one at
 * every depth; then at random, several at a time, in little memory, with relocation in each step,
 * preemption and cancellation. Freed units hold NaN.
 *
 * The same through a tier: what was evicted came back from host memory, a unit a step or at once.
 *
 * KEDGE_FULL=1: all pairs of length and depth up to three pages and two tokens; for every policy in
 * every pool and style at pages of 16 and 64 tokens each length at the depths 0, 1, around a page
 * and L-1, and 2,000 random pairs; else a sample. KEDGE_COMBINATION: the
 * number of one of these, some (12-20), or all, with 30 random pairs where KEDGE_FULL is not set.
 * Argument: tier, or combinations for these alone.
 */
#include "base/rng.h"
#include "config.h"
#include "engine/test.h"
#include "exec_rig.h"
#include "stack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TOKENS 2048u
#define N_OUTPUT 3u
#define MAX_PAIRS 5000u

/* A prompt of `n` tokens that follows the cached one for `depth` tokens. */
struct pair {
    uint32_t n, depth;
    uint32_t n_cached, n_lost, n_got, cancelled, done;
    uint32_t out[2][N_OUTPUT]; /* cold, warm */
};

struct way {
    const char *name, *sets; /* sets: "section.key=value ..." of the warm engine */
    uint32_t page;           /* effective tokens per page */
    uint32_t batch, relocate, preempt, cancel_one_in;
    uint32_t n_sample, n_full; /* random pairs; 0 and 0: the sweep */
    uint32_t n_texts;          /* prompts begin with one of so many texts, 0: one */
    uint32_t edges;            /* 1: first every length at the depths that matter */
};

struct world {
    const struct way *way;
    struct kg_stack *stack;
    uint64_t n_evicted; /* units, by the way that ran */
    struct kg_config *config;
    struct kg_engine *engine;
    struct kg_engine_test test;
    uint32_t warm, vocab;
    struct kg_rng rng;
    struct pair *pairs; /* pairs[0] is the cached prompt itself */
    uint32_t n_pairs;
    uint64_t *bits; /* [n_pairs][TOKENS] of the cold run */
    uint64_t n_compared, n_hits, n_reused;
};

static struct world w;

/* --- prompts --- */

/* Tokens of pair i: the common ones up to its depth, then its own. */
static void prompt_of(uint32_t i, uint32_t *tokens)
{
    const struct pair *p = &w.pairs[i];
    struct kg_rng r;

    kg_rng_seed(&r, 1 + (w.way->n_texts > 0 ? i % w.way->n_texts : 0));
    for (uint32_t k = 0; k < p->n; k++) {
        if (k == p->depth)
            kg_rng_seed(&r, 1000 + i);
        tokens[k] = (uint32_t)kg_rng_below(&r, w.vocab);
    }
}

/* All lengths and depths up to three pages and two tokens, or every so many of them; the long ones
 * first, so that all checkpoints of the cached prompt are wanted from the start. */
static void fill_sweep(uint32_t page)
{
    uint32_t most = 3 * page + 2, skip = xrig_is_full() ? 1 : 11, k = 0;

    for (uint32_t n = most; n > 0; n--) {
        for (uint32_t depth = 0; depth < n; depth++) {
            if (k++ % skip == 0 && w.n_pairs < MAX_PAIRS)
                w.pairs[w.n_pairs++] = (struct pair){.n = n, .depth = depth};
        }
    }
}

/* Random lengths; depths at and around page boundaries, and anywhere. */
static void fill_random(uint32_t page, uint32_t n)
{
    uint32_t most = 3 * page + 2 < 1200 ? 3 * page + 2 : 1200;

    for (uint32_t i = 0; i < n; i++) {
        struct pair p = {.n = 1 + (uint32_t)kg_rng_below(&w.rng, most)};
        uint32_t edge[] = {0, 1, page - 1, page, page + 1, p.n - 1, 2 * page, p.n / 2};
        uint32_t choice = (uint32_t)kg_rng_below(&w.rng, 10);
        p.depth = choice < 8 ? edge[choice] : (uint32_t)kg_rng_below(&w.rng, p.n);
        p.depth = p.depth < p.n ? p.depth : p.n - 1;
        w.pairs[w.n_pairs++] = p;
    }
}

/* Every length up to three pages and two tokens, at depths 0, 1, around a page, and one short. */
static void fill_edges(uint32_t page)
{
    uint32_t most = 3 * page + 2 < 1200 ? 3 * page + 2 : 1200;

    for (uint32_t n = 1; n <= most; n++) {
        const uint32_t edge[] = {0, 1, page - 1, page, page + 1, n - 1};
        for (uint32_t k = 0; k < 6; k++) {
            uint32_t known = edge[k] >= n;
            for (uint32_t j = 0; j < k; j++)
                known |= edge[j] == edge[k];
            if (!known && w.n_pairs < MAX_PAIRS)
                w.pairs[w.n_pairs++] = (struct pair){.n = n, .depth = edge[k]};
        }
    }
}

/* One prompt of each text, then parts of them in turn: by then all of them were evicted. */
static void fill_texts(uint32_t page, uint32_t n)
{
    uint32_t most = 3 * page + 2;

    w.n_pairs = 1;
    for (uint32_t i = 0; i < n; i++) {
        struct pair p = {.n = most, .depth = most};
        if (i >= w.way->n_texts) {
            p.n = 1 + (uint32_t)kg_rng_below(&w.rng, most);
            p.depth = (uint32_t)kg_rng_below(&w.rng, p.n);
        }
        w.pairs[w.n_pairs++] = p;
    }
}

/* --- hooks --- */

static void see_result(void *ctx, const struct kg_seq *seq, const struct kg_seq_result *res)
{
    uint64_t *bits = w.bits + seq->id * TOKENS;

    (void)ctx;
    for (uint32_t j = 0; j < seq->n_rows; j++) {
        uint64_t h = xrig_hash(res->logits + (size_t)j * w.vocab, w.vocab);
        if (!w.warm) {
            bits[seq->past + j] = h;
        } else if (bits[seq->past + j] != h) {
            fail_msg("%s: length %u depth %u: logits at %u differ from the cold run", w.way->name,
                     w.pairs[seq->id].n, w.pairs[seq->id].depth, seq->past + j);
        }
        w.n_compared += w.warm;
    }
}

/* --- the engine --- */

static void open_engine(const char *sets)
{
    char text[2048], *rest = text, *word;
    struct kg_error err = {0};
    struct kg_engine_conf conf;

    assert_int_equal(kg_config_create(&w.config), KG_OK);
    (void)snprintf(
        text, sizeof(text),
        "model.path=%s/models/k3-tiny plugins.dir=%s plugins.exec=cpu "
        "plugins.sched=fcfs plugins.spec=off engine.max_seqs=8 engine.step_tokens=256 "
        "engine.prefill_chunk=256 memory.bytes=48m exec-cpu.threads=2 log.level=warn %s %s",
        TEST_ROOT, PLUGIN_DIR, xrig_sets(), sets);
    while ((word = strsep(&rest, " ")) != NULL) {
        if (word[0] != '\0')
            (void)kg_config_set(w.config, word);
    }
    if (kg_config_finish(w.config) != KG_OK)
        fail_msg("%s", kg_config_errors(w.config));
    if (kg_stack_open(w.config, &w.stack, &err) < 0)
        fail_msg("%s: %s", w.way->name, err.text);
    w.vocab = w.stack->desc.vocab;
    conf = kg_config_conf(w.config)->engine;
    conf.test = &w.test;
    conf.debug = 1; /* checks after each step, NaN in what is freed */
    if (kg_engine_create(&w.stack->parts, &conf, &w.engine, &err) < 0)
        fail_msg("%s: %s", w.way->name, err.text);
    if (w.warm && xrig_world() == 1) /* uniform pages go by a state, of which a rank has a part */
        assert_int_equal(kg_engine_layout(w.engine)->page_tokens, w.way->page);
}

static void close_engine(void)
{
    kg_engine_destroy(w.engine);
    kg_stack_close(w.stack);
    kg_config_destroy(w.config);
}

static void submit(uint32_t i)
{
    static uint32_t tokens[TOKENS];
    uint32_t ends[2] = {w.pairs[i].depth, w.pairs[i].n};
    struct kg_error err = {0};

    prompt_of(i, tokens);
    uint32_t skip = ends[0] == 0; /* a message of nothing has no end */
    struct kg_request q = {.id = i,
                           .tokens = tokens,
                           .n_prompt = w.pairs[i].n,
                           .max_tokens = N_OUTPUT,
                           .boundaries = ends + skip,
                           .n_boundaries = 2 - skip - (ends[0] == ends[1]),
                           .sampling = {.temperature = 0.7f, .seed = i}};
    if (kg_engine_submit(w.engine, &q, &err) < 0)
        fail_msg("submit: %s", err.text);
}

static void take_event(const struct kg_event *e)
{
    struct pair *p = &w.pairs[e->id];

    if (e->type == KG_EVENT_TOKENS) {
        memcpy(p->out[w.warm] + p->n_got, e->tokens, e->n * sizeof(uint32_t));
        p->n_got += e->n;
    } else if (e->type == KG_EVENT_DONE) {
        if (e->finish != KG_FINISH_LENGTH && !(e->finish == KG_FINISH_CANCELLED && p->cancelled))
            fail_msg("%s: request %u ended with %u: %s", w.way->name, (uint32_t)e->id, e->finish,
                     e->text);
        p->cancelled = e->finish == KG_FINISH_CANCELLED;
        p->done = 1;
        p->n_cached = e->n_cached;
        p->n_lost = e->n_lost;
    }
}

/* Pairs from..to-1, `batch` at a time. */
static void drive(uint32_t from, uint32_t to, uint32_t batch, uint32_t cancel_one_in)
{
    struct kg_error err = {0};
    struct kg_event e;
    uint32_t next = from, n_open = 0;

    for (uint32_t i = from; i < to; i++)
        w.pairs[i].n_got = w.pairs[i].done = 0;
    while (next < to || n_open > 0) {
        for (; next < to && n_open < batch; next++, n_open++)
            submit(next);
        if (cancel_one_in > 0 && kg_rng_below(&w.rng, cancel_one_in) == 0) {
            uint32_t victim = from + (uint32_t)kg_rng_below(&w.rng, next - from);
            w.pairs[victim].cancelled |= !w.pairs[victim].done;
            kg_engine_cancel(w.engine, victim);
        }
        if (kg_engine_step(w.engine, &err) < 0)
            fail_msg("%s: %s", w.way->name, err.text);
        while (kg_engine_next(w.engine, &e) == KG_OK) {
            take_event(&e);
            n_open -= e.type == KG_EVENT_DONE;
        }
    }
}

/* --- cold, then warm --- */

static void check_pair(uint32_t i)
{
    const struct pair *p = &w.pairs[i];
    uint32_t page = w.way->page, most = p->depth < p->n - 1 ? p->depth : p->n - 1;

    if (!p->cancelled && memcmp(p->out[0], p->out[1], sizeof(p->out[0])) != 0)
        fail_msg("%s: length %u depth %u: tokens differ from the cold run", w.way->name, p->n,
                 p->depth);
    w.n_hits += p->n_cached > 0;
    w.n_reused += p->n_cached;
    if (w.way->n_full == 0 &&
        i > w.way->n_texts) { /* the sweep: all there is to find is found, to the page */
        assert_int_equal(p->n_cached, most / page * page);
        assert_int_equal(p->n_lost, 0);
    }
}

static void run_way(const struct way *way)
{
    uint32_t full = xrig_is_full(), n = full ? way->n_full : way->n_sample;
    char sets[400];
    struct kg_engine_stats s;

    w = (struct world){.way = way, .pairs = calloc(MAX_PAIRS, sizeof(*w.pairs))};
    assert_non_null(w.pairs);
    kg_rng_seed(&w.rng, 5);
    w.pairs[w.n_pairs++] = (struct pair){.n = 0};
    w.pairs[w.n_pairs++] = (struct pair){.n = 4 * way->page < 1700 ? 4 * way->page : 1700};
    w.pairs[1].depth = w.pairs[1].n;
    if (n == 0 && way->n_texts > 0)
        fill_texts(way->page, full ? 2000 : 60);
    else if (n == 0)
        fill_sweep(way->page);
    if (way->edges)
        fill_edges(way->page);
    if (n > 0)
        fill_random(way->page, n);
    assert_true(w.n_pairs < MAX_PAIRS);
    w.bits = calloc((size_t)w.n_pairs * TOKENS, sizeof(*w.bits));
    assert_non_null(w.bits);
    w.test = (struct kg_engine_test){.logits = 1, .on_result = see_result};
    open_engine("plugins.pool=unified memory.page_tokens=32 prefix.enabled=no");
    drive(1, w.n_pairs, 8, 0);
    close_engine();

    w.warm = 1;
    w.test.relocate = way->relocate;
    w.test.preempt_one_in = way->preempt;
    w.test.seed = 3;
    /* The whole sweep wants room for all of it: what is not asked for in a thousand requests goes.
     */
    const char *room = way->n_texts > 0 ? " tier-mem.bytes=1g" : " memory.bytes=900m";
    (void)snprintf(sets, sizeof(sets), "%s%s", way->sets, full && way->n_full == 0 ? room : "");
    open_engine(sets);
    drive(1, 2, 1, 0);
    drive(2, w.n_pairs, way->batch, way->cancel_one_in);
    kg_engine_stats(w.engine, &s);
    for (uint32_t i = 2; i < w.n_pairs; i++)
        check_pair(i);
    close_engine();
    print_message("  %s: %u pairs, %llu hits, %llu tokens reused, %llu logits rows compared, "
                  "%llu preemptions, %llu + %llu units evicted, %llu moves\n",
                  way->name, w.n_pairs - 2, (unsigned long long)w.n_hits,
                  (unsigned long long)w.n_reused, (unsigned long long)w.n_compared,
                  (unsigned long long)s.preemptions, (unsigned long long)s.evicted[KG_PAGE],
                  (unsigned long long)s.evicted[KG_STATE], (unsigned long long)s.moves);
    assert_true(w.n_hits > 0 && w.n_compared > 0);
    if (strstr(way->sets, "plugins.tier=mem") != NULL) {
        print_message(
            "    tier: %llu + %llu units stored, %llu + %llu came back, %llu tokens\n",
            (unsigned long long)s.tier_stored[KG_PAGE], (unsigned long long)s.tier_stored[KG_STATE],
            (unsigned long long)s.tier_loaded[KG_PAGE], (unsigned long long)s.tier_loaded[KG_STATE],
            (unsigned long long)s.tier_tokens);
        assert_true(s.tier_loaded[KG_PAGE] > 0 && s.tier_loaded[KG_STATE] > 0 && s.tier_tokens > 0);
        assert_int_equal(s.tier_failed, 0);
    }
    if (n > 0) {
        w.n_evicted = s.evicted[KG_PAGE] + s.evicted[KG_STATE];
        /* a rank's part of a state is smaller: not every way is short of memory then */
        assert_true(xrig_world() > 1 || s.evicted[KG_PAGE] + s.evicted[KG_STATE] > 0);
        assert_true(way->preempt == 0 || s.preemptions > 0);
    }
    free(w.pairs);
    free(w.bits);
}

static void warm_equals_cold_at_every_depth(void **state) /* V1, V3, V10, V13, S9 */
{
    static const struct way way = {
        .name = "sweep, page 16",
        .sets = "plugins.pool=unified memory.page_tokens=16 prefix.checkpoint=interval "
                "prefix.interval=16",
        .page = 16,
        .batch = 1};

    (void)state;
    run_way(&way);
}

/* V6, V11, V26, V27, V35, S5, S10, S37. */
static void warm_equals_cold_whatever_happens_between(void **state)
{
    static const struct way ways[] = {
        {"unified, auto",
         "plugins.pool=unified memory.page_tokens=16 prefix.interval=16 memory.bytes=5m", 16, 6, 2,
         9, 5, 40, 2000, 0, 0},
        {"unified, branch, page 64",
         "plugins.pool=unified memory.page_tokens=64 prefix.checkpoint=branch memory.bytes=3800k",
         64, 6, 2, 9, 5, 40, 2000, 0, 0},
        {"split by ratio, boundary",
         "plugins.pool=split pool-split.style=ratio pool-split.states=12 memory.page_tokens=16 "
         "prefix.checkpoint=boundary memory.bytes=4200k",
         16, 6, 2, 9, 5, 40, 2000, 0, 0},
        {"split by ratio, interval 64, page 64",
         "plugins.pool=split pool-split.style=ratio pool-split.states=12 memory.page_tokens=64 "
         "prefix.checkpoint=interval prefix.interval=64 memory.bytes=5m",
         64, 6, 2, 9, 5, 40, 2000, 0, 0},
        {"split uniform, auto",
         "plugins.pool=split pool-split.style=uniform memory.page_tokens=16 prefix.interval=16 "
         "memory.bytes=6m",
         88, 6, 2, 9, 5, 30, 2000, 0, 0},
    };
    uint64_t n_evicted = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        run_way(&ways[i]);
        n_evicted += w.n_evicted;
    }
    assert_true(n_evicted > 0);
}

/* Tokens of a page the pool makes of `sets`. */
static uint32_t page_of(const char *sets)
{
    static const struct way none = {.name = "page"};

    w = (struct world){.way = &none};
    open_engine(sets);
    uint32_t page = kg_engine_layout(w.engine)->page_tokens;
    close_engine();
    return page;
}

/* Every policy, in every pool and style, at both sizes of a page. The quick run takes one of them.
 */
static void warm_equals_cold_in_every_combination(void **state)
{
    static const char *const policies[] = {"auto", "interval prefix.interval=32", "boundary",
                                           "branch"};
    static const struct {
        const char *name, *sets, *bytes[2]; /* memory at pages of 16 and 64 */
    } pools[] = {
        {"unified", "plugins.pool=unified", {"5m", "3800k"}},
        {"ratio",
         "plugins.pool=split pool-split.style=ratio pool-split.states=12",
         {"4200k", "5m"}},
        {"uniform", "plugins.pool=split pool-split.style=uniform", {"6m", "6m"}},
    };
    const char *one = getenv("KEDGE_COMBINATION");
    const char *to = one != NULL ? strchr(one, '-') : NULL;
    uint32_t all = one != NULL ? strcmp(one, "all") == 0 : (uint32_t)xrig_is_full();
    uint32_t first = all ? 0 : one != NULL ? (uint32_t)atoi(one) : 7;
    uint32_t last = all ? 23 : to != NULL ? (uint32_t)atoi(to + 1) : first;
    char sets[400], name[100];

    (void)state;
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t policy = i % 4, pool = i / 4 % 3, page = i / 12;
        if (i < first || i > last)
            continue;
        (void)snprintf(name, sizeof(name), "%u: %s, %s, page %u", i, pools[pool].name,
                       policies[policy], page ? 64 : 16);
        (void)snprintf(sets, sizeof(sets),
                       "%s memory.page_tokens=%u prefix.checkpoint=%s "
                       "memory.bytes=%s",
                       pools[pool].sets, page ? 64 : 16, policies[policy], pools[pool].bytes[page]);
        const struct way way = {.name = name,
                                .sets = sets,
                                .page = page_of(sets),
                                .batch = 6,
                                .relocate = 2,
                                .preempt = 9,
                                .cancel_one_in = 5,
                                .n_sample = 30,
                                .n_full = 2000,
                                .edges = xrig_is_full() || one != NULL};
        run_way(&way);
    }
}

/* Memory for less than a text or two, and a tier for all: all there was to find is found. */
static void what_was_evicted_comes_back_whole(void **state)
{
    static const struct way ways[] = {
        {.name = "tier, one after the other",
         .sets = "plugins.tier=mem tier-mem.bytes=100m plugins.pool=unified memory.page_tokens=16 "
                 "prefix.checkpoint=interval prefix.interval=16 engine.max_seqs=2 "
                 "memory.bytes=1500k",
         .page = 16,
         .batch = 1,
         .n_texts = 6},
        {.name = "tier, one after the other, split",
         .sets = "plugins.tier=mem tier-mem.bytes=100m plugins.pool=split pool-split.style=ratio "
                 "pool-split.states=9 "
                 "memory.page_tokens=16 prefix.checkpoint=interval prefix.interval=16 "
                 "engine.max_seqs=2 memory.bytes=3100k",
         .page = 16,
         .batch = 1,
         .n_texts = 6},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        run_way(&ways[i]);
}

static void warm_equals_cold_through_a_tier(void **state)
{
    static const struct way ways[] = {
        {"tier, unified, auto",
         "plugins.tier=mem tier-mem.bytes=100m plugins.pool=unified memory.page_tokens=16 "
         "prefix.interval=16 "
         "memory.bytes=3500k",
         16, 6, 2, 9, 5, 70, 2000, 6, 0},
        {"tier, unified, a unit a step, page 64",
         "plugins.tier=mem tier-mem.bytes=100m prefix.tier_step_bytes=0 plugins.pool=unified "
         "memory.page_tokens=64 "
         "prefix.checkpoint=branch memory.bytes=3400k",
         64, 6, 2, 9, 5, 70, 2000, 6, 0},
        {"tier, split by ratio, boundary",
         "plugins.tier=mem tier-mem.bytes=20m plugins.pool=split pool-split.style=ratio "
         "pool-split.states=9 memory.page_tokens=16 prefix.checkpoint=boundary "
         "memory.bytes=3200k",
         16, 6, 2, 9, 5, 70, 2000, 6, 0},
        {"tier, split uniform, auto",
         "plugins.tier=mem tier-mem.bytes=100m plugins.pool=split pool-split.style=uniform "
         "memory.page_tokens=16 "
         "prefix.interval=16 memory.bytes=5m",
         88, 6, 2, 9, 5, 60, 2000, 5, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        run_way(&ways[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tier[] = {
        cmocka_unit_test(what_was_evicted_comes_back_whole),
        cmocka_unit_test(warm_equals_cold_through_a_tier),
    };
    const struct CMUnitTest ranks[] = {
        cmocka_unit_test(warm_equals_cold_whatever_happens_between),
    };
    const struct CMUnitTest combinations[] = {
        cmocka_unit_test(warm_equals_cold_in_every_combination),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_equals_cold_at_every_depth),
        cmocka_unit_test(warm_equals_cold_whatever_happens_between),
        cmocka_unit_test(warm_equals_cold_in_every_combination),
    };

    if (argc > 1 && argv[1][0] >= '1' && argv[1][0] <= '9') {
        xrig_set_ranks(argc, argv);
        return cmocka_run_group_tests(ranks, NULL, NULL);
    }
    if (argc > 1 && strcmp(argv[1], "tier") == 0)
        return cmocka_run_group_tests(tier, NULL, NULL);
    if (argc > 1 && strcmp(argv[1], "combinations") == 0)
        return cmocka_run_group_tests(combinations, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
