/*
 * The numbers of the shipped pools at K3's sizes (one rank of eight), against closed forms:
 * numbers_test pool-split.so pool-unified.so.
 */
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#define TOKEN_BYTES 13824u /* 24 layers of 576, one byte each */
#define PART_BYTES                                                                \
    814080u /* one KDA layer: recurrent state in fp32, convolution window in bf16 \
             */
#define N_PARTS 69u

static const char *split_path, *unified_path;
static const uint32_t nothing[KG_N_KINDS];

static struct kg_pool_geom k3_geom(void)
{
    return (struct kg_pool_geom){
        .size = sizeof(struct kg_pool_geom),
        .arena_bytes = UINT64_C(25) << 30,
        .token_bytes = TOKEN_BYTES,
        .state_part_bytes = PART_BYTES,
        .n_state_parts = N_PARTS,
        .page_tokens = 64,
        .page_tokens_align = 64,
        .align = 256,
        .max_seqs = 64,
    };
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return (a + b - 1) / b;
}

static void open_k3(struct rig *rig, const char *path, const char *a, const char *b)
{
    char *settings[] = {(char *)(uintptr_t)a, (char *)(uintptr_t)b};
    struct kg_pool_geom geom = k3_geom();
    struct kg_error err = {0};

    assert_int_equal(rig_load(rig, path, a == NULL ? 0 : b == NULL ? 1 : 2, settings), 0);
    if (rig_open(rig, &geom, &err) != KG_OK)
        fail_msg("%s", err.text);
}

static void close_k3(struct rig *rig)
{
    assert_int_equal(rig_close(rig), 0);
    rig_unload(rig);
}

/* Sequences of so many tokens that get a grant, one after the other, until one is refused. */
static uint32_t admitted(struct rig *rig, uint64_t tokens)
{
    const uint32_t need[KG_N_KINDS] = {
        [KG_PAGE] = (uint32_t)ceil_div(tokens, rig->layout.page_tokens), [KG_STATE] = 1};
    struct kg_shortage s;
    uint32_t grants[4096], n = 0;

    /* max_seqs is a floor for states, the grants limit is above what fits here */
    while (n < 500 && rig->ops->grant_open(rig->pool, need, nothing, &grants[n], &s) == KG_OK)
        n++;
    for (uint32_t i = 0; i < n; i++)
        rig->ops->grant_close(rig->pool, grants[i]);
    return n;
}

static void only_uniform_inflates_the_page(void **state)
{
    struct rig rig;

    (void)state;
    open_k3(&rig, split_path, "style=ratio", NULL);
    assert_int_equal(rig.layout.page_tokens, 64);
    assert_int_equal(rig.layout.stride[KG_PAGE], 884736);
    close_k3(&rig);
    open_k3(&rig, unified_path, NULL, NULL);
    assert_int_equal(rig.layout.page_tokens, 64);
    assert_int_equal(rig.layout.unit_bytes[KG_STATE], N_PARTS * PART_BYTES);
    close_k3(&rig);
    open_k3(&rig, split_path, "style=uniform", "state_blocks=3");
    assert_int_equal(rig.layout.slots_per_state, 3);
    assert_int_equal(rig.layout.parts_per_slot, 23);
    assert_int_equal(rig.layout.page_tokens, 64 * ceil_div(23 * PART_BYTES, 64 * TOKEN_BYTES));
    close_k3(&rig);
}

/* Bytes a sequence wastes: blocks of its state above the state, and half a block of pages. */
static uint64_t waste(const struct rig *rig)
{
    return rig->layout.unit_bytes[KG_STATE] - N_PARTS * PART_BYTES +
           rig->layout.stride[KG_PAGE] / 2;
}

