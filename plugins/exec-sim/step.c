/* One step: takes a checked batch, answers from the file or the script, lets the time pass. */
#include "sim.h"
#include <math.h>
#include <string.h>
#include <time.h>

static void slot_reset(struct kg_exec *x, struct sim_slot *s, const struct kg_seq *q)
{
    s->live = 1;
    s->id = q->id;
    s->epoch = q->epoch;
    s->n_known = q->n_history;
    s->output_start = q->output_start;
    s->state = q->state;
    s->sampling = *q->sampling;
    s->n_pages = s->n_drafts = 0;
    s->answer = sim_answers_find(&x->answers, q->sampling->seed, &s->n_answer);
    const char *domain = sim_answers_domain(&x->answers, q->sampling->seed);
    s->domain = sim_acceptance_find(&x->acceptance, domain[0] != '\0' ? domain : x->conf.domain);
    if (q->flags & KG_SEQ_ECHO) {
        memcpy(s->history, q->history, q->n_history * sizeof(*q->history));
    }
}

static int is_stop(const struct kg_sampling *s, uint32_t token)
{
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == token) {
            return 1;
        }
    }
    return 0;
}

/* The token at position pos. */
static uint32_t token_at(const struct kg_exec *x, const struct sim_slot *s, uint32_t pos)
{
    uint32_t n_out = pos - s->output_start, token;

    if (n_out < s->n_answer) {
        token = s->answer[n_out];
    } else {
        uint64_t seed = s->sampling.temperature > 0.0f ? s->sampling.seed : 0;
        uint64_t h = sim_mix(seed + (pos + 1) * 0x9e3779b97f4a7c15ull);
        token = (uint32_t)(((h >> 32) * x->conf.vocab) >> 32);
    }
    for (uint32_t i = 0; n_out < s->sampling.min_tokens && i <= s->sampling.n_stop_ids; i++) {
        if (!is_stop(&s->sampling, token)) {
            break;
        }
        token = (token + 1) % x->conf.vocab;
    }
    return token;
}

/* Emits tokens behind the fixed rows while drafts are accepted. */
static void sample(struct kg_exec *x, struct sim_slot *s, const struct kg_seq *q,
                   struct kg_seq_result *r)
{
    uint32_t *out = x->out_tokens + (size_t)q->slot * (x->max_draft + 1);
    const uint32_t *drafts = s->n_drafts > 0 ? s->drafts : q->tokens + q->n_rows - q->n_draft;
    uint32_t n_draft = s->n_drafts > 0 && s->n_drafts < q->n_draft ? s->n_drafts : q->n_draft;
    uint32_t first = q->past + q->n_rows - q->n_draft;

    for (;;) {
        uint32_t pos = first + r->n_tokens, token = token_at(x, s, pos);
        int accept = r->n_accepted < n_draft && drafts[r->n_accepted] == token;
        if (q->force_accept != KG_NONE) {
            accept = r->n_accepted < n_draft && r->n_accepted < q->force_accept;
        }
        if (accept) {
            token = drafts[r->n_accepted++];
        }
        out[r->n_tokens++] = token;
        if (pos - s->output_start + 1 > s->sampling.min_tokens && is_stop(&s->sampling, token)) {
            r->flags |= KG_RES_STOP;
            break;
        }
        if (!accept || r->n_tokens == q->left) {
            break;
        }
    }
    r->tokens = out;
    s->n_known = first + r->n_tokens;
    s->past = s->n_known - 1;
}

/* A row of invented log probabilities: the token, then k alternatives in falling order. */
static void invent(const struct kg_exec *x, uint32_t token, uint32_t k, struct kg_logprob *out)
{
    out[0] = (struct kg_logprob){token, -0.125f};
    for (uint32_t i = 1; i <= k; i++) {
        out[i] = (struct kg_logprob){(token + i - 1) % x->conf.vocab, 0.875f - (float)i};
    }
}

static void report(struct kg_exec *x, const struct sim_slot *s, const struct kg_seq *q,
                   struct kg_seq_result *r)
{
    uint32_t k = s->sampling.n_logprobs;

    if (r->n_tokens > 0 && (s->sampling.want_logprob || k > 0)) {
        r->logprobs = x->logprobs + x->used_logprobs;
        for (uint32_t i = 0; i < r->n_tokens; i++, x->used_logprobs += 1 + k) {
            invent(x, r->tokens[i], k, x->logprobs + x->used_logprobs);
        }
    }
    if (q->flags & KG_SEQ_ECHO) {
        r->echo = x->logprobs + x->used_logprobs;
        for (uint32_t j = 0; j < q->n_rows; j++, x->used_logprobs += 1 + k) {
            uint32_t next = q->past + j + 1, token;
            if (j + 1 < q->n_rows) {
                token = q->tokens[j + 1];
            } else {
                token = r->n_tokens > 0 ? r->tokens[0] : s->history[next];
            }
            invent(x, token, k, x->logprobs + x->used_logprobs);
        }
    }
}

/* What the sequence adds to the step's cost. */
static void add_work(struct kg_exec *x, const struct kg_seq *q)
{
    struct sim_load *w = &x->load;
    uint32_t n = q->n_rows - q->n_draft;

    if (n == 1) {
        w->seqs++;
        w->rows += q->n_rows;
        w->context += q->past + 1.0;
    } else {
        w->prompts++;
        w->prompt_rows += n;
        w->pairs += n * (q->past + 0.5 * (n + 1.0));
        w->prompt_us += sim_timing_prompt(&x->timing, q->past, n);
    }
    w->samples += q->flags & KG_SEQ_SAMPLE ? 1 + q->n_draft : 0;
    w->copies += q->n_orders + (q->state_src < KG_STATE_ZERO && q->state_src != q->state);
}

