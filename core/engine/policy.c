/*
 * The policy's word on waiting requests. It is asked once, and again when something changed that
 * may change its mind: a request began, ended or was preempted, the script was replaced, or the
 * time it named has come. A request it put off is shown to the scheduler as paused, so that those
 * behind it go ahead; one that has begun its answer is not asked about again.
 */
#include "engine/internal.h"

#include "base/clock.h"

#include <string.h>

/* A request put off without a time is asked about again after so long, change or not: nothing
 * that a script overlooks may keep it for ever. */
#define ASK_AGAIN_NS KG_NS_PER_S

void kg_pol_begin(struct kg_engine *e, uint64_t now_ns)
{
    const struct kg_engine_policy *p = e->parts.policy;
    struct kg_waiting *w = &e->waiting;

    if (p == NULL) {
        return;
    }
    int replaced = p->step(p->ctx) != 0;
    e->n_changes += replaced;
    e->n_rules += replaced;
    e->asks = p->has_admit == NULL || p->has_admit(p->ctx);
    /* Rows stand as they are until somebody was put off, the time of one came, or things changed.
     */
    int same = e->n_put_off == 0 && e->scanned == e->n_changes && now_ns < e->ask_at_ns;
    e->n_put_off = 0;
    if (e->n_held == 0) {
        e->ask_at_ns = UINT64_MAX;
        return;
    }
    if (same) {
        return;
    }
    e->scanned = e->n_changes;
    e->ask_at_ns = UINT64_MAX;
    kg_req_settle(e);
    for (uint32_t i = w->head; i < w->head + w->n; i++) {
        struct kg_req *r = &e->reqs[w->rows[i].index];
        if (r->held && (r->asked != e->n_changes || now_ns >= r->ask_at_ns)) {
            kg_pol_release(e, r);
        } else if (r->held && r->ask_at_ns < e->ask_at_ns) {
            e->ask_at_ns = r->ask_at_ns;
        }
        w->rows[i].paused = r->paused || r->held;
    }
}

void kg_pol_release(struct kg_engine *e, struct kg_req *r)
{
    e->n_held -= r->held;
    r->held = 0;
    r->asked = 0;
}

static struct kg_admit_view view_of(struct kg_engine *e, const struct kg_req *r, uint64_t now_ns,
                                    const uint32_t need[KG_N_KINDS])
{
    const struct kg_job *job = r->job;
    uint32_t pages = r->match.page_tokens, state = r->match.state_tokens;

    if (r->reuse.home == KG_HOME_TIER) { /* what will be loaded is as good as there */
        state = r->reuse.tokens;
        pages = pages > state ? pages : state;
    }
    struct kg_admit_view v = {
        .now_ns = now_ns,
        .arrival_ns = job->done.arrival_ns,
        .id = r->id,
        .tenant = job->tenant_name,
        .class_name = job->class_name,
        .arm = kg_req_arm(e, r)->name,
        .priority = job->priority,
        .n_prompt = job->n_prompt,
        .max_tokens = job->max_tokens,
        .hit_page_tokens = r->has_match ? pages : 0,
        .hit_state_tokens = r->has_match ? state : 0,
        .n_waiting = e->waiting.n,
        .n_running = e->n_running + e->n_admitted,
        .max_running = e->conf.max_seqs,
        .step_tokens = e->conf.step_tokens,
        .unit_bytes = e->layout.unit_bytes,
    };

    /* The pool counts natural bytes, without the padding that unit_bytes has. */
    const uint64_t natural[KG_N_KINDS] = {[KG_PAGE] = e->layout.page_tokens * e->desc.token_bytes,
                                          [KG_STATE] =
                                              e->desc.n_state_parts * e->desc.state_part_bytes};

    e->parts.pool_ops->bytes(e->pool, &v.bytes);
    memcpy(v.need, need, sizeof(v.need));
    for (uint32_t k = 0; k < KG_N_KINDS; k++) {
        v.live[k] = (uint32_t)(v.bytes.live[k] / natural[k]);
        v.cached[k] = (uint32_t)(v.bytes.cached[k] / natural[k]);
    }
    return v;
}

/* Puts a request off until then, or until something changed. */
static enum kg_admit hold(struct kg_engine *e, struct kg_req *r, uint64_t until_ns)
{
    e->n_held += !r->held;
    e->n_put_off++;
    r->held = 1;
    r->ask_at_ns = until_ns;
    if (until_ns < e->ask_at_ns) {
        e->ask_at_ns = until_ns;
    }
    return KG_ADMIT_LATER;
}

enum kg_admit kg_pol_ask(struct kg_engine *e, struct kg_req *r, const uint32_t need[KG_N_KINDS])
{
    const struct kg_engine_policy *p = e->parts.policy;
    struct kg_admit_answer answer = {.lifetime = kg_req_arm(e, r)->lifetime};

    if (p == NULL || r->admission != 0) {
        return KG_ADMIT_YES;
    }
    if (!e->asks) {
        r->lifetime = answer.lifetime;
        return KG_ADMIT_YES;
    }
    if (r->asked == e->n_changes) { /* its answer stands; begin() releases those whose time came */
        return r->held ? KG_ADMIT_LATER : KG_ADMIT_YES;
    }
    uint64_t now_ns = e->parts.exec_ops->now(e->parts.exec);
    struct kg_admit_view view = view_of(e, r, now_ns, need);
    int rc = p->admit(p->ctx, &view, &answer);
    if (rc == KG_EAGAIN && r->put_off) { /* no budget left in this step: the last word stands */
        return hold(e, r, now_ns);
    }
    r->asked = e->n_changes;
    r->lifetime = answer.lifetime;
    if (rc != KG_OK || answer.verdict == KG_ADMIT_YES) {
        r->put_off = 0;
        return KG_ADMIT_YES;
    }
    if (answer.verdict == KG_ADMIT_NEVER) {
        kg_req_end(e, r, KG_FINISH_REFUSED, KG_ELIMIT, answer.text);
        return KG_ADMIT_NEVER;
    }
    r->put_off = 1;
    return hold(e, r, now_ns + (answer.defer_ns != 0 ? answer.defer_ns : ASK_AGAIN_NS));
}
