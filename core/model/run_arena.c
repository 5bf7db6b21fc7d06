#include "model/run_arena.h"

#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES (2u << 20)
#define SMALL_PAGE_BYTES 4096u /* or more: then some are touched twice */
#define TOUCH_BYTES (UINT64_C(8) << 20)

static int check_region(const struct kg_run_arena *a, uint32_t kind, struct kg_error *err)
{
    const struct kg_pool_layout *l = &a->layout;
    const char *name = kg_kind_name(kind);
    uint64_t end;

    if (l->base[kind] % a->sizes.align != 0 || l->stride[kind] % a->sizes.align != 0)
        return kg_fail(err, KG_ECONFIG,
                       "layout: %s base %llu and stride %llu must be multiples of %u bytes", name,
                       (unsigned long long)l->base[kind], (unsigned long long)l->stride[kind],
                       a->sizes.align);
    if (__builtin_mul_overflow((uint64_t)l->max_slots[kind], l->stride[kind], &end) ||
        __builtin_add_overflow(end, l->base[kind], &end) || end > l->arena_bytes)
        return kg_fail(err, KG_ECONFIG, "layout: %u %s slots of %llu bytes pass the arena's end",
                       l->max_slots[kind], name, (unsigned long long)l->stride[kind]);
    if (l->max_units[kind] == 0 || l->max_units[kind] >= KG_NONE / a->entries[kind])
        return kg_fail(err, KG_ECONFIG, "layout: max_units of %s is %u", name, l->max_units[kind]);
    return KG_OK;
}

static int check_layout(const struct kg_run_arena *a, struct kg_error *err)
{
    const struct kg_pool_layout *l = &a->layout;
    const struct kg_run_sizes *s = &a->sizes;
    uint64_t page, entry, parts;

    if (l->size < sizeof(*l))
        return kg_fail(err, KG_EABI, "layout: size is %zu, wanted at least %zu", l->size,
                       sizeof(*l));
    if (l->page_tokens == 0 || l->slots_per_state == 0 || l->parts_per_slot == 0)
        return kg_fail(err, KG_ECONFIG,
                       "layout: page_tokens %u, slots_per_state %u and parts_per_slot %u must be "
                       "at least 1",
                       l->page_tokens, l->slots_per_state, l->parts_per_slot);
    parts = (uint64_t)l->slots_per_state * l->parts_per_slot;
    if (parts < s->n_state_parts)
        return kg_fail(err, KG_ECONFIG, "layout: a state has room for %llu parts, wanted %u",
                       (unsigned long long)parts, s->n_state_parts);
    if ((uint64_t)(l->slots_per_state - 1) * l->parts_per_slot >= s->n_state_parts)
        return kg_fail(err, KG_ECONFIG, "layout: the last of %u entries of a state is empty",
                       l->slots_per_state);
    if (__builtin_mul_overflow((uint64_t)l->page_tokens, s->token_bytes, &page) ||
        page > l->stride[KG_PAGE])
        return kg_fail(err, KG_ECONFIG,
                       "layout: page stride of %llu bytes is less than %u tokens of %llu bytes",
                       (unsigned long long)l->stride[KG_PAGE], l->page_tokens,
                       (unsigned long long)s->token_bytes);
    if (__builtin_mul_overflow((uint64_t)l->parts_per_slot, s->state_part_bytes, &entry) ||
        entry > l->stride[KG_STATE])
        return kg_fail(err, KG_ECONFIG,
                       "layout: state stride of %llu bytes is less than %u parts of %llu bytes",
                       (unsigned long long)l->stride[KG_STATE], l->parts_per_slot,
                       (unsigned long long)s->state_part_bytes);
    for (uint32_t kind = 0; kind < KG_N_KINDS; kind++) {
        int rc = check_region(a, kind, err);
        if (rc < 0)
            return rc;
    }
    return KG_OK;
}

/* Table entries of a kind, spare pages included. */
static size_t n_entries(const struct kg_run_arena *a, uint32_t kind)
{
    size_t n = (size_t)a->layout.max_units[kind] * a->entries[kind];

    return kind == KG_PAGE ? n + a->sizes.n_spare_pages : n;
}

/* Spare pages take the first slots past the arena's end, so that one base and one stride lead to
 * either. */
static int plan_spare(struct kg_run_arena *a, struct kg_error *err)
{
    const struct kg_pool_layout *l = &a->layout;
    uint64_t stride = l->stride[KG_PAGE], n = a->sizes.n_spare_pages, first, end;

    a->n_bytes = l->arena_bytes;
    if (n == 0)
        return KG_OK;
    first = (l->arena_bytes - l->base[KG_PAGE] + stride - 1) / stride;
    if (first + n >= KG_NONE || l->max_units[KG_PAGE] + n >= KG_NONE ||
        __builtin_mul_overflow(first + n, stride, &end) ||
        __builtin_add_overflow(end, l->base[KG_PAGE], &a->n_bytes))
        return kg_fail(err, KG_ECONFIG, "layout: no numbers left for %llu pages of drafts",
                       (unsigned long long)n);
    for (uint32_t i = 0; i < n; i++)
        a->table[KG_PAGE][l->max_units[KG_PAGE] + i] = (uint32_t)(first + i);
    return KG_OK;
}

