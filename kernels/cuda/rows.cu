/* Row-wise operations. */
#include "context.h"
#include "vmath.cuh"

static __global__ void add_kernel(float *y, size_t y_stride, const float *a, size_t a_stride,
                                  const float *b, size_t b_stride, uint32_t cols)
{
    uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
    size_t r = blockIdx.y;

    if (c < cols)
        y[r * y_stride + c] = a[r * a_stride + c] + b[r * b_stride + c];
}

static void add(struct kg_team *team, float *y, size_t y_stride, const float *a, size_t a_stride,
                const float *b, size_t b_stride, uint32_t rows, uint32_t cols)
{
    if (rows > 0 && kg_op(team, "add"))
        KG_RUN(team, add_kernel, dim3((cols + 127) / 128, rows), 128, y, y_stride, a, a_stride, b,
               b_stride, cols);
}

void kg_cuda_fill_rows(struct kg_kernels *k, enum kg_math math)
{
    (void)math;
    k->add = add;
}
