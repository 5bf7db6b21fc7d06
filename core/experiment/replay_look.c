#include "experiment/replay_int.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* --- bytes --- */

/* Two bins become one. */
static void widen(struct kg_replay_series *s)
{
    for (uint32_t i = 0; i < KG_REPLAY_BINS; i++) {
        uint32_t from = 2 * i;
        int is_there = from + 1 < KG_REPLAY_BINS;
        s->ns[i] = is_there ? s->ns[from] + s->ns[from + 1] : 0;
        s->step_ns[i] = is_there ? s->step_ns[from] + s->step_ns[from + 1] : 0;
        s->n_steps[i] = is_there ? s->n_steps[from] + s->n_steps[from + 1] : 0;
        for (uint32_t k = 0; k < KG_N_BYTES; k++) {
            s->sum[i][k] = is_there ? s->sum[from][k] + s->sum[from + 1][k] : 0;
        }
    }
    s->width_ns *= 2;
}

/* The time from..to with v bytes of each class, spread over the bins it touches. Time counts once,
 * with the first replica; bytes are those of all. */
static void add_series(struct kg_replay_series *s, uint64_t from, uint64_t to,
                       const uint64_t v[KG_N_BYTES], int is_first)
{
    while (to > 0 && (to - 1) / s->width_ns >= KG_REPLAY_BINS) { /* no product: it may be large */
        widen(s);
    }
    while (from < to) {
        uint64_t i = from / s->width_ns, left = s->width_ns - from % s->width_ns;
        uint64_t end = to - from < left ? to : from + left;
        double dt = (double)(end - from);
        s->ns[i] += is_first ? dt : 0;
        for (uint32_t k = 0; k < KG_N_BYTES; k++) {
            s->sum[i][k] += (double)v[k] * dt;
        }
        from = end;
    }
}

/* A step that ended at t. */
static void add_step(struct kg_replay_series *s, uint64_t t, uint64_t ns)
{
    while (t > 0 && (t - 1) / s->width_ns >= KG_REPLAY_BINS) {
        widen(s);
    }
    uint64_t i = t > 0 ? (t - 1) / s->width_ns : 0;
    s->step_ns[i] += (double)ns;
    s->n_steps[i]++;
}

/* The bytes of a replica as they were set last, for dt until t. */
static void add_bytes(struct kg_replay_play *r, struct kg_replica *p, uint64_t t, uint64_t dt)
{
    int is_first = p == r->replicas;

    for (uint32_t k = 0; k < KG_N_BYTES; k++) {
        r->out->bytes[k].sum += (double)p->bytes[k] * (double)dt;
        p->out->bytes_sum[k] += (double)p->bytes[k] * (double)dt;
    }
    if (r->out->series != NULL) {
        add_series(r->out->series, t - dt, t, p->bytes, is_first);
    }
    r->out->bytes_ns += is_first ? dt : 0;
    p->last_ns = t;
}

/* The bytes of a replica are now b: of all replicas together the most is kept. */
static void set_bytes(struct kg_replay_play *r, struct kg_replica *p, const struct kg_pool_bytes *b)
{
    const uint64_t v[KG_N_BYTES] = {
        [KG_BYTES_LIVE_PAGES] = b->live[KG_PAGE],
        [KG_BYTES_LIVE_STATES] = b->live[KG_STATE],
        [KG_BYTES_CACHED_PAGES] = b->cached[KG_PAGE],
        [KG_BYTES_CACHED_STATES] = b->cached[KG_STATE],
        [KG_BYTES_PINNED] = b->pinned,
        [KG_BYTES_HOLES] = b->holes,
        [KG_BYTES_GAP] = b->gap,
        [KG_BYTES_PADDING] = b->padding,
        [KG_BYTES_PROMISED] = b->promised,
    };

    for (uint32_t k = 0; k < KG_N_BYTES; k++) {
        struct kg_replay_bytes *out = &r->out->bytes[k];
        out->now += v[k] - p->bytes[k];
        out->max = out->now > out->max ? out->now : out->max;
    }
    memcpy(p->bytes, v, sizeof(v));
}

static int room_for_steps(struct kg_replay_play *r)
{
    struct kg_replay_result *o = r->out;
    size_t cap = o->cap_steps == 0 ? 4096 : 2 * o->cap_steps;
    uint64_t *p = realloc(o->step_ns, cap * sizeof(*p));

    o->step_ns = p != NULL ? p : o->step_ns;
    if (p != NULL && r->c->time_engine) {
        p = realloc(o->engine_ns, cap * sizeof(*p));
        o->engine_ns = p != NULL ? p : o->engine_ns;
    }
    if (p == NULL) {
        return kg_fail(r->err, KG_ENOMEM, "no memory for %zu step times", cap);
    }
    o->cap_steps = cap;
    return KG_OK;
}

