/*
 * Drives the plugin exec-cpu through its public table, with a pool of the test's own: pages and
 * states at slots that change between steps when asked. Whatever the contract promises is asserted.
 */
#ifndef KEDGE_TESTS_GOLDEN_EXEC_RIG_H
#define KEDGE_TESTS_GOLDEN_EXEC_RIG_H

#include <kedge/exec.h>

#define XRIG_REQUESTS 64
#define XRIG_TOKENS 768 /* of one request, prompt and output */
#define XRIG_PAGES 4096
#define XRIG_STATES 192

struct xrig_options {
    const char *plugin;          /* NULL: the plugin of this build */
    const char *model;           /* below TEST_ROOT, "models/k3-tiny"; or from the root, "/..." */
    uint32_t math, threads, isa; /* of the plugin */
    uint32_t page_tokens;
    uint32_t parts_per_slot; /* 0: a state is one entry */
    uint32_t max_seqs, max_rows;
    uint32_t n_pages, n_states; /* <= XRIG_PAGES, XRIG_STATES; 0: those */
    uint32_t max_draft, rewind; /* rewind: 0 replay, 1 snapshot */
    const char *draft;          /* drafter below TEST_ROOT; NULL for none */
    uint32_t sp_rows;           /* as in kg_exec_open; only with ranks */
};

/* One unit kind of the test's pool. */
struct xrig_units {
    uint32_t n, n_slots, entries; /* units, slots, table entries of a unit */
    uint32_t *table;              /* [n * entries] */
    uint8_t *slot_used;           /* [n_slots] */
    uint8_t *unit_used;           /* [n] */
};

struct xrig {
    void *so;
    struct xranks *group; /* NULL: one rank */
    const struct kg_exec_ops *ops;
    struct kg_host host;
    uint64_t held_bytes;
    struct kg_exec *exec;
    struct kg_exec_desc desc;
    struct kg_pool_layout layout;
    struct xrig_units units[KG_N_KINDS];
    struct kg_table_change *changes; /* not yet applied */
    uint32_t n_changes;
    uint64_t step, random;
};

/* Arguments of a test's main, [RANKS [EP [device]]]: every rig is a group of so many ranks, with as
 * many blocks of experts, from here on. A rank may be left with padding only. */
void xrig_set_ranks(int argc, char **argv);
uint32_t xrig_world(void);
/* 1: rigs from here on are of exec-cuda over the emulator, with as many devices as ranks and
 * collectives on device memory, in place of exec-cpu; 0: exec-cpu. */
void xrig_on_device(uint32_t device);
uint32_t xrig_is_on_device(void);
/* The same as "section.key=value ..." for a configuration, sequence-parallel from 20 rows on; "" of
 * one rank. */
const char *xrig_sets(void);

/* Opens plugin and model and binds the arena, which is filled with NaN. */
void xrig_open(struct xrig *x, const struct xrig_options *o);
/* Closes; everything taken from the host was given back. */
void xrig_close(struct xrig *x);
/* Opens only, with the options; returns the rc of open. */
int xrig_try_open(struct xrig *x, const struct xrig_options *o, const char *model_path,
                  struct kg_error *err);

/* Takes or gives a unit; slots are dealt at random. */
uint32_t xrig_take(struct xrig *x, uint32_t kind);
void xrig_give(struct xrig *x, uint32_t kind, uint32_t id);
/* Moves up to n random entries of each kind to other slots, or only flushes with n 0. */
void xrig_apply(struct xrig *x, uint32_t n);
uint64_t xrig_random(struct xrig *x);

/* Submits and waits. */
void xrig_step(struct xrig *x, const struct kg_seq *seqs, uint32_t n, struct kg_result *result);

/* ---- requests ------------------------------------------------------------------------- */

struct xreq {
    uint32_t n_prompt, n_max;     /* prompt, and most tokens in all */
    uint32_t tokens[XRIG_TOKENS]; /* prompt, then output */
    uint64_t bits[XRIG_TOKENS];   /* hash of the logits at each position */
    uint32_t n;                   /* tokens known */
    uint32_t past;
    uint32_t slot, state;
    uint32_t pages[XRIG_TOKENS];
    uint32_t n_pages, n_shared; /* the first n_shared are another's */
    uint32_t state_src;
    uint32_t running, reset;
    struct kg_sampling sampling;
    /* a checkpoint at this position, taken on the way; 0: none */
    uint32_t order_at, order_unit;
    uint32_t ordered; /* 1: the unit holds that state */
};

/* Hash of the bits of n floats. */
uint64_t xrig_hash(const float *row, uint32_t n);
/* 1 when KEDGE_FULL=1 asks for the whole sweep. */
uint32_t xrig_is_full(void);
/* n requests on slices of the golden prompts: real text, lengths 3 .. 150. */
void xreq_prompts(struct xreq *reqs, uint32_t n, float temperature);

struct xrun {
    uint32_t batch;   /* most requests at once */
    uint32_t chunk;   /* most prompt rows of a request in a step; 0: all */
    uint32_t moves;   /* entries moved before each step */
    uint32_t preempt; /* one in so many steps throws a random request back to the start; 0: never */
};

/* Runs requests to their end; fills tokens and bits. */
void xrun(struct xrig *x, struct xreq *reqs, uint32_t n, const struct xrun *how);
/* Gives a finished or running request's units back. */
void xreq_release(struct xrig *x, struct xreq *r);

#endif
