/*
 * A small engine around the prefix index: requests are prefilled in chunks, decoded token by token,
 * checkpointed as a policy says. Units are numbers from a stack; when one is short the cheapest
 * victims go. No pool, no backend.
 */
#ifndef KEDGE_TESTS_UNIT_ENGINE_INDEX_KIT_H
#define KEDGE_TESTS_UNIT_ENGINE_INDEX_KIT_H

#include "engine/index.h"
#include "engine/index_policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define KIT_UNITS 4096u

struct kit {
    struct kg_index *ix;
    struct kg_index_conf conf;
    uint32_t policy, interval, gap, chunk, max_orders;
    uint32_t free[KG_N_KINDS][KIT_UNITS];
    uint32_t n_free[KG_N_KINDS];
    uint32_t n_seen, n_prompt; /* of the request that runs: what the index had seen of it */
    uint64_t n_skipped, n_written, n_pruned;
};

/* What a request found, and what it would have found with a state everywhere. */
struct kit_seen {
    uint32_t reused, pages, seen, lost;
};

/* page_tokens, units of each kind; policy and interval as named. */
void kit_open(struct kit *k, uint32_t page, uint32_t n_pages, uint32_t n_states, uint32_t policy,
              uint32_t interval);
void kit_close(struct kit *k);
/* tokens[n] from a seed. */
void kit_tokens(uint32_t *tokens, uint32_t n, uint64_t seed);
uint32_t kit_take(struct kit *k, uint32_t kind);
void kit_give(struct kit *k, uint32_t kind, uint32_t id);
void kit_check(const struct kit *k);
/* A whole request: tokens[n_prompt + n_output], message ends. */
struct kit_seen kit_run(struct kit *k, const uint32_t *tokens, uint32_t n_prompt, uint32_t n_output,
                        const uint32_t *ends, uint32_t n_ends);
/* Begins a path at what is cached, brings the pages of tokens[n_pages * page], keeps it open. */
void kit_insert(struct kit *k, struct kg_index_path *path, uint64_t salt, const uint32_t *tokens,
                uint32_t n_pages);
/* Gives a fresh state to `position`; asserts that it was taken. */
void kit_state(struct kit *k, struct kg_index_path *path, const uint32_t *tokens,
               uint32_t position);
struct kg_index_match kit_match(struct kit *k, uint64_t salt, const uint32_t *tokens, uint32_t n);
/* One victim goes back to the stack. The rc of kg_index_evict. */
int kit_evict(struct kit *k, uint32_t want_pages, uint32_t want_states, struct kg_index_victim *v);

#endif
