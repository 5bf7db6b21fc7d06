/*
 * What device code is written with, so that one source runs on a GPU and, on machines without
 * one, under the emulator of tests/emu: nvcc finds its own <cuda_runtime.h>, the host compiler the
 * emulator's, which defines KG_EMULATED.
 *
 * A kernel is a __global__ function. It uses threadIdx, blockIdx, blockDim, gridDim,
 * __syncthreads, __syncwarp, __shfl_sync, __shfl_xor_sync, __shfl_down_sync, __ballot_sync,
 * atomicAdd, and beside these only what is defined here:
 *
 *   KG_SHARED(float, tile, 256);      an array of the block; tile[i] as ever. The emulator checks
 *                                     the index, and that two threads do not touch one element
 *                                     between two barriers unless both read.
 *   KG_SHARED_2D(float, t, 8, 17);    the same with two indices
 *   KG_LAUNCH(kernel, grid, block, stream, ...)
 *                                     grid and block: dim3 or integers. No dynamic shared memory.
 *
 * Arithmetic. Sources are compiled without contraction (-fmad=false, -ffp-contract=off): a fused
 * multiply-add is written fmaf. Division and square root are the IEEE ones. So the emulator, the
 * device and the plain C table agree bit for bit where the order of operations is the same.
 */
#ifndef KEDGE_KERNELS_CUDA_DEVICE_H
#define KEDGE_KERNELS_CUDA_DEVICE_H

#include <cuda_runtime.h>

#include <cstdint>

#define KG_WARP 32

#ifndef KG_EMULATED
#define KG_SHARED(type, name, n) __shared__ type name[n]
#define KG_SHARED_2D(type, name, n, m) __shared__ type name[n][m]
#define KG_LAUNCH(kernel, grid, block, stream, ...)                                                \
    kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__)
#endif

#endif
