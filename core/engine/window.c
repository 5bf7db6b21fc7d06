/*
 * The policy's word on verify windows. It is asked once per class of requests (tenant, class, arm),
 * and again when the class's acceptance, the number of decoding requests or the length of its
 * contexts left the range it was asked about, or the script was replaced. Between, its answer
 * stands: a step costs one look at each decoding request and no call.
 */
#include "engine/internal.h"

#include "base/clock.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* A class is not asked about more often than this for what its figures do: they may stand on the
 * border of a range and cross it every step. */
#define ASK_EVERY_STEPS 8
/* While a class may not draft nothing is learned about it, so it is asked about again after a
 * while, each time with half of the old evidence. */
#define PAUSED_NS KG_NS_PER_S
/* Drafts that say something about acceptance; and where both counts are halved, so that they follow
 * the traffic. */
#define KNOWN_DRAFTS 16
#define SEEN_DRAFTS 512

int kg_window_create(struct kg_engine *e)
{
    if (e->parts.policy == NULL || e->parts.policy->window == NULL) {
        return KG_OK;
    }
    /* Twice as many as can run: one whose class is looked for always finds a place that no running
     * request uses. */
    e->n_gathered = 1;
    e->n_classes = 2 * e->conf.max_seqs;
    e->classes = calloc(e->n_classes, sizeof(*e->classes));
    e->classes_now = calloc(e->conf.max_seqs, sizeof(*e->classes_now));
    return e->classes != NULL && e->classes_now != NULL ? KG_OK : KG_ENOMEM;
}

void kg_window_destroy(struct kg_engine *e)
{
    free(e->classes);
    free(e->classes_now);
}

static uint64_t key_of(const struct kg_job *job)
{
    uint64_t h = kg_hash_bytes(job->tenant_name, strlen(job->tenant_name), 1 + job->arm);

    return kg_hash_bytes(job->class_name, strlen(job->class_name), h) | 1;
}

/* The class of a request; the place used longest ago is taken for a new one. */
static struct kg_window_class *class_of(struct kg_engine *e, struct kg_req *r)
{
    struct kg_window_class *c = &e->classes[r->window_class], *oldest = e->classes;

    if (r->window_key != 0 && c->key == r->window_key) {
        return c;
    }
    r->window_key = key_of(r->job);
    for (c = e->classes; c < e->classes + e->n_classes && c->key != r->window_key; c++) {
        oldest = c->used < oldest->used ? c : oldest;
    }
    if (c == e->classes + e->n_classes) {
        c = oldest;
        *c = (struct kg_window_class){.key = r->window_key, .arm = r->job->arm};
        memcpy(c->tenant, r->job->tenant_name, sizeof(c->tenant));
        memcpy(c->class_name, r->job->class_name, sizeof(c->class_name));
    }
    r->window_class = (uint32_t)(c - e->classes);
    return c;
}

/* A decoding request of the coming step. */
static struct kg_window_class *count(struct kg_engine *e, struct kg_req *r)
{
    struct kg_window_class *c = class_of(e, r);

    if (c->used != e->n_gathered) {
        c->used = e->n_gathered;
        c->n_seqs = 0;
        c->context_sum = 0;
        e->classes_now[e->n_classes_now++] = c;
    }
    c->n_seqs++;
    c->context_sum += r->past;
    e->n_decoding++;
    return c;
}

/* All decoding requests, when no step counted them on its way. */
static void gather(struct kg_engine *e)
{
    for (uint32_t i = 0; i < e->n_running; i++) {
        const struct kg_sched_req *q = &e->running[i];
        if (q->index != KG_NONE && q->decoding && !q->paused) {
            (void)count(e, &e->reqs[q->index]);
        }
    }
}

static uint32_t octave(uint64_t v)
{
    return 63u - (uint32_t)__builtin_clzll(v | 1u);
}

static uint32_t acceptance(const struct kg_window_class *c)
{
    return c->verified < KNOWN_DRAFTS ? 0 : 1 + c->accepted * 8 / c->verified;
}