static void run_seq(struct kg_exec *x, const struct kg_seq *q, struct kg_seq_result *r)
{
    struct sim_slot *s = &x->slots[q->slot];

    if (q->flags & KG_SEQ_RESET) {
        slot_reset(x, s, q);
    }
    s->n_pages += q->n_pages;
    *r = (struct kg_seq_result){.id = q->id, .slot = q->slot, .epoch = q->epoch, .past = q->past};
    add_work(x, q);
    if (q->flags & KG_SEQ_POISON) {
        r->flags = KG_RES_NAN;
        x->state_length[s->state] = KG_NONE;
        s->past = q->past;
        return;
    }
    s->past = q->past + q->n_rows - q->n_draft;
    if (q->flags & KG_SEQ_SAMPLE) {
        sample(x, s, q, r);
    }
    s->n_drafts = 0;
    r->past = s->past;
    x->state_length[s->state] = s->past;
    for (uint32_t i = 0; i < q->n_orders && q->orders[i].position <= s->past; i++) {
        x->state_length[q->orders[i].unit] = q->orders[i].position;
    }
    report(x, s, q, r);
}

int sim_submit(struct kg_exec *x, const struct kg_batch *batch, struct kg_error *err)
{
    int rc = sim_check_batch(x, batch, err);

    if (rc != KG_OK) {
        return rc;
    }
    x->batch = batch;
    x->t_submit = sim_now(x);
    x->used_logprobs = 0;
    x->load = (struct sim_load){.drafts = (double)x->drafted,
                                .moved_bytes = (double)x->moved_bytes,
                                .copy_bytes = (double)x->conf.n_state_parts *
                                              (double)x->conf.state_part_bytes};
    x->drafted = x->moved_bytes = 0;
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        run_seq(x, &batch->seqs[i], &x->results[i]);
    }
    return KG_OK;
}

/* A step's time with the noise asked for: a factor of mean 1, the same for the same step of a run.
 */
static uint64_t jittered(struct kg_exec *x, uint64_t ns)
{
    double sigma = x->conf.jitter / 100;

    if (sigma <= 0) {
        return ns;
    }
    double z = sim_gauss(sim_mix(x->conf.seed), x->timing.n_steps);
    uint64_t out = sim_whole_ns((double)ns * exp(sigma * z - sigma * sigma / 2));
    x->timing.jitter_ns += (double)out - (double)ns;
    return out;
}

int sim_wait(struct kg_exec *x, struct kg_result *result, struct kg_error *err)
{
    if (x->batch == NULL) {
        return kg_fail(err, KG_EINVAL, "wait without a step");
    }
    uint64_t host_ns = (uint64_t)(x->host_ns + 0.5);
    uint64_t end = x->t_submit + host_ns + jittered(x, sim_timing_step(&x->timing, &x->load));
    x->timing.host_ns += host_ns;
    x->host_ns = 0;
    if (x->conf.clock == 0) {
        atomic_store_explicit(&x->now_ns, end, memory_order_relaxed);
    } else {
        struct timespec t = {(time_t)(end / 1000000000ull), (long)(end % 1000000000ull)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) {
        }
    }
    result->step = x->batch->step;
    result->step_ns = sim_now(x) - x->t_submit;
    result->n_seqs = x->batch->n_seqs;
    if (result->size >= offsetof(struct kg_result, commit_ns)) {
        const struct sim_load drafts = {
            .seqs = x->load.seqs, .context = x->load.context, .drafts = x->load.drafts};
        result->draft_ns = drafts.drafts > 0 ? sim_timing_guess(&x->timing, &drafts) : 0;
    }
    result->seqs = x->results;
    x->batch = NULL;
    return KG_OK;
}

void sim_drop(struct kg_exec *x, const uint32_t *slots, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (slots[i] < x->max_seqs) {
            x->slots[slots[i]].live = 0;
            x->slots[slots[i]].n_drafts = 0;
        }
    }
}

int sim_draft(struct kg_exec *x, struct kg_draft *drafts, uint32_t n)
{
    if (x->batch != NULL) {
        return KG_EINVAL;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct kg_draft *d = &drafts[i];
        if (d->slot >= x->max_seqs || d->n > x->conf.draft_block || d->n > x->max_draft) {
            return KG_EINVAL;
        }
        struct sim_slot *s = &x->slots[d->slot];
        if (!s->live || s->n_known != s->past + 1) {
            return KG_EINVAL;
        }
        uint32_t right = sim_acceptance_draw(&x->acceptance.domains[s->domain],
                                             s->sampling.seed ^ sim_mix(s->id * 8191) ^
                                                 sim_mix(x->conf.seed - 1),
                                             s->n_known - s->output_start, d->n, d->survival);
        for (uint32_t k = 0; k < d->n; k++) {
            uint32_t token = token_at(x, s, s->n_known + k);
            s->drafts[k] = k < right ? token : (token + 1) % x->conf.vocab;
        }
        s->n_drafts = d->n;
        x->drafted += d->n;
    }
    return KG_OK;
}
