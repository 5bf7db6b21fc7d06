/*
 * Rank 0: every call goes on the tape, then to the local backend. Results are compared where the
 * engine waits anyway: at wait, bind and profile. Until then the others may lag behind.
 */
#include "ranks/impl.h"
#include "ranks/wire.h"

#include "base/clock.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

struct kg_exec {
    struct kg_exec_ops table; /* what the engine calls */
    const struct kg_exec_ops *ops;
    struct kg_exec *local;
    struct kg_ranks *ranks;
    struct kg_buf buf;
    uint64_t chain;  /* as followers make it */
    uint64_t end_ns; /* of the wait for them */
    int in_flight;
    uint64_t step;
};

/* The local one is done: the others may take the time-out more. */
static int hope_soon(void *ctx)
{
    struct kg_exec *x = ctx;

    if (kg_now_ns() >= x->end_ns)
        return KG_ETIMEOUT;
    return kg_ranks_well(x->ranks, NULL);
}

static int lost(struct kg_exec *x, uint32_t rank, int rc, struct kg_error *err)
{
    char text[100];

    (void)snprintf(text, sizeof(text), "rank %u did not follow within %llu ms", rank,
                   (unsigned long long)(x->ranks->args.timeout_ns / KG_NS_PER_MS));
    if (rc == KG_ETIMEOUT)
        kg_ranks_give_up(x->ranks, text);
    if (kg_ranks_well(x->ranks, err) == KG_OK)
        (void)kg_fail(err, KG_EDEVICE, "the group of ranks is lost (%d)", rc);
    return KG_EDEVICE;
}

static int tell(struct kg_exec *x, uint32_t op, const void *p, size_t n)
{
    x->end_ns = kg_now_ns() + x->ranks->args.timeout_ns;
    int rc = kg_tape_write(x->ranks->tape, op, p, n, hope_soon, x);
    if (rc == KG_ETIMEOUT)
        kg_ranks_give_up(x->ranks, "a rank does not take its orders");
    return rc == KG_OK ? KG_OK : KG_EDEVICE;
}

/* The local backend lost a peer: says who, the signal where there was one. */
static int lost_peer(struct kg_exec *x, struct kg_error *err)
{
    struct kg_error killed = {0};
    char text[80];

    if (kg_ranks_well(x->ranks, NULL) == KG_OK) {
        kg_ranks_loss(x->ranks, text, sizeof(text));
        if (strstr(text, "death of") != NULL && kg_ranks_killed(x->ranks, &killed) != KG_OK)
            kg_ranks_give_up(x->ranks, killed.text);
        else if (strncmp(text, "lost", 4) == 0)
            kg_ranks_give_up(x->ranks, text);
    }
    (void)kg_ranks_well(x->ranks, err); /* else the backend's own text stays */
    return KG_EDEVICE;
}

/* What a follower does to its chain behind each record. */
static int did(struct kg_exec *x, uint32_t op, int rc)
{
    x->chain = kg_hash_mix(x->chain ^ (op << 8) ^ (uint64_t)(uint32_t)rc);
    return rc;
}

/* Waits for all and compares. */
static int agree(struct kg_exec *x, const char *what, struct kg_error *err)
{
    x->end_ns = kg_now_ns() + x->ranks->args.timeout_ns;
    for (uint32_t r = 1; r < x->ranks->args.world; r++) {
        uint64_t sum;
        int rc = kg_tape_await(x->ranks->tape, r - 1, &sum, hope_soon, x);
        if (rc != KG_OK)
            return lost(x, r, rc, err);
        if (sum != x->chain) {
            char text[120];
            (void)snprintf(text, sizeof(text), "rank %u came to another result: %s of step %llu", r,
                           what, (unsigned long long)x->step);
            kg_ranks_give_up(x->ranks, text);
            return lost(x, r, KG_EDEVICE, err);
        }
    }
    return KG_OK;
}

static void lead_close(struct kg_exec *x)
{
    if (x == NULL)
        return;
    x->ops->close(x->local);
    kg_buf_fini(&x->buf);
    free(x);
}

static void lead_describe(const struct kg_exec *x, struct kg_exec_desc *desc)
{
    x->ops->describe(x->local, desc);
    desc->caps &= ~(uint64_t)KG_EXEC_CAP_VIEWS;
}

static int lead_bind(struct kg_exec *x, const struct kg_pool_layout *layout, struct kg_error *err)
{
    if (tell(x, KG_WIRE_BIND, layout, sizeof(*layout)) != KG_OK)
        return lost(x, 0, KG_EDEVICE, err);
    int rc = did(x, KG_WIRE_BIND, x->ops->bind(x->local, layout, err));
    if (rc != KG_OK)
        return rc;
    return agree(x, "the memory", err);
}

