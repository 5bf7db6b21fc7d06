/* One step of exec-null: takes a checked batch, follows the script, writes pages and states. */
#include "null.h"
#include "script.h"
#include <string.h>
#include <time.h>

/* What a step has handed out of the log probability buffer. */
struct run {
    struct kg_exec *x;
    size_t n_logprobs;
    uint32_t n_rows;
};

static void slot_reset(struct kg_exec *x, struct null_slot *s, const struct kg_seq *q)
{
    s->live = 1;
    s->id = q->id;
    s->epoch = q->epoch;
    s->past = q->past;
    s->n_known = q->n_history;
    s->output_start = q->output_start;
    s->state = q->state;
    s->sampling = *q->sampling;
    s->n_pages = 0;
    s->n_drafts = 0;
    memcpy(s->tokens, q->history, q->n_history * sizeof(*q->history));
    s->hash = SCRIPT_START;
    for (uint32_t p = 0; p < q->past; p++) {
        s->hash = script_next(s->hash, s->tokens[p]);
    }
    if (q->state_src == KG_STATE_ZERO) {
        (void)null_zero(x, KG_STATE, q->state);
    } else {
        (void)null_copy(x, KG_STATE, q->state, q->state_src);
    }
}

static void write_state(struct kg_exec *x, uint32_t unit, uint64_t h, uint32_t length)
{
    uint32_t per = x->layout.parts_per_slot;

    for (uint32_t i = 0; i < x->conf.n_state_parts; i++) {
        uint8_t *at = null_entry(x, KG_STATE, unit * x->n_entry[KG_STATE] + i / per);
        uint64_t v[2] = {h + i, length};
        at += (i % per) * x->conf.state_part_bytes;
        memset(at, 0, x->conf.state_part_bytes); /* a state is written whole */
        memcpy(at, v, sizeof(v));
    }
}

/* Rows past .. past+n_rows-1: hashes of the first n_good, all ones for rejected rows. */
static void write_rows(struct kg_exec *x, const struct null_slot *s, uint32_t past, uint32_t n_rows,
                       uint32_t n_good)
{
    for (uint32_t j = 0; j < n_rows; j++) {
        uint32_t p = past + j;
        uint8_t *at = null_entry(x, KG_PAGE, s->pages[p / x->layout.page_tokens]) +
                      (uint64_t)(p % x->layout.page_tokens) * x->conf.token_bytes;
        if (j < n_good) {
            memset(at, 0, x->conf.token_bytes);
            memcpy(at, &x->row_hash[j], sizeof(uint64_t));
        } else {
            memset(at, 0xff, x->conf.token_bytes);
        }
    }
}

/* Samples at the last fixed row and walks the drafts; returns h(committed length). */
static uint64_t sample(struct kg_exec *x, struct null_slot *s, const struct kg_seq *q, uint64_t h,
                       struct kg_seq_result *r)
{
    uint32_t *out = x->out_tokens + (size_t)q->slot * (x->max_draft + 1);
    const uint32_t *drafts = s->n_drafts > 0 ? s->drafts : q->tokens + q->n_rows - q->n_draft;
    uint32_t n_draft = s->n_drafts > 0 && s->n_drafts < q->n_draft ? s->n_drafts : q->n_draft;
    uint32_t first = q->past + q->n_rows - q->n_draft; /* position of the first emitted token */
    uint32_t forced = q->force_accept < n_draft ? q->force_accept : n_draft;

    for (;;) {
        uint32_t pos = first + r->n_tokens;
        uint32_t n_out = pos - s->output_start;
        uint32_t token = script_token(h, &s->sampling, pos, n_out, x->conf.vocab);
        int accept = r->n_accepted < n_draft && drafts[r->n_accepted] == token;
        if (q->force_accept != KG_NONE) {
            accept = r->n_accepted < forced;
        }
        if (accept) {
            token = drafts[r->n_accepted++];
        }
        out[r->n_tokens++] = token;
        s->tokens[pos] = token;
        if (n_out + 1 > s->sampling.min_tokens && script_is_stop(&s->sampling, token)) {
            r->flags |= KG_RES_STOP;
            break;
        }
        if (!accept || r->n_tokens == q->left) {
            break;
        }
        h = script_next(h, token);
        x->row_hash[q->n_rows - q->n_draft + r->n_accepted - 1] = h;
    }
    r->tokens = out;
    s->n_known = first + r->n_tokens;
    return h;
}

