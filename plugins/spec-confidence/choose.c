/* How much to verify of what was drafted. */
#include "confidence.h"

#include <kedge/exec.h>

#define SMALL_BATCH 8 /* sequences; below it no number of rows is carried over */
#define KEEP 0.75f    /* weight of what a sequence's survivals were */

static uint32_t class_of(const struct kg_spec_seq *q, uint32_t accept)
{
    if (q->greedy) {
        return 1;
    }
    return accept == KG_ACCEPT_REJECTION ? 2 : accept == KG_ACCEPT_BLOCK ? 3 : 0;
}

/* Drafts of a sequence in this round: how many came, and how many were asked for. */
static void count_drafts(struct kg_spec *s, const struct kg_spec_view *v, uint32_t i)
{
    const struct kg_spec_seq *q = &v->seqs[i];
    struct seq *known = seq_of(s, q->slot, q->id);
    uint32_t limit = v->cap < s->block ? v->cap : s->block;
    uint32_t asked = known->asked < q->max_draft ? known->asked : q->max_draft;

    s->most[i] = q->n_drafted < limit ? q->n_drafted : limit;
    if (known->n_looked > 0) { /* a lookup: chosen when it was made */
        s->most[i] = asked = 0;
    }
    asked = asked < limit ? asked : limit;
    s->asked[i] = asked > s->most[i] ? asked : s->most[i];
    known->asked = 0;
}

/* Survivals of the round at hand, corrected, and what the sequence usually has. */
static void load(struct kg_spec *s, const struct kg_spec_seq *q, uint32_t i)
{
    struct seq *known = seq_of(s, q->slot, q->id);
    uint32_t bucket = learn_bucket(q->context);
    float before = 1.0f, now = 1.0f, mean = 1.0f;

    known->context = q->context;
    known->placed = 1;
    known->class = class_of(q, s->accept);
    known->n_said = s->most[i];
    for (uint32_t j = 0; j < s->asked[i]; j++) {
        float c = learn_mean(&s->learn, known->class, j);
        mean *= c;
        s->usual[(size_t)i * s->block + j] = j < known->n_usual ? known->usual[j] : mean;
        if (j >= s->most[i]) {
            continue;
        }
        if (q->survival != NULL) {
            c = before > 0.0f ? q->survival[j] / before : 0.0f;
            before = q->survival[j];
        }
        c = c > 0.0f ? c : 0.0f;
        known->said[j] = c < 1.0f ? c : 1.0f;
        now *= s->conf.learn ? learn_correct(&s->learn, known->class, j, bucket, known->said[j])
                             : known->said[j];
        known->survival[j] = now;
        s->now[(size_t)i * s->block + j] = now;
    }
    for (uint32_t j = 1; j < s->asked[i]; j++) { /* two sources: keep it from rising */
        float *u = &s->usual[(size_t)i * s->block + j];
        *u = *u < u[-1] ? *u : u[-1];
    }
}

static void remember(struct kg_spec *s, const struct kg_spec_seq *q)
{
    struct seq *known = &s->seqs[q->slot];

    for (uint32_t j = 0; j < known->n_said; j++) {
        known->usual[j] = j < known->n_usual
                              ? known->usual[j] * KEEP + known->survival[j] * (1.0f - KEEP)
                              : known->survival[j];
    }
    known->n_usual = known->n_usual > known->n_said ? known->n_usual : known->n_said;
}

/* Least survival worth a row, from earlier rounds: the price of one around the best number. */
static float least_survival(const struct plan_cost *cost, const struct plan_best *b)
{
    uint32_t low = b->rows / 2, high = b->rows + (b->rows + 1) / 2;

    high = high < b->total ? high : b->total;
    if (high <= low) {
        return 0.0f;
    }
    double row = (cost->ns(cost->ctx, high) - cost->ns(cost->ctx, low)) / (high - low);
    return (float)(row * b->tokens / b->ns);
}

