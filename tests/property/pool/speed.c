/*
 * Nanoseconds per op of a pool at K3's sizes: pool_speed PLUGIN.so [KEY=VALUE ...]. A figure, not
 * a test: meson runs it as a benchmark only. Half of the arena is in use with holes all over, as
 * after hours of traffic.
 */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 200000u
#define BATCH 32u

static const uint32_t nothing[KG_N_KINDS];
static uint64_t seed = 1;

static uint32_t below(uint32_t n)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((seed >> 33) % n);
}

static double now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void must(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

static uint32_t take(struct rig *rig, uint32_t kind, uint32_t n, uint32_t *ids)
{
    const uint32_t need[KG_N_KINDS] = {
        [KG_PAGE] = kind == KG_PAGE ? n : 0, [KG_STATE] = kind == KG_STATE ? n : 0};
    struct kg_shortage s;
    uint32_t grant;

    if (rig->ops->grant_open(rig->pool, need, nothing, &grant, &s) != KG_OK)
        return 0;
    must(rig->ops->take(rig->pool, grant, kind, n, ids) == KG_OK, "take");
    rig->ops->grant_close(rig->pool, grant);
    return n;
}

static void sync(struct rig *rig)
{
    const struct kg_move *moves;
    const struct kg_table_change *changes;
    uint32_t n_moves, n_changes;

    rig->ops->moves(rig->pool, &moves, &n_moves, &changes, &n_changes);
}

/* Random unit out, one unit in, through a grant; moves() each BATCH rounds, as a step does. */
static void churn(struct rig *rig, uint32_t kind, uint32_t *ids, uint32_t n)
{
    double from = now_ns();

    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t at = below(n);
        must(rig->ops->give(rig->pool, kind, 1, &ids[at]) == KG_OK, "give");
        must(take(rig, kind, 1, &ids[at]) == 1, "take");
        if (i % BATCH == 0)
            sync(rig);
    }
    printf("  %-5s give + grant + take + close   %7.1f ns\n", kg_kind_name(kind),
           (now_ns() - from) / ROUNDS);
}

/* A grant of BATCH pages taken one at a time and given back at once, as a long prompt does. */
static void batches(struct rig *rig)
{
    const uint32_t need[KG_N_KINDS] = {[KG_PAGE] = BATCH};
    struct kg_shortage s;
    uint32_t ids[BATCH], grant;
    double from = now_ns();

    for (uint32_t i = 0; i < ROUNDS / BATCH; i++) {
        must(rig->ops->grant_open(rig->pool, need, nothing, &grant, &s) == KG_OK, "grant");
        for (uint32_t j = 0; j < BATCH; j++)
            must(rig->ops->take(rig->pool, grant, KG_PAGE, 1, &ids[j]) == KG_OK, "take");
        rig->ops->grant_close(rig->pool, grant);
        must(rig->ops->give(rig->pool, KG_PAGE, BATCH, ids) == KG_OK, "give");
        sync(rig);
    }
    printf("  page  take + its share of give, moves %5.1f ns\n",
           (now_ns() - from) / (ROUNDS / BATCH * BATCH));
}

/* States taken while pages with holes fill the rest: takes compact where the pool can. */
static void urgent(struct rig *rig)
{
    uint32_t id, n_taken = 0;
    double from = now_ns();

    while (take(rig, KG_STATE, 1, &id) == 1)
        n_taken++;
    printf("  state take until full: %u states, %.1f ns each", n_taken,
           (now_ns() - from) / n_taken);
    if (rig_metric(rig, "relocations_total") != UINT64_MAX)
        printf(", with %llu moves", (unsigned long long)rig_metric(rig, "relocations_total"));
    printf("\n");
}

int main(int argc, char **argv)
{
    struct kg_pool_geom geom = {
        .size = sizeof(geom),
        .arena_bytes = UINT64_C(120) << 30,
        .token_bytes = 13824,
        .state_part_bytes = 814080,
        .n_state_parts = 69,
        .page_tokens = 64,
        .page_tokens_align = 64,
        .align = 256,
        .max_seqs = 256,
    };
    struct kg_error err = {0};
    struct rig rig;

    if (argc < 2 || rig_load(&rig, argv[1], argc - 2, argv + 2) != 0 ||
        rig_open(&rig, &geom, &err) != KG_OK) {
        fprintf(stderr, "usage: pool_speed PLUGIN.so [KEY=VALUE ...]; %s\n", err.text);
        return 2;
    }
    uint32_t n_pages = rig.layout.max_units[KG_PAGE] / 2, n_states = 400, kept = 0;
    uint32_t *pages = calloc(rig.layout.max_units[KG_PAGE], sizeof(*pages)), states[400];
    must(pages != NULL, "memory");
    must(take(&rig, KG_STATE, n_states, states) == n_states, "states");
    must(take(&rig, KG_PAGE, n_pages, pages) == n_pages, "pages");
    for (uint32_t i = 0; i < n_pages; i++) {
        if (below(3) == 0)
            must(rig.ops->give(rig.pool, KG_PAGE, 1, &pages[i]) == KG_OK, "give");
        else
            pages[kept++] = pages[i];
    }
    sync(&rig);
    printf("%u pages and %u states owned of at most %u and %u\n", kept, n_states,
           rig.layout.max_units[KG_PAGE], rig.layout.max_units[KG_STATE]);
    churn(&rig, KG_PAGE, pages, kept);
    churn(&rig, KG_STATE, states, n_states);
    batches(&rig);
    urgent(&rig);
    free(pages);
    must(rig_close(&rig) == 0, "close");
    rig_unload(&rig);
    return 0;
}