static void ask(struct kg_engine *e, struct kg_window_class *c, uint32_t batch, uint64_t now_ns)
{
    const struct kg_engine_policy *p = e->parts.policy;
    uint32_t a = acceptance(c), b = octave(batch), x = octave(c->context_sum / c->n_seqs);
    int left = c->acceptance != a || c->batch != b || c->context != x;

    if (c->rules == e->n_rules && now_ns < c->ask_at_ns &&
        (!left || e->n_gathered - c->asked < ASK_EVERY_STEPS)) {
        return;
    }
    if (now_ns >= c->ask_at_ns) {
        c->verified /= 2;
        c->accepted /= 2;
    }
    const struct kg_arm *arm = &e->arms[c->arm];
    const struct kg_window_view view = {.tenant = c->tenant,
                                        .class_name = c->class_name,
                                        .arm = arm->name,
                                        .now_ns = now_ns,
                                        .block = arm->block,
                                        .n_seqs = c->n_seqs,
                                        .batch = batch,
                                        .context_tokens = 1u << x,
                                        .verified = c->verified,
                                        .accepted = c->accepted};
    struct kg_window_answer answer = {.rule = KG_WINDOW_FREE};
    int rc = p->window(p->ctx, &view, &answer);
    if (rc == KG_EAGAIN) { /* no budget left in this step: the last word stands */
        return;
    }
    c->rule = rc == KG_OK ? answer.rule : KG_WINDOW_FREE;
    c->length = answer.length < arm->block ? answer.length : arm->block;
    c->ask_at_ns = UINT64_MAX;
    if (c->rule != KG_WINDOW_FREE && c->length == 0) {
        c->ask_at_ns = now_ns + PAUSED_NS;
    }
    c->rules = e->n_rules;
    c->asked = e->n_gathered;
    c->acceptance = a;
    c->batch = b;
    c->context = x;
}

uint32_t kg_window_step(struct kg_engine *e)
{
    const struct kg_engine_policy *p = e->parts.policy;
    uint32_t most = 0;

    e->windows = p != NULL && e->classes != NULL && e->block > 0 && p->has_window(p->ctx);
    if (!e->windows) {
        e->n_classes_now = e->n_decoding = 0;
        return e->block;
    }
    if (e->n_classes_now == 0) {
        gather(e);
    }
    uint32_t batch = e->n_decoding;
    uint64_t now_ns = e->parts.exec_ops->now(e->parts.exec);
    for (uint32_t i = 0; i < e->n_classes_now; i++) {
        struct kg_window_class *c = e->classes_now[i];
        ask(e, c, batch, now_ns);
        uint32_t n = c->rule == KG_WINDOW_FREE ? e->block : c->length;
        most = n > most ? n : most;
    }
    e->n_gathered++;
    e->n_classes_now = e->n_decoding = 0;
    return batch > 0 ? most : e->block;
}

/* The rule of a request that was gathered, or of its class when it last was. */
static const struct kg_window_class *rule_of(const struct kg_engine *e, const struct kg_req *r)
{
    const struct kg_window_class *c = e->windows ? &e->classes[r->window_class] : NULL;

    if (c == NULL || r->window_key == 0 || c->key != r->window_key || c->rule == KG_WINDOW_FREE) {
        return NULL;
    }
    return c;
}

uint32_t kg_window_limit(const struct kg_engine *e, const struct kg_req *r)
{
    const struct kg_window_class *c = rule_of(e, r);

    return c != NULL ? c->length : UINT32_MAX;
}

int kg_window_is_set(const struct kg_engine *e, const struct kg_req *r)
{
    const struct kg_window_class *c = rule_of(e, r);

    return c != NULL && c->rule == KG_WINDOW_SET;
}

void kg_window_seen(struct kg_engine *e, struct kg_req *r, uint32_t n_verified, uint32_t n_accepted)
{
    if (!e->windows) {
        return;
    }
    struct kg_window_class *c = class_of(e, r);
    c->verified += n_verified;
    c->accepted += n_accepted;
    if (c->verified >= SEEN_DRAFTS) {
        c->verified /= 2;
        c->accepted /= 2;
    }
}

void kg_window_count(struct kg_engine *e, struct kg_req *r)
{
    if (e->windows) {
        (void)count(e, r);
    }
}
