/*
 * The picture other threads may ask for: where in the arena what lies, and who runs and waits. It
 * is made only when somebody asked, in parts: a walk over the tables of the pool, what is left of
 * the arena, the requests. While there is work, no more of it follows a step than SLICE entries of
 * a table cost; when there is none, it is made at once. Nothing is allocated.
 */
#include "engine/internal.h"

#include <stdlib.h>
#include <string.h>

#define SLICE 2048u         /* table entries looked at between two steps */
#define REQUESTS_COST 1024u /* of listing them and publishing all */
#define TOUCH_BYTES 4096u

#define N_WORDS (sizeof(struct kg_picture) / sizeof(uint64_t))
_Static_assert(sizeof(struct kg_picture) % sizeof(uint64_t) == 0, "a picture is whole words");

enum { PART_NONE = 0, PART_WALK, PART_FREE, PART_REQUESTS };

struct kg_painter {
    _Atomic uint32_t asked;
    /* odd while the words are being stored */
    _Atomic uint64_t turn;
    _Atomic uint64_t words[N_WORDS];
    /* the engine thread's */
    uint32_t part;      /* enum, what comes next */
    uint32_t kind, id;  /* where the walk goes on */
    uint32_t shift;     /* a bin is 1 << shift bytes */
    uint64_t low, high; /* end of the topmost state, start of the lowest page */
    struct kg_picture made;
};

int kg_picture_create(struct kg_engine *e)
{
    uint64_t arena = e->layout.arena_bytes;

    e->painter = calloc(1, sizeof(*e->painter));
    if (e->painter == NULL) {
        return KG_ENOMEM;
    }
    /* The first picture must not pay for memory that nobody wrote to. */
    for (size_t i = 0; i < sizeof(*e->painter); i += TOUCH_BYTES) {
        ((volatile char *)e->painter)[i] = 0;
    }
    while ((arena - 1) >> e->painter->shift >= KG_PICTURE_BINS) {
        e->painter->shift++;
    }
    return KG_OK;
}

void kg_picture_destroy(struct kg_engine *e)
{
    free(e->painter);
}

/* --- the walk --- */

/* Adds bytes from..to of the arena to a class. */
static void paint(struct kg_painter *p, uint32_t class, uint64_t from, uint64_t to)
{
    uint64_t *bins = p->made.bins[class];

    while (from < to) {
        uint64_t bin = from >> p->shift, end = (bin + 1) << p->shift;
        end = end < to ? end : to;
        bins[bin] += end - from;
        from = end;
    }
}

static uint32_t class_of(uint32_t kind, uint8_t flags)
{
    if (flags & KG_UNIT_PINNED) {
        return KG_PICTURE_PINNED;
    }
    if (flags & KG_UNIT_CACHED) {
        return kind == KG_PAGE ? KG_PICTURE_CACHED_PAGE : KG_PICTURE_CACHED_STATE;
    }
    return kind == KG_PAGE ? KG_PICTURE_LIVE_PAGE : KG_PICTURE_LIVE_STATE;
}

/* One table entry that lies at `at`, `natural` of its bytes used. */
static void paint_entry(struct kg_engine *e, uint32_t class, uint64_t at, uint64_t natural)
{
    struct kg_painter *p = e->painter;
    uint64_t stride = e->layout.stride[p->kind], end = at + stride;

    if ((at ^ (end - 1)) >> p->shift == 0) {
        p->made.bins[class][at >> p->shift] += natural;
        p->made.bins[KG_PICTURE_PADDING][at >> p->shift] += stride - natural;
    } else {
        paint(p, class, at, at + natural);
        paint(p, KG_PICTURE_PADDING, at + natural, end);
    }
    if (p->kind == KG_STATE) {
        p->low = end > p->low ? end : p->low;
    } else {
        p->high = at < p->high ? at : p->high;
    }
}

/* Bytes used of entry i of a unit. */
static uint64_t natural_of(const struct kg_engine *e, uint32_t kind, uint32_t i)
{
    uint32_t parts = e->layout.parts_per_slot;

    if (kind == KG_PAGE) {
        return e->layout.page_tokens * e->desc.token_bytes;
    }
    uint32_t left = e->desc.n_state_parts - i * parts;
    return (left < parts ? left : parts) * e->desc.state_part_bytes;
}

