/* The snapshot other threads read: the engine's numbers as words, stored one by one. Words of two
 * steps may mix; each word is whole. The backend's clock is the last word. */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

#define N_WORDS (sizeof(struct kg_engine_stats) / sizeof(uint64_t))
_Static_assert(sizeof(struct kg_engine_stats) % sizeof(uint64_t) == 0, "stats are whole words");

int kg_stats_create(struct kg_engine *e)
{
    e->published = calloc(N_WORDS + 1, sizeof(*e->published));
    return e->published != NULL ? KG_OK : KG_ENOMEM;
}

void kg_stats_destroy(struct kg_engine *e)
{
    free(e->published);
}

void kg_stats_publish(struct kg_engine *e, uint64_t now_ns)
{
    struct kg_engine_stats *s = &e->stats;
    uint64_t words[N_WORDS];

    kg_cache_stats(e);
    s->n_waiting = e->waiting.n;
    s->n_running = e->n_running;
    s->lost = atomic_load_explicit(&e->lost, memory_order_relaxed);
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        s->n_used[k] = e->parts.pool_ops->n_used(e->pool, k);
    }
    e->parts.pool_ops->bytes(e->pool, &s->bytes);
    memcpy(words, s, sizeof(words));
    for (size_t i = 0; i < N_WORDS; i++) {
        atomic_store_explicit(&e->published[i], words[i], memory_order_relaxed);
    }
    atomic_store_explicit(&e->published[N_WORDS], now_ns, memory_order_relaxed);
}

void kg_engine_stats(const struct kg_engine *engine, struct kg_engine_stats *stats)
{
    uint64_t words[N_WORDS];

    for (size_t i = 0; i < N_WORDS; i++) {
        words[i] = atomic_load_explicit(&engine->published[i], memory_order_relaxed);
    }
    memcpy(stats, words, sizeof(words));
}

uint64_t kg_engine_now(const struct kg_engine *engine)
{
    if (engine->desc.caps & KG_EXEC_CAP_VIRTUAL) {
        return atomic_load_explicit(&engine->published[N_WORDS], memory_order_relaxed);
    }
    return engine->parts.exec_ops->now(engine->parts.exec);
}
