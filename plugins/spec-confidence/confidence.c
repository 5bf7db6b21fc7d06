/*
 * spec-confidence: verifies what pays. A drafter says how likely each of its drafts survives; the
 * cost surface says what rows and drafting take. Together they say how many rows give the most
 * tokens per time, whether the rows of this step are worth anything, and whether to draft at all.
 *
 * rule = budget. The number of rows is the best one for the survivals each sequence had in its last
 * rounds; the rows go to the best drafts of this round, and only to those whose survival is worth
 * the price of a row at that number. In a small batch the price alone decides: one round's number
 * says little of the next. Where rows are nearly free all are verified.
 * rule = stop. Rows are added while tokens per time rise, on this round's survivals.
 *
 * Whether draft j of a sequence is verified depends on nothing that was not known before it was
 * drawn: its survival sees the drafts before it, the number of rows and their price come from
 * earlier rounds. So the output keeps its distribution under every rule of acceptance.
 *
 * Drafting pauses, by length of context, where even the best number of rows gives fewer tokens per
 * time than decoding without drafts; it is tried again ever more rarely. Without a cost surface
 * nothing can be priced: all is drafted and verified, and a warning says so.
 */
#include "learn.h"
#include "plan.h"

#include <kedge/spec.h>
#include <string.h>

#define SMALL_BATCH 8 /* sequences; below it no number of rows is carried over */
#define TRIAL 2       /* rounds of a new try */
#define FIRST_SKIP 16 /* rounds without drafts after the first try that did not pay */
#define KEEP 0.75f    /* weight of what a sequence's survivals were */

#define RATIO_STEP 0.25 /* weight of a step in the ratio below */
#define RATIO_MOST 4.0

#define ROUNDING 1e-6 /* two averages that are equal may part by so much, and no more */

enum rule { RULE_BUDGET = 0, RULE_STOP = 1 };

struct confidence_conf {
    uint32_t rule, drafts, retry, learn;
    double min_gain;
};

/* What is known of the sequence in a backend slot. */
struct seq {
    uint64_t id; /* request, 0: none */
    uint32_t context;
    uint32_t placed;             /* 1: context is known */
    uint32_t class;              /* of sampling */
    uint32_t asked;              /* drafts asked for in this round; 0: nobody asked */
    uint32_t n_said;             /* drafts of the round in flight */
    uint32_t n_usual;            /* positions below */
    float said[LEARN_BLOCK];     /* confidence of each, as the drafter said */
    float survival[LEARN_BLOCK]; /* of each, corrected; not rising */
    float usual[LEARN_BLOCK];    /* survivals of the rounds before, averaged */
};

/* Whether drafting pays at a length of context. */
struct bucket {
    double extra, rows; /* expected accepted drafts, verified rows, of a sequence and round */
    uint32_t n;         /* rounds seen, at most 8 */
    uint32_t on, off;   /* 1: it paid when last asked; it did not, and no try is under way */
    uint32_t trial;     /* rounds of the present try that are left */
    uint32_t skip;      /* rounds until the next try */
    uint64_t due;       /* round of the next try */
};

struct kg_spec {
    const struct kg_host *host;
    struct confidence_conf conf;
    uint32_t max_seqs, block;
    uint64_t rounds;
    uint32_t warned, said; /* 1: the log has it */
    /* Time of steps that drafted over what the surface says. Steps without drafts refresh the
     * surface all the time and these do not while drafting pauses, so a machine that became slower
     * would make windows look cheap. */
    double ratio;
    double expected_ns; /* of the step in flight; 0: not to be compared */
    struct learn learn;
    struct bucket buckets[LEARN_BUCKETS];
    uint64_t bytes;
    uint32_t *most, *asked; /* [max_seqs] drafts that came; that were asked for */
    uint32_t *heap;         /* [max_seqs] */
    float *now, *usual;     /* [max_seqs][block] */
    struct seq seqs[];      /* [max_seqs] */
};

enum { ROUNDS, WHOLE, TRIMMED, PAUSED, TRIALS, EXPECTED, ACCEPTED, ACTIVE, GAIN };

