/* The flat list of cached prefixes. */
#include "oracle.h"

uint64_t oracle_prefix(uint64_t salt, const uint32_t *tokens, uint32_t n)
{
    uint64_t h = salt * 0x9e3779b97f4a7c15ull + n;

    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ (tokens[i] + 1)) * 0xff51afd7ed558ccdull;
        h ^= h >> 29;
    }
    return h;
}

struct oracle_entry *oracle_find(struct oracle *o, uint32_t kind, uint64_t prefix)
{
    for (uint32_t i = 0; i < o->n[kind]; i++) {
        if (o->list[kind][i].prefix == prefix) {
            return &o->list[kind][i];
        }
    }
    return NULL;
}

struct oracle_entry *oracle_find_id(struct oracle *o, uint32_t kind, uint32_t id)
{
    for (uint32_t i = 0; i < o->n[kind]; i++) {
        if (o->list[kind][i].id == id) {
            return &o->list[kind][i];
        }
    }
    return NULL;
}

void oracle_add(struct oracle *o, uint32_t kind, uint64_t prefix, uint32_t id, uint32_t users)
{
    o->list[kind][o->n[kind]++] = (struct oracle_entry){prefix, id, users};
}

void oracle_remove(struct oracle *o, struct oracle_entry *e, uint32_t kind)
{
    *e = o->list[kind][--o->n[kind]];
}

uint32_t oracle_reuse(struct oracle *o, uint64_t salt, const uint32_t *tokens, uint32_t n,
                      uint32_t *pages)
{
    uint32_t page = o->page_tokens, best = 0, p = page;

    for (; p + 1 <= n; p += page) {
        uint64_t prefix = oracle_prefix(salt, tokens, p);
        if (oracle_find(o, KG_PAGE, prefix) == NULL) {
            break;
        }
        if (oracle_find(o, KG_STATE, prefix) != NULL) {
            best = p;
        }
    }
    *pages = p - page;
    return best;
}

uint32_t oracle_idle(const struct oracle *o, uint32_t kind)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < o->n[kind]; i++) {
        n += o->list[kind][i].users == 0;
    }
    return n;
}
