/*
 * Speculation in a step: who drafts, how long, and what is verified. The policy's answers are
 * hints: what breaks its contract is cut to what is legal and counted, and length 0 is always
 * legal, so a policy cannot do harm beyond time.
 */
#include "base/clock.h"
#include "engine/internal.h"

#include <string.h>

/* Drafts that memory, max_tokens and the backend allow a decoding request. */
static uint32_t max_draft(const struct kg_engine *e, const struct kg_req *r)
{
    uint32_t left = r->job->max_tokens - kg_req_output(r);
    uint64_t room = (uint64_t)r->n_granted * e->layout.page_tokens;
    uint32_t n = r->fresh ? 0 : e->cap; /* drafts would be made on a page list that is gone */

    uint32_t limit = kg_window_limit(e, r);

    n = n < left - 1 ? n : left - 1;
    n = n < limit ? n : limit;
    if (room < (uint64_t)r->past + 1 + n) {
        n = room > (uint64_t)r->past + 1 ? (uint32_t)(room - r->past - 1) : 0;
    }
    return n;
}

static void fill_seqs(struct kg_engine *e)
{
    int host = (e->parts.spec_caps & KG_SPEC_CAP_HOST) != 0;

    e->n_spec = 0;
    for (uint32_t i = 0; i < e->n_picks; i++) {
        struct kg_pick *p = &e->picks[i];
        if (!p->decode) {
            continue;
        }
        const struct kg_req *r = p->req;
        p->max_draft = max_draft(e, r);
        p->spec = e->n_spec;
        e->spec_seqs[e->n_spec++] = (struct kg_spec_seq){
            .id = r->id,
            .slot = r->slot,
            .context = r->past,
            .max_draft = p->max_draft,
            .greedy = !(r->job->sampling.temperature > 0.0f),
            .n_history = r->n_tokens,
            .history = host ? r->job->tokens : NULL,
        };
    }
}

/* HOST: the policy fills the rows behind each sequence's first. */
static void draft_host(struct kg_engine *e, const struct kg_spec_view *view)
{
    uint32_t stride = 1 + e->block;

    memset(e->draft_counts, 0, e->n_spec * sizeof(*e->draft_counts));
    int rc =
        e->parts.spec_ops->draft(e->parts.spec, view, e->draft_tokens + 1, stride, e->draft_counts);
    for (uint32_t i = 0; i < e->n_spec; i++) {
        struct kg_spec_seq *q = &e->spec_seqs[i];
        const uint32_t *tokens = e->draft_tokens + (size_t)i * stride + 1;
        uint32_t n = rc < 0 ? 0 : e->draft_counts[i];
        uint32_t bad = n > q->max_draft;
        n = bad ? q->max_draft : n;
        for (uint32_t k = 0; k < n; k++) {
            if (tokens[k] >= e->desc.vocab) { /* the first that is no token ends the draft */
                n = k;
                bad = 1;
            }
        }
        e->stats.drafts_failed += bad;
        q->n_drafted = n;
    }
    e->stats.drafts_failed += rc < 0;
}

/* MODEL: how much to draft for each sequence, in draft_counts. */
static void ask_wants(struct kg_engine *e, const struct kg_spec_view *view)
{
    for (uint32_t i = 0; i < e->n_spec; i++) {
        e->draft_counts[i] = e->spec_seqs[i].max_draft;
    }
    if (KG_HAS(e->parts.spec_ops, struct kg_spec_ops, want)) {
        e->parts.spec_ops->want(e->parts.spec, view, e->draft_counts);
    }
    for (uint32_t i = 0; i < e->n_spec; i++) {
        const struct kg_spec_seq *q = &e->spec_seqs[i];
        uint32_t most = q->max_draft < e->desc.draft_block ? q->max_draft : e->desc.draft_block;
        e->stats.drafts_failed += e->draft_counts[i] > q->max_draft;
        e->draft_counts[i] = e->draft_counts[i] < most ? e->draft_counts[i] : most;
    }
}

