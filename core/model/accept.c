#include "model/accept.h"

#include "kernels/exact.h"

#include <math.h>

#define LEAST_MASS 1e-8     /* of a residual; below it p and q differ by rounding only */
#define LEAST_WEIGHT 1e-300 /* of a token in it, for the logarithm */

/* One window under rejection or block. */
struct walk {
    const struct kg_accept *run;
    struct kg_accepted *out;
    void *scratch;  /* of kg_sample */
    double *p;      /* [vocab] of the row at hand */
    uint64_t tests; /* seed of the tests of acceptance */
};

static size_t probs_bytes(uint32_t vocab)
{
    return ((size_t)vocab * sizeof(double) + 63) / 64 * 64;
}

size_t kg_accept_scratch_bytes(uint32_t vocab)
{
    return probs_bytes(vocab) + kg_sample_scratch_bytes(vocab);
}

static int is_finite_row(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return 0;
        }
    }
    return 1;
}

static int hidden_is_finite(const struct kg_accept *run, uint32_t j)
{
    return run->hidden == NULL || is_finite_row(run->hidden + (size_t)j * run->width, run->width);
}

static struct kg_sample_row row_of(const struct kg_accept *run, uint32_t j)
{
    uint32_t at = run->position + j;

    return (struct kg_sample_row){.logits = run->logits + (size_t)j * run->vocab,
                                  .vocab = run->vocab,
                                  .position = at,
                                  .n_output = at > run->output_start ? at - run->output_start : 0,
                                  .sampling = run->sampling,
                                  .counts = run->counts};
}

static struct kg_logprob *logprobs_of(const struct kg_accept *run, uint32_t j)
{
    if (run->logprobs == NULL) {
        return NULL;
    }
    return run->logprobs + (size_t)j * (1 + run->sampling->n_logprobs);
}

static int stops(const struct kg_sample_row *row, uint32_t token)
{
    const struct kg_sampling *s = row->sampling;

    for (uint32_t i = 0; i < s->n_stop_ids && row->n_output >= s->min_tokens; i++) {
        if (s->stop_ids[i] == token) {
            return 1;
        }
    }
    return 0;
}

/* A token takes the place of the pick. */
static void put_token(const struct kg_sample_row *row, uint32_t token, struct kg_sample_pick *pick,
                      struct kg_logprob *logprobs)
{
    *pick = (struct kg_sample_pick){.token = token, .flags = stops(row, token) ? KG_RES_STOP : 0};
    if (logprobs != NULL) {
        (void)kg_sample_logprobs(row->logits, row->vocab, token, row->sampling->n_logprobs,
                                 logprobs);
    }
}

static void emit(const struct kg_accept *run, const struct kg_sample_pick *pick,
                 struct kg_accepted *out)
{
    run->tokens[out->n_tokens++] = pick->token;
    if (run->counts != NULL) {
        (void)kg_token_counts_add(run->counts, pick->token, 1);
    }
    out->flags |= pick->flags;
}

/* --- coupling --------------------------------------------------------------------------------- */

static void run_coupled(const struct kg_accept *run, void *scratch, struct kg_accepted *out)
{
    uint32_t forced = run->force < run->n_draft ? run->force : run->n_draft;
    int more = 1;

    for (uint32_t j = 0; more; j++) {
        struct kg_sample_row row = row_of(run, j);
        struct kg_logprob *lp = logprobs_of(run, j);
        struct kg_sample_pick pick;

        kg_sample(&row, scratch, &pick, lp);
        if ((pick.flags & KG_RES_NAN) || !hidden_is_finite(run, j)) {
            *out = (struct kg_accepted){.flags = KG_RES_NAN};
            return;
        }
        more = j < run->n_draft && kg_accept_coupled(run->drafts[j], pick.token);
        if (run->force != KG_NONE) {
            more = j < forced;
            if (more && run->drafts[j] != pick.token) {
                put_token(&row, run->drafts[j], &pick, lp);
            }
        }
        out->n_accepted += (uint32_t)more;
        emit(run, &pick, out);
        more = more && !(pick.flags & KG_RES_STOP) && out->n_tokens < run->left;
    }
}

/* --- rejection and block ---------------------------------------------------------------------- */

/* p of row j into w->p. 0 when the row is not finite. */
static int load_row(const struct walk *w, uint32_t j)
{
    struct kg_sample_row row = row_of(w->run, j);

    return hidden_is_finite(w->run, j) && kg_sample_probs(&row, w->scratch, w->p) == 0;
}

/* q of draft j for token v. */
static double q_of(const struct kg_accept *run, uint32_t j, uint32_t v)
{
    if (run->q == NULL) {
        return v == run->drafts[j] ? 1.0 : 0.0;
    }
    return run->q[(size_t)j * run->vocab + v];
}

/* scale * p(x) / q(x), at most 1; 0 for a draft that q does not have. */
static double ratio(const struct walk *w, uint32_t j, double scale)
{
    uint32_t x = w->run->drafts[j];
    double q = q_of(w->run, j, x), p = scale * w->p[x];

    if (!(q > 0)) {
        return 0;
    }
    return p < q ? p / q : 1.0;
}

/* Weight of a token in the residual of row j. */
static double excess(const struct walk *w, uint32_t j, double scale, uint32_t v)
{
    double d = scale * w->p[v] - q_of(w->run, j, v);

    return d > 0 ? d : 0;
}

static double excess_mass(const struct walk *w, uint32_t j, double scale)
{
    double sum = 0;

    for (uint32_t v = 0; v < w->run->vocab; v++) {
        sum += excess(w, j, scale, v);
    }
    return sum;
}

