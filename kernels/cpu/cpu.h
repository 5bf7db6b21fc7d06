/*
 * Vector tables: the files of this folder are compiled once per instruction set, with KG_ISA set
 * to avx2, avx512 or avx512_bf16; symbols shared between files end in it. avx512_fp16 is product.c
 * and moe.c alone, with KG_HALF, for narrow weights: the rest of its table is that of avx512.
 */
#ifndef KEDGE_KERNELS_CPU_CPU_H
#define KEDGE_KERNELS_CPU_CPU_H

#include "kernels/common.h"

#define KG_CAT2(a, b) a##_##b
#define KG_CAT(a, b) KG_CAT2(a, b)
#define ISA(name) KG_CAT(name, KG_ISA)

/*
 * One product for rows picked by index: row j reads x + (x_row ? x_row[j] : j) * x_stride and
 * writes y likewise.
 */
struct product_job {
    const struct kg_weight *w;
    const float *x;
    float *y;
    size_t x_stride, y_stride;
    const uint32_t *x_row, *y_row;
    uint32_t rows;
};

/* Computes outputs of blocks b0 .. b1-1 (16 each) for all rows of the job. */
void ISA(product_blocks)(const struct product_job *job, uint32_t b0, uint32_t b1, int fast);

/* Where a set has fp16 arithmetic beside it: what the table of that set takes from elsewhere. */
void product_blocks_avx512(const struct product_job *job, uint32_t b0, uint32_t b1, int fast);
void product_fast_avx512_fp16(struct kg_team *team, const struct kg_product *p, uint32_t n);
void moe_fast_avx512_fp16(struct kg_team *team, const struct kg_moe *args);
void prepare_avx512_fp16(struct kg_team *team, struct kg_weight *w);

void ISA(product_exact)(struct kg_team *team, const struct kg_product *p, uint32_t n);
void ISA(product_fast)(struct kg_team *team, const struct kg_product *p, uint32_t n);
void ISA(moe_exact)(struct kg_team *team, const struct kg_moe *args);
void ISA(moe_fast)(struct kg_team *team, const struct kg_moe *args);
void ISA(conv_f32)(struct kg_team *team, float *y, size_t y_stride, const float *u, size_t u_stride,
                   const float *w, uint32_t channels, const struct kg_conv_seq *seqs,
                   uint32_t n_seqs);
void ISA(conv_bf16)(struct kg_team *team, float *y, size_t y_stride, const float *u,
                    size_t u_stride, const float *w, uint32_t channels,
                    const struct kg_conv_seq *seqs, uint32_t n_seqs);
void ISA(kda)(struct kg_team *team, const struct kg_kda *args);
void ISA(kda_replay)(struct kg_team *team, const struct kg_kda *args);
void ISA(page_write)(struct kg_team *team, const struct kg_pages *pages, const float *c,
                     size_t c_stride, const float *kr, size_t kr_stride,
                     const struct kg_mla_seq *seqs, uint32_t n_seqs);
void ISA(mla)(struct kg_team *team, const struct kg_mla *args);

#endif
