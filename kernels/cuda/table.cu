/* The table: each file fills its own operations. */
#include "context.h"

static struct kg_kernels make(enum kg_math math)
{
    struct kg_kernels k = {};

    k.size = sizeof(k);
    k.name = "cuda";
    k.math = math;
    k.state_dtype = math == KG_MATH_FAST ? KG_BF16 : KG_F32;
    kg_cuda_fill_rows(&k, math);
    kg_cuda_fill_products(&k, math);
    kg_cuda_fill_experts(&k, math);
    kg_cuda_fill_recurrence(&k, math);
    kg_cuda_fill_attention(&k, math);
    return k;
}

static const struct kg_kernels exact = make(KG_MATH_EXACT), fast = make(KG_MATH_FAST);

extern "C" const struct kg_kernels *kg_kernels_cuda(enum kg_math math)
{
    return math == KG_MATH_FAST ? &fast : &exact;
}