/* The backend drafts for those who may; what it cannot do is no draft. */
static void draft_model(struct kg_engine *e, const struct kg_spec_view *view)
{
    uint32_t n = 0;

    ask_wants(e, view);
    for (uint32_t i = 0; i < e->n_spec; i++) {
        if (e->draft_counts[i] > 0) {
            e->drafts[n++] = (struct kg_draft){e->spec_seqs[i].slot, e->draft_counts[i],
                                               e->survival + (size_t)i * e->block};
        }
    }
    e->n_drafting = n;
    e->most_drafted = 0;
    for (uint32_t i = 0; i < n; i++) {
        e->most_drafted = e->drafts[i].n > e->most_drafted ? e->drafts[i].n : e->most_drafted;
    }
    uint64_t t = kg_engine_tick(e);
    int rc = n > 0 ? e->parts.exec_ops->draft(e->parts.exec, e->drafts, n) : KG_OK;
    e->exec_ns += kg_engine_tick(e) - t;
    e->stats.drafts_failed += rc != KG_OK;
    n = 0;
    for (uint32_t i = 0; i < e->n_spec && rc == KG_OK; i++) {
        struct kg_spec_seq *q = &e->spec_seqs[i];
        if (e->draft_counts[i] > 0) {
            const struct kg_draft *d = &e->drafts[n++];
            q->n_drafted = d->n < e->draft_counts[i] ? d->n : e->draft_counts[i];
            q->survival = d->survival;
        }
    }
}

static uint32_t position_of(uint32_t j)
{
    return j < KG_SPEC_POSITIONS ? j : KG_SPEC_POSITIONS - 1;
}

static void count_window(struct kg_spec_count *c, const struct kg_spec_seq *q, uint32_t n)
{
    c->rounds += n > 0;
    for (uint32_t j = 0; j < n; j++) {
        float said = q->survival != NULL ? q->survival[j] : 0.0f;
        c->verified[position_of(j)]++;
        c->expected_um[position_of(j)] += said > 0.0f ? (uint64_t)(said * 1e6f + 0.5f) : 0;
    }
}

void kg_draft_accepted(struct kg_engine *e, struct kg_req *r, uint32_t n)
{
    r->job->done.n_accepted += n;
    e->stats.accepted += n;
    for (uint32_t j = 0; j < n; j++) {
        r->job->done.spec.accepted[position_of(j)]++;
        e->stats.spec.accepted[position_of(j)]++;
    }
}

/* Verify lengths as chosen, cut to what was drafted. The plan counted 1 + cap rows for each decode
 * and nobody drafted more than cap, so the step's rows are not overdrawn. */
static void choose(struct kg_engine *e, const struct kg_spec_view *view)
{
    memset(e->lengths, 0, e->n_spec * sizeof(*e->lengths));
    e->parts.spec_ops->choose(e->parts.spec, view, e->lengths);
    for (uint32_t i = 0; i < e->n_picks; i++) {
        struct kg_pick *p = &e->picks[i];
        if (!p->decode) {
            continue;
        }
        const struct kg_spec_seq *q = &e->spec_seqs[p->spec];
        uint32_t n = kg_window_is_set(e, p->req) ? q->n_drafted : e->lengths[p->spec];
        if (n > q->n_drafted) {
            n = q->n_drafted;
            e->stats.drafts_failed++;
        }
        p->n_draft = n;
        e->n_rows += n;
        p->req->job->done.n_drafted += q->n_drafted;
        p->req->job->done.n_verified += n;
        e->stats.drafted += q->n_drafted;
        e->stats.verified += n;
        count_window(&p->req->job->done.spec, q, n);
        count_window(&e->stats.spec, q, n);
    }
}

