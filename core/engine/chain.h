/*
 * Chain keys: a 128-bit name for the beginning of a request, page by page. The name of page i is a
 * keyed hash of the name of page i - 1 and of the tokens of page i; before the first page stands a
 * name of the salt. SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, 2012), so that
 * without the key nobody can make two beginnings with one name.
 */
#ifndef KEDGE_ENGINE_CHAIN_H
#define KEDGE_ENGINE_CHAIN_H

#include <stddef.h>
#include <stdint.h>

struct kg_chain {
    uint64_t w[2];
};

/* The name before the first page. */
struct kg_chain kg_chain_start(const uint64_t key[2], uint64_t salt);
/* The name of a page of n tokens behind `before`. */
struct kg_chain kg_chain_next(const uint64_t key[2], const struct kg_chain *before,
                              const uint32_t *tokens, uint32_t n);
/* SipHash-2-4-128 of n bytes; for tests against published vectors. */
struct kg_chain kg_siphash128(const uint64_t key[2], const void *bytes, size_t n);

#endif
