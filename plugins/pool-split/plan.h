/*
 * How pool-split cuts the arena: from the options and the geometry to the layout, in numbers
 * only. No state; called once by open.
 */
#ifndef KEDGE_POOL_SPLIT_PLAN_H
#define KEDGE_POOL_SPLIT_PLAN_H

#include <kedge/pool.h>

enum { STYLE_RATIO = 0, STYLE_UNIFORM = 1 };

/* The option struct; the rows in pool_split.c fill it. */
struct conf {
    uint32_t style;        /* STYLE_* */
    uint32_t states;       /* ratio: exact number of states, 0 = by `ratio` */
    double ratio;          /* ratio: bytes of states : bytes of pages, > 0 */
    uint32_t state_blocks; /* uniform: blocks a state is spread over at most, 0 = choose */
};

/*
 * Checks geom and plans the arena. The layout, and natural[kind]: bytes of a unit without stride
 * or packing, are set on success only. KG_ECONFIG with the numbers when geom makes no sense or
 * one page and max_seqs states do not fit.
 */
int plan_arena(const struct conf *conf, const struct kg_pool_geom *geom,
               struct kg_pool_layout *layout, uint64_t natural[KG_N_KINDS], struct kg_error *err);

#endif