static const struct kg_metric metrics[] = {
    {"confidence_rounds_total", KG_COUNTER, "Steps in which something was drafted."},
    {"confidence_whole_rounds_total", KG_COUNTER, "Of them, steps that verified every draft."},
    {"confidence_trimmed_tokens_total", KG_COUNTER, "Drafts that were not worth a row."},
    {"confidence_paused_total", KG_COUNTER,
     "Sequence-steps without a draft because drafting would not pay."},
    {"confidence_trials_total", KG_COUNTER, "Times drafting was tried again."},
    {"confidence_expected_millitokens_total", KG_COUNTER,
     "Accepted drafts as expected when windows were chosen. Unit: thousandths of a token."},
    {"confidence_accepted_tokens_total", KG_COUNTER, "Accepted drafts of the same windows."},
    {"confidence_active", KG_GAUGE, "1: there is a cost surface; 0: everything is verified."},
    {"confidence_gain_permille", KG_GAUGE,
     "Tokens per time with drafts over without, as last expected. Unit: thousandths."},
    {0},
};

static const struct kg_opt options[] = {
    {"rule", KG_OPT_ENUM, KG_OPT_ARM, offsetof(struct confidence_conf, rule), "budget", 0, 0,
     "budget|stop",
     "budget: the number of rows follows from earlier rounds, the best drafts of this one get "
     "them. "
     "stop: rows are added while tokens per time rise, and never past the first that does not "
     "raise them."},
    {"drafts", KG_OPT_U32, KG_OPT_ARM, offsetof(struct confidence_conf, drafts), "0", 0,
     LEARN_BLOCK, NULL, "Longest window; 0: the drafter's block. Unit: tokens."},
    {"min_gain", KG_OPT_F64, KG_OPT_ARM, offsetof(struct confidence_conf, min_gain), "0.02", 0, 1,
     NULL,
     "Least gain in tokens per time for which windows are trimmed or drafting begins. "
     "Unit: share."},
    {"retry", KG_OPT_U32, 0, offsetof(struct confidence_conf, retry), "512", 1, 1e6, NULL,
     "Where drafting does not pay it is tried again after at most so many steps. Unit: steps."},
    {"learn", KG_OPT_BOOL, 0, offsetof(struct confidence_conf, learn), "yes", 0, 0, NULL,
     "Correct the drafter's confidences by what became of its drafts."},
    {0},
};

/* --- life --- */

static int open_confidence(const struct kg_host *host, const void *conf, uint32_t max_seqs,
                           uint32_t block, struct kg_spec **spec, struct kg_error *err)
{
    const struct confidence_conf *c = conf;
    uint32_t most = c->drafts > 0 && c->drafts < block ? c->drafts : block;

    most = most < LEARN_BLOCK ? most : LEARN_BLOCK;
    size_t floats = (size_t)max_seqs * most;
    size_t bytes = sizeof(**spec) + max_seqs * sizeof(struct seq) +
                   3 * max_seqs * sizeof(uint32_t) + 2 * floats * sizeof(float);
    struct kg_spec *s = host->alloc(host->ctx, bytes, 0);
    if (s == NULL) {
        return kg_fail(err, KG_ENOMEM, "spec-confidence: no memory for %zu bytes", bytes);
    }
    memset(s, 0, bytes);
    s->host = host;
    s->conf = *c;
    s->max_seqs = max_seqs;
    s->block = most;
    s->bytes = bytes;
    s->ratio = 1.0;
    s->most = (uint32_t *)(void *)(s->seqs + max_seqs);
    s->asked = s->most + max_seqs;
    s->heap = s->asked + max_seqs;
    s->now = (float *)(void *)(s->heap + max_seqs);
    s->usual = s->now + floats;
    *spec = s;
    return KG_OK;
}

static void close_confidence(struct kg_spec *s)
{
    if (s != NULL) {
        s->host->free(s->host->ctx, s, s->bytes);
    }
}

static uint32_t block_confidence(const struct kg_spec *s)
{
    return s->block;
}

