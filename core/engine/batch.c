/* One batch: units taken, sequences described, submitted, waited for, results acted on. */
#include "base/clock.h"
#include "engine/internal.h"

#include <stdio.h>
#include <string.h>

/* --- building --- */

static void build_seq(struct kg_engine *e, uint32_t i)
{
    struct kg_pick *p = &e->picks[i];
    struct kg_req *r = p->req;
    struct kg_seq *q = &e->seqs[i];
    const uint32_t *tokens = r->job->tokens + r->past;

    if (p->n_draft > 0) {
        uint32_t *row = e->draft_tokens + (size_t)p->spec * (1 + e->block);
        row[0] = tokens[0];
        tokens = row;
    }
    *q = (struct kg_seq){
        .slot = r->slot,
        .epoch = r->epoch,
        .id = r->id,
        .past = r->past,
        .n_rows = p->n_tokens + p->n_draft,
        .n_draft = p->n_draft,
        .tokens = tokens,
        .pages = r->job->pages + r->n_sent,
        .n_pages = r->n_pages - r->n_sent,
        .state = r->unit,
        .state_src = KG_STATE_KEEP,
        .n_orders = p->n_orders,
        .orders = e->orders + (size_t)i * e->desc.max_orders,
        .left = r->job->max_tokens - kg_req_output(r),
        .force_accept = KG_NONE,
    };
    if (p->decode || r->past + p->n_tokens == r->n_target) {
        q->flags |= KG_SEQ_SAMPLE;
    }
    if (r->job->n_echo_lp > 0 && r->past < r->job->n_prompt) {
        q->flags |= KG_SEQ_ECHO;
    }
    if (r->fresh) {
        q->flags |= KG_SEQ_RESET;
        q->state_src = r->source != KG_NONE ? r->source : KG_STATE_ZERO;
        q->history = r->job->tokens;
        q->n_history = r->n_tokens;
        q->output_start = r->job->n_prompt;
        q->sampling = &r->job->sampling;
    }
}

/* What tests force on a sequence. */
static void force_seq(struct kg_engine *e, struct kg_seq *q)
{
    const struct kg_engine_test *t = &e->test;

    if (t->logits) {
        q->flags |= KG_SEQ_LOGITS;
    }
    if (t->force_accept != NULL && q->n_draft > 0) {
        q->force_accept = t->force_accept(t->ctx, q->id, q->past, q->n_draft);
    }
    if (t->poison != NULL && t->poison(t->ctx, q->id, q->past)) {
        q->flags |= KG_SEQ_POISON;
    }
}

/* Pages for the rows of each pick, drafts at their longest, before anything is queued. A pick
 * whose promise the pool does not keep ends with an error. */
static void take_pages(struct kg_engine *e)
{
    uint32_t n = 0;

    e->n_rows = 0;
    for (uint32_t i = 0; i < e->n_picks; i++) {
        struct kg_pick *p = &e->picks[i];
        uint32_t rows = p->decode ? 1 + e->cap : p->n_tokens;
        uint64_t most = (uint64_t)p->req->n_granted * e->layout.page_tokens - p->req->past;
        int rc = kg_adm_take(e, p->req, rows < most ? rows : (uint32_t)most);
        if (rc != KG_OK) {
            kg_req_end(e, p->req, KG_FINISH_ERROR, KG_ENOMEM, "the pool broke its promise");
            continue;
        }
        if (!p->decode) {
            p->n_tokens = kg_cache_rows(e, p); /* fewer, if it has more checkpoints than fit */
        }
        e->n_rows += p->n_tokens;
        e->picks[n++] = *p;
    }
    e->n_picks = n;
}

static void build(struct kg_engine *e)
{
    for (uint32_t i = 0; i < e->n_picks; i++) {
        size_t at = (size_t)i * e->desc.max_orders;
        kg_cache_order(e, &e->picks[i], e->orders + at, e->order_why + at);
    }
    kg_adm_sync(e);
    for (uint32_t i = 0; i < e->n_picks; i++) {
        build_seq(e, i);
        force_seq(e, &e->seqs[i]);
    }
    e->batch = (struct kg_batch){.size = sizeof(e->batch),
                                 .step = e->step,
                                 .seqs = e->seqs,
                                 .n_seqs = e->n_picks,
                                 .n_rows = e->n_rows};
}

/* --- results --- */