int kg_replay_look(struct kg_replay_play *r, struct kg_replica *p)
{
    struct kg_replay_result *o = r->out;
    struct kg_engine_stats *s = &p->out->stats;
    uint64_t t = kg_replica_now(p);

    kg_engine_stats(p->c->engine, s);
    set_bytes(r, p, &s->bytes);
    add_bytes(r, p, t, t - p->last_ns);
    if (s->steps == p->last_steps) {
        return KG_OK;
    }
    if (o->n_steps == o->cap_steps && room_for_steps(r) != KG_OK) {
        return KG_ENOMEM;
    }
    if (r->c->time_engine) {
        o->engine_ns[o->n_steps] = s->overhead_ns_sum - p->last_engine_sum;
        p->last_engine_sum = s->overhead_ns_sum;
    }
    o->step_ns[o->n_steps++] = s->step_ns_sum - p->last_step_sum;
    if (o->series != NULL) {
        add_step(o->series, t, s->step_ns_sum - p->last_step_sum);
    }
    p->last_steps = s->steps;
    p->last_step_sum = s->step_ns_sum;
    return KG_OK;
}

/* --- the end --- */

/* Counters add up; what is said of a moment, like the last step, is left to each share. */
static void add_stats(struct kg_engine_stats *a, const struct kg_engine_stats *b)
{
#define AT(field) offsetof(struct kg_engine_stats, field)
    static const size_t counters[] = {
        AT(steps),           AT(step_ns_sum),    AT(overhead_ns_sum), AT(prompt_tokens),
        AT(output_tokens),   AT(queried_tokens), AT(cached_tokens),   AT(lost_tokens),
        AT(ghost_tokens),    AT(reused_tokens),  AT(ckpt_written),    AT(ckpt_unused),
        AT(ckpt_skipped),    AT(ckpt_pruned),    AT(taken_over),      AT(evicted[0]),
        AT(evicted[1]),      AT(n_short[0]),     AT(n_short[1]),      AT(tier_stored[0]),
        AT(tier_stored[1]),  AT(tier_had[0]),    AT(tier_had[1]),     AT(tier_skipped[0]),
        AT(tier_skipped[1]), AT(tier_loaded[0]), AT(tier_loaded[1]),  AT(tier_failed),
        AT(tier_fallbacks),  AT(tier_tokens),    AT(tier_bytes),      AT(tier_limit),
        AT(drafted),         AT(verified),       AT(accepted),        AT(draft_ns_sum),
        AT(commit_ns_sum),   AT(preemptions),    AT(moves),           AT(moved_bytes),
        AT(idle_moves),      AT(plans_dropped),  AT(drafts_failed),   AT(nan_rows),
        AT(ghost_bytes),     AT(shared_pages),
    };
#undef AT

    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
        uint64_t *to = (uint64_t *)(void *)((char *)a + counters[i]);
        *to += *(const uint64_t *)(const void *)((const char *)b + counters[i]);
    }
    a->spec.rounds += b->spec.rounds;
    for (uint32_t j = 0; j < KG_SPEC_POSITIONS; j++) {
        a->spec.verified[j] += b->spec.verified[j];
        a->spec.accepted[j] += b->spec.accepted[j];
        a->spec.expected_um[j] += b->spec.expected_um[j];
    }
}

void kg_replay_finish(struct kg_replay_play *r)
{
    uint64_t end = 0;

    for (uint32_t k = 0; k < r->c->n_replicas; k++) {
        uint64_t t = kg_replica_now(&r->replicas[k]);
        end = t > end ? t : end;
    }
    for (uint32_t k = 0; k < r->c->n_replicas; k++) {
        struct kg_replica *p = &r->replicas[k];
        if (p->last_ns < end) {
            add_bytes(r, p, end, end - p->last_ns);
        }
        p->out->n_steps = p->out->stats.steps;
        p->out->step_ns_sum = p->out->stats.step_ns_sum;
        r->out->arena_bytes += p->out->stats.bytes.arena;
        if (k == 0) {
            r->out->stats = p->out->stats;
        } else {
            add_stats(&r->out->stats, &p->out->stats);
        }
    }
    r->out->duration_ns = end;
}