static void uniform_chooses_the_block_that_wastes_least(void **state)
{
    struct rig rig;
    uint64_t least = UINT64_MAX, chosen;

    (void)state;
    for (uint32_t blocks = 1; blocks <= N_PARTS; blocks++) {
        char setting[32];
        (void)snprintf(setting, sizeof(setting), "state_blocks=%u", blocks);
        open_k3(&rig, split_path, "style=uniform", setting);
        assert_true(rig.layout.slots_per_state <= blocks);
        if (waste(&rig) < least)
            least = waste(&rig);
        close_k3(&rig);
    }
    open_k3(&rig, split_path, "style=uniform", NULL);
    chosen = waste(&rig);
    close_k3(&rig);
    assert_int_equal(chosen, least);
}

static void uniform_waste_is_accounted_as_padding(void **state)
{
    struct rig rig;
    struct kg_pool_bytes b;
    const uint32_t need[KG_N_KINDS] = {3, 2};
    uint32_t grant, ids[3];
    struct kg_shortage s;

    (void)state;
    open_k3(&rig, split_path, "style=uniform", "state_blocks=3");
    assert_int_equal(rig.ops->grant_open(rig.pool, need, nothing, &grant, &s), KG_OK);
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_STATE, 2, ids), KG_OK);
    rig.ops->bytes(rig.pool, &b);
    assert_int_equal(b.live[KG_STATE], 2ull * N_PARTS * PART_BYTES);
    assert_int_equal(b.padding, 2 * (3 * rig.layout.stride[0] - (uint64_t)N_PARTS * PART_BYTES));
    assert_int_equal(rig.ops->take(rig.pool, grant, KG_PAGE, 3, ids), KG_OK);
    rig.ops->bytes(rig.pool, &b);
    assert_int_equal(b.live[KG_PAGE], 3ull * rig.layout.page_tokens * TOKEN_BYTES);
    assert_true(rig_sums_hold(&b));
    close_k3(&rig);
}

/* What is admitted is the closed form, to the unit. */
static void capacity_is_the_closed_form(void **state) /* V32, S40 */
{
    const uint64_t lengths[] = {1000, 30000, 100096, 1000000};
    struct rig rig;

    (void)state;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint64_t pages = ceil_div(lengths[i], 64), state_bytes = N_PARTS * PART_BYTES;
        uint64_t arena = k3_geom().arena_bytes;

        open_k3(&rig, unified_path, NULL, NULL);
        assert_int_equal(admitted(&rig, lengths[i]), arena / (state_bytes + pages * 884736));
        close_k3(&rig);

        open_k3(&rig, split_path, "style=ratio", "states=200");
        uint64_t by_pages = (arena - 200 * state_bytes) / 884736 / pages;
        assert_int_equal(admitted(&rig, lengths[i]), by_pages < 200 ? by_pages : 200);
        close_k3(&rig);

        open_k3(&rig, split_path, "style=uniform", "state_blocks=3");
        uint64_t tokens = 64 * ceil_div(23 * PART_BYTES, 64 * TOKEN_BYTES);
        uint64_t blocks = arena / (tokens * TOKEN_BYTES);
        assert_int_equal(admitted(&rig, lengths[i]), blocks / (3 + ceil_div(lengths[i], tokens)));
        close_k3(&rig);
    }
}

static void ratio_is_bytes_of_states_to_bytes_of_pages(void **state)
{
    struct rig rig;

    (void)state;
    open_k3(&rig, split_path, "style=ratio", "ratio=3");
    uint64_t states = rig.layout.max_units[KG_STATE] * rig.layout.unit_bytes[KG_STATE];
    uint64_t wanted = k3_geom().arena_bytes / 4 * 3;
    assert_true(states <= wanted && wanted - states < rig.layout.unit_bytes[KG_STATE]);
    assert_true(k3_geom().arena_bytes - rig.layout.arena_bytes < rig.layout.unit_bytes[KG_PAGE]);
    close_k3(&rig);
}