static struct seq *seq_of(struct kg_spec *s, uint32_t slot, uint64_t id)
{
    struct seq *q = &s->seqs[slot];

    if (q->id != id) {
        *q = (struct seq){.id = id};
    }
    return q;
}

/* --- prices --- */

struct price {
    const struct kg_spec_view *view;
    uint64_t context;
    double draft_ns;
};

static double step_ns(void *ctx, uint32_t rows)
{
    const struct price *p = ctx;
    const struct kg_spec_view *v = p->view;
    uint64_t ns =
        v->cost->step_ns(v->cost->ctx, v->n_seqs, v->other_rows + v->n_seqs + rows, p->context);

    return p->draft_ns + (double)(ns > 0 ? ns : 1);
}

/* Of the coming step when n_drafting of its sequences are drafted for. */
static struct price price_of(const struct kg_spec *s, const struct kg_spec_view *v,
                             uint32_t n_drafting)
{
    struct price p = {.view = v};

    for (uint32_t i = 0; i < v->n_seqs; i++) {
        p.context += v->seqs[i].context;
    }
    if (n_drafting > 0 && KG_HAS(v->cost, struct kg_cost, draft_ns)) {
        uint64_t context = p.context * n_drafting / v->n_seqs;
        p.draft_ns = (double)v->cost->draft_ns(v->cost->ctx, n_drafting, s->block, context);
    }
    return p;
}

/* --- whether to draft --- */

/* Tokens per time of a round over those without drafts, if all sequences were as these. */
static double gain(struct price *with, double ratio, double extra, double rows)
{
    double n = with->view->n_seqs;
    double plain = step_ns(with, 0) - with->draft_ns;
    double round = step_ns(with, (uint32_t)(rows * n + 0.5)) * ratio;

    return (1.0 + extra) * plain / round;
}

/* A new try of a bucket, unless not even full acceptance would pay. */
static uint32_t try_again(struct kg_spec *s, struct bucket *b, struct price *with)
{
    double most = gain(with, 1.0, s->block, s->block);

    b->skip = b->skip == 0 ? FIRST_SKIP : 4 * b->skip;
    b->skip = b->skip < s->conf.retry ? b->skip : s->conf.retry;
    if (most < 1.0) {
        b->due = s->rounds + b->skip;
        kg_set(&s->host->cells[GAIN], (uint64_t)(most * 1000.0));
        if (!s->said) {
            s->host->log(s->host->ctx, KG_LOG_WARN,
                         "drafting cannot pay: a step of %u sequences with %u drafts each gives "
                         "%.2f of the tokens per time of plain decoding even if all are accepted; "
                         "nothing is drafted while that is so",
                         with->view->n_seqs, s->block, most);
            s->said = 1;
        }
        return 0;
    }
    b->trial = TRIAL;
    b->off = 0;
    b->n = 0; /* what it was like long ago does not count */
    b->due = s->rounds + TRIAL + b->skip;
    kg_add(&s->host->cells[TRIALS], 1);
    return 1;
}

/* Decides for a bucket; tries again when it is time. */
static uint32_t pays(struct kg_spec *s, struct bucket *b, struct price *with)
{
    if (b->trial > 0) {
        return 1;
    }
    if (b->n > 0) {
        double now = gain(with, s->ratio, b->extra, b->rows);
        kg_set(&s->host->cells[GAIN], (uint64_t)(now * 1000.0));
        if (now >= (b->on ? 1.0 : 1.0 + s->conf.min_gain)) {
            b->on = 1;
            b->off = 0;
            b->skip = FIRST_SKIP;
            return 1;
        }
    }
    b->on = 0;
    b->off = 1;
    return s->rounds < b->due ? 0 : try_again(s, b, with);
}