static void plan_budget(struct kg_spec *s, const struct kg_spec_view *v,
                        const struct plan_cost *cost, struct plan_seqs *q, uint32_t *lengths)
{
    double none = cost->ns(cost->ctx, 0);

    /* Of the drafts that were asked for: fewer came where one is a stop id, and what is decided on
     * it must not depend on that. */
    q->survival = s->usual;
    q->most = s->asked;
    struct plan_best b = plan_search(q, cost, v->rows_left, lengths);
    uint32_t rows = b.total;
    float least = 0.0f;
    if (b.all_ns - none > s->conf.min_gain * none) { /* else rows are nearly free */
        least = least_survival(cost, &b);
        rows = v->n_seqs < SMALL_BATCH ? b.total : b.rows;
        if (s->is_sample) { /* one of many cannot change the step: what a row of it is worth */
            least = (float)((b.all_ns - none) / b.total * q->n / none);
            rows = b.total;
        } else if (b.tokens * none < (1.0 + s->conf.min_gain) * q->n * b.ns) {
            rows = 0;
        }
    }
    q->survival = s->now;
    q->most = s->most;
    (void)plan_take(q, rows, least, lengths);
}

static void plan(struct kg_spec *s, const struct kg_spec_view *v, uint32_t n_drafting,
                 uint32_t looked, uint32_t *lengths)
{
    struct price price = price_of(v, n_drafting, s->block, looked);
    struct plan_cost cost = {price_ns, &price};
    struct kg_spec_view left = *v; /* lookups have their rows */
    struct plan_seqs q = {
        .n = v->n_seqs, .stride = s->block, .most = s->most, .survival = s->now, .heap = s->heap};

    left.rows_left -= looked < left.rows_left ? looked : left.rows_left;
    if (s->conf.rule == RULE_STOP) {
        (void)plan_stop(&q, &cost, left.rows_left, lengths, NULL, NULL);
    } else {
        plan_budget(s, &left, &cost, &q, lengths);
    }
}

/* Expected of the windows as chosen, into the buckets and the counters. */
static void note(struct kg_spec *s, const struct kg_spec_view *v, const uint32_t *lengths)
{
    double extra[LEARN_BUCKETS] = {0}, rows[LEARN_BUCKETS] = {0}, all = 0;
    uint32_t n[LEARN_BUCKETS] = {0}, total = 0, drafted = 0;

    for (uint32_t i = 0; i < v->n_seqs; i++) {
        uint32_t b = learn_bucket(v->seqs[i].context);
        n[b] += s->most[i] > 0;
        rows[b] += lengths[i];
        total += lengths[i];
        drafted += s->most[i];
        for (uint32_t j = 0; j < lengths[i]; j++) {
            extra[b] += (double)s->now[(size_t)i * s->block + j];
            all += (double)s->now[(size_t)i * s->block + j];
        }
    }
    for (uint32_t k = 0; k < LEARN_BUCKETS; k++) {
        struct region *r = &s->regions[batch_of(v->n_seqs)][k];
        if (n[k] > 0) {
            r->n += r->n < 8;
            r->extra += (extra[k] / n[k] - r->extra) / r->n;
            r->rows += (rows[k] / n[k] - r->rows) / r->n;
        }
        if (r->stand == STAND_TRIAL && n[k] > 0 && --r->left == 0) {
            r->stand = STAND_JUDGE;
        }
    }
    kg_add(&s->host->cells[ROUNDS], drafted > 0);
    kg_add(&s->host->cells[WHOLE], drafted > 0 && total == drafted);
    kg_add(&s->host->cells[TRIMMED], drafted - total);
    kg_add(&s->host->cells[EXPECTED], (uint64_t)(all * 1000.0 + 0.5));
}

void choose_confidence(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *lengths)
{
    uint32_t n_drafting = 0, n_tokens = 0, looked = 0;

    for (uint32_t i = 0; i < v->n_seqs; i++) {
        count_drafts(s, v, i);
        n_drafting += s->most[i] > 0;
        n_tokens = s->asked[i] > n_tokens ? s->asked[i] : n_tokens;
        looked += s->seqs[v->seqs[i].slot].n_looked;
        load(s, &v->seqs[i], i);
        lengths[i] = s->most[i];
    }
    kg_set(&s->host->cells[ACTIVE], v->cost != NULL);
    if (v->cost == NULL) {
        if (!s->warned) {
            s->host->log(s->host->ctx, KG_LOG_WARN,
                         "inactive: no cost surface, so every draft is verified, whether it pays "
                         "or not; set [engine] cost = measured");
            s->warned = 1;
        }
    } else if (n_drafting > 0) {
        plan(s, v, n_drafting, looked, lengths);
    }
    note(s, v, lengths);
    uint32_t rows = 0;
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        struct seq *known = &s->seqs[v->seqs[i].slot];
        rows += lengths[i];
        remember(s, &v->seqs[i]);
        if (known->n_looked > 0) {
            lengths[i] = known->n_looked;
        }
    }
    whether_flight(s, v, n_drafting, n_tokens, rows, looked);
}
