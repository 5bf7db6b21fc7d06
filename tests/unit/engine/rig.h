/*
 * A rig for engine tests: opens exec-null and a choice of pool, scheduler and speculation, makes
 * an engine without a thread, and collects what each request said. Everything it finds wrong is a
 * failed assertion of the running test.
 */
#ifndef KEDGE_TESTS_UNIT_ENGINE_RIG_H
#define KEDGE_TESTS_UNIT_ENGINE_RIG_H

#include "engine/engine.h"
#include "engine/test.h"

#include <kedge/abi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* What to open. Strings "name" and "key=value key=value"; NULL or 0 takes the default. */
struct rig_conf {
    const char *exec_opts;          /* of exec-null */
    const char *pool, *pool_opts;   /* "unified" */
    const char *sched, *sched_opts; /* "fcfs" */
    const char *spec, *spec_opts;   /* none */
    uint32_t n_pages;               /* room beside n_states states, 64 */
    uint32_t n_states;              /* max_seqs */
    uint32_t max_seqs;              /* 8 */
    uint32_t max_requests;          /* 64 */
    uint32_t step_tokens;           /* 64 */
    uint32_t prefill_chunk;         /* 16 */
    uint32_t page_tokens;           /* 8 */
    uint32_t max_context;           /* the backend's */
    uint32_t max_draft;             /* of the backend, 8 */
    uint32_t keep_draft;            /* rows the engine keeps room for, 0 */
    uint32_t lifetime, quantile, max_wait_ms, queue_timeout_ms;
    uint32_t no_debug;                      /* 1: no checks after each step */
    uint32_t no_prefix;                     /* 1: no prefix reuse; it is on by default */
    uint32_t checkpoint;                    /* enum kg_ckpt_policy + 1; auto */
    uint32_t interval;                      /* tokens, 16 */
    uint64_t ghost_bytes;                   /* 64 KiB */
    const char *tier, *tier_opts;           /* none */
    uint64_t tier_step_bytes;               /* 1 MiB; RIG_NO_BYTES: 0 */
    uint32_t cost;                          /* 1: a cost surface is measured */
    const struct kg_cost_table *cost_table; /* or this one is given */
    /* Replaces the backend's table, for backends that fail. */
    const struct kg_exec_ops *(*wrap)(const struct kg_exec_ops *ops);
    const struct kg_engine_test *test;
    const struct kg_engine_policy *policy; /* none */
    const struct kg_engine_arm *arms;      /* [n_arms] instead of spec; none */
    uint32_t n_arms;
};

/* A plugin instance the rig opened. */
struct rig_part {
    const struct kg_plugin *plugin;
    struct kg_host host;
    struct kg_cell cells[32];
    uint8_t conf[512];
    char text[512]; /* of the options: strings of conf point into it */
    uint64_t held;  /* bytes */
};

#define RIG_NO_BYTES UINT64_MAX
#define RIG_IDS 2048 /* requests have ids 1 .. RIG_IDS-1 */
#define RIG_TOKENS 512

/* What one request said. */
struct rig_out {
    uint32_t submitted, done;
    uint32_t n_prompt, max_tokens;
    struct kg_sampling sampling;
    uint32_t tokens[2 * RIG_TOKENS]; /* prompt, then output */
    uint32_t n_output;
    uint32_t n_echo;
    struct kg_event end; /* DONE */
};

struct rig {
    struct rig_part exec_part, pool_part, sched_part, spec_part, tier_part;
    struct kg_engine_parts parts;
    struct kg_exec *exec;
    struct kg_engine *engine;
    uint32_t vocab;
    struct rig_out *outs;  /* [RIG_IDS] */
    uint32_t n_open;       /* submitted, not done */
    uint32_t n_swapped;    /* swaps carried out */
    struct kg_error error; /* of the last step that failed */
    /* Prompts begin with min(n_shared, n_prompt) tokens of one of n_groups texts; a message ends
     * there. 0: nothing is shared. */
    uint32_t n_shared, n_groups;
    uint32_t flags; /* of requests to come: KG_REQ_* */
    uint64_t salt;
    uint32_t arm;
};

/* Built-in, double, or file in the plugin folder of the build; NULL when there is none. */
const struct kg_plugin *rig_find(uint32_t kind, const char *name);
/* Fills `part` for a plugin: host, and options from "key=value ..." over the defaults. */
void rig_part_open(struct rig_part *part, const struct kg_plugin *plugin, const char *opts,
                   uint32_t debug);
/* Every byte the plugin took was given back. */
void rig_part_closed(const struct rig_part *part);

void rig_open(struct rig *rig, const struct rig_conf *conf);
void rig_close(struct rig *rig);

/* A prompt of n tokens that depends on `seed` alone. */
void rig_prompt(uint32_t *tokens, uint32_t n, uint64_t seed, uint32_t vocab);
/* Submits id with a seeded prompt; sampling may be NULL for greedy. Returns the rc. */
int rig_submit(struct rig *rig, uint64_t id, uint32_t n_prompt, uint32_t max_tokens,
               const struct kg_sampling *sampling);
/* One step and all its events. Returns the step's rc. */
int rig_step(struct rig *rig);
/* Events only. */
void rig_pump(struct rig *rig);
/* Steps until every request is done; fails after `max_steps`. Returns the steps. */
uint32_t rig_run(struct rig *rig, uint32_t max_steps);
/* Units are all back. */
void rig_assert_empty(struct rig *rig);
/* The request's output is a prefix of the script, and all of it when it ended by itself. */
void rig_assert_true(struct rig *rig, uint64_t id);

#endif
