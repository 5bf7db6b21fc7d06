/* The plan of a step: what the scheduler is shown, the rules its answer must keep, and the
 * built-in first-come first-served plan for a step whose plan broke one. */
#include "engine/internal.h"

/* --- built-in fcfs: decode, then prefill, then admission by arrival --- */

static uint32_t fcfs_rows(const struct kg_sched_view *v, const struct kg_sched_req *q,
                          uint32_t *rows)
{
    uint32_t n = q->n_prompt - q->n_computed;

    n = n < v->prefill_chunk ? n : v->prefill_chunk;
    n = n < *rows ? n : *rows;
    *rows -= n;
    return n;
}

static uint32_t fcfs_plan(const struct kg_sched_view *v, struct kg_sched_item *items, uint32_t max)
{
    uint32_t n = 0, rows = v->step_tokens;

    for (uint32_t i = 0; i < v->n_running && n < max && rows >= v->decode_rows; i++) {
        if (v->running[i].decoding && !v->running[i].paused) {
            items[n++] = (struct kg_sched_item){v->running[i].index, 1};
            rows -= v->decode_rows;
        }
    }
    for (uint32_t i = 0; i < v->n_running && n < max && rows > 0; i++) {
        if (!v->running[i].decoding && !v->running[i].paused) {
            uint32_t k = fcfs_rows(v, &v->running[i], &rows);
            items[n++] = (struct kg_sched_item){v->running[i].index, k};
        }
    }
    for (uint32_t i = 0; i < v->n_waiting && n < max && rows > 0; i++) {
        struct kg_sched_req q = v->waiting[i];
        if (q.paused) {
            continue;
        }
        enum kg_admit a = v->admit(v->ctx, q.index, &q.n_computed);
        if (a == KG_ADMIT_LATER) {
            break;
        }
        if (a == KG_ADMIT_YES) {
            items[n++] = (struct kg_sched_item){q.index, fcfs_rows(v, &q, &rows)};
        }
    }
    return n;
}

/* --- the rules --- */

/* One line of a plan; adds its rows. */
static int check_item(struct kg_engine *e, const struct kg_sched_view *v,
                      const struct kg_sched_item *it, uint64_t *rows)
{
    if (it->index >= e->conf.max_requests) {
        return 0;
    }
    struct kg_req *r = &e->reqs[it->index];
    if (!kg_req_holds(r) || r->paused || r->stamp == e->n_checks) {
        return 0;
    }
    r->stamp = e->n_checks;
    if (r->state == KG_LIFE_DECODE) {
        *rows += v->decode_rows;
        return it->n_tokens == 1;
    }
    /* One that is still being loaded stands behind what it loads when its rows are computed. */
    uint32_t computed = r->loading != KG_LOAD_NONE ? r->reuse.tokens : r->past;
    *rows += it->n_tokens;
    return it->n_tokens >= 1 && it->n_tokens <= v->prefill_chunk &&
           it->n_tokens <= r->n_target - computed;
}

/* Budgets kept, nobody twice, nobody who holds nothing, and somebody advances if somebody can. */
static int check_plan(struct kg_engine *e, const struct kg_sched_view *v, int n)
{
    uint64_t rows = 0;

    e->n_checks++;
    if (n < 0 || (uint32_t)n > e->conf.max_seqs) {
        return 0;
    }
    for (int i = 0; i < n; i++) {
        if (!check_item(e, v, &e->items[i], &rows)) {
            return 0;
        }
    }
    if (rows > v->step_tokens) {
        return 0;
    }
    int can = n == 0 && e->n_admitted > 0;
    for (uint32_t i = 0; n == 0 && i < v->n_running && !can; i++) {
        can = !v->running[i].paused;
    }
    return !can;
}

static struct kg_sched_view view_of(struct kg_engine *e, uint64_t now_ns)
{
    return (struct kg_sched_view){
        .size = sizeof(struct kg_sched_view),
        .now_ns = now_ns,
        .step_tokens = e->conf.step_tokens,
        .prefill_chunk = e->conf.prefill_chunk,
        .decode_rows = 1 + e->cap,
        .n_slots = e->n_free_slots,
        .running = e->running,
        .n_running = e->n_running,
        .n_waiting = e->waiting.n,
        .waiting = e->waiting.rows + e->waiting.head,
        .admit = kg_adm_ask,
        .ctx = e,
    };
}

/* An empty plan whose maker never asked for anybody is a stall, not a plan. */
static int is_stall(const struct kg_engine *e, int n)
{
    return n == 0 && e->n_asked == 0 && e->n_free_slots > 0 && e->waiting.n > 0;
}

/* Lines of the accepted plan become picks, cut where a test hook asks for it. */
static void fill_picks(struct kg_engine *e, int n)
{
    e->n_picks = 0;
    e->n_rows = 0;
    for (int i = 0; i < n; i++) {
        struct kg_req *r = &e->reqs[e->items[i].index];
        struct kg_pick *p = &e->picks[e->n_picks++];
        *p = (struct kg_pick){
            .req = r, .n_tokens = e->items[i].n_tokens, .decode = r->state == KG_LIFE_DECODE};
        if (!p->decode && e->test.chunk != NULL) {
            uint32_t k = e->test.chunk(e->test.ctx, r->id, r->past, p->n_tokens);
            p->n_tokens = k >= 1 && k < p->n_tokens ? k : p->n_tokens;
        }
        e->n_rows += p->n_tokens;
    }
}

void kg_plan_step(struct kg_engine *e)
{
    kg_req_settle(e);
    uint64_t now_ns = e->parts.exec_ops->now(e->parts.exec);
    struct kg_sched_view v = view_of(e, now_ns);

    e->n_asked = 0;
    e->planning = 1;
    int n = e->parts.sched_ops->plan(e->parts.sched, &v, e->items, e->conf.max_seqs);
    int good = check_plan(e, &v, n);
    int stall = good && is_stall(e, n);
    e->planning = 0;
    kg_req_settle(e);
    if (!good || stall) {
        v = view_of(e, now_ns);
        e->planning = 1;
        n = (int)fcfs_plan(&v, e->items, e->conf.max_seqs);
        int kept = check_plan(e, &v, n);
        e->planning = 0;
        e->stats.plans_dropped += !good || n > 0;
        n = kept ? n : 0;
        kg_req_settle(e);
    }
    fill_picks(e, n);
}