/* n scripted log probabilities after hash h: the token, then k alternatives in falling order. */
static void script_logprobs(const struct kg_exec *x, uint64_t h, uint32_t token, uint32_t k,
                            struct kg_logprob *out)
{
    out[0] = (struct kg_logprob){token, -0.125f - (float)(h & 255) / 1024.0f};
    for (uint32_t i = 1; i <= k; i++) {
        out[i] =
            (struct kg_logprob){(token + i - 1) % x->conf.vocab, out[0].logprob - (float)i + 1};
    }
}

static struct kg_logprob *take_logprobs(struct run *run, uint32_t n_tokens, uint32_t k)
{
    struct kg_logprob *p = run->x->logprobs + run->n_logprobs;
    run->n_logprobs += (size_t)n_tokens * (1 + k);
    return p;
}

/* Log probabilities of emitted tokens and, for ECHO, of each row's next token. */
static void report(struct run *run, const struct null_slot *s, const struct kg_seq *q,
                   struct kg_seq_result *r)
{
    uint32_t k = s->sampling.n_logprobs;
    uint32_t n_fixed = q->n_rows - q->n_draft;

    if (r->n_tokens > 0 && (s->sampling.want_logprob || k > 0)) {
        struct kg_logprob *p = take_logprobs(run, r->n_tokens, k);
        r->logprobs = p;
        for (uint32_t i = 0; i < r->n_tokens; i++) {
            script_logprobs(run->x, run->x->row_hash[n_fixed - 1 + i], r->tokens[i], k,
                            p + (size_t)i * (1 + k));
        }
    }
    if (q->flags & KG_SEQ_ECHO) {
        struct kg_logprob *p = take_logprobs(run, q->n_rows, k);
        r->echo = p;
        for (uint32_t j = 0; j < q->n_rows; j++) {
            uint32_t next = q->past + j + 1;
            script_logprobs(run->x, run->x->row_hash[j], s->tokens[next < s->n_known ? next : 0], k,
                            p + (size_t)j * (1 + k));
        }
    }
}

/* Logits whose largest entry is the token the script picks after each row. */
static const float *script_logits(struct run *run, const struct null_slot *s,
                                  const struct kg_seq *q)
{
    const struct kg_exec *x = run->x;
    float *out = x->logits + (size_t)run->n_rows * x->conf.vocab;

    for (uint32_t j = 0; j < q->n_rows; j++) {
        uint32_t pos = q->past + j + 1;
        uint32_t n_out = pos > s->output_start ? pos - s->output_start : 0;
        float *row = out + (size_t)j * x->conf.vocab;
        for (uint32_t t = 0; t < x->conf.vocab; t++) {
            row[t] = -(float)(script_mix(x->row_hash[j] + t) & 1023) / 64.0f;
        }
        row[script_token(x->row_hash[j], &s->sampling, pos, n_out, x->conf.vocab)] = 1.0f;
    }
    return out;
}

static void spoil(struct kg_exec *x, const struct null_slot *s, const struct kg_seq *q)
{
    if (x->conf.check) {
        (void)null_poison(x, KG_STATE, s->state);
        write_rows(x, s, q->past, q->n_rows, 0);
    }
}

static int run_seq(struct run *run, const struct kg_seq *q, struct kg_seq_result *r,
                   struct kg_error *err)
{
    struct kg_exec *x = run->x;
    struct null_slot *s = &x->slots[q->slot];
    uint32_t n_fixed = q->n_rows - q->n_draft;

    if (q->flags & KG_SEQ_RESET) {
        slot_reset(x, s, q);
    }
    memcpy(s->pages + s->n_pages, q->pages, q->n_pages * sizeof(*q->pages));
    s->n_pages += q->n_pages;
    *r = (struct kg_seq_result){.id = q->id, .slot = q->slot, .epoch = q->epoch};
    if (x->conf.check) {
        int rc = null_check_content(x, s, q->id, err);
        if (rc != KG_OK) {
            return rc;
        }
    }
    if (q->flags & KG_SEQ_POISON) {
        r->flags = KG_RES_NAN;
        r->past = q->past;
        spoil(x, s, q);
        return KG_OK;
    }
    uint64_t h = s->hash;
    for (uint32_t j = 0; j < n_fixed; j++) {
        h = script_next(h, q->tokens[j]);
        x->row_hash[j] = h;
    }
    s->past = q->past + n_fixed;
    if (q->flags & KG_SEQ_SAMPLE) {
        h = sample(x, s, q, h, r);
        s->past += r->n_tokens - 1;
    }
    /* Rows behind the last accepted draft keep a hash only logits need. */
    for (uint32_t j = s->past - q->past; j < q->n_rows; j++) {
        x->row_hash[j] = h;
    }
    s->hash = h;
    s->n_drafts = 0;
    r->past = s->past;
    if (x->conf.check) {
        write_rows(x, s, q->past, q->n_rows, s->past - q->past);
        write_state(x, s->state, h, s->past);
        for (uint32_t i = 0; i < q->n_orders && q->orders[i].position <= s->past; i++) {
            uint32_t p = q->orders[i].position;
            write_state(x, q->orders[i].unit, x->row_hash[p - q->past - 1], p);
        }
    }
    report(run, s, q, r);
    if (q->flags & KG_SEQ_LOGITS) {
        r->logits = script_logits(run, s, q);
    }
    return KG_OK;
}