/* Log probabilities of prompt tokens that were not reported before. */
static void settle_echo(struct kg_engine *e, struct kg_req *r, const struct kg_seq *q,
                        const struct kg_seq_result *res)
{
    struct kg_job *job = r->job;
    uint32_t last = q->past + q->n_rows; /* row j speaks of token past + j + 1 */

    last = last < job->n_prompt - 1 ? last : job->n_prompt - 1;
    if (!(q->flags & KG_SEQ_ECHO) || res->echo == NULL || last <= r->n_echoed) {
        return;
    }
    uint32_t n = last - r->n_echoed, k = job->n_echo_lp;
    memcpy(job->echo + (size_t)r->n_echoed * k, res->echo + (size_t)(r->n_echoed - q->past) * k,
           (size_t)n * k * sizeof(*job->echo));
    kg_port_out(e, r->index, KG_EVENT_ECHO, r->n_echoed, n);
    r->n_echoed = last;
}

/* New tokens into the request's buffer and the outbox. */
static void settle_tokens(struct kg_engine *e, struct kg_req *r, const struct kg_seq_result *res)
{
    struct kg_job *job = r->job;
    uint32_t first = kg_req_output(r);

    memcpy(job->tokens + r->n_tokens, res->tokens, res->n_tokens * sizeof(*res->tokens));
    if (job->n_lp > 0 && res->logprobs != NULL) {
        memcpy(job->logprobs + (size_t)first * job->n_lp, res->logprobs,
               (size_t)res->n_tokens * job->n_lp * sizeof(*res->logprobs));
    }
    r->n_tokens += res->n_tokens;
    e->stats.output_tokens += res->n_tokens;
    if (first == 0) {
        job->done.first_ns = e->parts.exec_ops->now(e->parts.exec);
    }
    kg_port_out(e, r->index, KG_EVENT_TOKENS, first, res->n_tokens);
}

/* A result that does not fit what was asked: the backend broke its contract. */
static int is_bad(const struct kg_req *r, const struct kg_seq *q, const struct kg_seq_result *res)
{
    uint32_t end = q->past + q->n_rows - q->n_draft;

    if (res->id != q->id || res->slot != q->slot || res->epoch != q->epoch) {
        return 1;
    }
    if (res->flags & KG_RES_NAN) {
        return 0;
    }
    if (!(q->flags & KG_SEQ_SAMPLE)) {
        return res->n_tokens != 0 || res->past != end;
    }
    return res->n_tokens == 0 || res->n_tokens > 1 + q->n_draft || res->n_tokens > q->left ||
           res->n_accepted > q->n_draft || res->past != end + res->n_tokens - 1 ||
           r->n_tokens != end;
}

static void settle_seq(struct kg_engine *e, const struct kg_pick *p, const struct kg_seq *q,
                       const struct kg_seq_result *res)
{
    struct kg_req *r = p->req;

    if (e->test.on_result != NULL) {
        e->test.on_result(e->test.ctx, q, res);
    }
    if (is_bad(r, q, res)) {
        kg_cache_settle(e, p, q, 0);
        char text[160];
        (void)snprintf(text, sizeof(text),
                       "backend answered %u tokens to %u after %u rows at %u (id %llu slot %u)",
                       res->n_tokens, res->past, q->n_rows, q->past, (unsigned long long)res->id,
                       res->slot);
        kg_req_end(e, r, KG_FINISH_ERROR, KG_EDEVICE, text);
        return;
    }
    if (res->flags & KG_RES_NAN) {
        e->stats.nan_rows++;
        r->nan = 1;
        kg_cache_settle(e, p, q, 0);
        kg_req_end(e, r, KG_FINISH_ERROR, KG_EDEVICE,
                   "the model produced a value that is no number");
        return;
    }
    r->fresh = 0;
    r->n_sent = r->n_pages;
    r->past = res->past;
    e->running[r->place].n_computed = r->past;
    settle_echo(e, r, q, res);
    if (p->decode) {
        kg_draft_accepted(e, r, res->n_accepted);
        struct kg_spec_seen seen = {.id = r->id,
                                    .slot = r->slot,
                                    .n_verified = p->n_draft,
                                    .n_accepted = res->n_accepted,
                                    .n_tokens = res->n_tokens,
                                    .greedy = !(r->job->sampling.temperature > 0.0f),
                                    .accept = r->job->sampling.accept,
                                    .tokens = res->tokens};
        kg_draft_seen(e, r->job->arm, &seen);
        kg_window_seen(e, r, p->n_draft, res->n_accepted);
    } else {
        e->stats.prompt_tokens += p->n_tokens;
    }
    if (res->n_tokens > 0) {
        settle_tokens(e, r, res);
    }
    kg_cache_settle(e, p, q, 1); /* with the tokens that are known now */
    e->parts.sched_ops->served(e->parts.sched, r->index, p->decode ? 0 : p->n_tokens,
                               res->n_tokens);
    if (res->flags & KG_RES_STOP) {
        kg_req_end(e, r, KG_FINISH_STOP, KG_OK, NULL);
    } else if (kg_req_output(r) == r->job->max_tokens) {
        kg_req_end(e, r, KG_FINISH_LENGTH, KG_OK, NULL);
    } else if (res->n_tokens > 0) {
        if (!p->decode) {
            kg_req_decode(e, r);
        }
        kg_window_count(e, r);
    }
}

