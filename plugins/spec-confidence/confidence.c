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
 * lookup = yes. A sequence that repeats itself, so that a lookup in its own text has been right
 * more often than the drafter, takes the lookup's drafts (lookup.h).
 *
 * Whether draft j of a sequence is verified depends on nothing that was not known before it was
 * drawn: its survival sees the drafts before it, the number of rows and their price come from
 * earlier rounds, and so does who drafts. So the output keeps its distribution under every rule of
 * acceptance.
 *
 * Drafting pauses, by length of context and number of sequences, where even the best number of rows
 * gives fewer tokens per time than decoding without drafts; it is tried again ever more rarely, and
 * never for more than a share of the time (account.h). Without a cost surface nothing can be
 * priced: all is drafted and verified, and a warning says so.
 */
#include "confidence.h"

#include <string.h>

#define USUAL_STEP (1.0f / 64) /* weight of a token of a lookup in what all sequences have */

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
    {"confidence_cannot_pay", KG_GAUGE,
     "1: when last asked, not even drafts that are all accepted would have paid."},
    {"confidence_lost_microseconds_total", KG_COUNTER,
     "Time that rounds took beyond what plain decoding would have taken for their tokens."},
    {"confidence_gained_microseconds_total", KG_COUNTER,
     "Time that plain decoding would have taken for the tokens of rounds beyond what they took."},
    {"confidence_lookup_tokens_total", KG_COUNTER, "Drafts from lookups that were verified."},
    {"confidence_lookup_accepted_tokens_total", KG_COUNTER, "Of them, accepted."},
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
     "Where drafting does not pay it is tried again after at most so many steps, or later: tries "
     "cost a quarter of a percent of the time at most. Unit: steps."},
    {"learn", KG_OPT_BOOL, 0, offsetof(struct confidence_conf, learn), "yes", 0, 0, NULL,
     "Correct the drafter's confidences by what became of its drafts."},
    {"lookup", KG_OPT_BOOL, KG_OPT_ARM, offsetof(struct confidence_conf, lookup), "yes", 0, 0, NULL,
     "Sequences that repeat themselves take drafts from their own text instead of the drafter's."},
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
    s->news = 1;
    s->usual_p[0] = s->usual_p[1] = 0.5f;
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

struct seq *seq_of(struct kg_spec *s, uint32_t slot, uint64_t id)
{
    struct seq *q = &s->seqs[slot];

    if (q->id != id) {
        *q = (struct seq){.id = id};
        s->news = 1;
    }
    return q;
}

uint32_t batch_of(uint32_t n_seqs)
{
    uint32_t b = 0;

    while (n_seqs > 1 && b + 1 < BATCHES) {
        n_seqs /= 2;
        b++;
    }
    return b;
}

/* All that is allowed, unless nobody is known to draft soon. */
static uint32_t cap_confidence(const struct kg_spec *s)
{
    return s->news || s->rounds >= s->quiet ? s->block : 0;
}

/* --- lookups --- */

/* Accepted drafts to expect of the drafter; 0 while it pauses there. */
static float drafter_worth(const struct kg_spec *s, const struct seq *known, uint32_t batch)
{
    const struct region *r = &s->regions[batch][learn_bucket(known->context)];
    float all = 0;

    if (r->stand != STAND_ON) {
        return 0;
    }
    for (uint32_t j = 0; j < known->n_usual; j++) {
        all += known->usual[j];
    }
    return known->n_usual > 0 ? all : (float)r->extra;
}

static float lookup_worth(float p, uint32_t n)
{
    float survival = 1, all = 0;

    for (uint32_t k = 0; k < n; k++) {
        all += survival *= p;
    }
    return all;
}

/* Sequences whose lookups have been right more often than the drafter take them; of the others they
 * are kept in hand and compared with what comes. */