/* Units from p->id on, until `most` entries were looked at. Returns how many. */
static uint32_t walk_kind(struct kg_engine *e, uint32_t most)
{
    struct kg_painter *p = e->painter;
    uint32_t k = p->kind, width = k == KG_STATE ? e->layout.slots_per_state : 1, done = 0;
    const uint32_t *table = e->parts.pool_ops->table(e->pool, k);
    const uint8_t *flags = e->parts.pool_ops->classes(e->pool, k);
    uint64_t natural = natural_of(e, k, 0);

    for (; p->id < e->layout.max_units[k] && done < most; p->id++) {
        done++;
        if ((flags[p->id] & KG_UNIT_OWNED) == 0) {
            continue;
        }
        uint32_t class = class_of(k, flags[p->id]);
        const uint32_t *entry = table + (size_t)p->id * width;
        for (uint32_t i = 0; i < width; i++) {
            uint64_t at = e->layout.base[k] + entry[i] * e->layout.stride[k];
            paint_entry(e, class, at, i + 1 < width || i == 0 ? natural : natural_of(e, k, i));
        }
        done += width - 1;
    }
    return done;
}

/* What is left of each bin: the gap where there is one, else holes. */
static void paint_free(struct kg_engine *e)
{
    struct kg_painter *p = e->painter;
    struct kg_pool_bytes bytes;
    uint64_t arena = e->layout.arena_bytes;

    e->parts.pool_ops->bytes(e->pool, &bytes);
    for (uint32_t i = 0; i < p->made.n_bins; i++) {
        uint64_t from = (uint64_t)i << p->shift, to = from + p->made.bin_bytes, used = 0, gap = 0;
        to = to < arena ? to : arena;
        for (uint32_t c = 0; c < KG_N_PICTURE_CLASSES; c++) {
            used += p->made.bins[c][i];
        }
        uint64_t left = used < to - from ? to - from - used : 0;
        if (bytes.gap > 0) {
            uint64_t lo = p->low > from ? p->low : from, hi = p->high < to ? p->high : to;
            gap = hi > lo ? hi - lo : 0;
            gap = gap < left ? gap : left;
        }
        p->made.bins[KG_PICTURE_GAP][i] = gap;
        p->made.bins[KG_PICTURE_HOLES][i] = left - gap;
    }
}

/* --- who runs, who waits --- */

static void row_of(const struct kg_req *r, struct kg_picture_req *row)
{
    const struct kg_event *done = &r->job->done;

    *row = (struct kg_picture_req){.serial = r->arrival,
                                   .arrival_ns = done->arrival_ns,
                                   .n_prompt = r->job->n_prompt,
                                   .n_output = kg_req_output(r),
                                   .max_tokens = r->job->max_tokens,
                                   .n_computed = r->past,
                                   .n_pages = r->n_pages,
                                   .n_preempted = done->n_preempted,
                                   .state = r->state == KG_LIFE_WAITING   ? KG_PICTURE_WAITS
                                            : r->state == KG_LIFE_PREFILL ? KG_PICTURE_PREFILLS
                                                                          : KG_PICTURE_DECODES,
                                   .paused = r->paused,
                                   .arm = r->job->arm,
                                   .hit_state_tokens = done->n_cached,
                                   .hit_page_tokens = done->n_cached + done->n_lost};
    if (r->state == KG_LIFE_WAITING) {
        row->short_of = r->short_of;
        row->n_computed = 0;
        row->hit_state_tokens = r->has_match ? r->match.state_tokens : 0;
        row->hit_page_tokens = r->has_match ? r->match.page_tokens : 0;
    }
}

static void list_requests(struct kg_engine *e, struct kg_picture *m)
{
    const struct kg_waiting *w = &e->waiting;

    for (uint32_t i = 0; i < e->n_running && m->n_running < KG_PICTURE_RUNNING; i++) {
        if (e->running[i].index != KG_NONE) {
            row_of(&e->reqs[e->running[i].index], &m->running[m->n_running++]);
        }
    }
    for (uint32_t i = 0; i < w->n && i < 8 * KG_PICTURE_WAITING; i++) { /* some may be gone */
        uint32_t index = w->rows[w->head + i].index;
        if (index != KG_NONE && m->n_waiting < KG_PICTURE_WAITING) {
            row_of(&e->reqs[index], &m->waiting[m->n_waiting++]);
        }
    }
}

static void count_rows(struct kg_engine *e, struct kg_picture *m)
{
    for (uint32_t i = 0; i < e->n_picks; i++) {
        const struct kg_pick *p = &e->picks[i];
        m->n_decoding += p->decode;
        m->decode_rows += p->decode;
        m->draft_rows += p->decode ? p->n_draft : 0;
        m->prefill_rows += p->decode ? 0 : p->n_tokens;
    }
    m->n_prefilling = e->n_picks - m->n_decoding;
}

/* --- making and reading one --- */

