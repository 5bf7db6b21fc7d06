/* spec-fake: random windows. The HOST form drafts what the script says with probability 1/2 a
 * token, the MODEL form leaves drafting to the backend; both choose random lengths. */
#include "doubles.h"
#include "script.h"

#include "base/rng.h"

#include <kedge/spec.h>
#include <string.h>

struct fake_conf {
    uint64_t seed;
    uint32_t block, vocab, bad, want;
};

struct kg_spec {
    const struct kg_host *host;
    struct fake_conf conf;
    struct kg_rng rng;
    uint32_t cap, max_seqs;
    uint64_t n_drafts, n_chosen, n_seen;
    uint64_t *ids; /* [max_seqs] request last seen in a slot, 0 none */
};

static const struct kg_opt options[] = {
    {"seed", KG_OPT_U64, 0, offsetof(struct fake_conf, seed), "1", 0, 0, NULL,
     "Seed of all choices. Unit: none."},
    {"block", KG_OPT_U32, 0, offsetof(struct fake_conf, block), "4", 0, 16, NULL,
     "Longest window. Unit: tokens."},
    {"vocab", KG_OPT_U32, 0, offsetof(struct fake_conf, vocab), "1024", 2, 1e9, NULL,
     "Vocabulary of the drafts. Unit: tokens."},
    {"bad", KG_OPT_BOOL, 0, offsetof(struct fake_conf, bad), "no", 0, 0, NULL,
     "Break the contract now and then. Unit: none."},
    {"want", KG_OPT_BOOL, 0, offsetof(struct fake_conf, want), "no", 0, 0, NULL,
     "MODEL: draft a random part of what is allowed. Unit: none."},
    {0},
};

static int open_fake(const struct kg_host *host, const void *conf, uint32_t max_seqs,
                     uint32_t block, struct kg_spec **spec, struct kg_error *err)
{
    (void)block;
    struct kg_spec *s = host->alloc(host->ctx, sizeof(*s), 0);
    uint64_t *ids = host->alloc(host->ctx, max_seqs * sizeof(*ids), 0);
    if (s == NULL || ids == NULL) {
        return kg_fail(err, KG_ENOMEM, "no memory");
    }
    memset(ids, 0, max_seqs * sizeof(*ids));
    *s = (struct kg_spec){.host = host, .max_seqs = max_seqs, .ids = ids};
    s->conf = *(const struct fake_conf *)conf;
    kg_rng_seed(&s->rng, s->conf.seed);
    s->cap = s->conf.block;
    *spec = s;
    return KG_OK;
}

static void close_fake(struct kg_spec *s)
{
    if (s != NULL) {
        s->host->free(s->host->ctx, s->ids, s->max_seqs * sizeof(*s->ids));
        s->host->free(s->host->ctx, s, sizeof(*s));
    }
}

static uint32_t block_fake(const struct kg_spec *s)
{
    return s->conf.block;
}

static uint32_t cap_fake(const struct kg_spec *s)
{
    return s->cap;
}

static int bad_now(struct kg_spec *s)
{
    return s->conf.bad && kg_rng_below(&s->rng, 4) == 0;
}

static int draft_fake(struct kg_spec *s, const struct kg_spec_view *view, uint32_t *tokens,
                      uint32_t stride, uint32_t *counts)
{
    for (uint32_t i = 0; i < view->n_seqs; i++) {
        const struct kg_spec_seq *q = &view->seqs[i];
        uint32_t *out = tokens + (size_t)i * stride;
        uint64_t h = truth_hash(q->history, q->n_history);
        counts[i] = (uint32_t)kg_rng_below(&s->rng, q->max_draft + 1ull);
        for (uint32_t k = 0; k < counts[i]; k++) {
            out[k] = (uint32_t)(truth_mix(h) % s->conf.vocab);
            if (kg_rng_below(&s->rng, 2)) {
                out[k] = (uint32_t)kg_rng_below(&s->rng, s->conf.vocab);
            }
            h = truth_mix(h + (out[k] + 1ull) * 0x9e3779b97f4a7c15ull);
        }
        if (counts[i] > 0 && bad_now(s)) {
            out[kg_rng_below(&s->rng, counts[i])] = UINT32_MAX; /* no token */
        }
        if (bad_now(s)) {
            counts[i] = q->max_draft + 1; /* too many */
        }
    }
    s->n_drafts++;
    return bad_now(s) ? KG_EIO : KG_OK;
}