static int draft(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *tokens, uint32_t stride,
                 uint32_t *counts)
{
    uint32_t given = 0, batch = batch_of(v->n_seqs);
    int compare = whether_compare(s);

    for (uint32_t i = 0; i < v->n_seqs; i++) {
        const struct kg_spec_seq *q = &v->seqs[i];
        struct seq *known = seq_of(s, q->slot, q->id);
        uint32_t most = q->max_draft < v->cap ? q->max_draft : v->cap;
        counts[i] = known->n_looked = 0;
        if (!s->conf.lookup || v->cost == NULL) {
            continue;
        }
        most = most < s->block ? most : s->block;
        most = most < v->rows_left - given ? most : v->rows_left - given;
        known->context = q->context;
        if (!known->looks) {
            look_begin(&known->look, s->usual_p[q->greedy != 0]);
            known->looks = 1;
        }
        uint32_t n = compare ? 0 : whether_look(s, v, known->look.p, most, given);
        if (n > 0 && lookup_worth(known->look.p, n) >= drafter_worth(s, known, batch)) {
            counts[i] = known->n_looked =
                look_up(q->history, q->n_history, n, tokens + (size_t)i * stride);
            given += counts[i];
        }
        if (counts[i] == 0 && look_wants(&known->look)) {
            look_take(&known->look, q->history, q->n_history, s->block);
        }
    }
    return KG_OK;
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

/* Returns accepted drafts of a lookup. */
static uint32_t see(struct kg_spec *s, struct seq *q, const struct kg_spec_seen *seen)
{
    uint32_t looked = q->n_looked, bucket = learn_bucket(q->context);

    if (looked > 0) {
        look_judged(&q->look, seen->n_verified, seen->n_accepted,
                    seen->n_tokens == seen->n_accepted);
        kg_add(&s->host->cells[LOOKED], seen->n_verified);
        kg_add(&s->host->cells[LOOK_ACCEPTED], seen->n_accepted);
    } else {
        if (seen->n_verified > 0) {
            learn_window(s, q, seen);
        }
        if (seen->tokens != NULL && q->looks) {
            look_seen(&q->look, seen->tokens, seen->n_tokens);
        }
    }
    float *p = &s->usual_p[seen->greedy != 0];
    for (; q->look.n_right > 0; q->look.n_right--) {
        *p += (1.0f - *p) * USUAL_STEP;
    }
    for (; q->look.n_wrong > 0; q->look.n_wrong--) {
        *p -= *p * USUAL_STEP;
    }
    if (!seen->greedy) {
        s->accept = seen->accept;
    }
    q->n_said = q->n_looked = 0;
    q->context += seen->n_tokens;
    s->news |= !q->placed || learn_bucket(q->context) != bucket;
    return looked > 0 ? seen->n_accepted : 0;
}

static void observe(struct kg_spec *s, const struct kg_spec_seen *seen, uint32_t n,
                    uint64_t step_ns)
{
    uint32_t n_tokens = 0, n_looked = 0, n_seqs = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct seq *q = &s->seqs[seen[i].slot];
        if (seen[i].ended) {
            q->id = q->id == seen[i].id ? 0 : q->id;
            continue;
        }
        n_looked += see(s, seq_of(s, seen[i].slot, seen[i].id), &seen[i]);
        n_tokens += seen[i].n_tokens;
        n_seqs++;
    }
    s->news |= n_seqs > 0 && batch_of(n_seqs) != s->batch;
    s->rounds += n > 0;
    whether_settle(s, step_ns, n_tokens, n_looked);
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
    for (uint32_t k = 0; k < BATCHES * LEARN_BUCKETS; k++) {
        const struct region *r = &s->regions[k / LEARN_BUCKETS][k % LEARN_BUCKETS];
        if (!(r->extra >= 0 && r->extra <= r->rows + ROUNDING && r->rows <= s->block + ROUNDING)) {
            return kg_fail(err, KG_EINVAL,
                           "spec-confidence: context %u of batch %u expects %g of %g drafts",
                           k % LEARN_BUCKETS, k / LEARN_BUCKETS, r->extra, r->rows);
        }
    }
    for (uint32_t k = 0; k < BATCHES; k++) {
        const struct batch *b = &s->batches[k];
        if (!(b->plain.median >= 0 && b->plain.median <= RATIO_MOST && b->drafting.median >= 0 &&
              b->drafting.median <= RATIO_MOST && b->looking.median >= 0)) {
            return kg_fail(err, KG_EINVAL, "spec-confidence: time over surface is %g, %g",
                           (double)b->plain.median, (double)b->drafting.median);
        }
    }
    return KG_OK;
}

static const struct kg_spec_ops ops = {
    .size = sizeof(ops),
    .open = open_confidence,
    .close = close_confidence,
    .block = block_confidence,
    .cap = cap_confidence,
    .choose = choose_confidence,
    .observe = observe,
    .check = check,
    .draft = draft,
    .want = whether_want,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_SPEC,
    .size = sizeof(plugin),
    .major = KG_SPEC_MAJOR,
    .minor = KG_SPEC_MINOR,
    .needs_minor = 2,
    .name = "confidence",
    .version = KG_VERSION,
    .summary = "verifies the drafts that pay, by their confidence and the cost of a step; pauses "
               "where none do",
    .caps = KG_SPEC_CAP_HOST | KG_SPEC_CAP_MODEL | KG_SPEC_CAP_COST,
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
