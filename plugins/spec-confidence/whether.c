/* Whether to draft at all: for each length of context and number of sequences, from the surface,
 * from what was accepted and from what rounds really took. */
#include "confidence.h"

#include <string.h>

#define TRIAL 2           /* rounds of a new try */
#define FIRST_SKIP 16     /* rounds without drafts after the first try that did not pay */
#define POOR_SKIP 16      /* rounds until an account that could not pay for a try is asked again */
#define COMPARE_EVERY 256 /* rounds of drafting until one step is a plain one */
#define LOOK_EVERY 4      /* rounds without drafts until lookups are compared again */
#define ASK_EVERY 64      /* the same without lookups */
#define FORGET 256        /* rounds after which what a round of drafts took says nothing any more */
#define HELD_UP 2.0       /* times the usual: what is beyond was not the step's doing */
#define FEW 2             /* so many say something */

/* --- what steps take --- */

static double plain_ratio(const struct kg_spec *s, uint32_t batch)
{
    const struct batch *b = &s->batches[batch];

    return b->plain.n > 0 ? (double)b->plain.median : 1.0;
}

/* Of rounds of one kind; too few, or too old: as plain steps, or one that was held up would stand
 * in its own way. */
static double round_ratio(const struct kg_spec *s, uint32_t batch, const struct ratio *r)
{
    if (r->n < FEW || s->rounds - r->round > FORGET) {
        return plain_ratio(s, batch);
    }
    return (double)r->median;
}

static void see_ratio(struct ratio *r, double v, uint64_t round)
{
    float sorted[RATIOS];
    uint32_t n;

    r->round = round;
    r->last[r->n++ % RATIOS] = (float)(v < RATIO_MOST ? v : RATIO_MOST);
    n = r->n < RATIOS ? r->n : RATIOS;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && sorted[at - 1] > r->last[i]; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = r->last[i];
    }
    r->median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

/* Tokens per time of a round over those without drafts, if all sequences were as these. */
static double gain(const struct kg_spec *s, struct price *with, double extra, double rows)
{
    uint32_t batch = batch_of(with->view->n_seqs);
    double n = with->view->n_seqs;
    double plain = (price_ns(with, 0) - with->draft_ns) * plain_ratio(s, batch);
    double round = price_ns(with, (uint32_t)(rows * n + 0.5)) *
                   round_ratio(s, batch, &s->batches[batch].drafting);

    return (1.0 + extra) * plain / round;
}

/* The best that is to be expected of drafts like those seen so far. */
static double foreseen(const struct kg_spec *s, struct price *with, uint32_t class)
{
    double best = 0, survival = 1, extra = 0;

    for (uint32_t j = 0; j < s->block; j++) {
        survival *= (double)learn_mean(&s->learn, class, j);
        extra += survival;
        double g = gain(s, with, extra, j + 1);
        best = g > best ? g : best;
    }
    return best;
}

/* --- trials --- */

static void skip(struct kg_spec *s, struct region *r)
{
    r->skip = r->skip == 0 ? FIRST_SKIP : 4 * r->skip;
    r->skip = r->skip < s->conf.retry ? r->skip : s->conf.retry;
    r->due = s->rounds + r->skip;
    r->stand = STAND_OFF;
}

static void begin(struct kg_spec *s, struct region *r, uint64_t only)
{
    r->stand = STAND_TRIAL;
    r->left = TRIAL;
    r->only = only;
    r->n = 0; /* what it was like long ago does not count */
    kg_add(&s->host->cells[TRIALS], 1);
}

static void lose(struct kg_spec *s, struct region *r, const struct price *with, double now)
{
    if (r->n > 0 && !s->said_lost) {
        s->host->log(
            s->host->ctx, KG_LOG_INFO,
            "drafting pauses: with %u sequences of %llu tokens a round of %.1f rows and "
            "%.2f accepted drafts a sequence promises %.2f of the tokens per time of plain "
            "decoding%s; tried again within %u steps, for %.2f %% of the time at most",
            with->view->n_seqs, (unsigned long long)with->context, r->rows + 1, r->extra, now,
            now < 1.0 ? "" : ", but rounds have lost what they may lose", s->conf.retry,
            100 * ACCOUNT_SHARE);
        s->said_lost = 1;
    }
    skip(s, r);
}

static void give_up(struct kg_spec *s, struct region *r, struct price *with, double most)
{
    kg_set(&s->host->cells[GAIN], (uint64_t)(most * 1000.0));
    if (!s->said_never) {
        double round = price_ns(with, s->block * with->view->n_seqs);
        s->host->log(s->host->ctx, KG_LOG_WARN,
                     "speculation cannot pay on this machine: with %u sequences a step takes %.3f "
                     "ms, drafting %u tokens each and verifying them %.3f ms; even if all were "
                     "accepted that is %.2f of the tokens per time of plain decoding; nothing is "
                     "drafted while that is so",
                     with->view->n_seqs, price_plain_ns(with) * 1e-6, s->block, round * 1e-6, most);
        s->said_never = 1;
    }
    skip(s, r);
}