static void take_draft(const struct walk *w, uint32_t j)
{
    struct kg_sample_row row = row_of(w->run, j);
    struct kg_sample_pick pick;

    put_token(&row, w->run->drafts[j], &pick, logprobs_of(w->run, j));
    w->out->n_accepted++;
    emit(w->run, &pick, w->out);
}

/* The token of row j as plain decoding would pick it; ends the run. */
static void take_plain(const struct walk *w, uint32_t j)
{
    struct kg_sample_row row = row_of(w->run, j);
    struct kg_sample_pick pick;

    kg_sample(&row, w->scratch, &pick, logprobs_of(w->run, j));
    if ((pick.flags & KG_RES_NAN) || !hidden_is_finite(w->run, j)) {
        *w->out = (struct kg_accepted){.flags = KG_RES_NAN};
        return;
    }
    emit(w->run, &pick, w->out);
}

/* The token of row j, whose draft was rejected, from max(scale p - q, 0); w->p is that row's. */
static void take_residual(const struct walk *w, uint32_t j, double scale)
{
    struct kg_sample_row row = row_of(w->run, j);
    double best = -INFINITY;
    uint32_t token = KG_NONE;
    struct kg_sample_pick pick;

    if (!(excess_mass(w, j, scale) > LEAST_MASS)) {
        take_plain(w, j);
        return;
    }
    for (uint32_t v = 0; v < row.vocab; v++) {
        double d = excess(w, j, scale, v);
        if (d < LEAST_WEIGHT) {
            continue;
        }
        double score = kg_exact_log(d) + kg_sample_noise(row.sampling->seed, row.position, v);
        if (score > best) {
            best = score;
            token = v;
        }
    }
    put_token(&row, token, &pick, logprobs_of(w->run, j));
    emit(w->run, &pick, w->out);
}

static double test_of(const struct walk *w, uint32_t j)
{
    return kg_sample_uniform(w->tests, w->run->position + j);
}

static int is_over(const struct walk *w)
{
    return (w->out->flags & KG_RES_STOP) || w->out->n_tokens == w->run->left;
}

static void run_rejection(struct walk *w)
{
    const struct kg_accept *run = w->run;

    for (uint32_t j = 0; j < run->n_draft; j++) {
        if (!load_row(w, j)) {
            *w->out = (struct kg_accepted){.flags = KG_RES_NAN};
            return;
        }
        if (test_of(w, j) >= ratio(w, j, 1.0)) {
            take_residual(w, j, 1.0);
            return;
        }
        take_draft(w, j);
        if (is_over(w)) {
            return;
        }
    }
    take_plain(w, run->n_draft);
}

/* What block verification keeps of a window. */
struct kept {
    uint32_t n, end; /* drafts kept; drafts looked at */
    double scale;    /* P_n */
};

/* Drafts are counted one by one, as if accepted, and taken back at the end. */
static struct kept look_at_block(const struct walk *w)
{
    const struct kg_accept *run = w->run;
    struct kept k = {.end = run->n_draft < run->left ? run->n_draft : run->left, .scale = 1.0};
    double scale = 1.0;
    uint32_t i = 0;

    for (;; i++) {
        double pass = scale; /* of the window as a whole */
        if (i < k.end && !load_row(w, i)) {
            k.end = i;
        }
        if (i < k.end) {
            double mass = excess_mass(w, i, scale);
            pass = scale < 1.0 ? mass / (mass + 1.0 - scale) : 1.0;
        }
        if (i > 0 && test_of(w, i - 1) <= pass) {
            k.n = i;
            k.scale = scale;
        }
        if (i == k.end) {
            break;
        }
        struct kg_sample_row row = row_of(run, i);
        scale = ratio(w, i, scale);
        if (stops(&row, run->drafts[i])) {
            k.end = i + 1;
        }
        if (run->counts != NULL) {
            (void)kg_token_counts_add(run->counts, run->drafts[i], 1);
        }
    }
    while (run->counts != NULL && i > 0) {
        kg_token_counts_pop(run->counts, run->drafts[--i]);
    }
    return k;
}

static void run_block(struct walk *w)
{
    struct kept k = look_at_block(w);

    for (uint32_t j = 0; j < k.n; j++) {
        take_draft(w, j);
    }
    if (k.n > 0 && is_over(w)) {
        return;
    }
    if (k.n < k.end && load_row(w, k.n)) {
        take_residual(w, k.n, k.scale);
    } else {
        take_plain(w, k.n);
    }
}

void kg_accept_draw(const struct kg_sample_row *row, void *scratch, struct kg_sample_pick *pick,
                    float *q)
{
    double *p = scratch;
    void *rest = (uint8_t *)scratch + probs_bytes(row->vocab);

    kg_sample(row, rest, pick, NULL);
    if (pick->flags & KG_RES_NAN) {
        return;
    }
    (void)kg_sample_probs(row, rest, p);
    for (uint32_t v = 0; v < row->vocab; v++) {
        q[v] = (float)p[v];
    }
}

void kg_accept_run(const struct kg_accept *run, void *scratch, struct kg_accepted *out)
{
    const struct kg_sampling *s = run->sampling;
    struct walk w = {.run = run,
                     .out = out,
                     .p = scratch,
                     .scratch = (uint8_t *)scratch + probs_bytes(run->vocab)};

    *out = (struct kg_accepted){0};
    if (s->accept == KG_ACCEPT_COUPLED || !(s->temperature > 0) || run->n_draft == 0 ||
        run->force != KG_NONE) {
        run_coupled(run, w.scratch, out);
        return;
    }
    w.tests = kg_sample_stream(s->seed, KG_STREAM_ACCEPT, run->position);
    if (s->accept == KG_ACCEPT_REJECTION) {
        run_rejection(&w);
    } else {
        run_block(&w);
    }
}
