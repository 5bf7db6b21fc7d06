/* What the tables of this folder share: bf16, key addresses, the order of routed experts. */
#ifndef KEDGE_KERNELS_COMMON_H
#define KEDGE_KERNELS_COMMON_H

#include "kernels.h"

#include <string.h>

#define MX_GROUP_BYTES 272 /* 16 scales, then 16 pairs of inputs x 16 outputs */
#define KEY_BLOCK 16       /* keys of one softmax block, at absolute positions */

/* Below this many multiply-adds waking the team costs more than it saves. */
#define TEAM_MIN_WORK 60000

static inline float bf16_widen(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static inline uint16_t bf16_round(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40); /* a NaN must not round to infinity */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* Of fp16 products: inputs that share a scale, inputs of a chain, least and most shift of weights. */
#define HALF_GROUP 256
#define HALF_CHAIN 64
#define HALF_MIN_SHIFT (-60)
#define HALF_MAX_SHIFT 7

/* Bits of 2^n, 0 for n below -126. n <= 127. */
static inline float power_of_two(int n)
{
    uint32_t bits = n < -126 ? 0 : (uint32_t)(n + 127) << 23;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* The shift of a matrix whose largest magnitude has the bits `top`: outside the limits above where
 * it is not to be made narrow. */
static inline int32_t half_shift(uint32_t top)
{
    return (int32_t)(top >> 23) - 127;
}

/*
 * Scales of a group whose largest magnitude has the bits `top`: to fp16, where it then lies in 2^8
 * .. 2^9 (a chain has 32 terms for each accumulator, and weights are below 2: 2^15), and back to
 * the values of weights of `shift`. Infinity and NaN in a group stay what they are.
 */
static inline float half_scale(uint32_t top, int32_t shift, float *back)
{
    int e = (int)(top >> 23); /* below 10: so small that fp16 has room for all of it */

    e = e < 10 ? 10 : e;
    *back = power_of_two(e - 135 + shift);
    return power_of_two(135 - e);
}

#define NARROW_LINE 48 /* bytes of a line of E4M7: two inputs of 16 outputs */

/* Rounds |x| < 2^-14 to a multiple of 2^-21: the last place of a sum with 6. */
static inline float narrow_small(float x)
{
    float sum = x + 6.0f;

    return sum - 6.0f;
}

/* Runs on the team, or on the caller alone when the work is too small to share. */
static inline void run_sized(struct kg_team *team, void (*fn)(void *, uint32_t, uint32_t),
                             void *arg, uint32_t n_tasks, uint64_t work)
{
    kg_team_run(work < TEAM_MIN_WORK ? NULL : team, fn, arg, n_tasks);
}

/* Record of token t. */
static inline uint8_t *page_record(const struct kg_pages *p, const uint32_t *ids, uint32_t t)
{
    uint32_t id = ids[t / p->page_tokens];
    uint64_t slot = p->table == NULL ? id : p->table[id];

    return p->base + slot * p->page_stride + t % p->page_tokens * p->token_stride;
}

/* Finds the sequence that holds the n-th row counted over all sequences, and its row there. */
static inline uint32_t mla_seq_of(const struct kg_mla_seq *seqs, uint32_t n, uint32_t *row)
{
    uint32_t s = 0;

    while (n >= seqs[s].n)
        n -= seqs[s++].n;
    *row = n;
    return s;
}

static inline uint32_t mla_rows(const struct kg_mla_seq *seqs, uint32_t n_seqs)
{
    uint32_t rows = 0;

    for (uint32_t s = 0; s < n_seqs; s++)
        rows += seqs[s].n;
    return rows;
}

/*
 * Rows of one pass sorted by expert: expert active[a] owns entries offset[a] .. offset[a+1]-1;
 * entry j is row token[j] (of the pass), whose result goes to place slot[j] = row * top_k + s.
 */
struct moe_plan {
    uint32_t *active, *offset, *token, *slot;
    uint32_t n_active;
    float *gate, *up; /* [rows * top_k][ff], by entry */
    float *result;    /* [rows * top_k][out], by slot */
};

/* Most rows one pass can hold in args->scratch, at least 1. */
uint32_t moe_pass_rows(const struct kg_moe *args);
/* Sets the pointers of *plan for a pass of `rows` rows; args->scratch is not looked at. */
void moe_plan_place(struct moe_plan *plan, const struct kg_moe *args, uint32_t rows);
/* Plans rows row0 .. row0+rows-1 in args->scratch. */
void moe_plan_make(struct moe_plan *plan, const struct kg_moe *args, uint32_t row0, uint32_t rows);

/* Tables, by file. */
const struct kg_kernels *kg_kernels_avx2(enum kg_math math);
const struct kg_kernels *kg_kernels_avx512(enum kg_math math);
const struct kg_kernels *kg_kernels_avx512_bf16(enum kg_math math);
const struct kg_kernels *kg_kernels_avx512_fp16(enum kg_math math);

#endif