static void want(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *wants)
{
    uint32_t answer[LEARN_BUCKETS], paused = 0;

    memset(answer, 0xff, sizeof(answer));
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        const struct kg_spec_seq *q = &v->seqs[i];
        struct seq *known = seq_of(s, q->slot, q->id);
        uint32_t b = learn_bucket(q->context);
        known->context = q->context;
        known->placed = 1;
        wants[i] = wants[i] < s->block ? wants[i] : s->block;
        known->asked = wants[i];
        if (v->cost == NULL) {
            continue;
        }
        if (answer[b] == UINT32_MAX) {
            struct price with = price_of(s, v, v->n_seqs);
            answer[b] = pays(s, &s->buckets[b], &with);
        }
        if (!answer[b]) {
            wants[i] = known->asked = 0;
            paused++;
        }
    }
    kg_add(&s->host->cells[PAUSED], paused);
}

/* All that is allowed, unless every sequence is known to be in a pause. */
static uint32_t cap_confidence(const struct kg_spec *s)
{
    uint32_t n_live = 0;

    for (uint32_t i = 0; i < s->max_seqs; i++) {
        const struct seq *q = &s->seqs[i];
        if (q->id == 0) {
            continue;
        }
        const struct bucket *b = &s->buckets[learn_bucket(q->context)];
        if (!q->placed || !b->off || s->rounds >= b->due) {
            return s->block;
        }
        n_live++;
    }
    return n_live == 0 ? s->block : 0;
}

/* --- how much to verify --- */

/* Drafts of a sequence in this round: how many came, and how many were asked for. */
static void count_drafts(struct kg_spec *s, const struct kg_spec_view *v, uint32_t i)
{
    const struct kg_spec_seq *q = &v->seqs[i];
    struct seq *known = seq_of(s, q->slot, q->id);
    uint32_t limit = v->cap < s->block ? v->cap : s->block;
    uint32_t asked = known->asked < q->max_draft ? known->asked : q->max_draft;

    s->most[i] = q->n_drafted < limit ? q->n_drafted : limit;
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
    known->class = q->greedy ? 1 : 0;
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
        if (b.tokens * none < (1.0 + s->conf.min_gain) * q->n * b.ns) {
            rows = 0;
        }
    }
    q->survival = s->now;
    q->most = s->most;
    (void)plan_take(q, rows, least, lengths);
}

/* Expected of the windows as chosen, into the buckets and the counters. */
static void note(struct kg_spec *s, const struct kg_spec_view *v, const uint32_t *lengths,
                 struct price *price)
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
        struct bucket *b = &s->buckets[k];
        if (n[k] > 0) {
            b->n += b->n < 8;
            b->extra += (extra[k] / n[k] - b->extra) / b->n;
            b->rows += (rows[k] / n[k] - b->rows) / b->n;
            b->trial -= b->trial > 0;
        }
    }
    kg_add(&s->host->cells[ROUNDS], drafted > 0);
    kg_add(&s->host->cells[WHOLE], drafted > 0 && total == drafted);
    kg_add(&s->host->cells[TRIMMED], drafted - total);
    kg_add(&s->host->cells[EXPECTED], (uint64_t)(all * 1000.0 + 0.5));
    s->expected_ns = 0;
    if (price != NULL && drafted > 0 && v->other_rows == 0) {
        s->expected_ns = step_ns(price, total);
    }
}

static void choose(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *lengths)
{
    uint32_t n_drafting = 0;

    for (uint32_t i = 0; i < v->n_seqs; i++) {
        count_drafts(s, v, i);
        n_drafting += s->most[i] > 0;
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
        note(s, v, lengths, NULL);
    } else if (v->n_seqs > 0) {
        struct price price = price_of(s, v, n_drafting);
        struct plan_cost cost = {step_ns, &price};
        struct plan_seqs q = {.n = v->n_seqs,
                              .stride = s->block,
                              .most = s->most,
                              .survival = s->now,
                              .heap = s->heap};
        if (s->conf.rule == RULE_STOP) {
            (void)plan_stop(&q, &cost, v->rows_left, lengths, NULL, NULL);
        } else {
            plan_budget(s, v, &cost, &q, lengths);
        }
        note(s, v, lengths, &price);
    }
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        remember(s, &v->seqs[i]);
    }
}

/* --- learning --- */

