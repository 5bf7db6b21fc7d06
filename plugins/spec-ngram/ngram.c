/*
 * spec-ngram: prompt lookup. The last tokens of a sequence are looked up in what came before them;
 * what followed the longest match, the most recent of equals, is the draft. Nothing is trained and
 * the model is not asked, so it pays where text repeats itself (code edits, quotes, extraction,
 * tables) and must stop where it does not.
 *
 * Each sequence has an estimate p of the probability that a draft is accepted, a moving average
 * over its verified drafts. The k-th draft of a window survives with p^k. It is verified while that
 * is at least the price of a row: its share of a step's time over what a token costs now, from the
 * cost surface, or `min_gain` without one. A sequence whose first draft does not pay tries a short
 * window now and then: at its start, at once after one that was right as a whole, and else when
 * `retry` tokens went by.
 */
#include <kedge/spec.h>
#include <string.h>

#define STEP 0.125f   /* weight of a new observation in p */
#define TRUST 0.625f  /* p of a sequence that has shown nothing */
#define PROBE 2       /* drafts of a window that tries again */
#define MAX_DRAFTS 16 /* of the option */

struct ngram_conf {
    uint32_t min_n, max_n, drafts, window, retry;
    double min_gain;
};

/* What is known of the sequence in a backend slot. */
struct ngram_slot {
    uint64_t id;    /* request, 0: none */
    float p;        /* of acceptance, 0..1 */
    uint32_t since; /* tokens since its last window */
};

struct kg_spec {
    const struct kg_host *host;
    struct ngram_conf conf;
    uint32_t max_seqs;
    float price; /* least survival of a draft worth a row */
    uint64_t bytes;
    struct ngram_slot slots[]; /* [max_seqs] */
};

enum { LOOKUPS, MATCHES, PAUSED };

static const struct kg_metric metrics[] = {
    {"ngram_lookups_total", KG_COUNTER, "Histories searched for the tokens they end with."},
    {"ngram_matches_total", KG_COUNTER, "Searches that found them and drafted what followed."},
    {"ngram_paused_total", KG_COUNTER, "Sequence-steps without a draft because none would pay."},
    {0},
};

static const struct kg_opt options[] = {
    {"min_n", KG_OPT_U32, 0, offsetof(struct ngram_conf, min_n), "2", 1, 32, NULL,
     "Shortest match that makes a draft. Unit: tokens."},
    {"max_n", KG_OPT_U32, 0, offsetof(struct ngram_conf, max_n), "5", 1, 32, NULL,
     "Longest match looked for; longer ones are not told apart. Unit: tokens."},
    {"drafts", KG_OPT_U32, KG_OPT_ARM, offsetof(struct ngram_conf, drafts), "8", 1, MAX_DRAFTS,
     NULL, "Longest draft of a step. Memory is granted for it. Unit: tokens."},
    {"window", KG_OPT_U32, 0, offsetof(struct ngram_conf, window), "8192", 0, 1e9, NULL,
     "How far back a match may lie; 0 searches everything. Unit: tokens."},
    {"min_gain", KG_OPT_F64, KG_OPT_ARM, offsetof(struct ngram_conf, min_gain), "0.5", 0, 1, NULL,
     "Without a cost surface: least probability with which a draft must survive to be verified; a "
     "draft row's cost over that of a token. Unit: probability."},
    {"retry", KG_OPT_U32, 0, offsetof(struct ngram_conf, retry), "32", 1, 1e6, NULL,
     "A sequence that stopped drafting tries again after so many tokens. Unit: tokens."},
    {0},
};

/* --- life --- */

static int open_ngram(const struct kg_host *host, const void *conf, uint32_t max_seqs,
                      uint32_t block, struct kg_spec **spec, struct kg_error *err)
{
    const struct ngram_conf *c = conf;
    size_t bytes = sizeof(**spec) + max_seqs * sizeof(struct ngram_slot);

    (void)block;
    if (c->max_n < c->min_n) {
        return kg_fail(err, KG_ECONFIG, "[spec-ngram] max_n = %u is below min_n = %u", c->max_n,
                       c->min_n);
    }
    struct kg_spec *s = host->alloc(host->ctx, bytes, 0);
    if (s == NULL) {
        return kg_fail(err, KG_ENOMEM, "spec-ngram: no memory for %zu bytes", bytes);
    }
    memset(s, 0, bytes);
    s->host = host;
    s->conf = *c;
    s->max_seqs = max_seqs;
    s->price = (float)c->min_gain;
    s->bytes = bytes;
    *spec = s;
    return KG_OK;
}