/* MODEL: as much as is allowed, or a random part of it; now and then too much. */
static void want_fake(struct kg_spec *s, const struct kg_spec_view *view, uint32_t *wants)
{
    for (uint32_t i = 0; i < view->n_seqs && s->conf.want; i++) {
        wants[i] = (uint32_t)kg_rng_below(&s->rng, view->seqs[i].max_draft + 1ull);
        if (bad_now(s)) {
            wants[i] = view->seqs[i].max_draft + 5;
        }
    }
}

static void choose_fake(struct kg_spec *s, const struct kg_spec_view *view, uint32_t *lengths)
{
    for (uint32_t i = 0; i < view->n_seqs; i++) {
        lengths[i] = (uint32_t)kg_rng_below(&s->rng, view->seqs[i].n_drafted + 1ull);
        if (bad_now(s)) {
            lengths[i] = view->seqs[i].n_drafted + 7;
        }
    }
    s->n_chosen++;
}

static void observe_fake(struct kg_spec *s, const struct kg_spec_seen *seen, uint32_t n,
                         uint64_t step_ns)
{
    (void)step_ns;
    for (uint32_t i = 0; i < n; i++) {
        s->ids[seen[i].slot] = seen[i].ended ? 0 : seen[i].id;
        s->n_seen++;
    }
    s->cap = (uint32_t)kg_rng_below(&s->rng, s->conf.block + 1ull);
    if (bad_now(s)) {
        s->cap = s->conf.block + 3;
    }
}

static int check_fake(const struct kg_spec *s, struct kg_error *err)
{
    for (uint32_t i = 0; i < s->max_seqs; i++) {
        for (uint32_t j = 0; j < i; j++) {
            if (s->ids[i] != 0 && s->ids[i] == s->ids[j]) {
                return kg_fail(err, KG_EINVAL, "request %llu is in slots %u and %u",
                               (unsigned long long)s->ids[i], i, j);
            }
        }
    }
    return KG_OK;
}

static const struct kg_spec_ops ops_host = {
    .size = sizeof(ops_host),
    .open = open_fake,
    .close = close_fake,
    .block = block_fake,
    .cap = cap_fake,
    .choose = choose_fake,
    .observe = observe_fake,
    .check = check_fake,
    .draft = draft_fake,
};

static const struct kg_spec_ops ops_model = {
    .size = sizeof(ops_model),
    .open = open_fake,
    .close = close_fake,
    .block = block_fake,
    .cap = cap_fake,
    .choose = choose_fake,
    .observe = observe_fake,
    .check = check_fake,
    .want = want_fake,
};

const struct kg_plugin double_spec_fake_host = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_SPEC,
    .size = sizeof(double_spec_fake_host),
    .major = KG_SPEC_MAJOR,
    .minor = KG_SPEC_MINOR,
    .name = "fake-host",
    .version = "test",
    .summary = "random host drafts",
    .caps = KG_SPEC_CAP_HOST,
    .opts = options,
    .conf_size = sizeof(struct fake_conf),
    .ops = &ops_host,
};

const struct kg_plugin double_spec_fake_model = {
    .magic = KG_ABI_MAGIC,
    .kind = KG_KIND_SPEC,
    .size = sizeof(double_spec_fake_model),
    .major = KG_SPEC_MAJOR,
    .minor = KG_SPEC_MINOR,
    .name = "fake-model",
    .version = "test",
    .summary = "random windows of the backend's drafts",
    .caps = KG_SPEC_CAP_MODEL,
    .opts = options,
    .conf_size = sizeof(struct fake_conf),
    .ops = &ops_model,
};