/* The step failed as a whole: its requests end, the others go on. */
static void fail_batch(struct kg_engine *e, const struct kg_error *why)
{
    for (uint32_t i = 0; i < e->n_picks; i++) {
        e->picks[i].req->nan = 1; /* nobody knows what its units hold */
        kg_cache_settle(e, &e->picks[i], &e->seqs[i], 0);
        kg_req_end(e, e->picks[i].req, KG_FINISH_ERROR, why->rc, why->text);
    }
}

static int run_exec(struct kg_engine *e, struct kg_error *err)
{
    const struct kg_exec_ops *x = e->parts.exec_ops;
    uint64_t t0 = kg_engine_tick(e);
    int rc = x->submit(e->parts.exec, &e->batch, err);
    uint64_t t1 = kg_engine_tick(e);

    if (rc == KG_OK && (e->desc.caps & KG_EXEC_CAP_ASYNC)) {
        (void)kg_port_drain(e, 1);
    }
    uint64_t t2 = kg_engine_tick(e);
    if (rc == KG_OK) {
        e->result = (struct kg_result){.size = sizeof(e->result)};
        rc = x->wait(e->parts.exec, &e->result, err);
    }
    e->exec_ns += t1 - t0 + kg_engine_tick(e) - t2;
    if (rc == KG_OK && (e->result.n_seqs != e->n_picks || e->result.step != e->step)) {
        rc = kg_fail(err, KG_EDEVICE, "backend answered %u sequences of step %llu, not %u of %llu",
                     e->result.n_seqs, (unsigned long long)e->result.step, e->n_picks,
                     (unsigned long long)e->step);
    }
    return rc;
}

/* The surface follows what steps take. Only steps of one sort speak of one place on it. */
static void learn_cost(struct kg_engine *e)
{
    const struct kg_pick *p = e->picks;
    uint64_t context = 0, draft_ns = e->result.draft_ns;

    if (!e->conf.cost || e->result.step_ns == 0) {
        return;
    }
    if (e->n_picks == 1 && !p->decode) {
        kg_cost_learn_chunk(&e->cost_table, e->seqs[0].past, e->n_rows, e->result.step_ns);
        return;
    }
    if (e->n_drafting > 0 && draft_ns == 0) {
        return; /* the drafter's time may be in it */
    }
    for (uint32_t i = 0; i < e->n_picks; i++) {
        if (!p[i].decode) {
            return;
        }
        context += e->seqs[i].past;
    }
    if (draft_ns < e->result.step_ns) {
        kg_cost_learn(&e->cost_table, e->n_picks, e->n_rows, context, e->result.step_ns - draft_ns);
    }
    if (e->n_drafting > 0) {
        context = context * e->n_drafting / e->n_picks;
        kg_draft_cost_learn(&e->cost_table.draft, e->n_drafting, e->most_drafted, context,
                            draft_ns);
    }
}

/* What policies are told of the step's time. With a surface from a file they decide by that alone,
 * so that a run on a real clock can be repeated. */
static uint64_t told_ns(const struct kg_engine *e)
{
    return e->cost.size != 0 && !e->conf.cost ? 0 : e->result.step_ns;
}

int kg_batch_run(struct kg_engine *e, struct kg_error *err)
{
    struct kg_error why = {0};

    kg_tier_picks(e);
    take_pages(e);
    kg_adm_sync(e);
    kg_draft_step(e);
    build(e);
    if (e->n_picks == 0 || atomic_load_explicit(&e->lost, memory_order_relaxed)) {
        return KG_OK;
    }
    int rc = run_exec(e, &why);
    if (rc != KG_OK) {
        why.rc = rc;
        fail_batch(e, &why);
        kg_req_settle(e);
        *err = why;
        return rc;
    }
    learn_cost(e);
    for (uint32_t i = 0; i < e->n_picks; i++) {
        settle_seq(e, &e->picks[i], &e->seqs[i], &e->result.seqs[i]);
    }
    e->stats.steps++;
    e->stats.step_ns_sum += e->result.step_ns;
    e->stats.draft_ns_sum += e->result.draft_ns;
    e->stats.commit_ns_sum += e->result.commit_ns;
    e->stats.n_seqs_step = e->n_picks;
    e->stats.last_progress_ns = e->parts.exec_ops->now(e->parts.exec);
    kg_draft_observe(e, told_ns(e));
    kg_req_settle(e);
    return KG_OK;
}
