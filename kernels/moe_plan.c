#include "common.h"

static uint64_t align64(uint64_t n)
{
    return (n + 63) / 64 * 64;
}

/* Bytes of the integer part: active, offset, token, slot. */
static uint64_t index_bytes(uint64_t entries, uint64_t n_experts)
{
    return align64((n_experts + n_experts + 1 + 2 * entries) * sizeof(uint32_t));
}

uint64_t kg_moe_scratch_bytes(uint32_t rows, uint32_t top_k, uint32_t n_experts, uint32_t ff,
                              uint32_t out)
{
    uint64_t entries = (uint64_t)rows * top_k;

    return index_bytes(entries, n_experts) +
           align64(entries * (2 * (uint64_t)ff + out) * sizeof(float));
}

uint32_t moe_pass_rows(const struct kg_moe *args)
{
    uint32_t lo = 1, hi = args->rows;

    while (lo < hi) {
        uint32_t mid = lo + (hi - lo + 1) / 2;
        uint64_t need = kg_moe_scratch_bytes(mid, args->top_k, args->n_experts, args->gate[0].out,
                                             args->down[0].out);

        if (need <= args->scratch_bytes)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

void moe_plan_place(struct moe_plan *plan, const struct kg_moe *args, uint32_t rows)
{
    uint32_t n_experts = args->n_experts, entries = rows * args->top_k;

    plan->active = args->scratch;
    plan->offset = plan->active + n_experts;
    plan->token = plan->offset + n_experts + 1;
    plan->slot = plan->token + entries;
    plan->gate = (float *)((uint8_t *)args->scratch + index_bytes(entries, n_experts));
    plan->up = plan->gate + (size_t)entries * args->gate[0].out;
    plan->result = plan->up + (size_t)entries * args->gate[0].out;
}

void moe_plan_make(struct moe_plan *plan, const struct kg_moe *args, uint32_t row0, uint32_t rows)
{
    uint32_t n_experts = args->n_experts, top_k = args->top_k, entries = rows * top_k;
    const uint32_t *ids = args->ids + (size_t)row0 * top_k;
    uint32_t *at = args->scratch; /* `active`; first: where the next entry of an expert goes */

    moe_plan_place(plan, args, rows);
    memset(at, 0, n_experts * sizeof(*at));
    for (uint32_t j = 0; j < entries; j++) {
        if (ids[j] - args->first < n_experts)
            at[ids[j] - args->first]++;
    }
    uint32_t sum = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        uint32_t n = at[e];

        at[e] = sum;
        sum += n;
    }
    for (uint32_t j = 0; j < entries; j++) {
        if (ids[j] - args->first >= n_experts)
            continue;
        uint32_t to = at[ids[j] - args->first]++;

        plan->token[to] = j / top_k;
        plan->slot[to] = j;
    }
    /* at[e] is now the end of expert e; keep the experts that have rows. */
    plan->n_active = 0;
    plan->offset[0] = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        uint32_t end = at[e];

        if (end == plan->offset[plan->n_active])
            continue;
        plan->active[plan->n_active++] = e;
        plan->offset[plan->n_active] = end;
    }
}
