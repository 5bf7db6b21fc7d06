#include "common.h"

#if defined(KG_HAVE_FP16)
#include <cpuid.h>

static int has_fp16(void)
{
    unsigned a, b, c, d;

    return __builtin_cpu_supports("avx512vbmi") && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d >> 23 & 1) != 0;
}
#else
static int has_fp16(void)
{
    return 0;
}
#endif

enum kg_isa kg_cpu_isa(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return KG_ISA_REF;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return KG_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512bf16"))
        return KG_ISA_AVX512;
    return has_fp16() ? KG_ISA_AVX512_FP16 : KG_ISA_AVX512_BF16;
#else
    return KG_ISA_REF;
#endif
}

const struct kg_kernels *kg_kernels_cpu(enum kg_math math, enum kg_isa limit)
{
#if defined(KG_HAVE_VECTOR)
    enum kg_isa isa = kg_cpu_isa();

    if (isa > limit)
        isa = limit;
#if defined(KG_HAVE_FP16)
    if (isa == KG_ISA_AVX512_FP16)
        return kg_kernels_avx512_fp16(math);
#endif
    if (isa == KG_ISA_AVX512_BF16)
        return kg_kernels_avx512_bf16(math);
    if (isa == KG_ISA_AVX512)
        return kg_kernels_avx512(math);
    if (isa == KG_ISA_AVX2)
        return kg_kernels_avx2(math);
#else
    (void)limit;
#endif
    return kg_kernels_ref(math);
}

const struct kg_kernels *kg_kernels_best(enum kg_math math)
{
    enum kg_isa isa = kg_cpu_isa();

#if defined(__x86_64__)
    if (math == KG_MATH_FAST && isa == KG_ISA_AVX512_BF16 && __builtin_cpu_is("intel"))
        isa = KG_ISA_AVX512;
#endif
    return kg_kernels_cpu(math, isa);
}
