/*
 * Which replica gets a request: what stands in front of several engines. A router sees prompts and
 * answers pass, nothing of what is inside an engine, and remembers what it sent where, in bounded
 * memory.
 *
 *   round-robin  the next one.
 *   least-load   the one with the fewest requests under way; of these the one that has gone longest
 *                without a new one.
 *   prefix       the one that can go on from the longest beginning of the prompt, as far as the
 *                router can tell; of these as least-load. A replica with `slack` more requests
 * under way than the least loaded does not count while there are others.
 *
 * What it can tell, for prefix: whole pages of every prompt it sent to a replica are there, and a
 * state stands where that prompt ended, where its messages ended, and where it parted from what
 * the replica had. What can be gone on from is the longest place where both are there. It does not
 * see what a replica evicts, nor answers but as part of the next prompt. Pages not seen for longest
 * are forgotten when more than `max_pages` are known.
 *
 * Deterministic: the choice is a function of the calls before.
 */
#ifndef KEDGE_EXPERIMENT_ROUTE_H
#define KEDGE_EXPERIMENT_ROUTE_H

#include <kedge/abi.h>
#include <stdint.h>

#define KG_ROUTE_MAX_REPLICAS 64u

enum kg_route_kind {
    KG_ROUTE_ROUND_ROBIN = 0,
    KG_ROUTE_LEAST_LOAD = 1,
    KG_ROUTE_PREFIX = 2,
};

struct kg_route_conf {
    uint32_t kind;        /* enum kg_route_kind */
    uint32_t n_replicas;  /* 1..KG_ROUTE_MAX_REPLICAS */
    uint32_t page_tokens; /* prefix: tokens of a page of the replicas, >= 1 */
    uint32_t max_pages;   /* prefix: pages remembered, >= 1; at most 48 bytes each */
    uint32_t slack;       /* prefix: requests, see above */
};

/* A request as the router sees it. */
struct kg_route_req {
    const uint32_t *tokens; /* [n_prompt] */
    uint32_t n_prompt;
    uint64_t tenant;        /* prompts of two tenants share nothing */
    const uint32_t *bounds; /* [n_bounds] message ends, token positions, ascending */
    uint32_t n_bounds;
};

struct kg_router;

/* KG_ENOMEM. Owner of *router: the caller, until destroy. */
KG_CHECKED int kg_router_create(const struct kg_route_conf *conf, struct kg_router **router,
                                struct kg_error *err);
void kg_router_destroy(struct kg_router *router); /* NULL is allowed */

/* Chooses among the replicas whose bit is set in `open` (at least one) and takes note of it.
 * *replica: 0..n_replicas-1. KG_ENOMEM: nothing was noted. */
KG_CHECKED int kg_router_choose(struct kg_router *router, const struct kg_route_req *req,
                                uint64_t open, uint32_t *replica);
/* A request sent to this replica is over, whatever became of it. */
void kg_router_done(struct kg_router *router, uint32_t replica);
/* Tokens the replica of the last choice was thought to go on from; 0 but for prefix. */
uint32_t kg_router_expected(const struct kg_router *router);

/* "round-robin", "least-load", "prefix". KG_EINVAL for another word. */
KG_CHECKED int kg_route_parse(const char *word, uint32_t *kind);
const char *kg_route_name(uint32_t kind);

#endif
