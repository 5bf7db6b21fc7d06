/*
 * Two homes of cached work, the arena and a tier: which of them a request goes on from. A pure
 * function of what each has, in exact lengths.
 *
 * What can be reused ends where a state is, and every page before it must be there: a pair. The
 * tier's pair is what both homes give together: pages reach as far as each page is in the arena or
 * in the tier, and the state is the tier's deepest one within them.
 *
 *     usable(pair) = state, if state <= pages; else nothing: pages do not make up for a state that
 *                    did not arrive, nor a state for missing pages
 *     the longer usable one wins; equal ones are taken from the arena
 */
#ifndef KEDGE_ENGINE_RECONCILE_H
#define KEDGE_ENGINE_RECONCILE_H

#include <stdint.h>

/* Lengths in tokens from the beginning of a request; whole pages. */
struct kg_pair {
    uint32_t pages; /* every page up to here is there */
    uint32_t state; /* the deepest state; 0 none */
};

enum kg_home {
    KG_HOME_NONE = 0, /* nothing can be reused: cold */
    KG_HOME_ARENA = 1,
    KG_HOME_TIER = 2,
};

struct kg_reuse {
    uint32_t home;      /* enum kg_home: where the state comes from */
    uint32_t tokens;    /* reused in all */
    uint32_t load_from; /* TIER: pages from here to `tokens` come from the tier; else == tokens */
};

struct kg_reuse kg_reconcile(struct kg_pair arena, struct kg_pair tier);

#endif
