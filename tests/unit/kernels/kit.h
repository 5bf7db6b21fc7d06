/* What the kernel tests share: seeded numbers, the tables this CPU can run, comparisons. */
#ifndef KEDGE_TESTS_UNIT_KERNELS_KIT_H
#define KEDGE_TESTS_UNIT_KERNELS_KIT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

/* splitmix64: the same numbers everywhere. */
static inline uint64_t rnd(uint64_t *s)
{
    uint64_t z = (*s += 0x9e3779b97f4a7c15ull);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* -1..1 */
static inline float rnd_f(uint64_t *s)
{
    return (float)(int32_t)(rnd(s) >> 32) * 0x1p-31f;
}

static inline void *take(size_t n)
{
    void *p = aligned_alloc(64, (n + 127) / 64 * 64);

    assert_non_null(p);
    memset(p, 0xff, (n + 127) / 64 * 64); /* NaN where nothing was written */
    return p;
}

static inline float *take_f(size_t n)
{
    return take(n * sizeof(float));
}

static inline float *random_f(uint64_t *s, size_t n, float scale)
{
    float *p = take_f(n);

    for (size_t i = 0; i < n; i++)
        p[i] = rnd_f(s) * scale;
    return p;
}

/* A packed random matrix; its values lie in `plain` [out][in] after the rounding of the type. */
struct matrix {
    struct kg_weight w;
    float *plain;
};

static inline struct matrix random_matrix(uint64_t *s, uint32_t type, uint32_t out, uint32_t in)
{
    struct matrix m = {.plain = take_f((size_t)out * in)};

    assert_int_equal(kg_weight_init(&m.w, type, out, in, take(kg_weight_bytes(type, out, in))),
                     KG_OK);
    if (type == KG_W_MXFP4) {
        uint8_t *packed = take((size_t)out * in / 2), *scales = take((size_t)out * in / 32);

        for (size_t i = 0; i < (size_t)out * in / 2; i++)
            packed[i] = (uint8_t)rnd(s);
        for (size_t i = 0; i < (size_t)out * in / 32; i++)
            scales[i] = (uint8_t)(120 + rnd(s) % 6);
        assert_int_equal(kg_weight_fill_mxfp4(&m.w, 0, out, packed, scales), KG_OK);
        free(packed);
        free(scales);
    } else {
        for (size_t i = 0; i < (size_t)out * in; i++)
            m.plain[i] = rnd_f(s);
        assert_int_equal(kg_weight_fill(&m.w, 0, 0, out, in, KG_F32, m.plain, in), KG_OK);
    }
    for (uint32_t o = 0; o < out; o++)
        for (uint32_t i = 0; i < in; i++)
            m.plain[(size_t)o * in + i] = kg_weight_at(&m.w, o, i);
    return m;
}

static inline void drop_matrix(struct matrix *m)
{
    free(m->w.data);
    free(m->plain);
}

/* The instruction sets of this CPU, plain C first. */
static inline uint32_t n_isas(void)
{
    return (uint32_t)kg_cpu_isa() + 1;
}

static inline const char *isa_name(uint32_t isa)
{
    static const char *names[] = {"ref", "avx2", "avx512", "avx512-bf16", "avx512-fp16"};

    return names[isa];
}

static inline const struct kg_kernels *table_of(uint32_t isa, enum kg_math math)
{
    const struct kg_kernels *k = kg_kernels_cpu(math, (enum kg_isa)isa);

    assert_string_equal(k->name, isa_name(isa));
    return k;
}

static inline int say_skipped(void **state)
{
    (void)state;
    for (uint32_t isa = n_isas(); isa <= KG_ISA_AVX512_FP16; isa++)
        printf("skipped: this CPU has no %s\n", isa_name(isa));
    return 0;
}

/* All tables: `for (EACH_TABLE(k))`. */
struct table_walk {
    uint32_t i;
    const struct kg_kernels *k;
};

static inline int table_next(struct table_walk *t)
{
    if (t->i >= 2 * n_isas())
        return 0;
    t->k = table_of(t->i / 2, (enum kg_math)(t->i % 2));
    t->i++;
    return 1;
}

#define EACH_TABLE(t)          \
    struct table_walk t = {0}; \
    table_next(&t);

/* Fails naming the place when bits differ; any NaN equals any NaN. */
static inline void same_bits(const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0 && !(isnan(a[i]) && isnan(b[i])))
            fail_msg("%s: element %zu differs: %.9g and %.9g", what, i, (double)a[i], (double)b[i]);
    }
}

/* |got - want| <= bound * (1 + |want|), NaN never passes. */
static inline void near(const char *what, double got, double want, double bound)
{
    if (!(fabs(got - want) <= bound * (1 + fabs(want))))
        fail_msg("%s: got %.9g, want %.9g, bound %g", what, got, want, bound);
}

#endif
