/*
 * A small driver of one backend for the conformance cases: it plays pool and engine, with a layout
 * and a unit table of its own, so that a case says only what matters to it.
 */
#ifndef KEDGE_TESTS_CONFORMANCE_EXEC_XC_H
#define KEDGE_TESTS_CONFORMANCE_EXEC_XC_H

#include "rig.h"

#define XC_PAGES 96
#define XC_STATES 24
#define XC_SEQS 6
#ifndef XC_CONTEXT /* tests of one backend may choose */
#define XC_ROWS 64
#define XC_CONTEXT 128
#define XC_DRAFT 4
#endif

struct xc {
    struct rig_part part;
    const struct kg_exec_ops *ops;
    struct kg_exec *exec;
    struct kg_exec_desc desc;
    struct kg_pool_layout layout;
    uint64_t natural[KG_N_KINDS];           /* bytes of a unit */
    uint32_t slot_of[KG_N_KINDS][XC_PAGES]; /* unit -> slot, KG_NONE unmapped */
    uint8_t busy[KG_N_KINDS][XC_PAGES + 1];
    uint64_t step;
};

/* One sequence as an engine would keep it, and what its next step shall be. */
struct xseq {
    uint32_t slot, epoch, n_prompt, n, past; /* n: known tokens */
    uint64_t id;
    uint32_t tokens[XC_CONTEXT + XC_DRAFT + 1];
    uint32_t pages[XC_CONTEXT], n_pages, n_sent;
    uint32_t state, state_src;
    uint32_t fresh;
    struct kg_sampling sampling;
    /* the next step */
    uint32_t rows, n_draft, flags, left, force;
    const uint32_t *drafts;
    struct kg_order orders[4];
    uint32_t n_orders;
    uint32_t row_tokens[1 + XC_DRAFT];
    /* what came of it */
    struct kg_seq_result res;
};

/* Names of the plugin under test, its options and model folder; from the command line. */
extern const char *xc_name, *xc_options, *xc_model;
/* Folder of a drafter; NULL for none. */
extern const char *xc_draft;
/* 1: a slow backend, of the longest cases a part is enough. */
extern uint32_t xc_sample;
/* The plugin itself where it is part of the program; NULL: found by name. */
extern const struct kg_plugin *xc_plugin;

/* 1: open says that this machine has no such device; prints its words. For programs that skip. */
int xc_is_absent(void);
void xc_open(struct xc *x);
void xc_close(struct xc *x);
uint32_t xc_take(struct xc *x, uint32_t kind);
void xc_give(struct xc *x, uint32_t kind, uint32_t id);
/* Moves every mapped unit to another slot. */
void xc_shuffle(struct xc *x);

/* A fresh sequence with a seeded prompt and a state of its own. */
void xseq_init(struct xc *x, struct xseq *s, uint32_t slot, uint32_t n_prompt, uint64_t seed);
/* Gives its units back. */
void xseq_end(struct xc *x, struct xseq *s);
/* The kg_seq of the next step; pages are taken as needed. */
struct kg_seq xseq_next(struct xc *x, struct xseq *s);
/* Submits and waits; results go to each sequence, which moves on. Returns submit's or wait's rc. */
int xc_run(struct xc *x, struct xseq *const *seqs, uint32_t n, struct kg_error *err);
/* The same for one sequence that must succeed. */
void xc_one(struct xc *x, struct xseq *s, uint32_t rows);
/* Prefill in chunks of `chunk`, then decode until n_output tokens are out. */
void xc_generate(struct xc *x, struct xseq *s, uint32_t chunk, uint32_t n_output);
/* Natural bytes of a unit; caller frees. */
uint8_t *xc_read(struct xc *x, uint32_t kind, uint32_t id);
/* Same tokens so far, same state bytes, same bytes of every committed token's page. */
void xc_assert_same(struct xc *x, const struct xseq *a, const struct xseq *b);

/* Case lists of the files; each ends with a NULL name. */
extern const struct CMUnitTest xc_path_cases[];
extern const struct CMUnitTest xc_contract_cases[];

#endif
