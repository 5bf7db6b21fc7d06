/*
 * Products of fast math without tensor cores: what a device without them uses, and what those with
 * them are compared to. The bits are those of the fast table in plain C.
 *
 * The bound. For y = sum of n terms t_i = x_i w_i, x rounded to bf16, the two forms differ by at
 * most 2^-22 * (n + 32) * sum of |t_i|. A term is exact in either (8 by 8 bits of mantissa, in
 * fp32). Plain adds n times, each with an error below 2^-24 of a partial sum. A tensor core adds 16
 * terms and the sum so far after cutting them to the largest exponent, of which no more is assumed
 * here than an error below 2^-23 of the largest for each of the 17; joining parts adds at most 8
 * more roundings, and a scale none, being a power of two. Weights of 2^128 and above (MXFP4, scales
 * 252 to 254) are infinite in the plain form only.
 */
#ifndef KEDGE_KERNELS_CUDA_TWINS_H
#define KEDGE_KERNELS_CUDA_TWINS_H

#include "cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As product and moe of the fast table. */
void kg_cuda_product_plain(struct kg_team *team, const struct kg_product *p, uint32_t n);
void kg_cuda_moe_plain(struct kg_team *team, const struct kg_moe *m);

#ifdef __cplusplus
}
#endif

#endif