uint32_t kg_run_spare_page(const struct kg_run_arena *a, uint32_t i)
{
    return a->layout.max_units[KG_PAGE] + i;
}

/* The table of pages on the device. */
static int twin_pages(struct kg_run_arena *a, struct kg_error *err)
{
    uint64_t n = n_entries(a, KG_PAGE) * sizeof(uint32_t);

    a->pages = kg_memory_alloc(a->memory, a->host, n, 64);
    if (a->pages == NULL)
        return kg_fail(err, KG_ENOMEM, "no device memory for a table of %llu bytes",
                       (unsigned long long)n);
    kg_memory_upload(a->memory, a->pages, a->table[KG_PAGE], n);
    return kg_memory_sync(a->memory, err);
}

int kg_run_arena_open(struct kg_run_arena *a, const struct kg_host *host,
                      const struct kg_memory *memory, const struct kg_run_sizes *sizes,
                      const struct kg_pool_layout *layout, struct kg_error *err)
{
    int rc;

    a->host = host;
    a->memory = memory;
    a->sizes = *sizes;
    a->layout = *layout;
    a->entries[KG_PAGE] = 1;
    a->entries[KG_STATE] = layout->slots_per_state;
    rc = check_layout(a, err);
    if (rc < 0)
        return rc;
    for (uint32_t kind = 0; kind < KG_N_KINDS; kind++) {
        size_t n = n_entries(a, kind);
        a->table[kind] = host->alloc(host->ctx, n * sizeof(uint32_t), 64);
        if (a->table[kind] == NULL)
            return kg_fail(err, KG_ENOMEM, "no memory for a table of %zu %s entries", n,
                           kg_kind_name(kind));
        memset(a->table[kind], 0xff, n * sizeof(uint32_t)); /* KG_NONE */
    }
    rc = plan_spare(a, err);
    if (rc < 0)
        return rc;
    a->bytes = kg_memory_alloc(memory, host, a->n_bytes, HUGE_PAGE_BYTES);
    if (a->bytes == NULL)
        return kg_fail(err, KG_ENOMEM, "no memory for the arena of %llu bytes ([memory] bytes)",
                       (unsigned long long)layout->arena_bytes);
    a->pages = a->table[KG_PAGE];
    if (memory != NULL)
        return twin_pages(a, err);
    /* A hint: fewer TLB misses on states and pages; refusal costs only speed. */
    (void)madvise(a->bytes, layout->arena_bytes, MADV_HUGEPAGE);
    return KG_OK;
}

static void touch_task(void *arg, uint32_t task, uint32_t member)
{
    const struct kg_run_arena *a = arg;
    uint64_t at = (uint64_t)task * TOUCH_BYTES, end = at + TOUCH_BYTES;

    (void)member;
    end = end < a->n_bytes ? end : a->n_bytes;
    for (; at < end; at += SMALL_PAGE_BYTES)
        a->bytes[at] = 0;
}

void kg_run_arena_touch(struct kg_run_arena *a, struct kg_team *team)
{
    kg_team_run(team, touch_task, a, (uint32_t)((a->n_bytes + TOUCH_BYTES - 1) / TOUCH_BYTES));
}

void kg_run_arena_close(struct kg_run_arena *a)
{
    if (a->host == NULL)
        return;
    if (a->memory != NULL)
        kg_memory_free(a->memory, a->host, a->pages, 0);
    for (uint32_t kind = 0; kind < KG_N_KINDS; kind++)
        a->host->free(a->host->ctx, a->table[kind], n_entries(a, kind) * sizeof(uint32_t));
    kg_memory_free(a->memory, a->host, a->bytes, a->n_bytes);
    memset(a, 0, sizeof(*a));
}

static int is_slot(const struct kg_run_arena *a, uint32_t kind, uint32_t slot)
{
    return slot < a->layout.max_slots[kind];
}

/* Changed entries of pages to the device: all between the first and the last, when they are near
 * each other, else one by one. */
static void send_pages(const struct kg_run_arena *a, const struct kg_table_change *changes,
                       uint32_t n)
{
    uint32_t first = KG_NONE, last = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (changes[i].kind != KG_PAGE)
            continue;
        first = changes[i].entry < first ? changes[i].entry : first;
        last = changes[i].entry > last ? changes[i].entry : last;
    }
    if (first == KG_NONE)
        return;
    if (last - first < 64 * n) {
        kg_memory_upload(a->memory, a->pages + first, a->table[KG_PAGE] + first,
                         ((uint64_t)last - first + 1) * sizeof(uint32_t));
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (changes[i].kind == KG_PAGE)
            kg_memory_upload(a->memory, a->pages + changes[i].entry,
                             a->table[KG_PAGE] + changes[i].entry, sizeof(uint32_t));
    }
}