static int pair(struct kg_exec *x, uint32_t op, const void *a, size_t a_bytes, uint32_t n,
                const void *b, size_t b_bytes, uint32_t m)
{
    const struct kg_wire_pair head = {n, m};

    kg_buf_reset(&x->buf);
    int rc = kg_wire_put(&x->buf, &head, sizeof(head));
    if (rc == KG_OK)
        rc = kg_wire_put(&x->buf, a, a_bytes);
    if (rc == KG_OK)
        rc = kg_wire_put(&x->buf, b, b_bytes);
    return rc == KG_OK ? tell(x, op, kg_buf_cstr(&x->buf), x->buf.len) : rc;
}

static int lead_apply(struct kg_exec *x, const struct kg_move *moves, uint32_t n_moves,
                      const struct kg_table_change *changes, uint32_t n_changes)
{
    int rc = pair(x, KG_WIRE_APPLY, moves, sizeof(*moves) * n_moves, n_moves, changes,
                  sizeof(*changes) * n_changes, n_changes);

    if (rc != KG_OK)
        return rc;
    return did(x, KG_WIRE_APPLY, x->ops->apply(x->local, moves, n_moves, changes, n_changes));
}

static int lead_submit(struct kg_exec *x, const struct kg_batch *batch, struct kg_error *err)
{
    x->step = batch->step;
    kg_buf_reset(&x->buf);
    int rc = kg_wire_put_batch(&x->buf, batch);
    if (rc != KG_OK)
        return kg_fail(err, rc, "a step for the other ranks: out of memory");
    if (tell(x, KG_WIRE_SUBMIT, kg_buf_cstr(&x->buf), x->buf.len) != KG_OK)
        return lost(x, 0, KG_EDEVICE, err);
    rc = x->ops->submit(x->local, batch, err);
    if (rc == KG_OK) {
        x->in_flight = 1;
        x->chain = kg_hash_mix(x->chain ^ (KG_WIRE_SUBMIT << 8));
        return KG_OK;
    }
    (void)did(x, KG_WIRE_SUBMIT, rc);
    if (rc == KG_EDEVICE)
        return lost_peer(x, err);
    int all = agree(x, "a refusal", err);
    return all == KG_OK ? rc : all;
}

static int lead_wait(struct kg_exec *x, struct kg_result *result, struct kg_error *err)
{
    int rc = x->ops->wait(x->local, result, err);

    if (!x->in_flight)
        return rc;
    x->in_flight = 0;
    if (rc == KG_OK)
        x->chain = kg_wire_sum_result(result, x->chain);
    (void)did(x, KG_WIRE_SUBMIT, rc);
    if (rc != KG_OK)
        return rc == KG_EDEVICE ? lost_peer(x, err) : rc;
    return agree(x, "the tokens", err);
}

static void lead_drop(struct kg_exec *x, const uint32_t *slots, uint32_t n)
{
    if (pair(x, KG_WIRE_DROP, slots, sizeof(*slots) * n, n, NULL, 0, 0) == KG_OK)
        (void)did(x, KG_WIRE_DROP, KG_OK);
    else /* the others would keep what this rank forgets, and nothing would show it */
        kg_ranks_give_up(x->ranks, "ranks could not be told what to forget");
    x->ops->drop(x->local, slots, n);
}

static int unit(struct kg_exec *x, uint32_t op, uint32_t kind, uint32_t dst, uint32_t src)
{
    const struct kg_wire_unit u = {kind, dst, src, 0};

    return tell(x, op, &u, sizeof(u));
}

static int lead_copy(struct kg_exec *x, uint32_t kind, uint32_t dst, uint32_t src)
{
    int rc = unit(x, KG_WIRE_COPY, kind, dst, src);

    return rc == KG_OK ? did(x, KG_WIRE_COPY, x->ops->copy(x->local, kind, dst, src)) : rc;
}

static int lead_zero(struct kg_exec *x, uint32_t kind, uint32_t id)
{
    int rc = unit(x, KG_WIRE_ZERO, kind, id, 0);

    return rc == KG_OK ? did(x, KG_WIRE_ZERO, x->ops->zero(x->local, kind, id)) : rc;
}

static int lead_poison(struct kg_exec *x, uint32_t kind, uint32_t id)
{
    int rc = unit(x, KG_WIRE_POISON, kind, id, 0);

    return rc == KG_OK ? did(x, KG_WIRE_POISON, x->ops->poison(x->local, kind, id)) : rc;
}

static int lead_read(struct kg_exec *x, uint32_t kind, uint32_t id, void *dst, uint64_t n)
{
    (void)x, (void)kind, (void)id, (void)dst, (void)n;
    return KG_EINVAL;
}

static int lead_write(struct kg_exec *x, uint32_t kind, uint32_t id, const void *src, uint64_t n)
{
    (void)x, (void)kind, (void)id, (void)src, (void)n;
    return KG_EINVAL;
}

