#include "plan.h"

#include <inttypes.h>

/* Far above any arena, far below where sums of two could wrap. */
#define TOO_MUCH (UINT64_C(1) << 62)

/* a * b, or TOO_MUCH: what is too much to count fits nowhere. */
static uint64_t mul(uint64_t a, uint64_t b)
{
    uint64_t product;

    if (__builtin_mul_overflow(a, b, &product) || product > TOO_MUCH)
        return TOO_MUCH;
    return product;
}

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static uint64_t round_up(uint64_t a, uint64_t step)
{
    return mul(ceil_div(a, step), step);
}

static int check_ids(uint64_t slots, uint64_t stride, const char *what, struct kg_error *err)
{
    if (slots > INT32_MAX)
        return kg_fail(err, KG_ECONFIG,
                       "%" PRIu64 " %s of %" PRIu64 " bytes: ids are 32-bit, at most %d", slots,
                       what, stride, INT32_MAX);
    return KG_OK;
}

/* Number of states that `ratio` gives of an arena; at least one page is left over by the caller. */
static uint64_t states_by_ratio(double ratio, uint64_t arena_bytes, uint64_t stride)
{
    return (uint64_t)((double)arena_bytes * (ratio / (1.0 + ratio))) / stride;
}

static int plan_ratio(const struct conf *conf, const struct kg_pool_geom *g,
                      struct kg_pool_layout *l, uint64_t natural[KG_N_KINDS], struct kg_error *err)
{
    uint64_t tokens = round_up(g->page_tokens, g->page_tokens_align);

    natural[KG_PAGE] = mul(tokens, g->token_bytes);
    natural[KG_STATE] = mul(g->n_state_parts, g->state_part_bytes);
    uint64_t page = round_up(natural[KG_PAGE], g->align);
    uint64_t state = round_up(natural[KG_STATE], g->align);
    uint64_t least = mul(g->max_seqs, state);
    if (tokens > UINT32_MAX || page + least > g->arena_bytes)
        return kg_fail(err, KG_ECONFIG,
                       "[memory] bytes = %" PRIu64 " cannot hold max_seqs = %u states of %" PRIu64
                       " bytes and one page of %" PRIu64 " bytes: %" PRIu64 " bytes",
                       g->arena_bytes, g->max_seqs, state, page, page + least);

    uint64_t states =
        conf->states > 0 ? conf->states : states_by_ratio(conf->ratio, g->arena_bytes, state);
    if (states < g->max_seqs)
        return kg_fail(err, KG_ECONFIG,
                       "[pool-split] %s = %.6g gives %" PRIu64 " states of %" PRIu64
                       " bytes, max_seqs = %u needs %u: raise ratio to %.6g or set states = %u",
                       conf->states > 0 ? "states" : "ratio",
                       conf->states > 0 ? (double)conf->states : conf->ratio, states, state,
                       g->max_seqs, g->max_seqs,
                       1.001 * (double)(least + 1) / (double)(g->arena_bytes - least), g->max_seqs);
    if (mul(states, state) > g->arena_bytes - page)
        return kg_fail(err, KG_ECONFIG,
                       "[pool-split] %" PRIu64 " states of %" PRIu64
                       " bytes leave no page of %" PRIu64 " bytes in [memory] bytes = %" PRIu64,
                       states, state, page, g->arena_bytes);
    uint64_t pages = (g->arena_bytes - states * state) / page;
    int rc =
        check_ids(states > pages ? states : pages, states > pages ? state : page, "units", err);
    if (rc != KG_OK)
        return rc;

    *l = (struct kg_pool_layout){
        .size = sizeof(*l),
        .arena_bytes = states * state + pages * page,
        .base = {[KG_STATE] = 0, [KG_PAGE] = states * state},
        .stride = {[KG_STATE] = state, [KG_PAGE] = page},
        .unit_bytes = {[KG_STATE] = state, [KG_PAGE] = page},
        .max_slots = {[KG_STATE] = (uint32_t)states, [KG_PAGE] = (uint32_t)pages},
        .max_units = {[KG_STATE] = (uint32_t)states, [KG_PAGE] = (uint32_t)pages},
        .page_tokens = (uint32_t)tokens,
        .slots_per_state = 1,
        .parts_per_slot = g->n_state_parts,
        .caps = 0,
    };
    return KG_OK;
}