static int run_batch(struct kg_exec *x, struct kg_error *err)
{
    struct run run = {.x = x};

    for (uint32_t i = 0; i < x->batch->n_seqs; i++) {
        const struct kg_seq *q = &x->batch->seqs[i];
        int rc = run_seq(&run, q, &x->results[i], err);
        if (rc != KG_OK) {
            return rc;
        }
        run.n_rows += q->n_rows;
    }
    return KG_OK;
}

int null_submit(struct kg_exec *x, const struct kg_batch *batch, struct kg_error *err)
{
    int rc = null_check_batch(x, batch, err);

    if (rc != KG_OK) {
        return rc;
    }
    if (x->comm != NULL && x->comm_ops->barrier(x->comm, 0) != KG_OK) {
        return kg_fail(err, KG_EDEVICE, "exec-null: a rank is lost");
    }
    x->batch = batch;
    x->t_submit = null_now(x);
    if (!x->conf.async) {
        rc = run_batch(x, err);
    }
    if (rc != KG_OK) {
        x->batch = NULL;
    }
    return rc;
}

/* Lets the step's cost pass on the configured clock. */
static void spend(struct kg_exec *x)
{
    uint64_t end = x->t_submit + null_cost(x, x->batch->n_rows);

    if (x->conf.clock == 0) {
        atomic_store_explicit(&x->now_ns, end, memory_order_relaxed);
        return;
    }
    if (end > x->t_submit) {
        struct timespec t = {(time_t)(end / 1000000000ull), (long)(end % 1000000000ull)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) {
        }
    }
}

int null_wait(struct kg_exec *x, struct kg_result *result, struct kg_error *err)
{
    int rc = KG_OK;

    if (x->batch == NULL) {
        return kg_fail(err, KG_EINVAL, "wait without a step");
    }
    if (x->conf.async) {
        rc = run_batch(x, err);
    }
    if (rc == KG_OK) {
        spend(x);
        result->step = x->batch->step;
        result->step_ns = null_now(x) - x->t_submit;
        result->n_seqs = x->batch->n_seqs;
        result->seqs = x->results;
    }
    x->batch = NULL;
    return rc;
}

void null_drop(struct kg_exec *x, const uint32_t *slots, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (slots[i] < x->max_seqs) {
            x->slots[slots[i]].live = 0;
            x->slots[slots[i]].n_drafts = 0;
        }
    }
}

int null_draft(struct kg_exec *x, struct kg_draft *drafts, uint32_t n)
{
    if (x->batch != NULL) {
        return KG_EINVAL;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct kg_draft *d = &drafts[i];
        if (d->slot >= x->max_seqs || d->n > x->conf.draft_block || d->n > x->max_draft) {
            return KG_EINVAL;
        }
        struct null_slot *s = &x->slots[d->slot];
        if (!s->live || s->n_known != s->past + 1) {
            return KG_EINVAL;
        }
        uint64_t h = script_next(s->hash, s->tokens[s->past]);
        double chance = 1.0;
        for (uint32_t k = 0; k < d->n; k++) {
            uint32_t pos = s->n_known + k;
            uint32_t token =
                script_token(h, &s->sampling, pos, pos - s->output_start, x->conf.vocab);
            int hit = (double)(script_mix(h ^ pos) >> 11) * 0x1p-53 < x->conf.accept;
            s->drafts[k] = hit ? token : (token + 1) % x->conf.vocab;
            chance *= x->conf.accept;
            if (d->survival != NULL) {
                d->survival[k] = (float)chance;
            }
            h = script_next(h, s->drafts[k]);
        }
        s->n_drafts = d->n;
    }
    return KG_OK;
}
