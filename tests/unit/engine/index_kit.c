#include "index_kit.h"

#include "base/rng.h"

#include <string.h>

void kit_open(struct kit *k, uint32_t page, uint32_t n_pages, uint32_t n_states, uint32_t policy,
              uint32_t interval)
{
    struct kg_error err;

    memset(k, 0, sizeof(*k));
    k->conf = (struct kg_index_conf){.page_tokens = page,
                                     .max_units = {n_pages, n_states},
                                     .unit_bytes = {page, 32ull * page},
                                     .ghost_bytes = 4 << 20,
                                     .seed = 1};
    k->policy = policy;
    k->interval = interval;
    k->gap = 32 * page;
    k->chunk = 8192;
    k->max_orders = 4;
    assert_int_equal(kg_index_create(&k->conf, &k->ix, &err), KG_OK);
    for (uint32_t kind = 0; kind < KG_N_KINDS; kind++) {
        for (uint32_t i = k->conf.max_units[kind]; i-- > 0;) {
            k->free[kind][k->n_free[kind]++] = i;
        }
    }
}

void kit_check(const struct kit *k)
{
    struct kg_error err;

    if (kg_index_check(k->ix, &err) != KG_OK) {
        fail_msg("%s", err.text);
    }
}

/* Nothing is locked any more, and every unit comes back. */
void kit_close(struct kit *k)
{
    struct kg_index_victim v;

    kit_check(k);
    while (kit_evict(k, KIT_UNITS, 1, &v) == KG_OK) {
    }
    assert_int_equal(k->n_free[KG_PAGE], k->conf.max_units[KG_PAGE]);
    assert_int_equal(k->n_free[KG_STATE], k->conf.max_units[KG_STATE]);
    kg_index_destroy(k->ix);
}

void kit_tokens(uint32_t *tokens, uint32_t n, uint64_t seed)
{
    struct kg_rng r;

    kg_rng_seed(&r, seed);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = (uint32_t)kg_rng_below(&r, 1000);
    }
}

void kit_give(struct kit *k, uint32_t kind, uint32_t id)
{
    assert_true(k->n_free[kind] < k->conf.max_units[kind]);
    k->free[kind][k->n_free[kind]++] = id;
}

int kit_evict(struct kit *k, uint32_t want_pages, uint32_t want_states, struct kg_index_victim *v)
{
    uint32_t want[KG_N_KINDS] = {want_pages, want_states};
    static uint32_t pages[KIT_UNITS];
    int rc = kg_index_evict(k->ix, want, pages, KIT_UNITS, v);

    for (uint32_t i = 0; rc == KG_OK && i < v->n_pages; i++) {
        kit_give(k, KG_PAGE, pages[i]);
    }
    if (rc == KG_OK && v->state != KG_NONE) {
        kit_give(k, KG_STATE, v->state);
    }
    return rc;
}

uint32_t kit_take(struct kit *k, uint32_t kind)
{
    struct kg_index_victim v;

    while (k->n_free[kind] == 0) {
        int rc = kit_evict(k, kind == KG_PAGE ? 1 : KG_NONE, kind == KG_STATE ? 1 : KG_NONE, &v);
        if (rc != KG_OK) {
            return KG_NONE;
        }
    }
    return k->free[kind][--k->n_free[kind]];
}

struct kg_index_match kit_match(struct kit *k, uint64_t salt, const uint32_t *tokens, uint32_t n)
{
    struct kg_index_match m;

    kg_index_match(k->ix, salt, tokens, n, &m);
    return m;
}

/* Pages the path does not cover yet go into the index; what it hands out goes back. */
static void bring(struct kit *k, struct kg_index_path *path, const uint32_t *tokens,
                  uint32_t *pages, uint8_t *mine, uint32_t n_pages)
{
    uint32_t page = k->conf.page_tokens, at = path->n_tokens / page;
    static uint32_t out[KIT_UNITS];
    uint32_t n = kg_index_append(k->ix, path, tokens + (size_t)at * page, pages + at, n_pages - at,
                                 out, NULL);

    for (uint32_t i = 0; i < n; i++) {
        mine[at + i] = 0;
        if (out[i] != KG_NONE) {
            kit_give(k, KG_PAGE, out[i]);
        }
    }
}

static uint32_t kind_of(const struct kit *k, uint32_t why)
{
    return kg_ckpt_kind(why, k->n_seen, k->n_prompt, k->conf.page_tokens);
}