/* One way to cut a state into blocks. */
struct cut {
    uint64_t parts;  /* per block */
    uint64_t blocks; /* per state */
    uint64_t tokens; /* per page: inflated until a block holds `parts` */
    uint64_t bytes;  /* of a block */
};

static struct cut cut_by(const struct kg_pool_geom *g, uint64_t parts)
{
    struct cut c = {.parts = parts, .blocks = ceil_div(g->n_state_parts, parts)};
    uint64_t part_set = mul(parts, g->state_part_bytes);
    uint64_t tokens = ceil_div(part_set, g->token_bytes);

    c.tokens = round_up(tokens > g->page_tokens ? tokens : g->page_tokens, g->page_tokens_align);
    c.bytes = round_up(mul(c.tokens, g->token_bytes), g->align);
    return c;
}

/*
 * Bytes that one sequence wastes: what its state leaves unused of its blocks, and half a block,
 * since on average half of the last page is empty. Few large blocks pack the state well but
 * make large pages; many small ones the other way round.
 */
static uint64_t waste(const struct kg_pool_geom *g, const struct cut *c)
{
    return mul(c->blocks, c->bytes) - mul(g->n_state_parts, g->state_part_bytes) + c->bytes / 2;
}

static struct cut choose_cut(const struct kg_pool_geom *g, uint32_t state_blocks)
{
    if (state_blocks > 0)
        return cut_by(g, ceil_div(g->n_state_parts, state_blocks));

    /* From one block per state to one part per block; of equals the one with fewer entries. */
    struct cut best = cut_by(g, g->n_state_parts);
    for (uint64_t parts = (uint64_t)g->n_state_parts - 1; parts > 0; parts--) {
        struct cut c = cut_by(g, parts);
        if (waste(g, &c) < waste(g, &best))
            best = c;
    }
    return best;
}

static int plan_uniform(const struct conf *conf, const struct kg_pool_geom *g,
                        struct kg_pool_layout *l, uint64_t natural[KG_N_KINDS],
                        struct kg_error *err)
{
    if (conf->state_blocks > g->n_state_parts)
        return kg_fail(err, KG_ECONFIG,
                       "[pool-split] state_blocks = %u is more than the %u parts of a state",
                       conf->state_blocks, g->n_state_parts);
    struct cut c = choose_cut(g, conf->state_blocks);
    uint64_t least = 1 + mul(c.blocks, g->max_seqs);
    if (c.tokens > UINT32_MAX || mul(least, c.bytes) > g->arena_bytes)
        return kg_fail(err, KG_ECONFIG,
                       "[memory] bytes = %" PRIu64 " cannot hold max_seqs = %u states of %" PRIu64
                       " blocks and one page of one block: %" PRIu64 " blocks of %" PRIu64
                       " bytes (%" PRIu64 " tokens)",
                       g->arena_bytes, g->max_seqs, c.blocks, least, c.bytes, c.tokens);
    uint64_t blocks = g->arena_bytes / c.bytes;
    int rc = check_ids(blocks, c.bytes, "blocks", err);
    if (rc != KG_OK)
        return rc;

    natural[KG_PAGE] = c.tokens * g->token_bytes;
    natural[KG_STATE] = g->n_state_parts * g->state_part_bytes;
    *l = (struct kg_pool_layout){
        .size = sizeof(*l),
        .arena_bytes = blocks * c.bytes,
        .base = {0, 0},
        .stride = {c.bytes, c.bytes},
        .unit_bytes = {[KG_PAGE] = c.bytes, [KG_STATE] = c.blocks * c.bytes},
        .max_slots = {(uint32_t)blocks, (uint32_t)blocks},
        .max_units = {[KG_PAGE] = (uint32_t)blocks, [KG_STATE] = (uint32_t)(blocks / c.blocks)},
        .page_tokens = (uint32_t)c.tokens,
        .slots_per_state = (uint32_t)c.blocks,
        .parts_per_slot = (uint32_t)c.parts,
        .caps = KG_POOL_CAP_SHARED,
    };
    return KG_OK;
}

int plan_arena(const struct conf *conf, const struct kg_pool_geom *geom,
               struct kg_pool_layout *layout, uint64_t natural[KG_N_KINDS], struct kg_error *err)
{
    int rc = kg_pool_geom_check(geom, err);

    if (rc != KG_OK)
        return rc;
    return conf->style == STYLE_UNIFORM ? plan_uniform(conf, geom, layout, natural, err)
                                        : plan_ratio(conf, geom, layout, natural, err);
}
