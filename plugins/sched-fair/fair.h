/*
 * sched-fair: shares service between tenants by virtual token counters (Sheng et al., "Fairness in
 * Serving Large Language Models", OSDI 2024). A tenant's counter rises with the tokens it is
 * served: prompt_weight per prompt token computed, output_weight per token of output. What runs
 * next is the work of the tenant with the lowest counter. A tenant that comes back after a pause
 * starts at the lowest counter of those that are there, so that idle time is not saved up.
 *
 * Tokens from the prefix cache cost nothing, and a prompt is charged once: what is computed again
 * after a preemption is free. Priorities come before tenants (classes 0 .. 7, higher ones count as
 * 7); fairness holds within a class. A request the core cannot admit now does not stop those behind
 * it, `look_past` of them a step. The core admits nobody younger than a request that waited past
 * [admission] max_wait_ms: so whenever somebody is put off, the oldest is asked about too. That
 * rule is stronger than fairness: a tenant that floods the queue for longer than max_wait_ms is
 * served by age; set it to 0 where fairness shall hold in overload.
 */
#ifndef KEDGE_SCHED_FAIR_FAIR_H
#define KEDGE_SCHED_FAIR_FAIR_H

#include <kedge/sched.h>

#define FAIR_CLASSES 8
#define FAIR_UNIT 1000 /* counter steps of a token of weight 1 */

struct fair_conf {
    double prompt_weight, output_weight;
    uint32_t look_past;
};

struct fair_tenant {
    uint64_t tenant, counter;
    uint64_t planned; /* in this plan: charge of what was planned, and of admitted prompts */
    uint64_t stamp;   /* plan whose lists it is in */
    uint32_t n_live;  /* requests between add and remove */
    uint32_t used;    /* 0: the row is empty */
    uint32_t head[FAIR_CLASSES], tail[FAIR_CLASSES]; /* of this plan; KG_NONE empty */
};

/* A request between add and remove. */
struct fair_req {
    uint32_t live, tenant;        /* row of its tenant */
    uint32_t n_prompt, n_charged; /* prompt tokens in all, and paid for */
    uint64_t last_run, last_ask;  /* plan it last decoded in, was last asked about in */
};

/* A request of the plan in a tenant's list. */
struct fair_item {
    struct kg_sched_req row;
    uint32_t waiting, next;
};

struct kg_sched {
    const struct kg_host *host;
    struct fair_conf conf;
    uint64_t prompt_cost, output_cost; /* counter steps per token */
    uint32_t max_requests, max_tenants;
    uint64_t n_plans;
    uint64_t last_counter;       /* of the tenant that left last when nobody was left */
    struct fair_tenant *tenants; /* [max_tenants] */
    struct fair_req *reqs;       /* [max_requests] */
    uint32_t *map;               /* [map_mask + 1] tenant -> row, KG_NONE empty */
    uint32_t map_mask, n_tenants;
    /* of a plan */
    struct fair_item *items; /* [max_requests] */
    uint32_t *active;        /* [max_tenants] rows with work in this plan */
    uint32_t *order;         /* [max_requests] */
    uint32_t n_items, n_active;
};

/* tenants.c: rows of tenants. The row of a tenant with a request more; there is always one. */
uint32_t fair_tenant_join(struct kg_sched *s, uint64_t tenant);
void fair_tenant_leave(struct kg_sched *s, uint32_t row);
int fair_tenants_check(const struct kg_sched *s, struct kg_error *err);

#endif