static void begin(struct kg_engine *e)
{
    struct kg_painter *p = e->painter;
    uint64_t serial = p->made.serial;

    memset(&p->made, 0, sizeof(p->made));
    p->made.serial = serial + 1;
    p->made.first_step = e->stats.steps;
    p->low = 0;
    p->high = e->layout.arena_bytes;
    p->kind = p->id = 0;
    p->part = PART_REQUESTS;
    p->made.last_step = e->stats.steps;
    if (KG_HAS(e->parts.pool_ops, struct kg_pool_ops, classes)) {
        p->made.bin_bytes = UINT64_C(1) << p->shift;
        p->made.n_bins = (uint32_t)((e->layout.arena_bytes - 1) >> p->shift) + 1;
        p->part = PART_WALK;
    }
}

/* Each word is stored after `turn` became odd, and before it is even again. */
static void publish(struct kg_engine *e)
{
    struct kg_painter *p = e->painter;
    uint64_t turn = atomic_load_explicit(&p->turn, memory_order_relaxed);
    const char *from = (const char *)&p->made;

    atomic_store_explicit(&p->turn, turn + 1, memory_order_relaxed);
    for (size_t i = 0; i < N_WORDS; i++) {
        uint64_t word;
        memcpy(&word, from + i * sizeof(word), sizeof(word));
        atomic_store_explicit(&p->words[i], word, memory_order_release);
    }
    atomic_store_explicit(&p->turn, turn + 2, memory_order_release);
}

static void finish(struct kg_engine *e)
{
    struct kg_painter *p = e->painter;

    list_requests(e, &p->made);
    count_rows(e, &p->made);
    p->made.taken_ns = e->parts.exec_ops->now(e->parts.exec);
    p->part = PART_NONE;
    e->stats.pictures++;
    publish(e);
}

/* What the next part costs at least, in table entries. */
static uint32_t part_cost(const struct kg_painter *p)
{
    return p->part == PART_WALK ? 1 : p->part == PART_FREE ? p->made.n_bins : REQUESTS_COST;
}

/* What comes next, at most `left` table entries of it. Returns what it cost, in entries. */
static uint32_t next_part(struct kg_engine *e, uint32_t left)
{
    struct kg_painter *p = e->painter;
    uint32_t done = part_cost(p);

    if (p->part == PART_WALK) {
        done = walk_kind(e, left);
        p->made.n_entries += done;
        if (p->id == e->layout.max_units[p->kind]) {
            p->kind++;
            p->id = 0;
        }
        p->part = p->kind < KG_N_KINDS ? PART_WALK : PART_FREE;
    } else if (p->part == PART_FREE) {
        paint_free(e);
        p->made.last_step = e->stats.steps;
        p->part = PART_REQUESTS;
    } else {
        finish(e);
    }
    return done;
}

void kg_picture_step(struct kg_engine *e, int busy)
{
    struct kg_painter *p = e->painter;
    uint32_t left = busy ? SLICE : UINT32_MAX;

    if (p->part == PART_NONE && !atomic_load_explicit(&p->asked, memory_order_relaxed)) {
        return;
    }
    uint64_t t0 = kg_cpu_ns();
    if (p->part == PART_NONE) {
        atomic_store(&p->asked, 0);
        begin(e);
    }
    while (p->part != PART_NONE && left >= part_cost(p)) {
        uint32_t done = next_part(e, left);
        left = done < left ? left - done : 0;
    }
    uint64_t took = kg_cpu_ns() - t0;
    e->stats.picture_ns_sum += took;
    if (busy && took > e->stats.picture_ns_max) {
        e->stats.picture_ns_max = took;
    }
}

int kg_picture_is_asked(const struct kg_engine *e)
{
    return atomic_load(&e->painter->asked) != 0;
}

void kg_engine_picture_ask(struct kg_engine *engine)
{
    if (atomic_exchange(&engine->painter->asked, 1) == 0) {
        kg_ring_wake(engine->inbox);
    }
}

int kg_engine_picture(const struct kg_engine *engine, struct kg_picture *picture)
{
    struct kg_painter *p = engine->painter;
    char *to = (char *)picture;

    for (uint32_t tries = 0; tries < 16; tries++) {
        uint64_t turn = atomic_load_explicit(&p->turn, memory_order_acquire);
        if (turn == 0) {
            return KG_ENOENT;
        }
        if (turn % 2 != 0) {
            continue;
        }
        for (size_t i = 0; i < N_WORDS; i++) {
            uint64_t word = atomic_load_explicit(&p->words[i], memory_order_acquire);
            memcpy(to + i * sizeof(word), &word, sizeof(word));
        }
        if (atomic_load_explicit(&p->turn, memory_order_relaxed) == turn) {
            return KG_OK;
        }
    }
    return KG_EAGAIN;
}