static void learn_window(struct kg_spec *s, const struct seq *q, const struct kg_spec_seen *seen)
{
    /* A run that a stop or max_tokens cut says nothing of the draft behind the cut. */
    int cut = seen->n_tokens == seen->n_accepted;
    uint32_t n = seen->n_verified < q->n_said ? seen->n_verified : q->n_said;
    uint32_t bucket = learn_bucket(q->context);

    for (uint32_t j = 0; j < n && j <= seen->n_accepted; j++) {
        if (j == seen->n_accepted && cut) {
            break;
        }
        learn_trial(&s->learn, q->class, j, bucket, q->said[j], j < seen->n_accepted);
    }
    kg_add(&s->host->cells[ACCEPTED], seen->n_accepted);
}

static void observe(struct kg_spec *s, const struct kg_spec_seen *seen, uint32_t n,
                    uint64_t step_ns)
{
    for (uint32_t i = 0; i < n; i++) {
        struct seq *q = &s->seqs[seen[i].slot];
        if (seen[i].ended) {
            q->id = q->id == seen[i].id ? 0 : q->id;
            continue;
        }
        q = seq_of(s, seen[i].slot, seen[i].id);
        if (seen[i].n_verified > 0) {
            learn_window(s, q, &seen[i]);
        }
        q->n_said = 0;
        q->context += seen[i].n_tokens;
    }
    s->rounds += n > 0;
    if (step_ns > 0 && s->expected_ns > 0) {
        double r = (double)step_ns / s->expected_ns;
        r = r < RATIO_MOST ? r : RATIO_MOST; /* a step that was held up says little */
        s->ratio += RATIO_STEP * (r - s->ratio);
    }
    s->expected_ns = 0;
}

static int check(const struct kg_spec *s, struct kg_error *err)
{
    for (uint32_t i = 0; i < s->max_seqs; i++) {
        const struct seq *q = &s->seqs[i];
        for (uint32_t j = 0; j < q->n_usual; j++) {
            if (!(q->usual[j] >= 0.0f && q->usual[j] <= 1.0f)) {
                return kg_fail(err, KG_EINVAL, "spec-confidence: slot %u has survival %g", i,
                               (double)q->usual[j]);
            }
        }
        for (uint32_t j = 0; j < i && q->id != 0; j++) {
            if (s->seqs[j].id == q->id) {
                return kg_fail(err, KG_EINVAL,
                               "spec-confidence: request %llu is in slots %u and %u",
                               (unsigned long long)q->id, j, i);
            }
        }
    }
    for (uint32_t k = 0; k < LEARN_BUCKETS; k++) {
        const struct bucket *b = &s->buckets[k];
        if (!(b->extra >= 0 && b->extra <= b->rows + ROUNDING && b->rows <= s->block + ROUNDING)) {
            return kg_fail(err, KG_EINVAL, "spec-confidence: context %u expects %g of %g drafts", k,
                           b->extra, b->rows);
        }
    }
    if (!(s->ratio >= 0 && s->ratio <= RATIO_MOST)) {
        return kg_fail(err, KG_EINVAL, "spec-confidence: time over surface is %g", s->ratio);
    }
    return KG_OK;
}

static const struct kg_spec_ops ops = {
    .size = sizeof(ops),
    .open = open_confidence,
    .close = close_confidence,
    .block = block_confidence,
    .cap = cap_confidence,
    .choose = choose,
    .observe = observe,
    .check = check,
    .want = want,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_SPEC,
    .size = sizeof(plugin),
    .major = KG_SPEC_MAJOR,
    .minor = KG_SPEC_MINOR,
    .needs_minor = 1,
    .name = "confidence",
    .version = KG_VERSION,
    .summary = "verifies the drafts that pay, by their confidence and the cost of a step; pauses "
               "where none do",
    .caps = KG_SPEC_CAP_MODEL | KG_SPEC_CAP_COST,
    .opts = options,
    .conf_size = sizeof(struct confidence_conf),
    .metrics = metrics,
    .ops = &ops,
};

KG_EXPORT kg_plugin_entry_fn kg_plugin_entry;

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
