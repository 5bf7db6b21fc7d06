/*
 * Speculation in a step: who drafts, how long, and what is verified. The policy's answers are
 * hints: what breaks its contract is cut to what is legal and counted, and length 0 is always
 * legal, so a policy cannot do harm beyond time. Each arm has a policy of its own, which sees the
 * sequences of its arm; the backend drafts for all of them in one call.
 */
#include "base/clock.h"
#include "engine/internal.h"

#include <string.h>

/* Drafts that memory, max_tokens and the backend allow a decoding request. */
static uint32_t max_draft(const struct kg_engine *e, const struct kg_req *r)
{
    uint32_t left = r->job->max_tokens - kg_req_output(r);
    uint64_t room = (uint64_t)r->n_granted * e->layout.page_tokens;
    /* fresh: drafts would be made on a page list that is gone */
    uint32_t n = r->fresh ? 0 : kg_req_arm(e, r)->cap;

    uint32_t limit = kg_window_limit(e, r);

    n = n < left - 1 ? n : left - 1;
    n = n < limit ? n : limit;
    if (room < (uint64_t)r->past + 1 + n) {
        n = room > (uint64_t)r->past + 1 ? (uint32_t)(room - r->past - 1) : 0;
    }
    return n;
}

/* The decoding sequences of one arm, behind those of the arms before it. */
static void fill_arm(struct kg_engine *e, uint32_t index)
{
    struct kg_arm *a = &e->arms[index];
    int host = (a->spec_caps & KG_SPEC_CAP_HOST) != 0;

    a->first = e->n_spec;
    for (uint32_t i = 0; i < e->n_picks; i++) {
        struct kg_pick *p = &e->picks[i];
        const struct kg_req *r = p->req;
        if (!p->decode || r->job->arm != index) {
            continue;
        }
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
    a->n_spec = e->n_spec - a->first;
}

/* What the speculation of an arm sees: its own sequences; those of other arms are other rows. */
static struct kg_spec_view view_of(const struct kg_engine *e, const struct kg_arm *a)
{
    return (struct kg_spec_view){.size = sizeof(struct kg_spec_view),
                                 .seqs = e->spec_seqs + a->first,
                                 .n_seqs = a->n_spec,
                                 .other_rows = e->n_rows - a->n_spec,
                                 .rows_left = e->conf.step_tokens - e->n_rows,
                                 .cap = a->cap,
                                 .cost = e->cost.size != 0 ? &e->cost : NULL};
}

/* HOST: the policy fills the rows behind each sequence's first. */
static void draft_host(struct kg_engine *e, const struct kg_arm *a)
{
    uint32_t stride = 1 + e->block, *counts = e->draft_counts + a->first;
    uint32_t *rows = e->draft_tokens + (size_t)a->first * stride;
    const struct kg_spec_view view = view_of(e, a);

    memset(counts, 0, a->n_spec * sizeof(*counts));
    int rc = a->spec_ops->draft(a->spec, &view, rows + 1, stride, counts);
    for (uint32_t i = 0; i < a->n_spec; i++) {
        struct kg_spec_seq *q = &e->spec_seqs[a->first + i];
        const uint32_t *tokens = rows + (size_t)i * stride + 1;
        uint32_t n = rc < 0 ? 0 : counts[i];
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

/* MODEL: how much to draft for each sequence, in draft_counts; the backend is asked later, for all
 * arms at once. */
static void ask_wants(struct kg_engine *e, struct kg_arm *a)
{
    const struct kg_spec_view view = view_of(e, a);
    uint32_t *counts = e->draft_counts + a->first;

    a->first_draft = e->n_drafting;
    for (uint32_t i = 0; i < a->n_spec; i++) {
        const struct kg_spec_seq *q = &e->spec_seqs[a->first + i];
        counts[i] = q->n_drafted > 0 ? 0 : q->max_draft;
    }
    if (KG_HAS(a->spec_ops, struct kg_spec_ops, want)) {
        a->spec_ops->want(a->spec, &view, counts);
    }
    for (uint32_t i = 0; i < a->n_spec; i++) {
        const struct kg_spec_seq *q = &e->spec_seqs[a->first + i];
        uint32_t most = q->max_draft < e->desc.draft_block ? q->max_draft : e->desc.draft_block;
        most = q->n_drafted > 0 ? 0 : most; /* the policy drafted for it itself */
        e->stats.drafts_failed += counts[i] > q->max_draft;
        counts[i] = counts[i] < most ? counts[i] : most;
        if (counts[i] > 0) {
            e->drafts[e->n_drafting++] = (struct kg_draft){
                q->slot, counts[i], e->survival + (size_t)(a->first + i) * e->block};
            e->most_drafted = counts[i] > e->most_drafted ? counts[i] : e->most_drafted;
        }
    }
}

/* The backend drafts for those who may; what it cannot do is no draft. */
static void draft_model(struct kg_engine *e)
{
    uint64_t t = kg_engine_tick(e);
    int rc = e->n_drafting > 0 ? e->parts.exec_ops->draft(e->parts.exec, e->drafts, e->n_drafting)
                               : KG_OK;

    e->exec_ns += kg_engine_tick(e) - t;
    e->stats.drafts_failed += rc != KG_OK;
    for (uint32_t k = 0; k < e->n_arms && rc == KG_OK; k++) {
        const struct kg_arm *a = &e->arms[k];
        const struct kg_draft *d = e->drafts + a->first_draft;
        for (uint32_t i = a->first; a->spec_caps & KG_SPEC_CAP_MODEL && i < a->first + a->n_spec;
             i++) {
            struct kg_spec_seq *q = &e->spec_seqs[i];
            if (e->draft_counts[i] > 0) {
                q->n_drafted = d->n < e->draft_counts[i] ? d->n : e->draft_counts[i];
                q->survival = d->survival;
                d++;
            }
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

/* Verify lengths as chosen by an arm, cut to what was drafted. The plan counted 1 + cap rows for
 * each decode and nobody drafted more than cap, so the step's rows are not overdrawn. */
static void choose(struct kg_engine *e, uint32_t index)
{
    const struct kg_arm *a = &e->arms[index];
    const struct kg_spec_view view = view_of(e, a);

    memset(e->lengths + a->first, 0, a->n_spec * sizeof(*e->lengths));
    a->spec_ops->choose(a->spec, &view, e->lengths + a->first);
    for (uint32_t i = 0; i < e->n_picks; i++) {
        struct kg_pick *p = &e->picks[i];
        if (!p->decode || p->req->job->arm != index) {
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
    e->n_spec = e->n_drafting = e->most_drafted = 0;
    for (uint32_t k = 0; k < e->n_arms; k++) {
        e->arms[k].n_spec = 0;
        if (e->arms[k].cap > 0) {
            fill_arm(e, k);
        }
    }
    if (e->n_spec == 0) {
        return;
    }
    for (uint32_t k = 0; k < e->n_arms; k++) {
        struct kg_arm *a = &e->arms[k];
        if (a->n_spec > 0 && a->spec_caps & KG_SPEC_CAP_HOST) {
            draft_host(e, a);
        }
        if (a->n_spec > 0 && a->spec_caps & KG_SPEC_CAP_MODEL) {
            ask_wants(e, a);
        }
    }
    draft_model(e);
    for (uint32_t k = 0; k < e->n_arms; k++) {
        if (e->arms[k].n_spec > 0) {
            choose(e, k);
        }
    }
}

static void flush(struct kg_arm *a, uint64_t step_ns)
{
    if (a->spec_ops != NULL && a->n_seen > 0) {
        a->spec_ops->observe(a->spec, a->seen, a->n_seen, step_ns);
    }
    a->n_seen = 0;
}

void kg_draft_seen(struct kg_engine *e, uint32_t arm, const struct kg_spec_seen *seen)
{
    struct kg_arm *a = &e->arms[arm];

    if (a->block == 0) {
        return;
    }
    if (a->n_seen == 2 * e->conf.max_seqs) {
        flush(a, 0);
    }
    a->seen[a->n_seen++] = *seen;
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
    uint32_t n = 0, most = 0;

    for (uint32_t k = 0; k < e->n_arms; k++) {
        n += e->arms[k].n_seen > 0;
    }
    e->cap = 0;
    for (uint32_t k = 0; k < e->n_arms; k++) { /* a step of several arms is the time of none */
        flush(&e->arms[k], n > 1 ? 0 : step_ns);
        e->arms[k].cap = 0;
    }
    most = kg_window_step(e); /* without drafts too: what was counted on the way is counted */
    for (uint32_t k = 0; k < e->n_arms; k++) {
        struct kg_arm *a = &e->arms[k];
        if (a->block > 0) {
            uint32_t cap = a->spec_ops->cap(a->spec);
            e->stats.drafts_failed += cap > a->block && cap > a->spec_ops->block(a->spec);
            cap = cap < most ? cap : most;
            a->cap = fit_cap(e, cap < a->block ? cap : a->block);
            e->cap = a->cap > e->cap ? a->cap : e->cap;
        }
    }
}

void kg_draft_size(struct kg_engine *e)
{
    e->block = 0;
    for (uint32_t k = 0; k < e->n_arms; k++) {
        e->block = e->arms[k].block > e->block ? e->arms[k].block : e->block;
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
    struct kg_arm *a = &e->arms[swap->arm];
    const struct kg_spec_ops *ops = a->spec_ops;
    struct kg_spec *spec = a->spec;
    uint64_t caps = a->spec_caps;

    a->spec_ops = swap->spec_ops;
    a->spec = swap->spec;
    a->spec_caps = swap->spec_caps;
    a->block = swap->block;
    a->n_seen = 0; /* of slots that the new one never saw */
    kg_draft_size(e);
    e->n_rules++; /* windows were cut to the old block */
    swap->spec_ops = ops;
    swap->spec = spec;
    swap->spec_caps = caps;
}