static void close_ngram(struct kg_spec *s)
{
    if (s != NULL) {
        s->host->free(s->host->ctx, s, s->bytes);
    }
}

static uint32_t block_ngram(const struct kg_spec *s)
{
    return s->conf.drafts;
}

/* --- how much --- */

static struct ngram_slot *slot_of(struct kg_spec *s, uint32_t slot, uint64_t id)
{
    struct ngram_slot *q = &s->slots[slot];

    if (q->id != id) {
        *q = (struct ngram_slot){.id = id, .p = TRUST, .since = s->conf.retry};
    }
    return q;
}

/* Drafts worth their rows, 0 when not even the first one is. */
static uint32_t worth(const struct kg_spec *s, float p)
{
    float survival = p;
    uint32_t n = 0;

    while (n < s->conf.drafts && survival >= s->price) {
        survival *= p;
        n++;
    }
    return n;
}

static uint32_t wanted(const struct kg_spec *s, const struct ngram_slot *q)
{
    uint32_t n = worth(s, q->p);

    if (n == 0 && q->since >= s->conf.retry) {
        n = PROBE < s->conf.drafts ? PROBE : s->conf.drafts;
    }
    return n;
}

/* The longest window a sequence it knows wants; before any is known, all that is allowed. */
static uint32_t cap_ngram(const struct kg_spec *s)
{
    uint32_t most = 0, n_live = 0;

    for (uint32_t i = 0; i < s->max_seqs; i++) {
        if (s->slots[i].id != 0) {
            uint32_t n = wanted(s, &s->slots[i]);
            most = n > most ? n : most;
            n_live++;
        }
    }
    return n_live == 0 ? s->conf.drafts : most;
}

/* One draft row more for each sequence, in steps of the present kind, per token of such a step. */
static void set_price(struct kg_spec *s, const struct kg_spec_view *v)
{
    uint64_t context = 0;

    if (v->cost == NULL || v->n_seqs == 0) {
        s->price = (float)s->conf.min_gain;
        return;
    }
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        context += v->seqs[i].context;
    }
    uint32_t rows = v->other_rows + v->n_seqs;
    uint64_t plain = v->cost->step_ns(v->cost->ctx, v->n_seqs, rows, context);
    uint64_t more = v->cost->step_ns(v->cost->ctx, v->n_seqs, rows + v->n_seqs, context);
    s->price = plain == 0 || more < plain ? 0.0f : (float)((double)(more - plain) / (double)plain);
}

/* --- the lookup --- */

/* Tokens in which the history up to `end` agrees with its own end, at most `most`. */
static uint32_t match_at(const uint32_t *h, uint32_t n, uint32_t end, uint32_t most)
{
    uint32_t k = 0;

    while (k < most && k <= end && h[end - k] == h[n - 1 - k]) {
        k++;
    }
    return k;
}

/* Position of the last token of the best match, KG_NONE when none is min_n long. */
static uint32_t look_up(const struct ngram_conf *c, const uint32_t *h, uint32_t n)
{
    uint32_t first = c->window != 0 && n > c->window ? n - c->window : 0;
    uint32_t best = c->min_n - 1, at = KG_NONE, last;

    if (n < 2) {
        return KG_NONE;
    }
    last = h[n - 1];
    for (uint32_t i = n - 1; i-- > first;) {
        if (h[i] != last) {
            continue;
        }
        uint32_t k = match_at(h, n, i, c->max_n);
        if (k > best) {
            best = k;
            at = i;
            if (k == c->max_n) {
                break;
            }
        }
    }
    return at;
}

/* What followed the match; a match that overlaps its own end goes round. */
static void copy_draft(const uint32_t *h, uint32_t n, uint32_t at, uint32_t k, uint32_t *out)
{
    for (uint32_t i = 0; i < k; i++) {
        uint32_t p = at + 1 + i;
        out[i] = p < n ? h[p] : out[p - n];
    }
}

