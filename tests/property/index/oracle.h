/*
 * What a prefix cache holds, as flat lists: a page is cached for exactly one prefix (salt and all
 * tokens up to its end), a state for exactly one. Nothing is shared with the index: prefixes are
 * told apart by a hash over all their tokens, look-up is a search of the whole list.
 */
#ifndef KEDGE_TESTS_PROPERTY_INDEX_ORACLE_H
#define KEDGE_TESTS_PROPERTY_INDEX_ORACLE_H

#include <kedge/types.h>

#define ORACLE_MAX 4096

struct oracle_entry {
    uint64_t prefix;
    uint32_t id;
    uint32_t users; /* live requests that read it (states: copies under way) */
};

struct oracle {
    uint32_t page_tokens;
    uint32_t n[KG_N_KINDS];
    struct oracle_entry list[KG_N_KINDS][ORACLE_MAX];
};

/* Of salt and tokens[n]. */
uint64_t oracle_prefix(uint64_t salt, const uint32_t *tokens, uint32_t n);
/* The entry of a kind for a prefix, NULL when it is not cached. */
struct oracle_entry *oracle_find(struct oracle *o, uint32_t kind, uint64_t prefix);
struct oracle_entry *oracle_find_id(struct oracle *o, uint32_t kind, uint32_t id);
void oracle_add(struct oracle *o, uint32_t kind, uint64_t prefix, uint32_t id, uint32_t users);
void oracle_remove(struct oracle *o, struct oracle_entry *e, uint32_t kind);
/* Longest position, at most n - 1 rounded down to pages, at which all pages and a state are
 * cached. *pages: how far pages alone reach, with the same limit. */
uint32_t oracle_reuse(struct oracle *o, uint64_t salt, const uint32_t *tokens, uint32_t n,
                      uint32_t *pages);
/* Entries of a kind without users. */
uint32_t oracle_idle(const struct oracle *o, uint32_t kind);

#endif
