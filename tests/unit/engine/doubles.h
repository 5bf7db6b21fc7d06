/* Test doubles with real descriptors: the same loader rules and conformance programs apply. */
#ifndef KEDGE_TESTS_UNIT_ENGINE_DOUBLES_H
#define KEDGE_TESTS_UNIT_ENGINE_DOUBLES_H

#include <kedge/abi.h>

/* Options of both: seed, block, vocab, bad (1: break the contract now and then). */
extern const struct kg_plugin double_spec_fake_host;  /* "fake-host": HOST, random drafts */
extern const struct kg_plugin double_spec_fake_model; /* "fake-model": MODEL, random lengths */

/* Youngest first. Option bad: which rule its plans break (0 none). */
extern const struct kg_plugin double_sched_lifo;

/* Split by counts; compact() moves random units. Options pages, states, seed. */
extern const struct kg_plugin double_pool_shuffle;

/* tier-mem with faults. Options bytes, seed, lose, spoil, cut, fail, refuse, forget. */
extern const struct kg_plugin double_tier_fake;

/* By kind and name; NULL when there is none. */
const struct kg_plugin *double_find(uint32_t kind, const char *name);

#endif