int kg_run_arena_apply(struct kg_run_arena *a, const struct kg_move *moves, uint32_t n_moves,
                       const struct kg_table_change *changes, uint32_t n_changes)
{
    for (uint32_t i = 0; i < n_moves; i++) {
        const struct kg_move *m = &moves[i];
        if (m->kind >= KG_N_KINDS || !is_slot(a, m->kind, m->from) || !is_slot(a, m->kind, m->to) ||
            m->from == m->to)
            return KG_EINVAL;
    }
    for (uint32_t i = 0; i < n_changes; i++) {
        const struct kg_table_change *c = &changes[i];
        if (c->kind >= KG_N_KINDS ||
            c->entry >= (uint64_t)a->layout.max_units[c->kind] * a->entries[c->kind] ||
            (c->slot != KG_NONE && !is_slot(a, c->kind, c->slot)))
            return KG_EINVAL;
    }
    for (uint32_t i = 0; i < n_moves; i++) {
        const struct kg_move *m = &moves[i];
        uint8_t *region = a->bytes + a->layout.base[m->kind];
        uint64_t stride = a->layout.stride[m->kind];
        kg_memory_copy(a->memory, region + m->to * stride, region + m->from * stride, stride);
    }
    for (uint32_t i = 0; i < n_changes; i++)
        a->table[changes[i].kind][changes[i].entry] = changes[i].slot;
    if (a->memory != NULL)
        send_pages(a, changes, n_changes);
    return KG_OK;
}

int kg_run_unit_is_mapped(const struct kg_run_arena *a, uint32_t kind, uint32_t id)
{
    if (kind >= KG_N_KINDS || id >= a->layout.max_units[kind])
        return 0;
    for (uint32_t i = 0; i < a->entries[kind]; i++) {
        if (a->table[kind][(size_t)id * a->entries[kind] + i] == KG_NONE)
            return 0;
    }
    return 1;
}

uint8_t *kg_run_unit_at(const struct kg_run_arena *a, uint32_t kind, uint32_t id, uint32_t entry)
{
    uint64_t slot = a->table[kind][(size_t)id * a->entries[kind] + entry];

    return a->bytes + a->layout.base[kind] + slot * a->layout.stride[kind];
}

/* Natural bytes of one table entry of a unit. */
static uint64_t entry_bytes(const struct kg_run_arena *a, uint32_t kind, uint32_t entry)
{
    uint32_t first, n;

    if (kind == KG_PAGE)
        return (uint64_t)a->layout.page_tokens * a->sizes.token_bytes;
    first = entry * a->layout.parts_per_slot;
    n = a->sizes.n_state_parts - first;
    if (n > a->layout.parts_per_slot)
        n = a->layout.parts_per_slot;
    return n * a->sizes.state_part_bytes;
}

uint64_t kg_run_unit_bytes(const struct kg_run_arena *a, uint32_t kind)
{
    if (kind == KG_PAGE)
        return entry_bytes(a, kind, 0);
    return a->sizes.n_state_parts * a->sizes.state_part_bytes;
}

int kg_run_unit_copy(struct kg_run_arena *a, uint32_t kind, uint32_t dst, uint32_t src)
{
    if (!kg_run_unit_is_mapped(a, kind, dst) || !kg_run_unit_is_mapped(a, kind, src))
        return KG_EINVAL;
    if (dst == src)
        return KG_OK;
    for (uint32_t i = 0; i < a->entries[kind]; i++)
        kg_memory_copy(a->memory, kg_run_unit_at(a, kind, dst, i), kg_run_unit_at(a, kind, src, i),
                       entry_bytes(a, kind, i));
    return KG_OK;
}

int kg_run_unit_fill(struct kg_run_arena *a, uint32_t kind, uint32_t id, uint8_t byte)
{
    if (!kg_run_unit_is_mapped(a, kind, id))
        return KG_EINVAL;
    for (uint32_t i = 0; i < a->entries[kind]; i++)
        kg_memory_fill(a->memory, kg_run_unit_at(a, kind, id, i), byte, entry_bytes(a, kind, i));
    return KG_OK;
}

int kg_run_unit_read(const struct kg_run_arena *a, uint32_t kind, uint32_t id, void *dst,
                     uint64_t n)
{
    uint8_t *to = dst;

    if (!kg_run_unit_is_mapped(a, kind, id) || n != kg_run_unit_bytes(a, kind))
        return KG_EINVAL;
    for (uint32_t i = 0; i < a->entries[kind]; i++) {
        uint64_t bytes = entry_bytes(a, kind, i);
        kg_memory_download(a->memory, to, kg_run_unit_at(a, kind, id, i), bytes);
        to += bytes;
    }
    return kg_memory_sync(a->memory, NULL);
}

int kg_run_unit_write(struct kg_run_arena *a, uint32_t kind, uint32_t id, const void *src,
                      uint64_t n)
{
    const uint8_t *from = src;

    if (!kg_run_unit_is_mapped(a, kind, id) || n != kg_run_unit_bytes(a, kind))
        return KG_EINVAL;
    for (uint32_t i = 0; i < a->entries[kind]; i++) {
        uint64_t bytes = entry_bytes(a, kind, i);
        kg_memory_upload(a->memory, kg_run_unit_at(a, kind, id, i), from, bytes);
        from += bytes;
    }
    return KG_OK;
}