/* A checkpoint of the request; under auto it must be worth its place. */
static void checkpoint(struct kit *k, struct kg_index_path *path, const uint32_t *tokens,
                       const struct kg_ckpt *c, uint32_t *last, uint32_t *answer, uint32_t *unit)
{
    if (c->why == KG_CKPT_WHY_ANSWER && *answer > 0) {
        if (kg_index_withdraw(k->ix, path, *answer, *unit) == KG_OK) {
            kit_give(k, KG_STATE, *unit);
        }
        *answer = 0;
    }
    uint32_t from = kg_index_state_below(k->ix, path, c->position - 1);
    if (k->n_free[KG_STATE] == 0 &&
        !kg_ckpt_wins(k->policy, kg_index_worth(k->ix, from, c->position, kind_of(k, c->why)),
                      kg_index_cheapest(k->ix))) {
        k->n_pruned++;
        return;
    }
    uint32_t id = kit_take(k, KG_STATE);
    if (id == KG_NONE ||
        kg_index_donate(k->ix, path, tokens, c->position, id, kind_of(k, c->why)) != KG_OK) {
        k->n_skipped++;
        if (id != KG_NONE) {
            kit_give(k, KG_STATE, id);
        }
        return;
    }
    k->n_written++;
    *last = c->position;
    if (c->why == KG_CKPT_WHY_ANSWER) {
        *answer = c->position;
        *unit = id;
    }
}

struct kit_seen kit_run(struct kit *k, const uint32_t *tokens, uint32_t n_prompt, uint32_t n_output,
                        const uint32_t *ends, uint32_t n_ends)
{
    static uint32_t pages[KIT_UNITS];
    static uint8_t mine[KIT_UNITS];
    uint32_t page = k->conf.page_tokens, answer = 0, unit = KG_NONE;
    struct kg_index_match m = kit_match(k, 0, tokens, n_prompt);
    struct kg_index_path path = {0};
    struct kg_ckpt at[8];

    assert_int_equal(kg_index_open(k->ix, &m, 0, 1, 1, &path), KG_OK);
    kg_index_pages(k->ix, &path, pages);
    k->n_seen = m.seen_tokens;
    k->n_prompt = n_prompt;
    uint32_t n_pages = path.n_tokens / page, past = path.n_tokens, last = past;
    memset(mine, 0, n_pages);
    while (past + 1 < n_prompt + n_output) {
        uint32_t left = past < n_prompt ? n_prompt - past : 1, rows;
        struct kg_ckpt_view v = {.policy = k->policy,
                                 .page_tokens = page,
                                 .interval = k->interval,
                                 .gap = k->gap,
                                 .max_orders = k->max_orders,
                                 .n_prompt = n_prompt,
                                 .past = past,
                                 .n_rows = left < k->chunk ? left : k->chunk,
                                 .branch = m.seen_tokens,
                                 .last = last,
                                 .boundaries = ends,
                                 .n_boundaries = n_ends};
        uint32_t n = kg_ckpt_orders(&v, at, &rows);
        past += rows;
        kg_index_release(k->ix, &path);
        for (; n_pages < past / page; n_pages++) {
            mine[n_pages] = 1;
            pages[n_pages] = kit_take(k, KG_PAGE);
            assert_int_not_equal(pages[n_pages], KG_NONE);
        }
        bring(k, &path, tokens, pages, mine, n_pages);
        for (uint32_t i = 0; i < n; i++) {
            checkpoint(k, &path, tokens, &at[i], &last, &answer, &unit);
        }
    }
    bring(k, &path, tokens, pages, mine, n_pages);
    kg_index_close(k->ix, &path);
    for (uint32_t i = 0; i < n_pages; i++) {
        if (mine[i]) {
            kit_give(k, KG_PAGE, pages[i]);
        }
    }
    return (struct kit_seen){m.state_tokens, m.page_tokens, m.seen_tokens,
                             m.page_tokens - m.state_tokens};
}

void kit_insert(struct kit *k, struct kg_index_path *path, uint64_t salt, const uint32_t *tokens,
                uint32_t n_pages)
{
    static uint32_t pages[KIT_UNITS];
    static uint8_t mine[KIT_UNITS];
    uint32_t page = k->conf.page_tokens;
    struct kg_index_match m = kit_match(k, salt, tokens, n_pages * page + 1);

    *path = (struct kg_index_path){0};
    assert_int_equal(kg_index_open(k->ix, &m, salt, 1, 1, path), KG_OK);
    kg_index_pages(k->ix, path, pages);
    for (uint32_t i = path->n_tokens / page; i < n_pages; i++) {
        pages[i] = kit_take(k, KG_PAGE);
    }
    bring(k, path, tokens, pages, mine, n_pages);
    assert_int_equal(path->n_tokens, n_pages * page);
    kg_index_release(k->ix, path);
}

void kit_state(struct kit *k, struct kg_index_path *path, const uint32_t *tokens, uint32_t position)
{
    assert_int_equal(kg_index_donate(k->ix, path, tokens, position, kit_take(k, KG_STATE), 0),
                     KG_OK);
}