void kg_draft_step(struct kg_engine *e)
{
    e->n_spec = e->n_drafting = 0;
    if (e->cap == 0) {
        return;
    }
    fill_seqs(e);
    if (e->n_spec == 0) {
        return;
    }
    struct kg_spec_view view = {.size = sizeof(view),
                                .seqs = e->spec_seqs,
                                .n_seqs = e->n_spec,
                                .other_rows = e->n_rows - e->n_spec,
                                .rows_left = e->conf.step_tokens - e->n_rows,
                                .cap = e->cap,
                                .cost = e->cost.size != 0 ? &e->cost : NULL};
    if (e->parts.spec_caps & KG_SPEC_CAP_HOST) {
        draft_host(e, &view);
    } else if (e->parts.spec_caps & KG_SPEC_CAP_MODEL) {
        draft_model(e, &view);
    }
    choose(e, &view);
}

static void flush(struct kg_engine *e, uint64_t step_ns)
{
    if (e->parts.spec_ops != NULL && e->n_seen > 0) {
        e->parts.spec_ops->observe(e->parts.spec, e->seen, e->n_seen, step_ns);
    }
    e->n_seen = 0;
}

void kg_draft_seen(struct kg_engine *e, const struct kg_spec_seen *seen)
{
    if (e->block == 0) {
        return;
    }
    if (e->n_seen == 2 * e->conf.max_seqs) {
        flush(e, 0);
    }
    e->seen[e->n_seen++] = *seen;
}

/* Drafts take room that nobody else needs: every decoding request fits the step at 1 + cap rows,
 * and while prompts wait, a chunk (at most half of the step) stays free for them. */
static uint32_t fit_cap(const struct kg_engine *e, uint32_t cap)
{
    uint32_t n_decode = 0, n_other = e->waiting.n, rows = e->conf.step_tokens;

    for (uint32_t i = 0; i < e->n_running; i++) {
        const struct kg_sched_req *q = &e->running[i];
        if (q->index != KG_NONE && !q->paused) {
            n_decode += q->decoding != 0;
            n_other += q->decoding == 0;
        }
    }
    if (n_other > 0) {
        uint32_t keep = e->conf.prefill_chunk;
        rows -= keep < rows / 2 ? keep : rows / 2;
    }
    if (n_decode == 0) {
        return cap;
    }
    uint32_t most = rows / n_decode > 0 ? rows / n_decode - 1 : 0;
    return cap < most ? cap : most;
}

void kg_draft_observe(struct kg_engine *e, uint64_t step_ns)
{
    flush(e, step_ns);
    e->cap = 0;
    if (e->block > 0) {
        uint32_t cap = e->parts.spec_ops->cap(e->parts.spec);
        e->stats.drafts_failed += cap > e->block && cap > e->parts.spec_ops->block(e->parts.spec);
        uint32_t most = kg_window_step(e);
        e->cap = fit_cap(e, cap < most ? cap : most);
    }
}

uint32_t kg_draft_block(const struct kg_engine *e, const struct kg_spec_ops *ops,
                        const struct kg_spec *spec, uint64_t caps)
{
    uint32_t block = 0;
    int model = (caps & KG_SPEC_CAP_MODEL) != 0;
    int can = (e->desc.caps & KG_EXEC_CAP_VERIFY) && (!model || (e->desc.caps & KG_EXEC_CAP_DRAFT));

    if (ops != NULL && can) {
        block = ops->block(spec);
        block = !model || block < e->desc.draft_block ? block : e->desc.draft_block;
        block = block < e->desc.max_draft ? block : e->desc.max_draft;
        block = block < e->conf.step_tokens - 1 ? block : e->conf.step_tokens - 1;
    }
    return block;
}

void kg_draft_swap(struct kg_engine *e, struct kg_engine_swap *swap)
{
    const struct kg_spec_ops *ops = e->parts.spec_ops;
    struct kg_spec *spec = e->parts.spec;
    uint64_t caps = e->parts.spec_caps;

    e->parts.spec_ops = swap->spec_ops;
    e->parts.spec = swap->spec;
    e->parts.spec_caps = swap->spec_caps;
    e->block = swap->block;
    e->n_seen = 0; /* of slots that the new one never saw */
    e->n_rules++;  /* windows were cut to the old block */
    swap->spec_ops = ops;
    swap->spec = spec;
    swap->spec_caps = caps;
}