/* A request with a context of that length, another one each time. */
static uint64_t any_of(const struct kg_spec *s, const struct kg_spec_view *v, uint32_t bucket)
{
    uint64_t id = 0;

    for (uint32_t i = 0; i < v->n_seqs; i++) {
        const struct kg_spec_seq *q = &v->seqs[(s->rounds + i) % v->n_seqs];
        if (id == 0 && learn_bucket(q->context) == bucket && q->max_draft > 0) {
            id = q->id;
        }
    }
    return id;
}

/* A new try, unless not even full acceptance would pay. Where drafts like those seen before would
 * pay, of all sequences; else of one, when the account can pay for it. */
static uint32_t try_again(struct kg_spec *s, struct region *r, struct price *with,
                          const struct seq *first)
{
    double most = gain(s, with, s->block, s->block);

    kg_set(&s->host->cells[HOPELESS], most < 1.0);
    if (most < 1.0) {
        give_up(s, r, with, most);
        return 0;
    }
    if (foreseen(s, with, first->class) >= 1.0 + s->conf.min_gain &&
        account_allows(&s->drafter, 0)) {
        begin(s, r, 0);
        return 1;
    }
    struct price one = price_of(with->view, 1, s->block, 0);
    double cost = price_ns(&one, s->block) - price_ns(&one, 0) + one.draft_ns;
    if (!account_allows(&s->drafter, TRIAL * cost * plain_ratio(s, batch_of(with->view->n_seqs)))) {
        r->due = s->rounds + (s->drafter.open ? POOR_SKIP : 1);
        return 0;
    }
    begin(s, r, any_of(s, with->view, learn_bucket(first->context)));
    return 1;
}

/* Decides for a region; `first`: one of its sequences. */
static uint32_t pays(struct kg_spec *s, struct region *r, struct price *with,
                     const struct seq *first)
{
    if (r->stand == STAND_TRIAL) {
        return 1;
    }
    if (r->stand == STAND_OFF) {
        return s->rounds < r->due ? 0 : try_again(s, r, with, first);
    }
    double now = r->n > 0 ? gain(s, with, r->extra, r->rows) : 0;
    kg_set(&s->host->cells[GAIN], (uint64_t)(now * 1000.0));
    if (now < (r->stand == STAND_ON ? 1.0 : 1.0 + s->conf.min_gain) ||
        !account_allows(&s->drafter, 0)) {
        lose(s, r, with, now);
        return 0;
    }
    r->stand = STAND_ON;
    r->skip = 0;
    return 1;
}

/* The one sequence of a trial may be gone. */
static void keep_only(const struct kg_spec *s, struct region *r, const struct kg_spec_view *v,
                      uint32_t bucket)
{
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        if (v->seqs[i].id == r->only) {
            return;
        }
    }
    r->only = any_of(s, v, bucket);
}

int whether_compare(const struct kg_spec *s)
{
    return s->is_timed && s->rounds - s->plain_at >= COMPARE_EVERY;
}

/* One sequence: what it may want, and what is known of it. */
static struct seq *place(struct kg_spec *s, const struct kg_spec_seq *q, uint32_t *want)
{
    struct seq *known = seq_of(s, q->slot, q->id);

    known->context = q->context;
    known->placed = 1;
    *want = *want < s->block ? *want : s->block;
    known->asked = *want;
    return known;
}

void whether_want(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *wants)
{
    uint32_t answer[LEARN_BUCKETS], paused = 0, busy = 0;
    uint64_t due = UINT64_MAX;
    int compare = whether_compare(s);

    memset(answer, 0xff, sizeof(answer));
    s->batch = batch_of(v->n_seqs);
    s->is_sample = 0;
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        const struct kg_spec_seq *q = &v->seqs[i];
        struct seq *known = place(s, q, &wants[i]);
        uint32_t b = learn_bucket(q->context);
        struct region *r = &s->regions[s->batch][b];
        busy |= q->n_drafted > 0;
        if (v->cost == NULL || wants[i] == 0) {
            continue;
        }
        if (answer[b] == UINT32_MAX) {
            struct price with = price_of(v, v->n_seqs, s->block, 0);
            answer[b] = !compare && pays(s, r, &with, known);
            due = r->due < due ? r->due : due;
            if (r->stand == STAND_TRIAL && r->only != 0) {
                s->is_sample = 1;
                keep_only(s, r, v, b);
            }
        }
        if (!answer[b] || (r->stand == STAND_TRIAL && r->only != 0 && r->only != q->id)) {
            wants[i] = known->asked = 0;
            paused++;
        }
        busy |= wants[i] > 0;
    }
    kg_add(&s->host->cells[PAUSED], paused);
    uint64_t later = s->rounds + (s->conf.lookup ? LOOK_EVERY : ASK_EVERY);
    s->news = busy || compare || v->cost == NULL;
    s->quiet = due < later ? due : later;
}

