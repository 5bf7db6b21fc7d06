/* Rows of tenants and the map to them. A row outlives its last request, so that who was served much
 * and left finds the counter where it was; when rows run out the lowest idle one goes. */
#include "fair.h"

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Place of a tenant in the map, or the empty place where it would go. */
static uint32_t place_of(const struct kg_sched *s, uint64_t tenant)
{
    uint32_t at = (uint32_t)mix(tenant) & s->map_mask;

    while (s->map[at] != KG_NONE && s->tenants[s->map[at]].tenant != tenant) {
        at = (at + 1) & s->map_mask;
    }
    return at;
}

/* Takes a tenant out of the map and closes the gap. */
static void forget(struct kg_sched *s, uint32_t row)
{
    uint32_t hole = place_of(s, s->tenants[row].tenant);

    for (uint32_t at = (hole + 1) & s->map_mask; s->map[at] != KG_NONE;
         at = (at + 1) & s->map_mask) {
        uint32_t home = (uint32_t)mix(s->tenants[s->map[at]].tenant) & s->map_mask;
        if (((at - home) & s->map_mask) >= ((at - hole) & s->map_mask)) {
            s->map[hole] = s->map[at];
            hole = at;
        }
    }
    s->map[hole] = KG_NONE;
    s->tenants[row].used = 0;
    s->n_tenants--;
}

/* An empty row; there are more rows than requests, so one is empty or idle. */
static uint32_t free_row(struct kg_sched *s)
{
    uint32_t best = KG_NONE;

    for (uint32_t i = 0; i < s->max_tenants; i++) {
        const struct fair_tenant *t = &s->tenants[i];
        if (!t->used) {
            return i;
        }
        if (t->n_live == 0 && (best == KG_NONE || t->counter < s->tenants[best].counter)) {
            best = i;
        }
    }
    forget(s, best);
    return best;
}

/* Lowest counter of the tenants that are there. */
static uint64_t lowest(const struct kg_sched *s)
{
    uint64_t low = UINT64_MAX;

    for (uint32_t i = 0; i < s->max_tenants; i++) {
        const struct fair_tenant *t = &s->tenants[i];
        if (t->used && t->n_live > 0 && t->counter < low) {
            low = t->counter;
        }
    }
    return low != UINT64_MAX ? low : s->last_counter;
}

uint32_t fair_tenant_join(struct kg_sched *s, uint64_t tenant)
{
    uint32_t row = s->map[place_of(s, tenant)];

    if (row == KG_NONE) {
        row = free_row(s);
        s->tenants[row] = (struct fair_tenant){.tenant = tenant, .used = 1};
        s->map[place_of(s, tenant)] = row;
        s->n_tenants++;
    }
    struct fair_tenant *t = &s->tenants[row];
    if (t->n_live == 0) {
        uint64_t low = lowest(s);
        t->counter = t->counter > low ? t->counter : low;
    }
    t->n_live++;
    return row;
}

void fair_tenant_leave(struct kg_sched *s, uint32_t row)
{
    struct fair_tenant *t = &s->tenants[row];

    t->n_live--;
    s->last_counter = t->counter;
}

int fair_tenants_check(const struct kg_sched *s, struct kg_error *err)
{
    uint32_t used = 0;
    uint64_t live = 0;

    for (uint32_t i = 0; i < s->max_tenants; i++) {
        const struct fair_tenant *t = &s->tenants[i];
        if (t->used && s->map[place_of(s, t->tenant)] != i) {
            return kg_fail(err, KG_EINVAL, "sched-fair: tenant row %u is not in the map", i);
        }
        used += t->used;
        live += t->used ? t->n_live : 0;
    }
    for (uint32_t i = 0; i < s->max_requests; i++) {
        live -= s->reqs[i].live;
    }
    if (used != s->n_tenants || live != 0) {
        return kg_fail(err, KG_EINVAL, "sched-fair: %u rows used, %u counted, %lld requests over",
                       used, s->n_tenants, (long long)live);
    }
    return KG_OK;
}