static int lead_profile(struct kg_exec *x, uint32_t n_seqs, uint32_t rows, uint32_t context,
                        uint64_t *step_ns)
{
    const struct kg_wire_profile p = {n_seqs, rows, context, 0};
    struct kg_error err = {0};

    if (tell(x, KG_WIRE_PROFILE, &p, sizeof(p)) != KG_OK)
        return KG_EDEVICE;
    int rc = did(x, KG_WIRE_PROFILE, x->ops->profile(x->local, n_seqs, rows, context, step_ns));
    int all = agree(x, "a profile", &err);
    return all == KG_OK ? rc : all;
}

static int lead_profile_draft(struct kg_exec *x, uint32_t n_seqs, uint32_t n_tokens,
                              uint32_t context, uint64_t *ns)
{
    const struct kg_wire_profile p = {n_seqs, n_tokens, context, 0};
    struct kg_error err = {0};

    if (tell(x, KG_WIRE_PROFILE_DRAFT, &p, sizeof(p)) != KG_OK)
        return KG_EDEVICE;
    int rc = did(x, KG_WIRE_PROFILE_DRAFT,
                 x->ops->profile_draft(x->local, n_seqs, n_tokens, context, ns));
    int all = agree(x, "a profile", &err);
    return all == KG_OK ? rc : all;
}

static uint64_t lead_now(const struct kg_exec *x)
{
    return x->ops->now(x->local);
}

/* Time of the others is not asked for. */
static void lead_advance(struct kg_exec *x, uint64_t t_ns)
{
    x->ops->advance(x->local, t_ns);
}

static int lead_draft(struct kg_exec *x, struct kg_draft *drafts, uint32_t n)
{
    kg_buf_reset(&x->buf);
    const struct kg_wire_pair head = {n, n};
    int rc = kg_wire_put(&x->buf, &head, sizeof(head));
    for (uint32_t i = 0; i < n && rc == KG_OK; i++)
        rc = kg_buf_add(&x->buf, &drafts[i].slot, sizeof(drafts[i].slot));
    if (rc == KG_OK && n % 2 != 0)
        rc = kg_buf_add(&x->buf, "\0\0\0", 4);
    for (uint32_t i = 0; i < n && rc == KG_OK; i++)
        rc = kg_buf_add(&x->buf, &drafts[i].n, sizeof(drafts[i].n));
    if (rc == KG_OK && n % 2 != 0)
        rc = kg_buf_add(&x->buf, "\0\0\0", 4);
    if (rc == KG_OK)
        rc = tell(x, KG_WIRE_DRAFT, kg_buf_cstr(&x->buf), x->buf.len);
    if (rc != KG_OK)
        return rc;
    rc = x->ops->draft(x->local, drafts, n);
    for (uint32_t i = 0; i < n && rc == KG_OK; i++)
        x->chain = kg_hash_mix(x->chain ^ drafts[i].n);
    return did(x, KG_WIRE_DRAFT, rc);
}

static uint32_t lead_messages(const struct kg_exec *x, uint32_t rows, uint32_t samples,
                              struct kg_message *messages, uint32_t n)
{
    return x->ops->messages(x->local, rows, samples, messages, n);
}

static int lead_dealt(const struct kg_exec *x, struct kg_dealt *dealt)
{
    return x->ops->dealt(x->local, dealt);
}

int kg_lead_open(struct kg_ranks *ranks, const struct kg_exec_ops *local_ops, struct kg_exec *local,
                 uint32_t max_seqs, const struct kg_exec_ops **ops, struct kg_exec **exec,
                 struct kg_error *err)
{
    struct kg_exec *x = calloc(1, sizeof(*x));

    if (x == NULL)
        return kg_fail(err, KG_ENOMEM, "out of memory");
    x->ops = local_ops;
    x->local = local;
    x->ranks = ranks;
    kg_buf_init(&x->buf, 0);
    if (kg_buf_reserve(&x->buf, (size_t)max_seqs * 512) != KG_OK) {
        free(x);
        return kg_fail(err, KG_ENOMEM, "out of memory");
    }
    x->table = (struct kg_exec_ops){.size = sizeof(x->table),
                                    .close = lead_close,
                                    .describe = lead_describe,
                                    .bind = lead_bind,
                                    .apply = lead_apply,
                                    .submit = lead_submit,
                                    .wait = lead_wait,
                                    .drop = lead_drop,
                                    .copy = lead_copy,
                                    .zero = lead_zero,
                                    .poison = lead_poison,
                                    .read = lead_read,
                                    .write = lead_write,
                                    .profile = lead_profile,
                                    .now = lead_now};
    if (KG_HAS(local_ops, struct kg_exec_ops, draft))
        x->table.draft = lead_draft;
    if (KG_HAS(local_ops, struct kg_exec_ops, advance))
        x->table.advance = lead_advance;
    if (KG_HAS(local_ops, struct kg_exec_ops, profile_draft))
        x->table.profile_draft = lead_profile_draft;
    if (KG_HAS(local_ops, struct kg_exec_ops, messages))
        x->table.messages = lead_messages;
    if (KG_HAS(local_ops, struct kg_exec_ops, dealt))
        x->table.dealt = lead_dealt;
    *ops = &x->table;
    *exec = x;
    return KG_OK;
}