/* --- lookups --- */

uint32_t whether_look(struct kg_spec *s, const struct kg_spec_view *v, float p, uint32_t most,
                      uint32_t given)
{
    uint32_t batch = batch_of(v->n_seqs), best = 0;
    double survival = 1, extra = 0, top;

    if (v->cost == NULL || !account_allows(&s->lookup, 0)) {
        return 0;
    }
    struct price price = price_of(v, 0, 0, given);
    double unit = price_plain_ns(&price) / v->n_seqs, none = price_ns(&price, 0);
    double ratio = round_ratio(s, batch, &s->batches[batch].looking) / plain_ratio(s, batch);
    top = s->conf.min_gain * unit;
    for (uint32_t k = 1; k <= most; k++) {
        survival *= (double)p;
        extra += survival;
        double net = extra * unit - (price_ns(&price, k) - none) * ratio;
        if (net > top) {
            top = net;
            best = k;
        }
    }
    return best;
}

/* --- what came of it --- */

void whether_flight(struct kg_spec *s, const struct kg_spec_view *v, uint32_t n_drafting,
                    uint32_t n_tokens, uint32_t rows, uint32_t looked)
{
    struct flight *f = &s->flight;

    *f = (struct flight){0};
    if (v->cost == NULL || v->n_seqs == 0) {
        return;
    }
    struct price all = price_of(v, n_drafting, n_tokens, looked);
    struct price none = {.view = v, .context = all.context};
    f->is_priced = 1;
    f->n_seqs = v->n_seqs;
    f->batch = batch_of(v->n_seqs);
    f->is_mixed = v->other_rows > 0;
    f->n_drafting = n_drafting;
    f->n_drafted = n_drafting + looked;
    f->plain_ns = price_ns(&none, 0);
    f->unit_ns = price_plain_ns(&none) / v->n_seqs;
    f->round_ns = price_ns(&all, rows);
    f->look_ns = price_ns(&none, looked) - f->plain_ns;
}

/* A round of drafts: into the accounts of those who drafted. */
static void settle_round(struct kg_spec *s, double took, uint32_t n_tokens, uint32_t n_looked)
{
    const struct flight *f = &s->flight;
    double ratio = plain_ratio(s, f->batch), unit = f->unit_ns * ratio;
    double excess = took - f->plain_ns * ratio, all = f->round_ns - f->plain_ns;
    double share = all > 0 ? f->look_ns / all : 0;
    double loss = excess - ((double)n_tokens - f->n_seqs) * unit;
    double look = excess * share - n_looked * unit;

    account_round(&s->lookup, look, s->plain_ns);
    account_round(&s->drafter, loss - look, s->plain_ns);
    if (loss > 0) {
        kg_add(&s->host->cells[LOST], (uint64_t)(loss * 1e-3 + 0.5));
    } else {
        kg_add(&s->host->cells[GAINED], (uint64_t)(-loss * 1e-3 + 0.5));
    }
}

void whether_settle(struct kg_spec *s, uint64_t step_ns, uint32_t n_tokens, uint32_t n_looked)
{
    struct flight *f = &s->flight;
    double took = (double)step_ns, expected = f->n_drafted > 0 ? f->round_ns : f->plain_ns;
    struct batch *b = &s->batches[f->batch];

    struct ratio *kind = f->n_drafting > 0  ? &b->drafting
                         : f->n_drafted > 0 ? &b->looking
                                            : &b->plain;
    s->is_timed = step_ns > 0;
    int is_timed = f->is_priced && s->is_timed && !f->is_mixed;
    if (is_timed) {
        if (f->n_drafted > 0 && s->rounds - kind->round > FORGET) {
            kind->n = 0;
        }
        see_ratio(kind, took / expected, s->rounds);
    }
    if (f->is_priced) {
        double usual = expected * round_ratio(s, f->batch, kind);
        took = is_timed && took < HELD_UP * usual ? took : is_timed ? HELD_UP * usual : usual;
    }
    if (f->n_drafted == 0) {
        s->plain_at = s->rounds;
    }
    if (f->is_priced) {
        s->plain_ns = f->unit_ns * f->n_seqs * plain_ratio(s, f->batch);
    }
    if (s->plain_ns > 0) {
        took = took > 0 ? took : s->plain_ns;
        account_pass(&s->drafter, took, s->plain_ns);
        account_pass(&s->lookup, took, s->plain_ns);
    }
    if (f->is_priced && f->n_drafted > 0) {
        settle_round(s, took, n_tokens, n_looked);
    }
    *f = (struct flight){0};
}