/* More sequences than states is refused with the number that works, and it does. */
static void too_few_states_are_refused_with_a_number_that_works(void **state) /* V34 */
{
    char *few[] = {"style=ratio", "ratio=0.1"};
    struct kg_pool_geom geom = k3_geom();
    struct kg_error err = {0};
    struct rig rig;
    char setting[32];
    unsigned states = 0;
    double ratio = 0;

    (void)state;
    assert_int_equal(rig_load(&rig, split_path, 2, few), 0);
    assert_int_equal(rig_open(&rig, &geom, &err), KG_ECONFIG);
    rig_unload(&rig);
    const char *advice = strstr(err.text, "raise ratio to ");
    if (advice == NULL ||
        sscanf(advice, "raise ratio to %lf or set states = %u", &ratio, &states) != 2)
        fail_msg("no advice in: %s", err.text);
    assert_int_equal(states, geom.max_seqs);
    (void)snprintf(setting, sizeof(setting), "states=%u", states);
    open_k3(&rig, split_path, "style=ratio", setting);
    close_k3(&rig);
    (void)snprintf(setting, sizeof(setting), "ratio=%.6g", ratio);
    open_k3(&rig, split_path, "style=ratio", setting);
    assert_true(rig.layout.max_units[KG_STATE] >= geom.max_seqs);
    close_k3(&rig);
}

/* A split tuned for long prompts strangles short ones, and the other way round. */
static void one_arena_admits_at_least_as_many_in_either_phase(void **state) /* S21 */
{
    const char *ratios[] = {"ratio=0.2", "ratio=0.9", "ratio=4"};
    struct rig split, unified;
    uint32_t lost = 0;

    (void)state;
    open_k3(&unified, unified_path, NULL, NULL);
    for (size_t i = 0; i < 3; i++) {
        open_k3(&split, split_path, "style=ratio", ratios[i]);
        for (uint64_t tokens = 500; tokens <= 500000; tokens *= 10) {
            uint32_t a = admitted(&split, tokens), b = admitted(&unified, tokens);
            assert_true(a <= b);
            lost += a < b;
        }
        close_k3(&split);
    }
    close_k3(&unified);
    assert_true(lost >= 6); /* each ratio is wrong for most lengths */
}

/* The option caps each idle compaction below what the caller allows; 0 turns them off. */
static void idle_moves_caps_idle_compaction(void **state)
{
    const char *settings[] = {"idle_moves=0", "idle_moves=2", "idle_moves=64"};
    const int most[] = {0, 2, 5};
    const uint32_t need[KG_N_KINDS] = {[KG_PAGE] = 10};

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct rig rig;
        struct kg_shortage s;
        uint32_t grant, ids[10];
        open_k3(&rig, unified_path, settings[i], NULL);
        assert_int_equal(rig.ops->grant_open(rig.pool, need, nothing, &grant, &s), KG_OK);
        assert_int_equal(rig.ops->take(rig.pool, grant, KG_PAGE, 10, ids), KG_OK);
        assert_int_equal(rig.ops->give(rig.pool, KG_PAGE, 5, ids), KG_OK);
        assert_int_equal(rig.ops->compact(rig.pool, 100), most[i]);
        close_k3(&rig);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_uniform_inflates_the_page),
        cmocka_unit_test(uniform_chooses_the_block_that_wastes_least),
        cmocka_unit_test(uniform_waste_is_accounted_as_padding),
        cmocka_unit_test(capacity_is_the_closed_form),
        cmocka_unit_test(ratio_is_bytes_of_states_to_bytes_of_pages),
        cmocka_unit_test(too_few_states_are_refused_with_a_number_that_works),
        cmocka_unit_test(one_arena_admits_at_least_as_many_in_either_phase),
        cmocka_unit_test(idle_moves_caps_idle_compaction),
    };

    if (argc != 3) {
        print_error("usage: numbers_test pool-split.so pool-unified.so\n");
        return 2;
    }
    split_path = argv[1];
    unified_path = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