static int draft(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *tokens, uint32_t stride,
                 uint32_t *counts)
{
    uint64_t lookups = 0, matches = 0, paused = 0;

    set_price(s, v);
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        const struct kg_spec_seq *q = &v->seqs[i];
        uint32_t n = wanted(s, slot_of(s, q->slot, q->id)), at;
        counts[i] = 0;
        paused += n == 0;
        n = n < q->max_draft ? n : q->max_draft;
        n = n < v->cap ? n : v->cap;
        if (n == 0) {
            continue;
        }
        lookups++;
        at = look_up(&s->conf, q->history, q->n_history);
        if (at != KG_NONE) {
            matches++;
            copy_draft(q->history, q->n_history, at, n, tokens + (size_t)i * stride);
            counts[i] = n;
        }
    }
    kg_add(&s->host->cells[LOOKUPS], lookups);
    kg_add(&s->host->cells[MATCHES], matches);
    kg_add(&s->host->cells[PAUSED], paused);
    return KG_OK;
}

/* A draft costs nothing to make, so only what is worth a row was made. */
static void choose(struct kg_spec *s, const struct kg_spec_view *v, uint32_t *lengths)
{
    (void)s;
    for (uint32_t i = 0; i < v->n_seqs; i++) {
        lengths[i] = v->seqs[i].n_drafted;
    }
}

/* --- learning --- */

static void learn(const struct kg_spec *s, struct ngram_slot *q, const struct kg_spec_seen *seen)
{
    /* A run that a stop or max_tokens cut says nothing of the draft behind the cut. */
    int cut = seen->n_tokens == seen->n_accepted;

    /* After a window that was right as a whole the next may be tried at once. */
    if (seen->n_verified == 0) {
        q->since += seen->n_tokens;
    } else {
        q->since = seen->n_accepted == seen->n_verified ? s->conf.retry : 0;
    }
    for (uint32_t k = 0; k < seen->n_accepted; k++) {
        q->p += STEP * (1.0f - q->p);
    }
    if (seen->n_accepted < seen->n_verified && !cut) {
        q->p -= STEP * q->p;
    }
}

static void observe(struct kg_spec *s, const struct kg_spec_seen *seen, uint32_t n,
                    uint64_t step_ns)
{
    (void)step_ns;
    for (uint32_t i = 0; i < n; i++) {
        if (!seen[i].ended) {
            learn(s, slot_of(s, seen[i].slot, seen[i].id), &seen[i]);
        } else if (s->slots[seen[i].slot].id == seen[i].id) {
            s->slots[seen[i].slot].id = 0;
        }
    }
}

static int check(const struct kg_spec *s, struct kg_error *err)
{
    for (uint32_t i = 0; i < s->max_seqs; i++) {
        const struct ngram_slot *q = &s->slots[i];
        if (!(q->p >= 0.0f && q->p <= 1.0f)) {
            return kg_fail(err, KG_EINVAL, "spec-ngram: slot %u has acceptance %g", i,
                           (double)q->p);
        }
        for (uint32_t j = 0; j < i && q->id != 0; j++) {
            if (s->slots[j].id == q->id) {
                return kg_fail(err, KG_EINVAL, "spec-ngram: request %llu is in slots %u and %u",
                               (unsigned long long)q->id, j, i);
            }
        }
    }
    return KG_OK;
}

static const struct kg_spec_ops ops = {
    .size = sizeof(ops),
    .open = open_ngram,
    .close = close_ngram,
    .block = block_ngram,
    .cap = cap_ngram,
    .choose = choose,
    .observe = observe,
    .check = check,
    .draft = draft,
};

static const struct kg_plugin plugin = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_SPEC,
    .size = sizeof(plugin),
    .major = KG_SPEC_MAJOR,
    .minor = KG_SPEC_MINOR,
    .name = "ngram",
    .version = KG_VERSION,
    .summary = "drafts what followed the same tokens earlier in the text; stops where that fails",
    .caps = KG_SPEC_CAP_HOST | KG_SPEC_CAP_COST,
    .opts = options,
    .conf_size = sizeof(struct ngram_conf),
    .metrics = metrics,
    .ops = &ops,
};

KG_EXPORT kg_plugin_entry_fn kg_plugin_entry;

const struct kg_plugin *kg_plugin_entry(void)
{
    return &plugin;
}
