/*
 * Not a test: what a draft costs beside the step it is for, by the backend's own profile: the
 * least of many runs of one thread. usage: draft_speed [CONTEXT [MATH]], MATH 0 exact, 1 fast
 */
#include "exec_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define ROUNDS 12

static double step_ms(struct xrig *x, uint32_t n, uint32_t rows, uint32_t context)
{
    uint64_t best = UINT64_MAX, ns;

    for (int i = 0; i < ROUNDS; i++) {
        assert_int_equal(x->ops->profile(x->exec, n, rows, context, &ns), KG_OK);
        best = ns < best ? ns : best;
    }
    return (double)best * 1e-6;
}

static double draft_ms(struct xrig *x, uint32_t n, uint32_t tokens, uint32_t context)
{
    uint64_t best = UINT64_MAX, ns;

    for (int i = 0; i < ROUNDS; i++) {
        assert_int_equal(x->ops->profile_draft(x->exec, n, tokens, context, &ns), KG_OK);
        best = ns < best ? ns : best;
    }
    return (double)best * 1e-6;
}

int main(int argc, char **argv)
{
    static const uint32_t batches[] = {1, 4, 16, 32};
    uint32_t context = argc > 1 ? (uint32_t)atoi(argv[1]) : 256;
    struct xrig_options o = {.model = "models/k3-tiny",
                             .math = argc > 2 ? (uint32_t)atoi(argv[2]) : 0,
                             .threads = 1,
                             .page_tokens = 64,
                             .max_seqs = 32,
                             .max_rows = 256,
                             .n_pages = 64,
                             .n_states = 40,
                             .max_draft = 7};
    struct xrig plain, x;

    xrig_open(&plain, &o);
    o.draft = "models/k3-tiny-dspark";
    xrig_open(&x, &o);
    (void)printf("context %u, %s, ms\n%5s %8s %8s %8s %8s %8s %8s %8s\n", context, x.desc.kernels,
                 "batch", "off", "step", "+3 rows", "+7 rows", "draft 1", "draft 3", "draft 7");
    for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
        uint32_t n = batches[i];
        (void)printf("%5u %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f %8.2f\n", n,
                     step_ms(&plain, n, n, context), step_ms(&x, n, n, context),
                     step_ms(&x, n, 4 * n, context), step_ms(&x, n, 8 * n, context),
                     draft_ms(&x, n, 1, context), draft_ms(&x, n, 3, context),
                     draft_ms(&x, n, 7, context));
    }
    xrig_close(&plain);
    xrig_close(&x);
    return 0;
}
