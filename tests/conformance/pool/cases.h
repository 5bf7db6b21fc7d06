/*
 * What the cases of pool_test share: one rig, opened afresh for each case, and short forms of the
 * ops that assert success. A case is named by the rule it shows.
 */
#ifndef KEDGE_TESTS_CONFORMANCE_POOL_CASES_H
#define KEDGE_TESTS_CONFORMANCE_POOL_CASES_H

#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MOST 1024 /* units of one kind in the odd geometry, at most */

#define CASE(f) cmocka_unit_test_setup_teardown(f, open_odd, close_odd)

extern struct rig rig;
extern const uint32_t nothing[KG_N_KINDS];

extern const struct CMUnitTest layout_cases[], grant_cases[], move_cases[];
extern const size_t n_layout_cases, n_grant_cases, n_move_cases;

/* Everything a caller can see, to show that a refused call changed nothing. */
struct view {
    struct kg_pool_bytes bytes;
    uint32_t used[KG_N_KINDS];
    uint32_t table[KG_N_KINDS][MOST * 8];
};

/* True when the open pool has the capability. */
int has(uint64_t cap);

/* Set-up and tear-down of a case: the odd geometry; tear-down fails on a leak. */
int open_odd(void **state);
int close_odd(void **state);
void reopen(void);

/* check(), the sum of the classes, counts against bytes; the bytes by class. */
struct kg_pool_bytes healthy(void);

void look(struct view *v);
void assert_unchanged(const struct view *before);

/* A grant that must be given, and one that is tried and closed again. */
uint32_t open_grant(uint32_t pages, uint32_t states, const uint32_t *evictable);
int try_grant(uint32_t pages, uint32_t states, const uint32_t *evictable, struct kg_shortage *s);

/* n units of a kind, through a grant of their own. */
void take(uint32_t kind, uint32_t n, uint32_t *ids);
/* Takes units of a kind until no more fits; their number. */
uint32_t fill(uint32_t kind, uint32_t *ids);
void give(uint32_t kind, uint32_t n, const uint32_t *ids);

/* Calls moves() and drops what it says; the number of moves. */
uint32_t forget_moves(void);

/* No two mapped entries, of whatever kind, share a byte; none leaves the arena. */
void assert_no_overlap(void);

#endif
