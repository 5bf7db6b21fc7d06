/* What the test programs of core/text share. Include after <cmocka.h>'s own prerequisites. */
#ifndef KEDGE_TESTS_UNIT_TEXT_TEXT_TEST_H
#define KEDGE_TESTS_UNIT_TEXT_TEXT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/tokenizer.h"

/* Path of a file of the source tree, in a buffer of the caller. */
static inline const char *root_path(char *buf, size_t n, const char *rel)
{
    const char *root = getenv("KEDGE_ROOT");
    (void)snprintf(buf, n, "%s/%s", root != NULL ? root : ".", rel);
    return buf;
}

/* Opens the demo checkpoint's tokenizer or fails the test. */
static inline struct kg_tok *open_tiny(void)
{
    char path[4096];
    struct kg_error err = {0};
    struct kg_tok *tok = NULL;
    if (kg_tok_open(root_path(path, sizeof(path), "tests/models/k3-tiny"), &tok, &err) != KG_OK) {
        fail_msg("%s", err.text);
    }
    return tok;
}

/* xorshift64*: tests are the same on every machine. */
static inline uint64_t rnd(uint64_t *seed)
{
    uint64_t x = *seed;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *seed = x;
    return x * 0x2545f4914f6cdd1dull;
}

#endif
