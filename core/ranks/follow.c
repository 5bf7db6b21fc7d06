/* A rank above 0: the tape's calls on this rank's backend. */
#include "ranks/ranks.h"
#include "ranks/wire.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

struct follower {
    const struct kg_exec_ops *ops;
    struct kg_exec *exec;
    struct kg_wire_batch batch;
    struct kg_draft *drafts; /* [max_seqs] */
    float *survival;         /* [max_seqs][draft_block] */
    uint32_t max_seqs, draft_block;
    uint64_t chain; /* of all results: rank 0 compares it */
};

static int hope(void *ctx)
{
    (void)ctx;
    return KG_OK; /* a rank whose parent ends is ended by the kernel */
}

static int apply(struct follower *f, const void *p, size_t n)
{
    const struct kg_wire_pair *pair;
    const void *moves, *changes;

    int rc = kg_wire_get_pair(p, n, sizeof(struct kg_move), sizeof(struct kg_table_change), &pair,
                              &moves, &changes);
    return rc == KG_OK ? f->ops->apply(f->exec, moves, pair->n, changes, pair->m) : rc;
}

static int submit(struct follower *f, const void *p, size_t n, struct kg_error *err)
{
    struct kg_result result = {.size = sizeof(result)};

    int rc = kg_wire_get_batch(p, n, &f->batch);
    if (rc == KG_OK)
        rc = f->ops->submit(f->exec, &f->batch.batch, err);
    if (rc != KG_OK)
        return rc;
    f->chain = kg_hash_mix(f->chain ^ (KG_WIRE_SUBMIT << 8)); /* submit itself went well */
    rc = f->ops->wait(f->exec, &result, err);
    if (rc == KG_OK)
        f->chain = kg_wire_sum_result(&result, f->chain);
    return rc;
}

static int drop(struct follower *f, const void *p, size_t n)
{
    const struct kg_wire_pair *pair;
    const void *slots, *none;

    int rc = kg_wire_get_pair(p, n, sizeof(uint32_t), 1, &pair, &slots, &none);
    if (rc == KG_OK)
        f->ops->drop(f->exec, slots, pair->n);
    return rc;
}

static int draft(struct follower *f, const void *p, size_t n)
{
    const struct kg_wire_pair *pair;
    const void *slots, *counts;

    int rc = kg_wire_get_pair(p, n, sizeof(uint32_t), sizeof(uint32_t), &pair, &slots, &counts);
    if (rc != KG_OK || pair->n != pair->m || pair->n > f->max_seqs ||
        !KG_HAS(f->ops, struct kg_exec_ops, draft))
        return KG_EINVAL;
    for (uint32_t i = 0; i < pair->n; i++) {
        f->drafts[i] = (struct kg_draft){.slot = ((const uint32_t *)slots)[i],
                                         .n = ((const uint32_t *)counts)[i],
                                         .survival = f->survival + (size_t)i * f->draft_block};
        if (f->drafts[i].n > f->draft_block)
            return KG_EINVAL;
    }
    rc = f->ops->draft(f->exec, f->drafts, pair->n);
    for (uint32_t i = 0; i < pair->n && rc == KG_OK; i++)
        f->chain = kg_hash_mix(f->chain ^ f->drafts[i].n);
    return rc;
}

static int unit(struct follower *f, uint32_t op, const struct kg_wire_unit *u)
{
    switch (op) {
    case KG_WIRE_COPY:
        return f->ops->copy(f->exec, u->kind, u->dst, u->src);
    case KG_WIRE_ZERO:
        return f->ops->zero(f->exec, u->kind, u->dst);
    default:
        return f->ops->poison(f->exec, u->kind, u->dst);
    }
}

static int profile(struct follower *f, uint32_t op, const struct kg_wire_profile *p)
{
    uint64_t ns;

    if (op == KG_WIRE_PROFILE)
        return f->ops->profile(f->exec, p->n_seqs, p->n, p->context, &ns);
    return KG_HAS(f->ops, struct kg_exec_ops, profile_draft)
               ? f->ops->profile_draft(f->exec, p->n_seqs, p->n, p->context, &ns)
               : KG_EINVAL;
}

static int bind_layout(struct follower *f, const struct kg_pool_layout *l, struct kg_error *err)
{
    return f->ops->bind(f->exec, l, err);
}

/* One record. */
static int obey(struct follower *f, uint32_t op, const void *p, size_t n, struct kg_error *err)
{
    switch (op) {
    case KG_WIRE_BIND:
        return n == sizeof(struct kg_pool_layout) ? bind_layout(f, p, err) : KG_EINVAL;
    case KG_WIRE_APPLY:
        return apply(f, p, n);
    case KG_WIRE_SUBMIT:
        return submit(f, p, n, err);
    case KG_WIRE_DROP:
        return drop(f, p, n);
    case KG_WIRE_COPY:
    case KG_WIRE_ZERO:
    case KG_WIRE_POISON:
        return n == sizeof(struct kg_wire_unit) ? unit(f, op, p) : KG_EINVAL;
    case KG_WIRE_PROFILE:
    case KG_WIRE_PROFILE_DRAFT:
        return n == sizeof(struct kg_wire_profile) ? profile(f, op, p) : KG_EINVAL;
    case KG_WIRE_DRAFT:
        return draft(f, p, n);
    default:
        return KG_EINVAL;
    }
}

static int prepare(struct follower *f, uint32_t max_seqs)
{
    struct kg_exec_desc d = {.size = sizeof(d)};

    f->ops->describe(f->exec, &d);
    f->max_seqs = f->batch.max_seqs = max_seqs;
    f->draft_block = d.draft_block;
    f->batch.seqs = calloc(max_seqs, sizeof(*f->batch.seqs));
    f->drafts = calloc(max_seqs, sizeof(*f->drafts));
    f->survival = calloc((size_t)max_seqs * (d.draft_block + 1), sizeof(*f->survival));
    return f->batch.seqs != NULL && f->drafts != NULL && f->survival != NULL ? KG_OK : KG_ENOMEM;
}

int kg_follow(struct kg_tape *tape, uint32_t rank, const struct kg_exec_ops *ops,
              struct kg_exec *exec, uint32_t max_seqs, struct kg_error *err)
{
    struct follower f = {.ops = ops, .exec = exec};
    uint32_t op = 0;
    void *p = NULL;
    size_t room = 0;
    uint64_t n;

    int rc = prepare(&f, max_seqs);
    while (rc == KG_OK) {
        rc = kg_tape_read(tape, rank - 1, &op, &p, &room, &n, hope, NULL);
        if (rc != KG_OK || op == KG_WIRE_STOP)
            break;
        int did = obey(&f, op, p, (size_t)n, err);
        f.chain = kg_hash_mix(f.chain ^ (op << 8) ^ (uint64_t)(uint32_t)did);
        kg_tape_done(tape, rank - 1, f.chain);
        if (did == KG_EDEVICE)
            rc = did;
    }
    free(p);
    free(f.batch.seqs);
    free(f.drafts);
    free(f.survival);
    if (rc != KG_OK && err->rc == KG_OK)
        (void)kg_fail(err, rc, "rank %u: the tape broke (%d)", rank, rc);
    return rc == KG_OK ? 0 : 1;
}
